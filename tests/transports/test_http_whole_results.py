"""Calls over HTTP whose answer may be lines or events, by clients that want one result."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from ..kit.http import RawHttpConnection, call, post

NDJSON = "Accept: application/x-ndjson"
PROGRESS = {"jsonrpc": "2.0", "method": "$/progress", "params": {"token": 1, "value": "begun"}}


def result(value: Any, call_id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "result": value}


@pytest.mark.parametrize("n", [0, 3])
async def test_progress_and_one_array(raw_http: RawHttpConnection, n: int) -> None:
    answer = await raw_http.ask(post(call("count", n, stream=None), NDJSON))
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.lines == [PROGRESS, result(list(range(n)))]


async def test_as_events(raw_http: RawHttpConnection) -> None:
    answer = await raw_http.ask(post(call("count", 2, stream=None), "Accept: text/event-stream"))
    assert [orjson.loads(event[6:]) for event in answer.body.split(b"\n\n")[:-1]] == [PROGRESS, result([0, 1])]


async def test_each_call_of_a_batch_says_it_for_itself(raw_http: RawHttpConnection) -> None:
    body = b"[%b,%b]" % (call("count", 2, stream=None), call("count", 2, id=2))
    *words, replies = (await raw_http.ask(post(body, NDJSON))).lines
    items = [word["params"] for word in words if word["method"] == "$/item"]
    assert items == [{"id": 2, "value": 0}, {"id": 2, "value": 1}]
    assert replies == [result([0, 1]), result(None, 2)]


@pytest.mark.parametrize("stream", [0, 1, "x"])
async def test_all_else_that_stands_there_means_nothing(raw_http: RawHttpConnection, stream: Any) -> None:
    answer = await raw_http.ask(post(call("count", 2, stream=stream), NDJSON))
    assert len(answer.lines) == 4
    assert answer.lines[-1] == result(None)


async def test_a_method_that_does_not_stream(raw_http: RawHttpConnection) -> None:
    assert (await raw_http.ask(post(call("add", 1, 2, stream=None), NDJSON))).lines == [result(3)]
