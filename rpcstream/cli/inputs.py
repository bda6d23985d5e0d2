"""Items for what a method takes: a number or its text, an array in the right dtype, a file (`photo=cat.png`), a stream.

numpy, Pillow and pyarrow are imported only for an item that needs them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, BinaryIO

from ..openrpc.methods import Api, Method
from ..openrpc.types import ANY, FORMATS, Array, Node, Plain, Rich, Values, alternatives
from .files import READERS, TABLES, array_in_one_of
from .items import Item, UsageError
from .values import ValueReader, parse_json, utf8

#: What a file with this ending is, where a parameter takes several kinds; a file with another ending is an image.
_ENDINGS = {".npy": ("ndarray",), ".csv": TABLES, ".parquet": TABLES}

#: Bytes of an item, where a file is a stream of bytes.
_CHUNK = 65536


_KINDS: dict[type, tuple[str, ...]] = {
    bool: ("bool",),
    int: ("int", "float"),
    float: ("float",),
    str: ("str", *FORMATS),
    type(None): ("null",),
}


class MethodTypes:
    """What the parameters of one method take.

    Args:
        api: what the server offers.
        method: one of its methods.
    """

    def __init__(self, api: Api, method: Method) -> None:
        self._api = api
        self._method = method

    def taken(self, where: str | int) -> list[Node] | None:
        """The types of the parameter with this name, or at this position; None if they are not known."""
        method = self._method
        fixed = {each.name: each for each in method.fixed}
        by_position = [each for each, _ in method.by_position()]
        if isinstance(where, int):
            found = by_position[where] if where < len(by_position) else method.rest("positional")
        else:
            found = fixed.get(where) or method.rest("named")
        types = self.alternatives(ANY if found is None else found.type)
        return None if ANY in types else types

    def alternatives(self, node: Node) -> list[Node]:
        """The types of which a value has one, named ones by what they stand for."""
        return alternatives(node, self._api.named)


def _wants_text(taken: list[Node] | None, value: Any) -> bool:
    """Whether a parameter takes text, and not this value, which is a number, a bool or None."""
    return taken is not None and _takes(taken, str) and not _takes(taken, type(value))


def _takes(taken: list[Node], kind: type) -> bool:
    """Whether a parameter takes a bool, an int, a float, a str or None."""
    names = _KINDS[kind]
    return any(
        each.kind in names
        if isinstance(each, Plain)
        else isinstance(each, Values) and any(name in names for name, _ in each.values)
        for each in taken
    )


def _dtypes_in(taken: list[Node] | None) -> list[str]:
    """The dtypes of the arrays that a parameter takes; empty if it takes all of them, or no array."""
    return [dtype for each in taken or () if isinstance(each, Rich) for dtype in each.dtypes]


def fitted(item: Item, value: Any, types: MethodTypes, where: str | int, reader: ValueReader) -> Any:
    """The value of an unclear item for the parameter with this name or at this position.

    Raises:
        UsageError: the parameter takes a file, and the one that the item names cannot be read.
    """
    taken = types.taken(where)
    if item.kind == "ndarray":
        dtypes = _dtypes_in(taken)
        return array_in_one_of(value, dtypes) if dtypes else value
    if not isinstance(value, str):
        return utf8(item.text) if _wants_text(taken, value) else value
    try:
        return _read_input(item.text, types, taken, reader)
    except ValueError as error:
        raise UsageError(f"{item.source}: {error}") from error


def _read_input(path: str, types: MethodTypes, taken: list[Node] | None, reader: ValueReader) -> Any:
    """The content of a file for a parameter that takes one of these types; the text itself where none is a file.

    Raises:
        UsageError: the file cannot be read.
        ValueError: there is no such file, or it is none of the parameter's kind.
    """
    files = [] if taken is None or _takes(taken, str) else [each for each in taken if _is_file(each, types)]
    if not files:
        return path
    if path != "-" and not os.path.exists(path):
        raise ValueError(f"there is no file {path!r}, and this parameter takes {_name_of(files[0])}")
    return _Input(path, types, reader).value(files)


def _is_file(node: Node, types: MethodTypes) -> bool:
    if isinstance(node, Array):
        return node.is_stream or any(isinstance(each, Rich) for each in types.alternatives(node.item))
    return isinstance(node, Rich) and node.kind in READERS


def _name_of(node: Node) -> str:
    if isinstance(node, Array):
        return "a stream" if node.is_stream else "several files"
    assert isinstance(node, Rich)
    return {"image": "an image", "ndarray": "an array", "bytes": "bytes"}.get(node.kind, "a table")


class _Input:
    """A file, a folder, or standard input."""

    def __init__(self, path: str, types: MethodTypes, reader: ValueReader) -> None:
        self._path = path
        self._types = types
        self._reader = reader

    def value(self, nodes: list[Node]) -> Any:
        """What it holds, as the first of these types that fits its ending, else the first one."""
        kinds = _ENDINGS.get(os.path.splitext(self._path)[1].lower(), ("image",))
        fitting = [each for each in nodes if isinstance(each, Rich) and each.kind in kinds]
        node = (fitting or nodes)[0]
        if isinstance(node, Array):
            items = self._items(node)
            return items if node.is_stream else list(items)
        assert isinstance(node, Rich)
        return READERS[node.kind](self._reader.read(self._path))

    def _items(self, node: Array) -> Iterator[Any]:
        """Each file of a folder; or one file, as chunks, lines of text, or JSON, one value on a line."""
        taken = self._types.alternatives(node.item)
        files = [each for each in taken if _is_file(each, self._types)]
        if files and os.path.isdir(self._path):
            paths = sorted(entry.path for entry in os.scandir(self._path) if not entry.name.startswith("."))
            return (_Input(path, self._types, self._reader).value(files) for path in paths)
        if node.is_stream and files == [Rich("bytes")]:
            return _chunks(self._reader.open(self._path))
        if files:
            return iter([self.value(files)])
        return self._lines(is_text=_takes(taken, str))

    def _lines(self, *, is_text: bool) -> Iterator[Any]:
        with self._reader.open(self._path) as file:
            for number, line in enumerate(file, 1):
                try:
                    if is_text:
                        yield line.decode().rstrip("\r\n")
                    elif line.strip():
                        yield parse_json(line)
                except ValueError as error:
                    raise UsageError(f"{self._path!r}, line {number}: {error}") from error


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while data := file.read1(_CHUNK):  # type: ignore[attr-defined]
            yield data
