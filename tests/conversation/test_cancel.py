"""Cancelling: by the caller, by a lost connection, by a server's stop; and cancels that are odd, late or early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from rpcstream import AsyncClient, CallCancelled, CallTimeout, ConnectionLost, Context, Limits, RpcError, Server
from rpcstream.testing import FakeTimeLoop, memory_client

from ..kit import Network, RawPeer, StoppableServer, notification, request, until

pytestmark = pytest.mark.every_transport


class Waiting:
    """A server with handlers that wait until `go`, and what became of them."""

    def __init__(self, **options: Any) -> None:
        self.server = Server(**options)
        self.go = asyncio.Event()
        self.thread_go = threading.Event()
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.cancelled: list[Any] = []

        @self.server
        async def wait(name: Any = None) -> Any:
            return await self._wait(name)

        @self.server(detached=True)
        async def wait_detached(name: Any = None) -> Any:
            return await self._wait(name)

        @self.server(ordered=True)
        async def wait_in_order(name: Any = None) -> Any:
            return await self._wait(name)

        @self.server
        async def items(name: Any = None) -> AsyncIterator[Any]:
            yield await self._wait(name)

        @self.server
        async def consume(values: AsyncIterator[Any], name: Any = None) -> Any:
            return [await self._wait(name), [value async for value in values]]

        @self.server(offload="thread")
        def wait_in_thread(ctx: Context, name: Any = None) -> Any:
            self.begun.append(name)
            assert self.thread_go.wait(20)
            (self.cancelled if ctx.cancelled else self.ended).append(name)
            ctx.check()
            return name

    async def _wait(self, name: Any) -> Any:
        self.begun.append(name)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        self.ended.append(name)
        return name


@pytest.fixture
async def waiting() -> Waiting:
    return Waiting()


# -- whoever waits gives up -----------------------------------------------------------------------------------------


@pytest.mark.lasting
async def test_cancelling_the_task_that_awaits(network: Network, waiting: Waiting) -> None:
    async with network.client(waiting.server) as client:
        task = asyncio.ensure_future(client.wait("it"))
        other = client.submit.wait("other")
        await until(lambda: waiting.begun == ["it", "other"])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: waiting.cancelled == ["it"])
        waiting.go.set()
        assert await other == "other"
        assert client.replies_dropped == 1, "the acknowledgement"


async def test_cancelling_what_was_submitted(network: Network, waiting: Waiting) -> None:
    async with network.client(waiting.server) as client:
        task = client.submit.wait("it")
        await until(lambda: waiting.begun)
        assert task.cancel()
        await until(lambda: waiting.cancelled == ["it"])
        assert task.cancelled()


@pytest.mark.fake_time
async def test_a_clients_time_out_cancels_the_handler(
    network: Network, waiting: Waiting, fake_time: FakeTimeLoop
) -> None:
    """The time-out of the client itself is not told to the server: so it is the cancel that ends the handler."""
    async with network.client(waiting.server, timeout=5) as client:
        with pytest.raises(CallTimeout):
            await client.wait("it")
        assert fake_time.time() == 5
        await until(lambda: waiting.cancelled == ["it"])


async def test_cancelling_a_whole_batch(network: Network, waiting: Waiting) -> None:
    async with network.client(waiting.server) as client:

        async def ask() -> None:
            async with client.batch() as batch:
                for name in "abc":
                    batch.wait(name)

        task = asyncio.ensure_future(ask())
        await until(lambda: waiting.begun == ["a", "b", "c"])
        task.cancel()
        await until(lambda: waiting.cancelled == ["a", "b", "c"])
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_the_caller_does_not_wait_for_the_acknowledgement(network: Network) -> None:
    heard: list[Any] = []

    async def script(raw: RawPeer) -> None:
        heard.append(await raw.receive())
        # Over NATS the call goes to the service, and the cancel to the instance, as soon as that is known.
        cancel, second = sorted([await raw.receive(), await raw.receive()], key=lambda message: "id" in message)
        heard.append(cancel)
        raw.answer(second, "fine")
        raw.answer(heard[0], "late")
        raw.answer(await raw.receive(), "fine still")

    async with network.scripted(script) as endpoint:
        client = endpoint.client()
        task = client.submit.first()
        await until(lambda: heard)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.second() == "fine"
        assert (heard[1]["method"], heard[1]["params"]) == ("$/cancelRequest", {"id": heard[0]["id"]})
        assert await client.third() == "fine still"
        assert client.replies_dropped == 1


async def test_what_was_not_sent_is_not_cancelled_either(network: Network) -> None:
    heard: list[Any] = []

    async def script(raw: RawPeer) -> None:
        heard.append(await raw.receive())
        raw.answer(heard[0], "fine")

    async with network.scripted(script) as endpoint:
        client = endpoint.client()
        task = client.submit.never_sent()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.next() == "fine"
        assert [each["method"] for each in heard] == ["next"]


# -- on the wire ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["wait", "wait_detached", "wait_in_order", "items", "wait_in_thread"])
async def test_cancel_and_its_answer(network: Network, waiting: Waiting, method: str) -> None:
    async with network.raw(waiting.server) as raw:
        for call_id in (7, "seven", "", 0, 2**53, -(2**63)):
            raw.call(method, "it", id=call_id)
            await until(lambda: waiting.begun == ["it"])
            raw.cancel(call_id)
            reply = await raw.reply()
            assert reply["error"]["code"] == -32800
            assert (reply["id"], type(reply["id"])) == (call_id, type(call_id))
            waiting.thread_go.set()
            await until(lambda: waiting.cancelled == ["it"])
            waiting.thread_go.clear()
            waiting.begun.clear()
            waiting.cancelled.clear()
        await raw.silence()


@pytest.mark.parametrize("method", ["wait", "wait_in_order", "items", "wait_in_thread", "consume"])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_cancel_that_comes_with_its_request(
    network: Network, waiting: Waiting, method: str, streams: bool
) -> None:
    params = [{"$type": "stream", "id": "s"}, "it"] if method == "consume" else ["it"]
    members = {"stream": 3} if streams else {}
    async with network.raw(waiting.server) as raw:
        for _ in range(3):
            raw.send(request(method, *params, **members), notification("$/cancelRequest", id=1))
            assert await raw.code() == -32800
        waiting.thread_go.set()
        waiting.go.set()
        if method == "consume":
            # The name of the stream is free again.
            raw.send(request(method, *params), notification("$/end", stream="s"))
            while "method" in (message := await raw.receive()):
                assert message["method"] == "$/credit"
            assert message["result"] == ["it", []]
        else:
            assert (await raw.reply(method, *params, id=2))["result"] in ("it", ["it"])


async def test_cancels_that_mean_nothing(network: Network, waiting: Waiting) -> None:
    odd: list[Any] = [
        {},
        {"id": None},
        {"id": True},
        {"id": 1.0},
        {"id": "1"},
        {"id": [1]},
        {"id": {"id": 1}},
        {"id": 2},
        {"id": 1e30},
        {"ID": 1},
        [],
        [1],
        [{"id": 1}],
        None,
    ]
    async with network.raw(waiting.server) as raw:
        raw.call("wait", "it")
        for params in odd:
            raw.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": params})
        raw.send({"jsonrpc": "2.0", "method": "$/cancelRequest"})
        raw.send({"method": "$/cancelRequest", "params": {"id": 1}})
        raw.send({"jsonrpc": "2.0", "method": "$/cancel", "params": {"id": 1}})
        raw.send({"jsonrpc": "2.0", "method": "$/", "params": {"id": 1}})
        await raw.silence()
        assert waiting.cancelled == []
        raw.send({"jsonrpc": "2.0", "id": 5, "method": "$/cancelRequest", "params": {"id": 1}})
        assert await raw.code() == -32601
        waiting.go.set()
        assert await raw.result() == "it"


async def test_ids_that_look_alike(network: Network, waiting: Waiting) -> None:
    async with network.raw(waiting.server) as raw:
        raw.send(request("wait", "zero", id=0), request("wait", "text", id="0"), request("wait", "null", id=None))
        await until(lambda: len(waiting.begun) == 3)
        for other in (False, 0.0, None, "", -0.0, [0]):
            raw.cancel(other)
        await raw.silence()
        raw.cancel("0")
        assert await raw.reply() == {"jsonrpc": "2.0", "id": "0", "error": {"code": -32800, "message": "Cancelled"}}
        raw.cancel(0)
        assert (await raw.reply())["id"] == 0
        assert waiting.cancelled == ["text", "zero"]
        waiting.go.set()
        assert await raw.reply() == {"jsonrpc": "2.0", "id": None, "result": "null"}


async def test_twice_late_and_early(network: Network, waiting: Waiting) -> None:
    async with network.raw(waiting.server) as raw:
        raw.cancel(1)  # too early: there is no such call yet
        raw.call("wait", "it", id=1)
        await until(lambda: waiting.begun)
        await raw.silence()
        raw.send(*[notification("$/cancelRequest", id=1)] * 3)
        assert await raw.code() == -32800
        raw.send(*[notification("$/cancelRequest", id=1)] * 3)  # too late
        await raw.silence()
        waiting.go.set()
        assert await raw.result("wait", "again", id=1) == "again"
        raw.cancel(1)
        await raw.silence()


async def test_the_same_id_on_another_connection_is_another_call(network: Network, waiting: Waiting) -> None:
    async with network.serve(waiting.server) as endpoint:
        one, other = await endpoint.raw(), await endpoint.raw()
        one.call("wait", "one")
        other.call("wait", "other")
        await until(lambda: len(waiting.begun) == 2)
        one.cancel(1)
        assert await one.code() == -32800
        await other.silence()
        waiting.go.set()
        assert await other.result() == "other"


async def test_notifications_cannot_be_cancelled(network: Network, waiting: Waiting) -> None:
    async with network.raw(waiting.server) as raw:
        raw.send({"jsonrpc": "2.0", "method": "wait", "params": ["it"]})
        await until(lambda: waiting.begun)
        raw.cancel(None)
        raw.send({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {}})
        await raw.silence()
        assert not waiting.cancelled
        waiting.go.set()
        await until(lambda: waiting.ended == ["it"])


# -- batches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_a_cancel_within_the_batch_itself(network: Network, waiting: Waiting, position: int) -> None:
    """It means a call of the same batch wherever it stands, and gets no answer of its own."""
    batch = [request("wait", "a", id=1), request("wait", "b", id=2)]
    batch.insert(position, notification("$/cancelRequest", id=2))
    async with network.raw(waiting.server) as raw:
        raw.send(batch)
        await until(lambda: waiting.begun[:1] == ["a"])
        await raw.silence()
        waiting.go.set()
        first, second = await raw.receive()
        assert first["result"] == "a"
        assert (second["id"], second["error"]["code"]) == (2, -32800)


async def test_a_batch_of_cancels(network: Network, waiting: Waiting) -> None:
    async with network.raw(waiting.server) as raw:
        for call_id in (1, 2, 3):
            raw.call("wait", call_id, id=call_id)
        await until(lambda: len(waiting.begun) == 3)
        raw.send([notification("$/cancelRequest", id=call_id) for call_id in (1, 3, 4)])
        replies = await raw.receive_many(2)
        assert {(each["id"], each["error"]["code"]) for each in replies} == {(1, -32800), (3, -32800)}
        await raw.silence()
        waiting.go.set()
        assert await raw.result() == 2


async def test_members_of_a_batch_are_cancelled_one_by_one(network: Network, waiting: Waiting) -> None:
    waiting.thread_go.set()
    async with network.raw(waiting.server) as raw:
        methods = ["wait", "wait_in_order", "items", "wait", "rpc.ping"]
        raw.send([request(method, *[f"{n}"] * (n < 4), id=n) for n, method in enumerate(methods)])
        await until(lambda: len(waiting.begun) == 4)
        for call_id in (2, 0, 1, 1, 4):
            raw.cancel(call_id)
        await until(lambda: len(waiting.cancelled) == 3)
        await raw.silence()
        waiting.go.set()
        replies = await raw.receive()
        assert [each.get("result", each.get("error", {}).get("code")) for each in replies] == [
            -32800,
            -32800,
            -32800,
            "3",
            "pong",
        ]


async def test_members_that_wait_for_room_are_cancelled_as_well(network: Network) -> None:
    waiting = Waiting(limits=Limits(max_calls=1))
    async with network.raw(waiting.server) as raw:
        raw.send([request("wait", n, id=n) for n in range(4)])
        await until(lambda: waiting.begun == [0])
        raw.cancel(2)
        raw.cancel(1)
        await until(
            lambda: not [each for each in network.served[0].running.batch_members.values() if each["id"] in (1, 2)]
        )
        waiting.go.set()
        replies = await raw.receive()
        assert ["result" in each for each in replies] == [True, False, False, True]
        assert waiting.begun == [0, 3]


# -- overtaking -----------------------------------------------------------------------------------------------------


async def test_a_cancel_overtakes_a_request_that_waits_unread(network: Network) -> None:
    waiting = Waiting(limits=Limits(max_calls=3))
    async with network.raw(waiting.server) as raw:
        raw.send(*[request("wait", n, id=n) for n in range(3)])
        await until(lambda: len(waiting.begun) == 3)
        raw.send(request("wait", "second", id="second"), request("wait", "third", id="third"))
        await until(lambda: network.served[0].queue)
        raw.cancel("second")
        raw.cancel("unknown")
        raw.cancel(0)
        assert (await raw.reply())["id"] == 0, "cancels get through at the cap"
        await until(lambda: "third" in waiting.begun)
        assert await raw.reply() == {
            "jsonrpc": "2.0",
            "id": "second",
            "error": {"code": -32800, "message": "Cancelled"},
        }
        waiting.go.set()
        assert sorted([str(await raw.result()) for _ in range(3)]) == ["1", "2", "third"]
        assert "second" not in waiting.begun


@pytest.mark.one_read
async def test_a_cancel_that_comes_with_a_request_that_has_to_wait(network: Network) -> None:
    waiting = Waiting(limits=Limits(max_calls=1))
    async with network.raw(waiting.server) as raw:
        raw.send(request("wait", "first"), request("wait", "second", id=2), notification("$/cancelRequest", id=2))
        await until(lambda: waiting.begun == ["first"])
        waiting.go.set()
        assert await raw.result() == "first"
        assert await raw.code() == -32800
        assert waiting.begun == ["first"]
        assert await raw.result("wait", "again", id=2) == "again"


async def test_a_cancel_overtakes_a_member_of_a_batch_that_waits_unread(network: Network) -> None:
    waiting = Waiting(limits=Limits(max_calls=2))
    async with network.raw(waiting.server) as raw:
        raw.send(request("wait", 0, id=0), request("wait", 1, id=1))
        await until(lambda: len(waiting.begun) == 2)
        raw.send([request("wait", "second", id="second"), request("wait", "third", id="third")])
        await until(lambda: network.served[0].queue)
        raw.cancel("second")
        raw.cancel(0)
        assert (await raw.reply())["id"] == 0
        await until(lambda: "third" in waiting.begun)
        waiting.go.set()
        assert await raw.result() == 1
        second, third = await raw.receive()
        assert (second["error"]["code"], third["result"]) == (-32800, "third")
        assert waiting.begun == [0, 1, "third"]


async def test_a_cancel_means_no_later_request_of_the_same_id(network: Network) -> None:
    waiting = Waiting(limits=Limits(max_calls=3))
    async with network.raw(waiting.server) as raw:
        assert await raw.result("rpc.ping", id="again") == "pong"
        raw.send(*[request("wait", n, id=n) for n in range(3)])
        await until(lambda: len(waiting.begun) == 3)
        raw.call("wait", "waits", id="waits")
        await until(lambda: network.served[0].queue)
        raw.cancel("again")  # late: that call has its answer
        await until(lambda: network.served[0].queue.cancels)
        raw.call("wait", "again", id="again")
        await until(lambda: network.served[0].queue.count == 2)
        waiting.go.set()
        assert sorted([str(await raw.result()) for _ in range(5)]) == ["0", "1", "2", "again", "waits"]


# -- threads --------------------------------------------------------------------------------------------------------


async def test_a_call_that_waits_for_a_thread_is_never_run(network: Network) -> None:
    waiting = Waiting(threads=1)
    async with network.raw(waiting.server) as raw:
        raw.call("wait_in_thread", "first", id=1)
        await until(lambda: waiting.begun == ["first"])
        raw.call("wait_in_thread", "second", id=2)
        raw.call("wait_in_thread", "third", id=3)
        raw.cancel(2)
        assert (await raw.reply())["id"] == 2
        waiting.thread_go.set()
        assert [await raw.result(), await raw.result()] == ["first", "third"]
        assert waiting.begun == ["first", "third"]


async def test_a_thread_learns_it_from_its_context(network: Network, waiting: Waiting) -> None:
    caught: list[BaseException] = []

    @waiting.server(offload="thread")
    def work(ctx: Context) -> None:
        waiting.begun.append("work")
        while not ctx.cancelled:
            waiting.thread_go.wait(0.001)
        try:
            ctx.check()
        except CallCancelled as error:
            caught.append(error)
        ctx.progress("nobody is told of it")

    async with network.raw(waiting.server) as raw:
        raw.call("work")
        await until(lambda: waiting.begun)
        raw.cancel(1)
        assert await raw.code() == -32800
        await until(lambda: caught)
        await raw.silence()


async def test_a_thread_that_waits_for_the_peer_is_woken(network: Network) -> None:
    server = Server()
    caught: list[type[BaseException]] = []

    @server(offload="thread")
    def ask(ctx: Context) -> None:
        try:
            ctx.peer.confirm()
        except BaseException as error:
            caught.append(type(error))
            assert ctx.cancelled
            ctx.peer.tidy_up()  # the cancel was heard: what is to be cleaned up may wait again
            caught.append(type(None))
            raise

    async with network.raw(server) as raw:
        raw.call("ask")
        asked = await raw.receive()
        raw.cancel(1)
        messages = await raw.receive_many(3)
        told = [each for each in messages if each.get("method") == "$/cancelRequest"]
        assert [each["params"] for each in told] == [{"id": asked["id"]}]
        assert [each["error"]["code"] for each in messages if "error" in each] == [-32800]
        (tidying,) = [each for each in messages if each.get("method") == "tidy_up"]
        raw.answer(tidying)
        await until(lambda: len(caught) == 2)
        assert caught == [CancelledError, type(None)]


async def test_a_thread_that_waits_for_the_peer_after_the_cancel(network: Network) -> None:
    server = Server()
    go = threading.Event()
    caught: list[str] = []

    @server(offload="thread")
    def ask(ctx: Context) -> None:
        caught.append("begun")
        assert go.wait(20)
        try:
            ctx.peer.confirm()
        except CancelledError:
            caught.append("cancelled")

    async with network.raw(server) as raw:
        raw.call("ask")
        await until(lambda: caught)
        raw.cancel(1)
        assert await raw.code() == -32800
        go.set()
        await until(lambda: caught == ["begun", "cancelled"])


# -- what a handler does with it ------------------------------------------------------------------------------------


async def test_finally_runs_whole_and_no_second_cancel_disturbs_it(network: Network) -> None:
    server = Server()
    steps: list[str] = []
    go = asyncio.Event()

    @server
    async def work(ctx: Context) -> None:
        steps.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("cleaning up")
            await go.wait()
            await asyncio.sleep(0)
            steps.append(await ctx.peer.tidy_up())

    async with network.raw(server) as raw:
        raw.call("work")
        await until(lambda: steps)
        raw.cancel(1)
        await until(lambda: len(steps) == 2)
        raw.cancel(1)
        raw.cancel(1)
        await raw.silence()
        go.set()
        asked = await raw.receive()
        assert asked["method"] == "tidy_up"
        raw.cancel(1)
        await raw.silence()
        raw.answer(asked, "tidy")
        assert await raw.code() == -32800
        assert steps == ["begun", "cleaning up", "tidy"]


async def test_finally_runs_whole_when_the_connection_is_lost(network: Network) -> None:
    server = Server()
    steps: list[str] = []
    go = asyncio.Event()

    @server
    async def work() -> None:
        steps.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            steps.append("cleaning up")
            await go.wait()
            steps.append("clean")

    async with network.raw(server) as raw:
        raw.call("work")
        await until(lambda: steps)
        raw.cancel(1)
        await until(lambda: len(steps) == 2)
        await network.lose(raw)
        go.set()
        await until(lambda: steps == ["begun", "cleaning up", "clean"])


async def test_a_handler_may_make_something_of_it(network: Network) -> None:
    server = Server()
    begun: list[str] = []

    async def swallow() -> str:
        begun.append("swallow")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "as far as I came"
        raise AssertionError

    async def refuse() -> str:
        begun.append("refuse")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RpcError(5, "not now", "half done") from None
        raise AssertionError

    server.add(swallow)
    server.add(refuse)
    async with network.raw(server) as raw:
        raw.send(request("swallow", id=1), request("refuse", id=2))
        await until(lambda: len(begun) == 2)
        raw.cancel(1)
        assert await raw.reply() == {"jsonrpc": "2.0", "id": 1, "result": "as far as I came"}
        raw.cancel(2)
        error = {"code": 5, "message": "not now", "data": "half done"}
        assert await raw.reply() == {"jsonrpc": "2.0", "id": 2, "error": error}


async def test_a_handler_that_cancels_itself(network: Network) -> None:
    server = Server()

    @server
    async def odd() -> None:
        raise asyncio.CancelledError

    async with network.raw(server) as raw:
        assert await raw.code("odd") == -32800
        raw.send([request("odd", id=1), request("rpc.ping", id=2)])
        assert [each.get("result") for each in await raw.receive()] == [None, "pong"]


# -- it goes on to what was called in turn --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_it_goes_on_to_the_calls_back(network: Network, kind: str) -> None:
    server = Server()

    @server(name="async")
    async def ask(ctx: Context) -> Any:
        return await asyncio.gather(ctx.peer.one(), ctx.peer.two())

    @server(name="thread", offload="thread")
    def ask_in_thread(ctx: Context) -> Any:
        return [*ctx.peer.stream.one()]

    async with network.raw(server) as raw:
        raw.call(kind)
        asked = await raw.receive_many(2 if kind == "async" else 1)
        raw.cancel(1)
        messages = await raw.receive_many(len(asked) + 1)
        told = {each["params"]["id"] for each in messages if each.get("method") == "$/cancelRequest"}
        assert told == {each["id"] for each in asked}
        assert [each["error"]["code"] for each in messages if "error" in each] == [-32800]


@pytest.mark.lasting
async def test_it_goes_down_twenty_levels(network: Network) -> None:
    server = Server()
    cancelled: list[int] = []
    deepest: list[int] = []

    def add_to(end: Any) -> None:
        @end
        async def down(n: int, ctx: Context) -> None:
            deepest.append(n)
            try:
                await (ctx.peer.down(n - 1) if n else asyncio.Event().wait())
            except asyncio.CancelledError:
                cancelled.append(n)
                raise

    add_to(server)
    async with network.client(server) as client:
        add_to(client)
        task = client.submit.down(20)
        await until(lambda: deepest[-1:] == [0])
        task.cancel()
        await until(lambda: sorted(cancelled) == list(range(21)))


async def test_it_goes_on_to_calls_of_other_servers(network: Network, waiting: Waiting) -> None:
    front = Server()
    async with memory_client(waiting.server) as behind:

        @front
        async def ask() -> Any:
            return await behind.wait("behind")

        async with network.client(front) as client:
            task = client.submit.ask()
            await until(lambda: waiting.begun == ["behind"])
            task.cancel()
            await until(lambda: waiting.cancelled == ["behind"])


# -- lost connections -----------------------------------------------------------------------------------------------


async def test_a_lost_connection_cancels_what_ran_for_it(network: Network, waiting: Waiting) -> None:
    async with network.serve(waiting.server) as endpoint:
        lost, other = await endpoint.raw(), await endpoint.raw()
        other.call("wait", "other")
        for n, method in enumerate(["wait", "wait_in_order", "items", "wait_in_thread", "consume"]):
            lost.call(method, *[[]] * (method == "consume"), method, id=n)
        await until(lambda: len(waiting.begun) == 6)
        await network.lose(lost)
        await until(lambda: not network.served[0].running.handlers)
        waiting.thread_go.set()
        await until(lambda: len(waiting.cancelled) == 5)
        await other.silence()
        waiting.go.set()
        assert await other.result() == "other"


async def test_a_lost_connection_cancels_the_members_of_batches(network: Network, waiting: Waiting) -> None:
    async with network.raw(waiting.server) as raw:
        batch = [request("wait", "a", id=1), request("wait_detached", "b", id=2), request("wait", "c", id=3)]
        del batch[2]["id"]
        raw.send(batch)
        await until(lambda: len(waiting.begun) == 3)
        await network.lose(raw)
        await until(lambda: waiting.cancelled == ["a"])
        waiting.go.set()
        await until(lambda: sorted(waiting.ended) == ["b", "c"])


async def test_what_goes_on_without_its_caller(network: Network, waiting: Waiting) -> None:
    async with network.raw(waiting.server) as raw:
        raw.send(request("wait_detached", "detached"), {"jsonrpc": "2.0", "method": "wait", "params": ["notified"]})
        await until(lambda: len(waiting.begun) == 2)
        await network.lose(raw)
        waiting.go.set()
        await until(lambda: sorted(waiting.ended) == ["detached", "notified"])
        assert not waiting.cancelled


async def test_what_waited_for_a_thread_is_not_run_for_a_lost_connection(network: Network) -> None:
    waiting = Waiting(threads=1)
    async with network.serve(waiting.server) as endpoint:
        raw = await endpoint.raw()
        raw.send(*[request("wait_in_thread", n, id=n) for n in range(5)])
        await until(lambda: waiting.begun == [0])
        await network.lose(raw)
        await until(lambda: not network.served[0].running.handlers)
        waiting.thread_go.set()
        other = await endpoint.raw()
        assert await other.result("wait_in_thread", "other") == "other"
        assert waiting.begun == [0, "other"]


async def test_what_waited_unread_is_not_begun_for_a_lost_connection(network: Network) -> None:
    waiting = Waiting(limits=Limits(max_calls=1))
    async with network.raw(waiting.server) as raw:
        raw.send(*[request("wait", n, id=n) for n in range(5)])
        await until(lambda: waiting.begun == [0])
        await network.lose(raw)
        await until(lambda: waiting.cancelled == [0])
        waiting.go.set()
        assert waiting.begun == [0]


@pytest.mark.half_close
async def test_a_peer_that_half_closed_and_vanished_is_found(network: Network, waiting: Waiting) -> None:
    """It said its last word properly, so nothing tells that it has gone since; a blank that is written now and then
    does."""
    async with network.raw(waiting.server) as raw:
        raw.call("wait", "it")
        raw.end()
        await until(lambda: waiting.begun and network.served[0].is_draining)
        stream: Any = network.served[0].channel
        raw.close()

        def found() -> bool:
            stream.probe()
            return waiting.cancelled == ["it"]

        await until(found)
        await until(lambda: network.served[0].channel is None)


@pytest.mark.half_close
async def test_a_peer_that_half_closed_and_listens_has_its_answer(network: Network, waiting: Waiting) -> None:
    async with network.raw(waiting.server) as raw:
        raw.call("wait", "it")
        raw.end()
        await until(lambda: waiting.begun and network.served[0].is_draining)
        stream: Any = network.served[0].channel
        for _ in range(10):
            stream.probe()
            await asyncio.sleep(0)
        waiting.go.set()
        assert await raw.result() == "it"
        assert await raw.receive() is None


# -- a server that stops --------------------------------------------------------------------------------------------


@pytest.mark.one_peer
@pytest.mark.lasting
async def test_drain_waits_for_calls_back(network: Network) -> None:
    server = Server()

    @server
    async def ask(ctx: Context) -> Any:
        return [await ctx.peer.one(), await ctx.peer.two()]

    async with StoppableServer(network, server) as stopping:
        raw = await stopping.endpoint.raw()
        raw.call("ask")
        asked = await raw.receive()
        stopping.stop()
        await until(lambda: network.served[0].is_draining)
        raw.call("ask", id=2)  # not taken any more
        raw.answer(asked, 1)
        asked = await raw.receive()
        assert asked["method"] == "two"
        raw.answer(asked, 2)
        assert await raw.reply() == {"jsonrpc": "2.0", "id": 1, "result": [1, 2]}
        assert await raw.receive() is None


@pytest.mark.lasting
async def test_cancels_are_heeded_while_draining(network: Network) -> None:
    server = Server()

    @server
    async def ask(ctx: Context) -> None:
        await ctx.peer.one()

    async with StoppableServer(network, server) as stopping:
        raw = await stopping.endpoint.raw()
        raw.call("ask")
        asked = await raw.receive()
        stopping.stop()
        await until(lambda: network.served[0].is_draining)
        raw.cancel(1)
        messages = await raw.receive_many(2)
        (told,) = [each for each in messages if "method" in each]
        assert (told["method"], told["params"]) == ("$/cancelRequest", {"id": asked["id"]})
        assert await raw.receive() is None


@pytest.mark.fake_time
async def test_what_does_not_end_in_time_is_cancelled(network: Network, fake_time: FakeTimeLoop) -> None:
    waiting = Waiting(drain_timeout=30)
    async with StoppableServer(network, waiting.server) as stopping:
        client = stopping.endpoint.client(timeout=None)
        task = client.submit.wait("it")
        await until(lambda: waiting.begun)
        stopping.stop()
        with pytest.raises(ConnectionLost):
            await task
        assert 30 <= fake_time.time() < 31
        await until(lambda: waiting.cancelled == ["it"])


@pytest.mark.lasting
async def test_a_client_that_closes_cancels_both_ways(network: Network, waiting: Waiting) -> None:
    """What it asked for is cancelled, and what it was doing for the server."""
    cancelled: list[str] = []

    @waiting.server
    async def ask(ctx: Context) -> None:
        await ctx.peer.work()

    async with network.serve(waiting.server) as endpoint:
        client: AsyncClient = endpoint.client()

        @client
        async def work() -> None:
            waiting.begun.append("work")
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append("work")

        tasks = [client.submit.ask(), client.submit.wait("it")]
        await until(lambda: len(waiting.begun) == 2)
        await client.close()
        for task in tasks:
            with pytest.raises(ConnectionLost, match="closed"):
                await task
        await until(lambda: waiting.cancelled == ["it"])
        assert cancelled == ["work"]
