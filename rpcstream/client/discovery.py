"""What a client knows of the methods of its server, once `discover()` has read their descriptions."""

from __future__ import annotations

import json
from inspect import Parameter, Signature
from typing import Any

from ..openrpc.document import read_document
from ..openrpc.methods import Api
from ..openrpc.schemas import text_of
from ..openrpc.text import type_text
from ..openrpc.types import DocumentError
from ..text import visible


class KnownMethods:
    """The methods of a server, for `dir()`, `help()` and `inspect.signature()`.

    Args:
        document: the OpenRPC document; one that cannot be read has no methods.
    """

    def __init__(self, document: Any) -> None:
        self._document = document
        methods = document.get("methods") if isinstance(document, dict) else None
        found = [text_of(each, "name") for each in (methods if isinstance(methods, list) else ())]
        self._names = frozenset(filter(None, found))

    def names_below(self, prefix: str) -> list[str]:
        """The names that attributes may have behind a prefix such as "vision." or "": the next part of each method."""
        parts = {name.removeprefix(prefix).partition(".")[0] for name in self._names if name.startswith(prefix)}
        return sorted(part for part in parts if part.isidentifier() and not part.startswith("_"))

    def description(self, name: str) -> str | None:
        """The documentation of a method; None if it is not known or has none."""
        api = self._read(name)
        return None if api is None else visible(api.methods[0].description, keep="\n") or None

    def signature(self, name: str) -> Signature | None:
        """The signature of a method; None if it is not known, or Python cannot express it."""
        api = self._read(name)
        if api is None or api.methods[0].parameters is None:
            return None
        method = api.methods[0]
        parameters = []
        try:
            for each, kind in method.in_order():
                is_given = each.is_required or each.rest
                default = Parameter.empty if is_given else _default(each.default)
                annotation = _annotation(type_text(each.type, api.named))
                parameters.append(Parameter(each.name, kind, default=default, annotation=annotation))
            return Signature(parameters, return_annotation=_annotation(type_text(method.result, api.named)))
        except ValueError:  # a name that is no identifier; a required parameter behind an optional one
            return None

    def _read(self, name: str) -> Api | None:
        """The document with this method only, which is read when somebody asks for it; None if it is not known."""
        if name not in self._names:
            return None
        try:
            api = read_document(self._document, only=name)
        except DocumentError:
            return None
        return api if api.methods else None


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
