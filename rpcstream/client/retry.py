"""Rules for retrying calls and for reconnecting.

Owns which failed calls are made again, and after which pause. Knows no connection and no clock: the time is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..backoff import Backoff
from ..errors import (
    CallCancelled,
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    MethodNotFound,
    NotAuthenticated,
    NotPermitted,
    ProviderGone,
    RpcError,
    Unread,
)
from ..peer.deadline import INFINITE
from ..peer.naming import MethodFacts, MixedParams, facts_of, named, refused

if TYPE_CHECKING:  # which plain calls of the sync client do without
    import asyncio

    from ..peer.marshal import Outgoing


#: The methods of a server by name; None: it was not asked, or has not answered.
Known = Mapping[str, MethodFacts] | None


def is_permanent(error: Exception) -> bool:
    """Tell whether connecting failed for a reason that another attempt does not change: the token, a certificate."""
    return isinstance(error, NotAuthenticated | NotPermitted) or (
        isinstance(error, ConnectFailed) and error.is_permanent
    )


class Unsent(ConnectionLost):
    """The connection ended before the call was sent on it; another connection may be tried at once."""

    executed = False


class ClosedAtOnce(ConnectionLost):
    """The connection was closed as soon as it was made, before the call was sent; another one may be closed as soon."""

    executed = False


#: Errors after which a call may be repeated. A hub that lost the program that ran the call counts as a lost connection;
#: a call may be cancelled by a server that stops before it has begun it; a hub may have no provider now (`wait_for`).
LOSSES = (ConnectFailed, ConnectionLost, ProviderGone, CallCancelled, MethodNotFound)

#: How often a call is repeated that the server has not begun, as it said, whatever the option `retries` is.
REPEATS = 5


def pause_before_retry(error: Exception, attempt: int, retries: int) -> float | None:
    """Seconds to wait before a call is made again; None if it is not.

    Args:
        error: how the call failed.
        attempt: how often it has been tried, from 1.
        retries: how often the caller allowed it to be repeated.
    """
    if was_not_begun(error):
        retries = max(retries, REPEATS)
    if attempt > retries or not isinstance(error, LOSSES) or isinstance(error, MethodNotFound):
        return None
    if type(error) is CallCancelled and error.executed is None:
        return None
    # First at once, since most often the server was restarted and listens already; then twice as long each time.
    return 0.0 if attempt == 1 else min(0.05 * 2 ** (attempt - 2), 1.0)


def was_not_begun(error: BaseException) -> bool:
    """Tell whether the server is leaving, or a hub has lost the provider, and the call was not begun, as they say."""
    if isinstance(error, CallCancelled | ProviderGone):
        return isinstance(error.data, dict) and error.data.get("executed") is False
    return isinstance(error, Unread)


def is_awaited(error: BaseException) -> bool:
    """Tell whether a call was not begun since there is no server now, or at a hub no provider: `wait_for` waits."""
    if isinstance(error, ConnectFailed):
        return not error.is_permanent
    if isinstance(error, MethodNotFound):
        return isinstance(error.data, dict) and error.data.get("no_provider") is True
    return isinstance(error, Unsent | ClosedAtOnce) or was_not_begun(error)


def may_have_run(error: BaseException) -> bool:
    """Tell whether a call that failed with this error may have been carried out."""
    return getattr(error, "executed", None) is not False and not is_awaited(error)


#: The pauses of calls that wait for a server or a provider. The longest is what a caller loses once it is there.
WAITING = Backoff(first=0.02, longest=0.5)


class Attempts:
    """The attempts of one call: whether there is another one after a failure, and when.

    Args:
        retries: how often the call may be repeated although it may have been carried out.
        wait_for: seconds to wait for a server or a provider; None: not at all.
        until: when the first of these waits is over; None with `wait_for`.

    Attributes:
        until: when the present wait is over. A call that was sent, lost and is repeated may wait anew.
    """

    __slots__ = ("_repeats", "_retries", "_wait_for", "_waits", "until")

    def __init__(self, retries: int, wait_for: float | None, until: float | None) -> None:
        self._retries = retries
        self._wait_for = wait_for
        self._repeats = self._waits = 0
        self.until = until

    def pause(self, error: Exception, now: float, deadline: float) -> float | None:
        """Seconds until the call is made again; None if it is not.

        Args:
            error: how the call failed.
            now: by the clock of `until`.
            deadline: of the call, by the same clock.
        """
        if self.until is not None and is_awaited(error):
            self._waits += 1
            return pause_of_wait(self._waits, self.until - now, deadline - now)
        self._repeats += 1
        pause = pause_before_retry(error, self._repeats, self._retries)
        if pause is None or now + pause >= deadline:
            return None
        if self._wait_for is not None:
            self.until, self._waits = now + pause + self._wait_for, 0
        return pause


def pause_of_wait(count: int, left: float, time_left: float) -> float | None:
    """Seconds until a call that waits is made again; None if its time is over.

    Args:
        count: how often it has waited, with this time.
        left: seconds of `wait_for`.
        time_left: seconds of the call's time-out.
    """
    if left <= 0 or time_left <= 0:
        return None
    # The last attempt is made when the wait is over; one before the time-out is, to fail with what is missing.
    pause = min(WAITING.pause(count), left)
    return pause if pause < time_left else time_left / 2 if time_left > SHORT else None


#: Seconds; so short before its time-out no call is made again.
SHORT = 0.02


def is_missing(methods: Iterable[str], known: Known) -> bool:
    """Tell whether the server has answered, and lacks one of these methods."""
    return known is not None and not all(method in known for method in methods)


def is_known(methods: Iterable[str], known: Known, error: Exception, *, waits: bool) -> bool:
    """Tell whether what is known of the methods of a call is still good, after it was lost with this error."""
    # What is registered at a hub changes.
    return known is not None and not isinstance(error, ProviderGone) and not (waits and is_missing(methods, known))


def check_idempotent(outgoing: Outgoing, known: Known, error: Exception) -> None:
    """Raise unless a lost call or batch may be repeated: ConnectionLost with the reason, or the hub's ProviderGone.

    Args:
        outgoing: the call.
        known: the server's methods; None if the server did not answer.
        error: how the call was lost.
    """
    if known is not None and all(method in known and known[method].is_idempotent for method in outgoing.methods):
        return
    if isinstance(error, ProviderGone):
        raise error
    why = "the server did not say what is idempotent"
    if known is not None:
        what = "not all methods are" if len(outgoing.methods) > 1 else "the method is not"
        why = f"{what} declared idempotent"
    reason = f'the connection was lost, and the call is not repeated: {why} (retry="all" repeats every call)'
    raise ConnectionLost(reason, method=outgoing.method, address=getattr(error, "address", None))


class ServerMethods:
    """What an async client knows of the server's methods: which may be called twice, and how parameters are named.

    Args:
        retry: which calls may be: "all" or "idempotent".
        discover: starts an `rpc.discover` call, which waits for no server.
        count_lost: returns how many connections have been lost so far. A new connection may reach another server, where
            parameters may have other names.
    """

    def __init__(self, retry: str, discover: Callable[[], asyncio.Task[Any]], count_lost: Callable[[], int]) -> None:
        self._retry = retry
        self._discover = discover
        self._count_lost = count_lost
        self._known: Known = None
        #: The count when these were asked for.
        self._lost = 0
        #: The discovery that is under way, shared by all calls that were lost together.
        self._discovery: asyncio.Task[Any] | None = None

    async def check(self, outgoing: Outgoing, error: Exception, deadline: float, until: float | None) -> None:
        """Raise ConnectionLost or ProviderGone unless the call may be repeated, by the client's `retry`.

        Args:
            outgoing: the call.
            error: how the call was lost.
            deadline: of the call; loop time, s.
            until: so long (loop time, s) a method that the server does not have is waited for; None: not at all.
        """
        if self._retry == "all" or outgoing.method == "rpc.discover":
            return
        known = self._known
        if not is_known(outgoing.methods, known, error, waits=until is not None):
            try:
                known = await self._find(outgoing.methods, deadline, until)
            except (RpcError, OSError):  # with the errors of connections and time-outs
                known = None
        check_idempotent(outgoing, known, error)

    async def named(self, method: str, params: Any, deadline: float, until: float | None) -> Any:
        """The params of a call, all by name if some are; asks the server if the method is not known.

        Args:
            deadline, until: as for `check`.

        Raises:
            TypeError: they cannot be; the text has the call as it is to be written.
            ConnectFailed, ConnectionLost, CallTimeout: there is no answer.
        """
        if not isinstance(params, MixedParams):
            return params
        known = self._known
        if known is None or method not in known or self._lost != self._count_lost():
            try:
                known = await self._find((method,), deadline, until)
            except RpcError as error:
                raise refused(method, params, error) from None
            except (ConnectFailed, ConnectionLost, CallTimeout) as error:
                error.method = method
                raise
        return named(method, params, known)

    async def _find(self, methods: Iterable[str], deadline: float, until: float | None) -> Known:
        """Ask the server for its methods until it answers and has these, or that is waited for no longer."""
        import asyncio

        waits = 0
        while True:
            failure: Exception | None = None
            try:
                known = await self._ask(deadline)
            except ConnectFailed as error:
                failure = error
            if until is not None and (is_missing(methods, known) if failure is None else is_awaited(failure)):
                waits, now = waits + 1, asyncio.get_running_loop().time()
                if (pause := pause_of_wait(waits, until - now, deadline - now)) is not None:
                    await asyncio.sleep(pause)
                    continue
            if failure is not None:
                raise failure
            return known

    async def _ask(self, deadline: float) -> Known:
        """Ask the server for its methods."""
        import asyncio

        discovery = self._discovery
        if discovery is None or discovery.done() or discovery.get_loop() is not asyncio.get_running_loop():
            discovery = self._discovery = self._discover()
            discovery.add_done_callback(retrieve_exception)
        try:
            async with asyncio.timeout_at(None if deadline == INFINITE else deadline):
                document = await asyncio.shield(discovery)
        except CallTimeout:
            raise
        except TimeoutError:
            raise CallTimeout("the server did not answer rpc.discover in time") from None
        self._known, self._lost = facts_of(document), self._count_lost()
        return self._known


def retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Mark a task's exception as seen: no warning is logged when all that waited for it have given up."""
    if not task.cancelled():
        task.exception()
