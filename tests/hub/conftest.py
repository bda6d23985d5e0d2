"""A hub on a real port, or in memory on a loop whose time jumps (the mark `fake_time`), and raw peers at it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from rpcstream import Limits
from rpcstream.hub import Hub
from rpcstream.testing import FakeTimeLoop

from ..kit import PATIENCE, TRANSPORTS, RawPeer, notification, open_peer, request, until
from ..kit.http import Answer, RawHttpConnection, post

#: A request with these params and members as JSON, for what no JSON library would write.
CALL = '{"jsonrpc":"2.0","id":%s,"method":"%s","params":%s}'


class Code:
    """Of the errors of calls that a hub refuses, or that come to nothing."""

    TOO_LARGE, BUSY, LATE, DENIED, GONE, UNKNOWN = -32001, -32002, -32003, -32006, -32007, -32601
    PARSE, INVALID, PARAMS, INTERNAL, CANCELLED = -32700, -32600, -32602, -32603, -32800


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fake_time: in memory, on a loop with a fake clock")


@pytest.hookimpl(tryfirst=True)
def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]] | None:
    return {"fake-time": FakeTimeLoop} if item.get_closest_marker("fake_time") else None


class HubPeer(RawPeer):
    """A raw peer that is a client of a hub."""

    async def offers(self, name: str | None, *methods: Any, **more: Any) -> Any:
        """Register under this name, and offer these methods."""
        named = {} if name is None else {"name": name}
        return await self.result("rpc.register", params={**named, "methods": list(methods), **more})

    async def declare(self) -> None:
        """Say that it reads binary frames."""
        assert await self.result("rpc.hello", params={"binary": 1}) == {"binary": 1}

    def fail(self, asked: dict[str, Any], code: int, message: str = "as asked", **more: Any) -> None:
        self.send({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": code, "message": message, **more}})

    async def error(self, *params: Any, **options: Any) -> Any:
        """The next message, which must be an error; with arguments: that of this call."""
        return (await self.reply(*params, **options))["error"]


class RunningHub:
    """A hub that runs, and the peers that are connected to it."""

    def __init__(self, hub: Hub, address: str, connect: Callable[[], Awaitable[HubPeer]]) -> None:
        self.hub = hub
        self.address = address
        self.peers: list[HubPeer] = []
        self._connect = connect

    async def peer(self, name: str | None = None, *methods: Any, binary: bool = False, token: str = "") -> HubPeer:
        """Connect a peer that shows a token, declares that it reads frames, and offers methods, where given."""
        self.peers.append(peer := await self._connect())
        if token:
            await peer.result("rpc.authenticate", token)
        if binary:
            await peer.declare()
        if name is not None:
            await peer.offers(name, *methods)
        return peer

    async def websocket_peer(self) -> HubPeer:
        self.peers.append(peer := await open_peer(f"ws://{self.address}/", HubPeer))
        return peer

    async def pair(self, *methods: Any, binary: str = "") -> tuple[HubPeer, HubPeer]:
        """A provider with the name p, of `work` if nothing is said, and a caller; those read frames that are named."""
        names = binary.split()
        provider = await self.peer("p", *(methods or ("work",)), binary="provider" in names)
        return provider, await self.peer(binary="caller" in names)

    async def post(self, body: bytes | str, *headers: str, json: bool = True) -> Answer:
        """Send a POST on a connection of its own."""
        host, _, port = self.address.rpartition(":")
        connection = RawHttpConnection(*await asyncio.open_connection(host, int(port)))
        try:
            return await connection.ask(post(body.encode() if isinstance(body, str) else body, *headers, json=json))
        finally:
            await connection.close()

    async def clients(self) -> dict[str, dict[str, Any]]:
        """What `rpc.clients` says of each client with a name."""
        asking = await self._connect()
        found = await asking.result("rpc.clients")
        asking.close()
        return {each["name"]: each for each in found if each["name"] is not None}

    async def stalled(self, name: str, peer: HubPeer, caller: HubPeer, method: str = "work") -> None:
        """Have a client stop reading, and send it notifications until the hub has noticed that."""
        peer.transport.pause_reading()
        end = time.monotonic() + PATIENCE
        while (await self.clients())[name]["state"] != "stalled":
            assert time.monotonic() < end, f"{name!r} is never said to be stalled"
            caller.send(notification(method, text="x" * 500_000))
        assert await caller.result("rpc.ping") == "pong"


async def asked_of(provider: HubPeer, caller: HubPeer, *params: Any, id: Any = 1, **members: Any) -> Any:
    """Call `work`; what comes to its provider."""
    caller.send(request("work", *params, id=id, **members))
    return await provider.receive()


async def serves(provider: HubPeer, caller: HubPeer) -> None:
    """Assert that calls go from one to the other still, and that nothing else has come to them."""
    asked = await asked_of(provider, caller, "still", id="still")
    assert asked["params"] == ["still"]
    provider.answer(asked, "well")
    assert await caller.receive() == {"jsonrpc": "2.0", "id": "still", "result": "well"}


OpenHub = Callable[..., Awaitable[RunningHub]]


@pytest.fixture
async def open_hub() -> AsyncIterator[OpenHub]:
    """`running = await open_hub(call_timeout=3)`; at the end of the test nothing may be left in it."""
    is_fake = isinstance(asyncio.get_running_loop(), FakeTimeLoop)
    async with AsyncExitStack() as stack:

        async def open_one(limits: dict[str, Any] | None = None, **options: Any) -> RunningHub:
            # Pings of the hub would come between the messages of tests that let much time pass.
            quiet = {"ping_interval": None, "keepalive_timeout": None} if is_fake else {}
            hub = Hub(limits=Limits(**limits or {}), **{"drain_timeout": 5, **quiet, **options})
            if is_fake:
                endpoint = await stack.enter_async_context(TRANSPORTS["memory"].serving(hub, None))
                running = RunningHub(hub, "", lambda: endpoint.join(HubPeer))
            else:
                address = await stack.enter_async_context(hub.listening(port=0))
                running = RunningHub(hub, address, lambda: open_peer(address, HubPeer))
            stack.push_async_callback(_end, running)
            return running

        yield open_one


async def _end(running: RunningHub) -> None:
    for peer in running.peers:
        peer.close()
    if isinstance(asyncio.get_running_loop(), FakeTimeLoop):
        await asyncio.sleep(120)  # by then half-closed connections have ended
    names = ("connections", "clients", "methods_offered", "subscriptions")
    await until(lambda: not any(running.hub.stats()[name] for name in names) and not dict(running.hub.topics))


@pytest.fixture
async def running_hub(open_hub: OpenHub) -> RunningHub:
    return await open_hub()
