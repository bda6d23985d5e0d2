"""The topics http, page and websocket: our servers answer rightly, and a wrong page is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from suite.contenders import Contender
from suite.load import WrongReply
from suite.process import Running, Serving, Skipped
from suite.topics import web

from .load_generator import NEEDS_COMPILER, response, serving

pytestmark = [pytest.mark.slow, *NEEDS_COMPILER]

ALL = [contender for make in (web.http, web.page, web.websocket) for case in make() for contender in case.contenders]


@pytest.fixture(scope="module", params=["rpcstream_", "bare_page"])
def server(request: pytest.FixtureRequest) -> Iterator[Running]:
    try:
        server = Running(Serving(request.param))
    except Skipped as reason:
        pytest.skip(str(reason))
    yield server
    server.stop()


def of(server: Any, contender: Contender, connections: int) -> Callable[[float, float], Any]:
    return cast(Any, replace(cast(web.FromC, contender.load), shape=web.Shape(connections))(server))


def test_what_is_ours_answers_rightly(request: pytest.FixtureRequest, server: Running) -> None:
    contenders = [each for each in ALL if each.ours and each.server.script == request.node.callspec.params["server"]]
    for contender in contenders:
        assert of(server, contender, 3)(0.05, 0.0).calls > 0, contender.name


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
        measure = of(SimpleNamespace(port=port), case.contenders[0], 2)  # all that a driver asks of a server
        with pytest.raises(WrongReply, match="expected"):
            await asyncio.to_thread(measure, 30, 0.0)
    assert answered >= 100
