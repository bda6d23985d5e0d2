"""One POST of a client and its answer.

Owns what an answer means for the calls in its POST: replies, items and progress are taken for those calls only, and
when the answer is over each of them has its outcome. Knows neither sockets nor the bytes of HTTP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from ..codec import payloads
from ..codec.payloads import OverLimit
from ..errors import BY_STATUS, ConnectFailed, ConnectionLost, InternalError, RpcError, Unread
from ..peer import control_messages
from ..peer.incoming import FrameAdmission, content_of
from ..peer.memory import Reception
from ..peer.session import Session
from ..text import get_logger
from ..wire import envelope
from ..wire.binary_frame import HEADER_MAX, FrameError, parts_of_frame
from ..wire.buffers import AttachedMessage, Encoded, MessageParts, parts_of
from ..wire.frame_messages import FrameBody
from ..wire.http_messages import FRAME, NDJSON, readable_text
from ..wire.messages import LONG, BinaryFrame, Oversize
from .address import parse_address
from .faults import refusal_advice
from .options import Trace

log = get_logger("rpcstream.client")

#: The status of the answer to a body of a type that the server does not read: nothing was carried out.
UNSUPPORTED = 415

_NO_REPLY = "the server's answer has no reply to the call in it"

#: The control messages that are about one call; others would be about the connection, which ends with the answer.
_OF_CALLS = frozenset((envelope.PROGRESS, envelope.ITEM))

#: Makes the error of a call from the name of its method.
MakeError = Callable[[str], Exception]


class Exchange:
    """One POST and its answer.

    Args:
        message: the body of the POST.
        method: for errors.
        call_ids: of the calls in it; none for a notification.
        window: items of a stream that its reader has room for; None where none is asked for.
        as_lines: the answer may be many messages, a line each; always so with a window.
        is_frame: the message goes as a binary frame; it has attachments then.
        address: for errors.
        on_over: called once, when nothing more is expected and nothing is kept for its reader.
        on_frames: called when the answer says that the server reads binary frames.
        on_frame_refused: called with this object when the server does not read the frame that was sent; the message is
            text now, and is to be sent once more.
        headers: further ones of the POST, each with its line end.

    Attributes:
        message, call_ids, is_frame, headers: as given.
        as_lines: whether the answer may be many messages.
        is_on_used: its connection has carried another exchange before.
        hold: called with True to stop reading the answer for now, with False to go on.
    """

    def __init__(
        self,
        session: Session,
        message: Encoded,
        method: str,
        call_ids: Sequence[int | str],
        window: int | None,
        *,
        as_lines: bool,
        is_frame: bool,
        address: str,
        trace: Trace | None,
        on_over: Callable[[Exchange], None],
        on_frames: Callable[[], None],
        on_frame_refused: Callable[[Exchange], None],
        headers: bytes = b"",
    ) -> None:
        self.headers = headers
        self.message = message
        self.is_frame = is_frame
        self.call_ids = call_ids
        self.as_lines = as_lines or window is not None
        self.is_on_used = False
        self.hold: Callable[[bool], None] = lambda held: None
        self._session = session
        self._address = address
        self._trace = trace
        self._on_over = on_over
        self._on_frames = on_frames
        self._on_frame_refused = on_frame_refused
        self._max_size = session.limits.max_message_size
        self._method = method
        #: Items that the reader of a stream has room for; None where none was asked for.
        self._credit = window
        #: Calls whose answer is not wanted any more.
        self._cancelled: set[int | str] = set()
        self._status, self._reason = 0, ""
        self._splitter: LineSplitter | None = None
        #: The answer, if it is a binary frame, with what decides about it; and whether all of it has come.
        self._frame: FrameBody | None = None
        self._admission: FrameAdmission | None = None
        self._is_received = False
        self._body: list[bytes] = []
        self._size = 0
        #: Messages that were received and wait until their reader has room; the first of them, once it was parsed.
        self._lines: deque[bytes] = deque()
        self._next: tuple[Any, bytes, bytes] | None = None
        #: Items, as received, of calls that want them as one array.
        self._collected: dict[Any, list[bytes]] = {}
        #: A call of this exchange was answered; a reply stood in an array.
        self._has_reply = self._has_array = False
        #: Set once nothing more is received: makes the error of the calls that have no answer.
        self._ending: MakeError | None = None
        self.is_over = False

    # -- for the connection that carries it ---------------------------------------------------------------------

    @property
    def parts(self) -> list[Any]:
        """The bytes to send for the message, in order."""
        message = self.message
        if self.is_frame and type(message) is AttachedMessage:
            return [memoryview(part) for part in parts_of_frame(message)]
        return parts_of(message)

    def shown(self) -> bytes:
        """The message as a trace shows it."""
        message = self.message
        return message.shown() if self.is_frame and type(message) is AttachedMessage else bytes(message)

    def begin(self, status: int, reason: str, kind: str, reads_frames: bool) -> None:
        """Take the head of the answer: its status, reason phrase, the media type of its body.

        Args:
            reads_frames: the head says that the server reads binary frames.
        """
        self._status, self._reason = status, reason
        if reads_frames:
            self._on_frames()
        if not 200 <= status < 300:
            return
        if kind == NDJSON:
            self._splitter = LineSplitter(self._max_size)
        elif kind == FRAME and self._session.takes_binary:
            self._admission = FrameAdmission(self._session, self._go_on)
            self._frame = FrameBody(self._admission, self._max_size, Reception(self._session.memory))

    def feed(self, data: bytes) -> bool:
        """Take a piece of the body; returns whether the rest of it is wanted."""
        if self._frame is not None:
            self._feed_frame(self._frame, data)
        elif self._splitter is None:
            self._size += len(data)
            if self._size > self._max_size:
                return self._too_large(self._size)
            self._body.append(data)
        else:
            lines, size = self._splitter.feed(data)
            self._lines += lines
            self._handle_received()
            if size:
                return self._too_large(size)
        return not self.is_over

    def expect(self, size: int) -> bool:
        """Take the length of the body (bytes), before it comes; returns whether it is wanted."""
        limit = self._max_size if self._frame is None else self._max_size + HEADER_MAX
        return size <= limit or self._too_large(size)

    def complete(self) -> None:
        """The answer is complete."""
        self._is_received = True
        if self._frame is not None:
            self._complete_frame(self._frame)
            return
        if self._splitter is not None:
            last = self._splitter.rest()
            if last:
                self._lines.append(last)
        elif 200 <= self._status < 300:
            body = b"".join(self._body).strip()
            if body:
                self._lines.append(body)
        else:
            self._refused(b"".join(self._body))
            return
        self._end(self._lost(_NO_REPLY))

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
        self._lines.clear()
        self._next = None
        self._over()

    # -- a binary frame -----------------------------------------------------------------------------------------

    def _feed_frame(self, frame: FrameBody, data: bytes) -> None:
        try:
            frame.append(data)
        except FrameError as error:
            self._lose_frame(error)
        else:
            if frame.is_waiting:
                self.hold(True)

    def _go_on(self) -> None:
        """There may be memory for a frame that waits."""
        frame = self._frame
        if frame is None or self.is_over or not frame.is_waiting:
            return
        try:
            if not frame.go_on():
                return
        except FrameError as error:
            self._lose_frame(error)
            return
        self.hold(False)
        if self._is_received:
            self._complete_frame(frame)

    def _complete_frame(self, frame: FrameBody) -> None:
        """Handle the frame, all of which was received, unless it waits."""
        if frame.is_waiting:
            return
        try:
            message = frame.end()
        except FrameError as error:
            self._lose_frame(error)
            return
        if isinstance(message, Oversize):
            self._too_large(message.size)
            return
        assert isinstance(message, BinaryFrame)
        if self._trace is not None:
            self._trace("receive", bytes(message))
        if message.refusal is not None:
            self._refuse(InternalError("The reply cannot be read", message.refusal.data))
            return
        content, line = content_of(message)
        self._handle(content, line, line)
        self._end(self._lost(_NO_REPLY))

    def _lose_frame(self, error: FrameError) -> None:
        self.lose(f"the server's answer is no binary frame: {error}")

    # -- messages -----------------------------------------------------------------------------------------------

    def _handle_received(self) -> None:
        """Handle the messages received, as far as the reader of their items has room."""
        while not self.is_over and (self._next is not None or self._lines):
            if self._next is None:
                line = self._lines.popleft()
                try:
                    self._next = self._parse(line)
                except OverLimit as error:
                    self._refuse_long(error, line)
                    return
                except orjson.JSONDecodeError as error:
                    self._lines.clear()
                    self._ending = self._lost(f"the peer sent something that is not JSON: {error}")
                    break
                if self._trace is not None:
                    self._trace("receive", line)
            if self._credit is not None and _is_item(self._next[0]):
                if self._credit <= 0:
                    self.hold(True)
                    return
                self._credit -= 1
            (message, read, line), self._next = self._next, None
            self._handle(message, read, line)
        self.hold(False)
        if self._ending is not None and not self.is_over:
            self._settle_rest(self._ending)

    def _parse(self, line: bytes) -> tuple[Any, bytes, bytes]:
        """The message as a value, its bytes without long payloads, and its bytes as received."""
        if len(line) < LONG:
            return orjson.loads(line), line, line
        return *self._session.codec.parse(line, self._session.limits), line

    def _handle(self, message: Any, read: bytes, line: bytes) -> None:
        """Handle replies and notifications for the calls of this exchange; all others are dropped."""
        if type(message) is dict and "method" in message:
            self._handle_notification(message, read, line)
            return
        if type(message) is dict and self._collected and "result" in message:
            try:
                message, read = self._with_items(message, read)
            except OverLimit as error:
                self._refuse_long(error, line)
                return
        line = payloads.shared(read) if type(message) is list else read
        for member in message if type(message) is list else [message]:
            if type(member) is not dict or "method" in member:
                continue
            if member.get("id") is None and "error" in member:
                # An error about the POST that names no call: it is the answer to all of them.
                self._answer_all(member, line)
            elif self._is_own(member.get("id")):
                self._has_array |= type(message) is list
                self._has_reply = True
                self._session.pending.settle(member, line)
            else:
                self._session.pending.count_dropped()

    def _handle_notification(self, message: dict[str, Any], read: bytes, line: bytes) -> None:
        """Handle progress and items."""
        params = message.get("params")
        call_id = params.get("id", params.get("token")) if type(params) is dict else None
        if "id" in message or not self._is_own(call_id):
            return
        if self._credit is None and _is_item(message):
            self._collect(call_id, line)
        elif message.get("method") in _OF_CALLS:
            control_messages.handle(self._session, message, read)

    def _collect(self, call_id: Any, line: bytes) -> None:
        """Keep an item of a call that is no stream, but asked for lines to hear of its progress."""
        import msgspec

        self._size += len(line)
        if self._size > self._max_size:
            self._too_large(self._size)
            return
        params = msgspec.json.decode(line, type=dict[str, msgspec.Raw])["params"]
        value = msgspec.json.decode(params, type=dict[str, msgspec.Raw]).get("value")
        if value is not None:
            self._collected.setdefault(call_id, []).append(bytes(value))

    def _with_items(self, reply: dict[str, Any], read: bytes) -> tuple[Any, bytes]:
        """The reply to a call whose items were collected, with these as its result."""
        call_id = reply.get("id")
        items = self._collected.pop(call_id, None) if self._is_own(call_id) else None
        if items is None:
            return reply, read
        head = orjson.dumps({"jsonrpc": envelope.VERSION, "id": call_id})[:-1]
        return self._parse(b"".join((head, b',"result":[', b",".join(items), b"]}")))[:2]

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
            self._on_over(self)

    def _too_large(self, size: int) -> bool:
        """End the exchange because of a message over the limit; returns False: the rest is not wanted."""
        error = envelope.oversize(size, self._max_size, side="client")
        if not 200 <= self._status < 300:
            self._refused(b"".join(self._body))
        else:
            self._refuse(error)
        return False

    def _refuse_long(self, error: OverLimit, line: bytes) -> None:
        self._refuse(envelope.refusal_of(error.stand_in(line), self._max_size, side="client"))

    def _refuse(self, error: RpcError) -> None:
        """Answer all calls that wait with this error."""
        if not self.call_ids:
            log.warning("a notification of %s was refused by %s: %s", self._method, self._address, error)
        self._answer_all(envelope.error_reply(None, error), b"")
        self._over()

    def _refused(self, body: bytes) -> None:
        """Handle an answer whose status is not 2xx: its body is a reply all the same, or a text for people."""
        if self._status == UNSUPPORTED and self.is_frame:
            self.is_frame, self.message = False, MessageParts(parts_of(self.message))
            self._body, self._size, self._is_received = [], 0, False
            self._on_frame_refused(self)
            return
        try:
            message = orjson.loads(body)
        except orjson.JSONDecodeError:
            message = None
        if envelope.is_reply(message) or (type(message) is list and message and all(map(envelope.is_reply, message))):
            self._lines.append(body)
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
            advice = refusal_advice(status, text, parse_address(self._address), has_token=True)
            said += f"; {advice}" if advice else ""
            self._fail_with_status(status, said)

    def _fail_with_status(self, status: int, said: str) -> None:
        if 300 <= status < 400:
            said += " (redirects are not followed)"
        # A proxy that cannot reach the server, or waits no longer, does not know whether the call was carried out.
        kind = ConnectionLost if status in (408, 502, 504) else ConnectFailed
        if status == 408 and self.is_on_used:
            kind = Unread  # the server has closed the connection while the request was on its way
        self.fail(lambda method: kind(f"the server answered with {said}", method=method, address=self._address))

    def _lost(self, reason: str) -> MakeError:
        return lambda method: ConnectionLost(reason, method=method, address=self._address)


def _is_item(message: Any) -> bool:
    return type(message) is dict and message.get("method") == envelope.ITEM


class LineSplitter:
    """Cuts the body of an answer into lines, as it comes; empty ones are left out.

    Args:
        max_size: bytes of a line.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> tuple[list[bytes], int]:
        """Take a piece of the body; returns the complete lines, and the size of a too long line behind them, or 0."""
        lines: list[bytes] = []
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._hold(data[start:end])
            if self._size > self._max_size:
                return lines, self._size
            line = self.rest()
            if line:
                lines.append(line)
            start = end + 1
        self._hold(data[start:])
        return lines, self._size if self._size > self._max_size else 0

    def rest(self) -> bytes:
        """Take out what was received since the last complete line."""
        line = b"".join(self._held).strip()
        self._held.clear()
        self._size = 0
        return line

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._size += len(data)
