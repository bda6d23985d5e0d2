"""Micro-batching: `@server.batched` methods, which callers call with one item and whose handlers get many at a time.

Each is registered as an async function of one item, so checks, errors, deadlines and cancellation work as for every
other method.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import math
import types
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from itertools import islice
from typing import Annotated, Any, Union, get_args, get_origin

from ..codec import Shape
from ..codec.hints import expanded
from ..errors import RegistrationError, ServerBusy
from ..limits import MIB
from ..observe.counters import BatchCounters
from .introspect import FunctionKind, name_of, signature_of
from .options import METHOD_DEFAULTS, MICROBATCH_DEFAULTS
from .registry import MethodRegistry
from .threads import HandlerFailed

#: Bytes of arrays that are copied for one run, because they are stacked; further items are in another run.
MAX_STACKED = 64 * MIB

#: Seconds by which a run may start too early: uvloop's timers count whole milliseconds.
_EARLY = 0.001

#: The arguments of one call, in the order of the parameters.
_Values = tuple[Any, ...]


@dataclass(eq=False, slots=True)
class _Item:
    """The item of one call that waits for its result.

    Attributes:
        arrays: those of its values that are stacked.
        outcome: gets the result, or the exception for the caller.
        run: the task that runs it, and the items in this run.
    """

    values: _Values
    arrays: list[Any]
    outcome: asyncio.Future[Any]
    arrived: float
    run: tuple[asyncio.Task[None], list[_Item]] | None = None

    def fits(self, other: _Item) -> bool:
        """Whether its arrays can be stacked with those of another item."""
        pairs = zip(self.arrays, other.arrays, strict=True)
        return all(one.shape == another.shape and one.dtype == another.dtype for one, another in pairs)


class BatchedMethod:
    """One batched method: `server.batches["name"]`.

    Args:
        function: the handler of many items, sync or async.
        method: its remote name.
        options: see `MicrobatchOptions`.
        namespace: names that string hints may use besides those of the function's module.

    Raises:
        RegistrationError: a hint, a default or an option does not fit; the text says which.
    """

    def __init__(
        self, function: Callable[..., Any], method: str, options: Mapping[str, Any], namespace: dict[str, Any]
    ) -> None:
        kind = FunctionKind(function)
        if kind.is_generator:
            raise RegistrationError(f"{method}: a batched handler must return its results, not yield them")
        _check_options(method, options)
        self._function = function
        self._options = options
        self._is_async = kind.is_async
        self._in_thread = options["offload"] == "thread" and not kind.is_async
        self._counters = BatchCounters()
        # A run belongs to several calls, so it has the context variables of none of them.
        self._context = contextvars.copy_context()
        self._signature, self._gathers = _signature_of_one(function, method, namespace)
        self._parameters = list(self._signature.parameters.values())
        self._stacked = [place for place, gather in enumerate(self._gathers) if gather is not list]
        #: Runs that may start now.
        self._places = options["threads"] if self._in_thread or self._is_async else 1
        #: Items in the order of arrival; those that leave are removed.
        self._waiting: OrderedDict[_Item, None] = OrderedDict()

    def function_of_one(self) -> Any:
        """Return the function to register, which takes one item. It has the name and docstring of the handler."""

        async def single(*args: Any, **kwargs: Any) -> Any:
            rest = self._parameters[len(args) :]
            return await self._call((*args, *[kwargs.get(each.name, each.default) for each in rest]))

        functools.update_wrapper(single, self._function)
        del single.__wrapped__  # type: ignore[attr-defined]
        single.__annotations__ = {each.name: each.annotation for each in self._parameters}
        single.__annotations__["return"] = self._signature.return_annotation
        single.__signature__ = self._signature  # type: ignore[attr-defined]
        single.batched_method = self  # type: ignore[attr-defined]
        return single

    def stats(self) -> dict[str, Any]:
        """Statistics since the method was registered. From any thread.

        `runs`, `items` in them, `retries` (items run again, alone), `cancelled` (items whose caller left before), and
        `waiting` now; `mean_size`, `sizes` (how many runs by size: "8" counts those of 5 to 8 items);
        `mean_wait`, the seconds from an item's arrival to its run.
        """
        return {**self._counters.as_dict(), "waiting": len(self._waiting)}

    async def _call(self, values: _Values) -> Any:
        """Return the result for one item, or raise what the handler raised."""
        if len(self._waiting) >= self._options["max_queue"]:
            raise ServerBusy(data={"limit": self._options["max_queue"]})
        loop = asyncio.get_running_loop()
        item = _Item(values, [values[place] for place in self._stacked], loop.create_future(), loop.time())
        self._waiting[item] = None
        loop.call_at(item.arrived + self._options["max_wait"], self._start_runs)
        if len(self._waiting) >= self._options["max_size"]:
            self._start_runs()
        try:
            outcome = await item.outcome
        except asyncio.CancelledError:
            await self._leave(item)
            raise
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def _leave(self, item: _Item) -> None:
        """Remove the item of a cancelled caller. The last caller of an async run cancels it, and waits for its end."""
        if item.run is None:
            self._counters.cancelled += 1
            del self._waiting[item]
            return
        task, items = item.run
        if self._is_async and all(other.outcome.done() for other in items):
            if not task.cancelling():  # a second cancel would interrupt the clean-up of the handler
                task.cancel()
            await asyncio.wait({task})

    def _start_runs(self) -> None:
        """Start runs while there are places for them, and items that need not wait for others."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._places and self._waiting:
            due = next(iter(self._waiting)).arrived + self._options["max_wait"]
            if len(self._waiting) < self._options["max_size"] and due > now + _EARLY:
                return
            items = self._take()
            self._places -= 1
            self._counters.count_run([now - item.arrived for item in items])
            task = loop.create_task(self._run(items), context=self._context.copy())
            task.add_done_callback(self._end_run)
            for item in items:
                item.run = task, items

    def _end_run(self, _: object) -> None:
        self._places += 1
        self._start_runs()

    def _take(self) -> list[_Item]:
        """Take the item that has waited longest, and those that can be run with it."""
        candidates = list(islice(self._waiting, self._options["max_size"]))
        size = sum(array.nbytes for array in candidates[0].arrays)
        items = [item for item in candidates if item.fits(candidates[0])][: max(MAX_STACKED // max(size, 1), 1)]
        for item in items:
            del self._waiting[item]
        return items

    async def _run(self, items: list[_Item]) -> None:
        """Run the handler, and give each item its result. Of a run that fails, each item is run alone."""
        handle = functools.partial(self._handle, [item.values for item in items])
        try:
            results = await asyncio.to_thread(handle) if self._in_thread else handle()
            if inspect.isawaitable(results):
                results = _results(await results, len(items))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            results = [] if self._options["retry_single"] and len(items) > 1 else [error] * len(items)
        for item, result in zip(items, results, strict=False):
            if not item.outcome.done():
                item.outcome.set_result(result)
        for item in items:
            if not item.outcome.done():
                self._counters.retries += 1
                await self._run([item])

    def _handle(self, items: list[_Values]) -> Any:
        """Run the handler for items of one kind: return a list with one result for each, or an awaitable."""
        columns = zip(self._parameters, self._gathers, zip(*items, strict=True), strict=True)
        gathered: Any = {parameter.name: gather(column) for parameter, gather, column in columns}
        arguments = inspect.BoundArguments(self._signature, gathered)
        try:
            returned = self._function(*arguments.args, **arguments.kwargs)
        except StopIteration as error:  # no future can carry it out of a thread
            raise HandlerFailed("StopIteration") from error
        return returned if inspect.isawaitable(returned) else _results(returned, len(items))


def _results(returned: Any, count: int) -> list[Any]:
    """Return the result of each of `count` items, from a list, a tuple or an array."""
    if not isinstance(returned, list | tuple):
        from ..codec.ndarray import to_array

        returned = to_array(returned)  # once for all rows, which may have to come from another device
    if len(returned) != count:
        raise ValueError(f"it returned {len(returned)} results, not {count}")
    for result in returned:
        if isinstance(result, BaseException):
            result.__traceback__ = None  # it would grow, if one object is returned again and again
    return list(returned)


def add_batched(
    registry: MethodRegistry, function: Callable[..., Any], options: Mapping[str, Any], namespace: dict[str, Any]
) -> None:
    """Register a handler of many items as a method of one; for the options see `MicrobatchOptions`."""
    given: dict[str, Any] = {**MICROBATCH_DEFAULTS, **options}
    name = name_of(function) if given["name"] is None else given["name"]
    method = BatchedMethod(function, name, given, namespace)
    common: Any = {option: given[option] for option in METHOD_DEFAULTS.keys() & given.keys()}
    registry.add(method.function_of_one(), **{**common, "name": name, "offload": None})


def batched_methods(registry: MethodRegistry) -> dict[str, BatchedMethod]:
    """Return the batched methods of a registry by name."""
    return {
        name: method.function.batched_method
        for name, method in list(registry.items())
        if hasattr(method.function, "batched_method")
    }


def _check_options(method: str, options: Mapping[str, Any]) -> None:
    """Raise RegistrationError for an option that cannot act."""
    numbers = [options[name] for name in ("max_size", "threads", "max_queue")]
    if not all(type(number) is int and number > 0 for number in numbers):
        raise RegistrationError(f"{method}: max_size, threads and max_queue must be integers of at least 1")
    if not 0 <= options["max_wait"] < math.inf or options["offload"] not in ("thread", None):
        raise RegistrationError(f"{method}: max_wait must be a number of seconds, offload 'thread' or None")


# -- from the hint of many to the hint of one --------------------------------------------------------------------------


#: Makes the argument of a handler from the values of its items: `list`, or `numpy.stack`.
_Gather = Callable[[Any], Any]


def _signature_of_one(
    function: Callable[..., Any], method: str, namespace: dict[str, Any]
) -> tuple[inspect.Signature, list[_Gather]]:
    """Return the signature of a handler as it is for one item, and how the argument for each parameter is made."""
    signature, parameters, gathers, what = signature_of(function, method, namespace), [], [], "it"
    try:
        for parameter in signature.parameters.values():
            what = f"parameter {parameter.name!r}"
            if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
                raise TypeError("a batched handler takes no further arguments (*args, **kwargs)")
            hint, gather = _item_hint(parameter.annotation)
            gathers.append(gather)
            default = parameter.default
            if default is not Parameter.empty:  # it is for a batch of one, so that the handler can be called directly
                [default] = default
            parameters.append(parameter.replace(annotation=hint, default=default))
        what = "the return value"
        result = _result_hint(signature.return_annotation)
    except (TypeError, ValueError) as error:
        raise RegistrationError(f"{method}: {what}: {error}") from error
    if not parameters:
        raise RegistrationError(f"{method}: a batched handler needs a parameter: the list of the items")
    return inspect.Signature(parameters, return_annotation=result), gathers


def _item_hint(hint: Any) -> tuple[Any, _Gather]:
    """Return the hint of one item, and how items are put together. Raises TypeError for any other hint."""
    hint = expanded(hint)
    plain, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    plain = expanded(plain)
    origin, arguments = get_origin(plain) or plain, get_args(plain)
    if origin in (list, Sequence) and not metadata:
        return (arguments or (Any,))[0], list
    if getattr(origin, "__name__", "") == "ndarray":  # so that lists need no numpy
        import numpy as np

        dims = metadata[0].dims if len(metadata) == 1 and isinstance(metadata[0], Shape) else ()
        if not metadata or dims[:1] == (Ellipsis,):
            return hint, np.stack
        if dims == (None,):
            return get_args(arguments[1])[0] if arguments else np.generic, np.stack
        if dims[:1] == (None,):
            return Annotated[plain, Shape(*dims[1:])], np.stack
    raise TypeError(
        "it must be list[T], Sequence[T], NDArray[...] or Annotated[NDArray[...], Shape(None, ...)], with one entry "
        f"for each item; what is said of one item stands at T; got {hint!r}"
    )


def _result_hint(hint: Any) -> Any:
    """Return the hint of one result. Exceptions that may stand in the place of results are no results."""
    if hint is Any:
        return Any
    item, _ = _item_hint(hint)
    members = get_args(item) if get_origin(item) in (Union, types.UnionType) else (item,)
    results = [each for each in members if not (isinstance(each, type) and issubclass(each, BaseException))]
    return Union.__getitem__(tuple(results)) if results else Any
