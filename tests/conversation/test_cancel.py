"""Cancelling: by the caller, by a lost connection, by a server's stop; and cancels that are odd, late or early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from typing import Any

import pytest

from rpcstream import AsyncClient, CallTimeout, ConnectionLost, Context, Limits, RpcError, Server
from rpcstream.testing import FakeTimeLoop

from ..kit import Network, RawPeer, UsualServer, notification, request, until


class Waiting(UsualServer):
    """Handlers of every kind that wait as `wait` does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.thread_go = threading.Event()
        self.add(self.call_wait, name="wait_detached", detached=True)
        self.add(self.call_wait, name="wait_in_order", ordered=True)
        self.add(self.items)
        self.add(self.consume)
        self.add(self.wait_in_thread, offload="thread")

    async def items(self, token: Any = None) -> AsyncIterator[Any]:
        yield await self.call_wait(token)

    async def consume(self, values: AsyncIterator[Any], token: Any = None) -> Any:
        return [await self.call_wait(token), [value async for value in values]]

    def wait_in_thread(self, ctx: Context, token: Any = None) -> Any:
        self.begun.append(token)
        assert self.thread_go.wait(20)
        self.ended.append((token, "cancelled" if ctx.cancelled else "whole"))
        ctx.check()
        return token

    @property
    def cancelled(self) -> list[Any]:
        return [token for token, how in self.ended if how != "whole"]


@pytest.fixture
async def waiting() -> Waiting:
    return Waiting()


@pytest.mark.fake_time
async def test_a_clients_time_out_cancels_the_handler(
    network: Network, waiting: Waiting, fake_time: FakeTimeLoop
) -> None:
    """The time-out of the client itself is not told to the server: so it is the cancel that ends the handler."""
    async with network.client(waiting, timeout=5) as client:
        with pytest.raises(CallTimeout):
            await client.wait("it")
        assert fake_time.time() == 5
        await until(lambda: waiting.cancelled == ["it"])


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
        never_sent = client.submit.never_sent()
        await asyncio.sleep(0)
        never_sent.cancel()
        await asyncio.wait([never_sent])
        task = client.submit.first()
        await until(lambda: heard)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.second() == "fine"
        assert heard[0]["method"] == "first", "what was not sent is not cancelled either"
        assert (heard[1]["method"], heard[1]["params"]) == ("$/cancelRequest", {"id": heard[0]["id"]})
        assert await client.third() == "fine still"
        assert client.replies_dropped == 1


@pytest.mark.parametrize("method", ["wait", "wait_detached", "wait_in_order", "items", "wait_in_thread"])
async def test_cancel_and_its_answer(network: Network, waiting: Waiting, method: str) -> None:
    async with network.raw(waiting) as raw:
        for call_id in (7, "", -(2**63)):
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
            waiting.ended.clear()
        await raw.silence()


@pytest.mark.parametrize("method", ["wait", "wait_in_order", "items", "wait_in_thread", "consume"])
async def test_a_cancel_that_comes_with_its_request(network: Network, waiting: Waiting, method: str) -> None:
    params = [{"$type": "stream", "id": "s"}, "it"] if method == "consume" else ["it"]
    async with network.raw(waiting) as raw:
        for members in ({}, {"stream": 3}):
            raw.send(request(method, *params, **members), notification("$/cancelRequest", id=1))
            assert await raw.code() == -32800
        waiting.thread_go.set()
        waiting.release()
        if method == "consume":
            # The name of the stream is free again.
            raw.send(request(method, *params), notification("$/end", stream="s"))
            while "method" in (message := await raw.receive()):
                assert message["method"] == "$/credit"
            assert message["result"] == ["it", []]
        else:
            assert (await raw.reply(method, *params, id=2))["result"] in ("it", ["it"])


async def test_twice_late_early_and_elsewhere(network: Network, waiting: Waiting) -> None:
    async with network.serve(waiting) as endpoint:
        raw, other = await endpoint.raw(), await endpoint.raw()
        raw.cancel(1)  # too early: there is no such call yet
        raw.call("wait", "it", id=1)
        other.call("wait", "other", id=1)
        raw.send({"jsonrpc": "2.0", "method": "wait", "params": ["a notification"]})
        await until(lambda: len(waiting.begun) == 3)
        raw.cancel(None)
        await raw.silence()
        raw.send(*[notification("$/cancelRequest", id=1)] * 3)
        assert await raw.code() == -32800
        raw.send(*[notification("$/cancelRequest", id=1)] * 3)  # too late
        await raw.silence()
        assert waiting.cancelled == ["it"]
        waiting.release()
        assert await raw.result("wait", "again", id=1) == "again"
        raw.cancel(1)
        await raw.silence()
        assert await other.result() == "other"
        await until(lambda: ("a notification", "whole") in waiting.ended)


async def test_a_cancel_within_the_batch_itself(network: Network, waiting: Waiting) -> None:
    """It means a call that stands before it, and gets no answer of its own."""
    async with network.raw(waiting) as raw:
        raw.send([request("wait", "a", id=1), request("wait", "b", id=2), notification("$/cancelRequest", id=2)])
        await until(lambda: "a" in waiting.begun)
        await raw.silence()
        raw.cancel(1)
        first, second = await raw.receive()
        assert (first["id"], second["id"]) == (1, 2)
        assert first["error"]["code"] == second["error"]["code"] == -32800
        assert waiting.cancelled in (["a"], ["b", "a"])


async def test_members_of_a_batch_are_cancelled_one_by_one(network: Network, waiting: Waiting) -> None:
    waiting.thread_go.set()
    async with network.raw(waiting) as raw:
        methods = ["wait", "wait_in_order", "items", "wait", "rpc.ping"]
        raw.send([request(method, *[f"{n}"] * (n < 4), id=n) for n, method in enumerate(methods)])
        await until(lambda: len(waiting.begun) == 4)
        for call_id in (2, 0, 1, 1, 4):
            raw.cancel(call_id)
        await until(lambda: len(waiting.cancelled) == 3)
        await raw.silence()
        waiting.release()
        replies = [each.get("result", each.get("error", {}).get("code")) for each in await raw.receive()]
        assert replies == [-32800, -32800, -32800, "3", "pong"]


async def test_a_cancel_overtakes_requests_that_wait_unread(network: Network) -> None:
    waiting = Waiting(limits=Limits(max_calls=3))
    async with network.raw(waiting) as raw:
        raw.send(*[request("wait", n, id=n) for n in range(3)])
        await until(lambda: len(waiting.begun) == 3)
        raw.send(request("wait", "alone", id="alone"), [request("wait", "last", id="last")])
        await network.queued()
        for call_id in ("alone", "unknown", 0):
            raw.cancel(call_id)
        replies = await raw.receive_many(2)
        assert [(each["id"], each["error"]["code"]) for each in replies] == [("alone", -32800), (0, -32800)]
        await until(lambda: "last" in waiting.begun)
        waiting.release()
        replies = await raw.receive_many(3)
        found = [each for reply in replies for each in (reply if isinstance(reply, list) else [reply])]
        assert sorted(str(each.get("result")) for each in found) == ["1", "2", "last"]
        assert waiting.begun == [0, 1, 2, "last"]


async def test_a_cancel_means_no_later_request_of_the_same_id(network: Network) -> None:
    waiting = Waiting(limits=Limits(max_calls=3))
    async with network.raw(waiting) as raw:
        assert await raw.result("rpc.ping", id="again") == "pong"
        raw.send(*[request("wait", n, id=n) for n in range(3)])
        await until(lambda: len(waiting.begun) == 3)
        raw.call("wait", "waits", id="waits")
        await network.queued()
        raw.cancel("again")  # late: that call has its answer
        raw.call("wait", "again", id="again")
        await network.queued(2)
        waiting.release()
        assert sorted([str(await raw.result()) for _ in range(5)]) == ["0", "1", "2", "again", "waits"]


async def test_a_thread_that_waits_for_the_peer_is_woken(network: Network) -> None:
    """Once: what is to be cleaned up may wait again."""
    server = Server()
    caught: list[str] = []

    @server(offload="thread")
    def ask(ctx: Context) -> None:
        try:
            ctx.peer.confirm()
        except CancelledError:
            assert ctx.cancelled
            caught.append("cancelled")
            ctx.peer.tidy_up()
            caught.append("tidy")
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
        await until(lambda: caught == ["cancelled", "tidy"])


@pytest.mark.parametrize("is_lost", [False, True])
async def test_finally_runs_whole_and_no_second_cancel_disturbs_it(network: Network, is_lost: bool) -> None:
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
            steps.append("clean" if is_lost else await ctx.peer.tidy_up())

    async with network.raw(server) as raw:
        raw.call("work")
        await until(lambda: steps)
        raw.cancel(1)
        await until(lambda: len(steps) == 2)
        raw.cancel(1)
        await raw.silence()
        if is_lost:
            await network.lose(raw)
        go.set()
        if not is_lost:
            asked = await raw.receive()
            assert asked["method"] == "tidy_up"
            raw.cancel(1)
            await raw.silence()
            raw.answer(asked, "clean")
            assert await raw.code() == -32800
        await until(lambda: steps == ["begun", "cleaning up", "clean"])


async def test_a_handler_may_make_something_of_it(network: Network) -> None:
    server = Server()
    begun: list[str] = []

    @server
    async def ends(how: str) -> str:
        begun.append(how)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if how == "refuses":
                raise RpcError(5, "not now", "half done") from None
        return "as far as I came"

    async with network.raw(server) as raw:
        raw.send(request("ends", "returns", id=1), request("ends", "refuses", id=2))
        await until(lambda: len(begun) == 2)
        raw.cancel(1)
        assert await raw.reply() == {"jsonrpc": "2.0", "id": 1, "result": "as far as I came"}
        raw.cancel(2)
        error = {"code": 5, "message": "not now", "data": "half done"}
        assert await raw.reply() == {"jsonrpc": "2.0", "id": 2, "error": error}


async def test_it_goes_on_to_the_calls_back(network: Network) -> None:
    server = Server()

    @server
    async def ask(ctx: Context) -> Any:
        return await asyncio.gather(ctx.peer.one(), anext(ctx.peer.stream.two()))

    async with network.raw(server) as raw:
        raw.call("ask")
        asked = await raw.receive_many(2)
        raw.cancel(1)
        messages = await raw.receive_many(3)
        told = {each["params"]["id"] for each in messages if each.get("method") == "$/cancelRequest"}
        assert told == {each["id"] for each in asked}
        assert [each["error"]["code"] for each in messages if "error" in each] == [-32800]


async def test_a_lost_connection_cancels_what_ran_for_it(network: Network, waiting: Waiting) -> None:
    """But for what is detached, and notifications."""
    async with network.serve(waiting) as endpoint:
        lost, other = await endpoint.raw(), await endpoint.raw()
        other.call("wait", "other")
        kinds = ["wait", "wait_in_order", "items", "wait_in_thread", "consume"]
        for n, method in enumerate(kinds):
            lost.call(method, *[[]] * (method == "consume"), method, id=n)
        told = {"jsonrpc": "2.0", "method": "wait", "params": ["told"]}
        lost.send([request("wait", "member", id=7), request("wait_detached", "detached", id=8), told])
        await until(lambda: len(waiting.begun) == 9)
        await network.lose(lost)
        await until(lambda: len(waiting.cancelled) == 5)
        waiting.thread_go.set()
        await until(lambda: sorted(waiting.cancelled) == sorted([*kinds, "member"]))
        await other.silence()
        waiting.release()
        assert await other.result() == "other"
        await until(lambda: {("detached", "whole"), ("told", "whole")} <= set(waiting.ended))


@pytest.mark.half_close
@pytest.mark.parametrize("vanishes", [False, True])
async def test_a_peer_that_half_closed_and_listens_or_has_vanished(
    network: Network, waiting: Waiting, vanishes: bool
) -> None:
    """It said its last word properly, so nothing tells that it has gone since; a blank that is written now and then
    does."""
    async with network.raw(waiting) as raw:
        raw.call("wait", "it")
        raw.end()
        await until(lambda: waiting.begun)
        await network.draining()
        stream: Any = network.served[0].channel
        if vanishes:
            await network.lose(raw)
            await until(lambda: waiting.cancelled == ["it"])
        else:
            for _ in range(10):
                stream.probe()
                await asyncio.sleep(0)
            waiting.release()
            assert await raw.result() == "it"
            assert await raw.receive() is None


@pytest.mark.lasting
async def test_a_client_that_closes_cancels_both_ways(network: Network, waiting: Waiting) -> None:
    """What it asked for is cancelled, and what it was doing for the server."""
    cancelled: list[str] = []
    async with network.serve(waiting) as endpoint:
        client: AsyncClient = endpoint.client()

        @client
        async def work() -> None:
            waiting.begun.append("work")
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append("work")

        tasks = [client.submit.ask("work"), client.submit.wait("it")]
        await until(lambda: len(waiting.begun) == 2)
        await client.close()
        for task in tasks:
            with pytest.raises(ConnectionLost, match="closed"):
                await task
        await until(lambda: waiting.cancelled == ["it"])
        assert cancelled == ["work"]
