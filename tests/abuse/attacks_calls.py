"""Attacks by calls that are cheap to make: endless generators, slow batches, bad notifications, large batches."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from rpcstream import Logs, Server

from ..kit.http import post
from .harness import KIB, MIB, RawConnection, ServerUnderAttack, attack, limits, request, spin

SLOW = 0.005
ENDLESS = 10**12


def generators() -> Server:
    server = Server()
    total = 0

    def numbers(to: int) -> Iterator[int]:
        nonlocal total
        number = 0
        while number < to:
            total += 1
            yield number
            number += 1

    @server
    def count(to: int) -> Iterator[int]:
        yield from numbers(to)

    @server
    async def count_async(to: int) -> AsyncIterator[int]:
        for number in numbers(to):
            yield number

    @server(offload="thread")
    def count_in_thread(to: int) -> Iterator[int]:
        yield from numbers(to)

    @server
    def made() -> int:
        """Items that were made by now."""
        return total

    return server


def slow() -> Server:
    # So many warnings about slow handlers as are wanted are another attack's matter.
    server = Server(logs=Logs(slow_call=1))

    @server
    def work(value: Any = None) -> Any:
        spin(SLOW)
        return value

    @server
    async def work_async(value: Any = None) -> Any:
        spin(SLOW)
        return value

    return server


class Tree(msgspec.Struct):
    """Contains itself in two ways, so that a path into it may lead to 2 ** 60 places of the class."""

    leaf: int | None = None
    branches: list[Tree] | dict[str, Tree] | None = None


def nested() -> Server:
    server = Server()

    @server
    def climb(tree: Tree) -> int:
        return 1

    return server


def strict() -> Server:
    server = Server(limits=limits(max_batch=100))

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    def fail(text: str) -> None:
        raise ValueError(text)

    return server


async def assert_ended(target: ServerUnderAttack, patience: float) -> None:
    """No generator makes items any more, after so many seconds at most."""
    raw = await target.connect()
    end = asyncio.get_running_loop().time() + patience
    before = -1
    while (made := (await raw.call("made"))["result"]) != before:
        assert asyncio.get_running_loop().time() < end, "it goes on after its caller has left"
        before = made
        await asyncio.sleep(0.2)


def reset(raw: RawConnection) -> None:
    """Leave so that the server is told (RST): a connection that is closed looks like one that only says no more."""
    raw.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


async def assert_refused(target: ServerUnderAttack, method: str, code: int, **members: Any) -> None:
    raw = await target.connect()
    reply = await raw.call(method, [ENDLESS], **members)
    assert reply["error"]["code"] == code, reply


@attack(2, "an endless generator without stream", generators, memory=200 * MIB)
async def endless(target: ServerUnderAttack) -> None:
    await assert_refused(target, "count", -32001)


@attack(2, "the same, async", generators, memory=200 * MIB, in_suite=False)
async def endless_async(target: ServerUnderAttack) -> None:
    await assert_refused(target, "count_async", -32001)


@attack(2, "endless generators that may take half a second", generators, memory=200 * MIB)
async def endless_with_timeout(target: ServerUnderAttack) -> None:
    await asyncio.gather(
        *(assert_refused(target, method, -32003, timeout=0.5) for method in ("count", "count_async", "count_in_thread"))
    )


@attack(2, "100 endless generators at a time on one connection", generators, memory=300 * MIB, in_suite=False)
async def many_endless(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    for number in range(100):
        raw.write(request("count_async", [ENDLESS], number, timeout=4 if target.whole else 2))
    replies = await raw.replies(100)
    assert {reply["error"]["code"] for reply in replies} <= {-32001, -32002, -32003}


@attack(2, "a notification of an endless generator, its caller gone", generators)
async def endless_notification(target: ServerUnderAttack) -> None:
    for method in ("count", "count_async", "count_in_thread"):
        raw = await target.connect()
        await raw.send(request(method, [ENDLESS], None))
        await asyncio.sleep(0.3)
        reset(raw)
    await assert_ended(target, 2)
    if target.whole:  # the server finds out now and then
        raw = await target.connect()
        await raw.send(request("count", [ENDLESS], None))
        await asyncio.sleep(0.3)
        raw.close()
        await assert_ended(target, 20)


@attack(2, "an endless generator over HTTP, its caller gone", generators, in_suite=False)
async def endless_over_http(target: ServerUnderAttack) -> None:
    for call_id in (1, None):
        raw = await target.connect()
        await raw.send(post(request("count", [ENDLESS], call_id)))
        await asyncio.sleep(0.5)
        raw.close()
    await assert_ended(target, 2)


def batch(count: int, method: str) -> bytes:
    return b"[" + b",".join(request(method, [number], number).strip() for number in range(count)) + b"]"


async def ask_in_a_batch(target: ServerUnderAttack, method: str) -> None:
    raw = await target.connect()
    count = 1000 if target.whole else 100
    await raw.send(batch(count, method) + b"\n")
    assert [reply["result"] for reply in await raw.reply()] == list(range(count))


@attack(5, "a batch of 1,000 calls of 5 ms", slow, slowest=SLOW)
async def slow_batch(target: ServerUnderAttack) -> None:
    await ask_in_a_batch(target, "work")


@attack(5, "the same of async methods", slow, slowest=SLOW, in_suite=False)
async def slow_async_batch(target: ServerUnderAttack) -> None:
    await ask_in_a_batch(target, "work_async")


@attack(5, "the same over HTTP", slow, slowest=SLOW, in_suite=False)
async def slow_batch_over_http(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    count = 1000 if target.whole else 100
    answer = await raw.ask_http(post(batch(count, "work")))
    assert [reply["result"] for reply in answer.json] == list(range(count))


async def repeat(target: ServerUnderAttack, line: bytes) -> None:
    raw = await target.connect()
    size = (8 if target.whole else 2) * MIB
    for _ in range(size // (1000 * len(line))):
        await raw.send(line * 1000)
    assert (await raw.result("rpc.ping")) == "pong"


@attack(17, "bad notifications", strict, log=32 * KIB)
async def bad_notifications(target: ServerUnderAttack) -> None:
    await repeat(target, request("add", ["x"], None))


@attack(17, "bad notifications with long names in them", strict, log=32 * KIB, in_suite=False)
async def long_notifications(target: ServerUnderAttack) -> None:
    await repeat(target, request("add", {"x" * 1000: 1, "\n\x1b[2J": 2}, None))


@attack(17, "a call that fails, again and again", strict, log=256 * KIB)
async def failing_calls(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    count = 20_000 if target.whole else 3000
    raw.write(request("fail", ["x" * 100]) * count)
    for _ in range(count):
        assert (await raw.reply())["error"]["code"] == -32603


@attack(25, "a batch over max_batch", strict)
async def large_batch(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    await raw.send(batch(101, "add") + b"\n")
    replies = await raw.reply()
    assert isinstance(replies, list), replies
    assert [(reply["id"], reply["error"]["code"]) for reply in replies] == [(0, -32004)]


def subscriptions() -> Server:
    from rpcstream import Context

    server = Server()

    @server
    def subscribe(ctx: Context) -> str:
        ctx.after_reply(lambda: ctx.peer.notify.subscription("0xabc"))
        return "0xabc"

    return server


@attack(27, "a notification behind one's own reply", subscriptions)
async def behind_a_reply(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    raw.write(request("subscribe") * 100)
    heard = await raw.replies(200)
    # The replies of one read come together, then what was said after them.
    assert [message.get("result") for message in heard if "id" in message] == ["0xabc"] * 100
    assert heard.index({"jsonrpc": "2.0", "method": "subscription", "params": ["0xabc"]}) > 0
    assert "result" in await raw.call("subscribe")
    assert (await raw.reply())["params"] == ["0xabc"]


@attack(
    34, "a wrong value deep inside a class that contains itself in two ways", nested, memory=32 * MIB, in_suite=False
)
async def deep_inside(target: ServerUnderAttack) -> None:
    tree: Any = {"leaf": "x"}
    for depth in range(60):
        tree = {"branches": [tree] if depth % 2 else {"a": tree}}
    raw = await target.connect()
    for _ in range(200 if target.whole else 20):
        reply = await raw.call("climb", {"tree": tree})
        assert reply["error"]["code"] == -32602, reply


@attack(0, "100,000 small calls in one go, the answers read slowly", strict)
async def flood(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    calls = 100_000 if target.whole else 20_000
    raw.write(request("add", [1, 2]) * calls)
    for _ in range(calls):
        assert (await raw.reply())["result"] == 3
