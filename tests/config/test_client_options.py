"""The options of a client."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rpcstream.config import ConfigError
from rpcstream.nats.options import NatsLogin

from .shortcuts import client

#: As in the article of the fourth seed.
CLIENT_OF_THE_SEED = """{
"host": "localhost",
"port": 8080,
"client_id": "client1",
"call_timeout_ms": 30000 // 30 seconds timeout for calls
}"""


class TestClient:
    def test_the_file_of_the_seed(self, write: Any) -> None:
        found = client(write("client.json", CLIENT_OF_THE_SEED))
        assert found == {"address": "localhost:8080", "name": "client1", "timeout": 30.0}

    @pytest.mark.parametrize(
        ("values", "address"),
        [
            ({"address": "unix:///x"}, "unix:///x"),
            ({"host": "a"}, "a"),
            ({"port": 5}, ":5"),
            ({"host": "a", "port": 5}, "a:5"),
            ({"host": "::1", "port": 5}, "[::1]:5"),
            ({"host": "::1"}, "[::1]"),
        ],
    )
    def test_addresses(self, values: dict[str, Any], address: str) -> None:
        from rpcstream.client.address import parse_address

        assert client(values) == {"address": address}
        parse_address(address)

    def test_a_stronger_address(self) -> None:
        assert client({"host": "a", "port": 5}, {"RPCSTREAM_ADDRESS": "b"}) == {"address": "b"}
        assert client({"host": "a", "port": 5}, {"RPCSTREAM_PORT": "6"}) == {"address": "a:6"}
        assert client({"address": "a:5"}, {"RPCSTREAM_PORT": "6"}) == {"address": ":6"}
        with pytest.raises(ConfigError, match="either"):
            client({"address": "a", "port": 5})

    @pytest.mark.parametrize("host", ["tls://a", "[::1]", "a/b"])
    def test_a_host_that_is_more(self, host: str) -> None:
        with pytest.raises(ConfigError, match="configuration: host must be a name or an IP address"):
            client({"host": host})

    def test_all_there_is(self, write: Any, tmp_path: Path) -> None:
        text = """
        address = "tls://hub.example:8545"
        name = "gpu-1"
        timeout = 5
        connect_timeout_ms = 500
        keepalive_timeout = 20
        wait_for = 10
        registration_timeout = 7
        reconnect = true
        retries = 2
        retry = "idempotent"
        pool = 2
        http_connections = 3
        ca = "ca.pem"
        certificate = "own.pem"
        key = "/own.key"
        """
        assert client(write("client.toml", text)) == {
            "address": "tls://hub.example:8545",
            "name": "gpu-1",
            "timeout": 5.0,
            "connect_timeout": 0.5,
            "keepalive": 20.0,
            "wait_for": 10.0,
            "registration_timeout": 7.0,
            "reconnect": True,
            "retries": 2,
            "retry": "idempotent",
            "pool": 2,
            "http_connections": 3,
            "ca": str(tmp_path / "ca.pem"),
            "certificate": str(tmp_path / "own.pem"),
            "key": os.path.join(tmp_path, "/own.key"),
        }

    def test_times_without_limit(self) -> None:
        assert client({"timeout": 0, "connect_timeout": None}) == {"timeout": None, "connect_timeout": None}
        assert client({"wait_for": 0}) == {"wait_for": None}

    def test_what_only_a_program_can_say_is_passed_on(self) -> None:
        codec, backoff = object(), object()
        assert client(codec=codec, reconnect=backoff) == {"codec": codec, "reconnect": backoff}

    def test_wrong_ones(self) -> None:
        with pytest.raises(ConfigError, match=r"unknown option 'adress' of a client \(did you mean 'address'\?\)"):
            client({"adress": "x"})
        with pytest.raises(ConfigError, match="port must be a whole number from 1 to 65535"):
            client({"port": 0})


class TestLoginsForNats:
    ADDRESS = "nats://a,b:4223/vision"

    def test_of_every_kind(self, write: Any, tmp_path: Path) -> None:
        path = write("nats.toml", f'address = "{self.ADDRESS}"\nnats_creds = "vision.creds"\nnats_inbox_prefix = "_I"')
        login = NatsLogin(creds=str(tmp_path / "vision.creds"), inbox_prefix="_I")
        assert client(path) == {"address": self.ADDRESS, "nats": login}
        assert client({"address": self.ADDRESS, "nats_nkey": "k"})["nats"] == NatsLogin(nkey="k")
        variables = {"RPCSTREAM_NATS_USER": "u", "RPCSTREAM_NATS_PASSWORD": "p"}
        assert client({"address": self.ADDRESS}, variables)["nats"] == NatsLogin(user="u", password="p")
        (tmp_path / "secret").write_text("p\n")
        (tmp_path / "secret").chmod(0o600)
        path = write("nats.toml", f'address = "{self.ADDRESS}"\nnats_user = "u"\nnats_password_file = "secret"')
        assert client(path)["nats"] == NatsLogin(user="u", password="p")

    def test_the_stronger_one_counts(self) -> None:
        file = {"address": self.ADDRESS, "nats_user": "u", "nats_password": "p"}
        assert client(file, {"RPCSTREAM_NATS_CREDS": "c"})["nats"] == NatsLogin(creds="c")
        assert client({"address": self.ADDRESS, "nats_creds": "c"}, {"RPCSTREAM_NATS_PASSWORD": "p"})["nats"] == (
            NatsLogin(creds="c")
        )
        with pytest.raises(ConfigError, match="either nats_user or nats_creds, not both"):
            client({**file, "nats_creds": "c"})

    @pytest.mark.parametrize("address", ["nats://other/vision", "127.0.0.1:1"])
    def test_it_is_shown_at_no_other_address(self, write: Any, address: str) -> None:
        path = write("nats.toml", f'address = "{self.ADDRESS}"\nnats_user = "u"\nnats_password_file = "secret"')
        assert client(None, {"RPCSTREAM_CONFIG": str(path)}, address=address) == {"address": address}

    def test_variables_are_not_for_other_addresses(self) -> None:
        assert client({"address": "a"}, {"RPCSTREAM_NATS_CREDS": "c"}) == {"address": "a"}
        assert client({}, {"RPCSTREAM_NATS_CREDS": "c"}) == {}
        with pytest.raises(ConfigError, match="argument nats_creds is for addresses nats://"):
            client({"address": "a"}, nats_creds="c")

    def test_files_of_tls_are_for_nats_with_tls(self) -> None:
        file = {"address": "nats+tls://a/vision", "ca": "ca.pem"}
        assert client(file) == file

    def test_a_wrong_prefix(self) -> None:
        with pytest.raises(ConfigError, match="the login for NATS: inbox_prefix= is a subject"):
            client({"address": self.ADDRESS, "nats_inbox_prefix": "a.>"})
