"""Registers an async client at its hubs: its name, and the methods that it offers to the other clients.

A client whose address names several hubs registers at each of them. At one hub the registration belongs to one
connection. It is made when the client connects or calls `offer`, and again on another connection when that one is lost.
A `ServingClient` is a client in `run`: when it is stopped, it withdraws its methods, finishes its calls, and leaves.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import perf_counter
from typing import Any

import msgspec

from ..errors import ConnectFailed, ConnectionLost, InternalError, InvalidParams, MethodNotFound, NotPermitted, RpcError
from ..peer.calls import Call
from ..peer.deadline import deadline_in
from ..peer.marshal import NOT_GIVEN
from ..process import join_names
from ..text import get_logger
from .address import check_lasting
from .connection import REFUSING, ClientConnection
from .conversation import Callbacks
from .pool import ConnectionPool, Persist

log = get_logger("rpcstream.client")

_REGISTER, _UNREGISTER = "rpc.register", "rpc.unregister"

#: Seconds for which `offer` waits for the other hubs, once one has accepted the methods. Local hubs answer within
#: milliseconds; one that does not answer may be down, and gets the methods when it is back.
OTHERS = 1.0

#: Why a client reads no more requests on its connections.
LEAVING = "the client is stopping"

#: Seconds that the last replies have to leave when the time is up.
FAREWELL = 0.05


class Registration(msgspec.Struct):
    """The hub's reply to `rpc.register`.

    Attributes:
        name: the client's name, its own or one that the hub made.
        key: the secret with which alone the name can be registered from another connection.
        methods: the names of the methods that the client offers now.
    """

    name: str
    key: str
    methods: list[str]


class AtHub:
    """What one hub knows of the client.

    Attributes:
        name: the client's name at this hub; None until there is one.
        key: the hub's key, with which the name can be registered on another connection; None while there is none.
        connection: the connection that is registered, or was last.
    """

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.key: str | None = None
        self.connection: ClientConnection | None = None

    @property
    def registered(self) -> ClientConnection | None:
        """The open connection on which the client is registered; None while there is none."""
        return self.connection if self.connection is not None and self.connection.is_open else None


class HubRegistration:
    """The registration of one client at its hubs.

    Args:
        pool: the connections of the client.
        callbacks: the methods of the client that may be offered.
        persist: repeats what fails, see `AsyncClient`.
    """

    def __init__(self, pool: ConnectionPool, callbacks: Callbacks, persist: Persist) -> None:
        self._pool = pool
        self._persist = persist
        self._marshaller = pool.marshaller
        self._settings = settings = pool.settings
        self._callbacks = callbacks
        #: What each hub knows, by its address.
        self._hubs: dict[str, AtHub] = {}
        #: The next connection is to be registered, with these methods.
        self._is_wanted = settings.name is not None
        self._methods: list[str] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        #: One registration at a time: each may need the name and the key that the one before got.
        self._lock = asyncio.Lock()
        pool.greetings.append(self._greet)
        if self._is_wanted:
            pool.spread()

    @property
    def name(self) -> str | None:
        """The client's name; where the hubs made one, that at the first of them; None until there is one."""
        return self._settings.name or next((hub.name for hub in self._hubs.values()), None)

    def _at(self, connection: ClientConnection) -> AtHub:
        return self._hubs.setdefault(str(connection.server), AtHub(self._settings.name))

    async def offer(self) -> list[str]:
        """Offer all methods of the client, see `BaseClient.offer`."""
        check_lasting(self._settings.address, "offering a method to the server")
        methods = self._callbacks.names
        self._use_loop(asyncio.get_running_loop())
        self._pool.spread()
        names: list[str]
        try:
            names, first = await self._persist(_REGISTER, partial(self._offer, methods), self._settings.connect_timeout)
        except MethodNotFound as error:
            raise _explained(error) from None
        self._is_wanted, self._methods = True, methods
        if self._pool.is_spread:
            await self._offer_elsewhere(first, self._deadline())
        return names

    async def _offer_elsewhere(self, first: AtHub, deadline: float) -> None:
        """Offer the methods at the other hubs, too. One that does not answer soon is offered them when it is there."""
        await self._pool.others_connected(OTHERS)
        async with self._lock:
            for connection in self._pool.open_connections:
                hub = self._at(connection)
                if hub is first or hub.registered not in (None, connection):
                    continue
                try:
                    await self._register(connection, self._methods, deadline)
                except (RpcError, OSError) as error:  # with the errors of connections and time-outs
                    log.warning("the methods could not be offered at %s: %s", connection.server, error)

    async def withdraw(self, *names: str) -> list[str]:
        """Stop offering these methods, or all with the name, see `BaseClient.withdraw`."""
        self._use_loop(asyncio.get_running_loop())
        deadline = self._deadline()
        async with self._lock:
            self._methods = [each for each in self._methods if names and each not in names]
            connections = [hub.registered for hub in self._hubs.values() if hub.registered is not None]
            if not names:
                self._is_wanted = False
                self._hubs = {}
            found = [await self._withdraw(each, names, deadline) for each in connections]
            return max(found, key=len, default=[])

    async def _withdraw(self, connection: ClientConnection, names: tuple[str, ...], deadline: float) -> list[str]:
        params = {"methods": list(names)} if names else None
        call = Call(self._marshaller, _UNREGISTER, params, NOT_GIVEN, list[str])
        try:
            withdrawn: list[str] = await connection.calls.ask(call, deadline)
        except ConnectionLost:
            return list(names)  # the registration ended with its connection
        return withdrawn

    def close(self) -> None:
        """Register no more; the registration ends with its connection."""
        self._is_wanted = False

    def _use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Forget the registration if it was made in another event loop."""
        if self._loop is not loop:
            self._loop, self._lock = loop, asyncio.Lock()
            for hub in self._hubs.values():
                hub.connection = None

    def _deadline(self) -> float:
        return deadline_in(self._settings.connect_timeout)

    # -- registering ------------------------------------------------------------------------------------------------

    async def _offer(self, methods: list[str], deadline: float, once: bool) -> tuple[list[str], AtHub]:
        registered = (hub.registered for hub in self._hubs.values())
        before = next((each for each in registered if each is not None and not each.has_unread()), None)
        connection = before or await self._pool.get(_REGISTER, deadline, once=once)
        hub = self._at(connection)
        async with self._lock:
            # A greeting may have registered another connection meanwhile; only one can have the name.
            return await self._register(hub.registered or connection, methods, deadline), hub

    async def _greet(self, connection: ClientConnection) -> None:
        """Register a new connection before calls are sent on it, unless another connection is registered."""
        self._use_loop(connection.loop)
        if not self._is_wanted:
            return
        async with self._lock:
            if self._is_wanted and self._at(connection).registered is None:
                await self._register_again(connection)

    async def _register_again(self, connection: ClientConnection) -> None:
        """Register another connection. If the hub refuses now what it accepted before, the connection is used anyway.

        Raises:
            ConnectFailed: the hub has never accepted the registration.
        """
        deadline, hub = self._deadline(), self._at(connection)
        try:
            await self._register(connection, self._methods, deadline)
        except RpcError as error:
            error = _explained(error)
            if hub.key is None:
                who = f" as {hub.name!r}" if hub.name is not None else ""
                reason = f"the client could not be registered{who}: {error}"
                lasts = isinstance(error, InvalidParams | NotPermitted | MethodNotFound)
                raise ConnectFailed(reason, address=self._marshaller.address, is_permanent=lasts) from error
            log.warning("the hub %s no longer accepts the registration: %s", connection.server, error)
            await self._register_singly(connection, hub, deadline)

    async def _register_singly(self, connection: ClientConnection, hub: AtHub, deadline: float) -> None:
        """Register the name first, then each method that the hub still accepts."""
        try:
            await self._register(connection, [], deadline)
        except RpcError as error:
            if self._settings.name is not None:
                log.error("%r is no longer registered at %s: %s", hub.name, connection.server, error)
                return
            hub.name = hub.key = None  # the hub made the name, and has given it to another client since then
        for name in list(self._methods):
            try:
                await self._register(connection, [name], deadline)
            except RpcError as error:
                log.error("%r is no longer offered at %s: %s", name, connection.server, error)

    async def _register(self, connection: ClientConnection, methods: list[str], deadline: float) -> list[str]:
        hub = self._at(connection)
        described, components = self._callbacks.describe(methods)
        params = {"name": hub.name, "key": hub.key, "methods": described, "components": components}
        params = {member: value for member, value in params.items() if value}
        call = Call(self._marshaller, _REGISTER, params, NOT_GIVEN, NOT_GIVEN)
        if not connection.is_open:
            raise self._loss(connection)
        reply = _read_registration(await connection.calls.ask(call, deadline), self._marshaller.address)
        hub.name, hub.key = reply.name, reply.key
        if not connection.is_open:  # lost together with the reply
            raise self._loss(connection)
        hub.connection = connection
        return reply.methods

    def _loss(self, connection: ClientConnection) -> ConnectionLost:
        reason = connection.reason or "the peer closed the connection"
        return ConnectionLost(reason, method=_REGISTER, address=self._marshaller.address)


class ServingClient:
    """A client while it serves: what `process.stop_on_signals` stops (`Stoppable`).

    Args:
        pool: the connections of the client.
        registration: of the client at its hub.
        drain_timeout: seconds that calls in flight have to finish.
    """

    def __init__(self, pool: ConnectionPool, registration: HubRegistration, drain_timeout: float) -> None:
        if not drain_timeout >= 0:
            raise ValueError(f"drain_timeout must be a number of seconds, 0 or more, got {drain_timeout!r}")
        self.time_to_stop = drain_timeout + FAREWELL
        self.is_serving = False
        self._pool = pool
        self._registration = registration
        self._drain_timeout = drain_timeout
        self._stopping = asyncio.Event()
        #: Ends the connections in an orderly way.
        self._leaving: asyncio.Task[None] | None = None
        self._is_aborted = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Stop in an orderly way. To be called in the event loop."""
        self._stopping.set()

    def abort(self) -> None:
        """Leave at once. To be called in any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._abort)

    def _abort(self) -> None:
        self._is_aborted = True
        self._stopping.set()
        if self._leaving is not None:
            self._leaving.cancel()

    async def serve(self) -> None:
        """Serve until `stop` is called, or the client is closed.

        Raises:
            ConnectionLost: there is no connection, and the client does not reconnect.
        """
        self._loop, self.is_serving = asyncio.get_running_loop(), True
        closed = asyncio.ensure_future(self._pool.wait_closed())
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({closed, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                closed.result()
            else:
                await self._leave()
        finally:
            closed.cancel()
            stopping.cancel()
            self.is_serving = False

    async def _leave(self) -> None:
        if self._is_aborted:
            return
        self._leaving = leaving = asyncio.ensure_future(self._finish())
        try:
            await asyncio.wait([leaving], timeout=self._drain_timeout)
            if not leaving.done():
                names = join_names(sorted(self._pool.methods_at_work())) or "none"
                log.warning("leaving: calls had not finished in time; methods at work: %s", names)
                if self._pool.refuse_waiting(perf_counter() + REFUSING):
                    await asyncio.wait([leaving], timeout=FAREWELL)
        finally:
            leaving.cancel()

    async def _finish(self) -> None:
        """Withdraw the methods, then end each connection when what was read on it is answered."""
        try:
            await self._registration.withdraw()
        except (RpcError, OSError) as error:  # with the errors of connections and time-outs
            log.warning("the methods could not be withdrawn: %s", error)
        await self._pool.leave(LEAVING)


def _read_registration(reply: Any, address: str) -> Registration:
    """Check the reply to `rpc.register`; raise InternalError if it has another form."""
    try:
        return msgspec.convert(reply, Registration)
    except msgspec.ValidationError:
        shown = {**reply, "key": "***"} if isinstance(reply, dict) and "key" in reply else reply
        error = InternalError("The hub's reply to rpc.register cannot be read", {"reply": shown})
        error.method, error.address = _REGISTER, address
        raise error from None


def _explained(error: RpcError) -> RpcError:
    """The error of a registration; MethodNotFound gets the message that the server is no hub."""
    if not isinstance(error, MethodNotFound):
        return error
    clear = MethodNotFound("The server is not a hub: it does not take registrations", error.data)
    clear.method, clear.address = error.method, error.address
    return clear
