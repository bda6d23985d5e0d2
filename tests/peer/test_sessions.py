"""What a session does with any messages, at a server, a hub and a client: nothing breaks it, and nothing is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rpcstream import AsyncClient, CallTimeout, Limits, RpcError
from rpcstream.hub import Hub
from rpcstream.testing import FakeTimeLoop, is_idle, memory_client

from ..kit import RawPeer, UsualServer, batch, logged, notification, raw_peers, reply, request, until
from ..kit.example_count import IS_THOROUGH

LIMITS = Limits(max_calls=3, write_buffer=4000, max_json_size=160_000, max_held_total=500_000)


class UsualHub(Hub, UsualServer):
    """A hub with the usual methods of its own."""


def nested(depth: int, inner: bytes = b"") -> bytes:
    return b"[" * depth + inner + b"]" * depth


LONG = b'"' + b"QUFB" * 3000 + b'"'

#: JSON values that are hard for somebody.
VALUES = st.sampled_from(
    [
        *(b"1", b"-1", b"1.0", b"1e5", b"null", b"true", b'"a"', b"{}", b"[]", b"[1]", b'{"id":1}', b'""'),
        *(b"12345678901234567890", b"1" + b"0" * 300, b"0.1234567890123456789012", b"1e400", b"NaN", b'"\\ud800"'),
        *(nested(100), nested(130), nested(260), nested(990), nested(1020, b"1.5"), nested(2000), b'{"a":' * 300),
        *(LONG, b"[" + LONG + b"," + LONG + b"]", b'{"$type":"bytes","data":' + LONG + b"}", LONG[:-1] + b'\xff"'),
        *(b'{"$type":"bytes","data":' + LONG[:-1] + b'\\q"}', b'"' + b"\\u0000" + b"1" * 9000 + b'"', b"[" * 9000),
        *(b"[" + b"1," * 9000 + b"1]", b"[" + b"[],[[]]," * 3000 + b"1]", b'"\xff"', b'{"$type":"stream","id":"s"}'),
        *(b'{"$type":"ndarray","dtype":"<f8","shape":[1],"data":' + LONG + b"}", b'{"$type":[],"data":{}}'),
        *(b'[{"$type":"stream","id":"s"}]', b'{"stream":"s","n":5}', b'{"id":1,"n":3}', b'{"stream":"s"}'),
        *(b'{"code":1,"message":"no"}', b'{"code":1e400,"message":[]}', b'{"code":' + b"9" * 300 + b"}"),
        *(b'{"id":1,"value":2}', b'{"token":1,"value":2}', b'{"topic":"t","value":2}', b'{"stream":"s","value":2}'),
    ]
)

NAMES = st.sampled_from(
    [
        *("echo", "add", "wait", "ask", "total", "count", "note", "nothing", "far"),
        *("rpc.ping", "rpc.discover", "rpc.subscribe", "rpc.register", "$/nothing"),
        *("$/cancelRequest", "$/item", "$/end", "$/credit", "$/progress", "$/event"),
    ]
)


@st.composite
def objects(draw: st.DrawFn) -> bytes:
    """A request, a notification, a reply, or what is nearly one; its members in any order."""
    members = []
    kind = draw(st.sampled_from(["request", "request", "reply", "error", "word", "odd"]))
    if draw(st.integers(0, 9)):
        members.append(b'"jsonrpc":"2.0"')
    if kind != "word" and draw(st.integers(0, 9)):
        members.append(b'"id":' + draw(st.sampled_from([b"1", b"1", b"2", b'"x"', b"null"]) | VALUES))
    if kind in ("request", "word"):
        members.append(b'"method":' + orjson.dumps(draw(NAMES)))
        if draw(st.booleans()):
            members.append(b'"params":' + draw(VALUES))
    if kind == "reply" or (kind == "odd" and draw(st.booleans())):
        members.append(b'"result":' + draw(VALUES))
    if kind == "error" or (kind == "odd" and draw(st.booleans())):
        data = b',"data":' + draw(VALUES) if draw(st.booleans()) else b""
        members.append(b'"error":' + draw(st.one_of(VALUES, st.just(b'{"code":-5,"message":"no"' + data + b"}"))))
    if kind == "odd" and draw(st.booleans()):
        members.append(b'"method":' + draw(VALUES))
    members += [name + draw(VALUES) for name in (b'"stream":', b'"timeout":') if not draw(st.integers(0, 5))]
    return b"{" + b",".join(draw(st.permutations(members))) + b"}"


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    return b"[" + b",".join(draw(st.lists(objects() | VALUES, max_size=4))) + b"]"


@st.composite
def undelimited(draw: st.DrawFn) -> bytes:
    return b"".join(draw(st.lists(objects() | batches(), min_size=2, max_size=3)))


READS = st.lists(st.lists(objects() | batches() | undelimited() | VALUES, min_size=1, max_size=5), max_size=5)


FUZZ = settings(max_examples=40 if IS_THOROUGH else 4, deadline=None, suppress_health_check=list(HealthCheck))
ODD = [
    b'{"jsonrpc":"2.0","method":"$/credit","params":{"n":1,"id":' + nested(990) + b"}}",
    b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"no","data":' + nested(1000) + b"}}",
    b'{"jsonrpc":"2.0","id":null,"error":' + nested(1000) + b"}",
    b'[{"jsonrpc":"2.0","id":1.5,"method":"echo"},' + nested(1000) + b"]",
    b'{"jsonrpc":"2.0","id":1.5,"method":"echo","params":' + nested(1000) + b"}",
    b'[{"jsonrpc":"2.0","id":1.5,"method":"echo"},{"jsonrpc":"2.0","id":7,"result":1}]',
]


async def at_a_server(make: Callable[..., UsualServer], reads: list[list[bytes]]) -> None:
    """Everything is sent, a read at a time; a neighbour lives on, and nothing is left behind."""
    server = make(limits=LIMITS)
    with logged("rpcstream") as lines:
        async with raw_peers(server) as connect:
            peer, neighbour = await connect(), await connect()
            for each in reads:
                peer.send(*each)
                await asyncio.sleep(0)
            assert await neighbour.result("rpc.ping") == "pong"
            peer.close()
            server.release()
            await until(lambda: is_idle(server))
    assert not lines.matching("could not be handled|internal error")


def echo(value: Any = None) -> Any:
    return value


async def at_a_client(reads: list[list[bytes]], offers: bool) -> None:
    """Two calls wait; what comes may end the connection, as a client does where a server is none."""
    opened: asyncio.Queue[RawPeer] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: RawPeer(opened.put_nowait), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    with logged("rpcstream") as lines:
        async with AsyncClient(f"127.0.0.1:{port}", limits=LIMITS, reconnect=False) as client:
            if offers:
                client(echo)
            asking = [asyncio.ensure_future(client.call("far")) for _ in range(2)]
            peer = await opened.get()
            for each in reads:
                peer.send(*each)
                await asyncio.sleep(0)
            peer.send(request("echo", 1, id="last"))
            listener.close()
            while not all(each.done() for each in asking):
                peer.close()
                peer = opened.get_nowait() if not opened.empty() else peer
                await asyncio.sleep(0.001)
            for outcome in await asyncio.gather(*asking, return_exceptions=True):
                assert not isinstance(outcome, RecursionError | AssertionError | AttributeError | KeyError), outcome
    assert not lines.matching("could not be handled|internal error")


@pytest.mark.parametrize("make", [UsualServer, UsualHub])
@FUZZ
@given(READS)
def test_no_bytes_break_a_server(make: Any, reads: list[list[bytes]]) -> None:
    asyncio.run(at_a_server(make, reads))


@FUZZ
@given(READS, st.booleans())
def test_no_bytes_break_a_client(reads: list[list[bytes]], offers: bool) -> None:
    asyncio.run(at_a_client(reads, offers))


@pytest.mark.parametrize("line", ODD)
async def test_messages_that_once_broke_it(line: bytes) -> None:
    for first in ([], [orjson.dumps(request("wait", id=each)) for each in range(3)]):
        await at_a_server(UsualServer, [first, [line] * 5])
        await at_a_client([first, [line] * 5], bool(first))


NOTE, REPLY = notification("note", value=1), reply(77, 1)
LAST: list[tuple[list[list[Any]], Any]] = [
    ([], None),
    ([[NOTE, REPLY], [batch(NOTE, NOTE)]], None),
    ([[request("echo", 1, id=1)], [request("echo", 1, id=9), request("echo", 1, id=3)]], 3),
    ([[request("echo", 1, id=5), NOTE], [REPLY], [batch(NOTE)]], 5),
    ([[request("echo", 1, id="mine")]], "mine"),
    ([[request("echo", 1)], [batch(request("echo", 1, id=2), NOTE, request("echo", 1, id=3), NOTE)]], 3),
    ([[request("unknown", id=8)]], 8),
    ([[request("echo", 1)], [b'{"id":6,"method":"echo"}']], 6),
    ([[request("echo", 1)], [request("echo", 1, id=1.5)]], ...),
    ([[request("echo", 1)], [request("echo", 1, id="y" * 1000)]], ...),
    ([[request("echo", 1)], [b"[5]"], [b"nonsense"]], 1),
    ([[request("wait"), request("wait", id=2), request("wait", id=3), request("echo", 1, id=4), NOTE]], 4),
]


@pytest.mark.parametrize(("reads", "last"), LAST)
async def test_who_leaves_names_the_last_request_that_was_read(reads: list[list[Any]], last: Any) -> None:
    """`...`: there is no word on it, since its id cannot be repeated."""
    server = UsualServer(limits=Limits(max_calls=3), drain_timeout=0.1)
    async with server.listening(port=0) as address:
        peer = await RawPeer.open(address)
        for each in reads:
            peer.send(*each)
        peer.send(notification("note", value="read"))
        await until(lambda: "read" in server.noted or len(server.begun) == 3)
    await peer.rest()
    peer.close()
    (word,) = peer.farewells
    assert word.get("last", ...) == last


def test_calls_that_wait_expire_each_at_its_time() -> None:
    async def main() -> None:
        draw = random.Random(7)
        deadlines = [draw.uniform(1, 100) for _ in range(50)]
        ended: list[float] = []

        async def one(client: AsyncClient, deadline: float) -> None:
            with pytest.raises((CallTimeout, RpcError)):
                await client.call("wait", timeout=deadline)
            ended.append(deadline)

        async with memory_client(UsualServer(limits=Limits(max_calls=500))) as client:
            await asyncio.gather(*[one(client, each) for each in deadlines])
        assert ended == sorted(deadlines)

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(main())
