"""Both clients behind the same blocking methods, so that one test runs with both."""

from __future__ import annotations

import asyncio
from typing import Any

from rpcstream import AsyncClient, Client

from .loops import new_loop


class BlockingAsyncClient:
    """An AsyncClient with blocking methods, so that one test can run with both clients."""

    def __init__(self, address: str, **options: Any) -> None:
        self.runner = asyncio.Runner(loop_factory=new_loop)
        self.client = AsyncClient(address, **options)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self.runner.run(self.client.call(*args, **kwargs))

    def notify(self, *args: Any, **kwargs: Any) -> None:
        self.runner.run(self._awaited(self.client.notify(*args, **kwargs)))

    def __call__(self, message: dict[str, Any], **kwargs: Any) -> Any:
        return self.runner.run(self.client(message, **kwargs))

    def batch(self, *calls: tuple[Any, ...], **options: Any) -> list[Any]:
        return self.runner.run(self._batch(calls, options))

    def together(self, *calls: tuple[Any, ...], **options: Any) -> list[Any]:
        """Outcomes (values or exceptions) of calls made at the same time."""
        return self.runner.run(self._together(calls, options))

    @property
    def replies_dropped(self) -> int:
        return self.client.replies_dropped

    def close(self) -> None:
        self.runner.run(self.client.close())
        self.runner.close()

    async def _awaited(self, awaitable: Any) -> Any:
        return await awaitable

    async def _batch(self, calls: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
        async with self.client.batch(**options) as batch:
            return [batch.call(*call) for call in calls]

    async def _together(self, calls: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
        return await asyncio.gather(*(self.client.call(*call, **options) for call in calls), return_exceptions=True)


class BlockingClient:
    """A Client with the same methods."""

    def __init__(self, address: str, **options: Any) -> None:
        self.client = Client(address, **options)
        self.call = self.client.call
        self.notify = self.client.notify
        self.close = self.client.close

    def __call__(self, message: dict[str, Any], **kwargs: Any) -> Any:
        return self.client(message, **kwargs)

    def batch(self, *calls: tuple[Any, ...], **options: Any) -> list[Any]:
        with self.client.batch(**options) as batch:
            return [batch.call(*call) for call in calls]

    def together(self, *calls: tuple[Any, ...], **options: Any) -> list[Any]:
        futures = [self.client.submit(*call, **options) for call in calls]
        return [future.exception() or future.result() for future in futures]

    @property
    def replies_dropped(self) -> int:
        return self.client.replies_dropped
