"""The sync client in a conversation: what it tells the server on its blocking connection, and what it does in the
background once methods are offered, items streamed or topics read."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import (
    CallTimeout,
    Client,
    ConnectFailed,
    ConnectionLost,
    Context,
    EncodeError,
    InvalidParams,
    RegistrationError,
    RpcError,
    Server,
)
from rpcstream.client import worker_thread
from rpcstream.testing import serve_in_thread

from ..internals import blocking_connections, engine_of, forget_end, loop_thread_of, run_in_loop_thread, socket_of
from ..kit import until_in_thread
from .test_fork import in_child

Scripted = Callable[[Callable[[Any], None]], str]
WAIT = 20.0


class Noted:
    """What handlers of the server have done, for tests to wait for.

    Attributes:
        waiting: how many handlers of `wait` have begun and not ended.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self._happened: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.note = self._happened.put

    def next(self) -> str:
        return self._happened.get(timeout=WAIT)

    def clear(self) -> None:
        while self:
            self._happened.get()

    def __bool__(self) -> bool:
        return not self._happened.empty()


@pytest.fixture(scope="module")
def all_noted() -> Noted:
    return Noted()


@pytest.fixture(autouse=True)
def _all_over(all_noted: Noted, server: Server) -> Iterator[None]:
    """Wait until nothing of a test is left that could be noted in the next one."""
    yield
    until_in_thread(lambda: not (server.stats()["connections"] or all_noted.waiting))


@pytest.fixture
def noted(all_noted: Noted) -> Noted:
    """Nothing has been noted yet in this test."""
    all_noted.clear()
    return all_noted


@pytest.fixture(scope="module")
def server(all_noted: Noted) -> Server:
    server, noted = Server(drain_timeout=0.2), all_noted

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    def say(text: str) -> None:
        noted.note(text)

    @server
    async def wait() -> None:
        noted.waiting += 1
        noted.note("waits")
        try:
            await asyncio.Event().wait()
        finally:
            noted.note("waited")
            noted.waiting -= 1

    @server
    def count(n: int) -> Iterator[int]:
        try:
            yield from range(n)
            if n == 7:
                raise RpcError(7, "seven")
        finally:
            noted.note("counted")
        return "all"

    @server
    async def ticks() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            noted.note("stopped")

    @server
    async def steps(n: int, ctx: Context) -> int:
        for step in range(n):
            ctx.progress({"step": step, "array": np.full(2, step)})
            await asyncio.sleep(0)
        return n

    @server
    async def total(items: AsyncIterator[int]) -> int:
        return sum([item async for item in items])

    @server
    async def weighed(frames: AsyncIterator[NDArray[np.float32]], weight: float) -> float:
        return weight * sum([float(frame.sum()) async for frame in frames])

    @server
    async def ask(ctx: Context, method: str, params: list[Any]) -> Any:
        return await ctx.peer.call(method, *params)

    @server
    async def gathered(ctx: Context, n: int) -> list[Any]:
        return [item async for item in ctx.peer.stream.numbers(n)]

    @server
    def remaining(ctx: Context) -> float | None:
        return ctx.remaining

    return server


@pytest.fixture(scope="module")
def address(server: Server) -> Iterator[str]:
    with serve_in_thread(server) as where:
        yield where


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    """A client with blocking connections only."""
    with Client(address) as client:
        yield client


@pytest.fixture
def client_on_loop(client: Client) -> Client:
    """A client whose calls go by its loop thread."""
    assert list(client.stream.add(1, 2)) == [3]  # no stream, but that shows with its reply only
    assert has_loop_thread(client)
    return client


def has_loop_thread(client: Client) -> bool:
    return engine_of(client).uses_loop and loop_thread_of(client) is not None


def loop_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "rpcstream-loop"}


@contextlib.contextmanager
def interrupted_when(noted: Noted, event: str) -> Iterator[None]:
    """Ctrl-C in the main thread, once a handler has noted this."""

    def interrupt() -> None:
        assert noted.next() == event
        threading.Event().wait(0.1)  # by now the main thread waits for the answer, and no longer sends
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    thread.join()


# -- on the blocking connection: cancels ---------------------------------------------------------------------------


def test_a_time_out_cancels_the_call(address: str, noted: Noted) -> None:
    with Client(address, timeout=0.1) as client:  # of which the server is not told
        with pytest.raises(CallTimeout):
            client.wait()
        assert [noted.next(), noted.next()] == ["waits", "waited"]
        assert client.submit.add(1, 2, timeout=WAIT).result() == 3  # connecting takes time
        late = client.submit.wait()
        assert isinstance(late.exception(WAIT), CallTimeout)
        assert [noted.next(), noted.next()] == ["waits", "waited"]
        assert client.add(1, 2) == 3
        assert not has_loop_thread(client)


def test_ctrl_c_cancels_the_call(client: Client, noted: Noted) -> None:
    with interrupted_when(noted, "waits"):
        client.wait()
    assert noted.next() == "waited"
    assert client.add(1, 2) == 3
    assert not has_loop_thread(client)


def test_a_cancelled_future_cancels_the_call(client: Client, noted: Noted) -> None:
    future = client.submit.wait()
    assert noted.next() == "waits"
    assert future.cancel()
    assert noted.next() == "waited"
    assert client.submit.add(1, 2).result(WAIT) == 3


def test_a_late_answer_to_a_cancelled_call_is_dropped(scripted: Scripted) -> None:
    lines: list[Any] = []

    def script(line: Any) -> None:
        lines.append(line)
        late = line.read()
        second = line.read()
        line.answer(late, "late")
        line.answer(second, "second")
        line.read()

    with Client(scripted(script)) as client:
        with pytest.raises(CallTimeout):
            client.first(timeout=0.05)
        assert client.second() == "second"
        assert client.replies_dropped == 1
        assert lines[0].cancelled == [1]


def test_a_batch_cancels_what_has_no_answer_yet(scripted: Scripted) -> None:
    cancelled: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()

    def script(line: Any) -> None:
        batch = line.read()
        line.answer(batch[1], "here")
        line.read()
        cancelled.put(line.cancelled)

    with Client(scripted(script)) as client:
        batch = client.batch(timeout=1)  # long enough for one answer on a machine with much to do
        first, second, third = batch.first(), batch.second(), batch.third()
        with pytest.raises(CallTimeout):
            batch.__exit__(None, None, None)
        assert second.result() == "here"
        assert isinstance(first.error, CallTimeout)
        assert isinstance(third.error, CallTimeout)
        client.notify.over()
        assert cancelled.get(timeout=WAIT) == [1, 3]


def test_what_was_never_sent_is_not_cancelled(scripted: Scripted) -> None:
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def script(line: Any) -> None:
        while (data := line.read_line()) is not None:
            heard.put(data)
            if b'"first"' in data:
                line.answer({"id": 1}, "answer")

    with Client(scripted(script)) as client:
        assert client.first() == "answer"
        with pytest.raises(EncodeError):
            client.second(object())
        assert isinstance(client.submit.third(object()).exception(), EncodeError)
        with pytest.raises(CallTimeout):
            client.fourth(timeout=-1)
        client.notify.last()
        assert b'"first"' in heard.get(timeout=WAIT)
        assert b'"last"' in heard.get(timeout=WAIT)


def test_a_cancel_waits_behind_a_message_that_is_being_written(scripted: Scripted) -> None:
    is_sending, was_cancelled = threading.Event(), threading.Event()
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def script(line: Any) -> None:
        heard.put(line.read()["method"])
        assert was_cancelled.wait(WAIT)
        long = line.read()
        heard.put(len(long["params"][0]))
        heard.put(line.cancelled[:])
        line.answer(long, "got it")
        heard.put(line.read()["method"])
        heard.put(line.cancelled)

    def trace(direction: str, message: bytes) -> None:
        if len(message) > 20_000_000:
            is_sending.set()

    with Client(scripted(script), reconnect=True, trace=trace) as client:
        waiting, long = client.submit.silence(), client.submit("long", "x" * 20_000_000)
        assert is_sending.wait(WAIT)  # it fills the socket, and more
        assert waiting.cancel()
        was_cancelled.set()
        assert long.result(WAIT) == "got it"
        client.notify.over()
        assert [heard.get(timeout=WAIT) for _ in range(5)] == ["silence", 20_000_000, [], "over", [1]]


def test_a_refusal_waits_behind_a_message_that_is_being_written(scripted: Scripted) -> None:
    """The server asks while a long message fills the socket."""
    is_sending = threading.Event()
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def script(line: Any) -> None:
        assert is_sending.wait(WAIT)
        line.say({"jsonrpc": "2.0", "method": "ask", "id": 7})
        threading.Event().wait(0.05)  # so that it is read before there is room, most probably
        long = line.read()
        heard.put(len(long["params"][0]))
        heard.put(line.read()["error"]["code"])
        line.answer(long, "got it")
        line.read()

    def trace(direction: str, message: bytes) -> None:
        is_sending.set()

    with Client(scripted(script), trace=trace) as client:
        assert client.call("long", "x" * 20_000_000) == "got it"
    assert [heard.get(timeout=WAIT) for _ in range(2)] == [20_000_000, -32601]


# -- on the blocking connection: progress ---------------------------------------------------------------------------


@pytest.mark.parametrize("converses", [False, True])
def test_progress_comes_before_the_result(client: Client, converses: bool) -> None:
    if converses:
        engine_of(client).move_to_loop()
    for call in (
        lambda **options: client.steps(3, **options),
        lambda **options: client.request("steps", {"n": 3}, **options),
        lambda **options: client.submit.steps(3, **options).result(WAIT),
    ):
        told: list[Any] = []
        assert call(on_progress=told.append, timeout=10) == 3
        # Of values that follow each other fast only the last is sent for certain.
        assert told[-1]["step"] == 2
        np.testing.assert_array_equal(told[-1]["array"], [2, 2])
    assert has_loop_thread(client) is converses


@pytest.mark.parametrize("converses", [False, True])
def test_progress_in_the_same_packet_as_the_answer(scripted: Scripted, converses: bool) -> None:
    def script(line: Any) -> None:
        request = line.read()
        progress = {"jsonrpc": "2.0", "method": "$/progress", "params": {"token": request["id"], "value": 0.5}}
        line.say(progress, {"jsonrpc": "2.0", "id": request["id"], "result": "done"}, progress)
        line.read()

    told: list[Any] = []
    with Client(scripted(script)) as client:
        if converses:
            engine_of(client).move_to_loop()
        assert client.call("method", on_progress=told.append) == "done"
    assert told == [0.5]  # the one behind the answer belongs to no call


@pytest.mark.parametrize("converses", [False, True])
def test_what_on_progress_raises_is_logged(client: Client, converses: bool, caplog: pytest.LogCaptureFixture) -> None:
    def mistaken(value: Any) -> None:
        raise ValueError("a mistake in on_progress")

    def waits(value: Any) -> None:
        client.add(1, 2)

    def sends(value: Any) -> None:
        client.notify.say("progress")

    if converses:
        engine_of(client).move_to_loop()
    assert client.steps(1, on_progress=mistaken) == 1
    assert "a mistake in on_progress" in caplog.text
    # On a connection of its own the call is answered; in the event loop it would wait for itself.
    assert client.steps(1, on_progress=waits, timeout=10) == 1
    assert [record.name for record in caplog.records] == ["rpcstream.client"] * (1 + converses)
    assert ("RuntimeError" in caplog.text) is converses
    assert client.add(1, 2) == 3


def test_a_function_told_of_progress_may_notify(client: Client, noted: Noted) -> None:
    assert client.steps(1, on_progress=lambda value: client.notify.say("in progress")) == 1
    assert noted.next() == "in progress"


def test_progress_that_cannot_be_read_is_logged(scripted: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    def script(line: Any) -> None:
        request = line.read()
        for params in ({"token": 1}, {"token": 1, "value": {"$type": "bytes", "data": "!"}}, {"token": 9}, [1], None):
            line.say({"jsonrpc": "2.0", "method": "$/progress", "params": params})
        line.answer(request, "done")
        line.read()

    told: list[Any] = []
    with Client(scripted(script)) as client:
        assert client.call("method", on_progress=told.append) == "done"
    assert told == []
    assert len(caplog.records) == 2


# -- deadlines and retries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("converses", [False, True])
def test_calls_in_a_handler_inherit_its_deadline(address: str, converses: bool) -> None:
    with Client(address) as inner:
        if converses:
            engine_of(inner).move_to_loop()
        outer = Server()

        @outer(offload="thread")
        def nested() -> list[Any]:
            kept = inner.remaining(timeout=1000)
            return [inner.remaining(), kept, inner.submit.remaining(timeout=None).result(WAIT)]

        @outer(offload="thread")
        def waits() -> None:
            inner.wait(timeout=None)

        with serve_in_thread(outer) as where, Client(where) as client:
            times = client.nested(timeout=5)
            assert all(0 < seconds <= 5 for seconds in times), times
            with pytest.raises(TimeoutError):
                client.waits(timeout=0.2)
        assert inner.remaining() is None
        assert has_loop_thread(inner) is converses


def test_a_nested_call_ends_with_the_handler_that_made_it(address: str, noted: Noted) -> None:
    with Client(address) as inner:
        outer = Server()
        raised: queue.SimpleQueue[Any] = queue.SimpleQueue()

        @outer(offload="thread")
        def nested() -> None:
            try:
                inner.wait(timeout=None)
            except TimeoutError as error:
                raised.put(error)

        with serve_in_thread(outer) as where, Client(where) as client:
            for seconds in (0.2, 2, 15):  # on a machine with much to do, time may be up before it has begun
                with pytest.raises(TimeoutError):
                    client.nested(timeout=seconds)
                if noted:
                    break
        assert raised.get(timeout=WAIT).method == "wait"
        assert [noted.next(), noted.next()] == ["waits", "waited"]


def retrying(calls: list[str], *, keeps: tuple[str, ...] = ()) -> Callable[[Any], None]:
    """A server that hangs up on each call for the first time, and says of itself which methods may be repeated."""

    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            method = request["method"] if isinstance(request, dict) else "batch"
            calls.append(method)
            if calls.count(method) == 1 and method not in keeps:
                return
            if isinstance(request, list):
                line.say([{"jsonrpc": "2.0", "id": each["id"], "result": "here"} for each in request])
                continue
            methods = [{"name": "safe", "x-idempotent": True}, {"name": "unsafe"}, {"x-idempotent": True}]
            line.answer(request, {"methods": methods} if method == "rpc.discover" else "here")

    return script


def test_only_idempotent_methods_are_repeated(scripted: Scripted) -> None:
    calls: list[str] = []
    with Client(scripted(retrying(calls, keeps=("rpc.discover",))), retries=2) as client:
        assert client.safe() == "here"
        with pytest.raises(ConnectionLost, match=r"is not declared idempotent \(retry=\"all\" repeats every call\)"):
            client.unsafe()
        batch = client.batch()
        batch.safe()
        batch.unsafe()
        with pytest.raises(ConnectionLost, match="not all methods are declared idempotent"), batch:
            pass
    assert calls == ["safe", "rpc.discover", "safe", "unsafe", "batch"]


def test_a_batch_of_idempotent_methods_is_repeated(scripted: Scripted) -> None:
    calls: list[str] = []
    with Client(scripted(retrying(calls, keeps=("rpc.discover",))), retries=2) as client:
        with client.batch() as batch:
            first = batch.safe()
        assert first.result() == "here"
    assert calls == ["batch", "rpc.discover", "batch"]


def test_the_question_what_may_be_repeated_may_be_repeated(scripted: Scripted) -> None:
    calls: list[str] = []
    with Client(scripted(retrying(calls)), retries=2, retry="idempotent") as client:
        assert client.safe() == "here"
    assert calls == ["safe", "rpc.discover", "rpc.discover", "safe"]


@pytest.mark.parametrize("answer", ["error", "silence", "hangs up"])
def test_a_server_that_does_not_say_what_may_be_repeated(scripted: Scripted, answer: str) -> None:
    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            if request["method"] == "rpc.discover" and answer == "error":
                error = {"code": -32601, "message": "not found"}
                line.say({"jsonrpc": "2.0", "id": request["id"], "error": error})
            elif request["method"] != "rpc.discover" or answer == "hangs up":
                return

    timeout = 0.5 if answer == "silence" else WAIT
    client = Client(scripted(script), retries=1, retry="idempotent", timeout=timeout)
    with client, pytest.raises(ConnectionLost, match=r"did not say what is idempotent.*'price'"):
        client.price()


def test_a_call_that_was_not_sent_is_repeated_whatever_it_is(free_address: str) -> None:
    client = Client(free_address, retries=2, retry="idempotent")
    with client, pytest.raises(ConnectFailed, match="'unsafe'"):
        client.unsafe()


# -- the move -------------------------------------------------------------------------------------------------------


def test_what_waits_comes_to_its_end_then_its_connection_is_closed(scripted: Scripted) -> None:
    moved = threading.Event()
    ended: queue.SimpleQueue[list[str]] = queue.SimpleQueue()

    def script(line: Any) -> None:
        heard = []
        while (request := line.read()) is not None:
            heard.append(request["method"])
            if request["method"] != "later" or moved.wait(WAIT):
                line.answer(request, heard[-1])
        ended.put(heard)

    with Client(scripted(script)) as client:
        assert client.first() == "first"
        results = queue.SimpleQueue[Any]()
        waiting = threading.Thread(target=lambda: results.put(client.later()))
        waiting.start()
        (connection,) = blocking_connections(client)
        while len(connection.pending) < 1:
            threading.Event().wait(0.001)
        engine_of(client).move_to_loop()
        assert client.second() == "second"
        assert connection.lost is None
        moved.set()
        assert results.get(timeout=WAIT) == "later"
        waiting.join()
        assert ended.get(timeout=WAIT) == ["first", "later"]
        assert client.third() == "third"
    assert ended.get(timeout=WAIT) == ["second", "third"]


def test_an_idle_connection_is_closed_at_once(client: Client) -> None:
    assert client.add(1, 2) == 3
    (connection,) = blocking_connections(client)
    engine_of(client).move_to_loop()
    assert connection.lost is not None
    assert socket_of(connection).fileno() == -1
    assert client.add(1, 2) == 3
    assert client.replies_dropped == 0


@pytest.mark.parametrize("pool", [1, 3])
def test_threads_do_not_notice_the_move(address: str, pool: int) -> None:
    said: list[Any] = []
    server = Server()

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    def say(value: int) -> None:
        said.append(value)

    errors: list[BaseException] = []
    for _ in range(5):
        said.clear()
        with serve_in_thread(server) as where, Client(where, pool=pool) as client:
            half = threading.Barrier(5)

            def work(thread: int, client: Client = client, half: threading.Barrier = half) -> None:
                try:
                    for number in range(60):
                        if number == 20:
                            half.wait()
                        assert client.add(number, thread) == number + thread
                        assert client.submit.add(number, thread).result(WAIT) == number + thread
                        client.notify.say(number)
                except BaseException as error:
                    errors.append(error)
                    raise

            threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
            for thread in threads:
                thread.start()
            half.wait()
            engine_of(client).move_to_loop()
            for thread in threads:
                thread.join()
            assert client.add(1, 1) == 2
        assert errors == []
        assert sorted(said) == sorted(list(range(60)) * 4)


# -- offering methods -----------------------------------------------------------------------------------------------


def test_the_server_calls_what_is_offered(client: Client) -> None:
    before = loop_threads()
    assert client.add(1, 2) == 3

    @client
    def double(value: int) -> int:
        return 2 * value

    @client(name="who.am_i")
    async def who() -> str:
        return threading.current_thread().name

    @client
    def numbers(n: int) -> Iterator[int]:
        yield from range(n)

    assert not loop_threads() - before  # a thread is started with the next call, not with an import
    assert client.ask("double", [4]) == 8
    assert client.ask("who.am_i", []) == "rpcstream-loop"
    assert client.gathered(40) == list(range(40))
    assert double(3) == 6
    with pytest.raises(RpcError):
        client.ask("double", ["x"])

    @client
    def later(value: str) -> str:
        return value + threading.current_thread().name

    assert client.ask("later", ["in "]).startswith("in rpcstream-")
    # A dict is a request object as before.
    assert client({"jsonrpc": "2.0", "method": "add", "params": [1, 2], "id": 1})["result"] == 3  # type: ignore[index]


def test_what_cannot_be_offered_is_said_at_once(client: Client) -> None:
    with pytest.raises(RegistrationError):
        client(len, name="rpc.own")
    with pytest.raises(TypeError, match=r"a request object \(a dict\).*int"):
        client(3)  # type: ignore[call-overload]
    assert client.add(1, 2) == 3
    assert not has_loop_thread(client)


def test_an_offered_function_may_call_the_same_client(client: Client, noted: Noted) -> None:
    @client
    def nested(depth: int) -> Any:
        if depth == 0:
            client.notify.say("deep")
            return sum(client.stream.count(4)) + client.submit.add(1, 2).result(WAIT)
        return client.ask("nested", [depth - 1])

    assert client.ask("nested", [3]) == 9
    assert {noted.next(), noted.next()} == {"deep", "counted"}


def test_an_offered_async_function_that_would_wait_for_itself_is_told(client: Client) -> None:
    told: list[str] = []

    @client
    async def waits() -> None:
        try:
            client.add(1, 2)
        except RuntimeError as error:
            told.append(str(error))

    client.ask("waits", [])
    assert "a blocking call in the event loop" in told[0]


# -- streams --------------------------------------------------------------------------------------------------------


def test_items_as_they_come(client: Client, noted: Noted) -> None:
    stream = client.stream.count(50)
    assert stream.result is None
    assert list(stream) == list(range(50))
    assert stream.result == "all"
    assert list(stream) == []
    assert list(client.stream("count", n=3)) == [0, 1, 2]
    assert [noted.next(), noted.next()] == ["counted", "counted"]
    assert client.count(3) == [0, 1, 2]
    assert noted.next() == "counted"


def test_leaving_a_stream_stops_its_generator(client: Client, noted: Noted) -> None:
    for item in client.stream.count(10**9):
        if item == 100:
            break
    assert noted.next() == "counted"
    with client.stream.ticks() as ticks:
        assert next(ticks) == 1
    assert noted.next() == "stopped"
    with client.stream.ticks():  # not one item was taken
        pass
    ticks = client.stream.ticks()
    assert next(ticks) == 1
    ticks.close()
    assert noted.next() == "stopped"
    assert list(ticks) == []
    assert client.add(1, 2) == 3


def test_ctrl_c_in_a_stream_leaves_it(client: Client, noted: Noted) -> None:
    server = threading.Timer(0.1, lambda: noted.note("go"))
    server.start()
    with interrupted_when(noted, "go"):
        for _ in client.stream.ticks():
            pass
    assert noted.next() == "stopped"


def test_streams_end_with_errors(client: Client, noted: Noted) -> None:
    got: list[int] = []
    with pytest.raises(RpcError, match="seven"):
        got.extend(client.stream.count(7))
    assert got == list(range(7))
    assert noted.next() == "counted"
    with pytest.raises(InvalidParams):
        list(client.stream.count("x"))
    with pytest.raises(InvalidParams), client.stream.count("x") as stream:
        next(stream)
    with pytest.raises(TypeError, match="positional and named"):
        client.stream.count(1, n=2)  # `n` is the first one
    with pytest.raises(TypeError, match="does not fit returns="):
        list(client.stream.count(3, returns=str))
    assert noted.next() == "counted"
    with pytest.raises(TimeoutError):
        list(client.stream.ticks(timeout=0.1))
    assert noted.next() == "stopped"


def test_options_of_streams(client: Client, noted: Noted) -> None:
    told: list[Any] = []
    assert list(client.stream.steps(2, on_progress=told.append)) == [2]
    assert told[-1]["step"] == 1
    assert list(client.stream.count(2, returns=float)) == [0.0, 1.0]
    assert noted.next() == "counted"


# -- iterators as arguments -----------------------------------------------------------------------------------------


def test_iterators_go_item_by_item(client: Client) -> None:
    assert not has_loop_thread(client)
    assert client.total(iter(range(100))) == 4950
    assert has_loop_thread(client)
    assert client.weighed(frames=(np.full(2, n, np.float32) for n in range(10)), weight=0.5) == 45.0
    assert client.total([1, 2, 3]) == 6

    async def source() -> AsyncIterator[int]:
        for number in range(5):
            yield number

    assert client.total(source()) == 10


def test_futures_of_calls_with_iterators(client: Client) -> None:
    assert client.submit.total(iter(range(100))).result(WAIT) == 4950
    assert not has_loop_thread(client)


def test_a_value_that_cannot_be_sent_is_no_reason_to_move(client: Client) -> None:
    for attempt in (client.total, client.notify.total):
        with pytest.raises(EncodeError):
            attempt(object())
    assert isinstance(client.submit.total(object()).exception(), EncodeError)
    assert not has_loop_thread(client)
    assert client.add(1, 2) == 3


def test_an_iterator_may_block(client_on_loop: Client) -> None:
    """An iterator that has no item yet delays its own call only."""
    next_one: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    threads: set[threading.Thread] = set()

    def camera() -> Iterator[int]:
        while (picture := next_one.get(timeout=WAIT)) is not None:
            threads.add(threading.current_thread())
            yield picture

    future = client_on_loop.submit.total(camera())
    assert client_on_loop.add(1, 2) == 3
    for number in (1, 2):
        next_one.put(number)
        assert client_on_loop.add(number, 2) == number + 2
    next_one.put(None)
    assert future.result(WAIT) == 3
    (thread,) = threads
    assert thread is not threading.main_thread()
    assert thread not in loop_threads()
    thread.join(worker_thread.IDLE / 2)
    assert not thread.is_alive()  # it ends with the iterator


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_iterator_that_fails_fails_its_call(client_on_loop: Client, kind: type[BaseException]) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise kind("broken")

    with pytest.raises((ValueError, RuntimeError), match="broken"):
        client_on_loop.total(broken())
    assert client_on_loop.add(1, 2) == 3


def test_an_iterator_is_closed_when_nobody_wants_the_rest(client_on_loop: Client) -> None:
    closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    with pytest.raises(TimeoutError):
        client_on_loop.total(endless(), timeout=0.1)
    assert closed.wait(WAIT)


# -- calls and futures in the background ----------------------------------------------------------------------------


def test_calls_in_the_background(client_on_loop: Client, noted: Noted) -> None:
    assert client_on_loop.add(1, 2) == client_on_loop.request("add", [1, 2], returns=int) == 3
    client_on_loop.notify.say("note")
    assert noted.next() == "note"
    with client_on_loop.batch() as batch:
        first, second = batch.add(1, 2), batch.nothing()
    assert first.result() == 3
    assert isinstance(second.error, RpcError)
    assert client_on_loop({"jsonrpc": "2.0", "method": "add", "params": [1, 2], "id": "x"}) == {
        "jsonrpc": "2.0",
        "id": "x",
        "result": 3,
    }
    assert client_on_loop({"jsonrpc": "2.0", "method": "say", "params": ["raw"]}) is None
    assert noted.next() == "raw"
    with pytest.raises(TimeoutError):
        client_on_loop.wait(timeout=0.1)
    assert [noted.next(), noted.next()] == ["waits", "waited"]


def test_ctrl_c_cancels_a_call_in_the_background(client_on_loop: Client, noted: Noted) -> None:
    with interrupted_when(noted, "waits"):
        client_on_loop.wait()
    assert noted.next() == "waited"
    assert client_on_loop.add(1, 2) == 3


def test_futures_in_the_background(client_on_loop: Client, noted: Noted) -> None:
    futures = [client_on_loop.submit.add(number, 1) for number in range(50)]
    assert [future.result(WAIT) for future in futures] == list(range(1, 51))
    assert isinstance(client_on_loop.submit.nothing().exception(WAIT), RpcError)
    assert isinstance(client_on_loop.submit.add(object(), 1).exception(WAIT), EncodeError)
    waiting = client_on_loop.submit.wait()
    assert noted.next() == "waits"
    assert waiting.cancel()
    assert waiting.cancel()
    assert noted.next() == "waited"
    with pytest.raises(CancelledError):
        waiting.result(WAIT)
    done = client_on_loop.submit.add(1, 1)
    assert done.result(WAIT) == 2
    assert not done.cancel()


def test_callbacks_in_the_background_may_call_and_wait(client_on_loop: Client) -> None:
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def callback(future: Any) -> None:
        results.put(client_on_loop.add(future.result(), 1) + client_on_loop.submit.add(10, 1).result(WAIT))

    client_on_loop.submit.add(1, 2).add_done_callback(callback)
    assert results.get(timeout=WAIT) == 15


# -- events ---------------------------------------------------------------------------------------------------------


def test_events(client: Client, server: Server) -> None:
    with client.subscribe("news", returns=int) as news:
        for number in range(3):
            server.publish("news", number)
        assert [next(news), next(news), next(news)] == [0, 1, 2]
        assert (news.topic, news.dropped, news.reconnects) == ("news", 0, 0)
    assert list(news) == []
    with pytest.raises(ValueError, match="policy"):
        client.subscribe("news", policy="none")  # type: ignore[arg-type]
    with pytest.raises(RpcError):
        next(client.subscribe(""))


def test_events_of_a_pattern(client: Client, server: Server) -> None:
    server.publish("room.1", "kept", retain=True)
    with client.subscribe("room.*") as room, client.subscribe("room.2").with_topics() as second:
        assert (room.topic, second.topic) == ("room.*", "room.2")
        server.publish("room.2", 5)
        assert [next(room), next(room), next(second)] == ["kept", 5, ("room.2", 5)]
        pairs = room.with_topics()
        assert pairs is room
        server.publish("room.3", 6)
        assert next(pairs) == ("room.3", 6)
        server.publish("room.4", 7)
        for topic, value in pairs:
            assert (topic, value) == ("room.4", 7)
            break
    with pytest.raises(RpcError, match="whole level"):
        next(client.subscribe("room*"))


def test_a_loop_over_events_ends_with_the_client(address: str, server: Server) -> None:
    client = Client(address)
    got: list[Any] = []
    reads = threading.Event()

    def read() -> None:
        with client.subscribe("ticks") as ticks:
            reads.set()
            got.extend(ticks)

    reader = threading.Thread(target=read)
    reader.start()
    assert reads.wait(WAIT)
    client.close()
    reader.join()
    assert got == []


# -- keeping the connection -----------------------------------------------------------------------------------------


def test_reconnect_keeps_the_connection(scripted: Scripted) -> None:
    hung_up, states = threading.Event(), queue.SimpleQueue[str]()
    lines: list[Any] = []

    def script(line: Any) -> None:
        lines.append(line)
        if len(lines) == 1:
            assert hung_up.wait(WAIT)
            return
        while (request := line.read()) is not None:
            line.answer(request, "here")

    with Client(scripted(script), reconnect=True, on_state=states.put) as client:
        assert [states.get(timeout=WAIT) for _ in range(2)] == ["connecting", "connected"]
        assert client.state == "connected"
        hung_up.set()
        assert [states.get(timeout=WAIT) for _ in range(3)] == ["waiting", "connecting", "connected"]
        assert client.first() == "here"
    assert states.get(timeout=WAIT) == client.state == "closed"


def test_states_of_a_client_that_does_not_converse(address: str) -> None:
    client = Client(address)
    assert client.state == "idle"
    client.add(1, 2)
    assert client.state == "connected"
    client.close()
    assert client.state == "closed"


@pytest.mark.parametrize("is_async", [False, True])
def test_greetings_come_first(scripted: Scripted, is_async: bool) -> None:
    heard: list[str] = []

    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            heard.append(request["method"])
            line.answer(request, "here")

    with Client(scripted(script)) as client:
        if is_async:

            @client.on_connect
            async def greet(server: Any) -> None:
                assert await server.call("rpc.authenticate", token="x") == "here"

        else:

            @client.on_connect
            def hello(server: Any) -> None:
                assert server.call("rpc.authenticate", token="x") == "here"

        assert client.first() == "here"
        # One that comes later holds for the next connection.
        client.on_connect(lambda server: None)
        assert client.second() == "here"
    assert heard == ["rpc.authenticate", "first", "second"]


def test_a_greeting_that_is_refused(address: str) -> None:
    with Client(address) as client:
        client.on_connect(lambda server: server.nothing())
        with pytest.raises(ConnectFailed, match="refused the token, or a call of on_connect"):
            client.add(1, 2)


# -- the end --------------------------------------------------------------------------------------------------------


def test_close_ends_what_waits_and_the_thread(address: str, noted: Noted) -> None:
    before = loop_threads()
    client = Client(address)
    ticks = client.stream.ticks()
    assert next(ticks) == 1
    (thread,) = loop_threads() - before
    future = client.submit.wait()
    raised: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def wait(call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:
            raised.put(error)

    threads = [threading.Thread(target=wait, args=(call,)) for call in (client.wait, ticks.__next__)]
    for each in threads:
        each.start()
    assert [noted.next(), noted.next()] == ["waits", "waits"]
    client.close()
    assert not thread.is_alive()
    assert sorted(noted.next() for _ in range(3)) == ["stopped", "waited", "waited"]
    for _ in threads:
        error = raised.get(timeout=WAIT)
        assert isinstance(error, ConnectionLost), repr(error)
    assert isinstance(future.exception(WAIT), ConnectionLost)
    for each in threads:
        each.join()
    with pytest.raises(RuntimeError, match="'add' was called on a closed client"):
        client.add(1, 2)
    with pytest.raises(RuntimeError, match="'count' was called on a closed client"):
        client.stream.count(1)
    with pytest.raises(ConnectionLost):
        next(forget_end(ticks))
    client.close()
    ticks.close()


def test_an_offered_function_may_close_the_client(address: str) -> None:
    client = Client(address)
    closed = threading.Event()

    @client
    def leave() -> None:
        client.close()
        closed.set()

    with pytest.raises(ConnectionLost):
        client.ask("leave", [])
    assert closed.wait(WAIT)
    assert client.state == "closed"


def test_a_client_that_is_dropped_ends_by_itself(address: str) -> None:
    before = loop_threads()

    def use() -> None:
        client = Client(address)
        assert list(client.stream.count(3)) == [0, 1, 2]

        @client
        def offered() -> None: ...

        assert client.ask("offered", []) is None

    use()
    (thread,) = loop_threads() - before
    gc.collect()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_what_is_on_its_way_keeps_a_dropped_client_alive(address: str, noted: Noted) -> None:
    before = loop_threads()
    stream = Client(address).stream.count(100)
    future = talking_once(Client(address)).submit.add(1, 2)
    gc.collect()
    assert list(stream) == list(range(100))
    assert future.result(WAIT) == 3
    del stream, future
    for thread in loop_threads() - before:
        gc.collect()
        thread.join(WAIT)
        assert not thread.is_alive()
    while noted.next() != "counted":
        pass


def talking_once(client: Client) -> Client:
    engine_of(client).move_to_loop()
    return client


def test_a_new_conversation_takes_the_place_of_one_that_broke_off(
    client_on_loop: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(value: Any) -> None:
        raise SystemExit

    with pytest.raises(ConnectionLost):
        client_on_loop.steps(1, on_progress=leave)
    assert client_on_loop.add(1, 2) == 3
    assert "SystemExit" in caplog.text


# With `-X dev` asyncio warns of callbacks that took 0.1 s, as they do where the machine stands still for that long.
EXITING = """
import logging, sys
from rpcstream import Client
logging.getLogger("asyncio").setLevel(logging.ERROR)
client = Client(sys.argv[1])
stream = client.stream.ticks()
next(stream)
@client
def offered(): return client
client.notify.say("before the end")
client.submit.wait()
"""


def test_a_program_may_end_without_closing(address: str, noted: Noted) -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", EXITING, address],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    seen = {noted.next(), noted.next()}
    while "before the end" not in seen or "stopped" not in seen:
        seen.add(noted.next())


# -- forks ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_has_a_conversation_of_its_own(client: Client) -> None:
    @client
    def pid() -> int:
        return os.getpid()

    parent = os.getpid()
    assert client.ask("pid", []) == parent
    stream = client.stream.count(10**9)
    assert next(stream) == 0

    def work() -> None:
        child = os.getpid()
        assert child != parent
        with pytest.raises(RuntimeError, match="process"):
            run_in_loop_thread(client, lambda: None)
        stream.close()
        assert client.ask("pid", []) == child
        assert list(client.stream.count(3)) == [0, 1, 2]
        assert client.submit.add(1, 2).result(WAIT) == 3
        client.close()

    assert in_child(work) == 0
    assert in_child(client.close) == 0
    assert in_child(gc.collect) == 0
    assert client.ask("pid", []) == parent
    assert next(stream) == 1
    stream.close()
