"""Bytes, base64 and data: URLs; complex numbers, scalars of numpy, times of pandas."""

from __future__ import annotations

import base64
import datetime
import math
import re
from typing import Any

import ml_dtypes
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from rpcstream import Codec, Limits
from rpcstream.errors import EncodeError

from ..kit.example_count import example_count
from .values import codec, encoded, file_of, returned, sent, taken


def test_bytes_in_all_their_forms() -> None:
    for value in (
        *(b"ab", bytearray(b"ab"), memoryview(b"ab"), memoryview(b"aXbX")[::2]),
        *(memoryview(np.array([[0x6261]], "<u2")), np.bytes_(b"ab"), memoryview(np.frombuffer(b"ab", "u1"))),
    ):
        assert sent(value) == {"$type": "bytes", "data": "YWI="}
        assert returned(bytes, value) is value
    assert sent(memoryview(b"")) == sent(memoryview(np.zeros((0, 3)))) == {"$type": "bytes", "data": ""}
    assert codec.decode(sent(memoryview(np.arange(6, dtype="u1").reshape(2, 3).T))) == bytes([0, 3, 1, 4, 2, 5])
    released = memoryview(b"x")
    released.release()
    with pytest.raises(EncodeError, match="memoryview could not be encoded"):
        codec.dumps(released)


def test_complex_as_on_the_wire_page() -> None:
    assert sent(1 + 2j) == {"$type": "complex", "real": 1.0, "imag": 2.0}
    assert sent(complex(math.nan, -math.inf)) == {"$type": "complex", "real": "nan", "imag": "-inf"}
    assert codec.decode({"$type": "complex", "real": 1, "imag": -2}) == 1 - 2j
    for value in (complex(math.nan, 0), complex(0, -0.0)):
        assert repr(codec.decode(sent(value))) == repr(value)


@settings(deadline=None)
@given(st.complex_numbers(allow_nan=False))
def test_complex_numbers_come_back(value: complex) -> None:
    assert codec.decode(sent(value)) == taken(complex, sent(value)) == value


def test_hints_for_complex() -> None:
    assert type(taken(complex, 2)) is type(taken(complex, 2.0)) is complex
    assert returned(complex, np.complex128(1j)) == 1j
    tag = {"$type": "complex", "real": 1.0, "imag": 2.0}
    bad_parts = ({"real": value} for value in (None, True, "1", "Infinity", [], {}, 10**400))
    for wrong in (*({**tag, **part} for part in bad_parts), {**tag, "more": 1}, {"$type": "complex", "real": 1}):
        for decode in (codec.decode, lambda value: taken(complex, value)):
            with pytest.raises(ValueError, match=r"."):
                decode(wrong)
    for wrong in (None, True, "1", [1, 2], {}, 10**400, {"$type": "bytes", "data": ""}):
        for attempt in (taken, returned):
            with pytest.raises(ValueError, match=r"."):
                attempt(complex, wrong)


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (np.bool_(True), True),
        (np.int8(-5), -5),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float16(0.5), 0.5),
        (np.float32("nan"), {"$type": "float", "value": "nan"}),
        (np.complex64(1j), {"$type": "complex", "real": 0.0, "imag": 1.0}),
        (np.str_("é"), "é"),
        (ml_dtypes.bfloat16(1.5), 1.5),
        (ml_dtypes.int4(-3), -3),
        (ml_dtypes.float8_e5m2(2), 2.0),
    ],
    ids=repr,
)
def test_numpy_scalars_are_plain(value: Any, wire: Any) -> None:
    assert sent(value) == wire
    assert type(sent(value)) is type(wire)
    assert orjson.loads(codec.dumps([{1: value}]))[0]["1"] == wire


def test_numpy_scalars_without_a_form() -> None:
    for value in (np.longdouble(1), np.clongdouble(1), np.void(b"ab"), np.zeros((), [("a", "i4")])[()]):
        with pytest.raises(EncodeError, match="no form"):
            codec.dumps(value)


def test_dates_keep_their_unit() -> None:
    for value in (np.datetime64("2020-01-02", "D"), np.datetime64("NaT", "ns"), np.timedelta64(25, "us")):
        tagged = sent(value)
        assert tagged["shape"] == []
        found = taken(type(value), tagged)
        assert type(found) is type(value)
        assert found.dtype == value.dtype
        assert found == value or np.isnat(value)


@settings(deadline=None, max_examples=example_count(100))
@given(st.data())
def test_numpy_scalars_come_back_where_the_hint_asks(data: st.DataObject) -> None:
    dtype = data.draw(hnp.scalar_dtypes().filter(lambda dtype: dtype.kind in "biufc" and dtype.itemsize <= 8))
    elements: dict[str, Any] = {"allow_nan": False, "allow_infinity": False} if dtype.kind in "fc" else {}
    value = data.draw(hnp.from_dtype(dtype, **elements)).astype(dtype.newbyteorder("="))
    for kind in (dtype.type, np.generic, *([np.number] if dtype.kind != "b" else [])):
        found = taken(kind, sent(value))
        assert isinstance(found, kind)
        assert found == returned(kind, value) == value
        assert type(found) is dtype.type or kind is not dtype.type
    assert taken(list[dtype.type], [sent(value)] * 2) == [value] * 2  # type: ignore[name-defined]


def test_numbers_for_numpy_hints() -> None:
    for hint, value, kind in (
        *((kind, 1, kind) for kind in (np.float32, np.complex64, ml_dtypes.bfloat16)),
        *((np.floating[Any], 1.5, np.float64), (np.integer, 5, np.int64)),
        *((np.number, 1j, np.complex128), (np.generic, True, np.bool_), (np.bool_, True, np.bool_)),
    ):
        found = taken(hint, value)
        assert (type(found), found) == (kind, value)
    big_endian = {"$type": "ndarray", "dtype": ">f4", "shape": [], "data": "P4AAAA=="}
    assert (type(taken(np.float32, big_endian)), taken(np.float32, big_endian)) == (np.float32, 1)


def test_numbers_that_do_not_fit_numpy_hints() -> None:
    one = {"$type": "ndarray", "dtype": "<f4", "shape": [1], "data": "AACAPw=="}
    double = {"$type": "ndarray", "dtype": "<f8", "shape": [], "data": "AAAAAAAA8D8="}
    no_floats = [True, "1", None, 1j, np.float64(1), {}, [1.0], {"$type": "complex", "real": 1, "imag": 0}]
    for hint, values in (
        *((np.int8, [128, -129, 1.0, True, 10**5000]), (np.integer, [2**64]), (np.float16, [70_000])),
        *((np.float32, [1e300, one, double, *no_floats]), (np.bool_, [1]), (np.number, [True])),
        *((np.complex64, [1e300]), (np.datetime64, [5, "2020-01-01"])),
    ):
        for value in values:
            for attempt in (taken, returned):
                with pytest.raises(ValueError, match="expected "):
                    attempt(hint, value)
                with pytest.raises(ValueError, match="expected "):
                    attempt(list[hint], [1, value])  # type: ignore[valid-type]


def test_times_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    assert sent(pandas.Timestamp("2020-01-02T03:04:05.6")) == "2020-01-02T03:04:05.600000"
    assert sent(pandas.NaT) is None
    assert sent(pandas.Timedelta("90s")) == "P0DT0H1M30S"
    assert taken(datetime.timedelta, "P0DT0H1M30S") == datetime.timedelta(seconds=90)
    assert sent({pandas.Timestamp("2020-01-02"): 1}) == {"2020-01-02T00:00:00": 1}
    with pytest.raises(EncodeError, match="no form"):
        codec.dumps(pandas.NA)


@pytest.mark.parametrize(("value", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_what_json_has_no_number_for_is_tagged(value: float, text: str) -> None:
    tagged = {"$type": "float", "value": text}
    assert sent(value) == tagged
    assert sent([1.5, None, value, "null"]) == [1.5, None, tagged, "null"]
    assert sent({"a": (value, {"b": [value]})}) == {"a": [tagged, {"b": [tagged]}]}
    assert repr(codec.decode(tagged)) == repr(value)
    assert codec.decode([{"a": tagged}, 1]) == [{"a": pytest.approx(value, nan_ok=True)}, 1]


def test_a_tagged_float_has_one_of_three_words() -> None:
    for value in ("NaN", "Infinity", 1.5, None, ["nan"], {}):
        with pytest.raises(ValueError, match=r'the value must be "nan", "inf" or "-inf"'):
            codec.decode({"$type": "float", "value": value})


BYTES = bytes(range(256)) * 3
PNG = encoded(file_of(Image.new("RGB", (3, 2), "red"), "png"))


@pytest.mark.parametrize(
    "text",
    [
        *("cat.jpg", "/home/me/my cats/cat", "C:\\me\\cat", "katze-ä.png", "https://example.org/cat.png"),
        *(base64.urlsafe_b64encode(BYTES).decode(), base64.encodebytes(BYTES).decode(), " " + encoded(BYTES)),
        *("YQ", "A" * 9, "AAAA\x1b[31m" + "A" * 9000, "a" * 1_000_000 + ".png"),
    ],
    ids=lambda text: text[:24],
)
def test_what_is_not_base64_is_told_what_to_send(text: str) -> None:
    for hint in (Image.Image, bytes, np.ndarray):
        with pytest.raises(ValueError, match=r"the payload is not base64: send the bytes of the file") as caught:
            taken(hint, text)
        assert len(str(caught.value)) < 200
        assert str(caught.value).isprintable()


def test_a_path_as_text_is_told_what_python_passes() -> None:
    with pytest.raises(ValueError, match=r"in Python, pass an image as pathlib\.Path\('cat\.jpg'\)$"):
        taken(Image.Image, "cat.jpg")


def test_base64_is_strict() -> None:
    for text in ("YW I=", "YWI=\n", "\nYWI=", "Y===", "====", "YQ==YQ==", "Y\0Q=", "="):
        for value in (
            {"$type": "bytes", "data": text},
            {"$type": "ndarray", "dtype": "|u1", "shape": [2], "data": text},
            {"$type": "image", "format": "png", "data": text},
            {"$type": "image", "format": "raw", "mode": "L", "size": [2, 1], "data": text},
        ):
            with pytest.raises(ValueError, match=r"- at `\$`"):
                codec.decode(value)


@pytest.mark.parametrize("form", ["png", "jpeg", "webp", "gif"])
def test_a_data_url_is_an_image_under_the_limits(form: str) -> None:
    plain = encoded(file_of(Image.new("RGB", (100, 100)), form))
    for head in (f"data:image/{form};base64,", f"DATA:Image/{form.upper()};Base64,"):
        assert taken(Image.Image, head + plain).size == (100, 100)
        with pytest.raises(ValueError, match="the limit is 9999"):
            taken(Image.Image, head + plain, Codec.of(Limits(max_image_pixels=9_999)))


def test_data_urls_that_are_no_image() -> None:
    for url, reason in (
        *((f"data:{head}{PNG}", "not base64") for head in ("image/png,", "image/png;base64;")),
        *((url, "not base64") for url in ("data:", "data:image/" + "x" * 10_000 + ";base64,AAAA")),
        *(
            ("data:image/png;base64, " + PNG, "on one line"),
            ("data:image/png;base64,", "the file is not png"),
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(reason)) as caught:
            taken(Image.Image, url)
        assert len(str(caught.value)) < 250


def test_a_data_url_is_bytes_of_any_type() -> None:
    for kind in ("application/octet-stream", "text/plain", "image/svg+xml", ""):
        assert taken(bytes, f"data:{kind};base64,{encoded(BYTES)}") == BYTES
    for wrong in ("data:text/plain,hello", "data:;base64,e A=="):
        with pytest.raises(ValueError, match="not base64"):
            taken(bytes, wrong)
    assert taken(bytearray, "data:;base64,eA==") == bytearray(b"x")
    assert taken(bytes | str, "data:;base64,eA==") == "data:;base64,eA=="  # where text is asked for as well, it is text
