"""Messages as they come in: parsing, what a message comes to that cannot be parsed, and sorting them under overload.

Owns the decisions about long messages, messages over a limit, binary frames and messages that are not JSON; and that
replies and control messages overtake the requests that wait for room, however they are packed, since something that
runs may be waiting for them. Does not decide when there is room, when a request is handled, nor whether the connection
is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

import orjson

from ..codec import payloads
from ..codec.payloads import OverLimit
from ..errors import InternalError, InvalidRequest, ParseError, RpcError, ServerBusy
from ..wire import envelope
from ..wire.buffers import Encoded
from ..wire.json_scan import SpreadValue
from ..wire.messages import (
    HEAD_SIZE,
    LONG,
    BinaryFrame,
    Message,
    Oversize,
    ParsedText,
    PartialFrame,
    SharedPayloads,
)
from . import control_messages
from .memory import PARTLY, WAIT_MAX
from .request_queue import Chunk, EarlyMessage, busy
from .state import ConversationState

#: As `Dispatch.refuse`.
Refuse = Callable[[Any, RpcError], Encoded | None]

#: Parses a long message that came on a conversation; results and errors as of `Codec.parse`.
ParseLong = Callable[[bytes, ConversationState], tuple[Any, bytes]]

#: A message with none of these is neither a reply nor a control message. (The names may be written with escapes.)
_SIGNS = (b'"$', b'"result"', b'"error"', b"\\u")

#: The reason of the error for the first line of such a value.
SPREAD = "a message is one line: send the JSON without line ends in it (what follows of this value is skipped)"

#: Bytes of the payloads of a request from which on it is looked at before memory is taken for them: the method, its
#: rule, names of parameters, forms of arrays. For less, looking twice costs more than the memory.
CHECKED_MIN = 256 * 1024

#: Seconds between two looks of a frame that waits for memory.
LOOK_EVERY = 0.5

#: What is left of a message: requests, and control messages that wait with them.
Left = list[Message | EarlyMessage]


def parse_long(line: bytes, state: ConversationState) -> tuple[Any, bytes]:
    """Parse a message of `LONG` bytes or more: as `Codec.parse`.

    Raises:
        orjson.JSONDecodeError: it is not JSON.
        OverLimit: it is over `max_values` or `max_json_size`.
    """
    return state.codec.parse(line, state.limits)


def parsed_text(text: bytes, state: ConversationState, parse_long: ParseLong) -> ParsedText | Oversize:
    """Parse a message in text before the session gets it."""
    try:
        return ParsedText(text, parse_long(text, state) if len(text) >= LONG else (orjson.loads(text), text))
    except OverLimit as error:
        return error.stand_in(text)
    except orjson.JSONDecodeError as error:
        head = text[:HEAD_SIZE]
        is_reply = envelope.is_reply_head(head)
        found = {"id": envelope.id_in_head(head), "result": None} if is_reply else {"id": envelope.id_of_request(text)}
        return ParsedText(text, (found, text), envelope.unreadable(text, error))


def unparsed(
    line: Message, error: orjson.JSONDecodeError, state: ConversationState, refuse: Refuse
) -> tuple[list[bytes], Encoded | None]:
    """What a message comes to that was not parsed, being too large or not JSON.

    Returns:
        The messages that stand in it one after the other, to be handled; and an error reply. Neither if it begins like
        a reply: the call that waits for it fails, and nothing is answered.
    """
    if isinstance(error, OverLimit):
        line = error.stand_in(line)  # type: ignore[arg-type]  # it was read
    if isinstance(line, Oversize):
        return [], None if _fail_call_of(line, state) else _refuse_oversize(line, state, refuse)
    if isinstance(line, BinaryFrame):
        return [], _refuse_frame(line, state, refuse)
    if state.spread is not None:
        if state.spread.takes(line):
            return [], None
        state.spread = None
    values = envelope.split_values(line)
    if values and state.splits_values:
        return values, None
    reason = envelope.unreadable(line, error)
    if state.is_lines and state.side == "server" and not values:
        state.spread = SpreadValue.begun_by(line)
        if state.spread is not None:
            reason = ParseError(data={"reason": SPREAD})
    # A client ends the connection, and with it all calls.
    if state.side == "server" and state.pending.settled_unreadable(line, reason):
        return [], None
    return [], refuse({"id": None if values else envelope.id_of_request(line)}, reason)


def content_of(frame: BinaryFrame) -> tuple[Any, bytes]:
    """The message of a frame, and its line. Raises JSONDecodeError if the frame was refused."""
    if frame.refusal is not None:
        raise orjson.JSONDecodeError("a refused frame", "", 0)
    content: tuple[Any, bytes] = frame.content
    return content


def belongs_to_spread(message: Any, line: bytes | bytearray, state: ConversationState) -> bool:
    """Whether a message that is JSON by itself is a line of a value that the peer has written over several lines.

    A request is not, unless it is indented: who sends a broken line and then a whole one waits for its reply.
    """
    spread = state.spread
    if spread is None or isinstance(line, payloads.CutLine):
        return False
    members = message if type(message) is list else [message]
    is_request = any(type(each) is dict and "method" in each for each in members)
    return (not is_request or line[:1] in (b" ", b"\t")) and spread.takes(bytes(line))


def _fail_call_of(message: Oversize, state: ConversationState) -> bool:
    """Fail the call whose reply is too large to be read; False if the message is no reply."""
    return state.pending.settled_too_long(message, state.limits.max_message_size, state.side)


def _refuse_frame(frame: BinaryFrame, state: ConversationState, refuse: Refuse) -> Encoded | None:
    """The error reply to a frame that was refused; if it is a reply, the call that waits for it fails."""
    assert frame.refusal is not None
    message, _ = frame.content
    if type(message) is list and any(map(envelope.is_reply, message)):
        message = {"id": None, "result": None}  # any call may be meant
    if type(message) is not dict:
        return refuse({"id": None}, frame.refusal)
    envelope.with_exact_ids(message, frame.json)
    if envelope.is_reply(message):
        error = frame.refusal
        if isinstance(error, InvalidRequest | ParseError):  # of the peer's
            error = InternalError("The reply cannot be read", error.data)
        state.pending.settle({**envelope.error_reply(None, error), "id": message.get("id")}, b"")
        return None
    if "id" not in message and isinstance(frame.refusal, InvalidRequest):
        message = {"id": None}  # it may not have been a notification
    return refuse(message, frame.refusal)


def _refuse_oversize(message: Oversize, state: ConversationState, refuse: Refuse) -> Encoded | None:
    """The error reply to a request that is too large."""
    return refuse(message, envelope.refusal_of(message, state.limits.max_message_size, side=state.side))


class FrameAdmission:
    """Decides about the binary frames of one connection (`wire.messages.FrameIntake`).

    Bytes of payloads are counted when they have come, so announced bytes cost the others nothing. A frame waits where
    there is no memory for more of it, and its connection is not read meanwhile; frames that come slowly then lose their
    memory. Of many frames that follow each other one waits in every turn, so that other connections are served.

    Args:
        session: gets the frames, and says which requests are refused.
        go_on: called when a frame that waits may be asked about again.

    Attributes:
        reason: why no frames may come now; None if they may.
        since: since when the frame that is being received is watched for how fast it comes (loop time, s).
    """

    __slots__ = (
        "_began",
        "_counted",
        "_frame",
        "_go_on",
        "_is_called",
        "_last",
        "_left",
        "_rest",
        "_shared",
        "_state",
        "_timer",
        "_waits_since",
        "reason",
        "since",
    )

    def __init__(self, session: ConversationState, go_on: Callable[[], object]) -> None:
        self._state = session
        self._go_on = go_on
        self.reason: str | None = None
        #: The frame whose payloads are being received; what is still to come of it; bytes of it that are counted, and
        #: those that were to come at `since`.
        self._frame: BinaryFrame | None = None
        self._rest: PartialFrame | None = None
        self._counted = self._left = 0
        #: Payloads in shared memory that were counted.
        self._shared = 0
        self.since = self._waits_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        #: `go_on` will be called.
        self._is_called = False
        #: When a frame came last, and the first of those that came one right after the other (`perf_counter`, s).
        self._last = self._began = 0.0

    @property
    def shared(self) -> SharedPayloads | None:
        return self._state.shared

    def refuses_frames(self) -> str | None:
        return self.reason if self._state.takes_binary else "binary frames are switched off here (binary=False)"

    def admit(self, json: bytes, sizes: tuple[int, ...]) -> tuple[BinaryFrame, list[memoryview]] | None:
        if self._go_on is not _nothing and self._is_turn_over():
            self._call()
            return None
        frame = self._looked_at(json, sizes)
        if frame.refusal is not None or self._go_on is _nothing:
            return frame, []
        self._frame = frame
        if self._state.counters is not None:
            self._state.counters.frames_received += 1
        memory: list[memoryview] = frame.content[1].take_memory()
        return frame, memory

    def begun(self, rest: PartialFrame) -> None:
        self._rest = rest

    def grow(self, received: int) -> bool:
        if received < PARTLY or received <= self._counted or self._go_on is _nothing:
            return True
        memory, size = self._state.memory, received - self._counted
        if not (memory.is_first(self) and memory.reserve(size, self._counted)):
            if not memory.is_oldest(self):
                self._wait()
                return False
            memory.reserve_anyway(size)
        if not self._counted:
            memory.receiving[self] = None
            self.count_from(self._state.loop.time())
        self._counted = received
        if self._timer is not None:
            self._wait_no_more()
            self.count_from(self._state.loop.time())
        return True

    def over(self) -> None:
        self._frame = self._rest = None
        state = self._state
        if self._timer is not None:
            self._wait_no_more()
        if self._counted:
            size, self._counted = self._counted, 0
            del state.memory.receiving[self]
            state.memory.release(size)
        if state.shared is not None and state.counters is not None:
            number, self._shared = self._shared, state.shared.received
            state.counters.shared_received += self._shared - number

    def give_up(self) -> None:
        """The connection is lost, or about to be: what is being received is dropped."""
        self._go_on = _nothing
        if self._timer is not None:
            self._drop("for others")
        self.over()

    # -- a frame is looked at -----------------------------------------------------------------------------------------

    def _is_turn_over(self) -> bool:
        """Whether frames have come for a turn without a pause; the next turn begins then."""
        now, turn = perf_counter(), self._state.turn_time
        if now - self._last > turn:
            self._began = now
        self._last = now
        if now - self._began <= turn:
            return False
        self._began = now
        return True

    def _looked_at(self, json: bytes, sizes: tuple[int, ...]) -> BinaryFrame:
        state = self._state
        frame = payloads.read_frame(json, sizes, state.limits, state.side)
        if frame.refusal is not None:
            return frame
        message, _ = frame.content
        if envelope.is_reply(message):
            if state.pending.find(message.get("id")) is None and message.get("id") is not None:
                # It is dropped; a call that is made before all of it has come does not get it.
                frame.refusal = InvalidRequest(data={"reason": "no call waits for this reply"})
        elif sum(sizes) >= CHECKED_MIN and not control_messages.is_control(message):
            frame.refusal = state.refusal_of(message)
        return frame

    # -- memory -------------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        if self._timer is None:
            loop = self._state.loop
            self._state.memory.waiters[self] = None
            self._waits_since = loop.time()
            self._timer = loop.call_later(LOOK_EVERY, self._look)

    def _wait_no_more(self) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._timer = None
        memory = self._state.memory
        was_first = memory.is_first(self)
        del memory.waiters[self]
        if was_first:
            memory.wake()

    def try_again(self) -> None:
        if not self._is_called:
            self._call()

    def _call(self) -> None:
        self._is_called = True
        self._state.loop.call_soon(self._called)

    def _called(self) -> None:
        self._is_called = False
        self._go_on()

    def _look(self) -> None:
        """See what the memory is used for that this frame waits for."""
        loop = self._state.loop
        self._timer = loop.call_later(LOOK_EVERY, self._look)
        now = loop.time()
        if self._state.memory.is_first(self):
            self._state.memory.refuse_slow(now)
        if now - self._waits_since > WAIT_MAX:
            self._drop("for too long")
            self._go_on()

    def received(self) -> int:
        return 0 if self._rest is None else self._left - self._rest.left

    def count_from(self, now: float) -> None:
        self.since = now
        if self._rest is not None:
            self._left = self._rest.left

    def give_way(self) -> None:
        self._drop("for others, and this message came too slowly")

    def _drop(self, reason: str) -> None:
        """Refuse the frame, and skip what is still to come of it."""
        frame, rest = self._frame, self._rest
        if frame is None or rest is None:
            return
        frame.refusal = _no_memory(self._state, reason)
        frame.content[1].drop_memory()
        rest.skip()
        self.over()


def _nothing() -> None:
    """Stands for what a lost connection would go on with."""


def _no_memory(state: ConversationState, what: str) -> ServerBusy:
    limit = state.limits.max_held_total
    return ServerBusy(data={"limit": limit, "reason": f"memory for messages is needed {what} (max_held_total)"})


class OverloadSorter:
    """Sorts the messages that arrive at a conversation without room: what need not wait is handled, requests are kept.

    Args:
        parse_long: parses long messages.
        refuse: answers requests that can neither be kept nor left unread.
    """

    __slots__ = ("_opened", "_parse_long", "_queue", "_refuse", "_state")

    def __init__(self, state: ConversationState, *, parse_long: ParseLong, refuse: Refuse) -> None:
        self._state = state
        self._queue = state.queue
        self._parse_long = parse_long
        self._refuse = refuse
        #: The streams that had been opened when the control messages that wait were compared with them last.
        self._opened = 0

    def sort(self, until: float) -> None:
        """Handle what need not wait of the messages that were not looked through yet; go on until this time (s)."""
        queue = self._queue
        queue.is_overtaken = True
        try:
            while (found := queue.next_unsorted()) is not None:
                chunk, line = found
                for rest in self._left_of(line, chunk):
                    self._keep(rest, chunk)
                if perf_counter() > until:
                    break
        finally:
            queue.is_overtaken = False

    def handle_early(self) -> None:
        """Handle the control messages that wait, about streams that have been opened since this was called last."""
        streams, early = self._state.streams, self._queue.early
        if not early or streams.opened == self._opened:
            return
        self._opened = streams.opened
        for key in [key for key in early if control_messages.is_open(self._state, key)]:
            for line in self._queue.take_early(key):
                try:
                    message, read = content_of(line) if isinstance(line, BinaryFrame) else (orjson.loads(line), line)
                except orjson.JSONDecodeError:  # in a long string of it, which was not looked at before
                    continue
                control_messages.handle(self._state, message, read)

    def refuse_rest(self, error: RpcError, until: float) -> bool:
        """Answer the requests that wait with this error, until this time (s) at the latest; returns whether any did."""
        self.sort(until)
        queue, has_refused = self._queue, False
        while queue and not queue.is_behind and perf_counter() < until:
            for line in queue.take()[0]:
                self._state.add_reply(self._refusal(line, None, error))
                has_refused = True
        return has_refused

    # -- what is left of a message ------------------------------------------------------------------------------------

    def _left_of(self, line: Message, chunk: Chunk) -> Left:
        """Handle the replies and control messages in a message of this chunk; give what is left of it."""
        state = self._state
        if isinstance(line, Oversize):
            return [] if _fail_call_of(line, state) else [line]
        if isinstance(line, BinaryFrame):
            return [line] if line.refusal is not None else self._left_of_parsed(line, *line.content)
        # Most are plain requests, and need not be read for that. (A long one is read sooner than looked through.)
        is_short = len(line) < LONG
        if is_short and b'"method"' in line and not any(sign in line for sign in _SIGNS):
            return [line]
        try:
            message, read = (orjson.loads(line), line) if is_short else self._parse_long(line, state)
        except OverLimit as error:
            return self._left_of(error.stand_in(line), chunk)
        except orjson.JSONDecodeError:
            values = envelope.split_values(line) if state.splits_values else []
            self._queue.put_in(chunk, values)
            return [] if values else [line]
        return self._left_of_parsed(line, message, read)

    def _left_of_parsed(self, line: bytes | BinaryFrame, message: Any, read: bytes) -> Left:
        if type(message) is list:
            return self._left_of_batch(message, line, read)
        key = control_messages.early_key(self._state, message)
        if key is not None:
            return [EarlyMessage(key, line)]
        return [] if self._handled(message, read) else [line]

    def _left_of_batch(self, members: list[Any], line: bytes | BinaryFrame, read: bytes) -> Left:
        may_pass = [type(each) is dict and (_is_notification(each) or envelope.is_reply(each)) for each in members]
        if len(members) > self._state.limits.max_batch or not any(may_pass):
            return [line]
        try:
            parts = payloads.members(read)
        except RecursionError:  # deeper than may be; it is refused when its turn comes
            return [line]
        shared = payloads.shared(read)
        left: list[bytes] = []
        early: Left = []
        for part, member, may in zip(parts, members, may_pass, strict=True):
            if not may:
                left.append(part)
            elif (key := control_messages.early_key(self._state, member)) is not None:
                # Behind the batch: the request that opens its stream may stand in it.
                early.append(EarlyMessage(key, bytes(payloads.whole(bytes(part), part))))
            elif not self._handled(member, b"" if "method" in member else shared):
                left.append(part)
        if len(left) == len(members):
            return [line]
        return [bytes(payloads.whole(b"[" + b",".join(left) + b"]", read)), *early] if left else early

    def _handled(self, message: Any, line: bytes) -> bool:
        """Handle a message if it is a reply or a control message; False for anything else, which may wait."""
        if type(message) is dict and "method" in message:
            return _is_notification(message) and control_messages.handle(self._state, message, line)
        return self._state.pending.settled(message, line)

    # -- what becomes of it -------------------------------------------------------------------------------------------

    def _keep(self, rest: Message | EarlyMessage, chunk: Chunk) -> None:
        """Have what is left of a message of this chunk wait; refuse it if it can neither be kept nor left unread."""
        state = self._state
        if chunk.drops:
            return
        is_over = chunk.is_new and state.must_read() and self._queue.is_over(stalled=state.write_gate.stalled)
        if isinstance(rest, EarlyMessage):
            self._queue.keep_early(chunk, rest, is_over=is_over)
        elif is_over:
            state.add_reply(self._refusal(rest, chunk, state.no_room()))
        elif not self._queue.keep(chunk, rest):
            state.add_reply(self._refusal(rest, chunk, busy(state.limits.max_held_total, "max_held_total")))

    def _refusal(self, line: Message, chunk: Chunk | None, error: RpcError) -> Encoded | None:
        """The reply to a request that can neither be kept nor left unread."""
        state = self._state
        if isinstance(line, Oversize):
            return _refuse_oversize(line, state, self._refuse)
        if isinstance(line, ParsedText) and line.refusal is None:
            message, read = line.content
            envelope.with_exact_ids(message, read)
            return self._refuse(message, error)
        if isinstance(line, BinaryFrame):
            line.refusal = line.refusal or error
            return _refuse_frame(line, state, self._refuse)
        try:
            message, read = self._parse_long(line, state) if len(line) >= LONG else (orjson.loads(line), line)
        except orjson.JSONDecodeError as fault:
            values, reply = unparsed(line, fault, state, self._refuse)
            if chunk is not None:
                self._queue.put_in(chunk, values)
            return reply
        envelope.with_exact_ids(message, read)
        return self._refuse(message, error)


def _is_notification(message: dict[str, Any]) -> bool:
    return "method" in message and "id" not in message
