"""The direct way of a session on NATS at the client, which connects.

Owns the calls over NATS's `max_payload` that wait for a place at an instance, and what becomes of those whose
connection could not be made. Knows neither sockets (`direct`) nor how a message keeps its order (`direct_way`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import (
    ServerBusy,
    Unread,
)
from ..limits import Limits
from ..peer.pending import PendingCalls
from ..wire.buffers import AttachedMessage, Encoded
from .direct import CLAIM_TIME, connect
from .direct_options import DirectError, Offer
from .direct_way import RETURNED, DirectWay, TicketChannel, Waiting
from .instance_way import LEASE_TIME
from .tickets import no_way, ticket

#: Connections that could not be made, of which a client knows why.
_FAILED_MAX = 100

#: Methods with leases, and leases of one, that a client keeps.
_LEASED_MAX = 1000


class InstanceChannel(TicketChannel, Protocol):
    """The channel of an instance at a client."""

    def has_call(self, call_ids: Sequence[Any]) -> None:
        """The instance has these calls."""

    def inquire(self, reason: str | None) -> None:
        """The direct connection was lost: ask whether the instance is there, and has its calls."""


@dataclass(slots=True, eq=False)
class Lease:
    """A place for a call that was not asked for."""

    way: ClientWay
    place: int
    connection: int
    until: float


class Asked:
    """A call that has asked for a place.

    Args:
        method: of it; None for a batch.
        fail: called with why it is not sent.
    """

    __slots__ = ("call_ids", "fail", "message", "method", "since", "size")

    def __init__(
        self,
        message: Encoded,
        size: int,
        method: str | None,
        call_ids: Sequence[Any],
        since: float,
        fail: Callable[[Exception], object],
    ) -> None:
        self.method = method
        self.message = message
        self.size = size
        self.call_ids = call_ids
        self.since = since
        self.fail = fail


def _ignore(error: Exception) -> None:
    pass


class Asking:
    """The calls of a client that have asked a service for a place.

    Args:
        limit: bytes that they may have together.

    Attributes:
        size: bytes of those that wait.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.size = 0
        self._last = 0
        self._asked: dict[int, Asked] = {}
        self._by_id: dict[Any, int] = {}
        #: Places for further calls, by their method.
        self._leases: dict[str, deque[Lease]] = {}

    def lease(self, method: str, now: float) -> Lease | None:
        """Take a place for a call of this method that can be sent at once; None where there is none."""
        leases = self._leases.get(method)
        while leases and leases[0].until < now:
            leases.popleft()
        # Where the connection is busy another instance may be better.
        found = next((each for each in leases if each.way.can_send(each.connection)), None) if leases else None
        if leases and found is not None:
            leases.remove(found)
        return found

    def add_leases(self, method: str, leases: Iterable[Lease]) -> None:
        """Keep places for calls that come soon."""
        if len(self._leases) > _LEASED_MAX:
            self._leases.clear()
        self._leases.setdefault(method, deque(maxlen=_LEASED_MAX)).extend(leases)

    def return_leases(self, way: ClientWay) -> None:
        """Use no place of this instance any more."""
        for leases in self._leases.values():
            for lease in [each for each in leases if each.way is way]:
                leases.remove(lease)

    def ask(self, asked: Asked) -> bytes:
        """Keep a call until it has a place; gives the ticket to send for it.

        Raises:
            ServerBusy: too many bytes wait.
        """
        if self.size + asked.size > self._limit and self._asked:
            reason = "too many bytes of calls wait for their place (max_held_total)"
            raise ServerBusy(data={"limit": self._limit, "executed": False, "reason": reason})
        if type(asked.message) is AttachedMessage:
            asked.message.secure()
        self._last += 1
        self._asked[self._last] = asked
        self.size += asked.size
        if asked.call_ids:
            self._by_id[asked.call_ids[0]] = self._last
        return ticket(ask=self._last, method=asked.method, size=asked.size, ids=list(asked.call_ids))

    def take(self, number: Any) -> Asked | None:
        """The call that has asked so; None where it does not wait any more."""
        asked = self._asked.pop(number, None) if type(number) is int else None
        if asked is not None:
            self.size -= asked.size
            if asked.call_ids:
                self._by_id.pop(asked.call_ids[0], None)
        return asked

    def drop(self, call_id: Any) -> None:
        """A call was given up."""
        self.take(self._by_id.get(call_id))

    def forget(self, pending: PendingCalls, now: float) -> None:
        """Drop what waits in vain: calls that were answered, and notifications for which there was no place in time."""
        for number, asked in list(self._asked.items()):
            if asked.call_ids:
                is_late = all(pending.find(call_id) is None for call_id in asked.call_ids)
            else:
                is_late = now - asked.since > CLAIM_TIME
            if is_late:
                self.take(number)


class ClientWay(DirectWay):
    """The direct way to one instance."""

    channel: InstanceChannel

    def __init__(self, channel: InstanceChannel, limits: Limits, asking: Asking) -> None:
        super().__init__(channel, limits)
        self._asking = asking
        self._connecting: asyncio.Task[None] | None = None
        #: Why connections could not be made, by their numbers.
        self._failed: dict[int, str] = {}

    def _room(self) -> int:
        return self._limits.max_held_total // 2

    def _named(self) -> dict[str, Any]:
        return {"connection": self.connection if self._stream is not None else 0}

    # -- tickets ------------------------------------------------------------------------------------------------------

    def answered(self, params: dict[str, Any]) -> None:
        """Take a ticket of the instance that stands for no message."""
        if "failed" in params:
            self.refuse_waiting(str(params.get("reason")))
            return
        if "revoke" in params:
            self._asking.return_leases(self)
            if self._stream is not None:
                self._stream.send([RETURNED])
            return
        connection = params.get("connection")
        if type(connection) is not int:
            return
        self._follow(connection, params)
        asked, place = self._asking.take(params.get("ask")), params.get("place")
        if type(place) is not int:
            return
        if asked is None:  # it was given up meanwhile
            self.channel.publish(ticket(unused=place))
            return
        if type(leases := params.get("leases")) is list and asked.method is not None:
            until = self._loop.time() + LEASE_TIME
            found = [Lease(self, each, connection, until) for each in leases if type(each) is int]
            self._asking.add_leases(asked.method, found)
        self.channel.has_call(asked.call_ids)
        waiting = Waiting(b"!%d" % place, asked.message, asked.size, asked.fail)
        if connection in self._failed:
            asked.fail(no_way(asked.size, self.channel.max_payload, self._failed[connection]))
        elif connection != self.connection or (self._stream is None and self._connecting is None):
            asked.fail(Unread("the direct connection to the instance was lost before the call was sent"))
        elif self._hold(waiting):
            self.flush()

    def can_send(self, connection: int) -> bool:
        """Whether a message is written at once to this connection."""
        stream = self._stream
        return stream is not None and connection == self.connection and not (stream.is_full or self._waiting)

    def send_leased(self, lease: Lease, message: Encoded, call_ids: Sequence[Any]) -> None:
        """Send a call in a place that was not asked for."""
        self.channel.has_call(call_ids)
        self._write(Waiting(b"!%d" % lease.place, message, 0, _ignore))

    def _follow(self, connection: int, params: dict[str, Any]) -> None:
        """Make the connection that a ticket offers."""
        offer = Offer.of(params)
        if offer is None or self._is_over or connection in self._failed or connection < self.connection:
            return
        if self._stream is not None:  # the instance has lost that before this end has seen it
            stream = self._stream
            self._lost(stream)
            stream.abort("the instance has lost this connection")
        if self._connecting is None:
            self.connection = connection
            self._connecting = self._loop.create_task(self._connect(offer, connection))

    async def _connect(self, offer: Offer, connection: int) -> None:
        try:
            transport, rest = await connect(offer)
        except DirectError as error:
            self._connecting = None
            self._could_not(connection, f"{offer.address}: {error}")
            return
        self._connecting = None
        if self._is_over:
            transport.abort()
        else:
            self.use(transport, rest)

    def _could_not(self, connection: int, reason: str) -> None:
        if self._is_over:
            return
        self._failed[connection] = reason
        if len(self._failed) > _FAILED_MAX:
            del self._failed[next(iter(self._failed))]
        self.connection = connection + 1
        self.channel.publish(ticket(failed=connection, reason=reason))
        self.refuse_waiting(reason)
        if self._expected is not None and self._expected.connection <= connection:
            self._give_up(reason)

    def _expect(self, connection: int, params: dict[str, Any]) -> int:
        if type(params.get("id")) in (int, str):  # it may be long on its way
            self.channel.has_call((params["id"],))
        self._follow(connection, params)
        return connection

    def _why_failed(self, connection: int) -> str | None:
        return self._failed.get(connection)

    # -- the connection -----------------------------------------------------------------------------------------------

    def lost(self, reason: str | None) -> None:
        while self._waiting:  # of other messages the instance sees that they do not come
            waiting = self._take_waiting()
            if waiting.header[:1] == b"!":
                waiting.refuse(Unread("the direct connection was lost before the call was sent"))  # type: ignore[arg-type]
        if not self._is_over:
            self.channel.inquire(reason)

    def end(self, reason: str) -> None:
        super().end(reason)
        if self._connecting is not None:
            self._connecting.cancel()
