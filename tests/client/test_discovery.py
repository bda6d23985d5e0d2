"""What a client knows of its server's methods after `discover`, and documents of servers that are not to be trusted."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from numpy.typing import NDArray

from rpcstream import AsyncClient, Client, Server
from rpcstream.client.discovery import KnownMethods, signature_text, type_text
from rpcstream.peer.proxy import CLIENT_NAMES
from rpcstream.testing import memory_client, serve_in_thread


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

    return server


def test_names_documentation_and_signatures_once_they_are_known(server: Server) -> None:
    with serve_in_thread(server) as address, Client(address) as client:
        client.add(1, 2)
        client.add_typo  # noqa: B018 - an attribute that was looked at is none of the server's methods
        before = dir(client)
        assert {"call", "close", "notify", "stream"} <= set(before)
        assert "add" not in before
        assert "add_typo" not in before
        assert client.add.__doc__ is None
        assert not hasattr(client.add, "__signature__")

        document = client.discover()
        assert [method["name"] for method in document["methods"] if method["name"] == "add"] == ["add"]
        assert set(dir(client)) - set(before) == {"add", "vision", "by_name", "mixed", "spread", "rpc"}
        assert dir(client.vision) == ["edges"]
        assert dir(client.vision.edges) == ["count"]
        assert (
            set(dir(client.stream)) == set(dir(client.notify)) == {"add", "vision", "by_name", "mixed", "spread", "rpc"}
        )
        assert client.add.__doc__ == client.stream.add.__doc__ == "Add two numbers.\n\nThey are integers."
        assert client.vision.__doc__ is None
        assert str(inspect.signature(client.add)) == "(a: int, b: int = 2) -> int"
        count = inspect.signature(client.vision.edges.count)
        assert str(count) == "(image: ndarray, *more: str, **options: float) -> list[int]"
        assert str(inspect.signature(client.by_name)) == "(*, text: str, last=None) -> dict[str, int]"
        mixed, spread = map(inspect.signature, (client.mixed, client.spread))
        assert str(mixed) == "(a: int, b: int = 2, *, c: int, d: int = 4) -> None"
        assert str(spread) == "(a: int, *more: int, c: int = 3, **named: int) -> None"
        texts = {each["name"]: signature_text(each) for each in document["methods"]}
        assert texts["mixed"] == "mixed(a: int, b: int = 2, *, c: int, d: int = 4) -> null"
        assert texts["spread"] == "spread(a: int, *more: int, c: int = 3, **named: int) -> null"
        assert client.add(1) == 3


async def test_the_async_client(server: Server) -> None:
    async with memory_client(server) as client:
        assert isinstance(client, AsyncClient)
        assert "add" not in dir(client)
        await client.discover()
        assert "add" in dir(client)
        assert str(inspect.signature(client.add)) == "(a: int, b: int = 2) -> int"


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
        {"methods": [{"name": "m\x1b.a\u202eb"}, {"name": "__class__"}, {"name": "m..n"}]},
    ],
)
def test_documents_of_any_kind(document: Any) -> None:
    known = KnownMethods(document)
    assert set(known.names_below("")) <= {"m"}
    assert known.names_below("m.") == []
    known.signature("m")
    assert known.description("m") is None


def test_a_schema_that_would_be_read_any_number_of_times() -> None:
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(60):
        schema = {"type": ["object", "object", ["object"], "null"], "additionalProperties": schema}
    assert type_text(schema).count("dict[str, ") == 60


def test_what_looks_into_callables_comes_to_an_end() -> None:
    """Remote methods are `partial`s, which inspect and asyncio unwrap."""
    with Client("127.0.0.1:1") as client:
        for method in (client.add, client.add.func, client.args):
            assert not inspect.iscoroutinefunction(method)
            assert list(inspect.signature(method).parameters) == ["args", "kwargs"]
    loop = asyncio.new_event_loop()
    try:
        assert "remote method" in repr(loop.call_soon(client.add))
    finally:
        loop.close()


def test_methods_named_like_the_parts_of_a_partial() -> None:
    server = Server()
    for name in ("func", "vision.func", "vision.args", "vision.keywords.deep"):
        server.add(_echo(name), name=name)
    with serve_in_thread(server) as address, Client(address) as client:
        assert client.func(1) == ["func", 1]
        assert client.vision.func(2) == ["vision.func", 2]
        assert client.vision.args(value=3) == ["vision.args", 3]
        assert client.vision.keywords.deep(4) == ["vision.keywords.deep", 4]
        assert repr(client.vision.func) == "<remote method 'vision.func'>"


def _echo(name: str) -> Callable[[int], list[Any]]:
    def echo(value: int) -> list[Any]:
        return [name, value]

    return echo


def test_a_description_cannot_control_a_terminal() -> None:
    known = KnownMethods({"methods": [{"name": "m", "description": "a\x1b[2J\nb"}]})
    assert known.description("m") == "a\\u001b[2J\nb"


def test_the_names_that_clients_have_themselves_are_known() -> None:
    with Client("127.0.0.1:1") as client:
        names = {*dir(client), *dir(AsyncClient("127.0.0.1:1"))}
    assert {name for name in names if not name.startswith("_")} == CLIENT_NAMES


def test_a_method_of_such_a_name_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    for name in ("state", "stream.start", "status", "vision.state"):
        server.add(lambda: "remote", name=name)
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert messages == [
        f"method {name!r}: clients have an attribute {first!r} of their own, so that callers must write "
        f"client.call({name!r}, ...)"
        for first, name in (("state", "state"), ("stream", "stream.start"))
    ]
    with serve_in_thread(server) as address, Client(address) as client:
        assert client.call("state") == "remote"
        assert client.state == "connected"


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_on_connect_takes_a_function(make: Any) -> None:
    with pytest.raises(TypeError, match=r"got int\. For a remote method of this name use call\('on_connect', …\)"):
        make("127.0.0.1:1").on_connect(3)
