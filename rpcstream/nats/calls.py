"""A client's connection to a service: its calls go to instances, and it has a session with each instance."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import orjson

from ..errors import ConnectFailed, ConnectionLost, NotPermitted
from ..limits import Limits
from ..peer.calls import Call
from ..peer.marshal import Marshaller
from ..peer.outgoing import OutgoingCalls
from ..peer.session import Session
from ..transports.message_connection import Trace, trace_sent
from ..wire import envelope
from ..wire.buffers import Encoded, first_part
from .channel import payload_of
from .large import CONNECT_TIME, DirectStream, LargeCall, LargeCalls
from .link import NatsLink, is_unanswerable, size_of
from .messages import BATCH, CLIENT, INQUIRY, ROOT, encoded
from .places import CallPlaces, Instance, SubjectCalls
from .protocol import NatsMessage

#: Instances that a client knows at a time. Over the limit it forgets one without a call.
INSTANCES_MAX = 1000

#: How the reply subject of the question to the whole service ends.
SERVICE_TOKEN = "q0"

#: What is sent to the subject of a method to see whether anything subscribes: JSON that no subscriber takes for a call.
PROBE = b"0"

#: Seconds for each answer about calls that came back. Handlers may block the event loops of instances for longer; then
#: the calls fail as not sent, and may be repeated.
ANSWER_TIME = 2.0

#: Methods whose subjects are cached.
SUBJECTS_MAX = 10_000


class ServiceCalls(SubjectCalls):
    """The calls of a client to a service: each goes to one of its instances."""

    __slots__ = ("_service",)

    def __init__(self, session: Session, marshaller: Marshaller, service: ServiceConnection) -> None:
        super().__init__(session, marshaller, service.send_call)
        self._service = service

    def _send_item(self, outgoing: Call, message: dict[str, Any]) -> None:
        """Send an item of an argument to the instance that has the call; it has asked for the item."""
        place, item = self._place_of(outgoing), self.marshaller.encode(message, outgoing.method)
        if place is not None:
            place.send([item])

    def permit(self, outgoing: Call, n: int) -> None:
        place = self._place_of(outgoing)
        if place is not None:
            place.send([envelope.credit({"id": outgoing.call_id}, n)])

    def _place_of(self, outgoing: Call) -> Instance | None:
        return self._service.places.place_of(outgoing.call_ids)

    def cancel(self, call_ids: list[int | str]) -> None:
        for call_id in call_ids:
            self._service.places.cancel(call_id)


class ServiceConnection:
    """The connection of a client to a service: the channel of the session that its calls are made on.

    Args:
        link: the connection to NATS.
        service: the name of the service.
        session: of the calls.
        make_session: makes a session with one instance.
        marshaller: writes the calls of the client.
        address: of the service, for errors.
        token: authenticates the client.
        trace: sees every message.

    Attributes:
        name: of the service.
        inbox: the subject below which answers come.
        instances: the instances that have sent something, by their subject.
        places: which instance has which call.
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
        self.calls: OutgoingCalls = ServiceCalls(session, marshaller, self)
        self.name = service
        self._root = f"{ROOT}.{service}."
        self.headers = None if token is None else {"Authorization": f"Bearer {token}"}
        self._head_size = size_of(self.headers)
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        root = self._root
        self._subject_of = lru_cache(SUBJECTS_MAX)(lambda method: root + encoded(method))
        self.instances: dict[str, Instance] = {}
        self._last_number = 0
        self.large = LargeCalls(self)
        self.places = CallPlaces(self)
        #: True if only programs without sessions have answered, False if an instance has, None before the first answer.
        self._is_foreign: bool | None = None
        self._closing: asyncio.Task[None] | None = None
        self._count = 0

    # -- for the connection of the client -----------------------------------------------------------------------------

    async def open(self) -> None:
        """Listen for answers, and give this channel to the session.

        Raises:
            ConnectionError: the connection to NATS has ended.
            ConnectFailed: NATS does not permit this login to listen there.
        """
        link, answers = self.link, f"{self.inbox}.*"
        link.ended.append(self._link_lost)
        link.on_full = self.session.blocked
        link.subscribe(answers, self._received)
        try:
            await link.confirm(answers, "subscription")
        except NotPermitted as error:
            what = f"does not permit this login to subscribe to {answers!r}, for answers (inbox_prefix= of NatsLogin)"
            raise ConnectFailed(f"the NATS server {what}", address=self.address, is_permanent=True) from error
        link.denied.append(lambda what, subject: self.places.fail_denied(subject) if what == "publish" else None)
        self.session.connected(self)

    def has_received(self) -> bool:
        """Whether a message has arrived since the last call of this method."""
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
        subject = self._root + BATCH if is_batch else self._subject_of(method)
        if self.trace is not None:
            trace_sent(self.trace, [message], as_frames=self.session.sends_binary)
        payload, size = payload_of(message, self.session, self.max_payload)
        if payload is None:
            self.large.send(LargeCall(message, size, None if is_batch else method, subject, tuple(call_ids)))
            return
        token = "n"
        if call_ids:
            token = str(call_ids[0])
            if len(call_ids) > 1 or type(call_ids[0]) is not int:
                self._last_number += 1
                token = f"b{self._last_number}"
            self.places.sent(call_ids, subject, token)
        self.link.publish(subject, payload, f"{self.inbox}.{token}", self.headers)

    def ask(self, subject: str, request: bytes, call_id: int) -> None:
        """Send a call of `rpc.direct` to the subject of a method."""
        self.places.sent((call_id,), subject, str(call_id))
        self.link.publish(subject, request, f"{self.inbox}.{call_id}", self.headers)

    @property
    def max_payload(self) -> int:
        """Bytes that NATS carries of a message of this client."""
        return self.link.max_payload - self._head_size

    def is_wanted(self, call_ids: Iterable[int | str]) -> bool:
        """Whether one of these calls waits for its reply."""
        return any(map(self.session.pending.find, call_ids))

    def inquire(self) -> None:
        """Ask all instances whether they are alive; programs without acknowledgements do not answer."""
        self.link.publish(self._root + INQUIRY, b"[]", f"{self.inbox}.{SERVICE_TOKEN}", self.headers)

    async def is_missing(self, subject: str) -> bool:
        """Whether an instance has joined, and still nothing subscribes to this subject."""
        try:
            is_joined = await self._is_answered(self._root + INQUIRY, b"[]") or bool(self._is_foreign)
            return is_joined and not await self._is_answered(subject, PROBE)
        except (OSError, NotPermitted):
            return False

    async def _is_answered(self, subject: str, payload: bytes) -> bool:
        """Whether something subscribes to a subject. Raises TimeoutError if it does not answer."""
        return not is_unanswerable(await self.link.request(subject, payload, self.headers, seconds=ANSWER_TIME))

    # -- what comes ---------------------------------------------------------------------------------------------------

    def _received(self, message: NatsMessage) -> None:
        if self.reason is not None:
            return
        token, data = message.subject[len(self.inbox) + 1 :], message.data
        instance = self.instances.get(message.reply)
        if not data:  # from NATS, or from an instance that probes this client
            self._take_status(token, message, instance)
        elif token == SERVICE_TOKEN:
            if data == b"[]":  # from an instance that has no session with this client
                self.places.answered(instance)
        elif message.reply:
            instance = instance or self._add_instance(message.reply)
            if instance is None:
                self._take_refusal(data)
            else:
                instance.receive(data)
        else:  # from a program without sessions, or from an instance that could not read the message
            self._is_foreign = self._is_foreign is not False
            self._take_refusal(data)

    def _take_status(self, token: str, message: NatsMessage, instance: Instance | None) -> None:
        """Take a message without content: nothing subscribes to the subject of the message with this token."""
        if not is_unanswerable(message):
            return
        if message.reply:
            if instance is not None:
                instance.end("the instance has ended the session")
        elif token[:1] == "i":
            for each in [each for each in self.instances.values() if str(each.number) == token[1:]]:
                each.missed()
        elif token != SERVICE_TOKEN:
            self.places.came_back(token)

    def _take_refusal(self, data: bytes) -> None:
        """Take the answer to a message that an instance could not read."""
        try:
            reply = orjson.loads(data)
        except orjson.JSONDecodeError:
            return
        replies = reply if type(reply) is list else [reply]
        # A reply without an id would fail all pending calls, those at other instances too.
        own = [each for each in replies if envelope.is_reply(each) and each.get("id") is not None]
        self.session.pending.settle_array(own, data)

    def _add_instance(self, subject: str) -> Instance | None:
        """Add an instance; None if there are too many, all with calls."""
        if len(self.instances) >= INSTANCES_MAX:
            for instance in list(self.instances.values()):
                if not (instance.session.busy or self.places.has_calls(instance)):
                    instance.end("forgotten")
                    break
            else:
                return None
        self._last_number += 1
        self._is_foreign = False
        instance = self.instances[subject] = Instance(self, subject, self._last_number)
        instance.session.connected(instance)
        return instance

    # -- the end ------------------------------------------------------------------------------------------------------

    def instance_closed(self, instance: Instance) -> None:
        """The session with an instance is over: its calls are lost."""
        self.instances.pop(instance.target, None)
        self.places.lose(instance.call_ids, instance.reason or "the instance is gone")

    def _link_lost(self, reason: str) -> None:
        self.reason = self.reason or f"the connection to NATS was lost: {reason}"
        self._end()

    def _end(self) -> None:
        self.places.stop()
        session = self.session
        if session.channel is self:
            session.lost(self._lost)
        instances = list(self.instances.values())
        streams = [stream for each in instances if (stream := self.large.stream_to(each)) is not None]
        for instance in instances:
            instance.end(self.reason or "the client was closed")
        self._closing = self._loop.create_task(self._close_link(streams))

    async def _close_link(self, streams: list[DirectStream]) -> None:
        if streams:
            await asyncio.wait([stream.closed for stream in streams], timeout=CONNECT_TIME)
        await self.link.close()
        if not self.closed.done():
            self.closed.set_result(None)

    def _lost(self, method: str) -> ConnectionLost:
        return ConnectionLost(self.reason or "the client was closed", method=method, address=self.address)

    # -- for the session (Channel) ------------------------------------------------------------------------------------

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`. Calls are sent by `send_call`; nothing else goes to the whole service."""

    def pause(self) -> None:
        """As `Channel.pause`. This session receives replies only."""

    def resume(self) -> None:
        """As `Channel.resume`."""

    def probe(self) -> None:
        """As `Channel.probe`. The link pings NATS by itself."""

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
