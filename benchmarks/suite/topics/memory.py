"""The memory that a server takes for the echo of a large array, above what it has when it is idle."""

from __future__ import annotations

import time

from ..contenders import RPCSTREAM, SERVE_RPCSTREAM, Contender, Driver
from ..machine import reset_peak_memory, resident_memory
from ..measure import Problems, Settings, plan
from ..process import Failed, Running, Serving
from ..results import Entry, Table
from .large import FLIGHT, GRPC, KIB, MIB, array_load, peer, raw_pyzmq

SIZE, SMALL = 16 * MIB, 64 * KIB
TITLE = "memory of the server for the echo of a float32 array of 16 MiB"
UNIX = "rpcstream, Unix socket"
SETTLE = 0.2  # seconds for the server to come to rest


def memory(settings: Settings) -> list[Table]:
    """A new server for each round, since memory that was taken once is seldom given back."""
    contenders = [contender for contender in _contenders(SIZE) if contender.wanted(settings.only)]
    small = {contender.name: contender.load for contender in _contenders(SMALL)}
    problems = Problems()
    taken: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    peaks: dict[str, int] = {}
    versions: dict[str, dict[str, str]] = {}
    for number, contender in plan(contenders, settings.rounds):
        if contender.name in problems.of:
            continue
        settings.tell(f"{TITLE}: round {number + 1}, {contender.name}")
        with problems.noted(contender.name), Running(contender.server) as server:
            versions[contender.name] = server.versions
            idle, peak = _idle_and_peak(server, small[contender.name], contender.load)
            taken[contender.name].append(peak - idle)
            peaks[contender.name] = peak
    entries = [
        Entry(
            name=each.name,
            figures=() if each.name in problems.of else tuple(taken[each.name]),
            problem=problems.of.get(each.name),
            peak_memory=peaks.get(each.name),
            versions=versions.get(each.name, {}),
            ours=each.ours,
            note=each.note,
        )
        for each in contenders
    ]
    return [Table(title=TITLE, entries=tuple(entries), unit="bytes")]


def _contenders(size: int) -> tuple[Contender, ...]:
    return (
        Contender(name=RPCSTREAM, server=SERVE_RPCSTREAM, load=array_load(size)),
        Contender(
            name=UNIX,
            server=Serving("rpcstream_", ("--unix",)),
            load=array_load(size),
            note="counted with the memory that it shares with the client",
        ),
        raw_pyzmq(size),
        peer(FLIGHT, "flight_", size),
        peer(GRPC, "grpc_sync", size),
    )


def _idle_and_peak(server: Running, small: Driver, large: Driver) -> tuple[int, int]:
    """Measure the server at rest, and its peak while two large echoes pass, one after the other.

    Small echoes come first, by a client that is gone again: they load the code that any array needs.
    """
    small(server)(0.0, 0.0)
    time.sleep(SETTLE)
    idle = resident_memory(server.pid)
    reset_peak_memory(server.pid)
    large(server)(0.0, 0.0)  # the fewest that a load makes are two
    peak = server.peak_memory()
    if idle is None or peak is None:
        raise Failed("this system does not tell what memory a process takes")
    return idle, peak
