"""Fixtures of the client tests: a real server, scripted servers, and both clients with the same blocking methods."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, Client, Limits, RpcError, Server
from rpcstream.process import loop_factory
from rpcstream.testing import serve_in_thread


class ScriptedConnection:
    """A scripted server's end of one connection, which sends and receives single lines."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._buffer = bytearray()
        #: The ids of the calls that the client gave up.
        self.cancelled: list[Any] = []

    def read(self) -> Any:
        """The next message; None when the client has closed. Cancels are noted, not given."""
        while (line := self.read_line()) is not None:
            message = orjson.loads(line)
            if not isinstance(message, dict) or message.get("method") != "$/cancelRequest":
                return message
            self.cancelled.append(message["params"]["id"])
        return None

    def read_line(self) -> bytes | None:
        while (end := self._buffer.find(b"\n")) < 0:
            data = self.socket.recv(1 << 20)
            if not data:
                return None
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def say(self, *messages: Any) -> None:
        self.raw(b"".join(orjson.dumps(message) + b"\n" for message in messages))

    def answer(self, request: dict[str, Any], result: Any) -> None:
        self.say({"jsonrpc": "2.0", "id": request["id"], "result": result})


Script = Callable[[ScriptedConnection], None]


class ScriptedServer:
    """Runs the script once for each connection, in a thread of its own, then closes the connection."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._lines: list[socket.socket] = []
        self.errors: list[BaseException] = []
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._threads.append(threading.Thread(target=self._accept))
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._lines.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            self._script(ScriptedConnection(sock))
        except ConnectionError:
            pass  # the client has gone
        except BaseException as error:
            self.errors.append(error)
        finally:
            sock.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for sock in self._lines:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


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


class BlockingAsyncClient:
    """An AsyncClient with blocking methods, so that one test can run with both clients."""

    def __init__(self, address: str, **options: Any) -> None:
        self.runner = asyncio.Runner(loop_factory=loop_factory("auto"))
        self.client = AsyncClient(address, **options)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self.runner.run(self.client.call(*args, **kwargs))

    def notify(self, *args: Any, **kwargs: Any) -> None:
        self.runner.run(self._awaited(self.client.notify(*args, **kwargs)))

    def __call__(self, message: dict[str, Any], **kwargs: Any) -> Any:
        return self.runner.run(self.client(message, **kwargs))

    def batch(self, *calls: tuple[Any, ...], **options: Any) -> list[Any]:
        return self.runner.run(self._batch(calls, options))

    def together(self, *calls: tuple[Any, ...], **options: Any) -> list[Any]:
        """Outcomes (values or exceptions) of calls made at the same time."""
        return self.runner.run(self._together(calls, options))

    @property
    def replies_dropped(self) -> int:
        return self.client.replies_dropped

    def close(self) -> None:
        self.runner.run(self.client.close())
        self.runner.close()

    async def _awaited(self, awaitable: Any) -> Any:
        return await awaitable

    async def _batch(self, calls: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
        async with self.client.batch(**options) as batch:
            return [batch.call(*call) for call in calls]

    async def _together(self, calls: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
        return await asyncio.gather(*(self.client.call(*call, **options) for call in calls), return_exceptions=True)


class BlockingClient:
    """A Client with the same methods."""

    def __init__(self, address: str, **options: Any) -> None:
        self.client = Client(address, **options)
        self.call = self.client.call
        self.notify = self.client.notify
        self.close = self.client.close

    def __call__(self, message: dict[str, Any], **kwargs: Any) -> Any:
        return self.client(message, **kwargs)

    def batch(self, *calls: tuple[Any, ...], **options: Any) -> list[Any]:
        with self.client.batch(**options) as batch:
            return [batch.call(*call) for call in calls]

    def together(self, *calls: tuple[Any, ...], **options: Any) -> list[Any]:
        futures = [self.client.submit(*call, **options) for call in calls]
        return [future.exception() or future.result() for future in futures]

    @property
    def replies_dropped(self) -> int:
        return self.client.replies_dropped


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
