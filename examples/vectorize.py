"""A photo and its caption in, a feature vector out. The dot product of two vectors is their similarity.

    python examples/vectorize.py
    rpcstream vectorize description="a tabby cat" -i photo=examples/pictures/cat.jpg

On a terminal, the second command prints

    ndarray float32 (320,)
      [ 0.05541429  0.00773896 -0.0160987  ...  0.          0.          0.        ]
"""

from __future__ import annotations

import zlib

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from rpcstream import Server

server = Server()


@server
def vectorize(description: str, photo: PIL.Image.Image) -> NDArray[np.float32]:
    """Describe a photo and its caption by 320 numbers: the colours of an 8 x 8 thumbnail, and the hashed words."""
    colours = np.asarray(photo.convert("RGB").resize((8, 8)), np.float32).ravel()
    words = np.zeros(128, np.float32)
    for word in description.lower().split():
        words[zlib.crc32(word.encode()) % len(words)] += 1
    return unit(np.concatenate([unit(colours - colours.mean()), unit(words)]))


def unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale a vector to length 1. A vector of zeros stays as it is."""
    return vector / (np.linalg.norm(vector) or 1)


if __name__ == "__main__":
    server.run()
