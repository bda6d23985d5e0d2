"""What NATS does not carry, at the client: messages over `max_payload` go by a direct connection to the instance.

Before a large call, the client calls `rpc.direct` at the subject of the method, and one instance permits it. Then
the client calls `rpc.direct` of the session with that instance, to get the address and the secret that open the direct
connection. From then on the session goes by that connection (see `channel.Detour`).
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from ..auth.gate import AUTHENTICATE
from ..errors import ConnectFailed, ConnectionLost, RpcError, ServerBusy, Unread, error_from_wire
from ..peer.deadline import INFINITE
from ..peer.outgoing import AwaitedCall
from ..transports.stream import LineStream
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded
from ..wire.envelope import Message
from .channel import Detour
from .messages import DIRECT_METHOD, reason_of, session_message
from .options import DirectError, Offer, error_text, split_address
from .places import Instance, Service

#: Seconds that a client tries to connect, and to show its secret.
CONNECT_TIME = 5.0

#: Seconds for which calls of a method are sent by a connection that an instance has permitted for one. The instance
#: permits it longer. Short, so that other instances get their share of the calls.
PERMIT_TIME = 1.0

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
        subject: of the method.
    """

    message: Encoded
    size: int
    method: str | None
    subject: str
    call_ids: tuple[int | str, ...]


class InstanceDetour(Detour):
    """What a client sends to an instance by a direct connection. It waits until the connection is made."""

    def __init__(self, instance: Instance, service: Service) -> None:
        super().__init__(instance)
        self._instance = instance
        self._service = service
        self._calls: list[LargeCall] = []
        self.opened: DirectStream | None = None
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        """Ask the instance for its address and a secret, and connect."""
        address = None
        try:
            async with asyncio.timeout(CONNECT_TIME):
                offer = Offer.of(await self._service.large.ask(self._publish_question, {}, ""))
                address = offer.address
                self.opened = stream = DirectStream(self._service, self._instance, offer)
                await stream.open()
        except RpcError as error:
            self._fail_calls(str(error), ConnectFailed, address)
            self.fail(reason_of(error))
        except (OSError, ValueError) as error:
            text = f"no answer within {CONNECT_TIME:g} s" if isinstance(error, TimeoutError) else error_text(error)
            reason = f"the client could not connect to {address or 'the instance'}: {text}"
            self._instance.publish(session_message(failed=reason))
            self._fail_calls(reason, Unread if isinstance(error, ConnectionLost) else ConnectFailed, address)
            self.fail(reason)
        else:
            self.begin(stream)

    def _publish_question(self, request: bytes, call_id: int) -> None:
        self._service.places.acknowledged(self._instance, (call_id,))
        self._instance.publish(request)

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
        if self.stream is None:
            self._connecting.cancel()
        self._fail_calls("the instance is gone", Unread, None)
        super().over()

    def _fail_calls(self, reason: str, kind: type[ConnectFailed | ConnectionLost], address: str | None) -> None:
        calls, self._calls = self._calls, []
        for call in calls:
            text = f"{call.size} bytes are over NATS's max_payload: {reason} (direct=, --set nats_direct=)"
            self._service.places.fail(call.call_ids, partial(_failure, kind, text, address))


def _failure(kind: type[ConnectFailed | ConnectionLost], text: str, address: str | None, method: str) -> Exception:
    return kind(text, method=method, address=address)


class LargeCalls:
    """Sends the calls of a client that are over `max_payload`, each to the instance that permits it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loop = asyncio.get_running_loop()
        #: By method: the instance that has permitted a call last, and until when others may go there (loop time, s).
        self._permits: dict[str | None, tuple[Instance, float]] = {}
        self._asking: set[asyncio.Task[None]] = set()
        #: Bytes of the calls that wait for a permission.
        self._size = 0

    def send(self, call: LargeCall) -> None:
        """Send a call, as soon as an instance permits it.

        Raises:
            ServerBusy: too many bytes of calls wait for their connection.
        """
        instance, until = self._permits.get(call.method, (None, 0.0))
        if instance is not None and until > self._loop.time() and self._is_free(instance):
            self._send(call, instance)
            return
        limit = self._service.limits.max_held_total // 2
        if self._size and self._size + call.size > limit:
            reason = "too many bytes of calls wait for a direct connection (max_held_total)"
            raise ServerBusy(data={"limit": limit, "executed": False, "reason": reason})
        if type(call.message) is AttachedMessage:
            call.message.secure()
        self._size += call.size
        task = self._loop.create_task(self._send_when_permitted(call))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _send_when_permitted(self, call: LargeCall) -> None:
        params = {"method": call.method, "size": call.size}
        try:
            permit = await self.ask(partial(self._service.ask, call.subject), params, call.method or "")
        except Exception as error:
            failure: Exception = error
            if isinstance(error, ConnectionLost):
                failure = Unread(error.reason, method=error.method, address=error.address)
            self._service.places.fail(call.call_ids, lambda method: failure)
            return
        finally:
            self._size -= call.size
        session = permit.get("session") if type(permit) is dict else None
        instance = self._service.instances.get(session) if type(session) is str else None
        if instance is None:
            reason = "the instance has permitted nothing, or is gone"
            self._service.places.fail(call.call_ids, partial(_failure, Unread, reason, None))
        elif not call.call_ids or self._service.is_wanted(call.call_ids):
            self._permits[call.method] = instance, self._loop.time() + PERMIT_TIME
            self._send(call, instance)

    async def ask(self, publish: Callable[[bytes, int], None], params: dict[str, Any], method: str) -> Any:
        """Call `rpc.direct` of an instance.

        Args:
            publish: sends the request, which has this id.
            params: the method and the size of a large call; empty to ask how to connect.
            method: what errors name.

        Raises:
            RpcError, ConnectFailed, ConnectionLost: as any call.
        """
        call = AwaitedCall(self._loop.create_future(), method, INFINITE)
        call_id = self._service.session.pending.add(call)
        try:
            publish(orjson.dumps(envelope.request(DIRECT_METHOD, params, call_id=call_id)), call_id)
            reply, _ = await call.future
        finally:
            self._service.session.pending.discard(call_id)
        if "error" in reply:
            raise error_from_wire(reply["error"])
        return reply.get("result")

    def _is_free(self, instance: Instance) -> bool:
        is_usable = instance.detour is not None and not instance.is_over
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
