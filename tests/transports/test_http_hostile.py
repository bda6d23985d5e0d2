"""Hostile HTTP requests: refused in time, no smuggled request is carried out, and others are served."""

from __future__ import annotations

import asyncio
import socket

import pytest

from rpcstream.testing import FakeTimeLoop

from ..kit import until
from ..kit.http import RawHttpConnection, call, chunked, get, post
from ..kit.websocket import UPGRADE
from .conftest import Serve, Served, in_steps

#: What is hidden behind something malformed. It must not be carried out.
HIDDEN = post(call("note", "hidden"))
ADD = post(call("add", 1, 2))
BODY = call("note", "first")
HEAD = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
LENGTH = f"Content-Length: {len(BODY)}\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"
SIZE = f"{len(BODY):x}".encode()


async def refused(served: Served, *parts: bytes, status: int = 400) -> None:
    """It is answered so, and then closed; what stands behind it is not looked at, and others are served."""
    http = await served.http()
    assert (await http.ask(ADD)).status == 200  # so that it is HTTP, whatever comes
    answer = await http.ask(*parts, HIDDEN)
    assert answer.status == status, answer
    assert "close" in answer.headers["connection"]
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.body.count(b"\n") == 1
    assert await http.rest() == b""
    assert not served.server.noted
    other = await served.http()
    assert (await other.ask(ADD)).json["result"] == 3


def headed(lines: str, body: bytes = BODY) -> bytes:
    """A call with these headers besides the usual ones, none of them its length."""
    return f"{HEAD}{lines}\r\n".encode("latin-1") + body


def in_chunks(chunks: bytes) -> bytes:
    return headed(CHUNKED, chunks)


def trailed(trailers: bytes) -> bytes:
    """In one chunk, with these lines behind it."""
    return in_chunks(b"%b\r\n%b\r\n0\r\n%b\r\n" % (SIZE, BODY, trailers))


def first_line(line: str) -> bytes:
    return (HEAD.replace("POST / HTTP/1.1", line, 1) + LENGTH + "\r\n").encode("latin-1") + BODY


REFUSED: dict[str, list[bytes]] = {
    "two lengths": [
        headed(f"{LENGTH}{CHUNKED}", chunked(BODY)),
        headed(f"{CHUNKED}{LENGTH}", chunked(BODY)),
        headed(f"Content-Length: 0\r\n{CHUNKED}", chunked(BODY)),
        headed("Transfer-Encoding: identity\r\nContent-Length: 5\r\n"),
        headed(f"{LENGTH}Content-Length: 0\r\n"),
        headed(LENGTH * 2),
        headed(f"{LENGTH}Content-Length: {len(BODY) + 1}\r\n"),
        headed(CHUNKED * 2, chunked(BODY)),
    ],
    "no length": [
        headed(f"Content-Length: {length}\r\n")
        for length in ("+5", "-5", "5 5", "5,5", f"{len(BODY)}, {len(BODY)}", "0x10", "1_0", "", "\xef\xbc\x95", "5.0",
                       "1e1", "9" * 30)
    ],
    "not chunked": [
        *[headed(f"Transfer-Encoding: {coding}\r\n", chunked(BODY))
          for coding in ("gzip", "chunked, gzip", "gzip, chunked", "chunked, chunked", "xchunked", "identity", "",
                         "chunked;q=1", "\x0bchunked")],
        in_chunks(chunked(BODY)).replace(b"HTTP/1.1\r\n", b"HTTP/1.0\r\nConnection: keep-alive\r\n"),
    ],
    "trailers": [trailed(trailers) for trailers in (
        b"no colon\r\n", b"GET / HTTP/1.1\r\n", b"POST /x HTTP/1.1\r\nHost: other\r\n", b"X-Sum: 1\r\n",
        b"Content-Length: 0\r\n", b"transfer-encoding: chunked\r\n", b"a: b\r\n" * 3000,
    )],
    "chunks": [in_chunks(chunks) for chunks in (
        b"-1\r\n" + BODY,
        *[b"%b%b0\r\n\r\n" % (size, BODY + b"\r\n") for size in (
            b"+%b\r\n" % SIZE, b"0x%b\r\n" % SIZE, b" %b\r\n" % SIZE, b"%b \r\n" % SIZE, b"\r\n", b"g\r\n", b";a=b\r\n",
            b"%b\n" % SIZE, b"%b\r" % SIZE, b"%b;a\r\n" % SIZE, b"0" * 23 + SIZE + b"\r\n",
        )],
        *[b"%b\r\n%b%b0\r\n\r\n" % (SIZE, BODY, end) for end in (b"", b"\n", b"xx", b"\rx")],
        b"f" * 300,
    )],
    "line ends": [
        headed(LENGTH).replace(b"\r\n", b"\n"),
        headed(LENGTH).replace(b"\r\n\r\n", b"\r\n\n"),
        headed(f"{LENGTH}X: a\n\r\n"),
        headed(f"X: a\nContent-Length: 0\r\n{LENGTH}"),
        headed(LENGTH).replace(b"\r\n", b"\n", 1),
        headed(f"{LENGTH}\r"),
        headed(f"X: a\rContent-Length: 0\r\n{LENGTH}"),
        headed(LENGTH).replace(b"\r\n", b"\r", 1),
        *[headed(f"X: a\r\n{blank}Content-Length: 0\r\n{LENGTH}") for blank in " \t"],
        *[headed(LENGTH).replace(b"\r\nHost", b"\r\n%bHost" % blank, 1) for blank in (b" ", b"\t")],
    ],
    "values": [headed(f"X: a{bad}b\r\n{LENGTH}") for bad in ("\0", "\x01", "\x0b", "\x0c", "\x7f", "a\x08b")],
    "names": [headed(f"{line}\r\n{LENGTH}") for line in (
        "Content-Length : 0", "Content-Length\t: 0", " X: a", ": a", "X", "X(y): a", "X y: a", "X\0: a", "Ünder: a",
        "Host: 127.0.0.1", "Content-Type: application/json", "Authorization: Bearer a\r\nAuthorization: Bearer b",
        "Origin: http://a\r\nOrigin: http://b",
    )],
    "first lines": [first_line(line) for line in (
        "POST / HTTP/1.1 ", "POST  / HTTP/1.1", "POST /  HTTP/1.1", "POST\t/\tHTTP/1.1", "POST / HTTP/1.1x",
        "POST / http/1.1", "POST /", "POST", "POST / RTSP/1.0", "SOURCE / ICE/1.0",
        "POST /\x7f HTTP/1.1", "POST /\xe9 HTTP/1.1", "POST /%ff HTTP/1.1", "POST /%00 HTTP/1.1",
        "POST /a#b HTTP/1.1", 'POST /"a" HTTP/1.1', "POST a HTTP/1.1", "POST * HTTP/1.1", "POST http:///a HTTP/1.1",
        "POST http://127.0.0.1/a HTTP/1.1", "CONNECT 127.0.0.1:1 HTTP/1.1",
    )],
    "no host": [headed(LENGTH).replace(b"Host: 127.0.0.1\r\n", b"")],
    "between requests": [b"\n", b"\r", b"\0", b"\r\n\r\n", b" ", BODY + b"\r\n\r\n"],
    "upgrades with a body": [
        post(HIDDEN, *UPGRADE).replace(b"POST", b"GET", 1),
        post(HIDDEN, *UPGRADE),
        post(None, *UPGRADE, "Transfer-Encoding: chunked").replace(b"POST", b"GET", 1) + chunked(HIDDEN),
        post(None, *UPGRADE, "Transfer-Encoding: chunked") + chunked(HIDDEN),
    ],
    "upgrades": [get("/", *UPGRADE[1:]), get("/", *UPGRADE[:3])],
}  # fmt: skip

#: And with other statuses than 400.
OTHERWISE: list[tuple[bytes, int]] = [
    *[(first_line(line), 505) for line in ("POST / HTTP/1.2", "POST / HTTP/2.0", "POST / HTTP/0.9", "PRI * HTTP/2.0")],
    (headed(f"X: {'a' * 33_000}\r\n{LENGTH}"), 431),
    (post(BODY, *["A: b"] * 98), 431),
    (get("/", *UPGRADE[:2], "Sec-WebSocket-Version: 12", UPGRADE[3]), 426),
    (get("/", *UPGRADE, "Origin: http://evil"), 403),
    (post(None, "Content-Length: 10001"), 413),
    (in_chunks(chunked(b"x" * 10_001)), 413),
    (in_chunks(chunked(b"x" * 5000, b"x" * 5001)), 413),
    (in_chunks(chunked(*[b"x"] * 10_001)), 413),
    (in_chunks(b"fffffffffffff\r\n"), 413),
    (post(None, "Expect: 100-continue", "Content-Length: 10001"), 413),
]


@pytest.mark.parametrize("kind", REFUSED)
async def test_what_is_malformed(served: Served, kind: str) -> None:
    for request in REFUSED[kind]:
        await refused(served, request)


async def test_what_is_refused_otherwise(serve: Serve) -> None:
    served = await serve(max_message_size=10_000)
    for request, status in OTHERWISE:
        await refused(served, request, status=status)


async def test_no_100_continue_for_what_is_refused(http: RawHttpConnection) -> None:
    request = post(None, "Expect: 100-continue", "Content-Length: 5", "Content-Type: a/b", json=False)
    assert (await http.ask(request)).status == 415
    assert await http.rest() == b""


async def test_a_head_up_to_its_limit(http: RawHttpConnection) -> None:
    body = call("add", 1, 2)
    fits = post(body, "X: " + "a" * (32 * 1024 - (len(post(body, "X: ")) - len(body))))
    assert (await http.ask(fits)).json["result"] == 3
    assert (await http.ask(post(body, *["A: b"] * 97))).status == 200
    assert (await http.ask(fits.replace(b"X: a", b"X: aa"))).status == 431


@pytest.mark.parametrize("first", [30_000, 1_000_000])
async def test_a_head_that_is_too_long_is_refused_while_it_is_sent(
    served: Served, http: RawHttpConnection, first: int
) -> None:
    http.send(b"GET /" + b"a" * first)
    await served.has_read_all()
    http.send(b"a" * 3000)
    assert (await http.answer()).status == 431
    assert await http.rest() == b""


async def test_a_body_up_to_the_limit(serve: Serve) -> None:
    http = await (await serve(max_message_size=10_000)).http()
    fits = call("echo", "x" * (10_000 - len(call("echo", ""))))
    assert (await http.ask(post(fits))).status == 200
    assert (await http.ask(in_chunks(chunked(fits)))).status == 200


async def test_who_goes_on_sending_what_was_refused_gets_the_answer(serve: Serve) -> None:
    """Though the rest of the body is on its way, and not wanted."""
    served = await serve(max_message_size=1000)
    for _ in range(5):
        http = await served.http()
        http.send(post(b"x" * 2_000_000))
        assert (await http.answer()).status == 413


def test_who_goes_on_sending_for_ever_is_closed() -> None:
    async def main(loop: FakeTimeLoop, served: Served) -> None:
        http = await served.http()
        http.send(post(b"x" * 2000))
        assert (await http.answer()).status == 413
        for _ in range(100):
            http.send(b"x" * 1000)
            await asyncio.sleep(0)
        assert served.connections
        loop.jump(10)
        await until(lambda: not served.connections)

    in_steps(main, max_message_size=1000)


@pytest.mark.parametrize(
    "begun",
    [
        b"POST / ",
        post(BODY)[:-50],
        post(None, "Content-Length: 100000"),
        in_chunks(b"1000\r\nabc"),
        ADD + b"POST / ",
        ADD + post(BODY)[:-50],
    ],
    ids=["method", "body", "length", "chunk", "second head", "second body"],
)
def test_a_slow_request(begun: bytes) -> None:
    """A byte now and then does not help."""

    async def main(loop: FakeTimeLoop, served: Served) -> None:
        http = await served.http()
        http.send(begun)
        if begun.startswith(ADD):
            assert (await http.answer()).json["result"] == 3
        for _ in range(30):
            http.send(b"a")
            await served.has_read_all()
            if served.server.stats()["closed_for_limits"]:
                break
            loop.jump(1)
        answer = await http.answer()
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert await http.rest() == b""
        assert not served.server.noted

    in_steps(main, message_timeout=10)


def test_a_slow_call_is_no_slow_request() -> None:
    """Nor is what waits behind it."""

    async def main(loop: FakeTimeLoop, served: Served) -> None:
        http = await served.http()
        http.send(post(call("wait", 1)), ADD[:-1])
        await until(lambda: served.server.begun)
        await served.has_read_all()
        loop.jump(30)
        await served.has_read_all()
        served.server.release()
        assert (await http.answer()).json["result"] == 1
        http.send(b"}")
        assert (await http.answer()).json["result"] == 3

    in_steps(main, message_timeout=10, idle_timeout=10)


def stop_reading(http: RawHttpConnection) -> None:
    http.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    http.writer.transport.pause_reading()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "request_",
    [
        post(call("fill", 20_000_000)),
        post(call("endless", 100_000), "Accept: text/event-stream"),
        post(call("fill", 10_000)) * 1000,
    ],
    ids=["reply", "stream", "many"],
)
async def test_a_slow_reader(serve: Serve, request_: bytes, caplog: pytest.LogCaptureFixture) -> None:
    served = await serve(write_timeout=0.05, write_buffer=100_000)
    http = await served.http()
    stop_reading(http)
    http.send(request_)
    await until(lambda: served.server.stats()["closed_for_limits"] == 1)
    assert "write_timeout" in caplog.text


async def test_answers_that_nobody_reads_stop_the_reading(serve: Serve) -> None:
    served = await serve(write_buffer=100_000)
    http = await served.http()
    http.writer.transport.pause_reading()  # type: ignore[attr-defined]
    http.send((post(call("note", "x")) + post(call("fill", 20_000), "X: " + "x" * 20_000)) * 1000)
    made = -1
    while made < len(served.server.noted):
        made = len(served.server.noted)
        await served.has_read_all()
    assert made < 1000
    assert served.connections[0].unread_size < 1_000_000
    assert http.writer.transport.get_write_buffer_size() > 100_000
    http.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(1000):
        await http.answer()
        assert len((await http.answer()).json["result"]) == 20_000


async def test_other_upgrades_are_not_made_and_close(served: Served, http: RawHttpConnection) -> None:
    """Such as curl --http2 asks for, with its first call."""
    lines = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    answer = await http.ask(post(call("add", 1, 2), *lines), HIDDEN)
    assert (answer.json["result"], answer.headers["connection"]) == (3, "close")
    assert await http.rest() == b""
    assert not served.server.noted


async def test_a_long_pipeline_lets_others_have_their_turn(served: Served, http: RawHttpConnection) -> None:
    other = await served.http()
    await other.ask(ADD)
    http.send(post(call("note", 1)) * 3000)
    await until(lambda: served.server.noted)
    assert (await other.ask(ADD)).json["result"] == 3
    for _ in range(3000):
        await http.answer()


async def test_a_client_that_breaks_off_everywhere(served: Served) -> None:
    request = post(call("wait", 1), "Accept: application/x-ndjson")
    for end in range(0, len(request) + 1, 5):
        http = await served.http()
        http.send(request[:end])
        await asyncio.sleep(0)
        http.writer.transport.abort()
    await until(lambda: not served.connections and len(served.server.ended) == len(served.server.begun))
    assert {how for _, how in served.server.ended} <= {"CancelledError"}
