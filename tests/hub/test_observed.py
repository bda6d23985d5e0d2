"""Calls through a hub are counted with the name of their method, however they end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from rpcstream.hub import Hub
from rpcstream.observe.metrics import UNKNOWN

from ..observe.reading import check_with_promtool, outcomes, value
from .conftest import CALL, RawPeer, asked_of

Connect = Callable[[], RawPeer]


async def two(connect: Connect, *methods: str) -> tuple[RawPeer, RawPeer]:
    """A provider of these methods, and a caller."""
    provider, caller = connect(), connect()
    await provider.offers("p", *(methods or ("work",)))
    return provider, caller


def forwarded(hub: Hub) -> dict[tuple[str, str], float]:
    return {key: count for key, count in outcomes(hub.metrics_text()).items() if not key[0].startswith("rpc.")}


@pytest.mark.parametrize("has_spans", [False, True])
def test_results_and_errors_of_a_provider(with_hub: Any, has_spans: bool) -> None:
    async def main(hub: Hub, connect: Connect) -> None:
        provider, caller = await two(connect)
        asked = await asked_of(provider, caller)
        provider.say({"jsonrpc": "2.0", "id": asked, "result": 5})
        assert (await caller.hear())["result"] == 5
        asked = await asked_of(provider, caller)
        provider.say({"jsonrpc": "2.0", "id": asked, "error": {"code": 77, "message": "no"}})
        assert (await caller.hear())["error"]["code"] == 77
        asked = await asked_of(provider, caller)
        provider.say({"jsonrpc": "2.0", "id": asked, "error": "malformed"})
        assert (await caller.hear())["error"]["code"] == -32603
        caller.say(CALL % (2, "made.up", "[]"))
        assert (await caller.hear())["error"]["code"] == -32601
        assert forwarded(hub) == {("work", "0"): 1, ("work", "77"): 1, ("work", "-32603"): 1, (UNKNOWN, "-32601"): 1}
        text = hub.metrics_text()
        assert value(text, "rpcstream_hub_calls_forwarded_total") == 3
        assert value(text, "rpcstream_hub_clients") == 1
        assert value(text, "rpcstream_call_duration_seconds_count", method="work") == 3
        check_with_promtool(text)

    tracing = pytest.importorskip("opentelemetry.sdk.trace").TracerProvider() if has_spans else False
    with_hub(main, metrics=True, tracing=tracing)


def test_notifications_and_members_of_batches(with_hub: Any) -> None:
    async def main(hub: Hub, connect: Connect) -> None:
        provider, caller = await two(connect)
        caller.say({"jsonrpc": "2.0", "method": "work", "params": [0]})
        await provider.hear()
        caller.say("[" + ",".join(CALL % (number, "work", "[1]") for number in range(3)) + "]")
        for answer in ({"result": 1}, {"error": {"code": 78, "message": "no"}}, {"result": 1}):
            provider.say({"jsonrpc": "2.0", "id": (await provider.hear())["id"], **answer})
        assert len(await caller.hear()) == 3
        assert forwarded(hub) == {("work", "0"): 3, ("work", "78"): 1}

    with_hub(main, metrics=True)


def test_calls_that_are_cancelled_or_lose_their_provider(with_hub: Any) -> None:
    async def main(hub: Hub, connect: Connect) -> None:
        provider, caller = await two(connect)
        await asked_of(provider, caller, "1")
        assert value(hub.metrics_text(), "rpcstream_calls_in_flight") == 1
        caller.say({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 1}})
        assert (await caller.hear())["error"]["code"] == -32800
        assert (await provider.hear())["method"] == "$/cancelRequest"
        await asked_of(provider, caller, "2")
        provider.close()
        assert (await caller.hear())["error"]["code"] == -32007
        assert forwarded(hub) == {("work", "-32800"): 1, ("work", "-32007"): 1}

    with_hub(main, metrics=True)


@pytest.mark.parametrize("has_spans", [False, True])
def test_a_call_that_is_held_counts_once(with_hub: Any, has_spans: bool) -> None:
    async def main(hub: Hub, connect: Connect) -> None:
        provider, caller = await two(connect)
        provider.close()
        await asyncio.sleep(0.01)
        caller.say(CALL % (1, "work", "[1]"))
        caller.say("[" + CALL % (2, "work", "[2]") + "]")
        await caller.silence()
        assert value(hub.metrics_text(), "rpcstream_hub_calls_held") == 2
        provider = connect()
        provider.say(
            {"jsonrpc": "2.0", "id": 0, "method": "rpc.register", "params": {"name": "p", "methods": ["work"]}}
        )
        await provider.hear()
        for answer in ({"result": 1}, {"error": {"code": 79, "message": "no"}}):
            provider.say({"jsonrpc": "2.0", "id": (await provider.hear())["id"], **answer})
        await caller.hear()
        await caller.hear()
        assert forwarded(hub) == {("work", "0"): 1, ("work", "79"): 1}

    tracing = pytest.importorskip("opentelemetry.sdk.trace").TracerProvider() if has_spans else False
    with_hub(main, metrics=True, grace=10, tracing=tracing)


def test_a_held_call_whose_provider_does_not_come_back(with_hub: Any) -> None:
    async def main(hub: Hub, connect: Connect) -> None:
        provider, caller = await two(connect)
        asked = await asked_of(provider, caller)
        provider.say({"jsonrpc": "2.0", "id": asked, "result": 1})
        await caller.hear()
        provider.close()
        await asyncio.sleep(0.01)
        caller.say(CALL % (2, "work", "[1]"))
        assert (await caller.hear())["error"]["code"] == -32601
        assert forwarded(hub) == {("work", "0"): 1, ("work", "-32601"): 1}

    with_hub(main, metrics=True, grace=5)


def test_calls_of_the_hubs_own_methods(with_hub: Any) -> None:
    async def main(hub: Hub, connect: Connect) -> None:
        _, caller = await two(connect)
        await caller.result("rpc.discover")
        assert await caller.code("rpc.register", {"name": 5}) == -32602
        found = outcomes(hub.metrics_text())
        assert found["rpc.register", "0"] == 1
        assert found["rpc.discover", "0"] == 1
        assert found["rpc.register", "-32602"] == 1

    with_hub(main, metrics=True)


def test_lines_of_the_access_log(with_hub: Any) -> None:
    lines: list[dict[str, Any]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(orjson.loads(record.getMessage()))

    async def main(hub: Hub, connect: Connect) -> None:
        provider, caller = await two(connect)
        asked = await asked_of(provider, caller, '"x"')
        reply = orjson.dumps({"jsonrpc": "2.0", "id": asked, "error": {"code": 77, "message": "no"}})
        provider.say(reply)
        await caller.hear()
        (line,) = [each for each in lines if each["method"] == "work"]
        assert (line["id"], line["code"]) == ("x", 77)
        assert line["request_bytes"] > 0
        assert line["reply_bytes"] > 0

    logger, handler = logging.getLogger("rpcstream.access"), Handler()
    logger.addHandler(handler)
    try:
        with_hub(main, access_log="json")
    finally:
        logger.removeHandler(handler)
