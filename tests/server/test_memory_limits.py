"""Limits of the memory of messages: `max_json_size` and `max_held_total`, on every transport."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import threading
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, Limits, RpcError, ServerBusy
from rpcstream.codec import payloads
from rpcstream.codec.attachments import without_collector
from rpcstream.errors import MessageTooLarge
from rpcstream.hub import Hub
from rpcstream.testing import serve_in_thread

from ..kit import RawPeer, UsualServer, notification, raw_peers, request, until
from ..kit.clients import BlockingAsyncClient, BlockingClient
from ..kit.example_count import IS_THOROUGH

KIB = 1024
MIB = 1024 * KIB


def make_server(**limits: Any) -> UsualServer:
    """A server with `length` of anything, and `text`, `data` and `numbers` of so many bytes or values."""
    server = UsualServer(limits=Limits(**limits))
    server.add(lambda value: len(value), name="length")
    server.add(lambda count: "é" * (count // 2), name="text")
    server.add(lambda count: b"x" * count, name="data")
    server.add(lambda count: [1] * count, name="numbers")
    return server


def length(value: Any, id: Any = 1) -> bytes:
    return orjson.dumps(request("length", value, id=id))


def long_call(id: Any = 1, values: int = 9_000) -> dict[str, Any]:
    """One whose handler holds half a MiB and more until it is released."""
    return request("wait", [1000] * values, id=id)


# -- values and JSON ------------------------------------------------------------------------------------------------

#: A payload over the limit of the tests, with JSON under it.
BYTES = {"$type": "bytes", "data": "QUJD" * 100_000}
SMALL = {"$type": "bytes", "data": "QUJD" * 200}


@pytest.mark.parametrize(
    ("size", "refused"),
    [
        ("values", [length([1] * 60_000)]),
        (
            "json_size",
            [
                *map(length, ("<" * 60_000, '"' * 30_000, "\\" * 30_000, "é" * 30_000, [" " * 10] * 6_000)),
                length([BYTES, "xé" * 20_000]),
                length([1]).replace(b"[[1]]", b"[[1" + b" " * 60_000 + b"]]"),
                length(BYTES).replace(b"QUJDQUJD", b"QUJD\\u0041UJD", 1),
            ],
        ),
    ],
)
async def test_too_many_values_or_too_much_json_is_refused_and_the_next_one_taken(
    size: str, refused: list[bytes]
) -> None:
    server = make_server(max_json_size=400_000 if size == "values" else 50_000)  # 50,000 values in the one, too
    async with raw_peers(server) as connect:
        raw = await connect()
        for message in refused:
            reply = await raw.ask(message)
            assert (reply["id"], reply["error"]["code"]) == (1, -32001)
            assert ("ndarray" if size == "values" else "payloads") in reply["error"]["message"]
            data = reply["error"]["data"]
            assert (data["limit"], data["side"]) == (50_000, "server")
            assert data[size] > 50_000
            assert await raw.result("length", "x" * 40_000) == 40_000
            assert await raw.result("length", [1] * 3_000) == 3_000
        if size == "values":  # an answer fails the handler that asked
            raw.answer(await raw.ask(request("ask", "tell", id="mine")), [1] * 60_000)
            assert await raw.code() == -32603


@pytest.mark.parametrize(
    "value",
    [
        *[each * 20_000 for each in ("QUJD", "x y")],  # text is no JSON
        "data:image/png;base64," + "QUJD" * 20_000,
        *[[BYTES, each, BYTES] for each in (1, "x" * 20_000, ["\n" * 10, {"a": 1}] * 500)],
        *[[each, *[SMALL] * 100] for each in (1, "x" * 20_000)],
    ],
    ids=lambda value: repr(value)[:30],
)
async def test_what_does_not_count(value: Any) -> None:
    async with raw_peers(make_server(max_json_size=50_000)) as connect:
        assert await (await connect()).result("length", value) == len(value)


@pytest.mark.parametrize("scheme", ["tcp", "ws", "http"])
def test_clients_have_the_same_limits(scheme: str) -> None:
    with serve_in_thread(make_server(max_json_size=50_000)) as address:
        kind = BlockingAsyncClient if scheme == "ws" else BlockingClient
        client: Any = kind(f"{scheme}://{address}", limits=Limits(max_json_size=400_000))
        for method, count, reason in (("numbers", 60_000, "ndarray"), ("text", 500_000, "max_json_size")):
            with pytest.raises(MessageTooLarge, match=reason) as raised:
                client.call(method, count)
            assert raised.value.data["side"] == "client"
        assert len(client.call("data", 1_000_000)) == 1_000_000
        assert client.call("length", b"x" * 100_000) == 100_000
        with pytest.raises(MessageTooLarge, match="max_json_size") as raised:
            client.call("length", [b"x" * 100_000, "é" * 30_000])
        assert raised.value.data["side"] == "server"
        client.close()


async def test_a_hub_refuses_what_its_clients_would_refuse() -> None:
    hub = Hub(limits=Limits(max_json_size=50_000))
    async with (
        hub.listening(port=0) as address,
        AsyncClient(address, name="p") as provider,
        AsyncClient(address) as caller,
    ):
        provider(lambda value: len(value), name="size")
        provider(lambda count: "é" * (count // 2), name="text")
        await provider.offer()
        assert await caller.size(b"x" * 100_000) == 100_000
        with pytest.raises(MessageTooLarge, match="max_json_size"):
            await caller.size("é" * 30_000)
        with pytest.raises(RpcError, match="max_json_size"):
            await caller.text(60_000)
        assert len(await caller.text(40_000)) == 20_000


# -- what is held ---------------------------------------------------------------------------------------------------


async def test_calls_wait_while_those_at_work_hold_too_much() -> None:
    """But for one alone, which may hold more than the limit."""
    server = make_server(max_held_total=8 * MIB)
    async with raw_peers(server) as connect:
        raw, other = await connect(), await connect()
        raw.send(*map(long_call, range(6)), length([1], "behind"))
        await until(lambda: len(server.begun) == 2)
        await other.silence()
        assert len(server.begun) == 2
        server.release()
        assert {each["id"] for each in await raw.receive_many(7)} == {*range(6), "behind"}
        assert "result" in await raw.ask(long_call(values=50_000))


async def test_long_calls_are_refused_while_the_messages_of_all_take_too_much() -> None:
    server = make_server(max_held_total=2 * MIB)
    async with raw_peers(server) as connect:
        first, second, raw = await connect(), await connect(), await connect()
        first.send(long_call())
        second.send(long_call())
        await until(lambda: len(server.begun) == 2)
        refused = await raw.ask(long_call("long"))
        assert (refused["id"], refused["error"]["code"]) == ("long", -32002)
        assert refused["error"]["data"]["limit"] == 2 * MIB
        assert "max_held_total" in refused["error"]["data"]["reason"]
        batch = [long_call(id, 4_000) for id in (1, 2)]
        assert [each["error"]["code"] for each in await raw.ask(batch)] == [-32002, -32002]
        # What is short, or held by nothing, is taken as ever.
        assert (await raw.ask(length([1] * 9_000, "sync")))["result"] == 9_000
        raw.call("wait", 5)
        await until(lambda: len(server.begun) == 3)
        server.release()
        for each in (first, second, raw):
            await each.result()
        assert "result" in await raw.ask(long_call("again"))
        assert server.stats()["turned_away"] == 3


async def ask_until(raw: RawPeer, code: int | None, size: int) -> None:
    """Send a message of this size until it is answered with this code; None: with its result."""
    async with asyncio.timeout(20):
        while (await raw.ask(length("x" * size))).get("error", {}).get("code") != code:
            pass


@pytest.mark.parametrize("scheme", ["tcp", "ws", "http"])
async def test_messages_that_come_in_part_are_dropped_when_they_take_too_much_together(scheme: str) -> None:
    part = length("x" * (900 * KIB))
    async with make_server(max_held_total=4 * MIB).listening(port=0) as address:
        first, second, probe = [await RawPeer.open(address) for _ in range(3)]
        for each in (first, second):
            each.write(part[: 800 * KIB])
        await ask_until(probe, -32002, 3 * MIB)
        async with AsyncClient(f"{scheme}://{address}") as client:
            with pytest.raises(ServerBusy):
                await client.length("x" * (3 * MIB))
            assert await client.length("x" * 1000) == 1000
            first.send(part[800 * KIB :])
            assert await first.result() == 900 * KIB
            second.close()  # what a lost connection had sent in part counts no longer
            await ask_until(probe, None, 3 * MIB)
            assert await client.length("x" * (3 * MIB)) == 3 * MIB
        first.close()
        probe.close()


async def test_long_requests_in_line_count_and_are_refused_over_the_total() -> None:
    async with raw_peers(make_server(max_calls=1, max_held_total=1 * MIB)) as connect:
        one, other, third = await connect(), await connect(), await connect()
        for raw in (one, other):
            await raw.ask(request("ask", "tell", id="first"))
        one.send(length("x" * (400 * KIB), "kept"))  # waits in line; the other's would be too much
        await ask_until(third, None, 1)
        refused = await other.ask(length("x" * (200 * KIB), "refused"))
        assert (refused["id"], refused["error"]["code"]) == ("refused", -32002)


@pytest.mark.parametrize(("value", "count"), [([1000], 20 * KIB), ("x", 100 * KIB)], ids=["numbers", "text"])
async def test_items_that_wait_count_until_they_are_used_and_end_their_stream_over_the_total(
    value: Any, count: int
) -> None:
    server = make_server(max_held_total=2 * MIB)

    @server
    async def read(values: AsyncIterator[Any]) -> int:
        size = len(await anext(values))
        await server.call_wait()
        return size + sum([len(each) async for each in values])

    def item(count: int) -> dict[str, Any]:
        return notification("$/item", stream="s", value=value * count)

    async with raw_peers(server) as connect:
        first, second = await connect(), await connect()
        for raw in (first, second):
            credit = await raw.ask(request("read", {"$type": "stream", "id": "s"}))
            assert credit["method"] == "$/credit"
            raw.send(item(1), *[item(count)] * 6)
            await until(lambda raw=raw: len(server.begun) == (1 if raw is first else 2))
        await second.silence()
        server.release()
        error = (await second.reply())["error"]
        assert error["code"] == -32600
        assert "max_held_total" in error["data"]["reason"]
        first.send(*[item(count)] * 8, notification("$/end", stream="s"))
        while "result" not in (message := await first.receive()):
            assert message["method"] == "$/credit"
        assert message["result"] == 14 * count + 1


# -- what is not read, and the collector ----------------------------------------------------------------------------


async def test_of_those_that_leave_too_much_unread_together_the_one_with_most_is_closed() -> None:
    server = make_server(max_held_total=40 * MIB)
    server.add(lambda size: "x" * size, name="give")
    async with raw_peers(server) as connect:
        first, most, third, calm = [await connect() for _ in range(4)]
        for raw, size in ((first, 20), (most, 30), (third, 20)):
            raw.transport.pause_reading()
            raw.call("give", size * MIB)
            assert await calm.result("rpc.ping") == "pong"
        await until(lambda: server.stats()["closed_for_limits"] == 1)
        most.transport.resume_reading()
        assert await most.rest() == []
        for raw in (first, third):  # these were not touched, and what they have read counts no more
            raw.transport.resume_reading()
            assert len(await raw.result()) == 20 * MIB
        first.transport.pause_reading()
        first.call("give", 30 * MIB)
        assert await calm.result("rpc.ping") == "pong"
        first.transport.resume_reading()
        assert len(await first.result()) == 30 * MIB
    assert server.stats()["closed_for_limits"] == 1


def test_the_collector_is_as_it_was_after_a_long_message_also_where_two_are_read_at_once() -> None:
    line = orjson.dumps([[1]] * 20_000)
    payloads.parse(line)
    assert gc.isenabled()
    with pytest.raises(orjson.JSONDecodeError):
        payloads.parse(line[:-1])
    assert gc.isenabled()
    inside, leave = threading.Event(), threading.Event()

    def wait(_: bytes) -> bool:
        inside.set()
        return leave.wait(20)

    thread = threading.Thread(target=without_collector, args=(wait, b""))
    thread.start()
    assert inside.wait(20)
    payloads.parse(line)
    leave.set()
    thread.join()
    assert gc.isenabled()


# -- 1,000 connections at once: right answers, none lost, and the memory is given back ---------------------------------

CONNECTIONS = 1000
CALLS = 40 if IS_THOROUGH else 10


async def call(address: str, number: int, together: asyncio.Barrier) -> None:
    """Every caller uses the same ids, so an answer that went to another would not be noticed by its id."""
    chance = random.Random(number)
    raw = await RawPeer.open(address)
    await together.wait()
    for start in range(0, CALLS, 10):
        for id in range(start, start + 10):
            if chance.random() < 0.5:
                raw.call("echo_after", [number, id], chance.random() * 0.05, id=id)
            else:
                raw.send(request("echo", [number, id], id=id))
        replies = {each["id"]: each["result"] for each in await raw.receive_many(10)}
        assert replies == {id: [number, id] for id in range(start, start + 10)}
    raw.send(b"")
    assert await raw.rest() == []
    raw.close()


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(150)
async def test_a_thousand_connections() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < (files := 2 * CONNECTIONS + 100):
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))
    blocks = []
    async with UsualServer().listening(port=0) as address:
        for _ in range(3):
            together = asyncio.Barrier(CONNECTIONS)
            async with asyncio.TaskGroup() as group:
                for number in range(CONNECTIONS):
                    group.create_task(call(address, number, together))
            gc.collect()
            blocks.append(sys.getallocatedblocks())
    if any(name.startswith("COVERAGE_PROCESS") for name in os.environ):
        pytest.skip("the measuring of coverage keeps blocks of its own")
    # One object left behind by each connection would be 1,000 blocks at least, in every round.
    assert min(after - before for before, after in pairwise(blocks)) < 800
