"""Remote methods by name: how functions, objects and modules become methods.

A function's signature is compiled once, when it is registered.
"""

from __future__ import annotations

import fnmatch
import inspect
import types
from collections.abc import Callable
from dataclasses import replace as replace_fields
from typing import Any, Unpack

from ..auth.authenticator import CallerRule
from ..codec import Codec
from ..codec.codec import INLINE_PIXELS
from ..errors import RegistrationError
from ..nearest import check_names
from .call import Call
from .dependencies import CONTEXT, Dependencies, Overrides
from .introspect import FunctionKind, name_of
from .method import Injection, Method
from .method_docs import method_docs
from .middleware import Middleware, composed
from .options import METHOD_DEFAULTS, GroupOptions, MethodOptions
from .signature import Signature

#: Names that begin with these belong to the protocol (JSON-RPC 2.0, section 4) and to rpcstream itself.
RESERVED = ("rpc.", "$/")

#: Characters of a name.
NAME_MAX = 1000

#: Options that are kept as they are given.
_AS_THEY_ARE = ("offload", "timeout", "ordered", "detached", "idempotent", "mcp")


class MethodRegistry(dict[str, Method]):
    """The methods of a server, by name, in order of registration.

    Args:
        knows_callers: callers are authenticated, so that the option `allow` can be used.
        overrides: of dependencies, see `Server.dependency_overrides`; None: handlers can have no dependencies.

    Attributes:
        for_all: those without `allow`, for the path of a call.
        version: counts the changes.
    """

    def __init__(self, codec: Codec, *, knows_callers: bool = False, overrides: Overrides | None = None) -> None:
        super().__init__()
        self._codec = codec
        self._overrides = overrides
        self._knows_callers = knows_callers
        self.for_all: dict[str, Method] = {}
        self.version = 0
        self._middleware: list[Middleware] = []
        #: The methods without middleware.
        self._unwrapped: dict[str, Method] = {}
        self.on_added: Callable[[str], object] | None = None

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
        given: dict[str, Any] = {**METHOD_DEFAULTS, **options}
        if reserved:
            given["mcp"] = False
        name = name_of(function) if given["name"] is None else given["name"]
        kind = FunctionKind(function)
        self._check(name, function, kind, given, reserved=reserved)
        in_thread = given["offload"] == "thread"
        signature = Signature(function, method=name, codec=self._codec, namespace=namespace, in_thread=in_thread)
        dependencies = self._dependencies(signature, namespace, in_thread=in_thread)
        method = self._compile(function, kind, given, signature, dependencies)
        self._enter(method)
        self.version += 1
        if self.on_added is not None:
            self.on_added(name)
        return method

    def add_middleware(self, function: Middleware) -> None:
        """Run a function around every call from now on, inside of those that were given before; not around `rpc.*`."""
        self._middleware.append(function)
        for method in list(self._unwrapped.values()):
            self._enter(method)

    def _enter(self, method: Method) -> None:
        self._unwrapped[method.name] = method
        if self._middleware and not method.name.startswith(RESERVED):
            signature = method.signature
            # The images of its arguments are kept for as long as the middleware waits, so their memory is counted.
            signature.decode_images(here=0 if method.offload else INLINE_PIXELS, reports=True)
            # A sync handler that takes no Context leaves it to the middleware, which is async.
            takes_context = any(each.depends is CONTEXT for each in signature.provided)
            is_async = method.is_async or not (takes_context or signature.streams)
            run = composed(self._middleware, method)
            around: Any = {"inline": False, "is_plain": False, "begins_now": False, "is_async": is_async, "run": run}
            stream = None if method.stream is None else replace_fields(method.stream, **around)
            method = replace_fields(method, **around, stream=stream)
        self[method.name] = method
        self.for_all.pop(method.name, None)
        if method.allow is None:
            self.for_all[method.name] = method

    def _check(
        self, name: Any, function: Callable[..., Any], kind: FunctionKind, options: dict[str, Any], *, reserved: bool
    ) -> None:
        """Raise RegistrationError for a name that cannot be, and for options that cannot be combined."""
        if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX:
            raise RegistrationError(f"a method's name is a string of 1 to {NAME_MAX} characters, got {name!r:.80}")
        needs_login = options["allow"] is not None and not self._knows_callers
        refusals = {
            "it is a class: register a function, or an object with server.add_object": isinstance(function, type),
            "names that begin with rpc. or $/ are reserved": name.startswith(RESERVED) and not reserved,
            "allow needs authenticated callers: give the server token= or authenticate=": needs_login,
        }
        for text, is_wrong in refusals.items():
            if is_wrong:
                raise RegistrationError(f"{name}: {text}")
        kind.check_runner(name, options["offload"], options["timeout"])
        if name in self and not options["replace"]:
            raise ValueError(f"a method {name!r} is already registered: pass replace=True to replace it")

    def _compile(
        self,
        function: Callable[..., Any],
        kind: FunctionKind,
        options: dict[str, Any],
        signature: Signature,
        dependencies: Dependencies | None,
    ) -> Method:
        offload, checks, ordered = options["offload"], options["check_result"], options["ordered"]
        docs = method_docs(function, signature, self._codec, options, kind.is_generator)
        injection = Injection.of(signature, is_async=kind.is_async, offload=offload)
        inline = not (kind.is_async or offload or kind.is_generator or injection or ordered)
        is_plain = not (inline or kind.is_generator or injection or ordered)
        begins_now = not (kind.is_async or offload or ordered or dependencies)
        signature.decode_images(here=0 if offload else INLINE_PIXELS, reports=not inline)
        method = Method(
            name=signature.method,
            function=function,
            signature=signature,
            bind=signature.bind,
            is_async=kind.is_async,
            check_result=signature.check_result if checks else None,
            returns=signature.exact_result,
            inline=inline,
            is_plain=is_plain,
            begins_now=begins_now,
            injection=injection,
            run=Call.handle if dependencies is None else dependencies.run,
            is_generator=kind.is_generator,
            stream=None,
            check_item=signature.check_item if checks else None,
            allow=None if options["allow"] is None else CallerRule(options["allow"], method=signature.method),
            docs=docs,
            **{option: options[option] for option in _AS_THEY_ARE},
        )
        if kind.is_generator:
            # The hint of a generator says what its items are; of what it returns at its end, if anything, by itself.
            stream = replace_fields(method, check_result=signature.check_end if checks else None)
            method = replace_fields(method, stream=stream)
        return method

    def _dependencies(
        self, signature: Signature, namespace: dict[str, Any] | None, *, in_thread: bool
    ) -> Dependencies | None:
        wanted = [each.depends for each in signature.provided]
        if all(each is CONTEXT for each in wanted):
            return None
        if self._overrides is None:
            raise RegistrationError(f"{signature.method}: dependencies are for the methods of a server")
        overrides, method = self._overrides, signature.method
        return Dependencies(wanted, method=method, overrides=overrides, namespace=namespace, in_thread=in_thread)

    def add_object(self, target: object, *, prefix: str = "", **options: Unpack[GroupOptions]) -> list[Method]:
        """Make the public methods of an object remote methods: those of its class that are written in Python.

        Args:
            target: an instance, or a class for its static and class methods.
            prefix: put before the names, with a dot between unless it ends with one.
            options: for each of them, see `GroupOptions`.

        Raises:
            RegistrationError: there are none; or as for `add`.
        """
        owner = target if isinstance(target, type) else type(target)
        kinds = (staticmethod, classmethod) if target is owner else (staticmethod, classmethod, types.FunctionType)
        members = inspect.getmembers_static(owner, lambda member: isinstance(member, kinds))
        functions = [(name, getattr(target, name)) for name, _ in members if not name.startswith("_")]
        if not functions:
            raise RegistrationError(f"{target!r} has no public methods")
        return self._add_all(functions, prefix, options)

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
        found: list[tuple[str, Any]] = inspect.getmembers(module, inspect.isfunction)
        if hasattr(module, "__all__"):
            found = [each for each in found if each[0] in module.__all__]
        elif pattern == "*":
            found = [each for each in found if each[1].__module__ == module.__name__]
        functions = [each for each in found if fnmatch.fnmatchcase(each[0], pattern) and each[0][0] != "_"]
        if not functions:
            raise RegistrationError(f"the module {module.__name__} has no public functions that match {pattern!r}")
        return self._add_all(functions, prefix, options)

    def _add_all(self, functions: list[tuple[str, Any]], prefix: str, options: GroupOptions) -> list[Method]:
        prefix = f"{prefix}." if prefix and prefix[-1].isalnum() else prefix
        return [self.add(function, name=prefix + name, **options) for name, function in functions]
