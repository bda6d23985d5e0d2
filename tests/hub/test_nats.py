"""Several hubs on NATS: clients of each call, and hear, those of all."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import AsyncClient, Context
from rpcstream.errors import (
    CallTimeout,
    ConnectFailed,
    DeadlineExceeded,
    InvalidParams,
    MethodNotFound,
    NotPermitted,
    ProviderGone,
)
from rpcstream.hub import Hub, Rule
from rpcstream.hub import nats as hub_nats
from rpcstream.hub.directory import digest_of
from rpcstream.nats.options import NatsLogin

from ..kit import until
from ..kit.nats_server import NatsCluster, NatsServer, skip_without_program
from .nats_group import PATIENCE, FakeHub, Group, hub_process, offered

# -- calls ------------------------------------------------------------------------------------------------------------


async def test_calls_in_all_forms(group: Group) -> None:
    (_, first), (second_hub, second) = await group.two()
    provider, caller = await group.client(first, name="gpu-1"), await group.client(second)
    cancelled = asyncio.Event()
    heard: asyncio.Queue[Any] = asyncio.Queue()

    @provider
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @provider(name="sensors.heat")
    def heat() -> float:
        return 21.5

    @provider
    async def hold() -> None:
        heard.put_nowait("begun")
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()

    @provider
    async def count(n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number

    @provider
    async def total(numbers: AsyncIterator[int]) -> int:
        return sum([number async for number in numbers])

    @provider
    async def slow(ctx: Context) -> str:
        ctx.progress(0.5)
        return "done"

    @provider
    def double(a: NDArray[np.float64]) -> NDArray[np.float64]:
        return a * 2

    @provider
    def note(text: str) -> None:
        heard.put_nowait(text)

    await provider.offer()
    await until(lambda: offered(second_hub, "add", "note", "gpu-1.sensors.heat"))

    assert await caller.call("add", 2, 3) == 5
    assert await caller.call("gpu-1.add", a=2, b=3) == 5
    assert await caller.call("gpu-1.sensors.heat") == 21.5
    with pytest.raises(InvalidParams):
        await caller.call("add", 2, "three")
    assert [item async for item in caller.stream.count(100)] == list(range(100))

    async def numbers() -> AsyncIterator[int]:
        for number in range(50):
            yield number

    assert await caller.call("total", numbers()) == sum(range(50))
    array = np.arange(1_000_000, dtype=np.float64)  # 8 MB: more than a message of NATS has
    assert (await caller.call("double", array) == array * 2).all()
    small = np.arange(10_000, dtype=np.float64)
    assert (await caller.call("double", small) == small * 2).all()
    await caller.notify("note", "hello")
    assert await asyncio.wait_for(heard.get(), PATIENCE) == "hello"
    async with caller.batch() as batch:
        sums = [batch.call("add", n, 1) for n in range(5)]
    assert [each.result() for each in sums] == [1, 2, 3, 4, 5]
    shares: list[float] = []
    assert await caller.call("slow", on_progress=shares.append) == "done"
    assert shares == [0.5]
    running = caller.submit.hold()
    assert await asyncio.wait_for(heard.get(), PATIENCE) == "begun"
    running.cancel()
    await asyncio.wait_for(cancelled.wait(), PATIENCE)
    cancelled.clear()
    with pytest.raises((CallTimeout, DeadlineExceeded)):
        await caller.call("hold", timeout=0.3)
    await asyncio.wait_for(cancelled.wait(), PATIENCE)
    with pytest.raises(MethodNotFound):
        await caller.call("nothing")
    assert second_hub.stats()["methods_elsewhere"] == 8


@pytest.mark.parametrize("binary", [(True, False), (False, True), (False, False)], ids=str)
async def test_hubs_without_binary_frames(group: Group, binary: tuple[bool, bool]) -> None:
    """What goes to one that reads none is text."""
    (first_hub, first), (second_hub, second) = [await group.hub(binary=each) for each in binary]
    await group.joined()
    provider, caller = await group.client(first, name="p"), await group.client(second)

    @provider
    def double(a: NDArray[np.float64]) -> NDArray[np.float64]:
        return a * 2

    await provider.offer()
    await until(lambda: offered(second_hub, "double"))
    for size in (10_000, 500_000):
        array = np.arange(size, dtype=np.float64)
        async with provider.subscribe("arrays") as arrays:
            assert (await caller.call("double", array) == array * 2).all()
            await caller.publish("arrays", array)
            assert (await asyncio.wait_for(anext(arrays), PATIENCE) == array).all()
    frames = [hub.stats()["frames_sent"] for hub in (first_hub, second_hub)]
    assert not any(count for count, reads_frames in zip(frames, binary, strict=True) if not reads_frames)


async def test_much_at_a_time_does_not_end_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NATS server disconnects a client for which more than 64 MiB wait, by default; here 8 MiB do."""
    skip_without_program()
    monkeypatch.setattr(hub_nats, "WINDOW_TOTAL", 4 * 1024 * 1024)
    with NatsServer(config={"max_pending": 8 * 1024 * 1024}) as own:
        async with AsyncExitStack() as stack:
            group = Group(own.url, "much", stack)
            second_hub, second = await group.hub()
            async with hub_process(own.url, group.name) as (_, first):
                await until(lambda: second_hub.stats()["hubs"] == 1)
                providers = [await group.client(first, name=f"p{n}") for n in range(2)]
                for provider in providers:
                    provider(lambda a: len(a), name="size", shared=True)
                    await provider.offer()
                await until(lambda: offered(second_hub, "p0.size", "p1.size"))
                caller = await group.client(second)
                texts = ["x" * 6_000_000] * 10
                sizes = await asyncio.gather(*(caller.call("size", text) for text in texts))
                assert sizes == [6_000_000] * 10
            assert "Slow Consumer" not in own.log()


async def test_offers_come_and_go(group: Group) -> None:
    (_, first), (second_hub, second) = await group.two()
    provider, caller = await group.client(first, name="p"), await group.client(second)
    provider(lambda: 1, name="one")
    await provider.offer()
    await until(lambda: offered(second_hub, "one", "p.one"))
    provider(lambda: 2, name="two")
    await provider.offer()
    await until(lambda: offered(second_hub, "two"))
    assert await caller.call("two") == 2
    await provider.withdraw("one")
    await until(lambda: not offered(second_hub, "one"))
    with pytest.raises(MethodNotFound):
        await caller.call("one")
    assert second_hub.stats()["clients_elsewhere"] == 1
    assert second_hub.stats()["clients"] == 0
    await provider.close()
    await until(lambda: not second_hub.directory.elsewhere)
    assert not second_hub.directory.routes
    assert second_hub.directory.cost_elsewhere == second_hub.directory.offered_elsewhere == 0


async def test_the_own_providers_are_preferred(group: Group) -> None:
    (first_hub, first), (second_hub, second) = await group.two()
    workers = [await group.client(address, name=name) for address, name in ((first, "a"), (second, "b"), (second, "c"))]
    for worker, name in zip(workers, "abc", strict=True):
        worker(lambda name=name: name, name="who", shared=True)
        await worker.offer()
    await until(lambda: offered(first_hub, "a.who", "b.who", "c.who") and offered(second_hub, "a.who"))
    at_first, at_second = await group.client(first), await group.client(second)
    assert {await at_first.call("who") for _ in range(10)} == {"a"}
    assert {await at_second.call("who") for _ in range(10)} == {"b", "c"}
    assert await at_second.call("a.who") == "a"
    await workers[0].close()
    await until(lambda: not offered(first_hub, "a.who"))
    assert {await at_first.call("who") for _ in range(10)} == {"b", "c"}  # as the other hub distributes them


async def test_names_and_methods_are_those_of_all_hubs(group: Group) -> None:
    (_, first), (second_hub, second) = await group.two()
    one = await group.client(first, name="one")
    one(lambda: 1, name="work")
    await one.offer()
    await until(lambda: offered(second_hub, "work"))
    with pytest.raises(ConnectFailed, match="taken by a client of another hub"):
        await (await group.client(second, name="one")).call("rpc.ping")
    two = await group.client(second, name="two")
    two(lambda: 2, name="work")
    with pytest.raises(InvalidParams, match="is offered by 'one', and not shared"):
        await two.offer()
    nameless = [await group.client(address) for address in (first, second)]
    for client in nameless:
        client(lambda: 3, name="x", shared=True)
        await client.offer()
    assert len({client.registered_name for client in nameless}) == 2


def provider_address(hub: Hub, name: str) -> str:
    return hub.directory.by_name[name].address


async def test_lists_have_what_others_offer(group: Group) -> None:
    (first_hub, first), (second_hub, second) = await group.two()
    provider, caller = await group.client(first, name="p"), await group.client(second, name="c")

    @provider
    def area(shape: tuple[int, int]) -> int:
        """The pixels of a shape."""
        return shape[0] * shape[1]

    provider(lambda note: None, name="note")
    await provider.offer()
    await until(lambda: offered(second_hub, "area"))
    methods = {each["name"]: each for each in await caller.call("rpc.methods")}
    assert methods["area"]["clients"] == ["p"]
    documents = [await client.call("rpc.discover") for client in (caller, provider)]
    here, there = ({each["name"]: each for each in document["methods"]} for document in documents)
    assert here["area"] == there["area"]
    assert here["area"]["x-clients"] == ["p"]
    clients = {each["name"]: each for each in await caller.call("rpc.clients")}
    assert clients.keys() == {"p", "c"}
    assert clients["p"]["hub"] == first_hub.stats()["nats"]["id"]
    assert clients["p"]["methods"] == ["area", "note"]
    assert clients["p"]["in_flight"] is clients["p"]["calls_made"] is clients["p"]["state"] is None
    assert clients["p"]["address"] == provider_address(first_hub, "p")
    assert "hub" not in clients["c"]


async def test_a_client_of_another_hub_is_notified(group: Group) -> None:
    (_, first), (second_hub, second) = await group.two()
    provider, caller = await group.client(first, name="p"), await group.client(second)
    heard: asyncio.Queue[Any] = asyncio.Queue()
    provider(lambda *args, **more: heard.put_nowait((args, more)), name="note")
    await provider.offer()
    await until(lambda: second_hub.directory.named("p") is not None)
    assert await caller.notify_client("p", "note", 1, [2]) is True
    second_hub.notify_client("p", "note", text="from the hub")
    second_hub.notify_client("p", "note")
    got = [await asyncio.wait_for(heard.get(), PATIENCE) for _ in range(3)]
    assert got == [((1, [2]), {}), ((), {"text": "from the hub"}), ((), {})]
    with pytest.raises(InvalidParams, match="no client has the name"):
        await caller.notify_client("q", "note")
    with pytest.raises(LookupError):
        second_hub.notify_client("q", "note")


async def test_rules_are_those_of_the_hub_of_the_caller(group: Group) -> None:
    tokens = {"t1": "worker", "t2": "ada"}
    rules = [Rule("worker", register="*"), Rule("ada", call=["add", "*.add"], subscribe="free.>", publish="free.>")]
    (_, first), (second_hub, second) = await group.two(authenticate=lambda who: tokens.get(who.token), rules=rules)
    provider = await group.client(first, name="p", token="t1")
    caller = await group.client(second, token="t2")
    provider(lambda a, b: a + b, name="add")
    provider(lambda: None, name="secret")
    await provider.offer()
    await until(lambda: offered(second_hub, "add", "secret"))
    assert await caller.call("add", 1, 2) == 3
    assert await caller.call("p.add", 1, 2) == 3
    for name in ("secret", "p.secret"):
        with pytest.raises(NotPermitted):
            await caller.call(name)
    with pytest.raises(NotPermitted):
        await caller.notify_client("p", "secret")
    with pytest.raises(NotPermitted):
        await caller.publish("other", 1)


async def test_calls_of_other_hubs_are_observed(group: Group) -> None:
    """With metrics, logs and traces hubs have other dispatchers; a trace goes on from hub to hub."""
    trace = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    in_memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    spans, provider_of_spans = in_memory.InMemorySpanExporter(), trace.TracerProvider()
    provider_of_spans.add_span_processor(export.SimpleSpanProcessor(spans))
    (first_hub, first), (second_hub, second) = await group.two(
        metrics=True, access_log="text", tracing=provider_of_spans
    )
    provider, caller = await group.client(first, name="p"), await group.client(second)
    provider(lambda n: n, name="same")
    await provider.offer()
    await until(lambda: offered(second_hub, "same"))
    for n in range(5):
        assert await caller.call("same", n) == n
    async with caller.batch() as batch:
        two = [batch.call("same", n) for n in range(2)]
    assert [each.result() for each in two] == [0, 1]
    for hub in (first_hub, second_hub):
        text = hub.metrics_text()
        assert 'rpcstream_calls_total{method="same",code="0"} 7' in text
        assert "rpcstream_hub_hubs 1" in text
        assert "rpcstream_hub_nats_connected 1" in text
        assert hub.stats()["calls_forwarded"] == 7
    assert "rpcstream_hub_methods_elsewhere 1" in second_hub.metrics_text()
    calls = [span for span in spans.get_finished_spans() if "same" in span.name]
    assert len(calls) == 4 * 7  # at each hub one for the caller's request, and one for the provider's
    assert len({span.context.trace_id for span in calls}) == 7


async def test_a_hub_runs_again(group: Group) -> None:
    """Another time, in the same program: it joins again, and nothing of the first time is left."""
    second_hub, second = await group.hub()
    hub = Hub(drain_timeout=5)
    hub.join_nats(group.url, service=group.name)
    ids = set()
    for _ in range(2):
        async with hub.listening(port=0) as address, AsyncClient(address, name="p") as provider:
            provider(lambda: 1, name="one")
            await provider.offer()
            await until(lambda: offered(second_hub, "one"))
            caller = await group.client(second)
            assert await caller.call("one") == 1
            async with provider.subscribe("news") as news:
                assert await caller.publish("news", 5) == 1
                assert await asyncio.wait_for(anext(news), PATIENCE) == 5
            ids.add(hub.stats()["nats"]["id"])
        await until(lambda: second_hub.stats()["hubs"] == 0)
        assert hub.stats()["nats"]["connected"] is False
    assert len(ids) == 2


# -- events -----------------------------------------------------------------------------------------------------------


async def test_events_reach_the_subscribers_of_all_hubs(group: Group) -> None:
    (_, first), (_, second) = await group.two()
    one, two = await group.client(first), await group.client(second)
    async with two.subscribe("sensors.*") as heard, one.subscribe("sensors.cellar") as here:
        assert await one.publish("other", 1) == 0
        for publisher in (one, two):
            assert await publisher.publish("sensors.cellar", {"t": 9.5}) == 2
            assert await asyncio.wait_for(anext(heard), PATIENCE) == {"t": 9.5}
            assert await asyncio.wait_for(anext(here), PATIENCE) == {"t": 9.5}
        array = np.arange(300_000, dtype=np.float64)
        assert await one.publish("sensors.roof", array) == 1
        assert (await anext(heard) == array).all()
        for n in range(200):
            await one.publish("sensors.cellar", n)
        assert [await anext(heard) for _ in range(200)] == list(range(200))
    await until(lambda: not any(len(hub.topics) for hub in group.hubs))
    assert await one.publish("sensors.cellar", 1) == 0


async def test_last_values_are_the_same_everywhere(group: Group) -> None:
    (_, first), (_, second) = await group.two()
    one, two = await group.client(first), await group.client(second)
    for n in range(50):
        await one.publish(f"t.{n}", n, retain=True)
    await two.publish("t.1", "newer", retain=True)
    await two.publish("t.2", None, retain=True)
    async with two.subscribe("t.49") as heard:
        assert await asyncio.wait_for(anext(heard), PATIENCE) == 49
    _, third = await group.hub()
    await group.joined()
    values = [f"t.{n}" for n in range(50) if n != 2]
    for hub in group.hubs:
        await until(lambda hub=hub: sorted(hub.topics.topics_with_values()) == sorted(values))
    for address in (first, second, third):
        client = await group.client(address)
        async with client.subscribe("t.1") as heard:
            assert await asyncio.wait_for(anext(heard), PATIENCE) == "newer"


async def test_comings_and_goings_are_announced_at_all_hubs(group: Group) -> None:
    (_, first), (_, second) = await group.two()
    watcher, provider = await group.client(second), await group.client(first, name="p")
    async with watcher.subscribe("rpc.hub.>").with_topics() as heard:
        provider(lambda: 1, name="one")
        await provider.offer()
        await provider.close()
        topics: list[tuple[str, Any]] = []
        while not topics or topics[-1][0] != "rpc.hub.left":
            topics.append(await asyncio.wait_for(anext(heard), PATIENCE))
    assert [topic for topic, _ in topics] == [
        f"rpc.hub.{each}" for each in ("joined", "registered", "unregistered", "left")
    ]
    assert all(value["name"] == "p" for _, value in topics)


# -- hubs come and go -------------------------------------------------------------------------------------------------


async def test_a_hub_that_joins_later_learns_all(group: Group) -> None:
    (_, first), (_, second) = await group.two()
    providers = [await group.client(address, name=f"p{n}") for n, address in enumerate((first, second))]
    for n, provider in enumerate(providers):
        for m in range(300):
            provider(lambda n=n, m=m: [n, m], name=f"m{n}_{m}")
        await provider.offer()
    third_hub, third = await group.hub()
    await until(lambda: third_hub.stats()["methods_elsewhere"] == 600)
    caller = await group.client(third)
    assert await caller.call("m0_299") == [0, 299]
    assert await caller.call("p1.m1_17") == [1, 17]
    assert third_hub.stats()["hubs"] == 2


async def test_a_provider_comes_to_another_hub_with_its_key(group: Group) -> None:
    """Its first hub has not noticed that it is gone: the name is where the key was shown last."""
    (first_hub, first), (second_hub, second) = await group.two()
    third_hub, third = await group.hub()
    await group.joined()
    caller = await group.client(third)
    old = await group.client(first, name="gpu")
    old(lambda: "old", name="where")
    await old.offer()
    await until(lambda: offered(second_hub, "where") and offered(third_hub, "where"))
    assert await caller.call("where") == "old"
    new = await group.client(second)
    new(lambda: "new", name="where")
    key = first_hub.directory.by_name["gpu"].key
    with pytest.raises(InvalidParams, match="taken by a client of another hub"):
        await new.call("rpc.register", name="gpu", key="0" * 32, methods=["where"])
    assert (await new.call("rpc.register", name="gpu", key=key, methods=["where"]))["key"] == key
    await until(lambda: not first_hub.directory.by_name)
    await until(lambda: offered(first_hub, "where"))
    for address in (first, second, third):
        assert await (await group.client(address)).call("gpu.where") == "new"


async def test_a_name_that_both_sides_have_given_away(group: Group, nats_client: Any) -> None:
    """Hubs that were apart meet: the same client is where it came last, two different ones are both left in peace."""
    hub, address = await group.hub()
    clients = [await group.client(address, name=name) for name in ("older", "newer", "other")]
    for client in clients:
        client(lambda: "here", name="where", shared=True)
        await client.offer()
    older, newer = (hub.directory.by_name[name] for name in ("older", "newer"))
    key = digest_of(newer.key)
    fake = FakeHub(nats_client, hub, group.name)
    await fake.begin()
    await fake.name("newer", key=key, since=newer.since - 1)
    taken = await fake.next_request("rpc.group.taken")
    assert taken["params"] == {"name": "newer", "key": key}
    await fake.name("older", key=digest_of(older.key), since=older.since + 1)
    await until(lambda: "older" not in hub.directory.by_name)
    await fake.name("other")
    await fake.tell("offered", name="other", methods=[{"name": "where", "shared": True}, "only_there"])
    await until(lambda: offered(hub, "other.only_there"))
    assert hub.directory.by_name.keys() == {"newer", "other"}
    caller = await group.client(address)
    assert await caller.call("other.where") == "here"  # its own client comes first
    await clients[2].close()
    await until(lambda: "other" not in hub.directory.by_name)
    call = asyncio.ensure_future(caller.call("other.where"))
    request = await fake.next_request("other.where")
    await fake.say({"jsonrpc": "2.0", "id": request["id"], "result": "there"})
    assert await call == "there"


async def test_hubs_at_different_nodes_of_a_cluster() -> None:
    """A node is killed: its hub joins again by another one, and its clients are called."""
    skip_without_program()
    with NatsCluster(3) as cluster:
        async with AsyncExitStack() as stack:
            nodes = {url.removeprefix("nats://"): node for url, node in zip(cluster.urls, cluster.nodes, strict=True)}
            here, *others = nodes
            group = Group(f"nats://{here}", "cluster", stack)
            first_hub, first = await group.hub()
            group.url = f"nats://{','.join(others)}"
            second_hub, second = await group.hub()
            await group.joined()
            provider, caller = await group.client(second, name="p"), await group.client(first)
            provider(lambda: 1, name="one")
            await provider.offer()
            await until(lambda: offered(first_hub, "one"))
            assert await caller.call("one") == 1
            before = second_hub.stats()["nats"]
            assert before["server"] in others
            nodes[before["server"]].kill()
            after: dict[str, Any] = before
            while not after["connected"] or after["id"] == before["id"]:
                await asyncio.sleep(0.005)
                after = second_hub.stats()["nats"]
            await group.joined()
            await until(lambda: offered(first_hub, "one"))
            assert after["server"] in {*others} - {before["server"]}
            assert await caller.call("one") == 1


async def test_calls_under_load_while_hubs_are_killed(nats: NatsServer, group: Group) -> None:
    """Each call is answered with its own answer, or fails; none hangs."""
    second_hub, second = await group.hub()
    answered = failed = 0
    wrong: list[object] = []

    async def call(client: AsyncClient, number: int) -> None:
        nonlocal answered, failed
        n = number
        while True:
            n += 100
            try:
                async with asyncio.timeout(PATIENCE):
                    result = await client.call("work", n)
                if result != n:
                    wrong.append((n, result))
                answered += 1
            except (ProviderGone, MethodNotFound):
                failed += 1
                await asyncio.sleep(0.01)
            except Exception as error:
                wrong.append(error)
                return

    async with AsyncExitStack() as stack:
        process, first = await stack.enter_async_context(hub_process(nats.url, group.name))
        third, third_address = await stack.enter_async_context(hub_process(nats.url, group.name))
        provider = await group.client(f"{first},{third_address},{second}", name="p", reconnect=True)

        @provider
        async def work(n: int) -> int:
            await asyncio.sleep(0)
            return n

        await provider.offer()
        await until(lambda: offered(second_hub, "work"))
        clients = [await group.client(second) for _ in range(3)]
        calls = [asyncio.ensure_future(call(client, number)) for number, client in enumerate(clients * 8)]
        for each in (process, third):
            count = answered
            await until(lambda count=count: answered > count + 500)  # type: ignore[misc]
            each.kill()
        count = answered
        await until(lambda: "p" in second_hub.directory.by_name and answered > count + 500)
        for task in calls:
            assert not task.done()
            task.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    print(f"{answered} calls were answered, {failed} failed")
    assert not wrong


async def test_calls_are_held_for_a_provider_that_restarts_at_another_hub(group: Group) -> None:
    (_, first), (second_hub, second) = await group.two(grace=20)
    provider, caller = await group.client(first, name="p"), await group.client(second)
    provider(lambda: "first", name="where")
    await provider.offer()
    await until(lambda: offered(second_hub, "where"))
    await provider.close()
    await until(lambda: not offered(second_hub, "where"))
    held = caller.submit.where()
    await until(lambda: second_hub.stats()["calls_held"] == 1)
    again = await group.client(first, name="p")
    again(lambda: "again", name="where")
    await again.offer()
    async with asyncio.timeout(PATIENCE):
        assert await held == "again"


async def test_a_hub_that_stops_loses_no_call(nats: NatsServer, group: Group) -> None:
    """Calls that have begun are answered; later ones go to providers of other hubs."""
    second_hub, second = await group.hub()
    first_hub = Hub(drain_timeout=10)
    first_hub.join_nats(nats.url, service=group.name)
    begun = asyncio.Queue[None]()
    go_on = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        first = await first_hub.start(port=0)
        stack.push_async_callback(first_hub.close)
        provider = await stack.enter_async_context(AsyncClient(first, name="p"))

        @provider(shared=True)
        async def work(n: int) -> int:
            begun.put_nowait(None)
            await go_on.wait()
            return n

        await provider.offer()
        await until(lambda: offered(second_hub, "work"))
        caller = await group.client(second)
        calls = [caller.submit.work(n) for n in range(10)]
        for _ in calls:
            await asyncio.wait_for(begun.get(), PATIENCE)
        closing = asyncio.ensure_future(first_hub.close())
        await until(lambda: not offered(second_hub, "work"))
        go_on.set()
        assert await asyncio.gather(*calls) == list(range(10))
        await closing
    await until(lambda: second_hub.stats()["hubs"] == 0)


async def test_a_provider_of_a_killed_hub_is_called_through_another(nats: NatsServer, group: Group) -> None:
    """It is back within its pause for connecting again, and calls are answered or fail, none hangs."""
    second_hub, second = await group.hub()
    async with hub_process(nats.url, group.name) as (process, first):
        await until(lambda: second_hub.stats()["hubs"] == 1)
        provider = await group.client(f"{first},{second}", name="gpu-1", reconnect=True)
        begun = asyncio.Event()

        @provider
        async def work(n: int) -> int:
            if n < 0:
                begun.set()
                await asyncio.sleep(3600)
            return n

        await provider.offer()
        await until(lambda: offered(second_hub, "gpu-1.work"))
        assert "gpu-1" in second_hub.directory.elsewhere
        caller = await group.client(second)
        assert await caller.call("work", 1) == 1
        hanging = [caller.submit.work(-1) for _ in range(20)]
        await asyncio.wait_for(begun.wait(), PATIENCE)
        loop = asyncio.get_running_loop()
        since = loop.time()
        process.kill()
        await until(lambda: "gpu-1" in second_hub.directory.by_name)
        back = loop.time() - since
        outcomes = await asyncio.wait_for(asyncio.gather(*hanging, return_exceptions=True), PATIENCE)
        failed = loop.time() - since
        assert {type(outcome) for outcome in outcomes} == {ProviderGone}
        assert await caller.call("gpu-1.work", 2) == 2
        print(
            f"the provider was back {back * 1000:.0f} ms after the kill; its calls failed after {failed * 1000:.0f} ms"
        )
        async with hub_process(nats.url, group.name) as (_, third):  # and another hub learns of it again
            at_third = await group.client(third)
            await until(lambda: second_hub.stats()["hubs"] == 1)
            async with asyncio.timeout(PATIENCE):
                while "work" not in [each["name"] for each in await at_third.call("rpc.methods")]:
                    await asyncio.sleep(0.01)
            assert await at_third.call("work", 3) == 3


async def test_a_hub_that_is_cut_off_goes_on_and_joins_again(caplog: pytest.LogCaptureFixture) -> None:
    skip_without_program()
    with NatsServer() as own:
        async with AsyncExitStack() as stack:
            group = Group(own.url, "cut", stack)
            (first_hub, first), (second_hub, second) = await group.two()
            provider, caller = await group.client(first, name="p"), await group.client(second)
            provider(lambda: 1, name="one")
            await provider.offer()
            await until(lambda: offered(second_hub, "one"))
            pending = caller.submit.one()
            assert await pending == 1
            own.kill()
            await until(
                lambda: not second_hub.stats()["nats"]["connected"] and not first_hub.stats()["nats"]["connected"]
            )
            stats = await caller.call("rpc.stats")
            assert stats["hubs"] == 0
            assert stats["nats"]["connected"] is False
            assert stats["nats"]["reason"]
            assert any("cut off from NATS" in record.message for record in caplog.records)
            with pytest.raises(MethodNotFound):
                await caller.call("one")
            assert await (await group.client(first)).call("one") == 1  # its own clients are served
            later = await group.client(first, name="q")
            later(lambda: 2, name="two")
            await later.offer()
            own.restart()
            await until(lambda: offered(second_hub, "one", "two"))
            assert await caller.call("one") == 1
            assert await caller.call("two") == 2
            assert (await caller.call("rpc.stats"))["nats"]["connected"] is True


async def test_a_hub_starts_without_nats_and_joins_when_it_is_there(caplog: pytest.LogCaptureFixture) -> None:
    skip_without_program()
    with NatsServer() as own:
        own.kill()
        async with AsyncExitStack() as stack:
            group = Group(own.url, "late", stack)
            _, first = await group.hub()
            client = await group.client(first)
            stats = await client.call("rpc.stats")
            assert stats["nats"]["connected"] is False
            assert "could not connect" in stats["nats"]["reason"]
            own.restart()
            await group.hub()
            await group.joined()


async def test_a_login_that_nats_does_not_take_is_an_error_at_the_start() -> None:
    skip_without_program()
    users = [
        {"user": "hub", "password": "right"},
        {"user": "other", "password": "right", "permissions": {"subscribe": {"deny": ["rpc.>"]}}},
    ]
    with NatsServer(users=users) as own:
        for login, reason in (
            (NatsLogin(user="hub", password="wrong"), "does not accept this name and password"),
            (NatsLogin(user="other", password="right"), "does not permit this login the subscription to"),
        ):
            hub = Hub()
            hub.join_nats(own.url, login=login)
            with pytest.raises(ConnectFailed, match=reason):
                async with hub.listening(port=0):
                    pass
        hub = Hub()
        hub.join_nats(own.url, login=NatsLogin(user="hub", password="right"))
        async with hub.listening(port=0):
            assert hub.stats()["nats"]["connected"] is True


async def test_the_permissions_that_a_hub_needs() -> None:
    """Those of docs/how-to/nats-security.md, and no more."""
    skip_without_program()
    permissions = {"publish": {"allow": ["rpc.hub.$hub.>"]}, "subscribe": {"allow": ["rpc.hub.$hub.>"]}}
    with NatsServer(users=[{"user": "hub", "password": "right", "permissions": permissions}]) as own:
        async with AsyncExitStack() as stack:
            hubs = Hub(drain_timeout=5), Hub(drain_timeout=5)
            for hub in hubs:
                hub.join_nats(own.url, login=NatsLogin(user="hub", password="right"))
            first, second = [await stack.enter_async_context(hub.listening(port=0)) for hub in hubs]
            provider = await stack.enter_async_context(AsyncClient(first, name="p"))
            caller = await stack.enter_async_context(AsyncClient(second))
            provider(lambda text: len(text), name="size")
            await provider.offer()
            await until(lambda: offered(hubs[1], "size"))
            assert await caller.call("size", "x" * 3_000_000) == 3_000_000
            async with provider.subscribe("news") as news:
                assert await caller.publish("news", 1, retain=True) == 1
                assert await asyncio.wait_for(anext(news), PATIENCE) == 1
        assert "Permissions Violation" not in own.log()


async def test_a_hub_that_does_nothing_is_left(nats: NatsServer, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there for NATS, but does not answer."""
    monkeypatch.setattr(hub_nats, "SAY_EVERY", 0.2)
    monkeypatch.setattr(hub_nats, "LOOK_EVERY", 0.05)
    second_hub, second = await group.hub()
    async with hub_process(nats.url, group.name) as (process, first):
        provider = await group.client(first, name="p")
        provider(lambda: 1, name="one")
        await provider.offer()
        await until(lambda: offered(second_hub, "one"))
        caller = await group.client(second)
        process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(ProviderGone):
                await caller.call("one")
            assert not offered(second_hub, "one")
        finally:
            process.send_signal(signal.SIGCONT)
        await until(lambda: offered(second_hub, "one"))
        assert await caller.call("one") == 1


async def test_what_makes_no_sense_for_a_hub() -> None:
    pytest.importorskip("nats")
    hub = Hub()
    for name in ("only", "trust_identity"):
        with pytest.raises(ValueError, match=f"{name}= is for calls from NATS"):
            hub.join_nats("nats://127.0.0.1", **{name: True})
    with pytest.raises(ValueError, match="up to 64 letters"):
        hub.join_nats("nats://127.0.0.1", service="a.b")
    hub.join_nats("nats://127.0.0.1/vision", only=False)
    with pytest.raises(ValueError, match="one group"):
        hub.join_nats("nats://127.0.0.1")
    async with hub.listening(port=0):
        with pytest.raises(RuntimeError, match="running"):
            hub.join_nats("nats://127.0.0.1")
