r"""Direct connections between the two ends of a session on NATS, for messages that NATS does not carry.

Owns the listener of an instance, the secrets that open its connections, and the first line of each; behind it the
connection is a line stream. Knows neither sessions nor tickets (`tickets`), which say who may connect and what is sent.

    rpcstream <secret>\n      the client
    ok\n                      the instance; or `refused: <reason>\n`, and it closes

Only instances listen: clients may be where nothing can connect to them.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast

from ..observe.counters import Counters
from ..text import get_logger
from ..tls import TLS, Certificates
from ..transports.accept import Acceptor, Arrival, ConnectionSetup, Handshake, listen_at
from ..transports.connection import format_address, why_lost
from ..transports.stream import LineStream
from .direct_options import DirectError, DirectOptions, Offer, split_address

log = get_logger("rpcstream.nats")

#: Seconds for which a secret opens a connection. A client connects as soon as it has it: one round trip, two with TLS.
CLAIM_TIME = 10.0

#: Seconds that a connection has to show its secret, the handshake of TLS included; it is sent with the first packet.
ENTER_TIME = 5.0

#: Connections that have not shown a secret; of more the oldest is closed. Each costs a few KiB.
ENTERING_MAX = 256

#: Seconds that a client tries to connect.
CONNECT_TIME = 5.0

#: Bytes of a secret; no guess of 256 bits hits one.
SECRET_SIZE = 32

#: Hosts that stand for all addresses of a machine, none of which others can connect to.
_ANY = ("", "0.0.0.0", "::")

#: How the first line begins, and bytes that it has at most; and those of its answer.
_GREETING = b"rpcstream "
_LINE_MAX, _ANSWER_MAX = 128, 512


class Owner(Protocol):
    """Has offered a connection."""

    def claimed(self, secret: str, transport: asyncio.Transport, rest: bytes) -> None:
        """The connection stands; its protocol is to be set. `rest` has come already."""


class DirectListener:
    """Listens for the direct connections of one instance.

    Args:
        options: where.
        counters: of the server; None: nothing is counted.

    Attributes:
        reason: why there are no direct connections; None where there are.
        is_started: `start` was called.
    """

    def __init__(self, options: DirectOptions, counters: Counters | None = None) -> None:
        self.reason: str | None = "the server does not listen for them"
        self._options = options
        self._counters = counters
        self._address = ""
        self._acceptors: list[Acceptor] = []
        self._certificates: Certificates | None = None
        #: Who has offered what, by the digest of the secret: how long a look-up takes tells nothing of secrets.
        self._offered: dict[bytes, tuple[str, Owner]] = {}
        self._entering: dict[_Entrance | Handshake, None] = {}
        self.is_started = False

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
            self._certificates = Certificates(replace(options.tls, client_ca=None))
            context = self._certificates.context
        bound = await listen_at(options.host or local_host, options.port)
        setup = ConnectionSetup(
            lambda arrival: _Entrance(self, partial(setup.arrived, arrival)),
            context=context,
            handshake_timeout=ENTER_TIME,
            on_handshake=self._on_handshake,
            on_handshake_over=lambda handshake: self._entering.pop(handshake, None),
            on_handshake_refused=lambda handshake, reason: self._refused(),
        )
        self._acceptors = [Acceptor(sock, setup, on_shortage=lambda error: False) for sock in bound.sockets]
        for acceptor in self._acceptors:
            await acceptor.start()
        port = bound.sockets[0].getsockname()[1]
        is_any = options.host in _ANY
        self._address = options.advertised or (format_address((local_host, port)) if is_any else bound.address)
        self.reason = None

    def close(self) -> None:
        """Listen no more; offers lapse."""
        self.reason = "the server has stopped"
        for acceptor in self._acceptors:
            acceptor.stop()
        self._acceptors = []
        self._offered.clear()
        for each in list(self._entering):
            each.abort("the server has stopped")

    # -- offers -------------------------------------------------------------------------------------------------------

    def offer(self, owner: Owner) -> Offer:
        """Offer a connection, until it is claimed or `withdraw` is called."""
        fingerprint = None
        if self._certificates is not None and self._options.tls is not None:
            self._certificates.refresh()
            fingerprint = fingerprint_of(self._options.tls)
        secret = secrets.token_hex(SECRET_SIZE)
        self._offered[_digest(secret)] = secret, owner
        return Offer(self._address, secret, fingerprint)

    def withdraw(self, offer: Offer) -> None:
        """An offer is not valid any more."""
        self._offered.pop(_digest(offer.secret), None)

    def claim(self, secret: str) -> Owner | None:
        """Use a secret; None where it is not valid."""
        digest = _digest(secret)
        found = self._offered.get(digest)
        if found is None or not hmac.compare_digest(found[0].encode(), secret.encode()):
            self._refused()
            return None
        del self._offered[digest]
        return found[1]

    def _refused(self) -> None:
        if self._counters is not None:
            self._counters.tickets_refused += 1

    # -- connections that have not shown a secret ----------------------------------------------------------------------

    def _on_handshake(self, arrival: Arrival) -> bool:
        assert arrival.handshake is not None
        self.entered(arrival.handshake)
        return True

    def entered(self, entrance: _Entrance | Handshake) -> None:
        """A connection has come; the oldest is closed where there are too many."""
        self._entering[entrance] = None
        if len(self._entering) > ENTERING_MAX:
            oldest = next(iter(self._entering))
            del self._entering[oldest]
            self._refused()
            oldest.abort("too many connections without a secret")

    def left(self, entrance: _Entrance) -> None:
        """A connection has shown its secret, or is closed."""
        self._entering.pop(entrance, None)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def fingerprint_of(tls: TLS) -> str:
    """SHA-256 of the certificate that a server shows."""
    with open(os.fspath(tls.certificate), encoding="ascii", errors="replace") as file:
        text = file.read()
    begin, end = text.index(ssl.PEM_HEADER), text.index(ssl.PEM_FOOTER)
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text[begin : end + len(ssl.PEM_FOOTER)])).hexdigest()


class _FirstLine(asyncio.Protocol):
    """The protocol of a connection until its first line has come.

    Args:
        most: bytes that the line may have.
        seconds: that it may take.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self.transport: asyncio.Transport | None = None
        self._most = most
        self._received = b""
        self._timer = asyncio.get_running_loop().call_later(seconds, self.abort, f"nothing came for {seconds:g} s")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._received += data
        line, separator, rest = self._received.partition(b"\n")
        if len(line) > self._most:
            self.abort("the first line is too long")
        elif separator:
            self._received = b""
            self.take(line, rest)

    def take(self, line: bytes, rest: bytes) -> None:
        """The line is there; `rest` came behind it."""
        raise NotImplementedError

    def over(self) -> None:
        """Whatever comes next is not for this protocol."""
        self._timer.cancel()
        self.transport = None

    def abort(self, reason: str) -> None:
        """Close at once."""
        transport = self.transport
        self.over()
        if transport is not None:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over()


class _Entrance(_FirstLine):
    """A connection at an instance, before its secret is known."""

    def __init__(self, listener: DirectListener, arrived: Callable[[], None]) -> None:
        super().__init__(_LINE_MAX, ENTER_TIME)
        self._listener = listener
        self._arrived = arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._arrived()
        self._listener.entered(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport is not None and self._received and not _begins_well(self._received):
            self._refuse("this port is for claim tickets of rpcstream")

    def take(self, line: bytes, rest: bytes) -> None:
        transport = self.transport
        if transport is None or not line.startswith(_GREETING):
            self._refuse("this port is for claim tickets of rpcstream")
            return
        secret = line.removeprefix(_GREETING).strip().decode("latin-1")
        owner = self._listener.claim(secret)
        if owner is None:
            self._refuse(f"the secret was used, is older than {CLAIM_TIME:g} s, or was never given out")
            return
        self.over()
        transport.write(b"ok\n")
        owner.claimed(secret, transport, rest)

    def _refuse(self, reason: str) -> None:
        transport = self.transport
        self.over()
        if transport is not None:
            transport.write(f"refused: {reason}\n".encode())
            transport.close()

    def over(self) -> None:
        super().over()
        self._listener.left(self)


def _begins_well(received: bytes) -> bool:
    return _GREETING.startswith(received[: len(_GREETING)])


class _Claim(_FirstLine):
    """A connection of a client, until the instance has taken the secret."""

    def __init__(self, offer: Offer) -> None:
        super().__init__(_ANSWER_MAX, CONNECT_TIME)
        self._offer = offer
        self.answered: asyncio.Future[tuple[asyncio.Transport, bytes]] = asyncio.get_running_loop().create_future()
        self.reason = "the connection was closed"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        shown = transport.get_extra_info("ssl_object")
        if self._offer.fingerprint is not None:
            found = shown.getpeercert(binary_form=True) if shown is not None else None
            if found is None or hashlib.sha256(found).hexdigest() != self._offer.fingerprint:
                self.abort("it shows another certificate than the ticket says")
                return
        cast(asyncio.Transport, transport).write(b"%b%b\n" % (_GREETING, self._offer.secret.encode()))

    def take(self, line: bytes, rest: bytes) -> None:
        transport = self.transport
        if line != b"ok" or transport is None:
            self.abort(line.decode(errors="replace"))
            return
        self.over()
        transport.pause_reading()  # until the stream is its protocol
        if not self.answered.done():
            self.answered.set_result((transport, rest))
        else:
            transport.abort()

    def abort(self, reason: str) -> None:
        self.reason = reason
        super().abort(reason)
        self._fail()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if exc is not None:
            self.reason = why_lost(exc)
        self._fail()

    def _fail(self) -> None:
        if not self.answered.done():
            self.answered.set_exception(DirectError(self.reason))
            self.answered.exception()  # it may be that nothing waits for it any more


async def connect(offer: Offer) -> tuple[asyncio.Transport, bytes]:
    """Open the connection that was offered; gives its transport, which is not read yet, and what has come already.

    Raises:
        DirectError: it cannot be opened.
    """
    loop = asyncio.get_running_loop()
    made: list[_Claim] = []

    def make() -> _Claim:
        made.append(_Claim(offer))
        return made[-1]

    how: dict[str, Any] = {}
    if offer.fingerprint is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # The certificate is compared with the one that the ticket names, which came by NATS.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        how = {"ssl": context}
    try:
        host, port = split_address(offer.address)
        async with asyncio.timeout(CONNECT_TIME):
            await loop.create_connection(make, host, int(port), **how)
            return await made[-1].answered
    except TimeoutError:
        raise DirectError(f"no answer within {CONNECT_TIME:g} s") from None
    except DirectError:
        raise
    except (OSError, ValueError) as error:
        raise DirectError(_text_of(error)) from error
    finally:
        for claim in made:
            if not claim.answered.done() or claim.answered.cancelled() or claim.answered.exception() is not None:
                claim.abort("given up")


def _text_of(error: Exception) -> str:
    number = (
        error.errno if isinstance(error, OSError) and not isinstance(error, socket.gaierror | ssl.SSLError) else None
    )
    return os.strerror(number) if number else getattr(error, "strerror", None) or str(error)


def hand_over(transport: asyncio.Transport, stream: LineStream, rest: bytes) -> None:
    """Make a line stream the protocol of a connection."""
    transport.set_protocol(stream)
    stream.connection_made(transport)
    if not transport.is_reading():
        transport.resume_reading()
    if rest:
        stream.data_received(rest)
