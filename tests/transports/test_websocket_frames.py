"""Binary frames over WebSocket: one binary message is one frame, whatever the frames of WebSocket are."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import AsyncClient, Context, Limits, Server
from rpcstream.wire.frames import BINARY, TEXT, FrameReader, frame
from rpcstream.wire.messages import BinaryFrame, Oversize

from ..internals import message_memory
from ..kit import until
from ..kit.example_count import example_count
from .raw_frames import TakeAll, array_at, binary_frame, request
from .raw_websocket import CONTINUATION, RawWebSocket, WebSocketServer, fragment, serving

SIZE = 5000

# -- the reader -----------------------------------------------------------------------------------------------------


def contents(messages: list[Any]) -> list[Any]:
    return [(m.json, list(map(bytes, m.content))) if isinstance(m, BinaryFrame) else m for m in messages]


@given(st.data())
@settings(max_examples=example_count(200), deadline=None)
def test_frames_come_through_however_they_are_cut(data: st.DataObject) -> None:
    """In any fragments, with pings between these, among text, masked or not, received in any pieces, held up or not."""
    masked = data.draw(st.booleans())
    payloads = st.lists(st.binary(min_size=1, max_size=100), min_size=1, max_size=4)
    stream, pings, wanted = b"", [], []
    for each in data.draw(st.lists(st.one_of(st.text(max_size=20), payloads), max_size=4)):
        if isinstance(each, str):
            stream += frame(data.draw(st.sampled_from([TEXT, BINARY])), b'"%b"' % each.encode(), masked=masked)
            wanted.append(b'"%b"' % each.encode())
            continue
        whole = binary_frame(b'{"n":1}', *each)
        wanted.append((b'{"n":1}\n', each))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
        pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        for at, piece in enumerate(pieces):
            is_last = at == len(pieces) - 1
            stream += fragment(CONTINUATION if at else BINARY, piece, final=is_last, masked=masked)
            if not is_last:
                pings.append(b"ping %d" % len(pings))
                stream += frame(0x9, pings[-1], masked=masked)
    step = data.draw(st.sampled_from([1, 2, 3, 7, 50, len(stream) or 1]))
    intake = TakeAll()
    reader = FrameReader(masked=masked, max_size=10_000, intake=intake)
    came, seen = [], []
    for at in range(0, len(stream), step):
        intake.has_room = data.draw(st.booleans())
        came += reader.feed(stream[at : at + step])
        seen += reader.pings
        if reader.is_waiting and data.draw(st.booleans()):
            intake.has_room = True
            assert reader.go_on()
            came += reader.feed(b"")
            seen += reader.pings
    while reader.is_waiting:
        intake.has_room = True
        assert reader.go_on()
        came += reader.feed(b"")
        seen += reader.pings
    assert contents(came) == wanted
    assert seen == pings
    assert reader.fault is None
    assert reader.bad_frame is None
    assert not reader.partial
    assert intake.finished == sum(isinstance(each, tuple) for each in wanted)


WHOLE = binary_frame(b'{"n":1}', b"a" * 100, b"b" * 9)


@pytest.mark.parametrize("step", [1, 13, 10_000])
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([WHOLE + b"x"], id="a byte behind it"),
        pytest.param([WHOLE, b"x"], id="a byte in a fragment behind it"),
        pytest.param([WHOLE[:-1]], id="a byte is missing"),
        pytest.param([WHOLE[:60], WHOLE[60:-1]], id="a byte is missing in the last fragment"),
        pytest.param([WHOLE[:20]], id="it ends in its JSON"),
        pytest.param([b"@"], id="it ends in its header"),
        pytest.param([b"@", b""], id="an empty last fragment"),
        pytest.param([b"@x 1\n"], id="no number"),
        pytest.param([b"@12 0\n"], id="an empty payload"),
        pytest.param([b"@12\n"], id="no payload"),
        pytest.param([b"@" + b"1 " * 4096], id="an endless header"),
    ],
)
def test_a_message_that_is_no_frame(parts: list[bytes], step: int) -> None:
    stream = b"".join(
        fragment(CONTINUATION if at else BINARY, part, final=at == len(parts) - 1) for at, part in enumerate(parts)
    )
    stream += frame(TEXT, b"1", masked=True)
    reader = FrameReader(masked=True, max_size=10_000, intake=TakeAll())
    came = [each for at in range(0, len(stream), step) for each in reader.feed(stream[at : at + step])]
    assert came == []
    assert reader.bad_frame is not None
    assert reader.bad_frame.code == 1007
    assert reader.fault is None


def test_what_else_may_begin_with_that_byte() -> None:
    """A text message is never a frame; and without an intake nothing is."""
    reader = FrameReader(masked=True, max_size=10_000, intake=TakeAll())
    assert reader.feed(frame(TEXT, WHOLE, masked=True)) == [WHOLE]
    assert FrameReader(masked=True, max_size=10_000).feed(frame(BINARY, WHOLE, masked=True)) == [WHOLE]
    stream = fragment(BINARY, b"") + fragment(CONTINUATION, b"[") + fragment(CONTINUATION, b"1]", final=True)
    assert reader.feed(stream) == [b"[1]"]


@pytest.mark.parametrize("size", [2000, 100_000])
def test_a_frame_over_the_limit(size: int) -> None:
    """It is skipped exactly; of one that is far too large nothing is skipped."""
    reader = FrameReader(masked=True, max_size=1000, intake=TakeAll())
    stream = frame(BINARY, binary_frame(b'{"id":7}', bytes(size)), masked=True) + frame(TEXT, b"1", masked=True)
    came = [each for at in range(0, len(stream), 100) for each in reader.feed(stream[at : at + 100])]
    assert isinstance(came[0], Oversize)
    assert came[0].head == b'{"id":7}\n'
    assert came[1:] == ([b"1"] if size == 2000 else [])
    assert (reader.bad_frame and reader.bad_frame.code) == (None if size == 2000 else 1009)


# -- the server -----------------------------------------------------------------------------------------------------


def make_server(**options: Any) -> Server:
    server = Server(drain_timeout=0.2, **options)

    @server
    def total(values: np.ndarray) -> int:
        return int(values.sum())

    @server
    def echo(values: np.ndarray) -> np.ndarray:
        return values

    @server
    def add(a: int, b: int) -> int:
        return a + b

    return server


def message(*payloads: bytes, method: str = "total", id: Any = 1) -> bytes:
    """A frame of WebSocket with a call that takes this array."""
    params = [array_at(at, len(payload)) for at, payload in enumerate(payloads)]
    return frame(BINARY, binary_frame(request(method, *params, id=id), *payloads), masked=True)


ONES = b"\1" * SIZE


async def test_frames_and_text_side_by_side() -> None:
    """Who has not said that it reads frames gets text, whatever it sends."""
    async with serving(make_server()) as served, served.raw() as raw:
        raw.send(message(ONES), request("add", 1, 2, id=2), message(ONES, method="echo", id=3), request("add", 3, 4))
        assert [await raw.reply() for _ in range(2)] == [
            {"jsonrpc": "2.0", "id": 1, "result": SIZE},
            {"jsonrpc": "2.0", "id": 2, "result": 3},
        ]
        assert len((await raw.reply())["result"]["data"]) > SIZE
        assert (await raw.reply())["result"] == 7


async def test_in_fragments_with_pings() -> None:
    whole = binary_frame(request("total", array_at(0, SIZE)), ONES)
    cuts = [0, 1, 10, 100, 101, 4000, len(whole)]
    pieces = [whole[a:b] for a, b in itertools.pairwise(cuts)]
    async with serving(make_server()) as served, served.raw() as raw:
        for at, piece in enumerate(pieces):
            raw.send(fragment(CONTINUATION if at else BINARY, piece, final=at == len(pieces) - 1))
            raw.send(frame(0x9, b"%d" % at, masked=True))
            assert await raw.pong() == b"%d" % at
        assert (await raw.reply())["result"] == SIZE


WRONG: dict[str, tuple[bytes, int]] = {
    "a payload that stands nowhere": (binary_frame(request("total", 1), ONES), -32600),
    "a payload that stands twice": (binary_frame(request("add", {"$bin": 0}, {"$bin": 0}), ONES), -32600),
    "a number out of range": (binary_frame(request("total", array_at(1, SIZE)), ONES), -32600),
    "another size": (binary_frame(request("total", array_at(0, SIZE + 1)), ONES), -32602),
    "another dtype": (binary_frame(request("total", array_at(0, SIZE, dtype="<f8")), ONES), -32602),
    "an unknown method": (binary_frame(request("none", array_at(0, SIZE)), ONES), -32601),
    "too large": (binary_frame(request("total", array_at(0, 30_000)), bytes(30_000)), -32001),
}


@pytest.mark.parametrize("what", WRONG)
async def test_a_frame_that_is_refused(what: str) -> None:
    """The connection stays."""
    wrong, code = WRONG[what]
    async with serving(make_server(limits=Limits(max_message_size=20_000))) as served, served.raw() as raw:
        raw.send(frame(BINARY, wrong, masked=True), message(ONES, id=2))
        reply = await raw.reply()
        assert (reply["id"], reply["error"]["code"]) == (1, code)
        if code == -32602:
            assert reply["error"]["data"]["parameter"] == "values"
            assert reply["error"]["data"]["path"].startswith("$[0]")
        assert await raw.reply() == {"jsonrpc": "2.0", "id": 2, "result": SIZE}


async def test_a_batch_in_a_frame() -> None:
    async with serving(make_server()) as served, served.raw() as raw:
        raw.send(frame(BINARY, binary_frame([request("total", array_at(0, SIZE))], ONES), masked=True))
        reply = await raw.reply()
        assert (reply["id"], reply["error"]["code"]) == (None, -32600)
        assert await raw.result("add", 1, 2) == 3


async def closing_error(raw: RawWebSocket) -> tuple[dict[str, Any], int]:
    """The error of the last message before the connection is closed, and the code of the close frame."""
    reply = await raw.reply()
    assert await raw.reply() is None
    closed = await raw.closed()
    assert closed is not None
    return reply, closed.code


@pytest.mark.parametrize("broken", [b"@x\n", WHOLE + b"x", WHOLE[:-1]], ids=["header", "longer", "shorter"])
async def test_a_malformed_frame(broken: bytes) -> None:
    """Answered behind what was read before; then the connection is closed."""
    async with serving(make_server()) as served, served.raw() as raw:
        raw.send(request("add", 1, 2), frame(BINARY, broken, masked=True), request("add", 3, 4))
        assert (await raw.reply())["result"] == 3
        reply, code = await closing_error(raw)
        assert (reply["id"], reply["error"]["code"], code) == (None, -32700, 1007)


async def test_far_too_large() -> None:
    async with serving(make_server(limits=Limits(max_message_size=1000))) as served, served.raw() as raw:
        raw.send(frame(BINARY, b"@60 20000\n" + orjson.dumps(request("add", 1, 2)).ljust(60), masked=True))
        reply, code = await closing_error(raw)
        assert (reply["id"], reply["error"]["code"], code) == (1, -32001, 1009)


@pytest.mark.parametrize("options", [{"token": "open-sesame"}, {"binary": False}], ids=["no token", "switched off"])
@pytest.mark.parametrize("step", [1, 10_000])
async def test_no_frame_may_come(options: dict[str, Any], step: int) -> None:
    """Before authentication, and where frames are switched off, in however many pieces it comes."""
    async with serving(make_server(**options)) as served, served.raw() as raw:
        stream = message(ONES)[:60]
        for at in range(0, len(stream), step):
            raw.send(stream[at : at + step])
            await raw.writer.drain()
            await asyncio.sleep(0)
        reply, code = await closing_error(raw)
        assert (reply["id"], reply["error"]["code"], code) == (None, -32700, 1007)


async def test_after_authentication() -> None:
    async with serving(make_server(token="open-sesame")) as served, served.raw() as raw:
        assert await raw.result("rpc.authenticate", "open-sesame") is True
        raw.send(message(ONES))
        assert (await raw.reply())["result"] == SIZE


# -- memory ---------------------------------------------------------------------------------------------------------


async def test_frames_wait_for_memory() -> None:
    """What all payloads under way take is bounded: over it a connection is not read, and goes on when there is room."""
    server = make_server(limits=Limits(max_message_size=1_200_000, max_held_total=1_400_000))
    big = message(bytes(800_000))
    async with serving(server) as served, served.raw() as first, served.raw() as second:
        first.send(big[:600_000])
        await until(lambda: message_memory(server).waiting > 500_000)
        second.send(big, request("add", 1, 2, id=2))
        await until(lambda: bool(message_memory(server).waiters))
        first.send(big[600_000:])
        assert (await first.reply())["result"] == 0
        assert [(await second.reply())["result"] for _ in range(2)] == [0, 3]
        assert message_memory(server).waiting == 0


@pytest.mark.parametrize("says_so", [True, False])
async def test_a_connection_ends_that_waits_for_memory(says_so: bool) -> None:
    """Others are not kept waiting; a server that stops does not wait for it either."""
    server = make_server(limits=Limits(max_message_size=1_200_000, max_held_total=1_400_000))
    big = message(bytes(800_000))
    async with serving(server) as served, served.raw() as first:
        async with served.raw() as second:
            first.send(big[:600_000])
            await until(lambda: message_memory(server).waiting > 500_000)
            second.send(big)
            await until(lambda: bool(message_memory(server).waiters))
            if says_so:
                served.streams[1].close()
                assert (await second.close_frame()).code == 1001
                second.say_close()
                assert (await second.closed()) is not None
        if says_so:
            await until(lambda: not served.streams[1].is_open)
        async with served.raw() as third:
            third.send(big)
            first.send(big[600_000:])
            assert (await first.reply())["result"] == 0
            assert (await third.reply())["result"] == 0
        await until(lambda: not served.streams[1].is_open)
        assert message_memory(server).waiting == 0


async def test_a_frame_that_comes_too_slowly() -> None:
    """While others wait it loses its memory: the rest of it is skipped, and the connection goes on."""
    server = make_server()
    big = message(bytes(800_000))
    async with serving(server) as served, served.raw() as raw:
        raw.send(big[:600_000])
        await until(lambda: bool(message_memory(server).receiving))
        (slow,) = message_memory(server).receiving
        slow.give_way()
        assert message_memory(server).waiting == 0
        raw.send(big[600_000:], message(ONES, id=2))
        reply = await raw.reply()
        assert (reply["id"], reply["error"]["code"]) == (1, -32002)
        assert await raw.reply() == {"jsonrpc": "2.0", "id": 2, "result": SIZE}


async def test_a_frame_that_never_ends_gives_its_memory_back() -> None:
    server = make_server()
    async with serving(server) as served:
        async with served.raw() as raw:
            raw.send(message(bytes(800_000))[:600_000])
            await until(lambda: message_memory(server).waiting > 500_000)
        await until(lambda: message_memory(server).waiting == 0)


# -- both ends are ours ---------------------------------------------------------------------------------------------


class Traced:
    """A client that keeps the beginnings of its messages."""

    def __init__(self, served: WebSocketServer, **options: Any) -> None:
        self.seen: list[tuple[str, bytes]] = []
        self.client = AsyncClient(
            served.url, trace=lambda way, message: self.seen.append((way, message[:30])), **options
        )

    def frames(self, way: str) -> int:
        return sum(message[:1] == b"@" for each, message in self.seen if each == way)


@pytest.mark.parametrize("client_reads", [True, False])
@pytest.mark.parametrize("server_reads", [True, False])
async def test_frames_where_both_ends_want_them(client_reads: bool, server_reads: bool) -> None:
    values = np.arange(SIZE)
    async with serving(make_server(binary=server_reads)) as served:
        traced = Traced(served, binary=client_reads)
        async with traced.client as client:
            for _ in range(3):
                assert np.array_equal(await client.call("echo", values), values)
                assert await client.call("add", 1, 2) == 3
    both = client_reads and server_reads
    # The first call goes as text, together with the question.
    assert (traced.frames("send"), traced.frames("receive")) == ((2, 3) if both else (0, 0))


async def test_connections_without_arrays_see_nothing_of_it() -> None:
    async with serving(make_server()) as served:
        traced = Traced(served)
        async with traced.client as client:
            assert await client.call("add", 1, 2) == 3
    assert len(traced.seen) == 2


async def test_what_is_changed_after_the_call_was_sent_as_it_was() -> None:
    """By the handler's own code while the client does not read, and by the caller as soon as the call is begun."""
    server = Server(drain_timeout=0.2)
    kept = np.zeros(8_000_000, np.uint8)

    @server
    def zeros() -> np.ndarray:
        asyncio.get_running_loop().call_soon(kept.fill, 1)
        return kept

    @server
    def total(values: np.ndarray) -> int:
        return int(values.sum(dtype=np.int64))

    async with serving(server) as served:
        traced = Traced(served)
        async with traced.client as client:
            assert await client.call("total", np.ones(SIZE)) == SIZE
            values = np.zeros(8_000_000, np.uint8)
            call = asyncio.ensure_future(client.call("total", values))
            await until(lambda: traced.frames("send") == 1)
            values.fill(1)
            assert await call == 0
            assert not (await client.call("zeros")).any()
    assert traced.frames("receive") == 1


@pytest.mark.parametrize("way", ["progress", "items", "events", "callback"])
async def test_other_messages_than_calls(way: str) -> None:
    server, values = Server(drain_timeout=0.2), np.arange(SIZE)

    @server
    async def progress(ctx: Context) -> None:
        ctx.progress(values)

    @server
    async def items() -> Any:
        yield values

    @server
    async def callback(ctx: Context) -> Any:
        return await ctx.peer.mirrored(values)

    @server
    def events() -> int:
        return server.publish("news", values)

    @server
    def total(values: np.ndarray) -> int:
        return int(values.sum())

    got: list[Any] = []
    async with serving(server) as served:
        traced = Traced(served)
        async with traced.client as client:
            client(lambda values: values, name="mirrored")
            assert await client.call("total", values) == values.sum()
            if way == "items":
                got += [item async for item in client.stream("items")]
            elif way == "progress":
                await client.call("progress", on_progress=got.append)
            elif way == "callback":
                got.append(await client.call("callback"))
            else:
                async with client.subscribe("news") as subscription:
                    await client.call("events")
                    got.append(await anext(aiter(subscription)))
    assert len(got) == 1
    assert np.array_equal(got[0], values)
    assert traced.frames("receive") >= 1
