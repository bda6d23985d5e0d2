"""Measure calls: `--repeat N --concurrency C` makes one call many times, and shows how long that takes.

Owns the threads that call, the histogram of the times and the report. What a call is, it is given. Needs the same
memory for any number of calls.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..errors import CallTimeout, ConnectFailed, ConnectionLost, DeadlineExceeded, RpcError
from ..text import visible
from .show import ERROR_REPLY, INTERRUPTED, NO_CONNECTION, OK, TIME_OUT, terminal_of

if TYPE_CHECKING:
    from .diagnostics import StatusLine

#: A bucket of the histogram reaches to this multiple of its beginning: so exact the percentiles are.
_GROWTH = 1.01
#: Seconds: where the first bucket begins and the last one ends. What is shorter or longer counts in these.
_SHORTEST, _LONGEST = 1e-6, 1e5
_BUCKETS_PER_E = 1 / math.log(_GROWTH)
_BUCKETS = math.ceil(math.log(_LONGEST / _SHORTEST) * _BUCKETS_PER_E)

#: Kinds of errors that are told apart.
_MAX_KINDS = 20
_OTHER = "other errors"
#: Characters of an error's text.
_MAX_TEXT = 100

#: Seconds that a thread pauses which found no connection: the server may be starting again.
_PAUSE = 0.1
#: Seconds between two looks at how many calls were made.
_REFRESH = 0.2
#: Seconds for which nothing is shown: most runs are over then.
_QUIET = 0.5


class Histogram:
    """Durations, counted in buckets; percentiles are exact to one per cent, the extremes are exact.

    Attributes:
        count: durations that were added.
        shortest: in seconds; infinite where there is none.
        longest: in seconds; 0 where there is none.
    """

    def __init__(self) -> None:
        self.count = 0
        self.shortest = math.inf
        self.longest = 0.0
        self._buckets = [0] * _BUCKETS

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.count += 1
        self.shortest = min(self.shortest, seconds)
        self.longest = max(self.longest, seconds)
        place = int(math.log(max(seconds, _SHORTEST) / _SHORTEST) * _BUCKETS_PER_E)
        self._buckets[min(place, _BUCKETS - 1)] += 1

    def merge(self, other: Histogram) -> None:
        """Count all durations of another histogram."""
        self.count += other.count
        self.shortest = min(self.shortest, other.shortest)
        self.longest = max(self.longest, other.longest)
        self._buckets = [own + more for own, more in zip(self._buckets, other._buckets, strict=True)]

    def percentile(self, share: float) -> float:
        """The duration (seconds) that this share of all, from 0 to 1, does not exceed; 0 where there is none."""
        rank = max(math.ceil(share * self.count), 1)
        for place, count in enumerate(self._buckets):
            rank -= count
            if rank <= 0:
                middle: float = _SHORTEST * _GROWTH ** (place + 0.5)
                return min(max(middle, self.shortest), self.longest)
        return 0.0


class Outcomes:
    """What came of the calls of one thread, or of all.

    Attributes:
        times: how long the calls took that succeeded.
        errors: how often each kind of error came.
        status: the worst exit status of a call.
    """

    def __init__(self) -> None:
        self.times = Histogram()
        self.errors: dict[str, int] = {}
        self.status = OK

    @property
    def count(self) -> int:
        """Calls that were made."""
        return self.times.count + sum(self.errors.values())

    def fail(self, status: int, kind: str, count: int = 1) -> None:
        """Count calls that failed."""
        if kind not in self.errors and len(self.errors) >= _MAX_KINDS:
            kind = _OTHER
        self.errors[kind] = self.errors.get(kind, 0) + count
        self.status = max(self.status, status)

    def merge(self, other: Outcomes) -> None:
        """Add the outcomes of another thread."""
        self.times.merge(other.times)
        for kind, count in other.errors.items():
            self.fail(other.status, kind, count)


class Measurement:
    """Makes a call again and again, in several threads at a time.

    Args:
        call: makes one call.
        count: how often.
        concurrency: threads.
    """

    def __init__(self, call: Callable[[], object], count: int, concurrency: int) -> None:
        self.seconds = 0.0
        self._call = call
        self._turns: Iterator[int] = iter(range(count))  # shared: the interpreter gives each turn to one thread
        self._stopped = threading.Event()
        self._fault: Exception | None = None
        self._parts = [Outcomes() for _ in range(min(concurrency, count))]

    def run(self, watch: Callable[[int], object] | None = None) -> Outcomes:
        """Make the calls; returns what came of them.

        Args:
            watch: called now and then with the number of calls that were made.

        Raises:
            ConnectFailed: the server was never reached.
            Exception: the call cannot be made at all: a value that cannot be encoded.
            KeyboardInterrupt: `outcomes` has what was measured, once `stop` was called.
        """
        self._threads = [threading.Thread(target=self._work, args=(part,), daemon=True) for part in self._parts]
        self._began = perf_counter()
        for thread in self._threads:
            thread.start()
        while any(thread.is_alive() for thread in self._threads):
            for thread in self._threads:
                thread.join(_REFRESH)
                if watch is not None and perf_counter() - self._began > _QUIET:
                    watch(sum(part.count for part in self._parts))
        if self._fault is not None:
            raise self._fault
        return self.outcomes()

    def stop(self) -> None:
        """Make no more calls; those that wait must be ended by closing the client."""
        self._stopped.set()

    def outcomes(self) -> Outcomes:
        """What came of the calls so far; waits for the threads to end."""
        for thread in self._threads:
            thread.join()
        self.seconds = perf_counter() - self._began
        together = Outcomes()
        for part in self._parts:
            together.merge(part)
        return together

    def _work(self, outcomes: Outcomes) -> None:
        for _ in self._turns:
            if self._stopped.is_set():
                return
            began = perf_counter()
            try:
                self._call()
            except (RpcError, CallTimeout, ConnectFailed, ConnectionLost) as error:
                if self._stopped.is_set():
                    return
                self._count_failure(error, outcomes)
            except Exception as error:
                if not self._stopped.is_set():  # a client that is closed meanwhile
                    self._give_up(error)
                return
            else:
                outcomes.times.add(perf_counter() - began)

    def _count_failure(self, error: Exception, outcomes: Outcomes) -> None:
        if isinstance(error, ConnectFailed):
            if not any(part.times.count for part in self._parts):
                self._give_up(error)
                return
            self._stopped.wait(_PAUSE)
        outcomes.fail(*_kind_of(error))

    def _give_up(self, error: Exception) -> None:
        self._fault = error
        self._stopped.set()


def _kind_of(error: Exception) -> tuple[int, str]:
    """The exit status and the kind of an error."""
    if isinstance(error, RpcError):
        status = TIME_OUT if isinstance(error, DeadlineExceeded) else ERROR_REPLY
        return status, visible(f"error {error.code}: {error.message}"[:_MAX_TEXT])
    if isinstance(error, CallTimeout):
        return TIME_OUT, "no answer in time"
    if isinstance(error, ConnectFailed):
        return NO_CONNECTION, "no connection"
    return NO_CONNECTION, "connection lost"


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
    is_interrupted = False
    try:
        outcomes = measurement.run(watch)
    except KeyboardInterrupt:
        is_interrupted = True
        measurement.stop()
        close()
        outcomes = measurement.outcomes()
    finally:
        if line is not None:
            line.clear()
    report = _report(outcomes, measurement.seconds, total, concurrency)
    if options.format == "json":
        print(json.dumps(report))
    else:
        print(_report_text(report))
    sys.stdout.flush()
    return INTERRUPTED if is_interrupted else outcomes.status


def _report(outcomes: Outcomes, seconds: float, total: int, concurrency: int) -> dict[str, Any]:
    times = outcomes.times
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    points = {"min": times.shortest, **{name: times.percentile(share) for name, share in shares.items()}}
    points["max"] = times.longest
    return {
        "calls": outcomes.count,
        "asked": total,
        "concurrency": concurrency,
        "seconds": round(seconds, 6),
        "rate": round(times.count / seconds, 3) if seconds else 0.0,
        "ms": {name: _rounded(1000 * value) for name, value in points.items()} if times.count else None,
        "errors": dict(sorted(outcomes.errors.items(), key=lambda each: -each[1])),
    }


def _rounded(value: float) -> float:
    """Four digits that count."""
    return float(f"{value:.4g}")


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
