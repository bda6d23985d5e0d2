"""What NATS does not carry, at the client: calls, items and results over `max_payload` go by direct connections.

Each direct connection has an ordinary session with one instance. It carries one call at a time, and is kept for a while
for the next ones. Who may connect, and for what, is said by NATS (see `payloads`).
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ..auth.gate import AUTHENTICATE
from ..errors import ConnectFailed, ConnectionLost, ServerBusy, Unread
from ..peer.deadline import INFINITE
from ..peer.outgoing import AwaitedCall, OutgoingCalls
from ..peer.pending import PendingCall, PendingCalls
from ..transports.stream import LineStream
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded
from .dial import error_text
from .direct import CLAIM_TIME, Detour, SharedStreams
from .options import DirectError, Offer, split_address
from .payloads import direct_message, ids_in, no_way
from .places import Place, Service

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


#: Seconds that a client tries to connect, and to show its secret.
CONNECT_TIME = 5.0


@dataclass(eq=False)
class Question:
    """A question where something may be sent.

    Attributes:
        number: of the question.
        call_ids: the calls that it belongs to; a notification has none.
        size: bytes that wait.
        since: when it was asked (loop time, s).
        answer: gets the offer, and the instance that makes it; cancelled when nothing waits for it any more.
    """

    number: int
    call_ids: tuple[int | str, ...]
    size: int
    since: float
    answer: asyncio.Future[tuple[Offer, Place]]


class LargeCalls:
    """What a client sends to a service, and gets from it, by direct connections.

    Attributes:
        size: bytes of what waits for a connection.
    """

    def __init__(self, service: Service) -> None:
        self.size = 0
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._last = 0
        self._questions: dict[int, Question] = {}
        #: The items of arguments that do not go by NATS any more, by call.
        self._uploads: dict[int | str, Detour] = {}
        self._routes: dict[Route, None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, message: Encoded, size: int, method: str | None, call_ids: Sequence[int | str]) -> bytes | None:
        """Send a call, if there is a connection for it; else gives the question where it may be sent.

        Args:
            method: of the call; None for a batch.

        Raises:
            ServerBusy: too many bytes of calls wait for their connection.
        """
        route = next((each for each in self._routes if each.permits(method)), None)
        if route is not None:
            self._begin(route, message, call_ids)
            return None
        if type(message) is AttachedMessage:
            message.secure()
        question = self._ask(tuple(call_ids), size)
        self._start(self._send_call(question, message, method))
        return direct_message(ask=question.number, method=method, size=size, ids=list(call_ids))

    async def _send_call(self, question: Question, message: Encoded, method: str | None) -> None:
        route = await self._connect(question.call_ids, *await question.answer, size=question.size, is_call=True)
        if route is not None:
            route.permit(method)
            if not question.call_ids or self._is_wanted(question.call_ids):
                self._begin(route, message, question.call_ids)

    def _begin(self, route: Route, message: Encoded, call_ids: Sequence[int | str]) -> None:
        route.expect(call_ids, is_here=True)
        self._service.places.acknowledged(route, call_ids)
        route.send([message])

    def has_sent_item(self, place: Place, call_id: int | str, message: Encoded) -> bool:
        """Send an item of an argument, if NATS does not carry it, or those before it went by here.

        Args:
            place: that has the call.
        """
        upload = self._uploads.get(call_id)
        if upload is None:
            if isinstance(place, Route) or len(message) < self._service.max_payload - 4096:
                return False
            upload = self._uploads[call_id] = Detour()
            question = self._ask((call_id,), len(message))
            place.send([direct_message(ask=question.number)])
            self._start(self._send_items(question, upload))
        upload.send(message)
        return True

    async def _send_items(self, question: Question, upload: Detour) -> None:
        route = await self._connect(question.call_ids, *await question.answer, size=question.size)
        if route is not None:
            upload.begin(route.session)

    def _ask(self, call_ids: tuple[int | str, ...], size: int) -> Question:
        limit = self._service.limits.max_held_total // 2
        if self.size + size > limit and self._questions:
            reason = "too many bytes of calls wait for a direct connection (max_held_total)"
            raise ServerBusy(data={"limit": limit, "executed": False, "reason": reason})
        self._last += 1
        question = Question(self._last, call_ids, size, self._loop.time(), self._loop.create_future())
        self._questions[self._last] = question
        self.size += size
        return question

    def _is_wanted(self, call_ids: Sequence[int | str]) -> bool:
        return any(map(self._service.session.pending.find, call_ids))

    def _take(self, number: Any) -> Question | None:
        question = self._questions.pop(number, None) if type(number) is int else None
        if question is not None:
            self.size -= question.size
        return question

    def forget(self, now: float) -> bool:
        """Drop what waits in vain: of calls that are over, and of notifications. Returns whether anything waits."""
        for question in list(self._questions.values()):
            is_late = bool(question.call_ids) or now - question.since > CLAIM_TIME
            if is_late and not self._is_wanted(question.call_ids):
                self._take(question.number)
                question.answer.cancel()
        for call_id in [each for each in self._uploads if not self._is_wanted([each])]:
            del self._uploads[call_id]
        return bool(self._questions or self._uploads)

    # -- connections --------------------------------------------------------------------------------------------------

    def take(self, params: dict[str, Any], instance: Place) -> list[int | str]:
        """Take a message of an instance about direct connections; gives the calls for which something waits there."""
        offer, places = Offer.of(params), self._service.places
        if "ask" not in params:
            call_ids = ids_in(params.get("ids"))
            if offer is not None and self._is_wanted(call_ids):
                self._start(self._connect(call_ids, offer, instance))
                places.asked(call_ids)
                return call_ids
        elif (question := self._take(params["ask"])) is not None:
            if offer is not None and (not question.call_ids or self._is_wanted(question.call_ids)):
                places.asked(question.call_ids)  # `_connect` takes care of them
                question.answer.set_result((offer, instance))
                return []
            error = no_way(question.size, self._service.max_payload, str(params.get("reason")))
            places.fail(question.call_ids, lambda method: error)
            question.answer.cancel()
        if offer is not None:  # what it is for was given up meanwhile
            instance.send([direct_message(unused=offer.secret)])
        return []

    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(
        self, call_ids: Sequence[int | str], offer: Offer, instance: Place, *, size: int = 0, is_call: bool = False
    ) -> Route | None:
        """Use an offer, on a connection that is there, or on a new one; None where the calls have failed.

        Args:
            size: bytes to send; 0: something waits at the instance.
            is_call: a call is to be sent, so that one that fails was not carried out.
        """
        route = next((each for each in self._routes if each.address == offer.address and each.is_idle), None)
        while True:
            is_known = route is not None
            if route is None:
                route = Route(self._service, offer, self._over)
            try:
                async with asyncio.timeout(CONNECT_TIME):
                    if not is_known:
                        await route.open()
                        self._routes[route] = None
                    await route.show(offer.secret)
                if route.is_over or (is_call and not route.session.is_open):
                    raise ConnectionLost("the instance is leaving")
            except (OSError, ValueError) as error:
                route.abort(str(error))
                route = None
                if not is_known:
                    instance.send([direct_message(unused=offer.secret)])
                    self._fail(call_ids, size, is_call, offer, error)
                    return None
                # else the connection may have been closed at this moment
            else:
                if not is_call:
                    route.expect(call_ids)
                return route

    def _fail(self, call_ids: Sequence[int | str], size: int, is_call: bool, offer: Offer, error: Exception) -> None:
        """There is no connection: nothing was sent by it."""
        text = f"no answer within {CONNECT_TIME:g} s" if isinstance(error, TimeoutError) else error_text(error)
        what = f"{size} bytes" if size else "a message"
        reason = (
            f"{what} over NATS's max_payload could not go by a direct connection to {offer.address}: {text} "
            "(direct=, --set nats_direct=)"
        )
        kind: type[ConnectFailed | ConnectionLost] = ConnectionLost
        if is_call:
            kind = Unread if isinstance(error, ConnectionLost) else ConnectFailed
        for call_id in call_ids if not is_call else ():
            self._service.places.cancel(call_id)
        self._service.places.fail(call_ids, lambda method: kind(reason, method=method, address=offer.address))

    def _over(self, route: Route) -> None:
        self._routes.pop(route, None)

    async def close(self, reason: str) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        routes = list(self._routes)
        for route in routes:
            if route.is_idle:
                route.session.end(lambda method: ConnectionLost(reason, method=method))
            else:
                route.abort(reason)
        if routes:
            await asyncio.wait([route.closed for route in routes], timeout=CONNECT_TIME)
