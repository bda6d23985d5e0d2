"""Hostile HTTP requests: refused in time, no smuggled request is carried out, and others are served."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from ..internals import unread_request_bytes
from ..kit import until
from ..kit.http import RawHttpConnection, call, chunked, get, post
from .conftest import HttpService, ServeHttp

pytestmark = pytest.mark.usefixtures("nothing_is_logged")

#: What is hidden behind something malformed. It must not be carried out.
HIDDEN = post(call("note", "hidden"))

BODY = call("note", "first")


async def refused(service: HttpService, *parts: bytes, status: int = 400) -> None:
    """It is answered so, and then closed; what stands behind it is not looked at, and others are served."""
    raw_http = await service.connect()
    assert (await raw_http.ask(post(call("add", 1, 2)))).status == 200  # so that it is HTTP, whatever comes
    answer = await raw_http.ask(*parts, HIDDEN)
    assert answer.status == status, answer
    assert "close" in answer.headers["connection"]
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.body.count(b"\n") == 1
    assert await raw_http.rest() == b""
    assert not service.begun
    other = await service.connect()
    assert (await other.ask(post(call("add", 1, 2)))).json["result"] == 3


def with_header(*lines: str) -> bytes:
    return post(BODY, *lines)


def with_body(text: str, body: bytes = b"") -> bytes:
    """A request as it stands here; line ends are those of the text."""
    return text.encode("latin-1") + body


HEAD = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
LENGTH = f"Content-Length: {len(BODY)}\r\n"


# -- where a request ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines",
    [
        f"Content-Length: {len(BODY)}\r\nTransfer-Encoding: chunked\r\n",
        f"Transfer-Encoding: chunked\r\nContent-Length: {len(BODY)}\r\n",
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: identity\r\nContent-Length: 5\r\n",
    ],
)
async def test_both_lengths(service: HttpService, lines: str) -> None:
    await refused(service, with_body(f"{HEAD}{lines}\r\n", chunked(BODY)))


@pytest.mark.parametrize("other", ["0", str(len(BODY)), str(len(BODY) + 1)])
async def test_two_content_lengths(service: HttpService, other: str) -> None:
    await refused(service, with_body(f"{HEAD}{LENGTH}Content-Length: {other}\r\n\r\n", BODY))


@pytest.mark.parametrize(
    "length",
    ["+5", "-5", "5 5", "5,5", f"{len(BODY)}, {len(BODY)}", "0x10", "1_0", "", "\uff15", "5.0", "1e1", "9" * 30],
)
async def test_lengths_that_are_no_numbers(service: HttpService, length: str) -> None:
    encoded = length.encode().decode("latin-1")
    raw_http = await service.connect()
    answer = await raw_http.ask(with_body(f"{HEAD}Content-Length: {encoded}\r\n\r\n", BODY), HIDDEN)
    assert answer.status in (400, 413)
    assert await raw_http.rest() == b""
    assert not service.begun


@pytest.mark.parametrize(
    "coding",
    [
        "gzip",
        "chunked, gzip",
        "gzip, chunked",
        "chunked, chunked",
        "xchunked",
        "identity",
        "",
        "chunked;q=1",
        "\x0bchunked",
    ],
)
async def test_transfer_encodings_that_are_not_chunked(service: HttpService, coding: str) -> None:
    await refused(service, with_body(f"{HEAD}Transfer-Encoding: {coding}\r\n\r\n", chunked(BODY)))


async def test_chunks_twice_over(service: HttpService) -> None:
    lines = "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"
    await refused(service, with_body(f"{HEAD}{lines}\r\n", chunked(BODY)))


async def test_http_10_has_no_chunks(service: HttpService) -> None:
    head = HEAD.replace("1.1", "1.0") + "Connection: keep-alive\r\n"
    await refused(service, with_body(f"{head}Transfer-Encoding: chunked\r\n\r\n", chunked(BODY)))


@pytest.mark.parametrize(
    "trailers",
    [
        b"no colon\r\n",
        b"GET / HTTP/1.1\r\n",
        b"POST /x HTTP/1.1\r\nHost: other\r\n",
        b": no name\r\n",
        b"X-Sum : 1\r\n",
        b" X-Sum: 1\r\n",
        b"\tX-Sum: 1\r\n",
        b"X-Sum: 1\r\n goes on\r\n",
        b"X Sum: 1\r\n",
        b"X-S\xfcm: 1\r\n",
        b"X-Sum: \0\r\n",
        b"X-Sum: \x1b[2J\r\n",
        b"X-Sum: a\rb\r\n",
        b"X-Sum: a\nX-Other: b\r\n",
        b"Content-Length: 0\r\n",
        b"transfer-encoding: chunked\r\n",
        b"Host: other\r\n",
        b"Trailer: X-Sum\r\n",
        b"X: 1\r\n" * 101,
        b"X: %b\r\n" % (b"1" * 8192),
        b"X: %b\r\n" % (b"1" * 500) * 17,
        b"\xff\xfe\r\n",
    ],
)
async def test_trailers_that_are_no_fields(service: HttpService, trailers: bytes) -> None:
    head = with_body(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n")
    await refused(service, head, b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(BODY), BODY, trailers))


@pytest.mark.parametrize(
    "trailers",
    [
        b"X-Sum: 1\r\n",
        b"X-Sum:\r\n",
        b"X-Sum:\t 1 \t\r\nx-sum: \xe4\r\n",
        b"!#$%&'*+-.^_`|~0: :\r\n",
        b"X: 1\r\n" * 100,
    ],
)
async def test_trailers_that_are_fields_mean_nothing(service: HttpService, trailers: bytes) -> None:
    head = with_body(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n")
    request = head + b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(BODY), BODY, trailers)
    for size in (len(request), 7):
        raw_http = await service.connect()
        for at in range(0, len(request), size):
            raw_http.send(request[at : at + size])
            await asyncio.sleep(0)
        assert (await raw_http.answer()).json["result"] is None
        assert (await raw_http.ask(post(call("add", 1, 2)))).json["result"] == 3
    assert service.begun == ["first", "first"]


SIZE = f"{len(BODY):x}".encode()


@pytest.mark.parametrize(
    "chunks",
    [
        b"-1\r\n" + BODY,
        b"+%b\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
        b"0x%b\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
        b" %b\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
        b"%b \r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
        b"\r\n%b\r\n0\r\n\r\n" % BODY,
        b"g\r\n%b\r\n0\r\n\r\n" % BODY,
        b";a=b\r\n%b\r\n0\r\n\r\n" % BODY,
        b"%b\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
        b"%b\r%b\r\n0\r\n\r\n" % (SIZE, BODY),
        b"%b;a\n\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
        b"%b;a\0b\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY),
        b"%b;%b\r\n%b\r\n0\r\n\r\n" % (SIZE, b"a" * 300, BODY),
        b"%b\r\n%b0\r\n\r\n" % (SIZE, BODY),
        b"%b\r\n%b\n0\r\n\r\n" % (SIZE, BODY),
        b"%b\r\n%bxx0\r\n\r\n" % (SIZE, BODY),
        b"%b\r\n%b\rx0\r\n\r\n" % (SIZE, BODY),
        b"%b\r\n%b\r\n0\r\nname: value\n\r\n" % (SIZE, BODY),
        b"%b\r\n%b\r\n0\r\n%b: value\r\n\r\n" % (SIZE, BODY, b"a" * 9000),
        b"%b\r\n%b\r\n0\r\n%b\r\n" % (SIZE, BODY, b"a: b\r\n" * 3000),
        b"0000000000000%b\r\n%b\r\n0\r\n\r\n" % (b"0" * 10 + SIZE, BODY),
        b"f" * 300,
    ],
)
async def test_bad_chunks(service: HttpService, chunks: bytes) -> None:
    await refused(service, with_body(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n", chunks))


# -- what a head looks like -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace("\r\n", "\n") + LENGTH.replace("\r\n", "\n") + "\n",
        HEAD + LENGTH + "\n",
        HEAD + LENGTH + "X: a\n\r\n",
        HEAD + "X: a\nContent-Length: 0\r\n" + LENGTH + "\r\n",
        HEAD.replace("\r\n", "\n", 1) + LENGTH + "\r\n",
        HEAD + LENGTH + "\r\r\n\r\n",
        HEAD + "X: a\rContent-Length: 0\r\n" + LENGTH + "\r\n",
        HEAD.replace("\r\n", "\r", 1) + LENGTH + "\r\n",
    ],
)
async def test_lone_line_feeds_and_carriage_returns(service: HttpService, head: str) -> None:
    await refused(service, with_body(head, BODY))


@pytest.mark.parametrize("blank", [" ", "\t"])
async def test_obsolete_folding(service: HttpService, blank: str) -> None:
    await refused(service, with_body(f"{HEAD}X: a\r\n{blank}Content-Length: 0\r\n{LENGTH}\r\n", BODY))
    await refused(service, with_body(HEAD.replace("\r\nHost", f"\r\n{blank}Host", 1) + LENGTH + "\r\n", BODY))


@pytest.mark.parametrize("bad", ["\0", "\x01", "\x0b", "\x0c", "\x7f", "a\x08b"])
async def test_control_characters_in_values(service: HttpService, bad: str) -> None:
    await refused(service, with_header(f"X: a{bad}b"))


@pytest.mark.parametrize(
    "line",
    [
        "Content-Length : 0",
        "Content-Length\t: 0",
        " X: a",
        ": a",
        "X",
        "X(y): a",
        "X y: a",
        "X\0: a",
        "Ünder: a",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        "Authorization: Bearer a\r\nAuthorization: Bearer b",
        "Origin: http://a\r\nOrigin: http://b",
    ],
)
async def test_bad_names_and_repeated_ones(service: HttpService, line: str) -> None:
    await refused(service, with_body(f"{HEAD}{line}\r\n{LENGTH}\r\n", BODY))


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("POST / HTTP/1.1 ", 400),
        ("POST  / HTTP/1.1", 400),
        ("POST /  HTTP/1.1", 400),
        ("POST\t/\tHTTP/1.1", 400),
        ("POST / HTTP/1.1x", 400),
        ("POST / http/1.1", 400),
        ("POST / HTTP/1.2", 505),
        ("POST / HTTP/2.0", 505),
        ("POST / HTTP/0.9", 505),
        ("PRI * HTTP/2.0", 505),
        ("POST /", 400),
        ("POST", 400),
        ("POST / RTSP/1.0", 400),
        ("SOURCE / ICE/1.0", 400),
        ("POSTER / HTTP/1.1", 400),
        ("PoST / HTTP/1.1", 400),
        ("POST /\x7f HTTP/1.1", 400),
        ("POST /\xe9 HTTP/1.1", 400),
        ("POST /%ff HTTP/1.1", 400),
        ("POST /%00 HTTP/1.1", 400),
        ("POST /a#b HTTP/1.1", 400),
        ('POST /"a" HTTP/1.1', 400),
        ("POST a HTTP/1.1", 400),
        ("POST * HTTP/1.1", 400),
        ("POST http:///a HTTP/1.1", 400),
        ("POST http://u@h/a HTTP/1.1", 400),
        ("POST ftp://h/a HTTP/1.1", 400),
        ("CONNECT 127.0.0.1:1 HTTP/1.1", 405),
    ],
)
async def test_bad_first_lines(service: HttpService, line: str, status: int) -> None:
    await refused(service, with_body(HEAD.replace("POST / HTTP/1.1", line, 1) + LENGTH + "\r\n", BODY), status=status)


async def test_a_request_without_its_host(service: HttpService) -> None:
    await refused(service, with_body(HEAD.replace("Host: 127.0.0.1\r\n", "") + LENGTH + "\r\n", BODY))


@pytest.mark.parametrize("split", [False, True])
async def test_an_oversized_head(service: HttpService, split: bool) -> None:
    head = with_body(f"{HEAD}X: {'a' * 33_000}\r\n{LENGTH}\r\n", BODY)
    if not split:
        await refused(service, head, status=431)
        return
    raw_http = await service.connect()
    raw_http.send(head[:30_000])
    await until(lambda: service.connections and unread_request_bytes(service.connections[0]) == 30_000)
    answer = await raw_http.ask(head[30_000:33_000])
    assert answer.status == 431
    assert await raw_http.rest() == b""


async def test_an_endless_head(service: HttpService) -> None:
    """Refused while it is still being sent."""
    raw_http = await service.connect()
    raw_http.send(b"GET /" + b"a" * 1_000_000)
    assert (await raw_http.answer()).status == 431
    assert await raw_http.rest() == b""


async def test_a_head_up_to_its_limit(service: HttpService) -> None:
    raw_http = await service.connect()
    rest = post(call("add", 1, 2), "X: ")
    body = len(call("add", 1, 2))
    fits = post(call("add", 1, 2), "X: " + "a" * (32 * 1024 - (len(rest) - body)))
    assert (await raw_http.ask(fits)).json["result"] == 3
    assert (await raw_http.ask(fits.replace(b"X: a", b"X: aa"))).status == 431


async def test_too_many_headers(service: HttpService) -> None:
    raw_http = await service.connect()
    assert (await raw_http.ask(post(call("add", 1, 2), *["A: b"] * 97))).status == 200
    await refused(service, post(BODY, *["A: b"] * 98), status=431)


async def test_garbage_between_requests(service: HttpService) -> None:
    for garbage in (b"\n", b"\r", b"\0", b"\r\n\r\n", b" "):
        raw_http = await service.connect()
        raw_http.send(post(call("add", 1, 2)), garbage, HIDDEN)
        assert (await raw_http.answer()).json["result"] == 3
        assert (await raw_http.answer()).status == 400
        assert await raw_http.rest() == b""
        assert not service.begun


# -- sizes ------------------------------------------------------------------------------------------------------------


async def test_a_body_over_the_limit_is_not_read(serve: ServeHttp) -> None:
    service = await serve(max_message_size=10_000)
    raw_http = await service.connect()
    fits = call("echo", "x" * (10_000 - len(call("echo", ""))))
    assert (await raw_http.ask(post(fits))).status == 200
    assert (await raw_http.ask(post(None, "Transfer-Encoding: chunked"), chunked(fits))).status == 200
    answer = await raw_http.ask(post(None, "Content-Length: 10001"))
    assert (answer.status, b"10000" in answer.body) == (413, True)
    assert await raw_http.rest() == b""
    for sizes in ([10_001], [5_000, 5_001], [1] * 10_001):
        await refused(
            service, post(None, "Transfer-Encoding: chunked"), chunked(*[b"x" * size for size in sizes]), status=413
        )


async def test_a_chunk_over_the_limit_is_refused_by_its_size(serve: ServeHttp) -> None:
    service = await serve(max_message_size=10_000)
    raw_http = await service.connect()
    assert (await raw_http.ask(post(None, "Transfer-Encoding: chunked"), b"fffffffffffff\r\n")).status == 413


async def test_who_goes_on_sending_what_was_refused_gets_the_answer(serve: ServeHttp) -> None:
    """Though the rest of the body is on its way, and not wanted."""
    service = await serve(max_message_size=1000)
    for _ in range(5):
        raw_http = await service.connect()
        raw_http.send(post(b"x" * 2_000_000))
        assert (await raw_http.answer()).status == 413
        await raw_http.close()


async def test_who_goes_on_sending_for_ever_is_closed(serve: ServeHttp, monkeypatch: pytest.MonkeyPatch) -> None:
    from rpcstream.transports import http_output

    monkeypatch.setattr(http_output, "LINGER", 0.05)
    service = await serve(max_message_size=1000)
    raw_http = await service.connect()
    assert (await raw_http.ask(post(b"x" * 2000))).status == 413
    async with asyncio.timeout(20):
        while service.listener.connections:
            raw_http.send(b"x" * 1000)
            await asyncio.sleep(0.001)


# -- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "begun",
    [
        b"POST / ",
        HEAD.encode(),
        post(BODY)[:-50],
        post(None, "Content-Length: 100000"),
        post(None, "Transfer-Encoding: chunked") + b"1000\r\nabc",
        post(call("add", 1, 2)) + b"POST / ",
        post(call("add", 1, 2)) + post(BODY)[:-50],
    ],
    ids=["method", "head", "body", "length", "chunk", "second head", "second body"],
)
async def test_a_slow_request(serve: ServeHttp, begun: bytes) -> None:
    """A byte now and then does not help."""
    service = await serve(message_timeout=0.3)
    raw_http = await service.connect()
    raw_http.send(begun)
    if begun.startswith(post(call("add", 1, 2))):
        assert (await raw_http.answer()).json["result"] == 3

    async def trickle() -> None:
        while True:
            raw_http.send(b"a")
            await asyncio.sleep(0.02)

    task = asyncio.create_task(trickle())
    answer = await raw_http.answer()
    task.cancel()
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    assert await raw_http.rest() == b""
    await raw_http.close()
    await until(lambda: service.server.counters.closed_for_limits == 1)
    assert not service.begun


async def test_a_slow_call_is_no_slow_request(serve: ServeHttp) -> None:
    """Nor is what waits behind it."""
    service = await serve(message_timeout=0.1, idle_timeout=0.1)
    raw_http = await service.connect()
    raw_http.send(post(call("hold", 1)), post(call("add", 1, 2))[:-1])
    await until(lambda: service.begun)
    await asyncio.sleep(0.4)
    service.go.set()
    assert (await raw_http.answer()).json["result"] == 1
    raw_http.send(b"}")
    assert (await raw_http.answer()).json["result"] == 3


def small_buffers(raw_http: RawHttpConnection) -> None:
    raw_http.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)


@pytest.mark.parametrize(
    "request_",
    [
        post(call("ones", 20_000_000)),
        post(call("endless", 100_000), "Accept: text/event-stream"),
        post(call("echo", "x" * 10_000)) * 3000,
        post(call("ones", 20_000_000), "Connection: close"),
    ],
    ids=["reply", "stream", "many", "last"],
)
async def test_a_slow_reader(serve: ServeHttp, request_: bytes) -> None:
    service = await serve(write_timeout=0.2, write_buffer=100_000)
    raw_http = await service.connect()
    small_buffers(raw_http)
    raw_http.writer.transport.pause_reading()  # type: ignore[attr-defined]
    raw_http.send(request_)
    await until(lambda: service.connections and not service.listener.connections)
    assert service.server.counters.closed_for_limits == 1
    reason = service.connections[0].reason
    assert reason is not None
    assert "write_timeout" in reason
    await until(lambda: not service.listener.sessions)


async def test_answers_that_nobody_reads_stop_the_reading(serve: ServeHttp) -> None:
    service = await serve(write_buffer=100_000)
    raw_http = await service.connect()
    raw_http.writer.transport.pause_reading()  # type: ignore[attr-defined]
    request = post(call("note", "x")) + post(call("echo", "x" * 10_000))
    raw_http.send(request * 5000)
    await until(lambda: service.connections and service.connections[0].is_paused)
    (connection,) = service.connections
    assert len(service.begun) < 5000
    assert unread_request_bytes(connection) < 1_000_000
    assert connection.is_open
    assert connection.unread_size < 1_000_000
    raw_http.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(5000):
        await raw_http.answer()
        assert len((await raw_http.answer()).json["result"]) == 10_000


# -- upgrades ---------------------------------------------------------------------------------------------------------

UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


def never(request: Any) -> Any:
    raise AssertionError("upgraded")


def as_get(request: bytes) -> bytes:
    return request.replace(b"POST", b"GET", 1)


@pytest.mark.parametrize("make", [None, never])
@pytest.mark.parametrize("change", [as_get, bytes])
async def test_an_upgrade_with_a_body(serve: ServeHttp, make: Any, change: Callable[[bytes], bytes]) -> None:
    service = await serve(websocket=make)
    await refused(service, change(post(HIDDEN, *UPGRADE)))
    await refused(service, change(post(None, *UPGRADE, "Transfer-Encoding: chunked")), chunked(HIDDEN))


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (UPGRADE[1:], 400),
        (UPGRADE[:3], 400),
        ((*UPGRADE[:2], "Sec-WebSocket-Version: 12", UPGRADE[3]), 426),
    ],
)
async def test_a_refused_upgrade_closes(serve: ServeHttp, lines: tuple[str, ...], status: int) -> None:
    """What is pipelined behind it may be frames."""
    service = await serve(websocket=never)
    await refused(service, get("/", *lines), status=status)


async def test_an_upgrade_that_access_refuses_closes(serve: ServeHttp) -> None:
    from .test_http import Rules

    service = await serve(websocket=never, access=Rules())
    await refused(service, get("/", *UPGRADE, "Origin: http://evil"), status=403)


async def test_a_server_without_websockets_refuses_them(service: HttpService) -> None:
    await refused(service, get("/", *UPGRADE), status=404)


async def test_other_upgrades_are_not_made_and_close(service: HttpService) -> None:
    """Such as curl --http2 asks for, with its first call."""
    raw_http = await service.connect()
    lines = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    answer = await raw_http.ask(post(call("add", 1, 2), *lines), HIDDEN)
    assert (answer.json["result"], answer.headers["connection"]) == (3, "close")
    assert await raw_http.rest() == b""
    assert not service.begun


# -- others are served ------------------------------------------------------------------------------------------------


async def test_a_long_pipeline_lets_others_have_their_turn(service: HttpService) -> None:
    greedy, other = await service.connect(), await service.connect()
    await other.ask(post(call("add", 1, 2)))
    greedy.send(post(call("note", 1)) * 3000)
    await until(lambda: service.begun)
    assert (await other.ask(post(call("add", 1, 2)))).json["result"] == 3
    for _ in range(3000):
        await greedy.answer()


async def test_once_http_never_back(service: HttpService) -> None:
    raw_http = await service.connect()
    assert (await raw_http.ask(post(call("add", 1, 2)))).json["result"] == 3
    raw_http.send(BODY + b"\r\n\r\n")
    assert (await raw_http.answer()).status == 400
    assert not service.begun


async def test_a_client_that_breaks_off_everywhere(service: HttpService) -> None:
    request = post(call("hold", 1), "Accept: application/x-ndjson")
    for end in range(0, len(request) + 1, 5):
        raw_http = await service.connect()
        raw_http.send(request[:end])
        await asyncio.sleep(0)
        raw_http.writer.transport.abort()
    await until(lambda: not service.listener.connections and not service.listener.sessions)
    assert service.ended == ["cancelled"] * len(service.begun)
