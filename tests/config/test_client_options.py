"""The options of a client: its address, its login for NATS, and its profiles with their credentials."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from rpcstream import TLS, Client, NatsLogin, Retry
from rpcstream.client.address import parse_address
from rpcstream.client.config import client_options
from rpcstream.config import ConfigError

from .conftest import client

ALL = {
    **{"address": "tls://hub.example:8545", "name": "gpu-1"},
    **{"timeout": 5.0, "connect_timeout": 0.5, "wait_for": 10.0},
    **{"reconnect": True, "pool": 2},
}


def test_all_there_is(write: Any, tmp_path: Path) -> None:
    more = {"keepalive_timeout_ms": 20_000, "ca": "ca.pem", "certificate": "own.pem", "key": "/own.key"}
    more["retry"] = {"times": 2, "repeats": "all"}
    assert client({"client_id": "x", "call_timeout_ms": 30_000}) == {"name": "x", "timeout": 30.0}
    tls = TLS(ca=str(tmp_path / "ca.pem"), certificate=str(tmp_path / "own.pem"), key="/own.key")
    made = {"tls": tls, "retry": Retry(times=2, repeats="all")}
    assert client(write("client.json", json.dumps(ALL | more))) == ALL | {"keepalive": 20.0, **made}
    none = {"timeout": None, "connect_timeout": None, "wait_for": None}
    assert client({"timeout": 0, "connect_timeout": None, "wait_for": 0}) == none
    assert client(codec=(codec := object())) == {"codec": codec}


@pytest.mark.parametrize(
    ("values", "variables", "address"),
    [
        ({"address": "unix:///x"}, {}, "unix:///x"),
        ({"port": 5}, {}, ":5"),
        ({"host": "::1", "port": 5}, {}, "[::1]:5"),
        ({"host": "a", "port": 5}, {"RPCSTREAM_ADDRESS": "b"}, "b"),
    ],
)
def test_addresses(values: dict[str, Any], variables: dict[str, str], address: str) -> None:
    assert client(values, variables) == {"address": address}
    parse_address(address)


NATS = "nats://a,b:4223/vision"


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"address": "a", "port": 5}, "either"),
        ({"retry": {"repeats": "never"}}, "retry: retry: repeats must be 'all' or 'idempotent', got 'never'"),
        ({"retry": {"tries": 3}}, "retry: .*unexpected keyword argument 'tries'"),
        ({"tls": "a"}, "unknown option 'tls'"),
        ({"address": "a", "key": "k"}, "key= is for TLS .*, and a is without"),
        *(({"host": each}, "host must be a name or an IP address") for each in ("tls://a", "[::1]", "a/b")),
        ({"adress": "x"}, r"unknown option 'adress' of a client \(did you mean 'address'\?\)"),
        ({"address": NATS, "nats": {"user": "u", "creds": "c"}}, "nats: a NATS login has one of creds, nkey and user"),
        ({"profile": 3}, "no profile 3"),
        ({"profile": "x", "profiles": 3}, "no profile 'x'; it has: none"),
        ({"profile": "x", "profiles": {"x": 3}}, "no profile 'x'"),
        ({"profile": "x", "profiles": {"x": {"adress": "a"}}}, "configuration: x: unknown option 'adress' .*'address'"),
        ({"profile": "x" * 1000, "profiles": {}}, "has no profile 'x{98}"),
        (
            {"profile": "lap", "profiles": {"lab": {}}},
            r"no profile 'lap' \(did you mean 'lab'\?\); it has: lab",
        ),
    ],
)
def test_mistakes(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        client(values)
    assert len(str(caught.value)) < 400


def test_logins_for_nats() -> None:
    rows: list[tuple[dict[str, str], dict[str, str], dict[str, str]]] = [
        ({"nkey": "k", "inbox_prefix": "_I"}, {}, {"nkey": "k", "inbox_prefix": "_I"}),
        ({}, {"CREDS": "c"}, {"creds": "c"}),
        ({"user": "u"}, {"CREDS": "c", "PASSWORD": "p"}, {"user": "u", "password": "p"}),
        ({"creds": "c"}, {"PASSWORD": "p"}, {"creds": "c"}),
    ]
    for given, variables, login in rows:
        environ = {f"RPCSTREAM_NATS_{name}": text for name, text in variables.items()}
        assert client({"address": NATS, "nats": given}, environ) == {"address": NATS, "nats": NatsLogin(**login)}


def test_a_login_for_nats_is_shown_at_no_other_address(write: Any) -> None:
    path = write("nats.toml", f'address = "{NATS}"\nnats = {{ creds = "secret" }}')
    for address in ("nats://other/vision", "127.0.0.1:1"):
        assert client(None, {"RPCSTREAM_CONFIG": str(path)}, address=address) == {"address": address}
    assert client(path)["nats"] == NatsLogin(creds=str(path.parent / "secret"))
    assert client({"address": "a"}, {"RPCSTREAM_NATS_CREDS": "c"}) == {"address": "a"}


FILE = """
timeout = 7
profile = "home"

[profiles.home]
address = "home.example:1"
token = "of-home"

[profiles.lab]
address = "tls://lab.example"
ca = "lab.pem"
token_file = "lab.token"
timeout = 3
"""
HOME = {"address": "home.example:1", "token": "of-home", "timeout": 7.0}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder for configurations with the file above in it, readable for its owner alone."""
    folder = tmp_path / "rpcstream"
    folder.mkdir()
    for name, text in (("config.toml", FILE), ("lab.token", "of-lab\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    return tmp_path


def read(here: Path, profile: str | None = None, source: Any = None, **given: Any) -> dict[str, Any]:
    """Variables are those of the keywords in capitals, the others are arguments."""
    variables = {name: value for name, value in given.items() if name.isupper()}
    arguments = {name: value for name, value in given.items() if not name.isupper()}
    environ = {"XDG_CONFIG_HOME": str(here), **variables}
    return client_options(source, arguments, profile=profile, environ=environ)


def test_which_profile_counts(here: Path) -> None:
    """Argument over environment over the file's own; and so for each option."""
    ca = str(here / "rpcstream" / "lab.pem")
    lab = {"address": "tls://lab.example", "tls": TLS(ca=ca), "token": "of-lab", "timeout": 3.0}
    assert read(here) == read(here, "home", RPCSTREAM_PROFILE="lab") == HOME
    assert read(here, RPCSTREAM_PROFILE="lab") == read(here, "lab") == lab
    assert read(here, "lab", timeout=1, RPCSTREAM_TIMEOUT="2") == {**lab, "timeout": 1}
    assert client_options(here / "rpcstream" / "config.toml", profile="lab", environ={}) == lab


def test_where_the_file_stands(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(tmp_path / "none") == client_options(environ={}) == {}
    with pytest.raises(ConfigError, match=r"config\.toml has no profile 'lab'"):
        read(tmp_path / "none", "lab")
    for named in ({"RPCSTREAM_CONFIG": str(tmp_path / "none")}, {"source": tmp_path / "none"}):
        with pytest.raises(FileNotFoundError):
            read(here, **named)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here))
    with Client.from_config(profile="home") as client, Client.from_config({}) as plain:
        assert (client.address, plain.address) == ("home.example:1", "127.0.0.1:8545")
    (here / ".config").mkdir()
    (here / "rpcstream").rename(here / ".config" / "rpcstream")
    for more in ({}, {"XDG_CONFIG_HOME": "relative"}):
        assert client_options(environ={"HOME": str(here), **more})["address"] == "home.example:1"


def test_a_token_is_for_the_address_that_stands_beside_it(here: Path) -> None:
    evil = {"address": "evil.example", "timeout": 7.0}
    for given in ({"address": "evil.example"}, {"host": "evil.example"}, {"RPCSTREAM_ADDRESS": "evil.example"}):
        assert read(here, **given) == evil
    assert "token" not in read(here, RPCSTREAM_PROFILE="lab", address="evil.example")
    assert "tls" not in read(here, address="127.0.0.1:1", RPCSTREAM_CA="x")  # which is for TLS
    assert read(here, address="tls://127.0.0.1:1", RPCSTREAM_CA="x")["tls"] == TLS(ca="x")
    assert read(here, address="tls://127.0.0.1:1", tls="y", RPCSTREAM_CA="x")["tls"] == "y"
    assert read(here, "lab", tls="y")["tls"] == "y"
    # Who names both means both.
    assert read(here, "lab", address="tls://10.0.0.1")["token"] == "of-lab"
    assert "token" not in read(here, RPCSTREAM_PROFILE="lab", RPCSTREAM_ADDRESS="tls://10.0.0.1")
    file = here / "rpcstream" / "config.toml"
    assert read(here, source=file, address="x")["token"] == "of-home"
    # Another port of the same host gets it.
    file.write_text('host = "a"\nport = 1\ntoken = "t"')
    assert read(here, port=2)["token"] == "t"
    assert "token" not in read(here, host="b")
    # A profile does not get the token beside the file's own address.
    file.write_text('address = "a"\ntoken = "of-a"\n[profiles.b]\naddress = "b"\n[profiles.c]\ntimeout = 1')
    assert read(here, "b") == {"address": "b"}
    assert read(here, "c") == {"address": "a", "token": "of-a", "timeout": 1.0}


@pytest.mark.skipif(os.name != "posix", reason="no permissions")
def test_a_token_that_others_can_read(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    for profile, name in (("home", "config.toml"), ("lab", "lab.token")):
        path = here / "rpcstream" / name
        path.chmod(0o644)
        with caplog.at_level(logging.WARNING, "rpcstream.config"):
            read(here, profile)
        path.chmod(0o600)
        said = f"{path} contains a token that other users of this machine can read: run chmod 600 {path}"
        assert caplog.messages == [said]
        caplog.clear()
