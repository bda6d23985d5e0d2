"""Direct connections to an instance, for what NATS does not carry: its listener, and who may use which of them.

A direct connection is a line stream that belongs to the session of one caller. Its first request is `rpc.authenticate`
with a secret that came by NATS. From then on it carries what the session sends, in both directions. It carries calls,
too, one for each that the caller has asked for at the subject of the method.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import ssl
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import orjson

from ..auth.gate import AUTHENTICATE
from ..errors import NotAuthenticated, ServerBusy
from ..peer.credentials import Credentials
from ..peer.ledger import Share
from ..peer.session import Session
from ..tls import TLS, Certificates
from ..transports.accept import Acceptor, ConnectionSetup, listen_at
from ..transports.connection import format_address
from ..transports.listen import Listener
from ..transports.open_connections import Arrival
from ..transports.stream import LineStream
from ..wire.buffers import Encoded, first_part
from ..wire.envelope import Message
from .channel import NOTIFICATION, Detour
from .messages import read_payload
from .options import DirectOptions, Offer

#: Seconds for which a secret is valid. A client connects as soon as it has it.
CLAIM_TIME = 10.0

#: Seconds after a permission in which a server that stops still waits for large calls. Clients send them within one.
LEAVE_TIME = 2.0

#: Seconds that a connection has to show its secret, the handshake of TLS included.
ENTER_TIME = 5.0

#: Bytes of a message before the secret was shown.
FIRST_MAX = 1024

#: Hosts that stand for all addresses of a machine, none of which others can connect to.
_ANY = ("", "0.0.0.0", "::")


class Caller(Protocol):
    """A caller as its direct connection sees it; see `callers.Caller`."""

    session: Session
    is_closing: bool

    @property
    def credentials(self) -> Credentials: ...

    def close(self) -> None: ...

    def receive_directly(self, messages: list[Message]) -> None: ...

    def end(self, reason: str) -> None: ...


class CallerDetour(Detour):
    """What an instance sends to a caller by a direct connection. It waits until the caller has shown the secret."""

    def __init__(self, caller: Any, direct: DirectListener) -> None:
        super().__init__(caller)
        self._caller: Caller = caller
        self.offer = direct.offer(self)
        self._direct = direct
        self._share = Share(caller.session.server_ledger.waiting)
        #: Something waits that must not be overtaken, such as an item by the reply of its call.
        self._is_ordered = False
        self._timer = asyncio.get_running_loop().call_later(CLAIM_TIME, self.fail, "the client did not connect")

    def _hold(self, message: Encoded) -> None:
        limits, size = self._caller.session.limits, len(message)
        self._is_ordered = self._is_ordered or first_part(message).startswith(NOTIFICATION)
        if not self._is_ordered and self._channel.has_published(message):
            return  # other calls do not wait for this connection
        most = limits.max_message_size + 4 * limits.write_buffer
        if self._share.size + size > most or not self._share.take(size):
            reason = "too many bytes wait for a direct connection (max_message_size, max_held_total)"
            self._channel.send_instead(message, ServerBusy(data={"limit": most, "reason": reason}))
        else:
            super()._hold(message)

    def entered(self, stream: DirectStream, call_id: Any) -> None:
        """A connection has shown the secret by a request with this id."""
        stream.serve(self._caller)
        stream.send([orjson.dumps({"jsonrpc": "2.0", "id": call_id, "result": True})])
        self.begin(stream)

    def begin(self, stream: LineStream) -> None:
        super().begin(stream)
        self._nothing_is_held()

    def fail(self, why: str) -> None:
        super().fail(why)
        self._nothing_is_held()

    def over(self) -> None:
        super().over()
        self._nothing_is_held()

    def _nothing_is_held(self) -> None:
        self._direct.forget(self.offer.secret)
        self._timer.cancel()
        self._share.give_back(self._share.size)
        if self._caller.is_closing:
            self._caller.close()


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
        self._offered: dict[bytes, CallerDetour] = {}

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
        [bound] = await listen_at(options.host or local_host, options.port)
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
        """Listen no more; secrets are not valid any more."""
        self.reason = "the server has stopped"
        for acceptor in self._acceptors:
            acceptor.stop()
        self._acceptors = []
        for detour in list(self._offered.values()):
            detour.fail("the server has stopped")

    # -- secrets ------------------------------------------------------------------------------------------------------

    def offer(self, detour: CallerDetour) -> Offer:
        """Make the secret that opens a connection."""
        fingerprint = None
        if self._certificates is not None and self._options.tls is not None:
            self._certificates.refresh()
            fingerprint = fingerprint_of(self._options.tls)
        secret = secrets.token_hex(32)
        self._offered[_digest_of(secret)] = detour
        return Offer(self._address, secret, fingerprint)

    def take(self, secret: Any) -> CallerDetour | None:
        """Use a secret, which is not valid any more; gives what it opens."""
        detour = self._offered.pop(_digest_of(secret), None) if type(secret) is str else None
        if detour is None:
            self._listener.counters.logins_refused += 1
        return detour

    def forget(self, secret: str) -> None:
        """A secret is not valid any more."""
        self._offered.pop(_digest_of(secret), None)

    @property
    def is_expected(self) -> bool:
        """Clients may still connect."""
        return bool(self._offered)


class _Entrance(Arrival):
    """A connection until it is open, which it may never be with TLS."""

    def __init__(self, direct: DirectListener, listener: Listener) -> None:
        super().__init__(listener.limits, listener.ledger, listener.connections)
        self._direct = direct

    def _opened(self) -> None:
        self.on_open()
        self._become(self._direct.make_stream())


class DirectStream(LineStream):
    """A direct connection, at the instance. Its own session gets nothing: the messages are for that of the caller."""

    def __init__(self, listener: DirectListener, session: Session, **options: Any) -> None:
        super().__init__(session, **options)
        self._caller: Caller | None = None
        self._listener = listener
        self._timer = self._loop.call_later(ENTER_TIME, self.abort, f"no secret was shown for {ENTER_TIME:g} s")

    def _connect_session(self) -> None:
        self.session.identity = self  # the authentication of the server is not asked
        super()._connect_session()
        self._receive = self._receive_secret
        self.restrict(FIRST_MAX)

    def _receive_secret(self, messages: list[Message]) -> None:
        """Take the first message, which shows the secret."""
        if not messages:
            return
        first, self._receive = messages[0], self._refuse_messages
        read = read_payload(first, self.session.limits)[0] if type(first) is bytes else None
        request = read if type(read) is dict and read.get("method") == AUTHENTICATE else {}
        params = request.get("params")
        detour = self._listener.take(params.get("token") if type(params) is dict else None)
        if detour is None:
            self._refuse_messages(messages)
        else:
            detour.entered(self, request.get("id"))
            self._receive(messages[1:])

    def _refuse_messages(self, messages: list[Message]) -> None:
        if messages:
            which = f"this one was used, is older than {CLAIM_TIME:g} s, or was never given out"
            reason = f"the first message is rpc.authenticate with a secret; {which}"
            self.refuse(NotAuthenticated(data={"reason": reason}))

    def serve(self, caller: Caller) -> None:
        """The connection belongs to this caller from now on."""
        self._caller = caller
        self._timer.cancel()
        self.restrict(None)
        self.session.sends_binary, self.session.offers_binary = caller.session.sends_binary, False
        self._receive = caller.receive_directly

    @property
    def credentials(self) -> Credentials:
        """The credentials that the caller has shown on NATS."""
        return super().credentials if self._caller is None else self._caller.credentials

    @property
    def is_busy(self) -> bool:
        """As `Connection.is_busy`: it ends with the session of its caller, and is not idle before."""
        return self._caller is not None or super().is_busy

    def set_full(self, is_full: bool) -> None:
        super().set_full(is_full)
        if self._caller is not None:
            self._caller.session.blocked(is_full)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)
        if self._caller is not None:
            self._caller.end(self.reason or "the caller closed its direct connection")

    def drain(self) -> None:
        """As `Connection.drain`. With a caller it ends when the caller does; before, it may still show its secret."""
        if self._caller is None and not self._listener.is_expected:
            super().drain()


def _digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).digest()


def fingerprint_of(tls: TLS) -> str:
    """SHA-256 of the certificate that a server shows."""
    assert tls.certificate is not None
    with open(tls.certificate, encoding="ascii", errors="replace") as file:
        text = file.read()
    begin, end = text.index(ssl.PEM_HEADER), text.index(ssl.PEM_FOOTER)
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text[begin : end + len(ssl.PEM_FOOTER)])).hexdigest()
