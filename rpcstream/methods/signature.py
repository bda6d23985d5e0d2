"""A function's signature as a validator of JSON-RPC parameters, compiled once at registration.

Owns the way from `params` (array, object or nothing) to Python arguments, and the sentences that say what is wrong with
them. Two Structs are generated for a function, one for parameters by name and one by position; msgspec checks against
them in C. Knows neither messages nor how a function is run.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

import msgspec

from ..codec import Codec, payloads
from ..codec.hints import convert_options, is_untyped, lower
from ..errors import InvalidParams, InvalidRequest, RegistrationError
from ..wire import envelope

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Convert = Callable[[Any], Any]
Line = bytes | bytearray
Bind = Callable[..., Arguments]

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_PATH = re.compile(r" - at `\$([^`]*)`")
_MISMATCH = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<got>[^`]*)`")
_EXACT: dict[Any, type] = {int: int, str: str, bool: bool, float: float, None: type(None), type(None): type(None)}
_NO_NAMED: dict[str, Any] = {}
_NOTHING: Arguments = ((), _NO_NAMED)
_convert = msgspec.convert
_astuple = msgspec.structs.astuple


@dataclass(frozen=True, slots=True)
class RemoteParameter:
    """One parameter as a caller sees it; `hint` is lowered (see `codec.hints`)."""

    name: str
    kind: Any
    hint: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is Parameter.empty and self.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Signature:
    """What a function takes and gives.

    Args:
        function: any callable with a Python signature.
        method: its remote name, for the errors.
        codec: knows the rich types in the hints.
        namespace: names for string hints that are not in the function's module, such as local classes.

    Raises:
        RegistrationError: there is no signature, or a hint that cannot be checked; the text names the parameter.
    """

    def __init__(
        self, function: Callable[..., Any], *, method: str, codec: Codec, namespace: dict[str, Any] | None = None
    ) -> None:
        self.method = method
        self._codec = codec
        hints = _hints_of(function, method, namespace or {})
        self.parameters = [
            RemoteParameter(
                parameter.name,
                parameter.kind,
                self._lowered(f"parameter {parameter.name!r}", hints.get(parameter.name, Any)),
                parameter.default,
            )
            for parameter in _signature_of(function, method).parameters.values()
        ]
        returns = hints.get("return", Any)
        self.returns = self._lowered("the return value", returns)
        self.check_result = self._result_check(returns)
        #: The class whose very instances need no check, for a return hint that has one.
        self.exact_result = _EXACT.get(returns)
        self._positional = [parameter for parameter in self.parameters if parameter.kind in _BY_POSITION]
        self._keyword = [parameter for parameter in self.parameters if parameter.kind is Parameter.KEYWORD_ONLY]
        self._named = self._positional + self._keyword
        self._count = len(self._positional)
        self._untyped = any(is_untyped(parameter.hint) for parameter in self.parameters)
        self._takes_nothing = not any(parameter.required for parameter in self.parameters)
        array, object_ = self._array_struct(), self._object_struct()
        self._convert_array = functools.partial(_convert, type=array, **convert_options(array))
        self._convert_object = functools.partial(_convert, type=object_, **convert_options(object_))
        self._convert_rest = self._rest_converter(Parameter.VAR_POSITIONAL)
        self._convert_others = self._rest_converter(Parameter.VAR_KEYWORD)
        plain = not (self._untyped or self._keyword or self._convert_rest or self._convert_others)
        #: `bind(params, line, tagged=None)` gives the arguments for the function.
        #:
        #: Args:
        #:     params: the member of the request, parsed; None when it has none.
        #:     line: the message that `params` stood in; empty when its integers are known to be exact.
        #:     tagged: may there be tagged objects in it? None: look.
        #:
        #: Raises:
        #:     InvalidParams: its `data` has parameter, path, and what was expected.
        #:     InvalidRequest: params are neither array nor object.
        self.bind = self._short_bind(array, object_) if plain and not convert_options(object_) else self._bind

    # -- the way of a call ------------------------------------------------------------------------------------------

    def _short_bind(self, array: Any, object_: Any) -> Bind:
        """`bind` for what nearly every method has: parameters that a Struct checks alone, and no rich values."""

        def bind(params: Any, line: Line, tagged: bool | None = None) -> Arguments:
            try:
                if type(params) is list:
                    return _astuple(_convert(params, array)), _NO_NAMED
                if type(params) is dict:
                    return _astuple(_convert(params, object_)), _NO_NAMED
            except msgspec.ValidationError as error:
                return self._bind_exactly(params, line, error)
            return self._bind(params, line, tagged)

        return bind

    def _bind(self, params: Any, line: Line, tagged: bool | None = None) -> Arguments:
        if self._untyped:
            params = self._with_values(params, line, tagged)
        try:
            if type(params) is dict:
                return self._bind_object(params)
            if type(params) is list:
                return self._bind_array(params)
        except msgspec.ValidationError as error:
            return self._bind_exactly(params, line, error)
        if params is not None:
            raise InvalidRequest(data={"reason": "the member 'params' must be an array or an object"})
        return _NOTHING if self._takes_nothing else self._refuse([], None)

    def _bind_object(self, params: dict[str, Any]) -> Arguments:
        others: dict[str, Any] = {}
        if self._convert_others is not None:
            names = {parameter.name for parameter in self._named}
            for name, value in params.items():
                if name not in names:
                    others[name] = _at(f".{name}", self._convert_others, value)
            params = {name: value for name, value in params.items() if name in names}
        values = _astuple(self._convert_object(params))
        if len(values) == self._count:
            return values, others
        for parameter, value in zip(self._keyword, values[self._count :], strict=True):
            others[parameter.name] = value
        return values[: self._count], others

    def _bind_array(self, params: list[Any]) -> Arguments:
        rest: list[Any] = []
        if self._convert_rest is not None and len(params) > self._count:
            extra = enumerate(params[self._count :], self._count)
            rest = [_at(f"[{position}]", self._convert_rest, value) for position, value in extra]
            params = params[: self._count]
        values = _astuple(self._convert_array(params))
        for parameter in self._keyword:
            if parameter.required:
                self._refuse(params, None)
        return (*values, *rest), {}

    def _with_values(self, params: Any, line: Line, tagged: bool | None) -> Any:
        """Some hint takes anything: put in the rich values and the exact integers that the line has."""
        if line and envelope.may_hold_big_integers(line):
            params = payloads.parse_exactly(line).get("params")
        if tagged or (tagged is None and line and self._codec.holds_tags(line)):
            try:
                return self._codec.decode(params)
            except ValueError as error:
                raise InvalidParams(data=self._explain(str(error), params)) from None
        return params

    def _bind_exactly(self, params: Any, line: Line, error: msgspec.ValidationError) -> Arguments:
        """Refused: unless it was for what is not as it was sent, an integer over 64 bits or a payload cut out."""
        exact, told = params, error
        if not self._untyped and envelope.may_hold_big_integers(line):
            exact = payloads.parse_exactly(line).get("params")
        try:
            if not line or isinstance(line, payloads.CutLine):
                exact = payloads.with_strings(exact)
            if exact is not params:
                return self._bind_object(exact) if type(exact) is dict else self._bind_array(exact)
        except msgspec.ValidationError as second:
            told = second
        except ValueError:  # a payload is no string
            pass
        return self._refuse(params, told)

    # -- what is wrong ----------------------------------------------------------------------------------------------

    def _refuse(self, params: Any, error: msgspec.ValidationError | None) -> Arguments:
        names = [parameter.name for parameter in self._named]
        if type(params) is dict:
            missing = [
                parameter.name for parameter in self._named if parameter.required and parameter.name not in params
            ]
            unknown = [] if self._convert_others else [name for name in params if name not in names]
        else:
            here = self._positional[len(params) :] + self._keyword
            missing = [parameter.name for parameter in here if parameter.required]
            unknown = []
        if missing:
            raise InvalidParams(
                f"Invalid params: missing {_quoted(missing)}",
                {"parameter": missing[0], "path": f"$.{missing[0]}", "reason": "missing", "missing": missing},
            )
        if unknown:
            raise InvalidParams(
                f"Invalid params: unknown {_quoted(unknown)}",
                {"parameter": unknown[0], "path": f"$.{unknown[0]}", "reason": "unknown", "parameters": names},
            )
        if type(params) is list and len(params) > self._count and self._convert_rest is None:
            raise InvalidParams(
                f"Invalid params: at most {self._count} by position, got {len(params)}",
                {"path": f"$[{self._count}]", "reason": "too many", "parameters": names[: self._count]},
            )
        explained = self._explain(str(error), params)
        raise InvalidParams(f"Invalid params: {explained['path']}: {explained['reason']}", explained)

    def _explain(self, text: str, params: Any) -> dict[str, Any]:
        """The data of an error: msgspec's sentence and path, and the parameter that the path begins with."""
        path = "".join(reversed(_PATH.findall(text)))
        reason = _PATH.sub("", text)
        data: dict[str, Any] = {"path": f"${path}", "reason": reason}
        if type(params) is list and (found := re.match(r"\[(\d+)\]", path)):
            position = min(int(found[1]), len(self.parameters) - 1)
            data["parameter"] = self.parameters[position].name if self.parameters else None
        elif found := re.match(r"\.([^.\[]+)", path):
            data["parameter"] = found[1]
        if mismatch := _MISMATCH.search(reason):
            data.update(mismatch.groupdict())
        return data

    # -- compiled at registration -----------------------------------------------------------------------------------

    def _lowered(self, what: str, hint: Any, *, result: bool = False) -> Any:
        try:
            return lower(hint, self._codec, result=result)
        except (TypeError, ValueError, RecursionError) as error:
            raise RegistrationError(f"{self.method}: {what}: {error}") from error

    def _array_struct(self) -> Any:
        fields = [_field(position, parameter) for position, parameter in enumerate(self._positional)]
        return self._struct(fields, array_like=True)

    def _object_struct(self) -> Any:
        fields = [_field(position, parameter) for position, parameter in enumerate(self._named)]
        return self._struct(fields, kw_only=True)

    def _struct(self, fields: list[Any], **options: Any) -> Any:
        try:
            struct = msgspec.defstruct("Params", fields, forbid_unknown_fields=True, gc=False, **options)
            msgspec.inspect.type_info(struct)
        except TypeError as error:
            raise RegistrationError(f"{self.method}: {error}") from error
        return struct

    def _rest_converter(self, kind: Any) -> Convert | None:
        """For each further argument that `*args` or `**kwargs` takes; None where there is no such parameter."""
        for parameter in self.parameters:
            if parameter.kind is kind:
                return functools.partial(_convert, type=parameter.hint, **convert_options(parameter.hint))
        return None

    def _result_check(self, hint: Any) -> Convert | None:
        """A check of what the function returns; None where there is nothing to check.

        Raises ValueError. What it gives is sent in place of the result: `-> float` sends 1 as 1.0.
        """
        lowered = self._lowered("the return value", hint, result=True)
        if lowered is Any:
            return None
        convert = functools.partial(_convert, type=lowered, **convert_options(lowered))
        on_wire = functools.partial(_convert, type=self.returns, **convert_options(self.returns))

        def check(result: Any) -> Any:
            try:
                return convert(result)
            except msgspec.ValidationError as error:
                # numpy scalars and the like: what counts is what the caller will read.
                try:
                    return on_wire(payloads.parse_exactly(self._codec.dumps(result)))
                except (msgspec.ValidationError, TypeError):
                    raise ValueError(f"the result is not what the return hint says: {error}") from None

        return check


def _field(position: int, parameter: RemoteParameter) -> tuple[str, Any, Any]:
    # The field's own name is a number, so that no parameter's name can clash with what a Struct has.
    if parameter.default is Parameter.empty:
        return f"p{position}", parameter.hint, msgspec.field(name=parameter.name)
    default = parameter.default
    return f"p{position}", parameter.hint, msgspec.field(default_factory=lambda: default, name=parameter.name)


def _at(path: str, convert: Convert, value: Any) -> Any:
    """Convert one value of many; an error says where it stood, in msgspec's way."""
    try:
        return convert(value)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"{error} - at `${path}`") from None


def _signature_of(function: Callable[..., Any], method: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (ValueError, TypeError) as error:
        raise RegistrationError(f"{method}: {function!r} has no signature that could be checked: {error}") from None


def _hints_of(function: Callable[..., Any], method: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """The function's hints, strings resolved: in its module, its closure, and the scope it was registered in."""
    source: Any = function
    while isinstance(source, functools.partial) or hasattr(source, "__wrapped__"):
        source = source.func if isinstance(source, functools.partial) else source.__wrapped__
    if not isinstance(source, types.FunctionType | types.MethodType | types.BuiltinFunctionType | type):
        source = type(source).__call__
    plain = getattr(source, "__func__", source)
    if isinstance(plain, type):
        plain = plain.__init__  # type: ignore[misc]
    names = dict(namespace)
    if isinstance(plain, types.FunctionType):
        if "<locals>" not in plain.__qualname__:
            # It was written at the top of its module: names of where it is registered mean nothing to it.
            names = {name: value for name, value in names.items() if name not in plain.__globals__}
        names.update(_closure_of(plain))
    try:
        return typing.get_type_hints(plain, localns=names, include_extras=True)
    except NameError as error:
        return _hints_one_by_one(plain, names, method, error)
    except (TypeError, AttributeError) as error:
        if not getattr(plain, "__annotations__", None):
            return {}
        raise RegistrationError(f"{method}: its hints cannot be read: {error}") from error


def _hints_one_by_one(function: Any, names: dict[str, Any], method: str, error: Exception) -> dict[str, Any]:
    """Some name in a string hint is not known: say of which parameter."""
    for name, hint in function.__annotations__.items():
        if isinstance(hint, str):
            try:
                eval(hint, getattr(function, "__globals__", {}), names)
            except Exception as cause:
                raise RegistrationError(f"{method}: parameter {name!r}: its hint {hint!r}: {cause}") from cause
    raise RegistrationError(f"{method}: its hints cannot be read: {error}") from error


def _closure_of(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    return found


def caller_namespace() -> dict[str, Any]:
    """The local names where rpcstream was called from: string hints may mean classes of that scope."""
    frame: types.FrameType | None = sys._getframe(1)
    own = __name__.partition(".")[0] + "."
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(own):
        frame = frame.f_back
    return dict(frame.f_locals) if frame is not None else {}


def _quoted(names: list[str]) -> str:
    return ", ".join(map(repr, names))
