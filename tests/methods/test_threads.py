"""The pool of daemon threads: order, bounds, and cancelled calls."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import wait

import pytest

from rpcstream.methods.threads import DaemonExecutor, DaemonThreads, HandlerFailed


class Busy:
    """A pool whose only thread is kept until `release`."""

    def __init__(self) -> None:
        self.pool = DaemonThreads(1, "test-busy")
        self.release = threading.Event()
        entered = threading.Event()

        def block() -> None:
            entered.set()
            assert self.release.wait(20)

        self.blocking = self.pool.submit(block)
        assert entered.wait(20)


@pytest.fixture
def busy() -> Iterator[Busy]:
    made = Busy()
    yield made
    made.release.set()
    made.pool.close()


def test_calls_that_were_cancelled_while_no_thread_was_free_leave_nothing(busy: Busy) -> None:
    def come_and_go(calls: int) -> None:
        payload = b"x" * 1000
        for _ in range(calls):
            assert busy.pool.submit(lambda: payload).cancel()

    come_and_go(1000)
    before = sys.getallocatedblocks()
    come_and_go(100_000)
    after = sys.getallocatedblocks()
    assert busy.pool.waiting == 0
    assert busy.pool.kept <= 2
    assert after - before < 1000


def test_the_queue_keeps_no_more_than_waited_at_the_same_time(busy: Busy) -> None:
    for _ in range(20):
        waiting = [busy.pool.submit(lambda: None) for _ in range(100)]
        assert busy.pool.waiting == 100
        assert busy.pool.kept <= 200
        for future in waiting:
            future.cancel()
    assert busy.pool.kept <= 100


def test_calls_run_in_the_order_in_which_they_came(busy: Busy) -> None:
    ran: list[int] = []
    futures = [busy.pool.submit(lambda number=number: ran.append(number)) for number in range(50)]  # type: ignore[misc]
    for future in futures[::3]:
        future.cancel()
    futures += [busy.pool.submit(lambda number=number: ran.append(number)) for number in range(50, 70)]  # type: ignore[misc]
    busy.release.set()
    assert not wait(futures, 20).not_done
    assert ran == [number for number in range(70) if number >= 50 or number % 3]


def test_every_call_that_is_not_cancelled_runs_whoever_cancels_meanwhile() -> None:
    """Cancels from two other threads, while four take calls."""
    pool, ran = DaemonThreads(4, "test-race"), set[int]()
    try:
        go = threading.Event()
        for _ in range(4):
            pool.submit(lambda: go.wait(20))
        futures = [pool.submit(lambda number=number: ran.add(number)) for number in range(20_000)]  # type: ignore[misc]
        cancelled: list[set[int]] = [set(), set()]

        def cancel(which: int) -> None:
            for number in range(which, len(futures), 3):
                if futures[number].cancel():
                    cancelled[which].add(number)

        others = [threading.Thread(target=cancel, args=(which,)) for which in (0, 1)]
        for other in others:
            other.start()
        go.set()
        for other in others:
            other.join()
        assert not wait(futures, 20).not_done
        assert ran == set(range(20_000)) - cancelled[0] - cancelled[1]
    finally:
        pool.close()


def test_threads_are_started_as_they_are_needed_and_no_more_than_allowed() -> None:
    pool = DaemonThreads(3, "test-size")
    barrier = threading.Barrier(4)
    try:
        for _ in range(5):
            pool.submit(lambda: None).result(20)
        assert _named("test-size") == 1
        futures = [pool.submit(lambda: barrier.wait(20)) for _ in range(3)]
        barrier.wait(20)
        wait(futures, 20)
        more = [pool.submit(lambda: None) for _ in range(100)]
        wait(more, 20)
        assert _named("test-size") == 3
    finally:
        pool.close()


def test_close_cancels_what_waits_and_ends_the_threads(busy: Busy) -> None:
    waiting = busy.pool.submit(lambda: None)
    busy.pool.close()
    assert waiting.cancelled()
    busy.release.set()
    busy.blocking.result(20)
    for thread in threading.enumerate():
        if thread.name.startswith("test-busy"):
            thread.join(20)
    assert _named("test-busy") == 0
    # What tidies up after the end still runs, in a thread that does not stay.
    assert busy.pool.submit(lambda: 5).result(20) == 5


def test_what_would_end_the_program_fails_one_call(busy: Busy) -> None:
    busy.release.set()
    for error in (SystemExit(1), KeyboardInterrupt(), StopIteration(1)):
        with pytest.raises(HandlerFailed):
            busy.pool.submit(lambda error=error: _throw(error)).result(20)  # type: ignore[misc]
    assert busy.pool.submit(lambda: 5).result(20) == 5


def test_without_a_further_thread_calls_wait_for_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = DaemonThreads(4, "test-none")
    try:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail)
            with pytest.raises(RuntimeError, match="no thread"):
                pool.submit(lambda: 1)
            assert pool.waiting == 0
        assert pool.submit(lambda: 2).result(20) == 2
        release = threading.Event()
        blocking = pool.submit(lambda: release.wait(20))
        monkeypatch.setattr(threading.Thread, "start", fail)
        waiting = pool.submit(lambda: 3)
        release.set()
        assert blocking.result(20)
        assert waiting.result(20) == 3
    finally:
        pool.close()


def test_what_a_call_that_failed_held_is_let_go_at_once(busy: Busy) -> None:
    class Held:
        pass

    gone = threading.Event()

    def fail() -> None:
        held = Held()
        weakref.finalize(held, gone.set)
        raise LookupError("not there")

    busy.release.set()
    gc.disable()
    try:
        future = busy.pool.submit(fail)
        assert isinstance(future.exception(20), LookupError)
        del future
        assert gone.wait(20)
    finally:
        gc.enable()


def test_the_default_executor_waits_for_what_runs_but_not_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    quick, slow = DaemonExecutor(2, 20.0), DaemonExecutor(2, 0.01)
    finished = quick.submit(lambda number: number, 7)
    quick.shutdown()
    assert finished.result(0) == 7
    assert not caplog.records
    hanging = slow.submit(release.wait, 20)
    slow.shutdown()
    assert not hanging.done()
    assert "are left: 1" in caplog.text
    with pytest.raises(RuntimeError, match="after shutdown"):
        slow.submit(print)
    release.set()
    assert hanging.result(20)


def _named(name: str) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


def _throw(error: BaseException) -> None:
    raise error
