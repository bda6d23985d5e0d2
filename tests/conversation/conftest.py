"""Runs each conversation test over several transports, and checks that no task, call, stream or logged error is left.

A test that asks for `network` runs once for each protocol, and with the mark `once` over TCP alone, where the transport
hardly matters. `RPCSTREAM_TRANSPORTS="tls memory unix wss https"` names others, for all tests (steps of `.ci/run`);
`asgi` and `asgi-ws` are HTTP and WebSocket where the server is mounted under uvicorn. With the mark `fake_time` a test
runs in memory only, on a loop whose time jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpcstream.testing import FakeTimeLoop

from ..kit import TRANSPORTS, Network, leftovers, live_sessions, until
from ..kit.logs import LogLines, logged
from ..kit.matrix import Transport, Unix

#: Each protocol once.
USUAL = ("tcp", "ws", "http")

#: Transports that carry messages, and not a stream of bytes.
MESSAGES = ("ws", "wss", "http", "https", "asgi", "asgi-ws", "nats")

#: Features that some transports lack: the mark of tests that need one, what it is, and the transports without it.
LACKING = {
    ("half_close", "where one direction can be closed while the other stays open"): MESSAGES,
    ("undelimited", "where values may stand behind each other in one message"): MESSAGES,
    ("framed", "where a message is one value"): ("tcp", "tls", "unix", "memory"),
    ("lasting", "where the connection outlives the answer: for calls back, credit, offers"): ("http", "https", "asgi"),
    ("own_socket", "where the server itself has the socket: what it reads, writes and closes takes no further turns"): (
        "asgi",
        "asgi-ws",
        "nats",
    ),
    ("backpressure", "where what a peer leaves unread shows at the other end"): ("nats",),
    ("one_read", "where messages that are sent together are read together"): ("nats",),
    ("own_subscribers", "where the server itself has all subscribers, and keeps the last values"): ("nats",),
    ("one_peer", "where all calls go to one peer, and the connection ends with it"): ("nats",),
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fake_time: in memory, on a loop with a fake clock")
    config.addinivalue_line("markers", "once: over TCP only, where the transport hardly matters")
    for name, meaning in LACKING:
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "transport" in metafunc.fixturenames:
        is_fake = metafunc.definition.get_closest_marker("fake_time") is not None
        usual = USUAL if metafunc.definition.get_closest_marker("once") is None else ("tcp",)
        names = ["memory"] if is_fake else os.environ.get("RPCSTREAM_TRANSPORTS", "").split() or list(usual)
        for (mark, _), lacking in LACKING.items():
            if metafunc.definition.get_closest_marker(mark) is not None:
                names = [name for name in names if name not in lacking]
        metafunc.parametrize("transport", names, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]] | None:
    return {"fake-time": FakeTimeLoop} if item.get_closest_marker("fake_time") else None


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> Transport:
    return TRANSPORTS[request.param]


@pytest.fixture
def folder(request: pytest.FixtureRequest, transport: Transport) -> Path | None:
    """A folder for the transport that needs one: to make one for each test takes longer than many a test."""
    return request.getfixturevalue("tmp_path") if isinstance(transport, Unix) else None


@pytest.fixture
async def network(transport: Transport, folder: Path | None, nothing_left: None) -> Network:
    return Network(transport, folder)


@pytest.fixture
async def fake_time() -> FakeTimeLoop:
    """The loop of a test that is marked so."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FakeTimeLoop)
    return loop


@pytest.fixture
def errors() -> Iterator[LogLines]:
    """The errors that are logged during the test; checked when it is over."""
    with logged(level=logging.ERROR) as errors:
        yield errors
    errors.check()


@pytest.fixture
def _quick_collection(errors: LogLines) -> None:
    """Freeze the objects that exist before the test, so that its final garbage collection is short."""
    gc.collect()
    gc.freeze()


@pytest.fixture
async def nothing_left(errors: LogLines, _quick_collection: None) -> AsyncIterator[None]:
    """When the test is over, no session may have left calls, streams, tasks or threads behind."""
    before, threads = asyncio.all_tasks(), set(threading.enumerate())
    yield
    for session in live_sessions():
        assert session.channel is None, "a connection is still open"
        assert not leftovers(session)
    await until(lambda: asyncio.all_tasks() <= before | {asyncio.current_task()})
    # Threads of earlier tests may end meanwhile.
    await until(
        lambda: not [each for each in set(threading.enumerate()) - threads if each.name.startswith("rpcstream-")]
    )
    gc.collect()
