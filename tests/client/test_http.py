"""The client over HTTP against scripted servers: requests and binary frames on the wire, and failures."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import (
    AsyncClient,
    CallTimeout,
    Client,
    ConnectFailed,
    ConnectionLost,
    Limits,
    NotAuthenticated,
    NotPermitted,
    Retry,
    RpcError,
    ServerBusy,
)
from rpcstream.errors import InternalError, MessageTooLarge

from ..kit import UsualServer, frame, request, until
from ..kit.certificates import client_side, server_tls
from ..kit.scripted_http import UNTIL_CLOSED, CountedConnections, Request, ScriptedHttpConnection, answered, item, reply
from .conftest import MakeClient, Scripted, Traced, in_child, refusal

#: Bytes of an answer to the call with this id.
Answer = Callable[[Any], bytes]
Script = Callable[[ScriptedHttpConnection, int], None]


def read(http: ScriptedHttpConnection) -> Request:
    asked = http.read()
    assert asked is not None
    return asked


def saying(*answers: Answer | bytes, stays: bool = False) -> Script:
    """The answers to the requests of a connection, in order; then it is closed, or echoes all others."""

    def script(http: ScriptedHttpConnection, number: int) -> None:
        for answer in answers:
            if (asked := http.read()) is None:
                return
            http.say(answer if isinstance(answer, bytes) else answer(asked.message.get("id")))
        if stays:
            http.serve()

    return script


def first(script: Script) -> CountedConnections:
    """The script for the first connection; calls on the others are answered with their params."""
    return CountedConnections(lambda http, number: script(http, number) if number == 1 else http.serve())


def always(answer: Callable[[Request, int], bytes]) -> CountedConnections:
    """Each request of each connection is answered so."""

    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (asked := http.read()) is not None:
            http.say(answer(asked, number))

    return CountedConnections(script)


def test_what_a_request_looks_like(
    scripted: Scripted, make_client: MakeClient, monkeypatch: Any, free_address: str
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):  # which are not obeyed
        monkeypatch.setenv(name, f"http://{free_address}")
    requests: list[Request] = []
    address = scripted(always(lambda asked, _: requests.append(asked) or answered(reply(asked.id, 7))))
    assert make_client(f"http://{address}/rpc?x=1", token="s3cret").call("sum", 3, 4) == 7
    (asked,) = requests
    assert asked.line == "POST /rpc?x=1 HTTP/1.1"
    expected = {
        "host": address,
        "content-type": "application/json",
        "accept": "application/json, application/x-rpcstream",
        "authorization": "Bearer s3cret",
    }
    assert expected.items() <= asked.headers.items()
    assert asked.message == request("sum", 3, 4)


def test_calls_one_after_the_other_use_one_connection(scripted: Scripted, make_client: MakeClient) -> None:
    counted = CountedConnections(lambda http, number: http.serve())
    client = make_client(f"http://{scripted(counted)}")
    assert [client.call("echo", n) for n in range(50)] == [[n] for n in range(50)]
    assert client.call("echo", "x" * 3_000_000) == ["x" * 3_000_000]
    for call_id in ("a", 7, 2**60):
        assert client({"params": {"x": 1}, "method": "echo", "jsonrpc": "2.0", "id": call_id})["id"] == call_id
    assert counted.total == 1


@pytest.mark.parametrize("most", [1, 3])
async def test_calls_at_once_have_so_many_connections_and_the_others_wait_in_order(
    scripted: Scripted, most: int
) -> None:
    come: list[int] = []
    counted = always(lambda asked, _: come.append(asked.message["params"][0]) or answered(reply(asked.id, come[-1])))
    async with AsyncClient(f"http://{scripted(counted)}", pool=most) as client:
        await asyncio.gather(*(client.call("echo", n) for n in range(30)))
    assert counted.most == counted.total == most
    assert (come if most == 1 else sorted(come)) == list(range(30))


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: CHUNKED\r\nX: y\r\n\r\n"


async def test_a_connection_that_cannot_be_made_fails_one_call_which_is_repeated_on_another() -> None:
    is_free = threading.Event()

    def serve(listening: socket.socket) -> None:
        accepted, _ = listening.accept()
        with server_side.wrap_socket(accepted, server_side=True) as encrypted:
            http = ScriptedHttpConnection(encrypted)
            asked = read(http)
            refused, _ = listening.accept()  # its TLS handshake is never answered
            http.answer(asked, "first")
            assert is_free.wait(20)
            refused.close()
            http.answer(read(http), "second")

    server_side = server_tls().context()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.ensure_future(asyncio.to_thread(serve, listening))
        address = f"https://127.0.0.1:{listening.getsockname()[1]}"
        async with AsyncClient(address, tls=client_side(), timeout=20, retry=Retry(times=1)) as client:
            calls = [asyncio.ensure_future(client.call(name)) for name in ("one", "two")]
            done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            assert [call.result() for call in done] == ["first"]
            is_free.set()
            assert [await call for call in waiting] == ["second"]
        await serving


@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_process_has_as_many_connections_as_its_parent(scripted: Scripted) -> None:
    counted = CountedConnections(lambda http, number: http.serve())
    with Client(f"http://{scripted(counted)}", pool=1, timeout=20) as client:
        assert client.echo(0) == [0]

        def work() -> None:
            futures = [client.submit.echo(n) for n in range(6)]
            assert [future.result(20) for future in futures] == [[n] for n in range(6)]
            client.close()

        assert in_child(work) == 0
    assert counted.total == 2


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("form", "connections"),
    [
        (lambda body: chunked(body, 7), 1),
        (lambda body: chunked(body, 1), 1),
        (lambda body: b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + answered(body), 1),
        (lambda body: b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n" % len(body) + body, 1),
        (lambda body: b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body, 3),
        (lambda body: b"HTTP/1.0 200 OK\r\n\r\n" + body, 3),
        (lambda body: answered(body, more="Connection: close\r\n"), 3),
    ],
    ids=["chunked", "small chunks", "1xx", "1.0 kept", "1.0", "to the end", "close"],
)
def test_forms_of_an_answer(
    scripted: Scripted, make_client: MakeClient, form: Callable[[bytes], bytes], connections: int
) -> None:
    """The second one comes byte by byte."""
    asked: list[Request] = []

    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (request := http.read()) is not None:
            asked.append(request)
            data = form(reply(request.id, "fine"))
            for piece in [data] if len(asked) != 2 else [bytes([each]) for each in data]:
                http.say(piece)
            if connections > 1:
                return

    counted = CountedConnections(script)
    client = make_client(f"http://{scripted(counted)}")
    assert [client.call("get") for _ in range(3)] == ["fine"] * 3
    assert counted.total == connections


def test_a_batch_is_one_request_and_errors_are_those_of_the_call_alone(
    scripted: Scripted, make_client: MakeClient
) -> None:
    def answer(asked: Request, number: int) -> bytes:
        if isinstance(asked.message, list):
            replies = [reply(call["id"], call["params"]) for call in asked.message if call["params"] != ["unanswered"]]
            return answered(b"[" + b",".join(replies[::-1]) + b"]")
        if asked.message["method"] == "good":
            return answered(reply(asked.id, "fine"))
        status, call_id = ("500 Error", asked.id) if asked.message["method"] == "known" else ("200 OK", None)
        return answered(orjson.dumps(refusal(call_id, 7, "mine")), status)

    client = make_client(f"http://{scripted(always(answer))}")
    one, missing, two = client.batch(("echo", 1), ("echo", "unanswered"), ("echo", 2))
    assert [one.result(), two.result()] == [[1], [2]]
    assert isinstance(missing.error, InternalError)
    bad, good, known = client.together(("bad",), ("good",), ("known",))
    assert [(type(each), each.code) for each in (bad, known)] == [(RpcError, 7)] * 2
    assert good == "fine"


async def test_a_stream_that_is_left_and_a_call_that_is_given_up_end_their_connection(scripted: Scripted) -> None:
    """The server hears of it, and the next call has another."""
    ended = threading.Semaphore(0)

    def script(http: ScriptedHttpConnection, number: int) -> None:
        if number == 3:
            return http.serve()
        asked = read(http)
        if number == 1:
            http.say(UNTIL_CLOSED + item(asked.id, 1))
        try:
            assert http.read() is None
        finally:
            ended.release()

    async with AsyncClient(f"http://{scripted(CountedConnections(script))}") as client:
        async with client.stream("count") as stream:
            assert await anext(stream) == 1
        assert await asyncio.to_thread(ended.acquire, timeout=20)
        with pytest.raises(CallTimeout, match="no answer in time"):
            await client.call("get", timeout=2)
        assert await asyncio.to_thread(ended.acquire, timeout=20)
        assert await client.call("echo", 1) == [1]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("401 Unauthorized", NotAuthenticated),
        ("403 Forbidden", NotPermitted),
        ("413 Too Large", MessageTooLarge),
        ("429 Too Many Requests", ServerBusy),
        ("503 Service Unavailable", ServerBusy),
        ("500 Broken", InternalError),
        ("404 Not Found", ConnectFailed),
        ("302 Found", ConnectFailed),
        ("415 Unsupported Media Type", None),
        ("502 Bad Gateway", ConnectionLost),
    ],
)
def test_a_status_that_is_no_success(scripted: Scripted, make_client: MakeClient, status: str, kind: Any) -> None:
    """And what is said of it has no token."""
    refused = answered(b"no,\n\x1b go away", status, "text/plain", "Location: http://127.0.0.1:1/\r\n")
    counted = CountedConnections(saying(refused, lambda call_id: answered(reply(call_id, "fine")), stays=True))
    traced: list[Any] = []
    client = make_client(f"http://{scripted(counted)}", token="s3cret", trace=lambda *each: traced.append(each))
    with pytest.raises(kind or (RpcError, ConnectionError), match=f"HTTP {status}: no, go away") as caught:
        client.call("get")
    assert kind is None or type(caught.value) is kind
    assert caught.value.method == "get"
    assert [direction for direction, _ in traced] == ["send"]
    assert "s3cret" not in f"{caught.value!r} {caught.value} {traced} {client.client!r}"
    assert ("redirects are not followed" in str(caught.value)) is status.startswith("3")
    assert client.call("get") == "fine"
    assert counted.total == 1


HEAD = b"HTTP/1.1 200 OK\r\n"

HOSTILE: dict[str, tuple[bytes, str]] = {
    "garbage": (b"SSH-2.0-OpenSSH_9\r\n", "is not HTTP"),
    "html": (answered(b"<html>hello</html>", kind="text/html"), "not JSON"),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", "no reply to the call"),
    "another's reply": (answered(reply(999, 1)), "no reply to the call"),
    "not quite the id": (answered(reply(True, 1)), "no reply to the call"),
    "too short": (HEAD + b"Content-Length: 500\r\n\r\n{", "in the middle of its answer"),
    "an open chunk": (CHUNKED + b"50\r\n{", "in the middle of its answer"),
    "no chunk": (CHUNKED + b"zz\r\n{", "is not HTTP"),
    "two lengths": (HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "is not HTTP"),
    "both lengths": (HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "is not HTTP"),
    "negative": (HEAD + b"Content-Length: -2\r\n\r\n{}", "is not HTTP"),
    "compressed": (answered(b"{}", more="Content-Encoding: gzip\r\n"), "compressed without being asked: gzip"),
    "coded": (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "transfer coding"),
    "upgrade": (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc", "without being asked"),
    "a head without end": (HEAD + b"X: " + b"y" * 100_000 + b"\r\n", "more than 65536 bytes"),
    "a long chunk header": (CHUNKED + b"1;" + b"x" * 90_000 + b"\r\n{\r\n", "more than 65536 bytes|is not HTTP"),
    "closed": (b"", "closed the connection"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_broken_answer_fails_its_call_and_no_other(scripted: Scripted, make_client: MakeClient, name: str) -> None:
    answer, said = HOSTILE[name]
    stays = "closed" not in said and "middle" not in said
    client = make_client(f"http://{scripted(first(saying(answer, stays=stays)))}")
    with pytest.raises(ConnectionLost, match=said):
        client.call("get")
    assert client.call("echo", 1) == [1]


LIMIT = "the client's limit is 1000 bytes"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda call_id: answered(reply(call_id, "x" * 2000)), LIMIT),
        (lambda call_id: chunked(reply(call_id, "x" * 2000), 100), LIMIT),
        # The second reply belongs to no call, and is not taken for the next call's.
        (lambda call_id: answered(reply(call_id, "fine")) + answered(reply(call_id + 1, "forged")), ""),
    ],
)
def test_an_answer_that_is_too_long_or_one_too_many(
    scripted: Scripted, make_client: MakeClient, answer: Answer, said: str
) -> None:
    client = make_client(f"http://{scripted(first(saying(answer)))}", limits=Limits(max_message_size=1000))
    if said:
        with pytest.raises(MessageTooLarge, match=said):
            client.call("get")
    else:
        assert client.call("get") == "fine"
    assert client.call("echo", 1) == [1]


def test_a_connection_that_was_closed_between_two_calls_is_not_noticed(
    scripted: Scripted, make_client: MakeClient
) -> None:
    """Also when the event loop did not run meanwhile, so that it could not see it."""
    closed = threading.Semaphore(0)

    def script(http: ScriptedHttpConnection, number: int) -> None:
        if (asked := http.read()) is not None:
            http.answer(asked, number)
            http.socket.shutdown(2)
            closed.release()

    client = make_client(f"http://{scripted(CountedConnections(script))}")
    for number in range(1, 10):
        assert client.call("get") == number
        assert closed.acquire(timeout=20)


async def test_each_call_connects_and_may_wait_for_its_server(free_address: str) -> None:
    async with AsyncClient(f"http://{free_address}", wait_for=30) as client:
        with pytest.raises(ConnectFailed, match=r"could not connect: .*refused"):
            await client.call("echo", 1, wait_for=None)
        for _ in range(2):
            waiting = client.submit("echo", 1)
            await asyncio.sleep(0.03)
            assert not waiting.done()
            async with UsualServer().listening(port=int(free_address.rpartition(":")[2])):
                assert await waiting == await client.call("echo", 1) == 1


async def test_a_notification_needs_a_server_and_waits_for_it_as_a_call_does(
    free_address: str, face: Callable[..., Any]
) -> None:
    server, come = UsualServer(), asyncio.Event()
    loop = asyncio.get_running_loop()
    server.add(lambda: loop.call_soon_threadsafe(come.set), name="told")
    async with face(f"http://{free_address}", wait_for=30) as client:
        with pytest.raises(ConnectFailed, match=r"could not connect: .*refused.*'told'"):
            await client.notify("told", wait_for=None)
        with pytest.raises(ConnectFailed, match="could not connect"):
            await client({"jsonrpc": "2.0", "method": "told"}, wait_for=None)
        waiting = asyncio.ensure_future(client.notify("told"))
        await asyncio.sleep(0.03)
        assert not waiting.done()
        async with server.listening(port=int(free_address.rpartition(":")[2])):
            assert await waiting is None
            await asyncio.wait_for(come.wait(), 20)


async def test_a_batch_names_itself_in_the_error_where_no_server_is(free_address: str) -> None:
    async with AsyncClient(f"http://{free_address}") as client:
        for is_notice in (False, True):
            with pytest.raises(ConnectFailed, match="'batch'" if is_notice else "'batch of echo'"):
                async with client.batch() as batch:
                    (batch.notify if is_notice else batch.call)("echo", 1)


async def test_a_notification_does_not_wait_for_calls_that_have_the_connections(scripted: Scripted) -> None:
    go, come = threading.Event(), list[str]()

    def answer(asked: Request, number: int) -> bytes:
        come.append(asked.message["method"])
        assert go.wait(20)
        return answered(reply(asked.id, number) if "id" in asked.message else b"")

    async with AsyncClient(f"http://{scripted(always(answer))}", pool=1) as client:
        call = client.submit("echo")
        await until(lambda: come == ["echo"])
        await client.notify("note")
        assert not call.done()
        go.set()
        assert await call == 1


async def test_calls_that_wait_for_a_connection_say_so_and_were_not_executed(
    silent: str, face: Callable[..., Any]
) -> None:
    """The TLS handshake is never answered."""
    address = f"https://{silent}"
    async with face(address, tls=client_side(), connect_timeout=None) as client:
        with pytest.raises(CallTimeout, match="no connection in time"):
            await client.call("echo", 1, timeout=0.1)
        with pytest.raises(CallTimeout, match="no connection in time"):
            await client.notify("note", 1, timeout=0.1)
        calls = [asyncio.ensure_future(client.call("echo", n, timeout=20)) for n in range(3)]
        await asyncio.sleep(0.1)
    for call in calls:
        with pytest.raises(ConnectionLost, match="the client was closed") as caught:
            await call
        assert caught.value.executed is False


async def test_calls_that_wait_while_no_connection_can_be_made_fail_with_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"https://127.0.0.1:{listening.getsockname()[1]}"
        async with AsyncClient(address, tls=client_side(), pool=1, timeout=20, connect_timeout=0.2) as client:
            calls = [client.submit("echo", n) for n in range(3)]
            for call in calls:
                with pytest.raises(ConnectFailed, match="could not connect within"):
                    await call
        listening.setblocking(False)
        listening.accept()[0].close()
        with pytest.raises(BlockingIOError):  # there was one attempt
            listening.accept()


async def test_an_answer_without_an_end_keeps_neither_its_connection_nor_the_client(scripted: Scripted) -> None:
    def answer(asked: Request, number: int) -> bytes:
        body = reply(asked.id, number)
        return UNTIL_CLOSED + body + b"\n" if number == 1 else answered(body)

    async with AsyncClient(f"http://{scripted(always(answer))}", pool=1) as client:
        assert await client.call("work", on_progress=lambda value: None) == 1
        assert await client.call("echo") == 2
        await asyncio.wait_for(client.close(), 20)


async def test_too_much_that_waits_makes_callers_wait_and_what_is_given_up_is_never_sent(scripted: Scripted) -> None:
    """While more than `write_buffer` waits for a connection; none of the others is lost."""
    come: list[Any] = []
    go = threading.Event()

    def answer(asked: Request, number: int) -> bytes:
        assert go.wait(20)
        come.append(asked.message["params"][0])
        return answered(reply(asked.id, come[-1]))

    address, limits = f"http://{scripted(always(answer))}", Limits(write_buffer=10_000)
    async with AsyncClient(address, pool=1, limits=limits) as client:
        calls = [client.submit("echo", n, "x" * 1000) for n in range(100)]
        await asyncio.sleep(0.05)
        for given_up in (calls.pop(50), calls.pop(3)):
            given_up.cancel()
        await asyncio.sleep(0)
        go.set()
        assert await asyncio.gather(*calls) == come == [n for n in range(100) if n not in (3, 50)]


@pytest.mark.parametrize(
    "answer", [answered(b""), b"HTTP/1.1 204 No Content\r\n\r\n", answered(b"", "202 Accepted"), b""]
)
def test_notifications(scripted: Scripted, make_client: MakeClient, answer: bytes, caplog: Any) -> None:
    """What was sent arrives also if the client is closed at once; what is refused or not answered is logged."""
    come: list[Any] = []

    def answer_to(asked: Request, number: int) -> bytes:
        come.append(asked.message["method"])
        return answered(reply(asked.id, "fine")) if "id" in asked.message else answer

    address, limits = scripted(always(answer_to)), Limits(message_timeout=30 if answer else 0.1)
    if answer:
        with Client(f"http://{address}") as closed:
            closed.notify("note", 1)
        assert come == ["note"]
    client = make_client(f"http://{address}", pool=2, limits=limits)
    for n in range(2):
        client.notify("note", n)
    assert client.call("get") == "fine"  # they do not take the connections for ever
    with Client(f"http://{scripted(CountedConnections(saying(answered(b'who?', '401 Unauthorized'))))}") as refused:
        refused.notify("note", 1)
    assert "HTTP 401 Unauthorized: who?" in caplog.text
    assert ("did not answer a notification" in caplog.text) is (answer == b"")


async def test_a_stream_is_read_as_fast_as_its_reader_reads(scripted: Scripted) -> None:
    """The server can send no more than what fits between it and the reader."""
    sent: list[int] = []

    def script(http: ScriptedHttpConnection, number: int) -> None:
        asked = read(http)
        assert asked.headers["accept"] == "application/x-ndjson"
        http.say(UNTIL_CLOSED)
        for n in range(600):
            http.say(item(asked.id, [n, "x" * 20_000]))
            sent.append(n)
        http.say(reply(asked.id, "end") + b"\n")

    async with AsyncClient(f"http://{scripted(CountedConnections(script))}", limits=Limits(stream_window=4)) as client:
        stream = client.stream("count")
        assert (await anext(stream))[0] == 0
        before = -1
        while len(sent) != before:
            before = len(sent)
            await asyncio.sleep(0.05)
        assert before < 600
        assert [n async for n, _ in stream] == list(range(1, 600))
        assert stream.result == "end"


@pytest.mark.parametrize(
    ("ending", "count", "kind", "said"),
    [
        *[(ending, 20, ConnectionLost, "not JSON") for ending in (b"nonsense\n", b'{"jsonrpc": "2.0", "id"', b"[[\n")],
        (b"", 20, ConnectionLost, "no reply to the call"),
        (item(1, "x" * 2000), 1, MessageTooLarge, LIMIT),
    ],
)
async def test_a_stream_that_breaks_off_does_so_behind_its_items(
    scripted: Scripted, ending: bytes, count: int, kind: type[Exception], said: str
) -> None:
    items = item(2, "another's, which is dropped") + b"".join(item(1, n) for n in range(count))
    limits = Limits(stream_window=3, max_message_size=1000)
    async with AsyncClient(f"http://{scripted(first(saying(UNTIL_CLOSED + items + ending)))}", limits=limits) as client:
        stream = client.stream("count")
        assert [await anext(stream) for _ in range(count)] == list(range(count))
        with pytest.raises(kind, match=said):
            await anext(stream)
        assert await client.call("echo", 1) == [1]


def test_progress_asks_for_lines(scripted: Scripted, make_client: MakeClient) -> None:
    """Who wants progress alone says so, as it is traced, and only then."""
    requests: list[Any] = []

    def answer(asked: Request, number: int) -> bytes:
        requests.append(asked.message)
        if asked.headers["accept"] != "application/x-ndjson":
            return answered(reply(asked.id, "done"))
        progress = [
            orjson.dumps({"jsonrpc": "2.0", "method": "$/progress", "params": {"token": asked.id, "value": value}})
            for value in (1, 2)
        ]
        lines = [*progress, reply(asked.id, 3)]
        return answered(b"\n".join(lines), kind="application/x-ndjson; charset=utf-8")

    said: list[Any] = []
    client = make_client(f"http://{scripted(always(answer))}", trace=(traced := Traced()))
    assert client.call("work", on_progress=said.append) == 3
    assert said == [1, 2]
    assert client.call("work") == "done"
    assert list(map(orjson.loads, traced.sent)) == requests
    assert [each.get("stream", "absent") for each in requests] == [None, "absent"]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_needs_a_connection_that_lasts(kind: Any) -> None:
    client = kind("http://127.0.0.1:1")
    said = r"needs a connection that lasts, and HTTP has none \(http://.*ws://.*tls://"
    for attempt, what in (
        (lambda: client.subscribe("ticks"), "subscribe"),
        (lambda: client(print), "offering a method"),
        (lambda: client.on_connect(asyncio.sleep), "on_connect"),
        (lambda: kind("http://127.0.0.1:1", name="gpu-1"), "name"),
        (lambda: kind("http://127.0.0.1:1", keepalive=1.0), "keepalive"),
        (lambda: kind("http://127.0.0.1:1", reconnect=True), "reconnect"),
    ):
        with pytest.raises(RuntimeError, match=f"{what}.*{said}"):
            attempt()
    for made in (client.offer, client.wait_closed, client.run):
        with pytest.raises(RuntimeError, match="HTTP has none"):
            asyncio.run(made()) if kind is AsyncClient else made()


def test_an_iterator_cannot_be_an_argument(served: str) -> None:
    said = r"an iterator as an argument of .total. cannot be sent over HTTP.*ws://"

    async def awaited() -> None:
        async with AsyncClient(f"http://{served}") as client:
            with pytest.raises(TypeError, match=said):
                await client.total(iter([1]))
            with pytest.raises(TypeError, match=said):
                await anext(client.stream.total(iter([1])))
            assert await client.add(1, 2) == 3

    asyncio.run(awaited())
    with Client(f"http://{served}") as client:
        attempts: tuple[Callable[[], Any], ...] = (
            lambda: client.total(iter([1])),
            lambda: client.submit.total(iter([1])).result(20),
            lambda: next(client.stream.total(iter([1]))),
        )
        for attempt in attempts:
            with pytest.raises(TypeError, match=said):
                attempt()
        assert client.add(1, 2) == 3


FRAME = "application/x-rpcstream"
READS_FRAMES = f"Accept-Post: application/json, {FRAME}\r\n"
LIMITS = Limits(max_message_size=20_000)


GOOD = b"\1" * 5000


def array_answer(asked: Request, *, size: int = 5000, data: bytes = GOOD, more: bytes = b"", **members: Any) -> bytes:
    """The reply to a call, as a frame; other members take the place of the result."""
    tagged = {"$type": "ndarray", "dtype": "|u1", "shape": [size], "data": {"$bin": 0}}
    message = {"jsonrpc": "2.0", "id": asked.id, **(members or {"result": tagged})}
    return answered(frame(message, data) + more, kind=FRAME)


BROKEN: dict[str, tuple[Callable[[Request], bytes], type[Exception]]] = {
    "bytes behind it": (lambda asked: array_answer(asked, more=b"x"), ConnectionLost),
    "no header": (lambda asked: answered(reply(asked.id, 1), kind=FRAME), ConnectionLost),
    "it ends early": (lambda asked: answered(frame(b"{}", GOOD)[:-1], kind=FRAME), ConnectionLost),
    "a payload that stands nowhere": (lambda asked: array_answer(asked, result=1), InternalError),
    "another call": (lambda asked: array_answer(asked, id=99, result={"$bin": 0}), ConnectionLost),
    "no reply": (lambda asked: array_answer(asked, id=None, method="x", params=[{"$bin": 0}]), ConnectionLost),
    "another size": (lambda asked: array_answer(asked, size=7), InternalError),
    "over the limit": (lambda asked: array_answer(asked, size=30_000, data=bytes(30_000)), MessageTooLarge),
    "a header over the limit": (lambda asked: answered(b"@10 300000\n", kind=FRAME), ConnectionLost),
}


@pytest.mark.parametrize("what", [*BROKEN, "unasked"])
def test_an_answer_that_cannot_be_read(scripted: Scripted, make_client: MakeClient, what: str) -> None:
    """The call fails; the next one is answered, in pieces."""
    broken, error = BROKEN.get(what, (array_answer, ConnectionLost))

    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (asked := http.read()) is not None:
            if asked.message["method"] == "broken":
                http.say(broken(asked))
                continue
            body = array_answer(asked).partition(b"\r\n\r\n")[2]
            http.say(f"HTTP/1.1 200 OK\r\nContent-Type: {FRAME}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            for piece in (body[:1], body[1:20], body[20:300], body[300:], b""):
                http.say(b"%x\r\n%b\r\n" % (len(piece), piece))

    address = f"http://{scripted(CountedConnections(script))}"
    client = make_client(address, timeout=20, limits=LIMITS, binary=what != "unasked")
    with pytest.raises(error, match="not JSON" if what == "unasked" else None):
        client.call("broken")
    if what != "unasked":
        assert np.array_equal(client.call("size"), np.ones(5000, np.uint8))


async def test_large_answers_come_at_the_same_time(scripted: Scripted) -> None:
    """However little memory there is for messages: the client has asked for them."""
    size, go_on = 800_000, threading.Event()
    said: list[str] = []

    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (asked := http.read()) is not None:
            data = array_answer(asked, size=size, data=bytes(size))
            if asked.message["method"] == "first":
                http.say(data[:600_000])
                said.append("first")
                assert go_on.wait(20)
                http.say(data[600_000:])
            else:
                http.say(data[:300])
                said.append("other")
                http.say(data[300:])

    limits = Limits(max_message_size=1_200_000, max_held_total=1_400_000)
    async with AsyncClient(f"http://{scripted(CountedConnections(script))}", limits=limits, timeout=20) as client:
        first = asyncio.ensure_future(client.call("first"))
        await until(lambda: said)
        await asyncio.sleep(0.05)
        others = [asyncio.ensure_future(client.call("other")) for _ in range(3)]
        assert [len(result) for result in await asyncio.gather(*others)] == [size] * 3
        assert not first.done()
        go_on.set()
        assert len(await first) == size
