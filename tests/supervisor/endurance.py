"""Long runs of a server with several workers: `python -m tests.supervisor.endurance`.

Kills workers under load, reloads under load, and looks at how connections are spread. Prints counts, and ends with
status 1 where a call was lost that should not be.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from rpcstream import AsyncClient, ConnectionLost

from ..cli.conftest import environment

APP = """
import asyncio
import os

import rpcstream

server = rpcstream.Server(drain_timeout=10)

@server
def quick(number: int) -> tuple[int, int]:
    return os.getpid(), number

@server
async def slow(number: int) -> tuple[int, int]:
    await asyncio.sleep(0.02)
    return os.getpid(), number
"""

#: The pause after a death does not grow here, so that many fit into a run.
RUN = """
import sys
from rpcstream.supervisor.process import Program
from rpcstream.supervisor.supervisor import Supervisor, WorkerOptions

arguments = {"target": "app:server", "where": {"port": 0}}
program = Program(
    entry="rpcstream.supervisor.worker:serve_target", arguments=arguments, argv=sys.argv, path=[".", *sys.path]
)
options = WorkerOptions(count=int(sys.argv[1]), longest_pause=0.1)
sys.exit(Supervisor(program, options, on_listening=lambda address: print(address, flush=True)).run())
"""


class Load:
    """Callers that call without a pause, each on a connection of its own.

    Attributes:
        answered, excused, lost: calls with the right answer, those whose worker was killed, and others that failed.
    """

    def __init__(self, address: str, killed: set[int]) -> None:
        self.answered = 0
        self.excused = 0
        self.lost: list[str] = []
        self._address = address
        self._killed = killed
        self._is_over = False
        self._tasks = [asyncio.create_task(self._call(number)) for number in range(12)]

    async def _call(self, caller: int) -> None:
        method = "slow" if caller % 2 else "quick"
        async with AsyncClient(self._address) as client:
            number, pid = caller, None
            while not self._is_over:
                number += 1000
                try:
                    pid, echoed = await client.call(method, number)
                    assert echoed == number
                    self.answered += 1
                except Exception as error:
                    # Of a new connection it is not known yet who serves it: it counts with those of killed workers.
                    if isinstance(error, ConnectionLost) and (pid is None or pid in self._killed):
                        self.excused += 1
                    else:
                        self.lost.append(f"{error!r} (worker {pid})")
                    pid = None

    async def end(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)


async def workers(address: str) -> list[dict[str, Any]]:
    """The connection may be that of a worker which has just been killed."""
    async with AsyncClient(address, retries=10, retry="all") as client:
        return (await client.call("rpc.stats"))["workers"]


async def pids(address: str) -> set[int]:
    """The workers, once there is one at each place."""
    while None in (found := {worker["pid"] for worker in await workers(address)}):
        await asyncio.sleep(0.02)
    return found


async def kill_workers(address: str, times: int) -> list[str]:
    killed: set[int] = set()
    load = Load(address, killed)
    for _ in range(times):
        await asyncio.sleep(0.1)
        before = await pids(address)
        victim = sorted(before)[len(killed) % len(before)]
        killed.add(victim)
        os.kill(victim, signal.SIGKILL)
        while victim in await pids(address):
            await asyncio.sleep(0.02)
    await load.end()
    restarts = sum(worker["restarts"] for worker in await workers(address))
    print(
        f"kills: {times} workers killed, {restarts} replaced; {load.answered} calls answered, "
        f"{load.excused} in flight on a killed worker failed, {len(load.lost)} others failed"
    )
    return load.lost + ([] if restarts == times else [f"{restarts} workers were replaced"])


async def reload_workers(address: str, supervisor: asyncio.subprocess.Process, times: int) -> list[str]:
    load = Load(address, set())
    for _ in range(times):
        before = await pids(address)
        supervisor.send_signal(signal.SIGHUP)
        while before & await pids(address):
            await asyncio.sleep(0.02)
    await load.end()
    print(f"reloads: {times}; {load.answered} calls answered, {load.excused + len(load.lost)} failed")
    return load.lost + ["a connection was lost in a reload"] * load.excused


async def spread_connections(address: str, number: int) -> list[str]:
    count = len(await workers(address))
    clients = [AsyncClient(address) for _ in range(number)]
    found: Counter[int] = Counter()
    for start in range(0, number, 100):  # a hundred at once
        answers = await asyncio.gather(*(client.call("quick", 0) for client in clients[start : start + 100]))
        found.update(pid for pid, _ in answers)
    await asyncio.gather(*(client.close() for client in clients))
    print(f"spread: {number} connections on {count} workers: {sorted(found.values())}")
    is_even = len(found) == count and max(found.values()) - min(found.values()) <= (1 if number % count else 0)
    return [] if is_even else ["the connections were not spread evenly"]


async def run(*, workers: int, connections: int, reloads: int, kills: int, log: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "app.py").write_text(APP)
        supervisor = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", RUN, str(workers)),
            cwd=folder,
            env=environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=None if log else asyncio.subprocess.DEVNULL,
        )
        assert supervisor.stdout is not None
        address = (await supervisor.stdout.readline()).decode().strip()
        faults = await spread_connections(address, connections)
        faults += await reload_workers(address, supervisor, reloads)
        faults += await kill_workers(address, kills)
        supervisor.terminate()
        status = await supervisor.wait()
        print(f"stopped with status {status}")
    for fault in faults[:20]:
        print("LOST:", fault)
    return 1 if faults or status else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("workers", 3), ("connections", 1500), ("reloads", 20), ("kills", 50)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--log", action="store_true", help="show what the server logs")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sys.exit(asyncio.run(run(**vars(parser.parse_args()))))
