"""The async client at a hub: its name, its methods, and both again after a lost connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, TypedDict

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from rpcstream import (
    AsyncClient,
    Backoff,
    CallTimeout,
    ConnectFailed,
    ConnectionLost,
    EncodeError,
    InternalError,
    InvalidParams,
    MethodNotFound,
    ProviderGone,
    Server,
)
from rpcstream.peer.remote import Peer
from rpcstream.testing import serve_in_thread
from rpcstream.transports.memory import join

from ..internals import client_connections, connection_at_hub
from ..kit import until
from .fake_hub import FakeHub

Scripted = Callable[[Callable[[Any], None]], str]

AT_ONCE = Backoff(first=0.001, longest=0.01)


class Reading(TypedDict):
    celsius: float


@pytest.fixture
async def hub() -> FakeHub:
    return FakeHub()


@pytest.fixture
async def address(hub: FakeHub) -> AsyncIterator[str]:
    async with hub.server.listening(port=0) as address:
        yield address


def offer_add(client: AsyncClient) -> None:
    @client
    def add(a: int, b: int = 2) -> int:
        """Adds.

        Two numbers.
        """
        return a + b


# -- the name ----------------------------------------------------------------------------------------------------------


async def test_the_name_is_registered_before_any_call(hub: FakeHub, address: str) -> None:
    sent: list[bytes] = []
    trace = lambda direction, message: sent.append(message) if direction == "send" else None  # noqa: E731
    async with AsyncClient(address, name="gpu-1", trace=trace) as client:
        assert client.registered_name == "gpu-1"
        assert hub.said == [], "nothing is connected before it is needed"
        assert await asyncio.gather(*(client.who() for _ in range(3))) == ["gpu-1"] * 3
    assert hub.registrations == [{"name": "gpu-1"}]
    assert b'"rpc.register"' in sent[0]


async def test_what_is_said_first_comes_before_the_name_and_subscriptions_behind_it(address: str) -> None:
    sent: list[bytes] = []
    trace = lambda direction, message: sent.append(message) if direction == "send" else None  # noqa: E731
    async with AsyncClient(address, name="gpu-1", trace=trace, reconnect=AT_ONCE, token="secret") as client:

        @client.on_connect
        async def hello(server: Peer) -> None:
            await server.call("rpc.ping")

        @client.on_connect
        async def again(server: Peer) -> None:
            await server.call("rpc.stats")

        async with client.subscribe("a"):
            sent.clear()
            client_connections(client)[0].abort("cut")
            await client.who()
            words = ("rpc.authenticate", "rpc.ping", "rpc.stats", "rpc.register", "rpc.subscribe", "who")
            assert [next(word for word in words if word.encode() in line) for line in sent] == list(words)


async def test_one_connection_of_the_pool_has_the_name(hub: FakeHub, address: str) -> None:
    async with AsyncClient(address, name="gpu-1", pool=3, reconnect=AT_ONCE) as client:
        await until(lambda: len(client_connections(client)) == 3)
        assert hub.registrations == [{"name": "gpu-1"}]
        hub.cut()
        await until(lambda: len(hub.said) == 2 and len(client_connections(client)) == 3)
    assert hub.registrations == [{"name": "gpu-1"}, {"name": "gpu-1", "key": "key of gpu-1"}]


async def test_a_name_that_is_taken_is_no_connection(hub: FakeHub, address: str) -> None:
    async with AsyncClient(address, name="gpu-1") as first, AsyncClient(address, name="gpu-1") as second:
        await first.who()
        with pytest.raises(ConnectFailed, match=r"could not be registered as 'gpu-1': .*gpu-1 is taken.*'who'"):
            await second.who()
        with pytest.raises(ConnectFailed, match="gpu-1 is taken"):
            await second.offer()
        assert await first.who() == "gpu-1"
        await first.close()
        hub.forget()
        assert await second.who() == "gpu-1"


async def test_with_reconnect_a_name_that_is_taken_is_told_at_once(
    hub: FakeHub, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, however often it is tried again; and the client has it as soon as it is free."""
    hub.refused.add("gpu-1")
    async with AsyncClient(address, name="gpu-1", reconnect=AT_ONCE) as client:
        with pytest.raises(ConnectFailed, match="gpu-1 is taken"):
            await client.who()
        tried = len(hub.said)
        await until(lambda: len(hub.said) > tried + 3)
        warnings = [record.getMessage() for record in caplog.records if record.name == "rpcstream.client"]
        assert [("gpu-1 is taken" in text, "attempt is made in" in text) for text in warnings] == [(True, True)]
        hub.refused.clear()
        await until(lambda: client.state == "connected")
        assert await client.who() == "gpu-1"


async def test_a_server_that_is_no_hub() -> None:
    async with Server().listening(port=0) as address:
        async with AsyncClient(address, name="gpu-1") as named:
            with pytest.raises(ConnectFailed, match="is no hub"):
                await named.call("rpc.ping")
        async with AsyncClient(address) as client:
            offer_add(client)
            with pytest.raises(MethodNotFound, match=r"is no hub.*'rpc.register' at 127"):
                await client.offer()
            with pytest.raises(MethodNotFound):
                await client.publish("a", 1)
            assert await client.call("rpc.ping") == "pong"


async def test_a_hub_that_does_not_answer(hub: FakeHub, address: str) -> None:
    hub.silent = True
    async with AsyncClient(address, name="gpu-1", registration_timeout=0.05) as named:
        with pytest.raises(ConnectFailed, match=r"did not answer the registration within 0.05 s"):
            await named.who()
    async with AsyncClient(address, registration_timeout=0.05) as client:
        with pytest.raises(CallTimeout, match=r"rpc\.register"):
            await client.offer()
        assert await client.who() is None


@pytest.mark.parametrize(
    "answer",
    [True, [], "ok", {}, {"name": 1, "key": "k", "methods": []}, {"name": "a", "key": "very secret", "methods": [1]}],
)
async def test_answers_that_are_none(hub: FakeHub, address: str, answer: Any) -> None:
    hub.answer = answer
    async with AsyncClient(address) as client:
        with pytest.raises(InternalError, match=r"reply to rpc.register cannot be read.*at 127") as caught:
            await client.offer()
        assert "very secret" not in str(caught.value)
        assert client.registered_name is None


@pytest.mark.parametrize("name", ["", "a.b", "a b", "ä", "x" * 129, "rpc", "a\n", 7])
def test_names_that_cannot_be(name: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="the name of a client"):
        AsyncClient(name=name)


@pytest.mark.parametrize("options", [{"name": "gpu-1"}, {"keepalive": 1.0}])
def test_http_has_no_connection_that_lasts(options: Any) -> None:
    with pytest.raises(RuntimeError, match="needs a connection that lasts, and HTTP has none"):
        AsyncClient("http://127.0.0.1:1/", **options)


async def test_http_offers_nothing() -> None:
    async with AsyncClient("http://127.0.0.1:1/") as client:
        for attempt in (client.offer, client.wait_closed):
            with pytest.raises(RuntimeError, match="HTTP has none"):
                await attempt()


# -- offering ----------------------------------------------------------------------------------------------------------


async def test_what_is_offered_is_described(hub: FakeHub, address: str) -> None:
    async with AsyncClient(address, name="gpu-1") as client:
        offer_add(client)

        @client(name="vision.edges", shared=True, idempotent=True)
        async def edges(image: NDArray[np.float32]) -> NDArray[np.float32]:
            return -image

        @client
        def measure(reading: Reading) -> Reading:
            return reading

        assert await client.offer() == ["add", "measure", "vision.edges"]
        params = hub.said[-1][1]
        add, measured, described = params["methods"]
        assert add["name"] == "add"
        assert (add["summary"], add["description"]) == ("Adds.", "Two numbers.")
        assert [parameter["name"] for parameter in add["params"]] == ["a", "b"]
        assert not {"shared", "x-idempotent"} & set(add)
        assert (described["shared"], described["x-idempotent"]) == (True, True)
        assert list(params["components"]) == ["NdArray_f4", "Reading"]
        assert "Reading" in str(measured)
        assert add["errors"] == [], "those of the framework are known to the hub"
        assert await client.ask("gpu-1", "add", [1, 5]) == 6
        assert await client.ask("gpu-1", "add", [1]) == 3


async def test_what_is_marked_later_is_offered_by_another_offer(hub: FakeHub, address: str) -> None:
    async with AsyncClient(address) as client:
        offer_add(client)
        assert await client.offer() == ["add"]
        assert client.registered_name == "client-1", "the hub made one"
        client(lambda: 1, name="one")
        assert hub.registrations == [{"methods": ["add"]}]
        assert await client.offer(shared=True) == ["add", "one"]
        assert hub.registrations[1:] == [{"name": "client-1", "key": "key of client-1", "methods": ["add", "one"]}]
        assert all(method["shared"] for method in hub.said[-1][1]["methods"])
        await client.offer()
        assert all(method["shared"] for method in hub.said[-1][1]["methods"]), "once shared, it stays so"


async def test_a_client_may_have_a_name_alone(hub: FakeHub, address: str) -> None:
    async with AsyncClient(address, name="gpu-1") as client:
        assert await client.offer() == []
        assert await client.who() == "gpu-1"
    async with AsyncClient(address) as nobody:
        assert await nobody.offer() == []
        assert nobody.registered_name is not None


async def test_an_offer_that_is_refused_changes_nothing(hub: FakeHub, address: str) -> None:
    hub.refused.add("add")
    async with AsyncClient(address, name="gpu-1") as client:
        offer_add(client)
        with pytest.raises(InvalidParams, match="add is taken") as caught:
            await client.offer()
        assert caught.value.data == {"parameter": "methods", "reason": "taken"}
        assert await client.who() == "gpu-1"
        client_connections(client)[0].abort("cut")
        assert await client.who() == "gpu-1"
        assert "methods" not in hub.registrations[-1]
        hub.refused.clear()
        assert await client.offer() == ["add"]


async def test_withdrawing(hub: FakeHub, address: str) -> None:
    async with AsyncClient(address, name="gpu-1", reconnect=AT_ONCE) as client:
        assert await client.withdraw("add") == [], "nothing was offered"
        for name in "abc":
            client(lambda: 1, name=name)
        await client.offer()
        assert await client.withdraw("b", "unknown") == ["b"]
        hub.cut()
        await until(lambda: len(hub.sessions) == 2)
        await client.who()
        assert hub.registrations[-1]["methods"] == ["a", "c"]
        assert sorted(await client.withdraw()) == ["a", "c"]
        assert await client.who() is None
        hub.cut()
        await until(lambda: not client_connections(client))
        assert await client.who() is None, "not even the name is registered again"
        assert await client.offer() == ["a", "b", "c"]
        assert await client.who() == "gpu-1"
    assert hub.withdrawn == [["b", "unknown"], None]


# -- again -------------------------------------------------------------------------------------------------------------


async def test_again_when_the_connection_was_lost(hub: FakeHub, address: str) -> None:
    async with AsyncClient(address, name="gpu-1", reconnect=AT_ONCE) as client:
        offer_add(client)
        await client.offer()
        for times in range(2, 5):
            hub.cut()
            await until(lambda times=times: len(hub.sessions) == times)  # type: ignore[misc]
            assert await client.ask("gpu-1", "add", [times, 1]) == times + 1
        assert hub.registrations[-1] == {"name": "gpu-1", "key": "key of gpu-1", "methods": ["add"]}


async def test_without_reconnect_the_next_call_registers_again(hub: FakeHub, address: str) -> None:
    async with AsyncClient(address) as client:
        offer_add(client)
        await client.offer()
        hub.cut()
        await until(lambda: client.state == "idle")
        assert len(hub.said) == 1
        assert await client.who() == "client-1"
        assert await client.ask("client-1", "add", [1, 1]) == 2


async def test_another_connection_of_the_pool_takes_over(hub: FakeHub, address: str) -> None:
    """Without `reconnect` nothing else would register it again."""
    async with AsyncClient(address, name="gpu-1", pool=2) as client:
        offer_add(client)
        await client.offer()
        await asyncio.gather(*(client.ask("gpu-1", "add", [1, 1]) for _ in range(4)))
        assert len(client_connections(client)) == 2
        hub.cut()
        await until(lambda: len(hub.sessions) == 2)
        assert hub.registrations[-1] == {"name": "gpu-1", "key": "key of gpu-1", "methods": ["add"]}
        waiting = asyncio.create_task(client.wait_closed())
        await asyncio.sleep(0)
        assert not waiting.done()
        await until(lambda: connection_at_hub(client))
        assert await client.ask("gpu-1", "add", [1, 1]) == 2
        waiting.cancel()


async def test_what_others_have_meanwhile_is_left_out(
    hub: FakeHub, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "rpcstream.client")
    async with AsyncClient(address, name="gpu-1", reconnect=AT_ONCE) as client:
        offer_add(client)
        client(lambda: 1, name="one")
        await client.offer()
        hub.forget()
        hub.refused.add("add")
        hub.cut()
        await until(lambda: len(hub.sessions) == 2)
        assert await client.who() == "gpu-1"
        assert list(hub.offered[hub.sessions[-1]]) == ["one"]
        assert [record.message for record in caplog.records] == [
            f"'add' is no longer offered at {address}: [-32602] add is taken: "
            f"{{'parameter': 'methods'}} (method 'rpc.register' at {address})"
        ]
        with pytest.raises(InvalidParams):
            await client.offer()
        hub.refused.clear()
        assert await client.offer() == ["add", "one"]


async def test_without_its_name_a_client_goes_on(hub: FakeHub, address: str, caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncClient(address, name="gpu-1", reconnect=AT_ONCE) as client:
        offer_add(client)
        await client.offer()
        hub.forget()
        hub.refused.add("gpu-1")
        hub.cut()
        await until(lambda: len(hub.sessions) == 2)
        assert await client.who() is None
        assert client.state == "connected"
        assert "'gpu-1' is no longer registered" in caplog.text
        hub.refused.clear()
        hub.cut()
        await until(lambda: len(hub.sessions) == 3)
        assert await client.who() == "gpu-1", "the next connection tries again"


async def test_a_name_that_the_hub_made_may_be_another_one_then(hub: FakeHub, address: str) -> None:
    async with AsyncClient(address, reconnect=AT_ONCE) as client:
        offer_add(client)
        await client.offer()
        hub.forget()
        hub.refused.add("client-1")
        hub.cut()
        await until(lambda: len(hub.sessions) == 2)
        name = await client.who()
        assert name == client.registered_name != "client-1"
        assert await client.ask(name, "add", [1, 1]) == 2


async def test_an_offer_waits_for_the_connection(hub: FakeHub, scripted: Scripted) -> None:
    """The connection is lost before the answer comes, and again."""
    heard: list[Any] = []

    def script(line: Any) -> None:
        while (request := line.read()) is not None:
            heard.append(request["params"])
            if len(heard) <= 3:
                return
            line.answer(request, {"name": "gpu-1", "key": "k", "methods": []})

    address = scripted(script)
    async with AsyncClient(address) as client:
        with pytest.raises(ConnectionLost, match=r"rpc\.register"):
            await client.offer()
    async with AsyncClient(address, reconnect=AT_ONCE) as client:
        assert await client.offer() == []
    assert len(heard) == 4


async def test_an_answer_with_which_the_connection_ends_is_none() -> None:
    class Leaving(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            reply = {"jsonrpc": "2.0", "id": 1, "result": {"name": "a", "key": "k", "methods": []}}
            self.transport.write(orjson.dumps(reply) + b"\n")
            self.transport.close()

    async def connect(make: Callable[[], Any]) -> Any:
        join(protocol := make(), Leaving())
        return protocol

    async with AsyncClient("memory", connect=connect) as client:
        with pytest.raises(ConnectionLost, match="the peer closed the connection"):
            await client.offer()


async def test_offers_that_are_lost_together(scripted: Scripted) -> None:
    """One waits for the answer, the others for their turn."""
    async with AsyncClient(scripted(lambda line: line.read() and line.read()), registration_timeout=None) as client:
        await client.notify.tell()
        outcomes = await asyncio.gather(*(client.offer() for _ in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ConnectionLost] * 3


async def test_offers_at_the_same_time(hub: FakeHub, address: str) -> None:
    async with AsyncClient(address, name="gpu-1", pool=3) as client:
        offer_add(client)
        assert await asyncio.gather(*(client.offer() for _ in range(10))) == [["add"]] * 10
        assert len(hub.sessions) == 1, "no offer takes the name from another"


async def test_offers_on_a_busy_pool_stay_on_one_connection(hub: FakeHub, address: str) -> None:
    """The second one is to be sent where there is less to do, while the first has no answer."""
    async with AsyncClient(address, pool=2) as client:
        await client.who()
        await asyncio.gather(client.who(), client.who())
        assert len(client_connections(client)) == 2
        await asyncio.gather(client.offer(), client.offer())
        assert len(hub.said) == 2
        assert len(hub.sessions) == 1


def test_a_connection_that_was_lost_unseen() -> None:
    """While the event loop did not run."""
    hub = FakeHub()
    with serve_in_thread(hub.server) as address, asyncio.Runner() as runner:
        client = AsyncClient(address, name="gpu-1")
        runner.run(client.offer())
        (link,) = client_connections(client)
        assert link.poll is not None
        hub.sessions[0].loop.call_soon_threadsafe(hub.cut)
        assert link.poll(20_000)
        assert link.is_open
        assert runner.run(client.offer()) == []
        assert len(hub.sessions) == 2
        runner.run(client.close())


def test_in_another_event_loop_it_is_registered_anew() -> None:
    """One loop after the other; the hub lives in a thread."""
    hub = FakeHub()
    with serve_in_thread(hub.server) as address, asyncio.Runner() as first, asyncio.Runner() as second:
        client = AsyncClient(address, name="gpu-1")

        async def use() -> Any:
            return await client.offer(), await client.who()

        for runner in (first, second):
            assert runner.run(use()) == ([], "gpu-1")
        assert hub.registrations[2] == {"name": "gpu-1", "key": "key of gpu-1"}
        for runner in (first, second):
            runner.run(client.close())


# -- waiting -----------------------------------------------------------------------------------------------------------


async def test_a_program_that_only_offers_waits(hub: FakeHub, address: str) -> None:
    async with AsyncClient(address) as client:
        with pytest.raises(ConnectionLost, match="there is no connection"):
            await client.wait_closed()
        await client.offer()
        waiting = [asyncio.create_task(client.wait_closed()) for _ in range(2)]
        await client.who()
        assert not any(task.done() for task in waiting)
        hub.cut()
        for task in waiting:
            with pytest.raises(ConnectionLost, match="the peer closed it"):
                await task
        await client.offer()
        waiting = [asyncio.create_task(client.wait_closed())]
        await client.who()
    await waiting[0]
    await client.wait_closed()


async def test_with_reconnect_only_close_ends_the_wait(hub: FakeHub, address: str) -> None:
    async with AsyncClient(address, name="gpu-1", reconnect=AT_ONCE) as client:
        waiting = asyncio.create_task(client.wait_closed())
        await client.who()
        hub.cut()
        await until(lambda: len(hub.sessions) == 2)
        await client.who()
        assert not waiting.done()
    await waiting


# -- telling others ----------------------------------------------------------------------------------------------------


async def test_publishing_and_notifying(hub: FakeHub, address: str) -> None:
    async with AsyncClient(address, name="gpu-1") as client:
        assert await client.publish("sensors.a", [1.5, None]) == 3
        assert await client.publish("sensors.a", np.arange(3), retain=True) == 3
        assert await client.notify_client("gpu-1", "reload", "model", 2)
        assert await client.notify_client("gpu-1", "reload", name="model", timeout=3)
        assert await client.notify_client("gpu-1", "stop")
        with pytest.raises(InvalidParams, match="no client has the name gpu-2"):
            await client.notify_client("gpu-2", "reload")
    assert hub.told[0] == {"topic": "sensors.a", "value": [1.5, None], "retain": False}
    assert hub.told[1]["retain"] is True
    np.testing.assert_array_equal(hub.told[1]["value"], [0, 1, 2])
    assert [told["params"] for told in hub.told[2:]] == [["model", 2], {"name": "model", "timeout": 3}, None]


async def test_what_cannot_be_told(address: str) -> None:
    async with AsyncClient(address) as client:
        with pytest.raises(EncodeError, match="cannot be an iterator"):
            await client.publish("a", iter([1]))
        with pytest.raises(EncodeError, match="cannot be an iterator"):
            await client.notify_client("a", "b", (x for x in [1]))
        with pytest.raises(EncodeError):
            await client.publish("a", object())
        with pytest.raises(TypeError, match="a topic is a str"):
            await client.publish(1, 1)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="positional and named"):
            await client.notify_client("a", "b", 1, c=2)


# -- a provider that is gone -------------------------------------------------------------------------------------------


async def test_a_provider_that_is_gone_is_like_a_connection_that_was_lost(hub: FakeHub, address: str) -> None:
    hub.losses = 2
    async with AsyncClient(address) as unasked:
        with pytest.raises(ProviderGone, match="'work'"):
            await unasked.work()
        assert hub.losses == 1
    hub.losses = 2
    async with AsyncClient(address, retries=2, retry="all") as client:
        assert await client.buy() == "done"
        hub.losses = 3
        with pytest.raises(ProviderGone):
            await client.buy()
        hub.losses = 1
        reply = await client({"jsonrpc": "2.0", "id": 1, "method": "buy"})
        assert reply["error"]["code"] == -32007, "an error reply is returned"
        hub.losses = 1
        async with client.batch() as batch:
            first, second = batch.work(), batch.work()
        with pytest.raises(ProviderGone):
            first.result()
        assert second.result() == "done"


async def test_only_idempotent_methods_go_to_another_provider(hub: FakeHub, address: str) -> None:
    async with AsyncClient(address, retries=2) as client:
        hub.losses = 2
        assert await client.work() == "done"
        hub.losses = 1
        with pytest.raises(ProviderGone, match="'buy'"):
            await client.buy()
        assert hub.worked == ["work", "work", "work", "buy"]
        hub.server.add(hub.work, replace=True)
        hub.losses = 1
        with pytest.raises(ProviderGone):
            await client.work()
