"""What is shown of results: to people, on terminals, with -v, while a call goes on; and what is saved."""

from __future__ import annotations

import io
import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Annotated, Any

import annotated_types as at
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from scipy import sparse

from rpcstream import Codec, Server, Shape
from rpcstream.testing import serve_in_thread

from .conftest import Run, Stranger, on_a_terminal

COLOUR = re.compile("\x1b\\[[0-9;]*m")

#: The line of -v about the time of a call.
TIME = re.compile(r"\* done in [\d.]+ ms, connecting included")

#: Clears the screen, sets the title, turns the direction of writing, is no character, forges a line.
NASTY = "x\x1b[2J\x1b]0;title\x07\x9b2J\x7f\x00\b\r\v\n\u202e\u2066\u200f\u2028'\"$(touch no)`y"

#: What a terminal must not get, besides line ends and tabs.
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


# -- to people ------------------------------------------------------------------------------------------------------

FRAME = pd.DataFrame({"city": ["Oslo", "B\x1b[2Jern"]})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, 2.5, "x", None]}, '{\n  "a": [1, 2.5, "x", null]\n}'),
        ({"b": {}, "d": [{"e": 1}]}, '{\n  "b": {},\n  "d": [\n    {\n      "e": 1\n    }\n  ]\n}'),
        (np.empty((0, 3)), "ndarray float64 (0, 3)"),
        (np.array(1.5), "ndarray float64 ()\n  1.5"),
        (np.arange(1000, dtype="<f4").reshape(10, 100), "ndarray float32 (10, 100)\n  [[  0. "),
        ({"photo": Image.new("RGB", (40, 20), "red")}, '{\n  "photo": image PNG 40 x 20 RGB\n}'),
        (b"\0" * 2000, "bytes (2,000)\n  b'\\x00"),
        (b"", "bytes (0)"),
        ([1 + 2j], "[\n  (1+2j)\n]"),
        (FRAME, "pandas.DataFrame (2, 1)\n"),
        ([pa.table({"a": [1]})], "[\n  pyarrow.Table (1, 1)\n    pyarrow.Table\n    a: int64"),
        (pl.DataFrame({"a": [1]}), "polars.DataFrame (1, 1)\n"),
        (sparse.csr_array(np.eye(3)), "scipy.csr_array (3, 3)\n"),
        (pa.table({"a": range(100_000)}), "pyarrow.Table (100000, 1)\n"),
        (["x" * 30] * 3, '[\n  "xxx'),
    ],
)
def test_as_text(run: Run, stranger: Stranger, value: Any, text: str) -> None:
    shown = run("m", "--format", "text", uri=stranger.giving(value))[1]
    assert shown.startswith(text)
    assert shown.count("\n") <= 40
    assert max(map(len, shown.splitlines())) <= 120
    assert "\x1b" not in shown
    status, coloured = on_a_terminal("m", "--uri", stranger.giving(value))
    assert (status, COLOUR.sub("", coloured)) == (0, shown)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"$type": "frame", "rows": [1]}, '"$type": "frame"'),
        ({"$type": "ndarray", "dtype": "<f4", "shape": [3], "data": "A" * 5000}, '"$type": "ndarray"'),
        ({"$type": "ndarray", "dtype": "<f4", "shape": [3], "data": "A" * 5000}, "A" * 60 + '... (5,000 characters)"'),
        (json.loads("[" * 95 + "]" * 95), "["),
    ],
)
def test_what_cannot_be_decoded_is_shown_as_it_is(run: Run, stranger: Stranger, value: Any, text: str) -> None:
    status, shown, err = run("m", "--format", "text", uri=stranger(result=value))
    assert (status, text in shown, err) == (0, True, "")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(json_values.filter(lambda value: not re.search("inf|\\$type", repr(value))))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_plain_values_stay_json_and_nothing_commands_the_terminal(address: str, value: Any) -> None:
    given = json.dumps(value)
    status, shown = on_a_terminal("echo", f"value:={given}", "--no-schema", "--uri", address)
    assert status == 0
    assert not OBEYED.search(plain := COLOUR.sub("", shown)), plain
    assert json.loads(plain) == value


def test_an_image_is_one_line(stranger: Stranger) -> None:
    for mode in ("1", "L", "RGBA", "I;16"):
        assert on_a_terminal("m", "--uri", stranger.giving(Image.new(mode, (40, 20)))) == (
            0,
            f"\x1b[33mimage PNG 40 x 20 {mode}\x1b[0m\n",
        )


# -- on a terminal --------------------------------------------------------------------------------------------------

BLUE, GREEN = '\x1b[34m"%s"\x1b[0m', '\x1b[32m"%s"\x1b[0m'


@pytest.mark.parametrize(
    ("argv", "variables", "found"),
    [
        (
            ["take", 'a:={"b": "x"}'],
            {},
            '{\n  \x1b[34m"a"\x1b[0m: {\n    \x1b[34m"b"\x1b[0m: \x1b[32m"x"\x1b[0m\n  }\n}\n',
        ),
        (["take", "a=1"], {"NO_COLOR": "1"}, '{\n  "a": 1\n}\n'),
        (["take", "a=1"], {"TERM": "dumb"}, '{\n  "a": 1\n}\n'),
        (["take", "a=1", "--format", "json"], {}, '{"a":1}\n'),
        (["take", "a=\u00e9"], {"encoding": "ascii"}, '{\n  "a": "\\xe9"\n}\n'),
        (["square", "side=4"], {"encoding": "ascii"}, "image PNG 4 x 4 RGB\n"),
        (["square", "side=4"], {}, "\x1b[33mimage PNG 4 x 4 RGB\x1b[0m\n"),
        (["--stream", "ramps", "n=1"], {"NO_COLOR": "1"}, "ndarray float32 (2,)\n  [0. 0.]\n"),
        (["fail", "message=no"], {}, "\x1b[31merror 1:\x1b[0m no\n"),
        (
            ["sum", "--describe"],
            {"NO_COLOR": "1"},
            "sum(a: int, b: int = 2) -> int\n\n    Adds two numbers.\n\n    Nothing else.\n",
        ),
    ],
)
def test_on_a_terminal(argv: list[str], variables: dict[str, Any], found: str, address: str) -> None:
    assert on_a_terminal(*argv, "--uri", address, **variables)[1] == found


def test_raw_bytes_do_not_reach_a_terminal(address: str) -> None:
    status, text = on_a_terminal("blob", "n=3", "--format", "raw", "--uri", address, NO_COLOR="1")
    assert status == 0
    assert "binary data" in text
    assert text.endswith("bytes (3)\n  b'\\xff\\xff\\xff'\n")


# -- control characters ---------------------------------------------------------------------------------------------

SCHEMA: dict[str, Any] = {
    "$ref": f"#/components/schemas/{NASTY}",
    "title": NASTY,
    "format": NASTY,
    "default": {NASTY: NASTY},
}
PARAMS = [
    {"name": NASTY, "schema": SCHEMA},
    {"name": "a", "schema": {"enum": [NASTY], "x-default": NASTY}},
    {"name": "b", "schema": {"type": "string", "format": NASTY}},
    {"name": "c", "schema": {"type": "object", "title": NASTY, "description": NASTY * 99, "minimum": []}},
    {"name": "d", "schema": {"properties": {"$type": {"const": NASTY}, "dtype": {"enum": [NASTY]}}}},
    {"name": "e", "schema": {"const": {"$type": NASTY}}},
]
METHOD = {"name": "m", "summary": NASTY, "description": NASTY, "params": PARAMS, "result": {"schema": SCHEMA}}
DOCUMENT = {
    "methods": [METHOD, {**METHOD, "name": NASTY}, {"no": "name"}, 5],
    "components": {"schemas": {NASTY: {"type": "object", "properties": {NASTY: {"default": NASTY, "title": NASTY}}}}},
}
RESULTS = [NASTY, [NASTY], {NASTY: NASTY}, {"$type": NASTY, "data": NASTY}, {"$type": "image", "format": NASTY}]
PROGRESS = {"done": 1, "total": 2, "message": NASTY}
ERROR = {"code": 5, "message": NASTY, "data": {"traceback": NASTY, NASTY: NASTY}}


@pytest.mark.parametrize(
    ("argv", "reply"),
    [
        *((["m", *more], {"result": NASTY}) for more in ([], ["--format", "json"], ["--format", "raw"], ["-v"])),
        *((["m", *more], {"result": RESULTS}) for more in ([], ["--format", "json"], ["-o", "-"], ["--stream"])),
        *((["m", *more], {"error": ERROR}) for more in ([], ["-v"])),
        *((argv, {"result": DOCUMENT}) for argv in (["--list"], ["--describe", "m"], ["--list", "--format", "raw"])),
        (["--describe", "m", "--format", "json"], {"result": DOCUMENT}),
    ],
)
def test_control_characters_do_not_reach_a_terminal(stranger: Stranger, argv: list[str], reply: dict[str, Any]) -> None:
    # While a terminal is written over, a carriage return is our own.
    progress = [] if "-v" in argv else [NASTY, PROGRESS]
    status, text = on_a_terminal(*argv, "--uri", stranger(*progress, **reply), NO_COLOR="1")
    assert status == (1 if "error" in reply else 0), text
    text = text.replace("\r", "") if progress else text
    assert not OBEYED.search(text), text
    assert "\\u001b[2J" in text


def test_in_a_pipe_a_result_is_exact(run: Run, stranger: Stranger) -> None:
    for result in RESULTS:
        assert json.loads(run("m", uri=stranger(result=result))[1]) == result
    assert run("m", "--format", "raw", uri=stranger(result=NASTY))[1] == NASTY + "\n"
    assert not OBEYED.search(run("m", uri=stranger(error=ERROR))[2])


def test_an_error_with_a_traceback_stands_above_it(run: Run, stranger: Stranger) -> None:
    data = {"type": "KeyError", "traceback": "Traceback:\n  x\n"}
    err = run("m", uri=stranger(error={"code": -32603, "message": "Internal\nerror", "data": data}))[2]
    assert err == "error -32603: Internal\\u000aerror\nTraceback:\n  x\n"


def test_descriptions_without_end(stranger: Stranger) -> None:
    schema: Any = {}
    for _ in range(30):
        schema = {"anyOf": [{"items": schema}]}
    deep = {"methods": [{"name": "m", "params": [], "result": {"schema": schema}}]}
    status, text = on_a_terminal("--describe", "m", "--uri", stranger(result=deep), NO_COLOR="1")
    assert (status, "Traceback" in text) == (0, False)


@given(json_values)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_document_is_shown_or_refused(run: Run, document: Any) -> None:
    stranger = Stranger()
    method = {"name": "m", "params": document, "result": document}
    try:
        for result in ({"methods": document}, {"methods": [method], "components": {"schemas": document}}):
            address = stranger(result=result)
            assert run("--list", uri=address)[0] in (0, 1)
            assert run("--describe", "m", "--format", "text", uri=address)[0] in (0, 1)
    finally:
        for each in stranger.servers:
            each.close()


# -- descriptions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "integer"}, "int"),
        ({"type": "string", "format": "date-time"}, "str (date-time)"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "int | null"),
        ({"type": ["string", "null"]}, "str | null"),
        ({"type": "array", "items": {"type": "number"}}, "list[float]"),
        ({"type": "array"}, "list"),
        ({"type": "array", "prefixItems": [{"type": "string"}, {}], "items": False, "minItems": 2}, "tuple[str, any]"),
        ({"type": "array", "items": {"type": "number"}, "x-stream": True}, "stream of float"),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, "dict[str, bool]"),
        ({"type": "object"}, "dict"),
        ({"enum": ["a", 1]}, 'Literal["a", 1]'),
        ({"const": None}, "null"),
        ({"$ref": "#/components/schemas/Point"}, "Point"),
        ({"$ref": "#/components/schemas/pandas_DataFrame"}, "pandas.DataFrame"),
        ({"title": "Count", "type": "integer"}, "int"),
        ({"enum": ["x\x1b"]}, 'Literal["x\\u001b"]'),
        ({"type": "object", "properties": {"$type": {"const": "frame"}}}, "frame"),
    ],
)
def test_types_of_schemas(run: Run, stranger: Stranger, schema: Any, text: str) -> None:
    frame = {"anyOf": [{"properties": {"$type": {"const": "pandas"}}}, {"type": "string", "contentEncoding": "base64"}]}
    components = {"schemas": {"Point": {"type": "object", "properties": {"x": {}}}, "pandas_DataFrame": frame}}
    methods = [{"name": "m", "params": [], "result": {"schema": schema}}]
    shown = run("--list", uri=stranger(result={"methods": methods, "components": components}))[1]
    assert shown == f"m() -> {text}\n"


def test_the_protocols_own_methods_come_last_and_generators_give_streams(run: Run, stranger: Stranger) -> None:
    loss = {"type": "object", "properties": {"value": {"type": "number"}}}
    item = {"$ref": "#/components/schemas/Loss"}
    epochs = {"name": "epochs", "schema": {"type": "integer", "minimum": 1, "maximum": 9, "default": 5}}
    losses = {"schema": {"type": "array", "items": item}}
    train = {"name": "train", "params": [epochs], "result": losses, "x-stream": True, "x-item": item}
    document = {"methods": [{"name": "rpc.ping"}, train], "components": {"schemas": {"Loss": loss}}}
    address = stranger(result=document)
    assert run("--list", uri=address)[1] == "train(epochs: int = 5) -> stream of Loss\nrpc.ping()\n"
    assert run("train", "--describe", "--format", "text", uri=address)[1] == (
        "train(epochs: int = 5) -> stream of Loss\n\n    epochs: >= 1, <= 9\n\nwhere\n    Loss = {value: float}\n"
    )


PLOT = [
    {"name": "at", "required": True, "schema": {"$ref": "#/components/schemas/Point"}},
    {"name": "size", "required": False, "schema": {"type": "integer", "default": 3}},
    {"name": "when", "required": False, "schema": {"x-default": "NOW"}},
    {"name": "mask", "required": False, "schema": {"default": {"$type": "ndarray", "data": "A" * 99}}},
    {"name": "text", "required": False, "schema": {"default": "x" * 99}},
    {"name": "more", "required": False, "x-rest": "named", "schema": {}},
]
POINT = {"x": {"type": "integer"}, "of": {"$ref": "#/components/schemas/Kind", "default": "a"}}
SCHEMAS = {
    "Point": {"title": "Point", "type": "object", "properties": POINT},
    "Kind": {"title": "Kind", "enum": ["a", "b"]},
}


def test_a_signature_with_its_types(run: Run, stranger: Stranger) -> None:
    said = {"summary": "Draws a point.", "description": "Draws a point.\n\nNowhere else."}
    plot = {"name": "plot", "params": PLOT, "result": {"name": "result", "schema": {"type": "null"}}, **said}
    address = stranger(result={"methods": [plot, {"name": "bare"}], "components": {"schemas": SCHEMAS}})
    text = "x" * 39
    signature = f'plot(at: Point, size: int = 3, when=NOW, mask=<ndarray>, text="{text}..., **more) -> null'
    assert run("--list", uri=address)[1] == f"bare()\n{signature}  # Draws a point.\n"
    assert run("plot", "--describe", "--format", "text", uri=address)[1] == (
        f"{signature}\n\n    Draws a point.\n\n    Nowhere else.\n\nwhere\n"
        '    Kind = Literal["a", "b"]\n    Point = {x: int, of: Kind = "a"}\n'
    )


def test_hints_of_a_server(run: Run) -> None:
    def function(
        n: Annotated[int | None, at.Ge(0), "how\nmany"],
        name: Annotated[str, at.Len(1, 5)],
        far: Annotated[float, "in m"],
        rows: Annotated[NDArray[np.float32], Shape(None, 3)],
        any: np.ndarray,
        photo: Image.Image,
        data: bytes,
    ) -> None:
        """Do it."""

    server = Server()
    server.add(function, name="m")
    with serve_in_thread(server) as address:
        shown = run("m", "--describe", "--format", "text", uri=address)[1]
    assert shown == (
        "m(n: int | null, name: str, far: float, rows: ndarray[float32, (*, 3)], any: ndarray, photo: image, "
        "data: bytes) -> null\n\n    Do it.\n\n    n: >= 0; how many\n"
        "    name: length >= 1, length <= 5\n    far: in m\n"
    )


# -- files ----------------------------------------------------------------------------------------------------------

NOISE = io.BytesIO()
Image.effect_noise((32, 32), 50).convert("RGB").save(NOISE, "JPEG", quality=30)
JPEG = {"$type": "image", "format": "jpeg", "data": b64encode(NOISE.getvalue()).decode()}
BROKEN = {"$type": "image", "format": "png", "data": "aGVsbG8="}
ARRAY = json.loads(Codec().dumps(np.arange(3)))
PIXELS = {"$type": "image", "format": "raw", "mode": "L", "size": [2, 1], "data": "AP8="}


STARTS = {"a.png": b"\x89PNG", "a.JPEG": b"\xff\xd8", "a.webp": b"RIFF"}


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("value", "file", "saved", "complaint"),
    [
        (np.arange(3), "a.npy", npy(np.arange(3)), ""),
        (np.arange(3), "a", npy(np.arange(3)), ""),
        (np.arange(3), "a.png", None, "the result is ndarray int64 (3,): an image is an array of uint8"),
        (np.arange(3), "/dev/null", b"", ""),
        (np.arange(2), "a.json", b'{"$type":"ndarray"', ""),
        *((JPEG, name, NOISE.getvalue(), "") for name in ("a.jpg", "a.jpeg", "a")),
        *(
            (PIXELS, name, start, "")
            for name, start in [("a.png", b"\x89PNG"), ("a.JPEG", b"\xff\xd8"), ("a.webp", b"RIFF")]
        ),
        (BROKEN, "a.png", b"hello", ""),
        (BROKEN, "a.jpg", None, "the result is an image that cannot be decoded"),
        (Image.new("RGBA", (8, 8)), "a.jpg", None, "an image of mode RGBA cannot be saved as JPEG"),
        (Image.new("RGB", (8, 8)), "a.xyz", b"\x89PNG", ""),
        (Image.new("RGB", (8, 8)), "a.npy", None, "the result is image PNG 8 x 8 RGB"),
        *((b"\0\xff", name, b"\0\xff", "") for name in ("a", "a.json", "a.png")),
        ({"a": [1]}, "a.txt", b'{"a":[1]}\n', ""),
        ("x", "a.txt", b'"x"\n', ""),
        (np.eye(2, dtype=bool), "a.png", b"\x89PNG", ""),
        ([1], "a.npy", None, "the result is a list of a number: a .npy file cannot contain it; here"),
        ({"n": None, "t": "x"}, "a.csv", None, "the result is an object of null and text: a .csv file cannot"),
        ([], "a.csv", None, "the result is a list of no members: "),
        (list(range(5)), "a.csv", None, "the result is a list of 5 members: "),
        (sparse.csr_array(np.eye(3)), "a.json", b'{"$type":"sparse"', ""),
    ],
)
def test_what_is_saved(
    run: Run, stranger: Stranger, tmp_path: Path, value: Any, file: str, saved: bytes | None, complaint: str
) -> None:
    address = stranger(result=value) if isinstance(value, dict) else stranger.giving(value)
    status, out, err = run("m", "-o", str(tmp_path / file), uri=address)
    assert (status, bool(out)) == (2 if complaint else 0, bool(complaint))
    assert complaint in err
    assert (tmp_path / file).exists() is (saved is not None)
    if saved is None:
        return
    assert (tmp_path / file).read_bytes().startswith(saved)
    if b"PNG" in saved:
        Image.open(tmp_path / file).load()


def test_a_result_with_an_image_among_its_members(run: Run, stranger: Stranger, tmp_path: Path) -> None:
    """The error says how to save the image, and what is shown in place of the result has no base64."""
    out, ways = str(tmp_path / "a.png"), "--select {} writes the image, -o DIR/ writes all members; here is the result"
    photo = Image.effect_noise((64, 64), 80)
    address = stranger.giving([photo, {"n": 1}])
    status, shown, err = run("m", "-o", out, uri=address)
    assert (status, shown) == (2, '[image PNG 64 x 64 L, {"n": 1}]\n')
    said = f"rpcstream: cannot write '{out}': the result is a list of an image and an object: "
    assert err == f"{said}a .png file cannot contain it; {ways.format(0)}\n"
    whole = run("m", "-o", out, "--format", "json", uri=address)[1]
    assert json.loads(whole)[1] == {"n": 1}
    assert len(whole) > 4000
    assert run("m", "-o", out, "--select", "0", uri=address) == (0, "", "")
    named = stranger.giving({"a": {"n": 1, "odd name": photo, "mask": photo}})
    assert ways.format("a.mask") in run("m", "-o", out, "--select", "a", uri=named)[2]
    assert "--select 0 writes the image; here" in run("--stream", "m", "-o", out, uri=stranger.giving([photo]))[2]


def test_a_mask_is_saved_in_black_and_white(run: Run, stranger: Stranger, tmp_path: Path) -> None:
    out, mask = tmp_path / "mask.png", np.arange(6).reshape(2, 3) % 2 == 0
    assert run("m", "-o", str(out), uri=stranger.giving(mask)) == (0, "", "")
    with Image.open(out) as image:
        assert np.asarray(image).tolist() == (mask * 255).tolist()


def test_what_is_raw(run: Run, stranger: Stranger, tmp_path: Path) -> None:
    out = str(tmp_path / "a")
    for value, data in [("a\u00e9", b"a\xc3\xa9\n"), (b"\xff", b"\xff"), ([1], b"[1]\n"), (None, b"null\n")]:
        assert run("m", "--format", "raw", "-o", out, uri=stranger.giving(value)) == (0, "", "")
        assert Path(out).read_bytes() == data
    for value, begin in [(JPEG, NOISE.getvalue()), (PIXELS, b"\x89PNG"), (ARRAY, npy(np.arange(3)))]:
        assert run("m", "--format", "raw", "-o", out, uri=stranger(result=value)) == (0, "", "")
        assert Path(out).read_bytes().startswith(begin)
    for path in (str(tmp_path), str(tmp_path / "no" / "a"), ""):
        status, _, err = run("m", "-o", path, uri="127.0.0.1:1")
        assert (status, "cannot write" in err) == (2, True)


# -- what happens ---------------------------------------------------------------------------------------------------


def test_verbose_shows_the_wire_shortened(run: Run) -> None:
    status, out, err = run("-v", "say", "text:str=" + "x" * 500)
    assert (status, len(out)) == (0, 503)
    sent, received, time = err.splitlines()
    assert sent.startswith('> {"jsonrpc":"2.0"')
    assert sent.endswith('"text":"' + "x" * 60 + '..." (500 characters)}}')
    assert received.startswith("< {")
    assert "(500 characters)" in received
    assert TIME.fullmatch(time)
    received = run("-v", "take", f"a:={list(range(10_000))}")[2].splitlines()[1]
    assert len(received) < 5000
    assert re.search(r"\.\.\. \([\d,]+ bytes in all\)$", received)
    assert TIME.search(run("-v", "nothing")[2])
    assert '"stream":' in run("-v", "--stream", "numbers", "n=1")[2]


@pytest.mark.parametrize("scheme", ["tcp", "http", "ws"])
def test_verbose_shows_the_time_over_each_transport(scheme: str, address: str, run: Run) -> None:
    assert TIME.fullmatch(run("-v", "sum", "a=1", uri=f"{scheme}://{address}")[2].splitlines()[-1])


HALF = "[###############...............]  50%"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "[..............................]   0%"),
        (0.5, HALF),
        (1, "[##############################] 100%"),
        ({"done": 2, "total": 4}, f"{HALF} 2 of 4"),
        ([1500, 3000], f"{HALF} 1,500 of 3,000"),
        ([0.25, 0.5], f"{HALF} 0.25 of 0.5"),
        ({"done": 2, "total": 4, "message": "over\x1b"}, f"{HALF} 2 of 4 over\\u001b"),
        ({"done": 2, "total": 4, "message": "reading"}, f"{HALF} 2 of 4 reading"),
        ([1, 0], "[1, 0]"),
        ([True, 2], "[true, 2]"),
        ([1, 2, 3], "[1, 2, 3]"),
        ({"done": 1}, '{"done": 1}'),
        ({"done": -1, "total": 4}, '{"done": -1, "total": 4}'),
        (True, "true"),
        (42, "42"),
        (None, "null"),
        ("loading\n\x1b[2J", "loading\\u000a\\u001b[2J"),
        ("x" * 200, "x" * 79),
        ("\u4e16\u754c" * 100, "\u4e16\u754c" * 19),
    ],
)
def test_the_progress_of_a_call(run: Run, stranger: Stranger, value: Any, text: str) -> None:
    status, shown = on_a_terminal("m", "--uri", stranger(value, result=3), NO_COLOR="1")
    assert status == 0
    assert shown.startswith(f"\r{text}")
    assert what_is_left(shown) == "3\n"
    # Where there is no terminal each text has its line, if it is wanted.
    status, out, err = run("m", "--progress", uri=stranger(value, value, result=3))
    assert (status, out, err.count("\n")) == (0, "3\n", 1)
    assert err.startswith(text)
    for options in ([], ["--progress", "--no-progress"]):
        assert run("m", *options, uri=stranger(value, result=3)) == (0, "3\n", "")


def what_is_left(text: str) -> str:
    """What can be seen on a terminal after all carriage returns; for lines that end in a line feed."""
    return "\n".join(line.rpartition("\r")[2] for line in text.split("\n"))


def test_items_and_uploads_share_a_line_with_the_progress(address: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 20_000_000)
    argv = ["train", "n=3", "-f", f"data={tmp_path / 'data'}", "--uri", address, "--format", "json"]
    status, text = on_a_terminal(*argv, NO_COLOR="1")
    assert 0 <= text.index("\rsending [") < text.index("\r[####################..........]  67% 2 of 3 training")
    assert (status, what_is_left(text)) == (0, "[0,1,2]\n")
    # Each item at the beginning of a line of its own.
    status, text = on_a_terminal("--stream", *argv, NO_COLOR="1")
    assert "67% 2 of 3 training" in text
    assert (status, what_is_left(text)) == (0, "0\n1\n2\n")
    for option in ("--no-progress", "-v"):
        status, text = on_a_terminal("train", "n=3", option, "--uri", address, NO_COLOR="1")
        assert (status, "of 3 training\r" in text) == (0, False)
