"""Both clients at a hub: their names and methods, both again after a lost connection, and `run` until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpcstream import (
    AsyncClient,
    Backoff,
    CallTimeout,
    Client,
    ConnectFailed,
    ConnectionLost,
    Hub,
    InvalidParams,
    Limits,
    MethodNotFound,
    Retry,
    Server,
)
from rpcstream.errors import EncodeError, InternalError, ProviderGone
from rpcstream.testing import connections_of, drop_connections, serve_in_thread

from ..kit import until, until_in_thread
from .conftest import Scripted, Traced, answering

AT_ONCE = Backoff(first=0.001, longest=0.01)
LASTING: Any = {"reconnect": AT_ONCE, "retry": Retry(times=20, repeats="all")}

Face = Callable[..., Any]


@pytest.fixture
async def hub() -> Hub:
    return Hub(drain_timeout=0.2)


@pytest.fixture
async def address(hub: Hub) -> AsyncIterator[str]:
    async with hub.listening(port=0) as address:
        yield address


@pytest.fixture
async def caller(address: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(address, wait_for=20, retry=Retry(times=20, repeats="all")) as caller:
        yield caller


def offers(client: Any, name: str = "add", **options: Any) -> None:
    def add(a: int, b: int = 2) -> int:
        """Adds.

        Two numbers.
        """
        return a + b

    client(name=name, **options)(add)


async def is_taken(address: str, name: str) -> bool:
    """Whether a client of this name is registered."""
    async with AsyncClient(address, name=name) as other:
        try:
            await other.call("rpc.ping")
        except ConnectFailed:
            return True
        return False


async def test_offering_withdrawing_and_telling_others(address: str, face: Face, caller: AsyncClient) -> None:
    told: list[Any] = []
    async with face(address, name="gpu-1") as gpu:
        assert gpu.registered_name == "gpu-1"
        offers(gpu)
        offers(gpu, "vision.one", shared=True, idempotent=True)
        gpu(told.append, name="reload")
        assert await gpu.offer() == ["add", "reload", "vision.one"]
        assert await caller.add(1, 5) == await caller.call("gpu-1.add", a=1, b=5) == 6
        assert [item async for item in caller.stream_request("gpu-1.add", [3])] == [5]
        assert await gpu.call("gpu-1.vision.one", 2) == 4, "its own, by way of the hub"
        methods = {each["name"]: each for each in (await caller.discover())["methods"]}
        add, described = methods["add"], methods["gpu-1.vision.one"]
        assert (add["summary"], add["description"]) == ("Adds.", "Two numbers.")
        assert [parameter["name"] for parameter in add["params"]] == ["a", "b"]
        assert (described["x-idempotent"], "x-idempotent" in add) == (True, False)
        assert await caller.notify_client("gpu-1", "reload", "model") is True
        await until(lambda: told == ["model"])
        with pytest.raises(InvalidParams, match="no client has the name 'gpu-2'"):
            await gpu.notify_client("gpu-2", "reload")
        assert await gpu.publish("sensors.a", np.arange(3), retain=True) == 0
        async with caller.subscribe("sensors.*") as sensors:
            np.testing.assert_array_equal(await anext(sensors), np.arange(3))
            assert await gpu.publish("sensors.b", 1.5, timeout=5.0) == 1
            assert await anext(sensors) == 1.5
        assert await gpu.withdraw("vision.one", "unknown") == ["vision.one"]
        assert sorted(await gpu.withdraw()) == ["add", "reload"]
        with pytest.raises(MethodNotFound):
            await caller.call("add", 1, wait_for=None)
        assert not await is_taken(address, "gpu-1")
    async with face(address) as nobody:
        assert nobody.registered_name is None
        assert await nobody.withdraw("add") == [], "nothing was offered"
        assert await nobody.offer() == []
        assert nobody.registered_name is not None


async def test_what_is_marked_later_is_offered_by_another_offer(address: str, face: Face, caller: AsyncClient) -> None:
    async with face(address) as client, AsyncClient(address) as other:
        offers(client, shared=True)
        assert await client.offer() == ["add"]
        name = client.registered_name
        assert await caller.call(f"{name}.add", 1) == 3, "the hub made a name"
        offers(client, "one")
        with pytest.raises(MethodNotFound):
            await caller.call("one", 1, wait_for=None)
        assert await client.offer() == ["add", "one"]
        assert client.registered_name == name
        offers(other, shared=True)
        assert await other.offer() == ["add"], "shared also after the second offer"


async def test_what_is_said_first_comes_before_the_name_and_subscriptions_behind_it(hub: Hub, address: str) -> None:
    traced = Traced()
    async with AsyncClient(address, name="gpu-1", trace=traced, token="secret", **LASTING) as client:
        client.on_connect(lambda server: server.call("rpc.stats"))
        async with client.subscribe("a"):
            traced.messages.clear()
            drop_connections(hub)
            assert await client.call("rpc.ping", wait_for=20) == "pong"
            words = ("rpc.authenticate", "rpc.stats", "rpc.register", "rpc.subscribe", "rpc.ping")
            said = [next(word for word in words if word.encode() in line) for line in traced.sent]
            assert said[-5:] == list(words)  # a ping before them went to the connection that was lost


async def test_a_name_or_a_method_that_is_taken(address: str, face: Face) -> None:
    async with AsyncClient(address, name="gpu-1") as first, face(address, name="gpu-1") as second:
        offers(first)
        await first.offer()
        for attempt in (lambda: second.call("rpc.ping"), second.offer):
            with pytest.raises(ConnectFailed, match=r"could not be registered as 'gpu-1': .*'gpu-1' is taken"):
                await attempt()
        async with face(address) as third:
            offers(third)
            with pytest.raises(InvalidParams, match="'add' is offered by 'gpu-1', and not shared by both"):
                await third.offer()
            assert await third.add(1) == 3, "the refused offer changes nothing"
            await first.close()
            assert await third.offer() == ["add"]
        assert await second.call("rpc.ping") == "pong"


async def test_with_reconnect_a_name_that_is_taken_is_told_at_once(
    address: str, face: Face, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, however often it is tried again; and the client has it as soon as it is free."""
    traced = Traced()
    async with AsyncClient(address, name="gpu-1") as first:
        await first.call("rpc.ping")
        async with face(address, name="gpu-1", reconnect=AT_ONCE, trace=traced) as client:
            with pytest.raises(ConnectFailed, match="'gpu-1' is taken"):
                await client.call("rpc.ping")
            await until(lambda: traced.asked("rpc.register") > 3)
            warnings = [record.getMessage() for record in caplog.records if record.name == "rpcstream.client"]
            assert [("'gpu-1' is taken" in text, "attempt is made in" in text) for text in warnings] == [(True, True)]
            await first.close()
            await until(lambda: client.state == "connected")


async def test_a_server_that_is_no_hub(face: Face) -> None:
    async with Server().listening(port=0) as address:
        async with face(address, name="gpu-1") as named:
            with pytest.raises(ConnectFailed, match="is not a hub"):
                await named.call("rpc.ping")
        async with face(address) as client:
            with pytest.raises(MethodNotFound, match=r"is not a hub.*'rpc.register' at 127"):
                await client.offer()
            with pytest.raises(MethodNotFound):
                await client.publish("a", 1)
            assert await client.call("rpc.ping") == "pong"


@pytest.mark.parametrize(
    "answer",
    [True, [], "ok", {}, {"name": 1, "key": "k", "methods": []}, {"name": "a", "key": "very secret", "methods": [1]}],
)
async def test_answers_that_are_none(scripted: Scripted, face: Face, answer: Any) -> None:
    async with face(scripted(answering(answer))) as client:
        with pytest.raises(InternalError, match=r"reply to rpc.register cannot be read.*at 127") as caught:
            await client.offer()
        assert "very secret" not in str(caught.value)
        assert client.registered_name is None


async def test_a_hub_that_does_not_answer(scripted: Scripted, face: Face) -> None:
    address = scripted(lambda line: [*iter(line.read, None)])
    async with face(address, name="gpu-1", connect_timeout=1.0) as named:
        with pytest.raises(ConnectFailed, match=r"could not connect within 1 s"):
            await named.call("work")
    async with face(address, connect_timeout=1.0) as client:
        with pytest.raises(CallTimeout, match=r"rpc\.register"):
            await client.offer()


async def test_offers_whose_connection_is_lost(scripted: Scripted, face: Face) -> None:
    heard: list[Any] = []

    def script(line: Any) -> None:
        while (call := line.read()) is not None:
            heard.append(call["params"])
            if len(heard) <= 3:
                return
            line.answer(call, {"name": "gpu-1", "key": "k", "methods": []})

    address = scripted(script)
    async with face(address, connect_timeout=None) as client:
        with pytest.raises(ConnectionLost, match=r"rpc\.register"):
            await client.offer()
        for attempt in (lambda: client.publish("a", iter([1])), lambda: client.notify_client("a", "b", object())):
            with pytest.raises(EncodeError):
                await attempt()
    async with face(address, reconnect=AT_ONCE) as client:
        assert await client.offer() == []
    assert len(heard) == 4


@pytest.mark.parametrize("name", ["gpu-1", None])
async def test_again_when_the_connection_was_lost(
    hub: Hub, address: str, face: Face, caller: AsyncClient, name: str | None
) -> None:
    async with face(address, name=name, **LASTING) as client:
        for each in ("add", "one", "two"):
            offers(client, each)
        await client.offer()
        await client.withdraw("one")
        before = client.registered_name
        for _ in range(2):
            drop_connections(hub)
            assert await caller.call(f"{before}.add", 1) == await caller.two(1) == 3
        with pytest.raises(MethodNotFound):
            await caller.call("one", 1, wait_for=None)
        assert client.registered_name == before
        await client.withdraw()
        drop_connections(hub)
        await client.call("rpc.ping", wait_for=20)
        assert not await is_taken(address, f"{before}"), "not even the name is registered again"


async def test_one_connection_of_the_pool_has_the_name(hub: Hub, address: str) -> None:
    """When it is lost, the next one takes over."""
    traced = Traced()
    async with AsyncClient(address, name="gpu-1", pool=2, trace=traced, reconnect=True) as client:
        offers(client)
        assert await asyncio.gather(*(client.offer() for _ in range(5))) == [["add"]] * 5
        await asyncio.gather(*(client.call("gpu-1.add", 1) for _ in range(4)))
        named = next(each["address"] for each in await client.call("rpc.clients") if each["name"] == "gpu-1")
        asked = traced.asked("rpc.register")
        next(each for each in connections_of(hub) if each.address == named).abort("dropped")
        await until(lambda: traced.asked("rpc.register") == asked + 1)
        assert await client.call("gpu-1.add", 1, wait_for=20) == 3


@pytest.mark.parametrize("taken", ["method", "name", "name of the hub"])
async def test_what_others_have_meanwhile_is_left_out(
    face: Face, taken: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A hub that was started anew, and clients that came first: it is at another place until they are there."""
    here, beside = tmp_path / "here", tmp_path / "beside"
    async with face(f"unix://{here}", name=None if "hub" in taken else "gpu-1", reconnect=AT_ONCE) as client:
        async with Hub(drain_timeout=0.2).listening(unix=here):
            offers(client)
            offers(client, "one")
            await client.offer()
            name = client.registered_name
        async with (
            Hub(drain_timeout=0.2).listening(unix=beside) as address,
            AsyncClient(address, name="other" if taken == "method" else name) as other,
        ):
            offers(other, "add" if taken == "method" else "other")
            await other.offer()
            here.symlink_to(beside)
            await until(lambda: client.state == "connected")
            if taken == "name":
                assert await client.call("rpc.ping") == "pong"
                assert "'gpu-1' is no longer registered" in caplog.text
            else:
                assert await client.one(1) == 3
                assert client.registered_name is not None
                assert (client.registered_name == name) is (taken == "method")
                assert ("'add' is no longer offered at" in caplog.text) is (taken == "method")


async def test_a_name_is_taken_over_from_a_connection_that_the_hub_still_has(hub: Hub, address: str) -> None:
    """The hub stands still for a client, which gives the connection up; with its key it has its name again."""
    async with AsyncClient(address, name="gpu-1", keepalive=0.1, reconnect=AT_ONCE) as client:
        offers(client)
        await client.offer()
        (first,) = connections_of(hub)
        first.pause()
        await until(lambda: len(connections_of(hub)) == 1 and not first.is_open)
        assert await client.call("gpu-1.add", 1, wait_for=20) == 3


@pytest.mark.parametrize("reconnect", [False, True])
async def test_a_program_that_only_offers_waits(hub: Hub, address: str, face: Face, reconnect: bool) -> None:
    """For the end of its connection, or with `reconnect` for that of the client."""
    async with face(address, name="gpu-1", **(LASTING if reconnect else {})) as client:
        if not reconnect:
            with pytest.raises(ConnectionLost, match="there is no connection"):
                await client.wait_closed()
        offers(client)
        await client.offer()
        waiting = [asyncio.ensure_future(client.wait_closed()) for _ in range(2)]
        await client.call("rpc.ping")
        drop_connections(hub)
        if not reconnect:
            for each in waiting:
                with pytest.raises(ConnectionLost, match="the peer closed it"):
                    await each
            assert not await is_taken(address, "gpu-1")
            assert await client.call("gpu-1.add", 1) == 3, "the next call registers again"
            waiting = [asyncio.ensure_future(client.wait_closed())]
        await client.call("rpc.ping", wait_for=20)
        assert not any(each.done() for each in waiting)
    for each in waiting:
        await each
    await client.wait_closed()


needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="signals")


class Work:
    """A method that begins, and ends when it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()

    async def __call__(self, number: int) -> int:
        self.begun += 1
        await self.go_on.wait()
        return number


async def provider(address: str, name: str, work: Any, **options: Any) -> AsyncClient:
    client = AsyncClient(address, name=name, **options)
    client(name="work", shared=True)(work)
    await client.offer()
    return client


def kill(number: int = signal.SIGTERM) -> None:
    """Send a signal to this process, which `run` handles by now."""
    assert callable(signal.getsignal(number))
    os.kill(os.getpid(), number)


@needs_signals
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_what_has_begun_is_finished_and_no_more_is_begun(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    async with Hub().listening(port=0) as address, AsyncClient(address) as caller:
        work, other = Work(), Work()
        first = await provider(address, "first", work, reconnect=True)
        running = asyncio.ensure_future(first.run())
        begun = asyncio.ensure_future(caller.call("first.work", 1))
        await until(lambda: work.begun)
        second = await provider(address, "second", other)
        kill(number)
        await until(lambda: first.registered_name is None or first.state == "idle")
        later = [asyncio.ensure_future(caller.call("work", each)) for each in range(2, 6)]
        await until(lambda: other.begun == 4)
        with pytest.raises(MethodNotFound):
            await caller.call("first.work", 6)
        assert not running.done()
        work.go_on.set()
        other.go_on.set()
        assert await begun == 1
        await running
        assert await asyncio.gather(*later) == [2, 3, 4, 5]
        assert (work.begun, first.state) == (1, "closed")
        await second.close()
    assert signal.getsignal(number) is before


@needs_signals
@pytest.mark.parametrize("how", ["run", "run, second signal", "close"])
async def test_what_waits_in_line_goes_to_another_provider(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """What has begun, and is not finished in time, ends with the connection, and is named."""
    async with Hub().listening(port=0) as address, AsyncClient(address) as caller:
        work, other = Work(), Work()
        first = await provider(address, "first", work, limits=Limits(max_calls=1))

        async def run() -> None:
            if how == "run":
                return await first.run(drain_timeout=0.05)
            with pytest.raises(SystemExit) as caught:
                await first.run(drain_timeout=1000)
            assert caught.value.code == 128 + signal.SIGTERM

        running = asyncio.ensure_future(run()) if how != "close" else None
        calls = [asyncio.ensure_future(caller.call("work", number)) for number in range(3)]
        await until(lambda: work.begun)
        second = await provider(address, "second", other)
        other.go_on.set()
        caplog.set_level(logging.WARNING, "rpcstream.client")
        if running is not None:
            kill()
            if how != "run":
                await until(lambda: first.registered_name is None or first.state == "idle")
                kill()
            await running
        await first.close()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(outcomes[0], ProviderGone)
        assert outcomes[0].executed is None
        assert outcomes[1:] == [1, 2]
        assert (work.begun, other.begun) == (1, 2)
        said = "calls had not finished in time; methods at work: 'work'"
        assert (said in caplog.text) is (how == "run")
        await second.close()


@needs_signals
@pytest.mark.parametrize("signals", [1, 2])
def test_signals_end_the_sync_one(signals: int) -> None:
    """It is the main thread that waits; functions run in others. A second signal ends it at once."""
    begun, go_on = threading.Event(), threading.Event()

    def work(number: int) -> int:
        begun.set()
        assert go_on.wait(20)
        return number

    with serve_in_thread(Hub()) as address, Client(address) as caller, ThreadPoolExecutor(1) as executor:
        client = Client(address)
        client(work)
        client.offer()
        calling = caller.submit("work", 1)

        def stop() -> None:
            assert begun.wait(20)
            until_in_thread(lambda: callable(signal.getsignal(signal.SIGTERM)))
            kill()
            until_in_thread(lambda: not caller.call("rpc.methods"))
            kill() if signals == 2 else go_on.set()

        stopping = executor.submit(stop)
        with pytest.raises(SystemExit) if signals == 2 else contextlib.nullcontext():
            client.run(drain_timeout=1000)
        stopping.result()
        go_on.set()
        assert isinstance(calling.exception(20), ProviderGone) if signals == 2 else calling.result(20) == 1
        client.close()
        with pytest.raises(RuntimeError, match="closed client"):
            client.run()


async def test_it_ends_when_the_client_is_closed_or_its_connection_is_lost() -> None:
    async with Server().listening(port=0) as address:
        async with AsyncClient(address) as client:
            await client.call("rpc.ping")
            running = asyncio.ensure_future(client.run())
            await asyncio.sleep(0)
            await client.close()
            await running
        lost = AsyncClient(address)
        await lost.call("rpc.ping")
        losing = asyncio.ensure_future(lost.run())
        await asyncio.sleep(0)
    with pytest.raises(ConnectionLost):
        await losing
    with pytest.raises(ValueError, match="drain_timeout"):
        await AsyncClient("127.0.0.1:1").run(drain_timeout=-1)
