"""Identities from the connection instead of a token: client certificates (mutual TLS) and Unix sockets."""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import trustme

from rpcstream import Credentials
from rpcstream.tls import TLS

from ..kit import RawPeer, request
from .callers import (
    REFUSED,
    Authority,
    Desk,
    Door,
    has_peer_credentials,
    login,
    one_by_one,
    outcome,
    outcomes,
    with_certificate,
)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def by_name(credentials: Credentials) -> str | None:
    """Robots by their certificate, people by a token."""
    if credentials.token is not None:
        return f"person {credentials.token}" if credentials.token == "secret" else None
    return next((f"robot {name}" for name in credentials.names if name.startswith("robot-")), None)


async def by_name_later(credentials: Credentials) -> str | None:
    await asyncio.sleep(0)
    return by_name(credentials)


@pytest.mark.parametrize(
    ("name", "sent", "found"),
    [
        ("robot-1.example", [request("who"), request("who")], ["robot robot-1.example"] * 2),
        # One that is not enough leaves the token; what the connection shows is no attempt.
        ("laptop.example", [request("who"), login("a"), login("b")], [REFUSED] * 3),
        (
            "laptop.example",
            [login("a"), login("b"), login("secret"), request("who")],
            [REFUSED] * 2 + [True, "person secret"],
        ),
        # A robot may become a person.
        ("robot-2.example", [login("secret"), login("wrong"), request("who")], [True, REFUSED, "person secret"]),
    ],
)
async def test_a_certificate_is_enough(authority: Authority, name: str, sent: list[Any], found: list[Any]) -> None:
    server = Door(authenticate=by_name_later, tls=authority.tls)
    async with server.listening(port=0) as address, with_certificate(address, authority.client(name)) as raw:
        assert await one_by_one(raw, *sent) == found


async def test_all_names_are_there(authority: Authority) -> None:
    client = authority.client("host.example", "me@example.org", "10.0.0.1", common_name="robot-7")
    server = Door(authenticate=lambda credentials: credentials.address, tls=authority.tls)
    async with server.listening(port=0) as address, with_certificate(address, client) as raw:
        shown = await raw.result("shown")
        own = "{}:{}".format(*raw.transport.get_extra_info("sockname"))
        assert await raw.result("who") == own
    names = shown.pop("names")
    assert (names[0], sorted(names[1:])) == ("robot-7", ["host.example", "me@example.org"])
    assert shown == {"token": None, "process": [None, None, None], "address": own}


async def test_certificates_of_others_are_no_names(authority: Authority) -> None:
    """One by another authority ends the connection; without one, where it is not asked for, there are no names."""
    stranger = ssl.create_default_context(cafile=authority.file)
    trustme.CA().issue_cert("robot-1.example").configure_cert(stranger)
    desk = Desk(is_open=True)
    async with Door(authenticate=desk, tls=authority.tls).listening(port=0) as address:
        for client in (stranger, authority.client()):
            try:
                async with with_certificate(address, client) as raw:
                    raw.call("who")
                    assert await raw.rest() == []
            except (ssl.SSLError, ConnectionError):
                pass
    assert desk.asked == []
    open_to_all = TLS(certificate=authority.tls.certificate)
    async with (
        Door(authenticate=desk, tls=open_to_all).listening(port=0) as address,
        with_certificate(address, stranger) as raw,
    ):
        assert await one_by_one(raw, request("who"), login("x")) == [REFUSED] * 2
    assert [credentials.names for credentials in desk.asked] == [()]


async def test_with_a_token_alone_certificates_say_nothing(authority: Authority) -> None:
    server = Door(token="secret", tls=authority.tls)
    async with (
        server.listening(port=0) as address,
        with_certificate(address, authority.client("robot-1.example")) as raw,
    ):
        assert await one_by_one(raw, request("who"), login("secret"), request("who")) == [REFUSED, True, "token"]


def own_process(credentials: Credentials) -> str | None:
    return "the owner" if credentials.uid == os.getuid() else None


async def own_process_later(credentials: Credentials) -> str | None:
    await asyncio.sleep(0)
    return own_process(credentials)


@has_peer_credentials
@pytest.mark.parametrize(
    ("options", "identity"),
    [({"authenticate": own_process}, "the owner"), ({"authenticate": own_process_later}, "the owner"), ({}, None)],
)
async def test_the_process_at_a_unix_socket_is_known(tmp_path: Path, options: Any, identity: str | None) -> None:
    async with Door(**options).listening(unix=tmp_path / "socket") as address:
        raw = await RawPeer.open(address)
        assert await raw.result("who") == identity
        shown = await raw.result("shown")
        assert (shown["process"], shown["names"]) == ([os.getpid(), os.getuid(), os.getgid()], [])
        raw.close()


@has_peer_credentials
async def test_another_process_is_another(tmp_path: Path) -> None:
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        's.sendall(b\'{"jsonrpc":"2.0","id":1,"method":"shown"}\\n\'); print(s.makefile().readline())'
    )
    async with Door(authenticate=own_process).listening(unix=tmp_path / "socket") as address:
        path, pipe = address.removeprefix("unix://"), asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, path, stdout=pipe)
        output, _ = await process.communicate()
    assert orjson.loads(output)["result"]["process"] == [process.pid, os.getuid(), os.getgid()]


async def test_a_process_that_is_not_accepted_may_still_show_a_token(tmp_path: Path) -> None:
    async with Door(authenticate=by_name).listening(unix=tmp_path / "socket") as address:
        raw = await RawPeer.open(address)
        assert await outcomes(raw, request("who"), login("secret")) == [REFUSED, True]
        assert outcome(await raw.ask(request("who"))) == "person secret"
        raw.close()
