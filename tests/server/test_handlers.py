"""Handlers of every kind on a real connection: where they run, what they return, how they fail."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
import os
import re
import socket
import struct
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from rpcstream import AsyncClient, ConnectFailed, Context, InternalError, MethodNotFound, RpcError, Server, Shape
from rpcstream.observe.limited_log import EACH


async def ask(server: Server, connect: Any, method: str, params: Any = None) -> Any:
    async with server.listening(port=0) as address:
        raw = await connect(address)
        return await raw.call(method, params)


# -- results --------------------------------------------------------------------------------------------------------


async def test_return_hints_are_honoured(connect: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()

    @server
    def right() -> float:
        return 1

    @server
    def scalar() -> float:
        return np.float32(0.5)  # type: ignore[return-value]

    @server
    def wrong() -> int:
        return "x"  # type: ignore[return-value]

    @server(check_result=False)
    def unchecked() -> int:
        return "x"  # type: ignore[return-value]

    @server
    def array() -> NDArray[np.float32]:
        return np.zeros(2, np.float64)  # type: ignore[return-value]

    @server
    def shaped() -> Annotated[NDArray[np.float64], Shape(3)]:
        return np.zeros(2)

    @server
    def dates() -> list[datetime.date]:
        return [datetime.date(2026, 1, 2)]

    @server
    def nothing() -> None: ...

    async with server.listening(port=0) as address:
        raw = await connect(address)
        assert (await raw.call("right"))["result"] == 1.0
        assert (await raw.call("scalar"))["result"] == 0.5
        assert (await raw.call("unchecked"))["result"] == "x"
        assert (await raw.call("dates"))["result"] == ["2026-01-02"]
        assert (await raw.call("nothing"))["result"] is None
        for name in ("wrong", "array", "shaped"):
            caplog.clear()
            error = (await raw.call(name))["error"]
            what = "the result does not fit the return hint"
            found = re.fullmatch(rf"Internal error: {what}; see the server's log, id ([0-9a-f]{{8}})", error["message"])
            assert found is not None
            assert "data" not in error
            assert f"method '{name}' failed: {what}, id {found[1]}\n" in caplog.text
            assert "expected" in caplog.text, "the log has the details"


async def test_what_cannot_be_encoded_is_an_internal_error(connect: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.add(lambda: object(), name="opaque")
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    server.add(lambda: deep, name="deep")
    circle: list[Any] = []
    circle.append(circle)
    server.add(lambda: circle, name="circle")
    async with server.listening(port=0) as address:
        raw = await connect(address)
        message = (await raw.call("opaque"))["error"]["message"]
        assert re.fullmatch(
            r"Internal error: the result cannot be encoded; see the server's log, id [0-9a-f]{8}", message
        )
        assert "object" in caplog.text
        assert (await raw.call("circle"))["error"]["code"] == -32603
        reply = await raw.call("deep")
        assert "result" in reply or reply["error"]["code"] == -32603
        assert (await raw.call("rpc.ping"))["result"] == "pong"


async def test_generators_are_returned_as_an_array(connect: Any) -> None:
    server = Server()

    @server
    def count(n: int) -> Iterator[int]:
        yield from range(n)

    @server
    async def slowly(n: int) -> AsyncIterator[int]:
        for value in range(n):
            await asyncio.sleep(0)
            yield value

    async with server.listening(port=0) as address:
        raw = await connect(address)
        assert (await raw.call("count", [3]))["result"] == [0, 1, 2]
        assert (await raw.call("slowly", [3]))["result"] == [0, 1, 2]


# -- failures -------------------------------------------------------------------------------------------------------


def failing() -> Server:
    server = Server()

    @server
    def boom() -> None:
        raise ValueError("the secret")

    @server
    async def boom_later() -> None:
        await asyncio.sleep(0)
        raise ValueError("the secret")

    @server
    def leave() -> None:
        sys.exit("the secret")

    @server
    async def cancel() -> None:
        raise asyncio.CancelledError

    @server
    def own() -> None:
        raise RpcError(42, "mine", {"a": np.float32(1)})

    @server
    def known() -> None:
        raise MethodNotFound("no such thing")

    @server
    def nested() -> None:
        error = RpcError(42, "the secret of another server")
        error.address = "10.0.0.1:8545"
        raise error

    @server
    def unreachable() -> None:
        raise ConnectFailed("the secret", address="10.0.0.1:8545")

    @server
    def bad_data() -> None:
        raise RpcError(43, "mine", object())

    return server


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("boom", {"code": -32603, "message": "Internal error: see the server's log, id "}),
        ("boom_later", {"code": -32603, "message": "Internal error: see the server's log, id "}),
        ("leave", {"code": -32603, "message": "Internal error: see the server's log, id "}),
        ("cancel", {"code": -32800, "message": "Cancelled"}),
        ("own", {"code": 42, "message": "mine", "data": {"a": 1.0}}),
        ("known", {"code": -32601, "message": "no such thing"}),
        ("nested", {"code": -32603, "message": "Internal error: see the server's log, id "}),
        ("unreachable", {"code": -32603, "message": "Internal error: see the server's log, id "}),
        ("bad_data", {"code": 43, "message": "mine"}),
    ],
)
async def test_failures_say_what_they_mean_to_and_no_more(
    connect: Any, method: str, error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = failing()
    async with server.listening(port=0) as address:
        raw = await connect(address)
        assert without_id(await raw.call(method), caplog) == {"jsonrpc": "2.0", "id": 1, "error": error}
        batch = [{"jsonrpc": "2.0", "method": method, "id": 2}, {"jsonrpc": "2.0", "method": "rpc.ping", "id": 3}]
        replies = await raw.ask(orjson.dumps(batch))
        assert [without_id(reply, caplog) for reply in replies] == [
            {"jsonrpc": "2.0", "id": 2, "error": error},
            {"jsonrpc": "2.0", "id": 3, "result": "pong"},
        ]
        await raw.send(orjson.dumps({"jsonrpc": "2.0", "method": method}) + b"\n")
        assert (await raw.call("rpc.ping"))["result"] == "pong"
    if error["code"] == -32603:
        assert "Traceback" in caplog.text


def without_id(reply: Any, caplog: pytest.LogCaptureFixture) -> Any:
    """The reply; of an internal error without the id, which must be in the log, too."""
    if "error" not in reply or reply["error"]["code"] != -32603:
        return reply
    message, failure_id = reply["error"]["message"][:-8], reply["error"]["message"][-8:]
    assert f"failed, id {failure_id}\nTraceback" in caplog.text
    return {**reply, "error": {**reply["error"], "message": message}}


async def test_items_are_told_apart_from_exceptions_as_results_are(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()

    @server
    def wrong() -> Iterator[int]:
        yield 1
        yield "two"  # type: ignore[misc]

    @server
    def opaque() -> Iterator[Any]:
        yield object()

    async with server.listening(port=0) as address, AsyncClient(address) as client:
        for method, what in (("wrong", "does not fit the return hint"), ("opaque", "cannot be encoded")):
            text = rf"Internal error: (an item|the result) {what}; see the server's log, id [0-9a-f]{{8}} "
            with pytest.raises(InternalError, match=text):
                [item async for item in client.stream(method)]
            with pytest.raises(InternalError, match=text):
                await client.call(method)


async def test_a_failure_that_the_log_omits_is_called_that(caplog: pytest.LogCaptureFixture) -> None:
    server = failing()
    async with server.listening(port=0) as address, AsyncClient(address) as client:
        for _ in range(EACH):
            with pytest.raises(InternalError, match="see the server's log, id"):
                await client.boom()
        with pytest.raises(InternalError, match="the server's log omits it, because there were too many errors"):
            await client.boom()


async def test_debug_shows_exceptions_and_logs_messages(connect: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = Server(debug=True)

    @server
    def boom() -> None:
        raise ValueError("the reason")

    with caplog.at_level(logging.INFO, "rpcstream.wire"):
        error = (await ask(server, connect, "boom"))["error"]
    assert error["code"] == -32603
    assert (error["data"]["type"], error["data"]["message"]) == ("ValueError", "the reason")
    assert "in boom" in error["data"]["traceback"]
    assert 'receive 54 bytes: {"jsonrpc":"2.0","method":"boom"' in caplog.text
    assert "send " in caplog.text


async def test_debug_logs_the_json_and_the_sizes_of_binary_frames(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(debug=True)
    server.add(lambda data, text: data, name="first")
    data = bytes(range(256)) * 32
    with caplog.at_level(logging.INFO, "rpcstream.wire"):
        async with server.listening(port=0) as address, AsyncClient(address) as client:
            for _ in range(2):  # the first one goes as text
                assert await client.call("first", data, "\x7f\u2028") == data
    said = [each.getMessage() for each in caplog.records if each.name == "rpcstream.wire"]
    (received,) = [each for each in said if each.startswith("receive ") and "payloads" in each]
    assert received == (
        'receive 95 bytes, and payloads of 8192 bytes: {"jsonrpc":"2.0","id":3,"method":"first",'
        '"params":[{"$type":"bytes","data":{"$bin":0}},"\\u007f\\u2028"]}'
    )
    sent = [each for each in said if each.startswith("send ") and "payloads" in each]
    assert len(sent) == 2
    assert sent[1].startswith("send 69 bytes, and payloads of 8192 bytes: {")
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
    received = [orjson.loads(text) for head, _, text in said if head.startswith("receive ")]
    sent = [orjson.loads(text) for head, _, text in said if head.startswith("send ")]
    assert [each["method"] for each in received if each["method"] != "$/credit"] == [
        "count",
        "rpc.ping",
        "count",
        "none",
    ]
    assert [each["result"] for each in sent if "result" in each] == [[0, 1], None]
    assert [each["params"]["value"] for each in sent if each.get("method") == "$/item"] == [0, 1, 2]
    assert [each["error"]["code"] for each in sent if "error" in each] == [-32601]
    assert all(int(head.split()[1]) == len(text) for head, _, text in said)
    assert "not-for-the-log" not in caplog.text


async def test_without_debug_messages_are_not_logged(connect: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        await ask(Server(), connect, "rpc.ping", {})
    assert "rpc.ping" not in caplog.text


# -- where they run -------------------------------------------------------------------------------------------------


async def test_sync_inline_runs_in_the_loop_and_keeps_order(connect: Any) -> None:
    server = Server()
    server.add(lambda n: (n, threading.get_ident()), name="where")
    async with server.listening(port=0) as address:
        raw = await connect(address)
        for number in range(100):
            await raw.send(
                orjson.dumps({"jsonrpc": "2.0", "method": "where", "params": [number], "id": number}) + b"\n"
            )
        replies = [await raw.reply() for _ in range(100)]
    assert [reply["id"] for reply in replies] == list(range(100))
    assert {reply["result"][1] for reply in replies} == {threading.get_ident()}


async def test_async_handlers_run_at_the_same_time_on_one_connection(connect: Any) -> None:
    server = Server()
    both = asyncio.Barrier(2)

    @server
    async def meet(number: int) -> int:
        await both.wait()
        return number

    async with server.listening(port=0) as address:
        raw = await connect(address)
        for number in (1, 2):
            await raw.send(orjson.dumps({"jsonrpc": "2.0", "method": "meet", "params": [number], "id": number}) + b"\n")
        assert {(await raw.reply())["result"] for _ in range(2)} == {1, 2}


async def test_threads_keep_the_loop_free_and_are_bounded(connect: Any) -> None:
    server = Server(threads=2)
    release = threading.Event()
    lock = threading.Lock()
    running = most = 0

    @server(offload="thread")
    def block(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        assert release.wait(20)
        with lock:
            running -= 1
        return number

    async with server.listening(port=0) as address:
        raw, other = await connect(address), await connect(address)
        for number in range(6):
            await raw.send(
                orjson.dumps({"jsonrpc": "2.0", "method": "block", "params": [number], "id": number}) + b"\n"
            )
        while running < 2:
            assert (await other.call("rpc.ping"))["result"] == "pong"
        release.set()
        assert {(await raw.reply())["result"] for _ in range(6)} == set(range(6))
    assert most == 2


async def test_threads_see_the_context_of_the_call(connect: Any) -> None:
    import contextvars

    variable = contextvars.ContextVar("variable", default="outside")
    server = Server()
    server.add(lambda: variable.get(), name="read", offload="thread")
    variable.set("inside")
    assert (await ask(server, connect, "read"))["result"] == "inside"


async def test_processes(connect: Any, workers: Any) -> None:
    server = Server(processes=1)
    for function in (workers.process_id, workers.double, workers.fail):
        server.add(function, offload="process")
    values = {"$type": "ndarray", "dtype": "<f8", "shape": [1], "data": "AAAAAAAA8D8="}
    async with server.listening(port=0) as address:
        raw = await connect(address)
        first = (await raw.call("process_id"))["result"]
        assert first != os.getpid()
        assert (await raw.call("process_id"))["result"] == first
        assert (await raw.call("double", [values]))["result"]["data"] == "AAAAAAAAAEA="
        assert (await raw.call("fail", [7]))["error"] == {"code": 7, "message": "from far away", "data": {"code": 7}}


async def test_a_worker_that_dies_fails_its_call_and_is_replaced(connect: Any, workers: Any) -> None:
    server = Server(processes=1)
    server.add(workers.die, offload="process")
    server.add(workers.process_id, offload="process")
    async with server.listening(port=0) as address:
        raw = await connect(address)
        assert (await raw.call("die"))["error"]["code"] == -32603
        assert (await raw.call("process_id"))["result"] > 0


async def test_a_function_that_another_process_cannot_import_is_refused_at_the_start() -> None:
    from rpcstream import RegistrationError

    server = Server()

    def local() -> None: ...

    local.__qualname__ = "local"
    server.add(local, offload="process")
    with pytest.raises(RegistrationError, match="local: offload='process'"):
        async with server.listening(port=0):
            pass


# -- time -----------------------------------------------------------------------------------------------------------


async def test_time_outs_of_method_and_caller(connect: Any) -> None:
    server = Server()
    ended: list[str] = []
    release = threading.Event()

    @server(timeout=0.05)
    async def forever() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append("forever")

    @server
    async def patient(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @server
    async def own() -> None:
        raise TimeoutError("its own")

    @server(timeout=0.05, offload="thread")
    def block() -> None:
        release.wait(20)

    async with server.listening(port=0) as address:
        raw = await connect(address)
        assert (await raw.call("forever"))["error"]["data"] == {"method": "forever", "timeout": 0.05}
        assert ended == ["forever"]
        assert (await raw.call("block"))["error"]["code"] == -32003
        release.set()
        line = b'{"jsonrpc":"2.0","method":"patient","params":[%d],"timeout":%s,"id":1}'
        assert (await raw.ask(line % (1000, b"0.05")))["error"]["code"] == -32003
        assert (await raw.ask(line % (0, b"5")))["result"] == "done"
        assert (await raw.ask(line % (0, b"null")))["result"] == "done"
        assert (await raw.call("own"))["error"]["code"] == -32603


async def test_a_lost_connection_cancels_its_calls_but_not_its_notifications(connect: Any) -> None:
    server = Server()
    cancelled, finished = asyncio.Event(), asyncio.Event()
    started = 0

    @server
    async def work(name: str) -> None:
        nonlocal started
        started += 1
        try:
            await asyncio.sleep(1000 if name == "call" else 0.05)
            finished.set()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send('{"jsonrpc":"2.0","method":"work","params":["call"],"id":1}\n')
        await raw.send('{"jsonrpc":"2.0","method":"work","params":["notification"]}\n')
        while started < 2:
            await asyncio.sleep(0)
        # Reset rather than closed: a close alone could be the end of the requests, whose answers are still read.
        linger = struct.pack("ii", 1, 0)
        raw.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        raw.writer.transport.abort()
        async with asyncio.timeout(20):
            await cancelled.wait()
            await finished.wait()


async def test_half_closed_connections_get_their_answers(connect: Any) -> None:
    server = Server()

    @server
    async def work() -> str:
        await asyncio.sleep(0.05)
        return "done"

    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send('{"jsonrpc":"2.0","method":"work","id":1}\n{"jsonrpc":"2.0","method":"work","id":2}')
        raw.end()
        assert [reply["result"] for reply in await raw.rest()] == ["done", "done"]


# -- discovery ------------------------------------------------------------------------------------------------------


async def test_discover(connect: Any) -> None:
    server = Server(title="the service", version="1.2")

    @server
    def add(a: int, b: Annotated[int, "more"] = 2, *rest: int, flag: bool) -> float:
        """Adds.

        At length.
        """
        return 0

    @server
    def vectorize(photo: NDArray[np.float32] | None = None) -> NDArray[np.float32]: ...  # type: ignore[empty-body]

    document = (await ask(server, connect, "rpc.discover"))["result"]
    assert document["openrpc"] == "1.4.1"
    assert document["info"] == {"title": "the service", "version": "1.2"}
    methods = {method["name"]: method for method in document["methods"]}
    own = [f"rpc.{name}" for name in ("discover", "hello", "ping", "stats", "subscribe", "unsubscribe")]
    assert list(methods) == ["add", *own, "vectorize"]
    described = methods["add"]
    assert (described["summary"], described["description"]) == ("Adds.", "At length.")
    assert described["paramStructure"] == "by-name"
    assert [parameter["name"] for parameter in described["params"]] == ["a", "flag", "b", "rest"]
    assert [parameter["required"] for parameter in described["params"]] == [True, True, False, False]
    assert described["params"][0]["schema"] == {"type": "integer"}
    assert described["params"][1]["x-keyword"] is True
    assert described["params"][2]["schema"] == {"type": "integer", "description": "more", "default": 2}
    assert described["params"][3]["x-rest"] == "positional"
    assert described["result"] == {"name": "result", "schema": {"type": "number"}}


@dataclasses.dataclass
class Scene:
    image: NDArray[np.uint8]
    when: datetime.datetime | None = None
    name: str = "none"


async def test_discover_refers_to_classes_where_they_are(connect: Any) -> None:
    server = Server()

    @server
    def look(scene: Scene, others: list[Scene] | bytes = b"") -> int:
        return 0

    document = (await ask(server, connect, "rpc.discover"))["result"]
    text = orjson.dumps(document).decode()
    (look_method,) = [method for method in document["methods"] if method["name"] == "look"]
    assert "$defs" not in text
    for reference in re.findall(r'"\$ref":"#/components/schemas/([^"]*)"', text):
        assert reference in document["components"]["schemas"]
    assert look_method["params"][0]["schema"] == {"$ref": "#/components/schemas/Scene"}
    properties = document["components"]["schemas"]["Scene"]["properties"]
    assert properties["name"] == {"type": "string", "default": "none"}
    date = {"type": "string", "x-format": "date-time"}
    assert properties["when"] == {"anyOf": [date, {"type": "null"}], "default": None}


async def test_stats_count(connect: Any) -> None:
    server = Server()
    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.call("rpc.ping")
        await raw.call("nothing")
        stats = (await raw.call("rpc.stats"))["result"]
    assert (stats["requests"], stats["errors"], stats["connections"]) == (3, 1, 1)
