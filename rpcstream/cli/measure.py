"""Measure calls: `--repeat N --concurrency C` makes one call many times, and shows how long that takes."""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
from array import array
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..errors import CallTimeout, ConnectFailed, ConnectionLost, RpcError
from ..text import visible
from .show import INTERRUPTED, OK, status_of, terminal_of

if TYPE_CHECKING:
    from .diagnostics import StatusLine

#: Kinds of errors that are told apart, and characters of the text of each.
_MAX_KINDS, _MAX_TEXT = 20, 100

#: Seconds a thread pauses when it finds no connection: the server may be starting again.
_PAUSE = 0.1

#: Seconds between two updates of the status line.
_REFRESH = 0.5


class Measurement:
    """Makes a call again and again, in several threads at a time.

    Args:
        call: makes one call.
        count: how often.
        concurrency: threads.

    Attributes:
        times: seconds that each successful call took.
        errors: how often each kind of error came.
        status: the worst exit status of a call.
        seconds: that all of it took.
    """

    def __init__(self, call: Callable[[], object], count: int, concurrency: int) -> None:
        self.times = array("d")
        self.errors: Counter[str] = Counter()
        self.status = OK
        self.seconds = 0.0
        self._call = call
        self._turns = iter(range(count))  # shared: the interpreter gives each turn to one thread
        self._stopped = threading.Event()
        self._fault: Exception | None = None
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(min(concurrency, count))]

    def run(self, watch: Callable[[int], object] | None) -> None:
        """Make the calls.

        Args:
            watch: called now and then with the number of calls that were made.

        Raises:
            ConnectFailed: the server was never reached.
            Exception: the call cannot be made at all: a value that cannot be encoded.
        """
        began = perf_counter()
        for thread in self._threads:
            thread.start()
        try:
            for thread in self._threads:
                thread.join(_REFRESH)
                while thread.is_alive():
                    if watch is not None:
                        watch(len(self.times) + self.errors.total())
                    thread.join(_REFRESH)
        finally:
            self.seconds = perf_counter() - began
        if self._fault is not None:
            raise self._fault

    def stop(self, close: Callable[[], object]) -> None:
        """Make no more calls, and end those that wait by closing the client."""
        self._stopped.set()
        close()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        for _ in self._turns:
            if self._stopped.is_set():
                return
            began = perf_counter()
            try:
                self._call()
            except Exception as error:
                if self._stopped.is_set():  # the client was closed in the meantime
                    return
                self._failed(error)
            else:
                self.times.append(perf_counter() - began)

    def _failed(self, error: Exception) -> None:
        kind = _kind_of(error)
        if kind is None or (isinstance(error, ConnectFailed) and not self.times):
            self._fault = error
            self._stopped.set()
            return
        if kind not in self.errors and len(self.errors) >= _MAX_KINDS:
            kind = "other errors"
        self.errors[kind] += 1
        self.status = max(self.status, status_of(error))
        if isinstance(error, ConnectFailed):
            self._stopped.wait(_PAUSE)


def _kind_of(error: Exception) -> str | None:
    """The kind of an error, as text; None for one that is no outcome of a call."""
    if isinstance(error, RpcError):
        return visible(f"error {error.code}: {error.message}"[:_MAX_TEXT])
    kinds = {CallTimeout: "no answer in time", ConnectFailed: "no connection", ConnectionLost: "connection lost"}
    return next((text for kind, text in kinds.items() if isinstance(error, kind)), None)


def measure(
    options: argparse.Namespace, call: Callable[[], object], close: Callable[[], object], line: StatusLine | None
) -> int:
    """Make a call as often as the options say, and print the report; returns the exit status.

    Args:
        options: of the command line.
        call: makes one call; from several threads.
        close: ends the calls that wait.
        line: shows how many calls were made.
    """
    total, concurrency = options.repeat, options.concurrency or 1
    measurement = Measurement(call, total, concurrency)
    watch = None if line is None else lambda count: line.show(f"{count:,} of {total:,} calls")
    status = OK
    try:
        measurement.run(watch)
    except KeyboardInterrupt:
        measurement.stop(close)
        status = INTERRUPTED
    finally:
        if line is not None:
            line.clear()
    report = _report(measurement, total, concurrency)
    print(json.dumps(report) if options.format == "json" else _report_text(report))
    sys.stdout.flush()
    return status or measurement.status


def _report(measurement: Measurement, total: int, concurrency: int) -> dict[str, Any]:
    times = sorted(measurement.times)
    shares = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    points = {name: times[max(math.ceil(share * len(times)) - 1, 0)] for name, share in shares.items()} if times else {}
    return {
        "calls": len(times) + measurement.errors.total(),
        "asked": total,
        "concurrency": concurrency,
        "seconds": round(measurement.seconds, 6),
        "rate": round(len(times) / measurement.seconds, 3) if measurement.seconds else 0.0,
        "ms": {name: float(f"{1000 * value:.4g}") for name, value in points.items()} or None,
        "errors": dict(measurement.errors.most_common()),
    }


def _report_text(report: dict[str, Any]) -> str:
    terminal = terminal_of(sys.stdout)
    made = f"{report['calls']:,}" + (f" of {report['asked']:,}" if report["calls"] != report["asked"] else "")
    at_once = f", {report['concurrency']} at a time" if report["concurrency"] > 1 else ""
    lines = [f"{made} calls in {report['seconds']:.3g} s{at_once}: {report['rate']:,.1f} answers a second"]
    if report["ms"] is not None:
        lines.append("  ".join(f"{terminal.paint('key', name)} {value:g} ms" for name, value in report["ms"].items()))
    if report["errors"]:
        lines.append(terminal.paint("error", f"{sum(report['errors'].values()):,} failed"))
        lines += [f"  {count:,} {kind}" for kind, count in report["errors"].items()]
    return "\n".join(lines)
