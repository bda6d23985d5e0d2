"""Clients in a notebook: in an event loop that runs already, and what IPython shows of results."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rpcstream import AsyncClient, Client
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer


def studio() -> UsualServer:
    server = UsualServer()

    @server
    def picture(size: int) -> Image.Image:
        return Image.new("RGB", (size, size), "orange")

    @server
    def summed(a: int, b: int = 1) -> int:
        """The sum."""
        return a + b

    return server


@pytest.fixture
def address() -> Iterator[str]:
    with serve_in_thread(studio()) as address:
        yield address


async def test_a_client_works_in_a_loop_that_runs(address: str) -> None:
    """Its calls block the loop, and do not use it; results of `submit` may be awaited there."""
    seen: list[object] = []
    with Client(address) as client:
        assert client.add(2, 1) == 3
        assert client.progress(3, on_progress=seen.append) == 3
        assert seen[-1] == 2  # the last report; those before may be left out
        assert list(client.stream.count(3)) == [0, 1, 2]
        assert [future.result() for future in [client.submit.add(number, 1) for number in range(3)]] == [1, 2, 3]
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
        shell.push({"client": client, "address": address, "AsyncClient": AsyncClient, "studio": studio, "np": np})
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
    assert "The sum." in shell.object_inspect_text("client.summed")
    assert "client.summed(a: int, b: int =" in re.sub("\x1b[^m]*m", "", shell.object_inspect_text("client.summed"))
