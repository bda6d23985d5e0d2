"""Remote methods by name: how functions, objects and modules become methods.

Owns names and options; a function's signature is compiled here, once, and never looked at again. Does not run anything.
"""

from __future__ import annotations

import fnmatch
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..codec import Codec
from ..errors import RegistrationError
from .signature import Bind, Signature

Offload = Literal["thread", "process"]

#: Names that begin so belong to the protocol (JSON-RPC 2.0, section 4) and to rpcstream itself.
RESERVED = ("rpc.", "$/")


@dataclass(frozen=True, slots=True)
class Method:
    """A function, and all that a call of it needs.

    `bind` gives the arguments for it (`Signature.bind`). `inline` methods run in the event loop and answer at once; the
    others are waited for. A result of the very class `returns` needs no `check_result`.
    """

    name: str
    function: Callable[..., Any]
    signature: Signature
    bind: Bind
    is_async: bool
    offload: Offload | None
    timeout: float | None
    check_result: Callable[[Any], Any] | None
    returns: type | None
    inline: bool


class MethodRegistry(Mapping[str, Method]):
    """The methods of a server. Reading it is reading a dict: `registry[name]`, `in`, iteration in order of entry."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        #: The dict itself, for the path of a call.
        self.by_name: dict[str, Method] = {}
        #: Counts the changes.
        self.version = 0

    def __getitem__(self, name: str) -> Method:
        return self.by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)

    def add(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        timeout: float | None = None,
        offload: Offload | None = None,
        check_result: bool = True,
        replace: bool = False,
        namespace: dict[str, Any] | None = None,
        reserved: bool = False,
    ) -> Method:
        """Make a function a remote method.

        Args:
            function: sync or async; a generator's items are returned as one array.
            name: the remote name; the function's own where it is not given.
            timeout: seconds after which the caller is answered with -32003. Not for a sync function that runs in the
                event loop, since nothing could stop it there.
            offload: "thread" or "process": run a sync function there, so that the event loop stays free.
            check_result: check what the function returns against its return hint.
            replace: take the place of a method of that name.
            namespace: names that string hints may use besides those of the function's module.
            reserved: the name may begin with `rpc.`; for the framework's own methods.

        Raises:
            RegistrationError: no name or a reserved one, a hint that cannot be checked, options that cannot act.
            ValueError: the name is taken.
        """
        name = _name_of(function) if name is None else name
        if not isinstance(name, str) or not name:
            raise RegistrationError(f"a method's name must be a string that is not empty, got {name!r}")
        if name.startswith(RESERVED) and not reserved:
            raise RegistrationError(f"{name}: names that begin with {' or '.join(RESERVED)} are reserved")
        if name in self.by_name and not replace:
            raise ValueError(f"a method {name!r} is registered already; pass replace=True to put another in its place")
        is_async = (
            _is(function, inspect.iscoroutinefunction)
            or _is(function, inspect.isasyncgenfunction)
            or _is(inspect.unwrap(function), inspect.iscoroutinefunction)
        )
        _check_options(name, function, is_async=is_async, timeout=timeout, offload=offload)
        signature = Signature(function, method=name, codec=self._codec, namespace=namespace)
        streams = _is(function, inspect.isgeneratorfunction) or _is(function, inspect.isasyncgenfunction)
        method = Method(
            name=name,
            function=_as_array(function, is_async=is_async) if streams else function,
            signature=signature,
            bind=signature.bind,
            is_async=is_async,
            offload=offload,
            timeout=timeout,
            check_result=signature.check_result if check_result else None,
            returns=signature.exact_result,
            inline=not is_async and offload is None,
        )
        self.by_name[name] = method
        self.version += 1
        return method

    def add_object(self, target: object, *, prefix: str = "", **options: Any) -> list[Method]:
        """Make the public methods of an object remote methods: those of its class that are written in Python.

        Args:
            target: an instance, or a class for its static and class methods.
            prefix: stands before the names; a dot is put between unless it ends in one.
            options: as for `add`.
        """
        prefix = f"{prefix}." if prefix and prefix[-1].isalnum() else prefix
        owner = target if isinstance(target, type) else type(target)
        methods = []
        for name, member in inspect.getmembers_static(owner):
            plain = isinstance(member, types.FunctionType) and target is not owner
            if not name.startswith("_") and (plain or isinstance(member, staticmethod | classmethod)):
                methods.append(self.add(getattr(target, name), name=prefix + name, **options))
        if not methods:
            raise RegistrationError(f"{target!r} has no public methods")
        return methods

    def add_module(
        self, module: types.ModuleType, *, pattern: str = "*", prefix: str = "", **options: Any
    ) -> list[Method]:
        """Make the public functions of a module remote methods.

        Args:
            module: with `__all__`, the functions that it names; else those that are defined in it, and with a pattern
                also those that it imports.
            pattern: of the names, as in a shell: "control_*".
            prefix: as for `add_object`.
            options: as for `add`.
        """
        prefix = f"{prefix}." if prefix and prefix[-1].isalnum() else prefix
        listed = getattr(module, "__all__", None)
        methods = []
        for name, function in inspect.getmembers(module, inspect.isfunction):
            own = name in listed if listed is not None else pattern != "*" or function.__module__ == module.__name__
            if own and not name.startswith("_") and fnmatch.fnmatchcase(name, pattern):
                methods.append(self.add(function, name=prefix + name, **options))
        if not methods:
            raise RegistrationError(f"the module {module.__name__} has no public functions that match {pattern!r}")
        return methods


def _name_of(function: Callable[..., Any]) -> str:
    source: Any = function
    while isinstance(source, functools.partial):
        source = source.func
    name = getattr(source, "__name__", None)
    if name is None or name == "<lambda>":
        raise RegistrationError(f"{function!r} has no name of its own; pass name=…")
    return str(name)


def _is(function: Callable[..., Any], question: Callable[[Any], bool]) -> bool:
    """Ask it of the function behind partials and callable objects."""
    while isinstance(function, functools.partial):
        function = function.func
    return question(function) or question(type(function).__call__)


def _check_options(
    name: str, function: Callable[..., Any], *, is_async: bool, timeout: float | None, offload: str | None
) -> None:
    if offload not in (None, "thread", "process"):
        raise RegistrationError(f"{name}: offload must be 'thread', 'process' or None, got {offload!r}")
    if offload is not None and is_async:
        raise RegistrationError(f"{name}: offload is for sync functions; an async one shares the loop already")
    if timeout is not None and not timeout > 0:
        raise RegistrationError(f"{name}: timeout must be a positive number of seconds, got {timeout!r}")
    if timeout is not None and offload is None and not is_async:
        raise RegistrationError(
            f"{name}: a time-out cannot stop a sync function in the event loop; add offload='thread' or 'process'"
        )
    if offload == "process" and "<" in getattr(function, "__qualname__", ""):  # <locals>, <lambda>
        raise RegistrationError(f"{name}: offload='process' needs a function that another process can import")


def _as_array(function: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    """A caller that asks for no stream gets the items as one array (wire page, "Members and methods of our own")."""
    if is_async:

        async def collect(*args: Any, **kwargs: Any) -> list[Any]:
            return [item async for item in function(*args, **kwargs)]

        return collect
    return functools.partial(_list_of, function)


def _list_of(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> list[Any]:
    return list(function(*args, **kwargs))
