"""Shows types, defaults and signatures as text like Python's: `add(a: int, b: int = 2) -> int`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from inspect import Parameter as Kind
from typing import Any

from ..codec import TAG_KEY
from .methods import Method, Parameter
from .types import ANY, FORMATS, Array, Map, NamedType, Node, Plain, Record, Reference, Rich, Tuple, Union, Values

#: Characters of a default, a name, or a bound that are shown.
_MAX_VALUE = 40
#: What JSON Schema calls the bounds of a value, and what is shown.
_BOUNDS = {
    **{"minimum": ">= {}", "exclusiveMinimum": "> {}", "maximum": "<= {}", "exclusiveMaximum": "< {}"},
    **{f"min{what}": "length >= {}" for what in ("Length", "Items", "Properties")},
    **{f"max{what}": "length <= {}" for what in ("Length", "Items", "Properties")},
    **{"multipleOf": "a multiple of {}", "pattern": "matching {}"},
}


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
    text = f"{ {'positional': '*', 'named': '**'}.get(parameter.rest, '') }{parameter.name}"
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
