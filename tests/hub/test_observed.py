"""Calls through a hub are counted with the name of their method, however they end."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rpcstream import Logs

from ..kit import batch, logged, request
from ..observe.reading import check_with_promtool, outcomes, value
from .conftest import Code, OpenHub, RunningHub, asked_of

pytestmark = pytest.mark.fake_time


def forwarded(hub: RunningHub) -> dict[tuple[str, str], float]:
    counts = outcomes(hub.hub.metrics_text())
    return {(method, code): count for (method, code), count in counts.items() if not method.startswith("rpc.")}


def spans(has_spans: bool) -> Any:
    return pytest.importorskip("opentelemetry.sdk.trace").TracerProvider() if has_spans else False


@pytest.mark.parametrize("has_spans", [False, True])
async def test_however_they_end(open_hub: OpenHub, has_spans: bool) -> None:
    """With a result, an error, one that is malformed, none, cancelled; as notifications, and in batches."""
    hub = await open_hub(metrics=True, tracing=spans(has_spans))
    provider, caller = await hub.pair()
    provider.answer(await asked_of(provider, caller), 5)
    assert await caller.result() == 5
    provider.fail(await asked_of(provider, caller), 77)
    assert await caller.code() == 77
    asked = await asked_of(provider, caller)
    provider.send({"jsonrpc": "2.0", "id": asked["id"], "error": "malformed"})
    assert await caller.code() == Code.INTERNAL
    assert await caller.code("made.up") == Code.UNKNOWN
    text = hub.hub.metrics_text()
    (no_method,) = [method for method, code in outcomes(text) if code == str(Code.UNKNOWN)]
    assert forwarded(hub) == {("work", "0"): 1, ("work", "77"): 1, ("work", "-32603"): 1, (no_method, "-32601"): 1}
    assert no_method != "made.up"
    assert value(text, "rpcstream_hub_calls_forwarded_total") == 3
    assert value(text, "rpcstream_hub_clients") == 1
    assert value(text, "rpcstream_call_duration_seconds_count", method="work") == 3
    caller.send({"jsonrpc": "2.0", "method": "work", "params": [0]})
    await provider.receive()
    caller.send(batch(*(request("work", 1, id=number) for number in range(3))))
    for code in (0, 78, 0):
        asked = await provider.receive()
        provider.fail(asked, code) if code else provider.answer(asked, 1)
    assert len(await caller.receive()) == 3
    await asked_of(provider, caller)
    assert value(hub.hub.metrics_text(), "rpcstream_calls_in_flight") == 1
    caller.cancel(1)
    assert await caller.code() == Code.CANCELLED
    assert (await provider.receive())["method"] == "$/cancelRequest"
    await asked_of(provider, caller, id=2)
    provider.close()
    assert await caller.code() == Code.GONE
    counts = {code: count for (method, code), count in forwarded(hub).items() if method == "work"}
    assert counts == {"0": 4, "77": 1, "-32603": 1, "78": 1, "-32800": 1, "-32007": 1}
    check_with_promtool(hub.hub.metrics_text())


async def test_the_hubs_own_methods_and_lines_of_the_access_log(open_hub: OpenHub) -> None:
    with logged("rpcstream.access") as log:
        hub = await open_hub(logs=Logs(access_log="json"), metrics=True)
        provider, caller = await hub.pair()
        provider.fail(await asked_of(provider, caller, id="x"), 77)
        await caller.receive()
        assert await caller.code("rpc.register", 5) == Code.PARAMS
    (line,) = [found for each in log.lines if (found := orjson.loads(each))["method"] == "work"]
    assert (line["id"], line["code"], line["request_bytes"] > 0, line["reply_bytes"] > 0) == ("x", 77, True, True)
    found = outcomes(hub.hub.metrics_text())
    assert found["rpc.register", "0"] == found["rpc.register", "-32602"] == 1
