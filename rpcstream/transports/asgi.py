"""HTTP and WebSocket connections that an ASGI server has accepted and parsed, in place of a listening socket."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from ..peer.credentials import Credentials
from ..peer.ledger import AnsweredNotifications
from ..wire.buffers import parts_of
from ..wire.http_messages import HttpError, Request, Response, problem
from ..wire.http_parser import add_header
from ..wire.upgrade import SUBPROTOCOLS
from .asgi_http import AsgiRequest, Receive, Scope, Send
from .asgi_websocket import AsgiWebSocket
from .http_router import ConnectionContext, HttpRouter, not_authenticated, request_credentials, response_of


class AsgiEndpoint:
    """Serves the scopes "http" and "websocket" of ASGI 3.

    Args:
        context: of the connections; every request counts as one while it is answered.
        on_close: called with each WebSocket when it is over.
    """

    def __init__(
        self, context: ConnectionContext, router: HttpRouter, on_close: Callable[[AsgiWebSocket], None]
    ) -> None:
        self._context = context
        self._router = router
        self._answered = AnsweredNotifications(context.limits)
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection to its end."""
        work = self._serve_websocket if scope["type"] == "websocket" else self._serve_http
        if isinstance(asyncio.current_task(), asyncio.Task):
            await work(scope, receive, send)
        else:  # some servers (granian) step the coroutines of applications by themselves, and cannot cancel them
            await asyncio.get_running_loop().create_task(work(scope, receive, send))

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = self._request(scope)
        except HttpError as error:
            await send_response(send, error.response)
            return
        needs_length = scope.get("http_version", "1.1") in ("1.0", "1.1")
        address = self._client(scope, request)
        connection = AsgiRequest(self._context, self._router, request, address, needs_length=needs_length)
        connection.answered = self._answered
        await connection.serve(receive, send)

    def _client(self, scope: Scope, request: Request) -> str:
        return self._context.proxies.client_of(request.headers, address_of(scope))

    def _request(self, scope: Scope) -> Request:
        request = request_of(scope)
        self._router.forgive_slash(request)
        return request

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["type"] != "websocket.connect":
            return
        context = self._context
        try:
            request = self._request(scope)
            address = self._client(scope, request)
            refusal = self._router.websocket_refusal(request) or await self._identify(request, address)
        except HttpError as error:
            refusal = error.response
        if refusal is not None:
            await refuse_websocket(scope, send, refusal)
            return
        session = context.new_session()
        session.identity, session.headers = request.identity, request.headers
        connection = AsgiWebSocket(
            session,
            address=address,
            trace=context.trace,
            on_open=context.connections.opened,
            on_close=self._on_close,
        )
        offered = [word for word in scope.get("subprotocols", ()) if word in SUBPROTOCOLS]
        await connection.serve(receive, send, offered[0] if offered else None)

    async def _identify(self, request: Request, address: str) -> Response | None:
        """Find out who opens a WebSocket, if a token comes with the handshake; gives the response if it is refused.

        Browsers cannot give one here: then it comes with the first call.
        """
        authenticator = self._context.authenticator
        if authenticator is None or "authorization" not in request.headers:
            return None
        credentials = request_credentials(request, Credentials(address=address))
        identity = authenticator.identify(credentials)
        if inspect.isawaitable(identity):
            identity = await response_of(identity)
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
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        add_header(headers, name, value)
    root = scope.get("root_path") or ""
    whole = scope["path"]
    raw = scope.get("raw_path")
    query = scope.get("query_string", b"").decode("latin-1")
    target = raw.decode("latin-1") if raw else quote(whole)
    request = Request(
        scope.get("method", "GET"),
        f"{target}?{query}" if query else target,
        headers,
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
