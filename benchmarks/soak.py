"""Run all features at once for minutes, and check that memory stays flat, files are closed and answers are right.

    python benchmarks/soak.py --minutes 5

A server and two programs of clients, one with an event loop and one with threads, and now and then a third one that is
killed. They use all features: calls, batches, streams both ways, events, calls back, cancels, time-outs;
connections that open, close, are reset, are not read or send nonsense. Every few seconds all of it rests: then nothing
may be left over, and memory, files and objects are counted. Exits with status 1 if an answer was wrong or a count grows
(`soaking/verdict.py` defines that). The same seed gives the same choices.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from soaking import churn, service, tasks, threads, verdict
from soaking.tally import Tally, answer, obey

#: Each thread of glibc's malloc has a cache, and a heap that it shares with few others. Both keep more and more of what
#: was freed, in steps of some 100 KiB, for many minutes: megabytes that nothing holds. So there is one heap, no cache.
ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0"}

#: Seconds after which a process that is to rest hangs.
REST_MAX = 60.0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    add = parser.add_argument
    add("--minutes", type=float, default=5.0, help="how long (%(default)s)")
    add("--period", type=float, default=10.0, metavar="SECONDS", help="from one rest to the next (%(default)s)")
    add("--seed", default="1", help="of all dice (%(default)s)")
    add("--role", choices=["server", "tasks", "threads"], help=argparse.SUPPRESS)
    add("--address", help=argparse.SUPPRESS)
    return parser


class Process:
    """A process of the soak. It takes commands on stdin, one word each, and answers with a sample."""

    def __init__(self, role: str, *arguments: str) -> None:
        self.role = role
        command = [sys.executable, str(Path(__file__).resolve()), "--role", role, *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **ENVIRONMENT}
        )

    def say(self, word: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(word + "\n")
            self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Read the process's next answer.

        Raises:
            SystemExit: no answer came, because the process is dead or hangs.
        """
        assert self._process.stdout is not None
        alarm = threading.Timer(REST_MAX, self._process.kill)
        alarm.start()
        line = self._process.stdout.readline()
        alarm.cancel()
        if not line:
            sys.exit(f"the process {self.role!r} is dead, or did not answer for {REST_MAX:.0f} s")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def end(self) -> int:
        """Let the process end, and return its exit status."""
        self.say("end")
        try:
            self._process.communicate(timeout=REST_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
        return self._process.returncode


def soak(options: argparse.Namespace) -> int:
    server = Process("server")
    running = [server]
    try:
        address = server.hear()["address"]
        loads = [Process(role, "--address", address, "--seed", options.seed) for role in ("tasks", "threads")]
        running += loads
        processes = observe(options, address, server, loads)
        found = verdict.reasons(processes, [*tasks.FEATURES, *threads.FEATURES])
        found += [f"{load.role} ended with status {status}" for load in loads if (status := load.end())]
        found += [f"the server ended with status {status}"] if (status := server.end()) else []
    finally:
        for process in running:
            process.kill()
    print(verdict.summary(processes))
    print(*(found or ["all is well"]), sep="\n")
    return 1 if found else 0


def observe(
    options: argparse.Namespace, address: str, server: Process, loads: list[Process]
) -> dict[str, list[dict[str, Any]]]:
    """Let the processes work and rest in turns until the time is over; return the samples of each."""
    choose = random.Random(options.seed)
    processes: dict[str, list[dict[str, Any]]] = {process.role: [] for process in (server, *loads)}
    start = monotonic()
    print(verdict.heading(list(processes)), flush=True)
    while True:
        victim = Process("tasks", "--address", address, "--seed", f"{options.seed} victim {len(processes['server'])}")
        sleep(options.period * (0.5 + 0.4 * choose.random()))
        victim.kill()
        sleep(options.period * 0.1)
        for load in loads:
            load.say("rest")
        samples = {load.role: load.hear() for load in loads}
        server.say("rest")
        samples = {server.role: server.hear(), **samples}
        for role, sample in samples.items():
            processes[role].append(sample)
        print(verdict.row(monotonic() - start, samples), flush=True)
        if monotonic() - start >= options.minutes * 60:
            return processes
        for load in loads:
            load.say("go")


async def load_with_tasks(address: str, seed: str) -> None:
    tally = Tally()
    load = tasks.Load(address, seed, tally)
    is_over = asyncio.Event()

    async def rest() -> None:
        answer(tally.sample(await load.rest()))

    async def go() -> None:
        load.go()

    async def end() -> None:
        await load.end()
        is_over.set()

    load.start()
    obey(asyncio.get_running_loop(), {"rest": rest, "go": go, "end": end})
    await is_over.wait()


def load_with_threads(address: str, seed: str) -> None:
    tally = Tally()
    load = threads.Threads(address, seed, tally)
    load.start()
    for line in sys.stdin:
        match line.strip():
            case "rest":
                answer(tally.sample(load.rest()))
            case "go":
                load.go()
            case "end":
                load.end()
                return


def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if options.role == "server":
        service.main()
    elif options.role == "tasks":
        with asyncio.Runner(loop_factory=service.loop_factory("auto")) as runner:
            runner.run(load_with_tasks(options.address, options.seed))
    elif options.role == "threads":
        load_with_threads(options.address, options.seed)
    else:
        return soak(options)
    return 0


assert churn  # its features are among those of `tasks`

if __name__ == "__main__":
    sys.exit(main())
