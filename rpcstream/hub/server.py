"""The hub people use: a server whose clients offer methods, and call those of each other.

Joins the directory, the dispatcher, the rules and the keeper; owns what is said of clients that come and go. The way of
a call is not here; it goes from the caller's session through the dispatcher and the relay to the provider's session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Self

import orjson

from ..config import ConfigSource
from ..errors import RpcError
from ..events.queue import Room
from ..methods.dispatch import Dispatcher
from ..methods.invoke import Invoker
from ..observe.limited_log import LimitedLog
from ..peer.marshal import NOT_GIVEN, params_of
from ..peer.session import Session
from ..server import Server
from ..text import get_logger
from ..wire import envelope
from . import discovery
from .configured import configured
from .directory import Balance, Directory, check_balance
from .dispatch import HubDispatcher
from .keepalive import HubKeepalive
from .members import Member
from .methods import HubMethods
from .reading import Reader
from .rules import Rule, Rules

log = get_logger("rpcstream.hub")

#: Seconds of silence after which a client is asked whether it is there, at the latest. Routers between forget a
#: connection that is silent for a minute or so; a message of 50 bytes each third of that costs nothing.
PING_INTERVAL = 20.0


#: Names of methods that one line of the log has.
LOGGED = 10


class Hub(Server):
    """A server that routes calls between its clients, and may have methods of its own, too.

    >>> hub = Hub()
    >>> hub.run()  # doctest: +SKIP

    A client offers methods with `@client` and `await client.offer()`; others call them as if they were the hub's:
    `Client(hub).vectorize(…)`. Which transport each of them uses makes no difference.

    Args:
        rules: who may register, call, publish and subscribe to what; needs `token` or `authenticate`. Without, whoever
            may connect may do everything.
        balance: who of several clients that share a method is called: "least_in_flight", the one with the fewest calls
            to answer (of the next eight in turn), or "round_robin", the next in turn.
        call_timeout: seconds after which a call through the hub is answered with -32003; None: as long as its caller
            waits.
        keepalive_timeout: seconds; a client with a name that has shown no sign of life for so long is taken for dead,
            and its calls are answered with -32007. It answers a ping, calls `rpc.ping` or notifies `keepAlive`.
        ping_interval: seconds of silence after which the hub pings such a client; None: never. Where it is not given,
            a third of `keepalive_timeout`, so that an answer may take as long again, and at most 20.
        registration_timeout: seconds that a connection has to register or to call; None: as long as it likes.
        options: as for a `Server`.

    Raises:
        ValueError, TypeError: an option makes no sense.
    """

    SYSTEM_TOPICS = "rpc.hub."

    def __init__(
        self,
        *,
        rules: Rules | Iterable[Rule] | None = None,
        balance: Balance = "least_in_flight",
        call_timeout: float | None = None,
        keepalive_timeout: float | None = 60.0,
        ping_interval: float | None = NOT_GIVEN,
        registration_timeout: float | None = None,
        title: str = "rpcstream hub",
        **options: Any,
    ) -> None:
        if ping_interval is NOT_GIVEN:
            ping_interval = PING_INTERVAL if keepalive_timeout is None else min(PING_INTERVAL, keepalive_timeout / 3)
        times = {
            "call_timeout": call_timeout,
            "keepalive_timeout": keepalive_timeout,
            "registration_timeout": registration_timeout,
            "ping_interval": ping_interval,
        }
        for name, seconds in times.items():
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} must be positive or None, got {seconds!r}")
        if ping_interval is not None and keepalive_timeout is not None and ping_interval >= keepalive_timeout:
            raise ValueError("ping_interval must be shorter than keepalive_timeout: an answer takes time")
        check_balance(balance)
        super().__init__(title=title, **options)
        if rules is not None and self._authenticator is None:
            raise ValueError("rules need callers that are known: give the hub token= or authenticate=")
        self._log = LimitedLog(log)
        self.rules = rules if isinstance(rules, Rules) or rules is None else Rules(rules)
        #: Who is there, and who offers what.
        self.directory = Directory(self._registry, self._entered, Room(self.limits.max_waiting_total))
        self._balance: Balance = balance
        self._call_timeout = call_timeout
        self._keeper = HubKeepalive(
            self.directory,
            keepalive_timeout=keepalive_timeout,
            ping_interval=ping_interval,
            registration_timeout=registration_timeout,
            drop=self.drop,
        )
        self._registration_timeout = registration_timeout
        self._dispatcher: HubDispatcher | None = None
        #: Where its configuration wants it to listen, as arguments for `run`.
        self.where: dict[str, Any] = {}
        self._methods = HubMethods(self)
        self._methods.enter(self._registry)
        self._listings = self._methods.listings(self._describe, lambda: self._registry.version)
        self._reader = Reader(self.directory.routes)

    # -- what users call ----------------------------------------------------------------------------------------------

    @classmethod
    def from_config(cls, source: ConfigSource = None, **arguments: Any) -> Self:
        """A hub as arguments, the environment (`RPCSTREAM_HUB_…`) and a configuration say, each before the next.

        Where these want it to listen is `where`: `hub.run(**hub.where)`.

        Args:
            source: a file, TOML or JSON with comments, or a mapping of what could stand in one.
            arguments: the same options, and all that the constructor takes.

        Raises:
            ValueError, TypeError: an option makes no sense; the text says which and where it stands.
            OSError: the file cannot be read.
        """
        return configured(cls, source, arguments)

    def notify_client(self, client: str, method: str, /, *args: Any, **kwargs: Any) -> None:
        """Send a notification to the client with this name. In the event loop of the hub.

        Raises:
            LookupError: no client has this name.
            ServerBusy: it does not read what it is sent, and as much waits for it as may.
            EncodeError, MessageTooLarge: an argument cannot be sent.
        """
        found = self.directory.by_name.get(client)
        if found is None:
            raise LookupError(f"no client has the name {client!r}")
        message = envelope.request(method, params_of(method, args, kwargs))
        found.send(found.session.calls.marshaller.encode(message, method))

    def stats(self) -> dict[str, Any]:
        """What was counted here since the start, the clients and their methods among it."""
        return self._stats()

    def discover(self) -> dict[str, Any]:
        """What is offered here, by the hub and by its clients, as an OpenRPC document."""
        found: dict[str, Any] = orjson.loads(b"".join(discovery.document(self._describe(), self.directory)))
        return found

    # -- clients come and go ------------------------------------------------------------------------------------------

    def registered(self, client: Member, methods: list[str], *, is_new: bool) -> None:
        """A client has a name, or offers more."""
        value = {"name": client.name, "address": client.address}
        if is_new:
            self._log.info(client.name, "%s joined as %r", client.address, client.name)
            self._announce("joined", value)
        if methods:
            self._log.info(client.name, "%r offers %s", client.name, _some(methods))
            self._announce("registered", {"name": client.name, "methods": methods})

    def withdraw(self, client: Member, methods: list[str]) -> list[str]:
        """A client offers these no more; gives those that it has offered."""
        gone = self.directory.withdraw(client, methods)
        self._unregistered(client.name, gone)
        return gone

    def leave(self, client: Member) -> list[str]:
        """A client gives up its name, and offers nothing any more; gives what it has offered."""
        name = client.name
        if name is None:
            return []
        gone = self.directory.leave(client)
        self._unregistered(name, gone)
        self._log.info(name, "%s, known as %r, left", client.address, name)
        self._announce("left", {"name": name, "address": client.address})
        return gone

    def drop(self, client: Member, reason: str) -> None:
        """End a client's connection: its calls fail at once, its methods and its name are free."""
        self._log.warning(client.name, "dropped %r at %s: %s", client.name, client.address, reason)
        self.counters.closed_for_limits += 1
        self.leave(client)
        client.session.abort(reason)

    def _entered(self, client: Member) -> None:
        client.session.on_lost.append(lambda: self._left(client))

    def _left(self, client: Member) -> None:
        del self.directory.clients[client.session]
        self.leave(client)

    def _unregistered(self, name: str | None, methods: list[str]) -> None:
        if methods:
            self._log.info(name, "%r withdrew %s", name, _some(methods))
            self._announce("unregistered", {"name": name, "methods": methods})

    def _announce(self, event: str, value: dict[str, Any]) -> None:
        try:
            self.topics.announce(f"{self.SYSTEM_TOPICS}{event}", value)
        except RpcError as error:  # a list of methods too long for a message
            self._log.warning(event, "the event %r was not sent: %s", event, error)

    def _stats(self) -> dict[str, Any]:
        return {
            **super()._stats(),
            "calls_forwarded": self._dispatcher.forwarded if self._dispatcher is not None else 0,
            "clients": len(self.directory.by_name),
            "methods_offered": self.directory.offered,
        }

    # -- as a server --------------------------------------------------------------------------------------------------

    def _make_dispatcher(self, invoker: Invoker) -> Dispatcher:
        self._dispatcher = HubDispatcher(
            self._registry,
            **self._dispatcher_options(invoker),
            directory=self.directory,
            rules=self.rules,
            balance=self._balance,
            call_timeout=self._call_timeout,
            passing=self._methods.passing,
            listings=self._listings,
        )
        return self._dispatcher

    def _make_session(self, dispatcher: Dispatcher, on_gone: Callable[[Session], None]) -> Session:
        session = super()._make_session(dispatcher, on_gone)
        session.reader = self._reader.read
        self._keeper.begin(session)
        return session

    def _check_subscription(self, session: Session, topic: str) -> tuple[str, ...]:
        return () if self.rules is None else self.rules.check_subscription(session.identity, topic)

    @property
    def _patience(self) -> float | None:
        known = [seconds for seconds in (super()._patience, self._registration_timeout) if seconds is not None]
        return min(known, default=None)

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[Any]:
        async with super()._started() as running:
            keeping = asyncio.ensure_future(self._keeper.run())
            try:
                yield running
            finally:
                keeping.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await keeping


def _some(names: list[str]) -> str:
    """Names for the log, no more of them than are read there."""
    left_out = len(names) - LOGGED
    return ", ".join(names[:LOGGED]) + (f" and {left_out} more" if left_out > 0 else "")
