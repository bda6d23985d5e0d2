"""Metrics in the text format of Prometheus, version 0.0.4: families of samples, their text, and counting calls."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple

#: The content type of the text (https://prometheus.io/docs/instrumenting/exposition_formats/).
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Upper bounds of the buckets of durations, in seconds: small calls take some microseconds, models some seconds.
BOUNDS = (
    *(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)

#: Stands for every method that is not known, so that callers cannot make up label values.
UNKNOWN = "unknown"

#: Stands for methods and codes beyond those that have a label of their own.
OTHER = "other"

#: Methods that have a label of their own, over the lifetime of a server or hub; and for each method the error codes.
MAX_METHODS, MAX_CODES = 1000, 30

#: When the process started, nearly (s since 1970).
_STARTED = time.time()

Kind = Literal["counter", "gauge", "histogram"]


class Family(NamedTuple):
    """The samples of one metric.

    Attributes:
        name: without a prefix.
        samples: the values by what follows the name in the text: "", labels (see `labels`), or a suffix and labels.
    """

    name: str
    kind: Kind
    help: str
    samples: Mapping[str, float]


#: The samples of families by the name of the family, to be sent to another process and added.
Numbers = Mapping[str, Mapping[str, float]]


def labels(**values: str) -> str:
    """Labels as the text has them."""
    return "{" + ",".join([f'{name}="{_escaped(value)}"' for name, value in values.items()]) + "}"


def single(name: str, kind: Kind, help: str, value: float) -> Family:
    """A family of one sample without labels."""
    return Family(name, kind, help, {"": value})


def render(families: Iterable[Family], numbers: Numbers | None = None, *, prefix: str = "") -> str:
    """The text of some families, each of another name; those without samples are left out.

    Args:
        numbers: takes the place of the families' own samples: those of several processes together.
        prefix: of the names.
    """
    lines: list[str] = []
    for name, kind, text, own in families:
        samples = own if numbers is None else numbers.get(name)
        if samples:
            lines += (f"# HELP {prefix}{name} {text}", f"# TYPE {prefix}{name} {kind}")
            # The repr of small floats, "5e-05", is read by Prometheus, and is what its own clients write.
            lines += [f"{prefix}{name}{behind} {value!r}" for behind, value in samples.items()]
    return "\n".join(lines) + "\n" if lines else ""


def _escaped(value: str) -> str:
    value = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value.encode(errors="replace").decode()  # a surrogate that stands alone is no text


@dataclass(slots=True)
class MethodCalls:
    """The calls of one method.

    Attributes:
        buckets: calls by duration, the last without a bound; each call counts in one.
        seconds: of all calls together.
        results, errors: how they ended, errors by code; also calls that were never begun.
        last_error: the code of the last error; None: there was none.
    """

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0
    results: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    last_error: int | None = None

    def count(self, code: int, seconds: float | None) -> None:
        """Count a call that has ended.

        Args:
            code: of the error; 0 for a result.
            seconds: None: it was never begun.
        """
        if seconds is not None:
            self.seconds += seconds
            self.buckets[bisect_left(BOUNDS, seconds)] += 1
        if code:
            label = str(code)
            self.errors[label if label in self.errors or len(self.errors) < MAX_CODES else OTHER] += 1
            self.last_error = code
        else:
            self.results += 1


class CallMetrics:
    """Counts calls by method and outcome, and their durations by method.

    Args:
        is_known: whether a method of this name is registered, or offered by a member of the hub.

    Attributes:
        by_method: those that were called, by label.
    """

    def __init__(self, is_known: Callable[[str], bool]) -> None:
        self._is_known = is_known
        self.by_method: dict[str, MethodCalls] = {}

    def of(self, name: object) -> MethodCalls:
        """The calls of a method, or of all that are not known."""
        try:
            return self.by_method[name]  # type: ignore[index]
        except (KeyError, TypeError):
            return self.by_method.setdefault(self._label(name), MethodCalls())

    def families(self) -> list[Family]:
        """The families of the calls."""
        outcomes: dict[str, float] = {}
        durations: dict[str, float] = {}
        for name, calls in sorted(self.by_method.items()):
            ends = {"0": calls.results, **calls.errors}.items()
            outcomes |= {labels(method=name, code=code): count for code, count in ends}
            durations |= _histogram(name, calls)
        ended = "Calls and notifications that have ended, by the error code of the reply (0: a result)."
        lasted = "From a request being read to its reply, or to the end of a notification."
        return [
            Family("calls_total", "counter", ended, outcomes),
            Family("call_duration_seconds", "histogram", lasted, durations),
        ]

    def _label(self, name: object) -> str:
        if type(name) is not str or not self._is_known(name):
            return UNKNOWN
        return name if len(self.by_method) < MAX_METHODS else OTHER


def _histogram(name: str, calls: MethodCalls) -> dict[str, float]:
    bounds = [*map(repr, BOUNDS), "+Inf"]
    found: dict[str, float] = {
        "_bucket" + labels(method=name, le=bound): total
        for bound, total in zip(bounds, accumulate(calls.buckets), strict=True)
    }
    return {**found, "_sum" + labels(method=name): calls.seconds, "_count" + labels(method=name): sum(calls.buckets)}


def process_families() -> list[Family]:
    """What the system tells of this process, named as Prometheus' own clients do; [] where it has no /proc."""
    try:
        with open("/proc/self/statm", "rb") as opened:
            resident = int(opened.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        descriptors = len(os.listdir("/proc/self/fd"))
    except OSError:
        return []
    return [
        single("process_cpu_seconds_total", "counter", "Processor time used, in seconds.", time.process_time()),
        single("process_resident_memory_bytes", "gauge", "Resident memory, in bytes.", resident),
        single("process_open_fds", "gauge", "Open file descriptors.", descriptors),
        single("process_start_time_seconds", "gauge", "When the process started, in seconds since 1970.", _STARTED),
    ]
