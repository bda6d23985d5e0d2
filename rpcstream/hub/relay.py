"""One call through the hub: from its caller to the member that offers the method (its provider), and back.

Owns the messages of this call between the two: the request, items and credit, progress, cancellation, the reply. To the
caller's session it is a forwarded call; to the provider's, a pending one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..codec import payloads
from ..errors import CallCancelled, CallTimeout, DeadlineExceeded, InternalError, InvalidRequest, ProviderGone, RpcError
from ..peer.deadline import INFINITE
from ..peer.inflight import ForwardedCall
from ..peer.pending import PendingCall
from ..peer.state import ConversationState
from ..wire import envelope
from ..wire.buffers import Encoded
from . import passthrough
from .members import Member
from .passthrough import Line
from .relayed_streams import ArgumentStream, ReplyStream

#: Writes the error reply to the request with an id.
WriteError = Callable[[Any, RpcError], Encoded | None]


class Relay(ForwardedCall, PendingCall):
    """One call through the hub.

    Args:
        method: as the caller named it, for errors.
        call_id: of the caller's request.
        provider: the member that carries it out.
        deadline: loop time, s; may be infinite.
        write_error: writes the reply where it is an error of the hub.

    Attributes:
        pending_id: its id at the provider.
        future: gets the reply in the place of the caller's session, if there is one.
    """

    __slots__ = (
        "_argument_streams",
        "_caller",
        "_id_text",
        "_is_over",
        "_latest",
        "_provider_name",
        "_reply_stream",
        "_write_error",
        "deadline",
        "future",
        "method",
        "pending_id",
        "provider",
    )

    def __init__(
        self,
        method: str,
        caller: ConversationState,
        call_id: Any,
        provider: Member,
        *,
        deadline: float,
        write_error: WriteError,
    ) -> None:
        self.call_id = call_id
        self.method = method
        self.provider = provider
        self.deadline = deadline
        self.future: asyncio.Future[Encoded | None] | None = None
        self._caller = caller
        self._id_text = passthrough.text_of(call_id)
        self._write_error = write_error
        #: The provider's name now: it may have none any more when its connection is lost.
        self._provider_name = provider.name
        #: The stream of items that answers it, if the caller wants one; and the streams among its arguments.
        self._reply_stream: ReplyStream | None = None
        self._argument_streams: Sequence[ArgumentStream] = ()
        #: The latest progress, while the caller does not read.
        self._latest: Encoded | None = None
        self._is_over = False
        self.pending_id = provider.session.pending.add(self)

    # -- to the provider ----------------------------------------------------------------------------------------------

    def send(self, message: Encoded) -> None:
        """Send the request to the provider; from then on its reply is waited for.

        Raises:
            ServerBusy: the provider takes nothing more at present.
        """
        provider = self.provider
        provider.send(message, self._is_wanted)
        provider.calls_served += 1
        if self.deadline != INFINITE:
            provider.session.calls.expect(self.pending_id, self.deadline)
        if self._reply_stream is not None:
            self._reply_stream.open()
        for stream in self._argument_streams:
            stream.open()

    def add_reply_stream(self, credit: int) -> int:
        """Note that the caller takes items, `credit` at first; return how many the provider may send at first."""
        self._reply_stream = ReplyStream(self._caller, self.call_id, self.provider, self.pending_id, credit)
        return self._reply_stream.credit

    def add_argument_streams(self, streams: list[ArgumentStream]) -> None:
        """Note that the caller sends these streams with the call."""
        self._argument_streams = streams

    def _is_wanted(self) -> bool:
        return not self._is_over

    # -- from the provider (a `PendingCall`) --------------------------------------------------------------------------

    def answer(self, reply: dict[str, Any], line: Line) -> None:
        """Pass the reply back."""
        if "error" in reply and self._was_given_up(reply["error"]):
            return self.refuse(self._gone(reason="it gave the call up"))
        try:
            self._finish(self._checked(reply, passthrough.line_of(line, reply)))
        except (msgspec.DecodeError, ValueError, KeyError, RecursionError):
            self.refuse(_malformed("its reply cannot be read"))

    def fail(self, error: Exception) -> None:
        """Answer with an error: there will be no reply."""
        if isinstance(error, CallTimeout):
            self.refuse(DeadlineExceeded(data={"method": self.method}))
        else:
            self.refuse(self._gone())

    def item(self, params: dict[str, Any], line: Line) -> bool:
        """Pass an item of the reply's stream back.

        Raises:
            InvalidRequest: there was no credit for it, or it cannot be read; the call has ended.
        """
        if self._reply_stream is None or self._is_over:
            return True
        try:
            self._reply_stream.count()
            message = self._carried(params, line, envelope.ITEM, "id")
            if message is None:
                raise _malformed("an item of its stream cannot be read")
        except RpcError as error:
            self.refuse(error)
            raise InvalidRequest(data=error.data) from error
        self._caller.send(message)
        self._reply_stream.renew()
        return True

    def progress(self, params: dict[str, Any], line: Line) -> bool:
        """Pass progress back; while the caller does not read, only the latest is kept."""
        message = self._carried(params, line, envelope.PROGRESS, "token") if self.call_id is not None else None
        if message is None:
            return True
        if self._latest is None:
            if self._caller.write_gate.is_open:
                self._caller.send(message)
                return True
            self._caller.write_gate.when_open(self._send_latest)
        self._latest = message
        return True

    def _send_latest(self) -> None:
        message, self._latest = self._latest, None
        if message is not None and not self._is_over:
            self._caller.send(message)

    def _checked(self, reply: dict[str, Any], line: Line) -> Encoded:
        """Write the reply as it goes back; ValueError if it is malformed."""
        depth = self._caller.limits.max_depth
        if len(line) > 2 * depth and envelope.is_deeper(line, depth):
            raise ValueError("nested too deep")
        if not payloads.is_json(line):
            raise ValueError("no JSON")
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
        depth = self._caller.limits.max_depth
        if "value" not in params or not payloads.is_json(line) or envelope.is_deeper(line, depth):
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

    def _gone(self, **more: str) -> ProviderGone:
        return ProviderGone(data={"method": self.method, "client": self._provider_name, **more})

    def refuse(self, error: RpcError) -> None:
        """End the call with an error of the hub."""
        self._finish(self._write_error(self.call_id, error))

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
        if self._reply_stream is not None:
            self._reply_stream.stop()
        for stream in self._argument_streams:
            stream.stop()
        if self.future is None:
            self._caller.finish(self, reply)
        elif not self.future.done():
            self.future.set_result(reply)


def _malformed(reason: str) -> InternalError:
    return InternalError("The provider does not keep to the protocol", {"reason": reason})
