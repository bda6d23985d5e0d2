"""Format the methods of a server as text, like Python signatures, from the OpenRPC document of `rpc.discover`.

Knows OpenRPC and the JSON Schema in it. Leaves out malformed parts, since the document may come from any server. Pure.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from ..codec import TAG_KEY
from ..text import visible
from .output import Terminal

_DTYPE = re.compile(r"[<>|=]([biufc])([0-9]{1,2})")
#: Longer defaults are cut to this many characters.
_MAX_VALUE = 40
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "null"}


def methods_of(document: Any) -> list[dict[str, Any]]:
    """The method objects of an OpenRPC document, sorted by name; malformed ones are left out."""
    methods = document.get("methods") if isinstance(document, dict) else None
    return sorted(_named(methods), key=lambda method: str(method["name"]))


def list_text(methods: list[dict[str, Any]], terminal: Terminal) -> str:
    """One line for each method: its signature, and its summary where there is room."""
    lines = []
    for method in methods:
        signature = _signature(method)
        line = _painted(method, signature, terminal)
        summary = method.get("summary")
        if isinstance(summary, str):
            room = terminal.width - len(signature) - 4
            words = textwrap.shorten(visible(summary), room, placeholder="...") if room > 10 else ""
            line += "  " + terminal.paint("dim", "# " + words) if words else ""
        lines.append(line)
    return "\n".join(lines)


def method_text(method: dict[str, Any], document: Any, terminal: Terminal) -> str:
    """The signature and the documentation of one method, and the definitions of the named types in it."""
    text = _painted(method, _signature(method), terminal)
    description = method.get("description") or method.get("summary")
    if isinstance(description, str) and description.strip():
        text += "\n\n" + textwrap.indent(visible(description.strip(), keep="\n"), "    ")
    named = _named_types(method, document)
    if named:
        text += "\n\nwhere\n" + "\n".join(f"    {visible(name)} = {_members(schema)}" for name, schema in named.items())
    return text


def type_text(schema: Any) -> str:
    """A JSON Schema as a Python type; "any" for a schema that restricts nothing."""
    if not isinstance(schema, dict):
        return "any"
    if "$ref" in schema:
        return visible(str(schema["$ref"]).rpartition("/")[2])
    for choice in ("anyOf", "oneOf"):
        if isinstance(schema.get(choice), list):
            return _union(schema[choice])
    if isinstance(schema.get("enum"), list):
        return f"Literal[{', '.join(_value(member) for member in schema['enum'])}]"
    if "const" in schema:
        return f"Literal[{_value(schema['const'])}]"
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union([{**schema, "type": member} for member in kind])
    if tag := _tag_of(schema):
        return visible(tag) + _array_detail(schema["properties"])
    if isinstance(schema.get("title"), str):
        return visible(schema["title"])
    if kind == "array":
        return _array(schema)
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {type_text(values)}]" if isinstance(values, dict) else "dict"
    text = _TYPES.get(str(kind), "any")
    return f"{text} ({visible(str(schema['format']))})" if text == "str" and "format" in schema else text


def _array(schema: dict[str, Any]) -> str:
    fixed = schema.get("prefixItems")
    if isinstance(fixed, list) and fixed:
        return f"tuple[{', '.join(type_text(member) for member in fixed)}]"
    items = schema.get("items")
    return f"list[{type_text(items)}]" if isinstance(items, dict) and items else "list"


def _union(schemas: list[Any]) -> str:
    """The alternatives, without bare base64 as another form of a tagged value."""
    if any(_tag_of(schema) for schema in schemas):
        schemas = [s for s in schemas if not (isinstance(s, dict) and s.get("contentEncoding") == "base64")]
    return " | ".join(dict.fromkeys(type_text(schema) for schema in schemas))


def _tag_of(schema: Any) -> str | None:
    """The tag, if the schema describes the tagged object of a rich value."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    tag = properties.get(TAG_KEY) if isinstance(properties, dict) else None
    return tag["const"] if isinstance(tag, dict) and isinstance(tag.get("const"), str) else None


def _array_detail(members: dict[str, Any]) -> str:
    """`[float32, (*, 3)]`: the dtype and the shape, as far as the schema of a tagged array has them."""
    dtype, shape = members.get("dtype"), members.get("shape")
    details = []
    if isinstance(dtype, dict) and isinstance(dtype.get("enum"), list):
        details.append("|".join(dict.fromkeys(_dtype_name(str(each)) for each in dtype["enum"])))
    if isinstance(shape, dict) and isinstance(shape.get("prefixItems"), list):
        dims = [str(dim.get("const", "*")) if isinstance(dim, dict) else "*" for dim in shape["prefixItems"]]
        details.append(f"({', '.join(dims)}{',' if len(dims) == 1 else ''})")
    return f"[{visible(', '.join(details))}]" if details else ""


def _dtype_name(text: str) -> str:
    """Translate `<f4` to float32; datetimes and names stay as they are."""
    found = _DTYPE.fullmatch(text)
    if found is None:
        return text
    kind = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}[found[1]]
    return kind if kind == "bool" else f"{kind}{8 * int(found[2])}"


def _value(value: Any) -> str:
    """A default or an alternative as JSON, a long one cut; of a rich value only the tag."""
    if isinstance(value, dict) and isinstance(value.get(TAG_KEY), str):
        return visible(f"<{value[TAG_KEY]}>")
    text = json.dumps(value, ensure_ascii=False)
    return visible(text if len(text) <= _MAX_VALUE else text[:_MAX_VALUE] + "...")


def parameters_of(method: dict[str, Any]) -> list[dict[str, Any]]:
    """The parameter objects of a method that have a name."""
    return _named(method.get("params"))


def _named(objects: Any) -> list[dict[str, Any]]:
    if not isinstance(objects, list):
        return []
    return [member for member in objects if isinstance(member, dict) and isinstance(member.get("name"), str)]


def _signature(method: dict[str, Any]) -> str:
    parameters = []
    for parameter in parameters_of(method):
        schema = parameter.get("schema")
        stars = {"positional": "*", "named": "**"}.get(str(parameter.get("x-rest")), "")
        text = f"{stars}{visible(parameter['name'])}"
        kind = type_text(schema)
        if kind != "any":
            text += f": {kind}"
        if not stars and not parameter.get("required") and isinstance(schema, dict):
            default = _value(schema["default"]) if "default" in schema else visible(str(schema.get("x-default", "...")))
            text += f"={default}" if kind == "any" else f" = {default}"
        parameters.append(text)
    result = method.get("result")
    returns = type_text(result.get("schema") if isinstance(result, dict) else None)
    return f"{visible(method['name'])}({', '.join(parameters)})" + (f" -> {returns}" if returns != "any" else "")


def _painted(method: dict[str, Any], signature: str, terminal: Terminal) -> str:
    name = visible(method["name"])
    return terminal.paint("bold", name) + signature.removeprefix(name)


def _named_types(method: dict[str, Any], document: Any) -> dict[str, Any]:
    """The schemas that the method refers to, directly or through others, by name."""
    components = document.get("components") if isinstance(document, dict) else None
    schemas = components.get("schemas") if isinstance(components, dict) else None
    known = dict(schemas) if isinstance(schemas, dict) else {}
    for part in _objects_in(method):
        if isinstance(part.get("$defs"), dict):
            known.update(part["$defs"])
    found: dict[str, Any] = {}
    waiting: list[Any] = [method]
    while waiting:
        for part in _objects_in(waiting.pop()):
            name = str(part.get("$ref", "")).rpartition("/")[2]
            if name in known and name not in found:
                found[name] = known[name]
                waiting.append(known[name])
    return dict(sorted(found.items()))


def _objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a value, the value itself included."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _members(schema: Any) -> str:
    """An object type as `{x: int, y: float = 0.0}`; another schema as its type."""
    if not isinstance(schema, dict):
        return "any"
    members = schema.get("properties")
    if not isinstance(members, dict):
        return type_text({key: value for key, value in schema.items() if key != "title"})
    parts = []
    for name, member in members.items():
        default = f" = {_value(member['default'])}" if isinstance(member, dict) and "default" in member else ""
        parts.append(f"{visible(str(name))}: {type_text(member)}{default}")
    return "{" + ", ".join(parts) + "}"
