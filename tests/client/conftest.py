"""Fixtures of the client tests: a real server, scripted servers, and both clients with the same blocking methods."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rpcstream import Limits, RpcError, Server
from rpcstream.testing import serve_in_thread

from ..kit.clients import BlockingAsyncClient, BlockingClient
from ..kit.scripted import Script, ScriptedServer


@pytest.fixture
def scripted() -> Iterator[Callable[[Script], str]]:
    """`address = scripted(script)`: a server that does with each connection what the script says."""
    servers: list[ScriptedServer] = []

    def start(script: Script) -> str:
        servers.append(ScriptedServer(script))
        return servers[-1].address

    yield start
    errors = []
    for server in servers:
        server.close()
        errors += server.errors
    if errors:
        raise errors[0]


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The address of a real server with a few methods."""
    with serve_in_thread(make_server()) as address:
        yield address


def make_server() -> Server:
    server = Server(limits=Limits(max_batch=20), drain_timeout=0.2)
    noted: list[Any] = []

    @server
    def sum(a: int, b: int) -> int:
        return a + b

    @server(name="vision.edges.count")
    def count(image: str = "none") -> str:
        return f"edges of {image}"

    @server
    def echo(value: Any) -> Any:
        return value

    @server
    def repeat(text: str, times: int) -> str:
        return text * times

    @server
    async def echo_after(value: Any, seconds: float) -> Any:
        await asyncio.sleep(seconds)
        return value

    @server
    async def never() -> None:
        await asyncio.Event().wait()

    @server
    def fail(code: int, message: str, data: Any = None) -> None:
        raise RpcError(code, message, data)

    @server
    def note(value: Any) -> None:
        noted.append(value)

    @server
    def noted_so_far() -> list[Any]:
        return noted

    @server
    def options(timeout: float, returns: str) -> list[Any]:
        return [timeout, returns]

    return server


MakeClient = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def make_client(request: pytest.FixtureRequest) -> Iterator[MakeClient]:
    """`client = make_client(address, **options)`: the sync or the async client; closed with the test."""
    made: list[Any] = []

    def make(address: str, **options: Any) -> Any:
        made.append((BlockingClient if request.param == "sync" else BlockingAsyncClient)(address, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def free_address() -> Iterator[str]:
    """A reserved address at which nothing listens; a test may. (Linux lets two sockets bind, and one listen.)"""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{sock.getsockname()[1]}"
