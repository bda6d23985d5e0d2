"""The grammar of parameters on the command line: `key=value`, `key:int=1`, `key:=[1]`, `-i photo=./a.png`, ...

Owns how an item is taken apart and how the items become `params`. Knows neither files nor numbers: what the text of an
item means as a value is decided by the `convert` that is passed in (see `values`). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

#: What may stand behind the colon of a key.
KINDS = ("int", "float", "str", "bool", "json", "bytes", "image", "ndarray")

#: A text that stands for a name before `=` holds none of these, so that `./a=b.png` is a path and not a name.
_NOT_IN_NAMES = frozenset("/\\. \t\n")


class UsageError(Exception):
    """The command line cannot be understood or carried out as it stands. The text is one sentence for people."""


class Part:
    """One parameter as it was typed. (A plain class: it is defined ten times faster than a named tuple.)

    Attributes:
        key: the name, or None for one by position.
        kind: one of `KINDS`, or "auto" (recognise it), "image" and "file" for the options -i and -f.
        text: what stands behind the `=`.
        dtype: the dtype of an `ndarray:DTYPE`, else "".
        source: the item as it was typed, shortened, for messages.
    """

    __slots__ = ("dtype", "key", "kind", "source", "text")

    def __init__(self, key: str | None, kind: str, text: str, source: str, dtype: str = "") -> None:
        self.key = key
        self.kind = kind
        self.text = text
        self.source = source
        self.dtype = dtype


def item(text: str) -> Part:
    """`key=value`, `key:TYPE=value` or `key:=JSON`.

    The key ends at the first `=`, its type stands behind the last colon before that.

    Raises:
        UsageError: there is no `=`, no key, or the type is unknown.
    """
    left, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{_quoted(text)} is not an item: write key=value, or --positional for a value without a name")
    key, colon, kind = left.rpartition(":")
    if not colon:
        key, kind, dtype = left, "auto", ""
    elif key.endswith(":ndarray") and kind not in KINDS:
        key, kind, dtype = key.removesuffix(":ndarray"), "ndarray", kind
    elif kind in ("", *KINDS):
        kind, dtype = kind or "json", ""
    else:
        raise UsageError(
            f"{_quoted(text)}: unknown type {kind!r}; the types are {', '.join(KINDS)}"
            f" (a key that holds a colon needs one: {left}:str=...)"
        )
    if not key:
        raise UsageError(f"{_quoted(text)}: the key before the '=' is missing")
    return Part(key, kind, value, _quoted(text), dtype)


def positional(text: str) -> Part:
    """A value without a name: `5`, or with a type as an item without its key, `:str=5`, `:=[1, 2]`."""
    left, equals, value = text.partition("=")
    if equals and left.startswith(":"):
        kind, _, dtype = left[1:].partition(":")
        if kind in ("", *KINDS) and (not dtype or kind == "ndarray"):
            return Part(None, kind or "json", value, _quoted(text), dtype)
    return Part(None, "auto", text, _quoted(text))


def file_option(kind: str, text: str) -> Part:
    """The value of -i or -f: `name=path`, or a path alone for a parameter by position.

    What stands before the first `=` is a name unless it holds a dot, a slash or a blank.
    """
    name, equals, path = text.partition("=")
    if equals and name and _NOT_IN_NAMES.isdisjoint(name):
        return Part(name, kind, path, _quoted(text))
    return Part(None, kind, text, _quoted(text))


def params(parts: Iterable[Part], convert: Callable[[Part], Any]) -> list[Any] | dict[str, Any] | None:
    """The `params` of the request: an object, an array, or None where there are no parts.

    Raises:
        UsageError: named and positional parts are mixed, a name is there twice, or `convert` raised it.
    """
    parts = list(parts)
    named = [part for part in parts if part.key is not None]
    if not parts:
        return None
    if not named:
        return [convert(part) for part in parts]
    if len(named) < len(parts):
        nameless = next(part for part in parts if part.key is None)
        raise UsageError(
            f"parameters go by name or by position, not both: {named[0].source} has a name, {nameless.source} has none"
        )
    result: dict[str, Any] = {}
    for part in named:
        assert part.key is not None
        if part.key in result:
            raise UsageError(f"the parameter {part.key!r} is given twice")
        result[part.key] = convert(part)
    return result


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
