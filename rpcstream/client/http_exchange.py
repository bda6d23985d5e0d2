"""One POST of a client and its response: gives the replies, items and progress in it to the calls of the POST."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import orjson

from ..codec.payloads import OverLimit
from ..errors import BY_STATUS, ConnectFailed, ConnectionLost, InternalError, RpcError, Unread
from ..peer import control_messages
from ..peer.frame_admission import FrameAdmission
from ..peer.incoming import content_of, use_binary
from ..peer.session import Session
from ..text import get_logger
from ..wire import envelope
from ..wire.binary_frame import BinaryFrameReader, FrameError
from ..wire.buffers import ReceiveBuffer
from ..wire.envelope import LONG, BinaryFrame, Message, Oversize
from ..wire.framing import LineFramer
from ..wire.http_messages import FRAME, NDJSON, names_frames, readable_text
from .faults import refusal_advice
from .http_connection import BrokenError, HttpConnection
from .options import Settings

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
        call_ids: of the calls in the POST; none for a notification.
        window: items of a stream that its reader has room for; None where none is asked for.

    Attributes:
        parts, size: the bytes of the POST, and how many its body has.
        unsent: the same number until it is sent; then 0.
        task: sends the POST and handles the response.
        cancelled: calls whose reply is not wanted any more.
    """

    task: asyncio.Task[None] | None = None
    parts: Sequence[Any] = ()
    size = unsent = 0
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self, session: Session, settings: Settings, method: str, call_ids: Sequence[int | str], window: int | None
    ) -> None:
        self.call_ids = call_ids
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
            if not self.call_ids and seconds is not None:
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
        address = str(self._settings.address)
        if not self.call_ids:
            error = make_error(reason, method=self._method, address=address)
            log.warning("a notification was not delivered: %s", error)
        for call_id in list(self._waiting()):
            call = self._session.pending.find(call_id)
            if call is not None:
                self._session.pending.discard(call_id)
                call.fail(make_error(reason, method=call.method, address=address))

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
        if self.call_ids:
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
