"""Calls over HTTP by well-behaved clients."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, Context, Http
from rpcstream.errors import InvalidRequest
from rpcstream.testing import is_idle
from rpcstream.web import HttpError, Response
from rpcstream.wire.http_messages import problem

from ..kit import reply, until
from ..kit.http import RawHttpConnection, call, chunked, get, post
from ..kit.websocket import ACCEPTED, PING, UPGRADE, RawWebSocket, frame
from .conftest import Serve, Served

NDJSON, EVENTS = "Accept: application/x-ndjson", "Accept: text/event-stream"
ADD = post(call("add", 1, 2))
THREE = reply(1, 3)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (call("add", 1, 2), THREE),
        (call("none"), (1, -32601)),
        (b"", (None, -32700)),
        (b"nonsense", (None, -32700)),
        (b"\xff", (None, -32700)),
        (b'{"jsonrpc":"2.0","id":7,"method":"echo","params":[NaN]}', (7, -32700)),
        (b"[%b,%b,%b]" % (call("add", 1, 2), call("note", 5, id=None), call("echo", "b", id="two")),
         [THREE, reply("two", "b")]),
        (call("ask", "confirm"), (1, -32600)),
        (call("total", {"$type": "stream", "id": "s"}), (1, -32800)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("accept", [(), (NDJSON,)])
async def test_what_a_body_is_answered_with(
    http: RawHttpConnection, body: bytes, expected: Any, accept: tuple[str, ...]
) -> None:
    """An error of a call is no error of HTTP, and the connection stays."""
    answer = await http.ask(post(body, *accept))
    assert answer.status == 200
    assert answer.headers["content-type"] == ("application/x-ndjson" if accept else "application/json")
    assert answer.headers["date"].endswith(" GMT")
    assert "connection" not in answer.headers
    [found] = answer.lines
    assert ((found["id"], found["error"]["code"]) if isinstance(expected, tuple) else found) == expected
    assert (await http.ask(ADD)).json == THREE


@pytest.mark.parametrize("between", [b"", b"\r\n"])
async def test_a_body_is_one_value_and_else_nothing_in_it_is_carried_out(
    served: Served, http: RawHttpConnection, between: bytes
) -> None:
    one = call("note", 2)
    for lines in ((), (NDJSON,)):
        for second in (one, b"[" + one + b"]", call("note", 2, id=None), b"{", b"x"):
            [answer] = (await http.ask(post(call("note", 1) + between + second, *lines))).lines
            assert (answer["id"], answer["error"]["code"]) == (None, -32700)
    assert (await http.ask(post(call("note", 3)))).json == reply(1, None)
    assert served.server.noted == [3]


@pytest.mark.parametrize("status", [200, 204])
@pytest.mark.parametrize("body", [call("wait", "quiet", id=None), b"[" + call("wait", "quiet", id=None) + b"]"])
async def test_a_notification_is_answered_before_it_is_done_and_goes_on(serve: Serve, status: Any, body: bytes) -> None:
    """Also when the connection ends."""
    served = await serve(http=Http(notification_status=status))
    http = await served.http()
    answer = await http.ask(post(body))
    assert (answer.status, answer.body) == (status, b"")
    assert answer.headers.get("content-length") == (None if status == 204 else "0")
    assert "content-type" not in answer.headers
    assert (await http.ask(post(call("note", 1, id=None), NDJSON))).body == b""
    async with AsyncClient(f"http://{served.address}") as client:
        await client.notify.note(2)
        assert await client.note(3) is None
    await http.close()
    await until(lambda: not served.connections and served.server.begun)
    assert not served.server.ended
    served.server.release()
    await until(lambda: served.server.ended == [("quiet", "whole")])


def test_no_other_status_of_notifications() -> None:
    with pytest.raises(ValueError, match="200 or 204"):
        Http(notification_status=202)  # type: ignore[arg-type]


async def test_no_more_notifications_go_on_by_themselves_than_calls_may(serve: Serve) -> None:
    served = await serve(max_calls=3)
    http = await served.http()
    for n in range(3):
        assert (await http.ask(post(call("wait", n, id=None)))).status == 200
    http.send(post(call("wait", 3, id=None)), ADD)
    await until(lambda: len(served.server.begun) == 4)
    await served.has_read_all()
    assert served.connections[0].unread_size == 0
    served.server.release()
    assert (await http.answer()).body == b""
    assert (await http.answer()).json == THREE


@pytest.mark.parametrize(
    "kind", ["application/json-rpc", "application/jsonrequest", "Application/JSON ; charset=utf-8", None]
)
async def test_content_types_of_calls(http: RawHttpConnection, kind: str | None) -> None:
    lines = [] if kind is None else [f"Content-Type: {kind}"]
    assert (await http.ask(post(call("add", 1, 2), *lines, json=False))).json == THREE


async def test_what_a_handler_sees_is_of_its_own_request(served: Served, http: RawHttpConnection) -> None:
    kept: list[Context] = []

    @served.server
    def keep(ctx: Context) -> None:
        kept.append(ctx)

    seen = (await http.ask(post(call("headers"), "X-Trace: a", "x-trace:  b ", "Cookie: c=1", "Cookie: d=2"))).json
    assert [seen["result"][name] for name in ("x-trace", "cookie", "host")] == ["a, b", "c=1; d=2", "127.0.0.1"]
    assert "x-trace" not in (await http.ask(post(call("headers")))).json["result"]
    assert (await http.ask(post(call("keep"), NDJSON))).lines == [reply(1, None)]
    kept[0].progress("too late")
    assert (await http.ask(post(call("add", 1, 2), NDJSON))).lines == [THREE]


@pytest.mark.parametrize("method", ["ask", "rpc.subscribe"])
async def test_what_http_cannot_do_names_the_alternatives(served: Served, method: str) -> None:
    async with AsyncClient(f"http://{served.address}") as client:
        with pytest.raises(InvalidRequest, match="a WebSocket or the line stream"):
            await client.call(method, "x")
        assert await client.call("rpc.ping") == "pong"
    assert not served.server.topics


def item(value: Any, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "$/item", "params": {"id": id, "value": value}}


def progress(value: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "$/progress", "params": {"token": 1, "value": value}}


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (call("count", 50), [*map(item, range(50)), reply(1, None)]),
        (call("progress", 1), [progress(0), reply(1, 1)]),
        (call("count", 0, stream=None), [reply(1, [])]),
        (call("count", 3, stream=None), [reply(1, [0, 1, 2])]),
        (call("count", 1, stream=0), [item(0), reply(1, None)]),
        (call("count", 1, stream="x"), [item(0), reply(1, None)]),
        (call("add", 1, 2, stream=None), [THREE]),
        (b"[%b,%b]" % (call("count", 2, stream=None), call("count", 2, id=2)),
         [item(0, 2), item(1, 2), [reply(1, [0, 1]), reply(2, None)]]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("accept", [NDJSON, EVENTS])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_what_is_streamed(
    http: RawHttpConnection, body: bytes, lines: list[Any], accept: str, version: str
) -> None:
    """Who wants one result of a call says so with `"stream": null`. For HTTP/1.0 the connection ends behind it."""
    http.send(post(body, accept, version=version))
    if version == "1.1":
        answer = await http.answer()
        headers, content = answer.headers, answer.body
    else:
        status, headers = await http.head()
        assert (status, headers["connection"], "transfer-encoding" in headers) == (200, "close", False)
        content = await http.rest()
    if accept == NDJSON:
        assert headers["content-type"] == "application/x-ndjson"
        found = content.splitlines()
    else:
        assert headers["content-type"] == "text/event-stream"
        *events, end = content.split(b"\n\n")
        assert end == b""
        assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
        found = [event[6:] for event in events]
    assert [orjson.loads(each) for each in found] == lines


@pytest.mark.parametrize("accept", ["*/*", "application/json, text/event-stream", "text/html"])
async def test_without_asking_for_a_stream_only_the_reply_comes(http: RawHttpConnection, accept: str) -> None:
    for members in ({}, {"stream": 2}):
        answer = await http.ask(post(call("count", 3, **members), f"Accept: {accept}"))
        assert (answer.headers["content-type"], answer.json) == ("application/json", reply(1, [0, 1, 2]))


async def test_a_stream_comes_at_once_waits_for_its_reader_and_ends_with_it(serve: Serve) -> None:
    served = await serve(write_buffer=20_000)
    http = await served.http()
    http.send(post(b"[%b,%b]" % (call("wait", 1, id=7), call("endless", 100_000)), NDJSON))
    await http.head()
    for _ in range(50):
        await http.chunk()
    # What the buffers of both systems hold is made; then it stands still.
    made = 0
    while made < len(served.server.noted) < 2000:
        made = len(served.server.noted)
        for _ in range(300):
            await asyncio.sleep(0)
    assert made == len(served.server.noted)
    assert served.connections[0].unread_size > 0
    await http.close()
    await until(lambda: len(served.server.ended) == 2)


async def test_pipelined_requests_are_answered_in_order(served: Served, http: RawHttpConnection) -> None:
    http.send(
        post(call("wait", 0, id=0)),
        *[post(call("add", n, 0, id=n)) for n in range(1, 500)],
        get("/none"),
        post(None, "Transfer-Encoding: chunked") + chunked(call("echo", "chunks")),
        post(call("echo", "last")),
    )
    await until(lambda: served.server.begun)
    served.server.release()
    assert [(await http.answer()).json for _ in range(500)] == [reply(n, n) for n in range(500)]
    assert (await http.answer()).status == 404
    assert [(await http.answer()).json["result"] for _ in range(2)] == ["chunks", "last"]
    assert served.server.stats()["connections_total"] == 1


async def test_what_is_pipelined_behind_a_call_waits_unread(served: Served, http: RawHttpConnection) -> None:
    http.send(post(call("wait", 0)))
    await until(lambda: served.server.begun)
    request = post(call("echo", "x" * 100_000))
    http.send(request * 200)
    await served.has_read_all()
    assert http.writer.transport.get_write_buffer_size() > 1_000_000  # the server takes no more
    served.server.release()
    assert (await http.answer()).json == reply(1, 0)
    for _ in range(200):
        assert len((await http.answer()).json["result"]) == 100_000


@pytest.mark.parametrize(
    ("version", "connection", "is_kept"),
    [
        ("1.1", None, True),
        ("1.1", "keep-alive", True),
        ("1.1", "close", False),
        ("1.1", "foo, Close", False),
        ("1.0", None, False),
        ("1.0", "Keep-Alive", True),
        ("1.0", "close", False),
    ],
)
async def test_who_keeps_the_connection(
    http: RawHttpConnection, version: str, connection: str | None, is_kept: bool
) -> None:
    request = post(call("add", 1, 2), *[f"Connection: {connection}"] if connection else [], version=version)
    answer = await http.ask(request)
    assert answer.json == THREE
    if not is_kept:
        assert answer.headers["connection"] == "close"
        assert await http.rest() == b""
        return
    assert answer.headers.get("connection") == ("keep-alive" if version == "1.0" else None)
    assert (await http.ask(request)).json == THREE


async def test_expect_100_continue(http: RawHttpConnection) -> None:
    request = post(call("add", 1, 2), "Expect: 100-continue")
    head, _, body = request.partition(b"\r\n\r\n")
    assert (await http.ask(head + b"\r\n\r\n")).status == 100
    assert (await http.ask(body)).json == THREE
    # Who does not wait need not be told.
    assert (await http.ask(request)).json == THREE
    assert (await http.ask(request.replace(b"100-continue", b"200-ok"))).status == 417


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/none"), 404),
        (post(b"{}", target="/none"), 404),
        (get("/"), 405),
        (get("/", method="PUT"), 405),
        (get("/", method="OPTIONS"), 405),
        (post(None), 411),
        *[(post(b"{}", *lines, json=False), 415) for lines in [
            ["Content-Type: text/plain"],
            ["Content-Type: multipart/form-data; boundary=x"],
            ["Content-Type:"],
            ["Origin: http://127.0.0.1"],
            ["Sec-Fetch-Site: cross-site"],
        ]],
        (post(b"{}", "Content-Encoding: gzip"), 415),
    ],
)  # fmt: skip
async def test_statuses_of_what_is_no_call(http: RawHttpConnection, request_: bytes, status: int) -> None:
    """Each leaves the connection as it was."""
    answer = await http.ask(request_)
    assert answer.status == status
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.body.endswith(b"\n")
    assert (answer.headers.get("allow") == "POST") is (status == 405)
    assert (await http.ask(ADD)).json == THREE


async def test_head_has_no_body(http: RawHttpConnection) -> None:
    http.send(get("/", method="HEAD"), get("/none", method="HEAD"), get("/none"))
    for status in (405, 404):
        answer = await http.answer(to_head=True)
        assert (answer.status, int(answer.headers["content-length"]) > 10) == (status, True)
    assert (await http.answer()).status == 404


async def cancelled() -> Any:
    raise asyncio.CancelledError


def a_teapot() -> Any:
    raise HttpError(problem(418, "a teapot"))


@pytest.mark.parametrize(
    ("page", "status", "body"),
    [
        (lambda: "page", 200, b"page"),
        (lambda: Response(200, b"", headers=[("X", "a\r\nb: c")]), 500, b"Internal error"),
        (cancelled, 500, b"Internal error"),
        (a_teapot, 418, b"a teapot\n"),
    ],
)
async def test_pages(serve: Serve, caplog: pytest.LogCaptureFixture, page: Any, status: int, body: bytes) -> None:
    served = await serve()
    served.server.get("/page", page)
    http = await served.http()
    answer = await http.ask(get("/p%61ge?a=1&b=%20"))
    assert (answer.status, answer.body[: len(body)]) == (status, body)
    http.send(get("/page", method="HEAD"))
    assert (await http.answer(to_head=True)).headers["content-length"] == str(len(answer.body))
    # What is sent with it is not read, but known to be there.
    http.send(get("/page", "Content-Length: 3"), b"abc", ADD)
    assert (await http.answer()).status == status
    assert (await http.answer()).json == THREE
    assert (await http.ask(get("/page", "Content-Length: 3"))).headers["connection"] == "close"
    assert await http.rest() == b""
    caplog.clear()


GOOD, EVIL = "Origin: http://good.example", "Origin: http://evil.example"


@pytest.mark.parametrize(
    ("request_", "status", "is_kept"),
    [
        (post(call("add", 1, 2), GOOD), 200, True),
        (post(call("count", 1), GOOD, NDJSON), 200, True),
        (get("/healthz", GOOD), 200, True),
        (get("/", GOOD, "Access-Control-Request-Method: POST", method="OPTIONS"), 204, True),
        (post(b"x" * 101, GOOD), 413, False),
        (post(b"x" * 50, GOOD)[:-1], 408, False),
        (post(None, GOOD, "Transfer-Encoding: chunked") + b"x\r\n", 400, False),
        (post(call("note", 1), EVIL), 403, True),
        (get("/healthz", EVIL), 403, True),
        (post(b"x" * 101, EVIL), 403, False),
    ],
)
async def test_pages_of_other_sites_may_read_every_answer_or_none(
    serve: Serve, request_: bytes, status: int, is_kept: bool
) -> None:
    served = await serve(http=Http(origins=["http://good.example"]), max_message_size=100, message_timeout=0.05)
    http = await served.http()
    answer = await http.ask(request_)
    assert answer.status == status
    allowed = answer.headers.get("access-control-allow-origin")
    assert allowed == (None if status == 403 else "http://good.example")
    assert not served.server.noted
    if is_kept:
        assert (await http.ask(ADD)).json == THREE
    else:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert await http.rest() == b""


async def test_a_connection_becomes_a_websocket(served: Served, http: RawHttpConnection) -> None:
    """Behind calls, and with frames that came with the request."""
    assert (await http.ask(ADD)).json == THREE
    http.send(get("/", *UPGRADE), frame(PING, b"first"))
    status, headers = await http.head()
    assert (status, headers["sec-websocket-accept"]) == (101, ACCEPTED)
    websocket = RawWebSocket(http.reader, http.writer)
    assert await websocket.pong() == b"first"
    assert await websocket.result("add", 1, 2) == 3
    assert served.server.stats()["connections"] == 1


@pytest.mark.parametrize("accept", [(), (NDJSON,)])
async def test_a_client_that_is_gone_is_worked_for_no_more(
    served: Served, http: RawHttpConnection, accept: tuple[str, ...]
) -> None:
    http.send(post(call("wait", 1), *accept), post(call("note", "never")))
    await until(lambda: served.server.begun)
    await http.close()
    await until(lambda: served.server.ended == [(1, "CancelledError")])
    assert not served.server.noted
    await until(lambda: is_idle(served.server))


async def test_a_server_that_stops_answers_what_runs(served: Served, http: RawHttpConnection) -> None:
    server = served.server
    http.send(post(call("wait", "running")), post(call("note", "never")))
    streaming, idle, partial, late = [await served.http() for _ in range(4)]
    streaming.send(post(call("wait", "streaming"), NDJSON))
    assert (await streaming.head())[0] == 200
    await idle.ask(ADD)
    partial.send(b"POST / HTTP/1.1\r\nHost: ")
    # Python's own client sends the body by itself, behind the head.
    head, end, body = ADD.partition(b"\r\n\r\n")
    late.send(head + end)
    await until(lambda: len(server.begun) == 2)
    await served.has_read_all()
    server.stop()
    answer = await idle.answer()  # to a request that may be on its way
    late.send(body)
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    answer = await partial.answer()
    assert (answer.status, answer.headers["connection"]) == (503, "close")
    assert answer.json["error"]["data"]["executed"] is False
    server.release()
    for connection, result in ((late, 3), (http, "running")):
        answer = await connection.answer()
        assert (answer.json, answer.headers["connection"]) == (reply(1, result), "close")
    assert orjson.loads(await streaming.chunk()) == reply(1, "streaming")
    assert await streaming.chunk() == b""
    for each in (http, streaming, idle, partial, late):
        assert await each.rest() == b""
    assert not server.noted


async def test_too_many_connections_are_told_so(serve: Serve) -> None:
    served = await serve(max_connections=1)
    first, second = await served.http(), await served.http()
    assert (await first.ask(ADD)).json == THREE
    answer = await second.ask(ADD)
    assert (answer.status, answer.headers["connection"]) == (503, "close")
    assert b"1 connections are open" in answer.body
    assert await second.rest() == b""


async def test_an_idle_connection_is_closed_in_time(serve: Serve) -> None:
    served = await serve(idle_timeout=0.5)
    http = await served.http()
    assert (await http.ask(ADD)).json == THREE
    with contextlib.suppress(ConnectionResetError):
        assert await http.rest() == b""
    await until(lambda: served.server.stats()["closed_for_limits"] == 1)
