"""For the tests of whoever uses rpcstream, and for our own: servers without ports, servers in threads.

* `serve_in_thread(server)`: a real server on a real port, for a sync client in the test's own thread.
* `memory_client(server)`: an AsyncClient joined to a server in memory, in the running loop: no port, no thread.
* `rpc_server`: a pytest fixture; put `pytest_plugins = ["rpcstream.testing"]` into your `conftest.py`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

from .client.aio import AsyncClient
from .limits import DEFAULT_HOST
from .process import LoopName, loop_factory
from .server import Server
from .transports.memory import join
from .transports.stream import LineStream

__all__ = ["memory_client", "rpc_server", "serve_in_thread"]


@contextmanager
def serve_in_thread(
    server: Server,
    *,
    host: str = DEFAULT_HOST,
    port: int = 0,
    unix: str | os.PathLike[str] | None = None,
    loop: LoopName = "auto",
) -> Iterator[str]:
    """Run a server in a thread of its own while the block runs; gives the address. Drains when the block is left.

    Raises whatever kept the server from starting.
    """
    thread = _ServerThread(server, loop, {"host": host, "port": port, "unix": unix})
    thread.start()
    thread.ready.wait()
    try:
        if thread.error is None:
            yield thread.address
    finally:
        thread.stop()
        thread.join()
    if thread.error is not None:
        raise thread.error


class _ServerThread(threading.Thread):
    def __init__(self, server: Server, loop: LoopName, where: dict[str, Any]) -> None:
        super().__init__(name="rpcstream-server", daemon=True)
        self.ready = threading.Event()
        self.address = ""
        self.error: BaseException | None = None
        self._server = server
        self._loop_name: LoopName = loop
        self._where = where
        self._ask_to_stop: Callable[[], object] = lambda: None

    def run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory(self._loop_name)) as runner:
                runner.run(self._serve())
        except BaseException as error:
            self.error = error
        finally:
            self.ready.set()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        self._ask_to_stop = lambda: loop.call_soon_threadsafe(self._server.stop)
        await self._server.serve(**self._where, on_listening=self._listening)

    def _listening(self, address: str) -> None:
        self.address = address
        self.ready.set()

    def stop(self) -> None:
        try:
            self._ask_to_stop()
        except RuntimeError:  # the server stopped by itself, its loop is closed
            pass


@asynccontextmanager
async def memory_client(server: Server, **options: Any) -> AsyncIterator[AsyncClient]:
    """A client joined to a server in memory; both live while the block runs, lifespan included.

    Args:
        options: for the `AsyncClient`.
    """
    async with server.in_memory() as accept:

        async def connect(make_stream: Callable[[], LineStream]) -> LineStream:
            stream = make_stream()
            join(stream, accept())
            return stream

        async with AsyncClient("memory", connect=connect, **options) as client:
            yield client


try:
    import pytest
except ImportError:
    pass
else:

    @pytest.fixture
    def rpc_server() -> Iterator[Callable[[Server], str]]:
        """Serve a server in a thread until the test ends: `address = rpc_server(server)`."""
        with ExitStack() as stack:
            yield lambda server: stack.enter_context(serve_in_thread(server))
