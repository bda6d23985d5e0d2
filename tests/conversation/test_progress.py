"""Progress: in order, before the result, and without delaying other calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rpcstream import Context, Limits, Server
from rpcstream.errors import EncodeError, MessageTooLarge

from ..kit import LogLines, Network, RawPeer, notification, request, until

KINDS = ["async", "inline", "thread", "ordered", "items"]


class Working:
    """A server whose handlers tell how far they are."""

    def __init__(self, **options: Any) -> None:
        self.server = server = Server(**options)
        self.kept: list[Context] = []

        async def work(ctx: Context, n: int, pause: bool = True) -> str:
            self.kept.append(ctx)
            for step in range(n):
                ctx.progress(step)
                if pause:
                    await asyncio.sleep(0)
            return "done"

        def work_at_once(ctx: Context, n: int, pause: bool = False) -> str:
            self.kept.append(ctx)
            for step in range(n):
                ctx.progress(step)
            return "done"

        async def items(ctx: Context, n: int) -> AsyncIterator[int]:
            self.kept.append(ctx)
            for step in range(n):
                ctx.progress(step)
                yield step

        server.add(work, name="async")
        server.add(work_at_once, name="inline")
        server.add(work_at_once, name="thread", offload="thread")
        server.add(work, name="ordered", ordered=True)
        server.add(items)


@pytest.fixture
async def working() -> Working:
    return Working()


def said(value: Any, token: Any = 1) -> dict[str, Any]:
    return notification("$/progress", token=token, value=value)


async def heard(raw: RawPeer) -> tuple[list[Any], Any]:
    """The messages up to a reply, and that reply."""
    messages = []
    while "method" in (message := await raw.receive()):
        messages.append(message)
    return messages, message


@pytest.mark.parametrize("kind", KINDS)
async def test_in_order_and_before_the_result(network: Network, working: Working, kind: str) -> None:
    """Values that follow each other too fast may be left out; never the last one."""
    async with network.raw(working.server) as raw:
        for call_id in (1, "", 2**53):
            for n in (1, 100):
                raw.call(kind, n, id=call_id)
                messages, reply = await heard(raw)
                assert reply["id"] == call_id
                assert reply["result"] in ("done", list(range(n)))
                assert all(type(each["params"]["token"]) is type(call_id) for each in messages)
                assert {each["params"]["token"] for each in messages} == {call_id}
                values = [each["params"]["value"] for each in messages]
                assert values == sorted(set(values))
                assert values[-1] == n - 1
        raw.send([request(kind, 1, id="in a batch")])
        assert await raw.receive() == said(0, "in a batch")
        assert (await raw.receive())[0]["id"] == "in a batch"
        for ctx in working.kept[-1:]:  # after the result nothing is told
            ctx.progress("late")
            await asyncio.to_thread(ctx.progress, "late")
        await raw.silence()
        if kind in ("inline", "ordered"):  # what is said at once is one message
            raw.call(kind, 10_000, False)
            assert (await heard(raw))[0] == [said(9_999)]


async def test_values_that_cannot_be_told(network: Network) -> None:
    server = Server(limits=Limits(max_message_size=1000))

    @server
    async def work(ctx: Context) -> str:
        with pytest.raises(EncodeError):
            ctx.progress(object())
        with pytest.raises(MessageTooLarge):
            ctx.progress("x" * 2000)
        ctx.progress("fine")
        return "done"

    server.add(work, name="in_order", ordered=True)
    async with network.raw(server) as raw:
        for method in ("work", "in_order"):
            raw.call(method)
            messages, reply = await heard(raw)
            assert (messages, reply["result"]) == ([said("fine")], "done")


@pytest.mark.backpressure
async def test_a_peer_that_does_not_read_is_told_the_last_value(network: Network) -> None:
    """Whatever was said meanwhile is not kept for it."""
    server = Server(limits=Limits(write_buffer=10_000, write_timeout=None))
    go = asyncio.Event()
    steps: list[int] = []

    @server
    async def work(ctx: Context) -> str:
        for step in range(1_000):
            ctx.progress([step, "x" * 9000])
            steps.append(step)
            if not step % 10:
                await asyncio.sleep(0)
        await go.wait()
        return "done"

    async with network.raw(server) as raw:
        raw.transport.pause_reading()
        raw.call("work")
        await until(lambda: len(steps) == 1_000)
        stream: Any = network.served[0].channel
        assert stream.unread_size < 200_000
        raw.transport.resume_reading()
        go.set()
        messages, reply = await heard(raw)
        values = [each["params"]["value"][0] for each in messages]
        assert values == sorted(values)
        assert values[-1] == 999
        assert len(values) < 800
        assert reply["result"] == "done"


async def test_on_progress_of_a_stream_or_that_fails(network: Network, working: Working, errors: LogLines) -> None:
    def fails(value: Any) -> None:
        raise KeyError(value)

    async with network.client(working.server) as client:
        assert await client.inline(5, on_progress=fails) == "done"
        seen: list[int] = []
        assert [each async for each in client.stream.items(9, on_progress=seen.append)] == list(range(9))
        assert (seen, seen[-1]) == (sorted(seen), 8)
    errors.expect("on_progress of a call of 'inline' failed")


@pytest.mark.parametrize("broken", [{}, {"value": {"$type": "ndarray", "dtype": "<f4"}}])
async def test_progress_that_cannot_be_read(network: Network, broken: dict[str, Any], errors: LogLines) -> None:
    """It is dropped with a line in the log; the call goes on."""

    async def script(raw: RawPeer) -> None:
        asked = await raw.receive()
        raw.send(notification("$/progress", token=asked["id"], **broken), said("right", asked["id"]))
        raw.answer(asked, "done")

    async with network.scripted(script) as endpoint:
        client = endpoint.client()
        seen: list[Any] = []
        assert await client.work(on_progress=seen.append) == "done"
        assert seen == ["right"]
    errors.expect("on_progress of a call of 'work' failed")


async def test_done_total_and_a_message(network: Network) -> None:
    server = Server()

    @server
    async def work(ctx: Context) -> None:
        for parts in [(0.5,), (3, 10), (3, 10, "reading"), (3, None, "reading"), (0, 0, "")]:
            ctx.progress(*parts)
            await asyncio.sleep(0)

    seen: list[Any] = []
    async with network.client(server) as client:
        await client.work(on_progress=seen.append)
    assert seen == [
        0.5,
        {"done": 3, "total": 10},
        {"done": 3, "total": 10, "message": "reading"},
        {"done": 3, "message": "reading"},
        {"done": 0, "total": 0, "message": ""},
    ]
