"""The helpers for users' tests: as good as the real thing, and gone afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import Client, ConnectFailed, Limits, MessageTooLarge, MethodNotFound, Server
from rpcstream.process import loop_factory
from rpcstream.testing import memory_client, serve_in_thread


def make_server() -> Server:
    server = Server()

    @server
    def double(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values * 2

    @server
    async def later(text: str) -> str:
        await asyncio.sleep(0.01)
        return text

    return server


async def test_memory_client_speaks_to_the_real_server() -> None:
    async with memory_client(make_server()) as client:
        assert (await client.double(np.arange(3.0))).tolist() == [0, 2, 4]
        assert await asyncio.gather(*(client.later(str(n)) for n in range(50))) == [str(n) for n in range(50)]
        with pytest.raises(MethodNotFound, match="'missing'"):
            await client.missing()


async def test_memory_client_with_more_than_the_buffers_hold() -> None:
    async with memory_client(make_server()) as client:
        large = np.zeros(1_000_000)
        for result in await asyncio.gather(*(client.double(large) for _ in range(4))):
            assert result.shape == large.shape


async def test_memory_client_enters_the_lifespan_and_takes_options() -> None:
    events = []

    @contextlib.asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        events.append("open")
        yield
        events.append("close")

    async with memory_client(Server(lifespan=lifespan), limits=Limits(max_message_size=100)) as client:
        assert await client.call("rpc.ping") == "pong"
        assert events == ["open"]
        with pytest.raises(MessageTooLarge):
            await client.call("rpc.ping", "x" * 200)
    assert events == ["open", "close"]


def test_serve_in_thread() -> None:
    before = threading.active_count()
    with serve_in_thread(make_server()) as address, Client(address) as client:
        assert client.later("x") == "x"
        assert client.double(values=np.ones(2)).tolist() == [2, 2]
    assert threading.active_count() == before
    with pytest.raises(ConnectFailed, match=address):
        Client(address).later("x")


def test_serve_in_thread_on_a_unix_socket(tmp_path: Path) -> None:
    with serve_in_thread(make_server(), unix=tmp_path / "socket") as address, Client(address) as client:
        assert address == f"unix://{tmp_path / 'socket'}"
        assert client.later("x") == "x"


def test_what_keeps_the_server_from_starting_is_raised() -> None:
    with serve_in_thread(make_server()) as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(OSError, match=address), serve_in_thread(make_server(), port=port):
            raise AssertionError("it did not start")


def test_the_fixture(rpc_server: Callable[[Server], str]) -> None:
    first, second = rpc_server(make_server()), rpc_server(make_server())
    assert first != second
    for address in (first, second):
        with Client(address) as client:
            assert client.later("x") == "x"


def test_plain_asyncio_where_there_is_no_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)
    assert loop_factory("auto") is None
    with pytest.raises(ImportError):
        loop_factory("uvloop")
    with serve_in_thread(make_server()) as address, Client(address) as client:
        assert client.later("x") == "x"
