"""Serves agents by the Model Context Protocol, over HTTP and on standard input and output."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..auth.authenticator import Authenticator
from ..errors import RegistrationError
from ..methods.dispatch import Dispatcher
from ..methods.invoke import Invoker
from ..methods.registry import MethodRegistry
from ..peer.credentials import Credentials
from ..peer.session import Session
from ..text import get_logger
from ..transports.http_router import Endpoint
from ..transports.listen import Listener
from ..transports.message_connection import Trace
from ..web.paths import check_path
from .running import RunningServer

if TYPE_CHECKING:
    from ..mcp.session import McpSession
    from ..mcp.stdio import StdioPipe

log = get_logger("rpcstream.server")

#: The default path of MCP over HTTP.
PATH = "/mcp"

#: The environment variable with the token of the user who has started the program.
TOKEN_VARIABLE = "RPCSTREAM_TOKEN"


def mcp_path(option: bool | str) -> str | None:
    """The path that the option `mcp` means; None: no MCP over HTTP. Raises ValueError for a malformed path."""
    if isinstance(option, bool):
        return PATH if option else None
    try:
        check_path(option)
    except RegistrationError as error:
        raise ValueError(f"mcp: {error}") from None
    return option


async def identify_starter(authenticator: Authenticator) -> Any:
    """The identity of the user who has started this program, by the token in the environment or the user id.

    Raises:
        PermissionError: it is not accepted.
    """
    own = os.getuid() if hasattr(os, "getuid") else None
    group = os.getgid() if hasattr(os, "getgid") else None
    token = os.environ.get(TOKEN_VARIABLE)
    credentials = Credentials(token=token, pid=os.getppid(), uid=own, gid=group, address="stdio")
    identity = authenticator.identify(credentials)
    if inspect.isawaitable(identity):
        identity = await identity
    if identity is None:
        reason = "is not accepted" if token else "is not set"
        raise PermissionError(f"this server has authentication, and the token in {TOKEN_VARIABLE} {reason}")
    return identity


class Agents:
    """Serves agents with the methods of a server that runs.

    Args:
        dispatcher: of the server.
        methods: of the server.
        describe: gives the document of `rpc.discover`.
        options: of sessions.
        invoker: of the server.
        info: name and version of the server.
        is_public: callers are not authenticated.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        methods: MethodRegistry,
        describe: Callable[[], Mapping[str, Any]],
        *,
        options: Mapping[str, Any],
        invoker: Invoker,
        info: dict[str, str],
        is_public: bool,
    ) -> None:
        from ..mcp.dispatch import McpDispatcher
        from ..mcp.session import parse_long
        from ..mcp.tools import Tools

        self._dispatcher = McpDispatcher(
            dispatcher,
            tools=Tools(methods, describe),
            codec=options["codec"],
            limits=options["limits"],
            invoker=invoker,
            info=info,
            is_public=is_public,
        )
        self._options = {**options, "on_slow": self._dispatcher.report_slow, "parse_long": parse_long}

    def endpoint(self, listener: Listener) -> Endpoint:
        """The endpoint for MCP over HTTP at a listener."""
        from ..mcp.http import McpEndpoint

        return McpEndpoint(lambda identity: self._new_session(listener, identity))

    async def talk(self, pipe: StdioPipe, running: RunningServer, identity: Any, trace: Trace | None) -> None:
        """Serve on standard input and output until the input ends, or the server is stopped."""
        from ..mcp.stdio import StdioStream

        closed = asyncio.Event()

        def on_close(stream: StdioStream) -> None:
            running.listener.message_connection_closed(stream)
            closed.set()

        session = self._new_session(running.listener, identity)
        stream = StdioStream(
            session,
            on_end=running.stopping.set,
            address="stdio",
            trace=trace,
            on_open=running.listener.connections.opened,
            on_close=on_close,
        )
        await asyncio.get_running_loop().create_connection(lambda: stream, sock=pipe.sock)
        pipe.start()
        log.info("serving an agent on standard input and output")
        ends = [asyncio.ensure_future(closed.wait()), asyncio.ensure_future(running.stopping.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    def _new_session(self, listener: Listener, identity: Any) -> McpSession:
        from ..mcp.session import McpSession

        def make(on_gone: Callable[[Session], None]) -> McpSession:
            return McpSession(self._dispatcher, **self._options, on_gone=on_gone)

        session = listener.add_session(make)
        session.identity = identity
        return session
