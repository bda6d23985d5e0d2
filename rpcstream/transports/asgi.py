"""What an ASGI server has accepted, as a connection: one HTTP request, or one WebSocket.

Each request is a connection of its own here: ASGI does not tell which requests come on the same one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any, Unpack
from urllib.parse import quote

from ..errors import RpcError
from ..limits import Limits
from ..peer.frame_admission import FrameAdmission
from ..peer.ledger import ServerLedger
from ..peer.session import Session
from ..wire.binary_frame import MARK, FrameError, parts_of_frame, whole_frame
from ..wire.buffers import AttachedMessage, Encoded, parts_of
from ..wire.envelope import HEAD_SIZE, Message, Oversize
from ..wire.frames import BAD_DATA, GOING_AWAY, NO_CODE, TRY_LATER, Close
from ..wire.http_messages import HttpError, Request, Response, problem
from ..wire.http_parser import add_header
from ..wire.upgrade import SUBPROTOCOLS
from .connection import Connection
from .http_call import STOPS, HttpServing
from .http_router import ConnectionContext, HttpRouter, RequestBody
from .message_connection import ConnectionOptions, WebSocketConnection, trace_all, trace_sent

log = logging.getLogger("rpcstream.server")

_LEFT = "the client closed the connection"


#: As in the specification of ASGI 3.
Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class EventConnection(Connection):
    """A connection whose bytes an ASGI server reads and writes.

    `_send_all` runs in the task of the ASGI application, by `_run`; the rest is called from callbacks and other tasks.
    """

    def __init__(self, limits: Limits, ledger: ServerLedger, address: str | None = None) -> None:
        super().__init__(limits, ledger, address)
        self._events: deque[tuple[Event, int]] = deque()
        #: Bytes of the events that wait, the one that is being sent among them.
        self._size = 0
        self._is_open = False
        self._interruptible: asyncio.Timeout | None = None
        #: Set when there is something to send, or the connection is closed; and while it is read.
        self._news, self._reads = asyncio.Event(), asyncio.Event()
        self._reads.set()

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def unread_size(self) -> int:
        return self._size

    def _put(self, event: Event, size: int = 0) -> None:
        """Have an event with this many bytes sent behind those that wait."""
        if self._closing:
            return
        self._timeouts.heard = True
        self._events.append((event, size))
        self._size += size
        if self._size > self._limits.write_buffer and not self.is_full:
            self.set_full(True)
        if self.is_full:
            self._check_unread()
        self._news.set()

    def _close_behind(self) -> None:
        """Take no more events; those that wait are sent."""
        self._closing = True
        self._news.set()

    def abort(self, reason: str) -> None:
        """Send nothing more."""
        self.reason = reason
        self._closing = True
        self._events.clear()
        self._size = 0
        self._interrupt()

    async def _run(self, work: Awaitable[None]) -> None:
        """Await this in the task of the application, until `_interrupt` is called."""
        try:
            async with asyncio.timeout(None) as self._interruptible:
                await work
        except TimeoutError:
            pass
        finally:
            self._interruptible = None

    def _interrupt(self) -> None:
        """End what the task of the application awaits."""
        if self._interruptible is not None and self._interruptible.when() is None:
            self._interruptible.reschedule(self._loop.time())

    async def _send_all(self, send: Send) -> None:
        """Send what is put until the connection is closed. Raises what `send` raises, but for a client that is gone."""
        events = self._events
        while True:
            while events:
                event, size = events.popleft()
                try:
                    await send(event)
                except OSError:  # the client is gone (ASGI specification, "Send callable")
                    return
                del event
                self._size = max(self._size - size, 0)
                if self.is_full and self._size <= self._limits.write_buffer // 4:
                    self.set_full(False)
            if self._closing:
                return
            self._news.clear()
            await self._news.wait()

    def _read_or_not(self) -> None:
        if self.is_paused:
            self._reads.clear()
        else:
            self._reads.set()


class AsgiRequest(HttpServing, EventConnection):
    """One request.

    Args:
        request: its head.

    Attributes:
        is_accepted: it asks for a WebSocket, which may be opened.
    """

    def __init__(
        self, context: ConnectionContext, router: HttpRouter, scope: Scope, request: Request, address: str
    ) -> None:
        super().__init__(context, router, address)
        self.is_accepted = self._asks_for_websocket = False
        self._head.request = request
        self._scope = scope
        #: What is asked for is not begun yet; the head of the response was put.
        self._is_taking = self._is_begun = False

    async def serve(self, receive: Receive, send: Send) -> None:
        """Answer the request; to be awaited by the ASGI application."""
        watcher: asyncio.Task[None] | None = None
        self._is_open = True
        try:
            self._context.connections.opened(self)
            if not self._closing:
                self._is_taking = True
                await self._run(self._read(receive))
                self._is_taking = False
            if self._asks_for_websocket and not self._closing:
                if not self.is_draining:
                    self.is_accepted = True
                    return
                self.answer(STOPS)
            if not self._closing:
                watcher = self._loop.create_task(self._watch(receive))
            await self._run(self._send_all(send))
        finally:
            if watcher is not None:
                watcher.cancel()
            self._is_open, self._closing = False, True
            self._give_up()
            self.connection_lost(None)
            if not self.is_accepted:
                self._context.connections.closed(self)

    @property
    def is_partial(self) -> bool:
        """Whether the body is being read."""
        return self._body is not None and not self._closing

    @property
    def is_busy(self) -> bool:
        """Whether the request is being answered."""
        return self._body is None

    # -- the request ------------------------------------------------------------------------------------------------

    async def _read(self, receive: Receive) -> None:
        """Begin with the request, and read the body of a call."""
        needs_length = self._scope.get("http_version", "1.1") in ("1.0", "1.1")
        try:
            self._take(self._router.route(self._head.request, self._limits.max_message_size, needs_length=needs_length))
            while self._is_identifying and self._task is not None:
                await asyncio.wait({self._task})
            if self._body is not None:
                await self._read_body(receive, self._body)
        except HttpError as error:
            self.fail(error.response)

    async def _watch(self, receive: Receive) -> None:
        """Cancel the work on the request when its client leaves."""
        try:
            while (await receive())["type"] != "http.disconnect":
                await asyncio.sleep(0)
        except Exception:
            log.exception("the ASGI server cannot say when the client at %s leaves", self.address)
        else:
            self._left()

    def _take_body(self) -> None:
        self._begin_body()
        if self.is_draining:
            self._refuse_partial()

    async def _read_body(self, receive: Receive, body: RequestBody) -> None:
        """Read the body of a call, and carry it out."""
        while True:
            event = await receive()
            if self._closing:
                return
            if event["type"] == "http.disconnect":
                self._left()
                return
            body.append(bytes(event.get("body", b"")))
            if not event.get("more_body", False):
                self._end_body()
                return

    def _left(self) -> None:
        """The client has left: cancel the work on its request."""
        if not self._closing:
            self.reason = _LEFT
            self._give_up()
            super().abort(_LEFT)

    def _switch(self) -> None:
        if self._scope["type"] != "websocket":
            self.answer(problem(501, "the ASGI server in front of this one takes no WebSockets here"))
        else:
            self._asks_for_websocket = True

    # -- the response ------------------------------------------------------------------------------------------------

    def respond(self, response: Response) -> None:
        """As `HttpServing.respond`."""
        events = response_events(self._scope, response, self._head.more)
        self._is_begun = True
        for event in events:
            self._put(event, len(event.get("body", b"")))
        self._end()

    def fail(self, response: Response) -> None:
        """As `HttpServing.fail`."""
        self.respond(response)
        self._give_up()

    def start(self, response: Response, parts: Sequence[bytes]) -> None:
        """As `HttpServing.start`."""
        self._is_begun = True
        headers = response.pairs(None, self._head.more)
        self._put({"type": "http.response.start", "status": response.status, "headers": headers})
        self.write(parts)

    def write(self, parts: Sequence[bytes]) -> None:
        """As `HttpServing.write`."""
        if parts:
            body = b"".join(parts)
            self._put({"type": "http.response.body", "body": body, "more_body": True}, len(body))

    def finish(self, *, is_reusable: bool) -> None:
        """As `HttpServing.finish`."""
        super().finish(is_reusable=is_reusable)
        self._put({"type": "http.response.body", "body": b"", "more_body": False})
        self._end()

    def _end(self) -> None:
        """The response is complete."""
        if not self._closing:
            self._close_behind()
            if self._is_taking:
                self._interrupt()

    def refuse(self, error: RpcError) -> None:
        """As `Connection.refuse`: a WebSocket is closed with a code, since browsers do not show the status."""
        if self._scope["type"] != "websocket":
            super().refuse(error)
            return
        self._put({"type": "websocket.accept"})
        self._put({"type": "websocket.close", "code": TRY_LATER, "reason": error.message})
        self._end()

    def abort(self, reason: str) -> None:
        """Close at once: a response that was begun is cut off, in place of another one the reason is given."""
        self.reason = reason
        is_called = self._call is not None
        self._give_up()
        if self._is_begun:
            super().abort(reason)
        elif is_called:
            # As from a proxy that waits no longer: whether the call was carried out is not known.
            self.respond(problem(504, reason))
        else:
            self.respond(problem(503, reason, [("Retry-After", "1")]))


def response_events(scope: Scope, response: Response, more: Iterable[tuple[str, str]] = ()) -> list[Event]:
    """The events of a whole response, or of the refusal of a WebSocket, which not every ASGI server can give a text.

    Args:
        more: headers besides those of the response.

    Raises:
        ValueError: a header is malformed; see `Response.pairs`.
    """
    kind = "http.response"
    if scope["type"] == "websocket":
        kind = f"websocket.{kind}"
        if kind not in (scope.get("extensions") or {}):
            return [{"type": "websocket.close", "code": 1008, "reason": response.text.strip()[:100]}]
    headers = response.pairs(len(response.body), more)
    body = b"" if scope.get("method") == "HEAD" else b"".join(parts_of(response.body))
    return [
        {"type": f"{kind}.start", "status": response.status, "headers": headers},
        {"type": f"{kind}.body", "body": body, "more_body": False},
    ]


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
