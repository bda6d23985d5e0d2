"""The methods that only a hub has: registering, publishing, notifying one client, and seeing what goes on.

Owns what each of them checks and in which order; the tables are the directory's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any

from ..errors import InvalidParams, InvalidRequest, NotPermitted, ServerBusy
from ..events.patterns import CLIENT_NAME, RESERVED, fault_of_topic
from ..methods.registry import MethodRegistry
from ..peer.context import Context
from ..peer.session import Session
from . import discovery, passthrough
from .dispatch import Passing
from .listing import Listing
from .members import Member
from .offers import METHOD_MAX, Offer, fault, own_schemas, read_offers, schema_cost
from .passthrough import Line

if TYPE_CHECKING:
    from .server import Hub


class HubMethods:
    """The hub's own methods, with what they change."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._directory = hub.directory

    def enter(self, registry: MethodRegistry) -> None:
        """Make them methods of the hub."""
        own: dict[str, Callable[..., Any]] = {
            "rpc.register": self.register,
            "rpc.unregister": self.unregister,
            "rpc.publish": self.publish,
            "rpc.notify": self.notify,
            "rpc.clients": self.clients,
            "rpc.methods": self.methods,
            "get_server_stats": self._hub.stats,
            "keepAlive": self.keep_alive,
        }
        for name, function in own.items():
            registry.add(function, name=name, reserved=True)
        registry.add(self.ping, name="rpc.ping", reserved=True, replace=True)
        registry.add(self.discover, name="rpc.discover", reserved=True, replace=True)

    @property
    def passing(self) -> dict[str, Passing]:
        """Those whose values go on as they came."""
        return {"rpc.publish": self.pass_publish, "rpc.notify": self.pass_notify}

    # -- registering --------------------------------------------------------------------------------------------------

    def register(
        self,
        ctx: Context,
        name: str | None = None,
        methods: list[Any] | None = None,
        components: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Gives this connection a name, and offers methods on it.

        Each is its name, or an OpenRPC method object, with `"shared": true` where others may offer it, too. All of them
        are accepted, or none. Gives the name, the names of all methods that the connection offers now, and the `key`
        with which the same program can take its name over on another connection.
        """
        _check_place(ctx, "rpc.register")
        hub, directory = self._hub, self._directory
        client = directory.find(ctx.session)
        if name is None:
            name = client.name or directory.new_name()
        leaving = directory.check_free(client, name, key)
        described, schemas = methods or [], components or {}
        offers = read_offers(described, schemas, owner=name, limits=hub.limits)
        own = own_schemas(schemas, name)
        self._check_room(client, leaving, offers, own)
        self._check_permitted(ctx.session, name, client.name is None, offers)
        directory.check_offers(client, name, list(offers.values()), leaving)
        if leaving is not None:
            hub.drop(leaving, f"{name!r} has taken its place on another connection")
        is_new = client.name is None
        if is_new:
            directory.enter(client, name, key if leaving is not None else None)
        directory.describe(client, own)
        directory.offer(client, offers)
        hub.registered(client, list(offers), is_new=is_new)
        return {"name": name, "key": client.key, "methods": list(client.offers)}

    def unregister(self, ctx: Context, methods: list[str] | None = None) -> list[str]:
        """Withdraws these methods; without any all of them, and the name. Gives those that were offered."""
        _check_place(ctx, "rpc.unregister")
        client = self._directory.find(ctx.session)
        return self._hub.leave(client) if methods is None else self._hub.withdraw(client, methods)

    def _check_room(
        self, client: Member, leaving: Member | None, offers: dict[str, Offer], schemas: dict[str, bytes]
    ) -> None:
        """Is there room for what the client would offer then? What is offered again takes the place of what was.

        Args:
            leaving: whose offers will be gone then.

        Raises:
            ServerBusy: it is too much.
        """
        limits, before, known = self._hub.limits, client.offers, client.schemas
        again = [before[name] for name in offers if name in before]
        known_again = {name: known[name] for name in schemas if name in known}
        if len(before) + len(offers) - len(again) > limits.max_offered:
            limit = limits.max_offered
            raise ServerBusy(f"Server busy: a client may offer {limit} methods", {"limit": limit})
        size = client.offered_size + sum([offer.size for offer in offers.values()])
        size += sum(map(len, schemas.values())) - sum(map(len, known_again.values()))
        size -= sum([offer.size for offer in again])
        if size > limits.max_offered_size:
            limit = limits.max_offered_size
            raise ServerBusy(f"Server busy: a client's descriptions may have {limit} bytes", {"limit": limit})
        cost = sum([offer.cost for offer in offers.values()]) - sum([offer.cost for offer in again])
        cost += sum(itertools.starmap(schema_cost, schemas.items()))
        cost -= sum(itertools.starmap(schema_cost, known_again.items()))
        cost -= leaving.offered_cost if leaving is not None else 0
        if cost > 0 and self._directory.offered_cost + cost > limits.max_offered_total:
            limit = limits.max_offered_total
            text = f"Server busy: what all clients offer may take {limit} bytes of memory"
            raise ServerBusy(text, {"limit": limit})

    def _check_permitted(self, session: Session, name: str, is_new: bool, offers: dict[str, Offer]) -> None:
        rules = self._hub.rules
        if rules is None:
            return
        if is_new and not rules.permits(session.identity, "name", name):
            raise NotPermitted(data={"name": name})
        for offered in offers:
            # What allows it is the name that is offered: the client chooses what stands before that.
            if not rules.permits(session.identity, "register", offered, unless=(f"{name}.{offered}",)):
                raise NotPermitted(data={"method": offered})

    # -- what goes on to others ---------------------------------------------------------------------------------------

    def publish(self, topic: str, value: Any, retain: bool = False) -> int:
        """Sends a value to all who have subscribed to the topic; gives how many connections that are.

        Args:
            retain: keep it as the last value of the topic, for those who subscribe later; null forgets it.
        """
        raise AssertionError("answered by pass_publish, which does not decode the value")

    def notify(self, client: str, method: str, params: list[Any] | dict[str, Any] | None = None) -> bool:
        """Sends a notification to the client with this name."""
        raise AssertionError("answered by pass_notify, which does not decode the params")

    def pass_publish(self, session: Session, message: dict[str, Any], line: Line) -> int:
        """`rpc.publish`, with the value as it came."""
        topic, value, retain = _arguments(message, ("topic", "value"), {"retain": False})
        _check_type(topic, (str,), "topic", "a string")
        _check_type(retain, (bool,), "retain", "true or false")
        reason = fault_of_topic(topic)
        if reason is None and topic.startswith(RESERVED):
            reason = f"begins with {RESERVED!r}, which is reserved"
        if reason is not None:
            raise fault("topic", f"the topic {reason}")
        rules = self._hub.rules
        if rules is not None and not rules.permits(session.identity, "publish", topic):
            raise NotPermitted(data={"topic": topic})
        topics = self._hub.topics
        count = topics.forward(topic, passthrough.event(line, topic), retain=retain and value is not None)
        if retain and value is None:
            topics.forget(topic)
        return count

    def pass_notify(self, session: Session, message: dict[str, Any], line: Line) -> bool:
        """`rpc.notify`, with the params as they came."""
        name, method, params = _arguments(message, ("client", "method"), {"params": None})
        _check_type(name, (str,), "client", "a string")
        _check_type(method, (str,), "method", "a string")
        _check_type(params, (list, dict, NoneType), "params", "an array or an object")
        if len(method) > METHOD_MAX:
            raise fault("method", f"a method's name has at most {METHOD_MAX} characters")
        if method.startswith(("rpc.", "$/")):
            raise fault("method", "names that begin with 'rpc.' or '$/' are reserved")
        if not CLIENT_NAME.fullmatch(name):
            raise fault("client", f"no client has the name {name!r:.200}")
        rules = self._hub.rules
        if rules is not None and not rules.permits_call(session.identity, method, name):
            raise NotPermitted(data={"method": f"{name}.{method}"})
        client = self._directory.by_name.get(name)
        if client is None:
            raise fault("client", f"no client has the name {name!r:.200}")
        client.send(passthrough.notification(line, method, has_params=params is not None))
        return True

    # -- to see what goes on ------------------------------------------------------------------------------------------

    def clients(self) -> list[dict[str, Any]]:
        """The connections that have said something, in the order in which they came."""
        raise AssertionError("answered by a listing, which is written in slices")

    def methods(self) -> list[dict[str, Any]]:
        """The methods that clients offer, by name, and who offers each."""
        raise AssertionError("answered by a listing, which is written in slices")

    def discover(self) -> dict[str, Any]:
        """What is offered here, by the hub and by its clients, as an OpenRPC document."""
        raise AssertionError("answered by a listing, which is written in slices")

    def listings(
        self, describe_own: Callable[[], dict[str, Any]], own_version: Callable[[], int]
    ) -> dict[str, Listing]:
        """Those whose answers are long lists.

        Args:
            describe_own: gives the OpenRPC document of the hub's own methods; `own_version` counts its changes.
        """
        directory, most = self._directory, self._hub.limits.max_message_size
        listings = {
            "rpc.methods": Listing(partial(discovery.methods, directory), lambda: directory.version, max_size=most),
            "rpc.discover": Listing(
                lambda: discovery.document(describe_own(), directory),
                lambda: directory.version + own_version(),
                max_size=most,
            ),
            "rpc.clients": Listing(partial(discovery.clients, directory), None, max_size=most),
        }
        directory.on_change += [listing.forget for listing in listings.values()]
        return listings

    def ping(self, ctx: Context) -> str:
        """Answers "pong"; who says this is there."""
        self._heard(ctx.session)
        return "pong"

    def keep_alive(self, ctx: Context) -> bool:
        """Says that the caller is there."""
        self._heard(ctx.session)
        return True

    def _heard(self, session: Session) -> None:
        client = self._directory.clients.get(session)
        if client is not None:
            client.heard = session.loop.time()


def _check_place(ctx: Context, method: str) -> None:
    if ctx.in_batch:
        raise InvalidRequest(data={"reason": f"{method} must not stand in a batch"})
    if not ctx.session.is_lasting:
        reason = "a client of a hub needs a connection that stays: use a WebSocket or the line stream"
        raise InvalidRequest(data={"reason": reason})


def _check_type(value: Any, kinds: tuple[type, ...], parameter: str, expected: str) -> None:
    if type(value) not in kinds:
        raise fault(parameter, f"expected {expected}")


def _arguments(message: dict[str, Any], names: tuple[str, ...], defaults: dict[str, Any]) -> list[Any]:
    """The arguments of a call whose params are not decoded, in the order of their names. InvalidParams."""
    params, known = message.get("params"), (*names, *defaults)
    if isinstance(params, list):
        if not len(names) <= len(params) <= len(known):
            raise InvalidParams(data={"reason": f"expected {len(names)} to {len(known)} values: {', '.join(known)}"})
        return [*params, *list(defaults.values())[len(params) - len(names) :]]
    given = params or {}
    for name in names:
        if name not in given:
            raise fault(name, "it is missing")
    for name in given:
        if name not in known:
            raise fault(f"{name:.100}", f"unknown; the parameters are {', '.join(known)}")
    return [given.get(name, defaults.get(name)) for name in known]
