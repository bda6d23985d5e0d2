"""Docstrings: what is read out of each form, and that none of them is lost, fails or takes long."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

import pytest

from rpcstream.methods.docstrings import Docstring, longest_text, read_docstring

GOOGLE = """
Detect objects.

It takes a while.

Args:
    photo: the picture,
        in colour.
    gain (float, optional): how much
    *more: others
    **by_name: others by name

Returns:
    dict: the boxes

Note:
    Not for stars.
"""

NUMPY = """
Detect objects.

It takes a while.

Parameters
----------
photo : Image
    the picture,
    in colour.
gain, bias : float, optional
    how much
*more
    others
**by_name
    others by name

Returns
-------
dict
    the boxes

Notes
-----
Not for stars.
"""

SPHINX = """
Detect objects.

It takes a while.

Not for stars.

:param photo: the picture,
    in colour.
:param float gain: how much
:type photo: Image
:param more: others
:param \\\\**by_name: others by name
:returns: the boxes
"""

EPYTEXT = """
Detect objects.

It takes a while.

@param photo: the picture,
    in colour.
@param gain: how much
@param more: others
@param by_name: others by name
@return: the boxes
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX, EPYTEXT], ids=["google", "numpy", "sphinx", "epytext"])
def test_each_form_is_read(text: str) -> None:
    found = read_docstring(inspect.cleandoc(text))
    assert found.summary == "Detect objects."
    assert found.parameters["photo"].split() == ["the", "picture,", "in", "colour."]
    assert found.parameters["gain"] == "how much"
    assert (found.parameters["more"], found.parameters["by_name"]) == ("others", "others by name")
    assert found.result == "the boxes"
    assert found.description is not None
    assert found.description.startswith("It takes a while.")
    assert ("Not for stars." in found.description) == ("Not for stars." in text)
    for section in ("picture", "the boxes", "Args", "Parameters", "param", "Returns", "@"):
        assert section not in found.description


def test_what_yields_is_described_as_well() -> None:
    assert read_docstring("Count.\n\nYields:\n    the numbers").result == "the numbers"


@pytest.mark.parametrize(
    "text",
    [
        "Adds.",
        "Adds.\n\nReturns nothing: it is: a colon.",
        "Adds.\n\nExample:\n    >>> add(1, 2)\n    3",
        ":",
        "Args:",
        "Parameters\n----------",
        "a\n\n-----\n:foo bar",
        "Adds.\n\n    Args: as in Args",
    ],
)
def test_a_text_without_such_sections_stays_whole(text: str) -> None:
    first, _, rest = text.partition("\n\n")
    assert read_docstring(text) == Docstring(first.replace("\n", " "), rest or None)


def test_a_long_first_paragraph_is_cut_and_stays_in_the_description() -> None:
    text = "word " * 100 + "\n\nMore."
    found = read_docstring(text)
    assert found.summary is not None
    assert found.summary.endswith("...")
    assert found.description == text


def test_the_library_is_installed_with_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert any(each.startswith("docstring_parser") for each in project["dependencies"])


def test_there_may_be_none() -> None:
    assert read_docstring(None) == read_docstring("") == Docstring()


@pytest.mark.parametrize(
    "text",
    [
        "a " * 500_000,
        "A.\n\nArgs:\n" + "    x: y\n" * 100_000,
        ":param x: y\n" * 80_000,
        "Parameters\n----------\n" + "x : y\n    z\n" * 80_000,
        ":" * 1_000_000,
        "Args:\n" + " " * 1_000_000,
        ":param " + "a" * 1_000_000,
    ],
    ids=lambda text: text[:12].strip(),
)
def test_a_text_of_a_megabyte_is_cut(text: str) -> None:
    found = read_docstring(text, 2000)
    size = sum(map(len, [found.summary or "", found.description or "", *found.parameters.values()]))
    assert size <= 2 * 2000
    assert (found.description or found.summary or "").endswith("...")


def test_what_has_no_form_in_utf_8_is_escaped() -> None:
    found = read_docstring("A \ud800 B.\n\nArgs:\n    a: \udfff é")
    assert found.summary == "A \\ud800 B."
    assert found.parameters == {"a": "\\udfff é"}


def test_the_more_methods_the_less_is_said_of_each() -> None:
    assert longest_text(1) == longest_text(100) == 16_384
    assert longest_text(10_000) < 1000
    assert longest_text(10**9) == 500
