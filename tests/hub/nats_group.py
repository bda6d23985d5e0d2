"""Hubs of one group on a real NATS server, in this process and in others."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import orjson

from rpcstream import AsyncClient
from rpcstream.hub import Hub

from ..kit import until

#: Seconds of real time after which what must come has not.
PATIENCE = 30


class Group:
    """Hubs of one group, in this process."""

    def __init__(self, url: str, name: str, stack: AsyncExitStack) -> None:
        self.url = url
        self.name = name
        self._stack = stack
        self.hubs: list[Hub] = []

    async def hub(self, **options: Any) -> tuple[Hub, str]:
        """Start one more hub."""
        hub = Hub(drain_timeout=5, **options)
        hub.join_nats(self.url, service=self.name)
        address = await self._stack.enter_async_context(hub.listening(port=0))
        self.hubs.append(hub)
        return hub, address

    async def two(self, **options: Any) -> tuple[tuple[Hub, str], tuple[Hub, str]]:
        """Start two hubs that know each other."""
        first, second = await self.hub(**options), await self.hub(**options)
        await self.joined()
        return first, second

    async def joined(self) -> None:
        """Wait until all hubs know all others."""
        await until(lambda: all(hub.stats()["hubs"] == len(self.hubs) - 1 for hub in self.hubs))

    async def client(self, address: str, **options: Any) -> AsyncClient:
        return await self._stack.enter_async_context(AsyncClient(address, **options))


def offered(hub: Hub, *names: str) -> bool:
    return all(name in hub.directory.routes for name in names)


class FakeHub:
    """A program that says it is a hub, and sends what it likes."""

    def __init__(self, client: Any, hub: Hub, group: str, hub_id: str = "0" * 16) -> None:
        self.client = client
        self.id = hub_id
        self.root = f"rpc.{group}.$hub."
        self.to = hub.stats()["nats"]["id"]
        self.number = "1" * 16
        self.heard: asyncio.Queue[Any] = asyncio.Queue()

    async def begin(self) -> None:
        """Open a session."""

        async def heard(message: Any) -> None:
            for line in message.data.splitlines():
                self.heard.put_nowait(orjson.loads(line))

        self.subscription = await self.client.subscribe(f"{self.root}{self.id}.>", cb=heard)
        told = {"version": 1, "hub": self.id, "binary": True, "open": self.number}
        await self.client.publish(f"{self.root}{self.to}.hello", orjson.dumps(told))
        await self.client.flush()

    async def say(self, *messages: Any) -> None:
        for message in messages:
            data = message if isinstance(message, bytes) else orjson.dumps(message)
            subject = f"{self.root}{self.to}.{self.id}.{self.number}"
            await self.client.publish(subject, data, reply=f"{self.root}{self.id}.{self.to}.{self.number}")
        await self.client.flush()

    async def tell(self, method: str, **params: Any) -> None:
        await self.say({"jsonrpc": "2.0", "method": f"rpc.group.{method}", "params": params})

    async def name(self, name: Any, **more: Any) -> None:
        await self.tell("named", **{"name": name, "key": "0" * 64, "address": "there", "since": 1.5, **more})

    async def next_request(self, method: str) -> Any:
        """The next call of a method, or notification, that comes here."""
        async with asyncio.timeout(PATIENCE):
            while (message := await self.heard.get()).get("method") != method:
                pass
        return message


HUB = """
import sys
from rpcstream import Hub

hub = Hub()
hub.join_nats(sys.argv[1], service=sys.argv[2])
hub.run(port=0, on_listening=lambda address: print(address, flush=True))
"""


@asynccontextmanager
async def hub_process(url: str, name: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A hub as a process, and its address."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", HUB, url, name, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        yield process, line.decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
