"""One message to an HTTP server, and what comes back for it.

Owns what an answer means for the calls of its message: replies, items and progress are for those alone, and when the
answer is over each of them has its outcome. Knows neither sockets nor the bytes of HTTP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from ..codec import payloads
from ..codec.payloads import TooManyValues
from ..errors import (
    ConnectFailed,
    ConnectionLost,
    InternalError,
    MessageTooLarge,
    NotAuthenticated,
    NotPermitted,
    RpcError,
    ServerBusy,
)
from ..peer import control_messages
from ..peer.session import Session
from ..text import get_logger
from ..wire import envelope
from ..wire.buffers import Encoded
from ..wire.framing import LONG
from .http_text import LINES, Splitter, without_items, words
from .options import Trace

log = get_logger("rpcstream.client")

#: Statuses that say the same as an error of ours.
_REFUSALS = {401: NotAuthenticated, 403: NotPermitted, 413: MessageTooLarge, 429: ServerBusy, 503: ServerBusy}

MakeError = Callable[[str], Exception]


class Exchange:
    """A message and its answer.

    Args:
        outline: the message as data, see `outline`.
        address: for errors.
        on_over: called once, when nothing more is expected and nothing waits for its reader.

    Attributes:
        message: what is sent.
        ids: of its calls.
        wants_lines: the answer may be many messages, a line each.
        hold: called with whether the answer is to be read no further for now.
    """

    def __init__(
        self,
        session: Session,
        message: Encoded,
        outline: Any,
        *,
        address: str,
        trace: Trace | None,
        on_over: Callable[[Exchange], None],
    ) -> None:
        members = [each for each in (outline if type(outline) is list else [outline]) if type(each) is dict]
        self.message = message
        self.ids = [each["id"] for each in members if type(each.get("id")) in (int, str)]
        self.hold: Callable[[bool], None] = lambda held: None
        self._session = session
        self._address = address
        self._trace = trace
        self._on_over = on_over
        self._max_size = session.limits.max_message_size
        self._method = ", ".join(str(each.get("method")) for each in members[:3])
        #: Items that the reader of a stream has room for; None where none was asked for.
        self._credit: int | None = next((each["stream"] for each in members if type(each.get("stream")) is int), None)
        has_progress = any(map(self._has_progress, self.ids))
        self.wants_lines = self._credit is not None or has_progress
        if has_progress and self._credit is None:
            self.message = without_items(message)
        self._status, self._reason = 0, ""
        self._splitter: Splitter | None = None
        self._body: list[bytes] = []
        self._size = 0
        #: Messages that came and wait for room; the first, once it was read.
        self._lines: deque[bytes] = deque()
        self._next: tuple[Any, bytes, bytes] | None = None
        #: Items, as they came, for calls that want them as one array, and their size.
        self._gathered: dict[Any, list[bytes]] = {}
        #: Something was answered; in an array.
        self._has_reply = self._has_array = False
        #: Nothing more comes, and with which error the calls that are left are to fail.
        self._ending: MakeError | None = None
        self.is_over = False

    # -- what the connection says -------------------------------------------------------------------------------

    def begin(self, status: int, reason: str, kind: str) -> None:
        """The head of the answer has come; `kind` is the media type of its body."""
        self._status, self._reason = status, reason
        if 200 <= status < 300 and kind == LINES:
            self._splitter = Splitter(self._max_size)

    def feed(self, data: bytes) -> bool:
        """A piece of the body; false if the rest of it is not wanted."""
        if self._splitter is None:
            self._size += len(data)
            if self._size > self._max_size:
                return self._too_large(self._size)
            self._body.append(data)
        else:
            lines, size = self._splitter.feed(data)
            self._lines += lines
            self._go_on()
            if size:
                return self._too_large(size)
        return not self.is_over

    def expect(self, size: int) -> bool:
        """So much will come; false if that is not wanted."""
        return size <= self._max_size or self._too_large(size)

    def complete(self) -> None:
        """The answer has come whole."""
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
        self._end(self._lost("the server's answer has no reply to the call in it"))

    def fail(self, make_error: MakeError) -> None:
        """There is no answer, or no more of it: the calls that are left fail, behind what waits."""
        if not self.ids and not self.is_over:
            log.warning("a notification came to nothing: %s", make_error(self._method))
        self._end(make_error)

    def lose(self, reason: str) -> None:
        """The same, with a ConnectionLost."""
        self.fail(self._lost(reason))

    # -- what the session says ----------------------------------------------------------------------------------

    def permit(self, n: int) -> None:
        """The reader of a stream has room for `n` more items."""
        if self._credit is not None:
            self._credit += n
            self._go_on()

    def given_up(self) -> bool:
        """Does nobody wait for it any more?"""
        return bool(self.ids) and all(self._session.pending.find(call_id) is None for call_id in self.ids)

    def drop(self) -> None:
        """Nobody waits for it any more."""
        self._lines.clear()
        self._next = None
        self._over()

    # -- messages -----------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Hand over what has come, as far as its reader has room."""
        while not self.is_over and (self._next is not None or self._lines):
            if self._next is None:
                line = self._lines.popleft()
                try:
                    self._next = self._read(line)
                except TooManyValues as error:
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

    def _read(self, line: bytes) -> tuple[Any, bytes, bytes]:
        """The message, and it without its long payloads, and as it came."""
        if len(line) < LONG:
            return orjson.loads(line), line, line
        return *self._session.codec.parse(line, self._session.limits.max_values), line

    def _handle(self, message: Any, read: bytes, line: bytes) -> None:
        """Replies and words that are for the calls of this exchange; all else is dropped."""
        if type(message) is dict and "method" in message:
            self._heed(message, read, line)
            return
        if type(message) is dict and self._gathered and "result" in message:
            try:
                message, read = self._with_items(message, read)
            except TooManyValues as error:
                self._refuse_long(error, line)
                return
        line = payloads.shared(read) if type(message) is list else read
        for member in message if type(message) is list else [message]:
            if type(member) is not dict or "method" in member:
                continue
            if member.get("id") is None and "error" in member:
                # About something in the message, nobody knows what: all its calls are told.
                self._answer_all(member, line)
            elif self._is_own(member.get("id")):
                self._has_array |= type(message) is list
                self._has_reply = True
                self._session.pending.settle(member, line)
            else:
                self._session.pending.count_dropped()

    def _heed(self, message: dict[str, Any], read: bytes, line: bytes) -> None:
        """Something that the handler says on its way."""
        params = message.get("params")
        name = params.get("id", params.get("token")) if type(params) is dict else None
        if "id" in message or not self._is_own(name):
            return
        if self._credit is None and _is_item(message):
            self._gather(name, line)
        else:
            control_messages.handle(self._session, message, read)

    def _gather(self, call_id: Any, line: bytes) -> None:
        """An item for a call that is no stream, but asked for lines to hear of its progress."""
        import msgspec

        self._size += len(line)
        if self._size > self._max_size:
            self._too_large(self._size)
            return
        params = msgspec.json.decode(line, type=dict[str, msgspec.Raw])["params"]
        value = msgspec.json.decode(params, type=dict[str, msgspec.Raw]).get("value")
        if value is not None:
            self._gathered.setdefault(call_id, []).append(bytes(value))

    def _with_items(self, reply: dict[str, Any], read: bytes) -> tuple[Any, bytes]:
        """A reply behind the items of its call: those are the result."""
        call_id = reply.get("id")
        items = self._gathered.pop(call_id, None) if self._is_own(call_id) else None
        if items is None:
            return reply, read
        head = orjson.dumps({"jsonrpc": envelope.VERSION, "id": call_id})[:-1]
        return self._read(b"".join((head, b',"result":[', b",".join(items), b"]}")))[:2]

    def _is_own(self, call_id: Any) -> bool:
        """1, 1.0 and True are the same to a list; an answer must have the very type of the id that was sent."""
        return type(call_id) in (int, str) and call_id in self.ids

    def _answer_all(self, reply: dict[str, Any], line: bytes) -> None:
        for call_id in self._waiting():
            self._session.pending.settle({**reply, "id": call_id}, line)

    def _waiting(self) -> Iterator[Any]:
        find = self._session.pending.find
        return (call_id for call_id in self.ids if find(call_id) is not None)

    def _has_progress(self, call_id: Any) -> bool:
        return getattr(self._session.pending.find(call_id), "on_progress", None) is not None

    # -- the end ------------------------------------------------------------------------------------------------

    def _end(self, make_error: MakeError) -> None:
        if self._ending is None and not self.is_over:
            self._ending = make_error
            self._go_on()

    def _settle_rest(self, make_error: MakeError) -> None:
        """Calls that had no answer fail. (Of a batch that was answered they are told by the end of its array.)"""
        pending = self._session.pending
        if not (self._has_array and self._has_reply):
            for call_id in list(self._waiting()):
                waiter = pending.find(call_id)
                if waiter is not None:
                    pending.discard(call_id)
                    waiter.fail(make_error(waiter.method))
        self._over()

    def _over(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._on_over(self)

    def _too_large(self, size: int) -> bool:
        error = envelope.oversize(size, self._max_size, side="client")
        if not 200 <= self._status < 300:
            self._refused(b"".join(self._body))
        else:
            self._refuse(error)
        return False

    def _refuse_long(self, error: TooManyValues, line: bytes) -> None:
        self._refuse(envelope.refusal_of(error.stand_in(line), self._max_size, side="client"))

    def _refuse(self, error: RpcError) -> None:
        """The calls that are left have this for their answer."""
        if not self.ids:
            log.warning("a notification of %s came to nothing at %s: %s", self._method, self._address, error)
        self._answer_all(envelope.error_reply(None, error), b"")
        self._over()

    def _refused(self, body: bytes) -> None:
        """A status that is no success, with a reply after all, or with words for people."""
        try:
            message = orjson.loads(body)
        except orjson.JSONDecodeError:
            message = None
        if envelope.is_reply(message) or (type(message) is list and message and all(map(envelope.is_reply, message))):
            self._lines.append(body)
            self._end(self._lost(f"the server answered with HTTP {self._status} and no reply to the call"))
            return
        status, said = self._status, f"HTTP {self._status} {self._reason}".rstrip()
        text = words(body)
        said += f": {text}" if text else ""
        kind = _REFUSALS.get(status)
        if kind is not None:
            self._refuse(kind(said))
        elif status >= 500 and status not in (502, 504):
            self._refuse(InternalError(f"The server failed: {said}"))
        else:
            self._turned_away(status, said)

    def _turned_away(self, status: int, said: str) -> None:
        if 300 <= status < 400:
            said += " (redirects are not followed)"
        # What stands before a server and cannot reach it, or waits no longer, does not know what became of the call.
        kind = ConnectionLost if status in (408, 502, 504) else ConnectFailed
        self.fail(lambda method: kind(f"the server answered with {said}", method=method, address=self._address))

    def _lost(self, reason: str) -> MakeError:
        return lambda method: ConnectionLost(reason, method=method, address=self._address)


def _is_item(message: Any) -> bool:
    return type(message) is dict and message.get("method") == envelope.ITEM
