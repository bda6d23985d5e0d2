"""One instance of a service: offers the methods of a server on NATS, and describes itself (ADR-32).

A caller with an inbox of our form (`<inbox>.rpcstream.<call>`) has one session here for all its calls, as on a
connection. Any other caller has a session for each message, which gets one message as its answer, like an HTTP POST.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson

from .. import __version__
from ..auth.gate import AUTHENTICATE, WRONG_TOKEN
from ..errors import BY_CODE, ConnectFailed, InvalidRequest, NotAuthenticated, RpcError, ServerBusy
from ..observe.limited_log import LimitedLog
from ..observe.metrics import CallMetrics, MethodCalls
from ..text import get_logger
from ..transports.listen import Listener
from ..wire import envelope
from .callers import NO_LOGIN, AnyCaller, Caller, CallerIdentities, CallerTable, Sender
from .direct import DirectListener
from .link import NO_RESPONDERS, REJOINING, NatsLink, Subscription, is_unanswerable
from .messages import (
    BATCH,
    DIRECT_METHOD,
    EVENT,
    INBOX,
    INQUIRY,
    INSTANCE,
    LAST,
    NO_INBOX,
    QUEUE,
    RETAIN,
    ROOT,
    UNREADABLE,
    belongs_to_calls,
    decoded,
    encoded,
    event_prefix,
    ids_of,
    params_of_question,
    read_payload,
    refusal_of,
)
from .options import DirectOptions, NatsOptions
from .protocol import UNSENT_MAX, NatsMessage

log = get_logger("rpcstream.nats")


class NatsService:
    """An instance of a service, from its start to its end; a `ConnectionSource` of the listener.

    Args:
        options: how to connect.
        service: the name of the service.
        listener: makes the sessions of the server, and counts them.
        methods: returns the names of the methods.
        trusts_nats: read what NATS says of a caller in another account.
        direct: where to listen for direct connections.

    Attributes:
        instance: the id of this instance, which others see.
        link: the connection to NATS; None while it is lost.
        direct: listens for direct connections.
        subscriptions: the subscription of each method, on the current connection.
        on_joined: awaited with each new link, after the methods are offered.
        on_leaving: awaited before the link is closed, when all calls are answered.
    """

    def __init__(
        self,
        options: NatsOptions,
        service: str,
        *,
        listener: Listener,
        methods: Callable[[], Iterable[str]],
        trusts_nats: bool = False,
        direct: DirectOptions,
    ) -> None:
        self.name = service
        self.direct = DirectListener(direct, listener)
        self.instance = secrets.token_hex(8)
        self.link: NatsLink | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.on_joined: list[Callable[[NatsLink], Any]] = []
        self.on_leaving: list[Callable[[], Any]] = []
        self.limits = listener.limits
        self.trace = listener.trace
        self._options = options
        self._methods = methods
        self._root = f"{ROOT}.{service}."
        self._events = tuple(event_prefix(service, kind) for kind in (EVENT, INBOX, RETAIN, LAST))
        self._own = f"{self._root}{INSTANCE}.{self.instance}."
        self._callers = CallerTable(self, self._own, listener)
        #: The subscriptions to batches and to `INQUIRY`.
        self._others: list[Subscription] = []
        self._identities: CallerIdentities | None = None
        if listener.authenticator is not None:
            self._identities = CallerIdentities(listener.authenticator, trusts_nats=trusts_nats)
        self._denied: list[str] = []
        self._log = LimitedLog(log)
        self._stopping = False
        self._stopped: asyncio.Task[None] | None = None
        self._rejoining: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"{self._options.address}/{self.name}"

    # -- the connection to NATS ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the service.

        Raises:
            ConnectFailed: there is no NATS server, or it does not permit this login to join.
        """
        link = await NatsLink.connect(self._options)
        try:
            await self._join(link)
        except BaseException:
            await link.close()
            self._leave_callers(link.reason or "the service was not joined")
            if self._rejoining is None:
                self.direct.close()
            raise

    async def _join(self, link: NatsLink) -> None:
        """Offer the methods on a new connection."""
        self.link, self._denied = link, []
        link.denied.append(self._on_denied)
        link.on_full = self._on_full
        await self._listen(link)
        try:
            link.subscribe(f"{self._own}>", self._direct)
            # Only now: calls are acknowledged at once, and callers then write to the subject above.
            self._others = [link.subscribe(f"{self._root}{BATCH}", partial(self._called, None), QUEUE)]
            for name in self._methods():
                self._offer(link, name)
            self._others.append(link.subscribe(f"{self._root}{INQUIRY}", self._asked))
            await link.flush()
            for joined in self.on_joined:
                await joined(link)
            if not link.is_open:
                raise ConnectionError(link.reason)
        except ConnectionError as error:
            raise ConnectFailed(str(error), address=self._options.address) from error
        if self._denied:
            reason = f"the NATS server does not permit this login to subscribe to {self._denied[0]!r}"
            raise ConnectFailed(reason, address=self._options.address, is_permanent=True)
        link.ended.append(self._lost)

    async def _listen(self, link: NatsLink) -> None:
        """Listen for direct connections, once."""
        if self.direct.is_started:
            return
        try:
            await self.direct.start(link.local_host, is_encrypted=link.is_encrypted)
        except OSError as error:
            reason = f"cannot listen for direct connections (direct=): {error.strerror or error}"
            raise ConnectFailed(reason, address=self._options.address, is_permanent=True) from error

    def _offer(self, link: NatsLink, name: str) -> None:
        if name in self.subscriptions:
            return
        try:
            tokens = encoded(name)
        except ValueError as error:
            log.warning("the method %.100r is not offered by NATS: %s", name, error)
            return
        self.subscriptions[name] = link.subscribe(self._root + tokens, partial(self._called, name), QUEUE)

    def offer(self, name: str) -> None:
        """Offer a method that was registered while the server runs."""
        if self.link is not None and not self._stopping:
            with contextlib.suppress(ConnectionError):
                self._offer(self.link, name)

    def _leave_callers(self, reason: str) -> None:
        """End the sessions of all callers: the connection to NATS has ended."""
        self.link = None
        self.subscriptions, self._others = {}, []
        for caller in self._callers.all():
            caller.end(f"the connection to NATS was lost: {reason}")

    def _lost(self, reason: str) -> None:
        self._leave_callers(reason)
        if not self._stopping:
            log.warning("the connection to NATS at %s was lost: %s; joining again", self._options.address, reason)
            self._rejoining = asyncio.get_running_loop().create_task(self._rejoin())

    async def _rejoin(self) -> None:
        failures = 0
        while not self._stopping:
            failures += 1
            await asyncio.sleep(REJOINING.pause(failures))
            try:
                await self.start()
            except ConnectFailed as error:
                self._log.warning(None, "not joined to NATS at %s: %s", self._options.address, error.reason)
            except Exception as error:  # otherwise the instance would never join again
                self._log.error(None, "not joined to NATS at %s", self._options.address, error=error)
            else:
                log.info("joined NATS at %s again", self._options.address)
                return

    def _on_denied(self, what: str, subject: str) -> None:
        """NATS does not permit this instance what it has asked for."""
        # An instance needs calls. It works without the services API and without events.
        if what == "subscription" and subject.startswith(self._root) and not subject.startswith(self._events):
            self._denied.append(subject)
        self._log.warning(None, "NATS does not permit this login the %s to %s", what, subject)

    def _on_full(self, is_full: bool) -> None:
        for caller in self._callers.all():
            if caller.detour is None:
                caller.session.blocked(is_full)

    # -- messages -----------------------------------------------------------------------------------------------------

    def _called(self, method: str | None, message: NatsMessage) -> None:
        """A message for the service, on the subject of a method (None: of batches)."""
        data = message.data
        if message.reply.startswith(NO_INBOX):
            self._ignored(message)
            return
        read, error = read_payload(data, self.limits)
        question = params_of_question(read)
        if error is None:
            error = _fault(read, method, question)
        if error is not None:
            self._refuse(message, error)
            return
        sender = self._sender(message)
        if question is not None and not sender.is_client:
            self._refuse(message, InvalidRequest(data={"reason": "rpc.direct is for callers with a session"}))
            return
        try:
            caller = self._callers.by_sender.get(sender) or self._add(sender, message.reply, method)
        except (NotAuthenticated, ServerBusy) as refusal:
            self._refuse(message, refusal)
        else:
            if caller is None:
                return
            if question is None:
                caller.call(data, ids_of(read))
            else:
                assert isinstance(caller, Caller)
                caller.answer_question(read, question, data)

    def _sender(self, message: NatsMessage) -> Sender:
        """Who has sent a message."""
        inbox, _, _ = message.reply.rpartition(".")
        return Sender(inbox, None if self._identities is None else self._identities.shown_by(message))

    def _add(self, sender: Sender, reply: str, method: str | None) -> AnyCaller | None:
        """Add a new sender, which calls this method; None if the server ends its session at once.

        Raises:
            NotAuthenticated: the sender is not accepted.
            ServerBusy: there are too many callers.
        """
        identity = None
        self._callers.check_room()
        if self._identities is not None:
            assert sender.shown is not None
            if method == AUTHENTICATE:
                raise NotAuthenticated(data=NO_LOGIN)
            identity = self._identities.find(sender.shown, reply)
        return self._callers.add(sender, reply, identity)

    def _direct(self, message: NatsMessage) -> None:
        """Take a message to the session of a caller."""
        if message.reply.startswith(NO_INBOX):
            self._ignored(message)
            return
        number, _, tokens = message.subject[len(self._own) :].partition(".")
        caller = self._callers.by_number.get(number)
        if caller is None:
            if tokens:
                gone = ServerBusy(data={"executed": False, "reason": "this instance has forgotten the session"})
                self._refuse(message, gone)
            elif message.reply and self.link is not None and not is_unanswerable(message):
                # The session belonged to an earlier connection: tell the caller that it is over.
                self.link.publish(message.reply, b"", headers=NO_RESPONDERS)
            return
        caller.heard()
        if is_unanswerable(message):
            caller.end("the caller is gone")
        elif message.data:
            read, error = read_payload(message.data, self.limits)
            if error is None and tokens:
                error = _fault(read, decoded(tokens) or "", None) or self._stranger(caller, message)
            elif error is None and params_of_question(read) == {}:
                caller.answer_question(read, {}, message.data)
                return
            elif error is None and read is not UNREADABLE and not belongs_to_calls(read):
                error = InvalidRequest(data={"reason": "a request has its method behind the subject of the session"})
            if error is None:
                caller.call(message.data, ids_of(read) if tokens else ())
            else:
                self._refuse(message, error)

    def _stranger(self, caller: Caller, message: NatsMessage) -> RpcError | None:
        """The error for a call with other credentials than the first call of its session."""
        if self._identities is None or self._identities.shown_by(message) == caller.shown:
            return None
        return NotAuthenticated(data=WRONG_TOKEN)

    def _asked(self, message: NatsMessage) -> None:
        """Answer that this instance is alive, after the acknowledgements for this caller."""
        if message.reply.startswith(NO_INBOX):
            self._ignored(message)
        elif message.reply and self.link is not None:
            sender = self._sender(message)
            caller = self._callers.by_sender.get(sender)
            if caller is not None:
                caller.say_alive()
            else:  # callers of another account have other inboxes here, and get no acknowledgements
                self.link.publish(message.reply, b"[]" if sender.is_client else b"null")

    def _ignored(self, message: NatsMessage) -> None:
        """Drop a message whose reply subject is not an inbox."""
        self._log.warning(None, "ignored a message that wants its answer at %s", message.reply)

    def _refuse(self, message: NatsMessage, error: RpcError) -> None:
        """Refuse a message that reaches no session."""
        if not message.reply or self.link is None:
            return
        payload = refusal_of(read_payload(message.data, self.limits)[0], error, self.link.max_payload)
        self.link.publish(message.reply, payload or orjson.dumps(envelope.error_reply(None, error)))

    # -- the end (ConnectionSource) -----------------------------------------------------------------------------------

    @property
    def is_draining(self) -> bool:
        """NATS sends no more calls: callers may drain."""
        return self._stopped is not None and self._stopped.done()

    def stop(self) -> None:
        """Take no more calls, and answer those that NATS has sent; see `wait`."""
        if self._stopped is None:
            self._stopping = True
            if self._rejoining is not None:
                self._rejoining.cancel()
            self._stopped = asyncio.get_running_loop().create_task(self._leave())
            self._stopped.add_done_callback(self._drain)

    async def _leave(self) -> None:
        link = self.link
        if link is None:
            return
        try:
            for subscription in (*self._others, *self.subscriptions.values()):
                subscription.end()
            await link.flush()
        except ConnectionError:
            pass
        while any(caller.is_expected for caller in self._callers.by_sender.values()):
            await asyncio.sleep(0.02)

    def _drain(self, _: Any = None) -> None:
        for caller in self._callers.all():
            caller.drain()

    async def wait(self) -> None:
        """Wait until NATS sends no more calls."""
        if self._stopped is not None:
            await asyncio.wait({self._stopped})

    async def close(self) -> None:
        """Close the connection, after all sessions have ended or their time is over."""
        self.stop()
        if self._stopped is not None:
            self._stopped.cancel()  # done, unless the time to stop is over
        await self.wait()
        link, self.link = self.link, None
        if link is not None:
            for leaving in self.on_leaving:
                await leaving()
            for caller in self._callers.all():
                caller.end("the server stopped")
            await link.close()
        self.direct.close()


def _fault(read: Any, method: str | None, question: dict[str, Any] | None) -> RpcError | None:
    """The error for a message at the subject of this method (None: of batches) that calls something else.

    NATS's permissions are for subjects, so a message must call the method of its subject.

    Args:
        question: the params of a question where a large call of the method may be sent; None for other messages.
    """
    if read is UNREADABLE or (question and question.get("method") == method):
        return None
    if method is None:
        return None if type(read) is list else InvalidRequest(data={"reason": "a batch is an array of requests"})
    if type(read) is not dict or read.get("method") != method or method == DIRECT_METHOD:
        return InvalidRequest(data={"reason": f"the subject is that of the method {method!r}, and of single requests"})
    return None


PREFIX = "$SRV"

#: The form of a version (https://semver.org).
_SEMVER = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", re.ASCII)

#: What may not stand in the name of an endpoint.
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, kw_only=True)
class ServicesApi:
    """Answers the requests of NATS's services API for one instance.

    Attributes:
        name: of the service.
        instance: the id of this instance.
        version: of the server.
        endpoints: gives the subscription of each method, by the method's name.
        metrics: of the calls of this process; None: they are not counted, and the numbers are 0.
    """

    name: str
    instance: str
    version: str
    description: str
    endpoints: Callable[[], Mapping[str, Subscription]]
    metrics: CallMetrics | None = None
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    _log: LimitedLog = field(default_factory=lambda: LimitedLog(log, each=1))

    async def start(self, link: NatsLink) -> None:
        """Answer on this connection until it ends. Raises ConnectionError if it has ended."""
        for verb, more in (("PING", dict), ("INFO", self._info), ("STATS", self._stats)):
            for end in ("", f".{self.name}", f".{self.name}.{self.instance}"):
                link.subscribe(f"{PREFIX}.{verb}{end}", partial(self._answer, link, verb.lower(), more))

    def _answer(self, link: NatsLink, verb: str, more: Callable[[], dict[str, Any]], message: NatsMessage) -> None:
        if not message.reply or message.reply.startswith(NO_INBOX):
            return
        if link.unsent > UNSENT_MAX:
            self._log.warning(None, "requests of NATS's services API are left unanswered: there are too many")
            return
        document = {
            "type": f"io.nats.micro.v1.{verb}_response",
            "name": self.name,
            "id": self.instance,
            "version": self.version if _SEMVER.fullmatch(self.version) else "0.0.0",
            "metadata": {"rpcstream": __version__, "openrpc": "rpc.discover"},
            **more(),
        }
        link.publish(message.reply, orjson.dumps(document))

    def _info(self) -> dict[str, Any]:
        endpoints = [
            {**_endpoint(name, subscription), "metadata": {"method": _text(name)}}
            for name, subscription in self.endpoints().items()
        ]
        return {"description": _text(self.description), "endpoints": endpoints}

    def _stats(self) -> dict[str, Any]:
        calls = {} if self.metrics is None else self.metrics.by_method
        endpoints = [
            {**_endpoint(name, subscription), **_numbers(calls.get(name) or MethodCalls())}
            for name, subscription in self.endpoints().items()
        ]
        return {"started": self.started.strftime("%Y-%m-%dT%H:%M:%S.%fZ"), "endpoints": endpoints}


def _endpoint(method: str, subscription: Subscription) -> dict[str, Any]:
    name = _NOT_IN_NAME.sub("_", method) or "_"  # several may have one name; their subjects tell them apart
    return {"name": name, "subject": subscription.subject, "queue_group": QUEUE}


def _numbers(calls: MethodCalls) -> dict[str, Any]:
    code, errors, spent = calls.last_error, calls.errors.total(), round(calls.seconds * 1e9)
    requests = calls.results + errors
    last = "" if code is None else f"{code}: {BY_CODE[code].MESSAGE}" if code in BY_CODE else str(code)
    return {
        "num_requests": requests,
        "num_errors": errors,
        "last_error": last,
        "processing_time": spent,
        "average_processing_time": spent // requests if requests else 0,
    }


def _text(text: str) -> str:
    return text.encode(errors="replace").decode()  # a surrogate that stands alone is no text
