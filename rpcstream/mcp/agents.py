"""Serves agents by the Model Context Protocol, over HTTP and on standard input and output."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ..methods.dispatch import Dispatcher
from ..methods.registry import MethodRegistry
from ..peer.session import Session
from ..text import get_logger
from ..transports.http_call import HttpCall, HttpServing
from ..transports.listen import Listener
from ..transports.message_connection import Trace
from .dispatch import McpDispatcher
from .http import McpCall
from .session import McpSession, parse_long
from .stdio import StdioPipe, StdioStream
from .tools import Tools

log = get_logger("rpcstream.server")


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
