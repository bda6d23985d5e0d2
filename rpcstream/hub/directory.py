"""The directory of a hub: its members, the routes by which their methods are called, and the members' keep-alive."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from operator import attrgetter
from typing import Any

import orjson

from ..errors import ProviderGone, wrong_parameter
from ..events.event_queue import QueueMemory
from ..peer.pending import PendingCall
from ..peer.session import Session
from ..wire import envelope
from . import passthrough
from .members import Member, Offer, check_name, schema_cost

log = logging.getLogger("rpcstream.hub")


#: How many members of a shared method are compared for one call, beginning with the next in turn.
COMPARED = 8


#: What the data of an error says of a call that no member was given.
_NOT_PASSED_ON = {"executed": False, "no_provider": True}


class Route:
    """The members that carry out the calls of one name.

    Attributes:
        method: the name of the method at these members.
        members: those that offer it, in the order in which they came.
        text: the name of the method at its members, as JSON.
        shared: the method may be offered by several members.
        is_own: the route is that of a single member, with the member's name before the method's.
    """

    def __init__(self, offer: Offer, called: str, text: bytes) -> None:
        self.method = offer.name
        self.shared = offer.shared
        self.is_own = called != offer.name
        self.members: list[Member] = []
        self._turn = 0
        self.text = text

    @property
    def is_shared(self) -> bool:
        """Several members may offer the method under this name."""
        return self.shared and not self.is_own

    @property
    def is_listed(self) -> bool:
        """The method is listed under this name: the short one, if it has that."""
        return not self.is_own or "." in self.method

    def add(self, member: Member) -> None:
        """Enter one more member."""
        self.members.append(member)

    def remove(self, member: Member) -> None:
        """Take a member out."""
        self.members.remove(member)

    def choose(self) -> Member:
        """Return the member for the next call: of the next in turn the one with the fewest unanswered calls.

        Raises:
            ProviderGone: no member takes calls at the moment. The data says `no_provider`: none was given the call.
        """
        members, count = self.members, len(self.members)
        if count == 1 and members[0].is_there:  # as nearly always: the rest takes a tenth of the hub's time for a call
            return members[0]
        first = self._turn % count if self.is_shared else 0
        self._turn = first + 1
        in_turn = (members[place % count] for place in range(first, first + count))
        there = list(islice((member for member in in_turn if member.is_there), COMPARED))
        if not there:
            raise self._gone()
        return min(there, key=attrgetter("load"))

    def _gone(self) -> ProviderGone:
        who = {"client": self.members[0].name} if len(self.members) == 1 else {}
        return ProviderGone(data={"method": self.method, **who, **_NOT_PASSED_ON})


class Directory:
    """The members, names and routes of one hub.

    Args:
        own: the methods of the hub itself, whose names no member can take.
        memory: counts the messages that wait for members, all together.

    Attributes:
        members: by their connection.
        by_name: the members that have a name.
        routes: by the name that is called: `vectorize`, and `gpu-1.vectorize` of the client `gpu-1` alone. A name with
            a dot is always a client's name and a method of that client: a method whose own name has dots can be called
            in that way only. So it never stands for a method of another client, connected or not.
        version: counts the changes of what is offered.
        offered: the number of methods that are offered, each counted once for every member.
        offered_cost: bytes of memory that all offers and schemas take, about.
        on_enter: called with each new member.
    """

    def __init__(self, own: Mapping[str, Any], memory: QueueMemory) -> None:
        self.members: dict[Session, Member] = {}
        self.by_name: dict[str, Member] = {}
        self.routes: dict[str, Route] = {}
        self.version = self.offered = self.offered_cost = 0
        self.on_enter: list[Callable[[Member], object]] = []
        self._own = own
        self._memory = memory
        self._last_number = 0

    def find(self, session: Session) -> Member:
        """Return the member at this connection; the first message that it sends makes it one."""
        return self.members.get(session) or self._enter_member(session)

    def _enter_member(self, session: Session) -> Member:
        member = self.members[session] = Member(session, self._memory)
        for call in self.on_enter:
            call(member)
        return member

    # -- names --------------------------------------------------------------------------------------------------------

    def new_name(self) -> str:
        """Return a free name, for a client that did not choose one."""
        while True:
            self._last_number += 1
            name = f"client-{self._last_number}"
            if name not in self.by_name:
                return name

    def set_name(self, member: Member, name: str, key: str | None) -> None:
        """Give the member this free name, and the key that it had on another connection, or else a new one."""
        member.name, member.key = name, key or secrets.token_hex(16)
        self.by_name[name] = member

    def check_free(self, member: Member, name: str, key: str | None) -> Member | None:
        """Check that the member may have this name; return the one that it replaces, which has the same key.

        Raises:
            InvalidParams: it is not a valid name; the member has another one; another member has it.
        """
        check_name(name)
        if member.name is not None and member.name != name:
            raise wrong_parameter("name", f"this connection has the name {member.name!r}")
        holder = self.by_name.get(name)
        if holder is member or holder is None:
            return None
        if key is None or not hmac.compare_digest(key.encode(), holder.key.encode()):
            raise wrong_parameter("name", f"the name {name!r} is taken by another client")
        return holder

    def leave(self, member: Member) -> list[str]:
        """Take out a member's name and methods; return the methods."""
        withdrawn = self.withdraw(member, list(member.offers))
        name = member.name
        if name is None:
            return withdrawn
        del self.by_name[name]
        member.name, member.key = None, ""
        return withdrawn

    # -- methods ------------------------------------------------------------------------------------------------------

    def check_offers(self, member: Member, name: str, offers: Collection[Offer], leaving: Member | None) -> None:
        """Check that the member, under this name, may offer all these.

        Args:
            member: that offers them.
            name: its name.
            offers: its new offers.
            leaving: a member whose methods will be gone then.

        Raises:
            InvalidParams: a method's name is taken; the error has the first of these.
        """
        for offer in offers:
            if offer.name.startswith(f"{name}."):
                raise wrong_parameter(
                    "methods", f"{offer.name!r} begins with the client's own name, which stands before it anyway"
                )
            for called in _names(offer.name, name):
                if called in self._own:
                    raise wrong_parameter("methods", f"{called!r} is a method of the hub itself")
            route = self.routes.get(offer.name)
            others = [] if route is None else [each for each in route.members[:4] if each not in (member, leaving)]
            if others and route is not None:
                if route.is_own:  # it could be called all the same, but only to be mistaken for that one
                    raise wrong_parameter("methods", f"{offer.name!r} is a method of {others[0].name!r}")
                if not (offer.shared and route.shared):
                    raise wrong_parameter(
                        "methods", f"{offer.name!r} is offered by {others[0].name!r}, and not shared by both"
                    )

    def offer(self, member: Member, offers: Mapping[str, Offer]) -> None:
        """Enter offers that were checked; one that the member has already is replaced."""
        assert member.name is not None
        for offer in offers.values():
            if offer.name in member.offers:
                self._remove(member, offer.name)
            member.offers[offer.name] = offer
            self._count(member, offer.cost, 1)
            self._add(offer, member, member.name)
        self.version += 1

    def add_schemas(self, member: Member, schemas: Mapping[str, bytes]) -> None:
        """Enter the schemas that the descriptions of the member's methods refer to, as JSON by name."""
        for name, text in schemas.items():
            before = member.schemas.pop(name, None)
            if before is not None:
                self._count(member, -schema_cost(name, before))
            member.schemas[name] = text
            self._count(member, schema_cost(name, text))
        if schemas:
            self.version += 1

    def withdraw(self, member: Member, names: Collection[str]) -> list[str]:
        """Take out these offers of a member; return the names of those that there were."""
        withdrawn = [name for name in dict.fromkeys(names) if name in member.offers]
        for name in withdrawn:
            self._remove(member, name)
        if not member.offers:
            member.schemas = {}
            self._count(member, -member.offered_cost)
        if withdrawn:
            self.version += 1
        return withdrawn

    def listed(self) -> Iterator[str]:
        """The names under which methods are listed."""
        return (name for name, route in self.routes.items() if route.is_listed)

    def _add(self, offer: Offer, member: Member, owner: str) -> None:
        text = passthrough.text_of(offer.name)
        for called in _names(offer.name, owner):
            route = self.routes.get(called)
            if route is None:
                route = self.routes[called] = Route(offer, called, text)
            route.add(member)

    def _remove(self, member: Member, name: str) -> None:
        assert member.name is not None
        offer = member.offers.pop(name)
        self._count(member, -offer.cost, -1)
        for called in _names(name, member.name):
            route = self.routes[called]
            route.remove(member)
            if not route.members:
                del self.routes[called]

    def _count(self, member: Member, cost: int, methods: int = 0) -> None:
        """Add to the bytes that the member's offers take, and to their number; negative numbers subtract."""
        member.offered_cost += cost
        self.offered_cost += cost
        self.offered += methods


def _names(method: str, owner: str) -> tuple[str, ...]:
    """Return the names by which a member's method is called; see `Directory.routes`."""
    own = f"{owner}.{method}"
    return (own,) if "." in method else (method, own)


class HubKeepalive:
    """Pings the members of one hub, and drops those that do not answer.

    Args:
        keepalive_timeout: seconds; a member with a name that has shown no sign of life for so long is dropped.
        ping_interval: seconds between two pings to it.
        registration_timeout: seconds; a connection that has neither registered nor called by then is closed.
        drop: closes a member's connection, with the reason.
    """

    def __init__(
        self,
        directory: Directory,
        *,
        keepalive_timeout: float | None,
        ping_interval: float | None,
        registration_timeout: float | None,
        drop: Callable[[Member, str], None],
    ) -> None:
        self._directory = directory
        self._keepalive_timeout = keepalive_timeout
        self._ping_interval = ping_interval
        self._registration_timeout = registration_timeout
        self._drop = drop

    async def run(self) -> None:
        """Check all members again and again, until cancelled."""
        intervals = [seconds for seconds in (self._ping_interval, self._keepalive_timeout) if seconds is not None]
        if not intervals:
            return
        loop = asyncio.get_running_loop()
        while True:
            # Twice an interval, so that a time-out is noticed when half of it more has passed, at most.
            await asyncio.sleep(min(intervals) / 2)
            for member in list(self._directory.by_name.values()):
                self.check(member, loop.time())

    def check(self, member: Member, now: float) -> None:
        """Ping a member, or drop it, if it is time for that; `now` is loop time, s."""
        silence = now - member.last_heard
        timeout = self._keepalive_timeout
        if timeout is not None and silence >= timeout and not self._must_ping_first(member):
            self._drop(member, f"no sign of life for {timeout:g} s (keepalive_timeout)")
        elif self._ping_interval is not None and silence >= self._ping_interval and member.is_there:
            self._ping(member)

    def _must_ping_first(self, member: Member) -> bool:
        """It could not answer yet: it has been silent since the last check, or the hub itself was held up."""
        can_hear = member.is_there and not member.session.write_gate.stalled
        return self._ping_interval is not None and not member.is_pinged and can_hear

    def watch(self, session: Session) -> None:
        """Close a new connection that neither registers nor calls in time."""
        if self._registration_timeout is not None:
            timer = session.loop.call_later(self._registration_timeout, self._check_begun, session)
            session.on_lost.append(timer.cancel)

    def _check_begun(self, session: Session) -> None:
        # By HTTP there is a session for each call, so it has called.
        if session not in self._directory.members and session.channel is not None and session.is_lasting:
            reason = f"neither registered nor called within {self._registration_timeout:g} s (registration_timeout)"
            log.info("closing the connection from %s: %s", session.channel.address, reason)
            session.abort(reason)

    def _ping(self, member: Member) -> None:
        session = member.session
        if member.is_pinged or session.write_gate.stalled:
            return  # it has not answered the last ping, or does not even read: its time-out goes on
        member.is_pinged = True
        call_id = session.pending.add(_Ping(member))
        session.send(orjson.dumps(envelope.request("rpc.ping", call_id=call_id)))


class _Ping(PendingCall):
    """A ping that waits for any answer, as a sign of life."""

    __slots__ = ("_member",)

    method = "rpc.ping"

    def __init__(self, member: Member) -> None:
        self._member = member

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        """Note the sign of life."""
        self._member.is_pinged = False
        self._member.last_heard = self._member.session.loop.time()

    def fail(self, error: Exception) -> None:
        """Do nothing: the connection is over, and so is the member."""
