"""The arguments of a function that answers GET: from the path, the query and the request itself."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec

from ..errors import RegistrationError
from ..methods.introspect import signature_of
from ..wire.http_messages import Request

#: Fields of a query; with more the request is refused before they are parsed.
MAX_FIELDS = 1000

Arguments = tuple[list[Any], dict[str, Any]]


class InvalidInputError(Exception):
    """A request does not fit the parameters. The text says which, and is sent to the caller."""


class _Input(NamedTuple):
    """One parameter; `source` is "path", "query" or "request", `is_many` is set for a field that may be repeated."""

    name: str
    hint: Any
    default: Any
    by_position: bool
    source: str
    is_many: bool


class Inputs:
    """The parameters of a function.

    Args:
        function: any callable with a Python signature.
        label: what errors call it.
        kinds: "str", "int" or "path" for each parameter in its path, by name.
        namespace: names for string hints that are not in the function's module.

    Raises:
        RegistrationError: the function has no signature, lacks a parameter of the path, or has a hint that text cannot
            be converted to.
    """

    def __init__(
        self, function: Callable[..., Any], *, label: str, kinds: Mapping[str, str], namespace: dict[str, Any]
    ) -> None:
        signature = signature_of(function, label, namespace)
        self._inputs = [_input(parameter, label, kinds) for parameter in signature.parameters.values()]
        if sum(each.source == "request" for each in self._inputs) > 1:
            raise RegistrationError(f"{label}: one parameter may be the Request")
        for name in kinds.keys() - {each.name for each in self._inputs if each.source == "path"}:
            raise RegistrationError(f"{label}: the path has {{{name}}}, but the function has no parameter {name!r}")
        self._has_query = any(each.source == "query" for each in self._inputs)

    def bind(self, request: Request, parameters: Mapping[str, str]) -> Arguments:
        """The arguments for the function: by position, and by name.

        Raises:
            InvalidInputError: something is missing, or is not what its hint says.
        """
        query = _query(request.query) if self._has_query and request.query else {}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for each in self._inputs:
            if each.source == "request":
                value: Any = request
            elif each.source == "path":
                value = _converted(each, [parameters[each.name]])
            else:
                value = _converted(each, query.get(each.name))
            if each.by_position:
                args.append(value)
            else:
                kwargs[each.name] = value
        return args, kwargs


def _input(parameter: Parameter, label: str, kinds: Mapping[str, str]) -> _Input:
    name, hint = parameter.name, parameter.annotation
    if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        raise RegistrationError(
            f"{label}: {parameter} cannot be filled from a query; take the Request and read its query"
        )
    by_position = parameter.kind is Parameter.POSITIONAL_ONLY
    if name not in kinds and Request in (hint, *typing.get_args(hint)):
        return _Input(name, None, None, by_position, "request", False)
    source = "path" if name in kinds else "query"
    if hint is Any:
        hint = int if kinds.get(name) == "int" else str
    hint = _without_none(hint)
    is_many = _is_many(hint, f"{label}: parameter {name!r}")
    if is_many and source == "path":
        raise RegistrationError(f"{label}: parameter {name!r}: the path has one value for it, not {hint!r}")
    return _Input(name, hint, parameter.default, by_position, source, is_many)


def _without_none(hint: Any) -> Any:
    """`int | None` as `int`: text is never None; a parameter that is missing has its default."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [each for each in typing.get_args(hint) if each is not type(None)]
        return typing.Union[tuple(others)]  # noqa: UP007
    return hint


def _is_many(hint: Any, where: str) -> bool:
    """Whether a hint is of several values. Raises RegistrationError if text cannot be converted to it."""
    try:
        schema = msgspec.json.schema(hint)
    except TypeError:  # a class that msgspec does not know
        schema = {"type": "object"}
    definitions = schema.get("$defs", {})

    def is_text(schema: dict[str, Any]) -> bool:
        found = definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        members = found.get("anyOf")
        if members is not None:
            return all(map(is_text, members))
        return "contentEncoding" not in found and found.get("type") not in ("object", "array", "null")

    choices = schema.get("anyOf", [schema])
    arrays = [each for each in choices if each.get("type") == "array"]
    items = [item for each in arrays for item in (each.get("items"), *each.get("prefixItems", ())) if item]
    if not all(map(is_text, [*items, *(each for each in choices if each not in arrays)])):
        raise RegistrationError(f"{where}: path and query are text, which cannot become {hint!r}")
    return bool(arrays)


def _query(query: str) -> dict[str, list[str]]:
    try:
        return parse_qs(query, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except UnicodeDecodeError:
        raise InvalidInputError("the query is not UTF-8") from None
    except ValueError:
        raise InvalidInputError(f"the query has more than {MAX_FIELDS} fields") from None


def _converted(each: _Input, texts: list[str] | None) -> Any:
    if texts is None:
        if each.default is not Parameter.empty:
            return each.default
        raise InvalidInputError(f"the {each.source} parameter {each.name!r} is missing")
    if each.hint is str and len(texts) == 1:
        return texts[0]
    if not each.is_many and len(texts) > 1:
        raise InvalidInputError(f"the {each.source} parameter {each.name!r} is given {len(texts)} times")
    try:
        return msgspec.convert(texts if each.is_many else texts[0], each.hint, strict=False)
    except msgspec.ValidationError as error:
        shown = ", ".join(map(repr, texts[:3]))
        reason = str(error).replace("`", "").replace(", got str", "")
        raise InvalidInputError(f"the {each.source} parameter {each.name!r}: {reason}, got {shown[:100]}") from None
