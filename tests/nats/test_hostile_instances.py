"""Instances of a service that answer what no instance of ours answers: the client and its other calls are unharmed."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, ConnectFailed, ConnectionLost, RpcError
from rpcstream.nats import calls as nats_calls

from ..kit import until
from ..kit.nats_raw_client import RawClient
from ..kit.nats_server import NatsServer

pytestmark = pytest.mark.nats


class RawInstance:
    """An instance by hand: it is sent calls, and its test says what it answers.

    Attributes:
        own: its subject.
    """

    def __init__(self, raw: RawClient, service: str, number: str) -> None:
        self.raw = raw
        self.own = f"rpc.{service}.$instance.{number}.0"
        self.inbox = ""

    async def next_call(self) -> Any:
        """The next call; not a question of a client that has waited for long."""
        while (message := await self.raw.next()).subject.endswith(".$inquiry"):
            pass
        self.inbox = message.reply.rpartition(".")[0]
        return message.json

    def send(self, token: str, data: Any, own: str | None = None, head: bytes | None = None) -> None:
        """Send to the inbox of the caller: token `m` for messages, `ack`, `have`."""
        payload = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.raw.publish(f"{self.inbox}.{token}", payload, own or self.own, head)

    def answer(self, call: Any, result: Any) -> None:
        self.send("m", {"jsonrpc": "2.0", "id": call["id"], "result": result})


@asynccontextmanager
async def raw_instance(nats: NatsServer, service: str, methods: str = "*") -> AsyncIterator[RawInstance]:
    raw = await RawClient.connect(nats.port)
    instance = RawInstance(raw, service, secrets.token_hex(4))
    await raw.subscribe(f"rpc.{service}.{methods}", "rpc")
    try:
        yield instance
    finally:
        await raw.close()


@asynccontextmanager
async def hostile(nats: NatsServer, **options: Any) -> AsyncIterator[tuple[AsyncClient, RawInstance]]:
    service = f"hostile-{secrets.token_hex(4)}"
    async with raw_instance(nats, service) as instance, AsyncClient(f"{nats.url}/{service}", **options) as client:
        yield client, instance


@pytest.mark.parametrize("token", ["m", "ack", "have", "1", "q1", "i1", "b1", "ticket", "x", "99999999999999999999"])
@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"5",
        b"{}",
        b"[1,2,3]",
        b'["q1",5]',
        b'["q1",[[],{},null,1.5,true,"x",99]]',
        b'{"jsonrpc":"2.0","id":99,"result":"forged"}',
        b'[{"jsonrpc":"2.0","id":"x","result":"forged"}]',
        b'{"jsonrpc":"2.0","method":"$/progress","params":{"id":99,"value":1}}',
        b'{"jsonrpc":"2.0","method":"$/item","params":{"stream":"x","value":1}}',
        b'{"jsonrpc":"2.0","method":"$/cancel","params":{"id":[]}}',
        b'{"jsonrpc":"2.0","method":"$/credit","params":{"id":1,"n":-5}}',
        b'{"jsonrpc":"2.0","method":"$/ticket","params":{"to":"?"}}',
        b'{"jsonrpc":"2.0","method":"nothing","id":5}',
        b"@5 99999\nhello",
        b"\n\n\n",
    ],
    ids=lambda data: str(data[:60]),
)
async def test_messages_that_belong_to_no_call(shared_nats: NatsServer, token: str, data: bytes) -> None:
    async with hostile(shared_nats, timeout=20) as (client, instance):
        waiting = asyncio.create_task(client.call("one"))
        call = await instance.next_call()
        other = f"{instance.own}x"
        instance.send(token, data, other)
        instance.raw.publish(f"{instance.inbox}.{token}", data)
        instance.answer(call, "right")
        assert await waiting == "right"


async def test_messages_without_content_and_with_headers_end_nothing_of_others(shared_nats: NatsServer) -> None:
    async with hostile(shared_nats, timeout=20) as (client, instance):
        waiting = asyncio.create_task(client.call("one"))
        call = await instance.next_call()
        for token in ("m", "ack", "i7", "q7", "b7", "999"):
            for head in (b"NATS/1.0 503\r\n\r\n", b"NATS/1.0 408\r\n\r\n", b"NATS/1.0 \xff\r\n\r\n", b"N", None):
                instance.send(token, b"", f"{instance.own}x", head)
                instance.raw.publish(f"{instance.inbox}.{token}", b"", b"", head)
        instance.answer(call, "right")
        assert await waiting == "right"


async def test_a_call_is_at_the_instance_that_said_so_first(shared_nats: NatsServer) -> None:
    """Others that say so, too, are not believed: neither is it lost with them, nor is a cancel for them."""
    async with hostile(shared_nats, timeout=20) as (client, instance):
        await instance.raw.subscribe(f"{instance.own}")
        waiting = asyncio.create_task(client.call("one"))
        call = await instance.next_call()
        instance.send("ack", [call["id"]])
        for number in range(10):
            liar = f"{instance.own}-{number}"
            instance.send("ack", [call["id"]], liar)
            instance.send("ack", b"", liar, b"NATS/1.0 503\r\n\r\n")  # "the session is over"
        # What comes at the end shows that all before was taken.
        instance.send("m", {"jsonrpc": "2.0", "method": "$/progress", "params": {"id": call["id"], "value": 1}})
        await instance.raw.flush()
        second = asyncio.create_task(client.call("two"))
        instance.answer(await instance.next_call(), "second")
        assert await second == "second"
        assert not waiting.done()
        waiting.cancel()
        cancel = await instance.raw.next()
        while not cancel.data:  # a look whether it is there
            cancel = await instance.raw.next()
        assert cancel.subject == instance.own
        assert cancel.json["params"] == {"id": call["id"]}


async def test_endless_instances(shared_nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer comes from another subject; those without a call are forgotten."""
    monkeypatch.setattr(nats_calls, "INSTANCES_MAX", 10)
    async with hostile(shared_nats, timeout=20) as (client, instance):
        for number in range(50):
            waiting = asyncio.create_task(client.call("one"))
            call = await instance.next_call()
            instance.send("m", {"jsonrpc": "2.0", "id": call["id"], "result": number}, f"{instance.own}.{number}")
            assert await waiting == number
        # These all have a call, so that none can be forgotten; the answer of one more is taken all the same.
        held = [asyncio.create_task(client.call("one")) for _ in range(11)]
        calls = [await instance.next_call() for _ in held]
        for number, call in enumerate(calls):
            instance.send("ack", [call["id"]], f"{instance.own}-{number}")
        for number, call in enumerate(calls):
            reply = {"jsonrpc": "2.0", "id": call["id"], "result": number}
            instance.send("m", reply, f"{instance.own}-{number}")
        assert await asyncio.gather(*held) == list(range(11))


async def test_items_without_credit_fail_the_call_alone(shared_nats: NatsServer) -> None:
    async with hostile(shared_nats, timeout=20) as (client, instance):
        waiting = asyncio.create_task(client.call("one"))
        first = await instance.next_call()
        items = client.stream("many")
        reading = asyncio.create_task(anext(items))
        call = await instance.next_call()
        instance.send("ack", [call["id"]])
        message = {"jsonrpc": "2.0", "method": "$/item", "params": {"id": call["id"], "value": "x" * 1000}}
        for _ in range(2000):
            instance.send("m", message)
        assert await reading == "x" * 1000
        with pytest.raises((RpcError, ConnectionLost)):
            async for _ in items:
                pass
        again = asyncio.create_task(client.call("two"))
        instance.answer(await until_method(instance, "two"), "second")
        assert await again == "second"
        assert not waiting.done() or waiting.exception() is not None
        waiting.cancel()
        assert first["method"] == "one"


async def until_method(instance: RawInstance, method: str) -> Any:
    """The next call of a method."""
    while (call := await instance.next_call())["method"] != method:
        pass
    return call


async def test_an_instance_that_calls_back_without_end(shared_nats: NatsServer) -> None:
    """Calls to the client wait where it has no room; its own calls are answered."""
    async with hostile(shared_nats, timeout=20) as (client, instance):
        running, gate = [0], asyncio.Event()

        @client
        async def back() -> str:
            running[0] += 1
            await gate.wait()
            return "back"

        waiting = asyncio.create_task(client.call("one"))
        call = await instance.next_call()
        request = {"jsonrpc": "2.0", "method": "back"}
        for number in range(5000):
            instance.send("m", request | {"id": f"c{number}"})
        await instance.raw.flush()
        await until(lambda: running[0] >= 1000)
        second = asyncio.create_task(client.call("two"))
        other = await instance.next_call()
        instance.send("m", {"jsonrpc": "2.0", "id": other["id"], "result": "second"}, f"{instance.own}x")
        assert await second == "second"
        assert running[0] <= 1024
        gate.set()
        instance.answer(call, "right")
        assert await waiting == "right"


async def test_forged_answers_of_nats(shared_nats: NatsServer) -> None:
    """Who knows the inbox may say that nothing has got a call: the call that it names fails, and no other."""
    async with hostile(shared_nats, timeout=20) as (client, instance):
        first = asyncio.create_task(client.call("one"))
        one = await instance.next_call()
        second = asyncio.create_task(client.call("two"))
        two = await instance.next_call()
        instance.raw.publish(f"{instance.inbox}.{one['id']}", b"", b"", b"NATS/1.0 503\r\n\r\n")
        with pytest.raises(ConnectFailed):
            await first
        instance.answer(two, "second")
        assert await second == "second"
