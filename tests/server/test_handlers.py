"""Handlers of every kind on a real connection: where they run, what they return, how they fail; unknown methods."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import datetime
import json
import logging
import os
import re
import threading
import time
import tracemalloc
from collections.abc import Iterator
from types import ModuleType
from typing import Annotated, Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import AsyncClient, ConnectFailed, Context, Limits, Logs, MethodNotFound, RpcError, Server, Shape
from rpcstream.errors import InternalError, RegistrationError
from rpcstream.hub import Hub, Rule
from rpcstream.testing import drop_connections, memory_client

from ..kit import UsualServer, logged, notification, raw_peers, request, until

# -- results --------------------------------------------------------------------------------------------------------


async def test_return_hints_are_honoured(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    rows: dict[str, tuple[Any, Any]] = {
        "right": (float, 1),
        "scalar": (float, np.float32(0.5)),
        "dates": (list[datetime.date], [datetime.date(2026, 1, 2)]),
        "nothing": (None, None),
        "unchecked": (int, "x"),
        "wrong": (int, "x"),
        "array": (NDArray[np.float32], np.zeros(2)),
        "shaped": (Annotated[NDArray[np.float64], Shape(3)], np.zeros(2)),
    }
    for name, (hint, result) in rows.items():

        def function(result: Any = result) -> Any:
            return result

        function.__annotations__ = {"return": hint}
        server.add(function, name=name, check_result=name != "unchecked")
    async with raw_peers(server) as connect:
        raw = await connect()
        assert [await raw.result(name) for name in list(rows)[:5]] == [1.0, 0.5, ["2026-01-02"], None, "x"]
        for name in ("wrong", "array", "shaped"):
            caplog.clear()
            error = (await raw.reply(name))["error"]
            what = "the result does not fit the return hint"
            assert re.fullmatch(rf"Internal error: {what}; see the server's log, id [0-9a-f]{{8}}", error["message"])
            assert "data" not in error
            assert f"method '{name}' failed, id {error['message'][-8:]}\n" in caplog.text
            assert "expected" in caplog.text, "the log has the details"


async def test_what_cannot_be_encoded_is_an_internal_error() -> None:
    server = UsualServer()
    circle: list[Any] = []
    circle.append(circle)
    deep = orjson.loads("[" * 300 + "]" * 300)
    for name, value in {"opaque": object(), "deep": deep, "circle": circle}.items():
        server.add(lambda value=value: value, name=name)

    @server
    def items() -> Iterator[Any]:
        yield object()

    @server
    def wrong_items() -> Iterator[int]:
        yield 1
        yield "two"  # type: ignore[misc]

    text = r"Internal error: (an item|the result) {}; see the server's log, id [0-9a-f]{{8}} "
    what = {"opaque": "cannot be encoded", "circle": "cannot be encoded"}
    of_items = {"wrong_items": "does not fit the return hint", "items": "cannot be encoded"}
    async with memory_client(server) as client:
        with contextlib.suppress(InternalError):
            await client.call("deep")
        for name, reason in {**what, **of_items}.items():
            with pytest.raises(InternalError, match=text.format(reason)):
                await client.call(name)
        for name, reason in of_items.items():
            with pytest.raises(InternalError, match=text.format(reason)):
                [item async for item in client.stream(name)]
        assert await client.count(3) == [0, 1, 2]


# -- failures -------------------------------------------------------------------------------------------------------


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def of_another_server() -> RpcError:
    error = RpcError(42, "the secret of another server")
    error.address = "10.0.0.1:8545"
    return error


INTERNAL = {"code": -32603, "message": "Internal error: see the server's log, id "}

#: What a handler raises, and the error; with its code alone where that is enough.
FAILURES: dict[str, tuple[Any, dict[str, Any]]] = {
    "secret": (lambda: ValueError("the secret"), INTERNAL),
    "exit": (lambda: SystemExit("the secret"), INTERNAL),
    "own": (lambda: RpcError(42, "mine", {"a": np.float32(1)}), {"code": 42, "message": "mine", "data": {"a": 1.0}}),
    "known": (lambda: MethodNotFound("no such thing"), {"code": -32601, "message": "no such thing"}),
    "nested": (of_another_server, INTERNAL),
    "unreachable": (lambda: ConnectFailed("the secret", address="10.0.0.1:8545"), INTERNAL),
    "timeout": (lambda: TimeoutError("its own"), INTERNAL),
    "data": (lambda: RpcError(43, "mine", object()), {"code": -32603}),
    "surrogate": (lambda: RpcError(7, "bad \udc80 name"), {"code": -32603}),
    "mute": (Mute, {"code": -32603}),
    "cancelled": (asyncio.CancelledError, {"code": -32800}),
}


@pytest.mark.parametrize("kind", ["fail", "fail_later", "fail_in_thread"])
async def test_failures_say_what_they_mean_to_and_no_more(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Also from the backlog, in a batch, of a notification, and with an id over 64 bits."""
    server = Server(debug=kind == "fail_later", limits=Limits(max_calls=1))

    def fail(name: str) -> None:
        raise FAILURES[name][0]()

    @server
    async def fail_later(name: str) -> None:
        await asyncio.sleep(0)
        fail(name)

    server.add(fail)
    server.add(fail, name="fail_in_thread", offload="thread")

    def check(reply: Any, expected: Any) -> None:
        error = reply["error"]
        if "message" in expected and error["code"] == -32603:
            assert f"failed, id {error['message'][-8:]}\nTraceback" in caplog.text
            error["message"] = error["message"][:-8]
        if server.debug and error["code"] == -32603:
            error.pop("data", None)
        assert {key: error.get(key) for key in expected} == expected
        assert "message" not in expected or error.keys() == expected.keys()

    for name, (_, expected) in FAILURES.items():
        async with raw_peers(server) as connect:  # each anew: the log omits failures of which there are too many
            raw = await connect()
            raw.send(notification(kind, name=name), request(kind, name, id=1), request(kind, name, id=2))
            raw.send(request("rpc.ping", id=3))
            replies = {each["id"]: each for each in await raw.receive_many(3)}
            check(replies[1], expected)
            check(replies[2], expected)
            assert replies[3]["result"] == "pong"
            first, second = await raw.ask(json.dumps([request(kind, name, id=2**70), request("rpc.ping", id=4)]))
            check(first, expected)
            assert (first["id"], second["result"]) == (2**70, "pong")


async def test_a_handler_that_cancels_itself_is_answered() -> None:
    server = Server()

    @server
    async def cancels_itself() -> None:
        if task := asyncio.current_task():
            task.cancel()

    async with raw_peers(server) as connect:
        assert await (await connect()).code("cancels_itself") == -32800


async def test_a_failure_that_the_log_omits_is_called_that() -> None:
    async with memory_client(UsualServer()) as client:
        texts = []
        while not texts or "omits" not in texts[-1]:
            with pytest.raises(InternalError) as caught:
                await client.crash()
            texts.append(str(caught.value))
    assert "see the server's log, id" in texts[0]
    assert "the server's log omits it, because there were too many errors" in texts[-1]


# -- what debug shows -----------------------------------------------------------------------------------------------


async def test_debug_shows_exceptions_and_logs_messages_and_frames(caplog: pytest.LogCaptureFixture) -> None:
    data = bytes(range(256)) * 32
    with caplog.at_level(logging.DEBUG):
        async with raw_peers(UsualServer()) as connect:
            assert "data" not in (await (await connect()).reply("crash"))["error"]
        assert "receive " not in caplog.text
        async with (server := UsualServer(debug=True)).listening(port=0) as address, AsyncClient(address) as client:
            server.add(lambda data, text: data, name="first")
            with pytest.raises(InternalError) as caught:
                await client.crash()
            for _ in range(2):
                assert await client.first(data, "\x7f\u2028") == data
    error = caught.value.data
    assert (error["type"], error["message"]) == ("ValueError", "crashed as asked")
    assert "in call_crash" in error["traceback"]
    said = [each.getMessage() for each in caplog.records if each.name == "rpcstream.wire"]
    frames = [each for each in said if "payloads of 8192 bytes" in each]
    assert any(each.startswith("send ") for each in frames)
    assert any('"params":[{"$type":"bytes","data":{"$bin":0}},"\\u007f\\u2028"]' in each for each in frames)
    assert all(each.isprintable() for each in said)


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_debug_logs_what_comes_and_goes(scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    server = UsualServer(debug=True, token="not-for-the-log")
    with caplog.at_level(logging.INFO, "rpcstream.wire"):
        async with (
            server.listening(port=0) as address,
            AsyncClient(f"{scheme}://{address}", token="not-for-the-log") as client,
        ):
            assert await client.call("count", 2) == [0, 1]
            await client.notify("rpc.ping")
            assert [item async for item in client.stream.count(3)] == [0, 1, 2]
    said = [each.getMessage().partition(" bytes: ") for each in caplog.records if each.name == "rpcstream.wire"]
    received, sent = (
        [orjson.loads(text) for head, _, text in said if head.startswith(way)] for way in ("receive ", "send ")
    )
    methods = [each["method"] for each in received if each["method"] != "$/credit"]
    assert methods == ["count", "rpc.ping", "count"]
    assert [0, 1] in [each.get("result") for each in sent]
    assert [each["params"]["value"] for each in sent if each.get("method") == "$/item"] == [0, 1, 2]
    assert all(int(head.split()[1]) == len(text) for head, _, text in said)
    assert "not-for-the-log" not in caplog.text


# -- where they run -------------------------------------------------------------------------------------------------


async def test_threads_keep_the_loop_free_and_see_the_context_of_the_call() -> None:
    variable = contextvars.ContextVar("variable", default="outside")
    server, release, running = Server(threads=2), threading.Event(), threading.Semaphore(0)

    @server(offload="thread")
    def block(number: int) -> list[Any]:
        running.release()
        assert release.wait(20)
        return [number, variable.get()]

    server.add(lambda: threading.get_ident(), name="inline")
    variable.set("inside")
    async with raw_peers(server) as connect:
        raw, other = await connect(), await connect()
        raw.send(*[request("block", n) for n in range(6)])
        for _ in range(2):
            await until(lambda: running.acquire(blocking=False))
        assert await other.result("inline") == threading.get_ident()
        assert not running.acquire(blocking=False), "no more than there are threads"
        release.set()
        assert sorted([await raw.result() for _ in range(6)]) == [[n, "inside"] for n in range(6)]


async def test_the_queue_for_threads_is_bounded_and_who_has_left_is_not_in_it() -> None:
    server, release, ran = Server(threads=1, limits=Limits(max_queue=100)), threading.Event(), []

    @server(offload="thread")
    def block(name: str) -> str:
        ran.append(name)
        release.wait(20)
        return name

    async with raw_peers(server) as connect:
        raw, other = await connect(), await connect()
        other.call("block", "first", id="first")
        await until(lambda: ran)
        raw.send(*[request("block", "late", id=n, timeout=0.01) for n in range(100)])
        assert {await raw.code() for _ in range(100)} == {-32003}
        raw.send(*[request("block", "next", id=n) for n in range(100)])
        assert await raw.result("rpc.ping") == "pong"  # they have been read
        error = {"code": -32002, "message": "Server busy", "data": {"limit": 100}}
        assert (await other.reply("block", "too many", id="x"))["error"] == error
        release.set()
        assert await other.result() == "first"
        await raw.receive_many(100)
    assert ran == ["first"] + ["next"] * 100


@pytest.mark.slow
async def test_processes(workers: ModuleType) -> None:
    server = Server(processes=2)
    for name in ("process_id", "double", "fail", "odd_error", "own_error", "odd_result", "stop", "die"):
        server.add(getattr(workers, name), offload="process")
    async with memory_client(server) as client:
        assert await client.process_id() != os.getpid()
        assert (await client.double(np.ones(1))).tolist() == [2]
        codes = {"fail": 7, "own_error": 404, "odd_error": -32603, "odd_result": -32603, "stop": -32603, "die": -32603}
        for name, code in codes.items():
            with pytest.raises(RpcError) as caught:
                await client.call(name, *([7] if name == "fail" else []))
            assert caught.value.code == code
        assert await client.process_id() > 0
    server = Server()

    def local() -> None: ...

    local.__qualname__ = "local"
    server.add(local, offload="process")
    with pytest.raises(RegistrationError, match="local: offload='process'"):
        async with server.listening(port=0):
            pass


async def test_what_a_detached_handler_says_to_nobody_does_not_pile_up() -> None:
    server, held = UsualServer(), []

    @server(detached=True)
    async def report(ctx: Context) -> None:
        await server.call_wait()
        for _ in range(250):
            ctx.progress("x" * 10_000)
            await asyncio.sleep(0)
        held.append(tracemalloc.get_traced_memory()[0])

    async with raw_peers(server) as connect:
        (await connect()).call("report")
        await until(lambda: server.begun)
        drop_connections(server)
        tracemalloc.start()
        server.release()
        await until(lambda: held)
        tracemalloc.stop()
    assert held[0] < 1_500_000


# -- unknown methods -------------------------------------------------------------------------------------------------


async def nearest(client: AsyncClient, name: str) -> Any:
    with pytest.raises(MethodNotFound) as raised:
        await client.request(name)
    return raised.value.data.get("nearest")


async def test_the_nearest_names_stand_in_the_text_and_in_data() -> None:
    server = Server()
    for name in ("vectorize", "vector_sum", "math.multiply"):
        server.add(lambda: 1, name=name)
    reason = "rpc.discover lists the methods that there are"
    async with memory_client(server) as client:
        for name, found in {
            "vectorise": ["vectorize", "vector_sum"],
            "vector": ["vectorize", "vector_sum"],
            "rpc.discovr": ["rpc.discover"],
            **dict.fromkeys(("nothing_like_it", "", "x" * 10_000, "\x1b[2J\n", "$/cancel")),
        }.items():
            with pytest.raises(MethodNotFound) as raised:
                await client.request(name)
            hint = f": {name!r} (did you mean {' or '.join(map(repr, found))}?)" if found else ""
            assert raised.value.message == f"Method not found{hint}"
            assert raised.value.data == {"method": name, **({"nearest": found} if found else {"reason": reason})}
        assert await nearest(client, "devide") is None
        server.add(lambda: 1, name="divide")
        assert await nearest(client, "devide") == ["divide"]


async def test_a_method_that_the_caller_may_not_call_is_not_named() -> None:
    server = Server(authenticate=lambda credentials: {"roles": [credentials.token]})
    server.add(lambda: 1, name="delete_all", allow="admin")
    server.add(lambda: 1, name="delete_one", allow=lambda identity: "clerk" in identity["roles"])
    seen = {}
    for role in ("admin", "clerk", "guest"):
        async with memory_client(server, token=role) as client:
            seen[role] = await nearest(client, "delete_al")
    assert seen == {"admin": ["delete_all"], "clerk": ["delete_one"], "guest": None}


async def test_at_a_hub_the_rules_decide_which_names_are_told_and_what_is_offered_now_counts() -> None:
    rules = [
        Rule("gpu", name="gpu", register=">"),
        Rule("ada", call=["vectorize", "gpu.secret.reset"]),
        Rule("bob", call="gpu.vector_sum"),
        Rule("eve", subscribe="news"),
    ]
    hub = Hub(rules=rules, authenticate=lambda credentials: credentials.token, drain_timeout=5)
    told: dict[str, Any] = {}
    async with hub.listening(port=0) as address, AsyncClient(address, token="gpu", name="gpu") as gpu:
        for name in ("vectorize", "vector_sum", "secret.reset"):
            gpu(name=name)(lambda: 1)
        await gpu.offer()
        for user in ("ada", "bob", "eve"):
            async with AsyncClient(address, token=user) as client:
                told[user] = [await nearest(client, name) for name in ("vector_s", "secret.reset", "rpc.clent")]
        await gpu.request("rpc.unregister")
        async with AsyncClient(address, token="ada") as ada:
            assert await nearest(ada, "vectorise") is None
    own = ["rpc.clients"]
    assert told == {
        "ada": [["vectorize"], ["gpu.secret.reset"], own],
        "bob": [["vector_sum"], None, own],
        "eve": [None, None, own],
    }


async def test_whatever_blocks_the_event_loop_is_reported() -> None:
    server = Server(logs=Logs(slow_call=0.01))

    @server
    def size(image: Image.Image) -> int:
        time.sleep(0.02)
        return image.width

    @server
    def items(context: Context) -> Iterator[int]:
        time.sleep(0.02)
        yield 1

    with logged("rpcstream.server") as log:
        async with memory_client(server) as client:
            assert await client.size(Image.new("L", (3, 2))) == 3
            assert [item async for item in client.stream.items()] == [1]
            assert await client.items() == [1]
    assert len(log.matching("'size' blocked the event loop")) == 1
    assert len(log.matching("'items' blocked the event loop")) == 2
