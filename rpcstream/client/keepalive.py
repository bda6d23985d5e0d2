"""Whether the other end of a connection is still there: asked when it has been silent, and given up when it stays so.

Owns one timer for each connection; a call costs nothing. Knows neither sockets nor what is said besides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..peer.deadline import INFINITE
from ..peer.marshal import NOT_GIVEN, Call, Marshaller
from .connection import ClientConnection


class Keepalive:
    """Watches one connection from now on, until it is lost.

    Looks every half of the time. After half a time without a byte the server is asked (`rpc.ping`), after another half
    it is gone, for all that can be known: the connection is ended, and what waits fails with ConnectionLost. Any byte
    counts as a sign of life, a part of a long message too.

    Args:
        seconds: after so long, and at most half of it more, a silent server is given up.
    """

    def __init__(self, connection: ClientConnection, marshaller: Marshaller, seconds: float) -> None:
        self._connection = connection
        self._marshaller = marshaller
        self._seconds = seconds
        self._is_silent = False
        self._look_again()
        connection.session.add_lost_callback(self._stop)

    def _look(self) -> None:
        connection = self._connection
        if not connection.is_open:
            return
        # What is not read yet counts too. A look that comes late says nothing: the loop was held up, not the server.
        if connection.has_received() or (connection.glance is not None and connection.glance(0)):
            self._is_silent = False
        elif not self._is_silent:
            self._is_silent = True
            connection.calls.begin(Call(self._marshaller, "rpc.ping", None, NOT_GIVEN, NOT_GIVEN), _Pong())
        elif connection.loop.time() - self._due < self._seconds / 4:
            connection.lose(f"the server said nothing for {self._seconds:g} s, though it was asked (keepalive)")
            return
        self._look_again()

    def _look_again(self) -> None:
        self._due = self._connection.loop.time() + self._seconds / 2
        self._timer = self._connection.loop.call_at(self._due, self._look)

    def _stop(self) -> None:
        self._timer.cancel()


class _Pong:
    """Waits for the answer to a ping, of which only the bytes count: an error is one as well."""

    __slots__ = ()

    method = "rpc.ping"
    deadline = INFINITE

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        pass

    def fail(self, error: Exception) -> None:
        pass

    def when_over(self, function: Callable[[], object]) -> None:
        raise AssertionError("a ping has no streams")
