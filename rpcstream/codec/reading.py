"""Reads the rich values of one message: counts what they cost, and refuses a message that costs too much."""

from __future__ import annotations

from math import inf
from typing import Any

from ..errors import MessageTooLarge
from .image_formats import FORMATS
from .rich_hint import shortened

#: Pixels that every image counts for at least: opening a file of one pixel takes as long as decoding so many.
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
        """An image brings so many bytes besides its pixels. Raises TooMuchImage if the message has too many."""
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
