"""A bounded pool of worker processes: each runs one call at a time, and when it dies only its own call fails.

Owns the processes and the pipes to them: when one is started, the pause after one died, and how all are ended. The
standard library's pool fails every call, even those that wait, when one of its processes dies, and can wait for ever
for the rest of a result whose writer was killed; so this one is made of `multiprocessing`'s processes and pipes. Knows
neither messages nor the event loop.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import pickle
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from time import monotonic, sleep
from typing import Any

from ..errors import InternalError
from .threads import DaemonThreads
from .worker_process import READY, serve_calls, unpacked

log = logging.getLogger("rpcstream.server")

#: Seconds; a worker that dies before this age counts as an early death.
LONG_LIFE = 10.0

#: Seconds of the pause after the first early death in a row, doubled with each, up to the longest pause.
SHORTEST_PAUSE = 0.1
LONGEST_PAUSE = 5.0

#: Seconds from SIGTERM to SIGKILL for a worker that does not end.
PATIENCE = 1.0


#: The name of worker processes.
_NAME = "rpcstream-worker"


def is_worker() -> bool:
    """Tell whether this process is a worker process of a server."""
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.current_process().name == _NAME


class WorkerLost(InternalError):
    """The worker process was killed or crashed before the call had a result."""

    def __init__(self) -> None:
        super().__init__(data={"reason": "worker lost"})


class WorkerNotStarted(InternalError):
    """No worker process could be started for a call, which was not begun."""

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
        """Do not begin the call. A worker that runs it already goes on to its end."""
        self._call = None

    def packed(self) -> bytes | None:
        """The pickled call, once: it is not kept here after that. None if it was given up."""
        call, self._call = self._call, None
        return None if call is None else pickle.dumps(call)


class Workers:
    """A bounded pool of worker processes. `submit` and `close` are called from one thread.

    Args:
        size: processes at the same time. Each is started when a call finds none idle.
        max_result: bytes of one pickled result.
    """

    def __init__(self, size: int, max_result: int) -> None:
        # One thread for each process: it writes the call and waits for the result, which would block the event loop.
        self._threads = DaemonThreads(size, "rpcstream-worker")
        self._slots = [WorkerSlot(max_result) for _ in range(size)]
        #: Guards the attributes below, and the choice of a slot.
        self._changed = threading.Condition()
        #: Slots without a call. The last one is taken first, so that no more workers run than are needed.
        self._idle = list(self._slots)
        self._failed_starts = 0  # in a row
        self._no_start_before = 0.0
        self._is_trying = False  # after failed starts, one thread tries again
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Calls that no worker has taken yet."""
        return self._threads.waiting

    @property
    def busy(self) -> int:
        """Calls that workers carry out, or are started for."""
        return self._threads.busy

    @property
    def process_ids(self) -> list[int]:
        """The ids of the workers that run."""
        processes = [slot.process for slot in self._slots]
        return [process.pid for process in processes if process is not None and process.pid and process.is_alive()]

    def submit(self, call: WorkerCall) -> Future[Any]:
        """Run a call in a worker; the future gives its result, or raises what the call raised.

        The future may also raise WorkerLost if the worker ended before there was a result, WorkerNotStarted if no
        worker runs and none can be started, and MessageTooLarge if the pickled result is over `max_result`.
        """
        _open_pools.add(self)
        return self._threads.submit(functools.partial(self._run, call))

    def close(self, *, wait: bool = False) -> None:
        """End all workers, by force if need be: calls that wait are cancelled, those that run are lost.

        Args:
            wait: return when all have ended, at most `PATIENCE` later. Else the program waits for them at its end.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            for slot in self._slots:
                slot.is_closed = True
            for slot in self._idle:
                slot.hang_up()
        self._threads.close()
        _open_pools.discard(self)
        processes = [process for slot in self._slots if (process := slot.process) is not None]
        for process in processes:
            process.terminate()
        if wait:
            _end_or_kill(processes)
        elif processes:
            threading.Thread(target=_end_or_kill, args=(processes,), name="rpcstream-workers-end").start()

    # -- in the threads ---------------------------------------------------------------------------------------------

    def _run(self, call: WorkerCall) -> Any:
        packed: bytes | None = None
        while True:
            slot = self._take()
            try:
                packed = packed or call.packed()
                if packed is None:
                    return None  # its caller has given it up
                answer = slot.ask(packed, call.method)
            finally:
                with self._changed:
                    if self._is_closed:
                        slot.hang_up()
                    self._idle.append(slot)
                    self._changed.notify()
            if answer is not None:
                return unpacked(*answer)

    def _take(self) -> WorkerSlot:
        """Take a slot with a running worker; wait for one that another call has, or for the end of a pause."""
        while not (slot := self._choose()).has_worker():
            is_started = False
            try:
                is_started = slot.start()
            finally:
                with self._changed:
                    self._is_trying = False
                    self._failed_starts = 0 if is_started else self._failed_starts + 1
                    if not is_started:
                        self._no_start_before = monotonic() + pause(self._failed_starts)
                        self._idle.insert(0, slot)
                    elif self._is_closed and slot.process is not None:
                        slot.process.kill()
                    self._changed.notify_all()
            if is_started:
                break
        return slot

    def _choose(self) -> WorkerSlot:
        """Choose a slot with a worker, or one in which a worker may be started now."""
        with self._changed:
            while True:
                if self._is_closed:
                    raise WorkerLost
                for slot in reversed(self._idle):
                    if slot.has_worker():
                        self._idle.remove(slot)
                        return slot
                now, slot = monotonic(), min(self._idle, key=lambda slot: slot.not_before)
                left = slot.not_before - now
                if self._failed_starts:
                    left = max(left, self._no_start_before - now)
                if self._is_trying:
                    self._changed.wait()
                elif left <= 0:
                    self._idle.remove(slot)
                    self._is_trying = self._failed_starts > 0
                    return slot
                elif self._failed_starts and not self.process_ids:
                    raise WorkerNotStarted  # it was tried a moment ago, and is not tried again for each call
                else:
                    self._changed.wait(left)


class WorkerSlot:
    """A slot of the pool, for one worker at a time.

    Attributes:
        process: the worker; None if there is none.
        not_before: no worker is started before this time (`monotonic`), since the last ones died early.
        is_closed: the pool is closed, so the end of the worker is not logged.
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
        """True if the slot has a worker that runs."""
        if self.process is None:
            return False
        if not self.process.is_alive():
            self._bury("while it had nothing to do")
        return self.process is not None

    def start(self) -> bool:
        """Start a worker, and wait until it takes calls. False if that fails; the log says why."""
        # Not forked, which is unsafe in a process with threads and an event loop.
        context = get_context("spawn")
        try:
            ours, theirs = context.Pipe()
            process = context.Process(target=serve_calls, args=(theirs, self._max_result), name=_NAME)
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
            if ours.recv_bytes(len(READY)) == READY:
                return True
        self._bury("before it was ready; what it said is on standard error")
        return False

    def ask(self, packed: bytes, method: str) -> tuple[bytes, bytes] | None:
        """Run a pickled call in the worker; gives what `run_packed` gives there.

        Returns:
            None if the worker had ended before it got the call, which may be run by another one.

        Raises:
            WorkerLost: the worker ended before it had sent a result.
        """
        assert self._connection is not None
        try:
            self._connection.send_bytes(packed)
        except OSError:  # the worker cannot have read the whole call
            self._bury("while it had nothing to do")
            return None
        try:
            return self._connection.recv_bytes(), self._connection.recv_bytes()
        except (EOFError, OSError):
            self._bury(f"while it ran {method!r}")
            raise WorkerLost from None
        except BaseException:  # such as no memory for the result, whose rest is still in the pipe
            self._bury(f"since the result of {method!r} could not be read")
            raise

    def hang_up(self) -> None:
        """Close the pipe, so that the worker ends by itself. To be called only while it runs no call."""
        if self._connection is not None:
            self._connection.close()

    def _bury(self, when: str) -> None:
        """Remove a worker that is dead or has closed its pipe; log that, and set the time of the next start."""
        process, self.process = self.process, None
        assert process is not None
        self.hang_up()
        self._connection = None
        if not _ended([process], PATIENCE):
            process.kill()
            process.join()
        lived = monotonic() - self._since
        self._early_deaths = 0 if lived > LONG_LIFE else self._early_deaths + 1
        # After the first early death, which may be an operator's doing, the next worker is started at once.
        left = pause(self._early_deaths - 1)
        self.not_before = monotonic() + left
        if self.is_closed:
            return
        log.error(
            "worker process %s ended %s: %s%s",
            process.pid,
            when,
            _describe_exit(process.exitcode),
            f"; the next one starts in {left:.1f} s" if left else "",
        )


def pause(early: int) -> float:
    """Seconds until the next start, after so many early deaths in a row."""
    return min(SHORTEST_PAUSE * 2 ** (min(early, 30) - 1), LONGEST_PAUSE) if early > 0 else 0.0


def _describe_exit(status: int | None) -> str:
    """A text for the exit status of a process."""
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


def _end_or_kill(processes: list[SpawnProcess]) -> None:
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
