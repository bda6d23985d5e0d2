"""Both commands with NATS: servers that join a service, calls to it, logins, and errors that name the options."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpcstream import Client, NatsLogin, Retry

from ...kit import until_in_thread
from ...kit.nats_accounts import Key
from ...kit.nats_server import NatsServer, skip_without_program
from ..conftest import Run, StartServer, run_server

pytest.importorskip("nats")
pytestmark = [pytest.mark.nats, pytest.mark.slow]

USER = ("--set", "nats_user=vision")
PASSWORD = {"RPCSTREAM_NATS_PASSWORD": "secret"}
#: A profile of a client with a name at NATS.
PROFILE = '[nats]\nuser = "vision"'


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    skip_without_program()
    with NatsServer(users=[{"user": "vision", "password": "secret"}]) as server:
        yield server


@pytest.fixture
def address(nats: NatsServer) -> str:
    return f"{nats.url}/words"


def test_a_server_beside_its_port(nats: NatsServer, folder: Path, start_server: StartServer, run: Run) -> None:
    (folder / "password").write_text("secret\n")
    login = (*USER, "--set", "nats_password_file=password")
    server = start_server(
        "app:server", "-p", "0", "--nats", nats.url, "--set", "nats_service=words", *login, cwd=folder
    )
    port, address = server.address.split(", ")
    assert address == f"{nats.url}/words"
    with Client(port) as client:
        assert client.double(4) == 8
    (folder / "client.toml").write_text(PROFILE)
    as_vision = ("--config", str(folder / "client.toml"))
    assert run("double", "n=4", *as_vision, **PASSWORD) == (0, "8\n", "")
    assert "vision.look" in run("--list", "--format", "raw", *as_vision, **PASSWORD)[1].split()
    status, _, err = run("nothing", *as_vision, **PASSWORD)
    assert (status, "no instance of the service 'words' offers it" in err) == (1, True)
    server.stop()


@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
def test_a_server_without_a_port(
    nats: NatsServer, folder: Path, start_server: StartServer, workers: tuple[str, ...]
) -> None:
    """It ends in order; each worker is an instance."""
    argv = ("--nats", f"{nats.url}/words", "--set", "nats_only=true", *USER, *workers)
    server = start_server("app:server", *argv, cwd=folder, **PASSWORD)
    assert server.address == f"{nats.url}/words"
    assert not [line for line in server.banner if "Explorer" in line]
    seen: set[int] = set()
    login = NatsLogin(user="vision", password="secret")
    with Client(server.address, nats=login, retry=Retry(times=5, repeats="all")) as client:

        def has_seen(count: int) -> bool:
            seen.add(client.process())
            return len(seen) == count

        until_in_thread(lambda: has_seen(2 if workers else 1))
        if workers:
            os.kill(min(seen), signal.SIGKILL)
            until_in_thread(lambda: has_seen(3))  # another one has joined in its place
    server.process.send_signal(signal.SIGTERM)
    status, _, err = server.rest()
    assert status == 0, err


@pytest.mark.parametrize(
    ("argv", "variables", "text"),
    [
        (
            ["--set", "nats_only=true"],
            {},
            "asks for a login: give nats_creds, nats_nkey, or nats_user and RPCSTREAM_NATS_PASSWORD",
        ),
        (
            [*USER],
            {"RPCSTREAM_NATS_PASSWORD": "wrong"},
            "does not accept this login (RPCSTREAM_NATS_PASSWORD)",
        ),
        (["--set", "nats_nkey=unknown"], {}, "does not accept this login (nats_nkey)"),
        (["--set", "nats_creds=bad"], {}, "the login nats_creds 'bad' cannot be used: it has not what is needed in it"),
    ],
)
def test_logins_of_a_server_that_fail(
    address: str, folder: Path, argv: list[str], variables: dict[str, str], text: str
) -> None:
    (folder / "bad").write_text("nothing")
    (folder / "unknown").write_text(Key("U").seed)
    status, err = run_server("app:server", "--nats", address, *argv, cwd=folder, **variables)
    assert (status, text in err, "wrong" in err) == (1, True, False), err


@pytest.mark.parametrize(
    ("argv", "status", "text"),
    [
        ([], 3, "give --nats-creds, nats.nkey, or nats.user and RPCSTREAM_NATS_PASSWORD"),
        (["--config", "user.toml"], 3, "does not accept this login (nats.user)"),
        (["--nats-creds", "none"], 3, "the login --nats-creds 'none' cannot be used: "),
        (["--config", "two.toml"], 2, "a NATS login has one of creds, nkey and user"),
        (["--nats-password", "x"], 2, "unrecognized arguments: --nats-password"),
        (["-p", "4222"], 2, "--port does not go with nats://"),
        (["--ca", "x"], 2, "--ca is for TLS"),
        (["--uri", "nats://127.0.0.1"], 2, "the service is missing in the address"),
        (["--uri", "127.0.0.1:1", "--nats-creds", "a"], 2, "is a login for nats://, and the address is 127.0.0.1:1"),
    ],
)
def test_mistakes_of_a_client(
    run: Run, argv: list[str], status: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("user.toml").write_text(PROFILE)
    Path("two.toml").write_text('[nats]\nuser = "a"\nnkey = "b"')
    found, _, err = run("double", "n=4", *argv)
    assert (found, text in err) == (status, True), err
