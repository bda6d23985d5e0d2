"""Identities from the connection instead of a token: client certificates (mutual TLS) and Unix sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import trustme

from rpcstream import Client, Context, Limits, Server
from rpcstream.peer.credentials import Credentials
from rpcstream.testing import serve_in_thread
from rpcstream.tls import TLS

from ..kit.raw_connection import RawConnection
from .test_gate import Connect, Desk, code_of, lines, login, request

has_peer_credentials = pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="needs SO_PEERCRED (Linux)")


class Authority:
    """Certificates for this test: of a server, and of clients that it asks for theirs."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.file = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(self.file)
        server = folder / "server.pem"
        self._authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(server)
        self.tls = TLS(certificate=server, client_ca=self.file)

    def client(self, *names: str, common_name: str | None = None) -> ssl.SSLContext:
        """What a client with these names connects with; without any: one that has no certificate."""
        context = ssl.create_default_context(cafile=self.file)
        if names:
            self._authority.issue_cert(*names, common_name=common_name).configure_cert(context)
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def connected(address: str, tls: ssl.SSLContext) -> AsyncIterator[RawConnection]:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    raw = RawConnection(*await asyncio.open_connection(host, int(port), ssl=tls))
    try:
        yield raw
    finally:
        await raw.close()


def serving(authenticate: Any, **options: Any) -> Server:
    server = Server(authenticate=authenticate, **options)

    @server
    def who(ctx: Context) -> Any:
        return ctx.identity

    @server
    def shown(ctx: Context) -> dict[str, Any]:
        found = ctx.credentials
        return {
            "token": found.token,
            "names": list(found.names),
            "process": [found.pid, found.uid, found.gid],
            "address": found.address,
            "headers": dict(ctx.headers),
        }

    return server


def by_name(credentials: Credentials) -> str | None:
    """Robots by their certificate, people by a token."""
    if credentials.token is not None:
        return f"person {credentials.token}" if credentials.token == "secret" else None
    return next((f"robot {name}" for name in credentials.names if name.startswith("robot-")), None)


async def by_name_later(credentials: Credentials) -> str | None:
    await asyncio.sleep(0)
    return by_name(credentials)


async def reply_over(address: str, tls: ssl.SSLContext) -> Any:
    """What `who` answers on a connection of its own; None if the connection does not come to that."""
    try:
        async with connected(address, tls) as raw:
            return await raw.call("who")
    except (ssl.SSLError, ConnectionError):
        return None


# -- mutual TLS -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("authenticate", [by_name, by_name_later])
async def test_a_certificate_is_enough(authority: Authority, authenticate: Any) -> None:
    server = serving(authenticate, tls=authority.tls)
    async with server.listening(port=0) as address, connected(address, authority.client("robot-1.example")) as raw:
        await raw.send(lines(request("who", id=1), request("who", id=2)))
        assert [(await raw.reply())["result"] for _ in range(2)] == ["robot robot-1.example"] * 2


async def test_all_names_are_there(authority: Authority) -> None:
    seen: list[Credentials] = []

    def note(credentials: Credentials) -> str:
        seen.append(credentials)
        return "x"

    client = authority.client("host.example", "me@example.org", "10.0.0.1", common_name="robot-7")
    server = serving(note, tls=authority.tls)
    async with server.listening(port=0) as address, connected(address, client) as raw:
        shown = (await raw.call("shown"))["result"]
        own = "{}:{}".format(*raw.writer.get_extra_info("sockname"))
    (credentials,) = seen
    assert credentials.names[0] == "robot-7"
    assert sorted(credentials.names[1:]) == ["host.example", "me@example.org"]
    assert (credentials.token, credentials.pid, credentials.uid, credentials.gid) == (None, None, None, None)
    assert credentials.address == own
    assert shown == {
        "token": None,
        "names": list(credentials.names),
        "process": [None, None, None],
        "address": own,
        "headers": {},
    }


async def test_a_certificate_that_is_not_enough_leaves_the_token(authority: Authority) -> None:
    server = serving(by_name, tls=authority.tls)
    async with server.listening(port=0) as address, connected(address, authority.client("laptop.example")) as raw:
        assert code_of(await raw.call("who")) == -32005
        for wrong in ("a", "b"):  # the first attempt counts as none
            assert code_of(await raw.call("rpc.authenticate", [wrong])) == -32005
        assert (await raw.call("rpc.authenticate", ["secret"]))["result"] is True
        assert (await raw.call("who"))["result"] == "person secret"


async def test_a_robot_may_become_a_person(authority: Authority) -> None:
    server = serving(by_name, tls=authority.tls)
    async with server.listening(port=0) as address, connected(address, authority.client("robot-1.example")) as raw:
        await raw.send(lines(request("who"), login("secret"), login("wrong")))
        assert [(await raw.reply()).get("result") for _ in range(3)] == ["robot robot-1.example", True, None]
        assert (await raw.call("who"))["result"] == "person secret"


async def test_certificates_of_others_are_no_names(authority: Authority, tmp_path: Path) -> None:
    """One by another authority ends the connection; without one, where it is not asked for, there are no names."""
    other = trustme.CA()
    stranger = ssl.create_default_context(cafile=authority.file)
    other.issue_cert("robot-1.example").configure_cert(stranger)
    seen: list[Credentials] = []

    def note(credentials: Credentials) -> str | None:
        seen.append(credentials)
        return by_name(credentials)

    async with serving(note, tls=authority.tls).listening(port=0) as address:
        for client in (stranger, authority.client()):
            assert await reply_over(address, client) is None
    assert seen == []

    open_to_all = TLS(certificate=authority.tls.certificate)
    async with serving(note, tls=open_to_all).listening(port=0) as address, connected(address, stranger) as raw:
        assert code_of(await raw.call("who")) == -32005
        assert code_of(await raw.call("rpc.authenticate", ["x"])) == -32005
    assert [credentials.names for credentials in seen] == [()]


async def test_with_a_token_alone_certificates_say_nothing(authority: Authority) -> None:
    server = Server(token="secret", tls=authority.tls)
    server.add(lambda: 1, name="one")
    async with server.listening(port=0) as address, connected(address, authority.client("robot-1.example")) as raw:
        assert code_of(await raw.call("one")) == -32005
        await raw.send(lines(login("secret"), request("one")))
        assert [(await raw.reply())["result"] for _ in range(2)] == [True, 1]


async def test_what_is_sent_while_a_certificate_is_looked_up_waits(authority: Authority) -> None:
    desk = Desk()

    async def find(credentials: Credentials) -> str | None:
        await desk(credentials)
        return credentials.names[0]

    server = serving(find, tls=authority.tls)
    async with server.listening(port=0) as address, connected(address, authority.client("robot-1.example")) as raw:
        await raw.send(lines(*[request("who", id=n) for n in range(100)]))
        await desk.asked_for.wait()
        await raw.send(lines(*[request("who", id=n) for n in range(100, 200)]))
        desk.go.set()
        replies = [await raw.reply() for _ in range(200)]
    assert [each["id"] for each in replies] == list(range(200))
    assert {each["result"] for each in replies} == {"robot-1.example"}
    assert len(desk.asked) == 1


async def test_a_certificate_that_cannot_be_looked_up_lets_nobody_in(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(credentials: Credentials) -> Any:
        raise LookupError("no directory")

    server = serving(fail, tls=authority.tls)
    async with server.listening(port=0) as address, connected(address, authority.client("robot-1.example")) as raw:
        assert code_of(await raw.call("who")) == -32005
    assert "no directory" in caplog.text


# -- Unix sockets ---------------------------------------------------------------------------------------------------


def own_process(credentials: Credentials) -> str | None:
    return "the owner" if credentials.uid == os.getuid() else None


async def own_process_later(credentials: Credentials) -> str | None:
    await asyncio.sleep(0)
    return own_process(credentials)


@has_peer_credentials
@pytest.mark.parametrize("authenticate", [own_process, own_process_later])
async def test_the_process_at_a_unix_socket_is_known(tmp_path: Path, connect: Connect, authenticate: Any) -> None:
    server = serving(authenticate)
    async with server.listening(unix=tmp_path / "socket") as address:
        raw = await connect(address)
        assert (await raw.call("who"))["result"] == "the owner"
        shown = (await raw.call("shown"))["result"]
        assert shown["process"] == [os.getpid(), os.getuid(), os.getgid()]
        assert shown["names"] == []


@has_peer_credentials
async def test_a_lost_connection_ends_the_decision_about_it(tmp_path: Path, connect: Connect) -> None:
    desk = Desk()
    async with serving(desk, limits=Limits(auth_timeout=None)).listening(unix=tmp_path / "socket") as address:
        raw = await connect(address)
        await raw.send(b" ")  # the server waits to see what is spoken
        await desk.asked_for.wait()
        await raw.close()
        async with asyncio.timeout(20):
            while not desk.was_cancelled:
                await asyncio.sleep(0)


@has_peer_credentials
async def test_another_process_is_another(tmp_path: Path) -> None:
    server = serving(own_process)
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        's.sendall(b\'{"jsonrpc":"2.0","id":1,"method":"shown"}\\n\'); print(s.makefile().readline())'
    )
    async with server.listening(unix=tmp_path / "socket") as address:
        path = address.removeprefix("unix://")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, path, stdout=pipe)
        output, _ = await process.communicate()
    assert orjson.loads(output)["result"]["process"] == [process.pid, os.getuid(), os.getgid()]


@has_peer_credentials
async def test_without_authentication_they_are_there_for_who_asks(tmp_path: Path, connect: Connect) -> None:
    server = Server()

    @server
    def uid(ctx: Context) -> Any:
        return [ctx.credentials.uid, ctx.identity]

    async with server.listening(unix=tmp_path / "socket") as address:
        raw = await connect(address)
        assert (await raw.call("uid"))["result"] == [os.getuid(), None]


@has_peer_credentials
async def test_they_are_not_looked_up_unless_asked_for(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("looked up")

    monkeypatch.setattr("rpcstream.peer.credentials._unix_peer", refuse)
    server = Server()

    @server
    def plain(ctx: Context) -> Any:
        return ctx.identity

    async with server.listening(unix=tmp_path / "socket") as address:
        raw = await connect(address)
        assert (await raw.call("plain"))["result"] is None


def test_a_process_that_is_not_accepted_may_still_show_a_token(tmp_path: Path) -> None:
    """With the sync client, on a real server in a thread."""

    def find(credentials: Credentials) -> str | None:
        return "person" if credentials.token == "secret" else None

    server = serving(find, limits=Limits(auth_timeout=None))
    with serve_in_thread(server, unix=tmp_path / "socket") as address, Client(address) as client:
        assert client.call("rpc.authenticate", "secret") is True
        assert client.call("who") == "person"
        assert client.call("shown")["token"] is None
