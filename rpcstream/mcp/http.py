"""MCP over HTTP: one POST is one message ("Streamable HTTP").

Owns the status of the response, and when it is a stream of events: as soon as there is progress to tell, for clients
that read events. Where a POST goes is decided by the router of the transports; what it says is up to the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ..transports.asgi_http import AsgiExchange
from ..transports.http_exchange import AnsweredNotifications, CallHead, HttpExchange
from ..transports.http_output import ResponseSink
from ..transports.message_connection import Trace
from ..wire.buffers import Encoded
from ..wire.http_messages import EVENTS, JSON, Response
from ..wire.messages import Message
from .dispatch import status_of_reply
from .session import McpSession

#: What a message begins with that is no reply.
_NOTIFICATION = b'{"jsonrpc":"2.0","method":'

#: Makes a session; the identity of the caller is given.
NewSession = Callable[[Any], McpSession]


class McpEndpoint:
    """Takes POST for MCP; an `Endpoint` of the transports.

    Args:
        new_session: makes the session of one POST.
    """

    def __init__(self, new_session: NewSession) -> None:
        self._new_session = new_session

    def make_exchange(
        self, identity: Any, address: str, answered: AnsweredNotifications, trace: Trace | None, *, is_asgi: bool
    ) -> HttpExchange:
        """As `Endpoint.make_exchange`."""
        session = self._new_session(identity)
        session.is_http = True
        kind = AsgiMcpExchange if is_asgi else McpExchange
        return kind(session, address, answered, trace)


class McpExchange(HttpExchange):
    """One POST and its response."""

    __slots__ = ()

    STREAM_HEADERS: ClassVar[list[tuple[str, str]]] = [("Cache-Control", "no-store"), ("X-Accel-Buffering", "no")]

    def begin(self, sink: ResponseSink, head: CallHead, body: Message) -> None:
        """As `HttpExchange.begin`."""
        self._is_simple = False  # a call on this connection must not get this exchange, whose session speaks MCP
        super().begin(sink, head, body)

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`."""
        if self._response_type == JSON and any(map(_is_notification, messages)):
            accepted = self._head.request.headers.get("accept", "")
            if EVENTS in accepted or "*/*" in accepted:
                self._response_type = EVENTS
        super().send(messages)

    def _write_reply(self, sink: ResponseSink, keeps: bool) -> None:
        session = self.session
        assert isinstance(session, McpSession)
        reply = bytes(self._replies[0]) if self._replies else b""
        if not reply:
            response = Response(202)  # a notification, or a call that was cancelled
        else:
            status = status_of_reply(reply, is_stateless=session.is_stateless)
            response = Response(status, reply, JSON, session.more_headers)
        self._write_response(sink, response, keeps)


class AsgiMcpExchange(McpExchange, AsgiExchange):
    """The same, written as events of ASGI."""

    __slots__ = ()


def _is_notification(message: Encoded) -> bool:
    return type(message) is bytes and message.startswith(_NOTIFICATION)
