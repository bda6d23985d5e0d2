"""One call on its way through the hub: from its caller to the client that offers the method, and back.

Owns what the two ends say to each other about this call: the request, items and credit, progress, cancels, the reply.
To the caller's session it is a call that is carried out elsewhere; to the provider's, one that waits for its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..codec import payloads
from ..errors import CallCancelled, CallTimeout, DeadlineExceeded, InternalError, InvalidRequest, ProviderGone, RpcError
from ..peer.deadline import INFINITE
from ..peer.flow_control import Item
from ..peer.forwarded import ForwardedCall
from ..peer.session import Session
from ..wire import envelope
from ..wire.pieces import Written
from . import passthrough
from .members import Member
from .passthrough import Line
from .relayed_streams import ArgumentStream, ReplyStream

#: Makes the reply of an error, for an id.
Refuse = Callable[[Any, RpcError], Written | None]


class Relay(ForwardedCall):
    """One call.

    Args:
        method: as the caller named it, for errors.
        call_id: of the caller's request.
        client: who carries it out.
        deadline: loop time, s; may be infinite.
        refuse: writes the reply where it is an error of the hub's.

    Attributes:
        pending_id: its id where it is carried out.
        future: gets the reply in the place of the caller's session, if there is one.
    """

    __slots__ = (
        "_argument_streams",
        "_caller",
        "_id_text",
        "_is_over",
        "_latest",
        "_provider",
        "_refuse",
        "_reply_stream",
        "client",
        "deadline",
        "future",
        "method",
        "pending_id",
    )

    def __init__(
        self, method: str, caller: Session, call_id: Any, client: Member, *, deadline: float, refuse: Refuse
    ) -> None:
        self.call_id = call_id
        self.method = method
        self.client = client
        self.deadline = deadline
        self.future: asyncio.Future[Written | None] | None = None
        self._caller = caller
        self._id_text = passthrough.text_of(call_id)
        self._refuse = refuse
        #: The provider's name now: it may have none any more when it is lost.
        self._provider = client.name
        #: The items that answer it, where the caller wants them one by one; the streams that go with it.
        self._reply_stream: ReplyStream | None = None
        self._argument_streams: Sequence[ArgumentStream] = ()
        #: Progress that waits until the caller takes it.
        self._latest: Written | None = None
        self._is_over = False
        self.pending_id = client.session.pending.add(self)

    # -- its way there ------------------------------------------------------------------------------------------------

    def send(self, message: Written) -> None:
        """Send it to its provider; from then on its answer is waited for.

        Raises:
            ServerBusy: the provider takes nothing more at present.
        """
        client = self.client
        client.send(message, self._is_wanted)
        client.served += 1
        if self.deadline != INFINITE:
            client.session.calls.expect(self.pending_id, self.deadline)
        if self._reply_stream is not None:
            self._reply_stream.open()
        for stream in self._argument_streams:
            stream.open()

    def add_reply_stream(self, credit: int) -> int:
        """Note that the caller takes items, `credit` at first; return how many the provider may send at first."""
        self._reply_stream = ReplyStream(self._caller, self.call_id, self.client, self.pending_id, credit)
        return self._reply_stream.credit

    def add_argument_streams(self, streams: list[ArgumentStream]) -> None:
        """Note that the caller sends these streams with the call."""
        self._argument_streams = streams

    def _is_wanted(self) -> bool:
        return not self._is_over

    # -- what the provider says (a `TimedWaiter`) ---------------------------------------------------------------------

    def answer(self, reply: dict[str, Any], line: Line) -> None:
        """The provider has answered."""
        if "error" in reply and self._was_given_up(reply["error"]):
            return self.refuse(self._gone(reason="it gave the call up"))
        try:
            self._finish(self._checked(reply, passthrough.line_of(line, reply)))
        except (msgspec.DecodeError, ValueError, KeyError, RecursionError):
            self.refuse(_malformed("its reply cannot be read"))

    def fail(self, error: Exception) -> None:
        """The provider will not answer."""
        if isinstance(error, CallTimeout):
            self.refuse(DeadlineExceeded(data={"method": self.method}))
        else:
            self.refuse(self._gone())

    def when_over(self, function: Callable[[], object]) -> None:
        """Nothing but this hub's own streams go with it."""

    def item(self, item: Item) -> None:
        """An item of the stream.

        Raises:
            InvalidRequest: it was not permitted; the call has ended.
        """
        if self._reply_stream is None or self._is_over:
            return
        try:
            self._reply_stream.count()
            message = self._carried(*item, envelope.ITEM, "id")
            if message is None:
                raise _malformed("an item of its stream cannot be read")
        except RpcError as error:
            self.refuse(error)
            raise InvalidRequest(data=error.data) from error
        self._caller.send(message)
        self._reply_stream.renew()

    def progress(self, item: Item) -> None:
        """How far it is. Of what comes faster than the caller takes it, only the latest is sent."""
        message = self._carried(*item, envelope.PROGRESS, "token") if self.call_id is not None else None
        if message is None:
            return
        if self._latest is None:
            if self._caller.flows.is_free:
                self._caller.send(message)
                return
            self._caller.flows.when_flowing(self._send_latest)
        self._latest = message

    def _send_latest(self) -> None:
        message, self._latest = self._latest, None
        if message is not None and not self._is_over:
            self._caller.send(message)

    def _checked(self, reply: dict[str, Any], line: Line) -> Written:
        """The reply as it goes back. ValueError if it is none."""
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

    def _carried(self, params: dict[str, Any], line: Line, method: str, name: str) -> Written | None:
        """An item or a progress for the caller; None if it cannot be read."""
        line = passthrough.line_of(line, {"params": params})
        depth = self._caller.limits.max_depth
        if "value" not in params or not payloads.is_json(line) or envelope.is_deeper(line, depth):
            return None
        return passthrough.carrier(line, method, name, self._id_text)

    # -- what the caller says -----------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Nobody waits any more: the provider is told, and not waited for."""
        self._give_up()
        self.refuse(CallCancelled())

    # -- the end ------------------------------------------------------------------------------------------------------

    def _was_given_up(self, error: Any) -> bool:
        """Is the error "cancelled"? Nobody has cancelled this call, or it would not wait: unless a stream of the
        caller's broke off, it is the provider that ends."""
        if type(error) is not dict or error.get("code") != CallCancelled.CODE:
            return False
        return not any(stream.is_broken for stream in self._argument_streams)

    def _gone(self, **more: str) -> ProviderGone:
        return ProviderGone(data={"method": self.method, "client": self._provider, **more})

    def refuse(self, error: RpcError) -> None:
        """The call ends with an error of the hub's."""
        self._finish(self._refuse(self.call_id, error))

    def abort(self, error: RpcError) -> None:
        """The same, and the provider is told."""
        self._give_up()
        self.refuse(error)

    def _give_up(self) -> None:
        session = self.client.session
        if session.pending.discard(self.pending_id) and session.channel is not None:
            session.send(envelope.cancel(self.pending_id))

    def _finish(self, reply: Written | None) -> None:
        if self._is_over:
            return
        if self._latest is not None:
            self._send_latest()
        self._is_over = True
        if self._reply_stream is not None:
            self._reply_stream.close_both()
        for stream in self._argument_streams:
            stream.close_both()
        if self.future is None:
            self._caller.finish(self, reply)
        elif not self.future.done():
            self.future.set_result(reply)


def _malformed(reason: str) -> InternalError:
    return InternalError("The provider does not keep to the protocol", {"reason": reason})
