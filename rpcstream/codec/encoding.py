"""From a message to its bytes: by orjson alone, with large payloads spliced in, or exactly by msgspec.

Owns these three ways and their order. First orjson alone, with small payloads as strings. A large payload, or an
encoder that may be costly, starts it over with a list for payloads: each is written as a marker with a NUL, a byte that
orjson never writes, and put in its place afterwards, so that 20 MB never pass through a JSON string. Towards a peer
that takes binary frames payloads stay bytes, and are attached to the message. What orjson
refuses (keys that are no strings, integers over 64 bits, nesting over 254) is rewritten as plain data and written by
msgspec; then the error also says where in the message the value stands. orjson writes null for NaN and the infinities:
only where there is a null in the text, these are looked for, and the message is written again with tagged objects.
"""

from __future__ import annotations

import datetime
import functools
import operator
import re
import sys
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import orjson

from ..errors import EncodeError
from ..wire.binary_frame import ATTACHED_MAX, ATTACHED_MIN
from ..wire.buffers import AttachedMessage, Encoded, MessageParts
from .memory import keep_freed_memory
from .options import ImageSettings
from .rich_hint import shortened, type_name

#: Payloads up to this size (before base64) go as strings; from here on splicing is faster.
INLINE = 64 * 1024

LINE_END = 0x0A
#: What orjson writes for None, and for NaN and the infinities; and a letter of it, which is found much faster.
_NULL, _LETTER_OF_NULL = b"null", ord("u")
_MARKER = orjson.Fragment(b"\x00")
#: Besides these, only str, finite floats, lists and dicts are left as they are by the exact way.
_PLAIN = frozenset({type(None), bool, datetime.date, datetime.time, datetime.datetime})
#: Types of values that orjson writes itself, and that hold no float.
_WITHOUT_FLOATS = _PLAIN | {str, int, orjson.Fragment}
#: How NaN and the infinities are written as msgpack: all bits of the exponent are set.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
#: The modules whose encoders give parts that may hold a float. (The others are payloads, and may be costly to encode.)
_WITH_PARTS = frozenset(
    f"{__package__}.{name}" for name in ("containers", "ext.pydantic_models", "registry", "scalars")
)


class Spliced(Exception):
    """Raised by an encoder for a large payload while the message has no list of payloads; it is encoded again."""


#: Turns a value into something nearer to JSON, whose parts may have to be encoded themselves. Raises EncodeError.
Encoder = Callable[[Any, "Encoding"], object]


class Encoding:
    """The encoding of one message, for encoders: they hand their payloads to it.

    Attributes:
        images: how images are sent.
        binary: the message goes to a peer that takes payloads as they are, beside the JSON.

    A codec has one for all its small messages, without a list of payloads, and makes one for each message with large
    payloads.

    Args:
        encoder_of: finds the encoder for a class.
        payloads: gets the large payloads; None: the first one raises `Spliced`.
        binary: the message goes to a peer that takes binary frames.
        registered: the classes of the user that have encoders.
    """

    __slots__ = ("_encoder_of", "_inline", "_payloads", "_registered", "binary", "images")

    def __init__(
        self,
        encoder_of: Callable[[type], Encoder],
        images: ImageSettings,
        payloads: list[Any] | None = None,
        *,
        binary: bool = False,
        registered: Mapping[type, object],
    ) -> None:
        self.images = images
        self._registered = registered
        self.binary = binary
        self._inline = ATTACHED_MIN - 1 if binary else INLINE
        self._encoder_of = encoder_of
        self._payloads = payloads

    def with_payloads(self, payloads: list[Any], *, binary: bool = False) -> Encoding:
        """The encoding of one message, whose large payloads are appended to the list."""
        return Encoding(self._encoder_of, self.images, payloads, binary=binary, registered=self._registered)

    def default(self, value: Any) -> object:
        """Encode a value that JSON has no form for; `default` of orjson. Raises EncodeError if no encoder takes it."""
        encode = self._encoder_of(type(value))
        try:
            return encode(value, self)
        except (EncodeError, Spliced, RecursionError, MemoryError):
            raise
        except Exception as error:
            raise EncodeError(f"a {type_name(type(value))} could not be encoded: {error}") from error

    def with_tagged_floats(self, message: Any) -> Any:
        """The same with a tagged object for each NaN and infinity; itself if it has none.

        Only for a message that was encoded, and whose text `may_hide_floats`.
        """
        # To write it as msgpack, in C, is faster than a walk through it. Small clients do without msgspec, and for some
        # classes it has forms of its own.
        msgspec = sys.modules.get("msgspec")
        if msgspec is not None and not self._registered:
            try:
                if _NOT_FINITE.search(msgspec.msgpack.encode(message, enc_hook=self._parts)) is None:
                    return message
            except Exception:  # what msgpack cannot say
                pass
        return self.with_payloads([])._tagged(message)

    def _parts(self, value: Any) -> Any:
        """A value as parts that may hold a float; None if it has none."""
        return self.default(value) if self._encoder_of(type(value)).__module__ in _WITH_PARTS else None

    def _tagged(self, value: Any) -> Any:
        kind = type(value)
        if kind is float:
            return value if isfinite(value) else self.default(value)
        if kind is not dict and kind is not list and kind is not tuple:
            if kind in _WITHOUT_FLOATS or self._encoder_of(kind).__module__ not in _WITH_PARTS:
                return value
            parts = self.default(value)
            made = self._tagged(parts)
            return value if made is parts else made
        members = value.values() if kind is dict else value
        if _WITHOUT_FLOATS.issuperset(map(type, members)):
            return value
        made = [
            each if type(each) in _WITHOUT_FLOATS or (type(each) is float and isfinite(each)) else self._tagged(each)
            for each in members
        ]
        if all(map(operator.is_, made, members)):
            return value
        return dict(zip(value, made, strict=True)) if kind is dict else made

    def payload(self, data: Any) -> object:
        """The base64 of a bytes-like object whose `len` is its number of bytes, or a marker in its place."""
        if len(data) <= self._inline:
            return _base64().encode_text(data)
        self.expect_payload()
        self._payloads.append(data)  # type: ignore[union-attr]
        return _MARKER

    def has_room(self, size: int) -> bool:
        """True if a payload of so many bytes can be attached, beside those that are, and leave room for the rest."""
        if not self.binary:
            return False
        return sum(map(len, self._payloads or ())) + size <= self.images.max_file * 3 // 4

    def take_payloads(self) -> list[Any]:
        """The payloads of the message that was encoded; the encoding may be used for another one."""
        taken = self._payloads
        if not taken:
            return []
        self._payloads = []
        return taken

    def expect_payload(self) -> None:
        """To be called before costly work, which would else be done again when a payload raises `Spliced`."""
        if self._payloads is None:
            raise Spliced


def serialize_attached(message: object, encoding: Encoding, shared: Encoding, options: int) -> Encoded:
    """A message to a peer that takes binary frames. Raises as `serialize_again`.

    Args:
        message: as for `Codec.serialize`.
        encoding: for such messages; not in use, and as good as new afterwards.
        shared: for messages of text.
        options: of orjson.
    """
    try:
        return _spliced(*_written(message, encoding, options), binary=True)
    except TypeError as error:
        encoding.take_payloads()
        return serialize_again(message, error, shared, options)


def serialize_again(message: object, error: TypeError, shared: Encoding, options: int) -> Encoded:
    """The message that orjson refused with this error when it was called with `shared.default`.

    Raises:
        EncodeError: something in it cannot be encoded; the text says what and where.
    """
    if type(error.__cause__) is Spliced:
        try:
            return _spliced(*_written(message, shared.with_payloads([]), options), binary=False)
        except TypeError as second:
            error = second
    cause = error.__cause__
    if cause is not None and (isinstance(cause, MemoryError) or not isinstance(cause, Exception)):
        raise cause  # orjson hides an interrupt behind an error of its own
    return _serialize_exactly(message, shared)


def _written(message: object, encoding: Encoding, options: int) -> tuple[bytes, list[Any]]:
    """The line of a message, with markers in the place of its payloads, and these. TypeError if orjson refuses it."""
    line = orjson.dumps(message, encoding.default, options)
    payloads = encoding.take_payloads()
    if may_hide_floats(line) and (tagged := encoding.with_tagged_floats(message)) is not message:
        line = orjson.dumps(tagged, encoding.default, options)
        payloads = encoding.take_payloads()
    return line, payloads


def may_hide_floats(line: bytes) -> bool:
    """Whether there is a null in a text, which orjson also writes for NaN and the infinities."""
    return _LETTER_OF_NULL in line and line.rfind(_NULL) >= 0  # `find` takes two to four times as long


def line_end_error() -> EncodeError:
    """A raw line end can only come out of an orjson.Fragment of the user's, and would end the message."""
    return EncodeError("an orjson.Fragment with a line end has no form on the wire")


def _spliced(line: bytes, payloads: list[Any], *, binary: bool) -> Encoded:
    """The line with the payloads in the place of the markers: attached where that may be, or their base64."""
    if LINE_END in line:
        raise line_end_error()
    if not payloads:
        return line
    pieces = line.split(b"\x00")
    if len(pieces) != len(payloads) + 1:
        raise EncodeError("an orjson.Fragment with a NUL has no form on the wire")
    keep_freed_memory()
    if binary and len(payloads) <= ATTACHED_MAX and not any(map(_may_stand_for_payload, pieces)):
        return AttachedMessage(pieces, payloads)
    parts = [pieces[0] + b'"']
    for data, piece in zip(payloads, pieces[1:], strict=True):
        parts += _base64().encode(data), b'"' + piece + b'"'
    parts[-1] = parts[-1][:-1]
    return MessageParts(parts)


def _may_stand_for_payload(piece: bytes) -> bool:
    """Whether the receiver of a frame might take something in this JSON for a payload that it is not."""
    return b'$bin"' in piece or b"\\u00" in piece


@functools.cache
def _base64() -> Any:
    from . import base64

    return base64


# -- the exact way ----------------------------------------------------------------------------------------------------


class _Refused(Exception):
    """A value that cannot be encoded, and the way to it from the inside out."""

    def __init__(self, reason: str, cause: BaseException | None = None) -> None:
        super().__init__(reason)
        self.cause = cause
        self.path: list[str] = []


def _serialize_exactly(message: object, shared: Encoding) -> Encoded:
    import msgspec

    payloads: list[Any] = []
    try:
        line = msgspec.json.encode(_plain(message, shared.with_payloads(payloads)))
    except _Refused as refused:
        where = "".join(reversed(refused.path))
        raise EncodeError(f"{refused} - at `${where}`" if where else str(refused)) from refused.cause
    except RecursionError:
        raise EncodeError("a value is nested too deep, or contains itself") from None
    except (TypeError, ValueError, OverflowError) as error:  # a tzinfo of the user's that fails, say
        raise EncodeError(f"a value has no form on the wire: {error}") from error
    return _spliced(line, payloads, binary=False)


def _plain(value: Any, encoding: Encoding) -> Any:
    """The value as data that msgspec writes by itself."""
    kind = type(value)
    while kind not in (dict, list, tuple):
        if kind in _PLAIN or (kind is float and isfinite(value)):
            return value
        if kind is str:
            return _checked_str(value)
        if kind is int:
            return _checked_int(value)
        if kind is orjson.Fragment:
            import msgspec

            return msgspec.Raw(orjson.dumps(value))
        try:
            value = encoding.default(value)
        except EncodeError as error:
            raise _Refused(str(error), error.__cause__) from None
        kind = type(value)
    if kind is dict:
        return _plain_dict(value, encoding)
    result: list[Any] = []
    for position, member in enumerate(value):
        try:
            result.append(_plain(member, encoding))
        except _Refused as refused:
            refused.path.append(f"[{position}]")
            raise
    return result


def _plain_dict(value: dict[Any, Any], encoding: Encoding) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for key, member in value.items():
        plain_key = _plain_key(key, encoding)
        try:
            result[plain_key] = _plain(member, encoding)
        except _Refused as refused:
            refused.path.append(f".{shortened(str(plain_key))}")
            raise
    if len(result) != len(value):
        raise _Refused("a dict whose keys are the same as text has no form on the wire")
    return result


def _plain_key(key: Any, encoding: Encoding) -> str:
    """The text of a key, as msgspec writes it. Numbers and times are keys too, None, bools and bytes are none."""
    if isinstance(key, str):
        return _checked_str(str.__str__(key))
    import msgspec

    if key is not None and not isinstance(key, bool | bytes):
        for form in (lambda: key, lambda: encoding.default(key)):
            try:
                return msgspec.json.encode({form(): None}).decode()[2:-7]
            except (TypeError, ValueError):  # not hashable, no key, too many digits
                pass
    raise _Refused(f"a dict with a key of type {type_name(type(key))} has no form on the wire")


def _checked_str(text: str) -> str:
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        raise _Refused("a str with a lone surrogate has no form on the wire") from None
    return text


def _checked_int(number: int) -> int:
    try:
        str(number)
    except ValueError as error:  # over 4,300 digits
        raise _Refused(f"an int has no form on the wire: {error}") from None
    return number
