"""The machine of the measurements: its processors, the memory of a process, names and versions.

Reads Linux's `/proc` and `/sys`; elsewhere unknown values are None and no process is pinned.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

PACKAGES = ("rpcstream", "uvloop", "orjson", "msgspec", "pybase64", "numpy", "Pillow")

_PIECE = 1024  # what `/proc` counts memory in


@dataclass(frozen=True)
class Cores:
    """The processors for servers and for load generators; None where a process may run anywhere."""

    server: int | None
    load: int | None


@cache
def cores() -> Cores:
    """Choose processors for server and load, on different physical cores; none where there is one core."""
    if not hasattr(os, "sched_getaffinity"):
        return Cores(None, None)
    ours = sorted(os.sched_getaffinity(0))
    if len(ours) < 2:
        return Cores(None, None)
    apart = [core for core in ours[1:] if core not in _siblings(ours[0])]
    return Cores(ours[0], (apart or ours[1:])[0])


def _siblings(core: int) -> set[int]:
    """Return the processors that share a physical core with this one, itself included."""
    try:
        text = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return {core}
    return _numbers(text)


def _numbers(ranges: str) -> set[int]:
    """Parse a list of processors such as `0,4-6`."""
    found: set[int] = set()
    for part in ranges.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


@contextlib.contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Context manager: processes that this thread starts inside run on that processor from the beginning."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def peak_memory(pid: int) -> int | None:
    """Return the peak memory of a process (VmHWM), in bytes."""
    return _field(Path(f"/proc/{pid}/status"), "VmHWM")


def memory(pid: int) -> int | None:
    """Return the memory of a process in bytes; shared pages count in proportion, where the system tells (PSS)."""
    return _field(Path(f"/proc/{pid}/smaps_rollup"), "Pss") or _field(Path(f"/proc/{pid}/status"), "VmRSS")


def resident_memory(pid: int) -> int | None:
    """Return the memory of a process (VmRSS), in bytes, with all of its shared pages, as `peak_memory` counts it."""
    return _field(Path(f"/proc/{pid}/status"), "VmRSS")


def reset_peak_memory(pid: int) -> None:
    """Set the peak memory of a process to what it has now; raises OSError where that cannot be done."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _field(file: Path, name: str) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * _PIECE for line in lines if line.startswith(f"{name}:")), None)


def allow_files(wanted: int) -> int:
    """Raise the limit of open files for this process and those it starts; return the limit then."""
    try:
        import resource
    except ImportError:
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(wanted, hard)))
        except (ValueError, OSError):  # only root may go over the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def describe() -> dict[str, str | int]:
    """Describe the machine for the report."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 1,
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return the versions of Python and of rpcstream's dependencies; missing ones are left out."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
