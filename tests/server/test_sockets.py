"""Listening sockets that a server is given, its life under systemd, and restarts with socket activation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpcstream import AsyncClient, Client, Hub

from ..kit import UsualServer, authority, server_tls
from .activation import PASS_ON, restarted

if sys.platform == "win32":
    pytest.skip("Unix sockets", allow_module_level=True)


@pytest.fixture
def tcp() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@pytest.fixture
def unix(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "sock"))
        yield sock


# -- a server at sockets of others -------------------------------------------------------------------------------------


async def test_a_server_listens_at_all_sockets_that_it_is_given_and_leaves_them_to_the_next(
    tcp: socket.socket, unix: socket.socket, tmp_path: Path
) -> None:
    for make in (UsualServer, Hub, UsualServer):
        async with (server := make()).listening(sockets=[tcp, unix]) as address:
            assert server.addresses == (address, f"unix://{tmp_path / 'sock'}")
            assert address == f"127.0.0.1:{tcp.getsockname()[1]}"
            for each in server.addresses:
                async with AsyncClient(each) as client:
                    assert await client.rpc.ping() == "pong"
        assert os.path.exists(unix.getsockname())
        assert tcp.fileno() >= 0
        assert tcp.gettimeout() is None
    async with (
        UsualServer(tls=server_tls()).listening(sockets=[tcp]) as address,
        AsyncClient(f"tls://{address}", tls=authority()) as client,
    ):
        assert await client.add(1, 2) == 3
    server = UsualServer()
    await asyncio.to_thread(server.run, sockets=[tcp], on_listening=lambda address: server.stop())


async def test_what_connects_while_the_server_stops_is_not_accepted_any_more(tcp: socket.socket) -> None:
    """Such a connection is neither reset nor told to go away: it stays where the next server finds it."""
    server = UsualServer()
    with socket.socket() as raw:
        async with server.listening(sockets=[tcp]):
            raw.connect(tcp.getsockname())
            raw.sendall(b'{"jsonrpc":"2.0","id":1,"method":"add","params":[1,2]}\n')
            server.stop()  # in the same turn: the connection has not been accepted
        raw.setblocking(False)
        with pytest.raises(BlockingIOError):
            raw.recv(1)
        async with UsualServer().listening(sockets=[tcp]):
            reply = await asyncio.get_running_loop().sock_recv(raw, 1000)
            assert reply == b'{"jsonrpc":"2.0","id":1,"result":3}\n'


async def test_sockets_that_cannot_listen_are_refused(tcp: socket.socket) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams, socket.socket() as unbound:
        datagrams.bind(("127.0.0.1", 0))
        for sock, why in ((ours, "bound"), (datagrams, "stream sockets"), (unbound, "are bound")):
            server = UsualServer()
            with pytest.raises(ValueError, match=why):
                async with server.listening(sockets=[tcp, sock]):
                    pass
            assert not server.is_serving
    with socket.create_connection(tcp.getsockname()) as connection, pytest.raises(ValueError, match="not connections"):
        async with UsualServer().listening(sockets=[connection]):
            pass


# -- under systemd -----------------------------------------------------------------------------------------------------

SERVICE = """
import os
from rpcstream import Server

server = Server(processes=1)

def variables() -> list[str]:
    return [name for name in os.environ if name.startswith(("LISTEN", "NOTIFY", "WATCHDOG"))]

server.add(variables)
server.add(variables, name="in_worker", offload="process")
"""


class Manager:
    """Starts programs as systemd does, with the socket `sock` of a folder, and hears what they tell."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self.address = f"unix://{folder / 'sock'}"
        self._stack = stack
        self.listening = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self.listening.bind(str(folder / "sock"))
        self.listening.listen()
        self._notified = self._stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._notified.bind(str(folder / "notify"))
        self._notified.settimeout(30)

    def start(self, *arguments: str, watchdog: str = "20000000") -> subprocess.Popen[str]:
        program = [sys.executable, "-c", PASS_ON, str(self.listening.fileno()), "-m", "rpcstream.cli.serve", *arguments]
        return self._stack.enter_context(
            subprocess.Popen(
                program,
                pass_fds=[self.listening.fileno()],
                cwd=self.folder,
                env={**os.environ, "NOTIFY_SOCKET": str(self.folder / "notify"), "WATCHDOG_USEC": watchdog},
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )

    def heard(self) -> str:
        """The next datagram that is not of the watchdog."""
        while (text := self._notified.recv(1000).decode()) == "WATCHDOG=1":
            pass
        return text

    def hears_watchdog(self) -> bool:
        """Whether the next datagram is of the watchdog."""
        return self._notified.recv(1000) == b"WATCHDOG=1"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with contextlib.ExitStack() as stack:
        yield Manager(tmp_path, stack)


@pytest.mark.slow
def test_a_service_says_that_it_is_ready_and_that_it_stops(manager: Manager) -> None:
    (manager.folder / "service.py").write_text(SERVICE)
    program = manager.start("service.py", watchdog="40000")
    assert manager.heard() == f"READY=1\nSTATUS=Listening at {manager.address}"
    assert manager.hears_watchdog()
    with Client(manager.address) as client:
        assert client.variables() == []
        assert client.in_worker() == []
        assert manager.hears_watchdog()
    program.send_signal(signal.SIGTERM)
    assert manager.heard() == "STOPPING=1\nSTATUS=Stopping"
    out, err = program.communicate(timeout=30)
    assert (program.returncode, err) == (0, "")
    assert out.startswith(f"Listening at {manager.address}\n")
    assert os.path.exists(manager.listening.getsockname())


@pytest.mark.slow
def test_a_hub_says_that_it_reads_its_configuration_again(manager: Manager) -> None:
    config = manager.folder / "hub.toml"
    config.write_text("port = 1\ncall_timeout = 5\n")
    program = manager.start("--hub", "--config", "hub.toml")
    assert manager.heard() == f"READY=1\nSTATUS=Listening at {manager.address}"
    program.send_signal(signal.SIGHUP)
    reloading, clock, _ = manager.heard().splitlines()
    assert (reloading, clock.partition("=")[0]) == ("RELOADING=1", "MONOTONIC_USEC")
    assert manager.heard() == f"READY=1\nSTATUS=Listening at {manager.address}"
    config.write_text("call_timeout = -1\n")
    program.send_signal(signal.SIGHUP)
    assert manager.heard().startswith("RELOADING=1\n")
    assert manager.heard() == "READY=1\nSTATUS=The configuration could not be read again: see the log"
    program.send_signal(signal.SIGTERM)
    assert manager.heard() == "STOPPING=1\nSTATUS=Stopping"
    _, err = program.communicate(timeout=30)
    assert program.returncode == 0
    assert "the configuration was not reloaded" in err


@pytest.mark.slow
def test_the_command_refuses_another_address_and_a_socket_that_does_not_listen(manager: Manager) -> None:
    def refused(*options: str) -> str:
        program = manager.start("--hub", *options)
        _, err = program.communicate(timeout=30)
        assert program.returncode == 2
        return err

    for option in ("--port", "--host", "--unix"):
        assert f"systemd has passed listening sockets: remove {option}" in refused(option, "0")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        os.dup2(datagrams.fileno(), manager.listening.fileno())
        assert "socket activation: descriptor 3 from systemd: it does not listen" in refused()


RUNS_ITSELF = """
import socket
from rpcstream import Server

server = Server()
own = socket.create_server(("127.0.0.1", 0))
server.run(sockets=[own])
"""


@pytest.mark.slow
def test_passed_sockets_and_an_address_of_the_command_come_before_those_of_a_module(manager: Manager) -> None:
    (manager.folder / "service.py").write_text(RUNS_ITSELF)
    program = manager.start("service.py")
    assert manager.heard() == f"READY=1\nSTATUS=Listening at {manager.address}"
    program.terminate()
    assert program.wait(30) == 0
    for option, begins in (((), "127.0.0.1:"), (("--unix", "other"), f"unix://{manager.folder / 'other'}")):
        command = [sys.executable, "-m", "rpcstream.cli.serve", "service.py", *option]
        with subprocess.Popen(command, cwd=manager.folder, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            assert program.stdout.readline().split()[-1].startswith(begins)
            program.terminate()
            assert program.wait(30) == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-socket-activate") is None, reason="no systemd-socket-activate")
def test_systemd_itself_activates_a_service(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(SERVICE)
    address = f"unix://{tmp_path / 'sock'}"
    passed = [f"-E{name}" for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ]
    command = ["systemd-socket-activate", *passed, "-l", str(tmp_path / "sock"), "--fdname=rpc", sys.executable]
    command += ["-m", "rpcstream.cli.serve", "service.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as program:
        try:
            with Client(address, wait_for=30) as client:
                assert client.variables() == []
        finally:
            program.terminate()
            out, _ = program.communicate(timeout=30)
        assert program.returncode == 0
        assert out.startswith(f"Listening at {address}\n")


@pytest.mark.slow
async def test_restarts_of_an_activated_server_under_load_lose_no_call() -> None:
    outcome, _ = await restarted(restarts=2, calls=100)
    assert outcome.is_right, outcome
    assert outcome.restarts == 2
