"""Programs on NATS that say they are hubs and break the rules: what is taken of them is checked, and bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rpcstream import Limits
from rpcstream.errors import ProviderGone
from rpcstream.hub import nats as hub_nats

from ..kit import until
from .nats_group import PATIENCE, FakeHub, Group, offered


async def test_what_makes_no_sense_is_not_taken(group: Group, nats_client: Any) -> None:
    hub, address = await group.hub()
    for junk in (
        b"",
        b"{",
        b"[]",
        b'{"hub":1}',
        b'{"version":2,"hub":"' + b"a" * 16 + b'"}',
        b'{"version":1,"hub":"x"}',
    ):
        for subject in ("all", f"{hub.stats()['nats']['id']}.hello", f"{hub.stats()['nats']['id']}.a.b.c.d"):
            await nats_client.publish(f"rpc.{group.name}.$hub.{subject}", junk)
    fake = FakeHub(nats_client, hub, group.name)
    await fake.begin()
    await until(lambda: hub.stats()["hubs"] == 1)
    own = await group.client(address, name="own")
    own(lambda: "mine", name="work")
    await own.offer()

    await fake.name("a b")
    await fake.name(5)
    await fake.name("k", key="short")
    await fake.name("k", since="yesterday")
    await fake.tell("offered", name="unknown", methods=["x"])  # not counted: its name was not taken
    await fake.name("good")
    for methods in (5, ["rpc.register"], ["$/cancel"], [{"name": "x", "shared": 1}], ["a..b"], [["x"]]):
        await fake.tell("offered", name="good", methods=methods)
    await fake.tell("described", name="good", schemas={"own.Shape": {}})
    await fake.tell("described", name="good", schemas=[])
    await fake.tell("withdrawn", name="good", methods="x")
    await fake.tell("withdrawn", name="own", methods=["work"])  # a client of this hub is not its to withdraw
    await fake.tell("left", name="own")
    await fake.tell("taken", name="own", key="0" * 64)
    await fake.tell("nonsense", name="own")
    await fake.say(b"{", b"[]", b"\xff", {"jsonrpc": "2.0", "method": "rpc.register", "params": {}, "id": 1})
    for topic, more in (
        ("rpc.other", {}),
        ("a.*", {}),
        (5, {}),
        ("t", {"keep": "x"}),
        ("t", {"keep": "keep", "stamp": [2**63, "x"]}),
        ("t", {"keep": "keep"}),
    ):
        await fake.say({"jsonrpc": "2.0", "method": "$/event", "params": {"topic": topic, "value": 1, **more}})
    for changes in (5, [5], [[1, 5, []]], [[1, "a*b", []]], [[1, "t", [5]]], [["x", "t", []]], [[1, "t"]]):
        await fake.say({"jsonrpc": "2.0", "method": "rpc.group.subscriptions", "params": {"changes": changes}, "id": 7})
    await fake.tell("offered", name="good", methods=["get_server_stats", "keepAlive", "fine", "own.work"])
    await until(lambda: offered(hub, "fine", "good.fine"))
    assert await own.call("work") == "mine"
    assert await own.call("own.work") == "mine"
    assert set(hub.directory.routes) == {"work", "own.work", "fine", "good.fine", "good.own.work"}
    assert (await own.call("get_server_stats"))["not_taken"] >= 12
    assert not hub.topics.topics_with_values()
    call = own.submit.fine(1)
    request = await fake.next_request("fine")
    assert request["params"] == [1]
    await fake.say({"jsonrpc": "2.0", "id": request["id"], "result": "from there"})
    assert await call == "from there"
    hanging = own.submit.fine(2)
    await fake.next_request("fine")
    await fake.subscription.unsubscribe()
    with pytest.raises(ProviderGone):
        await asyncio.wait_for(_of(hanging), PATIENCE)


async def test_a_frame_that_is_none_ends_the_session(group: Group, nats_client: Any) -> None:
    """Behind it nothing can be told apart, as on a socket."""
    hub, _ = await group.hub()
    fake = FakeHub(nats_client, hub, group.name)
    await fake.begin()
    await until(lambda: hub.stats()["hubs"] == 1)
    await fake.say(b"@12 x")
    await until(lambda: hub.stats()["hubs"] == 0)
    await until(lambda: not offered(hub, "fine"))


async def _of(call: Any) -> Any:
    return await call


async def test_what_is_too_much_is_not_taken(group: Group, nats_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_nats, "MAX_HUBS", 2)
    limits = Limits(
        max_offered=10, max_offered_total=20_000, max_connections=5, max_subscriptions_total=20, max_retained=5
    )
    hub, address = await group.hub(limits=limits)
    fakes = [FakeHub(nats_client, hub, group.name, f"{number:016x}") for number in range(4)]
    for fake in fakes:
        await fake.begin()
    await until(lambda: hub.stats()["hubs"] == 2)
    fake = fakes[0]
    for number in range(20):
        await fake.name(f"c{number}")
    await fake.tell("offered", name="c0", methods=[f"m{number}" for number in range(11)])
    for number in range(20):
        await fake.tell("offered", name="c1", methods=[f"n{number}"])
    for name in ("c2", "c3", "c4"):
        for number in range(10):
            await fake.tell("offered", name=name, methods=[{"name": f"{name}_{number}", "description": "x" * 1000}])
    for number in range(100):
        changes = [[number, f"t.{number}", []]]
        await fake.say({"jsonrpc": "2.0", "method": "rpc.group.subscriptions", "params": {"changes": changes}})
        kept = {"topic": f"k.{number}", "value": 1, "keep": "keep", "stamp": [number + 1, "x"]}
        await fake.say({"jsonrpc": "2.0", "method": "$/event", "params": kept})
    await fake.say({"jsonrpc": "2.0", "method": "rpc.ping", "id": 99})
    async with asyncio.timeout(PATIENCE):
        while (await fake.heard.get()).get("id") != 99:
            pass
    stats = hub.stats()
    assert stats["clients_elsewhere"] == 5
    assert stats["methods_elsewhere"] < 40
    assert hub.directory.cost_elsewhere <= limits.max_offered_total
    assert len(hub.topics) <= 20
    assert len(hub.topics.topics_with_values()) == 5
    own = await group.client(address, name="own")  # whose room is its own
    own(lambda: 1, name="work")
    assert await own.offer() == ["work"]
    async with own.subscribe("mine"):
        pass
