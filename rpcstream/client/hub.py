"""What a client is at a hub: its name, and the methods that it offers to all who are there.

Owns the registration, which lives on one of the client's connections: made when the client connects or with `offer`,
made anew on another connection when that one is lost. What a registration looks like is known in `hub`, what the
methods are in `offered`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, NamedTuple

from ..errors import CallTimeout, ConnectFailed, ConnectionLost, InternalError, MethodNotFound, RpcError
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
    """What a hub answers to `rpc.register`.

    Attributes:
        name: of the client, its own or one that the hub made.
        key: with it, and only so, the name can be registered from another connection.
        methods: what the client offers now.
    """

    name: str
    key: str
    methods: list[str]


class HubRegistration:
    """The registration of one client.

    Args:
        offered: gives what the client has marked to be offered.

    Attributes:
        name: the client's name at the hub; None until there is one.
    """

    def __init__(self, pool: ConnectionPool, marshaller: Marshaller, settings: Settings, callbacks: Callbacks) -> None:
        self.name = settings.name
        self._pool = pool
        self._marshaller = marshaller
        self._settings = settings
        self._callbacks = callbacks
        #: What makes the name ours on another connection, as the hub said.
        self._key: str | None = None
        #: There is to be a registration on the next connection; the methods in it, and which of them are shared.
        self._is_wanted = settings.name is not None
        self._methods: dict[str, bool] = {}
        #: The hub has taken one.
        self._was_taken = False
        self._connection: ClientConnection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        #: One registration at a time: the next one may need the name and the key of this one.
        self._lock = asyncio.Lock()
        self._moving: asyncio.Task[None] | None = None
        pool.greetings.append(self._greet)

    async def offer(self, *, shared: bool = False) -> list[str]:
        """Offer what is marked with `@client` to all on the hub; gives the names that this client offers now.

        Everybody there can call them then, by their own name and as `name.method`. What is marked later is offered by
        another `offer`. A lost connection takes the offer with it: a client with `reconnect` makes it again by itself,
        before anything else on the new connection, and so does one without when its next call connects. What the hub
        refuses then (somebody else offers the method meanwhile) is logged, and the rest offered all the same: the
        client goes on, and so do its calls.

        With nothing marked it is the name alone that is registered.

        Args:
            shared: others may offer the same methods, and calls are balanced. For single ones: `@client(shared=True)`.

        Raises:
            InvalidParams: the hub refuses: a name is taken, or a method is offered by another client. Nothing has
                changed.
            MethodNotFound: the server is no hub.
            RpcError: the hub refuses for another reason (NotPermitted, ServerBusy, …).
            ConnectFailed, ConnectionLost, CallTimeout: there was no connection, or no answer within
                `registration_timeout`.
            RuntimeError: the client calls over HTTP, which has no connection that lasts; or it is closed.
        """
        check_lasting(self._settings.address, "offering a method to the server")
        callbacks = self._callbacks
        methods = {
            name: shared or self._methods.get(name, False) or name in callbacks.shared for name in callbacks.names
        }
        loop = asyncio.get_running_loop()
        self._enter(loop)
        deadline = self._deadline(loop)
        try:
            names = await self._offer(methods, loop, deadline)
        except MethodNotFound as error:
            raise explained(error, "registrations") from None
        self._is_wanted, self._methods = True, methods
        return names

    async def withdraw(self, *names: str) -> list[str]:
        """Offer these methods no more; without names: none at all, and give up the client's name too.

        Gives the methods that were withdrawn. Without a connection there is nothing to be withdrawn, and they are not
        offered on the next one. Raises what a call raises.
        """
        loop = asyncio.get_running_loop()
        self._enter(loop)
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
                return list(names)  # and with it everything
            return withdrawn

    def close(self) -> None:
        """The client is closed: with its connections ends what it offered."""
        self._is_wanted = False
        if self._moving is not None and not self._moving.get_loop().is_closed():
            self._moving.cancel()

    # -- where it is registered -------------------------------------------------------------------------------------

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """In another event loop than before nothing is registered yet."""
        if self._loop is not loop:
            self._loop, self._connection, self._lock = loop, None, asyncio.Lock()

    @property
    def _standing(self) -> ClientConnection | None:
        """The connection that the client is registered on, if it still stands."""
        return self._connection if self._connection is not None and self._connection.is_open else None

    def _deadline(self, loop: asyncio.AbstractEventLoop) -> float:
        seconds = time_left(self._settings.registration_timeout)
        return INFINITE if seconds is None else loop.time() + seconds

    async def _offer(self, methods: dict[str, bool], loop: asyncio.AbstractEventLoop, deadline: float) -> list[str]:
        while True:
            connection = before = self._standing
            if connection is None:
                connection = self._pool.ready(loop) or await self._pool.get(_REGISTER, deadline)
            try:
                async with self._lock:
                    # The greeting may have chosen another one meanwhile. Only one at a time can have the name.
                    return await self._register(self._standing or connection, methods, deadline)
            except ConnectionLost:
                # An old connection may have been lost long ago, unseen. A registration can be made twice.
                if self._settings.reconnect is None and before is None:
                    raise

    async def _greet(self, connection: ClientConnection) -> None:
        """On a new connection, before calls are sent on it: register, unless another connection has that."""
        self._enter(connection.loop)
        if not self._is_wanted:
            return
        try:
            async with self._lock:
                if self._is_wanted and self._standing is None:
                    await self._register_anew(connection)
        except CallTimeout as error:
            seconds = self._settings.registration_timeout
            reason = f"the hub did not answer the registration within {seconds:g} s" if seconds else error.reason
            raise ConnectFailed(reason, address=self._marshaller.address) from error

    async def _register_anew(self, connection: ClientConnection) -> None:
        """As a greeting does. What was registered before and is refused now is no reason to be without a connection."""
        deadline = self._deadline(connection.loop)
        try:
            await self._register(connection, self._methods, deadline)
        except RpcError as error:
            error = explained(error, "registrations")
            if not self._was_taken:
                who = f" as {self.name!r}" if self.name is not None else ""
                reason = f"the client could not be registered{who}: {error}"
                raise ConnectFailed(reason, address=self._marshaller.address) from error
            log.warning("%s takes the registration no more: %s", self._marshaller.address, error)
            await self._register_singly(connection, deadline)

    async def _register_singly(self, connection: ClientConnection, deadline: float) -> None:
        """The hub does not take all of it any more: the name first, then each method that it does take."""
        try:
            await self._register(connection, {}, deadline)
        except RpcError as error:
            if self._settings.name is not None:
                log.error("%r is not registered any more at %s: %s", self.name, self._marshaller.address, error)
                return
            self.name = self._key = None  # the hub made the name, and has given it to another since then
        for name, shared in list(self._methods.items()):
            try:
                await self._register(connection, {name: shared}, deadline)
            except RpcError as error:
                log.error("%r is not offered any more at %s: %s", name, self._marshaller.address, error)

    async def _register(self, connection: ClientConnection, methods: dict[str, bool], deadline: float) -> list[str]:
        described, components = self._callbacks.describe(methods)
        params = registration(self.name, self._key, described, components)
        call = Call(self._marshaller, _REGISTER, params, NOT_GIVEN, NOT_GIVEN)
        if connection is not self._connection:
            connection.session.add_lost_callback(partial(self._lost, connection))
        channel = connection.session.channel
        if channel is None or not connection.is_open:
            raise self._loss(channel)
        reply = registered(await connection.calls.ask(call, deadline), self._marshaller.address)
        self.name, self._key, self._was_taken = reply.name, reply.key, True
        if not connection.is_open:  # it was lost together with the answer
            raise self._loss(channel)
        self._connection = connection
        return reply.methods

    def _loss(self, channel: Channel | None) -> ConnectionLost:
        reason = (channel.reason if channel is not None else None) or "the peer closed the connection"
        return ConnectionLost(reason, method=_REGISTER, address=self._marshaller.address)

    def _lost(self, connection: ClientConnection) -> None:
        """The connection is gone: go to another one of the pool. If there is none, the next one has its greeting."""
        if connection is not self._connection:
            return
        self._connection = None
        if (
            self._is_wanted
            and not self._pool.is_closed
            and not connection.loop.is_closed()
            and self._pool.open_connections
        ):
            self._moving = connection.loop.create_task(self._move())

    async def _move(self) -> None:
        async with self._lock:
            for connection in self._pool.open_connections:
                if self._standing is not None or not self._is_wanted:
                    return
                try:
                    return await self._register_anew(connection)
                except (RpcError, OSError) as error:  # with the errors of connections and time-outs
                    log.warning("could not be registered on another connection: %s", error)


def registration(
    name: str | None, key: str | None, methods: list[dict[str, Any]], components: dict[str, Any]
) -> dict[str, Any]:
    """The params of `rpc.register`; what is not known, or empty, is left out."""
    members = {"name": name, "key": key, "methods": methods, "components": components}
    return {member: value for member, value in members.items() if value}


def registered(reply: Any, address: str) -> Registration:
    """The answer to `rpc.register`; InternalError for one that is none."""
    if isinstance(reply, dict):
        name, key, methods = (reply.get(member) for member in Registration._fields)
        strings = isinstance(methods, list) and all(type(method) is str for method in methods)
        if type(name) is str and type(key) is str and strings:
            return Registration(name, key, methods)  # type: ignore[arg-type]
    error = InternalError("The hub's answer to rpc.register cannot be read", {"reply": _without_key(reply)})
    error.method, error.address = "rpc.register", address
    raise error


def explained(error: RpcError, what: str) -> RpcError:
    """The error of a registration; one that tells that the server is no hub says so."""
    if not isinstance(error, MethodNotFound):
        return error
    clear = MethodNotFound(f"The server is no hub: it does not take {what}", error.data)
    clear.method, clear.address = error.method, error.address
    return clear


def _without_key(reply: Any) -> Any:
    return {**reply, "key": "***"} if isinstance(reply, dict) and "key" in reply else reply
