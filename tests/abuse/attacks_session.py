"""What one connection can make the session do for it: cancels, replies in arrays, a backlog, messages that are much
larger in memory than on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import orjson

from rpcstream import Context, Server

from ..kit import UsualServer
from .harness import KIB, MIB, ServerUnderAttack, attack, limits, request

#: Bytes of the messages of one server in the attacks on its memory.
HELD = 128 * MIB


def patient() -> Server:
    """Handlers that wait: for time, for their caller, for items."""
    server = Server()

    @server
    async def sleep(seconds: float, what: object = None) -> None:
        await asyncio.sleep(seconds)

    @server
    async def ask(context: Context, times: int) -> list[str]:
        """What became of so many questions to the caller."""
        asked = [context.peer.call("tell") for _ in range(times)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        return [type(each).__name__ for each in found]

    @server
    async def total(items: AsyncIterator[int]) -> int:
        return sum([item async for item in items])

    @server
    def text(size: int) -> str:
        return "x" * size

    return server


@attack(6, "1,024 sleeping calls, and cancels for unknown ids", patient)
async def cancels(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    await raw.send(b"".join(request("sleep", [600], call_id) for call_id in range(1024)))
    sent, end = 0, time.monotonic() + (15 if target.whole else 3)
    while time.monotonic() < end:
        words = [request("$/cancelRequest", {"id": 10_000 + sent + n}, None) for n in range(1600)]
        await raw.send(b"".join(words))
        sent += len(words)
        await asyncio.sleep(0.1)  # 1 MiB/s
    await raw.send(b"".join(request("$/cancelRequest", {"id": call_id}, None) for call_id in range(1024)))
    codes = [reply["error"]["code"] for reply in await raw.replies(1024)]
    assert set(codes) == {-32800}


@attack(8, "100 replies in one array of 2 MiB", patient)
async def replies_in_an_array(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    for _ in range(3 if target.whole else 1):
        await raw.send(request("ask", [100], "mine"))
        asked = [orjson.loads(await raw.reader.readline())["id"] for _ in range(100)]
        # An integer that the fast parser rounds, a tag, and much of what has to be looked at again.
        result = [[12345678901234567890, {"$type": "none"}], *([1000] * 4000)]
        await raw.send(orjson.dumps([{"jsonrpc": "2.0", "id": each, "result": result} for each in asked]) + b"\n")
        assert (await raw.reply())["result"] == ["list"] * 100


@attack(8, "an error that belongs to no call, for 1,000 that wait", patient, memory=96 * MIB)
async def an_error_for_all(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    await raw.send(request("ask", [1000], "mine"))
    await raw.replies(1000)
    data = [[12345678901234567890, {"$type": "none"}], *([1000] * 400_000)]
    error = {"code": 5, "message": "no", "data": data}
    await raw.send(orjson.dumps({"jsonrpc": "2.0", "id": None, "error": error}) + b"\n")
    assert (await raw.reply())["result"] == ["RpcError"] * 1000


@attack(9, "a stream held open, small requests, slow reading", patient, memory=160 * MIB, in_suite=False)
async def a_backlog(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    await raw.send(request("total", [{"$type": "stream", "id": "s"}], "total"))
    await raw.reply()  # credit: it runs
    one = request("text", [2000])
    sending = asyncio.ensure_future(raw.send(one * (400_000 if target.whole else 150_000)))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20 if target.whole else 5):
            while True:
                await raw.reader.read(256 * KIB)
                await asyncio.sleep(0.02)
    sending.cancel()


@attack(10, "32 MiB of brackets for a method that is not there", patient, memory=192 * MIB)
async def brackets(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    params = b"[" + b"[[[[[[[]]]]]]]," * (32 * MIB // 15) + b"0]"
    for _ in range(3 if target.whole else 1):
        await raw.send(b'{"jsonrpc":"2.0","id":7,"method":"nothing","params":' + params + b"}\n")
        reply = await raw.reply()
        assert (reply["id"], reply["error"]["code"]) == (7, -32001)


#: What the densest message that is taken may keep the loop: `Limits.max_values` is chosen for 0.25 s, and this
#: machine may be slower than that of the choice.
DENSEST = 0.4


@attack(0, "the densest message that is taken", patient, memory=128 * MIB, wait=DENSEST, in_suite=False)
async def as_many_values_as_may_be(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    params = b'[{"$type":12345678901234567890},' + b"[[[[[[[]]]]]]]," * 30_000 + b"0]"
    for _ in range(10 if target.whole else 3):
        await raw.send(b'{"jsonrpc":"2.0","id":7,"method":"sleep","params":[0,' + params + b"]}\n")
        assert (await raw.reply())["id"] == 7


@attack(10, "calls of 16 MiB, held by an async method", patient, memory=512 * MIB)
async def held_calls(target: ServerUnderAttack) -> None:
    raws = await target.connect_many(2)
    what = b'[{"a":1}' + b',{"a":1}' * (2 * MIB) + b"]"
    for raw in raws:
        for call_id in range(6):
            raw.write(b'{"jsonrpc":"2.0","id":%d,"method":"sleep","params":[600,%b]}\n' % (call_id, what))
    for raw in raws:
        codes = [reply["error"]["code"] for reply in await raw.replies(6)]
        assert codes == [-32001] * 6


def bounded() -> UsualServer:
    """A server for long messages with little memory for them."""
    return UsualServer(limits=limits(max_held_total=HELD))


@attack(10, "calls of many connections that fill its memory", bounded, memory=HELD + 96 * MIB, in_suite=False)
async def many_held_calls(target: ServerUnderAttack) -> None:
    raws = await target.connect_many(64 if target.whole else 24)
    what = b"[1000" + b",1000" * 900_000 + b"]"
    line = b'{"jsonrpc":"2.0","id":1,"method":"echo_after","params":[%b,600]}\n' % what
    for raw in raws:
        await raw.send(line)
        await raw.send(request("rpc.ping", None, "behind"))
    for raw in raws:  # those that are held leave the ping waiting, or answer it; the others are busy
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                reply = await raw.reply()
                assert reply["id"] == "behind" or reply["error"]["code"] == -32002
    last = await target.connect()
    await last.send(line)
    assert (await last.reply())["error"]["code"] == -32002


@attack(10, "messages that never end, on many connections", bounded, memory=HELD + 32 * MIB)
async def messages_in_part(target: ServerUnderAttack) -> None:
    part = b'{"jsonrpc":"2.0","id":1,"method":"echo","params":["' + b"x" * (16 * MIB)
    raws = await target.connect_many(32 if target.whole else 16)
    for raw in raws:
        await raw.send(part)
    refused = 0
    for raw in raws:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                refused += (await raw.reply())["error"]["code"] == -32002
    assert refused >= len(raws) // 2


@attack(18, "a reply without an id, nested 1,000 deep", patient, memory=32 * MIB)
async def a_deep_error(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    await raw.send(request("ask", [1], "mine"))
    await raw.reply()
    deep = b"[" * 1000 + b"]" * 1000
    await raw.send(b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"deep","data":' + deep + b"}}\n")
    assert (await raw.reply())["result"] == ["InternalError"]
    assert (await raw.result("rpc.ping")) == "pong"


def generous() -> Server:
    """A server with large results, whose peers together may leave 64 MiB unread."""
    server = Server(limits=limits(max_held_total=64 * MIB))
    server.add(lambda size: "x" * size, name="give")
    return server


@attack(10, "large answers that are asked for on 40 connections and not read", generous, memory=224 * MIB)
async def unread_answers(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    for _ in range(80 if target.whole else 40):
        unread = await target.connect()
        unread.pause_reading()
        await unread.send(request("give", [8 * MIB]))
        for _ in range(3):  # the memory of a closed connection is freed with the next turns of the loop
            await raw.result("rpc.ping")
    assert (await raw.result("give", [3])) == "xxx"
