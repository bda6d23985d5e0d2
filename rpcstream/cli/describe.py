"""Format the methods of a server for a terminal."""

from __future__ import annotations

import textwrap

from ..openrpc.methods import Api, Method
from ..openrpc.text import definition_text, signature_text
from ..text import visible
from .output import Terminal

#: Characters of a text about a parameter that are shown.
_MAX_TEXT = 500


def list_text(api: Api, terminal: Terminal) -> str:
    """One line for each method: its signature, and its summary where there is room."""
    lines = []
    for method in api.methods:
        name, signature = _signature(method, api)
        room = terminal.width - len(name) - len(signature) - 4
        summary = visible(method.summary)
        words = textwrap.shorten(summary, room, placeholder="...") if room > 10 else ""
        comment = "  " + terminal.paint("dim", "# " + words) if words else ""
        lines.append(terminal.paint("bold", name) + signature + comment)
    return "\n".join(lines)


def method_text(method: Method, api: Api, terminal: Terminal) -> str:
    """The signature and the documentation of the only method that was read, and the named types in it."""
    name, signature = _signature(method, api)
    text = terminal.paint("bold", name) + signature
    if method.description:
        text += "\n\n" + textwrap.indent(visible(method.description, keep="\n"), "    ")
    if method.deprecated is not None:
        text += "\n\n    deprecated" + (f": {_line(method.deprecated)}" if method.deprecated else "")
    details = [(each.name, [each.bounds, _line(each.description)]) for each in method.parameters or ()]
    details.append(("returns", [_line(method.result_description)]))
    shown = [f"    {visible(name)}: {visible('; '.join(filter(None, said)))}" for name, said in details if any(said)]
    if shown:
        text += "\n\n" + "\n".join(shown)
    types = sorted((each.hint, definition_text(each.node, api.named)) for each in api.named.values())
    if types:
        text += "\n\nwhere\n" + "\n".join(visible(f"    {name} = {definition}") for name, definition in types)
    return text


def _signature(method: Method, api: Api) -> tuple[str, str]:
    """The name of a method, and the rest of its signature."""
    name = visible(method.name)
    return name, visible(signature_text(method, api.named)).removeprefix(name)


def _line(text: str) -> str:
    return " ".join(text[:_MAX_TEXT].split())
