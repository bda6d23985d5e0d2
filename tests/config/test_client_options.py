"""The options of a client: its address, its login for NATS, and its profiles with their credentials."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rpcstream import Client, NatsLogin
from rpcstream.client.address import parse_address
from rpcstream.config import ConfigError, client_options

from .conftest import client

#: As in the article of the fourth seed.
CLIENT_OF_THE_SEED = """{
"host": "localhost",
"port": 8080,
"client_id": "client1",
"call_timeout_ms": 30000 // 30 seconds timeout for calls
}"""

ALL = {
    "address": ('"tls://hub.example:8545"', "tls://hub.example:8545"),
    "name": ('"gpu-1"', "gpu-1"),
    "timeout": ("5", 5.0),
    "connect_timeout": ("0.5", 0.5),
    "wait_for": ("10", 10.0),
    "registration_timeout": ("7", 7.0),
    "reconnect": ("true", True),
    "retries": ("2", 2),
    "retry": ('"idempotent"', "idempotent"),
    "pool": ("2", 2),
    "http_connections": ("3", 3),
    "key": ('"/own.key"', "/own.key"),
}


def test_the_file_of_the_seed(write: Any) -> None:
    found = client(write("client.json", CLIENT_OF_THE_SEED))
    assert found == {"address": "localhost:8080", "name": "client1", "timeout": 30.0}


def test_all_there_is(write: Any, tmp_path: Path) -> None:
    more = '\nkeepalive_timeout_ms = 20000\nca = "ca.pem"\ncertificate = "own.pem"'
    files = {"ca": str(tmp_path / "ca.pem"), "certificate": str(tmp_path / "own.pem")}
    found = client(write("client.toml", "\n".join(f"{name} = {text}" for name, (text, _) in ALL.items()) + more))
    assert found == {name: value for name, (_, value) in ALL.items()} | {"keepalive": 20.0, **files}
    none = {"timeout": None, "connect_timeout": None, "wait_for": None}
    assert client({"timeout": 0, "connect_timeout": None, "wait_for": 0}) == none
    codec, backoff = object(), object()
    assert client(codec=codec, reconnect=backoff) == {"codec": codec, "reconnect": backoff}


@pytest.mark.parametrize(
    ("values", "variables", "address"),
    [
        ({"address": "unix:///x"}, {}, "unix:///x"),
        ({"host": "a"}, {}, "a"),
        ({"port": 5}, {}, ":5"),
        ({"host": "a", "port": 5}, {}, "a:5"),
        ({"host": "::1", "port": 5}, {}, "[::1]:5"),
        ({"host": "::1"}, {}, "[::1]"),
        ({"host": "a", "port": 5}, {"RPCSTREAM_ADDRESS": "b"}, "b"),
        ({"host": "a", "port": 5}, {"RPCSTREAM_PORT": "6"}, "a:6"),
        ({"address": "a:5"}, {"RPCSTREAM_PORT": "6"}, ":6"),
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
        *(
            ({"host": each}, "configuration: host must be a name or an IP address")
            for each in ("tls://a", "[::1]", "a/b")
        ),
        ({"adress": "x"}, r"unknown option 'adress' of a client \(did you mean 'address'\?\)"),
        ({"port": 0}, "port must be a whole number from 1 to 65535"),
        ({"address": NATS, "nats_user": "u", "nats_creds": "c"}, "either nats_user or nats_creds, not both"),
        ({"address": NATS, "nats_inbox_prefix": "a.>"}, "the login for NATS: inbox_prefix= is a subject"),
    ],
)
def test_mistakes(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        client(values)


@pytest.mark.parametrize(
    ("values", "variables", "login"),
    [
        ({"nats_nkey": "k"}, {}, {"nkey": "k"}),
        ({"nats_creds": "c", "nats_inbox_prefix": "_I"}, {}, {"creds": "c", "inbox_prefix": "_I"}),
        ({}, {"USER": "u", "PASSWORD": "p"}, {"user": "u", "password": "p"}),
        # The stronger one counts.
        ({"nats_user": "u", "nats_password": "p"}, {"CREDS": "c"}, {"creds": "c"}),
        ({"nats_creds": "c"}, {"PASSWORD": "p"}, {"creds": "c"}),
    ],
)
def test_logins_for_nats(values: dict[str, str], variables: dict[str, str], login: dict[str, str]) -> None:
    environ = {f"RPCSTREAM_NATS_{name}": text for name, text in variables.items()}
    assert client({"address": NATS, **values}, environ) == {"address": NATS, "nats": NatsLogin(**login)}


def test_a_login_for_nats_is_shown_at_no_other_address(write: Any, tmp_path: Path) -> None:
    path = write("nats.toml", f'address = "{NATS}"\nnats_user = "u"\nnats_password_file = "secret"')
    for address in ("nats://other/vision", "127.0.0.1:1"):
        assert client(None, {"RPCSTREAM_CONFIG": str(path)}, address=address) == {"address": address}
    write("secret", "p\n")
    assert client(path)["nats"] == NatsLogin(user="u", password="p")
    path = write("nats.toml", f'address = "{NATS}"\nnats_creds = "vision.creds"')
    assert client(path)["nats"] == NatsLogin(creds=str(tmp_path / "vision.creds"))
    assert client({"address": "a"}, {"RPCSTREAM_NATS_CREDS": "c"}) == {"address": "a"}
    assert client({}, {"RPCSTREAM_NATS_CREDS": "c"}) == {}
    with pytest.raises(ConfigError, match="argument nats_creds is for addresses nats://"):
        client({"address": "a"}, nats_creds="c")
    with_tls = {"address": "nats+tls://a/vision", "ca": "ca.pem"}
    assert client(with_tls) == with_tls


def test_a_clients_configuration_imports_no_asyncio() -> None:
    script = "import sys, rpcstream.config as c; c.client_options({'host': 'a'}); print('asyncio' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"


# -- profiles -------------------------------------------------------------------------------------------------------

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
    lab = {"address": "tls://lab.example", "ca": ca, "token": "of-lab", "timeout": 3.0}
    assert read(here) == read(here, "home", RPCSTREAM_PROFILE="lab") == HOME
    assert read(here, RPCSTREAM_PROFILE="lab") == read(here, "lab") == lab
    assert read(here, "lab", timeout=1, RPCSTREAM_TIMEOUT="2") == {**lab, "timeout": 1}
    assert read(here, "lab", RPCSTREAM_TIMEOUT="2") == {**lab, "timeout": 2}
    assert read(here, "lab", RPCSTREAM_CERT="c.pem") == {**lab, "certificate": "c.pem"}
    assert client_options({"profiles": {"a": {"host": "x"}}}, profile="a", environ={}) == {"address": "x"}
    assert client_options(here / "rpcstream" / "config.toml", profile="lab", environ={}) == lab


@pytest.mark.parametrize(
    ("text", "profile", "complaint"),
    [
        (FILE, "lap", r"argument profile: .* has no profile 'lap' \(did you mean 'lab'\?\); it has: home, lab"),
        (FILE, "x" * 1000, "has no profile"),
        ("profile = 3", None, "profile must be the name of a profile, got int"),
        ('profile = "x"', None, "profile: .* has no profile 'x'; it has: none"),
        ('profile = "x"\nprofiles = 3', None, "profiles must be a table of tables, got int"),
        ('profile = "x"\n[profiles]\nx = 3', None, "the profile 'x' must be a table, got int"),
        ('profile = "x"\n[profiles.x]\nadress = "a"', None, r"config\.toml: x: unknown option 'adress' .*'address'"),
        ('profile = "x"\n[profiles.x]\ntimeout = "a"', None, r"config\.toml: x: timeout must be a number of seconds"),
        ("timeout = \n", None, r"config\.toml: this is not TOML: .*line 1"),
    ],
)
def test_mistakes_in_profiles(here: Path, text: str, profile: str | None, complaint: str) -> None:
    (here / "rpcstream" / "config.toml").write_text(text)
    with pytest.raises(ConfigError, match=complaint) as caught:
        read(here, profile)
    assert len(str(caught.value)) < 400


def test_where_the_file_stands(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(tmp_path / "none") == client_options(environ={}) == {}
    with pytest.raises(ConfigError, match=r"no configuration file with a profile \(.*config\.toml\)"):
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
    # Who names both means both.
    assert read(here, "lab", address="tls://10.0.0.1")["token"] == "of-lab"
    assert read(here, RPCSTREAM_PROFILE="lab", RPCSTREAM_ADDRESS="tls://10.0.0.1")["token"] == "of-lab"
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


def test_files_for_tls_are_left_out_for_a_plain_address_that_takes_precedence(here: Path) -> None:
    assert read(here, "home", RPCSTREAM_CA="x") == {**HOME, "ca": "x"}  # which is an error then
    assert "ca" not in read(here, address="127.0.0.1:1", RPCSTREAM_CA="x")
    assert read(here, address="tls://127.0.0.1:1", RPCSTREAM_CA="x")["ca"] == "x"
    assert read(here, address="127.0.0.1:1", ca="x")["ca"] == "x"


@pytest.mark.skipif(os.name != "posix", reason="no permissions")
@pytest.mark.parametrize(("profile", "name"), [("home", "config.toml"), ("lab", "lab.token")])
def test_a_token_that_others_can_read(here: Path, profile: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    path = here / "rpcstream" / name
    with caplog.at_level(logging.WARNING, "rpcstream.config"):
        read(here, profile)
        assert caplog.messages == []
        path.chmod(0o644)
        read(here, profile)
    said = f"{path} holds a token, and other users of this machine may read it: chmod 600 {path}"
    assert caplog.messages == [said]
