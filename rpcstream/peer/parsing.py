"""Parsing of messages, and what a message comes to that cannot be parsed.

Owns the decisions about long messages, messages over a limit and messages that are not JSON. Does not know when a
message is handled, nor what it asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from ..errors import RpcError
from ..wire import envelope
from ..wire.buffers import Encoded
from ..wire.framing import Oversize
from .state import ConversationState

#: As `Dispatch.refuse`.
Refuse = Callable[[Any, RpcError], Encoded | None]

#: Parses a long message that came on a conversation; results and errors as of `Codec.parse`.
ParseLong = Callable[[bytes, ConversationState], tuple[Any, bytes]]


def parse_long(line: bytes, state: ConversationState) -> tuple[Any, bytes]:
    """Parse a message of `LONG` bytes or more: as `Codec.parse`.

    Raises:
        orjson.JSONDecodeError: it is not JSON.
        TooManyValues: it has more values than `max_values`.
    """
    return state.codec.parse(line, state.limits.max_values)


def fail_call_of(message: Oversize, state: ConversationState) -> bool:
    """Fail the call whose reply is too large to be read; False if the message is no reply."""
    return state.pending.settled_too_long(message, state.limits.max_message_size, state.side)


def refuse_oversize(message: Oversize, state: ConversationState, refuse: Refuse) -> Encoded | None:
    """The error reply to a request that is too large."""
    return refuse(message, envelope.refusal_of(message, state.limits.max_message_size, side=state.side))


def split_or_refuse(
    line: bytes, error: orjson.JSONDecodeError, state: ConversationState, refuse: Refuse
) -> tuple[list[bytes], Encoded | None]:
    """What a message that is not JSON comes to: the messages that stand in it one after the other; or an error reply.

    If it begins like a reply, the call that waits for it fails, and nothing is answered.
    """
    values = envelope.split_values(line)
    if values and state.splits_values:
        return values, None
    reason = envelope.unreadable(line, error)
    # A client ends the connection, and with it all calls.
    if state.side == "server" and state.pending.settled_unreadable(line, reason):
        return [], None
    return [], refuse({"id": None if values else envelope.id_of_request(line)}, reason)
