"""Arrays between two programs on one machine: shared memory, TCP, and pyzmq over ipc, in turn.

    python benchmarks/local_arrays.py

Each contender has a server process of its own, which sends back what it gets. In each of several rounds, every
contender is measured for a short time, one after the other; the tables have the median of the rounds. The servers have
one core and the clients another, as in all benchmarks. pyzmq sends raw bytes without a method. Further parts: several
calls at a time, a stream of camera frames there and back, and the memory of both programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import numpy as np
from suite.machine import cores, on_core

from rpcstream import AsyncClient, Client, Server, shared_empty

KIB, MIB = 1024, 1024 * 1024
SIZES = (64 * KIB, MIB, 16 * MIB)
ROUNDS, BURST = 9, 0.25
#: Calls at a time.
IN_FLIGHT = 8
FRAME, FRAMES = (1080, 1920, 3), 60


def serve(where: str) -> None:
    """Serve over TCP (a port), on a Unix socket (a path), or by pyzmq (ipc://path)."""
    if where.startswith("ipc://"):
        import zmq

        socket = zmq.Context().socket(zmq.REP)
        socket.bind(where)
        while True:
            socket.send(np.frombuffer(socket.recv(copy=False), np.uint8), copy=False)
    server = Server()

    @server
    def echo(array: np.ndarray) -> np.ndarray:
        return array

    @server
    def made(size: int) -> np.ndarray:
        return shared_empty(size, np.uint8)

    @server
    async def back(frames: AsyncIterator[np.ndarray]) -> AsyncIterator[np.ndarray]:
        async for frame in frames:
            yield frame

    server.run(**({"port": int(where)} if where.isdigit() else {"unix": where}))


@contextlib.contextmanager
def serving(where: str) -> Iterator[tuple[str, int]]:
    """A server process; gives the address for clients, and the process id."""
    with on_core(cores().server):
        process = subprocess.Popen([sys.executable, __file__, where], stderr=subprocess.DEVNULL)
    try:
        path = Path(where.removeprefix("ipc://"))
        while not where.isdigit() and not path.exists():
            time.sleep(0.05)
        time.sleep(1)
        address = where if "://" in where else f"127.0.0.1:{where}" if where.isdigit() else f"unix://{where}"
        yield address, process.pid
    finally:
        process.terminate()
        process.wait()


def zmq_echo(address: str) -> Callable[[np.ndarray], np.ndarray]:
    import zmq

    socket = zmq.Context.instance().socket(zmq.REQ)
    socket.connect(address)

    def echo(array: np.ndarray) -> np.ndarray:
        socket.send(array, copy=False)
        return np.frombuffer(socket.recv(copy=False), np.uint8)

    return echo


def rate(call: Callable[[], object]) -> float:
    """Calls in a second, over a short time."""
    begun, count = time.perf_counter(), 0
    while (now := time.perf_counter()) - begun < BURST:
        call()
        count += 1
    return count / (now - begun)


def compare(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median rate of each, measured in turn."""
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS + 1):
        for name, call in calls.items():
            found = rate(call)
            if number:  # the first one warms up
                rates[name].append(found)
    return {name: statistics.median(found) for name, found in rates.items()}


def show(title: str, rates: dict[str, float]) -> None:
    print(title, *(f"  {name:34} {found:9,.0f} /s" for name, found in rates.items()), sep="\n", flush=True)


async def rates_in_flight(shared: str, tcp: str, ipc: str, array: np.ndarray, own: np.ndarray) -> dict[str, float]:
    """Calls in a second while each contender has `IN_FLIGHT` calls at a time."""
    import zmq
    import zmq.asyncio

    socket = zmq.asyncio.Context().socket(zmq.DEALER)
    socket.connect(ipc)

    async def by_zmq() -> None:
        await socket.send_multipart([b"", array], copy=False)
        await socket.recv_multipart(copy=False)

    async def once(call: Callable[[], Awaitable[object]]) -> float:
        begun, count = time.perf_counter(), 0

        async def worker() -> None:
            nonlocal count
            while time.perf_counter() - begun < BURST:
                await call()
                count += 1

        await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
        return count / (time.perf_counter() - begun)

    async with AsyncClient(shared) as near, AsyncClient(tcp) as far:
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "shared, echo of shared_empty": lambda: near.echo(own),
            "shared, plain array": lambda: near.echo(array),
            "TCP, plain array": lambda: far.echo(array),
            "pyzmq ipc, raw bytes": by_zmq,
        }
        found: dict[str, list[float]] = {name: [] for name in calls}
        for number in range(ROUNDS + 1):
            for name, call in calls.items():
                result = await once(call)
                if number:  # the first one warms up
                    found[name].append(result)
    socket.close()
    return {name: statistics.median(rates) for name, rates in found.items()}


async def stream_rates(shared: str, tcp: str) -> dict[str, float]:
    """Frames in a second that go there and back in a stream."""

    async def frames(make: Callable[[], np.ndarray]) -> AsyncIterator[np.ndarray]:
        for _ in range(FRAMES):
            yield make()

    async def once(client: AsyncClient, make: Callable[[], np.ndarray]) -> float:
        begun = time.perf_counter()
        async for frame in client.stream.back(frames(make)):
            assert frame.shape == FRAME
        return FRAMES / (time.perf_counter() - begun)

    plain = np.zeros(FRAME, np.uint8)
    rates: dict[str, list[float]] = {"shared, from shared_empty": [], "shared, plain arrays": [], "TCP": []}
    async with AsyncClient(shared) as near, AsyncClient(tcp) as far:
        for client in (near, far):
            await client.call("echo", plain)
        for number in range(ROUNDS + 1):
            rows = ((near, lambda: shared_empty(FRAME, np.uint8)), (near, lambda: plain), (far, lambda: plain))
            for found, (client, make) in zip(rates.values(), rows, strict=True):
                result = await once(client, make)
                if number:
                    found.append(result)
    return {name: statistics.median(found) for name, found in rates.items()}


def memory_of(*processes: int) -> int:
    """Bytes of memory that these processes take together; what they share counts once."""
    found = 0
    for process in processes:
        rows = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        found += sum(KIB * int(row.split()[1]) for row in rows if row.startswith("Pss:"))
    return found


def show_memory(folder: Path) -> None:
    """What an echo of 16 MiB takes of both programs, with its argument and its result, in arrays."""
    for title in ("shared_empty", "plain array"):
        with serving(str(folder / title)) as (address, server), Client(address) as client:
            for _ in range(3):
                client.echo(np.zeros(64 * KIB, np.uint8))
            before = memory_of(os.getpid(), server)
            array = (shared_empty if title == "shared_empty" else np.empty)(16 * MIB, np.uint8)
            array[:] = 1
            result = client.echo(array)
            taken = memory_of(os.getpid(), server) - before
            print(f"memory of both programs, {title}: {taken / array.nbytes:.2f} arrays", flush=True)
            del result, array


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    with (
        on_core(cores().load),
        serving(str(folder / "socket")) as (shared, _),
        serving("18545") as (tcp, _),
        serving(f"ipc://{folder}/zmq") as (ipc, _),
        Client(shared) as near,
        Client(tcp) as far,
    ):
        show_memory(folder)
        show(f"stream of {FRAMES} frames {FRAME}", asyncio.run(stream_rates(shared, tcp)))
        by_zmq = zmq_echo(ipc)
        for size in SIZES:
            plain = np.zeros(size, np.uint8)
            own = shared_empty(size, np.uint8)
            own[:] = 0
            calls: dict[str, Callable[[], object]] = {
                "shared, echo of shared_empty": lambda own=own: near.echo(own),
                "shared, result of shared_empty": lambda size=size: near.made(size),
                "shared, plain array": lambda plain=plain: near.echo(plain),
                "TCP, plain array": lambda plain=plain: far.echo(plain),
                "pyzmq ipc, raw bytes": lambda plain=plain: by_zmq(plain),
                "small call": lambda: near.call("rpc.ping"),
            }
            show(f"{size // KIB} KiB", compare(calls))
            several = rates_in_flight(shared, tcp, ipc, plain, own)
            show(f"{size // KIB} KiB, {IN_FLIGHT} calls at a time", asyncio.run(several))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1])
    else:
        main()
