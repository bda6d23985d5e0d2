"""One POST of a client: parses the response, and gives the replies, items and progress in it to the calls of the POST.

Moves no bytes: the connection passes what it receives to `feed`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import httptools
import orjson

from ..codec import payloads
from ..codec.payloads import OverLimit
from ..errors import BY_STATUS, ConnectFailed, ConnectionLost, InternalError, RpcError, Unread
from ..peer import binary_offer, control_messages
from ..peer.frame_admission import FrameAdmission
from ..peer.incoming import frame_content
from ..peer.session import Session
from ..text import get_logger
from ..wire import envelope
from ..wire.binary_frame import BinaryFrameReader, FrameError
from ..wire.buffers import ReceiveBuffer
from ..wire.framing import LineFramer
from ..wire.http_messages import FRAME, NDJSON, names_frames, readable_text
from ..wire.messages import LONG, BinaryFrame, Message, Oversize
from .address import Address
from .faults import TLS_ALERT, refusal_advice, silence

log = get_logger("rpcstream.client")

#: Bytes of the head of a response, trailers included.
HEAD_MAX = 64 * 1024

#: Bytes of a response, besides `HEAD_MAX`, for each byte of its body: chunks of one byte take six.
OVERHEAD = 8

#: The control messages that are about one call; others would be about the connection, which ends with the response.
_OF_CALLS = frozenset((envelope.PROGRESS, envelope.ITEM))

#: Makes the error of a call, with its method and the address: ConnectionLost, or another class.
MakeError = Callable[..., Exception]


class Carrier(Protocol):
    """The connection that carries an exchange."""

    def hold(self, held: bool) -> None:
        """Stop reading the response, or read on."""

    def leave(self) -> None:
        """Drop the exchange: nothing of its response is wanted."""


class Exchange:
    """One POST and its response. Its methods `on_...` are for httptools.

    Args:
        session: has the calls.
        server: the address, for errors.
        trace: called with each message received.
        method: for errors.
        call_ids: of the calls in the POST; none for a notification.
        window: items of a stream that its reader has room for; None where none is asked for.
        on_over: called once nothing more is expected of the exchange, and nothing is kept for its reader.

    Attributes:
        carrier: the connection that carries it now; None before and after.
        is_on_used: the connection has carried another exchange before.
        parts, size: the bytes of the POST, and of its body.
        fault: why the connection is to be closed; None while nothing is wrong.
        is_complete: the response is complete.
        keeps: the server keeps the connection open.
        ends_with_connection: the end of the connection is the end of the response.
        has_received: bytes of a response have come.
        is_over: nothing more is expected.
        cancelled: calls whose reply is not wanted any more.
        timer: the time limit of a notification.
    """

    carrier: Carrier | None = None
    is_on_used = is_complete = keeps = ends_with_connection = has_received = is_over = False
    fault: str | None = None
    timer: asyncio.TimerHandle | None = None
    _status, _reason, _received, _size = 0, "", 0, 0
    _has_head = False
    #: Receives a binary frame, or lines; else the body is one JSON text.
    _frame: BinaryFrameReader | None = None
    _lines: LineFramer | None = None
    _admission: FrameAdmission | None = None
    #: The message that is handled next, parsed.
    _next: tuple[Any, bytes] | None = None
    #: Set once nothing more is received: the reason, and the error, of the calls that have no reply.
    _ending: tuple[str, MakeError] | None = None

    def __init__(
        self,
        session: Session,
        server: Address,
        trace: Callable[[str, bytes], None] | None,
        method: str,
        call_ids: Sequence[int | str],
        window: int | None,
        on_over: Callable[[Exchange], None],
    ) -> None:
        self.parts: list[Any] = []
        self.size = 0
        self.call_ids = call_ids
        self._session = session
        self._server = server
        self._trace = trace
        self._method = method
        self._credit = window
        self._on_over = on_over
        self._max_size = session.limits.max_message_size
        self.cancelled: set[int | str] = set()
        self._parser: Any = httptools.HttpResponseParser(self)
        self._headers: dict[bytes, bytes] = {}
        self._body = ReceiveBuffer()
        self._messages: deque[Message] = deque()

    # -- for the connection that carries it ---------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take bytes of the response; sets `is_complete`, or a `fault`."""
        self.has_received = True
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._break("the server changed to another protocol without being asked")
        except httptools.HttpParserError as error:
            hint = silence(self._server) if data.startswith(TLS_ALERT) else ""
            self._break(f"the server's answer is not HTTP: {error}{hint}")
        if self._received > HEAD_MAX + OVERHEAD * self._size and not self.is_complete:
            self._break(f"the server's answer has more than {HEAD_MAX} bytes besides its body")

    def complete(self) -> None:
        """The response is complete, and its connection released."""
        if self.is_over:
            return
        try:
            messages = self._rest_of_body()
        except FrameError as error:
            self.fail(f"the server's answer is no binary frame: {error}")
            return
        if not self._is_accepted:
            self._refused(messages[0] if messages else b"")
            return
        self._messages += messages
        self._end("the server's answer has no reply to the call in it")

    def fail(self, reason: str, make_error: MakeError = ConnectionLost) -> None:
        """Nothing more will be received: the calls without a reply fail, once what was received is handled."""
        if not self.call_ids and not self.is_over:
            log.warning("a notification was not delivered: %s", self._error(reason, make_error, self._method))
        self._end(reason, make_error)

    # -- for the channel ----------------------------------------------------------------------------------------

    def permit(self, n: int) -> None:
        """The reader of a stream has room for `n` more items."""
        if self._credit is not None:
            self._credit += n
            self._handle_received()

    def is_settled(self) -> bool:
        """Whether it has calls, and none of them waits for a reply."""
        find, cancelled = self._session.pending.find, self.cancelled
        return bool(self.call_ids) and all(each in cancelled or find(each) is None for each in self.call_ids)

    def drop(self) -> None:
        """Forget what was received, and leave the connection: nothing is wanted any more."""
        if self.carrier is not None:
            self.carrier.leave()
        self._messages.clear()
        self._next = None
        self._over()

    # -- callbacks of httptools ---------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.is_complete:
            self._break("the server answered twice")

    def on_status(self, reason: bytes) -> None:
        self._reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else it is a trailer
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200 or self.is_complete:
            return
        self._has_head, self._status = True, status
        transfer = self._headers.get(b"transfer-encoding")
        content = self._headers.get(b"content-encoding", b"identity")
        if transfer is not None and transfer.strip().lower() != b"chunked":
            self._break(f"the server's answer is in a transfer coding that was not asked for: {_text(transfer)}")
        elif content.strip().lower() != b"identity":
            self._break(f"the server's answer is compressed without being asked: {_text(content)}")
        self.ends_with_connection = transfer is None and b"content-length" not in self._headers
        if names_frames(_text(self._headers.get(b"accept-post", b""))):
            binary_offer.accept(self._session)
        kind = _text(self._headers.get(b"content-type", b"")).partition(";")[0].strip().lower()
        if self._is_accepted and kind == NDJSON:
            self._lines = LineFramer(max_size=self._max_size, skips_blank=True)
        elif self._is_accepted and kind == FRAME and self._session.takes_binary:
            self._admission = FrameAdmission(self._session)
            self._frame = BinaryFrameReader(self._admission, self._max_size)

    def on_body(self, data: bytes) -> None:
        if self.is_over or self.is_complete or self.fault is not None:
            return
        self._size += len(data)
        if self._lines is not None:
            self._messages += self._lines.feed(data)
            self._handle_received()
        elif self._frame is not None:
            try:
                self._frame.append(data)
            except FrameError as error:
                self.fail(f"the server's answer is no binary frame: {error}")
        else:
            self._body.append(data)
            if self._body.size > self._max_size:
                self._receive_oversize()

    def on_message_complete(self) -> None:
        if not self._has_head:  # 1xx: the response is still to come
            self._headers, self._reason = {}, ""
        elif not self.is_over and self.fault is None:
            self.is_complete, self.keeps = True, self._parser.should_keep_alive()

    # -- messages -----------------------------------------------------------------------------------------------

    @property
    def _is_accepted(self) -> bool:
        return 200 <= self._status < 300

    def _rest_of_body(self) -> Sequence[Message]:
        """The messages that the end of the body completes. Raises FrameError."""
        if self._lines is not None:
            return self._lines.finish()
        if self._frame is not None:
            return [self._frame.end()]
        body = self._body.take().strip()
        return [body] if body else []

    def _receive_oversize(self) -> None:
        oversize = Oversize(self._body.size, self._body.take(), self._max_size)
        if self._is_accepted:
            self._messages.append(oversize)
            self._handle_received()
        else:
            self._refused(oversize)

    def _handle_received(self) -> None:
        """Handle the messages received, as far as the reader of their items has room."""
        while not self.is_over and (self._next is not None or self._messages):
            if self._next is None:
                self._next = self._read(self._messages.popleft())
                continue
            if self._credit is not None and _is_item(self._next[0]):
                if self._credit <= 0:
                    self._hold(True)
                    return
                self._credit -= 1
            (message, line), self._next = self._next, None
            self._handle(message, line)
        self._hold(False)
        if self._ending is not None and not self.is_over:
            self._settle_rest(*self._ending)

    def _hold(self, held: bool) -> None:
        if self.carrier is not None:
            self.carrier.hold(held)

    def _read(self, message: Message) -> tuple[Any, bytes] | None:
        """The message as a value, and its bytes without long payloads; None if it ends the exchange."""
        if isinstance(message, Oversize):
            self._refuse(envelope.refusal_of(message, self._max_size, side="client"))
            return None
        if self._trace is not None:
            self._trace("receive", bytes(message))
        if isinstance(message, BinaryFrame):
            if message.refusal is None:
                return frame_content(message)
            self._refuse(InternalError("The reply cannot be read", message.refusal.data))
            return None
        try:
            if len(message) >= LONG:
                return payloads.parse(message, self._session.limits)
            return orjson.loads(message), message
        except OverLimit as error:
            self._refuse(envelope.refusal_of(error.stand_in(message), self._max_size, side="client"))
        except orjson.JSONDecodeError as error:
            self._messages.clear()
            self._ending = f"the peer sent something that is not JSON: {error}", ConnectionLost
        return None

    def _handle(self, message: Any, line: bytes) -> None:
        """Handle replies and notifications for the calls of this exchange; all others are dropped."""
        if type(message) is dict and "method" in message:
            self._handle_notification(message, line)
            return
        is_array, own = type(message) is list, []
        for member in message if is_array else [message]:
            if type(member) is not dict or "method" in member:
                continue
            if member.get("id") is None and "error" in member:
                self._answer_all(member, line)  # an error about the POST, which names no call
            elif self._is_own(member.get("id")):
                own.append(member)
            else:
                self._session.pending.dropped += 1
        if is_array:
            self._session.pending.settle_array(own, line)
        elif own:
            self._session.pending.settle(own[0], line)

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

    def _break(self, fault: str) -> None:
        self.fault = self.fault or fault

    def _end(self, reason: str, make_error: MakeError = ConnectionLost) -> None:
        if self._ending is None and not self.is_over:
            self._ending = reason, make_error
            self._handle_received()

    def _settle_rest(self, reason: str, make_error: MakeError) -> None:
        """Fail the calls without a reply."""
        pending = self._session.pending
        for call_id in list(self._waiting()):
            call = pending.find(call_id)
            if call is not None:
                pending.discard(call_id)
                call.fail(self._error(reason, make_error, call.method))
        self._over()

    def _over(self) -> None:
        if not self.is_over:
            self.is_over = True
            if self._admission is not None:
                self._admission.give_up()
            self._on_over(self)

    def _refuse(self, error: RpcError) -> None:
        """Answer all calls that wait with this error."""
        if not self.call_ids:
            log.warning("a notification of %s was refused by %s: %s", self._method, self._server, error)
        self._answer_all(envelope.error_reply(None, error), b"")
        self._over()

    def _refused(self, received: Message) -> None:
        """Handle a response whose status is not 2xx: its body is a reply all the same, or a text for people."""
        body = received.head if isinstance(received, Oversize) else bytes(received)
        try:
            message = orjson.loads(body)
        except orjson.JSONDecodeError:
            message = None
        status, said = self._status, f"HTTP {self._status} {self._reason}".rstrip()
        if envelope.is_reply(message) or (type(message) is list and message and all(map(envelope.is_reply, message))):
            self._messages.append(body)
            self._end(f"the server answered with HTTP {status} and no reply to the call")
            return
        text = readable_text(body)
        said += f": {text}" if text else ""
        kind = BY_STATUS.get(status)
        if kind is not None:
            self._refuse(kind(said))
        elif status >= 500 and status not in (502, 504):
            self._refuse(InternalError(f"The server failed: {said}"))
        else:
            self._fail_with_status(said, text)

    def _fail_with_status(self, said: str, text: str) -> None:
        status = self._status
        advice = refusal_advice(status, text, self._server, has_token=True)
        said += f"; {advice}" if advice else ""
        said += " (redirects are not followed)" if 300 <= status < 400 else ""
        # A proxy that cannot reach the server, or waits no longer, does not know whether the call was carried out.
        kind = ConnectionLost if status in (408, 502, 504) else ConnectFailed
        if status == 408 and self.is_on_used:
            kind = Unread  # the server has closed the connection while the request was on its way
        self.fail(f"the server answered with {said}", kind)

    def _error(self, reason: str, make_error: MakeError, method: str) -> Exception:
        return make_error(reason, method=method, address=str(self._server))


def _is_item(message: Any) -> bool:
    return type(message) is dict and message.get("method") == envelope.ITEM


def _text(value: bytes) -> str:
    return value.decode("latin-1")[:80]
