"""Which instance of a service has which call of a client, and how calls fail when their instance is gone.

An instance acknowledges a call that takes longer. From then on the client sends cancels and credit to that instance,
and probes it: NATS returns a message to an instance that is gone, because nothing subscribes to its subject.

If a call is neither answered nor acknowledged in time, the client asks all instances whether they are alive. They
acknowledge their calls first. The call is lost when each known instance has answered or is gone.

NATS also returns calls whose method has no subscriber. After a restart of NATS the instances join again one after the
other. So a method is missing only if an instance has joined, and NATS still has no subscriber for the method.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..errors import ConnectFailed, ConnectionLost, MethodNotFound, NotPermitted, RpcError
from ..peer.calls import Call
from ..peer.control_messages import StreamTable
from ..peer.marshal import Marshaller
from ..peer.outgoing import OutgoingCalls
from ..peer.pending import PendingCall, PendingCalls
from ..peer.session import Session
from ..transports.message_connection import trace_sent
from ..wire import envelope
from ..wire.buffers import Encoded
from .channel import Home, NatsChannel, payload_of
from .messages import encoded, ids_in, no_way

#: Sends a message with the calls of these ids; the method of a batch is empty.
SendCall = Callable[[Encoded, str, Sequence[int | str]], None]


class SubjectCalls(OutgoingCalls):
    """Calls that are sent to the subjects of their methods."""

    __slots__ = ("_send_to_subject",)

    def __init__(self, session: Session, marshaller: Marshaller, send: SendCall) -> None:
        super().__init__(session, marshaller)
        self._send_to_subject = send

    def _send_call(self, outgoing: Call, call: PendingCall, left: float) -> None:
        self._send_to_subject(outgoing.encode(left), outgoing.method, outgoing.call_ids)

    def notify(self, message: Encoded, method: str) -> None:
        self._send_to_subject(message, method, ())


class Service(Home, Protocol):
    """The connection of a client to a service; see `calls.ServiceConnection`."""

    inbox: str
    address: str
    session: Session
    make_session: Callable[[], Session]
    calls: OutgoingCalls
    headers: dict[str, str] | None
    places: Any
    large: Any
    name: str

    @property
    def max_payload(self) -> int: ...

    @property
    def instances(self) -> Mapping[str, Instance]: ...

    def ask(self, subject: str, request: bytes, call_id: int) -> None: ...

    def is_wanted(self, call_ids: Iterable[int | str]) -> bool: ...

    def inquire(self) -> None: ...

    async def is_missing(self, subject: str) -> bool: ...

    def instance_closed(self, instance: Any) -> None: ...


class Instance(NatsChannel):
    """The channel of the session with one instance.

    Attributes:
        call_ids: the calls that the instance has acknowledged.
    """

    reads_lines = True
    sends_lines = False

    def __init__(self, service: Service, subject: str, number: int) -> None:
        session = service.make_session()
        super().__init__(service, session, target=subject, own=f"{service.inbox}.i{number}", address=service.address)
        self.number = number
        self.call_ids: dict[int | str, None] = {}
        self._service = service
        # Replies and items of an instance belong to calls to the service.
        session.pending, session.streams = service.session.pending, service.session.streams
        session.sends_binary, session.offers_binary = service.session.sends_binary, False
        session.on_event = service.session.on_event
        session.calls = SubjectCalls(session, service.calls.marshaller, self.send_call)

    def send_call(self, message: Encoded, method: str, call_ids: Sequence[int | str]) -> None:
        """Send a call or notification to this instance, at the subject of its session and method.

        Raises:
            MessageTooLarge: it is over `max_payload`. Nothing was sent.
            ValueError: the name of the method is too long for NATS.
        """
        if self._trace is not None:
            trace_sent(self._trace, [message], as_frames=self.session.sends_binary)
        subject = f"{self.target}.{encoded(method)}"
        payload, size = payload_of(message, self.session, self._service.max_payload)
        if payload is None:
            raise no_way(size, self._link.max_payload, "it goes to one instance")
        own = f"{self._service.inbox}.{call_ids[0]}" if call_ids else self.own
        self._link.publish(subject, payload, own, self._service.headers)

    def take_control(self, params: dict[str, Any]) -> None:
        """As `NatsChannel.take_control`."""
        if "alive" in params:
            self._service.places.answered(self)
        elif "has" in params:
            self._service.places.acknowledged(self, ids_in(params["has"]))
        elif "wanted" in params and self._service.session.pending:
            self._service.large.detour_of(self)

    def _send_large(self, message: Encoded) -> None:
        self._service.large.detour_of(self).send([message])

    def missed(self) -> None:
        """NATS says that the instance is gone: end the session.

        If messages still arrive by the direct connection, the session ends with a later probe.
        """
        stream = None if self.detour is None else self.detour.stream
        if stream is None or not stream.has_received():
            self.end("the instance is gone")

    def closed(self) -> None:
        """As `NatsChannel.closed`."""
        self._service.instance_closed(self)

    def end(self, reason: str) -> None:
        """As `NatsChannel.end`; the calls of other instances go on."""
        self.session.pending, self.session.streams = PendingCalls(), StreamTable()
        super().end(reason)


#: Seconds between two checks of the instances that have calls, and of late calls.
WATCH_EVERY = 0.5

#: Seconds after which a call without an acknowledgement is late. An instance acknowledges much sooner unless its event
#: loop is blocked.
LATE_AFTER = 1.0

#: Calls that were cancelled before their instance was known. They are cancelled there when it acknowledges them.
CANCELLED_MAX = 10_000

#: Makes the error for a call of this method.
MakeError = Callable[[str], Exception]


class CallPlaces:
    """The calls of one client to one service, and the instances that have them."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._pending = service.session.pending
        self._loop = asyncio.get_running_loop()
        #: Calls whose instance is not known: when they were sent (loop time, s), their subject, and the token of their
        #: reply subject.
        self._sent: dict[int | str, tuple[float, str, str]] = {}
        self._cancelled: dict[int | str, None] = {}
        #: Late calls for which all instances were asked whether they are alive; the known instances that have not
        #: answered; and whether any instance has.
        self._late: list[int | str] = []
        self._silent: list[Instance] = []
        self._is_answered = False
        self._timer: asyncio.TimerHandle | None = None
        #: The calls that came back, by subject, and the tasks that find out why.
        self._returned: dict[str, list[int | str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # -- calls --------------------------------------------------------------------------------------------------------

    def sent(self, call_ids: Iterable[int | str], subject: str, token: str) -> None:
        """Calls were sent to this subject."""
        now = self._loop.time()
        for call_id in call_ids:
            self._sent[call_id] = now, subject, token
        self.watch()

    def place_of(self, call_ids: Iterable[int | str]) -> Instance | None:
        """The instance that has acknowledged one of these calls; None if none has."""
        for place in self._service.instances.values():
            if not place.call_ids.keys().isdisjoint(call_ids):
                return place
        return None

    def cancel(self, call_id: int | str) -> None:
        """Cancel a call at the instance that has it, as soon as that is known."""
        place = self.place_of((call_id,))
        if place is not None:
            del place.call_ids[call_id]
            place.send([envelope.cancel(call_id)])
        elif self._sent.pop(call_id, None) is not None:
            self._cancelled[call_id] = None
            if len(self._cancelled) > CANCELLED_MAX:
                del self._cancelled[next(iter(self._cancelled))]

    def fail(self, call_ids: Iterable[int | str], make_error: MakeError) -> None:
        """Fail calls that were not sent, not carried out, or lost."""
        for call_id in list(call_ids):
            self._sent.pop(call_id, None)
            call = self._pending.find(call_id)
            if call is None:
                continue
            error = make_error(call.method)
            if isinstance(error, RpcError):
                self._pending.settle(envelope.error_reply(call_id, error), b"")
            elif self._pending.discard(call_id):
                call.fail(error)

    def fail_unsent(self, call_ids: Iterable[int | str], is_missing: bool) -> None:
        """Fail calls that came back: no instance has their method, or the service is away."""
        service = self._service

        def make_error(method: str) -> Exception:
            if is_missing:
                text = f"Method not found: {method}: no instance of the service {service.name!r} offers it"
                return MethodNotFound(text, {"no_provider": True, "service": service.name})
            reason = f"no instance of the service {service.name!r} is there now; wait_for= waits for one"
            return ConnectFailed(reason, method=method or None, address=service.address)

        self.fail(call_ids, make_error)

    def fail_denied(self, subject: str) -> None:
        """Fail the calls that NATS did not permit to be published to this subject."""
        denied = [call_id for call_id, (_, sent_to, _) in self._sent.items() if sent_to == subject]
        if denied:
            reason = f"NATS does not permit this login to publish to {subject!r}"
            self.fail(denied, lambda method: NotPermitted(data={"reason": reason}))

    # -- instances ----------------------------------------------------------------------------------------------------

    def acknowledged(self, place: Instance, call_ids: Iterable[int | str]) -> None:
        """An instance has acknowledged these calls."""
        for call_id in call_ids:
            if self._pending.find(call_id) is not None:
                if self.place_of((call_id,)) is None:  # a call is at one instance
                    self._sent.pop(call_id, None)
                    place.call_ids[call_id] = None
            elif call_id in self._cancelled:
                del self._cancelled[call_id]
                place.send([envelope.cancel(call_id)])

    def has_calls(self, place: Instance) -> bool:
        """Whether calls that wait are known to be at an instance."""
        for call_id in [each for each in place.call_ids if self._pending.find(each) is None]:
            del place.call_ids[call_id]
        return bool(place.call_ids)

    def lose(self, call_ids: Iterable[int | str], reason: str) -> None:
        """Fail calls whose instance is gone, or that were lost on the way."""
        address = self._service.address
        self.fail(call_ids, lambda method: ConnectionLost(reason, method=method, address=address))

    # -- watching -----------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Check instances and calls every `WATCH_EVERY` seconds, as long as calls are pending."""
        if self._timer is None:
            self._timer = self._loop.call_later(WATCH_EVERY, self._look)

    def _look(self) -> None:
        """Probe the instances that have calls, and look for late calls."""
        self._timer = None
        pending, now = self._pending, self._loop.time()
        self._sent = {call_id: sent for call_id, sent in self._sent.items() if pending.find(call_id) is not None}
        self._look_for_late(now)
        for place in list(self._service.instances.values()):
            if place in self._silent or self.has_calls(place):
                place.probe()
        if pending:
            self.watch()

    def _look_for_late(self, now: float) -> None:
        """Fail late calls that no instance has, and ask whether the instances are alive if there are others."""
        if self._is_answered and all(place.is_over for place in self._silent):
            lost = [call_id for call_id in self._late if call_id in self._sent]
            self.lose(lost, "the instance that had the call is gone, or the message was lost")
            self._late = []
        if self._late and self._is_answered:
            return  # the event loop of an instance is blocked: it may have the call
        self._late = [call_id for call_id, (sent, _, _) in self._sent.items() if now - sent > LATE_AFTER]
        self._silent, self._is_answered = [], False
        if self._late:
            self._silent = list(self._service.instances.values())
            self._service.inquire()

    def answered(self, place: Instance | None) -> None:
        """An instance has answered that it is alive; None: an instance that is not known."""
        self._is_answered = True
        if place in self._silent:
            self._silent.remove(place)

    # -- calls that came back -----------------------------------------------------------------------------------------

    def came_back(self, token: str) -> None:
        """NATS has returned the calls whose reply subject has this token: nothing subscribes to their subject."""
        call_ids: list[int | str]
        if token.isdecimal():
            call_ids = [int(token)]
        else:
            call_ids = [call_id for call_id, (_, _, sent_with) in self._sent.items() if sent_with == token]
        for call_id in call_ids:
            _, subject, _ = self._sent.pop(call_id, (0.0, "", ""))
            if not subject:  # it was for an instance
                self.fail_unsent((call_id,), False)
            elif subject in self._returned:
                self._returned[subject].append(call_id)
            else:
                self._returned[subject] = [call_id]
                task = self._loop.create_task(self._explain(subject))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _explain(self, subject: str) -> None:
        """Find out why calls came back from this subject, and fail them."""
        is_missing = await self._service.is_missing(subject)
        self.fail_unsent(self._returned.pop(subject, ()), is_missing)

    def stop(self) -> None:
        """Stop, because the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        for call_ids in self._returned.values():
            self.fail_unsent(call_ids, False)
        self._returned = {}
