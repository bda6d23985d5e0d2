"""The topics http, page and websocket: our servers answer rightly, and a wrong page is noticed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from .load_generator import NEEDS_COMPILER, WrongReply, response, serving
from .suite_modules import Contender, Running, Serving, Skipped, web

pytestmark = [pytest.mark.slow, *NEEDS_COMPILER]

SECONDS = 30
GET = b"GET /static/page.html HTTP/1.1\r\nHost: here\r\n\r\n"
OTHER = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"

ALL = [contender for make in (web.http, web.page, web.websocket) for case in make() for contender in case.contenders]
OURS = [contender for contender in ALL if contender.ours]


@pytest.fixture(scope="module")
def rpcstream() -> Iterator[Running]:
    yield from running("rpcstream_")


@pytest.fixture(scope="module")
def bare() -> Iterator[Running]:
    yield from running("bare_page")


def running(script: str) -> Iterator[Running]:
    try:
        server = Running(Serving(script))
    except Skipped as reason:
        pytest.skip(str(reason))
    try:
        yield server
    finally:
        server.stop()


# -- the topics ---------------------------------------------------------------------------------------------------


def measured(contender: Contender, server: Running) -> int:
    few = replace(cast(web.FromC, contender.load), shape=web.Shape(3))
    return few(server)(0.05, 0.0).calls


@pytest.mark.parametrize("contender", OURS, ids=lambda contender: contender.name)
def test_what_is_ours_answers_rightly(contender: Contender, rpcstream: Running, bare: Running) -> None:
    assert measured(contender, {"rpcstream_": rpcstream, "bare_page": bare}[contender.server.script]) > 0


@pytest.mark.parametrize(
    "change",
    [lambda page: page[:-1], lambda page: page + b"\n", lambda page: page.replace(b"same", b"sane", 1)],
    ids=["shorter", "longer", "another byte"],
)
async def test_a_wrong_page_is_noticed(change: Callable[[bytes], bytes]) -> None:
    answered = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        while await reader.readuntil(b"\r\n\r\n"):
            answered += 1
            writer.write(response(web.PAGE if answered < 100 else change(web.PAGE)))

    async with serving(handle) as port:
        (case,) = web.page()
        load = replace(cast(web.FromC, case.contenders[0].load), shape=web.Shape(2))
        measure = load(cast(Running, SimpleNamespace(port=port)))  # all that a driver asks of a server
        with pytest.raises(WrongReply, match="expected"):
            await asyncio.to_thread(measure, SECONDS, 0.0)
    assert answered >= 100


# -- the bare responder -------------------------------------------------------------------------------------------


def exchange(port: int, *pieces: bytes, until: Callable[[bytes], bool]) -> bytes:
    """What has come when that is enough, or when the server closes."""
    with socket.create_connection(("127.0.0.1", port), SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
        got = b""
        while not until(got) and (more := connection.recv(65536)):
            got += more
        return got
