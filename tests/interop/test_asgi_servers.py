"""A server in ASGI servers that others wrote, and beside the applications of Django, Litestar and Quart."""

from __future__ import annotations

import importlib.util
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rpcstream import Client

pytestmark = pytest.mark.tools

HERE = Path(__file__).parent

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

#: Applications of others at whose path `/rpc` the server is.
OTHERS = {"django": "Django", "litestar": "Litestar", "quart": "Quart"}


class Running:
    """An ASGI server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def url(self, scheme: str, path: str = "/") -> str:
        return f"{scheme}://127.0.0.1:{self.port}{path}"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def stop(self) -> str:
        """Tell it to stop; gives what else it has written to standard output, and checks the log."""
        self.process.send_signal(signal.SIGTERM)
        return self.rest()

    def rest(self) -> str:
        out, log = self.process.communicate(timeout=20)
        assert "Traceback" not in log, log
        assert "never" not in log, log  # awaited, retrieved
        assert "pending" not in log, log
        return out.strip()


@contextmanager
def running(server: str, name: str) -> Iterator[Running]:
    if importlib.util.find_spec(server) is None:
        pytest.skip(f"{server} is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = SERVERS[server].format(name=name, port=port).split()
    program = [sys.executable, "-X", "dev", "-W", "ignore", *arguments]
    with subprocess.Popen(
        program, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        try:
            yield Running(process, port)
        finally:
            process.kill()


def check_calls(url: str) -> None:
    with Client(url, wait_for=30) as client:
        assert client.add(1, 2) == 3
        assert list(client.stream.count(3)) == [0, 1, 2]
        large = np.arange(500_000.0)
        for _ in range(2):
            assert np.array_equal(client.double(large), large * 2)


@pytest.mark.parametrize("server", [name for name in SERVERS if name not in WITHOUT_LIFESPAN])
def test_calls_and_a_stop_with_a_lifespan(server: str) -> None:
    with running(server, "alone") as program:
        assert program.line() == "started"
        check_calls(program.url("http"))
        check_calls(program.url("ws"))
        with Client(program.url("http")) as client:
            in_flight = client.submit.wait(0.5)
            assert program.line() == "waits"
            program.process.send_signal(signal.SIGTERM)
            assert in_flight.result() == 0.5
        assert program.rest() == "stopped"


@pytest.mark.parametrize("server", SERVERS)
def test_the_first_request_starts_where_there_is_no_lifespan(server: str) -> None:
    with running(server, "mounted") as program:
        check_calls(program.url("ws"))
        assert program.line() == "started"
        check_calls(program.url("http"))
        assert program.stop() in ("", "stopped")


@pytest.mark.parametrize("name", OTHERS)
def test_beside_the_application_of_another(name: str) -> None:
    pytest.importorskip(name)
    with running("uvicorn", name) as program:
        assert program.line() == "started"
        check_calls(program.url("http", "/rpc"))
        check_calls(program.url("ws", "/rpc"))
        for path, text in [("/page", f"of {OTHERS[name]}"), ("/rpc/healthz", "ok")]:
            with urllib.request.urlopen(program.url("http", path)) as response:
                assert response.read() == text.encode()
        assert program.stop() == "stopped"
