"""What the text of an item means as a value: numbers, JSON, files, images, arrays.

Owns the recognition of types and the reading of files. Knows neither the shape of the command line nor the wire; numpy
and Pillow are imported when an array or an image is really given.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from typing import Any

from .items import Part, UsageError

#: A number as JSON writes it (RFC 8259, section 6). Nothing else is taken for one: 007, +5, 1_000, nan stay text.
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<float>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)", re.ASCII)
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}
_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NO_NAN = "JSON has neither NaN nor infinity (an array has: give the file of one with :ndarray)"


class Inputs:
    """Reads what items name: files, and once the standard input (the path `-`)."""

    def __init__(self, stdin: Callable[[], bytes] | None = None) -> None:
        self._stdin: Callable[[], bytes] | None = stdin or _standard_input

    def read(self, path: str) -> bytes:
        """The bytes of a file.

        Raises:
            UsageError: the file cannot be read, or standard input was read before.
        """
        if path == "-":
            stdin, self._stdin = self._stdin, None
            if stdin is None:
                raise UsageError("standard input can be read only once")
            return stdin()
        try:
            with open(path, "rb") as file:
                return file.read()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(f"cannot read {path!r}: {reason or error}") from error

    def params(self) -> list[Any] | dict[str, Any] | None:
        """The `params` that stand on standard input: a JSON object or array; None when it is empty."""
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

    def convert(self, part: Part) -> Any:
        """The value of one item.

        Raises:
            UsageError: the text does not fit the type, or the file cannot be read. It names the item.
        """
        try:
            return _CONVERTERS[part.kind](self, part)
        except ValueError as error:
            raise UsageError(f"{part.source}: {error}") from error


def _standard_input() -> bytes:
    if sys.stdin is None:  # the shell closed it: `<&-`
        raise UsageError("standard input is closed")
    return sys.stdin.buffer.read()


def parse_json(text: str | bytes) -> Any:
    """One JSON value; integers of any size stay exact, NaN and Infinity are refused.

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


def recognise(text: str) -> Any:
    """The value of plain text: a number as JSON writes it, true, false, null, else the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    number = _NUMBER.fullmatch(text)
    if number is None:
        return _text(text)
    return _finite(text) if number["float"] else int(text)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name}: {_NO_NAN}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is beyond the numbers of JSON: {_NO_NAN}")
    return value


def _text(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError("not valid UTF-8 (bytes go with :bytes=@file or -f)") from error
    return text


def _auto(inputs: Inputs, part: Part) -> Any:
    if not part.text.startswith("@"):
        return recognise(part.text)
    try:
        return inputs.read(part.text[1:]).decode()
    except UnicodeDecodeError as error:
        raise ValueError("the file is not UTF-8 text (send its bytes with -f)") from error


def _int(_inputs: Inputs, part: Part) -> int:
    try:
        return int(part.text)
    except ValueError as error:
        raise ValueError("not an integer") from error


def _float(_inputs: Inputs, part: Part) -> float:
    try:
        value = float(part.text)
    except ValueError as error:
        raise ValueError("not a number") from error
    if not math.isfinite(value):
        raise ValueError(_NO_NAN)
    return value


def _str(_inputs: Inputs, part: Part) -> str:
    return _text(part.text)


def _bool(_inputs: Inputs, part: Part) -> bool:
    try:
        return _BOOLS[part.text.lower()]
    except KeyError as error:
        raise ValueError(f"not a bool: one of {', '.join(_BOOLS)}") from error


def _json(inputs: Inputs, part: Part) -> Any:
    return parse_json(inputs.read(part.text[1:]) if part.text.startswith("@") else _text(part.text))


def _bytes(inputs: Inputs, part: Part) -> bytes:
    if part.text.startswith("@"):
        return inputs.read(part.text[1:])
    return part.text.encode(errors="surrogateescape")  # as they were typed, UTF-8 or not


def _file(inputs: Inputs, part: Part) -> bytes:
    return inputs.read(part.text)


def _image(inputs: Inputs, part: Part) -> Any:
    from .wire import image_to_send

    return image_to_send(inputs.read(part.text.removeprefix("@")))


def _ndarray(inputs: Inputs, part: Part) -> Any:
    from .media import array_from_file, array_from_json

    if part.text.startswith("@") or part.text.endswith(".npy") or part.text == "-":
        return array_from_file(inputs.read(part.text.removeprefix("@")), part.dtype)
    try:
        nested = parse_json(_text(part.text))
    except ValueError as error:
        raise ValueError(f"neither the name of a .npy file nor JSON ({error})") from error
    return array_from_json(nested, part.dtype)


_CONVERTERS: dict[str, Callable[[Inputs, Part], Any]] = {
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
