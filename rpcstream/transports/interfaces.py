"""What a listener asks of a connection, whatever is spoken on it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from ..errors import RpcError


class Connection(Protocol):
    """Something with a name, that will end."""

    #: Of the other end, for people.
    address: str

    #: Why this end closed it, when it did so on its own account; was that for a limit?
    reason: str | None
    over_limit: bool

    #: When the system gave the connection (seconds of the loop's clock), before any handshake.
    opened: float

    @property
    def is_known(self) -> bool:
        """Has the peer shown who it is?"""

    def refuse(self, error: RpcError) -> None:
        """Say why this connection is not served, and close it."""

    def drain(self) -> None:
        """Take no more requests; close when those that were read are answered."""

    def probe(self) -> None:
        """See whether a peer that says nothing more still listens; if not, the connection will be lost."""

    def check(self, now: float) -> str | None:
        """Close the connection if it is over a time limit at `now` (seconds); returns the reason if so."""

    def abort(self, reason: str) -> None:
        """Close at once."""


class ProtocolConnection(Connection, Protocol):
    """One that is an asyncio protocol."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool | None: ...
