"""Floods, and connections that do not read: others are served, and queues are bounded."""

from __future__ import annotations

import pytest

from rpcstream import AsyncClient, Limits
from rpcstream.errors import CallTimeout, RpcError
from rpcstream.hub import Hub

from ..internals import unsent_messages
from .conftest import CALL, OpenHub, RunningHub, asked_of, filled, provider_and_caller, stall


class TestFloods:
    async def test_progress_to_a_caller_that_does_not_read(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        call_id = await asked_of(provider, caller)
        caller.transport.pause_reading()
        text = '{"jsonrpc":"2.0","method":"$/progress","params":{"token":%d,"value":"%s"}}'
        for n in range(400):
            provider.say(text % (call_id, f"{n:05}" + "x" * 100_000))
        await provider.silence()
        unsent = sum(len(each) for session in running_hub.hub.directory.members for each in unsent_messages(session))
        unread = max(session.channel.unread_size for session in running_hub.hub.directory.members)
        assert unsent + unread < 3_000_000
        provider.say({"jsonrpc": "2.0", "id": call_id, "result": "well"})
        caller.transport.resume_reading()
        messages = [await caller.hear()]
        while "method" in messages[-1]:
            messages.append(await caller.hear())
        assert messages[-1]["result"] == "well"
        assert messages[-2]["params"]["value"].startswith("00399")

    async def test_items_for_a_caller_that_does_not_read(self, running_hub: RunningHub) -> None:
        """It permits a million, and the provider would send them: no more than the caller takes, and a window."""
        provider, caller = await provider_and_caller(running_hub)
        caller.say('{"jsonrpc":"2.0","id":"all","method":"work","stream":1000000}')
        request = await provider.hear()
        permitted, call_id, sent = request["stream"], request["id"], 0
        assert permitted == running_hub.hub.limits.stream_window
        caller.transport.pause_reading()
        text = '{"jsonrpc":"2.0","method":"$/item","params":{"id":%d,"value":"%s"}}'
        while permitted:
            for _ in range(permitted):
                provider.say(text % (call_id, "x" * 100_000))
            sent, permitted = sent + permitted, 0
            # What is permitted for these comes before the answer to what was asked behind them.
            heard = await provider.ask("rpc.ping")
            while "method" in heard:
                permitted += heard["params"]["n"]
                heard = await provider.hear()
            assert heard["result"] == "pong"
        unread = max(session.channel.unread_size for session in running_hub.hub.directory.members)
        assert unread < 4_000_000
        caller.transport.resume_reading()
        more = await provider.hear()
        assert more["method"] == "$/credit"
        provider.say({"jsonrpc": "2.0", "id": call_id, "result": sent})
        items = 0
        while "method" in (heard := await caller.hear()):
            items += 1
        assert items == sent == heard["result"]

    async def test_a_provider_that_does_not_read(self, open_hub: OpenHub) -> None:
        running_hub = await open_hub(max_queue=50, max_calls=200)
        provider, caller = await provider_and_caller(running_hub)
        await stall(running_hub, provider, caller)
        client = running_hub.hub.directory.by_name["p"]
        busy = 0
        for n in range(100):
            caller.say(CALL % (n, "work", "[]"))
        while not busy:
            busy = (await caller.hear())["error"]["code"] == -32002
        assert client.waiting <= 50
        other, quick = await running_hub.peer(), await running_hub.peer()
        await quick.offers("quick", "now")
        other.say(CALL % ("1", "now", "[]"))
        request = await quick.hear()
        quick.say({"jsonrpc": "2.0", "id": request["id"], "result": "served"})
        assert (await other.hear())["result"] == "served"
        assert (await other.result("rpc.clients"))[0]["state"] == "stalled"

    async def test_a_subscriber_that_does_not_read(self, open_hub: OpenHub) -> None:
        running_hub = await open_hub(Hub(event_queue=10, drain_timeout=5))
        slow, quick, caller = await running_hub.peer(), await running_hub.peer(), await running_hub.peer()
        for peer in (slow, quick):
            await peer.result("rpc.subscribe", {"topic": "t"})
        slow.transport.pause_reading()
        value = "x" * 200_000
        for n in range(300):
            caller.say(CALL % ("1", "rpc.publish", filled('["t","%d%s"]', n, value)))
            assert (await caller.hear())["result"] >= 1
            assert (await quick.hear())["params"]["value"].startswith(f"{n}x")
        stats = running_hub.hub.stats()
        assert stats["events_dropped"] > 100
        unread = max(s.channel.unread_size for s in running_hub.hub.directory.members)
        assert unread < 5_000_000

    async def test_of_registrations(self, open_hub: OpenHub) -> None:
        running_hub = await open_hub(max_offered=100, max_offered_size=50_000)
        provider, caller = await provider_and_caller(running_hub)
        flooder = await running_hub.peer()
        many = [{"name": f"m{n}", "description": "d" * 100} for n in range(90)]
        for n in range(200):  # the same again takes no more room
            flooder.say({"jsonrpc": "2.0", "id": n, "method": "rpc.register", "params": {"name": "f", "methods": many}})
        call_id = await asked_of(provider, caller)
        provider.say({"jsonrpc": "2.0", "id": call_id, "result": "well"})
        assert (await caller.hear())["result"] == "well"
        for _ in range(200):
            assert "result" in await flooder.hear()
        client = running_hub.hub.directory.by_name["f"]
        assert len(client.offers) == 90
        for methods in (
            [f"n{n}" for n in range(10_000)],
            [f"n{n}" for n in range(11)],
            [{"name": "x", "description": "d" * 2_000_000}],
        ):
            assert await flooder.code("rpc.register", {"methods": methods}) == -32002
        big = {"methods": [], "components": {"X": {"description": "d" * 2_000_000}}}
        assert await flooder.code("rpc.register", big) == -32002
        assert len(running_hub.hub.directory.routes) == 2 * 91
        assert len(await flooder.result("rpc.unregister", {"methods": [f"m{n}" for n in range(90)]})) == 90

    async def test_of_clients_that_offer_much_together(self, open_hub: OpenHub) -> None:
        running_hub = await open_hub(max_offered_size=5_000, max_offered_total=11_000)
        peers = [await running_hub.peer() for _ in range(4)]
        much = {"methods": [{"name": "own", "shared": True, "description": "d" * 4_000}]}
        for _ in range(3):
            assert "result" in await peers[0].ask("rpc.register", much)
        assert "result" in await peers[1].ask("rpc.register", much)
        assert await peers[2].code("rpc.register", much) == -32002
        assert await peers[2].result("rpc.clients")
        assert await peers[0].result("rpc.unregister") == ["own"]
        assert "result" in await peers[2].ask("rpc.register", much)
        peers[1].close()
        await running_hub.until(lambda: len(running_hub.hub.directory.by_name) == 1)
        assert "result" in await peers[3].ask("rpc.register", much)
        peers[2].close()
        peers[3].close()
        await running_hub.until(lambda: not running_hub.hub.directory.by_name)
        assert running_hub.hub.directory.offered_cost == 0

    async def test_of_connections_that_register_and_leave(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        watcher = await running_hub.peer()
        await watcher.result("rpc.subscribe", {"topic": "rpc.hub.left"})
        for n in range(60):
            peer = await running_hub.peer()
            peer.say(
                {"jsonrpc": "2.0", "id": 1, "method": "rpc.register", "params": {"name": f"n{n}", "methods": ["x"]}}
            )
            if n % 2:
                await peer.hear()
            peer.close()
        call_id = await asked_of(provider, caller)
        provider.say({"jsonrpc": "2.0", "id": call_id, "result": "well"})
        assert (await caller.hear())["result"] == "well"
        await running_hub.until(lambda: list(running_hub.hub.directory.by_name) == ["p"])
        assert set(running_hub.hub.directory.routes) == {"work", "p.work"}

    async def test_two_that_call_each_other_without_end(self, open_hub: OpenHub) -> None:
        running_hub = await open_hub(max_calls=20)
        async with AsyncClient(running_hub.address, name="a") as a, AsyncClient(running_hub.address, name="b") as b:

            async def ping(n: int) -> int:
                return int(await a.call("pong", n + 1))

            async def pong(n: int) -> int:
                return int(await b.call("ping", n + 1))

            a(ping)
            b(pong)
            await a.offer()
            await b.offer()
            async with AsyncClient(running_hub.address) as caller:
                with pytest.raises((CallTimeout, RpcError)):
                    await caller.ping(0, timeout=0.5)
                assert len(await caller.call("rpc.methods")) == 2
                await running_hub.until(
                    lambda: not any(each.load for each in running_hub.hub.directory.members.values())
                )

    async def test_a_provider_that_calls_itself(self, running_hub: RunningHub) -> None:
        provider, _ = await provider_and_caller(running_hub)
        provider.say(CALL % ("1", "work", "[]"))
        request = await provider.hear()
        provider.say({"jsonrpc": "2.0", "id": request["id"], "result": "myself"})
        assert await provider.hear() == {"jsonrpc": "2.0", "id": 1, "result": "myself"}
        provider.say(CALL % ("1", "p.work", "[]"))
        await provider.hear()
        provider.close()


async def test_limits_still_fit(open_hub: OpenHub) -> None:
    """What a caller may send with its name and id may be longer by a few bytes at the provider."""
    running_hub = await open_hub(Hub(limits=Limits(max_message_size=1000), drain_timeout=5))
    provider, caller = await provider_and_caller(running_hub)
    text = CALL % ("1", "work", '["%s"]')
    caller.say(text % ("x" * (1000 - len(text) + 2)))
    assert len((await provider.hear())["params"][0]) > 900

    async def test_of_messages_for_clients_that_do_not_read(self, open_hub: OpenHub) -> None:
        """The bytes that wait for all of them together are bounded, and a subscriber that reads gets its events."""
        running_hub = await open_hub(max_waiting_total=300_000)
        slow = [await running_hub.peer() for _ in range(3)]
        caller, good = await running_hub.peer(), await running_hub.peer()
        await good.offers("good", "fine")
        for number, peer in enumerate(slow):
            await peer.offers(f"slow-{number}")
            peer.transport.pause_reading()
        clients = [running_hub.hub.directory.by_name[f"slow-{number}"] for number in range(3)]
        text = "x" * 50_000
        refused = 0
        while refused < 200:
            for number in range(3):
                reply = await caller.ask("rpc.notify", [f"slow-{number}", "hear", [text]])
                refused += "error" in reply
        assert sum(client.waiting_size for client in clients) <= 300_000
        assert all(client.waiting for client in clients)
        caller.say(CALL % ("1", "fine", "[]"))
        assert (await good.hear())["method"] == "fine"
        for peer in slow:
            peer.transport.resume_reading()
        await running_hub.until(lambda: not any(client.waiting for client in clients))
        assert not any(client.waiting_size for client in clients)
