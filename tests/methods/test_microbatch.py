"""Micro-batches without a server: when a run starts, which calls are in it, and how results are handed out.

Where time matters it is the fake one of `FakeTimeLoop`: it stands still while anything happens.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import logging
import selectors
import threading
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import Codec, InternalError, RegistrationError, RpcError, ServerBusy, Shape
from rpcstream.methods.microbatch import BatchedMethods
from rpcstream.methods.registry import MethodRegistry


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing else is to be done."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(JumpingSelector(self))

    def time(self) -> float:
        return self.now


class JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: FakeTimeLoop) -> None:
        super().__init__()
        self._fake_loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(timeout and 0)
        if not events and timeout:
            self._fake_loop.now += timeout
        return events


def in_fake_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


def now() -> float:
    return asyncio.get_running_loop().time()


class Method:
    """A batched method that is called without a server: `await method(item)`."""

    def __init__(self, handler: Callable[..., Any], **options: Any) -> None:
        self.registry = MethodRegistry(Codec())
        self.batches = BatchedMethods(self.registry, clock=now)
        assert self.batches.decorator(name="it", **options)(handler) is handler

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.registry["it"].function(*args, **kwargs)

    def submit(self, *items: Any) -> list[asyncio.Task[Any]]:
        return [asyncio.ensure_future(self(item)) for item in items]

    async def results(self, *items: Any) -> list[Any]:
        """Of calls that are made at once; exceptions in the place of results."""
        return await asyncio.gather(*self.submit(*items), return_exceptions=True)

    @property
    def stats(self) -> dict[str, Any]:
        return self.batches["it"].stats()

    def __enter__(self) -> Method:
        return self

    def __exit__(self, *exc: object) -> None:
        self.batches.close()


class Model:
    """A handler that notes when it was run with what; doubles. Stops at its gate while that is shut."""

    def __init__(self) -> None:
        self.runs: list[list[Any]] = []
        self.times: list[float] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Semaphore(0)
        self.cancelled = 0

    async def double(self, items: list[Any]) -> list[Any]:
        self.runs.append(items)
        self.times.append(now())
        self.begun.release()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return [2 * item for item in items]

    @property
    def sizes(self) -> list[int]:
        return [len(run) for run in self.runs]


async def turns(count: int = 10) -> None:
    """Let everybody else go on."""
    for _ in range(count):
        await asyncio.sleep(0)


# -- when a run starts ------------------------------------------------------------------------------------------------


@in_fake_time
async def test_the_wait_starts_with_the_first_item() -> None:
    model, start = Model(), now()
    with Method(model.double, max_wait=2.0) as method:
        tasks = method.submit(1)
        await asyncio.sleep(1.5)
        tasks += method.submit(2)
        assert await asyncio.gather(*tasks) == [2, 4]
        assert await method(3) == 6
    assert model.runs == [[1, 2], [3]]
    assert model.times == [start + 2, start + 4]


@in_fake_time
async def test_a_full_batch_does_not_wait() -> None:
    model, start = Model(), now()
    with Method(model.double, max_size=3, max_wait=60.0) as method:
        assert await method.results(1, 2, 3) == [2, 4, 6]
        assert now() == start
        assert await method.results(4, 5, 6, 7) == [8, 10, 12, 14]
    assert model.runs == [[1, 2, 3], [4, 5, 6], [7]]
    assert model.times == [start, start, start + 60]


@in_fake_time
async def test_the_rest_of_a_full_batch_waits_from_its_own_first_item() -> None:
    model, start = Model(), now()
    with Method(model.double, max_size=2, max_wait=10.0) as method:
        tasks = method.submit(1)
        await asyncio.sleep(4)
        tasks += method.submit(2, 3)
        await asyncio.gather(*tasks)
    assert model.runs == [[1, 2], [3]]
    assert model.times == [start + 4, start + 14]


@in_fake_time
async def test_no_wait_takes_what_came_in_the_same_turn() -> None:
    model, start = Model(), now()
    with Method(model.double, max_wait=0) as method:
        tasks = method.submit(1, 2, 3)
        await asyncio.gather(*tasks)
        await method(4)
    assert model.runs == [[1, 2, 3], [4]]
    assert now() == start


@in_fake_time
async def test_while_a_run_is_going_the_next_gathers() -> None:
    model = Model()
    model.gate.clear()
    with Method(model.double, max_size=3, max_wait=1.0) as method:
        tasks = method.submit(1)
        await model.begun.acquire()
        for item in range(2, 8):
            tasks += method.submit(item)
            await asyncio.sleep(0.25)
        await asyncio.sleep(5)
        assert model.sizes == [1], "one run at a time"
        assert method.stats["waiting"] == 6
        model.gate.set()
        assert await asyncio.gather(*tasks) == [2 * item for item in range(1, 8)]
    assert model.runs == [[1], [2, 3, 4], [5, 6, 7]], "in order, full ones"


@in_fake_time
async def test_what_has_not_waited_long_enough_waits_on_when_a_run_ends() -> None:
    model, start = Model(), now()
    model.gate.clear()
    with Method(model.double, max_wait=2.0) as method:
        tasks = method.submit(1)
        await asyncio.sleep(2.5)
        tasks += method.submit(2)
        await asyncio.sleep(0.5)
        model.gate.set()
        await asyncio.gather(*tasks)
    assert model.times == [start + 2, start + 4.5]


@in_fake_time
async def test_what_has_waited_long_enough_runs_when_a_run_ends() -> None:
    model, start = Model(), now()
    model.gate.clear()
    with Method(model.double, max_size=2, max_wait=1.0) as method:
        tasks = method.submit(1, 2)
        await asyncio.sleep(1)
        tasks += method.submit(3)
        await asyncio.sleep(1)
        tasks += method.submit(4, 5)
        await asyncio.sleep(1.5)
        model.gate.set()
        await asyncio.gather(*tasks)
    assert model.runs == [[1, 2], [3, 4], [5]]
    assert model.times == [start, start + 3.5, start + 3.5]


@in_fake_time
async def test_what_is_left_by_a_full_batch_waits_from_its_own_first_item() -> None:
    model, start = Model(), now()
    model.gate.clear()
    with Method(model.double, max_size=2, max_wait=10.0) as method:
        tasks = method.submit(1, 2)
        await asyncio.sleep(1)
        tasks += method.submit(3, 4, 5)
        await asyncio.sleep(5)
        model.gate.set()
        await asyncio.gather(*tasks)
    assert model.runs == [[1, 2], [3, 4], [5]]
    assert model.times == [start, start + 6, start + 11]


@in_fake_time
async def test_several_runs_at_once_where_it_is_allowed() -> None:
    model = Model()
    model.gate.clear()
    with Method(model.double, max_size=2, max_wait=0, threads=3) as method:
        tasks = method.submit(*range(8))
        await asyncio.sleep(1)
        assert model.sizes == [2, 2, 2]
        model.gate.set()
        await asyncio.gather(*tasks)
    assert model.sizes == [2, 2, 2, 2]


@in_fake_time
async def test_one_of_one() -> None:
    model = Model()
    with Method(model.double, max_size=1, max_wait=60.0) as method:
        assert await method.results(1, 2, 3) == [2, 4, 6]
    assert model.sizes == [1, 1, 1]


@in_fake_time
async def test_a_thousand_callers() -> None:
    model = Model()
    with Method(model.double, max_size=64, max_wait=1.0) as method:
        assert await method.results(*range(1000)) == [2 * item for item in range(1000)]
    assert model.sizes == [64] * 15 + [40]
    assert [item for run in model.runs for item in run] == list(range(1000))


@in_fake_time
async def test_over_the_queue_the_server_is_busy() -> None:
    model = Model()
    model.gate.clear()
    with Method(model.double, max_size=2, max_wait=0, max_queue=3) as method:
        going = method.submit(1, 2)
        await model.begun.acquire()
        waiting = method.submit(3, 4, 5)
        await turns()
        with pytest.raises(ServerBusy) as caught:
            await method(6)
        assert caught.value.data == {"limit": 3}
        waiting[0].cancel()
        await turns()
        waiting += method.submit(7)
        model.gate.set()
        assert await asyncio.gather(*going, *waiting[1:]) == [2, 4, 8, 10, 14]


# -- where it runs ----------------------------------------------------------------------------------------------------


async def test_a_sync_handler_runs_in_a_thread_of_its_own_while_the_next_batch_gathers() -> None:
    begun, gate, threads, sizes = asyncio.Event(), threading.Event(), set(), []
    loop = asyncio.get_running_loop()

    def handler(items: list[int]) -> list[int]:
        threads.add(threading.current_thread())
        sizes.append(len(items))
        loop.call_soon_threadsafe(begun.set)
        gate.wait(30)
        return items

    with Method(handler, max_wait=0) as method:
        tasks = method.submit(0)
        await begun.wait()
        tasks += method.submit(*range(1, 20))
        await turns()
        assert method.stats["waiting"] == 19
        gate.set()
        assert await asyncio.gather(*tasks) == list(range(20))
    assert sizes == [1, 19]
    assert len(threads) == 1
    assert threading.main_thread() not in threads
    (thread,) = threads
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive(), "closing ends it"


async def test_several_threads() -> None:
    together = threading.Barrier(3)

    def handler(items: list[int]) -> list[int]:
        together.wait(30)
        return items

    with Method(handler, max_size=1, threads=3) as method:
        assert await method.results(1, 2, 3) == [1, 2, 3]


async def test_without_offload_it_runs_in_the_loop() -> None:
    def handler(items: list[int]) -> list[int]:
        assert asyncio.get_running_loop()
        return items

    with Method(handler, max_wait=0, offload=None) as method:
        assert await method.results(1, 2) == [1, 2]


async def test_what_is_stacked_is_stacked_in_the_thread() -> None:
    def handler(rows: Annotated[NDArray[np.float32], Shape(None, 2)]) -> NDArray[np.float32]:
        assert rows.shape == (3, 2)
        return rows.sum(axis=1)

    with Method(handler, max_wait=0) as method:
        results = await method.results(*np.arange(6, dtype=np.float32).reshape(3, 2))
    assert results == [1, 5, 9]
    assert {type(result) for result in results} == {np.float32}


@pytest.mark.parametrize(("offload", "limit"), [("thread", "MAX_STACKED"), (None, "MAX_STACKED_IN_LOOP")])
async def test_what_is_stacked_for_one_run_is_bounded(
    offload: Any, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, ...]] = []

    def shapes(items: NDArray[np.float64], names: list[str]) -> list[str]:
        sizes.append(items.shape)
        return names

    monkeypatch.setattr(f"rpcstream.methods.microbatch.{limit}", 1000)
    with Method(shapes, offload=offload, max_size=20) as method:
        small, large = np.zeros(50), np.zeros(500)
        waiting = [method(large if number % 7 == 6 else small, str(number)) for number in range(20)]
        assert await asyncio.gather(*waiting) == [str(number) for number in range(20)]
    assert sorted(sizes) == [(1, 500)] * 2 + [(2, 50)] * 9


async def test_unequal_arrays_are_not_stacked_together() -> None:
    seen = []

    async def handler(arrays: np.ndarray, names: list[str]) -> list[str]:
        seen.append((arrays.shape, str(arrays.dtype)))
        return names

    arrays = [np.zeros(shape, dtype) for shape, dtype in [(2, "f4"), (3, "f4"), (2, "f4"), (2, "f8"), (3, "f4")]]
    with Method(handler, max_wait=0) as method:
        calls = [method(array, str(place)) for place, array in enumerate(arrays)]
        assert await asyncio.gather(*calls) == ["0", "1", "2", "3", "4"]
        assert seen == [((2, 2), "float32"), ((2, 3), "float32"), ((1, 2), "float64")]
        assert (method.stats["runs"], method.stats["items"]) == (3, 5)


@pytest.mark.parametrize("offload", ["thread", None])
async def test_a_run_sees_no_callers_context(offload: Any) -> None:
    who = contextvars.ContextVar("who", default="nobody")
    seen = []

    def handler(items: list[int]) -> list[int]:
        seen.append(who.get())
        who.set("the run before")
        return items

    async def awaiting(items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return handler(items)

    who.set("whoever registers")
    for function in (handler, awaiting):
        with Method(function, max_size=2, max_wait=0, offload=offload) as method:
            who.set("a caller")
            await method(1)
            await method.results(1, 2, 3)
        who.set("whoever registers")
    assert seen == ["whoever registers"] * 6


# -- failures ---------------------------------------------------------------------------------------------------------


def picky(items: list[int]) -> list[int]:
    """Fails with the negative ones."""
    if min(items) < 0:
        raise ValueError(f"negative: {min(items)}")
    return items


async def picky_later(items: list[int]) -> list[int]:
    await asyncio.sleep(0)
    return picky(items)


@pytest.mark.parametrize("handler", [picky, picky_later])
async def test_one_bad_item_fails_alone(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    with Method(handler, max_wait=0) as method:
        one, bad, other, worse = await method.results(1, -2, 3, -4)
        assert (one, other) == (1, 3)
        assert (type(bad), str(bad)) == (ValueError, "negative: -2")
        assert str(worse) == "negative: -4"
        stats = method.stats
    assert (stats["runs"], stats["items"], stats["retries"]) == (1, 4, 4)
    (record,) = caplog.records
    assert record.getMessage() == ("method 'it' failed with 4 items, each is run alone: ValueError('negative: -4')")


async def test_an_item_that_was_alone_is_not_run_again() -> None:
    with Method(picky, max_wait=0) as method:
        with pytest.raises(ValueError, match="-1"):
            await method(-1)
        assert method.stats["retries"] == 0


async def test_without_retry_all_of_the_run_fail_and_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with Method(picky, max_wait=0, retry_single=False) as method:
        results = await method.results(1, -2, 3)
        assert [type(result) for result in results] == [InternalError] * 3
        with pytest.raises(ValueError, match="-1"):
            await method(-1)
    (record,) = caplog.records
    failure_id = results[0].message[-8:]
    assert results[0].message == f"Internal error: see the server's log, id {failure_id}"
    assert (record.getMessage(), record.levelno) == (f"method 'it' failed with 3 items, id {failure_id}", logging.ERROR)
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


async def test_without_retry_an_error_for_callers_reaches_all_of_them(caplog: pytest.LogCaptureFixture) -> None:
    def handler(items: list[int]) -> list[int]:
        raise RpcError(7, "no")

    with Method(handler, max_wait=0, retry_single=False) as method:
        assert [result.code for result in await method.results(1, 2)] == [7, 7]
    assert not caplog.records


async def test_what_waits_comes_after_what_is_run_again() -> None:
    runs = []

    async def handler(items: list[int]) -> list[int]:
        runs.append(items)
        await asyncio.sleep(0)
        return picky(items)

    with Method(handler, max_size=3, max_wait=0) as method:
        await method.results(1, -2, 3, 4, 5, 6)
    assert runs == [[1, -2, 3], [1], [-2], [3], [4, 5, 6]]


async def test_an_exception_in_the_list_fails_that_item_alone() -> None:
    refusal = RpcError(5, "not this one")

    def handler(items: list[int]) -> list[Any]:
        return [refusal if item == 2 else ValueError(str(item)) if item == 3 else item for item in items]

    with Method(handler, max_wait=0) as method:
        one, two, three, four = await method.results(1, 2, 3, 4)
        assert (one, four) == (1, 4)
        assert two is refusal
        assert (type(three), str(three)) == (ValueError, "3")
        assert method.stats["retries"] == 0


async def test_an_error_that_a_handler_keeps_does_not_grow() -> None:
    refusal = RpcError(5, "always the same")
    lengths = set()

    def handler(items: list[int]) -> list[Any]:
        return [refusal for _ in items]

    with Method(handler, max_wait=0) as method:
        for _ in range(5):
            assert await method.results(1, 2) == [refusal, refusal]
            traceback, length = refusal.__traceback__, 0
            while traceback is not None:
                traceback, length = traceback.tb_next, length + 1
            lengths.add(length)
    assert len(lengths) == 1


@pytest.mark.parametrize(
    "error",
    [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), StopIteration(), BaseException()],
    ids=lambda error: type(error).__name__,
)
async def test_no_exception_is_more_than_a_failure_of_its_item(error: BaseException) -> None:
    name = type(error).__name__

    def returning(items: list[int]) -> list[Any]:
        return [error if item == 2 else item for item in items]

    def raising(items: list[int]) -> list[int]:
        if 2 in items:
            raise error
        return items

    async def raising_later(items: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return raising(items)

    for handler in (returning, raising, raising_later):
        if handler is raising_later and name == "KeyboardInterrupt":
            continue  # ends the program, as it does in any handler in the loop
        with Method(handler, max_wait=0) as method:
            one, two, three = await method.results(1, 2, 3)
            assert (one, three) == (1, 3)
            assert isinstance(two, Exception), "it can be caught"
            assert not isinstance(two, StopIteration)


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (lambda items: items[1:], "it returned 2 results, not 3"),
        (lambda items: [*items, 4], "it returned 4 results, not 3"),
        (lambda items: None, "it returned NoneType, not a list, tuple or array of 3 results"),
        (lambda items: (item for item in items), "it returned generator, not a list, tuple or array of 3 results"),
        (lambda items: "abc", "it returned str, not a list, tuple or array of 3 results"),
        (lambda items: np.zeros((2, 3)), "it returned 2 results, not 3"),
        (lambda items: np.float32(3), "it returned an array without dimensions, not one of 3 rows"),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_wrong_number_of_results_is_an_internal_error_for_all(
    returned: Any, reason: str, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(items: list[int]) -> Any:
        return returned(items)

    async def handler_later(items: list[int]) -> Any:
        return returned(items)

    with Method(handler_later if is_async else handler, max_wait=0) as method:
        results = await method.results(1, 2, 3)
        assert method.stats["retries"] == 0
    assert [(type(result), result.data) for result in results] == [(InternalError, None)] * 3
    failure_id = results[0].message[-8:]
    assert [record.getMessage() for record in caplog.records] == [f"method 'it' got 3 items: {reason}, id {failure_id}"]


# -- callers that leave -----------------------------------------------------------------------------------------------


@in_fake_time
async def test_cancelled_callers_leave_before_the_run() -> None:
    model = Model()
    with Method(model.double, max_wait=1.0) as method:
        tasks = method.submit(1, 2, 3)
        await turns()
        tasks[0].cancel()
        await turns()
        assert method.stats["waiting"] == 2
        tasks[2].cancel()
        assert await tasks[1] == 4
        assert method.stats["cancelled"] == 2
    assert model.runs == [[2]]


@in_fake_time
async def test_with_nobody_left_there_is_no_run() -> None:
    model, start = Model(), now()
    with Method(model.double, max_wait=1.0) as method:
        tasks = method.submit(1, 2)
        await turns()
        for task in tasks:
            task.cancel()
        await asyncio.sleep(5)
        assert model.runs == []
        assert await method(3) == 6
        stats = method.stats
    assert model.runs == [[3]]
    assert model.times == [start + 6], "the wait of those who left is not the wait of those who come"
    assert (stats["runs"], stats["cancelled"], stats["waiting"]) == (1, 2, 0)


@in_fake_time
async def test_those_who_left_make_room_in_the_batch() -> None:
    model, start = Model(), now()
    model.gate.clear()
    with Method(model.double, max_size=3, max_wait=9.0) as method:
        tasks = method.submit(1, 2, 3, 4, 5)
        await turns()
        tasks[3].cancel()
        tasks += method.submit(6, 7)
        await turns()
        model.gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert model.runs == [[1, 2, 3], [5, 6, 7]]
    assert now() == start


@in_fake_time
async def test_those_who_leave_in_the_very_turn_of_the_run_are_not_in_it() -> None:
    model, start = Model(), now()
    with Method(model.double, max_size=3, max_wait=9.0) as method:
        tasks = method.submit(1, 2)
        await turns()
        tasks += method.submit(3)
        tasks[0].cancel()
        assert await asyncio.gather(*tasks[1:]) == [4, 6]
        assert method.stats["cancelled"] == 1
    assert (model.runs, now()) == ([[2, 3]], start)


@in_fake_time
async def test_one_who_leaves_during_the_run_does_not_disturb_the_others() -> None:
    model = Model()
    model.gate.clear()
    with Method(model.double, max_wait=0) as method:
        tasks = method.submit(1, 2, 3)
        await model.begun.acquire()
        tasks[1].cancel()
        await asyncio.wait({tasks[1]})
        assert tasks[1].cancelled()
        model.gate.set()
        assert await asyncio.gather(tasks[0], tasks[2]) == [2, 6]
        assert method.stats["cancelled"] == 0, "it had begun"


@in_fake_time
async def test_when_all_leave_during_the_run_it_is_cancelled_and_waited_for() -> None:
    ended = asyncio.Event()
    begun = asyncio.Event()

    async def handler(items: list[int]) -> list[int]:
        begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(1)
            ended.set()
        return items

    with Method(handler, max_wait=0) as method:
        tasks = method.submit(1, 2, 3)
        await begun.wait()
        tasks[1].cancel()
        await asyncio.wait({tasks[1]})
        for task in tasks:
            task.cancel()
        await asyncio.wait({tasks[2]})
        assert ended.is_set(), "a caller is not gone before the handler has cleaned up for it"
        assert all(task.cancelled() for task in tasks)


@in_fake_time
async def test_a_deadline_is_the_callers_own() -> None:
    model = Model()
    model.gate.clear()
    with Method(model.double, max_wait=1.0) as method:
        patient = method.submit(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await method(2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await method(3)
        model.gate.set()
        assert await asyncio.gather(*patient) == [2]
    assert model.runs == [[1, 3]]
    assert model.cancelled == 0


async def test_a_thread_goes_on_when_all_have_left_and_keeps_its_place() -> None:
    begun, gate, runs = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def handler(items: list[int]) -> list[int]:
        runs.append(items)
        loop.call_soon_threadsafe(begun.set)
        gate.wait(30)
        return items

    with Method(handler, max_wait=0) as method:
        (task,) = method.submit(1)
        await begun.wait()
        task.cancel()
        await asyncio.wait({task})
        others = method.submit(2, 3)
        await turns()
        assert runs == [[1]]
        gate.set()
        assert await asyncio.gather(*others) == [2, 3]


async def test_a_failure_that_concerns_nobody_any_more_is_let_go(caplog: pytest.LogCaptureFixture) -> None:
    begun, ended, gate = asyncio.Event(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def handler(items: list[int]) -> list[int]:
        loop.call_soon_threadsafe(begun.set)
        gate.wait(30)
        loop.call_soon_threadsafe(ended.set)
        raise ValueError("too late")

    with Method(handler, max_wait=0) as method:
        tasks = method.submit(1, 2)
        await begun.wait()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        gate.set()
        await ended.wait()
        with pytest.raises(ValueError, match="too late"):
            await method(3)
        assert method.stats["retries"] == 0
    assert not caplog.records


async def test_those_who_leave_between_a_failure_and_their_second_try_are_not_run() -> None:
    runs, begun, gate = [], asyncio.Event(), asyncio.Event()

    async def handler(items: list[int]) -> list[int]:
        runs.append(items)
        if len(items) > 1:
            raise ValueError
        begun.set()
        await gate.wait()
        return items

    with Method(handler, max_wait=0) as method:
        one, two, three = method.submit(1, 2, 3)
        await begun.wait()
        two.cancel()
        gate.set()
        assert await asyncio.gather(one, three) == [1, 3]
    assert runs == [[1, 2, 3], [1], [3]]


async def test_nothing_is_said_of_failures_that_nobody_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    begun, gate = asyncio.Event(), asyncio.Event()

    async def handler(items: list[int]) -> list[Any]:
        begun.set()
        await gate.wait()
        if 0 in items:
            raise ValueError
        return [ValueError() for _ in items]

    for items in [(0,), (0, 1), (1, 2)]:
        with Method(handler, max_wait=0) as method:
            tasks = method.submit(*items)
            await begun.wait()
            gate.set()
            for task in tasks[1:] or tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await turns()
        begun.clear()
        gate.clear()
    del tasks
    gc.collect()
    await turns()
    assert complaints == []


# -- the end ----------------------------------------------------------------------------------------------------------


@in_fake_time
async def test_closing_cancels_what_waits_and_what_runs() -> None:
    model = Model()
    model.gate.clear()
    with Method(model.double, max_size=2, max_wait=0) as method:
        tasks = method.submit(1, 2, 3)
        await model.begun.acquire()
        method.batches.close()
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [True] * 3
        assert model.cancelled == 1
        assert method.stats["waiting"] == 0
        model.gate.set()
        assert await method(4) == 8, "the next call begins anew"
    assert model.runs == [[1, 2], [4]]


@pytest.mark.parametrize("is_async", [True, False])
def test_nothing_is_kept_of_an_event_loop_that_ended(is_async: bool) -> None:
    async def handler_later(items: list[int]) -> list[int]:
        return items

    def handler(items: list[int]) -> list[int]:
        return items

    method = Method(handler_later if is_async else handler, max_wait=0)

    async def life() -> None:
        with method:
            assert await method.results(1, 2) == [1, 2]

    for _ in range(3):
        asyncio.run(life())
    assert method.stats["runs"] == 3


async def test_another_in_its_place_does_not_lose_the_calls_that_wait() -> None:
    begun, gate, threads = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def old(items: list[int]) -> list[str]:
        threads.append(threading.current_thread())
        loop.call_soon_threadsafe(begun.set)
        gate.wait(30)
        return ["old" for _ in items]

    def new(items: list[int]) -> list[str]:
        return ["new" for _ in items]

    with Method(old, max_wait=0) as method:
        tasks = method.submit(1)
        await begun.wait()
        tasks += method.submit(2)
        await turns()
        before = method.batches["it"]
        method.batches.decorator(name="it", max_wait=0, replace=True)(new)
        assert method.batches["it"] is not before
        assert await method(3) == "new"
        gate.set()
        assert await asyncio.gather(*tasks) == ["old", "old"]
        await asyncio.to_thread(threads[0].join, 10)
        assert not threads[0].is_alive(), "nobody will call it any more"


async def test_a_plain_method_in_its_place_ends_its_statistics() -> None:
    with Method(picky) as method:
        assert list(method.batches) == ["it"]
        method.registry.add(len, name="it", replace=True)
        assert (dict(method.batches), len(method.batches), "it" in method.batches) == ({}, 0, False)


# -- statistics -------------------------------------------------------------------------------------------------------


@in_fake_time
async def test_statistics_of_sizes_and_waits() -> None:
    model = Model()
    with Method(model.double, max_size=8, max_wait=1.0) as method:
        assert method.stats == {
            "runs": 0,
            "items": 0,
            "retries": 0,
            "cancelled": 0,
            "waiting": 0,
            "largest": 0,
            "mean_size": 0.0,
            "sizes": {},
            "mean_wait": 0.0,
            "max_wait": 0.0,
        }
        tasks = method.submit(1)
        await asyncio.sleep(0.5)
        tasks += method.submit(2, 3)
        await asyncio.gather(*tasks)
        await method.results(*range(8))
        await method.results(*range(8))
        await method(1)
        stats = method.stats
    assert (stats["runs"], stats["items"], stats["largest"], stats["mean_size"]) == (4, 20, 8, 5.0)
    assert stats["sizes"] == {"1": 1, "4": 1, "8": 2}
    assert stats["max_wait"] == 1.0
    assert stats["mean_wait"] == pytest.approx((1.0 + 0.5 + 0.5 + 16 * 0 + 1.0) / 20)


@in_fake_time
async def test_the_wait_for_a_place_counts() -> None:
    model = Model()
    model.gate.clear()
    with Method(model.double, max_size=1) as method:
        tasks = method.submit(1, 2)
        await asyncio.sleep(3)
        model.gate.set()
        await asyncio.gather(*tasks)
        assert (method.stats["max_wait"], method.stats["mean_wait"]) == (3.0, 1.5)


# -- registration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_size": 0}, "max_size must be an integer of at least 1, got 0"),
        ({"max_size": 2.0}, "max_size must be an integer of at least 1, got 2.0"),
        ({"max_size": True}, "max_size"),
        ({"threads": 0}, "threads must be an integer of at least 1, got 0"),
        ({"max_queue": 0}, "max_queue must be an integer of at least 1, got 0"),
        ({"max_queue": 31}, "max_queue must be at least max_size (32), got 31"),
        ({"max_wait": -1}, "max_wait must be a number of seconds, 0 or more, got -1"),
        ({"max_wait": float("inf")}, "max_wait"),
        ({"max_wait": float("nan")}, "max_wait"),
        ({"max_wait": None}, "max_wait"),
        ({"offload": "process"}, "offload must be 'thread' or None, got 'process'"),
        ({"timeout": 0}, "timeout must be a positive number of seconds"),
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(RegistrationError) as caught:
        Method(picky, **options)
    assert str(caught.value).startswith("it: ")
    assert told in str(caught.value)


def test_a_handler_that_yields_is_refused() -> None:
    def generator(items: list[int]) -> Any:
        yield from items

    async def later(items: list[int]) -> Any:
        for item in items:
            yield item

    for handler in (generator, later):
        with pytest.raises(RegistrationError, match="not yield them"):
            Method(handler)


def test_what_is_refused_leaves_nothing_behind() -> None:
    registry = MethodRegistry(Codec())
    batches = BatchedMethods(registry)
    batches.decorator()(picky)
    with pytest.raises(ValueError, match="is registered already"):
        batches.decorator()(picky)
    with pytest.raises(RegistrationError, match="reserved"):
        batches.decorator(name="rpc.picky")(picky)
    with pytest.raises(RegistrationError, match="parameter 'items'"):
        batches.decorator(name="other")(lambda items: items)
    with pytest.raises(RegistrationError, match="pass name="):
        batches.decorator()(lambda items: items)
    assert (list(batches), list(registry)) == (["picky"], ["picky"])
