"""Reads the signature of a Python function: its parameters, and its type hints with all strings resolved.

Looks behind partials, wrappers and callable objects, and finds local classes. Knows nothing of the wire.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from inspect import Parameter
from typing import Any, get_args

from ..errors import RegistrationError
from ..peer.context import CallContext, Context


def context_parameter(parameters: list[Parameter], hints: dict[str, Any], method: str) -> Parameter | None:
    """The parameter whose hint is Context (or `Context | None`, for functions that are called directly as well)."""
    found = [each for each in parameters if _is_context(hints.get(each.name))]
    if not found:
        return None
    if len(found) > 1 or found[0].kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        raise RegistrationError(f"{method}: one parameter may be the Context, and not *args or **kwargs")
    return found[0]


def _is_context(hint: Any) -> bool:
    return any(each in (Context, CallContext) for each in (hint, *get_args(hint)))


def signature_of(function: Callable[..., Any], method: str) -> inspect.Signature:
    """The signature of a function. Raises RegistrationError if it has none, as some that are written in C."""
    try:
        return inspect.signature(function)
    except (ValueError, TypeError) as error:
        raise RegistrationError(f"{method}: {function!r} has no signature that could be checked: {error}") from None


def hints_of(function: Callable[..., Any], method: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """The function's hints, strings resolved: in its module, its closure, and the scope it was registered in."""
    source: Any = function
    while isinstance(source, functools.partial) or hasattr(source, "__wrapped__"):
        source = source.func if isinstance(source, functools.partial) else source.__wrapped__
    if not isinstance(source, types.FunctionType | types.MethodType | types.BuiltinFunctionType | type):
        source = type(source).__call__
    plain = getattr(source, "__func__", source)
    if isinstance(plain, type):
        plain = plain.__init__  # type: ignore[misc]
    names = dict(namespace)
    if isinstance(plain, types.FunctionType):
        if "<locals>" not in plain.__qualname__:
            # It was written at the top of its module: names of where it is registered mean nothing to it.
            names = {name: value for name, value in names.items() if name not in plain.__globals__}
        names.update(_closure_of(plain))
    try:
        return typing.get_type_hints(plain, localns=names, include_extras=True)
    except NameError as error:
        return _hints_one_by_one(plain, names, method, error)
    except (TypeError, AttributeError) as error:
        if not getattr(plain, "__annotations__", None):
            return {}
        raise RegistrationError(f"{method}: its hints cannot be read: {error}") from error


def _hints_one_by_one(function: Any, names: dict[str, Any], method: str, error: Exception) -> dict[str, Any]:
    """Raise RegistrationError for a hint with an unknown name in a string; the text names its parameter."""
    for name, hint in function.__annotations__.items():
        single = types.SimpleNamespace(__annotations__={name: hint})
        try:
            typing.get_type_hints(single, getattr(function, "__globals__", {}), names, include_extras=True)
        except Exception as cause:
            what = "the return value" if name == "return" else f"parameter {name!r}"
            raise RegistrationError(f"{method}: {what}: its hint {hint!r}: {cause}") from cause
    raise RegistrationError(f"{method}: its hints cannot be read: {error}") from error


def _closure_of(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    return found


def caller_namespace() -> dict[str, Any]:
    """The local names of the code that called rpcstream: string hints may name classes of that scope."""
    frame: types.FrameType | None = sys._getframe(1)
    own = __name__.partition(".")[0] + "."
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(own):
        frame = frame.f_back
    return dict(frame.f_locals) if frame is not None else {}


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function. Raises RegistrationError for a lambda or an object without one."""
    source: Any = function
    while isinstance(source, functools.partial):
        source = source.func
    name = getattr(source, "__name__", None)
    if name is None or name == "<lambda>":
        raise RegistrationError(f"{function!r} has no name of its own; pass name=…")
    return str(name)


def doc_of(function: Callable[..., Any], longest: int = 1_000_000) -> str | None:
    """The docstring of a function, behind partials and callable objects; None if it has none.

    Args:
        function: or any other callable.
        longest: characters of the docstring that are looked at.
    """
    while isinstance(function, functools.partial) and "__doc__" not in vars(function):
        function = function.func
    text = _clean_doc(function, longest)
    if text is None and not (inspect.isroutine(function) or isinstance(function, functools.partial)):
        text = _clean_doc(type(function).__call__, longest)
    return text


def _clean_doc(function: Any, longest: int) -> str | None:
    """The docstring of an object, without its indentation, which takes long to find in a very long one."""
    text = function.__doc__
    if isinstance(text, str) and len(text) > longest:
        return inspect.cleandoc(text[:longest])
    return inspect.getdoc(function)


def holds(function: Callable[..., Any], question: Callable[[Any], bool]) -> bool:
    """Apply a test such as `inspect.iscoroutinefunction` to the function behind partials and callable objects."""
    while isinstance(function, functools.partial):
        function = function.func
    return question(function) or question(type(function).__call__)
