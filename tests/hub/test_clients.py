"""Our own clients at a hub: offered on one connection, called on another, whatever these are."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import AsyncClient, Client, Context, InvalidParams, Limits, MethodNotFound, ProviderGone, RpcError
from rpcstream.errors import CallTimeout, RegistrationError
from rpcstream.hub import Hub, Rule
from rpcstream.testing import serve_in_thread

from ..kit import authority, server_tls, until
from .conftest import RunningHub

Array = NDArray[np.float32]

#: 64 KiB, and not the same anywhere.
ARRAY = np.arange(16_384, dtype=np.float32)

#: Seconds of real time after which what must come has not.
PATIENCE = 30


class Trace:
    """Counts what a client has sent and received as binary frames."""

    def __init__(self) -> None:
        self.frames: dict[str, int] = {"send": 0, "receive": 0}

    def __call__(self, direction: str, message: bytes) -> None:
        self.frames[direction] += message.startswith(b"@")


@asynccontextmanager
async def provided(address: str, **options: Any) -> AsyncIterator[AsyncClient]:
    """A client p that offers methods with arrays in every place where these may stand."""
    async with AsyncClient(address, name="p", **options) as provider:

        @provider
        def double(a: Array) -> Array:
            return a * 2

        @provider
        async def count(a: Array, n: int, ctx: Context) -> AsyncIterator[Array]:
            for number in range(n):
                ctx.progress(a - number)
                yield a + number

        @provider
        async def total(items: AsyncIterator[Array]) -> Array:
            return sum([item async for item in items], np.zeros_like(ARRAY))

        @provider
        def add(a: int, b: int) -> int:
            return a + b

        @provider
        async def hold() -> None:
            await asyncio.Event().wait()

        assert await provider.offer() == ["add", "count", "double", "hold", "total"]
        yield provider


async def items() -> AsyncIterator[Array]:
    for number in range(5):
        yield ARRAY + number


def same(a: Any, b: Any) -> bool:
    return isinstance(a, np.ndarray) and a.dtype == np.float32 and bool((a == b).all())


async def use_all(caller: AsyncClient) -> None:
    """Call everything that is offered; all of it must be right."""
    for _ in range(3):
        assert same(await caller.double(ARRAY), ARRAY * 2)
    for number, item in enumerate([item async for item in caller.stream.count(ARRAY, 4)]):
        assert same(item, ARRAY + number)
    assert len(await caller.count(ARRAY[:1], 3)) == 3
    async with caller.batch() as batch:
        results = [batch.call("p.double", ARRAY + number) for number in range(3)]
    assert all(same(each.result(), (ARRAY + number) * 2) for number, each in enumerate(results))
    assert await caller.add(5, 3) == await caller.call("p.add", a=5, b=3) == 8
    with pytest.raises(InvalidParams, match="expected an integer, got a string"):
        await caller.add(5, "three")
    with pytest.raises(MethodNotFound):
        await caller.subtract(5, 3)


#: How one hub can be reached, by where it listens; a connection that lasts is needed to offer.
LASTING = {"tcp": ("tcp", "ws"), "tls": ("tls", "wss"), "unix": ("unix",)}
ALL = {"tcp": ("tcp", "ws", "http"), "tls": ("tls", "wss", "https"), "unix": ("unix", "http+unix")}
MIXES = [(place, offers, calls) for place in ALL for offers in LASTING[place] for calls in ALL[place]]


@pytest.mark.parametrize(("listens", "offers", "calls"), MIXES)
async def test_on_any_mix_of_transports(listens: str, offers: str, calls: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"ca": authority()} if listens == "tls" else {}
    hub = Hub(tls=server_tls() if listens == "tls" else None)
    where: dict[str, Any] = {"unix": tmp_path / "hub"} if listens == "unix" else {"port": 0}
    async with hub.listening(**where) as address:
        place = address.removeprefix("unix://")
        async with provided(f"{offers}://{place}", **options), AsyncClient(f"{calls}://{place}", **options) as caller:
            await use_all(caller)


@pytest.mark.parametrize(("theirs", "ours"), [(True, True), (True, False), (False, True), (False, False)])
async def test_arrays_go_as_frames_between_those_who_read_them(
    running_hub: RunningHub, theirs: bool, ours: bool
) -> None:
    there, here = Trace(), Trace()
    async with (
        provided(running_hub.address, binary=theirs, trace=there),
        AsyncClient(running_hub.address, binary=ours, trace=here) as caller,
    ):
        await use_all(caller)
        assert same(await caller.total(items()), ARRAY * 5 + 10)
        reports: list[Any] = []
        assert len([item async for item in caller.stream_request("count", [ARRAY, 4], on_progress=reports.append)]) == 4
        # Of reports that follow each other too fast the last one comes.
        assert all(same(report, ARRAY + report[0]) for report in reports)
        assert reports[-1][0] == -3
    # In the first calls text goes, before each end has said that it reads frames.
    for trace, reads in ((there, theirs), (here, ours)):
        assert (trace.frames["send"] >= 5) is reads, trace.frames
        # What has come to the hub as text goes on as text.
        assert (trace.frames["receive"] >= 5) is (theirs and ours), trace.frames


async def test_events_and_their_last_values(running_hub: RunningHub) -> None:
    """A client that reads frames, one that does not, and both of them later."""
    trace, address = Trace(), running_hub.address
    async with (
        AsyncClient(address) as publisher,
        AsyncClient(address, trace=trace) as one,
        AsyncClient(address, binary=False) as other,
        one.subscribe("arrays.*") as frames,
        other.subscribe("arrays.*") as texts,
    ):
        for number in range(4):
            assert await publisher.publish(f"arrays.{number}", ARRAY + number, retain=True) == 2
            for events in (frames, texts):
                assert same(await anext(aiter(events)), ARRAY + number)
        assert trace.frames["receive"] >= 2
        for binary in (True, False):
            async with AsyncClient(address, binary=binary) as late, late.subscribe("arrays.>") as events:
                last = [await anext(aiter(events)) for _ in range(4)]
                assert sorted(float(event[0]) for event in last) == [0, 1, 2, 3]
                assert all(same(event, ARRAY + event[0]) for event in last)


async def test_events_that_wait_at_a_client_count_with_their_payloads(running_hub: RunningHub) -> None:
    async with (
        AsyncClient(running_hub.address) as publisher,
        AsyncClient(running_hub.address, limits=Limits(max_message_size=4 * ARRAY.nbytes)) as client,
        client.subscribe("arrays") as events,
    ):
        for _ in range(2):  # text, and rpc.hello
            await publisher.publish("arrays", ARRAY)
            await anext(aiter(events))
        for number in range(8):
            await publisher.publish("arrays", ARRAY + number)
        await until(lambda: events.dropped >= 5)
        assert same(await anext(aiter(events)), ARRAY + 5)


def test_sync_clients_offer_and_call() -> None:
    with (
        serve_in_thread(Hub()) as address,
        Client(address, name="client1") as client1,
        Client(address, name="client2", timeout=10) as client2,
    ):
        client1(lambda a, b: client1.multiply(a, 1) + client1.multiply(b, 1), name="add")
        client1(lambda name="World", **rest: {"message": f"Hello, {name}!"}, name="hello")
        client2(lambda a, b: a * b, name="multiply")
        assert client1.offer() == ["add", "hello"]
        assert client2.offer() == ["multiply"]
        assert client2.call_sync("add", [5, 3]) == client2.call("client1.add", 5, 3) == 8
        assert client2.call_sync("get_server_stats", {})["clients"] == 2
        came = threading.Event()
        responses: list[Any] = []

        def callback(done: Any) -> None:
            responses.append(done.result())
            came.set()

        client2.submit("hello", param="value").add_done_callback(callback)
        assert came.wait(PATIENCE)
        assert responses == [{"message": "Hello, World!"}]


@pytest.mark.skipif(shutil.which("nc") is None, reason="nc is not installed")
def test_a_provider_that_is_netcat() -> None:
    """With the lines of the documentation: written by hand, blanks and all."""
    with serve_in_thread(Hub()) as address, Client(address) as client:
        host, _, port = address.rpartition(":")
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(["nc", host, port], bufsize=0, **pipes) as nc:
            nc.stdin.write(
                b'{"jsonrpc": "2.0", "method": "keepAlive" }\n{"jsonrpc": "2.0", "id": 1, "method": "rpc.register",'
                b' "params": {"name": "client1", "methods": ["add"]}}\n'
            )
            registered = json.loads(nc.stdout.readline())
            assert len(registered["result"].pop("key")) >= 16
            assert registered == {"jsonrpc": "2.0", "id": 1, "result": {"name": "client1", "methods": ["add"]}}
            future = client.submit.add(5, 3)
            asked = json.loads(nc.stdout.readline())
            call_id = asked.pop("id")
            assert asked == {"jsonrpc": "2.0", "method": "add", "params": [5, 3]}
            nc.stdin.write(f'{{ "jsonrpc": "2.0", "result": 8, "id": {call_id} }}\n'.encode())
            assert future.result(PATIENCE) == 8
            hanging = client.submit.add(5, 3)
            nc.stdout.readline()
            nc.kill()
            error = hanging.exception(PATIENCE)
            assert isinstance(error, ProviderGone)
            assert error.data == {"method": "add", "client": "client1"}
            with pytest.raises(MethodNotFound):
                client.add(5, 3)


async def test_two_that_call_each_other_without_end() -> None:
    hub = Hub(limits=Limits(max_calls=20))
    async with (
        hub.listening(port=0) as address,
        AsyncClient(address, name="a") as a,
        AsyncClient(address, name="b") as b,
        AsyncClient(address) as caller,
    ):

        async def ping(n: int) -> int:
            return int(await a.call("pong", n + 1))

        async def pong(n: int) -> int:
            return int(await b.call("ping", n + 1))

        a(ping)
        b(pong)
        await a.offer()
        await b.offer()
        with pytest.raises((CallTimeout, RpcError)):
            await caller.ping(0, timeout=0.5)
        assert len(await caller.call("rpc.methods")) == 2
        while any(each["in_flight"] for each in await caller.call("rpc.clients")):
            await asyncio.sleep(0.01)


# -- what ends in the middle of calls ---------------------------------------------------------------------------------


async def test_a_client_that_is_closed_or_lost_during_a_call(running_hub: RunningHub) -> None:
    async with AsyncClient(running_hub.address) as caller:
        for end in ("close", "drop"):
            async with provided(running_hub.address) as provider:
                call = caller.submit.hold()
                while not (await running_hub.clients())["p"]["in_flight"]:
                    await asyncio.sleep(0)
                if end == "close":
                    await provider.close()
                else:
                    await running_hub.drop("p")
                with pytest.raises(ProviderGone) as caught:
                    await call
                assert caught.value.data["client"] == "p"


async def test_a_connection_that_is_lost_is_made_anew(running_hub: RunningHub) -> None:
    """Nobody but the client itself does anything, and its name is its own still."""
    async with provided(running_hub.address, reconnect=True), AsyncClient(running_hub.address) as caller:
        for number in range(3):
            assert await caller.add(number, 1) == number + 1
            since = (await running_hub.clients())["p"]["since"]
            await running_hub.drop("p")
            async with asyncio.timeout(PATIENCE):
                while not (found := (await running_hub.clients()).get("p")) or found["since"] == since:
                    await asyncio.sleep(0.01)
                while not running_hub.hub.stats()["methods_offered"]:
                    await asyncio.sleep(0.01)
            with pytest.raises(RpcError):
                await caller.call("rpc.register", {"name": "p", "methods": []})


async def test_a_stop_does_not_wait_for_ever() -> None:
    hub = Hub(drain_timeout=0.05)
    address = await hub.start(port=0)
    async with provided(address), AsyncClient(address) as caller:
        call = caller.submit.hold()
        await until(lambda: hub.stats()["calls_forwarded"])
        await hub.close()
        with pytest.raises(ConnectionError):
            await call
    assert not hub.stats()["clients"] + hub.stats()["methods_offered"]


PROVIDER = """
import asyncio, sys
from rpcstream import AsyncClient

async def main():
    async with AsyncClient(sys.argv[1], name="gpu-1", reconnect=True) as client:
        client(lambda n: n, name="work")

        @client
        async def hold(n: int) -> int:
            await asyncio.sleep(3600)

        await client.offer()
        await client.wait_closed()

asyncio.run(main())
"""


@asynccontextmanager
async def provider_process(hub: RunningHub) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROVIDER, hub.address)
    try:
        await until(lambda: hub.hub.stats()["methods_offered"] == 2)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.slow
async def test_a_provider_that_is_killed_under_load(open_hub: Any) -> None:
    """Without time-outs and pings its callers are told at once, and they reach it again when it is back."""
    hub = await open_hub(keepalive_timeout=None, ping_interval=None)
    counts = {"answered": 0, "failed": 0}

    async def load(client: AsyncClient, number: int) -> None:
        while True:
            number += 1000
            try:
                async with asyncio.timeout(PATIENCE):  # no call hangs, whatever becomes of its provider
                    assert await client.work(number) == number
                counts["answered"] += 1
            except RpcError as error:
                if error.code not in (-32007, -32601):
                    raise
                counts["failed"] += 1
                await asyncio.sleep(0.01)

    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(provider_process(hub))
        schemes = ("", "", "ws://", "http://")
        clients = [await stack.enter_async_context(AsyncClient(scheme + hub.address)) for scheme in schemes]
        loads = [asyncio.ensure_future(load(each, 8 * at + n)) for at, each in enumerate(clients) for n in range(8)]
        held = [each.submit.hold(n) for each in clients[:-1] for n in range(30)]
        while (await hub.clients())["gpu-1"]["in_flight"] < len(held):
            await asyncio.sleep(0.01)
        await until(lambda: counts["answered"] > 500)
        first.kill()
        async with asyncio.timeout(PATIENCE):
            outcomes = await asyncio.gather(*held, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ProviderGone}
        await until(lambda: counts["failed"] > 0)
        assert hub.hub.stats()["methods_offered"] == 0
        before = counts["answered"]
        await stack.enter_async_context(provider_process(hub))
        await until(lambda: counts["answered"] > before + 500)
        for each in loads:
            assert not each.done()
            each.cancel()
        await asyncio.gather(*loads, return_exceptions=True)


# -- the hub itself ---------------------------------------------------------------------------------------------------


async def test_nobody_reads_tokens_and_keys_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rpcstream.wire")
    hub = Hub(debug=True, token="a-secret-token")
    async with hub.listening(port=0) as address, AsyncClient(address, token="a-secret-token") as client:
        key = (await client.call("rpc.register", name="p"))["key"]
        await client.call("rpc.register", name="p", key=key)
    assert len(key) == 32
    assert "rpc.register" in caplog.text
    assert key not in caplog.text
    assert "a-secret-token" not in caplog.text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"balance": "fair"}, "balance must be one of least_in_flight, round_robin; got 'fair'"),
        ({"call_timeout": 0}, "call_timeout must be positive or None, got 0"),
        ({"keepalive_timeout": -1}, "keepalive_timeout must be positive or None, got -1"),
        ({"registration_timeout": float("nan")}, "registration_timeout must be positive or None, got nan"),
        ({"ping_interval": 0}, "ping_interval must be positive or None, got 0"),
        ({"keepalive_timeout": 5, "ping_interval": 5}, "ping_interval must be shorter than keepalive_timeout"),
        ({"rules": []}, "rules need callers that are authenticated"),
        ({"rules": [Rule("*", call="*")]}, "rules need callers that are authenticated"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Hub(**options)


def test_a_hub_has_no_middleware() -> None:
    with pytest.raises(RegistrationError, match="has no middleware"):
        Hub().middleware(lambda call, call_next: call_next(call))
