"""A request object that the caller has made, id included: `client({"jsonrpc": "2.0", ...})`."""

from __future__ import annotations

from typing import Any

from ..peer.calls import Call, Soon
from ..peer.marshal import Marshaller
from ..peer.pending import PendingCall, PendingCalls
from ..wire.buffers import Encoded


class RawCall(Call):
    """A request object that is sent as it is, id included; the outcome is the whole response object.

    Its `enter` raises ValueError where the id is neither a string nor an integer, or belongs to a waiting call.
    """

    def __init__(self, marshaller: Marshaller, message: dict[str, Any]) -> None:
        method, window = message.get("method"), message.get("stream")
        super().__init__(
            marshaller,
            method if isinstance(method, str) else "(no method)",
            window=window if type(window) is int else None,
        )
        self._message = message

    def enter(self, pending: PendingCalls, call: PendingCall, soon: Soon) -> None:
        self.call_id = self._message["id"]
        pending.add_as(self.call_id, call)

    def encode(self, left: float, *, says_whole: bool = False) -> Encoded:
        more = {} if self.trace is None else self.trace.sent(self.call_id)
        return self.marshaller.encode({**more, **self._message}, self.method)

    def outcome(self, reply: dict[str, Any], line: bytes | bytearray) -> dict[str, Any]:
        return self.marshaller.response(self.method, reply, line)
