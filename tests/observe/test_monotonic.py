"""Counters never decrease, whatever connection closes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from rpcstream import AsyncClient, Server

from ..kit import authority, server_tls, until
from .reading import samples

#: How names of counters, and of the parts of a histogram, end.
COUNTING = ("_total", "_count", "_sum", "_bucket")


def counters_of(server: Server) -> dict[Any, float]:
    found = samples(server.metrics_text())
    return {key: value for key, value in found.items() if key[0].endswith(COUNTING)}


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
async def test_counters_do_not_go_backwards(tls: bool) -> None:
    server = Server(metrics=True, tls=server_tls() if tls else None)

    @server
    def repeat(text: str, times: int) -> str:
        return text * times

    async with server.listening(port=0) as address:
        url = f"tls://{address.removeprefix('tls://')}" if tls else address
        seen = [counters_of(server)]
        for _ in range(2):
            async with AsyncClient(url, **({"ca": authority()} if tls else {})) as client:
                assert await client.repeat("abc", 1000) == "abc" * 1000
                seen.append(counters_of(server))
            await until(lambda: server.counters.connections == 0)
            seen.append(counters_of(server))
    for before, after in itertools.pairwise(seen):
        assert not {key: (value, after.get(key)) for key, value in before.items() if after.get(key, 0) < value}
