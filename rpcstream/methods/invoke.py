"""Runs handlers in threads or in worker processes, as far as there is room for calls that wait for these."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ..errors import RegistrationError, ServerBusy
from ..limits import Limits
from .image_decoding import ImageDecoder
from .method import Method
from .threads import DEFAULT_SIZE, DaemonThreads
from .workers import Workers


class Invoker:
    """Runs offloaded handlers. Threads and processes are started as calls need them; `close` ends them.

    Args:
        limits: says how many calls may wait for a thread or a process, and how much memory images may take.
        threads: handlers that run in threads at the same time; None: a number for handlers that wait most of the time.
        processes: worker processes, each running one handler at a time; None: one for each processor.

    Attributes:
        images: decodes the images of calls.
    """

    def __init__(self, limits: Limits, *, threads: int | None = None, processes: int | None = None) -> None:
        self.threads = DaemonThreads(threads or DEFAULT_SIZE)
        self.workers = Workers(processes or os.cpu_count() or 1)
        self.images = ImageDecoder(max_memory=limits.max_image_memory, max_waiting=limits.max_queue)
        self._max_queue = limits.max_queue

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
        return self.threads.submit(call)

    async def run(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a handler in a thread or a process. Raises ServerBusy as `submit` does."""
        call = functools.partial(method.function, *args, **kwargs)
        if method.offload == "thread":
            return await asyncio.wrap_future(self.submit(call))
        self._check_room()
        return await self.workers.run(method.name, call)

    def _check_room(self) -> None:
        if len(self.threads.waiting) + len(self.workers.threads.waiting) >= self._max_queue:
            raise ServerBusy(data={"limit": self._max_queue})

    def close(self) -> None:
        """End the pools without waiting: threads end with what they run now, processes at once."""
        self.threads.close()
        self.workers.close()
        self.images.close()


def check_picklable(method: Method) -> None:
    """Raises RegistrationError unless another process can import the function. Only true once its module is loaded."""
    try:
        pickle.dumps(method.function)
    except Exception as error:
        raise RegistrationError(
            f"{method.name}: offload='process' needs a function that another process can import: {error}"
        ) from error
