"""The first examples of a hub, with our clients and with raw lines: client1 offers `add`, client2 calls it."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rpcstream import AsyncClient, Client, InvalidParams, MethodNotFound, ProviderGone
from rpcstream.hub import Hub
from rpcstream.testing import serve_in_thread


@pytest.fixture
def address() -> Iterator[str]:
    with serve_in_thread(Hub()) as address:
        yield address


class TestAsyncClients:
    async def test_one_offers_add_and_the_other_calls_it(self, address: str) -> None:
        async with AsyncClient(address, name="client1") as client1, AsyncClient(address, name="client2") as client2:

            @client1
            def add(a: int, b: int) -> int:
                return a + b

            assert await client1.offer() == ["add"]
            assert await client2.add(5, 3) == 8
            assert await client2.call("client1.add", a=5, b=3) == 8
            with pytest.raises(InvalidParams, match="expected an integer, got a string"):
                await client2.add(5, "three")
            with pytest.raises(MethodNotFound):
                await client2.subtract(5, 3)

    async def test_hello_has_an_object_as_its_result(self, address: str) -> None:
        async with AsyncClient(address, name="python_example_client") as client1, AsyncClient(address) as client2:

            @client1
            def hello(name: str = "World", **rest: Any) -> dict[str, str]:
                return {"message": f"Hello, {name}!"}

            await client1.offer()
            assert await client2.hello(param="value") == {"message": "Hello, World!"}
            assert await client2.hello(name="Ada") == {"message": "Hello, Ada!"}
            responses: list[Any] = []
            task = client2.submit.hello(name="Bob")
            task.add_done_callback(lambda done: responses.append(done.result()))
            await task
            await asyncio.sleep(0)
            assert responses == [{"message": "Hello, Bob!"}]

    async def test_statistics(self, address: str) -> None:
        async with AsyncClient(address, name="client1") as client1, AsyncClient(address) as client2:
            client1(lambda a, b: a + b, name="add")
            await client1.offer()
            before = await client2.call("get_server_stats")
            await client2.add(5, 3)
            after = await client2.call("get_server_stats")
            assert (after["clients"], after["methods_offered"], after["connections"]) == (1, 1, 2)
            assert after["calls_forwarded"] == before["calls_forwarded"] + 1
            assert (await client2.call("rpc.stats")).keys() == after.keys()


class TestSyncClients:
    def test_as_in_the_seed(self, address: str) -> None:
        """`register_client`, `register_method`, `call_sync`, `call` with a callback, `get_server_stats`."""
        with Client(address, name="client1") as client1, Client(address, name="client2", timeout=10) as client2:

            @client1
            def add(a: int, b: int) -> int:
                return a + b

            @client1
            def hello(name: str = "World", **rest: Any) -> dict[str, str]:
                return {"message": f"Hello, {name}!"}

            assert client1.offer() == ["add", "hello"]
            assert client2.call_sync("add", [5, 3]) == 8
            assert client2.call_sync("hello", {}) == {"message": "Hello, World!"}
            assert client2.call_sync("get_server_stats", {})["clients"] == 2
            came = threading.Event()
            responses: list[Any] = []

            def callback(done: Any) -> None:
                responses.append(done.result())
                came.set()

            client2.submit("hello", param="value").add_done_callback(callback)
            assert came.wait(20)
            assert responses == [{"message": "Hello, World!"}]

    def test_each_may_offer_and_call(self, address: str) -> None:
        with Client(address, name="client1") as client1, Client(address, name="client2") as client2:
            client1(lambda a, b: client1.multiply(a, 1) + client1.multiply(b, 1), name="add")
            client2(lambda a, b: a * b, name="multiply")
            client1.offer()
            client2.offer()
            assert client2.add(5, 3) == 8


# -- raw lines ---------------------------------------------------------------------------------------------------------


class NetCat:
    """One raw connection, as with `nc`."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process: subprocess.Popen[bytes] = subprocess.Popen(["nc", host, port], bufsize=0, **pipes)

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def nc(address: str) -> Iterator[Callable[[], NetCat]]:
    if shutil.which("nc") is None:
        pytest.skip("nc is not installed")
    connections: list[NetCat] = []

    def connect() -> NetCat:
        connections.append(NetCat(address))
        return connections[-1]

    yield connect
    for connection in connections:
        connection.end()


REGISTER = '{"jsonrpc": "2.0", "id": 1, "method": "rpc.register", "params": {"name": "client1", "methods": ["add"]}}'


class TestRawLines:
    def test_provider_and_caller(self, nc: Callable[[], NetCat]) -> None:
        client1, client2 = nc(), nc()
        client1.say(REGISTER)
        reply = client1.hear()
        assert len(reply["result"].pop("key")) >= 16
        assert reply == {"jsonrpc": "2.0", "id": 1, "result": {"name": "client1", "methods": ["add"]}}
        client2.say('{"jsonrpc": "2.0", "method": "add", "params": [5, 3], "id": "mine"}')
        request = client1.hear()
        call_id = request.pop("id")
        assert request == {"jsonrpc": "2.0", "method": "add", "params": [5, 3]}
        client1.say(json.dumps({"jsonrpc": "2.0", "result": sum(request["params"]), "id": call_id}))
        assert client2.hear() == {"jsonrpc": "2.0", "result": 8, "id": "mine"}

    def test_the_lines_of_the_seed(self, nc: Callable[[], NetCat]) -> None:
        """A keepAlive and a call in one write; the answer with blanks, its members in another order."""
        client1, client2 = nc(), nc()
        client1.say(REGISTER.replace("add", "subtract"))
        client1.hear()
        client2.say(
            '{"jsonrpc": "2.0", "method": "keepAlive" }\n'
            '{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}'
        )
        request = client1.hear()
        assert request["params"] == [42, 23]
        client1.say(f'{{ "jsonrpc": "2.0", "result": 19, "id": {json.dumps(request["id"])} }}')
        assert client2.hear() == {"jsonrpc": "2.0", "result": 19, "id": 1}

    def test_python_calls_nc_and_nc_calls_python(self, address: str, nc: Callable[[], NetCat]) -> None:
        raw = nc()
        with Client(address, name="client2") as client2:
            client2(lambda name="World": {"message": f"Hello, {name}!"}, name="hello")
            client2.offer()
            raw.say(REGISTER)
            raw.hear()
            future = client2.submit.add(5, 3)
            request = raw.hear()
            raw.say(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": sum(request["params"])}))
            assert future.result(20) == 8
            raw.say('{"jsonrpc": "2.0", "id": 2, "method": "hello", "params": {}}')
            assert raw.hear()["result"] == {"message": "Hello, World!"}
            raw.say('{"jsonrpc": "2.0", "id": 3, "method": "get_server_stats", "params": {}}')
            assert raw.hear()["result"]["clients"] == 2

    def test_a_provider_that_is_gone(self, address: str, nc: Callable[[], NetCat]) -> None:
        raw = nc()
        raw.say(REGISTER)
        raw.hear()
        with Client(address) as client:
            future = client.submit.add(5, 3)
            raw.hear()
            raw.end()
            error = future.exception(20)
            assert isinstance(error, ProviderGone)
            assert error.data == {"method": "add", "client": "client1"}
            with pytest.raises(MethodNotFound):
                client.add(5, 3)
