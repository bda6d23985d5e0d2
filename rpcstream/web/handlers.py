"""A handler of GET: a function, and all that a request for it needs.

Owns one request's way from its parameters to its response, whatever comes of it: a result, an error, a time-out. Knows
neither paths nor sockets; where a handler that waits is run is the invoker's.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import traceback
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, cast

from ..codec import Codec
from ..errors import RegistrationError, ServerBusy
from ..methods.introspect import holds
from ..methods.invoke import Invoker, check_picklable
from ..methods.options import Offload
from ..methods.registry import Method
from ..observe.limited_log import LimitedLog
from ..text import get_logger
from ..wire.http_messages import HttpError, Request, Response, problem
from .inputs import Inputs, InvalidInputError
from .responses import call_in_process, response_to

log = get_logger("rpcstream.web")


class DeferredResponse:
    """A response that takes a while. `respond` is called once, or not at all."""

    __slots__ = ("_log", "_make")

    def __init__(self, make: Callable[[], Awaitable[Response]], limited: LimitedLog) -> None:
        self._make = make
        self._log = limited

    async def respond(self) -> Response:
        """The response, whatever happens. Cancel it when nobody waits any more."""
        try:
            return await self._make()
        except (KeyboardInterrupt, GeneratorExit):  # the program ends, or this is thrown away
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            return error_response("a file's response", error, self._log)


def is_cancelled() -> bool:
    """Was this task cancelled, by whom it answers? Else what it waited for was: a pool that is closed, say."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def error_response(name: str, error: BaseException, limited: LimitedLog, *, debug: bool = False) -> Response:
    """The response for what was raised; nothing internal goes out unless debugging."""
    if isinstance(error, ServerBusy) and error.address is None:
        return problem(503, "The server is busy; try again later")
    limited.error(name, "%s failed", name, error=error)
    if debug:
        return problem(500, "".join(traceback.format_exception(error)).encode(errors="replace").decode())
    return problem(500, "Internal error; what happened is in the server's log")


class Handler:
    """A function that answers GET.

    Args:
        function: sync or async.
        path: its path, for errors and the log.
        kinds: the places in the path, as `Inputs` takes them.
        offload: "thread" or "process": where a sync function is run.
        timeout: seconds; None: `default_timeout`, where it can act. `math.inf` for none.
        default_timeout: for async and offloaded functions that say nothing else.
        slow: seconds; a function that keeps the loop for longer is named in a warning.
        debug: show exceptions to the caller.
        namespace: names for string hints.

    Raises:
        RegistrationError: it cannot be a handler as it is; the text says why.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        path: str,
        kinds: Mapping[str, str],
        codec: Codec,
        offload: Offload | None,
        timeout: float | None,
        default_timeout: float,
        slow: float,
        debug: bool,
        namespace: dict[str, Any],
    ) -> None:
        self.name = f"GET {path}"
        self._log = LimitedLog(log)
        self.is_async = holds(function, inspect.iscoroutinefunction) or holds(
            inspect.unwrap(function), inspect.iscoroutinefunction
        )
        self.offload = offload
        self._check_options(function, timeout)
        self._inputs = Inputs(function, label=self.name, kinds=kinds, namespace=namespace)
        self._codec = codec
        self._slow = slow
        self._debug = debug
        limit = default_timeout if timeout is None else timeout
        self._timeout = None if limit == math.inf else limit
        #: What the invoker runs.
        self.function: Callable[..., Any] = function
        if offload == "thread":
            self.function = functools.partial(self._responded, function)
        elif offload == "process":
            self.function = functools.partial(call_in_process, function)

    def check(self) -> None:
        """Raises RegistrationError unless another process can import the function, where that must be."""
        if self.offload == "process":
            check_picklable(self._as_method)

    def start(self, request: Request, places: Mapping[str, str], invoker: Invoker) -> Response | DeferredResponse:
        """Its response, or what gives it. A plain sync function has run when this returns."""
        try:
            args, kwargs = self._inputs.bind(request, places)
        except InvalidInputError as wrong:
            return problem(400, str(wrong))
        except Exception as error:
            return self._failed(error)
        if self.is_async or self.offload is not None:
            return DeferredResponse(
                lambda: self._finish(lambda: invoker.start(self._as_method, tuple(args), kwargs)), self._log
            )
        since = perf_counter()
        try:
            result = self.function(*args, **kwargs)
            if inspect.isawaitable(result):
                return DeferredResponse(lambda: self._finish(lambda: result), self._log)
            return response_to(result, self._codec)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._failed(error)
        finally:
            self._check_duration(perf_counter() - since)

    async def _finish(self, begin: Callable[[], Any]) -> Response:
        try:
            async with asyncio.timeout(self._timeout) as deadline:
                result = begin()
                return response_to(await result if inspect.isawaitable(result) else result, self._codec)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            if isinstance(error, TimeoutError) and deadline.expired():
                self._log.warning(None, "%s took longer than %g s", self.name, self._timeout)
                return problem(503, f"This page took longer than {self._timeout:g} s")
            return self._failed(error)

    def _responded(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Response:
        """In a thread: the response is made there, too, so that the loop need not write a large image."""
        return response_to(function(*args, **kwargs), self._codec)

    def _failed(self, error: BaseException) -> Response:
        if isinstance(error, HttpError):
            try:
                return response_to(error.response, self._codec)
            except Exception as unfit:
                error = unfit
        return error_response(self.name, error, self._log, debug=self._debug)

    def _check_duration(self, seconds: float) -> None:
        if seconds > self._slow:
            advice = "register it with offload='thread' (or 'process', if it computes in Python)"
            kind = "%s kept the event loop for %.3f s; nobody else was served: %s"
            self._log.warning(None, kind, self.name, seconds, advice)

    @property
    def _as_method(self) -> Method:
        """For the invoker, which looks at `name`, `function`, `is_async` and `offload` and nothing else."""
        return cast(Method, self)

    def _check_options(self, function: Callable[..., Any], timeout: float | None) -> None:
        if not callable(function):
            raise RegistrationError(f"{self.name}: a handler is a function, got {function!r}")
        if holds(function, inspect.isgeneratorfunction) or holds(function, inspect.isasyncgenfunction):
            raise RegistrationError(f"{self.name}: a handler returns its page in one piece; it cannot be a generator")
        if self.offload not in (None, "thread", "process"):
            raise RegistrationError(f"{self.name}: offload must be 'thread', 'process' or None, got {self.offload!r}")
        if self.offload is not None and self.is_async:
            raise RegistrationError(f"{self.name}: offload is for sync functions; an async one shares the loop already")
        if timeout is not None and not timeout > 0:
            raise RegistrationError(f"{self.name}: timeout must be a positive number of seconds, got {timeout!r}")
        if timeout is not None and self.offload is None and not self.is_async:
            raise RegistrationError(
                f"{self.name}: a time-out cannot stop a sync function in the event loop; "
                "add offload='thread' or 'process'"
            )
        if self.offload == "process" and "<" in getattr(function, "__qualname__", ""):  # <locals>, <lambda>
            raise RegistrationError(f"{self.name}: offload='process' needs a function that another process can import")
