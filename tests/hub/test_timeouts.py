"""Time limits of a hub: of calls, of silent clients, of connections that do not authenticate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rpcstream.hub import Hub

from .conftest import CALL, OpenHub, RawPeer


async def offering(connect: Callable[[], RawPeer], *methods: str) -> RawPeer:
    peer = connect()
    await peer.offers("p", *methods)
    return peer


class TestCalls:
    @pytest.mark.parametrize(("asked", "seconds"), [(None, 3), (1, 1), (100, 3)])
    def test_the_shorter_time_counts(self, with_hub: Any, asked: float | None, seconds: float) -> None:
        async def main(hub: Hub, connect: Callable[[], RawPeer]) -> None:
            loop = asyncio.get_running_loop()
            provider, caller = await offering(connect, "work"), connect()
            for is_batch in (False, True):
                message = {"jsonrpc": "2.0", "id": 1, "method": "work", **({} if asked is None else {"timeout": asked})}
                since = loop.time()
                caller.say([message] if is_batch else message)
                request = await provider.hear()
                assert request["timeout"] == seconds
                reply = await caller.hear()
                reply = reply[0] if is_batch else reply
                assert reply["error"]["code"] == -32003
                assert loop.time() - since == pytest.approx(seconds)
                assert (await provider.hear())["params"] == {"id": request["id"]}
                provider.say({"jsonrpc": "2.0", "id": request["id"], "result": "late"})
            await caller.silence()

        with_hub(main, call_timeout=3, ping_interval=None, keepalive_timeout=None)

    def test_without_any_it_waits(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Callable[[], RawPeer]) -> None:
            provider, caller = await offering(connect, "work"), connect()
            caller.say({"jsonrpc": "2.0", "id": 1, "method": "work"})
            request = await provider.hear()
            assert "timeout" not in request
            await asyncio.sleep(1000)
            provider.say({"jsonrpc": "2.0", "id": request["id"], "result": "at last"})
            assert (await caller.hear())["result"] == "at last"

        with_hub(main, ping_interval=None, keepalive_timeout=None)

    @pytest.mark.parametrize("timeout", [0, -1, 1e-9])
    def test_no_time_at_all(self, with_hub: Any, timeout: float) -> None:
        async def main(hub: Hub, connect: Callable[[], RawPeer]) -> None:
            await offering(connect, "work")
            reply = await connect().ask("work", timeout=timeout)
            assert reply["error"]["code"] in (-32003, -32600, -32602)

        with_hub(main)


class TestSilence:
    @pytest.mark.parametrize(
        "sign",
        [
            '{"jsonrpc":"2.0","method":"keepAlive"}',
            '{"jsonrpc":"2.0","method":"keepAlive","id":1}',
            '{"jsonrpc":"2.0","method":"rpc.ping","id":1}',
            '[{"jsonrpc":"2.0","method":"keepAlive"}]',
        ],
    )
    def test_a_sign_of_life(self, with_hub: Any, sign: str) -> None:
        """For one that does not answer pings."""

        async def main(hub: Hub, connect: Callable[[], RawPeer]) -> None:
            peer = await offering(connect, "work")
            for _ in range(20):
                await asyncio.sleep(45)
                peer.say(sign)
            assert list(hub.directory.by_name) == ["p"]
            await asyncio.sleep(91)
            assert not hub.directory.routes
            heard = [await peer.hear()]
            while heard[-1] is not None:
                heard.append(await peer.hear())
            assert sum(each is not None and each.get("method") == "rpc.ping" for each in heard) == 1

        with_hub(main)

    @pytest.mark.parametrize(("ping", "timeout"), [(None, 60.0), (20.0, None), (None, None)])
    def test_switched_off(self, with_hub: Any, ping: float | None, timeout: float | None) -> None:
        async def main(hub: Hub, connect: Callable[[], RawPeer]) -> None:
            peer = await offering(connect, "work")
            await asyncio.sleep(600)
            assert bool(hub.directory.by_name) is (timeout is None)
            peer.close()

        with_hub(main, ping_interval=ping, keepalive_timeout=timeout)

    def test_whoever_is_dropped_leaves_nobody_waiting(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Callable[[], RawPeer]) -> None:
            provider, caller = await offering(connect, "work"), connect()
            caller.say({"jsonrpc": "2.0", "id": 1, "method": "work"})
            await provider.hear()
            error = (await caller.hear())["error"]
            assert (error["code"], error["data"]) == (-32007, {"method": "work", "client": "p"})
            assert asyncio.get_running_loop().time() < 100

        with_hub(main)

    def test_a_ping_is_no_call(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Callable[[], RawPeer]) -> None:
            provider, caller = await offering(connect, "work"), connect()
            assert (await provider.hear())["method"] == "rpc.ping"
            seen = (await caller.result("rpc.clients"))[0]
            assert (seen["name"], seen["in_flight"], seen["state"]) == ("p", 0, "idle")

        with_hub(main)

    def test_who_only_calls_is_left_alone(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Callable[[], RawPeer]) -> None:
            caller = connect()
            await caller.result("rpc.clients")
            await asyncio.sleep(600)
            await caller.silence()

        with_hub(main)


class TestRegistration:
    @pytest.mark.parametrize("said", ["", '{"jsonrpc":"2.0","method":"rpc.ping","id":1}', "nonsense", "[]"])
    def test_who_wants_nothing_is_closed(self, with_hub: Any, said: str) -> None:
        async def main(hub: Hub, connect: Callable[[], RawPeer]) -> None:
            peer = connect()
            if said:
                peer.say(said)
                assert await peer.hear() is not None
            assert await peer.hear() is None
            assert asyncio.get_running_loop().time() == pytest.approx(5, abs=0.5)

        with_hub(main, registration_timeout=5)

    @pytest.mark.parametrize("method", ["rpc.register", "rpc.clients", "rpc.subscribe", "unheard-of", "work"])
    def test_who_has_said_something_stays(self, with_hub: Any, method: str) -> None:
        async def main(hub: Hub, connect: Callable[[], RawPeer]) -> None:
            await offering(connect, "work")
            peer = connect()
            params = {"topic": "t"} if method == "rpc.subscribe" else None
            peer.say({"jsonrpc": "2.0", "method": method, "id": 1, "params": params})
            if method != "work":
                await peer.hear()
            await asyncio.sleep(30)
            if method == "unheard-of":
                assert await peer.hear() is None
            else:
                await peer.silence()

        with_hub(main, registration_timeout=5, ping_interval=None)

    @pytest.mark.parametrize("said", [b"", b" ", b"{", b"GET"])
    async def test_who_does_not_even_say_what_it_speaks(self, open_hub: OpenHub, said: bytes) -> None:
        running_hub = await open_hub(Hub(registration_timeout=0.1, drain_timeout=5))
        reader, writer = await asyncio.open_connection(*running_hub.where)
        writer.write(said)
        async with asyncio.timeout(10):
            await reader.read()
        writer.close()
        await running_hub.until(lambda: running_hub.hub.counters.connections == 0)

    async def test_http_says_what_it_wants_with_each_call(self, open_hub: OpenHub) -> None:
        """However long that takes, and however long ago the last one was."""
        running_hub = await open_hub(Hub(registration_timeout=0.1, drain_timeout=5))
        provider = await running_hub.peer()
        await provider.offers("p", "work")
        for n in range(2):
            post = asyncio.ensure_future(running_hub.post(CALL % (n, "work", "[]")))
            asked = await provider.hear()
            await asyncio.sleep(0.2)
            provider.say({"jsonrpc": "2.0", "id": asked["id"], "result": "late"})
            assert b'"late"' in await post

    @pytest.mark.parametrize("said", ['{"jsonrpc":"2.0","method":"rpc.stats","id":1}', None])
    async def test_over_a_websocket(self, open_hub: OpenHub, said: str | None) -> None:
        running_hub = await open_hub(Hub(registration_timeout=0.1, drain_timeout=5))
        peer = await running_hub.websocket_peer()
        if said is not None:
            peer.say(said)
            await peer.hear()
            await asyncio.sleep(0.2)
            await peer.silence()
        else:
            assert await peer.hear() is None
