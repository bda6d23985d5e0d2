"""Helpers for tests of programs that use rpcstream: servers in memory or a thread, lost connections, a fake clock.

* `serve_in_thread(server)`: a real server on a real port, for a sync client in the test's own thread.
* `memory_client(server)`: an AsyncClient joined to a server in memory, in the running loop: no port, no thread.
* `drop_connections(end)`: drop all connections of a server or an AsyncClient, as when the network fails.
* `is_idle(server)`, `wait_until_idle(server)`: no call is running or waiting.
* `FakeTimeLoop`: an event loop in which hours pass at once, for tests of time-outs, deadlines and pauses.

Fixtures (`rpc_server`, `rpc_client`, `rpc_async_client`) are in `rpcstream.pytest_plugin`; pytest finds them by itself.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar, Unpack

from .client.aio import AsyncClient
from .client.options import ClientOptions
from .limits import DEFAULT_HOST
from .peer import deadline
from .server import Server
from .server.program import LoopName, loop_factory
from .transports.connection import Connection
from .transports.open_connections import Arrival
from .transports.stream import LineStream

__all__ = [
    "FakeTimeLoop",
    "connections_of",
    "drop_connections",
    "is_idle",
    "memory_client",
    "serve_in_thread",
    "wait_until_idle",
]

#: Seconds that another thread's event loop has to do what a test asks of it.
PATIENCE = 20.0

T = TypeVar("T")


@contextmanager
def serve_in_thread(
    server: Server,
    *,
    host: str = DEFAULT_HOST,
    port: int = 0,
    unix: str | os.PathLike[str] | None = None,
    loop: LoopName = "auto",
) -> Iterator[str]:
    """Run a server in its own thread while the block runs. Gives the address. The end of the block drains the server.

    Raises the error that kept the server from starting.
    """
    listening: Future[str] = Future()

    async def serve() -> None:
        async with server.listening(host=host, port=port, unix=unix) as address:
            listening.set_result(address)
            await _running(server).stopping.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=loop_factory(loop)) as runner:
            runner.run(serve())

    with ThreadPoolExecutor(1, "rpcstream-server") as thread:
        serving = thread.submit(run)
        wait(list[Future[Any]]((listening, serving)), return_when=FIRST_COMPLETED)
        try:
            if listening.done():
                yield listening.result()
        finally:
            if (running := server._running) is not None:
                with suppress(RuntimeError):  # the server stops by itself, and its loop is closed
                    running.loop.call_soon_threadsafe(server.stop)
            serving.result()


@asynccontextmanager
async def memory_client(server: Server, **options: Unpack[ClientOptions]) -> AsyncIterator[AsyncClient]:
    """A client connected to a server in memory. The block runs both, and the server's lifespan.

    Args:
        options: for the `AsyncClient`.
    """
    async with server.in_memory() as accept:

        async def memory(make_stream: Callable[[], LineStream]) -> LineStream:
            loop, (near, far) = asyncio.get_running_loop(), socket.socketpair()
            await loop.connect_accepted_socket(accept, far)
            return (await loop.create_connection(make_stream, sock=near))[1]

        async with AsyncClient(memory, **options) as client:
            yield client


def connections_of(server: Server) -> list[Any]:
    """The open connections of a running server, oldest first, as soon as their protocol is known.

    Each connection has `address`, `is_open` and `unread_size` (bytes that the client has not read yet). In the server's
    event loop, you can call `pause()` and `resume()` to stop and continue reading, and `abort(reason)` to drop the
    connection.
    """
    found = [each for each in _running(server).listener.connections.all() if isinstance(each, Connection)]
    return sorted((each for each in found if not isinstance(each, Arrival)), key=lambda each: each.opened)


def drop_connections(end: Server | AsyncClient, reason: str = "dropped by a test") -> int:
    """Close all connections of a server or of an AsyncClient at once, like a failing network.

    Args:
        end: a running server, in any thread; or a client, in its event loop.
        reason: the reason that this end gives for the loss.

    Returns:
        The number of connections.
    """
    if isinstance(end, AsyncClient):
        return _drop(end._pool.open_connections, reason)
    running = _running(end)
    return _in_loop(running.loop, lambda: _drop(running.listener.connections.all(), reason))


def _drop(connections: Collection[Any], reason: str) -> int:
    for each in connections:
        each.abort(reason)
    return len(connections)


def is_idle(server: Server) -> bool:
    """Whether no call is running or waiting at a running server, and no reply is still to be written.

    May be called from any thread.
    """
    running = _running(server)
    return not _in_loop(running.loop, lambda: any(session.busy for session in running.listener.sessions))


async def wait_until_idle(server: Server, *, timeout: float = PATIENCE) -> None:
    """Wait until no call is running or waiting at a running server.

    Raises:
        TimeoutError: calls were still running or waiting after `timeout` seconds.
    """
    async with asyncio.timeout(timeout):
        while not is_idle(server):
            await asyncio.sleep(0.002)


def _running(server: Server) -> Any:
    if server._running is None:
        raise RuntimeError("this server is not running")
    return server._running


def _in_loop(loop: asyncio.AbstractEventLoop, function: Callable[[], T]) -> T:
    """Call a function in the thread of an event loop, and return its result."""
    try:
        if asyncio.get_running_loop() is loop:
            return function()
    except RuntimeError:  # no loop runs in this thread
        pass

    async def call() -> T:
        return function()

    return asyncio.run_coroutine_threadsafe(call(), loop).result(PATIENCE)


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time stands still while anything is ready, and then jumps to the next timer.

    So an hour passes at once, everything that is timed comes in its order, and no test fails because the machine was
    busy. The deadlines of calls follow this time as well, also in threads:

        with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
            runner.run(test())  # everything in memory: `memory_client`

    What happens outside of the loop, in threads or behind sockets, takes no time here, and would be overtaken by the
    next timer. For tests with such parts set `autojump` to False: time then moves with `jump` alone.

    Attributes:
        autojump: the time jumps by itself when nothing is ready.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self.autojump = True
        super().__init__(_ClockSelector(self))

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Move the clock forward. Timers that are due then run in the next turns of the loop."""
        if seconds < 0:
            raise ValueError(f"time does not go back, got {seconds!r} s")
        self._now += seconds

    def run_forever(self) -> None:
        before, deadline.clock = deadline.clock, self.time
        try:
            super().run_forever()
        finally:
            deadline.clock = before


class _ClockSelector(selectors.DefaultSelector):
    """The loop asks its selector to wait until the next timer is due: here the clock is moved on instead."""

    def __init__(self, loop: FakeTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0 if self._loop.autojump else None)
        if not ready and self._loop.autojump:
            self._loop.jump(timeout)
        return ready
