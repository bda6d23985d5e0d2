"""Calls a function that answers GET with the parameters of a request, and handles its result, error or timeout."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Coroutine, Mapping
from inspect import Parameter
from time import perf_counter
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qs

import msgspec

from ..codec import Codec
from ..errors import RegistrationError
from ..methods.call import Invoker, check_picklable
from ..methods.introspect import FunctionKind, signature_of
from ..methods.method import Method
from ..methods.options import Offload
from ..observe.limited_log import LimitedLog
from ..text import get_logger
from ..wire.http_messages import HttpError, Request, Response, problem
from .responses import call_in_process, error_response, responding, response_to

log = get_logger("rpcstream.web")


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


#: The kind of a parameter, behind its colon, and what it matches.
_KINDS = {"str": "([^/]+)", "int": "(-?[0-9]{1,30})", "path": "(.*)"}
_PARAMETER = re.compile(r"\{([^{}]*)\}")
_ESCAPED = re.compile("%[0-9A-Fa-f]{2}")


class PathPattern:
    """A path with parameters in it.

    Args:
        path: begins with `/`. `{name}` matches one or more characters other than `/`, `{name:int}` a whole number,
            `{name:path}`, at the end, all the rest, which may be empty.

    Raises:
        RegistrationError: the path is not of this form; the text says what is wrong with it.

    Attributes:
        kinds: "str", "int" or "path" for each parameter, by its name. Empty: the pattern matches its own text only.
    """

    def __init__(self, path: str) -> None:
        check_path(path)
        self.path = path
        self.kinds: dict[str, str] = {}
        segments = path.split("/")
        self._expression = re.compile("/".join(map(self._segment, segments)), re.DOTALL)
        is_last = segments[-1].endswith(":path}")
        if list(self.kinds.values()).count("path") != is_last:
            raise self._error("a {name:path} takes all the rest, so nothing can stand behind it")

    def match(self, path: str) -> dict[str, str] | None:
        """The text of each parameter, by name; None if the path does not match."""
        found = self._expression.fullmatch(path)
        return None if found is None else dict(zip(self.kinds, found.groups(), strict=True))

    def _segment(self, segment: str) -> str:
        """The regular expression for the text between two slashes."""
        before, *rest = _PARAMETER.split(segment)
        if not rest:
            return self._text(before)
        if len(rest) > 2:
            # Two could share the text in many ways, and trying them all would take long for a long path.
            raise self._error(f"there can be one parameter between two slashes, not {segment!r}")
        name, _, kind = rest[0].partition(":")
        if not name.isidentifier():
            raise self._error(f"a parameter is a name, such as {{name}} or {{number:int}}, not {{{rest[0]}}}")
        if (kind or "str") not in _KINDS:
            raise self._error(f"the kind of {{{rest[0]}}} must be one of {', '.join(_KINDS)}")
        if name in self.kinds:
            raise self._error(f"{{{name}}} is there twice")
        self.kinds[name] = kind or "str"
        return self._text(before) + _KINDS[kind or "str"] + self._text(rest[1])

    def _text(self, text: str) -> str:
        if "{" in text or "}" in text:
            raise self._error("a brace without its counterpart")
        return re.escape(text)

    def _error(self, reason: str) -> RegistrationError:
        return RegistrationError(f"the path {self.path!r}: {reason}")


def check_path(path: str) -> None:
    """Raise RegistrationError unless a request could have this path."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise RegistrationError(f"a path is a string that begins with '/', got {path!r}")
    if "?" in path or "#" in path:
        raise RegistrationError(f"the path {path!r}: the query is not part of a path; its fields come as parameters")
    if _ESCAPED.search(path):
        raise RegistrationError(f"the path {path!r}: write the characters themselves, without percent-encoding")
    if any(ord(letter) < 0x20 for letter in path):
        raise RegistrationError(f"the path {path!r}: it has a control character in it")


#: Seconds for an async or offloaded handler that sets no other time-out.
TIMEOUT = 60.0


class Handler:
    """A function that answers GET.

    Args:
        function: sync or async.
        path: its path, for errors and the log.
        kinds: of the parameters in the path, as for `Inputs`.
        offload: "thread" or "process": where a sync function is run.
        timeout: seconds; None: `TIMEOUT`, if the function is async or offloaded. `math.inf` for none.
        slow: seconds; a function that keeps the loop for longer is named in a warning.
        debug: show exceptions to the caller.
        namespace: names for string hints.
        invoker: gives the invoker, which runs offloaded functions.

    Raises:
        RegistrationError: the function cannot be a handler with these options; the text says why.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        path: str,
        kinds: Mapping[str, str],
        codec: Codec,
        offload: Offload | None,
        timeout: float | None,
        slow: float,
        debug: bool,
        namespace: dict[str, Any],
        invoker: Callable[[], Invoker],
    ) -> None:
        self.name = f"GET {path}"
        self._log = LimitedLog(log)
        kind = FunctionKind(function)
        self._is_async = kind.is_async
        self._invoker = invoker
        self.offload = offload
        self._check_function(function, kind)
        kind.check_runner(self.name, offload, timeout)
        self._inputs = Inputs(function, label=self.name, kinds=kinds, namespace=namespace)
        self._codec = codec
        self._slow = slow
        self._debug = debug
        limit = TIMEOUT if timeout is None else timeout
        self._timeout = None if limit == math.inf else limit
        #: What the invoker runs.
        self.function: Callable[..., Any] = function
        if offload == "thread":
            self.function = functools.partial(self._responded, function)
        elif offload == "process":
            self.function = functools.partial(call_in_process, function)

    def check(self) -> None:
        """Raise RegistrationError if the function is for another process and cannot be imported there."""
        if self.offload == "process":
            check_picklable(cast(Method, self))

    def answer(self, request: Request, parameters: Mapping[str, str]) -> Response | Coroutine[Any, Any, Response]:
        """The response, now or awaited. A sync function that is not offloaded has run when this returns."""
        try:
            args, kwargs = self._inputs.bind(request, parameters)
        except InvalidInputError as wrong:
            return problem(400, str(wrong))
        except Exception as error:
            return self._failed(error)
        if self.offload is not None:
            method = cast(Method, self)  # the invoker uses only `name`, `function`, and `offload` of a method
            run = functools.partial(self._invoker().run, method, tuple(args), kwargs)
            return responding(functools.partial(self._finish, run), self._failed)
        call = functools.partial(self.function, *args, **kwargs)
        if self._is_async:
            return responding(functools.partial(self._finish, call), self._failed)
        since = perf_counter()
        try:
            result = call()
            if inspect.isawaitable(result):
                return responding(lambda: self._finish(lambda: result), self._failed)
            return response_to(result, self._codec)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._failed(error)
        finally:
            self._check_duration(perf_counter() - since)

    async def _finish(self, begin: Callable[[], Any]) -> Response:
        try:
            async with asyncio.timeout(self._timeout) as deadline:
                result = begin()
                return response_to(await result if inspect.isawaitable(result) else result, self._codec)
        except TimeoutError:
            if not deadline.expired():
                raise
            self._log.warning(None, "%s took longer than %g s", self.name, self._timeout)
            return problem(503, f"This page took longer than {self._timeout:g} s")

    def _responded(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Response:
        """Call the function and make its response, in a thread: encoding a large image would keep the event loop."""
        return response_to(function(*args, **kwargs), self._codec)

    def _failed(self, error: BaseException) -> Response:
        if isinstance(error, HttpError):
            try:
                return response_to(error.response, self._codec)
            except Exception as unfit:
                error = unfit
        return error_response(self.name, error, self._log, debug=self._debug)

    def _check_duration(self, seconds: float) -> None:
        if seconds > self._slow:
            advice = "register it with offload='thread' (or 'process', if it computes in Python)"
            kind = "%s blocked the event loop for %.3f s, and no other request was served: %s"
            self._log.warning(None, kind, self.name, seconds, advice)

    def _check_function(self, function: Callable[..., Any], kind: FunctionKind) -> None:
        if not callable(function):
            raise RegistrationError(f"{self.name}: a handler is a function, got {function!r}")
        if kind.is_generator:
            raise RegistrationError(f"{self.name}: a handler returns its page in one piece; it cannot be a generator")
        if self.offload == "process" and "<" in getattr(function, "__qualname__", ""):  # <locals>, <lambda>
            raise RegistrationError(f"{self.name}: offload='process' needs a function that another process can import")
