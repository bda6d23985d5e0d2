"""What functions provide to a handler, in place of its caller: `Annotated[Session, Depends(open_session)]`.

The functions that a handler needs are put in order once, at registration. For each call they are called in this order,
and those that yield are entered in an `AsyncExitStack`, which the call closes before its reply.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from ..codec.hints import expanded
from ..errors import RegistrationError
from ..peer.context import CallContext, Context
from ..peer.deadline import forget
from .introspect import FunctionKind, signature_of
from .threads import until_done

#: Runs a function in a thread of the pool, even if too many calls wait (`always=True`).
Submit = Callable[..., "Future[Any]"]
#: What is called in place of a dependency's own function: `Server.dependency_overrides`.
Overrides = Mapping[Callable[..., Any], Callable[..., Any]]

#: The kinds of parameters that stand for many arguments.
_MANY = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Depends:
    """Names the function that provides a parameter: `session: Annotated[Session, Depends(open_session)]`.

    Callers do not see the parameter. The function runs once for each call, and its result is the argument. It may be
    sync or async, or a generator with one `yield`. The code after the `yield` runs after the handler and before the
    reply; if it raises, the call fails. Its own parameters may be a `Context` and further dependencies.

    Args:
        function: any callable with a Python signature, such as a class.
    """

    function: Callable[..., Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"Depends takes a function, not {self.function!r}")


#: Provides the Context of the call.
CONTEXT = Depends(Context)


def dependency_of(parameter: Parameter) -> Depends | None:
    """What provides a parameter; None for one that the caller gives.

    Raises:
        TypeError: it is said in a way that is not understood.
    """
    if isinstance(parameter.default, Depends):
        raise TypeError(f"write a dependency in the hint: {parameter.name}: Annotated[..., Depends(...)]")
    hint = expanded(parameter.annotation)
    found = [each for each in get_args(hint) if isinstance(each, Depends)] if get_origin(hint) is Annotated else []
    if not found and any(each in (Context, CallContext) for each in (hint, *get_args(hint))):
        found = [CONTEXT]
    if len(found) > 1 or (found and parameter.kind in _MANY):
        raise TypeError("one function, or the Context, is for one parameter, which is not *args or **kwargs")
    return found[0] if found else None


class Provided(NamedTuple):
    """A parameter of a handler that callers do not give, and its position among all parameters."""

    depends: Depends
    parameter: Parameter
    position: int


class _Step(NamedTuple):
    """One function that is called for each call.

    Attributes:
        function: gives a value, an awaitable of it, or a context manager with it (`is_generator`).
        needs: for its parameters, which of the values before: the Context is the first, then one for each step.
    """

    function: Callable[..., Any]
    needs: Mapping[str, int]
    is_async: bool
    is_generator: bool


class Dependencies:
    """The parameters of one handler that are provided.

    Args:
        wanted: what provides each of them.
        method: its remote name, for the errors.
        overrides: functions that are called in place of others; it may change later.
        namespace: names for string hints that are not in the functions' modules.
        in_thread: sync functions run in threads, since the handler does.

    Raises:
        RegistrationError: a function's signature does not fit; the text names function and parameter.
    """

    def __init__(
        self,
        wanted: list[Depends],
        *,
        method: str,
        overrides: Overrides,
        namespace: dict[str, Any] | None,
        in_thread: bool,
    ) -> None:
        self._overrides = overrides
        self._in_thread = in_thread
        self._make_plan = partial(_Plan, wanted, method, namespace or {})
        self._plan = self._make_plan({})

    async def run(self, call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the handler of a call, with its dependencies opened before and closed after it.

        Closing has all the time it wants, and so have the calls that are made there. What it raises is raised.
        """
        error: BaseException | None = None
        result: Any = None
        stack = AsyncExitStack()
        try:
            try:
                result = await call.handle(args, kwargs, await self._provide(call, stack))
            except BaseException as raised:
                error = raised
            with call.session.running.undisturbed():
                forget()
                if call.deadline is not None and not call.deadline.expired():
                    call.deadline.reschedule(None)
                if call.running is not None and not call.running.done():  # cancelled, but a thread goes on
                    await asyncio.wait({asyncio.wrap_future(call.running)})
                await stack.__aexit__(None if error is None else type(error), error, None)
            if error is not None:
                raise error
            return result
        finally:
            del error  # its traceback has this frame

    async def _provide(self, call: Any, stack: AsyncExitStack) -> list[Any]:
        """Call the functions in order; gives the values of the parameters. Raises what a function raises."""
        plan = self._make_plan(self._overrides) if self._overrides else self._plan
        values: list[Any] = [call.context]
        for step in plan.steps:
            given = {name: values[at] for name, at in step.needs.items()}
            values.append(await self._value(step, given, call.invoker.submit, stack))
        return [values[at] for at in plan.wanted]

    async def _value(self, step: _Step, given: dict[str, Any], submit: Submit, stack: AsyncExitStack) -> Any:
        in_thread = self._in_thread and not step.is_async
        if in_thread and not step.is_generator:
            return await until_done(submit(partial(step.function, **given)))
        value = step.function(**given)
        if not step.is_generator:
            return await value if inspect.isawaitable(value) else value
        if step.is_async:
            return await stack.enter_async_context(value)
        return await _entered_in_thread(value, submit, stack) if in_thread else stack.enter_context(value)


async def _entered_in_thread(manager: AbstractContextManager[Any], submit: Submit, stack: AsyncExitStack) -> Any:
    entered = submit(manager.__enter__)

    async def leave(*error: Any) -> None:
        if not entered.cancelled() and entered.exception() is None:
            await until_done(submit(partial(manager.__exit__, *error), always=True))

    stack.push_async_exit(leave)
    return await until_done(entered)


class _Plan:
    """The functions that provide the parameters of a handler, those that theirs need before them.

    Attributes:
        steps: in the order in which they are called.
        wanted: which of the values the handler gets.
    """

    def __init__(self, wanted: list[Depends], method: str, namespace: dict[str, Any], overrides: Overrides) -> None:
        self.steps: list[_Step] = []
        self._method = method
        self._namespace = namespace
        self._overrides = overrides
        #: Of each function the place of its value; None while its own needs are looked for.
        self._places: dict[Any, int | None] = {Context: 0}
        self.wanted = [self._place_of(each) for each in wanted]

    def _place_of(self, wanted: Depends) -> int:
        function = self._overrides.get(wanted.function, wanted.function)
        what = f"{self._method}: the dependency {getattr(function, '__qualname__', function)}"
        if function not in self._places:
            self._places[function] = None
            needs, kind = self._needs(function, what), FunctionKind(function)
            call: Callable[..., Any] = function
            if kind.is_generator:
                call = asynccontextmanager(function) if kind.is_async else contextmanager(function)
            self.steps.append(_Step(call, needs, kind.is_async, kind.is_generator))
            self._places[function] = len(self.steps)
        place = self._places[function]
        if place is None:
            raise RegistrationError(f"{what} depends on itself")
        return place

    def _needs(self, function: Callable[..., Any], what: str) -> dict[str, int]:
        needs: dict[str, int] = {}
        for name, parameter in signature_of(function, what, self._namespace).parameters.items():
            try:
                wanted = dependency_of(parameter)
            except TypeError as error:
                raise RegistrationError(f"{what}: parameter {name!r}: {error}") from error
            if wanted is not None:
                needs[name] = self._place_of(wanted)
            elif parameter.default is Parameter.empty and parameter.kind not in _MANY:
                why = "is neither a Context nor a dependency, and has no default"
                raise RegistrationError(f"{what}: its parameter {name!r} {why}")
        return needs
