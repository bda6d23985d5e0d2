"""The methods that a client offers to its server: the same decorator, the same dispatcher.

Owns their registry and the threads that some of them run in. What makes them costs nothing until the first is offered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..peer.interfaces import Dispatch
from .settings import Settings

if TYPE_CHECKING:
    from ..methods.invoke import Invoker
    from ..methods.registry import MethodRegistry


class Offered:
    """What a client offers.

    Args:
        in_threads: sync functions run in threads unless they say otherwise; for a client without an event loop of its
            own, whose functions may wait.

    Attributes:
        dispatcher: answers requests; None while nothing is offered.
    """

    def __init__(self, settings: Settings, *, in_threads: bool = False) -> None:
        self.dispatcher: Dispatch | None = None
        self._settings = settings
        self._in_threads = in_threads
        self._registry: MethodRegistry | None = None
        self._invoker: Invoker | None = None

    def __bool__(self) -> bool:
        return self._registry is not None

    def add(self, function: Callable[..., Any], **options: Any) -> None:
        """Offer a function; options and errors as for `Server.add`."""
        import inspect

        from ..methods.declared import caller_namespace, holds

        if self._in_threads and "offload" not in options:
            is_async = holds(function, inspect.iscoroutinefunction) or holds(function, inspect.isasyncgenfunction)
            options["offload"] = None if is_async else "thread"
        self._made().add(function, namespace=caller_namespace(), **options)

    def close(self) -> None:
        """The client is closed: its threads end with what they run now."""
        if self._invoker is not None:
            self._invoker.close()

    def _made(self) -> MethodRegistry:
        if self._registry is None:
            from ..methods.dispatch import Dispatcher
            from ..methods.invoke import Invoker, default_processes, default_threads
            from ..methods.own import add_own_methods
            from ..methods.registry import MethodRegistry
            from ..observe.counters import Counters

            limits, codec = self._settings.limits, self._settings.codec
            self._registry = MethodRegistry(codec)
            self._invoker = Invoker(
                threads=default_threads(), processes=default_processes(), max_queue=limits.max_queue
            )
            counters = Counters()
            add_own_methods(self._registry, codec=codec, title="rpcstream client", version="0", stats=counters.as_dict)
            self.dispatcher = Dispatcher(
                self._registry, codec=codec, invoker=self._invoker, limits=limits, counters=counters, side="client"
            )
        return self._registry
