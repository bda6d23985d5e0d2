"""Attacks on a hub by its clients: registrations, long lists, patterns, events and time-outs."""

from __future__ import annotations

import asyncio
import itertools

import orjson

from rpcstream import Server
from rpcstream.hub import Hub, Rule

from .harness import KIB, MIB, RawConnection, ServerUnderAttack, attack, limits, request

#: Rules of a hub where everybody is who they say.
CAMERA = Rule("camera", name="camera", register="camera.>")
SENSORS = Rule("sensors", register="sensors.*")
GPU = Rule("gpu", name="gpu-1", register="vectorize")
CALLER = Rule("caller", name="caller", call=">")


def hub() -> Hub:
    return Hub(keepalive_timeout=None)


def hub_with_rules() -> Hub:
    return Hub(rules=[CAMERA, SENSORS, GPU, CALLER], authenticate=lambda credentials: credentials.token)


def small_hub() -> Hub:
    """What waits for slow connections has little room here, so that the attack need not be large."""
    return Hub(keepalive_timeout=None, limits=limits(max_held_total=256 * MIB))


def ticking() -> Server:
    server = Server()

    @server
    def tick(first: int, count: int) -> int:
        return sum([server.publish(f"t{number}", first) for number in range(first, first + count)])

    return server


async def known(target: ServerUnderAttack, user: str) -> RawConnection:
    raw = await target.connect()
    assert "result" in await raw.call("rpc.authenticate", {"token": user})
    return raw


async def registered(target: ServerUnderAttack, name: str, methods: list[str]) -> RawConnection:
    raw = await target.connect()
    reply = await raw.call("rpc.register", {"name": name, "methods": methods})
    assert "result" in reply, reply
    return raw


def error_of(reply: dict[str, dict[str, int]]) -> int:
    return reply.get("error", {}).get("code", 0)


def must(fact: object, what: str) -> None:
    """Also where Python leaves assertions out."""
    if not fact:
        raise AssertionError(what)


@attack(
    3,
    "a client that its rules allow one thing offers what others are called for",
    hub_with_rules,
    memory=16 * MIB,
    token="caller",
)
async def rules_of_registering(target: ServerUnderAttack) -> None:
    camera, sensors, caller = [await known(target, user) for user in ("camera", "sensors", "caller")]
    gpu = await known(target, "gpu")
    await gpu.result("rpc.register", {"name": "gpu-1", "methods": ["vectorize"]})
    gpu.close()
    while error_of(await caller.call("gpu-1.vectorize")) != -32601:
        await asyncio.sleep(0.01)
    for method in ("vectorize", "login", "gpu-1.vectorize", "front"):
        reply = await camera.call("rpc.register", {"name": "camera", "methods": [method]})
        must(error_of(reply) == -32006, f"the camera may not offer {method}: {reply}")
    for name in ("sensors", "gpu-1", "camera"):
        reply = await sensors.call("rpc.register", {"name": name, "methods": ["shutdown"]})
        must(error_of(reply) == -32006, f"nor sensors shutdown, as {name}: {reply}")
    for called in ("vectorize", "login", "gpu-1.vectorize", "sensors.shutdown"):
        must(error_of(await caller.call(called)) == -32601, f"{called} is nobody's")


@attack(
    5,
    "300 rpc.methods and 100 rpc.discover at a hub with 20,000 methods, twenty at a time; it changes all the time",
    hub,
    memory=192 * MIB,
    log=512 * KIB,
)
async def long_lists(target: ServerUnderAttack) -> None:
    for number in range(20 if target.whole else 6):
        await registered(target, f"client-{number}", [f"method-{number}-{each}" for each in range(1000)])
    changing = await target.connect()
    for start, method in itertools.product(range(0, 300 if target.whole else 20, 20), ("rpc.methods", "rpc.discover")):
        raw = await target.connect()
        batch = [{"jsonrpc": "2.0", "id": number, "method": method} for number in range(20)]
        raw.write(orjson.dumps(batch) + b"\n")
        await changing.send(request("rpc.register", {"name": "changing", "methods": [f"m{start}"]}))
        replies = await raw.reply()
        must(len(replies) == 20, "all are answered")
        raw.write(b"".join([request(method, call_id=number) for number in range(5)]))
        for _ in range(5):
            reply = await raw.reply()
            must(len(reply["result"] if method == "rpc.methods" else reply["result"]["methods"]) >= 6_000, "in full")
        raw.close()


@attack(7, "300 connections offer 1,000 methods with short names each", hub, memory=192 * MIB, log=256 * KIB)
async def offers(target: ServerUnderAttack) -> None:
    refused = 0
    for number in range(300):
        raw = await target.connect()
        methods = [f"m{number}x{each}" for each in range(1000)]
        reply = await raw.call("rpc.register", {"name": f"c{number}", "methods": methods})
        must("result" in reply or error_of(reply) == -32002, f"{reply}"[:200])
        refused += "error" in reply
    must(refused, "300,000 methods are more than the default limits have room for")


@attack(7, "1,000 small events of each of 100 topics for a connection that does not read", ticking, memory=128 * MIB)
async def small_events(target: ServerUnderAttack) -> None:
    raw, caller = await target.connect(), await target.connect()
    for number in range(100):
        await raw.result("rpc.subscribe", {"topic": f"t{number}"})
    raw.pause_reading()
    for _ in range(1500):
        must((await caller.call("tick", [0, 100]))["result"] == 100, "published")


@attack(
    11,
    "30 connections with 256 patterns that match the same topic, and 200 events",
    hub,
    memory=192 * MIB,
    wait=0.1,
    in_suite=False,
)
async def patterns(target: ServerUnderAttack) -> None:
    raws = []
    for number in range(30):
        raw = await target.connect()
        last = "*" if number % 2 else "a"
        texts = [f"{each:08b}".replace("0", "a").replace("1", "*") for each in range(256)]
        lines = [request("rpc.subscribe", [".".join([*text, last])]) for text in texts]
        await raw.send(b"".join(lines))
        for _ in lines:
            reply = await raw.reply()
            must("result" in reply or error_of(reply) == -32002, f"{reply}")
        raws.append(raw)
    publisher = await target.connect()
    for _ in range(200 if target.whole else 30):
        await publisher.result("rpc.publish", [".".join(["a"] * 9), 1])


@attack(12, "40 MiB of different events for each of 10 connections that do not read", small_hub, memory=224 * MIB)
async def large_events(target: ServerUnderAttack) -> None:
    publisher = await target.connect()
    for number in range(10):
        raw = await target.connect()
        await raw.result("rpc.subscribe", {"topic": f"large.{number}"})
        raw.pause_reading()
    for turn in range(20):
        for number in range(10):
            reply = await publisher.call("rpc.publish", [f"large.{number}", f"{turn}.{number}" + "x" * 2 * MIB])
            must("result" in reply, f"{reply}"[:200])
    small = await target.connect()
    await small.result("rpc.subscribe", {"topic": "small"})
    must((await publisher.call("rpc.publish", ["small", 1]))["result"] == 1, "those that read are sent theirs")
    must((await small.reply())["params"]["value"] == 1, "which come")


@attack(12, "a client publishes 30 MiB, where events have 16 at most", hub, memory=192 * MIB)
async def too_large_an_event(target: ServerUnderAttack) -> None:
    raws = await target.connect_many(30)
    for raw in raws:
        await raw.result("rpc.subscribe", {"topic": "large"})
    publisher = await target.connect()
    for number in range(3):
        reply = await publisher.call("rpc.publish", ["large", f"{number}" + "x" * 30 * MIB])
        must(error_of(reply) == -32001, f"{reply}"[:200])


#: Processor seconds of the server for 3,000 calls that are too late, besides those for the other caller.
DEADLINES = 1.0


@attack(
    15,
    "30,000 calls wait at a provider, and 3,000 of them end one after the other, each at its own time",
    hub,
    memory=192 * MIB,
    in_suite=False,
)
async def deadlines(target: ServerUnderAttack) -> None:
    provider = await registered(target, "p", ["work"])
    reading = asyncio.ensure_future(_drain(provider))
    raws = await target.connect_many(30)
    for raw in raws:
        raw.write(b"".join([request("work", [], each, timeout=600) for each in range(900)]))
        must((await raw.call("rpc.ping", call_id="ping"))["result"] == "pong", "all are under way")
    watch = await target.connect()
    used, requests = await _spent(target, watch)
    await asyncio.sleep(1)
    more, others = await _spent(target, watch)
    for_each = (more - used) / (others - requests)  # the other caller goes on
    for number, raw in enumerate(raws):
        times = [1.0 + (each + number / 30) * (0.06 if target.whole else 0.02) for each in range(100)]
        raw.write(b"".join([request("work", [], 900 + each, timeout=seconds) for each, seconds in enumerate(times)]))
    for raw in raws:
        must((await raw.call("rpc.ping", call_id="ping"))["result"] == "pong", "these, too")
    used, requests = await _spent(target, watch)
    for raw in raws:
        for _ in range(100):
            must(error_of(await raw.reply()) == -32003, "it is too late")
    more, others = await _spent(target, watch)
    reading.cancel()
    spent = more - used - (others - requests) * for_each
    must(spent < DEADLINES, f"it took {spent:.1f} s of the processor, {DEADLINES} are allowed")


async def _spent(target: ServerUnderAttack, watch: RawConnection) -> tuple[float, int]:
    """Processor seconds of the server until now, and requests that it had."""
    return target.processor(), (await watch.call("rpc.stats"))["result"]["requests"]


async def _drain(raw: RawConnection) -> None:
    while await raw.reader.read(MIB):
        pass


@attack(19, "a tagged array in every place of a registration", hub, memory=48 * MIB, log=16 * KIB)
async def tagged_registrations(target: ServerUnderAttack) -> None:
    array = {"$type": "ndarray", "dtype": "<f4", "shape": [1], "data": "AACAPw=="}
    good = {"name": "p", "methods": [{"name": "m"}], "components": {"X": {}}}
    raw = await target.connect()
    for bad in (
        {**good, "name": array},
        {**good, "methods": array},
        {**good, "methods": [array]},
        {**good, "methods": [{"name": array}]},
        {**good, "methods": [{"name": "m", "params": array}]},
        {**good, "components": array},
        {**good, "components": {"X": array}},
        ["p", [], array],
    ):
        for _ in range(20):
            reply = await raw.call("rpc.register", bad)
            must(error_of(reply) == -32602, f"{bad}: {reply}")


@attack(
    31,
    "a provider says that it has read none of 20,000 calls, again and again; others offer the same",
    hub,
    memory=192 * MIB,
    in_suite=False,
)
async def calls_that_are_not_read(target: ServerUnderAttack) -> None:
    callers = await target.connect_many(20 if target.whole else 4)
    providers = [await shared(target, "p0")]
    reading = [asyncio.ensure_future(_drain(providers[0]))]
    for raw in callers:
        raw.write(b"".join([request("work", [], each, timeout=600) for each in range(1000)]))
        must((await raw.call("rpc.ping", call_id="ping"))["result"] == "pong", "all are under way")
    for number in range(1, 4):
        providers.append(await shared(target, f"p{number}"))
        reading.append(asyncio.ensure_future(_drain(providers[-1])))
        providers[-2].write(request("$/goAway", {"last": None}, None) * 100)
        must((await callers[0].call("rpc.ping", call_id="ping"))["result"] == "pong", "the others go on")
    providers[-1].write(request("$/goAway", {"last": None}, None))
    for raw in callers:
        must(error_of(await raw.reply()) == -32007, "none is left that would take them")
    for each in reading:
        each.cancel()


async def shared(target: ServerUnderAttack, name: str) -> RawConnection:
    raw = await target.connect()
    await raw.result("rpc.register", {"name": name, "methods": [{"name": "work", "shared": True}]})
    return raw


@attack(
    33,
    "unknown names by the thousand at a hub with 40,000 methods that change all the time",
    hub,
    memory=192 * MIB,
    log=512 * KIB,
    in_suite=False,
)
async def unknown_names(target: ServerUnderAttack) -> None:
    for number in range(40 if target.whole else 4):
        await registered(target, f"client-{number}", [f"method-{number}-{each}" for each in range(1000)])
    changing, raw = await target.connect(), await target.connect()
    for turn in range(20):
        await changing.send(request("rpc.register", {"name": "changing", "methods": [f"m{turn}"]}))
        await raw.send(b"".join([request(f"methd-{each}-{each}", [], each) for each in range(1000)]))
        must(all(error_of(reply) == -32601 for reply in await raw.replies(1000)), "each is answered")
