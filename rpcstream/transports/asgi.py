"""HTTP and WebSocket connections that an ASGI server has accepted and parsed, in place of a listening socket.

Owns how the scope of ASGI becomes a request, and whether a WebSocket is opened. What becomes of a request is decided by
`asgi_http`, of a WebSocket by `asgi_websocket`; how many there may be by `open_connections`, as on our own port. Knows
neither the life of the server nor other applications.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from ..auth.authenticator import NOT_SYNC, Authenticator
from ..limits import Limits
from ..peer.credentials import Credentials
from ..peer.memory import MessageMemory
from ..peer.session import Session
from ..wire.buffers import parts_of
from ..wire.http_messages import HttpError, Request, Response, problem
from ..wire.http_parser import HeadFields
from ..wire.upgrade import SUBPROTOCOLS
from .asgi_http import AsgiRequest
from .asgi_transport import Receive, Scope, Send
from .asgi_websocket import AsgiWebSocket
from .http_exchange import AnsweredNotifications
from .http_router import HttpRouter, not_authenticated, request_credentials, response_of
from .message_connection import Trace
from .open_connections import OpenConnections

#: Versions of HTTP in which a request says how long its body is, or that it comes in chunks.
_WITH_LENGTHS = ("1.0", "1.1")


class AsgiEndpoint:
    """Serves the scopes "http" and "websocket" of ASGI 3.

    Args:
        new_session: makes the session of a call, or of a WebSocket.
        router: decides what answers each request.
        authenticator: finds out who sends the requests; None: that is not asked.
        trace: sees every message and reply.
        memory: counts what the messages of all connections of the server take.
        connections: those that are open; every request is one while it is answered.
        on_close: called with each WebSocket when it is over.

    Attributes:
        answered: the notifications that were answered and still run.
    """

    def __init__(
        self,
        new_session: Callable[[], Session],
        *,
        limits: Limits,
        router: HttpRouter,
        authenticator: Authenticator | None,
        trace: Trace | None,
        memory: MessageMemory | None,
        connections: OpenConnections,
        on_close: Callable[[AsgiWebSocket], None],
    ) -> None:
        self.new_session = new_session
        self.limits = limits
        self.router = router
        self.authenticator = authenticator
        self.trace = trace
        self.memory = MessageMemory(limits.max_held_total, limits.max_unread_total) if memory is None else memory
        self.answered = AnsweredNotifications(limits)
        self._connections = connections
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection to its end."""
        work = self._serve_websocket if scope["type"] == "websocket" else self._serve_http
        if isinstance(asyncio.current_task(), asyncio.Task):
            await work(scope, receive, send)
        else:  # some servers (granian) step the coroutines of applications by themselves, and cannot cancel them
            await asyncio.get_running_loop().create_task(work(scope, receive, send))

    def _request(self, scope: Scope) -> Request:
        request = request_of(scope)
        self.router.forgive_slash(request)
        return request

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = self._request(scope)
        except HttpError as error:
            await send_response(send, error.response)
            return
        needs_length = scope.get("http_version", "1.1") in _WITH_LENGTHS
        connection = AsgiRequest(self, request, receive, send, address_of(scope), needs_length=needs_length)
        await connection.serve(self._connections.opened, self._connections.closed)

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["type"] != "websocket.connect":
            return
        address = address_of(scope)
        try:
            request = self._request(scope)
            refusal = self.router.websocket_refusal(request) or await self._identify(request, address)
        except HttpError as error:
            refusal = error.response
        if refusal is not None:
            await refuse_websocket(scope, send, refusal)
            return
        session = self.new_session()
        session.set_request(request.identity, request.headers)
        connection = AsgiWebSocket(
            session,
            receive,
            send,
            limits=self.limits,
            address=address,
            trace=self.trace,
            on_open=self._connections.opened,
            on_close=self._on_close,
        )
        offered = [word for word in scope.get("subprotocols", ()) if word in SUBPROTOCOLS]
        await connection.serve(offered[0] if offered else None)

    async def _identify(self, request: Request, address: str) -> Response | None:
        """Find out who opens a WebSocket, if a token comes with the handshake; gives the response if it is refused.

        Browsers cannot give one here: then it comes with the first call.
        """
        authenticator = self.authenticator
        if authenticator is None or "authorization" not in request.headers:
            return None
        credentials = request_credentials(request, Credentials(address=address))
        identity = authenticator.identify_now(credentials)
        if identity is NOT_SYNC:
            identity = await response_of(authenticator.identify(credentials))
        if isinstance(identity, Response):
            return identity
        if identity is None:
            authenticator.refused(address, has_shown=True)
            return not_authenticated(has_shown=True)
        request.identity = identity
        return None


def request_of(scope: Scope) -> Request:
    """The request of a scope.

    Raises:
        HttpError: it is not acceptable.
    """
    fields = HeadFields()
    for name, value in scope["headers"]:
        fields.on_header(name, value)
    root = scope.get("root_path") or ""
    whole = scope["path"]
    raw = scope.get("raw_path")
    query = scope.get("query_string", b"").decode("latin-1")
    target = raw.decode("latin-1") if raw else quote(whole)
    request = Request(
        scope.get("method", "GET"),
        f"{target}?{query}" if query else target,
        fields.headers,
        path=path_below(root, whole),
        query=query,
        is_http10=scope.get("http_version") == "1.0",
    )
    request.root = root.rstrip("/")
    if "\0" in whole:
        raise HttpError(problem(400, "the path has a zero byte in it"))
    return request


def path_below(root: str, path: str) -> str:
    """The path within an application that is mounted at `root`; that of the mount itself is "/"."""
    root = root.rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    return path or "/"


def address_of(scope: Scope) -> str:
    """The address of the client, for people; "unknown" where the ASGI server does not say it."""
    client = scope.get("client")
    if not client or not client[0]:
        return "unknown"
    host, port = client[0], client[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def send_response(send: Send, response: Response, kind: str = "http.response") -> None:
    """Answer with this."""
    body: Any = b"".join(parts_of(response.body))
    await send({"type": f"{kind}.start", "status": response.status, "headers": response.pairs(len(body))})
    await send({"type": f"{kind}.body", "body": body, "more_body": False})


async def refuse_websocket(scope: Scope, send: Send, response: Response) -> None:
    """Refuse a WebSocket that was not accepted: with this, where the server can send it, else with its own 403."""
    if "websocket.http.response" in (scope.get("extensions") or {}):
        await send_response(send, response, "websocket.http.response")
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": response.text.strip()[:100]})
