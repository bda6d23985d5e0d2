"""Functions that another process can import."""

from __future__ import annotations

import os
import time

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


class OddError(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a}-{b}")


class NotFound(RpcError):
    """An error of the user's with a constructor of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(404, f"no {name}")


class OddResult:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return int, ("not a number",)


def odd_error() -> None:
    raise OddError(1, 2)


def own_error() -> None:
    raise NotFound("thing")


def odd_result() -> object:
    return OddResult()


def stop() -> object:
    return next(iter([]))


def slow(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"
