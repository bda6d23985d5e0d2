"""The line stream's other framing: each message behind a header with its length (wire page, "Content-Length").

Owns how such messages are written; all else is as in a line stream, without binary frames and shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

from ..limits import Limits
from ..peer.session import Session
from ..wire.buffers import Encoded, parts_of
from ..wire.content_length import ContentLengthFramer
from .message_connection import ConnectionOptions, trace_sent
from .stream import LineStream


class ContentLengthStream(LineStream):
    """An asyncio protocol and the channel of one session.

    Args:
        session: gets the messages.
        options: see `ConnectionOptions`.
    """

    _COMPLETION = "send as many bytes as Content-Length says"

    def __init__(self, session: Session, *, limits: Limits, **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(session, limits=limits, delimiter=b"", **options)

    def _make_framer(self) -> ContentLengthFramer:
        return ContentLengthFramer(max_size=self._limits.max_message_size, reception=self._reception)

    def send(self, messages: list[Encoded]) -> None:
        transport = self._transport
        if transport is None:
            return
        self._timeouts.heard = True
        if self._trace is not None:
            trace_sent(self._trace, messages, as_frames=False)
        self._write_parts(self._delimited(messages))
        if self._is_full:
            self._check_unread(transport)

    def _delimited(self, messages: list[Encoded]) -> Iterator[bytes]:
        for message in messages:
            parts = parts_of(message)
            yield b"Content-Length: %d\r\n\r\n" % sum(map(len, parts))
            yield from parts

    def probe(self) -> None:
        """As `Connection.probe`: nothing may stand between two messages, so that nothing can be found out."""
