"""Configuration files in both forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcstream.config import ConfigError, hub_options, read_file
from rpcstream.config.files import parse_json


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
