"""Functions in a module that worker processes can import."""

from __future__ import annotations

import os
import time
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from rpcstream import Depends, RpcError


def process_id() -> int:
    return os.getpid()


def add(a: int, b: int) -> int:
    return a + b


def double(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values * 2


def fail(code: int) -> None:
    raise RpcError(code, "from far away", {"code": code})


def die() -> None:
    os._exit(3)


class OddError(Exception):  # can be pickled, but not unpickled, as OddResult
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a}-{b}")


class NotFound(RpcError):
    def __init__(self, name: str) -> None:
        super().__init__(404, f"no {name}")


class OddResult:
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


def hold(folder: str, name: str) -> str:
    """Say that it has begun, in a file with the worker's id, and go on until there is a file `release`."""
    path = os.path.join(folder, name)
    with open(path + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".new", path)
    while not os.path.exists(os.path.join(folder, "release")):
        time.sleep(0.005)
    return name


def blob(size: int) -> bytes:
    return bytes(size)


def close_pipe() -> None:
    """Leave the server without this worker, though it lives."""
    os.closerange(3, 100)
    time.sleep(1000)


def session() -> int:
    return 1


def needs_session(session: Annotated[int, Depends(session)]) -> int:
    return session
