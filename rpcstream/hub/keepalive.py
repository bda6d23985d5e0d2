"""Who is still there: pings to the clients of a hub, and the end of connections that show no sign of life.

Owns the time-outs of a hub's connections that are about silence. What a silence is on a single connection (half a
message, nothing at all for an hour) is the limits' matter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import orjson

from ..peer.session import Session
from ..wire import envelope
from .directory import Directory
from .members import Member

log = logging.getLogger("rpcstream.hub")


class HubKeepalive:
    """Looks after the clients of one hub while it runs.

    Args:
        keepalive_timeout: seconds; a client with a name that has shown no sign of life for so long is dropped.
        ping_interval: seconds between two pings to it.
        registration_timeout: seconds; a connection that has neither registered nor called by then is closed.
        drop: ends a client's connection, with the reason.
    """

    def __init__(
        self,
        directory: Directory,
        *,
        keepalive_timeout: float | None,
        ping_interval: float | None,
        registration_timeout: float | None,
        drop: Callable[[Member, str], None],
    ) -> None:
        self._directory = directory
        self._keepalive_timeout = keepalive_timeout
        self._ping_interval = ping_interval
        self._registration_timeout = registration_timeout
        self._drop = drop

    async def run(self) -> None:
        """Look again and again; ends by being cancelled."""
        intervals = [seconds for seconds in (self._ping_interval, self._keepalive_timeout) if seconds is not None]
        if not intervals:
            return
        loop = asyncio.get_running_loop()
        while True:
            # Twice an interval, so that a time-out is noticed when half of it more has passed, at most.
            await asyncio.sleep(min(intervals) / 2)
            for client in list(self._directory.by_name.values()):
                self.look_at(client, loop.time())

    def look_at(self, client: Member, now: float) -> None:
        """Ping a client, or drop it, if it is time for that; `now` is loop time, s."""
        silence = now - client.heard
        timeout = self._keepalive_timeout
        if timeout is not None and silence >= timeout and not self._is_to_be_asked(client):
            self._drop(client, f"no sign of life for {timeout:g} s (keepalive_timeout)")
        elif self._ping_interval is not None and silence >= self._ping_interval and client.is_there:
            self._ping(client)

    def _is_to_be_asked(self, client: Member) -> bool:
        """It has not had its chance to answer yet: it was silent since the last look, or the hub itself was held up."""
        can_hear = client.is_there and not client.session.flows.stalled
        return self._ping_interval is not None and not client.pinged and can_hear

    def begin(self, session: Session) -> None:
        """A connection is there: it has a time to say what it wants."""
        if self._registration_timeout is not None:
            timer = session.loop.call_later(self._registration_timeout, self._check_begun, session)
            session.on_lost.append(timer.cancel)

    def _check_begun(self, session: Session) -> None:
        # By HTTP there is a session for each call, so it has called.
        if session not in self._directory.clients and session.channel is not None and session.is_lasting:
            reason = f"neither registered nor called within {self._registration_timeout:g} s (registration_timeout)"
            log.info("closing the connection from %s: %s", session.channel.address, reason)
            session.abort(reason)

    def _ping(self, client: Member) -> None:
        session = client.session
        if client.pinged or session.flows.stalled:
            return  # it has not answered the last one, or does not even read: its time runs
        client.pinged = True
        call_id = session.pending.add(_Ping(client))
        session.send(orjson.dumps(envelope.request("rpc.ping", call_id=call_id)))


class _Ping:
    """Waits for a sign of life: any answer is one. A `TimedWaiter`."""

    __slots__ = ("_client", "deadline", "method")

    def __init__(self, client: Member) -> None:
        self._client = client
        self.method = "rpc.ping"
        self.deadline = float("inf")

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        self._client.pinged = False
        self._client.heard = self._client.session.loop.time()

    def fail(self, error: Exception) -> None:
        """The connection is over, and so is the client."""

    def when_over(self, function: Callable[[], object]) -> None:
        """Nothing depends on it."""
