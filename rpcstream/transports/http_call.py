"""One call by HTTP: a POST is a conversation of its own, in which the peer sends one message (wire page, "HTTP/1.1").

Says what the head of a POST asks for, and makes a response of the session's messages: one body, or a line or an event
for each message as it comes. Reads and writes no bytes: our port and ASGI servers do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from ..errors import ConnectionLost
from ..limits import Limits
from ..peer.credentials import Credentials
from ..peer.session import Session
from ..wire.buffers import AttachedMessage, Encoded, MessageParts, first_part, parts_of
from ..wire.http_messages import (
    EVENTS,
    FRAME,
    JSON,
    NDJSON,
    READS_FRAMES,
    HttpError,
    Request,
    Response,
    names_frames,
    preferred_type,
    problem,
)
from ..wire.messages import Message
from .message_connection import Trace, trace_all, trace_sent

#: Content types of calls. A browser sends none of these to another site unless that permits it.
CONTENT_TYPES = frozenset(("application/json", "application/json-rpc", "application/jsonrequest"))

#: The beginning of each message that is not a reply: progress, an item.
NOTIFICATION = b'{"jsonrpc":"2.0","method":'

#: What stands before and behind a message in a stream.
WRAPPING = {NDJSON: (b"", b"\n"), EVENTS: (b"data: ", b"\n\n")}


class Endpoint(Protocol):
    """A protocol other than calls, at a path of its own: each POST there is one call."""

    def make_call(self, identity: Any, address: str, answered: AnsweredNotifications, trace: Trace | None) -> HttpCall:
        """Make the call for one POST of this caller, with a session of its own."""


@dataclass(slots=True, eq=False, repr=False)
class Head:
    """What the head of a request asks for.

    Attributes:
        request: its head.
        length: bytes of its body; None: it comes in chunks; -1: it has none.
        more: headers of the response, for pages of other sites.
    """

    request: Request
    length: int | None = 0
    more: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class PageHead(Head):
    """The head of a request that is not a call.

    Attributes:
        response: the response, where it is known already; None: the routes are asked.
        is_upgrade: the client asks for a WebSocket.
    """

    response: Response | None = None
    is_upgrade: bool = False


@dataclass(slots=True, eq=False, repr=False)
class CallHead(Head):
    """The head of a POST with a call in its body; kept, since the next request often has the same head.

    Raises:
        HttpError: the head is not that of a call.

    Attributes:
        reads_frames: the body may be a binary frame.
        notification_status: of the response where there is no reply.
        endpoint: what the body is for; None: a call.
        is_frame: the body is a binary frame.
        takes_frame: the response may be one.
        response_type: JSON, or NDJSON or EVENTS for a response in several messages.
        expects_continue: the client sends the body once it is told to.
        prefix: the bytes of the response up to its length, for a connection that stays open.
    """

    reads_frames: bool = field(kw_only=True)
    notification_status: int = field(default=200, kw_only=True)
    endpoint: Endpoint | None = field(default=None, kw_only=True)
    is_frame: bool = field(init=False)
    takes_frame: bool = field(init=False)
    response_type: str = field(init=False)
    expects_continue: bool = field(init=False)
    prefix: bytes = field(init=False)

    def __post_init__(self) -> None:
        request, headers = self.request, self.request.headers
        self.is_frame = is_frame(headers)
        _check_type(headers, self.is_frame, self.reads_frames)
        if self.length == -1:
            raise HttpError(problem(411, "a call needs a Content-Length, or comes in chunks"))
        accept = headers.get("accept", JSON)
        self.response_type = preferred_type(accept) if self.endpoint is None else JSON
        self.takes_frame = self.reads_frames and self.response_type == JSON and names_frames(accept)
        if self.takes_frame:
            self.more = [*self.more, READS_FRAMES]
        self.expects_continue = "expect" in headers and not request.is_http10
        if self.expects_continue and headers["expect"].lower() != "100-continue":
            raise HttpError(problem(417, "the only expectation is 100-continue"))
        self.prefix = _PREFIX if not self.more and not request.is_http10 else _prefix(request, self.more)


def _prefix(request: Request, more: list[tuple[str, str]]) -> bytes:
    head = Response(200, type=JSON).head(0, keep_alive=True, is_http10=request.is_http10, more=more)
    return head.replace(b"Content-Length: 0\r\n", b"").removesuffix(b"\r\n") + b"Content-Length: "


_PREFIX = _prefix(Request("POST", "/"), [])


def is_frame(headers: dict[str, str]) -> bool:
    """Whether the body is said to be a binary frame."""
    value = headers.get("content-type")
    return value is not None and value != JSON and _media_type(value) == FRAME


def _media_type(value: str) -> str:
    return value.partition(";")[0].strip(" \t").lower()


def _check_type(headers: dict[str, str], is_frame: bool, reads_frames: bool) -> None:
    """Check that the body is said to be JSON or a frame: pages of other sites can have browsers send others unasked."""
    value = headers.get("content-type")
    if is_frame:
        if not reads_frames:
            raise HttpError(problem(415, "binary frames are switched off here (binary=False): send application/json"))
    elif value is None:
        # A program may leave the type out; but so can the page of another site.
        if "origin" in headers or "sec-fetch-site" in headers:
            raise HttpError(problem(415, "the header Content-Type is missing: application/json"))
    elif _media_type(value) not in CONTENT_TYPES:
        raise HttpError(problem(415, "the Content-Type of a call is application/json"))
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(problem(415, "a Content-Encoding is not understood here: send the body as it is"))


class AnsweredNotifications:
    """The notifications of a connection that were answered and still run: not more than calls may run.

    Their sessions live on while these run.
    """

    __slots__ = ("_max_calls", "_max_held", "_sessions")

    def __init__(self, limits: Limits) -> None:
        self._max_calls = limits.max_calls
        self._max_held = limits.max_held_size
        self._sessions: list[Session] = []

    def admit(self, session: Session) -> bool:
        """Add those of this session, if there is room (`max_calls`, `max_held_size`); returns whether there was."""
        self._sessions = [each for each in self._sessions if each.running.handlers]
        ledgers = [each.ledger for each in (*self._sessions, session)]
        if sum(each.calls for each in ledgers) > self._max_calls or sum(each.held for each in ledgers) > self._max_held:
            return False
        self._sessions.append(session)
        return True

    def clear(self) -> None:
        """Forget them when the connection ends; they run on."""
        self._sessions.clear()


class ResponseSink(Protocol):
    """Where the response to a call is written: the connection that the call came on.

    A response is a `respond`, or `start`, `write` or `write_frame`, and `finish`.

    Attributes:
        address: of the client, for people.
    """

    address: str

    @property
    def credentials(self) -> Credentials:
        """What the connection tells of the client."""
        ...

    def reply(self, reply: bytes) -> None:
        """Write a whole response with this JSON."""

    def respond(self, response: Response) -> None:
        """Write a whole response."""

    def start(self, response: Response, parts: Sequence[bytes]) -> None:
        """Write the head of a response whose body comes in parts, and the first of these, if any has come."""

    def write(self, parts: Sequence[bytes]) -> None:
        """Write a part of the body."""

    def write_frame(self, message: AttachedMessage) -> None:
        """Write a whole response that is a binary frame."""

    def finish(self, *, is_reusable: bool) -> None:
        """The response is complete; the call is over, and its object may have the next one if `is_reusable`."""

    def fail(self, response: Response) -> None:
        """Write this in place of a response that was not begun, and close."""

    def abort(self, reason: str) -> None:
        """Close at once, in the middle of a response."""


class HttpCall:
    """One POST and its response: the channel of one session.

    A session that is as new after its call may have the next POST of the connection as well: making one takes longer
    than a small call.

    Args:
        address: of the client, for people.
        answered: the notifications of the connection that still run.
        trace: sees every message.
    """

    #: Headers of a response in several messages.
    STREAM_HEADERS: ClassVar[list[tuple[str, str]]] = [("Cache-Control", "no-store")]

    def __init__(self, session: Session, address: str, answered: AnsweredNotifications, trace: Trace | None) -> None:
        self.session = session
        self.address = address
        self.reason: str | None = None
        self._answered = answered
        self._trace = trace
        #: Where the response is written; None once it is complete, or the connection lost.
        self._sink: ResponseSink | None = None
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
        return self._sink.credentials if self._sink is not None else Credentials()

    def begin(self, sink: ResponseSink, head: CallHead, body: Message) -> None:
        """Handle the message in the body of a POST. The response may be complete when this returns."""
        session = self.session
        self._sink = sink
        self._head = head
        self._response_type = head.response_type
        session.identity, session.headers = head.request.identity, head.request.headers
        session.streaming, session.sends_binary = head.response_type != JSON, head.takes_frame
        if self._trace is not None:
            trace_all(self._trace, "receive", (body,))
        session.receive([body])
        if self._sink is None:
            return
        if not session.busy:
            self.close()
            return
        self._is_simple = False
        if self._needs_no_answer() and self._answered.admit(session):
            self.close()
            return
        session.end(self._lost)
        if self._response_type != JSON:
            self._write_stream(())  # the head: the first message may be long in coming

    def _needs_no_answer(self) -> bool:
        """Whether only notifications run, and their handlers go on without the connection."""
        session, running = self.session, self.session.running
        if session.intake.queue or running.forwarded or running.batch is not None:
            return False
        goes_on = session.dispatch.goes_on
        return all(_is_silent(each) and all(map(goes_on, _members(each))) for each in running.handlers.values())

    def lost(self) -> None:
        """The client is gone, or the connection is about to end: cancel what runs."""
        self._sink = None
        if self.session.channel is not None:
            self.session.lost(self._lost)

    def _lost(self, method: str) -> ConnectionLost:
        return ConnectionLost(self.reason or "the response was over", method=method, address=self.address)

    # -- for the session (Channel) ----------------------------------------------------------------------------

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`. In a response of one message only the reply is sent."""
        sink = self._sink
        if sink is None:
            return
        is_stream = self._response_type != JSON
        if not is_stream:
            messages = [each for each in messages if not is_notification(each)]
        if messages and type(last := messages[-1]) is AttachedMessage:
            if self._head.takes_frame:
                self._write_frame(sink, last)
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
        """As `Channel.pause`. Nothing more is read before the response is complete, anyway."""

    def resume(self) -> None:
        """As `Channel.resume`."""

    def close(self) -> None:
        """As `Channel.close`: complete the response."""
        sink = self._sink
        if sink is None:
            return
        if not self._begun:
            self._respond(sink, self._replies[0] if self._replies else b"")
        self._sink = None
        is_reusable = self._is_simple and self.session.is_unused
        if is_reusable:
            self._begun = False
            self._replies.clear()
        else:
            self.lost()
        sink.finish(is_reusable=is_reusable)

    def abort(self, reason: str) -> None:
        """As `Channel.abort`; with an error response, if none was begun."""
        sink = self._sink
        if sink is None:
            return
        self.reason = reason
        if self._begun:
            sink.abort(reason)
        else:
            self.lost()
            sink.fail(problem(500, reason))

    def probe(self) -> None:
        """As `Channel.probe`. Not needed: an HTTP client that closes one half of its connection is gone."""

    # -- the response -----------------------------------------------------------------------------------------

    def _respond(self, sink: ResponseSink, reply: Encoded) -> None:
        """Write a response in one piece."""
        if type(reply) is bytes and reply:
            sink.reply(reply)
        elif reply:
            sink.respond(Response(200, reply, JSON))
        else:
            sink.respond(Response(self._head.notification_status))

    def _write_frame(self, sink: ResponseSink, message: AttachedMessage) -> None:
        """Write a reply as a binary frame at once: others may change its payloads later."""
        if self._trace is not None:
            trace_sent(self._trace, (message,), as_frames=True)
        if self.session.counters is not None:
            self.session.counters.frames_sent += 1
        self._begun = True
        sink.write_frame(message)

    def _write_stream(self, messages: Iterable[Encoded]) -> None:
        sink = self._sink
        if sink is None:
            return
        before, behind = WRAPPING[self._response_type]
        parts: list[bytes] = []
        for message in messages:
            parts += before, *parts_of(message), behind
        if not self._begun:
            self._begun = True
            sink.start(Response(200, type=self._response_type, headers=self.STREAM_HEADERS), parts)
        elif parts:
            sink.write(parts)


def is_notification(message: Encoded) -> bool:
    """Whether a message of the session is no reply."""
    return (message if type(message) is bytes else first_part(message)).startswith(NOTIFICATION)


def _members(message: Any) -> list[Any]:
    return message if type(message) is list else [message]


def _is_silent(message: Any) -> bool:
    """Whether a message is a notification, or a batch of them."""
    return all(type(each) is dict and "id" not in each for each in _members(message))
