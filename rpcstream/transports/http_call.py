"""HTTP requests and their responses, wherever their bytes come from: our own port, or an ASGI server.

Each POST with a call is a conversation of its own, in which the client sends one message (wire page, "HTTP/1.1").
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import orjson

from ..auth.authenticator import MAX_WRONG
from ..errors import CallCancelled, ConnectionLost, RpcError
from ..peer.credentials import Credentials
from ..peer.frame_admission import FrameAdmission
from ..peer.ledger import Reception
from ..peer.session import Session
from ..wire.binary_frame import parts_of_frame
from ..wire.buffers import AttachedMessage, Encoded, MessageParts, first_part, parts_of
from ..wire.envelope import Message, error_reply
from ..wire.http_messages import EVENTS, FRAME, JSON, NDJSON, Request, Response, problem
from .connection import Connection
from .http_router import (
    CallHead,
    ConnectionContext,
    Head,
    HttpRouter,
    RequestBody,
    not_authenticated,
    request_credentials,
    response_of,
)
from .message_connection import STOPPING, trace_all, trace_sent

log = logging.getLogger("rpcstream.server")

#: The beginning of each message that is not a reply: progress, an item.
NOTIFICATION = b'{"jsonrpc":"2.0","method":'

#: What stands before and behind a message in a stream.
WRAPPING = {NDJSON: (b"", b"\n"), EVENTS: (b"data: ", b"\n\n")}

#: What is answered to a request that has come in part when the server stops.
NOT_READ = orjson.dumps(error_reply(None, CallCancelled(data={"executed": False, "reason": STOPPING})))

#: The response to a request for a WebSocket when the server stops.
STOPS = problem(503, "the server is about to stop")

#: Seconds that the rest of such a request has to come.
REST = 0.2


class HttpServing(Connection):
    """The requests of one connection, each answered before the next one begins.

    The response to a call is a `reply`, a `respond`, a `write_frame`, or a `start` and `write`s; then `finish`.

    Attributes:
        answered: the sessions of notifications that were answered and still run, which nothing else keeps.
        is_draining: what is being answered is the last.
        trace: sees every message.
    """

    def __init__(self, context: ConnectionContext, router: HttpRouter, address: str | None = None) -> None:
        super().__init__(context.limits, context.ledger, address)
        self.answered: list[Session] = []
        self.is_draining = self._is_known = False
        self.trace = context.trace
        self._context = context
        self._router = router
        self._reception = Reception(context.ledger)
        #: The head of the request that is being answered, or was last.
        self._head = Head(Request("", ""))
        #: What is being answered: a call, or a request whose identity or page is awaited.
        self._call: HttpCall | None = None
        self._task: asyncio.Task[Any] | None = None
        self._is_identifying = False
        #: A call that is over, or whose binary frame is being read: the next call is made with it.
        self._spare: HttpCall | None = None
        #: The body that is being read.
        self._body: RequestBody | None = None
        #: Requests that were answered with 401.
        self._rejections = 0

    @property
    def carrier(self) -> str:
        """As `transport_of`."""
        return "http"

    @property
    def is_known(self) -> bool:
        """Whether a request was authenticated."""
        return self._is_known

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._call is not None or self._task is not None

    def _take(self, head: Head) -> None:
        """Begin with a request."""
        self._head = head
        if isinstance(head, CallHead):
            self._identify(self._take_body)
        elif head.response is not None:
            self.answer(head.response)
        elif head.is_upgrade and "authorization" not in head.request.headers:
            self._switch()  # browsers cannot give a token here: as on the line stream, it comes with the first call
        elif head.is_upgrade:
            self._identify(self._switch)
        elif self._router.is_public(head.request):
            self._take_page()
        else:
            self._identify(self._take_page)

    def _take_page(self) -> None:
        """Answer with a page; the request's body is not read."""
        found = self._router.page(self._head.request)
        if isinstance(found, Response):
            self.answer(found)
        else:
            self._wait_for(found, self.answer)

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
            self._is_known = True
            self._head.request.identity = identity
            then()

    def _not_authenticated(self) -> None:
        """Answer a request without accepted credentials; the connection ends after `MAX_WRONG` of them."""
        has_shown = "authorization" in self._head.request.headers
        if self._context.authenticator is not None:
            self._context.authenticator.refused(self.address, has_shown=has_shown)
        self._rejections += 1
        if self._rejections >= MAX_WRONG:
            self.over_limit, self.reason = True, f"{MAX_WRONG} requests without an accepted token"
            self.is_draining = True
        self.answer(not_authenticated(has_shown=has_shown))

    def _begin_body(self) -> None:
        """Expect the body of a call; the session of the call decides about a frame when its JSON is there."""
        head, admission = cast(CallHead, self._head), None
        if head.is_frame:
            call = self._spare = self._make_call()
            call.session.identity = head.request.identity
            admission = FrameAdmission(call.session)
        self._body = RequestBody(self._limits, self._reception, admission)

    def _end_body(self) -> None:
        """Carry out the call whose body has come."""
        message = cast(RequestBody, self._body).end()
        self._body = None
        self._begin_call(message)

    def _begin_call(self, body: Message) -> None:
        """Carry out a call with this body."""
        self._timeouts.completed = True
        call = self._call = self._make_call()
        call.begin(self, cast(CallHead, self._head), body)

    def _make_call(self) -> HttpCall:
        """The object for a call: that of the call before, where that is possible."""
        spare, self._spare = self._spare, None
        head = cast(CallHead, self._head)
        if head.endpoint is not None:
            if spare is not None:
                spare.lost()
            call: HttpCall = head.endpoint.make_call(head.request.identity, self)
            return call
        if spare is not None:
            return spare
        session = self._context.new_session()
        session.identity = head.request.identity
        return HttpCall(session, self)

    def _switch(self) -> None:
        """Go on as a WebSocket, or refuse to."""
        raise NotImplementedError

    def _take_body(self) -> None:
        """Read the body of a call."""
        raise NotImplementedError

    def answer(self, response: Response) -> None:
        """Answer a request whose body is not read."""
        try:
            self.respond(response)
        except ValueError:
            log.exception("the response to %r cannot be sent", self._head.request)
            self.respond(problem(500, "internal error"))

    def fail(self, response: Response) -> None:
        """Write a response after which nothing more can be read, and close."""
        raise NotImplementedError

    def reply(self, reply: bytes) -> None:
        """Write a whole response with this JSON."""
        self.respond(Response(200, reply, JSON))

    def respond(self, response: Response) -> None:
        """Write a whole response."""
        raise NotImplementedError

    def start(self, response: Response, parts: Sequence[bytes]) -> None:
        """Write the head of a response whose body comes in parts, and the first of these, if any has come."""
        raise NotImplementedError

    def write(self, parts: Sequence[bytes]) -> None:
        """Write a part of the body."""
        raise NotImplementedError

    def write_frame(self, message: AttachedMessage) -> None:
        """Write a whole response that is a binary frame: a copy of it, since others may change its payloads."""
        self.respond(Response(200, b"".join(parts_of_frame(message)), FRAME))

    def finish(self, *, is_reusable: bool) -> None:
        """The response is complete; the next call may have the object of this one if `is_reusable`."""
        self._call, self._spare = None, self._call if is_reusable else None

    def may_answer(self, session: Session) -> bool:
        """Whether the notifications of a session may run on behind their response: no more than calls may run."""
        limits = self._limits
        self.answered[:] = [each for each in self.answered if each.running.handlers]
        ledgers = [each.ledger for each in (*self.answered, session)]
        calls, held = sum(each.calls for each in ledgers), sum(each.held for each in ledgers)
        if calls > limits.max_calls or held > limits.max_held_size:
            return False
        self.answered.append(session)
        return True

    def refuse(self, error: RpcError) -> None:
        """Say why this connection is not served, and close it."""
        self.fail(problem(503, error.message, [("Retry-After", "1")]))

    def drain(self) -> None:
        """Answer what runs, then close; the rest of a request that has come in part may still be on its way."""
        self.is_draining = True
        if self.is_partial:
            self._loop.call_later(REST, self._refuse_partial)

    def _refuse_partial(self) -> None:
        """Tell the client that a request is not carried out because its rest has not come."""
        if self.is_open and self.is_partial:
            self.fail(Response(503, NOT_READ, JSON, [("Retry-After", "1")]))

    def set_full(self, is_full: bool) -> None:
        super().set_full(is_full)
        if self._call is not None:
            self._call.session.blocked(is_full)

    def _close_incomplete(self, reason: str) -> None:
        self.fail(problem(408, reason))

    def _give_up(self) -> None:
        """Cancel what is being worked on: its response cannot be written any more."""
        if self._body is not None:
            self._body.give_up()
            self._body = None
        call, self._call, self._spare = self._call or self._spare, None, None
        if call is not None:
            call.reason = self.reason or "the client closed the connection"
            call.lost()
        if self._task is not None:
            self._task.cancel()
            self._task = None


class HttpCall:
    """One POST and its response: the channel of one session.

    A session that is as new after its call may have the next POST of the connection as well: making one takes longer
    than a small call.
    """

    carrier = "http"

    #: Headers of a response in several messages.
    STREAM_HEADERS: ClassVar[list[tuple[str, str]]] = [("Cache-Control", "no-store")]

    def __init__(self, session: Session, connection: HttpServing) -> None:
        self.session = session
        self.address = connection.address
        self.reason: str | None = None
        self._trace = connection.trace
        #: Where the response is written; None once it is complete, or the connection lost.
        self._connection: HttpServing | None = None
        self._head: CallHead
        self._response_type = JSON
        self._replies: list[Encoded] = []
        #: The head of the response was written.
        self._begun = False
        #: The session has not been told that the peer sends nothing more.
        self._is_simple = True
        session.connected(self, is_lasting=False)

    @property
    def credentials(self) -> Credentials:
        """What the connection tells of the peer."""
        return self._connection.credentials if self._connection is not None else Credentials()

    def begin(self, connection: HttpServing, head: CallHead, body: Message) -> None:
        """Handle the message in the body of a POST. The response may be complete when this returns."""
        session = self.session
        self._connection = connection
        self._head = head
        self._response_type = head.response_type
        session.identity, session.headers = head.request.identity, head.request.headers
        session.streaming, session.sends_binary = head.response_type != JSON, head.takes_frame
        if self._trace is not None:
            trace_all(self._trace, "receive", (body,))
        session.intake.receive([body])
        if self._connection is None:
            return
        if not session.busy:
            self.close()
            return
        self._is_simple = False
        goes_on = not session.intake.queue and session.running.need_no_reply(session.dispatch.goes_on)
        if goes_on and connection.may_answer(session):
            self.close()
            return
        session.end(self._lost)
        if self._response_type != JSON:
            self._write_stream(())  # the head: the first message may be long in coming

    def lost(self) -> None:
        """The client is gone, or the connection is about to end: cancel what runs."""
        self._connection = None
        if self.session.channel is not None:
            self.session.lost(self._lost)

    def _lost(self, method: str) -> ConnectionLost:
        return ConnectionLost(self.reason or "the response was over", method=method, address=self.address)

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`. In a response of one message only the reply is sent."""
        connection = self._connection
        if connection is None:
            return
        is_stream = self._response_type != JSON
        if not is_stream:
            messages = [each for each in messages if not is_notification(each)]
        if messages and type(last := messages[-1]) is AttachedMessage:
            if self._head.takes_frame:
                self._write_frame(connection, last)
                return
            messages = [*messages[:-1], MessageParts(last.parts)]
        if self._trace is not None:
            trace_all(self._trace, "send", messages)
        if is_stream:
            self._write_stream(messages)
        else:
            # One at most: the body was one message, and a batch is answered with one.
            self._replies += messages

    def pause(self) -> None:
        """As `Channel.pause`, and `resume` and `probe`: nothing more is read before the response is complete."""

    resume = probe = pause

    def close(self) -> None:
        """As `Channel.close`: complete the response."""
        connection = self._connection
        if connection is None:
            return
        if not self._begun:
            self._respond(connection, self._replies[0] if self._replies else b"")
        self._connection = None
        is_reusable = self._is_simple and self.session.is_unused
        if is_reusable:
            self._begun = False
            self._replies.clear()
        else:
            self.lost()
        connection.finish(is_reusable=is_reusable)

    def abort(self, reason: str) -> None:
        """As `Channel.abort`; with an error response, if none was begun."""
        connection = self._connection
        if connection is None:
            return
        self.reason = reason
        if self._begun:
            connection.abort(reason)
        else:
            self.lost()
            connection.fail(problem(500, reason))

    def _respond(self, connection: HttpServing, reply: Encoded) -> None:
        """Write a response in one piece."""
        if type(reply) is bytes and reply:
            connection.reply(reply)
        elif reply:
            connection.respond(Response(200, reply, JSON))
        else:
            connection.respond(Response(self._head.notification_status))

    def _write_frame(self, connection: HttpServing, message: AttachedMessage) -> None:
        """Write a reply as a binary frame at once: others may change its payloads later."""
        if self._trace is not None:
            trace_sent(self._trace, (message,), as_frames=True)
        if self.session.counters is not None:
            self.session.counters.frames_sent += 1
        self._begun = True
        connection.write_frame(message)

    def _write_stream(self, messages: Iterable[Encoded]) -> None:
        connection = self._connection
        if connection is None:
            return
        before, behind = WRAPPING[self._response_type]
        parts: list[bytes] = []
        for message in messages:
            parts += before, *parts_of(message), behind
        if not self._begun:
            self._begun = True
            connection.start(Response(200, type=self._response_type, headers=self.STREAM_HEADERS), parts)
        elif parts:
            connection.write(parts)


def is_notification(message: Encoded) -> bool:
    """Whether a message of the session is no reply."""
    return (message if type(message) is bytes else first_part(message)).startswith(NOTIFICATION)
