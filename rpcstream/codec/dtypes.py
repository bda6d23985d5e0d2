"""Element types of arrays: which of numpy go over the wire, and which a hint allows.

On the wire a dtype is numpy's `dtype.str`, or the name for the types of ml_dtypes (little-endian). Names such as
`float32` are taken as little-endian, never sent.

Never: object, void, structured and string dtypes; longdouble, which has another size on each platform; integers and
floats of less than 8 bits, whose packing is not agreed on.
"""

from __future__ import annotations

import functools
import re
import types
import typing
from typing import Any, Union

import numpy as np

from ..errors import EncodeError
from .rich_hint import described, optional_module, shortened

DType = np.dtype[Any]

#: The names that numpy has for dtypes, and what each stands for: little-endian, on every machine.
NAMES = {
    name: np.dtype(name).newbyteorder("<").str
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
#: Of ml_dtypes: whole bytes only.
EXTENSIONS = frozenset(
    {
        *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
        *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    }
)
#: Every text for a numpy dtype, except dates.
_KNOWN = {
    order + text[1:]: np.dtype(order + text[1:]) for text in NAMES.values() for order in dict.fromkeys(f"{text[0]}<>")
} | {name: np.dtype(text) for name, text in NAMES.items()}
_DATE = re.compile(r"[<>][mM]8(\[([1-9][0-9]{0,8})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?")

#: Hints for one of these mean any of their subtypes.
ABSTRACT = frozenset(
    {
        *(np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger),
        *(np.inexact, np.floating, np.complexfloating),
    }
)


@functools.lru_cache(maxsize=256)
def to_wire(dtype: DType) -> str:
    """The text for a dtype. EncodeError for one that has none."""
    if is_extension(dtype):
        if dtype.name in EXTENSIONS and dtype.isnative:
            return str(dtype.name)
    elif dtype.str in _KNOWN or _DATE.fullmatch(dtype.str):
        return dtype.str
    raise EncodeError(
        f"an array of dtype {shortened(str(dtype))} has no form on the wire: send a list, or convert it, with astype()"
    )


def from_wire(text: object) -> DType:
    """The dtype for what a caller wrote: all that `to_wire` writes, and numpy's names, which mean little-endian.

    Raises:
        ValueError: there is no such dtype, or it does not go over the wire; the text says what to write.
    """
    if not isinstance(text, str):
        raise ValueError(f"dtype must be a string such as '<f4' or 'float32', got {described(text)}")
    found = _KNOWN.get(text)
    if found is not None:
        return found
    if text in EXTENSIONS:
        kind: type = getattr(optional_module("ml_dtypes", "torch"), text)
        return np.dtype(kind)
    if _DATE.fullmatch(text):
        return np.dtype(text)
    raise ValueError(
        f"dtype {shortened(text)!r} is not one that goes over the wire: use a name such as 'float32', or a dtype.str "
        "such as '<f4', which says the byte order"
    )


def is_extension(dtype: DType) -> bool:
    """True for a dtype of ml_dtypes, such as bfloat16."""
    return dtype.type.__module__.partition(".")[0] == "ml_dtypes"


def scalar_type(kind: Any) -> type:
    """The class of the scalars that a hint for one element type means: `np.float32`, or an abstract one.

    Raises:
        TypeError: it is none, or none that goes over the wire.
    """
    kind = typing.get_origin(kind) or kind  # np.floating[Any]
    if kind in ABSTRACT:
        return kind  # type: ignore[no-any-return]
    if not isinstance(kind, type) or issubclass(kind, np.flexible | np.object_):
        raise TypeError(f"an array of {kind!r} cannot go over the wire")
    try:
        return from_wire(to_wire(np.dtype(kind))).type  # not np.longlong, which is another class
    except EncodeError as error:
        raise TypeError(str(error)) from None


def scalar_types(hint: Any) -> tuple[type, ...]:
    """The scalar types that the second argument of `np.ndarray[...]` allows.

    Raises:
        TypeError: as for `scalar_type`.
    """
    if typing.get_origin(hint) is np.dtype:
        (hint,) = typing.get_args(hint)
    if hint in (Any, np.dtype):
        return (np.generic,)
    if isinstance(hint, typing.TypeVar):
        choices = hint.__constraints__ or (hint.__bound__ or Any,)
    elif typing.get_origin(hint) in (Union, types.UnionType):
        choices = typing.get_args(hint)
    else:
        return (scalar_type(hint),)
    return tuple(each for choice in choices for each in scalar_types(choice))


def fits(dtype: DType, kinds: tuple[type, ...]) -> bool:
    """Whether scalars of a dtype are of one of these types. `np.integer` does not mean timedelta64, its subclass."""
    return issubclass(dtype.type, kinds) and (dtype.kind != "m" or not {np.timedelta64, np.generic}.isdisjoint(kinds))


def name_of(kind: type) -> str:
    """The name that numpy has for a scalar type, which is that of its dtype."""
    return kind.__name__.rstrip("_")


def code_of(kind: type) -> str:
    """The code that numpy has for a scalar type, such as f4; its name where it has none."""
    code = "V" if kind in ABSTRACT else np.dtype(kind).str[1:]
    return name_of(kind) if code[0] == "V" else code


def texts_of(kinds: tuple[type, ...]) -> list[str]:
    """What an array may have as its dtype on the wire, in little-endian order: of an abstract type the usual ones."""
    usual = [text for text in (*NAMES.values(), "<M8[ns]", "<m8[ns]") if fits(np.dtype(text), kinds)]
    return usual + [kind.__name__ for kind in kinds if kind.__name__ in EXTENSIONS]
