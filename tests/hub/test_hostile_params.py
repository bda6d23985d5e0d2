"""Invalid params of registrations, notifications and publishing, and callers that may not do them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import CALL, OpenHub, RunningHub, asked_of, filled, provider_and_caller


class TestRegistering:
    @pytest.mark.parametrize(
        "method",
        [
            "rpc.x",
            "rpc",
            "$/item",
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "a*",
            ">",
            "p.work",
            "x" * 300,
            "a\nb",
            7,
            None,
            {},
            {"name": 1},
        ],
    )
    async def test_names_that_are_none(self, running_hub: RunningHub, method: Any) -> None:
        peer = await running_hub.peer()
        assert await peer.code("rpc.register", {"name": "p", "methods": ["fine", method]}) == -32602
        assert not running_hub.hub.directory.routes
        assert not running_hub.hub.directory.by_name

    @pytest.mark.parametrize("name", ["", "rpc", "a.b", "x" * 129, "é", "a b", "a\n", "*"])
    async def test_clients_names_that_are_none(self, running_hub: RunningHub, name: str) -> None:
        peer = await running_hub.peer()
        assert await peer.code("rpc.register", {"name": name}) == -32602
        assert not running_hub.hub.directory.by_name

    @pytest.mark.parametrize(
        "params",
        [
            {"methods": "work"},
            {"methods": [{"name": "x", "shared": 1}]},
            {"components": []},
            {"components": {"X": 1}},
            {"key": 1},
            {"name": 1},
            {"methods": [{"name": "x", "params": {"$type": "bytes", "data": "QUJD"}}]},
            {"unknown": 1},
        ],
    )
    async def test_params_that_are_none(self, running_hub: RunningHub, params: Any) -> None:
        peer = await running_hub.peer()
        assert await peer.code("rpc.register", params) == -32602
        assert not running_hub.hub.directory.by_name

    async def test_a_name_and_its_key(self, running_hub: RunningHub) -> None:
        first, second = await running_hub.peer(), await running_hub.peer()
        key = (await first.offers("p", "work"))["key"]
        for wrong in (None, "", "x", key[:-1], "é"):
            params = {"name": "p", "methods": ["work"], **({} if wrong is None else {"key": wrong})}
            assert await second.code("rpc.register", params) == -32602
        assert await second.code("rpc.register", {"name": "q", "methods": ["work"], "key": key}) == -32602
        assert await second.code("rpc.register", {"name": "p", "methods": ["rpc.x"], "key": key}) == -32602
        await first.silence()
        caller = await running_hub.peer()
        await asked_of(first, caller)
        assert (await second.result("rpc.register", {"name": "p", "methods": ["work"], "key": key}))["key"] == key
        error = (await caller.hear())["error"]
        assert (error["code"], error["data"]) == (-32007, {"method": "work", "client": "p"})
        assert await first.hear() is None
        call_id = await asked_of(second, caller)
        second.say({"jsonrpc": "2.0", "id": call_id, "result": "mine"})
        assert (await caller.hear())["result"] == "mine"

    async def test_names_of_methods_that_others_have(self, running_hub: RunningHub) -> None:
        first, second = await running_hub.peer(), await running_hub.peer()
        await first.offers("p", "work", {"name": "many", "shared": True}, "q.own")
        for methods in (["work"], ["p.work"], ["many"], [{"name": "work", "shared": True}]):
            assert await second.code("rpc.register", {"name": "s", "methods": ["fine", *methods]}) == -32602
        assert await second.code("rpc.register", {"name": "s", "methods": ["keepAlive"]}) == -32602
        await second.offers("s", {"name": "many", "shared": True}, "own")
        assert await first.code("rpc.register", {"methods": ["many"]}) == -32602
        assert len(running_hub.hub.directory.routes["many"].members) == 2

    async def test_where_it_cannot_be(self, running_hub: RunningHub) -> None:
        peer = await running_hub.peer()
        call = CALL % ("1", "rpc.register", '{"name":"p","methods":["work"]}')
        peer.say(f"[{call}]")
        assert (await peer.hear())[0]["error"]["code"] == -32600
        assert json.loads(await running_hub.post(call))["error"]["code"] == -32600
        assert not running_hub.hub.directory.by_name

    async def test_withdrawn_while_calls_run(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        call_id = await asked_of(provider, caller)
        assert await provider.result("rpc.unregister", {"methods": ["work", "other", "work"]}) == ["work"]
        assert await caller.code("work") == -32601
        assert await provider.result("rpc.unregister") == []
        assert not running_hub.hub.directory.by_name
        provider.say({"jsonrpc": "2.0", "id": call_id, "result": "well"})
        assert (await caller.hear())["result"] == "well"

    async def test_cancels_are_for_ones_own_calls(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        other = await running_hub.peer()
        call_id = await asked_of(provider, caller)
        for peer in (other, provider):
            for each in ("1", str(call_id), f'"{call_id}"', "null", "1.0"):
                peer.say(filled('{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":%s}}', each))
            await peer.silence()
        provider.say({"jsonrpc": "2.0", "id": call_id, "result": "well"})
        assert (await caller.hear())["result"] == "well"


class TestTelling:
    @pytest.mark.parametrize(
        "params",
        [
            '["p","rpc.ping",[]]',
            '["p","$/cancelRequest",{"id":1}]',
            '["nobody","m"]',
            '["p","m",7]',
            '["p","m","[]"]',
            '["p"]',
            "[]",
            "null",
            '["p","m",[],1]',
            '{"client":"p"}',
            '{"client":"p","method":"m","x":1}',
            '[7,"m"]',
            '["p",null]',
        ],
    )
    async def test_notify_with_what_cannot_be(self, running_hub: RunningHub, params: str) -> None:
        provider, caller = await provider_and_caller(running_hub)
        for call in (CALL % ("1", "rpc.notify", params), f"[{CALL % ('1', 'rpc.notify', params)}]"):
            caller.say(call)
            reply = await caller.hear()
            assert (reply[0] if isinstance(reply, list) else reply)["error"]["code"] == -32602
        caller.say(filled('{"jsonrpc":"2.0","method":"rpc.notify","params":%s}', params))
        await caller.silence()
        await provider.silence()

    @pytest.mark.parametrize(
        "params",
        [
            '["rpc.hub.left",1]',
            '["rpc.x",1]',
            '["a.*",1]',
            '[">",1]',
            '["",1]',
            "[7,1]",
            '["t"]',
            '["t",1,1]',
            '{"topic":"t"}',
            '{"value":1}',
            '{"topic":"t","value":1,"retain":null}',
            '{"topic":"t","value":1,"x":1}',
            "null",
        ],
    )
    async def test_publish_with_what_cannot_be(self, running_hub: RunningHub, params: str) -> None:
        subscriber, caller = await running_hub.peer(), await running_hub.peer()
        await subscriber.result("rpc.subscribe", {"topic": ">"})
        await subscriber.result("rpc.subscribe", {"topic": "rpc.hub.>"})
        for call in (CALL % ("1", "rpc.publish", params), f"[{CALL % ('1', 'rpc.publish', params)}]"):
            caller.say(call)
            reply = await caller.hear()
            assert (reply[0] if isinstance(reply, list) else reply)["error"]["code"] == -32602
        caller.say(filled('{"jsonrpc":"2.0","method":"rpc.publish","params":%s}', params))
        await caller.silence()
        await subscriber.silence()

    async def test_last_values_have_their_limit(self, open_hub: OpenHub) -> None:
        running_hub = await open_hub(max_retained=3, max_message_size=50_000)
        caller = await running_hub.peer()
        for n in range(3):
            assert await caller.result("rpc.publish", [f"t{n}", n, True]) == 0
        assert await caller.code("rpc.publish", ["t3", 3, True]) == -32002
        assert await caller.result("rpc.publish", ["t2", None, True]) == 0
        assert await caller.result("rpc.publish", ["t3", {"x": [1.5]}, True]) == 0
        await caller.result("rpc.subscribe", {"topic": "*"})
        heard = [(await caller.hear())["params"] for _ in range(3)]
        assert [(each["topic"], each["value"]) for each in heard] == [("t0", 0), ("t1", 1), ("t3", {"x": [1.5]})]
