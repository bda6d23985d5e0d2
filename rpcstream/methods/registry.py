"""Remote methods by name: how functions, objects and modules become methods.

Owns the names, and how options are checked and combined. A function's signature is compiled here, once. Runs nothing.
"""

from __future__ import annotations

import fnmatch
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Any, NamedTuple, Unpack

from ..auth.allow import CallerRule
from ..codec import Codec
from ..codec.image_budget import INLINE_PIXELS
from ..errors import RegistrationError
from ..keyword_options import check_names
from ..peer.proxy import CLIENT_NAMES
from ..text import get_logger
from .about import About, about
from .arguments import Bind
from .dependencies import Dependencies, Overrides
from .injection import Injection
from .introspect import holds, name_of
from .options import METHOD_DEFAULTS, GroupOptions, MethodOptions, Offload
from .signature import Signature

log = get_logger("rpcstream.server")

#: Names that begin with these belong to the protocol (JSON-RPC 2.0, section 4) and to rpcstream itself.
RESERVED = ("rpc.", "$/")

#: Characters of a name.
NAME_MAX = 1000


@dataclass(frozen=True, slots=True)
class Method:
    """A remote method: its function, and all that a call of it needs.

    Attributes:
        bind: gives the arguments for the function (`Signature.bind`).
        returns: a result of this very class needs no `check_result`.
        inline: it is a plain sync function, which is called while its message is read.
        begins_now: it is a sync function in the event loop that is called at once, be it a generator or with a Context.
        injection: what the handler gets beside the arguments on the wire; None for nothing.
        dependencies: the parameters that functions of the server provide; None where there are none.
        generator: the function, if it is a generator function.
        stream: the same method for callers that take the items one by one; None unless it is a generator function.
        check_item: checks and converts an item of a generator; None where there is nothing to check.
        allow: who may call it; None: every caller.
        about: what `rpc.discover` says of it besides its signature.

    The other attributes are those of `MethodOptions`.
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
    begins_now: bool
    injection: Injection | None
    dependencies: Dependencies | None
    generator: Callable[..., Any] | None
    stream: Method | None
    check_item: Callable[[Any], Any] | None
    ordered: bool
    detached: bool
    idempotent: bool
    allow: CallerRule | None
    mcp: bool
    about: About


class MethodRegistry(Mapping[str, Method]):
    """The methods of a server, by name, in order of registration.

    Args:
        knows_callers: callers are authenticated, so that the option `allow` can be used.
        overrides: of dependencies, see `Server.dependency_overrides`; None: handlers can have no dependencies.

    Attributes:
        by_name: all of them.
        for_all: those without `allow`, for the path of a call.
        version: counts the changes.
    """

    def __init__(self, codec: Codec, *, knows_callers: bool = False, overrides: Overrides | None = None) -> None:
        self._codec = codec
        self._overrides = overrides
        self._knows_callers = knows_callers
        self.by_name: dict[str, Method] = {}
        self.for_all: dict[str, Method] = {}
        self.version = 0
        self.on_added: Callable[[str], object] | None = None

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
        namespace: dict[str, Any] | None = None,
        reserved: bool = False,
        **options: Unpack[MethodOptions],
    ) -> Method:
        """Make a function a remote method.

        Args:
            function: sync or async, or a generator of either kind: callers may then take its items one by one, or get
                them as one array.
            namespace: names that string hints may use besides those of the function's module.
            reserved: the name may begin with `rpc.`; for the framework's own methods.
            options: see `MethodOptions`.

        Raises:
            RegistrationError: it is a class; or the name is missing or reserved, a hint cannot be checked, or options
                cannot be combined.
            ValueError: the name is taken.
            TypeError: an option is unknown.
        """
        check_names("a method", options, METHOD_DEFAULTS)
        if isinstance(function, type):
            kind_of_object = function.__name__
            raise RegistrationError(
                f"{kind_of_object} is a class, and a remote method is a function: give a function that makes one and "
                f"returns what is to be sent; for the methods of an object, server.add_object({kind_of_object}(...))"
            )
        given: Any = {**METHOD_DEFAULTS, **options}
        if reserved:
            given["mcp"] = False
        name = name_of(function) if given["name"] is None else given["name"]
        self._check_name(name, replace=given["replace"], reserved=reserved)
        if name.partition(".")[0] in CLIENT_NAMES:
            log.warning(
                "method %r: clients have an attribute %r of their own, so that callers must write client.call(%r, ...)",
                *(name, name.partition(".")[0], name),
            )
        kind = _Kind.of(function)
        _check_options(name, function, kind, timeout=given["timeout"], offload=given["offload"])
        if given["allow"] is not None and not self._knows_callers:
            raise RegistrationError(
                f"{name}: allow needs callers that are authenticated: give the server token= or authenticate="
            )
        method = self._compile(function, name, kind, given, namespace)
        self.by_name[name] = method
        if method.allow is None:
            self.for_all[name] = method
        else:
            self.for_all.pop(name, None)
        self.version += 1
        if self.on_added is not None:
            self.on_added(name)
        return method

    def _check_name(self, name: Any, *, replace: bool, reserved: bool) -> None:
        if not isinstance(name, str) or not name:
            raise RegistrationError(f"a method's name must be a string that is not empty, got {name!r}")
        if len(name) > NAME_MAX or any("\ud800" <= letter <= "\udfff" for letter in name):
            raise RegistrationError(f"a method's name has at most {NAME_MAX} characters of Unicode, got {name[:80]!r}")
        if name.startswith(RESERVED) and not reserved:
            raise RegistrationError(f"{name}: names that begin with {' or '.join(RESERVED)} are reserved")
        if name in self.by_name and not replace:
            raise ValueError(f"a method {name!r} is registered already; pass replace=True to put another in its place")

    def _compile(
        self,
        function: Callable[..., Any],
        name: str,
        kind: _Kind,
        options: Mapping[str, Any],
        namespace: dict[str, Any] | None,
    ) -> Method:
        offload, check_result, ordered = options["offload"], options["check_result"], options["ordered"]
        signature = Signature(
            function, method=name, codec=self._codec, namespace=namespace, in_thread=offload == "thread"
        )
        said = about(function, signature, self._codec, options, is_generator=kind.is_generator)
        injection = Injection.of(signature, is_async=kind.is_async, offload=offload)
        dependencies = self._dependencies(signature, namespace)
        inline = not (kind.is_async or offload or kind.is_generator or injection or ordered)
        signature.decode_images(here=0 if offload else INLINE_PIXELS, reports=not inline)
        method = Method(
            name=name,
            function=function,
            signature=signature,
            bind=signature.bind,
            is_async=kind.is_async,
            offload=offload,
            timeout=options["timeout"],
            check_result=signature.check_result if check_result else None,
            returns=signature.exact_result,
            inline=inline,
            begins_now=not (kind.is_async or offload or ordered or dependencies),
            injection=injection,
            dependencies=dependencies,
            generator=function if kind.is_generator else None,
            stream=None,
            check_item=signature.check_item if check_result else None,
            ordered=ordered,
            detached=options["detached"],
            idempotent=options["idempotent"],
            allow=None if options["allow"] is None else CallerRule(options["allow"], method=name),
            mcp=options["mcp"],
            about=said,
        )
        if kind.is_generator:
            if signature.is_limited_as_a_whole:
                raise RegistrationError(
                    f"{name}: the return value: constraints on all items of a generator cannot be checked in a stream; "
                    "put them on the item: Iterator[Annotated[T, ...]]"
                )
            # The hint of a generator says what its items are; of what it returns at its end, if anything, by itself.
            check_end = signature.check_end if check_result else None
            method = replace_fields(method, stream=replace_fields(method, check_result=check_end))
        return method

    def _dependencies(self, signature: Signature, namespace: dict[str, Any] | None) -> Dependencies | None:
        wanted = {name: each.depends for name, each in signature.dependencies.items()}
        if not wanted:
            return None
        if self._overrides is None:
            raise RegistrationError(f"{signature.method}: dependencies are for the methods of a server")
        return Dependencies(wanted, method=signature.method, overrides=self._overrides, namespace=namespace)

    def add_object(self, target: object, *, prefix: str = "", **options: Unpack[GroupOptions]) -> list[Method]:
        """Make the public methods of an object remote methods: those of its class that are written in Python.

        Args:
            target: an instance, or a class for its static and class methods.
            prefix: put before the names, with a dot between unless it ends with one.
            options: for each of them, see `GroupOptions`.

        Raises:
            RegistrationError: there are none; or as for `add`.
        """
        check_names("add_object", options, GroupOptions.__optional_keys__)
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
        self, module: types.ModuleType, *, pattern: str = "*", prefix: str = "", **options: Unpack[GroupOptions]
    ) -> list[Method]:
        """Make the public functions of a module remote methods.

        Args:
            module: if it has `__all__`, the functions named there are taken; else those that are defined in it, and
                with a pattern also those that it imports.
            pattern: for the names, as in a shell: "control_*".
            prefix: as for `add_object`.
            options: as for `add_object`.

        Raises:
            RegistrationError: there are none; or as for `add`.
        """
        check_names("add_module", options, GroupOptions.__optional_keys__)
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


class _Kind(NamedTuple):
    """The kind of a handler's function, behind partials, wrappers and callable objects."""

    is_async: bool
    is_generator: bool

    @classmethod
    def of(cls, function: Callable[..., Any]) -> _Kind:
        is_async_generator = holds(function, inspect.isasyncgenfunction)
        is_async = (
            holds(function, inspect.iscoroutinefunction)
            or is_async_generator
            or holds(inspect.unwrap(function), inspect.iscoroutinefunction)
        )
        return cls(is_async, is_async_generator or holds(function, inspect.isgeneratorfunction))


def _check_options(
    name: str, function: Callable[..., Any], kind: _Kind, *, timeout: float | None, offload: str | None
) -> None:
    if offload not in (None, "thread", "process"):
        raise RegistrationError(f"{name}: offload must be 'thread', 'process' or None, got {offload!r}")
    if offload is not None and kind.is_async:
        raise RegistrationError(f"{name}: offload is for sync functions; an async one shares the loop already")
    if timeout is not None and not timeout > 0:
        raise RegistrationError(f"{name}: timeout must be a positive number of seconds, got {timeout!r}")
    if timeout is not None and offload is None and not (kind.is_async or kind.is_generator):
        raise RegistrationError(
            f"{name}: a time-out cannot stop a sync function in the event loop; add offload='thread' or 'process'"
        )
    if offload == "process" and "<" in getattr(function, "__qualname__", ""):  # <locals>, <lambda>
        raise RegistrationError(f"{name}: offload='process' needs a function that another process can import")
