"""The class `Hub`: a server whose clients offer methods to each other.

Puts the parts of a hub together: directory, registrations, methods, dispatcher and keep-alive. A call does not come by
here: it goes from the caller's session through `Forwarding` and `Relay` to the provider's session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, Self, Unpack

import orjson

from ..auth.authenticator import TOKEN_IDENTITY
from ..config import ConfigSource
from ..errors import NotPermitted, RegistrationError
from ..events.event_queue import QueueMemory
from ..events.topics import Topics
from ..methods.dispatch import Dispatcher
from ..nearest import with_options
from ..observe.metrics import Family, single
from ..peer.calls import params_of
from ..peer.marshal import NOT_GIVEN
from ..peer.session import Session
from ..server import Server
from ..server.options import DEFAULTS, GROUPS, ServerOptions
from ..text import get_logger
from ..wire import envelope
from . import discovery
from .config import HubConfig, User, UserIdentity, authenticate_users, hub_options
from .directory import Directory, HubKeepalive
from .dispatch import Forwarding
from .methods import SYSTEM_TOPICS, HubMethods, Registrations
from .passthrough import PassThroughReader
from .rules import Rule, Rules

#: Arguments of `Hub` that are taken over while it runs, beside users.
CHANGEABLE = frozenset(("token", "call_timeout", "rules"))


def needs_restart(before: HubConfig, after: HubConfig) -> list[str]:
    """Return the names of the options that differ, and that a running hub cannot change."""
    names = []
    for old, new in ((_with_fields(before.options), _with_fields(after.options)), (before.where, after.where)):
        names += [name for name in {**old, **new} if name not in CHANGEABLE and old.get(name) != new.get(name)]
    return sorted(names)


def _with_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the fields of groups in place of the groups, as they stand in a file."""
    found = {name: value for name, value in options.items() if name not in GROUPS}
    for name, group in GROUPS.items():
        found |= vars(options.get(name, group()))
    return found


class ChangedRights:
    """Tells which connections keep their rights after a change, and may stay.

    Args:
        users: the users of the configuration now.
        keeps_token: the token that all callers show is what it was.
        rules: of the hub now; None if everything is permitted.
    """

    def __init__(
        self,
        users: Collection[User] | None,
        *,
        keeps_token: bool,
        rules: Rules | None,
        directory: Directory,
        topics: Topics,
    ) -> None:
        self._users = frozenset(users or ())
        self._keeps_token = keeps_token
        self._rules = rules
        self._directory = directory
        self._topics = topics

    def may_stay(self, session: Session) -> bool:
        """Tell whether a connection may stay: its user is what it was, and what it has is permitted still."""
        identity = session.identity
        if identity is None:  # it has not authenticated; when it does, that is by the users of now
            return True
        if isinstance(identity, UserIdentity):
            if identity.user not in self._users:
                return False
        elif identity == TOKEN_IDENTITY and not self._keeps_token:
            return False
        return self._rules is None or (self._may_offer(session, self._rules) and self._may_hear(session, self._rules))

    def _may_offer(self, session: Session, rules: Rules) -> bool:
        member, identity = self._directory.members.get(session), session.identity
        if member is None or member.name is None:
            return True
        name = member.name
        return rules.permits(identity, "name", name) and all(
            rules.permits(identity, "register", offered, unless=(f"{name}.{offered}",)) for offered in member.offers
        )

    def _may_hear(self, session: Session, rules: Rules) -> bool:
        try:
            return all(
                rules.check_subscription(session.identity, topic) == denied
                for topic, denied in self._topics.subscriptions_of(session).items()
            )
        except NotPermitted:
            return False


log = get_logger("rpcstream.hub")

#: Seconds of silence after which a client is pinged, at the latest. Routers between forget a connection that is silent
#: for a minute or so; a message of 50 bytes each third of that costs nothing.
PING_INTERVAL = 20.0


@with_options(DEFAULTS, ServerOptions)
class Hub(Server):
    """A server that routes calls between its clients, and can have its own methods.

    >>> hub = Hub()
    >>> hub.run()  # doctest: +SKIP

    A client offers methods with `@client` and `await client.offer()`. Other clients call them like methods of the hub:
    `Client(hub).vectorize(…)`.

    Args:
        rules: which client may register, call, publish and subscribe to what. Needs `token` or `authenticate`. None:
            every client may do everything.
        call_timeout: seconds that a call through the hub may take; then the caller gets -32003. None: no limit.
        keepalive_timeout: seconds of silence after which the hub disconnects a named client, and its calls get -32007.
            Replies to pings, calls of `rpc.ping` and the notification `keepAlive` end the silence. None: never.
        ping_interval: seconds of silence after which the hub pings a named client; None: never. By default a third of
            `keepalive_timeout`, at most 20.
        registration_timeout: seconds after which the hub closes a connection that has neither registered nor called;
            None: never.
        options: the options of a `Server`, by keyword.

    Raises:
        ValueError, TypeError: an option is invalid.
    """

    SYSTEM_TOPICS = SYSTEM_TOPICS
    DEFAULT_TITLE = "rpcstream hub"
    MAY_HAVE_WORKERS = False

    def __init__(
        self,
        *,
        rules: Rules | Iterable[Rule] | None = None,
        call_timeout: float | None = None,
        keepalive_timeout: float | None = 60.0,
        ping_interval: float | None = NOT_GIVEN,
        registration_timeout: float | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        if ping_interval is NOT_GIVEN:
            ping_interval = PING_INTERVAL if keepalive_timeout is None else min(PING_INTERVAL, keepalive_timeout / 3)
        _check_times(
            call_timeout=call_timeout,
            keepalive_timeout=keepalive_timeout,
            registration_timeout=registration_timeout,
            ping_interval=ping_interval,
        )
        super().__init__(**options)
        if rules is not None and self._guard.authenticator is None:
            raise ValueError("rules need authenticated callers: give the hub token= or authenticate=")
        self._rules = rules if isinstance(rules, Rules) or rules is None else Rules(rules)
        #: The members, their names and the routes to their methods.
        memory = QueueMemory(self.limits.max_waiting)
        self.directory = Directory(self._registry, memory)
        self._registrations = Registrations(
            self.directory, limits=self.limits, rules=self._rules, topics=self.topics, counters=self.counters
        )
        self._call_timeout = call_timeout
        self._keepalive = HubKeepalive(
            self.directory,
            keepalive_timeout=keepalive_timeout,
            ping_interval=ping_interval,
            registration_timeout=registration_timeout,
            drop=self._registrations.drop,
        )
        self._registration_timeout = registration_timeout
        #: What it was made from, if that was a configuration.
        self._source: ConfigSource = None
        self._arguments: dict[str, Any] = {}
        self._config: HubConfig | None = None
        self._forwarding: Forwarding | None = None
        #: The address that its configuration gives, as arguments for `run`.
        self.where: dict[str, Any] = {}
        #: What it says of logging, for `rpcstream-server`.
        self.logging: dict[str, Any] = {}
        self._methods = HubMethods(
            self.directory,
            self._registrations,
            self.topics,
            limits=self.limits,
            rules=self._rules,
            document=self._document,
        )
        self._methods.add_to(self._registry, stats=self.stats)
        self._reader = PassThroughReader(self.directory.routes)

    # -- public methods -----------------------------------------------------------------------------------------------

    @property
    def rules(self) -> Rules | None:
        """The rules that it was made with; None if everything is permitted."""
        return self._rules

    @classmethod
    def from_config(cls, source: ConfigSource = None, **arguments: Any) -> Self:
        """Make a hub from arguments, the environment (`RPCSTREAM_HUB_…`) and a configuration.

        Of these, the first that has an option counts. The address to listen at is in `where`: `hub.run(**hub.where)`.

        Args:
            source: a file, TOML or JSON with comments, or a mapping with the same options.
            arguments: options as in a file, and all that the constructor takes.

        Raises:
            ValueError, TypeError: an option makes no sense; the text says which and where it stands.
            OSError: the file cannot be read.
        """
        config = hub_options(source, arguments)
        hub = cls._of_config(config)
        hub.where, hub.logging = config.where, config.logging
        hub._source, hub._arguments, hub._config = source, arguments, config
        hub._program.watched = config.token_file
        _set_log_level(config)
        return hub

    @classmethod
    def _of_config(cls, config: HubConfig) -> Self:
        options = dict(config.options)
        if config.users is not None:
            options["authenticate"] = authenticate_users(config.users)
        return cls(**options)

    def reload(self) -> None:
        """Read the configuration again that the hub was made from, as SIGHUP does. To be called in its event loop.

        Users, token, rules, `call_timeout` and `log_level` are taken over; what else has changed is named in a warning,
        and takes effect with a restart. Connections whose user is gone, or is not what it was, and those that have a
        name, offer methods or have subscribed to what is not permitted any more, are told to go (`$/goAway`): what they
        have begun is finished within `drain_timeout`, and they may connect again.

        Raises:
            ValueError, TypeError: an option makes no sense; the text says which and where it stands. Nothing has
                changed.
            OSError: the file cannot be read. Nothing has changed.
            RuntimeError: the hub was not made from a configuration.
        """
        before = self._config
        if before is None:
            raise RuntimeError("this hub has no configuration to reload: create it with Hub.from_config")
        config = hub_options(self._source, self._arguments)
        other = self._of_config(config)  # which checks all of it
        left = needs_restart(before, config)
        if self._guard.authenticator is not None and other._guard.authenticator is not None:
            self._guard.authenticator.replace(other._guard.authenticator)
        elif self._guard.authenticator is not other._guard.authenticator:
            left.append("whether callers are authenticated")
            config = replace(config, users=before.users)
        if self._rules is not None and other._rules is not None:
            self._rules.replace(other._rules)
        elif self._rules is not other._rules:
            left.append("whether there are rules")
        self._call_timeout = other._call_timeout
        if self._forwarding is not None:
            self._forwarding.call_timeout = other._call_timeout
        _set_log_level(config)
        self._config = replace(config, options={**before.options, **_changeable(config)}, where=before.where)
        if left:
            log.warning("these changes in the configuration need a restart of the hub: %s", ", ".join(left))
        keeps_token = _tokens_of(before) <= _tokens_of(config)
        rights = ChangedRights(
            config.users, keeps_token=keeps_token, rules=self._rules, directory=self.directory, topics=self.topics
        )
        closed = self._running.dismiss(rights.may_stay, self._life.drain_timeout) if self._running is not None else 0
        log.info("the configuration was read again; connections to close: %d", closed)

    def _reload(self) -> None:
        super()._reload()
        if self._config is not None:
            self.reload()

    def notify_client(self, client: str, method: str, /, *args: Any, **kwargs: Any) -> None:
        """Send a notification to a client. To be called in the hub's event loop.

        Args:
            client: the name of the client.
            method: the name of the notification.
            args: its params by position.
            kwargs: its params by name.

        Raises:
            LookupError: no client has this name.
            ServerBusy: the client does not read, and no more messages may wait for it.
            EncodeError, MessageTooLarge: an argument cannot be sent.
        """
        member = self.directory.by_name.get(client)
        if member is None:
            raise LookupError(f"no client has the name {client!r}")
        message = envelope.request(method, params_of(method, args, kwargs))
        member.send(member.session.calls.marshaller.encode(message, method))

    def stats(self) -> dict[str, Any]:
        """Return the counters since the start, with the numbers of clients and of their methods."""
        return {
            **super().stats(),
            "calls_forwarded": self._forwarding.forwarded if self._forwarding is not None else 0,
            "clients": len(self.directory.by_name),
            "methods_offered": self.directory.offered,
        }

    def discover(self) -> dict[str, Any]:
        """Return the methods of the hub and of its clients as an OpenRPC document."""
        document: dict[str, Any] = orjson.loads(b"".join(discovery.document(self._document, self.directory)))
        return document

    async def _document_text(self, compat: str | None) -> bytes:
        return await self._methods.documents[compat].text()

    # -- as a server --------------------------------------------------------------------------------------------------

    def middleware(self, function: Any) -> NoReturn:
        """Raises RegistrationError: a hub passes calls on unread. Middleware belongs to the servers behind it."""
        raise RegistrationError(
            "a hub passes calls on without reading them, and has no middleware: rules say who may call what; put "
            "middleware around the methods where they are offered"
        )

    def _is_known(self, name: str) -> bool:
        return super()._is_known(name) or name in self.directory.routes

    def join_nats(self, *_: Any, **options: Any) -> NoReturn:
        """Raises RegistrationError: clients reach a hub at its port, and several hubs by several addresses."""
        raise RegistrationError(
            "a hub does not join NATS: give clients the addresses of several hubs (`hub-1:8545,hub-2:8545`), or join a "
            "Server"
        )

    def _more_metrics(self) -> list[Family]:
        stats = self.stats()
        forwarded = stats["calls_forwarded"]
        gauges = (
            ("clients", "Clients with a name."),
            ("methods_offered", "Methods that clients offer."),
        )
        return [
            single("hub_calls_forwarded_total", "counter", "Calls that were passed to members.", forwarded),
            *(single(f"hub_{name}", "gauge", text, stats[name]) for name, text in gauges),
        ]

    def _forward(self, dispatcher: Dispatcher) -> None:
        tracing: Any = {}
        if self._tracing is not None:
            from .tracing import TracedRelay, traced_notification

            tracing = {
                "make_relay": partial(TracedRelay, self._tracing),
                "notification": partial(traced_notification, self._tracing),
            }
        self._forwarding = Forwarding(
            dispatcher,
            own=self._registry,
            codec=self.codec,
            limits=self.limits,
            counters=self.counters,
            directory=self.directory,
            rules=self._rules,
            call_timeout=self._call_timeout,
            passing=self._methods.passing,
            **tracing,
        )

    def _make_session(self, dispatcher: Dispatcher, on_gone: Callable[[Session], None]) -> Session:
        session = super()._make_session(dispatcher, on_gone)
        self._keepalive.watch(session)
        return session

    def _session_options(self, dispatcher: Dispatcher) -> dict[str, Any]:
        return {**super()._session_options(dispatcher), "parse_long": self._reader.read}

    def _check_subscription(self, session: Session, topic: str) -> tuple[str, ...]:
        return () if self._rules is None else self._rules.check_subscription(session.identity, topic)

    @property
    def _patience(self) -> float | None:
        known = [seconds for seconds in (super()._patience, self._registration_timeout) if seconds is not None]
        return min(known, default=None)

    @asynccontextmanager
    async def _while_serving(self) -> AsyncIterator[None]:
        self.directory.version += 1  # the addresses in `rpc.discover` may be others
        keeping = asyncio.ensure_future(self._keepalive.run())
        try:
            yield
        finally:
            self._methods.close()
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping


def _tokens_of(config: HubConfig) -> set[str]:
    token = config.options.get("token") or ()
    return {token} if isinstance(token, str) else set(token)


def _changeable(config: HubConfig) -> dict[str, Any]:
    return {name: value for name, value in config.options.items() if name in CHANGEABLE}


def _set_log_level(config: HubConfig) -> None:
    if "log_level" in config.logging:
        logging.getLogger("rpcstream").setLevel(config.logging["log_level"].upper())


def _check_times(**times: float | None) -> None:
    """Raise ValueError unless these times, in seconds, make sense together."""
    for name, seconds in times.items():
        if seconds is not None and not seconds > 0:
            raise ValueError(f"{name} must be positive or None, got {seconds!r}")
    ping_interval, keepalive_timeout = times["ping_interval"], times["keepalive_timeout"]
    if ping_interval is not None and keepalive_timeout is not None and ping_interval >= keepalive_timeout:
        raise ValueError("ping_interval must be shorter than keepalive_timeout: an answer takes time")
