"""The connections of a hub, as the hub sees them: who is there, what each has been asked, what waits for it.

Owns what is sent to one client and how much of that may wait while it does not read. Knows neither methods nor names of
others (that is the directory's) nor sockets.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ServerBusy
from ..events.queue import Room
from ..peer.session import Session
from ..wire.pieces import Written, kept

if TYPE_CHECKING:
    from .offers import Offer


#: Bytes of memory that a message takes besides its own while it waits.
WAITING_COST = 150

#: Bytes of what has waited that are sent at once.
SHARE = 64 * 1024


class Member:
    """One connection that has said something.

    Args:
        room: that all clients share for what waits.

    Attributes:
        session: the conversation with it.
        name: what it registered as; None before.
        key: with which the same program may take its name over on another connection.
        offers: the methods that it offers, by name.
        since: when it came; Unix time, s.
        made: calls that it made, its notifications among them; `served`: those that it was asked to carry out.
        waiting: messages that wait until it reads again; `waiting_size`: bytes of memory that they take.
        heard: loop time, s, at which it last showed that it is there.
    """

    __slots__ = (
        "_queue",
        "_room",
        "address",
        "heard",
        "key",
        "made",
        "name",
        "offered_cost",
        "offered_size",
        "offers",
        "pinged",
        "schemas",
        "served",
        "session",
        "since",
        "waiting",
        "waiting_size",
    )

    def __init__(self, session: Session, room: Room) -> None:
        self.session = session
        self._room = room
        self._queue: deque[tuple[Written, Callable[[], bool] | None]] = deque()
        self.address = session.channel.address if session.channel is not None else ""
        self.name: str | None = None
        self.key = ""
        self.offers: dict[str, Offer] = {}
        self.since = time.time()
        self.made = self.served = 0
        self.waiting = self.waiting_size = 0
        self.heard = session.loop.time()
        #: It was sent a ping that it has not answered.
        self.pinged = False
        #: Bytes of the names and descriptions of its methods, as JSON; and of the memory that all of it takes.
        self.offered_size = self.offered_cost = 0
        #: What the descriptions of its methods refer to, as JSON.
        self.schemas: dict[str, bytes] = {}

    @property
    def is_there(self) -> bool:
        """It takes calls: its connection stands, and it has not said its last word."""
        return self.session.is_open and not self.session.flows.has_ended

    @property
    def is_flowing(self) -> bool:
        """What is sent to it now is on its way, behind all that was sent before."""
        return not self.waiting and self.session.flows.is_free

    @property
    def load(self) -> int:
        """Calls that it has not answered."""
        return len(self.session.pending) - self.pinged  # a ping that waits is no call

    @property
    def state(self) -> str:
        """ "idle", "busy" (it works for others), "stalled" (it does not read) or "leaving"."""
        if not self.is_there:
            return "leaving"
        if self.session.flows.stalled:
            return "stalled"
        return "busy" if self.load else "idle"

    def send(self, message: Written, is_wanted: Callable[[], bool] | None = None) -> None:
        """Send a message, in the order of all others; while the client does not read, it waits.

        Args:
            is_wanted: asked when it has waited; what is not wanted then is not sent.

        Raises:
            ServerBusy: as many messages, or bytes, wait for it as may (`max_queue`, `max_message_size`).
        """
        session = self.session
        if self.is_flowing:
            session.pass_on(message)
            return
        limits, size = session.limits, len(message) + WAITING_COST
        is_full = self.waiting_size + size > min(limits.max_message_size, self._room.free) and self.waiting > 0
        if self.waiting >= limits.max_queue or is_full or size > self._room.free:
            data = {"reason": f"{self.name} does not read what it is sent", "waiting": self.waiting}
            raise ServerBusy("Server busy: the provider takes no more calls at present", data)
        self._queue.append((kept(message), is_wanted))
        self.waiting += 1
        self.waiting_size += size
        self._room.used += size
        if self.waiting == 1:
            session.flows.when_flowing(self._send_waiting)

    def _send_waiting(self) -> None:
        """As much of what waits as the connection takes now; the others who wait for it have their turn then."""
        session = self.session
        flows, sent = session.flows, 0
        while self._queue and sent < SHARE and (flows.is_free or not sent):
            message, is_wanted = self._queue.popleft()
            size = len(message) + WAITING_COST
            self.waiting -= 1
            self.waiting_size -= size
            self._room.used -= size
            if is_wanted is None or is_wanted():
                sent += len(message)
                session.pass_on(message)
        if self._queue:
            flows.when_flowing(self._send_waiting)

    def described(self) -> dict[str, Any]:
        """For `rpc.clients`."""
        return {
            "name": self.name,
            "address": self.address,
            "methods": sorted(self.offers),
            "since": round(self.since, 3),
            "calls_made": self.made,
            "calls_served": self.served,
            "in_flight": self.load,
            "state": self.state,
        }

    def __repr__(self) -> str:
        return f"<client {self.name or self.address}>"
