"""One POST of a client, and what its answer means for the calls in it: replies, items and progress, for those only."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from ..codec import payloads
from ..codec.payloads import OverLimit
from ..errors import BY_STATUS, ConnectFailed, ConnectionLost, InternalError, RpcError, Unread
from ..peer import control_messages
from ..peer.frame_admission import FrameAdmission
from ..peer.incoming import frame_content
from ..peer.session import Session
from ..text import get_logger
from ..wire import envelope
from ..wire.binary_frame import FrameError
from ..wire.http_messages import FRAME, NDJSON, readable_text
from ..wire.messages import LONG, BinaryFrame, Message, Oversize
from .address import parse_address
from .faults import refusal_advice
from .http_answer import Answer, FrameAnswer, LineAnswer, TextAnswer

log = get_logger("rpcstream.client")

_NO_REPLY = "the server's answer has no reply to the call in it"

#: The control messages that are about one call; others would be about the connection, which ends with the answer.
_OF_CALLS = frozenset((envelope.PROGRESS, envelope.ITEM))

#: Makes the error of a call from the name of its method.
MakeError = Callable[[str], Exception]


class Exchange:
    """One POST and its answer.

    Args:
        channel: the `HttpChannel` that it belongs to.
        parts: the bytes of the POST.
        size: of its body.
        method: for errors.
        call_ids: of the calls in it; none for a notification.
        window: items of a stream that its reader has room for; None where none is asked for.

    Attributes:
        is_on_used: its connection has carried another exchange before.
        hold: called with True to stop reading the answer for now, with False to go on.
        timer: of the answer to a notification.
    """

    def __init__(
        self,
        channel: Any,
        parts: list[Any],
        size: int,
        method: str,
        call_ids: Sequence[int | str],
        window: int | None,
    ) -> None:
        self.parts = parts
        self.size = size
        self.call_ids = call_ids
        self.is_on_used = self.is_over = False
        self.hold: Callable[[bool], None] = lambda held: None
        self.timer: asyncio.TimerHandle | None = None
        self._channel = channel
        self._session: Session = channel.session
        self._max_size = self._session.limits.max_message_size
        self._method = method
        #: Items that the reader of a stream has room for; None where none was asked for.
        self._credit = window
        #: Calls whose answer is not wanted any more.
        self._cancelled: set[int | str] = set()
        self._status, self._reason = 0, ""
        self._answer: Answer = TextAnswer(self._max_size)
        #: What decides about the answer, if that is a binary frame.
        self._admission: FrameAdmission | None = None
        #: Messages that were received and wait until their reader has room; the first of them, once it was parsed.
        self._messages: deque[Message] = deque()
        self._next: tuple[Any, bytes] | None = None
        #: A call of this exchange was answered; a reply stood in an array.
        self._has_reply = self._has_array = False
        #: Set once nothing more is received: makes the error of the calls that have no answer.
        self._ending: MakeError | None = None

    # -- for the connection that carries it ---------------------------------------------------------------------

    def begin(self, status: int, reason: str, kind: str, reads_frames: bool) -> None:
        """Take the head of the answer: its status, reason phrase, the media type of its body.

        Args:
            reads_frames: the head says that the server reads binary frames.
        """
        self._status, self._reason = status, reason
        if reads_frames:
            self._channel.server_reads_frames()
        self._answer = TextAnswer(self._max_size)
        if self._is_accepted and kind == NDJSON:
            self._answer = LineAnswer(self._max_size)
        elif self._is_accepted and kind == FRAME and self._session.takes_binary:
            self._admission = FrameAdmission(self._session)
            self._answer = FrameAnswer(self._max_size, self._admission)

    @property
    def _is_accepted(self) -> bool:
        return 200 <= self._status < 300

    def feed(self, data: bytes) -> bool:
        """Take a piece of the body; returns whether the rest of it is wanted."""
        try:
            messages = self._answer.feed(data)
        except FrameError as error:
            self.lose(f"the server's answer is no binary frame: {error}")
            return False
        if messages:
            self._received(messages)
        return not self.is_over

    def complete(self) -> None:
        """The answer is complete."""
        if self.is_over:
            return
        try:
            messages = self._answer.end()
        except FrameError as error:
            self.lose(f"the server's answer is no binary frame: {error}")
            return
        if self._is_accepted or messages:
            self._received(messages)
        else:
            self._refused(b"")
        if self._is_accepted:
            self._end(self._lost(_NO_REPLY))

    def _received(self, messages: Sequence[Message]) -> None:
        if self._is_accepted:
            self._messages += messages
            self._handle_received()
        else:
            body = messages[0]
            self._refused(body.head if isinstance(body, Oversize) else bytes(body))

    def fail(self, make_error: MakeError) -> None:
        """Nothing more will be received: the calls without an answer fail, once what was received is handled."""
        if not self.call_ids and not self.is_over:
            log.warning("a notification was not delivered: %s", make_error(self._method))
        self._end(make_error)

    def lose(self, reason: str) -> None:
        """As `fail`, with a ConnectionLost for this reason."""
        self.fail(self._lost(reason))

    # -- for the channel ----------------------------------------------------------------------------------------

    def permit(self, n: int) -> None:
        """The reader of a stream has room for `n` more items."""
        if self._credit is not None:
            self._credit += n
            self._handle_received()

    def cancel(self, call_id: int | str) -> bool:
        """The answer to this call is not wanted; returns whether no other call of the exchange waits either."""
        self._cancelled.add(call_id)
        return self.is_settled()

    def is_settled(self) -> bool:
        """Whether it has calls, and none of them waits for an answer."""
        find, cancelled = self._session.pending.find, self._cancelled
        return bool(self.call_ids) and all(each in cancelled or find(each) is None for each in self.call_ids)

    def drop(self) -> None:
        """Forget what was received: no answer is wanted."""
        self._messages.clear()
        self._next = None
        self._over()

    # -- messages -----------------------------------------------------------------------------------------------

    def _handle_received(self) -> None:
        """Handle the messages received, as far as the reader of their items has room."""
        while not self.is_over and (self._next is not None or self._messages):
            if self._next is None:
                self._next = self._read(self._messages.popleft())
                continue
            if self._credit is not None and _is_item(self._next[0]):
                if self._credit <= 0:
                    self.hold(True)
                    return
                self._credit -= 1
            (message, line), self._next = self._next, None
            self._handle(message, line)
        self.hold(False)
        if self._ending is not None and not self.is_over:
            self._settle_rest(self._ending)

    def _read(self, message: Message) -> tuple[Any, bytes] | None:
        """The message as a value, and its bytes without long payloads; None if it ends the exchange."""
        if isinstance(message, Oversize):
            self._refuse(envelope.refusal_of(message, self._max_size, side="client"))
            return None
        if self._channel.trace is not None:
            self._channel.trace("receive", bytes(message))
        if isinstance(message, BinaryFrame):
            if message.refusal is None:
                return frame_content(message)
            self._refuse(InternalError("The reply cannot be read", message.refusal.data))
            return None
        try:
            return payloads.parse(message, self._session.limits) if len(message) >= LONG else _parsed(message)
        except OverLimit as error:
            self._refuse(envelope.refusal_of(error.stand_in(message), self._max_size, side="client"))
        except orjson.JSONDecodeError as error:
            self._messages.clear()
            self._ending = self._lost(f"the peer sent something that is not JSON: {error}")
        return None

    def _handle(self, message: Any, line: bytes) -> None:
        """Handle replies and notifications for the calls of this exchange; all others are dropped."""
        if type(message) is dict and "method" in message:
            self._handle_notification(message, line)
            return
        is_array = type(message) is list
        line = payloads.shared(line) if is_array else line
        for member in message if is_array else [message]:
            if type(member) is not dict or "method" in member:
                continue
            if member.get("id") is None and "error" in member:
                # An error about the POST that names no call: it is the answer to all of them.
                self._answer_all(member, line)
            elif self._is_own(member.get("id")):
                self._has_array |= is_array
                self._has_reply = True
                self._session.pending.settle(member, line)
            else:
                self._session.pending.dropped += 1

    def _handle_notification(self, message: dict[str, Any], line: bytes) -> None:
        """Handle progress and items."""
        params = message.get("params")
        call_id = params.get("id", params.get("token")) if type(params) is dict else None
        if "id" not in message and message.get("method") in _OF_CALLS and self._is_own(call_id):
            control_messages.handle(self._session, message, line)

    def _is_own(self, call_id: Any) -> bool:
        """Whether a call of this exchange has exactly this id (1, 1.0 and True are equal, but not the same id)."""
        return type(call_id) in (int, str) and call_id in self.call_ids

    def _answer_all(self, reply: dict[str, Any], line: bytes) -> None:
        for call_id in self._waiting():
            self._session.pending.settle({**reply, "id": call_id}, line)

    def _waiting(self) -> Iterator[Any]:
        find = self._session.pending.find
        return (call_id for call_id in self.call_ids if find(call_id) is not None)

    # -- the end ------------------------------------------------------------------------------------------------

    def _end(self, make_error: MakeError) -> None:
        if self._ending is None and not self.is_over:
            self._ending = make_error
            self._handle_received()

    def _settle_rest(self, make_error: MakeError) -> None:
        """Fail the calls without an answer; those of an answered batch fail at the end of its array instead."""
        pending = self._session.pending
        if not (self._has_array and self._has_reply):
            for call_id in list(self._waiting()):
                call = pending.find(call_id)
                if call is not None:
                    pending.discard(call_id)
                    call.fail(make_error(call.method))
        self._over()

    def _over(self) -> None:
        if not self.is_over:
            self.is_over = True
            if self._admission is not None:
                self._admission.give_up()
            self._channel.exchange_over(self)

    def _refuse(self, error: RpcError) -> None:
        """Answer all calls that wait with this error."""
        if not self.call_ids:
            log.warning("a notification of %s was refused by %s: %s", self._method, self._channel.address, error)
        self._answer_all(envelope.error_reply(None, error), b"")
        self._over()

    def _refused(self, body: bytes) -> None:
        """Handle an answer whose status is not 2xx: its body is a reply all the same, or a text for people."""
        try:
            message = orjson.loads(body)
        except orjson.JSONDecodeError:
            message = None
        if envelope.is_reply(message) or (type(message) is list and message and all(map(envelope.is_reply, message))):
            self._messages.append(body)
            self._end(self._lost(f"the server answered with HTTP {self._status} and no reply to the call"))
            return
        status, said = self._status, f"HTTP {self._status} {self._reason}".rstrip()
        text = readable_text(body)
        said += f": {text}" if text else ""
        kind = BY_STATUS.get(status)
        if kind is not None:
            self._refuse(kind(said))
        elif status >= 500 and status not in (502, 504):
            self._refuse(InternalError(f"The server failed: {said}"))
        else:
            advice = refusal_advice(status, text, parse_address(self._channel.address), has_token=True)
            self._fail_with_status(status, f"{said}; {advice}" if advice else said)

    def _fail_with_status(self, status: int, said: str) -> None:
        if 300 <= status < 400:
            said += " (redirects are not followed)"
        # A proxy that cannot reach the server, or waits no longer, does not know whether the call was carried out.
        kind = ConnectionLost if status in (408, 502, 504) else ConnectFailed
        if status == 408 and self.is_on_used:
            kind = Unread  # the server has closed the connection while the request was on its way
        self.fail(lambda method: kind(f"the server answered with {said}", method=method, address=self._channel.address))

    def _lost(self, reason: str) -> MakeError:
        return lambda method: ConnectionLost(reason, method=method, address=self._channel.address)


def _parsed(line: bytes) -> tuple[Any, bytes]:
    return orjson.loads(line), line


def _is_item(message: Any) -> bool:
    return type(message) is dict and message.get("method") == envelope.ITEM
