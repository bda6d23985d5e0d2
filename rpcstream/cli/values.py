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
        """The value of one item: of its text, or of the file that the text names.

        Raises:
            UsageError: the text does not fit the type, or the file cannot be read. It names the item.
        """
        path = _path_in(item)
        try:
            value = _FROM_TEXT[item.kind](item.text) if path is None else _FROM_FILE[item.kind](self.read(path))
            return _as_dtype(value, item.dtype) if item.dtype else value
        except ValueError as error:
            raise UsageError(f"{item.source}: {error}") from error


def is_unclear(item: Item, value: Any) -> bool:
    """Whether what is sent for an item depends on what its parameter takes.

    Args:
        item: as it was typed.
        value: its value where nothing is known of the parameter.
    """
    if item.kind == "ndarray":
        return not item.dtype and _path_in(item) is None
    return item.kind == "auto" and (not isinstance(value, str) or _looks_like_path(item.text))


def names_file(item: Item) -> bool:
    """Whether the text of an unclear item is the path of a file or a folder, or `-`."""
    return item.kind == "auto" and _looks_like_path(item.text) and (item.text == "-" or os.path.exists(item.text))


def _looks_like_path(text: str) -> bool:
    """Whether a text without a type may name a file: it has a dot or a slash, as in `cat.png`, or is `-`."""
    return text == "-" or (("." in text or os.sep in text) and not text.startswith("@"))


def _path_in(item: Item) -> str | None:
    """The path of the file whose content is the value of an item; None if the text itself is the value."""
    kind, text = item.kind, item.text
    if kind in ("file", "image"):
        return text if kind == "file" else text.removeprefix("@")
    if kind in _FROM_FILE and text.startswith("@"):
        return text[1:]
    return text if kind == "ndarray" and (text.endswith(".npy") or text == "-") else None


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


def _as_dtype(array: Any, dtype: str) -> Any:
    from .files import as_dtype

    return as_dtype(array, dtype)


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


# -- of the file that an item names


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError("the file is not UTF-8 text (send its bytes with -f)") from error


def _content(kind: str) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        from .files import READERS

        return READERS[kind](data)

    return read


_FROM_FILE: dict[str, Callable[[bytes], Any]] = {
    "auto": _text,
    "json": parse_json,
    "bytes": bytes,
    "file": bytes,
    "image": _content("image"),
    "ndarray": _content("ndarray"),
}
