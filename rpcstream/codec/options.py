"""Options for arrays and images. Importing this module imports neither numpy nor Pillow."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from types import EllipsisType
from typing import Literal

#: Whether large payloads travel as raw bytes; "copy": and those in shared memory are copied where they arrive.
Binary = bool | Literal["copy"]


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """The format of images that are sent.

    Images that do not fit the format are sent as PNG, and images that do not fit PNG as raw pixels. So only a lossy
    format loses information. An opened image whose pixels nothing has read is sent as its file, if the file has this
    format and no quality is set.

    Attributes:
        format: "png" (lossless), "jpeg", "webp", "avif" (smallest and slowest; both ends need this option, and Pillow
            11.3 or later with AVIF), or "raw" pixels (fastest and largest). None: the format that costs the least: the
            file of an unread image, raw pixels in binary frames, otherwise fast PNG. Images with a palette, transparent
            colour, colour profile or EXIF are then PNG.
        quality: 1 to 100, for "jpeg", "avif" and lossy "webp"; None is Pillow's default (75, 75 and 80).
        lossless: for "webp".

    Raises:
        ValueError: an option is out of range, or does not apply to the format.
    """

    format: Literal["png", "jpeg", "webp", "avif", "raw"] | None = None
    quality: int | None = None
    lossless: bool = False

    def __post_init__(self) -> None:
        if self.format not in (None, "png", "jpeg", "webp", "avif", "raw"):
            raise ValueError(f"format must be 'png', 'jpeg', 'webp', 'avif', 'raw' or None, got {self.format!r}")
        if self.lossless and self.format != "webp":
            raise ValueError(f"lossless is for 'webp' only, the format is {self.format!r}")
        if self.quality is not None:
            if self.format not in ("jpeg", "webp", "avif") or self.lossless:
                raise ValueError("quality is for 'jpeg', 'avif' and lossy 'webp' only")
            if type(self.quality) is not int or not 1 <= self.quality <= 100:
                raise ValueError(f"quality must be an integer from 1 to 100, got {self.quality!r}")


@dataclass(frozen=True)
class ImageFile:
    """An image that is sent as its file, byte for byte, without decoding. Each call reads the file.

    You can also send a `pathlib.Path` or an open binary file. The file must be PNG, JPEG, WebP or GIF. Open other
    formats with `PIL.Image.open`.

    Args:
        path: the path of a regular file.
    """

    path: str | os.PathLike[str]


@dataclass(frozen=True)
class MaxSide:
    """The longest side of an image, in a hint: `Annotated[Image.Image, MaxSide(1024)]`.

    Larger images are reduced, and keep their proportions. A JPEG is decoded at a reduced size, which saves up to 60 %
    of the time.

    Args:
        pixels: the length of the longer side.

    Raises:
        ValueError: `pixels` is not an int of at least 1.
    """

    pixels: int

    def __post_init__(self) -> None:
        if type(self.pixels) is not int or self.pixels < 1:
            raise ValueError(f"a side is an int of at least 1, got {self.pixels!r}")


@dataclass(frozen=True, init=False, repr=False)
class Shape:
    """The shape of an array, in a hint: `Annotated[NDArray[np.float32], Shape(None, 3)]`.

    Args:
        dims: the length of each axis; None for any length; one `...` for any number of axes.
        writable: True: copy an array that arrives in shared memory, so that you can change it.

    Raises:
        ValueError: a dimension is negative or of another type, or there are two `...`.
    """

    dims: tuple[int | EllipsisType | None, ...]
    writable: bool

    def __init__(self, *dims: int | EllipsisType | None, writable: bool = False) -> None:
        known = all(dim is None or dim is Ellipsis or (type(dim) is int and dim >= 0) for dim in dims)
        if not known or dims.count(Ellipsis) > 1:
            raise ValueError(f"a dimension is an int that is not negative, None, or once ..., got {dims!r}")
        object.__setattr__(self, "dims", dims)
        object.__setattr__(self, "writable", writable)

    def matches(self, shape: tuple[int, ...]) -> bool:
        """True if an array of this shape fits."""
        dims = self.dims
        if Ellipsis in dims:
            at = dims.index(Ellipsis)
            dims = dims[:at] + (None,) * (len(shape) - len(dims) + 1) + dims[at + 1 :]
        return len(dims) == len(shape) and all(dim in (None, size) for dim, size in zip(dims, shape, strict=True))

    def __str__(self) -> str:
        names = ["*" if dim is None else "..." if dim is Ellipsis else str(dim) for dim in self.dims]
        return f"({names[0]},)" if len(names) == 1 else f"({', '.join(names)})"

    def __repr__(self) -> str:
        parts = ["..." if dim is Ellipsis else repr(dim) for dim in self.dims]
        return f"Shape({', '.join(parts + ['writable=True'] * self.writable)})"


def is_measure(each: object) -> bool:
    """True for what says in a hint how large an array or image is; also for its bare class, which is a mistake."""
    return isinstance(each, Shape | MaxSide) or each is Shape or each is MaxSide


#: The formats that every codec reads; AVIF is read by those that send it.
FORMATS = ("png", "jpeg", "webp", "gif")
AVIF = "avif"

#: How a file begins, by the format's name.
_BEGINNINGS = {
    "png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "jpeg": re.compile(rb"\xff\xd8\xff"),
    "webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "gif": re.compile(rb"GIF8"),
    AVIF: re.compile(rb"....ftypavi[fs]", re.DOTALL),
}


def format_of(data: bytes) -> str | None:
    """The name of the format that a file has, by its first bytes; None if it has none of those on the wire."""
    return next((name for name, begin in _BEGINNINGS.items() if begin.match(data)), None)
