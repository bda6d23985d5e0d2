"""Peers of a hub that send invalid messages: they get errors, and no other peer is affected."""

from __future__ import annotations

import asyncio
import json

import pytest

from rpcstream.hub import Hub, Rule

from .conftest import CALL, OpenHub, RunningHub, asked_of, filled, provider_and_caller


class TestTwoReaders:
    """A member that stands there twice, or is written in another way, is the same for everybody."""

    async def test_requests_say_everything_once(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        caller.say(
            '{"jsonrpc":"2.0","id":1,"id":7,"method":"rpc.stats","m\\u0065thod":"work",'
            '"params":[0],"p\\u0061rams":{"a":1,"a":2},"x":1,"i\\u0064":8}'
        )
        line = await provider.line()
        assert line is not None
        pairs: list[str] = []
        json.loads(line, object_pairs_hook=lambda found: pairs.extend(name for name, _ in found))
        top = [name for name in pairs if name != "a"]
        assert sorted(top) == ["id", "jsonrpc", "method", "params", "x"]
        request = json.loads(line)
        assert (request["method"], request["params"]) == ("work", {"a": 2})
        provider.say({"jsonrpc": "2.0", "id": request["id"], "result": "done"})
        assert await caller.hear() == {"jsonrpc": "2.0", "id": 8, "result": "done"}

    async def test_rules_see_the_method_that_is_called(self, open_hub: OpenHub) -> None:
        rules = [Rule("worker", register=">"), Rule("guest", call="harmless")]
        users = {"a" * 20: "worker", "b" * 20: "guest"}
        running_hub = await open_hub(Hub(rules=rules, authenticate=lambda credentials: users.get(credentials.token)))
        provider, caller = await running_hub.peer(), await running_hub.peer()
        for peer, token in zip((provider, caller), users, strict=True):
            await peer.result("rpc.authenticate", {"token": token})
        await provider.offers("p", "harmless", "secret")
        for text in (
            '{"jsonrpc":"2.0","id":1,"method":"harmless","method":"secret"}',
            '{"jsonrpc":"2.0","id":1,"method":"harmless","m\\u0065thod":"secret"}',
            '{"jsonrpc":"2.0","id":1,"method":"s\\u0065cret"}',
            '{"jsonrpc":"2.0","id":1,"method":"p.secret"}',
            '[{"jsonrpc":"2.0","id":1,"method":"harmless","method":"secret"}]',
            '{"jsonrpc":"2.0","id":1,"method":"rpc.notify","params":["p","secret",[]]}',
            '{"jsonrpc":"2.0","id":1,"method":"rpc.notify","params":{"client":"p","method":"harmless","method":"secret"}}',
            '{"jsonrpc":"2.0","id":1,"method":"rpc.publish","params":["topic",1]}',
            '{"jsonrpc":"2.0","id":1,"method":"rpc.subscribe","params":["topic"]}',
        ):
            caller.say(text)
            reply = await caller.hear()
            reply = reply[0] if isinstance(reply, list) else reply
            assert reply["error"]["code"] == -32006, text
        await provider.silence()
        caller.say('{"jsonrpc":"2.0","id":1,"method":"secret","method":"harmless"}')
        assert (await provider.hear())["method"] == "harmless"

    async def test_a_notification_that_is_passed_on_is_what_was_looked_at(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        params = '{"client":"x","cli\\u0065nt":"p","method":"a","method":"b","params":[1],"par\\u0061ms":[2]}'
        caller.say(CALL % ("1", "rpc.notify", params))
        assert (await caller.hear())["result"] is True
        assert await provider.hear() == {"jsonrpc": "2.0", "method": "b", "params": [2]}

    async def test_an_event_is_what_was_looked_at(self, running_hub: RunningHub) -> None:
        subscriber, caller = await running_hub.peer(), await running_hub.peer()
        await subscriber.result("rpc.subscribe", {"topic": "a.>"})
        caller.say(CALL % ("1", "rpc.publish", '{"topic":"b","t\\u006fpic":"a.b","value":1,"value":{"x":1.10}}'))
        assert (await caller.hear())["result"] == 1
        line = await subscriber.line()
        assert line == b'{"jsonrpc":"2.0","method":"$/event","params":{"topic":"a.b","value":{"x":1.10}}}'

    async def test_a_reply_with_two_ids_answers_one_call(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        first, second = await asked_of(provider, caller), await asked_of(provider, caller, "2")
        provider.say(f'{{"jsonrpc":"2.0","id":{first},"i\\u0064":{second},"result":1,"result":2}}')
        assert await caller.hear() == {"jsonrpc": "2.0", "id": 2, "result": 2}
        provider.say({"jsonrpc": "2.0", "id": first, "result": 3})
        assert await caller.hear() == {"jsonrpc": "2.0", "id": 1, "result": 3}


class TestLineEnds:
    """What came in a frame or a body may have line ends in it; what goes on as a line has none."""

    PRETTY = (
        '{\n "jsonrpc": "2.0",\r\n "id": 1,\n "method": "work",\n "params": {\n  "a": [\r1,\n2\n]\n }, "x": [\n]\n}'
    )

    async def test_pretty_requests(self, running_hub: RunningHub) -> None:
        provider, _ = await provider_and_caller(running_hub)
        framed = await running_hub.websocket_peer()
        posting = asyncio.ensure_future(running_hub.post(self.PRETTY))
        framed.say(self.PRETTY)
        for _ in range(2):
            line = await provider.line()
            assert line is not None
            assert b"\r" not in line
            request = json.loads(line)
            assert (request["params"], request["x"]) == ({"a": [1, 2]}, [])
            provider.say({"jsonrpc": "2.0", "id": request["id"], "result": 3})
        assert (await framed.hear())["result"] == 3
        assert json.loads(await posting)["result"] == 3
        await provider.silence()

    async def test_pretty_replies(self, running_hub: RunningHub) -> None:
        framed, caller = await running_hub.websocket_peer(), await running_hub.peer()
        await framed.offers("p", "work")
        call_id = await asked_of(framed, caller)
        framed.say(
            filled(
                '{"jsonrpc":"2.0",\n"id":%d,\n"result":\n{"forged":\n{"jsonrpc":"2.0","id":2,"result":0}\n}}', call_id
            )
        )
        assert await caller.hear() == {
            "jsonrpc": "2.0",
            "id": 1,
            "result": {"forged": {"jsonrpc": "2.0", "id": 2, "result": 0}},
        }
        await caller.silence()

    @pytest.mark.parametrize("tag", ["bytes", "ndarray", "image", "unknown"])
    async def test_a_payload_with_a_forged_message_in_it(self, running_hub: RunningHub, tag: str) -> None:
        """The payloads of long messages are not looked at, and go on as they are: unless they are no strings."""
        provider, _ = await provider_and_caller(running_hub)
        framed = await running_hub.websocket_peer()
        forged = '\n{\\"jsonrpc\\":\\"2.0\\",\\"id\\":1,\\"method\\":\\"evil\\"}\n'
        value = filled('{"$type":"%s","data":"%s%s"}', tag, "A" * 40_000, forged)
        subscriber = await running_hub.peer()
        await subscriber.result("rpc.subscribe", {"topic": "t"})
        for call in (
            CALL % ("1", "work", f"[{value}]"),
            f"[{CALL % ('1', 'work', f'[{value}]')}]",
            CALL % ("1", "rpc.publish", f'["t",{value}]'),
            CALL % ("1", "rpc.notify", f'["p","work",[{value}]]'),
            filled('{"jsonrpc":"2.0","method":"work","params":[%s]}', value),
        ):
            framed.say(call)
            reply = await framed.hear()
            reply = reply[0] if isinstance(reply, list) else reply
            assert reply["error"]["code"] in (-32700, -32600, -32602), call[:100]
        await framed.silence()
        await provider.silence()
        await subscriber.silence()

    async def test_a_payload_with_a_forged_message_in_a_reply(self, running_hub: RunningHub) -> None:
        framed, caller = await running_hub.websocket_peer(), await running_hub.peer()
        await framed.offers("p", "work")
        call_id = await asked_of(framed, caller)
        value = filled('{"$type":"bytes","data":"%s\n{}\n"}', "A" * 40_000)
        framed.say(filled('{"jsonrpc":"2.0","method":"$/progress","params":{"token":%d,"value":%s}}', call_id, value))
        framed.say(filled('{"jsonrpc":"2.0","id":%d,"result":%s}', call_id, value))
        assert (await caller.hear())["error"]["code"] in (-32603, -32700)
        await caller.silence()

    @pytest.mark.parametrize("name", ["0", "7", "999"])
    async def test_ids_that_look_like_what_stands_for_long_strings(self, running_hub: RunningHub, name: str) -> None:
        """What is long is cut out of a message, and put in again; nothing else is put there, and nothing breaks."""
        provider, caller = await provider_and_caller(running_hub)
        call_id, long = f"\x00{name}", "text " * 20_000
        caller.say({"jsonrpc": "2.0", "id": call_id, "method": "work", "params": [], "stream": 9})
        there = (await provider.hear())["id"]
        for method, member in (("$/item", "id"), ("$/progress", "token")):
            provider.say({"jsonrpc": "2.0", "method": method, "params": {member: there, "value": [long]}})
            params = {member: call_id, "value": [long]}
            assert await caller.hear() == {"jsonrpc": "2.0", "method": method, "params": params}
        provider.say({"jsonrpc": "2.0", "id": there, "result": long})
        assert await caller.hear() == {"jsonrpc": "2.0", "id": call_id, "result": long}
        await provider.silence()

    @pytest.mark.parametrize("size", [10, 90_000])
    async def test_long_values_go_through_whole(self, running_hub: RunningHub, size: int) -> None:
        provider, _ = await provider_and_caller(running_hub)
        framed, subscriber = await running_hub.websocket_peer(), await running_hub.peer()
        await subscriber.result("rpc.subscribe", {"topic": "t"})
        data = "QUJD" * size
        value = f'{{\n"$type": "bytes",\n"data": "{data}", "text": "{data}\\n\\u0041\\u00005"\n}}'
        same = {"$type": "bytes", "data": data, "text": data + "\nA\x005"}
        framed.say(CALL % ("1", "rpc.publish", f'{{"topic": "t",\n"value": {value}}}'))
        assert (await framed.hear())["result"] == 1
        assert (await subscriber.hear())["params"] == {"topic": "t", "value": same}
        framed.say(CALL % ("1", "rpc.notify", f'["p",\n"m", [{value}]]'))
        assert (await framed.hear())["result"] is True
        assert (await provider.hear())["params"] == [same]
        framed.say(CALL % ("1", "work", f"[\n{value}]"))
        request = await provider.hear()
        assert request["params"] == [same]
        provider.say(filled('{"jsonrpc":"2.0","id":%d,"result":[%s]}', request["id"], value.replace("\n", "")))
        assert (await framed.hear())["result"] == [same]


class TestExactly:
    """Values and ids come out as they went in."""

    @pytest.mark.parametrize(
        "text", ["1.10", "-0.0", str(2**70), str(-(2**64)), "1e5", "0.1e-7", '"\\u00e9\\/"', "1E+2"]
    )
    async def test_values(self, running_hub: RunningHub, text: str) -> None:
        provider, caller = await provider_and_caller(running_hub)
        for call, where in ((CALL % ("1", "work", f"[{text}]"), b'"params":[%b]'),):
            caller.say(call)
            line = await provider.line()
            assert line is not None
            assert where % text.encode() in line
        call_id = json.loads(line)["id"]
        provider.say(filled('{"jsonrpc":"2.0","id":%d,"result":%s}', call_id, text))
        line = await caller.line()
        assert line == b'{"jsonrpc":"2.0","id":1,"result":%b}' % text.encode()

    @pytest.mark.parametrize(
        "call_id", ["null", "1.0", "1.50", "-0", str(2**64), str(2**200), '"\\u0031"', '""', "1E3"]
    )
    async def test_ids(self, running_hub: RunningHub, call_id: str) -> None:
        provider, caller = await provider_and_caller(running_hub)
        for call in (CALL % (call_id, "work", "[1]"), f"[{CALL % (call_id, 'work', '[1]')}]"):
            caller.say(call)
            request = await provider.hear()
            provider.say(
                filled('{"jsonrpc":"2.0","method":"$/progress","params":{"token":%d,"value":0}}', request["id"])
            )
            provider.say({"jsonrpc": "2.0", "id": request["id"], "result": 5})
            line = await caller.line()
            assert line is not None
            if b"$/progress" in line:
                assert call_id != "null"
                line = await caller.line()
            elif call_id != "null":
                raise AssertionError("no progress")
            assert line is not None
            shown = '"1"' if call_id == '"\\u0031"' else "0" if call_id == "-0" else call_id
            assert b'"id":%b,"result":5' % shown.encode() in line

    async def test_numbers_that_are_none(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        for text in ("1e400", "NaN", "Infinity", "01", "[1e400]"):
            caller.say(CALL % ("1", "work", f"[{text}]"))
            assert (await caller.hear())["error"]["code"] == -32700
        await provider.silence()

    async def test_equal_ids_of_two_callers_and_of_one(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        other = await running_hub.peer()
        ids = [await asked_of(provider, peer, "1", f"[{n}]") for n, peer in enumerate((caller, other, caller))]
        for n, call_id in reversed(list(enumerate(ids))):
            provider.say({"jsonrpc": "2.0", "id": call_id, "result": n})
        assert [(await caller.hear())["result"] for _ in range(2)] == [2, 0]
        assert (await other.hear())["result"] == 1
