"""HTTP/1.1 on one connection: requests one after the other, each answered before the next is looked at.

Owns the order of the requests and responses on the connection, authentication, and when the connection ends. Where a
request goes is decided by the router (`http_router`); a call is carried out by its exchange (`http_exchange`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, cast

import orjson

from ..auth.authenticator import MAX_WRONG, NOT_SYNC, Authenticator
from ..errors import CallCancelled, ParseError, RpcError
from ..limits import Limits
from ..peer.incoming import FrameAdmission
from ..peer.memory import MessageMemory, Reception
from ..peer.session import Session
from ..peer.slices import TURN
from ..wire.binary_frame import FrameError
from ..wire.envelope import error_reply
from ..wire.frame_messages import FrameBody
from ..wire.http_messages import JSON, HttpError, Request, Response, problem, readable_text
from ..wire.http_parser import HEAD_MAX, RequestReader
from ..wire.messages import Message
from ..wire.upgrade import accept_upgrade
from .connection import Connection
from .http_exchange import AnsweredNotifications, CallHead, EndpointHead, HttpExchange
from .http_output import HttpOutput, response_parts
from .http_router import HttpRouter, PageHead, not_authenticated, request_credentials, response_of
from .message_connection import STOPPING, Trace
from .paced_transport import undelivered

log = logging.getLogger("rpcstream.server")

#: Number and size (bytes) of the heads that are kept: the head of the next request is most often one of them.
_KEPT_HEADS, _KEPT_HEAD_MAX = 8, 1024

#: What is answered to a request that has come in part when the server stops.
NOT_READ = orjson.dumps(error_reply(None, CallCancelled(data={"executed": False, "reason": STOPPING})))

#: Seconds that the rest of such a request has to come.
REST = 0.2

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection(HttpOutput):
    """An asyncio protocol; a `Connection` of the listener.

    Args:
        new_session: makes the session of one call.
        router: decides what answers each request.
        on_close: called with this object after the connection is lost.
        on_known: called with this object and its successor, when it goes on as a WebSocket.
        on_refused: called with this object and the reason, when that is refused.
        authenticator: finds out who sends the requests; None: that is not asked.
        memory: counts what the messages of all connections of the server take.
        trace: sees every message and reply.

    Attributes:
        is_draining: what is being answered is the last.
    """

    def __init__(
        self,
        new_session: Callable[[], Session],
        *,
        limits: Limits,
        router: HttpRouter | None = None,
        on_close: Callable[[Connection], None] | None = None,
        on_known: Callable[[Connection, Connection], None] | None = None,
        on_refused: Callable[[Connection, str], None] | None = None,
        authenticator: Authenticator | None = None,
        trace: Trace | None = None,
        memory: MessageMemory | None = None,
    ) -> None:
        super().__init__(limits)
        self.is_draining = False
        self._trace = trace
        self._new_session = new_session
        self._on_close = on_close
        self._on_known = on_known
        self._on_refused = on_refused
        self._router = router or HttpRouter()
        self._authenticator = authenticator
        self._reader = RequestReader(limits.max_message_size)
        memory = MessageMemory(limits.max_held_total, limits.max_unread_total) if memory is None else memory
        self._reception = Reception(memory)
        self._count_in(memory)
        #: What is being answered: a call, or a request whose identity or page is awaited.
        self._exchange: HttpExchange | None = None
        self._task: asyncio.Task[Any] | None = None
        #: An exchange whose call is over, for the next call.
        self._spare: HttpExchange | None = None
        #: The call whose body is being read; the binary frame that it is, and what decides about that.
        self._call_head: CallHead | None = None
        self._frame: FrameBody | None = None
        self._admission: FrameAdmission | None = None
        #: What the last heads asked for.
        self._kept_heads: dict[bytes, CallHead | PageHead] = {}
        self._answered_notifications = AnsweredNotifications(limits)
        self._advancing = False
        self._turn: asyncio.Handle | None = None
        #: Runs until a request is authenticated (`auth_timeout`).
        self._auth_timer: asyncio.TimerHandle | None = None
        self._is_identified = self._is_identifying = False
        #: Requests that were answered with 401.
        self._rejections = 0

    # -- callbacks of asyncio ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._authenticator is not None and self._limits.auth_timeout is not None:
            self._auth_timer = self._loop.call_at(self.opened + self._limits.auth_timeout, self._too_late)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._timeouts.heard = True
        self._reader.feed(data)
        self._advance()

    def eof_received(self) -> bool:
        """The client has hung up: cancel what it waits for."""
        self._give_up()
        self._closing = True
        if self._paced is not None and self._paced.at_eof():
            self._paced.close()
            return True
        return False

    def set_full(self, is_full: bool) -> None:
        super().set_full(is_full)
        if self._exchange is not None:
            self._exchange.session.blocked(is_full)
        if not is_full:
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._closing = True
        for timer in (self._turn, self._lingering, self._auth_timer):
            if timer is not None:
                timer.cancel()
        self._give_up()
        if self._on_close is not None:
            self._on_close(self)

    def _give_up(self) -> None:
        self._reader.clear()
        self._reception.over()
        self._frame = None
        if self._admission is not None:
            self._admission.give_up()
        self._kept_heads.clear()
        self._answered_notifications.clear()
        exchange, self._exchange, self._spare = self._exchange or self._spare, None, None
        if exchange is not None:
            exchange.reason = self.reason or "the client closed the connection"
            exchange.lost()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    # -- one request after the other --------------------------------------------------------------------------

    @property
    def _is_busy(self) -> bool:
        """The next bytes have to wait."""
        return self._exchange is not None or self._task is not None or self._is_full or self._turn is not None

    def _advance(self) -> None:
        """Handle the requests received, until one has to be awaited."""
        if self._advancing:
            return
        self._advancing = True
        reader = self._reader
        end = 0.0
        try:
            while reader and not self._closing and not self._is_busy:
                if not (self._take_body() if reader.in_body else self._take_head()) or not reader:
                    break
                # Other connections want their turn, too.
                now = perf_counter()
                end = end or now + TURN
                if now > end:
                    self._turn = self._loop.call_soon(self._next_turn)
        except HttpError as error:
            self.fail(error.response)
        finally:
            self._advancing = False
        if self._paused or reader:
            self._read_more(not (len(reader) > HEAD_MAX and self._is_busy))

    def _next_turn(self) -> None:
        self._turn = None
        self._advance()

    def _take_head(self) -> bool:
        """Begin the next request; returns False while its head is not complete."""
        head = self._reader.head()
        if head is None:
            return False
        asked = self._kept_heads.get(head)
        if asked is None:
            asked = self._route(head)
        if type(asked) is CallHead:
            if self._authenticator is None:
                self._begin_body(asked)
            else:
                self._identify(asked, partial(self._begin_body, asked))
        elif isinstance(asked, PageHead):
            self._take_page(asked)
        else:
            self._take_message(asked)
        return True

    def _take_page(self, page: PageHead) -> None:
        """Answer a request that is not a call."""
        if page.response is not None:
            if "upgrade" in page.request.headers and page.response.status >= 400:
                self._refuse_upgrade(page, page.response)
            else:
                self._answer(page, page.response)
        elif page.is_upgrade:
            self._begin_upgrade(page)
        elif self._authenticator is None or self._router.is_public(page.request):
            self._find(page)
        else:
            self._identify(page, partial(self._find, page))

    def _take_message(self, head: CallHead) -> None:
        """Begin a request for an endpoint: it has an exchange of its own kind."""
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.lost()
        if self._authenticator is None:
            self._begin_body(head)
        else:
            self._identify(head, partial(self._begin_body, head))

    def _route(self, head: bytes) -> CallHead | PageHead:
        """What a head asks for that is not among those kept. Raises as `HttpRouter.route`."""
        asked = self._router.route(head, self._limits.max_message_size)
        is_final = isinstance(asked, PageHead) and (asked.is_upgrade or asked.response is not None)
        if len(head) <= _KEPT_HEAD_MAX and not is_final:
            if len(self._kept_heads) >= _KEPT_HEADS:
                self._kept_heads.clear()
            self._kept_heads[head] = asked
        return asked

    def _take_body(self) -> bool:
        """Take what was received of a body; returns False while it is not complete."""
        before = perf_counter()
        if self._frame is not None:
            return self._take_frame(self._frame)
        body, head = self._reader.body(), self._call_head
        is_whole = body is not None and head is not None
        if body is not None and head is not None:
            self._reception.over()
            self._call_head = None
            self._call(head, body)
        elif not self._reception.grow(self._reader.body_size):
            error = "the server has no memory for so many long messages at once (max_held_total)"
            raise HttpError(problem(503, error, [("Retry-After", "1")]))
        if perf_counter() - before > TURN / 2:
            # Tiny chunks, or a slow call. A loop may read one connection many times in a row before others.
            self._turn = self._loop.call_soon(self._next_turn)
        return is_whole

    # -- binary frames ----------------------------------------------------------------------------------------

    def _begin_frame(self, head: CallHead) -> None:
        """Expect a body that is a binary frame; the session of the call decides about it when its JSON is there."""
        exchange = self._spare = self._spare or self._make_exchange(head)
        exchange.session.set_identity(head.request.identity)
        self._admission = FrameAdmission(exchange.session, self._go_on)
        self._frame = FrameBody(self._admission, self._limits.max_message_size, self._reception)

    def _take_frame(self, frame: FrameBody) -> bool:
        """Take what was received of a body that is a binary frame; returns False while it is not complete."""
        try:
            is_whole = self._reader.body() is not None
            if frame.is_waiting:
                # The next bytes have to wait, too. There is nothing else on this connection that they could be.
                self._exchange = self._spare
                return False
            if is_whole:
                self._call_frame(frame)
        except FrameError as error:
            raise HttpError(malformed(error)) from None
        return is_whole

    def _call_frame(self, frame: FrameBody) -> None:
        """Carry out the call in a binary frame whose body is complete. Raises FrameError if the frame is not."""
        head, message = self._call_head, frame.end()
        assert head is not None
        self._call_head = self._frame = self._admission = None
        self._call(head, message)

    def _go_on(self) -> None:
        """There may be memory for a frame that waits."""
        frame = self._frame
        if frame is None or not frame.is_waiting or self._closing:
            return
        try:
            if not frame.go_on():
                return
            self._exchange = None
            if not self._reader.in_body:
                self._call_frame(frame)
        except FrameError as error:
            self._exchange = None
            self.fail(malformed(error))
        self._advance()

    # -- authentication ---------------------------------------------------------------------------------------

    def _identify(self, asked: CallHead | PageHead, then: Callable[[], None]) -> None:
        """Find out who sends a request, then go on with this; without an identity the response is 401."""
        authenticator = self._authenticator
        assert authenticator is not None
        credentials = request_credentials(asked.request, self.credentials)
        found = authenticator.identify_now(credentials)
        if found is NOT_SYNC:
            self._is_identifying = True
            self._wait_for(authenticator.identify(credentials), partial(self._identified, asked, then))
        else:
            self._identified(asked, then, found)

    def _identified(self, asked: CallHead | PageHead, then: Callable[[], None], identity: Any) -> None:
        self._is_identifying = False
        if identity is None:
            self._answer(asked, self._not_authenticated(has_shown="authorization" in asked.request.headers))
        elif isinstance(identity, Response):  # the authentication failed
            self._answer(asked, identity)
        else:
            if not self._is_identified:
                self._set_identified()
            asked.request.identity = identity
            then()

    @property
    def is_known(self) -> bool:
        """As `Connection.is_known`."""
        return self._is_identified

    def _set_identified(self) -> None:
        self._is_identified = True
        if self._auth_timer is not None:
            self._auth_timer.cancel()
            self._auth_timer = None

    def _not_authenticated(self, *, has_shown: bool) -> Response:
        """The response to a request without accepted credentials; the connection ends after `MAX_WRONG` of them."""
        if self._authenticator is not None:
            self._authenticator.refused(self.address, has_shown=has_shown)
        self._rejections += 1
        if self._rejections >= MAX_WRONG:
            self._close_after(f"{MAX_WRONG} requests without an accepted token")
        return not_authenticated(has_shown=has_shown)

    def _close_after(self, reason: str) -> None:
        """Close, for this reason, after the present response."""
        self.over_limit, self.reason = True, reason
        self.is_draining = True

    def _too_late(self) -> None:
        """No request was authenticated in `auth_timeout`: answer what is being worked on, and close."""
        self._auth_timer = None
        if self._transport is None or self._closing:
            return
        reason = f"not authenticated after {self._limits.auth_timeout:g} s (auth_timeout)"
        self._close_after(reason)
        if self._is_identifying:
            self.fail(problem(401, reason, [("WWW-Authenticate", "Bearer")]))
        elif self._task is None:
            if self._reader.is_partial:
                self.fail(problem(408, reason))
            else:
                self.end(lingers=False)

    def _wait_for(self, work: Any, then: Callable[[Any], None]) -> None:
        """Await this, then call `then` with its result; with an error response if it fails."""
        task = self._task = self._loop.create_task(response_of(work))

        def done(task: asyncio.Task[Any]) -> None:
            if self._task is task:  # the client is still there
                self._task = None
                then(problem(500, "internal error") if task.cancelled() else task.result())
                self._advance()

        task.add_done_callback(done)

    # -- calls ------------------------------------------------------------------------------------------------

    def _begin_body(self, head: CallHead) -> None:
        """Read the body of a call."""
        length, reader = head.length, self._reader
        if head.is_frame and length != 0:
            self._begin_frame(head)
        else:
            body = None if length is None else reader.whole(length)
            if body is not None:
                self._call(head, body)
                return
        if head.expects_continue and not reader:
            self.write((_CONTINUE,))
        self._call_head = head
        reader.begin_body(length, self._frame)

    def _call(self, head: CallHead, body: Message) -> None:
        """Carry out a call, by the exchange of the one before where that is possible."""
        self._timeouts.completed = True
        exchange, self._spare = self._spare, None
        if exchange is None:
            exchange = self._make_exchange(head)
        self._exchange = exchange
        exchange.begin(self, head, body)

    def _make_exchange(self, head: CallHead) -> HttpExchange:
        if isinstance(head, EndpointHead):
            make, identity = head.endpoint.make_exchange, head.request.identity
            return make(identity, self.address, self._answered_notifications, self._trace, is_asgi=False)
        session = self._new_session()
        session.set_identity(head.request.identity)
        return HttpExchange(session, self.address, self._answered_notifications, self._trace)

    def finish(self, keeps: bool, *, is_reusable: bool) -> None:
        """As `ResponseSink.finish`."""
        self._exchange, self._spare = None, self._exchange if is_reusable else None
        self._answered(keeps, lingers=self._reader.is_partial)

    # -- pages and WebSockets ---------------------------------------------------------------------------------

    def _find(self, page: PageHead) -> None:
        """Answer with a page; the request's body is not read."""
        found = self._router.page(page.request)
        if isinstance(found, Response):
            self._answer(page, found)
        else:
            self._wait_for(found, partial(self._answer, page))

    def _begin_upgrade(self, asked: PageHead) -> None:
        if asked.length is None or asked.length > 0:
            self.fail(problem(400, "a request for a WebSocket has no body"))
        elif self._authenticator is not None and "authorization" in asked.request.headers:
            self._identify(asked, partial(self._upgrade, asked))
        else:  # browsers cannot give a token here: as on the line stream, it comes with the first call
            self._upgrade(asked)

    def _refuse_upgrade(self, asked: PageHead, response: Response) -> None:
        """Refuse a handshake of WebSocket."""
        if self._on_refused is not None:
            text = readable_text(bytes(response.body))
            self._on_refused(self, f"its WebSocket handshake got {response.status}: {text}")
        self._answer(asked, response)

    def _upgrade(self, asked: PageHead) -> None:
        """Go on as a WebSocket."""
        transport, request = self._transport, asked.request
        response = accept_upgrade(request)
        if response.status == 101 and self.is_draining:
            response = problem(503, "the server is about to stop")
        make = self._router.websocket
        if make is None:
            response = problem(404, "there is no WebSocket here")
        if response.status != 101 or make is None or transport is None:
            self._refuse_upgrade(asked, response)
            return
        successor = make(request)
        rest = self._reader.rest()
        transport.write(response.head(0, keep_alive=True))
        self._read_more(True)
        self._give_up()
        self._transport, self._closing = None, True
        if self._auth_timer is not None:
            self._auth_timer.cancel()
        successor.opened = self.opened
        transport.set_protocol(cast(asyncio.BaseProtocol, successor))
        if self._on_known is not None:
            self._on_known(self, successor)
        successor.connection_made(transport)
        if rest:
            successor.data_received(rest)

    # -- responses --------------------------------------------------------------------------------------------

    def _answer(self, asked: CallHead | PageHead, response: Response) -> None:
        """Answer a request whose body is not read."""
        self._timeouts.completed = True
        request, length = asked.request, asked.length
        keeps = request.keep_alive and not self.is_draining
        is_unread = length is None or (length > 0 and self._reader.whole(length) is None)
        keeps = keeps and not is_unread  # else the next request could not be found
        try:
            parts = response_parts(response, request, keeps, asked.more)
        except ValueError:
            log.exception("the response to %s %s cannot be sent", request.method, request.path)
            parts = response_parts(problem(500, "internal error"), request, keeps)
        self.write(parts)
        self._answered(keeps, lingers=is_unread or self._reader.is_partial)

    def fail(self, response: Response) -> None:
        """Write a response after which nothing more can be read, and close."""
        more = self._call_head.more if self._call_head is not None else []
        self.write(response_parts(response, Request("", ""), keeps=False, more=more))
        self.end(lingers=True)

    def _answered(self, keeps: bool, lingers: bool) -> None:
        if not keeps or self.is_draining:
            self.end(lingers)
        elif not self._advancing:
            self._advance()

    # -- the end ----------------------------------------------------------------------------------------------

    def refuse(self, error: RpcError) -> None:
        """Say why this connection is not served, and close it."""
        self.fail(problem(503, error.message, [("Retry-After", "1")]))

    def drain(self) -> None:
        """Answer what runs, then close.

        The rest of a request that has come in part is most often on its way: many clients send head and body by
        themselves. If it does not come now the client is told that the request is not carried out; and so it is where a
        request may be on its way on a connection that was used before (RFC 9110, 15.5.9: a client may repeat a request
        that is answered with 408).
        """
        self.is_draining = True
        if self._exchange is None and self._task is None:
            if self._reader.is_partial:
                self._loop.call_later(REST, self._refuse_partial)
            else:
                if self._kept_heads:
                    self.write(response_parts(problem(408, "the server is stopping"), Request("", ""), keeps=False))
                self.end(lingers=False)

    def _refuse_partial(self) -> None:
        """Say that a request is not carried out of which not all has come."""
        idle = self._exchange is None and self._task is None
        if idle and self._transport is not None and not self._closing and self._reader.is_partial:
            self.fail(Response(503, NOT_READ, JSON, [("Retry-After", "1")]))

    def probe(self) -> None:
        """As `Connection.probe`. Not needed: an HTTP client that closes one half of its connection is gone."""

    def check(self, now: float) -> str | None:
        """As `Connection.check`; a request that does not end is answered with 408."""
        transport = self._transport
        if transport is None:
            return None
        unread = undelivered(transport) if self._closing or self._is_full else 0
        busy = self._exchange is not None or self._task is not None or self._turn is not None
        is_partial = not (busy or self._closing) and self._reader.is_partial
        reason = self._timeouts.overdue(now, partial=is_partial, unread=unread, busy=busy)
        if reason is not None:
            if is_partial and not unread:
                self.over_limit, self.reason = True, reason
                self.fail(problem(408, reason))
            else:
                self._close_for_limit(reason)
        return reason


def malformed(error: FrameError) -> Response:
    """The response to a body that is to be a binary frame, and is none."""
    return Response(200, orjson.dumps(error_reply(None, ParseError(data={"reason": str(error)}))), JSON)
