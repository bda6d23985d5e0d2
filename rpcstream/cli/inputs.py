"""Fits parameters to what a method takes: a number or its text, an array in the right dtype, a file, a stream.

numpy, Pillow and pyarrow are imported only for an item that needs them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from ..openrpc.types import ANY, FORMATS, Api, Array, Method, Node, Plain, Rich, Values, alternatives
from .files import READERS, TABLES, array_in_one_of
from .options import UsageError
from .reading import GivenParams, Item, Params, ValueReader, parse_json, utf8

#: What a file with this ending is, where a parameter takes several kinds; a file with another ending is an image.
_ENDINGS = {".npy": ("ndarray",), ".csv": TABLES, ".parquet": TABLES}

#: Bytes of an item, where a file is a stream of bytes.
_CHUNK = 65536

#: The types of OpenRPC that take a value of Python.
_KINDS: dict[type, tuple[str, ...]] = {
    bool: ("bool",),
    int: ("int", "float"),
    float: ("float",),
    str: ("str", *FORMATS),
    type(None): ("null",),
}


class Inputs:
    """Makes the values of items for one method.

    Args:
        api: what the server offers.
        method: one of its methods.
        reader: reads the files.
    """

    def __init__(self, api: Api, method: Method, reader: ValueReader) -> None:
        self._api = api
        self._method = method
        self._reader = reader

    def fitted(self, given: GivenParams) -> Params:
        """The params with the unclear ones as the method takes them.

        Raises:
            UsageError: a parameter takes a file, and the file that its item names cannot be read.
        """
        params: Any = None if given.params is None else given.params.copy()
        for where, item in given.unclear.items():
            params[where] = self._value(item, params[where], self._types_at(where))
        return cast(Params, params)

    def _types_at(self, where: str | int) -> list[Node]:
        """The types of the parameter with this name or at this position; none if they are not known."""
        method = self._method
        if isinstance(where, int):
            positional = [each for each, _ in method.by_position()]
            found = positional[where] if where < len(positional) else method.rest("positional")
        else:
            found = next((each for each in method.fixed if each.name == where), None) or method.rest("named")
        types = self._alternatives(ANY if found is None else found.type)
        return [] if ANY in types else types

    def _alternatives(self, node: Node) -> list[Node]:
        return alternatives(node, self._api.named)

    def _value(self, item: Item, value: Any, types: list[Node]) -> Any:
        if item.kind == "ndarray":
            return array_in_one_of(value, [dtype for each in types if isinstance(each, Rich) for dtype in each.dtypes])
        if not isinstance(value, str):
            is_text = _takes(types, str) and not _takes(types, type(value))
            return utf8(item.text) if is_text else value
        files = [] if _takes(types, str) else [each for each in types if self._is_file(each)]
        if not files:
            return value
        try:
            if item.text != "-" and not os.path.exists(item.text):
                text = f"there is no file {item.text!r}, and this parameter takes {_name_of(files[0])}"
                raise ValueError("; ".join(filter(None, [text, item.advice_for_json()])))
            return self._content(item.text, files)
        except ValueError as error:
            raise UsageError(f"{item.source}: {error}") from error

    def _is_file(self, node: Node) -> bool:
        """Whether a parameter of this type takes the content of a file."""
        if isinstance(node, Array):
            return node.is_stream or any(isinstance(each, Rich) for each in self._alternatives(node.item))
        return isinstance(node, Rich) and node.kind in READERS

    def _content(self, path: str, nodes: list[Node]) -> Any:
        """What a file, a folder or standard input holds, as the first type that fits its ending, else the first one."""
        kinds = _ENDINGS.get(os.path.splitext(path)[1].lower(), ("image",))
        fitting = [each for each in nodes if isinstance(each, Rich) and each.kind in kinds]
        node = (fitting or nodes)[0]
        if isinstance(node, Array):
            items = self._items(path, node)
            return items if node.is_stream else list(items)
        assert isinstance(node, Rich)
        return READERS[node.kind](self._reader.read(path))

    def _items(self, path: str, node: Array) -> Iterator[Any]:
        """Each file of a folder; or one file, as chunks, lines of text, or JSON, one value on a line."""
        types = self._alternatives(node.item)
        files = [each for each in types if self._is_file(each)]
        if files and os.path.isdir(path):
            paths = sorted(entry.path for entry in os.scandir(path) if not entry.name.startswith("."))
            return (self._content(each, files) for each in paths)
        if node.is_stream and files == [Rich("bytes")]:
            return _chunks(self._reader.open(path))
        if files:
            return iter([self._content(path, files)])
        return self._lines(path, is_text=_takes(types, str))

    def _lines(self, path: str, *, is_text: bool) -> Iterator[Any]:
        with self._reader.open(path) as file:
            for number, line in enumerate(file, 1):
                try:
                    if is_text:
                        yield line.decode().rstrip("\r\n")
                    elif line.strip():
                        yield parse_json(line)
                except ValueError as error:
                    raise UsageError(f"{path!r}, line {number}: {error}") from error


def _takes(types: list[Node], kind: type) -> bool:
    """Whether a parameter of one of these types takes a bool, an int, a float, a str or None."""
    names = _KINDS[kind]
    plain = {each.kind for each in types if isinstance(each, Plain)}
    values = {name for each in types if isinstance(each, Values) for name, _ in each.values}
    return not (plain | values).isdisjoint(names)


def _name_of(node: Node) -> str:
    if isinstance(node, Array):
        return "a stream" if node.is_stream else "several files"
    assert isinstance(node, Rich)
    return {"image": "an image", "ndarray": "an array", "bytes": "bytes"}.get(node.kind, "a table")


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while data := file.read1(_CHUNK):  # type: ignore[attr-defined]
            yield data
