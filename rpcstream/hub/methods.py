"""The methods that only a hub has: registering, publishing, notifying one client, and its lists."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import InvalidRequest, NotPermitted, wrong_parameter
from ..events.patterns import CLIENT_NAME, RESERVED, fault_of_topic
from ..events.topics import Topics
from ..limits import Limits
from ..methods.discovery import OpenRpcDocument
from ..methods.registry import MethodRegistry
from ..openrpc.compat import COMPAT, Compat
from ..peer.context import CallContext
from ..peer.session import Session
from . import discovery, passthrough
from .directory import Directory
from .listing import Listing
from .offers import METHOD_MAX
from .passthrough import Line
from .registrations import Registrations
from .rules import Rules

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
