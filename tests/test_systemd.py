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

import pytest

from rpcstream.systemd import Notifier, read_sockets

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
    assert environment == {"HOME": "/"}
    assert not caplog.records


def test_a_program_between_systemd_and_the_server_is_named(caplog: pytest.LogCaptureFixture) -> None:
    assert read_sockets(announced(1, pid=os.getppid())) == []
    assert "let it use exec" in caplog.text


@pytest.mark.parametrize("count", ["0", "-1", "x", "1025", "9" * 5000])
def test_a_number_of_sockets_that_makes_no_sense_is_an_error(count: str) -> None:
    with pytest.raises(OSError, match="from 1 to 1024 is expected"):
        read_sockets({**announced(1), "LISTEN_FDS": count})


def test_a_descriptor_that_is_not_open_is_named() -> None:
    with pytest.raises(OSError, match=r"descriptor 901 \(rpc\) from systemd: Bad file descriptor"):
        read_sockets(announced(1, "rpc"), 901)


def test_a_descriptor_that_is_no_socket_is_named(tmp_path: Path) -> None:
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


def test_the_environment_says_where_and_how_often_and_is_emptied() -> None:
    pid = str(os.getpid())
    environment = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": pid, "HOME": "/"}
    with Notifier.take(environment) as notifier:
        assert notifier.interval == 1.5
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize(
    "changed", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "-5"}, {"NOTIFY_SOCKET": ""}]
)
def test_a_watchdog_for_others_or_without_a_time_is_left_alone(changed: dict[str, str]) -> None:
    environment = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000", **changed}
    with Notifier.take(environment) as notifier:
        assert notifier.interval is None


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


async def received(manager: socket.socket) -> bytes:
    async with asyncio.timeout(20):
        while True:
            try:
                return manager.recv(1000)
            except BlockingIOError:
                await asyncio.sleep(0.001)


async def test_the_watchdog_hears_nothing_while_the_loop_is_blocked(tmp_path: Path, manager: socket.socket) -> None:
    with Notifier(str(tmp_path / "notify"), 0.01) as notifier:
        notifier.watch()
        for _ in range(3):
            assert await received(manager) == b"WATCHDOG=1"
        while True:  # what was sent before
            try:
                manager.recv(1000)
            except BlockingIOError:
                break
        time.sleep(0.1)
        with pytest.raises(BlockingIOError):
            manager.recv(1000)
        assert await received(manager) == b"WATCHDOG=1"
    while not manager_is_empty(manager):
        pass
    await asyncio.sleep(0.03)
    assert manager_is_empty(manager)


def manager_is_empty(manager: socket.socket) -> bool:
    try:
        manager.recv(1000)
    except BlockingIOError:
        return True
    return False


async def test_a_manager_that_does_not_read_stops_neither_the_loop_nor_fills_the_log(
    tmp_path: Path, manager: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    """The watchdog's datagrams are dropped where there is no room; the next ones come again."""
    with Notifier(str(tmp_path / "notify"), 0.0002) as notifier:
        notifier.watch()
        await asyncio.sleep(0.1)
        assert await received(manager) == b"WATCHDOG=1"
    assert not caplog.records
