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
UNIX, AT_FIRST = "rpcstream, Unix socket", "rpcstream, the first call of a connection"
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
    """Their connections have carried a small array, but for one."""
    after = ("--first-bytes", str(SMALL))
    return (
        Contender(name=RPCSTREAM, server=SERVE_RPCSTREAM, load=array_load(size, *after)),
        Contender(
            name=UNIX,
            server=Serving("rpcstream_", ("--unix",)),
            load=array_load(size, *after),
            note="counted with the memory that it shares with the client",
        ),
        Contender(
            name=AT_FIRST,
            server=SERVE_RPCSTREAM,
            load=array_load(size),
            note="as text, since the server has not said yet that it takes binary frames; and once more as a frame",
        ),
        raw_pyzmq(size, first=SMALL),
        peer(FLIGHT, "flight_", size, first=SMALL),
        peer(GRPC, "grpc_sync", size, first=SMALL),
    )


def _idle_and_peak(server: Running, small: Driver, large: Driver) -> tuple[int, int]:
    """Measure the server at rest, and its peak during the echo of a large array.

    Small echoes come first, by a client that is gone again: they load the code that any array needs.
    """
    small(server)(0.0, 0.0)
    time.sleep(SETTLE)
    idle = resident_memory(server.pid)
    reset_peak_memory(server.pid)
    large(server)(0.0, 0.0)  # the fewest calls that a load makes: two, the first of them small
    peak = server.peak_memory()
    if idle is None or peak is None:
        raise Failed("this system does not tell what memory a process takes")
    return idle, peak
