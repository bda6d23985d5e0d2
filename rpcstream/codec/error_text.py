"""The errors of values that do not fit their hint, in words for people.

Owns how the texts of msgspec and of the rich hints ("Expected `int`, got `str` - at `$[0].x`") are read, and what is
said instead ("expected an integer, got a string"). Knows neither methods nor parameters. Runs for errors only.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any, NamedTuple

import msgspec

from .markers import Marker
from .rich_hint import shortened

#: Characters at the end of a text in which the path is looked for; a peer may have written the rest of it.
_PATH_MAX = 2000
#: Characters of a reason.
_REASON_MAX = 400
#: Choices that are named.
CHOICES_MAX = 20
#: Steps of a path that are followed to find choices, and the types that one may lead to: with each step into a class
#: that contains itself in several ways there are more.
_STEPS_MAX, _TYPES_MAX = 32, 16

#: How msgspec ends a text with the path of the value. A class inside another adds its own part before.
_PATHS = re.compile(r"(?: - at `(?:key` in `)?\$[^`]*`)+\Z")
_PATH = re.compile(r"\$([^`]*)`")
_MISMATCH = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<got>[^`]*)`")
_EXPECTED = re.compile(r"\AExpected `([^`]*)`")
_GOT = re.compile(r", got `([^`]*)`")
_STEP = re.compile(r"\[(?P<place>\d+|\.\.\.)\]|\.(?P<name>[^.\[]+)")

#: What a type is called where it is expected, and what one is called that was given.
_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "image": "an image",
    "complex": "a complex number",
    "decimal": "a decimal number",
    "datetime": "a date and time",
    "date": "a date",
    "time": "a time",
    "duration": "a duration",
    "uuid": "a UUID",
}
_GIVEN = {**_WORDS, "bool": "a boolean", "float": "a number that is no integer"}

#: How some types are written, said where a value of another type was given.
_FORMS = {
    "ndarray": 'an array is an object {"$type": "ndarray", "dtype": "<f4", "shape": [2, 3], "data": "<base64>"}',
    "image": "an image is a string: its file in base64",
    "bytes": "bytes are a string in base64",
    "complex": 'a complex number is an object {"$type": "complex", "real": 1.5, "imag": 2.5}',
    **dict.fromkeys(
        ("pandas.DataFrame", "polars.DataFrame", "pyarrow.Table", "pyarrow.RecordBatch"),
        "a table is a string: an Arrow IPC stream in base64",
    ),
}

#: Texts of msgspec and of the codec as they are, and what is said instead.
_PLAIN = {
    "Invalid RFC3339 encoded datetime": 'expected a date and time such as "2026-11-22T17:00:00Z"',
    "Invalid RFC3339 encoded date": 'expected a date such as "2026-11-22"',
    "Invalid RFC3339 encoded time": 'expected a time such as "17:00:00"',
    "Invalid ISO8601 duration": 'expected a duration such as "PT1.5S"',
    "Invalid UUID": 'expected a UUID such as "123e4567-e89b-12d3-a456-426614174000"',
    "not the bytes of a .npy file": f"a string must be a .npy file in base64, and this is none; {_FORMS['ndarray']}",
    "Invalid decimal string": 'expected a decimal number as a string, such as "1.50"',
}
#: What the class is called in which a payload of a binary frame comes, and what it is for the peer.
_OWN_NAME = "got `Attachment`", "got `payload`"
_ENUM = "Invalid enum value "
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
_NDARRAY = re.compile(r"(?:(?P<dtypes>.+) )?ndarray(?P<shape> of shape .+)?")


class Fault(NamedTuple):
    """What is wrong with a value.

    Attributes:
        path: of the part that is wrong, inside the value: "[0].x"; "" for all of it.
        text: the reason, as msgspec or a rich hint put it.
    """

    path: str
    text: str

    @classmethod
    def of(cls, text: str) -> Fault:
        """Read the text of an error."""
        text = text.replace(*_OWN_NAME)
        end = text[-_PATH_MAX:]
        found = _PATHS.search(end)
        if found is None:
            return cls("", text[:_REASON_MAX])
        path = "".join(reversed(_PATH.findall(found[0])))
        return cls(path, text[: len(text) - len(end) + found.start()][:_REASON_MAX])

    @property
    def types(self) -> dict[str, str]:
        """The names of the types `expected` and `got`; empty where something else is wrong."""
        found = _MISMATCH.match(self.text)
        return found.groupdict() if found is not None else {}

    def reason(self, choices: list[Any]) -> str:
        """The reason in words.

        Args:
            choices: the values that are permitted there, if these are all; see `choices_at`.
        """
        text = self.text
        if text in _PLAIN:
            return _PLAIN[text]
        if text.startswith(_ENUM):
            given = shortened(text.removeprefix(_ENUM), 60)
            return f"expected {_listed(choices)}, got {given}" if choices else f"{given} is not one of the choices"
        for pattern, words in ((_MISSING, "{!r} is missing"), (_UNKNOWN, "{!r} is unknown")):
            if found := pattern.fullmatch(text):
                return words.format(found[1])
        expected = _EXPECTED.match(text)
        if expected is None:
            return text
        said = "expected " + (_listed(choices) if choices else expected_words(expected[1]))
        got = _GOT.search(text, expected.end())
        if got is None:
            return said + text[expected.end() :]
        said += text[expected.end() : got.start()] + ", got " + _given_words(got[1]) + text[got.end() :]
        form = _form_of(expected[1], got[1])
        return f"{said}; {form}" if form else said


def in_words(text: str, hint: Any = None, name: str = "") -> str:
    """The text of an error in words, with the place of the wrong part: "result[0].x: expected an integer, got null".

    Args:
        text: of msgspec or a rich hint.
        hint: the lowered hint of the value.
        name: of the value; "" for none.
    """
    fault = Fault.of(text)
    reason = fault.reason([] if hint is None else choices_at(hint, fault.path))
    place = f"{name}{fault.path}" if fault.path else ""
    return f"{place}: {reason}" if place else reason


def choices_at(hint: Any, path: str) -> list[Any]:
    """The values that an enum or a Literal permits at a path inside a value of this (lowered) hint; [] elsewhere.

    [] also where the path is too long, or leads to too many types.
    """
    steps = list(_STEP.finditer(path))
    if sum(len(step[0]) for step in steps) != len(path) or len(steps) > _STEPS_MAX:
        return []
    try:
        infos = [_type_info(hint)]
    except TypeError:  # one that msgspec does not know, or that is not hashable
        return []
    for step in steps:
        inside = [inner for info in infos for each in _members(info) for inner in _inside(each, step)]
        infos = list({id(each): each for each in inside}.values())
        if len(infos) > _TYPES_MAX:
            return []
    found: list[Any] = []
    for info in infos:
        for member in _members(info):
            if isinstance(member, msgspec.inspect.EnumType):
                found += [choice.value for choice in member.cls]
            elif isinstance(member, msgspec.inspect.LiteralType):
                found += member.values
            elif not isinstance(member, msgspec.inspect.NoneType):
                return []
    return found


def expected_words(name: str) -> str:
    """What a type is called where it is expected: "an integer or a list", "an array of uint8"."""
    parts: list[str] = []
    for part in name.split(" | "):
        found = _NDARRAY.fullmatch(part)
        if found is None:
            parts.append(part)
            continue
        # `float32 | float64 ndarray`: the element types before it belong to it.
        dtypes = [found["dtypes"]] if found["dtypes"] else []
        while dtypes and parts and parts[-1] not in _WORDS and parts[-1].isidentifier() and parts[-1] != "null":
            dtypes.insert(0, parts.pop())
        parts.append("an array" + (f" of {' or '.join(dtypes)}" if dtypes else "") + (found["shape"] or ""))
    return " or ".join(_WORDS.get(part, part) for part in parts)


def _given_words(name: str) -> str:
    found = _NDARRAY.fullmatch(name)
    if found is not None:
        return "an array" + (f" of {found['dtypes']}" if found["dtypes"] else "") + (found["shape"] or "")
    if name.startswith("object tagged "):
        return f"an {name}"
    return _GIVEN.get(name, name)


def _form_of(expected: str, got: str) -> str | None:
    """How the expected type is written, where something that is not of it at all was given."""
    if "ndarray" in got:
        return None
    names = expected.split(" | ")
    found = next((name for name in _FORMS if name in names or (name == "ndarray" and "ndarray" in expected)), None)
    return _FORMS[found] if found is not None else None


def _listed(choices: list[Any]) -> str:
    shown = [shortened(json.dumps(choice, ensure_ascii=False, default=str)) for choice in choices[:CHOICES_MAX]]
    if len(choices) > CHOICES_MAX:
        return f"one of {', '.join(shown)} or {len(choices) - CHOICES_MAX} more"
    return " or ".join(shown) if len(shown) < 3 else f"one of {', '.join(shown)}"


@functools.lru_cache(maxsize=1000)
def _type_info(hint: Any) -> Any:
    # It takes up to milliseconds, and a peer may be wrong as often as it likes.
    return msgspec.inspect.type_info(hint)


def _members(info: Any) -> list[Any]:
    """The types of a union; of any other type that one. Without the metadata around it."""
    while isinstance(info, msgspec.inspect.Metadata):
        info = info.type
    if isinstance(info, msgspec.inspect.UnionType):
        return [each for member in info.types for each in _members(member)]
    if isinstance(info, msgspec.inspect.CustomType) and isinstance(info.cls, Marker):
        stands_for = getattr(info.cls, "stands_for", None)
        return [info] if stands_for is None else _members(_type_info(stands_for))
    return [info]


def _inside(info: Any, step: re.Match[str]) -> list[Any]:
    """The types of the part of a value that a step of a path leads to."""
    if step["name"] is not None:
        fields = getattr(info, "fields", ())
        return [field.type for field in fields if step["name"] in (field.encode_name, field.name)]
    if isinstance(info, msgspec.inspect.DictType):
        return [info.value_type]
    if hasattr(info, "item_type"):
        return [info.item_type]
    place = -1 if step["place"] == "..." else int(step["place"][:9])
    is_array = isinstance(info, msgspec.inspect.NamedTupleType) or getattr(info, "array_like", False)
    items = [field.type for field in info.fields] if is_array else getattr(info, "item_types", ())
    return [items[place]] if 0 <= place < len(items) else []
