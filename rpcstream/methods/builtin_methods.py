"""The methods that every end has which offers any, `rpc.discover`, `rpc.ping`, `rpc.stats`; those of servers.

These are `rpc.authenticate`, where callers are asked who they are, and those for events.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import orjson

from ..auth.gate import AUTHENTICATE, NOT_IN_BATCH, GatedSession
from ..codec import Codec
from ..errors import InvalidRequest
from ..events.topics import Topics
from ..peer.context import Context
from ..peer.state import ConversationState
from .discovery import describe
from .registry import MethodRegistry


def add_own_methods(
    registry: MethodRegistry, *, codec: Codec, title: str, version: str, stats: Callable[[], dict[str, Any]]
) -> Callable[[], dict[str, Any]]:
    """Enter them.

    Args:
        title, version: of the service, for `rpc.discover`.
        stats: what `rpc.stats` answers.

    Returns:
        What gives the document that `rpc.discover` answers.
    """

    @functools.lru_cache(maxsize=1)
    def described(changes: int) -> dict[str, Any]:
        return describe(registry, codec=codec, title=title, version=version)

    @functools.lru_cache(maxsize=1)
    def written(changes: int) -> orjson.Fragment:
        # As JSON: an answer is then as quick as its bytes are copied, however many methods there are.
        return orjson.Fragment(codec.dumps(described(changes)))

    def discover() -> dict[str, Any]:
        """What is offered here, as an OpenRPC document."""
        return cast(dict[str, Any], written(registry.version))

    def ping() -> str:
        """Answers "pong"."""
        return "pong"

    def counted() -> dict[str, Any]:
        """What was counted here since the start."""
        return stats()

    for name, function in (("discover", discover), ("ping", ping), ("stats", counted)):
        registry.add(function, name=f"rpc.{name}", reserved=True, check_result=function is not discover)
    return lambda: described(registry.version)


def add_auth_method(registry: MethodRegistry) -> None:
    """Add the method with which a peer authenticates again; the first time the gate answers it."""

    async def authenticate(token: str, ctx: Context) -> bool:
        """Says by a token who calls from now on; who is not believed stays who they were."""
        if ctx.in_batch:
            raise InvalidRequest(data=NOT_IN_BATCH)
        if not isinstance(ctx.session, GatedSession) or not ctx.session.is_lasting:
            raise InvalidRequest(data={"reason": "here the token goes into the header Authorization: Bearer"})
        await ctx.session.gate.change(ctx.session, token)
        return True

    # One at a time: the wrong ones are counted before the next is looked at.
    registry.add(authenticate, name=AUTHENTICATE, reserved=True, ordered=True)


def add_event_methods(
    registry: MethodRegistry, topics: Topics, check: Callable[[ConversationState, str], tuple[str, ...]]
) -> None:
    """Enter those with which clients subscribe to the topics.

    Args:
        check: called with the session and what it asks for; gives the patterns of what it is not to be told.
    """

    def subscribe(topic: str, ctx: Context) -> dict[str, Any]:
        """Sends what is published to a topic from now on, as `$/event` notifications; this reply comes first.

        In place of a topic a pattern will do: `sensors.*` for one whole level, `sensors.>` for one or more. Behind the
        reply come the last values that are kept of these topics. The reply says what becomes of events that the
        subscriber is too slow for: how many wait, and the policy then.
        """
        if ctx.in_batch:
            # The replies of a batch come together, when the last is ready: events would overtake this one.
            raise InvalidRequest(data={"reason": "rpc.subscribe must not stand in a batch"})
        if not ctx.session.is_lasting:
            reason = "events need a connection that stays: subscribe over a WebSocket or the line stream"
            raise InvalidRequest(data={"reason": reason})
        topics.check_subscription(topic)  # first: the rules are asked about names of bounded length only
        return topics.subscribe(ctx.session, topic, denied=check(ctx.session, topic))

    def unsubscribe(topic: str, ctx: Context) -> bool:
        """Sends no more of a topic or pattern, not even what waits to be sent; false if it was not subscribed to."""
        return topics.unsubscribe(ctx.session, topic)

    for function in (subscribe, unsubscribe):
        registry.add(function, name=f"rpc.{function.__name__}", reserved=True)
