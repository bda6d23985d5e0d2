"""Reads the signature of a Python function, behind partials, wrappers and callable objects; resolves string hints."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from inspect import Parameter
from typing import Any

from ..errors import RegistrationError


def signature_of(function: Callable[..., Any], method: str, namespace: dict[str, Any]) -> inspect.Signature:
    """The signature of a function, with each string hint resolved, and `Any` where there is no hint.

    Args:
        method: what errors call the function.
        namespace: names that the hints of a local function may use besides those of its module.

    Raises:
        RegistrationError: it has no signature, as some functions that are written in C; or a name is not known.
    """
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError) as error:
        raise RegistrationError(f"{method}: {function!r} has no signature that could be checked: {error}") from None
    source = _source(inspect.unwrap(_behind_partials(function)))
    module = getattr(getattr(source, "__init__", None) if isinstance(source, type) else source, "__globals__", {})
    # What is written at the top of its module cannot mean names of where it is registered.
    local = namespace if "<locals>" in getattr(source, "__qualname__", "") else {}

    def resolved(hint: Any, what: str) -> Any:
        if hint is Parameter.empty:
            return Any
        single = types.SimpleNamespace(__annotations__={"hint": hint})
        try:
            return typing.get_type_hints(single, module, local, include_extras=True)["hint"]
        except Exception as error:
            raise RegistrationError(f"{method}: {what}: its hint {hint!r}: {error}") from error

    return signature.replace(
        parameters=[
            each.replace(annotation=resolved(each.annotation, f"parameter {each.name!r}"))
            for each in signature.parameters.values()
        ],
        return_annotation=resolved(signature.return_annotation, "the return value"),
    )


def caller_namespace() -> dict[str, Any]:
    """The local names of the code that called rpcstream: string hints may name classes of that scope."""
    frame: types.FrameType | None = sys._getframe(1)
    own = __name__.partition(".")[0] + "."
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(own):
        frame = frame.f_back
    return dict(frame.f_locals) if frame is not None else {}


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function. Raises RegistrationError for a lambda or an object without one."""
    name = getattr(_behind_partials(function), "__name__", None)
    if name is None or name == "<lambda>":
        raise RegistrationError(f"{function!r} has no name of its own; pass name=…")
    return str(name)


def doc_of(function: Callable[..., Any]) -> str | None:
    """The docstring of a function, behind partials and callable objects; None if it has none.

    A very long one comes without what is behind its first million characters, since to find its indentation takes long.
    """
    plain = _behind_partials(function)
    text = plain.__doc__ or _source(plain).__doc__
    return inspect.cleandoc(text[:1_000_000]) if isinstance(text, str) else None


class FunctionKind:
    """The kind of a handler's function, behind partials, wrappers and callable objects."""

    def __init__(self, function: Callable[..., Any]) -> None:
        plain = _source(function)
        inner = _source(inspect.unwrap(_behind_partials(function)))
        is_stream = inspect.isasyncgenfunction(plain)
        is_coroutine = inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(inner)
        self.is_async = is_stream or is_coroutine
        self.is_generator = is_stream or inspect.isgeneratorfunction(plain)

    def check_runner(self, label: str, offload: object, timeout: float | None) -> None:
        """Raise RegistrationError for options that a function of this kind cannot have.

        Args:
            label: what errors call the function.
            offload: "thread" or "process": where it is to run; None: in the event loop.
            timeout: seconds that it may take; None: no limit.
        """
        refusals: dict[str, object] = {
            "offload must be 'thread', 'process' or None": offload not in (None, "thread", "process"),
            "offload is for sync functions; an async one shares the loop already": offload and self.is_async,
            "a generator runs in a thread at most: offload='thread'": offload == "process" and self.is_generator,
            "timeout must be a positive number of seconds": timeout is not None and not timeout > 0,
            "a time-out cannot stop a sync function in the event loop; add offload='thread'": (
                timeout and not (offload or self.is_async or self.is_generator)
            ),
        }
        for text, is_wrong in refusals.items():
            if is_wrong:
                raise RegistrationError(f"{label}: {text}")


def _behind_partials(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _source(function: Any) -> Any:
    """The function that is called, behind partials and callable objects; a class is one itself."""
    plain = _behind_partials(function)
    return plain if inspect.isroutine(plain) or isinstance(plain, type) else type(plain).__call__
