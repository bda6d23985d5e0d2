"""HTTP and WebSocket connections that an ASGI server has accepted and parsed, in place of a listening socket."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from ..peer.session import Session
from ..wire.http_messages import HttpError, Request, Response, problem
from ..wire.http_parser import SUBPROTOCOLS, add_header
from .asgi_http import AsgiRequest, Receive, Scope, Send, response_events
from .asgi_websocket import AsgiWebSocket
from .http_router import ConnectionContext, HttpRouter


class AsgiEndpoint:
    """Serves the scopes "http" and "websocket" of ASGI 3.

    Args:
        context: of the connections; every request counts as one while it is answered.
    """

    def __init__(self, context: ConnectionContext, router: HttpRouter) -> None:
        self._context = context
        self._router = router
        self._answered: list[Session] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection to its end."""
        if isinstance(asyncio.current_task(), asyncio.Task):
            await self._serve(scope, receive, send)
        else:  # some servers (granian) step the coroutines of applications by themselves, and cannot cancel them
            await asyncio.get_running_loop().create_task(self._serve(scope, receive, send))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_websocket = scope["type"] == "websocket"
        if is_websocket and (await receive())["type"] != "websocket.connect":
            return
        try:
            request = request_of(scope)
        except HttpError as error:
            await send_response(scope, send, error.response)
            return
        self._router.forgive_slash(request)
        address = self._context.proxies.client_of(request.headers, address_of(scope))
        connection = AsgiRequest(self._context, self._router, scope, request, address)
        connection.answered = self._answered
        await connection.serve(receive, send)
        if connection.is_accepted:
            websocket = self._context.make(AsgiWebSocket, request, address=address)
            self._context.connections.replaced(connection, websocket)
            offered = [word for word in scope.get("subprotocols", ()) if word in SUBPROTOCOLS]
            await websocket.serve(receive, send, offered[0] if offered else None)


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
    if scope["type"] == "websocket":  # HTTP/2 has no such header
        headers["upgrade"] = "websocket"
    if "\0" in whole or (target and not target.startswith("/")):
        raise HttpError(problem(400, "the target must be a path that begins with / and has no zero byte in it"))
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


async def send_response(scope: Scope, send: Send, response: Response) -> None:
    """Answer a request, or refuse a WebSocket that was not accepted, with this."""
    for event in response_events(scope, response):
        await send(event)
