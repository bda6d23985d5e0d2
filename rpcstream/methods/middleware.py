"""Middleware: async functions around the calls of a server, for limits, audit logs, timing and the like.

Owns what such a function sees of a call (`MethodCall`), and how several are put around a handler. A dispatcher without
middleware knows nothing of it: a `MiddlewareDispatcher` takes its place, whose methods are all awaited.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..codec.image_budget import INLINE_PIXELS
from ..errors import RegistrationError
from ..peer.context import CallContext, Context
from ..peer.state import ConversationState
from .dependency_call import DependencyRunner
from .dispatch import Dispatcher
from .injection import Injection
from .introspect import holds
from .registry import RESERVED, Method
from .stream_call import CallRunner

#: Goes on with a call: the next middleware, in the end the handler. Gives the result.
CallNext = Callable[["MethodCall"], Awaitable[Any]]
#: What `@server.middleware` takes: an async function of the call and of what goes on with it; it gives the result.
Middleware = Callable[["MethodCall", CallNext], Awaitable[Any]]

#: For methods that have no injected parameters: as any injection, it keeps a call from the path of plain calls.
_NOTHING_INJECTED = Injection(None, ())


class MethodCall:
    """One call on its way to a handler, as middleware sees it.

    Attributes:
        name: the remote name of the method.
        method: as it is registered: its function, options and signature.
        context: the call's `Context`: who calls, from where, with which headers and deadline. If the handler is a sync
            function that takes a Context itself, `context.peer` is the one for that function.
    """

    __slots__ = ("_args", "_bound", "_hidden", "_kwargs", "_runner", "context", "method", "name")

    def __init__(
        self, method: Method, context: CallContext, args: tuple[Any, ...], kwargs: dict[str, Any], runner: Any
    ) -> None:
        self.name = method.name
        self.method = method
        self.context: Context = context
        self._args = args
        self._kwargs = kwargs
        self._runner: MiddlewareRunner | None = runner
        self._bound: inspect.BoundArguments | None = None
        self._hidden: dict[str, Any] = {}

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments for the function by the names of its parameters: checked, decoded, defaults filled in.

        What `*args` took is a tuple, what `**kwargs` took an object under that name; a stream is its iterator. The
        Context and dependencies are not among them. What is changed here before `call_next` is what the handler gets;
        it is not checked again.
        """
        if self._bound is None:
            bound = inspect.signature(self.method.function).bind_partial(*self._args, **self._kwargs)
            bound.apply_defaults()
            self._bound = bound
            signature = self.method.signature
            hidden = [*signature.dependencies, *([signature.context.name] if signature.context is not None else [])]
            self._hidden = {name: bound.arguments.pop(name) for name in hidden}
        return self._bound.arguments

    @property
    def is_notification(self) -> bool:
        """The caller waits for no reply, and is told neither result nor error."""
        return self.context.is_notification

    async def _run_handler(self) -> Any:
        """Run the handler, once."""
        runner, self._runner = self._runner, None
        if runner is None:
            raise RuntimeError(f"middleware has called call_next for {self.name!r} twice: a handler runs once a call")
        args, kwargs = self._args, self._kwargs
        if self._bound is not None:
            unknown = self._bound.arguments.keys() - self._bound.signature.parameters.keys()
            if unknown:
                raise TypeError(
                    f"middleware has given {self.name!r} arguments that it does not have: {sorted(unknown)}"
                )
            self._bound.arguments.update(self._hidden)
            args, kwargs = self._bound.args, self._bound.kwargs
        return await runner.run_handler(args, kwargs)


def checked(function: Middleware) -> Middleware:
    """The function, if it can be middleware.

    Raises:
        RegistrationError: it is no async function, or does not take the call and `call_next`.
    """
    name = getattr(function, "__name__", repr(function))
    if not holds(function, inspect.iscoroutinefunction):
        raise RegistrationError(f"{name}: middleware is an async function: async def {name}(call, call_next)")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise RegistrationError(
            f"{name}: middleware takes two arguments, the call and what goes on with it: "
            f"async def {name}(call, call_next): {error}"
        ) from None
    return function


def _around(middleware: Middleware, inner: CallNext) -> CallNext:
    def call_next(call: MethodCall) -> Awaitable[Any]:
        return middleware(call, inner)

    return call_next


def composed(middleware: tuple[Middleware, ...]) -> CallNext:
    """All middleware around the handler of a call, the first one outermost."""
    chain: CallNext = MethodCall._run_handler
    for function in reversed(middleware):
        chain = _around(function, chain)
    return chain


class MiddlewareRunner(DependencyRunner):
    """Runs one call with middleware around its handler; a stream with all its items is inside."""

    def __init__(self, chain: CallNext, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._chain = chain
        self._method: Method | None = None
        #: What a generator's caller gets, which middleware does not see.
        self._items: Any = None
        self._has_items = False

    async def _begin(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._method = method
        result = await self._chain(MethodCall(method, self.context, args, kwargs, self))
        return self._items if self._has_items else result

    async def run_handler(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the handler itself; gives its result, None for a generator."""
        assert self._method is not None
        result = super()._begin(self._method, args, kwargs)
        if inspect.isawaitable(result):
            result = await result
        if self._method.generator is None:
            return result
        self._items, self._has_items = result, True
        return None


class _AwaitedMethods(Mapping[str, Method]):
    """The methods of a registry, changed so that a dispatcher awaits them; the framework's own are left as they are."""

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self._methods = methods
        self._known: dict[str, tuple[Method, Method]] = {}

    def __getitem__(self, name: str) -> Method:
        method = self._methods[name]
        known = self._known.get(name)
        if known is None or known[0] is not method:  # new, or another one in its place
            known = self._known[name] = method, _awaited(method)
        return known[1]

    def __contains__(self, name: object) -> bool:
        return name in self._methods

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)


def _awaited(method: Method) -> Method:
    if _is_own(method):
        return method
    # The images of its arguments are kept for as long as the middleware waits, so their memory is counted.
    method.signature.decode_images(here=0 if method.offload else INLINE_PIXELS, reports=True)
    return replace(method, inline=False, begins_now=False, injection=method.injection or _NOTHING_INJECTED)


def _is_own(method: Method) -> bool:
    return method.name.startswith(RESERVED)


class MiddlewareDispatcher(Dispatcher):
    """A `Dispatcher` with middleware around every call, except those of the methods `rpc.*`.

    Args:
        middleware: the first one outermost.
        options: as for a `Dispatcher`.
    """

    def __init__(self, *args: Any, middleware: tuple[Middleware, ...], **options: Any) -> None:
        super().__init__(*args, **options)
        self._chain = composed(middleware)
        self._methods = _AwaitedMethods(self._methods)
        self._for_all = _AwaitedMethods(self._for_all)

    def _runner_of(self, method: Method) -> Callable[..., CallRunner]:
        if _is_own(method):
            return super()._runner_of(method)
        return functools.partial(MiddlewareRunner, self._chain, method.dependencies, self.clean_ups)

    def _context(
        self, method: Method, message: dict[str, Any], timeout: float | None, session: ConversationState
    ) -> CallContext:
        # A sync handler that takes no Context leaves it to the middleware, which is async.
        is_async = method.is_async or (method.signature.context is None and not method.signature.streams)
        return CallContext(session, message, timeout=timeout, is_async=is_async, batch=self._batches.current)
