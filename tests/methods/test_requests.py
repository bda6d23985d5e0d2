"""Requests and replies as bytes: what the specification leaves open, what is counted, and what has a limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from rpcstream import Context, Limits, RpcError
from rpcstream.testing import FakeTimeLoop, memory_client

from ..kit import TRANSPORTS, UsualServer, batch, logged, notification, raw_peers, request, until

DEEP = b"[" * 10 + b"]" * 10

#: What is sent, and what is answered: a result, or the id and the code of an error with a word of its reason.
VECTORS: list[tuple[bytes, bytes]] = [
    (b'{"id":1,"method":"add","params":[1,2]}', b'"id":1,"error":{"code":-32600 missing'),
    (b'{"jsonrpc":"1.0","id":1,"method":"add","params":[1,2]}', b'"id":1,"error":{"code":-32600 must be the string'),
    (b'{"jsonrpc":"2.0","id":1.00,"method":"add","params":[1,2]}', b'{"jsonrpc":"2.0","id":1.00,"result":3}'),
    (b'{"jsonrpc":"2.0","id":null,"method":"add","params":[1,2]}', b'{"jsonrpc":"2.0","id":null,"result":3}'),
    *(
        (b'{"jsonrpc":"2.0","id":%b,"method":"add","params":[1,2]}' % each, b'"id":null,"error":{"code":-32600 id')
        for each in (b"[1]", b"true", b"{}")
    ),
    (b'{"jsonrpc":"2.0","method":5}', b'"id":null,"error":{"code":-32600 method'),
    (b'{"jsonrpc":"2.0","method":"add","params":5}', b'"id":null,"error":{"code":-32600 params'),
    # What is nested too deep: of a batch the first id that there is, and no id that is not exact.
    (b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[%b]}' % DEEP, b'"id":1,"error":{"code":-32600 max_depth'),
    (b'{"jsonrpc":"2.0","id":1.5,"method":"echo","params":[%b]}' % DEEP, b'"id":null,"error":{"code":-32600 max_depth'),
    (
        b'[{"jsonrpc":"2.0","id":7,"method":"echo","params":[%b]},{"jsonrpc":"2.0","id":8,"method":"rpc.ping"}]' % DEEP,
        b'[{"jsonrpc":"2.0","id":7,"error":{"code":-32600 max_depth',
    ),
    (b'{"jsonrpc":"2.0","id":2,"method":"count","params":[2],"stream":"x"}', b'"id":2,"error":{"code":-32600 items'),
    (b'{"jsonrpc":"2.0","id":2,"method":"count","params":[2],"stream":-1}', b'"id":2,"error":{"code":-32600 items'),
]


async def test_vectors() -> None:
    async with TRANSPORTS["memory"].serving(UsualServer(limits=Limits(max_depth=8)), None) as there:
        raw = await there.raw()
        for sent, expected in VECTORS:
            raw.send(sent)
            found = await raw.receive_bytes()
            assert found is not None
            for part in expected.split(b" ") if b"-32" in expected else [expected]:
                assert part in found, sent
        raw.close()


async def test_calls_that_are_cancelled_before_they_begin_are_counted_and_answered() -> None:
    server = UsualServer(limits=Limits(max_calls=1))
    async with raw_peers(server) as connect:
        raw = await connect()
        raw.call("wait", id="first")
        await until(lambda: server.begun)
        raw.send(request("wait", id="next"), batch(request("wait", id="a"), request("add", 1, 2, id="b")))
        for each in ("next", "a"):
            raw.cancel(each)
        server.release()
        assert await raw.result() is None
        assert (await raw.reply())["error"]["code"] == -32800
        first, second = await raw.receive()
        assert (first["error"]["code"], second["result"]) == (-32800, 3)
        assert server.stats()["cancelled"] == 2
    assert server.begun == [None]


async def test_what_is_collected_of_generators_has_a_limit_for_one_connection_and_for_all() -> None:
    server, go = UsualServer(limits=Limits(max_message_size=100_000, max_collected=250_000)), asyncio.Event()

    @server
    async def fill() -> AsyncIterator[str]:
        yield "x" * 90_000
        server.noted.append("full")
        await go.wait()

    async with raw_peers(server) as connect:
        raw, other = await connect(), await connect()
        for full, connection in enumerate((raw, raw), 1):
            connection.call("fill", id=full)
            await until(lambda full=full: len(server.noted) == full)  # type: ignore[misc]
        for connection, limit in ((raw, 200_000), (other, 250_000)):
            error = (await connection.reply("fill", id=3))["error"]
            assert (error["code"], error["data"]["limit"]) == (-32002, limit)
        go.set()
        assert [len((await raw.reply())["result"][0]) for _ in range(2)] == [90_000, 90_000]
        for _ in range(5):  # what was sent counts no longer
            assert len(await raw.result("count", 15_000)) == 15_000
            assert len(await other.result("fill")) == 1


def test_a_member_of_a_batch_that_waited_too_long_is_not_begun() -> None:
    server = UsualServer(limits=Limits(max_calls=1))
    server.add(server.call_note, name="note_in_thread", offload="thread")

    async def run() -> None:
        async with TRANSPORTS["memory"].serving(server, None) as there:
            raw = await there.raw()
            raw.send(batch(request("wait", id=1), request("note_in_thread", "late", id=2, timeout=1)))
            await until(lambda: server.begun)
            await asyncio.sleep(2)
            server.release()
            assert [each.get("error", {}).get("code") for each in await raw.receive()] == [None, -32003]
            raw.close()

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(run())
    assert server.noted == []


async def test_progress_of_a_call_that_is_over_is_not_sent() -> None:
    server, kept = UsualServer(), []

    @server
    def keep(ctx: Context) -> None:
        kept.append(ctx)
        ctx.progress("in time")

    async with raw_peers(server) as connect:
        raw = await connect()
        raw.call("keep")
        assert (await raw.receive())["method"] == "$/progress"
        assert await raw.result() is None
        kept[0].progress("late")
        await raw.silence()


async def test_what_errors_say_is_bounded_and_failures_are_counted() -> None:
    server = UsualServer(limits=Limits(max_message_size=20_000))

    @server(timeout=60)
    async def raises_timeout() -> None:
        raise TimeoutError

    @server
    def fail_at_length() -> None:
        raise RpcError(5, "m" * 5000, "d" * 30_000)

    with logged("rpcstream.server") as lines:
        async with raw_peers(server) as connect:
            raw = await connect()
            raw.send(notification("fail", message="x" * 10_000), notification("m" * 10_000))
            error = (await raw.reply("fail_at_length"))["error"]
            assert error == {"code": 5, "message": "m" * 1000}
            for method in ("crash", "raises_timeout"):
                assert await raw.code(method) == -32603
    for line in lines.matching("notification of '(fail|mmm)"):
        assert len(line) < 400
        assert "it came from 127.0.0.1" in line
    assert len(lines.matching("notification of '(fail|mmm)")) == 2
    assert lines.matching("the data of an error is too large to be sent")
    assert server.stats()["handler_failures"] == 2


async def test_an_array_that_was_returned_may_be_changed_before_its_reply_is_written() -> None:
    server, array = UsualServer(), np.zeros(300_000)

    @server
    async def give() -> np.ndarray[Any, Any]:
        array.fill(0)
        asyncio.get_running_loop().call_soon(array.fill, 9)
        return array

    async with memory_client(server) as client:
        for _ in range(2):  # the first one goes as text
            assert not (await client.give()).any()
