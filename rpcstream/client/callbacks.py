"""Methods of a client that its server may call, and the handling of messages from the server that are no plain replies.

Owns the registry of these methods, made when the first one is added, and the threads that some of them run in. Knows no
connection: the owner of one says how to hand over a reply, and how to close it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson

from ..codec import payloads
from ..errors import MethodNotFound, ParseError, RpcError
from ..peer.interfaces import Later
from ..wire import envelope
from ..wire.framing import Oversize
from ..wire.pieces import Written
from .options import Settings

if TYPE_CHECKING:
    from ..methods.dispatch import Dispatcher
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
        self.dispatcher: Dispatcher | None = None
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


class ClientDispatcher:
    """Answers for a client; a session's `peer.interfaces.Dispatch`.

    Args:
        settle: hands a reply to the call that waits for it.
        lose: ends the connection, with the reason.
        methods: gives what answers requests, if the client offers methods (at the moment).
    """

    def __init__(
        self,
        *,
        settle: Callable[[dict[str, Any], bytes | bytearray], None],
        lose: Callable[[str], object],
        methods: Callable[[], Dispatcher | None] = lambda: None,
    ) -> None:
        self._settle = settle
        self._lose = lose
        self._methods = methods

    def answer(self, message: Any, line: bytes | bytearray, session: Any = None) -> Written | Later | None:
        """Handle a message that is not all replies; what is to be sent for it, if anything."""
        methods = self._methods()
        if type(message) is not list or not message:
            if methods is not None and type(message) is dict and "method" in message:
                return methods.answer(message, line, session)
            return self._one(message, line)
        line = payloads.shared(line)
        if methods is None:
            envelope.with_exact_ids(message, line)
            refusals = [refusal for member in message if (refusal := self._one(member, line)) is not None]
            return b"[" + b",".join(refusals) + b"]" if refusals else None
        requests, line = self._without_replies(message, line)
        return methods.answer(requests, line, session) if requests else None

    def refuse(self, message: Any, error: RpcError) -> Written | None:
        """As `Dispatch.refuse`.

        A message that is not JSON ends the connection: the peer does not speak JSON-RPC. A reply that is too large
        fails its call; if it does not show which, every call that waits.
        """
        methods = self._methods()
        if isinstance(error, ParseError):
            reason = error.data["reason"] if isinstance(error.data, dict) else error.message
            self._lose(f"the peer sent something that is not JSON: {reason}")
            return None
        if isinstance(message, Oversize) and (methods is None or b'"method"' not in message.head):
            self._settle(envelope.error_reply(envelope.id_in_head(message.head), error), b"")
            return None
        return methods.refuse(message, error) if methods is not None else self.answer_now(message, b"")

    def goes_on(self, message: Any) -> bool:
        """Is a handler to go on when the connection is lost?"""
        methods = self._methods()
        return "id" not in message if methods is None else methods.goes_on(message)

    def report_slow(self, message: Any, seconds: float) -> None:
        """Log that an offered method kept the event loop for so long."""
        methods = self._methods()
        if methods is not None:
            methods.report_slow(message, seconds)

    def answer_now(self, message: Any, line: bytes | bytearray) -> bytes | None:
        """As `answer`, where no methods are offered."""
        reply = self.answer(message, line)
        assert reply is None or isinstance(reply, bytes)
        return reply

    def _without_replies(self, members: list[Any], line: bytes) -> tuple[list[Any], bytes]:
        """The requests in a batch, its replies settled, and the line that these would be."""
        is_request = [type(member) is dict and "method" in member for member in members]
        for member, is_one in zip(members, is_request, strict=True):
            if not is_one:
                self._one(member, line)
        if all(is_request) or not any(is_request):
            return [member for member, is_one in zip(members, is_request, strict=True) if is_one], line
        try:
            parts = payloads.members(line)
        except RecursionError:  # it will be refused for its depth
            return [member for member, is_one in zip(members, is_request, strict=True) if is_one], line
        left = [(member, part) for member, part, is_one in zip(members, parts, is_request, strict=True) if is_one]
        joined = b"[" + b",".join([part for _, part in left]) + b"]"
        return [member for member, _ in left], payloads.part_of(line, joined)

    def _one(self, message: Any, line: bytes | bytearray) -> bytes | None:
        if type(message) is dict and "method" in message:
            if message.get("id") is None or not envelope.has_valid_id(message):
                return None
            if type(message["id"]) is float and line:
                envelope.with_exact_ids(message, line)
            return orjson.dumps(envelope.error_reply(message["id"], MethodNotFound()))
        if type(message) is dict and "id" in message:
            self._settle(message, line)  # a reply, or the broken form of one: its call fails, or nobody waits for it
        else:
            self._lose("the peer sent something that is no JSON-RPC message")
        return None
