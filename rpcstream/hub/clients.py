"""The connections of a hub, as the hub sees them: who is there, what each has been asked, what waits for it.

Owns what is sent to one client and how much of that may wait while it does not read. Knows neither methods nor names of
others (that is the directory's) nor sockets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ServerBusy
from ..peer.session import Session
from ..wire.pieces import Written

if TYPE_CHECKING:
    from .offers import Offer


class Client:
    """One connection that has said something.

    Attributes:
        session: the conversation with it.
        name: what it registered as; None before.
        key: with which the same program may take its name over on another connection.
        offers: the methods that it offers, by name.
        since: when it came; Unix time, s.
        made: calls that it made, its notifications among them; `served`: those that it was asked to carry out.
        waiting: messages that wait until it reads again; `waiting_size`: their bytes.
        heard: loop time, s, at which it last showed that it is there.
    """

    __slots__ = (
        "address",
        "heard",
        "key",
        "made",
        "name",
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

    def __init__(self, session: Session) -> None:
        self.session = session
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
        #: Bytes of the descriptions of its methods.
        self.offered_size = 0
        #: What the descriptions of its methods refer to.
        self.schemas: dict[str, Any] = {}

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
        flows = session.flows
        if self.is_flowing:
            session.pass_on(message)
            return
        limits, size = session.limits, len(message)
        if self.waiting >= limits.max_queue or (self.waiting and self.waiting_size + size > limits.max_message_size):
            data = {"reason": f"{self.name} does not read what it is sent", "waiting": self.waiting}
            raise ServerBusy("Server busy: the provider takes no more calls at present", data)

        def send_now() -> None:
            self.waiting -= 1
            self.waiting_size -= size
            if is_wanted is None or is_wanted():
                session.pass_on(message)

        self.waiting += 1
        self.waiting_size += size
        flows.when_flowing(send_now)

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
