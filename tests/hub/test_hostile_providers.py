"""Providers that answer wrongly, and streams that exceed their credit: only their own calls suffer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rpcstream import AsyncClient
from rpcstream.errors import ProviderGone

from .conftest import CALL, OpenHub, RunningHub, asked_of, filled, provider_and_caller, stall


class TestWrongReplies:
    @pytest.mark.parametrize(
        "reply",
        [
            '{"jsonrpc":"2.0","id":%d,"error":null}',
            '{"jsonrpc":"2.0","id":%d,"error":7}',
            '{"jsonrpc":"2.0","id":%d,"error":{}}',
            '{"jsonrpc":"2.0","id":%d,"error":{"code":1.5,"message":"x"}}',
            '{"jsonrpc":"2.0","id":%d,"error":{"code":1,"message":["x"]}}',
            '{"jsonrpc":"2.0","id":%d,"result":' + "[" * 150 + "]" * 150 + "}",
            '{"jsonrpc":"2.0","id":%d,"result":' + "[" * 100_000 + "]" * 100_000 + "}",
            '{"jsonrpc": "2.0", "id": %d, "result": NaN}',
            '{"jsonrpc": "2.0", "id": %d, "result": ["' + "x" * 10_000 + '", NaN]}',
        ],
        ids=["null", "number", "empty", "code", "message", "deep", "very deep", "NaN", "long NaN"],
    )
    async def test_the_caller_is_told(self, running_hub: RunningHub, reply: str) -> None:
        provider, caller = await provider_and_caller(running_hub)
        call_id = await asked_of(provider, caller)
        provider.say(reply % call_id)
        assert (await caller.hear())["error"]["code"] in (-32603, -32600)
        call_id = await asked_of(provider, caller)
        provider.say({"jsonrpc": "2.0", "id": call_id, "result": "well"})
        assert (await caller.hear())["result"] == "well"

    async def test_too_large(self, open_hub: OpenHub) -> None:
        running_hub = await open_hub(max_message_size=100_000)
        provider, caller = await provider_and_caller(running_hub)
        call_id = await asked_of(provider, caller)
        provider.say(filled('{"jsonrpc":"2.0","id":%d,"result":"%s"}', call_id, "x" * 200_000))
        error = (await caller.hear())["error"]
        assert (error["code"], error["data"]["limit"]) == (-32001, 100_000)

    async def test_no_json_at_all(self, running_hub: RunningHub) -> None:
        """What it says is not a reply to anything: it is told, and its calls wait on."""
        provider, caller = await provider_and_caller(running_hub)
        call_id = await asked_of(provider, caller)
        provider.say("what?", '{"jsonrpc":"2.0","result":1}', "[]", "[1]", filled('{"id":%d}', call_id))
        provider.say({"jsonrpc": "2.0", "id": call_id, "result": "well"})
        assert (await caller.hear())["result"] == "well"

    async def test_in_a_batch_with_others(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        ids = [await asked_of(provider, caller, f"{n}") for n in range(3)]
        provider.say(
            filled(
                '[{"jsonrpc":"2.0","id":%d,"result":1.10},{"jsonrpc":"2.0","id":99,"result":0},'
                '{"jsonrpc":"2.0","id":%d.0,"result":"float"},{"jsonrpc":"2.0","id":%d,"result":%d},'
                '{"jsonrpc":"2.0","id":%d,"result":"again"},{"jsonrpc":"2.0","method":"rpc.ping","id":"p"}]',
                ids[2],
                ids[0],
                ids[0],
                2**70,
                ids[0],
            )
        )
        lines = [await caller.line() for _ in range(2)]
        assert lines == [b'{"jsonrpc":"2.0","id":2,"result":1.10}', b'{"jsonrpc":"2.0","id":0,"result":%d}' % 2**70]
        assert (await provider.hear())[0]["id"] == "p"
        provider.say({"jsonrpc": "2.0", "id": ids[1], "result": "well"})
        assert (await caller.hear())["result"] == "well"

    async def test_many_in_one_batch_take_no_longer_than_by_themselves(self, running_hub: RunningHub) -> None:
        """Each is looked for in the batch: that must not take a look at all of it each time."""
        provider, caller = await provider_and_caller(running_hub)
        count = 1000
        caller.say(*[CALL % (n, "work", "[]") for n in range(count)])
        ids = [(await provider.hear())["id"] for _ in range(count)]
        filling = [f'{{"jsonrpc":"2.0","id":{n},"result":"{"x" * 200}"}}' for n in range(10**6, 10**6 + 3000)]
        replies = [f'{{"jsonrpc":"2.0","id":{n},"result":{2**70}}}' for n in ids]
        provider.say("[" + ",".join(filling + replies) + "]")
        async with asyncio.timeout(10):
            for n in range(count):
                assert await caller.line() == b'{"jsonrpc":"2.0","id":%d,"result":%d}' % (n, 2**70)

    async def test_an_error_without_an_id_ends_this_providers_calls_only(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        another = await running_hub.peer()
        await another.offers("q", "else")
        caller.say(CALL % ("2", "else", "[]"))
        request = await another.hear()
        await asked_of(provider, caller)
        provider.say('{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}')
        assert (await caller.hear())["error"]["code"] == -32700
        another.say({"jsonrpc": "2.0", "id": request["id"], "result": "well"})
        assert await caller.hear() == {"jsonrpc": "2.0", "id": 2, "result": "well"}

    async def test_to_calls_of_another_provider(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        another = await running_hub.peer()
        await another.offers("q", "else")
        call_id = await asked_of(provider, caller)
        another.say(*[{"jsonrpc": "2.0", "id": n, "result": "forged"} for n in range(call_id + 5)])
        another.say({"jsonrpc": "2.0", "method": "$/progress", "params": {"token": call_id, "value": 0}})
        another.say({"jsonrpc": "2.0", "method": "$/item", "params": {"id": call_id, "value": 0}})
        await another.silence()
        provider.say({"jsonrpc": "2.0", "id": call_id, "result": "well"})
        assert (await caller.hear())["result"] == "well"

    async def test_cancelled_by_nobody(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        call_id = await asked_of(provider, caller)
        provider.say({"jsonrpc": "2.0", "id": call_id, "error": {"code": -32800, "message": "Cancelled"}})
        error = (await caller.hear())["error"]
        assert (error["code"], error["data"]["client"], error["data"]["method"]) == (-32007, "p", "work")

    async def test_a_client_that_is_closed_during_a_call(self, running_hub: RunningHub) -> None:
        worker = AsyncClient(running_hub.address, name="worker")
        begun = asyncio.Event()

        @worker
        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        await worker.offer()
        async with AsyncClient(running_hub.address) as caller:
            call = caller.submit.work()
            await begun.wait()
            await worker.close()
            with pytest.raises(ProviderGone) as caught:
                await call
            assert caught.value.data["client"] == "worker"


class TestStreams:
    async def test_items_beyond_credit_end_the_call(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        caller.say('{"jsonrpc":"2.0","id":1,"method":"work","stream":2}')
        call_id = (await provider.hear())["id"]
        provider.say(
            *[filled('{"jsonrpc":"2.0","method":"$/item","params":{"id":%d,"value":%d}}', call_id, n) for n in range(5)]
        )
        assert [(await caller.hear())["params"]["value"] for _ in range(2)] == [0, 1]
        assert (await caller.hear())["error"]["code"] == -32603
        assert (await provider.hear())["method"] == "$/cancelRequest"
        await caller.silence()

    async def test_items_without_a_stream_are_dropped(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        call_id = await asked_of(provider, caller)
        for params in (
            filled('{"id":%d,"value":1}', call_id),
            '{"stream":"s1","value":1}',
            '{"id":"x"}',
            "{}",
            "[]",
            filled('{"id":%d}', call_id),
        ):
            provider.say(filled('{"jsonrpc":"2.0","method":"$/item","params":%s}', params))
            caller.say(filled('{"jsonrpc":"2.0","method":"$/item","params":%s}', params))
        await caller.silence()
        provider.say({"jsonrpc": "2.0", "id": call_id, "result": "well"})
        assert (await caller.hear())["result"] == "well"

    async def test_two_callers_that_both_say_s1(self, running_hub: RunningHub) -> None:
        provider, caller = await provider_and_caller(running_hub)
        other = await running_hub.peer()
        tokens = []
        for n, peer in enumerate((caller, other)):
            peer.say(CALL % ("1", "work", '[{"$type":"stream","id":"s1"}]'))
            request = await provider.hear()
            tokens.append(request["params"][0]["id"])
            provider.say({"jsonrpc": "2.0", "method": "$/credit", "params": {"stream": tokens[n], "n": 3}})
            assert (await peer.hear())["params"] == {"stream": "s1", "n": 3}
        assert tokens[0] != tokens[1]
        for n, peer in enumerate((caller, other)):
            peer.say(filled('{"jsonrpc":"2.0","method":"$/item","params":{"stream":"s1","value":%d.10}}', n))
            assert await provider.line() == (
                b'{"jsonrpc":"2.0","method":"$/item","params":{"stream":"%b","value":%d.10}}' % (tokens[n].encode(), n)
            )
        caller.say(CALL % ("2", "work", '[{"$type":"stream","id":"s1"}]'))
        assert (await caller.hear())["error"]["code"] == -32602

    @pytest.mark.parametrize("reference", ['{"$type":"stre\\u0061m","id":"s1"}', '{"$typ\\u0065":"stream","id":"s1"}'])
    async def test_a_reference_that_is_written_in_another_way(self, running_hub: RunningHub, reference: str) -> None:
        provider, caller = await provider_and_caller(running_hub)
        caller.say(CALL % ("1", "work", f"[{reference}]"))
        assert (await provider.hear())["params"][0]["id"] != "s1"

    @pytest.mark.parametrize(
        ("value", "is_fine"),
        [
            ("5", True),
            ("[" * 100 + "]" * 100, True),
            ("[" * 150 + "]" * 150, False),
            ("[" * 900 + "]" * 900, False),
            ('{"$type":"bytes","data":"' + "A" * 40_000 + '\t"}', False),
        ],
        ids=["plain", "nested", "deep", "very deep", "no string"],
    )
    async def test_items_that_cannot_go_on(self, running_hub: RunningHub, value: str, is_fine: bool) -> None:
        """Neither to the caller nor to the provider; params that stand there twice are those that come last."""
        provider, caller = await provider_and_caller(running_hub)
        item = '{"jsonrpc":"2.0","method":"$/item","params":[1],"params":{"%s":%s,"value":%s}}'
        caller.say('{"jsonrpc":"2.0","id":1,"method":"work","stream":2}')
        call_id = (await provider.hear())["id"]
        provider.say(filled(item, "id", call_id, value))
        message = await caller.hear()
        assert ("params" in message) is is_fine
        assert is_fine or message["error"]["code"] == -32603
        caller.say(filled(CALL, "2", "work", '[{"$type":"stream","id":"s"}]'))
        request = await provider.hear()
        if "id" not in request:
            assert request["method"] == "$/cancelRequest"
            request = await provider.hear()
        token = request["params"][0]["id"]
        provider.say({"jsonrpc": "2.0", "method": "$/credit", "params": {"stream": token, "n": 2}})
        assert (await caller.hear())["params"] == {"stream": "s", "n": 2}
        caller.say(filled(item, "stream", '"s"', value))
        if is_fine:
            assert (await provider.hear())["params"]["stream"] == token
        else:
            assert (await caller.hear())["error"]["code"] == -32602
        await caller.silence()

    async def test_nobody_can_guess_the_name_of_anothers_stream(self, running_hub: RunningHub) -> None:
        """Whoever could would be sent its items: notifications and values that lie deeper pass as they are."""
        provider, caller = await provider_and_caller(running_hub)
        tokens = set()
        for n in range(3):
            caller.say(CALL % (n, "work", filled('[{"$type":"stream","id":"s%d"}]', n)))
            tokens.add((await provider.hear())["params"][0]["id"])
        assert all(len(token) > 16 for token in tokens)
        assert len({token.rpartition("-")[2] for token in tokens}) == 3

    async def test_credit_is_never_ahead_of_its_call(self, running_hub: RunningHub) -> None:
        """The provider does not read: the call waits, and what is said about it waits behind it."""
        provider, caller = await provider_and_caller(running_hub)
        await stall(running_hub, provider, caller)
        caller.say('{"jsonrpc":"2.0","id":"late","method":"work","stream":0}')
        for _ in range(50):
            caller.say('{"jsonrpc":"2.0","method":"$/credit","params":{"id":"late","n":2}}')
        await caller.silence()
        provider.transport.resume_reading()
        heard: list[Any] = []
        while not heard or heard[-1].get("method") != "$/credit":
            message = await provider.hear()
            if message.get("stream") == 0 or message["method"] == "$/credit":
                heard.append(message)
        assert [each["method"] for each in heard] == ["work", "$/credit"]
        window = running_hub.hub.limits.stream_window
        assert heard[1]["params"]["id"] == heard[0]["id"]
        assert window / 2 < heard[1]["params"]["n"] <= window
