"""Which connection takes the next call, and when a new one is opened."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from rpcstream import AsyncClient, Client
from rpcstream.client.pool import choose_slot


@dataclass
class Place:
    load: int
    is_open: bool = True


def test_the_fewest_calls_win_and_an_open_one_before_a_new_one() -> None:
    assert choose_slot([Place(3), Place(1), Place(2)]).load == 1
    assert choose_slot([Place(0, is_open=False), Place(0)]).is_open
    assert not choose_slot([Place(1), Place(0, is_open=False)]).is_open
    only = Place(9)
    assert choose_slot([only]) is only


class CountedConnections:
    """A script that answers calls of "hold" only when it is told to, and counts its connections."""

    def __init__(self) -> None:
        self.connections = 0
        self.held = threading.Semaphore(0)
        self.go = threading.Event()

    def __call__(self, line: Any) -> None:
        self.connections += 1
        while (request := line.read()) is not None:
            if request["method"] == "hold":
                self.held.release()
                assert self.go.wait(20)
            line.answer(request, self.connections)


def test_a_connection_is_opened_only_when_all_others_are_busy(scripted: Callable[..., str]) -> None:
    script = CountedConnections()
    with Client(scripted(script), pool=3) as client:
        for _ in range(5):
            assert client.quick() == 1
        holding = []
        for _ in range(3):
            holding.append(client.submit.hold())
            assert script.held.acquire(timeout=20)
        assert script.connections == 3
        script.go.set()
        assert [future.result() for future in holding] == [3, 3, 3]
        assert client.quick() == 3


async def test_the_same_for_the_async_client(scripted: Callable[..., str]) -> None:
    script = CountedConnections()
    async with AsyncClient(scripted(script), pool=3) as client:
        assert await client.quick() == 1
        holding = []
        for _ in range(3):
            holding.append(client.submit.hold())
            assert await asyncio.to_thread(script.held.acquire, timeout=20)
        assert script.connections == 3
        script.go.set()
        assert await asyncio.gather(*holding) == [3, 3, 3]


@pytest.mark.parametrize("face", [Client, AsyncClient])
def test_senseless_options_are_refused(face: Any) -> None:
    for options, said in [
        ({"pool": 0}, "pool must be at least 1"),
        ({"retries": -1}, "retries must not be negative"),
        ({"timeout": 0}, "timeout must be positive or None"),
        ({"connect_timeout": -1}, "connect_timeout must be positive"),
        ({"delimiter": b""}, "at least one byte"),
    ]:
        with pytest.raises(ValueError, match=said):
            face(**options)
