"""`rpcstream-server` as a process: targets, the banner, plain functions, hubs, guards, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from rpcstream import TLS, Client, ConnectFailed, NotAuthenticated, NotPermitted, Retry
from rpcstream.errors import DeadlineExceeded

from ..conftest import ROOT, StartServer, ended, environment
from .conftest import APP, METHODS, TOKEN, provider

pytestmark = pytest.mark.slow

RUNS = """
import multiprocessing

server.run(port=1)
if multiprocessing.parent_process() is None:
    print("done")
"""


def http_status(address: str, path: str = "/", **headers: str) -> int:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    body = json.dumps({"jsonrpc": "2.0", "method": "rpc.ping", "id": 1})
    connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
    with connection.getresponse() as answer:
        answer.read()
    connection.close()
    return answer.status


# -- targets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["app:server", "app:make", "app", "app.py", "app.py:server", "package.inner:renamed"]
)
def test_each_form_of_a_target(target: str, folder: Path, start_server: StartServer) -> None:
    server = start_server(target, "-p", "0", cwd=folder)
    address = f"127.0.0.1:{server.port}"
    listed = [f"    - {name}" for name in METHODS]
    explorer = f"Explorer at http://{address}/docs"
    assert server.banner == [f"Listening at {address}", "Methods:", *listed, explorer, "Ctrl-C to stop"]
    with urllib.request.urlopen(f"http://{address}/docs", timeout=20) as page:
        assert b"<!doctype html>" in page.read()
    with Client(server.address) as client:
        assert client.double(4) == 8


@pytest.mark.parametrize(
    ("argv", "own", "is_there"),
    [
        (["-p", "0"], "None", True),
        (["-s", "localhost", "-p", "0"], "None", True),
        (["-s", "0.0.0.0", "-p", "0"], "None", False),
        (["--unix", "socket"], "None", False),
        (["-s", "0.0.0.0", "-p", "0", "--docs"], "None", True),
        (["-p", "0", "--no-docs"], "True", False),
        (["-s", "0.0.0.0", "-p", "0"], "True", True),
        (["-s", "0.0.0.0", "-p", "0", "--docs"], "False", True),
    ],
)
def test_by_itself_the_explorer_is_there_where_no_other_machine_reaches_it(
    argv: list[str], own: str, is_there: bool, tmp_path: Path, start_server: StartServer
) -> None:
    (tmp_path / "own.py").write_text(f"from rpcstream import Server\nserver = Server(docs={own})")
    banner = start_server("own.py", *argv, cwd=tmp_path).banner
    assert [line for line in banner if line.startswith("Explorer at")] == banner[-2:-1] * is_there


def test_a_program_that_runs_its_server_has_the_explorer_too(tmp_path: Path, start_server: StartServer) -> None:
    (tmp_path / "own.py").write_text("from rpcstream import Server\nServer().run(port=0)")
    assert start_server("own.py", cwd=tmp_path).banner[-2].startswith("Explorer at http://127.0.0.1:")


def test_a_file_elsewhere_is_there_for_worker_processes_too(folder: Path, start_server: StartServer) -> None:
    server = start_server(str(folder / "app.py"), "-p", "0", cwd=Path("/"))
    with Client(server.address) as client:
        assert (client.vision.look(), client.elsewhere()) == ("app", "app in True")
    assert server.stop() == ""


@pytest.mark.parametrize("target", ["app:server", "--hub"])
def test_a_unix_socket(target: str, folder: Path, start_server: StartServer) -> None:
    path = folder / "socket"
    server = start_server(target, "--unix", str(path), "--set", "unix_mode=600", cwd=folder)
    assert server.address == f"unix://{path}"
    assert os.stat(path).st_mode & 0o777 == 0o600
    with Client(server.address) as client:
        assert client.rpc.ping() == "pong"
    server.process.send_signal(signal.SIGINT)
    assert server.rest() == (0, "", "")


def test_a_module_that_runs_its_server_is_served_once_with_the_options_of_the_command(
    folder: Path, start_server: StartServer
) -> None:
    (folder / "runs.py").write_text(APP + RUNS)
    server = start_server("runs.py", "-p", "0", cwd=folder)
    with Client(server.address) as client:
        assert client.double(4) == 8
        assert client.elsewhere() == "runs in True"  # the worker imports the module, too, and runs no server
    server.process.send_signal(signal.SIGTERM)
    assert server.rest() == (0, "done\n", "")


def test_a_script_prints_its_address(folder: Path) -> None:
    (folder / "script.py").write_text(APP + "server.run(port=0)\n")
    command, pipe = [sys.executable, "script.py"], subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=environment(), stderr=pipe, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        with Client(line.removeprefix("Listening at ").removesuffix(" (Ctrl-C to stop)\n")) as client:
            assert (client.double(4), client.elsewhere()) == (8, "__mp_main__ in True")
        process.terminate()


@pytest.mark.parametrize("target", ["traced.py", "--hub"])
def test_tracing_makes_spans_by_the_global_provider(target: str, folder: Path, start_server: StartServer) -> None:
    (folder / "traced.py").write_text(APP)
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor\n"
        "provider = TracerProvider()\n"
        "provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stderr)))\n"
        "trace.set_tracer_provider(provider)\n"
    )
    path = os.pathsep.join([str(ROOT), str(folder)])
    server = start_server(target, "-p", "0", "--set", "tracing=true", cwd=folder, PYTHONPATH=path)
    with Client(server.address) as client:
        client.discover()
    assert '"rpc.method": "rpc.discover"' in server.stop()


def test_debug_logs_messages_and_shows_tracebacks(folder: Path, start_server: StartServer) -> None:
    server = start_server("app:server", "-d", "-p", "0", cwd=folder)
    with Client(server.address) as client:
        reply = client({"jsonrpc": "2.0", "method": "bad", "id": 1})
    assert reply["error"]["data"]["type"] == "KeyError"
    assert '"method":"bad"' in server.stop().replace(" ", "")


def test_nobody_reads_the_banner(folder: Path) -> None:
    path = str(folder / "socket")
    command, pipe = [sys.executable, "-m", "rpcstream.cli.serve", "-f", "--unix", path], subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=environment(), stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        with Client(f"unix://{path}", retry=Retry(times=100)) as client:
            client.print("into the void")
            client.stop()
        assert (process.stderr.read(), process.wait(30)) == ("", 0)


# -- functions ------------------------------------------------------------------------------------------------------


def test_functions_as_the_first_stream_servers(folder: Path, start_server: StartServer) -> None:
    server = start_server("-f", "controlFunctions", "-p", "0", cwd=folder)
    listed = [f"    - {name}" for name in ("control_b", "control_flowrate", "ping", "print", "stop")]
    assert server.banner == [f"jsonrpc2://127.0.0.1:{server.port}", "Functions:", *listed, "Ctrl-C to stop"]
    with socket.create_connection(("127.0.0.1", server.port), 20) as peer:
        peer.sendall(b'{ "jsonrpc": "2.0", "method": "ping", "params": [], "id": 1}\n')
        peer.shutdown(socket.SHUT_WR)
        reply = b"".join(iter(lambda: peer.recv(4096), b""))
    assert (json.loads(reply), reply[-1:]) == ({"jsonrpc": "2.0", "id": 1, "result": "pong"}, b"\n")
    with socket.create_connection(("127.0.0.1", server.port), 20) as peer, peer.makefile("rwb") as lines:

        def ask(method: str, params: str) -> object:
            lines.write(f'{{"jsonrpc": "2.0", "method": "{method}", "params": {params}, "id": 7}}\n'.encode())
            lines.flush()
            reply = json.loads(lines.readline())
            assert reply["id"] == 7
            return reply["result"]

        assert ask("print", '["Hello\\u001b[2J\\nc"]') is None
        assert [ask("ping", params) for params in ("[]", "null", "{}")] == ["pong"] * 3
        call = "[60, true, [1.5], [true], [], [], false, [true], 0, 1, 60, 0, {}]"
        assert ask("control_flowrate", call) == [[3.0], [], [120]]
        assert ask("stop", "[]") is None
        assert json.loads(lines.readline())["method"] == "$/goAway"
        assert lines.readline() == b""
    # What is printed cannot command the terminal.
    assert server.rest() == (0, "Hello\\u001b[2J\nc\n", "")


def test_functions_of_a_file_by_a_pattern_and_with_a_token(folder: Path, start_server: StartServer) -> None:
    (folder / "own.py").write_text("def ping():\n    return 'mine'\ndef helper():\n    return 5\n")
    options = ("--pattern", "*p*", "--token-file", str(folder / "token"))
    server = start_server("-f", str(folder / "own.py"), *options, "-p", "0", cwd=Path("/"))
    assert server.banner[2:-1] == ["    - helper", "    - ping", "    - print", "    - stop"]
    with Client(server.address) as client, pytest.raises(NotAuthenticated):
        client.stop()
    with Client(server.address, token=TOKEN) as client:
        assert (client.ping(), client.helper()) == ("mine", 5)
    server.stop()


@pytest.mark.skipif(shutil.which("nc") is None, reason="nc is not installed")
def test_the_line_of_the_article_by_nc(folder: Path, start_server: StartServer) -> None:
    server = start_server("-f", "controlFunctions", "-p", "0", cwd=folder)
    line = """echo '{ "jsonrpc": "2.0", "method": "ping", "params": [], "id": 1}' | nc 127.0.0.1 """
    command = line + str(server.port)
    with subprocess.Popen(command, shell=True, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"jsonrpc": "2.0", "id": 1, "result": "pong"}
        os.killpg(process.pid, signal.SIGTERM)  # some versions of nc wait for the server to close, others do not


# -- hubs -----------------------------------------------------------------------------------------------------------


def test_calling_through_a_hub_needs_nothing_special(tmp_path: Path, start_server: StartServer) -> None:
    server = start_server("--hub", "-p", "0", cwd=tmp_path)
    assert server.banner[0].startswith("Hub listening at 127.0.0.1:")
    with provider(server.address, name="gpu-1"):
        for method in ("add", "gpu-1.add"):
            assert ended("--uri", server.address, method, "a=2", "b=3") == (0, "5\n", "")
        assert ended("--uri", f"http://{server.address}/", "add", "a=2", "b=3") == (0, "5\n", "")
        assert "add" in ended("--uri", server.address, "--list", "--format", "raw")[1].split()
        status, _, err = ended("--uri", server.address, "subtract")
        assert (status, err[:14]) == (1, "error -32601: ")
    assert server.stop() == ""


def test_the_configuration_of_the_seed(tmp_path: Path, start_server: StartServer) -> None:
    text = '{\n"port": 0,\n"thread_count": 4, // four\n"keepalive_timeout_ms": 5000,\n"max_message_size": 4096\n}'
    (tmp_path / "server.json").write_text(text)
    server = start_server("--hub", "--config", "server.json", cwd=tmp_path)
    with provider(server.address, name="client1"), Client(server.address, name="client2") as caller:
        assert caller.add(5, 3) == 8
    errors = server.stop()
    assert "thread_count sets nothing" in errors
    assert errors.count("\n") == 1


def test_argument_over_environment_over_file(folder: Path, start_server: StartServer) -> None:
    (folder / "hub.toml").write_text('unix = "socket"\ntoken = "of-the-file"\ntitle = "mine"\n')
    variables = {
        "RPCSTREAM_HUB_TOKEN": "of-the-environment",
        "RPCSTREAM_HUB_HOST": "127.0.0.1",
        "RPCSTREAM_HUB_PORT": "0",
    }
    for argv, given, address, token in [
        ((), {}, f"unix://{folder / 'socket'}", "of-the-file"),
        ((), variables, "127.0.0.1:", "of-the-environment"),
        (("-p", "0", "--token-file", "token"), variables, "127.0.0.1:", TOKEN),
    ]:
        server = start_server("--hub", "--config", "hub.toml", *argv, cwd=folder, **given)
        assert server.address.startswith(address)
        with Client(server.address, token=token) as client:
            assert client.rpc.discover()["info"]["title"] == "mine"
        with Client(server.address, token="another") as client, pytest.raises(NotAuthenticated):
            client.rpc.discover()
        assert server.stop().count("WARNING rpcstream.server: refused a login from") == 1


def test_users_and_rules(folder: Path, start_server: StartServer) -> None:
    (folder / "hub.toml").write_text(
        """
        users = [
            {name = "gpu-1", token_file = "token"},
            {name = "ada", token = "token-of-ada", roles = ["staff"]},
            {name = "eve", token = "token-of-eve"},
        ]
        rules = [{who = "gpu-*", register = ["add"]}, {who = "staff", call = ["*.add"]}]
        """
    )
    server = start_server("--hub", "--config", "hub.toml", "-p", "0", cwd=folder)
    with provider(server.address, name="gpu-1", token=TOKEN):
        with Client(server.address, token="token-of-ada") as ada:
            assert ada.add(2, 3) == 5
        with Client(server.address, token="token-of-eve") as eve:
            for method in ("add", "gpu-1.add"):
                with pytest.raises(NotPermitted):
                    eve.call(method, 2, 3)
    server.stop()


def test_times_by_options_and_no_token_is_ever_printed(tmp_path: Path, start_server: StartServer) -> None:
    times = ("--set", "call_timeout=0.05", "--set", "registration_timeout=0.2")
    server = start_server("--hub", "-p", "0", "-d", *times, cwd=tmp_path, RPCSTREAM_HUB_TOKEN=TOKEN)
    with Client(server.address, name="slow", token=TOKEN) as slow, Client(server.address, token=TOKEN) as caller:

        @slow
        async def never() -> None:
            import asyncio

            await asyncio.Event().wait()

        slow.offer()
        with pytest.raises(DeadlineExceeded):
            caller.never()
    with Client(f"http://{server.address}/", token=TOKEN) as client:
        client.rpc.stats()
    with socket.create_connection(("127.0.0.1", server.port), 20) as idle:
        while idle.recv(1000):
            pass
    errors = server.stop()
    assert '"method":"never"' in errors.replace(" ", "")
    assert TOKEN not in errors + "".join(server.banner)


@pytest.mark.parametrize("argv", [("--hub", "app:hub"), ("app:hub",)])
def test_a_hub_in_a_module(argv: tuple[str, ...], folder: Path, start_server: StartServer) -> None:
    server = start_server(*argv, "-p", "0", "--token-file", "token", cwd=folder)
    assert server.banner[0].startswith("Hub listening at ")
    assert "    - double" in server.banner
    with provider(server.address, name="gpu-1", token=TOKEN), Client(server.address, token=TOKEN) as client:
        assert client.add(client.double(2), 1) == 5
    server.stop()


def test_a_hub_in_a_module_listens_where_it_says(folder: Path, start_server: StartServer) -> None:
    assert start_server("app:there", cwd=folder).address == f"unix://{folder / 'socket'}"
    assert start_server("app:there", "-p", "0", cwd=folder).address.startswith("127.0.0.1:")


# -- guards ---------------------------------------------------------------------------------------------------------


def fails(address: str, error: Any = (ConnectFailed, ConnectionError), **options: Any) -> bool:
    with Client(address, **options) as client, pytest.raises(error):
        client.rpc.discover()
    return True


def test_token_and_certificate(folder: Path, start_server: StartServer) -> None:
    argv = ("--certificate", "server.pem", "--key", "server.key", "--token-file", "token", "--set", "binary=false")
    server = start_server("app:server", *argv, "-p", "0", cwd=folder)
    address, ca = f"tls://{server.address}", folder / "ca.pem"
    with Client(address, tls=ca, token=TOKEN) as client:
        assert client.double(4) == 8
        assert client.call("rpc.hello", 1) == {"binary": 0}
    assert fails(address, NotAuthenticated, tls=ca)
    assert fails(server.address, token=TOKEN)
    server.stop()


@pytest.mark.parametrize("by_file", [False, True])
def test_client_certificates(by_file: bool, folder: Path, start_server: StartServer) -> None:
    tls = 'tls = {certificate = "server.pem", key = "server.key", ca = "ca.pem"}'
    (folder / "hub.toml").write_text(f'port = 0\nusers = [{{name = "gpu", certificate = "gpu.example"}}]\n{tls}')
    argv = ("--certificate", "server.pem", "--key", "server.key", "--client-ca", "ca.pem")
    if by_file:
        server = start_server("--hub", "--config", str(folder / "hub.toml"), cwd=Path("/"))
    else:
        server = start_server("app:server", *argv, "-p", "0", cwd=folder)
    address, ca = f"tls://{server.address}", folder / "ca.pem"
    with Client(address, tls=TLS(ca=ca, certificate=folder / "client.pem")) as client:
        assert client.rpc.ping() == "pong"
    assert fails(address, tls=ca)
    server.stop()


@pytest.mark.parametrize("target", ["app:server", "--hub"])
def test_hosts_origins_and_paths(target: str, folder: Path, start_server: StartServer) -> None:
    argv = ["--set", "hosts=a.example", "--set", "hosts=*.b.example", "--set", "origins=https://app.example"]
    server = start_server(target, *argv, "--set", "path=/rpc", "--set", "path=/api", "-p", "0", cwd=folder)
    own, other = "https://app.example", "https://other.example"
    for path, host, origin, status in [
        ("/rpc", "a.example", own, 200),
        ("/api", "x.b.example", own, 200),
        ("/", "localhost", own, 404),
        ("/rpc", "c.example", own, 403),
        ("/rpc", "a.example", other, 403),
    ]:
        assert http_status(server.address, path, Host=host, Origin=origin) == status
    server.stop()
