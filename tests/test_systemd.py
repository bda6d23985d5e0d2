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

from rpcstream.systemd import Notifier, read_sockets

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


def announced(count: int, names: str = "", pid: int | None = None) -> dict[str, str]:
    return {"LISTEN_PID": str(pid or os.getpid()), "LISTEN_FDS": str(count), "LISTEN_FDNAMES": names, "HOME": "/"}


def passed(*sockets: socket.socket) -> int:
    """Put the sockets at descriptors one after the other, which is where systemd puts them; returns the first."""
    first = 200 + os.getpid() % 500
    for place, sock in enumerate(sockets, first):
        os.dup2(sock.fileno(), place, inheritable=True)
    return first


def test_sockets_come_in_order_with_their_names_and_the_variables_go() -> None:
    environment = announced(2, "rpc:admin")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        found = read_sockets(environment, passed(one, two))
        assert [name for name, _ in found] == ["rpc", "admin"]
        assert [sock.getsockname() for _, sock in found] == [one.getsockname(), two.getsockname()]
        assert not any(os.get_inheritable(sock.fileno()) for _, sock in found)
        for _, sock in found:
            sock.close()
    assert environment == {"HOME": "/"}


def test_sockets_for_another_process_are_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    assert read_sockets({}) == []
    environment = announced(1, pid=2**22 + 1)
    assert read_sockets(environment) == []
    assert (environment, caplog.text) == ({"HOME": "/"}, "")
    assert read_sockets(announced(1, pid=os.getppid())) == []
    assert "let it use exec" in caplog.text, "a program between systemd and the server is named"


@pytest.mark.parametrize("count", ["0", "-1", "x", "1025", "9" * 5000])
def test_a_number_of_sockets_that_makes_no_sense_is_an_error(count: str) -> None:
    with pytest.raises(OSError, match="from 1 to 1024 is expected"):
        read_sockets({**announced(1), "LISTEN_FDS": count})


def test_a_descriptor_that_is_none_or_no_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"descriptor 901 \(rpc\) from systemd: Bad file descriptor"):
        read_sockets(announced(1, "rpc"), 901)
    with (tmp_path / "file").open("w") as file, pytest.raises(OSError, match=r"from systemd: .*non-socket"):
        read_sockets(announced(1), file.fileno())


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
def test_an_abstract_socket_is_told() -> None:
    name = f"rpcstream-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name)
        with Notifier.take({"NOTIFY_SOCKET": "@" + name}) as notifier:
            notifier.ready()
        assert manager.recv(1000) == b"READY=1"


@pytest.mark.parametrize(
    ("changed", "interval"),
    [
        ({"WATCHDOG_PID": str(os.getpid())}, 1.5),
        ({"WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({"NOTIFY_SOCKET": ""}, None),
    ],
    ids=["ours", "for others", "no time", "a negative time", "no socket"],
)
def test_the_environment_says_where_and_how_often_and_is_emptied(changed: dict[str, str], interval: Any) -> None:
    environment = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000", "HOME": "/", **changed}
    with Notifier.take(environment) as notifier:
        assert notifier.interval == interval
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize("address", ["vsock:2:1234", "relative/path"])
def test_an_address_of_another_kind_is_named_and_not_used(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with Notifier(address, 10) as notifier:
        assert notifier.interval is None
        notifier.ready()
    assert address in caplog.text


def test_a_manager_that_is_gone_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Notifier(str(tmp_path / "nothing")) as notifier:
        notifier.ready()
        notifier.stopping()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


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
