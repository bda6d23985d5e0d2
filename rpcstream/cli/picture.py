"""A small picture of an image for a terminal: half blocks in 24-bit colour, two pixels to a character.

Knows Pillow images and the escape sequences for colours; nothing of results or files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

_UPPER, _LOWER = "\u2580", "\u2584"
#: At most this many lines, so that the text above the picture stays on the screen.
_MAX_ROWS = 24

Pixel = tuple[int, int, int, int]


def half_blocks(image: Image, *, columns: int) -> list[str]:
    """The image, at most `columns` characters wide, as lines of text; small ones are not enlarged.

    A character cell is taken as twice as high as wide. Where the image is transparent the terminal shows through.
    """
    width, height = image.size
    if width == 0 or height == 0 or columns < 1:
        return []
    scale = min(1.0, columns / width, 2 * _MAX_ROWS / height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small = _eight_bit(image).convert("RGBA").resize(size)
    raw = small.tobytes()
    pixels = [(raw[at], raw[at + 1], raw[at + 2], raw[at + 3]) for at in range(0, len(raw), 4)]
    lines = []
    for top in range(0, size[1], 2):
        upper = pixels[top * size[0] : (top + 1) * size[0]]
        lower = pixels[(top + 1) * size[0] : (top + 2) * size[0]] or [(0, 0, 0, 0)] * size[0]
        lines.append(_line(upper, lower))
    return lines


def _eight_bit(image: Image) -> Image:
    """Images of more than eight bits a channel with their own range stretched over black to white."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return image
    numbers = image.convert("F")
    low, high = numbers.getextrema()
    if not (isinstance(low, float) and isinstance(high, float)) or not high > low:
        return numbers.point(lambda value: value * 0 + 128).convert("L")
    scale = 255 / (high - low)
    return numbers.point(lambda value: value * scale - low * scale).convert("L")


def _line(upper: list[Pixel], lower: list[Pixel]) -> str:
    parts, before = [], ""
    for top, bottom in zip(upper, lower, strict=True):
        if top[3] >= 128:
            block, front, back = _UPPER, top, bottom
        else:
            block, front, back = _LOWER, bottom, top
        if front[3] < 128:
            code, block = "\x1b[0m", " "
        else:
            behind = f"48;2;{back[0]};{back[1]};{back[2]}" if back[3] >= 128 else "49"
            code = f"\x1b[38;2;{front[0]};{front[1]};{front[2]};{behind}m"
        parts.append(block if code == before else code + block)
        before = code
    return "".join(parts) + "\x1b[0m"
