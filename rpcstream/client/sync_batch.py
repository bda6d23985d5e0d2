"""The batch of the sync client: a context manager that sends it when it is left.

Owns nothing but that; what a batch is, and how it is sent, is known elsewhere.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from .batch import Batch, BatchExchange

if TYPE_CHECKING:
    from .sync import Client


class SyncBatch(Batch):
    """The batch of a `Client`; a context manager."""

    def __init__(self, client: Client, timeout: Any) -> None:
        super().__init__(client._marshaller, timeout)
        self._client = client

    def __enter__(self) -> SyncBatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        outgoing = self._outgoing()
        if isinstance(outgoing, BatchExchange):
            try:
                self._client._perform(outgoing, self._timeout)
            except Exception as failure:
                outgoing.failed(failure)
                raise
        elif outgoing is not None:
            self._client._send(outgoing, "batch", self._timeout)
