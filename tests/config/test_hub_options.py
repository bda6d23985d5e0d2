"""The options of a hub: which source counts most, what is set, secrets, users; errors that say where a mistake is."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import string
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from rpcstream import AsyncClient, Client, Http, Info, Limits
from rpcstream.config import ConfigError
from rpcstream.hub import Hub, Rule
from rpcstream.hub.config import User, hub_options
from rpcstream.tls import TLS

from .conftest import SECRET, client, hub

ALL = {
    **{"call_timeout": 30.0, "ping_interval": 2.5, "registration_timeout": 1.5, "drain_timeout": 0.0},
    **{"drain_delay": 1.0, "hosts": ["a.example"], "path": ["/", "/rpc"]},
    **{"event_queue": 5, "event_policy": "disconnect", "title": "gpus", "debug": True, "token": "abc"},
}
MORE = {
    **{"host": "::", "port": 0, "unix_mode": "660", "log_level": "info", "origins": "https://a.example"},
    **{"keepalive_timeout": 0, "idle_timeout": 0, "max_calls": 5, "write_timeout_ms": 1},
    "rules": [{"who": "gpu-*", "register": ["vectorize"]}],
}


def test_all_there_is(write: Any) -> None:
    config = hub(write("hub.json", json.dumps(ALL | MORE)))
    limits = Limits(idle_timeout=None, max_calls=5, write_timeout=0.001)
    also = {"keepalive_timeout": None, "limits": limits}
    also["rules"] = [Rule("gpu-*", register=("vectorize",))]
    fields = {"hosts", "path", "title", "origins"}
    expected = {name: value for name, value in (ALL | also).items() if name not in fields}
    http = Http(hosts=["a.example"], path=["/", "/rpc"], origins=["https://a.example"])
    assert config.options == expected | {"http": http, "info": Info(title="gpus")}
    assert config.where == {"host": "::", "port": 0, "unix_mode": 0o660}
    assert config.logging == {"log_level": "info"}
    assert "abc" not in repr(config)
    config = hub()
    assert (config.options, config.where, config.logging) == ({}, {}, {})
    for field in [field.name for field in dataclasses.fields(Limits)]:  # each is an option
        for options in (hub({field: 100}).options, client({field: 100})):
            assert options == {"limits": Limits(**{field: 100})}


def test_what_only_a_program_can_say_is_passed_on() -> None:
    base = Limits(max_calls=3, max_batch=7)
    assert hub(limits=base).options == {"limits": base}
    found = hub({"max_calls": 5}, limits=base, max_depth=9).options
    assert found == {"limits": Limits(max_calls=5, max_batch=7, max_depth=9)}
    given = {"authenticate": lambda credentials: None, "rules": object(), "tls": TLS(certificate="x")}
    assert hub({"token": "abc", "rules": []}, **given).options == given
    with pytest.raises(ConfigError, match="arguments: either token or authenticate, not both"):
        hub(authenticate=given["authenticate"], token="abc")


def test_a_stronger_source_takes_the_place_of_others() -> None:
    assert hub({"host": "a", "port": 1}, unix="/x").where == {"unix": "/x"}
    assert hub({"unix": "/x"}, {"RPCSTREAM_HUB_PORT": "2"}).where == {"port": 2}
    # What is out itself puts nothing out.
    assert hub({"unix": "/y"}, {"RPCSTREAM_HUB_HOST": "a"}, port=3).where == {"host": "a", "port": 3}
    with pytest.raises(ConfigError, match=r"configuration: either unix or port, not both$"):
        hub({"port": 1, "unix": "/x"})


def test_a_token_in_a_file_of_its_own(write: Any) -> None:
    path = write("token", f"{SECRET}\n")
    config = write("hub.toml", 'token_file = "token"')
    assert hub(config).options == client(config) == {"token": SECRET}
    assert hub(token_file=path).options == {"token": SECRET}
    assert hub(config, {"RPCSTREAM_HUB_TOKEN": "other"}).options == {"token": "other"}
    assert client({"token": "other"}, {"RPCSTREAM_TOKEN": "mine"}) == {"token": "mine"}
    assert hub({"token": "abc"}, token=None).options == {}


def test_a_file_without_a_token(write: Any) -> None:
    for data in (b"", b" \n", b"two words", b"one\ntwo\nthree", b"\xff", b"x" * 100_000, b"a\0b"):
        path = write("token", data)
        with pytest.raises(ConfigError, match=f"^token_file: '{path}' (must contain one token|is empty)"):
            hub({"token_file": str(path)})
    with pytest.raises(ConfigError, match=r"^token_file: cannot read '/none': No such file"):
        hub(token_file="/none")


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
    with pytest.raises(ConfigError, match="either users or authenticate"):
        hub(users=users, authenticate=len)


def test_files_of_tls_are_seen_from_the_folder_of_the_configuration(write: Any, tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "server.key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    path = write("hub.toml", '[tls]\ncertificate = "server.pem"\nkey = "server.key"\nca = "server.pem"\n')
    certificate, key = (str(tmp_path / name) for name in ("server.pem", "server.key"))
    assert hub(path).options == {"tls": TLS(certificate=certificate, key=key, ca=certificate)}
    found = hub(None, {}, tls={"certificate": certificate, "key": key}).options
    assert found == {"tls": TLS(certificate=certificate, key=key)}
    with pytest.raises(ConfigError, match="argument tls: cannot load the certificate and its key"):
        hub(path, tls={"certificate": key})
    with pytest.raises(ConfigError, match=r"cannot load the certificate and its key: .*No such file.*/none"):
        hub({"tls": {"certificate": "/none"}})


def test_what_shows_when_the_hub_is_made() -> None:
    with pytest.raises(ValueError, match=r"^configuration: .*rules.0.: call: 'a.' may have"):
        Hub.from_config({"rules": [{"who": "x", "call": "a*"}], "token": SECRET})


async def test_both_clients_and_a_hub(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPCSTREAM_TOKEN", SECRET)
    with pytest.raises(TypeError, match="nothing_of_this_name"):
        Hub.from_config(nothing_of_this_name=1)
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


def test_argument_over_environment_over_file() -> None:
    environ = {"RPCSTREAM_HUB_PORT": "2"}
    assert hub({"port": 1}).where == {"port": 1}
    assert hub({"port": 1}, environ).where == {"port": 2}
    assert hub({"port": 1}, environ, port=3).where == {"port": 3}


def test_the_real_environment_and_an_empty_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub({"port": 1}, {"RPCSTREAM_HUB_PORT": "", "RPCSTREAM_HUB_TOKEN": ""}).where == {"port": 1}
    monkeypatch.setenv("RPCSTREAM_HUB_PORT", "77")
    assert hub_options().where == {"port": 77}


NO_USERS: list[tuple[dict[str, Any], str]] = [
    ({"token": SECRET}, "users[0]: 'name' is missing"),
    ({"name": "a"}, "users[0]: expected a token, a token_file or a certificate"),
    ({"name": "a", "token": [SECRET]}, "users[0].token: expected a string or null, got a list"),
    ({"name": "a", "token": f"{SECRET} x"}, "users[0]: token: expected visible characters without blanks"),
    ({"name": "a", "token": SECRET, "role": "x"}, "users[0]: 'role' is unknown"),
]
SAME = [{"name": name, "token": SECRET} for name in "ab"]
NUMBER = "call_timeout: expected a number"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"prot": 1}, "unknown option 'prot' of a hub (did you mean 'port'?)"),
        ({"tls": {"certificate": "x", "kye": "y"}}, "tls: 'kye' is unknown"),
        ({"tls": {"key": "x"}}, "tls: 'certificate' is missing"),
        *(({"port": each}, "port: expected an integer, got") for each in ("80", True, 1.0, None)),
        ({"port": 65536}, "port: expected a number from 0 to 65535, got 65536"),
        ({"max_calls": 0}, "max_calls: expected a number of at least 1, got 0"),
        *(({"call_timeout": each}, NUMBER) for each in (-1, float("nan"), float("inf"), True)),
        ({"call_timeout": 10**400}, "call_timeout: Number out of range"),
        *(({"hosts": each}, "hosts: expected a string or a list") for each in (5, {"a": "b"})),
        ({"hosts": [""]}, "hosts: expected text that is not empty"),
        ({"unix_mode": 660}, "unix_mode: expected a string"),
        ({"unix_mode": "999"}, "unix_mode: expected three octal digits"),
        ({"rules": {"who": "x"}}, "rules: expected a list"),
        ({"rules": ["x"]}, "rules[0]: expected an object"),
        ({"host": "a", "unix": "b"}, ", not both"),
        ({"token": 5}, "token: expected a string or a list"),
        ({"token": "a", "token_file": "b"}, "either token"),
        ({"call_timeout": 1, "call_timeout_ms": 1}, "call_timeout is given twice"),
        *(({"users": [each]}, words) for each, words in NO_USERS),
        ({"users": SAME}, "users 'a' and 'b' have the same token"),
        ({"users": SAME[:1], "token_file": "x"}, "not both"),
    ],
)
def test_complaints_name_what_is_wrong_and_where(values: dict[str, Any], words: str, write: Any) -> None:
    sources: list[Any] = [values]
    with contextlib.suppress(ValueError):  # NaN
        sources.append(write("hub.json", json.dumps(values, allow_nan=False)))
    for source in sources:
        with pytest.raises(ConfigError) as caught:
            hub(source)
        assert str(caught.value).startswith("configuration: " if source is values else f"{source}: ")
        assert words in str(caught.value)
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None or "token" not in values


@pytest.mark.parametrize("text", ["tcp://10.0.0.1:8545", "-1", "٣", "9" * 5000])
def test_complaints_about_the_environment(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hub(None, {"RPCSTREAM_HUB_PORT": text})
    assert str(caught.value).startswith("environment variable RPCSTREAM_HUB_PORT: ")
    assert len(str(caught.value)) < 300
    with pytest.raises(ConfigError, match=r"^argument port: expected an integer"):
        hub(port=text)
    with pytest.raises(ConfigError, match="configuration: port"):  # though it does not count
        hub({"port": -1}, {"RPCSTREAM_HUB_PORT": "1"})


def test_a_slip_in_the_environment_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    hub(None, {"RPCSTREAM_HUB_PROT": SECRET, "RPCSTREAM_HUB_RULES": "x", "RPCSTREAM_HUBBUB": "x"})
    assert "RPCSTREAM_HUB_PROT is no option of a hub (did you mean RPCSTREAM_HUB_PORT?)" in caplog.text
    assert "RPCSTREAM_HUB_RULES is no option" in caplog.text
    assert "HUBBUB" not in caplog.text
    assert SECRET not in caplog.text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(string.ascii_lowercase, max_size=3), inner),
    max_leaves=5,
)
NAMES = st.sampled_from(["port", "call_timeout", "call_timeout_ms", "max_calls", "hosts", "rules", "token"])
VARIABLES = st.sampled_from(["HOST", "PORT", "TOKEN", "TOKEN_FILE"])
TEXTS = st.dictionaries(VARIABLES, st.text(max_size=8))


@given(st.dictionaries(NAMES | st.text(max_size=8), VALUES, max_size=4), TEXTS)
def test_anything_is_taken_or_refused(values: dict[str, Any], texts: dict[str, str]) -> None:
    logging.getLogger("rpcstream.config").disabled = True
    said = "configuration: taken"
    try:
        hub(values, texts)
    except ConfigError as error:
        said = str(error)
    finally:
        logging.getLogger("rpcstream.config").disabled = False
    assert said.startswith(("configuration: ", "environment variable", "limits: "))
