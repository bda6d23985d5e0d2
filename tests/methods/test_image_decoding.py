"""Images as arguments: where they are decoded, which calls wait meanwhile, and their memory at a server."""

from __future__ import annotations

import asyncio
import base64
import functools
import io
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import orjson
import pytest
from PIL import Image

from rpcstream import AsyncClient, Context, InvalidParams, Limits, RpcError, Server
from rpcstream.codec import image_files
from rpcstream.methods.image_decoding import MAX_DECODERS, ImageDecoder, ImageMemory
from rpcstream.testing import memory_client
from rpcstream.wire import envelope

from ..internals import invoker_of

SMALL, LARGE = Image.new("L", (100, 100)), Image.new("L", (600, 600))


def wire(image: Image.Image, name: str = "png") -> dict[str, Any]:
    file = io.BytesIO()
    image.save(file, name)
    return {"$type": "image", "format": name, "data": base64.b64encode(file.getvalue()).decode()}


@functools.cache
def too_many_pixels() -> dict[str, Any]:
    return wire(Image.new("L", (70_000, 1000)))


def request(method: str, *params: Any, call_id: Any = 1, **members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "method": method, "params": list(params), **members}


def lines(*messages: Any) -> bytes:
    return b"".join(orjson.dumps(message) + b"\n" for message in messages)


class Decoding:
    """Watches files being decoded, and holds up those in other threads while it is shut."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.began = threading.Semaphore(0)
        self._open = threading.Event()
        self._open.set()
        self._main = threading.get_ident()

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def watch(self, examine: Callable[..., int]) -> Callable[..., int]:
        def watched(*args: Any) -> int:
            is_here = threading.get_ident() == self._main
            self.threads.append("loop" if is_here else threading.current_thread().name)
            self.began.release()
            assert is_here or self._open.wait(20)
            return examine(*args)

        return watched

    async def begun(self) -> None:
        assert await asyncio.to_thread(self.began.acquire, timeout=20)


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Iterator[Decoding]:
    watching = Decoding()
    monkeypatch.setattr(image_files, "examine", watching.watch(image_files.examine))
    yield watching
    watching.open()


def process_size(image: Image.Image) -> list[int]:
    return list(image.size)


def make_server(**limits: Any) -> Server:
    server = Server(limits=Limits(**limits), drain_timeout=0.5, processes=1)
    server.state.log = []

    @server
    def size(image: Image.Image, mark: str = "") -> list[int]:
        server.state.log.append(mark)
        return list(image.size)

    @server
    def echo(value: Any) -> Any:
        return value

    @server
    def note(mark: str) -> str:
        server.state.log.append(mark)
        return mark

    @server
    async def later(image: Image.Image) -> list[int]:
        return list(image.size)

    @server(offload="thread")
    def in_thread(image: Image.Image) -> list[int]:
        return list(image.size)

    server.add(process_size, offload="process")

    @server(offload="thread")
    def anything(value: Any) -> list[int]:
        return list(value[0].size)

    @server(ordered=True)
    async def ordered(mark: str, image: Image.Image | None = None) -> str:
        server.state.log.append(mark)
        return mark

    @server
    async def with_context(image: Image.Image, ctx: Context) -> int:
        ctx.progress(1)
        return image.width

    @server
    async def rows(image: Image.Image) -> AsyncIterator[int]:
        for y in range(3):
            yield image.width + y

    @server
    async def widths(images: AsyncIterator[Image.Image], first: Image.Image) -> list[int]:
        return [first.width, *[image.width async for image in images]]

    @server(offload="thread")
    def widths_in_thread(images: Iterator[Image.Image]) -> list[int]:
        return [image.width for image in images]

    @server.batched(max_size=4, max_wait=0)
    def many(images: list[Image.Image]) -> list[int]:
        return [image.width for image in images]

    return server


def room_of(server: Server) -> ImageDecoder:
    return invoker_of(server).images


@pytest.fixture
async def server() -> Server:
    return make_server()


@pytest.fixture
async def address(server: Server) -> AsyncIterator[str]:
    async with server.listening(port=0) as address:
        yield address
        for _ in range(100):
            if not room_of(server).used:
                break
            await asyncio.sleep(0.02)
        assert room_of(server).used == 0


@pytest.mark.parametrize(
    ("method", "params", "thread"),
    [
        ("size", [wire(SMALL)], "loop"),
        ("size", [wire(SMALL)["data"]], "loop"),
        ("echo", [[wire(SMALL)]], "loop"),
        ("later", [wire(SMALL)], "loop"),
        ("with_context", [wire(SMALL)], "loop"),
        ("many", [wire(SMALL)], "loop"),
        ("size", [wire(LARGE)], "image"),
        ("size", [wire(LARGE)["data"]], "image"),
        ("echo", [wire(LARGE)], "image"),
        ("later", [wire(LARGE)], "image"),
        ("with_context", [wire(LARGE)], "image"),
        ("many", [wire(LARGE)], "image"),
        ("in_thread", [wire(SMALL)], "image"),
        ("anything", [[wire(SMALL)]], "image"),
        ("process_size", [wire(SMALL)], "image"),
        ("echo", [[wire(SMALL)] * 20], "image"),
    ],
)
async def test_where_images_are_decoded(
    method: str, params: list[Any], thread: str, address: str, connect: Any, decoding: Decoding
) -> None:
    raw = await connect(address)
    await raw.send(lines(request(method, *params)))
    answer = await raw.reply()
    while "id" not in answer:  # progress
        answer = await raw.reply()
    assert "result" in answer, answer
    assert decoding.threads[-1].startswith("loop" if thread == "loop" else "rpcstream-images")


async def test_sync_handlers_of_a_connection_keep_their_order(
    address: str, connect: Any, server: Server, decoding: Decoding
) -> None:
    decoding.shut()
    raw, other = await connect(address), await connect(address)
    await raw.send(
        lines(
            request("note", "a", call_id=1),
            request("size", wire(LARGE), "b", call_id=2),
            request("note", "c", call_id=3),
            request("size", wire(SMALL), "d", call_id=4),
            request("size", wire(LARGE), "e", call_id=5),
            request("note", "f", call_id=6),
        )
    )
    assert (await raw.reply())["id"] == 1
    await decoding.begun()  # here, as far as the event loop decodes
    await decoding.begun()
    assert (await other.call("note", ["other"]))["result"] == "other"
    assert server.state.log == ["a", "other"]
    decoding.open()
    assert [(await raw.reply())["id"] for _ in range(5)] == [2, 3, 4, 5, 6]
    assert server.state.log == ["a", "other", *"bcdef"]


async def test_async_and_offloaded_handlers_hold_nobody_up(address: str, connect: Any, decoding: Decoding) -> None:
    decoding.shut()
    raw = await connect(address)
    for call_id, method in enumerate(("later", "in_thread", "process_size", "many")):
        await raw.send(lines(request(method, wire(LARGE), call_id=call_id)))
    assert (await raw.call("note", ["x"], "x"))["id"] == "x"
    decoding.open()
    assert sorted([(await raw.reply())["id"] for _ in range(4)]) == [0, 1, 2, 3]


async def test_ordered_methods_keep_their_order(address: str, connect: Any, server: Server, decoding: Decoding) -> None:
    raw = await connect(address)
    await raw.send(
        lines(
            request("ordered", "a", wire(LARGE), call_id=1),
            request("ordered", "b", call_id=2),
            request("ordered", "c", wire(LARGE), call_id=3),
            request("ordered", "d", call_id=4),
        )
    )
    assert [(await raw.reply())["id"] for _ in range(4)] == [1, 2, 3, 4]
    assert server.state.log == list("abcd")


@pytest.mark.parametrize("method", ["size", "later", "in_thread", "with_context", "ordered"])
async def test_a_call_is_cancelled_while_its_image_is_decoded(
    method: str, address: str, connect: Any, decoding: Decoding
) -> None:
    decoding.shut()
    raw = await connect(address)
    params = [wire(LARGE)] if method != "ordered" else ["a", wire(LARGE)]
    await raw.send(lines(request(method, *params), request("note", "next", call_id=2)))
    await decoding.begun()
    await raw.send(lines({"jsonrpc": "2.0", "method": envelope.CANCEL, "params": {"id": 1}}))
    answers = {answer["id"]: answer for answer in [await raw.reply(), await raw.reply()]}
    assert answers[1]["error"]["code"] == -32800
    assert answers[2]["result"] == "next"
    decoding.open()


@pytest.mark.parametrize("method", ["size", "later", "in_thread"])
async def test_the_callers_deadline_counts_while_its_image_is_decoded(
    method: str, address: str, connect: Any, decoding: Decoding
) -> None:
    decoding.shut()
    raw = await connect(address)
    await raw.send(lines(request(method, wire(LARGE), timeout=0.05), request("note", "next", call_id=2)))
    answers = {answer["id"]: answer for answer in [await raw.reply(), await raw.reply()]}
    assert answers[1]["error"]["code"] == -32003
    assert answers[2]["result"] == "next"
    decoding.open()


@pytest.mark.parametrize("method", ["size", "later", "in_thread", "with_context"])
async def test_a_connection_is_lost_while_an_image_is_decoded(
    method: str, address: str, connect: Any, server: Server, decoding: Decoding
) -> None:
    decoding.shut()
    raw = await connect(address)
    await raw.send(lines(*[request(method, wire(LARGE), call_id=n) for n in range(5)]))
    await decoding.begun()
    raw.writer.transport.abort()
    other = await connect(address)
    assert (await other.call("note", ["x"]))["result"] == "x"
    decoding.open()
    assert (await other.call("size", [wire(LARGE)]))["result"] == [600, 600]


async def test_a_batch_is_taken_up_in_its_order(address: str, connect: Any, server: Server, decoding: Decoding) -> None:
    decoding.shut()
    raw = await connect(address)
    batch = [
        request("size", wire(LARGE), "a", call_id=1),
        request("note", "b", call_id=2),
        request("later", wire(LARGE), call_id=3),
        request("with_context", wire(LARGE), call_id=4),
        {"jsonrpc": "2.0", "method": "size", "params": [wire(LARGE), "c"]},
        request("note", "d", call_id=5),
    ]
    await raw.send(lines(batch, request("note", "e", call_id=6)))
    await decoding.begun()
    assert server.state.log == []
    decoding.open()
    answers = [await raw.reply(), await raw.reply()]
    while not all(isinstance(answer, list) or "id" in answer for answer in answers):
        answers = [answer for answer in answers if isinstance(answer, list) or "id" in answer] + [await raw.reply()]
    (together,) = [answer for answer in answers if isinstance(answer, list)]
    assert [member["id"] for member in together] == [1, 2, 3, 4, 5]
    assert all("result" in member for member in together)
    assert server.state.log == list("abcde")


async def test_a_batch_is_one_message_for_the_limits(connect: Any) -> None:
    server = make_server(max_image_pixels=400_000, max_message_pixels=800_000)
    async with server.listening(port=0) as address:
        raw = await connect(address)
        for method in ("size", "echo", "later", "in_thread"):
            batch = [request(method, wire(LARGE), call_id=n) for n in range(3)]
            answer = await raw.ask(orjson.dumps(batch))
            codes = [member.get("error", {}).get("code") for member in answer]
            assert sorted(codes, key=str) == [-32602, None, None]
        assert "result" in await raw.call("size", [wire(LARGE)])


@pytest.mark.parametrize("method", ["size", "later", "in_thread", "process_size", "with_context", "many"])
async def test_what_is_wrong_with_an_image_is_said_as_ever(method: str, address: str, connect: Any) -> None:
    raw = await connect(address)
    broken = wire(LARGE)
    broken["data"] = broken["data"][:100]
    for image in (broken, too_many_pixels(), 5, {"$type": "bytes", "data": ""}):
        answer = await raw.call(method, [image])
        assert answer["error"]["code"] == -32602
        assert answer["error"]["data"]["parameter"].startswith("image")


async def test_images_as_items_of_a_stream() -> None:
    server = make_server()
    async with memory_client(server) as client:
        assert isinstance(client, AsyncClient)
        images = [SMALL, LARGE, SMALL, LARGE]
        assert await client.call("widths", images=iter(images), first=LARGE) == [600, 100, 600, 100, 600]
        assert await client.call("widths", images=iter([]), first=LARGE) == [600]
        assert await client.call("widths_in_thread", images=iter(images)) == [100, 600, 100, 600]
        assert await client.call("widths_in_thread", images=images) == [100, 600, 100, 600]
        assert [row async for row in client.stream("rows", LARGE)] == [600, 601, 602]
        assert await client.rows(LARGE) == [600, 601, 602]
        with pytest.raises(InvalidParams):
            await client.call("widths", images=iter([LARGE, 5]), first=SMALL)
        assert room_of(server).used == 0


async def test_over_http(address: str, connect: Any) -> None:
    body = orjson.dumps([request("size", wire(LARGE), call_id=1), request("note", "x", call_id=2)])
    head = f"POST / HTTP/1.1\r\nHost: {address.removeprefix('tcp://')}\r\nContent-Type: application/json\r\n"
    raw = await connect(address)
    for _ in range(2):
        await raw.send(head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        text = await asyncio.wait_for(raw.reader.readuntil(b"\r\n\r\n"), 20)
        length = int(text.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        answer = orjson.loads(await raw.reader.readexactly(length))
        assert [member["result"] for member in answer] == [[600, 600], "x"]


async def test_calls_wait_for_memory_and_none_is_lost(connect: Any) -> None:
    server = make_server(max_image_memory=2_000_000)  # one of the large ones, or a little more
    async with server.listening(port=0) as address:
        raws = [await connect(address) for _ in range(4)]
        for raw in raws:
            for n in range(10):
                await raw.send(lines(request(("later", "in_thread", "size", "many")[n % 4], wire(LARGE), call_id=n)))
        for raw in raws:
            answers = [await raw.reply() for _ in range(10)]
            assert sorted(answer["id"] for answer in answers) == list(range(10))
            assert all("result" in answer for answer in answers)
        assert room_of(server).used == 0


async def test_images_that_handlers_hold_take_room(connect: Any) -> None:
    server, go = make_server(max_image_memory=100_000), asyncio.Event()

    @server
    async def hold(image: Image.Image) -> str:
        server.state.log.append("held")
        await go.wait()
        return "done"

    async with server.listening(port=0) as address:
        raw = await connect(address)
        for n in range(6):
            await raw.send(lines(request("hold", wire(SMALL), call_id=n)))
        assert (await raw.call("note", ["x"], "x"))["result"] == "x"
        assert room_of(server).used <= 100_000
        assert server.state.log.count("held") == 2  # 40,000 bytes each
        go.set()
        assert sorted([(await raw.reply())["id"] for _ in range(6)]) == list(range(6))


async def test_too_many_that_wait_are_told(connect: Any, decoding: Decoding) -> None:
    decoding.shut()
    server = make_server(max_queue=2)
    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(*[request("later", wire(LARGE), call_id=n) for n in range(5)]))
        refused = [await raw.reply(), await raw.reply()]
        assert [answer["error"]["code"] for answer in refused] == [-32002] * 2
        decoding.open()
        assert [("result" in await raw.reply()) for _ in range(3)] == [True] * 3


# -- the room by itself ------------------------------------------------------------------------------------------------


class Asked:
    """Calls `decode` with functions that end when they are told to."""

    def __init__(self, room: ImageDecoder) -> None:
        self.room = room
        self.began: list[str] = []
        self._ends: dict[str, threading.Event] = {}

    def ask(self, owner: str, name: str, size: int, kept: int = 0) -> asyncio.Task[tuple[str, ImageMemory]]:
        end = self._ends[name] = threading.Event()

        def work() -> tuple[str, int]:
            self.began.append(name)
            assert end.wait(20)
            return name, kept

        return asyncio.get_running_loop().create_task(self.room.decode(owner, size, work))

    def end(self, name: str) -> None:
        self._ends[name].set()

    async def until(self, *began: str) -> None:
        while self.began != list(began):
            await asyncio.sleep(0.005)


@pytest.fixture
async def room() -> AsyncIterator[ImageDecoder]:
    room = ImageDecoder(max_memory=100, max_waiting=10)
    yield room
    room.close()


async def test_owners_take_turns_and_each_has_one_at_a_time(room: ImageDecoder) -> None:
    asked = Asked(room)
    tasks = [asked.ask("a", name, 60) for name in ("a1", "a2", "a3")] + [asked.ask("b", "b1", 60)]
    await asked.until("a1")
    for ended, then in [("a1", "a2"), ("a2", "b1"), ("b1", "a3")] if MAX_DECODERS == 1 else []:
        asked.end(ended)
        await asked.until(*asked.began, then)
    for name in ("a1", "a2", "a3", "b1"):
        asked.end(name)
    assert [(await task)[0] for task in tasks] == ["a1", "a2", "a3", "b1"]
    assert asked.began.index("b1") < asked.began.index("a3")
    assert room.used == 0


async def test_what_is_kept_is_counted_until_it_is_given_back(room: ImageDecoder) -> None:
    asked = Asked(room)
    first = asked.ask("a", "first", 500, kept=70)  # alone, it may take more than there is
    await asked.until("first")
    assert room.used == 500
    second = asked.ask("b", "second", 40)
    asked.end("first")
    _, lease = await first
    assert (room.used, asked.began) == (70, ["first"])
    assert room.keep(10) is None  # no smaller one goes before the one that waits
    lease.release()
    await asked.until("first", "second")
    asked.end("second")
    await second
    lease.release()
    assert room.used == 0


async def test_who_is_cancelled_leaves_nothing(room: ImageDecoder) -> None:
    asked = Asked(room)
    running, waiting = asked.ask("a", "running", 90, kept=50), asked.ask("b", "waiting", 90)
    await asked.until("running")
    waiting.cancel()
    running.cancel()
    await asyncio.gather(waiting, running, return_exceptions=True)
    assert room.used == 90  # the thread cannot be stopped
    asked.end("running")
    last = asked.ask("c", "last", 90)
    asked.end("last")
    assert (await last)[0] == "last"
    assert (room.used, asked.began) == (0, ["running", "last"])


async def test_errors_give_the_memory_back(room: ImageDecoder) -> None:
    def fail() -> tuple[None, int]:
        raise RpcError(5, "no")

    with pytest.raises(RpcError, match="no"):
        await room.decode("a", 50, fail)
    assert room.used == 0


async def test_a_lease_that_is_dropped_is_given_back(room: ImageDecoder) -> None:
    lease = room.keep(30)
    assert lease is not None
    del lease
    await asyncio.sleep(0)
    assert room.used == 0
