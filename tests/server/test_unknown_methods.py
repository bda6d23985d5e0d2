"""Errors for unknown methods name the nearest ones, as far as the caller may know of them."""

from __future__ import annotations

from typing import Any

import pytest

from rpcstream import AsyncClient, InvalidParams, MethodNotFound, Server
from rpcstream.hub import Hub, Rule
from rpcstream.testing import memory_client


async def unknown(client: AsyncClient, name: str) -> tuple[str, dict[str, Any]]:
    """Message and data of the error for a method."""
    with pytest.raises(MethodNotFound) as raised:
        await client.request(name)
    return raised.value.message, raised.value.data


def make_server(**options: Any) -> Server:
    server = Server(**options)
    for name in ("vectorize", "vector_sum", "math.multiply"):
        server.add(lambda: 1, name=name)
    return server


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("vectorise", ["vectorize"]),
        ("Vectorize", ["vectorize"]),
        ("vector", ["vectorize", "vector_sum"]),
        ("multiply", ["math.multiply"]),
        ("rpc.discovr", ["rpc.discover"]),
    ],
)
async def test_the_nearest_names_stand_in_the_text_and_in_data(name: str, nearest: list[str]) -> None:
    async with memory_client(make_server()) as client:
        message, data = await unknown(client, name)
    assert message == f"Method not found: {name!r} (did you mean {' or '.join(map(repr, nearest))}?)"
    assert data == {"method": name, "nearest": nearest}


@pytest.mark.parametrize("name", ["nothing_like_it", "", "x" * 10_000, "\x1b[2J\n", "$/cancel"])
async def test_where_no_name_is_near_the_text_says_how_to_find_one(name: str) -> None:
    async with memory_client(make_server()) as client:
        message, data = await unknown(client, name)
    assert message == "Method not found"
    assert data == {"method": name, "reason": "rpc.discover lists the methods that there are"}


async def test_a_method_that_was_added_or_replaced_meanwhile_is_known() -> None:
    server = make_server()
    async with memory_client(server) as client:
        assert "nearest" not in (await unknown(client, "devide"))[1]
        server.add(lambda: 1, name="divide")
        assert (await unknown(client, "devide"))[1] == {"method": "devide", "nearest": ["divide"]}


async def test_a_method_that_the_caller_may_not_call_is_not_named() -> None:
    server = make_server(authenticate=lambda credentials: {"roles": [credentials.token]})
    server.add(lambda: 1, name="delete_all", allow="admin")
    server.add(lambda: 1, name="delete_one", allow=lambda identity: "clerk" in identity["roles"])
    seen = {}
    for role in ("admin", "clerk", "guest"):
        async with memory_client(server, token=role) as client:
            seen[role] = (await unknown(client, "delete_al"))[1].get("nearest")
    assert seen == {"admin": ["delete_all"], "clerk": ["delete_one"], "guest": None}


async def test_at_a_hub_the_rules_decide_which_names_are_told() -> None:
    rules = [
        Rule("gpu", name="gpu", register=">"),
        Rule("ada", call=["vectorize", "gpu.secret.reset"]),
        Rule("bob", call="gpu.vector_sum"),
        Rule("eve", subscribe="news"),
    ]
    hub = Hub(rules=rules, authenticate=lambda credentials: credentials.token, drain_timeout=5)
    async with hub.listening(port=0) as address, AsyncClient(address, token="gpu", name="gpu") as gpu:
        for name in ("vectorize", "vector_sum", "secret.reset"):
            gpu(name=name)(lambda: 1)
        await gpu.offer()
        told: dict[str, Any] = {}
        for user in ("ada", "bob", "eve"):
            async with AsyncClient(address, token=user) as client:
                told[user] = [(await unknown(client, name))[1].get("nearest") for name in ("vector_s", "secret.reset")]
                assert (await unknown(client, "rpc.clent"))[1]["nearest"] == ["rpc.clients"]
    assert told == {"ada": [["vectorize"], ["gpu.secret.reset"]], "bob": [["vector_sum"], None], "eve": [None, None]}


async def test_at_a_hub_what_is_offered_now_is_told() -> None:
    hub = Hub(drain_timeout=5)
    async with hub.listening(port=0) as address, AsyncClient(address, name="gpu") as gpu, AsyncClient(address) as ada:
        assert "nearest" not in (await unknown(ada, "vectorise"))[1]
        gpu(name="vectorize")(lambda: 1)
        await gpu.offer()
        assert (await unknown(ada, "vectorise"))[1]["nearest"] == ["vectorize"]
        await gpu.request("rpc.unregister")
        assert "nearest" not in (await unknown(ada, "vectorise"))[1]


async def test_a_parameter_of_a_method_of_the_hub() -> None:
    hub = Hub(drain_timeout=5)
    async with hub.listening(port=0) as address, AsyncClient(address) as client:
        with pytest.raises(
            InvalidParams, match=r"topik: unknown \(did you mean 'topic'\?\); the parameters are"
        ) as raised:
            await client.request("rpc.publish", {"topic": "a", "value": 1, "topik": "b"})
        assert raised.value.data["nearest"] == ["topic"]
