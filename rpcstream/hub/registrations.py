"""Registration at a hub: members take names, offer methods, withdraw them and leave.

Each step checks, changes the directory, writes a line in the log, and announces the change (`rpc.hub.joined`, ...).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any

from ..errors import NotPermitted, RpcError, ServerBusy
from ..events.topics import Topics
from ..limits import MIB, Limits
from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog
from ..text import get_logger
from .directory import Directory
from .members import Member
from .offers import Offer, own_schemas, read_offers, schema_cost
from .rules import Rules

log = get_logger("rpcstream.hub")

#: The topics of a hub's own events begin with this.
SYSTEM_TOPICS = "rpc.hub."

#: Memory of what one client offers, including tables and names. A hundred methods with schemas take about 140 KB.
MAX_OFFERED_SIZE = 2 * MIB

#: Memory of what all clients of a hub offer, including tables and names: 0.9 KiB for a method besides its description.
#: Ten methods with schemas take about 14 KB: room for 9,000 clients, or for 140,000 methods without any description.
#: Besides these bytes the hub keeps the last answers to `rpc.methods` and `rpc.discover`, each of `max_message_size` at
#: most.
MAX_OFFERED_TOTAL = 128 * MIB

#: Names of methods that one line of the log has.
LOGGED = 10


class Registrations:
    """Registers the members of one hub.

    Args:
        directory: the tables that are changed.
        rules: who may have which name and offer what; None: everything is permitted.
        topics: where changes are announced.
        counters: where members that were dropped are counted.
    """

    def __init__(
        self, directory: Directory, *, limits: Limits, rules: Rules | None, topics: Topics, counters: Counters
    ) -> None:
        self._directory = directory
        self._limits = limits
        self._rules = rules
        self._topics = topics
        self._counters = counters
        self._log = LimitedLog(log)
        directory.on_enter.append(self._entered)

    def register(
        self,
        member: Member,
        name: str | None,
        methods: list[Any],
        components: dict[str, Any],
        key: str | None,
    ) -> None:
        """Give a member a name, and enter the methods that it offers: all of them, or none.

        Args:
            member: the client.
            name: None for the one that it has, or else a new one.
            methods: as in `rpc.register`.
            components: the schemas that the methods' descriptions refer to, by name.
            key: of a member with this name, whose place it takes.

        Raises:
            InvalidParams: a name cannot be, or is taken.
            NotPermitted: a rule forbids the name or a method.
            ServerBusy: there is no room for so many methods, or so long descriptions.
        """
        directory = self._directory
        if name is None:
            name = member.name or directory.new_name()
        replaced = directory.check_free(member, name, key)
        offers = read_offers(methods, components, name)
        schemas = own_schemas(components, name)
        self._check_room(member, replaced, offers, schemas)
        self._check_permitted(member, name, offers)
        directory.check_offers(member, name, list(offers.values()), replaced)
        if replaced is not None:
            self.drop(replaced, f"{name!r} has taken its place on another connection")
        is_new = member.name is None
        if is_new:
            directory.set_name(member, name, key if replaced is not None else None)
        directory.add_schemas(member, schemas)
        directory.offer(member, offers)
        if is_new:
            self._log.info(name, "%s joined as %r", member.address, name)
            self._announce("joined", {"name": name, "address": member.address})
        if offers:
            self._log.info(name, "%r offers %s", name, _some(list(offers)))
            self._announce("registered", {"name": name, "methods": list(offers)})

    def withdraw(self, member: Member, methods: Collection[str]) -> list[str]:
        """Take out these methods of a member; return those that it offered."""
        withdrawn = self._directory.withdraw(member, methods)
        self._withdrawn(member.name, withdrawn)
        return withdrawn

    def leave(self, member: Member) -> list[str]:
        """Take out a member's name and all its methods; return the methods."""
        name = member.name
        if name is None:
            return []
        withdrawn = self._directory.leave(member)
        self._withdrawn(name, withdrawn)
        self._log.info(name, "%s, known as %r, left", member.address, name)
        self._announce("left", {"name": name, "address": member.address})
        return withdrawn

    def drop(self, member: Member, reason: str) -> None:
        """Close a member's connection: its calls fail at once, its name and its methods are free."""
        self._log.warning(member.name, "dropped %r at %s: %s", member.name, member.address, reason)
        self._counters.closed_for_limits += 1
        self.leave(member)
        member.session.abort(reason)

    # -- what is checked ----------------------------------------------------------------------------------------------

    def _check_room(
        self, member: Member, leaving: Member | None, offers: Mapping[str, Offer], schemas: Mapping[str, bytes]
    ) -> None:
        """Check that the limits leave room for these offers; those that the member has already are replaced.

        Args:
            member: that offers them.
            leaving: a member whose offers will be gone then.
            offers: its new offers, by name.
            schemas: its new schemas, by name.

        Raises:
            ServerBusy: there is no room.
        """
        limit, offered, known = self._limits.max_offered, member.offers, member.schemas
        if len(offered.keys() | offers.keys()) > limit:
            raise ServerBusy(f"Server busy: a client may offer {limit} methods (max_offered)", {"limit": limit})
        cost = sum([offer.cost - (offered[name].cost if name in offered else 0) for name, offer in offers.items()])
        cost += sum(itertools.starmap(schema_cost, schemas.items()))
        cost -= sum([schema_cost(name, known[name]) for name in schemas if name in known])
        if member.offered_cost + cost > MAX_OFFERED_SIZE:
            text = f"Server busy: the methods of a client may take {MAX_OFFERED_SIZE} bytes of memory"
            raise ServerBusy(text, {"limit": MAX_OFFERED_SIZE})
        cost -= leaving.offered_cost if leaving is not None else 0
        if cost > 0 and self._directory.offered_cost + cost > MAX_OFFERED_TOTAL:
            text = f"Server busy: the offers of all clients may take {MAX_OFFERED_TOTAL} bytes of memory"
            raise ServerBusy(text, {"limit": MAX_OFFERED_TOTAL})

    def _check_permitted(self, member: Member, name: str, offers: Collection[str]) -> None:
        rules = self._rules
        if rules is None:
            return
        identity = member.session.identity
        if member.name is None and not rules.permits(identity, "name", name):
            raise NotPermitted(data={"name": name})
        for offered in offers:
            # The name that is offered must be allowed: the client chooses the one that stands before it.
            if not rules.permits(identity, "register", offered, unless=(f"{name}.{offered}",)):
                raise NotPermitted(data={"method": offered})

    # -- what is told -------------------------------------------------------------------------------------------------

    def _entered(self, member: Member) -> None:
        member.session.on_lost.append(lambda: self._lost(member))
        member.session.on_end = lambda: self._ends(member)

    def _ends(self, member: Member) -> None:
        """Take out the methods of a member that reads no more requests (`$/goAway`); it may have calls to answer."""
        if member.session.peer_is_leaving:
            self.withdraw(member, list(member.offers))

    def _lost(self, member: Member) -> None:
        del self._directory.members[member.session]
        self.leave(member)

    def _withdrawn(self, name: str | None, methods: list[str]) -> None:
        if methods:
            self._log.info(name, "%r withdrew %s", name, _some(methods))
            self._announce("unregistered", {"name": name, "methods": methods})

    def _announce(self, event: str, value: dict[str, Any]) -> None:
        try:
            self._topics.announce(f"{SYSTEM_TOPICS}{event}", value)
        except RpcError as error:  # a list of methods too long for a message
            self._log.warning(event, "the event %r was not sent: %s", event, error)


def _some(names: list[str]) -> str:
    """Return names for the log, the first few of many."""
    left_out = len(names) - LOGGED
    return ", ".join(names[:LOGGED]) + (f" and {left_out} more" if left_out > 0 else "")
