"""What a client knows about the methods of its server, from their descriptions (`rpc.discover`)."""

from __future__ import annotations

import json
from inspect import Parameter, Signature
from typing import Any

from ..openrpc.document import read_document, text_of
from ..openrpc.types import Api, DocumentError, Method, type_text
from ..text import visible


class KnownMethods:
    """The methods of a server: for `dir()`, `help()`, `inspect.signature()`, retries, and the names of arguments.

    Args:
        document: the OpenRPC document; one that cannot be read has no methods.
    """

    def __init__(self, document: Any) -> None:
        self._document = document
        methods = document.get("methods") if isinstance(document, dict) else None
        found = [text_of(each, "name") for each in (methods if isinstance(methods, list) else ())]
        self._names = frozenset(filter(None, found))
        #: The methods that were asked for, by name.
        self._read: dict[str, tuple[Method, Api] | None] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def method(self, name: str) -> Method | None:
        """The description of a method; None if it is not known."""
        found = self._find(name)
        return None if found is None else found[0]

    def is_idempotent(self, name: str) -> bool:
        """Tell whether the server declares a method idempotent."""
        method = self.method(name)
        return method is not None and method.described.get("x-idempotent") is True

    def names_below(self, prefix: str) -> list[str]:
        """The names that attributes may have behind a prefix such as "vision." or "": the next part of each method."""
        parts = {name.removeprefix(prefix).partition(".")[0] for name in self._names if name.startswith(prefix)}
        return sorted(part for part in parts if part.isidentifier() and not part.startswith("_"))

    def description(self, name: str) -> str | None:
        """The documentation of a method; None if it is not known or has none."""
        method = self.method(name)
        return None if method is None else visible(method.description, keep="\n") or None

    def signature(self, name: str) -> Signature | None:
        """The signature of a method; None if it is not known, or Python cannot express it."""
        found = self._find(name)
        if found is None or found[0].parameters is None:
            return None
        method, api = found
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

    def _find(self, name: str) -> tuple[Method, Api] | None:
        """A method, and the document with this method only, which is read when it is asked for first."""
        if name in self._names and name not in self._read:
            try:
                api = read_document(self._document, only=name)
            except DocumentError:
                self._read[name] = None
            else:
                self._read[name] = (api.methods[0], api) if api.methods else None
        return self._read.get(name)


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
