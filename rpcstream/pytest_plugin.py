"""The pytest plugin of rpcstream: fixtures that serve in a thread or in memory, and connect clients.

pytest loads it by its entry point wherever rpcstream is installed. So it imports nothing of the package but its
`__init__` before a fixture is used: a run that uses none pays a few milliseconds.
`-p no:rpcstream.pytest_plugin` switches it off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from . import AsyncClient, Client, Server

__all__ = ["rpc_async_client", "rpc_client", "rpc_server"]


@pytest.fixture
def rpc_server() -> Iterator[Callable[..., str]]:
    """A function that serves in a thread until the test ends.

    `rpc_server(server)` returns the address, also of a server that is served already. Further arguments are those of
    `rpcstream.testing.serve_in_thread`.
    """
    addresses: dict[Server, str] = {}
    with ExitStack() as stack:

        def serve(server: Server, **where: Any) -> str:
            from .testing import serve_in_thread

            if server not in addresses or not server.is_serving:
                addresses[server] = stack.enter_context(serve_in_thread(server, **where))
            return addresses[server]

        yield serve


@pytest.fixture
def rpc_client(rpc_server: Callable[..., str]) -> Iterator[Callable[..., Client]]:
    """A function that connects a client until the test ends.

    `rpc_client(server)` serves as `rpc_server` does; in place of the server it takes an address. Further arguments are
    options of `Client`.
    """
    with ExitStack() as stack:

        def connect(end: Server | str, **options: Any) -> Client:
            from . import Client

            address = end if isinstance(end, str) else rpc_server(end)
            return stack.enter_context(Client(address, **options))

        yield connect


@pytest.fixture
def rpc_async_client() -> Callable[..., AbstractAsyncContextManager[AsyncClient]]:
    """A function that joins an async client to a server in memory, in the test's event loop.

    `async with rpc_async_client(server) as client:`; further arguments are options of `AsyncClient`. A block, since
    fixtures of pytest itself do not await: so it works alike with pytest-asyncio, anyio and `asyncio.run`.
    """

    def connect(server: Server, **options: Any) -> AbstractAsyncContextManager[AsyncClient]:
        from .testing import memory_client

        return memory_client(server, **options)

    return connect
