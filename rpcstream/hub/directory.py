"""The directory of a hub: its members, their names, and the routes by which their methods are called.

Owns these tables, which change together or not at all; a call looks up one route, once. Knows no messages, and not who
may register what.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, get_args

from ..errors import ProviderGone
from ..events.event_queue import QueueMemory
from ..peer.state import ConversationState
from . import passthrough
from .members import Member
from .offers import Offer, check_name, fault, schema_cost

#: How the calls of a shared method are distributed.
Balance = Literal["least_in_flight", "round_robin"]

#: The members of a shared method that are compared for one call: so many, beginning with the one whose turn it is.
COMPARED = 8


#: What the data of an error says of a call that no member was given.
_NOT_PASSED_ON = {"executed": False, "no_provider": True}


class Route:
    """The members that carry out the calls of one name.

    Attributes:
        method: the name of the method at these members; `text`: the same as JSON.
        members: those that offer it, in the order in which they came.
        shared: the method may be offered by several members.
        is_own: the route is that of a single member, with the member's name before the method's.
    """

    __slots__ = ("_turn", "is_own", "members", "method", "shared", "text")

    def __init__(self, offer: Offer, member: Member, text: bytes, *, is_own: bool) -> None:
        self.method = offer.name
        self.text = text
        self.shared = offer.shared
        self.is_own = is_own
        self.members = [member]
        self._turn = 0

    @property
    def is_shared(self) -> bool:
        """Several members may offer the method under this name."""
        return self.shared and not self.is_own

    @property
    def is_listed(self) -> bool:
        """The method is listed under this name: the short one, if it has that."""
        return not self.is_own or "." in self.method

    def choose(self, balance: Balance) -> Member:
        """Return the member for the next call: the next in turn, or the one of these with the fewest unanswered calls.

        Raises:
            ProviderGone: no member takes calls at the moment. The data says `no_provider`: none was given the call.
        """
        members = self.members
        count = len(members)
        if count == 1:
            if members[0].is_there:
                return members[0]
            raise ProviderGone(data={"method": self.method, "client": members[0].name, **_NOT_PASSED_ON})
        first = self._turn % count
        self._turn = first + 1
        chosen, least = None, math.inf
        left = 1 if balance == "round_robin" else COMPARED
        # A plain loop: it runs for each call, and nearly always the first member is there and has nothing to do.
        for place in range(first, first + count):
            member = members[place % count]
            if not member.is_there:
                continue
            load = member.load
            if load < least:
                chosen, least = member, load
            left -= 1
            if not (least and left):
                break
        if chosen is None:
            raise ProviderGone(data={"method": self.method, **_NOT_PASSED_ON})
        return chosen


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
        on_change: called when what is offered has changed.
        on_away: called with a name that is not offered any more, the method behind it and its last provider.
    """

    def __init__(self, own: Mapping[str, Any], memory: QueueMemory) -> None:
        self.members: dict[ConversationState, Member] = {}
        self.by_name: dict[str, Member] = {}
        self.routes: dict[str, Route] = {}
        self.version = self.offered = self.offered_cost = 0
        self.on_enter: list[Callable[[Member], object]] = []
        self.on_change: list[Callable[[], object]] = []
        self.on_away: list[Callable[[str, str, Member], object]] = []
        self._own = own
        self._memory = memory
        self._last_number = 0
        #: The names under which methods are listed, sorted; and those that have come or gone since.
        self._listed: list[str] = []
        self._changed: set[str] = set()

    def find(self, session: ConversationState) -> Member:
        """Return the member at this connection; the first message that it sends makes it one."""
        return self.members.get(session) or self._enter_member(session)

    def _enter_member(self, session: ConversationState) -> Member:
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
            raise fault("name", f"this connection has the name {member.name!r}")
        holder = self.by_name.get(name)
        if holder is None or holder is member:
            return None
        if key is None or not hmac.compare_digest(key.encode(), holder.key.encode()):
            raise fault("name", f"the name {name!r} is taken by another client")
        return holder

    def leave(self, member: Member) -> list[str]:
        """Take out a member's name and methods; return the methods."""
        withdrawn = self.withdraw(member, list(member.offers))
        if member.name is not None:
            del self.by_name[member.name]
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
                raise fault(
                    "methods", f"{offer.name!r} begins with the client's own name, which stands before it anyway"
                )
            for called in _names(offer.name, name):
                if called in self._own:
                    raise fault("methods", f"{called!r} is a method of the hub itself")
            route = self.routes.get(offer.name)
            others = [] if route is None else [each for each in route.members[:3] if each not in (member, leaving)]
            if others and route is not None:
                if route.is_own:  # it could be called all the same, but only to be mistaken for that one
                    raise fault("methods", f"{offer.name!r} is a method of {others[0].name!r}")
                if not (offer.shared and route.shared):
                    raise fault("methods", f"{offer.name!r} is offered by {others[0].name!r}, and not shared by both")

    def offer(self, member: Member, offers: Mapping[str, Offer]) -> None:
        """Enter offers that were checked; one that the member has already is replaced."""
        assert member.name is not None
        for offer in offers.values():
            if offer.name in member.offers:
                self._remove(member, offer.name)
            member.offers[offer.name] = offer
            self.offered += 1
            self._count(member, offer.size, offer.cost)
            self._add(offer, member, member.name)
        self._have_changed()

    def add_schemas(self, member: Member, schemas: Mapping[str, bytes]) -> None:
        """Enter the schemas that the descriptions of the member's methods refer to, as JSON by name."""
        for name, text in schemas.items():
            before = member.schemas.pop(name, None)
            if before is not None:
                self._count(member, -len(before), -schema_cost(name, before))
            member.schemas[name] = text
            self._count(member, len(text), schema_cost(name, text))
        if schemas:
            self._have_changed()

    def withdraw(self, member: Member, names: Collection[str]) -> list[str]:
        """Take out these offers of a member; return the names of those that there were."""
        withdrawn = [name for name in dict.fromkeys(names) if name in member.offers]
        for name in withdrawn:
            self._remove(member, name)
        if not member.offers:
            member.schemas = {}
            self._count(member, -member.offered_size, -member.offered_cost)
        if withdrawn:
            self._have_changed()
        return withdrawn

    def listed(self) -> list[str]:
        """Return the names under which methods are listed, sorted."""
        if self._changed:
            routes, changed = self.routes, self._changed
            names = [name for name in self._listed if name not in changed]
            names += [name for name in changed if name in routes]
            names.sort()  # most of it is sorted, and taken as it is
            self._listed, self._changed = names, set()
        return self._listed

    def _add(self, offer: Offer, member: Member, owner: str) -> None:
        text = passthrough.text_of(offer.name)
        for called in _names(offer.name, owner):
            route = self.routes.get(called)
            if route is None:
                route = self.routes[called] = Route(offer, member, text, is_own=called != offer.name)
                if route.is_listed:
                    self._changed.add(called)
            else:
                route.members.append(member)

    def _remove(self, member: Member, name: str) -> None:
        assert member.name is not None
        offer = member.offers.pop(name)
        self.offered -= 1
        self._count(member, -offer.size, -offer.cost)
        for called in _names(name, member.name):
            route = self.routes[called]
            route.members.remove(member)
            if not route.members:
                del self.routes[called]
                if route.is_listed:
                    self._changed.add(called)
                for call in self.on_away:
                    call(called, name, member)

    def _have_changed(self) -> None:
        self.version += 1
        for call in self.on_change:
            call()
        if len(self._changed) > len(self.routes) + 1000:
            self.listed()  # so that names that come and go, and that no list is made of, do not pile up

    def _count(self, member: Member, size: int, cost: int) -> None:
        """Add to the bytes that the member's offers have and take; negative numbers subtract."""
        member.offered_size += size
        member.offered_cost += cost
        self.offered_cost += cost


def _names(method: str, owner: str) -> tuple[str, ...]:
    """Return the names by which a member's method is called; see `Directory.routes`."""
    own = f"{owner}.{method}"
    return (own,) if "." in method else (method, own)


def check_balance(balance: str) -> None:
    """Raise ValueError unless it is a `Balance`."""
    if balance not in get_args(Balance):
        raise ValueError(f"balance must be one of {', '.join(get_args(Balance))}; got {balance!r}")
