"""Keep-alive of a hub's members: pings members, and closes connections that show no sign of life.

Time-outs of single connections, such as half a message or an hour of silence, are in `Limits`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import orjson

from ..peer.pending import PendingCall
from ..peer.session import Session
from ..wire import envelope
from .directory import Directory
from .members import Member

log = logging.getLogger("rpcstream.hub")


class HubKeepalive:
    """Pings the members of one hub, and drops those that do not answer.

    Args:
        keepalive_timeout: seconds; a member with a name that has shown no sign of life for so long is dropped.
        ping_interval: seconds between two pings to it.
        registration_timeout: seconds; a connection that has neither registered nor called by then is closed.
        drop: closes a member's connection, with the reason.
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
        """Check all members again and again, until cancelled."""
        intervals = [seconds for seconds in (self._ping_interval, self._keepalive_timeout) if seconds is not None]
        if not intervals:
            return
        loop = asyncio.get_running_loop()
        while True:
            # Twice an interval, so that a time-out is noticed when half of it more has passed, at most.
            await asyncio.sleep(min(intervals) / 2)
            for member in list(self._directory.by_name.values()):
                self.check(member, loop.time())

    def check(self, member: Member, now: float) -> None:
        """Ping a member, or drop it, if it is time for that; `now` is loop time, s."""
        silence = now - member.last_heard
        timeout = self._keepalive_timeout
        if timeout is not None and silence >= timeout and not self._must_ping_first(member):
            self._drop(member, f"no sign of life for {timeout:g} s (keepalive_timeout)")
        elif self._ping_interval is not None and silence >= self._ping_interval and member.is_there:
            self._ping(member)

    def _must_ping_first(self, member: Member) -> bool:
        """It could not answer yet: it has been silent since the last check, or the hub itself was held up."""
        can_hear = member.is_there and not member.session.write_gate.stalled
        return self._ping_interval is not None and not member.is_pinged and can_hear

    def watch(self, session: Session) -> None:
        """Close a new connection that neither registers nor calls in time."""
        if self._registration_timeout is not None:
            timer = session.loop.call_later(self._registration_timeout, self._check_begun, session)
            session.on_lost.append(timer.cancel)

    def _check_begun(self, session: Session) -> None:
        # By HTTP there is a session for each call, so it has called.
        if session not in self._directory.members and session.channel is not None and session.is_lasting:
            reason = f"neither registered nor called within {self._registration_timeout:g} s (registration_timeout)"
            log.info("closing the connection from %s: %s", session.channel.address, reason)
            session.abort(reason)

    def _ping(self, member: Member) -> None:
        session = member.session
        if member.is_pinged or session.write_gate.stalled:
            return  # it has not answered the last ping, or does not even read: its time-out goes on
        member.is_pinged = True
        call_id = session.pending.add(_Ping(member))
        session.send(orjson.dumps(envelope.request("rpc.ping", call_id=call_id)))


class _Ping(PendingCall):
    """A ping that waits for any answer, as a sign of life."""

    __slots__ = ("_member",)

    method = "rpc.ping"

    def __init__(self, member: Member) -> None:
        self._member = member

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        """Note the sign of life."""
        self._member.is_pinged = False
        self._member.last_heard = self._member.session.loop.time()

    def fail(self, error: Exception) -> None:
        """Do nothing: the connection is over, and so is the member."""
