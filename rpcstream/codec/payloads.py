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
from ..wire import envelope
from ..wire.binary_frame import ATTACHED_MIN
from ..wire.buffers import AttachedMessage, Encoded, MessageParts
from ..wire.json_scan import values_over
from ..wire.messages import HEAD_SIZE, LONG, BinaryFrame, Oversize
from .memory import BIG, collector_paused, keep_freed_memory
from .rich_hint import QUOTED_TAG_KEY, TAG_KEY

#: Strings (bytes) from which on that is faster.
_LONG_STRING = 8 * 1024
#: A line with more strings that are not short than these, and one more for so many bytes, is parsed as it is: looking
#: at each would take longer. So is one that is still long without its long strings.
_MAX_STRINGS, _BYTES_A_STRING = 16, 4096
_MAX_REST = 128 * 1024
#: Short strings without escapes, and what stands around them.
_SHORT = re.compile(rb'(?:[^"]{0,4096}+"[^"\\]{0,100}+")*+')

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


class TooManyValues(orjson.JSONDecodeError):
    """A message has more values than may be. It was not parsed: perhaps it is no JSON either.

    Attributes:
        values: how many at least, as `wire.json_scan` counts them.
        limit: how many it may have.
    """

    def __init__(self, values: int, limit: int) -> None:
        super().__init__(f"it has {values} values or more, the limit is {limit} (max_values)", "", 0)
        self.values = values
        self.limit = limit

    def stand_in(self, line: bytes | bytearray) -> Oversize:
        """The `Oversize` that takes the place of this message."""
        return Oversize(len(line), bytes(line[:HEAD_SIZE]), self.limit, values=self.values)


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


def parse(line: bytes, max_values: int | None = None) -> tuple[Any, bytes]:
    """A line as `orjson.loads` reads it, but with its payloads cut out; and the line to look at further.

    Args:
        max_values: as `wire.json_scan` counts them; None: any number. Counted before it is parsed.

    Raises:
        TooManyValues: it has more.
        orjson.JSONDecodeError: it is not JSON. (A payload may hold what no string may: that is no base64 either.)
    """
    return _read(line, max_values, decodes=True) or (_loads(line, max_values), line)


def read_frame(json: bytes, sizes: tuple[int, ...], max_values: int | None, side: str) -> BinaryFrame:
    """A binary frame whose JSON is there. Its content is the message, and its `FrameLine`.

    In the message an `Attachment` without memory stands for each payload. The frame has a refusal where it has too many
    values, is not JSON, is a batch, or a payload does not stand in exactly one place.

    Args:
        json: as it came.
        sizes: of the payloads, in bytes.
        max_values: as for `parse`.
        side: as for `envelope.refusal_of`.
    """
    line = FrameLine(json)
    line.attachments = [Attachment(size) for size in sizes]
    frame = BinaryFrame(json, sizes)
    try:
        # Most are short, and cannot have too many values: two bytes are an empty array, which counts four.
        is_short = len(json) < LONG and (max_values is None or 2 * len(json) <= max_values)
        message = orjson.loads(json) if is_short else _loads(json, max_values)
    except TooManyValues as error:
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


def outline(line: bytes, max_values: int | None = None) -> tuple[Any, CutLine] | None:
    """The same for a message that is not decoded: every long string is a `Payload`. None where `parse` cuts nothing.

    Raises what `parse` raises.
    """
    return _read(line, max_values, decodes=False)


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
    """Bytes of a message that was parsed, with those of its payloads."""
    return len(line) + line.payload_size if isinstance(line, FrameLine) else len(line)


def is_json(line: bytes | bytearray) -> bool:
    """True if the payloads of a line that was parsed before are JSON as well, which is not known yet."""
    if not isinstance(line, CutLine) or not line.payloads:
        return True
    # Most lines have no escape at all. To see that copies nothing, and is done once for all strings; but the payloads
    # of a part may be a small part of the whole.
    whole = bytes(line.payloads[0].obj)  # it is
    has_escapes = 2 * sum(map(len, line.payloads)) < len(whole) or b"\\" in whole
    while line.payloads:
        if not _is_string(line.payloads[-1], has_escapes):
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
    places: Any
    if type(value) is dict:
        places = value.items()
    elif type(value) is list:
        places = enumerate(value)
    else:
        return value
    result = value
    for place, member in places:
        if type(member) in _PARTS and (plain := with_strings(member)) is not member:
            if result is value:
                result = value.copy()
            result[place] = plain
    return result


def _loads(line: bytes, max_values: int | None) -> Any:
    """JSON that may be long. Raises what `parse` raises."""
    if max_values is not None and (values := values_over(line, max_values)):
        raise TooManyValues(values, max_values)
    # Each array and object that is made counts for the collector, which would look at all of them again and again.
    with collector_paused:
        return orjson.loads(line)


def _read(line: bytes, max_values: int | None, *, decodes: bool) -> tuple[Any, CutLine] | None:
    """A line that is read without its long strings; None if nothing can be cut out, or not be put in again."""
    if len(line) >= BIG:
        keep_freed_memory()
    cut = _without_long_strings(line)
    if cut is None:
        return None
    filling = _Filling(cut.strings, decodes=decodes)
    try:
        message = filling.fill(_loads(bytes(cut), max_values))  # it takes no subclass
    except RecursionError:
        return None
    if not filling.is_exact:
        return None
    cut.payloads = filling.payloads
    return message, cut


class _Filling:
    """Puts strings in the place of their placeholders.

    Args:
        decodes: not those that are payloads; or else it puts none.
    """

    def __init__(self, strings: list[memoryview], *, decodes: bool = True) -> None:
        self._strings = strings
        self._decodes = decodes
        self._found: list[int] = []
        self.payloads: list[memoryview] = []

    @property
    def is_exact(self) -> bool:
        """Was each string put in one place? Not if one was a key, or under a key that came again."""
        return self._found == list(range(len(self._strings)))

    def fill(self, message: Any) -> Any:
        """The message, changed in place. RecursionError if it is nested too deep to be walked through."""
        return self._filled(message, is_payload=False)

    def _filled(self, value: Any, *, is_payload: bool) -> Any:
        if type(value) is str:
            return self._string(value, is_payload) if value[:1] == _MARK else value
        if type(value) is dict:
            tag = value.get(TAG_KEY)
            is_tagged = type(tag) is str and tag in _TAGGED
            for name, member in value.items():
                if type(member) in _FILLED:
                    value[name] = self._filled(member, is_payload=is_tagged and name == "data")
        elif type(value) is list:
            for position, member in enumerate(value):
                if type(member) in _FILLED:
                    value[position] = self._filled(member, is_payload=False)
        return value

    def _string(self, value: str, is_payload: bool) -> Any:
        number = int(value[1:])
        self._found.append(number)
        string = self._strings[number]
        if self._decodes and not is_payload:
            return orjson.loads(string)
        self.payloads.append(string)
        return Payload(string)


def _is_string(string: memoryview, has_escapes: bool) -> bool:
    """True for a string of JSON. Most often it is ASCII without escapes, which is seen at once.

    Args:
        has_escapes: perhaps.
    """
    import numpy as np

    # As numbers with a sign, what is not ASCII is negative.
    if np.frombuffer(string, np.int8).min() >= _SPACE and not (has_escapes and b"\\" in bytes(string)):
        return True
    try:
        orjson.loads(string)
    except ValueError:
        return False
    return True


_FILLED = frozenset({str, dict, list})
_PARTS = frozenset({Payload, Attachment, dict, list})


def _without_long_strings(line: bytes) -> CutLine | None:
    """The line with placeholders; None when it has no long strings, or much besides them, or is not JSON."""
    whole = memoryview(line)
    pieces: list[Any] = []
    strings: list[memoryview] = []
    at = done = rest = 0
    for _ in range(_MAX_STRINGS + len(line) // _BYTES_A_STRING):
        most = max(at, done + _MAX_REST - rest)
        start = line.find(b'"', _SHORT.match(line, at, most).end()) + 1  # type: ignore[union-attr]  # or it matches nothing
        if not start:
            break
        if start - 1 > most:
            return None
        end = _end_of_string(line, start)
        if end < 0:
            return None
        if end - start >= _LONG_STRING:
            pieces += whole[done:start], b"%b%d" % (_WRITTEN, len(strings))
            strings.append(whole[start - 1 : end + 1])
            rest += start - done
            done = end
        at = end + 1
    else:
        return None
    if not strings or rest + len(line) - done > _MAX_REST:
        return None
    cut = CutLine(b"".join((*pieces, whole[done:])))
    cut.strings = strings
    # There is one way to write the mark in JSON. If the line has it more often, some stand for themselves.
    return cut if cut.count(_WRITTEN) == len(strings) else None


def _end_of_string(line: bytes, start: int) -> int:
    """Where the quote stands that ends the string; negative when that takes more than a few looks."""
    end = line.find(b'"', start)
    for _ in range(64):
        before = line[max(start, end - 64) : end]
        escapes = len(before) - len(before.rstrip(b"\\"))
        if end < 0 or escapes % 2 == 0:
            return end if escapes < 64 else -1
        end = line.find(b'"', end + 1)
    return -1
