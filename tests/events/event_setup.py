"""A `Topics` object with connections that only note what they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import orjson

from rpcstream import Codec, Limits
from rpcstream.events.topics import Topics
from rpcstream.observe.counters import Counters
from rpcstream.peer.write_gate import WriteGate


class FakeConnection:
    """A connection that notes what it is sent; it can be stalled and lost."""

    def __init__(self, *, stalled: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self.write_gate = WriteGate(1024 * 1024)
        self.write_gate.stalled = stalled
        self.channel = SimpleNamespace(address="far:1")
        self.is_open = True
        self.lost_callbacks: list[Callable[[], object]] = []
        self.add_lost_callback = self.lost_callbacks.append
        self.sent: list[Any] = []
        self.aborted: list[str] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def abort(self, reason: str) -> None:
        self.aborted.append(reason)
        self.lose()

    def lose(self) -> None:
        self.is_open = False
        self.write_gate.set_stalled(False)
        for function in self.lost_callbacks:
            function()

    @property
    def topics(self) -> list[str]:
        return [orjson.loads(bytes(message))["params"]["topic"] for message in self.sent]

    @property
    def values(self) -> list[Any]:
        return [orjson.loads(bytes(message))["params"]["value"] for message in self.sent]


class EventSetup:
    """Topics with counters, and connections that subscribe to them."""

    def __init__(self, *, max_events: int = 5, policy: Any = "drop_oldest", system: str = "", **limits: Any) -> None:
        self.counters = Counters()
        self.topics = Topics(
            codec=Codec(),
            limits=Limits(**limits),
            counters=self.counters,
            max_events=max_events,
            policy=policy,
            system=system,
        )
        self.publish = self.topics.publish

    def join(self, *topics: str, stalled: bool = False) -> FakeConnection:
        connection = FakeConnection(stalled=stalled)
        for topic in topics:
            self.topics.subscribe(connection, topic)
        return connection

    def subscribe(self, connection: FakeConnection, topic: str, *denied: str) -> dict[str, Any]:
        return self.topics.subscribe(connection, topic, denied=denied)

    def unsubscribe(self, connection: FakeConnection, topic: str) -> bool:
        return self.topics.unsubscribe(connection, topic)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        counters = self.counters
        return counters.events_published, counters.events_sent, counters.events_dropped, counters.subscriptions


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def event_message(topic: str, value: Any) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "method": "$/event", "params": {"topic": topic, "value": value}})
