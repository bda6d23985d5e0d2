"""The direct way of a session on NATS at the instance, which listens for it.

Owns the places that an instance gives to calls over NATS's `max_payload`, and which of them were used. Knows neither
sockets (`direct`) nor how a message keeps its order (`direct_way`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from ..errors import (
    InvalidRequest,
    MethodNotFound,
    NotAuthenticated,
    NotPermitted,
    RpcError,
    ServerBusy,
)
from ..limits import Limits
from ..transports.stream import LineStream
from ..wire import envelope
from ..wire.buffers import Encoded
from ..wire.messages import LONG, BinaryFrame, Message, Oversize
from .direct import CLAIM_TIME, DirectListener
from .direct_options import Offer
from .direct_way import DirectWay, TicketChannel
from .payloads import belongs_to_calls, ids_in, ids_of
from .tickets import about, no_way, ticket

#: Seconds for which a place is kept for a call: a full message at 10 Mbit/s takes 54 s, and it may be behind another.
PLACE_TIME = 120.0

#: Places that an instance gives beyond the one that was asked for, and seconds for which a client uses them. So few,
#: and for so short a time, that other instances get their share of the calls; and so many that asking costs little.
LEASES, LEASE_TIME = 8, 0.5

#: Seconds for which an instance takes calls in them: what was sent in time may be behind a full message.
LEASE_KEPT = 60.0

#: Calls that were answered by a direct connection, of which an instance says that they are here when it is asked: their
#: callers may not have read the reply. As many as may wait there.
ANSWERED_MAX = 1000

#: Seconds without a message after which an instance closes a direct connection: to make another one takes a round trip.
IDLE_TIME = 60.0

#: What an instance says at once to a client that asks for a place.
_REFUSALS = (MethodNotFound, NotPermitted, NotAuthenticated)


class CallerChannel(TicketChannel, Protocol):
    """The channel of a caller at an instance."""

    def answer(self, payload: bytes) -> None:
        """Send a ticket that is not in the order of messages."""

    def call_placed(self, message: Message, call_ids: Sequence[Any]) -> None:
        """Handle a message with calls that has come by the direct connection."""


@dataclass(slots=True)
class Place:
    """A call that may come by the direct connection.

    Attributes:
        call_ids: of the call, or of the calls in a batch; None for a lease, which is for any call of the method.
    """

    method: str | None
    size: int
    call_ids: list[Any] | None
    until: float
    is_cancelled: bool = False


class InstanceWay(DirectWay):
    """The direct way to one caller."""

    channel: CallerChannel

    def __init__(self, channel: CallerChannel, limits: Limits, listener: DirectListener) -> None:
        super().__init__(channel, limits)
        self.connection = 1
        self._listener = listener
        self._offer: Offer | None = None
        self._claim_timer: asyncio.TimerHandle | None = None
        self._places: dict[int, Place] = {}
        self._last_place = 0
        self.is_finishing = self._is_leaving = False
        #: The ids of calls whose replies were sent by the present connection: these may be long on their way.
        self._answered: dict[Any, None] = {}
        #: Set while no place is given that was not used.
        self._no_places = asyncio.Event()
        self._no_places.set()
        #: Called once, when nothing waits here any more after `finish`.
        self.on_over: Callable[[InstanceWay], object] = lambda way: None

    @property
    def is_busy(self) -> bool:
        return super().is_busy or bool(self._places)

    @property
    def is_in_use(self) -> bool:
        """Whether it is busy, with more than places that were asked for and no connection was made for."""
        return super().is_busy or (bool(self._places) and self._stream is not None)

    def _count(self, name: str, number: int = 1) -> None:
        counters = self.channel.session.counters
        if counters is not None:
            setattr(counters, name, getattr(counters, name) + number)

    def _why_not(self) -> str | None:
        return super()._why_not() or self._listener.reason

    def send(self, message: Encoded, size: int) -> None:
        super().send(message, size)
        found = about(message)
        if found is not None and found[0] == "id":
            self._answered[found[1]] = None
            if len(self._answered) > ANSWERED_MAX:
                del self._answered[next(iter(self._answered))]

    # -- offers -------------------------------------------------------------------------------------------------------

    def _named(self) -> dict[str, Any]:
        named: dict[str, Any] = {"connection": self.connection}
        if self._stream is None and self._offer is None:
            self._offer = self._listener.offer(self)
            self._claim_timer = self._loop.call_later(CLAIM_TIME, self._expire, self.connection)
            self._count("tickets_made")
            named |= self._offer.to_wire()
        return named

    def _take_back(self) -> None:
        """The offer is used, or lapses."""
        if self._claim_timer is not None:
            self._claim_timer.cancel()
        if self._offer is not None:
            self._listener.withdraw(self._offer)
        self._offer = self._claim_timer = None

    def claimed(self, secret: str, transport: asyncio.Transport, rest: bytes) -> None:
        """As `direct.Owner.claimed`."""
        self._take_back()
        if self._is_over:
            transport.abort()
            return
        self._count("tickets_claimed")
        self.use(transport, rest)
        self._end_if_finished()

    def failed(self, connection: Any, reason: str) -> None:
        """The client could not make this connection."""
        if connection != self.connection or self._stream is not None:
            return
        self._take_back()
        self.connection += 1
        self._forget_places()
        self.refuse_waiting(reason)
        if self._expected is not None:
            self._give_up(reason)
        self._end_if_finished()

    def _expire(self, connection: int) -> None:
        self._count("tickets_expired")
        self.failed(connection, f"the client did not connect within {CLAIM_TIME:g} s")

    def _expect(self, connection: int, params: dict[str, Any]) -> int:
        if connection:
            return connection
        if (reason := self._why_not()) is not None:
            self.channel.answer(ticket(failed=self.connection, reason=reason))
            return -1
        if self._stream is None:
            self.channel.answer(ticket(**self._named()))
        return self.connection

    def _why_failed(self, connection: int) -> str | None:
        return self._why_not() or "there is none" if connection < 0 else None

    # -- places -------------------------------------------------------------------------------------------------------

    @property
    def call_ids(self) -> list[Any]:
        """The ids of calls that places were given for, and of those that were answered here."""
        placed = [call_id for place in self._places.values() for call_id in place.call_ids or ()]
        return [*placed, *self._answered]

    def ask(self, params: dict[str, Any]) -> None:
        """Give a place to a call or a batch, or refuse it; asked on the subject of the method that the ticket names."""
        call_ids, size, method = ids_in(params.get("ids")), params.get("size"), params.get("method")
        error = InvalidRequest(data={"reason": "a ticket is malformed"}) if type(size) is not int else None
        error = error or self._refusal(method, size, call_ids)  # type: ignore[assignment]
        if error is not None:
            self._count("tickets_refused")
            for call_id in call_ids:
                self.channel.publish(orjson.dumps(envelope.error_reply(call_id, error)))
            return
        now = self._loop.time()
        place = self._add_place(Place(method, int(size), call_ids, now + PLACE_TIME))  # type: ignore[arg-type]
        leases = None
        if self._stream is not None and method is not None and call_ids and not self._is_leaving:
            most = self._limits.max_message_size
            given = sum(each.call_ids is None and each.method == method for each in self._places.values())
            leases = [self._add_place(Place(method, most, None, now + LEASE_KEPT)) for _ in range(LEASES - given)]
        self.channel.answer(ticket(place=place, ask=params.get("ask"), leases=leases, **self._named()))

    def _add_place(self, place: Place) -> int:
        self._last_place += 1
        self._places[self._last_place] = place
        self._no_places.clear()
        return self._last_place

    def _refusal(self, method: str | None, size: Any, call_ids: list[Any]) -> RpcError | None:
        """Why there is no place for a call."""
        limits, session = self._limits, self.channel.session
        self._forget_late()
        if size > limits.max_message_size:
            return envelope.oversize(size, limits.max_message_size, side="server")
        if (reason := self._why_not()) is not None:
            return no_way(size, self.channel.max_payload, reason)
        if len(self._places) >= limits.max_calls + LEASES:
            return ServerBusy(data={"limit": limits.max_calls, "reason": "too many calls wait (max_calls)"})
        if session.memory.is_full:
            return ServerBusy(data={"limit": limits.max_held_total, "reason": "no memory for it (max_held_total)"})
        if method is None:
            return None
        found = session.refusal_of({"jsonrpc": "2.0", "method": method, "id": 0})
        return found if isinstance(found, _REFUSALS) else None

    def cancel(self, call_id: Any) -> None:
        """A call was cancelled, perhaps one that has not come."""
        for place in self._places.values():
            if place.call_ids == [call_id] and type(place.call_ids[0]) is type(call_id):
                place.is_cancelled = True

    def deliver(self, message: Message) -> None:
        # NATS permits subjects: a call needs the place that was given on the subject of its method.
        parsed = self.channel.session.parsed(message)
        if isinstance(parsed, Oversize) or parsed.refusal is not None or belongs_to_calls(parsed.content[0]):
            self.channel.deliver(parsed)
        elif self._stream is not None:
            self._stream.abort("a call came by the direct connection without a place")

    def placed(self, place: int, message: Message) -> bool:
        if not 0 < place <= self._last_place:
            return False
        found = self._places.pop(place, None)
        if found is not None and found.is_cancelled:
            return True
        message = self.channel.session.parsed(message)
        call_ids, error = _looked_at(found, message)
        if error is not None:
            for call_id in call_ids:
                self.channel.publish(orjson.dumps(envelope.error_reply(call_id, error)))
        else:
            self.channel.call_placed(message, call_ids)
        self._settle_places()
        return True

    def returned(self) -> None:
        self._places = {number: place for number, place in self._places.items() if place.call_ids is not None}
        self._settle_places()

    def give_back(self, place: Any) -> None:
        """A client does not want the place that it has asked for."""
        if type(place) is int:
            self._places.pop(place, None)
            self._settle_places()

    def _forget_late(self) -> None:
        now = self._loop.time()
        for number in [number for number, place in self._places.items() if place.until < now]:
            del self._places[number]
            self._count("tickets_expired")
        self._settle_places()

    def _forget_places(self) -> None:
        self._places.clear()
        self._settle_places()

    def _settle_places(self) -> None:
        if not self._places:
            self._no_places.set()

    async def wait_placed(self) -> None:
        """Wait until the calls have come that places were given for, or could have; give no leases any more."""
        self._is_leaving = True
        if not self._places:
            return
        self.channel.answer(ticket(revoke=self._last_place))
        try:
            async with asyncio.timeout(CLAIM_TIME):
                await self._no_places.wait()
        except TimeoutError:
            self._forget_places()

    # -- the connection -----------------------------------------------------------------------------------------------

    def look(self, stream: LineStream) -> None:
        self._forget_late()
        session = self.channel.session
        is_used = self.is_busy or session.busy or session.pending or stream.unread_size
        if not is_used and self._loop.time() - self.used > IDLE_TIME:
            stream.close()

    def blocked(self, is_full: bool) -> None:
        super().blocked(is_full)
        if not self._is_over:
            self.channel.session.blocked(is_full)
        self._end_if_finished()

    def lost(self, reason: str | None) -> None:
        self._answered.clear()
        self._forget_places()
        if not self._is_over:
            self.channel.session.blocked(False)
        # What waits had no room on it: the other end loses it with the connection.
        while self._waiting:
            self._take_waiting()
        self._end_if_finished()

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The session is over; what waits is still sent."""
        self._is_over = self.is_finishing = True
        self._forget_places()
        self._drop_expected()
        self._end_if_finished()

    def _end_if_finished(self) -> None:
        if not self.is_finishing or self._waiting:
            return
        if self._stream is not None:
            self._stream.close()
            return
        self.is_finishing = False
        self._take_back()
        self.on_over(self)

    def end(self, reason: str) -> None:
        if self.is_finishing:
            return
        super().end(reason)
        self._forget_places()
        self._take_back()
        self.on_over(self)

    def drop(self, reason: str) -> None:
        """Send nothing more, also where `finish` was called."""
        self.is_finishing = False
        self.end(reason)


def _looked_at(place: Place | None, message: BinaryFrame | Oversize) -> tuple[list[Any], RpcError | None]:
    """The ids of the calls that a message or its place is for, and why it may not have this place."""
    known = [] if place is None or place.call_ids is None else place.call_ids
    if isinstance(message, Oversize) or message.refusal is not None:  # the session says so
        return known, None
    read, _ = message.content
    found = ids_of(read)
    call_ids = known or ids_in(found)
    if place is None:
        reason = "the place of the call was given up, since it came too late"
        return call_ids, ServerBusy(data={"executed": False, "reason": reason})
    if not _is_call_of(place, read, found):
        return call_ids, InvalidRequest(data={"reason": "the message is not the call that its ticket was for"})
    if len(message) > max(place.size, LONG):
        reason = f"the message has {len(message)} bytes, and its ticket said {place.size}"
        return call_ids, InvalidRequest(data={"reason": reason})
    return call_ids, None


def _is_call_of(place: Place, read: Any, found: list[Any]) -> bool:
    """Whether a parsed message with these ids is what the place was given for."""
    is_right = type(read) is list if place.method is None else type(read) is dict and read.get("method") == place.method
    if place.call_ids is None:
        return is_right and ids_in(found) == found != []
    return is_right and found == place.call_ids and ids_in(found) == found
