"""The session of a connection, or of one POST, on which MCP is spoken.

It tells the progress of calls in the form of MCP, and never calls the client, because MCP has no calls back.
"""

from __future__ import annotations

import math
from typing import Any

import orjson

from ..codec.payloads import parse_whole
from ..peer.control_messages import reply_key
from ..peer.session import Session
from ..wire.buffers import Encoded
from ..wire.envelope import PROGRESS, read_progress

#: What a notification begins with that is made of a progress report.
_NOTIFICATION = b'{"jsonrpc":"2.0","method":"notifications/progress","params":'

#: Characters of the text of a progress report.
_MAX_TEXT = 1000


class Progress:
    """What was said of the progress of one call, since each report must be greater than the one before.

    Args:
        token: that the client has given for it.
    """

    __slots__ = ("_last", "_token")

    def __init__(self, token: str | int) -> None:
        self._token = token
        self._last: float | None = None

    def notification(self, value: Any) -> bytes | None:
        """The notification for what a handler has reported; None if it is not further than before.

        What does not say how much is done counts one further.
        """
        done, total, text = read_progress(value)
        if done is None:
            done = 1 if self._last is None else math.floor(self._last) + 1
        elif self._last is not None and done <= self._last:
            return None
        self._last = done
        params: dict[str, Any] = {"progressToken": self._token, "progress": done}
        if total is not None:
            params["total"] = total
        if text is not None:
            params["message"] = text[:_MAX_TEXT]
        return _NOTIFICATION + orjson.dumps(params) + b"}"


def parse_long(line: bytes, state: Session) -> tuple[Any, bytes]:
    """Parse a long message, as `peer.incoming.parse_long`, with all of its strings in place."""
    return parse_whole(line, state.limits), line


class McpSession(Session):
    """A session on which MCP is spoken.

    Attributes:
        is_http: the session is one POST, whose headers are those of `headers`.
        is_stateless: the request that came last is of the version 2026-07-28.
        more_headers: of the HTTP response.
        progress: what is told of the progress of the calls that run, by the id as text.
        running_tools: whether the client has cancelled a tool call that is still running, by the id as text.
    """

    __slots__ = ("is_http", "is_stateless", "more_headers", "progress", "running_tools")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.is_http = self.is_stateless = False
        self.more_headers: list[tuple[str, str]] = []
        self.progress: dict[str, Progress] = {}
        self.running_tools: dict[str, bool] = {}
        self.takes_binary = self.offers_binary = False
        self.streaming = False

    def send(self, message: Encoded) -> None:
        """Send what a call reports of its progress, if its caller has asked for that. Nothing else is sent."""
        if not self.progress:
            return
        parsed = orjson.loads(bytes(message))
        if parsed.get("method") != PROGRESS:
            return
        params = parsed["params"]
        progress = self.progress.get(reply_key(params["token"]))
        notification = None if progress is None else progress.notification(params["value"])
        if notification is not None:
            super().send(notification)
