"""Detects servers that have disappeared: pings a silent server, and closes the connection if it stays silent.

Owns one timer for each connection; calls cost nothing. Knows neither sockets nor other messages.
"""

from __future__ import annotations

from typing import Any

from ..peer.marshal import NOT_GIVEN, Call, Marshaller
from ..peer.pending import PendingCall
from .connection import ClientConnection


class Keepalive:
    """Watches one connection until it is lost.

    Checks at every half of the time. After half of the time without a byte the server is sent a ping (`rpc.ping`);
    after another silent half the connection is closed, and waiting calls fail with ConnectionLost. Every byte counts,
    also a part of a long message.

    Args:
        connection: the connection, open.
        marshaller: of the client.
        seconds: a silent server is given up after this time, or up to half of it later.
    """

    def __init__(self, connection: ClientConnection, marshaller: Marshaller, seconds: float) -> None:
        self._connection = connection
        self._marshaller = marshaller
        self._seconds = seconds
        self._is_silent = False
        self._schedule()
        connection.session.add_lost_callback(self._stop)

    def _check(self) -> None:
        connection = self._connection
        if not connection.is_open:
            return
        # Unread bytes count, too. A check that runs late proves nothing: the loop was blocked, not the server.
        if connection.has_received() or (connection.poll is not None and connection.poll(0)):
            self._is_silent = False
        elif not self._is_silent:
            self._is_silent = True
            connection.calls.begin(Call(self._marshaller, "rpc.ping", None, NOT_GIVEN, NOT_GIVEN), _Ping())
        elif connection.loop.time() - self._due < self._seconds / 4:
            connection.abort(f"the server sent nothing for {self._seconds:g} s, not even a reply to a ping (keepalive)")
            return
        self._schedule()

    def _schedule(self) -> None:
        self._due = self._connection.loop.time() + self._seconds / 2
        self._timer = self._connection.loop.call_at(self._due, self._check)

    def _stop(self) -> None:
        self._timer.cancel()


class _Ping(PendingCall):
    """A ping whose reply is ignored: its bytes are what counts, also those of an error."""

    __slots__ = ()

    method = "rpc.ping"

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        pass

    def fail(self, error: Exception) -> None:
        pass
