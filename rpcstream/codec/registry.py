"""The codec: rich values to JSON and back, with the types that the user registered.

The types are in the table of `rich_type`, how a message becomes bytes in `encoding`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Set
from typing import Any

import orjson

from ..errors import EncodeError, MessageTooLarge
from ..limits import DEFAULT_LIMITS, Limits
from ..wire.buffers import Encoded
from .attachments import Attachment, FrameLine
from .encoding import LINE_END, NULL, Encoding
from .image_formats import AVIF, FORMATS
from .options import ImageOptions
from .reading import DecodeElsewhere, Reading
from .rich_hint import QUOTED_TAG_KEY, TAG_KEY, RegisteredHint, shortened, type_name
from .rich_type import RichType, TypeTable
from .scalars import FLOAT_TAG

__all__ = ["TAG_KEY", "Codec"]

_DOLLAR, _BACKSLASH = b"$\\"
#: How each character of the tag key begins that is written by its number.
_ESCAPED = b"\\u00"
#: Types of which parts may have to be decoded, or must not be there.
_LOOKED_AT = frozenset({dict, list, Attachment})
_CHEAPEST = ImageOptions()


class Codec:
    """Writes messages, and finds and reads the tagged objects in them.

    Register types before the codec is used; after that it may be used from several threads at once.

    Args:
        images: how images are sent.
        max_image_pixels: images with more are refused, before their pixels are decoded; also messages, if all their
            images together have more.
        max_image_file: bytes of an image file that is sent as it is; larger ones are not read.
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
            raise ValueError(f"{type_name(cls)} is an Enum: its values are sent in place of its members")
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
        written: Encoded = line
        if line.rfind(NULL) >= 0 or LINE_END in line or encoding.payloads:
            written = encoding.finished(line, message)
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
            raise EncodeError(f"the encoder for {type_name(cls)} must give a dict without {TAG_KEY!r}")
        return {TAG_KEY: tag, **parts}

    return tagged
