"""The line stream's other framing: each message behind a header with its length (wire page, "Content-Length").

Owns how such messages are written; all else is as in a line stream, without binary frames and shared memory.
"""

from __future__ import annotations

from typing import Unpack

from ..peer.session import Session
from ..wire.buffers import Encoded, parts_of
from ..wire.content_length import ContentLengthFramer
from .message_connection import ConnectionOptions
from .stream import LineStream


class ContentLengthStream(LineStream):
    """An asyncio protocol and the channel of one session.

    Args:
        session: gets the messages.
        options: see `ConnectionOptions`.
    """

    _COMPLETION = "send as many bytes as Content-Length says"

    def __init__(self, session: Session, **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(session, delimiter=b"", **options)

    def _make_framer(self) -> ContentLengthFramer:
        return ContentLengthFramer(max_size=self._limits.max_message_size, reception=self._reception)

    def _framed(self, messages: list[Encoded]) -> list[Encoded]:
        framed: list[Encoded] = []
        for message in messages:
            framed += b"Content-Length: %d\r\n\r\n" % sum(map(len, parts_of(message))), message
        return framed

    def probe(self) -> None:
        """As `Connection.probe`: nothing may stand between two messages, so that nothing can be found out."""
