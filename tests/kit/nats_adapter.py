"""Carries the lines of a raw peer over NATS, one message for each line, with nats-py.

Owns the subjects of both ends, as the page of the protocol says; imports nothing of `rpcstream.nats`, so that a
mistake there is not made here, too.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import orjson

from .plain_nats import PlainClient


class RawTransport:
    """The transport as a raw peer sees it: each line written is a message.

    Args:
        client: the connection to NATS.
        peer: gets the lines that come.
        service: the name of the service.
        send: sends a line.
    """

    def __init__(self, client: Any, peer: Any, send: Callable[[RawTransport, bytes], Any]) -> None:
        self.client = client
        self.peer = peer
        #: Where messages for this conversation go, once the other end has said so; and those that wait for that.
        self.target = self.own = ""
        self.waiting: list[bytes] = []
        self.is_closed = False
        self._send = send
        self._rest = b""
        self._sending: set[asyncio.Task[Any]] = set()

    def write(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if not self.is_closed:
                # It never waits: little is sent.
                with suppress(StopIteration):
                    self._send(self, line).send(None)

    def take(self, payload: bytes, target: str) -> None:
        """The payload of a message has come, whose answers go to a subject."""
        if target:
            self.target = target
            waiting, self.waiting = self.waiting, []
            for line in waiting:
                self.write(line + b"\n")
        if payload:
            self.peer.data_received(payload + b"\n")

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> Any:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            task = asyncio.ensure_future(self.client.close())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
            self.peer.connection_lost(None)


async def connect_caller(make: Callable[[], Any], url: str, service: str) -> Any:
    """A raw peer that calls a service; its transport is a `RawTransport`."""
    client = PlainClient()
    await client.connect(url, allow_reconnect=False)
    inbox = f"{client.new_inbox()}.rpcstream"
    root = f"rpc.{service}."
    peer = make()
    asked: dict[str, Any] = {}

    async def send(transport: RawTransport, line: bytes) -> None:
        if not line:
            return  # the end of what is said: NATS has no word for that
        subject, token = root + "rpc.ping", "x"
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            pass
        else:
            method = message.get("method") if isinstance(message, dict) else None
            if isinstance(message, list):
                subject, token = root + "$batch", "b"
            elif isinstance(method, str) and (not method.startswith("$/") or "id" in message):
                subject, token = root + quote(method, safe="/.$-_" if "." in method else "/._-"), f"x{len(asked)}"
                asked[token] = message.get("id")
            elif isinstance(message, dict):
                if not transport.target:
                    transport.waiting.append(line)
                    return
                subject = transport.target
        await client.publish(subject, line, reply=f"{inbox}.{token}")

    transport = RawTransport(client, peer, send)

    async def received(message: Any) -> None:
        token = message.subject.rpartition(".")[2]
        if message.headers and message.headers.get("Status") == "503" and not message.data:
            if message.reply:
                peer.connection_lost(None)
            elif asked.get(token) is not None:
                error = {"code": -32601, "message": "Method not found"}
                transport.take(orjson.dumps({"jsonrpc": "2.0", "id": asked[token], "error": error}), "")
            return
        transport.take(b"" if b'"method":"$/session"' in message.data[:64] else message.data, message.reply)

    await client.subscribe(f"{inbox}.*", cb=received)
    await client.flush()
    peer.connection_made(transport)
    return peer


class RawService:
    """An instance of a service that makes a raw peer for each caller."""

    def __init__(self, accept: Callable[[], Any]) -> None:
        self.service = f"raw-{secrets.token_hex(4)}"
        self._accept = accept
        self._callers: dict[str, RawTransport] = {}

    async def start(self, url: str) -> None:
        self._client = PlainClient()
        await self._client.connect(url, allow_reconnect=False)
        await self._client.subscribe(f"rpc.{self.service}.>", cb=self._received)
        await self._client.flush()

    async def _received(self, message: Any) -> None:
        inbox = message.reply.rpartition(".")[0]
        transport = self._callers.get(inbox)
        if transport is None:
            own = f"rpc.{self.service}.$instance.raw.{len(self._callers)}"

            async def send(transport: RawTransport, line: bytes) -> None:
                # An empty one: the end of the session.
                headers = None if line else {"Status": "503"}
                await self._client.publish(f"{inbox}.m", line, reply=own, headers=headers)

            transport = self._callers[inbox] = RawTransport(self._client, self._accept(), send)
            transport.own = own
            transport.peer.connection_made(transport)
        if ".$inquiry" in message.subject or not message.data:
            return
        asked = orjson.loads(message.data)
        ids = [
            each["id"] for each in (asked if isinstance(asked, list) else [asked]) if "id" in each and "method" in each
        ]
        if ids:
            has = {"jsonrpc": "2.0", "method": "$/session", "params": {"has": ids}}
            await self._client.publish(f"{inbox}.m", orjson.dumps(has), reply=transport.own)
        transport.take(message.data, "")

    async def stop(self) -> None:
        await self._client.close()
