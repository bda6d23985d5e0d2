"""The codec: rich values to JSON and back, with the types that the user registered.

Owns the table of tags. The table of encoders is in `encoders`, how a message becomes bytes in `encoding`, hints are in
`find_hint`, and each kind of value has a module of its own. Knows no method, message or connection.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import orjson

from ..errors import EncodeError
from ..limits import DEFAULT_LIMITS, Limits
from ..wire.buffers import Encoded
from ..wire.messages import LONG
from . import payloads
from .check_count import counting
from .encoders import find_encoder, is_built_in
from .encoding import (
    LINE_END,
    Encoder,
    Encoding,
    line_end_error,
    may_hide_floats,
    serialize_again,
    serialize_attached,
)
from .find_hint import RegisteredType, find_rich_hint
from .image_budget import ImageBudget, ImageLimits, reading
from .options import ImageOptions, ImageSettings
from .payloads import Attachment
from .rich_hint import QUOTED_TAG_KEY, TAG_KEY, RichHint, shortened, type_name
from .scalars import FLOAT_TAG, QUOTED_FLOAT_TAG

__all__ = ["TAG_KEY", "Codec"]

#: tag -> (module of this package, decoder)
_TAGS = {
    "bytes": ("binary", "decode_bytes"),
    "complex": ("scalars", "decode_complex"),
    "float": ("scalars", "decode_float"),
    "image": ("image", "decode_image"),
    "ndarray": ("ndarray", "decode_array"),
}
#: The same for values of packages that need not be installed. A type of the user's with such a tag comes first.
_OPTIONAL_TAGS = {
    "arrow": ("ext.tables", "decode_table"),
    "pandas": ("ext.tables", "decode_table"),
    "polars": ("ext.tables", "decode_table"),
    "sparse": ("ext.sparse", "decode_sparse"),
}
#: The characters of the tag key, written as JSON escapes.
_ESCAPED_KEY = re.compile(rb"\\u00(?:24|74|79|70|65)")
_DOLLAR, _BACKSLASH = b"$\\"
_NUMBERED = b"\\u00"
#: Types of which parts may have to be decoded, or must not be there.
_LOOKED_AT = frozenset({dict, list, Attachment})
#: The tags of what has a budget.
_BUDGETED = tuple(f'"{tag}"'.encode() for tag in ("image", *_OPTIONAL_TAGS))
#: Classes that are seen are remembered up to this number, so that classes made in a loop do not fill the memory.
_MAX_CLASSES = 1000
_CHEAPEST = ImageOptions()


class Codec:
    """Writes messages, and finds and reads the tagged objects in them.

    Register types before the codec is used; after that it may be used from several threads at once.

    Args:
        images: how images are sent.
        max_image_pixels: images with more are refused, before their pixels are decoded.
        max_message_pixels: the same for all images of a message together; as many as one may have, if that is more.
        max_image_file: bytes of an image file that is sent as it is; larger ones are not read.
        max_checked_values: values of a message that are checked one by one, in Python; with more it is refused.
        ignored_metadata: classes whose objects may stand in `Annotated` and mean nothing here; others that are not
            understood are refused when a function is registered.

    Raises:
        ImportError: images are to be sent as AVIF, and Pillow is one without it.
        TypeError: `ignored_metadata` has something else than classes.
    """

    def __init__(
        self,
        *,
        images: ImageOptions = _CHEAPEST,
        max_image_pixels: int = DEFAULT_LIMITS.max_image_pixels,
        max_message_pixels: int = DEFAULT_LIMITS.max_message_pixels,
        max_image_file: int = DEFAULT_LIMITS.max_message_size,
        max_checked_values: int = DEFAULT_LIMITS.max_checked_values,
        ignored_metadata: Iterable[type] = (),
    ) -> None:
        self.ignored_metadata = tuple(ignored_metadata)
        for each in self.ignored_metadata:
            if not isinstance(each, type):
                raise TypeError(f"ignored_metadata has classes, got {each!r}")
        if images.format == "avif":
            from .image_files import avif_opener

            avif_opener()
        self.images = images
        self.max_checked_values = max_checked_values
        #: What the images of one message may cost.
        self.image_limits = ImageLimits(
            max_image_pixels, max(max_image_pixels, max_message_pixels), images.format == "avif"
        )
        self._by_class: dict[type, RegisteredType] = {}
        self._by_tag: dict[str, RegisteredType] = {}
        self._registered_encoders: dict[type, Encoder] = {}
        self._encoders: dict[type, Encoder] = {}
        self._decoders: dict[str, Callable[[dict[str, Any], ImageBudget | None], object]] = {}
        self._options = orjson.OPT_PASSTHROUGH_DATACLASS
        image_settings = ImageSettings(images, max_image_file)
        self._encoding = Encoding(self._encoder_of, image_settings, registered=self._by_class)
        self._default = self._encoding.default
        #: For messages to peers that take binary frames, while no such message is written.
        self._binary_encoding: Encoding | None = None

    @classmethod
    def of(cls, limits: Limits) -> Codec:
        """One without types of the user's, with the limits of a server or a client."""
        return cls(
            max_image_pixels=limits.max_image_pixels,
            max_message_pixels=limits.max_message_pixels,
            max_image_file=limits.max_message_size,
            max_checked_values=limits.max_checked_values,
        )

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
        if not isinstance(cls, type):
            raise TypeError(f"expected a class, got {cls!r}")
        if not isinstance(tag, str) or not tag:
            raise TypeError(f"a tag is a string that is not empty, got {tag!r}")
        if is_built_in(cls):
            raise ValueError(f"{type_name(cls)} is built in")
        if issubclass(cls, enum.Enum):
            raise ValueError(f"{type_name(cls)} is an Enum: its values are sent in place of its members")
        if cls in self._by_class:
            raise ValueError(f"{type_name(cls)} is registered already, as {self._by_class[cls].tag!r}")
        if tag in _TAGS or tag in self._by_tag:
            raise ValueError(f"the tag {tag!r} is taken")
        self._by_class[cls] = self._by_tag[tag] = registered = RegisteredType(cls, tag, encode, decode)
        self._registered_encoders[cls] = _encoder_for(registered)
        self._encoders.clear()
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
            EncodeError: something in it has no form on the wire; the text says what and where.
        """
        if binary:
            # Another thread may be using it.
            encoding, self._binary_encoding = self._binary_encoding, None
            if encoding is None:
                encoding = self._encoding.with_payloads([], binary=True)
            try:
                return serialize_attached(message, encoding, self._encoding, self._options)
            finally:
                self._binary_encoding = encoding
        try:
            line = orjson.dumps(message, self._default, self._options)
        except TypeError as error:
            return serialize_again(message, error, self._encoding, self._options)
        if may_hide_floats(line) and (tagged := self._encoding.with_tagged_floats(message)) is not message:
            line = orjson.dumps(tagged, self._default, self._options)
        if LINE_END in line:
            raise line_end_error()
        return line

    def serialize_plain(self, message: object) -> Encoded:
        """As `serialize`, for a message that has neither a rich value in it, nor a float, nor a Fragment."""
        try:
            return orjson.dumps(message)
        except TypeError:  # an integer over 64 bits, half a character
            return self.serialize(message)

    def parse(self, line: bytes, limits: Limits | None = None) -> tuple[Any, bytes]:
        """A message of any length as JSON data, payloads left for `decode` as they are, and the line without them.

        Args:
            limits: `max_values` and `max_json_size` that it may have; None: any.

        Raises:
            payloads.OverLimit: it has more; it was not parsed. (An `orjson.JSONDecodeError`, too.)
            orjson.JSONDecodeError: it is not JSON.
        """
        return payloads.parse(line, limits)

    def decode(self, value: object) -> object:
        """Plain JSON data with each tagged object replaced by its value; unknown tags stay, their insides are decoded.

        The data itself is not changed. What has no tagged object in it is given back as it is. It is one message, as
        far as the limits of images are concerned, unless it is part of one that is being read.

        Raises:
            ValueError: an object with a known tag is wrong; the text ends with the path, "- at `$.a[3]`".
            DecodeElsewhere: it is part of a message whose images are not to be decoded in this thread.
        """
        try:
            return self._decoded(value, [])
        except _MisplacedError as error:
            where = "".join(reversed(error.path))
            raise ValueError(f"{error} - at `${where}`") from error.__cause__
        except RecursionError:
            raise ValueError("the value is nested too deep") from None

    def holds_tags(self, line: bytes | bytearray) -> bool:
        """True if there may be a tagged object in this JSON text. Takes a few passes at the speed of memory at most."""
        # One byte first: finding it takes a thirtieth of the time, and most messages have none.
        if _DOLLAR in line and (QUOTED_TAG_KEY in line or type(line) is payloads.FrameLine):
            return True
        if _BACKSLASH not in line:
            return False
        # In a long line to look at each escape would take longer than to look at its values.
        return _NUMBERED in line if len(line) >= LONG else _ESCAPED_KEY.search(line) is not None

    def holds_floats(self, line: bytes | bytearray) -> bool:
        """True if a NaN or an infinity may be among the tagged objects in this JSON text."""
        return QUOTED_FLOAT_TAG in line or (_BACKSLASH in line and self.holds_tags(line))

    def holds_images(self, line: bytes | bytearray) -> bool:
        """True if an image or a table may be among the tagged objects in this JSON text."""
        return _BACKSLASH in line or any(name in line for name in _BUDGETED)

    def image_weight(self, value: object) -> int:
        """About how many bytes of memory the images in plain JSON data take at most while they are decoded."""
        from .image import image_weight  # only where there are images, since it imports Pillow

        return image_weight(value, self.image_limits)

    def rich_hint(self, hint: object) -> RichHint | None:
        """Find the rich type that a hint names; None for any other hint.

        Raises:
            TypeError: the hint can never be met, such as an array of objects.
        """
        return find_rich_hint(hint, self._by_class, image_limits=self.image_limits, decode=self.decode)

    def _encoder_of(self, cls: type) -> Encoder:
        encoder = self._encoders.get(cls)
        if encoder is None:
            encoder = find_encoder(cls, self._registered_encoders)
            if len(self._encoders) >= _MAX_CLASSES:
                self._encoders.clear()
            self._encoders[cls] = encoder
        return encoder

    def _decoded(self, value: Any, begun: list[ImageBudget]) -> Any:
        """`decode` without the path; containers are copied only where something in them changes.

        Args:
            begun: the budget of the images, once one was found.
        """
        if type(value) is list:
            places: Any = enumerate(value)
        elif type(value) is dict:
            tag = value.get(TAG_KEY)
            if type(tag) is str and (tag in self._by_tag or tag in _TAGS or tag in _OPTIONAL_TAGS):
                return self._from_tag(tag, value, begun)
            places = value.items()
        elif type(value) is Attachment:
            raise _MisplacedError("a payload stands here by itself, in no tagged object, and no hint takes one")
        else:
            return value
        result = value
        for place, member in places:
            if type(member) in _LOOKED_AT:
                try:
                    decoded = self._decoded(member, begun)
                except _MisplacedError as error:
                    error.path.append(f"[{place}]" if type(place) is int else f".{shortened(place)}")
                    raise
                if decoded is not member:
                    if result is value:
                        result = value.copy()
                    result[place] = decoded
        return result

    def _from_tag(self, tag: str, tagged: dict[str, Any], begun: list[ImageBudget]) -> object:
        if (count := counting.get()) is not None and tag != FLOAT_TAG:
            count.take()
        if tag in self._by_tag:
            return self._from_user(self._by_tag[tag], tagged, begun)
        return self._built_in(tag, tagged, begun)

    def _built_in(self, tag: str, tagged: dict[str, Any], begun: list[ImageBudget]) -> object:
        decoder = self._decoders.get(tag)
        if decoder is None:
            module, name = _TAGS.get(tag) or _OPTIONAL_TAGS[tag]
            decoder = self._decoders[tag] = getattr(import_module(f".{module}", __package__), name)
        if not begun and (tag == "image" or tag in _OPTIONAL_TAGS):
            begun.append(reading.get() or ImageBudget(self.image_limits))
        try:
            return decoder(tagged, begun[0] if begun else None)
        except ValueError as error:
            raise _MisplacedError(str(error)) from error

    def _from_user(self, registered: RegisteredType, tagged: dict[str, Any], begun: list[ImageBudget]) -> object:
        if registered.tag in _OPTIONAL_TAGS:
            tagged = payloads.with_strings(tagged)  # what is "data" there may be anything here
        parts = self._decoded({name: part for name, part in tagged.items() if name != TAG_KEY}, begun)
        try:
            return registered.decode(parts)
        except RecursionError:
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            raise _MisplacedError(f"{registered.tag}: {reason}") from error


class _MisplacedError(ValueError):
    """A tagged object is wrong; `path` is the way to it, from the inside out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []


def _encoder_for(registered: RegisteredType) -> Encoder:
    def encode(value: Any, encoding: Encoding) -> object:
        encoding.expect_payload()
        parts = registered.encode(value)
        if not isinstance(parts, dict) or TAG_KEY in parts:
            raise EncodeError(f"the encoder for {type_name(registered.cls)} must give a dict without {TAG_KEY!r}")
        return {TAG_KEY: registered.tag, **parts}

    return encode
