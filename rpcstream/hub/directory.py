"""The directory of a hub: its members, their names, and the routes by which their methods are called.

Owns these tables, which change together or not at all; a call looks up one route, once. Knows no messages, and not who
may register what.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

from ..errors import wrong_parameter
from ..events.event_queue import QueueMemory
from ..peer.state import ConversationState
from . import passthrough
from .members import Member
from .offers import Offer, check_name, schema_cost
from .routes import Route


class MembersWatcher(Protocol):
    """What is told of each change of the clients of this hub, when it is made."""

    def named(self, member: Member) -> None:
        """It has a name."""

    def offered(self, member: Member, offers: Mapping[str, Offer]) -> None:
        """It offers these."""

    def described(self, member: Member, schemas: Mapping[str, bytes]) -> None:
        """The descriptions of its methods refer to these."""

    def withdrawn(self, member: Member, names: Collection[str]) -> None:
        """It does not offer these any more."""

    def left(self, name: str) -> None:
        """The client with this name has it no more."""


class Directory:
    """The members, names and routes of one hub.

    Args:
        own: the methods of the hub itself, whose names no member can take.
        memory: counts the messages that wait for members, all together.

    Attributes:
        members: by their connection.
        by_name: the members that have a name.
        elsewhere: by name, the clients of other hubs; several with the same name only where hubs that were apart from
            each other have each given it away.
        routes: by the name that is called: `vectorize`, and `gpu-1.vectorize` of the client `gpu-1` alone. A name with
            a dot is always a client's name and a method of that client: a method whose own name has dots can be called
            in that way only. So it never stands for a method of another client, connected or not.
        version: counts the changes of what is offered.
        offered: the number of methods that are offered, each counted once for every member.
        offered_cost: bytes of memory that all offers and schemas take, about.
        offered_elsewhere, cost_elsewhere: the same of clients of other hubs.
        suffix: stands behind the names that this hub makes, so that no other hub makes the same.
        watcher: is told of changes of the clients of this hub; None: there are no other hubs.
        on_enter: called with each new member.
        on_change: called when what is offered has changed.
        on_away: called with a name that is not offered any more, the method behind it and its last provider.
    """

    def __init__(self, own: Mapping[str, Any], memory: QueueMemory) -> None:
        self.members: dict[ConversationState, Member] = {}
        self.by_name: dict[str, Member] = {}
        self.elsewhere: dict[str, list[Member]] = {}
        self.routes: dict[str, Route] = {}
        self.version = self.offered = self.offered_cost = 0
        self.offered_elsewhere = self.cost_elsewhere = 0
        self.suffix = ""
        self._is_changing = False
        self.watcher: MembersWatcher | None = None
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

    def named(self, name: str) -> Member | None:
        """Return the member with this name, a client of this hub or of another one."""
        return self.by_name.get(name) or next(iter(self.elsewhere.get(name, ())), None)

    def all_named(self) -> Iterator[Member]:
        """All members with a name, each name once."""
        yield from list(self.by_name.values())
        for name, members in list(self.elsewhere.items()):
            if name not in self.by_name:
                yield members[0]

    def new_name(self) -> str:
        """Return a free name, for a client that did not choose one."""
        while True:
            self._last_number += 1
            name = f"client-{self._last_number}{self.suffix}"
            if name not in self.by_name and name not in self.elsewhere:
                return name

    def set_name(self, member: Member, name: str, key: str | None) -> None:
        """Give the member this free name, and the key that it had on another connection, or else a new one."""
        member.name, member.key = name, key or secrets.token_hex(16)
        self.by_name[name] = member
        if self.watcher is not None:
            self.watcher.named(member)

    def check_free(self, member: Member, name: str, key: str | None) -> Member | None:
        """Check that the member may have this name; return the one that it replaces, which has the same key.

        Raises:
            InvalidParams: it is not a valid name; the member has another one; another member has it.
        """
        check_name(name)
        if member.name is not None and member.name != name:
            raise wrong_parameter("name", f"this connection has the name {member.name!r}")
        holder = self.by_name.get(name)
        if holder is member:
            return None
        if holder is None:
            return self._check_free_elsewhere(name, key)
        if key is None or not hmac.compare_digest(key.encode(), holder.key.encode()):
            raise wrong_parameter("name", f"the name {name!r} is taken by another client")
        return holder

    def _check_free_elsewhere(self, name: str, key: str | None) -> Member | None:
        """Check that no client of another hub has this name, or else return the one with the same key."""
        holders = self.elsewhere.get(name)
        if not holders:
            return None
        digest = "" if key is None else digest_of(key)
        for holder in holders:
            if hmac.compare_digest(digest, holder.key):
                return holder
        raise wrong_parameter("name", f"the name {name!r} is taken by a client of another hub")

    def enter_elsewhere(self, member: Member) -> None:
        """Enter a client of another hub, which has its name."""
        assert member.name is not None
        self.elsewhere.setdefault(member.name, []).append(member)

    def leave(self, member: Member) -> list[str]:
        """Take out a member's name and methods; return the methods."""
        withdrawn = self.withdraw(member, list(member.offers))
        name = member.name
        if name is None:
            return withdrawn
        if member.hub is None:
            del self.by_name[name]
            if self.watcher is not None:
                self.watcher.left(name)
        else:
            self.elsewhere[name].remove(member)
            if not self.elsewhere[name]:
                del self.elsewhere[name]
        member.name, member.key = None, ""
        return withdrawn

    def leave_together(self, members: Iterable[Member]) -> None:
        """Take out the names and methods of many members; what is told of a change is told once."""
        self._is_changing = True
        try:
            for member in members:
                self.leave(member)
        finally:
            self._is_changing = False
            self._have_changed()

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

    def without_own(self, name: str, offers: Mapping[str, Offer]) -> dict[str, Offer]:
        """Return those offers of a client with this name that are not called as methods of the hub itself."""
        own = self._own
        return {key: each for key, each in offers.items() if not any(called in own for called in _names(key, name))}

    def offer(self, member: Member, offers: Mapping[str, Offer]) -> None:
        """Enter offers that were checked; one that the member has already is replaced."""
        assert member.name is not None
        for offer in offers.values():
            if offer.name in member.offers:
                self._remove(member, offer.name)
            member.offers[offer.name] = offer
            self._count(member, offer.size, offer.cost, 1)
            self._add(offer, member, member.name)
        if self.watcher is not None and member.hub is None:
            self.watcher.offered(member, offers)
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
            if self.watcher is not None and member.hub is None:
                self.watcher.described(member, schemas)
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
            if self.watcher is not None and member.hub is None:
                self.watcher.withdrawn(member, withdrawn)
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
                route = self.routes[called] = Route(offer, called, text)
                if route.is_listed:
                    self._changed.add(called)
            route.add(member)

    def _remove(self, member: Member, name: str) -> None:
        assert member.name is not None
        offer = member.offers.pop(name)
        self._count(member, -offer.size, -offer.cost, -1)
        for called in _names(name, member.name):
            route = self.routes[called]
            route.remove(member)
            if not route.members:
                del self.routes[called]
                if route.is_listed:
                    self._changed.add(called)
                for call in self.on_away:
                    call(called, name, member)

    def _have_changed(self) -> None:
        if self._is_changing:
            return
        self.version += 1
        for call in self.on_change:
            call()
        if len(self._changed) > len(self.routes) + 1000:
            self.listed()  # so that names that come and go, and that no list is made of, do not pile up

    def _count(self, member: Member, size: int, cost: int, methods: int = 0) -> None:
        """Add to the bytes that the member's offers have and take, and to their number; negative numbers subtract."""
        member.offered_size += size
        member.offered_cost += cost
        if member.hub is None:
            self.offered_cost += cost
            self.offered += methods
        else:
            self.cost_elsewhere += cost
            self.offered_elsewhere += methods


def digest_of(key: str) -> str:
    """What other hubs are told of a client's key: it shows that a key is the same, and cannot be shown in its place."""
    return hashlib.sha256(key.encode()).hexdigest()


def _names(method: str, owner: str) -> tuple[str, ...]:
    """Return the names by which a member's method is called; see `Directory.routes`."""
    own = f"{owner}.{method}"
    return (own,) if "." in method else (method, own)
