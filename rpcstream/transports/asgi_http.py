"""What an ASGI server has accepted, as a connection: its events in both directions, and one HTTP request of these.

Each request is a connection of its own here: ASGI does not tell which requests come on the same one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any

from ..errors import RpcError
from ..limits import Limits
from ..peer.ledger import ServerLedger
from ..wire.buffers import parts_of
from ..wire.frames import TRY_LATER
from ..wire.http_messages import HttpError, Request, Response, problem
from .connection import Connection
from .http_call import STOPS, HttpServing
from .http_router import ConnectionContext, HttpRouter, RequestBody

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
