"""Reads the parameters of a call: `key=value`, `key:int=1`, `key:=[1]`, `-i photo=./a.png`, ...

An item is split into its name, its type and its text; the text, or the file that it names, becomes a value. numpy and
Pillow are imported only for an array or an image.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, BinaryIO

from .options import UsageError

if TYPE_CHECKING:
    from ..errors import InvalidParams

Params = list[Any] | dict[str, Any] | None

#: The types that may stand behind the colon of a key.
KINDS = ("int", "float", "str", "bool", "json", "bytes", "image", "ndarray")

#: For -i and -f: a text before `=` with one of these is part of a path and not a name, as in `./a=b.png`.
_NOT_IN_NAMES = frozenset("/\\. \t\n")

#: A number as JSON writes it (RFC 8259, section 6). Other texts stay text: 007, +5, 1_000, nan.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<float>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)", re.ASCII)
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}
_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NO_NAN = "JSON has neither NaN nor infinity (use key:float=nan, or give a .npy file with :ndarray)"

# -- items


class Item:
    """One parameter as it was typed.

    A plain class, since Python defines it ten times faster than a named tuple.

    Attributes:
        key: the name, or None for one by position.
        kind: one of `KINDS`, "auto" where no type is given, or "file" for the option -f.
        text: the text behind the `=`.
        source: the item as it was typed, shortened, for messages.
    """

    __slots__ = ("key", "kind", "source", "text")

    def __init__(self, key: str | None, kind: str, text: str, typed: str) -> None:
        self.key = key
        self.kind = kind
        self.text = text
        self.source = repr(shortened(typed, 60))

    def advice_for_json(self) -> str | None:
        """How to give a text that looks like an array or an object of JSON as one; None for other items."""
        if self.kind != "auto" or not self.text.startswith(("[", "{")):
            return None
        return f"for JSON give {self.key or ''}:={shortened(self.text)}"


def shortened(text: str, most: int = 40) -> str:
    """A text as it was typed, cut to its beginning if it is long."""
    return text if len(text) <= most else text[: most - 3] + "..."


def parse_item(text: str) -> Item:
    """Parse `key=value`, `key:TYPE=value` or `key:=JSON`.

    The key ends at the first `=`, its type follows the last colon before that.

    Raises:
        UsageError: there is no `=`, no key, or the type is unknown.
    """
    left, equals, value = text.partition("=")
    key, colon, kind = left.rpartition(":") if ":" in left else (left, "", "auto")
    source = repr(shortened(text, 60))
    if not equals:
        raise UsageError(f"{source} is not an item: write key=value, or --positional for a value without a name")
    if colon and kind not in ("", *KINDS):
        raise UsageError(
            f"{source}: unknown type {kind!r}; the types are {', '.join(KINDS)}"
            f" (if the key contains a colon, add a type: {left}:str=...)"
        )
    if not key:
        raise UsageError(f"{source}: the key before the '=' is missing")
    return Item(key, kind or "json", value, text)


def parse_positional(text: str) -> Item:
    """Parse a value without a name: `5`, or an item without its key such as `:str=5` or `:=[1, 2]`."""
    left, equals, value = text.partition("=")
    if equals and left.startswith(":") and left[1:] in ("", *KINDS):
        return Item(None, left[1:] or "json", value, text)
    return Item(None, "auto", text, text)


def parse_file_option(kind: str, text: str) -> Item:
    """Parse the value of -i or -f: `name=path`, or a path alone for a parameter by position.

    The text before the first `=` is a name unless it holds a dot, a slash or a blank.
    """
    name, equals, path = text.partition("=")
    if equals and name and _NOT_IN_NAMES.isdisjoint(name):
        return Item(name, kind, path, text)
    return Item(None, kind, text, text)


def build_params(items: Iterable[Item], convert: Callable[[Item], Any]) -> Params:
    """The `params` of the request: an object, an array, or None where there are no items.

    Raises:
        UsageError: named and positional items are mixed, a name is there twice, or `convert` raised it.
    """
    items = list(items)
    named = [item for item in items if item.key is not None]
    if not items:
        return None
    if not named:
        return [convert(item) for item in items]
    if len(named) < len(items):
        nameless = next(item for item in items if item.key is None)
        raise UsageError(
            "pass parameters by name or by position, not both: "
            f"{named[0].source} has a name, {nameless.source} has none"
        )
    result: dict[str, Any] = {}
    for item in named:
        assert item.key is not None
        if item.key in result:
            raise UsageError(f"the parameter {item.key!r} is given twice")
        result[item.key] = convert(item)
    return result


# -- values


class ValueReader:
    """Converts items to values, and reads the files that they name; `-` is standard input, which is read once."""

    def __init__(self) -> None:
        self._has_read_stdin = False

    def open(self, path: str) -> BinaryIO:
        """Open a file, or standard input.

        Raises:
            UsageError: the file cannot be read, or standard input was read before.
        """
        if path == "-":
            if sys.stdin is None:  # the shell closed it: `<&-`
                raise UsageError("standard input is closed")
            if self._has_read_stdin:
                raise UsageError("standard input can be read only once")
            self._has_read_stdin = True
            return sys.stdin.buffer
        try:
            return open(path, "rb")
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise _unreadable(path, error) from error

    def read(self, path: str) -> bytes:
        """The bytes of a file; see `open`."""
        file = self.open(path)
        try:
            return file.read()
        except OSError as error:
            raise _unreadable(path, error) from error
        finally:
            if path != "-":
                file.close()

    def read_params(self) -> Params:
        """Read all `params` from standard input: a JSON object or array; None when it is empty."""
        text = self.read("-")
        if not text.strip():
            return None
        try:
            value = parse_json(text)
        except ValueError as error:
            raise UsageError(f"standard input: {error}") from error
        if not isinstance(value, list | dict):
            raise UsageError(f"standard input must hold a JSON object or array, not {type(value).__name__}")
        return value

    def convert(self, item: Item) -> Any:
        """The value of one item: of its text, or of the file that the text names.

        Raises:
            UsageError: the text does not fit the type, or the file cannot be read. It names the item.
        """
        path = _path_in(item)
        try:
            return _FROM_TEXT[item.kind](item.text) if path is None else _from_file(item.kind, self.read(path))
        except ValueError as error:
            raise UsageError(f"{item.source}: {error}") from error


def _path_in(item: Item) -> str | None:
    """The path of the file whose content is the value of an item; None if the text itself is the value."""
    kind, text = item.kind, item.text
    if kind in ("file", "image"):
        return text if kind == "file" else text.removeprefix("@")
    if kind in ("auto", "json", "bytes", "ndarray") and text.startswith("@"):
        return text[1:]
    return text if kind == "ndarray" and (text.endswith(".npy") or text == "-") else None


def _unreadable(path: str, error: OSError | ValueError) -> UsageError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return UsageError(f"cannot read {path!r}: {reason or error}")


def parse_json(text: str | bytes) -> Any:
    """Parse one JSON value; integers of any size stay exact, NaN and Infinity are refused.

    Raises:
        ValueError: not JSON. The text says where and why.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError("not JSON: it is not UTF-8") from error
    except RecursionError as error:
        raise ValueError("JSON nested too deep") from error


def infer_value(text: str) -> Any:
    """The value of a text without a type: a number as JSON writes it, true, false, null, else the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    number = _NUMBER.fullmatch(text)
    if number is None:
        return utf8(text)
    try:
        return _finite(text) if number["float"] else int(text)
    except ValueError:  # a number that JSON or Python does not take, such as 12e4567, may be meant as text
        return text


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name}: {_NO_NAN}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is beyond the numbers of JSON: {_NO_NAN}")
    return value


def utf8(text: str) -> str:
    """The text. Raises ValueError if the shell gave bytes that are no text."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError("not valid UTF-8 (bytes go with :bytes=@file or -f)") from error
    return text


# -- of the text of an item, by its type


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ValueError("not an integer") from error


def _float(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError("not a number") from error
    if math.isinf(value) and "inf" not in text.lower():
        raise ValueError("too large for a float")
    return value


def _bool(text: str) -> bool:
    try:
        return _BOOLS[text.lower()]
    except KeyError as error:
        raise ValueError(f"not a bool: one of {', '.join(_BOOLS)}") from error


def _json(text: str) -> Any:
    return parse_json(utf8(text))


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")  # as they were typed, UTF-8 or not


def _ndarray(text: str) -> Any:
    from .files import array_from_json

    try:
        nested = _json(text)
    except ValueError as error:
        raise ValueError(f"neither the name of a .npy file nor JSON ({error})") from error
    return array_from_json(nested)


_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "auto": infer_value,
    "int": _int,
    "float": _float,
    "str": utf8,
    "bool": _bool,
    "json": _json,
    "bytes": _bytes,
    "ndarray": _ndarray,
}


def _from_file(kind: str, data: bytes) -> Any:
    """The value of an item of this kind that names a file with these bytes."""
    if kind in ("image", "ndarray"):
        from .files import READERS

        return READERS[kind](data)
    if kind == "json":
        return parse_json(data)
    if kind != "auto":
        return data
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError("the file is not UTF-8 text (send its bytes with -f)") from error


# -- the params of a call


class GivenParams:
    """The parameters on the command line.

    Attributes:
        params: the `params` of the request if the types of the method are unknown.
        unclear: by name or position, the items whose value depends on these types: a number, `true`, `false` or `null`
            without a type, which may be meant as text; a text that may be the path of a file; and an array from JSON,
            whose dtype is open.
        names_files: one of them is the path of a file that exists, or `-`.
        reader: reads the files.
    """

    def __init__(self, params: Any, items: Iterable[Item] = (), reader: ValueReader | None = None) -> None:
        self.params: Params = params
        self.reader = reader or ValueReader()
        self._items = {number if item.key is None else item.key: item for number, item in enumerate(items)}
        self.unclear: dict[str | int, Item] = {
            where: item for where, item in self._items.items() if _is_unclear(item, params[where])
        }
        self.names_files = any(map(_names_file, self.unclear.values()))

    def advice(self, error: InvalidParams, *, is_fitted: bool) -> str | None:
        """How to give the type of an item that the server refused; None if its type is clear.

        Args:
            is_fitted: the unclear items were sent as the method takes them.
        """
        data = error.data if isinstance(error.data, dict) else {}
        if data.get("path") == "$":  # a parameter is missing, or there is no such
            return None
        parameter = data.get("parameter")
        for where, item in self._items.items():
            if isinstance(where, str) and parameter not in (None, where):
                continue
            if advice := item.advice_for_json():
                return advice
            is_text = item.kind == "auto" and isinstance(infer_value(item.text), str)
            if is_text or is_fitted or where not in self.unclear:
                continue
            if item.kind == "ndarray":
                return "for another dtype give a .npy file"
            return f"for text give {item.key or ''}:str={shortened(item.text)}"
        return None


def read_params(options: argparse.Namespace) -> GivenParams:
    """Read the `params` of the call, with the files that they name.

    Raises:
        UsageError: an item is wrong, or a file cannot be read.
    """
    reader = ValueReader()
    given: list[Item] = options.parts or []
    if "-" in options.items:
        if len(options.items) > 1 or given:
            raise UsageError("'-' takes all parameters from standard input, so no other parameter goes with it")
        return GivenParams(reader.read_params())
    items = [*map(parse_item, options.items), *given]
    return GivenParams(build_params(items, reader.convert), items, reader)


def _is_unclear(item: Item, value: Any) -> bool:
    """Whether the value of an item depends on the type of its parameter; `value` is its value if that is unknown."""
    if item.kind == "ndarray":
        return _path_in(item) is None
    return item.kind == "auto" and (not isinstance(value, str) or _looks_like_path(item.text))


def _names_file(item: Item) -> bool:
    """Whether the text of an unclear item is the path of a file or a folder, or `-`."""
    return item.kind == "auto" and _looks_like_path(item.text) and (item.text == "-" or os.path.exists(item.text))


def _looks_like_path(text: str) -> bool:
    """Whether a text without a type may name a file: it has a dot or a slash, as in `cat.png`, or is `-`."""
    return text == "-" or (("." in text or os.sep in text) and not text.startswith("@"))
