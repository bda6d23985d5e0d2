"""HTTP/1.1 on one connection: requests one after the other, each answered before the next is looked at.

Owns the bytes of the connection in both directions, the order of the answers, and when the connection ends. What a
call means is its session's matter (`http_exchange`), what a page is the routes'; who may ask, the rules of access.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, cast

from ..auth.authenticator import MAX_WRONG, NOT_SYNC, Authenticator
from ..errors import RpcError
from ..limits import Limits
from ..peer.memory import MessageMemory, Reception
from ..peer.session import Session
from ..peer.slices import TURN
from ..wire.http_messages import HttpError, Request, Response, problem, tokens
from ..wire.http_parser import HEAD_MAX, RequestReader, body_length, parse_head
from ..wire.upgrade import accept_upgrade
from .connection import undelivered
from .http_exchange import GoingOn, HttpExchange, Plan, parts_of_response
from .http_hooks import Access, CallPaths, Hooks, Page, Routes, outcome, shown
from .http_output import HttpOutput
from .interfaces import Connection, ProtocolConnection
from .message_connection import Trace

log = logging.getLogger("rpcstream.server")

#: Heads that are kept, and how long each may be: the next request's is most often one of them.
_KNOWN, _KNOWN_MAX = 8, 1024

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection(HttpOutput):
    """An asyncio protocol; a `Connection` of the listener.

    Args:
        new_session: makes the session of one call.
        on_close: called with this object after the connection is lost.
        on_known: called with this object and what it has become, when it goes on as a WebSocket.
        access, routes, authenticator: see there; without, everybody may ask for calls, and there are no pages.
        memory: what the messages of all connections of the server take.
        websocket: makes the protocol that the connection goes on with; the request's identity is known.
        paths: where calls are taken.
        trace: sees what calls and replies say.
    """

    def __init__(
        self,
        new_session: Callable[[], Session],
        *,
        limits: Limits,
        on_close: Callable[[Connection], None] | None = None,
        on_known: Callable[[Connection, Connection], None] | None = None,
        access: Access | None = None,
        routes: Routes | None = None,
        authenticator: Authenticator | None = None,
        websocket: Callable[[Request], ProtocolConnection] | None = None,
        paths: CallPaths | None = None,
        trace: Trace | None = None,
        memory: MessageMemory | None = None,
    ) -> None:
        super().__init__(limits)
        #: What is being answered is the last.
        self.is_draining = False
        self.trace = trace
        self._new_session = new_session
        self._on_close = on_close
        self._on_known = on_known
        self._hooks = Hooks(access, routes, authenticator, websocket, paths)
        self._reader = RequestReader(limits.max_message_size)
        memory = MessageMemory(limits.max_held_total, limits.max_unread_total) if memory is None else memory
        self._reception = Reception(memory)
        self.unread = memory.unread
        #: What is being answered: a call, or something that must be waited for.
        self._exchange: HttpExchange | None = None
        self._task: asyncio.Task[Any] | None = None
        self._spare: HttpExchange | None = None
        #: The call whose body is being read.
        self._plan: Plan | None = None
        self._known: dict[bytes, Plan | Page] = {}
        self.going_on = GoingOn(limits)
        self._advancing = False
        self._turn: asyncio.Handle | None = None
        #: Until a request has shown who asks, where the server wants to know that.
        self._deadline: asyncio.TimerHandle | None = None
        self._is_identified = self._is_identifying = False
        #: Requests that were answered with 401.
        self._unknown = 0

    # -- what asyncio says ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._hooks.authenticator is not None and self._limits.auth_timeout is not None:
            self._deadline = self._loop.call_at(self.opened + self._limits.auth_timeout, self._too_late)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._watch.heard = True
        self._reader.feed(data)
        self._advance()

    def eof_received(self) -> bool:
        """The client has hung up: nobody reads what is still worked on."""
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
        for timer in (self._turn, self._lingering, self._deadline):
            if timer is not None:
                timer.cancel()
        self._give_up()
        if self._on_close is not None:
            self._on_close(self)

    def _give_up(self) -> None:
        """Nobody waits for what is worked on."""
        self._reader.clear()
        self._reception.over()
        self._known.clear()
        self.going_on.clear()
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
        """Take up what has come, until something must be waited for."""
        if self._advancing:
            return
        self._advancing = True
        reader = self._reader
        end = 0.0
        try:
            while reader and not self._closing and not self._is_busy:
                if not (self._take_body() if reader.in_body else self._take_head()) or not reader:
                    break
                # Others want their turn, too.
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
        """Begin with the next request; False if its head is not complete."""
        head = self._reader.head()
        if head is None:
            return False
        known = self._known.get(head) or self._read_head(head)
        if known is None:
            return True
        if isinstance(known, Plan):
            if self._hooks.authenticator is None:
                self._begin_body(known)
            else:
                self._identify(known, partial(self._begin_body, known))
        elif self._hooks.is_open(known.request):
            self._find(known)
        else:
            self._identify(known, partial(self._find, known))
        return True

    def _take_body(self) -> bool:
        before = perf_counter()
        body, plan = self._reader.body(), self._plan
        is_whole = body is not None and plan is not None
        if body is not None and plan is not None:
            self._reception.over()
            self._plan = None
            self._call(plan, body)
        elif not self._reception.grow(self._reader.body_size):
            error = "the server has no memory for so many long messages at once (max_held_total)"
            raise HttpError(problem(503, error, [("Retry-After", "1")]))
        if perf_counter() - before > TURN / 2:
            # Tiny chunks, or a call that took long. A loop may read a connection many times in a row before others.
            self._turn = self._loop.call_soon(self._next_turn)
        return is_whole

    def _read_head(self, head: bytes) -> Plan | Page | None:
        """What a head begins that was not seen before; None if it was answered at once.

        Raises:
            HttpError: it cannot be read.
        """
        request = parse_head(head)
        refusal = self._hooks.refusal(request)
        try:
            length = body_length(request, self._limits.max_message_size)
        except HttpError as error:
            response, more = (error.response, self._hooks.cors(request)) if refusal is None else (refusal, [])
            self.fail(response, more)
            return None
        upgrade = request.headers.get("upgrade")
        if upgrade is not None:
            # Whoever stands between might take what follows for the other protocol.
            request.keep_alive = False
        if refusal is not None:
            self._answer(Page(request, length, []), refusal)
            return None
        if upgrade is not None and "websocket" in tokens(upgrade):
            if self._hooks.paths.take_socket(request.path):
                self._begin_upgrade(request, length)
            else:
                self._answer(Page(request, length, self._hooks.cors(request)), self._hooks.nothing)
            return None
        known: Plan | Page = Page(request, length, self._hooks.cors(request))
        if request.method == "POST" and request.path in self._hooks.paths:
            try:
                known = Plan(request, length, known.more)
            except HttpError as error:
                self._answer(known, error.response)
                return None
        if len(head) <= _KNOWN_MAX:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[head] = known
        return known

    # -- who asks ---------------------------------------------------------------------------------------------

    def _identify(self, asked: Plan | Page, then: Callable[[], None]) -> None:
        """Find out who asks, and go on then; whoever is not known is told so."""
        authenticator = self._hooks.authenticator
        assert authenticator is not None

        def identified(identity: Any) -> None:
            self._is_identifying = False
            if identity is None:
                self._answer(asked, self._not_authenticated())
            elif isinstance(identity, Response):  # it failed
                self._answer(asked, identity)
            else:
                if not self._is_identified:
                    self._set_identified()
                asked.request.identity = identity
                then()

        credentials = shown(asked.request, self.credentials)
        found = authenticator.identify_now(credentials)
        if found is NOT_SYNC:
            self._is_identifying = True
            self._wait_for(authenticator.identify(credentials), identified)
        else:
            identified(found)

    @property
    def is_known(self) -> bool:
        """As `Connection.is_known`."""
        return self._is_identified

    def _set_identified(self) -> None:
        self._is_identified = True
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _not_authenticated(self) -> Response:
        """The answer to a request of which it is not known who asks; the last one after a few of these."""
        self._unknown += 1
        if self._unknown >= MAX_WRONG:
            self._close_after(f"{MAX_WRONG} requests without an accepted token")
        return problem(401, "not authenticated", [("WWW-Authenticate", "Bearer")])

    def _close_after(self, reason: str) -> None:
        """What is answered now is the last, for this reason."""
        self.over_limit, self.reason = True, reason
        self.is_draining = True

    def _too_late(self) -> None:
        """No request has shown who asks in `auth_timeout`: answer what is being worked on, and close."""
        self._deadline = None
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
        """Await this, and go on with what it gives; with a response that says so if it fails."""
        task = self._task = self._loop.create_task(outcome(work))

        def done(task: asyncio.Task[Any]) -> None:
            if self._task is task:  # the client is still there
                self._task = None
                then(problem(500, "internal error") if task.cancelled() else task.result())
                self._advance()

        task.add_done_callback(done)

    # -- calls ------------------------------------------------------------------------------------------------

    def _begin_body(self, plan: Plan) -> None:
        """The head is acceptable: read the body."""
        length, reader = plan.length, self._reader
        body = None if length is None else reader.whole(length)
        if body is not None:
            self._call(plan, body)
            return
        if plan.expects and not reader:
            self.write((_CONTINUE,))
        self._plan = plan
        reader.begin_body(length)

    def _call(self, plan: Plan, body: bytes) -> None:
        self._watch.completed = True
        exchange, self._spare = self._spare, None
        if exchange is None:
            session = self._new_session()
            session.set_identity(plan.request.identity)
            exchange = HttpExchange(self, session)
        self._exchange = exchange
        exchange.begin(self, plan, body)

    def exchange_over(self, keeps: bool, spare: HttpExchange | None = None) -> None:
        """The call is answered; what it was answered with may serve for the next one."""
        self._exchange, self._spare = None, spare
        self._answered(keeps, lingers=self._reader.is_partial)

    # -- what is no call --------------------------------------------------------------------------------------

    def _find(self, page: Page) -> None:
        """Answer with a page; a body is not read for that."""
        found = self._hooks.page(page.request)
        if isinstance(found, Response):
            self._answer(page, found)
        else:
            self._wait_for(found, partial(self._answer, page))

    def _begin_upgrade(self, request: Request, length: int | None) -> None:
        if length is None or length > 0:
            self.fail(problem(400, "a request for a WebSocket has no body"))
        elif self._hooks.authenticator is not None and "authorization" in request.headers:
            self._identify(Page(request, -1, []), partial(self._upgrade, request))
        else:  # browsers cannot give a token here: as on the line stream, the first call has it
            self._upgrade(request)

    def _upgrade(self, request: Request) -> None:
        """Go on as a WebSocket."""
        transport = self._transport
        response = accept_upgrade(request)
        if response.status == 101 and self.is_draining:
            response = problem(503, "the server is about to stop")
        make = self._hooks.websocket
        if make is None:
            response = problem(404, "there is no WebSocket here")
        if response.status != 101 or make is None or transport is None:
            self._answer(Page(request, -1, []), response)
            return
        successor = make(request)
        rest = self._reader.rest()
        transport.write(response.head(0, keep_alive=True))
        self._read_more(True)
        self._give_up()
        self._transport, self._closing = None, True
        if self._deadline is not None:
            self._deadline.cancel()
        successor.opened = self.opened
        transport.set_protocol(cast(asyncio.BaseProtocol, successor))
        if self._on_known is not None:
            self._on_known(self, successor)
        successor.connection_made(transport)
        if rest:
            successor.data_received(rest)

    # -- answers ----------------------------------------------------------------------------------------------

    def _answer(self, asked: Plan | Page, response: Response) -> None:
        """Answer something whose body has not been read and will not be."""
        self._watch.completed = True
        request, length = asked.request, asked.length
        keeps = request.keep_alive and not self.is_draining
        is_unread = length is None or (length > 0 and self._reader.whole(length) is None)
        keeps = keeps and not is_unread  # else, who knows what comes next
        try:
            parts = parts_of_response(response, request, keeps, asked.more)
        except ValueError:
            log.exception("the response to %s %s cannot be sent", request.method, request.path)
            parts = parts_of_response(problem(500, "internal error"), request, keeps)
        self.write(parts)
        self._answered(keeps, lingers=is_unread or self._reader.is_partial)

    def fail(self, response: Response, more: list[tuple[str, str]] | None = None) -> None:
        """Answer what cannot be read on from, and close.

        Args:
            more: headers of the response; where they are not given, those of the call whose body is being read.
        """
        if more is None:
            more = self._plan.more if self._plan is not None else []
        self.write(parts_of_response(response, Request("", ""), keeps=False, more=more))
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
        """Answer what runs, then close."""
        self.is_draining = True
        if self._exchange is None and self._task is None:
            if self._reader.is_partial:
                self.fail(problem(503, "the server is about to stop"))
            else:
                self.end(lingers=False)

    def probe(self) -> None:
        """A client that is gone has said so: by HTTP, nobody closes one half."""

    def check(self, now: float) -> str | None:
        """As `Connection.check`; a request that does not end is told so."""
        transport = self._transport
        if transport is None:
            return None
        unread = undelivered(transport) if self._closing or self._is_full else 0
        busy = self._exchange is not None or self._task is not None or self._turn is not None
        is_partial = not (busy or self._closing) and self._reader.is_partial
        reason = self._watch.overdue(now, partial=is_partial, unread=unread, busy=busy)
        if reason is not None:
            if is_partial and not unread:
                self.over_limit, self.reason = True, reason
                self.fail(problem(408, reason))
            else:
                self._close_for_limit(reason)
        return reason
