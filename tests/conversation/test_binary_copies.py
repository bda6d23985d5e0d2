"""What others still hold of a message is copied before it waits: an array that is changed later arrives as it was sent.

The other ends here read late, so that most of each message waits in this process.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from rpcstream import Context, Server
from rpcstream.process import loop_factory
from rpcstream.wire.buffers import is_own

from ..kit import client_side, server_tls

#: Bytes: more than all buffers of a socket take.
SIZE = 8 * 1024 * 1024

HELLO = b'{"jsonrpc":"2.0","id":0,"method":"rpc.hello","params":{"binary":1}}\n'


def filled(value: int) -> NDArray[np.uint8]:
    return np.full(SIZE, value, np.uint8)


class Slow:
    """An end that reads only when it is asked to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.transport: Any = writer.transport

    @classmethod
    async def open(cls, address: str, tls: ssl.SSLContext | None) -> Slow:
        host, _, port = address.rpartition(":")
        own = cls(*await asyncio.open_connection(host, int(port), ssl=tls))
        await own.say(HELLO)
        assert (await own.message())[0]["result"] == {"binary": 1}
        own.transport.pause_reading()
        return own

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, *requests: tuple[str, dict[str, Any]]) -> None:
        """Send these, and wait until the server has begun all of them."""
        for number, (method, members) in enumerate(requests, 1):
            await self.say(orjson.dumps({"jsonrpc": "2.0", "id": number, "method": method, **members}) + b"\n")

    def read_on(self) -> None:
        self.transport.resume_reading()

    async def message(self) -> tuple[Any, list[set[int]]]:
        """The next message, and the least and the greatest byte in each of its payloads."""
        line = await asyncio.wait_for(self.reader.readuntil(b"\n"), 30)
        if not line.startswith(b"@"):
            return orjson.loads(line), []
        json_size, *sizes = map(int, line[1:].split())
        message = orjson.loads(await self.reader.readexactly(json_size))
        values = []
        for place, size in enumerate(sizes):
            payload = await self.reader.readexactly(size)
            items = np.frombuffer(payload, np.uint8)
            values.append({int(items.min()), int(items.max())})
            if place + 1 < len(sizes):
                await self.reader.readexactly(-size % 8)
        return message, values

    async def values(self, count: int) -> list[Any]:
        """The values of the payloads in the next messages that have any."""
        found: list[Any] = []
        while len(found) < count:
            message, values = await self.message()
            assert "error" not in message, message
            found += values
        return found

    def close(self) -> None:
        self.transport.abort()


def make_server(**options: Any) -> tuple[Server, dict[str, NDArray[np.uint8]], list[NDArray[np.uint8]]]:
    server = Server(**options)
    held = {"shared": filled(1)}
    kept: list[NDArray[np.uint8]] = []

    @server
    def shared() -> Any:
        return held["shared"]

    @server
    async def shared_later() -> Any:
        await asyncio.sleep(0)
        return [held["shared"], held["shared"][: SIZE // 2]]

    @server
    def view() -> Any:
        return held["shared"][::-1][::-1][8:]

    @server
    def change(value: int) -> None:
        held["shared"][:] = value

    @server
    def keep(array: NDArray[np.uint8]) -> Any:
        kept.append(array)
        return array

    @server
    def change_kept(value: int) -> None:
        for array in kept:
            array[:] = value

    @server
    def reuse() -> Iterator[Any]:
        buffer = filled(0)
        for value in range(1, 5):
            buffer[:] = value
            yield buffer

    @server
    async def report(ctx: Context) -> Any:
        buffer = filled(0)
        for value in range(1, 4):
            buffer[:] = value
            ctx.progress(buffer)
        buffer[:] = 4
        return buffer

    @server
    def notify_behind(ctx: Context) -> None:
        buffer = filled(3)
        ctx.peer.notify("noted", buffer, after_reply=True)
        buffer[:] = 99

    @server
    def tell(value: int) -> None:
        buffer = filled(value)
        server.publish("news", buffer)
        buffer[:] = 99

    return server, held, kept


Act = Callable[[Slow], Awaitable[list[Any]]]


async def returned(slow: Slow) -> list[Any]:
    """A global array, returned and then changed by another handler."""
    await slow.ask(("shared", {}), ("change", {"params": [2]}), ("view", {}), ("change", {"params": [3]}))
    await slow.ask(("shared_later", {}))
    slow.read_on()
    found = await slow.values(4)
    return [found == [{1}, {2}, {3}, {3}]]


async def echoed(slow: Slow) -> list[Any]:
    """An argument that the handler keeps and returns."""
    array = filled(5).tobytes()
    json = orjson.dumps(
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "keep",
            "params": [{"$type": "ndarray", "dtype": "|u1", "shape": [SIZE], "data": {"$bin": 0}}],
        }
    )
    await slow.say(b"@%d %d\n%b\n%b" % (len(json) + 1, SIZE, json, array))
    await slow.ask(("change_kept", {"params": [6]}))
    slow.read_on()
    return [await slow.values(1) == [{5}]]


async def yielded(slow: Slow) -> list[Any]:
    """A generator that yields one buffer again and again."""
    await slow.ask(("reuse", {"stream": 4}))
    slow.read_on()
    return [await slow.values(4) == [{1}, {2}, {3}, {4}]]


async def reported(slow: Slow) -> list[Any]:
    """Progress, and a result, of one buffer; what is reported while much waits may be left out."""
    await slow.ask(("report", {}))
    slow.read_on()
    found: list[Any] = []
    message: dict[str, Any] = {}
    while "id" not in message:
        message, values = await slow.message()
        found += values
    return [found in ([{1}, {3}, {4}], [{3}, {4}])]


async def notified(slow: Slow) -> list[Any]:
    """A notification that is sent behind the reply."""
    await slow.ask(("notify_behind", {}))
    slow.read_on()
    return [await slow.values(1) == [{3}]]


async def published(slow: Slow) -> list[Any]:
    """An event whose array is changed afterwards."""
    await slow.ask(("rpc.subscribe", {"params": ["news"]}), ("tell", {"params": [7]}), ("tell", {"params": [8]}))
    slow.read_on()
    return [await slow.values(2) == [{7}, {8}]]


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "tls"])
def test_a_server_sends_arrays_as_they_were(is_encrypted: bool) -> None:
    async def run() -> None:
        server, held, kept = make_server(tls=server_tls() if is_encrypted else None)
        async with server.listening(port=0) as address:
            for act in (returned, echoed, yielded, reported, notified, published):
                held["shared"][:] = 1
                kept.clear()
                slow = await Slow.open(address, client_side() if is_encrypted else None)
                try:
                    assert all(await act(slow)), act.__doc__
                finally:
                    slow.close()

    with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
        runner.run(run())


# -- whose memory it is -----------------------------------------------------------------------------------------------


def payload_of(array: NDArray[Any]) -> Any:
    return array.reshape(-1).view(np.uint8)


def test_memory_that_only_the_message_holds_is_its_own() -> None:
    # Not within the assertion, which holds all parts of it.
    for payload in (payload_of(np.zeros(5000)), payload_of(np.zeros((50, 100), np.float32)), b"x" * 5000):
        assert is_own(payload)
    sliced = np.zeros(9000)[1000:8000]
    payload = payload_of(sliced)
    del sliced
    assert is_own(payload)


def test_memory_that_others_hold_is_not() -> None:
    array = np.zeros(5000)
    assert not is_own(payload_of(array))
    view = array[10:]
    payload = payload_of(array)
    del array
    assert not is_own(payload)
    del view
    assert is_own(payload)
    buffer = bytearray(5000)
    for other in (
        np.frombuffer(buffer, np.uint8)[:],
        memoryview(buffer),
        np.ndarray(5000, np.uint8, buffer)[:],
    ):
        assert not is_own(other)


def test_memory_that_is_lent_counts_once() -> None:
    memory = np.zeros(5000, np.uint8)
    payload = payload_of(memory)
    assert not is_own(payload)
    assert is_own(payload, [id(memory)])
    again = memory.view()
    assert not is_own(payload, [id(memory)])
    del again
    assert is_own(payload, [id(memory)])
