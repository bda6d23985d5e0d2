"""What comes in and is no reply, at an end that offers no methods.

Requests of the peer are refused, replies that are too long fail the call they belong to, and bytes that are no JSON-RPC
end the conversation with a reason. Pure: the owner of the connection says how to settle and how to end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from ..errors import MethodNotFound, ParseError
from ..wire import envelope
from ..wire.framing import Oversize


class NoMethods:
    """Answers for an end that offers no methods; has the form of a session's dispatcher.

    Args:
        settle: hands a reply to the call that waits for it.
        lose: ends the connection, with the reason.
        max_size: the limit that a message was over, in bytes.
    """

    def __init__(
        self,
        *,
        settle: Callable[[dict[str, Any], bytes | bytearray], None],
        lose: Callable[[str], object],
        max_size: int,
    ) -> None:
        self._settle = settle
        self._lose = lose
        self._max_size = max_size

    def answer(self, message: Any, line: bytes | bytearray) -> bytes | None:
        """Handle a message that is not all replies; what is to be sent for it, if anything."""
        if type(message) is not list or not message:
            return self._one(message, line)
        refusals = [refusal for member in message if (refusal := self._one(member, line)) is not None]
        return b"[" + b",".join(refusals) + b"]" if refusals else None

    def oversize(self, message: Oversize) -> bytes | None:
        """The reply cannot be read: its call fails. If it does not show which, every call fails that waits."""
        error = envelope.oversize(message.size, self._max_size, side="client")
        self._settle(envelope.error_reply(envelope.id_in_head(message.head), error), b"")
        return None

    def unreadable(self, error: ParseError) -> bytes | None:
        """Not JSON: whoever is there does not speak JSON-RPC, or no longer."""
        reason = error.data["reason"] if isinstance(error.data, dict) else error.message
        self._lose(f"the peer sent something that is not JSON: {reason}")
        return None

    def cancelled(self, message: Any) -> bytes | None:
        """Nothing here waits, so nothing is cancelled."""
        return None

    def took_long(self, message: Any, seconds: float) -> None:
        """Nothing here is slow but what the caller asked for."""

    def _one(self, message: Any, line: bytes | bytearray) -> bytes | None:
        if type(message) is dict and "method" in message:
            if message.get("id") is None or not envelope.has_valid_id(message):
                return None
            if type(message["id"]) is float:
                envelope.with_exact_ids(message, line)
            return orjson.dumps(envelope.error_reply(message["id"], MethodNotFound()))
        if type(message) is dict and "id" in message:
            self._settle(message, line)  # a reply, or the broken form of one: its call fails, or nobody waits for it
        else:
            self._lose("the peer sent something that is no JSON-RPC message")
        return None
