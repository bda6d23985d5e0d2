"""Functions that another process can import."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from rpcstream import RpcError


def process_id() -> int:
    return os.getpid()


def double(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values * 2


def fail(code: int) -> None:
    raise RpcError(code, "from far away", {"code": code})


def die() -> None:
    os._exit(3)
