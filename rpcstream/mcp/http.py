"""MCP over HTTP: one POST is one message ("Streamable HTTP").

The response is a stream of events as soon as there is progress to tell, for clients that read events.
"""

from __future__ import annotations

from typing import ClassVar

from ..transports.http_call import HttpCall, HttpServing, is_notification
from ..transports.http_router import CallHead
from ..wire.buffers import Encoded
from ..wire.envelope import Message
from ..wire.http_messages import EVENTS, JSON, Response
from .dispatch import status_of_reply
from .session import McpSession


class McpCall(HttpCall):
    """One POST and its response."""

    STREAM_HEADERS: ClassVar[list[tuple[str, str]]] = [("Cache-Control", "no-store"), ("X-Accel-Buffering", "no")]

    def begin(self, connection: HttpServing, head: CallHead, body: Message) -> None:
        """As `HttpCall.begin`."""
        self._is_simple = False  # a call on this connection must not get this object, whose session speaks MCP
        super().begin(connection, head, body)

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`."""
        if self._response_type == JSON and any(map(is_notification, messages)):
            accepted = self._head.request.headers.get("accept", "")
            if EVENTS in accepted or "*/*" in accepted:
                self._response_type = EVENTS
        super().send(messages)

    def _respond(self, connection: HttpServing, reply: Encoded) -> None:
        session = self.session
        assert isinstance(session, McpSession)
        whole = bytes(reply)
        if not whole:
            connection.respond(Response(202))  # a notification, or a call that was cancelled
        else:
            status = status_of_reply(whole, is_stateless=session.is_stateless)
            connection.respond(Response(status, whole, JSON, session.more_headers))
