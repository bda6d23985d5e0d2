"""Direct connections to an instance, for what NATS does not carry: its listener, and what each secret permits.

A direct connection is a line stream. Its first request is `rpc.authenticate` with a secret that came by NATS. A secret
is good once, for one caller, for a short time. It permits calls of the method at whose subject the caller asked for it,
or brings what waits to be sent for a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import orjson

from ..auth.gate import AUTHENTICATE
from ..errors import InvalidRequest, NotAuthenticated, NotPermitted, RpcError
from ..peer.credentials import Credentials
from ..peer.interfaces import Dispatch, Later
from ..peer.session import Session
from ..peer.stream_table import StreamTable
from ..tls import TLS, Certificates
from ..transports.accept import Acceptor, ConnectionSetup, listen_at
from ..transports.connection import format_address
from ..transports.listen import Listener
from ..transports.open_connections import Arrival
from ..transports.stream import LineStream
from ..wire.buffers import AttachedMessage, Encoded, first_part
from .channel import NOTIFICATION
from .options import DirectOptions, Offer

#: Seconds for which a secret is good. A client connects as soon as it has it.
CLAIM_TIME = 10.0

#: Seconds that a server which stops waits for secrets of calls to be used.
LEAVE_TIME = 2.0

#: Seconds that a connection has to show its first secret, the handshake of TLS included.
ENTER_TIME = 5.0

#: Secrets of one caller, and of all, that are good at a time.
OWN_MAX, SECRETS_MAX = 1000, 10_000

#: Seconds for which calls of a method may be sent by the connection that has shown the secret for it.
CALLS_TIME = 10.0

#: Bytes of a message before a secret was shown.
FIRST_MAX = 1024

#: Hosts that stand for all addresses of a machine, none of which others can connect to.
_ANY = ("", "0.0.0.0", "::")


class Caller(Protocol):
    """A caller as its direct connections see it; see `callers.Caller`.

    Attributes:
        secrets: the digests of its secrets that are good.
    """

    session: Session
    secrets: set[bytes]

    @property
    def credentials(self) -> Credentials: ...


@dataclass(eq=False)
class Grant:
    """What one secret permits.

    Attributes:
        caller: who may use it.
        methods: calls of these are permitted; None among them: batches.
        output: what waits to be sent.
    """

    caller: Caller
    methods: tuple[str | None, ...] = ()
    output: Output | None = None
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class Detour:
    """The messages of one call that do not go by NATS any more, in their order.

    Attributes:
        session: of the direct connection; None before it stands.
    """

    session: Session | None = None
    _waiting: list[Encoded] = field(default_factory=list)

    def send(self, message: Encoded) -> None:
        """Send a message, or keep it until there is a connection."""
        if self.session is not None:
            self.session.send(message)
            return
        if type(message) is AttachedMessage:
            message.secure()
        self._waiting.append(message)

    def begin(self, session: Session) -> None:
        """The connection stands."""
        self.session = session
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            session.send(message)


@dataclass(eq=False)
class Output(Detour):
    """What an instance sends of one call: its reply, perhaps after items.

    Attributes:
        on_over: called once, when nothing waits any more: with this object, and whether it was sent.
        size: bytes that wait for the client to connect.
        is_whole: the reply was among what was sent.
    """

    on_over: Callable[[Output, bool], object] = lambda output, is_sent: None
    size: int = 0
    is_whole: bool = False

    def send(self, message: Encoded) -> None:
        self.is_whole = not first_part(message).startswith(NOTIFICATION)
        super().send(message)

    def begin(self, session: Session) -> None:
        super().begin(session)
        self.on_over(self, session.channel is not None)


class SharedStreams(StreamTable):
    """The streams of a session, also for its direct connections: these end without them."""

    __slots__ = ()

    @classmethod
    def of(cls, streams: StreamTable) -> SharedStreams:
        """Share these."""
        return cls(streams.senders, streams.receivers, streams.early, sent=streams.sent)

    def end(self) -> None:
        """As `StreamTable.end`; the calls that the streams belong to end by themselves."""
        self.has_ended = True


class DirectListener:
    """Listens for the direct connections of one instance.

    Args:
        options: where.
        listener: of the server: makes the sessions, and counts these and the connections.

    Attributes:
        reason: why there are no direct connections; None where there are.
        is_started: `start` was called.
    """

    def __init__(self, options: DirectOptions, listener: Listener) -> None:
        self.reason: str | None = "the server does not listen for them"
        self.is_started = False
        self._options = options
        self._listener = listener
        self._address = ""
        self._acceptors: list[Acceptor] = []
        self._certificates: Certificates | None = None
        #: By the digest of the secret: how long a look-up takes tells nothing of secrets.
        self._grants: dict[bytes, Grant] = {}

    async def start(self, local_host: str, *, is_encrypted: bool) -> None:
        """Listen.

        Args:
            local_host: of the connection to NATS.
            is_encrypted: whether that has TLS.

        Raises:
            OSError: the address cannot be bound, or the certificate not be read.
        """
        options, self.is_started = self._options, True
        if options.is_on is False:
            self.reason = "the server has switched it off (direct=False)"
            return
        if is_encrypted and options.tls is None and options.is_on is None:
            self.reason = "NATS is encrypted, and the server has no certificate for direct connections (tls=)"
            return
        context = None
        if options.tls is not None:
            # The secret shows who connects: no certificate is asked for.
            self._certificates = Certificates(replace(options.tls, ca=None))
            context = self._certificates.context
        bound = await listen_at(options.host or local_host, options.port)
        setup = ConnectionSetup(
            partial(_Entrance, self, self._listener), self._listener.connections, context, ENTER_TIME
        )
        self._acceptors = [Acceptor(sock, setup) for sock in bound.sockets]
        for acceptor in self._acceptors:
            await acceptor.start()
        port = bound.sockets[0].getsockname()[1]
        is_any = options.host in _ANY
        self._address = options.advertised or (format_address((local_host, port)) if is_any else bound.address)
        self.reason = None

    def make_stream(self) -> DirectStream:
        """Make the protocol of a connection that is open, and its session."""
        listener = self._listener
        return DirectStream(
            self,
            listener.new_session(),
            on_open=listener.connections.opened,
            on_close=listener.message_connection_closed,
        )

    def close(self) -> None:
        """Listen no more; secrets are not good any more."""
        self.reason = "the server has stopped"
        for acceptor in self._acceptors:
            acceptor.stop()
        self._acceptors = []
        for digest in list(self._grants):
            self.lapse(digest)

    # -- secrets ------------------------------------------------------------------------------------------------------

    def offer(self, grant: Grant) -> Offer:
        """Make a secret for this."""
        fingerprint = None
        if self._certificates is not None and self._options.tls is not None:
            self._certificates.refresh()
            fingerprint = fingerprint_of(self._options.tls)
        secret = secrets.token_hex(32)
        digest = digest_of(secret)
        grant.timer = asyncio.get_running_loop().call_later(CLAIM_TIME, self.lapse, digest)
        self._grants[digest] = grant
        grant.caller.secrets.add(digest)
        return Offer(self._address, secret, fingerprint)

    def has_room(self, caller: Caller) -> bool:
        """Whether one more secret may be made."""
        return len(caller.secrets) < OWN_MAX and len(self._grants) < SECRETS_MAX

    def claim(self, stream: DirectStream, secret: Any) -> Grant | None:
        """Use a secret; None where it is not good for this connection."""
        digest = digest_of(secret) if type(secret) is str else b""
        grant = self._grants.get(digest)
        if grant is None or stream.caller not in (None, grant.caller):
            self._listener.counters.logins_refused += 1
            return None
        self._take(digest)
        return grant

    def _take(self, digest: bytes) -> Grant:
        grant = self._grants.pop(digest)
        grant.caller.secrets.discard(digest)
        if grant.timer is not None:
            grant.timer.cancel()
        return grant

    def lapse(self, digest: bytes) -> None:
        """A secret is not good any more."""
        grant = self._take(digest)
        if grant.output is not None:
            grant.output.on_over(grant.output, False)

    async def wait_claimed(self) -> None:
        """Wait until all secrets were used; not for clients that take long to connect."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_TIME):
                while self._grants:
                    await asyncio.sleep(0.02)

    @property
    def is_expected(self) -> bool:
        """Clients may still come."""
        return bool(self._grants)


class _Entrance(Arrival):
    """A connection until it is open, which it may never be with TLS."""

    def __init__(self, direct: DirectListener, listener: Listener) -> None:
        super().__init__(listener.limits, listener.ledger, listener.connections)
        self._direct = direct

    def _opened(self) -> None:
        self.on_open()
        self._become(self._direct.make_stream())


class DirectStream(LineStream):
    """A direct connection, at the instance.

    Attributes:
        caller: whose it is; None before it has shown a secret.
    """

    def __init__(self, listener: DirectListener, session: Session, **options: Any) -> None:
        super().__init__(session, **options)
        self.caller: Caller | None = None
        self._listener = listener
        self._is_draining = False
        #: Until when calls of these methods are permitted (loop time, s).
        self._permitted: dict[str | None, float] = {}
        self._timer = self._loop.call_later(ENTER_TIME, self.abort, f"no secret was shown for {ENTER_TIME:g} s")

    def _connect_session(self) -> None:
        session = self.session
        session.identity = self  # the authentication of the server is not asked
        super()._connect_session()
        session.admit(None, _Permitted(self, session.dispatch))
        self.restrict(FIRST_MAX)

    @property
    def credentials(self) -> Credentials:
        """As those of the caller on NATS; for handlers."""
        return super().credentials if self.caller is None else self.caller.credentials

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def drain(self) -> None:
        """As `Connection.drain`; one that is about to show a secret may still do so."""
        self._is_draining = True
        if self.caller is not None or not self._listener.is_expected:
            super().drain()

    def error_of(self, method: str | None) -> RpcError | None:
        """Why a call of this method is not permitted; None if it is. No method: a batch."""
        if self.caller is None:
            return NotAuthenticated(data={"reason": "the first message shows the secret, by rpc.authenticate"})
        if self._permitted.get(method, 0.0) < self._loop.time():
            reason = "the secrets that were shown permit no calls of this method, or not any more"
            return NotPermitted(data={"executed": False, "reason": reason})
        return None

    def enter(self, secret: Any) -> RpcError | None:
        """Show a secret; gives the error where it is not good."""
        grant = self._listener.claim(self, secret)
        if grant is None:
            if self.caller is None:
                self._loop.call_soon(self.session.drain)
            reason = f"the secret was used, is older than {CLAIM_TIME:g} s, or was never given out"
            return NotAuthenticated(data={"reason": reason})
        session, caller = self.session, grant.caller
        if self.caller is None:
            self.caller = caller
            self._timer.cancel()
            self.restrict(None)
            session.identity = caller.session.identity
            session.sends_binary, session.offers_binary = caller.session.sends_binary, False
            session.streams = SharedStreams.of(caller.session.streams)
        self._permitted.update(dict.fromkeys(grant.methods, self._loop.time() + CALLS_TIME))
        if grant.output is not None:
            self._loop.call_soon(grant.output.begin, session)
        if self._is_draining:
            self._loop.call_soon(super().drain)
        return None


class _Permitted:
    """The `Dispatch` of a direct connection."""

    def __init__(self, stream: DirectStream, dispatcher: Dispatch) -> None:
        self.refuse, self.goes_on = dispatcher.refuse, dispatcher.goes_on
        self._stream = stream
        self._answer = dispatcher.answer

    def answer(self, message: Any, line: bytes | bytearray, session: Session) -> Encoded | Later | None:
        """As `Dispatch.answer`."""
        method = message.get("method") if type(message) is dict else None
        if method == AUTHENTICATE:
            params = message.get("params")
            error = self._stream.enter(params.get("token") if type(params) is dict else None)
            reply = {"jsonrpc": "2.0", "id": message.get("id"), "result": True}
            return orjson.dumps(reply) if error is None else self.refuse(message, error)
        is_call = type(method) is str or type(message) is list
        error = self._stream.error_of(method) if is_call else InvalidRequest()
        return self._answer(message, line, session) if error is None else self.refuse(message, error)


def digest_of(secret: str) -> bytes:
    """What secrets are found by."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


def fingerprint_of(tls: TLS) -> str:
    """SHA-256 of the certificate that a server shows."""
    assert tls.certificate is not None
    with open(tls.certificate, encoding="ascii", errors="replace") as file:
        text = file.read()
    begin, end = text.index(ssl.PEM_HEADER), text.index(ssl.PEM_FOOTER)
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text[begin : end + len(ssl.PEM_FOOTER)])).hexdigest()
