"""Configuration files in both forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rpcstream.config import ConfigError, read_file
from rpcstream.hub.config import hub_options


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.json", '{ /* "x": */ "a": 1, // three\n"b": [/***/ 2] //\n} /* end */', {"a": 1, "b": [2]}),
        ("a.JSONC", '{"port": 1}', {"port": 1}),
        # Without an ending the beginning says the form.
        ("hub.conf", '  // x\n{"port": 1}', {"port": 1}),
        ("hub.conf", '\n/* x */{"port": 1}', {"port": 1}),
        ("hub.conf", '\ufeff{"port": 1}', {"port": 1}),
        ("hub.conf", "# {\n[tls]\nkey = 'x'", {"tls": {"key": "x"}}),
        ("empty", "", {}),
    ],
)
def test_what_a_file_says(write: Any, name: str, text: str, found: dict[str, Any]) -> None:
    assert read_file(write(name, text)) == read_file(str(write(name, text))) == found


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("f.json", '{"a": [1,\n2,\n/* x */ }', "Expecting value: line 3 column 9"),
        ("f.json", '{\n"a": 1, // one\n /* more', "Expecting property name enclosed in double quotes: line 3 column 2"),
        ("f.json", '{"a": "//', "Unterminated string starting at: line 1 column 7"),
        ("f.json", "[" * 100_000, "maximum recursion depth exceeded"),
        ("f.json", '{"a": ' + "9" * 10_000 + "}", "Exceeds the limit (4300 digits)"),
        ("f.toml", '{"port": 1}', "Invalid statement (at line 1, column 1)"),
        ("hub.conf", b"port = 1\n\nhost = '\xff'", "line 3: this is not UTF-8"),
        ("hub.conf", b"#" * 2_000_000, "a configuration file has at most 1048576 bytes"),
        ("hub.conf", b"a = " + b"[" * 100_000, ""),
    ],
)
def test_complaints_name_the_file_and_the_line(write: Any, name: str, text: str | bytes, words: str) -> None:
    path = write(name, text)
    with pytest.raises(ConfigError) as caught:
        read_file(path)
    assert str(caught.value).startswith(f"{path}: {words}")


def test_no_file_and_an_endless_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none.toml")
    with pytest.raises(IsADirectoryError):
        hub_options(tmp_path, environ={})
    with pytest.raises(ConfigError, match="1048576"):
        read_file("/dev/zero")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.sampled_from('/*"\\\n a,]}')),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from('/*"\\')), inner, max_size=3)
        ),
        max_leaves=10,
    ),
    comments=st.lists(
        st.sampled_from(["// x\n", '/* " ,] */', "/*/*/", "/***/", " ", '// "\n']), min_size=8, max_size=8
    ),
)
def test_comments_between_any_two_tokens_change_nothing(write: Any, value: Any, comments: list[str]) -> None:
    encoder = json.JSONEncoder(separators=(",", ":"))
    pieces: list[str] = []
    for number, piece in enumerate(encoder.iterencode({"value": value})):
        pieces += [comments[number % len(comments)], piece]
    assert read_file(write("x.json", "".join([*pieces, comments[0]]))) == {"value": value}
