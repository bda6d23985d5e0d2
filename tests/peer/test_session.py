"""Random bytes to a session: each message is answered or dropped, and none ends it by an error of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rpcstream import Context, Limits, Server
from rpcstream.client.callbacks import ClientDispatcher
from rpcstream.codec import Codec
from rpcstream.hub import Hub
from rpcstream.peer.context import CallContext
from rpcstream.peer.marshal import Call
from rpcstream.peer.session import Session
from rpcstream.wire.buffers import Encoded

from ..internals import new_session, running_state
from ..kit.example_count import example_count

LIMITS = Limits(max_calls=3, write_buffer=4000, max_values=20_000, max_held_size=200_000, max_held_total=500_000)


class Channel:
    """Takes what a session says, and remembers why it was ended."""

    address = "here"
    reason: str | None = None

    def __init__(self) -> None:
        self.sent: list[Encoded] = []
        self.ended: list[str] = []

    def send(self, messages: list[Encoded]) -> None:
        self.sent += messages

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None:
        self.ended.append("closed")

    def abort(self, reason: str) -> None:
        self.ended.append(reason)

    def probe(self) -> None: ...


def methods(server: Server) -> Server:
    @server
    def echo(value: Any = None) -> Any:
        return value

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    async def wait(value: Any = None) -> Any:
        await asyncio.sleep(3600)

    @server
    async def ask(context: Context) -> Any:
        return await context.peer.call("tell")

    @server
    async def total(items: AsyncIterator[int]) -> int:
        return sum([item async for item in items])

    @server
    async def count(n: int) -> AsyncIterator[int]:
        for each in range(n):
            yield each

    return server


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
        *("echo", "add", "wait", "ask", "total", "count", "nothing", "rpc.ping", "rpc.discover", "rpc.subscribe"),
        *(
            "$/cancelRequest",
            "$/item",
            "$/end",
            "$/credit",
            "$/progress",
            "$/event",
            "$/nothing",
            "far",
            "rpc.register",
        ),
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


class Complaints(logging.Handler):
    """What was logged as an error of ours."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


async def fed(session: Session, channel: Channel, reads: list[list[bytes]], *, blocked: bool) -> None:
    """Everything that comes, and turns of the loop in between; what the connection is at the end."""
    session.connected(channel, splits_values=True)
    loop = asyncio.get_running_loop()
    failures: list[Any] = []
    loop.set_exception_handler(lambda _, context: failures.append(context))
    complaints = Complaints()
    logging.getLogger("rpcstream").addHandler(complaints)
    try:
        for place, lines in enumerate(reads):
            if blocked and place == 1:
                session.blocked(True)
            session.receive(list(lines))
            for _ in range(3):
                await asyncio.sleep(0)
        session.blocked(False)
        for _ in range(5):
            await asyncio.sleep(0)
    finally:
        logging.getLogger("rpcstream").removeHandler(complaints)
        session.running.cancel_all()
        session.lost(ConnectionError)
        for _ in range(5):
            await asyncio.sleep(0)
        loop.set_exception_handler(None)
    assert "an internal error" not in channel.ended
    assert not failures
    assert not [each for each in complaints.said if "could not be handled" in each]
    assert session.memory.at_work == 0
    assert session.memory.waiting == 0


FUZZ = settings(max_examples=example_count(40), deadline=None, suppress_health_check=list(HealthCheck))


async def at_a_server(make: Callable[[], Server], reads: list[list[bytes]], blocked: bool) -> None:
    server = make()
    async with server.in_memory():
        session = new_session(server)
        channel = Channel()
        await fed(session, channel, reads, blocked=blocked)


@FUZZ
@given(READS, st.booleans())
def test_no_bytes_break_a_server(reads: list[list[bytes]], blocked: bool) -> None:
    asyncio.run(at_a_server(lambda: methods(Server(limits=LIMITS)), reads, blocked))


@FUZZ
@given(READS, st.booleans())
def test_no_bytes_break_a_hub(reads: list[list[bytes]], blocked: bool) -> None:
    asyncio.run(at_a_server(lambda: methods(Hub(limits=LIMITS)), reads, blocked))


async def at_a_client(reads: list[list[bytes]], offers: bool, blocked: bool) -> None:
    """Two calls wait; what comes may end the connection, as a client does where a server is none."""
    server = methods(Server(limits=LIMITS))
    async with server.in_memory():
        dispatcher = running_state(server).dispatcher if offers else None
        ended: list[str] = []
        dispatch = ClientDispatcher(
            settle=lambda reply, line: session.pending.settle(reply, line),
            close=ended.append,
            get_dispatcher=lambda: dispatcher,
        )
        session = Session(dispatch, codec=Codec(), limits=LIMITS, side="client")
        channel = Channel()
        session.connected(channel)
        calls = session.calls
        asking = [
            asyncio.ensure_future(calls.ask(Call(calls.marshaller, "far", None, None, int), float("inf")))
            for _ in range(2)
        ]
        await asyncio.sleep(0)
        await fed(session, channel, reads, blocked=blocked)
        for each in asking:
            each.cancel()
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        for outcome in outcomes:
            assert not isinstance(outcome, RecursionError | AssertionError | AttributeError | KeyError), outcome


@FUZZ
@given(READS, st.booleans(), st.booleans())
def test_no_bytes_break_a_client(reads: list[list[bytes]], offers: bool, blocked: bool) -> None:
    asyncio.run(at_a_client(reads, offers, blocked))


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","method":"$/credit","params":{"n":1,"id":' + nested(990) + b"}}",
        b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"no","data":' + nested(1000) + b"}}",
        b'{"jsonrpc":"2.0","id":null,"error":' + nested(1000) + b"}",
        b'[{"jsonrpc":"2.0","id":1.5,"method":"echo"},' + nested(1000) + b"]",
        b'{"jsonrpc":"2.0","id":1.5,"method":"echo","params":' + nested(1000) + b"}",
        b'[{"jsonrpc":"2.0","id":1.5,"method":"echo"},{"jsonrpc":"2.0","id":7,"result":1}]',
    ],
)
@pytest.mark.parametrize("is_full", [False, True])
async def test_messages_that_once_broke_it(line: bytes, is_full: bool) -> None:
    first = [b'{"jsonrpc":"2.0","id":%d,"method":"ask"}' % each for each in range(3)] if is_full else []
    await at_a_server(lambda: methods(Server(limits=LIMITS)), [first, [line] * 5], False)
    for offers in (False, True):
        await at_a_client([first, [line] * 5], offers, False)


# -- a connection that ends while a message is handled ----------------------------------------------------------------


class AbruptChannel(Channel):
    """Tells of its end before `abort` returns, as those of NATS and HTTP do."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def abort(self, reason: str) -> None:
        super().abort(reason)
        self._session.lost(ConnectionError)


@pytest.mark.parametrize("method", ["wait", "answer", "answer_at_once", "several"])
async def test_a_handler_that_ends_its_own_connection(method: str) -> None:
    """It is cancelled if it waits, on every Python; nothing is written, and nothing is left."""
    server, ended = Server(limits=Limits(max_calls=1)), list[str]()

    @server
    async def wait(ctx: CallContext) -> None:
        ctx.session.abort("cut")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    @server
    async def answer(ctx: CallContext) -> int:
        ctx.session.abort("cut")
        return 1

    @server
    def answer_at_once(ctx: CallContext) -> int:
        ctx.session.abort("cut")
        return 1

    methods = ["wait", "answer", "wait", "answer_at_once"] if method == "several" else [method]
    async with server.in_memory():
        session = new_session(server)
        channel = AbruptChannel(session)
        session.connected(channel)
        session.receive([b'{"jsonrpc":"2.0","id":1,"method":"%s"}' % name.encode() for name in methods])
        for _ in range(5):
            await asyncio.sleep(0)
        assert channel.ended == ["cut"]
        assert channel.sent == []
        assert ended == ["cancelled"] * (methods[0] == "wait")
        assert not session.busy
        assert not session.running
