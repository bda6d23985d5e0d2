"""The options of a hub: what is set, users, secrets, certificates and NATS."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
import trustme

from rpcstream import AsyncClient, Client, Limits
from rpcstream.config import ConfigError, User, read_tls
from rpcstream.hub import Hub
from rpcstream.tls import TLS

from .conftest import SECRET, client, hub

#: As in the article of the fourth seed.
SERVER_OF_THE_SEED = """{
"port": 8080,
"thread_count": 4,
"keepalive_timeout_ms": 5000, // 5 seconds timeout for idle connections
"registration_timeout_ms": 10000, // 10 seconds for client registration
"max_message_size": 4096
}"""

#: Each option as a file has it, and what is set by it.
ALL: dict[str, tuple[str, Any]] = {
    "call_timeout": ("30", 30.0),
    "keepalive_timeout": ("0", None),
    "ping_interval": ("2.5", 2.5),
    "registration_timeout": ("1.5", 1.5),
    "balance": ('"round_robin"', "round_robin"),
    "hosts": ('["a.example"]', ["a.example"]),
    "origins": ('"https://a.example"', ["https://a.example"]),
    "path": ('["/", "/rpc"]', ["/", "/rpc"]),
    "drain_timeout": ("0", 0.0),
    "drain_delay": ("1", 1.0),
    "grace": ("5", 5.0),
    "event_queue": ("5", 5),
    "event_policy": ('"disconnect"', "disconnect"),
    "title": ('"gpus"', "gpus"),
    "debug": ("true", True),
    "token": ('"abc"', "abc"),
}
MORE = """
host = "::"
port = 0
unix_mode = "660"
idle_timeout = 0
max_calls = 5
write_timeout_ms = 1
log_level = "info"
[[rules]]
who = "gpu-*"
register = ["vectorize"]
"""


def test_the_file_of_the_seed(write: Any, caplog: pytest.LogCaptureFixture) -> None:
    config = hub(write("server.json", SERVER_OF_THE_SEED))
    assert config.where == {"port": 8080}
    limits = Limits(max_message_size=4096)
    assert config.options == {"keepalive_timeout": 5.0, "registration_timeout": 10.0, "limits": limits}
    (said,) = caplog.messages
    assert "thread_count sets nothing: a hub is one process with one event loop" in said


def test_all_there_is(write: Any) -> None:
    config = hub(write("hub.toml", "\n".join(f"{name} = {text}" for name, (text, _) in ALL.items()) + MORE))
    limits = Limits(idle_timeout=None, max_calls=5, write_timeout=0.001)
    assert config.options == {name: value for name, (_, value) in ALL.items()} | {"limits": limits}
    assert config.where == {"host": "::", "port": 0, "unix_mode": 0o660}
    assert config.rules == [{"who": "gpu-*", "register": ["vectorize"]}]
    assert config.rules_place.endswith("hub.toml: rules")
    assert config.log_level == "info"
    assert "abc" not in repr(config)
    config = hub()
    assert (config.options, config.where, config.rules, config.log_level) == ({}, {}, None, None)
    assert hub({"keepalive_timeout": 6, "ping_interval": 0}).options == {"keepalive_timeout": 6, "ping_interval": None}
    config = hub()
    assert (config.options, config.where, config.rules, config.log_level) == ({}, {}, None, None)
    assert hub({"keepalive_timeout": 6, "ping_interval": 0}).options == {"keepalive_timeout": 6, "ping_interval": None}


def test_every_limit_is_an_option() -> None:
    for field in [field.name for field in dataclasses.fields(Limits)]:
        for options in (hub({field: 100}).options, client({field: 100})):
            assert options == {"limits": Limits(**{field: 100})}


def test_what_only_a_program_can_say_is_passed_on() -> None:
    base = Limits(max_calls=3, max_batch=7)
    assert hub(limits=base).options == {"limits": base}
    found = hub({"max_calls": 5}, limits=base, max_depth=9).options
    assert found == {"limits": Limits(max_calls=5, max_batch=7, max_depth=9)}
    with pytest.raises(TypeError, match="limits must be Limits, got dict"):
        hub(limits={})
    given = {"authenticate": lambda credentials: None, "rules": object(), "tls": TLS(certificate="x")}
    assert hub({"token": "abc", "rules": []}, {"RPCSTREAM_HUB_TLS_KEY": "y"}, **given).options == given
    with pytest.raises(ConfigError, match="argument authenticate: either this or token, not both"):
        hub(authenticate=given["authenticate"], token="abc")


@pytest.mark.parametrize(
    ("source", "environ", "arguments", "where"),
    [
        ({"host": "a", "port": 1}, {}, {"unix": "/x"}, {"unix": "/x"}),
        ({"unix": "/x"}, {"PORT": "2"}, {}, {"port": 2}),
        ({"unix": "/x"}, {"UNIX": "/y"}, {"host": "a"}, {"host": "a"}),
        # What is out itself puts nothing out.
        ({"host": "a"}, {"UNIX": "/y"}, {"port": 3}, {"host": "a", "port": 3}),
        ({"host": "a", "port": 1}, {"PORT": "2"}, {"port": 3}, {"host": "a", "port": 3}),
    ],
)
def test_a_stronger_source_takes_the_place_of_others(source: Any, environ: Any, arguments: Any, where: Any) -> None:
    assert hub(source, {f"RPCSTREAM_HUB_{name}": text for name, text in environ.items()}, **arguments).where == where
    with pytest.raises(ConfigError, match=r"PORT: either port or unix, not both$"):
        hub(None, {"RPCSTREAM_HUB_PORT": "1", "RPCSTREAM_HUB_UNIX": "/x"})


# -- secrets and users ----------------------------------------------------------------------------------------------


def test_a_token_in_a_file_of_its_own(write: Any) -> None:
    path = write("token", f"{SECRET}\n")
    config = write("hub.toml", 'token_file = "token"')
    from_path = {"RPCSTREAM_HUB_TOKEN_FILE": str(path)}
    assert hub(config).options == client(config) == {"token": SECRET}
    assert hub(token_file=path).options == hub(None, from_path).options == {"token": SECRET}
    assert hub(config, {"RPCSTREAM_HUB_TOKEN": "other"}).options == {"token": "other"}
    assert hub({"token": "other"}, from_path).options == {"token": SECRET}
    assert client({"token": "other"}, {"RPCSTREAM_TOKEN": "mine"}) == {"token": "mine"}
    assert hub({"token": "abc"}, token=None).options == {}


def test_a_file_without_a_token(write: Any) -> None:
    for data in (b"", b" \n", b"two words", b"two\nlines", b"\xff", b"x" * 100_000, b"a\0b"):
        path = write("token", data)
        with pytest.raises(ConfigError, match=f"^configuration: token_file: '{path}' (must hold one token|holds no t)"):
            hub({"token_file": str(path)})
    with pytest.raises(ConfigError, match=r"^argument token_file: cannot read '/none': No such file"):
        hub(token_file="/none")


@pytest.mark.parametrize("read", [hub, client])
@pytest.mark.parametrize("wrong", [[SECRET], {"x": SECRET}, 5, ""])
def test_no_token_is_ever_shown(wrong: Any, read: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        read({"token": wrong})
    kind = type(wrong).__name__
    assert str(caught.value) == f"configuration: token must be text that is not empty, got {kind}"
    assert caught.value.__cause__ is None


def test_users(write: Any) -> None:
    write("gpu.token", SECRET)
    gpu = '[[users]]\nname = "gpu-1"\ntoken_file = "gpu.token"\nroles = ["worker"]\n'
    ada = '[[users]]\nname = "ada"\ntoken = "abc"\ncertificate = "ada.example"\nroles = "admin"\n'
    config = hub(write("hub.toml", gpu + ada))
    assert config.users == (
        User(name="gpu-1", token=SECRET, roles=("worker",)),
        User(name="ada", token="abc", certificate="ada.example", roles=("admin",)),
    )
    assert SECRET not in repr(config) + repr(config.users)
    users = [{"name": "ada", "token": "abc"}]  # instead of one token
    assert hub({"users": users}).options == {}
    assert hub({"token": "x"}, users=users).users == (User(name="ada", token="abc"),)
    assert hub({"users": users}, {"RPCSTREAM_HUB_TOKEN": "x"}).users is None
    assert hub({"users": users}, authenticate=len).users is None
    assert hub({"users": []}).users == ()
    with pytest.raises(ConfigError, match="either this or users"):
        hub(users=users, authenticate=len)


def test_files_of_tls_are_seen_from_the_folder_of_the_configuration(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "server.key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    path = tmp_path / "hub.toml"
    path.write_text('[tls]\ncertificate = "server.pem"\nkey = "server.key"\nca = "ca.pem"\n')
    certificate, key, ca = (str(tmp_path / name) for name in ("server.pem", "server.key", "ca.pem"))
    assert hub(path).options == {"tls": TLS(certificate=certificate, key=key, client_ca=ca)}
    found = hub(None, {"RPCSTREAM_HUB_TLS_CERTIFICATE": certificate}, tls={"key": key}).options
    assert found == {"tls": TLS(certificate=certificate, key=key)}
    with pytest.raises(ConfigError, match="argument tls_certificate: no certificate with its key"):
        hub(path, tls_certificate=ca)
    with pytest.raises(ConfigError, match=r"no certificate with its key: .*No such file.*/none"):
        hub({"tls": {"certificate": "/none"}})
    with pytest.raises(ConfigError, match="here: no certificate with its key"):
        read_tls("here", certificate=certificate)


def test_the_table_nats(write: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write("hub.toml", '[nats]\nurl = "nats://one:4222,two"\nservice = "vision"\ncreds = "hub.creds"')
    config = hub(path)
    creds = str(tmp_path / "hub.creds")
    assert config.nats == {"url": "nats://one:4222,two", "service": "vision", "creds": creds}
    assert not config.options
    config = hub(environ={"RPCSTREAM_HUB_NATS_URL": "nats://one", "RPCSTREAM_HUB_NATS_PASSWORD": SECRET})
    assert config.nats == {"url": "nats://one", "password": SECRET}
    assert SECRET not in repr(config)
    assert hub({"nats": {"url": "nats://one"}}, nats=None).nats is None
    pytest.importorskip("nats")
    made = Hub.from_config({"nats": {"url": "nats://127.0.0.1:1", "user": "hub", "password": SECRET}})
    assert made.stats()["nats"] == {"connected": False, "group": "hub"}
    made = Hub.from_config(write("hub.toml", '[nats]\nurl = "nats://one"'))
    write("hub.toml", '[nats]\nurl = "nats://two"')
    made.reload()
    assert any("used when the hub is restarted: nats" in message for message in caplog.messages)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"nats": {"service": "vision"}}, "needs an address"),
        ({"nats": {"url": "127.0.0.1:4222"}}, "begins with nats://"),
        ({"nats": {"url": "nats://one", "service": "a.b"}}, "up to 64 letters"),
        ({"nats": {"url": "nats://one", "creds": "a", "nkey": "b"}}, "one of creds, nkey and user"),
        ({"nats": {"url": "nats://one", "ca": "/no/such/file"}}, "ca="),
        ({"nats": {"url": "nats://one", "cred": "x"}}, "unknown option 'cred'"),
        ({"rules": [{"who": "x", "call": "a*"}], "token": SECRET}, r"rules: rule 1: call: 'a.' may have"),
    ],
)
def test_mistakes_that_show_when_the_hub_is_made(values: dict[str, Any], reason: str) -> None:
    pytest.importorskip("nats")
    with pytest.raises(ValueError, match=f"^configuration: .*{reason}"):
        Hub.from_config(values)


# -- from_config ----------------------------------------------------------------------------------------------------


async def test_both_clients_and_a_hub(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPCSTREAM_TOKEN", SECRET)
    hub = Hub.from_config({"token": SECRET, "port": 0, "title": "of a mapping"}, debug=True)
    assert (hub.where, hub.debug) == ({"port": 0}, True)
    async with hub.listening(**hub.where) as address:
        host, _, port = address.rpartition(":")
        path = write("client.json", f'{{"host": "{host}", "port": {port}, "client_id": "client1"}}')
        async with AsyncClient.from_config(path, timeout=20) as client:
            assert (await client.rpc.discover())["info"]["title"] == "of a mapping"
            assert client.registered_name == "client1"

        def call() -> Any:
            with Client.from_config(path, name="client2") as caller:
                return [each["name"] for each in caller.call("rpc.clients")]

        assert "client2" in await asyncio.to_thread(call)


def test_a_class_of_ones_own_the_log_level_and_what_is_refused() -> None:
    class Mine(Hub): ...

    class Caller(Client): ...

    assert type(Mine.from_config({"rules": []}, token=SECRET)) is Mine
    assert type(Caller.from_config()) is Caller
    logger = logging.getLogger("rpcstream")
    before = logger.level
    try:
        Hub.from_config({"log_level": "error"})
        Hub.from_config({})
        assert logger.level == logging.ERROR
    finally:
        logger.setLevel(before)
    with pytest.raises(TypeError, match="nothing_of_this_name"):
        Hub.from_config(nothing_of_this_name=1)
    with pytest.raises(ValueError, match="unknown scheme"):
        Client.from_config({"address": "gopher://x"})
