"""The methods of a server: how functions, objects and modules are registered.

`ServerMethods` is the part of `Server` that has the decorators.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack, overload

from ..codec import Codec
from ..methods.introspect import caller_namespace
from ..methods.method import Method
from ..methods.microbatch import BatchedMethod, add_batched, batched_methods
from ..methods.options import (
    METHOD_DEFAULTS,
    MICROBATCH_DEFAULTS,
    CommonOptions,
    GroupOptions,
    MethodOptions,
    MicrobatchOptions,
)
from ..methods.registry import MethodRegistry
from ..nearest import check_names, with_options

Handler = TypeVar("Handler", bound=Callable[..., Any])


class ServerMethods:
    """The part of `Server` that registers functions as remote methods.

    Args:
        knows_callers: callers are authenticated, so that methods may have the option `allow`.

    Attributes:
        codec: encodes and decodes rich values.
    """

    def __init__(self, codec: Codec, *, knows_callers: bool) -> None:
        self.codec = codec
        #: For tests: functions that replace those of dependencies, from the next call: `{open_session: fake_session}`.
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._registry = MethodRegistry(codec, knows_callers=knows_callers, overrides=self.dependency_overrides)

    @property
    def methods(self) -> Mapping[str, Method]:
        """The remote methods by name, with the built-in ones (`rpc.*`)."""
        return self._registry

    @overload
    def __call__(self, function: Handler, /) -> Handler: ...

    @overload
    def __call__(self, function: None = None, /, **options: Unpack[MethodOptions]) -> Callable[[Handler], Handler]: ...

    @with_options(METHOD_DEFAULTS, MethodOptions, GroupOptions, CommonOptions)
    def __call__(self, function: Handler | None = None, /, **options: Unpack[MethodOptions]) -> Any:
        """Decorator: make a function a remote method. The function itself is not changed.

        Raises:
            RegistrationError, ValueError, TypeError: as `add`.
        """
        check_names("@server()", options, METHOD_DEFAULTS)
        if function is not None:
            self.add(function, **options)
            return function
        return lambda decorated: self(decorated, **options)

    @with_options(MICROBATCH_DEFAULTS, MicrobatchOptions, CommonOptions)
    @overload
    def batched(self, function: Handler, /) -> Handler: ...

    @overload
    def batched(self, /, **options: Unpack[MicrobatchOptions]) -> Callable[[Handler], Handler]: ...

    def batched(self, function: Any = None, /, **options: Unpack[MicrobatchOptions]) -> Any:
        """Decorator, with or without options: make a function of many items a remote method of one.

        The function itself is not changed.

        For callers, a parameter `list[T]` is a T, and an array is one row; the rows are stacked. The function returns
        one result for each item, or an exception, which is raised for that item's caller. The `timeout` of a call
        includes waiting.

        Raises:
            RegistrationError: hints, a default or options do not fit; the text says which.
            ValueError: the name is taken.
            TypeError: an option is unknown.
        """
        check_names("batched()", options, MICROBATCH_DEFAULTS)

        def decorate(function: Handler) -> Handler:
            add_batched(self._registry, function, options, caller_namespace())
            return function

        return decorate if function is None else decorate(function)

    @property
    def batches(self) -> Mapping[str, BatchedMethod]:
        """The batched methods by name: `server.batches["embed"].stats()`."""
        return batched_methods(self._registry)

    @with_options(METHOD_DEFAULTS, MethodOptions, GroupOptions, CommonOptions)
    def add(self, function: Callable[..., Any], **options: Unpack[MethodOptions]) -> None:
        """Make any callable a remote method: a function, a bound method, a partial, a lambda with a name.

        Raises:
            RegistrationError: the function cannot be a remote method as it is; the text says which parameter or option.
            ValueError: the name is taken.
            TypeError: an option is unknown.
        """
        self._registry.add(function, namespace=caller_namespace(), **options)

    def add_object(self, target: object, *, prefix: str = "", **options: Unpack[GroupOptions]) -> None:
        """Make the public methods of an object remote methods; see `MethodRegistry.add_object`."""
        self._registry.add_object(target, prefix=prefix, **options)

    def add_module(
        self, module: types.ModuleType, *, pattern: str = "*", prefix: str = "", **options: Unpack[GroupOptions]
    ) -> None:
        """Make the public functions of a module remote methods; see `MethodRegistry.add_module`."""
        self._registry.add_module(module, pattern=pattern, prefix=prefix, **options)
