"""What a client knows of its server's methods after `discover`, and what a notebook shows."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from rpcstream import AsyncClient, Client, Server
from rpcstream.peer.calls import CLIENT_NAMES
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer
from .conftest import Scripted, answering


@pytest.fixture
def server() -> UsualServer:
    server = UsualServer()

    @server
    def picture(size: int) -> Image.Image:
        return Image.new("RGB", (size, size), "orange")

    @server
    def summed(a: int, b: int = 2) -> int:
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

    server.add(lambda value: ["func", value], name="func")
    return server


@pytest.fixture
def address(server: UsualServer) -> Iterator[str]:
    with serve_in_thread(server) as address:
        yield address


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_names_documentation_and_signatures_once_they_are_known(address: str, kind: str) -> None:
    with asyncio.Runner() as runner:
        client: Any = Client(address) if kind == "sync" else AsyncClient(address)
        client.summed_typo  # noqa: B018 - an attribute that was looked at is none of the server's methods
        before = dir(client)
        assert {"call", "close", "notify", "stream"} <= set(before)
        assert not {"summed", "summed_typo"} & set(before)
        assert client.summed.__doc__ is None
        assert not hasattr(client.summed, "__signature__")

        document = client.discover() if kind == "sync" else runner.run(client.discover())
        names = {method["name"].partition(".")[0] for method in document["methods"]}
        assert names > {"summed", "vision", "by_name", "mixed", "spread", "func", "rpc"}
        assert set(dir(client)) - set(before) == set(dir(client.stream)) == set(dir(client.notify)) == names
        assert (dir(client.vision), dir(client.vision.edges)) == (["edges"], ["count"])
        assert client.summed.__doc__ == client.stream.summed.__doc__ == "Add two numbers.\n\nThey are integers."
        assert client.vision.__doc__ is None
        for method, signature in (
            (client.summed, "(a: int, b: int = 2) -> int"),
            (client.vision.edges.count, "(image: ndarray, *more: str, **options: float) -> list[int]"),
            (client.by_name, "(*, text: str, last=None) -> dict[str, int]"),
            (client.mixed, "(a: int, b: int = 2, *, c: int, d: int = 4) -> None"),
            (client.spread, "(a: int, *more: int, c: int = 3, **named: int) -> None"),
        ):
            assert str(inspect.signature(method)) == signature
        call = client.func(1)  # a remote method is a `partial`, and has an attribute of this name itself
        assert (call if kind == "sync" else runner.run(call)) == ["func", 1]
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
        {"methods": [None, 5, {"name": 5}, {"params": []}]},
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


def test_a_method_named_like_an_attribute_of_clients_is_called_by_its_name() -> None:
    with Client("127.0.0.1:1") as unused:
        own = {name for name in {*dir(unused), *dir(AsyncClient("127.0.0.1:1"))} if not name.startswith("_")}
    assert own == CLIENT_NAMES
    server = Server()
    server.add(lambda: "remote", name="state")
    with serve_in_thread(server) as address, Client(address) as client:
        assert client.call("state") == "remote"
        assert client.state == "connected"


async def test_a_client_works_in_a_loop_that_runs(address: str) -> None:
    """Its calls block the loop, and do not use it; results of `submit` may be awaited there."""
    seen: list[object] = []
    with Client(address) as client:
        assert client.add(2, 1) == 3
        assert client.progress(3, on_progress=seen.append) == 3
        assert seen[-1] == 2  # the last report; those before may be left out
        assert list(client.stream.count(3)) == [0, 1, 2]
        assert await asyncio.wrap_future(client.submit.add(1, 1)) == 2
        async with AsyncClient(address) as other:
            assert await other.add(2, 1) == client.add(2, 1)


@pytest.fixture
def shell(address: str) -> Iterator[Any]:
    """IPython as in a notebook: cells may await. `client` and `caller` are connected."""
    pytest.importorskip("IPython", reason="IPython is not installed: pip install rpcstream[notebook]")
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    with Client(address) as client:
        shell.push({"client": client, "address": address, "AsyncClient": AsyncClient, "np": np})
        yield shell
    InteractiveShell.clear_instance()


def shown(shell: Any, cell: str) -> dict[str, Any]:
    """What IPython has for the last value of a cell, by media type."""

    async def run() -> Any:
        return await shell.run_cell_async(cell, transformed_cell=cell)

    result = asyncio.run(run())
    result.raise_error()
    formats, _ = shell.display_formatter.format(result.result)
    return dict(formats)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_results_completion_and_cells_that_await(shell: Any) -> None:
    """Results are shown as local values are; methods are completed once the server was asked."""
    from IPython.core.completer import provisionalcompleter

    def completed(text: str) -> list[str]:
        with provisionalcompleter():
            return [each.text for each in shell.Completer.completions(text, len(text))]

    shell.display_formatter.active_types = list(shell.display_formatter.format_types)
    picture = shown(shell, "client.picture(16)")
    assert picture["image/png"].startswith(b"\x89PNG")
    assert "..." in shown(shell, "client.array(np.zeros(5000))")["text/plain"]
    assert shown(shell, "client.add(2, 1)") == {"text/plain": "3"}
    cell = "async with AsyncClient(address) as caller:\n    value = await caller.add(40, 2)\nvalue\n"
    assert shown(shell, cell) == {"text/plain": "42"}
    shell.Completer.use_jedi = False
    assert not any("picture" in each for each in completed("client.pic"))
    shown(shell, "client.discover()")
    assert any("picture" in each for each in completed("client.pic"))
    assert "Add two numbers." in shell.object_inspect_text("client.summed")
    assert "client.summed(a: int, b: int =" in re.sub("\x1b[^m]*m", "", shell.object_inspect_text("client.summed"))
