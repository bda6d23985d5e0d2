"""Measures calls: `--repeat N --concurrency C` makes one call many times, and shows how long that takes."""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
from array import array
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..errors import CallTimeout, ConnectFailed, ConnectionLost, RpcError
from ..text import visible
from .show import INTERRUPTED, OK, status_of, terminal_of

if TYPE_CHECKING:
    from .diagnostics import StatusLine

#: Characters of the text of an error that are shown.
_MAX_TEXT = 100

#: Seconds a thread pauses when it finds no connection: the server may be starting again.
_PAUSE = 0.1

#: Seconds between two updates of the status line.
_REFRESH = 0.5


class _Measurement:
    """Makes a call again and again, in several threads at a time.

    Args:
        call: makes one call.
        count: the number of calls.

    Attributes:
        times: seconds that each successful call took.
        failed: the number of calls that failed.
        first_error: of these.
        status: the worst exit status of a call.
        fault: why the call cannot be made at all: the server was never reached, or a value cannot be encoded.
        stopped: make no more calls.
    """

    def __init__(self, call: Callable[[], object], count: int) -> None:
        self.times = array("d")
        self.failed = 0
        self.first_error: Exception | None = None
        self.status = OK
        self.fault: Exception | None = None
        self.stopped = threading.Event()
        self._call = call
        self._turns = iter(range(count))  # shared: the interpreter gives each turn to one thread
        self._lock = threading.Lock()

    def work(self) -> None:
        """Make calls until none is left; for each of the threads."""
        for _ in self._turns:
            if self.stopped.is_set():
                return
            began = perf_counter()
            try:
                self._call()
            except (RpcError, CallTimeout, ConnectionLost) as error:
                self._count(error)
            except Exception as error:
                if not isinstance(error, ConnectFailed) or not self.times:
                    self.fault = error
                    self.stopped.set()
                    return
                self._count(error)
                self.stopped.wait(_PAUSE)
            else:
                self.times.append(perf_counter() - began)

    def _count(self, error: Exception) -> None:
        with self._lock:
            self.failed += 1
            self.first_error = self.first_error or error
            self.status = max(self.status, status_of(error))


def measure(options: argparse.Namespace, call: Callable[[], object], line: StatusLine | None) -> int:
    """Make a call as often as the options say, and print the report, also after Ctrl-C; returns the exit status.

    Args:
        options: of the command line.
        call: makes one call; from several threads.
        line: shows how many calls were made.

    Raises:
        Exception: the call cannot be made at all.
    """
    total, concurrency = options.repeat, options.concurrency or 1
    measurement = _Measurement(call, total)
    threads = [threading.Thread(target=measurement.work, daemon=True) for _ in range(min(concurrency, total))]
    status, began = OK, perf_counter()
    try:
        for thread in threads:
            thread.start()
        while working := next((thread for thread in threads if thread.is_alive()), None):
            working.join(_REFRESH)
            if line is not None:
                line.show(f"{len(measurement.times) + measurement.failed:,} of {total:,} calls")
    except KeyboardInterrupt:
        measurement.stopped.set()
        status = INTERRUPTED
    seconds = perf_counter() - began
    if line is not None:
        line.clear()
    if measurement.fault is not None:
        raise measurement.fault
    times = sorted(measurement.times)
    report = {
        "calls": len(times) + measurement.failed,
        "asked": total,
        "concurrency": concurrency,
        "seconds": round(seconds, 6),
        "rate": round(len(times) / seconds, 3),
        "ms": {name: _milliseconds(times, share) for name, share in (("p50", 0.5), ("p99", 0.99))} if times else None,
        "failed": measurement.failed,
        "first_error": _error_text(measurement.first_error),
    }
    print(json.dumps(report) if options.format == "json" else _report_text(report), flush=True)
    return status or measurement.status


def _milliseconds(times: list[float], share: float) -> float:
    """The time within which this share of the calls was answered."""
    return float(f"{1000 * times[math.ceil(share * len(times)) - 1]:.4g}")


def _error_text(error: Exception | None) -> str | None:
    if error is None:
        return None
    text = f"error {error.code}: {error.message}" if isinstance(error, RpcError) else str(error)
    return visible(text[:_MAX_TEXT])


def _report_text(report: dict[str, Any]) -> str:
    terminal = terminal_of(sys.stdout)
    made = f"{report['calls']:,}" + (f" of {report['asked']:,}" if report["calls"] != report["asked"] else "")
    at_once = f", {report['concurrency']} at a time" if report["concurrency"] > 1 else ""
    lines = [f"{made} calls in {report['seconds']:.3g} s{at_once}: {report['rate']:,.1f} answers a second"]
    if report["ms"] is not None:
        lines.append("  ".join(f"{terminal.paint('key', name)} {value:g} ms" for name, value in report["ms"].items()))
    if report["failed"]:
        failed = terminal.paint("error", f"{report['failed']:,} failed")
        lines.append(f"{failed}, the first with: {report['first_error']}")
    return "\n".join(lines)
