"""Handlers for control messages, the `$/…` notifications: cancel, progress, items, credit, events.

Owns what each of them does to the conversation it came on (wire page, "Members and methods"). They are never answered:
one that is malformed, unknown or late is dropped. Does not write any; `wire.envelope` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from ..errors import InvalidRequest, error_from_wire
from ..wire import envelope
from .flow_control import CreditSink, ItemSink
from .state import ConversationState
from .stream_table import argument_key, reply_key

Line = bytes | bytearray

#: Types of the ids that a stream may have.
_IDS = frozenset((int, str, type(None)))

#: What the key of a stream begins with that is sent, and of one that is received.
_OUT, _IN = ">", "<"


def is_control_message(message: dict[str, Any]) -> bool:
    """Whether a notification is a control message."""
    method = message.get("method")
    return type(method) is str and method.startswith(envelope.CONTROL)


def handle(state: ConversationState, message: dict[str, Any], line: Line) -> bool:
    """Handle a notification if it is a control message; False if it calls a method.

    Args:
        message: with a method and without an id.
        line: the message as it came; empty for a member of a batch, of which no rich values are decoded.
    """
    method = message["method"]
    if type(method) is not str or not method.startswith(envelope.CONTROL):
        return False
    handler, params = _HANDLERS.get(method), message.get("params")
    if handler is not None and type(params) is dict and message.get("jsonrpc") == envelope.VERSION:
        handler(state, params, line)
    return True


def early_key(state: ConversationState, message: Any) -> str | None:
    """The key (for `is_open`) of the stream that a control message is about, if that is not open; else None.

    The request that opens the stream may wait unread; then the message must stay behind it.
    """
    if type(message) is not dict or "id" in message:
        return None
    method, params = message.get("method"), message.get("params")
    if type(method) is not str or type(params) is not dict:
        return None
    if method == envelope.CREDIT:
        key = _sender_key(params)
        return None if key is None or key in state.streams.senders else _OUT + key
    if method == envelope.END:
        token = params.get("stream")
        return None if type(token) is not str or token in state.streams.receivers else _IN + token
    return None


def is_control(message: dict[str, Any]) -> bool:
    """Whether a message is a control notification (`$/...`), by its name."""
    method = message.get("method")
    return type(method) is str and method.startswith(envelope.CONTROL) and "id" not in message


def is_open(state: ConversationState, key: str) -> bool:
    """Whether the stream with this key is open now."""
    return key[1:] in (state.streams.senders if key[0] == _OUT else state.streams.receivers)


def _cancel(state: ConversationState, params: dict[str, Any], line: Line) -> None:
    call_id = params.get("id")
    if type(call_id) is not int and type(call_id) is not str:
        return
    if not state.running.cancel(call_id) and state.queue.is_overtaken:
        state.queue.cancel(call_id)


def _progress(state: ConversationState, params: dict[str, Any], line: Line) -> None:
    call = state.pending.find(params.get("token"))
    if call is not None and not call.progress(params, line):
        state.calls.report(call, params, line)


def _item(state: ConversationState, params: dict[str, Any], line: Line) -> None:
    if params.get("stream") is None:
        _item_of_reply(state, params, line)
        return
    receiver = _receiver(state, params)
    if receiver is None:
        state.pending.count_dropped()
        return
    with contextlib.suppress(InvalidRequest):  # the consumer has been told
        receiver.put((params, line))


def _item_of_reply(state: ConversationState, params: dict[str, Any], line: Line) -> None:
    call = state.pending.find(params.get("id"))
    try:
        if call is None or not call.item(params, line):
            state.pending.count_dropped()
    except InvalidRequest:
        # The consumer has been told; the producer does not keep to the rules, and need not go on.
        state.pending.discard(params["id"])
        state.calls.cancel([params["id"]])


def _end(state: ConversationState, params: dict[str, Any], line: Line) -> None:
    receiver = _receiver(state, params)
    if receiver is not None:
        error = params.get("error")
        receiver.end(None if error is None else error_from_wire(error))


def _credit(state: ConversationState, params: dict[str, Any], line: Line) -> None:
    n, sender = params.get("n"), _sender(state, params)
    if sender is not None and type(n) is int and n > 0:
        sender.grant(n)


def _receiver(state: ConversationState, params: dict[str, Any]) -> ItemSink | None:
    token = params.get("stream")
    return state.streams.receivers.get(token) if type(token) is str else None


def _sender(state: ConversationState, params: dict[str, Any]) -> CreditSink | None:
    key = _sender_key(params)
    return None if key is None else state.streams.senders.get(key)


def _sender_key(params: dict[str, Any]) -> str | None:
    token = params.get("stream")
    if type(token) is str:
        return argument_key(token)
    # Other ids name no stream; and writing an array of any depth as text would take any time.
    return reply_key(params["id"]) if "id" in params and type(params["id"]) in _IDS else None


def _event(state: ConversationState, params: dict[str, Any], line: Line) -> None:
    if state.on_event is not None:
        state.on_event(params, line)


def _go_away(state: ConversationState, params: dict[str, Any], line: Line) -> None:
    state.peer_leaves(params.get("last", envelope.UNSAYABLE), envelope.reason_of_leave(params))


_HANDLERS: dict[str, Callable[[ConversationState, dict[str, Any], Line], None]] = {
    envelope.CANCEL: _cancel,
    envelope.PROGRESS: _progress,
    envelope.ITEM: _item,
    envelope.END: _end,
    envelope.CREDIT: _credit,
    envelope.EVENT: _event,
    envelope.GO_AWAY: _go_away,
}
