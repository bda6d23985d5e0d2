"""SIGHUP to `rpcstream-server` in one process: the certificate and the token are read again, and nothing ends."""

from __future__ import annotations

import signal
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from rpcstream import Client, NotAuthenticated

from ...kit import until_in_thread
from ..conftest import ServerProcess, StartServer

APP = """
import os, signal
from rpcstream import Server

os.kill(os.getpid(), signal.SIGHUP)  # while the server starts
server = Server()

@server
def double(n: int) -> int:
    return 2 * n

@server(offload="process")
def hang_up() -> int:
    os.kill(os.getpid(), signal.SIGHUP)
    return os.getpid()
"""


class Service:
    """A running `rpcstream-server`, whose log is a file."""

    def __init__(self, folder: Path, start: StartServer, *argv: str) -> None:
        (folder / "app.py").write_text(APP)
        self._log = folder / "log.txt"
        config = folder / "log.ini"
        config.write_text(
            "[loggers]\nkeys=root\n[handlers]\nkeys=file\n[formatters]\nkeys=\n"
            "[logger_root]\nlevel=INFO\nhandlers=file\n[handler_file]\nclass=FileHandler\n"
            f"args=({str(self._log)!r},)\n"
        )
        self.server: ServerProcess = start("app.py", "-p", "0", "--log-config", str(config), *argv, cwd=folder)
        self.address = self.server.address

    def hang_up(self, expected: str) -> None:
        """Send SIGHUP, and wait until this stands in the log once more."""
        before = self._log.read_text().count(expected)
        self.server.process.send_signal(signal.SIGHUP)
        until_in_thread(lambda: self._log.read_text().count(expected) > before)

    def end(self) -> int:
        self.server.process.send_signal(signal.SIGTERM)
        return self.server.rest()[0]


@pytest.fixture
def serve(tmp_path: Path, start_server: StartServer) -> Callable[..., Service]:
    return lambda *argv: Service(tmp_path, start_server, *argv)


def test_nothing_ends(serve: Callable[..., Service]) -> None:
    service = serve()
    with Client(service.address) as client:
        assert client.call("hang_up") == client.call("hang_up")
        service.hang_up("SIGHUP: reading certificate, token and configuration again")
        assert client.double(2) == 4
    assert service.end() == 0


def test_a_new_token_counts_at_once(serve: Callable[..., Service], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    service = serve("--token-file", "token")
    with Client(service.address, token="old") as old, Client(service.address, token="new") as new:
        assert old.double(1) == 2
        service.hang_up("SIGHUP: reading")
        assert old.double(1) == 2
        file.write_text("")
        service.hang_up("was not reloaded")
        assert old.double(2) == 4
        file.write_text("new\n")
        service.hang_up("the token was read again; connections to close: 1")
        with pytest.raises(NotAuthenticated):
            old.double(3)
        assert new.double(3) == 6
    assert service.end() == 0


def test_a_certificate_that_cannot_be_used_is_named_each_time(serve: Callable[..., Service], tmp_path: Path) -> None:
    authority, file, ca = trustme.CA(), tmp_path / "tls.pem", tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(file))
    service = serve("--certificate", "tls.pem")
    file.write_text("not a certificate")
    service.hang_up("was not reloaded")
    service.hang_up("was not reloaded")
    with Client(f"tls://{service.address}", ca=str(ca)) as client:
        assert client.double(1) == 2
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(file))
    service.hang_up("SIGHUP: reading")
    host, _, port = service.address.rpartition(":")
    new = issued.cert_chain_pems[0].bytes().decode()
    until_in_thread(lambda: ssl.get_server_certificate((host, int(port))).strip() == new.strip())
    assert service.end() == 0
