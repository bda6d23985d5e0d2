"""The built-in methods `rpc.*` of servers, and of clients that offer methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import orjson

from ..auth.gate import AUTHENTICATE, GatedSession
from ..errors import InvalidRequest
from ..events.topics import Topics
from ..openrpc.compat import Compat
from ..peer.context import CallContext
from ..peer.incoming import use_binary
from ..peer.session import Session
from .discovery import OpenRpcDocument
from .registry import MethodRegistry


def add_own_methods(
    registry: MethodRegistry, document: OpenRpcDocument, *, stats: Callable[[], dict[str, Any]]
) -> None:
    """Register `rpc.discover`, `rpc.ping`, `rpc.stats` and `rpc.hello`.

    Args:
        registry: gets the methods.
        document: what `rpc.discover` returns.
        stats: gives the result of `rpc.stats`.
    """

    async def discover(compat: Compat | None = None) -> dict[str, Any]:
        """The methods that are offered here, as an OpenRPC document.

        Args:
            compat: "1.2.6" for a document of this older version of OpenRPC, whose schemas are of JSON Schema draft 07
                alone, and do not refer to themselves.
        """
        # As JSON, so that a reply costs no more than copying its bytes, however many methods there are.
        return cast(dict[str, Any], orjson.Fragment(await document.text(compat)))

    def ping() -> str:
        """Answers "pong"."""
        return "pong"

    def counted() -> dict[str, Any]:
        """The counters of this end since its start."""
        return stats()

    def hello(ctx: CallContext, binary: int = 0, shm: Any = None) -> dict[str, Any]:
        """Says that the caller reads binary frames of this version (1; 0: none), and tells what is read here.

        On a Unix socket `shm` is the shared memory that the caller offers, and in the result that of this end.
        """
        session = ctx.session
        answer: dict[str, Any] = {"binary": int(bool(session.takes_binary))}
        if binary and session.takes_binary and session.is_lasting:
            memory = use_binary(session, shm)
            if memory is not None:
                answer["shm"] = memory
        return answer

    for name, function in (("discover", discover), ("ping", ping), ("stats", counted), ("hello", hello)):
        registry.add(function, name=f"rpc.{name}", reserved=True, check_result=function is not discover)


def add_auth_method(registry: MethodRegistry) -> None:
    """Register `rpc.authenticate`, which the gate lets pass before a peer is authenticated."""

    async def authenticate(token: str, ctx: CallContext) -> bool:
        """Says who the caller is, by a token; another token changes that. One that is not accepted changes nothing."""
        if ctx.in_batch:
            raise InvalidRequest(data={"reason": "rpc.authenticate must not stand in a batch"})
        if not isinstance(ctx.session, GatedSession) or not ctx.session.is_lasting:
            raise InvalidRequest(data={"reason": "here the token goes into the header Authorization: Bearer"})
        await ctx.session.authenticate(token)
        return True

    # Ordered, so that a wrong token is counted before the next one is looked at.
    registry.add(authenticate, name=AUTHENTICATE, reserved=True, ordered=True)


def add_event_methods(
    registry: MethodRegistry,
    topics: Topics,
    check: Callable[[Session, str], tuple[str, ...]],
    is_shared: bool = False,
) -> None:
    """Register `rpc.subscribe` and `rpc.unsubscribe`; those that are registered are replaced.

    Args:
        registry: gets the methods.
        topics: to subscribe to.
        check: called with the session and the topic or pattern; raises if the peer may not subscribe to it, and gives
            the patterns of topics whose events it does not get.
        is_shared: there are other processes or servers, which are told of a subscription before its reply is sent.
    """

    def checked(topic: str, ctx: CallContext) -> tuple[str, ...]:
        """Raise unless the caller may subscribe to this now; else give what is denied of it."""
        if ctx.in_batch:
            # The replies of a batch come together, when the last is ready: events would overtake this one.
            raise InvalidRequest(data={"reason": "rpc.subscribe must not stand in a batch"})
        if not ctx.session.is_lasting:
            reason = "events need a connection that stays: subscribe over a WebSocket or the line stream"
            raise InvalidRequest(data={"reason": reason})
        topics.check_subscription(topic)  # first, because the rules are asked about names of bounded length only
        return check(ctx.session, topic)

    def subscribe(topic: str, ctx: CallContext) -> dict[str, Any]:
        """Sends what is published to a topic from now on, as `$/event` notifications; this reply comes first.

        In place of a topic a pattern will do: `sensors.*` for one whole level, `sensors.>` for one or more. Behind the
        reply come the last values that are kept of these topics. The reply says what becomes of events that the
        subscriber is too slow for: how many wait, and the policy then.
        """
        return topics.subscribe(ctx.session, topic, denied=checked(topic, ctx))

    async def subscribe_everywhere(topic: str, ctx: CallContext) -> dict[str, Any]:
        return await topics.subscribe_everywhere(ctx.session, topic, denied=checked(topic, ctx))

    def unsubscribe(topic: str, ctx: CallContext) -> bool:
        """Sends no more of a topic or pattern, not even what waits to be sent; false if it was not subscribed to."""
        return topics.unsubscribe(ctx.session, topic)

    subscribe_everywhere.__doc__ = subscribe.__doc__
    registry.add(
        subscribe_everywhere if is_shared else subscribe, name="rpc.subscribe", reserved=True, replace=is_shared
    )
    registry.add(unsubscribe, name="rpc.unsubscribe", reserved=True, replace=is_shared)
