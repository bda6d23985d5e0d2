"""Which encoder takes a value, by its type: the nearest class of its MRO that is in the table, then what it offers.

The table names classes instead of importing them, so a family's library is loaded when its first value shows up, by
which time the value has loaded it anyway. Knows no encoder's work.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import EncodeError
from .rich_hint import type_name

if TYPE_CHECKING:
    from .encoding import Encoding

#: Gives something nearer to JSON: parts that may have to be encoded themselves. Raises EncodeError.
Encoder = Callable[[Any, "Encoding"], object]

_ARRAY_LIKE = ("ndarray", "encode_array_like")
_ITERABLE = ("containers", "encode_iterable")
_MAPPING = ("containers", "encode_mapping")
_TEXT = ("scalars", "encode_text")
_TIME = ("scalars", "encode_date_or_time")

#: (module, class) -> (module of this package, encoder)
_HOMES = {
    ("builtins", "bool"): ("scalars", "encode_int"),
    ("builtins", "bytearray"): ("binary", "encode_bytes"),
    ("builtins", "bytes"): ("binary", "encode_bytes"),
    ("builtins", "complex"): ("scalars", "encode_complex"),
    ("builtins", "dict"): _MAPPING,
    ("builtins", "dict_items"): _ITERABLE,
    ("builtins", "dict_keys"): _ITERABLE,
    ("builtins", "dict_values"): _ITERABLE,
    ("builtins", "float"): ("scalars", "encode_float"),
    ("builtins", "frozenset"): _ITERABLE,
    ("builtins", "int"): ("scalars", "encode_int"),
    ("builtins", "list"): _ITERABLE,
    ("builtins", "mappingproxy"): _MAPPING,
    ("builtins", "memoryview"): ("binary", "encode_memoryview"),
    ("builtins", "range"): _ITERABLE,
    ("builtins", "set"): _ITERABLE,
    ("builtins", "str"): ("scalars", "encode_str"),
    ("builtins", "tuple"): _ITERABLE,
    ("collections", "deque"): _ITERABLE,
    ("datetime", "date"): _TIME,
    ("datetime", "datetime"): _TIME,
    ("datetime", "time"): _TIME,
    ("datetime", "timedelta"): ("scalars", "encode_timedelta"),
    ("decimal", "Decimal"): _TEXT,
    ("enum", "Enum"): ("scalars", "encode_value"),
    ("msgspec", "Raw"): ("scalars", "encode_raw"),
    ("msgspec", "Struct"): ("records", "encode_struct"),
    ("numpy", "generic"): ("numpy_scalars", "encode_scalar"),
    ("numpy", "ndarray"): ("ndarray", "encode_array"),
    ("PIL.Image", "Image"): ("image", "encode_image"),
    ("uuid", "UUID"): _TEXT,
}
#: These offer `__array__` too, but would lose their labels.
_LABELLED = ("pandas", "polars", "xarray")


def is_built_in(cls: type) -> bool:
    """Has the class itself, or numpy's scalar that it is, an encoder of its own here?"""
    if cls.__module__ == "numpy" and ("numpy", "generic") in map(_key, cls.__mro__):
        return True
    return cls is object or cls is type(None) or _key(cls) in _HOMES


def find_encoder(cls: type, registered: dict[type, Encoder]) -> Encoder:
    """The encoder for values of exactly this class.

    Raises:
        EncodeError: there is none.
    """
    for base in cls.__mro__:
        if (encoder := registered.get(base)) is not None:
            return encoder
        if (home := _HOMES.get(_key(base))) is not None:
            return _load(home)
        if base.__dict__.get("__dataclass_fields__") is not None:
            return _load(("records", "encode_dataclass"))
        if base.__dict__.get("__attrs_attrs__") is not None:
            return _load(("records", "encode_attrs"))
    if hasattr(cls, "__array__") or hasattr(cls, "__dlpack__"):
        if str(cls.__module__).partition(".")[0] not in _LABELLED:
            return _load(_ARRAY_LIKE)
        advice = "send its array (its labels would be lost unsaid), or register the type with the codec"
        raise EncodeError(f"a {type_name(cls)} has no form on the wire: {advice}")
    raise EncodeError(f"a {type_name(cls)} has no form on the wire")


def _key(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _load(home: tuple[str, str]) -> Encoder:
    module, name = home
    encoder: Encoder = getattr(import_module(f".{module}", __package__), name)
    return encoder
