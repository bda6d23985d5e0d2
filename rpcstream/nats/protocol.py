"""Reads the protocol of NATS for nats-py: what any sender may write must not end the connection of who receives it.

Owns the bytes that have come and are not a whole message yet. Knows nothing of subscriptions.

The NATS server takes more for a subject than nats-py: control characters, which nats-py takes for white space, and
bytes that are not UTF-8; and the header of a message may be anything. nats-py's own reader ends then, sometimes without
a reconnect: any client that may send a message here could cut this end off.
"""

from __future__ import annotations

import json
from typing import Any

from nats.errors import ProtocolError
from nats.protocol.parser import Parser

#: Bytes of a line of the protocol. The server sends longer ones only to say who it is: 10,000 servers of a cluster fit.
LINE_MAX = 1024 * 1024

_END = b"\r\n"


class ProtocolReader(Parser):
    """Takes bytes of the NATS server, and gives a client of nats-py what they say."""

    def reset(self) -> None:
        """Begin anew, on a new connection."""
        super().reset()
        self._message: list[bytes] = []

    async def parse(self, data: bytes = b"") -> None:
        """Take some bytes.

        Raises:
            ProtocolError: the server does not speak the protocol.
        """
        buffer = self.buf
        buffer += data
        position = 0
        try:
            while True:
                if self._message:
                    end = position + self.needed
                    if len(buffer) < end + len(_END):
                        return
                    payload, position = bytes(memoryview(buffer)[position:end]), end + len(_END)
                    words, self._message = self._message, []
                    await self._give(words, payload)
                    continue
                end = buffer.find(_END, position)
                if end < 0:
                    if len(buffer) - position > LINE_MAX:
                        raise ProtocolError("nats: a line without end")
                    return
                line, position = bytes(memoryview(buffer)[position:end]), end + len(_END)
                if line[:4] == b"MSG " or line[:5] == b"HMSG ":
                    self._begin(line)
                else:
                    await self._obey(line)
        finally:
            del buffer[:position]

    def _begin(self, line: bytes) -> None:
        """Read the line before a message: `MSG subject number [reply] size`, or `HMSG … size-of-header size`."""
        words = line.split(b" ")
        count = 4 if words[0] == b"MSG" else 5
        if len(words) == count:
            words.insert(3, b"")
        if len(words) != count + 1 or not all(word.isdigit() for word in (words[2], *words[4:])):
            raise ProtocolError("nats: malformed MSG")
        self.needed = int(words[-1])
        self._message = words

    async def _give(self, words: list[bytes], payload: bytes) -> None:
        """Hand a message over."""
        head = b""
        if len(words) == 6:
            size = int(words[4])
            head, payload = payload[:size], payload[size:]
        await self.nc._process_msg(int(words[2]), words[1], words[3], payload, head)

    async def _obey(self, line: bytes) -> None:
        """Take a line that is not about a message."""
        word, _, rest = line.partition(b" ")
        if word == b"PING":
            await self.nc._process_ping()
        elif word == b"PONG":
            await self.nc._process_pong()
        elif word == b"INFO":
            await self.nc._process_info(_info(rest))
        elif word == b"-ERR":
            await self.nc._process_err(rest.decode("utf-8", "replace").strip().lower())
        elif word != b"+OK":
            raise ProtocolError("nats: unknown protocol")


def _info(text: bytes) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except ValueError as error:
        raise ProtocolError("nats: malformed INFO") from error
    if type(read) is not dict:
        raise ProtocolError("nats: malformed INFO")
    return read
