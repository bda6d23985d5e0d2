"""`rpcstream --repeat`: percentiles, errors by kind, and what is told after Ctrl-C."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcstream import ConnectFailed, ConnectionLost, RpcError, Server
from rpcstream.cli.call import main
from rpcstream.cli.measure import Histogram, Measurement, Outcomes
from rpcstream.testing import drop_connections, serve_in_thread

from .conftest import environment

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Server, str]]:
    server = Server(drain_timeout=0.1)
    numbers = iter(range(10**9))

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    def fail_each_third() -> int:
        number = next(numbers)
        if number % 3 == 0:
            raise RpcError(7, "it \x1b failed")
        return number

    @server
    async def hang_at_the_tenth() -> int:
        import asyncio

        if (number := next(numbers)) % 10 == 9:
            await asyncio.Event().wait()
        return number

    with serve_in_thread(server) as address:
        yield server, address


@pytest.fixture
def run(server: tuple[Server, str], capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*argv: str, scheme: str = "") -> tuple[int, str, str]:
        status = main([*argv, "--uri", scheme + server[1]])
        return status, *capfd.readouterr()

    return run


class TestHistogram:
    @given(st.lists(st.floats(1e-6, 1e4), min_size=1), st.floats(0, 1))
    def test_percentiles_are_exact_to_one_per_cent(self, values: list[float], share: float) -> None:
        histogram = Histogram()
        for value in values:
            histogram.add(value)
        exact = sorted(values)[max(-int(-share * len(values) // 1), 1) - 1]
        assert histogram.percentile(share) == pytest.approx(exact, rel=0.011)
        assert (histogram.shortest, histogram.longest, histogram.count) == (min(values), max(values), len(values))

    def test_merged_is_as_if_all_were_in_one(self) -> None:
        chosen = random.Random(1)
        parts, whole = [Histogram(), Histogram()], Histogram()
        for number in range(1000):
            value = chosen.lognormvariate(-7, 2)
            whole.add(value)
            parts[number % 2].add(value)
        parts[0].merge(parts[1])
        assert vars(parts[0]) == vars(whole)

    def test_extremes(self) -> None:
        histogram = Histogram()
        assert histogram.percentile(0.5) == 0
        for value in (0.0, 1e-9, 1e9):
            histogram.add(value)
        assert histogram.percentile(0) <= 1.01e-6
        assert histogram.percentile(1) >= 9e4


class TestMeasurement:
    @pytest.mark.parametrize("concurrency", [1, 8])
    def test_each_call_is_made_once(self, concurrency: int) -> None:
        calls: list[int] = []
        outcomes = Measurement(lambda: calls.append(1), 1000, concurrency).run()
        assert (outcomes.count, len(calls), outcomes.times.count) == (1000, 1000, 1000)

    def test_kinds_of_errors_are_bounded(self) -> None:
        numbers = iter(range(1000))

        def call() -> None:
            raise RpcError(next(numbers), "x" * 1000)

        outcomes = Measurement(call, 1000, 1).run()
        assert sum(outcomes.errors.values()) == 1000
        assert outcomes.errors["other errors"] == 980
        assert max(map(len, outcomes.errors)) <= 100

    def test_a_server_that_was_never_there_ends_it(self) -> None:
        def call() -> None:
            raise ConnectFailed("no", method="x", address="y")

        with pytest.raises(ConnectFailed):
            Measurement(call, 10**9, 2).run()

    def test_what_cannot_be_called_at_all_ends_it(self) -> None:
        def call() -> None:
            raise TypeError("no")

        with pytest.raises(TypeError):
            Measurement(call, 10**9, 2).run()

    def test_losses_are_counted(self) -> None:
        faults: list[Exception | None] = [None, ConnectionLost("x", method="m", address="a"), RpcError(1, "a"), None]
        turns = iter(faults)

        def call() -> None:
            if (fault := next(turns)) is not None:
                raise fault

        outcomes = Measurement(call, 4, 1).run()
        assert (outcomes.times.count, outcomes.status) == (2, 3)
        assert outcomes.errors == {"connection lost": 1, "error 1: a": 1}

    def test_stopped(self) -> None:
        release = threading.Event()
        measurement = Measurement(release.wait, 10**9, 2)
        results: list[Outcomes] = []
        running = threading.Thread(target=lambda: results.append(measurement.run()))
        running.start()
        measurement.stop()
        release.set()
        running.join()
        assert results[0].count <= 2


class TestCommand:
    @pytest.mark.parametrize("scheme", ["", "http://"])
    def test_a_report(self, scheme: str, run: Run) -> None:
        status, out, err = run("add", "a=1", "b=2", "--repeat", "200", "--concurrency", "4", scheme=scheme)
        assert (status, err) == (0, "")
        first, times = out.splitlines()
        assert re.fullmatch(r"200 calls in [\d.]+ s, 4 at a time: [\d,.]+ answers a second", first)
        assert re.fullmatch(r"min [\d.]+ ms  p50 [\d.]+ ms  p90 [\d.]+ ms  p99 [\d.]+ ms  max [\d.]+ ms", times)

    def test_as_json(self, run: Run) -> None:
        status, out, _ = run("add", "a=1", "b=2", "--repeat", "20", "--format", "json")
        report = json.loads(out)
        assert (status, report["calls"], report["concurrency"], report["errors"]) == (0, 20, 1, {})
        times = [report["ms"][name] for name in ("min", "p50", "p90", "p99", "max")]
        assert times == sorted(times)

    def test_failures(self, run: Run) -> None:
        status, out, _ = run("fail_each_third", "--repeat", "30", "--concurrency", "3")
        assert status == 1
        assert out.splitlines()[2:] == ["10 failed", "  10 error 7: it \\u001b failed"]
        status, out, _ = run("nothing", "--repeat", "5", "--format", "json")
        assert (status, json.loads(out)["ms"]) == (1, None)
        assert list(json.loads(out)["errors"].values()) == [5]

    def test_time_outs(self, run: Run) -> None:
        status, out, _ = run("hang_at_the_tenth", "--repeat", "10", "--timeout", "0.2", "--format", "json")
        assert status == 4
        # Whichever end sees it first.
        assert json.loads(out)["errors"] in ({"no answer in time": 1}, {"error -32003: Deadline exceeded": 1})

    def test_no_server(self, capfd: pytest.CaptureFixture[str]) -> None:
        assert main(["add", "--repeat", "1000000000", "--uri", "unix:///no/such"]) == 3
        assert capfd.readouterr().err.count("\n") == 1

    def test_ctrl_c_shows_what_was_measured(self, server: tuple[Server, str]) -> None:
        argv = [sys.executable, "-m", "rpcstream", "hang_at_the_tenth", "--repeat", "1000", "--progress"]
        with subprocess.Popen(
            [*argv, "--uri", server[1]], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as calling:
            assert calling.stderr is not None
            while not re.match("[1-9]", calling.stderr.readline()):
                pass
            calling.send_signal(signal.SIGINT)
            out, err = calling.communicate(timeout=30)
        assert (calling.returncode, err) == (130, "")
        assert re.match(r"\d of 1,000 calls in", out)

    def test_a_connection_that_is_lost_between(self, server: tuple[Server, str], run: Run) -> None:
        done = threading.Event()

        def drop() -> None:
            while not done.wait(0.01):
                drop_connections(server[0])

        dropping = threading.Thread(target=drop)
        dropping.start()
        try:
            status, out, _ = run("add", "a=1", "b=2", "--repeat", "2000", "--format", "json")
        finally:
            done.set()
            dropping.join()
        assert json.loads(out)["calls"] == 2000
        assert status in (0, 3)

    @pytest.mark.parametrize(
        "more", [["-v"], ["-o", "x"], ["--stream"], ["--format", "raw"], ["--concurrency", "257"], ["--notify"]]
    )
    def test_what_does_not_go_together(self, more: list[str], run: Run) -> None:
        assert run("add", "--repeat", "3", *more)[0] == 2
        assert run("add", "--concurrency", "3")[0] == 2
        assert run("add", "--repeat", "0")[0] == 2
