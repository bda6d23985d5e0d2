"""One call by HTTP: a POST is a conversation of its own, in which the peer speaks once (wire page, "HTTP/1.1").

Owns what becomes of a session's messages in the response: its body, or as they come, a line or an event each. Knows
neither how requests are read nor what a message says, but for whether it is a reply.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from ..errors import ConnectionLost
from ..limits import Limits
from ..peer.credentials import Credentials
from ..peer.session import Session
from ..wire.buffers import Encoded, parts_of
from ..wire.http_messages import EVENTS, JSON, NDJSON, HttpError, Request, Response, preferred_type, problem
from .connection import JOIN_MAX
from .message_connection import trace_all

if TYPE_CHECKING:
    from .http import HttpConnection

#: What calls come as. Browsers send none of these to another site unless that permits it.
CONTENT_TYPES = frozenset(("application/json", "application/json-rpc", "application/jsonrequest"))

#: What a message begins with that is no reply: progress, an item.
_WORD = b'{"jsonrpc":"2.0","method":'

#: What stands before and behind a message in a stream.
_WRAPPING = {NDJSON: (b"", b"\n"), EVENTS: (b"data: ", b"\n\n")}


class Plan:
    """What the head of a POST says about the call in it; the next request often has the very same head.

    Args:
        length: of the body; None: it comes in chunks.
        more: headers of the response.

    Raises:
        HttpError: it cannot be one.
    """

    __slots__ = ("expects", "kind", "length", "more", "prefix", "request")

    def __init__(self, request: Request, length: int | None, more: list[tuple[str, str]]) -> None:
        headers = request.headers
        _check_type(headers)
        if length == -1:
            raise HttpError(problem(411, "a call needs a Content-Length, or comes in chunks"))
        self.request = request
        self.length = length
        self.more = more
        self.kind = preferred_type(headers["accept"]) if "accept" in headers else JSON
        self.expects = False
        if "expect" in headers and not request.is_http10:
            if headers["expect"].lower() != "100-continue":
                raise HttpError(problem(417, "the only expectation is 100-continue"))
            self.expects = True
        #: The response up to its length, where the connection stays open.
        self.prefix = _PREFIX if not more and not request.is_http10 else _prefix(request, more)


def _prefix(request: Request, more: list[tuple[str, str]]) -> bytes:
    head = Response(200, type=JSON).head(0, keep_alive=True, is_http10=request.is_http10, more=more)
    return head.replace(b"Content-Length: 0\r\n", b"").removesuffix(b"\r\n") + b"Content-Length: "


_PREFIX = _prefix(Request("POST", "/"), [])


def _check_type(headers: dict[str, str]) -> None:
    """Is it said to be JSON? Other sites' pages may have a browser send anything that is not, without asking."""
    value = headers.get("content-type")
    if value != "application/json":
        if value is None:
            # A program that says nothing may mean JSON; a page of another site can have nothing said, too.
            if "origin" in headers or "sec-fetch-site" in headers:
                raise HttpError(problem(415, "the header Content-Type is missing: application/json"))
        elif value.partition(";")[0].strip(" \t").lower() not in CONTENT_TYPES:
            raise HttpError(problem(415, "the Content-Type of a call is application/json"))
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(problem(415, "a Content-Encoding is not understood here: send the body as it is"))


class GoingOn:
    """The notifications of a connection that were answered and are still worked on: no more than calls may be."""

    __slots__ = ("_max_calls", "_max_held", "_sessions")

    def __init__(self, limits: Limits) -> None:
        self._max_calls = limits.max_calls
        self._max_held = limits.max_held_size
        self._sessions: list[Session] = []

    def take(self, session: Session) -> bool:
        """May those of this session go on by themselves?"""
        self._sessions = [each for each in self._sessions if each.running.handlers]
        if sum(each.running.load for each in self._sessions) + session.running.load > self._max_calls:
            return False
        if sum(each.running.held for each in self._sessions) + session.running.held > self._max_held:
            return False
        self._sessions.append(session)
        return True

    def clear(self) -> None:
        """The connection ends; they go on."""
        self._sessions.clear()


class HttpExchange:
    """One POST and its response: the channel of one session.

    A session that nothing is left in, and that no handler has seen, may have the next POST of its connection as well:
    making one takes longer than a small call.
    """

    __slots__ = (
        "_begun",
        "_connection",
        "_is_simple",
        "_kind",
        "_plan",
        "_replies",
        "address",
        "reason",
        "session",
    )

    def __init__(self, connection: HttpConnection, session: Session) -> None:
        self.session = session
        self.address = connection.address
        self.reason: str | None = None
        #: None while nothing is to be answered.
        self._connection: HttpConnection | None = None
        self._plan: Plan
        self._kind = JSON
        self._replies: list[Encoded] = []
        self._begun = False
        #: The session has not been told that the peer says nothing more.
        self._is_simple = True
        session.connected(self, is_lasting=False)

    @property
    def credentials(self) -> Credentials:
        """What the connection tells of the peer."""
        return self._connection.credentials if self._connection is not None else Credentials()

    def begin(self, connection: HttpConnection, plan: Plan, body: bytes) -> None:
        """Carry out what the body says. The response may be over when this returns."""
        session = self.session
        self._connection = connection
        self._plan = plan
        self._kind = plan.kind
        session.set_request(plan.request.identity, plan.request.headers, streaming=plan.kind != JSON)
        if connection.trace is not None:
            trace_all(connection.trace, "receive", (body,))
        session.receive([body])
        if self._connection is None:
            return
        if not session.busy:
            self.close()
            return
        self._is_simple = False
        if self._is_heard():
            self.close()
            return
        session.end(self._lost)
        if self._kind != JSON and not self._begun and self._connection is not None:
            self._write_stream(())  # the head: the first message may be long in coming

    def _is_heard(self) -> bool:
        """Does nothing run but notifications, of which nobody wants to know how they end?

        They count against `max_calls` all the same: when so many run, the response waits.
        """
        session, running = self.session, self.session.running
        if session.queue or running.forwarded or running.batch is not None:
            return False
        if not all(_is_silent(message) and session.goes_on(message) for message in running.handlers.values()):
            return False
        return self._connection is not None and self._connection.going_on.take(session)

    def lost(self) -> None:
        """The client is gone, or the connection is about to end: what runs is cancelled."""
        self._connection = None
        if self.session.channel is not None:
            self.session.lost(self._lost)

    def _lost(self, method: str) -> ConnectionLost:
        return ConnectionLost(self.reason or "the response was over", method=method, address=self.address)

    # -- what the session says (Channel) ----------------------------------------------------------------------

    def send(self, messages: list[Encoded]) -> None:
        connection = self._connection
        if connection is None:
            return
        if self._kind == JSON:
            messages = [each for each in messages if not parts_of(each)[0].startswith(_WORD)]
        if connection.trace is not None:
            trace_all(connection.trace, "send", messages)
        if self._kind == JSON:
            # One at most: the body was one message, and a batch is answered with one.
            self._replies += messages
        else:
            self._write_stream(messages)

    def pause(self) -> None:
        """Nothing more is read as long as this goes on, anyway."""

    def resume(self) -> None:
        pass

    def close(self) -> None:
        connection = self._connection
        if connection is None:
            return
        plan = self._plan
        keeps = plan.request.keep_alive and not connection.is_draining
        if self._begun:
            if not plan.request.is_http10:
                connection.write((b"0\r\n\r\n",))
            keeps = keeps and not plan.request.is_http10
        else:
            self._write_reply(connection, keeps)
        self._connection = None
        if keeps and self._is_simple and self.session.is_unused:
            self._begun = False
            self._replies.clear()
            connection.exchange_over(keeps, spare=self)
        else:
            self.lost()
            connection.exchange_over(keeps)

    def abort(self, reason: str) -> None:
        connection = self._connection
        if connection is None:
            return
        self.reason = reason
        if self._begun:
            connection.abort(reason)
        else:
            self.lost()
            connection.fail(problem(500, reason))

    def probe(self) -> None:
        """A client that is gone has said so: by HTTP, nobody closes one half."""

    # -- the response -----------------------------------------------------------------------------------------

    def _write_reply(self, connection: HttpConnection, keeps: bool) -> None:
        reply = self._replies[0] if self._replies else b""
        plan = self._plan
        if keeps and type(reply) is bytes and reply:
            connection.write((b"%b%d\r\n%b\r\n" % (plan.prefix, len(reply), date_line()), reply))
        else:
            response = Response(200, reply, JSON if reply else None)
            connection.write(parts_of_response(response, plan.request, keeps, plan.more))

    def _write_stream(self, messages: Iterable[Encoded]) -> None:
        connection = self._connection
        assert connection is not None
        plan = self._plan
        is_http10 = plan.request.is_http10
        parts: list[bytes] = []
        if not self._begun:
            self._begun = True
            keeps = plan.request.keep_alive and not connection.is_draining and not is_http10
            response = Response(200, type=self._kind, headers=[("Cache-Control", "no-store")])
            parts.append(with_date(response.head(None, keeps, is_http10=is_http10, more=plan.more)))
        before, behind = _WRAPPING[self._kind]
        for message in messages:
            if is_http10:
                parts += (before, *parts_of(message), behind)
            else:
                size = len(before) + len(message) + len(behind)
                parts += (b"%x\r\n%b" % (size, before), *parts_of(message), behind + b"\r\n")
        connection.write(parts)


def _is_silent(message: Any) -> bool:
    """Will nothing be answered to this message, which is being worked on?"""
    if type(message) is list:
        return all(map(_is_silent, message))
    return type(message) is dict and "id" not in message


# -- responses --------------------------------------------------------------------------------------------------------

_date = (0, b"")


def date_line() -> bytes:
    """The header Date, of this second."""
    global _date
    now = int(time.time())
    if _date[0] != now:
        _date = now, f"Date: {formatdate(now, usegmt=True)}\r\n".encode()
    return _date[1]


def with_date(head: bytes) -> bytes:
    """A head with its date."""
    return b"%b%b\r\n" % (head[:-2], date_line())


def parts_of_response(
    response: Response, request: Request, keeps: bool, more: list[tuple[str, str]] | None = None
) -> list[bytes]:
    """What is to be written: the head, and the body if that was asked for."""
    if keeps and not more and len(response.body) <= JOIN_MAX and request.method != "HEAD" and not request.is_http10:
        return [response.whole(date_line())]
    head = with_date(response.head(len(response.body), keeps, is_http10=request.is_http10, more=more))
    if request.method == "HEAD" or not response.body:
        return [head]
    return [head, *parts_of(response.body)]
