"""The document as it is sent: written once, in slices, for all who ask, and again after a change."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from typing import Any

import orjson
import pytest

from rpcstream import Codec, Limits, RpcError, Server
from rpcstream.methods import document
from rpcstream.methods.discovery import Description, describe, head_of
from rpcstream.methods.document import OpenRpcDocument
from rpcstream.testing import memory_client

from ..internals import registry_of


def of(server: Server, **options: Any) -> OpenRpcDocument:
    return OpenRpcDocument(registry_of(server), codec=Codec(), head=lambda: head_of(title="t", version="1"), **options)


def server_of(count: int) -> Server:
    server = Server()
    for number in range(count):
        server.add(lambda a, b=1: a, name=f"m{number}")
    return server


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of methods, each time that one is described."""
    names: list[str] = []
    describe_one = Description.method

    def counted(self: Description, method: Any) -> dict[str, Any]:
        names.append(method.name)
        return describe_one(self, method)

    monkeypatch.setattr(Description, "method", counted)
    return names


async def test_it_is_what_is_described() -> None:
    server = server_of(3)
    servers = [{"url": "http://a.example/"}]
    text = await of(server, servers=lambda: servers).text()
    expected = describe(registry_of(server), codec=Codec(), title="t", version="1")
    assert orjson.loads(text) == {**expected, "servers": servers}
    assert "servers" not in orjson.loads(await of(server).text())


async def test_it_is_written_once_for_all_who_ask_and_again_after_a_change(
    described: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "_SLICE", 0.0)
    server = server_of(50)
    doc = of(server)
    texts = await asyncio.gather(*[doc.text() for _ in range(10)], *[doc.text("1.2.6") for _ in range(10)])
    assert len(set(texts)) == 2
    own = [name for name in server.methods if not name.startswith("rpc.")]
    assert sorted(described) == sorted([*server.methods, *own])
    described.clear()
    server.add(lambda: 1, name="new")
    assert b'"new"' in await doc.text()
    assert len(described) == len(server.methods)


async def test_others_have_their_turn_while_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_SLICE", 0.0)
    turns = itertools.count()

    async def tick() -> None:
        while True:
            next(turns)
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await of(server_of(100)).text()
    ticking.cancel()
    assert next(turns) > 50


async def test_what_was_begun_for_one_who_left_goes_on_for_the_next(
    described: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "_SLICE", 0.0)
    server = server_of(100)
    doc = of(server)
    asking = asyncio.create_task(doc.text())
    while len(described) < 50:
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    before = len(described)
    assert before < 100
    await doc.text()
    assert len(described) == len(server.methods)


def test_it_may_be_asked_for_in_one_loop_after_another() -> None:
    server = server_of(2)
    doc = of(server)
    first = asyncio.run(doc.text())
    server.add(lambda: 1, name="new")
    assert asyncio.run(doc.text()) != first
    assert orjson.loads(asyncio.run(of(Server()).text()))["methods"]


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
    made = orjson.loads(await of(server).text())
    (method,) = [each for each in made["methods"] if each["name"] == "choose"]
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
    method = next(each for each in orjson.loads(await of(server).text())["methods"] if each["name"] == "m")
    assert method["params"][0]["schema"] == {"x-default": "a Shy"}
