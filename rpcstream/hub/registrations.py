"""Registration at a hub: members take names, offer methods, withdraw them and leave.

Owns each of these steps as a whole: what is checked first, the change of the directory, the line in the log and the
event that announces it (`rpc.hub.joined`, ...). Knows nothing of calls.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..errors import NotPermitted, RpcError, ServerBusy
from ..events.topics import Topics
from ..limits import Limits
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

#: Names of methods that one line of the log has.
LOGGED = 10

#: What keys look like.
_KEY = re.compile(r"[0-9a-f]{32}\Z")


class Registrations:
    """Registers the members of one hub.

    Args:
        directory: the tables that are changed.
        rules: who may have which name and offer what; None: everything is permitted.
        topics: where changes are announced.
        counters: where members that were dropped are counted.

    Attributes:
        on_replaced: called with a client of another hub, whose name a client of this hub has taken with its key; it is
            taken out of the directory there. None: there are no other hubs.
    """

    def __init__(
        self, directory: Directory, *, limits: Limits, rules: Rules | None, topics: Topics, counters: Counters
    ) -> None:
        self._directory = directory
        self._limits = limits
        self._rules = rules
        self._topics = topics
        self._counters = counters
        self.on_replaced: Callable[[Member], object] | None = None
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
        offers = read_offers(methods, components, owner=name, limits=self._limits)
        schemas = own_schemas(components, name)
        self._check_room(member, replaced, offers, schemas)
        self._check_permitted(member, name, offers)
        directory.check_offers(member, name, list(offers.values()), replaced)
        if replaced is not None:
            self._replace(replaced, name)
        is_new = member.name is None
        if is_new:
            directory.set_name(member, name, key if replaced is not None or self._keeps(key) else None)
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

    def _replace(self, replaced: Member, name: str) -> None:
        if replaced.hub is None:
            self.drop(replaced, f"{name!r} has taken its place on another connection")
        elif self.on_replaced is not None:
            self._log.info(name, "%r has come from the hub %s", name, replaced.hub)
            self.on_replaced(replaced)

    def _keeps(self, key: str | None) -> bool:
        """Whether a client that shows this key for a free name keeps it: another hub, out of reach, may know it."""
        return self.on_replaced is not None and key is not None and _KEY.match(key) is not None

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
        limits, offered, known = self._limits, member.offers, member.schemas
        again = [offered[name] for name in offers if name in offered]
        known_again = {name: known[name] for name in schemas if name in known}
        if len(offered) + len(offers) - len(again) > limits.max_offered:
            limit = limits.max_offered
            raise ServerBusy(f"Server busy: a client may offer {limit} methods (max_offered)", {"limit": limit})
        size = member.offered_size + sum([offer.size for offer in offers.values()])
        size += sum(map(len, schemas.values())) - sum(map(len, known_again.values()))
        size -= sum([offer.size for offer in again])
        if size > limits.max_offered_size:
            limit = limits.max_offered_size
            text = f"Server busy: the descriptions of a client's methods may have {limit} bytes (max_offered_size)"
            raise ServerBusy(text, {"limit": limit})
        cost = sum([offer.cost for offer in offers.values()]) - sum([offer.cost for offer in again])
        cost += sum(itertools.starmap(schema_cost, schemas.items()))
        cost -= sum(itertools.starmap(schema_cost, known_again.items()))
        cost -= leaving.offered_cost if leaving is not None and leaving.hub is None else 0
        if cost > 0 and self._directory.offered_cost + cost > limits.max_offered_total:
            limit = limits.max_offered_total
            text = f"Server busy: the offers of all clients may take {limit} bytes of memory (max_offered_total)"
            raise ServerBusy(text, {"limit": limit})

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
        member.session.add_lost_callback(lambda: self._lost(member))
        member.session.set_end_callback(lambda: self._ends(member))

    def _ends(self, member: Member) -> None:
        """Take out the methods of a member that reads no more requests (`$/goAway`); it may have calls to answer."""
        if member.session.peer_is_leaving:
            self.withdraw(member, list(member.offers))

    def _lost(self, member: Member) -> None:
        del self._directory.members[member.session]
        self.leave(member)
        member.resume()

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
