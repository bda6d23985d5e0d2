"""Batched methods: when a run starts, which calls are in it, and how results and failures are handed out."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import gc
import inspect
import re
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Annotated, Any

import annotated_types
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import AsyncClient, RpcError, Server, ServerBusy, Shape
from rpcstream.errors import DeadlineExceeded, InternalError, RegistrationError
from rpcstream.testing import FakeTimeLoop, drop_connections, memory_client

from ..kit import raw_peers, request, until
from .calling import document_of


def in_fake_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


class Batched:
    """A server with one batched method, `it`, and a client of it."""

    def __init__(self, handler: Callable[..., Any], *, debug: bool = True, **options: Any) -> None:
        self.server = Server(debug=debug, drain_timeout=0.01)
        assert self.server.batched(name="it", **{"max_wait": 0, **options})(handler) is handler

    async def __aenter__(self) -> Batched:
        self._stack = contextlib.AsyncExitStack()
        self.client: AsyncClient = await self._stack.enter_async_context(memory_client(self.server, timeout=None))
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self._stack.aclose()

    def submit(self, *items: Any) -> list[Any]:
        return [self.client.submit.it(item) for item in items]

    async def results(self, *items: Any) -> list[Any]:
        """Of calls that are made at once; exceptions in the place of results."""
        return await asyncio.gather(*self.submit(*items), return_exceptions=True)

    @property
    def stats(self) -> dict[str, Any]:
        return self.server.batches["it"].stats()


class Model:
    """A handler that notes when it was run with what; doubles. Stops at its gate while that is shut."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.runs: list[tuple[float, list[int]]] = []
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()

    async def double(self, items: list[int]) -> list[int]:
        self.runs.append((asyncio.get_running_loop().time(), items))
        await self.gate.wait()
        return [2 * item for item in items]

    @property
    def items(self) -> list[list[int]]:
        return [items for _, items in self.runs]


#: A unit of the times below, in seconds: so long that it does not matter what the test itself takes.
UNIT = 1000

#: Options; which items come when; which leave; when the first run may end; the runs.
SCHEDULES: dict[str, tuple[dict[str, Any], Any, Any, float, Any]] = {
    "the wait starts with the first item": ({"max_wait": 2.0}, {0: [1], 1.5: [2]}, {}, 0, {2: [[1, 2]]}),
    "a full batch does not wait, and the rest waits from its own first item": (
        *({"max_size": 2, "max_wait": 10.0}, {0: [1], 4: [2, 3]}, {}, 0),
        {4: [[1, 2]], 14: [[3]]},
    ),
    "no wait takes what came in the same turn": ({}, {0: [1, 2, 3], 1: [4]}, {}, 0, {0: [[1, 2, 3]], 1: [[4]]}),
    "one run at a time": (
        *({"max_size": 3, "max_wait": 1.0}, {0: [1], 1.5: [2, 3], 2: [4, 5, 6, 7]}, {}, 8),
        {1: [[1]], 8: [[2, 3, 4], [5, 6, 7]]},
    ),
    "what has not waited long enough waits on": ({"max_wait": 2.0}, {0: [1], 2.5: [2]}, {}, 3, {2: [[1]], 4.5: [[2]]}),
    "several runs at once where it is allowed": (
        *({"max_size": 2, "threads": 3}, {0: range(8)}, {}, 1),
        {0: [[0, 1], [2, 3], [4, 5]], 1: [[6, 7]]},
    ),
    "with nobody left there is no run": ({"max_wait": 1.0}, {0: [1, 2], 5.5: [3]}, {0.5: [1, 2]}, 0, {6.5: [[3]]}),
    "who leaves makes room": (
        *({"max_size": 3, "max_wait": 9.0}, {0: [1, 2, 3, 4, 5], 1.5: [6, 7]}, {1: [4]}, 2),
        {0: [[1, 2, 3]], 2: [[5, 6, 7]]},
    ),
    "who leaves a run does not disturb the others": ({}, {0: [1, 2, 3]}, {1: [2]}, 2, {0: [[1, 2, 3]]}),
}


@pytest.mark.parametrize("name", SCHEDULES)
@in_fake_time
async def test_when_a_run_starts_and_what_is_in_it(name: str) -> None:
    options, arrivals, leaving, opening, expected = SCHEDULES[name]
    model, loop = Model(is_open=not opening), asyncio.get_running_loop()
    options = {**options, "max_wait": options.get("max_wait", 0) * UNIT}
    async with Batched(model.double, **options) as batched:
        start, calls = loop.time(), {}
        for at in sorted({*arrivals, *leaving, opening}):
            await asyncio.sleep(start + at * UNIT - loop.time())
            calls |= {item: batched.submit(item)[0] for item in arrivals.get(at, ())}
            for item in leaving.get(at, ()):
                calls[item].cancel()
            if at == opening:
                model.gate.set()
        gone = {item for items in leaving.values() for item in items}
        stay = [item for item in calls if item not in gone]
        assert await asyncio.gather(*[calls[item] for item in stay]) == [2 * item for item in stay]
        runs: dict[float, list[Any]] = {}
        for at, items in model.runs:
            runs.setdefault(round((at - start) / UNIT, 1), []).append(items)
        assert runs == expected
        in_runs = [item for items in model.items for item in items]
        assert batched.stats["cancelled"] == len(gone - set(in_runs))
        assert (batched.stats["runs"], batched.stats["items"]) == (len(model.runs), len(in_runs))
        stats = batched.stats
        assert stats["waiting"] == 0
        assert stats["mean_size"] == pytest.approx(len(in_runs) / len(model.runs), abs=0.1)
        assert stats["mean_wait"] >= 0


@in_fake_time
async def test_over_the_queue_the_server_is_busy_and_a_deadline_holds_for_the_wait_too() -> None:
    model = Model(is_open=False)
    async with Batched(model.double, max_size=2, max_queue=3) as batched:
        going = batched.submit(1, 2)
        await until(lambda: model.runs)
        waiting = batched.submit(3, 4, 5)
        await until(lambda: batched.stats["waiting"] == 3)
        with pytest.raises(ServerBusy) as caught:
            await batched.client.it(6)
        assert caught.value.data == {"limit": 3}
        waiting[0].cancel()
        await until(lambda: batched.stats["waiting"] == 2)
        with pytest.raises((DeadlineExceeded, TimeoutError)):
            await batched.client.call("it", 6, timeout=0.5)
        waiting += batched.submit(7)
        model.gate.set()
        assert await asyncio.gather(*going, *waiting[1:]) == [2, 4, 8, 10, 14]
    assert model.items == [[1, 2], [4, 5], [7]]


async def test_what_comes_with_one_read_or_in_one_batch_runs_together_and_who_is_lost_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rpcstream.peer.session.TURN", 60.0)  # a busy machine would share the reads in two turns
    model = Model()
    server = Server()
    server.batched(name="it", max_wait=0)(model.double)
    silent = {"jsonrpc": "2.0", "method": "it", "params": [9]}
    async with raw_peers(server) as connect:
        raw = await connect()
        replies = await raw.ask([silent, *(request("it", item, id=n) for n, item in enumerate([1, "x", 2]))])
        assert [each.get("result") for each in replies] == [2, None, 4]
        assert (replies[1]["error"]["data"]["path"], replies[1]["error"]["data"]["parameter"]) == ("$[0]", "items")
        raw.send(*(request("it", n, id=n) for n in range(20)))
        assert {each["id"] for each in await raw.receive_many(20)} == set(range(20))
        model.gate.clear()
        raw.call("it", 1)
        await until(lambda: len(model.runs) == 3)
        raw.send(*(request("it", n, id=n) for n in (7, 8)))
        await until(lambda: server.batches["it"].stats()["waiting"] == 2)
        drop_connections(server)
        await until(lambda: server.batches["it"].stats()["cancelled"] == 2)
    assert model.items == [[9, 1, 2], list(range(20)), [1]]


async def test_a_sync_handler_runs_in_a_thread_of_its_own_while_the_next_batch_gathers() -> None:
    gate, threads, runs = threading.Event(), set(), []

    def handler(items: list[int]) -> list[int]:
        threads.add(threading.current_thread())
        runs.append(items)
        gate.wait(30)
        return items

    async with Batched(handler) as batched:
        calls = batched.submit(0)
        await until(lambda: runs)
        calls[0].cancel()  # the thread goes on, and keeps its place
        calls += batched.submit(*range(1, 20))
        await until(lambda: batched.stats["waiting"] == 19)
        assert runs == [[0]]
        # Another in its place does not lose the calls that wait.
        batched.server.batched(name="it", max_wait=0, replace=True)(picky_later)
        assert await batched.client.it(3) == 3
        gate.set()
        assert await asyncio.gather(*calls[1:]) == list(range(1, 20))
    assert [len(run) for run in runs] == [1, 19]
    (thread,) = threads
    assert thread is not threading.main_thread()


@pytest.mark.parametrize("offload", ["thread", None])
async def test_a_run_sees_no_callers_context(offload: Any) -> None:
    who, seen = contextvars.ContextVar("who", default="nobody"), []

    def handler(items: list[int]) -> list[int]:
        seen.append((who.get(), threading.current_thread() is threading.main_thread()))
        who.set("the run before")
        return items

    who.set("whoever registers")
    async with Batched(handler, max_size=2, offload=offload) as batched:
        who.set("a caller")
        await batched.results(1, 2, 3)
    assert seen == [("whoever registers", offload is None)] * 2


async def test_only_equal_arrays_are_stacked_and_not_too_many_bytes() -> None:
    seen = []

    def handler(arrays: np.ndarray, names: list[str]) -> list[str]:
        seen.append((arrays.shape, str(arrays.dtype)))
        arrays[:] = 0
        return names

    shapes = [(2, "f4"), (3, "f4"), (2, "f4"), (2, "f8"), (3, "f4"), *[(12 << 20, "u1")] * 6]
    async with Batched(handler, offload=None, max_size=len(shapes), max_wait=0.2) as batched:
        client = batched.client
        calls = [client.submit.it(np.zeros(shape, dtype), str(place)) for place, (shape, dtype) in enumerate(shapes)]
        assert await asyncio.gather(*calls) == [str(place) for place in range(len(shapes))]
    assert max(size[0] for size, dtype in seen if dtype == "uint8") <= 5, "too much is copied for one run"
    small = [each for each in seen if each[1] != "uint8"]
    assert sorted(small) == [((1, 2), "float64"), ((2, 2), "float32"), ((2, 3), "float32")]


def picky(items: list[int]) -> list[int]:
    """Fails with the negative ones."""
    if min(items) < 0:
        raise ValueError(f"negative: {min(items)}")
    return items


async def picky_later(items: list[int]) -> list[int]:
    return picky(items)


@pytest.mark.parametrize("handler", [picky, picky_later])
async def test_one_bad_item_fails_alone(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with Batched(handler, max_size=4, max_wait=0.5) as batched:
        one, bad, other, worse = await batched.results(1, -2, 3, -4)
        assert (one, other) == (1, 3)
        assert [error.data["message"] for error in (bad, worse)] == ["negative: -2", "negative: -4"]
        assert (batched.stats["runs"], batched.stats["items"], batched.stats["retries"]) == (1, 4, 4)
        await batched.results(-1)  # one that was alone is not run again
        assert batched.stats["retries"] == 4
        assert (await batched.client.call("rpc.stats"))["batched"] == {"it": batched.stats}
        assert batched.stats["sizes"] == {"1": 1, "4": 1}
    assert caplog.text.count("Traceback") == 3


async def test_without_retry_all_of_the_run_fail() -> None:
    async with Batched(picky, retry_single=False) as batched:
        told = {error.data["message"] for error in await batched.results(1, -2, 3)}
        assert (told, batched.stats["retries"]) == ({"negative: -2"}, 0)


@pytest.mark.parametrize(
    "error",
    [RpcError(5, "no"), SystemExit(), asyncio.CancelledError(), StopIteration(), BaseException()],
    ids=lambda error: type(error).__name__,
)
async def test_no_exception_is_more_than_a_failure_of_its_item_and_none_grows(error: BaseException) -> None:
    def returning(items: list[int]) -> list[Any]:
        return [error if item == 2 else item for item in items]

    def raising(items: list[int]) -> list[int]:
        if 2 in items:
            raise error
        return items

    async def raising_later(items: list[int]) -> list[int]:
        return raising(items)

    for handler in (returning, raising, raising_later):
        lengths = []
        async with Batched(handler, max_size=3, max_wait=60) as batched:
            for _ in range(3):
                one, two, three = await batched.results(1, 2, 3)
                assert (one, three, isinstance(two, RpcError)) == (1, 3, True)
                assert two.code == getattr(error, "code", None) or not isinstance(error, RpcError)
                lengths.append(len(traceback.extract_tb(error.__traceback__)))
            assert batched.stats["retries"] == (0 if handler is returning else 9)
        assert handler is not returning or lengths[1] == lengths[2]


class Tensor:
    """As those of other libraries: an array can be made of it, if its device is there."""

    def __init__(self, *values: int) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if not self.values:
            raise RuntimeError("the device is gone")
        return np.array(self.values)


@pytest.mark.parametrize(
    ("returned", "results"),
    [
        ((1, None, "x"), [1, None, "x"]),
        (np.array([1.5, 2.5, 3]), [1.5, 2.5, 3]),
        (np.array(["a", None, 1], object), ["a", None, 1]),
        (Tensor(0, 1, 2), [0, 1, 2]),
        # In any other case all callers get an error, and the log says why.
        ([2, 3], "it returned 2 results, not 1"),
        ([1, 2, 3, 4], "it returned 4 results, not 1"),
        ((each for each in (1, 2, 3)), "generator could not be made an array"),
        ("abc", "str could not be made an array"),
        (np.zeros((2, 3)), "it returned 2 results, not 1"),
        (np.float32(3), "unsized object"),
        (Tensor(), "the device is gone"),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_results_are_shared_out(returned: Any, results: Any, caplog: pytest.LogCaptureFixture) -> None:
    def handler(items: list[int]):  # type: ignore[no-untyped-def]
        return returned

    async with Batched(handler, max_size=3, max_wait=60) as batched:
        given = await batched.results(1, 2, 3)
        if isinstance(results, list):
            assert given == results
            return
        assert [type(result) for result in given] == [InternalError] * 3
        assert results in caplog.text


@pytest.mark.parametrize("items", [(0, 1), (1, 2)])
async def test_nothing_is_said_of_failures_that_nobody_waits_for(items: Any, caplog: pytest.LogCaptureFixture) -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    gate, runs = threading.Event(), []

    def handler(items: list[int]) -> list[Any]:
        runs.append(items)
        gate.wait(30)
        if 0 in items:
            raise ValueError("too late")
        return [ValueError("too late") for _ in items]

    async with Batched(handler) as batched:
        calls = batched.submit(*items)
        await until(lambda: runs)
        for call in calls:
            call.cancel()
        await batched.client.call("rpc.ping")
        gate.set()
        await batched.results(3)
        assert batched.stats["retries"] == 0
    gc.collect()
    assert complaints == []
    assert caplog.text.count("ValueError: too late\n") <= 1


@in_fake_time
async def test_when_all_leave_or_the_server_ends_a_run_is_cancelled_and_waited_for() -> None:
    log: list[str] = []

    async def handler(items: list[int]) -> list[int]:
        log.append(f"begun {items}")
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.005)
            log.append("cleaned up")
        return items

    async with Batched(handler, max_size=2) as batched:
        for call in batched.submit(1, 2):
            await until(lambda: log)
            call.cancel()
        await asyncio.sleep(1)
        assert log == ["begun [1, 2]", "cleaned up"]
        calls = batched.submit(3, 4, 5)
        await until(lambda: batched.stats["waiting"] == 1)
    assert log[2:] == ["begun [3, 4]", "cleaned up"]
    assert batched.stats["waiting"] == 0
    await asyncio.gather(*calls, return_exceptions=True)


def generator(items: list[int]) -> Any:
    yield from items


@pytest.mark.parametrize(
    ("function", "options", "told"),
    [
        *((picky, {"max_size": each}, "max_size, threads and max_queue must be integers") for each in (0, True)),
        (picky, {"threads": 0}, "must be integers of at least 1"),
        *((picky, {"max_wait": each}, "max_wait must be a number") for each in (-1, float("nan"))),
        (picky, {"offload": "process"}, "offload 'thread' or None"),
        (picky, {"timeout": 0}, "timeout must be a positive number of seconds"),
        (picky, {"name": "rpc.picky"}, "reserved"),
        (generator, {}, "not yield them"),
        (lambda items: items, {"name": "other"}, "parameter 'items'"),
        (lambda items: items, {}, "pass name="),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing_behind(function: Any, options: Any, told: str) -> None:
    server = Server()
    with pytest.raises(RegistrationError, match=re.escape(told)):
        server.batched(**options)(function)
    assert dict(server.batches) == {}
    assert not [name for name in server.methods if not name.startswith("rpc.")]


Floats = NDArray[np.float32]
Numbers = Annotated[Floats, Shape(None)]
ONES = np.ones(1, np.float32)


def handler(hint: Any, *, returns: Any = inspect.Parameter.empty, default: Any = inspect.Parameter.empty) -> Any:
    """A function of one parameter `x` with this hint."""

    def function(x: Any) -> Any:
        return [*x] if isinstance(x, list) else x

    function.__annotations__ = {"x": hint} | ({} if returns is inspect.Parameter.empty else {"return": returns})
    function.__defaults__ = None if default is inspect.Parameter.empty else (default,)
    return function


async def test_without_options() -> None:
    server = Server()

    @server.batched
    def double(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    async with memory_client(server) as client:
        assert await client.double(4) == 8


async def assert_alike(batched: Any, single: Any) -> None:
    """A batched handler is described as a function of one item."""
    server = Server()
    server.batched(name="batched")(batched)
    server.add(single, name="single")
    methods = (await document_of(server))["methods"]
    both = [(methods[name]["params"], methods[name]["result"]) for name in ("batched", "single")]
    assert both[0] == both[1]


def refused(function: Callable[..., Any]) -> str:
    with pytest.raises(RegistrationError) as caught:
        Server().batched(name="it")(function)
    return str(caught.value)


@pytest.mark.parametrize(
    ("hint", "item"),
    [
        (Sequence[str], str),
        (list, Any),
        (list[Floats], Floats),
        (np.ndarray, np.ndarray),
        (Floats, Floats),
        (Annotated[Floats, Shape(None, 224, 3)], Annotated[Floats, Shape(224, 3)]),
        (Annotated[Floats, Shape(..., 3)], Annotated[Floats, Shape(..., 3)]),
        (Annotated[np.ndarray, Shape(None)], np.generic),
        (np.ndarray[tuple[int, ...], np.dtype[np.int64]], np.ndarray[tuple[int, ...], np.dtype[np.int64]]),
        # Of results:
        (None, (Any, Any)),
        (None, (list[float | Exception | None], float | None)),
        (None, (Floats, Floats)),
        (None, (Numbers, np.float32)),
        (None, (Annotated[Floats, Shape(None, 512)], Annotated[Floats, Shape(512)])),
    ],
    ids=str,
)
async def test_a_list_is_its_items_and_an_array_its_rows(hint: Any, item: Any) -> None:
    if hint is None:
        await assert_alike(handler(list[int], returns=item[0]), handler(int, returns=item[1]))
    else:
        await assert_alike(handler(hint), handler(item))


@pytest.mark.parametrize(
    "hint",
    [
        *(str, tuple[str, ...], Iterable[str], list[str] | None, np.float32, Any, "list[nobody]"),
        Annotated[Floats, Shape(8, 3)],
        Annotated[Floats, Shape()],
        Annotated[list[str], msgspec.Meta(max_length=3)],
        Annotated[Floats, Shape(None, 3), annotated_types.MinLen(1)],
    ],
    ids=str,
)
def test_what_is_not_said_of_items_is_refused(hint: Any) -> None:
    def rest(texts: list[str], *more: list[str]) -> list[str]: ...

    assert "'more': a batched handler takes no further arguments" in refused(rest)
    assert "needs a parameter" in refused(lambda: [])
    assert re.match("it: parameter 'x': .*(must be list|nobody)", refused(handler(hint)))
    if hint is not Any:
        assert refused(handler(list[int], returns=hint)).startswith("it: the return value: ")


async def test_a_default_is_that_of_a_batch_of_one() -> None:
    row = np.ones((1, 2), np.float32)
    for hint, default, expected in [
        (list[float], [1.5], 1.5),
        (Sequence[float | None], (None,), None),
        (Annotated[Floats, Shape(None, 2)], row, [1, 1]),
    ]:
        server = Server()
        server.batched(name="it", max_wait=0)(handler(hint, default=default))
        async with memory_client(server) as client:
            result = await client.it()
        assert (result.tolist() if isinstance(result, np.ndarray) else result) == expected
    for hint, default in ((list[float], 1.5), (list[float], [1, 2]), (Floats, np.ones((2, 2)))):
        assert "parameter 'x': " in refused(handler(hint, default=default))


async def test_calls_become_lists_and_stacks() -> None:
    seen: list[Any] = []

    def score(a: list[str], /, b: Annotated[Floats, Shape(None, 2)], *, c: Numbers = ONES) -> list[float]:
        """How much."""
        seen.append((a, b.tolist(), str(b.dtype), c.tolist()))
        return [0.0] * len(a)

    def single(a: str, /, b: Annotated[Floats, Shape(2)], *, c: np.float32 = ONES[0]) -> float:
        """How much."""
        return 0.0

    await assert_alike(score, single)
    server = Server()
    server.batched(max_wait=0)(score)
    async with memory_client(server) as client:
        calls = [client.score("n0", np.zeros(2, "f4")), client.call("score", a="n1", b=np.ones(2, "f4"), c=2.0)]
        assert await asyncio.gather(*calls) == [0.0, 0.0]
    assert seen == [(["n0", "n1"], [[0, 0], [1, 1]], "float32", [1.0, 2.0])]
