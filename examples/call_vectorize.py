"""The client's side of `vectorize.py`: photos and text as plain arguments, an array as a plain result.

    python examples/vectorize.py
    python examples/call_vectorize.py

The second command prints

    float32 (320,)
    a cat and the same photo at half the size: 0.84
    a cat and a cup of coffee:                 0.34
"""

from __future__ import annotations

import sys
from pathlib import Path

import PIL.Image

from rpcstream import Client

PICTURES = Path(__file__).parent / "pictures"


def main(address: str = "127.0.0.1:8545") -> None:
    cat = PIL.Image.open(PICTURES / "cat.jpg")
    coffee = PIL.Image.open(PICTURES / "coffee.jpg")
    with Client(address) as client:
        one = client.vectorize(description="a tabby cat looks aside", photo=cat)
        # By position works as well, and many calls can be on their way at once.
        small = client.submit.vectorize("a cat looking aside", cat.reduce(2))
        other = client.submit.vectorize("a cup of coffee", coffee)
        print(one.dtype, one.shape)
        print(f"a cat and the same photo at half the size: {one @ small.result():.2f}")
        print(f"a cat and a cup of coffee:                 {one @ other.result():.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
