"""Runs handlers as coroutines, in threads or in worker processes.

Owns the limit of calls that wait for threads and processes together; the pools are in `threads` and `workers`. Knows
neither messages nor replies.
"""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ..errors import RegistrationError, ServerBusy
from ..limits import DEFAULT_LIMITS
from .image_decoding import ImageDecoder
from .registry import Method
from .threads import DaemonThreads
from .workers import WorkerCall, Workers


class Invoker:
    """Runs async and offloaded handlers. The pools are started with their first call; `close` ends them.

    Args:
        threads: handlers that run in threads at the same time.
        processes: worker processes, each running one handler at a time.
        max_queue: calls that may wait for a thread or a process; one more is answered with -32002.
        max_result: bytes of a result, pickled, that a worker process may give; a longer one is answered with -32001.
        max_image_memory: bytes that images of calls may take.

    Attributes:
        images: decodes the images of calls.
    """

    def __init__(
        self,
        *,
        threads: int,
        processes: int,
        max_queue: int,
        max_result: int = DEFAULT_LIMITS.max_worker_result,
        max_image_memory: int = DEFAULT_LIMITS.max_image_memory,
    ) -> None:
        if threads < 1 or processes < 1:
            raise ValueError(f"threads and processes must be at least 1, got {threads} and {processes}")
        self._threads = DaemonThreads(threads)
        self._workers = Workers(processes, max_result)
        self._max_queue = max_queue
        self.images = ImageDecoder(max_memory=max_image_memory, max_waiting=max_queue)

    def start(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Start a handler; gives an awaitable of its result.

        Or the result itself, since a wrapper around an async function may be a plain function.
        """
        return method.function(*args, **kwargs) if method.is_async else self._offloaded(method, args, kwargs)

    def submit(self, call: Callable[[], Any], *, always: bool = False) -> Future[Any]:
        """Run a function in a thread of the pool.

        Args:
            call: the function.
            always: even if too many calls wait; for cleaning up after a call that was accepted.

        Raises:
            ServerBusy: too many calls wait for a thread or a process already.
        """
        if not always:
            self._check_room()
        return self._threads.submit(call)

    async def _offloaded(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if method.offload == "thread":
            return await asyncio.wrap_future(self.submit(functools.partial(method.function, *args, **kwargs)))
        self._check_room()
        call = WorkerCall(method.name, method.function, args, kwargs)
        del args, kwargs  # while it waits, they are held once
        try:
            return await asyncio.wrap_future(self._workers.submit(call))
        except asyncio.CancelledError:
            call.give_up()
            raise

    def _check_room(self) -> None:
        if self._threads.waiting + self._workers.waiting >= self._max_queue:
            raise ServerBusy(data={"limit": self._max_queue})

    @property
    def waiting(self) -> int:
        """Calls that no thread and no process has taken yet."""
        return self._threads.waiting + self._workers.waiting

    @property
    def waiting_by_kind(self) -> dict[str, int]:
        """The same, for each kind of `offload`."""
        return {"thread": self._threads.waiting, "process": self._workers.waiting}

    @property
    def busy_by_kind(self) -> dict[str, int]:
        """Calls that threads and processes carry out, for each kind of `offload`."""
        return {"thread": self._threads.busy, "process": self._workers.busy}

    @property
    def worker_ids(self) -> list[int]:
        """The ids of the worker processes that run."""
        return self._workers.process_ids

    def close(self) -> None:
        """End the pools without waiting: threads end with what they run now, processes at once."""
        self._threads.close()
        self._workers.close()
        self.images.close()


def check_picklable(method: Method) -> None:
    """Raises RegistrationError unless another process can import the function. Only true once its module is loaded."""
    try:
        pickle.dumps(method.function)
    except Exception as error:
        raise RegistrationError(
            f"{method.name}: offload='process' needs a function that another process can import: {error}"
        ) from error


def default_threads() -> int:
    """As many as the standard library's pool: enough for handlers that wait for disks and networks."""
    return min(32, (os.cpu_count() or 1) + 4)


def default_processes() -> int:
    """One for each processor."""
    return os.cpu_count() or 1
