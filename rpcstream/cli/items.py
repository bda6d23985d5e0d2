"""Parse the parameters on the command line: `key=value`, `key:int=1`, `key:=[1]`, `-i photo=./a.png`, ...

An item is split into name, type, and text, and items become `params`. The caller passes the function that converts the
text to a value (see `values`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

#: The types that may stand behind the colon of a key.
KINDS = ("int", "float", "str", "bool", "json", "bytes", "image", "ndarray")

#: For -i and -f: a text before `=` with one of these is part of a path and not a name, as in `./a=b.png`.
_NOT_IN_NAMES = frozenset("/\\. \t\n")


class UsageError(Exception):
    """The command line is wrong, or cannot be carried out. The text is one sentence for the user."""


class Item:
    """One parameter as it was typed.

    A plain class, since Python defines it ten times faster than a named tuple.

    Attributes:
        key: the name, or None for one by position.
        kind: one of `KINDS`, "auto" where no type is given, or "file" for the option -f.
        text: the text behind the `=`.
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


def parse_item(text: str) -> Item:
    """Parse `key=value`, `key:TYPE=value` or `key:=JSON`.

    The key ends at the first `=`, its type follows the last colon before that.

    Raises:
        UsageError: there is no `=`, no key, or the type is unknown.
    """
    left, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{_quoted(text)} is not an item: write key=value, or --positional for a value without a name")
    key, colon, kind = left.rpartition(":")
    if not colon:
        key, kind, dtype = left, "auto", ""
    elif key.endswith(":ndarray"):
        key, kind, dtype = key.removesuffix(":ndarray"), "ndarray", kind
    elif kind in ("", *KINDS):
        kind, dtype = kind or "json", ""
    else:
        raise UsageError(
            f"{_quoted(text)}: unknown type {kind!r}; the types are {', '.join(KINDS)}"
            f" (if the key contains a colon, add a type: {left}:str=...)"
        )
    if not key:
        raise UsageError(f"{_quoted(text)}: the key before the '=' is missing")
    return Item(key, kind, value, _quoted(text), dtype)


def parse_positional(text: str) -> Item:
    """Parse a value without a name: `5`, or an item without its key such as `:str=5` or `:=[1, 2]`."""
    left, equals, value = text.partition("=")
    if equals and left.startswith(":"):
        kind, _, dtype = left[1:].partition(":")
        if kind in ("", *KINDS) and (not dtype or kind == "ndarray"):
            return Item(None, kind or "json", value, _quoted(text), dtype)
    return Item(None, "auto", text, _quoted(text))


def parse_file_option(kind: str, text: str) -> Item:
    """Parse the value of -i or -f: `name=path`, or a path alone for a parameter by position.

    The text before the first `=` is a name unless it holds a dot, a slash or a blank.
    """
    name, equals, path = text.partition("=")
    if equals and name and _NOT_IN_NAMES.isdisjoint(name):
        return Item(name, kind, path, _quoted(text))
    return Item(None, kind, text, _quoted(text))


def build_params(items: Iterable[Item], convert: Callable[[Item], Any]) -> list[Any] | dict[str, Any] | None:
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


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
