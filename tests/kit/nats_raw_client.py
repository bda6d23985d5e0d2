"""A client of NATS that writes what it is told, as hostile and careless ones do; knows nothing of rpcstream."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple, Self


class RawMessage(NamedTuple):
    """A message that has come; `head` are its headers, as bytes."""

    subject: str
    reply: str
    head: bytes
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class RawClient:
    """A socket to a NATS server.

    Attributes:
        messages: those that have come for its subscriptions and were not taken with `next`.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._pongs: asyncio.Queue[None] = asyncio.Queue()
        self._subscriptions = 0
        self.messages: asyncio.Queue[RawMessage] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, port: int, user: str | None = None) -> Self:
        """Connect; a user of the tests has the password "p"."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.readline()
        self = cls(reader, writer)
        login = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        writer.write(b"CONNECT " + json.dumps(login | ({"user": user, "pass": "p"} if user else {})).encode() + b"\r\n")
        await self.flush()
        return self

    def publish(self, subject: str | bytes, data: bytes, reply: str | bytes = b"", head: bytes | None = None) -> None:
        """Write a message; nothing of it is checked."""
        first, answers = (each.encode() if isinstance(each, str) else each for each in (subject, reply))
        sizes = b"%d" % len(data) if head is None else b"%d %d" % (len(head), len(head) + len(data))
        self._writer.write(b" ".join((b"PUB" if head is None else b"HPUB", first, answers, sizes)) + b"\r\n")
        self._writer.write((head or b"") + data + b"\r\n")

    async def subscribe(self, subject: str, queue: str = "") -> None:
        self._subscriptions += 1
        self._writer.write(f"SUB {subject} {queue} {self._subscriptions}\r\n".encode())
        await self.flush()

    async def flush(self) -> None:
        """Wait until the server has handled what was written."""
        self._writer.write(b"PING\r\n")
        await self._writer.drain()
        await asyncio.wait_for(self._pongs.get(), 20)

    async def next(self) -> RawMessage:
        """The next message."""
        return await asyncio.wait_for(self.messages.get(), 20)

    async def next_but_acks(self) -> RawMessage:
        """The next message that does not only say where a call is; on a busy machine any call may be told of."""
        while b'"method":"$/session","params":{"has"' in (message := await self.next()).data:
            pass
        return message

    async def request(self, subject: str, message: Any, reply: str = "answers.here") -> RawMessage:
        """Send one message as JSON (bytes as they are), and wait for what comes next, but acknowledgements."""
        self.publish(subject, message if isinstance(message, bytes) else json.dumps(message).encode(), reply)
        return await self.next_but_acks()

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait({self._reading})
        self._writer.transport.abort()

    async def _read(self) -> None:
        while line := await self._reader.readline():
            words = line.split()
            if words[0] == b"PING":
                self._writer.write(b"PONG\r\n")
            elif words[0] == b"PONG":
                self._pongs.put_nowait(None)
            elif words[0] in (b"MSG", b"HMSG"):
                numbers = 1 if words[0] == b"MSG" else 2
                data = await self._reader.readexactly(int(words[-1]) + 2)
                size = int(words[-2]) if numbers == 2 else 0
                reply = words[3].decode() if len(words) == 4 + numbers else ""
                self.messages.put_nowait(RawMessage(words[1].decode(), reply, data[:size], data[size:-2]))
            elif words[0] == b"-ERR":
                raise ConnectionError(line.decode())
