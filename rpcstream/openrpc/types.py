"""The types and methods that an OpenRPC document describes, and how they are shown: like Python's, on one line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter as Kind
from typing import Any

from ..codec import TAG_KEY
from .compat import in_cycles

#: Alternatives of one type, values of an enumeration, items of a tuple: a type with more is "any value".
MAX_CHOICES = 64

#: Strings that stand for another value, by the name of their format in JSON Schema.
FORMATS = frozenset(("date", "date-time", "time", "duration", "uuid", "decimal"))


#: Names of the protocol's own methods begin with this.
RESERVED_PREFIX = "rpc."

_REST = {"positional": Kind.VAR_POSITIONAL, "named": Kind.VAR_KEYWORD}

#: Characters of a default, a name, or a bound that are shown.
_MAX_VALUE = 40
_STARS = {"": "", "positional": "*", "named": "**"}
#: What JSON Schema calls the bounds of a value, and what is shown.
_BOUNDS = {
    **{"minimum": ">= {}", "exclusiveMinimum": "> {}", "maximum": "<= {}", "exclusiveMaximum": "< {}"},
    **{f"min{what}": "length >= {}" for what in ("Length", "Items", "Properties")},
    **{f"max{what}": "length <= {}" for what in ("Length", "Items", "Properties")},
    **{"multipleOf": "a multiple of {}", "pattern": "matching {}"},
}


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


# -- methods


@dataclass(slots=True)
class Parameter:
    """A parameter of a method.

    Attributes:
        rest: "positional" or "named" if it takes all further arguments.
        is_keyword: it cannot be given by position.
        default: as text; "" if there is none.
        bounds: of its values, as text.
    """

    name: str
    type: Node
    is_required: bool
    rest: str = ""
    is_keyword: bool = False
    default: str = ""
    bounds: str = ""
    description: str = ""


@dataclass(slots=True)
class Method:
    """A method.

    Attributes:
        described: its entry in the document.
        parameters: None if the document does not say what they are.
        takes_positions: the params can be an array.
        takes_names: the params can be an object.
        item: of its stream; None if it does not stream.
        deprecated: why calls of it should be replaced, "" if the document gives no reason; None if they need not.
    """

    name: str
    described: Mapping[str, Any]
    parameters: list[Parameter] | None
    takes_positions: bool
    takes_names: bool
    result: Node
    item: Node | None
    description: str
    result_description: str
    deprecated: str | None

    @property
    def fixed(self) -> list[Parameter]:
        """The parameters that have a name of their own."""
        return [each for each in self.parameters or () if not each.rest]

    @property
    def summary(self) -> str:
        """The first paragraph of its description, on one line."""
        return " ".join(self.description.partition("\n\n")[0].split())

    def rest(self, kind: str) -> Parameter | None:
        """The parameter that takes all further arguments, "positional" or "named"."""
        return next((each for each in self.parameters or () if each.rest == kind), None)

    def by_position(self) -> list[tuple[Parameter, bool]]:
        """The parameters that can be given by position, and whether each must be: all before a required one must."""
        # A client takes arguments by position and by name in one call, even if the params are an object then.
        takes_positions = self.takes_positions or any(each.is_keyword for each in self.fixed)
        positional = [each for each in self.fixed if takes_positions and not each.is_keyword]
        last = max((at for at, each in enumerate(positional) if each.is_required), default=-1)
        return [(each, at <= last) for at, each in enumerate(positional)]

    def in_order(self) -> list[tuple[Parameter, Any]]:
        """All parameters in the order of a Python signature, each with its kind (`inspect.Parameter.kind`)."""
        positional = [each for each, _ in self.by_position()]
        usual = Kind.POSITIONAL_OR_KEYWORD, Kind.KEYWORD_ONLY
        kinds = [(each, _REST.get(each.rest, usual[each not in positional])) for each in self.parameters or ()]
        return sorted(kinds, key=lambda each: each[1])


@dataclass(slots=True)
class Api:
    """What a document offers.

    Attributes:
        methods: sorted by name, the protocol's own last.
        named: the types that the methods refer to, by key.
    """

    title: str
    version: str
    methods: list[Method]
    named: dict[str, NamedType]

    @property
    def label(self) -> str:
        """The title and the version of the service."""
        return " ".join(filter(None, (self.title, self.version))) or "a server"


# -- as text


def type_text(node: Node, named: Mapping[str, NamedType]) -> str:
    """A type: `list[int] | null`, `stream of bytes`, `ndarray[float32, (*, 3)]`; a named type as its name."""

    def show(inner: Node) -> str:
        return type_text(inner, named)

    match node:
        case Plain(kind):
            return f"str ({kind})" if kind in FORMATS or kind == "base64" else kind
        case Values(values):
            return f"Literal[{', '.join(value_text(value) for _, value in values)}]"
        case Rich():
            return _rich_text(node)
        case Array(item, is_stream):
            return f"stream of {show(item)}" if is_stream else "list" if item == ANY else f"list[{show(item)}]"
        case Tuple(items):
            return f"tuple[{', '.join(map(show, items))}]"
        case Map(value):
            return "dict" if value == ANY else f"dict[str, {show(value)}]"
        case Union(members):
            return " | ".join(dict.fromkeys(map(show, members)))
        case Reference(key):
            return named[key].hint
        case _:
            return "dict"


def _rich_text(rich: Rich) -> str:
    if rich.kind != "ndarray":
        return rich.kind if rich.kind in ("image", "bytes", "complex") else rich.name or rich.kind
    details = ["|".join(rich.dtypes)] if rich.dtypes else []
    if rich.shape is not None:
        dims = ["*" if dim is None else str(dim) for dim in rich.shape]
        details.append(f"({', '.join(dims)}{',' if len(dims) == 1 else ''})")
    return f"ndarray[{', '.join(details)}]" if details else "ndarray"


def definition_text(node: Node, named: Mapping[str, NamedType]) -> str:
    """What a named type stands for; an object as `{x: int, y: float = 0.0}`."""
    if not isinstance(node, Record):
        return type_text(node, named)
    members = [
        f"{each.name}: {type_text(each.type, named)}{f' = {each.default}' if each.default else ''}"
        for each in node.members
    ]
    return f"{{{', '.join(members)}}}"


def signature_text(method: Method, named: Mapping[str, NamedType]) -> str:
    """A method like a signature of Python; the result of a generator is a `stream of` its items."""
    shown: list[str] = []
    has_star = False
    for parameter, kind in method.in_order():
        if kind is Kind.KEYWORD_ONLY and not has_star:
            shown.append("*")
        has_star = has_star or kind in (Kind.VAR_POSITIONAL, Kind.KEYWORD_ONLY)
        shown.append(_parameter_text(parameter, named))
    if method.parameters is None:
        shown = ["..."]
    returns = type_text(method.result if method.item is None else Array(method.item, is_stream=True), named)
    return f"{method.name}({', '.join(shown)})" + (f" -> {returns}" if returns != "any" else "")


def _parameter_text(parameter: Parameter, named: Mapping[str, NamedType]) -> str:
    text = _STARS[parameter.rest] + parameter.name
    kind = type_text(parameter.type, named)
    if kind != "any":
        text += f": {kind}"
    if parameter.is_required or parameter.rest:
        return text
    default = parameter.default or "..."
    return f"{text}={default}" if kind == "any" else f"{text} = {default}"


def bounds_text(schema: dict[str, Any]) -> str:
    """The bounds of a value, those of its alternatives included: `>= 0, a multiple of 2`."""
    choices = schema.get("anyOf")
    shown = [
        form.format(value_text(part[name]))
        for part in [schema, *(choices if isinstance(choices, list) else ())]
        for name, form in _BOUNDS.items()
        if isinstance(part, dict) and name in part and not (name.endswith("Items") and "prefixItems" in part)
    ]
    return ", ".join(dict.fromkeys(shown[:10]))


def default_text(schema: dict[str, Any]) -> str:
    """The default in a schema; "" if it has none."""
    return value_text(schema["default"]) if "default" in schema else str(schema.get("x-default", ""))


def value_text(value: Any) -> str:
    """A value as JSON, a long one cut; of a rich value, decoded or not, only its kind."""
    if isinstance(value, dict) and isinstance(value.get(TAG_KEY), str):
        return f"<{value[TAG_KEY]}>"
    if not isinstance(value, dict | list | str | int | float | None):
        return f"<{type(value).__name__}>"
    text = json.dumps(value, ensure_ascii=False, default=value_text)
    return text if len(text) <= _MAX_VALUE else text[:_MAX_VALUE] + "..."
