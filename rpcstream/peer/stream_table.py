"""The streams of one connection, by what names them, and whether the connection takes anything at the moment.

Owns the two tables: streams that go out (items are sent as credit allows), and streams that come in as arguments.
Streams that come in as replies are calls that wait, and stand among those.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from ..errors import CallCancelled
from .flow_control import CreditSink, ItemSink, StreamReceiver, StreamSender
from .memory import MessageMemory


def reply_key(call_id: Any) -> str:
    """The key of the items that answer a call. A text, whatever the peer takes for ids: it cannot choose our hashes."""
    return f"id {call_id!r}"


def argument_key(token: str) -> str:
    """The key of a stream that is an argument."""
    return f"stream {token}"


class StreamTable:
    """What flows over one connection.

    Args:
        memory: where the items count that wait to be used.
        crowd: bytes; while more than these wait for the end of the turn, producers do.

    Attributes:
        senders: streams of items that this end makes.
        receivers: streams that were passed to a handler here, by their token.
        stalled: the peer does not read what is sent.
        has_ended: the peer says nothing more.
        opened: how many streams have been opened so far.
        waiting: those who wait until there is room, in the order in which they came; made when it is first needed.
        unsent: bytes that were sent in this turn of the loop and not yet handed to the transport.
    """

    __slots__ = (
        "_crowd",
        "_has_turn",
        "_last_token",
        "_memory",
        "has_ended",
        "opened",
        "receivers",
        "senders",
        "stalled",
        "unsent",
        "waiting",
    )

    def __init__(self, crowd: int, memory: MessageMemory | None = None) -> None:
        self._crowd = crowd
        self._memory = memory
        self.unsent = 0
        self.opened = 0
        self.senders: dict[str, CreditSink] = {}
        self.receivers: dict[str, ItemSink] = {}
        self.stalled = False
        #: One of those who waited goes on in this turn of the loop.
        self._has_turn = False
        self.waiting: deque[asyncio.Future[None]] | None = None
        self._last_token = 0
        self.has_ended = False

    def __bool__(self) -> bool:
        return bool(self.senders or self.receivers)

    def new_token(self) -> str:
        """A name for a stream that goes out as an argument."""
        self._last_token += 1
        return f"s{self._last_token}"

    def open_sender(self, key: str, credit: int) -> StreamSender:
        """A stream that goes out from now on; to be closed by `close_sender`."""
        sender = StreamSender(self, credit)
        self.add_sender(key, sender)
        return sender

    def add_sender(self, key: str, sender: CreditSink) -> None:
        """The same for one that is there."""
        self.opened += 1
        self.senders[key] = sender
        if self.has_ended:
            sender.close()

    def close_sender(self, key: str, sender: CreditSink) -> None:
        """It is over. A later one may have its name already."""
        if self.senders.get(key) is sender:
            del self.senders[key]

    def open_receiver(self, token: str, window: int, grant: Callable[[int], None]) -> StreamReceiver:
        """A stream that comes as an argument; to be closed by `close_receiver`."""
        receiver = StreamReceiver(window, grant, is_granted=False, memory=self._memory)
        self.add_receiver(token, receiver)
        return receiver

    def add_receiver(self, token: str, receiver: ItemSink) -> None:
        """The same for one that is there."""
        self.opened += 1
        self.receivers[token] = receiver
        if self.has_ended:
            receiver.end(_ended())

    def close_receiver(self, token: str) -> None:
        """Nobody reads it any more; what still comes is dropped."""
        receiver = self.receivers.pop(token, None)
        if receiver is not None:
            # Should somebody read it still, that is not to look like the whole.
            receiver.end(CallCancelled("Cancelled: the call that the stream belonged to is over"))
            receiver.clear()

    def set_stalled(self, stalled: bool) -> None:
        self.stalled = stalled
        self._next()

    def written(self) -> None:
        """What was sent in this turn is handed to the transport, or will never be."""
        self.unsent = 0
        self._next()

    @property
    def is_free(self) -> bool:
        """More may be sent now."""
        return not self.stalled and self.unsent <= self._crowd

    async def flowing(self) -> None:
        """Wait until the peer reads again, or is gone, and what was sent in this turn is on its way.

        Those who wait go on one by one, in the order in which they came, and may send one message each, also if another
        has filled the connection again meanwhile: so nobody waits for ever.
        """
        waiter = self._waiter()
        try:
            await waiter
        finally:
            if not waiter.cancelled():
                asyncio.get_running_loop().call_soon(self._turn_is_over)

    async def others_first(self) -> None:
        """Let everybody else have a turn: those who wait to send something, too."""
        if self.waiting:
            await self.flowing()
        else:
            await asyncio.sleep(0)

    def when_flowing(self, function: Callable[[], object]) -> None:
        """Call this once, soon after the peer reads again or is gone. To be used while nothing more may be sent."""
        self._waiter().add_done_callback(lambda _: self._have_turn(function))

    def _waiter(self) -> asyncio.Future[None]:
        """One more, behind all others."""
        if self.waiting is None:
            self.waiting = deque()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(waiter)
        return waiter

    def _have_turn(self, function: Callable[[], object]) -> None:
        try:
            function()
        finally:
            self._turn_is_over()

    def _next(self) -> None:
        """Whoever waits next may go on, if there is room, and nobody else is about to."""
        while self.waiting and self.is_free and not self._has_turn:
            waiter = self.waiting.popleft()
            if not waiter.done():
                self._has_turn = True
                waiter.set_result(None)

    def _turn_is_over(self) -> None:
        self._has_turn = False
        self._next()

    def end(self) -> None:
        """The peer says nothing more: nothing more comes in, no more credit either, now and from now on."""
        self.has_ended = True
        for receiver in list(self.receivers.values()):
            receiver.end(_ended())
        for sender in list(self.senders.values()):
            sender.close()


def _ended() -> CallCancelled:
    return CallCancelled("Cancelled: the caller ended the conversation before its stream")
