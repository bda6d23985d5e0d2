"""One call by HTTP: a POST is a conversation of its own, in which the peer sends one message (wire page, "HTTP/1.1").

Owns how a session's messages become the response: its body, or a line or an event for each as they come. Knows neither
how requests are read nor what a message says, but for whether it is a reply.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

from ..errors import ConnectionLost
from ..limits import Limits
from ..peer.credentials import Credentials
from ..peer.session import Session
from ..wire.binary_frame import parts_of_frame
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
from .connection import JOIN_MAX
from .http_output import ResponseSink, date_line, dated, response_parts
from .message_connection import Trace, trace_all, trace_sent

#: Content types of calls. A browser sends none of these to another site unless that permits it.
CONTENT_TYPES = frozenset(("application/json", "application/json-rpc", "application/jsonrequest"))

#: The beginning of each message that is not a reply: progress, an item.
_NOTIFICATION = b'{"jsonrpc":"2.0","method":'

#: What stands before and behind a message in a stream.
WRAPPING = {NDJSON: (b"", b"\n"), EVENTS: (b"data: ", b"\n\n")}


class CallHead:
    """What the head of a POST says about the call in its body; kept, since the next request often has the same head.

    Args:
        length: bytes of the body; None: it comes in chunks.
        more: headers of the response, for pages of other sites.
        reads_frames: the body may be a binary frame.

    Raises:
        HttpError: the head is not that of a call.

    Attributes:
        request, length: as given.
        more: headers of the response.
        notification_status: of the response where there is no reply.
        is_frame: the body is a binary frame.
        takes_frame: the response may be one.
        response_type: JSON, or NDJSON or EVENTS for a response in several messages.
        expects_continue: the client sends the body once it is told to.
        prefix: the bytes of the response up to its length, for a connection that stays open.
    """

    __slots__ = (
        "expects_continue",
        "is_frame",
        "length",
        "more",
        "notification_status",
        "prefix",
        "request",
        "response_type",
        "takes_frame",
    )

    def __init__(
        self,
        request: Request,
        length: int | None,
        more: list[tuple[str, str]],
        *,
        reads_frames: bool,
        notification_status: int = 200,
    ) -> None:
        self.notification_status = notification_status
        headers = request.headers
        self.is_frame = is_frame(headers)
        _check_type(headers, self.is_frame, reads_frames)
        if length == -1:
            raise HttpError(problem(411, "a call needs a Content-Length, or comes in chunks"))
        self.request = request
        self.length = length
        self.response_type, self.takes_frame = JSON, False
        if "accept" in headers:
            self.response_type = preferred_type(headers["accept"])
            if reads_frames and self.response_type == JSON and names_frames(headers["accept"]):
                self.takes_frame = True
                more = [*more, READS_FRAMES]
        self.more = more
        self.expects_continue = False
        if "expect" in headers and not request.is_http10:
            if headers["expect"].lower() != "100-continue":
                raise HttpError(problem(417, "the only expectation is 100-continue"))
            self.expects_continue = True
        self.prefix = _PREFIX if not more and not request.is_http10 else _prefix(request, more)


class Endpoint(Protocol):
    """A protocol other than calls, at a path of its own: each POST there is one exchange."""

    def make_exchange(
        self, identity: Any, address: str, answered: AnsweredNotifications, trace: Trace | None, *, is_asgi: bool
    ) -> HttpExchange:
        """Make the exchange for one POST, with a session of its own.

        Args:
            identity: of the caller, as authentication found.
            is_asgi: the response is written as events of ASGI.
        """


class EndpointHead(CallHead):
    """The head of a POST at the path of an endpoint.

    Attributes:
        endpoint: what the body is for.
    """

    __slots__ = ("endpoint",)

    def __init__(
        self, request: Request, length: int | None, more: list[tuple[str, str]], *, endpoint: Endpoint
    ) -> None:
        super().__init__(request, length, more, reads_frames=False)
        self.response_type = JSON
        self.endpoint = endpoint


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
    elif value != JSON:
        if value is None:
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
        if sum(each.running.load for each in self._sessions) + session.running.load > self._max_calls:
            return False
        if sum(each.running.held for each in self._sessions) + session.running.held > self._max_held:
            return False
        self._sessions.append(session)
        return True

    def clear(self) -> None:
        """Forget them when the connection ends; they run on."""
        self._sessions.clear()


class HttpExchange:
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

    __slots__ = (
        "_answered",
        "_begun",
        "_head",
        "_is_simple",
        "_keeps",
        "_replies",
        "_response_type",
        "_sink",
        "_trace",
        "address",
        "reason",
        "session",
    )

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
        #: The head of a response in several messages was written.
        self._begun = False
        #: A response was written that is a binary frame, and so the connection may carry another request or not.
        self._keeps: bool | None = None
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
        is_stream = head.response_type != JSON
        session.set_request(head.request.identity, head.request.headers, streaming=is_stream, binary=head.takes_frame)
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
        if self._response_type != JSON and not self._begun and self._sink is not None:
            self._write_stream(())  # the head: the first message may be long in coming

    def _needs_no_answer(self) -> bool:
        """Whether only notifications run, and their handlers go on without the connection."""
        session, running = self.session, self.session.running
        if session.queue or running.forwarded or running.batch is not None:
            return False
        return all(_is_silent(message) and session.goes_on(message) for message in running.handlers.values())

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
        if self._sink is None:
            return
        is_stream = self._response_type != JSON
        if not is_stream:
            messages = [
                each
                for each in messages
                if not (each if type(each) is bytes else first_part(each)).startswith(_NOTIFICATION)
            ]
        if messages and type(last := messages[-1]) is AttachedMessage:
            if self._head.takes_frame:
                self._write_frame(last)
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
        request = self._head.request
        keeps = request.keep_alive and not sink.is_draining
        if self._begun:
            self._end_stream(sink)
            keeps = keeps and not request.is_http10
        elif self._keeps is not None:
            keeps, self._keeps = self._keeps and keeps, None
        else:
            self._write_reply(sink, keeps)
        self._sink = None
        if keeps and self._is_simple and self.session.is_unused:
            self._begun = False
            self._replies.clear()
            sink.finish(keeps, is_reusable=True)
        else:
            self.lost()
            sink.finish(keeps, is_reusable=False)

    def abort(self, reason: str) -> None:
        """As `Channel.abort`; with an error response, if none was begun."""
        sink = self._sink
        if sink is None:
            return
        self.reason = reason
        if self._begun or self._keeps is not None:
            sink.abort(reason)
        else:
            self.lost()
            sink.fail(problem(500, reason))

    def probe(self) -> None:
        """As `Channel.probe`. Not needed: an HTTP client that closes one half of its connection is gone."""

    # -- the response -----------------------------------------------------------------------------------------

    def _write_reply(self, sink: ResponseSink, keeps: bool) -> None:
        reply = self._replies[0] if self._replies else b""
        head = self._head
        if keeps and type(reply) is bytes and reply:
            size = len(reply)
            if size <= JOIN_MAX:
                sink.write((b"%b%d\r\n%b\r\n%b" % (head.prefix, size, date_line(), reply),))
            else:
                sink.write((b"%b%d\r\n%b\r\n" % (head.prefix, size, date_line()), reply))
        else:
            self._write_response(
                sink, Response(200, reply, JSON) if reply else Response(head.notification_status), keeps
            )

    def _write_response(self, sink: ResponseSink, response: Response, keeps: bool) -> None:
        """Write a response in one piece."""
        sink.write(response_parts(response, self._head.request, keeps, self._head.more))

    def _write_frame(self, message: AttachedMessage) -> None:
        """Write a reply as a binary frame at once: others may change its payloads later."""
        sink, head = self._sink, self._head
        assert sink is not None
        if self._trace is not None:
            trace_sent(self._trace, (message,), as_frames=True)
        if self.session.counters is not None:
            self.session.counters.frames_sent += 1
        self._keeps = head.request.keep_alive and not sink.is_draining
        self._put_frame(sink, message)

    def _put_frame(self, sink: ResponseSink, message: AttachedMessage) -> None:
        head = self._head
        assert self._keeps is not None
        first, *payloads = parts_of_frame(message)
        size = len(first) + sum(map(len, payloads))
        response = Response(200, type=FRAME)
        begin = dated(response.head(size, self._keeps, is_http10=head.request.is_http10, more=head.more))
        sink.write_frame([begin + first, *payloads], message)

    def _write_stream(self, messages: Iterable[Encoded]) -> None:
        sink, head = self._sink, self._head
        assert sink is not None
        is_http10 = head.request.is_http10
        parts: list[bytes] = []
        if not self._begun:
            self._begun = True
            keeps = head.request.keep_alive and not sink.is_draining and not is_http10
            response = Response(200, type=self._response_type, headers=self.STREAM_HEADERS)
            parts.append(dated(response.head(None, keeps, is_http10=is_http10, more=head.more)))
        before, behind = WRAPPING[self._response_type]
        for message in messages:
            if is_http10:
                parts += (before, *parts_of(message), behind)
            else:
                size = len(before) + len(message) + len(behind)
                parts += (b"%x\r\n%b" % (size, before), *parts_of(message), behind + b"\r\n")
        sink.write(parts)

    def _end_stream(self, sink: ResponseSink) -> None:
        """End a response in several messages."""
        if not self._head.request.is_http10:
            sink.write((b"0\r\n\r\n",))


def _is_silent(message: Any) -> bool:
    """Whether a message is a notification, or a batch of them."""
    if type(message) is list:
        return all(map(_is_silent, message))
    return type(message) is dict and "id" not in message
