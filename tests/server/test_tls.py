"""TLS at a server: changed certificates, failed handshakes, and plain text."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path
from typing import Any

import orjson
import pytest
import trustme

from rpcstream import Limits, Server
from rpcstream.testing import FakeTimeLoop
from rpcstream.tls import TLS, client_context

PING = b'{"jsonrpc":"2.0","id":1,"method":"rpc.ping"}\n'
PONG = {"jsonrpc": "2.0", "id": 1, "result": "pong"}


class Files:
    """An authority, and what it has issued, as files."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.ca, self.server, self.client = [folder / f"{name}.pem" for name in ("ca", "server", "client")]
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.issue(self.server, "localhost", "127.0.0.1")
        self.issue(self.client, "worker.example.org")

    def issue(self, path: Path, *names: str) -> bytes:
        """A new certificate with its key; its bytes, as the other end sees them."""
        issued = self.authority.issue_cert(*names)
        issued.private_key_and_cert_chain_pem.write_to_path(str(path))
        return ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def ask(address: str, tls: ssl.SSLContext | None, data: bytes = PING) -> tuple[Any, Any]:
    """The first line of the answer (None at the end), and the certificate that was shown."""
    host, _, port = address.rpartition(":")
    server_name = "localhost" if tls is not None else None
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls, server_hostname=server_name)
    try:
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True) if tls is not None else None
        writer.write(data)
        line = await asyncio.wait_for(reader.readline(), 20)
        return orjson.loads(line) if line else None, shown
    finally:
        writer.close()
        with contextlib.suppress(OSError):  # with the errors of TLS
            await writer.wait_closed()


async def test_who_trusts_whom(files: Files) -> None:
    async with Server(tls=TLS(certificate=files.server)).listening(port=0) as address:
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(address, client_context())
        assert (await ask(address, client_context(files.ca)))[0] == PONG
    async with Server(tls=TLS(certificate=files.server, ca=files.ca)).listening(port=0) as address:
        assert (await ask(address, client_context(TLS(ca=files.ca, certificate=files.client))))[0] == PONG
        for version, said in ((ssl.TLSVersion.TLSv1_3, "CERTIFICATE_REQUIRED"), (ssl.TLSVersion.TLSv1_2, "ALERT")):
            context = client_context(files.ca)
            context.maximum_version = version
            with pytest.raises(ssl.SSLError, match=said):
                await ask(address, context)


def test_a_certificate_that_is_gone_is_one_error(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FakeTimeLoop)
        loop.autojump = False
        tls = client_context(files.ca)
        async with Server(tls=TLS(certificate=files.server)).listening(port=0) as address:
            _, before = await ask(address, tls)
            files.server.unlink()
            for _ in range(3):
                loop.jump(1.1)
                assert await ask(address, tls) == (PONG, before)
            assert caplog.text.count("the one before stays in use") == 1
            assert str(files.server) in caplog.text
            new = files.issue(files.server, "localhost")
            loop.jump(1.1)
            await asyncio.sleep(0)
            assert await ask(address, tls) == (PONG, new)
            loop.autojump = True

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(main())


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_refused_certificate_cannot_be_talked_over(files: Files, goes_on: bool) -> None:
    """A client that stays when it is refused is left: at its next word, or when the time for a handshake is over."""
    server = Server(tls=TLS(certificate=files.server, ca=files.ca), limits=Limits(message_timeout=0.2))
    server.add(lambda: called.append(1), name="touch")
    called: list[int] = []
    async with server.listening(port=0) as address:
        host, _, port = address.rpartition("://")[2].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client_context(files.ca).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        writer.write(outgoing.read())
        while not tls.version() or outgoing.pending == 0:  # the client's last word of the handshake
            incoming.write(await reader.read(1 << 16))
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
        tls.write(b'{"jsonrpc":"2.0","method":"touch"}\n')
        writer.write(outgoing.read())
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                while await reader.read(1 << 16):
                    if goes_on:
                        tls.write(b'{"jsonrpc":"2.0","method":"touch"}\n')
                        writer.write(outgoing.read())
        writer.close()
        assert not called
        assert server.counters.connections_total == 0


def test_a_new_certificate_is_shown_without_a_restart_and_one_that_is_none_changes_nothing(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FakeTimeLoop)
        loop.autojump = False
        tls = client_context(files.ca)
        async with Server(tls=TLS(certificate=files.server)).listening(port=0) as address:
            _, before = await ask(address, tls)
            files.server.write_text("not a certificate")
            for _ in range(3):
                loop.jump(1.1)
                assert await ask(address, tls) == (PONG, before)
            assert caplog.text.count("the one before stays in use") == 1  # not once a second
            new = files.issue(files.server, "localhost")
            loop.jump(1.1)
            await asyncio.sleep(0)
            assert await ask(address, tls) == (PONG, new)
            loop.autojump = True
        assert before != new

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(main())


async def test_files_that_are_not_there(files: Files) -> None:
    for missing in ("certificate", "key", "ca"):
        with pytest.raises(OSError, match=r"nothing\.pem|No such file"):
            async with Server(tls=TLS(**{"certificate": files.server, missing: Path("nothing.pem")})).listening(port=0):
                pass


async def test_a_handshake_that_ends_after_the_server_has_stopped(files: Files) -> None:
    """The connection ends with the last reply, without waiting for the client's end of TLS."""
    loop = asyncio.get_running_loop()
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context(files.ca).wrap_bio(coming, going, server_hostname="localhost")
    with socket.socket() as caller:
        caller.setblocking(False)
        async with asyncio.timeout(20):
            async with Server(tls=TLS(certificate=files.server)).listening(port=0) as address:
                host, _, port = address.rpartition(":")
                await loop.sock_connect(caller, (host, int(port)))
                with pytest.raises(ssl.SSLWantReadError):
                    tls.do_handshake()
                await loop.sock_sendall(caller, going.read())
                coming.write(await loop.sock_recv(caller, 1 << 16))
            tls.do_handshake()
            await loop.sock_sendall(caller, going.read())
            with contextlib.suppress(ConnectionResetError):
                while await loop.sock_recv(caller, 1 << 16):
                    pass
