"""What goes through a hub comes out as it went in, and is the same for every reader; what is no JSON goes nowhere."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import tracemalloc
from typing import Any

import pytest

from rpcstream import Rule

from ..kit import PATIENCE, batch, notification, reply, request
from .conftest import CALL, Code, OpenHub, RunningHub, asked_of

LONG = "text " * 20_000

MIB = 1024 * 1024


def answered(asked: dict[str, Any], result: str) -> str:
    """The reply with this JSON as its result."""
    return '{"jsonrpc":"2.0","id":' + f'{asked["id"]},"result":{result}}}'


async def test_values(running_hub: RunningHub) -> None:
    provider, caller = await running_hub.pair()
    for text in ("1.10", "-0.0", str(2**70), str(-(2**64)), "1e5", "0.1e-7", '"\\u00e9\\/"', "1E+2"):
        caller.send(CALL % ("1", "work", f"[{text}]"))
        line = await provider.receive_bytes()
        assert f'"params":[{text}]'.encode() in line
        provider.send(answered(json.loads(line), text))
        assert await caller.receive_bytes() == b'{"jsonrpc":"2.0","id":1,"result":%b}' % text.encode()
    for text in ("1e400", "NaN", "Infinity", "01", "[1e400]", "[" * 150 + "]" * 150):
        caller.send(CALL % ("1", "work", f"[{text}]"))
        assert await caller.code() in (Code.PARSE, Code.INVALID)
    await provider.silence()


async def test_ids(running_hub: RunningHub) -> None:
    """Also in batches, and as the tokens of progress."""
    provider, caller = await running_hub.pair()
    for call_id in ("null", "1.0", "1.50", "-0", str(2**63), '"\\u0031"', '""', "1E3"):
        shown = {'"\\u0031"': '"1"', "-0": "0", "1.50": "1.5", "1E3": "1000.0"}.get(call_id, call_id).encode()
        for call in (CALL % (call_id, "work", "[1]"), f"[{CALL % (call_id, 'work', '[1]')}]"):
            caller.send(call)
            asked = await provider.receive()
            provider.send(notification("$/progress", token=asked["id"], value=0), reply(asked["id"], 5))
            if call_id != "null":
                assert b'"token":%b' % shown in await caller.receive_bytes()
            assert b'"id":%b,"result":5' % shown in await caller.receive_bytes()


async def test_equal_ids_of_two_callers_and_of_one(running_hub: RunningHub) -> None:
    provider, caller = await running_hub.pair()
    other = await running_hub.peer()
    asked = [await asked_of(provider, peer, n) for n, peer in enumerate((caller, other, caller))]
    for n, each in reversed(list(enumerate(asked))):
        provider.answer(each, n)
    assert [await caller.result() for _ in range(2)] == [2, 0]
    assert await other.result() == 1


async def test_requests_say_everything_once(running_hub: RunningHub) -> None:
    provider, caller = await running_hub.pair()
    caller.send(
        '{"jsonrpc":"2.0","id":1,"id":7,"method":"rpc.stats","m\\u0065thod":"work",'
        '"params":[0],"p\\u0061rams":{"a":1,"a":2},"x":1,"i\\u0064":8}'
    )
    pairs: list[str] = []
    line = await provider.receive_bytes()
    json.loads(line, object_pairs_hook=lambda found: pairs.extend(name for name, _ in found))
    assert sorted(name for name in pairs if name != "a") == ["id", "jsonrpc", "method", "params", "x"]
    asked = json.loads(line)
    assert (asked["method"], asked["params"]) == ("work", {"a": 2})
    provider.answer(asked, "done")
    assert await caller.receive() == reply(8, "done")


async def test_rules_see_the_method_that_is_called(open_hub: OpenHub) -> None:
    rules = [Rule("worker", register=">"), Rule("guest", call="harmless")]
    hub = await open_hub(rules=rules, authenticate=lambda credentials: credentials.token)
    provider, caller = await hub.peer(token="worker"), await hub.peer(token="guest")
    await provider.offers("p", "harmless", "secret")
    for members in (
        '"method":"harmless","method":"secret"',
        '"method":"harmless","m\\u0065thod":"secret"',
        '"method":"s\\u0065cret"',
        '"method":"p.secret"',
        '"method":"rpc.notify","params":["p","secret",[]]',
        '"method":"rpc.notify","params":{"client":"p","method":"harmless","method":"secret"}',
        '"method":"rpc.publish","params":["topic",1]',
        '"method":"rpc.subscribe","params":["topic"]',
    ):
        message = '{"jsonrpc":"2.0","id":1,' + members + "}"
        caller.send(message, f"[{message}]")
        assert await caller.code() == Code.DENIED, members
        expected = Code.INVALID if "subscribe" in members else Code.DENIED  # it cannot be made in a batch anyway
        assert (await caller.receive())[0]["error"]["code"] == expected, members
    await provider.silence()
    caller.send('{"jsonrpc":"2.0","id":1,"method":"secret","method":"harmless"}')
    assert (await provider.receive())["method"] == "harmless"


async def test_what_is_passed_on_is_what_was_looked_at(running_hub: RunningHub) -> None:
    provider, caller = await running_hub.pair()
    params = '{"client":"x","cli\\u0065nt":"p","method":"a","method":"b","params":[1],"par\\u0061ms":[2]}'
    caller.send(CALL % ("1", "rpc.notify", params))
    assert await caller.result() is True
    assert await provider.receive() == {"jsonrpc": "2.0", "method": "b", "params": [2]}
    await provider.result("rpc.subscribe", "a.>")
    caller.send(CALL % ("1", "rpc.publish", '{"topic":"b","t\\u006fpic":"a.b","value":1,"value":{"x":1.10}}'))
    assert await caller.result() == 1
    line = await provider.receive_bytes()
    assert line == b'{"jsonrpc":"2.0","method":"$/event","params":{"topic":"a.b","value":{"x":1.10}}}'


PRETTY = '{\n "jsonrpc": "2.0",\r\n "id": 1,\n "method": "work",\n "params": {\n  "a": [\r1,\n2\n]\n }, "x": [\n]\n}'


async def test_pretty_requests_and_replies(running_hub: RunningHub) -> None:
    provider, framed = await running_hub.peer("p", "work"), await running_hub.websocket_peer()
    posting = asyncio.ensure_future(running_hub.post(PRETTY))
    framed.transport.send_message(PRETTY.encode())
    for _ in range(2):
        line = await provider.receive_bytes()
        assert b"\r" not in line
        asked = json.loads(line)
        assert (asked["params"], asked["x"]) == ({"a": [1, 2]}, [])
        provider.answer(asked, 3)
    assert await framed.result() == 3
    assert (await posting).json["result"] == 3
    await framed.offers("q", "more")
    provider.call("more")
    forged = {"forged": {"jsonrpc": "2.0", "id": 2, "result": 0}}
    framed.transport.send_message(json.dumps(reply((await framed.receive())["id"], forged), indent=1).encode())
    assert await provider.receive() == reply(1, forged)
    await provider.silence()


FORGED = '\n{\\"jsonrpc\\":\\"2.0\\",\\"id\\":1,\\"method\\":\\"evil\\"}\n'
NO_STRINGS = [f'"{LONG}{wrong}{LONG}"' for wrong in ("\n", "\x1f", "\\u12g4", "\\ud800\\n\\", "\udcff")]
NO_STRINGS += ['{"$type":"' + f'{tag}","data":"{"A" * 40_000}{FORGED}"}}' for tag in ("ndarray", "unknown")]


@pytest.mark.parametrize("text", NO_STRINGS, ids=range(len(NO_STRINGS)))
async def test_what_is_no_string_goes_nowhere(running_hub: RunningHub, text: str) -> None:
    """In requests, over HTTP; in progress and a result, in frames where there are line ends in it."""
    provider, caller = await running_hub.pair()
    await provider.result("rpc.subscribe", "t")
    value = text.encode(errors="surrogateescape")
    for call in (
        CALL % ("1", "work", "[%s]"),
        f"[{CALL % ('1', 'work', '[%s]')}]",
        CALL % ("1", "rpc.publish", '["t",%s]'),
        CALL % ("1", "rpc.notify", '["p","m",[%s]]'),
        '{"jsonrpc":"2.0","method":"work","params":{"a":[%s]}}',
    ):
        answer = (await running_hub.post(call.encode().replace(b"%s", value))).json
        answer = answer[0] if isinstance(answer, list) else answer
        assert answer["error"]["code"] in (Code.PARSE, Code.INVALID, Code.PARAMS), call
    await provider.silence()
    framed = await running_hub.websocket_peer()
    await framed.offers("q", "more")
    asked_for, send = ("more", framed.transport.send_message) if "\n" in text else ("work", provider.send)
    caller.call(asked_for)
    there = (await (framed if asked_for == "more" else provider).receive())["id"]
    send(b'{"jsonrpc":"2.0","method":"$/progress","params":{"token":%d,"value":%b}}' % (there, value))
    send(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (there, value))
    assert await caller.code() in (Code.INTERNAL, Code.PARSE)
    await caller.silence()


async def test_long_texts_in_every_place(running_hub: RunningHub) -> None:
    provider, caller = await running_hub.pair()
    await provider.result("rpc.subscribe", "t")
    long_stream = {"$type": "stream", "id": "s" * 20_000}
    asked = await asked_of(provider, caller, LONG, [LONG], {"$type": "stream", "id": "s"}, long_stream, stream=5)
    assert asked["params"][:2] == [LONG, [LONG]]
    for method, name in (("$/progress", "token"), ("$/item", "id")):
        provider.send(notification(method, value={"a": LONG}, **{name: asked["id"]}))
        assert (await caller.receive())["params"] == {name: 1, "value": {"a": LONG}}
    for stream, there in zip(("s", long_stream["id"]), asked["params"][2:], strict=True):
        provider.send(notification("$/credit", stream=there["id"], n=1))
        assert (await caller.receive())["params"] == {"stream": stream, "n": 1}
        caller.send(notification("$/item", stream=stream, value=LONG))
        assert (await provider.receive())["params"] == {"stream": there["id"], "value": LONG}
    provider.answer(asked, LONG)
    assert await caller.receive() == reply(1, LONG)
    assert await caller.result("rpc.publish", "t", LONG) == 1
    assert (await provider.receive())["params"] == {"topic": "t", "value": LONG}
    assert await caller.result("rpc.notify", "p", "m", {"a": LONG}) is True
    assert (await provider.receive())["params"] == {"a": LONG}
    asked = await asked_of(provider, caller, id=LONG, x=LONG)
    assert asked["x"] == LONG
    provider.fail(asked, 5, LONG)
    answer = await caller.receive()
    assert (answer["id"], answer["error"]) == (LONG, {"code": 5, "message": LONG})
    running_hub.hub.add(lambda value: value, name="own")
    assert await caller.result("own", LONG) == LONG
    assert await caller.code(LONG) == Code.UNKNOWN
    for method, params in (("rpc.publish", {"topic": LONG, "value": 1}), ("rpc.notify", [LONG, "m", [LONG]])):
        assert await caller.code(method, params=params) == Code.PARAMS
    # What is long is cut out of a message, and put in again; nothing else is put there.
    for call_id in ("\x000", "\x00999"):
        provider.answer(await asked_of(provider, caller, id=call_id), [LONG])
        assert await caller.receive() == reply(call_id, [LONG])


async def test_strings_of_every_kind(running_hub: RunningHub) -> None:
    provider, caller = await running_hub.pair()
    for text in ("ä" * 10_000, "\\" * 10_000, '"' * 9000 + LONG, "\x00" * 9000, "\x7f" * 9000, "😀" * 9000, LONG + "é"):
        for written in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
            caller.send(CALL % ("1", "work", f"[{written},{{{json.dumps(text)}:1}}]"))
            asked = await provider.receive()
            assert asked["params"] == [text, {text: 1}]
            provider.send(answered(asked, written))
            assert await caller.result() == text


#: Short, long enough to be cut out of a message, and to be written without a copy; not all are ASCII.
SIZES = (10, 20_000, 100, 100_000, 10, 300_000, 5)
TEXTS = [f"{number} " + 'a"\\ö'[number % 4] * size for number, size in enumerate(SIZES)]


async def test_requests_and_replies_keep_their_order(open_hub: OpenHub) -> None:
    """Also between answers of the hub, to a client that calls itself, and where the provider does not read a while."""
    hub = await open_hub({"write_buffer": 65_536})
    provider, caller = await hub.pair()
    asked = [request("work", text, id=number) for number, text in enumerate(TEXTS)]
    provider.send(*(each for call in asked for each in (request("rpc.ping", id="own"), call)))
    heard = [each for each in await provider.receive_many(2 * len(TEXTS)) if "method" in each]
    assert [each["params"][0] for each in heard] == TEXTS
    provider.send(*(reply(each["id"], each["params"][0]) for each in heard))
    assert [await provider.result() for _ in heard] == TEXTS
    provider.transport.pause_reading()
    caller.send(*asked * 9)
    end = time.monotonic() + PATIENCE
    while (await hub.clients())["p"]["state"] != "stalled":
        assert time.monotonic() < end, "the provider is never said to be stalled"
    provider.transport.resume_reading()
    for text in TEXTS * 9:
        call = await provider.receive()
        assert call["params"] == [text]
        provider.answer(call, text)
    for number, text in enumerate(TEXTS * 9):
        assert await caller.receive() == reply(number % len(TEXTS), text)


async def test_last_values_do_not_keep_the_messages_that_they_came_in(running_hub: RunningHub) -> None:
    """Twenty short values, each published in a batch beside a long call."""
    publisher = await running_hub.peer()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(20):
            publish = request("rpc.publish", f"t.{number}", {"number": number, "text": "x" * 1000}, True)
            publisher.send(batch(publish, request("no such method", "x" * MIB, id=2)))
            assert {each["id"] for each in await publisher.receive()} == {1, 2}
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 2 * MIB
    finally:
        tracemalloc.stop()
