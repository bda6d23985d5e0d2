"""Long runs of a service on NATS: `python -m tests.nats.endurance`.

Kills instances under load, one each second, and starts others; then kills nodes of a NATS cluster one after the other,
and starts them again; then stops instances in order, one after the other, and replaces them (see `rolling`). Each call
has a tag of its own, which its answer repeats, and each that is carried out is noted. Prints counts, and ends with
status 1 where

* a call was neither answered nor failed within its time-out,
* a call was answered with what belongs to another one, or a stream of items was,
* a call of an idempotent method was not answered,
* another call failed in another way than by a lost connection, or was carried out twice,
* any call at all failed where instances were stopped in order.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rpcstream import AsyncClient, ConnectionLost

from ..cli.conftest import environment
from ..kit.nats_server import NatsCluster, NatsServer

SERVICE = "endurance"

#: Takes the address and the file for notes as arguments, where it is no target of `rpcstream-server`.
APP = """
import asyncio
import os
import sys

import rpcstream

notes = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
server = rpcstream.Server()

def note(tag: str) -> None:
    os.write(notes, tag.encode() + b"\\n")

@server(idempotent=True)
def quick(tag: str, filling: str) -> tuple[str, str]:
    return tag, filling

@server(idempotent=True)
async def slow(tag: str, filling: str) -> tuple[str, str]:
    await asyncio.sleep(0.05)
    return tag, filling

@server
def once(tag: str, filling: str) -> tuple[str, str]:
    note(tag)
    return tag, filling

@server
async def slow_once(tag: str, filling: str) -> tuple[str, str]:
    note(tag)
    await asyncio.sleep(0.05)
    return tag, filling

@server
async def items(tag: str, count: int):
    note(tag)
    for number in range(count):
        yield tag, number
        await asyncio.sleep(0)

if __name__ == "__main__":
    server.join_nats(os.environ["SERVICE"], only=True)
    server.run(on_listening=lambda address: print(address, flush=True))
"""

#: Methods by the caller's number, and whether they are idempotent.
METHODS = {"quick": True, "slow": True, "once": False, "slow_once": False, "items": False}

#: Items of a stream; more than its credit at the beginning.
ITEMS = 100

#: Seconds after its time-out by which a call has failed, also on a busy machine.
GRACE = 2.0

#: Seconds that a caller waits after a failure, so that failures at once do not fill the run.
PAUSE = 0.01


#: Makes one call, of a method and with a tag.
MakeCall = Callable[[AsyncClient, str, str], Awaitable[None]]


@dataclass
class Outcome:
    """What became of the calls.

    Attributes:
        answered: by method, those with the right answer.
        excused: by method, calls that are not idempotent and whose connection was lost.
        faults: what should not be.
        slowest: seconds of the call that took longest.
    """

    answered: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: float = 0.0

    def __str__(self) -> str:
        answered = ", ".join(f"{count} {method}" for method, count in sorted(self.answered.items()))
        excused = ", ".join(f"{count} {method}" for method, count in sorted(self.excused.items()))
        return (
            f"{self.answered.total()} calls answered ({answered}); {self.excused.total()} that are not idempotent "
            f"failed since the connection was lost ({excused or 'none'}); {len(self.faults)} faults; "
            f"the slowest took {self.slowest:.2f} s"
        )


class Load:
    """Callers that call without a pause: `each` callers at each client, every one with a method of its own."""

    #: By the caller's number, and whether they are idempotent.
    methods: Mapping[str, bool] = METHODS

    def __init__(self, address: str, options: argparse.Namespace) -> None:
        self.outcome = Outcome()
        self._timeout: float = options.timeout
        self._is_over = False
        self._tags = itertools.count()
        self._clients = [self._make_client(address) for _ in range(options.clients)]
        methods = itertools.cycle(self.methods)
        self._tasks = [
            asyncio.create_task(self._call(client, next(methods)))
            for client in self._clients
            for _ in range(options.each)
        ]

    def _make_client(self, address: str) -> AsyncClient:
        return AsyncClient(address, retry="idempotent", retries=20, wait_for=self._timeout, timeout=self._timeout)

    async def end(self) -> Outcome:
        self._is_over = True
        await asyncio.gather(*self._tasks)
        await asyncio.gather(*(client.close() for client in self._clients))
        return self.outcome

    def check_notes(self, notes: Counter[str]) -> list[str]:
        """Faults that are seen by how often each tag was carried out."""
        return [f"{tag} was carried out {count} times" for tag, count in notes.items() if count > 1]

    def _maker(self, method: str) -> MakeCall:
        return self._read_items if method == "items" else self._ask

    async def _call(self, client: AsyncClient, method: str) -> None:
        make = self._maker(method)
        while not self._is_over:
            tag = f"{method}-{next(self._tags)}"
            start = time.monotonic()
            try:
                async with asyncio.timeout(self._timeout + GRACE):  # what the client should have done itself
                    await make(client, method, tag)
            except ConnectionLost as error:
                self._failed(method, tag, error)
                await asyncio.sleep(PAUSE)
            except Exception as error:
                self.outcome.faults.append(f"{tag} after {time.monotonic() - start:.2f} s: {error!r}")
                await asyncio.sleep(PAUSE)
            else:
                self.outcome.answered[method] += 1
            self.outcome.slowest = max(self.outcome.slowest, time.monotonic() - start)

    def _failed(self, method: str, tag: str, error: ConnectionLost) -> None:
        if self.methods[method]:
            self.outcome.faults.append(f"{tag}, which is idempotent: {error!r}")
        else:
            self.outcome.excused[method] += 1

    async def _ask(self, client: AsyncClient, method: str, tag: str) -> None:
        filling = tag * random.randrange(1, 200)
        answer = await client.call(method, tag, filling)
        if answer != [tag, filling]:
            self.outcome.faults.append(f"{tag} was answered with {str(answer)[:60]}")

    async def _read_items(self, client: AsyncClient, method: str, tag: str) -> None:
        stream = client.stream_request(method, [tag, ITEMS], timeout=self._timeout)
        found = [item async for item in stream]
        if found != [[tag, number] for number in range(ITEMS)]:
            self.outcome.faults.append(f"the items of {tag} were {str(found)[:60]}")


class Instances:
    """The processes of the service.

    Args:
        address: `nats://.../service`.
        folder: of the program and of what it notes.

    Attributes:
        slowest: seconds from SIGTERM to the end, of the one that took longest.
    """

    def __init__(self, address: str, folder: Path, options: argparse.Namespace) -> None:
        self._address = address
        self._folder = folder
        self._log = None if options.log else asyncio.subprocess.DEVNULL
        self._drain_delay: float = options.drain_delay
        self._workers = ["--workers", str(options.workers)] if options.workers > 1 else []
        self.slowest = 0.0
        self._faults: list[str] = []
        self._command = [str(Path(sys.executable).parent / "rpcstream-server"), "app.py"] if options.command else []
        #: Those that serve, the oldest first, and those that begin.
        self.serving: list[asyncio.subprocess.Process] = []
        self._starting: set[asyncio.Task[None]] = set()
        self.started = asyncio.Condition()

    async def start(self, count: int) -> None:
        """Start so many and wait until they serve."""
        for _ in range(count):
            self.begin()
        await asyncio.gather(*self._starting)

    def begin(self) -> None:
        """Start one; it is among `serving` later."""
        task = asyncio.create_task(self._start())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start(self) -> None:
        url, _, service = self._address.rpartition("/")
        command = [sys.executable, "app.py"]
        if self._command:
            command = [*self._command, "--nats", url, "--service", service, "--nats-only", *self._workers]
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self._folder,
            env=environment(
                NOTES=str(self._folder / "notes"), SERVICE=self._address, DRAIN_DELAY=str(self._drain_delay)
            ),
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
        )
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            raise RuntimeError(f"an instance ended with status {await process.wait()} before it served")
        async with self.started:
            self.serving.append(process)
            self.started.notify_all()

    async def kill_oldest(self) -> None:
        """SIGKILL for the one that has served for longest, as soon as another one serves, too."""
        async with self.started:
            await self.started.wait_for(lambda: len(self.serving) > 1)
        process = self.serving.pop(0)
        process.kill()
        await process.communicate()

    async def stop_oldest(self) -> None:
        """SIGTERM for the one that has served for longest, and wait for its end."""
        await self._stop(self.serving.pop(0))

    def reload_oldest(self) -> None:
        """SIGHUP for the one that was not told so for longest: it replaces its workers."""
        process = self.serving.pop(0)
        process.send_signal(signal.SIGHUP)
        self.serving.append(process)

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        await process.communicate()
        self.slowest = max(self.slowest, time.monotonic() - start)
        if process.returncode:
            self._faults.append(f"an instance ended with status {process.returncode}")

    async def stop(self) -> list[str]:
        """End all with SIGTERM; what instances that got it ended with, where it is not 0."""
        await asyncio.gather(*self._starting)
        await asyncio.gather(*map(self._stop, self.serving))
        return self._faults

    def notes(self) -> Counter[str]:
        """How often each tag was noted."""
        notes = self._folder / "notes"
        return Counter(notes.read_text().split() if notes.exists() else [])


async def kill_instances(instances: Instances, options: argparse.Namespace) -> str:
    """Kill the oldest instance again and again; another one begins at the same time."""
    start = time.monotonic()
    kills = int(options.seconds / options.every)
    for number in range(kills):
        await asyncio.sleep(start + (number + 1) * options.every - time.monotonic())
        await instances.kill_oldest()
        instances.begin()
    return f"{kills} instances killed in {time.monotonic() - start:.0f} s"


async def kill_nodes(cluster: NatsCluster, options: argparse.Namespace) -> str:
    """Kill one node after the other; each is back and joined before the next one is killed."""
    start = time.monotonic()
    end, kills = start + options.seconds, 0
    while time.monotonic() < end:
        await asyncio.sleep(options.node_every / 2)
        node = cluster.nodes[kills % len(cluster.nodes)]
        node.kill()
        kills += 1
        await asyncio.sleep(options.node_every / 2)
        await asyncio.to_thread(node.restart)
        await asyncio.to_thread(cluster.wait_joined)
    return f"{kills} nodes killed in {time.monotonic() - start:.0f} s"


async def under_load(
    name: str,
    urls: list[str],
    options: argparse.Namespace,
    disturb: Callable[[Instances], Awaitable[str]],
    make_load: Callable[[str, argparse.Namespace], Load] = Load,
    app: str = APP,
) -> list[str]:
    """Start instances of a program and callers, disturb them, and tell what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "app.py").write_text(app)
        address = f"nats://{','.join(url.partition('://')[2] for url in urls)}/{SERVICE}"
        instances = Instances(address, Path(folder), options)
        try:
            await instances.start(options.instances)
            load = make_load(address, options)
            done = await disturb(instances)
            outcome = await load.end()
        finally:
            faults = await instances.stop()
        noted = load.check_notes(instances.notes())
    print(f"{name}: {done}; {outcome}; {len(noted)} carried out twice or not at all", flush=True)
    return outcome.faults + noted + faults


async def run(options: argparse.Namespace) -> int:
    faults: list[str] = []
    if options.only in (None, "instances"):
        with NatsServer() as server:
            faults += await under_load("instances", [server.url], options, lambda i: kill_instances(i, options))
    if options.only in (None, "nodes"):
        with NatsCluster(3) as cluster:
            faults += await under_load("nodes", cluster.urls, options, lambda i: kill_nodes(cluster, options))
    if options.only in (None, "rolling"):
        from .rolling import APP as ROLLING
        from .rolling import RollingLoad, reload, replace_after, replace_before

        for replace in (replace_before, replace_after if options.workers == 1 else reload):
            with NatsServer() as server:
                disturb = partial(replace, options=options)
                name = f"rolling, {replace.__name__}"
                faults += await under_load(name, [server.url], options, disturb, RollingLoad, ROLLING)
    for fault in faults[: options.show]:
        print("FAULT:", fault)
    return 1 if faults else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of each of the runs (default: 60)")
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--each", type=int, default=5, help="calls in flight at each client (default: 5)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two killed instances (default: 1)")
    parser.add_argument("--node-every", type=float, default=4.0, help="seconds between two killed nodes (default: 4)")
    parser.add_argument("--timeout", type=float, default=10.0, help="of each call (default: 10)")
    parser.add_argument("--only", choices=("instances", "nodes", "rolling"), help="one of the runs")
    parser.add_argument("--drain-delay", type=float, default=0.0, help="of instances that are stopped (default: 0)")
    parser.add_argument("--command", action="store_true", help="start instances by the command rpcstream-server")
    parser.add_argument("--workers", type=int, default=1, help="of each instance, with --command (default: 1)")
    parser.add_argument("--log", action="store_true", help="show what the instances log")
    parser.add_argument("--show", type=int, default=20, help="how many faults are shown (default: 20)")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main())
