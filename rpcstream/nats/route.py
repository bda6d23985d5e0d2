"""A direct connection of a client to an instance: the session on it, and what is expected there."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import orjson

from ..errors import ConnectionLost, Unread
from ..limits import Limits
from ..peer.deadline import INFINITE
from ..peer.marshal import Marshaller
from ..peer.outgoing import AwaitedCall, OutgoingCalls
from ..peer.pending import PendingCall, PendingCalls
from ..peer.session import Session
from ..transports.message_connection import Trace
from ..transports.stream import LineStream
from ..wire import envelope
from ..wire.buffers import Encoded
from .direct import AUTHENTICATE, SharedStreams
from .direct_options import DirectError, Offer, split_address
from .places import CallPlaces

#: Seconds for which calls of a method are sent by a connection that has asked for one; the instance permits it longer.
#: Short, so that other instances get their share of the calls.
CALLS_TIME = 1.0

#: Seconds after which a connection without a call is closed.
IDLE_TIME = 10.0

#: The id of the request that shows a secret; calls have numbers.
_SECRET = "secret"


class Service(Protocol):
    """The connection to the service; see `calls.ServiceConnection`."""

    session: Session
    make_session: Callable[[], Session]
    limits: Limits
    places: CallPlaces
    calls: OutgoingCalls
    trace: Trace | None

    @property
    def max_payload(self) -> int: ...


class _Forwarded(PendingCall):
    """Stands for a call of the service among those of a direct connection, by which its reply comes."""

    __slots__ = ("_call_id", "_is_here", "_service", "method")

    def __init__(self, service: Service, call_id: int | str, *, is_here: bool) -> None:
        self._service = service
        self._call_id = call_id
        self._is_here = is_here
        found = service.session.pending.find(call_id)
        self.method = "" if found is None else found.method

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        if reply.get("id") is None:  # an error that belongs to no call
            reply = {**reply, "id": self._call_id}
        self._service.session.pending.settle(reply, line)

    def fail(self, error: Exception) -> None:
        found = self._service.session.pending.find(self._call_id)
        if found is not None and self._service.session.pending.discard(self._call_id):
            self._service.places.cancel(self._call_id)
            if isinstance(error, Unread) and not self._is_here:  # the instance has read it on NATS
                error = ConnectionLost(error.reason, method=self.method, address=error.address)
            found.fail(error)

    def put(self, params: dict[str, Any], line: bytes | bytearray) -> None:
        found = self._service.session.pending.find(self._call_id)
        if found is not None:
            found.put(params, line)

    def progress(self, params: dict[str, Any], line: bytes | bytearray, marshaller: Marshaller) -> None:
        found = self._service.session.pending.find(self._call_id)
        if found is not None:
            found.progress(params, line, marshaller)


class _ShownSecret(AwaitedCall):
    """The request that shows a secret. What comes for some calls may stand right behind its reply."""

    __slots__ = ("_expected", "_route")

    def __init__(self, route: Route, expected: Sequence[int | str]) -> None:
        super().__init__(asyncio.get_running_loop().create_future(), AUTHENTICATE, INFINITE)
        self._route = route
        self._expected = expected

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        if "result" in reply:
            self._route.expect(self._expected)
        super().answer(reply, line)


class _RouteCalls(PendingCalls):
    """The calls on a direct connection: those of one message at a time."""

    def _sent_behind(self, last: Any) -> list[int | str]:
        is_read = last is envelope.UNSAYABLE or self.find(last) is not None
        return [] if is_read else list(self._waiting)


class Route:
    """A direct connection to an instance, and the session on it; a `Place` of calls.

    Args:
        offer: where it goes.
        on_over: called with this object when it is lost.
    """

    def __init__(self, service: Service, offer: Offer, on_over: Callable[[Route], object]) -> None:
        self.address = offer.address
        self.call_ids: dict[int | str, None] = {}
        self.session = session = service.make_session()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._service = service
        self._offer = offer
        self._on_over = on_over
        #: Until when calls of these methods may be sent (loop time, s).
        self._permitted: dict[str | None, float] = {}
        self._loop = asyncio.get_running_loop()
        self._used = self._loop.time()
        session.pending = _RouteCalls()
        session.calls = OutgoingCalls(session, service.calls.marshaller)
        session.streams = SharedStreams.of(service.session.streams)
        session.sends_binary, session.offers_binary = service.session.sends_binary, False
        session.on_lost.append(self._lost)

    async def open(self) -> None:
        """Connect. Raises OSError (TimeoutError, DirectError) where that is not possible."""
        host, port = split_address(self.address)
        how: dict[str, Any] = {}
        if self._offer.fingerprint is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            # The certificate is compared with the one that the offer names, which came by NATS.
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            how = {"ssl": context}
        stream = LineStream(self.session, address=self.address, trace=self._service.trace, on_close=self._closed)
        try:
            transport, _ = await self._loop.create_connection(lambda: stream, host, int(port), **how)
            self._check_certificate(transport)
        except BaseException:
            stream.abort("the connection was given up")
            raise
        self._loop.call_later(IDLE_TIME, self._look)

    def _check_certificate(self, transport: asyncio.BaseTransport) -> None:
        if self._offer.fingerprint is not None:
            found = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            if found is None or hashlib.sha256(found).hexdigest() != self._offer.fingerprint:
                raise DirectError("it shows another certificate than the offer says")

    async def show(self, secret: str, expected: Sequence[int | str]) -> None:
        """Show a secret, behind which something comes for these calls.

        Raises:
            DirectError, ConnectionLost: it is not taken.
        """
        shown = _ShownSecret(self, expected)
        self.session.pending.add_as(_SECRET, shown)
        self.session.send(orjson.dumps(envelope.request(AUTHENTICATE, {"token": secret}, call_id=_SECRET)))
        reply, _ = await shown.future
        if "error" in reply:
            raise DirectError(str(reply["error"].get("data", {}).get("reason")))

    def permit(self, method: str | None) -> None:
        """Calls of this method may be sent from now on."""
        self._permitted[method] = self._loop.time() + CALLS_TIME

    def permits(self, method: str | None) -> bool:
        """Whether a call of this method can be sent now."""
        return self._permitted.get(method, 0.0) > self._loop.time() and self.is_idle

    @property
    def is_idle(self) -> bool:
        """No call waits for something that comes by this connection, and a new one can be sent."""
        own, all_calls = self.session.pending, self._service.session.pending
        for call_id, call in own.items():
            if type(call) is _Forwarded and all_calls.find(call_id) is None:
                own.discard(call_id)
        return not own and self.session.is_open

    def expect(self, call_ids: Sequence[int | str], *, is_here: bool = False) -> None:
        """Something that belongs to these calls comes by this connection; `is_here`: they were sent by it, too."""
        self._used = self._loop.time()
        for call_id in call_ids:
            if self.session.pending.find(call_id) is None:
                self.session.pending.add_as(call_id, _Forwarded(self._service, call_id, is_here=is_here))

    def send(self, messages: list[Encoded]) -> None:
        """As `Place.send`."""
        for message in messages:
            self.session.send(message)

    @property
    def is_over(self) -> bool:
        """As `Place.is_over`."""
        return self.session.channel is None

    def probe(self) -> None:
        """As `Place.probe`: the system finds out by itself."""

    def abort(self, reason: str) -> None:
        """Close at once."""
        self.session.abort(reason)

    def _look(self) -> None:
        """Close the connection where it was not used for a while."""
        if self.session.channel is None:
            return
        now = self._loop.time()
        if not self.is_idle:
            self._used = now
        if now - self._used >= IDLE_TIME:
            self.session.end(lambda method: ConnectionLost("not used for long", method=method, address=self.address))
        else:
            self._loop.call_later(IDLE_TIME / 2, self._look)

    def _lost(self) -> None:
        self._on_over(self)

    def _closed(self, stream: LineStream) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
