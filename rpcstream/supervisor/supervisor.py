"""Runs a server in several processes: starts workers, replaces them, and passes connections on to them.

The supervisor imports nothing of the program that the workers run. Each worker has a place. A worker that has died is
replaced there after a pause. A worker that is worn out or reloaded is replaced as soon as the new one is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import secrets
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from random import random
from typing import Any, Literal, TypeVar

from ..process import CLEAN_UP, join_names, raise_descriptor_limit
from ..systemd import Notifier
from ..text import get_logger
from .acceptor import SharedAcceptor
from .channel import Message
from .events import KINDS as EVENT_KINDS
from .events import EventExchange
from .options import WORKER_DEFAULTS, WorkerOptions
from .process import (
    ProgramFiles,
    Totals,
    WorkerProcess,
    check_possible,
    describe_status,
    environment_of_workers,
    processors,
)

log = get_logger("rpcstream.supervisor")

T = TypeVar("T")

#: Seconds in which workers report their counters; for a worker that does not, its last known counters are used.
COUNT_TIME = 1.0

#: Seconds between two checks of the workers' memory.
MEMORY_CHECK = 0.25

#: Seconds until a worker that has died is replaced: the first for one death, twice as long for each further one, up to
#: the second. Deaths count until a worker has lived for the third.
SHORTEST_PAUSE, LONGEST_PAUSE, LONG_LIFE = 0.1, 30.0, 60.0

#: The limits of workers differ by up to this share of `max_requests`, so that they are not all replaced at once.
JITTER = 0.1


class StartFailed(Exception):
    """A worker ended before it was ready.

    Attributes:
        status: its exit status.
        is_late: it was killed because it was not ready within `start_timeout`.
    """

    def __init__(self, status: int, *, is_late: bool = False) -> None:
        super().__init__(status)
        self.status = status
        self.is_late = is_late


class Place:
    """The place of one worker.

    Attributes:
        active: the worker that takes connections; None while there is none.
        is_due: set when another worker must be started here.
        pause: seconds before the next start.
        restarts: how often a worker has died here.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.active: WorkerProcess | None = None
        self.is_due = asyncio.Event()
        self.pause = 0.0
        self.restarts = 0


class Supervisor:
    """Runs a program in several processes until it is stopped.

    Args:
        entry: `module:function`; workers call it with a `WorkerLink` and `arguments`, and it gives the exit status.
        arguments: of JSON types.
        options: how many workers there are, and how they are kept.
        watch: a folder: when a Python file in it or below has changed, or one that a worker has imported from elsewhere
            (but not an installed library), the workers are replaced as by SIGHUP. A program that cannot be started is
            then tried again with the next change, also at the first start. None: none.
        on_listening: called with the address when connections are accepted.
        sockets: listen at these instead of where the program says; they stay open.
    """

    def __init__(
        self,
        entry: str,
        arguments: Any,
        options: WorkerOptions,
        *,
        watch: str | None = None,
        on_listening: Callable[[str], object] = lambda address: None,
        sockets: Iterable[socket.socket] = (),
    ) -> None:
        #: What workers need to run the program as this process would.
        self._program: Message = {
            "entry": entry,
            "arguments": arguments,
            "argv": list(sys.argv),
            "path": list(sys.path),
        }
        given: Any = {**WORKER_DEFAULTS, **options}
        self._affinity: bool = given["affinity"]
        self._max_requests: int | None = given["max_requests"]
        self._memory_limit: int | None = given["memory_limit"]
        self._start_timeout: float | None = given["start_timeout"]
        self._on_listening = on_listening
        self._sockets = list(sockets)
        self._processors = processors()
        # Systemd hears of this process alone: its variables are gone when workers inherit the others.
        self._notifier = Notifier.take()
        workers: int | Literal["auto"] | None = given["workers"]
        count = len(self._processors) if workers == "auto" else workers or 1
        self._environment = environment_of_workers(count, len(self._processors))
        if watch is not None:
            # Compiled modules are told from changed ones by the second and the size only.
            self._environment["PYTHONDONTWRITEBYTECODE"] = "1"
        self._places = [Place(index) for index in range(count)]
        #: All workers whose processes have not ended.
        self._workers: set[WorkerProcess] = set()
        self._files = None if watch is None else ProgramFiles(watch, self._on_change)
        self._totals = Totals()
        #: How often workers were replaced, by the reason; and how often a reload failed.
        self._replaced: Counter[str] = Counter()
        self._failed_reloads = 0
        self._events = EventExchange()
        self._group = secrets.token_hex(8)
        self._signals: list[int] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_first = True

    def run(self) -> int:
        """Run until SIGINT or SIGTERM, or until a worker's server is stopped by its own program. Blocks.

        Returns:
            The exit status: 0 after an orderly end; that of a worker which could not be started at first; 128 and the
            signal's number after a second signal.

        Raises:
            RuntimeError: this system cannot pass connections to other processes, or does not support an option; or
                this is not the main thread.
        """
        check_possible(watches=self._files is not None, affinity=self._affinity, memory_limit=self._memory_limit)
        raise_descriptor_limit()
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(self._main())

    # -- from the start to the end ------------------------------------------------------------------------------------

    async def _main(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._acceptor = SharedAcceptor(self._recipients, self._total)
        if self._sockets:
            await self._acceptor.listen({"sockets": self._sockets})
        if self._memory_limit is not None:
            self._run(self._limit_memory(self._memory_limit))
        with self._notifier, self._handled_signals(), self._files or contextlib.nullcontext():
            self._begin_version()
            try:
                await self._stopping.wait()
                self._notifier.stopping("Stopping")
                status = self._version.result() if self._version.done() else await self._drained()
            finally:
                self._acceptor.stop()
                for task in self._tasks:
                    task.cancel()
                await asyncio.wait({self._version})
                await self._kill(self._workers)
        if len(self._signals) > 1:
            return 128 + self._signals[-1]
        return status

    @contextlib.contextmanager
    def _handled_signals(self) -> Iterator[None]:
        handlers: dict[int, Callable[[], object]] = {
            signal.SIGINT: functools.partial(self._on_signal, signal.SIGINT),
            signal.SIGTERM: functools.partial(self._on_signal, signal.SIGTERM),
            signal.SIGHUP: self.reload,
            signal.SIGCHLD: self._reap,
        }
        before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            self._loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number, old in before.items():
                self._loop.remove_signal_handler(number)
                if old is not None:
                    signal.signal(number, old)

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        if len(self._signals) == 1:
            log.info("%s: stopping", signal.Signals(number).name)
            self._stopping.set()
            return
        for worker in self._workers:
            worker.signal(signal.SIGTERM)  # their second one, too
            self._loop.call_later(3 * CLEAN_UP, worker.kill_all)

    async def _drained(self) -> int:
        """Let all workers finish; gives the exit status."""
        self._version.cancel()  # it ends the workers that it starts
        known = [worker.ready.result() for worker in self._workers if worker.ready.done()]
        if not any(each["drain_delay"] for each in known):
            self._acceptor.stop()
        serving = list(self._recipients())
        for worker in serving:
            worker.is_told = True
            worker.signal(signal.SIGTERM)
        # Each ends itself by then, also where a handler keeps its event loop.
        longest = max((each["time_to_stop"] for each in known), default=0.0)
        await self._finish(self._workers, longest + 5 * CLEAN_UP)
        return max((worker.exited.result() for worker in serving), default=0)

    async def _finish(self, workers: Iterable[WorkerProcess], seconds: float) -> None:
        """Wait until workers that were told to end have ended, and kill those that take longer than this."""
        workers = list(workers)
        if workers:
            await asyncio.wait({worker.exited for worker in workers}, timeout=seconds)
        late = [worker for worker in workers if not worker.exited.done()]
        for worker in late:
            log.warning("%s has not ended in time: it is killed", worker)
        await self._kill(late)

    async def _kill(self, workers: Iterable[WorkerProcess]) -> None:
        for worker in (workers := list(workers)):
            worker.is_told = True
            worker.kill_all()
        if workers:
            await asyncio.wait({worker.exited for worker in workers})

    # -- versions of the program ---------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Start new workers, and end the old ones once all of the new ones are ready.

        A reload that is under way starts again.
        """
        if not self._stopping.is_set():
            self._version.cancel()
            self._begin_version()

    def _begin_version(self) -> None:
        def ended(version: asyncio.Task[int]) -> None:
            if not version.cancelled():
                self._stopping.set()

        self._version = self._run(self._run_version())
        self._version.add_done_callback(ended)

    async def _run_version(self) -> int:
        """Start workers of the current program, and keep one at each place, until a reload cancels this.

        Returns only if the first start fails: the exit status.
        """
        if not self._is_first:
            await self._reloaded()
        while self._is_first:
            status = await self._first_start()
            if status is not None:
                return status
        async with asyncio.TaskGroup() as group:
            for place in self._places:
                group.create_task(self._keep(place))
        return 0

    async def _first_start(self) -> int | None:
        """Start all workers, and accept connections; returns the exit status if that fails and is not tried again."""
        try:
            await self._start(self._places)
        except StartFailed as failed:
            if self._files is None and not failed.is_late:
                return failed.status
            pause = self._longer_pause(self._places[0]) if failed.is_late else math.inf
            log.error("it is tried again %s", f"in {pause:g} s" if failed.is_late else "when a file changes")
            await asyncio.sleep(pause)
            return None
        self._is_first = False
        self._acceptor.start()
        active = self._places[0].active
        elsewhere = [] if active is None else active.ready.result()["elsewhere"]
        self._on_listening([*self._acceptor.addresses, *elsewhere][0])
        self._notifier.ready(self._status)
        self._notifier.watch()
        return None

    async def _reloaded(self) -> None:
        log.info("reload: starting %d workers", len(self._places))
        self._notifier.reloading("Starting new workers")
        try:
            await self._start(self._places)
        except StartFailed as failed:
            self._failed_reloads += 1
            self._notifier.ready(f"Reload failed; {self._status}")
            log.error("reload failed: a new worker %s. The old workers continue", describe_status(failed.status))
        else:
            self._notifier.ready(self._status)
            log.info("reload: the new workers have taken over")

    async def _keep(self, place: Place) -> None:
        """Keep a worker at a place: start another one whenever it has ended or must be replaced."""
        while True:
            await place.is_due.wait()
            await asyncio.sleep(place.pause)
            try:
                await self._start([place])
            except StartFailed as failed:
                log.error(
                    "worker %d could not be started, %s: it is tried again in %g s",
                    *(place.index + 1, describe_status(failed.status), self._longer_pause(place)),
                )

    # -- starting workers ---------------------------------------------------------------------------------------------

    async def _start(self, places: list[Place]) -> None:
        """Start workers, and let them take over these places once all are ready.

        The others start when the first one has imported the program, so that a mistake in it is reported once.

        Raises:
            StartFailed: one of them ended or took too long; the others were ended.
        """
        workers: list[WorkerProcess] = []
        try:
            for place in places:
                workers.append(self._spawn(place.index))
                if place is places[0]:
                    await self._wait_for(workers[0], workers[0].loaded, workers)
            for worker in workers:
                info = await self._wait_for(worker, worker.ready, workers)
                await self._listen(worker, info)
        except BaseException as error:
            for worker in workers:
                worker.end()
            await self._finish(workers, 3 * CLEAN_UP)
            if not isinstance(error, OSError):
                raise
            log.error("a worker cannot be started: %s", error)
            raise StartFailed(1) from None
        for worker in workers:
            self._activate(worker)

    def _spawn(self, index: int) -> WorkerProcess:
        limit = self._max_requests
        start: Message = {
            **self._program,
            "is_first": index == 0 and self._is_first,
            "place": index + 1,
            "group": self._group,
            "max_requests": None if limit is None else limit + int(limit * JITTER * random()),
            "processor": self._processors[index % len(self._processors)] if self._affinity else None,
        }
        worker = WorkerProcess(
            index,
            start,
            self._environment,
            on_message=self._on_message,
            on_room=self._on_room,
            on_end=self._on_channel_end,
        )
        self._workers.add(worker)
        return worker

    async def _wait_for(self, worker: WorkerProcess, future: asyncio.Future[Any], workers: list[WorkerProcess]) -> Any:
        """Wait for a message of a worker that starts.

        Raises:
            StartFailed: one of these workers ended; or this one was killed after `start_timeout`.
        """
        limit = self._start_timeout
        left = None if limit is None else max(worker.started + limit - self._loop.time(), 0)
        ends = {each.exited for each in workers}
        await asyncio.wait({future, *ends}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            if end.done():
                raise StartFailed(end.result())
        if not future.done():
            self._replaced["start_timeout"] += 1
            log.error("%s was not ready within %g s (start_timeout): it is killed", worker, limit)
            await self._kill([worker])
            raise StartFailed(worker.exited.result(), is_late=True)
        return future.result()

    async def _listen(self, worker: WorkerProcess, info: Message) -> None:
        """Listen where the first worker says, if anywhere."""
        if info["where"] is not None and not self._acceptor.bound:
            try:
                await self._acceptor.listen(info["where"])
            except OSError as error:
                worker.channel.answer(info, {"errno": error.errno, "text": error.strerror})
                raise StartFailed(await worker.exited) from None

    # -- workers come and go ------------------------------------------------------------------------------------------

    def _activate(self, worker: WorkerProcess) -> None:
        """Pass connections to a worker from now on, and retire the one before it."""
        place = self._places[worker.index]
        before, place.active = place.active, worker
        place.is_due.clear()
        info = worker.ready.result()
        if self._files is not None:
            self._files.add(info["imported"])
        self._acceptor.max_connections = info["max_connections"]
        worker.channel.answer(info, {"addresses": self._acceptor.addresses, "hosts": self._acceptor.hosts})
        if worker.exited.done():
            self._died(worker, place)
        if before is not None:
            self._retire(before)
        self._acceptor.refresh()

    def _retire(self, worker: WorkerProcess) -> None:
        """Let a worker finish; connections that were not sent to it yet go to others."""
        worker.is_told = True
        worker.channel.send({"type": "retire"})
        self._pass_on(worker)
        self._run(self._finish([worker], worker.ready.result()["time_to_stop"] + 5 * CLEAN_UP))

    def _pass_on(self, worker: WorkerProcess) -> None:
        """Give connections that were not sent to a worker yet to others."""
        for message, descriptor in worker.take_back():
            self._acceptor.give(descriptor, message["host"], is_over=message["is_over"])

    def _reap(self) -> None:
        """Find out which workers have ended."""
        for worker in list(self._workers):
            if not worker.poll():
                continue
            self._workers.discard(worker)
            self._events.remove(worker)
            self._pass_on(worker)
            worker.close()
            self._totals.add_past(worker.counters)
            place = self._places[worker.index]
            if place.active is worker:
                self._died(worker, place)
        self._acceptor.refresh()

    def _died(self, worker: WorkerProcess, place: Place) -> None:
        """Replace a worker that has ended by itself."""
        place.active = None
        if self._stopping.is_set():
            return
        place.restarts += 1
        self._replaced["died"] += 1
        if self._loop.time() - worker.started >= LONG_LIFE:
            place.pause = 0.0
        status = worker.exited.result() if worker.exited.done() else 0
        log.error(
            "%s has ended with %d connections, %s: another one starts in %g s",
            *(worker, worker.open, describe_status(status), self._longer_pause(place)),
        )
        place.is_due.set()

    def _longer_pause(self, place: Place) -> float:
        """Make the pause before the next start longer; returns its seconds."""
        place.pause = min(max(2 * place.pause, SHORTEST_PAUSE), LONGEST_PAUSE)
        return place.pause

    def _replace(self, worker: WorkerProcess, reason: str, text: str) -> None:
        """Replace a worker that still serves, unless that is under way."""
        place = self._places[worker.index]
        if place.active is worker and not (place.is_due.is_set() or self._stopping.is_set()):
            self._replaced[reason] += 1
            log.warning("%s is replaced: %s", worker, text)
            place.is_due.set()

    async def _limit_memory(self, limit: int) -> None:
        """Replace each worker that takes more bytes of memory than this, also while a handler blocks its event loop."""
        while True:
            await asyncio.sleep(MEMORY_CHECK)
            for worker in list(self._recipients()):
                if (size := worker.memory()) > limit:
                    text = f"it takes {size} bytes of memory, more than {limit} (memory_limit)"
                    self._replace(worker, "memory_limit", text)

    # -- changed files -------------------------------------------------------------------------------------------------

    def _on_change(self, files: list[str]) -> None:
        log.warning("changed: %s: starting again", join_names(files, 3))
        self.reload()

    @property
    def _status(self) -> str:
        """The status for systemd while connections are accepted."""
        return f"Listening at {', '.join(self._acceptor.addresses)}, with {len(self._places)} workers"

    # -- messages of workers ------------------------------------------------------------------------------------------

    def _on_message(self, worker: WorkerProcess, message: Message) -> None:
        kind = message["type"]
        if kind == "open":
            worker.report(message)
            self._acceptor.refresh()
        elif kind in EVENT_KINDS:
            self._events.on_message(worker, message)
        elif kind == "loaded" and not worker.loaded.done():
            worker.loaded.set_result(None)
        elif kind == "ready" and not worker.ready.done():
            worker.ready.set_result(message)
            self._events.add(worker)
        elif kind == "leaving":
            self._on_leaving(worker, message)
        elif kind == "worn":
            self._replace(worker, "max_requests", f"it has answered {message['requests']} requests")
        elif kind == "ask":
            self._run(self._answer(worker, message))
        elif kind == "counted":
            worker.counters = message["counters"]

    def _on_leaving(self, worker: WorkerProcess, message: Message) -> None:
        """Handle that a worker takes no more connections: it was told to end, or its program stopped the server."""
        worker.has_left = True
        self._pass_on(worker)
        worker.channel.answer(message, {})
        if self._stopping.is_set():
            if not any(True for _ in self._recipients()):
                self._acceptor.stop()
        elif message["is_own"] and not worker.is_told:
            log.info("%s was stopped by its program: stopping", worker)
            self._stopping.set()
        elif not worker.is_told:  # by a signal that did not come from here
            worker.is_told = True
            place = self._places[worker.index]
            if place.active is worker:
                self._died(worker, place)
        self._acceptor.refresh()

    def _on_room(self, worker: WorkerProcess) -> None:
        self._acceptor.refresh()
        self._events.on_room(worker)

    def _recipients(self) -> Iterator[WorkerProcess]:
        """The workers that take connections."""
        return (
            worker
            for place in self._places
            if (worker := place.active) is not None and not worker.has_left and not worker.exited.done()
        )

    def _total(self) -> int:
        return sum(worker.open for worker in self._workers)

    def _on_channel_end(self, worker: WorkerProcess) -> None:
        """Kill a worker that has closed its channel and does not end."""
        if not worker.is_told and not worker.has_left:
            self._loop.call_later(10 * CLEAN_UP, worker.kill_all)

    # -- counting -----------------------------------------------------------------------------------------------------

    async def _answer(self, worker: WorkerProcess, question: Message) -> None:
        """Tell a worker the counters of all workers."""
        await asyncio.gather(*(each.count(COUNT_TIME) for each in self._workers if each.ready.done()))
        pauses = self._acceptor.pauses
        own = {"accept_pauses": pauses, "metrics": {"accept_pauses_total": {"": pauses}}}
        worker.channel.answer(
            question,
            {
                "counters": self._totals.sum([*(each.counters for each in self._workers), own]),
                "workers": [
                    {
                        "pid": active.pid if active else None,
                        "connections": active.open if active else 0,
                        "restarts": place.restarts,
                    }
                    for place in self._places
                    for active in [place.active]
                ],
                "supervisor": {"replaced": dict(self._replaced), "failed_reloads": self._failed_reloads},
            },
        )

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine as a task of its own."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
