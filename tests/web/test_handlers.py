"""Functions that answer GET: their parameters, their results, errors, and where they run."""

from __future__ import annotations

import asyncio
import enum
import io
import logging
import math
import os
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rpcstream import Limits, Logs
from rpcstream.errors import RegistrationError
from rpcstream.testing import FakeTimeLoop
from rpcstream.web import Html, HttpError, Request, Response
from rpcstream.wire.http_messages import problem

from ..kit import until
from ..kit.asgi import Driver
from .conftest import RoutesClient


class Colour(enum.Enum):
    RED = "red"


async def forever() -> None:
    await asyncio.Event().wait()


def process_id(name: str, request: Request) -> dict[str, object]:
    return {"name": name, "pid": os.getpid(), "agent": request.headers.get("user-agent")}


def picture(side: int) -> Image.Image:
    return Image.new("RGB", (side, side), "red")


def refuse() -> None:
    raise HttpError(problem(410, "gone for good"))


def fail() -> Response:
    raise ValueError("a secret of the process")


async def test_places_and_fields_by_name_and_hint(site: RoutesClient) -> None:
    @site.get("/users/{name}/{number:int}")
    def user(number: int, name: str, size: float = 1.5, *, full: bool = False, tag: list[int] = ()) -> Any:
        return [name, number, size, full, list(tag)]

    @site.get("/days/{day}")
    def page(day: date) -> str:
        return day.isoformat()

    site.get("/{n:int}", lambda n: [n])
    assert await site.text("/users/ann/7") == (200, '["ann",7,1.5,false,[]]')
    assert await site.text("/users/a%20b/-7?full=1&size=2&tag=3&tag=4&other=x") == (200, '["a b",-7,2.0,true,[3,4]]')
    assert await site.text("/days/2026-01-02") == (200, "2026-01-02")
    assert await site.text("/12") == (200, "[12]")
    wrong = await site.page("/days/%3Cb%3E")
    assert (wrong.status, wrong.headers["content-type"]) == (400, "text/plain; charset=utf-8")
    assert b"the path parameter 'day'" in wrong.content
    assert b"got '<b>'" in wrong.content


async def test_text_becomes_what_the_hint_says(site: RoutesClient) -> None:
    rows: list[tuple[Any, str, object]] = [
        (int, "-5", -5),
        (float, "1e3", 1000.0),
        (str, "5", "5"),
        (str, "a%2Bb+c%26", "a+b c&"),
        (int | str, "x", "x"),
        (uuid.UUID, "0" * 32, uuid.UUID(int=0)),
        (set[int] | None, "5", {5}),
        (list[Colour], "red", [Colour.RED]),
    ]
    seen: list[object] = []
    for number, (hint, text, _) in enumerate(rows):

        def page(x):  # type: ignore[no-untyped-def]
            seen.append(x)

        page.__annotations__ = {"x": hint}
        site.get(f"/{number}", page)
        assert (await site.page(f"/{number}?x={text}")).status == 204
    assert seen == [value for _, _, value in rows]


async def test_a_wrong_request_is_told_what_is_wrong(site: RoutesClient) -> None:
    @site.get("/")
    def page(x: int, colour: Colour = Colour.RED, tags: list[int] | None = None) -> None:
        raise AssertionError("must not run")

    for query, text in {
        "y=1": "the query parameter 'x' is missing",
        "x=": "the query parameter 'x': Expected int, got ''",
        "x=1&x=2": "the query parameter 'x' is given 2 times",
        "x=" + "1" * 5000: "the query parameter 'x': Integer value out of range",
        "x=1&tags=1&tags=b": "the query parameter 'tags': Expected int - at $[1], got '1', 'b'",
        "x=%ff": "the query is not UTF-8",
        "&".join(f"x{n}=1" for n in range(1001)): "the query has more than 1000 fields",
    }.items():
        status, said = await site.text(f"/?{query}")
        assert (status, said[: len(text)]) == (400, text)
        assert len(said) < 300


async def test_the_request_is_given_to_who_asks_for_it() -> None:
    site = RoutesClient(token="s3cret")

    @site.get("/a/{x}")
    def first(request: Request, /, x: str) -> Any:
        return [request.path, request.query, request.headers["accept"], request.identity is not None, x]

    @site.get("/b", public=True)
    def second(n: int, /, asked: Request | None = None) -> Any:
        return [n, asked is not None and asked.identity]

    async with site:
        asked = await site.text("/a/b%20c?d=%20", accept="x/y", authorization="Bearer s3cret")
        assert asked == (200, '["/a/b c","d=%20","x/y",true,"b c"]')
        assert await site.text("/b?n=1") == (200, "[1,null]")


def items() -> Iterator[int]:
    yield 1


async def later() -> AsyncIterator[int]:
    yield 1


def of(**hints: Any) -> Any:
    """A function with these parameters."""
    names = {"": lambda: None, "x": lambda x: None, "xy": lambda x, y: None}
    function = names["".join(hints)]
    function.__annotations__ = hints
    return function


@pytest.mark.parametrize(
    ("path", "function", "options", "text"),
    [
        ("/{a}", of(), {}, "the path has {a}, but the function has no parameter 'a'"),
        ("/", of(x=np.ndarray), {}, "parameter 'x': path and query are text"),
        *(("/", of(x=each), {}, "path and query are text") for each in (list[list[int]], list[int] | dict[str, int])),
        ("/{x}", of(x=list[int]), {}, "the path has one value for it"),
        ("/", of(x=Request, y=Request), {}, "one parameter may be the Request"),
        *(("/", each, {}, "take the Request") for each in (lambda *args: None, lambda **kwargs: None)),
        ("/", forever, {"offload": "thread"}, "offload is for sync functions"),
        ("/", of(), {"offload": "process"}, "another process can import"),
        ("/", of(), {"timeout": 1}, "a time-out cannot stop a sync function"),
        ("/", forever, {"timeout": 0}, "timeout must be a positive number"),
        *(("/", each, {}, "it cannot be a generator") for each in (items, later)),
        ("/", 7, {}, "a handler is a function"),
    ],
)
async def test_what_cannot_be_a_handler_is_refused(
    site: RoutesClient, path: str, function: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(RegistrationError, match=f"^GET {path}: .*{text}"):
        site.get(path, **options)(function)
    site.get(path, lambda a=0, x=0: "")  # the path is free


async def test_what_is_returned_becomes_a_page(site: RoutesClient) -> None:
    text, json, octets = "text/html; charset=utf-8", "application/json", "application/octet-stream"
    rows: list[tuple[Any, str, bytes]] = [
        ("<p>ä", text, "<p>ä".encode()),
        (Html("<p>"), text, b"<p>"),
        ("", text, b""),
        *((each, octets, b"a") for each in (b"a", bytearray(b"a"), memoryview(b"a"))),
        ({"a": [1, None]}, json, b'{"a":[1,null]}'),
        (date(2026, 1, 2), json, b'"2026-01-02"'),
        (np.float32(0.5), json, b"0.5"),
        (np.zeros(1, "u1"), json, b'{"$type":"ndarray","dtype":"|u1","shape":[1],"data":"AA=="}'),
    ]
    for number, (value, kind, body) in enumerate(rows):
        site.get(f"/{number}", lambda value=value: value)
        page = await site.page(f"/{number}")
        assert (page.status, page.content) == (200, body)
        expected = {"content-type": kind, "content-length": str(len(body)), "x-content-type-options": "nosniff"}
        assert page.headers == expected
    site.get("/nothing", lambda: None)
    page = await site.page("/nothing")
    assert (page.status, page.content, page.headers) == (204, b"", {"x-content-type-options": "nosniff"})


async def test_an_image_is_png(site: RoutesClient) -> None:
    for mode in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV", "F", "I;16"):
        site.get(f"/{mode}", lambda mode=mode: Image.new(mode, (3, 2)))
        page = await site.page(f"/{mode}")
        assert (page.status, page.headers["content-type"]) == (200, "image/png")
        with Image.open(io.BytesIO(page.content)) as image:
            assert (image.format, image.size) == ("PNG", (3, 2))
            assert image.has_transparency_data is (mode in ("LA", "PA", "RGBA", "RGBa"))


async def test_a_response_is_sent_as_it_is(site: RoutesClient) -> None:
    own = Response(201, b"<a/>", "text/xml", [("Location", "/new"), ("X-A", "1"), ("X-A", "2")])
    site.get("/", lambda: own)
    for _ in range(2):
        page = await site.page("/")
        assert (page.status, page.content) == (201, b"<a/>")
        names = [name.decode() for name, _ in page.sent[0]["headers"]]
        assert sorted(names) == ["content-length", "content-type", "location", "x-a", "x-a", "x-content-type-options"]
    assert len(own.headers) == 3


async def test_a_response_that_cannot_be_is_the_handler_s_failure(
    site: RoutesClient, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(response: Response) -> None:
        raise HttpError(response)

    responses: list[Response] = [
        *(Response(200, b"", None, [header]) for header in (("X-A", "a\r\nSet-Cookie: b"), ("X-A\r\n", "a"))),
        *(Response(200, b"", None, [header]) for header in (("Content-Length", "5"), ("Transfer-Encoding", "chunked"))),
        Response(200, b"", "text/html\r\nX-A: b"),
        Response(200, b"", "text/html", [("Content-Type", "text/plain")]),
        Response(200, b"", None, {"X-A": "b"}),  # type: ignore[arg-type]
        Response(200, b"", 7),  # type: ignore[arg-type]
        *(Response(101), Response(204, b"body"), Response(304, b"body")),
    ]
    for number, response in enumerate(responses):
        site.get(f"/{number}/returned", lambda response=response: response)
        site.get(f"/{number}/raised", lambda response=response: raises(response))
        for path in (f"/{number}/returned", f"/{number}/raised"):
            page = await site.page(path)
            assert page.status == 500
            assert set(page.headers) == {"content-type", "content-length", "x-content-type-options"}
            assert f"GET {path} failed" in caplog.text


def raising(error: BaseException, *, later: bool = False) -> Any:
    def page() -> None:
        raise error

    async def later_page() -> None:
        await asyncio.sleep(0)
        raise error

    return later_page if later else page


async def test_a_failure_is_500_and_logged(site: RoutesClient, caplog: pytest.LogCaptureFixture) -> None:
    rows: list[tuple[Any, Any]] = [
        *((raising(error), way) for error in (ValueError("a secret"), SystemExit(3)) for way in (None, "thread")),
        *((raising(each, later=True), None) for each in (StopAsyncIteration(), asyncio.CancelledError())),
        *((lambda: object(), None), (lambda: "\ud800", None), (lambda: [object()], "thread")),
    ]
    for number, (function, offload) in enumerate(rows):
        caplog.clear()
        site.get(f"/{number}", offload=offload)(function)
        page = await site.page(f"/{number}")
        assert page.status == 500
        assert page.content.startswith(b"Internal error: see the server's log, id ")
        (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
        assert record.getMessage() == f"GET /{number} failed, id {page.content[-9:-1].decode()}"
        assert record.exc_info is not None


async def test_debugging_shows_the_traceback_and_slow_handlers_are_named(caplog: pytest.LogCaptureFixture) -> None:
    site = RoutesClient(debug=True, logs=Logs(slow_call=1e-9))
    site.get("/", lambda: "")
    site.get("/thread", offload="thread")(lambda: "")
    site.get("/fails", raising(ValueError("a secret")))
    site.get("/gone", offload="thread")(refuse)
    async with site:
        assert (await site.page("/thread")).status == 200
        assert "blocked the event loop" not in caplog.text
        assert (await site.page("/")).status == 200
        assert "GET / blocked the event loop for" in caplog.text
        assert "offload='thread'" in caplog.text
        page = await site.page("/fails")
        assert (page.status, page.headers["content-type"]) == (500, "text/plain; charset=utf-8")
        assert b"ValueError: a secret" in page.content
        assert await site.text("/gone") == (410, "gone for good\n")


@pytest.mark.slow
async def test_a_process_is_given_the_request(site: RoutesClient, caplog: pytest.LogCaptureFixture) -> None:
    site.get("/process_id/{name}", offload="process")(process_id)
    site.get("/picture/{side}", offload="process")(picture)
    site.get("/refuse", offload="process")(refuse)
    site.get("/fail", offload="process")(fail)
    told = (await site.page("/process_id/ann", user_agent="me")).json
    assert told.pop("pid") != os.getpid()
    assert told == {"name": "ann", "agent": "me"}
    with Image.open(io.BytesIO((await site.page("/picture/5")).content)) as image:
        assert image.size == (5, 5)
    assert await site.text("/refuse") == (410, "gone for good\n")
    assert caplog.records == []
    assert (await site.page("/fail")).status == 500
    assert "GET /fail failed, id " in caplog.text


async def test_a_time_out_is_503(site: RoutesClient, caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()
    site.get("/thread", offload="thread", timeout=0.01)(lambda: go.wait(20))
    site.get("/loop", timeout=0.01)(forever)
    site.get("/patient", timeout=math.inf)(forever)
    for path in ("/thread", "/loop"):
        assert await site.text(path) == (503, "This page took longer than 0.01 s\n")
        assert f"GET {path} took longer than 0.01 s" in caplog.text
    go.set()


def test_there_is_a_time_out_that_nobody_asked_for() -> None:
    async def asked() -> tuple[int, str]:
        site = RoutesClient()
        site.get("/", forever)
        async with site:
            driver = site.begin("/")
            await driver.task
        return driver.status, driver.content.decode()

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        assert runner.run(asked()) == (503, "This page took longer than 60 s\n")


async def test_pages_that_wait_for_a_thread() -> None:
    """One whose caller is gone is not begun, one too many is refused, and a server that ends answers who waits."""
    site = RoutesClient(threads=1, limits=Limits(max_queue=1), drain_timeout=0.01)
    go, begun, ran = threading.Event(), threading.Semaphore(0), []
    site.get("/first", offload="thread")(lambda: (begun.release(), go.wait(20), "first")[-1])
    site.get("/{n:int}", offload="thread")(lambda n: ran.append(n))
    site.static("/files/", Path(__file__).parent)

    async def waiting(path: str) -> Driver:
        driver = site.begin(path)
        await until(lambda: driver.asked)
        return driver

    async with site:
        first = site.begin("/first")
        await until(lambda: begun.acquire(blocking=False))
        gone = await waiting("/1")
        gone.leave()
        await gone.ended()
        waits = await waiting("/2")
        for path in ("/3", "/files/conftest.py"):
            assert await site.text(path) == (503, "The server is busy; try again later\n")
        go.set()
        assert (await first.ended()).content == b"first"
        assert (await waits.ended()).status == 204
        assert ran == [2]
        assert (await site.page("/files/conftest.py")).status == 200
        go.clear()
        site.begin("/first")
        await until(lambda: begun.acquire(blocking=False))
        waits = await waiting("/4")
    assert (await waits.ended()).status == 503
    go.set()
