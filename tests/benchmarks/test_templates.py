"""Templates of replies that are learned from a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from .load_generator import (
    POST,
    REPLY,
    REQUEST,
    Http,
    LoadFailed,
    WrongReply,
    lines,
    response,
    right_reply,
    right_response,
    serving,
    serving_websocket,
    templates,
)

pytestmark = pytest.mark.slow


def fits(reply: Any, number: int) -> bool:
    return bool(reply["sum"] == number + 1)


async def learn(protocol: str, port: int, request: bytes, check: Callable[..., bool] = fits, **options: str) -> bytes:
    return await asyncio.to_thread(templates.learn, protocol, port, request, check, **options)  # type: ignore[arg-type]


async def test_templates_are_learned() -> None:
    async with serving(lines()) as port:
        assert await learn("line", port, REQUEST) == REPLY
    async with serving(Http(right_response)) as port:
        assert await learn("http", port, POST) == REPLY.rstrip()
    async with serving_websocket(lambda text: right_reply(text.encode()).decode()) as port:
        assert await learn("websocket", port, REQUEST, path="/ws") == REPLY
        assert await learn("websocket", port, REQUEST.ljust(200), path="/ws") == REPLY
        assert await learn("websocket", port, REQUEST.ljust(70_000), path="/ws") == REPLY


@pytest.mark.parametrize("wrong", [b'{"sum":3}\n', b'{"error":1}\n', b"[]\n", b"no JSON\n", b"\n"])
async def test_nothing_is_learned_from_wrong_replies(wrong: bytes) -> None:
    async with serving(lines(lambda line: wrong)) as port:
        with pytest.raises(WrongReply, match=r"asked .*1234567"):
            await learn("line", port, REQUEST)
    async with serving(Http(lambda body: response(b"{}", "500 Broken"))) as port:
        with pytest.raises(WrongReply, match="status 500 Broken"):
            await learn("http", port, POST)


async def test_replies_that_differ_in_more_than_the_number_make_no_template() -> None:
    counter = iter(range(100))

    def answer(line: bytes) -> bytes:
        return right_reply(line).replace(b"}", b',"time":%d}' % next(counter))

    async with serving(lines(answer)) as port:
        with pytest.raises(LoadFailed, match="differ in more than the number"):
            await learn("line", port, REQUEST)


async def test_each_call_of_a_batch_has_numbers_of_its_own() -> None:
    def answer(line: bytes) -> bytes:
        return json.dumps([{"id": one["id"], "sum": one["a"] + 1} for one in json.loads(line)]).encode() + b"\n"

    def fits_all(replies: Any, number: int) -> bool:
        return bool(replies == [{"id": number * 10 + one, "sum": number * 10 + one + 1} for one in (0, 9)])

    async with serving(lines(answer)) as port:
        request = b'[{"id":@@@@@@@0,"a":@@@@@@@0},{"id":@@@@@@@9,"a":@@@@@@@9}]\n'
        reply = b'[{"id": @@@@@@@0, "sum": @@@@@@@1}, {"id": @@@@@@@9, "sum": #######0}]\n'
        assert await learn("line", port, request, fits_all) == reply
