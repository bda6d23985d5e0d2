"""Arguments by position and by name in one call: the client asks the server once how the parameters are named."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rpcstream import AsyncClient, Client, Context, InvalidParams
from rpcstream.testing import memory_client, serve_in_thread

from ..kit import UsualServer
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
        for attempt in (client.notify.tell, client.batch().tell, client.batch().notify.tell):
            with pytest.raises(TypeError, match="name them all"):
                attempt("a", how=scheme)
        assert traced.asked("rpc.discover") == 1
        assert list(client.stream.items(3, step=2)) == [0, 2, 4]
        if scheme != "http://":
            assert client.sums(iter([1, 2]), start=3) == 6
    async with AsyncClient(scheme + served, trace=(traced := Traced())) as other:
        assert await other.segment("x", parts=4) == await other.submit.segment("x", parts=4) == ["x", 1, 4]
        assert [item async for item in other.stream.items(3, step=2)] == [0, 2, 4]
        if scheme != "http://":
            assert await other.sums(iter([1, 2]), start=3) == 6
        assert traced.asked("rpc.discover") <= 2  # for the names, and for what streams


@pytest.fixture(scope="module")
def server() -> UsualServer:
    return Server()


def test_what_cannot_be_said_is_an_error(make_client: MakeClient, served: str) -> None:
    client = make_client(served)
    for method, given, named, said in (
        ("segment", ("x",), {"image": "y"}, "'image' was given twice"),
        ("segment", ("x", 1, 2), {"parts": 4}, "2 of the 3 by position"),
        ("numbers", (1, 2), {"start": 4}, "0 of the 2 by position"),
        ("nothing", (1,), {"b": 2}, "did not say how its parameters are named"),
    ):
        with pytest.raises(TypeError, match=said):
            client.call(method, *given, **named)
    with pytest.raises(InvalidParams, match="wrong"):
        client.call("segment", "x", wrong=4)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (None, r"rpc.discover was refused \(Method not found\)"),
        (
            {"paramStructure": "by-position", "params": [{"name": "a"}, {"name": "c"}]},
            "by position only",
        ),
        ({"params": [{"$ref": "#/x"}, {"name": "b"}, {"name": "c"}]}, "0 of the 1 by position"),
        ({"params": None}, "0 of the 1 by position"),
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


async def test_a_handler_that_calls_its_caller_names_them_all() -> None:
    server = UsualServer()

    @server
    async def ask_so(ctx: Context) -> Any:
        with pytest.raises(TypeError, match="name them all"):
            await ctx.peer.confirm("sure?", default=True)
        return await ctx.peer.confirm(text="sure?", default=True)

    async with memory_client(server) as client:
        client(lambda text, default: [text, default], name="confirm")
        assert await client.ask_so() == ["sure?", True]
