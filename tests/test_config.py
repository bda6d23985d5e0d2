"""Configuration: files in both forms, the precedence of sources, and errors that name the place of a mistake."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import string
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from rpcstream import AsyncClient, Client, Limits
from rpcstream.config import ConfigError, User, client_options, hub_options, read_file, read_tls
from rpcstream.config.files import parse_json
from rpcstream.hub import Hub
from rpcstream.tls import TLS

SECRET = "correct-horse-battery-staple"

#: As the article of the fourth seed has them.
SERVER_OF_THE_SEED = """{
"port": 8080,
"thread_count": 4,
"keepalive_timeout_ms": 5000, // 5 seconds timeout for idle connections
"registration_timeout_ms": 10000, // 10 seconds for client registration
"max_message_size": 4096
}"""

CLIENT_OF_THE_SEED = """{
"host": "localhost",
"port": 8080,
"client_id": "client1",
"call_timeout_ms": 30000 // 30 seconds timeout for calls
}"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(name: str, text: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


# -- files ------------------------------------------------------------------------------------------------------------


class TestJson:
    def test_comments(self) -> None:
        text = """
        // one
        { /* two
             lines */ "a": 1, // three
          "b" /**/ : /* // */ [1, /***/ 2], "c": 3 //
        } /* end */"""
        assert parse_json(text, "x") == {"a": 1, "b": [1, 2], "c": 3}

    def test_what_looks_like_comments_in_strings(self) -> None:
        text = r'{"a": "http://x/*y*/", "b//": "\"//\\", /* "c": 1, */ "d": "\\" /* "e */}'
        assert parse_json(text, "x") == {"a": "http://x/*y*/", "b//": '"//\\', "d": "\\"}

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ('{\n"a": 1,\n}', "f: line 2, column 7: a comma stands behind the last value"),
            ('{"a": [1,\n2,\n/* x */ ]}', "f: line 2, column 2: a comma stands behind the last value"),
            ('{\n"a": 1, // one\n /* more', "f: line 3, column 2: a comment begins here and does not end"),
            ('{"a": 1 / 2}', "f: line 1, column 9: this is not JSON: expecting ',' delimiter"),
            ('{"a": 1} {}', "f: line 1, column 10: this is not JSON: extra data"),
            ("// nothing", "f: line 1, column 11: this is not JSON: expecting value"),
            ('{"a": "\n"}', "f: line 1, column 8: this is not JSON: invalid control character"),
            ('{"a": "//', "f: line 1, column 7: this is not JSON: unterminated string"),
            ('{"a": NaN}', "f: NaN is no number"),
            ('{"a": -Infinity}', "f: -Infinity is no number"),
            ('{"a": 1, "b": {"c": 1, "c": 2}}', "f: 'c' stands twice in one object"),
            ("[1]", "f: the file holds list, not an object"),
            ("[" * 100_000, "f: too many arrays and objects inside each other"),
            ('{"a": ' + "9" * 10_000 + "}", "f: a number in it is too long"),
        ],
    )
    def test_complaints_name_the_line(self, text: str, words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            parse_json(text, "f")
        assert str(caught.value).startswith(words)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('/*"\\\n a,]}')),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from('/*"\\')), inner, max_size=3)
            ),
            max_leaves=10,
        ),
        st.lists(st.sampled_from(["// x\n", '/* " ,] */', "/*/*/", "/***/", " ", '// "\n']), min_size=8, max_size=8),
    )
    def test_comments_between_any_two_tokens_change_nothing(self, value: Any, comments: list[str]) -> None:
        encoder = json.JSONEncoder(separators=(",", ":"))
        pieces: list[str] = []
        for number, piece in enumerate(encoder.iterencode({"value": value})):
            pieces += [comments[number % 8], piece]
        assert parse_json("".join([*pieces, comments[0]]), "x") == {"value": value}


class TestFiles:
    def test_the_ending_says_the_form(self, write: Any) -> None:
        assert read_file(write("a.toml", "port = 1 # one")) == {"port": 1}
        assert read_file(write("a.json", '{"port": 1 /* one */}')) == {"port": 1}
        assert read_file(str(write("a.JSONC", '{"port": 1}'))) == {"port": 1}
        with pytest.raises(ConfigError, match=r"a.toml: this is not TOML: .*line 1"):
            read_file(write("a.toml", '{"port": 1}'))
        with pytest.raises(ConfigError, match=r"a.json: line 1, column 1: this is not JSON"):
            read_file(write("a.json", "port = 1"))

    @pytest.mark.parametrize(
        "text", ['{"port": 1}', '  // x\n{"port": 1}', '\n/* x */{"port": 1}', '\ufeff{"port": 1}']
    )
    def test_without_an_ending_the_beginning_says_it(self, write: Any, text: str) -> None:
        assert read_file(write("hub.conf", text)) == {"port": 1}

    def test_else_it_is_toml(self, write: Any) -> None:
        assert read_file(write("hub.conf", "# {\n[tls]\nkey = 'x'")) == {"tls": {"key": "x"}}
        assert read_file(write("empty", "")) == {}

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (b"port = 1\nhost =\n", "this is not TOML: .*line 2"),
            (b"port = 1\n\nhost = '\xff'", "line 3: this is not UTF-8"),
            (b"#" * 2_000_000, "at most 1048576 bytes"),
            (b"a = " + b"[" * 100_000, "too many arrays"),
        ],
    )
    def test_complaints(self, write: Any, text: bytes, words: str) -> None:
        with pytest.raises(ConfigError, match=f"hub.conf: .*{words}"):
            read_file(write("hub.conf", text))

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            read_file(tmp_path / "none.toml")
        with pytest.raises(IsADirectoryError):
            hub_options(tmp_path, environ={})

    def test_an_endless_one(self) -> None:
        with pytest.raises(ConfigError, match="at most"):
            read_file("/dev/zero")


# -- a hub ------------------------------------------------------------------------------------------------------------


def hub(source: Any = None, environ: dict[str, str] | None = None, **arguments: Any) -> Any:
    return hub_options(source, arguments, environ=environ or {})


def client(source: Any = None, environ: dict[str, str] | None = None, **arguments: Any) -> dict[str, Any]:
    return client_options(source, arguments, environ=environ or {})


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
            assert Hub.from_config({"keepalive_timeout": timeout})._keepalive._ping_interval == interval
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


class TestPrecedence:
    """Argument over environment over file over default, for options of every kind."""

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
    def test_of_a_hub(self, name: str, file: Any, text: str, variable: Any, argument: Any) -> None:
        environ = {f"RPCSTREAM_HUB_{name.upper()}": text}
        assert hub({}).options == {}
        assert hub({name: file}).options == {name: file}
        assert hub({name: file}, environ).options == {name: variable}
        assert hub({name: file}, environ, **{name: argument}).options == {name: argument}
        assert hub(None, None, **{name: argument}).options == {name: argument}

    def test_of_a_time_under_any_of_its_names(self) -> None:
        environ = {"RPCSTREAM_HUB_CALL_TIMEOUT_MS": "2000"}
        assert hub({"call_timeout": 1}, environ).options == {"call_timeout": 2.0}
        assert hub({"call_timeout": 1}, environ, call_timeout_ms=3).options == {"call_timeout": 0.003}
        assert hub({"call_timeout": 1}, environ, call_timeout=None).options == {"call_timeout": None}

    def test_an_empty_variable_is_none(self) -> None:
        assert hub({"port": 1}, {"RPCSTREAM_HUB_PORT": "", "RPCSTREAM_HUB_TOKEN": ""}).where == {"port": 1}

    def test_of_the_real_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RPCSTREAM_HUB_PORT", "77")
        monkeypatch.setenv("RPCSTREAM_ADDRESS", "tls://a.example")
        assert hub_options().where == {"port": 77}
        assert client_options()["address"] == "tls://a.example"

    def test_of_a_client(self) -> None:
        environ = {"RPCSTREAM_TIMEOUT": "2", "RPCSTREAM_POOL": "3", "RPCSTREAM_HUB_TOKEN": "x", "RPCSTREAM_LOOP": "x"}
        assert client({"call_timeout_ms": 1000, "retries": 4}, environ, pool=5) == {
            "timeout": 2.0,
            "retries": 4,
            "pool": 5,
        }


class TestComplaints:
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
            ({"port": "80"}, "port must be a whole number from 0 to 65535, got '80'"),
            ({"port": 65536}, "port must be a whole number from 0 to 65535, got 65536"),
            ({"port": True}, "port must be a whole number from 0 to 65535, got True"),
            ({"port": 1.0}, "port must be a whole number from 0 to 65535, got 1.0"),
            ({"port": None}, "port must be a whole number"),
            ({"thread_count": 0}, "thread_count must be a whole number of 1 or more, got 0"),
            ({"max_calls": 0}, "max_calls must be a whole number of 1 or more, got 0"),
            ({"max_depth": 500}, "max_depth: max_depth must be at most 200"),
            ({"call_timeout": -1}, "call_timeout must be a number of seconds, not negative, or 0 for no limit, got -1"),
            ({"call_timeout_ms": "1"}, "call_timeout_ms must be a number of milliseconds, not negative"),
            ({"call_timeout": float("nan")}, "call_timeout must be a number of seconds"),
            ({"call_timeout": float("inf")}, "call_timeout must be a number of seconds"),
            ({"call_timeout": 10**400}, "call_timeout must be a number of seconds"),
            ({"call_timeout": True}, "call_timeout must be a number of seconds"),
            ({"drain_timeout": None}, "drain_timeout must be a number of seconds, not negative, got None"),
            ({"balance": "random"}, "balance must be one of least_in_flight, round_robin, got 'random'"),
            ({"log_level": "INFO"}, "log_level must be one of debug, info"),
            ({"debug": 1}, "debug must be true or false, got 1"),
            ({"hosts": 5}, "hosts must be a text, or a list of texts, got 5"),
            ({"path": "rpc"}, 'path must be a path that begins with "/"'),
            ({"path": []}, 'path must be a path that begins with "/"'),
            ({"path": 5}, 'path must be a path that begins with "/"'),
            ({"hosts": [""]}, "hosts must be a text, or a list of texts"),
            ({"hosts": {"a": "b"}}, "hosts must be a text, or a list of texts"),
            ({"host": ""}, "host must be text that is not empty, got ''"),
            ({"unix": "a\0b"}, "unix must be the path of a file"),
            (
                {"unix_mode": 660},
                'unix_mode must be the permissions of a file as text with three octal digits, such as "6',
            ),
            ({"unix_mode": "999"}, "unix_mode must be the permissions"),
            ({"rules": {"who": "x"}}, "rules must be a list of tables"),
            ({"rules": ["x"]}, "rules must be a list of tables"),
        ],
    )
    def test_of_a_file(self, values: dict[str, Any], words: str, write: Any) -> None:
        with pytest.raises(ConfigError) as caught:
            hub(values)
        assert str(caught.value).startswith("configuration: ")
        assert words in str(caught.value)
        try:
            path = write("hub.json", json.dumps(values, allow_nan=False))
        except ValueError:
            return
        with pytest.raises(ConfigError) as caught:
            hub(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert words in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "text", "words"),
        [
            ("PORT", "tcp://10.0.0.1:8545", "PORT must be a whole number from 0 to 65535, got 'tcp://10.0.0.1:8545'"),
            ("PORT", "-1", "PORT must be a whole number"),
            ("PORT", "٣", "PORT must be a whole number"),
            ("PORT", "9" * 5000, "PORT must be a whole number"),
            ("CALL_TIMEOUT", "soon", "CALL_TIMEOUT must be a number of seconds"),
            ("CALL_TIMEOUT", "nan", "CALL_TIMEOUT must be a number of seconds"),
            ("CALL_TIMEOUT", "1e999", "CALL_TIMEOUT must be a number of seconds"),
            ("CALL_TIMEOUT_MS", "x", "CALL_TIMEOUT_MS must be a number of milliseconds"),
            ("DEBUG", "maybe", "DEBUG must be true or false, got 'maybe'"),
            ("UNIX_MODE", "7", "UNIX_MODE must be the permissions"),
        ],
    )
    def test_of_the_environment(self, name: str, text: str, words: str) -> None:
        with pytest.raises(ConfigError) as caught:
            hub(None, {f"RPCSTREAM_HUB_{name}": text})
        assert str(caught.value).startswith(f"environment variable RPCSTREAM_HUB_{words}")
        assert len(str(caught.value)) < 300

    def test_of_arguments(self) -> None:
        with pytest.raises(ConfigError, match=r"^argument port must be a whole number .* got 'x'"):
            hub(port="x")
        with pytest.raises(ConfigError, match=r"^argument timeout must be a number of seconds"):
            client(timeout=-1)
        with pytest.raises(TypeError, match="a file's path or a mapping, got int"):
            hub(5)

    def test_a_wrong_value_is_one_also_where_a_stronger_source_has_a_right_one(self) -> None:
        with pytest.raises(ConfigError, match="configuration: port"):
            hub({"port": -1}, {"RPCSTREAM_HUB_PORT": "1"})

    def test_a_slip_in_the_environment_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        hub(None, {"RPCSTREAM_HUB_PROT": SECRET, "RPCSTREAM_HUB_RULES": "x", "RPCSTREAM_HUBBUB": "x"})
        assert "RPCSTREAM_HUB_PROT is no option of a hub (DID YOU MEAN PORT?)" not in caplog.text
        assert "RPCSTREAM_HUB_PROT is no option of a hub (did you mean RPCSTREAM_HUB_PORT?)" in caplog.text
        assert "RPCSTREAM_HUB_RULES is no option" in caplog.text
        assert "HUBBUB" not in caplog.text
        assert SECRET not in caplog.text


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


# -- a client ---------------------------------------------------------------------------------------------------------


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

    def test_what_only_a_program_can_say_is_passed_on(self) -> None:
        codec, backoff = object(), object()
        assert client(codec=codec, reconnect=backoff) == {"codec": codec, "reconnect": backoff}

    def test_wrong_ones(self) -> None:
        with pytest.raises(ConfigError, match=r"unknown option 'adress' of a client \(did you mean 'address'\?\)"):
            client({"adress": "x"})
        with pytest.raises(ConfigError, match="port must be a whole number from 1 to 65535"):
            client({"port": 0})


class TestFaces:
    """`from_config` of the classes, on a hub that runs."""

    async def test_both_clients_and_a_hub(self, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RPCSTREAM_TOKEN", SECRET)
        hub = Hub.from_config({"token": SECRET, "port": 0, "title": "of a mapping"}, debug=True)
        assert hub.where == {"port": 0}
        assert hub.debug
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

    def test_a_class_of_ones_own(self) -> None:
        class Mine(Hub): ...

        class Caller(Client): ...

        assert type(Mine.from_config({"rules": []}, token=SECRET)) is Mine
        assert type(Caller.from_config()) is Caller

    def test_the_log_level(self, monkeypatch: pytest.MonkeyPatch) -> None:
        logger = logging.getLogger("rpcstream")
        monkeypatch.setattr(logger, "level", logger.level)
        Hub.from_config({"log_level": "error"})
        assert logger.level == logging.ERROR
        Hub.from_config({})
        assert logger.level == logging.ERROR

    def test_what_the_constructor_refuses(self) -> None:
        with pytest.raises(TypeError, match="nothing_of_this_name"):
            Hub.from_config(nothing_of_this_name=1)
        with pytest.raises(ValueError, match="unknown scheme"):
            Client.from_config({"address": "gopher://x"})
        with pytest.raises(ValueError, match=r"configuration: rules: rule 1: call: 'a.' may have"):
            Hub.from_config({"rules": [{"who": "x", "call": "a*"}]}, token=SECRET)


# -- anything ---------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(string.ascii_lowercase, max_size=3), inner),
    max_leaves=5,
)
NAMES = st.sampled_from(
    ["port", "call_timeout", "call_timeout_ms", "max_calls", "hosts", "unix_mode", "rules", "token"]
)


@given(st.dictionaries(NAMES | st.text(max_size=8), VALUES, max_size=4))
def test_any_mapping_is_taken_or_refused(values: dict[str, Any]) -> None:
    logging.getLogger("rpcstream.config").disabled = True
    try:
        said = complaint_of(values)
    finally:
        logging.getLogger("rpcstream.config").disabled = False
    assert said.startswith("configuration: ")


@given(st.dictionaries(st.sampled_from(["PORT", "CALL_TIMEOUT", "DEBUG", "HOSTS", "UNIX_MODE"]), st.text(max_size=8)))
def test_any_environment_is_taken_or_refused(texts: dict[str, str]) -> None:
    said = complaint_of(None, {f"RPCSTREAM_HUB_{name}": text for name, text in texts.items()})
    assert said.startswith(("environment variable RPCSTREAM_HUB_", "configuration: "))


def complaint_of(source: Any, environ: dict[str, str] | None = None) -> str:
    """What is said of it; as of a configuration where nothing is."""
    try:
        hub(source, environ)
    except ConfigError as error:
        return str(error)
    return "configuration: taken"
