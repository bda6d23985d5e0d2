"""Middleware: async functions around the calls of a server, for limits, audit logs, timing and the like."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from typing import Any

from ..errors import RegistrationError
from ..peer.context import Context
from .call import Call
from .introspect import FunctionKind
from .method import Method, Run

#: Goes on with a call: the next middleware, in the end the handler. Gives the result.
CallNext = Callable[["MethodCall"], Awaitable[Any]]
#: What `@server.middleware` takes: an async function of the call and of what goes on with it; it gives the result.
Middleware = Callable[["MethodCall", CallNext], Awaitable[Any]]


class MethodCall:
    """One call on its way to a handler, as middleware sees it.

    Attributes:
        name: the remote name of the method.
        method: the registered method: its function, options and signature.
        context: the call's `Context`: the caller's identity, address and headers, and the deadline. If the handler is a
            sync function with a Context, `context.peer` is meant for that function.
    """

    def __init__(
        self, call: Call, run: Run, seen: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.name = call.method.name
        self.method: Method = call.method
        self.context: Context = call.context
        self._run: Callable[..., Awaitable[Any]] | None = partial(run, call)
        self._signature = seen
        self._args = args
        self._kwargs = kwargs
        #: What a generator's caller gets, which middleware does not see.
        self._items: Any = None

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments for the function by the names of its parameters: checked, decoded, defaults filled in.

        What `*args` took is a tuple, what `**kwargs` took an object under that name; a stream is its iterator. The
        Context and dependencies are not among them. What is changed here before `call_next` is what the handler gets;
        it is not checked again.
        """
        return self._bound().arguments

    def _bound(self) -> inspect.BoundArguments:
        bound = self._signature.bind_partial(*self._args, **self._kwargs)
        bound.apply_defaults()
        return bound

    async def _run_handler(self) -> Any:
        """Run the handler, once; gives its result, None for a generator."""
        run, self._run = self._run, None
        if run is None:
            raise RuntimeError(f"middleware has called call_next for {self.name!r} twice: call it once")
        args, kwargs = self._args, self._kwargs
        if "arguments" in self.__dict__:
            bound = self._bound()
            if unknown := self.arguments.keys() - bound.arguments.keys():
                raise TypeError(f"middleware gave {self.name!r} unknown arguments: {sorted(unknown)}")
            bound.arguments.update(self.arguments)
            args, kwargs = bound.args, bound.kwargs
        result = await run(args, kwargs)
        if not self.method.is_generator:
            return result
        self._items = (result,)
        return None


def checked(function: Middleware) -> Middleware:
    """The function, if it can be middleware.

    Raises:
        RegistrationError: it is no async function.
    """
    name = getattr(function, "__name__", repr(function))
    if not FunctionKind(function).is_async:
        raise RegistrationError(f"{name}: middleware is an async function: async def {name}(call, call_next)")
    return function


def composed(middleware: list[Middleware], method: Method) -> Run:
    """All middleware around what runs the calls of a method, the first one outermost."""
    signature, run = inspect.signature(method.function), method.run
    hidden = [each.parameter.name for each in method.signature.provided]
    visible = [parameter for name, parameter in signature.parameters.items() if name not in hidden]
    signature = signature.replace(parameters=visible)
    chain: CallNext = MethodCall._run_handler
    for function in reversed(middleware):
        chain = partial(_call, function, chain)

    async def around(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen = MethodCall(call, run, signature, args, kwargs)
        result = await chain(seen)
        return result if seen._items is None else seen._items[0]

    return around


def _call(middleware: Middleware, inner: CallNext, call: MethodCall) -> Awaitable[Any]:
    return middleware(call, inner)
