"""Payloads that stand beside the JSON of their message (`{"$bin": k}` stands for each), and memory of long messages.

They came so, as raw bytes, in a binary frame; or they are base64 that was cut out of a long line.
"""

from __future__ import annotations

import functools
import gc
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import orjson

from ..wire.buffers import AttachedMessage, Encoded, MessageParts
from .rich_hint import NESTED, TAG_KEY

T = TypeVar("T")

#: Bytes of a message. glibc uses blocks of less than 128 KiB again in any case, but two of these may come together.
BIG = 64 * 1024
#: Bytes. Blocks up to this size come from the heap, where they are used again: the default of `max_message_size`.
_FROM_HEAP = 64 * 1024 * 1024
#: Bytes. So much of the heap's end may stay free: one message of that size on its way in, as an array, and out again.
_KEPT = 4 * _FROM_HEAP

#: mallopt(3)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def keep_freed_memory() -> None:
    """Have big blocks of freed memory used again. To be called when there is a message with one; acts once.

    Does nothing where the environment says what malloc is to do, and with C libraries that have no such setting.
    """
    if any(name in os.environ for name in _SETTINGS):
        return
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
    except (ImportError, OSError, TypeError, AttributeError):  # not Linux, or musl
        return
    mallopt(_M_MMAP_THRESHOLD, _FROM_HEAP)
    mallopt(_M_TRIM_THRESHOLD, _KEPT)


def without_collector(parse: Callable[[T], Any], text: T) -> Any:
    """Parse a text while the cyclic garbage collector is off: nothing that is made there can be garbage yet."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return parse(text)
    finally:
        if was_on:
            gc.enable()


#: The only member of the object that stands for a payload in the JSON of a binary frame.
BIN_KEY = "$bin"

#: The object that stands for a payload in the JSON of a frame, and the name of its member, also written with escapes.
#: Where the text is JSON, neither is found inside a string: the quote before the name has no backslash before it, so it
#: would end the string, and what follows cannot stand behind that.
_BIN_NAME = rb'"(?:\$|\\u0024)(?:b|\\u0062)(?:i|\\u0069)(?:n|\\u006[eE])"[ \t\r\n]*+:'
_PLACE = re.compile(rb"\{[ \t\r\n]*+" + _BIN_NAME + rb"[ \t\r\n]*+-?(\d++)[ \t\r\n]*+\}")
_BIN_MEMBER = re.compile(rb"(?<!\\)" + _BIN_NAME)


class Attachment:
    """A payload of a binary frame, as bytes; it stands in the message in place of a string.

    Attributes:
        size: bytes; not 0.
        memory: the array of bytes that it is received into, or in memory of the peer, which cannot be written to and
            which the peer may change; None while only its size is known.
    """

    __slots__ = ("_is_taken", "memory", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._is_taken = False
        self.memory: Any = None

    def view(self) -> memoryview:
        """Its bytes, to be read; shared by all that look at them, and copied first if the peer may change them."""
        if not self.memory.flags.writeable:
            self.memory = self.memory.copy()
        return memoryview(self.memory)

    def take(self) -> Any:
        """The array of bytes, which then belongs to the caller: a copy from the second time on."""
        if self._is_taken:
            return self.memory.copy()
        self._is_taken = self.memory.flags.writeable
        return self.memory if self._is_taken else self.memory.copy()

    def lend(self) -> Any:
        """The array of bytes: in memory of the peer, it is as it came; else as `take`."""
        return self.take() if self.memory.flags.writeable else self.memory


class Payload:
    """A long string as it came in a line, not looked at: it may be anything but a quote.

    Attributes:
        string: with the quotes around it.
        size: bytes of that.
    """

    __slots__ = ("size", "string")

    def __init__(self, string: memoryview) -> None:
        self.string = string
        self.size = len(string)

    @property
    def text(self) -> memoryview:
        """Without the quotes."""
        return self.string[1:-1]


class FrameError(ValueError):
    """Payloads do not stand in the JSON as they must; the text says why."""


class SharedLine(bytes):
    """A line that several calls get, each for a part of it: what each would look for is found once, and kept here."""

    #: What the marshaller found.
    facts: Any = None
    #: What the hub found: the replies by their ids.
    replies: Any = None


class CutLine(SharedLine):
    """JSON in which `{"$bin": k}` stands for a payload, or for a long string that was cut out of the line.

    It is as good as the line to look for anything short.

    Attributes:
        payloads: those that were cut out.
        has_payloads: some of them are in the message as they came, and were not looked at.
    """

    payloads: list[Any]
    has_payloads = False

    @property
    def payload_size(self) -> int:
        """Bytes of all payloads."""
        return sum([payload.size for payload in self.payloads])


class FrameLine(CutLine):
    """The JSON of a binary frame, and its payloads."""

    def take_memory(self, lent: Sequence[Any] = (), *, copies: bool = False) -> list[memoryview]:
        """Take memory for the payloads; gives it, to receive them into.

        Args:
            lent: those that stand in memory of the peer, as arrays, and need none; None for the others.
            copies: these are copied.
        """
        import numpy as np

        memory = []
        for number, payload in enumerate(self.payloads):
            if lent and (found := lent[number]) is not None:
                payload.memory = found.copy() if copies else found
                continue
            if payload.size >= BIG:
                keep_freed_memory()
            payload.memory = np.empty(payload.size, np.uint8)
            memory.append(memoryview(payload.memory))
        return memory

    def drop_memory(self) -> None:
        """Free the memory of the payloads: the message is not handled."""
        for payload in self.payloads:
            payload.memory = None

    @property
    def lent(self) -> list[int]:
        """As `AttachedMessage.lent`, once the arguments of the call were made of this message."""
        return [id(payload.memory) for payload in self.payloads]


def attach(message: Any, line: CutLine, tags: frozenset[str] | None) -> None:
    """Put the payloads of a line into its message, in the places of `{"$bin": k}`.

    Args:
        tags: of the objects whose data stay as they came, where the payloads were cut out of a line; other strings are
            parsed. None: all stay as they came.

    Raises:
        FrameError: not each of them stands there once.
        orjson.JSONDecodeError: a string is not JSON.
    """
    unused = dict(enumerate(line.payloads))
    try:
        if type(message) in NESTED:
            _attach(message, line, unused, tags)
    except RecursionError:
        raise FrameError("the message is nested too deep") from None
    if unused:
        raise FrameError(f"no $bin names the payload {next(iter(unused))}: use each payload once")


def _attach(container: Any, line: CutLine, unused: dict[int, Any], tags: frozenset[str] | None) -> None:
    # (A function inside the other one would keep the payloads until the garbage collector runs.)
    for name, member in container.items() if type(container) is dict else enumerate(container):
        kind = type(member)
        if kind not in NESTED:
            continue
        if kind is dict and BIN_KEY in member and len(member) == 1:
            number = member[BIN_KEY]
            found = unused.pop(number, None) if type(number) is int else None
            if found is None:
                count = len(line.payloads)
                raise FrameError(f"each $bin is a number below {count}, the number of payloads, and is used once")
            if tags is None or type(found) is Attachment or _is_data(name, container, tags):
                container[name], line.has_payloads = found, True
            else:
                container[name] = orjson.loads(found.string)
        elif kind is dict or (kind is list and not NESTED.isdisjoint(map(type, member))):
            _attach(member, line, unused, tags)


def _is_data(name: Any, container: Any, tags: frozenset[str]) -> bool:
    """Whether a member of this name is the data of an object with one of these tags."""
    tag = container.get(TAG_KEY) if name == "data" else None
    return type(tag) is str and tag in tags


def check_places(json: bytes, count: int) -> None:
    """Check that every JSON parser finds `count` payloads, in the places where `attach` found them.

    Where a name comes twice in one object, one reader takes the first, another one the last.

    Raises:
        FrameError: `$bin` is the name of another member.
    """
    if json.count(b'$bin"') == count and b"\\u00" not in json:  # nearly always
        return
    if len(_BIN_MEMBER.findall(json)) != count:
        raise FrameError("$bin is the name of a member that stands for no payload, or whose name comes again")


def whole(data: bytes, line: bytes | bytearray) -> Encoded:
    """JSON that was written with parts of a line that was parsed before, each once: its payloads beside it again.

    They are not copied, and no code may change them from now on.
    """
    pieces: list[Any] = _PLACE.split(data) if isinstance(line, CutLine) else [data]
    if len(pieces) == 1:
        return data
    found = [line.payloads[int(number)] for number in pieces[1::2]]  # type: ignore[union-attr]
    if type(line) is FrameLine:
        return AttachedMessage(pieces[::2], [payload.view() for payload in found], is_secured=True)
    pieces[1::2] = [payload.string for payload in found]
    return MessageParts(pieces)
