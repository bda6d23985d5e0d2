"""The options of a hub: from all sources, with users, secrets and certificates."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import trustme

from rpcstream import Limits
from rpcstream.config import ConfigError, User, read_tls
from rpcstream.hub import Hub
from rpcstream.tls import TLS

from ..internals import ping_interval
from .shortcuts import SECRET, client, hub

#: As in the article of the fourth seed.
SERVER_OF_THE_SEED = """{
"port": 8080,
"thread_count": 4,
"keepalive_timeout_ms": 5000, // 5 seconds timeout for idle connections
"registration_timeout_ms": 10000, // 10 seconds for client registration
"max_message_size": 4096
}"""


class TestHub:
    def test_nothing_given_is_nothing_set(self) -> None:
        config = hub()
        assert (config.options, config.where, config.rules, config.log_level) == ({}, {}, None, None)

    def test_the_file_of_the_seed(self, write: Any, caplog: pytest.LogCaptureFixture) -> None:
        config = hub(write("server.json", SERVER_OF_THE_SEED))
        assert config.where == {"port": 8080}
        assert config.options == {
            "keepalive_timeout": 5.0,
            "registration_timeout": 10.0,
            "limits": Limits(max_message_size=4096),
        }
        (said,) = caplog.messages
        assert "thread_count sets nothing: a hub is one process with one event loop" in said

    def test_all_there_is(self, write: Any) -> None:
        text = """
        host = "::"
        port = 0
        unix_mode = "660"
        call_timeout = 30
        keepalive_timeout = 0
        ping_interval = 2.5
        registration_timeout_ms = 1500
        balance = "round_robin"
        idle_timeout = 0
        max_calls = 5
        write_timeout_ms = 1
        hosts = ["a.example"]
        origins = "https://a.example"
        path = ["/", "/rpc"]
        drain_timeout = 0
        drain_delay = 1
        grace = 5
        event_queue = 5
        event_policy = "disconnect"
        title = "gpus"
        debug = true
        log_level = "info"
        token = "abc"
        [[rules]]
        who = "gpu-*"
        register = ["vectorize"]
        """
        config = hub(write("hub.toml", text))
        assert config.where == {"host": "::", "port": 0, "unix_mode": 0o660}
        assert config.options == {
            "call_timeout": 30.0,
            "keepalive_timeout": None,
            "ping_interval": 2.5,
            "registration_timeout": 1.5,
            "balance": "round_robin",
            "limits": Limits(idle_timeout=None, max_calls=5, write_timeout=0.001),
            "hosts": ["a.example"],
            "origins": ["https://a.example"],
            "path": ["/", "/rpc"],
            "drain_timeout": 0.0,
            "drain_delay": 1.0,
            "grace": 5.0,
            "event_queue": 5,
            "event_policy": "disconnect",
            "title": "gpus",
            "debug": True,
            "token": "abc",
        }
        assert config.rules == [{"who": "gpu-*", "register": ["vectorize"]}]
        assert config.rules_place.endswith("hub.toml: rules")
        assert config.log_level == "info"
        assert "abc" not in repr(config)

    @pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Limits)])
    def test_every_limit_is_an_option(self, field: str) -> None:
        for options in (hub({field: 100}).options, client({field: 100})):
            assert options == {"limits": Limits(**{field: 100})}

    def test_limits_of_the_program(self) -> None:
        base = Limits(max_calls=3, max_batch=7)
        assert hub(limits=base).options == {"limits": base}
        assert hub({"max_calls": 5}, limits=base, max_depth=9).options == {
            "limits": Limits(max_calls=5, max_batch=7, max_depth=9)
        }
        with pytest.raises(TypeError, match="limits must be Limits, got dict"):
            hub(limits={})

    def test_what_only_a_program_can_say_is_passed_on(self) -> None:
        def authenticate(credentials: Any) -> None: ...

        rules, tls = object(), TLS(certificate="x")
        config = hub(
            {"token": "abc", "rules": []},
            {"RPCSTREAM_HUB_TLS_KEY": "y"},
            authenticate=authenticate,
            rules=rules,
            tls=tls,
        )
        assert config.options == {"authenticate": authenticate, "rules": rules, "tls": tls}
        with pytest.raises(ConfigError, match="argument authenticate: either this or token, not both"):
            hub(authenticate=authenticate, token="abc")

    def test_pings_come_before_the_keepalive_timeout(self) -> None:
        for timeout, interval in ((6, 2), (600, 20)):
            assert hub({"keepalive_timeout": timeout}).options == {"keepalive_timeout": timeout}
            assert ping_interval(Hub.from_config({"keepalive_timeout": timeout})) == interval
        assert hub({"keepalive_timeout": 0}).options == {"keepalive_timeout": None}
        assert hub({"keepalive_timeout": 6, "ping_interval": 0}).options == {
            "keepalive_timeout": 6.0,
            "ping_interval": None,
        }

    def test_one_source_gives_a_place_only_once(self) -> None:
        for first, second in [("host", "unix"), ("unix", "host")]:
            with pytest.raises(ConfigError, match=r"configuration: .* either .* or .*, not both"):
                hub({first: "a", second: "b"})
        with pytest.raises(ConfigError, match=r"PORT: either port or unix, not both$"):
            hub(None, {"RPCSTREAM_HUB_PORT": "1", "RPCSTREAM_HUB_UNIX": "/x"})
        with pytest.raises(ConfigError, match="either token"):
            hub({"token": "a", "token_file": "b"})
        with pytest.raises(
            ConfigError, match=r"call_timeout_ms: call_timeout is given already \(configuration: call_t"
        ):
            hub({"call_timeout": 1, "call_timeout_ms": 1})

    def test_a_stronger_source_takes_the_place_of_others(self) -> None:
        assert hub({"host": "a", "port": 1}, unix="/x").where == {"unix": "/x"}
        assert hub({"unix": "/x"}, {"RPCSTREAM_HUB_PORT": "2"}).where == {"port": 2}
        assert hub({"unix": "/x"}, {"RPCSTREAM_HUB_UNIX": "/y"}, host="a").where == {"host": "a"}
        # What is out itself puts nothing out.
        assert hub({"host": "a"}, {"RPCSTREAM_HUB_UNIX": "/y"}, port=3).where == {"host": "a", "port": 3}
        assert hub({"host": "a", "port": 1}, {"RPCSTREAM_HUB_PORT": "2"}, port=3).where == {"host": "a", "port": 3}


class TestSecrets:
    def test_a_token_in_a_file_of_its_own(self, write: Any) -> None:
        path = write("token", f"{SECRET}\n")
        config = write("hub.toml", 'token_file = "token"')
        assert hub(config).options == client(config) == {"token": SECRET}
        assert hub(token_file=path).options == {"token": SECRET}
        assert hub(None, {"RPCSTREAM_HUB_TOKEN_FILE": str(path)}).options == {"token": SECRET}
        assert hub(config, {"RPCSTREAM_HUB_TOKEN": "other"}).options == {"token": "other"}
        assert hub({"token": "other"}, {"RPCSTREAM_HUB_TOKEN_FILE": str(path)}).options == {"token": SECRET}
        assert client({"token": "other"}, {"RPCSTREAM_TOKEN": "mine"}) == {"token": "mine"}

    @pytest.mark.parametrize("data", [b"", b" \n", b"two words", b"two\nlines", b"\xff", b"x" * 100_000, b"a\0b"])
    def test_a_file_without_one(self, data: bytes, write: Any) -> None:
        path = write("token", data)
        with pytest.raises(
            ConfigError, match=f"^configuration: token_file: '{path}' (must hold one token|holds no tex)"
        ):
            hub({"token_file": str(path)})
        with pytest.raises(ConfigError, match=r"^argument token_file: cannot read '/none': No such file"):
            hub(token_file="/none")

    @pytest.mark.parametrize("wrong", [[SECRET], {"x": SECRET}, 5, ""])
    def test_no_token_is_ever_shown(self, wrong: Any) -> None:
        for read in (hub, client):
            with pytest.raises(ConfigError) as caught:
                read({"token": wrong})
            assert str(caught.value) == (
                f"configuration: token must be text that is not empty, got {type(wrong).__name__}"
            )
            assert caught.value.__cause__ is None

    def test_no_token_by_argument(self) -> None:
        assert hub({"token": "abc"}, token=None).options == {}


class TestUsers:
    def test_what_a_file_says(self, write: Any) -> None:
        write("gpu.token", SECRET)
        text = """
        [[users]]
        name = "gpu-1"
        token_file = "gpu.token"
        roles = ["worker"]
        [[users]]
        name = "ada"
        token = "abc"
        certificate = "ada.example"
        roles = "admin"
        """
        config = hub(write("hub.toml", text))
        assert config.users == (
            User(name="gpu-1", token=SECRET, roles=("worker",)),
            User(name="ada", token="abc", certificate="ada.example", roles=("admin",)),
        )
        assert SECRET not in repr(config) + repr(config.users)

    def test_instead_of_one_token(self) -> None:
        users = [{"name": "ada", "token": "abc"}]
        assert hub({"users": users}).options == {}
        assert hub({"token": "x"}, users=users).users == (User(name="ada", token="abc"),)
        assert hub({"users": users}, {"RPCSTREAM_HUB_TOKEN": "x"}).users is None
        assert hub({"users": users}, authenticate=len).users is None
        assert hub({"users": []}).users == ()
        for other in ("token", "token_file"):
            with pytest.raises(ConfigError, match="not both"):
                hub({"users": users, other: "x"})
        with pytest.raises(ConfigError, match="either this or users"):
            hub(users=users, authenticate=len)

    @pytest.mark.parametrize(
        ("table", "words"),
        [
            ({"token": SECRET}, "user 1: name is missing"),
            ({"name": "", "token": SECRET}, "user 1: name must be text that is not empty, got str"),
            ({"name": "a"}, "user 1: needs a token, a token_file or a certificate"),
            ({"name": "a", "token": SECRET, "token_file": "x"}, "one token only"),
            ({"name": "a", "token": [SECRET]}, "user 1: token must be text that is not empty, got list"),
            ({"name": "a", "token": f"{SECRET} x"}, "user 1: a token has no blanks"),
            ({"name": "a", "token": SECRET, "role": "x"}, "user 1: unknown field 'role' (did you mean 'roles'?)"),
            ({"name": "a", "token": SECRET, "roles": [1]}, "user 1: roles must be a text, or a list of texts"),
            ({"name": "a", "token_file": "/none"}, "user 1: token_file: cannot read '/none'"),
        ],
    )
    def test_tables_that_are_no_users(self, table: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            hub({"users": [table]})
        assert words in str(caught.value)
        assert SECRET not in str(caught.value)

    def test_who_cannot_be_told_apart(self) -> None:
        for key in ("token", "certificate"):
            with pytest.raises(ConfigError, match=f"users 'a' and 'b' have the same {key}") as caught:
                hub({"users": [{"name": "a", key: SECRET}, {"name": "b", key: SECRET}]})
            assert SECRET not in str(caught.value)


class TestTls:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        issued = authority.issue_cert("localhost")
        issued.private_key_pem.write_to_path(tmp_path / "server.key")
        issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
        return tmp_path

    def test_files_are_seen_from_the_folder_of_the_configuration(self, folder: Path) -> None:
        path = folder / "hub.toml"
        path.write_text('[tls]\ncertificate = "server.pem"\nkey = "server.key"\nca = "ca.pem"\n')
        files = {name: str(folder / file) for name, file in [("certificate", "server.pem"), ("key", "server.key")]}
        assert hub(path).options == {"tls": TLS(**files, client_ca=str(folder / "ca.pem"))}
        other = str(folder / "ca.pem")
        with pytest.raises(ConfigError, match="argument tls_certificate: no certificate with its key"):
            hub(path, tls_certificate=other)
        assert hub(
            None, {"RPCSTREAM_HUB_TLS_CERTIFICATE": files["certificate"]}, tls={"key": files["key"]}
        ).options == {"tls": TLS(**files)}

    def test_files_that_are_none(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match=r"no certificate with its key: .*No such file.*/none"):
            hub({"tls": {"certificate": "/none"}})
        with pytest.raises(ConfigError, match="here: no certificate with its key"):
            read_tls("here", certificate=str(folder / "server.pem"))


class TestNats:
    """How a hub joins others on NATS: the table `nats`."""

    def test_a_table(self, write: Any, tmp_path: Path) -> None:
        text = """
        [nats]
        url = "nats://one:4222,two"
        service = "vision"
        creds = "hub.creds"
        """
        config = hub(write("hub.toml", text))
        creds = str(tmp_path / "hub.creds")
        assert config.nats == {"url": "nats://one:4222,two", "service": "vision", "creds": creds}
        assert not config.options

    def test_the_environment(self) -> None:
        environ = {"RPCSTREAM_HUB_NATS_URL": "nats://one", "RPCSTREAM_HUB_NATS_PASSWORD": SECRET}
        config = hub(environ=environ)
        assert config.nats == {"url": "nats://one", "password": SECRET}
        assert SECRET not in repr(config)

    def test_an_argument_that_says_none(self) -> None:
        config = hub({"nats": {"url": "nats://one"}}, nats=None)
        assert config.nats is None
        assert not config.options

    def test_it_joins(self) -> None:
        pytest.importorskip("nats")
        made = Hub.from_config({"nats": {"url": "nats://127.0.0.1:1", "user": "hub", "password": SECRET}})
        assert made.stats()["nats"] == {"connected": False, "group": "hub"}

    @pytest.mark.parametrize(
        ("table", "reason"),
        [
            ({"service": "vision"}, "needs an address"),
            ({"url": "127.0.0.1:4222"}, "begins with nats://"),
            ({"url": "nats://one", "service": "a.b"}, "up to 64 letters"),
            ({"url": "nats://one", "creds": "a", "nkey": "b"}, "one of creds, nkey and user"),
            ({"url": "nats://one", "ca": "/no/such/file"}, "ca="),
            ({"url": "nats://one", "cred": "x"}, "unknown option 'cred'"),
        ],
    )
    def test_mistakes(self, table: dict[str, str], reason: str) -> None:
        pytest.importorskip("nats")
        with pytest.raises(ConfigError, match=reason) as raised:
            Hub.from_config({"nats": table})
        assert str(raised.value).startswith("configuration:")

    def test_it_is_used_when_the_hub_is_restarted(self, write: Any, caplog: pytest.LogCaptureFixture) -> None:
        pytest.importorskip("nats")
        path = write("hub.toml", '[nats]\nurl = "nats://one"')
        made = Hub.from_config(path)
        write("hub.toml", '[nats]\nurl = "nats://two"')
        made.reload()
        assert any("used when the hub is restarted: nats" in message for message in caplog.messages)
