"""`rpcstream --repeat`: rate, percentiles, failures, and the report after Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
from collections.abc import Iterator

import pytest

from rpcstream import RpcError
from rpcstream.testing import drop_connections, serve_in_thread

from ..kit import UsualServer
from .conftest import Run, started


class Numbered(UsualServer):
    """Numbers its calls, each of which may fail, hang, or take its time."""

    def __init__(self) -> None:
        super().__init__(drain_timeout=0.1)
        self.count = 0
        self.add(self.do_next, name="next")

    async def do_next(self, fail_each: int = 0, hang_at: int = 0, differ: bool = False, seconds: float = 0) -> int:
        self.count += 1
        if hang_at and self.count % hang_at == 0:
            await asyncio.Event().wait()
        if fail_each and self.count % fail_each == 0:
            raise RpcError(self.count if differ else 7, "it \x1b failed" if not differ else "x" * 1000)
        await asyncio.sleep(seconds * (self.count % 2))
        return self.count


@pytest.fixture(scope="module")
def numbered() -> Numbered:
    return Numbered()


@pytest.fixture(scope="module")
def address(numbered: Numbered) -> Iterator[str]:
    with serve_in_thread(numbered) as where:
        yield where


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_a_report(scheme: str, run: Run, address: str, numbered: Numbered) -> None:
    before = numbered.count
    status, out, err = run("next", "--repeat", "200", "--concurrency", "4", uri=scheme + address)
    assert (status, err, numbered.count - before) == (0, "", 200)
    first, times = out.splitlines()
    assert re.fullmatch(r"200 calls in [\d.]+ s, 4 at a time: [\d,.]+ answers a second", first)
    assert re.fullmatch(r"p50 [\d.]+ ms  p99 [\d.]+ ms", times)


def test_as_json_with_the_times_of_the_calls(run: Run) -> None:
    """Half of the calls wait for 20 ms: what is above the half is at least that."""
    status, out, _ = run("next", "seconds=0.02", "--repeat", "20", "--format", "json")
    report = json.loads(out)
    assert (status, report["calls"], report["concurrency"], report["failed"]) == (0, 20, 1, 0)
    assert report["ms"]["p50"] <= report["ms"]["p99"]
    assert report["ms"]["p99"] >= 19.5


def test_failures(run: Run, numbered: Numbered) -> None:
    numbered.count = 0
    status, out, _ = run("next", "fail_each=3", "--repeat", "30", "--concurrency", "3")
    assert status == 1
    assert out.splitlines()[2:] == ["10 failed, the first with: error 7: it \\u001b failed"]
    status, out, _ = run("nothing", "--repeat", "5", "--format", "json")
    assert (status, json.loads(out)["ms"], json.loads(out)["failed"]) == (1, None, 5)
    # The text of an error is bounded.
    report = json.loads(run("next", "fail_each=1", "differ=true", "--repeat", "200", "--format", "json")[1])
    assert (report["failed"], len(report["first_error"])) == (200, 100)


def test_time_outs(run: Run, numbered: Numbered) -> None:
    numbered.count = 0
    status, out, _ = run("next", "hang_at=10", "--repeat", "10", "--timeout", "1.5", "--format", "json")
    assert status == 4
    assert json.loads(out)["failed"] == 1


def test_ctrl_c_shows_what_was_measured(address: str, numbered: Numbered) -> None:
    numbered.count = 0
    argv = ("next", "hang_at=10", "--repeat", "1000", "--progress", "--uri", address)
    with started(*argv) as calling:
        assert calling.stderr is not None
        while not re.match("[1-9]", calling.stderr.readline()):
            pass
        calling.send_signal(signal.SIGINT)
        out, err = calling.communicate(timeout=30)
    assert (calling.returncode, err) == (130, "")
    assert re.match(r"\d of 1,000 calls in", out)


def test_a_connection_that_is_lost_between(run: Run, numbered: Numbered) -> None:
    done = threading.Event()

    def drop() -> None:
        while not done.wait(0.01):
            drop_connections(numbered)

    dropping = threading.Thread(target=drop)
    dropping.start()
    try:
        status, out, _ = run("next", "--repeat", "2000", "--format", "json")
    finally:
        done.set()
        dropping.join()
    report = json.loads(out)
    assert report["calls"] == 2000
    assert (status, bool(report["failed"])) in ((0, False), (3, True))


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["next", "--repeat", "10000000", "--uri", "unix:///no/such"], 3),
        *((["next", "--repeat", "3", *more], 2) for more in (["-v"], ["-o", "x"], ["--stream"], ["--format", "raw"])),
        *((["next", "--repeat", "3", *more], 2) for more in (["--concurrency", "257"], ["--notify"])),
        (["next", "--concurrency", "3"], 2),
        *((["next", "--repeat", count], 2) for count in ("0", "10000001")),
    ],
)
def test_wrong_use_and_nobody_there(argv: list[str], status: int, run: Run) -> None:
    found, out, err = run(*argv, uri=None)
    assert (found, out, "Traceback" in err) == (status, "", False)
