"""Micro-batching: methods that callers call with one item, and whose handlers get many items at a time.

Owns the batched methods of a server, and where their handlers run. Each is registered as an async function of one item,
so that checks, errors, deadlines and cancellation are those of every other method. The signature of one item is made by
`microbatch_items`, items are gathered by `microbatch_queue`.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar, Unpack

from ..errors import RegistrationError
from ..keyword_options import check_names, with_options
from ..limits import MIB
from ..observe.counters import BatchCounters
from .introspect import caller_namespace, holds, name_of
from .microbatch_items import ItemSignature, ItemValues
from .microbatch_queue import MicrobatchQueue, QueueOptions
from .options import MICROBATCH_DEFAULTS, CommonOptions, MicrobatchOptions
from .registry import MethodRegistry
from .threads import DaemonThreads, HandlerFailed

#: Bytes of arrays that are stacked for one run: in a thread as much as four full messages, beside the arrays that came;
#: in the event loop, which is blocked meanwhile, what is copied in some 10 ms. A larger item is a run of its own.
MAX_STACKED = 256 * MIB
MAX_STACKED_IN_LOOP = 32 * MIB

Handler = TypeVar("Handler", bound=Callable[..., Any])


class BatchedMethod:
    """One batched method: `server.batches["name"]`.

    Args:
        function: the handler, sync or async, of many items.
        method: its remote name.
        clock: seconds, monotonic.

    Raises:
        RegistrationError: hints or options that cannot be.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: QueueOptions,
        *,
        method: str,
        namespace: dict[str, Any] | None,
        clock: Callable[[], float],
    ) -> None:
        options.check(method)
        self._is_async = holds(function, inspect.iscoroutinefunction) or holds(
            inspect.unwrap(function), inspect.iscoroutinefunction
        )
        if holds(function, inspect.isgeneratorfunction) or holds(function, inspect.isasyncgenfunction):
            raise RegistrationError(f"{method}: a batched handler must return its results, not yield them")
        self.options = options
        self._function = function
        self._method = method
        self._items = ItemSignature(function, method=method, namespace=namespace)
        self._clock = clock
        self._counters = BatchCounters()
        # A run belongs to several calls, so it has the context variables of none of them.
        self._context = contextvars.copy_context()
        self._queue: MicrobatchQueue | None = None
        #: What is registered.
        self.single = self._items.of_one(self._call, function)

    def stats(self) -> dict[str, Any]:
        """Statistics since the method was registered. From any thread.

        `runs`, `items` in them, `retries` (items run again, alone), `cancelled` (items whose caller left before), and
        `waiting` now; `largest`, `mean_size`, `sizes` (how many runs by size: "8" counts those of 5 to 8 items);
        `mean_wait` and `max_wait`, the seconds from an item's arrival to its run.
        """
        queue = self._queue
        return {**self._counters.as_dict(), "waiting": queue.waiting if queue is not None else 0}

    def retire(self) -> None:
        """End when the calls that wait are done, since the method was replaced. From any thread."""
        if self._queue is not None:
            try:
                self._queue.loop.call_soon_threadsafe(self._queue.retire)
            except RuntimeError:  # the loop is closed, and so is all else
                pass

    def close(self) -> None:
        """Cancel all calls and runs. The method may be called again, also in another event loop."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()

    async def _call(self, values: ItemValues) -> Any:
        queue = self._queue
        if queue is None:
            queue = self._queue = self._open()
        return await queue.call(values)

    def _open(self) -> MicrobatchQueue:
        options = self.options
        in_thread = options.offload == "thread" and not self._is_async
        threads = DaemonThreads(options.threads) if in_thread else None
        return MicrobatchQueue(
            self._method,
            functools.partial(self._handle, threads),
            options,
            kind=self._items.kind,
            copied=self._items.copied,
            max_copied=MAX_STACKED if in_thread else MAX_STACKED_IN_LOOP,
            can_stop=self._is_async,
            places=options.threads if in_thread or self._is_async else 1,
            context=self._context,
            counters=self._counters,
            clock=self._clock,
            on_close=threads.close if threads is not None else lambda: None,
        )

    async def _handle(self, threads: DaemonThreads | None, items: list[ItemValues]) -> list[Any]:
        if threads is not None:
            # What is stacked is copied, so that is done in the thread too.
            return await asyncio.wrap_future(threads.submit(functools.partial(self._run, items)))
        try:
            if not self._is_async:
                return self._run(items)
            args, kwargs = self._items.together(items)
            returned = self._function(*args, **kwargs)
            return self._items.results(await returned if inspect.isawaitable(returned) else returned, len(items))
        except SystemExit as error:  # a handler must not end the server
            raise HandlerFailed("SystemExit") from error

    def _run(self, items: list[ItemValues]) -> list[Any]:
        args, kwargs = self._items.together(items)
        return self._items.results(self._function(*args, **kwargs), len(items))


class BatchedMethods(Mapping[str, BatchedMethod]):
    """The batched methods of a server by name: `server.batches`. They are methods of the registry as well."""

    def __init__(self, registry: MethodRegistry, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._registry = registry
        self._clock = clock
        self._by_name: dict[str, BatchedMethod] = {}

    def __getitem__(self, name: str) -> BatchedMethod:
        batcher = self._by_name[name]
        if not self._is_current(name, batcher):
            raise KeyError(name)
        return batcher

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, batcher in list(self._by_name.items()) if self._is_current(name, batcher)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @with_options(MICROBATCH_DEFAULTS, CommonOptions, MicrobatchOptions)
    def decorator(self, **options: Unpack[MicrobatchOptions]) -> Callable[[Handler], Handler]:
        """Decorator: make a function of many items a remote method of one. The function itself is not changed.

        A parameter `list[T]` is T for callers; that of an array is one row, and the rows are stacked. The function
        returns one result for each item, or an exception in its place, which is raised at that item's caller. The
        `timeout` is that of one call, waiting included.

        Raises:
            RegistrationError: hints, a default or options do not fit; the text says which.
            ValueError: the name is taken.
            TypeError: an option is unknown.
        """
        check_names("batched()", options, MICROBATCH_DEFAULTS)
        given: dict[str, Any] = {**MICROBATCH_DEFAULTS, **options}
        queue = QueueOptions(**{field.name: given.pop(field.name) for field in fields(QueueOptions)})

        def decorate(function: Handler) -> Handler:
            self._add(function, queue, **given)
            return function

        return decorate

    def _add(
        self, function: Callable[..., Any], options: QueueOptions, *, name: str | None, **others: Unpack[CommonOptions]
    ) -> None:
        name = name_of(function) if name is None else name
        method = BatchedMethod(function, options, method=name, namespace=caller_namespace(), clock=self._clock)
        self._registry.add(method.single, name=name, **others)
        for taken, old in list(self._by_name.items()):
            if not self._is_current(taken, old):
                self._by_name.pop(taken).retire()
        self._by_name[name] = method

    def stats(self) -> dict[str, dict[str, Any]]:
        """The statistics of each batched method, by name."""
        return {name: batcher.stats() for name, batcher in self.items()}

    def close(self) -> None:
        """Cancel all calls and runs, at the end of the server, which may be started again."""
        for batcher in self._by_name.values():
            batcher.close()

    def _is_current(self, name: str, batcher: BatchedMethod) -> bool:
        """True if it is still the method of this name, and not replaced by another one."""
        method = self._registry.get(name)
        return method is not None and method.function is batcher.single
