"""`rpcstream-server --config` and `--set` for a target: its options, limits, users and tokens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rpcstream import Client, NotAuthenticated, NotPermitted, RpcError

from ...kit import until_in_thread
from ..conftest import StartServer
from .test_serve import http_status

pytestmark = pytest.mark.slow

APP = """
from rpcstream import Server

server = Server(title="in code", hosts=["own.example"], drain_timeout=99)

@server(allow="admin")
def erase() -> str:
    return "erased"

@server
def size(text: str) -> int:
    return len(text)
"""

FILE = """
title = "in the file"
drain_timeout = 0.5
max_message_size = 20_000
hosts = ["file.example"]
metrics = true
port = 0

[[users]]
name = "ada"
token = "token-of-ada"
roles = ["admin"]

[[users]]
name = "eve"
token_file = "eve.token"
"""


@pytest.fixture
def service(tmp_path: Path) -> Path:
    (tmp_path / "service.py").write_text(APP)
    (tmp_path / "eve.token").write_text("token-of-eve\n")
    (tmp_path / "server.toml").write_text(FILE)
    return tmp_path


@pytest.mark.parametrize("processes", [[], ["--workers", "2"]], ids=["one process", "workers"])
def test_a_file_for_a_target(service: Path, start_server: StartServer, processes: list[str]) -> None:
    server = start_server("service.py", "--config", "server.toml", *processes, cwd=service)
    with Client(server.address, token="token-of-ada") as ada, Client(server.address, token="token-of-eve") as eve:
        assert (ada.erase(), eve.size("x")) == ("erased", 1)
        assert ada.rpc.discover()["info"]["title"] == "in the file"
        with pytest.raises(NotPermitted):
            eve.erase()
        with pytest.raises(RpcError):  # over the limit of the file
            eve.size("x" * 40_000)
    with Client(server.address, token="another") as client, pytest.raises(NotAuthenticated):
        client.size("x")
    for host, status in [("own.example", 401), ("file.example", 401), ("other.example", 403)]:
        assert http_status(server.address, "/", Host=host) == status
    server.stop()


def test_set_comes_before_the_file(service: Path, start_server: StartServer) -> None:
    more = (
        "--set",
        "title=on the line",
        "--set",
        "max_calls=5",
        "--set",
        "hosts=a.example",
        "--set",
        "hosts=b.example",
    )
    server = start_server("service.py", "--config", "server.toml", *more, cwd=service)
    with Client(server.address, token="token-of-ada") as ada:
        assert ada.rpc.discover()["info"]["title"] == "on the line"
    for host, status in [("own.example", 401), ("b.example", 401), ("file.example", 403)]:
        assert http_status(server.address, "/", Host=host) == status
    server.stop()


def test_a_user_who_is_gone_is_told_to_go(service: Path, start_server: StartServer) -> None:
    server = start_server("service.py", "--config", "server.toml", "--log-level", "info", cwd=service)
    with Client(server.address, token="token-of-ada") as ada, Client(server.address, token="token-of-eve") as eve:
        assert ada.size("x") == eve.size("x") == 1
        (service / "server.toml").write_text(FILE.replace("token-of-ada", "another"))
        server.process.send_signal(1)

        def is_refused() -> bool:
            try:
                ada.size("x")
            except NotAuthenticated:
                return True
            return False

        until_in_thread(is_refused)
        assert eve.size("xx") == 2
    assert "connections to close: 1" in server.stop()


@pytest.mark.parametrize("target", [["service.py"], ["--hub"]])
def test_tokens_are_rotated_without_a_refusal(target: list[str], service: Path, start_server: StartServer) -> None:
    """The file is read again when it changes: first both tokens count, then the new one alone."""
    file = service / "token"
    file.write_text("old\n")
    server = start_server(*target, "--token-file", "token", "-p", "0", "--log-level", "info", cwd=service)

    def is_accepted(token: str) -> bool:
        with Client(server.address, token=token) as client:
            try:
                return bool(client.rpc.ping())
            except NotAuthenticated:
                return False

    with Client(server.address, token="old") as lasting:
        assert (lasting.rpc.ping(), is_accepted("new")) == ("pong", False)
        replace(file, "new\nold\n")
        until_in_thread(lambda: is_accepted("new"))
        assert (lasting.rpc.ping(), is_accepted("old")) == ("pong", True)
        replace(file, "new\n")
        until_in_thread(lambda: not is_accepted("old"))
        with pytest.raises(NotAuthenticated):
            lasting.rpc.ping()
    assert is_accepted("new")
    errors = server.stop()
    assert "token has changed: reading" in errors


def replace(path: Path, text: str) -> None:
    """Write a file as secrets are replaced: another file takes its name."""
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)
