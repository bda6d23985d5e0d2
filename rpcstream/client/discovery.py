"""Reads the OpenRPC document of `rpc.discover`: methods, their parameters, types as text, and Python signatures.

Knows OpenRPC and the JSON Schema in it. Leaves out malformed parts, since the document may come from any server. Pure;
imported when a document is read.
"""

from __future__ import annotations

import json
import re
from inspect import Parameter, Signature
from typing import Any

from ..codec import TAG_KEY
from ..text import documentation_of, visible

_DTYPE = re.compile(r"[<>|=]([biufc])([0-9]{1,2})")
#: Schemas inside each other in which references are resolved.
_MAX_DEPTH = 60
#: Longer defaults are cut to this many characters.
_MAX_VALUE = 40
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "null"}
_CLASSES: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "null": None,
    "dict": dict,
    "list": list,
}
_KINDS = {"positional": Parameter.VAR_POSITIONAL, "named": Parameter.VAR_KEYWORD}


def methods_of(document: Any) -> list[dict[str, Any]]:
    """The method objects of an OpenRPC document, sorted by name; malformed ones are left out.

    In their schemas the components of rich values (arrays, images) stand in place of the references to them.
    """
    methods = document.get("methods") if isinstance(document, dict) else None
    rich = rich_schemas(document)
    found = sorted(_named(methods), key=lambda method: str(method["name"]))
    return [_with_rich_values(method, rich) for method in found] if rich else found


def rich_schemas(document: Any) -> dict[str, Any]:
    """The components of an OpenRPC document that describe rich values, by name."""
    components = document.get("components") if isinstance(document, dict) else None
    schemas = components.get("schemas") if isinstance(components, dict) else None
    return {name: each for name, each in schemas.items() if _is_rich(each)} if isinstance(schemas, dict) else {}


def _is_rich(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    forms = schema.get("anyOf")
    return any(_tag_of(each) for each in [schema, *(forms if isinstance(forms, list) else ())])


def _with_rich_values(method: dict[str, Any], rich: dict[str, Any]) -> dict[str, Any]:
    params, result = method.get("params"), method.get("result")
    made = dict(method)
    if isinstance(params, list):
        made["params"] = [_content(each, rich) for each in params]
    if isinstance(result, dict):
        made["result"] = _content(result, rich)
    return made


def _content(described: Any, rich: dict[str, Any]) -> Any:
    if not isinstance(described, dict) or not isinstance(described.get("schema"), dict):
        return described
    return {**described, "schema": with_rich_schemas(described["schema"], rich)}


def with_rich_schemas(schema: Any, rich: dict[str, Any], depth: int = 0) -> Any:
    """A schema with the components of rich values in place of the references to them, down to a depth."""
    if depth > _MAX_DEPTH:
        return schema
    if isinstance(schema, list):
        return [with_rich_schemas(each, rich, depth + 1) for each in schema]
    if not isinstance(schema, dict):
        return schema
    target = rich.get(str(schema["$ref"]).rpartition("/")[2]) if "$ref" in schema else None
    if target is not None:
        return {**target, **{name: member for name, member in schema.items() if name != "$ref"}}
    return {name: with_rich_schemas(member, rich, depth + 1) for name, member in schema.items()}


def default_text(schema: dict[str, Any]) -> str:
    """The default in the schema of an optional parameter; "..." where the document does not say it."""
    return value_text(schema["default"]) if "default" in schema else visible(str(schema.get("x-default", "...")))


def parameters_of(method: dict[str, Any]) -> list[dict[str, Any]]:
    """The parameter objects of a method that have a name."""
    return _named(method.get("params"))


def _named(objects: Any) -> list[dict[str, Any]]:
    if not isinstance(objects, list):
        return []
    return [member for member in objects if isinstance(member, dict) and isinstance(member.get("name"), str)]


def signature_text(method: dict[str, Any]) -> str:
    """A method as text, like a Python signature: `add(a: int, b: int = 2) -> int`."""
    parameters: list[str] = []
    has_star = False
    for parameter, way in _in_order(method):
        schema = parameter.get("schema")
        stars = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}.get(way, "")
        if way is Parameter.KEYWORD_ONLY and not has_star:
            parameters.append("*")
        has_star = has_star or way in (Parameter.VAR_POSITIONAL, Parameter.KEYWORD_ONLY)
        text = f"{stars}{visible(parameter['name'])}"
        kind = type_text(schema)
        if kind != "any":
            text += f": {kind}"
        if not stars and not parameter.get("required") and isinstance(schema, dict):
            default = default_text(schema)
            text += f"={default}" if kind == "any" else f" = {default}"
        parameters.append(text)
    result = method.get("result")
    returns = type_text(result.get("schema") if isinstance(result, dict) else None)
    return f"{visible(method['name'])}({', '.join(parameters)})" + (f" -> {returns}" if returns != "any" else "")


def _in_order(method: dict[str, Any]) -> list[tuple[dict[str, Any], Any]]:
    """The parameters of a method in the order of Python, with the kind of each: a document has required ones first."""
    parameters = parameters_of(method)
    are_marked = any(each.get("x-keyword") is True for each in parameters)
    by_name = method.get("paramStructure") == "by-name" and not are_marked
    kinds = [
        _KINDS.get(str(each.get("x-rest")))
        or (Parameter.KEYWORD_ONLY if by_name or each.get("x-keyword") is True else Parameter.POSITIONAL_OR_KEYWORD)
        for each in parameters
    ]
    return sorted(zip(parameters, kinds, strict=True), key=lambda each: each[1])


class KnownMethods:
    """What a client knows of the methods of its server, after it has asked.

    Args:
        document: the OpenRPC document.
    """

    def __init__(self, document: Any) -> None:
        self._methods = {method["name"]: method for method in methods_of(document)}

    def names_below(self, prefix: str) -> list[str]:
        """The names that attributes may have behind a prefix such as "vision." or "": the next part of each method."""
        parts = {name.removeprefix(prefix).partition(".")[0] for name in self._methods if name.startswith(prefix)}
        return sorted(part for part in parts if part.isidentifier() and not part.startswith("_"))

    def description(self, name: str) -> str | None:
        """The documentation of a method; None if it is not known or has none."""
        return visible(documentation_of(self._methods.get(name, {})), keep="\n") or None

    def signature(self, name: str) -> Signature | None:
        """The signature of a method; None if it is not known, or Python cannot say it."""
        method = self._methods.get(name)
        if method is None:
            return None
        result = method.get("result")
        returns = _annotation(result.get("schema") if isinstance(result, dict) else None)
        try:
            return Signature([_parameter(*each) for each in _in_order(method)], return_annotation=returns)
        except ValueError:  # a name that is no identifier; a required parameter behind an optional one
            return None


class _TypeName(str):
    """A type as text that signatures show without quotation marks."""

    __slots__ = ()
    __repr__ = str.__str__


def _parameter(described: dict[str, Any], kind: Any) -> Parameter:
    schema = described.get("schema")
    default: Any = Parameter.empty
    if kind not in _KINDS.values() and not described.get("required"):
        known = schema if isinstance(schema, dict) else {}
        default = known["default"] if "default" in known else _TypeName(default_text(known))
    return Parameter(described["name"], kind, default=default, annotation=_annotation(schema))


def _annotation(schema: Any) -> Any:
    text = type_text(schema)
    return Signature.empty if text == "any" else _CLASSES.get(text, _TypeName(text))


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
        return f"Literal[{', '.join(value_text(member) for member in schema['enum'])}]"
    if "const" in schema:
        return f"Literal[{value_text(schema['const'])}]"
    kind = schema.get("type")
    if isinstance(kind, list):
        # Each once: a schema inside is read for each of them.
        kinds = dict.fromkeys(member for member in kind if isinstance(member, str))
        return _union([{**schema, "type": member} for member in kinds])
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
    form = schema.get("format", schema.get("x-format"))
    return f"{text} ({visible(str(form))})" if text == "str" and form is not None else text


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


def value_text(value: Any) -> str:
    """A default or an alternative as JSON, a long one cut; of a rich value only the tag."""
    if isinstance(value, dict) and isinstance(value.get(TAG_KEY), str):
        return visible(f"<{value[TAG_KEY]}>")
    text = json.dumps(value, ensure_ascii=False)
    return visible(text if len(text) <= _MAX_VALUE else text[:_MAX_VALUE] + "...")
