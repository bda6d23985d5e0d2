"""Handlers that misbehave: the caller is answered, and other calls are not affected."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from functools import wraps
from typing import Any

import orjson
import pytest

from rpcstream import Client, Limits, RpcError, Server
from rpcstream.testing import serve_in_thread

from ..internals import invoker_of, running_state, waiting_for_threads


class Forgetful(RpcError):
    def __init__(self) -> None:  # forgets its base
        self.code, self.message, self.data = 7, "forgetful", None


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def awkward(limits: Limits | None = None, *, debug: bool = False) -> Server:
    server = Server(limits=limits or Limits(), debug=debug)

    def fail(error: BaseException) -> Any:
        def inline() -> None:
            raise error

        return inline

    def fail_later(error: BaseException) -> Any:
        async def later() -> None:
            await asyncio.sleep(0)
            raise error

        return later

    errors = {
        "surrogate": RpcError(7, "bad \udc80 name"),
        "data": RpcError(7, "m", object()),
        "code": RpcError("x", "m"),  # type: ignore[arg-type]
        "huge_code": RpcError(2**80, "m"),
        "forgetful": Forgetful(),
        "mute": Mute(),
    }
    for name, error in errors.items():
        server.add(fail(error), name=name)
        server.add(fail_later(error), name=f"{name}_later")

    @server
    async def suicide() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done"

    @server
    async def suicide_later() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1000)

    @server(offload="thread")
    def stop_iteration() -> Any:
        return next(iter([]))

    @server(offload="thread")
    def interrupt() -> None:
        raise KeyboardInterrupt

    return server


AWKWARD = {
    "surrogate": 7,
    "data": 7,
    "code": -32603,
    "huge_code": -32603,
    "forgetful": 7,
    "mute": -32603,
    "suicide": -32800,
    "suicide_later": -32800,
    "stop_iteration": -32603,
    "interrupt": -32603,
}
AWKWARD |= {f"{name}_later": code for name, code in list(AWKWARD.items())[:6]}


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(("method", "code"), AWKWARD.items())
async def test_awkward_handlers_are_answered(connect: Any, method: str, code: int, debug: bool) -> None:
    """Also from the backlog, in a batch, and with an id over 64 bits."""
    big = 2**70
    async with awkward(Limits(max_calls=1), debug=debug).listening(port=0) as address:
        raw = await connect(address)
        assert (await raw.call(method))["error"]["code"] == code
        call = {"jsonrpc": "2.0", "method": method}
        pinging = {"jsonrpc": "2.0", "method": "rpc.ping"}
        lines = [{**call, "id": 1}, {**call, "id": 2}, {**pinging, "id": 3}]
        await raw.send(b"".join(orjson.dumps(line) + b"\n" for line in lines))
        replies = {reply["id"]: reply for reply in [await raw.reply() for _ in lines]}
        assert [replies[number]["error"]["code"] for number in (1, 2)] == [code, code]
        assert replies[3]["result"] == "pong"
        await raw.send(b'[{"jsonrpc":"2.0","method":"%s","id":%d},' % (method.encode(), big))
        await raw.send(b'{"jsonrpc":"2.0","method":"rpc.ping","id":4}]\n')
        line = await raw.reader.readline()
        assert b'"id":%d' % big in line
        first, second = orjson.loads(line)
        assert first["error"]["code"] == code
        assert second["result"] == "pong"


async def test_a_plain_wrapper_around_an_async_function(connect: Any) -> None:
    server = Server()

    def logged(function: Any) -> Any:
        @wraps(function)
        def wrapper(*args: Any) -> Any:
            return "cached" if args == ("c",) else function(*args)

        return wrapper

    @server
    @logged
    async def later(text: str) -> str:
        await asyncio.sleep(0)
        return text

    async with server.listening(port=0) as address:
        raw = await connect(address)
        assert (await raw.call("later", ["x"]))["result"] == "x"
        assert (await raw.call("later", ["c"]))["result"] == "cached"


# -- worker processes -----------------------------------------------------------------------------------------------


async def test_what_cannot_travel_between_processes_fails_one_call_only(connect: Any, workers: Any) -> None:
    server = Server(processes=2)
    for function in (workers.odd_error, workers.own_error, workers.odd_result, workers.stop, workers.slow):
        server.add(function, offload="process")
    async with server.listening(port=0) as address:
        raw, other = await connect(address), await connect(address)
        slow = asyncio.ensure_future(other.call("slow", [1.0]))
        assert (await raw.call("odd_error"))["error"]["code"] == -32603
        assert (await raw.call("own_error"))["error"] == {"code": 404, "message": "no thing"}
        assert (await raw.call("odd_result"))["error"]["code"] == -32603
        assert (await raw.call("stop"))["error"]["code"] == -32603
        assert (await slow)["result"] == "slept"


# -- waiting for a thread -------------------------------------------------------------------------------------------


async def test_calls_that_nobody_waits_for_any_more_leave_the_queue(connect: Any) -> None:
    server = Server(threads=1)
    release = threading.Event()
    ran: list[str] = []

    @server(offload="thread")
    def block(payload: str) -> None:
        ran.append(payload)
        release.wait(20)

    async with server.listening(port=0) as address:
        raw, other = await connect(address), await connect(address)
        first = asyncio.ensure_future(other.call("block", ["first"]))
        while not ran:
            await asyncio.sleep(0)
        line = b'{"jsonrpc":"2.0","method":"block","params":["late"],"timeout":0.01,"id":%d}\n'
        await raw.send(b"".join(line % number for number in range(100)))
        assert {(await raw.reply())["error"]["code"] for _ in range(100)} == {-32003}
        assert waiting_for_threads(invoker_of(server)) == 0
        release.set()
        await first
    assert ran == ["first"]


async def test_the_queue_for_threads_is_bounded(connect: Any) -> None:
    server = Server(threads=1, limits=Limits(max_queue=2))
    release = threading.Event()
    server.add(lambda: release.wait(20), name="block", offload="thread")
    async with server.listening(port=0) as address:
        raw = await connect(address)
        for number in range(6):
            await raw.send(b'{"jsonrpc":"2.0","method":"block","id":%d}\n' % number)
        refused = await raw.reply()
        assert refused["error"]["code"] == -32002
        assert refused["error"]["data"] == {"limit": 2}
        release.set()


async def test_a_generator_is_closed_in_a_thread_also_when_the_queue_is_full(connect: Any) -> None:
    server = Server(threads=1, limits=Limits(max_queue=1))
    release, entered, made, closed_in = threading.Event(), threading.Event(), list[int](), list[str]()

    @server(offload="thread")
    def count() -> Iterator[int]:
        try:
            while True:
                made.append(1)
                yield 1
        finally:
            closed_in.append(threading.current_thread().name)

    @server(offload="thread")
    def block() -> None:
        entered.set()
        release.wait(20)

    async with server.listening(port=0) as address:
        raw, other = await connect(address), await connect(address)
        await raw.send('{"jsonrpc":"2.0","method":"count","stream":1,"id":1}\n')
        assert (await raw.reply())["method"] == "$/item"
        while len(made) < 2:  # one is made ahead of its credit
            await asyncio.sleep(0)
        for is_there in (entered.is_set, lambda: invoker_of(server).waiting):
            await other.send('{"jsonrpc":"2.0","method":"block","id":1}\n')
            while not is_there():
                await asyncio.sleep(0)
        await raw.send('{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":1}}\n')
        assert (await other.ask('{"jsonrpc":"2.0","method":"block","id":2}'))["error"]["code"] == -32002
        release.set()
        assert (await raw.reply())["error"]["code"] == -32800
    assert [name.startswith("rpcstream-") for name in closed_in] == [True]


# -- the end of connections -----------------------------------------------------------------------------------------


async def test_a_message_that_we_do_not_read_is_not_overdue(connect: Any) -> None:
    server = Server(limits=Limits(max_calls=2, message_timeout=0.2))

    @server
    async def wait(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async with server.listening(port=0) as address:
        raw = await connect(address)
        line = b'{"jsonrpc":"2.0","method":"wait","params":[0.5],"id":1}\n'
        await raw.send(line * 2 + line[:20])
        await asyncio.sleep(0.05)
        await raw.send(line[20:])
        assert [(await raw.reply())["result"] for _ in range(3)] == [0.5] * 3


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_what_was_answered_arrives_though_more_was_sent(end: bytes) -> None:
    """The server stops (or was told that nothing follows) while requests and replies are still on their way."""
    server = Server(limits=Limits(max_calls=10))
    executed = 0

    @server
    def count(filler: str) -> str:
        nonlocal executed
        executed += 1
        return filler

    with serve_in_thread(server) as address, socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = address.rpartition(":")
        peer.connect((host, int(port)))
        line = orjson.dumps({"jsonrpc": "2.0", "method": "count", "params": ["x" * 1000], "id": 1}) + b"\n"
        peer.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(100):
                peer.send(line * 100)
        peer.settimeout(20)
        if end:
            sender = threading.Thread(target=lambda: peer.sendall(b"\n" * 2), daemon=True)
            sender.start()
        else:
            while not executed:
                time.sleep(0.001)
            running_state(server).loop.call_soon_threadsafe(server.stop)
        received = b""
        # Requests that were still on their way may be reset; what was answered has arrived before that.
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            while data := peer.recv(1 << 20):
                received += data
    assert received.count(b'"result"') == executed
    assert executed > 0


async def test_a_peer_that_lets_async_replies_pile_up_is_closed(connect: Any) -> None:
    limits = Limits(write_buffer=100_000, max_message_size=2_000_000, max_calls=200)
    server = Server(limits=limits)
    gate = asyncio.Event()

    @server
    async def blob() -> str:
        await gate.wait()
        return "x" * 1_000_000

    async with server.listening(port=0) as address:
        raw, other = await connect(address), await connect(address)
        raw.writer.transport.pause_reading()
        await raw.send('{"jsonrpc":"2.0","method":"blob","id":1}\n' * 150)
        assert (await other.call("rpc.ping"))["result"] == "pong"
        gate.set()
        while not server.counters.closed_for_limits:
            await asyncio.sleep(0.01)
        assert (await other.call("rpc.ping"))["result"] == "pong"


async def test_turns_are_short_though_handlers_finish_meanwhile(connect: Any) -> None:
    """Calls that finish while others wait do not each make a turn of their own."""
    server = Server()
    answered = 0

    @server
    async def later() -> None:
        await asyncio.sleep(0.05)

    @server
    def work() -> None:
        nonlocal answered
        answered += 1
        end = time.perf_counter() + 0.01
        while time.perf_counter() < end:
            pass

    server.add(lambda: answered, name="count")
    async with server.listening(port=0) as address:
        greedy, other = await connect(address), await connect(address)
        await greedy.send(b'{"jsonrpc":"2.0","method":"later","id":1}\n' * 50)
        await greedy.send(b'{"jsonrpc":"2.0","method":"work","id":1}\n' * 100)
        counts = []
        while not counts or counts[-1] < 100:
            counts.append((await other.call("count"))["result"])
        assert max(after - before for before, after in itertools.pairwise(counts)) < 50


# -- the end of servers ---------------------------------------------------------------------------------------------


def test_stopping_twice_is_stopping_once() -> None:
    server = Server()
    stopped = threading.Event()

    @server
    async def work() -> str:
        server.stop()
        stopped.set()
        await asyncio.sleep(0.2)
        return "done"

    with contextlib.ExitStack() as stack:
        with serve_in_thread(server) as address:
            client = stack.enter_context(Client(address))
            future = client.submit.work()
            assert stopped.wait(20)
        # Leaving the block has asked the server to stop once more, while the call was in flight.
        assert future.result(20) == "done"


async def test_handlers_clean_up_before_the_lifespan_ends(connect: Any) -> None:
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(server: Server) -> AsyncIterator[None]:
        yield
        events.append("lifespan left")

    server = Server(lifespan=lifespan, drain_timeout=0.05)

    @server
    async def work() -> None:
        events.append("began")
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.05)
            events.append("cleaned up")

    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send('{"jsonrpc":"2.0","method":"work","id":1}\n')
        while not events:
            await asyncio.sleep(0)
    assert events == ["began", "cleaned up", "lifespan left"]


# -- time that a hostile peer could take ----------------------------------------------------------------------------


async def test_a_method_that_is_a_deep_array_is_only_refused(connect: Any) -> None:
    server = Server(slow_call=1e-9)
    async with server.listening(port=0) as address:
        raw = await connect(address)
        reply = await raw.ask(b'{"jsonrpc":"2.0","method":%s%s,"id":1}' % (b"[" * 1000, b"]" * 1000))
        assert reply["error"]["code"] == -32600
        assert (await raw.call("rpc.ping"))["result"] == "pong"


async def test_the_replies_of_a_batch_are_dropped_once_they_are_too_large(connect: Any) -> None:
    """Each call is told so, since an error without an id fails what else waits at a client."""
    server = Server(limits=Limits(max_message_size=100_000))
    server.add(lambda: "x" * 50_000, name="blob")
    async with server.listening(port=0) as address:
        raw = await connect(address)
        batch = [{"jsonrpc": "2.0", "method": "blob", "id": number} for number in range(100)]
        wrong = [5, {"method": 7}, {"jsonrpc": "2.0", "method": "blob", "id": [1]}]
        replies = await raw.ask(orjson.dumps([*batch, *wrong]))
        assert [reply["id"] for reply in replies] == [*range(100), None, None, None]
        assert {reply["error"]["code"] for reply in replies} == {-32001}
        assert replies[0]["error"]["data"]["size"] > 5_000_000
        many = [{"jsonrpc": "2.0", "method": "blob", "id": f"{number}{'x' * 500}"} for number in range(190)]
        (reply,) = await raw.ask(orjson.dumps(many))  # so many errors would be too long as well
        assert (reply["id"], reply["error"]["code"]) == (None, -32001)
