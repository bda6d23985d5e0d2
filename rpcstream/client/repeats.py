"""Which calls of an async client are made again, and when.

Owns what the server says of its methods, asked once for all calls that were lost together. The rules are in `retry`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..errors import ProviderGone, RpcError
from ..peer.deadline import INFINITE
from .options import Settings
from .pool import ConnectionPool, look_at
from .retry import check_idempotent, idempotent_methods, pause_before_retry


class CallRetries:
    """Decides for the calls of one client.

    Args:
        discover: asks the server what it offers (`rpc.discover`).
    """

    def __init__(self, settings: Settings, links: ConnectionPool, discover: Callable[[], asyncio.Task[Any]]) -> None:
        self._settings = settings
        self._links = links
        self._discover = discover
        self._idempotent: frozenset[str] | None = None
        self._asking: asyncio.Task[Any] | None = None

    def pause(self, error: Exception, attempt: int, deadline: float) -> float | None:
        """Seconds until the call is made again; None if it is not."""
        pause = pause_before_retry(error, attempt, self._settings.retries)
        if pause is None or self._links.is_closed or asyncio.get_running_loop().time() + pause >= deadline:
            return None
        return pause

    async def check(self, method: str, error: Exception, deadline: float) -> None:
        """Raises ConnectionLost or ProviderGone unless the call may be repeated, by the client's `retry`."""
        if self._settings.retry == "all" or method == "rpc.discover":
            return
        known = self._idempotent
        if known is None or isinstance(error, ProviderGone):  # what a hub offers comes and goes
            known = await self._ask(deadline)
        check_idempotent(method, known, error)

    async def _ask(self, deadline: float) -> frozenset[str] | None:
        """The methods that may be called again; None if the server does not tell."""
        asking = self._asking
        if asking is None or asking.done() or asking.get_loop() is not asyncio.get_running_loop():
            asking = self._asking = self._discover()
            asking.add_done_callback(look_at)
        try:
            async with asyncio.timeout_at(None if deadline == INFINITE else deadline):
                self._idempotent = idempotent_methods(await asyncio.shield(asking))
        except (RpcError, OSError):  # with the errors of connections and time-outs
            return None
        return self._idempotent
