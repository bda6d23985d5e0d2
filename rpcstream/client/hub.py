"""Registration of an async client at a hub: its name, and the methods that it offers to the other clients.

Owns the registration, which belongs to one connection of the client: made when the client connects or with `offer`, and
made again on another connection when that one is lost. Knows neither sockets nor how methods are called.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, NamedTuple

from ..errors import (
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    InternalError,
    InvalidParams,
    MethodNotFound,
    NotPermitted,
    RpcError,
)
from ..peer.deadline import INFINITE, time_left
from ..peer.interfaces import Channel
from ..peer.marshal import NOT_GIVEN, Call, Marshaller
from ..text import get_logger
from .address import check_lasting
from .callbacks import Callbacks
from .connection import ClientConnection
from .options import Settings
from .pool import ConnectionPool

log = get_logger("rpcstream.client")

_REGISTER, _UNREGISTER = "rpc.register", "rpc.unregister"


class Registration(NamedTuple):
    """The hub's reply to `rpc.register`.

    Attributes:
        name: the client's name, its own or one that the hub made.
        key: the secret with which alone the name can be registered from another connection.
        methods: the names of the methods that the client offers now.
    """

    name: str
    key: str
    methods: list[str]


class HubRegistration:
    """The registration of one client at a hub.

    Args:
        pool: the connections of the client.
        marshaller: of the client.
        settings: of the client.
        callbacks: the methods of the client that may be offered.

    Attributes:
        name: the client's name at the hub; None until there is one.
    """

    def __init__(self, pool: ConnectionPool, marshaller: Marshaller, settings: Settings, callbacks: Callbacks) -> None:
        self.name = settings.name
        self._pool = pool
        self._marshaller = marshaller
        self._settings = settings
        self._callbacks = callbacks
        #: The hub's key, with which the name can be registered on another connection.
        self._key: str | None = None
        #: The next connection is to be registered, with these methods, each with whether it is shared.
        self._is_wanted = settings.name is not None
        self._methods: dict[str, bool] = {}
        #: The hub has accepted a registration before.
        self._was_accepted = False
        self._connection: ClientConnection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: One registration at a time: each may need the name and the key that the one before got.
        self._lock = asyncio.Lock()
        self._moving: asyncio.Task[None] | None = None
        pool.greetings.append(self._greet)

    @property
    def connection(self) -> ClientConnection | None:
        """The open connection on which the client is registered; None while there is none."""
        return self._connection if self._connection is not None and self._connection.is_open else None

    async def offer(self, *, shared: bool = False) -> list[str]:
        """Offer all methods of the client, see `BaseClient.offer`."""
        check_lasting(self._settings.address, "offering a method to the server")
        callbacks = self._callbacks
        methods = {
            name: shared or self._methods.get(name, False) or name in callbacks.shared for name in callbacks.names
        }
        loop = asyncio.get_running_loop()
        self._use_loop(loop)
        deadline = self._deadline(loop)
        try:
            names = await self._offer(methods, loop, deadline)
        except MethodNotFound as error:
            raise _explained(error) from None
        self._is_wanted, self._methods = True, methods
        return names

    async def withdraw(self, *names: str) -> list[str]:
        """Stop offering these methods, or all with the name, see `BaseClient.withdraw`."""
        loop = asyncio.get_running_loop()
        self._use_loop(loop)
        deadline = self._deadline(loop)
        async with self._lock:
            for name in names or list(self._methods):
                self._methods.pop(name, None)
            connection = self._connection
            if not names:
                self._is_wanted, self._connection = False, None
                self.name, self._key = self._settings.name, None
            if connection is None or not connection.is_open:
                return []
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
        if self._moving is not None and not self._moving.get_loop().is_closed():
            self._moving.cancel()

    def _use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Forget the registration if it was made in another event loop."""
        if self._loop is not loop:
            self._loop, self._connection, self._lock = loop, None, asyncio.Lock()

    def _deadline(self, loop: asyncio.AbstractEventLoop) -> float:
        seconds = time_left(self._settings.registration_timeout)
        return INFINITE if seconds is None else loop.time() + seconds

    # -- registering ------------------------------------------------------------------------------------------------

    async def _offer(self, methods: dict[str, bool], loop: asyncio.AbstractEventLoop, deadline: float) -> list[str]:
        while True:
            connection = before = self.connection
            if connection is None:
                connection = self._pool.ready(loop) or await self._pool.get(_REGISTER, deadline)
            try:
                async with self._lock:
                    # A greeting may have registered another connection meanwhile; only one can have the name.
                    return await self._register(self.connection or connection, methods, deadline)
            except ConnectionLost:
                # The connection may have been lost unseen long ago. Registering twice does no harm.
                if self._settings.reconnect is None and before is None:
                    raise

    async def _greet(self, connection: ClientConnection) -> None:
        """Register a new connection before calls are sent on it, unless another connection is registered."""
        self._use_loop(connection.loop)
        if not self._is_wanted:
            return
        try:
            async with self._lock:
                if self._is_wanted and self.connection is None:
                    await self._register_again(connection)
        except CallTimeout as error:
            seconds = self._settings.registration_timeout
            reason = f"the hub did not answer the registration within {seconds:g} s" if seconds else error.reason
            raise ConnectFailed(reason, address=self._marshaller.address) from error

    async def _register_again(self, connection: ClientConnection) -> None:
        """Register another connection. If the hub refuses now what it accepted before, the connection is used anyway.

        Raises:
            ConnectFailed: the hub has never accepted the registration.
        """
        deadline = self._deadline(connection.loop)
        try:
            await self._register(connection, self._methods, deadline)
        except RpcError as error:
            error = _explained(error)
            if not self._was_accepted:
                who = f" as {self.name!r}" if self.name is not None else ""
                reason = f"the client could not be registered{who}: {error}"
                lasts = isinstance(error, InvalidParams | NotPermitted | MethodNotFound)
                raise ConnectFailed(reason, address=self._marshaller.address, is_permanent=lasts) from error
            log.warning("the hub %s no longer accepts the registration: %s", self._marshaller.address, error)
            await self._register_singly(connection, deadline)

    async def _register_singly(self, connection: ClientConnection, deadline: float) -> None:
        """Register the name first, then each method that the hub still accepts."""
        try:
            await self._register(connection, {}, deadline)
        except RpcError as error:
            if self._settings.name is not None:
                log.error("%r is no longer registered at %s: %s", self.name, self._marshaller.address, error)
                return
            self.name = self._key = None  # the hub made the name, and has given it to another client since then
        for name, shared in list(self._methods.items()):
            try:
                await self._register(connection, {name: shared}, deadline)
            except RpcError as error:
                log.error("%r is no longer offered at %s: %s", name, self._marshaller.address, error)

    async def _register(self, connection: ClientConnection, methods: dict[str, bool], deadline: float) -> list[str]:
        described, components = self._callbacks.describe(methods)
        params = _register_params(self.name, self._key, described, components)
        call = Call(self._marshaller, _REGISTER, params, NOT_GIVEN, NOT_GIVEN)
        if connection is not self._connection:
            connection.session.add_lost_callback(partial(self._was_lost, connection))
        channel = connection.session.channel
        if channel is None or not connection.is_open:
            raise self._loss(channel)
        reply = _read_registration(await connection.calls.ask(call, deadline), self._marshaller.address)
        self.name, self._key, self._was_accepted = reply.name, reply.key, True
        if not connection.is_open:  # lost together with the reply
            raise self._loss(channel)
        self._connection = connection
        return reply.methods

    def _loss(self, channel: Channel | None) -> ConnectionLost:
        reason = (channel.reason if channel is not None else None) or "the peer closed the connection"
        return ConnectionLost(reason, method=_REGISTER, address=self._marshaller.address)

    # -- after the connection was lost ------------------------------------------------------------------------------

    def _was_lost(self, connection: ClientConnection) -> None:
        """Register another connection of the pool; if there is none, the next one is registered by its greeting."""
        if connection is not self._connection:
            return
        self._connection = None
        if not self._is_wanted or self._pool.is_closed or connection.loop.is_closed():
            return
        if self._pool.open_connections:
            self._moving = connection.loop.create_task(self._move())

    async def _move(self) -> None:
        async with self._lock:
            for connection in self._pool.open_connections:
                if self.connection is not None or not self._is_wanted:
                    return
                try:
                    return await self._register_again(connection)
                except (RpcError, OSError) as error:  # with the errors of connections and time-outs
                    log.warning("another connection could not be registered at the hub: %s", error)


def _register_params(
    name: str | None, key: str | None, methods: list[dict[str, Any]], components: dict[str, Any]
) -> dict[str, Any]:
    """The params of `rpc.register`, without those that are unknown or empty."""
    members = {"name": name, "key": key, "methods": methods, "components": components}
    return {member: value for member, value in members.items() if value}


def _read_registration(reply: Any, address: str) -> Registration:
    """Check the reply to `rpc.register`; raise InternalError if it has another form."""
    if isinstance(reply, dict):
        name, key, methods = (reply.get(member) for member in Registration._fields)
        has_strings = isinstance(methods, list) and all(type(method) is str for method in methods)
        if type(name) is str and type(key) is str and has_strings:
            return Registration(name, key, methods)  # type: ignore[arg-type]
        if "key" in reply:
            reply = {**reply, "key": "***"}
    error = InternalError("The hub's reply to rpc.register cannot be read", {"reply": reply})
    error.method, error.address = _REGISTER, address
    raise error


def _explained(error: RpcError) -> RpcError:
    """The error of a registration; MethodNotFound gets the message that the server is no hub."""
    if not isinstance(error, MethodNotFound):
        return error
    clear = MethodNotFound("The server is no hub: it does not take registrations", error.data)
    clear.method, clear.address = error.method, error.address
    return clear
