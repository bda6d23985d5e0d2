"""Fixtures of all tests, and the event loop that they run on."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from .kit.example_count import example_count
from .kit.loops import new_loop

#: In the place of the user's folders for configurations and caches.
USER_FOLDER = tempfile.TemporaryDirectory(prefix="rpcstream-tests-")

pytest_plugins = ["rpcstream.pytest_plugin"]

# Property tests without a number of their own. A machine that is slow, or stands still, is no fault.
settings.register_profile(
    "rpcstream", max_examples=example_count(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rpcstream")


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], Any]]:
    """uvloop where there is one, unless `RPCSTREAM_LOOP=asyncio`, as for a server."""
    return {"loop": new_loop}


def pytest_configure(config: pytest.Config) -> None:
    """What a shell starts in the background ignores Ctrl-C, and so would the programs that tests interrupt.

    They are started by the hundred: what they import is compiled once, not by each of them.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for variable in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):  # the files of whoever runs the tests are left alone
        os.environ[variable] = os.path.join(USER_FOLDER.name, variable)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class SharedFolder(pytest.Dir):
    """A folder that each process of pytest-xdist collects from another file on, so that they share the compiling.

    All of them import all test files, whose assertions pytest rewrites when it compiles them: in one order, all would
    compile the same file at the same time.
    """

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        nodes = list(super().collect())
        worker: dict[str, Any] = self.config.workerinput  # type: ignore[attr-defined]  # of pytest-xdist
        first = len(nodes) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        yield from nodes[first:] + nodes[:first]


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return SharedFolder.from_parent(parent, path=path) if hasattr(parent.config, "workerinput") else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order of all processes of pytest-xdist."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected lasts as long as the process: no garbage collection looks at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_report_header() -> str:
    return f"event loop: {os.environ.get('RPCSTREAM_LOOP', 'auto')}"


@pytest.fixture(scope="module")
def fast_collections() -> None:
    """Freeze the objects that exist before the tests of a module, so that each garbage collection is short."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The functions of tests/methods/worker_functions.py, in a module that worker processes can import."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "methods"))
    return importlib.import_module("worker_functions")
