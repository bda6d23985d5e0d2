"""Long messages are forwarded without being decoded; invalid JSON is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rpcstream.codec import payloads
from rpcstream.codec.payloads import Payload
from rpcstream.hub.passthrough import PassThroughReader
from rpcstream.peer.session import Session

from ..internals import record_calls
from .conftest import CALL, RunningHub, asked_of, filled, provider_and_caller

LONG = "text " * 20_000


class Watched:
    """Notes of each long message what it was read as."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[Any] = []
        read = PassThroughReader.read

        def noted(reader: PassThroughReader, line: bytes, session: Session) -> tuple[Any, bytes]:
            message, rest = read(reader, line, session)
            self.read.append(message)
            return message, rest

        monkeypatch.setattr(PassThroughReader, "read", noted)

    @property
    def undecoded(self) -> int:
        """Long strings in the messages since this was asked last; those that are left as they came."""
        messages, self.read = self.read, []
        return sum(_payloads(message) for message in messages)


def _payloads(value: Any) -> int:
    if isinstance(value, dict | list):
        return sum(map(_payloads, value.values() if isinstance(value, dict) else value))
    return type(value) is Payload


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


async def test_what_goes_on_is_not_decoded(watched: Watched, running_hub: RunningHub) -> None:
    provider, caller = await provider_and_caller(running_hub)
    subscriber = await running_hub.peer()
    await subscriber.result("rpc.subscribe", {"topic": "t"})
    caller.say({"jsonrpc": "2.0", "id": 1, "method": "work", "params": [LONG, LONG], "stream": 5})
    request = await provider.hear()
    assert (request["params"], watched.undecoded) == ([LONG, LONG], 2)
    for method, name in (("$/progress", "token"), ("$/item", "id")):
        provider.say({"jsonrpc": "2.0", "method": method, "params": {name: request["id"], "value": {"a": LONG}}})
        assert (await caller.hear())["params"] == {name: 1, "value": {"a": LONG}}
        assert watched.undecoded == 1
    provider.say({"jsonrpc": "2.0", "id": request["id"], "result": LONG})
    assert await caller.hear() == {"jsonrpc": "2.0", "id": 1, "result": LONG}
    assert watched.undecoded == 1
    assert await caller.result("rpc.publish", ["t", LONG]) == 1
    assert (await subscriber.hear())["params"] == {"topic": "t", "value": LONG}
    assert await caller.result("rpc.notify", {"client": "p", "method": "m", "params": {"a": LONG}}) is True
    assert (await provider.hear())["params"] == {"a": LONG}
    assert watched.undecoded == 2


async def test_items_of_a_stream_among_the_arguments_are_not_decoded(watched: Watched, running_hub: RunningHub) -> None:
    provider, caller = await provider_and_caller(running_hub)
    stream = {"$type": "stream", "id": "s" * 20_000}
    caller.say({"jsonrpc": "2.0", "id": 1, "method": "work", "params": [{"$type": "stream", "id": "s"}, stream, LONG]})
    there = [each["id"] for each in (await provider.hear())["params"][:2]]
    assert watched.undecoded == 0  # or nobody would see the streams
    for token, name in zip(("s", stream["id"]), there, strict=True):
        provider.say({"jsonrpc": "2.0", "method": "$/credit", "params": {"stream": name, "n": 1}})
        assert (await caller.hear())["params"] == {"stream": token, "n": 1}
        caller.say({"jsonrpc": "2.0", "method": "$/item", "params": {"stream": token, "value": LONG}})
        assert (await provider.hear())["params"] == {"stream": name, "value": LONG}
    assert watched.undecoded == 1


@pytest.mark.parametrize(
    "member", ['"id":"%s"', '"id":1,"method":"%s"', '"id":1,"jsonrpc":"%s"', '"id":1,"timeout":"%s"', '"id":1,"x":"%s"']
)
async def test_members_of_the_request_itself_are_read(watched: Watched, running_hub: RunningHub, member: str) -> None:
    provider, caller = await provider_and_caller(running_hub)
    caller.say('{"jsonrpc":"2.0","id":0,"method":"work","params":[1],' + member % LONG + "}")
    if member.startswith(('"id":"', '"id":1,"x"')):
        request = await provider.hear()
        assert request.get("x", LONG) == LONG
        provider.say({"jsonrpc": "2.0", "id": request["id"], "result": 1})
        assert (await caller.hear())["result"] == 1
    else:
        assert (await caller.hear())["error"]["code"] in (-32600, -32601)
    assert watched.undecoded == 0
    await provider.silence()


async def test_what_the_hub_is_told_itself_is_decoded(watched: Watched, running_hub: RunningHub) -> None:
    hub = running_hub.hub
    said: list[Any] = []

    @hub
    async def own(value: Any) -> Any:
        said.append(value)
        return value

    provider, caller = await provider_and_caller(running_hub)
    assert await caller.result("own", [LONG]) == LONG
    assert said == [LONG]
    provider.say({"jsonrpc": "2.0", "id": 99, "result": LONG})  # to nobody
    call_id = await asked_of(provider, caller)
    provider.say({"jsonrpc": "2.0", "id": call_id, "error": {"code": 5, "message": LONG}})
    assert (await caller.hear())["error"] == {"code": 5, "message": LONG}
    assert watched.undecoded == 0


#: Strings that are none, by themselves.
WRONG = ["\n", "\x00", "\x1f", "\\x", "\\u12g4", "\\ud800\\n\\", "\udcff"]


@pytest.mark.parametrize("wrong", WRONG, ids=ascii)
async def test_what_is_no_string_goes_nowhere(running_hub: RunningHub, wrong: str) -> None:
    """In a call, a notification, what is published, and a result. (Over HTTP a message may have line ends in it.)"""
    provider, caller = await provider_and_caller(running_hub)
    value = f'"{LONG}{wrong}{LONG}"'.encode(errors="surrogateescape")
    for call in (
        CALL % ("1", "work", "[%s]"),
        CALL % ("1", "rpc.publish", '["t",%s]'),
        CALL % ("1", "rpc.notify", '["p","m",[%s]]'),
        '{"jsonrpc":"2.0","method":"work","params":{"a":[%s]}}',
    ):
        reply = json.loads(await running_hub.post(call.encode().replace(b"%s", value)))
        assert reply["error"]["code"] == -32700, call
    if wrong != "\n":
        call_id = await asked_of(provider, caller)
        provider.say(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (call_id, value))
        assert (await caller.hear())["error"]["code"] == -32603
    await provider.silence()


async def test_strings_of_every_kind_come_out_as_they_went_in(running_hub: RunningHub) -> None:
    provider, caller = await provider_and_caller(running_hub)
    for text in ("ä" * 10_000, "\\" * 10_000, '"' * 9000 + LONG, "\x00" * 9000, "\x7f" * 9000, "😀" * 9000, LONG + "é"):
        for line in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
            caller.say(CALL % ("1", "work", f"[{line},{{{json.dumps(text)}:1}}]"))
            request = await provider.hear()
            assert request["params"] == [text, {text: 1}]
            provider.say(filled('{"jsonrpc":"2.0","id":%d,"result":%s}', request["id"], line))
            assert (await caller.hear())["result"] == text


async def test_names_of_topics_and_clients_that_are_too_long_are_texts(running_hub: RunningHub) -> None:
    caller = await running_hub.peer()
    for params, reason in (
        ({"topic": LONG, "value": 1}, "more than 256 characters"),
        ([LONG, LONG], "more than 256 characters"),
    ):
        reply = await caller.ask("rpc.publish", params)
        assert reason in reply["error"]["message"]
    for params in ({"client": LONG, "method": "m"}, [LONG, "m", [LONG]]):
        reply = await caller.ask("rpc.notify", params)
        assert "no client has the name 'text text" in reply["error"]["message"]


async def test_each_long_text_is_looked_at_once(running_hub: RunningHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are in a message, and however many answers are in a batch."""
    looked = record_calls(monkeypatch, payloads, "_is_string")
    provider, caller = await provider_and_caller(running_hub)
    caller.say(*[{"jsonrpc": "2.0", "id": n, "method": "work", "params": []} for n in range(10)])
    asked = [(await provider.hear())["id"] for _ in range(10)]
    provider.say(
        [{"jsonrpc": "2.0", "id": there, "result": {"$type": "bytes", "data": "QUJD" * 5000}} for there in asked]
    )
    assert sorted([(await caller.hear())["id"] for _ in range(10)]) == list(range(10))
    assert len(looked) == 10
    caller.say({"jsonrpc": "2.0", "method": "work", "params": ["x" * 9000] * 30})
    assert len((await provider.hear())["params"]) == 30
    assert len(looked) == 40
