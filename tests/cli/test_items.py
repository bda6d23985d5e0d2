"""Arguments of the command line as params: their grammar, their types, and the error for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcstream.cli.call_options import join_address, make_parser, parse
from rpcstream.cli.items import UsageError, parse_file_option, parse_item, parse_positional
from rpcstream.cli.params import read_params
from rpcstream.cli.values import ValueReader, infer_value, parse_json


def params_of(*argv: str, stdin: bytes = b"") -> Any:
    """What `rpcstream METHOD argv...` sends as params."""
    return read_params(parse(make_parser(), ["method", *argv]), ValueReader(lambda: stdin)).params


def refused(*argv: str, stdin: bytes = b"") -> str:
    with pytest.raises(UsageError) as caught:
        params_of(*argv, stdin=stdin)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-5", -5),
        ("0", 0),
        ("-0", 0),
        ("1.5", 1.5),
        ("-1e3", -1000.0),
        ("1E-2", 0.01),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("true", True),
        ("false", False),
        ("null", None),
        ("", ""),
        ("007", "007"),
        ("+5", "+5"),
        (".5", ".5"),
        ("1.", "1."),
        ("1_000", "1_000"),
        ("\u0665", "\u0665"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("-Infinity", "-Infinity"),
        ("True", "True"),
        ("None", "None"),
        (" 5", " 5"),
        ("5\n", "5\n"),
        ("a=b", "a=b"),
        ('"5"', '"5"'),
    ],
)
def test_plain_text_is_recognised_as_json_would_read_it(text: str, value: object) -> None:
    found = infer_value(text)
    assert (found, type(found)) == (value, type(value))


@given(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_every_json_number_and_word_is_recognised(value: object) -> None:
    import json

    found = infer_value(json.dumps(value))
    assert (found, type(found)) == (value, type(value))


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_any_text_goes_as_str(text: str) -> None:
    assert params_of(f"key:str={text}") == {"key": text}


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("a=1", {"a": 1}),
        ("a=-1e3", {"a": -1000.0}),
        ("a=", {"a": ""}),
        ("a==b", {"a": "=b"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=x:y", {"a": "x:y"}),
        ("a.b=1", {"a.b": 1}),
        ("a:b:int=1", {"a:b": 1}),
        ("a:int=-5", {"a": -5}),
        ("a:float=5", {"a": 5.0}),
        ("a:float=-1e3", {"a": -1000.0}),
        ("a:str=5", {"a": "5"}),
        ("a:str=@x", {"a": "@x"}),
        ("a:str=", {"a": ""}),
        ("a:bool=Yes", {"a": True}),
        ("a:bool=0", {"a": False}),
        ("a:json=[1,2]", {"a": [1, 2]}),
        ('a:={"b": [null]}', {"a": {"b": [None]}}),
        ("a:=18446744073709551617", {"a": 18446744073709551617}),
        ("a:bytes=h\u00e9", {"a": "h\u00e9".encode()}),
        ("a:bytes=", {"a": b""}),
        ("a:bytes=\udcff", {"a": b"\xff"}),
    ],
)
def test_an_item(typed: str, value: dict[str, Any]) -> None:
    found = params_of(typed)
    assert found == value
    assert [type(member) for member in found.values()] == [type(member) for member in value.values()]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("foo", "'foo' is not an item"),
        ("=5", "the key before the '=' is missing"),
        (":int=5", "the key before the '=' is missing"),
        ("a:colour=red", "unknown type 'colour'"),
        ("a:int=x", "'a:int=x': not an integer"),
        ("a:int=", "not an integer"),
        ("a:int=1.5", "not an integer"),
        ("a:int=" + "9" * 5000, "not an integer"),
        ("a:float=x", "not a number"),
        ("a:float=1e400", "too large for a float"),
        ("a=1e400", "beyond the numbers of JSON"),
        ("a:bool=maybe", "not a bool"),
        ("a:=", "not JSON"),
        ("a:={", "not JSON"),
        ("a:=[1,]", "not JSON"),
        ("a:=NaN", "neither NaN nor infinity"),
        ("a:=[1e400]", "beyond the numbers of JSON"),
        ("a:=" + "[" * 100_000, "nested too deep"),
        ("a=\udcff", "not valid UTF-8"),
        ("a=@/no/such/file", "cannot read '/no/such/file': No such file"),
        ("a=@/", "cannot read '/'"),
        ("a=@x\0y", "cannot read"),
        ("a:image=/no/such.png", "cannot read '/no/such.png'"),
        ("a:ndarray=/no/such.npy", "cannot read '/no/such.npy'"),
        ("a:ndarray=abc", "neither the name of a .npy file nor JSON"),
        ('a:ndarray=["x"]', "not an array of numbers"),
        ("a:ndarray=[[1,2],[3]]", "not an array"),
        ("a:ndarray:float33=[1]", "unknown dtype 'float33'"),
        ("a:ndarray:object=[1]", "not one of numbers"),
        ("a:ndarray:uint8=[300]", "does not fit into uint8"),
        ("a:ndarray:uint8=[-1]", "does not fit into uint8"),
    ],
)
def test_a_wrong_item_is_refused_in_one_line(typed: str, words: str) -> None:
    message = refused(typed)
    assert words in message
    assert "\n" not in message
    assert len(message) < 400


def test_a_name_twice_is_refused() -> None:
    assert refused("a=1", "a=2") == "the parameter 'a' is given twice"
    assert refused("a=1", "-f", "a=/dev/null") == "the parameter 'a' is given twice"


def test_no_items_send_no_params() -> None:
    assert params_of() is None


def test_items_may_stand_before_and_behind_options() -> None:
    assert params_of("a=1", "-p", "5", "b=2", "--timeout", "3", "c=3", "-v") == {"a": 1, "b": 2, "c": 3}


class TestFiles:
    def test_text_and_json(self, tmp_path: Path) -> None:
        text, data = tmp_path / "a=b.txt", tmp_path / "data.json"
        text.write_text("line\nh\u00e9\n", encoding="utf-8")
        data.write_text("[1, 2]")
        assert params_of(f"t=@{text}", f"j:=@{data}", f"k:json=@{data}", f"b:bytes=@{data}") == {
            "t": "line\nh\u00e9\n",
            "j": [1, 2],
            "k": [1, 2],
            "b": b"[1, 2]",
        }

    def test_text_that_is_not_utf_8(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"\xff")
        assert "send its bytes with -f" in refused(f"a=@{tmp_path / 'x'}")

    def test_bytes_by_name_and_by_position(self, tmp_path: Path) -> None:
        path = tmp_path / "a=b.bin"
        path.write_bytes(b"\0\xff")
        assert params_of("-f", f"data={path}") == {"data": b"\0\xff"}
        assert params_of(f"-fdata={path}", "x=1") == {"x": 1, "data": b"\0\xff"}
        assert params_of("--file", str(path)) == [b"\0\xff"]

    def test_standard_input_as_a_file_once(self) -> None:
        assert params_of("-f", "data=-", stdin=b"\1") == {"data": b"\1"}
        assert params_of("text=@-", stdin=b"x") == {"text": "x"}
        assert refused("a=@-", "b=@-", stdin=b"x") == "standard input can be read only once"

    @pytest.mark.parametrize(
        ("text", "key", "path"),
        [
            ("name=./a.png", "name", "./a.png"),
            ("name=a=b.png", "name", "a=b.png"),
            ("na-me=x", "na-me", "x"),
            ("./a.png", None, "./a.png"),
            ("./a=b.png", None, "./a=b.png"),
            ("dir/a=b.png", None, "dir/a=b.png"),
            ("a.b=c.png", None, "a.b=c.png"),
            ("=x", None, "=x"),
        ],
    )
    def test_what_is_a_name_and_what_is_a_path(self, text: str, key: str | None, path: str) -> None:
        part = parse_file_option("file", text)
        assert (part.key, part.text) == (key, path)


class TestPositional:
    def test_several_values_negative_ones_too(self) -> None:
        found = params_of("--positional", "1", "-5", "-1e3", "-.5", "x", "true", "")
        assert found == [1, -5, -1000.0, "-.5", "x", True, ""]

    def test_the_order_among_options_is_kept(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"x")
        file = str(tmp_path / "x")
        assert params_of("--positional", "1", "-f", file, "--positional", "2", "-v", "-f", file) == [1, b"x", 2, b"x"]

    def test_a_value_that_looks_like_an_option(self) -> None:
        assert params_of("--positional=-v", "--positional=--list") == ["-v", "--list"]

    def test_types(self) -> None:
        found = params_of("--positional", ":str=5", ":=[1]", ":int=7", ":x=5", ":", "a=1")
        assert found == ["5", [1], 7, ":x=5", ":", "a=1"]
        assert parse_positional(":ndarray:float32=[1]").dtype == "float32"

    def test_not_together_with_names(self) -> None:
        message = refused("a=1", "--positional", "2")
        assert message == "parameters go by name or by position, not both: 'a=1' has a name, '2' has none"


class TestStandardInput:
    def test_an_object_or_an_array(self) -> None:
        assert params_of("-", stdin=b' {"a": [1, null]}\n') == {"a": [1, None]}
        assert params_of("-", stdin=b"[1, 2]") == [1, 2]

    def test_nothing_is_no_params(self) -> None:
        assert params_of("-", stdin=b" \n") is None

    @pytest.mark.parametrize(
        ("stdin", "words"),
        [(b"5", "object or array"), (b"{", "not JSON"), (b"\xff\xfe\xfd", "not UTF-8"), (b"[NaN]", "neither NaN")],
    )
    def test_anything_else_is_refused(self, stdin: bytes, words: str) -> None:
        assert words in refused("-", stdin=stdin)

    def test_alone(self) -> None:
        assert "no other parameter" in refused("-", "a=1", stdin=b"{}")
        assert "no other parameter" in refused("-", "--positional", "1", stdin=b"[]")


class TestArrays:
    def test_from_json(self) -> None:
        import numpy as np

        found = params_of(
            "a:ndarray=[[1,2],[3,4]]", "b:ndarray=1.5", "c:ndarray:float32=[1]", "d:ndarray=[]", "e:ndarray=[true]"
        )
        assert [(v.dtype.name, v.shape) for v in found.values()] == [
            ("int64", (2, 2)),
            ("float64", ()),
            ("float32", (1,)),
            ("float64", (0,)),
            ("bool", (1,)),
        ]
        assert np.array_equal(found["a"], [[1, 2], [3, 4]])

    def test_from_a_file(self, tmp_path: Path) -> None:
        import numpy as np

        array = np.arange(6, dtype=">f4").reshape(2, 3)
        np.save(tmp_path / "a.npy", array)
        (tmp_path / "b").write_bytes((tmp_path / "a.npy").read_bytes())
        found = params_of(f"a:ndarray={tmp_path / 'a.npy'}", f"b:ndarray=@{tmp_path / 'b'}")
        assert np.array_equal(found["a"], array)
        assert found["b"].dtype == array.dtype

    def test_a_pickle_is_refused(self, tmp_path: Path) -> None:
        import numpy as np

        np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
        assert "not a .npy file that can be sent" in refused(f"a:ndarray={tmp_path / 'a.npy'}")

    @pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"hello", b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f8' "])
    def test_a_broken_file_is_refused(self, content: bytes, tmp_path: Path) -> None:
        (tmp_path / "a.npy").write_bytes(content)
        assert "not a .npy file that can be sent" in refused(f"a:ndarray={tmp_path / 'a.npy'}")


class TestOptions:
    def test_joined_and_clustered_letters(self) -> None:
        options = parse(make_parser(), ["-vp5", "sum", "a=1"])
        assert (options.verbose, options.port, options.method, options.items) == (True, 5, "sum", ["a=1"])
        options = parse(make_parser(), ["-vp", "5", "sum"])
        assert (options.verbose, options.port, options.method) == (True, 5, "sum")
        assert parse(make_parser(), ["-p=5", "sum"]).port == 5

    def test_behind_two_dashes_nothing_is_an_option(self) -> None:
        options = parse(make_parser(), ["-v", "--", "-strange", "list=1"])
        assert (options.method, options.items, options.list) == ("-strange", ["list=1"], False)
        assert parse(make_parser(), ["--", "sum", "-"]).items == ["-"]
        assert parse(make_parser(), ["--publish", "t", "--", "-5"]).items == ["-5"]

    @pytest.mark.parametrize(
        ("argv", "words"),
        [
            ([], "METHOD is missing"),
            (["a=1"], "METHOD comes before the items"),
            (["-"], "METHOD comes before the items"),
            (["sum", "-p"], "expected one argument"),
            (["sum", "-p", "x"], "'x' is not a port"),
            (["sum", "-p", "65536"], "is not a port"),
            (["sum", "-p", "-1"], "is not a port"),
            (["sum", "--timeout", "-1"], "is not a number of seconds"),
            (["sum", "--timeout", "nan"], "is not a number of seconds"),
            (["sum", "--format", "xml"], "invalid choice"),
            (["sum", "--positional"], "expected at least one argument"),
            (["sum", "-o", "-v"], "expected one argument"),
            (["sum", "--frobnicate"], "unrecognized arguments: --frobnicate"),
            (["sum", "--time", "5"], "unrecognized arguments: --time"),
            (["sum", "-z"], "unrecognized arguments: -z"),
            (["--list", "sum"], "--list takes no METHOD"),
            (["sum", "--describe", "a=1"], "--describe takes no parameters"),
            (["sum", "--notify", "-o", "x"], "--notify has no answer"),
            (["--", "sum", "--uri=http://evil/?:str=x"], "never begins with '-'"),
            (["--", "sum", "a=1", "-i=x"], "as JSON: '-' reads standard input"),
            (["--publish", "t", "--", "-x"], "never begins with '-'"),
        ],
    )
    def test_wrong_use(self, argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as stopped:
            parse(make_parser(), argv)
        assert stopped.value.code == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("uri", "port", "found"),
    [
        (None, None, "127.0.0.1:8545"),
        (None, 1, "127.0.0.1:1"),
        ("host", None, "host:8545"),
        ("0.0.0.0", 8545, "0.0.0.0:8545"),
        ("host:1", None, "host:1"),
        ("host:1", 1, "host:1"),
        ("tcp://host:1", None, "host:1"),
        ("tcp://host/", 2, "host:2"),
        ("::1", 2, "[::1]:2"),
        ("[::1]", 2, "[::1]:2"),
        ("[::1]:3", None, "[::1]:3"),
        (":3", None, "127.0.0.1:3"),
        ("unix:///tmp/x", None, "unix:///tmp/x"),
        ("http+unix:///tmp/x", None, "http+unix:///tmp/x"),
        ("tls://host", None, "tls://host"),
        ("tls://host", 5, "tls://host:5"),
        ("http://host/a:b/", None, "http://host/a:b/"),
        ("http://host/a:b/?c", 5, "http://host:5/a:b/?c"),
        ("https://[::1]?x", 5, "https://[::1]:5?x"),
        ("ws://host:5/", 5, "ws://host:5/"),
    ],
)
def test_addresses(uri: str | None, port: int | None, found: str) -> None:
    assert join_address(uri, port) == found


@pytest.mark.parametrize(("uri", "port"), [("host:1", 2), ("unix:///x", 1), ("http+unix:///x", 1), ("ws://host:1/", 2)])
def test_addresses_that_contradict_themselves(uri: str, port: int | None) -> None:
    with pytest.raises(UsageError):
        join_address(uri, port)


def test_the_source_of_a_long_item_is_cut() -> None:
    assert len(parse_item("a:int=" + "9" * 10_000).source) < 70


@given(st.binary() | st.text(alphabet='[]{},:"0123456789.eE-+ntrufalse\\ ', max_size=60))
def test_parse_json_gives_a_value_or_a_value_error(text: str | bytes) -> None:
    try:
        parse_json(text)
    except ValueError:
        pass
