"""The sync client in a conversation: by a blocking connection in the thread that calls, or by an event loop in a thread
of its own, which there is once methods are offered, items streamed or topics read."""

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
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from rpcstream import Client, ConnectFailed, ConnectionLost, Context, RpcError
from rpcstream.errors import EncodeError, RegistrationError
from rpcstream.testing import connections_of, serve_in_thread

from ..kit import UsualServer, request, until_in_thread
from .conftest import Scripted, Traced, in_child

WAIT = 20.0

BOTH: Any = pytest.mark.parametrize("options", [{}, {"keepalive": 60.0}], ids=["blocking", "loop"])


@pytest.fixture(scope="module")
def server() -> UsualServer:
    server = UsualServer(drain_timeout=0.2)

    @server
    async def ticks(token: str = "") -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            server.ended.append((token, "stopped"))

    @server
    def numbers(n: int) -> Iterator[int]:
        yield from range(n)
        if n == 7:
            raise RpcError(7, "seven")
        return "all"

    @server
    async def gathered(ctx: Context, n: int) -> list[Any]:
        return [item async for item in ctx.peer.stream.numbers(n)]

    return server


@pytest.fixture(params=[{}, {"keepalive": 60.0}], ids=["blocking", "loop"])
def client(served: str, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(served, **request.param) as client:
        yield client


@pytest.fixture
def plain(served: str) -> Iterator[Client]:
    """A client with blocking connections only."""
    with Client(served) as client:
        yield client


def loop_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "rpcstream-loop"}


def has_ended(server: UsualServer, token: str, how: str = "CancelledError") -> None:
    until_in_thread(lambda: (token, how) in server.ended)


@contextlib.contextmanager
def interrupted_when(condition: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C in the main thread, once the condition holds."""

    def interrupt() -> None:
        until_in_thread(condition)
        threading.Event().wait(0.05)  # by now the main thread waits for the answer, and no longer sends
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    thread.join()


def test_all_kinds_of_calls(client: Client, server: UsualServer) -> None:
    assert client.add(1, 2) == client.request("add", [1, 2], returns=int) == client.submit.add(1, 2).result(WAIT) == 3
    assert client.state == "connected"
    client.notify.note("note")
    with client.batch() as batch:
        first, second = batch.add(1, 2), batch.nothing()
    assert first.result() == 3
    assert isinstance(second.error, RpcError)
    assert client(request("add", 1, 2, id="x")) == {"jsonrpc": "2.0", "id": "x", "result": 3}
    assert client({"jsonrpc": "2.0", "method": "note", "params": ["raw"]}) is None
    assert client.add(1, 2) == 3
    assert {"note", "raw"} <= set(server.noted)
    client.close()
    assert client.state == "closed"


def test_an_array_that_goes_as_a_frame_is_not_written_as_text(client: Client, server: UsualServer) -> None:
    """The server receives it into memory of its own; its base64 would be a third larger than that, beside it."""
    server.add(lambda array: int(array.sum()), name="sum_of", replace=True)
    array = np.ones(1 << 20)
    for _ in range(2):  # the first one goes as text, and the server is asked whether it reads frames
        tracemalloc.start()
        try:
            assert client.sum_of(array) == array.size
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert server.counters.frames_received > 0
    assert peak < 2 * array.nbytes


def test_a_call_that_is_given_up_is_cancelled(client: Client, server: UsualServer) -> None:
    assert client.add(1, 2) == client.submit.add(1, 2).result() == 3
    name = f"{id(client)}"
    with pytest.raises(TimeoutError):
        client.wait(f"{name} late", timeout=0.2)
    assert isinstance(client.submit.wait(f"{name} late future", timeout=0.2).exception(WAIT), TimeoutError)
    with interrupted_when(lambda: f"{name} interrupted" in server.begun):
        client.wait(f"{name} interrupted")
    future = client.submit.wait(f"{name} cancelled")
    until_in_thread(lambda: f"{name} cancelled" in server.begun)
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result(WAIT)
    for way in ("late", "late future", "interrupted", "cancelled"):
        has_ended(server, f"{name} {way}")
    assert client.add(1, 2) == 3


def test_a_refusal_waits_behind_a_message_that_is_being_written(scripted: Scripted) -> None:
    is_sending = threading.Event()
    heard: list[Any] = []

    def script(line: Any) -> None:
        assert is_sending.wait(WAIT)
        line.say(request("ask", id=7))
        threading.Event().wait(0.05)  # so that it is read before there is room, most probably
        long = line.read()
        heard.extend((len(long["params"][0]), line.read()["error"]["code"]))
        line.answer(long, "got it")
        line.read()

    with Client(scripted(script), trace=lambda direction, message: is_sending.set()) as client:
        assert client.call("long", "x" * 8_000_000) == "got it"
    assert heard == [8_000_000, -32601]


@BOTH
def test_progress(served: str, server: UsualServer, options: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A function that is told may notify and, on a connection of its own, call; in the event loop it would wait for
    itself."""
    results: list[Any] = []
    told: list[Any] = []
    with Client(served, **options) as calling:
        assert calling.submit.progress(3, on_progress=told.append).result(WAIT) == 3
        assert next(iter(calling.stream.progress(3, on_progress=told.append))) == 3
        assert told.count(2) == 2  # of values that follow each other fast only the last is sent for certain
    with Client(served, **options) as other:

        def tell(value: Any) -> None:
            other.notify.note("in progress")
            results.append(other.add(1, 2))
            raise ValueError("a mistake in on_progress")

        assert other.progress(1, on_progress=tell, timeout=WAIT) == 1
        assert other.add(1, 2) == 3
    assert "in progress" in server.noted
    assert (results == [3]) is not bool(options)
    assert ("RuntimeError" if options else "a mistake in on_progress") in caplog.text


@pytest.mark.parametrize("pool", [1, 3])
def test_threads_do_not_notice_the_move(pool: int) -> None:
    server, half = UsualServer(), threading.Barrier(5)
    with serve_in_thread(server) as where, Client(where, pool=pool) as client, ThreadPoolExecutor(4) as executor:

        def work(thread: int) -> None:
            for number in range(20):
                if number == 5:
                    half.wait(WAIT)
                assert client.add(number, thread) == number + thread
                assert client.submit.add(number, thread).result(WAIT) == number + thread
                client.notify.note(number)

        assert client.add(1, 1) == 2
        (first,) = connections_of(server)
        working = [executor.submit(work, thread) for thread in range(4)]
        half.wait(WAIT)
        assert list(client.stream.add(1, 2)) == [3]
        for each in working:
            each.result()
        until_in_thread(lambda: not first.is_open)  # what is idle is closed
        assert client.add(1, 1) == 2
        assert client.replies_dropped == 0
    assert sorted(server.noted) == sorted(list(range(20)) * 4)


def test_the_server_calls_what_is_offered(plain: Client) -> None:
    before = loop_threads()
    told: list[str] = []

    @plain
    def double(value: int) -> int:
        return 2 * value

    @plain(name="who.am_i")
    async def who() -> str:
        try:
            plain.add(1, 2)
        except RuntimeError as error:
            told.append(str(error))
        return threading.current_thread().name

    @plain
    def numbers(n: int) -> Iterator[int]:
        yield from range(n)

    @plain
    def later(depth: int) -> Any:
        if depth == 0:
            return sum(plain.stream.count(4)) + plain.submit.add(1, 2).result(WAIT)
        return plain.ask("later", depth - 1)

    with pytest.raises(RegistrationError):
        plain(len, name="rpc.own")
    with pytest.raises(TypeError, match=r"a request object \(a dict\).*int"):
        plain(3)  # type: ignore[call-overload]
    assert not loop_threads() - before  # a thread is started with the next call, not with an import
    assert plain.ask("double", 4) == 8
    assert plain.ask("who.am_i") == "rpcstream-loop"
    assert "a blocking call in the event loop" in told[0]
    assert plain.gathered(40) == list(range(40))
    assert double(3) == 6
    with pytest.raises(RpcError):
        plain.ask("double", "x")
    assert plain.ask("later", 3) == 9


def test_items_as_they_come_and_errors_behind_them(plain: Client, server: UsualServer) -> None:
    stream = plain.stream.numbers(50)
    assert stream.result is None
    assert list(stream) == list(range(50))
    assert (stream.result, list(stream)) == ("all", [])
    assert list(plain.stream("numbers", n=3)) == plain.numbers(3) == [0, 1, 2]
    assert list(plain.stream.numbers(2, returns=float)) == [0.0, 1.0]
    got: list[int] = []
    with pytest.raises(RpcError, match="seven"):
        got.extend(plain.stream.numbers(7))
    assert got == list(range(7))
    with pytest.raises(TypeError):
        list(plain.stream.count(3, returns=str))
    with pytest.raises(TimeoutError):
        list(plain.stream.ticks("late", timeout=0.2))
    has_ended(server, "late", "stopped")


def test_leaving_a_stream_stops_its_generator(plain: Client, server: UsualServer) -> None:
    for _ in plain.stream.ticks("left"):
        break
    with plain.stream.ticks("block") as ticks:
        assert next(ticks) == 1
    ticks = plain.stream.ticks("closed")
    assert next(ticks) == 1
    ticks.close()
    assert list(ticks) == []
    with interrupted_when(lambda: True):
        for _ in plain.stream.ticks("interrupted"):
            pass
    for token in ("left", "block", "closed", "interrupted"):
        has_ended(server, token, "stopped")
    assert plain.add(1, 2) == 3


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_iterators_as_arguments_go_item_by_item(plain: Client, kind: type[BaseException]) -> None:
    async def source() -> AsyncIterator[int]:
        for number in range(5):
            yield number

    def broken() -> Iterator[int]:
        yield 1
        raise kind("broken")

    for attempt in (plain.total, plain.notify.total):
        with pytest.raises(EncodeError):
            attempt(object())
    assert plain.submit.total(iter(range(100))).result(WAIT) == plain.total(iter(range(100))) == 4950
    assert [plain.total(source()), plain.total([1, 2, 3])] == [10, 6]
    with pytest.raises((ValueError, RuntimeError), match="broken"):
        plain.total(broken())
    assert plain.add(1, 2) == 3


def test_an_iterator_may_block(plain: Client) -> None:
    """An iterator that has no item yet delays its own call only; it is closed when nobody wants the rest."""
    next_one: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    closed = threading.Event()

    def camera() -> Iterator[int]:
        try:
            while (picture := next_one.get(timeout=WAIT)) is not None:
                yield picture
        finally:
            closed.set()

    future = plain.submit.total(camera())
    for number in (1, 2):
        assert plain.add(number, 2) == number + 2
        next_one.put(number)
    next_one.put(None)
    assert future.result(WAIT) == 3
    closed.clear()
    with pytest.raises(TimeoutError):
        plain.total(camera(), timeout=0.1)
    next_one.put(1)
    assert closed.wait(WAIT)


def test_events_and_another_conversation_after_one_that_broke_off(
    plain: Client, server: UsualServer, caplog: Any
) -> None:
    server.publish("room.1", "kept", retain=True)
    with plain.subscribe("room.*") as room, plain.subscribe("room.2", returns=int).with_topics() as second:
        assert (room.topic, second.topic) == ("room.*", "room.2")
        server.publish("room.2", 5)
        assert [next(room), next(room), next(second)] == ["kept", 5, ("room.2", 5)]
        server.publish("room.3", 6)
        assert next(room.with_topics()) == ("room.3", 6)
        assert (room.dropped, room.reconnects) == (0, 0)
    assert list(room) == []
    with pytest.raises(ValueError, match="policy"):
        plain.subscribe("news", policy="none")  # type: ignore[arg-type]
    with pytest.raises(RpcError):
        next(plain.subscribe("room*"))

    def leave(value: Any) -> None:
        raise SystemExit

    with pytest.raises(ConnectionLost):
        plain.progress(1, on_progress=leave)
    assert plain.add(1, 2) == 3
    assert "SystemExit" in caplog.text


def test_greetings_come_first(served: str) -> None:
    async def greet(server: Any) -> None:
        assert await server.call("echo", "hello") == "hello"

    for greeting in (greet, lambda server: server.call("echo", "hello")):
        with Client(served, trace=(traced := Traced())) as client:
            client.on_connect(greeting)
            assert client.add(1, 2) == 3
            client.on_connect(lambda server: None)  # it holds for the next connection
            assert client.add(2, 2) == 4
        said = [next(word for word in (b"hello", b"add") if word in each) for each in traced.sent]
        assert said == [b"hello", b"add", b"add"]
    with Client(served) as client:
        client.on_connect(lambda server: server.nothing())
        with pytest.raises(ConnectFailed, match="refused the token, or a call of on_connect"):
            client.add(1, 2)


def test_close_ends_what_waits_and_the_thread(served: str, server: UsualServer) -> None:
    before = loop_threads()
    client = Client(served)
    client(client.close, name="leave")
    ticks, events = client.stream.ticks("closing"), client.subscribe("nothing")
    assert next(ticks) == 1
    (thread,) = loop_threads() - before
    future = client.submit.wait("closing future")
    with ThreadPoolExecutor(3) as executor:
        waiting = (lambda: client.wait("closing"), ticks.__next__, lambda: list(events.__enter__()))
        outcomes = [executor.submit(call) for call in waiting]
        until_in_thread(lambda: {"closing", "closing future"} <= set(server.begun))
        until_in_thread(lambda: server.stats()["subscriptions"])
        with pytest.raises(ConnectionLost):
            client.ask("leave")  # an offered function may close the client
    client.close()
    thread.join(WAIT)
    assert not thread.is_alive()
    for token, how in (("closing", "stopped"), ("closing", "CancelledError"), ("closing future", "CancelledError")):
        has_ended(server, token, how)
    assert [type(each.exception()) for each in (*outcomes[:2], future)] == [ConnectionLost] * 3
    assert outcomes[2].result() == []
    for name, call in (("add", client.add), ("count", client.stream.count)):
        with pytest.raises(RuntimeError, match=f"'{name}' was called on a closed client"):
            call(1)
    ticks.close()


def test_a_client_that_is_dropped_ends_by_itself_once_nothing_is_on_its_way(served: str) -> None:
    before = loop_threads()

    def use() -> Any:
        client = Client(served)

        @client
        def offered() -> None: ...

        assert client.ask("offered") is None
        return client.stream.count(100), client.submit.add(1, 2)

    stream, future = use()
    gc.collect()
    assert list(stream) == list(range(100))
    assert future.result(WAIT) == 3
    del stream, future
    for thread in loop_threads() - before:
        gc.collect()
        thread.join(WAIT)
        assert not thread.is_alive()


# With `-X dev` asyncio warns of callbacks that took 0.1 s, as they do where the machine stands still for that long.
EXITING = """
import logging, sys
from rpcstream import Client
logging.getLogger("asyncio").setLevel(logging.ERROR)
client = Client(sys.argv[1], keepalive=0.05)
stream = client.stream.ticks("exit")
next(stream)
@client
def offered(): return client
client.notify.note("before the end")
client.submit.wait()
"""


@pytest.mark.slow
def test_a_program_may_end_without_closing(served: str, server: UsualServer) -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", EXITING, served]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    has_ended(server, "exit", "stopped")
    assert "before the end" in server.noted
    # Python 3.12 starts no thread while it ends.
    short = "import sys; from rpcstream import Client; client = Client(sys.argv[1]); client.submit.echo(1).result()"
    ended = subprocess.run([sys.executable, "-c", short, served], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@BOTH
def test_a_child_has_connections_of_its_own(served: str, options: Any) -> None:
    parent = os.getpid()
    with Client(served, pool=2, **options) as client:
        client(os.getpid, name="pid")
        assert client.add(1, 2) == client.submit.add(1, 2).result(WAIT) == 3
        waiting = client.submit.echo_after("parent", 0.1)
        stream = client.stream.count(10**9) if options else None
        assert stream is None or next(stream) == 0

        def work() -> None:
            if stream is not None:
                stream.close()
            future = client.submit.add(1, 1)
            future.add_done_callback(lambda future: None)
            assert future.result(10) == client.add(1, 1) == 2
            assert client.ask("pid") == os.getpid() != parent
            assert list(client.stream.count(3)) == [0, 1, 2]
            client.close()

        for each in (work, client.close, gc.collect):
            assert in_child(each) == 0
        assert waiting.result(WAIT) == "parent"
        assert client.ask("pid") == parent
        if stream is not None:
            assert next(stream) == 1
            stream.close()
