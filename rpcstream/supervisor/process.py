"""The worker processes of a supervisor: how they start, their counters, and the program files that are watched."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from .channel import Channel, Message

#: Milliseconds: changes that come within the second of these after each other are told together, but not later than the
#: first after the first change. An editor writes a file in some milliseconds, a checkout many files in half a second.
LONGEST, STEP = 500, 50

#: Milliseconds after which the thread looks whether it is to end.
LOOK = 200


def check_installed() -> None:
    """Raise RuntimeError unless files can be watched."""
    if importlib.util.find_spec("watchfiles") is None:
        raise RuntimeError('--reload needs watchfiles: pip install "rpcstream[reload]"')


class ProgramFiles(contextlib.ExitStack):
    """Watches the Python files of a program while the block runs: those in a folder, and those that are added.

    Args:
        folder: its path. Hidden folders, virtual environments and caches below it are not watched.
        on_change: called in the running event loop with the paths that have changed.
    """

    def __init__(self, folder: str, on_change: Callable[[list[str]], object]) -> None:
        super().__init__()
        self._folder = folder
        self._on_change = on_change
        #: Files from outside the folder, and the folders that they are in.
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def __enter__(self) -> Self:
        self.enter_context(_watched([self._folder], self._on_change))
        return super().__enter__()

    def add(self, files: Iterable[str]) -> None:
        """Also watch these files, such as those of a package under development."""
        self._files.update(file for file in files if not file.startswith(self._folder + os.sep))
        folders = {os.path.dirname(file) for file in self._files} - self._folders
        if folders:
            self._folders |= folders
            self.enter_context(_watched(folders, self._on_change, files=self._files))


@contextlib.contextmanager
def _watched(
    folders: Collection[str], on_change: Callable[[list[str]], object], *, files: Collection[str] | None = None
) -> Iterator[None]:
    """Watch Python files in some folders while the block runs.

    Args:
        folders: their paths.
        on_change: called in the running event loop with the paths that have changed.
        files: watch only these files in the folders. None: watch all Python files in the folders and below, except in
            hidden folders, virtual environments and caches.
    """
    from watchfiles import PythonFilter, watch

    is_python = PythonFilter()

    loop = asyncio.get_running_loop()
    over = threading.Event()

    def run() -> None:
        changes = watch(
            *folders,
            watch_filter=is_python if files is None else lambda change, path: path in files,
            recursive=files is None,
            stop_event=over,
            debounce=LONGEST,
            step=STEP,
            rust_timeout=LOOK,
            yield_on_timeout=False,
            raise_interrupt=False,
        )
        for found in changes:
            changed = sorted({os.path.relpath(path) for _, path in found})
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(on_change, changed)

    thread = threading.Thread(target=run, name="rpcstream-reload", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


#: How many threads the libraries behind numpy use; shared out among the workers.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

#: Reads of a channel whose process has ended.
_LAST_READS = 100

_NUMBERS = itertools.count(1)


class WorkerProcess:
    """One worker, from its start until its process has ended.

    Args:
        index: its place among the workers, from 0.
        start: the first message; see `server.worker.main`.
        environment: its environment variables.
        on_message: called with this worker and each message that it sends.
        on_room: called when the worker has taken all that was passed to it.
        on_end: called when the channel has ended; usually the process has ended, too.

    Attributes:
        channel: to the worker.
        number: unique among all workers of this supervisor.
        loaded: done when it has imported the program.
        ready: its message that it can serve.
        exited: its exit status; 128 and the signal's number if it was killed.
        is_told: it was told to end.
        has_left: it takes no more connections.
        last_given: the number of the connection that it got last. Among workers with equally many connections, the one
            that has waited longest is first.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(
        self,
        index: int,
        start: Message,
        environment: dict[str, str],
        *,
        on_message: Callable[[WorkerProcess, Message], object],
        on_room: Callable[[WorkerProcess], object],
        on_end: Callable[[WorkerProcess], object],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.number = next(_NUMBERS)
        self.index = index
        self.started = loop.time()
        self.loaded: asyncio.Future[None] = loop.create_future()
        self.ready: asyncio.Future[Message] = loop.create_future()
        self.exited: asyncio.Future[int] = loop.create_future()
        #: The counters that it reported last.
        self.counters: dict[str, Any] = {}
        self.is_told = self.has_left = False
        self.last_given = 0
        #: The numbers of connections that were sent to it, that are on their way, and that it reported as open.
        self._sent = self._passed = self._reported = 0
        self._has_ended = False
        self._on_end = on_end
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                _command(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                process_group=0,  # so that a Ctrl-C is for the supervisor alone
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self.channel = Channel(
            ours,
            lambda message, descriptor: on_message(self, message),
            self._channel_ended,
            on_room=lambda: on_room(self),
        )
        self.channel.start()
        self.channel.send(start)

    def __str__(self) -> str:
        return f"worker {self.index + 1} (pid {self.pid})"

    # -- connections --------------------------------------------------------------------------------------------------

    @property
    def open(self) -> int:
        """The number of its connections, including those on their way to it."""
        return self._reported + self._passed

    @property
    def waiting(self) -> int:
        """The number of messages that wait to be sent to it."""
        return self.channel.waiting

    def give(self, descriptor: int, host: str | None, *, is_over: bool) -> None:
        """Pass on a connection, which then belongs to the worker.

        Args:
            host: where it was accepted.
            is_over: there is no room for it: the worker refuses it.
        """
        self._passed += 1
        self._sent += 1
        self.channel.send({"type": "connection", "host": host, "is_over": is_over}, descriptor)

    def take_back(self) -> list[tuple[Message, int]]:
        """Take back the connections that were not sent to it yet: the message and descriptor of each."""
        taken = self.channel.take_back()
        self._passed -= len(taken)
        self._sent -= len(taken)
        return taken

    def report(self, message: Message) -> None:
        """Note the number of open connections that it reports, and how many it had received by then."""
        self._passed = self._sent - message["received"]
        self._reported = message["open"]

    # -- the process --------------------------------------------------------------------------------------------------

    async def count(self, seconds: float) -> None:
        """Ask for its counters, and wait up to this long; without an answer the old ones stay."""
        answer = self.channel.ask({"type": "count"})
        await asyncio.wait({answer}, timeout=seconds)
        if answer.done() and not answer.cancelled():
            self.counters = answer.result()["counters"]
        answer.cancel()

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        if not self.exited.done():
            self._process.send_signal(number)

    def end(self) -> None:
        """End a worker that serves nothing yet, by a signal and by the end of the channel."""
        self.is_told = True
        self.signal(signal.SIGTERM)
        self.channel.end()

    def kill_all(self) -> None:
        """Kill the process, and the processes of its group."""
        if not self.exited.done():
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                self.signal(signal.SIGKILL)

    def poll(self) -> bool:
        """Check whether the process has ended; if so, read its last messages and set `exited`."""
        status = self._process.poll()
        if status is None or self.exited.done():
            return False
        for _ in range(_LAST_READS):
            if self._has_ended:
                break
            self.channel.receive()
        self.exited.set_result(status if status >= 0 else 128 - status)
        return True

    def memory(self) -> int:
        """Bytes of main memory that the process uses; 0 if it has ended."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """Close the channel, and the connections that were not sent and not taken back."""
        self.channel.close()

    def _channel_ended(self) -> None:
        self._has_ended = True
        self._on_end(self)


def describe_status(status: int) -> str:
    """Describe how a process ended."""
    if status > 128:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(status - 128).name}"
    return f"with status {status}"


def _command(number: int) -> list[str]:
    """The command that starts a worker, with the options of this interpreter, and this package wherever it is.

    `-P`, so that no file in the current directory takes the place of a module that a worker imports before it knows its
    own `sys.path`.
    """
    folder = str(Path(__file__).resolve().parents[2])
    find = f"import sys; sys.path.insert(0, {folder!r})"
    run = f"from rpcstream.server.worker import main; sys.exit(main({number}))"
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [
        sys.executable,
        *flags,
        *(() if "-P" in flags else ("-P",)),
        "-c",
        f"{find}; {run}",
    ]


def environment_of_workers(count: int, processors: int) -> dict[str, str]:
    """The environment of each of `count` workers.

    Numeric libraries get their share of the processors as threads, unless the variables for that are set.
    """
    environment = dict(os.environ)
    if THREAD_VARIABLES[0] not in environment:  # the other libraries follow it, too
        for variable in THREAD_VARIABLES:
            environment.setdefault(variable, str(max(1, processors // count)))
    return environment


def processors() -> list[int]:
    """The numbers of the processors that this process may use, limited by the quota of its control group."""
    has_affinity = hasattr(os, "sched_getaffinity")
    numbers = sorted(os.sched_getaffinity(0)) if has_affinity else list(range(os.cpu_count() or 1))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        most = -(-int(quota) // int(period))
    except (OSError, ValueError):  # no such group, or "max"
        return numbers
    return numbers[: max(1, most)]


def check_possible(*, watches: bool, affinity: bool, memory_limit: int | None) -> None:
    """Raise RuntimeError unless workers can be run from here."""
    if sys.platform == "win32" or not hasattr(socket, "send_fds"):
        raise RuntimeError("workers need a POSIX system (Linux, macOS), where connections can be passed to processes")
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("workers are run from the main thread, which gets the signals")
    if watches:
        check_installed()
    if affinity and not hasattr(os, "sched_setaffinity"):
        raise RuntimeError("affinity: this system does not let processes choose their processors")
    if memory_limit is not None and not os.path.exists("/proc/self/statm"):
        raise RuntimeError("memory_limit: this system does not say what memory a process takes (/proc)")


#: Numbers that tell the present: those of a process that has ended do not count.
PRESENT = frozenset(("connections", "subscriptions", "metrics_present"))

#: Of which the largest is taken; and means, each with the number that it is a mean over.
_LARGEST = frozenset(("largest", "max_wait"))
_MEANS = {"mean_size": "runs", "mean_wait": "items"}


class Totals:
    """The counters of all workers that there are and were."""

    def __init__(self) -> None:
        self._past: dict[str, Any] = {}

    def add_past(self, counters: dict[str, Any]) -> None:
        """Add the last counters of a worker that has ended."""
        self._past = add(self._past, {name: value for name, value in counters.items() if name not in PRESENT})

    def sum(self, present: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """The counters of these workers and of those that have ended."""
        total = self._past
        for counters in present:
            total = add(total, counters)
        return total


def add(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Add counters by name; those that are dicts, name by name."""
    total = dict(one)
    for name, value in other.items():
        if name not in one:
            total[name] = value
        elif isinstance(value, dict):
            total[name] = add(one[name], value)
        elif name in _LARGEST:
            total[name] = max(one[name], value)
        elif name in _MEANS:
            weights = one.get(_MEANS[name], 0), other.get(_MEANS[name], 0)
            whole = sum(weights)
            total[name] = (one[name] * weights[0] + value * weights[1]) / whole if whole else 0.0
        else:
            total[name] = one[name] + value
    return total
