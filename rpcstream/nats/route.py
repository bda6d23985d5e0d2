"""A direct connection of a client to an instance: the session on it, and what is expected there."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from ..errors import ConnectionLost
from ..peer.deadline import INFINITE
from ..peer.outgoing import AwaitedCall, OutgoingCalls
from ..peer.pending import PendingCall, PendingCalls
from ..transports.stream import LineStream
from ..wire import envelope
from ..wire.buffers import Encoded
from .direct import AUTHENTICATE, SharedStreams
from .direct_options import DirectError, Offer, split_address
from .places import Service

#: Seconds for which calls of a method are sent by a connection that has asked for one; the instance permits it longer.
#: Short, so that other instances get their share of the calls.
CALLS_TIME = 1.0

#: Seconds after which a connection without a call is closed.
IDLE_TIME = 10.0


class _RouteCalls(PendingCalls):
    """The calls of the service whose replies come by one direct connection, and those that are made on it alone."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service
        self._all = service.session.pending
        #: The ids, and whether the call was sent by this connection; those of calls that are over may be among them.
        self.expected: dict[Any, bool] = {}

    def add(self, call: PendingCall) -> int:
        call_id = self._all.add(call)
        self.expected[call_id] = True
        return call_id

    def find(self, call_id: Any) -> PendingCall | None:
        return self._all.find(call_id)

    def discard(self, call_id: int | str) -> bool:
        return self._all.discard(call_id)

    def items(self) -> list[tuple[int | str, PendingCall]]:
        found = [(call_id, self._all.find(call_id)) for call_id in self.expected]
        waiting = [(call_id, call) for call_id, call in found if call is not None]
        self.expected = {call_id: self.expected[call_id] for call_id, _ in waiting}
        return waiting

    def settle(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        # An error that belongs to no call is not for calls at other places.
        call_ids = [call_id for call_id, _ in self.items()] if reply.get("id") is None else [reply["id"]]
        for call_id in call_ids:
            self._all.settle({**reply, "id": call_id}, line)

    def fail_all(self, make_error: Callable[[str], Exception]) -> None:
        for call_id, call in self.items():
            self._all.discard(call_id)
            self._service.places.cancel(call_id)
            call.fail(make_error(call.method))

    def take_unread(self, last: Any) -> list[PendingCall]:
        """As `PendingCalls.take_unread`: there is one call at a time, which was read, or was not."""
        if last is envelope.UNSAYABLE or self.find(last) is not None:
            return []
        unread = [(call_id, call) for call_id, call in self.items() if self.expected[call_id]]
        return [call for call_id, call in unread if self._all.discard(call_id)]


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
        session.pending = self.calls = _RouteCalls(service)
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

    async def show(self, secret: str) -> None:
        """Show a secret.

        Raises:
            DirectError, ConnectionLost: it is not taken.
        """
        shown = AwaitedCall(self._loop.create_future(), AUTHENTICATE, INFINITE)
        call_id = self.calls.add(shown)
        self.session.send(orjson.dumps(envelope.request(AUTHENTICATE, {"token": secret}, call_id=call_id)))
        try:
            reply, _ = await shown.future
        finally:
            self.calls.discard(call_id)
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
        return self.session.is_open and not self.calls.items()

    def expect(self, call_ids: Sequence[int | str], *, is_here: bool = False) -> None:
        """Something that belongs to these calls comes by this connection; `is_here`: they were sent by it, too."""
        self._used = self._loop.time()
        for call_id in call_ids:
            self.calls.expected.setdefault(call_id, is_here)

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
