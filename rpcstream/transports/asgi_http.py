"""One HTTP request that an ASGI server has parsed: a call, or a page, and its response as events.

Owns the body as it comes, authentication, and the response. Where a request goes is decided by the router
(`http_router`), a call is carried out by its exchange (`http_exchange`), as on our own port. Every request is a
connection of its own here: ASGI does not tell which requests come on the same one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from ..auth.authenticator import NOT_SYNC, Authenticator
from ..errors import RpcError
from ..limits import Limits
from ..peer.credentials import Credentials
from ..peer.incoming import FrameAdmission
from ..peer.memory import MessageMemory, Reception
from ..peer.session import Session
from ..wire.binary_frame import HEADER_MAX, FrameError, parts_of_frame
from ..wire.buffers import AttachedMessage, Encoded, ReceiveBuffer, parts_of
from ..wire.frame_messages import FrameBody
from ..wire.http_messages import FRAME, JSON, HttpError, Request, Response, problem, too_long
from ..wire.messages import Message
from .asgi_transport import EventTransport, FrameWait, Receive, Send
from .connection import JOIN_MAX, SocketConnection
from .http import NOT_READ, malformed
from .http_exchange import WRAPPING, AnsweredNotifications, CallHead, EndpointHead, HttpExchange
from .http_output import ResponseSink
from .http_router import HttpRouter, PageHead, not_authenticated, request_credentials, response_of
from .message_connection import Trace

log = logging.getLogger("rpcstream.server")


class RequestContext(Protocol):
    """What the requests of one server have in common: `transports.asgi.AsgiEndpoint`.

    Attributes:
        new_session: makes the session of one call.
        answered: the notifications that were answered and still run.
    """

    limits: Limits
    router: HttpRouter
    authenticator: Authenticator | None
    memory: MessageMemory
    trace: Trace | None
    new_session: Callable[[], Session]
    answered: AnsweredNotifications


class AsgiRequest(SocketConnection):
    """One request: a `Connection` of the listener, and the `ResponseSink` of its exchange.

    Args:
        context: see there.
        request: its head.
        receive, send: of the ASGI application.
        needs_length: see `HttpRouter.route_request`.

    Attributes:
        is_draining: a call whose body is not complete is not carried out.
    """

    def __init__(
        self,
        context: RequestContext,
        request: Request,
        receive: Receive,
        send: Send,
        address: str,
        *,
        needs_length: bool = True,
    ) -> None:
        super().__init__(context.limits, address)
        self.is_draining = False
        self._count_in(context.memory)
        self._context = context
        self._request = request
        self._receive = receive
        self._needs_length = needs_length
        self._events = EventTransport(send, self, address)
        self._reception = Reception(context.memory)
        self._exchange: HttpExchange | None = None
        self._admission: FrameAdmission | None = None
        #: Waits for the client to leave.
        self._watcher: asyncio.Task[None] | None = None
        #: What is asked for is not begun yet; the body is being read; a call was begun; the response's head was put.
        self._is_taking = self._is_reading = self._is_called = self._is_begun = False
        #: Headers of the response to the page of another site.
        self._more: list[tuple[str, str]] = []

    async def serve(self, on_open: Callable[[Any], object], on_close: Callable[[Any], object]) -> None:
        """Answer the request; to be awaited by the ASGI application. Both functions are called with this object."""
        events = self._events
        self.connection_made(events)
        try:
            on_open(self)
            if not events.is_closing():
                self._is_taking = True
                await events.interruptible(self._answer())
                self._is_taking = False
            await events.interruptible(events.run())
        finally:
            if self._watcher is not None:
                self._watcher.cancel()
            self._give_up()
            self.connection_lost(None)
            on_close(self)

    @property
    def credentials(self) -> Credentials:
        """What the connection tells of the client: its address."""
        return Credentials(address=self.address)

    @property
    def is_known(self) -> bool:
        """As `Connection.is_known`."""
        return self._request.identity is not None

    # -- the request ------------------------------------------------------------------------------------------------

    async def _answer(self) -> None:
        """Find out what is asked for, and begin with it; the response may come later."""
        request, context = self._request, self._context
        try:
            asked = context.router.route_request(
                request, self._limits.max_message_size, needs_length=self._needs_length
            )
        except HttpError as error:
            self.respond(error.response)
            return
        self._more = asked.more
        if isinstance(asked, PageHead):
            await self._take_page(asked)
        elif await self._identify():
            await self._take_call(asked)

    async def _take_page(self, page: PageHead) -> None:
        router = self._context.router
        if page.response is not None:
            self.respond(page.response)
        elif page.is_upgrade:
            self.respond(problem(501, "the ASGI server in front of this one takes no WebSockets here"))
        elif router.is_public(page.request) or await self._identify():
            found = router.page(page.request)
            if not isinstance(found, Response):
                self._watcher = self._loop.create_task(self._watch())
                found = await response_of(found)
            self.respond(found)

    async def _identify(self) -> bool:
        """Find out who sends the request; False, and it was answered, if it is not accepted."""
        authenticator, request = self._context.authenticator, self._request
        if authenticator is None:
            return True
        credentials = request_credentials(request, self.credentials)
        identity = authenticator.identify_now(credentials)
        if identity is NOT_SYNC:
            identity = await response_of(authenticator.identify(credentials))
        if isinstance(identity, Response):  # the authentication failed
            self.respond(identity)
            return False
        if identity is None:
            has_shown = "authorization" in request.headers
            authenticator.refused(self.address, has_shown=has_shown)
            self.respond(not_authenticated(has_shown=has_shown))
            return False
        request.identity = identity
        return True

    # -- calls ------------------------------------------------------------------------------------------------------

    async def _take_call(self, head: CallHead) -> None:
        """Read the body of a call, and carry it out."""
        self._is_reading = True
        if self.is_draining:
            self.drain()
            return
        try:
            if head.is_frame and head.length != 0:
                message = await self._read_frame(head)
            else:
                message = await self._read_body()
        except HttpError as error:
            self.respond(error.response)
            return
        finally:
            self._is_reading = False
            self._reception.over()
        if message is None or self._events.is_closing():
            return
        self._is_called = True
        exchange = self._exchange = self._exchange or self._make_exchange(head)
        exchange.begin(self, head, message)
        if not self._events.is_closing():
            self._watcher = self._loop.create_task(self._watch())

    def _make_exchange(self, head: CallHead) -> HttpExchange:
        context, identity = self._context, self._request.identity
        if isinstance(head, EndpointHead):
            return head.endpoint.make_exchange(identity, self.address, context.answered, context.trace, is_asgi=True)
        session = context.new_session()
        session.set_identity(identity)
        return AsgiExchange(session, self.address, context.answered, context.trace)

    async def _read_body(self) -> bytes | None:
        """The body; None if the client has gone.

        Raises:
            HttpError: it is too long, or there is no memory for it.
        """
        max_size = self._limits.max_message_size
        buffer: ReceiveBuffer | None = None
        while True:
            event = await self._receive()
            if event["type"] == "http.disconnect":
                self.abort("the client closed the connection")
                return None
            body, is_last = event.get("body", b""), not event.get("more_body", False)
            if buffer is None and is_last:
                if len(body) > max_size:
                    raise HttpError(too_long(max_size))
                return bytes(body)
            if buffer is None:
                buffer = ReceiveBuffer()
            buffer.append(body)
            self._check_body(buffer.size, max_size)
            if is_last:
                return buffer.take()

    def _check_body(self, size: int, max_size: int) -> None:
        """Raise HttpError if a body of which so much has come is too long, or there is no memory for it."""
        if size > max_size:
            raise HttpError(too_long(self._limits.max_message_size))
        if not self._reception.grow(size):
            error = "the server has no memory for so many long messages at once (max_held_total)"
            raise HttpError(problem(503, error, [("Retry-After", "1")]))

    async def _read_frame(self, head: CallHead) -> Message | None:
        """The binary frame in the body; None if the client has gone.

        Raises:
            HttpError: it is none, or too long.
        """
        exchange = self._exchange = self._make_exchange(head)
        wait = FrameWait()
        self._admission = FrameAdmission(exchange.session, wait.go_on)
        max_size = self._limits.max_message_size
        frame = FrameBody(self._admission, max_size, self._reception)
        size = 0
        try:
            while True:
                event = await self._receive()
                if event["type"] == "http.disconnect":
                    self.abort("the client closed the connection")
                    return None
                body = bytes(event.get("body", b""))
                size += len(body)
                if size > max_size + HEADER_MAX:
                    raise HttpError(too_long(max_size))
                frame.append(body)
                if frame.is_waiting:
                    self._is_reading = False  # the client need not hurry
                    await wait.memory_for(frame)
                    self._is_reading = True
                if not event.get("more_body", False):
                    return frame.end()
        except FrameError as error:
            raise HttpError(malformed(error)) from None

    async def _watch(self) -> None:
        """Cancel the work on the request when its client leaves."""
        try:
            while (await self._receive())["type"] != "http.disconnect":
                await asyncio.sleep(0)
        except Exception:
            log.exception("the ASGI server cannot say when the client at %s leaves", self.address)
            return
        if not self._events.is_closing():
            self.reason = "the client closed the connection"
            self._give_up()
            self._events.abort()

    # -- the response -----------------------------------------------------------------------------------------------

    def respond(self, response: Response) -> None:
        """Answer with this, and nothing more."""
        body = response.body
        self.begin(response, len(body))
        if self._request.method == "HEAD":
            self.end()
        elif type(body) is bytes:
            self.end(body)
        else:
            self.write(parts_of(body))
            self.end()

    def begin(self, response: Response, length: int | None) -> None:
        """Put the head of the response.

        Args:
            response: its status and headers count.
            length: bytes of the body; None: that is not known yet.
        """
        if self._is_begun or self._events.is_closing():
            return
        self._is_begun = True
        status = response.status
        try:
            headers = response.pairs(length, self._more)
        except ValueError:
            log.exception("the response to %s %s cannot be sent", self._request.method, self._request.path)
            status, headers = 500, []
            self._put({"type": "http.response.start", "status": status, "headers": headers}, 0)
            self.end()
            return
        self._put({"type": "http.response.start", "status": status, "headers": headers}, 0)

    def write(self, parts: Sequence[Any]) -> None:
        """Put a part of the body: long pieces as they are, short ones joined. What is no `bytes` is copied."""
        short: list[Any] = []
        for part in parts:
            if len(part) <= JOIN_MAX:
                short.append(part)
                continue
            self._put_body(short)
            short.clear()
            self._put_body((part,))
        self._put_body(short)

    def _put_body(self, pieces: Sequence[Any]) -> None:
        body = pieces[0] if len(pieces) == 1 and type(pieces[0]) is bytes else b"".join(pieces)
        if body:
            self._put({"type": "http.response.body", "body": body, "more_body": True}, len(body))

    def _put(self, event: dict[str, Any], size: int) -> None:
        self._timeouts.heard = True
        self._events.put(event, size)
        if self._is_full:
            self._check_unread(self._events)

    def end(self, body: bytes = b"") -> None:
        """The response is complete, with this as the last part of its body."""
        events = self._events
        if not events.is_closing():
            self._put({"type": "http.response.body", "body": body, "more_body": False}, len(body))
            events.close()
            if self._is_taking:
                events.interrupt()

    def set_full(self, is_full: bool) -> None:
        super().set_full(is_full)
        if self._exchange is not None:
            self._exchange.session.blocked(is_full)

    # -- for the exchange (ResponseSink) ----------------------------------------------------------------------------

    def write_frame(self, parts: list[Any], message: AttachedMessage) -> None:
        """As `ResponseSink.write_frame`; `parts` are those of the body."""
        self.begin(Response(200, type=FRAME), sum(map(len, parts)))
        self.write(parts)

    def finish(self, keeps: bool, *, is_reusable: bool) -> None:
        """As `ResponseSink.finish`."""
        self.end()

    def fail(self, response: Response) -> None:
        """As `ResponseSink.fail`."""
        self.respond(response)
        self._give_up()

    def _give_up(self) -> None:
        """Cancel what is being worked on."""
        self._reception.over()
        if self._admission is not None:
            self._admission.give_up()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.reason = self.reason or "the client closed the connection"
            exchange.lost()

    # -- for the listener (Connection) ------------------------------------------------------------------------------

    def refuse(self, error: RpcError) -> None:
        """As `Connection.refuse`."""
        self.respond(problem(503, error.message, [("Retry-After", "1")]))

    def drain(self) -> None:
        """As `Connection.drain`: a call whose body is here is answered, another one is told that it was not read."""
        self.is_draining = True
        if self._is_reading:
            self.fail(Response(503, NOT_READ, JSON, [("Retry-After", "1")]))

    def probe(self) -> None:
        """As `Connection.probe`. Not needed: the ASGI server says when the client has gone."""

    def check(self, now: float) -> str | None:
        """As `Connection.check`; a request that does not end is answered with 408."""
        is_partial = self._is_reading and not self._events.is_closing()
        unread = self._events.get_write_buffer_size() if self._events.is_closing() or self._is_full else 0
        reason = self._timeouts.overdue(now, partial=is_partial, unread=unread, busy=True)
        if reason is not None:
            self.over_limit, self.reason = True, reason
            if is_partial and not unread:
                self.fail(problem(408, reason))
            else:
                self.abort(reason)
        return reason

    def abort(self, reason: str) -> None:
        """Close at once: a response that was begun is cut off, in place of another one the reason is given."""
        self.reason = reason
        self._give_up()
        if self._is_begun:
            self._events.abort()
        elif self._is_called:
            # As from a proxy that waits no longer: whether the call was carried out is not known.
            self.respond(problem(504, reason))
        else:
            self.respond(problem(503, reason, [("Retry-After", "1")]))


class AsgiExchange(HttpExchange):
    """One call and its response, written as events."""

    __slots__ = ()

    def _write_reply(self, sink: ResponseSink, keeps: bool) -> None:
        reply = self._replies[0] if self._replies else b""
        status = 200 if reply else self._head.notification_status
        self._write_response(sink, Response(status, reply, JSON if reply else None), keeps)

    def _write_response(self, sink: ResponseSink, response: Response, keeps: bool) -> None:
        assert isinstance(sink, AsgiRequest)
        sink.respond(response)

    def _put_frame(self, sink: ResponseSink, message: AttachedMessage) -> None:
        sink.write_frame([part if type(part) is bytes else bytes(part) for part in parts_of_frame(message)], message)

    def _write_stream(self, messages: Iterable[Encoded]) -> None:
        sink = self._sink
        assert isinstance(sink, AsgiRequest)
        if not self._begun:
            self._begun = True
            sink.begin(Response(200, type=self._response_type, headers=self.STREAM_HEADERS), None)
        before, behind = WRAPPING[self._response_type]
        parts: list[bytes] = []
        for message in messages:
            parts += (before, *parts_of(message), behind)
        sink.write(parts)

    def _end_stream(self, sink: ResponseSink) -> None:
        pass  # `finish` says it
