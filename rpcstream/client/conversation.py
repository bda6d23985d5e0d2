"""What a client says to its server: the answers to what the server asks, and one blocking conversation.

`Callbacks` are the methods that the server may call, in both clients. A `ClientConversation` does without the socket:
bytes in, bytes and the replies of calls out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

import orjson

from ..codec import payloads
from ..codec.payloads import may_have_payload, read_frame
from ..errors import ConnectionLost, MethodNotFound, ParseError, RpcError, Unread
from ..peer import control_messages, incoming
from ..peer.incoming import offer_binary
from ..peer.marshal import Marshaller
from ..peer.pending import PendingCalls
from ..peer.shared_memory import SharedMemory
from ..wire import envelope
from ..wire.binary_frame import Admitted, BinaryFrameReader, parts_of_frame
from ..wire.buffers import AttachedMessage, Encoded, parts_of
from ..wire.envelope import LONG, Message, Oversize
from ..wire.framing import LineFramer, is_cut
from .address import Address
from .attempts import Unsent
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
            options: the same as for `Server.add`.
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

    def describe(self, methods: Iterable[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The descriptions of the methods with these names for `rpc.register`, and the JSON schemas they refer to."""
        if self._registry is None:
            return [], {}
        from ..methods.discovery import Description

        wanted = {name: self._registry[name] for name in methods}
        description = Description(self._settings.codec)
        described = [description.method(wanted[name]) for name in sorted(wanted)]
        for method in described:
            # Those of the framework stand in the hub's own document; a registration has a limit of size.
            method["errors"] = wanted[method["name"]].docs["errors"]
            if method["name"] in self.shared:
                method["shared"] = True
        return described, description.components()["schemas"]

    def close(self) -> None:
        """Let the threads end when they have finished what they run now."""
        if self._invoker is not None:
            self._invoker.close()

    def _get_registry(self) -> MethodRegistry:
        if self._registry is None:
            from ..methods.call import Invoker
            from ..methods.discovery import OpenRpcDocument, add_own_methods, head_of
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


#: Bytes of cancels and of refusals of the server's requests that may wait until the socket takes them.
REPLIES_MAX = 256 * 1024

#: Up to this size (bytes) the parts of a message are joined, to be sent with one system call.
JOIN_MAX = 64 * 1024

#: Bytes that are read with one system call, of messages that usually arrive whole.
READ_SIZE = 64 * 1024

_BRACE = ord("{")

#: The handlers of control messages for an end that only makes calls, one after the other.
_WORDS = {word: control_messages.HANDLERS[word] for word in (envelope.PROGRESS, envelope.GO_AWAY)}


class ClientDispatcher:
    """Handles the messages from the server that are not plain replies (`peer.inflight.Dispatch`).

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
        """Log for how many seconds a method blocked the event loop."""
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


class ClientConversation:
    """The conversation with a server on one connection: for `peer.incoming` and its neighbours, a session.

    Args:
        marshaller: reads what handlers report on their way.
        shared: memory that payloads may go by; None: there is none.

    Attributes:
        pending: unanswered calls: one call of the thread that uses the connection, or the calls of its batch.
        lost: why the connection is over; None while it is not.
        outgoing: what is to be sent, in order; the driver removes what it has sent.
        replies_size: bytes of cancels and refusals that were added to it since it was last empty.
        offers_binary: `rpc.hello` is to be said once there is a large payload.
        sends_binary: it was answered, and frames may be sent.
        is_partial: a message has begun and its end has not come.
        has_left: the server reads no more requests.
        reporting: the thread that handles a notification now, and so may run an `on_progress`.
    """

    side = "client"
    splits_values = is_lasting = True
    parse_long = staticmethod(incoming.parse_long)

    def __init__(self, settings: Settings, marshaller: Marshaller, shared: SharedMemory | None = None) -> None:
        self.limits = limits = settings.limits
        self.marshaller = marshaller
        self.shared = shared
        self.delimiter = settings.delimiter
        self.pending = PendingCalls()
        self.pending.when_silent = partial(_silence, settings.address)
        self.dispatch = ClientDispatcher(settle=self.pending.settle, close=self.lose)
        # What a session has of its own, this one does itself.
        self.calls = self.channel = self
        self.lost: str | None = None
        self.outgoing: list[memoryview] = []
        self.replies_size = 0
        self.offers_binary = bool(settings.binary) and settings.delimiter == b"\n"
        self.sends_binary = self.is_partial = self.has_left = False
        self.reporting: int | None = None
        self._trace = settings.trace
        self._takes_binary = settings.binary
        intake = self if settings.delimiter == b"\n" else None
        self._framer = LineFramer(max_size=limits.max_message_size, delimiter=settings.delimiter, intake=intake)
        #: Bytes that end in a line feed may be read without framing, if they are one message.
        self._may_be_plain = intake is not None and self._trace is None and limits.max_message_size >= READ_SIZE

    # -- what comes -------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Handle what was read; no bytes mean the end of the stream."""
        if self._may_be_plain and not self.is_partial and data[-1:] == b"\n" and data[0] == _BRACE and len(data) < LONG:
            # The common case, without framing: what came is one reply, whole.
            try:
                message = orjson.loads(data)
            except orjson.JSONDecodeError:
                message = None
            if message is not None and "method" not in message and ("result" in message or "error" in message):
                self.pending.settle(message, data)
                return
        end = None
        if data:
            self._handle(self._framer.feed(data))
            if self._framer.ended:
                end = self._framer.fault or "the peer ended the conversation with an empty line"
        else:
            end, last = "the peer closed the connection", self._framer.finish()
            if is_cut(last):
                end += " within a message"
            else:
                self._handle(last)
        if end is not None:
            self.lose(end)

    def target(self) -> memoryview | None:
        """The memory that the rest of a payload may be read into; then `received` is to be called."""
        return self._framer.target() if self.is_partial else None

    def received(self, count: int) -> None:
        """Handle what was read into the memory of a payload; 0 means the end of the stream."""
        if count:
            self._handle(self._framer.received(count))
        else:
            self.receive(b"")

    def _handle(self, messages: list[Message]) -> None:
        for position, line in enumerate(messages, 1):
            if self._trace is not None:
                self._trace("receive", bytes(line.head if isinstance(line, Oversize) else line))
            reply: Encoded | None
            try:
                message, text = incoming.content_of(self, line) if len(line) >= LONG else (orjson.loads(line), line)  # type: ignore[arg-type]
            except orjson.JSONDecodeError as error:
                messages[position:position], reply = incoming.unparsed(self, line, error)
            else:
                reply = self._answer(message, text)  # type: ignore[arg-type]
            if reply is not None:
                self.reply(reply)
                if self.replies_size > REPLIES_MAX:
                    self.lose("the peer asks and does not read the answers")
        self.is_partial = self._framer.partial

    def _answer(self, message: Any, text: bytes) -> Encoded | None:
        is_notification = type(message) is dict and "method" in message and "id" not in message
        if is_notification:
            self.reporting = get_ident()
            try:
                if control_messages.handle(self, message, text, _WORDS):
                    return None
            finally:
                self.reporting = None
        return None if self.pending.settled(message, text) else self.dispatch.answer_now(message, text)

    # -- as a session -----------------------------------------------------------------------------------------------

    def reply(self, message: Encoded) -> None:
        """Have a cancel, or the refusal of a request, sent soon."""
        if not self.outgoing:
            self.replies_size = 0
        self.send(message)
        self.replies_size += len(message)

    def peer_leaves(self, last: Any, reason: str) -> None:
        """The server reads no more requests: a call that it has not read fails, and no other is sent."""
        if not self.has_left:
            self.has_left = True
            self.lost = self.lost or reason
            for call in self.pending.take_unread(last):
                call.fail(self.unsent(call.method))

    # -- as the intake of frames (`wire.binary_frame.FrameIntake`) -----------------------------------------------------

    def refuses_frames(self) -> str | None:
        return None if self._takes_binary else "the peer sent a binary frame, and these are switched off (binary=False)"

    def admit(self, json: bytes, sizes: tuple[int, ...], lent: Sequence[Any] = ()) -> Admitted:
        frame = read_frame(json, sizes, self.limits, "client")
        message, line = frame.content
        if frame.refusal is not None:
            return frame, []
        if envelope.is_reply(message) and message.get("id") is not None and self.pending.find(message["id"]) is None:
            return frame, []  # it is dropped
        return frame, line.take_memory(lent, copies=self._takes_binary == "copy")

    def grow(self, received: int, frame: BinaryFrameReader) -> None:
        """Nothing is counted: only one reply is awaited, and that is as large as `max_message_size` at most."""

    def over(self) -> None:
        """Nothing was counted."""

    # -- what is sent, and the end ----------------------------------------------------------------------------------

    def send(self, message: Encoded) -> None:
        """Have a message sent. Its payloads are not copied: they must not change until it is."""
        if self.offers_binary and may_have_payload(message):
            offer_binary(self)
        if self._trace is None and type(message) is bytes and len(message) <= JOIN_MAX:
            self.outgoing.append(memoryview(message + self.delimiter))
            return
        parts: list[Any]
        if self.sends_binary and isinstance(message, AttachedMessage):
            parts, shown = parts_of_frame(message, self.shared), message.shown
        else:
            parts, shown = [*parts_of(message), self.delimiter], message.__bytes__
        if self._trace is not None:
            self._trace("send", shown())
        if sum(map(len, parts)) <= JOIN_MAX:
            parts = [b"".join(parts)]
        self.outgoing += map(memoryview, parts)

    def cancel(self, call_ids: list[int | str]) -> None:
        """Have these calls cancelled at the server. Cancels that find no room are left out."""
        if self.lost is None and self.replies_size < REPLIES_MAX:
            for call_id in call_ids:
                self.reply(envelope.cancel(call_id))

    def lose(self, reason: str) -> None:
        """Note that the connection is over, and fail what waits."""
        if self.lost is None:
            self.lost = self.pending.explained(reason)
        self.pending.fail_all(self.loss)

    def loss(self, method: str) -> ConnectionLost:
        """The error of a call that was sent."""
        return ConnectionLost(self.lost or "the connection is over", method=method, address=self.marshaller.address)

    def unsent(self, method: str) -> ConnectionLost:
        """The error of a call that was not sent: it may be tried again."""
        kind = Unread if self.has_left else Unsent
        return kind(self.lost or "the connection is over", method=method, address=self.marshaller.address)


def _silence(address: Address) -> str:
    from .faults import silence

    return silence(address)
