"""What the images and tables of one message may cost, and what of that may be done in the event loop.

Owns the sums. A budget is begun before the values of a message are read, and kept in a context variable, since hints
are called without further arguments. Knows no file format.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from .rich_hint import shortened

#: Pixels that every image counts for at least: opening a file of one pixel takes as long as decoding so many.
LEAST = 4096

#: Passes over all the pixels of a message: a progressive JPEG costs one for each scan. Encoders write 6 to 14 scans, so
#: an image of the largest size has room for them; and passes of 64 megapixels that say nothing take 25 ms each.
PASSES = 16

#: What a raw pixel costs, which is copied and not decoded: 640 x 480 take 0.15 ms.
COPYING = 1 / 16

#: Pixels that are decoded in the event loop, for one call: 256 x 256. Depending on format and content they take 0.3 to
#: 5 ms, and going to a thread and back some 0.15 ms.
INLINE_PIXELS = 65_536

#: Bytes of a file that is opened in the event loop: the text in a PNG may be a thousand times larger.
INLINE_BYTES = 32 * 1024

#: The work on all tables of a message, in columns: each takes pandas up to 0.1 ms, all some seconds, in a thread. What
#: else counts as how many columns is said where it is taken.
MAX_TABLE_WORK = 65_536

#: The work on tables that is done in the event loop, for one call: some milliseconds.
INLINE_TABLE_WORK = 256

#: Bytes that a pixel takes in Pillow's memory, in the modes that take most; and while a file is decoded. (libwebp has
#: two canvases, the pixels of the frame, and what it gives is copied twice; a progressive JPEG has its coefficients.)
PIXEL_BYTES, DECODING_BYTES = 4, 16

#: Bytes of metadata (text, color profiles, EXIF) of all images in one message, after decompression. A photo has about
#: 100 KB; compressed text in a PNG can grow a thousandfold.
MAX_METADATA = 16 * 1024 * 1024


class ImageLimits(NamedTuple):
    """Pixels of one image, and of all images of a message together; and whether AVIF files are read."""

    pixels: int
    message_pixels: int
    reads_avif: bool = False


class TooMuchImage(ValueError):
    """An image, or all images of a message together, are over a limit."""


class DecodeElsewhere(Exception):
    """Raised where more pixels or tables must be decoded than may be in this thread; nothing is wrong with them."""


class ImageTotal:
    """The cost of all images of a message that is read part by part, such as a batch. For one thread.

    Attributes:
        pixels: as they count, at least `LEAST` an image.
        metadata: bytes.
        tables: the work on these.
        is_tagged: there may be tagged objects in the message.
        has_images: some of these may be images or tables.
    """

    __slots__ = ("has_images", "is_tagged", "metadata", "pixels", "tables", "work")

    def __init__(self, *, is_tagged: bool = False, has_images: bool = True) -> None:
        self.pixels = self.work = self.metadata = self.tables = 0
        self.is_tagged = is_tagged
        self.has_images = has_images

    def __bool__(self) -> bool:
        return self.is_tagged


class ImageBudget:
    """The cost of the images of one message, or of a part of it, as they are decoded. For one thread at a time.

    Args:
        total: of the message, where this is for one part of it. `close` adds to it.
        here: pixels that may be decoded in this thread before `DecodeElsewhere` is raised; None: all.
    """

    __slots__ = ("_before", "_dropped", "_total", "here", "limits", "metadata", "pixels", "tables", "work")

    def __init__(self, limits: ImageLimits, total: ImageTotal | None = None, *, here: int | None = None) -> None:
        self.limits = limits
        self._total = total
        self._before = (0, 0, 0, 0)
        if total is not None:
            self._before = (total.pixels, total.work, total.metadata, total.tables)
        self.here = here
        self.pixels = self.work = self.metadata = self.tables = self._dropped = 0

    @property
    def size(self) -> int:
        """Bytes of memory that the images hold."""
        return (self.pixels - self._dropped) * PIXEL_BYTES + self.metadata

    def check_file(self, size: int) -> None:
        """A file of so many bytes is to be opened.

        Raises:
            DecodeElsewhere: not in this thread.
        """
        if self.here is not None and (self.here <= 0 or size > INLINE_BYTES):
            raise DecodeElsewhere

    def check_size(self, width: int, height: int) -> None:
        """Raises TooMuchImage if one image must not have so many pixels."""
        limit = self.limits.pixels
        if width > limit or height > limit or width * height > limit:
            shown = f"{shortened(str(width))} x {shortened(str(height))}"
            raise TooMuchImage(f"image: {shown} pixels, the limit is {limit} (max_image_pixels)")

    def take_pixels(self, size: tuple[int, int], passes: float = 1) -> None:
        """Charge an image that is about to be decoded, in this many passes over its pixels.

        Raises:
            TooMuchImage: it, or all of the message together, are over a limit.
            DecodeElsewhere: not in this thread.
        """
        self.check_size(*size)
        count = max(size[0] * size[1], LEAST)
        work = int(count * passes)
        limit = self.limits.message_pixels
        if self._before[0] + self.pixels + count > limit:
            raise TooMuchImage(
                f"image: the images of the message have more than {limit} pixels together (max_message_pixels)"
            )
        if self._before[1] + self.work + work > PASSES * limit:
            raise TooMuchImage(
                f"image: decoding {size[0]} x {size[1]} pixels in {passes:.0f} passes would take too long"
            )
        if self.here is not None and self.work + work > self.here:
            raise DecodeElsewhere
        self.pixels += count
        self.work += work

    def take_metadata(self, size: int) -> None:
        """An image brings so many bytes besides its pixels: text, profiles, EXIF.

        Raises:
            TooMuchImage: all of the message together are over the limit.
        """
        self.metadata += size
        if self._before[2] + self.metadata > MAX_METADATA:
            raise TooMuchImage(f"image: text, profiles and EXIF of the images take more than {MAX_METADATA} bytes")

    def take_table(self, work: int) -> None:
        """So much work is to be done on a table.

        Raises:
            ValueError: all of the message together take too much.
            DecodeElsewhere: not in this thread.
        """
        self.tables += work
        if self._before[3] + self.tables > MAX_TABLE_WORK:
            raise ValueError(
                "the tables of the message are too many, or have too many columns: send fewer in a message"
            )
        if self.here is not None and self.tables > INLINE_TABLE_WORK:
            raise DecodeElsewhere

    def reduced(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        """An image of one size was decoded, and one of another size is kept of it."""
        self._dropped += max(before[0] * before[1], LEAST) - max(after[0] * after[1], LEAST)

    def again(self) -> None:
        """Begin anew, since the values are read once more."""
        self.pixels = self.work = self.metadata = self.tables = self._dropped = 0

    def close(self) -> None:
        """Add the cost of this part to that of the message."""
        if self._total is not None:
            self._total.pixels += self.pixels
            self._total.work += self.work
            self._total.metadata += self.metadata
            self._total.tables += self.tables


#: The budget of the values that are being read in this context; None if none has begun.
reading: ContextVar[ImageBudget | None] = ContextVar("rpcstream_image_budget", default=None)


@contextmanager
def image_budget(limits: ImageLimits, total: ImageTotal | None = None) -> Iterator[None]:
    """Begin a budget for the values that are read in the block, unless one has begun already."""
    if reading.get() is not None:
        yield
        return
    budget = ImageBudget(limits, total)
    token = reading.set(budget)
    try:
        yield
    finally:
        reading.reset(token)
        budget.close()
