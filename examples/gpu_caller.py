"""Calls the workers of `gpu_worker.py` at a hub, as if the methods were the hub's own.

    python examples/gpu_caller.py [HUB]

prints

    multiply is offered by: gpu-1
    float32 (512, 256), as numpy has it: True
    blur the cat: RGB 320 x 213, 0.4 of its detail
    sharpen the cat: RGB 320 x 213, 1.8 of its detail
    eight products at once: 8 right
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import PIL.Image

from rpcstream import Client

CAT = Path(__file__).parent / "pictures" / "cat.jpg"


def detail(picture: PIL.Image.Image) -> float:
    """How much a picture changes from one pixel to the next, on average."""
    return float(np.abs(np.diff(np.asarray(picture.convert("L"), float), axis=1)).mean())


def main(hub: str = os.environ.get("RPCSTREAM_HUB", "127.0.0.1:8545")) -> None:
    random = np.random.default_rng(7)
    left, right = random.random((512, 128), np.float32), random.random((128, 256), np.float32)
    cat = PIL.Image.open(CAT)
    with Client(hub) as client:
        for method in client.call("rpc.methods"):
            if method["name"] == "multiply":
                print("multiply is offered by:", *sorted(method["clients"]))
        product = client.multiply(left, right)
        print(product.dtype, f"{product.shape}, as numpy has it:", np.allclose(product, left @ right, rtol=1e-3))
        for method in ("blur", "sharpen"):
            picture = client.call(method, cat)
            print(f"{method} the cat: {picture.mode} {picture.width} x {picture.height},", end=" ")
            print(f"{detail(picture) / detail(cat):.1f} of its detail")
        # Where several workers offer it, those go to whoever has the least to do.
        futures = [client.submit.multiply(left * number, right) for number in range(8)]
        right_ones = sum(np.allclose(each.result(), product * number, rtol=1e-3) for number, each in enumerate(futures))
        print("eight products at once:", right_ones, "right")


if __name__ == "__main__":
    main(*sys.argv[1:])
