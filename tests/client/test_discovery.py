"""What a client knows of its server's methods after `discover`, and documents of servers that are not to be trusted."""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import Annotated, Any

import pytest
from numpy.typing import NDArray

from rpcstream import AsyncClient, Client, Server
from rpcstream.testing import serve_in_thread

from .conftest import Scripted, answering


@pytest.fixture
def server() -> Server:
    server = Server()

    @server
    def add(a: int, b: int = 2) -> int:
        """Add two numbers.

        They are integers.
        """
        return a + b

    @server(name="vision.edges.count")
    def count(image: NDArray[Any], /, *more: str, **options: float) -> list[int]:
        return []

    @server
    def by_name(*, text: Annotated[str, "words"], last: Any = None) -> dict[str, int]:
        return {}

    @server
    def mixed(a: int, b: int = 2, *, c: int, d: int = 4) -> None: ...

    @server
    def spread(a: int, *more: int, c: int = 3, **named: int) -> None: ...

    for name in ("func", "vision.args"):
        server.add(lambda value, name=name: [name, value], name=name)
    return server


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_names_documentation_and_signatures_once_they_are_known(server: Server, kind: str) -> None:
    with serve_in_thread(server) as address, asyncio.Runner() as runner:
        client: Any = Client(address) if kind == "sync" else AsyncClient(address)
        client.add_typo  # noqa: B018 - an attribute that was looked at is none of the server's methods
        before = dir(client)
        assert {"call", "close", "notify", "stream"} <= set(before)
        assert not {"add", "add_typo"} & set(before)
        assert client.add.__doc__ is None
        assert not hasattr(client.add, "__signature__")

        document = client.discover() if kind == "sync" else runner.run(client.discover())
        assert "add" in [method["name"] for method in document["methods"]]
        names = {"add", "vision", "by_name", "mixed", "spread", "func", "rpc"}
        assert set(dir(client)) - set(before) == set(dir(client.stream)) == set(dir(client.notify)) == names
        assert (dir(client.vision), dir(client.vision.edges)) == (["args", "edges"], ["count"])
        assert client.add.__doc__ == client.stream.add.__doc__ == "Add two numbers.\n\nThey are integers."
        assert client.vision.__doc__ is None
        for method, signature in (
            (client.add, "(a: int, b: int = 2) -> int"),
            (client.vision.edges.count, "(image: ndarray, *more: str, **options: float) -> list[int]"),
            (client.by_name, "(*, text: str, last=None) -> dict[str, int]"),
            (client.mixed, "(a: int, b: int = 2, *, c: int, d: int = 4) -> None"),
            (client.spread, "(a: int, *more: int, c: int = 3, **named: int) -> None"),
        ):
            assert str(inspect.signature(method)) == signature
        for method, name in ((client.func, "func"), (client.vision.args, "vision.args")):
            call = method(1)  # a remote method is a `partial`, and has attributes of these names itself
            assert (call if kind == "sync" else runner.run(call)) == [name, 1]
        client.close() if kind == "sync" else runner.run(client.close())


def endless() -> dict[str, object]:
    """A schema that would be read any number of times."""
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(30):
        schema = {"type": ["object", "object", ["object"], "null"], "additionalProperties": schema}
    return schema


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {"methods": 5},
        {"methods": [None, 5, {"name": 5}, {"params": []}]},
        {"methods": [{"name": "m", "params": [{"name": "a b"}]}]},
        {"methods": [{"name": "m", "params": [{"name": "a"}, {"name": "a"}]}]},
        {"methods": [{"name": "m", "params": [{"name": "a"}, {"name": "b", "required": True}]}]},
        {"methods": [{"name": "m", "params": 5, "result": 5, "description": 5, "paramStructure": []}]},
        {"methods": [{"name": "m", "params": [{"name": "a", "schema": {"x-default": [5]}, "x-rest": []}]}]},
        {"methods": [{"name": "m", "params": [{"name": "a", "schema": endless()}]}]},
        {"methods": [{"name": "m\x1b.a\u202eb"}, {"name": "__class__"}, {"name": "m..n"}]},
        {"methods": [{"name": "m", "description": "a\x1b[2J\nb"}]},
    ],
)
def test_documents_of_any_kind(scripted: Scripted, document: Any) -> None:
    with Client(scripted(answering(document))) as client:
        before = set(dir(client))
        assert client.discover() == document
        assert set(dir(client)) - before <= {"m"}
        assert dir(client.m) == []
        inspect.signature(client.m)
        assert client.m.__doc__ in (None, "a\\u001b[2J\nb")  # it cannot control a terminal


def test_a_method_named_like_an_attribute_of_clients_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with Client("127.0.0.1:1") as unused:
        own = {name for name in {*dir(unused), *dir(AsyncClient("127.0.0.1:1"))} if not name.startswith("_")}
    server = Server()
    for name in (*sorted(own), "stream.start", "status", "vision.state"):
        server.add(lambda: "remote", name=name)
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert messages == [
        f"method {name!r}: clients have an attribute {name.partition('.')[0]!r} of their own, so that callers must "
        f"write client.call({name!r}, ...)"
        for name in (*sorted(own), "stream.start")
    ]
    with serve_in_thread(server) as address, Client(address) as client:
        assert client.call("state") == "remote"
        assert client.state == "connected"
