"""Registering, publishing, notifying, lists of all: what is wrong is refused, nobody gets what rules do not allow."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import Rule
from rpcstream.events.patterns import matches
from rpcstream.hub import Hub
from rpcstream.testing import FakeTimeLoop

from ..kit import TRANSPORTS, batch, logged, request, until
from ..kit.example_count import example_count
from .conftest import CALL, Code, HubPeer, OpenHub, RunningHub, asked_of, serves

NO_METHODS = ["rpc.x", "rpc", "$/item", "", ".", "a.", ".a", "a..b", "a*", ">", "p.work", "x" * 300, "a\nb"]
NO_METHODS += [7, None, {}, {"name": 1}, {"name": "x", "shared": 1}]
NO_METHODS += [{"name": "x", "params": {"$type": "bytes", "data": "QUJD"}}]
NO_REGISTRATIONS: list[Any] = [{"name": "p", "methods": ["fine", each]} for each in NO_METHODS]
NO_REGISTRATIONS += [{"name": name} for name in ("", "rpc", "a.b", "x" * 129, "é", "a b", "a\n", "*", 1)]
NO_REGISTRATIONS += [{"methods": "work"}, {"components": []}, {"components": {"X": 1}}, {"key": 1}, {"unknown": 1}]
NO_REGISTRATIONS += [{"name": "p", "methods": ["keepAlive"]}]


async def test_what_is_no_registration(running_hub: RunningHub) -> None:
    peer = await running_hub.peer()
    for params in NO_REGISTRATIONS:
        assert await peer.code("rpc.register", params=params) == Code.PARAMS, params
    stats = running_hub.hub.stats()
    assert (stats["clients"], stats["methods_offered"]) == (0, 0)


async def test_a_name_and_its_key(running_hub: RunningHub) -> None:
    first, second, caller = [await running_hub.peer() for _ in range(3)]
    key = (await first.offers("p", "work"))["key"]
    for wrong in (None, "", "x", key[:-1], "é"):
        params = {"name": "p", "methods": ["work"], **({} if wrong is None else {"key": wrong})}
        assert await second.code("rpc.register", params=params) == Code.PARAMS
    assert await second.code("rpc.register", "q", ["work"], {}, key) == Code.PARAMS
    assert await second.code("rpc.register", "p", ["rpc.x"], {}, key) == Code.PARAMS
    assert await first.code("rpc.register", "q") == Code.PARAMS
    await first.silence()
    await asked_of(first, caller)
    assert (await second.offers("p", "work", key=key))["key"] == key
    error = await caller.error()
    assert (error["code"], error["data"]) == (Code.GONE, {"method": "work", "client": "p"})
    assert await first.receive() is None
    await serves(second, caller)


async def test_names_of_methods_that_others_have(running_hub: RunningHub) -> None:
    shared = {"name": "many", "shared": True}
    first, second = await running_hub.peer("p", "work", shared, "q.own"), await running_hub.peer()
    for methods in (["work"], ["p.work"], ["many"], [{"name": "work", "shared": True}], [{**shared, "name": "p.many"}]):
        assert await second.code("rpc.register", "s", ["fine", *methods]) == Code.PARAMS
    await second.offers("s", shared, "own")
    assert await first.code("rpc.register", params={"methods": ["many"]}) == Code.PARAMS
    found = {each["name"]: each["clients"] for each in await first.result("rpc.methods")}
    assert found == {"many": ["p", "s"], "own": ["s"], "work": ["p"], "p.q.own": ["p"]}


async def test_clients_that_share_a_method_take_turns(open_hub: OpenHub) -> None:
    hub = await open_hub()
    providers = [await hub.peer(name, {"name": "work", "shared": True}) for name in "abc"]
    caller = await hub.peer()
    for _ in range(2):
        caller.send(*(request("work", id=number) for number in range(3)))
        for provider in providers:
            provider.answer(await provider.receive(), 1)
        assert [each["result"] for each in await caller.receive_many(3)] == [1, 1, 1]


async def test_where_it_cannot_be(running_hub: RunningHub) -> None:
    peer = await running_hub.peer()
    call = CALL % ("1", "rpc.register", '{"name":"p","methods":["work"]}')
    peer.send(f"[{call}]")
    assert (await peer.receive())[0]["error"]["code"] == Code.INVALID
    assert (await running_hub.post(call)).json["error"]["code"] == Code.INVALID
    assert running_hub.hub.stats()["clients"] == 0


async def test_withdrawn_while_calls_run(running_hub: RunningHub) -> None:
    provider, caller = await running_hub.pair()
    asked = await asked_of(provider, caller)
    assert await provider.result("rpc.unregister", ["work", "other", "work"]) == ["work"]
    assert await caller.code("work") == Code.UNKNOWN
    assert await provider.result("rpc.unregister", id=2) == []
    provider.answer(asked, "well")
    assert await caller.result() == "well"


async def test_a_name_with_a_dot_stands_for_a_client_and_its_method_whether_it_is_there_or_not(
    running_hub: RunningHub,
) -> None:
    evil = await running_hub.peer("evil", "gpu-1.vectorize", {"name": "gpu-2.vectorize", "shared": True})
    caller = await running_hub.peer()
    for name in ("gpu-1.vectorize", "gpu-2.vectorize"):  # neither has ever been there
        assert await caller.code(name) == Code.UNKNOWN
    gpu = await running_hub.peer("gpu-1", "vectorize")
    caller.call("gpu-1.vectorize")
    assert (await gpu.receive())["method"] == "vectorize"
    gpu.close()
    assert await caller.code() == Code.GONE
    assert await caller.code("gpu-1.vectorize") == Code.UNKNOWN  # it is away
    await evil.silence()
    caller.call("evil.gpu-1.vectorize", 7)
    asked = await evil.receive()
    assert (asked["method"], asked["params"]) == ("gpu-1.vectorize", [7])
    evil.answer(asked, 8)
    assert await caller.result() == 8


NO_NOTIFICATIONS = ['["p","rpc.ping",[]]', '["p","$/cancelRequest",{"id":1}]', '["nobody","m"]', '["p","m",7]', '["p"]']
NO_NOTIFICATIONS += ['["p","m","[]"]', "[]", "null", '["p","m",[],1]', '{"client":"p"}', '[7,"m"]', '["p",null]']
NO_NOTIFICATIONS += ['{"client":"p","method":"m","x":1}', '["a b","m"]', '["p","' + "m" * 300 + '"]']
NO_EVENTS = ['["rpc.hub.left",1]', '["rpc.x",1]', '["a.*",1]', '[">",1]', '["",1]', "[7,1]", '["t"]', '["t",1,1]']
NO_EVENTS += ['{"topic":"t"}', '{"value":1}', '{"topic":"t","value":1,"retain":null}', "null"]
NO_EVENTS += ['{"topic":"t","value":1,"x":1}', '["' + "t" * 300 + '",1]']


async def test_told_to_others_with_what_cannot_be(running_hub: RunningHub) -> None:
    """As a call, in a batch, and as a notification."""
    provider, caller = await running_hub.pair()
    for topic in (">", "rpc.hub.>"):
        await provider.result("rpc.subscribe", topic)
    for method, each in (("rpc.notify", NO_NOTIFICATIONS), ("rpc.publish", NO_EVENTS)):
        for params in each:
            call = CALL % ("1", method, params)
            caller.send(call, f"[{call}]", call.replace('"id":1,', ""))
            assert await caller.code() == Code.PARAMS, call
            assert (await caller.receive())[0]["error"]["code"] == Code.PARAMS, call
    await caller.silence()
    await provider.silence()


RICH: list[Any] = [
    *({"$type": "ndarray", "dtype": "<U1", "shape": [1], "data": "eAAAAA=="}, {"$type": "bytes", "data": "QUJD"}),
    *({"$type": "stream", "id": "s1"}, {"$type": 7}, 2**70, 1e300, True, None, "text", [], {}),
]

#: Methods of a hub, each with good parameters.
OWN: dict[str, dict[str, Any]] = {
    "rpc.register": {"name": "p", "methods": [{"name": "m"}], "components": {"X": {"type": "object"}}, "key": "k"},
    "rpc.unregister": {"methods": ["m"]},
    "rpc.publish": {"topic": "t", "value": 1, "retain": True},
    "rpc.notify": {"client": "p", "method": "m", "params": [1]},
    "rpc.subscribe": {"topic": "t"},
    "rpc.stats": {},
}


async def test_values_of_any_kind_are_refused_with_an_error(running_hub: RunningHub) -> None:
    peer = await running_hub.peer()
    with logged("rpcstream", logging.ERROR) as lines:
        for method, good in OWN.items():
            for params in [*RICH, *({**good, name: value} for name in good for value in RICH)]:
                for each in (params, list(params.values()) if isinstance(params, dict) else params):
                    peer.send(json.dumps(request(method, params=each)), request("rpc.ping", id="end"))
                    while (answer := await peer.receive()).get("id") != "end":
                        if "error" in answer:
                            assert answer["error"]["code"] in {Code.INVALID, Code.PARAMS}, (each, answer)
    assert not lines.lines


def known(*rules: Rule) -> dict[str, Any]:
    """The options of a hub with these rules, where a user's token is its name."""
    return {"rules": rules, "authenticate": lambda credentials: credentials.token}


async def test_a_name_that_a_rule_gives_is_for_that_rule(open_hub: OpenHub) -> None:
    camera_rule = Rule("camera", name="camera", register="camera.>")
    hub = await open_hub(**known(camera_rule, Rule("*", call=">"), Rule("gpu", name="*", register=">")))
    ada, camera, gpu = [await hub.peer(token=user) for user in ("ada", "camera", "gpu")]
    assert await ada.code("rpc.register", "camera") == Code.DENIED
    assert (await ada.offers("notebook"))["name"] == "notebook"
    assert (await camera.offers("camera"))["name"] == "camera"
    camera.close()
    await until(lambda: hub.hub.stats()["clients"] == 1)
    assert (await gpu.offers("camera"))["name"] == "camera"  # which may have any, as its rule says


async def test_a_rule_for_a_clients_method_is_not_one_for_a_method_with_a_dot(open_hub: OpenHub) -> None:
    rule = Rule("ada", call=("gpu-1.erase", "evil.gpu-1.kill"), deny_call="gpu-1.kill")
    hub = await open_hub(**known(Rule("gpu", name="*", register=">"), rule))
    gpu, ada = await hub.peer(token="gpu"), await hub.peer(token="ada")
    await gpu.offers("evil", "gpu-1.erase", "gpu-1.kill", "status")
    for name in ("evil.gpu-1.erase", "evil.gpu-1.kill", "evil.status"):
        assert await ada.code(name) == Code.DENIED
        assert await ada.code("rpc.notify", "evil", name.removeprefix("evil.")) == Code.DENIED
    await gpu.silence()


LISTS = ("rpc.methods", "rpc.discover", "rpc.clients")


async def test_ids_params_notifications_and_batches(running_hub: RunningHub) -> None:
    peer = await running_hub.peer("p", {"name": "m", "description": 'a "word"', "x-idempotent": True}, "b.c")
    for method in LISTS:
        for call_id in ('"x"', "1.0", "null", str(2**63)):
            peer.send(CALL % (call_id, method, "[]"))
            line = await peer.receive_bytes()
            assert line.startswith(b'{"jsonrpc":"2.0","id":%b,"result":' % call_id.encode())
        peer.send({"jsonrpc": "2.0", "method": method})
        await peer.silence()
        assert await peer.code(method, 1) == await peer.code(method, params={"x": 1}) == Code.PARAMS
        assert await peer.code(method, params=7) == Code.INVALID
        peer.send(batch(*(request(method, id=number) for number in range(3))))
        assert [(each["id"], "result" in each) for each in await peer.receive()] == [(0, True), (1, True), (2, True)]
        assert "result" in (await running_hub.post(json.dumps(request(method)))).json
    assert await peer.result("rpc.methods") == [
        {"name": "m", "clients": ["p"], "shared": False, "description": 'a "word"'},
        {"name": "p.b.c", "clients": ["p"], "shared": False},
    ]


async def test_long_ones_that_change_without_end_hold_nobody_up(running_hub: RunningHub) -> None:
    """Each has what was offered before it was asked for, and who gives up keeps nobody else waiting."""
    provider, other, lost = [await running_hub.peer() for _ in range(3)]
    await provider.offers("p", *({"name": f"m{n}", "description": "d" * 500} for n in range(900)))
    for number in range(3):
        await provider.offers("p", f"new-{number}")
        lost.call("rpc.methods", id=number)
        other.send(request("rpc.methods"), batch(request("rpc.discover", id=2), request("rpc.methods", id=3)))
        lost.cancel(number)
        assert await provider.result("rpc.ping") == "pong"
        alone, (document, methods) = sorted(await other.receive_many(2), key=lambda each: isinstance(each, list))
        for found in (alone["result"], document["result"]["methods"], methods["result"]):
            assert {f"new-{number}", "m0", "m899"} <= {each["name"] for each in found}
    assert all("result" in each or each["error"]["code"] == Code.CANCELLED for each in await lost.receive_many(3))


async def test_one_that_is_too_long(open_hub: OpenHub) -> None:
    hub = await open_hub({"max_message_size": 10_000})
    peer = await hub.peer()
    for number in range(3):
        await peer.offers("p", *(f"method-{number}-{each}" for each in range(80)))
    for method in LISTS[:2] * 2:
        assert await peer.code(method) == Code.TOO_LARGE
    assert await peer.result("rpc.clients")
    await peer.result("rpc.unregister", [f"method-{number}-{each}" for number in (1, 2) for each in range(80)])
    assert len(await peer.result("rpc.methods")) == 80


async def test_the_document_says_what_is_offered(running_hub: RunningHub) -> None:
    first, second = await running_hub.peer(), await running_hub.peer()
    shared = {"name": "work", "shared": True, "summary": "s", "params": [{"name": "x", "schema": {"$ref": "#/c"}}]}
    await first.offers("a", {**shared, "x-idempotent": True}, components={"X": {"type": "object"}})
    document = await second.result("rpc.discover")
    names = [each["name"] for each in document["methods"]]
    assert names == sorted(names)
    expected = {"name": "work", "summary": "s", "params": shared["params"], "x-shared": True}
    assert document["methods"][names.index("work")] == {**expected, "x-clients": ["a"], "x-idempotent": True}
    assert document["components"]["schemas"]["a.X"] == {"type": "object"}
    assert document == running_hub.hub.discover()
    older = await second.result("rpc.discover", "1.2.6")
    assert (older["openrpc"], "work" in [each["name"] for each in older["methods"]]) == ("1.2.6", True)
    await second.offers("b", shared)
    document = await second.result("rpc.discover")
    assert document["methods"][names.index("work")] == {**expected, "x-clients": ["a", "b"]}


METHODS = ["m", "n", "a.m", "b.m", "c.n", "a.b.m", "d.m"]
patterns = st.lists(st.sampled_from([*METHODS, "*", ">", "a.*", "b.>", "*.m"]), max_size=2)
rules = st.lists(
    st.builds(
        lambda who, name, register, deny: Rule(who, name=name, register=register, deny_register=deny),
        st.sampled_from(["ada", "bob", "*"]),
        st.sampled_from([None, "a", "b", ("a", "c"), "*"]),
        patterns,
        patterns,
    ),
    min_size=1,
    max_size=3,
)
steps = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.sampled_from(["a", "b", "c", None]),
        st.lists(st.sampled_from(METHODS), max_size=3),
        st.booleans(),
        st.sampled_from(["register", "register", "register", "leave"]),
    ),
    max_size=12,
)


@settings(max_examples=example_count(25), deadline=None)
@given(rules, steps)
def test_no_client_gets_calls_for_what_its_rules_do_not_allow(all_rules: list[Rule], asked: list[Any]) -> None:
    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(_hold(all_rules, asked))


async def _hold(all_rules: list[Rule], asked: list[Any]) -> None:
    hub, users = Hub(**known(*all_rules)), ("ada", "ada", "bob", "eve")
    async with TRANSPORTS["memory"].serving(hub, None) as there:
        peers = [await there.join(HubPeer) for _ in users]
        for peer, user in zip(peers, users, strict=True):
            await peer.result("rpc.authenticate", user)
        named: dict[str, int] = {}
        for number, name, methods, shared, what in asked:
            if what == "leave":
                await peers[number].reply("rpc.unregister", methods)
                continue
            described = [{"name": method, "shared": shared} for method in methods]
            answer = await peers[number].reply("rpc.register", name, described)
            if "result" in answer:
                named[answer["result"]["name"]] = number
        offered = {each["name"]: each["methods"] for each in await peers[0].result("rpc.clients") if each["name"]}
        listed = {each["name"]: each["clients"] for each in await peers[0].result("rpc.methods")}
        for name, methods in offered.items():
            _check_name(all_rules, users[named[name]], name)
            for method in methods:
                _check_method(all_rules, users[named[name]], name, method)
                assert name in listed[method if "." not in method else f"{name}.{method}"]
        assert list(listed) == sorted(listed)
        assert sum(map(len, listed.values())) == sum(map(len, offered.values())) == hub.stats()["methods_offered"]
        for peer in peers:
            peer.close()


def _check_name(all_rules: list[Rule], user: str, name: str) -> None:
    given = [each for rule in all_rules for each in rule.name or () if each != "*"]
    assert any(
        name in rule.name or "*" in rule.name if rule.name is not None else name not in given
        for rule in all_rules
        if set(rule.who) & {user, "*"}
    )


def _check_method(all_rules: list[Rule], user: str, name: str, method: str) -> None:
    mine = [rule for rule in all_rules if set(rule.who) & {user, "*"}]
    assert any(matches(pattern, method) for rule in mine for pattern in rule.register)
    denied = [pattern for rule in mine for pattern in rule.deny_register]
    assert not any(matches(pattern, each) for pattern in denied for each in (method, f"{name}.{method}"))
