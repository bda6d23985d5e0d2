"""Remote methods by name: how functions, objects and modules become methods.

Owns names and options; a function's signature is compiled here, once, and never looked at again. Does not run anything.
"""

from __future__ import annotations

import fnmatch
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Any, Literal

from ..auth.allow import AllowRule, CallerRule
from ..codec import Codec
from ..codec.image_budget import INLINE_PIXELS
from ..errors import RegistrationError
from .arguments import Bind
from .injection import Injection
from .introspect import holds, name_of
from .signature import Signature

Offload = Literal["thread", "process"]

#: Names that begin so belong to the protocol (JSON-RPC 2.0, section 4) and to rpcstream itself.
RESERVED = ("rpc.", "$/")


@dataclass(frozen=True, slots=True)
class Method:
    """A function, and all that a call of it needs.

    Attributes:
        bind: gives the arguments for the function (`Signature.bind`).
        returns: a result of this very class needs no `check_result`.
        inline: a plain sync function: it runs in the event loop and answers at once. All others are looked at closer.
        injection: what the handler gets beside the arguments on the wire; None for nothing.
        generator: the function, if it is a generator function.
        stream: the same method for callers that take the items one by one; None unless it is a generator function.
        ordered: one call at a time on each connection, in the order in which they came.
        detached: goes on when its caller is gone.
        idempotent: may be carried out twice; callers are told.
        allow: who may call it; None for everybody.
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
    injection: Injection | None
    generator: Callable[..., Any] | None
    stream: Method | None
    check_item: Callable[[Any], Any] | None
    ordered: bool
    detached: bool
    idempotent: bool
    allow: CallerRule | None


class MethodRegistry(Mapping[str, Method]):
    """The methods of a server. Reading it is reading a dict: `registry[name]`, `in`, iteration in order of entry.

    Args:
        knows_callers: callers have an identity, so that a method may be for some of them only.
    """

    def __init__(self, codec: Codec, *, knows_callers: bool = False) -> None:
        self._codec = codec
        self._knows_callers = knows_callers
        self.by_name: dict[str, Method] = {}
        #: Those of them that every caller may call, for the path of a call.
        self.for_all: dict[str, Method] = {}
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
        ordered: bool = False,
        detached: bool = False,
        idempotent: bool = False,
        allow: AllowRule | None = None,
        replace: bool = False,
        namespace: dict[str, Any] | None = None,
        reserved: bool = False,
    ) -> Method:
        """Make a function a remote method.

        Args:
            function: sync or async, or a generator of either kind: then callers may take its items one by one, and
                get them as one array otherwise.
            name: the remote name; the function's own where it is not given.
            timeout: seconds after which the caller is answered with -32003. Not for a sync function that runs in the
                event loop, since nothing could stop it there; a generator can be stopped between its items.
            offload: "thread" or "process": run a sync function there, so that the event loop stays free.
            check_result: check what the function returns against its return hint.
            ordered: calls of ordered methods that come on one connection run one after the other, in that order.
            detached: the function goes on when its caller is gone, though nobody will see the result.
            idempotent: calling it twice does no harm. Callers are told, and may repeat a call that was lost.
            allow: who may call it: a name, several, or a function of the identity; see `CallerRule`.
            replace: take the place of a method of that name.
            namespace: names that string hints may use besides those of the function's module.
            reserved: the name may begin with `rpc.`; for the framework's own methods.

        Raises:
            RegistrationError: no name or a reserved one, a hint that cannot be checked, options that cannot act.
            ValueError: the name is taken.
        """
        name = name_of(function) if name is None else name
        if not isinstance(name, str) or not name:
            raise RegistrationError(f"a method's name must be a string that is not empty, got {name!r}")
        if name.startswith(RESERVED) and not reserved:
            raise RegistrationError(f"{name}: names that begin with {' or '.join(RESERVED)} are reserved")
        if name in self.by_name and not replace:
            raise ValueError(f"a method {name!r} is registered already; pass replace=True to put another in its place")
        is_async = (
            holds(function, inspect.iscoroutinefunction)
            or holds(function, inspect.isasyncgenfunction)
            or holds(inspect.unwrap(function), inspect.iscoroutinefunction)
        )
        streams = holds(function, inspect.isgeneratorfunction) or holds(function, inspect.isasyncgenfunction)
        _check_options(name, function, is_async=is_async, streams=streams, timeout=timeout, offload=offload)
        if allow is not None and not self._knows_callers:
            raise RegistrationError(
                f"{name}: allow needs callers that are known: give the server token= or authenticate="
            )
        signature = Signature(
            function, method=name, codec=self._codec, namespace=namespace, in_thread=offload == "thread"
        )
        injection = Injection.of(signature, is_async=is_async, offload=offload)
        inline = not (is_async or offload or streams or injection or ordered)
        signature.decode_images(here=0 if offload else INLINE_PIXELS, reports=not inline)
        method = Method(
            name=name,
            function=function,
            signature=signature,
            bind=signature.bind,
            is_async=is_async,
            offload=offload,
            timeout=timeout,
            check_result=signature.check_result if check_result else None,
            returns=signature.exact_result,
            inline=inline,
            injection=injection,
            generator=function if streams else None,
            stream=None,
            check_item=signature.check_item if check_result else None,
            ordered=ordered,
            detached=detached,
            idempotent=idempotent,
            allow=None if allow is None else CallerRule(allow, method=name),
        )
        if streams:
            # What a generator returns in the end is not what its hint speaks of.
            method = replace_fields(method, stream=replace_fields(method, check_result=None))
        self.by_name[name] = method
        if method.allow is None:
            self.for_all[name] = method
        else:
            self.for_all.pop(name, None)
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


def _check_options(
    name: str,
    function: Callable[..., Any],
    *,
    is_async: bool,
    streams: bool,
    timeout: float | None,
    offload: str | None,
) -> None:
    if offload not in (None, "thread", "process"):
        raise RegistrationError(f"{name}: offload must be 'thread', 'process' or None, got {offload!r}")
    if offload is not None and is_async:
        raise RegistrationError(f"{name}: offload is for sync functions; an async one shares the loop already")
    if timeout is not None and not timeout > 0:
        raise RegistrationError(f"{name}: timeout must be a positive number of seconds, got {timeout!r}")
    if timeout is not None and offload is None and not (is_async or streams):
        raise RegistrationError(
            f"{name}: a time-out cannot stop a sync function in the event loop; add offload='thread' or 'process'"
        )
    if offload == "process" and "<" in getattr(function, "__qualname__", ""):  # <locals>, <lambda>
        raise RegistrationError(f"{name}: offload='process' needs a function that another process can import")
