"""One instance of a service: which message is whose, sessions that come and go, and the order of the end."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, Context, Limits, Server
from rpcstream.nats import callers

from ..kit import until
from ..kit.nats_raw_client import RawClient
from ..kit.nats_server import NatsServer
from ..kit.plain_nats import plain_client

pytestmark = pytest.mark.nats


class Served:
    """A server, its address, and what its methods have done."""

    def __init__(self, **limits: Any) -> None:
        self.server = Server(limits=Limits(**limits))
        self.address = self.root = ""
        self.gate = asyncio.Event()
        self.done: list[Any] = []
        self.begun = 0

        @self.server
        def add(a: int, b: int) -> int:
            self.done.append("add")
            return a + b

        @self.server
        def secret() -> str:
            self.done.append("secret")
            return "secret"

        @self.server
        async def wait() -> str:
            self.begun += 1
            await self.gate.wait()
            return "waited"

        @self.server
        async def ask_back(ctx: Context) -> Any:
            self.begun += 1
            await self.gate.wait()
            return await ctx.peer.call("answer")

        @self.server
        async def count(upto: int) -> AsyncIterator[int]:
            self.begun += 1
            for number in range(upto):
                yield number
                if not number:
                    await self.gate.wait()


@asynccontextmanager
async def serving(nats: NatsServer) -> AsyncIterator[Served]:
    served = Served()
    service = f"served-{secrets.token_hex(4)}"
    served.root = f"rpc.{service}"
    served.server.join_nats(nats.url, service=service, only=True)
    async with served.server.listening() as address:
        served.address = address
        try:
            yield served
        finally:
            served.gate.set()


@asynccontextmanager
async def raw_client(nats: NatsServer, *subjects: str) -> AsyncIterator[RawClient]:
    raw = await RawClient.connect(nats.port)
    for subject in subjects:
        await raw.subscribe(subject)
    try:
        yield raw
    finally:
        await raw.close()


# -- the method of the subject ----------------------------------------------------------------------------------------


def frame(text: bytes, *payloads: bytes) -> bytes:
    return b"@%s\n" % b" ".join(b"%d" % len(each) for each in (text, *payloads)) + text + b"".join(payloads)


@pytest.mark.parametrize(
    "message",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"secret"}',
        b'{"jsonrpc":"2.0","id":1,"method":"add","method":"secret"}',
        b'{"jsonrpc":"2.0","method":"secret","id":1,"params":[],"\\u006dethod":"secret"}',
        b'{"jsonrpc":"2.0","id":1,"method":"add","params":[],"\\u006dethod":"secret"}',
        b'{"jsonrpc":"2.0","id":1,"method":"\\u0073ecret"}',
        b'[{"jsonrpc":"2.0","id":1,"method":"secret"}]',
        b'[{"jsonrpc":"2.0","id":1,"method":"add","params":[1,2]},{"jsonrpc":"2.0","id":2,"method":"secret"}]',
        b'{"jsonrpc":"2.0","method":"secret"}',
        b' \n{"jsonrpc":"2.0","id":1,"method":"secret"}',
        b'{"jsonrpc":"2.0","id":1,"method":"add","params":[1,2]}\n{"jsonrpc":"2.0","id":2,"method":"secret"}',
        frame(b'{"jsonrpc":"2.0","id":1,"method":"secret"}'),
        frame(b'{"jsonrpc":"2.0","id":1,"method":"add","method":"secret"}'),
        frame(b'[{"jsonrpc":"2.0","id":1,"method":"secret"}]'),
        frame(b'{"jsonrpc":"2.0","id":1,"method":"add"}', b'{"jsonrpc":"2.0","id":1,"method":"secret"}'),
        b'{"jsonrpc":"2.0","id":1,"x":"' + b"x" * 300_000 + b'","method":"add","method":"secret"}',
        b'{"jsonrpc":"2.0","id":1,"method":"secret","x":"' + b"x" * 300_000 + b'"}',
    ],
    ids=lambda message: message[:50],
)
@pytest.mark.parametrize("reply", ["plain.1", "mine.rpcstream.1"])
async def test_a_message_calls_the_method_of_its_subject_or_nothing(
    shared_nats: NatsServer, message: bytes, reply: str
) -> None:
    """NATS permits subjects: whoever may publish to one method must not call another one there."""
    async with serving(shared_nats) as served, raw_client(shared_nats, "plain.*", "mine.rpcstream.*") as raw:
        raw.publish(f"{served.root}.add", message, reply)
        raw.publish(f"{served.root}.add", b'{"jsonrpc":"2.0","id":9,"method":"add","params":[1,2]}', reply)
        while b'"id":9' not in (await raw.next()).data:
            pass
        assert "secret" not in served.done


async def test_the_method_of_a_subject_of_the_instance(shared_nats: NatsServer) -> None:
    async with serving(shared_nats) as served, raw_client(shared_nats, "mine.rpcstream.*") as raw:
        call = b'{"jsonrpc":"2.0","id":1,"method":"add","params":[1,2]}'
        own = (await raw.request(f"{served.root}.add", call, "mine.rpcstream.1")).reply
        for subject in (own, f"{own}.add", f"{own}.%FF", f"{own}.$batch"):
            for text in (
                b'{"jsonrpc":"2.0","id":1,"method":"secret"}',
                b'[{"jsonrpc":"2.0","id":1,"method":"secret"}]',
            ):
                answer = await raw.request(subject, text, "mine.rpcstream.2")
                assert b"-32600" in answer.data, (subject, answer)
        assert "secret" not in served.done
        answer = await raw.request(f"{own}.secret", b'{"jsonrpc":"2.0","id":1,"method":"secret"}', "mine.rpcstream.2")
        assert answer.json["result"] == "secret"


# -- callers ----------------------------------------------------------------------------------------------------------


async def test_requests_of_plain_nats(shared_nats: NatsServer) -> None:
    """One message is answered with one; a notification with none, and what it calls is carried out."""
    async with serving(shared_nats) as served:
        async with plain_client(shared_nats.url) as plain:
            call = {"jsonrpc": "2.0", "id": "x", "method": "add", "params": [1, 2]}
            answer = await plain.request(f"{served.root}.add", json.dumps(call).encode(), 10)
            assert json.loads(answer.data) == {"jsonrpc": "2.0", "id": "x", "result": 3}
            many = await asyncio.gather(
                *[plain.request(f"{served.root}.add", json.dumps(call | {"id": n}).encode(), 10) for n in range(50)]
            )
            assert [json.loads(each.data)["id"] for each in many] == list(range(50))
            batch = [call | {"id": 1}, call | {"id": 2, "method": "secret", "params": []}]
            answer = await plain.request(f"{served.root}.$batch", json.dumps(batch).encode(), 10)
            assert [each["result"] for each in json.loads(answer.data)] == [3, "secret"]
            served.done.clear()
            del call["id"]
            await plain.publish(f"{served.root}.add", json.dumps(call).encode())
            await until(lambda: served.done == ["add"])
        await until(lambda: served.server.stats()["connections"] == 0)


async def test_the_number_of_a_session_is_not_to_be_guessed(shared_nats: NatsServer) -> None:
    async with serving(shared_nats) as served, raw_client(shared_nats, "*.rpcstream.*") as raw:
        call = b'{"jsonrpc":"2.0","id":1,"method":"add","params":[1,2]}'
        numbers: list[str] = []
        for name in "abcdefgh":
            own = (await raw.request(f"{served.root}.add", call, f"{name}.rpcstream.1")).reply
            numbers.append(own.rpartition(".")[2])
            again = (await raw.request(f"{served.root}.add", call, f"{name}.rpcstream.2")).reply
            assert again == own
        assert len(set(numbers)) == 8
        assert all(len(number) == 16 for number in numbers)


async def test_a_silent_caller_is_forgotten_and_may_come_back(
    shared_nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "FORGET_AFTER", 0.05)
    served = Served(idle_timeout=0.1)  # so often it is looked after
    served.server.join_nats(shared_nats.url, service="forgets", only=True)
    async with served.server.listening() as address, AsyncClient(address) as client:
        assert await client.call("add", 1, 2) == 3
        held = asyncio.create_task(client.call("wait"))
        async with AsyncClient(address) as other:
            for _ in range(3):
                assert await other.call("add", 2, 2) == 4
                await until(lambda: served.server.stats()["connections"] == 1)  # that of the call which waits
        served.gate.set()
        assert await held == "waited"


async def test_methods_that_are_added_while_it_runs(shared_nats: NatsServer) -> None:
    async with serving(shared_nats) as served, AsyncClient(served.address) as client:
        assert await client.call("add", 1, 2) == 3

        @served.server
        def later(x: int) -> int:
            return x * 2

        assert await client.call("later", 4, wait_for=20) == 8


# -- the end ----------------------------------------------------------------------------------------------------------


async def test_all_that_nats_had_sent_is_answered_when_the_server_stops(shared_nats: NatsServer) -> None:
    """Calls, a batch, a stream, and a handler that calls back; then the service is gone."""
    served = Served()
    served.server.join_nats(shared_nats.url, service="stops", only=True)
    listening = asyncio.Event()
    serving = asyncio.create_task(served.server.serve(on_listening=lambda address: listening.set()))
    await listening.wait()
    async with AsyncClient(f"{shared_nats.url}/stops", timeout=20) as client:

        @client
        def answer() -> str:
            return "back"

        items = client.stream("count", 30)
        assert await anext(items) == 0
        calls = [asyncio.create_task(client.call("wait")) for _ in range(20)]
        calls.append(asyncio.create_task(client.call("ask_back")))
        await until(lambda: served.begun == 22)
        served.server.stop()
        served.gate.set()
        assert await asyncio.gather(*calls) == ["waited"] * 20 + ["back"]
        assert [number async for number in items] == list(range(1, 30))
        await serving


async def test_an_instance_joins_again_once_although_its_node_is_lost_while_it_joins(
    start_nats: Callable[..., NatsServer],
) -> None:
    nats = start_nats()
    again: dict[str, Any] = {"retries": 5, "retry": "all", "wait_for": 30, "timeout": 30}
    async with serving(nats) as served, AsyncClient(served.address, **again) as client:
        assert await client.call("add", 1, 2) == 3
        for _ in range(3):
            nats.kill()
            await asyncio.to_thread(nats.restart)
            await until(lambda: any(each.get("subscriptions") for each in connections_of(nats)))
            nats.kill()  # perhaps in the middle of its subscriptions
            await asyncio.to_thread(nats.restart)
            async with AsyncClient(served.address, wait_for=30, timeout=30) as other:
                assert await other.call("add", 1, 2) == 3
        names = [each["name"] for each in connections_of(nats) if each["name"].startswith("rpcstream served")]
        assert len(names) == 1, names


def connections_of(nats: NatsServer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = nats.monitor("/connz?subs=1")["connections"]
    return found
