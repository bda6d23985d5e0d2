"""A client that knows NATS alone: that of nats-py, whose `flush` waits for the server here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.client import Client


class PlainClient(Client):
    """A client of nats-py, whose `flush` returns when the server has handled all that was sent.

    nats-py writes its PING ahead of what was sent before and still waits to be written. Its own `flush` therefore
    returns when a subscription may not have reached the server, and what others publish then does not come.
    """

    async def flush(self, timeout: int = 20) -> None:
        """Wait until the server has handled all that was sent: when the first PING is answered, nothing waits."""
        await super().flush(timeout)
        await super().flush(timeout)


@asynccontextmanager
async def plain_client(*urls: str, **options: Any) -> AsyncIterator[PlainClient]:
    """A client that is connected to one of these servers, and is closed at the end."""
    client = PlainClient()
    await client.connect(list(urls), **options)
    try:
        yield client
    finally:
        await client.close()
