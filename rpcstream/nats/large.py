"""What NATS does not carry, at the client: messages over `max_payload` go by a direct connection to the instance.

The client asks at the subject of the method where a large call may be sent, and one instance answers. From then on the
session with that instance goes by a direct connection. Its address, and the secret that opens it, come by NATS (see
`messages`).
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from ..auth.gate import AUTHENTICATE
from ..errors import ConnectFailed, ConnectionLost, ServerBusy, Unread
from ..transports.stream import LineStream
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded
from ..wire.envelope import Message
from .channel import Detour
from .dial import error_text
from .messages import direct_message, no_way
from .options import DirectError, Offer, split_address
from .places import Instance, Service

#: Seconds that a client tries to connect, and to show its secret.
CONNECT_TIME = 5.0

#: Seconds for which calls of a method are sent by a connection that an instance has permitted for one. The instance
#: permits it longer. Short, so that other instances get their share of the calls.
PERMIT_TIME = 1.0

#: Seconds after which a question that has no answer is dropped, where no call waits for it.
QUESTION_TIME = 10.0

#: The id of the request that shows the secret.
_ENTRY_ID = 0


class DirectStream(LineStream):
    """A direct connection, at the client.

    Args:
        instance: the other end; gets all messages but the first.
        offer: where the connection goes, and the secret.
    """

    def __init__(self, service: Service, instance: Instance, offer: Offer) -> None:
        session = service.make_session()
        super().__init__(session, address=offer.address)
        session.sends_binary, session.offers_binary = service.session.sends_binary, False
        self.entered: asyncio.Future[None] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._service = service
        self._instance = instance
        self._offer = offer
        self._receive = self._receive_answer

    async def open(self) -> None:
        """Connect, and show the secret. Raises OSError (TimeoutError, DirectError) where that is not possible."""
        host, port = split_address(self._offer.address)
        how: dict[str, Any] = {}
        if self._offer.fingerprint is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            # The certificate is compared with the one that the offer names, which came by NATS.
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            how = {"ssl": context}
        try:
            transport, _ = await self._loop.create_connection(lambda: self, host, int(port), **how)
            self._check_certificate(transport)
            secret = {"token": self._offer.secret}
            self.send([orjson.dumps(envelope.request(AUTHENTICATE, secret, call_id=_ENTRY_ID))])
            await self.entered
        except BaseException:
            self.abort("the connection was given up")
            raise

    def _check_certificate(self, transport: asyncio.BaseTransport) -> None:
        if self._offer.fingerprint is not None:
            found = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            if found is None or hashlib.sha256(found).hexdigest() != self._offer.fingerprint:
                raise DirectError("it shows another certificate than the offer says")

    def _receive_answer(self, messages: list[Message]) -> None:
        """Take the answer to the secret."""
        if messages and not self.entered.done():
            self._receive = self._instance.receive_directly
            first = messages[0]
            if type(first) is bytes and b'"result":true' in first:
                self.entered.set_result(None)
                self._receive(messages[1:])
            else:
                self.entered.set_exception(DirectError("the instance did not take the secret"))

    def set_full(self, is_full: bool) -> None:
        super().set_full(is_full)
        self._service.session.blocked(is_full)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_full:
            self.set_full(False)
        super().connection_lost(exc)
        self.closed.set_result(None)
        reason = self.reason or "the instance closed its direct connection"
        if not self.entered.done():
            self.entered.set_exception(ConnectionLost(reason))
            self.entered.exception()  # no warning where no one awaits it
        elif not self.entered.cancelled() and self.entered.exception() is None:
            self._instance.end(reason)


@dataclass(eq=False, frozen=True)
class LargeCall:
    """A call that is over `max_payload`.

    Attributes:
        size: bytes.
        method: None for a batch.
        since: when it was asked where to send it (loop time, s).
    """

    message: Encoded
    size: int
    method: str | None
    call_ids: tuple[int | str, ...]
    since: float


class InstanceDetour(Detour):
    """What a client sends to an instance by a direct connection. It waits until the connection is made."""

    def __init__(self, instance: Instance, service: Service) -> None:
        super().__init__(instance)
        self._instance = instance
        self._service = service
        self._calls: list[LargeCall] = []
        self._address: str | None = None
        self.opened: DirectStream | None = None
        self._connecting: asyncio.Task[None] | None = None

    def connect(self, offer: Offer) -> None:
        """Use an offer; only the first one counts."""
        if self._connecting is None:
            self._address = offer.address
            self._connecting = asyncio.get_running_loop().create_task(self._connect(offer))

    async def _connect(self, offer: Offer) -> None:
        self._instance.publish(direct_message(claim=True))
        self.opened = stream = DirectStream(self._service, self._instance, offer)
        try:
            async with asyncio.timeout(CONNECT_TIME):
                await stream.open()
        except (OSError, ValueError) as error:
            text = f"no answer within {CONNECT_TIME:g} s" if isinstance(error, TimeoutError) else error_text(error)
            reason = f"the client could not connect to {offer.address}: {text}"
            self._instance.publish(direct_message(failed=reason))
            self._fail_calls(reason, Unread if isinstance(error, ConnectionLost) else ConnectFailed)
            self.fail(reason)
        else:
            self.begin(stream)

    def send_call(self, call: LargeCall) -> None:
        """Send a call that the instance takes, as soon as the connection is there."""
        if self.stream is None:
            self._calls.append(call)
        elif not call.call_ids or self._service.is_wanted(call.call_ids):
            self.stream.send([call.message])

    def begin(self, stream: LineStream) -> None:
        self.stream = stream
        for call in self._calls:
            self.send_call(call)
        self._calls = []
        super().begin(stream)

    def over(self) -> None:
        if self._connecting is not None and self.stream is None:
            self._connecting.cancel()
        self._fail_calls("the instance is gone", Unread)
        super().over()

    def _fail_calls(self, reason: str, kind: type[ConnectFailed | ConnectionLost]) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            text = f"{call.size} bytes are over NATS's max_payload: {reason} (direct=, --set nats_direct=)"
            self._service.places.fail(call.call_ids, partial(_failure, kind, text, self._address))


def _failure(kind: type[ConnectFailed | ConnectionLost], text: str, address: str | None, method: str) -> Exception:
    return kind(text, method=method, address=address)


class LargeCalls:
    """The calls of a client that wait until an instance says where they may be sent."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._last = 0
        #: By method: the instance that has permitted a call last, and until when others may go there (loop time, s).
        self._permits: dict[str | None, tuple[Instance, float]] = {}
        #: By the number of the question.
        self._waiting: dict[int, LargeCall] = {}

    def send(self, message: Encoded, size: int, method: str | None, call_ids: Sequence[int | str]) -> bytes | None:
        """Send a call, if an instance has just permitted one; else keep it, and give the question where it may be sent.

        Args:
            method: of the call; None for a batch.

        Raises:
            ServerBusy: too many bytes of calls wait for their connection.
        """
        call = LargeCall(message, size, method, tuple(call_ids), self._loop.time())
        instance, until = self._permits.get(method, (None, 0.0))
        if instance is not None and until > call.since and self._is_free(instance):
            self._send(call, instance)
            return None
        self._permits.pop(method, None)
        limit = self._service.limits.max_held_total // 2
        if self._waiting and sum(call.size for call in self._waiting.values()) + size > limit:
            reason = "too many bytes of calls wait for a direct connection (max_held_total)"
            raise ServerBusy(data={"limit": limit, "executed": False, "reason": reason})
        if type(message) is AttachedMessage:
            message.secure()
        self._last += 1
        self._waiting[self._last] = call
        return direct_message(ask=self._last, method=method, size=size, ids=list(call_ids))

    def take(self, params: dict[str, Any], instance: Instance) -> None:
        """Take a message of an instance about its direct connection."""
        ask = params.get("ask")
        call = self._waiting.pop(ask, None) if type(ask) is int else None
        offer = Offer.of(params)
        if offer is not None and (call is not None or self._service.session.pending):
            self.detour_of(instance).connect(offer)
        detour = instance.detour
        if "leaving" in params and detour is not None:
            instance.is_leaving = True
            detour.add(direct_message(left=True))
        elif call is not None and "reason" in params:
            error = no_way(call.size, self._service.max_payload, str(params["reason"]))
            self._service.places.fail(call.call_ids, lambda method: error)
        elif call is not None and detour is not None and not instance.is_leaving:
            self._permits[call.method] = instance, self._loop.time() + PERMIT_TIME
            self._send(call, instance)
        elif call is not None:  # the instance has not heard of that when it permitted the call
            reason = "the instance leaves, or no direct connection to it could be made"
            self._service.places.fail(call.call_ids, partial(_failure, Unread, reason, None))
        elif "reason" in params and detour is not None:
            detour.fail(str(params["reason"]))

    def _is_free(self, instance: Instance) -> bool:
        is_usable = instance.detour is not None and not (instance.is_over or instance.is_leaving)
        return is_usable and not self._service.places.has_calls(instance)

    def _send(self, call: LargeCall, instance: Instance) -> None:
        self._service.places.acknowledged(instance, call.call_ids)
        self.detour_of(instance).send_call(call)

    def detour_of(self, instance: Instance) -> InstanceDetour:
        """What the client sends to this instance by its direct connection, from now on."""
        if instance.detour is None:
            instance.detour = InstanceDetour(instance, self._service)
        assert isinstance(instance.detour, InstanceDetour)
        return instance.detour

    def stream_to(self, instance: Instance) -> DirectStream | None:
        """The direct connection to an instance; None if there is none."""
        return None if instance.detour is None or instance.detour.stream is None else self.detour_of(instance).opened

    def forget(self) -> bool:
        """Drop what waits in vain: of calls that are over, and of notifications. Returns whether anything waits."""
        earliest = self._loop.time() - QUESTION_TIME
        self._waiting = {
            number: call
            for number, call in self._waiting.items()
            if self._service.is_wanted(call.call_ids) or (not call.call_ids and call.since > earliest)
        }
        return bool(self._waiting)
