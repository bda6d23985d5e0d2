"""Markers: classes that stand in a hint for what msgspec cannot check; constraints of hints, as msgspec reads them.

A marker stands for a rich type, for a union that msgspec does not support, or for a class with such a field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from .codec import Codec, Reading
from .options import MaxSide
from .rich_hint import TAG_KEY, Components, RichHint, described, schema_of, shortened

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


#: Classes of annotated_types, and the argument of `msgspec.Meta` that says the same.
_ANNOTATED_TYPES = {
    **{"Gt": "gt", "Ge": "ge", "Lt": "lt", "Le": "le"},
    **{"MultipleOf": "multiple_of", "MinLen": "min_length", "MaxLen": "max_length"},
}
_CONSTRAINTS = (*_ANNOTATED_TYPES.values(), "pattern", "tz")
#: Packages whose objects are constraints.
_PACKAGES = ("annotated_types", "pydantic", "pydantic_core", "rpcstream")


def read(metadata: Iterable[Any]) -> list[msgspec.Meta]:
    """Read what stands beside a type in `Annotated`, without `Shape` and `MaxSide`.

    Raises:
        TypeError: for a constraint that msgspec cannot check; the text names it.
    """
    return [meta for each in metadata for meta in _read(each)]


def _read(each: Any) -> Iterator[msgspec.Meta]:
    kind = each if isinstance(each, type) else type(each)
    argument = _ANNOTATED_TYPES.get(kind.__name__, "")
    if isinstance(each, str):
        yield msgspec.Meta(description=each)
    elif isinstance(each, msgspec.Meta):
        yield each
    elif getattr(each, "__is_annotated_types_grouped_metadata__", False) is True and kind is not each:
        yield from read(each)
    elif kind.__name__ in ("Doc", "DocInfo") and hasattr(each, "documentation"):
        yield msgspec.Meta(description=each.documentation)
    elif kind.__module__ == "pydantic.fields" and each.is_required() and each.alias is None:
        yield from read(filter(None, (each.description, *each.metadata)))
    elif kind.__module__.partition(".")[0] in _PACKAGES:
        value = getattr(each, argument) if argument and kind is not each else None
        if type(value) not in (int, float):  # msgspec checks no bounds of dates and Decimals
            raise TypeError(
                f"{shortened(repr(each), 100)} in Annotated means nothing here: use msgspec.Meta, or check it in the "
                "function"
            )
        yield msgspec.Meta(**{argument: value})


def limits(meta: msgspec.Meta) -> bool:
    """True if it says which values are allowed."""
    return any(getattr(meta, name) is not None for name in _CONSTRAINTS)


def with_metas(hint: Any, metas: list[msgspec.Meta]) -> Any:
    """The (lowered) hint with these beside it. TypeError if msgspec cannot check one there."""
    for meta in metas:
        hint = Annotated[(hint, meta)]
        try:
            msgspec.inspect.type_info(hint)
        except (TypeError, ValueError, OverflowError, re.error) as error:
            reason = str(error).partition(" - type")[0]
            raise TypeError(f"{shortened(repr(meta), 100)} means nothing for this type: {reason}") from None
    return hint


def measured(hint: Any, measures: list[Any], codec: Codec) -> RichHint:
    """The array or image with a `Shape` or a `MaxSide` beside it. TypeError if that means nothing for this type."""
    measure = measures[0]
    if isinstance(measure, type) or len(measures) > 1:
        raise TypeError("give one Shape(None, 3) or MaxSide(1024) per hint, with its size")
    cls = get_origin(hint) or hint
    found = codec.rich_type(cls) if isinstance(cls, type) else None
    if found is None or found.measure is not type(measure):
        kind = "images" if isinstance(measure, MaxSide) else "arrays"
        raise TypeError(f"{measure!r} is for {kind}")
    hint_with: RichHint = found.function("hint")(hint, measure)
    return hint_with
