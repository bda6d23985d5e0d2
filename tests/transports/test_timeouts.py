"""The time limits of a connection, in time that passes at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rpcstream import Limits
from rpcstream.testing import FakeTimeLoop, connections_of

from ..kit import UsualServer
from ..kit.matrix import Memory
from ..kit.messages import frame

LIMITS = {"idle_timeout": 100, "message_timeout": 10}
NEVER = {"idle_timeout": None, "message_timeout": None, "write_timeout": None}
PING = b'{"jsonrpc":"2.0","id":1,"method":"rpc.ping"}\n'
HALF = PING[:20]
#: Its payload is received straight into the memory that it stays in.
FRAME = frame(
    {"jsonrpc": "2.0", "id": 1, "method": "echo", "params": [{"$type": "bytes", "data": {"$bin": 0}}]}, bytes(2**20)
)
SLOWLY = [(8, FRAME[at : at + 100_000]) for at in range(0, 500_000, 100_000)]


@pytest.mark.parametrize(
    ("limits", "said", "reason"),
    [
        (LIMITS, [(0, b""), (98, b"")], None),
        (LIMITS, [(0, b""), (110, b"")], "idle_timeout"),
        (LIMITS, [(90, PING), (90, PING), (90, b"")], None),
        (LIMITS, [(90, PING), (110, b"")], "idle_timeout"),
        (LIMITS, [(50, HALF), (8, b"")], None),
        (LIMITS, [(50, HALF), (8, b" "), (8, b"")], "message_timeout"),
        (LIMITS, [(9, PING[20:] + HALF if n else HALF) for n in range(10)], None),
        (LIMITS, SLOWLY, "message_timeout"),
        (NEVER, [(1e6, HALF), (1e6, b"")], None),
        (LIMITS, [(0, b'{"jsonrpc":"2.0","id":1,"method":"wait"}\n'), (1000, b"")], None),
    ],
    ids=[
        "silent",
        "idle",
        "heard",
        "idle later",
        "begun",
        "not ended",
        "one behind the other",
        "a slow frame",
        "no limits",
        "at work",
    ],
)
def test_what_time_does(
    limits: Any, said: list[tuple[float, bytes]], reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        server = UsualServer(limits=Limits(**limits))
        async with Memory().serving(server, None) as endpoint:
            raw = await endpoint.raw()
            for seconds, data in said:
                await asyncio.sleep(seconds)
                raw.write(data)
            await asyncio.sleep(0)
            assert bool(connections_of(server)) is (reason is None)
            assert server.stats()["closed_for_limits"] == (reason is not None)
            await endpoint.close()

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(main())
    assert reason is None or reason in caplog.text
