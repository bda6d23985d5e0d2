"""The base of connections of every protocol: writing without copies, pausing, time limits, and closing."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable, Sequence
from typing import Any, cast

from ..errors import RpcError
from ..limits import Limits
from ..local_peer import widen_buffers
from ..peer.credentials import Credentials, credentials_of
from ..peer.ledger import ServerLedger
from ..wire.buffers import AttachedMessage, Encoded, is_own, parts_of
from .paced_transport import PacedTransport, is_copying, undelivered


class Timeouts:
    """Remembers since when a connection has been in a state that has a time limit.

    The connection sets the flags; `overdue` is called now and then and looks at them. So a limit is enforced with the
    precision of these calls, never too early.

    Attributes:
        heard: bytes were received without completing a message, or something was sent, since the last `overdue`.
        completed: a message was completed since the last `overdue`.
        received: bytes were received without completing a message since the last `has_received`.
    """

    __slots__ = ("_limits", "_since", "_state", "_unread", "completed", "heard", "received")

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._state = "idle"
        self._since = now
        self._unread = 0
        self.heard = False
        self.completed = False
        self.received = False

    def has_received(self) -> bool:
        """Whether bytes were received since the last call. For an end that does not use `overdue`, which resets it."""
        has_received = self.completed or self.received
        self.completed = self.received = False
        return has_received

    def overdue(self, now: float, *, partial: bool, unread: int, busy: bool) -> str | None:
        """The reason to close the connection, if a limit is exceeded, else None.

        Args:
            now: seconds, of any monotonic clock.
            partial: part of a message has been received.
            unread: bytes that the peer leaves unread; 0 while it reads.
            busy: a handler runs for the connection.
        """
        limits = self._limits
        if unread:
            state, limit, moved = "unread", limits.write_timeout, unread < self._unread
        elif partial:
            state, limit, moved = "partial", limits.message_timeout, self.completed
        else:
            state, limit, moved = "idle", limits.idle_timeout, self.heard or self.completed or busy
        if moved or state != self._state:
            self._state, self._since = state, now
        self._unread, self.heard, self.completed = unread, False, False
        if limit is None or now - self._since < limit:
            return None
        return _REASONS[state].format(limit)


_REASONS = {
    "unread": "the peer did not read its replies for {:g} s (write_timeout)",
    "partial": "a message was not complete after {:g} s (message_timeout)",
    "idle": "nothing happened for {:g} s (idle_timeout)",
}


def interval(limits: Limits, patience: float | None) -> float | None:
    """Seconds between two checks: a quarter of the shortest time limit, from 0.05 to 5; None without limits."""
    times = [limits.idle_timeout, limits.message_timeout, limits.write_timeout, patience]
    shortest = min((time for time in times if time is not None), default=None)
    return None if shortest is None else min(max(shortest / 4, 0.05), 5.0)


#: Bytes; a longer message, or part of one, is written without a copy; shorter ones are joined.
JOIN_MAX = 64 * 1024

#: Bytes; joined messages that are longer have a long one among them: they are written separately, so that no copy of it
#: is kept until the peer has read it. (The replies of one turn are at most `write_buffer` and one message more.)
JOINED_MAX = 4 * 1024 * 1024

#: Bytes that are handed to the transport at a time: more than 2 GiB overflow in the system's calls.
WRITE_MAX = 1024 * 1024 * 1024

#: How the reason begins why a connection was lost to a server that wants a certificate, or another one.
ASKS_FOR_CERTIFICATE = "the other end asks for a certificate"
REFUSES_CERTIFICATE = "the other end does not take the certificate"

#: Alerts of TLS about a certificate (RFC 8446, 6.2), as at the end of the names of errors of `ssl`.
_REFUSALS = frozenset(
    (
        "BAD_CERTIFICATE",
        "UNSUPPORTED_CERTIFICATE",
        "CERTIFICATE_REVOKED",
        "CERTIFICATE_EXPIRED",
        "CERTIFICATE_UNKNOWN",
        "UNKNOWN_CA",
    )
)


class Connection:
    """A connection as the listener sees it, whatever is spoken on it: its limits, and pausing in both directions.

    Attributes:
        address: of the other end, for people.
        reason: why this end closed the connection; None if it did not.
        over_limit: it did so because of a limit.
        is_over_limit: there was no room for it where it was accepted.
        opened: when the system gave the connection (seconds of the loop's clock), before any handshake.
    """

    is_over_limit = False

    def __init__(self, limits: Limits, ledger: ServerLedger, address: str | None = None) -> None:
        self.address = address or ""
        self.reason: str | None = None
        self.over_limit = False
        self._unread = ledger.unread
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        #: This end reads nothing for now.
        self.is_paused = False
        self._closing = self.is_full = False
        self.opened = self._loop.time()
        self._timeouts = Timeouts(limits, self.opened)

    @property
    def is_open(self) -> bool:
        """Whether the connection is made, and was not lost."""
        raise NotImplementedError

    @property
    def is_known(self) -> bool:
        """Whether the peer is authenticated."""
        return False

    @property
    def is_busy(self) -> bool:
        """Whether something runs for the peer."""
        return False

    @property
    def is_partial(self) -> bool:
        """Whether part of a message has come, and the rest is awaited."""
        raise NotImplementedError

    @property
    def credentials(self) -> Credentials:
        """What the connection tells of the peer."""
        return Credentials(address=self.address)

    @property
    def unread_size(self) -> int:
        """Bytes that were written and that the peer has not read, as far as this process still holds them."""
        raise NotImplementedError

    @property
    def undelivered(self) -> int:
        """The same, with those that the system holds."""
        return self.unread_size

    def has_received(self) -> bool:
        """Whether bytes were received since the last call of this. For an end that does not use `check`."""
        return self._timeouts.has_received()

    def set_full(self, is_full: bool) -> None:
        """The peer leaves more than `write_buffer` unread, or has read most of it."""
        self.is_full = is_full
        if not is_full:
            self._count_unread(0)

    def _opened(self) -> None:
        """The connection is made."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._count_unread(0)
        if exc is not None and self.reason is None:
            self.reason = why_lost(exc)

    def pause(self) -> None:
        self.is_paused = True
        self._read_or_not()

    def resume(self) -> None:
        self.is_paused = False
        self._read_or_not()

    def _read_or_not(self) -> None:
        """Read, or not, as `is_paused` says."""
        raise NotImplementedError

    def abort(self, reason: str) -> None:
        """Close at once."""
        raise NotImplementedError

    def refuse(self, error: RpcError) -> None:
        """Send the reason why this connection is not served, and close it."""
        raise NotImplementedError

    def drain(self) -> None:
        """Take no more requests; close when those that were read are answered."""
        raise NotImplementedError

    def probe(self) -> None:
        """Find out whether a peer that sends nothing more still listens; if not, the connection will be lost."""

    def check(self, now: float) -> str | None:
        """Close the connection if it is over a time limit at `now` (seconds); returns the reason if so."""
        if not self.is_open:
            return None
        self.probe()
        partial = self.is_partial
        # While closing, too, the peer has to read what is left.
        unread = self.undelivered if self._closing or self.is_full else 0
        reason = self._timeouts.overdue(now, partial=partial, unread=unread, busy=self.is_busy)
        if reason is None:
            return None
        if partial and not unread:
            self.over_limit, self.reason = True, reason
            self._close_incomplete(reason)
        else:
            self._close_for_limit(reason)
        return reason

    def _close_incomplete(self, reason: str) -> None:
        """Close since a message that has begun does not end."""
        self._close_for_limit(reason)

    def _check_unread(self) -> None:
        """Close the connection if its peer leaves too much unread; called while it is full.

        If all peers together leave too much unread, the connection with the most is closed, this one or another.
        """
        size = self.unread_size
        # Replies of a turn that began below `write_buffer` may bring it to twice that and one message more; replies of
        # handlers that were running then come on top.
        most = self._limits.max_message_size + 4 * self._limits.write_buffer
        if size > most:
            self._close_for_limit(f"the peer left over {most} bytes of replies unread (write_buffer)")
            return
        self._count_unread(size)
        while self._unread.free < 0:
            for each in self._unread.holders:  # some may have been read meanwhile
                each._count_unread(each.unread_size)
            if self._unread.free < 0:
                limit, worst = self._limits.max_held_total, self._unread.largest
                worst._count_unread(0)
                worst._close_for_limit(f"all peers left over {limit} bytes unread, this one most (max_held_total)")

    def _count_unread(self, size: int) -> None:
        self._unread.set(self, size)

    def _close_for_limit(self, reason: str) -> None:
        self.over_limit = True
        self.abort(reason)


class SocketConnection(Connection, asyncio.Protocol):
    """An asyncio protocol, but for what is done with the bytes received. Its address is that of the socket."""

    def __init__(self, limits: Limits, ledger: ServerLedger, address: str | None = None) -> None:
        super().__init__(limits, ledger, address)
        self._transport: asyncio.Transport | None = None
        #: The same, if it hands long messages over in parts.
        self._paced: PacedTransport | None = None
        self._writes_together = self._is_wide = False
        #: The socket, where it carries what is written as it is: not with TLS.
        self._plain_socket: Any = None

    @property
    def socket(self) -> Any:
        """The connected socket, where there is one."""
        return self._transport.get_extra_info("socket") if self._transport is not None else None

    @property
    def carrier(self) -> str:
        """What carries the bytes: "tcp", "tls", "unix" or "memory"; "unknown" where there is no transport."""
        if self._transport is None:
            return "unknown"
        if self._transport.get_extra_info("ssl_object") is not None:
            return "tls"
        sock = self.socket
        if sock is None:
            return "memory"
        if sock.family != getattr(socket, "AF_UNIX", None):
            return "tcp"
        has_name = any(map(self._transport.get_extra_info, ("sockname", "peername")))
        return "unix" if has_name else "memory"  # a pair of sockets has no names

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def credentials(self) -> Credentials:
        """What the connection tells of the peer. Looked up anew each time; little is known once it is lost."""
        return credentials_of(self._transport, address=self.address)

    @property
    def unread_size(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def undelivered(self) -> int:
        return 0 if self._transport is None else undelivered(self._transport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, PacedTransport):  # the connection goes on with this protocol
            self._paced = transport
            transport.writer = self
        elif is_copying(transport):
            self._paced = PacedTransport(cast(asyncio.Transport, transport), self)
        # asyncio's `writelines` (3.12, 3.13.0) forgets to say when the buffer is full.
        self._writes_together = self._paced is not None or not isinstance(transport, asyncio.Transport)
        # (uvloop's transports do not inherit from asyncio's.)
        self._transport = cast(asyncio.Transport, self._paced or transport)
        if transport.get_extra_info("ssl_object") is None:
            self._plain_socket = self.socket
        self.address = self.address or format_address(transport.get_extra_info("peername"))
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer)
        self._opened()

    def pause_writing(self) -> None:
        if self._paced is None:
            self.set_full(True)
        else:
            self._paced.pause()

    def resume_writing(self) -> None:
        if self._paced is None:
            self.set_full(False)
        else:
            self._paced.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._paced is not None:
            self._paced.lost()
        super().connection_lost(exc)

    def _read_or_not(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self.is_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def abort(self, reason: str) -> None:
        self.reason = reason
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)

    def _write_joined(self, pieces: list[Encoded]) -> None:
        """Write these in order with one write, unless they are long or in parts."""
        if sum(map(len, pieces)) <= (JOINED_MAX if len(pieces) > 3 else JOIN_MAX):
            try:
                self._write(b"".join(pieces))  # type: ignore[arg-type]
            except TypeError:  # one of them is in parts
                pass
            else:
                return
        self._write_parts(part for each in pieces for part in parts_of(each))

    def _write_parts(self, parts: Iterable[bytes]) -> None:
        """Write these bytes in order: long ones without a copy, short ones joined."""
        pieces: list[bytes] = []
        short: list[bytes] = []
        for part in parts:
            if len(part) <= JOIN_MAX:
                short.append(part)
                continue
            pieces += b"".join(short), part
            short.clear()
        pieces.append(b"".join(short))
        if self._transport is not None and self._writes_together:
            self._transport.writelines(filter(None, pieces))
            return
        for piece in pieces:
            self._write(piece)

    def _write_attached(self, parts: list[Any], message: AttachedMessage, lent: Sequence[int] = ()) -> None:
        """Write a binary frame. What the system does not take at once is copied, if others may still change it.

        Args:
            parts: bytes-like objects, in order, some the payloads of the message; few, the short ones joined.
            message: the frame.
            lent: as in that, besides what is there.
        """
        written = self._write_at_once(parts)
        if written == sum(map(len, parts)):
            return
        rest: list[Any] = []
        lent = [*message.lent, *lent]
        for part in parts:
            if written >= len(part):
                written -= len(part)
                continue
            left = memoryview(part)[written:]
            own = message.is_secured or is_own(part, lent)
            rest += [
                left[at : at + WRITE_MAX] if own else bytes(left[at : at + WRITE_MAX])
                for at in range(0, len(left), WRITE_MAX)
            ]
            written = 0
        if rest:
            self._write_parts(rest)

    def _write_at_once(self, parts: list[Any]) -> int:
        """Write as much as the system takes without waiting; gives how many bytes that was."""
        transport, sock = self._transport, self._plain_socket
        if transport is None or sock is None or transport.is_closing() or transport.get_write_buffer_size():
            return 0
        try:
            return os.writev(sock.fileno(), parts)
        except (OSError, AttributeError):  # it takes nothing now, is lost, or this system cannot do it
            return 0

    def _widen(self) -> None:
        """Enlarge the socket's buffers, on this machine only: in a network it would end their growth by themselves."""
        if not self._is_wide and (sock := self.socket) is not None:
            self._is_wide = True
            widen_buffers(sock)


def why_lost(error: Exception) -> str:
    """A text that says why a connection was lost.

    With TLS 1.3 a client learns only after its handshake that its certificate is missing or refused.
    """
    _, _, alert = (getattr(error, "reason", None) or "").partition("_ALERT_")
    if alert == "CERTIFICATE_REQUIRED":
        return f"{ASKS_FOR_CERTIFICATE}, and was shown none (certificate=)"
    if alert in _REFUSALS:
        return f"{REFUSES_CERTIFICATE} that it was shown: {alert.lower().replace('_', ' ')}"
    return str(error)


def format_address(name: Any) -> str:
    """The text of a socket's name: "127.0.0.1:8545", "[::1]:8545", "unix:///path"."""
    if isinstance(name, tuple):
        host, port = name[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if isinstance(name, bytes):
        name = name.decode(errors="replace").replace("\0", "@")
    return f"unix://{name}"
