"""Arguments by position and by name in one call: the client asks the server once how the parameters are named."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from rpcstream import AsyncClient, Client, ConnectFailed, Context, InvalidParams, RpcError, Server
from rpcstream.hub import Hub
from rpcstream.testing import memory_client, serve_in_thread

noted: queue.SimpleQueue[Any] = queue.SimpleQueue()


def make_server() -> Server:
    server = Server()

    @server
    def segment(image: str, size: int = 1, *, parts: int = 2) -> list[Any]:
        return [image, size, parts]

    @server
    def must(first: str, second: int = 5, *, third: int) -> list[Any]:
        return [first, second, third]

    @server
    def total(*numbers: int, start: int = 0) -> int:
        return start + sum(numbers)

    @server
    def note(what: str, how: str = "?") -> None:
        noted.put([what, how])

    @server
    def power(base: int, /, exponent: int = 2) -> int:
        return base**exponent

    @server
    def items(n: int, step: int = 1) -> Iterator[int]:
        yield from range(0, n * step, step)

    @server
    async def sums(values: AsyncIterator[int], start: int = 0) -> int:
        return start + sum([value async for value in values])

    return server


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with serve_in_thread(make_server()) as address:
        yield address


class Asked:
    """A `trace` that counts how often a client asks for the methods."""

    count = 0

    def __call__(self, direction: str, message: bytes) -> None:
        self.count += direction == "send" and b"rpc.discover" in message


@pytest.mark.parametrize("scheme", ["", "http://", "ws://"])
def test_calls_of_the_sync_client(served: str, scheme: str) -> None:
    with Client(scheme + served, trace=(asked := Asked())) as client:
        assert client.segment("x", parts=4) == ["x", 1, 4]
        assert client.segment("x", 3, parts=4) == ["x", 3, 4]
        assert client.must("a", third=1) == ["a", 5, 1]
        assert client.power(3, exponent=3) == 27
        assert client.call("segment", "y", parts=1, timeout=5) == ["y", 1, 1]
        assert client.submit.segment("z", size=2).result() == ["z", 2, 2]
        client.notify.note("a", how="well")
        assert noted.get(timeout=10) == ["a", "well"]
        with client.batch() as batch:
            first, second = batch.segment("b", parts=9), batch.segment("c")
            batch.notify.note("b", how="too")
        assert (first.result(), second.result()) == (["b", 1, 9], ["c", 1, 2])
        assert noted.get(timeout=10) == ["b", "too"]
        with client.batch() as batch:
            batch.notify.note("c", how="alone")
        assert noted.get(timeout=10) == ["c", "alone"]
        assert asked.count == 1
        assert list(client.stream.items(3, step=2)) == [0, 2, 4]
        if scheme != "http://":
            assert client.sums(iter([1, 2]), start=3) == 6


@pytest.mark.parametrize("scheme", ["", "http://", "ws://"])
async def test_calls_of_the_async_client(served: str, scheme: str) -> None:
    async with AsyncClient(scheme + served, trace=(asked := Asked())) as client:
        assert await client.segment("x", parts=4) == ["x", 1, 4]
        assert await client.submit.segment("z", size=2) == ["z", 2, 2]
        await client.notify.note("a", how="well")
        assert await asyncio.to_thread(noted.get, timeout=10) == ["a", "well"]
        async with client.batch() as batch:
            first, second = batch.segment("b", parts=9), batch.segment("c")
        assert (first.result(), second.result()) == (["b", 1, 9], ["c", 1, 2])
        assert [item async for item in client.stream.items(3, step=2)] == [0, 2, 4]
        if scheme != "http://":
            assert await client.sums(iter([1, 2]), start=3) == 6
        assert asked.count == 1


async def test_whether_a_method_streams_is_asked_once(served: str) -> None:
    async with AsyncClient(served, trace=(asked := Asked())) as client:
        for _ in range(3):
            assert [item async for item in client.stream.items(0)] == []
            assert [item async for item in client.stream.segment("x")] == [["x", 1, 2]]
    assert asked.count == 1


def test_what_cannot_be_said_is_written_out(served: str) -> None:
    with Client(served) as client:
        with pytest.raises(TypeError, match=r"'image' was given twice.*: segment\(image=…, size=…, parts=…\)$"):
            client.segment("x", image="y")
        with pytest.raises(TypeError, match=r"2 of the 3 arguments by position.*segment\(image=…, size=…, pa"):
            client.segment("x", 1, 2, parts=4)
        with pytest.raises(TypeError, match=r"0 of the 2 arguments by position.*total\(start=…\)"):
            client.total(1, 2, start=4)
        with pytest.raises(TypeError, match=r"did not say how its parameters are named.*nothing\(<name>=…, b=…\)"):
            client.nothing(1, b=2)
        with pytest.raises(InvalidParams, match="wrong"):
            client.segment("x", wrong=4)


def test_a_server_that_does_not_tell_its_methods(scripted: Any, make_client: Any) -> None:
    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            assert request["method"] == "rpc.discover"
            line.say({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "not here"}})

    client = make_client(scripted(script))
    with pytest.raises(TypeError, match=r"rpc.discover was refused \(not here\);.*: segment\(<name>=…, parts=…\)$"):
        client.call("segment", "x", parts=4)


def test_methods_by_position_only(scripted: Any) -> None:
    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            params = [{"name": "a"}, {"name": "b"}]
            line.answer(request, {"methods": [{"name": "add", "paramStructure": "by-position", "params": params}]})

    with Client(scripted(script)) as client, pytest.raises(TypeError, match=r"by position only.*: add\(a, b\)$"):
        client.add(1, b=2)


@pytest.mark.parametrize(
    "params", [[{"$ref": "#/x"}, {"name": "b"}, {"name": "c"}], [{"name": 1}, {"name": "c"}], None]
)
def test_parameters_that_cannot_be_read_give_no_names(scripted: Any, params: Any) -> None:
    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            line.answer(request, {"methods": [{"name": "add", "params": params}]})

    with Client(scripted(script)) as client, pytest.raises(TypeError, match="0 of the 1 arguments by position"):
        client.add(1, c=2)


def listen(address: str, server: Server) -> AbstractContextManager[str]:
    return serve_in_thread(server, port=int(address.rpartition(":")[2]))


@contextmanager
def started_later(address: str, server: Server) -> Iterator[None]:
    """A server that is started a moment after the block has begun."""
    over = threading.Event()

    def start() -> None:
        time.sleep(0.2)
        with listen(address, server):
            over.wait()

    thread = threading.Thread(target=start)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_the_time_to_wait_for_a_server_counts_for_the_names_too(free_address: str) -> None:
    with started_later(free_address, make_server()), Client(free_address) as client:
        assert client.segment("x", parts=4, wait_for=20) == ["x", 1, 4]


async def test_the_async_client_waits_for_a_server_too(free_address: str) -> None:
    with started_later(free_address, make_server()):
        async with AsyncClient(free_address) as client:
            calls = client.segment("x", parts=4, wait_for=20), client.must("a", third=1, wait_for=20)
            assert await asyncio.gather(*calls) == [["x", 1, 4], ["a", 5, 1]]


async def test_a_batch_waits_for_a_server_too(free_address: str) -> None:
    async with AsyncClient(free_address) as client:
        with started_later(free_address, make_server()):
            async with client.batch(wait_for=20) as batch:
                call = batch.segment("b", parts=9)
            assert call.result() == ["b", 1, 9]


def renamed() -> Server:
    server = Server()

    @server
    def segment(picture: str, size: int = 7, *, parts: int = 2) -> list[Any]:
        return [picture, size, parts]

    return server


def test_the_names_are_asked_for_anew_of_another_server(free_address: str) -> None:
    with Client(free_address, wait_for=20) as client:
        with listen(free_address, make_server()):
            assert client.segment("x", parts=4) == ["x", 1, 4]
        with listen(free_address, renamed()):
            client.call("rpc.ping")  # the connection is found to be lost
            assert client.segment("x", parts=4) == ["x", 7, 4]


async def test_the_async_client_asks_another_server_anew(free_address: str) -> None:
    async with AsyncClient(free_address, wait_for=20) as client:
        with listen(free_address, make_server()):
            assert await client.segment("x", parts=4) == ["x", 1, 4]
        with listen(free_address, renamed()):
            assert await client.segment("x", parts=4) == ["x", 7, 4]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_asking_for_the_names_takes_of_the_time_for_the_call(scripted: Any, kind: str) -> None:
    left: list[float] = []

    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            left.append(request.get("timeout", 9))
            if request["method"] == "rpc.discover":
                time.sleep(0.3)
                line.answer(request, {"methods": [{"name": "add", "params": [{"name": "a"}, {"name": "b"}]}]})
            else:
                line.answer(request, request["params"])

    async def call() -> Any:
        async with AsyncClient(scripted(script)) as client:
            return await client.add(1, b=2, timeout=30)

    if kind == "sync":
        with Client(scripted(script)) as client:
            assert client.add(1, b=2, timeout=30) == {"a": 1, "b": 2}
    else:
        assert asyncio.run(call()) == {"a": 1, "b": 2}
    assert left[1] < 29.8


async def test_no_connection_is_the_error_of_the_call(free_address: str) -> None:
    with Client(free_address) as client, pytest.raises(ConnectFailed, match="'segment'"):
        client.segment("x", parts=4)
    async with AsyncClient(free_address) as other:
        with pytest.raises(ConnectFailed, match="'segment'"):
            await other.segment("x", parts=4)


async def test_a_handler_calls_its_caller_so() -> None:
    server = Server()

    @server
    async def ask(ctx: Context) -> list[Any]:
        items = [item async for item in ctx.peer.stream.count(2, start=5)]
        ctx.peer.notify.confirm("told", default=True)
        return [await ctx.peer.confirm("sure?", default=True), await ctx.peer.confirm("so?", default=False), items]

    @server(offload="thread")
    def ask_in_thread(ctx: Context) -> Any:
        return ctx.peer.confirm("sure?", default=True)

    async with memory_client(server) as client:

        @client
        def confirm(text: str, default: bool) -> list[Any]:
            return [text, default]

        @client
        def count(n: int, start: int = 0) -> Iterator[int]:
            yield from range(start, start + n)

        assert await client.ask() == [["sure?", True], ["so?", False], [5, 6]]
        assert await client.ask_in_thread() == ["sure?", True]

    async with memory_client(server) as client:
        with pytest.raises(RpcError):  # it offers nothing
            await client.ask()


def test_a_method_that_a_hub_gets_later() -> None:
    with serve_in_thread(Hub()) as address, Client(address) as provider, Client(address) as client:

        @provider
        def segment(image: str, parts: int) -> list[Any]:
            return [image, parts]

        with pytest.raises(TypeError, match="did not say"):
            client.segment("x", parts=4)
        later = threading.Timer(0.2, provider.offer)
        later.start()
        assert client.segment("x", parts=4, wait_for=20) == ["x", 4]
        later.join()
        assert client.segment("x", parts=4) == ["x", 4]
