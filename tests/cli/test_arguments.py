"""Arguments of the command line as params: their grammar and types, what the method takes, and each mistake."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rpcstream import Info, Server
from rpcstream.cli.call import main
from rpcstream.testing import serve_in_thread

from ..kit import until_in_thread
from ..kit.scripted import ScriptedConnection, ScriptedServer
from .conftest import Run, Stranger, ended

UNKNOWN = "--no-schema"


def types_server() -> Server:
    server = Server(info=Info(title="types"), drain_timeout=0.1)

    @server
    def take(*args: Any, **kwargs: Any) -> Any:
        return list(args) or kwargs or None

    @server
    def say(text: str) -> str:
        return repr(text)

    @server
    def maybe(text: str | None) -> str:
        return repr(text)

    @server
    def either(value: str | int) -> str:
        return repr(value)

    @server
    def choose(size: Literal["1", "2"]) -> str:
        return repr(size)

    @server
    def rest(first: int, *more: str, **named: str) -> str:
        return repr((first, more, named))

    @server
    def anything(value: Any, data: bytes = b"") -> str:
        return repr(value)

    @server
    def single(points: npt.NDArray[np.float32]) -> str:
        return f"{points.dtype} {points.tolist()}"

    @server
    def small(points: Annotated[npt.NDArray[np.uint8] | npt.NDArray[np.int16], "one of two"]) -> str:
        return f"{points.dtype} {points.tolist()}"

    @server
    async def twice(text: str) -> Any:
        for _ in range(2):
            yield repr(text)

    return server


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve_in_thread(types_server()) as where:
        yield where


# -- items ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "taken"),
    [
        # Plain text is recognised as JSON would read it.
        *((each, each) for each in ("5", "-5", "0", "1.5", "123456789012345678901234567890", "true", "false", "null")),
        *((each, json.dumps(each)) for each in ("", "007", "+5", ".5", "1.", "1_000", "nan", "inf", "-Infinity")),
        *((each, json.dumps(each)) for each in ("True", "None", " 5", "5\n", "a=b", '"5"', "x:y", "=b")),
        ("-0", "0"),
        ("-1e3", "-1000.0"),
        ("1E-2", "0.01"),
        ("\u0665", '"\u0665"'),
        # Numbers that JSON or Python does not take.
        *((each, json.dumps(each)) for each in ("12e4567", "-1.5E+999", "9" * 5000)),
    ],
)
def test_plain_text(run: Run, typed: str, taken: str) -> None:
    assert run("take", f"a={typed}", UNKNOWN) == (0, f'{{"a":{taken}}}\n', "")
    assert run("take", f"--positional={typed}", UNKNOWN) == (0, f"[{taken}]\n", "")


BYTES = '{"$type":"bytes","data":"%s"}'


@pytest.mark.parametrize(
    ("typed", "taken"),
    [
        ("a.b=1", '{"a.b":1}'),
        ("a:b:int=1", '{"a:b":1}'),
        ("a:int=-5", '{"a":-5}'),
        ("a:float=5", '{"a":5.0}'),
        ("a:float=-1e3", '{"a":-1000.0}'),
        ("a:str=5", '{"a":"5"}'),
        ("a:str=@x", '{"a":"@x"}'),
        ("a:str=", '{"a":""}'),
        ("a:bool=Yes", '{"a":true}'),
        ("a:bool=0", '{"a":false}'),
        ("a:json=[1,2]", '{"a":[1,2]}'),
        ('a:={"b": [null]}', '{"a":{"b":[null]}}'),
        ("a:=18446744073709551617", '{"a":18446744073709551617}'),
        ("a:bytes=h\u00e9", f'{{"a":{BYTES % "aMOp"}}}'),
        ("a:bytes=", f'{{"a":{BYTES % ""}}}'),
        ("a:bytes=\udcff", f'{{"a":{BYTES % "/w=="}}}'),
        ("--positional=:str=5", '["5"]'),
        ("--positional=:=[1]", "[[1]]"),
        ("--positional=:int=7", "[7]"),
        ("--positional=:x=5", '[":x=5"]'),
        ("--positional=:", '[":"]'),
        ("--positional=-v", '["-v"]'),
    ],
)
def test_an_item(run: Run, typed: str, taken: str) -> None:
    assert run("take", typed, UNKNOWN) == (0, f"{taken}\n", "")


@pytest.mark.parametrize(
    ("argv", "taken"),
    [
        ([], None),
        (["a=1", "--timeout", "3", "b=2", "c=3", "--no-progress"], {"a": 1, "b": 2, "c": 3}),
        (["--positional", "1", "-5", "-1e3", "-.5", "x", "true", ""], [1, -5, -1000.0, "-.5", "x", True, ""]),
        (["t=@text=.txt", "j:=@list", "k:json=@list"], {"t": "line\nh\u00e9\n", "j": [1, 2], "k": [1, 2]}),
        (["-f", "data=a=b.bin", "x=1"], {"x": 1, "data": "AP8="}),
        (["-fdata=a=b.bin"], {"data": "AP8="}),
        (["--file", "./a=b.bin"], ["AP8="]),
        (["-f", "na-me=list"], {"na-me": "WzEsIDJd"}),
        (["--positional", "1", "-f", "list", "--positional", "2", "-f", "list"], [1, "WzEsIDJd", 2, "WzEsIDJd"]),
        (["--", "a=1"], {"a": 1}),
        (["a:ndarray=[[1,2],[3,4]]"], {"a": ["<i8", [2, 2]]}),
        (["a:ndarray=1.5", "b:ndarray=[1]"], {"a": ["<f8", []], "b": ["<i8", [1]]}),
        (["a:ndarray=[]", "b:ndarray=[true]"], {"a": ["<f8", [0]], "b": ["|b1", [1]]}),
        (["--positional", ":ndarray=[1]"], [["<i8", [1]]]),
        (["a:ndarray=a.npy", "b:ndarray=@array"], {"a": [">f4", [2, 3]], "b": [">f4", [2, 3]]}),
    ],
)
def test_files_arrays_and_the_order(
    run: Run, argv: list[str], taken: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text=.txt").write_text("line\nh\u00e9\n", encoding="utf-8")
    Path("list").write_text("[1, 2]")
    Path("a=b.bin").write_bytes(b"\0\xff")
    np.save("a.npy", np.zeros((2, 3), dtype=">f4"))
    Path("array").write_bytes(Path("a.npy").read_bytes())

    def plain(value: Any) -> Any:
        """Arrays by dtype and shape, bytes by their base64."""
        if isinstance(value, list):
            return [plain(each) for each in value]
        if not isinstance(value, dict):
            return value
        if value.get("$type") == "ndarray":
            return [value["dtype"], value["shape"]]
        return value["data"] if "$type" in value else {name: plain(each) for name, each in value.items()}

    status, out, err = run("take", UNKNOWN, *argv)
    assert (status, err) == (0, "")
    assert plain(json.loads(out)) == taken


def test_standard_input(address: str) -> None:
    at = ("--uri", address)
    for argv, typed, out in [
        (("-",), ' {"a": [1, null]}\n', '{"a":[1,null]}'),
        (("-",), "[1, 2]", "[1,2]"),
        (("-",), " \n", "null"),
        (("-f", "data=-"), "x", f'{{"data":{BYTES % "eA=="}}}'),
        (("text=@-", UNKNOWN), "x", '{"text":"x"}'),
    ]:
        assert ended("take", *argv, *at, input=typed) == (0, f"{out}\n", "")
    for typed, words in [("5", "object or array"), ("{", "not JSON"), ("[NaN]", "neither NaN")]:
        status, _, err = ended("take", "-", *at, input=typed)
        assert (status, words in err) == (2, True)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["foo"], "'foo' is not an item"),
        (["=5"], "the key before the '=' is missing"),
        ([":int=5"], "the key before the '=' is missing"),
        (["a:colour=red"], "unknown type 'colour'"),
        (["a:int=x"], "'a:int=x': not an integer"),
        *(([f"a:int={each}"], "not an integer") for each in ("", "1.5", "9" * 5000)),
        (["a:float=x"], "not a number"),
        (["a:float=1e400"], "too large for a float"),
        (["a:=[1e400]"], "beyond the numbers of JSON"),
        (["a:bool=maybe"], "not a bool"),
        *(([f"a:={each}"], "not JSON") for each in ("", "{", "[1,]")),
        (["a:=NaN"], "neither NaN nor infinity"),
        (["a:=" + "[" * 100_000], "nested too deep"),
        (["a=\udcff"], "not valid UTF-8"),
        (["a=@/no/such/file"], "cannot read '/no/such/file': No such file"),
        (["a=@/"], "cannot read '/'"),
        (["a=@x\0y"], "cannot read"),
        (["a=@latin"], "send its bytes with -f"),
        (["a:image=/no/such.png"], "cannot read '/no/such.png'"),
        (["a:ndarray=/no/such.npy"], "cannot read '/no/such.npy'"),
        (["a:ndarray=abc"], "neither the name of a .npy file nor JSON"),
        (['a:ndarray=["x"]'], "not an array: nested lists must contain only numbers"),
        (["a:ndarray=[[1,2],[3]]"], "not an array"),
        (["a:ndarray:float32=[1]"], "unknown type 'float32'"),
        *(([f"a:ndarray={each}.npy"], "not a .npy file that can be sent") for each in ("pickle", "0", "1", "2", "3")),
        (["a=1", "a=2"], "the parameter 'a' is given twice"),
        (["a=1", "-f", "a=/dev/null"], "the parameter 'a' is given twice"),
        (["a=@-", "b=@-"], "standard input can be read only once"),
        (
            ["a=1", "--positional", "2"],
            "by name or by position, not both: 'a=1' has a name, '2' has none",
        ),
        (["-", "a=1"], "no other parameter"),
        (["-", "--positional", "1"], "no other parameter"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_item_is_refused_in_one_line(
    run: Run, argv: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("latin").write_bytes(b"\xff")
    np.save("pickle.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    for at, content in enumerate((b"", b"\x93NUMPY", b"hello", b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f8' ")):
        Path(f"{at}.npy").write_bytes(content)
    with open("/dev/null") as empty:
        monkeypatch.setattr(sys, "stdin", empty)
        status, out, err = run("take", *argv)
    assert (status, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert len(err) < 420


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "METHOD is missing"),
        (["a=1"], "METHOD comes before the items"),
        (["-"], "METHOD comes before the items"),
        (["sum", "-p"], "expected one argument"),
        *((["sum", "-p", each], "is not a port") for each in ("x", "65536", "-1")),
        *((["sum", "--timeout", each], "is not a number of seconds") for each in ("-1", "nan")),
        (["sum", "--format", "xml"], "invalid choice"),
        (["sum", "--positional"], "expected at least one argument"),
        (["sum", "-o", "-v"], "expected one argument"),
        (["sum", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["sum", "--time", "5"], "unrecognized arguments: --time"),
        (["sum", "-z"], "unrecognized arguments: -z"),
        (["sum", "-vp", "1"], "-p/--port: expected one argument"),
        (["--list", "sum"], "--list takes no METHOD"),
        (["sum", "--describe", "a=1"], "--describe takes no parameters"),
        (["sum", "--notify", "-o", "x"], "--notify takes no -o"),
        (["--", "sum", "--uri=http://evil/?:str=x"], "never begins with '-'"),
        (["--", "sum", "a=1", "-i=x"], "as JSON: '-' reads standard input"),
        (["--publish", "t", "--", "-x"], "never begins with '-'"),
        (["sum", "--uri", "host:1", "-p", "2"], "port"),
        (["sum", "--uri", "unix:///x", "-p", "1"], "port"),
        (["sum", "--uri", "http+unix:///x", "-p", "1"], "port"),
        (["sum", "--uri", "ws://host:1/", "-p", "2"], "port"),
    ],
)
def test_wrong_use_of_options(run: Run, argv: list[str], words: str) -> None:
    status, out, err = run(*argv, uri=None)
    assert (status, out) == (2, "")
    assert words in err


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["-p", "PORT"], 0),
        (["-vpPORT"], 0),
        (["-p=PORT"], 0),
        (["-p", "PORT", "--", "rpc.ping"], 0),
        *((["--uri", each], 0) for each in ("127.0.0.1:PORT", "tcp://127.0.0.1:PORT", ":PORT", "ws://127.0.0.1:PORT/")),
        *((["--uri", each, "-p", "PORT"], 0) for each in ("127.0.0.1", "127.0.0.1:PORT", "tcp://127.0.0.1/")),
        *(
            (["--uri", each, "-p", "PORT"], 0)
            for each in ("http://127.0.0.1/", "http://127.0.0.1/?c", "ws://127.0.0.1")
        ),
        (["--uri", "http://127.0.0.1/a:b/?c", "-p", "PORT"], 3),
        *((["--uri", each], 3) for each in ("127.0.0.2", "tls://127.0.0.2", "::1", "[::1]")),
    ],
)
def test_addresses(run: Run, argv: list[str], status: int, address: str) -> None:
    method = [] if "rpc.ping" in argv else ["rpc.ping"]
    argv = [each.replace("PORT", address.rpartition(":")[2]) for each in argv]
    found, out, err = run(*method, *argv, uri=None)
    assert (found, out) == (status, '"pong"\n' if status == 0 else "")
    assert ":8545" in err or "-p" in argv or status == 0


@given(st.binary() | st.text(alphabet='[]{},:"0123456789.eE-+ntrufalse\\ ', max_size=60))
@example(b"\xff\xfe\xfd")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_json_is_sent_or_refused(address: str, tmp_path: Path, text: str | bytes) -> None:
    (tmp_path / "x").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main(["take", f"a:=@{tmp_path / 'x'}", "--uri", address, "-o", "/dev/null"]) in (0, 2)


@given(st.text(alphabet=st.characters(codec="utf-8")))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_goes_as_str(address: str, tmp_path: Path, text: str) -> None:
    assert main(["take", f"key:str={text}", "--uri", address, "-o", str(tmp_path / "x"), UNKNOWN]) == 0
    assert json.loads((tmp_path / "x").read_bytes()) == {"key": text}


# -- as the method takes them ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["say", "text=1"], "'1'"),
        (["say", "text=1.50"], "'1.50'"),
        (["say", "text=true"], "'true'"),
        (["say", "text=null"], "'null'"),
        (["say", "--positional", "007", "--no-progress"], "'007'"),
        (["say", "--positional", "-1e3"], "'-1e3'"),
        (["maybe", "text=null"], "None"),
        (["maybe", "text=1"], "'1'"),
        (["either", "value=1"], "1"),
        (["either", "value=true"], "'true'"),
        (["choose", "size=1"], "'1'"),
        (["rest", "--positional", "1", "2", "3"], "(1, ('2', '3'), {})"),
        (["rest", "first=1", "b=2"], "(1, (), {'b': '2'})"),
        (["anything", "value=1"], "1"),
        (["single", "points:ndarray=[[1,2]]"], "float32 [[1.0, 2.0]]"),
        (["single", "--positional", ":ndarray=[0.5]"], "float32 [0.5]"),
        (["small", "points:ndarray=[300]"], "int16 [300]"),
        (["small", "points:ndarray=[-1]"], "int16 [-1]"),
        (["anything", "value:ndarray=[1]"], "array([1])"),
        (["--stream", "twice", "text=1"], "'1'\n'1'"),
    ],
)
def test_as_the_method_takes_them(run: Run, argv: list[str], said: str) -> None:
    assert run(*argv, "--format", "raw") == (0, f"{said}\n", "")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["say", "text:int=1"], "error -32602"),
        (["small", "points:ndarray=[70000]"], "error -32602"),
        (["say", "text=1", UNKNOWN], "; for text give text:str=1\n"),
        (["say", "--positional", "1", UNKNOWN], "; for text give :str=1\n"),
        (["single", "points:ndarray=[1]", UNKNOWN], "; for another dtype give a .npy file\n"),
    ],
)
def test_what_is_explicit_wins_and_the_error_says_how(run: Run, argv: list[str], said: str) -> None:
    status, out, err = run(*argv)
    assert (status in (1, 2), out, err.count("\n")) == (True, "", 1)
    assert said in err


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        (["say", "text=a"], False),
        (["say", "text:str=1"], False),
        (["say", "text=1", UNKNOWN], False),
        (["single", "points:ndarray=@floats.npy"], False),
        (["say", 'text:="a"'], False),
        (["say", "text=1"], True),
        (["single", "points:ndarray=[1]"], True),
        (["say", "text=1", "--notify"], True),
    ],
)
def test_the_server_is_asked_where_that_matters(
    run: Run, argv: list[str], asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("floats.npy", np.ones(1, np.float32))
    assert run(*argv, "-v")[2].count('"method":"rpc.discover"') == asked


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [schema]}
    return schema


NAMED: dict[str, Any] = {f"S{n}": {"anyOf": [{"$ref": f"#/components/schemas/S{n + 1}"}] * 50} for n in range(6)}
NAMED |= {"S6": {"type": "string"}, "A": {"$ref": "#/components/schemas/A"}}


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({"type": "string"}, "1"),
        ({"type": ["string", "null", 3]}, "1"),
        ({"const": "a"}, "1"),
        ({"$ref": "#/components/schemas/S6"}, "1"),
        (nested(4), "1"),
        *((each, 1) for each in ({}, True, "string", {"type": 3}, {"enum": [[1]]}, {"enum": ["a", 1, None]})),
        ({"type": "string", "contentEncoding": "base64"}, 1),
        ({"anyOf": [{"type": "string"}, {}]}, 1),
        ({"anyOf": "x"}, 1),
        ({"$ref": 3}, 1),
        (nested(50), 1),
        # One that leads to itself, and alternatives that refer to alternatives.
        ({"$ref": "#/components/schemas/A"}, 1),
        ({"$ref": "#/components/schemas/S0"}, "1"),
    ],
)
def test_what_a_careless_or_hostile_server_says_of_its_methods(
    run: Run, stranger: Stranger, schema: Any, sent: Any
) -> None:
    methods = [{"name": "m", "params": [{"name": "p", "schema": schema}]}]
    address = stranger(result={"methods": methods, "components": {"schemas": NAMED}})
    assert run("m", "p=1", "--notify", uri=address)[0] == 0  # for a notification the server is asked first
    until_in_thread(lambda: stranger.heard[-1]["method"] == "m")
    assert stranger.heard[-1]["params"] == {"p": sent}


@pytest.mark.parametrize(
    "document",
    [
        *(None, 3, {}, {"methods": 3}, {"methods": [3, {}, {"name": 3}]}, {"methods": {"a": 1}}),
        {"methods": [{"name": "m", "params": [{"name": f"p{n}", "schema": {"type": "string"}} for n in range(1000)]}]},
    ],
)
def test_documents_that_are_none(run: Run, stranger: Stranger, document: Any) -> None:
    assert run("m", "p0=1", uri=stranger(result=document))[0] == 0
    assert stranger.heard[-1]["params"] == {"p0": 1}


def test_a_server_that_does_not_say(run: Run) -> None:
    def answer(line: ScriptedConnection) -> None:
        for code in (-32602, -32601):
            line.say({"jsonrpc": "2.0", "id": line.read()["id"], "error": {"code": code, "message": "No"}})

    server = ScriptedServer(answer)
    try:
        status, _, err = run("say", "text=1", uri=server.address)
    finally:
        server.close()
    assert (status, err) == (1, "error -32602: No; for text give text:str=1\n")
