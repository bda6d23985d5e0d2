"""The streams of one connection, by the names that messages use for them: those sent, and those received as arguments.

A stream received as a reply is a pending call, and stands in `pending`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import CallCancelled

#: Streams that are not open of which credit or the end is kept, and characters of their names: as many as requests may
#: wait by default.
EARLY_MAX, EARLY_KEY_MAX = 1024, 128

#: Stands before the token of a stream that has ended early.
END = "end of "


@dataclass(slots=True, eq=False)
class StreamTable:
    """The streams of one connection, in both directions.

    Attributes:
        senders: streams whose items are made at this end, by `reply_key` or `argument_key`: a `StreamSender`, or what
            takes `grant` and `close` like one.
        receivers: streams that were passed to a handler here, by their token: a `StreamReceiver`, or what takes `put`
            and `end` like one.
        early: credit for streams that are not open, and the ends of such (by `END` and the token), which came while
            requests waited that may open them.
        opened: how many streams have been opened so far.
        sent: how many streams were sent as arguments so far; their names count them.
        has_ended: the peer sends nothing more.
    """

    senders: dict[str, Any] = field(default_factory=dict)
    receivers: dict[str, Any] = field(default_factory=dict)
    early: dict[str, Any] = field(default_factory=dict)
    opened: int = 0
    sent: int = 0
    has_ended: bool = False

    def __bool__(self) -> bool:
        return bool(self.senders or self.receivers)

    def new_token(self) -> str:
        """A name for a stream that is sent as an argument."""
        self.sent += 1
        return f"s{self.sent}"

    def add_sender(self, key: str, sender: Any) -> None:
        """Enter a stream that is sent, by whatever gets the credit for it."""
        self.opened += 1
        self.senders[key] = sender
        if n := self.early.pop(key, 0):
            sender.grant(n)
        if self.has_ended:
            sender.close()

    def remove_sender(self, key: str, sender: Any) -> None:
        """Remove a stream that is over, unless a later one has its name already."""
        if self.senders.get(key) is sender:
            del self.senders[key]

    def add_receiver(self, token: str, receiver: Any) -> None:
        """Enter a stream that is received, by whatever takes its items."""
        self.opened += 1
        self.receivers[token] = receiver
        if END + token in self.early:
            receiver.end(self.early.pop(END + token))
        if self.has_ended:
            receiver.end(_ended())

    def remove_receiver(self, token: str, receiver: Any) -> None:
        """Remove a stream that is over, unless a later one has its token already."""
        if self.receivers.get(token) is receiver:
            del self.receivers[token]

    def keep(self, key: str, value: Any) -> None:
        """Keep credit for a stream that is not open, or its end; what is too much is dropped."""
        if key in self.early or (len(self.early) < EARLY_MAX and len(key) <= EARLY_KEY_MAX):
            self.early[key] = value

    def end(self) -> None:
        """End all streams, and those opened from now on: the peer sends neither items nor credit any more."""
        self.has_ended = True
        for receiver in list(self.receivers.values()):
            receiver.end(_ended())
        for sender in list(self.senders.values()):
            sender.close()


def _ended() -> CallCancelled:
    return CallCancelled("Cancelled: the caller ended the conversation before its stream")
