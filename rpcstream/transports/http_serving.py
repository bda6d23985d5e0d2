"""What answers the requests of one HTTP connection, wherever they come from: our own port, or an ASGI server.

Each request is answered before the next one begins: routed, authenticated, and answered by a page or a call.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import orjson

from ..auth.authenticator import MAX_WRONG, Authenticator
from ..errors import CallCancelled, ParseError, RpcError
from ..limits import Limits
from ..peer.frame_admission import FrameAdmission
from ..peer.ledger import Reception, ServerLedger
from ..peer.session import Session
from ..wire.binary_frame import BinaryFrameReader, FrameError
from ..wire.envelope import error_reply
from ..wire.http_messages import JSON, HttpError, Request, Response, problem
from ..wire.messages import Message
from .connection import LimitedConnection, ProtocolConnection
from .http_call import AnsweredNotifications, CallHead, Head, HttpCall, PageHead, ResponseSink
from .http_router import HttpRouter, not_authenticated, request_credentials, response_of
from .message_connection import STOPPING, Trace
from .open_connections import OpenConnections

log = logging.getLogger("rpcstream.server")

#: What is answered to a request that has come in part when the server stops.
NOT_READ = orjson.dumps(error_reply(None, CallCancelled(data={"executed": False, "reason": STOPPING})))

#: Seconds that the rest of such a request has to come.
REST = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpContext:
    """What the HTTP connections at one address of a server have in common.

    Attributes:
        new_session: makes the session of a call, or of a WebSocket.
        authenticator: finds out who sends the requests; None: that is not asked.
        trace: sees every message and reply.
        make_websocket: makes the protocol that a connection goes on with, from a request with its identity.
    """

    router: HttpRouter
    new_session: Callable[[], Session]
    limits: Limits
    ledger: ServerLedger
    connections: OpenConnections
    authenticator: Authenticator | None
    trace: Trace | None
    make_websocket: Callable[[Request], ProtocolConnection] | None = None


class HttpServing(LimitedConnection, ResponseSink):
    """The requests of one connection; a `Connection` of the listener, and the `ResponseSink` of its calls.

    Args:
        context: see there.
        answered: the notifications that were answered and still run.

    Attributes:
        is_draining: what is being answered is the last.
        is_known: a request was authenticated.
    """

    def __init__(self, context: HttpContext, answered: AnsweredNotifications, address: str | None = None) -> None:
        super().__init__(context.limits, context.ledger, address)
        self.is_draining = self.is_known = False
        self._context = context
        self._answered_notifications = answered
        self._reception = Reception(context.ledger)
        #: The head of the request that is being answered, or was last.
        self._head = Head(Request("", ""))
        #: What is being answered: a call, or a request whose identity or page is awaited.
        self._call: HttpCall | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_identifying = False
        #: A call that is over, or whose binary frame is being read: the next call is made with it.
        self._spare: HttpCall | None = None
        self._admission: FrameAdmission | None = None
        #: Requests that were answered with 401.
        self._rejections = 0

    @property
    def _is_awaited(self) -> bool:
        """A request is being answered."""
        return self._call is not None or self._task is not None

    @property
    def _is_partial(self) -> bool:
        """Part of a request has been received."""
        raise NotImplementedError

    # -- requests ---------------------------------------------------------------------------------------------------

    def _take(self, head: Head) -> None:
        """Begin with a request."""
        self._head = head
        if not isinstance(head, PageHead):
            self._identify(self._take_body)
        elif head.response is not None:
            self.answer(head.response)
        elif head.is_upgrade:
            self._upgrade(head)
        elif self._context.router.is_public(head.request):
            self._take_page()
        else:
            self._identify(self._take_page)

    def _take_page(self) -> None:
        """Answer with a page; the request's body is not read."""
        found = self._context.router.page(self._head.request)
        if isinstance(found, Response):
            self.answer(found)
        else:
            self._wait_for(found, self.answer)

    def _upgrade(self, head: PageHead) -> None:
        """Go on as a WebSocket, or refuse to."""
        raise NotImplementedError

    def _wait_for(self, work: Any, then: Callable[[Any], None]) -> None:
        """Await this, then call `then` with its result; with an error response if it fails."""
        task = self._task = self._loop.create_task(response_of(work))

        def done(task: asyncio.Task[Any]) -> None:
            if self._task is task:  # the client is still there
                self._task = None
                then(problem(500, "internal error") if task.cancelled() else task.result())
                self._advance()

        task.add_done_callback(done)

    def _advance(self) -> None:
        """Handle what has come meanwhile."""

    # -- authentication ---------------------------------------------------------------------------------------------

    def _identify(self, then: Callable[[], None]) -> None:
        """Find out who sends the request, then go on with this; without an identity the response is 401."""
        authenticator = self._context.authenticator
        if authenticator is None:
            then()
            return
        credentials = request_credentials(self._head.request, self.credentials)
        found = authenticator.identify(credentials)
        if inspect.isawaitable(found):
            self._is_identifying = True
            self._wait_for(found, partial(self._identified, then))
        else:
            self._identified(then, found)

    def _identified(self, then: Callable[[], None], identity: Any) -> None:
        self._is_identifying = False
        if identity is None:
            self._not_authenticated()
        elif isinstance(identity, Response):  # the authentication failed
            self.answer(identity)
        else:
            if not self.is_known:
                self._set_known()
            self._head.request.identity = identity
            then()

    def _set_known(self) -> None:
        self.is_known = True

    def _not_authenticated(self) -> None:
        """Answer a request without accepted credentials; the connection ends after `MAX_WRONG` of them."""
        has_shown = "authorization" in self._head.request.headers
        if self._context.authenticator is not None:
            self._context.authenticator.refused(self.address, has_shown=has_shown)
        self._rejections += 1
        if self._rejections >= MAX_WRONG:
            self._end_after(f"{MAX_WRONG} requests without an accepted token")
        self.answer(not_authenticated(has_shown=has_shown))

    def _end_after(self, reason: str) -> None:
        """Close, for this reason, after the present response."""
        self.over_limit, self.reason = True, reason
        self.is_draining = True

    # -- calls ------------------------------------------------------------------------------------------------------

    def _take_body(self) -> None:
        """Read the body of a call."""
        raise NotImplementedError

    def _begin_frame(self) -> BinaryFrameReader:
        """Expect a body that is a binary frame; the session of the call decides about it when its JSON is there."""
        call = self._spare = self._make_call()
        call.session.identity = self._head.request.identity
        self._admission = FrameAdmission(call.session)
        return BinaryFrameReader(self._admission, self._limits.max_message_size)

    def _count_body(self, size: int) -> None:
        """Count the bytes of a body that have come. Raises HttpError if there is no memory for them."""
        if not self._reception.grow(size):
            error = "the server has no memory for so many long messages at once (max_held_total)"
            raise HttpError(problem(503, error, [("Retry-After", "1")]))

    def _begin_call(self, body: Message) -> None:
        """Carry out a call whose body has come."""
        self._timeouts.completed = True
        self._reception.over()
        self._admission = None
        call = self._call = self._make_call()
        call.begin(self, cast(CallHead, self._head), body)

    def _make_call(self) -> HttpCall:
        """The object for a call: that of the call before, where that is possible."""
        spare, self._spare = self._spare, None
        head, context = cast(CallHead, self._head), self._context
        identity = head.request.identity
        if head.endpoint is not None:
            if spare is not None:
                spare.lost()
            return head.endpoint.make_call(identity, self.address, self._answered_notifications, context.trace)
        if spare is not None:
            return spare
        session = context.new_session()
        session.identity = identity
        return HttpCall(session, self.address, self._answered_notifications, context.trace)

    def set_full(self, is_full: bool) -> None:
        super().set_full(is_full)
        if self._call is not None:
            self._call.session.blocked(is_full)

    # -- responses (ResponseSink) -----------------------------------------------------------------------------------

    def answer(self, response: Response) -> None:
        """Answer a request whose body is not read."""
        raise NotImplementedError

    def fail(self, response: Response) -> None:
        """Write a response after which nothing more can be read, and close."""
        raise NotImplementedError

    def finish(self, *, is_reusable: bool) -> None:
        """As `ResponseSink.finish`."""
        self._call, self._spare = None, self._call if is_reusable else None

    # -- for the listener (Connection) ------------------------------------------------------------------------------

    def refuse(self, error: RpcError) -> None:
        """Say why this connection is not served, and close it."""
        self.fail(problem(503, error.message, [("Retry-After", "1")]))

    def drain(self) -> None:
        """Answer what runs, then close.

        The rest of a request that has come in part is most often on its way: many clients send head and body by
        themselves. If it does not come now the client is told that the request is not carried out.
        """
        self.is_draining = True
        if not self._is_awaited and self._is_partial:
            self._loop.call_later(REST, self._refuse_partial)

    def _refuse_partial(self) -> None:
        """Say that a request is not carried out of which not all has come."""
        if self.is_open and not (self._is_awaited or self._closing) and self._is_partial:
            self.fail(Response(503, NOT_READ, JSON, [("Retry-After", "1")]))

    def probe(self) -> None:
        """As `Connection.probe`. Not needed: an HTTP client that closes one half of its connection is gone."""

    def check(self, now: float) -> str | None:
        """As `Connection.check`; a request that does not end is answered with 408."""
        if not self.is_open:
            return None
        partial = self._is_partial and not (self._is_awaited or self._closing)
        return self._overdue(now, partial=partial, busy=self._is_awaited)

    def _close_incomplete(self, reason: str) -> None:
        self.fail(problem(408, reason))

    def _give_up(self) -> None:
        """Cancel what is being worked on: its response cannot be written any more."""
        self._reception.over()
        if self._admission is not None:
            self._admission.give_up()
        call, self._call, self._spare = self._call or self._spare, None, None
        if call is not None:
            call.reason = self.reason or "the client closed the connection"
            call.lost()
        if self._task is not None:
            self._task.cancel()
            self._task = None


def malformed(error: FrameError) -> Response:
    """The response to a body that is to be a binary frame, and is none."""
    return Response(200, orjson.dumps(error_reply(None, ParseError(data={"reason": str(error)}))), JSON)
