"""Arguments by position and by name in one call: the client asks the server once how the parameters are named."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rpcstream import AsyncClient, Client, Context, InvalidParams
from rpcstream.testing import memory_client, serve_in_thread

from ..kit import UsualServer, until
from .conftest import MakeClient, Scripted, Traced, refusal


class Server(UsualServer):
    """With methods of several parameters; `segment` has other names in a later one."""

    def __init__(self, *, is_later: bool = False) -> None:
        super().__init__()

        def segment(image: str, size: int = 1, *, parts: int = 2) -> list[Any]:
            return [image, size, parts]

        def segment_later(picture: str, size: int = 7, *, parts: int = 2) -> list[Any]:
            return [picture, size, parts]

        @self
        def must(first: str, /, second: int = 5, *, third: int) -> list[Any]:
            return [first, second, third]

        @self
        def numbers(*values: int, start: int = 0) -> int:
            return start + sum(values)

        @self
        def tell(what: str, how: str = "?") -> None:
            self.noted.append([what, how])

        @self
        def items(n: int, step: int = 1) -> Iterator[int]:
            yield from range(0, n * step, step)

        @self
        async def sums(values: AsyncIterator[int], start: int = 0) -> int:
            return start + sum([value async for value in values])

        self.add(segment_later if is_later else segment, name="segment")


@pytest.mark.parametrize("scheme", ["", "http://", "ws://"])
async def test_all_kinds_of_calls(served: str, server: UsualServer, scheme: str) -> None:
    with Client(scheme + served, trace=(traced := Traced())) as client:
        assert client.segment("x", 3, parts=4) == ["x", 3, 4]
        assert client.must("a", third=1) == ["a", 5, 1]
        assert client.call("segment", "y", parts=1, timeout=5) == ["y", 1, 1]
        assert client.submit.segment("z", size=2).result() == ["z", 2, 2]
        client.notify.tell("a", how=scheme)
        with client.batch() as batch:
            first, second = batch.segment("b", parts=9), batch.segment("c")
            batch.notify.tell("b", how=scheme)
        assert (first.result(), second.result()) == (["b", 1, 9], ["c", 1, 2])
        await until(lambda: all([name, scheme] in server.noted for name in "ab"))
        assert traced.asked("rpc.discover") == 1
        assert list(client.stream.items(3, step=2)) == [0, 2, 4]
        if scheme != "http://":
            assert client.sums(iter([1, 2]), start=3) == 6
    async with AsyncClient(scheme + served, trace=(traced := Traced())) as other:
        assert await other.segment("x", parts=4) == await other.submit.segment("x", parts=4) == ["x", 1, 4]
        await other.notify.tell("async", how=scheme)
        async with other.batch() as others:
            third, fourth = others.segment("b", parts=9), others.segment("c")
        assert (third.result(), fourth.result()) == (["b", 1, 9], ["c", 1, 2])
        await until(lambda: ["async", scheme] in server.noted)
        assert [item async for item in other.stream.items(3, step=2)] == [0, 2, 4]
        if scheme != "http://":
            assert await other.sums(iter([1, 2]), start=3) == 6
        assert traced.asked("rpc.discover") <= 2  # for the names, and for what streams


@pytest.fixture(scope="module")
def server() -> UsualServer:
    return Server()


def test_what_cannot_be_said_is_written_out(make_client: MakeClient, served: str) -> None:
    client = make_client(served)
    for method, given, named, said in (
        ("segment", ("x",), {"image": "y"}, r"'image' was given twice.*: segment\(image=…, size=…, parts=…\)$"),
        ("segment", ("x", 1, 2), {"parts": 4}, r"2 of the 3 arguments by position.*segment\(image=…, size=…, pa"),
        ("numbers", (1, 2), {"start": 4}, r"0 of the 2 arguments by position.*numbers\(start=…\)"),
        ("nothing", (1,), {"b": 2}, r"did not say how its parameters are named.*nothing\(<name>=…, b=…\)"),
    ):
        with pytest.raises(TypeError, match=said):
            client.call(method, *given, **named)
    with pytest.raises(InvalidParams, match="wrong"):
        client.call("segment", "x", wrong=4)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (None, r"rpc.discover was refused \(Method not found\);.*: add\(<name>=…, c=…\)$"),
        (
            {"paramStructure": "by-position", "params": [{"name": "a"}, {"name": "c"}]},
            r"by position only.*add\(a, c\)$",
        ),
        ({"params": [{"$ref": "#/x"}, {"name": "b"}, {"name": "c"}]}, "0 of the 1 arguments by position"),
        ({"params": None}, "0 of the 1 arguments by position"),
    ],
)
def test_servers_that_do_not_tell_the_names(
    scripted: Scripted, make_client: MakeClient, method: Any, said: str
) -> None:
    def script(line: Any) -> None:
        while (call := line.read()) is not None:
            assert call["method"] == "rpc.discover"
            if method is None:
                line.say(refusal(call["id"]))
            else:
                line.answer(call, {"methods": [{"name": "add", **method}]})

    with pytest.raises(TypeError, match=said):
        make_client(scripted(script)).call("add", 1, c=2)


def test_the_time_to_wait_for_a_server_counts_for_the_names_too(make_client: MakeClient, free_address: str) -> None:
    """Of another server they are asked anew."""
    port = int(free_address.rpartition(":")[2])
    client = make_client(free_address)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(client.call, "segment", "x", parts=4, wait_for=20)
        time.sleep(0.05)
        with serve_in_thread(Server(), port=port):
            assert waiting.result() == ["x", 1, 4]
    with serve_in_thread(Server(is_later=True), port=port):
        assert client.call("rpc.ping", wait_for=20) == "pong"  # the connection is found to be lost
        assert client.call("segment", "x", parts=4) == ["x", 7, 4]


async def test_a_handler_calls_its_caller_so() -> None:
    server = UsualServer()

    @server
    async def ask_so(ctx: Context) -> Any:
        items = [item async for item in ctx.peer.stream.count(2, start=5)]
        ctx.peer.notify.count(1, start=2)
        return [await ctx.peer.confirm("sure?", default=True), items]

    async with memory_client(server) as client:
        client(lambda text, default: [text, default], name="confirm")

        @client
        def count(n: int, start: int = 0) -> Iterator[int]:
            yield from range(start, start + n)

        assert await client.ask_so() == [["sure?", True], [5, 6]]
