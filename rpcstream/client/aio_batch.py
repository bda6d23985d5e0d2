"""The batch of the async client: an async context manager that sends it when it is left.

Owns nothing but that; what a batch is, and how it is sent, is known elsewhere.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from .batch import Batch, BatchExchange

if TYPE_CHECKING:
    from .aio import AsyncClient


class AsyncBatch(Batch):
    """The batch of an `AsyncClient`; an async context manager."""

    def __init__(self, client: AsyncClient, timeout: Any) -> None:
        super().__init__(client._marshaller, timeout)
        self._client = client

    async def __aenter__(self) -> AsyncBatch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        outgoing = self._outgoing()
        if isinstance(outgoing, BatchExchange):
            try:
                await self._client._perform(outgoing, self._timeout)
            except Exception as failure:
                outgoing.failed(failure)
                raise
        elif outgoing is not None:
            await self._client._send(outgoing, "batch", self._timeout)
