"""`rpcstream-server`: targets, the banner, plain functions, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from rpcstream import Client
from rpcstream.cli.serve_options import make_parser

from ..conftest import ROOT, StartServer, environment

SERVER = """
from rpcstream import Server

server = Server()

@server
def double(n: int) -> int:
    return 2 * n

@server(name="vision.look")
def look() -> str:
    return __name__

@server(offload="process")
def elsewhere() -> str:
    import multiprocessing
    return f"{__name__} in {multiprocessing.parent_process() is not None}"

def make():
    return server
"""

RUNS = """
import multiprocessing

server.run(port=1)
if multiprocessing.parent_process() is None:
    print("done")
"""

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
    (tmp_path / "app.py").write_text(SERVER)
    (tmp_path / "controlFunctions.py").write_text(FUNCTIONS)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("from app import server as renamed")
    return tmp_path


class TestTargets:
    @pytest.mark.parametrize(
        "target", ["app:server", "app:make", "app", "app.py", "app.py:server", "package.inner:renamed"]
    )
    def test_each_form(self, target: str, folder: Path, start_server: StartServer) -> None:
        server = start_server(target, "-p", "0", cwd=folder)
        assert server.banner == [
            f"Listening at 127.0.0.1:{server.port}",
            "Methods:",
            "    - double",
            "    - elsewhere",
            "    - vision.look",
            f"Explorer at http://127.0.0.1:{server.port}/docs",
            "Ctrl-C to stop",
        ]
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/docs", timeout=20) as page:
            assert b"<!doctype html>" in page.read()
        with Client(server.address) as client:
            assert client.double(4) == 8

    def test_a_file_elsewhere_is_there_for_worker_processes_too(self, folder: Path, start_server: StartServer) -> None:
        server = start_server(str(folder / "app.py"), "-p", "0", cwd=Path("/"))
        with Client(server.address) as client:
            assert client.vision.look() == "app"
            assert client.elsewhere() == "app in True"
        server.process.send_signal(signal.SIGTERM)
        assert server.rest() == (0, "", "")

    def test_a_unix_socket(self, folder: Path, start_server: StartServer) -> None:
        path = folder / "socket"
        server = start_server("app", "--unix", str(path), cwd=folder)
        assert server.banner[0] == f"Listening at unix://{path}"
        with Client(f"unix://{path}") as client:
            assert client.double(4) == 8
        server.process.send_signal(signal.SIGINT)
        assert server.rest() == (0, "", "")

    @pytest.mark.parametrize(
        ("target", "words"),
        [
            ("nowhere:server", "there is no module 'nowhere'"),
            ("package.nowhere:server", "there is no module 'package.nowhere'"),
            ("nowhere.py", "there is no file 'nowhere.py'"),
            ("app:nothing", "'app' has no 'nothing'"),
            ("controlFunctions", "has no Server; for plain functions use -f controlFunctions"),
            ("several.py", "say several:NAME with one of one, two"),
            ("json.py", "another module has the name 'json' already"),
            ("a.b.py", "without further dots"),
            ("number:n", "number:n is int, not a Server"),
        ],
    )
    def test_what_cannot_be_served_is_said_in_a_line(self, target: str, words: str, folder: Path) -> None:
        (folder / "several.py").write_text("from rpcstream import Server\none = Server()\ntwo = Server()")
        (folder / "a.b.py").write_text("")
        (folder / "number.py").write_text("n = 5")
        if target == "json.py":
            target = str(folder / "json.py")
            (folder / "json.py").write_text("")
            folder = Path("/")
        ended = run_server(target, "-p", "0", cwd=folder)
        assert ended.returncode == 2
        assert ended.stderr.count("\n") == 1
        assert words in ended.stderr

    @pytest.mark.parametrize(
        ("target", "lines"),
        [
            (
                "broken.py",
                [
                    "Traceback (most recent call last):",
                    '  File "{folder}/broken.py", line 4, in <module>',
                    "    fail()",
                    '  File "{folder}/broken.py", line 2, in fail',
                    "    raise ValueError('at\\nimport')",
                    "ValueError: at",
                    "import",
                    "rpcstream-server: cannot import 'broken': ValueError: at import",
                ],
            ),
            (
                "syntax.py",
                [
                    '  File "{folder}/syntax.py", line 2',
                    "    def",
                    "       ^",
                    "SyntaxError: invalid syntax",
                    "rpcstream-server: cannot import 'syntax': SyntaxError in {folder}/syntax.py, "
                    "line 2: invalid syntax",
                ],
            ),
            (
                "missing.py",
                [
                    "Traceback (most recent call last):",
                    '  File "{folder}/missing.py", line 1, in <module>',
                    "    import not_installed.part",
                    "ModuleNotFoundError: No module named 'not_installed'",
                    "rpcstream-server: cannot import 'missing': {folder}/missing.py, line 1: "
                    "'not_installed' is not installed "
                    "for {python}",
                ],
            ),
            (
                "leaves.py",
                [
                    "Traceback (most recent call last):",
                    '  File "{folder}/leaves.py", line 1, in <module>',
                    "    raise SystemExit(5)",
                    "SystemExit: 5",
                    "rpcstream-server: cannot import 'leaves': SystemExit: 5",
                ],
            ),
            (
                "app:double",
                [
                    "TypeError: double() missing 1 required positional argument: 'n'",
                    "rpcstream-server: app:double failed: "
                    "TypeError: double() missing 1 required positional argument: 'n'",
                ],
            ),
        ],
    )
    def test_an_exception_of_the_target_is_shown_from_its_own_frames_on(
        self, target: str, lines: list[str], folder: Path
    ) -> None:
        (folder / "broken.py").write_text("def fail():\n    raise ValueError('at\\nimport')\n\nfail()\n")
        (folder / "syntax.py").write_text("x = 1\ndef\n")
        (folder / "missing.py").write_text("import not_installed.part\n")
        (folder / "leaves.py").write_text("raise SystemExit(5)\n")
        ended = run_server(target, "-p", "0", cwd=folder)
        assert ended.returncode == 2
        # Newer Pythons underline the place in lines of their own.
        shown = [line for line in ended.stderr.splitlines() if line.strip(" ~^") or target == "syntax.py"]
        assert shown == [line.format(folder=folder, python=sys.executable) for line in lines]

    def test_debug_shows_all_frames(self, folder: Path) -> None:
        (folder / "broken.py").write_text("raise ValueError('at import')")
        ended = run_server("broken", "-d", cwd=folder)
        assert ended.returncode == 2
        assert 'broken.py", line 1' in ended.stderr
        assert "target.py" in ended.stderr

    def test_a_module_that_runs_its_server_is_served_once_with_the_options_of_the_command(
        self, folder: Path, start_server: StartServer
    ) -> None:
        (folder / "runs.py").write_text(SERVER + RUNS)
        server = start_server("runs.py", "-p", "0", cwd=folder)
        assert server.banner[1:4] == ["Methods:", "    - double", "    - elsewhere"]
        with Client(server.address) as client:
            assert client.double(4) == 8
            assert client.elsewhere() == "runs in True"  # the worker imports the module, too, and runs no server
        server.process.send_signal(signal.SIGTERM)
        assert server.rest() == (0, "done\n", "")

    def test_a_script_prints_its_address(self, folder: Path) -> None:
        (folder / "script.py").write_text(SERVER + "server.run(port=0)\n")
        pipe = subprocess.PIPE
        command = [sys.executable, "script.py"]
        with subprocess.Popen(command, cwd=folder, env=environment(), stderr=pipe, text=True) as process:
            assert process.stderr is not None
            line = process.stderr.readline()
            address = line.removeprefix("Listening at ").removesuffix(" (Ctrl-C to stop)\n")
            with Client(address) as client:
                assert client.double(4) == 8
                assert client.elsewhere() == "__mp_main__ in True"
            process.terminate()

    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            ([], "say what to serve"),
            (["app", "-f"], "say what to serve"),
            (["app", "other"], "one TARGET is expected"),
            (["app", "--pattern", "x"], "--pattern goes with -f"),
            (["app", "--unix", "x", "-p", "1"], "takes the place of"),
            (["app", "--log-level", "loud"], "invalid choice"),
            (["app", "-p", "99999"], "is not a port"),
            (["-f", "--pattern", "nothing_*"], "no public functions that match 'nothing_*'"),
        ],
    )
    def test_wrong_use(self, argv: list[str], words: str, folder: Path) -> None:
        ended = run_server(*argv, cwd=folder)
        assert ended.returncode == 2
        assert words in ended.stderr
        assert "Traceback" not in ended.stderr


class TestRunning:
    def test_a_taken_port_is_named(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            ended = run_server("app", "-p", str(port), cwd=folder)
        assert ended.returncode == 1
        assert ended.stderr.startswith(f"rpcstream-server: cannot listen at 127.0.0.1:{port}")
        assert ended.stderr.count("\n") == 1

    def test_a_host_that_is_not_ours(self, folder: Path) -> None:
        ended = run_server("app", "-s", "192.0.2.1", "-p", "0", cwd=folder)
        assert ended.returncode == 1
        assert "cannot listen at 192.0.2.1:0" in ended.stderr

    @pytest.mark.parametrize("arguments", [("traced.py",), ("--hub",)])
    def test_tracing_makes_spans_by_the_global_provider(
        self, folder: Path, start_server: StartServer, arguments: tuple[str, ...]
    ) -> None:
        (folder / "traced.py").write_text(SERVER)
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
        server = start_server(*arguments, "-p", "0", "--tracing", cwd=folder, PYTHONPATH=path)
        with Client(server.address) as client:
            client.discover()
        server.process.send_signal(signal.SIGINT)
        status, _, errors = server.rest()
        assert status == 0
        assert '"rpc.method": "rpc.discover"' in errors

    def test_debug_logs_messages_and_shows_tracebacks(self, folder: Path, start_server: StartServer) -> None:
        (folder / "bad.py").write_text(SERVER + "\n@server\ndef bad(): return {}['x']\n")
        server = start_server("bad.py", "-d", "-p", "0", cwd=folder)
        with Client(server.address) as client:
            reply = client({"jsonrpc": "2.0", "method": "bad", "id": 1})
        assert reply["error"]["data"]["type"] == "KeyError"
        server.process.send_signal(signal.SIGINT)
        status, _, errors = server.rest()
        assert status == 0
        assert '"method":"bad"' in errors.replace(" ", "")

    def test_a_lifespan_that_fails_shows_its_own_error(self, folder: Path) -> None:
        (folder / "model.py").write_text(
            "import contextlib\nfrom rpcstream import Server\n@contextlib.asynccontextmanager\n"
            "async def life(server):\n    open('/no/model')\n    yield\nserver = Server(lifespan=life)\n"
        )
        ended = run_server("model.py", "-p", "0", cwd=folder)
        assert ended.returncode == 1
        assert "No such file or directory: '/no/model'" in ended.stderr

    def test_nobody_reads_the_banner(self, folder: Path) -> None:
        path = str(folder / "socket")
        command = [sys.executable, "-m", "rpcstream.cli.serve", "-f", "--unix", path]
        process = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.close()
        with Client(f"unix://{path}", retries=100) as client:
            client.print("into the void")
            client.stop()
        _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors) == (0, "")


class TestFunctions:
    def test_as_the_first_stream_servers(self, folder: Path, start_server: StartServer) -> None:
        server = start_server("-f", "controlFunctions", "-p", "0", cwd=folder)
        assert server.banner == [
            f"jsonrpc2://127.0.0.1:{server.port}",
            "Functions:",
            "    - control_b",
            "    - control_flowrate",
            "    - ping",
            "    - print",
            "    - stop",
            "Ctrl-C to stop",
        ]
        with socket.create_connection(("127.0.0.1", server.port), 20) as peer, peer.makefile("rwb") as lines:

            def ask(method: str, params: str) -> object:
                lines.write(f'{{"jsonrpc": "2.0", "method": "{method}", "params": {params}, "id": 7}}\n'.encode())
                lines.flush()
                reply = json.loads(lines.readline())
                assert reply["id"] == 7
                return reply["result"]

            assert ask("print", '["Hello"]') is None
            assert [ask("ping", params) for params in ("[]", "null", "{}")] == ["pong"] * 3
            call = "[60, true, [1.5], [true], [], [], false, [true], 0, 1, 60, 0, {}]"
            assert ask("control_flowrate", call) == [[3.0], [], [120]]
            assert ask("stop", "[]") is None
            assert json.loads(lines.readline())["method"] == "$/goAway"
            assert lines.readline() == b""
        assert server.rest() == (0, "Hello\n", "")

    def test_what_is_printed_cannot_command_the_terminal(self, folder: Path, start_server: StartServer) -> None:
        server = start_server("-f", "-p", "0", cwd=folder)
        with Client(server.address) as client:
            client.print("a\x1b[2Jb\nc")
            client.stop()
        assert server.rest() == (0, "a\\u001b[2Jb\nc\n", "")

    def test_a_pattern_and_a_file(self, folder: Path, start_server: StartServer) -> None:
        server = start_server("-f", str(folder / "controlFunctions.py"), "--pattern", "*lp*", "-p", "0", cwd=Path("/"))
        assert server.banner[2:-1] == ["    - helper", "    - ping", "    - print", "    - stop"]

    def test_a_module_may_have_its_own_ping(self, folder: Path, start_server: StartServer) -> None:
        (folder / "own.py").write_text("def ping():\n    return 'mine'\n")
        server = start_server("-f", "own", "--pattern", "*", "-p", "0", cwd=folder)
        with Client(server.address) as client:
            assert client.ping() == "mine"

    def test_the_line_of_the_article_by_a_socket(self, folder: Path, start_server: StartServer) -> None:
        server = start_server("-f", "controlFunctions", "-p", "0", cwd=folder)
        with socket.create_connection(("127.0.0.1", server.port), 20) as peer:
            peer.sendall(b'{ "jsonrpc": "2.0", "method": "ping", "params": [], "id": 1}\n')
            peer.shutdown(socket.SHUT_WR)
            reply = b"".join(iter(lambda: peer.recv(4096), b""))
        assert json.loads(reply) == {"jsonrpc": "2.0", "id": 1, "result": "pong"}
        assert reply.endswith(b"\n")

    @pytest.mark.skipif(shutil.which("nc") is None, reason="nc is not installed")
    def test_the_line_of_the_article_by_nc(self, folder: Path, start_server: StartServer) -> None:
        server = start_server("-f", "controlFunctions", "-p", "0", cwd=folder)
        line = """echo '{ "jsonrpc": "2.0", "method": "ping", "params": [], "id": 1}' | nc 127.0.0.1 """
        command = line + str(server.port)
        with subprocess.Popen(
            command, shell=True, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {"jsonrpc": "2.0", "id": 1, "result": "pong"}
            os.killpg(process.pid, signal.SIGTERM)  # some versions of nc wait for the server to close, others do not

    def test_the_default_port(self) -> None:
        text = make_parser().format_help()
        assert "default 8545, with -f 2102" in " ".join(text.split())


def run_server(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rpcstream.cli.serve", *argv]
    return subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=30, check=False)
