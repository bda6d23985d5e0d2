"""Binary frames of a client over HTTP: when it sends them, and what it does where a server reads none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import (
    AsyncClient,
    ConnectionLost,
    Context,
    InternalError,
    InvalidParams,
    Limits,
    MessageTooLarge,
    RpcError,
    Server,
)
from rpcstream.testing import serve_in_thread

from ..internals import client_connections
from ..kit import until
from ..kit.scripted_http import CountedConnections, Request, ScriptedHttpConnection, answered, reply
from ..transports.raw_frames import array_at, binary_frame

MakeClient = Callable[..., Any]
Scripted = Callable[[Any], str]

FRAME = "application/x-rpcstream"
READS_FRAMES = f"Accept-Post: application/json, {FRAME}\r\n"
LIMITS = Limits(max_message_size=20_000)
VALUES = np.arange(5000, dtype=np.uint8)


class Messages:
    """What a client has sent and received: "@" for a frame, "{" for text."""

    def __init__(self) -> None:
        self.sent = self.received = ""

    def __call__(self, way: str, message: bytes) -> None:
        first = message[:1].decode()
        if way == "send":
            self.sent += first
        else:
            self.received += first


def make_server(**options: Any) -> Server:
    server = Server(drain_timeout=0.2, **options)

    @server
    def double(values: np.ndarray) -> np.ndarray:
        return values * 2

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    async def report(values: np.ndarray, ctx: Context) -> np.ndarray:
        ctx.progress(values)
        return values

    @server
    async def parts(values: np.ndarray) -> Any:
        yield values
        yield values

    return server


@pytest.mark.parametrize("client_reads", [True, False])
@pytest.mark.parametrize("server_reads", [True, False])
def test_frames_where_both_ends_want_them(make_client: MakeClient, client_reads: bool, server_reads: bool) -> None:
    """Any answer of the server tells that it reads frames."""
    messages = Messages()
    with serve_in_thread(make_server(binary=server_reads)) as address:
        client = make_client(f"http://{address}", binary=client_reads, trace=messages, timeout=20)
        assert client.call("add", 1, 2) == 3
        for _ in range(3):
            assert np.array_equal(client.call("double", VALUES), VALUES * 2)
    expected = "{@@@" if client_reads and server_reads else "{{{{"
    assert (messages.sent, messages.received) == (expected, expected)


def test_the_first_array_goes_as_text(make_client: MakeClient) -> None:
    messages = Messages()
    with serve_in_thread(make_server()) as address:
        client = make_client(f"http://{address}", trace=messages, timeout=20)
        for _ in range(3):
            assert np.array_equal(client.call("double", VALUES), VALUES * 2)
    assert (messages.sent, messages.received) == ("{@@", "@@@")


def test_streams_progress_and_batches() -> None:
    """A request may be a frame whose answer is text; a batch never is."""

    async def run(address: str, messages: Messages) -> None:
        async with AsyncClient(f"http://{address}", trace=messages, timeout=20) as client:
            assert await client.call("add", 1, 2) == 3
            got: list[Any] = []
            assert np.array_equal(await client.call("report", VALUES, on_progress=got.append), VALUES)
            assert [np.array_equal(each, VALUES) for each in got] == [True]
            items = [item async for item in client.stream("parts", VALUES)]
            assert [np.array_equal(item, VALUES) for item in items] == [True, True]
            async with client.batch() as batch:
                doubled = batch.call("double", VALUES)
            assert np.array_equal(doubled.result(), VALUES * 2)
            with pytest.raises(InvalidParams):
                await client.call("add", VALUES, 1)

    messages = Messages()
    with serve_in_thread(make_server()) as address:
        asyncio.run(run(address, messages))
    assert messages.sent == "{@@[@"
    assert "@" not in messages.received[1:]


def test_the_limit_is_that_of_the_message(make_client: MakeClient) -> None:
    with serve_in_thread(make_server()) as address:
        client = make_client(f"http://{address}", limits=LIMITS, timeout=20)
        for _ in range(2):
            with pytest.raises(MessageTooLarge):
                client.call("double", np.zeros(20_000, np.uint8))
            values = np.zeros(19_000, np.uint8)
            assert np.array_equal(client.call("add", 1, 2), 3)
            assert np.array_equal(client.call("double", values), values)


# -- servers of others ----------------------------------------------------------------------------------------------


class Recorder:
    """A script that keeps the requests of all connections, and answers each by a function."""

    def __init__(self, answer: Callable[[Request, int], bytes]) -> None:
        self.requests: list[Request] = []
        self._answer = answer
        self._lock = threading.Lock()

    def __call__(self, http: ScriptedHttpConnection, number: int) -> None:
        while (request := http.read()) is not None:
            with self._lock:
                self.requests.append(request)
                count = len(self.requests)
            http.say(self._answer(request, count))

    @property
    def kinds(self) -> list[str]:
        return [request.headers["content-type"] for request in self.requests]


def call_id(request: Request) -> Any:
    return request.id if request.message else orjson.loads(request.body.partition(b"\n")[2].partition(b"\n")[0])["id"]


def test_a_server_that_knows_no_frames(scripted: Scripted, make_client: MakeClient) -> None:
    """It sees nothing but a word in the header Accept."""
    script = Recorder(lambda request, _: answered(reply(request.id, 7)))
    client = make_client(f"http://{scripted(CountedConnections(script))}")
    assert [client.call("size", VALUES) for _ in range(3)] == [7, 7, 7]
    assert script.kinds == ["application/json"] * 3
    assert {request.headers["accept"] for request in script.requests} == {f"application/json, {FRAME}"}


def test_a_server_that_knows_no_frames_any_more(scripted: Scripted, make_client: MakeClient) -> None:
    """It answers a frame with 415: the call is made again as text, and all later ones are text, whatever it says."""

    def answer(request: Request, number: int) -> bytes:
        if request.message is None:
            return answered(b"what is that?", "415 Unsupported Media Type", "text/plain")
        return answered(reply(request.id, number), more=READS_FRAMES)

    script = Recorder(answer)
    client = make_client(f"http://{scripted(CountedConnections(script))}", timeout=20)
    assert client.call("size", 1) == 1
    values = VALUES.copy()
    assert client.call("size", values) == 3
    assert client.call("size", values) == 4
    assert script.kinds == ["application/json", FRAME, "application/json", "application/json"]
    assert script.requests[2].message["params"] == script.requests[3].message["params"]
    assert script.requests[2].message["id"] == call_id(script.requests[1])


@pytest.mark.parametrize("is_notification", [True, False])
def test_what_is_sent_again_is_what_was_sent(scripted: Scripted, is_notification: bool) -> None:
    """Although the caller has changed the array meanwhile."""
    go_on = threading.Event()

    def answer(request: Request, number: int) -> bytes:
        if request.message is None:
            assert go_on.wait(20)
            return answered(b"", "415 Unsupported Media Type")
        return answered(reply(request.message.get("id"), number), more=READS_FRAMES)

    script = Recorder(answer)

    async def run(address: str) -> None:
        async with AsyncClient(f"http://{address}", timeout=20) as client:
            await client.call("size", 1)
            values = np.zeros(5000, np.uint8)
            begun = client.notify("size", values) if is_notification else client.call("size", values)
            task = asyncio.ensure_future(begun)
            await until(lambda: len(script.requests) == 2)
            values.fill(1)
            go_on.set()
            await task
            await until(lambda: len(script.requests) == 3)

    asyncio.run(run(scripted(CountedConnections(script))))
    assert script.kinds == ["application/json", FRAME, "application/json"]
    again = script.requests[2].message
    assert ("id" in again) is not is_notification
    assert set(again["params"][0]["data"]) == {"A", "="}


def test_415_to_text_is_an_error(scripted: Scripted, make_client: MakeClient) -> None:
    script = Recorder(lambda request, _: answered(b"no", "415 Unsupported Media Type", "text/plain"))
    client = make_client(f"http://{scripted(CountedConnections(script))}", retries=0)
    with pytest.raises((RpcError, ConnectionError), match="415"):
        client.call("size", VALUES)
    assert len(script.requests) == 1


# -- answers that are frames ----------------------------------------------------------------------------------------


def frame_answer(request: Request, *payloads: bytes, more: bytes = b"", **members: Any) -> bytes:
    message = {"jsonrpc": "2.0", "id": call_id(request), **members}
    return answered(binary_frame(message, *payloads) + more, kind=FRAME)


def one_array(size: int = 5000) -> dict[str, Any]:
    return {"result": array_at(0, size)}


GOOD = b"\1" * 5000

BROKEN: dict[str, tuple[Callable[[Request], bytes], type[Exception]]] = {
    "bytes behind it": (lambda asked: frame_answer(asked, GOOD, more=b"x", **one_array()), ConnectionLost),
    "no header": (lambda asked: answered(reply(asked.id, 1), kind=FRAME), ConnectionLost),
    "it ends early": (
        lambda asked: answered(binary_frame({"jsonrpc": "2.0", "id": asked.id}, GOOD)[:-1], kind=FRAME),
        ConnectionLost,
    ),
    "a payload that stands nowhere": (lambda asked: frame_answer(asked, GOOD, result=1), InternalError),
    "another call": (
        lambda asked: answered(binary_frame({"jsonrpc": "2.0", "id": 99, **one_array()}, GOOD), kind=FRAME),
        InternalError,
    ),
    "no reply": (
        lambda asked: answered(
            binary_frame({"jsonrpc": "2.0", "method": "x", "params": [one_array()]}, GOOD), kind=FRAME
        ),
        ConnectionLost,
    ),
    "another size": (lambda asked: frame_answer(asked, GOOD, **one_array(7)), InternalError),
    "over the limit": (lambda asked: frame_answer(asked, bytes(30_000), **one_array(30_000)), MessageTooLarge),
    "a header over the limit": (lambda asked: answered(b"@10 300000\n", kind=FRAME), ConnectionLost),
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_answer_that_cannot_be_read(scripted: Scripted, make_client: MakeClient, what: str) -> None:
    """The call fails; the next one is answered."""
    broken, error = BROKEN[what]
    script = Recorder(
        lambda request, number: broken(request) if number == 1 else frame_answer(request, GOOD, **one_array())
    )
    client = make_client(f"http://{scripted(CountedConnections(script))}", retries=0, timeout=20, limits=LIMITS)
    with pytest.raises(error):
        client.call("size")
    assert np.array_equal(client.call("size"), np.ones(5000, np.uint8))


def test_an_answer_in_any_pieces(scripted: Scripted, make_client: MakeClient) -> None:
    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (request := http.read()) is not None:
            frame = binary_frame({"jsonrpc": "2.0", "id": request.id, **one_array()}, GOOD)
            pieces = [frame[:1], frame[1:20], frame[20:300], frame[300:]]
            http.say(f"HTTP/1.1 200 OK\r\nContent-Type: {FRAME}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            for piece in (*pieces, b""):
                http.say(b"%x\r\n%b\r\n" % (len(piece), piece))

    client = make_client(f"http://{scripted(CountedConnections(script))}", timeout=20)
    for _ in range(2):
        assert np.array_equal(client.call("size"), np.ones(5000, np.uint8))


def test_a_client_without_frames_takes_none(scripted: Scripted, make_client: MakeClient) -> None:
    script = Recorder(lambda request, _: frame_answer(request, GOOD, **one_array()))
    client = make_client(f"http://{scripted(CountedConnections(script))}", binary=False, retries=0)
    with pytest.raises(ConnectionLost, match="not JSON"):
        client.call("size")
    assert script.requests[0].headers["accept"] == "application/json"


def waiting_bytes(client: AsyncClient) -> int:
    """Bytes of the payloads that are being received."""
    return sum(connection.session.memory.waiting for connection in client_connections(client))


def frames_that_wait(client: AsyncClient) -> int:
    return sum(len(connection.session.memory.waiters) for connection in client_connections(client))


def test_answers_wait_for_memory(scripted: Scripted) -> None:
    """What the answers of a client take together is bounded: one waits until another is complete, in part or whole."""
    size, go_on = 800_000, threading.Event()

    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (request := http.read()) is not None:
            data = frame_answer(request, bytes(size), **one_array(size))
            if request.message["method"] == "first":
                http.say(data[:600_000])
                assert go_on.wait(20)
                http.say(data[600_000:])
            else:
                http.say(data)

    async def run(address: str) -> None:
        limits = Limits(max_message_size=1_200_000, max_held_total=1_400_000)
        async with AsyncClient(f"http://{address}", limits=limits, timeout=20) as client:
            first = asyncio.ensure_future(client.call("first"))
            await until(lambda: waiting_bytes(client) > 500_000)
            others = [asyncio.ensure_future(client.call("other")) for _ in range(3)]
            await until(lambda: frames_that_wait(client) == 3)
            assert not any(each.done() for each in (first, *others))
            go_on.set()
            for result in await asyncio.gather(first, *others):
                assert len(result) == size

    asyncio.run(run(scripted(CountedConnections(script))))
