"""The streams of one connection, by the names that messages use for them.

Owns two tables: streams that are sent (items go out as credit allows), and streams received as arguments. A stream
received as a reply is a pending call, and stands in `pending`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import CallCancelled
from .flow_control import CreditSink, ItemSink, StreamReceiver, StreamSender
from .memory import MessageMemory
from .write_gate import WriteGate


def reply_key(call_id: Any) -> str:
    """The key of the items that answer a call. Always a text, so that the peer's ids do not choose our hashes."""
    return f"id {call_id!r}"


def argument_key(token: str) -> str:
    """The key of a stream that is an argument."""
    return f"stream {token}"


class StreamTable:
    """The streams of one connection, in both directions.

    Args:
        write_gate: of the connection; senders wait at it.
        memory: where items that wait to be used count.

    Attributes:
        senders: streams whose items are made at this end, by `reply_key` or `argument_key`.
        receivers: streams that were passed to a handler here, by their token.
        opened: how many streams have been opened so far.
        has_ended: the peer sends nothing more.
    """

    __slots__ = ("_last_token", "_memory", "_write_gate", "has_ended", "opened", "receivers", "senders")

    def __init__(self, write_gate: WriteGate, memory: MessageMemory | None = None) -> None:
        self._write_gate = write_gate
        self._memory = memory
        self._last_token = 0
        self.senders: dict[str, CreditSink] = {}
        self.receivers: dict[str, ItemSink] = {}
        self.opened = 0
        self.has_ended = False

    def __bool__(self) -> bool:
        return bool(self.senders or self.receivers)

    def new_token(self) -> str:
        """A name for a stream that is sent as an argument."""
        self._last_token += 1
        return f"s{self._last_token}"

    def open_sender(self, key: str, credit: int) -> StreamSender:
        """Open a stream that is sent; to be removed by `remove_sender`."""
        sender = StreamSender(self._write_gate, credit)
        self.add_sender(key, sender)
        return sender

    def add_sender(self, key: str, sender: CreditSink) -> None:
        """Enter a stream that is sent, by whatever gets the credit for it."""
        self.opened += 1
        self.senders[key] = sender
        if self.has_ended:
            sender.close()

    def remove_sender(self, key: str, sender: CreditSink) -> None:
        """Remove a stream that is over, unless a later one has its name already."""
        if self.senders.get(key) is sender:
            del self.senders[key]

    def open_receiver(self, token: str, window: int, grant: Callable[[int], None]) -> StreamReceiver:
        """Open a stream that comes as an argument; to be closed by `close_receiver`."""
        receiver = StreamReceiver(window, grant, is_granted=False, memory=self._memory)
        self.add_receiver(token, receiver)
        return receiver

    def add_receiver(self, token: str, receiver: ItemSink) -> None:
        """Enter a stream that is received, by whatever takes its items."""
        self.opened += 1
        self.receivers[token] = receiver
        if self.has_ended:
            receiver.end(_ended())

    def remove_receiver(self, token: str, receiver: ItemSink) -> None:
        """Remove a stream that is over, unless a later one has its token already."""
        if self.receivers.get(token) is receiver:
            del self.receivers[token]

    def close_receiver(self, token: str) -> None:
        """Remove a stream that is not read any more; items that still come are dropped."""
        receiver = self.receivers.pop(token, None)
        if receiver is not None:
            # Should it be read still, that must not look like the end of a whole stream.
            receiver.end(CallCancelled("Cancelled: the call that the stream belonged to is over"))
            receiver.clear()

    def end(self) -> None:
        """End all streams, and those opened from now on: the peer sends neither items nor credit any more."""
        self.has_ended = True
        for receiver in list(self.receivers.values()):
            receiver.end(_ended())
        for sender in list(self.senders.values()):
            sender.close()


def _ended() -> CallCancelled:
    return CallCancelled("Cancelled: the caller ended the conversation before its stream")
