"""Values that JSON has no form for: complex, NaN, Decimal, timedelta, collections, dataclasses, and subclasses.

Complex numbers, NaN and the infinities are tagged objects. All others are written as msgspec writes them, so that
msgspec reads them back.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from .codec import Encoding
from .rich_hint import FLOAT_TAG, TAG_KEY, members, mismatch, tagged_schema

COMPLEX_TAG = "complex"
#: How the tagged object of a float begins, as it is written here. (In a string its quotes have backslashes.)
TAGGED_FLOAT = f'{{"{TAG_KEY}":"{FLOAT_TAG}",'.encode()
#: JSON has no numbers for these: they are written as strings, inside of a tagged object.
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_PART = {"anyOf": [{"type": "number"}, {"enum": list(_SPECIAL)}]}
_COMPLEX_FORM = 'a complex number is an object {"$type": "complex", "real": 1.5, "imag": 2.5}'
COMPLEX_SCHEMA = tagged_schema(COMPLEX_TAG, {"real": _PART, "imag": _PART})


# -- complex ----------------------------------------------------------------------------------------------------------


def encode_complex(value: complex, _: Encoding) -> object:
    """A tagged object with the real and the imaginary part."""
    return {TAG_KEY: COMPLEX_TAG, "real": _part_to_wire(value.real), "imag": _part_to_wire(value.imag)}


def decode_complex(tagged: dict[str, Any], _: object = None) -> complex:
    """The number of a tagged object. ValueError if it is not what the wire page says."""
    real, imag = members(tagged, "real", "imag")
    return complex(_part_from_wire(real), _part_from_wire(imag))


class ComplexHint:
    """The hint `complex`. A plain JSON number is a complex one too."""

    name = "complex"
    component = "Complex"

    def __init__(self, _: object = complex) -> None:
        pass

    def decode(self, value: object, _: object = None) -> object:
        if isinstance(value, complex):
            return value
        if type(value) in (int, float):
            return complex(_part_from_wire(value))
        raise mismatch(self.name, value, _COMPLEX_FORM)

    accept = decode

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [COMPLEX_SCHEMA, {"type": "number"}]}


def _part_to_wire(part: float) -> float | str:
    return part if math.isfinite(part) else str(part)


def _part_from_wire(part: object) -> float:
    number = _SPECIAL.get(part, part) if isinstance(part, str) else part
    if type(number) in (int, float):
        with suppress(OverflowError):
            return float(number)  # type: ignore[arg-type]
    raise ValueError('complex: a part must be a number of 64 bits, "nan", "inf" or "-inf"')


# -- NaN and the infinities -------------------------------------------------------------------------------------------


def encode_float(value: float, _: object = None) -> object:
    """The number of a float or of a subclass; a tagged object for NaN and the infinities."""
    plain = float.__float__(value)
    return plain if math.isfinite(plain) else {TAG_KEY: FLOAT_TAG, "value": str(plain)}


def decode_float(tagged: dict[str, Any], _: object = None) -> float:
    """The number of a tagged object. ValueError if it is not what the wire page says."""
    (value,) = members(tagged, "value")
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    raise ValueError('float: the value must be "nan", "inf" or "-inf"')


# -- as msgspec writes them -------------------------------------------------------------------------------------------


def encode_text(value: object, _: Encoding) -> object:
    """Decimal, UUID: their text."""
    return str(value)


def encode_value(value: Any, _: Encoding) -> object:
    """The value of an Enum member."""
    return value.value


def encode_date_or_time(value: Any, _: Encoding) -> object:
    """ISO 8601, for a subclass of date, datetime or time such as pandas.Timestamp; null for pandas.NaT."""
    return value.isoformat() if value == value else None  # noqa: PLR0124 (NaT does not equal itself)


def encode_timedelta(value: Any, _: Encoding) -> object:
    """An ISO 8601 duration; pandas.Timedelta writes its own, which has nanoseconds."""
    import msgspec

    return value.isoformat() if hasattr(value, "isoformat") else msgspec.to_builtins(value)


def encode_str(value: str, _: Encoding) -> object:
    """The text of a subclass of str."""
    return str.__str__(value)


def encode_int(value: int, _: Encoding) -> object:
    """The number of a subclass of int."""
    return int.__index__(value)


def encode_iterable(value: Iterable[Any], _: Encoding) -> object:
    """set, frozenset, deque, range, views of a dict, namedtuple, subclasses of list and tuple: an array."""
    return list(value)


def encode_mapping(value: Mapping[Any, Any], _: Encoding) -> object:
    """An object, for a mappingproxy or an instance of a subclass of dict."""
    return dict(value)


def encode_fields(value: Any, _: Encoding) -> object:
    """An object with all fields that are set, of a dataclass or an attrs class."""
    members = {name: getattr(value, name) for name in _field_names(value.__class__)}
    return {name: member for name, member in members.items() if not _is_unset(member)}


@functools.lru_cache(maxsize=1024)
def _field_names(cls: Any) -> tuple[str, ...]:
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else cls.__attrs_attrs__
    return tuple(field.name for field in fields)


def encode_struct(value: Any, _: Encoding) -> object:
    """An object or (`array_like`) an array, with its tag, renamed, without defaults: as its class says."""
    config = value.__struct_config__
    values = [getattr(value, name) for name in value.__struct_fields__]
    if config.array_like:
        return values if config.tag is None else [config.tag, *values]
    members = dict(zip(value.__struct_encode_fields__, values, strict=True))
    if config.omit_defaults:
        import msgspec

        kept = msgspec.to_builtins(value, enc_hook=lambda _: None, str_keys=True)
        members = {name: member for name, member in members.items() if name in kept}
    tag = {} if config.tag is None else {config.tag_field: config.tag}
    return tag | {name: member for name, member in members.items() if not _is_unset(member)}


def _is_unset(member: object) -> bool:
    """True for msgspec.UNSET, which need not be imported."""
    return type(member).__name__ == "UnsetType"
