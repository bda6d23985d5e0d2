"""The transports that tests of conversations run over.

A transport is one entry in `TRANSPORTS`: a class with `serving` (a real server) and `listening` (a peer that follows a
script of the test); both give an `Endpoint` that clients and raw peers connect to.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from rpcstream import AsyncClient, Context, Server
from rpcstream.peer.intake import Phase
from rpcstream.peer.session import Session

from .asgi_servers import mounted
from .certificates import authority, client_side, server_tls
from .memory import join
from .nats_server import NatsServer, skip_without_program
from .peers import RawPeer
from .waiting import until
from .websocket_adapter import WebSocketAdapter, connect_over_websocket

Connect = Callable[[Callable[[], Any]], Awaitable[Any]]
Script = Callable[[RawPeer], Awaitable[object]]


class Endpoint:
    """An address or connect function of a server; all that connects through it is closed with the test.

    Args:
        connect: joins the protocol that a function makes to the server, and returns it.
        address: for clients; None if they have to use `connect`.
        options: for clients.
    """

    def __init__(self, connect: Connect, address: str | None, **options: Any) -> None:
        self._connect = connect
        self._address = address
        self._options = options
        self._clients: list[AsyncClient] = []
        self._raws: list[RawPeer] = []

    def client(self, **options: Any) -> AsyncClient:
        if self._address is None:
            client = AsyncClient(self._connect, **options)
        else:
            client = AsyncClient(self._address, **self._options, **options)
        self._clients.append(client)
        return client

    async def join(self, make: Callable[[], Any]) -> Any:
        """Join the protocol that a function makes to the server."""
        return await self._connect(make)

    async def raw(self) -> RawPeer:
        """A raw peer, once the server has accepted it."""
        self._raws.append(raw := await self._connect(RawPeer))
        assert await raw.result("rpc.ping", id="here") == "pong"
        return raw

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for raw in self._raws:
            raw.close()


class Transport(Protocol):
    """How a client reaches a server."""

    def serving(self, server: Server, folder: Path | None) -> AbstractAsyncContextManager[Endpoint]:
        """Serve while the block runs. `folder` is an empty one, for Unix sockets."""

    def listening(self, accept: Callable[[], RawPeer], folder: Path | None) -> AbstractAsyncContextManager[Endpoint]:
        """Accept connections with what the function makes."""


@asynccontextmanager
async def _listener(accept: Callable[[], Any], *, tls: bool) -> AsyncIterator[str]:
    """Accept connections with what the function makes; gives "host:port"."""
    context = server_tls().context() if tls else None
    listener = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        listener.close()


class Tcp:
    def __init__(self, *, tls: bool = False) -> None:
        self._tls = tls

    @asynccontextmanager
    async def serving(self, server: Server, folder: Path | None) -> AsyncIterator[Endpoint]:
        if self._tls:
            server.guard(tls=server_tls())
        async with server.listening(port=0) as address:
            yield self._endpoint(address.removeprefix("tls://"))

    @asynccontextmanager
    async def listening(self, accept: Callable[[], RawPeer], folder: Path | None) -> AsyncIterator[Endpoint]:
        async with _listener(accept, tls=self._tls) as address:
            yield self._endpoint(address)

    def _endpoint(self, address: str) -> Endpoint:
        host, _, port = address.rpartition(":")

        async def connect(make: Callable[[], Any]) -> Any:
            tls = client_side() if self._tls else None
            return (await asyncio.get_running_loop().create_connection(make, host, int(port), ssl=tls))[1]

        return Endpoint(connect, f"tls://{address}", tls=authority()) if self._tls else Endpoint(connect, address)


class WebSocket(Tcp):
    """Raw peers speak through a library that is not ours here."""

    @asynccontextmanager
    async def listening(self, accept: Callable[[], RawPeer], folder: Path | None) -> AsyncIterator[Endpoint]:
        async with _listener(lambda: WebSocketAdapter(accept()), tls=self._tls) as address:
            yield self._endpoint(address)

    def _endpoint(self, address: str) -> Endpoint:
        host, _, port = address.rpartition(":")
        url = f"{'wss' if self._tls else 'ws'}://{address}/"

        async def connect(make: Callable[[], Any]) -> Any:
            tls = client_side() if self._tls else None
            return await connect_over_websocket(make, url, host=host, port=int(port), ssl=tls)

        return Endpoint(connect, url, **({"tls": authority()} if self._tls else {}))


class Http:
    """Calls in one direction: tests that need a raw peer, or calls back, are skipped."""

    def __init__(self, tls: bool) -> None:
        self._tls = tls

    @asynccontextmanager
    async def serving(self, server: Server, folder: Path | None) -> AsyncIterator[Endpoint]:
        if self._tls:
            server.guard(tls=server_tls())
        async with server.listening(port=0) as address:
            options = {"tls": authority()} if self._tls else {}
            yield Endpoint(self._connect, f"{'https' if self._tls else 'http'}://{address}/", **options)

    def listening(self, accept: Callable[[], RawPeer], folder: Path | None) -> AbstractAsyncContextManager[Endpoint]:
        pytest.skip("there is no raw peer for HTTP here")

    async def _connect(self, make: Callable[[], Any]) -> Any:
        pytest.skip("there is no raw peer for HTTP here")


class Unix:
    @asynccontextmanager
    async def serving(self, server: Server, folder: Path | None) -> AsyncIterator[Endpoint]:
        assert folder is not None
        async with server.listening(unix=folder / "socket") as address:
            yield self._endpoint(address)

    @asynccontextmanager
    async def listening(self, accept: Callable[[], RawPeer], folder: Path | None) -> AsyncIterator[Endpoint]:
        assert folder is not None
        path = str(folder / "socket")
        listener = await asyncio.get_running_loop().create_unix_server(accept, path)
        try:
            yield self._endpoint(f"unix://{path}")
        finally:
            listener.close()

    def _endpoint(self, address: str) -> Endpoint:
        async def connect(make: Callable[[], Any]) -> Any:
            path = address.removeprefix("unix://")
            return (await asyncio.get_running_loop().create_unix_connection(make, path))[1]

        return Endpoint(connect, address)


class Memory:
    @asynccontextmanager
    async def serving(self, server: Server, folder: Path | None) -> AsyncIterator[Endpoint]:
        async with server.in_memory() as accept:
            yield self._endpoint(accept)

    @asynccontextmanager
    async def listening(self, accept: Callable[[], RawPeer], folder: Path | None) -> AsyncIterator[Endpoint]:
        yield self._endpoint(accept)

    def _endpoint(self, accept: Callable[[], asyncio.Protocol]) -> Endpoint:
        async def connect(make: Callable[[], Any]) -> Any:
            protocol = make()
            join(protocol, accept())
            return protocol

        return Endpoint(connect, None)


class Asgi:
    """Mounted in a FastAPI application under uvicorn; by HTTP there are no raw peers."""

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme

    @asynccontextmanager
    async def serving(self, server: Server, folder: Path | None) -> AsyncIterator[Endpoint]:
        async with mounted(server) as address:
            url = f"{self._scheme}://{address}/rpc/"
            host, _, port = address.rpartition(":")

            async def connect(make: Callable[[], Any]) -> Any:
                if self._scheme == "http":
                    pytest.skip("there is no raw peer for HTTP here")
                return await connect_over_websocket(make, url, host=host, port=int(port))

            yield Endpoint(connect, url)

    def listening(self, accept: Callable[[], RawPeer], folder: Path | None) -> AbstractAsyncContextManager[Endpoint]:
        pytest.skip("only a server is mounted")


class Nats:
    """A service on a NATS server, which all tests of a process share; raw peers speak by nats-py."""

    @asynccontextmanager
    async def serving(self, server: Server, folder: Path | None) -> AsyncIterator[Endpoint]:
        from .nats_adapter import connect_caller

        url, service = shared_nats().url, f"test-{secrets.token_hex(4)}"
        server.join_nats(url, service=service, only=True)
        async with server.listening() as address:
            yield Endpoint(lambda make: connect_caller(make, url, service), address)

    @asynccontextmanager
    async def listening(self, accept: Callable[[], RawPeer], folder: Path | None) -> AsyncIterator[Endpoint]:
        from .nats_adapter import RawService

        url = shared_nats().url
        raw = RawService(accept)
        await raw.start(url)
        try:
            yield Endpoint(_no_connect, f"{url}/{raw.service}")
        finally:
            await raw.stop()


async def _no_connect(make: Callable[[], Any]) -> Any:
    raise AssertionError("two raw peers do not speak by NATS")


@functools.cache
def shared_nats() -> NatsServer:
    """The NATS server of this process of tests; it ends with it."""
    pytest.importorskip("nats")
    skip_without_program()
    return NatsServer(max_payload=2 * 1024 * 1024)  # long messages of some tests are shorter, and some are longer


#: Every transport that there is, by the name that tests have for it.
TRANSPORTS: dict[str, Transport] = {
    "tcp": Tcp(),
    "tls": Tcp(tls=True),
    "unix": Unix(),
    "ws": WebSocket(),
    "wss": WebSocket(tls=True),
    "http": Http(tls=False),
    "https": Http(tls=True),
    "memory": Memory(),
    "asgi": Asgi("http"),
    "asgi-ws": Asgi("ws"),
    "nats": Nats(),
}


def peer_keeping_server(**options: Any) -> tuple[Server, list[Any]]:
    """A server whose `hello` and `hello_in_thread` keep the peers that call them; and the list of these."""
    server = Server(**options)
    kept: list[Any] = []

    @server
    async def hello(ctx: Context) -> None:
        kept.append(ctx.peer)

    @server(offload="thread")
    def hello_in_thread(ctx: Context) -> None:
        kept.append(ctx.peer)

    return server, kept


def live_sessions() -> list[Session]:
    """Every session that exists, of clients and servers, but for those that were frozen before a test."""
    return [each for each in gc.get_objects() if type(each) is Session]


def cut_connections() -> None:
    """Close the connections of all servers of the test at the servers' end, whatever the transport."""
    for session in live_sessions():
        if session.side == "server" and session.channel is not None:
            session.abort("cut")


def leftovers(session: Session) -> dict[str, Any]:
    """The calls and streams that a session still holds, by kind."""
    held = {
        "running": session.running.handlers,
        "members": session.running.batch_members,
        "load": session.ledger.calls,
        "pending": session.pending.items(),
        "out": session.streams.senders,
        "coming": session.streams.receivers,
        "backlog": session.intake.queue,
        "busy": session.busy,
    }
    return {name: value for name, value in held.items() if value}


class Network:
    """Connects clients and raw peers to servers over one transport.

    When a block is left, everything that was begun in it must have ended before a connection is closed.
    """

    def __init__(self, transport: Transport, folder: Path | None) -> None:
        self.transport = transport
        self.folder = folder

    @property
    def sessions(self) -> list[Session]:
        """All sessions of the test that still exist, in the order in which they were made."""
        return live_sessions()

    @property
    def served(self) -> list[Session]:
        """The sessions of servers, in the order in which they were made."""
        return [session for session in self.sessions if session.side == "server"]

    @asynccontextmanager
    async def serve(self, server: Server) -> AsyncIterator[Endpoint]:
        """Serve, and give the endpoint that clients connect to."""
        async with self.transport.serving(server, self.folder) as endpoint:
            try:
                yield endpoint
                await self.settled()
            finally:
                await endpoint.close()

    @asynccontextmanager
    async def client(self, server: Server, **options: Any) -> AsyncIterator[AsyncClient]:
        """One client of a server."""
        async with self.serve(server) as endpoint:
            yield endpoint.client(**options)

    @asynccontextmanager
    async def raw(self, server: Server) -> AsyncIterator[RawPeer]:
        """A raw peer that is connected to a server."""
        async with self.serve(server) as endpoint:
            yield await endpoint.raw()

    @asynccontextmanager
    async def scripted(self, script: Script) -> AsyncIterator[Endpoint]:
        """Run the script on each connection in place of a server, and leave the connection open afterwards."""
        tasks: list[asyncio.Task[object]] = []
        raws: list[RawPeer] = []

        def opened(raw: RawPeer) -> None:
            raws.append(raw)
            tasks.append(asyncio.ensure_future(script(raw)))
            tasks[-1].add_done_callback(lambda task: raw.close() if not task.cancelled() and task.exception() else None)

        async with self.transport.listening(lambda: RawPeer(opened), self.folder) as endpoint:
            try:
                yield endpoint
                await self.settled()
            finally:
                await endpoint.close()
                for raw in raws:
                    raw.close()
                for task in tasks:
                    task.cancel()
                for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(outcome, Exception):
                        raise outcome

    async def lose(self, raw: RawPeer) -> None:
        """Abort the connection of a raw peer, and wait until a server has noticed that.

        A peer that is gone looks like one that has only half-closed: only writing to it shows the difference.
        """
        before = [session for session in self.sessions if session.channel is not None]
        raw.close()

        def noticed() -> bool:
            for session in before:
                if session.channel is not None:
                    session.channel.probe()
            return any(session.channel is None for session in before)

        await until(noticed)

    # What servers do meanwhile, which tests wait for before they go on.

    async def draining(self) -> None:
        """Wait until a session takes no more calls."""
        await self._until_any(lambda session: session.phase >= Phase.CLOSING)

    async def queued(self, count: int = 1) -> None:
        """Wait until this many messages wait in line at a session."""
        await self._until_any(lambda session: len(session.intake.queue) >= count)

    async def full(self) -> None:
        """Wait until as many messages as may wait in line at a session."""
        await self._until_any(lambda session: session.ledger.is_full(len(session.intake.queue)))

    async def paused(self) -> None:
        """Wait until nothing more is read of a session."""
        await self._until_any(lambda session: session.intake.is_paused)

    async def stalled(self) -> None:
        """Wait until a peer leaves too much unread."""
        await self._until_any(lambda session: session.write_gate.stalled)

    async def finished(self) -> None:
        """Wait until nothing runs for connections that are lost, or nothing at all where none is."""
        served = self.served

        def is_finished() -> bool:
            lost = [session for session in served if session.channel is None]
            return not any(session.running.handlers for session in lost or served)

        await until(is_finished)

    async def _until_any(self, condition: Callable[[Session], object]) -> None:
        served = self.served  # once: all objects there are have to be looked at
        await until(lambda: any(map(condition, served)))

    @property
    def open_connections(self) -> int:
        """The sessions of servers whose connection is open."""
        return sum(session.channel is not None for session in self.served)

    @property
    def unread(self) -> int:
        """Bytes that peers have left unread at servers' sessions, as far as the transport tells."""
        return sum(getattr(session.channel, "unread_size", 0) for session in self.served)

    async def settled(self) -> None:
        """Wait until no session holds anything of a call or a stream."""
        sessions = self.sessions
        try:
            await until(lambda: not any(map(leftovers, sessions)))
        except AssertionError:
            left = [(session.side, found) for session in sessions if (found := leftovers(session))]
            raise AssertionError(f"left behind: {left}") from None


class StoppableServer:
    """A server that can be stopped in the middle of a test."""

    def __init__(self, network: Network, server: Server) -> None:
        self._serving = network.transport.serving(server, network.folder)
        self._stopped: asyncio.Future[Any] | None = None

    async def __aenter__(self) -> StoppableServer:
        self.endpoint = await self._serving.__aenter__()
        return self

    def stop(self) -> None:
        self._stopped = asyncio.ensure_future(self._serving.__aexit__(None, None, None))

    async def __aexit__(self, *_: Any) -> None:
        if self._stopped is None:  # the test ended before
            self.stop()
        assert self._stopped is not None
        await self._stopped
        await self.endpoint.close()
