"""Servers for the tests of the load generator, and a short run against them; made-up entries of tables."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from suite import load
from suite.load import Load, run_load
from suite.results import Entry

from .conftest import BENCHMARKS

NEEDS_COMPILER = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the load generator needs Linux's epoll"),
    pytest.mark.skipif(load.find_compiler() is None, reason="no C compiler `cc`"),
]

REQUEST = b'{"id":@@@@@@@,"a":@@@@@@@,"b":1}\n'
REPLY = b'{"id":@@@@@@@,"sum":#######}\n'

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handle: Handler) -> AsyncIterator[int]:
    """The port of a server that handles each connection so, and is not disturbed by those that are cut."""

    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle_connection, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def run(port: int, request: bytes = REQUEST, reply: bytes = REPLY, **options: Any) -> Load:
    """A short run, while the servers of this thread go on."""
    return await asyncio.to_thread(run_load, port, request, reply, **{"seconds": 0.1, "warmup": 0.05} | options)


def right_reply(line: bytes) -> bytes:
    message = json.loads(line)
    return json.dumps({"id": message["id"], "sum": message["a"] + message["b"]}, separators=(",", ":")).encode() + b"\n"


def lines(answer: Callable[[bytes], bytes] = right_reply) -> Handler:
    """Answers each line, in order."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(answer(line))

    return handle


BODY = REQUEST.rstrip()
POST = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


def response(body: bytes, status: str = "200 OK", fields: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-LENGTH:  {len(body)}\r\n{fields}\r\n".encode() + body


class Http:
    """Answers requests over HTTP with what a function makes of their bodies, and counts connections and requests."""

    def __init__(self, answer: Callable[[bytes], bytes], *, closes: bool = False) -> None:
        self.answer = answer
        self.closes = closes
        self.connections = self.requests = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"POST / ")
            body = await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split()[0]))
            self.requests += 1
            writer.write(self.answer(body))
            if self.closes:
                return


def right_response(body: bytes) -> bytes:
    return response(right_reply(body).rstrip())


@asynccontextmanager
async def serving_websocket(answer: Callable[[str], str], *, ping: bool = False) -> AsyncIterator[int]:
    package = pytest.importorskip("websockets.asyncio.server", reason="websockets is not installed")

    async def handle(connection: Any) -> None:
        assert connection.request.path == "/ws"
        async for message in connection:
            if ping:
                await (await connection.ping())
            await connection.send(answer(message))

    async with package.serve(handle, "127.0.0.1", 0, max_size=None) as server:
        yield server.sockets[0].getsockname()[1]


@contextmanager
def serving_grpc(answer: Callable[[bytes], bytes]) -> Iterator[int]:
    """`/test/Answer`, with messages as bytes."""
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(4), options=unlimited)
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: answer(request))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"Answer": handler})])
    port: int = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


# -- made-up entries of tables, and scripts ----------------------------------------------------------------------------

LATENCY = {"p50": 80.0, "p90": 100.0, "p99": 120.0, "p999": 150.0, "max": 200.0}


def load_of(rate: float) -> Load:
    said = {"calls": 10, "seconds": 1.0, "rate": rate, "latency_us": LATENCY, "wrong": 0, "cpu": 0.5}
    return Load.read(json.dumps(said))


def entry(name: str, *figures: float, **more: Any) -> Entry:
    return Entry(name=name, figures=figures, loads=tuple(map(load_of, figures)), **more)


def script(path: str) -> Any:
    """A script of the benchmarks as a module."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{Path(path).stem}", BENCHMARKS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
