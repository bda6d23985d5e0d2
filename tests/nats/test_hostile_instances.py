"""Instances of a service that answer what none of ours answers: the client and its other calls are unharmed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, ConnectFailed, ConnectionLost, RpcError

from ..kit import notification, reply, until
from ..kit.nats_raw_client import RawClient
from .conftest import Clock
from .service import Service

pytestmark = pytest.mark.nats

GONE = b"NATS/1.0 503\r\n\r\n"


class RawInstance:
    """An instance by hand, with one client that calls it.

    Attributes:
        own: its subject.
    """

    def __init__(self, raw: RawClient, service: Service, client: AsyncClient) -> None:
        self.raw = raw
        self.client = client
        self.own = f"{service.root}$instance.by-hand.0"
        self.inbox = ""

    async def next_call(self, method: str | None = None) -> Any:
        """The next call, of a method; not a question of a client that has waited for long."""
        while (message := await self.raw.next()).subject.endswith(".$inquiry") or not message.data:
            pass
        self.inbox = message.reply.rpartition(".")[0]
        return message.json if method in (None, message.json["method"]) else await self.next_call(method)

    async def called(self, method: str) -> tuple[asyncio.Task[Any], Any]:
        """Have the client call a method; gives its task, and the call as it came."""
        task = asyncio.create_task(self.client.call(method))
        return task, await self.next_call(method)

    def send(self, token: str, data: Any, own: str | None = None, head: bytes | None = None) -> None:
        """Send to the inbox of the caller: token `m` for messages, `ack` with the ids of calls that this one has."""
        if token == "ack" and isinstance(data, list):
            token, data = "m", notification("$/session", has=data)
        payload = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.raw.publish(f"{self.inbox}.{token}", payload, own or self.own, head)

    async def check(self, method: str = "check") -> None:
        """The next call of the client is answered."""
        task, call = await self.called(method)
        self.send("m", reply(call["id"], "right"), f"{self.own}check")
        assert await task == "right"


@pytest.fixture
async def instance(service: Service) -> AsyncIterator[RawInstance]:
    async with service.raw() as raw, service.client() as client:
        await raw.subscribe(f"{service.root}*", "rpc")
        yield RawInstance(raw, service, client)


NO_ANSWERS = [
    *(b"\xff", b"5", b"[1,2,3]", b'["q1",5]', b'["q1",[[],{},null,1.5,true,"x",99]]', b"@5 99999\nhello", b"\n\n\n"),
    b'{"jsonrpc":"2.0","id":99,"result":"forged"}',
    b'[{"jsonrpc":"2.0","id":"x","result":"forged"}]',
    b'{"jsonrpc":"2.0","method":"$/progress","params":{"id":99,"value":1}}',
    b'{"jsonrpc":"2.0","method":"$/item","params":{"stream":"x","value":1}}',
    b'{"jsonrpc":"2.0","method":"$/cancel","params":{"id":[]}}',
    b'{"jsonrpc":"2.0","method":"$/credit","params":{"id":1,"n":-5}}',
    b'{"jsonrpc":"2.0","method":"$/session","params":{"to":"?"}}',
    b'{"jsonrpc":"2.0","method":"$/session","params":{"wanted":true,"address":"127.0.0.1:1","secret":"ab"}}',
    b'{"jsonrpc":"2.0","method":"$/session","params":{"has":[99,{}],"alive":1,"failed":[]}}',
]


async def test_messages_that_belong_to_no_call(instance: RawInstance) -> None:
    for data in NO_ANSWERS:
        waiting, call = await instance.called("one")
        for token in ("m", "ack", "1", "q0", "i1", "b1", "x", "9" * 20):
            instance.send(token, data, f"{instance.own}-{token}")
            instance.raw.publish(f"{instance.inbox}.{token}", data)
        instance.send("m", reply(call["id"], "right"))
        assert await waiting == "right", data


async def test_messages_without_content_and_with_headers_end_nothing_of_others(instance: RawInstance) -> None:
    waiting, call = await instance.called("one")
    for token in ("m", "ack", "i7", "q7", "b7", "999"):
        for head in (GONE, GONE.replace(b"3", b"8"), b"NATS/1.0 \xff\r\n\r\n", b"N", None):
            instance.send(token, b"", f"{instance.own}x", head)
            instance.raw.publish(f"{instance.inbox}.{token}", b"", b"", head)
    instance.send("m", reply(call["id"], "right"))
    assert await waiting == "right"


async def test_a_call_is_at_the_instance_that_said_so_first(instance: RawInstance) -> None:
    """Others that say so, too, are not believed: neither is it lost with them, nor is a cancel for them."""
    await instance.raw.subscribe(instance.own)
    waiting, call = await instance.called("one")
    instance.send("ack", [call["id"]])
    for number in range(10):
        liar = f"{instance.own}-{number}"
        instance.send("ack", [call["id"]], liar)
        instance.send("ack", b"", liar, GONE)  # "the session is over"
    await instance.raw.flush()
    await instance.check()
    assert not waiting.done()
    waiting.cancel()
    while not (cancel := await instance.raw.next()).data:  # a look whether it is there
        pass
    assert (cancel.subject, cancel.json["method"]) == (instance.own, "$/cancelRequest")
    assert cancel.json["params"] == {"id": call["id"]}


async def test_an_instance_that_takes_longer(clock: Clock, instance: RawInstance) -> None:
    """A call that was acknowledged is waited for, and its instance is watched."""
    waiting, call = await instance.called("slow")
    await instance.raw.subscribe(instance.own)
    instance.send("ack", [call["id"]])
    await clock.until(lambda: instance.raw.messages.qsize() > 30)
    assert (await instance.raw.next()).subject == instance.own  # it looks whether this instance is there
    instance.send("m", reply(call["id"], "right"))
    assert await waiting == "right"


@pytest.mark.parametrize("is_alive", [True, False])
async def test_a_call_that_is_not_acknowledged(clock: Clock, instance: RawInstance, is_alive: bool) -> None:
    """It is lost when the instances send signs of life; without any the event loop of one may be blocked."""
    waiting, call = await instance.called("slow")
    ends = asyncio.get_running_loop().time() + 12
    if is_alive:
        instance.send("q0", [], "")
    await clock.until(lambda: not instance.raw.messages.empty() or asyncio.get_running_loop().time() > ends)
    if is_alive:
        instance.send("q0", [])
        await clock.until(waiting.done)
        with pytest.raises(ConnectionLost, match="is gone, or the message was lost"):
            await waiting
    else:
        instance.send("m", reply(call["id"], "right"))
        assert await waiting == "right"


async def test_an_instance_that_dies_before_it_answers_whether_it_is_alive(
    clock: Clock, service: Service, instance: RawInstance
) -> None:
    """A call that it may have had is lost, although NATS had still delivered the question to it."""
    own = f"{instance.own}-dying"
    async with service.raw(own) as dying:
        known, call = await instance.called("known")
        instance.send("m", reply(call["id"], 1), own)
        await known
        waiting, _ = await instance.called("slow")
        await clock.until(lambda: not (instance.raw.messages.empty() or dying.messages.empty()))
        instance.send("q0", [], "")  # another one is alive
        await instance.raw.flush()
    await clock.until(waiting.done)
    with pytest.raises(ConnectionLost, match="is gone, or the message was lost"):
        await waiting


async def test_a_cancel_before_the_acknowledgement_is_sent_when_it_comes(instance: RawInstance) -> None:
    await instance.raw.subscribe(instance.own)
    waiting, call = await instance.called("one")
    waiting.cancel()
    await asyncio.wait({waiting})
    instance.send("ack", [call["id"]])
    cancel = await instance.raw.next()
    assert (cancel.subject, cancel.json["params"]) == (instance.own, {"id": call["id"]})


async def test_an_acknowledged_call_is_lost_with_its_instance_and_no_other(clock: Clock, instance: RawInstance) -> None:
    """NATS says that nothing subscribes to the subject of the session; the instance that is there keeps its calls."""
    other = f"{instance.own}-other"
    await instance.raw.subscribe(other)
    (lost, one), (kept, two) = await instance.called("lost"), await instance.called("kept")
    instance.send("ack", [one["id"]])  # nothing subscribes to its subject
    instance.send("ack", [two["id"]], other)
    await clock.until(lost.done)
    with pytest.raises(ConnectionLost, match="the instance is gone"):
        await lost
    instance.send("m", reply(two["id"], "right"), other)
    assert await kept == "right"


@pytest.mark.slow
async def test_endless_instances(instance: RawInstance) -> None:
    """Each answer comes from another subject: those without a call are forgotten, those with one are kept."""
    for number in range(1100):
        waiting, call = await instance.called("one")
        instance.send("m", reply(call["id"], number), f"{instance.own}.{number}")
        assert await waiting == number
    held = [await instance.called("one") for _ in range(30)]
    for number, (_, call) in enumerate(held):
        instance.send("ack", [call["id"]], f"{instance.own}-{number}")
    for number, (_, call) in enumerate(held):
        instance.send("m", reply(call["id"], number), f"{instance.own}-{number}")
    assert await asyncio.gather(*(waiting for waiting, _ in held)) == list(range(30))


async def test_items_without_credit_fail_the_call_alone(instance: RawInstance) -> None:
    waiting, _ = await instance.called("one")
    items = instance.client.stream("many")
    reading = asyncio.create_task(anext(items))
    call = await instance.next_call("many")
    instance.send("ack", [call["id"]])
    for _ in range(2000):
        item = {"jsonrpc": "2.0", "method": "$/item", "params": {"id": call["id"], "value": "x" * 1000}}
        instance.send("m", item)
    assert await reading == "x" * 1000
    with pytest.raises((RpcError, ConnectionLost)):
        async for _ in items:
            pass
    await instance.check()
    waiting.cancel()
    await asyncio.wait({waiting})


async def test_an_instance_that_calls_back_without_end(instance: RawInstance) -> None:
    """Calls to the client wait where it has no room; its own calls are answered."""
    running, gate = 0, asyncio.Event()

    @instance.client
    async def back() -> None:
        nonlocal running
        running += 1
        await gate.wait()

    waiting, call = await instance.called("one")
    for number in range(2000):
        instance.send("m", {"jsonrpc": "2.0", "method": "back", "id": f"c{number}"})
    await until(lambda: running >= 1000)
    await instance.check()
    assert running <= 1024
    gate.set()
    instance.send("m", reply(call["id"], "right"))
    assert await waiting == "right"


async def test_forged_answers_of_nats(clock: Clock, instance: RawInstance) -> None:
    """Who knows the inbox may say that nothing has got a call: the call that it names fails, and no other."""
    (first, one), (second, two) = await instance.called("one"), await instance.called("two")
    instance.raw.publish(f"{instance.inbox}.{one['id']}", b"", b"", GONE)
    await clock.until(first.done)
    assert isinstance(first.exception(), ConnectFailed)
    instance.send("m", reply(two["id"], "second"))
    assert await second == "second"


@pytest.mark.parametrize(
    ("permit", "offer"),
    [
        *((each, None) for each in (5, [], {}, {"session": []}, {"session": "rpc.other"})),
        *((None, each) for each in (5, {}, {"address": [], "secret": "ab"}, {"address": "nowhere", "secret": "ab"})),
    ],
    ids=str,
)
async def test_answers_to_a_large_call_that_make_no_sense(
    clock: Clock, instance: RawInstance, permit: Any, offer: Any
) -> None:
    """The call fails, as one that was not sent."""

    async def answer() -> None:
        while True:
            call = await instance.next_call("rpc.direct")
            result = offer if not call["params"] else {"session": instance.own} if permit is None else permit
            instance.send("m", reply(call["id"], result))

    await instance.raw.subscribe(instance.own)
    answering = asyncio.create_task(answer())
    call = asyncio.create_task(instance.client.call("one", "x" * 2_000_000))
    await clock.until(call.done)
    with pytest.raises((ConnectionLost, ConnectFailed)):
        await call
    answering.cancel()
    await asyncio.wait({answering})
    await instance.check("two")
