"""The methods that only a hub has: registering, publishing, notifying one client, and its lists."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from ..errors import InvalidRequest, NotPermitted, RpcError, ServerBusy, wrong_parameter
from ..events.patterns import CLIENT_NAME, RESERVED, fault_of_topic
from ..events.topics import Topics
from ..limits import MIB, Limits
from ..methods.discovery import OpenRpcDocument
from ..methods.registry import MethodRegistry
from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog
from ..openrpc.compat import COMPAT, Compat
from ..peer.context import CallContext
from ..peer.session import Session
from ..text import get_logger
from . import discovery, passthrough
from .directory import Directory
from .discovery import Listing
from .members import METHOD_MAX, Member, Offer, own_schemas, read_offers, schema_cost
from .passthrough import Line
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
    """Registers the members of one hub: they take names, offer methods, withdraw them and leave.

    Each step checks, changes the directory, writes a line in the log, and announces the change (`rpc.hub.joined`, ...).

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


#: Carries out a call of which one argument is not decoded; called with the session, the line, and the arguments, with
#: an empty value in place of that one.
PassingMethod = Callable[..., Any]


class HubMethods:
    """The methods of one hub.

    Args:
        rules: who may publish and notify what; None: everything is permitted.
        document: of the hub's own methods.

    Attributes:
        documents: the OpenRPC document of the hub and its members, by its version: None and "1.2.6".
    """

    def __init__(
        self,
        directory: Directory,
        registrations: Registrations,
        topics: Topics,
        *,
        limits: Limits,
        rules: Rules | None,
        document: OpenRpcDocument,
    ) -> None:
        self._directory = directory
        self._registrations = registrations
        self._topics = topics
        self._rules = rules
        most = limits.max_message_size
        self._clients = Listing(partial(discovery.members, directory), None, max_size=most)
        self._offered = Listing(partial(discovery.methods, directory), lambda: directory.version, max_size=most)
        self.documents: dict[str | None, Listing] = {
            compat: Listing(
                partial(discovery.document, document, directory, compat),
                lambda: directory.version + document.version,
                max_size=most,
            )
            for compat in (None, COMPAT)
        }

    def add_to(self, registry: MethodRegistry, *, stats: Callable[[], dict[str, Any]]) -> None:
        """Make these methods of the hub; `stats` becomes `get_server_stats`."""
        own: dict[str, Callable[..., Any]] = {
            "rpc.register": self.register,
            "rpc.unregister": self.unregister,
            "rpc.publish": self.publish,
            "rpc.notify": self.notify,
            "get_server_stats": stats,
            "keepAlive": self.keep_alive,
        }
        for name, function in own.items():
            registry.add(function, name=name, reserved=True)
        registry.add(self.ping, name="rpc.ping", reserved=True, replace=True)
        for written in (self.clients, self.methods, self.discover):
            # Ordered, so that a connection that does not read is sent one list only.
            registry.add(
                written,
                name=f"rpc.{written.__name__}",
                reserved=True,
                replace=True,
                ordered=True,
                check_result=False,
            )

    # -- registration -------------------------------------------------------------------------------------------------

    def register(
        self,
        ctx: CallContext,
        name: str | None = None,
        methods: list[Any] | None = None,
        components: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Gives this connection a name, and offers methods on it.

        Each is its name, or an OpenRPC method object, with `"shared": true` where others may offer it, too. All of them
        are accepted, or none. Returns the name, the names of all methods that the connection offers now, and the `key`
        with which the same program can take its name over on another connection.
        """
        _check_connection(ctx, "rpc.register")
        member = self._directory.find(ctx.session)
        self._registrations.register(member, name, methods or [], components or {}, key)
        return {"name": member.name, "key": member.key, "methods": list(member.offers)}

    def unregister(self, ctx: CallContext, methods: list[str] | None = None) -> list[str]:
        """Withdraws these methods; without any all of them, and the name. Returns those that were offered."""
        _check_connection(ctx, "rpc.unregister")
        member = self._directory.find(ctx.session)
        if methods is None:
            return self._registrations.leave(member)
        return self._registrations.withdraw(member, methods)

    def ping(self, ctx: CallContext) -> str:
        """Answers "pong"; a client that calls this is taken for alive."""
        self._heard(ctx.session)
        return "pong"

    def keep_alive(self, ctx: CallContext) -> bool:
        """Says that the caller is alive."""
        self._heard(ctx.session)
        return True

    def _heard(self, session: Session) -> None:
        member = self._directory.members.get(session)
        if member is not None:
            member.last_heard = session.loop.time()

    # -- messages to other members, passed on without decoding --------------------------------------------------------

    def publish(self, topic: str, value: Any, retain: bool = False) -> int:
        """Sends a value to all connections that have subscribed to the topic; returns their number.

        Args:
            topic: a name, not a pattern.
            value: any JSON value.
            retain: keep it as the last value of the topic, for later subscribers; null forgets it.
        """
        raise AssertionError("answered by _pass_publish, which does not decode the value")

    def notify(self, client: str, method: str, params: list[Any] | dict[str, Any] | None = None) -> bool:
        """Sends a notification to the client with this name."""
        raise AssertionError("answered by pass_notify, which does not decode the params")

    @property
    def passing(self) -> dict[str, PassingMethod]:
        """The methods whose values are passed on as they came, by name."""
        return {
            "rpc.publish": self._pass_publish,
            "rpc.notify": self._pass_notify,
        }

    def _pass_publish(self, session: Session, line: Line, topic: str, value: Any, retain: bool = False) -> int:
        """Carry out `rpc.publish`, with the value as it came."""
        reason = fault_of_topic(topic)
        if reason is None and topic.startswith(RESERVED):
            reason = f"begins with {RESERVED!r}, which is reserved"
        if reason is not None:
            raise wrong_parameter("topic", f"the topic {reason}")
        if self._rules is not None and not self._rules.permits(session.identity, "publish", topic):
            raise NotPermitted(data={"topic": topic})
        count = self._topics.forward(topic, passthrough.event(line, topic), retain=retain and value is not None)
        if retain and value is None:
            self._topics.forget(topic)
        return count

    def _pass_notify(self, session: Session, line: Line, name: str, method: str, params: Any = None) -> bool:
        """Carry out `rpc.notify`, with the params as they came."""
        if len(method) > METHOD_MAX:
            raise wrong_parameter("method", f"a method's name has at most {METHOD_MAX} characters")
        if method.startswith(("rpc.", "$/")):
            raise wrong_parameter("method", "names that begin with 'rpc.' or '$/' are reserved")
        if not CLIENT_NAME.fullmatch(name):
            raise wrong_parameter("client", f"no client has the name {name!r:.200}")
        if self._rules is not None and not self._rules.permits_call(session.identity, method, name):
            raise NotPermitted(data={"method": f"{name}.{method}"})
        member = self._directory.by_name.get(name)
        if member is None:
            raise wrong_parameter("client", f"no client has the name {name!r:.200}")
        member.send(passthrough.notification(line, method, has_params=params is not None))
        return True

    # -- lists --------------------------------------------------------------------------------------------------------

    async def clients(self) -> list[dict[str, Any]]:
        """The connections that have sent a request, in the order in which they came."""
        listed: list[dict[str, Any]] = await self._clients.fragment()
        return listed

    async def methods(self) -> list[dict[str, Any]]:
        """The methods that clients offer, by name, with the clients that offer each."""
        listed: list[dict[str, Any]] = await self._offered.fragment()
        return listed

    async def discover(self, compat: Compat | None = None) -> dict[str, Any]:
        """The methods of the hub and of its clients, as an OpenRPC document.

        Args:
            compat: "1.2.6" for a document of this older version of OpenRPC, whose schemas are of JSON Schema draft 07
                alone, and do not refer to themselves.
        """
        document: dict[str, Any] = await self.documents[compat].fragment()
        return document

    def close(self) -> None:
        """Stop writing lists: the hub stops."""
        for listing in (self._clients, self._offered, *self.documents.values()):
            listing.close()


def _check_connection(ctx: CallContext, method: str) -> None:
    """Raise InvalidRequest where a connection cannot be a member's, or the call stands in a batch."""
    if ctx.in_batch:
        raise InvalidRequest(data={"reason": f"{method} must not stand in a batch"})
    if not ctx.session.is_lasting:
        reason = "a client of a hub needs a connection that stays: use a WebSocket or the line stream"
        raise InvalidRequest(data={"reason": reason})
