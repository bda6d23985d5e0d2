"""One HTTP connection of a client, and one POST on it: what its response holds goes to the calls of the POST."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, cast

import httptools
import orjson

from ..codec.payloads import OverLimit
from ..errors import BY_STATUS, ConnectFailed, ConnectionLost, InternalError, RpcError, Unread
from ..local_peer import Wait, waiter, widen_buffers
from ..peer import control_messages
from ..peer.frame_admission import FrameAdmission
from ..peer.incoming import content_of, use_binary
from ..peer.session import Session
from ..text import get_logger
from ..transports.connection import why_lost
from ..wire import envelope
from ..wire.binary_frame import BinaryFrameReader, FrameError
from ..wire.buffers import ReceiveBuffer
from ..wire.envelope import LONG, BinaryFrame, Message, Oversize
from ..wire.framing import LineFramer
from ..wire.http_messages import FRAME, NDJSON, names_frames, readable_text
from .address import Address
from .faults import TLS_ALERT, refusal_advice, silence
from .options import Settings

#: Bytes of the head of a response, trailers included.
HEAD_MAX = 64 * 1024

#: Bytes of a response, besides `HEAD_MAX`, for each byte of its body: chunks of one byte take six.
OVERHEAD = 8

#: Bytes of a body that are kept for its reader; with more, the connection is not read.
HELD_MAX = 64 * 1024


class BrokenError(Exception):
    """The response cannot be read to its end; the text says why."""


class HttpConnection(asyncio.Protocol):
    """One connection to the server. Its methods `on_...` are called by httptools.

    Args:
        server: the address, for errors.
        on_lost: called when the connection is gone.

    Attributes:
        status, reason, headers: of the response, once `send` has returned. Names of headers are in lower case.
        requests: how many were sent on this connection.
    """

    def __init__(self, server: Address, on_lost: Callable[[HttpConnection], object]) -> None:
        self._server = server
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._wait_readable: Wait | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_wide = self._is_paused = False
        self._is_complete = True
        self.requests = 0
        self._fault: str | None = None
        self._begin()

    def _begin(self) -> None:
        """Expect a response."""
        self.status, self.reason, self.headers = 0, "", dict[bytes, bytes]()
        self._pieces: list[bytes] = []
        self._held = self._size = self._received = 0
        self._has_head = self._keeps = self._ends_with_connection = False

    @property
    def is_free(self) -> bool:
        """Whether a request can be sent: nothing has come since the last one, not even the end of the connection."""
        transport = self._transport
        if not self._is_complete or transport is None or transport.is_closing():
            return False
        # On a new connection with TLS session tickets may be there to read.
        is_new = not self.requests and transport.get_extra_info("ssl_object") is not None
        return is_new or self._wait_readable is None or not self._wait_readable(0)

    async def send(self, parts: Sequence[Any], size: int) -> None:
        """Send a request, with a body of `size` bytes, and wait for the head of the response. Raises BrokenError."""
        self._begin()
        self.requests += 1
        self._is_complete = False
        transport, is_long = self._transport, size >= HEAD_MAX
        if transport is not None:
            sock = transport.get_extra_info("socket") if is_long and not self._is_wide else None
            if sock is not None:
                self._is_wide = True
                widen_buffers(sock)
            for part in parts if is_long else [b"".join(parts)]:
                transport.write(part)
        while not self._has_head:
            await self._more()

    async def read(self) -> bytes:
        """The next bytes of the body; none at its end. Raises BrokenError where the response breaks off."""
        while not self._pieces:
            if self._is_complete:
                return b""
            await self._more()
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._held = [], 0
        return data

    async def _more(self) -> None:
        """Wait until more has come."""
        if self._fault is not None:
            raise BrokenError(self._fault)
        if self._is_paused:
            self._read_or_not(paused=False)
        self._waiter = self._loop.create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def release(self) -> bool:
        """Whether another request can be sent after this one; if not, the connection is closed."""
        transport = self._transport
        if transport is None:
            return False
        if not self._is_complete or self._fault is not None or transport.get_write_buffer_size():
            transport.abort()
        elif not self._keeps:
            transport.close()
        elif self._is_paused:
            self._read_or_not(paused=False)
        return not transport.is_closing()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close the connection at once; a response that is being received breaks off, for this reason."""
        self._fault = self._fault or reason
        if self._transport is not None:
            self._transport.abort()

    def _read_or_not(self, *, paused: bool) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing() and paused is not self._is_paused:
            self._is_paused = paused
            (transport.pause_reading if paused else transport.resume_reading)()

    def _break(self, fault: str) -> None:
        self._fault = self._fault or fault

    # -- callbacks of asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        self._wait_readable = waiter(sock, read=True) if sock is not None else None

    def data_received(self, data: bytes) -> None:
        if self._is_complete:  # without a request: the next response could not be told from it
            self.abort("the server answered without being asked")
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._break("the server changed to another protocol without being asked")
        except httptools.HttpParserError as error:
            hint = silence(self._server) if data.startswith(TLS_ALERT) else ""
            self._break(f"the server's answer is not HTTP: {error}{hint}")
        if self._received > HEAD_MAX + OVERHEAD * self._size and not self._is_complete:
            self._break(f"the server's answer has more than {HEAD_MAX} bytes besides its body")
        if self._held > HELD_MAX:
            self._read_or_not(paused=True)
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._has_head and self._ends_with_connection and exc is None and self._fault is None:
            self._is_complete = True
        elif not self._is_complete:
            hint = "" if self._received or self.requests > 1 else silence(self._server)
            closed = "the server closed the connection" + (" in the middle of its answer" if self._received else "")
            self._break((why_lost(exc) if exc is not None and str(exc) else closed) + hint)
        self._wake()
        self._on_lost(self)

    # -- callbacks of httptools ---------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._break("the server answered twice")

    def on_status(self, reason: bytes) -> None:
        self.reason += reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else it is a trailer
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200 or self._is_complete:
            return
        self._has_head, self.status = True, status
        is_coded, is_packed = b"transfer-encoding" in self.headers, b"content-encoding" in self.headers
        if is_coded and (coding := self.header(b"transfer-encoding")) != "chunked":
            self._break(f"the server's answer is in a transfer coding that was not asked for: {coding}")
        elif is_packed and (coding := self.header(b"content-encoding")) != "identity":
            self._break(f"the server's answer is compressed without being asked: {coding}")
        self._ends_with_connection = not is_coded and b"content-length" not in self.headers

    def on_body(self, data: bytes) -> None:
        if not self._is_complete and self._fault is None:
            self._size += len(data)
            self._held += len(data)
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        if not self._has_head:  # 1xx: the response is still to come
            self.headers, self.reason = {}, ""
        elif self._fault is None:
            self._is_complete, self._keeps = True, self._parser.should_keep_alive()

    def header(self, name: bytes) -> str:
        """The value of a header of the response, in lower case; "" if there is none."""
        return self.headers.get(name, b"").decode("latin-1").strip().lower()[:80]


log = get_logger("rpcstream.client")

#: The control messages that are about one call; others would be about the connection, which ends with the response.
_OF_CALLS = frozenset((envelope.PROGRESS, envelope.ITEM))

#: Seconds in which a response must end once its calls are answered; after that its connection is closed.
END_TIME = 1.0

#: Makes the error of a call, with its method and the address: ConnectionLost, or another class.
MakeError = Callable[..., Exception]


class Exchange:
    """One POST and its response.

    Args:
        session: has the calls.
        settings: of the client.
        method: for errors.
        call_ids: of the calls in the POST; of a notification, the id under which it waits for a connection.
        window: items of a stream that its reader has room for; None where none is asked for.
        is_notice: no reply is expected.

    Attributes:
        parts, size: the bytes of the POST, and how many its body has.
        unsent: the same number until it is sent; then 0.
        has_place: it has a connection, or makes one.
        task: sends the POST and handles the response.
        cancelled: calls whose reply is not wanted any more.
    """

    task: asyncio.Task[None] | None = None
    parts: Sequence[Any] = ()
    size = unsent = 0
    has_place = False
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        session: Session,
        settings: Settings,
        method: str,
        call_ids: Sequence[int | str] = (),
        window: int | None = None,
        *,
        is_notice: bool,
    ) -> None:
        self.call_ids = call_ids
        self.is_notice = is_notice
        self.cancelled: set[int | str] = set()
        self._session = session
        self._settings = settings
        self._method = method
        #: For each item that the reader has room for.
        self._credit = None if window is None else asyncio.Semaphore(window)
        self._max_size = session.limits.max_message_size

    async def carry(self, connection: HttpConnection) -> None:
        """Send the POST on this connection, and handle the response.

        Raises:
            BrokenError: the response breaks off, or was refused; calls that have no reply are to fail.
        """
        seconds = self._settings.limits.message_timeout
        try:
            if self.is_notice and seconds is not None:
                # It has no deadline: without a response the connection would be taken for ever.
                self._end_after(seconds, connection, "the server did not answer a notification (message_timeout)")
            await connection.send(self.parts, self.size)
            if self._session.takes_binary and names_frames(connection.header(b"accept-post")):
                use_binary(self._session)
            if 200 <= connection.status < 300:
                await self._receive(connection)
            else:
                await self._refused(connection)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _end_after(self, seconds: float, connection: HttpConnection, reason: str) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, connection.abort, reason)

    def fail(self, reason: str, make_error: MakeError = ConnectionLost) -> None:
        """Nothing more will be received: the calls without a reply fail."""
        address, waiting = str(self._settings.address), list(self._waiting())
        if self.is_notice and not waiting:
            error = make_error(reason, method=self._method, address=address)
            log.warning("a notification was not delivered: %s", error)
        for call_id in waiting:
            call = self._session.pending.find(call_id)
            if call is not None:
                self._session.pending.discard(call_id)
                method = self._method if self.unsent else call.method
                call.fail(make_error(reason, method=method, address=address))

    def release(self) -> None:
        """Let a notification return: it has a connection, and its response does not matter."""
        if self.is_notice:
            for call_id in self._waiting():
                self._session.pending.settle({"id": call_id}, b"")

    def permit(self, n: int) -> None:
        """The reader of a stream has room for `n` more items."""
        if self._credit is not None:
            for _ in range(n):
                self._credit.release()

    def is_settled(self) -> bool:
        """Whether it has calls, and none of them waits for a reply."""
        find, cancelled = self._session.pending.find, self.cancelled
        return bool(self.call_ids) and all(each in cancelled or find(each) is None for each in self.call_ids)

    # -- messages -----------------------------------------------------------------------------------------------

    async def _receive(self, connection: HttpConnection) -> None:
        """Handle the messages of a response to their end."""
        kind = connection.header(b"content-type").partition(";")[0].strip()
        if kind == NDJSON:
            await self._receive_lines(connection)
        elif kind == FRAME and self._session.takes_binary:
            await self._handle(await self._read_frame(connection))
        elif body := await self._read_all(connection):
            await self._handle(body)
        if not self.is_notice:
            self.fail("the server's response contains no reply to the call")

    async def _receive_lines(self, connection: HttpConnection) -> None:
        framer = LineFramer(max_size=self._max_size, skips_blank=True)
        while data := await connection.read():
            for message in framer.feed(data):
                await self._handle(message)
            if self._timer is None and self.is_settled():
                self._end_after(END_TIME, connection, "the response does not end")
        for message in framer.finish():
            await self._handle(message)

    async def _read_frame(self, connection: HttpConnection) -> Message:
        admission = FrameAdmission(self._session)
        frame = BinaryFrameReader(admission, self._max_size)
        try:
            while data := await connection.read():
                frame.append(data)
            return frame.end()
        except FrameError as error:
            raise BrokenError(f"the server's answer is no binary frame: {error}") from None
        finally:
            admission.give_up()

    async def _read_all(self, connection: HttpConnection) -> bytes | Oversize:
        body = ReceiveBuffer()
        while data := await connection.read():
            body.append(data)
            if body.size > self._max_size:
                connection.abort("the rest of the response is not wanted")
                return Oversize(body.size, body.take(), self._max_size)
        return body.take().strip()

    async def _handle(self, received: Message) -> None:
        """Handle one message. Raises BrokenError if it ends the exchange."""
        if isinstance(received, Oversize):
            self._refuse(envelope.refusal_of(received, self._max_size, side="client"))
        if self._settings.trace is not None:
            self._settings.trace("receive", bytes(received))
        if isinstance(received, BinaryFrame) and received.refusal is not None:
            self._refuse(InternalError("The reply cannot be read", received.refusal.data))
        try:
            if len(received) >= LONG or isinstance(received, BinaryFrame):
                message, line = content_of(self._session, received)
            else:
                message, line = orjson.loads(received), received
        except OverLimit as error:
            assert isinstance(received, bytes)
            self._refuse(envelope.refusal_of(error.stand_in(received), self._max_size, side="client"))
        except orjson.JSONDecodeError as error:
            raise BrokenError(f"the peer sent something that is not JSON: {error}") from None
        if type(message) is dict and "method" in message:
            await self._handle_notification(message, line)
        else:
            self._handle_replies(message, line)

    def _handle_replies(self, message: Any, line: bytes) -> None:
        """Give replies to the calls of this exchange; all other messages are dropped."""
        is_array, own = type(message) is list, []
        for member in message if is_array else [message]:
            if type(member) is not dict or "method" in member:
                continue
            if member.get("id") is None and "error" in member:
                self._answer_all(member, line)  # an error about the POST, which names no call
            elif self._is_own(member.get("id")):
                own.append(member)
            else:
                self._session.pending.dropped += 1
        if is_array:
            self._session.pending.settle_array(own, line)
        elif own:
            self._session.pending.settle(own[0], line)

    async def _handle_notification(self, message: dict[str, Any], line: bytes) -> None:
        """Handle progress and items, an item once its reader has room for it."""
        params, method = message.get("params"), message.get("method")
        call_id = params.get("id", params.get("token")) if type(params) is dict else None
        if "id" in message or method not in _OF_CALLS or not self._is_own(call_id):
            return
        if self._credit is not None and method == envelope.ITEM:
            await self._credit.acquire()
        control_messages.handle(self._session, message, line)

    def _is_own(self, call_id: Any) -> bool:
        """Whether a call of this exchange has exactly this id (1, 1.0 and True are equal, but not the same id)."""
        return type(call_id) in (int, str) and call_id in self.call_ids

    def _answer_all(self, reply: dict[str, Any], line: bytes) -> None:
        for call_id in self._waiting():
            self._session.pending.settle({**reply, "id": call_id}, line)

    def _waiting(self) -> Iterator[Any]:
        find = self._session.pending.find
        return (call_id for call_id in self.call_ids if find(call_id) is not None)

    # -- errors -------------------------------------------------------------------------------------------------

    def _refuse(self, error: RpcError) -> NoReturn:
        """Answer all calls that wait with this error, and end the exchange."""
        self._answer_all(envelope.error_reply(None, error), b"")
        raise BrokenError(str(error))

    async def _refused(self, connection: HttpConnection) -> None:
        """Handle a response whose status is not 2xx: its body is a reply all the same, or a text for people."""
        received = await self._read_all(connection)
        body = received.head if isinstance(received, Oversize) else received
        try:
            message = orjson.loads(body)
        except orjson.JSONDecodeError:
            message = None
        status = connection.status
        said = f"HTTP {status} {connection.reason}".rstrip()
        if envelope.is_reply(message) or (type(message) is list and message and all(map(envelope.is_reply, message))):
            await self._handle(body)
            self.fail(f"the server answered with HTTP {status} and no reply to the call")
            return
        text = readable_text(body)
        said += f": {text}" if text else ""
        kind = BY_STATUS.get(status)
        if kind is not None:
            self._refuse(kind(said))
        if status >= 500 and status not in (502, 504):
            self._refuse(InternalError(f"The server failed: {said}"))
        advice = refusal_advice(status, text, self._settings.address, has_token=True)
        said += f"; {advice}" if advice else ""
        said += " (redirects are not followed)" if 300 <= status < 400 else ""
        # A proxy that cannot reach the server, or waits no longer, does not know whether the call was carried out.
        make_error: MakeError = ConnectionLost if status in (408, 502, 504) else ConnectFailed
        if status == 408 and connection.requests > 1:
            make_error = Unread  # the server has closed the connection while the request was on its way
        self.fail(f"the server answered with {said}", make_error)
