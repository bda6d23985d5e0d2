"""Format the methods of a server for a terminal, from the OpenRPC document of `rpc.discover`.

Knows the document's named types and summaries; signatures and types as text come from `client.discovery`. Pure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from ..client.discovery import (
    parameters_of,
    rich_schemas,
    signature_text,
    type_text,
    value_text,
    with_rich_schemas,
)
from ..text import documentation_of, visible
from .output import Terminal

#: What JSON Schema calls the constraints of a value, and what is shown.
_CONSTRAINTS = {
    **{"minimum": ">= {}", "exclusiveMinimum": "> {}", "maximum": "<= {}", "exclusiveMaximum": "< {}"},
    **{f"min{what}": "length >= {}" for what in ("Length", "Items", "Properties")},
    **{f"max{what}": "length <= {}" for what in ("Length", "Items", "Properties")},
    **{"multipleOf": "a multiple of {}", "pattern": "matching {}"},
}
#: Constraints of one parameter that are shown, and characters of its description.
_MAX_CONSTRAINTS, _MAX_TEXT = 10, 500


def list_text(methods: list[dict[str, Any]], terminal: Terminal) -> str:
    """One line for each method: its signature, and its summary where there is room."""
    lines = []
    for method in methods:
        signature = signature_text(method)
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
    text = _painted(method, signature_text(method), terminal)
    if description := documentation_of(method).strip():
        text += "\n\n" + textwrap.indent(visible(description, keep="\n"), "    ")
    if method.get("deprecated") is True:
        reason = method.get("x-deprecated")
        text += "\n\n    deprecated" + (f": {visible(reason[:_MAX_TEXT])}" if isinstance(reason, str) else "")
    details = [(each["name"], _details(each.get("schema"), each.get("description"))) for each in parameters_of(method)]
    if isinstance(result := method.get("result"), dict) and (said := _details({}, result.get("description"))):
        details.append(("returns", said))
    if any(detail for _, detail in details):
        text += "\n\n" + "\n".join(f"    {visible(name)}: {detail}" for name, detail in details if detail)
    named = _named_types(method, document)
    if named:
        text += "\n\nwhere\n" + "\n".join(f"    {visible(name)} = {_members(schema)}" for name, schema in named.items())
    return text


def _details(schema: Any, said: Any = None) -> str:
    """The constraints of a parameter and its description: ">= 0, a multiple of 2; how many"."""
    if not isinstance(schema, dict):
        schema = {}
    choices = schema.get("anyOf")
    shown: list[str] = []
    for part in [schema, *(choices if isinstance(choices, list) else ())]:
        if isinstance(part, dict):
            shown += [
                form.format(value_text(part[name]))
                for name, form in _CONSTRAINTS.items()
                if name in part and not (name.endswith("Items") and "prefixItems" in part)
            ]
    details = [", ".join(dict.fromkeys(shown[:_MAX_CONSTRAINTS]))]
    if isinstance(description := said or schema.get("description"), str):
        details.append(visible(" ".join(description[:_MAX_TEXT].split())))
    return "; ".join(filter(None, details))


def _painted(method: dict[str, Any], signature: str, terminal: Terminal) -> str:
    name = visible(method["name"])
    return terminal.paint("bold", name) + signature.removeprefix(name)


def _named_types(method: dict[str, Any], document: Any) -> dict[str, Any]:
    """The schemas that the method refers to, directly or through others, by name."""
    components = document.get("components") if isinstance(document, dict) else None
    schemas = components.get("schemas") if isinstance(components, dict) else None
    known = dict(schemas) if isinstance(schemas, dict) else {}
    rich = rich_schemas(document)
    for part in _objects_in(method):
        if isinstance(part.get("$defs"), dict):
            known.update(part["$defs"])
    found: dict[str, Any] = {}
    waiting: list[Any] = [method]
    while waiting:
        for part in _objects_in(waiting.pop()):
            name = str(part.get("$ref", "")).rpartition("/")[2]
            if name in known and name not in found:
                found[name] = with_rich_schemas(known[name], rich)
                waiting.append(found[name])
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
        default = f" = {value_text(member['default'])}" if isinstance(member, dict) and "default" in member else ""
        parts.append(f"{visible(str(name))}: {type_text(member)}{default}")
    return "{" + ", ".join(parts) + "}"
