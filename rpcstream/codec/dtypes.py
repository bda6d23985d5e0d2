"""Element types of arrays: which of numpy go over the wire, and which a hint allows.

Owns the white list (the wire page, "Rich values") and its two directions. On the wire a dtype is numpy's `dtype.str`,
or the name for the types of ml_dtypes (little-endian). Names such as `float32` are taken as little-endian, never sent.
Knows neither payloads nor tagged objects.

Never: object, void, structured and string dtypes; longdouble, which has another size on each platform; integers and
floats of less than 8 bits, whose packing is not agreed on.
"""

from __future__ import annotations

import difflib
import functools
import re
import types
import typing
from collections.abc import Iterable
from typing import Any, Union

import numpy as np

from ..errors import EncodeError
from .rich_hint import described, shortened

DType = np.dtype[Any]

_PLAIN = re.compile(
    r"[<>|][biu]1"
    r"|[<>](?:[iu][248]|f[248]|c8|c16)"
    r"|[<>][mM]8(?:\[(?:[1-9][0-9]{0,8})?(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?"
)
#: Of ml_dtypes: whole bytes only.
EXTENSIONS = frozenset(
    {
        "bfloat16",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    }
)
#: The names that numpy has for dtypes, and what each stands for: little-endian, on every machine.
NAMES = {
    "bool": "|b1",
    **{f"{kind}8": f"|{kind[0]}1" for kind in ("int", "uint")},
    **{f"{kind}{8 * size}": f"<{kind[0]}{size}" for kind in ("int", "uint", "float") for size in (2, 4, 8)},
    **{f"complex{8 * size}": f"<c{size}" for size in (8, 16)},
}
_DATE_NAME = re.compile(r"(datetime64|timedelta64)(\[\w+\])?")
_DATES = {"datetime64": "<M8", "timedelta64": "<m8"}
#: What is written in place of a dtype, and the name that is meant.
_MISTAKES = {
    mistake: name
    for name, mistakes in {
        "bool": "boolean bool_ bool8",
        "int16": "short",
        "int32": "i32",
        "int64": "int integer long i64",
        "uint8": "byte uchar",
        "uint32": "u32",
        "uint64": "uint u64",
        "float16": "half",
        "float32": "single f32",
        "float64": "float double f64 number longdouble float128",
        "bfloat16": "bf16",
        "complex128": "complex cdouble",
    }.items()
    for mistake in mistakes.split()
}
_WITHOUT_ORDER = re.compile(r"[=|]?([biufcmM][0-9]{1,2}(?:\[\w{1,12}\])?)")
_NOT_NUMBERS = re.compile(r"[<>|=]?[OSUVa][0-9]*|object_?|str_?|string|bytes_?|void")
#: Longer texts have no nearest name.
_LONGEST_NAME = 40

#: Hints for one of these mean any of their subtypes.
_ABSTRACT = (
    np.generic,
    np.number,
    np.integer,
    np.signedinteger,
    np.unsignedinteger,
    np.inexact,
    np.floating,
    np.complexfloating,
    np.datetime64,  # the unit is not part of the hint
    np.timedelta64,
)


@functools.lru_cache(maxsize=256)
def to_wire(dtype: DType) -> str:
    """The text for a dtype. EncodeError for one that has none."""
    if is_extension(dtype):
        if dtype.name in EXTENSIONS and dtype.isnative:
            return str(dtype.name)
    elif _PLAIN.fullmatch(dtype.str):
        return dtype.str
    raise EncodeError(f"an array of dtype {shortened(str(dtype))} has no form on the wire{_advice(dtype)}")


def from_wire(text: object) -> DType:
    """The dtype for what a caller wrote: all that `to_wire` writes, and numpy's names, which mean little-endian.

    Raises:
        ValueError: there is no such dtype, or it does not go over the wire; the text says what to write.
    """
    if isinstance(text, str):
        return _from_text(text)
    raise ValueError(f"dtype must be a string such as '<f4' or 'float32', got {described(text)}")


@functools.lru_cache(maxsize=256)
def _from_text(text: str) -> DType:
    # The check comes first: numpy would make an 80 MB item of "10000000f8".
    if _PLAIN.fullmatch(text):
        return np.dtype(text)
    if text in NAMES:
        return np.dtype(NAMES[text])
    if text in EXTENSIONS:
        return _extension(text)
    if (date := _DATE_NAME.fullmatch(text)) and _PLAIN.fullmatch(plain := _DATES[date[1]] + (date[2] or "")):
        return np.dtype(plain)
    raise ValueError(f"dtype {shortened(text)!r} is not one that goes over the wire: {_instead_of(text)}")


def _instead_of(text: str) -> str:
    """What to write in place of a text that is no dtype."""
    if _NOT_NUMBERS.fullmatch(text):
        return "send a list"
    if (plain := _WITHOUT_ORDER.fullmatch(text)) and _PLAIN.fullmatch(found := f"<{plain[1]}"):
        return f"use {found!r}, which says the byte order"
    plain_name = text.lower().removeprefix("torch.").removeprefix("numpy.").removeprefix("np.")
    name = _MISTAKES.get(plain_name)
    if name is None and len(text) <= _LONGEST_NAME:
        known = [*NAMES, *EXTENSIONS]
        name = next(iter(difflib.get_close_matches(plain_name.removesuffix("array"), known, 1, 0.7)), None)
    if name is None:
        return "use a name such as 'float32', or a dtype.str such as '<f4'"
    return f"use {NAMES[name]!r} or {name!r}" if name in NAMES else f"use {name!r}"


def is_extension(dtype: DType) -> bool:
    """True for a dtype of ml_dtypes, such as bfloat16."""
    return dtype.type.__module__.partition(".")[0] == "ml_dtypes"


def _extension(name: str) -> DType:
    try:
        import ml_dtypes
    except ImportError:
        raise ValueError(f"dtype {name!r} needs the package ml_dtypes, which is not installed here") from None
    kind = getattr(ml_dtypes, name, None)
    if kind is None:
        raise ValueError(f"dtype {name!r} needs a newer version of ml_dtypes than the one installed here")
    dtype: DType = np.dtype(kind)
    return dtype


def _advice(dtype: DType) -> str:
    if dtype.kind == "O":
        return ": send a list"
    if dtype.kind in "US":
        return ": send a list of strings"
    if dtype.type in (np.longdouble, np.clongdouble):
        return ": it differs between platforms, use float64 or complex128"
    if is_extension(dtype):
        return ": use a type of 8 bits or more"
    return ""


class Wanted:
    """One element type in a hint: a dtype, or an abstract type such as `np.floating`.

    A dtype is matched in any byte order. `np.integer` does not mean timedelta64, which numpy derives from it.

    Raises:
        TypeError: it is none, or none that goes over the wire.
    """

    def __init__(self, kind: Any) -> None:
        kind = typing.get_origin(kind) or kind  # np.floating[Any]
        self._abstract: type | None = kind if kind in _ABSTRACT else None
        self.dtype: DType | None = None
        self.name = kind.__name__ if self._abstract else ""
        if self._abstract is None:
            if not isinstance(kind, type) or issubclass(kind, np.flexible | np.object_):
                raise TypeError(f"an array of {kind!r} cannot go over the wire")
            self.dtype = np.dtype(kind)
            self.name = self.dtype.name
            try:
                to_wire(self.dtype)
            except EncodeError as error:
                raise TypeError(str(error)) from None

    def matches(self, dtype: DType) -> bool:
        if self.dtype is not None:
            return dtype == self.dtype or dtype.newbyteorder("=") == self.dtype
        if dtype.kind == "m" and self._abstract not in (np.timedelta64, np.generic):
            return False
        return issubclass(dtype.type, typing.cast(type, self._abstract))


def texts_of(wanted: Iterable[Wanted]) -> list[str]:
    """What an array may have as its dtype on the wire, in little-endian order: of an abstract type the usual ones."""
    texts: list[str] = []
    for each in wanted:
        if each.dtype is None:
            texts += [text for text in (*NAMES.values(), "<M8[ns]", "<m8[ns]") if each.matches(np.dtype(text))]
        elif is_extension(each.dtype):
            texts.append(each.dtype.name)
        else:
            texts.append(to_wire(each.dtype.newbyteorder("<")))
    return list(dict.fromkeys(texts))


def wanted_in(hint: Any) -> tuple[Wanted, ...] | None:
    """The element types that the second argument of `np.ndarray[...]` allows; None for any.

    Raises:
        TypeError: as for `Wanted`.
    """
    if hint is Any or hint is np.dtype:
        return None
    if typing.get_origin(hint) is np.dtype:
        return wanted_in(typing.get_args(hint)[0])
    if isinstance(hint, typing.TypeVar):
        choices = hint.__constraints__ or (hint.__bound__ or Any,)
    elif typing.get_origin(hint) in (Union, types.UnionType):
        choices = typing.get_args(hint)
    else:
        return (Wanted(hint),) if hint is not np.generic else None
    found: list[Wanted] = []
    for choice in choices:
        some = wanted_in(choice)
        if some is None:
            return None
        found += some
    return tuple(found)
