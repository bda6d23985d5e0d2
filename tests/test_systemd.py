"""What systemd passes by the environment, and what it is told by datagrams."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rpcstream.systemd import Notifier, take_sockets

from .kit import until

if sys.platform == "win32":
    pytest.skip("Unix sockets", allow_module_level=True)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """systemd's end: a socket for datagrams at `notify` in the test's folder."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


def announce(monkeypatch: pytest.MonkeyPatch, count: int, pid: int | None = None) -> None:
    monkeypatch.setenv("LISTEN_PID", str(pid or os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", str(count))
    monkeypatch.setenv("LISTEN_FDNAMES", "rpc:admin")


def has_variables() -> bool:
    return any(key.startswith(("LISTEN_", "NOTIFY_", "WATCHDOG_")) for key in os.environ)


def passed(*sockets: socket.socket) -> int:
    """Put the sockets at descriptors one after the other, which is where systemd puts them; returns the first."""
    first = 200 + os.getpid() % 500
    for place, sock in enumerate(sockets, first):
        os.dup2(sock.fileno(), place, inheritable=True)
    return first


def test_sockets_come_in_order_once_and_the_variables_go(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, 2)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        found = take_sockets(passed(one, two))
        assert [sock.getsockname() for sock in found] == [one.getsockname(), two.getsockname()]
        assert not any(os.get_inheritable(sock.fileno()) for sock in found)
        for sock in found:
            sock.close()
    assert not has_variables()
    assert take_sockets() == []


def test_sockets_for_another_process_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, 1, pid=2**22 + 1)
    assert take_sockets() == []
    assert not has_variables()


def test_a_descriptor_that_is_none_or_no_socket_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, 1)
    with pytest.raises(OSError, match=r"descriptor 901 from systemd: Bad file descriptor"):
        take_sockets(901)
    announce(monkeypatch, 1)
    with (tmp_path / "file").open("w") as file, pytest.raises(OSError, match=r"from systemd: .*non-socket"):
        take_sockets(file.fileno())


def test_states_are_told_with_a_status(tmp_path: Path, manager: socket.socket) -> None:
    with Notifier(str(tmp_path / "notify")) as notifier:
        notifier.ready("Listening at 127.0.0.1:1")
        notifier.reloading()
        notifier.stopping("x\nREADY=1")
    assert manager.recv(1000) == b"READY=1\nSTATUS=Listening at 127.0.0.1:1"
    state, clock = manager.recv(1000).split(b"\n")
    assert state == b"RELOADING=1"
    assert 0 < int(clock.removeprefix(b"MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
    assert manager.recv(1000) == b"STOPPING=1\nSTATUS=x\\u000aREADY=1"


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets")
def test_an_abstract_socket_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"rpcstream-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
        with Notifier.take() as notifier:
            notifier.ready()
        assert manager.recv(1000) == b"READY=1"


@pytest.mark.parametrize(
    ("changed", "interval"),
    [
        ({"WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": ""}, None),
        ({"NOTIFY_SOCKET": ""}, None),
    ],
    ids=["ours", "for others", "no time", "no socket"],
)
def test_the_environment_says_where_and_how_often_and_is_emptied(
    changed: dict[str, str], interval: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000", **changed}.items():
        monkeypatch.setenv(key, value)
    with Notifier.take() as notifier:
        assert notifier.interval == interval
    assert not has_variables()


@pytest.mark.parametrize("address", ["vsock:2:1234", "/nothing/here"])
def test_a_manager_that_is_gone_is_logged(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with Notifier(address) as notifier:
        notifier.ready()
        notifier.stopping()
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


def next_datagram(manager: socket.socket) -> bytes:
    try:
        return manager.recv(1000)
    except BlockingIOError:
        return b""


async def test_the_watchdog_hears_nothing_while_the_loop_is_blocked(tmp_path: Path, manager: socket.socket) -> None:
    with Notifier(str(tmp_path / "notify"), 0.01) as notifier:
        notifier.watch()
        for _ in range(3):
            await until(lambda: next_datagram(manager) == b"WATCHDOG=1")
        while next_datagram(manager):  # what was sent before
            pass
        time.sleep(0.1)
        assert next_datagram(manager) == b""
        await until(lambda: next_datagram(manager) == b"WATCHDOG=1")
    while next_datagram(manager):
        pass
    await asyncio.sleep(0.03)
    assert next_datagram(manager) == b""


async def test_a_manager_that_does_not_read_stops_neither_the_loop_nor_fills_the_log(
    tmp_path: Path, manager: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    """The watchdog's datagrams are dropped where there is no room; the next ones come again."""
    with Notifier(str(tmp_path / "notify"), 0.0002) as notifier:
        notifier.watch()
        await asyncio.sleep(0.1)
        await until(lambda: next_datagram(manager) == b"WATCHDOG=1")
    assert not caplog.records
