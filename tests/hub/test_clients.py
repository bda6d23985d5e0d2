"""Our own clients at a hub: offered on one connection, called on another, whatever these are."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import AsyncClient, Context, InvalidParams, MethodNotFound
from rpcstream.hub import Hub

from ..kit import authority, server_tls

Array = NDArray[np.float32]

#: 64 KiB, and not the same anywhere.
ARRAY = np.arange(16_384, dtype=np.float32)


@asynccontextmanager
async def provided(address: str, **options: Any) -> AsyncIterator[AsyncClient]:
    """A client p that offers methods with arrays in every place where these may stand."""
    async with AsyncClient(address, name="p", **options) as provider:

        @provider
        def double(a: Array) -> Array:
            return a * 2

        @provider
        async def count(a: Array, n: int, ctx: Context) -> AsyncIterator[Array]:
            for number in range(n):
                ctx.progress(a - number)
                yield a + number

        @provider
        async def total(items: AsyncIterator[Array]) -> Array:
            return sum([item async for item in items], np.zeros_like(ARRAY))

        @provider
        def add(a: int, b: int) -> int:
            return a + b

        assert await provider.offer() == ["add", "count", "double", "total"]
        yield provider


async def items() -> AsyncIterator[Array]:
    for number in range(5):
        yield ARRAY + number


def same(a: Any, b: Any) -> bool:
    return isinstance(a, np.ndarray) and a.dtype == np.float32 and bool((a == b).all())


async def use_all(caller: AsyncClient) -> None:
    """Call everything that is offered; all of it must be right."""
    for _ in range(3):
        assert same(await caller.double(ARRAY), ARRAY * 2)
    for number, item in enumerate([item async for item in caller.stream.count(ARRAY, 4)]):
        assert same(item, ARRAY + number)
    async with caller.batch() as batch:
        results = [batch.call("p.double", ARRAY + number) for number in range(3)]
    assert all(same(each.result(), (ARRAY + number) * 2) for number, each in enumerate(results))
    assert await caller.add(5, 3) == await caller.call("p.add", a=5, b=3) == 8
    with pytest.raises(InvalidParams, match="expected an integer, got a string"):
        await caller.add(5, "three")
    with pytest.raises(MethodNotFound):
        await caller.subtract(5, 3)


@pytest.mark.parametrize(
    ("listens", "offers", "calls", "reads_frames"),
    [
        ("port", "tcp", "ws", True),
        ("port", "ws", "tcp", False),
        ("port", "ws", "http", True),
        ("tls", "tls", "https", True),
        ("tls", "wss", "wss", True),
        ("unix", "unix", "http+unix", False),
    ],
)
async def test_on_any_mix_of_transports(
    listens: str, offers: str, calls: str, reads_frames: bool, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"tls": authority()} if listens == "tls" else {}
    hub = Hub(tls=server_tls() if listens == "tls" else None)
    where: dict[str, Any] = {"unix": tmp_path / "hub"} if listens == "unix" else {"port": 0}
    async with hub.listening(**where) as address:
        place = address.removeprefix("unix://")
        async with (
            provided(f"{offers}://{place}", binary=reads_frames, **options),
            AsyncClient(f"{calls}://{place}", **options) as caller,
        ):
            await use_all(caller)
            if "http" not in calls:
                assert same(await caller.total(items()), ARRAY * 5 + 10)
                reports: list[Any] = []
                stream = caller.stream_request("count", [ARRAY, 4], on_progress=reports.append)
                assert len([item async for item in stream]) == 4
                # Of reports that follow each other too fast the last one comes.
                assert all(same(report, ARRAY + report[0]) for report in reports)
                assert reports[-1][0] == -3


async def test_nobody_reads_tokens_and_keys_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rpcstream.wire")
    hub = Hub(debug=True, token="a-secret-token")
    async with hub.listening(port=0) as address, AsyncClient(address, token="a-secret-token") as client:
        key = (await client.call("rpc.register", name="p"))["key"]
        await client.call("rpc.register", name="p", key=key)
    assert len(key) == 32
    assert "rpc.register" in caplog.text
    assert key not in caplog.text
    assert "a-secret-token" not in caplog.text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"call_timeout": 0}, "call_timeout must be positive"),
        ({"keepalive_timeout": -1}, "keepalive_timeout must be positive"),
        ({"registration_timeout": float("nan")}, "registration_timeout must be positive"),
        ({"ping_interval": 0}, "ping_interval must be positive"),
        ({"keepalive_timeout": 5, "ping_interval": 5}, "ping_interval must be shorter than keepalive_timeout"),
        ({"rules": []}, "rules need authenticated callers"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Hub(**options)
