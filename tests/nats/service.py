"""A service on NATS that one test has for itself: servers that join it, clients, programs that know NATS alone."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rpcstream import AsyncClient, NatsLogin, Server

from ..kit import PATIENCE, UsualServer
from ..kit.nats_raw_client import RawClient
from ..kit.nats_server import NatsServer

#: A call of the usual server that is answered with 3, one that waits, and how that is shown.
ADD = b'{"jsonrpc":"2.0","id":1,"method":"add","params":[1,2]}'
WAIT = b'{"jsonrpc":"2.0","id":1,"method":"wait"}'


class Service:
    """A service.

    Attributes:
        nats: the NATS server.
        root: what the subjects of its methods begin with, and the dot.
        event: the same for topics of events.
        address: for clients.
    """

    def __init__(self, nats: NatsServer, name: str | None = None) -> None:
        self.nats = nats
        self.name = name or f"tests-{secrets.token_hex(4)}"
        self.root = f"rpc.{self.name}."
        self.event = f"{self.root}$event."
        self.url = f"{'nats+tls' if nats.url.startswith('tls') else 'nats'}://127.0.0.1:{nats.port}"
        self.address = f"{self.url}/{self.name}"

    def client(self, **options: Any) -> AsyncClient:
        return AsyncClient(self.address, **{"timeout": PATIENCE, **options})

    @asynccontextmanager
    async def serving(self, server: Server | None = None, *, port: int | None = None, **options: Any) -> Any:
        """A server joins, while the block runs: a usual one, if none is given.

        Args:
            port: 0: it listens for connections of its own, too, and `address` of it is set.
        """
        server = server or UsualServer()
        server.join_nats(self.url, service=self.name, only=port is None, **options)
        async with server.listening(**({} if port is None else {"port": port})) as address:
            if isinstance(server, UsualServer):
                server.address = address
            try:
                yield server
            finally:
                if isinstance(server, UsualServer):
                    server.release()

    @asynccontextmanager
    async def raw(self, *subjects: str, user: str | None = None) -> AsyncIterator[RawClient]:
        """A client of NATS alone, subscribed to these subjects."""
        raw = await RawClient.connect(self.nats.port, user)
        for subject in subjects:
            await raw.subscribe(subject)
        try:
            yield raw
        finally:
            await raw.close()

    def subscribed(self, begin: str = "") -> list[str]:
        """The subjects below the service that begin so, as they are subscribed to at NATS: one for each."""
        connections = self.nats.monitor("/connz?subs=1")["connections"]
        subjects = (each for connection in connections for each in connection.get("subscriptions_list", ()))
        return sorted(each.removeprefix(self.root) for each in subjects if each.startswith(self.root + begin))


def call_of(method: str, *params: Any, call_id: Any = 1, **members: Any) -> bytes:
    """A call as NATS carries it."""
    return json.dumps({"jsonrpc": "2.0", "id": call_id, "method": method, "params": params, **members}).encode()


def event_of(topic: str, value: Any) -> bytes:
    """An event, as another program writes it."""
    return json.dumps({"jsonrpc": "2.0", "method": "$/event", "params": {"topic": topic, "value": value}}).encode()


async def next_of(events: AsyncIterator[Any], count: int = 1) -> list[Any]:
    """So many values of a subscription; it fails where they do not come."""
    return [await asyncio.wait_for(anext(events), PATIENCE) for _ in range(count)]


async def all_until(events: AsyncIterator[Any], last: Any) -> list[Any]:
    """The values up to the last one, which is one of them."""
    values: list[Any] = []
    while not values or values[-1] != last:
        values += await next_of(events)
    return values


def user(name: str, permissions: Any = None) -> dict[str, Any]:
    """A user of the NATS server, whose password is "p"."""
    return {"user": name, "password": "p"} | ({} if permissions is None else {"permissions": permissions})


def login(name: str, **more: Any) -> NatsLogin:
    return NatsLogin(user=name, password="p", **more)
