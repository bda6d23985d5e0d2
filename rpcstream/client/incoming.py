"""What comes in at a client and is no plain reply: the server's own requests, and what cannot be read.

Requests go to the methods that the client offers, or are refused where it offers none; replies that are too long fail
the call they belong to; bytes that are no JSON-RPC end the conversation with a reason. Pure: the owner of the
connection says how to settle and how to end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from ..codec import payloads
from ..errors import MethodNotFound, ParseError
from ..peer.interfaces import Dispatch, Later
from ..wire import envelope
from ..wire.framing import Oversize
from ..wire.pieces import Written


class Inbound:
    """Answers for a client; a session's `peer.interfaces.Dispatch`.

    Args:
        settle: hands a reply to the call that waits for it.
        lose: ends the connection, with the reason.
        max_size: the limit that a message was over, in bytes.
        methods: gives what answers requests, if the client offers methods (at the moment).
    """

    def __init__(
        self,
        *,
        settle: Callable[[dict[str, Any], bytes | bytearray], None],
        lose: Callable[[str], object],
        max_size: int,
        methods: Callable[[], Dispatch | None] = lambda: None,
    ) -> None:
        self._settle = settle
        self._lose = lose
        self._max_size = max_size
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

    def oversize(self, message: Oversize) -> Written | None:
        """The reply cannot be read: its call fails. If it does not show which, every call fails that waits."""
        methods = self._methods()
        if methods is not None and b'"method"' in message.head:
            return methods.oversize(message)
        error = envelope.refusal_of(message, self._max_size, side="client")
        self._settle(envelope.error_reply(envelope.id_in_head(message.head), error), b"")
        return None

    def unreadable(self, error: ParseError, call_id: Any = None) -> bytes | None:
        """Not JSON: whoever is there does not speak JSON-RPC, or no longer."""
        reason = error.data["reason"] if isinstance(error.data, dict) else error.message
        self._lose(f"the peer sent something that is not JSON: {reason}")
        return None

    def cancelled(self, message: Any) -> Written | None:
        """The reply to a request whose handler was cancelled."""
        methods = self._methods()
        return methods.cancelled(message) if methods is not None else None

    def busy(self, message: Any, limit: int, name: str) -> Written | None:
        """The reply to a request that cannot be taken now."""
        methods = self._methods()
        return methods.busy(message, limit, name) if methods is not None else self.answer_now(message, b"")

    def goes_on(self, message: Any) -> bool:
        """Is a handler to go on when the connection is lost?"""
        methods = self._methods()
        return "id" not in message if methods is None else methods.goes_on(message)

    def took_long(self, message: Any, seconds: float) -> None:
        """Nothing here is slow but what the caller asked for, and what it offers."""
        methods = self._methods()
        if methods is not None:
            methods.took_long(message, seconds)

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
