"""Worker processes for `offload="process"`: each runs one call at a time, and when it dies only its own call fails.

The standard library's pool fails every call when one of its processes dies, and cannot end a call that runs.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from time import monotonic
from typing import Any

from ..errors import InternalError, RpcError
from ..limits import MIB
from ..wire import envelope
from .threads import DaemonThreads, HandlerFailed

log = logging.getLogger("rpcstream.server")

#: Seconds from the start of a worker to the start of the next one in its place, at least, however it ended: workers
#: that die again and again, and callers that call and cancel in a loop, cannot keep the server busy with starts.
START_INTERVAL = 2.0

#: Bytes of one pickled result. As much as an image of 64 megapixels takes before it is compressed for the wire; the
#: server holds one such result for each worker.
MAX_RESULT = 256 * MIB

#: The name of worker processes.
_NAME = "rpcstream-worker"


def is_worker() -> bool:
    """Tell whether this process is a worker process of a server."""
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.current_process().name == _NAME


class _Worker(threading.local):
    """The worker process of the current thread.

    Attributes:
        process: None if there is none.
        not_before: no process is started before this time (`monotonic`).
    """

    process: SpawnProcess | None = None
    connection: Connection
    not_before = 0.0


class Workers:
    """A bounded pool of worker processes.

    Args:
        size: processes at the same time. Each is started when a call finds none idle.

    Attributes:
        threads: one for each process. Calls that wait for them wait for a worker.
    """

    def __init__(self, size: int) -> None:
        # A thread writes the call and waits for the result, which would block the event loop.
        self.threads = DaemonThreads(size, _NAME)
        self._worker = _Worker()
        self._processes: set[SpawnProcess] = set()
        #: The calls whose callers wait, each with the process that runs it.
        self._calls: dict[Callable[[], Any], SpawnProcess | None] = {}
        #: Guards which process runs which call.
        self._lock = threading.Lock()
        self._closed = threading.Event()

    @property
    def process_ids(self) -> list[int]:
        """The ids of the workers that run."""
        return [process.pid for process in list(self._processes) if process.pid and process.is_alive()]

    async def run(self, method: str, function: Callable[[], Any]) -> Any:
        """Run a call in a worker, and return its result. If this is cancelled, the worker that runs it is killed.

        Raises:
            InternalError: the worker ended before there was a result.
            MessageTooLarge: the pickled result is over `MAX_RESULT`.
        """
        # After `multiprocessing` was imported, which waits for all its processes when the program ends.
        atexit.unregister(self.close)
        atexit.register(self.close)
        self._calls[function] = None
        try:
            return await asyncio.wrap_future(self.threads.submit(partial(self._run, method, function)))
        finally:
            with self._lock:
                process = self._calls.pop(function)
                if process is not None:
                    process.kill()

    def close(self) -> None:
        """Kill all workers: calls that wait are cancelled, and running ones are lost."""
        self._closed.set()
        self.threads.close()
        atexit.unregister(self.close)
        for process in list(self._processes):
            process.kill()

    def _run(self, method: str, function: Callable[[], Any]) -> Any:
        """Run a call in the worker of this thread."""
        worker, packed = self._worker, pickle.dumps(function)
        if worker.process is not None and not worker.process.is_alive():
            self._bury("while it had nothing to do")
        if worker.process is None:
            self._closed.wait(worker.not_before - monotonic())
            self._start(worker)
        with self._lock:
            if self._closed.is_set() or function not in self._calls:
                raise _lost()
            self._calls[function] = worker.process
        try:
            worker.connection.send_bytes(packed)
            answer = worker.connection.recv_bytes()
        except BaseException as error:
            # Without memory for the result, too: its rest is in the pipe.
            self._bury(f"while it ran {method!r}", is_wanted=function in self._calls)
            if isinstance(error, EOFError | OSError):
                raise _lost() from None
            raise
        finally:
            with self._lock:
                if function in self._calls:
                    self._calls[function] = None
        return _unpacked(answer)

    def _start(self, worker: _Worker) -> None:
        # Not forked, which is unsafe in a process with threads and an event loop, and would give it all descriptors.
        context = get_context("spawn")
        worker.not_before = monotonic() + START_INTERVAL
        worker.connection, theirs = context.Pipe()
        with theirs:
            process = context.Process(target=_serve_calls, args=(theirs, MAX_RESULT), name=_NAME)
            process.start()
        worker.process = process
        self._processes.add(process)

    def _bury(self, doing: str, *, is_wanted: bool = True) -> None:
        """End the process of this thread, which is dead or has closed its pipe, and log that."""
        process, self._worker.process = self._worker.process, None
        assert process is not None
        self._worker.connection.close()
        self._processes.discard(process)
        process.kill()
        process.join()
        if is_wanted and not self._closed.is_set():
            code = process.exitcode or 0
            how = f"exit status {code}" if code >= 0 else f"killed by signal {-code}"
            log.error("worker process %s ended %s: %s", process.pid, doing, how)


def _lost() -> InternalError:
    """Return the error for a call whose worker has died."""
    return InternalError(data={"reason": "worker lost"})


# -- in the worker process ---------------------------------------------------------------------------------------------


def _serve_calls(connection: Connection, max_result: int) -> None:
    """Run the calls that come through a pipe, one after the other, until the other end is closed.

    The main function of a worker process.

    Args:
        connection: the worker's end of the pipe.
        max_result: bytes of one pickled result.
    """
    # Ctrl-C goes to all processes of the group, and so does the end of a terminal; the server decides when workers end.
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        while True:
            connection.send_bytes(_run_packed(connection.recv_bytes(), max_result))


def _run_packed(packed: bytes, max_result: int) -> bytes:
    """Run a pickled call; returns the pickled outcome, with whether it is a result.

    Pickled here, so that a result that cannot be pickled fails its own call only.
    """
    failure: Any
    try:
        result = pickle.dumps((True, pickle.loads(packed)()))
        if len(result) > max_result:
            raise envelope.oversize(len(result), max_result, side="server", name="one result of a worker process")
        return result
    except RpcError as error:
        failure = error.code, error.message, error.data
    except BaseException as error:
        failure = "".join(traceback.format_exception(error))
    try:
        return pickle.dumps((False, failure))
    except Exception as error:
        return pickle.dumps((False, f"the data of an error cannot be sent between processes: {error}"))


def _unpacked(packed: bytes) -> Any:
    """Return the result of `_run_packed`, or raise what the call raised."""
    is_result, outcome = pickle.loads(packed)
    if is_result:
        return outcome
    raise HandlerFailed(outcome) if isinstance(outcome, str) else RpcError(*outcome)
