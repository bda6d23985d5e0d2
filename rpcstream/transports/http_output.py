"""What goes out on an HTTP connection, and how the connection ends.

Owns the transport: writing, reading or not reading, and that the last answer arrives before the end. Knows neither
requests nor what is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..limits import Limits
from ..peer.credentials import Credentials
from .connection import SocketConnection

#: Seconds for which what still comes is read and dropped, so that the last answer arrives before the connection ends.
LINGER = 2.0


class HttpOutput(SocketConnection):
    """The half of an HTTP connection that writes."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._lingering: asyncio.TimerHandle | None = None
        self._own_credentials: Credentials | None = None

    @property
    def credentials(self) -> Credentials:
        """What the connection tells of the peer: asked with each request, and looked up once."""
        if self._own_credentials is None:
            self._own_credentials = super().credentials
        return self._own_credentials

    def write(self, parts: Sequence[bytes]) -> None:
        """Write what is long by itself, without copying it, and what is short together."""
        transport = self._transport
        if transport is None or self._closing:
            return
        self._watch.heard = True
        if len(parts) == 1:
            transport.write(parts[0])
        else:
            self._write_parts(parts)
        if self._is_full:
            self._check_unread(transport)

    def end(self, lingers: bool) -> None:
        """Close, once what was written has arrived.

        Args:
            lingers: more may come. Closing a socket with bytes in it that nobody read makes the system throw away what
                was not yet delivered, so what comes is read for a while, and dropped.
        """
        transport = self._transport
        if transport is None or self._closing:
            return
        self._read_more(True)
        self._closing = True
        self._give_up()
        if lingers:
            if transport.can_write_eof():
                transport.write_eof()
            self._lingering = self._loop.call_later(LINGER, transport.close)
        else:
            transport.close()

    def _give_up(self) -> None:
        """Nobody waits for what is worked on."""
        raise NotImplementedError

    def _read_more(self, reads: bool) -> None:
        """Read on, or not."""
        transport = self._transport
        if self._paused is not reads or transport is None or transport.is_closing():
            return
        if reads:
            self.resume()
        else:
            self.pause()
