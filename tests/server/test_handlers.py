"""Handlers of every kind on a real connection: where they run, what they return, how they fail."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import datetime
import logging
import os
import re
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from functools import wraps
from types import ModuleType
from typing import Annotated, Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from rpcstream import (
    AsyncClient,
    Client,
    ConnectFailed,
    Context,
    InternalError,
    Limits,
    MethodNotFound,
    RegistrationError,
    RpcError,
    Server,
    Shape,
)
from rpcstream.testing import drop_connections, memory_client, serve_in_thread

from ..kit import UsualServer, notification, raw_peers, request, until

# -- results --------------------------------------------------------------------------------------------------------


async def test_return_hints_are_honoured(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()

    def add(name: str, hint: Any, result: Any, **options: Any) -> None:
        def function() -> Any:
            return result

        function.__annotations__ = {"return": hint}
        server.add(function, name=name, **options)

    add("right", float, 1)
    add("scalar", float, np.float32(0.5))
    add("unchecked", int, "x", check_result=False)
    add("dates", list[datetime.date], [datetime.date(2026, 1, 2)])
    add("nothing", None, None)
    add("wrong", int, "x")
    add("array", NDArray[np.float32], np.zeros(2))
    add("shaped", Annotated[NDArray[np.float64], Shape(3)], np.zeros(2))
    async with raw_peers(server) as connect:
        raw = await connect()
        found = [await raw.result(name) for name in ("right", "scalar", "unchecked", "dates", "nothing")]
        assert found == [1.0, 0.5, "x", ["2026-01-02"], None]
        for name in ("wrong", "array", "shaped"):
            caplog.clear()
            error = (await raw.reply(name))["error"]
            what = "the result does not fit the return hint"
            match = re.fullmatch(rf"Internal error: {what}; see the server's log, id ([0-9a-f]{{8}})", error["message"])
            assert match is not None
            assert "data" not in error
            assert f"method '{name}' failed: {what}, id {match[1]}\n" in caplog.text
            assert "expected" in caplog.text, "the log has the details"


async def test_what_cannot_be_encoded_is_an_internal_error() -> None:
    server = UsualServer()
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    circle: list[Any] = []
    circle.append(circle)
    for name, value in {"opaque": object(), "deep": deep, "circle": circle}.items():
        server.add(lambda value=value: value, name=name)

    @server
    def items() -> Iterator[Any]:
        yield object()

    @server
    def wrong_items() -> Iterator[int]:
        yield 1
        yield "two"  # type: ignore[misc]

    async with memory_client(server) as client:
        for name in ("opaque", "circle", "items"):
            with pytest.raises(InternalError, match=r"cannot be encoded; see the server's log, id [0-9a-f]{8} "):
                await client.call(name)
        with contextlib.suppress(InternalError):
            await client.call("deep")
        for name, what in (("wrong_items", "does not fit the return hint"), ("items", "cannot be encoded")):
            text = rf"Internal error: (an item|the result) {what}; see the server's log, id [0-9a-f]{{8}} "
            with pytest.raises(InternalError, match=text):
                [item async for item in client.stream(name)]
            with pytest.raises(InternalError, match=text):
                await client.call(name)
        assert await client.count(3) == [0, 1, 2]


# -- failures -------------------------------------------------------------------------------------------------------


class Forgetful(RpcError):
    def __init__(self) -> None:  # forgets its base
        self.code, self.message, self.data = 7, "forgetful", None


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def of_another_server() -> RpcError:
    error = RpcError(42, "the secret of another server")
    error.address = "10.0.0.1:8545"
    return error


INTERNAL = {"code": -32603, "message": "Internal error: see the server's log, id "}

#: What a handler raises, and the error; None if it is enough that it is one of this code.
FAILURES: dict[str, tuple[Any, dict[str, Any]]] = {
    "secret": (lambda: ValueError("the secret"), INTERNAL),
    "exit": (lambda: SystemExit("the secret"), INTERNAL),
    "own": (lambda: RpcError(42, "mine", {"a": np.float32(1)}), {"code": 42, "message": "mine", "data": {"a": 1.0}}),
    "known": (lambda: MethodNotFound("no such thing"), {"code": -32601, "message": "no such thing"}),
    "nested": (of_another_server, INTERNAL),
    "unreachable": (lambda: ConnectFailed("the secret", address="10.0.0.1:8545"), INTERNAL),
    "data": (lambda: RpcError(43, "mine", object()), {"code": 43, "message": "mine"}),
    "surrogate": (lambda: RpcError(7, "bad \udc80 name"), {"code": 7}),
    "code": (lambda: RpcError("x", "m"), {"code": -32603}),  # type: ignore[arg-type]
    "huge code": (lambda: RpcError(2**80, "m"), {"code": -32603}),
    "forgetful": (Forgetful, {"code": 7}),
    "mute": (Mute, {"code": -32603}),
}


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("kind", ["sync", "async", "thread"])
@pytest.mark.parametrize("name", FAILURES)
async def test_failures_say_what_they_mean_to_and_no_more(
    name: str, kind: str, debug: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also from the backlog, in a batch, of a notification, and with an id over 64 bits."""
    make, expected = FAILURES[name]
    server = Server(debug=debug, limits=Limits(max_calls=1))

    def fail() -> None:
        raise make()

    async def fail_later() -> None:
        await asyncio.sleep(0)
        raise make()

    server.add(fail_later if kind == "async" else fail, name="fail", offload="thread" if kind == "thread" else None)

    def check(reply: Any, id: int) -> None:
        assert reply["id"] == id
        error = reply["error"]
        if "message" in expected and error["code"] == -32603:
            assert f"failed, id {error['message'][-8:]}\nTraceback" in caplog.text
            error["message"] = error["message"][:-8]
        if debug and error["code"] == -32603:
            error.pop("data", None)
        assert {key: error.get(key) for key in expected} == expected
        assert "message" not in expected or error.keys() == expected.keys()

    async with raw_peers(server) as connect:
        raw = await connect()
        raw.send(notification("fail"))
        raw.send(*[request("fail", id=n) for n in (1, 2)], request("rpc.ping", id=3))
        replies = {each["id"]: each for each in await raw.receive_many(3)}
        check(replies[1], 1)
        check(replies[2], 2)
        assert replies[3]["result"] == "pong"
        first, second = await raw.ask(
            b'[{"jsonrpc":"2.0","method":"fail","id":%d},{"jsonrpc":"2.0","method":"rpc.ping","id":4}]' % 2**70
        )
        check(first, 2**70)
        assert second["result"] == "pong"


@pytest.mark.parametrize(
    ("method", "code"), [("cancelled", -32800), ("cancels_itself", -32800), ("stop", -32603), ("interrupt", -32603)]
)
async def test_awkward_handlers_are_answered(method: str, code: int) -> None:
    server = Server()

    @server
    async def cancelled() -> None:
        raise asyncio.CancelledError

    @server
    async def cancels_itself() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done"

    @server(offload="thread")
    def stop() -> Any:
        return next(iter([]))

    @server(offload="thread")
    def interrupt() -> None:
        raise KeyboardInterrupt

    async with raw_peers(server) as connect:
        raw = await connect()
        assert await raw.code(method) == code
        assert await raw.result("rpc.ping") == "pong"


async def test_a_failure_that_the_log_omits_is_called_that() -> None:
    async with memory_client(UsualServer()) as client:
        texts = []
        for _ in range(1000):
            with pytest.raises(InternalError) as caught:
                await client.crash()
            texts.append(str(caught.value))
            if "omits" in texts[-1]:
                break
    assert "see the server's log, id" in texts[0]
    assert "the server's log omits it, because there were too many errors" in texts[-1]


# -- what debug shows -----------------------------------------------------------------------------------------------


async def test_debug_shows_exceptions_and_logs_messages(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with raw_peers(UsualServer()) as connect:
            assert "data" not in (await (await connect()).reply("crash"))["error"]
        assert "receive " not in caplog.text
        async with raw_peers(UsualServer(debug=True)) as connect:
            error = (await (await connect()).reply("crash"))["error"]
    assert error["code"] == -32603
    assert (error["data"]["type"], error["data"]["message"]) == ("ValueError", "crashed as asked")
    assert "in call_crash" in error["data"]["traceback"]
    assert re.search(r'receive \d+ bytes: \{"jsonrpc":"2.0","id":1,"method":"crash"', caplog.text)
    assert "send " in caplog.text


async def test_debug_logs_the_json_and_the_sizes_of_binary_frames(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(debug=True)
    server.add(lambda data, text: data, name="first")
    data = bytes(range(256)) * 32
    with caplog.at_level(logging.INFO, "rpcstream.wire"):
        async with memory_client(server) as client:
            for _ in range(2):  # the first one goes as text
                assert await client.call("first", data, "\x7f\u2028") == data
    said = [each.getMessage() for each in caplog.records if each.name == "rpcstream.wire"]
    (received,) = [each for each in said if each.startswith("receive ") and "payloads" in each]
    assert received == (
        'receive 95 bytes, and payloads of 8192 bytes: {"jsonrpc":"2.0","id":3,"method":"first",'
        '"params":[{"$type":"bytes","data":{"$bin":0}},"\\u007f\\u2028"]}'
    )
    assert sum(each.startswith("send ") and "payloads" in each for each in said) == 2
    assert all(each.isprintable() for each in said)


@pytest.mark.parametrize("scheme", ["http", "ws"])
async def test_debug_logs_what_comes_by_http_and_websocket(scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(debug=True, token="not-for-the-log")

    @server
    async def count(n: int, ctx: Context) -> AsyncIterator[int]:
        ctx.progress("begun")
        for number in range(n):
            yield number

    with caplog.at_level(logging.INFO, "rpcstream.wire"):
        async with (
            server.listening(port=0) as address,
            AsyncClient(f"{scheme}://{address}/", token="not-for-the-log") as client,
        ):
            assert await client.call("count", 2) == [0, 1]
            await client.notify("rpc.ping")
            assert [item async for item in client.stream.count(3)] == [0, 1, 2]
            with pytest.raises(MethodNotFound):
                await client.call("none")
    said = [each.getMessage().partition(" bytes: ") for each in caplog.records if each.name == "rpcstream.wire"]
    received, sent = (
        [orjson.loads(text) for head, _, text in said if head.startswith(way)] for way in ("receive ", "send ")
    )
    methods = [each["method"] for each in received if each["method"] != "$/credit"]
    assert methods == ["count", "rpc.ping", "count", "none"]
    assert [each["result"] for each in sent if "result" in each] == [[0, 1], None]
    assert [each["params"]["value"] for each in sent if each.get("method") == "$/item"] == [0, 1, 2]
    assert [each["error"]["code"] for each in sent if "error" in each] == [-32601]
    assert all(int(head.split()[1]) == len(text) for head, _, text in said)
    assert "not-for-the-log" not in caplog.text


# -- where they run -------------------------------------------------------------------------------------------------


async def test_sync_inline_runs_in_the_loop_and_keeps_order_and_async_ones_run_at_the_same_time() -> None:
    server, both = Server(), asyncio.Barrier(2)
    server.add(lambda n: (n, threading.get_ident()), name="where")

    @server
    async def meet(number: int) -> int:
        await both.wait()
        return number

    async with raw_peers(server) as connect:
        raw = await connect()
        raw.send(*[request("where", n, id=n) for n in range(100)])
        assert [await raw.result() for _ in range(100)] == [[n, threading.get_ident()] for n in range(100)]
        raw.send(*[request("meet", n) for n in (1, 2)])
        assert {await raw.result(), await raw.result()} == {1, 2}


async def test_threads_keep_the_loop_free_are_bounded_and_see_the_context_of_the_call() -> None:
    variable = contextvars.ContextVar("variable", default="outside")
    server, release, lock = Server(threads=2), threading.Event(), threading.Lock()
    running = most = 0

    @server(offload="thread")
    def block(number: int) -> list[Any]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        assert release.wait(20)
        with lock:
            running -= 1
        return [number, variable.get()]

    variable.set("inside")
    async with raw_peers(server) as connect:
        raw, other = await connect(), await connect()
        raw.send(*[request("block", n) for n in range(6)])
        while running < 2:
            assert await other.result("rpc.ping") == "pong"
        release.set()
        assert sorted([await raw.result() for _ in range(6)]) == [[n, "inside"] for n in range(6)]
    assert most == 2


async def test_the_queue_for_threads_is_bounded_and_who_has_left_is_not_in_it() -> None:
    server, release, ran = Server(threads=1, limits=Limits(max_queue=100)), threading.Event(), []
    closed_in: list[str] = []

    @server(offload="thread")
    def block(name: str) -> str:
        ran.append(name)
        release.wait(20)
        return name

    @server(offload="thread")
    def count() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed_in.append(threading.current_thread().name)

    async with raw_peers(server) as connect:
        raw, other = await connect(), await connect()
        raw.call("count", stream=1, id="stream")
        assert (await raw.receive())["method"] == "$/item"
        other.call("block", "first", id="first")
        await until(lambda: ran)
        raw.send(*[request("block", "late", id=n, timeout=0.01) for n in range(100)])
        assert {await raw.code() for _ in range(100)} == {-32003}
        raw.send(*[request("block", "next", id=n) for n in range(100)])
        assert await other.reply("block", "too many", id="x") == {
            "jsonrpc": "2.0",
            "id": "x",
            "error": {"code": -32002, "message": "Server busy", "data": {"limit": 100}},
        }
        raw.cancel("stream")  # a generator is closed in a thread also when the queue is full
        release.set()
        assert await other.result() == "first"
        replies = await raw.receive_many(101)
        assert [each["error"]["code"] for each in replies if each["id"] == "stream"] == [-32800]
        await until(lambda: closed_in)
    assert ran == ["first"] + ["next"] * 100
    assert [name.startswith("rpcstream-") for name in closed_in] == [True]


async def test_a_plain_wrapper_around_an_async_function() -> None:
    server = Server()

    def logged(function: Any) -> Any:
        @wraps(function)
        def wrapper(*args: Any) -> Any:
            return "cached" if args == ("c",) else function(*args)

        return wrapper

    @server
    @logged
    async def later(text: str) -> str:
        await asyncio.sleep(0)
        return text

    async with memory_client(server) as client:
        assert [await client.later("x"), await client.later("c")] == ["x", "cached"]


async def test_processes(workers: ModuleType) -> None:
    server = Server(processes=2)
    names = ("process_id", "double", "fail", "odd_error", "own_error", "odd_result", "stop", "slow", "die")
    for name in names:
        server.add(getattr(workers, name), offload="process")
    async with memory_client(server) as client:
        slow = client.submit.slow(0.3)
        assert await client.process_id() != os.getpid()
        assert (await client.double(np.ones(1))).tolist() == [2]
        for name, params, code in (
            ("fail", [7], 7),
            ("own_error", [], 404),
            *[(each, [], -32603) for each in ("odd_error", "odd_result", "stop")],
        ):
            with pytest.raises(RpcError) as caught:
                await client.call(name, *params)
            assert caught.value.code == code
        assert await slow == "slept"
        with pytest.raises(InternalError):
            await client.die()
        assert await client.process_id() > 0
    server = Server()

    def local() -> None: ...

    local.__qualname__ = "local"
    server.add(local, offload="process")
    with pytest.raises(RegistrationError, match="local: offload='process'"):
        async with server.listening(port=0):
            pass


# -- time -----------------------------------------------------------------------------------------------------------


async def test_time_outs_of_method_and_caller() -> None:
    server, release, ended = UsualServer(), threading.Event(), []

    @server(timeout=0.05)
    async def forever() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("forever")

    @server
    async def own() -> None:
        raise TimeoutError("its own")

    @server(timeout=0.05, offload="thread")
    def block() -> None:
        release.wait(20)

    async with raw_peers(server) as connect:
        raw = await connect()
        assert (await raw.reply("forever"))["error"]["data"] == {"method": "forever", "timeout": 0.05}
        assert ended == ["forever"]
        assert await raw.code("block") == -32003
        release.set()
        assert await raw.code("wait", timeout=0.05) == -32003
        for timeout in (5, None):
            assert await raw.result("echo_after", "done", 0, timeout=timeout) == "done"
        assert await raw.code("own") == -32603


async def test_a_lost_connection_cancels_its_calls_but_not_its_notifications() -> None:
    server = UsualServer()
    async with raw_peers(server) as connect:
        raw = await connect()
        raw.send(request("wait", "call"), notification("wait", token="notification"))
        await until(lambda: len(server.begun) == 2)
        drop_connections(server)
        await until(lambda: server.ended)
        server.release()
        await until(lambda: len(server.ended) == 2)
    assert server.ended == [("call", "CancelledError"), ("notification", "whole")]


async def test_what_a_detached_handler_says_to_nobody_does_not_pile_up() -> None:
    server, gone, held = Server(), asyncio.Event(), []

    @server(detached=True)
    async def report(ctx: Context) -> None:
        held.append(0)
        await gone.wait()
        for _ in range(2000):
            ctx.progress("x" * 10_000)
            await asyncio.sleep(0)
        held.append(tracemalloc.get_traced_memory()[0])

    async with raw_peers(server) as connect:
        (await connect()).call("report")
        await until(lambda: held)
        drop_connections(server)
        tracemalloc.start()
        gone.set()
        await until(lambda: len(held) == 2)
        tracemalloc.stop()
    assert held[1] < 5_000_000


async def test_half_closed_connections_get_their_answers() -> None:
    async with raw_peers(UsualServer()) as connect:
        raw = await connect()
        raw.write(b"\n".join(orjson.dumps(request("echo_after", "done", 0.05, id=n)) for n in (1, 2)))
        raw.end()
        assert [each["result"] for each in await raw.rest()] == ["done", "done"]


# -- the order of ordered methods ------------------------------------------------------------------------------------


async def test_a_batch_has_its_place_in_the_order_and_what_never_begins_gives_its_turn_back() -> None:
    server, order = Server(limits=Limits(max_calls=1)), []

    @server(ordered=True)
    async def note(name: str) -> str:
        order.append(name)
        await asyncio.sleep(0)
        return name

    @server(ordered=True)
    async def total(items: AsyncIterator[int]) -> int:
        return sum([item async for item in items])

    def upload(id: int) -> dict[str, Any]:
        return request("total", {"$type": "stream", "id": str(id)}, id=id)

    async with raw_peers(server) as connect:
        raw = await connect()
        raw.send([request("note", "a"), request("note", "b", id=2)], request("note", "c", id=3))
        assert [each["result"] for each in await raw.receive()] == ["a", "b"]
        assert await raw.result() == "c"
        raw.send(upload(1), notification("$/cancelRequest", id=1))
        raw.send([upload(2), upload(3), *[notification("$/cancelRequest", id=n) for n in (3, 2)]])
        replies = [each for each in await raw.receive_many(2) if isinstance(each, list) or "id" in each]
        while len(replies) < 2:
            each = await raw.receive()
            replies += [each] if isinstance(each, list) or "id" in each else []
        flat = [each for reply in replies for each in (reply if isinstance(reply, list) else [reply])]
        assert {each["id"]: each["error"]["code"] for each in flat} == dict.fromkeys((1, 2, 3), -32800)
        assert await raw.result("total", [1, 2], id=4) == 3
    assert order == ["a", "b", "c"]


# -- the end of servers ---------------------------------------------------------------------------------------------


def test_stopping_twice_is_stopping_once() -> None:
    server, stopped = Server(), threading.Event()

    @server
    async def work() -> str:
        server.stop()
        stopped.set()
        await asyncio.sleep(0.2)
        return "done"

    with contextlib.ExitStack() as stack:
        with serve_in_thread(server) as address:
            future = stack.enter_context(Client(address)).submit.work()
            assert stopped.wait(20)
        # Leaving the block has asked the server to stop once more, while the call was in flight.
        assert future.result(20) == "done"


# -- discovery ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Scene:
    image: NDArray[np.uint8]
    when: datetime.datetime | None = None
    name: str = "none"


async def test_discover_and_stats() -> None:
    server = Server(title="the service", version="1.2")

    @server
    def add(a: int, b: Annotated[int, "more"] = 2, *rest: int, flag: bool) -> float:
        """Adds.

        At length.
        """
        return 0

    @server
    def look(scene: Scene, others: list[Scene] | bytes = b"") -> int:
        return 0

    async with raw_peers(server) as connect:
        raw = await connect()
        document = await raw.result("rpc.discover")
        await raw.reply("nothing")
        stats = await raw.result("rpc.stats")
    assert (stats["requests"], stats["errors"], stats["connections"]) == (3, 1, 1)
    assert document["openrpc"] == "1.4.1"
    assert document["info"] == {"title": "the service", "version": "1.2"}
    methods = {method["name"]: method for method in document["methods"]}
    own = [f"rpc.{name}" for name in ("discover", "hello", "ping", "stats", "subscribe", "unsubscribe")]
    assert list(methods) == ["add", "look", *own]
    described = methods["add"]
    assert (described["summary"], described["description"]) == ("Adds.", "At length.")
    assert described["paramStructure"] == "by-name"
    found = [(each["name"], each["required"]) for each in described["params"]]
    assert found == [("a", True), ("flag", True), ("b", False), ("rest", False)]
    assert described["params"][0]["schema"] == {"type": "integer"}
    assert described["params"][1]["x-keyword"] is True
    assert described["params"][2]["schema"] == {"type": "integer", "description": "more", "default": 2}
    assert described["params"][3]["x-rest"] == "positional"
    assert described["result"] == {"name": "result", "schema": {"type": "number"}}
    text, schemas = orjson.dumps(document).decode(), document["components"]["schemas"]
    assert "$defs" not in text
    assert set(re.findall(r'"\$ref":"#/components/schemas/([^"]*)"', text)) <= set(schemas)
    assert methods["look"]["params"][0]["schema"] == {"$ref": "#/components/schemas/Scene"}
    properties = schemas["Scene"]["properties"]
    assert properties["name"] == {"type": "string", "default": "none"}
    date = {"type": "string", "x-format": "date-time"}
    assert properties["when"] == {"anyOf": [date, {"type": "null"}], "default": None}
