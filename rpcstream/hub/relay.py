"""One call through the hub: from its caller to the member that offers the method (its provider), and back.

A relay passes on the request, items and credit, progress, cancellation, and the reply. The session of the caller sees a
forwarded call, the session of the provider a pending one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from ..errors import (
    CallCancelled,
    CallTimeout,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    MessageTooLarge,
    ProviderGone,
    RpcError,
    Unread,
)
from ..methods.replies import ReplyWriter
from ..peer.deadline import INFINITE
from ..peer.inflight import ForwardedCall
from ..peer.pending import PendingCall
from ..peer.session import Session
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded
from ..wire.json_scan import is_deeper
from . import passthrough
from .members import Member, check_as_text
from .passthrough import Line
from .relayed_streams import ArgumentStream, ReplyStream


class Forwarder(Protocol):
    """What has made a relay."""

    replies: ReplyWriter

    def write_error(self, call_id: Any, error: RpcError) -> Encoded | None:
        """Write the error reply to the request with this id."""

    def send_again(self, relay: Relay) -> bool:
        """Send a call that its provider has not begun to another one; False: there is none, or it cannot be sent."""


class Relay(ForwardedCall, PendingCall):
    """One call through the hub.

    Args:
        method: as the caller named it, for errors.
        call_id: of the caller's request.
        provider: the member that carries it out.
        deadline: loop time, s; may be infinite.
        forwarder: writes errors of the hub, and sends it to another provider if this one has not begun it.
        message: the request, which was checked.
        line: its text, to send it again; None for one whose memory would have to be counted: it is not kept.

    Attributes:
        pending_id: its id at the provider.
        tries: providers that it was sent to.
        future: gets the reply in the place of the caller's session, if there is one.
    """

    __slots__ = (
        "_argument_streams",
        "_forwarder",
        "_id_text",
        "_is_over",
        "_is_sent",
        "_latest",
        "_provider_name",
        "_reply_stream",
        "caller",
        "deadline",
        "future",
        "line",
        "message",
        "method",
        "pending_id",
        "provider",
        "tries",
    )

    def __init__(
        self,
        method: str,
        caller: Session,
        call_id: Any,
        provider: Member,
        *,
        deadline: float,
        forwarder: Forwarder,
        message: dict[str, Any],
        line: Line | None,
    ) -> None:
        super().__init__(call_id)
        self.method = method
        self.provider = provider
        self.deadline = deadline
        self.future: asyncio.Future[Encoded | None] | None = None
        self.caller = caller
        self.message = message if line is not None else {}
        self.line = line
        self.tries = 1
        self._id_text = passthrough.text_of(call_id)
        self._forwarder = forwarder
        #: The provider's name now: it may have none any more when its connection is lost.
        self._provider_name = provider.name
        #: The stream of items that answers it, if the caller wants one; and the streams among its arguments.
        self._reply_stream: ReplyStream | None = None
        self._argument_streams: Sequence[ArgumentStream] = ()
        #: The latest progress, while the caller does not read.
        self._latest: Encoded | None = None
        self._is_over = self._is_sent = False
        self.pending_id = provider.session.pending.add(self)

    def turn_to(self, provider: Member) -> None:
        """Take another provider, which `send` sends the call to next."""
        self.provider = provider
        self.tries += 1
        self._provider_name = provider.name
        self._is_sent = False
        self.pending_id = provider.session.pending.add(self)

    # -- to the provider ----------------------------------------------------------------------------------------------

    def request(
        self,
        line: Line,
        message: dict[str, Any],
        method: bytes,
        *,
        timeout: float | None,
        stream: int | None,
        params: bytes | None,
    ) -> Encoded:
        """Write the request for the provider; arguments as for `passthrough.request`."""
        return passthrough.request(
            line, message, self.pending_id, method, timeout=timeout, stream=stream, params=params
        )

    def send(self, message: Encoded) -> None:
        """Send the request to the provider; from then on its reply is waited for.

        Raises:
            ServerBusy: the provider takes nothing more at present.
        """
        provider = self.provider
        provider.send(message, self._is_wanted)
        self._is_sent = not provider.waiting
        provider.calls_served += 1
        if self.deadline != INFINITE:
            provider.session.calls.expect(self.deadline)
        if self._reply_stream is not None:
            self._reply_stream.open()
        for stream in self._argument_streams:
            stream.open()

    def add_reply_stream(self, credit: int) -> int:
        """Note that the caller takes items, `credit` at first; return how many the provider may send at first."""
        self._reply_stream = ReplyStream(self.caller, self.call_id, self.provider, self.pending_id, credit)
        return self._reply_stream.credit

    def add_argument_streams(self, streams: list[ArgumentStream]) -> None:
        """Note that the caller sends these streams with the call."""
        self._argument_streams = streams

    @property
    def has_streams(self) -> bool:
        """Items belong to it, one way or the other."""
        return self._reply_stream is not None or bool(self._argument_streams)

    def _is_wanted(self) -> bool:
        """Whether the request, which has waited, is to be sent now."""
        session = self.provider.session
        if session.peer_is_leaving and session.pending.discard(self.pending_id):
            self._not_begun()
            return False
        self._is_sent = True
        return not self._is_over

    # -- from the provider (a `PendingCall`) --------------------------------------------------------------------------

    def answer(self, reply: dict[str, Any], line: Line) -> None:
        """Pass the reply back."""
        if "error" in reply and self._was_given_up(reply["error"]):
            if was_not_begun(reply["error"]):
                return self._not_begun()
            return self.refuse(self._gone(reason="it gave the call up"))
        try:
            message = self._checked(reply, passthrough.line_of(line, reply))
            check_as_text(message, self.caller)
            error = reply.get("error")
            self._forwarder.replies.failed = None if error is None else (error["code"], error["message"])
            self._finish(message)
        except MessageTooLarge as error:
            self.refuse(error)
        except (msgspec.DecodeError, ValueError, KeyError, RecursionError):
            self.refuse(_malformed("its reply cannot be read"))

    def fail(self, error: Exception) -> None:
        """Answer with an error: there will be no reply."""
        if isinstance(error, CallTimeout):
            self.refuse(DeadlineExceeded(data={"method": self.method}))
        elif isinstance(error, Unread) or not self._is_sent:
            self._not_begun()
        else:
            self.refuse(self._gone())

    def _not_begun(self) -> None:
        """Have another provider carry the call out, since this one has not begun it and will not."""
        if not self._is_over and not self._forwarder.send_again(self):
            self.refuse(self._gone(executed=False))

    def put(self, params: dict[str, Any], line: Line) -> None:
        """Pass an item of the reply's stream back.

        Raises:
            InvalidRequest: there was no credit for it, or it cannot be read; the call has ended.
        """
        if self._reply_stream is None or self._is_over:
            return
        try:
            self._reply_stream.count()
            message = self._carried(params, line, envelope.ITEM, "id")
            if message is None:
                raise _malformed("an item of its stream cannot be read")
            check_as_text(message, self.caller)
        except RpcError as error:
            self.refuse(error)
            raise InvalidRequest(data=error.data) from error
        self.caller.send(message)
        self._reply_stream.renew()

    def progress(self, params: dict[str, Any], line: Line, marshaller: Any) -> None:
        """Pass progress back; while the caller does not read, only the latest is kept."""
        message = self._carried(params, line, envelope.PROGRESS, "token") if self.call_id is not None else None
        if message is None or (type(message) is AttachedMessage and not self._takes(message)):
            return
        if self._latest is None:
            if self.caller.write_gate.is_open:
                self.caller.send(message)
                return
            self.caller.write_gate.when_open(self._send_latest)
        self._latest = message

    def _takes(self, message: Encoded) -> bool:
        """Whether the caller can be sent a message, of which it may get the text."""
        try:
            check_as_text(message, self.caller)
        except MessageTooLarge:
            return False
        return True

    def _send_latest(self) -> None:
        message, self._latest = self._latest, None
        if message is not None and not self._is_over:
            self.caller.send(message)

    def _checked(self, reply: dict[str, Any], line: Line) -> Encoded:
        """Write the reply as it goes back; ValueError if it is malformed."""
        depth = self.caller.limits.max_depth
        if len(line) > 2 * depth and is_deeper(line, depth):
            raise ValueError("nested too deep")
        error = reply.get("error")
        if error is not None:
            if type(error) is not dict or type(error.get("code")) is not int or type(error.get("message")) is not str:
                raise ValueError("a malformed error")
        elif "result" not in reply:
            raise ValueError("neither result nor error")
        return passthrough.reply(line, self._id_text, is_error=error is not None)

    def _carried(self, params: dict[str, Any], line: Line, method: str, name: str) -> Encoded | None:
        """Write an item or progress for the caller; None if it cannot be read."""
        line = passthrough.line_of(line, {"params": params})
        depth = self.caller.limits.max_depth
        if "value" not in params or is_deeper(line, depth):
            return None
        return passthrough.carrier(line, method, name, self._id_text)

    # -- from the caller ----------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Cancel the call: the provider is told, and not waited for."""
        self._give_up()
        self.refuse(CallCancelled())

    # -- the end ------------------------------------------------------------------------------------------------------

    def _was_given_up(self, error: Any) -> bool:
        """Tell whether the provider ended a call that was not cancelled.

        A cancelled call does not wait for its reply; so unless a stream of the caller broke off, an error "cancelled"
        means that the provider stops.
        """
        if type(error) is not dict or error.get("code") != CallCancelled.CODE:
            return False
        return not any(stream.is_broken for stream in self._argument_streams)

    def _gone(self, **more: Any) -> ProviderGone:
        return ProviderGone(data={"method": self.method, "client": self._provider_name, **more})

    def refuse(self, error: RpcError) -> None:
        """End the call with an error of the hub."""
        self._finish(self._forwarder.write_error(self.call_id, error))

    def abort(self, error: RpcError) -> None:
        """End the call with an error of the hub, and tell the provider."""
        self._give_up()
        self.refuse(error)

    def _give_up(self) -> None:
        session = self.provider.session
        if session.pending.discard(self.pending_id) and session.channel is not None:
            session.send(envelope.cancel(self.pending_id))

    def _finish(self, reply: Encoded | None) -> None:
        if self._is_over:
            return
        if self._latest is not None:
            self._send_latest()
        self._is_over = True
        if self.on_end is not None:
            on_end, self.on_end = self.on_end, None
            on_end(reply)
        if self._reply_stream is not None:
            self._reply_stream.stop()
        for stream in self._argument_streams:
            stream.stop()
        if self.future is None:
            self.caller.finish(self, reply)
        elif not self.future.done():
            self.future.set_result(reply)


def was_not_begun(error: Any) -> bool:
    """Tell whether an error that came from a provider says that it has not begun the call."""
    data = error.get("data")
    return type(data) is dict and data.get("executed") is False


def _malformed(reason: str) -> InternalError:
    return InternalError("The provider does not keep to the protocol", {"reason": reason})
