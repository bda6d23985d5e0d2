"""The protocol of NATS: one connection to a server, with the messages of its subscriptions and what is written.

The NATS server takes control characters and bytes that are not UTF-8 in a subject, and does not look at the headers of
a message. So nothing that a sender writes there may end the connection of a receiver, or forge a header.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Any

import orjson

from ..observe.limited_log import LimitedLog
from ..peer.slices import TimeSlices
from ..text import get_logger

log = get_logger("rpcstream.nats")

#: Bytes of a line of the protocol. The server sends longer ones only to say who it is: 10,000 servers of a cluster fit.
LINE_MAX = 1024 * 1024

#: Bytes of a message where the server does not say how many it takes: as many as it takes by default.
DEFAULT_MAX_PAYLOAD = 1024 * 1024

#: Bytes that wait to be written; above this producers pause until half of it is written.
UNSENT_MAX = 1024 * 1024

#: Seconds between two pings, and how many may stay unanswered: a server that has vanished is noticed after these.
PING_EVERY, PINGS_UNANSWERED = 15.0, 2

_END = b"\r\n"

#: The header in which NATS names a caller in another account.
REQUEST_INFO = "Nats-Request-Info"

_INFO_NAME = REQUEST_INFO.encode()

#: The first line of the headers, with the status that a NATS server may put there.
_FIRST = re.compile(rb"NATS/1\.0(?: +([0-9]{3})(?: .*)?)?\Z")

#: A header: its name is a token (RFC 9110, 5.6.2), and its value has no control characters but the tab.
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00-\x08\x0a-\x1f\x7f]*)\Z")

#: What may not stand in the value of a header.
_LINE_END = re.compile(r"[\r\n]")

#: What a login may not do.
_DENIED = re.compile(r'Permissions Violation for (Publish|Subscription) to "([^"]*)"')


class NatsError(ConnectionError):
    """The NATS server has refused something, or does not speak the protocol; the text says what."""


class NatsMessage:
    """A message of NATS; `headers` is None where there are none that can be read."""

    __slots__ = ("data", "headers", "reply", "subject")

    def __init__(self, subject: str, reply: str, data: bytes, headers: dict[str, str] | None) -> None:
        self.subject = subject
        self.reply = reply
        self.data = data
        self.headers = headers


class NatsProtocol(asyncio.Protocol):
    """A connection to one NATS server, as a protocol of asyncio.

    Attributes:
        transport: the socket, or TLS on it; None before it is made and after it is lost.
        info: what the server has said of itself last; `greeted` is done with the first of these.
        takers: called with each message, by the number of the subscription.
        received: how many messages have come.
        max_payload: bytes of a message that the server takes.
        error: why the connection has ended; None while there is no reason.
        lost: done when the connection has ended.
        on_full: called with True when much waits to be written, and with False when most of it was written.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.info: dict[str, Any] = {}
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        self.takers: dict[int, Callable[[NatsMessage], object]] = {}
        self.received = 0
        self.max_payload = DEFAULT_MAX_PAYLOAD
        self.error: BaseException | None = None
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.on_full: Callable[[bool], object] = lambda is_full: None
        self._log = LimitedLog(log)
        self._buffer = bytearray()
        self._slices = TimeSlices()
        self._is_waiting = False
        #: The words of the line before a message of which not all has come, and the bytes of the message.
        self._words: list[bytes] | None = None
        self._size = 0
        self._out: list[bytes] = []
        self._out_size = 0
        self._pongs: deque[asyncio.Future[None] | None] = deque()
        self._pinging: asyncio.TimerHandle | None = None

    # -- callbacks of asyncio -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.use(transport)
        self._pinging = self._loop.call_later(PING_EVERY, self._ping)

    def use(self, transport: Any) -> None:
        """Write to this transport from now on: the socket, or TLS on it."""
        self.transport = transport
        transport.set_write_buffer_limits(high=UNSENT_MAX, low=UNSENT_MAX // 2)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_waiting:
            self._parse()

    def pause_writing(self) -> None:
        self.on_full(True)

    def resume_writing(self) -> None:
        self.on_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = self.error or exc
        self.transport = None
        if self._pinging is not None:
            self._pinging.cancel()
        self._buffer.clear()
        error = self.error or NatsError("the NATS server closed the connection")
        for future in (self.greeted, *self._pongs):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # no warning where no one awaits it
        if not self.lost.done():
            self.lost.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the connection because of this error."""
        self.error = self.error or error
        if self.transport is not None:
            self.transport.abort()

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def has_unread(self) -> bool:
        """Bytes have come that were not read yet."""
        return bool(self._buffer)

    def _parse(self) -> None:
        """Read what has come; the rest a turn later where that takes long."""
        buffer = self._buffer
        position = 0
        try:
            while self.transport is not None and (end := self._end_of_next(position)):
                if self._words is None:
                    self._take_line(bytes(memoryview(buffer)[position : end - 2]))
                else:
                    words, self._words = self._words, None
                    self._take_message(words, bytes(memoryview(buffer)[position : end - 2]))
                    # Each message may make a session, and a read has thousands.
                    self._is_waiting = end < len(buffer) and self._slices.is_crowded()
                position = end
                if self._is_waiting:
                    self.transport.pause_reading()
                    self._loop.call_soon(self._continue)
                    break
        except NatsError as error:
            self.fail(error)
        del buffer[:position]

    def _continue(self) -> None:
        self._is_waiting = False
        self._parse()
        if self.transport is not None and not (self._is_waiting or self.transport.is_closing()):
            self.transport.resume_reading()

    def _end_of_next(self, position: int) -> int:
        """Where the line or the message at this position ends; 0: not all of it has come."""
        if self._words is not None:
            end = position + self._size + len(_END)
            return end if end <= len(self._buffer) else 0
        end = self._buffer.find(_END, position)
        if end < 0 and len(self._buffer) - position > LINE_MAX:
            raise NatsError("the NATS server sent a line without end")
        return end + len(_END) if end >= 0 else 0

    def _take_line(self, line: bytes) -> None:
        word, _, rest = line.partition(b" ")
        if word in (b"MSG", b"HMSG"):
            self._begin_message(line)
        elif word == b"PING":
            self.write(b"PONG\r\n")
        elif word == b"PONG":
            future = self._pongs.popleft() if self._pongs else None
            if future is not None and not future.done():
                future.set_result(None)
        elif word == b"INFO":
            self._take_info(rest)
        elif word == b"-ERR":
            self._take_error(rest.decode("utf-8", "replace").strip().strip("'"))
        elif word != b"+OK":
            raise NatsError("the NATS server does not speak the protocol")

    def _begin_message(self, line: bytes) -> None:
        """Read the line before a message: `MSG subject number [reply] size`, or `HMSG … size-of-header size`."""
        words = line.split(b" ")
        count = 4 if words[0] == b"MSG" else 5
        if len(words) == count:
            words.insert(3, b"")
        if len(words) != count + 1 or not all(word.isdigit() for word in (words[2], *words[4:])):
            raise NatsError("the NATS server sent a malformed message")
        self._size = int(words[-1])
        self._words = words

    def _take_message(self, words: list[bytes], data: bytes) -> None:
        """Hand a message over; one whose reply subject is not UTF-8 is dropped, since it could not be answered."""
        self.received += 1
        headers = None
        if len(words) == 6:
            size = int(words[4])
            headers, data = read_headers(data[:size]), data[size:]
        take = self.takers.get(int(words[2]))
        if take is None:
            return
        try:
            # Bytes that are no UTF-8 stay in the subject, and are no name: who counts messages, counts this one.
            take(NatsMessage(words[1].decode(errors="surrogateescape"), words[3].decode(), data, headers))
        except UnicodeDecodeError:
            pass
        except Exception as error:
            self._log.error(None, "a message of NATS could not be handled", error=error)

    def _take_info(self, text: bytes) -> None:
        try:
            info = orjson.loads(text)
        except orjson.JSONDecodeError:
            info = None
        if type(info) is not dict:
            raise NatsError("the NATS server sent malformed INFO")
        self.info = {**self.info, **info}
        if type(limit := self.info.get("max_payload")) is int:
            self.max_payload = limit
        if not self.greeted.done():
            self.greeted.set_result(None)

    def on_denied(self, what: str, subject: str) -> None:
        """NATS does not permit a "publish" or a "subscription" to this subject."""

    def _take_error(self, text: str) -> None:
        denied = _DENIED.search(text)
        if denied is not None:
            self.on_denied(denied[1].lower(), denied[2])
        elif "permissions violation" in text.lower():
            log.warning("NATS: %s", text)
        else:
            raise NatsError(text)

    # -- writing ------------------------------------------------------------------------------------------------------

    @property
    def unsent(self) -> int:
        """Bytes that wait to be written."""
        return self._out_size + (0 if self.transport is None else self.transport.get_write_buffer_size())

    def write(self, *parts: bytes) -> None:
        """Write these bytes with all others of this turn of the event loop."""
        if not self._out:
            self._loop.call_soon(self.write_out)
        self._out += parts
        for part in parts:
            self._out_size += len(part)

    def write_out(self) -> None:
        """Hand over what was written in this turn."""
        out, self._out, self._out_size = self._out, [], 0
        if self.transport is not None and out:
            self.transport.write(b"".join(out))

    async def ping(self) -> None:
        """Wait until the server has handled all that was written. Raises OSError if the connection ends before."""
        if self.transport is None:
            raise self.error or NatsError("the connection has ended")
        future: asyncio.Future[None] = self._loop.create_future()
        self._pongs.append(future)
        self.write(b"PING\r\n")
        await future

    def _ping(self) -> None:
        if self._pongs.count(None) >= PINGS_UNANSWERED:
            self.fail(NatsError("the NATS server does not answer"))
            return
        self._pongs.append(None)
        self.write(b"PING\r\n")
        self._pinging = self._loop.call_later(PING_EVERY, self._ping)


def header_block(headers: dict[str, str]) -> bytes:
    """Headers as NATS carries them."""
    lines = "".join(f"{name}: {_LINE_END.sub(' ', text)}\r\n" for name, text in headers.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


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
