"""Long runs of a service on NATS: `python -m tests.nats.endurance`.

Kills instances under load, one each second, and starts others; then kills nodes of a NATS cluster one after the other,
and starts them again; then stops instances in order, as a restart does, and replaces them (`--only rolling`). Each call
has a tag of its own, which its answer repeats, and each that is carried out is noted. Prints counts, and ends with
status 1 where

* a call was neither answered nor failed within its time-out,
* a call was answered with what belongs to another one, or a stream of items was,
* a call of an idempotent method was not answered,
* another call failed in another way than by a lost connection, or was carried out twice,
* any call at all failed, or was not carried out once, where instances were stopped in order.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rpcstream import AsyncClient, ConnectionLost, Retry

from ..cli.conftest import environment
from ..kit.nats_server import NatsCluster, NatsServer

SERVICE = "endurance"

APP = """
import asyncio
import os
from collections.abc import AsyncIterator

import numpy as np
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
    await asyncio.sleep(0.3)
    return tag, filling

@server
async def array(tag: str, values: np.ndarray) -> tuple[str, np.ndarray]:
    note(tag)
    await asyncio.sleep(0.01)
    return tag, values

@server
async def items(tag: str, count: int) -> AsyncIterator[tuple[str, int]]:
    note(tag)
    for number in range(count):
        yield tag, number
        await asyncio.sleep(0.002)

server.join_nats(os.environ["SERVICE"], only=True)
server.run(on_listening=lambda address: print(address, flush=True))
"""

#: Kinds of calls, and whether they are idempotent; a caller of each client makes one kind.
KINDS = {
    **dict.fromkeys(("quick", "slow"), True),
    **dict.fromkeys(("once", "slow_once", "array", "items", "batch", "notification"), False),
}

#: Items of a stream; more than its credit at the beginning.
ITEMS = 100

#: Seconds after its time-out by which a call has failed, also on a busy machine.
GRACE = 2.0

#: Seconds that a caller waits after a failure, so that failures at once do not fill the run.
PAUSE = 0.01


class Load:
    """Callers that call without a pause.

    Args:
        is_in_order: nothing is killed: clients repeat no call, and none may fail.

    Attributes:
        answered: by kind, calls with the right answer.
        excused: by kind, calls that are not idempotent and whose connection was lost.
        faults: what should not be.
        slowest: seconds of the call that took longest.
    """

    def __init__(self, address: str, options: argparse.Namespace, *, is_in_order: bool) -> None:
        self.answered: Counter[str] = Counter()
        self.excused: Counter[str] = Counter()
        self.faults: list[str] = []
        self.slowest = 0.0
        self._is_in_order = is_in_order
        self._address = address
        self._timeout: float = options.timeout
        self._is_over = False
        self._tags = itertools.count()
        #: Tags of what was noted, if all is right.
        self._expected: list[str] = []
        self._clients = [self._make_client() for _ in range(options.clients)]
        self._tasks = [asyncio.create_task(self._call(client, kind)) for client in self._clients for kind in KINDS]

    def _make_client(self) -> AsyncClient:
        repeats: dict[str, Any] = {} if self._is_in_order else {"retry": Retry(times=20), "wait_for": self._timeout}
        return AsyncClient(self._address, timeout=self._timeout, **repeats)

    async def end(self, notes: Callable[[], Counter[str]]) -> str:
        """Let the last calls end; tells what became of all."""
        self._is_over = True
        await asyncio.gather(*self._tasks)
        await asyncio.gather(*(client.close() for client in self._clients))
        noted = notes()
        wrong = {tag for tag, count in noted.items() if count > 1}
        wrong |= {tag for tag in self._expected if self._is_in_order and noted[tag] != 1}
        self.faults += [f"{tag} was carried out {noted[tag]} times" for tag in sorted(wrong)]
        return (
            f"{self.answered.total()} calls answered {dict(self.answered)}; {self.excused.total()} that are not "
            f"idempotent failed since the connection was lost; {len(self.faults)} faults; "
            f"the slowest took {self.slowest:.2f} s"
        )

    async def _call(self, client: AsyncClient, kind: str) -> None:
        make = getattr(self, f"_{kind}", self._plain)
        while not self._is_over:
            tag, start = f"{kind}-{next(self._tags)}", time.monotonic()
            try:
                async with asyncio.timeout(self._timeout + GRACE):  # what the client should have done itself
                    await make(client, kind, tag)
            except Exception as error:
                is_excused = isinstance(error, ConnectionLost) and not KINDS[kind]
                if is_excused and not self._is_in_order:
                    self.excused[kind] += 1
                else:
                    self.faults.append(f"{tag} after {time.monotonic() - start:.2f} s: {error!r}")
                await asyncio.sleep(PAUSE)
            else:
                self.answered[kind] += 1
            self.slowest = max(self.slowest, time.monotonic() - start)

    def _check(self, tag: str, answer: Any, expected: Any, *, notes: bool = True) -> None:
        if answer != expected:
            self.faults.append(f"{tag} was answered with {str(answer)[:80]}")
        self._expected += [tag] * notes

    # -- one call of each kind ----------------------------------------------------------------------------------------

    async def _plain(self, client: AsyncClient, kind: str, tag: str) -> None:
        filling = tag * random.randrange(1, 200)
        self._check(tag, await client.call(kind, tag, filling), [tag, filling], notes=not KINDS[kind])

    async def _array(self, client: AsyncClient, kind: str, tag: str) -> None:
        # One of four is over `max_payload`.
        most = random.choice((20_000, 20_000, 20_000, 400_000))
        values = np.full(random.randrange(most // 2, most), hash(tag), dtype=np.int64)
        told, answer = await client.array(tag, values)
        self._check(tag, (told, np.array_equal(answer, values)), (tag, True))

    async def _items(self, client: AsyncClient, kind: str, tag: str) -> None:
        found = [item async for item in client.stream_request(kind, [tag, ITEMS], timeout=self._timeout)]
        self._check(tag, found, [[tag, number] for number in range(ITEMS)])

    async def _batch(self, client: AsyncClient, kind: str, tag: str) -> None:
        async with client.batch() as batch:
            calls = [batch.once(f"{tag}.0", tag), batch.slow_once(f"{tag}.1", tag), batch.once(f"{tag}.2", tag)]
        for number, call in enumerate(calls):
            self._check(f"{tag}.{number}", call.result(), [f"{tag}.{number}", tag])

    async def _notification(self, client: AsyncClient, kind: str, tag: str) -> None:
        await client.notify.once(tag, "")
        self._expected.append(tag)
        await asyncio.sleep(0.01)


class Instances:
    """The processes of the service.

    Args:
        address: `nats://.../service`.
        folder: of the program and of what it notes.

    Attributes:
        slowest: seconds from SIGTERM to the end, of the one that took longest.
        faults: the status with which those that were stopped have ended, where it is not 0.
    """

    def __init__(self, address: str, folder: Path) -> None:
        self._address = address
        self._folder = folder
        self.slowest = 0.0
        self.faults: list[str] = []
        #: Those that serve, the oldest first, and those that begin.
        self.serving: list[asyncio.subprocess.Process] = []
        self._starting: set[asyncio.Task[None]] = set()

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
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "app.py",
            cwd=self._folder,
            env=environment(NOTES=str(self._folder / "notes"), SERVICE=self._address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None
        if not await process.stdout.readline():
            raise RuntimeError(f"an instance ended with status {await process.wait()} before it served")
        self.serving.append(process)

    async def kill_oldest(self) -> None:
        """SIGKILL for the one that has served for longest, as soon as another one serves, too."""
        while len(self.serving) < 2:
            await asyncio.sleep(0.01)
        process = self.serving.pop(0)
        process.kill()
        await process.communicate()

    async def stop_oldest(self) -> None:
        """SIGTERM for the one that has served for longest, and wait for its end."""
        start, process = time.monotonic(), self.serving.pop(0)
        process.terminate()
        await process.communicate()
        self.slowest = max(self.slowest, time.monotonic() - start)
        if process.returncode:
            self.faults.append(f"an instance ended with status {process.returncode}")

    async def stop(self) -> None:
        await asyncio.gather(*self._starting)
        await asyncio.gather(*(self.stop_oldest() for _ in self.serving))

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


async def kill_nodes(instances: Instances, options: argparse.Namespace, *, cluster: NatsCluster) -> str:
    """Kill one node after the other; each is back and joined before the next one is killed."""
    start, kills = time.monotonic(), 0
    while time.monotonic() < start + options.seconds:
        await asyncio.sleep(options.node_every / 2)
        node = cluster.nodes[kills % len(cluster.nodes)]
        node.kill()
        kills += 1
        await asyncio.sleep(options.node_every / 2)
        await asyncio.to_thread(node.restart)
        await asyncio.to_thread(cluster.wait_joined)
    return f"{kills} nodes killed in {time.monotonic() - start:.0f} s"


async def replace(instances: Instances, options: argparse.Namespace, *, start_first: bool) -> str:
    """Stop the oldest instance again and again; another one is started before that, or when it has ended."""
    start, count = time.monotonic(), 0
    while time.monotonic() - start < options.seconds:
        if start_first:
            await instances.start(1)
        await instances.stop_oldest()
        if not start_first:
            await instances.start(1)
        count += 1
    seconds = time.monotonic() - start
    return f"{count} instances replaced in {seconds:.0f} s, the slowest ended in {instances.slowest:.2f} s"


async def under_load(
    name: str, urls: list[str], options: argparse.Namespace, disturb: Callable[..., Awaitable[str]]
) -> list[str]:
    """Start instances and callers, disturb them, and tell what came of it; returns the faults."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "app.py").write_text(APP)
        address = f"nats://{','.join(url.partition('://')[2] for url in urls)}/{SERVICE}"
        instances = Instances(address, Path(folder))
        try:
            await instances.start(options.instances)
            load = Load(address, options, is_in_order=name.startswith("rolling"))
            done = await disturb(instances, options)
            told = await load.end(instances.notes)
        finally:
            await instances.stop()
    print(f"{name}: {done}; {told}", flush=True)
    return load.faults + instances.faults


async def run(options: argparse.Namespace) -> int:
    faults: list[str] = []
    if options.only in (None, "instances"):
        with NatsServer() as server:
            faults += await under_load("instances", [server.url], options, kill_instances)
    if options.only in (None, "nodes"):
        with NatsCluster(3) as cluster:
            faults += await under_load("nodes", cluster.urls, options, partial(kill_nodes, cluster=cluster))
    if options.only in (None, "rolling"):
        for start_first in (True, False):
            with NatsServer() as server:
                name = f"rolling, one more {'before' if start_first else 'after'} each"
                faults += await under_load(name, [server.url], options, partial(replace, start_first=start_first))
    for fault in faults[:20]:
        print("FAULT:", fault)
    return 1 if faults else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="of each of the runs (default: 60)")
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument("--clients", type=int, default=5, help="each with a caller for every kind of call (default: 5)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two killed instances (default: 1)")
    parser.add_argument("--node-every", type=float, default=4.0, help="seconds between two killed nodes (default: 4)")
    parser.add_argument("--timeout", type=float, default=10.0, help="of each call (default: 10)")
    parser.add_argument("--only", choices=("instances", "nodes", "rolling"), help="one of the runs")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main())
