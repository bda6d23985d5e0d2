"""Docstrings: what is read out of each form, and that none of them is lost, fails or takes long."""

from __future__ import annotations

import inspect
from typing import Any

import orjson
import pytest

from rpcstream import Server

from .calling import described, document_of

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


def method(text: str | None) -> dict[str, Any]:
    """How a method with this docstring is described."""

    def it(photo: int, gain: int = 1, *more: int, a: int = 1, **by_name: int) -> int:
        return 0

    it.__doc__ = text
    return described(it)[0]


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX, EPYTEXT], ids=["google", "numpy", "sphinx", "epytext"])
def test_each_form_is_read(text: str) -> None:
    found = method(text)
    params = {each["name"]: each.get("description", "") for each in found["params"]}
    assert found["summary"] == "Detect objects."
    assert params["photo"].split() == ["the", "picture,", "in", "colour."]
    assert (params["gain"], params["more"], params["by_name"]) == ("how much", "others", "others by name")
    assert found["result"]["description"] == "the boxes"
    assert found["description"].startswith("It takes a while.")
    assert ("Not for stars." in found["description"]) == ("Not for stars." in text)
    for section in ("picture", "the boxes", "Args", "Parameters", "param", "Returns", "@"):
        assert section not in found["description"]


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
    first, _, rest = inspect.cleandoc(text).partition("\n\n")
    found = method(text)
    assert (found["summary"], found.get("description", "")) == (first.replace("\n", " "), rest)
    assert not any("description" in each for each in found["params"])


def test_what_yields_none_a_long_first_paragraph_and_half_a_pair() -> None:
    assert method("Count.\n\nYields:\n    the numbers")["result"]["description"] == "the numbers"
    for text in (None, ""):
        assert not {"summary", "description"} & method(text).keys()
    long = "word " * 100 + "\n\nMore."
    found = method(long)
    assert found["summary"].endswith("...")
    assert found["description"] == long
    found = method("A \ud800 B.\n\nArgs:\n    a: \udfff é")
    assert found["summary"] == "A \\ud800 B."
    assert {each["name"]: each.get("description") for each in found["params"]}["a"] == "\\udfff é"


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
    assert len(orjson.dumps(method(text))) < 100_000


async def test_the_more_methods_the_less_is_said_of_each() -> None:
    sizes = []
    for count in (1, 100, 800):
        server = Server()
        for n in range(count):

            def it() -> None: ...

            it.__doc__ = "Short.\n\n" + "long " * 4000
            server.add(it, name=f"m{n}")
        methods = (await document_of(server))["methods"]
        sizes.append(len(methods["m0"]["description"]))
    assert sizes[0] == sizes[1] > 10_000
    assert sizes[2] < 0.9 * sizes[0]
