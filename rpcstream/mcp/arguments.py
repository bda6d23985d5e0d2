"""Turns the arguments that agents give into those that methods take.

On the wire an image, an array or bytes is a tagged object, which agents do not know. They give an image as MCP's image
content or as base64, an array as nested lists or a `.npy` file, and bytes as base64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pybase64

from ..codec.reading import Reading
from ..codec.rich_hint import NESTED, TAG_KEY
from ..openrpc.types import Array, Map, NamedType, Node, Record, Rich, Tuple, alternatives, parts, union


class ArgumentReaders:
    """The readers of all types of one document, made when they are needed.

    Args:
        named: the types that others refer to.
    """

    def __init__(self, named: Mapping[str, NamedType]) -> None:
        self.named = named
        self._readers: dict[Node, ArgumentReader] = {}

    def of(self, node: Node) -> ArgumentReader:
        """The reader of values of a type."""
        if node not in self._readers:
            self._readers[node] = ArgumentReader(node, self)
        return self._readers[node]


class ArgumentReader:
    """Reads what agents give for one type.

    Attributes:
        is_rich: there may be rich values in a value.
    """

    def __init__(self, node: Node, readers: ArgumentReaders) -> None:
        self._readers = readers
        self._choices = alternatives(node, readers.named)
        self._rich = [each for each in self._choices if isinstance(each, Rich)]
        self._tuples = [each.items for each in self._choices if isinstance(each, Tuple)]
        self._lists = [each.item for each in self._choices if isinstance(each, Array)]
        self._parts: dict[str | int, ArgumentReader] = {}
        self.is_rich = any(isinstance(each, Rich) for each in parts(node, readers.named))

    def value(self, given: Any, reading: Reading) -> Any:
        """What an agent has given, as the method takes it.

        Args:
            reading: counts the arrays and objects that are looked at.

        Raises:
            ValueError: nested lists are not an array.
            MessageTooLarge: there are too many arrays and objects.
        """
        if (type(given) is not dict and type(given) is not list) or not self.is_rich:
            return given
        reading.take_values(1)
        if isinstance(given, dict):
            found = _from_content(given, {each.kind for each in self._rich})
            return self._object(given, reading) if found is None else found
        arrays = [each for each in self._rich if each.kind == "ndarray"]
        if arrays and not self._lists and not self._tuples:
            return _array(given, arrays)
        if NESTED.isdisjoint(map(type, given)):
            return given
        return [self._item(at).value(item, reading) for at, item in enumerate(given)]

    def _object(self, given: dict[str, Any], reading: Reading) -> dict[str, Any]:
        if TAG_KEY in given or NESTED.isdisjoint(map(type, given.values())):
            return given
        return {name: self._member(name).value(value, reading) for name, value in given.items()}

    def _item(self, at: int) -> ArgumentReader:
        known = min(at, max(map(len, self._tuples), default=0))  # those behind the tuples are all alike
        if known not in self._parts:
            self._parts[known] = self._one_of([*(each[at] for each in self._tuples if at < len(each)), *self._lists])
        return self._parts[known]

    def _member(self, name: str) -> ArgumentReader:
        members = [each for record in self._choices if isinstance(record, Record) for each in record.members]
        types = [each.type for each in members if each.name == name]
        known = name if types else ""  # no member of a type has an empty name
        if known not in self._parts:
            others = [each.value for each in self._choices if isinstance(each, Map)]
            self._parts[known] = self._one_of(types or others)
        return self._parts[known]

    def _one_of(self, types: list[Node]) -> ArgumentReader:
        return self._readers.of(union(types))


def _from_content(given: dict[str, Any], kinds: set[str]) -> Any:
    """The base64 in MCP's image content, or in an embedded resource, if such a value is wanted; else None."""
    kind = given.get("type")
    if kind == "image" and "image" in kinds:
        data = given.get("data")
        return data if type(data) is str else None
    if kind == "resource" and kinds & {"ndarray", "bytes", "image"}:
        resource = given.get("resource")
        blob = resource.get("blob") if type(resource) is dict else None
        return blob if type(blob) is str else None
    return None


def _array(numbers: list[Any], wanted: list[Rich]) -> dict[str, Any]:
    """Nested lists of numbers as the tagged object of an array, in a wanted dtype that keeps them.

    Raises:
        ValueError: they are not an array of numbers.
    """
    try:
        array = np.asarray(numbers)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"the lists are no array: {str(error)[:200]}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError("the lists are no array: they must hold numbers, and lists at one depth must be equally long")
    dtypes = [name for each in wanted for name in each.dtypes]
    if dtypes and array.dtype.name not in dtypes:
        array = next((cast for name in dtypes if (cast := _cast(array, name)) is not None), array)
    data = pybase64.b64encode(array.tobytes()).decode()
    return {TAG_KEY: "ndarray", "dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def _cast(array: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any] | None:
    """The array in another dtype; None if that is not one of numbers, or would change whole numbers."""
    try:
        dtype = np.dtype(name)
    except TypeError:  # of an extension
        return None
    if dtype.kind not in "biufc":
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    return cast if dtype.kind in "fc" or array.size == 0 or np.array_equal(cast, array) else None
