"""The client over HTTP against scripted servers: requests on the wire, and failures."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from rpcstream import (
    AsyncClient,
    CallTimeout,
    Client,
    ConnectFailed,
    ConnectionLost,
    InternalError,
    Limits,
    MessageTooLarge,
    NotAuthenticated,
    NotPermitted,
    RpcError,
    ServerBusy,
)

from ..internals import client_connections, settings_of
from ..kit.scripted_http import UNTIL_CLOSED, CountedConnections, Request, ScriptedHttpConnection, answered, item, reply

MakeClient = Callable[..., Any]
Scripted = Callable[..., str]


def serve(http: ScriptedHttpConnection, number: int) -> None:
    http.serve()


def saying(*answers: Any) -> Callable[[ScriptedHttpConnection, int], None]:
    """The answers to the requests of a connection, in order; then it is closed."""

    def script(http: ScriptedHttpConnection, number: int) -> None:
        for answer in answers:
            request = http.read()
            if request is None:
                return
            http.say(answer if isinstance(answer, bytes) else answer(request.message.get("id")))

    return script


def first(script: Callable[[ScriptedHttpConnection, int], None]) -> CountedConnections:
    """The script for the first connection; the others are served."""
    return CountedConnections(lambda http, number: script(http, number) if number == 1 else http.serve())


# -- requests -------------------------------------------------------------------------------------------------------


def test_what_a_request_looks_like(scripted: Scripted, make_client: MakeClient) -> None:
    requests: list[Request] = []

    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (request := http.read()) is not None:
            requests.append(request)
            http.answer(request, 7)

    address = scripted(CountedConnections(script))
    client = make_client(f"http://{address}/rpc?x=1", token="s3cret")
    assert client.call("sum", 3, 4) == 7
    (request,) = requests
    assert request.line == "POST /rpc?x=1 HTTP/1.1"
    assert request.headers["host"] == address
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept"] == "application/json, application/x-rpcstream"
    assert request.headers["authorization"] == "Bearer s3cret"
    assert request.message == {"jsonrpc": "2.0", "id": 1, "method": "sum", "params": [3, 4]}


def test_calls_one_after_the_other_use_one_connection(scripted: Scripted, make_client: MakeClient) -> None:
    script = CountedConnections(serve)
    client = make_client(f"http://{scripted(script)}")
    assert [client.call("echo", n) for n in range(1000)] == [[n] for n in range(1000)]
    assert script.total == 1


@pytest.mark.parametrize("most", [1, 3])
def test_calls_at_once_have_so_many_connections_and_the_others_wait_in_order(scripted: Scripted, most: int) -> None:
    come: list[int] = []
    lock = threading.Lock()

    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (request := http.read()) is not None:
            with lock:
                come.append(request.message["params"][0])
            time.sleep(0.001)
            http.answer(request, request.message["params"])

    counted = CountedConnections(script)
    address = scripted(counted)

    async def main() -> list[Any]:
        async with AsyncClient(f"http://{address}", http_connections=most) as client:
            return await asyncio.gather(*(client.call("echo", n) for n in range(30)))

    assert asyncio.run(main()) == [[n] for n in range(30)]
    assert counted.most == counted.total == most
    assert sorted(come) == list(range(30))
    if most == 1:
        assert come == list(range(30))


def test_proxies_of_the_environment_are_not_obeyed(
    scripted: Scripted, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, free_address: str
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{free_address}")
    assert make_client(f"http://{scripted(CountedConnections(serve))}").call("echo", 1) == [1]


def test_large_messages_go_both_ways(scripted: Scripted, make_client: MakeClient) -> None:
    client = make_client(f"http://{scripted(CountedConnections(serve))}")
    text = "x" * 3_000_000
    assert client.call("echo", text) == [text]
    assert client.call("echo", 2) == [2]


def test_a_batch_is_one_request(scripted: Scripted, make_client: MakeClient) -> None:
    def script(http: ScriptedHttpConnection, number: int) -> None:
        request = http.read()
        assert request is not None
        replies = [orjson.loads(reply(call["id"], call["params"])) for call in request.message]
        http.say(answered(orjson.dumps(replies[::-1])))
        http.serve()

    client = make_client(f"http://{scripted(CountedConnections(script))}")
    assert [call.result() for call in client.batch(("echo", 1), ("echo", 2))] == [[1], [2]]


def test_a_batch_whose_answer_lacks_one(scripted: Scripted, make_client: MakeClient) -> None:
    def script(http: ScriptedHttpConnection, number: int) -> None:
        request = http.read()
        assert request is not None
        http.say(answered(b"[" + reply(request.message[1]["id"], "here") + b"]"))
        http.serve()

    client = make_client(f"http://{scripted(CountedConnections(script))}")
    missing, here = client.batch(("echo", 1), ("echo", 2))
    assert here.result() == "here"
    assert isinstance(missing.error, InternalError)


def test_a_request_object_keeps_its_id(scripted: Scripted, make_client: MakeClient) -> None:
    client = make_client(f"http://{scripted(CountedConnections(serve))}")
    for call_id in ("a", 7, 2**60):
        message = {"params": {"x": 1}, "method": "echo", "jsonrpc": "2.0", "id": call_id}
        assert client(message)["id"] == call_id
    long = {"params": ["x" * 100_000], "method": "echo", "id": "behind", "jsonrpc": "2.0"}
    assert client(long)["result"] == long["params"]


# -- answers --------------------------------------------------------------------------------------------------------


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "connections"),
    [
        (lambda body: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body, 7), 1),
        (lambda body: b"HTTP/1.1 200 OK\r\ntransfer-encoding: CHUNKED\r\nX: y\r\n\r\n" + chunked(body, 1), 1),
        (lambda body: b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + answered(body), 1),
        (lambda body: b"HTTP/1.1 201 Created\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body), 1),
        (lambda body: b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n" % len(body) + body, 1),
        (lambda body: b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body, 3),
        (lambda body: answered(body, more="Connection: close\r\n"), 3),
    ],
    ids=["chunked", "small chunks", "1xx", "201", "1.0 kept", "1.0", "close"],
)
def test_forms_of_an_answer(
    scripted: Scripted, make_client: MakeClient, head: Callable[[bytes], bytes], connections: int
) -> None:
    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (request := http.read()) is not None:
            http.say(head(reply(request.id, "fine")))

    counted = CountedConnections(script)
    client = make_client(f"http://{scripted(counted)}")
    assert [client.call("get") for _ in range(3)] == ["fine"] * 3
    assert counted.total == connections


def test_an_answer_that_ends_with_the_connection(scripted: Scripted, make_client: MakeClient) -> None:
    counted = CountedConnections(saying(lambda call_id: b"HTTP/1.0 200 OK\r\n\r\n" + reply(call_id, "fine")))
    client = make_client(f"http://{scripted(counted)}")
    assert [client.call("get") for _ in range(3)] == ["fine"] * 3
    assert counted.total == 3


def test_an_answer_byte_by_byte(scripted: Scripted, make_client: MakeClient) -> None:
    def script(http: ScriptedHttpConnection, number: int) -> None:
        request = http.read()
        assert request is not None
        for byte in answered(reply(request.id, "fine")):
            http.say(bytes([byte]))
        http.serve()

    assert make_client(f"http://{scripted(CountedConnections(script))}").call("get") == "fine"


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        ("401 Unauthorized", NotAuthenticated, "HTTP 401 Unauthorized: no, go away"),
        ("403 Forbidden", NotPermitted, "HTTP 403 Forbidden: no, go away"),
        ("413 Too Large", MessageTooLarge, "HTTP 413 Too Large: no, go away"),
        ("429 Too Many Requests", ServerBusy, "HTTP 429 Too Many Requests: no, go away"),
        ("503 Service Unavailable", ServerBusy, "HTTP 503 Service Unavailable: no, go away"),
        ("500 Broken", InternalError, "HTTP 500 Broken: no, go away"),
        ("404 Not Found", ConnectFailed, "HTTP 404 Not Found: no, go away"),
        ("405 Method Not Allowed", ConnectFailed, "HTTP 405"),
        ("302 Found", ConnectFailed, "HTTP 302 Found: no, go away .redirects are not followed"),
        ("502 Bad Gateway", ConnectionLost, "HTTP 502 Bad Gateway"),
        ("504 Gateway Timeout", ConnectionLost, "HTTP 504 Gateway Timeout"),
    ],
)
def test_a_status_that_is_no_success(
    scripted: Scripted, make_client: MakeClient, status: str, kind: type[Exception], said: str
) -> None:
    refusal = answered(b"no,\n\x1b go away", status, "text/plain", "Location: http://127.0.0.1:1/\r\n")
    counted = CountedConnections(saying(refusal, lambda call_id: answered(reply(call_id, "fine"))))
    client = make_client(f"http://{scripted(counted)}")
    with pytest.raises(kind, match=said) as caught:
        client.call("get")
    assert type(caught.value) is kind
    assert caught.value.method == "get"  # type: ignore[attr-defined]
    assert client.call("get") == "fine"
    assert counted.total == 1


def test_a_status_with_a_reply_is_the_reply(scripted: Scripted, make_client: MakeClient) -> None:
    def failed(call_id: Any) -> bytes:
        error = {"jsonrpc": "2.0", "id": call_id, "error": {"code": 7, "message": "mine"}}
        return answered(orjson.dumps(error), "500 Internal Server Error")

    client = make_client(f"http://{scripted(CountedConnections(saying(failed)))}")
    with pytest.raises(RpcError, match="mine") as caught:
        client.call("get")
    assert caught.value.code == 7


def test_an_error_without_an_id_is_for_the_call_of_its_request_alone(scripted: Scripted) -> None:
    come = threading.Barrier(2)

    def script(http: ScriptedHttpConnection, number: int) -> None:
        request = http.read()
        assert request is not None
        come.wait()
        if request.message["method"] == "bad":
            http.say(answered(b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}'))
            come.wait()
        else:
            come.wait()
            http.answer(request, "fine")

    address = scripted(CountedConnections(script))

    async def main() -> Any:
        async with AsyncClient(f"http://{address}") as client:
            return await asyncio.gather(client.call("bad"), client.call("good"), return_exceptions=True)

    bad, good = asyncio.run(main())
    assert isinstance(bad, RpcError)
    assert bad.code == -32700
    assert good == "fine"


# -- what goes wrong ------------------------------------------------------------------------------------------------

HOSTILE = {
    "garbage": (b"SSH-2.0-OpenSSH_9\r\n", "is not HTTP"),
    "html": (answered(b"<html>hello</html>", kind="text/html"), "not JSON"),
    "nothing": (answered(b""), "no reply to the call"),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", "no reply to the call"),
    "another's reply": (answered(reply(999, 1)), "no reply to the call"),
    "not quite the id": (answered(reply(True, 1)), "no reply to the call"),
    "a number": (answered(b"5"), "no reply to the call"),
    "too short": (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", "in the middle of its answer"),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Le", "in the middle of its answer"),
    "an open chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\n{", "in the middle of its answer"),
    "no chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{", "is not HTTP"),
    "two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "is not HTTP"),
    "both lengths": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "is not HTTP",
    ),
    "negative": (b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}", "is not HTTP"),
    "compressed": (answered(b"{}", more="Content-Encoding: gzip\r\n"), "compressed without being asked: gzip"),
    "coded": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "transfer coding"),
    "upgrade": (
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc",
        "another protocol without being asked",
    ),
    "a head without end": (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 100_000 + b"\r\n", "more than 65536 bytes"),
    "chunks of nothing": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1;" + b"x" * 90_000 + b"\r\n{\r\n",
        "more than 65536 bytes|is not HTTP",
    ),
    "closed": (b"", "closed the connection"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_broken_answer_fails_its_call_and_no_other(scripted: Scripted, make_client: MakeClient, name: str) -> None:
    answer, said = HOSTILE[name]

    def script(http: ScriptedHttpConnection, number: int) -> None:
        http.read()
        http.say(answer)
        if "closed" not in said and "middle" not in said:
            http.serve()

    client = make_client(f"http://{scripted(first(script))}")
    with pytest.raises(ConnectionLost, match=said):
        client.call("get")
    assert client.call("echo", 1) == [1]


def test_two_answers(scripted: Scripted, make_client: MakeClient) -> None:
    """The second reply belongs to no call, and is not taken for the next call's."""
    twice = saying(lambda call_id: answered(reply(call_id, "fine")) + answered(reply(call_id + 1, "forged")))
    counted = first(twice)
    client = make_client(f"http://{scripted(counted)}")
    assert client.call("get") == "fine"
    assert client.call("echo", 1) == [1]
    assert counted.total == 2


def test_an_answer_before_the_question(scripted: Scripted, make_client: MakeClient) -> None:
    said = threading.Event()

    def script(http: ScriptedHttpConnection, number: int) -> None:
        request = http.read()
        assert request is not None
        http.answer(request, "fine")
        http.say(answered(reply(request.id + 1, "forged")))
        said.set()
        http.read()

    client = make_client(f"http://{scripted(first(script))}")
    assert client.call("get") == "fine"
    assert said.wait(20)
    assert client.call("echo", 1) == [1]


def test_no_answer(scripted: Scripted, make_client: MakeClient) -> None:
    """The connection of a call that was given up is closed: the server hears of it, and the next call has another."""
    ended = threading.Event()

    def script(http: ScriptedHttpConnection, number: int) -> None:
        http.read()
        assert http.read() is None
        ended.set()

    client = make_client(f"http://{scripted(first(script))}")
    with pytest.raises(CallTimeout, match="no answer in time"):
        client.call("get", timeout=0.1)
    assert ended.wait(20)
    assert client.call("echo", 1) == [1]


def test_too_long_an_answer(scripted: Scripted, make_client: MakeClient) -> None:
    limits = Limits(max_message_size=1000)
    for form in (
        lambda body: answered(body),
        lambda body: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body, 100),
        lambda body: b"HTTP/1.1 200 OK\r\nContent-Length: 123456789012\r\n\r\n" + body,
    ):
        long = saying(lambda call_id, form=form: form(reply(call_id, "x" * 2000)))
        client = make_client(f"http://{scripted(first(long))}", limits=limits)
        with pytest.raises(MessageTooLarge, match="the client's limit is 1000 bytes"):
            client.call("get")
        assert client.call("echo", 1) == [1]


def test_a_connection_that_was_closed_between_two_calls_is_not_noticed(
    scripted: Scripted, make_client: MakeClient
) -> None:
    """Also when the event loop did not run meanwhile, so that it could not see it."""
    closed = threading.Semaphore(0)

    def script(http: ScriptedHttpConnection, number: int) -> None:
        request = http.read()
        if request is not None:
            http.answer(request, number)
            http.socket.shutdown(2)
            closed.release()

    client = make_client(f"http://{scripted(CountedConnections(script))}")
    for number in range(1, 20):
        assert client.call("get") == number
        assert closed.acquire(timeout=20)


def test_a_call_whose_connection_ends_may_have_run(scripted: Scripted, make_client: MakeClient) -> None:
    """It is repeated only if that was asked for."""
    runs: list[int] = []

    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (request := http.read()) is not None:
            runs.append(number)
            if len(runs) % 2 == 0:
                return
            http.answer(request, "fine")

    address = scripted(CountedConnections(script))
    client = make_client(f"http://{address}")
    assert client.call("get") == "fine"
    with pytest.raises(ConnectionLost, match="closed the connection"):
        client.call("get")
    again = make_client(f"http://{address}", retries=1, retry="all")
    assert again.call("get") == "fine"
    assert again.call("get") == "fine"
    assert len(runs) == 5


def test_nobody_is_there(free_address: str, make_client: MakeClient) -> None:
    client = make_client(f"http://{free_address}")
    with pytest.raises(ConnectFailed, match=f"could not connect: .*'get' at http://{free_address}"):
        client.call("get")


def test_a_server_that_is_gone_and_comes_back(scripted: Scripted, make_client: MakeClient, free_address: str) -> None:
    """Between two calls: the next one fails as if there had never been a connection, and was not sent."""
    import socket

    host, port = free_address.split(":")
    client = make_client(f"http://{free_address}")
    for _ in range(2):
        with socket.create_server((host, int(port))) as listening:
            done = threading.Event()

            def accept(listening: socket.socket = listening, done: threading.Event = done) -> None:
                sock, _ = listening.accept()
                http = ScriptedHttpConnection(sock)
                request = http.read()
                assert request is not None
                http.answer(request, "fine")
                sock.close()
                done.set()

            thread = threading.Thread(target=accept)
            thread.start()
            assert client.call("get") == "fine"
            assert done.wait(20)
            thread.join()
        with pytest.raises(ConnectFailed):
            client.call("get")


async def test_a_client_that_reconnects_waits_for_its_server(free_address: str) -> None:
    from rpcstream import Backoff

    host, port = free_address.split(":")

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        message = orjson.loads(await reader.readexactly(length))
        writer.write(answered(reply(message["id"], "fine"), more="Connection: close\r\n"))
        writer.close()

    async with AsyncClient(f"http://{free_address}", reconnect=Backoff(first=0.01, longest=0.05)) as client:
        for _ in range(3):
            waiting = client.submit("get")
            await asyncio.sleep(0.03)
            assert not waiting.done()
            server = await asyncio.start_server(accept, host, int(port))
            assert await waiting == "fine"
            assert await client.call("get") == "fine"
            server.close()
            await server.wait_closed()


# -- notifications --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [answered(b""), b"HTTP/1.1 204 No Content\r\n\r\n", answered(b"", "202 Accepted")])
def test_notifications(scripted: Scripted, answer: bytes, caplog: Any) -> None:
    """What was sent arrives also if the client is closed at once."""
    come: list[Any] = []

    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (request := http.read()) is not None:
            come.append(request.message["method"])
            http.say(answered(reply(request.id, "fine")) if "id" in request.message else answer)

    address = scripted(CountedConnections(script))
    with Client(f"http://{address}") as client:
        client.notify("note", 1)
    assert come == ["note"]

    async def main() -> None:
        async with AsyncClient(f"http://{address}") as client:
            await client.notify("note", 2)
            assert await client.call("get") == "fine"

    asyncio.run(main())
    assert sorted(come[1:]) == ["get", "note"]
    assert not caplog.records


def test_a_notification_that_is_refused_is_told_to_the_log(
    scripted: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = answered(b"who?", "401 Unauthorized")
    caplog.set_level(logging.WARNING, "rpcstream.client")
    with Client(f"http://{scripted(CountedConnections(saying(refusal)))}") as client:
        client.notify("note", 1)
    assert "note" in caplog.text
    assert "HTTP 401 Unauthorized: who?" in caplog.text


def test_notifications_without_an_answer_do_not_take_the_connections_for_ever(
    scripted: Scripted, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (request := http.read()) is not None:
            if "id" in request.message:
                http.answer(request, "fine")

    client = make_client(
        f"http://{scripted(CountedConnections(script))}", http_connections=2, limits=Limits(message_timeout=0.1)
    )
    for n in range(2):
        client.notify("note", n)
    assert client.call("get") == "fine"
    assert "did not answer a notification" in caplog.text


# -- streams --------------------------------------------------------------------------------------------------------


async def test_a_stream_is_read_as_fast_as_its_reader_reads(scripted: Scripted) -> None:
    """The server can send no more than what fits between it and the reader."""
    sent: list[int] = []
    big = "x" * 10_000

    def script(http: ScriptedHttpConnection, number: int) -> None:
        request = http.read()
        assert request is not None
        assert request.headers["accept"] == "application/x-ndjson"
        http.say(UNTIL_CLOSED)
        for n in range(5000):
            http.say(item(request.id, [n, big]))
            sent.append(n)
        http.say(reply(request.id, "end") + b"\n")

    async with AsyncClient(f"http://{scripted(CountedConnections(script))}", limits=Limits(stream_window=4)) as client:
        stream = client.stream("count")
        assert (await anext(stream))[0] == 0
        before = -1
        while len(sent) != before:
            before = len(sent)
            await asyncio.sleep(0.1)
        assert before < 5000
        assert [n async for n, _ in stream] == list(range(1, 5000))
        assert stream.result == "end"


async def test_a_stream_that_is_left_ends_its_connection(scripted: Scripted) -> None:
    ended = threading.Event()

    def script(http: ScriptedHttpConnection, number: int) -> None:
        request = http.read()
        assert request is not None
        http.say(UNTIL_CLOSED + item(request.id, 1))
        try:
            assert http.read() is None
        finally:
            ended.set()

    async with AsyncClient(f"http://{scripted(first(script))}") as client:
        async with client.stream("count") as stream:
            assert await anext(stream) == 1
        assert await asyncio.to_thread(ended.wait, 20)
        assert await client.call("echo", 1) == [1]


async def test_a_stream_that_breaks_off_does_so_behind_its_items(scripted: Scripted) -> None:
    def script(http: ScriptedHttpConnection, number: int) -> None:
        request = http.read()
        assert request is not None
        http.say(UNTIL_CLOSED + b"".join(item(request.id, n) for n in range(50)))

    async with AsyncClient(f"http://{scripted(CountedConnections(script))}", limits=Limits(stream_window=3)) as client:
        stream = client.stream("count")
        for n in range(50):
            assert await anext(stream) == n
            await asyncio.sleep(0.001)
        with pytest.raises(ConnectionLost, match="no reply to the call"):
            await anext(stream)


@pytest.mark.parametrize("ending", [b"nonsense\n", b'{"jsonrpc": "2.0", "id"', b"[[\n"])
async def test_a_stream_that_turns_into_something_else(scripted: Scripted, ending: bytes) -> None:
    def script(http: ScriptedHttpConnection, number: int) -> None:
        request = http.read()
        assert request is not None
        http.say(UNTIL_CLOSED + item(request.id, 1) + ending)

    async with AsyncClient(f"http://{scripted(first(script))}") as client:
        stream = client.stream("count")
        assert await anext(stream) == 1
        with pytest.raises(ConnectionLost, match="not JSON"):
            await anext(stream)
        assert await client.call("echo", 1) == [1]


async def test_an_item_that_is_too_long(scripted: Scripted) -> None:
    def script(http: ScriptedHttpConnection, number: int) -> None:
        request = http.read()
        assert request is not None
        http.say(UNTIL_CLOSED + item(request.id, 1) + item(request.id, "x" * 2000))
        http.read()

    limits = Limits(max_message_size=1000)
    async with AsyncClient(f"http://{scripted(first(script))}", limits=limits) as client:
        stream = client.stream("count")
        assert await anext(stream) == 1
        with pytest.raises(MessageTooLarge):
            await anext(stream)
        assert await client.call("echo", 1) == [1]


async def test_items_of_another_call_are_dropped(scripted: Scripted) -> None:
    def script(http: ScriptedHttpConnection, number: int) -> None:
        request = http.read()
        assert request is not None
        http.say(UNTIL_CLOSED + item(request.id + 1, 1) + item(request.id, 2) + reply(request.id, None))

    async with AsyncClient(f"http://{scripted(CountedConnections(script))}") as client:
        assert [n async for n in client.stream("count")] == [2]


def test_progress_asks_for_lines_and_items_come_as_one_array(scripted: Scripted, make_client: MakeClient) -> None:
    def progress(call_id: Any, value: Any) -> bytes:
        params = {"token": call_id, "value": value}
        return orjson.dumps({"jsonrpc": "2.0", "method": "$/progress", "params": params}) + b"\n"

    def script(http: ScriptedHttpConnection, number: int) -> None:
        request = http.read()
        assert request is not None
        assert request.headers["accept"] == "application/x-ndjson"
        big = {"$type": "bytes", "data": "QUJD" * 10_000}
        lines = [progress(request.id, 1), item(request.id, 2**60), progress(request.id, 2), item(request.id, big)]
        body = b"\n".join([*lines, reply(request.id, None)])
        http.say(answered(body, kind="application/x-ndjson; charset=utf-8"))
        http.serve()

    said: list[Any] = []
    client = make_client(f"http://{scripted(CountedConnections(script))}")
    assert client.call("work", on_progress=said.append) == [2**60, b"ABC" * 10_000]
    assert said == [1, 2]


@pytest.mark.parametrize("size", [0, 100_000])
def test_who_wants_progress_alone_says_so(scripted: Scripted, size: int) -> None:
    """As it is traced, and only then."""
    requests: list[Any] = []
    traced: list[bytes] = []

    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (request := http.read()) is not None:
            requests.append(request.message)
            http.say(answered(reply(request.id, "done")))

    def trace(way: str, message: bytes) -> None:
        if way == "send":
            traced.append(message)

    with Client(f"http://{scripted(CountedConnections(script))}", trace=trace) as client:
        for on_progress in (lambda value: None, None):
            assert client.call("work", b"x" * size, on_progress=on_progress) == "done"
        list(client.stream("work", on_progress=lambda value: None))
    assert list(map(orjson.loads, traced)) == requests
    assert [request.get("stream", "absent") for request in requests][:2] == [None, "absent"]
    assert requests[2]["stream"] > 0


def test_an_answer_that_was_given_and_does_not_end_leaves_its_place(scripted: Scripted) -> None:
    def script(http: ScriptedHttpConnection, number: int) -> None:
        request = http.read()
        assert request is not None
        http.say(UNTIL_CLOSED + reply(request.id, number) + b"\n")
        http.read()

    with Client(f"http://{scripted(CountedConnections(script))}", http_connections=2) as client:
        results = [client.call("get", on_progress=lambda value: None) for _ in range(6)]
        assert sorted(results) == [1, 2, 3, 4, 5, 6]


# -- what HTTP cannot do, and what is not shown ---------------------------------------------------------------------


def test_what_needs_a_connection_that_lasts(free_address: str) -> None:
    said = r"HTTP has none \(http://.*ws://.*tls://"
    with Client(f"http://{free_address}") as client:
        with pytest.raises(RuntimeError, match=f"subscribe .*{said}"):
            client.subscribe("ticks")
        with pytest.raises(RuntimeError, match=f"offering a method .*{said}"):
            client(print)
        with pytest.raises(RuntimeError, match=f"on_connect .*{said}"):
            client.on_connect(print)
        with pytest.raises(TypeError, match=r"an iterator as an argument of .total. cannot be sent over HTTP.*ws://"):
            client.call("total", iter([1]))


async def test_what_needs_a_connection_that_lasts_async(free_address: str) -> None:
    async with AsyncClient(f"http://{free_address}") as client:
        with pytest.raises(RuntimeError, match="subscribe needs a connection that lasts"):
            client.subscribe("ticks")
        with pytest.raises(RuntimeError, match="offering a method"):
            client(print)
        with pytest.raises(RuntimeError, match="on_connect"):
            client.on_connect(asyncio.sleep)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="an iterator as an argument"):
            client.stream("total", iter([1]))


def test_a_token_is_not_shown(scripted: Scripted, make_client: MakeClient) -> None:
    traced: list[tuple[str, bytes]] = []
    refusal = answered(b"not with this", "401 Unauthorized")
    client = make_client(
        f"http://{scripted(CountedConnections(saying(refusal)))}",
        token="s3cret",
        trace=lambda direction, message: traced.append((direction, message)),
    )
    with pytest.raises(NotAuthenticated) as caught:
        client.call("get")
    assert [direction for direction, _ in traced] == ["send"]
    shown = f"{caught.value!r} {caught.value} {traced} {client.client!r} {settings_of(client.client)!r}"
    assert "s3cret" not in shown


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "caf\N{LATIN SMALL LETTER E WITH ACUTE}", ""])
def test_a_token_that_no_header_can_have(token: str) -> None:
    with pytest.raises(ValueError, match="token") as caught:
        Client("http://127.0.0.1", token=token)
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"http_connections": 0}, "http_connections"),
        ({"ca": "ca.pem"}, "ca= is for TLS"),
        ({"certificate": "me.pem"}, "certificate= is for TLS"),
        ({"key": "me.key"}, "key= is for TLS"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Client("http://127.0.0.1", **options)


async def test_a_wrong_address_is_told_to_who_waited_for_it(free_address: str) -> None:
    async with AsyncClient(f"http://{free_address}", reconnect=True) as client:
        with pytest.raises(CallTimeout, match=r"no connection in time; could not connect: .*refused"):
            await client.call("get", timeout=0.2)


async def test_too_much_that_waits_makes_callers_wait(scripted: Scripted) -> None:
    """While more than `write_buffer` waits for a connection, calls wait before they are sent, and none is lost."""
    go = threading.Event()

    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (request := http.read()) is not None:
            go.wait(20)
            http.answer(request, request.message["params"][0])

    limits = Limits(write_buffer=10_000)
    async with AsyncClient(
        f"http://{scripted(CountedConnections(script))}", http_connections=1, limits=limits
    ) as client:
        calls = [client.submit("echo", n, "x" * 1000) for n in range(100)]
        for _ in range(100):
            await asyncio.sleep(0)
        (link,) = client_connections(client)
        assert len(link.session.pending) < 30
        go.set()
        assert await asyncio.gather(*calls) == list(range(100))


async def test_calls_that_are_given_up_while_they_wait_are_never_sent(scripted: Scripted) -> None:
    come: list[Any] = []
    begun, go = threading.Event(), threading.Event()

    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (request := http.read()) is not None:
            come.append(request.message["method"])
            begun.set()
            go.wait(20)
            http.answer(request, "fine")

    async with AsyncClient(f"http://{scripted(CountedConnections(script))}", http_connections=1) as client:
        first_call = client.submit("first")
        await asyncio.to_thread(begun.wait, 20)
        waiting = client.submit("second")
        third = client.submit("third")
        await asyncio.sleep(0.01)
        waiting.cancel()
        await asyncio.sleep(0.01)
        go.set()
        assert [await first_call, await third] == ["fine", "fine"]
        assert come == ["first", "third"]
