"""Profiles in a client's file: which one counts, where the file stands, and which credentials go where."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rpcstream import Client
from rpcstream.config import ConfigError, client_options

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


class TestWhichProfile:
    def test_argument_over_environment_over_the_files_own(self, here: Path) -> None:
        lab = {
            "address": "tls://lab.example",
            "ca": str(here / "rpcstream" / "lab.pem"),
            "token": "of-lab",
            "timeout": 3.0,
        }
        home = {"address": "home.example:1", "token": "of-home", "timeout": 7.0}
        assert read(here) == home
        assert read(here, RPCSTREAM_PROFILE="lab") == lab
        assert read(here, "lab") == lab
        assert read(here, "home", RPCSTREAM_PROFILE="lab") == home

    def test_option_over_environment_over_profile_over_the_rest_of_the_file(self, here: Path) -> None:
        assert read(here, "lab", timeout=1, RPCSTREAM_TIMEOUT="2")["timeout"] == 1
        assert read(here, "lab", RPCSTREAM_TIMEOUT="2")["timeout"] == 2
        assert read(here, "lab", RPCSTREAM_CERT="c.pem")["certificate"] == "c.pem"
        assert read(here, "lab")["timeout"] == 3
        assert read(here, "home")["timeout"] == 7

    def test_a_profile_in_a_mapping_and_in_a_file_that_is_named(self, here: Path) -> None:
        profiles = {"profiles": {"a": {"host": "x"}}}
        assert client_options(profiles, profile="a", environ={}) == {"address": "x"}
        assert client_options(here / "rpcstream" / "config.toml", profile="lab", environ={})["token"] == "of-lab"

    @pytest.mark.parametrize(
        ("profile", "complaint"),
        [
            (
                "lap",
                r"argument profile: .*config\.toml has no profile 'lap' \(did you mean 'lab'\?\); it has: home, lab",
            ),
            ("x" * 1000, "has no profile"),
        ],
    )
    def test_an_unknown_one(self, here: Path, profile: str, complaint: str) -> None:
        with pytest.raises(ConfigError, match=complaint) as caught:
            read(here, profile)
        assert len(str(caught.value)) < 400

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("profile = 3", "profile must be the name of a profile, got int"),
            ('profile = "x"', "profile: .* has no profile 'x'; it has: none"),
            ('profile = "x"\nprofiles = 3', "profiles must be a table of tables, got int"),
            ('profile = "x"\n[profiles]\nx = 3', "the profile 'x' must be a table, got int"),
            ('profile = "x"\n[profiles.x]\nadress = "a"', r"config\.toml: x: unknown option 'adress' .*'address'"),
            ('profile = "x"\n[profiles.x]\ntimeout = "a"', r"config\.toml: x: timeout must be a number of seconds"),
            ("timeout = \n", r"config\.toml: this is not TOML: .*line 1"),
        ],
    )
    def test_a_file_that_is_wrong(self, here: Path, text: str, complaint: str) -> None:
        (here / "rpcstream" / "config.toml").write_text(text)
        with pytest.raises(ConfigError, match=complaint):
            read(here)


class TestWhere:
    def test_there_need_not_be_a_file(self, tmp_path: Path) -> None:
        assert read(tmp_path) == {}
        assert client_options(environ={}) == {}
        with pytest.raises(ConfigError, match=r"no configuration file with a profile \(.*config\.toml\)"):
            read(tmp_path, "lab")

    def test_one_that_is_named_must_be_there(self, here: Path, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            read(here, RPCSTREAM_CONFIG=str(tmp_path / "none"))
        with pytest.raises(FileNotFoundError):
            read(here, source=tmp_path / "none")

    def test_in_the_home_folder(self, here: Path) -> None:
        (here / ".config").mkdir()
        (here / "rpcstream").rename(here / ".config" / "rpcstream")
        assert client_options(environ={"HOME": str(here)})["address"] == "home.example:1"
        assert client_options(environ={"HOME": str(here), "XDG_CONFIG_HOME": "relative"})["address"] == "home.example:1"

    def test_of_a_client(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(here))
        with Client.from_config(profile="home") as client, Client.from_config({}) as plain:
            assert (client.address, plain.address) == ("home.example:1", "127.0.0.1:8545")


class TestCredentials:
    """A token is for the address that stands beside it."""

    def test_another_address_does_not_get_the_token_of_the_default_profile(self, here: Path) -> None:
        assert read(here, address="evil.example") == {"address": "evil.example", "timeout": 7.0}
        assert read(here, host="evil.example") == {"address": "evil.example", "timeout": 7.0}
        assert read(here, RPCSTREAM_ADDRESS="evil.example") == {"address": "evil.example", "timeout": 7.0}
        assert "token" not in read(here, RPCSTREAM_PROFILE="lab", address="evil.example")

    def test_who_names_both_means_both(self, here: Path) -> None:
        assert read(here, "lab", address="tls://10.0.0.1")["token"] == "of-lab"
        assert read(here, RPCSTREAM_PROFILE="lab", RPCSTREAM_ADDRESS="tls://10.0.0.1")["token"] == "of-lab"
        assert read(here, source=here / "rpcstream" / "config.toml", address="x")["token"] == "of-home"

    def test_another_port_of_the_same_host_gets_it(self, here: Path) -> None:
        (here / "rpcstream" / "config.toml").write_text('host = "a"\nport = 1\ntoken = "t"')
        assert read(here, port=2)["token"] == "t"
        assert "token" not in read(here, host="b")

    def test_a_profile_does_not_get_the_token_beside_the_files_own_address(self, here: Path) -> None:
        text = 'address = "a"\ntoken = "of-a"\n[profiles.b]\naddress = "b"\n[profiles.c]\ntimeout = 1'
        (here / "rpcstream" / "config.toml").write_text(text)
        assert read(here, "b") == {"address": "b"}
        assert read(here, "c") == {"address": "a", "token": "of-a", "timeout": 1.0}

    def test_files_for_tls_are_left_out_for_a_plain_address_that_takes_precedence(self, here: Path) -> None:
        assert read(here, "home", RPCSTREAM_CA="x") == {**read(here, "home"), "ca": "x"}  # which is an error then
        assert "ca" not in read(here, address="127.0.0.1:1", RPCSTREAM_CA="x")
        assert read(here, address="tls://127.0.0.1:1", RPCSTREAM_CA="x")["ca"] == "x"
        assert read(here, address="127.0.0.1:1", ca="x")["ca"] == "x"

    @pytest.mark.skipif(os.name != "posix", reason="no permissions")
    @pytest.mark.parametrize(("profile", "name"), [("home", "config.toml"), ("lab", "lab.token")])
    def test_a_token_that_others_can_read(
        self, here: Path, profile: str, name: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "rpcstream.config"):
            read(here, profile)
            assert caplog.messages == []
            (here / "rpcstream" / name).chmod(0o644)
            read(here, profile)
        path = here / "rpcstream" / name
        assert caplog.messages == [
            f"{path} holds a token, and other users of this machine may read it: chmod 600 {path}"
        ]


def test_a_clients_configuration_imports_no_asyncio() -> None:
    script = "import sys, rpcstream.config as c; c.client_options({'host': 'a'}); print('asyncio' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
