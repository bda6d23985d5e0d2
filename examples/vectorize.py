"""A descriptor of a picture and its description: image and text in, an array out.

The descriptor is a real one that needs no weights: a histogram of the colours, histograms of the directions of the
edges in an 8 x 8 grid, and hashed n-grams of the text, together 1024 numbers of unit length. The dot product of two
descriptors is their similarity; that of a photo and the same one scaled or brightened a little is near 1.

    python examples/vectorize.py
    rpcstream vectorize description="a tabby cat" -i photo=examples/pictures/cat.jpg

The second command, on a terminal, prints

    ndarray float32 (1024,)
      [-0.0058022   0.06515379  0.1975129  ...  0.          0.          0.        ]
"""

from __future__ import annotations

import re
import zlib

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from rpcstream import Server

SIDE = 128  # pixels; a photo is scaled to a square of this side
HUES, SATURATIONS, VALUES = 8, 4, 4
CELLS, DIRECTIONS = 8, 8  # cells along a side; parts of 180 degrees
TEXT = 384

server = Server()


@server
def vectorize(description: str, photo: PIL.Image.Image) -> NDArray[np.float32]:
    """Describe a photo and the text that goes with it as 1024 numbers of unit length."""
    square = photo.convert("RGB").resize((SIDE, SIDE), PIL.Image.Resampling.BOX)
    return unit(np.concatenate([colours(square), edges(square), words(description)])).astype(np.float32)


def unit(part: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scaled to length 1; one that is all zeros (no text, no edges) stays so."""
    return part / (np.linalg.norm(part) or 1.0)


def colours(square: PIL.Image.Image) -> NDArray[np.float64]:
    """How often which hue, saturation and value occur; each pixel counts for the two values nearest to its own."""
    hue, saturation, value = np.asarray(square.convert("HSV")).reshape(-1, 3).T.astype(int)
    level, share = np.divmod(value * (VALUES - 1) / 256, 1)
    here = (hue * HUES // 256 * SATURATIONS + saturation * SATURATIONS // 256) * VALUES + level.astype(int)
    size = HUES * SATURATIONS * VALUES
    counts = np.bincount(here, 1 - share, size) + np.bincount(here + 1, share, size)
    roots = np.sqrt(counts)  # so that one large surface does not outweigh all others
    return unit(roots - roots.mean())


def edges(square: PIL.Image.Image) -> NDArray[np.float64]:
    """How strong the edges of each direction are in each cell, less the cell's mean: what stands out of it."""
    down, right = np.gradient(np.asarray(square.convert("L"), dtype=float))
    direction = (np.arctan2(down, right) % np.pi * (DIRECTIONS / np.pi)).astype(int) % DIRECTIONS
    cell = np.arange(SIDE) * CELLS // SIDE
    place = (cell[:, None] * CELLS + cell) * DIRECTIONS + direction
    strength = np.bincount(place.ravel(), np.hypot(down, right).ravel(), CELLS * CELLS * DIRECTIONS)
    roots = np.sqrt(strength).reshape(-1, DIRECTIONS)
    return unit((roots - roots.mean(axis=1, keepdims=True)).ravel())


def words(text: str) -> NDArray[np.float64]:
    """Words and their trigrams, each added or subtracted where its checksum says, so that clashes cancel out."""
    counts = np.zeros(TEXT)
    for word in re.findall(r"\w+", text.casefold()):
        padded = f" {word} "
        for gram in [word, *(padded[start : start + 3] for start in range(len(padded) - 2))]:
            checksum = zlib.crc32(gram.encode())
            counts[checksum % TEXT] += 1 if checksum >> 31 else -1
    return unit(counts)


if __name__ == "__main__":
    server.run()
