"""The methods of a server: how functions, objects and modules are registered.

Owns the registry and the batched methods. Does not know how a server runs.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack, overload

from ..codec import Codec
from ..keyword_options import check_names, with_options
from ..methods.introspect import caller_namespace
from ..methods.microbatch import BatchedMethods
from ..methods.options import METHOD_DEFAULTS, CommonOptions, GroupOptions, MethodOptions
from ..methods.registry import Method, MethodRegistry

Handler = TypeVar("Handler", bound=Callable[..., Any])


class ServerMethods:
    """Registers functions as remote methods. The part of `Server` that does so.

    Args:
        knows_callers: callers are authenticated, so that methods may have the option `allow`.

    Attributes:
        codec: encodes and decodes rich values.
        batches: the batched methods by name: `server.batches["embed"].stats()`.
        batched: decorator: make a function of lists or stacked arrays a remote method of one item; see
            `BatchedMethods.decorator`.
    """

    def __init__(self, codec: Codec, *, knows_callers: bool) -> None:
        self.codec = codec
        #: For tests: functions that are called in place of those of dependencies, `{open_session: fake_session}`. What
        #: is put here holds from the next call on.
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._registry = MethodRegistry(codec, knows_callers=knows_callers, overrides=self.dependency_overrides)
        self.batches = BatchedMethods(self._registry)
        self.batched = self.batches.decorator

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
