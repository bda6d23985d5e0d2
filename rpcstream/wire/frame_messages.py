"""Binary frames that are whole messages: of a WebSocket, and bodies of HTTP; with the masks of WebSocket. Pure.

Owns that such a message is one frame with nothing behind it. Knows neither how messages are framed by these protocols
(`frames`, `http_parser`) nor what a frame looks like (`binary_frame`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from .binary_frame import BinaryFrameReader, FrameError
from .messages import FrameIntake, Message, Reception

#: Applies a mask of four bytes to a payload; twice gives the payload again.
Masking = Callable[[bytes | bytearray | memoryview, bytes | bytearray], bytes]


@cache
def masking() -> Masking:
    """The masking function, in C. Imported when first used: that takes hundredths of a second."""
    try:
        from websockets.speedups import apply_mask
    except ImportError:  # built without its C part
        from websockets.utils import apply_mask
    return apply_mask


class FrameMessage:
    """Receives a frame that is a whole message: of a WebSocket, or the body of an HTTP message.

    Args:
        intake, max_size, reception: as for `BinaryFrameReader`.
    """

    __slots__ = ("_frame", "_intake")

    def __init__(self, intake: FrameIntake, max_size: int, reception: Reception | None) -> None:
        self._frame = BinaryFrameReader(intake, max_size, reception)
        self._intake = intake

    @property
    def is_waiting(self) -> bool:
        """As `BinaryFrameReader.is_waiting`."""
        return self._frame.is_waiting

    @property
    def is_unbounded(self) -> bool:
        """Whether the frame is so large that it is not skipped either: `end` may be called at once."""
        return self._frame.must_close and self._frame.message is not None

    def feed(self, data: bytes, at: int = 0) -> int:
        """Take bytes of the message; returns how far: less than all of them if the frame must wait.

        Raises:
            FrameError: they are no frame, or stand behind it.
        """
        at = self._frame.feed(data, at)
        if at < len(data) and not self.is_waiting:
            if self.is_unbounded:
                return len(data)
            raise FrameError("bytes stand behind the binary frame in its message")
        return at

    def go_on(self) -> bool:
        """As `BinaryFrameReader.go_on`."""
        return self._frame.go_on()

    def end(self) -> Message:
        """The message is over: gives the frame, or what stands for it.

        Raises:
            FrameError: the end of the frame has not come.
        """
        if self._frame.message is None:
            raise FrameError("the message ends before the binary frame in it does")
        self._intake.over()
        return self._frame.message


class FrameBody(FrameMessage):
    """Receives a frame that is the body of an HTTP message."""

    __slots__ = ("_rest",)

    def __init__(self, intake: FrameIntake, max_size: int, reception: Reception | None) -> None:
        super().__init__(intake, max_size, reception)
        #: What has come while the frame waits.
        self._rest = b""

    def append(self, data: bytes) -> None:
        """Take the bytes that came next. Raises as `feed`."""
        if self.is_waiting:
            self._rest += data
        elif (taken := self.feed(data)) < len(data):
            self._rest = data[taken:]

    def go_on(self) -> bool:
        """As `BinaryFrameReader.go_on`. Raises as `feed`."""
        if not super().go_on():
            return False
        rest, self._rest = self._rest, b""
        self.append(rest)
        return not self.is_waiting


class MaskedFrameMessage(FrameMessage):
    """Receives a frame that is a message of a WebSocket, in one or more frames of that, masked or not.

    Attributes:
        left: bytes of the present frame of WebSocket that have not come.
        is_last: the message ends with that.
    """

    __slots__ = ("_mask", "is_last", "left")

    def __init__(self, intake: FrameIntake, max_size: int, reception: Reception | None) -> None:
        super().__init__(intake, max_size, reception)
        self.left = 0
        self.is_last = False
        self._mask = b""

    def begin(self, length: int, mask: bytes, *, is_last: bool) -> None:
        """The next frame of WebSocket has so many bytes, with this mask; empty: none."""
        self.left, self._mask, self.is_last = length, mask, is_last

    def feed(self, data: bytes | bytearray, at: int = 0) -> int:
        """As `FrameMessage.feed`, of the present frame of WebSocket; what stands behind that is not taken."""
        count = min(self.left, len(data) - at)
        if not count:
            return at
        mask = self._mask
        if mask:
            taken = super().feed(masking()(memoryview(data)[at : at + count], mask))
            turn = taken % 4
            self._mask = mask[turn:] + mask[:turn]
        elif isinstance(data, bytes) and at + count == len(data):
            taken = super().feed(data, at) - at
        else:
            taken = super().feed(bytes(data[at : at + count]))
        self.left -= taken
        return at + taken
