"""What decoding an AVIF file costs, found in its boxes and in the headers of its coded pictures before Pillow opens it.

Owns the walk through the boxes (ISO 14496-12) and items (ISO 23008-12), and as much of AV1 as says how large the
pictures are that its decoder will make: those may be larger than the file says they are. A file of several pictures in
time is refused. Knows no tagged objects. Where Pillow has no AVIF, such files are neither read nor written.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .image_budget import ImageBudget, TooMuchImage

#: Parts (boxes, items, extents, units of AV1) that are looked at: so many, and one more for so many bytes.
_PARTS, _BYTES_A_PART = 4096, 1024
#: Bytes that libavif takes for a byte that links properties to items: a copy of the property.
_LINK = 192
#: Brands of files; those of the family are AVIF if they name it among those that they are compatible with.
_AVIF, _HEIF = (b"avif", b"avis"), (b"mif1", b"msf1")
#: Bytes at the beginning of a file that tell.
HEAD = 48
#: Units of AV1 (AV1 specification, 5.3.2): sequence header; frame header; frame.
_SEQUENCE, _FRAMES = 1, (3, 6)


def is_there() -> bool:
    """True if Pillow reads and writes AVIF: from 11.3 on, as it was built."""
    return find_spec("PIL.AvifImagePlugin") is not None and bool(import_module("PIL.AvifImagePlugin").SUPPORTED)


def is_avif(head: bytes) -> bool:
    """True if a file with these first bytes is AVIF, and no other one of the family (HEIF)."""
    return head[4:8] == b"ftyp" and (head[8:12] in _AVIF or (head[8:12] in _HEIF and b"avif" in head[16:HEAD]))


def coded_pixels(data: bytes, budget: ImageBudget) -> int:
    """Take what the file keeps besides pixels from the budget; gives the pixels of all its coded pictures together.

    Raises:
        TooMuchImage: the file has too many parts, or too much metadata.
        ValueError: it is broken, or has several pictures in time.
    """
    try:
        return _File(data, budget).coded_pixels()
    except (struct.error, IndexError) as error:
        raise ValueError("a box or a header ends too early") from error


class _File:
    def __init__(self, data: bytes, budget: ImageBudget) -> None:
        self._data = data
        self._budget = budget
        self._left = _PARTS + len(data) // _BYTES_A_PART
        #: Item -> its type; item -> pieces of (start, end).
        self._types: dict[int, bytes] = {}
        self._pieces: dict[int, list[tuple[int, int]]] = {}
        self._inside = 0  # where the box `idat` begins

    def coded_pixels(self) -> int:
        data = self._data
        for kind, start, end in self._boxes(0, len(data)):
            if kind == b"moov" or (kind == b"ftyp" and data[start : start + 4] in (b"avis", b"msf1")):
                raise ValueError("it has several pictures in time, which are not read")
            if kind == b"meta":
                self._budget.take_metadata(end - start)
                self._read_meta(start + 4, end)
        total = metadata = 0
        for item, pieces in self._pieces.items():
            size = sum(end - start for start, end in pieces)
            metadata += size
            if metadata > 2 * len(data):
                raise TooMuchImage("image: the parts of the file lie over each other")
            if self._types.get(item) == b"av01":
                total += self._coded(b"".join(data[start:end] for start, end in pieces))
            else:
                self._budget.take_metadata(size)
        return total

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise TooMuchImage("image: the file has too many parts for its length")

    def _boxes(self, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
        """Type, start and end of the content of each box (ISO 14496-12, 4.2)."""
        while at + 8 <= end:
            self._count()
            size, kind = struct.unpack_from(">I4s", self._data, at)
            start = at + 8
            if size == 1:
                (size,) = struct.unpack_from(">Q", self._data, start)
                start += 8
            elif size == 0:
                size = end - at
            if size < start - at or at + size > end:
                raise ValueError("a box has a wrong size")
            at += size
            yield kind, start, at

    def _read_meta(self, start: int, end: int) -> None:
        boxes = list(self._boxes(start, end))
        self._inside = next((at for kind, at, _ in boxes if kind == b"idat"), 0)
        for kind, at, stop in boxes:
            if kind == b"iinf":
                long = self._data[at] > 0
                for inner, place, _ in self._boxes(at + (8 if long else 6), stop):
                    if inner == b"infe":
                        self._read_item(place)
            elif kind == b"iloc":
                self._read_places(at)
            elif kind == b"iprp":
                links = sum(b - a for inner, a, b in self._boxes(at, stop) if inner == b"ipma")
                self._budget.take_metadata(_LINK * links)

    def _read_item(self, at: int) -> None:
        """An entry of the box `infe` (ISO 14496-12, 8.11.6)."""
        version = self._data[at]
        if version >= 2:
            form = ">IH4s" if version > 2 else ">HH4s"
            item, _, kind = struct.unpack_from(form, self._data, at + 4)
            self._types[item] = kind

    def _read_places(self, at: int) -> None:
        """The box `iloc` (ISO 14496-12, 8.11.3)."""
        data, version = self._data, self._data[at]
        sizes, more = data[at + 4], data[at + 5]
        offset, length, base, index = sizes >> 4, sizes & 15, more >> 4, (more & 15) if version else 0
        wide = 4 if version > 1 else 2
        at += 6

        def number(size: int) -> int:
            nonlocal at
            found = data[at : at + size]
            if len(found) != size:
                raise ValueError("the box iloc ends too early")
            at += size
            return int.from_bytes(found, "big")

        for _ in range(number(wide)):
            item = number(wide)
            inside = bool(version) and number(2) & 15 == 1
            number(2)
            begin = number(base) + (self._inside if inside else 0)
            pieces = self._pieces.setdefault(item, [])
            for _ in range(number(2)):
                self._count()
                number(index)
                start = begin + number(offset)
                size = number(length)
                pieces.append((start, start + size if size else len(data)))

    def _coded(self, data: bytes) -> int:
        """Pixels of all frames of one coded picture (AV1 specification, 5.3 to 5.5)."""
        at, frames, largest = 0, 0, 0
        while at < len(data):
            self._count()
            head = data[at]
            kind, at = head >> 3 & 15, at + (2 if head & 4 else 1)
            size = len(data) - at
            if head & 2:
                size, at = _leb128(data, at)
            if kind == _SEQUENCE:
                width, height = _largest_frame(data[at : at + min(size, 1024)])
                self._budget.check_size(width, height)
                largest = max(largest, width * height)
            frames += kind in _FRAMES
            at += size
        return largest * max(frames, 1)


def _leb128(data: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte (AV1 specification, 4.10.5), and where it ends."""
    number = 0
    for place in range(8):
        byte = data[at + place]
        number |= (byte & 127) << 7 * place
        if byte < 128:
            break
    return number, at + place + 1


class _Bits:
    def __init__(self, data: bytes) -> None:
        self._number = int.from_bytes(data, "big")
        self._left = len(data) * 8

    def read(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise IndexError
        return self._number >> self._left & ((1 << count) - 1)

    def skip_uvlc(self) -> None:
        zeros = 0
        while not self.read(1):
            zeros += 1
        self.read(zeros if zeros < 32 else 0)


def _largest_frame(header: bytes) -> tuple[int, int]:
    """Width and height of the largest frame that may follow a sequence header (AV1 specification, 5.5.1).

    A frame of a still picture has the size in the header; one of a video may have any that its number of bits can say.
    """
    bits = _Bits(header)
    bits.read(4)
    is_still = bits.read(1)
    if is_still:
        bits.read(5)
    else:
        _skip_timing(bits)
    widths, heights = bits.read(4) + 1, bits.read(4) + 1
    width, height = bits.read(widths) + 1, bits.read(heights) + 1
    return (width, height) if is_still else (1 << widths, 1 << heights)


def _skip_timing(bits: Any) -> None:
    has_model = delay = 0
    if bits.read(1):  # timing_info_present_flag
        bits.read(64)
        if bits.read(1):
            bits.skip_uvlc()
        has_model = bits.read(1)
        if has_model:
            delay = bits.read(5) + 1
            bits.read(42)
    has_delays = bits.read(1)
    for _ in range(bits.read(5) + 1):
        bits.read(12)
        if bits.read(5) > 7:
            bits.read(1)
        if has_model and bits.read(1):
            bits.read(2 * delay + 1)
        if has_delays and bits.read(1):
            bits.read(4)
