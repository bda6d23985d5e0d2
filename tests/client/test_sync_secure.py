"""The blocking connections of a sync client with a token and with TLS."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from rpcstream import Client, ConnectFailed, ConnectionLost, NotAuthenticated
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer
from ..kit.certificates import authority, server_tls
from .conftest import Connections, Scripted, Traced, answering

TOKEN = "s3cret-token"


@pytest.fixture(scope="module", params=[False, True], ids=["tcp", "tls"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    """The address of a server that asks for a token, and the options of its clients."""
    server = UsualServer(drain_timeout=0.2, token=TOKEN)
    if request.param:
        server.guard(tls=server_tls())
    with serve_in_thread(server) as address:
        options: dict[str, Any] = {"tls": authority()} if request.param else {}
        yield f"tls://{address}" if request.param else address, options


def test_calls_of_all_sizes_without_a_thread(served: tuple[str, dict[str, Any]]) -> None:
    address, options = served
    before = set(threading.enumerate())
    with Client(address, token=TOKEN, trace=(traced := Traced()), **options) as client:
        assert [client.add(n, 1) for n in range(20)] == list(range(1, 21))
        for size in (10, 4_000, 100_000, 1_000_000):
            array = np.arange(size, dtype=np.float64)
            assert np.array_equal(client.echo(array), array)
            assert client.echo("x" * size) == "x" * size
        client.notify.note("secure")
        with client.batch() as batch:
            calls = [batch.add(n, n) for n in range(10)]
        assert [call.result() for call in calls] == list(range(0, 20, 2))
        assert not {t for t in set(threading.enumerate()) - before if t.name == "rpcstream-loop"}
        assert client.submit.add(1, 2).result(20) == 3
        assert list(client.stream.count(3)) == [0, 1, 2]
    assert TOKEN not in str(traced)


def test_many_threads(served: tuple[str, dict[str, Any]]) -> None:
    address, options = served
    with Client(address, token=TOKEN, pool=3, **options) as client, ThreadPoolExecutor(6) as executor:

        def work(thread: int) -> None:
            for n in range(30):
                assert client.echo([thread, n]) == [thread, n]
                assert client.echo_after(n, 0.0005) == n

        list(executor.map(work, range(6)))
        assert client.replies_dropped == 0


def test_a_wrong_token(served: tuple[str, dict[str, Any]]) -> None:
    address, options = served
    for wrong in ("wrong", None):
        with Client(address, token=wrong, **options) as client:
            for _ in range(2):
                with pytest.raises(NotAuthenticated, match=r"token=.*'add'"):
                    client.add(1, 2)


def test_a_token_with_the_line_end_of_its_file(served: tuple[str, dict[str, Any]]) -> None:
    address, options = served
    with Client(address, token=f" {TOKEN}\r\n", **options) as client:
        assert client.add(1, 2) == 3
    with pytest.raises(ValueError, match="the token is empty"):
        Client(address, token=" \n", **options)


def test_an_unknown_authority() -> None:
    server = UsualServer(drain_timeout=0.2)
    server.guard(tls=server_tls())
    with serve_in_thread(server) as address:
        with Client(f"tls://{address}") as client, pytest.raises(ConnectFailed, match="tls=") as caught:
            client.add(1, 2)
        assert caught.value.is_permanent
        with Client(address) as client, pytest.raises(ConnectFailed, match="tls://"):
            client.add(1, 2)


def test_each_connection_logs_in_first(scripted: Scripted) -> None:
    """Also a new one after a loss; a server without tokens is told, and does not mind."""
    asked: list[str] = []

    def script(line: Any) -> None:
        login = line.read()
        asked.append(login["method"])
        line.answer(login, None)
        call = line.read()
        asked.append(call["method"])
        line.answer(call, "here")

    with Client(scripted(Connections(script, script)), token=TOKEN) as client:
        assert client.first() == "here"
        threading.Event().wait(0.05)  # by now the connection is closed
        assert client.second() == "here"
    assert asked == ["rpc.authenticate", "first", "rpc.authenticate", "second"]
    closing = Connections(lambda line: line.answer(line.read(), None))
    with Client(scripted(closing), token=TOKEN) as client, pytest.raises(ConnectionLost) as caught:
        client.call("a")
    assert caught.value.executed in (False, None)
    assert closing.count == 1
    with Client(scripted(answering("here")), token=TOKEN) as client:
        assert client.call("a") == "here"
