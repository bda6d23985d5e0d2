"""Markers: classes that stand in a hint for what msgspec cannot check, and how values are checked with them.

A marker stands for a rich type, for a union that msgspec does not support, or for a class with such a field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Union, get_args

import msgspec

from .codec import Reading
from .rich_hint import TAG_KEY, RichHint, described
from .schema import Components, schema_of

Convert = Callable[[Any, Reading], Any]
MakeSchema = Callable[[Components], dict[str, Any]]


class Marker(type):
    """The class of markers.

    Attributes:
        decode: gives what the hint means for a JSON value, or raises ValueError. Called by `Reading.hook`.
        accept: the same for the result of a handler.
        schema: gives the JSON schema; called with the components that it may refer to.
        left: the tags of objects that it decodes itself; None: it takes values of any kind.
    """

    decode: Convert
    accept: Convert
    schema: MakeSchema
    left: frozenset[str] | None = frozenset()

    def __instancecheck__(cls, value: object) -> bool:
        return True  # msgspec asks this of what `decode` gave; decode itself is the check


def marker(name: str, decode: Convert, schema: MakeSchema) -> Any:
    """Make a marker with this name in errors."""
    made = Marker(name, (), {})
    made.decode, made.accept, made.schema = decode, decode, schema
    return made


def has_marker(lowered: Any) -> bool:
    """True if a marker stands in a lowered hint."""
    return isinstance(lowered, Marker) or any(map(has_marker, get_args(lowered)))


def converter(lowered: Any, *, is_plain: bool = False) -> Convert:
    """Make a function that checks a value, and converts it to a lowered hint.

    It raises ValueError; the text says what was expected, and ends with the path.

    Args:
        is_plain: msgspec checks all of it, keys included.
    """
    if lowered is Any:
        return lambda value, _: value
    # msgspec reads a class once, and any other hint with each value: as a field of a class it takes half the time.
    wrapped: Any = msgspec.defstruct("Value", [("value", lowered)], array_like=True, gc=False)

    def convert(value: Any, reading: Reading) -> Any:
        try:
            if is_plain:
                return msgspec.convert([value], wrapped).value
            return msgspec.convert([value], wrapped, dec_hook=reading.hook, str_keys=True).value
        except msgspec.ValidationError as error:
            text, _, path = str(error).rpartition("$[0]")
            raise ValueError(f"{text}${path}") from None
        except AttributeError:  # msgspec takes an ndarray, which has items, for a mapping, and asks it for its keys
            raise ValueError("Expected `object`, got `ndarray`") from None

    return convert


def rich_marker(rich: RichHint) -> Any:
    """A marker for a rich type."""

    def schema(components: Components) -> dict[str, Any]:
        made = rich.schema()
        return made if rich.component is None else components.refer(rich.component, str(made), lambda: made)

    # That of a model of pydantic refers to others.
    schema = getattr(rich, "schema_in", schema)
    made = marker(rich.name, rich.decode, schema)
    made.accept = lambda value, _: rich.accept(value)
    made.left = None if getattr(rich, "takes_json", False) else getattr(rich, "tags", made.left)
    return made


def choice_marker(members: list[Any]) -> Any:
    """A marker for a union that msgspec does not support: the first member that fits.

    Types of plain JSON come first for plain values, then lists and objects with rich values inside; rich types come
    first for tagged objects.
    """
    plain_first = [
        converter(member) for member in sorted(members, key=lambda each: (has_marker(each), isinstance(each, Marker)))
    ]
    name = " | ".join(map(name_of_hint, members))

    def decode(value: Any, reading: Reading) -> Any:
        told = f"Expected `{name}`, got `{described(value)}`"
        is_tagged = type(value) is dict and TAG_KEY in value
        for convert in reversed(plain_first) if is_tagged else plain_first:
            try:
                return convert(value, reading)
            except ValueError as error:
                text = str(error)
                if text.startswith("Expected `") and ", got `" not in text:  # the type fits, a constraint does not
                    told = text
        raise ValueError(told)

    return marker(name, decode, lambda components: {"anyOf": [schema_of(each, components) for each in members]})


def union_of(members: Iterable[Any]) -> Any:
    """A union of hints, as `typing` makes it."""
    return Union.__getitem__(tuple(members))  # `|` cannot be written for a list of members


def is_known(hint: Any) -> bool:
    """True if msgspec can check it."""
    try:
        msgspec.inspect.type_info(hint)
    except TypeError:
        return False
    return True


def name_of_hint(hint: Any) -> str:
    """A short name for a lowered hint, for messages."""
    plain = getattr(hint, "__origin__", hint) if hasattr(hint, "__metadata__") else hint
    return "null" if plain in (None, type(None)) else plain.__name__ if isinstance(plain, type) else str(plain)
