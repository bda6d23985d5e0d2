"""Reads the protocol of NATS for nats-py, so that no sender can end the connection of a receiver or forge a header.

The NATS server accepts more in a subject than nats-py: control characters, which nats-py takes for white space, and
bytes that are not UTF-8. It does not look at the headers of a message at all. nats-py's own reader ends on some of
these, sometimes without a reconnect, and its parser of headers accepts lines that NATS does not take for headers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import Any

from nats.aio.msg import Msg
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from ..peer.slices import TimeSlices

#: Bytes of a line of the protocol. The server sends longer ones only to say who it is: 10,000 servers of a cluster fit.
LINE_MAX = 1024 * 1024

_END = b"\r\n"

#: The header in which NATS names a caller in another account.
REQUEST_INFO = "Nats-Request-Info"

_INFO_NAME = REQUEST_INFO.encode()

#: The first line of the headers, with the status that a NATS server may put there.
_FIRST = re.compile(rb"NATS/1\.0(?: +([0-9]{3})(?: .*)?)?\Z")

#: A header: its name is a token (RFC 9110, 5.6.2), and its value has no control characters but the tab.
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00-\x08\x0a-\x1f\x7f]*)\Z")

#: What a login may not do; nats-py itself would tell the subject in small letters.
_DENIED = re.compile(r'Permissions Violation for (Publish|Subscription) to "([^"]*)"')


class ProtocolReader(Parser):
    """Takes bytes of the NATS server, and gives a client of nats-py what they say."""

    def reset(self) -> None:
        """Begin anew, on a new connection."""
        super().reset()
        self._message: list[bytes] = []
        self._slices = TimeSlices()

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
                    if position < len(buffer) and self._slices.is_crowded():
                        await asyncio.sleep(0)  # each message may make a session, and a read has thousands
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
        """Hand a message over; one whose reply subject is not UTF-8 is dropped, since it could not be answered."""
        client, sid, head = self.nc, int(words[2]), b""
        client.received += 1
        if len(words) == 6:
            size = int(words[4])
            head, payload = payload[:size], payload[size:]
        with contextlib.suppress(UnicodeDecodeError):
            take, headers = client.takers.get(sid), read_headers(head) if head else None
            if take is None:  # for nats-py itself, which must not read malformed headers
                await client._process_msg(sid, words[1], words[3], payload, head if headers else b"")
                return
            # Bytes that are no UTF-8 stay in the subject, and are no name: who counts messages, counts this one.
            subject, reply = words[1].decode(errors="surrogateescape"), words[3].decode()
            take(Msg(client, subject, reply, payload, headers))

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
            text = rest.decode("utf-8", "replace").strip()
            if denied := _DENIED.search(text):
                self.nc.on_denied(denied[1].lower(), denied[2])
            else:
                await self.nc._process_err(text.lower())
        elif word != b"+OK":
            raise ProtocolError("nats: unknown protocol")


def read_headers(block: bytes) -> dict[str, str] | None:
    """The headers of a message; None where there are none, or the sender has written something else.

    A NATS server appends `REQUEST_INFO` to what the caller has written without reading it: it cuts off two bytes, adds
    its line, and removes only a line with exactly this name. So a block that names this header anywhere else than in
    its last line is forged.
    """
    first, *lines = block.split(_END)
    status = _FIRST.match(first)
    if status is None or lines[-2:] != [b"", b""]:
        return None
    del lines[-2:]
    named = block.lower().count(_INFO_NAME.lower())
    if named > 1 or (named and not (lines and lines[-1].startswith(_INFO_NAME + b": "))):
        return None
    headers = {} if status[1] is None else {"Status": status[1].decode()}
    for line in lines:
        header = _HEADER.match(line)
        if header is None:
            return None
        headers[header[1].decode()] = header[2].decode("utf-8", "replace").strip(" \t")
    return headers or None


def _info(text: bytes) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except ValueError as error:
        raise ProtocolError("nats: malformed INFO") from error
    if type(read) is not dict:
        raise ProtocolError("nats: malformed INFO")
    return read
