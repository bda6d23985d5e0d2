"""From a message to its bytes: by orjson with large payloads spliced in, or value by value, exactly, by msgspec.

orjson writes the message, with small payloads as strings. For a large payload it writes a NUL, a byte that it never
writes otherwise, and the payload is put in that place afterwards: 20 MB never pass through a JSON string. Towards a
peer that takes binary frames the payload stays bytes, and is attached to the message.

What orjson refuses (keys that are no strings, integers over 64 bits, nesting over 254) is written by msgspec. So is a
message with NaN or an infinity in it, for which orjson writes null: these are only looked for where there is a null in
the text.
"""

from __future__ import annotations

import datetime
import re
from math import isfinite
from typing import Any

import orjson

from ..errors import EncodeError
from ..wire.binary_frame import ATTACHED_MAX, ATTACHED_MIN
from ..wire.buffers import AttachedMessage, Encoded, MessageParts
from .memory import keep_freed_memory
from .options import ImageOptions
from .rich_hint import type_name
from .rich_type import TypeTable

#: Payloads up to this size (before base64) go as strings; from here on splicing is faster.
INLINE = 64 * 1024

LINE_END = 0x0A
#: What orjson writes for None, for NaN and for the infinities. (`rfind` takes less than half of the time of `find`.)
NULL = b"null"
_MARK = b"\x00"
_MARKER = orjson.Fragment(_MARK)
#: Besides these, only finite floats, lists and dicts are left as they are by the exact way.
_PLAIN = frozenset({type(None), bool, int, str, datetime.date, datetime.time, datetime.datetime})
#: How NaN and the infinities are written as msgpack: all bits of the exponent are set.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")


class Encoding:
    """The encoding of one message after the other, for encoders: they hand their payloads to it.

    Attributes:
        images: how images are sent.
        max_file: bytes of an image file that is sent as it is.
        binary: the message goes to a peer that takes payloads as they are, beside the JSON.
        payloads: the large ones of the message, for each of which there is a NUL in its line.
        hook: `default`, looked up once: that takes a twentieth of the time of a small message.
    """

    __slots__ = ("_encoders", "_inline", "_types", "binary", "hook", "images", "max_file", "payloads")

    def __init__(self, types: TypeTable, images: ImageOptions, max_file: int) -> None:
        self._types = types
        self._encoders = types.encoders
        self.images = images
        self.max_file = max_file
        self.payloads: list[Any] = []
        self.hook = self.default
        self.binary = False
        self._inline = INLINE

    def set_binary(self, binary: bool) -> None:
        """Say to which kind of peer the next message goes."""
        self.binary = binary
        self._inline = ATTACHED_MIN - 1 if binary else INLINE

    def refused(self, message: object, error: TypeError) -> bytes:
        """The line of a message that orjson refused with this error. Raises EncodeError if it cannot be encoded."""
        cause = error.__cause__
        if cause is None or isinstance(cause, RecursionError):
            return self._exactly(message)
        raise cause  # of `default`, or an interrupt: orjson hides it behind an error of its own

    def finished(self, line: bytes, message: object) -> Encoded:
        """The bytes of a message for its line: with NaN and the infinities, and its payloads."""
        if line.rfind(NULL) >= 0 and self._hides_floats(message):
            line = self._exactly(message)
        if LINE_END in line:  # only out of an orjson.Fragment of the user's, and would end the message
            raise EncodeError("an orjson.Fragment with a line end has no form on the wire")
        return self._spliced(line) if self.payloads else line

    def default(self, value: Any) -> object:
        """Encode a value that JSON has no form for; `default` of orjson. Raises EncodeError if no encoder takes it."""
        kind = type(value)
        encode = self._encoders.get(kind) or self._types.encoder_of(kind)
        try:
            return encode(value, self)
        except (EncodeError, RecursionError, MemoryError):
            raise
        except Exception as error:
            raise EncodeError(f"a {type_name(kind)} could not be encoded: {error}") from error

    def payload(self, data: Any) -> object:
        """The base64 of a bytes-like object whose `len` is its number of bytes, or a marker in its place."""
        if len(data) <= self._inline:
            import pybase64

            return pybase64.b64encode_as_string(data)
        self.payloads.append(data)
        return _MARKER

    def has_room(self, size: int) -> bool:
        """True if a payload of so many bytes can be attached, beside those that are, and leave room for the rest."""
        return self.binary and sum(map(len, self.payloads)) + size <= self.max_file * 3 // 4

    def _hides_floats(self, message: object) -> bool:
        """Whether NaN or an infinity may be in a message that orjson has written."""
        if self._types.overrides:  # msgpack has a form of its own for them
            return True
        import msgspec

        try:
            # To write it as msgpack, in C, is much faster than to walk through it.
            return _NOT_FINITE.search(msgspec.msgpack.encode(message, enc_hook=self._parts)) is not None
        except Exception:  # what msgpack cannot say
            return True

    def _parts(self, value: Any) -> Any:
        """A value as parts that may hold a float; None if it has none."""
        return None if self._types.of_value(type(value)).has_payload else self.default(value)

    def _exactly(self, message: object) -> bytes:
        import msgspec

        self.payloads = []
        try:
            return msgspec.json.encode(_plain(message, self), enc_hook=self._key)
        except RecursionError:
            raise EncodeError("a value is nested too deep, or contains itself") from None
        except EncodeError:
            raise
        except (TypeError, ValueError, OverflowError) as error:  # half a character, or a tzinfo that fails
            raise EncodeError(f"a value has no form on the wire: {error}") from error

    def _key(self, key: Any) -> object:
        """A key of a dict that msgspec does not know, such as a scalar of numpy."""
        plain = self.default(key)
        if isinstance(plain, str | int | float):
            return plain
        raise EncodeError(f"a dict with a key of type {type_name(type(key))} has no form on the wire")

    def _spliced(self, line: bytes) -> Encoded:
        """The line with the payloads in the place of the markers: attached where that may be, or their base64."""
        payloads, self.payloads = self.payloads, []
        pieces = line.split(_MARK)
        if len(pieces) != len(payloads) + 1:
            raise EncodeError("an orjson.Fragment with a NUL has no form on the wire")
        keep_freed_memory()
        message = AttachedMessage(pieces, payloads)
        if self.binary and len(payloads) <= ATTACHED_MAX and not any(map(_may_stand_for_payload, pieces)):
            return message
        return MessageParts(message.parts)


def _may_stand_for_payload(piece: bytes) -> bool:
    """Whether the receiver of a frame might take something in this JSON for a payload that it is not."""
    return b'$bin"' in piece or b"\\u00" in piece


def _plain(value: Any, encoding: Encoding) -> Any:
    """The value as data that msgspec writes by itself, but for the keys of dicts."""
    import msgspec

    kind = type(value)
    if kind is dict:
        return {key: _plain(member, encoding) for key, member in value.items()}
    if kind is list or kind is tuple:
        return [_plain(member, encoding) for member in value]
    if kind in _PLAIN or (kind is float and isfinite(value)):
        return value
    if kind is orjson.Fragment:
        return msgspec.Raw(_MARK if value is _MARKER else orjson.dumps(value))
    return _plain(encoding.default(value), encoding)
