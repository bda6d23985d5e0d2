"""Errors for unknown methods name the nearest ones, as far as the caller may know of them."""

from __future__ import annotations

from typing import Any

import pytest

from rpcstream import AsyncClient, MethodNotFound, Server
from rpcstream.hub import Hub, Rule
from rpcstream.testing import memory_client


async def nearest(client: AsyncClient, name: str) -> Any:
    with pytest.raises(MethodNotFound) as raised:
        await client.request(name)
    return raised.value.data.get("nearest")


async def test_the_nearest_names_stand_in_the_text_and_in_data() -> None:
    server = Server()
    for name in ("vectorize", "vector_sum", "math.multiply"):
        server.add(lambda: 1, name=name)
    reason = "rpc.discover lists the methods that there are"
    async with memory_client(server) as client:
        for name, found in {
            "vectorise": ["vectorize"],
            "vector": ["vectorize", "vector_sum"],
            "rpc.discovr": ["rpc.discover"],
            **dict.fromkeys(("nothing_like_it", "", "x" * 10_000, "\x1b[2J\n", "$/cancel")),
        }.items():
            with pytest.raises(MethodNotFound) as raised:
                await client.request(name)
            hint = f": {name!r} (did you mean {' or '.join(map(repr, found))}?)" if found else ""
            assert raised.value.message == f"Method not found{hint}"
            assert raised.value.data == {"method": name, **({"nearest": found} if found else {"reason": reason})}
        assert await nearest(client, "devide") is None
        server.add(lambda: 1, name="divide")
        assert await nearest(client, "devide") == ["divide"]


async def test_a_method_that_the_caller_may_not_call_is_not_named() -> None:
    server = Server(authenticate=lambda credentials: {"roles": [credentials.token]})
    server.add(lambda: 1, name="delete_all", allow="admin")
    server.add(lambda: 1, name="delete_one", allow=lambda identity: "clerk" in identity["roles"])
    seen = {}
    for role in ("admin", "clerk", "guest"):
        async with memory_client(server, token=role) as client:
            seen[role] = await nearest(client, "delete_al")
    assert seen == {"admin": ["delete_all"], "clerk": ["delete_one"], "guest": None}


async def test_at_a_hub_the_rules_decide_which_names_are_told_and_what_is_offered_now_counts() -> None:
    rules = [
        Rule("gpu", name="gpu", register=">"),
        Rule("ada", call=["vectorize", "gpu.secret.reset"]),
        Rule("bob", call="gpu.vector_sum"),
        Rule("eve", subscribe="news"),
    ]
    hub = Hub(rules=rules, authenticate=lambda credentials: credentials.token, drain_timeout=5)
    told: dict[str, Any] = {}
    async with hub.listening(port=0) as address, AsyncClient(address, token="gpu", name="gpu") as gpu:
        for name in ("vectorize", "vector_sum", "secret.reset"):
            gpu(name=name)(lambda: 1)
        await gpu.offer()
        for user in ("ada", "bob", "eve"):
            async with AsyncClient(address, token=user) as client:
                told[user] = [await nearest(client, name) for name in ("vector_s", "secret.reset", "rpc.clent")]
        await gpu.request("rpc.unregister")
        async with AsyncClient(address, token="ada") as ada:
            assert await nearest(ada, "vectorise") is None
    own = ["rpc.clients"]
    assert told == {
        "ada": [["vectorize"], ["gpu.secret.reset"], own],
        "bob": [["vector_sum"], None, own],
        "eve": [None, None, own],
    }
