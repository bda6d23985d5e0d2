"""Methods of a client that its server may call, and the dispatch of the server's messages to them.

Owns the registry of these methods, made with the first of them, and the threads that some of them run in. Knows no
connection: the owner of one passes the functions that take a reply and that close it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from .options import Settings

if TYPE_CHECKING:
    from ..methods.call import Invoker
    from ..methods.dispatch import Dispatcher
    from ..methods.registry import MethodRegistry


class Callbacks:
    """The methods of one client that its server may call.

    Args:
        settings: of the client.
        in_threads: run sync functions in threads unless `offload` says otherwise: for the sync client, whose functions
            may block.

    Attributes:
        dispatcher: answers the server's requests; None while there are no methods.
        shared: the names of the methods that other clients of a hub may offer, too.
    """

    def __init__(self, settings: Settings, *, in_threads: bool = False) -> None:
        self.dispatcher: Dispatcher | None = None
        self.shared: set[str] = set()
        self._settings = settings
        self._in_threads = in_threads
        self._registry: MethodRegistry | None = None
        self._invoker: Invoker | None = None

    def __bool__(self) -> bool:
        return self._registry is not None

    def add(self, function: Callable[..., Any], *, shared: bool = False, **options: Any) -> None:
        """Let the server call a function; options and errors as for `Server.add`.

        Args:
            function: the method.
            shared: at a hub, other clients may offer a method of this name, too.
            options: those of `Server.add`.
        """
        from ..methods.introspect import FunctionKind, caller_namespace

        if self._in_threads and "offload" not in options:
            options["offload"] = None if FunctionKind(function).is_async else "thread"
        name = self._get_registry().add(function, namespace=caller_namespace(), **options).name
        (self.shared.add if shared else self.shared.discard)(name)

    @property
    def names(self) -> list[str]:
        """The names of the methods, without the built-in ones (`rpc.*`)."""
        return [name for name in list(self._registry or ()) if not name.startswith("rpc.")]

    def describe(self, methods: Mapping[str, bool]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The descriptions of some methods for `rpc.register`, and the JSON schemas that they refer to.

        Args:
            methods: their names, each with whether it is shared.
        """
        if self._registry is None:
            return [], {}
        from ..methods.discovery import Description

        wanted = {name: self._registry[name] for name in methods}
        description = Description(self._settings.codec)
        described = [description.method(wanted[name]) for name in sorted(wanted)]
        for method in described:
            # Those of the framework stand in the hub's own document; a registration has a limit of size.
            method["errors"] = wanted[method["name"]].docs["errors"]
            if methods[method["name"]]:
                method["shared"] = True
        return described, description.components()["schemas"]

    def close(self) -> None:
        """Let the threads end when they have finished what they run now."""
        if self._invoker is not None:
            self._invoker.close()

    def _get_registry(self) -> MethodRegistry:
        if self._registry is None:
            from ..methods.builtin_methods import add_own_methods
            from ..methods.call import Invoker
            from ..methods.discovery import OpenRpcDocument, head_of
            from ..methods.dispatch import Dispatcher
            from ..methods.registry import MethodRegistry
            from ..methods.replies import ReplyWriter
            from ..observe.counters import Counters

            limits, codec = self._settings.limits, self._settings.codec
            self._registry = MethodRegistry(codec)
            self._invoker = Invoker(limits)
            counters = Counters()
            head = partial(head_of, title="rpcstream client", version="0")
            document = OpenRpcDocument(self._registry, codec=codec, head=head)
            add_own_methods(self._registry, document, stats=counters.as_dict)
            replies = ReplyWriter(codec, limits, counters, side="client")
            self.dispatcher = Dispatcher(self._registry, self._invoker, replies)
            if self._settings.tracing is not None:
                from ..methods.observed import ObservedCalls

                ObservedCalls(self.dispatcher, self._registry.__contains__, tracing=self._settings.tracing)
        return self._registry
