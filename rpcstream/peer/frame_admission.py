"""Binary frames of one connection: whether they are taken, and the memory that their payloads are received into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..codec import payloads
from ..wire.binary_frame import Admitted, BinaryFrameReader
from ..wire.envelope import BinaryFrame
from .ledger import PARTLY, Share
from .session import Session
from .shared_memory import SharedMemory


@dataclass(slots=True, eq=False)
class FrameAdmission:
    """Decides about the binary frames of one connection (`wire.binary_frame.FrameIntake`).

    Bytes of frames are counted when they have come, so announced bytes cost the others nothing. Where there is no
    memory for more, the frame of which most has come is refused.

    Args:
        session: gets the frames.

    Attributes:
        reason: why no frames may come now; None if they may.
    """

    _session: Session
    reason: str | None = None
    #: The frame whose payloads are being received; the reader of it; what is counted of it.
    _frame: BinaryFrame | None = None
    _rest: BinaryFrameReader | None = None
    _share: Share = field(init=False)
    #: Nothing is kept of what still comes.
    _is_skipped: bool = False

    def __post_init__(self) -> None:
        self._share = Share(self._session.server_ledger.waiting)

    @property
    def shared(self) -> SharedMemory | None:
        return self._session.shared

    def refuses_frames(self) -> str | None:
        return self.reason if self._session.takes_binary else "binary frames are switched off here (binary=False)"

    def admit(self, json: bytes, sizes: tuple[int, ...], lent: Sequence[Any] = ()) -> Admitted:
        session = self._session
        frame = payloads.read_frame(json, sizes, session.limits, session.side)
        if frame.refusal is not None:
            self.give_up()
        if self._is_skipped:
            return frame, []
        self._frame = frame
        if session.counters is not None:
            session.counters.frames_received += 1
            if lent:
                session.counters.shared_received += sum([each is not None for each in lent])
        memory: list[memoryview] = frame.content[1].take_memory(lent, copies=session.takes_binary == "copy")
        return frame, memory

    def grow(self, received: int, frame: BinaryFrameReader) -> None:
        # A client loses no reply that it has asked for: its own connections are the bound.
        if received < PARTLY or self._is_skipped or self._session.side == "client":
            return
        self._rest = frame
        frames, share = self._session.server_ledger.frames, self._share
        while not share.take(received - share.size):
            largest = frames.largest if frames.used > share.size else self
            largest.refuse()
            if largest is self:
                return
        frames.set(self, received)

    def over(self) -> None:
        if self._rest is not None or self._share.size:
            self._release()
        self._frame = None
        self._is_skipped = False

    def give_up(self) -> None:
        """The connection is lost, or about to be: what is being received is dropped."""
        self._release()
        self._is_skipped = True

    def refuse(self) -> None:
        """Give the memory of the frame to others, and skip what is still to come of it."""
        ledger = self._session.server_ledger
        if self._frame is not None:
            self._frame.refusal = ledger.refusal()
            self._frame.content[1].drop_memory()
        if self._rest is not None:
            self._rest.drop(ledger.limit)
        self.give_up()

    def _release(self) -> None:
        self._frame = self._rest = None
        if self._share.size:
            self._share.give_back(self._share.size)
            self._session.server_ledger.frames.set(self, 0)
