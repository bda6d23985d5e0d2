"""The types that an OpenRPC document describes, independent of the language in which they are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .cycles import in_cycles

#: Alternatives of one type, values of an enumeration, items of a tuple: a type with more is "any value".
MAX_CHOICES = 64

#: Strings that stand for another value, by the name of their format in JSON Schema.
FORMATS = frozenset(("date", "date-time", "time", "duration", "uuid", "decimal"))


class DocumentError(ValueError):
    """A document that cannot be read; the text says why."""


class Node:
    """A type."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Plain(Node):
    """One of "any", "never", "null", "bool", "int", "float", "str", "base64", or a string in one of `FORMATS`."""

    kind: str


@dataclass(frozen=True, slots=True)
class Values(Node):
    """One of these values. Each is a pair of the name of its type and itself, because 1 and True are equal."""

    values: tuple[tuple[str, str | int | bool | None], ...]


@dataclass(frozen=True, slots=True)
class Rich(Node):
    """A rich value.

    Attributes:
        kind: its tag: "ndarray", "image", "bytes", "complex", or another.
        name: of its class, such as "pandas.DataFrame"; "" if it is not known.
        dtypes: of an array, as numpy names them; empty: any.
        shape: of an array; None for a dimension of any length, and in place of the shape for any shape.
    """

    kind: str
    name: str = ""
    dtypes: tuple[str, ...] = ()
    shape: tuple[int | str | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Array(Node):
    """An array of items; if `is_stream`, an argument that may be sent item by item."""

    item: Node
    is_stream: bool = False


@dataclass(frozen=True, slots=True)
class Tuple(Node):
    """An array of exactly these items."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Map(Node):
    """An object whose members all have one type."""

    value: Node


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object.

    Attributes:
        is_required: an argument must have it.
        is_given: a result has it: members with a default are written, though an argument may omit them.
        default: as text; "" if there is none.
    """

    name: str
    type: Node
    is_required: bool
    is_given: bool
    default: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Record(Node):
    """An object with these members; if `is_open`, with any others too."""

    members: tuple[Member, ...]
    is_open: bool = False
    description: str = ""


@dataclass(frozen=True, slots=True)
class Union(Node):
    """One of several types."""

    members: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Reference(Node):
    """A named type, by its key."""

    key: str


ANY, NEVER, NULL = Plain("any"), Plain("never"), Plain("null")


@dataclass(slots=True)
class NamedType:
    """A type that others refer to; `hint` is its name in the document."""

    key: str
    hint: str
    node: Node = ANY
    description: str = ""


def union(members: list[Node]) -> Node:
    """One of these types, without duplicates, null last."""
    flat: dict[Node, None] = {}
    values: dict[tuple[str, Any], None] = {}
    for member in members:
        for each in alternatives(member):
            if isinstance(each, Values):
                values.update(dict.fromkeys(each.values))
                flat.setdefault(Values(()))
            else:
                flat.setdefault(each)
    if ANY in flat:
        return ANY
    found = [Values(tuple(values)) if isinstance(each, Values) else each for each in flat if each not in (NULL, NEVER)]
    found += [NULL] if NULL in flat else []
    if len(found) > MAX_CHOICES or len(values) > MAX_CHOICES:
        return ANY
    return found[0] if len(found) == 1 else Union(tuple(found)) if found else NEVER


def alternatives(node: Node, named: Mapping[str, NamedType] | None = None) -> list[Node]:
    """The types of which a value has one, without unions around them; references among them are followed in `named`."""
    found: list[Node] = []
    waiting, seen = [node], set()
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, Union):
            waiting = [*each.members, *waiting]
        elif named is None or not isinstance(each, Reference):
            found.append(each)
        elif each.key not in seen:
            seen.add(each.key)
            waiting.insert(0, named[each.key].node)
    return found


def parts(node: Node, named: Mapping[str, NamedType] | None = None) -> Iterator[Node]:
    """A type and all types inside it; those that it refers to only if `named` is given, each once."""
    waiting, seen = [node], set()
    while waiting:
        node = waiting.pop()
        yield node
        match node:
            case Array(item=inner) | Map(value=inner):
                waiting.append(inner)
            case Tuple(items=inners) | Union(members=inners):
                waiting.extend(inners)
            case Record():
                waiting.extend(member.type for member in node.members)
            case Reference(key) if named is not None and key not in seen:
                seen.add(key)
                waiting.append(named[key].node)


def break_cycles(named: Mapping[str, NamedType]) -> None:
    """Make types that consist of themselves "any value": in no language is `A = A | None` a type."""
    consists_of = {
        key: {each.key for each in alternatives(found.node) if isinstance(each, Reference) and each.key in named}
        for key, found in named.items()
    }
    for key in in_cycles(consists_of):
        named[key].node = ANY
