"""The document of `rpc.discover`: written for all who ask, again after a change, and short whatever is in it."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from rpcstream import AsyncClient, Limits, RpcError, Server
from rpcstream.testing import memory_client

from .calling import document_of


def server_of(count: int) -> Server:
    server = Server()
    for number in range(count):
        server.add(lambda a, b=1: a, name=f"m{number}")
    return server


async def test_all_who_ask_are_told_the_same_and_after_a_change_another() -> None:
    server = server_of(300)
    async with server.listening(port=0) as address, AsyncClient(address) as client, AsyncClient(address) as other:
        asking = [client.call("rpc.discover") for _ in range(5)]
        gone = asyncio.ensure_future(other.call("rpc.discover", compat="1.2.6"))
        await asyncio.sleep(0)
        gone.cancel()  # what was begun for one who left goes on for the next
        documents = await asyncio.gather(*asking, other.call("rpc.discover"))
        older = await asyncio.gather(*[each.call("rpc.discover", compat="1.2.6") for each in (client, other)])
        assert all(each == documents[0] for each in documents)
        assert older[0] == older[1] != documents[0]
        assert len(older[0]["methods"]) == 300
        server.add(lambda: 1, name="new")
        assert "new" in {each["name"] for each in (await client.call("rpc.discover"))["methods"]}


async def test_others_have_their_turn_while_it_is_written() -> None:
    server, turns = server_of(300), 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with memory_client(server) as client:
        await client.call("rpc.ping")
        ticking = asyncio.create_task(tick())
        await client.call("rpc.discover")
        ticking.cancel()
    assert turns > 3


def test_it_may_be_asked_for_in_one_loop_after_another() -> None:
    server = server_of(2)
    first = asyncio.run(document_of(server))
    server.add(lambda: 1, name="new")
    assert asyncio.run(document_of(server))["methods"].keys() - first["methods"].keys() == {"new"}


async def test_compat_is_a_parameter_of_rpc_discover() -> None:
    server = Server()

    @server
    def pair(value: tuple[int, str]) -> None: ...

    async with memory_client(server) as client:
        new = await client.call("rpc.discover")
        old = await client.call("rpc.discover", compat="1.2.6")
        with pytest.raises(RpcError, match="compat"):
            await client.call("rpc.discover", compat="1.3")
    assert (new["openrpc"], old["openrpc"]) == ("1.4.1", "1.2.6")
    assert [each["name"] for each in old["methods"]] == ["pair"]
    schemas = [
        next(each for each in made["methods"] if each["name"] == "pair")["params"][0]["schema"] for made in (new, old)
    ]
    assert "prefixItems" in schemas[0]
    assert schemas[1]["items"] == [
        {"type": "integer", "title": "Integer"},
        {"type": "string", "title": "Str"},
    ]


async def test_texts_that_cannot_be_sent_are_escaped() -> None:
    server = Server()

    @dataclasses.dataclass
    class One:
        a: int

    One.__doc__ = "One \ud800."

    def choose(one: One, two: str = "\udfff") -> None: ...

    choose.__doc__ = "Half \ud83d of a pair."
    server.add(choose)
    made = await document_of(server)
    method = made["methods"]["choose"]
    assert method["summary"] == "Half \\ud83d of a pair."
    assert made["components"]["schemas"]["One"]["description"] == "One \\ud800."
    assert method["params"][1]["schema"]["x-default"] == "'\\udfff'"


async def test_long_texts_names_and_defaults_do_not_make_it_long() -> None:
    server = Server(description="d" * 1_000_000)

    def long(value: int = 1, text: str = "t" * 1_000_000, numbers: list[int] = [7] * 500_000) -> None: ...

    long.__doc__ = "A" * 1_000_000 + "\n\nArgs:\n    value: " + "b" * 1_000_000
    server.add(long)
    kind = type("C" * 100_000, (), {"__annotations__": {"a": int}, "__doc__": "d" * 1_000_000})

    def take(value: Any) -> None: ...

    take.__annotations__ = {"value": dataclasses.dataclass(kind), "return": None}
    server.add(take)
    async with memory_client(server, limits=Limits(max_message_size=200_000)) as client:
        made = await client.call("rpc.discover")
    methods = {each["name"]: each for each in made["methods"]}
    assert methods["long"]["params"][1]["schema"]["x-default"].endswith("...")
    assert methods["long"]["params"][2]["schema"]["x-default"].endswith("...")
    assert len(methods["long"]["summary"]) <= 300
    assert max(map(len, made["components"]["schemas"])) <= 100


async def test_a_default_that_cannot_be_shown_is_named_by_its_class() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise ValueError("no")

    server = Server()
    server.add(lambda a=Shy(): 1, name="m")  # noqa: B008
    method = (await document_of(server))["methods"]["m"]
    assert method["params"][0]["schema"] == {"x-default": "a Shy"}
