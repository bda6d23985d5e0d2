"""Calls that a hub holds for a moment, since their provider has just left: it may be restarting.

Owns the names that were offered until a moment ago, the calls and notifications that wait for each, in order, and how
many of these there may be. Knows neither how a call is forwarded nor who may call what: that is the dispatcher's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

from ..codec.payloads import CutLine
from ..errors import CallCancelled, DeadlineExceeded, RpcError
from ..events.event_queue import QueueMemory
from ..limits import Limits
from ..peer.deadline import INFINITE
from ..peer.inflight import ForwardedCall
from ..peer.memory import memory_of
from ..peer.slices import TURN
from ..peer.state import ConversationState
from ..wire.buffers import Encoded
from .directory import Directory
from .members import Member
from .offers import may_be_offered
from .passthrough import Line
from .relay import OnEnd, Relay
from .routes import Route

#: Bytes of memory that a held call takes besides its message: the call itself, its parsed message, its timer.
HELD_COST = 1500

#: The share of the calls that a connection may have running (`max_calls`) which may be held: the others go on.
HELD_SHARE = 4


class HeldCall(ForwardedCall):
    """A call, or a notification, that waits for a provider; to the caller's session it is a forwarded call.

    Args:
        message: the request, which was checked.
        line: its text.
        session: of the caller.
        waited: seconds that the request had waited when it came.
        deadline: loop time, s; may be infinite.
        tries: providers that it was sent to, none of which has begun it.
        refused: writes the error reply to it, or to a call whose provider has not come back (None).

    Attributes:
        size: bytes of memory that it takes, about.
        since: when it would have come if it had not waited; loop time, s.
        future: gets the reply in the place of the caller's session, if there is one: the call stands in a batch.
        relay: the call at its provider, once it was passed on.
        on_end: called once with the reply, if it ends here; None: its end is not observed.
    """

    __slots__ = (
        "_drop",
        "_refused",
        "_timer",
        "deadline",
        "future",
        "line",
        "message",
        "on_end",
        "relay",
        "session",
        "since",
        "size",
        "tries",
    )

    def __init__(
        self,
        message: dict[str, Any],
        line: Line,
        session: ConversationState,
        *,
        waited: float,
        deadline: float,
        refused: Refused,
        tries: int = 0,
    ) -> None:
        super().__init__(message.get("id"))
        self.message = message
        self.line = line
        self.session = session
        self.deadline = deadline
        self.tries = tries
        self.size = HELD_COST + memory_of(line)
        if isinstance(line, CutLine):
            self.size += 2 * sum(map(len, line.strings))  # as they came, and decoded
        self.since = session.loop.time() - waited
        self.future: asyncio.Future[Encoded | None] | None = None
        self.relay: Relay | None = None
        self.on_end: OnEnd | None = None
        self._refused = refused
        self._drop: Callable[[HeldCall], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_call(self) -> bool:
        """It has an id, and so a reply."""
        return "id" in self.message

    def begin(self, drop: Callable[[HeldCall], None], until: float) -> None:
        """Begin to wait, until a time (loop time, s); `drop` takes it out of the calls that wait."""
        self._drop = drop
        if self.deadline < until:
            self._timer = self.session.loop.call_at(self.deadline, self._too_late)

    def end(self) -> None:
        """Wait no more: it is passed on, or refused."""
        self._drop = None
        if self._timer is not None:
            self._timer.cancel()

    def cancel(self) -> None:
        """As `ForwardedCall.cancel`; also of one that was passed on from a batch."""
        if self.relay is not None:
            self.relay.abort(CallCancelled())
        else:
            self._refuse_now(CallCancelled())

    def refuse(self, error: RpcError | None = None) -> None:
        """End it with an error; without one: its provider has not come back."""
        if self.is_call:
            self.finish(self._refused(self, error))

    def finish(self, reply: Encoded | None) -> None:
        """End it with its reply."""
        if self.on_end is not None:
            on_end, self.on_end = self.on_end, None
            on_end(reply, None)
        if self.future is None:
            self.session.finish(self, reply)
        elif not self.future.done():
            self.future.set_result(reply)

    def _too_late(self) -> None:
        data = {"method": self.message["method"], "timeout": self.message.get("timeout")}
        self._refuse_now(DeadlineExceeded(data=data))

    def _refuse_now(self, error: RpcError) -> None:
        if self._drop is not None:
            self._drop(self)
            self.end()
            self.refuse(error)


#: Writes the error reply to a held call; None for the error: its provider has not come back.
Refused = Callable[[HeldCall, RpcError | None], Encoded | None]


class AwayMethod:
    """A name that was offered until a moment ago.

    Attributes:
        method: the name at its last provider; None where the hub has just begun, and does not know.
        provider: the name of that.
        until: when its calls are held no more; loop time, s.
        calls: those that wait, in order.
    """

    __slots__ = ("calls", "method", "provider", "until")

    def __init__(self, method: str | None, provider: str, until: float) -> None:
        self.method = method
        self.provider = provider
        self.until = until
        self.calls: deque[HeldCall] = deque()


class HeldCalls:
    """The calls that one hub holds.

    A connection may have a quarter of `max_calls` held, of `max_message_size` bytes together (one call always may);
    all connections `max_queue` calls, and the memory that they share with the messages which wait for members. Calls
    beyond that get the error at once. As many names are remembered as calls may be held.

    Args:
        grace: seconds that a call is held at most, from the moment when its provider left; or when the hub began,
            which cannot know what was offered before.
        memory: counts the messages that wait, all together.

    Attributes:
        forward: passes a call on by a route; set by the dispatcher.
        count: calls and notifications that are held now.
    """

    def __init__(self, grace: float, directory: Directory, *, limits: Limits, memory: QueueMemory) -> None:
        self.count = 0
        self.forward: Callable[[HeldCall, Route], None] | None = None
        self._grace = grace
        self._directory = directory
        self._limits = limits
        self._memory = memory
        #: The names that are away. Of many the first is taken out again and again, which a dict is slow at.
        self._away: OrderedDict[str, AwayMethod] = OrderedDict()
        #: Calls of each connection, and their bytes.
        self._of_session: dict[ConversationState, tuple[int, int]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        directory.on_away.append(self._left)
        directory.on_change.append(self._pass_on)

    def begin(self) -> None:
        """The hub begins: for a while all names may have been offered a moment ago."""
        self._loop = asyncio.get_running_loop()
        self._begun_until = self._loop.time() + self._grace

    def end(self) -> None:
        """The hub stops: refuse what is held, and hold nothing more."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for name in list(self._away):
            self._refuse_all(name)

    def find(self, name: str) -> AwayMethod | None:
        """The name, if its calls are to be held now."""
        if self._loop is None:
            return None
        now, found = self._loop.time(), self._away.get(name)
        if found is None and now < self._begun_until and may_be_offered(name):
            return AwayMethod(None, "", self._begun_until)
        return found if found is not None and now < found.until else None

    def hold(self, name: str, method: AwayMethod, call: HeldCall) -> bool:
        """Hold a call; False if there is no room for it."""
        session, size = call.session, call.size
        count, held = self._of_session.get(session, (0, 0))
        limits = self._limits
        is_over = count >= limits.max_calls // HELD_SHARE or (count > 0 and held + size > limits.max_message_size)
        if is_over or self.count >= limits.max_queue or size > self._memory.free:
            return False
        known = self._away.get(name)
        if known is not None:  # other calls of it may wait already; one of a batch is held later than it was looked up
            method = known
        elif not self._remember(name, method):
            return False
        self._of_session[session] = count + 1, held + size
        self._memory.reserve(size)
        self.count += 1
        method.calls.append(call)
        call.begin(lambda call: self._drop(method, call), method.until)
        return True

    # -- names that come and go ---------------------------------------------------------------------------------------

    def _left(self, name: str, method: str, provider: Member) -> None:
        """Remember a name that was offered until now."""
        if self._loop is not None:
            self._remember(name, AwayMethod(method, provider.name or "", self._loop.time() + self._grace))

    def _remember(self, name: str, method: AwayMethod) -> bool:
        assert self._loop is not None
        if len(self._away) >= self._limits.max_queue:
            if method.method is None:  # names that callers made up do not displace those that were offered
                return False
            self._refuse_all(next(iter(self._away)))
        self._away[name] = method
        if self._timer is None or method.until < self._timer.when():
            self._expire_at(self._loop, method.until)
        return True

    def _expire_at(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(when, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Refuse the calls of the names whose time is over, as many as one turn allows; the others soon."""
        self._timer = None
        now, end = loop.time(), perf_counter() + TURN
        for name in [name for name, method in self._away.items() if method.until <= now]:
            if not self._refuse_all(name, end):
                break
        if self._away:
            self._expire_at(loop, min(method.until for method in self._away.values()))

    def _refuse_all(self, name: str, until: float = INFINITE) -> bool:
        """Forget a name, and refuse its calls; False if this took longer than `until` (`perf_counter`, s)."""
        method = self._away[name]
        while method.calls:
            if perf_counter() > until:
                return False
            call = method.calls[0]
            self._drop(method, call)
            call.end()
            call.refuse()
        del self._away[name]
        return True

    def _pass_on(self) -> None:
        """Pass on the calls of names that are offered again, in order."""
        routes = self._directory.routes
        # Looked through from the shorter side: either may be long.
        names = self._away.keys() & routes.keys() if self._away else ()
        for name in sorted(names):
            method, route = self._away.pop(name), routes[name]
            while method.calls:
                call = method.calls[0]
                self._drop(method, call)
                call.end()
                assert self.forward is not None
                self.forward(call, route)

    def _drop(self, method: AwayMethod, call: HeldCall) -> None:
        """Take a call out of those that wait."""
        if method.calls[0] is call:
            method.calls.popleft()
        else:
            method.calls.remove(call)
        size = call.size
        count, held = self._of_session.pop(call.session)
        if count > 1:
            self._of_session[call.session] = count - 1, held - size
        self._memory.release(size)
        self.count -= 1
