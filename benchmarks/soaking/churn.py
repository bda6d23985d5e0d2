"""The load of a soak by connections that open and end: closed, half-closed, reset, not read, or sending nonsense.

Adds its features to those of `tasks`. Each of them ends its connection.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import numpy as np
import orjson

from rpcstream import AsyncClient, ConnectFailed, ConnectionLost

from .tasks import Load, feature


class Wire:
    """A plain socket that reads and writes messages, without a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, address: str) -> Wire:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=1 << 20))

    def say(self, *messages: Any) -> None:
        self.writer.write(b"".join(orjson.dumps(message) + b"\n" for message in messages))

    async def hear(self) -> Any:
        """Read the next message; None at the end of the connection."""
        line = await self._reader.readline()
        return orjson.loads(line) if line.strip() else None

    async def read(self, size: int) -> bytes:
        return await self._reader.read(size)

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    def abort(self) -> None:
        self.writer.transport.abort()


def request(call_id: Any, method: str, *params: Any, **members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "method": method, "params": params, **members}


def reply(call_id: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "result": result}


@feature
async def clients_that_come_and_go(load: Load, choose: random.Random) -> None:
    token = load.token()
    async with load.offering(AsyncClient(load.address)) as client:
        load.tally.expect("clients_that_come_and_go", await client.echo(token), token)
        waiting = [client.submit("later", token, 100), client.submit("ask", token)]
        async with client.stream.endless(token) as stream:
            await anext(stream)
            if choose.random() < 0.3:
                await asyncio.sleep(0.01)
            await client.close()
    for answer in await asyncio.gather(*waiting, return_exceptions=True):
        if not (isinstance(answer, ConnectionLost) or answer == token[::-1]):
            load.tally.mistake("clients_that_come_and_go", repr(answer))


@feature
async def connections_that_are_torn_off(load: Load, choose: random.Random) -> None:
    """Reset the connection of a reconnecting client: calls under way fail, later ones do not."""
    client, token = load.clients[0], load.token()
    load.tally.expect("connections_that_are_torn_off", await client.echo(token), token)
    calls = [client.submit.later(token, 100), client.submit.threaded(token, 0.01), client.submit.total(_slowly())]
    await asyncio.sleep(choose.random() * 0.01)
    for connection in client._pool.open_connections:
        connection.abort("on purpose")
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if not (isinstance(answer, ConnectionLost | ConnectFailed) or answer == token):
            load.tally.mistake("connections_that_are_torn_off", repr(answer))


async def _slowly() -> Any:
    while True:
        yield np.ones(3, np.float32)
        await asyncio.sleep(0.001)


@feature
async def half_closes(load: Load, choose: random.Random) -> None:
    wire, token = await Wire.open(load.address), load.token()
    wire.say(request(1, "echo", token), request("1", "later", token, 0.005), request(2, "count_in_thread", 9, stream=2))
    if choose.random() < 0.5:
        wire.writer.write_eof()
    else:
        wire.writer.write(b"\n")
    found = []
    while (message := await wire.hear()) is not None:
        found += [message["id"]] if message.get("result") == token else []
    load.tally.expect("half_closes", sorted(map(str, found)), ["1", "1"])
    await wire.close()


@feature
async def torn_wires(load: Load, choose: random.Random) -> None:
    """Begin calls, streams and subscriptions, then reset the connection; a detached handler goes on."""
    wire, token = await Wire.open(load.address), load.token()
    stream = {"$type": "stream", "id": "t"}
    wire.say(request(1, "detached", token), request(2, "later", token, 100), request(3, "endless", token, stream=50))
    wire.say(request(4, "total", stream), request(5, "ask", token), [request(6, "later", token, 100)])
    wire.say({"jsonrpc": "2.0", "method": "rpc.subscribe", "params": ["topic"], "id": 7})
    await wire.hear()
    wire.writer.write(b'{"jsonrpc":"2.0","id":8,"method":"ec')
    if choose.random() < 0.5:
        await asyncio.sleep(0.01)
    wire.abort()
    while not await load.one(choose).has_finished(token):
        await asyncio.sleep(0.03)


@feature
async def liars(load: Load, choose: random.Random) -> None:
    """Answer a call back from the server in every wrong way before the right one."""
    wire, token = await Wire.open(load.address), load.token()
    wire.say(request("call", "ask", token))
    asked = (await wire.hear())["id"]
    wire.say(reply(str(asked), "forged"), reply(float(asked) + 0.5, "forged"), reply(True, "forged"))
    wire.say(reply(asked + 1000, "forged"), [reply(asked + 1, "forged")], {"jsonrpc": "2.0", "method": "$/item"})
    wire.say(request(1, "rpc.ping"), {"jsonrpc": "2.0", "method": "$/credit", "params": {"id": "call", "n": 5}})
    wire.say(reply(asked, token), reply(asked, "again"))
    found = [await wire.hear(), await wire.hear()]
    load.tally.expect("liars", sorted(map(str, found)), sorted(map(str, [reply(1, "pong"), reply("call", token)])))
    await wire.close()


@feature
async def junk(load: Load, choose: random.Random) -> None:
    wire, token = await Wire.open(load.address), load.token()
    wire.writer.write(b'{"jsonrpc":"2.0",]\n[]\n[1]\n' + b"[" * 300 + b"]" * 300 + b"\n")
    wire.say(request(1, "echo", token), request(1, "no such method"), {"jsonrpc": "1.0", "id": 1, "method": "echo"})
    found = [await wire.hear() for _ in range(7)]
    load.tally.expect("junk", reply(1, token) in found, True)
    await wire.close()


@feature
async def slow_readers(load: Load, choose: random.Random) -> None:
    """Ask for long results and read them slowly, to the end or not."""
    wire = await Wire.open(load.address)
    wire.say(*[request(number, "blob", 100_000) for number in range(60)])
    left, patience = 60 * 100_000, choose.randrange(60)
    while left > 0 and (data := await wire.read(1 << 17)):
        left -= len(data)
        patience -= 1
        if patience == 0:
            wire.abort()
            return
        await asyncio.sleep(choose.random() * 0.01)
    load.tally.expect("slow_readers", left <= 0, True)
    await wire.close()


@feature
async def readers_that_stop(load: Load, choose: random.Random) -> None:
    """Ask for long results and read nothing until the server closes the connection, or close it before."""
    wire = await Wire.open(load.address)
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    wire.say(*[request(number, "blob", 200_000) for number in range(100)], request("s", "endless", "x", stream=10**6))
    await asyncio.sleep(choose.choice([0.3, 0.6, 2.5]))
    wire.abort()
