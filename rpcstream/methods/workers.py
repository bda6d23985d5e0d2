"""Worker processes: each runs one call at a time, and the loss of one is the loss of its call alone.

Owns the processes and the pipes to them: when one is started, how long none is started after one died, and the end of
all. The standard library's pool fails every call, those that wait too, when one of its processes dies, and can wait for
ever for the rest of a result whose writer was killed; so this one is made of `multiprocessing`'s processes and pipes.
Knows neither messages nor the event loop.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import pickle
import signal
import threading
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from time import monotonic, sleep
from typing import Any

from ..errors import InternalError, RpcError
from ..wire import envelope
from .threads import DaemonThreads, HandlerFailed

log = logging.getLogger("rpcstream.server")

#: Seconds that a worker must have lived for its death not to count as one of a row.
LONG_LIFE = 10.0

#: Seconds from the first early death in a row to the next start, doubled with each, up to the longest.
SHORTEST_PAUSE = 0.1
LONGEST_PAUSE = 5.0

#: Seconds from SIGTERM to SIGKILL for a worker that does not end.
PATIENCE = 1.0

_READY = b"ready"


class WorkerLost(InternalError):
    """The worker process ended before the call had a result: it was killed, or it crashed."""

    def __init__(self) -> None:
        super().__init__(data={"reason": "worker lost"})


class WorkerNotStarted(InternalError):
    """No worker process could be started for a call: it was not begun."""

    def __init__(self) -> None:
        super().__init__(data={"reason": "no worker process could be started"})


class WorkerCall:
    """One call for a worker.

    Args:
        method: its name, for the log.
    """

    __slots__ = ("_call", "method")

    def __init__(
        self, method: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.method = method
        self._call: tuple[Any, ...] | None = (function, args, kwargs)

    def give_up(self) -> None:
        """Not to be begun any more. A worker that has it already goes on to the end."""
        self._call = None

    def packed(self) -> bytes | None:
        """For the pipe, once: nothing is kept here then. None if it was given up."""
        call, self._call = self._call, None
        return None if call is None else pickle.dumps(call)


class Workers:
    """A bounded pool of worker processes. `submit` and `close` are called from one thread.

    Args:
        size: processes at the same time. Each is started when a call finds none idle.
        max_result: bytes of one pickled result.
    """

    def __init__(self, size: int, max_result: int) -> None:
        # A thread for each process: it waits for the result, and writes and reads what would keep the loop for long.
        self._threads = DaemonThreads(size, "rpcstream-worker")
        self._places = [WorkerSlot(max_result) for _ in range(size)]
        #: Guards what follows, and the choice among the places.
        self._changed = threading.Condition()
        #: Places that no call has. The last one is taken first, so that few workers do what few can do.
        self._idle = list(self._places)
        self._failed_starts = 0  # in a row
        self._no_start_before = 0.0
        self._is_trying = False  # one thread tries again to start a worker
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Calls that no worker has taken yet."""
        return self._threads.waiting

    @property
    def process_ids(self) -> list[int]:
        """The workers that run."""
        processes = [place.process for place in self._places]
        return [process.pid for process in processes if process is not None and process.pid and process.is_alive()]

    def submit(self, call: WorkerCall) -> Future[Any]:
        """Run a call in a worker; the future gives its result, or raises what the call raised.

        Besides:
            WorkerLost: the worker ended before there was a result.
            WorkerNotStarted: no worker runs, and none can be started.
            RpcError: -32001, the pickled result is over `max_result`.
        """
        _open_pools.add(self)
        return self._threads.submit(functools.partial(self._run, call))

    def close(self, *, wait: bool = False) -> None:
        """End all workers: calls that wait are cancelled, those at work are lost. A worker that does not end is killed.

        Args:
            wait: until all have ended, up to `PATIENCE`. Else the program waits for that when it ends.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            for place in self._places:
                place.is_closed = True
            for place in self._idle:
                place.hang_up()
        self._threads.close()
        _open_pools.discard(self)
        processes = [process for place in self._places if (process := place.process) is not None]
        for process in processes:
            process.terminate()
        if wait:
            _see_the_end(processes)
        elif processes:
            threading.Thread(target=_see_the_end, args=(processes,), name="rpcstream-workers-end").start()

    # -- in the threads ---------------------------------------------------------------------------------------------

    def _run(self, call: WorkerCall) -> Any:
        packed: bytes | None = None
        while True:
            place = self._take()
            try:
                packed = packed or call.packed()
                if packed is None:
                    return None  # nobody waits for it
                answer = place.ask(packed, call.method)
            finally:
                with self._changed:
                    if self._is_closed:
                        place.hang_up()
                    self._idle.append(place)
                    self._changed.notify()
            if answer is not None:
                return unpacked(*answer)

    def _take(self) -> WorkerSlot:
        """A place with a worker that runs. Waits for another call's worker, or for the end of a pause."""
        while not (place := self._choose()).has_worker():
            is_started = False
            try:
                is_started = place.start()
            finally:
                with self._changed:
                    self._is_trying = False
                    self._failed_starts = 0 if is_started else self._failed_starts + 1
                    if not is_started:
                        self._no_start_before = monotonic() + pause(self._failed_starts)
                        self._idle.insert(0, place)
                    elif self._is_closed and place.process is not None:
                        place.process.kill()
                    self._changed.notify_all()
            if is_started:
                break
        return place

    def _choose(self) -> WorkerSlot:
        """A place with a worker, or one in which a worker may be started now."""
        with self._changed:
            while True:
                if self._is_closed:
                    raise WorkerLost
                for place in reversed(self._idle):
                    if place.has_worker():
                        self._idle.remove(place)
                        return place
                now, place = monotonic(), min(self._idle, key=lambda place: place.not_before)
                left = place.not_before - now
                if self._failed_starts:
                    left = max(left, self._no_start_before - now)
                if self._is_trying:
                    self._changed.wait()
                elif left <= 0:
                    self._idle.remove(place)
                    self._is_trying = self._failed_starts > 0
                    return place
                elif self._failed_starts and not self.process_ids:
                    raise WorkerNotStarted  # it was tried a moment ago; for each call anew would be for ever
                else:
                    self._changed.wait(left)


class WorkerSlot:
    """A place for one worker, which may die and be followed by another.

    Attributes:
        process: the worker; None where there is none.
        not_before: no worker is started before this (`monotonic`), since the last ones died early.
        is_closed: the end of the worker is wanted, and not worth a word in the log.
    """

    def __init__(self, max_result: int) -> None:
        self.process: SpawnProcess | None = None
        self.not_before = 0.0
        self.is_closed = False
        self._max_result = max_result
        self._connection: Connection | None = None
        self._since = 0.0
        self._early_deaths = 0

    def has_worker(self) -> bool:
        """Is there a worker that runs?"""
        if self.process is None:
            return False
        if not self.process.is_alive():
            self._bury("while it had nothing to do")
        return self.process is not None

    def start(self) -> bool:
        """Start a worker, and wait until it takes calls. False if it does not come so far; the log says why."""
        # Forking a process that has threads and an event loop is not safe: each worker is started afresh.
        context = get_context("spawn")
        try:
            ours, theirs = context.Pipe()
            process = context.Process(target=serve_calls, args=(theirs, self._max_result), name="rpcstream-worker")
        except OSError as error:
            log.error("a worker process cannot be started: %s", error)
            return False
        try:
            process.start()
        except Exception as error:  # no memory, no process left, a main module that cannot be imported again
            log.error("a worker process cannot be started: %s", error, exc_info=not isinstance(error, OSError))
            ours.close()
            return False
        finally:
            theirs.close()
        self.process, self._connection, self._since = process, ours, monotonic()
        with contextlib.suppress(EOFError, OSError):
            if ours.recv_bytes(len(_READY)) == _READY:
                return True
        self._bury("before it was ready; what it said is on standard error")
        return False

    def ask(self, packed: bytes, method: str) -> tuple[bytes, bytes] | None:
        """What `run_packed` gives in the worker. None: it ended before it had the call.

        Raises:
            WorkerLost: it ended before it had answered.
        """
        assert self._connection is not None
        try:
            self._connection.send_bytes(packed)
        except OSError:  # it cannot have read the whole of it
            self._bury("while it had nothing to do")
            return None
        try:
            return self._connection.recv_bytes(), self._connection.recv_bytes()
        except (EOFError, OSError):
            self._bury(f"while it ran {method!r}")
            raise WorkerLost from None
        except BaseException:  # no memory for the result: what is left of it in the pipe is of no use
            self._bury(f"since the result of {method!r} could not be read")
            raise

    def hang_up(self) -> None:
        """Let the worker end by itself: there are no more calls. Only while none is at work."""
        if self._connection is not None:
            self._connection.close()

    def _bury(self, when: str) -> None:
        """The worker is dead, or has closed its pipe: say how, and when the next may be started."""
        process, self.process = self.process, None
        assert process is not None
        self.hang_up()
        self._connection = None
        if not _ended([process], PATIENCE):
            process.kill()
            process.join()
        lived = monotonic() - self._since
        self._early_deaths = 0 if lived > LONG_LIFE else self._early_deaths + 1
        # One early death may be anything, an operator who ends them all perhaps: the next worker is started at once.
        left = pause(self._early_deaths - 1)
        self.not_before = monotonic() + left
        if self.is_closed:
            return
        log.error(
            "worker process %s ended %s: %s%s",
            process.pid,
            when,
            _words(process.exitcode),
            f"; the next one starts in {left:.1f} s" if left else "",
        )


def pause(early: int) -> float:
    """Seconds until the next start after so many workers in a row that did not live long."""
    return min(SHORTEST_PAUSE * 2 ** (min(early, 30) - 1), LONGEST_PAUSE) if early > 0 else 0.0


def _words(status: int | None) -> str:
    """How a process ended."""
    if status is None:
        return "its status is not known"
    if status >= 0:
        return f"exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"killed by {name}" + (", as the system does when memory runs out" if name == "SIGKILL" else "")


def _ended(processes: list[SpawnProcess], seconds: float) -> bool:
    """Wait until all have ended, for this time at most; returns whether they have.

    `join` with a time-out would wait for ever for a process that has closed its files.
    """
    deadline = monotonic() + seconds
    while any(process.is_alive() for process in processes):
        if monotonic() > deadline:
            return False
        sleep(0.002)
    return True


def _see_the_end(processes: list[SpawnProcess]) -> None:
    """Wait for processes that were asked to end, and kill those that do not."""
    if _ended(processes, PATIENCE):
        return
    for process in processes:
        if process.is_alive():
            log.warning("worker process %s does not end by SIGTERM; it is killed", process.pid)
            process.kill()
    _ended(processes, PATIENCE)


_open_pools: weakref.WeakSet[Workers] = weakref.WeakSet()


def end_all_workers() -> None:
    """End the workers of every pool, and wait for that."""
    for pool in list(_open_pools):
        pool.close(wait=True)


# `multiprocessing` waits for all processes when the program ends: so this must come first, and therefore be asked for
# after `multiprocessing.util` was imported, which `multiprocessing.connection` does.
atexit.register(end_all_workers)


# -- in a worker ----------------------------------------------------------------------------------------------------


def serve_calls(connection: Connection, max_result: int) -> None:
    """Run what comes, one call after the other, until the other end is closed."""
    # Ctrl-C goes to the whole group of processes; the server alone decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(_READY)
        while True:
            kind, result = run_packed(connection.recv_bytes(), max_result)
            connection.send_bytes(kind)
            connection.send_bytes(result)
            del result  # a worker that waits holds nothing


def run_packed(packed: bytes, max_result: int) -> tuple[bytes, bytes]:
    """Run a pickled call, and pickle what came of it here, where a failure is this call's alone."""
    try:
        function, args, kwargs = pickle.loads(packed)
        del packed
        result = pickle.dumps(function(*args, **kwargs))
        if len(result) > max_result:
            raise envelope.oversize(len(result), max_result, side="server")
        return b"result", result
    except RpcError as error:
        try:
            return b"error", pickle.dumps((error.code, error.message, error.data))
        except Exception as unfit:
            return b"failed", pickle.dumps(f"the data of an error cannot be sent between processes: {unfit}")
    except BaseException as error:
        return b"failed", pickle.dumps("".join(traceback.format_exception(error)))


def unpacked(kind: bytes, packed: bytes) -> Any:
    """The result of `run_packed`, or its error raised."""
    outcome = pickle.loads(packed)
    if kind == b"error":
        raise RpcError(*outcome)
    if kind == b"failed":
        raise HandlerFailed(outcome)
    return outcome
