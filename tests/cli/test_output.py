"""The text of results: for people, for programs, as files; and what -v and the progress bar write."""

from __future__ import annotations

import io
import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Annotated, Any

import annotated_types as at
import numpy as np
import orjson
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from scipy import sparse

from rpcstream import Codec, Server, Shape
from rpcstream.cli.describe import list_text, method_text
from rpcstream.cli.diagnostics import make_tracer, shortened_message
from rpcstream.cli.items import UsageError
from rpcstream.cli.media import half_blocks
from rpcstream.cli.output import Terminal, format_error, format_for_terminal, format_json
from rpcstream.cli.save import check_writable, raw_form, save
from rpcstream.client.discovery import methods_of, type_text
from rpcstream.methods.discovery import describe
from rpcstream.text import visible

COLOUR = re.compile("\x1b\\[[0-9;]*m")


def tagged(value: object) -> Any:
    """A value as a client that decodes nothing sees it."""
    return orjson.loads(Codec().dumps(value))


def people(value: object, *, colour: bool = False, width: int = 80) -> str:
    return format_for_terminal(tagged(value), Terminal(width, colour), Codec())


numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


class TestForPeople:
    @given(json_values, st.integers(0, 200))
    def test_plain_values_stay_json(self, value: Any, width: int) -> None:
        assert json.loads(format_for_terminal(value, Terminal(width), Codec())) == value

    @given(json_values)
    def test_nothing_commands_the_terminal(self, value: Any) -> None:
        shown = COLOUR.sub("", format_for_terminal(value, Terminal(80, True), Codec()))
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)
        assert shown == format_for_terminal(value, Terminal(80), Codec())

    def test_nested(self) -> None:
        assert people({"a": [1, 2.5, "x", None, True], "b": {}, "c": [], "d": [{"e": 1}]}) == (
            '{\n  "a": [1, 2.5, "x", null, true],\n  "b": {},\n  "c": [],\n  "d": [\n    {\n      "e": 1\n    }\n  ]\n}'
        )

    def test_a_list_that_does_not_fit_stands_on_lines(self) -> None:
        assert people(["x" * 30] * 3).count("\n") == 4

    def test_an_array(self) -> None:
        text = people(np.arange(1000, dtype="<f4").reshape(10, 100))
        assert text.startswith("ndarray float32 (10, 100)\n  [[  0.")
        assert "..." in text
        assert all(len(line) <= 80 for line in text.splitlines())

    def test_arrays_without_elements_and_dimensions(self) -> None:
        assert people(np.empty((0, 3))) == "ndarray float64 (0, 3)"
        assert people(np.array(1.5)) == "ndarray float64 ()\n  1.5"

    def test_an_image(self) -> None:
        text = people({"photo": Image.new("RGB", (40, 20), "red")})
        assert text == '{\n  "photo": image PNG 40 x 20 RGB\n}'

    def test_an_image_in_colour_has_a_picture(self) -> None:
        text = people(Image.new("RGB", (40, 20), (255, 0, 1)), colour=True)
        first, *rows = text.splitlines()
        assert COLOUR.sub("", first) == "image PNG 40 x 20 RGB"
        assert len(rows) == 10
        assert all("\x1b[38;2;255;0;1;48;2;255;0;1m" + "\u2580" * 40 in row for row in rows)

    def test_bytes_and_complex(self) -> None:
        assert people(b"\0" * 2000).startswith("bytes (2,000)\n  b'\\x00")
        assert people(b"") == "bytes (0)"
        assert people([1 + 2j]) == "[\n  (1+2j)\n]"

    def test_tables_and_sparse_arrays_as_their_library_writes_them(self) -> None:
        frame = pd.DataFrame({"city": ["Oslo", "B\x1b[2Jern"]})
        title, head, first, second = people(frame).splitlines()
        assert (title, head.split(), first.split()) == ("pandas.DataFrame (2, 1)", ["city"], ["0", "Oslo"])
        assert second.endswith("B\\u001b[2Jern")
        assert people(frame["city"]).startswith("pandas.Series (2,)\n  0")
        assert people([pa.table({"a": [1]})]).startswith("[\n  pyarrow.Table (1, 1)\n    pyarrow.Table\n    a: int64")
        assert people(pl.DataFrame({"a": [1]})).startswith("polars.DataFrame (1, 1)\n")
        assert people(sparse.csr_array(np.eye(3))).startswith("scipy.csr_array (3, 3)\n")
        assert people(pa.table({"a": range(100_000)})).count("\n") <= 40
        # Only arrays are saved as such.
        value = tagged(sparse.csr_array(np.eye(3)))
        assert json.loads(raw_form(value, Codec())[0]) == value

    def test_what_cannot_be_decoded_is_shown_as_it_is(self) -> None:
        broken = {"$type": "ndarray", "dtype": "<f4", "shape": [3], "data": "A" * 5000}
        text = format_for_terminal(broken, Terminal(), Codec())
        assert '"$type": "ndarray"' in text
        assert "A" * 60 + '... (5,000 characters)"' in text
        unknown = {"$type": "frame", "rows": [1]}
        assert json.loads(format_for_terminal(unknown, Terminal(), Codec())) == unknown

    def test_deep_nesting_does_not_fail(self) -> None:
        value: list[Any] = []
        for _ in range(240):
            value = [value]
        assert format_for_terminal(value, Terminal(), Codec()).count("[") == 241


def test_for_programs_it_is_one_line_with_tags() -> None:
    value = {"a": np.arange(2, dtype="<i4"), "b": "\n\u00e9"}
    line = format_json(tagged(value), Codec())
    assert line == b'{"a":{"$type":"ndarray","dtype":"<i4","shape":[2],"data":"AAAAAAEAAAA="},"b":"\\n\xc3\xa9"}\n'


class TestErrors:
    def test_one_line(self) -> None:
        line = format_error(-32602, "Invalid params", {"path": "$.a", "text": "\x1b"}, Terminal())
        assert line == 'error -32602: Invalid params, data {"path": "$.a", "text": "\\u001b"}'
        assert format_error(1, "a\nb\x1b[2J", None, Terminal()) == "error 1: a\\u000ab\\u001b[2J"

    def test_a_traceback_stands_below(self) -> None:
        data = {"type": "KeyError", "traceback": "Traceback:\n  x\n"}
        line = format_error(-32603, "Internal error", data, Terminal())
        assert line == 'error -32603: Internal error, data {"type": "KeyError"}\nTraceback:\n  x'

    @given(st.text())
    def test_visible_text_has_no_controls(self, text: str) -> None:
        assert not re.search("[\x00-\x1f\x7f-\x9f\u202e]", visible(text))


class TestPicture:
    def test_transparent_pixels_let_the_terminal_show_through(self) -> None:
        image = Image.new("RGBA", (2, 2), (0, 0, 0, 0))
        image.putpixel((0, 0), (1, 2, 3, 255))
        image.putpixel((1, 1), (4, 5, 6, 255))
        (line,) = half_blocks(image, columns=10)
        assert line == "\x1b[38;2;1;2;3;49m\u2580\x1b[38;2;4;5;6;49m\u2584\x1b[0m"

    def test_an_odd_last_row(self) -> None:
        lines = half_blocks(Image.new("RGB", (1, 3), (9, 9, 9)), columns=10)
        assert lines[-1] == "\x1b[38;2;9;9;9;49m\u2580\x1b[0m"

    def test_large_ones_are_made_small_and_keep_their_shape(self) -> None:
        lines = half_blocks(Image.new("RGB", (4000, 2000)), columns=64)
        assert len(lines) == 16
        assert len(COLOUR.sub("", lines[0])) == 64
        assert len(half_blocks(Image.new("RGB", (10, 5000)), columns=64)) == 24

    @pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
    def test_every_mode(self, mode: str) -> None:
        assert len(half_blocks(Image.new(mode, (4, 4)), columns=10)) == 2

    def test_a_range_beyond_eight_bits_is_stretched(self) -> None:
        image = Image.fromarray(np.array([[100.0, 300.0]], dtype="<f4"))
        (line,) = half_blocks(image, columns=10)
        assert line == "\x1b[38;2;0;0;0;49m\u2580\x1b[38;2;255;255;255;49m\u2580\x1b[0m"

    def test_no_room(self) -> None:
        assert half_blocks(Image.new("RGB", (4, 4)), columns=0) == []


class TestSave:
    def saved(self, path: Path, value: object, **options: Any) -> tuple[bytes, str | None]:
        complaint = save(str(path), tagged(value), Codec(), **options)
        return path.read_bytes(), complaint

    def test_an_array(self, tmp_path: Path) -> None:
        array = np.arange(6.0).reshape(2, 3)
        for name in ("a.npy", "a"):
            data, complaint = self.saved(tmp_path / name, array)
            assert complaint is None
            assert np.array_equal(np.load(io.BytesIO(data)), array)

    def test_an_array_in_a_file_of_another_kind_is_not_lost(self, tmp_path: Path) -> None:
        data, complaint = self.saved(tmp_path / "a.png", np.arange(3))
        assert complaint is not None
        assert "the result is an array" in complaint
        assert np.array_equal(np.load(io.BytesIO(data)), np.arange(3))

    @pytest.mark.parametrize(("ending", "form"), [("png", "PNG"), ("jpg", "JPEG"), ("JPEG", "JPEG"), ("webp", "WEBP")])
    def test_an_image_in_the_format_of_the_ending(self, ending: str, form: str, tmp_path: Path) -> None:
        data, complaint = self.saved(tmp_path / f"a.{ending}", Image.new("RGB", (8, 8), "red"))
        assert complaint is None
        assert Image.open(io.BytesIO(data)).format == form

    def test_the_file_of_an_image_goes_on_as_it_came(self, tmp_path: Path) -> None:
        out = io.BytesIO()
        Image.effect_noise((32, 32), 50).convert("RGB").save(out, "JPEG", quality=30)
        value = {"$type": "image", "format": "jpeg", "data": b64encode(out.getvalue()).decode()}
        for name in ("a.jpg", "a.jpeg", "a"):
            assert save(str(tmp_path / name), value, Codec()) is None
            assert (tmp_path / name).read_bytes() == out.getvalue()
        assert raw_form(value, Codec()) == (out.getvalue(), False)

    def test_an_image_that_cannot_be_decoded_is_not_lost(self, tmp_path: Path) -> None:
        value = {"$type": "image", "format": "png", "data": "aGVsbG8="}
        assert save(str(tmp_path / "a.png"), value, Codec()) is None
        complaint = save(str(tmp_path / "a.jpg"), value, Codec())
        assert complaint is not None
        assert "it cannot be decoded" in complaint
        assert (tmp_path / "a.png").read_bytes() == (tmp_path / "a.jpg").read_bytes() == b"hello"

    @pytest.mark.parametrize(("mode", "ending"), [("RGBA", "jpg"), ("RGB", "xyz"), ("RGB", "npy")])
    def test_an_image_that_the_ending_cannot_hold_is_not_lost(self, mode: str, ending: str, tmp_path: Path) -> None:
        data, complaint = self.saved(tmp_path / f"a.{ending}", Image.new(mode, (8, 8)))
        assert complaint is not None
        assert "PNG data" in complaint
        assert Image.open(io.BytesIO(data)).mode == mode

    def test_bytes_as_they_are(self, tmp_path: Path) -> None:
        for name in ("a", "a.json", "a.png"):
            assert self.saved(tmp_path / name, b"\0\xff") == (b"\0\xff", None)

    def test_anything_else_as_json(self, tmp_path: Path) -> None:
        assert self.saved(tmp_path / "a.txt", {"a": [1]}) == (b'{"a":[1]}\n', None)
        assert self.saved(tmp_path / "a.txt", "x") == (b'"x"\n', None)
        assert self.saved(tmp_path / "a.txt", "x", raw=True) == (b"x\n", None)
        data, complaint = self.saved(tmp_path / "a.npy", [1])
        assert data == b"[1]\n"
        assert complaint is not None

    def test_json_for_rich_values_where_asked_for(self, tmp_path: Path) -> None:
        data, complaint = self.saved(tmp_path / "a.json", np.arange(2))
        assert complaint is None
        assert json.loads(data)["$type"] == "ndarray"

    def test_a_device(self) -> None:
        assert save("/dev/null", tagged(np.arange(2)), Codec()) is None

    def test_what_cannot_be_written_is_known_before_the_call(self, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "no" / "a", ""):
            with pytest.raises(UsageError, match="cannot write"):
                check_writable(str(path))
        check_writable(str(tmp_path / "new"))
        check_writable("-")


class TestRaw:
    @pytest.mark.parametrize(
        ("value", "data", "is_text"),
        [("a\u00e9", b"a\xc3\xa9\n", True), (b"\xff", b"\xff", False), ([1], b"[1]\n", True), (None, b"null\n", True)],
    )
    def test_plain(self, value: object, data: bytes, is_text: bool) -> None:
        assert raw_form(tagged(value), Codec()) == (data, is_text)

    def test_an_array_and_raw_pixels(self) -> None:
        data, is_text = raw_form(tagged(np.arange(3)), Codec())
        assert np.array_equal(np.load(io.BytesIO(data)), np.arange(3))
        assert not is_text
        pixels = {"$type": "image", "format": "raw", "mode": "L", "size": [2, 1], "data": "AP8="}
        image = Image.open(io.BytesIO(raw_form(pixels, Codec())[0]))
        assert (image.format, image.tobytes()) == ("PNG", b"\0\xff")


class TestTrace:
    def test_long_strings_are_cut(self) -> None:
        message = orjson.dumps({"data": "A" * 1000, "text": 'short "quoted" \\', "other": "\\" * 100}) + b"\n"
        assert shortened_message(message) == (
            '{"data":"'
            + "A" * 60
            + '..." (1,000 characters),"text":"short \\"quoted\\" \\\\","other":"'
            + "\\" * 60
            + '..." (200 characters)}'
        )

    def test_long_messages_are_cut(self) -> None:
        text = shortened_message(orjson.dumps(list(range(100_000))))
        assert len(text) < 5000
        assert text.endswith("... (588,891 bytes in all)")

    @given(st.binary())
    def test_any_bytes(self, message: bytes) -> None:
        assert not re.search("[\x00-\x1f\x7f-\x9f]", shortened_message(message))

    def test_directions(self) -> None:
        out = io.StringIO()
        trace = make_tracer(out, Terminal())
        trace("send", b'{"id":1}\n')
        trace("receive", b'{"id":1,"result":2}')
        assert out.getvalue() == '> {"id":1}\n< {"id":1,"result":2}\n'


class TestDescribe:
    @pytest.mark.parametrize(
        ("schema", "text"),
        [
            ({}, "any"),
            (None, "any"),
            ({"type": "integer"}, "int"),
            ({"type": "string", "format": "date-time"}, "str (date-time)"),
            ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "int | null"),
            ({"type": ["string", "null"]}, "str | null"),
            ({"type": "array", "items": {"type": "number"}}, "list[float]"),
            ({"type": "array"}, "list"),
            ({"type": "array", "prefixItems": [{"type": "string"}, {}], "items": False}, "tuple[str, any]"),
            ({"type": "object", "additionalProperties": {"type": "boolean"}}, "dict[str, bool]"),
            ({"type": "object"}, "dict"),
            ({"enum": ["a", 1]}, 'Literal["a", 1]'),
            ({"const": None}, "Literal[null]"),
            ({"$ref": "#/components/schemas/Point"}, "Point"),
            ({"title": "x\x1b"}, "x\\u001b"),
            ({"type": 5, "$ref": 7}, "7"),
            ({"type": "object", "properties": {"$type": {"const": "frame"}}}, "frame"),
            (Codec().rich_hint(np.ndarray).schema(), "ndarray"),
            (Codec().rich_hint(NDArray[np.float32]).schema(), "ndarray[float32]"),
            (Codec().rich_hint(Annotated[NDArray[np.float32], Shape(None, 3)]).schema(), "ndarray[float32, (*, 3)]"),
            (Codec().rich_hint(Image.Image).schema(), "image"),
            (Codec().rich_hint(bytes).schema(), "bytes"),
        ],
    )
    def test_types(self, schema: Any, text: str) -> None:
        assert type_text(schema) == text

    document: Any = {  # noqa: RUF012
        "methods": [
            {
                "name": "plot",
                "params": [
                    {"name": "at", "required": True, "schema": {"$ref": "#/components/schemas/Point"}},
                    {"name": "size", "required": False, "schema": {"type": "integer", "default": 3}},
                    {"name": "when", "required": False, "schema": {"x-default": "NOW"}},
                    {"name": "mask", "required": False, "schema": {"default": {"$type": "ndarray", "data": "A" * 99}}},
                    {"name": "text", "required": False, "schema": {"default": "x" * 99}},
                    {"name": "more", "required": False, "x-rest": "named", "schema": {}},
                ],
                "result": {"name": "result", "schema": {"type": "null"}},
                "summary": "Draws a point.",
                "description": "Draws a point.\n\nNowhere else.",
            },
            {"name": "bare"},
            {"no": "name"},
            5,
        ],
        "components": {
            "schemas": {
                "Point": {
                    "title": "Point",
                    "type": "object",
                    "properties": {
                        "x": {"type": "integer"},
                        "of": {"$ref": "#/components/schemas/Kind", "default": "a"},
                    },
                },
                "Kind": {"title": "Kind", "enum": ["a", "b"]},
            }
        },
    }

    signature = 'plot(at: Point, size: int = 3, when=NOW, mask=<ndarray>, text="' + "x" * 39 + "..., **more) -> null"

    def test_a_list(self) -> None:
        assert list_text(methods_of(self.document), Terminal(200)) == (f"bare()\n{self.signature}  # Draws a point.")

    def test_one_method(self) -> None:
        assert method_text(methods_of(self.document)[1], self.document, Terminal()) == (
            f"{self.signature}\n"
            "\n"
            "    Draws a point.\n"
            "\n"
            "    Nowhere else.\n"
            "\n"
            "where\n"
            '    Kind = Literal["a", "b"]\n'
            '    Point = {x: int, of: Kind = "a"}'
        )

    def test_constraints_and_descriptions_of_parameters(self) -> None:
        def function(
            n: Annotated[int | None, at.Ge(0), "how\nmany"],
            name: Annotated[str, at.Len(1, 5), at.Predicate(str.islower)],
            far: Annotated[float, at.Unit("m")],
            plain: tuple[int, int],
        ) -> None:
            """Do it."""

        server = Server()
        server.add(function, name="m")
        document = describe({"m": server.methods["m"]}, codec=Codec(), title="", version="")
        assert method_text(methods_of(document)[0], document, Terminal()) == (
            "m(n: int | null, name: str, far: float, plain: tuple[int, int]) -> null\n"
            "\n"
            "    Do it.\n"
            "\n"
            "    n: >= 0; how many\n"
            "    name: length >= 1, length <= 5, for which `str.islower` is true\n"
            "    far: in m"
        )
        hostile = {"x-constraints": ["\x1b[31m"] * 99, "x-unit": "\x1b", "description": "\x1b" * 9999, "minimum": []}
        shown = method_text({"name": "x", "params": [{"name": "a", "schema": hostile}]}, {}, Terminal())
        assert "\x1b" not in shown
        assert len(shown) < 10_000

    @given(json_values)
    def test_any_document(self, document: Any) -> None:
        methods = methods_of({"methods": document, "components": document})
        list_text(methods, Terminal())
        for method in methods_of({"methods": [{"name": "x", "params": document, "result": document}]}):
            method_text(method, {"components": {"schemas": document}}, Terminal())
