"""A server while it runs: its listener, dispatcher and pools, and the drain that stops them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Protocol

from ..events.topics import Carrier
from ..methods.call import Invoker
from ..methods.dispatch import Dispatcher
from ..peer.session import Session
from ..process import CLEAN_UP, join_names
from ..text import get_logger
from ..transports.listen import Listener
from ..web.routes import Routes

log = get_logger("rpcstream.server")
wire_log = get_logger("rpcstream.wire")

#: Seconds for the last replies before connections are closed whose calls have not finished in time.
FAREWELL = 0.05

#: Sent to a connection that is closed because its rights have changed.
RIGHTS_CHANGED = "the rights of this connection have changed: connect again"

_KEY = re.compile(rb'(?<="key":")[0-9a-f]{32}(?=")')


class Supervision(Protocol):
    """Gives a server its connections if it is one of several processes, and a supervisor accepts them.

    Attributes:
        is_first: this process is the first of them, and logs what should appear once.
        hosts: where connections are accepted, known after `listen`; None for a Unix socket.
        relay: carries events to and from the other processes.
        group: the id that only these processes have in common.
    """

    group: str
    is_first: bool
    hosts: list[str | None]

    @property
    def relay(self) -> Carrier: ...

    async def listen(self, listener: Listener, where: dict[str, Any] | None) -> str:
        """Have connections accepted at this host and port, or Unix socket; returns the address.

        Args:
            where: the arguments of `Server.run`; None: nowhere, because calls come over NATS. The address is "" then.

        Raises:
            OSError: the address cannot be listened at; the text names it.
        """

    async def counted(self) -> dict[str, Any]:
        """`Server.stats` and `Server.metric_numbers` of all processes together; with `workers` and `supervisor`."""

    def ended(self) -> None:
        """Report the final counters of a server that has ended."""


class RunningServer:
    """A server from its start to its end.

    Args:
        routes: opened now, and told when draining begins, so that `/readyz` says so.

    Attributes:
        is_serving: connections are served.
        is_draining: `drain` has begun.
        skips_delay: the drain has no delay, because another process has taken this one's place.
        stopping: set when the server must stop.
        aborted: set when it must stop at once.
        left_behind: tasks of handlers that did not end when they were cancelled; known after `drain`.
    """

    def __init__(self, invoker: Invoker, dispatcher: Dispatcher, listener: Listener, routes: Routes) -> None:
        self.loop = asyncio.get_running_loop()
        self.invoker = invoker
        self.dispatcher = dispatcher
        self.listener = listener
        self._routes = routes
        routes.open(invoker)
        self.is_serving = False
        self.is_draining = self.skips_delay = False
        self.stopping = asyncio.Event()
        self.aborted = asyncio.Event()
        self.left_behind: set[asyncio.Task[Any]] = set()

    async def drain(self, *, delay: float, timeout: float) -> None:
        """Let calls in flight finish, then close all connections.

        Args:
            delay: seconds to continue as before, while `/readyz` returns 503.
            timeout: seconds that calls in flight have after that.
        """
        self.stopping.set()
        self.is_draining = self._routes.is_draining = True
        listener = self.listener
        aborted = asyncio.ensure_future(self.aborted.wait())
        if delay and listener.is_listening and not self.skips_delay:
            await asyncio.wait({aborted}, timeout=delay)
        listener.stop_accepting()
        closed = asyncio.ensure_future(listener.closed())
        try:
            await asyncio.wait({aborted, closed}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if listener.sessions:
                log.warning(
                    "stopping: %d connections had not finished in time; methods at work: %s",
                    len(listener.sessions),
                    _methods_at_work(listener) or "none",
                )
                if not aborted.done() and listener.refuse_waiting():
                    await asyncio.wait({aborted, closed}, timeout=FAREWELL, return_when=asyncio.FIRST_COMPLETED)
        finally:
            listener.abort("the server stopped")
            aborted.cancel()
            # Cancelled handlers run their `finally` while what the lifespan gave them is still there.
            await asyncio.wait({closed}, timeout=CLEAN_UP)
            closed.cancel()
            self.left_behind = {task for session in listener.sessions for task in session.running.tasks}
            if self.left_behind:
                names = _methods_at_work(listener)
                log.warning("left behind, since they did not end when they were cancelled: methods %s", names)
        self.dispatcher.replies.log.flush()
        log.info("stopped")

    def dismiss(self, may_stay: Callable[[Session], bool], timeout: float) -> int:
        """Close the connections that may not stay, after their running calls; returns how many there are.

        Args:
            timeout: seconds that calls in flight have.
        """
        sessions = self.listener.sessions
        leaving = [each for each in sessions if each.is_lasting and each.channel and not may_stay(each)]
        for session in leaving:
            session.go_away(RIGHTS_CHANGED)
            session.loop.call_later(timeout, session.abort, RIGHTS_CHANGED)
        return len(leaving)

    def close(self) -> None:
        """Close the pools and the pages."""
        self._routes.close()
        self.invoker.close()


def log_message(direction: str, message: bytes) -> None:
    """Log a message that was received or sent, shortened and without secrets; for a binary frame, JSON and sizes."""
    # Neither a token nor the key to a name at a hub may stand in a log.
    is_secret = b"rpc.authenticate" in message
    text = "(rpc.authenticate)" if is_secret else _KEY.sub(b"", message[:2000]).decode(errors="backslashreplace")
    wire_log.info("%s %d bytes: %s", direction, len(message), text)


def _methods_at_work(listener: Listener) -> str:
    return join_names(sorted({name for session in listener.sessions for name in session.running.method_names()}))
