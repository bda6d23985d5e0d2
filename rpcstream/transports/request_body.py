"""The body of a POST while it is received, on our own port or from an ASGI server."""

from __future__ import annotations

import orjson

from ..errors import ParseError
from ..limits import Limits
from ..peer.frame_admission import FrameAdmission
from ..peer.ledger import Reception
from ..wire.binary_frame import HEADER_MAX, BinaryFrameReader, FrameError
from ..wire.buffers import ReceiveBuffer
from ..wire.envelope import Message, error_reply
from ..wire.http_messages import JSON, HttpError, Response, problem, too_long


class RequestBody:
    """The body of a call while it comes: it is kept, or received as the binary frame that it is.

    Args:
        reception: counts what is kept.
        admission: decides about the frame; None: it is no frame.

    Raises, by `append` and `end`:
        HttpError: it is too long, there is no memory for it, or it is no frame.
    """

    def __init__(self, limits: Limits, reception: Reception, admission: FrameAdmission | None) -> None:
        self._max_size = limits.max_message_size
        self._size = 0 if admission is None else -HEADER_MAX
        self._content = ReceiveBuffer()
        self._reception = reception
        self._admission = admission
        self._frame = None if admission is None else BinaryFrameReader(admission, self._max_size)

    def append(self, part: bytes, left: int = 0) -> None:
        """Take the bytes that came next; `left`: how many more were announced."""
        self._size += len(part)
        if self._size + left > self._max_size:
            raise HttpError(too_long(self._max_size))
        if self._frame is not None:
            try:
                self._frame.append(part)
            except FrameError as error:
                raise _malformed(error) from None
        elif self._reception.grow(self._size):
            self._content.append(part)
        else:
            text = "the server has no memory for so many long messages at once (max_held_total)"
            raise HttpError(problem(503, text, [("Retry-After", "1")]))

    def end(self) -> Message:
        """Give the whole body: all of it has come."""
        self._reception.over()
        if self._frame is None:
            return self._content.take()
        try:
            return self._frame.end()
        except FrameError as error:
            raise _malformed(error) from None

    def give_up(self) -> None:
        """Drop what has come: the rest will not."""
        self._reception.over()
        if self._admission is not None:
            self._admission.give_up()


def _malformed(error: FrameError) -> HttpError:
    """For a body that is to be a binary frame, and is none."""
    return HttpError(Response(200, orjson.dumps(error_reply(None, ParseError(data={"reason": str(error)}))), JSON))
