"""Connections as the listener sees them, whatever protocol is spoken on them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from ..errors import RpcError


class Connection(Protocol):
    """A connection, or its TLS handshake."""

    #: Of the other end, for people.
    address: str

    #: Why this end closed it; None if it did not. And whether that was because of a limit.
    reason: str | None
    over_limit: bool

    #: When the connection was accepted (seconds of the loop's clock), before any handshake.
    opened: float

    @property
    def is_known(self) -> bool:
        """Whether the peer is authenticated."""

    def refuse(self, error: RpcError) -> None:
        """Send the reason why this connection is not served, and close it."""

    def drain(self) -> None:
        """Take no more requests; close when those that were read are answered."""

    def probe(self) -> None:
        """Find out whether a peer that sends nothing more still listens; if not, the connection will be lost."""

    def check(self, now: float) -> str | None:
        """Close the connection if it is over a time limit at `now` (seconds); returns the reason if so."""

    def abort(self, reason: str) -> None:
        """Close at once."""


class ProtocolConnection(Connection, Protocol):
    """A connection that is an asyncio protocol."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool | None: ...
