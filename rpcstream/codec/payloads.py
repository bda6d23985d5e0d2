"""Long messages: their payloads are cut out before the rest is parsed, and limits are checked before that.

Parsing a string of JSON takes ten times as long as decoding the base64 in it. So a long line is parsed without its long
strings, and a payload (the base64 that a built-in tagged object has as its "data") goes to its decoder as the bytes
that came. Every other long string is parsed by itself and put in its place: in the message there is no difference
but the payloads. In a binary frame the payloads stand beside the JSON, and are put in the places that it names for
them.
"""

from __future__ import annotations

from typing import Any

import orjson

from ..errors import InvalidRequest
from ..limits import Limits
from ..wire import envelope
from ..wire.binary_frame import ATTACHED_MIN
from ..wire.buffers import Encoded, MessageParts
from ..wire.envelope import HEAD_SIZE, LONG, BinaryFrame, Oversize
from ..wire.json_scan import values_over
from .attachments import (
    BIG,
    BIN_KEY,
    Attachment,
    CutLine,
    FrameError,
    FrameLine,
    Payload,
    SharedLine,
    attach,
    check_places,
    keep_freed_memory,
    without_collector,
)
from .rich_hint import QUOTED_TAG_KEY
from .rich_type import BUILT_IN

#: Strings (bytes) from which on that is faster.
_LONG_STRING = 8 * 1024
#: The same in a line over `max_json_size`, to which these do not count; and how many there may be, since each is looked
#: at. As many arrays as a message may have (`MAX_CHECKED`) fit in one way or the other, whatever their size.
_LONG_IN_LONGER, _MAX_LONG = 512, 16 * 1024
#: A line that is still long without its long strings is parsed as it is: to put them in again would take longer.
_MAX_REST = 128 * 1024
#: What a payload begins with. (The text between two strings begins with a blank, a bracket, a comma or a colon.)
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

#: The tagged objects with a payload (wire page, "Tagged values").
TAGGED = frozenset([each.tag for each in BUILT_IN if each.tag and each.has_payload])
#: The first character that needs not be written by its number.
_SPACE = ord(" ")


class OverLimit(orjson.JSONDecodeError):
    """A message has more values, or more bytes of JSON, than it may have. It was not parsed, so it may be no JSON.

    Args:
        limit: the limit that it is over.
        over: `values`, as `wire.json_scan` counts them, or `json_size`, bytes of JSON without payloads: how many it has
            at least.
    """

    def __init__(self, limit: int, **over: int) -> None:
        found = f"{over['values']} values" if "values" in over else f"{over['json_size']} bytes of JSON"
        super().__init__(f"it has {found} or more, the limit is {limit} (max_json_size)", "", 0)
        self._limit, self._over = limit, over

    def stand_in(self, line: bytes | bytearray) -> Oversize:
        """The `Oversize` that takes the place of this message."""
        values, json_size = (self._over.get(name, 0) for name in ("values", "json_size"))
        return Oversize(len(line), bytes(line[:HEAD_SIZE]), self._limit, values=values, json_size=json_size)


def parse(line: bytes, limits: Limits | None = None) -> tuple[Any, bytes]:
    """A line as `orjson.loads` reads it, but with its payloads cut out; and the line to look at further.

    Args:
        limits: `max_values`, as `wire.json_scan` counts them, and `max_json_size`, checked before it is parsed; None:
            any number of both.

    Raises:
        OverLimit: it has more.
        orjson.JSONDecodeError: it is not JSON. (A payload may hold what no string may: that is no base64 either.)
    """
    return _read(line, limits, TAGGED) or (_loads(line, limits), line)


def parse_whole(line: bytes, limits: Limits) -> Any:
    """Parse a line as `parse` does, but leave every string in its place, payloads included."""
    read = _read(line, limits, frozenset()) if len(line) > limits.max_json_size else None
    return _loads(line, limits) if read is None else read[0]


def outline(line: bytes, limits: Limits | None = None) -> tuple[Any, CutLine] | None:
    """As `parse` for a message that is passed on: its long strings are `Payload`s, wherever they stand, but for names.

    They were looked at: the line is JSON throughout. None where nothing can be cut out.

    Raises what `parse` raises.
    """
    return _read(line, limits, None)


def read_frame(json: bytes, sizes: tuple[int, ...], limits: Limits | None, side: str) -> BinaryFrame:
    """A binary frame whose JSON is there. Its content is the message, and its `FrameLine`.

    In the message an `Attachment` without memory stands for each payload. The frame has a refusal where it is over a
    limit, is not JSON, is a batch, or a payload does not stand in exactly one place.

    Args:
        json: as it came.
        sizes: of the payloads, in bytes.
        limits: as for `parse`.
        side: as for `envelope.refusal_of`.
    """
    line = FrameLine(json)
    line.payloads = [Attachment(size) for size in sizes]
    frame = BinaryFrame(json, sizes)
    try:
        # Most are short, and cannot have too many values: two bytes are an empty array, which counts four.
        is_short = len(json) < LONG and (limits is None or 2 * len(json) <= limits.max_values)
        message = orjson.loads(json) if is_short else _loads(json, limits)
    except orjson.JSONDecodeError as error:
        if isinstance(error, OverLimit):
            frame.refusal = envelope.refusal_of(error.stand_in(json), len(json), side=side)
            call_id = envelope.id_in_head(json)
        else:
            frame.refusal = envelope.unreadable(json, error)
            call_id = envelope.id_of_request(json)
        frame.content = {"id": call_id}, line
        return frame
    frame.content = message, line
    if type(message) is not dict:
        frame.refusal = InvalidRequest(data={"reason": "a binary frame holds one message: an object, not a batch"})
        return frame
    try:
        attach(message, line, None)
        check_places(json, len(sizes))
    except FrameError as error:
        frame.refusal = InvalidRequest(data={"reason": str(error)})
    return frame


def parse_exactly(line: bytes | bytearray) -> Any:
    """A line that was parsed before, with every integer as it was sent; slower than the fast parser."""
    import msgspec

    message = without_collector(msgspec.json.decode, line)
    if isinstance(line, CutLine):
        attach(message, line, TAGGED)
    return message


def shared(line: bytes | bytearray) -> SharedLine:
    """A line that several calls get."""
    return line if isinstance(line, SharedLine) else SharedLine(line)


def members(line: bytes | bytearray) -> list[bytes]:
    """The members of an array, a line that was parsed before, each as a line of its own.

    Raises:
        RecursionError: it is nested too deep (far deeper than `max_depth`).
    """
    import msgspec

    return [part_of(line, bytes(part)) for part in msgspec.json.decode(line, type=list[msgspec.Raw])]


def part_of(line: bytes | bytearray, part: bytes) -> bytes:
    """A part of a line, or several of them put together, as able to have long strings put back in as that is."""
    if not isinstance(line, CutLine):
        return part
    cut = type(line)(part)
    cut.payloads, cut.has_payloads = line.payloads, line.has_payloads
    return cut


def may_have_payload(message: Encoded) -> bool:
    """Whether a message to be sent may have a payload that a binary frame would carry. Looks at its text, if long."""
    if len(message) < ATTACHED_MIN:
        return False
    return isinstance(message, MessageParts) or QUOTED_TAG_KEY in message


def size_with_payloads(line: bytes | bytearray) -> int:
    """The size of a parsed message in bytes, including its payloads and long strings."""
    return len(line) + line.payload_size if isinstance(line, CutLine) else len(line)


def with_strings(value: Any) -> Any:
    """The same with strings in the place of payloads, for what is no tagged object but only looks like one.

    Raises:
        ValueError: a payload is no string of JSON.
    """
    if type(value) is Payload:
        return orjson.loads(value.string)
    if type(value) is Attachment:
        import pybase64

        return pybase64.b64encode_as_string(value.view())
    if type(value) is dict:
        return {name: with_strings(member) for name, member in value.items()}
    return [with_strings(member) for member in value] if type(value) is list else value


def _loads(line: bytes, limits: Limits | None) -> Any:
    """JSON that may be long. Raises what `parse` raises."""
    if limits is not None:
        if len(line) > limits.max_json_size:
            raise OverLimit(limits.max_json_size, json_size=len(line))
        if values := values_over(line, limits.max_values):
            raise OverLimit(limits.max_values, values=values)
    # Each array and object that is made counts for the collector, which would look at all of them again and again.
    return without_collector(orjson.loads, line)


def _read(line: bytes, limits: Limits | None, tags: frozenset[str] | None) -> tuple[Any, CutLine] | None:
    """A line that is read without its long strings; None if nothing can be cut out, or not be put in again.

    Args:
        tags: of the objects whose data stay as they are, as `Payload`s; None: every long string stays.
    """
    if len(line) >= BIG:
        keep_freed_memory()
    is_over = limits is not None and len(line) > limits.max_json_size
    least, most = (_LONG_IN_LONGER, limits.max_json_size) if is_over and limits else (_LONG_STRING, _MAX_REST)
    cut = _without_long_strings(line, least, most)
    if cut is None or (tags is None and not all(_is_plain(each.string) for each in cut.payloads)):
        return None
    if is_over:
        # Strings with more than ASCII in them, which take longer, count as well.
        size = len(cut) + sum([each.size for each in cut.payloads if not _is_plain(each.string)])
        if size > most:
            raise OverLimit(most, json_size=size)
    try:
        message = _loads(bytes(cut), limits)  # it takes no subclass
        attach(message, cut, tags)
    except FrameError:  # one was under a name that came again
        return None
    except orjson.JSONDecodeError:
        if is_over:
            raise
        return None  # one was a name; or the error is found again, in its place
    return message, cut


def _is_plain(string: memoryview) -> bool:
    """True if a string that was cut out has no control characters and nothing but ASCII: then it is JSON."""
    import numpy as np

    # As numbers with a sign, what is not ASCII is negative.
    return bool(np.frombuffer(string, np.int8).min() >= _SPACE)


def _without_long_strings(line: bytes, least: int, max_rest: int) -> CutLine | None:
    """The line with placeholders for strings without escapes of `least` bytes or more.

    None when it has no such strings or too many, more than `max_rest` bytes besides them, or is not JSON.
    """
    whole = memoryview(line)
    # A long string has half of its bytes, or more, behind one of the hops: others are passed over.
    hop = least // 2
    pieces: list[Any] = []
    strings: list[Payload] = []
    at = done = rest = 0
    while (end := line.find(b'"', at)) >= 0:
        if end - at < hop:
            at += hop
            if rest + at - done > max_rest + least:
                return None
            continue
        start = line.rfind(b'"', done, at)
        if end - start >= least and _may_be_base64(line, start, end):
            pieces += whole[done:start], b'{"%b":%d}' % (BIN_KEY.encode(), len(strings))
            strings.append(Payload(whole[start : end + 1]))
            rest += start - done
            done = end + 1
            if len(strings) > _MAX_LONG:
                return None
        at = end + 1
    if not strings or rest + len(line) - done > max_rest:
        return None
    cut = CutLine(b"".join((*pieces, whole[done:])))
    cut.payloads = strings
    try:
        check_places(cut, len(strings))
    except FrameError:
        return None
    return cut


def _may_be_base64(line: bytes, start: int, end: int) -> bool:
    """Whether the text between two quotes, with none between them, is a string without escapes that may be base64.

    If the line is no JSON, it is none either with a placeholder in that place.
    """
    if start < 0 or line[start + 1] not in _BASE64:
        return False
    return line[start - 1 : start] != b"\\" and line.find(b"\\", start, end) < 0
