"""An instance of a service, for a client that has heard of it: the channel of a session with the instance."""

from __future__ import annotations

from typing import Any

import orjson

from ..peer.outgoing import OutgoingCalls
from ..peer.pending import PendingCalls
from ..peer.stream_table import StreamTable
from ..transports.message_connection import trace_sent
from ..wire import envelope
from ..wire.buffers import Encoded, first_part, json_of
from ..wire.messages import HEAD_SIZE
from .channel import NOTIFICATION, NatsChannel
from .payloads import no_way
from .places import Service
from .subjects import encoded

#: How a control message begins.
_CONTROL = NOTIFICATION + b':"' + envelope.CONTROL.encode()


class Instance(NatsChannel):
    """An instance that a client has heard of: the channel of a session with it.

    Attributes:
        call_ids: the calls that are known to be there.
    """

    reads_lines = True
    sends_lines = False

    def __init__(self, service: Service, subject: str, number: int) -> None:
        session = service.make_session()
        super().__init__(service, session, target=subject, own=f"{service.inbox}.i{number}", address=service.address)
        self.number = number
        self.call_ids: dict[int | str, None] = {}
        self._service = service
        # What comes from an instance belongs to calls to the service.
        session.pending, session.streams = service.session.pending, service.session.streams
        session.sends_binary, session.offers_binary = service.session.sends_binary, False
        session.on_event = service.session.on_event
        session.calls = OutgoingCalls(session, service.calls.marshaller)

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`; a call to this very instance, of `ctx.peer`, goes to the subject of its method there."""
        for message in messages:
            read = _call_in(message)
            if read is None:
                super().send([message])
                continue
            if self._trace is not None:
                trace_sent(self._trace, [message], as_frames=self.session.sends_binary)
            method, call_ids = read["method"], (read["id"],) if type(read.get("id")) is int else ()
            own = f"{self._service.inbox}.{call_ids[0]}" if call_ids else self.own
            try:
                subject = f"{self.target}.{encoded(method)}"
            except ValueError as error:  # this is called by the session, at the end of a turn
                self._service.places.fail(call_ids, error)
                continue
            payload, size = self._service.payload_of(message)
            if payload is None:
                self._service.places.fail(call_ids, no_way(size, self._link.max_payload, "it goes to one instance"))
            else:
                self._link.publish(subject, payload, own, self._service.headers)

    def take_direct(self, params: dict[str, Any]) -> None:
        """As `NatsChannel.take_direct`."""
        self._service.places.acknowledged(self, self._service.large.take(params, self))

    def closed(self) -> None:
        """As `NatsChannel.closed`."""
        self._service.instance_closed(self)

    def end(self, reason: str) -> None:
        """As `NatsChannel.end`; the calls of other instances go on."""
        self.session.pending, self.session.streams = PendingCalls(), StreamTable()
        super().end(reason)


def _call_in(message: Encoded) -> dict[str, Any] | None:
    """The JSON of a call or notification; None of a reply or a control message."""
    head = first_part(message)[:HEAD_SIZE]
    if head.startswith(_CONTROL) or envelope.is_reply_head(head):  # nearly all: items, which may be long, among them
        return None
    read = orjson.loads(json_of(message))
    method = read.get("method") if type(read) is dict else None
    return None if method is None or method.startswith(envelope.CONTROL) else read
