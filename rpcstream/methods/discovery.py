"""Describes the methods of a server as an OpenRPC document (https://spec.open-rpc.org, version 1.3).

Written from the compiled signatures that also check params, so the two always agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter
from typing import Any

import msgspec
import orjson

from ..codec import Codec
from ..codec.markers import converter
from ..codec.schema import schema_of
from ..errors import EncodeError
from .arguments import RemoteParameter
from .introspect import doc_of
from .registry import Method

_REST = {Parameter.VAR_POSITIONAL: "positional", Parameter.VAR_KEYWORD: "named"}


def describe(methods: Mapping[str, Method], *, codec: Codec, title: str, version: str) -> dict[str, Any]:
    """The document for `rpc.discover`, methods sorted by name.

    Beyond OpenRPC: a parameter with `x-rest` takes all further ones, "positional" or "named"; a method with `x-stream`
    gives its items one by one where it is asked to, a schema with `x-stream` takes them so; a method with
    `x-idempotent` may be called again when it is not known whether a call was carried out; one with `x-allow` is for
    some callers only.
    """
    components: dict[str, Any] = {}
    described = [_describe(methods[name], codec, components) for name in sorted(methods)]
    return {
        "openrpc": "1.3.2",
        "info": {"title": title, "version": version},
        "methods": described,
        "components": {"schemas": components},
    }


def _describe(method: Method, codec: Codec, components: dict[str, Any]) -> dict[str, Any]:
    signature = method.signature
    described: dict[str, Any] = {
        "name": method.name,
        "paramStructure": _structure(signature.parameters),
        "params": [_parameter(parameter, codec, components) for parameter in signature.parameters],
        "result": {"name": "result", "schema": _schema(signature.returns, components)},
    }
    if method.generator is not None:
        described["x-stream"] = True
    if method.idempotent:
        described["x-idempotent"] = True
    if method.allow is not None:
        described["x-allow"] = True
    text = doc_of(method.function)
    if text:
        described["summary"] = text.partition("\n")[0]
        described["description"] = text
    return described


def _structure(parameters: list[RemoteParameter]) -> str:
    if any(parameter.required and parameter.kind is Parameter.KEYWORD_ONLY for parameter in parameters):
        return "by-name"
    return "either"


def _parameter(parameter: RemoteParameter, codec: Codec, components: dict[str, Any]) -> dict[str, Any]:
    schema = _schema(parameter.hint, components)
    if parameter.default is not Parameter.empty:
        schema = {**schema, **_default(parameter, codec)}
    described = {"name": parameter.name, "required": parameter.required, "schema": schema}
    if parameter.kind in _REST:
        described["x-rest"] = _REST[parameter.kind]
    return described


def _default(parameter: RemoteParameter, codec: Codec) -> dict[str, Any]:
    """The default as JSON that a caller may send, or as text under `x-default` where JSON cannot say it."""
    try:
        if codec.is_exact(parameter.default):
            default = orjson.loads(codec.dumps(parameter.default))
            converter(parameter.hint)(default)
            return {"default": default}
    except (EncodeError, msgspec.ValidationError):
        pass
    return {"x-default": repr(parameter.default)}


def _schema(lowered: Any, components: dict[str, Any]) -> dict[str, Any]:
    try:
        return schema_of(lowered, components)
    except TypeError:  # checked all the same, but JSON Schema has no words for it
        return {}
