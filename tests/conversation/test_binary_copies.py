"""What others still hold of a message is copied before it waits: an array that is changed later arrives as it was sent.

The other ends here read late, so that most of each message waits in this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import Context, Server

from ..kit import Frame, RawPeer, client_side, frame, open_peer, request, server_tls
from ..kit.loops import new_loop

#: Bytes: more than all buffers of a socket take.
SIZE = 8 * 1024 * 1024

ARGUMENT = {"$type": "ndarray", "dtype": "|u1", "shape": [SIZE], "data": {"$bin": 0}}


def filled(value: int) -> NDArray[np.uint8]:
    return np.full(SIZE, value, np.uint8)


class Slow(RawPeer):
    """A peer that reads only when it is asked to."""

    async def values(self, count: int) -> list[set[int]]:
        """The least and the greatest byte of each of the payloads that come next."""
        self.transport.resume_reading()
        found: list[set[int]] = []
        while len(found) < count:
            found += least_and_greatest(await self.receive_bytes())
        return found


def least_and_greatest(message: bytes | None) -> list[set[int]]:
    assert message is not None
    assert b'"error"' not in message[:200]
    payloads = message.payloads if isinstance(message, Frame) else []
    return [{int(items.min()), int(items.max())} for items in (np.frombuffer(each, np.uint8) for each in payloads)]


def make_server(**options: Any) -> Server:
    server = Server(**options)
    held = {"shared": filled(1)}

    @server
    def shared() -> Any:
        return held["shared"]

    @server
    def view() -> Any:
        return held["shared"][::-1][::-1][8:]

    @server
    def change(value: int) -> None:
        held["shared"][:] = value

    @server
    def keep(array: NDArray[np.uint8]) -> Any:
        held["shared"] = array
        return array

    @server
    def reuse() -> Iterator[Any]:
        buffer = filled(0)
        for value in (1, 2):
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
    def tell(value: int) -> None:
        buffer = filled(value)
        server.publish("news", buffer)
        buffer[:] = 99

    return server


#: What is asked for, and the payloads that come: each has one value throughout, that of the moment when it was given.
ACTS: dict[str, tuple[list[Any], list[int]]] = {
    "a global array, returned and then changed by another handler": (
        [request("shared"), request("change", 2), request("view"), request("change", 3)],
        [1, 2],
    ),
    "an argument that the handler keeps and returns": (
        [frame(request("keep", ARGUMENT), filled(5).tobytes()), request("change", 6)],
        [5],
    ),
    "a generator that yields one buffer again and again": ([request("reuse", stream=4)], [1, 2]),
    "an event whose array is changed afterwards": (
        [request("rpc.subscribe", "news"), request("tell", 7), request("tell", 8)],
        [7, 8],
    ),
}


@pytest.mark.parametrize("act", [*ACTS, "progress"])
@pytest.mark.parametrize("tls", [None, server_tls()], ids=["plain", "tls"])
def test_a_server_sends_arrays_as_they_were(tls: Any, act: str) -> None:
    async def run() -> None:
        async with make_server(tls=tls).listening(port=0) as address:
            slow: Slow = await open_peer(address, Slow, tls=tls and client_side())
            assert await slow.result("rpc.hello", params={"binary": 1}) == {"binary": 1}
            slow.transport.pause_reading()
            if act in ACTS:
                sent, values = ACTS[act]
                for each in sent:
                    slow.write(each) if isinstance(each, bytes) else slow.send(each)
                assert await slow.values(len(values)) == [{value} for value in values]
            else:  # what is reported while much waits may be left out
                slow.call("report")
                found = await slow.values(1)
                while found[-1] != {4}:
                    found += await slow.values(1)
                assert found in ([{1}, {3}, {4}], [{3}, {4}])
            slow.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
