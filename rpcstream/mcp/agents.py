"""Serves agents by the Model Context Protocol, over HTTP ("Streamable HTTP") and on standard input and output."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ..methods.dispatch import Dispatcher
from ..methods.registry import MethodRegistry
from ..peer.session import Session
from ..text import get_logger
from ..transports.http_call import HttpCall, HttpServing, is_notification
from ..transports.http_router import CallHead
from ..transports.listen import Listener
from ..transports.message_connection import Trace
from ..transports.stream import LineStream
from ..wire.buffers import Encoded
from ..wire.envelope import Message
from ..wire.framing import LineFramer
from ..wire.http_messages import EVENTS, JSON, Response
from .dispatch import McpDispatcher, McpSession, parse_long, status_of_reply
from .tools import Tools

log = get_logger("rpcstream.server")

#: Bytes that are copied at a time.
_COPY = 256 * 1024


class StdioStream(LineStream):
    """The line stream of a program that was started by an agent's host.

    Args:
        on_end: called when the host sends nothing more.
        options: as for `LineStream`.
    """

    def __init__(self, session: McpSession, *, on_end: Callable[[], object], **options: Any) -> None:
        super().__init__(session, **options)
        self._on_end = on_end

    def _make_framer(self) -> LineFramer:
        # Every line is answered: MCP has no binary frames, and an empty line does not end the requests.
        return LineFramer(max_size=self._limits.max_message_size, reception=self._reception, skips_blank=True)

    def eof_received(self) -> bool:
        """The host has closed the input: what is in flight is answered, for as long as a server that stops waits."""
        stays = super().eof_received()
        self._on_end()
        return stays

    def _connect_session(self) -> None:
        # Not lasting, as a POST is not: nothing is asked of the client, and nothing is sent that is no answer.
        self.session.connected(self, is_lasting=False)

    def check(self, now: float) -> str | None:
        """As `Connection.check`: there are no time limits, since a host may leave its tools alone for days."""
        return None

    def probe(self) -> None:
        """As `Connection.probe`. Not needed: a host that is gone has closed the standard output, too."""


class StdioPipe:
    """Joins standard input and output to a socket, for as long as the program runs.

    While it is open `sys.stdout` and what other code writes to descriptor 1 go to standard error, and standard input is
    empty for all other code: one line of a stray `print` would end the conversation.

    Attributes:
        sock: the end of the program; it is the caller's.
    """

    def __init__(self) -> None:
        self.sock, self._pipe = socket.socketpair()
        self._input, self._output = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        sys.stdout.flush()  # what was printed before, and not written yet
        self._threads = [
            threading.Thread(target=work, name=f"rpcstream-{work.__name__.strip('_')}", daemon=True)
            for work in (self._read, self._write)
        ]

    def start(self) -> None:
        """Begin to copy."""
        for thread in self._threads:
            thread.start()

    def close(self, timeout: float) -> None:
        """Wait until all that was sent has been written, for `timeout` seconds at most; restore the descriptors."""
        if self._threads[1].is_alive():
            self._threads[1].join(timeout)
        sys.stdout.flush()
        os.dup2(self._input, 0)
        os.dup2(self._output, 1)
        self._pipe.close()
        self.sock.close()

    def _read(self) -> None:
        """Copy from standard input to the socket."""
        try:
            while data := os.read(self._input, _COPY):
                self._pipe.sendall(data)
            self._pipe.shutdown(socket.SHUT_WR)
        except OSError:  # the program has ended the conversation
            pass

    def _write(self) -> None:
        """Copy from the socket to standard output; where that is closed, end the conversation."""
        try:
            while data := self._pipe.recv(_COPY):
                view: Any = memoryview(data)
                while view:
                    view = view[os.write(self._output, view) :]
        except OSError:
            try:
                self._pipe.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class McpCall(HttpCall):
    """One POST and its response: a stream of events as soon as there is progress, for clients that read events."""

    STREAM_HEADERS: ClassVar[list[tuple[str, str]]] = [("Cache-Control", "no-store"), ("X-Accel-Buffering", "no")]

    def begin(self, connection: HttpServing, head: CallHead, body: Message) -> None:
        """As `HttpCall.begin`."""
        self._is_simple = False  # a call on this connection must not get this object, whose session speaks MCP
        super().begin(connection, head, body)

    def send(self, messages: list[Encoded]) -> None:
        """As `Channel.send`."""
        if self._response_type == JSON and any(map(is_notification, messages)):
            accepted = self._head.request.headers.get("accept", "")
            if EVENTS in accepted or "*/*" in accepted:
                self._response_type = EVENTS
        super().send(messages)

    def _respond(self, connection: HttpServing, reply: Encoded) -> None:
        session = self.session
        assert isinstance(session, McpSession)
        whole = bytes(reply)
        if not whole:
            connection.respond(Response(202))  # a notification, or a call that was cancelled
        else:
            status = status_of_reply(whole, is_stateless=session.is_stateless)
            connection.respond(Response(status, whole, JSON, session.more_headers))


class Agents:
    """Serves agents with the methods of a server that runs; an `Endpoint` of the transports, for POST.

    Args:
        dispatcher: of the server.
        listener: of the server, which waits for the sessions at its end.
        methods: of the server.
        describe: gives the document of `rpc.discover`.
        options: of sessions.
        info: name and version of the server.
        is_public: callers are not authenticated.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        listener: Listener,
        methods: MethodRegistry,
        describe: Callable[[], Mapping[str, Any]],
        *,
        options: Mapping[str, Any],
        info: dict[str, str],
        is_public: bool,
    ) -> None:
        self._listener = listener
        self._dispatcher = McpDispatcher(dispatcher, Tools(methods, describe), info=info, is_public=is_public)
        self._options = {**options, "on_slow": self._dispatcher.report_slow, "parse_long": parse_long}

    def make_call(self, identity: Any, connection: HttpServing) -> HttpCall:
        """As `Endpoint.make_call`."""
        session = self._new_session(identity)
        session.is_http = True
        return McpCall(session, connection)

    async def talk(self, pipe: StdioPipe, stopping: asyncio.Event, identity: Any, trace: Trace | None) -> None:
        """Serve on standard input and output until the input ends, which stops the server, or the server is stopped.

        Args:
            stopping: set when the server must stop.
            identity: of the agent.
        """
        closed = asyncio.Event()

        def on_close(stream: StdioStream) -> None:
            self._listener.message_connection_closed(stream)
            closed.set()

        stream = StdioStream(
            self._new_session(identity),
            on_end=stopping.set,
            address="stdio",
            trace=trace,
            on_open=self._listener.connections.opened,
            on_close=on_close,
        )
        await asyncio.get_running_loop().create_connection(lambda: stream, sock=pipe.sock)
        pipe.start()
        log.info("serving an agent on standard input and output")
        ends = [asyncio.ensure_future(each.wait()) for each in (closed, stopping)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    def _new_session(self, identity: Any) -> McpSession:
        def make(on_gone: Callable[[Session], None]) -> McpSession:
            return McpSession(self._dispatcher, **self._options, on_gone=on_gone)

        session = self._listener.add_session(make)
        session.identity = identity
        return session
