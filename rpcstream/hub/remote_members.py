"""Members of other hubs: a hub that this one knows, and the clients of it, which are called through it.

Owns what goes to another hub for one of its clients, and how much of that may wait. Knows neither how hubs find each
other nor what they tell each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import RpcError
from ..events.event_queue import QueueMemory
from ..observe.limited_log import LimitedLog
from ..peer.state import ConversationState
from ..wire.buffers import Encoded
from . import passthrough
from .members import Member
from .passthrough import Line

#: The share of `max_waiting_total` that may wait for one other hub.
SHARE_OF_HUB = 4


class OtherHub(Member):
    """Another hub of the group: the queue of all that it is sent.

    Args:
        hub: its id.
        number: by which the events between hubs know it.

    Attributes:
        clients: those of it that this hub knows, by name.
        told: the names of the clients of this hub that it was told of.
        late: topics whose last value it is to be sent when there is room.
        checks: questions whether it is there, without an answer.
    """

    is_client = False

    __slots__ = ("checks", "clients", "hub", "late", "number", "told")

    def __init__(self, session: ConversationState, hub: str, number: int, memory: QueueMemory) -> None:
        super().__init__(session, memory)
        self.hub = hub
        self.number = number
        self.clients: dict[str, RemoteMember] = {}
        self.told: set[str] = set()
        self.late: dict[str, None] = {}
        self.checks = 0

    @property
    def called(self) -> str:
        return f"the hub {self.hub}"

    @property
    def max_waiting_size(self) -> int:
        """A share of the memory for all: what waits is for many clients of it."""
        return self.session.limits.max_waiting_total // SHARE_OF_HUB

    def tell(self, message: Encoded, log: LimitedLog) -> None:
        """Tell the hub something; one that does not read what it is told is disconnected, and told all anew."""
        try:
            if self.session.channel is not None:
                self.send(message)
        except RpcError as error:
            log.warning(self.hub, "disconnected the hub %s: %s", self.hub, error)
            self.session.abort("it does not read what it is told")

    async def wait_for_room(self) -> None:
        """Wait until what is sent next is written at once, or the hub is gone."""
        while not self.is_flowing and self.session.channel is not None:
            await self.session.write_gate.wait()

    def __repr__(self) -> str:
        return f"<hub {self.hub}>"


class RemoteMember(Member):
    """A client of another hub.

    Args:
        other: its hub.
        name: of the client.
        digest: of its key (`directory.digest_of`).
        address: where its hub sees it.
        since: when it connected there; Unix time, s.
    """

    __slots__ = ("_other", "hub")

    def __init__(
        self, other: OtherHub, memory: QueueMemory, *, name: str, digest: str, address: str, since: float
    ) -> None:
        super().__init__(other.session, memory)
        self._other = other
        self.hub = other.hub
        self.name = name
        self.key = digest
        self.address = address
        self.since = since

    @property
    def is_flowing(self) -> bool:
        return self._other.is_flowing

    @property
    def has_sent(self) -> bool:
        return self._other.has_sent

    def send(self, message: Encoded, is_wanted: Callable[[], bool] | None = None) -> None:
        """Send a message to its hub, behind all that goes there; as `Member.send`."""
        self._other.send(message, is_wanted)

    def notify(self, line: Line, method: str, *, has_params: bool) -> None:
        self.send(passthrough.notify(line, self.name or "", method, has_params=has_params))

    def described(self) -> dict[str, Any]:
        """Describe it for `rpc.clients`. What it does is known to its own hub: how many calls it has made, and has."""
        state = self.state
        unknown = {"calls_made": None, "in_flight": None, "state": None if state in ("idle", "busy") else state}
        return {**super().described(), **unknown, "hub": self.hub}
