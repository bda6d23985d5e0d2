"""TLS at the client, against real servers; what is not trusted, and wrong files, stand in test_faults."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from rpcstream import TLS, CallTimeout, ConnectFailed, ConnectionLost
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer
from .conftest import MakeClient

#: Serve with a certificate; gives host and port.
Serve = Callable[[TLS], str]

SCHEMES: Any = pytest.mark.parametrize("scheme", ["tls", "https", "wss"])


class Files:
    """Certificates of one authority, as files."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca, self.here, self.me = folder / "ca.pem", folder / "here.pem", folder / "me.pem"
        self.certificate, self.key = folder / "us.crt", folder / "us.key"
        authority.cert_pem.write_to_path(self.ca)
        for path, name in ((self.here, "127.0.0.1"), (self.me, "me@example.org")):
            authority.issue_cert(name, "localhost").private_key_and_cert_chain_pem.write_to_path(path)
        apart = authority.issue_cert("us@example.org")
        apart.cert_chain_pems[0].write_to_path(self.certificate)
        apart.private_key_pem.write_to_path(self.key)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def serve() -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:
        yield lambda tls: stack.enter_context(serve_in_thread(UsualServer(tls=tls, drain_timeout=0.2)))


@SCHEMES
def test_certificates_of_both_ends(
    serve: Serve, make_client: MakeClient, files: Files, tmp_path: Path, scheme: str
) -> None:
    address = f"{scheme}://{serve(TLS(certificate=files.here, client_ca=files.ca))}"
    for options in ({"certificate": files.me}, {"certificate": files.certificate, "key": files.key}):
        client = make_client(address, ca=files.ca, **options)
        for value in (1, "x" * 2_000_000):
            assert client.call("echo", value) == value
    by_name = make_client(f"{scheme}://localhost:{address.rpartition(':')[2]}", ca=str(files.ca), certificate=files.me)
    assert by_name.call("echo", 2) == 2
    for options, said in (
        ({}, "asks for a certificate, and was shown none"),
        ({"certificate": Files(tmp_path).me}, r"does not take the certificate .*: unknown ca"),
    ):
        with pytest.raises((ConnectFailed, ConnectionLost), match=said):
            make_client(address, ca=files.ca, **options).call("echo", 1)


@SCHEMES
def test_a_handshake_that_stalls(make_client: MakeClient, files: Files, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ended = threading.Event()

        def accept() -> None:
            sock, _ = listening.accept()
            with sock:
                while sock.recv(4096):
                    pass
            ended.set()

        thread = threading.Thread(target=accept)
        thread.start()
        client = make_client(f"{scheme}://127.0.0.1:{listening.getsockname()[1]}", ca=files.ca, connect_timeout=0.1)
        with pytest.raises(ConnectFailed, match=r"within 0\.1 s"):
            client.call("echo", 1)
        assert ended.wait(20)  # and the connection is not left behind
        thread.join()
        other = make_client(f"{scheme}://127.0.0.1:{listening.getsockname()[1]}", ca=files.ca)
        with pytest.raises(CallTimeout, match="'echo'"):
            other.call("echo", 1, timeout=0.1)


@pytest.mark.parametrize(
    ("scheme", "asks", "said"),
    [
        *[(scheme, False, r"certificate is not to be trusted: .*local issuer") for scheme in ("tls", "https", "wss")],
        ("tls", True, "asks for a certificate, and was shown none"),
    ],
)
def test_with_reconnect_a_certificate_that_is_refused_is_told_at_once(
    serve: Serve, make_client: MakeClient, files: Files, scheme: str, asks: bool, said: str, caplog: Any
) -> None:
    address = serve(TLS(certificate=files.here, client_ca=files.ca if asks else None))
    client = make_client(f"{scheme}://{address}", reconnect=True, **({"ca": files.ca} if asks else {}))
    for _ in range(3):
        with pytest.raises((ConnectFailed, ConnectionLost), match=said) as caught:
            client.call("echo", 1)
        assert asks or getattr(caught.value, "is_permanent")  # noqa: B009
    assert sum(record.name == "rpcstream.client" and record.levelname == "WARNING" for record in caplog.records) == 1
