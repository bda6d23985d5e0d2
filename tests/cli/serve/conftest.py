"""What `rpcstream-server` serves in these tests, in a folder of its own; and the command in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from rpcstream import Client
from rpcstream.cli.serve import main

TOKEN = "correct-horse-battery-staple"

APP = """
import os, signal, time
from rpcstream import Server
from rpcstream.hub import Hub

os.kill(os.getpid(), signal.SIGHUP) if os.environ.get("HANG_UP") else None  # while the server starts
server = Server()
locked = Server(token="own")
hub = Hub()
there = Hub.from_config({"unix": "socket"}, debug=False)

@server
@locked
@hub
def double(n: int) -> int:
    return 2 * n

@server(name="vision.look")
def look() -> str:
    return __name__

@server(offload="process")
def elsewhere() -> str:
    import multiprocessing
    return f"{__name__} in {multiprocessing.parent_process() is not None}"

@server(offload="process")
def hang_up() -> int:
    os.kill(os.getpid(), signal.SIGHUP)
    return os.getpid()

@server
def process() -> int:
    return os.getpid()

@server
def pause() -> None:
    time.sleep(0.02)

@server
def bad() -> None:
    {}["x"]

def make():
    return server
"""

METHODS = ["bad", "double", "elsewhere", "hang_up", "pause", "process", "vision.look"]

FUNCTIONS = '''
def control_flowrate(simulationTime, status, sensors, sensorsUsed, properties, propertiesStr, preRun,
                     controlSignalsUsed, numLogValues, stage, fixedTimestep, verboseLevel, parameters):
    """Controls the flow rate."""
    return [[sensors[0] * 2], [], [simulationTime + 60]]

def control_b(a: int):
    return a

def helper():
    return "not a method"
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "controlFunctions.py").write_text(FUNCTIONS)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "inner.py").write_text("from app import server as renamed")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "server.key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "tls.pem")
    authority.issue_cert("gpu.example").private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    return tmp_path


@pytest.fixture
def refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    """`refused("app.py", "--key", "x")`: what the command says when it does not serve, in this process."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def run(*argv: str, status: int = 2, **variables: str) -> str:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            assert main(argv) == status
        said = capsys.readouterr()
        assert said.out == ""
        assert TOKEN not in said.err
        return said.err

    yield run
    for name in set(sys.modules) - before:
        if "app" in name or str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@contextmanager
def provider(address: str, **options: Any) -> Iterator[Client]:
    """A client that offers `add`."""
    with Client(address, **options) as client:

        @client
        def add(a: int, b: int) -> int:
            return a + b

        client.offer()
        yield client
