"""The pytest plugin: its fixtures, and what it costs a test run that does not use them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import rpcstream
from rpcstream import AsyncClient, Client

from .kit import UsualServer

ROOT = Path(rpcstream.__file__).parents[1]


def test_clients_of_one_server_share_it(rpc_client: Callable[..., Client], rpc_server: Callable[..., str]) -> None:
    server = UsualServer()
    address = rpc_server(server)
    one, two = rpc_client(server), rpc_client(address, timeout=7)
    assert rpc_server(server) == address
    assert (one.add(1, 2), two.add(3, 4)) == (3, 7)
    assert one.address == two.address == address


def test_a_server_is_served_where_it_is_told_to(rpc_server: Callable[..., str], tmp_path: Path) -> None:
    address = rpc_server(UsualServer(), unix=tmp_path / "sock")
    assert address == f"unix://{tmp_path / 'sock'}"
    with Client(address) as client:
        assert client.add(1, 2) == 3


async def test_an_async_client_is_joined_in_memory(
    rpc_async_client: Callable[..., AbstractAsyncContextManager[AsyncClient]],
) -> None:
    server = UsualServer()
    async with rpc_async_client(server, timeout=5) as client:
        assert await client.add(1, 2) == 3
        assert server.addresses == ()


USED = """
from rpcstream import Server

def test_it(rpc_client):
    server = Server()
    server.add(lambda a, b: a + b, name="add")
    assert rpc_client(server).add(1, 2) == 3
"""

NOT_USED = """
import sys

def test_it():
    assert "rpcstream.pytest_plugin" in sys.modules
    ours = {name for name in sys.modules if name.partition(".")[0] == "rpcstream"}
    assert ours == {"rpcstream", "rpcstream.pytest_plugin"}
"""


@pytest.fixture
def run_pytest(tmp_path: Path) -> Callable[..., str]:
    """`run_pytest(code, *arguments)`: what pytest prints for a file with this code, in a project of its own.

    rpcstream is installed there with the entry points of pyproject.toml, and so are its files, for their rewriting.
    """
    installed = tmp_path / "installed" / "rpcstream-0.dist-info"
    installed.mkdir(parents=True)
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (installed / "entry_points.txt").write_text(f"[pytest11]\n{lines}")
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: rpcstream\nVersion: 0\n")
    (installed / "RECORD").write_text("rpcstream/__init__.py,,\nrpcstream/pytest_plugin.py,,\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    path = os.pathsep.join([str(installed.parent), str(ROOT)])

    def run(code: str, *arguments: str, start: tuple[str, ...] = ("-m", "pytest")) -> str:
        (tmp_path / "test_it.py").write_text(code)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
        command = [sys.executable, *start, "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", *arguments]
        environment["PYTHONPATH"] = path
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=50)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.slow
def test_the_fixtures_are_there_without_being_named(run_pytest: Callable[..., str], tmp_path: Path) -> None:
    """Also in a program that has imported the package, as in a notebook, and where the modules are named as plugins."""
    assert "1 passed" in run_pytest(USED)
    start = ("-c", "import sys, pytest, rpcstream; sys.exit(pytest.main(sys.argv[1:]))")
    assert "1 passed" in run_pytest(USED, start=start)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["rpcstream.testing", "rpcstream.pytest_plugin"]\n')
    assert "1 passed" in run_pytest(USED)


@pytest.mark.slow
def test_a_run_that_uses_none_does_not_import_the_package(run_pytest: Callable[..., str]) -> None:
    assert "1 passed" in run_pytest(NOT_USED)
    switched_off = 'import sys\n\ndef test_it():\n    assert "rpcstream.pytest_plugin" not in sys.modules\n'
    assert "1 passed" in run_pytest(switched_off, "-p", "no:rpcstream.pytest_plugin")
