"""What is observed of a server: every way in which a call ends is counted once, on every transport."""

from __future__ import annotations

import asyncio
import gc
import http.client
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from rpcstream import CallNext, Hub, InvalidParams, Limits, Logs, MethodCall, RpcError
from rpcstream.testing import drop_connections, memory_client, serve_in_thread, wait_until_idle

from ..kit import TRANSPORTS, UsualServer, logged, notification, raw_peers, request, until
from ..kit.asgi import Driver, call, connected, http_scope
from ..observe.reading import check_with_promtool, outcomes, value


def make_server(**options: Any) -> UsualServer:
    server = UsualServer(**{"metrics": True, **options})

    @server
    async def fail_later(code: int) -> None:
        await asyncio.sleep(0)
        raise RpcError(code, "as asked")

    @server(timeout=0.01)
    async def hurry() -> None:
        await asyncio.Event().wait()

    return server


#: What is sent, and how it is counted.
OUTCOMES: dict[str, tuple[list[Any], dict[tuple[str, str], int]]] = {
    "results": (
        [
            *[request(name, *params) for name, params in (("add", (1, 2)), ("echo_after", (1, 0)), ("count", (3,)))],
            *[request("echo_in_thread", n, id=n) for n in range(2)],
            request("count", 3, id=9, stream=10),
        ],
        {("add", "0"): 1, ("echo_after", "0"): 1, ("count", "0"): 2, ("echo_in_thread", "0"): 2},
    ),
    "errors": (
        [
            *[request("fail", 7), request("fail_later", 7), request("fail_later", 7), request("fail", "no number")],
            *[request("crash"), request("hurry"), request("nothing_like_it"), request("echo_in_thread")],
            [request("add", 1, 2), request("fail", 7, id=3), notification("add", a=1, b=2), request("nothing", id=4)],
        ],
        {
            **{("fail", "7"): 2, ("fail_later", "7"): 2, ("fail", "-32602"): 1, ("crash", "-32603"): 1},
            **{("hurry", "-32003"): 1, ("unknown", "-32601"): 2, ("echo_in_thread", "-32602"): 1, ("add", "0"): 2},
        },
    ),
    "what is no call": (
        [
            *["no json", "5", "[]", '{"id":1}', "[" * 200 + "]" * 200, [notification("add")] * 20, "x" * 5000],
            *[f'{{"jsonrpc":"2.0","id":1,"method":{each}}}' for each in ('["add"]', "5")],
        ],
        {("unknown", "-32700"): 1, ("unknown", "-32600"): 5, ("unknown", "-32001"): 1},
    ),
    # Of names so long no nearest one is searched for: the time for that is limited for each process.
    "names that do not exist": (
        [request(f'"made\nup {"x" * 64} {n}', id=n) for n in range(300)],
        {("unknown", "-32601"): 300},
    ),
    "codes that a handler makes up": (
        [request("fail", code) for code in range(1, 41)],
        {**{("fail", str(code)): 1 for code in range(1, 31)}, ("fail", "other"): 10},
    ),
}


@pytest.mark.parametrize("name", OUTCOMES)
async def test_each_way_in_which_a_call_ends_is_counted_once(name: str) -> None:
    sent, counted = OUTCOMES[name]
    server = make_server(limits=Limits(max_batch=10, max_message_size=4096))
    async with raw_peers(server) as connect:
        raw = await connect()
        raw.send(*sent)
        await until(lambda: sum(outcomes(server.metrics_text()).values()) == sum(counted.values()))
        text = server.metrics_text()
    assert outcomes(text) == counted
    assert "made" not in text
    if name == "results":
        assert value(text, "rpcstream_call_duration_seconds_count", method="echo_after") == 1
        check_with_promtool(text)


async def test_calls_that_are_cancelled_or_whose_caller_is_lost() -> None:
    server = make_server(limits=Limits(max_calls=2))
    async with raw_peers(server) as connect:
        raw = await connect()
        raw.send(request("wait"), request("wait", id=3), request("add", id=2))
        await until(lambda: value(server.metrics_text(), "rpcstream_requests_waiting") == 1)
        assert value(server.metrics_text(), "rpcstream_calls_in_flight") == 2
        raw.send(*[notification("$/cancelRequest", id=n) for n in (2, 1, 3)])
        assert {each["id"] for each in await raw.receive_many(3)} == {1, 2, 3}
        text = server.metrics_text()
        assert outcomes(text) == {("wait", "-32800"): 2, ("add", "-32800"): 1}
        assert value(text, "rpcstream_call_duration_seconds_count", method="add") == 0
        assert value(text, "rpcstream_calls_in_flight") == 0
        raw.send([request("wait", id=n) for n in range(20)])
        await until(lambda: (value(server.metrics_text(), "rpcstream_calls_in_flight") or 0) >= 2)
        drop_connections(server)
        await wait_until_idle(server)
        gc.collect()  # a coroutine that was never awaited is a warning, and so an error
        found = outcomes(server.metrics_text())
    assert found.keys() == {("wait", "-32800"), ("add", "-32800")}
    assert found["wait", "-32800"] >= 4


async def test_in_micro_batches_with_middleware_and_spans() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    server = make_server(tracing=sdk.TracerProvider())

    @server.batched(max_size=4, max_wait=0.001)
    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    @server.middleware
    async def refuse_sevens(call: MethodCall, call_next: CallNext) -> Any:
        if 7 in call.arguments.values():
            raise InvalidParams("no sevens")
        return await call_next(call)

    async with memory_client(server) as client:
        assert await client.request("add", [1, 2]) == 3
        assert await client.request("echo_after", [1, 0]) == 1
        assert await asyncio.gather(*(client.request("double", [number]) for number in range(4))) == [0, 2, 4, 6]
        for method, params in (("add", [7, 2]), ("fail_later", [8])):
            with pytest.raises(RpcError):
                await client.request(method, params)
        found = outcomes(server.metrics_text())
    expected = {("add", "0"): 1, ("echo_after", "0"): 1, ("double", "0"): 4}
    assert found == {**expected, ("add", "-32602"): 1, ("fail_later", "8"): 1}


async def test_logins_and_what_comes_before_them_are_counted_and_logged() -> None:
    server = make_server(
        authenticate=lambda credentials: {"correct-horse": "alice"}.get(credentials.token),
        logs=Logs(access_log="json"),
    )
    calls: list[tuple[Any, ...]] = [("add", 1, 2), ("made up",), ("rpc.authenticate", "wrong")]
    with logged("rpcstream.access") as log:
        async with raw_peers(server) as connect:
            peer = await connect()
            for call in calls:
                assert await peer.code(*call) == -32005
            assert await peer.result("rpc.authenticate", "correct-horse") is True
            assert await peer.result("add", 1, 2) == 3
            text = server.metrics_text()
    counted = [("add", "-32005"), ("unknown", "-32005"), ("rpc.authenticate", "-32005")]
    assert outcomes(text) == dict.fromkeys([*counted, ("rpc.authenticate", "0"), ("add", "0")], 1)
    assert value(text, "rpcstream_logins_refused_total") == 1
    assert [orjson.loads(line)["identity"] for line in log.lines] == [None] * 3 + ["alice"] * 2
    assert not any("correct-horse" in line or "params" in line for line in log.lines)


def ask(address: str, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(address, timeout=20)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, {name.lower(): text for name, text in response.getheaders()}, response.read().decode()
    finally:
        connection.close()


def test_the_page_is_the_text_format_of_prometheus() -> None:
    with serve_in_thread(make_server()) as address:
        status, headers, text = ask(address)
        assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert headers["cache-control"] == "no-store"
        assert value(text, "rpcstream_connections", transport="http") == 1
        assert ask(address, method="HEAD")[2] == ""
        assert ask(address, method="PUT")[0] == 405
        # It is asked for by address, or by a name of the server.
        hosts = ("10.1.2.3:9000", "[2001:db8::1]:9000", "evil.example", "10.1.2.3.evil.example", "0x7f.1")
        assert [ask(address, Host=host)[0] for host in hosts] == [200, 200, 403, 403, 403]
        for host in hosts:
            assert ask(address, Host=host, Origin="https://evil.example")[0] == 403
            assert ask(address, "/", method="POST", Host=host)[0] == 403
        check_with_promtool(text)


def test_who_may_see_the_page() -> None:
    with serve_in_thread(make_server(metrics=False)) as address:
        assert ask(address)[0] == 404
    with serve_in_thread(make_server(token="correct-horse")) as address:
        said = ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer correct-horse"})
        assert [ask(address, **each)[0] for each in said] == [401, 401, 200]
    with serve_in_thread(make_server(token="correct-horse", metrics="public")) as address:
        assert ask(address)[0] == 200
    server = make_server()
    server.static("/metrics", b"mine")  # a route of the user has its path
    with serve_in_thread(server) as address:
        assert ask(address)[2] == "mine"
        assert ask(address, Host="10.1.2.3")[0] == 403


@pytest.mark.parametrize("transport", ["tcp", "tls", "unix", "http", "websocket", "memory"])
async def test_calls_and_connections_of_each_transport(transport: str, tmp_path: Path) -> None:
    name = {"websocket": "ws"}.get(transport, transport)
    server = make_server(logs=Logs(access_log="json"))
    with logged("rpcstream.access") as log:
        async with TRANSPORTS[name].serving(server, tmp_path) as endpoint, endpoint.client() as client:
            assert await client.request("add", [1, 2]) == 3
            assert await client.request("echo_after", [3, 0]) == 3
            shown = server.metrics_text()
    assert value(shown, "rpcstream_connections_accepted_total") == 1
    assert transport == "memory" or value(shown, "rpcstream_connections", transport=transport) == 1
    assert outcomes(shown) == {("add", "0"): 1, ("echo_after", "0"): 1}
    found = [(line["transport"], line["method"], line["code"]) for line in map(orjson.loads, log.lines)]
    assert found == [(transport, "add", 0), (transport, "echo_after", 0)]


async def test_calls_and_connections_under_an_asgi_server() -> None:
    server = make_server(logs=Logs(access_log="json"))
    app = server.asgi()
    with logged("rpcstream.access") as log:
        asked = Driver(app, http_scope())
        asked.body(orjson.dumps(call("wait")))
        websocket = await connected(app)
        websocket.text(call("echo_after", 3, 0))
        await until(lambda: websocket.messages and value(server.metrics_text(), "rpcstream_calls_in_flight") == 1)
        shown = server.metrics_text()
        asked.leave()
        websocket.close()
        await asyncio.gather(asked.ended(), websocket.ended())
        await until(lambda: len(log.lines) == 2)
    assert [value(shown, "rpcstream_connections", transport=each) for each in ("http", "websocket")] == [1, 1]
    assert value(shown, "rpcstream_connections_accepted_total") == 2
    found = [(line["transport"], line["method"]) for line in map(orjson.loads, log.lines)]
    assert found == [("websocket", "echo_after"), ("http", "wait")]
    server.stop()
    await until(lambda: not server.is_running)


async def test_streams_and_events_are_counted() -> None:
    server = make_server()
    async with memory_client(server) as client, client.subscribe("ticks") as ticks:
        server.publish("ticks", 1)
        assert await asyncio.wait_for(anext(aiter(ticks)), 20) == 1
        stream = client.stream("count", 100_000)
        await anext(aiter(stream))
        text = server.metrics_text()
        await stream.aclose()
        await client.request("add", [1, 2])
        await wait_until_idle(server)
        assert value(server.metrics_text(), "rpcstream_streams_open") == 0
    for name in ("streams_open", "subscriptions", "events_published_total", "events_sent_total"):
        assert value(text, f"rpcstream_{name}") == 1


async def test_the_page_about_it_names_every_family() -> None:
    hub = Hub(metrics=True, logs=Logs(access_log="text"))
    async with memory_client(hub) as client:
        await client.request("rpc.ping")
        text = hub.metrics_text()
    page = (Path(__file__).parents[2] / "docs/how-to/observe.md").read_text()
    named = set(re.findall("`((?:rpcstream|process)_[a-z_]+)`", page))
    of_workers = {"rpcstream_workers", "rpcstream_worker_restarts_total"}  # where there are some
    of_workers |= {"rpcstream_workers_replaced_total", "rpcstream_reloads_failed_total"}
    assert set(re.findall("^# TYPE ([a-z_]+) ", text, re.MULTILINE)) | of_workers == named
