"""Dependencies: parameters of a handler that functions provide: `Annotated[Session, Depends(open_session)]`.

Owns how the functions that a handler needs are found and put in order, once at registration, and how they are called
for one call. When the clean-up of those that yield runs is up to `dependency_call`. Knows neither messages nor replies.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from ..codec.fields import expanded
from ..errors import RegistrationError
from ..observe.limited_log import LimitedLog
from ..peer.context import CallContext
from .introspect import context_parameter, hints_of, holds, signature_of

#: Runs a function in a thread of the pool, even if too many calls wait (`always=True`).
Submit = Callable[..., "Future[Any]"]
#: What is called in place of a dependency's own function: `Server.dependency_overrides`.
Overrides = Mapping[Callable[..., Any], Callable[..., Any]]

_MANY = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Depends:
    """Says which function provides a parameter: `session: Annotated[Session, Depends(open_session)]`.

    Callers do not see the parameter. The function is called for each call of a method, and its result is the argument.
    It may be sync or async, and a generator with one `yield`, whose rest is run when the call has ended and its reply
    has gone out. Its own parameters may be a `Context` and further dependencies.

    Args:
        function: any callable with a Python signature; a class, too.
        use_cache: where several parameters of one call depend on the function, it is called once for all of them.
    """

    function: Callable[..., Any]
    use_cache: bool = True

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"Depends takes a function, not {self.function!r}")


def dependency_of(parameter: Parameter, hint: Any) -> Depends | None:
    """What provides a parameter; None for one that the caller gives.

    Raises:
        TypeError: it is said in a way that is not understood.
    """
    if isinstance(parameter.default, Depends):
        raise TypeError(f"a dependency stands in the hint: {parameter.name}: Annotated[..., Depends(...)]")
    hint = expanded(hint)
    if get_origin(hint) is not Annotated:
        return None
    found = [each for each in get_args(hint)[1:] if isinstance(each, Depends)]
    if len(found) > 1 or (found and parameter.kind in _MANY):
        raise TypeError("one function provides a parameter, which is not *args or **kwargs")
    return found[0] if found else None


class Provided(NamedTuple):
    """A parameter of a handler that a function provides, and its position among all parameters."""

    depends: Depends
    parameter: Parameter
    position: int


def name_of_dependency(function: Callable[..., Any]) -> str:
    """The name of a function, for errors and the log."""
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__qualname__", None) or repr(function)


# -- compiled at registration -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Step:
    """One call of a dependency's function.

    Attributes:
        needs: its parameters that earlier steps provide, each with the number of the step; -1 for the Context. Those by
            position come first.
        by_position: how many of them are given by position.
        is_async: it is awaited, or iterated with `async for`.
        is_generator: it yields its value, and cleans up behind that.
    """

    function: Callable[..., Any]
    needs: tuple[tuple[str, int], ...]
    by_position: int
    is_async: bool
    is_generator: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The functions to be called for one call of a handler, in order, and which of them provides which parameter.

    Attributes:
        provides: the step for each parameter, in the order of `Dependencies.names`.
        has_clean_up: some of the functions are generators.
        is_sync: all of them are sync.
    """

    steps: tuple[_Step, ...]
    provides: tuple[int, ...]
    has_clean_up: bool
    is_sync: bool


class Dependencies:
    """The parameters of one handler that are provided.

    Args:
        wanted: what provides each of them, by name.
        method: its remote name, for the errors.
        overrides: functions that are called in place of others; it may change later.
        namespace: names for string hints that are not in the functions' modules.

    Raises:
        RegistrationError: a function's signature does not fit; the text names function and parameter.
    """

    def __init__(
        self, wanted: Mapping[str, Depends], *, method: str, overrides: Overrides, namespace: dict[str, Any] | None
    ) -> None:
        self.names = tuple(wanted)
        self._wanted = tuple(wanted.values())
        self._method = method
        self._overrides = overrides
        self._namespace = namespace or {}
        self._plan = _Planner(method, {}, self._namespace).plan(self._wanted)

    def plan(self) -> Plan:
        """The plan for a call that begins now."""
        if not self._overrides:
            return self._plan
        return _Planner(self._method, self._overrides, self._namespace).plan(self._wanted)


class _Planner:
    """Puts the functions of dependencies in order, each behind those that it needs."""

    def __init__(self, method: str, overrides: Overrides, namespace: dict[str, Any]) -> None:
        self._method = method
        self._overrides = overrides
        self._namespace = namespace
        self._steps: list[_Step] = []
        self._numbers: dict[Any, int] = {}
        self._open: list[Any] = []

    def plan(self, wanted: tuple[Depends, ...]) -> Plan:
        provides = tuple(self._number(each) for each in wanted)
        steps = tuple(self._steps)
        return Plan(
            steps,
            provides,
            has_clean_up=any(step.is_generator for step in steps),
            is_sync=not any(step.is_async for step in steps),
        )

    def _number(self, wanted: Depends) -> int:
        """The number of the step that provides this, which is added if it is not there yet."""
        function = self._overrides.get(wanted.function, wanted.function)
        if wanted.use_cache and function in self._numbers:
            return self._numbers[function]
        what = f"{self._method}: the dependency {name_of_dependency(function)}"
        if function in self._open:
            raise RegistrationError(f"{what} depends on itself")
        self._open.append(function)
        step = self._step(function, what)
        self._open.pop()
        self._steps.append(step)
        number = len(self._steps) - 1
        if wanted.use_cache:
            self._numbers[function] = number
        return number

    def _step(self, function: Callable[..., Any], what: str) -> _Step:
        parameters = list(signature_of(function, what).parameters.values())
        hints = hints_of(function, what, self._namespace)
        context = context_parameter(parameters, hints, what)
        needs, by_position = [], 0
        for parameter in parameters:
            try:
                wanted = dependency_of(parameter, hints.get(parameter.name, Any))
            except TypeError as error:
                raise RegistrationError(f"{what}: parameter {parameter.name!r}: {error}") from error
            if context is not None and parameter.name == context.name:
                number = -1
            elif wanted is not None:
                number = self._number(wanted)
            elif parameter.default is not Parameter.empty or parameter.kind in _MANY:
                continue
            else:
                raise RegistrationError(
                    f"{what}: its parameter {parameter.name!r} is neither a Context nor a dependency, and has no "
                    "default; what callers give are parameters of the method itself"
                )
            if parameter.kind is Parameter.POSITIONAL_ONLY:
                by_position += 1
            needs.append((parameter.name, number))
        is_async_generator = holds(function, inspect.isasyncgenfunction)
        is_generator = is_async_generator or holds(function, inspect.isgeneratorfunction)
        is_async = is_async_generator or holds(inspect.unwrap(function), inspect.iscoroutinefunction)
        return _Step(function, tuple(needs), by_position, is_async, is_generator)


# -- carried out for a call -------------------------------------------------------------------------------------------


class CallScope:
    """What the dependencies of one call hold: the generators that are to be cleaned up.

    Args:
        submit: runs sync functions in threads, for a handler that runs in one; None: they run in the event loop.
        log: gets what clean-up raises.
    """

    def __init__(self, submit: Submit | None, log: LimitedLog) -> None:
        self._submit = submit
        self._log = log
        self._open: list[tuple[str, Any]] = []
        #: What runs in a thread for this call, which a cancelled call does not wait for.
        self.in_thread: Future[Any] | None = None

    async def provide(self, plan: Plan, context: CallContext) -> list[Any]:
        """Call the functions; gives the values for the handler's parameters, in their order.

        Raises what a function raises.
        """
        values: list[Any] = []
        if self._submit is None:
            for step in plan.steps:
                value = self._begin(step, values, context)
                values.append(await value if step.is_async or inspect.isawaitable(value) else value)
        elif plan.is_sync:
            await self.run_in_thread(partial(self._begin_all, plan, values, context))
        else:
            for step in plan.steps:
                if step.is_async:
                    values.append(await self._begin(step, values, context))
                else:
                    values.append(await self.run_in_thread(partial(self._begin, step, values, context)))
        return [values[number] for number in plan.provides]

    async def run_in_thread(self, function: Callable[[], Any]) -> Any:
        """Run a function in a thread; clean-up waits for it even if the call does not."""
        assert self._submit is not None
        self.in_thread = self._submit(function)
        return await asyncio.wrap_future(self.in_thread)

    def _begin_all(self, plan: Plan, values: list[Any], context: CallContext) -> None:
        for step in plan.steps:
            values.append(self._begin(step, values, context))

    def _begin(self, step: _Step, values: list[Any], context: CallContext) -> Any:
        given = [(name, context if number < 0 else values[number]) for name, number in step.needs]
        args = [value for _, value in given[: step.by_position]]
        value = step.function(*args, **dict(given[step.by_position :]))
        if not step.is_generator:
            return value
        name = name_of_dependency(step.function)
        return self._first_of_async(name, value) if step.is_async else self._first(name, value)

    def _first(self, name: str, generator: Generator[Any, None, Any]) -> Any:
        for value in generator:
            self._open.append((name, generator))
            return value
        raise RuntimeError(f"the dependency {name} has not yielded a value")

    async def _first_of_async(self, name: str, generator: AsyncGenerator[Any, None]) -> Any:
        async for value in generator:
            self._open.append((name, generator))
            return value
        raise RuntimeError(f"the dependency {name} has not yielded a value")

    async def close(self, error: BaseException | None) -> None:
        """Clean up, in the reverse order. What that raises is logged.

        Args:
            error: what the call has raised, which is raised in each generator at its `yield`, too.
        """
        if self.in_thread is not None and not self.in_thread.done():
            await asyncio.wait({asyncio.wrap_future(self.in_thread)})
        while self._open:
            name, generator = self._open.pop()
            traceback = None if error is None else error.__traceback__
            try:
                if hasattr(generator, "asend"):
                    await _finish_async(name, generator, error)
                elif self._submit is None:
                    _finish(name, generator, error)
                else:
                    await asyncio.wrap_future(self._submit(partial(_finish, name, generator, error), always=True))
            except (Exception, SystemExit) as failure:
                self._log.error(name, "the clean-up of the dependency %s failed", name, error=failure)
            finally:
                if error is not None:
                    error.__traceback__ = traceback


def _finish(name: str, generator: Generator[Any, None, Any], error: BaseException | None) -> None:
    """Run the rest of a generator. Raises what it raises, unless that is the error which it was given."""
    try:
        if error is None:
            next(generator)
        else:
            generator.throw(error)
    except StopIteration:
        return
    except BaseException as raised:
        if raised is error or isinstance(raised, asyncio.CancelledError):
            return
        raise
    generator.close()
    raise RuntimeError(f"the dependency {name} has yielded twice")


async def _finish_async(name: str, generator: AsyncGenerator[Any, None], error: BaseException | None) -> None:
    rest: Awaitable[Any] = anext(generator) if error is None else generator.athrow(error)
    try:
        await rest
    except StopAsyncIteration:
        return
    except BaseException as raised:
        if raised is error:
            return
        raise
    await generator.aclose()
    raise RuntimeError(f"the dependency {name} has yielded twice")
