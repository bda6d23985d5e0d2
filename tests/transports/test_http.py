"""Calls over HTTP by well-behaved clients."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import orjson
import pytest

from rpcstream import AsyncClient, Context, Server
from rpcstream.wire.http_messages import HttpError, Request, Response, problem

from ..internals import connection_table, is_in_call, is_in_page, unread_request_bytes
from ..kit import until
from ..kit.http import Answer, RawHttpConnection, call, chunked, get, post
from .conftest import HttpService, ServeHttp

pytestmark = pytest.mark.usefixtures("nothing_is_logged")

NDJSON, EVENTS = "Accept: application/x-ndjson", "Accept: text/event-stream"


def result(value: Any, call_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "result": value}


# -- calls ------------------------------------------------------------------------------------------------------------


async def test_a_call(raw_http: RawHttpConnection) -> None:
    answer = await raw_http.ask(post(call("add", 1, 2)))
    assert (answer.status, answer.json) == (200, result(3))
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["date"].endswith(" GMT")
    assert "connection" not in answer.headers


async def test_an_error_of_a_call_is_no_error_of_http(raw_http: RawHttpConnection) -> None:
    answer = await raw_http.ask(post(call("none")))
    assert (answer.status, answer.json["error"]["code"]) == (200, -32601)


@pytest.mark.parametrize("body", [b"", b"nonsense", b'{"a":', b"\xff"])
async def test_what_is_no_json_is_an_error_of_the_call(raw_http: RawHttpConnection, body: bytes) -> None:
    answer = await raw_http.ask(post(body))
    assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (200, -32700, None)


async def test_a_batch(raw_http: RawHttpConnection) -> None:
    body = b"[%b,%b,%b]" % (call("add", 1, 2), call("note", 5, id=None), call("echo", "b", id="two"))
    assert (await raw_http.ask(post(body))).json == [result(3), result("b", "two")]


async def test_a_notification_is_answered_with_nothing(service: HttpService, raw_http: RawHttpConnection) -> None:
    for body in (call("note", 5, id=None), b"[" + call("note", 6, id=None) + b"]"):
        answer = await raw_http.ask(post(body))
        assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")
        assert "content-type" not in answer.headers
    assert service.begun == [5, 6]


@pytest.mark.parametrize("in_batch", [False, True])
async def test_a_notification_is_answered_before_it_is_done(
    service: HttpService, raw_http: RawHttpConnection, in_batch: bool
) -> None:
    """And goes on when the connection ends."""
    body = call("hold", "quiet", id=None)
    answer = await raw_http.ask(post(b"[" + body + b"]" if in_batch else body))
    assert (answer.status, answer.body) == (200, b"")
    await raw_http.close()
    await until(lambda: not service.listener.connections and service.begun)
    assert not service.ended
    service.go.set()
    await until(lambda: service.ended == ["quiet"])


async def test_no_more_notifications_go_on_by_themselves_than_calls_may(serve: ServeHttp) -> None:
    service = await serve(max_calls=3)
    raw_http = await service.connect()
    for n in range(3):
        assert (await raw_http.ask(post(call("hold", n, id=None)))).status == 200
    raw_http.send(post(call("hold", 3, id=None)), post(call("add", 1, 2)))
    await until(lambda: len(service.begun) == 4)
    assert is_in_call(service.connections[0])
    service.go.set()
    assert (await raw_http.answer()).body == b""
    assert (await raw_http.answer()).json == result(3)


@pytest.mark.parametrize("accept", [(), (NDJSON,)])
@pytest.mark.parametrize("between", [b"", b" ", b"\n", b"\r\n"])
@pytest.mark.parametrize(
    "second", [call("note", 2, id=2), b"[%b]" % call("note", 2, id=2), call("note", 2, id=None), b"{", b"x"]
)
async def test_a_body_is_one_value_and_else_nothing_in_it_is_carried_out(
    service: Any, raw_http: RawHttpConnection, second: bytes, between: bytes, accept: tuple[str, ...]
) -> None:
    noted = len(service.begun)
    answer = await raw_http.ask(post(call("note", 1) + between + second, *accept))
    assert answer.status == 200
    reply = answer.lines[0] if accept else answer.json
    assert (reply["id"], reply["error"]["code"]) == (None, -32700)
    assert (await raw_http.ask(post(call("note", 3)))).json == result(None)
    assert len(service.begun) == noted + 1


async def test_the_error_of_a_body_that_is_not_json_has_the_id_of_its_request(raw_http: RawHttpConnection) -> None:
    for bad in (b"NaN", b"1e400", rb'"\ud800"'):
        for body in (
            b'{"jsonrpc":"2.0","id":7,"method":"echo","params":[%b]}',
            b'{"method":"echo","params":[%b],"id":7}',
        ):
            answer = (await raw_http.ask(post(body % bad))).json
            assert (answer["id"], answer["error"]["code"]) == (7, -32700)


@pytest.mark.parametrize(
    "kind", ["application/json-rpc", "application/jsonrequest", "Application/JSON ; charset=utf-8", None]
)
async def test_content_types_of_calls(raw_http: RawHttpConnection, kind: str | None) -> None:
    lines = [] if kind is None else [f"Content-Type: {kind}"]
    assert (await raw_http.ask(post(call("add", 1, 2), *lines, json=False))).json == result(3)


@pytest.mark.parametrize("size", [100_000, 3_000_000])
async def test_a_long_message_both_ways(raw_http: RawHttpConnection, size: int) -> None:
    value = "ä" * size
    assert (await raw_http.ask(post(call("echo", value)))).json == result(value)
    array = (await raw_http.ask(post(call("ones", size)))).json["result"]
    assert (array["shape"], len(array["data"])) == ([size], (size + 2) // 3 * 4)


async def test_what_a_handler_sees(raw_http: RawHttpConnection) -> None:
    answer = await raw_http.ask(post(call("headers"), "X-Trace: a", "x-trace:  b ", "Cookie: c=1", "Cookie: d=2"))
    seen = answer.json["result"]
    assert (seen["x-trace"], seen["cookie"], seen["host"]) == ("a, b", "c=1; d=2", "127.0.0.1")


@pytest.mark.parametrize("accept", [None, NDJSON])
async def test_a_caller_by_http_cannot_be_asked(raw_http: RawHttpConnection, accept: str | None) -> None:
    answer = await raw_http.ask(post(call("ask_back"), *[accept] if accept else []))
    (reply,) = answer.lines
    assert "error" in reply
    (reply,) = (
        await raw_http.ask(post(call("total", {"$type": "stream", "id": "s"}), *[accept] if accept else []))
    ).lines
    assert reply["error"]["code"] == -32800


# -- streams ----------------------------------------------------------------------------------------------------------


def stream_of(n: int) -> list[Any]:
    items = [{"jsonrpc": "2.0", "method": "$/item", "params": {"id": 1, "value": i}} for i in range(n)]
    progress = {"jsonrpc": "2.0", "method": "$/progress", "params": {"token": 1, "value": "begun"}}
    return [progress, *items, result(None)]


async def test_without_asking_for_a_stream_only_the_reply_comes(raw_http: RawHttpConnection) -> None:
    for accept in ("*/*", "application/json, text/event-stream", "text/html"):
        answer = await raw_http.ask(post(call("count", 3), f"Accept: {accept}"))
        assert (answer.headers["content-type"], answer.json) == ("application/json", result([0, 1, 2]))
    answer = await raw_http.ask(post(call("count", 3, stream=2)))
    assert answer.json == result([0, 1, 2])


async def test_a_stream_as_lines(raw_http: RawHttpConnection) -> None:
    answer = await raw_http.ask(post(call("count", 50), NDJSON))
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert sorted(map(str, answer.lines)) == sorted(map(str, stream_of(50)))
    assert answer.lines[-1] == result(None)
    assert (await raw_http.ask(post(call("add", 1, 2), NDJSON))).lines == [result(3)]
    assert (await raw_http.ask(post(call("note", 1, id=None), NDJSON))).body == b""


async def test_a_stream_as_events(raw_http: RawHttpConnection) -> None:
    answer = await raw_http.ask(post(call("count", 3), EVENTS))
    assert answer.headers["content-type"] == "text/event-stream"
    *events, end = answer.body.split(b"\n\n")
    assert end == b""
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
    assert sorted(str(orjson.loads(event[6:])) for event in events) == sorted(map(str, stream_of(3)))


async def test_what_is_streamed_comes_at_once(service: HttpService, raw_http: RawHttpConnection) -> None:
    raw_http.send(post(b"[%b,%b]" % (call("hold", 1, id=7), call("count", 2)), NDJSON))
    assert (await raw_http.head())[0] == 200
    await until(lambda: service.begun)
    service.go.set()
    assert orjson.loads(await raw_http.chunk())
    raw_http.send(post(call("add", 1, 2)))


async def test_a_stream_for_http_10_ends_with_the_connection(raw_http: RawHttpConnection) -> None:
    raw_http.send(post(call("count", 3), NDJSON, "Connection: keep-alive", version="1.0"))
    status, headers = await raw_http.head()
    assert (status, headers["connection"]) == (200, "close")
    assert "transfer-encoding" not in headers
    lines = (await raw_http.rest()).splitlines()
    assert sorted(str(orjson.loads(line)) for line in lines) == sorted(map(str, stream_of(3)))


async def test_a_stream_waits_for_its_reader(serve: ServeHttp) -> None:
    service = await serve(write_buffer=20_000)
    raw_http = await service.connect()
    raw_http.send(post(call("endless", 100_000), NDJSON))
    await raw_http.head()
    for _ in range(50):
        await raw_http.chunk()
    # What the buffers of both systems hold is made; then it stands still.
    made = 0
    while made < len(service.begun) < 2000:
        made = len(service.begun)
        for _ in range(300):
            await asyncio.sleep(0)
    assert made == len(service.begun)
    assert service.connections[0].is_full
    await raw_http.close()
    await until(lambda: "endless" in service.ended)


# -- one request after the other --------------------------------------------------------------------------------------


async def test_a_connection_is_kept(service: HttpService, raw_http: RawHttpConnection) -> None:
    for n in range(30):
        assert (await raw_http.ask(post(call("add", n, 10 ** (n % 15))))).json == result(n + 10 ** (n % 15))
    assert service.server.counters.connections_total == 1


async def test_pipelined_requests_are_answered_in_order(service: HttpService, raw_http: RawHttpConnection) -> None:
    raw_http.send(
        post(call("hold", 0, id=0)),
        *[post(call("add", n, 0, id=n)) for n in range(1, 500)],
        get("/none"),
        post(None, "Transfer-Encoding: chunked") + chunked(call("echo", "chunks")),
        post(call("echo", "last")),
    )
    await until(lambda: service.begun)
    service.go.set()
    assert [(await raw_http.answer()).json for _ in range(500)] == [result(n, n) for n in range(500)]
    assert (await raw_http.answer()).status == 404
    assert (await raw_http.answer()).json == result("chunks")
    assert (await raw_http.answer()).json == result("last")


async def test_what_is_pipelined_behind_a_call_waits_unread(service: HttpService, raw_http: RawHttpConnection) -> None:
    raw_http.send(post(call("hold", 0)))
    await until(lambda: service.begun)
    request = post(call("add", 1, 2))
    count = 1_500_000 // len(request)
    raw_http.send(request * count)
    (connection,) = service.connections
    await until(lambda: connection.is_paused)
    assert unread_request_bytes(connection) < 1_000_000
    service.go.set()
    assert (await raw_http.answer()).json == result(0)
    for _ in range(count):
        assert (await raw_http.answer()).json == result(3)


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
@pytest.mark.parametrize("method", ["add", "hold"])
async def test_who_keeps_the_connection(
    service: HttpService, raw_http: RawHttpConnection, version: str, connection: str | None, is_kept: bool, method: str
) -> None:
    service.go.set()
    params = (1, 2) if method == "add" else (3,)
    request = post(call(method, *params), *[f"Connection: {connection}"] if connection else [], version=version)
    answer = await raw_http.ask(request)
    assert answer.json == result(3)
    if not is_kept:
        assert answer.headers["connection"] == "close"
        assert await raw_http.rest() == b""
        return
    assert answer.headers.get("connection") == ("keep-alive" if version == "1.0" else None)
    assert (await raw_http.ask(request)).json == result(3)


async def test_a_request_in_single_bytes(raw_http: RawHttpConnection) -> None:
    for request in (post(call("add", 1, 2)), post(None, "Transfer-Encoding: Chunked") + chunked(call("add", 1, 2))):
        for at in range(len(request)):
            raw_http.send(request[at : at + 1])
            await asyncio.sleep(0)
        assert (await raw_http.answer()).json == result(3)


async def test_chunks_wherever_they_are_cut(raw_http: RawHttpConnection) -> None:
    body = call("echo", "x" * 1000)
    for size in (1, 7, 100, 5000):
        chunks = [body[at : at + size] for at in range(0, len(body), size)]
        assert (await raw_http.ask(post(None, "Transfer-Encoding: chunked") + chunked(*chunks))).json[
            "result"
        ] == "x" * 1000
    trailers = b"5;name=value\r\nhello\r\n0;last\r\nX-Sum: 1\r\nY: 2\r\n\r\n"
    answer = await raw_http.ask(post(None, "Transfer-Encoding: chunked"), trailers, post(call("add", 1, 2)))
    assert answer.json["error"]["code"] == -32700
    assert (await raw_http.answer()).json == result(3)


async def test_an_empty_line_between_requests(raw_http: RawHttpConnection) -> None:
    for _ in range(3):
        assert (await raw_http.ask(post(call("add", 1, 2)), b"\r\n")).json == result(3)


async def test_expect_100_continue(raw_http: RawHttpConnection) -> None:
    request = post(call("add", 1, 2), "Expect: 100-continue")
    head, _, body = request.partition(b"\r\n\r\n")
    assert (await raw_http.ask(head + b"\r\n\r\n")).status == 100
    assert (await raw_http.ask(body)).json == result(3)
    # Who does not wait need not be told.
    assert (await raw_http.ask(request)).json == result(3)
    answer = await raw_http.ask(request.replace(b"100-continue", b"200-ok"))
    assert answer.status == 417


async def test_no_100_continue_for_what_is_refused(serve: ServeHttp) -> None:
    service = await serve(max_message_size=1000)
    raw_http = await service.connect()
    assert (await raw_http.ask(post(None, "Expect: 100-continue", "Content-Length: 1001"))).status == 413
    assert await raw_http.rest() == b""
    raw_http = await service.connect()
    answer = await raw_http.ask(
        post(None, "Expect: 100-continue", "Content-Length: 5", "Content-Type: a/b", json=False)
    )
    assert answer.status == 415
    assert await raw_http.rest() == b""


# -- what is no call --------------------------------------------------------------------------------------------------


async def test_statuses_of_what_is_no_call(raw_http: RawHttpConnection) -> None:
    """Each leaves the connection as it was."""
    for request, status in (
        (get("/none"), 404),
        (post(b"{}", target="/none"), 404),
        (get("/"), 405),
        (get("/", method="PUT"), 405),
        (get("/", method="OPTIONS"), 405),
        (post(None), 411),
        (post(b"{}", "Content-Type: text/plain", json=False), 415),
        (post(b"{}", "Content-Type: application/x-www-form-urlencoded", json=False), 415),
        (post(b"{}", "Content-Type: multipart/form-data; boundary=x", json=False), 415),
        (post(b"{}", "Content-Type: application/json2", json=False), 415),
        (post(b"{}", "Content-Type:", json=False), 415),
        (post(b"{}", "Origin: http://127.0.0.1", json=False), 415),
        (post(b"{}", "Sec-Fetch-Site: cross-site", json=False), 415),
        (post(b"{}", "Content-Encoding: gzip"), 415),
    ):
        answer = await raw_http.ask(request)
        assert answer.status == status, request
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.body.endswith(b"\n")
        assert (answer.headers.get("allow") == "POST") is (status == 405)
    assert (await raw_http.ask(post(call("add", 1, 2)))).json == result(3)


async def test_no_browser_guesses_what_an_error_is(serve: ServeHttp) -> None:
    """Also where the connection ends with it, and beside headers of its own."""
    assert problem(401, "who?", [("A", "b")]).headers == [("X-Content-Type-Options", "nosniff"), ("A", "b")]
    service = await serve(max_message_size=100, message_timeout=0.2)
    for request, status in (
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (post(b"x" * 101), 413),
        (post(b"x" * 50)[:-1], 408),
        (b"<script> / HTTP/1.1\r\n\r\n", 400),
    ):
        answer = await (await service.connect()).ask(b"POST" + request[8:] if request[:1] == b"<" else request)
        assert (answer.status, answer.headers["x-content-type-options"]) == (status, "nosniff")


async def test_head_has_no_body(raw_http: RawHttpConnection) -> None:
    raw_http.send(get("/", method="HEAD"), get("/none", method="HEAD"), get("/none"))
    for status in (405, 404):
        answer = await raw_http.answer(to_head=True)
        assert (answer.status, int(answer.headers["content-length"]) > 10) == (status, True)
    assert (await raw_http.answer()).status == 404


async def test_a_whole_url_as_the_target(raw_http: RawHttpConnection) -> None:
    assert (await raw_http.ask(post(call("add", 1, 2), target="http://127.0.0.1/?a=b"))).json == result(3)
    assert (await raw_http.ask(post(call("headers"), target="http://[::1]:80"))).json["result"]["host"] == "[::1]:80"


class Found:
    """Routes by hand."""

    def __init__(self, respond: Any = None, public: bool = False) -> None:
        self.respond = respond
        self.public = public
        self.seen: list[Request] = []

    def find(self, request: Request) -> Any:
        self.seen.append(request)
        if request.path == "/page":
            return Response(200, b"page", "text/html", [("ETag", '"1"')])
        return self if request.path == "/later" else None

    def is_metrics(self, request: Request) -> bool:
        return False

    def is_public(self, request: Request) -> bool:
        return self.public or request.path == "/page"

    def is_health_check(self, request: Request) -> bool:
        return False


async def test_pages(serve: ServeHttp) -> None:
    routes = Found()
    service = await serve(routes=routes)
    raw_http = await service.connect()
    for _ in range(3):
        answer = await raw_http.ask(get("/p%61ge?a=1&b=%20"))
        assert (answer.status, answer.body, answer.headers["etag"]) == (200, b"page", '"1"')
    assert [(each.path, each.query) for each in routes.seen] == [("/page", "a=1&b=%20")] * 3
    raw_http.send(get("/page", method="HEAD"))
    assert (await raw_http.answer(to_head=True)).headers["content-length"] == "4"
    assert (await raw_http.ask(get("/other"))).status == 404
    assert (await raw_http.ask(get("/"))).status == 405
    # What is sent with it is not read, but known to be there.
    assert (await raw_http.ask(post(b"abc", target="/page"))).body == b"page"
    assert (await raw_http.ask(post(None, "Content-Length: 3", target="/page"))).headers["connection"] == "close"
    assert await raw_http.rest() == b""


async def test_pages_that_take_their_time(serve: ServeHttp) -> None:
    go = asyncio.Event()

    async def respond() -> Response:
        await go.wait()
        return Response(200, b"at last", "text/plain")

    service = await serve(routes=Found(respond))
    raw_http = await service.connect()
    raw_http.send(get("/later"), get("/page"))
    await until(lambda: service.connections and is_in_page(service.connections[0]))
    go.set()
    assert [(await raw_http.answer()).body for _ in range(2)] == [b"at last", b"page"]


async def test_a_page_that_nobody_waits_for_is_cancelled(serve: ServeHttp) -> None:
    ended = []

    async def respond() -> Response:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(True)
        raise AssertionError

    service = await serve(routes=Found(respond))
    raw_http = await service.connect()
    raw_http.send(get("/later"))
    await until(lambda: service.connections and is_in_page(service.connections[0]))
    await asyncio.sleep(0)
    await raw_http.close()
    await until(lambda: ended)


def _fails() -> Any:
    raise ZeroDivisionError


async def _fails_later() -> Any:
    raise ZeroDivisionError


async def _cancels_itself() -> Any:
    raise asyncio.CancelledError


def _no_response() -> Any:
    return 5


def _bad_header() -> Response:
    return Response(200, b"", headers=[("X", "a\r\nb: c")])


@pytest.mark.parametrize("respond", [_fails, _fails_later, _no_response, _bad_header])
async def test_pages_that_fail(serve: ServeHttp, caplog: pytest.LogCaptureFixture, respond: Any) -> None:
    service = await serve(routes=Found(respond))
    raw_http = await service.connect()
    for _ in range(2):
        answer = await raw_http.ask(get("/later"))
        assert (answer.status, answer.body) == (500, b"internal error\n")
    assert "ZeroDivisionError" in caplog.text or "TypeError" in caplog.text or "ValueError" in caplog.text
    caplog.clear()


async def test_a_page_that_is_cancelled_is_answered(serve: ServeHttp) -> None:
    service = await serve(routes=Found(_cancels_itself))
    raw_http = await service.connect()
    assert (await raw_http.ask(get("/later"))).status == 500


@pytest.mark.parametrize("is_async", [False, True])
async def test_pages_say_themselves_what_is_wrong(serve: ServeHttp, is_async: bool) -> None:
    def respond() -> Any:
        raise HttpError(problem(418, "a teapot"))

    async def respond_later() -> Any:
        respond()

    service = await serve(routes=Found(respond_later if is_async else respond))
    raw_http = await service.connect()
    answer = await raw_http.ask(get("/later"))
    assert (answer.status, answer.body) == (418, b"a teapot\n")


# -- who may ask ------------------------------------------------------------------------------------------------------


class Rules:
    """Access by hand."""

    def check(self, request: Request) -> Response | None:
        return problem(403, "not from there") if request.headers.get("origin") == "http://evil" else None

    def preflight(self, request: Request) -> Response | None:
        return Response(204, headers=[("Access-Control-Allow-Methods", "POST"), *self.cors(request)])

    def cors(self, request: Request) -> list[tuple[str, str]]:
        origin = request.headers.get("origin")
        return [("Access-Control-Allow-Origin", origin)] if origin else []


async def test_access(serve: ServeHttp) -> None:
    service = await serve(access=Rules(), routes=Found())
    raw_http = await service.connect()
    for request in (post(call("note", 1), "Origin: http://evil"), get("/page", "Origin: http://evil")):
        answer = await raw_http.ask(request)
        assert (answer.status, answer.body) == (403, b"not from there\n")
        assert "access-control-allow-origin" not in answer.headers
    assert not service.begun
    for request, status in (
        (post(call("add", 1, 2), "Origin: http://good"), 200),
        (post(call("count", 1), "Origin: http://good", NDJSON), 200),
        (post(call("add", 1, 2), "Origin: http://good", "Connection: keep-alive", version="1.0"), 200),
        (get("/page", "Origin: http://good"), 200),
        (get("/none", "Origin: http://good"), 404),
        (post(b"", "Origin: http://good", json=False), 415),
        (get("/", "Origin: http://good", method="OPTIONS"), 204),
    ):
        answer = await raw_http.ask(request)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, "http://good")
    assert (await raw_http.ask(post(call("add", 1, 2)))).json == result(3)


async def test_a_page_of_another_site_may_read_why_the_connection_ends(serve: ServeHttp) -> None:
    service = await serve(access=Rules(), max_message_size=100, message_timeout=0.2)
    good = "Origin: http://good"
    chunked = post(None, good, "Transfer-Encoding: chunked")
    for request, status in (
        (post(b"x" * 101, good), 413),
        (post(b"x" * 50, good)[:-1], 408),
        (chunked + b"70\r\n" + b"x" * 0x70, 413),
        (chunked + b"x\r\n", 400),
    ):
        answer = await (await service.connect()).ask(request)
        assert (answer.status, answer.headers.get("access-control-allow-origin")) == (status, "http://good")
    for origin, status, count in (("http://evil", 403, 0), ("http://good", 204, 1)):
        raw_http = await service.connect()
        raw_http.send(get("/", f"Origin: {origin}", "Content-Length: 101", method="OPTIONS"))
        assert (await raw_http.rest()).lower().count(b"access-control-allow-origin") == count, status
    answer = await (await service.connect()).ask(post(b"x" * 101, "Origin: http://evil"))
    assert (answer.status, answer.body) == (403, b"not from there\n")


class Names:
    """An authenticator by hand: the token is the identity."""

    def __init__(self, is_sync: bool) -> None:
        self.is_sync = is_sync
        self.fails = False

    def identify_now(self, credentials: Any) -> Any:
        from rpcstream.auth.authenticator import NOT_SYNC

        return self._found(credentials) if self.is_sync else NOT_SYNC

    def refused(self, address: str, *, has_shown: bool, requests: int = 1) -> None: ...

    async def identify(self, credentials: Any) -> Any:
        await asyncio.sleep(0)
        if self.fails:
            raise ZeroDivisionError
        return self._found(credentials)

    def _found(self, credentials: Any) -> Any:
        assert credentials.address.startswith("127.0.0.1:")
        return credentials.token if credentials.token != "wrong" else None


@pytest.mark.parametrize("is_sync", [False, True])
async def test_authentication(serve: ServeHttp, is_sync: bool) -> None:
    service = await serve(authenticator=Names(is_sync), routes=Found())
    for lines in ([], ["Authorization: Bearer wrong"], ["Authorization: Basic me"], ["Authorization: Bearer"]):
        answer = await (await service.connect()).ask(post(call("note", 1), *lines))
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert not service.begun
    raw_http = await service.connect()
    raw_http.send(*[post(call("who"), f"Authorization: bearer {name}") for name in ("a", "a", "b")])
    assert [(await raw_http.answer()).json["result"] for _ in range(3)] == ["a", "a", "b"]
    assert [(await raw_http.ask(get(path))).status for path in ("/page", "/later", "/none")] == [200, 401, 401]


@pytest.mark.parametrize("is_sync", [False, True])
async def test_strangers_are_refused_before_their_body(serve: ServeHttp, is_sync: bool) -> None:
    service = await serve(authenticator=Names(is_sync))
    raw_http = await service.connect()
    head, _, body = post(call("who"), "Expect: 100-continue", "Authorization: Bearer me").partition(b"\r\n\r\n")
    assert (await raw_http.ask(head + b"\r\n\r\n")).status == 100
    assert (await raw_http.ask(body)).json["result"] == "me"
    answer = await raw_http.ask(head.replace(b"Bearer me", b"Bearer wrong") + b"\r\n\r\n")
    assert (answer.status, answer.headers["connection"]) == (401, "close")
    assert await raw_http.rest() == b""


async def test_authentication_that_fails(serve: ServeHttp, caplog: pytest.LogCaptureFixture) -> None:
    names = Names(is_sync=False)
    names.fails = True
    service = await serve(authenticator=names)
    raw_http = await service.connect()
    assert (await raw_http.ask(post(call("who"), "Authorization: Bearer me"))).status == 500
    assert "ZeroDivisionError" in caplog.text
    caplog.clear()


# -- WebSockets -------------------------------------------------------------------------------------------------------


class Echo(asyncio.Protocol):
    """Stands for a WebSocket: says what it hears."""

    address = "echo"
    reason: str | None = None
    over_limit = False

    def __init__(self, request: Request, service: Any) -> None:
        self.request = request
        self.service = service
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"echo " + data)

    def connection_lost(self, exc: Exception | None) -> None:
        connection_table(self.service[0].server).closed(self)

    def check(self, now: float) -> str | None:
        return None

    def drain(self) -> None:
        self.transport.close()

    def probe(self) -> None:
        pass

    def abort(self, reason: str) -> None:
        self.transport.abort()


UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


async def with_sockets(serve: ServeHttp, **hooks: Any) -> tuple[HttpService, RawHttpConnection, list[Echo]]:
    service: list[HttpService] = []
    made: list[Echo] = []

    def make(request: Request) -> Any:
        made.append(Echo(request, service))
        return made[-1]

    service.append(await serve(websocket=make, **hooks))
    return service[0], await service[0].connect(), made


@pytest.mark.parametrize("is_sync", [None, False, True])
async def test_a_connection_becomes_a_websocket(serve: ServeHttp, is_sync: bool | None) -> None:
    authenticator = None if is_sync is None else Names(is_sync)
    service, raw_http, made = await with_sockets(serve, authenticator=authenticator)
    assert (await raw_http.ask(post(call("add", 1, 2), "Authorization: Bearer me"))).json == result(3)
    raw_http.send(get("/", *UPGRADE, "Authorization: Bearer me"), b"first")
    status, headers = await raw_http.head()
    assert (status, headers["sec-websocket-accept"]) == (101, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
    assert await raw_http.reader.readexactly(10) == b"echo first"
    raw_http.send(b"GET / HTTP/1.1\r\n\r\n")
    assert await raw_http.reader.readexactly(10) == b"echo GET /"
    assert made[0].request.identity == (None if is_sync is None else "me")
    assert service.listener.connections == {made[0]}
    await raw_http.close()
    await until(lambda: not service.listener.connections)
    assert service.server.counters.connections == 0


async def test_a_websocket_needs_to_know_who_asks(serve: ServeHttp) -> None:
    _, raw_http, made = await with_sockets(serve, authenticator=Names(is_sync=True))
    assert (await raw_http.ask(get("/", *UPGRADE, "Authorization: Bearer wrong"), b"frames")).status == 401
    assert await raw_http.rest() == b""
    assert not made


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [None, NDJSON])
async def test_a_client_that_is_gone_is_worked_for_no_more(
    service: HttpService, raw_http: RawHttpConnection, accept: str | None
) -> None:
    raw_http.send(post(call("hold", 1), *[accept] if accept else []), post(call("note", "never")))
    await until(lambda: service.begun)
    await raw_http.close()
    await until(lambda: service.ended == ["cancelled"])
    assert service.begun == [1]


async def test_a_stream_that_nobody_reads_any_more_is_closed(service: HttpService, raw_http: RawHttpConnection) -> None:
    raw_http.send(post(call("endless", 10), NDJSON))
    await raw_http.head()
    await raw_http.close()
    await until(lambda: "endless" in service.ended)


async def stopped(service: HttpService) -> asyncio.Task[None]:
    return asyncio.create_task(service.listener.stop_accepting())


async def test_a_server_that_stops_answers_what_runs(service: HttpService, raw_http: RawHttpConnection) -> None:
    raw_http.send(post(call("hold", "running")), post(call("note", "never")))
    streaming, idle, partial = await service.connect(), await service.connect(), await service.connect()
    streaming.send(post(call("hold", "streaming"), NDJSON))
    assert (await streaming.head())[0] == 200
    await idle.ask(post(call("add", 1, 2)))
    partial.send(b"POST / HTTP/1.1\r\nHost: ")
    await until(lambda: len(service.begun) == 2 and len(service.connections) == 4)
    await (await stopped(service))
    answer = await idle.answer()  # to a request that may be on its way
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    assert await idle.rest() == b""
    answer = await partial.answer()
    assert (answer.status, answer.headers["connection"]) == (503, "close")
    assert answer.json["error"]["data"]["executed"] is False
    assert await partial.rest() == b""
    service.go.set()
    answer = await raw_http.answer()
    assert (answer.json, answer.headers["connection"]) == (result("running"), "close")
    assert await raw_http.rest() == b""
    assert orjson.loads(await streaming.chunk()) == result("streaming")
    assert await streaming.chunk() == b""
    assert await streaming.rest() == b""
    assert service.begun == ["running", "streaming"]


async def test_a_server_that_stops_takes_the_rest_of_what_came(
    service: HttpService, raw_http: RawHttpConnection
) -> None:
    """Python's own client sends the body by itself, behind the head."""
    head, end, body = post(call("add", 1, 2)).partition(b"\r\n\r\n")
    raw_http.send(head + end)
    await until(lambda: [type(each).__name__ for each in service.connections] == ["HttpConnection"])
    await (await stopped(service))
    raw_http.send(body)
    answer = await raw_http.answer()
    assert (answer.status, answer.json, answer.headers["connection"]) == (200, result(3), "close")
    assert await raw_http.rest() == b""


async def test_too_many_connections_are_told_so(serve: ServeHttp) -> None:
    service = await serve(max_connections=1)
    first, second = await service.connect(), await service.connect()
    assert (await first.ask(post(call("add", 1, 2)))).json == result(3)
    answer: Answer = await second.ask(post(call("add", 1, 2)))
    assert (answer.status, answer.headers["connection"]) == (503, "close")
    assert b"1 connections are open" in answer.body
    assert await second.rest() == b""


async def test_an_idle_connection_is_closed_in_time(serve: ServeHttp) -> None:
    service = await serve(idle_timeout=0.2)
    raw_http = await service.connect()
    assert (await raw_http.ask(post(call("add", 1, 2)))).json == result(3)
    try:
        assert await raw_http.rest() == b""
    except ConnectionResetError:
        pass
    await until(lambda: not service.listener.connections)
    assert service.server.counters.closed_for_limits == 1


async def test_an_error_inside_is_answered_and_ends_the_connection(
    service: HttpService, raw_http: RawHttpConnection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from rpcstream.methods.dispatch import Dispatcher

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(Dispatcher, "answer", broken)
    assert (await raw_http.ask(post(call("add", 1, 2)))).status == 500
    assert await raw_http.rest() == b""
    assert "ZeroDivisionError" in caplog.text
    caplog.clear()


# -- one session for several calls ------------------------------------------------------------------------------------


async def test_calls_that_leave_nothing_behind_share_a_session(
    service: HttpService, raw_http: RawHttpConnection
) -> None:
    """It is of no use to anybody once the connection is gone."""
    await raw_http.ask(post(call("add", 1, 2)))
    (session,) = service.listener.sessions
    for request in (
        post(call("echo", "a"), NDJSON),
        post(call("none")),
        post(b"nonsense"),
        post(call("note", 1, id=None)),
        post(b"[" + call("add", 1, 2) + b"]"),
        get("/none"),
    ):
        await raw_http.ask(request)
        assert service.listener.sessions == {session}
    assert (await raw_http.ask(post(call("add", 1, 2)))).json == result(3)
    await raw_http.close()
    await until(lambda: not service.listener.sessions)


async def test_what_a_handler_has_seen_of_a_session_is_its_own(
    service: HttpService, raw_http: RawHttpConnection
) -> None:
    seen: list[Any] = []

    def keep_context(ctx: Context) -> None:
        seen.append(ctx)

    service.server.add(keep_context, name="keep_it")
    await raw_http.ask(post(call("add", 1, 2)))
    for _ in range(2):
        assert (await raw_http.ask(post(call("keep_it"), NDJSON))).lines == [result(None)]
    assert seen[0].session is not seen[1].session
    for context in seen:
        assert context.session.channel is None
        context.progress("too late")
    assert not service.listener.sessions
    # What belonged to the one call is not seen by the next.
    assert (await raw_http.ask(post(call("headers"), "X: a"))).json["result"]["x"] == "a"
    assert "x" not in (await raw_http.ask(post(call("headers")))).json["result"]
    assert (await raw_http.ask(post(call("count", 1)))).json == result([0])


@pytest.mark.parametrize("status", [200, 204])
async def test_the_status_of_the_response_to_notifications(status: Literal[200, 204]) -> None:
    server = Server(notification_status=status)

    @server
    def note(value: Any) -> None:
        pass

    note_it = b'{"jsonrpc": "2.0", "method": "note", "params": [1]}'
    async with server.listening(port=0) as address:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for body in (note_it, b"[%b,%b]" % (note_it, note_it)):
            head = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
            writer.write(f"{head}{len(body)}\r\n\r\n".encode() + body)
            answer = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)).lower()
            assert answer.startswith(b"http/1.1 %d " % status)
            assert (b"content-length: 0" in answer) == (status == 200)
        async with AsyncClient(f"http://{address}") as client:
            await client.notify.note(1)
            assert await client.note(1) is None
        writer.close()
        await writer.wait_closed()


def test_no_other_status_of_notifications() -> None:
    with pytest.raises(ValueError, match="200 or 204"):
        Server(notification_status=202)  # type: ignore[typeddict-item]
