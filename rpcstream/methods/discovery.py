"""Describes the methods of a server as an OpenRPC document (https://spec.open-rpc.org, version 1.4).

Written from the compiled signatures that also check params, so the two always agree; what is said for people comes from
docstrings and from the options of the methods.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import Parameter
from typing import Any

import msgspec
import orjson

from ..codec import Codec
from ..codec.markers import converter
from ..codec.scalars import TAGGED_FLOAT
from ..codec.schema import TEXT_MAX, Components, schema_of, shortened_text
from ..errors import (
    BY_CODE,
    CallCancelled,
    DeadlineExceeded,
    EncodeError,
    InternalError,
    InvalidParams,
    NotPermitted,
    RpcError,
    ServerBusy,
)
from .arguments import RemoteParameter
from .docstrings import Docstring, longest_text, read_docstring
from .introspect import doc_of
from .registry import Method

#: The version of OpenRPC, and the dialect of its schemas.
OPENRPC = "1.4.1"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

_REST = {Parameter.VAR_POSITIONAL: "positional", Parameter.VAR_KEYWORD: "named"}

#: Bytes of a default as JSON; of a longer one its beginning is shown.
_DEFAULT_MAX = 4096
#: Characters of a default that is shown as text.
_SHOWN_MAX = 300
#: Where an object is in memory, as the texts of most objects say it.
_ADDRESS = re.compile(r"\b0x[0-9A-Fa-f]{6,}")


def head_of(
    *,
    title: str,
    version: str,
    description: str | None = None,
    security: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """The members of a document that say what the service is.

    Args:
        title: of the service.
        version: of the service.
        description: of the service, for people; Markdown.
        security: how callers authenticate, each as a Security Scheme Object of OpenAPI; None: they need not.
    """
    info = {"title": title, "version": version}
    if description:
        info["description"] = shortened_text(description, TEXT_MAX)
    head = {"openrpc": OPENRPC, "info": info, "x-jsonSchemaDialect": DIALECT}
    return {**head, "x-security": security} if security else head


def describe(methods: Mapping[str, Method], *, codec: Codec, title: str, version: str) -> dict[str, Any]:
    """The document for `rpc.discover`, methods sorted by name; see `Description`."""
    description = Description(codec, len(methods))
    described = [description.method(methods[name]) for name in sorted(methods)]
    return {
        **head_of(title=title, version=version),
        "methods": described,
        "components": description.components(),
    }


class Description:
    """Describes methods one by one, for one document.

    Beyond OpenRPC: a parameter with `x-rest` takes all further ones, "positional" or "named", and one with `x-keyword`
    can only be given by name; a method with `x-stream` gives its items one by one where it is asked to, each as
    `x-item` says, and at the end what `x-end` says; a schema with `x-stream` takes them so; a method with
    `x-idempotent` may be called again when it is not known whether a call was carried out; one with `x-allow` is for
    some callers only; `x-deprecated` is the reason why a method should not be called any more.

    Args:
        codec: writes defaults.
        methods: how many there will be; the more, the less long may their descriptions be.
    """

    def __init__(self, codec: Codec, methods: int) -> None:
        self._codec = codec
        self._longest = longest_text(methods)
        self._schemas = Components()
        #: Of hints that have been described; most are few.
        self._known: dict[Any, dict[str, Any]] = {}

    def components(self) -> dict[str, Any]:
        """What the methods refer to, and the errors that any call may be answered with."""
        errors = {each.__name__: {"code": code, "message": each.MESSAGE} for code, each in BY_CODE.items()}
        return {"schemas": dict(sorted(self._schemas.items())), "errors": errors}

    def method(self, method: Method) -> dict[str, Any]:
        """The Method Object for a method."""
        signature, about = method.signature, method.about
        text = read_docstring(doc_of(method.function, 4 * self._longest), self._longest)
        described: dict[str, Any] = {"name": method.name}
        if text.summary:
            described["summary"] = text.summary
        if text.description:
            described["description"] = text.description
        if tags := _tags(method):
            described["tags"] = [{"name": tag} for tag in tags]
        if about.deprecated:
            described["deprecated"] = True
            if isinstance(about.deprecated, str):
                described["x-deprecated"] = about.deprecated
        described["paramStructure"] = _structure(signature.parameters)
        # "Required parameters stand before optional ones" (OpenRPC); Python wants that of positional ones only.
        ordered = sorted(signature.parameters, key=lambda each: not each.required)
        described["params"] = [self._parameter(parameter, text) for parameter in ordered]
        result = {"name": "result", "schema": self._schema(signature.returns)}
        described["result"] = {**result, "description": text.result} if text.result else result
        described["errors"] = _errors(method)
        if about.examples:
            described["examples"] = list(about.examples)
        if method.generator is not None:
            item, end = signature.items_on_wire()
            described |= {"x-stream": True, "x-item": self._schema(item)}
            if end is not None:
                described["x-end"] = self._schema(end)
        if method.idempotent:
            described["x-idempotent"] = True
        if method.allow is not None:
            described["x-allow"] = True
        return described

    def _parameter(self, parameter: RemoteParameter, text: Docstring) -> dict[str, Any]:
        schema = self._schema(parameter.hint)
        if parameter.default is not Parameter.empty:
            schema = {**schema, **self._default(parameter)}
        described: dict[str, Any] = {"name": parameter.name, "required": parameter.required, "schema": schema}
        if said := text.parameters.get(parameter.name) or schema.get("description"):
            described["description"] = said
        if parameter.kind in _REST:
            described["x-rest"] = _REST[parameter.kind]
        elif not parameter.by_position:
            described["x-keyword"] = True
        return described

    def _default(self, parameter: RemoteParameter) -> dict[str, Any]:
        """The default as JSON that a caller may send, or as text under `x-default` where JSON cannot say it.

        Nothing is said of a sentinel: its text is an address in memory, so the document would change with each start.
        """
        try:
            text = self._codec.dumps(parameter.default)
            if len(text) <= _DEFAULT_MAX and TAGGED_FLOAT not in text:
                default = orjson.loads(text)
                converter(parameter.hint)(default)
                if isinstance(parameter.default, set | frozenset):  # its order changes with each start, too
                    default.sort(key=orjson.dumps)
                return {"default": default}
        except (EncodeError, msgspec.ValidationError):
            pass
        try:
            shown = repr(parameter.default)
        except Exception:  # of the class of the default; the others are described all the same
            shown = f"a {type(parameter.default).__name__}"
        is_address = _ADDRESS.search(shown) or str(id(parameter.default)) in shown
        return {} if is_address else {"x-default": shortened_text(shown, _SHOWN_MAX)}

    def _schema(self, lowered: Any) -> dict[str, Any]:
        try:
            known = self._known.get(lowered)
        except TypeError:  # it has no hash
            return self._made(lowered)
        if known is None:
            known = self._known[lowered] = self._made(lowered)
        return known

    def _made(self, lowered: Any) -> dict[str, Any]:
        try:
            return schema_of(lowered, self._schemas)
        except TypeError:  # checked all the same, but JSON Schema has no words for it
            return {}


def _structure(parameters: list[RemoteParameter]) -> str:
    """How all arguments can be given: by name where one can only be given so.

    Further positional arguments have no names, so optional keyword-only ones beside them leave both ways open.
    """
    keywords = [each for each in parameters if each.kind is Parameter.KEYWORD_ONLY]
    has_rest = any(each.kind is Parameter.VAR_POSITIONAL for each in parameters)
    return "by-name" if any(each.required or not has_rest for each in keywords) else "either"


def _tags(method: Method) -> tuple[str, ...]:
    if method.about.tags is not None:
        return method.about.tags
    group, dot, _ = method.name.partition(".")
    return (group,) if dot and group else ()


def _errors(method: Method) -> list[dict[str, Any]]:
    """The errors that a call may be answered with: those that were declared, and the framework's."""
    own: list[type[RpcError]] = [InvalidParams, InternalError]
    if not method.inline:
        own += [ServerBusy, DeadlineExceeded, CallCancelled]
    if method.allow is not None:
        own.append(NotPermitted)
    declared = list(method.about.errors)
    codes = {error["code"] for error in declared}
    return [*declared, *(error().to_wire() for error in own if error.CODE not in codes)]  # type: ignore[call-arg,attr-defined]
