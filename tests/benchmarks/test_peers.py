"""Each script in benchmarks/peers as the harness uses it: it says where it listens, answers rightly, ends on SIGTERM.

Where a module is missing the script says so, and its test is skipped with those words.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import urllib.request
import xmlrpc.client
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
SECONDS = 30


def command(script: str, *arguments: str) -> list[str]:
    return [sys.executable, str(PEERS / script), *arguments]


@contextmanager
def serving(script: str, *options: str) -> Iterator[int | str]:
    """The port of a peer, or the path of its Unix socket, that ends in order when the block is left."""
    with subprocess.Popen(
        command(script, "serve", *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        if not line:
            errors = process.stderr.read()
            if process.wait(SECONDS) == 77:
                pytest.skip(errors.strip())
            raise AssertionError(errors)
        ready = json.loads(line)
        assert ready["versions"]
        try:
            yield ready.get("path") or ready["port"]
            assert process.poll() is None
        finally:
            process.terminate()
            rest, _ = process.communicate(timeout=SECONDS)
    assert rest == ""


def load(script: str, where: int | str, *options: str) -> subprocess.CompletedProcess[str]:
    place = "--port" if isinstance(where, int) else "--path"
    arguments = ["load", place, str(where), "--seconds", "0.05", "--warmup", "0", *options]
    return subprocess.run(command(script, *arguments), stdout=subprocess.PIPE, text=True, timeout=SECONDS)


def check_load(script: str, where: int | str, *options: str) -> None:
    done = load(script, where, *options)
    assert done.returncode == 0, done.stdout
    result = json.loads(done.stdout)
    assert result["calls"] > 0
    assert result["wrong"] == 0
    assert result["rate"] == pytest.approx(result["calls"] / result["seconds"], rel=0.05)  # the seconds are rounded
    assert list(result["latency_us"]) == ["p50", "p90", "p99", "p999", "max"]
    assert sorted(result["latency_us"].values()) == list(result["latency_us"].values())


# -- by their own drivers -------------------------------------------------------------------------------------

ARRAY = ("--topic", "array", "--bytes", "65536")
DRIVEN: dict[str, list[tuple[str, ...]]] = {
    "bare_exchange.py": [("--bytes", "65536", "--connections", "2")],
    "embedding_.py": [
        ("--connections", "4", "--method", method)
        for method in ("alone", "alone_in_threads", "batched", "batched_at_once")
    ],
    "flight_.py": [ARRAY],
    "grpc_aio.py": [("--topic", "image")],
    "grpc_sync.py": [(*ARRAY, "--connections", "2", "--in-flight", "2")],
    "nats_.py": [("--in-flight", "8"), (*ARRAY, "--connections", "2")],
    "over_nats.py": [("--in-flight", "8"), (*ARRAY, "--connections", "2"), ("--topic", "array", "--bytes", "2097152")],
    "photo_.py": [("--width", "400", "--way", way) for way in ("open", "path", "bytes", "counted")],
    "publish_.py": [("--connections", "3", "--in-flight", "2")],
    "pyro_.py": [("--topic", "login", "--connections", "2")],
    "rpcstream_.py": [
        (*ARRAY, "--text"),
        (*ARRAY, "--first-bytes", "4096"),
        ("--topic", "image"),
        ("--client", "async", "--in-flight", "8", *ARRAY),
        ("--client", "submit", "--in-flight", "8", "--topic", "login"),
        ("--client", "pool", "--connections", "2", "--in-flight", "2"),
    ],
    "rpyc_.py": [
        (
            "--topic",
            "login",
        )
    ],
    "streams_.py": [
        *(("--way", way) for way in ("call", "back", "there", "both")),
        *((*ARRAY, "--way", way) for way in ("call", "back", "there", "both")),
    ],
    "zerorpc_.py": [
        (
            "--in-flight",
            "2",
        )
    ],
    "zmq_.py": [ARRAY],
}


@pytest.mark.parametrize("script", DRIVEN)
def test_driver_gets_right_answers(script: str) -> None:
    with serving(script, *(["--bytes", "65536"] if script == "bare_exchange.py" else [])) as port:
        for options in DRIVEN[script]:
            check_load(script, port, *options)


@pytest.mark.parametrize("script", ["rpcstream_.py", "zmq_.py"])
def test_driver_gets_right_answers_at_a_unix_socket(script: str) -> None:
    with serving(script, "--unix") as path:
        assert isinstance(path, str)
        check_load(script, path, *ARRAY)
    assert not Path(path).parent.exists()


# -- by hand --------------------------------------------------------------------------------------------------

SUM = {"jsonrpc": "2.0", "id": 7, "method": "sum", "params": {"a": 40, "b": 2}}
LOGIN = {"jsonrpc": "2.0", "id": "x", "method": "login", "params": ["ada", "secret", True]}
LOGGED_IN = {"user": "ada", "token": "ada:secret", "remember": True}


def exchange_line(port: int, line: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), SECONDS) as connection, connection.makefile("rb") as stream:
        connection.sendall(line)
        return stream.readline()


def post(port: int, path: str, message: object) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(message).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=SECONDS) as reply:
        return json.load(reply)


def check_echo(port: int) -> None:
    assert exchange_line(port, b"as it is\n") == b"as it is\n"


def check_lines(port: int) -> None:
    for request, result in ((SUM, 42), (LOGIN, LOGGED_IN)):
        reply = json.loads(exchange_line(port, json.dumps(request).encode() + b"\n"))
        assert reply == {"jsonrpc": "2.0", "id": request["id"], "result": result}


def check_json_rpc_over_http(port: int) -> None:
    assert post(port, "/", SUM) == {"jsonrpc": "2.0", "id": 7, "result": 42}


def check_rpcstream(port: int) -> None:
    """One port for everything."""
    from websockets.sync.client import connect

    check_lines(port)
    check_json_rpc_over_http(port)
    check_page(port)
    with connect(f"ws://127.0.0.1:{port}/") as connection:
        connection.send(json.dumps(SUM))
        assert json.loads(connection.recv()) == {"jsonrpc": "2.0", "id": 7, "result": 42}


def check_provider(port: int) -> None:
    """Of a hub, or a server itself."""
    array = {"$type": "ndarray", "dtype": "<f4", "shape": [1], "data": "AACAPw=="}
    for method, value in (("echo_text", "hello"), ("echo_array", array)):
        request = {"jsonrpc": "2.0", "id": 7, "method": method, "params": [value]}
        reply = json.loads(exchange_line(port, json.dumps(request).encode() + b"\n"))
        assert reply == {"jsonrpc": "2.0", "id": 7, "result": value}


def check_clients(port: int) -> None:
    """Each of them has offered its methods by the time that the hub says that it is ready."""
    check_provider(port)
    reply = json.loads(exchange_line(port, b'{"jsonrpc":"2.0","id":7,"method":"rpc.clients"}\n'))
    offered = {client["name"]: len(client["methods"]) for client in reply["result"] if client["name"]}
    assert offered == {"provider": 2, "client-0": 10, "client-1": 10, "client-2": 10}


def check_page(port: int) -> None:
    """Twice on one connection; and it is that path that it is answered for."""
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    with closing(connection):
        bodies = []
        for _ in range(2):
            connection.request("GET", "/static/page.html")
            response = connection.getresponse()
            assert response.status == 200
            assert response.headers.get_content_type() == "text/html"
            bodies.append(response.read())
            assert not response.will_close
        connection.request("GET", "/")
        other = connection.getresponse()
        assert other.read() != bodies[0]
    assert bodies[0] == bodies[1]
    assert len(bodies[0]) == 1024
    assert bodies[0].startswith(b"<!doctype html>")
    assert bodies[0].endswith(b"</p>\n")


def check_nothing(port: int) -> None:
    """What it answers is for the benchmark to report."""


def check_xmlrpc(port: int) -> None:
    with xmlrpc.client.ServerProxy(f"http://127.0.0.1:{port}/") as server:
        assert server.sum(40, 2) == 42
        assert server.login("ada", "secret", True) == LOGGED_IN


def check_fastapi(port: int) -> None:
    from websockets.sync.client import connect

    assert post(port, "/sum", {"a": 40, "b": 2}) == 42
    assert post(port, "/login", {"user": "ada", "password": "secret", "remember": True}) == LOGGED_IN
    with connect(f"ws://127.0.0.1:{port}/ws") as connection:
        connection.send('{"a": 40, "b": 2}')
        assert connection.recv() == "42"


@pytest.mark.parametrize(
    ("peer", "check"),
    [
        ("aiorpcx_.py", check_lines),
        ("bare_echo.py", check_echo),
        ("bare_page.py", check_page),
        ("fastapi_.py", check_fastapi),
        ("gevent_.py", check_page),
        ("granian_.py", check_page),
        ("hub_.py", check_provider),
        ("hub_.py --direct", check_provider),
        ("hub_.py --provider=bare --clients=3", check_clients),
        ("hub_.py --provider=bare --direct", check_provider),
        ("jsonrpc_http.py", check_json_rpc_over_http),
        ("robyn_.py", check_page),
        ("rpcstream_.py", check_rpcstream),
        ("socketify_.py", check_page),
        ("threads_seed.py", check_lines),
        ("ucall_.py", check_json_rpc_over_http),
        ("ucall_.py --engine=uring", check_nothing),
        ("xmlrpc_.py", check_xmlrpc),
    ],
)
def test_server_answers(peer: str, check: Callable[[int], None]) -> None:
    with serving(*peer.split()) as port:
        check(port)


# -- when something is wrong ----------------------------------------------------------------------------------


@contextmanager
def answering(line: bytes) -> Iterator[int]:
    """A server that says the same to everything, then nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(line)

        thread = threading.Thread(target=answer)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(SECONDS)


def test_driver_reports_a_wrong_reply() -> None:
    with answering(b'{"jsonrpc":"2.0","id":1,"result":5}\n') as port:
        done = load("rpcstream_.py", port)
    assert done.returncode == 3
    result = json.loads(done.stdout)
    assert result["wrong"] == 1
    assert result["error"] == "asked (1000000, 1), got 5"


def test_publishing_driver_reports_a_wrong_reply() -> None:
    with answering(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found"}}\n') as port:
        done = load("publish_.py", port)
    assert done.returncode == 3
    assert "Method not found" in json.loads(done.stdout)["error"]


def test_driver_reports_a_lost_connection() -> None:
    with answering(b"") as port:
        done = load("rpcstream_.py", port)
    assert done.returncode == 4
    assert "ConnectionLost" in json.loads(done.stdout)["error"]
