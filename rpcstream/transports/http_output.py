"""What goes out on an HTTP connection, and how the connection ends.

Owns the transport: writing, reading or not reading, and that the last answer arrives before the end. Knows neither
requests nor what is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from ..limits import Limits
from ..peer.identity import Credentials, credentials_of
from .stream import JOIN_MAX, format_address
from .watch import Watch

#: Seconds for which what still comes is read and dropped, so that the last answer arrives before the connection ends.
LINGER = 2.0


class HttpOutput(asyncio.Protocol):
    """The half of an HTTP connection that writes.

    Attributes:
        address: of the other end.
        reason: why this end closed it, when it did so on its own account.
        over_limit: was that for a limit?
    """

    def __init__(self, limits: Limits) -> None:
        self.address = ""
        self.reason: str | None = None
        self.over_limit = False
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._watch = Watch(limits, self._loop.time())
        self._transport: asyncio.Transport | None = None
        self._paused = self._is_full = self._closing = False
        # As for a line stream: what began below the mark may bring it to twice the mark and one message more.
        self._unsent_max = limits.max_message_size + 4 * limits.write_buffer
        self._lingering: asyncio.TimerHandle | None = None
        self._own_credentials: Credentials | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        self.address = format_address(transport.get_extra_info("peername"))
        transport.set_write_buffer_limits(high=self._limits.write_buffer)

    @property
    def credentials(self) -> Credentials:
        """What the connection tells of the peer."""
        if self._own_credentials is None:
            self._own_credentials = credentials_of(self._transport, address=self.address)
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
            short: list[bytes] = []
            for part in parts:
                if len(part) <= JOIN_MAX:
                    short.append(part)
                    continue
                if short:
                    transport.write(b"".join(short))
                    short.clear()
                transport.write(part)
            if short:
                transport.write(b"".join(short))
        if self._is_full and transport.get_write_buffer_size() > self._unsent_max:
            self._close_for_limit(f"the peer left over {self._unsent_max} bytes of replies unread (write_buffer)")

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

    def abort(self, reason: str) -> None:
        """Close at once."""
        self.reason = reason
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self) -> None:
        """Nobody waits for what is worked on."""
        raise NotImplementedError

    def _read_more(self, reads: bool) -> None:
        """Read on, or not."""
        transport = self._transport
        if self._paused is not reads or transport is None or transport.is_closing():
            return
        self._paused = not reads
        if reads:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _close_for_limit(self, reason: str) -> None:
        self.over_limit = True
        self.abort(reason)
