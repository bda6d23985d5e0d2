"""`rpcstream` with options from the environment and from a configuration file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rpcstream import Server
from rpcstream.cli.call import main
from rpcstream.cli.options import with_option_names
from rpcstream.testing import serve_in_thread

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """The address of a server that asks for the token "right"."""
    server = Server(token="right")

    @server
    def add(a: int, b: int) -> int:
        return a + b

    with serve_in_thread(server) as where:
        yield where


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: str) -> Run:
    """`run("add", "a=1", "b=2", RPCSTREAM_TOKEN="right")`, with a file of three profiles."""
    folder = tmp_path / "rpcstream"
    folder.mkdir()
    (folder / "token").write_text("right")
    lab = f'[profiles.lab]\naddress = "{guarded}"\ntoken_file = "token"\nname = "of-a-program"\n'
    (folder / "config.toml").write_text(f"{lab}[profiles.wrong]\nprot = 1")
    for path in folder.iterdir():
        path.chmod(0o600)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run(*argv: str, **variables: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            return main(argv), *capfd.readouterr()

    return run


ADD = ("add", "a:int=1", "b:int=2")


def test_a_profile(run: Run, tmp_path: Path) -> None:
    assert run(*ADD, "--profile", "lab") == (0, "3\n", "")
    assert run(*ADD, RPCSTREAM_PROFILE="lab") == (0, "3\n", "")
    file = tmp_path / "rpcstream" / "config.toml"
    moved = file.rename(tmp_path / "rpcstream" / "other.toml")
    assert run(*ADD, "--profile", "lab", "--config", str(moved)) == (0, "3\n", "")
    assert run(*ADD, RPCSTREAM_PROFILE="lab", RPCSTREAM_CONFIG=str(moved)) == (0, "3\n", "")


def test_the_environment(run: Run, guarded: str, tmp_path: Path) -> None:
    host, _, port = guarded.rpartition(":")
    token = str(tmp_path / "rpcstream" / "token")
    assert run(*ADD, RPCSTREAM_ADDRESS=guarded, RPCSTREAM_TOKEN="right") == (0, "3\n", "")
    assert run(*ADD, RPCSTREAM_HOST=host, RPCSTREAM_PORT=port, RPCSTREAM_TOKEN_FILE=token) == (0, "3\n", "")
    assert run(*ADD, "-p", port, "--token", "right", RPCSTREAM_PROFILE="lab") == (0, "3\n", "")
    assert run(*ADD, "--uri", guarded, "--token-file", token) == (0, "3\n", "")
    assert run(*ADD, RPCSTREAM_ADDRESS=guarded)[0] == 1
    assert run(*ADD, "--token", "", RPCSTREAM_PROFILE="lab")[0] == 1
    assert run("rpc.ping", "--timeout", "0", RPCSTREAM_PROFILE="lab", RPCSTREAM_TIMEOUT="0.000001")[0] == 0
    assert run("rpc.ping", RPCSTREAM_PROFILE="lab", RPCSTREAM_TIMEOUT="0.000001")[0] in (3, 4)


@pytest.mark.parametrize(
    ("argv", "variables", "complaint"),
    [
        (["--profile", "lap"], {}, "--profile: FILE has no profile 'lap' (did you mean 'lab'?); it has: lab, wrong"),
        (["--profile", "wrong"], {}, "FILE: wrong: unknown option 'prot' of a client (did you mean 'port'?)"),
        ([], {"RPCSTREAM_TIMEOUT": "x"}, "environment variable RPCSTREAM_TIMEOUT must be a number of seconds"),
        (["--config", "/no/such"], {}, "cannot read '/no/such': No such file or directory"),
        (["--token-file", "/no/such"], {}, "--token-file: cannot read '/no/such': No such file or directory"),
        (["-p", "0", "--profile", "lab"], {}, "--port must be a whole number from 1 to 65535, got 0"),
    ],
)
def test_mistakes(run: Run, tmp_path: Path, argv: list[str], variables: dict[str, str], complaint: str) -> None:
    status, out, err = run("add", *argv, **variables)
    assert (status, out) == (2, "")
    assert err.replace(str(tmp_path / "rpcstream" / "config.toml"), "FILE").startswith(f"rpcstream: {complaint}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("give ca=, or begin address= with tls://", "give --ca, or begin --uri with tls://"),
        ("argument token_file: x", "--token-file: x"),
        ("argument address must be", "--uri must be"),
        ("[1] wrong: {'ca=x': 'key=1'}", "[1] wrong: {'ca=x': 'key=1'}"),
        ("certificate=", "--certificate"),
    ],
)
def test_options_as_the_command_line_writes_them(text: str, found: str) -> None:
    assert with_option_names(text) == found
