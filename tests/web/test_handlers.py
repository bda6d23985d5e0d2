"""Handlers of GET: their parameters, their results, and errors."""

from __future__ import annotations

import asyncio
import enum
import functools
import io
import logging
import os
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import date
from typing import Any, Literal

import numpy as np
import orjson
import pytest
from PIL import Image

from rpcstream import Codec, RegistrationError, ServerBusy
from rpcstream.methods.invoke import Invoker
from rpcstream.web import Html, HttpError, Request, Response
from rpcstream.wire.http_messages import problem

from ..internals import waiting_for_threads
from . import worker_handlers
from .routes_client import RoutesClient, body_of, headers_of, request


class Colour(enum.Enum):
    RED = "red"


# -- what they are given ----------------------------------------------------------------------------------------------


async def test_places_and_fields_by_name_and_hint(site: RoutesClient) -> None:
    @site.get("/users/{name}/{number:int}")
    def user(number: int, name: str, size: float = 1.5, *, full: bool = False, tag: list[int] = ()) -> Any:
        return [name, number, size, full, list(tag)]

    assert await site.text("/users/ann/7") == (200, '["ann",7,1.5,false,[]]')
    assert await site.text("/users/a%20b/-7?full=1&size=2&tag=3&tag=4&other=x") == (200, '["a b",-7,2.0,true,[3,4]]')


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int, "5", 5),
        (int, "-5", -5),
        (float, "1e3", 1000.0),
        (bool, "true", True),
        (bool, "0", False),
        (str, "5", "5"),
        (str, "a%2Bb+c%26", "a+b c&"),
        (str, "", ""),
        (Any, "5", "5"),
        (int | None, "5", 5),
        (str | None, "null", "null"),
        (int | str, "x", "x"),
        (Literal["a", "b"], "b", "b"),
        (Colour, "red", Colour.RED),
        (date, "2026-01-02", date(2026, 1, 2)),
        (uuid.UUID, "0" * 32, uuid.UUID(int=0)),
        (tuple[int, ...], "5", (5,)),
        (set[int] | None, "5", {5}),
        (list[Colour], "red", [Colour.RED]),
    ],
)
async def test_text_becomes_what_the_hint_says(site: RoutesClient, hint: Any, text: str, value: object) -> None:
    seen = []

    def page(x):  # type: ignore[no-untyped-def]
        seen.append(x)

    page.__annotations__ = {"x": hint}
    site.get("/", page)
    assert (await site.page(f"/?x={text}")).status == 204
    assert seen == [value]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("", "the query parameter 'x' is missing"),
        ("y=1", "the query parameter 'x' is missing"),
        ("x=", "the query parameter 'x': Expected int, got ''"),
        ("x=a", "the query parameter 'x': Expected int, got 'a'"),
        ("x=1.5", "the query parameter 'x': Expected int, got '1.5'"),
        ("x=1&x=2", "the query parameter 'x' is given 2 times"),
        ("x=" + "1" * 5000, "the query parameter 'x': Integer value out of range"),
        ("x=1&colour=blue", "the query parameter 'colour': Invalid enum value 'blue'"),
        ("x=1&tags=1&tags=b", "the query parameter 'tags': Expected int - at $[1], got '1', 'b'"),
        ("x=%ff", "the query is not UTF-8"),
        ("&".join(f"x{n}=1" for n in range(1001)), "the query has more than 1000 fields"),
    ],
)
async def test_a_wrong_request_is_told_what_is_wrong(site: RoutesClient, query: str, text: str) -> None:
    @site.get("/")
    def page(x: int, colour: Colour = Colour.RED, tags: list[int] | None = None) -> None:
        raise AssertionError("must not run")

    status, said = await site.text(f"/?{query}")
    assert (status, said[: len(text)]) == (400, text)
    assert len(said) < 300


async def test_a_place_is_checked_by_its_hint(site: RoutesClient) -> None:
    @site.get("/days/{day}")
    def page(day: date) -> str:
        return day.isoformat()

    assert await site.text("/days/2026-01-02") == (200, "2026-01-02")
    status, said = await site.text("/days/%3Cb%3E")
    assert (status, "the path parameter 'day'" in said, "got '<b>'" in said) == (400, True, True)
    assert (await site.page("/days/%3Cb%3E")).type == "text/plain; charset=utf-8"


async def test_a_place_for_a_number_gives_a_number(site: RoutesClient) -> None:
    @site.get("/{n:int}")
    def page(n):  # type: ignore[no-untyped-def]
        return [n]

    assert await site.text("/12") == (200, "[12]")


async def test_the_request_is_given_to_who_asks_for_it(site: RoutesClient) -> None:
    @site.get("/a/{x}")
    def first(request: Request, /, x: str) -> Any:
        return [request.path, request.query, request.headers["accept"], request.identity, x]

    @site.get("/b")
    def second(n: int, /, asked: Request | None = None) -> Any:
        return [n, asked is not None]

    asked = request("/a/b%20c?d=%20", accept="x/y")
    asked.identity = "ann"
    assert await site.text(asked) == (200, '["/a/b c","d=%20","x/y","ann","b c"]')
    assert await site.text("/b?n=1") == (200, "[1,true]")


@pytest.mark.parametrize(
    ("path", "hints", "text"),
    [
        ("/{a}", {}, "the path has {a}, but the function has no parameter 'a'"),
        ("/", {"x": np.ndarray}, "parameter 'x': path and query are text"),
        ("/", {"x": dict[str, int]}, "path and query are text, which cannot become a value of its hint .dict"),
        ("/", {"x": list[list[int]]}, "path and query are text"),
        ("/", {"x": list[int] | dict[str, int]}, "path and query are text"),
        ("/{x}", {"x": list[int]}, "the path has one value for it"),
        ("/", {"x": "Missing"}, "parameter 'x': its hint 'Missing'"),
        ("/", {"x": Request, "y": Request}, "one parameter may be the Request"),
    ],
)
async def test_parameters_that_cannot_be_are_refused(
    site: RoutesClient, path: str, hints: dict[str, Any], text: str
) -> None:
    names = {"x": lambda x: None, "xy": lambda x, y: None, "": lambda: None}
    function = names["".join(hints)]
    function.__annotations__ = hints
    with pytest.raises(RegistrationError, match=f"^GET {path}: .*{text}"):
        site.get(path, function)
    assert await site.ask(path) is None


@pytest.mark.parametrize("function", [lambda *args: None, lambda **kwargs: None])
async def test_many_arguments_are_refused(site: RoutesClient, function: Any) -> None:
    with pytest.raises(RegistrationError, match="take the Request and read its query"):
        site.get("/", function)


async def test_options_that_cannot_act_are_refused(site: RoutesClient) -> None:
    async def waits() -> None: ...

    def computes() -> None: ...

    def items() -> Iterator[int]:
        yield 1

    async def later() -> AsyncIterator[int]:
        yield 1

    for function, options, text in [
        (waits, {"offload": "thread"}, "offload is for sync functions"),
        (computes, {"offload": "there"}, "offload must be 'thread', 'process' or None"),
        (computes, {"offload": "process"}, "another process can import"),
        (computes, {"timeout": 1}, "a time-out cannot stop a sync function"),
        (waits, {"timeout": 0}, "timeout must be a positive number"),
        (items, {}, "it cannot be a generator"),
        (later, {}, "it cannot be a generator"),
        (7, {}, "a handler is a function"),
    ]:
        with pytest.raises(RegistrationError, match=text):
            site.get("/", function, **options)  # type: ignore[call-overload]
    assert await site.ask("/") is None


# -- what they return -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "body"),
    [
        ("<p>ä", "text/html; charset=utf-8", "<p>ä".encode()),
        (Html("<p>"), "text/html; charset=utf-8", b"<p>"),
        ("", "text/html; charset=utf-8", b""),
        (b"\x00", "application/octet-stream", b"\x00"),
        (bytearray(b"a"), "application/octet-stream", b"a"),
        (memoryview(b"a"), "application/octet-stream", b"a"),
        ({"a": [1, None]}, "application/json", b'{"a":[1,null]}'),
        ([], "application/json", b"[]"),
        (0, "application/json", b"0"),
        (date(2026, 1, 2), "application/json", b'"2026-01-02"'),
        (np.float32(0.5), "application/json", b"0.5"),
    ],
)
async def test_what_is_returned_becomes_a_page(site: RoutesClient, value: object, kind: str, body: bytes) -> None:
    site.get("/", lambda: value)
    page = await site.page("/")
    assert (page.status, page.type, body_of(page)) == (200, kind, body)
    assert headers_of(page)["x-content-type-options"] == "nosniff"


async def test_nothing_is_204(site: RoutesClient) -> None:
    site.get("/", lambda: None)
    page = await site.page("/")
    assert (page.status, page.body) == (204, b"")
    assert headers_of(page) == {"x-content-type-options": "nosniff"}


@pytest.mark.parametrize("size", [3, 100_000])
async def test_an_array_is_json_as_for_a_call(site: RoutesClient, size: int) -> None:
    array = np.arange(size, dtype=np.float64)
    site.get("/", lambda: {"array": array})
    page = await site.page("/")
    assert page.type == "application/json"
    assert len(page.body) == int(headers_of(page)["content-length"])
    value = Codec().decode(orjson.loads(body_of(page)))
    np.testing.assert_array_equal(value["array"], array)  # type: ignore[index]


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV", "F", "I;16"]
)
async def test_an_image_is_png(site: RoutesClient, mode: str) -> None:
    site.get("/", lambda: Image.new(mode, (3, 2)))
    page = await site.page("/")
    assert (page.status, page.type) == (200, "image/png")
    with Image.open(io.BytesIO(body_of(page))) as image:
        assert (image.format, image.size) == ("PNG", (3, 2))
        assert image.has_transparency_data is (mode in ("LA", "PA", "RGBA", "RGBa"))


async def test_a_response_is_sent_as_it_is(site: RoutesClient) -> None:
    own = Response(201, b"<a/>", "text/xml", [("Location", "/new"), ("X-A", "1"), ("X-A", "2")])
    site.get("/", lambda: own)
    page = await site.page("/")
    assert (page.status, page.type, page.body) == (201, "text/xml", b"<a/>")
    assert page.headers == [*own.headers, ("X-Content-Type-Options", "nosniff")]
    assert len(own.headers) == 3
    site.get("/again", lambda: page)
    assert (await site.page("/again")).headers == page.headers


@pytest.mark.parametrize(
    "response",
    [
        Response(200, b"", None, [("X-A", "a\r\nSet-Cookie: b")]),
        Response(200, b"", None, [("X-A\r\n", "a")]),
        Response(200, b"", "text/html\r\nX-A: b"),
        Response(200, b"", None, [("Content-Length", "5")]),
        Response(200, b"", "text/html", [("Content-Type", "text/plain")]),
        Response(200, b"", None, {"X-A": "b"}),  # type: ignore[arg-type]
        Response(200, b"", 7),  # type: ignore[arg-type]
        Response(200, b"", None, [("Transfer-Encoding", "chunked")]),
        Response(200, "text"),  # type: ignore[arg-type]
        Response(101),
        Response("200"),  # type: ignore[arg-type]
        Response(204, b"body"),
        Response(304, b"body"),
    ],
)
async def test_a_response_that_cannot_be_is_the_handler_s_failure(
    site: RoutesClient, response: Response, caplog: pytest.LogCaptureFixture
) -> None:
    site.get("/", lambda: response)
    page = await site.page("/")
    assert page.status == 500
    assert set(headers_of(page)) == {"content-type", "content-length", "x-content-type-options"}
    assert "GET / failed" in caplog.text


# -- what goes wrong --------------------------------------------------------------------------------------------------


def broken() -> None:
    raise ValueError("a secret")


def ends() -> None:
    raise SystemExit(3)


async def broken_later() -> None:
    await asyncio.sleep(0)
    raise ValueError("a secret")


async def stops() -> None:
    raise StopAsyncIteration


async def cancels() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("function", "offload"),
    [
        (broken, None),
        (ends, None),
        (broken_later, None),
        (stops, None),
        (cancels, None),
        (broken, "thread"),
        (ends, "thread"),
        (worker_handlers.fail, "process"),
        (lambda: object(), None),
        (lambda: "\ud800", None),
        (lambda: [object()], "thread"),
    ],
)
async def test_a_failure_is_500_and_logged(
    site: RoutesClient, function: Any, offload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site.get("/x/{rest:path}", lambda rest: None)
    site.get("/y", function, offload=offload)
    page = await site.page("/y")
    assert page.status == 500
    assert page.body.startswith(b"Internal error: see the server's log, id ")
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert record.getMessage() == f"GET /y failed, id {page.body[-9:-1].decode()}"
    assert record.exc_info is not None


async def test_debugging_shows_the_traceback(invoker: Invoker) -> None:
    site = RoutesClient(invoker, debug=True)
    site.get("/", broken)
    page = await site.page("/")
    assert page.status == 500
    assert page.type == "text/plain; charset=utf-8"
    assert b"ValueError: a secret" in body_of(page)


@pytest.mark.parametrize("offload", [None, "thread", "process"])
async def test_an_error_may_have_a_response_of_its_own(
    site: RoutesClient, offload: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site.get("/", worker_handlers.refuse, offload=offload)
    page = await site.page("/")
    assert (page.status, page.body) == (410, b"gone for good\n")
    assert headers_of(page)["x-content-type-options"] == "nosniff"
    assert caplog.records == []


async def test_an_error_with_a_response_that_cannot_be_is_a_failure(site: RoutesClient) -> None:
    @site.get("/")
    async def page() -> None:
        raise HttpError(problem(400, "x", [("X-A", "\r\n")]))

    assert (await site.page("/")).status == 500


async def test_a_slow_handler_in_the_loop_is_named(invoker: Invoker, caplog: pytest.LogCaptureFixture) -> None:
    site = RoutesClient(invoker, slow=1e-9)
    site.get("/", lambda: "")
    site.get("/thread", lambda: "", offload="thread")
    assert (await site.page("/thread")).status == 200
    assert caplog.records == []
    assert (await site.page("/")).status == 200
    assert "GET / kept the event loop for" in caplog.text
    assert "offload='thread'" in caplog.text


# -- where they run ---------------------------------------------------------------------------------------------------


async def test_a_sync_handler_has_run_when_it_is_found(site: RoutesClient) -> None:
    site.get("/", lambda: str(threading.get_ident()))
    found = site.routes.find(request("/"))
    assert isinstance(found, Response)
    assert found.body == str(threading.get_ident()).encode()


async def test_a_thread_makes_the_response_too(site: RoutesClient) -> None:
    threads = []

    class Picture(Image.Image):
        def save(self, *args: Any, **kwargs: Any) -> None:
            threads.append(threading.get_ident())
            super().save(*args, **kwargs)

    @site.get("/", offload="thread")
    def page() -> Image.Image:
        threads.append(threading.get_ident())
        picture = Picture()
        picture.__dict__.update(Image.new("L", (2, 2)).__dict__)
        return picture

    assert (await site.page("/")).type == "image/png"
    assert threads[0] == threads[1] != threading.get_ident()


async def test_a_process_is_given_the_request(site: RoutesClient) -> None:
    site.get("/{name}", worker_handlers.process_id, offload="process")
    told = orjson.loads(body_of(await site.page("/ann", user_agent="me")))
    assert told.pop("pid") != os.getpid()
    assert told == {"name": "ann", "agent": "me"}
    site.get("/page/{name}", worker_handlers.page, offload="process")
    page = await site.page("/page/%3C")
    assert (page.type, page.body) == ("text/html; charset=utf-8", b"<p>&lt;")
    site.get("/picture/{side}", worker_handlers.picture, offload="process")
    with Image.open(io.BytesIO(body_of(await site.page("/picture/5")))) as image:
        assert image.size == (5, 5)


async def test_a_handler_no_process_can_import_is_refused_when_the_server_starts(invoker: Invoker) -> None:
    site = RoutesClient(invoker)
    site.routes.close()
    function = functools.partial(worker_handlers.page, unfit := threading.Lock())
    assert unfit is not None
    function.__qualname__ = "page"  # type: ignore[attr-defined]
    site.get("/", lambda: None)
    site.get("/bad", function, offload="process")
    with pytest.raises(RegistrationError, match="GET /bad: offload='process' needs a function"):
        site.routes.open(invoker)


async def test_an_async_handler_behind_a_plain_function(site: RoutesClient) -> None:
    async def page(x: int) -> str:
        await asyncio.sleep(0)
        return str(x)

    site.get("/a", functools.partial(page, 7))
    site.get("/b", lambda: page(8))
    assert await site.text("/a?x=9") == (200, "7")
    assert await site.text("/b") == (200, "8")


@pytest.mark.parametrize("offload", [None, "thread"])
async def test_a_time_out_is_503(site: RoutesClient, offload: Any, caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()

    async def waits() -> None:
        await asyncio.Event().wait()

    try:
        site.get("/", go.wait if offload else waits, offload=offload, timeout=0.01)
        status, text = await site.text("/")
    finally:
        go.set()
    assert (status, text) == (503, "This page took longer than 0.01 s\n")
    assert "GET / took longer than 0.01 s" in caplog.text


async def test_there_is_a_time_out_that_nobody_asked_for(invoker: Invoker) -> None:
    site = RoutesClient(invoker, timeout=0.01)

    @site.get("/")
    async def waits() -> None:
        await asyncio.Event().wait()

    @site.get("/no", timeout=float("inf"))
    async def none() -> str:
        await asyncio.to_thread(time.sleep, 0.05)
        return ""

    assert (await site.page("/")).status == 503
    assert (await site.page("/no")).status == 200


async def test_a_time_out_of_the_handler_s_own_is_its_failure(site: RoutesClient) -> None:
    @site.get("/")
    async def page() -> None:
        raise TimeoutError

    assert (await site.page("/")).status == 500


async def test_a_handler_is_cancelled_with_its_caller(site: RoutesClient) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @site.get("/")
    async def page() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    found = site.routes.find(request("/"))
    assert found is not None
    task = asyncio.ensure_future(found.respond())  # type: ignore[union-attr]
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_a_call_that_waits_for_a_thread_is_not_begun_for_nobody() -> None:
    invoker = Invoker(threads=1, processes=1, max_queue=10)
    site = RoutesClient(invoker)
    go, begun = threading.Event(), threading.Event()
    ran: list[int] = []
    try:
        invoker.submit(lambda: (begun.set(), go.wait()))
        await asyncio.to_thread(begun.wait)
        site.get("/", lambda: ran.append(1), offload="thread")
        found = site.routes.find(request("/"))
        assert found is not None
        task = asyncio.ensure_future(found.respond())  # type: ignore[union-attr]
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()
        await asyncio.wrap_future(invoker.submit(lambda: None))
        assert ran == []
    finally:
        go.set()
        invoker.close()


async def test_a_server_that_ends_answers_who_waits(caplog: pytest.LogCaptureFixture) -> None:
    """The pool is closed while a page waits for its thread: it is answered 500, not dropped."""
    invoker = Invoker(threads=1, processes=1, max_queue=10)
    site = RoutesClient(invoker)
    go, begun = threading.Event(), threading.Event()
    try:
        invoker.submit(lambda: (begun.set(), go.wait()))
        await asyncio.to_thread(begun.wait)
        site.get("/", lambda: "", offload="thread")
        asking = asyncio.ensure_future(site.page("/"))
        while not waiting_for_threads(invoker):
            await asyncio.sleep(0)
        invoker.close()
        assert (await asking).status == 500
    finally:
        go.set()
        invoker.close()


async def test_too_many_that_wait_are_told(caplog: pytest.LogCaptureFixture) -> None:
    invoker = Invoker(threads=1, processes=1, max_queue=1)
    site = RoutesClient(invoker)
    go, begun = threading.Event(), threading.Event()
    try:
        invoker.submit(lambda: (begun.set(), go.wait()))
        await asyncio.to_thread(begun.wait)
        invoker.submit(lambda: None)
        site.get("/", lambda: "", offload="thread")
        assert await site.text("/") == (503, "The server is busy; try again later\n")
        assert caplog.records == []
    finally:
        go.set()
        invoker.close()


async def test_another_server_that_is_busy_is_this_handler_s_failure(site: RoutesClient) -> None:
    error = ServerBusy()
    error.address = "127.0.0.1:1"

    @site.get("/")
    def page() -> None:
        raise error

    assert (await site.page("/")).status == 500
