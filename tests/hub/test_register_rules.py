"""Rules of registering: no client gets a call for a name outside its rules."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream.errors import RpcError
from rpcstream.events.patterns import matches
from rpcstream.hub import Hub, Rule

from ..internals import hub_methods
from ..kit.example_count import example_count
from .conftest import CALL, OpenHub, RawPeer, RunningHub

USERS = ("camera", "sensors", "gpu", "ada")


async def at(open_hub: OpenHub, *rules: Rule) -> RunningHub:
    return await open_hub(Hub(rules=rules, authenticate=lambda credentials: credentials.token, drain_timeout=5))


async def known(running_hub: RunningHub, user: str) -> RawPeer:
    peer = await running_hub.peer()
    await peer.result("rpc.authenticate", {"token": user})
    return peer


CAMERA = Rule("camera", name="camera", register="camera.>")
CALLER = Rule("ada", call=">")


class TestRegister:
    @pytest.mark.parametrize(
        "method", ["vectorize", "login", "gpu-1.vectorize", "front", {"name": "vectorize", "shared": True}]
    )
    async def test_the_name_that_is_offered_is_what_counts(self, open_hub: OpenHub, method: Any) -> None:
        running_hub = await at(open_hub, CAMERA, CALLER)
        camera, ada = await known(running_hub, "camera"), await known(running_hub, "ada")
        assert await camera.code("rpc.register", {"name": "camera", "methods": [method]}) == -32006
        assert not running_hub.hub.directory.routes
        name = method if isinstance(method, str) else method["name"]
        assert await ada.code(name) == -32601
        await camera.silence()

    async def test_a_name_of_its_own_choice_allows_nothing(self, open_hub: OpenHub) -> None:
        running_hub = await at(open_hub, Rule("sensors", register="sensors.*"))
        sensors = await known(running_hub, "sensors")
        assert await sensors.code("rpc.register", {"name": "sensors", "methods": ["shutdown"]}) == -32006
        assert not running_hub.hub.directory.routes

    async def test_what_is_denied_by_its_long_name(self, open_hub: OpenHub) -> None:
        running_hub = await at(open_hub, Rule("gpu", register=">", deny_register="gpu-9.erase"))
        gpu = await known(running_hub, "gpu")
        assert await gpu.code("rpc.register", {"name": "gpu-9", "methods": ["erase"]}) == -32006
        assert (await gpu.offers("gpu-8", "erase"))["methods"] == ["erase"]

    async def test_a_name_that_a_rule_gives_is_for_that_rule(self, open_hub: OpenHub) -> None:
        running_hub = await at(open_hub, CAMERA, Rule("*", call=">"), Rule("gpu", name="*", register=">"))
        ada, camera, gpu = [await known(running_hub, user) for user in ("ada", "camera", "gpu")]
        assert await ada.code("rpc.register", {"name": "camera"}) == -32006
        assert (await ada.offers("notebook"))["name"] == "notebook"
        assert (await camera.offers("camera"))["name"] == "camera"
        camera.close()
        await running_hub.until(lambda: "camera" not in running_hub.hub.directory.by_name)
        assert (await gpu.offers("camera"))["name"] == "camera"  # which may have any, as its rule says


class TestDottedMethods:
    """A name with a dot stands for a client and its method, also while that client is not connected."""

    async def test_it_never_stands_for_another_clients_method(self, running_hub: RunningHub) -> None:
        evil, caller = await running_hub.peer(), await running_hub.peer()
        await evil.offers("evil", "gpu-1.vectorize", {"name": "gpu-2.vectorize", "shared": True})
        for name in ("gpu-1.vectorize", "gpu-2.vectorize"):  # neither has ever been there
            assert await caller.code(name) == -32601
        gpu = await running_hub.peer()
        await gpu.offers("gpu-1", "vectorize")
        caller.say(CALL % ("1", "gpu-1.vectorize", "[]"))
        assert (await gpu.hear())["method"] == "vectorize"
        gpu.close()
        assert (await caller.hear())["error"]["code"] == -32007
        assert await caller.code("gpu-1.vectorize") == -32601  # it is away
        await evil.silence()

    async def test_it_is_called_behind_its_clients_name(self, running_hub: RunningHub) -> None:
        roof, caller = await running_hub.peer(), await running_hub.peer()
        await roof.offers("roof", "sensors.heat")
        assert await caller.code("sensors.heat") == -32601
        caller.say(CALL % ("1", "roof.sensors.heat", "[7]"))
        asked = await roof.hear()
        assert (asked["method"], asked["params"]) == ("sensors.heat", [7])
        roof.say({"jsonrpc": "2.0", "id": asked["id"], "result": 8})
        assert (await caller.hear())["result"] == 8
        found = await caller.result("rpc.methods")
        assert found == [{"name": "roof.sensors.heat", "clients": ["roof"], "shared": False}]
        document = await caller.result("rpc.discover")
        assert "roof.sensors.heat" in [method["name"] for method in document["methods"]]

    async def test_nobody_keeps_a_client_from_its_methods(self, running_hub: RunningHub) -> None:
        evil, gpu = await running_hub.peer(), await running_hub.peer()
        await evil.offers("evil", "gpu-1.vectorize")
        assert (await gpu.offers("gpu-1", "vectorize"))["methods"] == ["vectorize"]

    async def test_a_rule_for_a_clients_method_is_not_one_for_it(self, open_hub: OpenHub) -> None:
        running_hub = await at(
            open_hub, Rule("gpu", name="*", register=">"), Rule("ada", call="gpu-1.erase", deny_call="gpu-1.kill")
        )
        gpu, ada = await known(running_hub, "gpu"), await known(running_hub, "ada")
        await gpu.offers("evil", "gpu-1.erase", "gpu-1.kill", "status")
        for name in ("evil.gpu-1.erase", "evil.gpu-1.kill", "evil.status"):
            assert await ada.code(name) == -32006
            assert await ada.code("rpc.notify", ["evil", name.removeprefix("evil.")]) == -32006
        await gpu.silence()


# -- a property -------------------------------------------------------------------------------------------------------

CLIENTS = ["a", "b", "c"]
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
        st.sampled_from([*CLIENTS, None]),
        st.lists(st.sampled_from(METHODS), max_size=3),
        st.booleans(),
        st.sampled_from(["register", "register", "register", "leave"]),
    ),
    max_size=12,
)


class _Session:
    """As much of a session as a registration looks at."""

    def __init__(self, identity: str, loop: asyncio.AbstractEventLoop) -> None:
        self.identity = identity
        self.loop = loop
        self.channel = None
        self.add_lost_callback = self.set_end_callback = list[Any]().append
        self.is_lasting = True

    def abort(self, reason: str) -> None: ...


@settings(max_examples=example_count(300), deadline=None)
@given(rules, steps)
def test_no_client_gets_calls_for_what_its_rules_do_not_allow(all_rules: list[Rule], asked: list[Any]) -> None:
    asyncio.run(_hold(all_rules, asked))


async def _hold(all_rules: list[Rule], asked: list[Any]) -> None:
    hub = Hub(rules=all_rules, authenticate=lambda credentials: credentials.token)
    loop = asyncio.get_running_loop()
    sessions = [_Session(user, loop) for user in ("ada", "ada", "bob", "eve")]
    for number, name, methods, shared, what in asked:
        ctx: Any = SimpleNamespace(session=sessions[number], in_batch=False)
        try:
            if what == "leave":
                hub_methods(hub).unregister(ctx)
            else:
                described = [{"name": method, "shared": shared} for method in methods]
                hub_methods(hub).register(ctx, name=name, methods=described)
        except RpcError:
            pass
        _check(all_rules, hub)


def _check(all_rules: list[Rule], hub: Hub) -> None:
    names = [*METHODS, *(".".join(pair) for pair in itertools.product([*CLIENTS, "client-1", "d"], METHODS))]
    for called in names:
        route = hub.directory.routes.get(called)
        for client in route.members if route is not None else ():
            assert route is not None
            own = f"{client.name}.{route.method}"
            # It is the one that was meant: by its own name, or the method of this very client.
            assert called == own or (called == route.method and "." not in called)
            mine = [rule for rule in all_rules if set(rule.who) & {client.session.identity, "*"}]
            assert any(matches(pattern, route.method) for rule in mine for pattern in rule.register)
            denied = [pattern for rule in mine for pattern in rule.deny_register]
            assert not any(matches(pattern, name) for pattern in denied for name in (route.method, own))
            given = [name for rule in all_rules for name in rule.name or () if name != "*"]
            assert any(
                client.name in rule.name or "*" in rule.name if rule.name is not None else client.name not in given
                for rule in mine
            )
