"""The queue of one batched method: gathers the items of calls to runs, and gives each caller its result.

Owns how long items wait and how many runs there are at a time, in one event loop. The wait starts with the first item;
a full queue does not wait; cancelled callers leave. `_settle` decides after every change what starts. Knows neither
hints nor requests, and not how a handler is run.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import RegistrationError, RpcError, ServerBusy
from ..observe.counters import BatchCounters
from ..observe.limited_log import LimitedLog
from .failures import internal_error
from .microbatch_items import ItemValues, WrongResults
from .threads import HandlerFailed

log = logging.getLogger("rpcstream.server")

#: Runs the handler for these items: gives a result for each, or raises what the handler raised.
Handle = Callable[[list[ItemValues]], Coroutine[Any, Any, list[Any]]]


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """Options of the queue of one method; for their meaning see `MicrobatchOptions`."""

    max_size: int
    max_wait: float
    threads: int
    offload: Literal["thread"] | None
    retry_single: bool
    max_queue: int

    def check(self, method: str) -> None:
        """Raises RegistrationError for an option that cannot act."""
        for name in ("max_size", "threads", "max_queue"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise RegistrationError(f"{method}: {name} must be an integer of at least 1, got {value!r}")
        if not isinstance(self.max_wait, int | float) or not 0 <= self.max_wait < math.inf:
            raise RegistrationError(f"{method}: max_wait must be a number of seconds, 0 or more, got {self.max_wait!r}")
        if self.max_queue < self.max_size:
            raise RegistrationError(
                f"{method}: max_queue must be at least max_size ({self.max_size}), got {self.max_queue}"
            )
        if self.offload not in ("thread", None):
            raise RegistrationError(f"{method}: offload must be 'thread' or None, got {self.offload!r}")


class _PendingItem:
    """The item of one call that waits for its result."""

    __slots__ = ("arrived", "future", "run", "started", "values")

    def __init__(self, values: ItemValues, future: asyncio.Future[Any], arrived: float) -> None:
        self.values = values
        self.future = future
        self.arrived = arrived
        self.run: _Run | None = None
        self.started = False

    def settle(self, result: Any) -> None:
        """Give the caller its result; an exception is raised at the caller."""
        if self.future.done():  # cancelled meanwhile
            return
        if not isinstance(result, BaseException):
            self.future.set_result(result)
            return
        error = result
        if not isinstance(error, Exception) or isinstance(error, StopIteration):
            # A future cannot carry StopIteration; KeyboardInterrupt and SystemExit would end more than this call.
            error = HandlerFailed(type(result).__name__)
            error.__cause__ = result
        elif isinstance(error, RpcError):
            # A handler may return one object many times, whose traceback would grow with each raise.
            error.__traceback__ = None
        self.future.set_exception(error)


class _Run:
    """Items that are given to the handler together."""

    __slots__ = ("is_retry", "items", "task")

    def __init__(self, items: list[_PendingItem], *, is_retry: bool = False) -> None:
        self.items = items
        self.is_retry = is_retry
        self.task: asyncio.Task[list[Any]] | None = None


class MicrobatchQueue:
    """The queue of one batched method, and its runs. For one event loop.

    Args:
        method: its name, for the log.
        handle: runs the handler. Awaited in a task of its own, with a copy of `context`.
        kind: items of equal kind can be in one run.
        copied: bytes of one item, the same for its kind, that are copied when a run is put together.
        max_copied: bytes that one run may copy; what would bring it over goes to the next one.
        can_stop: a run whose callers are all gone can be cancelled.
        places: runs at the same time.
        clock: seconds, monotonic.
        on_close: called by `close`, to end what `handle` uses.
    """

    def __init__(
        self,
        method: str,
        handle: Handle,
        options: QueueOptions,
        *,
        kind: Callable[[ItemValues], Hashable],
        copied: Callable[[ItemValues], int],
        max_copied: int,
        can_stop: bool,
        places: int,
        context: contextvars.Context,
        counters: BatchCounters,
        clock: Callable[[], float],
        on_close: Callable[[], object],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._method = method
        self._log = LimitedLog(log)
        self._handle = handle
        self._kind = kind
        self._copied = copied
        self._max_copied = max_copied
        self._can_stop = can_stop
        self._places = places
        self._max_size = options.max_size
        self._max_wait = options.max_wait
        self._max_queue = options.max_queue
        self._retry_single = options.retry_single
        self._context = context
        self._counters = counters
        self._clock = clock
        self._on_close = on_close
        #: Items in the order of arrival; a dict, so that any item can be removed. A timer runs until the first is due.
        #: It is not started anew when the first is removed: the others then wait a little less.
        self._waiting: OrderedDict[_PendingItem, None] = OrderedDict()
        self._timer: asyncio.Handle | None = None
        self._is_due = False
        #: Runs that are gathered and wait to be started; and runs that have been started.
        self._ready: deque[_Run] = deque()
        self._running: set[_Run] = set()
        self._is_retired = False

    @property
    def waiting(self) -> int:
        """Items that no run has taken yet. From any thread."""
        return len(self._waiting) + sum(len(run.items) for run in list(self._ready))

    async def call(self, values: ItemValues) -> Any:
        """The result for one item.

        Raises:
            ServerBusy: too many wait.
            Exception: what the handler raised, or returned in the place of the result.
        """
        item = self._put(values)
        try:
            return await item.future
        except asyncio.CancelledError:
            await self._leave(item)
            raise

    def retire(self) -> None:
        """Close as soon as the last call is done."""
        self._is_retired = True
        self._settle()

    def close(self) -> None:
        """Cancel all calls and runs."""
        self._disarm()
        runs = [*self._ready, *self._running]
        items = [*self._waiting, *(item for run in runs for item in run.items)]
        self._waiting.clear()
        self._ready.clear()
        for item in items:
            item.future.cancel()
        for run in runs:
            if run.task is not None:
                run.task.cancel()
        self._on_close()

    # -- items that wait --------------------------------------------------------------------------------------------

    def _put(self, values: ItemValues) -> _PendingItem:
        if len(self._waiting) >= self._max_queue:
            raise ServerBusy(data={"limit": self._max_queue})
        item = _PendingItem(values, self.loop.create_future(), self._clock())
        self._waiting[item] = None
        if self._timer is None or len(self._waiting) >= self._max_size:
            self._settle()
        return item

    async def _leave(self, item: _PendingItem) -> None:
        """Remove the item of a cancelled caller; the last caller of a run cancels the run, and waits for its end."""
        if not item.started:
            self._counters.cancelled += 1
        self._waiting.pop(item, None)
        if not self._waiting:
            self._disarm()
        run = item.run
        if run is None or run.task is None or run.task.done() or not self._can_stop:
            return
        # Cancelled only once: a second cancel would interrupt the clean-up of the handler.
        if not run.task.cancelling() and all(other.future.done() for other in run.items):
            run.task.cancel()
        if run.task.cancelling():
            await asyncio.wait({run.task})

    def _arm(self) -> None:
        """Start the timer for the first item, with which the others wait."""
        first = next(iter(self._waiting))
        left = first.arrived + self._max_wait - self._clock()
        if left > 0:
            self._timer = self.loop.call_later(left, self._wake, context=self._context)
        else:
            self._timer = self.loop.call_soon(self._wake, context=self._context)

    def _wake(self) -> None:
        # Without asking the clock, which may differ from that of the loop.
        self._timer = None
        self._is_due = True
        self._settle()

    def _disarm(self) -> None:
        self._is_due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- what runs --------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Start the runs that are due, as far as there are places; then start the timer for the next one."""
        while len(self._running) < self._places and self._gather():
            self._start(self._ready.popleft())
        if self._waiting and not self._is_due and self._timer is None:
            self._arm()
        if self._is_retired and not (self._waiting or self._ready or self._running):
            self.close()

    def _gather(self) -> bool:
        """Make runs of the items that have waited long enough; true if a run is ready to be started."""
        if not self._ready and self._waiting and (self._is_due or len(self._waiting) >= self._max_size):
            kinds: dict[Hashable, list[_PendingItem]] = {}
            for _ in range(min(self._max_size, len(self._waiting))):
                item, _ = self._waiting.popitem(last=False)
                kinds.setdefault(self._kind(item.values), []).append(item)
            for items in kinds.values():
                most = max(self._max_copied // max(self._copied(items[0].values), 1), 1)
                self._ready.extend(_Run(items[start : start + most]) for start in range(0, len(items), most))
            self._disarm()
        return bool(self._ready)

    def _start(self, run: _Run) -> None:
        self._running.add(run)
        for item in run.items:
            item.run = run
        run.task = self.loop.create_task(self._run(run), context=self._context.copy())
        run.task.add_done_callback(lambda task: self._ended(run, task))

    async def _run(self, run: _Run) -> list[Any]:
        # Callers may have been cancelled since the run was gathered.
        run.items = [item for item in run.items if not item.future.done()]
        if not run.items:
            return []
        now = self._clock()
        for item in run.items:
            item.started = True
        if run.is_retry:
            self._counters.retries += 1
        else:
            self._counters.count_run([now - item.arrived for item in run.items])
        return await self._handle([item.values for item in run.items])

    # -- results ----------------------------------------------------------------------------------------------------

    def _ended(self, run: _Run, task: asyncio.Task[list[Any]]) -> None:
        self._running.discard(run)
        error = HandlerFailed("it was cancelled") if task.cancelled() else task.exception()
        if error is None:
            for item, result in zip(run.items, task.result(), strict=True):
                item.settle(result)
        elif any(not item.future.done() for item in run.items):
            self._failed(run.items, error)
        self._settle()

    def _failed(self, items: list[_PendingItem], error: BaseException) -> None:
        """A run raised: run its items again one by one, if that is wanted, or fail all its calls."""
        told = error
        if isinstance(error, WrongResults):
            text = "method %r got %d items: %s"
            told = internal_error(self._log, "server", None, text, self._method, len(items), str(error))
        elif len(items) == 1:
            items[0].settle(error)
            return
        elif self._retry_single:
            kind = "method %r failed with %d items, each is run alone: %s"
            self._log.warning(None, kind, self._method, len(items), repr(error))
            self._ready.extend(_Run([item], is_retry=True) for item in items)
            return
        elif not isinstance(error, RpcError):
            text = "method %r failed with %d items"
            told = internal_error(self._log, "server", None, text, self._method, len(items), error=error)
        for item in items:
            item.settle(told)
