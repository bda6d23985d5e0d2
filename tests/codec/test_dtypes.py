"""Names of element types: which are taken from the wire, what each stands for, and what others are told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpcstream.codec import Codec, dtypes

WIRE = Path(__file__).parents[2] / "docs" / "reference" / "wire.md"


def table_of_the_wire_page() -> list[list[str]]:
    section = WIRE.read_text().partition("### dtypes\n")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`").replace("\\|", "|") for cell in row] for row in rows]


@pytest.mark.parametrize("row", table_of_the_wire_page(), ids=lambda row: row[1])
def test_the_table_of_the_wire_page(row: list[str]) -> None:
    text, name, size, _, _ = row
    dtype = dtypes.from_wire(text)
    assert dtypes.from_wire(name) == dtype == np.dtype(name).newbyteorder("<")
    assert dtypes.to_wire(dtype) == text
    assert str(dtype.itemsize) == size


def test_the_table_has_every_name() -> None:
    rows = table_of_the_wire_page()
    assert {row[1]: row[0] for row in rows if "[" not in row[0]} == dtypes.NAMES
    section = WIRE.read_text().partition("### dtypes\n")[2]
    assert [name for name in dtypes.EXTENSIONS if f"`{name}`" not in section] == []


@pytest.mark.parametrize("name", [*dtypes.NAMES, "datetime64[s]", "timedelta64[ms]", "datetime64"])
def test_a_name_is_little_endian(name: str) -> None:
    array = np.array([0, 1]).astype(np.dtype(name).newbyteorder("<"))
    tagged = Codec().decode({"$type": "ndarray", "dtype": name, "shape": [2], "data": _base64(array.tobytes())})
    assert isinstance(tagged, np.ndarray)
    assert tagged.dtype == array.dtype
    assert tagged.tolist() == array.tolist()


def _base64(data: bytes) -> str:
    from rpcstream.codec import base64

    return base64.encode_text(data)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("float", "use '<f8' or 'float64'"),
        ("double", "use '<f8' or 'float64'"),
        ("int", "use '<i8' or 'int64'"),
        ("f4", "use '<f4', which says the byte order"),
        ("=f4", "use '<f4', which says the byte order"),
        ("u1", "use '<u1', which says the byte order"),
        ("M8[ns]", "use '<M8[ns]', which says the byte order"),
        ("Float32", "use '<f4' or 'float32'"),
        ("Float32Array", "use '<f4' or 'float32'"),
        ("torch.float16", "use '<f2' or 'float16'"),
        ("flaot32", "use '<f4' or 'float32'"),
        ("bf16", "use 'bfloat16'"),
        ("float128", "use '<f8' or 'float64'"),
        ("object", "send a list"),
        ("<U5", "send a list"),
        ("datetime64[xx]", "use a name such as 'float32', or a dtype.str such as '<f4'"),
        ("10000000f8", "use a name such as"),
        ("", "use a name such as"),
        ("x" * 100_000, "use a name such as"),
    ],
)
def test_an_unknown_one_is_told_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match="is not one that goes over the wire") as caught:
        dtypes.from_wire(text)
    assert advice in str(caught.value)
    assert len(str(caught.value)) < 200
    # What it is told to write is right.
    for name in re.findall(r"'([^']*)'", str(caught.value).partition("wire: ")[2]):
        dtypes.from_wire(name)


@pytest.mark.parametrize("value", [None, 4, ["<f4"], {}])
def test_one_that_is_no_string(value: Any) -> None:
    with pytest.raises(ValueError, match="dtype must be a string such as '<f4' or 'float32'"):
        dtypes.from_wire(value)
