"""Long messages: their payloads are cut out before the rest is parsed.

Parsing a string of JSON takes ten times as long as decoding the base64 in it. So a long line is parsed without its long
strings, and a payload (the base64 that a built-in tagged object has as its "data") goes to its decoder as the bytes
that came. Every other long string is parsed by itself and put in its place: in the message there is no difference
but the payloads. In a binary frame the payloads stand beside the JSON, and are put in the places that it names for
them. Knows no family of values.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from ..errors import InvalidRequest
from ..limits import Limits
from ..wire import envelope
from ..wire.binary_frame import ATTACHED_MIN
from ..wire.buffers import AttachedMessage, Encoded, MessageParts
from ..wire.json_scan import values_over
from ..wire.messages import HEAD_SIZE, LONG, BinaryFrame, Oversize
from .memory import BIG, collector_paused, keep_freed_memory
from .rich_hint import NESTED, QUOTED_TAG_KEY, TAG_KEY, with_members

#: Strings (bytes) from which on that is faster.
_LONG_STRING = 8 * 1024
#: The same in a line over `max_json_size`, to which these do not count; and how many there may be, since each is looked
#: at. As many arrays as a message may have (`max_checked_values`) fit in one way or the other, whatever their size.
_LONG_IN_LONGER, _MAX_LONG = 512, 16 * 1024
#: A long string of ASCII without escapes counts for a quarter: copying it is that much faster than parsing the worst.
CHEAP = 4
#: A line that is still long without its long strings is parsed as it is: to put them in again would take longer.
_MAX_REST = 128 * 1024
#: What a payload begins with. (The text between two strings begins with a blank, a bracket, a comma or a colon.)
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

#: The tagged objects with a payload (wire page, "Tagged values").
_TAGGED = frozenset({"ndarray", "image", "bytes", "arrow", "pandas", "polars"})
#: The only member of the object that stands for a payload in the JSON of a binary frame.
BIN_KEY = "$bin"

#: How a placeholder begins, as it is written and as it is read; its number follows.
_WRITTEN, _MARK = b"\\u0000", "\0"
_PLACEHOLDER = re.compile(rb'"\\u0000(\d+)"')

#: The object that stands for a payload in the JSON of a frame, and the name of its member, also written with escapes.
#: Where the text is JSON, neither is found inside a string: the quote before the name has no backslash before it, so it
#: would end the string, and what follows cannot stand behind that.
_BIN_NAME = rb'"(?:\$|\\u0024)(?:b|\\u0062)(?:i|\\u0069)(?:n|\\u006[eE])"[ \t\r\n]*+:'
_PLACE = re.compile(rb"\{[ \t\r\n]*+" + _BIN_NAME + rb"[ \t\r\n]*+-?(\d++)[ \t\r\n]*+\}")
_BIN_MEMBER = re.compile(rb"(?<!\\)" + _BIN_NAME)

#: How a character begins that is written by its number; the first that needs not be.
_NUMBERED, _SPACE = b"\\u", ord(" ")


class Payload:
    """Base64 as it came, not looked at: it may be anything but a quote.

    Args:
        string: with the quotes around it.
    """

    __slots__ = ("string",)

    def __init__(self, string: memoryview) -> None:
        self.string = string

    @property
    def text(self) -> memoryview:
        """Without the quotes."""
        return self.string[1:-1]


class Attachment:
    """A payload that came beside the JSON of its message, as bytes; it stands in the message in place of a string.

    Attributes:
        size: bytes; not 0.
        memory: the array of bytes that it is received into; None while only its size is known.
    """

    __slots__ = ("_is_taken", "memory", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._is_taken = False
        self.memory: Any = None

    def view(self) -> memoryview:
        """Its bytes, to be read; shared by all that look at them."""
        return memoryview(self.memory)

    def take(self) -> Any:
        """The array of bytes, which then belongs to the caller: a copy from the second time on."""
        if self._is_taken:
            return self.memory.copy()
        self._is_taken = True
        return self.memory


class FrameError(ValueError):
    """A binary frame whose JSON is in order, but not in what it says of payloads; the text says why."""


class OverLimit(orjson.JSONDecodeError):
    """A message has more values, or more bytes of JSON, than it may have. It was not parsed, so it may be no JSON.

    Args:
        limit: the limit that it is over.
        values: how many values it has at least, as `wire.json_scan` counts them; 0 if these are not over the limit.
        json_size: bytes of its JSON without payloads, at least; 0 if these are not over the limit.
    """

    def __init__(self, limit: int, *, values: int = 0, json_size: int = 0) -> None:
        found = f"{values} values or more" if values else f"{json_size} bytes of JSON"
        super().__init__(f"it has {found}, the limit is {limit} ({'max_values' if values else 'max_json_size'})", "", 0)
        self._limit = limit
        self._values = values
        self._json_size = json_size

    def stand_in(self, line: bytes | bytearray) -> Oversize:
        """The `Oversize` that takes the place of this message."""
        head = bytes(line[:HEAD_SIZE])
        return Oversize(len(line), head, self._limit, values=self._values, json_size=self._json_size)


class SharedLine(bytes):
    """A line that several calls get, each for a part of it: what each would look for is found once, and kept here."""

    #: What the marshaller found.
    facts: Any = None
    #: What the hub found: the replies by their ids.
    replies: Any = None


class FrameLine(SharedLine):
    """The JSON of a binary frame, in which `{"$bin": k}` stands for a payload.

    Attributes:
        attachments: the payloads.
    """

    attachments: list[Attachment]

    def take_memory(self) -> list[memoryview]:
        """Take memory for the payloads; gives it, to receive them into."""
        import numpy as np

        if self.payload_size >= BIG:
            keep_freed_memory()
        for attachment in self.attachments:
            attachment.memory = np.empty(attachment.size, np.uint8)
        return [attachment.view() for attachment in self.attachments]

    def drop_memory(self) -> None:
        """Free the memory of the payloads: the message is not handled."""
        for attachment in self.attachments:
            attachment.memory = None

    @property
    def lent(self) -> list[int]:
        """As `AttachedMessage.lent`, once the arguments of the call were made of this message."""
        return [id(attachment.memory) for attachment in self.attachments]

    @property
    def payload_size(self) -> int:
        """Bytes of all payloads."""
        return sum([attachment.size for attachment in self.attachments])


class CutLine(SharedLine):
    """A line with placeholders for its long strings: JSON, and as good as the line to look for anything short."""

    #: The strings, as they came, with their quotes.
    strings: list[memoryview]
    #: Those of them that have not been looked at.
    payloads: list[memoryview]

    @property
    def has_escapes(self) -> bool:
        """True if a character outside the long strings is written by its number."""
        return self.count(_NUMBERED) != len(self.strings)


#: Lines whose payloads stand beside them, so that they are short however long the message is.
CUT = frozenset({CutLine, FrameLine})


def parse(line: bytes, limits: Limits | None = None) -> tuple[Any, bytes]:
    """A line as `orjson.loads` reads it, but with its payloads cut out; and the line to look at further.

    Args:
        limits: `max_values`, as `wire.json_scan` counts them, and `max_json_size`, checked before it is parsed; None:
            any number of both.

    Raises:
        OverLimit: it has more.
        orjson.JSONDecodeError: it is not JSON. (A payload may hold what no string may: that is no base64 either.)
    """
    return _read(line, limits, decodes=True) or (_loads(line, limits), line)


def parse_whole(line: bytes, limits: Limits) -> Any:
    """Parse a line as `parse` does, but leave every string in its place, payloads included."""
    read = _read(line, limits, decodes=True, tags=frozenset()) if len(line) > limits.max_json_size else None
    return _loads(line, limits) if read is None else read[0]


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
    line.attachments = [Attachment(size) for size in sizes]
    frame = BinaryFrame(json, sizes)
    try:
        # Most are short, and cannot have too many values: two bytes are an empty array, which counts four.
        is_short = len(json) < LONG and (limits is None or 2 * len(json) <= limits.max_values)
        message = orjson.loads(json) if is_short else _loads(json, limits)
    except OverLimit as error:
        frame.refusal = envelope.refusal_of(error.stand_in(json), len(json), side=side)
        frame.content = {"id": envelope.id_in_head(json)}, line
        return frame
    except orjson.JSONDecodeError as error:
        frame.refusal = envelope.unreadable(json, error)
        frame.content = {"id": envelope.id_of_request(json)}, line
        return frame
    frame.content = message, line
    if type(message) is not dict:
        frame.refusal = InvalidRequest(data={"reason": "a binary frame holds one message: an object, not a batch"})
        return frame
    try:
        _attach(message, line)
        _check_places(json, len(sizes))
    except FrameError as error:
        frame.refusal = InvalidRequest(data={"reason": str(error)})
    return frame


def _attach(message: dict[str, Any], line: FrameLine) -> None:
    """Put attachments in the place of `{"$bin": k}`, in place. FrameError if each does not stand there once."""
    unused = dict(enumerate(line.attachments))
    try:
        _attached(message, unused, len(unused))
    except RecursionError:
        raise FrameError("the message is nested too deep") from None
    if unused:
        raise FrameError(f"no $bin stands for the payload {next(iter(unused))}: each stands in one place")


def _attached(value: Any, unused: dict[int, Attachment], count: int) -> Any:
    # (A function inside the other one would keep the payloads until the garbage collector runs.)
    if type(value) is dict:
        if len(value) == 1 and BIN_KEY in value:
            number = value[BIN_KEY]
            found = unused.pop(number, None) if type(number) is int else None
            if found is None:
                raise FrameError(f"each $bin is a number below {count}, the count of payloads, and stands there once")
            return found
        for name, member in value.items():
            if type(member) is dict or type(member) is list:
                value[name] = _attached(member, unused, count)
    else:
        for position, member in enumerate(value):
            if type(member) is dict or type(member) is list:
                value[position] = _attached(member, unused, count)
    return value


def _check_places(json: bytes, count: int) -> None:
    """Check that all readers of the JSON find payloads where `_attach` has found so many of them.

    Where a name comes twice in one object, one reader takes the first, another one the last.

    Raises:
        FrameError: `$bin` is the name of another member.
    """
    if json.count(b'$bin"') == count and b"\\u00" not in json:  # nearly always
        return
    if len(_BIN_MEMBER.findall(json)) != count:
        raise FrameError("$bin is the name of a member that stands for no payload, or whose name comes again")


def outline(line: bytes, limits: Limits | None = None) -> tuple[Any, CutLine] | None:
    """The same for a message that is not decoded: its long strings, but for names, are `Payload`s.

    None where `parse` cuts nothing.

    Raises what `parse` raises.
    """
    return _read(line, limits, decodes=False)


def parse_exactly(line: bytes | bytearray) -> Any:
    """A line that was parsed before, with every integer as it was sent; slower than the fast parser."""
    import msgspec

    with collector_paused:
        message = msgspec.json.decode(line)
    if isinstance(line, FrameLine):
        _attach(message, line)
        return message
    return _Filling(line.strings).fill(message) if isinstance(line, CutLine) else message


def shared(line: bytes | bytearray) -> SharedLine:
    """A line that several calls get."""
    return line if isinstance(line, SharedLine) else SharedLine(line)


def members(line: bytes | bytearray) -> list[bytes]:
    """The members of an array, a line that was parsed before, each as a line of its own.

    Raises:
        RecursionError: it is nested too deep (far deeper than `max_depth`).
    """
    import msgspec

    parts = map(bytes, msgspec.json.decode(line, type=list[msgspec.Raw]))
    if not isinstance(line, CutLine):
        return list(parts)
    unseen = set(map(id, line.payloads))
    return [_part_of(line, part, unseen) for part in parts]


def part_of(line: bytes | bytearray, part: bytes) -> bytes:
    """A part of a line, or several of them put together, as able to have long strings put back in as that is."""
    return _part_of(line, part, set(map(id, line.payloads))) if isinstance(line, CutLine) else part


def _part_of(line: CutLine, part: bytes, unseen: set[int]) -> CutLine:
    cut = CutLine(part)
    cut.strings = line.strings
    found = [line.strings[int(number)] for number in _PLACEHOLDER.findall(part)]
    cut.payloads = [string for string in found if id(string) in unseen]
    return cut


def may_have_payload(message: Encoded) -> bool:
    """Whether a message to be sent may have a payload that a binary frame would carry. Looks at its text, if long."""
    if len(message) < ATTACHED_MIN:
        return False
    return isinstance(message, MessageParts) or QUOTED_TAG_KEY in message


def size_with_payloads(line: bytes | bytearray) -> int:
    """The size of a parsed message in bytes, including its payloads and long strings."""
    if isinstance(line, CutLine):
        return len(line) + sum(map(len, line.strings))
    return len(line) + line.payload_size if isinstance(line, FrameLine) else len(line)


def is_json(line: bytes | bytearray) -> bool:
    """True if the payloads of a line that was parsed before are JSON as well, which is not known yet."""
    if not isinstance(line, CutLine) or not line.payloads:
        return True
    while line.payloads:
        if not _is_string(line.payloads[-1]):
            return False
        line.payloads.pop()
    return True


def whole(data: bytes, line: bytes | bytearray) -> Encoded:
    """JSON that was written with parts of a line that was parsed before, each once: its long strings put back in.

    The payloads of a binary frame are attached again, in the order of their places; they are not copied, and no code
    may change them from now on.
    """
    if isinstance(line, FrameLine):
        return _attached_again(data, line.attachments)
    if not isinstance(line, CutLine):
        return data
    pieces: list[Any] = _PLACEHOLDER.split(data)
    pieces[1::2] = [line.strings[int(number)] for number in pieces[1::2]]
    return MessageParts(pieces)


def _attached_again(data: bytes, attachments: list[Attachment]) -> Encoded:
    pieces: list[Any] = _PLACE.split(data)
    if len(pieces) == 1:
        return data
    found = [attachments[int(number)].view() for number in pieces[1::2]]
    return AttachedMessage(pieces[::2], found, is_secured=True)


def disguised(text: bytes) -> bytes:
    """JSON that stands for the same, and can be written beside parts of a line that was cut."""
    return _PLACEHOLDER.sub(lambda found: b'"\\u0000\\u003%b"' % found[1], text) if _WRITTEN in text else text


def with_strings(value: Any) -> Any:
    """The same with strings in the place of payloads, for what is no tagged object but only looks like one.

    What has none in it is given back as it is.

    Raises:
        ValueError: a payload is no string of JSON.
    """
    if type(value) is Payload:
        return orjson.loads(value.string)
    if type(value) is Attachment:
        import pybase64

        return pybase64.b64encode_as_string(value.view())
    return with_members(value, _PARTS, with_strings) if type(value) in NESTED else value


def _loads(line: bytes, limits: Limits | None) -> Any:
    """JSON that may be long. Raises what `parse` raises."""
    if limits is not None:
        if len(line) > limits.max_json_size:
            raise OverLimit(limits.max_json_size, json_size=len(line))
        if values := values_over(line, limits.max_values):
            raise OverLimit(limits.max_values, values=values)
    # Each array and object that is made counts for the collector, which would look at all of them again and again.
    with collector_paused:
        return orjson.loads(line)


def _read(
    line: bytes, limits: Limits | None, *, decodes: bool, tags: frozenset[str] = _TAGGED
) -> tuple[Any, CutLine] | None:
    """A line that is read without its long strings; None if nothing can be cut out, or not be put in again."""
    if len(line) >= BIG:
        keep_freed_memory()
    most = None if limits is None else limits.max_json_size
    least, max_rest = (_LONG_STRING, _MAX_REST) if most is None or len(line) <= most else (_LONG_IN_LONGER, most)
    cut = _without_long_strings(line, least, max_rest)
    if cut is None:
        return None
    filling = _Filling(cut.strings, len(cut), most, decodes=decodes, tags=tags)
    try:
        message = filling.fill(_loads(bytes(cut), limits))  # it takes no subclass
    except RecursionError:
        return None
    if not filling.is_exact:
        return None
    cut.payloads = filling.payloads
    return message, cut


class _Filling:
    """Puts strings in the place of their placeholders.

    Args:
        strings: those that were cut out.
        rest: bytes of the line without these.
        most: `max_json_size`, to which payloads do not count, and strings of ASCII for a part; None: any number.
        decodes: not those that are payloads; or else it puts none.
        tags: of the objects whose data are payloads.
    """

    def __init__(
        self,
        strings: list[memoryview],
        rest: int = 0,
        most: int | None = None,
        *,
        decodes: bool = True,
        tags: frozenset[str] = _TAGGED,
    ) -> None:
        self._strings = strings
        self._decodes = decodes
        self._tags = tags
        self._most = most
        self._json_size = rest
        self._found: list[int] = []
        self.payloads: list[memoryview] = []

    @property
    def is_exact(self) -> bool:
        """Was each string put in one place? Not if one was a key, or under a key that came again."""
        return self._found == list(range(len(self._strings)))

    def fill(self, message: Any) -> Any:
        """The message, changed in place. RecursionError if it is nested too deep to be walked through."""
        if type(message) is str:
            return self._string(message, is_payload=False) if message[:1] == _MARK else message
        if type(message) is dict or type(message) is list:
            self._fill_places(message)
        return message

    def _fill_places(self, value: Any) -> None:
        is_tagged = False
        places: Any
        if type(value) is dict:
            tag = value.get(TAG_KEY)
            is_tagged = type(tag) is str and tag in self._tags
            places = value.items()
        else:
            kinds = set(map(type, value))
            if not kinds & NESTED and _MARK not in "".join([each for each in value if type(each) is str]):
                return
            places = enumerate(value)
        for place, member in places:
            kind = type(member)
            if kind is str:
                if member[:1] == _MARK:
                    value[place] = self._string(member, is_payload=is_tagged and place == "data")
            elif kind is dict or kind is list:
                self._fill_places(member)

    def _string(self, value: str, is_payload: bool) -> Any:
        number = int(value[1:])
        self._found.append(number)
        string = self._strings[number]
        if not is_payload:
            if self._most is not None:
                self._json_size += len(string) // CHEAP if _is_ascii(string) else len(string)
                if self._json_size > self._most:
                    raise OverLimit(self._most, json_size=self._json_size)
            if self._decodes:
                return orjson.loads(string)
        self.payloads.append(string)
        return Payload(string)


def _is_string(string: memoryview) -> bool:
    """True for a string of JSON, which was cut out, so it has no escapes. Most are ASCII, which is seen at once."""
    if _is_ascii(string):
        return True
    try:
        orjson.loads(string)
    except ValueError:
        return False
    return True


def _is_ascii(string: memoryview) -> bool:
    """True if it has no control characters and nothing but ASCII."""
    import numpy as np

    # As numbers with a sign, what is not ASCII is negative.
    return bool(np.frombuffer(string, np.int8).min() >= _SPACE)


_PARTS = frozenset({Payload, Attachment, dict, list})


def _without_long_strings(line: bytes, least: int, max_rest: int) -> CutLine | None:
    """The line with placeholders for strings without escapes of `least` bytes or more.

    None when it has no such strings or too many, more than `max_rest` bytes besides them, or is not JSON.
    """
    whole = memoryview(line)
    # A long string has half of its bytes, or more, behind one of the hops: others are passed over.
    hop = least // 2
    pieces: list[Any] = []
    strings: list[memoryview] = []
    at = done = rest = 0
    while (end := line.find(b'"', at)) >= 0:
        if end - at < hop:
            at += hop
            if rest + at - done > max_rest + least:
                return None
            continue
        start = line.rfind(b'"', done, at)
        if end - start >= least and _may_be_base64(line, start, end):
            pieces += whole[done:start], b'"%b%d"' % (_WRITTEN, len(strings))
            strings.append(whole[start : end + 1])
            rest += start - done
            done = end + 1
            if len(strings) > _MAX_LONG:
                return None
        at = end + 1
    if not strings or rest + len(line) - done > max_rest:
        return None
    cut = CutLine(b"".join((*pieces, whole[done:])))
    cut.strings = strings
    # There is one way to write the mark in JSON. If the line has it more often, some stand for themselves.
    return cut if cut.count(_WRITTEN) == len(strings) else None


def _may_be_base64(line: bytes, start: int, end: int) -> bool:
    """Whether the text between two quotes, with none between them, is a string without escapes that may be base64.

    If the line is no JSON, it is none either with a placeholder in that place.
    """
    if start < 0 or line[start + 1] not in _BASE64:
        return False
    return line[start - 1 : start] != b"\\" and line.find(b"\\", start, end) < 0
