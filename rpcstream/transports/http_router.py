"""Where an HTTP request goes: to a call, a page, a WebSocket, or a refusal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import orjson

from ..auth.authenticator import Authenticator
from ..errors import ParseError
from ..limits import Limits
from ..observe.counters import Counters
from ..peer.credentials import Credentials
from ..peer.frame_admission import FrameAdmission
from ..peer.ledger import Reception, ServerLedger
from ..peer.session import Session
from ..wire.binary_frame import HEADER_MAX, BinaryFrameReader, FrameError
from ..wire.buffers import ReceiveBuffer
from ..wire.envelope import Message, error_reply
from ..wire.http_messages import (
    FRAME,
    JSON,
    READS_FRAMES,
    HttpError,
    Request,
    Response,
    names_frames,
    preferred_type,
    problem,
    tokens,
    too_long,
)
from ..wire.http_parser import body_length
from .access import AccessRules, TrustedProxies
from .connection import SocketConnection
from .message_connection import MessageConnection, Trace
from .open_connections import OpenConnections

log = logging.getLogger("rpcstream.server")

C = TypeVar("C", bound=MessageConnection)

#: Content types of calls. A browser sends none of these to another site unless that permits it.
CONTENT_TYPES = frozenset(("application/json", "application/json-rpc", "application/jsonrequest"))


class Routes(Protocol):
    """The pages: `web.Routes`."""

    def find(self, request: Request) -> Any:
        """A response; or an object whose `respond()` gives one, now or awaited; or None."""

    def has(self, path: str) -> bool:
        """Whether there is a page at this path."""

    def is_public(self, request: Request) -> bool:
        """Whether the page is for callers that are not authenticated, too."""

    def is_for_monitors(self, request: Request, *, names_address: bool) -> bool:
        """Whether the page is shown although another host is named: it says that the server runs, or has its metrics.

        Args:
            names_address: the host that is named is an address.
        """


class Endpoint(Protocol):
    """A protocol other than calls, at a path of its own: each POST there is one call."""

    def make_call(self, identity: Any, connection: Any) -> Any:
        """Make the `HttpCall` of one POST of this caller on an `HttpServing`, with a session of its own."""


@dataclass(slots=True, eq=False, repr=False)
class Head:
    """What the head of a request asks for.

    Attributes:
        request: its head.
        length: bytes of its body; None: it comes in chunks; -1: it has none.
        more: headers of the response, for pages of other sites.
        response: the response, where it is known already; None: it is a call, or the routes are asked.
        is_upgrade: the client asks for a WebSocket.
    """

    request: Request
    length: int | None = 0
    more: list[tuple[str, str]] = field(default_factory=list)
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


@dataclass(kw_only=True, eq=False, repr=False)
class ConnectionContext:
    """What the connections of one server have in common.

    Attributes:
        limits: of each connection.
        counters: of the server.
        ledger: counts what the messages of all connections take.
        connections: those that are open.
        authenticator: finds out who the peers are; None: that is not asked.
        trace: sees every message.
        proxies: whose word is taken for the address of a client.
        patience: seconds that a connection has to show what it speaks; None: no limit.
    """

    limits: Limits
    counters: Counters
    ledger: ServerLedger
    connections: OpenConnections = field(init=False)
    authenticator: Authenticator | None = None
    trace: Trace | None = None
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    patience: float | None = None

    def new_session(self) -> Session:
        """Make the session of a connection, or of a call."""
        raise NotImplementedError

    def make_line(self) -> SocketConnection:
        """Make the protocol of a line stream, and its session."""
        raise NotImplementedError

    def make(self, kind: Callable[..., C], request: Request | None = None, **options: Any) -> C:
        """Make a connection that carries one conversation, and its session.

        Args:
            kind: called with the session and `ConnectionOptions`.
            request: with which a WebSocket was asked for; it has the identity of the client.
            options: further ones.
        """
        raise NotImplementedError


class HttpRouter:
    """Decides what answers a request.

    Args:
        access: which requests are permitted.
        routes: the pages; None: none.
        paths: where calls are taken, by POST and by WebSockets; decoded, and without the query. None: POST to "/", and
            WebSockets at any path.
        endpoints: what takes POST at other paths, by path.
        reads_frames: bodies may be binary frames.
        notification_status: of the response to notifications.
    """

    def __init__(
        self,
        access: AccessRules,
        routes: Routes | None = None,
        paths: tuple[str, ...] | None = None,
        *,
        endpoints: Mapping[str, Endpoint] = MappingProxyType({}),
        reads_frames: bool = True,
        notification_status: int = 200,
    ) -> None:
        self._notification_status = notification_status
        self._endpoints = endpoints
        self._reads_frames = reads_frames
        self._access = access
        self._routes = routes
        self._paths = paths or ("/",)
        self._any_websocket = paths is None

    def route(self, request: Request, max_size: int, *, needs_length: bool = True) -> Head:
        """What a request asks for, by its head.

        Args:
            max_size: bytes of a message.
            needs_length: a call says how long its body is, or that it comes in chunks, as in HTTP/1.1; False: it need
                not, since something else tells where it ends.

        Raises:
            HttpError: the body is too long: the connection cannot go on after the response.
        """
        refusal = self._refusal(request)
        try:
            length = body_length(request, max_size, HEADER_MAX if is_frame(request.headers) else 0)
        except HttpError as error:
            if refusal is not None:
                raise HttpError(refusal) from None
            error.response.headers += self._access.cors(request)
            raise
        if length == -1 and not needs_length:
            length = None
        upgrade = request.headers.get("upgrade")
        if upgrade is not None:
            # A proxy might take what follows for the other protocol.
            request.keep_alive = False
        if refusal is not None:
            return Head(request, length, [], refusal)
        if upgrade is not None and "websocket" in tokens(upgrade):
            if self._any_websocket or request.path in self._paths:
                return Head(request, length, [], is_upgrade=True)
            return Head(request, length, self._access.cors(request), self._not_found(request))
        more = self._access.cors(request)
        endpoint = self._endpoints.get(request.path)
        if endpoint is not None and request.method != "POST":
            return Head(request, length, more, problem(405, "a message comes with POST", [("Allow", "POST")]))
        if endpoint is None and not (request.method == "POST" and request.path in self._paths):
            return Head(request, length, more)
        try:
            return CallHead(
                request,
                length,
                more,
                reads_frames=self._reads_frames and endpoint is None,
                notification_status=self._notification_status,
                endpoint=endpoint,
            )
        except HttpError as error:
            return Head(request, length, more, error.response)

    def forgive_slash(self, request: Request) -> None:
        """Take the slash off the end of a path at which nothing is: some frameworks add one to what they pass on."""
        path = request.path
        if path[-1:] != "/" or path == "/" or path in self._paths or path in self._endpoints:
            return
        if self._routes is None or not self._routes.has(path):
            request.path = path[:-1]

    def is_public(self, request: Request) -> bool:
        """Whether a page is for callers that are not authenticated, too."""
        return self._routes is None or self._routes.is_public(request)

    def page(self, request: Request) -> Any:
        """The response to a request for a page, or an awaitable of it (see `response_of`)."""
        try:
            found = self._routes.find(request) if self._routes is not None else None
            if request.path in self._paths and (found is None or request.method not in ("GET", "HEAD")):
                allowed = "POST" if found is None else "GET, HEAD, POST"
                return problem(405, "a call comes with POST", [("Allow", allowed)])
            if found is None:
                return self._not_found(request)
            return found
        except HttpError as error:
            return error.response
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return problem(500, "internal error")

    def _refusal(self, request: Request) -> Response | None:
        """The response to a request that is not permitted, or that asks what is permitted."""
        refusal = self._access.check(request)
        if refusal is not None and self._routes is not None:
            names_address = self._access.names_address(request)
            if self._routes.is_for_monitors(request, names_address=names_address):
                refusal = self._access.check_origin(request)  # load balancers and Prometheus ask by address
        return self._access.preflight(request) if refusal is None else refusal

    def _not_found(self, request: Request) -> Response:
        paths = " or ".join(request.root + path for path in self._paths)
        explorer = "; Server(docs=True) has the explorer here" if request.path == "/docs" else ""
        return problem(404, f"there is nothing here; calls go to {paths}{explorer}")


def request_credentials(request: Request, connection: Credentials) -> Credentials:
    """The credentials of a connection, with the token of a request if it has one."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip(" ")
    if kind.lower() != "bearer" or not token:
        return connection
    return Credentials(
        token=token,
        names=connection.names,
        pid=connection.pid,
        uid=connection.uid,
        gid=connection.gid,
        address=connection.address,
    )


def not_authenticated(*, has_shown: bool) -> Response:
    """The response to a request without accepted credentials; `has_shown`: it has shown some."""
    reason = "the token is not accepted" if has_shown else "send the header Authorization: Bearer TOKEN"
    return problem(401, f"not authenticated: {reason}", [("WWW-Authenticate", "Bearer")])


async def response_of(work: Any) -> Any:
    """Await the response to a request; one with status 500 if that fails."""
    try:
        return await work
    except HttpError as error:
        return error.response
    except Exception:
        log.exception("a request failed")
        return problem(500, "internal error")


class RequestBody:
    """The body of a call while it comes: it is kept, or received as the binary frame that it is.

    Args:
        reception: counts what is kept.
        admission: decides about the frame; None: it is no frame.

    Raises, by `append` and `end`:
        HttpError: it is too long, there is no memory for it, or it is no frame.
    """

    def __init__(self, limits: Limits, reception: Reception, admission: FrameAdmission | None) -> None:
        self._max_size = limits.max_message_size
        self._size = 0 if admission is None else -HEADER_MAX
        self._content = ReceiveBuffer()
        self._reception = reception
        self._admission = admission
        self._frame = None if admission is None else BinaryFrameReader(admission, self._max_size)

    def append(self, part: bytes, left: int = 0) -> None:
        """Take the bytes that came next; `left`: how many more were announced."""
        self._size += len(part)
        if self._size + left > self._max_size:
            raise HttpError(too_long(self._max_size))
        if self._frame is not None:
            try:
                self._frame.append(part)
            except FrameError as error:
                raise _malformed(error) from None
        elif self._reception.grow(self._size):
            self._content.append(part)
        else:
            text = "the server has no memory for so many long messages at once (max_held_total)"
            raise HttpError(problem(503, text, [("Retry-After", "1")]))

    def end(self) -> Message:
        """Give the whole body: all of it has come."""
        self._reception.over()
        if self._frame is None:
            return self._content.take()
        try:
            return self._frame.end()
        except FrameError as error:
            raise _malformed(error) from None

    def give_up(self) -> None:
        """Drop what has come: the rest will not."""
        self._reception.over()
        if self._admission is not None:
            self._admission.give_up()


def _malformed(error: FrameError) -> HttpError:
    """For a body that is to be a binary frame, and is none."""
    return HttpError(Response(200, orjson.dumps(error_reply(None, ParseError(data={"reason": str(error)}))), JSON))
