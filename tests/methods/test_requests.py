"""Requests and replies as bytes: ids that are repeated as they came, what is counted, and what has a limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rpcstream import Limits, RpcError
from rpcstream.testing import FakeTimeLoop

from ..kit import TRANSPORTS, UsualServer, batch, logged, notification, raw_peers, request, until

DEEP = b"[" * 10 + b"]" * 10


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":1.50,"method":"add","params":[1,2]}', b'{"jsonrpc":"2.0","id":1.5,"result":3}'),
        (b'{"jsonrpc":"2.0","id":18446744073709551616,"method":"hello"}', b'"id":null,"error":{"code":-32600'),
        # What is nested too deep: of a batch the first id that there is.
        (b'{"jsonrpc":"2.0","id":1,"method":"echo","params":[%b]}' % DEEP, b'"id":1,"error":{"code":-32600'),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"echo","params":[%b]}' % DEEP, b'"id":1.5,"error":{"code":-32600'),
        (
            b'[{"jsonrpc":"2.0","id":7,"method":"echo","params":[%b]},{"jsonrpc":"2.0","id":8,"method":"x"}]' % DEEP,
            b'[{"jsonrpc":"2.0","id":7,"error":{"code":-32600',
        ),
    ],
)
async def test_ids_are_repeated_as_they_came(sent: bytes, expected: bytes) -> None:
    async with raw_peers(UsualServer(limits=Limits(max_depth=8))) as connect:
        raw = await connect()
        raw.send(sent)
        assert expected in (await raw.receive_bytes() or b"")


async def test_what_is_collected_of_generators_has_a_limit_for_one_connection_and_for_all() -> None:
    server, go = UsualServer(limits=Limits(max_message_size=100_000, max_held_total=1_000_000)), asyncio.Event()

    @server
    async def fill() -> AsyncIterator[str]:
        yield "x" * 90_000
        server.noted.append("full")
        await go.wait()

    async with raw_peers(server) as connect:
        raw, other = await connect(), await connect()
        for full in (1, 2):
            raw.call("fill", id=full)
            await until(lambda full=full: len(server.noted) == full)  # type: ignore[misc]
        for connection, limit in ((raw, 200_000), (other, 250_000)):
            error = (await connection.reply("fill", id=3))["error"]
            assert (error["code"], error["data"]["limit"]) == (-32002, limit)
        go.set()
        assert [len((await raw.reply())["result"][0]) for _ in range(2)] == [90_000, 90_000]
        for _ in range(5):  # what was sent counts no longer
            assert len(await raw.result("count", 15_000)) == 15_000
            assert len(await other.result("fill")) == 1


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
            for method in ("fail_at_length", "crash", "raises_timeout"):
                assert await raw.code(method) == -32603
    said = lines.matching("notification of '(fail|mmm)")
    assert [len(line) < 800 and "it came from 127.0.0.1" in line for line in said] == [True, True]
    assert lines.matching("an error cannot be sent as it is: it is too large")
    assert server.stats()["handler_failures"] == 2


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
