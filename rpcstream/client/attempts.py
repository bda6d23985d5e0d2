"""Whether and when a client repeats a call: the options `retry` and `wait_for`, and servers that stop.

Also names the positional arguments of calls that have named arguments, too. Each client passes coroutine functions that
sleep, call and ask; the functions of the blocking client block.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
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
from ..peer.calls import Call, unnamed
from ..peer.deadline import now as clock
from .options import Settings

if TYPE_CHECKING:
    from .discovery import KnownMethods  # imports the reader of OpenRPC, which most clients do without


#: The deadline of a call (monotonic seconds; may be infinite), the seconds that it waits for a server or provider, and
#: when the first of these waits is over (monotonic seconds). The last two are None if it does not wait.
Times = tuple[float, float | None, float | None]

#: Makes a call once; called with the end of its wait for a server or provider (monotonic seconds), None if it does not
#: wait.
Attempt = Callable[[float | None], Awaitable[Any]]


class Unsent(ConnectionLost):
    """The connection ended before the call was sent on it."""

    executed = False


#: Errors after which a call may be repeated. A hub that lost the program that ran the call counts as a lost connection;
#: a call may be cancelled by a server that stops before it has begun it; a hub may have no provider now (`wait_for`).
LOSSES = (ConnectFailed, ConnectionLost, ProviderGone, CallCancelled, MethodNotFound)

#: How often a call is repeated, whatever the option `retry` is, that the server has not begun, as it said; and what is
#: kept with `reconnect`.
REPEATS = 5

#: The pauses of calls that wait for a server or a provider. The longest is what a caller loses once it is there.
WAITING = Backoff(first=0.02, longest=0.5)

#: What a client with `reconnect` does again on its next connection. Doing it twice does no harm.
_KEPT = frozenset(("rpc.register", "rpc.subscribe"))

#: Methods of the framework that a client may call twice.
_IDEMPOTENT = _KEPT | {"rpc.discover"}

#: Seconds; so short before its time-out no call is made again.
SHORT = 0.02


def is_permanent(error: Exception) -> bool:
    """Tell whether connecting failed for a reason that another attempt does not change: the token, a certificate."""
    return isinstance(error, NotAuthenticated | NotPermitted) or getattr(error, "is_permanent", False)


def was_not_begun(error: Exception) -> bool:
    """Tell whether a call that failed with this error was not begun, and might be if it is made again."""
    return getattr(error, "executed", None) is False and not is_permanent(error)


class Attempts:
    """Decides which calls of one client are made again, and knows which methods of the server are idempotent.

    Args:
        settings: of the client.
        is_closed: tells whether the client was closed.
        count_lost: returns how many connections have been lost so far. A new connection may reach another server, where
            parameters may have other names.
        sleep: pauses for some seconds.
        discover: asks the server for its OpenRPC document, until a deadline (monotonic seconds; may be infinite).
    """

    def __init__(
        self,
        settings: Settings,
        is_closed: Callable[[], bool],
        count_lost: Callable[[], int],
        sleep: Callable[[float], Awaitable[object]],
        discover: Callable[[float], Awaitable[Any]],
    ) -> None:
        self._retries = settings.retry.times
        self._reconnects = settings.reconnect is not None
        self._repeats_all = settings.retry.repeats == "all"
        self._is_closed = is_closed
        self._count_lost = count_lost
        self._sleep = sleep
        self._discover = discover
        #: The server's methods; None: it was not asked, or has not answered.
        self._known: KnownMethods | None = None
        #: The count of lost connections when these were asked for.
        self._lost = 0

    async def again(self, error: Exception, outgoing: Call, times: Times, attempt: Attempt) -> Any:
        """Make a call again that has failed, as often as that is allowed; gives its result.

        Args:
            error: of the first attempt.
            outgoing: the call.
            times: of the call.
            attempt: makes it.

        Raises the error of the last attempt.
        """
        deadline, wait_for, until = times
        repeats = waits = 0
        while True:
            now = clock()
            if not (isinstance(error, LOSSES) and outgoing.is_repeatable) or is_permanent(error) or self._is_closed():
                raise error
            if until is not None and was_not_begun(error):
                waits += 1
                pause = pause_of_wait(waits, until - now, deadline - now)
            else:
                repeats += 1
                pause = self._pause(error, outgoing.method, repeats)
                if pause is not None and wait_for is not None:
                    # A call that was sent, lost and is repeated may wait anew.
                    until, waits = now + pause + wait_for, 0
            if pause is None or now + pause >= deadline:
                raise error
            await self._sleep(pause)
            if getattr(error, "executed", None) is not False:
                await self._check(outgoing, error, deadline, until)
            try:
                return await attempt(until)
            except LOSSES as failure:
                error = failure

    def _pause(self, error: Exception, method: str, attempt: int) -> float | None:
        """Seconds before a call is made again that does not wait for a server; None if it is not.

        Args:
            error: how the call failed.
            method: that was called.
            attempt: how often it has been tried, from 1.
        """
        retries = self._retries
        if isinstance(error, Unread | CallCancelled | ProviderGone) and was_not_begun(error):
            retries = max(retries, REPEATS)
        elif isinstance(error, CallCancelled | MethodNotFound):
            return None
        elif method in _KEPT and self._reconnects:
            retries = max(retries, REPEATS)
        if attempt > retries:
            return None
        # First at once, since usually the server was restarted and listens already; then twice as long each time.
        return 0.0 if attempt == 1 else min(0.05 * 2 ** (attempt - 2), 1.0)

    # -- the server's methods ---------------------------------------------------------------------------------------

    async def _check(self, outgoing: Call, error: Exception, deadline: float, until: float | None) -> None:
        """Raise ConnectionLost or ProviderGone unless a call that may have run may be repeated, by the option `retry`.

        A method that the server does not have is waited for `until` then; None: not at all.
        """
        if self._repeats_all or outgoing.method in _IDEMPOTENT or not outgoing.methods:
            return
        known = self._known
        # What is registered at a hub changes.
        is_stale = isinstance(error, ProviderGone) or (until is not None and self._misses(outgoing.methods))
        if known is None or is_stale:
            try:
                known = await self._find(outgoing.methods, deadline, until)
            except (RpcError, OSError):  # with the errors of connections and time-outs
                known = None
        if known is not None and all(map(known.is_idempotent, outgoing.methods)):
            return
        if isinstance(error, ProviderGone):
            raise error
        why = "the server did not say what is idempotent"
        if known is not None:
            why = "the method, or one in the batch, is not declared idempotent"
        reason = f'the connection was lost, and the call is not repeated: {why} (repeats="all" repeats every call)'
        raise ConnectionLost(reason, method=outgoing.method, address=getattr(error, "address", None))

    async def named(self, method: str, params: MixedParams, deadline: float, until: float | None) -> dict[str, Any]:
        """The params of a call, all by name; asks the server if the method is not known.

        Args:
            deadline, until: of its `Times`.

        Raises:
            TypeError: they cannot be; the text has the call as it is to be written.
            ConnectFailed, ConnectionLost, CallTimeout: there is no answer.
        """
        known = self._known
        if known is None or method not in known or self._lost != self._count_lost():
            try:
                known = await self._find((method,), deadline, until)
            except RpcError as error:
                raise unnamed(method, f"rpc.discover was refused ({error.message})") from None
            except (ConnectFailed, ConnectionLost, CallTimeout) as error:
                error.method = method
                raise
        return named(method, params, known)

    async def _find(self, methods: Iterable[str], deadline: float, until: float | None) -> KnownMethods | None:
        """Ask the server for its methods until it answers and has these, or that is waited for no longer."""
        waits = 0
        while True:
            failure: Exception | None = None
            try:
                document = await self._discover(deadline)
            except ConnectFailed as error:
                failure = error
            else:
                from .discovery import KnownMethods

                self._known, self._lost = KnownMethods(document), self._count_lost()
                if not self._misses(methods):
                    return self._known
            pause = None
            if until is not None and (failure is None or was_not_begun(failure)):
                waits, now = waits + 1, clock()
                pause = pause_of_wait(waits, until - now, deadline - now)
            if pause is not None:
                await self._sleep(pause)
            elif failure is not None:
                raise failure
            else:
                return self._known

    def _misses(self, methods: Iterable[str]) -> bool:
        known = self._known
        return known is not None and not all(method in known for method in methods)


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


# -- arguments by position and by name, which JSON-RPC cannot mix (section 4.2) ---------------------------------------


class MixedParams:
    """Arguments by position and by name, until the names of the former are known."""

    __slots__ = ("args", "kwargs")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs

    def __iter__(self) -> Iterator[Any]:
        return iter((*self.args, *self.kwargs.values()))


def given_params(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | dict[str, Any] | MixedParams | None:
    """The params of a call for Python arguments; None for none."""
    return MixedParams(args, kwargs) if args and kwargs else list(args) or kwargs or None


def check_params(method: str, params: Any) -> Any:
    """Check explicit params of a call: list, dict or None; a tuple becomes a list. TypeError for anything else."""
    if isinstance(params, tuple):
        return list(params)
    if params is not None and not isinstance(params, list | dict | MixedParams):
        raise TypeError(f"the params of {method!r} must be a list, a dict or None, got {type(params).__name__}")
    return params


def named(method: str, mixed: MixedParams, known: KnownMethods | None) -> dict[str, Any]:
    """All arguments of a call by name.

    Args:
        known: the server's methods; None if they are not known.

    Raises:
        TypeError: that cannot be done.
    """
    described = None if known is None else known.method(method)
    if described is None:
        raise unnamed(method, "rpc.discover did not say how its parameters are named")
    if not described.takes_names:
        raise unnamed(method, "it takes arguments by position only")
    positional = [each.name for each in described.fixed if not each.is_keyword]
    if len(mixed.args) > len(positional):
        raise unnamed(method, f"only {len(positional)} of the {len(mixed.args)} by position can get names")
    by_position = dict(zip(positional, mixed.args, strict=False))
    if twice := by_position.keys() & mixed.kwargs.keys():
        raise unnamed(method, f"{min(twice)!r} was given twice")
    return {**by_position, **mixed.kwargs}
