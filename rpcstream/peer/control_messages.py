"""Handlers for control messages, the `$/…` notifications, and the streams of a connection that they are about.

They are never answered: one that is malformed, unknown or late is dropped (docs/reference/wire.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import CallCancelled, InternalError, InvalidRequest, error_from_wire
from ..wire import envelope

#: Streams that are not open of which credit or the end is kept, and characters of their names: as many as requests may
#: wait by default.
EARLY_MAX, EARLY_KEY_MAX = 1024, 128

#: Stands before the token of a stream that has ended early.
END = "end of "


@dataclass(slots=True, eq=False)
class StreamTable:
    """The streams of one connection, in both directions.

    Attributes:
        senders: streams whose items are made at this end, by `reply_key` or `argument_key`: a `StreamSender`, or what
            takes `grant` and `close` like one.
        receivers: streams that were passed to a handler here, by their token: a `StreamReceiver`, or what takes `put`
            and `end` like one.
        early: credit for streams that are not open, and the ends of such (by `END` and the token), which came while
            requests waited that may open them.
        opened: how many streams have been opened so far.
        sent: how many streams were sent as arguments so far; their names count them.
        has_ended: the peer sends nothing more.
    """

    senders: dict[str, Any] = field(default_factory=dict)
    receivers: dict[str, Any] = field(default_factory=dict)
    early: dict[str, Any] = field(default_factory=dict)
    opened: int = 0
    sent: int = 0
    has_ended: bool = False

    def __bool__(self) -> bool:
        return bool(self.senders or self.receivers)

    def new_token(self) -> str:
        """A name for a stream that is sent as an argument."""
        self.sent += 1
        return f"s{self.sent}"

    def add_sender(self, key: str, sender: Any) -> None:
        """Enter a stream that is sent, by whatever gets the credit for it."""
        self.opened += 1
        self.senders[key] = sender
        if n := self.early.pop(key, 0):
            sender.grant(n)
        if self.has_ended:
            sender.close()

    def remove_sender(self, key: str, sender: Any) -> None:
        """Remove a stream that is over, unless a later one has its name already."""
        if self.senders.get(key) is sender:
            del self.senders[key]

    def add_receiver(self, token: str, receiver: Any) -> None:
        """Enter a stream that is received, by whatever takes its items."""
        self.opened += 1
        self.receivers[token] = receiver
        if END + token in self.early:
            receiver.end(self.early.pop(END + token))
        if self.has_ended:
            receiver.end(_ended())

    def remove_receiver(self, token: str, receiver: Any) -> None:
        """Remove a stream that is over, unless a later one has its token already."""
        if self.receivers.get(token) is receiver:
            del self.receivers[token]

    def keep(self, key: str, value: Any) -> None:
        """Keep credit for a stream that is not open, or its end; what is too much is dropped."""
        if key in self.early or (len(self.early) < EARLY_MAX and len(key) <= EARLY_KEY_MAX):
            self.early[key] = value

    def end(self) -> None:
        """End all streams, and those opened from now on: the peer sends neither items nor credit any more."""
        self.has_ended = True
        for receiver in list(self.receivers.values()):
            receiver.end(_ended())
        for sender in list(self.senders.values()):
            sender.close()


def _ended() -> CallCancelled:
    return CallCancelled("Cancelled: the caller ended the conversation before its stream")


Line = bytes | bytearray

#: A handler by the method of its control message.
Handlers = Mapping[str, Callable[[Any, dict[str, Any], Line], None]]

#: Types of the ids that a stream may have.
_IDS = frozenset((int, str, type(None)))


def reply_key(call_id: Any) -> str:
    """The key of the items that answer a call. Always a text, so that the peer's ids do not choose our hashes."""
    return f"id {call_id!r}"


def argument_key(token: str) -> str:
    """The key of a stream that is an argument."""
    return f"stream {token}"


def handle(session: Any, message: dict[str, Any], line: Line, handlers: Handlers | None = None) -> bool:
    """Handle a notification if it is a control message; False if it calls a method.

    Args:
        message: with a method and without an id.
        line: the message as it came; empty for a member of a batch, of which no rich values are decoded.
        handlers: for the messages that this session handles; others are dropped. None: it handles all.
    """
    method = message["method"]
    if type(method) is not str or not method.startswith(envelope.CONTROL):
        return False
    handler, params = (handlers or HANDLERS).get(method), message.get("params")
    if handler is not None and type(params) is dict and message.get("jsonrpc") == envelope.VERSION:
        handler(session, params, line)
    return True


def is_control(message: Any) -> bool:
    """Whether a message is a control notification (`$/...`), by its name."""
    method = message.get("method") if type(message) is dict else None
    return type(method) is str and method.startswith(envelope.CONTROL) and "id" not in message


def _cancel(session: Any, params: dict[str, Any], line: Line) -> None:
    call_id = params.get("id")
    if type(call_id) is not int and type(call_id) is not str:
        return
    if not session.running.cancel(call_id) and (found := session.intake.cancel(call_id)) is not None:
        session.reply(session.dispatch.refuse(found, CallCancelled()))


def _progress(session: Any, params: dict[str, Any], line: Line) -> None:
    call = session.pending.find(params.get("token"))
    if call is not None:
        call.progress(params, line, session.calls.marshaller)


def _item(session: Any, params: dict[str, Any], line: Line) -> None:
    token, call_id = params.get("stream"), params.get("id")
    if token is None:
        receiver = session.pending.find(call_id)
    else:
        receiver = session.streams.receivers.get(token) if type(token) is str else None
    if receiver is None:
        session.pending.dropped += 1
        return
    try:
        receiver.put(params, line)
    except InvalidRequest:
        # The consumer has been told; the producer does not keep to the rules, and need not go on.
        if token is None:
            session.pending.discard(call_id)
            session.calls.cancel([call_id])


def _end(session: Any, params: dict[str, Any], line: Line) -> None:
    token, error = params.get("stream"), params.get("error")
    if type(token) is not str:
        return
    receiver = session.streams.receivers.get(token)
    if receiver is not None:
        receiver.end(None if error is None else error_from_wire(error))
    elif session.intake.queue:  # a request that waits may open the stream
        # The error may be of any size; that the stream has failed is enough for one that comes so early.
        session.streams.keep(END + token, error and InternalError("The caller's stream broke off"))


def _credit(session: Any, params: dict[str, Any], line: Line) -> None:
    n, key = params.get("n"), _sender_key(params)
    if key is None or type(n) is not int or n <= 0:
        return
    sender = session.streams.senders.get(key)
    if sender is not None:
        sender.grant(n)
    elif session.intake.queue:
        session.streams.keep(key, session.streams.early.get(key, 0) + n)


def _sender_key(params: dict[str, Any]) -> str | None:
    token = params.get("stream")
    if type(token) is str:
        return argument_key(token)
    # Other ids name no stream; and writing an array of any depth as text would take any time.
    return reply_key(params["id"]) if "id" in params and type(params["id"]) in _IDS else None


def _event(session: Any, params: dict[str, Any], line: Line) -> None:
    if session.on_event is not None:
        session.on_event(params, line)


def _go_away(session: Any, params: dict[str, Any], line: Line) -> None:
    session.peer_leaves(params.get("last", envelope.UNSAYABLE), envelope.reason_of_leave(params))


def _session(session: Any, params: dict[str, Any], line: Line) -> None:
    take = getattr(session.channel, "take_control", None)
    if take is not None:
        take(params)


HANDLERS: Handlers = {
    envelope.CANCEL: _cancel,
    envelope.PROGRESS: _progress,
    envelope.ITEM: _item,
    envelope.END: _end,
    envelope.CREDIT: _credit,
    envelope.EVENT: _event,
    envelope.GO_AWAY: _go_away,
    envelope.SESSION: _session,
}
