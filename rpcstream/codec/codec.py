"""The codec: rich values to JSON and back, with the types that the user registered.

`Encoding` writes a message: by orjson with large payloads spliced in, or value by value, exactly, by msgspec. orjson
writes small payloads as strings. For a large one it writes a NUL, a byte that it never writes otherwise, and the
payload is put in that place afterwards: 20 MB never pass through a JSON string. Towards a peer that takes binary frames
the payload stays bytes, and is attached to the message. What orjson refuses (keys that are no strings, integers over 64
bits, nesting over 254) is written by msgspec. So is a message with NaN or an infinity in it, for which orjson writes
null: these are only looked for where there is a null in the text.

`Reading` counts what the rich values of one message cost, and refuses a message that costs too much. The types are in
the table of `rich_type`.
"""

from __future__ import annotations

import datetime
import enum
import re
from collections.abc import Callable, Set
from math import inf, isfinite
from typing import Any

import orjson

from ..errors import EncodeError, MessageTooLarge
from ..limits import DEFAULT_LIMITS, Limits
from ..wire.binary_frame import ATTACHED_MAX, ATTACHED_MIN
from ..wire.buffers import AttachedMessage, Encoded, MessageParts
from .attachments import Attachment, FrameLine, keep_freed_memory
from .options import AVIF, FORMATS, ImageOptions
from .rich_hint import FLOAT_TAG, QUOTED_TAG_KEY, TAG_KEY, RegisteredHint, shortened, type_name
from .rich_type import RichType, TypeTable

# -- the codec --------------------------------------------------------------------------------------------------------

_DOLLAR, _BACKSLASH = b"$\\"
#: How each character of the tag key begins that is written by its number.
_ESCAPED = b"\\u00"
#: Types of which parts may have to be decoded, or must not be there.
_LOOKED_AT = frozenset({dict, list, Attachment})
_CHEAPEST = ImageOptions()


class Codec:
    """Encodes and decodes rich values in messages.

    Register types before the codec is used. After that, several threads may use it at the same time.

    Args:
        images: how images are sent.
        max_image_pixels: the most pixels of an image, and of all images in a message. More are refused before decoding.
        max_image_file: the most bytes of an image file that is sent unchanged.
    """

    def __init__(
        self,
        *,
        images: ImageOptions = _CHEAPEST,
        max_image_pixels: int = DEFAULT_LIMITS.max_image_pixels,
        max_image_file: int = DEFAULT_LIMITS.max_message_size,
    ) -> None:
        self.images = images
        if images.format == AVIF:
            from .image_files import avif_opener  # imports Pillow

            avif_opener()
        self.max_image_pixels = max_image_pixels
        self._types = TypeTable()
        self._options = orjson.OPT_PASSTHROUGH_DATACLASS
        self._max_image_file = max_image_file
        #: For the next message, while none is written: another thread may be writing one, or an encoder of the user's.
        self._encoding: Encoding | None = None

    @classmethod
    def of(cls, limits: Limits) -> Codec:
        """One without types of the user's, with the limits of a server or a client."""
        return cls(max_image_pixels=limits.max_image_pixels, max_image_file=limits.max_message_size)

    def register(
        self,
        cls: type,
        tag: str,
        *,
        encode: Callable[[Any], dict[str, Any]],
        decode: Callable[[dict[str, Any]], Any],
    ) -> None:
        """Send values of a class, and of its subclasses, as `{"$type": tag, ...}`.

        Args:
            cls: the class. Its values are found anywhere in params and results, and it may stand in hints.
            tag: the name on the wire.
            encode: from a value to a dict with names as keys. Its parts may be rich values themselves.
            decode: from such a dict, its rich parts already decoded, to a value. What it raises becomes a ValueError
                for the peer, so its text should be fit to be read there.

        Raises:
            ValueError: class or tag is taken, or is built in.
            TypeError: `cls` is no class, or `tag` no string.
        """
        if not isinstance(cls, type) or not isinstance(tag, str) or not tag:
            raise TypeError(f"expected a class, and a tag that is not empty, got {cls!r} and {tag!r}")
        if issubclass(cls, enum.Enum) and cls is not enum.Enum:
            raise ValueError(f"{type_name(cls)} is an Enum, which is sent as its value and cannot be registered")
        self._types.add(
            cls,
            RichType(
                *(tag, "", (cls,), _user_encoder(cls, tag, encode), lambda parts, _: decode(parts)),
                lambda _: RegisteredHint(cls, tag),
                takes_values=True,
            ),
        )
        if issubclass(cls, str | int | list | dict):
            self._options |= orjson.OPT_PASSTHROUGH_SUBCLASS

    def dumps(self, message: object) -> bytes:
        """One JSON document as bytes; see `serialize`."""
        return bytes(self.serialize(message))

    def serialize(self, message: object, *, binary: bool = False) -> Encoded:
        """One JSON document without a line end in it, every rich value in it a tagged object.

        Args:
            message: of JSON data and rich values.
            binary: it goes to a peer that takes binary frames: large payloads are attached (`AttachedMessage`).

        An `orjson.Fragment` is written as it is and must be JSON without line ends.

        Raises:
            EncodeError: something in it has no form on the wire; the text says what.
        """
        encoding = self._encoding or Encoding(self._types, self.images, self._max_image_file)
        self._encoding = None
        if encoding.binary is not binary:
            encoding.set_binary(binary)
        try:
            line = orjson.dumps(message, encoding.hook, self._options)
        except TypeError as error:
            line = encoding.refused(message, error)
        if line.rfind(NULL) >= 0 or LINE_END in line:
            line = encoding.checked(line, message)
        written = encoding.spliced(line) if encoding.payloads else line
        self._encoding = encoding  # not after an exception, when it may have payloads
        return written

    def reading(
        self, here: int | None = None, whole: Reading | None = None, *, is_counted: bool = False, **options: Any
    ) -> Reading:
        """A reading, with the arguments of `Reading`. What is not counted is trusted, such as a reply at a client."""
        reading = Reading(self.max_image_pixels, here, whole, is_counted=is_counted, **options)
        if self.images.format == AVIF:
            reading.formats = (*FORMATS, AVIF)
        return reading

    def decode(self, value: object, reading: Reading | None = None, left: Set[str | None] | None = None) -> object:
        """Plain JSON data with each tagged object replaced by its value; unknown tags stay, their insides are decoded.

        The data itself is not changed. What has no tagged object in it is given back as it is.

        Args:
            reading: of the message that the value is a part of; None: it is one message.
            left: the tags of objects that stay as they are, as those of all costly types, since a hint reads them;
                None: all are decoded.

        Raises:
            ValueError: an object with a known tag is wrong; the text ends with the path, "- at `$.a[3]`".
            MessageTooLarge: it has too many tagged objects.
            DecodeElsewhere: the images of the message are not to be decoded in this thread.
        """
        try:
            return self._decoded(value, reading or self.reading(), left)
        except _MisplacedError as error:
            where = "".join(reversed(error.path))
            raise ValueError(f"{error} - at `${where}`") from error.__cause__
        except RecursionError:
            raise ValueError("the value is nested too deep") from None

    def holds_tags(self, line: bytes | bytearray) -> bool:
        """True if there may be a tagged object in this JSON text. Takes a few passes at the speed of memory at most."""
        # One byte first: finding it takes a thirtieth of the time, and most messages have none.
        if _DOLLAR in line and (QUOTED_TAG_KEY in line or type(line) is FrameLine):
            return True
        return _BACKSLASH in line and _ESCAPED in line

    def rich_type(self, cls: type) -> RichType | None:
        """The rich type that a hint of this class names; None for any other class."""
        return self._types.of_hint(cls)

    def _decoded(self, value: Any, reading: Reading, left: Set[str | None] | None) -> Any:
        """`decode` without the path; containers are copied only where something in them changes."""
        if type(value) is list:
            if _LOOKED_AT.isdisjoint(map(type, value)):
                return value
            places: Any = enumerate(value)
        elif type(value) is dict:
            tag = value.get(TAG_KEY)
            if type(tag) is str and (kind := self._types.by_tag.get(tag)) is not None:
                return self._from_tag(kind, value, reading, left)
            places = value.items()
        elif type(value) is Attachment and left is None:
            raise _MisplacedError("a payload stands here by itself, in no tagged object, and no hint takes one")
        else:
            return value
        result = value
        for place, member in places:
            if type(member) in _LOOKED_AT and not (left and type(member) is dict and member.get(TAG_KEY) in left):
                try:
                    decoded = self._decoded(member, reading, left)
                except _MisplacedError as error:
                    error.path.append(f"[{place}]" if type(place) is int else f".{shortened(place)}")
                    raise
                if decoded is not member:
                    if result is value:
                        result = value.copy()
                    result[place] = decoded
        return result

    def _from_tag(
        self, kind: RichType, tagged: dict[str, Any], reading: Reading, left: Set[str | None] | None
    ) -> object:
        if left is not None and (kind.is_costly or kind.tag in left):
            return tagged
        if kind.tag != FLOAT_TAG:
            reading.take_values(1)
        if kind.takes_values:
            tagged = self._decoded({name: each for name, each in tagged.items() if name != TAG_KEY}, reading, None)
        try:
            return kind.function("decode")(tagged, reading)
        except (RecursionError, MessageTooLarge, DecodeElsewhere):
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, ValueError) else f"{kind.tag}: {type(error).__name__}: {error}"
            raise _MisplacedError(reason) from error


class _MisplacedError(ValueError):
    """A tagged object is wrong; `path` is the way to it, from the inside out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []


def _user_encoder(cls: type, tag: str, encode: Callable[[Any], dict[str, Any]]) -> Callable[[Any, Encoding], object]:
    def tagged(value: Any, _: Encoding) -> object:
        parts = encode(value)
        if not isinstance(parts, dict) or TAG_KEY in parts:
            raise EncodeError(f"the encoder for {type_name(cls)} must return a dict without {TAG_KEY!r}")
        return {TAG_KEY: tag, **parts}

    return tagged


# -- writing ----------------------------------------------------------------------------------------------------------

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

    def checked(self, line: bytes, message: object) -> bytes:
        """The line of a message that has null or a line end in it: with NaN and the infinities."""
        if line.rfind(NULL) >= 0 and self._hides_floats(message):
            line = self._exactly(message)
        if LINE_END in line:  # only out of an orjson.Fragment of the user's, and would end the message
            raise EncodeError("an orjson.Fragment with a line end has no form on the wire")
        return line

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
        """Whether a payload of `size` more bytes can be attached and still leave room for the JSON."""
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

    def spliced(self, line: bytes) -> Encoded:
        """The line with the payloads in the place of the markers: attached where that may be, or their base64."""
        payloads, self.payloads = self.payloads, []
        pieces = line.split(_MARK)
        if len(pieces) != len(payloads) + 1:
            raise EncodeError("an orjson.Fragment with a NUL has no form on the wire")
        keep_freed_memory()
        message = AttachedMessage(pieces, payloads)
        # What the receiver of a frame might take for a payload that it is not.
        is_unclear = b'$bin"' in line or b"\\u00" in line
        if self.binary and len(payloads) <= ATTACHED_MAX and not is_unclear:
            return message
        return MessageParts(message.parts)


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


# -- reading ----------------------------------------------------------------------------------------------------------

#: The least that an image counts for (pixels): opening a file with one pixel takes as long as decoding this many.
LEAST = 4096

#: Passes over the pixels of an image that cost nothing more: a progressive JPEG takes one for each scan, and encoders
#: write 6 to 14 scans. Passes of 64 megapixels that say nothing take 25 ms each.
PASSES = 16

#: What a raw pixel costs, which is copied and not decoded: 640 x 480 take 0.15 ms.
COPYING = 1 / 16

#: Pixels that are decoded in the event loop, for one call, and bytes of the files and tables that are read there: as
#: many as an image of 256 x 256 has. Depending on format and content that takes 0.3 to 5 ms, and going to a thread and
#: back about 0.15 ms.
INLINE_PIXELS = 96 * 1024

#: Bytes that a pixel takes in Pillow's memory, in the modes that take most; and while a file is decoded. (libwebp has
#: two canvases, the pixels of the frame, and what it gives is copied twice; a progressive JPEG has its coefficients.)
PIXEL_BYTES, DECODING_BYTES = 4, 16

#: Pixels that a byte of metadata (text, color profiles, EXIF; after decompression) counts for: a message may have about
#: 16 MiB. A photo has about 100 KB; compressed text in a PNG can grow a thousandfold.
METADATA_PIXELS = 4

#: Values of one message that Python checks one by one: arrays, images, bytes, types of yours, models of pydantic, and
#: classes and unions with such. 10,000 arrays take 0.1 s, in which no other call is served. What msgspec checks in C
#: does not count, nor do lists that are checked at once.
MAX_CHECKED = 10_000

_OPTION = "max_image_pixels"
_JSON = frozenset({dict, list, str, int, float, bool, type(None)})


class TooMuchImage(ValueError):
    """An image, or all images of a message together, are over a limit."""


class DecodeElsewhere(Exception):
    """Raised where more must be decoded than may be in this thread, or in the memory that was reserved for it.

    Attributes:
        size: bytes of memory that are needed; 0 where that is not known yet.
    """

    def __init__(self, size: int = 0) -> None:
        super().__init__(size)
        self.size = size


class Reading:
    """One message while its values are read, or a part of it such as a call in a batch. For one thread at a time.

    Args:
        max_pixels: of one image, and of all images of the message together.
        here: pixels that may be decoded in this thread, before `DecodeElsewhere` is raised; None: all.
        room: bytes of memory that the images may take while they are decoded, before it is raised; None: any number.
        whole: the message, where this is a part of it: `close` adds the cost of the part.
        is_counted: there may be up to `MAX_CHECKED` values that are checked one by one, not as many as it likes.
        is_tagged: there may be tagged objects in it.

    Attributes:
        pixels: as they count, at least `LEAST` an image.
        formats: of image files that are read.
    """

    pixels = 0
    formats: tuple[str, ...] = FORMATS

    def __init__(
        self,
        max_pixels: int,
        here: int | None = None,
        whole: Reading | None = None,
        *,
        room: int | None = None,
        is_counted: bool = True,
        is_tagged: bool = True,
    ) -> None:
        self._max_pixels = max_pixels
        self._here = inf if here is None else here
        self._room = inf if room is None else room
        self.is_tagged = is_tagged
        self._left = MAX_CHECKED if is_counted else inf
        self._whole = whole

    def hook(self, kind: Any, value: Any) -> Any:
        """`dec_hook` of `msgspec.convert`: check a value that msgspec does not check itself."""
        if type(value) in _JSON:  # else it was counted when its tagged object was decoded
            self.take_values(1)
        return kind.decode(value, self)

    def take_values(self, count: int) -> None:
        """So many values are checked one by one. Raises MessageTooLarge."""
        self._left -= count
        if self._left < 0:
            raise MessageTooLarge(
                f"Message too large: it has more than {MAX_CHECKED} values that are checked one by one: send "
                "numbers as one array (ndarray), or fewer values in a call",
                {"values": MAX_CHECKED + 1, "limit": MAX_CHECKED},
            )

    @property
    def size(self) -> int:
        """Bytes of memory that the images hold."""
        return self.pixels * PIXEL_BYTES

    def spend(self, work: float, memory: int) -> None:
        """So much work (pixels, or bytes of a file) is to be done, in so much memory.

        Raises:
            DecodeElsewhere: not in this thread, or not in the memory that is reserved.
        """
        self._here -= work
        if self._here < 0 or memory > self._room:
            raise DecodeElsewhere(memory)

    def take_pixels(self, size: tuple[int, int], passes: float = 1) -> None:
        """Charge an image that is about to be decoded, in this many passes over its pixels.

        Raises:
            TooMuchImage: it, or all of the message together, are over the limit.
            DecodeElsewhere: not in this thread.
        """
        width, height = size
        # Each side by itself, so that numbers of many digits are not multiplied.
        if max(width, height) > self._max_pixels or width * height > self._max_pixels:
            shown = f"{shortened(str(width))} x {shortened(str(height))}"
            raise TooMuchImage(f"image: {shown} pixels, the limit is {self._max_pixels} ({_OPTION})")
        count = max(width * height, LEAST)
        memory = self.size + count * DECODING_BYTES
        self._charge(int(count * max(1, passes / PASSES)))
        self.spend(count * passes, memory)

    def take_metadata(self, size: int) -> None:
        """Charge `size` bytes of metadata of an image. Raises TooMuchImage if the message has too many."""
        self._charge(max(0, size - LEAST) * METADATA_PIXELS)

    def _charge(self, pixels: int) -> None:
        self.pixels += pixels
        before = self._whole.pixels if self._whole else 0
        if before + self.pixels > max(self._max_pixels, LEAST):
            raise TooMuchImage(
                f"image: the images of the message are over {self._max_pixels} pixels together; scans, text, profiles "
                f"and EXIF count as well ({_OPTION})"
            )

    def close(self) -> None:
        """Add the cost of this part to that of the message."""
        if self._whole is not None:
            self._whole.pixels += self.pixels


class ResultReading(Reading):
    """The results of handlers, which are ours: a rich value may be anything that goes out as that type."""

    def hook(self, kind: Any, value: Any) -> Any:
        return kind.accept(value, self)


RESULTS = ResultReading(0)
