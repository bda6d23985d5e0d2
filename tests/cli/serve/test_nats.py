"""Both commands with NATS: servers that join a service, calls to it, logins, and errors that name the options."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpcstream import Client
from rpcstream.cli import call_options, serve_options
from rpcstream.cli.call import main
from rpcstream.cli.options import with_option_names

from ...kit import until_in_thread
from ...kit.nats_accounts import Key
from ...kit.nats_server import NatsServer, skip_without_program
from ..conftest import StartServer, environment
from .test_serve import SERVER

pytest.importorskip("nats")


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    skip_without_program()
    with NatsServer(users=[{"user": "vision", "password": "secret"}]) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    more = "\n@server\ndef process() -> int:\n    import os\n    return os.getpid()\n"
    (tmp_path / "app.py").write_text(SERVER + more)
    (tmp_path / "password").write_text("secret\n")
    return tmp_path


def failure(folder: Path, *options: str, **variables: str) -> tuple[int, str]:
    """Run `rpcstream-server`, which is to fail; gives its status and the last line that it printed."""
    target = [] if "--hub" in options else ["app.py"]
    command = [sys.executable, "-m", "rpcstream.cli.serve", *target, *options]
    done = subprocess.run(command, cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=30)
    return done.returncode, done.stderr.splitlines()[-1]


def test_a_server_beside_its_port(
    nats: NatsServer,
    folder: Path,
    start_server: StartServer,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    login = ("--nats-user", "vision", "--nats-password-file", "password")
    server = start_server("app.py", "-p", "0", "--nats", nats.url, "--service", "words", *login, cwd=folder)
    port, address = server.address.split(", ")
    assert address == f"{nats.url}/words"
    with Client(port) as client:
        assert client.double(4) == 8
    monkeypatch.setenv("RPCSTREAM_NATS_PASSWORD", "secret")
    assert main(["double", "n=4", "--uri", address, "--nats-user", "vision"]) == 0
    assert main(["--list", "--uri", address, "--nats-user", "vision", "--format", "raw"]) == 0
    out = capsys.readouterr().out.split()
    assert out[0] == "8"
    assert "vision.look" in out
    assert main(["nothing", "--uri", address, "--nats-user", "vision"]) == 1
    assert "no instance of the service 'words' offers it" in capsys.readouterr().err


def test_a_server_without_a_port_ends_in_order(nats: NatsServer, folder: Path, start_server: StartServer) -> None:
    variables = {"RPCSTREAM_NATS_PASSWORD": "secret", "RPCSTREAM_NATS_USER": "vision"}
    server = start_server("app.py", "--nats", f"{nats.url}/words", "--nats-only", cwd=folder, **variables)
    assert server.banner[0] == f"Listening at {nats.url}/words"
    assert not [line for line in server.banner if "Explorer" in line]
    server.process.send_signal(signal.SIGTERM)
    assert server.rest() == (0, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no workers on Windows")
def test_each_worker_is_an_instance(nats: NatsServer, folder: Path, start_server: StartServer) -> None:
    from rpcstream.nats.options import NatsLogin

    variables = {"RPCSTREAM_NATS_PASSWORD": "secret", "RPCSTREAM_NATS_USER": "vision"}
    options = ("--nats", nats.url, "--service", "words", "--nats-only", "--workers", "2")
    server = start_server("app.py", *options, cwd=folder, **variables)
    seen: set[int] = set()

    with Client(server.address, nats=NatsLogin(user="vision", password="secret"), retries=5, retry="all") as client:

        def has_seen(count: int) -> bool:
            seen.add(client.process())
            return len(seen) == count

        until_in_thread(lambda: has_seen(2))
        os.kill(min(seen), signal.SIGKILL)
        until_in_thread(lambda: has_seen(3))  # another one has joined in its place
    server.process.send_signal(signal.SIGTERM)
    assert server.rest()[0] == 0


def test_hubs_find_each_other(nats: NatsServer, folder: Path, start_server: StartServer) -> None:
    login = {"RPCSTREAM_NATS_PASSWORD": "secret", "RPCSTREAM_NATS_USER": "vision"}
    hubs = [start_server("--hub", "-p", "0", "--nats", nats.url, cwd=folder, **login) for _ in range(2)]
    with Client(hubs[0].address) as provider, Client(hubs[1].address) as caller:

        @provider
        def where() -> str:
            return "here"

        provider.offer()
        assert caller.request("where", wait_for=20) == "here"
    assert "--nats-only is for calls from NATS" in failure(folder, "--hub", "--nats", nats.url, "--nats-only")[1]


class TestErrors:
    def test_of_the_server(self, nats: NatsServer, folder: Path) -> None:
        url = f"{nats.url}/words"
        (folder / "bad").write_text("nothing")
        (folder / "unknown").write_text(Key("U").seed)
        status, line = failure(folder, "--nats", url, "--nats-only")
        assert (status, line.partition(" (at")[0]) == (
            1,
            "rpcstream-server: the NATS server asks for a login: give --nats-creds, --nats-nkey, or --nats-user and "
            "RPCSTREAM_NATS_PASSWORD",
        )
        status, line = failure(folder, "--nats", url, "--nats-user", "vision", RPCSTREAM_NATS_PASSWORD="wrong")
        assert status == 1
        assert "does not accept this name and password (--nats-user 'vision'" in line
        assert "wrong" not in line
        status, line = failure(folder, "--nats", url, "--nats-nkey", "unknown")
        assert (status, "no user with this key (--nats-nkey 'unknown')" in line) == (1, True)
        status, line = failure(folder, "--nats", url, "--nats-creds", "bad")
        assert (status, "--nats-creds has no JWT of a user in it: 'bad'" in line) == (1, True)

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (("--nats", "nats://127.0.0.1"), "the name of the service is missing"),
            (("--nats", "127.0.0.1"), "an address of NATS begins with nats:// or nats+tls://"),
            (("--nats", "nats://127.0.0.1/a", "--service", "b"), "and --service is 'b'"),
            (("--nats", "nats://127.0.0.1/a", "--nats-trust-identity"), "--nats-trust-identity tells authenticate="),
            (("--nats", "nats+tls://127.0.0.1/a", "--nats-ca", "none"), "--nats-ca cannot be read"),
            (("--nats", "nats://127.0.0.1/a", "--nats-ca", "none"), "--nats-ca is for TLS"),
            (("--nats", "nats://127.0.0.1/a", "--nats-user", "a", "--nats-nkey", "b"), "either nats_"),
            (("--nats", "nats://127.0.0.1/a", "--nats-inbox-prefix", "$x"), "--nats-inbox-prefix is a subject"),
            (("--nats", "nats://127.0.0.1/a", "--nats-key", "x"), "--nats-key goes with --nats-certificate"),
            (("--nats", "nats://127.0.0.1/a", "--nats-only", "-p", "1"), "--port does not go with --nats-only"),
            (("--nats", "nats://127.0.0.1/a", "--nats-direct", "x:y:z"), "is host:port, not 'x:y:z'"),
            (("--nats-creds", "x"), "--nats-creds goes with --nats"),
            (("--service", "x"), "--service goes with --nats"),
        ],
    )
    def test_of_wrong_use(self, folder: Path, options: tuple[str, ...], text: str) -> None:
        status, line = failure(folder, *options)
        assert status == 2
        assert text in line

    def test_of_the_client(self, nats: NatsServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        address = f"{nats.url}/words"
        for options, status, text in (
            ([], 3, "give --nats-creds, --nats-nkey, or --nats-user and RPCSTREAM_NATS_PASSWORD"),
            (["--nats-user", "a"], 3, "does not accept this token (--nats-user without RPCSTREAM_NATS_PASSWORD)"),
            (["--nats-creds", "none"], 3, "--nats-creds cannot be read: No such file or directory: 'none'"),
            (["--nats-creds", "a", "--nats-nkey", "b"], 2, "either nats_creds or nats_nkey, not both"),
            (["-p", "4222"], 2, "--port does not go with nats://"),
            (["--ca", "x"], 2, "--ca is for TLS"),
        ):
            assert main(["double", "n=4", "--uri", address, *options]) == status
            assert text in capsys.readouterr().err
        assert main(["double", "--uri", nats.url]) == 2
        assert "the service is missing in the address" in capsys.readouterr().err
        assert main(["double", "--uri", "127.0.0.1:1", "--nats-user", "a"]) == 2
        assert "--nats-user is for addresses nats://…, and the address is 127.0.0.1:1" in capsys.readouterr().err


def test_the_names_of_options() -> None:
    text = "wrong (creds='x'): user= and password=, ca=, inbox_prefix= of NatsLogin)"
    assert with_option_names(text) == (
        "wrong (--nats-creds 'x'): --nats-user and RPCSTREAM_NATS_PASSWORD, --ca, --nats-inbox-prefix)"
    )
    assert with_option_names("give ca= or creds=", of_nats=True) == "give --nats-ca or --nats-creds"


@pytest.mark.parametrize("parser", [call_options.make_parser(), serve_options.make_parser()])
def test_a_password_stands_on_no_command_line(parser: object) -> None:
    names = {name for action in parser._actions for name in action.option_strings}  # type: ignore[attr-defined]  # noqa: SLF001
    assert {"--nats-creds", "--nats-nkey", "--nats-user", "--nats-password-file"} <= names
    assert "--nats-password" not in names
