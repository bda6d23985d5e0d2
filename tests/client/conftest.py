"""Fixtures of the client tests: a real server, scripted servers, and both clients with the same blocking methods."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rpcstream import AsyncClient, Client, Limits
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer, notification, reply
from ..kit.clients import BlockingAsyncClient, BlockingClient
from ..kit.scripted import Script, ScriptedConnection, ScriptedServer

Scripted = Callable[[Callable[[Any], None]], str]
MakeClient = Callable[..., Any]


@pytest.fixture
def scripted() -> Iterator[Scripted]:
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
def server() -> UsualServer:
    return UsualServer(limits=Limits(max_batch=20), drain_timeout=0.2)


@pytest.fixture(scope="module")
def served(server: UsualServer) -> Iterator[str]:
    """The address of a real server with the usual methods."""
    with serve_in_thread(server) as address:
        yield address


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


class AwaitedClient:
    """A sync client with the methods of the async one: each call is made in a thread."""

    def __init__(self, address: str, **options: Any) -> None:
        self.client = Client(address, **options)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.client(*args, **options)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.client, name)
        return functools.partial(asyncio.to_thread, found) if callable(found) else found

    async def __aenter__(self) -> AwaitedClient:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await asyncio.to_thread(self.client.close)


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`async with face(address, **options) as client`: either client, with awaited methods."""
    return AwaitedClient if request.param == "sync" else AsyncClient


@pytest.fixture
def free_address() -> Iterator[str]:
    """A reserved address at which nothing listens; a test may. (Linux lets two sockets bind, and one listen.)"""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{sock.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a socket that accepts connections, as the system does for it, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


class Connections:
    """A script for each connection, the last one for all that come later; counts the connections."""

    def __init__(self, *scripts: Callable[[Any], object]) -> None:
        self._scripts = scripts
        self._lock = threading.Lock()
        self.count = 0

    def __call__(self, connection: ScriptedConnection) -> None:
        with self._lock:
            self.count += 1
            script = self._scripts[min(self.count, len(self._scripts)) - 1]
        script(connection)


def answering(result: Any) -> Callable[[ScriptedConnection], None]:
    """A script that answers each call and each part of a batch with this, or what a function makes of the call."""

    def answer(call: Any) -> Any:
        return reply(call["id"], result(call) if callable(result) else result)

    def script(connection: ScriptedConnection) -> None:
        while (message := connection.read()) is not None:
            if isinstance(message, list):
                connection.say([answer(each) for each in message])
            elif "id" in message:
                connection.say(answer(message))

    return script


#: Answers each call with the first of its params.
echoing = answering(lambda call: call["params"][0] if call.get("params") else None)


def refusal(id: Any, code: int = -32601, message: str = "Method not found", **members: Any) -> dict[str, Any]:
    """An error reply."""
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message, **members}}


def item(id: Any, value: Any) -> dict[str, Any]:
    return notification("$/item", id=id, value=value)


class Traced:
    """What a client has sent and received, for `trace=`."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []

    def __call__(self, direction: str, message: bytes) -> None:
        self.messages.append((direction, bytes(message)))

    @property
    def sent(self) -> list[bytes]:
        return [message for direction, message in self.messages if direction == "send"]

    def asked(self, method: str) -> int:
        """How many messages with this method were sent."""
        return sum(f'"{method}"'.encode() in message for message in self.sent)

    def frames(self, direction: str) -> int:
        return sum(way == direction and b" + payloads of " in message for way, message in self.messages)


def in_child(work: Callable[[], object]) -> int:
    """The exit status of a forked process in which the work ran: 0 if it did not raise."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
