"""How far rpcstream is from the limit: `python benchmarks/run.py [--seconds 1] [--rounds 5] [--json FILE]`.

Each case is timed against its own limit (the same bytes exchanged with the least code), in turns, in one run; what
counts is the ratio of the medians, since single times say more about the machine. Server and load are processes of
their own, on processors of their own where there are two. Every reply is checked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np

from rpcstream import AsyncClient, Client
from rpcstream.process import loop_factory

Case = Callable[[float], float]  # seconds to run -> seconds per operation

REQUEST = b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":[%d,2]}\n'


def connect(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def exchange(port: int, message: bytes, expected: bytes) -> Case:
    """One message there and back, on a bare blocking socket; the least that any client does."""
    connection = connect(port)

    def once() -> None:
        connection.sendall(message)
        left = len(expected)
        received = []
        while left:
            received.append(connection.recv(1 << 20))
            left -= len(received[-1])
        assert b"".join(received) == expected

    return lambda seconds: timed(once, seconds)


def timed(once: Callable[[], object], seconds: float) -> float:
    count, began = 0, perf_counter()
    end = began + seconds
    while (now := perf_counter()) < end:
        for _ in range(10):
            once()
        count += 10
    return (now - began) / count


def pipelined(port: int, method: bytes, depth: int) -> Case:
    """So many requests in one write, until all replies are there; seconds per call."""
    connection = connect(port)
    requests = b"".join(REQUEST % (number, method, number) for number in range(depth))
    expected = {b'{"jsonrpc":"2.0","id":%d,"result":%d}' % (number, number + 2) for number in range(depth)}

    def once() -> None:
        connection.sendall(requests)
        received = b""
        while received.count(b"\n") < depth:
            received += connection.recv(1 << 20)
        assert set(received.splitlines()) == expected

    return lambda seconds: timed(once, seconds) / depth


def sync_call(port: int) -> Case:
    client = Client(f"127.0.0.1:{port}")

    def once() -> None:
        assert client.sum(40, 2) == 42

    return lambda seconds: timed(once, seconds)


def async_calls(port: int, in_flight: int) -> Case:
    async def load(seconds: float) -> float:
        count, began = 0, perf_counter()

        async def worker(client: AsyncClient) -> None:
            nonlocal count
            while perf_counter() < began + seconds:
                assert await client.sum(count, 2) >= 2
                count += 1

        async with AsyncClient(f"127.0.0.1:{port}") as client:
            await asyncio.gather(*(worker(client) for _ in range(in_flight)))
        return (perf_counter() - began) / count

    def run(seconds: float) -> float:
        with asyncio.Runner(loop_factory=loop_factory("auto")) as runner:
            return runner.run(load(seconds))

    return run


def array_call(port: int, array: np.ndarray) -> Case:
    client = Client(f"127.0.0.1:{port}")

    def once() -> None:
        assert client.echo(array)[-1] == array[-1]

    return lambda seconds: timed(once, seconds)


def cases(rpc: int, echo: int) -> dict[str, tuple[Case, Case]]:
    """Name -> what is measured, and its limit."""
    request = REQUEST % (1, b"sum", 40)
    array = np.arange(1 << 18, dtype=np.float32)
    text = b"x" * (array.nbytes * 4 // 3) + b"\n"
    server = pipelined(rpc, b"sum", 64)
    return {
        "server, one call at a time / bare echo": (
            exchange(rpc, request, b'{"jsonrpc":"2.0","id":1,"result":42}\n'),
            exchange(echo, request, request),
        ),
        "server, async handler / sync handler, 64 in flight": (pipelined(rpc, b"sum_later", 64), server),
        "Client, one call at a time / bare exchange": (
            sync_call(rpc),
            exchange(rpc, request, b'{"jsonrpc":"2.0","id":1,"result":42}\n'),
        ),
        "AsyncClient, 64 in flight / the server's own rate": (async_calls(rpc, 64), server),
        "Client, 1 MiB array there and back / bare echo of the bytes": (
            array_call(rpc, array),
            exchange(echo, text, text),
        ),
    }


def start(kind: str, processor: int | None) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, str(Path(__file__).with_name("serve.py")), kind]
    process = subprocess.Popen(
        command + ([] if processor is None else [str(processor)]), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description="How far rpcstream is from the limit, as ratios.")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each round of a case (default 1)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of case and limit in turn (default 5)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    two = hasattr(os, "sched_getaffinity") and len(processors := sorted(os.sched_getaffinity(0))) > 1
    servers = [start(kind, processors[0] if two else None) for kind in ("rpcstream", "echo")]
    if two:
        os.sched_setaffinity(0, {processors[1]})
    results = {}
    try:
        print(f"{'case':60} {'us':>9} {'limit us':>9} {'ratio':>6}")
        for name, (case, limit) in cases(servers[0][1], servers[1][1]).items():
            case(options.seconds / 5), limit(options.seconds / 5)  # warm up
            rounds = [(case(options.seconds), limit(options.seconds)) for _ in range(options.rounds)]
            ours, least = (statistics.median(times) * 1e6 for times in zip(*rounds, strict=True))
            results[name] = {"microseconds": ours, "limit_microseconds": least, "ratio": ours / least}
            print(f"{name:60} {ours:9.1f} {least:9.1f} {ours / least:6.2f}", flush=True)
    finally:
        for process, _ in servers:
            process.terminate()
            process.wait()
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
