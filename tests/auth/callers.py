"""What the tests of authentication share: a server that says who calls, its ways of deciding, and clients of it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from rpcstream import Context, Credentials, Server
from rpcstream.tls import TLS

from ..kit import RawPeer, UsualServer, open_peer, raw_peers, request
from ..kit.http import RawHttpConnection

TOKEN = "a-long-secret"
PING = request("rpc.ping")
REFUSED, INVALID = -32005, -32600

has_peer_credentials = pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="needs SO_PEERCRED (Linux)")


class Door(UsualServer):
    """The usual server, which also says who calls and what that caller has shown."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add(self.call_who, name="who")
        self.add(self.call_shown, name="shown")

    def call_who(self, ctx: Context) -> Any:
        return ctx.identity

    def call_shown(self, ctx: Context) -> dict[str, Any]:
        found = ctx.credentials
        process = [found.pid, found.uid, found.gid]
        return {"token": found.token, "names": list(found.names), "process": process, "address": found.address}


def accept(credentials: Credentials) -> Any:
    return {"alice-secret": "alice", "bob-secret": "bob", "no": False, "zero": 0}.get(credentials.token or "")


class Desk:
    """An async `authenticate` that decides when it is told to.

    Attributes:
        asked: what it was called with.
    """

    def __init__(self, *, is_open: bool = False) -> None:
        self.asked: list[Credentials] = []
        self.asked_for = asyncio.Event()
        self.go = asyncio.Event()
        self.was_cancelled = False
        if is_open:
            self.go.set()

    async def __call__(self, credentials: Credentials) -> Any:
        self.asked.append(credentials)
        self.asked_for.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return accept(credentials) or next(iter(credentials.names), None)


def login(token: str = TOKEN, id: Any = 0) -> dict[str, Any]:
    return request("rpc.authenticate", token, id=id)


def outcome(reply: Any) -> Any:
    """The result, or the code of the error; of a batch a list of them."""
    if isinstance(reply, list):
        return [outcome(each) for each in reply]
    return reply["error"]["code"] if "error" in reply else reply["result"]


async def outcomes(raw: RawPeer, *messages: Any, replies: int | None = None) -> list[Any]:
    """What is answered to these, sent with one write; to each of them one answer, if nothing else is said."""
    raw.send(*messages)
    return [outcome(each) for each in await raw.receive_many(len(messages) if replies is None else replies)]


async def one_by_one(raw: RawPeer, *messages: Any) -> list[Any]:
    """What is answered to each, sent when the one before is answered."""
    return [outcome(await raw.ask(each)) for each in messages]


@asynccontextmanager
async def talking(server: Server) -> AsyncIterator[RawPeer]:
    """Serve, and connect a raw peer."""
    async with raw_peers(server) as connect:
        yield await connect()


@asynccontextmanager
async def http_connection(address: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawHttpConnection]:
    place = address.rpartition("://")[2]
    if place.startswith("/"):
        reader, writer = await asyncio.open_unix_connection(place)
    else:
        host, _, port = place.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    try:
        yield RawHttpConnection(reader, writer)
    finally:
        writer.close()


class Authority:
    """Certificates for a test: of a server, and of clients that it asks for theirs."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.file = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(self.file)
        server = folder / "server.pem"
        self._authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(server)
        self.tls = TLS(certificate=server, ca=self.file)

    def client(self, *names: str, common_name: str | None = None) -> ssl.SSLContext:
        """What a client with these names connects with; without any: one that has no certificate."""
        context = ssl.create_default_context(cafile=self.file)
        if names:
            self._authority.issue_cert(*names, common_name=common_name).configure_cert(context)
        return context


@asynccontextmanager
async def with_certificate(address: str, tls: ssl.SSLContext) -> AsyncIterator[RawPeer]:
    raw: RawPeer = await open_peer(address, tls=tls)
    try:
        yield raw
    finally:
        raw.close()
