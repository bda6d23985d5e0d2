"""The directory of a hub: its members, their names, and the routes by which their methods are called."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ..errors import wrong_parameter
from ..events.event_queue import QueueMemory
from ..peer.session import Session
from . import passthrough
from .members import Member
from .offers import Offer, check_name, schema_cost
from .routes import Route


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
