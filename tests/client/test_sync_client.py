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
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from rpcstream import (
    Client,
    ConnectFailed,
    ConnectionLost,
    Context,
    EncodeError,
    RegistrationError,
    RpcError,
    Server,
)
from rpcstream.testing import connections_of, serve_in_thread

from ..kit import UsualServer, request, until_in_thread
from .conftest import Connections, Scripted, Traced, answering, in_child

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

    @server
    def remaining(ctx: Context) -> float | None:
        return ctx.remaining

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


@pytest.fixture
def on_loop(plain: Client) -> Client:
    """A client whose calls go by its loop thread."""
    assert list(plain.stream.add(1, 2)) == [3]  # no stream, but that shows with its reply only
    return plain


def loop_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "rpcstream-loop"}


def has_ended(server: UsualServer, token: str, how: str = "CancelledError") -> None:
    until_in_thread(lambda: (token, how) in server.ended)


@contextlib.contextmanager
def interrupted_when(condition: Callable[[], object]) -> Iterator[None]:
    """Ctrl-C in the main thread, once the condition holds."""

    def interrupt() -> None:
        until_in_thread(condition)
        threading.Event().wait(0.1)  # by now the main thread waits for the answer, and no longer sends
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        yield
    thread.join()


# -- calls ----------------------------------------------------------------------------------------------------------


def test_all_kinds_of_calls(client: Client, server: UsualServer) -> None:
    assert client.add(1, 2) == client.request("add", [1, 2], returns=int) == client.submit.add(1, 2).result(WAIT) == 3
    client.notify.note("note")
    with client.batch() as batch:
        first, second = batch.add(1, 2), batch.nothing()
    assert first.result() == 3
    assert isinstance(second.error, RpcError)
    assert client(request("add", 1, 2, id="x")) == {"jsonrpc": "2.0", "id": "x", "result": 3}
    assert client({"jsonrpc": "2.0", "method": "note", "params": ["raw"]}) is None
    assert client.add(1, 2) == 3
    assert {"note", "raw"} <= set(server.noted)


def test_a_call_that_is_given_up_is_cancelled(client: Client, server: UsualServer) -> None:
    assert client.add(1, 2) == client.submit.add(1, 2).result() == 3
    name = f"{id(client)}"
    with pytest.raises(TimeoutError):
        client.wait(f"{name} late", timeout=0.4)
    assert isinstance(client.submit.wait(f"{name} late future", timeout=0.4).exception(WAIT), TimeoutError)
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


def test_a_cancel_waits_behind_a_message_that_is_being_written(scripted: Scripted) -> None:
    is_sending, was_cancelled = threading.Event(), threading.Event()
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def script(line: Any) -> None:
        heard.put(line.read()["method"])
        assert was_cancelled.wait(WAIT)
        long = line.read()
        heard.put((len(long["params"][0]), line.cancelled[:]))
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
        assert [heard.get(timeout=WAIT) for _ in range(4)] == ["silence", (20_000_000, []), "over", [1]]


def test_a_refusal_waits_behind_a_message_on_the_blocking_connection(scripted: Scripted) -> None:
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
        assert client.call("long", "x" * 20_000_000) == "got it"
    assert heard == [20_000_000, -32601]


def test_progress(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    for call in (
        lambda **options: client.progress(3, **options),
        lambda **options: client.request("progress", {"n": 3}, **options),
        lambda **options: client.submit.progress(3, **options).result(WAIT),
    ):
        told: list[Any] = []
        assert call(on_progress=told.append, timeout=WAIT) == 3
        assert told[-1] == 2  # of values that follow each other fast only the last is sent for certain

    def mistaken(value: Any) -> None:
        raise ValueError("a mistake in on_progress")

    assert client.progress(1, on_progress=mistaken) == 1
    assert "a mistake in on_progress" in caplog.text


@BOTH
def test_a_function_told_of_progress_may_notify_and_call_where_that_can_be_answered(
    served: str, server: UsualServer, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """On a connection of its own a call is answered; in the event loop it would wait for itself."""
    results: list[Any] = []
    with Client(served, **options) as client:
        assert client.progress(1, on_progress=lambda value: client.notify.note("in progress")) == 1
        assert client.progress(1, on_progress=lambda value: results.append(client.add(1, 2)), timeout=WAIT) == 1
        assert client.add(1, 2) == 3
    assert "in progress" in server.noted
    assert (results == [3]) is not bool(options)
    assert ("RuntimeError" in caplog.text) is bool(options)


@BOTH
def test_calls_in_a_handler_inherit_its_deadline_and_end_with_it(
    served: str, server: UsualServer, options: Any
) -> None:
    with Client(served, **options) as inner:
        assert inner.add(1, 2) == 3
        outer = Server()

        @outer(offload="thread")
        def nested() -> list[Any]:
            kept = inner.remaining(timeout=1000)
            return [inner.remaining(), kept, inner.submit.remaining(timeout=None).result(WAIT)]

        @outer(offload="thread")
        def waits(token: str) -> None:
            inner.wait(token, timeout=None)

        with serve_in_thread(outer) as where, Client(where) as client:
            assert all(0 < seconds <= 5 for seconds in client.nested(timeout=5))
            for seconds in (0.3, 2, 15):  # on a machine with much to do, time may be up before it has begun
                token = f"nested {options} {seconds}"
                with pytest.raises(TimeoutError):
                    client.waits(token, timeout=seconds)
                if token in server.begun:
                    break
            has_ended(server, token)
        assert inner.remaining() is None


# -- the move -------------------------------------------------------------------------------------------------------


def test_what_waits_comes_to_its_end_then_its_connection_is_closed(scripted: Scripted) -> None:
    asked, moved = threading.Event(), threading.Event()
    ended: queue.SimpleQueue[list[str]] = queue.SimpleQueue()

    def script(line: Any) -> None:
        heard = []
        while (call := line.read()) is not None:
            heard.append(call["method"])
            if heard[-1] == "later":
                asked.set()
                assert moved.wait(WAIT)
            line.answer(call, heard[-1])
        ended.put(heard)

    with Client(scripted(script)) as client:
        assert client.first() == "first"
        results: list[Any] = []
        waiting = threading.Thread(target=lambda: results.append(client.later()))
        waiting.start()
        assert asked.wait(WAIT)
        assert list(client.stream.second()) == ["second"]
        moved.set()
        waiting.join()
        assert results == ["later"]
        assert ended.get(timeout=WAIT) == ["first", "later"]
        assert client.third() == "third"
    heard = ended.get(timeout=WAIT)
    assert [heard[0], heard[-1]] == ["second", "third"]


def test_an_idle_connection_is_closed_at_once() -> None:
    server = UsualServer()
    with serve_in_thread(server) as address, Client(address) as client:
        assert client.add(1, 2) == 3
        (before,) = connections_of(server)
        assert list(client.stream.add(1, 2)) == [3]
        until_in_thread(lambda: not before.is_open)
        assert client.add(1, 2) == 3
        assert len(connections_of(server)) == 1
        assert client.replies_dropped == 0


@pytest.mark.parametrize("pool", [1, 3])
def test_threads_do_not_notice_the_move(pool: int) -> None:
    errors: list[BaseException] = []
    for _ in range(3):
        server = UsualServer()
        with serve_in_thread(server) as where, Client(where, pool=pool) as client:
            half = threading.Barrier(5)

            def work(thread: int, client: Client = client, half: threading.Barrier = half) -> None:
                try:
                    for number in range(60):
                        if number == 20:
                            half.wait()
                        assert client.add(number, thread) == number + thread
                        assert client.submit.add(number, thread).result(WAIT) == number + thread
                        client.notify.note(number)
                except BaseException as error:
                    errors.append(error)
                    raise

            threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
            for thread in threads:
                thread.start()
            half.wait()
            assert list(client.stream.add(1, 2)) == [3]
            for thread in threads:
                thread.join()
            assert client.add(1, 1) == 2
        assert errors == []
        assert sorted(server.noted) == sorted(list(range(60)) * 4)


# -- offering methods -----------------------------------------------------------------------------------------------


def test_the_server_calls_what_is_offered(plain: Client) -> None:
    before = loop_threads()

    @plain
    def double(value: int) -> int:
        return 2 * value

    @plain(name="who.am_i")
    async def who() -> str:
        return threading.current_thread().name

    @plain
    def numbers(n: int) -> Iterator[int]:
        yield from range(n)

    assert not loop_threads() - before  # a thread is started with the next call, not with an import
    assert plain.ask("double", 4) == 8
    assert plain.ask("who.am_i") == "rpcstream-loop"
    assert plain.gathered(40) == list(range(40))
    assert double(3) == 6
    with pytest.raises(RpcError):
        plain.ask("double", "x")

    @plain
    def later(depth: int) -> Any:
        if depth == 0:
            return sum(plain.stream.count(4)) + plain.submit.add(1, 2).result(WAIT)
        return plain.ask("later", depth - 1)

    assert plain.ask("later", 3) == 9


def test_what_cannot_be_offered_or_sent_needs_no_loop(plain: Client) -> None:
    before = loop_threads()
    with pytest.raises(RegistrationError):
        plain(len, name="rpc.own")
    with pytest.raises(TypeError, match=r"a request object \(a dict\).*int"):
        plain(3)  # type: ignore[call-overload]
    for attempt in (plain.total, plain.notify.total):
        with pytest.raises(EncodeError):
            attempt(object())
    assert plain.add(1, 2) == 3
    assert not loop_threads() - before
    assert isinstance(plain.submit.total(object()).exception(), EncodeError)


def test_an_offered_async_function_that_would_wait_for_itself_is_told(plain: Client) -> None:
    told: list[str] = []

    @plain
    async def waits() -> None:
        try:
            plain.add(1, 2)
        except RuntimeError as error:
            told.append(str(error))

    plain.ask("waits")
    assert "a blocking call in the event loop" in told[0]


# -- streams --------------------------------------------------------------------------------------------------------


def test_items_as_they_come(plain: Client) -> None:
    stream = plain.stream.numbers(50)
    assert stream.result is None
    assert list(stream) == list(range(50))
    assert (stream.result, list(stream)) == ("all", [])
    assert list(plain.stream("numbers", n=3)) == plain.numbers(3) == [0, 1, 2]
    told: list[Any] = []
    assert list(plain.stream.progress(2, on_progress=told.append)) == [2]
    assert told[-1] == 1
    assert list(plain.stream.numbers(2, returns=float)) == [0.0, 1.0]


def test_streams_end_with_errors(plain: Client, server: UsualServer) -> None:
    got: list[int] = []
    with pytest.raises(RpcError, match="seven"):
        got.extend(plain.stream.numbers(7))
    assert got == list(range(7))
    for bad in (lambda: plain.stream.count("x"), lambda: plain.stream.count(3, returns=str)):
        with pytest.raises((RpcError, TypeError)):
            list(bad())
    with pytest.raises(TypeError, match="positional and named"):
        plain.stream.count(1, n=2)  # `n` is the first one
    with pytest.raises(TimeoutError):
        list(plain.stream.ticks("late", timeout=0.4))
    has_ended(server, "late", "stopped")


def test_leaving_a_stream_stops_its_generator(plain: Client, server: UsualServer) -> None:
    for _ in plain.stream.ticks("left"):
        break
    with plain.stream.ticks("block") as ticks:
        assert next(ticks) == 1
    with plain.stream.ticks("unread"):  # not one item was taken
        until_in_thread(lambda: True)
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


def test_iterators_as_arguments_go_item_by_item(plain: Client) -> None:
    before = loop_threads()
    assert plain.submit.total(iter(range(100))).result(WAIT) == 4950

    async def source() -> AsyncIterator[int]:
        for number in range(5):
            yield number

    assert plain.total(iter(range(100))) == 4950
    assert loop_threads() - before
    assert plain.total(source()) == 10
    assert plain.total([1, 2, 3]) == 6


def test_an_iterator_may_block(on_loop: Client) -> None:
    """An iterator that has no item yet delays its own call only."""
    next_one: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    threads: set[threading.Thread] = set()

    def camera() -> Iterator[int]:
        while (picture := next_one.get(timeout=WAIT)) is not None:
            threads.add(threading.current_thread())
            yield picture

    future = on_loop.submit.total(camera())
    for number in (1, 2):
        assert on_loop.add(number, 2) == number + 2
        next_one.put(number)
    next_one.put(None)
    assert future.result(WAIT) == 3
    (thread,) = threads
    assert thread not in {threading.main_thread(), *loop_threads()}
    thread.join(WAIT)
    assert not thread.is_alive()  # it ends with the iterator


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_iterator_that_fails_fails_its_call(on_loop: Client, kind: type[BaseException]) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise kind("broken")

    with pytest.raises((ValueError, RuntimeError), match="broken"):
        on_loop.total(broken())
    assert on_loop.add(1, 2) == 3


def test_an_iterator_is_closed_when_nobody_wants_the_rest(on_loop: Client) -> None:
    closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    with pytest.raises(TimeoutError):
        on_loop.total(endless(), timeout=0.1)
    assert closed.wait(WAIT)


# -- events, states, greetings --------------------------------------------------------------------------------------


def test_events(plain: Client, server: UsualServer) -> None:
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
    for topic in ("", "room*"):
        with pytest.raises(RpcError):
            next(plain.subscribe(topic))


def test_reconnect_keeps_the_connection(scripted: Scripted) -> None:
    hung_up, states = threading.Event(), queue.SimpleQueue[str]()
    connections = Connections(lambda line: hung_up.wait(WAIT), answering("here"))
    with Client(scripted(connections), reconnect=True, on_state=states.put) as client:
        assert [states.get(timeout=WAIT) for _ in range(2)] == ["connecting", "connected"]
        assert client.state == "connected"
        hung_up.set()
        assert [states.get(timeout=WAIT) for _ in range(3)] == ["waiting", "connecting", "connected"]
        assert client.first() == "here"
    assert states.get(timeout=WAIT) == client.state == "closed"


def test_states_of_a_client_that_does_not_converse(served: str) -> None:
    client = Client(served)
    assert client.state == "idle"
    client.add(1, 2)
    assert client.state == "connected"
    client.close()
    assert client.state == "closed"


@pytest.mark.parametrize("is_async", [False, True])
def test_greetings_come_first(served: str, is_async: bool) -> None:
    traced = Traced()
    with Client(served, trace=traced) as client:
        if is_async:

            @client.on_connect
            async def greet(server: Any) -> None:
                assert await server.call("echo", "hello") == "hello"

        else:
            client.on_connect(lambda server: server.call("echo", "hello"))
        assert client.add(1, 2) == 3
        client.on_connect(lambda server: None)  # it holds for the next connection
        assert client.add(2, 2) == 4
    assert [next(word for word in (b"hello", b"add") if word in each) for each in traced.sent] == [
        b"hello",
        b"add",
        b"add",
    ]
    with Client(served) as client:
        client.on_connect(lambda server: server.nothing())
        with pytest.raises(ConnectFailed, match="refused the token, or a call of on_connect"):
            client.add(1, 2)


# -- the end --------------------------------------------------------------------------------------------------------


def test_close_ends_what_waits_and_the_thread(served: str, server: UsualServer) -> None:
    before = loop_threads()
    client = Client(served)
    ticks, events = client.stream.ticks("closing"), client.subscribe("nothing")
    assert next(ticks) == 1
    (thread,) = loop_threads() - before
    future = client.submit.wait("closing future")
    outcomes: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def wait(call: Callable[[], Any]) -> None:
        try:
            outcomes.put(call())
        except Exception as error:
            outcomes.put(error)

    waiting = (lambda: client.wait("closing"), ticks.__next__, lambda: list(events.__enter__()))
    threads = [threading.Thread(target=wait, args=(call,)) for call in waiting]
    for each in threads:
        each.start()
    until_in_thread(lambda: {"closing", "closing future"} <= set(server.begun))
    until_in_thread(lambda: server.stats()["subscriptions"])
    client.close()
    assert not thread.is_alive()
    for token, how in (("closing", "stopped"), ("closing", "CancelledError"), ("closing future", "CancelledError")):
        has_ended(server, token, how)
    assert sorted(type(outcomes.get(timeout=WAIT)).__name__ for _ in threads) == ["ConnectionLost"] * 2 + ["list"]
    assert isinstance(future.exception(WAIT), ConnectionLost)
    for each in threads:
        each.join()
    for name, call in (("add", client.add), ("count", client.stream.count)):
        with pytest.raises(RuntimeError, match=f"'{name}' was called on a closed client"):
            call(1)
    client.close()
    ticks.close()


def test_an_offered_function_may_close_the_client(served: str) -> None:
    client = Client(served)
    closed = threading.Event()

    @client
    def leave() -> None:
        client.close()
        closed.set()

    with pytest.raises(ConnectionLost):
        client.ask("leave")
    assert closed.wait(WAIT)
    assert client.state == "closed"


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


def test_a_new_conversation_takes_the_place_of_one_that_broke_off(
    on_loop: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(value: Any) -> None:
        raise SystemExit

    with pytest.raises(ConnectionLost):
        on_loop.progress(1, on_progress=leave)
    assert on_loop.add(1, 2) == 3
    assert "SystemExit" in caplog.text


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


def test_a_program_may_end_without_closing(served: str, server: UsualServer) -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", EXITING, served]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    has_ended(server, "exit", "stopped")
    assert "before the end" in server.noted


# -- forks ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@BOTH
def test_a_child_has_connections_of_its_own(served: str, options: Any) -> None:
    with Client(served, pool=2, **options) as client:

        @client
        def pid() -> int:
            return os.getpid()

        assert client.add(1, 2) == client.submit.add(1, 2).result(WAIT) == 3
        parent = os.getpid()
        if options:
            assert client.ask("pid") == parent
        waiting = client.submit.echo_after("parent", 0.3)
        stream = client.stream.count(10**9) if options else None
        assert stream is None or next(stream) == 0

        def work() -> None:
            if stream is not None:
                stream.close()
            for number in range(20):
                assert client.add(number, 1) == number + 1
            futures = [client.submit.add(number, 1) for number in range(20)]
            futures[0].add_done_callback(lambda future: None)
            assert [future.result(10) for future in futures] == list(range(1, 21))
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
