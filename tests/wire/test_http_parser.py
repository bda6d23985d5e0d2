"""HTTP heads, bodies and responses as bytes, without a connection."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rpcstream.wire.http_messages import EVENTS, JSON, NDJSON, HttpError, Request, Response, preferred_type
from rpcstream.wire.http_parser import (
    HEAD_MAX,
    HEADERS_MAX,
    RequestReader,
    body_length,
    parse_head,
)

from ..kit.example_count import example_count
from ..kit.http import chunked, post


def head_of(response: Response, **options: Any) -> list[str]:
    options = {"length": len(response.body), "keep_alive": True, **options}
    *lines, empty, end = response.head(**options).decode("latin-1").split("\r\n")
    assert empty == end == ""
    return lines


def test_the_head_of_a_response() -> None:
    response = Response(200, b"body", "text/plain", [("X", "a"), ("X", "b")])
    usual = ["HTTP/1.1 200 OK", "Content-Type: text/plain", "X: a", "X: b"]
    for _ in range(2):
        assert head_of(response) == [*usual, "Content-Length: 4"]
        assert head_of(response, keep_alive=False) == [*usual, "Content-Length: 4", "Connection: close"]
        assert head_of(response, is_http10=True) == [*usual, "Content-Length: 4", "Connection: keep-alive"]
        assert head_of(response, more=[("Y", "c")]) == [*usual, "Y: c", "Content-Length: 4"]
        assert head_of(response, length=0) == [*usual, "Content-Length: 0"]
        assert head_of(response, length=None) == [*usual, "Transfer-Encoding: chunked"]
        assert head_of(response, length=None, is_http10=True, keep_alive=False) == [*usual, "Connection: close"]
    for status in (204, 304):  # these have no body, and say nothing of one
        assert head_of(Response(status), keep_alive=False)[1:] == ["Connection: close"]


@pytest.mark.parametrize("bad", ["a\r\nb", "a\nb", "a\rb", "a\0b", "a\x0bb", "a\x7fb", "a\x85b", "a\u2028b", "a€b"])
def test_nothing_in_a_response_ends_a_line(bad: str) -> None:
    for response in (
        Response(200, headers=[("X", bad)]),
        Response(200, headers=[(bad, "x")]),
        Response(200, type=bad),
        Response(200, headers=[("Connection", bad)]),
    ):
        with pytest.raises(ValueError, match="header"):
            response.head(0, keep_alive=True)
    with pytest.raises(ValueError, match="header"):
        Response(200).head(0, keep_alive=True, more=[("X", bad)])


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        *((each, JSON) for each in ("*/*", "", "text/html", "text/event-streams")),
        ("Application/X-NDJSON; q=0.5, */*", NDJSON),
        ("text/html, application/x-ndjson;q=0.5", NDJSON),
        ("text/event-stream, application/x-ndjson", EVENTS),
        ("application/json, text/event-stream", JSON),
    ],
)
def test_what_a_caller_wants(accept: str, kind: str) -> None:
    assert preferred_type(accept) == kind


def test_a_head() -> None:
    request = parse_head(
        b"POST /a%20b/%C3%A9?x=%20&y HTTP/1.1\r\nHost: h\r\nAccept:  a \t\r\nACCEPT: b\r\n"
        b"X:\r\nCookie: a\r\nCookie: b\r\n\r\n"
    )
    assert (request.method, request.path, request.query) == ("POST", "/a b/é", "x=%20&y")
    assert request.target == "/a%20b/%C3%A9?x=%20&y"
    assert request.headers == {"host": "h", "accept": "a, b", "x": "", "cookie": "a; b"}
    assert (request.keep_alive, request.is_http10, request.body, request.identity) == (True, False, b"", None)
    for headers, length in (({}, -1), ({"content-length": "007"}, 7), ({"transfer-encoding": "Chunked"}, None)):
        assert body_length(Request("POST", "/", headers), 100) == length


@pytest.mark.parametrize(
    ("target", "path", "query", "host"),
    [
        ("/", "/", "", "h"),
        ("//a", "//a", "", "h"),
        ("/a?b?c=/", "/a", "b?c=/", "h"),
        ("/%2e%2E/%3F", "/../?", "", "h"),
    ],
)
def test_targets(target: str, path: str, query: str, host: str) -> None:
    request = parse_head(f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    assert (request.path, request.query, request.headers["host"]) == (path, query, host)


#: What heads are made of.
PARTS = [
    *(b"GET", b"POST", b" ", b"/", b"HTTP/1.1", b"HTTP/1.0", b"\r\n", b"\n", b"\r", b"Host", b":", b"a", b"\t", b"\0"),
    *(b"Content-Length: 5", b"Transfer-Encoding: chunked", b"\xff", b"%", b"http://", b"?", b"Connection: "),
]


@given(st.lists(st.sampled_from(PARTS), max_size=30).map(b"".join))
@example(b"GET / HTTP/1.1\r\nHost: a")
@settings(max_examples=example_count(500), deadline=None)
def test_every_head_is_a_request_or_refused(text: bytes) -> None:
    try:
        request = parse_head(text + b"\r\n\r\n")
        body_length(request, 100)
    except HttpError as error:
        status = error.response.status
    else:
        status = 200
    if status != 200:
        assert 400 <= status < 600
        return
    assert text.count(b"\n") == text.count(b"\r\n") == text.count(b"\r")
    assert not ("content-length" in request.headers and "transfer-encoding" in request.headers)
    assert text.startswith(request.method.encode() + b" ")


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


CUTS = st.lists(st.integers(0, 10**6), max_size=20)


@given(
    st.lists(
        st.sampled_from([b"0", b"1", b"a", b"\r\n", b"\r", b"\n", b";", b" ", b"x", b"ff", b"a: b", b"03\r\nabc\r\n"]),
        max_size=15,
    ).map(b"".join),
    CUTS,
)
@settings(max_examples=example_count(500), deadline=None)
def test_chunks_mean_the_same_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    def outcome(parts: list[bytes]) -> Any:
        reader = RequestReader()
        reader.begin_body(None)
        body = b""
        for place, part in enumerate(parts):
            reader.feed(part)
            try:
                body += reader.part()
            except HttpError as error:
                return error.response.status
            if not reader.in_body:
                return body, reader.rest() + b"".join(parts[place + 1 :])
        return "more"

    assert outcome(pieces(data, cuts)) == outcome([data])


@given(CUTS)
@settings(max_examples=example_count(100), deadline=None)
def test_requests_cut_anywhere(cuts: list[int]) -> None:
    bodies: list[bytes | list[bytes]] = [b"first", b"", [b"in", b"chunks"], b"x" * 100, []]
    data = b""
    for body in bodies:
        if isinstance(body, bytes):
            data += post(body)
        else:
            data += post(None, "Transfer-Encoding: chunked") + chunked(*body)
        data += b"\r\n" if body == b"first" else b""
    reader = RequestReader()
    found: list[bytes] = []
    for piece in pieces(data, cuts):
        reader.feed(piece)
        while True:
            if not reader.in_body:
                head = reader.head()
                if head is None:
                    break
                reader.begin_body(body_length(parse_head(head), 1000))
                found.append(b"")
            found[-1] += reader.part()
            if reader.in_body:
                break
    assert found == [body if isinstance(body, bytes) else b"".join(body) for body in bodies]
    assert not reader.is_partial
    assert reader.rest() == b""


def test_limits_of_a_head() -> None:
    reader = RequestReader()
    reader.feed(b"a" * HEAD_MAX)
    assert reader.head() is None
    reader.feed(b"a")
    with pytest.raises(HttpError, match="431"):
        reader.head()
    lines = b"a: b\r\n" * (HEADERS_MAX - 1)
    assert parse_head(b"GET / HTTP/1.1\r\nHost: a\r\n%b\r\n" % lines).headers["a"].count("b") == HEADERS_MAX - 1
    with pytest.raises(HttpError, match="431"):
        parse_head(b"GET / HTTP/1.1\r\nHost: a\r\na: b\r\n%b\r\n" % lines)
