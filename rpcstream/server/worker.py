"""A worker: a new interpreter that serves the connections which its supervisor has accepted.

The first message says what to run. The worker sends `loaded` when it has the server, and asks `ready` when its lifespan
has been entered; the supervisor answers where it listens. From then on it passes connections, and the worker reports
how many are open. By `leaving` the worker says that it takes no more. If the channel ends, the supervisor has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import os
import socket
import sys
import sysconfig
from typing import Any

from ..process import on_hangup
from ..supervisor.channel import Channel, Message, read_message, write_message
from ..supervisor.events import KINDS as EVENT_KINDS
from ..supervisor.events import EventRelay
from ..text import get_logger
from ..transports.accept import ConnectionSetup
from ..transports.listen import Listener
from .life import ServerLife
from .program import replace_run, without_own_frames
from .server import Server
from .target import TargetError, load_server

log = get_logger("rpcstream.supervisor")

#: Seconds between two checks of the number of requests that this worker has answered, if `max_requests` is set.
WEAR_CHECK = 0.25

#: Seconds in which the supervisor must confirm that it sends no more connections.
LEAVING_TIME = 1.0

#: Reads of waiting connections from the channel before a worker leaves.
_LAST_TURNS = 1000

#: Seconds in which the supervisor must send the counters of all workers. It waits half of that for each.
STATS_TIME = 2.0

#: The environment variable with the place of a worker, from 1.
PLACE = "RPCSTREAM_WORKER"

#: The folder of this package, with a separator at its end.
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


class WorkerLink:
    """Connects a server to its supervisor: the `Supervision` of the server, and the source of its connections.

    Args:
        sock: of the channel.
        start: the first message.
    """

    def __init__(self, sock: socket.socket, start: Message) -> None:
        self.is_first: bool = start["is_first"]
        self.relay = EventRelay()
        self.group: str = start["group"]
        self.hosts: list[str | None] = []
        self._sock = sock
        self._max_requests: int | None = start["max_requests"]
        #: What it serves, and what stops it; known after `supervise`.
        self._server: Server
        self._life: ServerLife
        #: Set when the supervisor can be asked. Calls over NATS may come sooner.
        self._has_channel = asyncio.Event()
        self._listener: Listener | None = None
        self._channel: Channel | None = None
        #: By the host at which a connection was accepted.
        self._setups: dict[str | None, ConnectionSetup] = {}
        self._received = 0
        self._will_report = self._is_told = self._has_left = False
        self._wear_timer: asyncio.TimerHandle | None = None
        #: The last question to the supervisor for the counters of all workers.
        self._question: asyncio.Task[dict[str, Any]] | None = None
        #: Done when the supervisor knows that it must send no more connections.
        self._left: asyncio.Future[Message] | None = None

    def supervise(self, server: Server) -> None:
        """Have the supervisor accept the connections of this server.

        Raises:
            TargetError: it is a hub.
        """
        try:
            self._life = server.take_connections_from(self)
        except ValueError as error:
            raise TargetError(str(error)) from None
        self._server = server
        with contextlib.suppress(OSError):  # the supervisor has gone: read later
            write_message(self._sock, {"type": "loaded"})

    # -- Supervision ------------------------------------------------------------------------------------------------

    async def listen(self, listener: Listener, where: dict[str, Any] | None) -> str:
        if where is not None and where.pop("sockets"):
            raise ValueError("sockets= cannot be given to a worker: its supervisor accepts the connections")
        self._listener = listener
        listener.connections.on_closed = self._report_soon
        self._channel = channel = Channel(self._sock, self._on_message, self._on_end, on_room=self.relay.on_room)
        channel.start()
        self._has_channel.set()
        if where is not None and where["unix"] is not None:
            where = {**where, "unix": os.path.abspath(where["unix"])}
        answer = channel.ask(
            {
                "type": "ready",
                "where": where,
                "elsewhere": self._life.addresses,
                "max_connections": self._server.limits.max_connections,
                "drain_delay": self._life.drain_delay,
                "time_to_stop": self._life.time_to_stop,
                "imported": imported_files(),
            }
        )
        self.relay.start(channel)
        await asyncio.wait({answer})
        if answer.cancelled():  # the supervisor has gone
            return ""
        told = answer.result()
        if "errno" in told:
            raise OSError(told["errno"], told["text"])
        self.hosts = told["hosts"]
        listener.take_from(self, addresses=told["addresses"])
        if self._max_requests is not None:
            self._check_wear(self._max_requests)
        return str(told["addresses"][0] if told["addresses"] else "")

    async def counted(self) -> dict[str, Any]:
        """Ask the supervisor. Callers that ask at the same time share one question and its answer."""
        await self._has_channel.wait()
        if self._question is None or self._question.done():
            self._question = asyncio.get_running_loop().create_task(self._ask())
        return await asyncio.shield(self._question)

    def ended(self) -> None:
        self._send({"type": "counted", "counters": self._counted()})

    async def _ask(self) -> dict[str, Any]:
        assert self._channel is not None
        answer = self._channel.ask({"type": "ask"})
        await asyncio.wait({answer}, timeout=STATS_TIME)
        if not answer.done() or answer.cancelled():  # the supervisor has gone, or is not given any time
            answer.cancel()
            return self._counted()
        told = answer.result()
        return {**told["counters"], "workers": told["workers"], "supervisor": told["supervisor"]}

    def _counted(self) -> dict[str, Any]:
        """The counters and metrics of this process."""
        return {**self._server.stats(), **self._server.metric_numbers()}

    # -- ConnectionSource -------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take the connections that wait in the channel, and tell the supervisor to send no more."""
        channel = self._channel
        if channel is None:
            return
        for _ in range(_LAST_TURNS):
            if not channel.receive():
                break
        self._has_left = True
        self._left = channel.ask({"type": "leaving", "is_own": not (self._is_told or self._life.signals)})
        if self._wear_timer is not None:
            self._wear_timer.cancel()

    async def wait(self) -> None:
        if self._left is not None:
            # Connections that were on their way come before the answer.
            await asyncio.wait({self._left}, timeout=LEAVING_TIME)
        for setup in self._setups.values():
            await setup.wait()

    # -- messages ---------------------------------------------------------------------------------------------------

    def _on_message(self, message: Message, descriptor: int | None) -> None:
        kind = message["type"]
        if kind == "connection":
            self._received += 1
            self._take(message, descriptor)
        elif kind in EVENT_KINDS:
            self.relay.on_message(message)
        elif kind == "retire":
            self._is_told = True
            self._life.retire()
        elif kind == "count" and self._channel is not None:
            if self._will_report:  # first, so that the supervisor's number agrees with the counters
                self._report()
            self._channel.answer(message, {"counters": self._counted()})

    def _take(self, message: Message, descriptor: int | None) -> None:
        assert self._listener is not None
        if descriptor is None or descriptor < 0:
            self._listener.connections.make_room(OSError(errno.EMFILE, os.strerror(errno.EMFILE)), is_lost=True)
            self._report_soon()
            return
        try:
            conn = socket.socket(fileno=descriptor)
        except OSError as error:  # it is gone already, and the system does not say what it was
            log.debug("a connection could not be set up: %s", error)
            os.close(descriptor)
            self._report_soon()
            return
        host = message["host"]
        if host not in self._setups:
            self._setups[host] = self._listener.setup(host)
        self._setups[host].begin(conn, is_over_limit=message["is_over"])

    def _on_end(self) -> None:
        """The supervisor has died: finish running calls, and end."""
        if self._channel is not None:
            self._channel.close()
        if self._has_left:
            return
        if not self._is_told and not self._life.signals:
            log.warning("the supervisor has gone: stopping")
        self._is_told = True
        self._life.retire()

    def _send(self, message: Message) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def _report_soon(self) -> None:
        """Report the number of open connections, once in a turn of the event loop."""
        if not self._will_report:
            self._will_report = True
            asyncio.get_running_loop().call_soon(self._report)

    def _report(self) -> None:
        self._will_report = False
        if self._listener is not None:
            self._send({"type": "open", "open": self._listener.open_count, "received": self._received})

    def _check_wear(self, limit: int) -> None:
        """Ask to be replaced once this many requests are answered."""
        requests = self._server.counters.requests
        if requests >= limit:
            self._send({"type": "worn", "requests": requests})
        else:
            self._wear_timer = asyncio.get_running_loop().call_later(WEAR_CHECK, self._check_wear, limit)


def imported_files() -> list[str]:
    """The source files of the program: all modules except Python's, installed libraries, and rpcstream."""
    installed = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    found = {os.path.abspath(getattr(each, "__file__", None) or "") for each in list(sys.modules.values())}
    return sorted(each for each in found if each.endswith(".py") and not each.startswith((*installed, _PACKAGE)))


# -- from the start of the process ------------------------------------------------------------------------------------


def serve_target(link: WorkerLink, arguments: dict[str, Any]) -> int:
    """Load the server of an import string, and run it; returns the exit status. For `Server.run` with workers.

    Args:
        arguments: `target`; and `where`, for `Server.run`.
    """
    served = False

    def serve(server: Server, own: dict[str, Any]) -> None:
        nonlocal served
        served = True
        link.supervise(server)
        server.run(**{"on_listening": lambda address: None, **arguments["where"]})

    try:
        # A script that calls `server.run` at import serves there.
        with replace_run(serve):
            server = load_server(arguments["target"])
            if served:
                return 0
        serve(server, {})
    except TargetError as error:
        _print_error(error)
        return 2
    except OSError as error:
        if error.strerror is None or not error.strerror.startswith("cannot listen"):
            raise
        print(error.strerror, file=sys.stderr)
        return 1
    return 0


def _print_error(error: TargetError) -> None:
    import traceback

    cause = error.__cause__
    if cause is not None:
        traceback.print_exception(type(cause), cause, without_own_frames(cause.__traceback__))
    print(error, file=sys.stderr)


def main(number: int) -> int:
    """Run a worker; returns the exit status.

    Args:
        number: the descriptor of the channel.
    """
    sock = socket.socket(fileno=number)
    sock.set_inheritable(False)
    start = read_message(sock)
    if start is None:
        return 0
    sys.argv[:] = start["argv"]
    sys.path[:] = start["path"]
    os.environ[PLACE] = str(start["place"])
    if start["processor"] is not None:
        os.sched_setaffinity(0, {start["processor"]})
    module, _, function = start["entry"].partition(":")
    with on_hangup():  # it is for the supervisor
        status: int = getattr(importlib.import_module(module), function)(WorkerLink(sock, start), start["arguments"])
    return status
