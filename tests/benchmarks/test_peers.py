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


ARRAY = "--topic array --bytes 65536"
DRIVEN: dict[str, list[str]] = {
    "bare_exchange.py": ["--bytes 65536 --connections 2"],
    "embedding_.py": ["--connections 4 --method alone", "--connections 4 --method batched"],
    "flight_.py": [ARRAY],
    "grpc_aio.py": ["--topic image"],
    "grpc_sync.py": [f"{ARRAY} --connections 2 --in-flight 2"],
    "nats_.py": ["--in-flight 8", f"{ARRAY} --connections 2"],
    "over_nats.py": ["--in-flight 8", "--topic array --bytes 2097152"],
    "photo_.py": ["--width 400 --way open", "--width 400 --way counted"],
    "publish_.py": ["--connections 3 --in-flight 2"],
    "pyro_.py": ["--topic login --connections 2"],
    "rpcstream_.py": [
        f"{ARRAY} --text",
        "--topic image",
        f"--client async --in-flight 8 {ARRAY} --first-bytes 4096",
        "--client submit --in-flight 8 --topic login",
        "--client pool --connections 2 --in-flight 2",
    ],
    "rpyc_.py": ["--topic login"],
    "streams_.py": [f"{ARRAY} --way {way}" for way in ("call", "back", "there", "both")],
    "zerorpc_.py": ["--in-flight 2"],
    "zmq_.py": [ARRAY],
}


@pytest.mark.parametrize("script", DRIVEN)
def test_driver_gets_right_answers(script: str) -> None:
    with serving(script, *(["--bytes", "65536"] if script == "bare_exchange.py" else [])) as port:
        for options in DRIVEN[script]:
            check_load(script, port, *options.split())


@pytest.mark.parametrize("script", ["rpcstream_.py", "zmq_.py"])
def test_driver_gets_right_answers_at_a_unix_socket(script: str) -> None:
    with serving(script, "--unix") as path:
        assert isinstance(path, str)
        check_load(script, path, *ARRAY.split())
    assert not Path(path).parent.exists()


LOGGED_IN = {"user": "ada", "token": "ada:secret", "remember": True}
FLOATS = {"$type": "ndarray", "dtype": "<f4", "shape": [1], "data": "AACAPw=="}


def asked(method: str, *params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}).encode()


def result_in(reply: bytes | str) -> Any:
    message = json.loads(reply)
    assert (message["jsonrpc"], message["id"]) == ("2.0", 7)
    return message["result"]


def exchange_line(port: int, line: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), SECONDS) as connection, connection.makefile("rb") as stream:
        connection.sendall(line + b"\n")
        return stream.readline()


def post(port: int, path: str, body: bytes) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as reply:
        said: bytes = reply.read()
        return said


def by_websocket(port: int, path: str, message: str) -> Any:
    from websockets.sync.client import connect

    with connect(f"ws://127.0.0.1:{port}{path}") as connection:
        connection.send(message)
        return connection.recv()


def check_echo(port: int) -> None:
    assert exchange_line(port, b"as it is") == b"as it is\n"


def check_lines(port: int) -> None:
    assert result_in(exchange_line(port, asked("sum", 40, 2))) == 42
    assert result_in(exchange_line(port, asked("login", "ada", "secret", True))) == LOGGED_IN


def check_json_rpc_over_http(port: int) -> None:
    assert result_in(post(port, "/", asked("sum", 40, 2))) == 42


def check_rpcstream(port: int) -> None:
    """One port for everything."""
    check_lines(port)
    check_json_rpc_over_http(port)
    check_page(port)
    assert result_in(by_websocket(port, "/", asked("sum", 40, 2).decode())) == 42


def check_provider(port: int) -> None:
    """Of a hub, or a server itself."""
    for method, value in (("echo_text", "hello"), ("echo_array", FLOATS)):
        assert result_in(exchange_line(port, asked(method, value))) == value


def check_clients(port: int) -> None:
    """Each of them has offered its methods by the time that the hub says that it is ready."""
    check_provider(port)
    found = result_in(exchange_line(port, asked("rpc.clients")))
    offered = {client["name"]: len(client["methods"]) for client in found if client["name"]}
    assert offered == {"provider": 2, "client-0": 10, "client-1": 10, "client-2": 10}


def check_page(port: int) -> None:
    """Twice on one connection; and it is that path that it is answered for."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        bodies = []
        for path in ("/static/page.html", "/static/page.html", "/"):
            connection.request("GET", path)
            response = connection.getresponse()
            if path != "/":
                assert (response.status, response.will_close) == (200, False)
                assert response.headers.get_content_type() == "text/html"
            bodies.append(response.read())
    page, again, other = bodies
    assert page == again != other
    assert (len(page), page[:15], page[-5:]) == (1024, b"<!doctype html>", b"</p>\n")


def check_xmlrpc(port: int) -> None:
    with xmlrpc.client.ServerProxy(f"http://127.0.0.1:{port}/") as server:
        assert server.sum(40, 2) == 42
        assert server.login("ada", "secret", True) == LOGGED_IN


def check_fastapi(port: int) -> None:
    assert json.loads(post(port, "/sum", b'{"a": 40, "b": 2}')) == 42
    login = json.dumps({"user": "ada", "password": "secret", "remember": True}).encode()
    assert json.loads(post(port, "/login", login)) == LOGGED_IN
    assert by_websocket(port, "/ws", '{"a": 40, "b": 2}') == "42"


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
        ("jsonrpc_http.py", check_json_rpc_over_http),
        ("robyn_.py", check_page),
        ("rpcstream_.py", check_rpcstream),
        ("socketify_.py", check_page),
        ("threads_seed.py", check_lines),
        ("ucall_.py", check_json_rpc_over_http),
        ("ucall_.py --engine=uring", lambda port: None),
        ("xmlrpc_.py", check_xmlrpc),
    ],
)
def test_server_answers(peer: str, check: Callable[[int], None]) -> None:
    with serving(*peer.split()) as port:
        check(port)


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


@pytest.mark.parametrize(
    ("script", "reply", "status", "error"),
    [
        ("rpcstream_.py", b'{"jsonrpc":"2.0","id":1,"result":5}\n', 3, "asked (1000000, 1), got 5"),
        ("rpcstream_.py", b"", 4, "ConnectionLost"),
        ("publish_.py", b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"not there"}}\n', 3, "not there"),
    ],
)
def test_driver_reports_a_wrong_reply(script: str, reply: bytes, status: int, error: str) -> None:
    with answering(reply) as port:
        done = load(script, port)
    assert (done.returncode, error in json.loads(done.stdout)["error"]) == (status, True)
