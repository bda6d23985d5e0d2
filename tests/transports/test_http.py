"""Calls by HTTP, and what else a well-meaning client does."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from rpcstream import Context
from rpcstream.wire.http_messages import HttpError, Request, Response, problem

from .asking import Answer, Asker, call, chunked, get, post, until
from .conftest import Place, Serve

pytestmark = pytest.mark.usefixtures("nothing_is_logged")

NDJSON, EVENTS = "Accept: application/x-ndjson", "Accept: text/event-stream"


def result(value: Any, call_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "result": value}


# -- calls ------------------------------------------------------------------------------------------------------------


async def test_a_call(asker: Asker) -> None:
    answer = await asker.ask(post(call("add", 1, 2)))
    assert (answer.status, answer.json) == (200, result(3))
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["date"].endswith(" GMT")
    assert "connection" not in answer.headers


async def test_an_error_of_a_call_is_no_error_of_http(asker: Asker) -> None:
    answer = await asker.ask(post(call("none")))
    assert (answer.status, answer.json["error"]["code"]) == (200, -32601)


@pytest.mark.parametrize("body", [b"", b"nonsense", b'{"a":', b"\xff"])
async def test_what_is_no_json_is_an_error_of_the_call(asker: Asker, body: bytes) -> None:
    answer = await asker.ask(post(body))
    assert (answer.status, answer.json["error"]["code"], answer.json["id"]) == (200, -32700, None)


async def test_a_batch(asker: Asker) -> None:
    body = b"[%b,%b,%b]" % (call("add", 1, 2), call("note", 5, id=None), call("echo", "b", id="two"))
    assert (await asker.ask(post(body))).json == [result(3), result("b", "two")]


async def test_a_notification_is_answered_with_nothing(place: Place, asker: Asker) -> None:
    for body in (call("note", 5, id=None), b"[" + call("note", 6, id=None) + b"]"):
        answer = await asker.ask(post(body))
        assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")
        assert "content-type" not in answer.headers
    assert place.begun == [5, 6]


@pytest.mark.parametrize("in_batch", [False, True])
async def test_a_notification_is_answered_before_it_is_done(place: Place, asker: Asker, in_batch: bool) -> None:
    """And goes on when the connection ends."""
    body = call("hold", "quiet", id=None)
    answer = await asker.ask(post(b"[" + body + b"]" if in_batch else body))
    assert (answer.status, answer.body) == (200, b"")
    await asker.close()
    await until(lambda: not place.listener._streams and place.begun)
    assert not place.ended
    place.go.set()
    await until(lambda: place.ended == ["quiet"])


async def test_no_more_notifications_go_on_by_themselves_than_calls_may(serve: Serve) -> None:
    place = await serve(max_calls=3)
    asker = await place.connect()
    for n in range(3):
        assert (await asker.ask(post(call("hold", n, id=None)))).status == 200
    asker.send(post(call("hold", 3, id=None)), post(call("add", 1, 2)))
    await until(lambda: len(place.begun) == 4)
    assert place.connections[0]._exchange is not None
    place.go.set()
    assert (await asker.answer()).body == b""
    assert (await asker.answer()).json == result(3)


@pytest.mark.parametrize("accept", [(), (NDJSON,)])
@pytest.mark.parametrize("between", [b"", b" ", b"\n", b"\r\n"])
@pytest.mark.parametrize(
    "second", [call("note", 2, id=2), b"[%b]" % call("note", 2, id=2), call("note", 2, id=None), b"{", b"x"]
)
async def test_a_body_is_one_value_and_else_nothing_in_it_is_carried_out(
    place: Any, asker: Asker, second: bytes, between: bytes, accept: tuple[str, ...]
) -> None:
    noted = len(place.begun)
    answer = await asker.ask(post(call("note", 1) + between + second, *accept))
    assert answer.status == 200
    reply = answer.lines[0] if accept else answer.json
    assert (reply["id"], reply["error"]["code"]) == (None, -32700)
    assert (await asker.ask(post(call("note", 3)))).json == result(None)
    assert len(place.begun) == noted + 1


async def test_the_error_of_a_body_that_is_not_json_has_the_id_of_its_request(asker: Asker) -> None:
    for bad in (b"NaN", b"1e400", rb'"\ud800"'):
        for body in (
            b'{"jsonrpc":"2.0","id":7,"method":"echo","params":[%b]}',
            b'{"method":"echo","params":[%b],"id":7}',
        ):
            answer = (await asker.ask(post(body % bad))).json
            assert (answer["id"], answer["error"]["code"]) == (7, -32700)


@pytest.mark.parametrize(
    "kind", ["application/json-rpc", "application/jsonrequest", "Application/JSON ; charset=utf-8", None]
)
async def test_content_types_of_calls(asker: Asker, kind: str | None) -> None:
    lines = [] if kind is None else [f"Content-Type: {kind}"]
    assert (await asker.ask(post(call("add", 1, 2), *lines, json=False))).json == result(3)


@pytest.mark.parametrize("size", [100_000, 3_000_000])
async def test_a_long_message_both_ways(asker: Asker, size: int) -> None:
    value = "ä" * size
    assert (await asker.ask(post(call("echo", value)))).json == result(value)
    array = (await asker.ask(post(call("ones", size)))).json["result"]
    assert (array["shape"], len(array["data"])) == ([size], (size + 2) // 3 * 4)


async def test_what_a_handler_sees(asker: Asker) -> None:
    answer = await asker.ask(post(call("headers"), "X-Trace: a", "x-trace:  b ", "Cookie: c=1", "Cookie: d=2"))
    seen = answer.json["result"]
    assert (seen["x-trace"], seen["cookie"], seen["host"]) == ("a, b", "c=1; d=2", "127.0.0.1")


@pytest.mark.parametrize("accept", [None, NDJSON])
async def test_a_caller_by_http_cannot_be_asked(asker: Asker, accept: str | None) -> None:
    answer = await asker.ask(post(call("ask_back"), *[accept] if accept else []))
    (reply,) = answer.lines
    assert "error" in reply
    (reply,) = (await asker.ask(post(call("total", {"$type": "stream", "id": "s"}), *[accept] if accept else []))).lines
    assert reply["error"]["code"] == -32800


# -- streams ----------------------------------------------------------------------------------------------------------


def stream_of(n: int) -> list[Any]:
    items = [{"jsonrpc": "2.0", "method": "$/item", "params": {"id": 1, "value": i}} for i in range(n)]
    progress = {"jsonrpc": "2.0", "method": "$/progress", "params": {"token": 1, "value": "begun"}}
    return [progress, *items, result(None)]


async def test_without_asking_for_a_stream_only_the_reply_comes(asker: Asker) -> None:
    for accept in ("*/*", "application/json, text/event-stream", "text/html"):
        answer = await asker.ask(post(call("count", 3), f"Accept: {accept}"))
        assert (answer.headers["content-type"], answer.json) == ("application/json", result([0, 1, 2]))
    answer = await asker.ask(post(call("count", 3, stream=2)))
    assert answer.json == result([0, 1, 2])


async def test_a_stream_as_lines(asker: Asker) -> None:
    answer = await asker.ask(post(call("count", 50), NDJSON))
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert sorted(map(str, answer.lines)) == sorted(map(str, stream_of(50)))
    assert answer.lines[-1] == result(None)
    assert (await asker.ask(post(call("add", 1, 2), NDJSON))).lines == [result(3)]
    assert (await asker.ask(post(call("note", 1, id=None), NDJSON))).body == b""


async def test_a_stream_as_events(asker: Asker) -> None:
    answer = await asker.ask(post(call("count", 3), EVENTS))
    assert answer.headers["content-type"] == "text/event-stream"
    *events, end = answer.body.split(b"\n\n")
    assert end == b""
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
    assert sorted(str(orjson.loads(event[6:])) for event in events) == sorted(map(str, stream_of(3)))


async def test_what_is_streamed_comes_at_once(place: Place, asker: Asker) -> None:
    asker.send(post(b"[%b,%b]" % (call("hold", 1, id=7), call("count", 2)), NDJSON))
    assert (await asker.head())[0] == 200
    await until(lambda: place.begun)
    place.go.set()
    assert orjson.loads(await asker.chunk())
    asker.send(post(call("add", 1, 2)))


async def test_a_stream_for_http_10_ends_with_the_connection(asker: Asker) -> None:
    asker.send(post(call("count", 3), NDJSON, "Connection: keep-alive", version="1.0"))
    status, headers = await asker.head()
    assert (status, headers["connection"]) == (200, "close")
    assert "transfer-encoding" not in headers
    lines = (await asker.rest()).splitlines()
    assert sorted(str(orjson.loads(line)) for line in lines) == sorted(map(str, stream_of(3)))


async def test_a_stream_waits_for_its_reader(serve: Serve) -> None:
    place = await serve(write_buffer=20_000)
    asker = await place.connect()
    asker.send(post(call("endless", 100_000), NDJSON))
    await asker.head()
    for _ in range(50):
        await asker.chunk()
    # What the buffers of both systems hold is made; then it stands still.
    await until(lambda: place.connections[0]._is_full)
    made = len(place.begun)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(place.begun) == made
    await asker.close()
    await until(lambda: "endless" in place.ended)


# -- one request after the other --------------------------------------------------------------------------------------


async def test_a_connection_is_kept(place: Place, asker: Asker) -> None:
    for n in range(30):
        assert (await asker.ask(post(call("add", n, 10 ** (n % 15))))).json == result(n + 10 ** (n % 15))
    assert place.server.counters.connections_total == 1


async def test_pipelined_requests_are_answered_in_order(place: Place, asker: Asker) -> None:
    asker.send(
        post(call("hold", 0, id=0)),
        *[post(call("add", n, 0, id=n)) for n in range(1, 500)],
        get("/none"),
        post(None, "Transfer-Encoding: chunked") + chunked(call("echo", "chunks")),
        post(call("echo", "last")),
    )
    await until(lambda: place.begun)
    place.go.set()
    assert [(await asker.answer()).json for _ in range(500)] == [result(n, n) for n in range(500)]
    assert (await asker.answer()).status == 404
    assert (await asker.answer()).json == result("chunks")
    assert (await asker.answer()).json == result("last")


async def test_what_is_pipelined_behind_a_call_waits_unread(place: Place, asker: Asker) -> None:
    asker.send(post(call("hold", 0)))
    await until(lambda: place.begun)
    request = post(call("add", 1, 2))
    count = 1_500_000 // len(request)
    asker.send(request * count)
    (connection,) = place.connections
    await until(lambda: connection._paused)
    assert len(connection._reader) < 1_000_000
    place.go.set()
    assert (await asker.answer()).json == result(0)
    for _ in range(count):
        assert (await asker.answer()).json == result(3)


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
    place: Place, asker: Asker, version: str, connection: str | None, is_kept: bool, method: str
) -> None:
    place.go.set()
    params = (1, 2) if method == "add" else (3,)
    request = post(call(method, *params), *[f"Connection: {connection}"] if connection else [], version=version)
    answer = await asker.ask(request)
    assert answer.json == result(3)
    if not is_kept:
        assert answer.headers["connection"] == "close"
        assert await asker.rest() == b""
        return
    assert answer.headers.get("connection") == ("keep-alive" if version == "1.0" else None)
    assert (await asker.ask(request)).json == result(3)


async def test_a_request_in_single_bytes(asker: Asker) -> None:
    for request in (post(call("add", 1, 2)), post(None, "Transfer-Encoding: Chunked") + chunked(call("add", 1, 2))):
        for place in range(len(request)):
            asker.send(request[place : place + 1])
            await asyncio.sleep(0)
        assert (await asker.answer()).json == result(3)


async def test_chunks_wherever_they_are_cut(asker: Asker) -> None:
    body = call("echo", "x" * 1000)
    for size in (1, 7, 100, 5000):
        chunks = [body[place : place + size] for place in range(0, len(body), size)]
        assert (await asker.ask(post(None, "Transfer-Encoding: chunked") + chunked(*chunks))).json[
            "result"
        ] == "x" * 1000
    trailers = b"5;name=value\r\nhello\r\n0;last\r\nX-Sum: 1\r\nY: 2\r\n\r\n"
    answer = await asker.ask(post(None, "Transfer-Encoding: chunked"), trailers, post(call("add", 1, 2)))
    assert answer.json["error"]["code"] == -32700
    assert (await asker.answer()).json == result(3)


async def test_an_empty_line_between_requests(asker: Asker) -> None:
    for _ in range(3):
        assert (await asker.ask(post(call("add", 1, 2)), b"\r\n")).json == result(3)


async def test_expect_100_continue(asker: Asker) -> None:
    request = post(call("add", 1, 2), "Expect: 100-continue")
    head, _, body = request.partition(b"\r\n\r\n")
    assert (await asker.ask(head + b"\r\n\r\n")).status == 100
    assert (await asker.ask(body)).json == result(3)
    # Who does not wait need not be told.
    assert (await asker.ask(request)).json == result(3)
    answer = await asker.ask(request.replace(b"100-continue", b"200-ok"))
    assert answer.status == 417


async def test_no_100_continue_for_what_is_refused(serve: Serve) -> None:
    place = await serve(max_message_size=1000)
    asker = await place.connect()
    assert (await asker.ask(post(None, "Expect: 100-continue", "Content-Length: 1001"))).status == 413
    assert await asker.rest() == b""
    asker = await place.connect()
    answer = await asker.ask(post(None, "Expect: 100-continue", "Content-Length: 5", "Content-Type: a/b", json=False))
    assert answer.status == 415
    assert await asker.rest() == b""


# -- what is no call --------------------------------------------------------------------------------------------------


async def test_statuses_of_what_is_no_call(asker: Asker) -> None:
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
        answer = await asker.ask(request)
        assert answer.status == status, request
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.body.endswith(b"\n")
        assert (answer.headers.get("allow") == "POST") is (status == 405)
    assert (await asker.ask(post(call("add", 1, 2)))).json == result(3)


async def test_no_browser_guesses_what_an_error_is(serve: Serve) -> None:
    """Also where the connection ends with it, and beside headers of its own."""
    assert problem(401, "who?", [("A", "b")]).headers == [("X-Content-Type-Options", "nosniff"), ("A", "b")]
    place = await serve(max_message_size=100, message_timeout=0.2)
    for request, status in (
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (post(b"x" * 101), 413),
        (post(b"x" * 50)[:-1], 408),
        (b"<script> / HTTP/1.1\r\n\r\n", 400),
    ):
        answer = await (await place.connect()).ask(b"POST" + request[8:] if request[:1] == b"<" else request)
        assert (answer.status, answer.headers["x-content-type-options"]) == (status, "nosniff")


async def test_head_has_no_body(asker: Asker) -> None:
    asker.send(get("/", method="HEAD"), get("/none", method="HEAD"), get("/none"))
    for status in (405, 404):
        answer = await asker.answer(to_head=True)
        assert (answer.status, int(answer.headers["content-length"]) > 10) == (status, True)
    assert (await asker.answer()).status == 404


async def test_a_whole_url_as_the_target(asker: Asker) -> None:
    assert (await asker.ask(post(call("add", 1, 2), target="http://127.0.0.1/?a=b"))).json == result(3)
    assert (await asker.ask(post(call("headers"), target="http://[::1]:80"))).json["result"]["host"] == "[::1]:80"


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

    def is_public(self, request: Request) -> bool:
        return self.public or request.path == "/page"


async def test_pages(serve: Serve) -> None:
    routes = Found()
    place = await serve(routes=routes)
    asker = await place.connect()
    for _ in range(3):
        answer = await asker.ask(get("/p%61ge?a=1&b=%20"))
        assert (answer.status, answer.body, answer.headers["etag"]) == (200, b"page", '"1"')
    assert [(each.path, each.query) for each in routes.seen] == [("/page", "a=1&b=%20")] * 3
    asker.send(get("/page", method="HEAD"))
    assert (await asker.answer(to_head=True)).headers["content-length"] == "4"
    assert (await asker.ask(get("/other"))).status == 404
    assert (await asker.ask(get("/"))).status == 405
    # What is sent with it is not read, but known to be there.
    assert (await asker.ask(post(b"abc", target="/page"))).body == b"page"
    assert (await asker.ask(post(None, "Content-Length: 3", target="/page"))).headers["connection"] == "close"
    assert await asker.rest() == b""


async def test_pages_that_take_their_time(serve: Serve) -> None:
    go = asyncio.Event()

    async def respond() -> Response:
        await go.wait()
        return Response(200, b"at last", "text/plain")

    place = await serve(routes=Found(respond))
    asker = await place.connect()
    asker.send(get("/later"), get("/page"))
    await until(lambda: place.connections and place.connections[0]._task is not None)
    go.set()
    assert [(await asker.answer()).body for _ in range(2)] == [b"at last", b"page"]


async def test_a_page_that_nobody_waits_for_is_cancelled(serve: Serve) -> None:
    ended = []

    async def respond() -> Response:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(True)
        raise AssertionError

    place = await serve(routes=Found(respond))
    asker = await place.connect()
    asker.send(get("/later"))
    await until(lambda: place.connections and place.connections[0]._task is not None)
    await asyncio.sleep(0)
    await asker.close()
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
async def test_pages_that_fail(serve: Serve, caplog: pytest.LogCaptureFixture, respond: Any) -> None:
    place = await serve(routes=Found(respond))
    asker = await place.connect()
    for _ in range(2):
        answer = await asker.ask(get("/later"))
        assert (answer.status, answer.body) == (500, b"internal error\n")
    assert "ZeroDivisionError" in caplog.text or "TypeError" in caplog.text or "ValueError" in caplog.text
    caplog.clear()


async def test_a_page_that_is_cancelled_is_answered(serve: Serve) -> None:
    place = await serve(routes=Found(_cancels_itself))
    asker = await place.connect()
    assert (await asker.ask(get("/later"))).status == 500


@pytest.mark.parametrize("is_async", [False, True])
async def test_pages_say_themselves_what_is_wrong(serve: Serve, is_async: bool) -> None:
    def respond() -> Any:
        raise HttpError(problem(418, "a teapot"))

    async def respond_later() -> Any:
        respond()

    place = await serve(routes=Found(respond_later if is_async else respond))
    asker = await place.connect()
    answer = await asker.ask(get("/later"))
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


async def test_access(serve: Serve) -> None:
    place = await serve(access=Rules(), routes=Found())
    asker = await place.connect()
    for request in (post(call("note", 1), "Origin: http://evil"), get("/page", "Origin: http://evil")):
        answer = await asker.ask(request)
        assert (answer.status, answer.body) == (403, b"not from there\n")
        assert "access-control-allow-origin" not in answer.headers
    assert not place.begun
    for request, status in (
        (post(call("add", 1, 2), "Origin: http://good"), 200),
        (post(call("count", 1), "Origin: http://good", NDJSON), 200),
        (post(call("add", 1, 2), "Origin: http://good", "Connection: keep-alive", version="1.0"), 200),
        (get("/page", "Origin: http://good"), 200),
        (get("/none", "Origin: http://good"), 404),
        (post(b"", "Origin: http://good", json=False), 415),
        (get("/", "Origin: http://good", method="OPTIONS"), 204),
    ):
        answer = await asker.ask(request)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, "http://good")
    assert (await asker.ask(post(call("add", 1, 2)))).json == result(3)


async def test_a_page_of_another_site_may_read_why_the_connection_ends(serve: Serve) -> None:
    place = await serve(access=Rules(), max_message_size=100, message_timeout=0.2)
    good = "Origin: http://good"
    chunked = post(None, good, "Transfer-Encoding: chunked")
    for request, status in (
        (post(b"x" * 101, good), 413),
        (post(b"x" * 50, good)[:-1], 408),
        (chunked + b"70\r\n" + b"x" * 0x70, 413),
        (chunked + b"x\r\n", 400),
    ):
        answer = await (await place.connect()).ask(request)
        assert (answer.status, answer.headers.get("access-control-allow-origin")) == (status, "http://good")
    for origin, status, count in (("http://evil", 403, 0), ("http://good", 204, 1)):
        asker = await place.connect()
        asker.send(get("/", f"Origin: {origin}", "Content-Length: 101", method="OPTIONS"))
        assert (await asker.rest()).lower().count(b"access-control-allow-origin") == count, status
    answer = await (await place.connect()).ask(post(b"x" * 101, "Origin: http://evil"))
    assert (answer.status, answer.body) == (403, b"not from there\n")


class Names:
    """An authenticator by hand: the token is the identity."""

    def __init__(self, is_sync: bool) -> None:
        self.is_sync = is_sync
        self.fails = False

    def identify_now(self, credentials: Any) -> Any:
        from rpcstream.auth.authenticator import NOT_SYNC

        return self._found(credentials) if self.is_sync else NOT_SYNC

    async def identify(self, credentials: Any) -> Any:
        await asyncio.sleep(0)
        if self.fails:
            raise ZeroDivisionError
        return self._found(credentials)

    def _found(self, credentials: Any) -> Any:
        assert credentials.address.startswith("127.0.0.1:")
        return credentials.token if credentials.token != "wrong" else None


@pytest.mark.parametrize("is_sync", [False, True])
async def test_authentication(serve: Serve, is_sync: bool) -> None:
    place = await serve(authenticator=Names(is_sync), routes=Found())
    for lines in ([], ["Authorization: Bearer wrong"], ["Authorization: Basic me"], ["Authorization: Bearer"]):
        answer = await (await place.connect()).ask(post(call("note", 1), *lines))
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert not place.begun
    asker = await place.connect()
    asker.send(*[post(call("who"), f"Authorization: bearer {name}") for name in ("a", "a", "b")])
    assert [(await asker.answer()).json["result"] for _ in range(3)] == ["a", "a", "b"]
    assert [(await asker.ask(get(path))).status for path in ("/page", "/later", "/none")] == [200, 401, 401]


@pytest.mark.parametrize("is_sync", [False, True])
async def test_strangers_are_refused_before_their_body(serve: Serve, is_sync: bool) -> None:
    place = await serve(authenticator=Names(is_sync))
    asker = await place.connect()
    head, _, body = post(call("who"), "Expect: 100-continue", "Authorization: Bearer me").partition(b"\r\n\r\n")
    assert (await asker.ask(head + b"\r\n\r\n")).status == 100
    assert (await asker.ask(body)).json["result"] == "me"
    answer = await asker.ask(head.replace(b"Bearer me", b"Bearer wrong") + b"\r\n\r\n")
    assert (answer.status, answer.headers["connection"]) == (401, "close")
    assert await asker.rest() == b""


async def test_authentication_that_fails(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    names = Names(is_sync=False)
    names.fails = True
    place = await serve(authenticator=names)
    asker = await place.connect()
    assert (await asker.ask(post(call("who"), "Authorization: Bearer me"))).status == 500
    assert "ZeroDivisionError" in caplog.text
    caplog.clear()


# -- WebSockets -------------------------------------------------------------------------------------------------------


class Echo(asyncio.Protocol):
    """Stands for a WebSocket: says what it hears."""

    address = "echo"
    reason: str | None = None
    over_limit = False

    def __init__(self, request: Request, place: Any) -> None:
        self.request = request
        self.place = place
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"echo " + data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.place[0].listener._closed(self)

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


async def with_sockets(serve: Serve, **hooks: Any) -> tuple[Place, Asker, list[Echo]]:
    place: list[Place] = []
    made: list[Echo] = []

    def make(request: Request) -> Any:
        made.append(Echo(request, place))
        return made[-1]

    place.append(await serve(websocket=make, **hooks))
    return place[0], await place[0].connect(), made


@pytest.mark.parametrize("is_sync", [None, False, True])
async def test_a_connection_becomes_a_websocket(serve: Serve, is_sync: bool | None) -> None:
    authenticator = None if is_sync is None else Names(is_sync)
    place, asker, made = await with_sockets(serve, authenticator=authenticator)
    assert (await asker.ask(post(call("add", 1, 2), "Authorization: Bearer me"))).json == result(3)
    asker.send(get("/", *UPGRADE, "Authorization: Bearer me"), b"first")
    status, headers = await asker.head()
    assert (status, headers["sec-websocket-accept"]) == (101, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
    assert await asker.reader.readexactly(10) == b"echo first"
    asker.send(b"GET / HTTP/1.1\r\n\r\n")
    assert await asker.reader.readexactly(10) == b"echo GET /"
    assert made[0].request.identity == (None if is_sync is None else "me")
    assert place.listener._streams == {made[0]}
    await asker.close()
    await until(lambda: not place.listener._streams)
    assert place.server.counters.connections == 0


async def test_a_websocket_needs_to_know_who_asks(serve: Serve) -> None:
    _, asker, made = await with_sockets(serve, authenticator=Names(is_sync=True))
    assert (await asker.ask(get("/", *UPGRADE, "Authorization: Bearer wrong"), b"frames")).status == 401
    assert await asker.rest() == b""
    assert not made


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [None, NDJSON])
async def test_a_client_that_is_gone_is_worked_for_no_more(place: Place, asker: Asker, accept: str | None) -> None:
    asker.send(post(call("hold", 1), *[accept] if accept else []), post(call("note", "never")))
    await until(lambda: place.begun)
    await asker.close()
    await until(lambda: place.ended == ["cancelled"])
    assert place.begun == [1]


async def test_a_stream_that_nobody_reads_any_more_is_closed(place: Place, asker: Asker) -> None:
    asker.send(post(call("endless", 10), NDJSON))
    await asker.head()
    await asker.close()
    await until(lambda: "endless" in place.ended)


async def stopped(place: Place) -> asyncio.Task[None]:
    return asyncio.create_task(place.listener.stop_accepting())


async def test_a_server_that_stops_answers_what_runs(place: Place, asker: Asker) -> None:
    asker.send(post(call("hold", "running")), post(call("note", "never")))
    streaming, idle, partial = await place.connect(), await place.connect(), await place.connect()
    streaming.send(post(call("hold", "streaming"), NDJSON))
    assert (await streaming.head())[0] == 200
    await idle.ask(post(call("add", 1, 2)))
    partial.send(b"POST / HTTP/1.1\r\nHost: ")
    await until(lambda: len(place.begun) == 2 and len(place.connections) == 4)
    await (await stopped(place))
    assert await idle.rest() == b""
    answer = await partial.answer()
    assert (answer.status, answer.headers["connection"]) == (503, "close")
    assert await partial.rest() == b""
    place.go.set()
    answer = await asker.answer()
    assert (answer.json, answer.headers["connection"]) == (result("running"), "close")
    assert await asker.rest() == b""
    assert orjson.loads(await streaming.chunk()) == result("streaming")
    assert await streaming.chunk() == b""
    assert await streaming.rest() == b""
    assert place.begun == ["running", "streaming"]


async def test_too_many_connections_are_told_so(serve: Serve) -> None:
    place = await serve(max_connections=1)
    first, second = await place.connect(), await place.connect()
    assert (await first.ask(post(call("add", 1, 2)))).json == result(3)
    answer: Answer = await second.ask(post(call("add", 1, 2)))
    assert (answer.status, answer.headers["connection"]) == (503, "close")
    assert b"1 connections are open" in answer.body
    assert await second.rest() == b""


async def test_an_idle_connection_is_closed_in_time(serve: Serve) -> None:
    place = await serve(idle_timeout=0.2)
    asker = await place.connect()
    assert (await asker.ask(post(call("add", 1, 2)))).json == result(3)
    try:
        assert await asker.rest() == b""
    except ConnectionResetError:
        pass
    await until(lambda: not place.listener._streams)
    assert place.server.counters.closed_for_limits == 1


async def test_an_error_inside_is_answered_and_ends_the_connection(
    place: Place, asker: Asker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from rpcstream.methods.dispatch import Dispatcher

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(Dispatcher, "answer", broken)
    assert (await asker.ask(post(call("add", 1, 2)))).status == 500
    assert await asker.rest() == b""
    assert "ZeroDivisionError" in caplog.text
    caplog.clear()


# -- one session for several calls ------------------------------------------------------------------------------------


async def test_calls_that_leave_nothing_behind_share_a_session(place: Place, asker: Asker) -> None:
    """It is of no use to anybody once the connection is gone."""
    await asker.ask(post(call("add", 1, 2)))
    (session,) = place.listener._sessions
    for request in (
        post(call("echo", "a"), NDJSON),
        post(call("none")),
        post(b"nonsense"),
        post(call("note", 1, id=None)),
        post(b"[" + call("add", 1, 2) + b"]"),
        get("/none"),
    ):
        await asker.ask(request)
        assert place.listener._sessions == {session}
    assert (await asker.ask(post(call("add", 1, 2)))).json == result(3)
    await asker.close()
    await until(lambda: not place.listener._sessions)


async def test_what_a_handler_has_seen_of_a_session_is_its_own(place: Place, asker: Asker) -> None:
    seen: list[Any] = []

    def keep_context(ctx: Context) -> None:
        seen.append(ctx)

    place.server.add(keep_context, name="keep_it")
    await asker.ask(post(call("add", 1, 2)))
    for _ in range(2):
        assert (await asker.ask(post(call("keep_it"), NDJSON))).lines == [result(None)]
    assert seen[0].session is not seen[1].session
    for context in seen:
        assert context.session.channel is None
        context.progress("too late")
    assert not place.listener._sessions
    # What belonged to the one call is not seen by the next.
    assert (await asker.ask(post(call("headers"), "X: a"))).json["result"]["x"] == "a"
    assert "x" not in (await asker.ask(post(call("headers")))).json["result"]
    assert (await asker.ask(post(call("count", 1)))).json == result([0])
