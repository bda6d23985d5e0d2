"""Provider and caller on any mix of transports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import AsyncClient
from rpcstream.hub import Hub

from ..kit import authority, server_tls

#: How one hub can be reached, by where it listens; a connection that lasts is needed to offer.
LASTING = {"tcp": ("tcp", "ws"), "tls": ("tls", "wss"), "unix": ("unix",)}
ALL = {"tcp": ("tcp", "ws", "http"), "tls": ("tls", "wss", "https"), "unix": ("unix", "http+unix")}
MIXES = [(place, offers, calls) for place in ALL for offers in LASTING[place] for calls in ALL[place]]


@pytest.mark.parametrize(("listens", "offers", "calls"), MIXES)
async def test_everything_goes_through(listens: str, offers: str, calls: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"ca": authority()} if listens == "tls" else {}
    hub = Hub(tls=server_tls() if listens == "tls" else None)
    where: dict[str, Any] = {"unix": tmp_path / "hub"} if listens == "unix" else {"port": 0}
    async with hub.listening(**where) as address:
        place = address.removeprefix("unix://")
        async with (
            AsyncClient(f"{offers}://{place}", name="p", **options) as provider,
            AsyncClient(f"{calls}://{place}", **options) as caller,
        ):

            @provider
            def double(values: NDArray[np.float64]) -> NDArray[np.float64]:
                return values * 2

            @provider
            async def count(n: int) -> AsyncIterator[int]:
                for number in range(n):
                    yield number

            assert await provider.offer() == ["count", "double"]
            for size in (3, 30_000, 30_000, 30_000):  # the first large one as text
                assert (await caller.double(np.arange(float(size)))).sum() == size * (size - 1)
            assert [item async for item in caller.stream.count(100)] == list(range(100))
            assert await caller.count(3) == [0, 1, 2]
            async with caller.batch() as batch:
                first, second = batch.count(2), batch.call("p.double", np.arange(2.0))
            assert first.result() == [0, 1]
            assert second.result().tolist() == [0, 2]
