"""Files as parameters: `photo=cat.png` is the image where the method takes one, a folder or standard input a stream.

numpy, Pillow and pyarrow are imported only for a file that needs them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from ..codec.image_formats import format_of
from ..openrpc.types import Array, Node, Rich
from .items import UsageError
from .media import TABLES, array_from_file, array_of_image, image_to_send, table_from_file
from .schemas import MethodTypes, takes
from .values import parse_json

if TYPE_CHECKING:
    from .values import ValueReader

#: What a file with this ending is, where a parameter takes several kinds; a file with another ending is an image.
_KINDS = {".npy": ("ndarray",), ".csv": TABLES, ".parquet": TABLES}

#: Bytes of an item, where a file is a stream of bytes.
_CHUNK = 65536


def read_input(path: str, types: MethodTypes, taken: list[Node] | None, reader: ValueReader) -> Any:
    """The content of a file for a parameter that takes one of these types; the text itself where none is a file.

    Raises:
        UsageError: the file cannot be read.
        ValueError: there is no such file, or it is none of the parameter's kind.
    """
    files = [] if taken is None or takes(taken, str) else [each for each in taken if _is_file(each, types)]
    if not files:
        return path
    if path != "-" and not os.path.exists(path):
        raise ValueError(f"there is no file {path!r}, and this parameter takes {_name_of(files[0])}")
    return _Input(path, types, reader).value(files)


def _is_file(node: Node, types: MethodTypes) -> bool:
    if isinstance(node, Array):
        return node.is_stream or any(isinstance(each, Rich) for each in types.alternatives(node.item))
    return isinstance(node, Rich) and node.kind in ("image", "ndarray", "bytes", *TABLES)


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
        kinds = _KINDS.get(os.path.splitext(self._path)[1].lower(), ("image",))
        fitting = [each for each in nodes if isinstance(each, Rich) and each.kind in kinds]
        node = (fitting or nodes)[0]
        if isinstance(node, Array):
            items = self._items(node)
            return items if node.is_stream else list(items)
        assert isinstance(node, Rich)
        data = self._reader.read(self._path)
        if node.kind == "image":
            return image_to_send(data)
        if node.kind == "ndarray":
            return array_of_image(data) if format_of(data) else array_from_file(data, "")
        return table_from_file(data) if node.kind in TABLES else data

    def _items(self, node: Array) -> Iterator[Any]:
        """Each file of a folder; or one file, as chunks, lines of text, or JSON, one value on a line."""
        alternatives = self._types.alternatives(node.item)
        files = [each for each in alternatives if _is_file(each, self._types)]
        if files and os.path.isdir(self._path):
            paths = sorted(entry.path for entry in os.scandir(self._path) if not entry.name.startswith("."))
            return (_Input(path, self._types, self._reader).value(files) for path in paths)
        if node.is_stream and files == [Rich("bytes")]:
            return _chunks(self._reader.open(self._path))
        if files:
            return iter([self.value(files)])
        return self._lines(is_text=takes(alternatives, str))

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
