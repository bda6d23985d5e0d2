"""Makes and greets the connections of an async client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from weakref import WeakSet

from ..errors import ConnectFailed, MethodNotFound, NotAuthenticated, RpcError
from ..peer.calls import Call
from ..peer.deadline import INFINITE
from ..peer.intake import Phase
from ..peer.marshal import NOT_GIVEN, Marshaller
from ..peer.remote import Peer
from ..text import get_logger
from ..transports.connection import ASKS_FOR_CERTIFICATE, REFUSES_CERTIFICATE
from .address import Address
from .connect import join
from .connection import ClientConnection, GetDispatcher, Keepalive
from .faults import failure, is_permanent_failure
from .options import Settings

log = get_logger("rpcstream.client")

#: Called with a new connection, before any call is sent on it.
Greeting = Callable[[ClientConnection], Awaitable[object]]


class Connector:
    """Makes connections, and says on each what comes before all calls.

    Args:
        settings: of the client.
        marshaller: of the client.
        get_dispatcher: gives the dispatcher of the methods that the server may call; None while there are none.

    Attributes:
        greetings: run on each new connection, in this order; if one fails, so does connecting.
        connections: those whose sockets may be open: also those being greeted, and those that are closing.
    """

    def __init__(self, settings: Settings, marshaller: Marshaller, get_dispatcher: GetDispatcher) -> None:
        self.greetings: list[Greeting] = []
        address = settings.address
        if settings.token is not None and not (address.is_http or address.is_websocket or address.is_nats):
            self.greetings.append(self._authenticate)
        #: Where the next greeting of the user goes: after authentication, before the registration and subscriptions.
        self._user_greetings_end = len(self.greetings)
        self.connections: WeakSet[ClientConnection] = WeakSet()
        self._address = str(address)
        self._settings = settings
        self._marshaller = marshaller
        self._get_dispatcher = get_dispatcher

    def greet(self, hello: Callable[[Peer], Awaitable[object]]) -> None:
        """Run a user's function on each new connection: after authentication, before anything else."""

        async def greet(connection: ClientConnection) -> None:
            await hello(Peer(connection.session))

        self.greetings.insert(self._user_greetings_end, greet)
        self._user_greetings_end += 1

    async def make(self, address: Address | None) -> ClientConnection:
        """Make and greet a connection to this server; None for the first one that can be reached.

        Raises:
            ConnectFailed: no connection could be made, or a greeting failed.
            NotAuthenticated, NotPermitted, ServerBusy: the server refused the connection, or its token.
        """
        settings = self._settings if address is None else replace(self._settings, address=address)
        limit = settings.connect_timeout
        connection = ClientConnection(settings, self._marshaller, self._get_dispatcher)
        reason = "connecting failed"
        is_joined = False
        try:
            async with asyncio.timeout(limit):
                await join(connection, settings)
                is_joined = True
                self.connections.add(connection)
                for greet in self.greetings:
                    await greet(connection)
                if self._settings.keepalive is not None and connection.is_open:
                    Keepalive(connection, self._marshaller, self._settings.keepalive)
        except ConnectFailed:
            connection.abort(reason)
            raise
        except OSError as error:
            fault = certificate_fault(connection.reason(), self._address)
            if connection.session.peer_is_leaving:
                connection.session.drain(Phase.CLOSING)  # calls that came before the server said so are answered
                connection.probe_until_closed()
            else:
                connection.abort(reason)
            if fault is not None:
                raise fault from error
            why, lasts = failure(error, limit, settings.address), is_permanent_failure(error)
            raise ConnectFailed(why, address=self._address, is_permanent=lasts) from error
        except RpcError as error:
            connection.abort(reason)
            if isinstance(error, NotAuthenticated) or not is_joined:
                error.method = error.address = None  # the calls that wait name their own method
                raise
            reason = f"the server refused the token, or a call of on_connect: {error}"
            raise ConnectFailed(reason, address=self._address) from error
        except Exception as error:
            connection.abort(reason)
            log.exception("a connection to %s could not be made", self._address)
            raise ConnectFailed(f"could not connect: {error!r}", address=self._address) from error
        except BaseException:
            connection.abort("connecting was cancelled")
            raise
        return connection

    async def _authenticate(self, connection: ClientConnection) -> None:
        """Send the token, before anything else. A server that does not know the method needs no token."""
        call = Call(self._marshaller, "rpc.authenticate", {"token": self._settings.token}, NOT_GIVEN, NOT_GIVEN)
        try:
            await connection.calls.ask(call, INFINITE)
        except MethodNotFound:
            pass


def certificate_fault(reason: str | None, address: str) -> ConnectFailed | None:
    """The error where the server has ended a connection since it does not take this client's certificate."""
    if reason is None or not reason.startswith((ASKS_FOR_CERTIFICATE, REFUSES_CERTIFICATE)):
        return None
    return ConnectFailed(f"could not connect: {reason}", address=address, is_permanent=True)
