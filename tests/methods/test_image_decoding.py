"""Images as arguments: where they are decoded, which calls wait meanwhile, and their memory at a server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from PIL import Image

from rpcstream import Context, InvalidParams, Limits, Server
from rpcstream.testing import memory_client

from ..kit import RawPeer, raw_peers, request

SMALL, LARGE = Image.new("L", (100, 100)), Image.new("L", (600, 600))


def wire(image: Image.Image, name: str = "png") -> dict[str, Any]:
    file = io.BytesIO()
    image.save(file, name)
    return {"$type": "image", "format": name, "data": base64.b64encode(file.getvalue()).decode()}


class Decoding:
    """Watches files being decoded, and holds up those in other threads while its gate is shut."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.began = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self._main = threading.get_ident()

    def decoder(self, mode: str, *args: Any) -> Any:
        """In the place of Pillow's decoder of PNG files."""
        is_here = threading.get_ident() == self._main
        self.threads.append("loop" if is_here else threading.current_thread().name)
        self.began.release()
        assert is_here or self.gate.wait(20)
        return Image.core.zip_decoder(mode, *args)  # type: ignore[attr-defined]

    async def begun(self) -> None:
        assert await asyncio.to_thread(self.began.acquire, timeout=20)


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Iterator[Decoding]:
    watching = Decoding()
    monkeypatch.setitem(Image.DECODERS, "zip", watching.decoder)  # type: ignore[arg-type]
    yield watching
    watching.gate.set()


def make_server(**limits: Any) -> Server:
    server = Server(limits=Limits(**limits), drain_timeout=0.5)
    log = server.state.log = []

    @server
    def size(image: Image.Image, mark: str = "") -> list[int]:
        log.append(mark)
        return list(image.size)

    @server
    def note(mark: str) -> str:
        log.append(mark)
        return mark

    @server
    async def later(image: Image.Image) -> list[int]:
        return list(image.size)

    @server(ordered=True)
    async def ordered(mark: str, image: Image.Image | None = None) -> str:
        log.append(mark)
        return mark

    @server
    async def with_context(image: Image.Image, ctx: Context) -> int:
        return image.width if ctx.method == "with_context" else 0

    @server
    async def rows(image: Image.Image) -> AsyncIterator[int]:
        yield image.width

    @server
    async def widths(images: AsyncIterator[Image.Image], first: Image.Image) -> list[int]:
        return [first.width, *[image.width async for image in images]]

    @server(offload="thread")
    def widths_in_thread(images: Iterator[Image.Image]) -> list[int]:
        return [image.width for image in images]

    @server.batched(max_size=4, max_wait=0)
    def many(images: list[Image.Image]) -> list[int]:
        return [image.width for image in images]

    server.add(lambda value: value, name="echo")
    server.add(size, name="in_thread", offload="thread")
    return server


@contextlib.asynccontextmanager
async def serving(server: Server) -> AsyncIterator[Callable[..., Awaitable[RawPeer]]]:
    """Connects to it. At the end, the memory of all images was given back: so many of them have room again."""
    async with raw_peers(server) as connect:
        yield connect
        raw = await connect()
        for n in range(3):
            assert await raw.result("size", wire(LARGE), id=n) == [600, 600]


@pytest.mark.parametrize(
    ("method", "params", "thread"),
    [
        *((method, [wire(SMALL)], "loop") for method in ("size", "later", "with_context", "many", "rows")),
        *((method, [wire(LARGE)], "rpcstream-images") for method in ("size", "later", "with_context", "many", "rows")),
        *(("size", [wire(image)["data"]], thread) for image, thread in ((SMALL, "loop"), (LARGE, "rpcstream-images"))),
        *(("echo", [[wire(SMALL)] * n], thread) for n, thread in ((1, "loop"), (20, "rpcstream-images"))),
        ("in_thread", [wire(SMALL)], "rpcstream-images"),
    ],
)
async def test_where_images_are_decoded(method: str, params: list[Any], thread: str, decoding: Decoding) -> None:
    async with serving(make_server()) as connect:
        raw = await connect()
        await raw.result(method, *params)
        assert decoding.threads[-1].startswith(thread)


async def test_handlers_keep_the_order_of_a_connection_and_others_are_served(decoding: Decoding) -> None:
    server = make_server()
    async with serving(server) as connect:
        decoding.gate.clear()
        raw, other = await connect(), await connect()
        calls = [("note", "a"), ("size", wire(LARGE), "b"), ("note", "c"), ("size", wire(SMALL), "d")]
        calls += [("ordered", "e", wire(LARGE)), ("ordered", "f"), ("size", wire(LARGE), "g"), ("note", "h")]
        raw.send(*[request(*call, id=n) for n, call in enumerate(calls)])
        assert (await raw.reply())["id"] == 0
        await decoding.begun()
        assert await other.result("note", "other") == "other"
        assert server.state.log == ["a", "other"]
        # Async and offloaded handlers hold nobody up.
        other.send(*[request(name, wire(LARGE), id=name) for name in ("later", "in_thread", "many")])
        assert await other.result("note", "x", id="x") == "x"
        decoding.gate.set()
        assert all("result" in each for each in await other.receive_many(3))
        assert sorted([(await raw.reply())["id"] for _ in range(7)]) == [1, 2, 3, 4, 5, 6, 7]
    assert [each for each in server.state.log if each in "abcdefgh" and each] == list("abcdefgh")


@pytest.mark.parametrize(
    ("method", "how"),
    [("size", "cancelled"), ("size", "lost"), ("later", "late"), ("later", "lost"), ("ordered", "cancelled")],
)
async def test_a_call_is_given_up_while_its_image_is_decoded(method: str, how: str, decoding: Decoding) -> None:
    async with serving(make_server()) as connect:
        decoding.gate.clear()
        raw, other = await connect(), await connect()
        params = ["a", wire(LARGE)] if method == "ordered" else [wire(LARGE)]
        raw.send(request(method, *params, timeout=0.05 if how == "late" else 60), request("note", "next", id=2))
        await decoding.begun()
        if how == "lost":
            raw.close()
            assert await other.result("note", "x") == "x"
        else:
            if how == "cancelled":
                raw.cancel(1)
            answers = {answer["id"]: answer for answer in await raw.receive_many(2)}
            assert answers[1]["error"]["code"] == (-32800 if how == "cancelled" else -32003)
            assert answers[2]["result"] == "next"
        decoding.gate.set()


async def test_a_batch_is_taken_up_in_its_order(decoding: Decoding) -> None:
    server = make_server()
    async with serving(server) as connect:
        decoding.gate.clear()
        raw = await connect()
        batch = [
            request("size", wire(LARGE), "a", id=1),
            request("note", "b", id=2),
            request("later", wire(LARGE), id=3),
            request("with_context", wire(LARGE), id=4),
            {"jsonrpc": "2.0", "method": "size", "params": [wire(LARGE), "c"]},
            request("note", "d", id=5),
        ]
        raw.send(batch, request("note", "e", id=6))
        await decoding.begun()
        assert server.state.log == []
        decoding.gate.set()
        (together,) = [answer for answer in await raw.receive_many(2) if isinstance(answer, list)]
        assert [member["id"] for member in together] == [1, 2, 3, 4, 5]
        assert all("result" in member for member in together)
        assert server.state.log == list("abcde")


async def test_what_is_wrong_with_an_image_is_said_as_ever_and_a_batch_is_one_message_for_the_limits() -> None:
    async with serving(make_server(max_image_pixels=800_000)) as connect:
        raw = await connect()
        broken = {**wire(LARGE), "data": wire(LARGE)["data"][:100]}
        for method in ("size", "later", "in_thread", "many"):
            for image in (broken, wire(Image.new("L", (1000, 1000))), 5):
                error = (await raw.reply(method, image))["error"]
                assert (error["code"], error["data"]["parameter"][:5]) == (-32602, "image")
            answer = await raw.ask([request(method, wire(LARGE), id=n) for n in range(3)])
            assert sorted(["error" in member for member in answer]) == [False, False, True]


async def test_images_as_items_of_a_stream() -> None:
    async with memory_client(make_server()) as client:
        images = [SMALL, LARGE, SMALL, LARGE]
        assert await client.call("widths", images=iter(images), first=LARGE) == [600, 100, 600, 100, 600]
        assert await client.call("widths_in_thread", images=iter(images)) == [100, 600, 100, 600]
        assert await client.call("widths_in_thread", images=images) == [100, 600, 100, 600]
        with pytest.raises(InvalidParams):
            await client.call("widths", images=iter([LARGE, 5]), first=SMALL)


async def test_calls_wait_for_memory_and_connections_take_turns(
    decoding: Decoding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Limits, "max_image_memory", 2_000_000)  # one of the large ones, or a little more
    async with serving(make_server()) as connect:
        decoding.gate.clear()
        raw, other = await connect(), await connect()
        raw.send(*[request("later", wire(LARGE), id=f"a{n}") for n in range(4)])
        await decoding.begun()
        other.call("later", wire(LARGE), id="b")
        assert await other.result("note", "x") == "x"
        decoding.gate.set()
        assert (await other.reply())["id"] == "b"
        assert [reply["id"] for reply in await raw.receive_many(4)] == ["a0", "a1", "a2", "a3"]
        for each in (raw, other):
            each.send(*[request(("in_thread", "size", "many")[n % 3], wire(LARGE), id=n) for n in range(6)])
        for each in (raw, other):
            assert {reply["id"] for reply in await each.receive_many(6) if "result" in reply} == set(range(6))


async def test_images_that_handlers_hold_take_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "max_image_memory", 100_000)
    server, go = make_server(), asyncio.Event()

    @server
    async def hold(image: Image.Image) -> str:
        server.state.log.append("held")
        await go.wait()
        return "done"

    async with serving(server) as connect:
        raw = await connect()
        raw.send(*[request("hold", wire(SMALL), id=n) for n in range(6)])
        assert await raw.result("note", "x") == "x"
        assert server.state.log.count("held") == 2  # 40,000 bytes each
        go.set()
        assert sorted([each["id"] for each in await raw.receive_many(6)]) == list(range(6))


async def test_too_many_that_wait_are_told(decoding: Decoding) -> None:
    async with serving(make_server(max_queue=2)) as connect:
        decoding.gate.clear()
        raw = await connect()
        raw.send(*[request("later", wire(LARGE), id=n) for n in range(5)])
        assert [await raw.code(), await raw.code()] == [-32002] * 2
        decoding.gate.set()
        assert all("result" in each for each in await raw.receive_many(3))
