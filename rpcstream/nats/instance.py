"""An instance of a service, as a client sees it: the channel of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..peer.calls import Call
from ..peer.marshal import Marshaller
from ..peer.outgoing import OutgoingCalls
from ..peer.pending import PendingCall, PendingCalls
from ..peer.session import Session
from ..peer.stream_table import StreamTable
from ..transports.message_connection import trace_sent
from ..wire.buffers import Encoded
from .channel import Home, NatsChannel, payload_of
from .payloads import direct_message, ids_in, no_way
from .subjects import encoded

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

    def is_wanted(self, call_ids: Iterable[int | str]) -> bool: ...

    def inquire(self) -> None: ...

    async def is_missing(self, subject: str) -> bool: ...

    def instance_closed(self, instance: Any) -> None: ...


class Instance(NatsChannel):
    """The channel of the session with one instance.

    Attributes:
        call_ids: the calls that the instance has acknowledged.
        is_leaving: the instance stops, and takes no more calls by its direct connection.
    """

    reads_lines = True
    sends_lines = False

    def __init__(self, service: Service, subject: str, number: int) -> None:
        session = service.make_session()
        super().__init__(service, session, target=subject, own=f"{service.inbox}.i{number}", address=service.address)
        self.number = number
        self.call_ids: dict[int | str, None] = {}
        self.is_leaving = False
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

    def take_direct(self, params: dict[str, Any]) -> None:
        """As `NatsChannel.take_direct`."""
        if "alive" in params:
            self._service.places.answered(self)
        elif "has" in params:
            self._service.places.acknowledged(self, ids_in(params["has"]))
        else:
            self._service.large.take(params, self)

    def _send_large(self, message: Encoded) -> None:
        detour = self._service.large.detour_of(self)
        self.publish(direct_message(ask=0))
        detour.send([message])

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
