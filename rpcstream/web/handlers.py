"""A function that answers GET, called with the parameters of a request: its result, its error, or its time-out."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import Callable, Coroutine, Mapping
from time import perf_counter
from typing import Any, cast

from ..codec import Codec
from ..errors import RegistrationError
from ..methods.call import Invoker, check_picklable
from ..methods.introspect import FunctionKind
from ..methods.method import Method
from ..methods.options import Offload
from ..observe.limited_log import LimitedLog
from ..text import get_logger
from ..wire.http_messages import HttpError, Request, Response, problem
from .inputs import Inputs, InvalidInputError
from .responses import call_in_process, error_response, responding, response_to

log = get_logger("rpcstream.web")

#: Seconds for an async or offloaded handler that sets no other time-out.
TIMEOUT = 60.0


class Handler:
    """A function that answers GET.

    Args:
        function: sync or async.
        path: its path, for errors and the log.
        kinds: of the parameters in the path, as for `Inputs`.
        offload: "thread" or "process": where a sync function is run.
        timeout: seconds; None: `TIMEOUT`, if the function is async or offloaded. `math.inf` for none.
        slow: seconds; a function that keeps the loop for longer is named in a warning.
        debug: show exceptions to the caller.
        namespace: names for string hints.
        invoker: gives the invoker, which runs offloaded functions.

    Raises:
        RegistrationError: the function cannot be a handler with these options; the text says why.
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
        slow: float,
        debug: bool,
        namespace: dict[str, Any],
        invoker: Callable[[], Invoker],
    ) -> None:
        self.name = f"GET {path}"
        self._log = LimitedLog(log)
        kind = FunctionKind(function)
        self._is_async = kind.is_async
        self._invoker = invoker
        self.offload = offload
        self._check_function(function, kind)
        kind.check_runner(self.name, offload, timeout)
        self._inputs = Inputs(function, label=self.name, kinds=kinds, namespace=namespace)
        self._codec = codec
        self._slow = slow
        self._debug = debug
        limit = TIMEOUT if timeout is None else timeout
        self._timeout = None if limit == math.inf else limit
        #: What the invoker runs.
        self.function: Callable[..., Any] = function
        if offload == "thread":
            self.function = functools.partial(self._responded, function)
        elif offload == "process":
            self.function = functools.partial(call_in_process, function)

    def check(self) -> None:
        """Raise RegistrationError if the function is for another process and cannot be imported there."""
        if self.offload == "process":
            check_picklable(cast(Method, self))

    def answer(self, request: Request, parameters: Mapping[str, str]) -> Response | Coroutine[Any, Any, Response]:
        """The response, now or awaited. A sync function that is not offloaded has run when this returns."""
        try:
            args, kwargs = self._inputs.bind(request, parameters)
        except InvalidInputError as wrong:
            return problem(400, str(wrong))
        except Exception as error:
            return self._failed(error)
        if self.offload is not None:
            method = cast(Method, self)  # the invoker uses only `name`, `function`, and `offload` of a method
            run = functools.partial(self._invoker().run, method, tuple(args), kwargs)
            return responding(functools.partial(self._finish, run), self._failed)
        call = functools.partial(self.function, *args, **kwargs)
        if self._is_async:
            return responding(functools.partial(self._finish, call), self._failed)
        since = perf_counter()
        try:
            result = call()
            if inspect.isawaitable(result):
                return responding(lambda: self._finish(lambda: result), self._failed)
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
        except TimeoutError:
            if not deadline.expired():
                raise
            self._log.warning(None, "%s took longer than %g s", self.name, self._timeout)
            return problem(503, f"This page took longer than {self._timeout:g} s")

    def _responded(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Response:
        """Call the function and make its response, in a thread: encoding a large image would keep the event loop."""
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
            kind = "%s kept the event loop for %.3f s, and no other request was served: %s"
            self._log.warning(None, kind, self.name, seconds, advice)

    def _check_function(self, function: Callable[..., Any], kind: FunctionKind) -> None:
        if not callable(function):
            raise RegistrationError(f"{self.name}: a handler is a function, got {function!r}")
        if kind.is_generator:
            raise RegistrationError(f"{self.name}: a handler returns its page in one piece; it cannot be a generator")
        if self.offload == "process" and "<" in getattr(function, "__qualname__", ""):  # <locals>, <lambda>
            raise RegistrationError(f"{self.name}: offload='process' needs a function that another process can import")
