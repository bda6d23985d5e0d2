"""TLS at the client, against real servers: trusted and untrusted certificates, and the errors."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from rpcstream import AsyncClient, CallTimeout, Client, ConnectFailed, ConnectionLost, Context, Server
from rpcstream.testing import serve_in_thread
from rpcstream.tls import TLS

from ..internals import settings_of

MakeClient = Callable[..., Any]
#: Serve with a certificate; gives host and port.
Serve = Callable[[TLS], str]


class Files:
    """Certificates of one authority, as files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(self.ca)

    def issue(self, name: str, *identities: str, **options: Any) -> Path:
        """Certificate and key in one file."""
        path = self._folder / f"{name}.pem"
        self._authority.issue_cert(*identities, **options).private_key_and_cert_chain_pem.write_to_path(path)
        return path

    def issue_apart(self, name: str, *identities: str) -> tuple[Path, Path]:
        """Certificate and key in a file each."""
        issued = self._authority.issue_cert(*identities)
        certificate, key = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(certificate)
        issued.private_key_pem.write_to_path(key)
        return certificate, key


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def here(files: Files) -> Path:
    """The certificate of a server on this machine."""
    return files.issue("here", "127.0.0.1", "localhost")


@pytest.fixture
def serve() -> Iterator[Serve]:
    running = []

    def start(tls: TLS) -> str:
        running.append(serve_in_thread(make_server(tls)))
        return running[-1].__enter__()

    yield start
    for each in running:
        each.__exit__(None, None, None)


def make_server(tls: TLS | None) -> Server:
    server = Server(tls=tls, drain_timeout=0.2)

    @server
    def echo(value: Any) -> Any:
        return value

    @server
    async def ask(ctx: Context) -> Any:
        return await ctx.peer.confirm("really?")

    @server
    async def count(upto: int) -> AsyncIterator[int]:
        for n in range(upto):
            yield n

    return server


@pytest.mark.parametrize("scheme", ["tls", "https", "wss"])
def test_a_server_with_a_certificate_that_is_known(
    serve: Serve, make_client: MakeClient, files: Files, here: Path, scheme: str
) -> None:
    address = serve(TLS(certificate=here))
    client = make_client(f"{scheme}://{address}", ca=files.ca)
    assert client.call("echo", 1) == 1
    assert client.call("echo", "x" * 2_000_000) == "x" * 2_000_000
    by_name = make_client(f"{scheme}://localhost:{address.rpartition(':')[2]}", ca=str(files.ca))
    assert by_name.call("echo", 2) == 2


def test_a_conversation_over_tls(serve: Serve, files: Files, here: Path) -> None:
    with Client(f"tls://{serve(TLS(certificate=here))}", ca=files.ca) as client:

        @client
        def confirm(question: str) -> str:
            return f"{question} yes"

        assert client.ask() == "really? yes"
        assert list(client.stream.count(100)) == list(range(100))


@pytest.mark.parametrize("scheme", ["tls", "https", "wss"])
def test_who_is_not_trusted(
    serve: Serve, make_client: MakeClient, files: Files, here: Path, tmp_path: Path, scheme: str
) -> None:
    known = serve(TLS(certificate=here))
    # The system knows nothing of this authority, and neither does another one.
    with pytest.raises(ConnectFailed, match=r"certificate is not to be trusted: .*local issuer"):
        make_client(f"{scheme}://{known}").call("echo", 1)
    with pytest.raises(ConnectFailed, match="certificate is not to be trusted"):
        make_client(f"{scheme}://{known}", ca=Files(tmp_path).ca).call("echo", 1)
    elsewhere = serve(TLS(certificate=files.issue("elsewhere", "example.org", "127.0.0.2")))
    with pytest.raises(ConnectFailed, match=r"not to be trusted: .*IP address mismatch"):
        make_client(f"{scheme}://{elsewhere}", ca=files.ca).call("echo", 1)
    with pytest.raises(ConnectFailed, match="not to be trusted: Hostname mismatch"):
        make_client(f"{scheme}://localhost:{elsewhere.rpartition(':')[2]}", ca=files.ca).call("echo", 1)
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    expired = serve(TLS(certificate=files.issue("expired", "127.0.0.1", not_after=yesterday)))
    with pytest.raises(ConnectFailed, match="not to be trusted: certificate has expired"):
        make_client(f"{scheme}://{expired}", ca=files.ca).call("echo", 1)


def test_there_is_no_way_not_to_verify(files: Files) -> None:
    """The client makes the TLS context itself: no option can turn verification off."""
    import ssl

    for client in (Client("tls://127.0.0.1"), Client("https://127.0.0.1", ca=files.ca)):
        context = settings_of(client).tls
        assert context is not None
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
        client.close()


@pytest.mark.parametrize("scheme", ["tls", "https", "wss"])
def test_a_client_with_a_certificate(
    serve: Serve, make_client: MakeClient, files: Files, here: Path, tmp_path: Path, scheme: str
) -> None:
    address = serve(TLS(certificate=here, client_ca=files.ca))
    together = files.issue("me", "me@example.org")
    certificate, key = files.issue_apart("us", "us@example.org")
    assert make_client(f"{scheme}://{address}", ca=files.ca, certificate=together).call("echo", 1) == 1
    assert make_client(f"{scheme}://{address}", ca=files.ca, certificate=certificate, key=key).call("echo", 1) == 1
    with pytest.raises((ConnectFailed, ConnectionLost), match="asks for a certificate, and was shown none"):
        make_client(f"{scheme}://{address}", ca=files.ca).call("echo", 1)
    stranger = Files(tmp_path).issue("stranger", "me@example.org")
    with pytest.raises((ConnectFailed, ConnectionLost), match=r"does not take the certificate .*: unknown ca"):
        make_client(f"{scheme}://{address}", ca=files.ca, certificate=stranger).call("echo", 1)


def test_files_that_are_wrong(files: Files, here: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Client("tls://127.0.0.1", ca=tmp_path / "none.pem")
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(OSError, match=r"SSL|PEM"):
        Client("tls://127.0.0.1", certificate=tmp_path / "empty.pem")
    with pytest.raises(ValueError, match="certificate= is not given"):
        Client("tls://127.0.0.1", key=here)
    with pytest.raises(ValueError, match="ca= is for TLS"):
        Client("127.0.0.1", ca=files.ca)


@pytest.mark.parametrize("scheme", ["tls", "https", "wss"])
def test_tls_to_a_plain_port(make_client: MakeClient, files: Files, scheme: str) -> None:
    with serve_in_thread(make_server(None)) as address, pytest.raises(ConnectFailed, match="could not connect"):
        make_client(f"{scheme}://{address}", ca=files.ca, connect_timeout=5).call("echo", 1)


@pytest.mark.parametrize("scheme", ["tcp", "http", "ws"])
def test_plain_text_to_a_tls_port(serve: Serve, make_client: MakeClient, here: Path, scheme: str) -> None:
    with pytest.raises((ConnectionLost, ConnectFailed)):
        make_client(f"{scheme}://{serve(TLS(certificate=here))}", timeout=5).call("echo", 1)


@pytest.mark.parametrize("scheme", ["tls", "https", "wss"])
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


async def test_a_call_ends_in_time_while_tls_stalls(files: Files) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with AsyncClient(f"tls://127.0.0.1:{listening.getsockname()[1]}", ca=files.ca) as client:
            with pytest.raises(CallTimeout, match="no connection in time"):
                await client.call("echo", 1, timeout=0.1)


# -- a client that gives up right after the TLS handshake -----------------------------------------------------------


@pytest.mark.parametrize("scheme", ["tls", "https", "wss"])
def test_what_is_given_up_while_it_connects_is_closed_before_the_loop_ends(
    scheme: str, files: Files, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asyncio closes such a connection with a closing handshake, which this server never answers."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(here)
    accepted: list[socket.socket] = []

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            accepted.append(context.wrap_socket(listener.accept()[0], server_side=True))

    async def give_up(address: str) -> None:
        client = AsyncClient(address, ca=files.ca)
        calling = asyncio.ensure_future(client.call("rpc.ping"))
        tasks: list[asyncio.Task[object]] = []
        create_connection = asyncio.SelectorEventLoop.create_connection

        async def cancelled(self: Any, make: Any, *args: Any, **options: Any) -> Any:
            def made() -> Any:
                protocol = make()
                connection_made = protocol.connection_made

                def cancel_then(transport: asyncio.Transport) -> None:
                    connection_made(transport)
                    tasks[0].cancel()

                protocol.connection_made = cancel_then
                return protocol

            current = asyncio.current_task()
            assert current is not None
            tasks.append(current)
            return await create_connection(self, made, *args, **options)

        monkeypatch.setattr(asyncio.SelectorEventLoop, "create_connection", cancelled)
        with pytest.raises((asyncio.CancelledError, ConnectionError)):
            await calling
        await client.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(give_up(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"))
            gc.collect()
        thread.join()
    for each in accepted:
        each.close()
    assert [str(warning.message) for warning in caught] == []


@pytest.mark.parametrize("scheme", ["tls", "https", "wss"])
def test_with_reconnect_a_certificate_that_is_not_trusted_is_told_at_once(
    serve: Serve, make_client: MakeClient, here: Path, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(f"{scheme}://{serve(TLS(certificate=here))}", reconnect=True)
    for _ in range(3):
        with pytest.raises(ConnectFailed, match=r"certificate is not to be trusted: .*local issuer") as caught:
            client.call("echo", 1)
        assert caught.value.is_permanent
    assert caught_warnings(caplog) == 1


def test_with_reconnect_a_certificate_that_is_asked_for_is_told_at_once(
    serve: Serve, make_client: MakeClient, files: Files, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = serve(TLS(certificate=here, client_ca=files.ca))
    client = make_client(f"tls://{address}", ca=files.ca, reconnect=True)
    for _ in range(3):
        with pytest.raises((ConnectFailed, ConnectionLost), match="asks for a certificate, and was shown none"):
            client.call("echo", 1)
    assert caught_warnings(caplog) == 1


def caught_warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.name == "rpcstream.client" and record.levelname == "WARNING" for record in caplog.records)
