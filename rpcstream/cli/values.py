"""Convert the text of an item to a value: a number, text, JSON, bytes, the content of a file, an image or an array.

numpy and Pillow are imported only for an array or an image.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from .items import Item, UsageError

#: A number as JSON writes it (RFC 8259, section 6). Other texts stay text: 007, +5, 1_000, nan.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<float>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)", re.ASCII)
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}
_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NO_NAN = "JSON has neither NaN nor infinity (use key:float=nan, or give a .npy file with :ndarray)"


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

    def read_params(self) -> list[Any] | dict[str, Any] | None:
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
        """The value of one item.

        Raises:
            UsageError: the text does not fit the type, or the file cannot be read. It names the item.
        """
        try:
            return _CONVERTERS[item.kind](self, item)
        except ValueError as error:
            raise UsageError(f"{item.source}: {error}") from error


def is_unclear(item: Item, value: Any) -> bool:
    """Whether what is sent for an item depends on what its parameter takes.

    Args:
        item: as it was typed.
        value: its value where nothing is known of the parameter.
    """
    if item.kind == "ndarray":
        return not item.dtype and not _is_file(item)
    return item.kind == "auto" and (not isinstance(value, str) or _looks_like_path(item.text))


def names_file(item: Item) -> bool:
    """Whether the text of an unclear item is the path of a file or a folder, or `-`."""
    return item.kind == "auto" and _looks_like_path(item.text) and (item.text == "-" or os.path.exists(item.text))


def _looks_like_path(text: str) -> bool:
    """Whether a text without a type may name a file: it has a dot or a slash, as in `cat.png`, or is `-`."""
    return text == "-" or (("." in text or os.sep in text) and not text.startswith("@"))


def shortened(text: str) -> str:
    """A text as it was typed, cut to its beginning if it is long."""
    return text if len(text) <= 40 else text[:37] + "..."


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
    return _finite(text) if number["float"] else int(text)


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


def _auto(reader: ValueReader, item: Item) -> Any:
    if not item.text.startswith("@"):
        return infer_value(item.text)
    try:
        return reader.read(item.text[1:]).decode()
    except UnicodeDecodeError as error:
        raise ValueError("the file is not UTF-8 text (send its bytes with -f)") from error


def _int(_reader: ValueReader, item: Item) -> int:
    try:
        return int(item.text)
    except ValueError as error:
        raise ValueError("not an integer") from error


def _float(_reader: ValueReader, item: Item) -> float:
    try:
        value = float(item.text)
    except ValueError as error:
        raise ValueError("not a number") from error
    if math.isinf(value) and "inf" not in item.text.lower():
        raise ValueError("too large for a float")
    return value


def _str(_reader: ValueReader, item: Item) -> str:
    return utf8(item.text)


def _bool(_reader: ValueReader, item: Item) -> bool:
    try:
        return _BOOLS[item.text.lower()]
    except KeyError as error:
        raise ValueError(f"not a bool: one of {', '.join(_BOOLS)}") from error


def _json(reader: ValueReader, item: Item) -> Any:
    return parse_json(reader.read(item.text[1:]) if item.text.startswith("@") else utf8(item.text))


def _bytes(reader: ValueReader, item: Item) -> bytes:
    if item.text.startswith("@"):
        return reader.read(item.text[1:])
    return item.text.encode(errors="surrogateescape")  # as they were typed, UTF-8 or not


def _file(reader: ValueReader, item: Item) -> bytes:
    return reader.read(item.text)


def _image(reader: ValueReader, item: Item) -> Any:
    from .media import image_to_send

    return image_to_send(reader.read(item.text.removeprefix("@")))


def _is_file(item: Item) -> bool:
    """Whether the text of an array is the name of a .npy file."""
    return item.text.startswith("@") or item.text.endswith(".npy") or item.text == "-"


def _ndarray(reader: ValueReader, item: Item) -> Any:
    from .media import array_from_file, array_from_json

    if _is_file(item):
        return array_from_file(reader.read(item.text.removeprefix("@")), item.dtype)
    try:
        nested = parse_json(utf8(item.text))
    except ValueError as error:
        raise ValueError(f"neither the name of a .npy file nor JSON ({error})") from error
    return array_from_json(nested, item.dtype)


_CONVERTERS: dict[str, Callable[[ValueReader, Item], Any]] = {
    "auto": _auto,
    "int": _int,
    "float": _float,
    "str": _str,
    "bool": _bool,
    "json": _json,
    "bytes": _bytes,
    "file": _file,
    "image": _image,
    "ndarray": _ndarray,
}
