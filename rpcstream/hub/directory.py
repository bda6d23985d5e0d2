"""Who offers what at a hub: names, methods, and which client a call goes to.

Owns the tables of names and routes, which change together or not at all; a call looks up one of them once. Knows no
messages.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, get_args

from ..errors import ProviderGone
from ..events.queue import Room
from ..peer.session import Session
from . import passthrough
from .members import Member
from .offers import Offer, check_name, fault, schema_cost

#: How the calls of a shared method are shared out.
Balance = Literal["least_in_flight", "round_robin"]

#: Of a shared method, so many clients are compared for one call: those whose turn it is next.
COMPARED = 8


class Route:
    """Where the calls of one name go.

    Attributes:
        method: the name at the client; `text`: it as JSON.
        clients: who offers it, in the order in which they came.
        shared: more than one may.
    """

    __slots__ = ("_turn", "clients", "is_own", "method", "shared", "text")

    def __init__(self, offer: Offer, client: Member, text: bytes, *, is_own: bool) -> None:
        self.method = offer.name
        self.text = text
        self.shared = offer.shared
        #: It is of one client, under that client's name.
        self.is_own = is_own
        self.clients = [client]
        self._turn = 0

    @property
    def is_shared(self) -> bool:
        """Others may offer it under this name, too."""
        return self.shared and not self.is_own

    @property
    def is_listed(self) -> bool:
        """It is the name by which the method is told to others: the short one, where it has that."""
        return not self.is_own or "." in self.method

    def choose(self, balance: Balance) -> Member:
        """Whose turn it is; among those the one with the least to do, if that counts.

        Raises:
            ProviderGone: nobody takes calls, for the moment.
        """
        clients = self.clients
        count = len(clients)
        if count == 1:
            if clients[0].is_there:
                return clients[0]
            raise ProviderGone(data={"method": self.method, "client": clients[0].name})
        first = self._turn % count
        self._turn = first + 1
        chosen, least = None, math.inf
        left = 1 if balance == "round_robin" else COMPARED
        # A plain loop: each call comes by, and nearly always the first is there and has nothing to do.
        for place in range(first, first + count):
            client = clients[place % count]
            if not client.is_there:
                continue
            load = client.load
            if load < least:
                chosen, least = client, load
            left -= 1
            if not (least and left):
                break
        if chosen is None:
            raise ProviderGone(data={"method": self.method})
        return chosen


class Directory:
    """The tables of one hub.

    Args:
        own: the methods of the hub itself, whose names nobody can take.
        on_enter: called with each client when it is there.
        room: what waits for clients that do not read may take together.

    Attributes:
        clients: by their connection; `by_name`: those of them that have a name.
        routes: by the name that is called: `vectorize`, and `gpu-1.vectorize` of the client `gpu-1` alone. A name with
            a dot in it always is a client's name and the name of a method of that client: a method whose own name has
            dots can be called in that way only. So it never stands for a method of another client, be that there or
            not.
        version: counts the changes of what is offered; `offered`: how many methods that are, each once for every
            client; `offered_cost`: bytes of memory that it all takes, about.
    """

    def __init__(self, own: Mapping[str, Any], on_enter: Callable[[Member], None], room: Room) -> None:
        self.clients: dict[Session, Member] = {}
        self.by_name: dict[str, Member] = {}
        self.routes: dict[str, Route] = {}
        self.version = self.offered = self.offered_cost = 0
        self._own = own
        self._room = room
        self._on_enter = on_enter
        self._last_number = 0
        #: Called when what is offered has changed.
        self.on_change: list[Callable[[], None]] = []
        #: The names under which methods are told to others, sorted; and those that have come or gone since.
        self._listed: list[str] = []
        self._changed: set[str] = set()

    def find(self, session: Session) -> Member:
        """The client at this connection, entered with the first thing that it says."""
        return self.clients.get(session) or self._meet(session)

    def _meet(self, session: Session) -> Member:
        client = self.clients[session] = Member(session, self._room)
        self._on_enter(client)
        return client

    # -- names --------------------------------------------------------------------------------------------------------

    def new_name(self) -> str:
        """A name for a client that has none."""
        while True:
            self._last_number += 1
            name = f"client-{self._last_number}"
            if name not in self.by_name:
                return name

    def enter(self, client: Member, name: str, key: str | None) -> None:
        """The client has this name from now on; with the key that it had on another connection, if there was one."""
        client.name, client.key = name, key or secrets.token_hex(16)
        self.by_name[name] = client

    def check_free(self, client: Member, name: str, key: str | None) -> Member | None:
        """May the client have this name? The one whose place it takes then, which showed the same key.

        Raises:
            InvalidParams: it is no name; the client has another; another client has it.
        """
        check_name(name)
        if client.name is not None and client.name != name:
            raise fault("name", f"this connection has the name {client.name!r}")
        holder = self.by_name.get(name)
        if holder is None or holder is client:
            return None
        if key is None or not hmac.compare_digest(key.encode(), holder.key.encode()):
            raise fault("name", f"the name {name!r} is taken by another client")
        return holder

    # -- methods ------------------------------------------------------------------------------------------------------

    def check_offers(self, client: Member, name: str, offers: Collection[Offer], leaving: Member | None) -> None:
        """May the client, by this name, offer all these?

        Args:
            leaving: whose methods will be gone then.

        Raises:
            InvalidParams: a name is taken; the first one is said.
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
            others = [] if route is None else [each for each in route.clients[:3] if each not in (client, leaving)]
            if others and route is not None:
                if route.is_own:  # it could be called all the same, but only to be taken for that
                    raise fault("methods", f"{offer.name!r} is a method of {others[0].name!r}")
                if not (offer.shared and route.shared):
                    raise fault("methods", f"{offer.name!r} is offered by {others[0].name!r}, and not shared by both")

    def offer(self, client: Member, offers: Mapping[str, Offer]) -> None:
        """Enter what was checked. A method that the client offers already is described anew."""
        assert client.name is not None
        for offer in offers.values():
            if offer.name in client.offers:
                self._remove(client, offer.name)
            client.offers[offer.name] = offer
            self.offered += 1
            self._count(client, offer.size, offer.cost)
            self._add(offer, client, client.name)
        self._have_changed()

    def describe(self, client: Member, schemas: Mapping[str, bytes]) -> None:
        """Enter what the descriptions of the client's methods refer to, as JSON by name."""
        for name, text in schemas.items():
            before = client.schemas.pop(name, None)
            if before is not None:
                self._count(client, -len(before), -schema_cost(name, before))
            client.schemas[name] = text
            self._count(client, len(text), schema_cost(name, text))
        if schemas:
            self._have_changed()

    def listed(self) -> list[str]:
        """The names under which methods are told to others, sorted."""
        if self._changed:
            routes, changed = self.routes, self._changed
            names = [name for name in self._listed if name not in changed]
            names += [name for name in changed if name in routes]
            names.sort()  # most of it is sorted, and taken as it is
            self._listed, self._changed = names, set()
        return self._listed

    def withdraw(self, client: Member, names: Collection[str]) -> list[str]:
        """Offer these no more; gives those that were offered."""
        gone = [name for name in dict.fromkeys(names) if name in client.offers]
        for name in gone:
            self._remove(client, name)
        if not client.offers:
            client.schemas = {}
            self._count(client, -client.offered_size, -client.offered_cost)
        if gone:
            self._have_changed()
        return gone

    def leave(self, client: Member) -> list[str]:
        """The client gives up its name: that and its methods are free. Gives the methods."""
        gone = self.withdraw(client, list(client.offers))
        if client.name is not None:
            del self.by_name[client.name]
            client.name, client.key = None, ""
        return gone

    def _add(self, offer: Offer, client: Member, owner: str) -> None:
        text = passthrough.text_of(offer.name)
        for called in _names(offer.name, owner):
            route = self.routes.get(called)
            if route is None:
                route = self.routes[called] = Route(offer, client, text, is_own=called != offer.name)
                if route.is_listed:
                    self._changed.add(called)
            else:
                route.clients.append(client)

    def _remove(self, client: Member, name: str) -> None:
        assert client.name is not None
        offer = client.offers.pop(name)
        self.offered -= 1
        self._count(client, -offer.size, -offer.cost)
        for called in _names(name, client.name):
            route = self.routes[called]
            route.clients.remove(client)
            if not route.clients:
                del self.routes[called]
                if route.is_listed:
                    self._changed.add(called)

    def _have_changed(self) -> None:
        self.version += 1
        for told in self.on_change:
            told()
        if len(self._changed) > len(self.routes) + 1000:
            self.listed()  # names that come and go while nobody asks for them are not to pile up

    def _count(self, client: Member, size: int, cost: int) -> None:
        """So much more, or less, of it is the client's."""
        client.offered_size += size
        client.offered_cost += cost
        self.offered_cost += cost


def _names(method: str, owner: str) -> tuple[str, ...]:
    """By what a method of a client is called; see `Directory.routes`."""
    own = f"{owner}.{method}"
    return (own,) if "." in method else (method, own)


def check_balance(balance: str) -> None:
    """Raises ValueError unless it is one of the ways."""
    if balance not in get_args(Balance):
        raise ValueError(f"balance must be one of {', '.join(get_args(Balance))}; got {balance!r}")
