"""The methods that every end has which offers any: `rpc.discover`, `rpc.ping`, `rpc.stats`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..codec import Codec
from .discovery import describe
from .registry import MethodRegistry


def add_own_methods(
    registry: MethodRegistry, *, codec: Codec, title: str, version: str, stats: Callable[[], dict[str, Any]]
) -> None:
    """Enter them.

    Args:
        title, version: of the service, for `rpc.discover`.
        stats: what `rpc.stats` answers.
    """

    @functools.lru_cache(maxsize=1)
    def described(changes: int) -> dict[str, Any]:
        return describe(registry, codec=codec, title=title, version=version)

    def discover() -> dict[str, Any]:
        """What is offered here, as an OpenRPC document."""
        return described(registry.version)

    def ping() -> str:
        """Answers "pong"."""
        return "pong"

    def counted() -> dict[str, Any]:
        """What was counted here since the start."""
        return stats()

    for name, function in (("discover", discover), ("ping", ping), ("stats", counted)):
        registry.add(function, name=f"rpc.{name}", reserved=True)
