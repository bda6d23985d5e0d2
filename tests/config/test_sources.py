"""Which source of options counts most, and errors that say where a mistake stands."""

from __future__ import annotations

import contextlib
import json
import logging
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcstream.config import ConfigError, client_options, hub_options

from .conftest import SECRET, client, hub


@pytest.mark.parametrize(
    ("name", "file", "text", "variable", "argument"),
    [
        ("call_timeout", 1, "2", 2.0, 3),
        ("drain_timeout", 1.5, "2.5e0", 2.5, 3.5),
        ("balance", "round_robin", "least_in_flight", "least_in_flight", "round_robin"),
        ("event_queue", 1, "2", 2, 3),
        ("debug", False, "yes", True, False),
        ("hosts", ["a"], "b, c,", ["b", "c"], ["d"]),
        ("path", ["/a"], "/b, /c,", ["/b", "/c"], ["/d"]),
        ("title", "a", "b", "b", "c"),
    ],
)
def test_argument_over_environment_over_file(name: str, file: Any, text: str, variable: Any, argument: Any) -> None:
    environ = {f"RPCSTREAM_HUB_{name.upper()}": text}
    assert hub({}).options == {}
    assert hub({name: file}).options == {name: file}
    assert hub({name: file}, environ).options == {name: variable}
    assert hub({name: file}, environ, **{name: argument}).options == {name: argument}
    assert hub(None, None, **{name: argument}).options == {name: argument}


def test_a_time_counts_under_any_of_its_names() -> None:
    environ = {"RPCSTREAM_HUB_CALL_TIMEOUT_MS": "2000"}
    assert hub({"call_timeout": 1}, environ).options == {"call_timeout": 2.0}
    assert hub({"call_timeout": 1}, environ, call_timeout_ms=3).options == {"call_timeout": 0.003}
    assert hub({"call_timeout": 1}, environ, call_timeout=None).options == {"call_timeout": None}
    variables = {"RPCSTREAM_TIMEOUT": "2", "RPCSTREAM_POOL": "3", "RPCSTREAM_HUB_TOKEN": "x", "RPCSTREAM_LOOP": "x"}
    found = client({"call_timeout_ms": 1000, "retries": 4}, variables, pool=5)
    assert found == {"timeout": 2.0, "retries": 4, "pool": 5}


def test_the_real_environment_and_an_empty_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub({"port": 1}, {"RPCSTREAM_HUB_PORT": "", "RPCSTREAM_HUB_TOKEN": ""}).where == {"port": 1}
    monkeypatch.setenv("RPCSTREAM_HUB_PORT", "77")
    monkeypatch.setenv("RPCSTREAM_ADDRESS", "tls://a.example")
    assert hub_options().where == {"port": 77}
    assert client_options()["address"] == "tls://a.example"


NO_USERS: list[tuple[dict[str, Any], str]] = [
    ({"token": SECRET}, "user 1: name is missing"),
    ({"name": "", "token": SECRET}, "user 1: name must be text that is not empty, got str"),
    ({"name": "a"}, "user 1: needs a token, a token_file or a certificate"),
    ({"name": "a", "token": SECRET, "token_file": "x"}, "one token only"),
    ({"name": "a", "token": [SECRET]}, "user 1: token must be text that is not empty, got list"),
    ({"name": "a", "token": f"{SECRET} x"}, "user 1: a token has no blanks"),
    ({"name": "a", "token": SECRET, "role": "x"}, "user 1: unknown field 'role' (did you mean 'roles'?)"),
    ({"name": "a", "token": SECRET, "roles": [1]}, "user 1: roles must be a text, or a list of texts"),
    ({"name": "a", "token_file": "/none"}, "user 1: token_file: cannot read '/none'"),
]
WHOLE, SECONDS = "must be a whole number", "must be a number of seconds"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"prot": 1}, "unknown option 'prot' of a hub (did you mean 'port'?)"),
        ({"max_mesage_size": 1}, "(did you mean 'max_message_size'?)"),
        ({"call_timeout_sm": 1}, "(did you mean 'call_timeout_ms'?)"),
        ({"zzz": 1}, "unknown option 'zzz' of a hub"),
        ({"tls": {"cert": "x"}}, "unknown option 'cert' in tls (did you mean 'certificate'?)"),
        ({"tls": "x"}, "tls must be a table, got str"),
        ({"tls": {"key": "x"}}, "this is for TLS, which needs a certificate"),
        *(({"port": each}, f"port {WHOLE} from 0 to 65535, got {each!r}") for each in ("80", 65536, True, 1.0, None)),
        ({"thread_count": 0}, f"thread_count {WHOLE} of 1 or more, got 0"),
        ({"max_calls": 0}, f"max_calls {WHOLE} of 1 or more, got 0"),
        ({"max_depth": 500}, "max_depth: max_depth must be at most 200"),
        ({"call_timeout": -1}, f"call_timeout {SECONDS}, not negative, or 0 for no limit, got -1"),
        ({"call_timeout_ms": "1"}, "call_timeout_ms must be a number of milliseconds, not negative"),
        *(({"call_timeout": each}, SECONDS) for each in (float("nan"), float("inf"), 10**400, True)),
        ({"drain_timeout": None}, f"drain_timeout {SECONDS}, not negative, got None"),
        ({"balance": "random"}, "balance must be one of least_in_flight, round_robin, got 'random'"),
        ({"log_level": "INFO"}, "log_level must be one of debug, info"),
        ({"debug": 1}, "debug must be true or false, got 1"),
        *(({"hosts": each}, "hosts must be a text, or a list of texts") for each in (5, [""], {"a": "b"})),
        *(({"path": each}, 'path must be a path that begins with "/"') for each in ("rpc", [], 5)),
        ({"host": ""}, "host must be text that is not empty, got ''"),
        ({"unix": "a\0b"}, "unix must be the path of a file"),
        ({"unix_mode": 660}, "unix_mode must be the permissions of a file as text with three octal digits"),
        ({"unix_mode": "999"}, "unix_mode must be the permissions"),
        *(({"rules": each}, "rules must be a list of tables") for each in ({"who": "x"}, ["x"])),
        *(({first: "a", second: "b"}, ", not both") for first, second in [("host", "unix"), ("unix", "host")]),
        ({"token": "a", "token_file": "b"}, "either token"),
        ({"call_timeout": 1, "call_timeout_ms": 1}, "call_timeout is given already"),
        *(({"users": [each]}, words) for each, words in NO_USERS),
        *(
            (
                {"users": [{"name": "a", key: SECRET}, {"name": "b", key: SECRET}]},
                f"users 'a' and 'b' have the same {key}",
            )
            for key in ("token", "certificate")
        ),
        *(({"users": [{"name": "a", "token": "b"}], key: "x"}, "not both") for key in ("token", "token_file")),
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


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("PORT", "tcp://10.0.0.1:8545", f"{WHOLE} from 0 to 65535, got 'tcp://10.0.0.1:8545'"),
        *(("PORT", each, WHOLE) for each in ("-1", "٣", "9" * 5000)),
        *(("CALL_TIMEOUT", each, SECONDS) for each in ("soon", "nan", "1e999")),
        ("CALL_TIMEOUT_MS", "x", "must be a number of milliseconds"),
        ("DEBUG", "maybe", "must be true or false, got 'maybe'"),
        ("UNIX_MODE", "7", "must be the permissions"),
    ],
)
def test_complaints_about_the_environment(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hub(None, {f"RPCSTREAM_HUB_{name}": text})
    assert str(caught.value).startswith(f"environment variable RPCSTREAM_HUB_{name} {words}")
    assert len(str(caught.value)) < 300


def test_complaints_about_arguments_and_about_what_does_not_count() -> None:
    with pytest.raises(ConfigError, match=r"^argument port must be a whole number .* got 'x'"):
        hub(port="x")
    with pytest.raises(ConfigError, match=r"^argument timeout must be a number of seconds"):
        client(timeout=-1)
    with pytest.raises(TypeError, match="a file's path or a mapping, got int"):
        hub(5)
    with pytest.raises(ConfigError, match="configuration: port"):
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
NAMES = st.sampled_from(
    ["port", "call_timeout", "call_timeout_ms", "max_calls", "hosts", "unix_mode", "rules", "token"]
)
VARIABLES = st.sampled_from(["PORT", "CALL_TIMEOUT", "DEBUG", "HOSTS", "UNIX_MODE"])


@given(
    st.dictionaries(NAMES | st.text(max_size=8), VALUES, max_size=4), st.dictionaries(VARIABLES, st.text(max_size=8))
)
def test_anything_is_taken_or_refused(values: dict[str, Any], texts: dict[str, str]) -> None:
    logging.getLogger("rpcstream.config").disabled = True
    said = "configuration: taken"
    try:
        hub(values, texts)
    except ConfigError as error:
        said = str(error)
    finally:
        logging.getLogger("rpcstream.config").disabled = False
    assert said.startswith(("configuration: ", "environment variable RPCSTREAM_HUB_"))
