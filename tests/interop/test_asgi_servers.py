"""A server in ASGI servers that others wrote, and beside the applications of Django, Litestar and Quart."""

from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rpcstream import Client

pytestmark = pytest.mark.tools

#: The arguments of each server for an application at a port.
SERVERS = {
    "uvicorn": "-m uvicorn asgi_program:{name} --port {port} --log-level warning",
    "hypercorn": "-m hypercorn asgi_program:{name} --bind 127.0.0.1:{port}",
    "granian": "-m granian --interface asgi asgi_program:{name} --port {port} --log-level error",
    "daphne": "-m daphne --bind 127.0.0.1 --port {port} --verbosity 0 --websocket-max-message-size 67108864"
    " --websocket-max-frame-size 67108864 asgi_program:{name}",
}

#: Those that have no lifespan: the server starts with the first request there.
WITHOUT_LIFESPAN = ["daphne"]

Running = tuple[subprocess.Popen[str], Callable[[], str], Callable[..., str]]


@contextmanager
def running(server: str, name: str) -> Iterator[Running]:
    """An ASGI server in a process of its own, what gives the next line that it prints, and its address by a scheme."""
    if importlib.util.find_spec(server) is None:
        pytest.skip(f"{server} is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = SERVERS[server].format(name=name, port=port).split()
    program = [sys.executable, "-X", "dev", "-W", "ignore", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(program, cwd=Path(__file__).parent, text=True, bufsize=1, **pipes) as process:
        assert process.stdout is not None
        try:
            yield process, lambda: process.stdout.readline().strip(), lambda way: f"{way}://127.0.0.1:{port}"
        finally:
            process.kill()


def rest(process: subprocess.Popen[str]) -> str:
    """What it prints until it ends; nothing is wrong in its log."""
    out, log = process.communicate(timeout=20)
    assert not [word for word in ("Traceback", "never", "destroyed") if word in log], log
    return out.strip()


def check_calls(url: str) -> None:
    with Client(url, wait_for=30) as client:
        assert client.add(1, 2) == 3
        assert list(client.stream.count(3)) == [0, 1, 2]
        large = np.arange(500_000.0)
        for _ in range(2):
            assert np.array_equal(client.double(large), large * 2)


@pytest.mark.parametrize("server", [name for name in SERVERS if name not in WITHOUT_LIFESPAN])
def test_calls_and_a_stop_with_a_lifespan(server: str) -> None:
    with running(server, "alone") as (process, line, url):
        assert line() == "started"
        check_calls(url("http"))
        check_calls(url("ws"))
        with Client(url("http")) as client:
            in_flight = client.submit.wait(0.5)
            assert line() == "waits"
            process.send_signal(signal.SIGTERM)
            assert in_flight.result() == 0.5
        assert rest(process) == "stopped"


@pytest.mark.parametrize("server", SERVERS)
def test_the_first_request_starts_where_there_is_no_lifespan(server: str) -> None:
    with running(server, "mounted") as (process, line, url):
        check_calls(url("ws"))
        assert line() == "started"
        check_calls(url("http"))
        process.send_signal(signal.SIGTERM)
        assert rest(process) in ("", "stopped")


@pytest.mark.parametrize("name", ["django", "litestar", "quart"])
def test_beside_the_application_of_another(name: str) -> None:
    pytest.importorskip(name)
    pytest.importorskip("starlette")
    with running("uvicorn", name) as (process, line, url):
        assert line() == "started"
        check_calls(url("http") + "/rpc/")
        check_calls(url("ws") + "/rpc/")
        for path, text in [("/page", f"of {name}"), ("/rpc/healthz", "ok")]:
            with urllib.request.urlopen(url("http") + path) as response:
                assert response.read() == text.encode()
        process.send_signal(signal.SIGTERM)
        assert rest(process) == "stopped"
