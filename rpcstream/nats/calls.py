"""A client of a service: calls that go to one of its instances, and the sessions with these.

Owns the subjects of calls and answers, and which session gets what comes. Knows neither how a call is written nor what
it returns, nor which instance has it (`places`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from ..errors import ConnectFailed, ConnectionLost, RpcError
from ..limits import Limits
from ..peer.marshal import Marshaller, Outgoing
from ..peer.outgoing import OutgoingCalls
from ..peer.pending import PendingCall, PendingCalls
from ..peer.session import Session
from ..peer.stream_table import StreamTable
from ..transports.message_connection import Trace, trace_sent
from ..wire import envelope
from ..wire.binary_frame import parts_of_frame
from ..wire.buffers import AttachedMessage, Encoded, first_part, json_of
from ..wire.messages import HEAD_SIZE
from .channel import NOTIFICATION, HeldMessages, NatsChannel
from .client_way import Asked, Asking, ClientWay
from .link import NatsLink, NatsMessage, is_unanswerable, size_of
from .payloads import ids_in, read_payload
from .places import CallPlaces
from .returned import PROBE, PROBE_TOKEN, SERVICE_TOKEN, ReturnedCalls
from .subjects import BATCH, CLIENT, INQUIRY, ROOT, encoded
from .tickets import read_ticket

#: Instances that are known at a time; of more, those without a call are forgotten.
INSTANCES_MAX = 1000

#: Seconds for which a direct connection is read of an instance that is gone: what it has sent may be in the buffer.
LEAVING_TIME = 5.0

#: How a control message begins.
_CONTROL = NOTIFICATION + b':"' + envelope.CONTROL.encode()

#: Subjects of methods that are kept.
SUBJECTS_MAX = 10_000


class ServiceCalls(OutgoingCalls):
    """The calls of a client to a service: each goes to one of its instances."""

    __slots__ = ("_service",)

    def __init__(self, session: Session, marshaller: Marshaller, service: ServiceConnection) -> None:
        super().__init__(session, marshaller)
        self._service = service

    def _send_call(self, outgoing: Outgoing, call: PendingCall, left: float) -> None:
        self._service.send_call(outgoing.encode(left), outgoing.method, outgoing.call_ids)

    def _send_item(self, outgoing: Outgoing, message: dict[str, Any]) -> None:
        """Send an item of an argument to the instance that has the call; it has asked for the item."""
        self._service.send_to_instance(outgoing.call_ids, self.marshaller.encode(message, outgoing.method))

    def notify(self, message: Encoded, method: str) -> None:
        self._service.send_call(message, method, ())

    def permit(self, outgoing: Outgoing, n: int) -> None:
        for call_id in outgoing.call_ids:
            self._service.send_to_instance((call_id,), envelope.credit({"id": call_id}, n))

    def cancel(self, call_ids: list[int | str]) -> None:
        for call_id in call_ids:
            self._service.asking.drop(call_id)
            self._service.places.cancel(call_id)


class Instance(NatsChannel):
    """An instance that a client has heard of: the channel of a session with it.

    Attributes:
        call_ids: the calls that are known to be there.
        is_leaving: it is gone, but for what it has sent by the direct connection.
    """

    def __init__(self, service: ServiceConnection, subject: str, number: int) -> None:
        session = service.make_session()
        super().__init__(
            service.link,
            session,
            target=subject,
            own=f"{service.inbox}.i{number}",
            address=service.address,
            limits=service.limits,
            held=service.held,
            reads_lines=True,
            sends_lines=False,
            trace=service.trace,
            on_close=service.instance_closed,
        )
        self.number = number
        self.call_ids: dict[int | str, None] = {}
        self._service = service
        # What comes from an instance belongs to calls to the service.
        session.pending, session.streams = service.session.pending, service.session.streams
        session.sends_binary, session.offers_binary = service.session.sends_binary, False
        session.on_event = service.session.on_event
        session.use(OutgoingCalls(session, service.marshaller))
        self.is_leaving = False
        self.way = self.direct = ClientWay(self, service.limits, service.asking)

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
                payload = self._service.payload_for(message, method, call_ids) or b""
            except (ValueError, RpcError) as error:  # this is called by the session, at the end of a turn
                self._service.places.fail(call_ids, error)
            else:
                self._link.publish(subject, payload, own, self._service.headers)

    def gone(self, reason: str = "the instance is gone") -> None:
        """NATS, or the instance, says that it is gone. What it has sent by the direct connection is still taken."""
        if not self.way.is_open:
            self.end(reason)
        elif not self.is_leaving:
            self.is_leaving = True
            self._loop.call_later(LEAVING_TIME, self.end, reason)

    def has_call(self, call_ids: Any) -> None:
        """The instance has these calls, or a place for them."""
        self._service.places.acknowledged(self, call_ids)

    def inquire(self, reason: str | None) -> None:
        """The direct connection was lost: ask whether the instance is there, and has its calls."""
        if self.is_leaving:
            self._loop.call_soon(self.end, "the instance is gone")  # behind the message that it has sent last
        else:
            self._service.places.inquire(self)

    def end(self, reason: str) -> None:
        """As `NatsChannel.end`; the calls of other instances go on."""
        self.session.pending, self.session.streams = PendingCalls(), StreamTable(self.session.write_gate)
        super().end(reason)


class ServiceConnection:
    """The connection of a client to a service: the channel of the session that its calls are made on.

    Args:
        link: the connection to NATS.
        service: the name of the service.
        session: of the calls.
        make_session: makes a session with one instance.
        marshaller: of the client.
        address: of the service, for errors.
        token: authenticates the client; None: it has none.
        trace: sees every message.

    Attributes:
        inbox: the subject below which answers come.
        places: where the calls are.
        headers: of messages with calls.
        closed: done when the connection to NATS is closed.
    """

    def __init__(
        self,
        link: NatsLink,
        service: str,
        session: Session,
        make_session: Callable[[], Session],
        marshaller: Marshaller,
        *,
        address: str,
        limits: Limits,
        token: str | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.link = link
        self.session = session
        self.make_session = make_session
        self.marshaller = marshaller
        self.address = address
        self.limits = limits
        self.trace = trace
        self.reason: str | None = None
        self.inbox = f"{link.inbox}.{CLIENT}"
        self.held = HeldMessages(limits.max_held_total)
        self.asking = Asking(limits.max_held_total // 2)
        self.calls = ServiceCalls(session, marshaller, self)
        self._service = service
        self._root = f"{ROOT}.{service}."
        self.headers = None if token is None else {"Authorization": f"Bearer {token}"}
        self._head_size = size_of(self.headers)
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._subjects: dict[str, str] = {}
        #: Instances that were heard of, by their subject, the one heard last at the end.
        self._instances: dict[str, Instance] = {}
        self._last_number = 0
        self._has_heard = False
        self.places = CallPlaces(
            session.pending,
            service=service,
            address=address,
            instances=self._instances.values,
            ask=self._ask_all,
            max_question=lambda: max(1, link.max_payload // 32),
            on_look=self._forget_asked,
        )
        self._returned = ReturnedCalls(
            ask=lambda: self._ask_all(0, b"[]"),
            probe=lambda subject, token: link.publish(subject, PROBE, f"{self.inbox}.{token}", self.headers),
            fail=self.places.fail_unsent,
        )
        #: A program that knows nothing of sessions has answered.
        self._is_foreign = False
        self._batches: dict[str, list[int | str]] = {}
        self._closing: asyncio.Task[None] | None = None
        self._count = 0

    # -- for the connection of the client -----------------------------------------------------------------------------

    async def open(self) -> None:
        """Listen for answers, and give this channel to the session.

        Raises:
            ConnectionError: the connection to NATS has ended.
            ConnectFailed: NATS does not permit this login to listen there.
        """
        link = self.link
        denied: list[str] = []
        link.on_lost = self._link_lost
        link.on_denied = lambda what, subject: denied.append(subject)
        link.on_full = self.session.blocked
        await link.subscribe(f"{self.inbox}.*", self._received)
        await link.flush()
        if denied:
            what = f"does not permit this login to subscribe to {denied[0]!r}, for answers (inbox_prefix= of NatsLogin)"
            raise ConnectFailed(f"the NATS server {what}", address=self.address, is_permanent=True)
        link.on_denied = lambda what, subject: self.places.fail_denied(subject) if what == "publish" else None
        self.session.connected(self)

    def has_received(self) -> bool:
        """Whether anything has come since the last call of this."""
        count, self._count = self._count, self.link.received
        return count != self._count

    # -- calls --------------------------------------------------------------------------------------------------------

    def send_call(self, message: Encoded, method: str, call_ids: Any) -> None:
        """Send a call, batch or notification to the service.

        Raises:
            ServerBusy: too many bytes wait to be sent. Nothing was sent.
            ValueError: the name of the method is too long for NATS.
        """
        if self.reason is not None:
            return
        is_batch = first_part(message)[:1] == b"["
        subject = self._root + BATCH if is_batch else self._subject(method)
        if self.trace is not None:
            trace_sent(self.trace, [message], as_frames=self.session.sends_binary)
        payload = self.payload_for(message, None if is_batch else method, call_ids, leases=True)
        if payload is None:
            return
        token = str(call_ids[0]) if len(call_ids) == 1 and type(call_ids[0]) is int else "n"
        if call_ids:
            self.places.sent(call_ids, subject)
            if token == "n":
                token = self._batch_token(list(call_ids))
        elif self.asking.size:
            self.places.watch()
        self.link.publish(subject, payload, f"{self.inbox}.{token}", self.headers)

    def _subject(self, method: str) -> str:
        subject = self._subjects.get(method)
        if subject is None:
            if len(self._subjects) >= SUBJECTS_MAX:
                self._subjects.clear()
            subject = self._subjects[method] = self._root + encoded(method)
        return subject

    def _batch_token(self, call_ids: list[int | str]) -> str:
        """A token of a reply subject for several calls, or for one whose id is a text."""
        pending = self.session.pending
        if len(self._batches) > 1000:
            self._batches = {
                token: ids for token, ids in self._batches.items() if any(pending.find(each) for each in ids)
            }
        self._last_number += 1
        token = f"b{self._last_number}"
        self._batches[token] = call_ids
        return token

    def payload_for(self, message: Encoded, method: str | None, call_ids: Any, *, leases: bool = False) -> bytes | None:
        """The payload to send for a call: it, or where NATS does not carry it a ticket that asks for a place.

        Args:
            method: of the call; None for a batch.
            leases: the call may be sent to an instance that has given a place for such calls; gives None then.

        Raises:
            ServerBusy: too many bytes of calls wait for their place.
        """
        limit, size = self.link.max_payload - self._head_size, len(message)
        if type(message) is AttachedMessage:
            is_frame = self.session.sends_binary
            size = size if is_frame else message.text_size
            if size <= limit:
                payload = b"".join(parts_of_frame(message)) if is_frame else bytes(message)
                if len(payload) <= limit:
                    return payload
        elif size <= limit:
            return message if type(message) is bytes else bytes(message)
        now = self._loop.time()
        if leases and call_ids and method is not None and (lease := self.asking.lease(method, now)):
            self.places.watch()
            lease.way.send_leased(lease, message, call_ids)
            return None
        fail = partial(self.places.fail, tuple(call_ids))
        return self.asking.ask(Asked(message, size, method, tuple(call_ids), now, fail))

    def send_to_instance(self, call_ids: Any, message: Encoded) -> None:
        """Send a message that belongs to a call to the instance that has it; dropped where none is known."""
        place = self.places.place_of(call_ids)
        if place is not None:
            place.send([message])

    # -- what comes ---------------------------------------------------------------------------------------------------

    def _received(self, message: NatsMessage) -> None:
        token = message.subject[len(self.inbox) + 1 :]
        data = message.data
        if self.reason is not None:
            return
        if not data:
            self._take_status(token, message)
            return
        instance = self._instances.get(message.reply)
        if instance is None:
            if not message.reply:  # of the instance itself, which did not get as far as a session
                self._take_plain(token, data)
                return
            instance = self._add_instance(message.reply)
            if instance is None:
                self._take_refusal(data)
                return
        if token == "ack":
            self.places.acknowledged(instance, ids_in(read_payload(data, self.limits)[0]))
        elif token == "have":
            self._answered(instance, data)
        elif token == "ticket":
            instance.way.answered(read_ticket(data, self.limits))
        else:
            instance.receive(data)

    def _take_status(self, token: str, message: NatsMessage) -> None:
        """Take a message without content: of NATS, or of an instance that looks whether this client is there."""
        if not is_unanswerable(message):
            return
        instance = self._instances.get(message.reply)
        if not message.reply:
            self._unanswered(token)
        elif instance is not None:
            instance.gone("the instance has ended the session")

    def _take_plain(self, token: str, data: bytes) -> None:
        """Take a message that belongs to no session."""
        if token == SERVICE_TOKEN:
            self._returned.service_is(True)
        elif token[:1] == PROBE_TOKEN:
            self._returned.probed(token, False)
        elif token[:1] == "q":
            self.places.cannot_tell()
        else:
            self._is_foreign = True
            self._take_refusal(data)

    def _take_refusal(self, data: bytes) -> None:
        """Take the answer to a message that an instance could not read."""
        try:
            reply = orjson.loads(data)
        except orjson.JSONDecodeError:
            return
        for each in reply if type(reply) is list else (reply,):
            # Without an id it would end every call that waits, at other instances, too.
            if envelope.is_reply(each) and each.get("id") is not None:
                self.session.pending.settle(each, data)

    def _add_instance(self, subject: str) -> Instance | None:
        """Take an instance in that was heard of; None where there are too many, all with calls."""
        if len(self._instances) >= INSTANCES_MAX:
            for instance in list(self._instances.values()):
                if not (instance.session.busy or self.places.has_calls(instance)):
                    instance.end("forgotten")
                    break
            else:
                return None
        self._last_number += 1
        self._has_heard = True
        instance = self._instances[subject] = Instance(self, subject, self._last_number)
        instance.connect()
        return instance

    def _unanswered(self, token: str) -> None:
        """NATS says that nothing subscribes to the subject of a message with this token in its reply subject."""
        if token[:1] == "i":
            number = token[1:]
            for instance in [each for each in self._instances.values() if str(each.number) == number]:
                instance.gone()
        elif token == SERVICE_TOKEN:
            self._returned.service_is(self._is_foreign and not self._has_heard)
        elif token[:1] == "q":
            if token[1:].isdecimal():
                self.places.none_answers(int(token[1:]), was_heard=self._has_heard)
        elif token[:1] == PROBE_TOKEN:
            self._returned.probed(token, True)
        else:
            for call_id in [int(token)] if token.isdecimal() else self._batches.pop(token, []):
                self._came_back(call_id)

    def _came_back(self, call_id: int | str) -> None:
        """NATS says that nothing subscribes to the subject of this call."""
        if subject := self.places.take_sent(call_id):
            self._returned.add(subject, call_id)
        else:  # it was for an instance
            self.places.fail_unsent((call_id,), False)

    def _answered(self, instance: Instance, data: bytes) -> None:
        """An instance says which of the calls that were asked for it has."""
        read, _ = read_payload(data, self.limits)
        if type(read) is not list or len(read) != 2 or type(read[0]) is not str:
            return
        if read[0] == SERVICE_TOKEN:
            self._returned.service_is(True)
        elif read[0][1:].isdecimal():
            self.places.answered(instance, int(read[0][1:]), ids_in(read[1]))

    def _ask_all(self, number: int, payload: bytes) -> None:
        """Ask all instances which calls they have."""
        self.link.publish(self._root + INQUIRY, payload, f"{self.inbox}.q{number}", self.headers)

    def _forget_asked(self, now: float) -> bool:
        """Forget calls that have waited in vain for a place; returns whether any wait."""
        self.asking.forget(self.session.pending, now)
        return bool(self.asking.size)

    # -- the end ------------------------------------------------------------------------------------------------------

    def instance_closed(self, instance: Instance) -> None:
        """The session with an instance is over: its calls are lost."""
        self._instances.pop(instance.target, None)
        self.places.lose(instance, instance.reason or "the instance is gone")

    def _link_lost(self, reason: str) -> None:
        self.reason = self.reason or f"the connection to NATS was lost: {reason}"
        self._end()

    def _end(self) -> None:
        self.places.stop()
        self._returned.stop()
        session = self.session
        if session.channel is self:
            session.lost(self._lost)
        for instance in list(self._instances.values()):
            instance.end(self.reason or "the client was closed")
        self._closing = self._loop.create_task(self._close_link())

    async def _close_link(self) -> None:
        await self.link.close()
        if not self.closed.done():
            self.closed.set_result(None)

    def _lost(self, method: str) -> ConnectionLost:
        return ConnectionLost(self.reason or "the client was closed", method=method, address=self.address)

    # -- for the session (Channel) ------------------------------------------------------------------------------------

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`. Nothing of a client is for the whole service but its calls, which do not come by here."""

    def pause(self) -> None:
        """As `Channel.pause`. Nothing is received by this session but answers."""

    def resume(self) -> None:
        """As `Channel.resume`."""

    def probe(self) -> None:
        """As `Channel.probe`. The link finds out by itself."""

    def close(self) -> None:
        """As `Channel.close`."""
        if self.reason is None:
            self.reason = "the client was closed"
            self._end()

    def abort(self, reason: str) -> None:
        """As `Channel.abort`."""
        if self.reason is None:
            self.reason = reason
            self._end()


def _call_in(message: Encoded) -> dict[str, Any] | None:
    """The JSON of a call or notification; None of a reply or a control message."""
    head = first_part(message)[:HEAD_SIZE]
    if head.startswith(_CONTROL) or envelope.is_reply_head(head):  # nearly all: items, which may be long, among them
        return None
    read = orjson.loads(json_of(message))
    method = read.get("method") if type(read) is dict else None
    return None if method is None or method.startswith(envelope.CONTROL) else read
