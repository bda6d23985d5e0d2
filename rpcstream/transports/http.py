"""HTTP/1.1 on one connection of our own port: requests one after the other, each answered before the next is read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from email.utils import formatdate
from time import perf_counter
from typing import cast

from ..peer.credentials import Credentials
from ..peer.slices import TURN
from ..wire.binary_frame import parts_of_frame
from ..wire.buffers import AttachedMessage, parts_of
from ..wire.http_messages import FRAME, HttpError, Request, Response, problem, readable_text
from ..wire.http_parser import HEAD_MAX, RequestReader, parse_head
from ..wire.upgrade import accept_upgrade
from .connection import JOIN_MAX, SocketConnection
from .http_call import STOPS, HttpServing
from .http_router import CallHead, ConnectionContext, Head, HttpRouter, RequestBody
from .websocket import WebSocketStream

#: Number and size (bytes) of the heads that are kept: the head of the next request is most often one of them.
_KEPT_HEADS, _KEPT_HEAD_MAX = 8, 1024

#: Seconds for which received bytes are still read and dropped, so that the last response arrives before the end.
LINGER = 2.0

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection(HttpServing, SocketConnection):
    """An asyncio protocol; a `Connection` of the listener."""

    def __init__(self, context: ConnectionContext, router: HttpRouter) -> None:
        super().__init__(context, router)
        self._reader = RequestReader()
        #: What the last heads asked for.
        self._kept_heads: dict[bytes, Head] = {}
        #: The connection goes on after the present response; its body comes in chunks.
        self._keeps = self._is_chunked = False
        self._advancing = False
        #: What has come is handled in the next turn, since other connections want theirs.
        self._turn: asyncio.Handle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._own_credentials: Credentials | None = None
        #: The address of the trusted proxy at the other end; "": it is none.
        self._proxy = ""

    @property
    def credentials(self) -> Credentials:
        """What the connection tells of the peer; needed for each request, and looked up once."""
        if self._own_credentials is None:
            self._own_credentials = super().credentials
        return self._own_credentials

    def _set_client(self, request: Request) -> None:
        """Take the address of the client that has sent this request to the proxy."""
        address = self._context.proxies.client_of(request.headers, self._proxy)
        if address != self.address:
            self.address = address
            self._own_credentials = None
            if self._spare is not None:  # its session has the address of the client before
                self._spare.lost()
                self._spare = None

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered, or waits for its turn."""
        return self._turn is not None or super().is_busy

    @property
    def is_partial(self) -> bool:
        """Whether part of a request has come, and the rest is awaited."""
        return self._reader.is_partial and not (self.is_busy or self._closing)

    # -- callbacks of asyncio ---------------------------------------------------------------------------------

    def _opened(self) -> None:
        if self._context.proxies.trusts(self.address):
            self._proxy = self.address

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
        if not is_full:
            self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._closing = True
        for timer in (self._turn, self._lingering):
            if timer is not None:
                timer.cancel()
        self._give_up()
        self._context.connections.closed(self)

    def _give_up(self) -> None:
        self._reader.clear()
        self._kept_heads.clear()
        self.answered.clear()
        super()._give_up()

    # -- one request after the other --------------------------------------------------------------------------

    def _advance(self) -> None:
        """Handle the requests received, until one has to be awaited."""
        if self._advancing:
            return
        self._advancing = True
        reader = self._reader
        end = 0.0
        try:
            while reader and not (self._closing or self.is_full or self.is_busy):
                if not (self._read_body() if reader.in_body else self._read_head()) or not reader:
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
        if self.is_paused or reader:
            self._read_more(not (len(reader) > HEAD_MAX and (self.is_full or self.is_busy)))

    def _next_turn(self) -> None:
        self._turn = None
        self._advance()

    def _read_more(self, reads: bool) -> None:
        """Read on, or stop reading."""
        if self.is_paused is not reads or self._transport is None or self._transport.is_closing():
            return
        if reads:
            self.resume()
        else:
            self.pause()

    def _read_head(self) -> bool:
        """Begin the next request; returns False while its head is not complete."""
        data = self._reader.head()
        if data is None:
            return False
        head = self._kept_heads.get(data) or self._route(data)
        if self._proxy:
            self._set_client(head.request)
        self._take(head)
        return True

    def _route(self, data: bytes) -> Head:
        """What a head asks for that is not among those kept. Raises HttpError if the connection cannot go on."""
        head = self._router.route(parse_head(data), self._limits.max_message_size)
        if len(data) <= _KEPT_HEAD_MAX and not head.is_upgrade and head.response is None:
            if len(self._kept_heads) >= _KEPT_HEADS:
                self._kept_heads.clear()
            self._kept_heads[data] = head
        return head

    def _take_body(self) -> None:
        head, reader = cast(CallHead, self._head), self._reader
        length = head.length
        if length is not None and not (head.is_frame and length) and (whole := reader.whole(length)) is not None:
            self._begin_call(whole)
            return
        if head.expects_continue and not reader:
            self._put((_CONTINUE,))
        self._begin_body()
        reader.begin_body(length)

    def _read_body(self) -> bool:
        """Take what was received of a body; returns False while it is not complete."""
        before = perf_counter()
        reader, body = self._reader, cast(RequestBody, self._body)
        body.append(reader.part(), reader.left)
        if not reader.in_body:
            self._end_body()
        if perf_counter() - before > TURN / 2:
            # Tiny chunks, or a slow call. A loop may read one connection many times in a row before others.
            self._turn = self._loop.call_soon(self._next_turn)
        return self._body is None

    def check(self, now: float) -> str | None:
        """As `Connection.check`, also whether a request was authenticated in `auth_timeout`."""
        timeout = self._limits.auth_timeout
        is_known = self._is_known or self._context.authenticator is None
        if not (is_known or self.is_draining or self._closing or timeout is None) and now >= self.opened + timeout:
            self._too_late(f"not authenticated after {timeout:g} s (auth_timeout)")
        return super().check(now)

    def _too_late(self, reason: str) -> None:
        """Answer what is being worked on, and close."""
        self.over_limit, self.reason, self.is_draining = True, reason, True
        if self._is_identifying:
            self.fail(problem(401, reason, [("WWW-Authenticate", "Bearer")]))
        elif self._task is None:
            if self._reader.is_partial:
                self.fail(problem(408, reason))
            else:
                self._end(lingers=False)

    def _switch(self) -> None:
        transport, request = self._transport, self._head.request
        response = accept_upgrade(request)
        if response.status == 101 and self.is_draining:
            response = STOPS
        if response.status != 101 or transport is None:
            self.answer(response)
            return
        successor = self._context.make(WebSocketStream, request, client=False)
        rest = self._reader.rest()
        transport.write(response.head(0, keep_alive=True))
        self._read_more(True)
        self._give_up()
        self._transport, self._closing = None, True
        successor.opened, successor.address = self.opened, self.address
        transport.set_protocol(cast(asyncio.BaseProtocol, successor))
        self._context.connections.replaced(self, successor)
        successor.connection_made(transport)
        if rest:
            successor.data_received(rest)

    # -- responses --------------------------------------------------------------------------------------------

    def reply(self, reply: bytes) -> None:
        """As `HttpServing.reply`."""
        head = cast(CallHead, self._head)
        if not self._may_keep():
            super().reply(reply)
        elif len(reply) <= JOIN_MAX:
            self._put((b"%b%d\r\n%b\r\n%b" % (head.prefix, len(reply), date_line(), reply),))
        else:
            self._put((b"%b%d\r\n%b\r\n" % (head.prefix, len(reply), date_line()), reply))

    def respond(self, response: Response) -> None:
        """As `HttpServing.respond`."""
        self._put(response_parts(response, self._head.request, self._may_keep(), self._head.more))

    def start(self, response: Response, parts: Sequence[bytes]) -> None:
        """As `HttpServing.start`."""
        is_http10 = self._head.request.is_http10
        self._is_chunked = not is_http10
        keeps = self._keeps = self._may_keep() and not is_http10
        head = dated(response.head(None, keeps, is_http10=is_http10, more=self._head.more))
        self._put((head, *self._chunk(parts)))

    def write(self, parts: Sequence[bytes]) -> None:
        """As `HttpServing.write`."""
        self._put(self._chunk(parts))

    def _chunk(self, parts: Sequence[bytes]) -> Sequence[bytes]:
        """These parts of a body, as one chunk where it comes in chunks."""
        if not parts or not self._is_chunked:
            return parts
        return (b"%x\r\n" % sum(map(len, parts)), *parts, b"\r\n")

    def write_frame(self, message: AttachedMessage) -> None:
        """As `HttpServing.write_frame`."""
        if self._transport is None or self._closing:
            return
        first, *payloads = parts_of_frame(message)
        size = len(first) + sum(map(len, payloads))
        request, keeps = self._head.request, self._may_keep()
        head = Response(200, type=FRAME).head(size, keeps, is_http10=request.is_http10, more=self._head.more)
        self._timeouts.heard = True
        self._widen()
        self._write_attached([dated(head) + first, *payloads], message)
        if self.is_full:
            self._check_unread()

    def finish(self, *, is_reusable: bool) -> None:
        """As `HttpServing.finish`."""
        super().finish(is_reusable=is_reusable)
        if self._is_chunked:
            self._is_chunked = False
            self._put((b"0\r\n\r\n",))
        self._answered(lingers=self._reader.is_partial)

    def answer(self, response: Response) -> None:
        """Answer a request whose body is not read."""
        self._timeouts.completed = True
        head = self._head
        request, length = head.request, head.length
        is_handshake = "upgrade" in request.headers and (head.is_upgrade or head.response is not None)
        if is_handshake and response.status >= 400 and response.status != 401:
            text = readable_text(bytes(response.body))
            said = f"its WebSocket handshake got {response.status}: {text}"
            self._context.connections.handshake_refused(self, said)
        is_unread = length is None or (length > 0 and self._reader.whole(length) is None)
        if is_unread:  # the next request could not be found
            request.keep_alive = False
        super().answer(response)
        self._answered(lingers=is_unread or self._reader.is_partial)

    def fail(self, response: Response) -> None:
        """Write a response after which nothing more can be read, and close."""
        more = self._head.more if self._body is not None else []
        self._put(response_parts(response, Request("", ""), keeps=False, more=more))
        self._end(lingers=True)

    def _may_keep(self) -> bool:
        """Whether the connection goes on after the present response, which says so."""
        self._keeps = self._head.request.keep_alive and not self.is_draining
        return self._keeps

    def _answered(self, lingers: bool) -> None:
        if not self._keeps or self.is_draining:
            self._end(lingers)
        elif not self._advancing:
            self._advance()

    def _put(self, parts: Sequence[bytes]) -> None:
        """Write these bytes in order: long ones without a copy, short ones joined."""
        transport = self._transport
        if transport is None or self._closing:
            return
        self._timeouts.heard = True
        if len(parts) == 1:
            transport.write(parts[0])
        else:
            self._write_parts(parts)
        if self.is_full:
            self._check_unread()

    # -- the end ----------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Answer what runs, then close.

        Where a request may be on its way on a connection that was used before, it is answered with 408 (RFC 9110,
        15.5.9: a client may repeat it).
        """
        super().drain()
        if self.is_busy or self._reader.is_partial or self._transport is None:
            return
        if self._kept_heads:
            self._put(response_parts(problem(408, "the server is stopping"), Request("", ""), keeps=False))
        self._end(lingers=False)

    def _end(self, lingers: bool) -> None:
        """Close, once what was written has arrived.

        Args:
            lingers: the client may still be sending. Closing a socket with unread bytes in it makes the system drop
                what was not yet delivered, so what comes is read for a while, and dropped.
        """
        transport = self._transport
        if transport is None or self._closing:
            return
        self._read_more(True)
        self._closing = True
        self._give_up()
        if lingers:
            if transport.can_write_eof():
                transport.write_eof()
            self._lingering = self._loop.call_later(LINGER, transport.close)
        else:
            transport.close()


# -- responses ------------------------------------------------------------------------------------------------------

_date = (0, b"")


def date_line() -> bytes:
    """The line of the header Date, with its line end; the same object within a second."""
    global _date
    now = int(time.time())
    if _date[0] != now:
        _date = now, f"Date: {formatdate(now, usegmt=True)}\r\n".encode()
    return _date[1]


def dated(head: bytes) -> bytes:
    """The head of a response with the header Date added."""
    return b"%b%b\r\n" % (head[:-2], date_line())


def response_parts(
    response: Response, request: Request, keeps: bool, more: Sequence[tuple[str, str]] = ()
) -> list[bytes]:
    """The bytes of a response in order: its head, and its body unless the request was HEAD.

    Args:
        response: what is answered.
        request: the method and version of this one matter.
        keeps: the connection stays open.
        more: headers besides those of the response.
    """
    if keeps and not more and len(response.body) <= JOIN_MAX and request.method != "HEAD" and not request.is_http10:
        return [response.whole(date_line())]
    head = dated(response.head(len(response.body), keeps, is_http10=request.is_http10, more=more))
    if request.method == "HEAD" or not response.body:
        return [head]
    return [head, *parts_of(response.body)]
