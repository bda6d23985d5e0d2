"""Limits of the memory of messages: `max_values`, `max_held_size`, `max_held_total`, on every transport."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from rpcstream import (
    AsyncClient,
    Client,
    Context,
    InvalidRequest,
    Limits,
    MessageTooLarge,
    RpcError,
    Server,
    ServerBusy,
)
from rpcstream.codec import payloads
from rpcstream.codec.memory import collector_paused
from rpcstream.hub import Hub
from rpcstream.peer.flow_control import StreamReceiver
from rpcstream.peer.memory import PARTLY, MessageMemory, Reception, memory_of
from rpcstream.wire.framing import LineFramer
from rpcstream.wire.messages import Oversize

from ..internals import message_memory, sessions_of

KIB = 1024
MIB = 1024 * KIB


def request(method: str, params: Any = None, call_id: Any = 1) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": call_id, "method": method, "params": params or []}) + b"\n"


class Service:
    """A server with a handler that waits until it is let go."""

    def __init__(self, **limits: Any) -> None:
        self.server = Server(limits=Limits(**limits))
        self.go = asyncio.Event()
        self.begun = 0

        @self.server
        async def hold(value: Any = None) -> int:
            self.begun += 1
            await self.go.wait()
            return len(value or [])

        @self.server
        def size(value: Any) -> int:
            return len(value)

        @self.server
        async def ask(context: Context) -> Any:
            return await context.peer.call("tell")

    @contextlib.asynccontextmanager
    async def raw(self, count: int = 1) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
        async with self.server.listening(port=0) as address:
            host, _, port = address.rpartition(":")
            pairs = [await asyncio.open_connection(host, int(port), limit=64 * MIB) for _ in range(count)]
            try:
                yield pairs
            finally:
                for _, writer in pairs:
                    writer.close()

    async def until(self, begun: int) -> None:
        async with asyncio.timeout(20):
            while self.begun < begun:
                await asyncio.sleep(0.005)


async def reply_of(reader: asyncio.StreamReader) -> Any:
    async with asyncio.timeout(20):
        return orjson.loads(await reader.readline())


# -- values -------------------------------------------------------------------------------------------------------


async def test_a_message_with_too_many_values_is_refused_and_the_next_one_taken() -> None:
    service = Service(max_values=50_000)
    async with service.raw() as [(reader, writer)]:
        writer.write(request("size", [[1] * 60_000], "long"))
        writer.write(request("size", [[1] * 40_000], "fits"))
        refused = await reply_of(reader)
        assert refused["id"] == "long"
        assert refused["error"]["code"] == -32001
        data = refused["error"]["data"]
        assert (data["limit"], data["side"]) == (50_000, "server")
        assert data["values"] > 60_000
        assert "ndarray" in refused["error"]["message"]
        assert (await reply_of(reader))["result"] == 40_000


async def test_text_is_no_values_whatever_stands_in_it() -> None:
    service = Service(max_values=50_000)
    async with service.raw() as [(reader, writer)]:
        writer.write(request("size", [",[{" * 100_000]))
        assert (await reply_of(reader))["result"] == 300_000
        writer.write(request("size", [['a,[\\"{' * 50] * 5_000]))
        assert (await reply_of(reader))["result"] == 5_000


async def test_a_client_refuses_an_answer_with_too_many_values() -> None:
    service = Service()

    @service.server
    def numbers(count: int) -> list[int]:
        return [1] * count

    async with service.server.listening(port=0) as address:
        limits = Limits(max_values=50_000)
        for where in (address, f"http://{address}", f"ws://{address}"):
            async with AsyncClient(where, limits=limits) as client:
                with pytest.raises(MessageTooLarge) as raised:
                    await client.numbers(60_000)
                assert raised.value.data["side"] == "client"
                assert await client.numbers(3) == [1, 1, 1]

        def sync() -> None:
            for where in (address, f"http://{address}"):
                with Client(where, limits=limits) as client:
                    with pytest.raises(MessageTooLarge):
                        client.numbers(60_000)
                    assert client.numbers(3) == [1, 1, 1]

        await asyncio.to_thread(sync)


async def test_an_answer_with_too_many_values_fails_the_handler_that_asked() -> None:
    service = Service(max_values=50_000)
    async with service.raw() as [(reader, writer)]:
        writer.write(request("ask", [], "mine"))
        asked = await reply_of(reader)
        writer.write(orjson.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": [1] * 60_000}) + b"\n")
        assert (await reply_of(reader))["error"]["code"] == -32603
        writer.write(request("size", [[1]]))
        assert (await reply_of(reader))["result"] == 1


# -- JSON -------------------------------------------------------------------------------------------------------------

#: A payload over the limit of the tests, with JSON under it.
BYTES = {"$type": "bytes", "data": "QUJD" * 100_000}


@pytest.mark.parametrize(
    "value",
    ["<" * 60_000, '"' * 30_000, "\\" * 30_000, "é" * 30_000, [" " * 10] * 6_000, [BYTES, "xé" * 20_000]],
    ids=["text", "quotes", "backslashes", "not ASCII", "many", "beside a payload"],
)
async def test_a_message_with_too_much_json_is_refused_and_the_next_one_taken(value: Any) -> None:
    service = Service(max_json_size=50_000)
    async with service.raw() as [(reader, writer)]:
        writer.write(request("size", [value], "long"))
        writer.write(request("size", ["x" * 40_000], "fits"))
        refused = await reply_of(reader)
        assert refused["id"] == "long"
        assert refused["error"]["code"] == -32001
        assert "max_json_size" in refused["error"]["message"]
        assert "payloads" in refused["error"]["message"]
        data = refused["error"]["data"]
        assert (data["limit"], data["side"]) == (50_000, "server")
        assert data["json_size"] > 50_000
        assert (await reply_of(reader))["result"] == 40_000


async def test_blanks_are_json() -> None:
    service = Service(max_json_size=50_000)
    async with service.raw() as [(reader, writer)]:
        writer.write(request("size", [[1]]).replace(b"[[1]]", b"[[1" + b" " * 60_000 + b"]]"))
        assert (await reply_of(reader))["error"]["data"]["limit"] == 50_000


@pytest.mark.parametrize("text", [b"QUJD" * 20_000, b"data:image/png;base64," + b"QUJD" * 20_000, b"x y" * 20_000])
async def test_long_strings_of_ascii_do_not_count_as_json(text: bytes) -> None:
    service = Service(max_json_size=50_000)
    async with service.raw() as [(reader, writer)]:
        writer.write(request("size", [text.decode()]))
        assert (await reply_of(reader))["result"] == len(text)


@pytest.mark.parametrize("beside", [1, "x" * 20_000, ["\n" * 10, {"a": 1}] * 500], ids=["short", "text", "values"])
async def test_payloads_do_not_count_as_json(beside: Any) -> None:
    service = Service(max_json_size=50_000)
    async with service.raw() as [(reader, writer)]:
        writer.write(request("size", [[BYTES, beside, BYTES]]))
        assert (await reply_of(reader))["result"] == 3
        writer.write(request("size", [[beside, *[{"$type": "bytes", "data": "QUJD" * 200}] * 100]]))
        assert (await reply_of(reader))["result"] == 101


async def test_a_payload_with_escapes_is_json() -> None:
    service = Service(max_json_size=50_000)
    async with service.raw() as [(reader, writer)]:
        writer.write(request("size", [BYTES]).replace(b"QUJDQUJD", b"QUJD\\u0041UJD", 1))
        assert (await reply_of(reader))["error"]["code"] == -32001


async def test_the_json_of_a_binary_frame_is_limited_and_its_payload_is_not() -> None:
    service = Service(max_json_size=50_000)
    async with service.server.listening(port=0) as address:
        for where in (address, f"ws://{address}", f"http://{address}"):
            async with AsyncClient(where, limits=Limits(max_json_size=50_000)) as client:
                assert await client.size(b"x" * 100_000) == 100_000
                with pytest.raises(MessageTooLarge, match="max_json_size") as raised:
                    await client.size([b"x" * 100_000, "x" * 60_000])
                assert raised.value.data["side"] == "server"


async def test_a_client_refuses_an_answer_with_too_much_json_and_takes_large_payloads() -> None:
    service = Service()

    @service.server
    def text(count: int) -> str:
        return "é" * (count // 2)

    @service.server
    def data(count: int) -> bytes:
        return b"x" * count

    async with service.server.listening(port=0) as address:
        limits = Limits(max_json_size=50_000)
        for where in (address, f"http://{address}", f"ws://{address}"):
            for binary in (True, False):
                async with AsyncClient(where, limits=limits, binary=binary) as client:
                    with pytest.raises(MessageTooLarge, match="max_json_size") as raised:
                        await client.text(60_000)
                    assert raised.value.data["side"] == "client"
                    assert len(await client.data(1_000_000)) == 1_000_000

        def sync() -> None:
            for where in (address, f"http://{address}"):
                for binary in (True, False):
                    with Client(where, limits=limits, binary=binary) as client:
                        with pytest.raises(MessageTooLarge, match="max_json_size"):
                            client.text(60_000)
                        assert len(client.data(1_000_000)) == 1_000_000

        await asyncio.to_thread(sync)


async def test_a_hub_refuses_what_its_clients_would_refuse() -> None:
    hub = Hub(limits=Limits(max_json_size=50_000))
    async with (
        hub.listening(port=0) as address,
        AsyncClient(address, name="p") as provider,
        AsyncClient(address) as caller,
    ):

        @provider
        def size(value: Any) -> int:
            return len(value)

        @provider
        def text(count: int) -> str:
            return "é" * (count // 2)

        await provider.offer()
        assert await caller.size(b"x" * 100_000) == 100_000
        with pytest.raises(MessageTooLarge, match="max_json_size"):
            await caller.size("é" * 30_000)
        with pytest.raises(RpcError, match="max_json_size"):
            await caller.text(60_000)
        assert len(await caller.text(40_000)) == 20_000


# -- a connection -------------------------------------------------------------------------------------------------


async def test_calls_wait_while_those_at_work_hold_too_much() -> None:
    service = Service(max_held_size=1 * MIB)
    async with service.raw() as [(reader, writer)]:
        for call_id in range(6):
            writer.write(request("hold", [[1000] * 9_000], call_id))
        writer.write(request("size", [[1]], "behind"))
        held = memory_of(request("hold", [[1000] * 9_000], 0)[:-1])
        fits = -(-MIB // held)
        await service.until(fits)
        session = next(iter(sessions_of(service.server)))
        await asyncio.sleep(0)
        assert service.begun == fits == 2
        assert session.running.held == message_memory(service.server).at_work >= MIB
        service.go.set()
        replies = [await reply_of(reader) for _ in range(7)]
        assert {each["id"]: each["result"] for each in replies} == {**dict.fromkeys(range(6), 9_000), "behind": 1}
        assert session.running.held == message_memory(service.server).at_work == 0


async def test_one_call_may_hold_more_than_the_limit() -> None:
    service = Service(max_held_size=10 * KIB, max_held_total=20 * KIB)
    async with service.raw() as [(reader, writer)]:
        writer.write(request("hold", [[1000] * 50_000]))
        await service.until(1)
        service.go.set()
        assert (await reply_of(reader))["result"] == 50_000


# -- a server -----------------------------------------------------------------------------------------------------


async def test_long_calls_are_refused_while_the_messages_of_all_take_too_much() -> None:
    service = Service(max_held_total=2 * MIB)
    async with service.raw(3) as pairs:
        for _, writer in pairs[:2]:
            writer.write(request("hold", [[1000] * 9_000]))
        await service.until(2)
        reader, writer = pairs[2]
        writer.write(request("hold", [[1000] * 9_000], "long"))
        refused = await reply_of(reader)
        assert (refused["id"], refused["error"]["code"]) == ("long", -32002)
        assert refused["error"]["data"]["limit"] == 2 * MIB
        assert "max_held_total" in refused["error"]["data"]["reason"]
        batch = [orjson.loads(request("hold", [[1000] * 4_000], call_id)) for call_id in (1, 2)]
        writer.write(orjson.dumps(batch) + b"\n")
        assert [each["error"]["code"] for each in await reply_of(reader)] == [-32002, -32002]
        # What is short, or held by nothing, is taken as ever.
        writer.write(request("size", [[1] * 9_000], "sync") + request("hold", [[1]], "small"))
        assert (await reply_of(reader))["id"] == "sync"
        await service.until(3)
        service.go.set()
        for each, _ in pairs:
            assert "result" in await reply_of(each)
        writer.write(request("hold", [[1000] * 9_000], "again"))
        assert (await reply_of(reader))["result"] == 9_000
        assert service.server.counters.turned_away == 3


@pytest.mark.parametrize("scheme", ["tcp", "ws", "http"])
async def test_messages_that_come_in_part_are_dropped_when_they_take_too_much_together(scheme: str) -> None:
    service = Service(max_held_total=4 * MIB)
    async with service.raw(3) as pairs:
        for _, writer in pairs[:2]:
            writer.write(request("size", ["x" * (900 * KIB)])[: 800 * KIB])
            await writer.drain()
        async with asyncio.timeout(20):
            while message_memory(service.server).waiting < 1.5 * MIB:
                await asyncio.sleep(0.005)
        address = f"127.0.0.1:{pairs[0][1].get_extra_info('peername')[1]}"
        where = address if scheme == "tcp" else f"{scheme}://{address}"
        async with AsyncClient(where) as client:
            with pytest.raises(ServerBusy):
                await client.size("x" * (3 * MIB))
            assert await client.size("x" * 1000) == 1000
            for reader, writer in pairs[:2]:
                writer.write(request("size", ["x" * (900 * KIB)])[800 * KIB :])
                assert (await reply_of(reader))["result"] == 900 * KIB
            assert await client.size("x" * (3 * MIB)) == 3 * MIB
        assert message_memory(service.server).waiting == 0


async def test_what_a_lost_connection_had_sent_in_part_counts_no_longer() -> None:
    service = Service()
    async with service.raw() as [(_, writer)]:
        writer.write(request("size", ["x" * (900 * KIB)])[: 800 * KIB])
        await writer.drain()
        memory = message_memory(service.server)
        async with asyncio.timeout(20):
            while not memory.waiting:
                await asyncio.sleep(0.005)
            writer.transport.abort()
            while memory.waiting:
                await asyncio.sleep(0.005)


async def test_long_requests_in_line_count_and_are_refused_over_the_total() -> None:
    service = Service(max_calls=1, max_held_total=1 * MIB)
    async with service.raw(2) as pairs:
        for reader, writer in pairs:
            writer.write(request("ask", [], "first"))
            await reply_of(reader)
        # The first waits in line; the other's would be too much.
        (_, one), (reader, other) = pairs
        one.write(request("size", ["x" * (400 * KIB)], "kept"))
        async with asyncio.timeout(20):
            while not message_memory(service.server).waiting:
                await asyncio.sleep(0.005)
        other.write(request("size", ["x" * (200 * KIB)], "refused"))
        refused = await reply_of(reader)
        assert (refused["id"], refused["error"]["code"]) == ("refused", -32002)
        one.transport.abort()
        async with asyncio.timeout(20):
            while message_memory(service.server).waiting:
                await asyncio.sleep(0.005)


def test_who_is_alone_has_room() -> None:
    memory = MessageMemory(2000, 1)
    one, other = Reception(memory), Reception(memory)
    assert one.grow(2 * PARTLY)
    assert one.grow(3 * PARTLY)
    assert not other.grow(PARTLY)
    one.over()
    assert memory.waiting == 0
    assert other.grow(PARTLY)
    other.over()
    assert memory.waiting == 0


def test_a_framer_drops_what_it_may_not_hold_and_goes_on() -> None:
    memory = MessageMemory(2 * PARTLY, 1)
    memory.waiting = PARTLY
    framer = LineFramer(max_size=100 * PARTLY, reception=Reception(memory))
    said = framer.feed(b'{"id":1,"params":"' + b"x" * PARTLY)
    assert [type(each) for each in said] == [Oversize]
    assert said[0].is_refused
    assert framer.feed(b"x" * PARTLY) == []
    assert framer.feed(b'x"}\n{"id":2}\n') == [b'{"id":2}']
    assert memory.waiting == PARTLY


# -- the collector --------------------------------------------------------------------------------------------------


def test_the_collector_is_as_it_was_after_a_long_message() -> None:
    line = orjson.dumps([[1]] * 20_000)
    assert gc.isenabled()
    payloads.parse(line)
    assert gc.isenabled()
    with pytest.raises(orjson.JSONDecodeError):
        payloads.parse(line[:-1])
    assert gc.isenabled()
    gc.disable()
    try:
        payloads.parse(line)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_comes_back_when_the_last_of_several_has_done() -> None:
    entered, leave = threading.Event(), threading.Event()

    def elsewhere() -> None:
        with collector_paused:
            entered.set()
            leave.wait(20)

    thread = threading.Thread(target=elsewhere)
    with collector_paused, collector_paused:
        thread.start()
        assert entered.wait(20)
        assert not gc.isenabled()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


# -- items of streams -----------------------------------------------------------------------------------------------


async def test_items_that_wait_count_until_they_are_used_and_end_their_stream_over_the_total() -> None:
    service = Service(max_held_total=2 * MIB)
    heard: list[str] = []

    @service.server
    async def read(items: AsyncIterator[str], late: bool) -> int:
        if late:
            await service.go.wait()
        try:
            return sum([len(item) async for item in items])
        except Exception as error:
            heard.append(str(error))
            raise

    def item(stream: str, size: int) -> bytes:
        params = {"stream": stream, "value": "x" * size}
        return orjson.dumps({"jsonrpc": "2.0", "method": "$/item", "params": params}) + b"\n"

    memory = message_memory(service.server)
    async with service.raw(2) as pairs:
        for n, (reader, writer) in enumerate(pairs):
            writer.write(request("read", [{"$type": "stream", "id": "s"}, n == 0], n))
            if n:
                await reply_of(reader)  # credit
        (late, slow), (reader, writer) = pairs
        writer.write(item("s", 200 * KIB) + b'{"jsonrpc":"2.0","method":"$/end","params":{"stream":"s"}}\n')
        assert (await reply_of(reader))["result"] == 200 * KIB
        assert memory.waiting == 0
        # The other has not asked for any: they are not permitted.
        slow.write(item("s", 1000) + request("rpc.ping", call_id="ping"))
        assert (await reply_of(late))["id"] == "ping"  # the item has been read before the handler asks for any
        service.go.set()
        assert (await reply_of(late))["error"]["code"] == -32600
        assert len(heard) == 1

    receiver = StreamReceiver(16, lambda n: None, is_granted=True, memory=memory)
    other = StreamReceiver(16, lambda n: None, is_granted=True, memory=memory)
    receiver.put(({}, b"x" * (600 * KIB)))
    assert memory.waiting == 600 * KIB
    with pytest.raises(InvalidRequest, match="max_held_total"):
        other.put(({}, b"x" * (500 * KIB)))
    assert other.has_ended
    receiver.put(({}, b"x" * MIB))  # who is alone has room
    await receiver.get()
    assert memory.waiting == MIB
    receiver.clear()
    assert memory.waiting == 0


# -- what is not read -------------------------------------------------------------------------------------------------


async def test_of_those_that_leave_too_much_unread_together_the_one_with_most_is_closed() -> None:
    service = Service(max_unread_total=40 * MIB)

    @service.server
    def give(size: int) -> str:
        return "x" * size

    async with service.raw(4) as pairs:
        (_, first), (_, most), (_, third), (calm, calm_writer) = pairs
        for writer, size in ((first, 20), (most, 30), (third, 20)):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(request("give", [size * MIB]))
            calm_writer.write(request("rpc.ping"))
            assert (await reply_of(calm))["result"] == "pong"
        assert service.server.counters.closed_for_limits == 1
        most.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises(asyncio.IncompleteReadError):
            await pairs[1][0].readuntil(b"\n")
        # The others were not touched, and what they have read counts no more.
        for reader, writer in (pairs[0], pairs[2]):
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert len((await reply_of(reader))["result"]) == 20 * MIB
        assert message_memory(service.server).unread.total == 0


def test_unread_bytes_are_those_of_the_last_look() -> None:
    unread = MessageMemory(1, 100).unread
    unread.update("a", 60)
    unread.update("b", 30)
    assert not unread.is_over
    unread.update("b", 70)
    assert (unread.total, unread.is_over, unread.largest) == (130, True, "b")
    unread.update("b", 0)
    assert (unread.total, unread.owners()) == (60, ["a"])
