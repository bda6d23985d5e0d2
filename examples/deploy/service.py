"""What the files beside it deploy: a method that takes a text and gives an array.

    rpcstream-server service.py
    rpcstream embed text="a red bicycle"

`DRAIN_DELAY` is for Kubernetes: seconds for which a server that is told to stop goes on, until no new connections come.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np

from rpcstream import Info, Limits, Server

server = Server(
    info=Info(title="vectors"),
    drain_delay=float(os.environ.get("DRAIN_DELAY", "0")),
    limits=Limits(max_connections=1000, max_held_total=256 * 1024 * 1024),
)


@server(idempotent=True)
def embed(text: str, size: int = 8) -> np.ndarray:
    """A vector of length 1 that stands for the text."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    vector = np.random.default_rng(seed).normal(size=size)
    return np.asarray(vector / np.linalg.norm(vector), np.float32)
