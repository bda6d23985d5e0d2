"""A member of a hub: one connected client, with what it offers and the messages that wait for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..errors import MessageTooLarge, ServerBusy
from ..events.event_queue import QueueMemory
from ..peer.session import Session
from ..wire.buffers import AttachedMessage, Encoded, size_as_text, trimmed_message
from .offers import Offer

#: Bytes of memory that a message takes besides its own while it waits.
WAITING_COST = 150

#: Bytes of waiting messages that are sent at once.
SHARE = 64 * 1024


class Member:
    """One connection that has sent at least one request or notification.

    Args:
        memory: counts the messages that wait for members, all together.

    Attributes:
        session: its connection.
        name: the name that it registered; None before.
        key: shown on another connection, it lets the same program take its name over.
        offers: the methods that it offers, by name.
        schemas: the schemas that the descriptions of its methods refer to, as JSON by name.
        offered_cost: bytes of memory that its methods and schemas take, about.
        since: when it connected; Unix time, s.
        calls_made: calls and notifications that it sent.
        calls_served: calls and notifications that were sent to it.
        waiting_size: bytes of memory that messages take which wait until it reads again.
        last_heard: loop time, s, of its last sign of life.
        is_pinged: it was sent a ping that it has not answered.
    """

    def __init__(self, session: Session, memory: QueueMemory) -> None:
        self.session = session
        self._memory = memory
        self._queue: deque[tuple[Encoded, Callable[[], bool] | None]] = deque()
        self.address = session.channel.address if session.channel is not None else ""
        self.name: str | None = None
        self.key = ""
        self.offers: dict[str, Offer] = {}
        self.schemas: dict[str, bytes] = {}
        self.offered_cost = 0
        self.since = time.time()
        self.calls_made = self.calls_served = 0
        self.waiting_size = 0
        self.last_heard = session.loop.time()
        self.is_pinged = False

    @property
    def is_there(self) -> bool:
        """It takes calls: its connection is open in both directions."""
        return self.session.is_open and not self.session.streams.has_ended

    @property
    def waiting(self) -> int:
        """Messages that wait until it reads again."""
        return len(self._queue)

    @property
    def is_flowing(self) -> bool:
        """A message sent to it now is written at once, behind all that were sent before."""
        return not self._queue and self.session.write_gate.is_open

    @property
    def load(self) -> int:
        """Calls that it has not answered."""
        return len(self.session.pending) - self.is_pinged  # an unanswered ping is no call

    @property
    def state(self) -> str:
        """One of "idle", "busy" (it works for others), "stalled" (it does not read) and "leaving"."""
        if not self.is_there:
            return "leaving"
        if self.session.write_gate.stalled:
            return "stalled"
        return "busy" if self.load else "idle"

    def send(self, message: Encoded, is_wanted: Callable[[], bool] | None = None) -> None:
        """Send a message behind all earlier ones; while the member does not read, it waits.

        Args:
            message: the whole message.
            is_wanted: asked when the message has waited; if it returns False, the message is dropped.

        Raises:
            ServerBusy: too much waits for the member (`max_queue`, `max_message_size`, `max_waiting`).
            MessageTooLarge: it is sent to the member as text, which is too long.
        """
        session = self.session
        if type(message) is AttachedMessage:
            check_as_text(message, session)
        if self.is_flowing:
            session.send(message)
            return
        limits, size = session.limits, len(message) + WAITING_COST
        # A single message may be larger. The other members find as much room as this one takes.
        is_full = self.waiting and self.waiting_size + size > min(limits.max_message_size, self._memory.free)
        if self.waiting >= limits.max_queue or is_full or not self._memory.take(size):
            data = {"reason": f"{self.name or self.address} does not read what it is sent", "waiting": self.waiting}
            raise ServerBusy("Server busy: the provider takes no more calls at present", data)
        if type(message) is AttachedMessage:
            message.secure()
        session.pending.is_in_order = False  # other calls of this session may overtake it
        self._queue.append((trimmed_message(message), is_wanted))
        self.waiting_size += size
        if self.waiting == 1:
            session.write_gate.when_open(self._send_waiting)

    def _send_waiting(self) -> None:
        """Send as much as the connection takes now; then other senders on this connection have their turn."""
        session = self.session
        write_gate, sent = session.write_gate, 0
        while self._queue and sent < SHARE and (write_gate.is_open or not sent):
            message, is_wanted = self._queue.popleft()
            size = len(message) + WAITING_COST
            self.waiting_size -= size
            self._memory.give_back(size)
            if is_wanted is None or is_wanted():
                sent += len(message)
                session.send(message)
        if self._queue:
            write_gate.when_open(self._send_waiting)

    def described(self) -> dict[str, Any]:
        """Describe it for `rpc.clients`."""
        return {
            "name": self.name,
            "address": self.address,
            "methods": sorted(self.offers),
            "since": round(self.since, 3),
            "calls_made": self.calls_made,
            "calls_served": self.calls_served,
            "in_flight": self.load,
            "state": self.state,
        }

    def __repr__(self) -> str:
        return f"<member {self.name or self.address}>"


def check_as_text(message: Encoded, session: Session) -> None:
    """Check the size of a message that goes as text, since its receiver does not read binary frames.

    Raises:
        MessageTooLarge: it is over `max_message_size`.
    """
    size, limit = size_as_text(message), session.limits.max_message_size
    if size > limit and not session.sends_binary:
        raise MessageTooLarge(
            f"Message too large: {size} bytes as text, for an end that does not read binary frames; the hub's limit is "
            f"{limit} bytes",
            {"size": size, "limit": limit, "side": "server"},
        )
