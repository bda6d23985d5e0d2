"""Methods of a client that its server may call, and the dispatch of the server's messages to them.

Owns the registry of these methods, made with the first of them, and the threads that some of them run in. Knows no
connection: the owner of one passes the functions that take a reply and that close it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from ..codec import payloads
from ..errors import MethodNotFound, ParseError, RpcError
from ..wire import envelope
from ..wire.buffers import Encoded
from ..wire.envelope import Oversize
from .options import Settings

if TYPE_CHECKING:
    from ..methods.call import Invoker
    from ..methods.dispatch import Dispatcher
    from ..methods.registry import MethodRegistry
    from ..peer.inflight import Later


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


class ClientDispatcher:
    """Handles the messages from the server that are not plain replies (`peer.interfaces.Dispatch`).

    Requests go to the client's methods, or are refused with MethodNotFound while there are none. A reply that is too
    large fails its call. What is no JSON-RPC message closes the connection.

    Args:
        settle: gives a reply, and the message it came in, to its call.
        close: closes the connection at once, with the reason.
        callbacks: the methods of the client; None: there are none.
    """

    def __init__(
        self,
        *,
        settle: Callable[[dict[str, Any], bytes | bytearray], None],
        close: Callable[[str], object],
        callbacks: Callbacks | None = None,
    ) -> None:
        self._settle = settle
        self._close = close
        self._callbacks = callbacks

    @property
    def _dispatcher(self) -> Dispatcher | None:
        return None if self._callbacks is None else self._callbacks.dispatcher

    def answer(self, message: Any, line: bytes | bytearray, session: Any = None) -> Encoded | Later | None:
        """Handle a message that is not one reply; returns the message to send for it, if any."""
        dispatcher = self._dispatcher
        if type(message) is not list or not message:
            if dispatcher is not None and type(message) is dict and "method" in message:
                return dispatcher.answer(message, line, session)
            return self._answer_or_settle(message, line)
        line = payloads.shared(line)
        if dispatcher is not None and any(type(member) is dict and "method" in member for member in message):
            return dispatcher.answer(message, line, session)
        refusals = [refusal for member in message if (refusal := self._answer_or_settle(member, line)) is not None]
        return b"[" + b",".join(refusals) + b"]" if refusals else None

    def refuse(self, message: Any, error: RpcError) -> Encoded | None:
        """As `Dispatch.refuse`.

        A message that is not JSON closes the connection. A reply that is too large fails its call; if its call cannot
        be told, every waiting call.
        """
        dispatcher = self._dispatcher
        if isinstance(error, ParseError):
            reason = error.data["reason"] if isinstance(error.data, dict) else error.message
            self._close(f"the peer sent something that is not JSON: {reason}")
            return None
        if isinstance(message, Oversize) and (dispatcher is None or b'"method"' not in message.head):
            self._settle(envelope.error_reply(envelope.id_in_head(message.head), error), b"")
            return None
        return dispatcher.refuse(message, error) if dispatcher is not None else self.answer_now(message, b"")

    def goes_on(self, message: Any) -> bool:
        """Tell whether a handler goes on when the connection is lost."""
        dispatcher = self._dispatcher
        return "id" not in message if dispatcher is None else dispatcher.goes_on(message)

    def report_slow(self, message: Any, seconds: float) -> None:
        """Log that a method blocked the event loop for so many seconds."""
        dispatcher = self._dispatcher
        if dispatcher is not None:
            dispatcher.report_slow(message, seconds)

    def answer_now(self, message: Any, line: bytes | bytearray) -> bytes | None:
        """As `answer`, for a client without methods, whose answers are never awaited."""
        reply = self.answer(message, line)
        assert reply is None or isinstance(reply, bytes)
        return reply

    def _answer_or_settle(self, message: Any, line: bytes | bytearray) -> bytes | None:
        """Handle one message without dispatcher: settle a reply, refuse a request."""
        if type(message) is dict and "method" in message:
            if message.get("id") is None or not envelope.has_valid_id(message):
                return None
            return orjson.dumps(envelope.error_reply(message["id"], MethodNotFound()))
        if type(message) is dict and "id" in message:
            self._settle(message, line)  # a reply; one that is malformed fails its call, if there is one
        else:
            self._close("the peer sent something that is no JSON-RPC message")
        return None
