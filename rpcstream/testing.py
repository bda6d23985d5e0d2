"""Helpers for tests of programs that use rpcstream: servers in memory or a thread, lost connections, a fake clock.

* `serve_in_thread(server)`: a real server on a real port, for a sync client in the test's own thread.
* `memory_client(server)`: an AsyncClient joined to a server in memory, in the running loop: no port, no thread.
* `connections_of(server)`: the open connections of a server, to look at, to drop, or to stop reading from.
* `drop_connections(end)`: drop all connections of a server or an AsyncClient, as when the network fails.
* `is_idle(server)`, `wait_until_idle(server)`: no call is running or waiting.
* `FakeTimeLoop`: an event loop in which hours pass at once, for tests of time-outs, deadlines and pauses.

Fixtures (`rpc_server`, `rpc_client`, `rpc_async_client`) are in `rpcstream.pytest_plugin`; pytest finds them by itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import selectors
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar, Unpack

from .client.aio import AsyncClient
from .client.options import ClientOptions
from .limits import DEFAULT_HOST
from .peer import deadline
from .process import LoopName, loop_factory
from .server import Server
from .transports.connection import SocketConnection
from .transports.memory import join
from .transports.stream import LineStream

__all__ = [
    "FakeTimeLoop",
    "ServerConnection",
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
async def memory_client(server: Server, **options: Unpack[ClientOptions]) -> AsyncIterator[AsyncClient]:
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


class ServerConnection:
    """A server's end of one open connection. Its methods may be called from any thread.

    Attributes:
        address: of the client, as text.
    """

    def __init__(self, connection: SocketConnection, loop: asyncio.AbstractEventLoop) -> None:
        self.address = connection.address
        self._connection = connection
        self._loop = loop

    def __repr__(self) -> str:
        return f"<connection from {self.address}>"

    @property
    def is_open(self) -> bool:
        """Whether the connection has not ended."""
        return _in_loop(self._loop, lambda: self._connection.is_open)

    @property
    def unread_size(self) -> int:
        """Bytes that the server has written and the client has not read, as far as the server still holds them."""
        return _in_loop(self._loop, lambda: self._connection.unread_size)

    def pause_reading(self) -> None:
        """Let the server read nothing from this connection, as if its program were blocked."""
        _in_loop(self._loop, self._connection.pause)

    def resume_reading(self) -> None:
        """Let the server read again."""
        _in_loop(self._loop, self._connection.resume)

    def drop(self, reason: str = "dropped by a test") -> None:
        """Close the connection at once, as when the network fails; the client is told nothing."""
        _in_loop(self._loop, lambda: self._connection.abort(reason))


def connections_of(server: Server) -> list[ServerConnection]:
    """The open connections of a running server, the oldest first; those whose protocol is known.

    May be called from any thread.

    Raises:
        RuntimeError: the server is not running.
    """
    running = _running(server)
    connections = _in_loop(running.loop, lambda: sorted(running.listener.connections, key=lambda each: each.opened))
    return [ServerConnection(each, running.loop) for each in connections if isinstance(each, SocketConnection)]


def drop_connections(end: Server | AsyncClient, reason: str = "dropped by a test") -> int:
    """Close all connections of a server or of an AsyncClient at once, as when the network fails.

    Args:
        end: a running server, in any thread; or a client, in whose event loop this is called.
        reason: what the end that is dropped gives as the reason of the loss.

    Returns:
        How many there were.
    """
    if isinstance(end, Server):
        dropped = connections_of(end)
        for connection in dropped:
            connection.drop(reason)
        return len(dropped)
    connections = end._pool.open_connections
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
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

    def call() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    loop.call_soon_threadsafe(call)
    return outcome.result(PATIENCE)


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
        self._clock = _ClockSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._clock.now

    @property
    def autojump(self) -> bool:
        return self._clock.autojump

    @autojump.setter
    def autojump(self, value: bool) -> None:
        self._clock.autojump = value

    def jump(self, seconds: float) -> None:
        """Let the time pass at once; what is due by then happens with the next turns of the loop."""
        if seconds < 0:
            raise ValueError(f"time does not go back, got {seconds!r} s")
        self._clock.now += seconds

    def run_forever(self) -> None:
        before, deadline.clock = deadline.clock, self.time
        try:
            super().run_forever()
        finally:
            deadline.clock = before


class _ClockSelector(selectors.DefaultSelector):
    """The loop asks its selector to wait until the next timer is due: here the clock is moved on instead."""

    now = 0.0
    autojump = True

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0 if self.autojump else None)
        if not ready and self.autojump:
            self.now += timeout
        return ready
