"""One sync client used by many threads, and its futures."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from rpcstream import CallTimeout, Client, ConnectFailed, ConnectionLost, EncodeError, MethodNotFound
from rpcstream.client import worker_thread

from ..internals import blocking_connections, interrupt_waiting

Scripted = Callable[[Callable[[Any], None]], str]


@pytest.fixture
def client(served: str) -> Iterator[Client]:
    with Client(served) as client:
        yield client


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    with concurrent.futures.ThreadPoolExecutor(count) as executor:
        return list(executor.map(work, range(count)))


# -- threads -------------------------------------------------------------------------------------------------------


def test_every_thread_gets_its_own_answers(client: Client) -> None:
    def work(thread: int) -> None:
        waiting: list[tuple[int, Future[Any]]] = []
        for number in range(200):
            value = thread * 1000 + number
            if number % 4 == 3:
                waiting.append((value, client.submit.echo_after(value, 0.001 * (number % 3))))
            elif number % 4 == 2:
                assert client.echo_after(value, 0.0005) == value
            else:
                assert client.sum(value, 1) == value + 1
            if number % 50 == 49:
                for expected, future in waiting:
                    assert future.result() == expected
                waiting.clear()

    in_threads(8, work)
    assert client.replies_dropped == 0


def test_threads_share_a_pool(served: str) -> None:
    with Client(served, pool=3) as client:
        in_threads(6, lambda thread: [client.sum(thread, number) for number in range(100)])


def test_threads_that_start_together_have_a_connection_each(scripted: Scripted) -> None:
    connections = []

    def script(line: Any) -> None:
        connections.append(line)
        while (request := line.read()) is not None:
            line.answer(request, request["params"][0])

    together = threading.Barrier(8)
    with Client(scripted(script)) as client:

        def work(thread: int) -> Any:
            together.wait()
            return client.echo(thread)

        assert in_threads(8, work) == list(range(8))
        assert in_threads(20, client.echo) == list(range(20))
        assert 1 <= len(connections) <= 8
        made = len(connections)
        for number in range(20):
            assert client.echo(number) == number
    assert len(connections) == made


def test_the_time_out_of_one_thread_is_its_own(scripted: Scripted) -> None:
    both = threading.Barrier(2)
    timed_out = threading.Semaphore(0)

    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            if request["method"] == "answered":
                assert timed_out.acquire(timeout=20)
                line.answer(request, "here")
            if request["method"] == "timed out":
                timed_out.release()

    with Client(scripted(script)) as client:
        for order in (0, 1):
            both.reset()

            def work(thread: int, order: int = order) -> Any:
                if thread == order:
                    both.wait()
                    return client.call("answered", timeout=20)
                both.wait()
                with pytest.raises(CallTimeout):
                    client.call("silence", timeout=0.05)
                client.notify("timed out")
                return None

            assert set(in_threads(2, work)) == {"here", None}


def test_answers_come_one_by_one(scripted: Scripted) -> None:
    """Each after the one before has been taken, and the first only when all have been asked."""
    count = 6
    all_asked = threading.Barrier(count)
    turn = threading.Lock()
    taken = threading.Semaphore(0)

    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            all_asked.wait(20)
            with turn:
                line.answer(request, request["params"][0])
                assert taken.acquire(timeout=20)

    with Client(scripted(script), timeout=20) as client:

        def work(thread: int) -> Any:
            result = client.echo(thread)
            taken.release()
            return result

        assert in_threads(count, work) == list(range(count))


def test_losing_the_connection_wakes_every_thread(scripted: Scripted) -> None:
    all_asked = threading.Barrier(8)

    def script(line: Any) -> None:
        line.read()
        all_asked.wait(20)

    with Client(scripted(script), timeout=None) as client:

        def work(thread: int) -> str | None:
            with pytest.raises(ConnectionLost) as caught:
                client.call(f"method{thread}")
            return caught.value.method

        assert in_threads(8, work) == [f"method{thread}" for thread in range(8)]


def test_a_caller_that_is_interrupted_leaves_no_trace(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.sum(1, 2) == 3
    (connection,) = blocking_connections(client)
    interrupt_waiting(monkeypatch, connection)
    with pytest.raises(KeyboardInterrupt):
        client.sum(3, 4)
    monkeypatch.undo()
    assert len(connection.pending) == 0
    assert client.sum(5, 6) == 11
    assert set(blocking_connections(client)) == {connection}
    assert client.replies_dropped == 1


# -- futures -------------------------------------------------------------------------------------------------------


def test_futures_of_many_calls(client: Client) -> None:
    futures = [client.submit.sum(number, 1) for number in range(2000)]
    assert [future.result() for future in futures] == list(range(1, 2001))
    by_name = client.submit("vision.edges.count", image="x", returns=str)
    assert by_name.result(20) == "edges of x"
    assert client.sum(1, 2) == 3


def test_plain_calls_go_on_while_futures_wait(client: Client) -> None:
    waiting = client.submit.never()
    for number in range(100):
        assert client.sum(number, 1) == number + 1
    assert client.submit.sum(1, 1).result() == 2
    assert not waiting.done()
    assert waiting.cancel()


def test_errors_come_with_the_future(client: Client) -> None:
    missing = client.submit.nothing()
    unfit = client.submit("echo", "x", returns=int)
    assert isinstance(missing.exception(), MethodNotFound)
    with pytest.raises(TypeError, match="does not fit returns="):
        unfit.result()
    assert isinstance(client.submit.echo(threading).exception(), EncodeError)
    # Arguments that are no arguments are refused at once.
    with pytest.raises(TypeError, match="positional and named"):
        client.submit.sum(1, a=2)
    assert client.submit.sum(1, 2).result() == 3


def test_no_connection_comes_with_the_future(free_address: str, scripted: Scripted) -> None:
    with Client(free_address) as client:
        future = client.submit.sum(1, 2)
        assert isinstance(future.exception(), ConnectFailed)

    def script(line: Any) -> None:
        for _ in range(3):
            line.read()

    with Client(scripted(script), timeout=None) as client:
        futures = [client.submit(f"method{number}") for number in range(3)]
        errors = [future.exception() for future in futures]
    assert [type(error) for error in errors] == [ConnectionLost] * 3
    assert [error.method for error in errors] == ["method0", "method1", "method2"]  # type: ignore[union-attr]


def test_time_outs_of_futures(scripted: Scripted) -> None:
    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            if request["method"] == "echo":
                line.answer(request, request["params"][0])

    with Client(scripted(script)) as client:
        assert client.submit.echo(0).result() == 0  # connecting takes time
        slow = client.submit.silence(timeout=None)
        quick = [client.submit.silence(timeout=0.01 * number) for number in range(1, 5)]
        for future in quick:
            with pytest.raises(CallTimeout, match=r"no answer in time \(method 'silence'"):
                future.result()
        assert client.submit.echo(1).result() == 1
        assert not slow.done()
        # A deadline that comes after others but is earlier is kept too.
        assert isinstance(client.submit.silence(timeout=0.01).exception(), CallTimeout)
        assert slow.cancel()


def test_cancelled_futures(scripted: Scripted) -> None:
    asked, answer_now = threading.Event(), threading.Event()

    def script(line: Any) -> None:
        line.answer(line.read(), "ready")
        first = line.read()
        asked.set()
        assert answer_now.wait(20)
        line.answer(first, "late")
        line.answer(line.read(), "second")
        line.read()

    with Client(scripted(script)) as client:
        assert client.submit.ready().result() == "ready"
        future = client.submit.first()
        assert asked.wait(20)
        told: list[Any] = []
        called = threading.Event()
        future.add_done_callback(lambda done: (told.append(done), called.set()))
        assert future.cancel()
        assert future.cancel()
        assert future.cancelled()
        assert concurrent.futures.wait([future], 20).done == {future}
        assert called.wait(20)
        assert told == [future]
        with pytest.raises(CancelledError):
            future.result()
        answer_now.set()
        second = client.submit.second()
        assert second.result() == "second"
        assert not second.cancel()
        assert client.replies_dropped == 1


def test_callbacks_may_call_and_wait(client: Client) -> None:
    results: list[Any] = []
    done = threading.Event()

    def callback(future: Future[Any]) -> None:
        results.append(future.result())
        results.append(client.sum(10, 1))
        results.append(client.submit.sum(20, 1).result(20))
        with client.batch() as batch:
            call = batch.sum(30, 1)
        results.append(call.result())
        client.submit.sum(40, 1).add_done_callback(lambda last: (results.append(last.result()), done.set()))

    client.submit.sum(0, 1).add_done_callback(callback)
    assert done.wait(20)
    assert results == [1, 11, 21, 31, 41]


def test_callbacks_run_in_order_in_one_thread_whatever_they_raise(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    threads: list[threading.Thread] = []
    numbers: list[int] = []
    done = threading.Event()

    def callback(future: Future[Any]) -> None:
        threads.append(threading.current_thread())
        numbers.append(future.result())
        if len(numbers) == 20:
            done.set()
        raise ValueError("a mistake in a callback")

    futures = [client.submit.sum(number, 0) for number in range(20)]
    for future in futures:
        future.result()
        future.add_done_callback(callback)
    assert done.wait(20)
    assert numbers == list(range(20))
    assert len(set(threads)) == 1
    assert threads[0] is not threading.current_thread()
    assert client.sum(1, 2) == 3
    assert "a mistake in a callback" in caplog.text


def test_futures_work_with_the_tools_for_futures(client: Client) -> None:
    futures = {client.submit.echo_after(number, 0.001 * number): number for number in range(10)}
    for future in concurrent.futures.as_completed(futures, timeout=20):
        assert future.result() == futures[future]

    async def awaited() -> Any:
        return await asyncio.gather(*(asyncio.wrap_future(client.submit.sum(number, 1)) for number in range(10)))

    assert asyncio.run(awaited()) == list(range(1, 11))


def test_a_client_without_futures_has_no_thread(served: str) -> None:
    before = set(threading.enumerate())
    with Client(served) as client:
        assert client.sum(1, 2) == 3
        assert not set(threading.enumerate()) - before


def test_the_thread_for_callbacks_ends_when_it_is_idle(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_thread, "IDLE", 0.01)
    called = threading.Event()
    with Client(served) as client:
        assert client.submit.sum(1, 2).result() == 3
        before = set(threading.enumerate())
        for _ in range(3):
            called.clear()
            future = client.submit.sum(1, 2)
            future.add_done_callback(lambda _: called.set())
            assert future.result() == 3
            assert called.wait(20)
            assert isinstance(client.submit.never(timeout=0.01).exception(), TimeoutError)
            for thread in set(threading.enumerate()) - before:
                thread.join(20)
                assert not thread.is_alive()


def test_threads_end_with_their_client(served: str) -> None:
    before = set(threading.enumerate())
    with Client(served) as client:
        future = client.submit.echo_after(1, 0.0)
        future.add_done_callback(lambda future: None)
        assert future.result(10) == 1
        waiting = client.submit.never()
        mine = [thread for thread in threading.enumerate() if thread not in before]
        assert len(mine) == 2
    assert isinstance(waiting.exception(10), ConnectionLost)
    for thread in mine:
        thread.join(worker_thread.IDLE / 2)
    assert not any(thread.is_alive() for thread in mine)


def test_nothing_keeps_a_client_alive(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_thread, "IDLE", 0.01)
    before = set(threading.enumerate())
    client = Client(served)
    assert client.submit.sum(1, 2).result() == 3
    client.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None
