"""Batched methods through a real server."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from rpcstream import (
    AsyncClient,
    Client,
    DeadlineExceeded,
    InternalError,
    InvalidParams,
    RpcError,
    Server,
    ServerBusy,
    Shape,
)
from rpcstream.testing import memory_client, serve_in_thread

from ..kit import until

Row = Annotated[NDArray[np.float32], Shape(None, 3)]
Numbers = Annotated[NDArray[np.float64], Shape(None)]
ONE = np.ones(1)


class Service:
    """A server with batched methods that note what they were run with."""

    def __init__(self, *, max_wait: float = 0.0, **options: Any) -> None:
        self.server = server = Server(**options)
        self.runs: list[Any] = []

        @server.batched(max_wait=max_wait, idempotent=True)
        def shout(text: list[str], times: Sequence[int] = (1,)) -> list[str]:
            """Louder."""
            self.runs.append(text)
            if "fail" in text:
                raise ValueError("the secret")
            return [each.upper() * count for each, count in zip(text, times, strict=True)]

        @server.batched(max_wait=max_wait)
        async def norm(vector: Row, *, scale: Numbers = ONE) -> Numbers:
            self.runs.append((vector.shape, scale.shape))
            return np.linalg.norm(vector, axis=1) * scale  # type: ignore[no-any-return]

        @server.batched(max_wait=max_wait, offload=None)
        def twice(vector: Row) -> Row:
            self.runs.append(vector.shape)
            return vector * 2

        self.shout, self.norm, self.twice = shout, norm, twice


class Gate:
    """A batched method `wait(item)` whose run stops until the gate is opened."""

    def __init__(self, server: Server, **options: Any) -> None:
        self.begun = asyncio.Event()
        self.open = asyncio.Event()
        self.runs: list[list[int]] = []

        @server.batched(name="wait", **{"max_wait": 0, **options})
        async def wait(item: list[int]) -> list[int]:
            self.runs.append(item)
            self.begun.set()
            await self.open.wait()
            return item


async def at_once(*calls: Any) -> list[Any]:
    """The results of these calls; exceptions in the place of results."""
    return await asyncio.gather(*calls, return_exceptions=True)


def requests(method: str, items: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"jsonrpc": "2.0", "id": place, "method": method, "params": [item]} for place, item in enumerate(items)]


# -- what callers see -------------------------------------------------------------------------------------------------


async def test_callers_send_one_item_and_get_one_result() -> None:
    service = Service()
    async with memory_client(service.server) as client:
        assert await client.shout("a") == "A"
        assert await client.shout(text="a", times=2) == "AA"
        assert await client.norm(np.array([3, 4, 0], np.float32)) == 5.0
        assert await client.norm(vector=np.array([3, 4, 0], np.float32), scale=2.0) == 10.0
        doubled = await client.twice(np.ones(3, np.float32))
    assert (doubled.dtype, doubled.tolist()) == (np.float32, [2, 2, 2])
    assert service.runs == [["a"], ["a"], ((1, 3), (1,)), ((1, 3), (1,)), (1, 3)]


async def test_the_function_stays_as_it_is() -> None:
    service = Service()
    assert service.shout(["a", "b"], [1, 2]) == ["A", "BB"]
    assert service.shout(["a"]) == ["A"]
    assert (await service.norm(np.ones((2, 3), np.float32))).shape == (2,)


async def test_calls_that_come_together_run_together() -> None:
    service = Service()
    async with memory_client(service.server) as client:
        assert await at_once(*(client.shout(text) for text in "abc")) == ["A", "B", "C"]
        arrays = [np.full(3, number, np.float32) for number in range(4)]
        results = await at_once(*map(client.twice, arrays))
    assert [result.tolist() for result in results] == [[2 * number] * 3 for number in range(4)]
    assert service.runs == [["a", "b", "c"], (4, 3)]


async def test_discovery_has_the_signature_of_one_item() -> None:
    async with memory_client(Service().server) as client:
        document = await client.call("rpc.discover")
    methods = {method["name"]: method for method in document["methods"]}
    shout = methods["shout"]
    assert shout["x-idempotent"] is True
    assert "x-idempotent" not in methods["twice"]
    assert shout["summary"] == "Louder."
    assert [(each["name"], each["required"], each["schema"]) for each in shout["params"]] == [
        ("text", True, {"type": "string"}),
        ("times", False, {"type": "integer", "default": 1}),
    ]
    assert shout["result"]["schema"] == {"type": "string"}
    (vector,) = methods["twice"]["params"]
    assert vector["schema"] == {"$ref": "#/components/schemas/NdArray_f4_3"}
    row = document["components"]["schemas"]["NdArray_f4_3"]
    assert row["anyOf"][0]["properties"]["shape"]["prefixItems"] == [{"const": 3}]
    assert methods["norm"]["params"][1]["schema"]["default"] == 1.0


async def test_a_wrong_item_is_refused_at_once_and_joins_no_batch() -> None:
    service = Service(max_wait=60)
    async with memory_client(service.server, timeout=20) as client:
        for item, path in [(5, "$[0]"), (["a"], "$[0]"), (None, "$[0]")]:
            with pytest.raises(InvalidParams) as caught:
                await client.shout(item)
            assert (caught.value.data["path"], caught.value.data["parameter"]) == (path, "text")
        with pytest.raises(InvalidParams, match=r"an array of float32 of shape \(3,\)"):
            await client.twice(np.ones((1, 3), np.float32))
        with pytest.raises(InvalidParams, match="missing 'text'"):
            await client.shout()
    assert service.runs == []


async def test_the_members_of_a_batch_message_run_together(connect: Any) -> None:
    service = Service()
    async with service.server.listening(port=0) as address:
        raw = await connect(address)
        replies = await raw.ask(orjson.dumps(requests("shout", ["a", 5, "b", "c"])))
    assert [reply.get("result") for reply in replies] == ["A", None, "B", "C"]
    assert replies[1]["error"]["code"] == -32602
    assert service.runs == [["a", "b", "c"]]


async def test_all_that_came_with_one_read_runs_together(connect: Any) -> None:
    service = Service()
    async with service.server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(b"\n".join(map(orjson.dumps, requests("shout", ["a"] * 20))) + b"\n")
        assert {(await raw.reply())["result"] for _ in range(20)} == {"A"}
    assert [len(run) for run in service.runs] == [20]


async def test_notifications_are_items_too(connect: Any) -> None:
    service = Service()
    silent = {"jsonrpc": "2.0", "method": "shout", "params": ["silent"]}
    async with service.server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(orjson.dumps([silent, *requests("shout", ["a"])]) + b"\n")
        assert [reply["result"] for reply in await raw.reply()] == ["A"]
    assert service.runs == [["silent", "a"]]


def test_a_thousand_callers_and_a_sync_client() -> None:
    service = Service(max_wait=0.002)

    async def many(address: str) -> list[Any]:
        async with AsyncClient(address) as client:
            return await at_once(*(client.shout(str(number)) for number in range(1000)))

    with serve_in_thread(service.server) as address:
        assert asyncio.run(many(address)) == [str(number) for number in range(1000)]
        with Client(address) as client:
            futures = [client.submit.shout("a") for _ in range(100)]
            assert {future.result() for future in futures} == {"A"}
        stats = service.server.batches["shout"].stats()
    assert stats["items"] == 1100
    assert stats["largest"] == 32
    assert max(map(len, service.runs)) == 32
    assert stats["runs"] == len(service.runs) < 1100


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("debug", [False, True])
async def test_a_failing_item_fails_as_any_call(debug: bool, caplog: pytest.LogCaptureFixture) -> None:
    service = Service(debug=debug)
    async with memory_client(service.server) as client:
        one, bad, other = await at_once(*map(client.shout, ["a", "fail", "b"]))
        assert (one, other) == ("A", "B")
        assert type(bad) is InternalError
        assert (bad.data or {}).get("message") == ("the secret" if debug else None)
        assert (await client.call("rpc.stats"))["handler_failures"] == 1
    # Three, unless the machine is so busy that one came later.
    assert re.search(r"method 'shout' failed with [23] items, each is run alone", caplog.text)
    assert caplog.text.count("Traceback") == 1


async def test_exceptions_in_the_list_are_answers() -> None:
    server = Server()

    @server.batched(max_wait=0)
    def check(number: list[int]) -> list[int | Exception]:
        return [number if number >= 0 else RpcError(17, "negative", number) for number in number]

    @server.batched(max_wait=0)
    def wrong(number: list[int]) -> list[int]:
        return [number if number >= 0 else "x" for number in number]  # type: ignore[misc]

    async with memory_client(server) as client:
        one, bad, other = await at_once(*map(client.check, [1, -2, 3]))
        assert (one, other) == (1, 3)
        assert (bad.code, bad.message, bad.data) == (17, "negative", -2)
        one, bad, other = await at_once(*map(client.wrong, [1, -2, 3]))
        assert (one, other) == (1, 3)
        assert type(bad) is InternalError, "the return hint holds for each item"
        schemas = {
            method["name"]: method["result"]["schema"] for method in (await client.call("rpc.discover"))["methods"]
        }
    assert schemas["check"] == {"type": "integer"}


async def test_the_wrong_number_of_results(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(debug=True)

    @server.batched(max_wait=0)
    def lose(item: list[int]) -> list[int]:
        return item[1:]

    async with memory_client(server) as client:
        results = await at_once(*map(client.lose, range(4)))
    assert [type(result) for result in results] == [InternalError] * 4
    assert caplog.text.count("method 'lose' got 4 items: it returned 3 results, not 4") == 1


async def test_numbers_of_numpy_and_rows_of_any_array_are_results() -> None:
    server = Server()

    @server.batched(max_wait=0)
    def scores(item: list[int]) -> list[float]:
        return [np.float32(each) / 2 for each in item]

    @server.batched(max_wait=0)
    def any_array(item: list[int]) -> NDArray[np.float32]:
        return np.array(item, np.float32) if item[0] else np.eye(len(item), dtype=np.float32)

    @server.batched(max_wait=0)
    def unsaid(item: list[int]):  # type: ignore[no-untyped-def]
        return np.array(item)

    async with memory_client(server) as client:
        assert await at_once(*map(client.scores, [1, 2])) == [0.5, 1.0]
        assert await at_once(*map(client.any_array, [1, 2])) == [1.0, 2.0]
        assert (await client.any_array(0)).tolist() == [1.0]
        assert await at_once(*map(client.unsaid, [1, 2])) == [1, 2]


async def test_too_many_waiting_is_server_busy() -> None:
    server = Server()
    gate = Gate(server, max_size=1, max_queue=2)
    async with memory_client(server) as client:
        first = client.submit.wait(0)
        await gate.begun.wait()
        waiting = [client.submit.wait(number) for number in (1, 2)]
        await until(lambda: server.batches["wait"].stats()["waiting"] == 2)
        with pytest.raises(ServerBusy) as caught:
            await client.wait(3)
        assert caught.value.data == {"limit": 2}
        gate.open.set()
        assert await asyncio.gather(first, *waiting) == [0, 1, 2]


# -- callers that leave -----------------------------------------------------------------------------------------------


async def test_a_deadline_holds_for_the_wait_too() -> None:
    server = Server()
    gate = Gate(server, timeout=0.05, max_wait=60)
    async with memory_client(server) as client:
        with pytest.raises(DeadlineExceeded) as caught:
            await client.wait(1)
        assert caught.value.data == {"method": "wait", "timeout": 0.05}
        stats = server.batches["wait"].stats()
    assert (stats["cancelled"], stats["waiting"], gate.runs) == (1, 0, [])


async def test_callers_whose_connection_is_lost_leave_the_queue(connect: Any) -> None:
    server = Server()
    gate = Gate(server)
    async with server.listening(port=0) as address, AsyncClient(address) as client:
        first = client.submit.wait(1)
        await gate.begun.wait()
        lost = await connect(address)
        await lost.send(b"\n".join(map(orjson.dumps, requests("wait", [7, 8]))) + b"\n")
        last = client.submit.wait(3)
        await until(lambda: server.batches["wait"].stats()["waiting"] == 3)
        # Reset rather than closed: a close alone could be the end of the requests, whose answers are still read.
        linger = struct.pack("ii", 1, 0)
        lost.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        lost.writer.transport.abort()
        await until(lambda: server.batches["wait"].stats()["cancelled"] == 2)
        gate.open.set()
        assert await asyncio.gather(first, last) == [1, 3]
    assert gate.runs == [[1], [3]]


# -- the life of a server ---------------------------------------------------------------------------------------------


async def test_calls_in_flight_are_answered_when_the_server_stops(connect: Any) -> None:
    server = Server()
    gate = Gate(server, max_size=1)
    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(b"\n".join(map(orjson.dumps, requests("wait", [1, 2]))) + b"\n")
        await gate.begun.wait()
        asyncio.get_running_loop().call_later(0.05, gate.open.set)
    assert [reply["result"] for reply in await raw.rest()] == [1, 2]


async def test_what_has_not_finished_in_time_is_cancelled_before_the_lifespan_ends(connect: Any) -> None:
    log: list[str] = []
    begun = asyncio.Event()

    @contextlib.asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        yield
        log.append("lifespan left")

    server = Server(lifespan=lifespan, drain_timeout=0.01)

    @server.batched(max_size=2, max_wait=60)
    async def forever(item: list[int]) -> list[int]:
        begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.05)
            log.append("handler cleaned up")
        return item

    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(b"\n".join(map(orjson.dumps, requests("forever", [1, 2, 3]))) + b"\n")
        await begun.wait()
        await until(lambda: server.batches["forever"].stats()["waiting"] == 1)
    assert log == ["handler cleaned up", "lifespan left"]
    stats = server.batches["forever"].stats()
    assert (stats["runs"], stats["cancelled"], stats["waiting"]) == (1, 1, 0)


def test_a_server_is_started_again_in_another_loop() -> None:
    service, threads = Service(), set()

    @service.server.batched(max_wait=0)
    def where(item: list[int]) -> list[int]:
        threads.add(threading.current_thread())
        return item

    for _ in range(3):
        with serve_in_thread(service.server) as address, Client(address) as client:
            assert client.shout("a") == "A"
            assert client.norm(np.array([3, 4, 0], np.float32)) == 5.0
            assert client.where(1) == 1
    assert len(threads) == 3
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert service.server.batches["shout"].stats()["runs"] == 3


# -- statistics -------------------------------------------------------------------------------------------------------


async def test_statistics_for_callers_and_for_the_program() -> None:
    service = Service()
    async with memory_client(service.server) as client:
        await at_once(*map(client.shout, "abcde"))
        batched = (await client.call("rpc.stats"))["batched"]
    assert list(batched) == ["shout", "norm", "twice"]
    assert batched["shout"] == service.server.batches["shout"].stats()
    assert batched["shout"]["sizes"] == {"8": 1}
    assert batched["norm"]["runs"] == 0


async def test_there_are_none_where_nothing_is_batched() -> None:
    server = Server()
    async with memory_client(server) as client:
        assert "batched" not in await client.call("rpc.stats")
    assert dict(server.batches) == {}
    with pytest.raises(KeyError):
        server.batches["nothing"]
