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
from ..conftest import StartServer

pytestmark = pytest.mark.slow

READ_AGAIN = "SIGHUP: reading certificate, token and configuration again"
LOG = """
[handlers.file]
class = "logging.FileHandler"
filename = "log.txt"
[root]
level = "INFO"
handlers = ["file"]
"""


class Service:
    """A running `rpcstream-server`, whose log is a file; a SIGHUP has come while it was started."""

    def __init__(self, folder: Path, start: StartServer, *argv: str) -> None:
        (folder / "log.toml").write_text(LOG)
        self._log = folder / "log.txt"
        options = ("-p", "0", "--set", "log_config=log.toml", *argv)
        self.server = start("app.py:server", *options, cwd=folder, HANG_UP="1")
        self.address = self.server.address

    def hang_up(self, expected: str = READ_AGAIN) -> None:
        """Send SIGHUP, and wait until this stands in the log once more."""
        before = self._log.read_text().count(expected)
        self.server.process.send_signal(signal.SIGHUP)
        until_in_thread(lambda: self._log.read_text().count(expected) > before)


@pytest.fixture
def serve(folder: Path, start_server: StartServer) -> Callable[..., Service]:
    return lambda *argv: Service(folder, start_server, *argv)


def test_nothing_ends(serve: Callable[..., Service]) -> None:
    service = serve()
    with Client(service.address) as client:
        assert client.call("hang_up") == client.call("hang_up")
        service.hang_up()
        assert client.double(2) == 4
    service.server.stop()


def test_a_new_token_counts_at_once(serve: Callable[..., Service], folder: Path) -> None:
    file = folder / "token"
    file.write_text("old\n")
    service = serve("--token-file", "token")
    with Client(service.address, token="old") as old, Client(service.address, token="new") as new:
        assert old.double(1) == 2
        service.hang_up()
        assert old.double(1) == 2
        file.write_text("")
        service.hang_up("was not reloaded")
        assert old.double(2) == 4
        file.write_text("new\n")
        service.hang_up("the token was read again; connections to close: 1")
        with pytest.raises(NotAuthenticated):
            old.double(3)
        assert new.double(3) == 6
    service.server.stop()


def test_a_certificate_that_cannot_be_used_is_named_each_time(serve: Callable[..., Service], folder: Path) -> None:
    file = folder / "tls.pem"
    service = serve("--certificate", "tls.pem")
    file.write_text("not a certificate")
    service.hang_up("was not reloaded")
    service.hang_up("was not reloaded")
    with Client(f"tls://{service.address}", tls=folder / "ca.pem") as client:
        assert client.double(1) == 2
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(file))
    service.hang_up()
    host, _, port = service.address.rpartition(":")
    new = issued.cert_chain_pems[0].bytes().decode()
    until_in_thread(lambda: ssl.get_server_certificate((host, int(port))).strip() == new.strip())
    service.server.stop()
