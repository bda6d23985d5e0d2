"""Reads the methods of an OpenRPC document, as far as a caller needs to know them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..codec.schema import shortened_text
from .methods import RESERVED_PREFIX, Api, Method, Parameter
from .schemas import SchemaReader, text_of
from .text import bounds_text, default_text
from .types import ANY, Array, DocumentError

#: Methods of a document, parameters of a method, and characters of a name.
MAX_METHODS, MAX_PARAMETERS, MAX_NAME = 20_000, 200, 200
#: Characters of the description of a parameter or a result.
MAX_DESCRIPTION = 2_000

_REST = ("positional", "named")


def read_document(document: Any, only: str | None = None) -> Api:
    """Read the methods of an OpenRPC document.

    Args:
        document: of any server, as plain data.
        only: the method that is read; None: all.

    Raises:
        DocumentError: it is no OpenRPC document, or it has too many methods.
    """
    methods = document.get("methods") if isinstance(document, dict) else None
    if not isinstance(methods, list):
        raise DocumentError("this is not an OpenRPC document: it has no list of methods")
    if len(methods) > MAX_METHODS:
        raise DocumentError(f"the document has {len(methods):,} methods, and at most {MAX_METHODS:,} can be read")
    reader = SchemaReader(document)
    found: dict[str, Any] = {}
    for each in map(reader.target, methods):
        if 0 < len(name := text_of(each, "name")) <= MAX_NAME and only in (None, name):
            found.setdefault(name, each)
    in_order = sorted(found, key=lambda name: (name.startswith(RESERVED_PREFIX), name))
    read = [_method(found[name], reader) for name in in_order]
    reader.finish()
    info = document.get("info")
    return Api(text_of(info, "title")[:MAX_NAME], text_of(info, "version")[:MAX_NAME], read, reader.named)


def _method(described: dict[str, Any], reader: SchemaReader) -> Method:
    parameters = _parameters(described.get("params", []), reader)
    structure = described.get("paramStructure")
    keywords = [each for each in parameters or () if each.is_keyword]
    # A document that says which parameters need a name says that the others do not.
    takes_positions = not any(each.is_required for each in keywords) if keywords else structure != "by-name"
    content = reader.target(described.get("result"))
    result = reader.read(content.get("schema") if isinstance(content, dict) else None)
    item = None
    if described.get("x-stream") is True:
        of_result = result.item if isinstance(result, Array) else ANY
        item = reader.read(described["x-item"]) if "x-item" in described else of_result
    return Method(
        described["name"],
        described,
        parameters,
        takes_positions=takes_positions,
        takes_names=structure != "by-position",
        result=result,
        item=item,
        description=documentation_of(described).strip(),
        result_description=_shortened(text_of(content, "description")),
        deprecated=_shortened(text_of(described, "x-deprecated")) if described.get("deprecated") is True else None,
    )


def _parameters(params: Any, reader: SchemaReader) -> list[Parameter] | None:
    """The parameters; None if they contradict each other, or one has no name."""
    if not isinstance(params, list) or len(params) > MAX_PARAMETERS:
        return None
    found = [_parameter(each, reader) for each in map(reader.target, params)]
    rests = [each.rest for each in found if each.rest]
    names = {each.name for each in found if 0 < len(each.name) <= MAX_NAME}
    return found if len(names) == len(found) and len(set(rests)) == len(rests) else None


def _parameter(described: Any, reader: SchemaReader) -> Parameter:
    members = described if isinstance(described, dict) else {}
    schema = members.get("schema")
    known = schema if isinstance(schema, dict) else {}
    rest = text_of(members, "x-rest")
    is_required = members.get("required") is True and rest not in _REST
    return Parameter(
        text_of(members, "name"),
        reader.read(schema),
        is_required,
        rest if rest in _REST else "",
        is_keyword=members.get("x-keyword") is True,
        default="" if is_required or rest in _REST else default_text(known),
        bounds=bounds_text(known),
        description=_shortened(text_of(members, "description") or text_of(known, "description")),
    )


def _shortened(text: str) -> str:
    return shortened_text(text.strip(), MAX_DESCRIPTION)


def documentation_of(described: Mapping[str, Any]) -> str:
    """The summary of a method that OpenRPC describes, and its description below; empty where it has neither."""
    summary, text = (each if isinstance(each, str) else "" for each in map(described.get, ("summary", "description")))
    # Other programs repeat the summary at the start of the description.
    return text if text.startswith(summary) else f"{summary}\n\n{text}".rstrip()
