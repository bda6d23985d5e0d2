"""Metrics in the text format of Prometheus, version 0.0.4: counting of calls, families of samples, and their text.

Owns the counters and histograms of calls, what the system tells of this process, and how samples are written. Does not
know servers: who has something to show makes families of it. No clock: seconds are passed in.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

#: The content type of the text (https://prometheus.io/docs/instrumenting/exposition_formats/).
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Upper bounds of the buckets of durations, in seconds: small calls take some microseconds, models some seconds.
BOUNDS = (
    *(0.00005, 0.0001, 0.00025, 0.0005),
    *(0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)

#: Stands for every method that is not registered, so that callers cannot make up label values.
UNKNOWN = "unknown"

#: Stands for methods and codes beyond those that have a label of their own.
OTHER = "other"

#: Methods of the members of a hub that have a label of their own, over the lifetime of the hub; and error codes of
#: handlers that have one.
MAX_MEMBER_METHODS, MAX_OWN_CODES = 1000, 30

Kind = Literal["counter", "gauge", "histogram"]
Labels = Mapping[str, str]


#: Of a sample that stands for the whole server.
NO_LABELS: Labels = MappingProxyType({})


class Sample(NamedTuple):
    """One line: a value with its labels; `suffix` follows the name of the family."""

    value: float
    labels: Labels = NO_LABELS
    suffix: str = ""


class Family(NamedTuple):
    """The samples of one metric, without the prefix of its name."""

    name: str
    kind: Kind
    help: str
    samples: Iterable[Sample]


class MethodCalls:
    """The calls of one method.

    Attributes:
        quick: calls in the first bucket.
        buckets: calls in the others, the last without a bound; each call counts in one.
        seconds: of all calls together.
        errors: replies with an error, by code.
        last_error: the code of the last of them; None: there was none.
        refused: those of them whose call was never begun: they have no duration.
    """

    __slots__ = ("buckets", "errors", "last_error", "quick", "refused", "seconds")

    def __init__(self) -> None:
        self.quick = 0
        self.buckets = [0] * len(BOUNDS)
        self.seconds = 0.0
        self.errors: dict[str, int] = {}
        self.last_error: int | None = None
        self.refused = 0

    def add(self, seconds: float) -> None:
        """Count a call that took so long."""
        self.seconds += seconds
        place = bisect_left(BOUNDS, seconds)
        if place:
            self.buckets[place - 1] += 1
        else:
            self.quick += 1

    @property
    def count(self) -> int:
        """Calls that have a duration."""
        return self.quick + sum(self.buckets)


class CallMetrics:
    """Counts calls by method and outcome, and their durations by method.

    Labels are bounded: by the methods that are registered, by `MAX_MEMBER_METHODS` of those that members of a hub
    offer, by the error codes of the protocol, and `MAX_OWN_CODES` further ones.

    Args:
        is_registered: whether a method of this name is the server's own.
        is_offered: whether a member of the hub offers it.
        codes: the error codes of the protocol.

    Attributes:
        by_method: those that were called, by label.
    """

    def __init__(
        self,
        is_registered: Callable[[str], bool],
        codes: Iterable[int],
        *,
        is_offered: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._is_registered = is_registered
        self._is_offered = is_offered
        self._codes = frozenset(codes)
        self._own_codes: set[int] = set()
        self._members = 0
        self.by_method: dict[str, MethodCalls] = {}

    def of(self, name: object) -> MethodCalls:
        """The calls of a method, or of all that are not known."""
        label = self._label(name)
        calls = self.by_method.get(label)
        if calls is None:
            calls = self.by_method[label] = MethodCalls()
        return calls

    def ended(self, name: object, code: int, seconds: float) -> None:
        """Count a call; 0 is the code of a success."""
        calls = self.of(name)
        calls.add(seconds)
        if code:
            self._count_error(calls, code)

    def refused(self, name: object, code: int) -> None:
        """Count a call that was answered with an error before it had begun."""
        calls = self.of(name)
        calls.refused += 1
        self._count_error(calls, code)

    def families(self) -> list[Family]:
        """The families of the calls."""
        by_method = sorted(self.by_method.items())
        return [
            Family(
                "calls_total",
                "counter",
                "Calls and notifications that have ended, by the error code of the reply (0: a result).",
                [sample for name, calls in by_method for sample in _outcomes(name, calls)],
            ),
            Family(
                "call_duration_seconds",
                "histogram",
                "From a request being read to its reply, or to the end of a notification.",
                [sample for name, calls in by_method for sample in _histogram(name, calls)],
            ),
        ]

    def _label(self, name: object) -> str:
        if type(name) is not str:
            return UNKNOWN
        if name in self.by_method or self._is_registered(name):
            return name
        if not self._is_offered(name):
            return UNKNOWN
        if self._members >= MAX_MEMBER_METHODS:
            return OTHER
        self._members += 1
        return name

    def _count_error(self, calls: MethodCalls, code: int) -> None:
        calls.last_error = code
        if code not in self._codes and code not in self._own_codes:
            if len(self._own_codes) < MAX_OWN_CODES:
                self._own_codes.add(code)
            else:
                calls.errors[OTHER] = calls.errors.get(OTHER, 0) + 1
                return
        label = str(code)
        calls.errors[label] = calls.errors.get(label, 0) + 1


def _outcomes(name: str, calls: MethodCalls) -> Iterable[Sample]:
    yield Sample(calls.count - sum(calls.errors.values()) + calls.refused, {"method": name, "code": "0"})
    for code, count in sorted(calls.errors.items()):
        yield Sample(count, {"method": name, "code": code})


def _histogram(name: str, calls: MethodCalls) -> Iterable[Sample]:
    total = 0
    bounds = [*map(_number, BOUNDS), "+Inf"]
    for bound, count in zip(bounds, (calls.quick, *calls.buckets), strict=True):
        total += count
        yield Sample(total, {"method": name, "le": bound}, "_bucket")
    yield Sample(calls.seconds, {"method": name}, "_sum")
    yield Sample(total, {"method": name}, "_count")


# -- this process -----------------------------------------------------------------------------------------------------


def process_families(proc: str = "/proc") -> list[Family]:
    """What the system tells of this process, with the names that Prometheus' own clients use; [] where it has no /proc.

    Args:
        proc: where the system shows its processes.
    """
    try:
        with open(f"{proc}/self/stat", "rb") as opened:
            # The name of the program, in brackets, may have anything in it.
            fields = opened.read().rpartition(b")")[2].split()
        with open(f"{proc}/stat", "rb") as opened:
            booted = next((int(line.split()[1]) for line in opened if line.startswith(b"btime ")), None)
        descriptors = len(os.listdir(f"{proc}/self/fd"))
        with open(f"{proc}/self/limits", encoding="ascii", errors="replace") as opened:
            most = re.search(r"^Max open files +(\d+)", opened.read(), re.MULTILINE)
    except (OSError, IndexError, ValueError):
        return []
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    # proc_pid_stat(5); the first field here is the third there.
    cpu, started, virtual, resident = (
        (int(fields[11]) + int(fields[12])) / ticks,
        int(fields[19]) / ticks,
        int(fields[20]),
        int(fields[21]) * page,
    )
    found = [
        Family("process_cpu_seconds_total", "counter", "Processor time used, in seconds.", [Sample(cpu)]),
        Family("process_resident_memory_bytes", "gauge", "Resident memory, in bytes.", [Sample(resident)]),
        Family("process_virtual_memory_bytes", "gauge", "Virtual memory, in bytes.", [Sample(virtual)]),
        Family("process_open_fds", "gauge", "Open file descriptors.", [Sample(descriptors)]),
    ]
    if most is not None:
        found.append(Family("process_max_fds", "gauge", "File descriptors permitted.", [Sample(int(most[1]))]))
    if booted is not None:
        text = "When the process started, in seconds since 1970."
        found.append(Family("process_start_time_seconds", "gauge", text, [Sample(booted + started)]))
    return found


# -- several processes ------------------------------------------------------------------------------------------------

#: The numbers of families by name, and in each by what stands behind the name in the text: plain, to be sent and added.
Numbers = dict[str, dict[str, float]]


def numbers_of(families: Iterable[Family]) -> Numbers:
    """The numbers of these families."""
    return {
        family.name: {suffix + _written(labels): value for value, labels, suffix in family.samples}
        for family in families
    }


def render_numbers(families: Iterable[Family], numbers: Mapping[str, Mapping[str, float]], *, prefix: str = "") -> str:
    """The text of these families with other numbers: those of several processes together."""
    lines: list[str] = []
    for family in families:
        if found := numbers.get(family.name):
            full = prefix + family.name
            lines += (f"# HELP {full} {_escaped_help(family.help)}", f"# TYPE {full} {family.kind}")
            lines += [f"{full}{behind} {_number(value)}" for behind, value in found.items()]
    return "\n".join(lines) + "\n" if lines else ""


# -- the text ---------------------------------------------------------------------------------------------------------


def render(families: Iterable[Family], *, prefix: str = "") -> str:
    """The text of some families, each of another name; those without samples are left out."""
    lines: list[str] = []
    for name, kind, text, samples in families:
        full = prefix + name
        written = [f"{full}{suffix}{_written(labels)} {_number(value)}" for value, labels, suffix in samples]
        if written:
            lines += (f"# HELP {full} {_escaped_help(text)}", f"# TYPE {full} {kind}", *written)
    return "\n".join(lines) + "\n" if lines else ""


def _written(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()]) + "}"


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        value = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return value.encode(errors="replace").decode()  # a surrogate that stands alone is no text


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    # repr of small floats, "5e-05", is read by Prometheus, and is what its own clients write.
    return repr(float(value)) if type(value) is float else str(value)
