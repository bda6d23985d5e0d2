"""The methods that a client offers to its server: the same decorator, the same dispatcher.

Owns their registry and the threads that some of them run in. What makes them costs nothing until the first is offered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..peer.interfaces import Dispatch
from .options import Settings

if TYPE_CHECKING:
    from ..methods.invoke import Invoker
    from ..methods.registry import MethodRegistry


class Callbacks:
    """What a client offers.

    Args:
        in_threads: sync functions run in threads unless they say otherwise; for a client without an event loop of its
            own, whose functions may wait.

    Attributes:
        dispatcher: answers requests; None while nothing is offered.
        shared: the names of what others may offer at a hub, too.
    """

    def __init__(self, settings: Settings, *, in_threads: bool = False) -> None:
        self.dispatcher: Dispatch | None = None
        self.shared: set[str] = set()
        self._settings = settings
        self._in_threads = in_threads
        self._registry: MethodRegistry | None = None
        self._invoker: Invoker | None = None

    def __bool__(self) -> bool:
        return self._registry is not None

    def add(self, function: Callable[..., Any], *, shared: bool = False, **options: Any) -> None:
        """Offer a function; options and errors as for `Server.add`.

        Args:
            shared: at a hub, other clients may offer a method of this name too.
        """
        import inspect

        from ..methods.introspect import caller_namespace, holds

        if self._in_threads and "offload" not in options:
            is_async = holds(function, inspect.iscoroutinefunction) or holds(function, inspect.isasyncgenfunction)
            options["offload"] = None if is_async else "thread"
        name = self._made().add(function, namespace=caller_namespace(), **options).name
        (self.shared.add if shared else self.shared.discard)(name)

    @property
    def names(self) -> list[str]:
        """What is offered, without the methods that every end has."""
        return [name for name in list(self._registry or ()) if not name.startswith("rpc.")]

    def described(self, methods: Mapping[str, bool]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """These methods as a hub is told of them, and the schemas that they refer to.

        Args:
            methods: names of what is offered, each with whether it is shared.
        """
        if self._registry is None:
            return [], {}
        from ..methods.discovery import describe

        wanted = {name: self._registry[name] for name in methods}
        document = describe(wanted, codec=self._settings.codec, title="", version="")
        described = document["methods"]
        for method in described:
            if methods[method["name"]]:
                method["shared"] = True
        return described, document["components"]["schemas"]

    def close(self) -> None:
        """The client is closed: its threads end with what they run now."""
        if self._invoker is not None:
            self._invoker.close()

    def _made(self) -> MethodRegistry:
        if self._registry is None:
            from ..methods.builtin_methods import add_own_methods
            from ..methods.dispatch import Dispatcher
            from ..methods.invoke import Invoker, default_processes, default_threads
            from ..methods.registry import MethodRegistry
            from ..observe.counters import Counters

            limits, codec = self._settings.limits, self._settings.codec
            self._registry = MethodRegistry(codec)
            self._invoker = Invoker(
                threads=default_threads(),
                processes=default_processes(),
                max_queue=limits.max_queue,
                max_result=limits.max_worker_result,
                max_image_memory=limits.max_image_memory,
            )
            counters = Counters()
            add_own_methods(self._registry, codec=codec, title="rpcstream client", version="0", stats=counters.as_dict)
            self.dispatcher = Dispatcher(
                self._registry, codec=codec, invoker=self._invoker, limits=limits, counters=counters, side="client"
            )
        return self._registry
