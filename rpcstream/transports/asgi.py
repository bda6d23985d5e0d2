"""HTTP and WebSocket connections that an ASGI server has accepted and parsed, in place of a listening socket."""

from __future__ import annotations

import asyncio
import logging
from typing import Unpack
from urllib.parse import quote

from ..peer.frame_admission import FrameAdmission
from ..peer.session import Session
from ..wire.binary_frame import MARK, FrameError, parts_of_frame, whole_frame
from ..wire.buffers import AttachedMessage, Encoded
from ..wire.envelope import HEAD_SIZE, Message, Oversize
from ..wire.frames import BAD_DATA, GOING_AWAY, NO_CODE, Close
from ..wire.http_messages import HttpError, Request, Response, problem
from ..wire.http_parser import SUBPROTOCOLS, add_header
from .asgi_http import AsgiRequest, Event, EventConnection, Receive, Scope, Send, response_events
from .http_router import ConnectionContext, HttpRouter
from .message_connection import ConnectionOptions, WebSocketConnection, trace_all, trace_sent

log = logging.getLogger("rpcstream.server")

#: How a message begins that is a binary frame.
_MARK = bytes((MARK,))

#: Bytes and number of messages that are handled together at most.
READ_MAX, MESSAGES_MAX = 64 * 1024, 1000


class AsgiWebSocket(WebSocketConnection, EventConnection):
    """A `Connection` of the listener, and the channel of one session.

    Args:
        session: gets the messages.
        options: see `ConnectionOptions`.
    """

    def __init__(self, session: Session, **options: Unpack[ConnectionOptions]) -> None:
        super().__init__(session, **options)
        self._frames = FrameAdmission(session)
        self._max_size = session.limits.max_message_size
        #: Messages that have come in this turn of the loop, and their bytes; when they are handled.
        self._received: list[Message] = []
        self._received_size = 0
        self._delivery: asyncio.Handle | None = None

    async def serve(self, receive: Receive, send: Send, subprotocol: str | None) -> None:
        """Accept the WebSocket, and serve it to its end; to be awaited by the ASGI application.

        Args:
            subprotocol: of those that the client offers; None: none of them.
        """
        self._is_open = True
        self._put({"type": "websocket.accept", "subprotocol": subprotocol})
        self._opened()
        reader = self._loop.create_task(self._read(receive))
        try:
            await self._run(self._send_all(send))
        finally:
            reader.cancel()
            self._is_open, self._closing = False, True
            if self._delivery is not None:
                self._delivery.cancel()
            self._frames.give_up()
            self.connection_lost(None)

    def restrict(self, max_message_size: int | None) -> None:
        """Take messages up to this size (bytes) and no frames from now on; None: those that the limits permit."""
        self._frames.reason = None if max_message_size is None else "a binary frame before authentication"
        self._max_size = max_message_size or self._limits.max_message_size

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _read(self, receive: Receive) -> None:
        """Take the messages as they come, until the client leaves. Those of one turn of the loop are handled together.

        As on a socket, where one read has many: a cancel among them is seen before reading is paused. While it is, one
        more message is taken, and kept: a client that is gone is noticed so.
        """
        try:
            while (event := await receive())["type"] != "websocket.disconnect":
                await self._reads.wait()
                if not self._ignores_input and not self._closing:
                    self._take(event)
                if self._received_size > READ_MAX or len(self._received) > MESSAGES_MAX:
                    await asyncio.sleep(0)  # they are handled now
            self._deliver()
            self._closing = True  # nothing can be sent
            self._peer_closed(Close(event.get("code") or NO_CODE, event.get("reason") or ""))
        except Exception:
            log.exception("closing a WebSocket: a message could not be handled")
            self.abort("an internal error")

    def _take(self, event: Event) -> None:
        """Handle one message."""
        text = event.get("text")
        data: bytes
        if text is not None:
            try:
                data = text.encode()
            except UnicodeEncodeError:  # half of a surrogate pair, from a server that does not look at UTF-8
                self._fail(Close(BAD_DATA, "a text message is not UTF-8"))
                return
        else:
            data = event.get("bytes") or b""
            if data[:1] == _MARK:
                self._deliver()  # what came before may permit it
                self._take_frame(bytes(data))
                return
        if len(data) > self._max_size:
            self._deliver()  # the token may be in what came before: then more is permitted
        is_too_long = len(data) > self._max_size
        self._keep(Oversize(len(data), data[:HEAD_SIZE], self._max_size) if is_too_long else data, len(data))

    def _keep(self, message: Message, size: int) -> None:
        """Have a message of this many bytes handled with all others of this turn."""
        self._received.append(message)
        self._received_size += size
        if self._delivery is None:
            self._delivery = self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        messages, self._received, self._received_size = self._received, [], 0
        if self._delivery is not None:
            self._delivery.cancel()
            self._delivery = None
        if not messages or self._closing:
            return
        self._timeouts.completed = True
        if self._trace is not None:
            trace_all(self._trace, "receive", messages)
        self.session.intake.receive(messages)

    def _take_frame(self, data: bytes) -> None:
        """Handle a binary frame."""
        try:
            message = whole_frame(data, self._frames, self._max_size)
        except FrameError as error:
            self._deliver()
            self._fail(Close(BAD_DATA, str(error)))
        else:
            self._keep(message, len(data))

    def _answer_close(self, close: Close) -> None:
        self._lose_session()
        self.abort(self.reason or "the client closed the connection")

    # -- for the session (Channel) ----------------------------------------------------------------------------------

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`; each message is an event."""
        if not self._is_open or self._closing:
            return
        reads_frames = self.session.sends_binary
        if self._trace is not None:
            trace_sent(self._trace, messages, as_frames=reads_frames)
        for message in messages:
            if reads_frames and type(message) is AttachedMessage:
                if self.session.counters is not None:
                    self.session.counters.frames_sent += 1
                frame = b"".join(parts_of_frame(message))
                self._put({"type": "websocket.send", "bytes": frame}, len(frame))
            else:
                text = bytes(message).decode()
                self._put({"type": "websocket.send", "text": text}, len(message))

    def close(self) -> None:
        """As `Channel.close`."""
        self._send_close(Close(GOING_AWAY))

    def _send_close(self, close: Close) -> None:
        if self._closing:
            return
        self._frames.give_up()
        self._put({"type": "websocket.close", "code": close.code, "reason": close.reason})
        self._close_behind()

    @property
    def _is_partial(self) -> bool:
        return False  # messages come whole


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
