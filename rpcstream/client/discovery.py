"""What a client knows of the methods of its server, once `discover()` has read their descriptions."""

from __future__ import annotations

import json
from inspect import Parameter, Signature
from typing import Any

from ..openrpc.document import read_document
from ..openrpc.methods import Method
from ..openrpc.text import type_text
from ..openrpc.types import DocumentError
from ..text import visible


class KnownMethods:
    """The methods of a server, for `dir()`, `help()` and `inspect.signature()`.

    Args:
        document: the OpenRPC document; one that cannot be read has no methods.
    """

    def __init__(self, document: Any) -> None:
        self._methods: dict[str, Method] = {}
        try:
            api = read_document(document)
        except DocumentError:
            return
        self._named = api.named
        self._methods = {method.name: method for method in api.methods}

    def names_below(self, prefix: str) -> list[str]:
        """The names that attributes may have behind a prefix such as "vision." or "": the next part of each method."""
        parts = {name.removeprefix(prefix).partition(".")[0] for name in self._methods if name.startswith(prefix)}
        return sorted(part for part in parts if part.isidentifier() and not part.startswith("_"))

    def description(self, name: str) -> str | None:
        """The documentation of a method; None if it is not known or has none."""
        method = self._methods.get(name)
        return None if method is None else visible(method.description, keep="\n") or None

    def signature(self, name: str) -> Signature | None:
        """The signature of a method; None if it is not known, or Python cannot express it."""
        method = self._methods.get(name)
        if method is None or method.parameters is None:
            return None
        parameters = []
        try:
            for each, kind in method.in_order():
                is_given = each.is_required or each.rest
                default = Parameter.empty if is_given else _default(each.default)
                annotation = _annotation(type_text(each.type, self._named))
                parameters.append(Parameter(each.name, kind, default=default, annotation=annotation))
            return Signature(parameters, return_annotation=_annotation(type_text(method.result, self._named)))
        except ValueError:  # a name that is no identifier; a required parameter behind an optional one
            return None


class _Text(str):
    """A type or a default as text that signatures show without quotation marks."""

    __slots__ = ()

    def __new__(cls, text: str) -> _Text:
        return super().__new__(cls, visible(text))

    __repr__ = str.__str__


def _default(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # there is none, it is cut, or JSON cannot express it
        return _Text(text or "...")


def _annotation(text: str) -> Any:
    return {"any": Signature.empty, "null": None}.get(text, _Text(text))
