"""One HTTP request that an ASGI server has parsed: its body comes as events, and so goes its response.

Every request is a connection of its own here: ASGI does not tell which requests come on the same one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, cast

from ..wire.binary_frame import HEADER_MAX, FrameError, parts_of_frame
from ..wire.buffers import AttachedMessage, ReceiveBuffer, parts_of
from ..wire.http_messages import FRAME, JSON, HttpError, Request, Response, problem, too_long
from ..wire.messages import Message
from .asgi_events import EventConnection, Receive, Send
from .connection import JOIN_MAX
from .http_call import HttpServing, malformed
from .http_router import CallHead, HttpContext, PageHead

log = logging.getLogger("rpcstream.server")

_LEFT = "the client closed the connection"


class AsgiRequest(HttpServing, EventConnection):
    """One request.

    Args:
        request: its head.
        needs_length: as for `HttpRouter.route`.
    """

    def __init__(self, context: HttpContext, request: Request, address: str, *, needs_length: bool) -> None:
        super().__init__(context, address)
        self._head.request = request
        self._needs_length = needs_length
        #: What is asked for is not begun yet; the body is being read; the head of the response was put.
        self._is_taking = self._is_reading = self._is_begun = False

    async def serve(self, receive: Receive, send: Send) -> None:
        """Answer the request; to be awaited by the ASGI application."""
        watcher: asyncio.Task[None] | None = None
        self._is_open = True
        try:
            self._context.connections.opened(self)
            if not self._closing:
                self._is_taking = True
                await self._run(self._read(receive))
                self._is_taking = False
            if not self._closing:
                watcher = self._loop.create_task(self._watch(receive))
            await self._run(self._send_all(send))
        finally:
            if watcher is not None:
                watcher.cancel()
            self._is_open, self._closing = False, True
            self._give_up()
            self.connection_lost(None)
            self._context.connections.closed(self)

    @property
    def _is_partial(self) -> bool:
        return self._is_reading

    @property
    def _is_awaited(self) -> bool:
        return not self._is_reading

    # -- the request ------------------------------------------------------------------------------------------------

    async def _read(self, receive: Receive) -> None:
        """Begin with the request, and read the body of a call."""
        max_size = self._limits.max_message_size
        try:
            self._take(self._context.router.route(self._head.request, max_size, needs_length=self._needs_length))
            while self._is_identifying and self._task is not None:
                await asyncio.wait({self._task})
            if self._is_reading:
                await self._read_body(receive)
        except HttpError as error:
            self.fail(error.response)

    async def _watch(self, receive: Receive) -> None:
        """Cancel the work on the request when its client leaves."""
        try:
            while (await receive())["type"] != "http.disconnect":
                await asyncio.sleep(0)
        except Exception:
            log.exception("the ASGI server cannot say when the client at %s leaves", self.address)
        else:
            self._left()

    def _take_body(self) -> None:
        self._is_reading = True
        if self.is_draining:
            self._refuse_partial()

    async def _read_body(self, receive: Receive) -> None:
        """Read the body of a call, and carry it out."""
        head = cast(CallHead, self._head)
        max_size = self._limits.max_message_size
        frame = self._begin_frame() if head.is_frame and head.length != 0 else None
        buffer = ReceiveBuffer()
        size, is_last = 0, False
        try:
            while not (is_last or self._closing):
                event = await receive()
                if event["type"] == "http.disconnect":
                    self._left()
                    return
                body, is_last = bytes(event.get("body", b"")), not event.get("more_body", False)
                size += len(body)
                if size > max_size + (0 if frame is None else HEADER_MAX):
                    raise HttpError(too_long(max_size))
                if frame is None:
                    buffer.append(body)
                    self._count_body(size)
                else:
                    frame.append(body)
            if not self._closing:
                message: Message = buffer.take() if frame is None else frame.end()
                self._is_reading = False
                self._begin_call(message)
        except FrameError as error:
            raise HttpError(malformed(error)) from None
        finally:
            self._is_reading = False

    def _left(self) -> None:
        """The client has left: cancel the work on its request."""
        if not self._closing:
            self.reason = _LEFT
            self._give_up()
            super().abort(_LEFT)

    def _upgrade(self, head: PageHead) -> None:
        self.answer(problem(501, "the ASGI server in front of this one takes no WebSockets here"))

    # -- the response ------------------------------------------------------------------------------------------------

    def reply(self, reply: bytes) -> None:
        """As `HttpServing.reply`."""
        self.respond(Response(200, reply, JSON))

    def respond(self, response: Response) -> None:
        """As `HttpServing.respond`."""
        body = response.body
        self._start(response, len(body))
        if self._head.request.method == "HEAD":
            self._end()
        elif type(body) is bytes:
            self._end(body)
        else:
            self.write(parts_of(body))
            self._end()

    def answer(self, response: Response) -> None:
        """As `HttpServing.answer`."""
        self.respond(response)

    def fail(self, response: Response) -> None:
        """As `HttpServing.fail`."""
        self.respond(response)
        self._give_up()

    def start(self, response: Response, parts: Sequence[bytes]) -> None:
        """As `HttpServing.start`."""
        self._start(response, None)
        self.write(parts)

    def _start(self, response: Response, length: int | None) -> None:
        """Put the head of the response; `length`: bytes of its body, None where that is not known yet."""
        if self._closing:
            return
        self._is_begun = True
        status = response.status
        try:
            headers = response.pairs(length, self._head.more)
        except ValueError:
            log.exception("the response to %s %s cannot be sent", self._head.request.method, self._head.request.path)
            status, headers = 500, []
        self._put({"type": "http.response.start", "status": status, "headers": headers})
        if status != response.status:
            self._end()

    def write(self, parts: Sequence[Any]) -> None:
        """As `HttpServing.write`: long pieces as they are, short ones joined. What is no `bytes` is copied."""
        short: list[Any] = []
        for part in parts:
            if len(part) <= JOIN_MAX:
                short.append(part)
                continue
            self._write_joined(short)
            short.clear()
            self._write_joined((part,))
        self._write_joined(short)

    def _write_joined(self, pieces: Sequence[Any]) -> None:
        body = pieces[0] if len(pieces) == 1 and type(pieces[0]) is bytes else b"".join(pieces)
        if body:
            self._put({"type": "http.response.body", "body": body, "more_body": True}, len(body))

    def write_frame(self, message: AttachedMessage) -> None:
        """As `HttpServing.write_frame`."""
        parts = parts_of_frame(message)
        self._start(Response(200, type=FRAME), sum(map(len, parts)))
        self.write([part if type(part) is bytes else bytes(part) for part in parts])

    def finish(self, *, is_reusable: bool) -> None:
        """As `HttpServing.finish`."""
        super().finish(is_reusable=is_reusable)
        self._end()

    def _end(self, body: bytes = b"") -> None:
        """The response is complete, with this as the last part of its body."""
        if not self._closing:
            self._put({"type": "http.response.body", "body": body, "more_body": False}, len(body))
            self._close_behind()
            if self._is_taking:
                self._interrupt()

    def abort(self, reason: str) -> None:
        """Close at once: a response that was begun is cut off, in place of another one the reason is given."""
        self.reason = reason
        is_called = self._call is not None
        self._give_up()
        if self._is_begun:
            super().abort(reason)
        elif is_called:
            # As from a proxy that waits no longer: whether the call was carried out is not known.
            self.respond(problem(504, reason))
        else:
            self.respond(problem(503, reason, [("Retry-After", "1")]))
