"""Instances and plain programs for the tests of events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.msg import Msg

from rpcstream import AsyncClient, Server
from rpcstream.client.subscriptions import Subscription

from ..kit.nats_server import NatsServer

#: The service of the tests.
SERVICE = "vision"

#: Seconds in which an event comes, also on a busy machine.
PATIENCE = 20


class Instance:
    """A server that has joined the service, and listens at a port of its own.

    Attributes:
        server: it.
        address: of its port.
    """

    def __init__(self, server: Server, address: str) -> None:
        self.server = server
        self.address = address
        self.publish = server.publish


@asynccontextmanager
async def instance(url: str, **options: Any) -> AsyncIterator[Instance]:
    """An instance of the service."""
    server = Server(**options)
    server.join_nats(url, service=SERVICE)
    async with server.listening(port=0) as address:
        yield Instance(server, address)


def client_of(nats: NatsServer, **options: Any) -> AsyncClient:
    """A client of the service."""
    return AsyncClient(f"{nats.url}/{SERVICE}", **{"timeout": PATIENCE, **options})


async def next_of(events: Subscription, seconds: float = PATIENCE) -> Any:
    """The next value; it fails where none comes in so many seconds."""
    return await asyncio.wait_for(anext(events), seconds)


async def all_until(events: Subscription, last: Any) -> list[Any]:
    """The values up to the last one, which is one of them."""
    values = []
    while not values or values[-1] != last:
        values.append(await next_of(events))
    return values


def event(topic: str, value: Any) -> bytes:
    """The payload of an event, as another program writes it."""
    return json.dumps({"jsonrpc": "2.0", "method": "$/event", "params": {"topic": topic, "value": value}}).encode()


def value_of(message: Msg) -> Any:
    """The value of an event, as another program reads it."""
    return json.loads(message.data)["params"]["value"]


def subjects_of(nats: NatsServer) -> list[str]:
    """The subjects of events that are subscribed to at NATS."""
    connections = nats.monitor("/connz?subs=1")["connections"]
    return sorted(
        subject
        for connection in connections
        for subject in connection.get("subscriptions_list", ())
        if subject.startswith(f"rpc.{SERVICE}.$event.")
    )
