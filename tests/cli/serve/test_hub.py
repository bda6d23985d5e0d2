"""`rpcstream-server --hub`: where its options come from; options for authentication of any server."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from rpcstream import Client, ConnectFailed, DeadlineExceeded, NotAuthenticated, NotPermitted
from rpcstream.cli.serve import main
from rpcstream.cli.serve_options import make_parser

from ..conftest import ServerProcess, StartServer, environment

TOKEN = "correct-horse-battery-staple"

APP = """
from rpcstream import Server
from rpcstream.hub import Hub

server = Server()
locked = Server(token="own")
hub = Hub()
there = Hub.from_config({"unix": "socket"}, debug=False)

@server
@locked
@hub
def double(n: int) -> int:
    return 2 * n
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "server.key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    authority.issue_cert("gpu.example").private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    return tmp_path


def run_server(*argv: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rpcstream.cli.serve", *argv]
    variables = environment(**variables)
    return subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=30, check=False)


def run_command(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rpcstream", *argv]
    return subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, timeout=30, check=False
    )


def ended(server: ServerProcess) -> str:
    """Stop it; what it said on standard error."""
    server.process.send_signal(signal.SIGTERM)
    status, _, errors = server.rest()
    assert status == 0
    return errors


@contextmanager
def provider(address: str, **options: Any) -> Iterator[Client]:
    """A client that offers `add`."""
    with Client(address, **options) as client:

        @client
        def add(a: int, b: int) -> int:
            return a + b

        client.offer()
        yield client


class TestHub:
    def test_calling_through_it_needs_nothing_special(self, tmp_path: Path, start_server: StartServer) -> None:
        server = start_server("--hub", "-p", "0", cwd=tmp_path)
        assert server.banner[0].startswith("Hub listening at 127.0.0.1:")
        with provider(server.address, name="gpu-1"):
            for method in ("add", "gpu-1.add"):
                called = run_command("--uri", server.address, method, "a=2", "b=3")
                assert (called.returncode, called.stdout, called.stderr) == (0, "5\n", "")
            by_http = run_command("--uri", f"http://{server.address}/", "add", "a=2", "b=3")
            assert by_http.stdout == "5\n"
            listed = run_command("--uri", server.address, "--list", "--format", "raw")
            assert "add" in listed.stdout.split()
            unknown = run_command("--uri", server.address, "subtract")
            assert (unknown.returncode, unknown.stderr[:14]) == (1, "error -32601: ")
        assert ended(server) == ""

    def test_the_configuration_of_the_seed(self, tmp_path: Path, start_server: StartServer) -> None:
        text = '{\n"port": 0,\n"thread_count": 4, // four\n"keepalive_timeout_ms": 5000,\n"max_message_size": 4096\n}'
        (tmp_path / "server.json").write_text(text)
        server = start_server("--hub", "--config", "server.json", cwd=tmp_path)
        with provider(server.address, name="client1"), Client(server.address, name="client2") as caller:
            assert caller.add(5, 3) == 8
        errors = ended(server)
        assert "server.json: thread_count sets nothing" in errors
        assert errors.count("\n") == 1

    def test_argument_over_environment_over_file(self, tmp_path: Path, start_server: StartServer) -> None:
        (tmp_path / "hub.toml").write_text(
            'unix = "socket"\ncall_timeout = 20\ntoken = "of-the-file"\ntitle = "mine"\n'
        )
        (tmp_path / "token").write_text(TOKEN)
        variables = {"RPCSTREAM_HUB_TOKEN": "of-the-environment", "RPCSTREAM_HUB_UNIX": str(tmp_path / "other")}
        by_file = start_server("--hub", "--config", "hub.toml", cwd=tmp_path)
        by_environment = start_server("--hub", "--config", "hub.toml", cwd=tmp_path, **variables)
        argv = ("--hub", "--config", "hub.toml", "-p", "0", "--token-file", "token")
        by_argument = start_server(*argv, cwd=tmp_path, **variables)
        assert by_file.address == f"unix://{tmp_path / 'socket'}"
        assert by_environment.address == f"unix://{tmp_path / 'other'}"
        assert by_argument.address.startswith("127.0.0.1:")
        for server, token in [
            (by_file, "of-the-file"),
            (by_environment, "of-the-environment"),
            (by_argument, TOKEN),
        ]:
            with Client(server.address, token=token) as client:
                assert client.rpc.discover()["info"]["title"] == "mine"
            for wrong in {"of-the-file", "of-the-environment", TOKEN} - {token}:
                with Client(server.address, token=wrong) as client, pytest.raises(NotAuthenticated):
                    client.rpc.discover()
            refused = "WARNING rpcstream.server: refused a login from"
            assert [refused in line for line in ended(server).splitlines()] == [True, True]

    def test_users_and_rules(self, folder: Path, start_server: StartServer) -> None:
        (folder / "hub.toml").write_text("""
            [[users]]
            name = "gpu-1"
            token_file = "token"
            [[users]]
            name = "ada"
            token = "token-of-ada"
            roles = ["staff"]
            [[users]]
            name = "eve"
            token = "token-of-eve"
            [[rules]]
            who = "gpu-*"
            register = ["add"]
            [[rules]]
            who = "staff"
            call = ["*.add"]
            """)
        server = start_server("--hub", "--config", "hub.toml", "-p", "0", cwd=folder)
        with provider(server.address, name="gpu-1", token=TOKEN):
            with Client(server.address, token="token-of-ada") as ada:
                assert ada.add(2, 3) == 5
            with Client(server.address, token="token-of-eve") as eve:
                for method in ("add", "gpu-1.add"):
                    with pytest.raises(NotPermitted):
                        eve.call(method, 2, 3)
        called = run_command("--uri", server.address, "add", "a=2", "b=3", RPCSTREAM_TOKEN="token-of-ada")
        assert called.returncode == 1  # nobody offers it any more
        ended(server)

    def test_no_token_is_ever_printed(self, tmp_path: Path, start_server: StartServer) -> None:
        server = start_server("--hub", "-p", "0", "-d", cwd=tmp_path, RPCSTREAM_HUB_TOKEN=TOKEN)
        with provider(server.address, name="gpu-1", token=TOKEN), Client(server.address, token=TOKEN) as client:
            assert client.add(2, 3) == 5
        with Client(f"http://{server.address}/", token=TOKEN) as client:
            client.rpc.stats()
        errors = ended(server)
        assert '"method":"add"' in errors.replace(" ", "")
        assert TOKEN not in errors + "".join(server.banner)

    def test_times_by_options(self, tmp_path: Path, start_server: StartServer) -> None:
        server = start_server(
            *("--hub", "-p", "0", "--call-timeout", "0.05", "--registration-timeout", "0.2", "--grace", "60"),
            cwd=tmp_path,
        )
        with Client(server.address, name="slow") as slow, Client(server.address) as caller:

            @slow
            async def never() -> None:
                import asyncio

                await asyncio.Event().wait()

            held = caller.submit.later()
            slow.offer()
            with pytest.raises(DeadlineExceeded):
                caller.never()
            slow(lambda: "at last", name="later")
            slow.offer()
            assert held.result(20) == "at last"
        with socket.create_connection(("127.0.0.1", server.port), 20) as idle:
            assert idle.recv(1000) == b""
        ended(server)

    @pytest.mark.parametrize("argv", [("--hub", "app:hub"), ("app:hub",)])
    def test_one_in_a_module(self, argv: tuple[str, ...], folder: Path, start_server: StartServer) -> None:
        server = start_server(*argv, "-p", "0", "--token-file", "token", cwd=folder)
        assert server.banner[0].startswith("Hub listening at ")
        assert "    - double" in server.banner
        with provider(server.address, name="gpu-1", token=TOKEN), Client(server.address, token=TOKEN) as client:
            assert client.add(client.double(2), 1) == 5
        ended(server)

    def test_one_in_a_module_listens_where_it_says(self, folder: Path, start_server: StartServer) -> None:
        assert start_server("app:there", cwd=folder).address == f"unix://{folder / 'socket'}"
        assert start_server("app:there", "-p", "0", cwd=folder).address.startswith("127.0.0.1:")

    def test_tls_from_the_file(self, folder: Path, start_server: StartServer) -> None:
        (folder / "hub.toml").write_text("""
            port = 0
            users = [{name = "gpu", certificate = "gpu.example"}]
            [tls]
            certificate = "server.pem"
            key = "server.key"
            ca = "ca.pem"
            """)
        server = start_server("--hub", "--config", str(folder / "hub.toml"), cwd=Path("/"))
        address = f"tls://{server.address}"
        with provider(address, name="gpu-1", ca=folder / "ca.pem", certificate=folder / "client.pem") as client:
            assert client.add(2, 3) == 5
        with (
            Client(f"tls://{server.address}", ca=folder / "ca.pem") as client,
            pytest.raises((ConnectFailed, ConnectionError)),
        ):
            client.rpc.ping()
        ended(server)


class TestWrongUse:
    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            (["--hub", "-f"], "-f does not go with --hub"),
            (["--hub", "app", "other"], "one TARGET is expected"),
            (["app:server", "--config", "x"], "--config goes with --hub"),
            (["app:server", "--ping-interval", "5"], "--ping-interval goes with --hub"),
            (["app:hub", "--hub", "--call-timeout", "5"], "--call-timeout is for a hub without a TARGET"),
            (["app:server", "--hub"], "app:server is a Server, not a Hub"),
            (["--hub", "--call-timeout", "soon"], "'soon' is not a number of seconds"),
            (["--hub", "--unix", "x", "-p", "1"], "takes the place of"),
            (["app:server", "--key", "x"], "--key goes with --certificate"),
            (["app:server", "--client-ca", "x"], "--client-ca goes with --certificate"),
            (["app:server", "--unix-mode", "660"], "--unix-mode goes with --unix"),
            (["app:server", "--unix", "x", "--unix-mode", "999"], "'999' is no file mode"),
            (["app:server", "--token", "x"], "unrecognized arguments: --token"),
            (["app:server", "--token-file", "none"], "--token-file: cannot read 'none': No such file"),
            (["app:locked", "--token-file", "token"], "this server has a token= or an authenticate= of its own"),
            (["app:server", "--certificate", "token"], "--certificate: no certificate with its key"),
            (
                ["app:server", "--cert", "server.pem"],
                "--certificate has no private key in it: give the file of its key",
            ),
            (["app:server", "--allow-host", "a b"], "a b"),
            (["app:server", "--path", "rpc"], "path: a path is a string that begins with '/'"),
            (["--hub", "--path", "rpc"], "argument path must be a path that begins with"),
            (["--hub", "--key", "server.key"], "argument tls_key: this is for TLS, which needs a certificate"),
            (["--hub", "--config", "none.toml"], "cannot read 'none.toml': No such file"),
            (["--hub", "--config", "token"], "token: this is not TOML"),
            (["--hub", "--config", "slip.toml"], "slip.toml: unknown option 'prot' of a hub (did you mean 'port'?)"),
            (
                ["--hub", "--config", "rules.toml"],
                "rules.toml: rules: rule 1: unknown field 'cal' (did you mean 'call'?)",
            ),
            (["--hub", "--config", "open.toml"], "rules need callers that are authenticated"),
        ],
    )
    def test_is_said_in_a_line(
        self,
        argv: list[str],
        words: str,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        (folder / "slip.toml").write_text("prot = 1")
        (folder / "rules.toml").write_text('token = "x"\n[[rules]]\nwho = "*"\ncal = "x"')
        (folder / "open.toml").write_text('[[rules]]\nwho = "*"')
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setitem(sys.modules, "app", None)
        del sys.modules["app"]
        assert main(argv) == 2  # here, where it takes no time: other tests see that the command does the same
        said = capsys.readouterr().err
        assert words in said
        assert "Traceback" not in said
        assert TOKEN not in said

    def test_a_wrong_variable(self, folder: Path) -> None:
        stopped = run_server("--hub", cwd=folder, RPCSTREAM_HUB_PORT="tcp://10.0.0.1:8545")
        assert stopped.returncode == 2
        assert stopped.stderr == (
            "rpcstream-server: environment variable RPCSTREAM_HUB_PORT must be a whole number from 0 to 65535,"
            " got 'tcp://10.0.0.1:8545'\n"
        )

    def test_a_hub_that_cannot_listen(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            stopped = run_server("--hub", "-p", str(taken.getsockname()[1]), cwd=folder)
        assert stopped.returncode == 1
        assert stopped.stderr.startswith("rpcstream-server: cannot listen at 127.0.0.1:")


class TestAnyServer:
    def test_token_and_certificate(self, folder: Path, start_server: StartServer) -> None:
        argv = ("--certificate", "server.pem", "--key", "server.key", "--token-file", "token")
        server = start_server("app:server", *argv, "-p", "0", cwd=folder)
        with Client(f"tls://{server.address}", ca=folder / "ca.pem", token=TOKEN) as client:
            assert client.double(4) == 8
        with Client(f"tls://{server.address}", ca=folder / "ca.pem") as client, pytest.raises(NotAuthenticated):
            client.double(4)
        with Client(server.address, token=TOKEN) as client, pytest.raises((ConnectFailed, ConnectionError)):
            client.double(4)
        ended(server)

    def test_functions_too(self, folder: Path, start_server: StartServer) -> None:
        (folder / "plain.py").write_text("def control_a(): return 5\n")
        server = start_server("-f", "plain", "--token-file", "token", "-p", "0", cwd=folder)
        with Client(server.address) as client, pytest.raises(NotAuthenticated):
            client.stop()
        with Client(server.address, token=TOKEN) as client:
            assert client.control_a() == 5
        ended(server)

    def test_client_certificates(self, folder: Path, start_server: StartServer) -> None:
        argv = ("--certificate", "server.pem", "--key", "server.key", "--client-ca", "ca.pem")
        server = start_server("app:server", *argv, "-p", "0", cwd=folder)
        with Client(f"tls://{server.address}", ca=folder / "ca.pem", certificate=folder / "client.pem") as client:
            assert client.double(4) == 8
        with (
            Client(f"tls://{server.address}", ca=folder / "ca.pem") as client,
            pytest.raises((ConnectFailed, ConnectionError)),
        ):
            client.double(4)
        ended(server)

    def test_hosts_and_origins(self, folder: Path, start_server: StartServer) -> None:
        argv = ("--allow-host", "a.example", "--allow-host", "*.b.example", "--allow-origin", "https://app.example")
        server = start_server("app:server", *argv, "-p", "0", cwd=folder)

        def status(host: str, origin: str) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
            body = json.dumps({"jsonrpc": "2.0", "method": "double", "params": [4], "id": 1})
            headers = {"Host": host, "Origin": origin, "Content-Type": "application/json"}
            connection.request("POST", "/", body, headers)
            answer = connection.getresponse()
            answer.read()
            connection.close()
            return answer.status

        for host in ("a.example", "x.b.example", "localhost"):
            assert status(host, "https://app.example") == 200
        assert status("c.example", "https://app.example") == 403
        assert status("a.example", "https://other.example") == 403
        ended(server)

    def test_where_calls_are_taken(self, folder: Path, start_server: StartServer) -> None:
        body = json.dumps({"jsonrpc": "2.0", "method": "rpc.ping", "id": 1})
        for target in ("app:server", "--hub"):
            server = start_server(target, "--path", "/rpc", "--path", "/api", "-p", "0", cwd=folder)
            for path, status in (("/rpc", 200), ("/api", 200), ("/", 404)):
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                assert connection.getresponse().status == status
                connection.close()
            ended(server)

    def test_the_mode_of_a_unix_socket(self, folder: Path, start_server: StartServer) -> None:
        for number, target in enumerate(["app:server", "--hub"]):
            path = folder / f"socket-{number}"
            server = start_server(target, "--unix", str(path), "--unix-mode", "600", cwd=folder)
            assert os.stat(path).st_mode & 0o777 == 0o600
            ended(server)


def test_the_parser_needs_no_server() -> None:
    """So that `--help` and completion are quick."""
    program = "import sys\nfrom rpcstream.cli.serve import make_parser\nmake_parser()\nprint(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert not {"asyncio", "ssl", "msgspec", "rpcstream.config", "rpcstream.server"} & set(out.split())
    assert "--token-file" in make_parser().format_help()
