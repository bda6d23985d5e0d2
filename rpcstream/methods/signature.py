"""A function's signature as a validator of JSON-RPC parameters, compiled once at registration.

Owns the way from `params` (array, object or nothing) to Python arguments, and the sentences that say what is wrong with
them. Two Structs are generated for a function, one for parameters by name and one by position; msgspec checks against
them in C. Knows neither messages nor how a function is run.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

import msgspec

from ..codec import Codec, payloads
from ..codec.hints import convert_options, is_iterable_hint, is_untyped, item_hint, lower, takes_images
from ..codec.image_budget import INLINE_PIXELS, DecodeElsewhere, ImageBudget, ImageTotal, reading
from ..errors import InvalidParams, InvalidRequest, RegistrationError
from ..wire import envelope
from . import stream_params
from .image_decoding import ArgumentsWithImages
from .introspect import context_parameter, hints_of, signature_of

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Convert = Callable[[Any], Any]
Line = bytes | bytearray
Bind = Callable[..., Arguments]
Tagged = bool | ImageTotal | None

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
        self,
        function: Callable[..., Any],
        *,
        method: str,
        codec: Codec,
        namespace: dict[str, Any] | None = None,
        in_thread: bool = False,
    ) -> None:
        self.method = method
        self._codec = codec
        hints = hints_of(function, method, namespace or {})
        parameters = list(signature_of(function, method).parameters.values())
        #: The parameter that takes the context of the call, which callers do not see.
        self.context = context_parameter(parameters, hints, method)
        self.context_position = parameters.index(self.context) if self.context is not None else None
        #: The parameters that take their items one by one, and what checks an item.
        self.streams: dict[str, Bind] = {}
        self.parameters = []
        for parameter in parameters:
            if self.context is None or parameter.name != self.context.name:
                hint = hints.get(parameter.name, Any)
                lowered = self._lowered_parameter(parameter, hint, in_thread=in_thread)
                self.parameters.append(RemoteParameter(parameter.name, parameter.kind, lowered, parameter.default))
        returns = hints.get("return", Any)
        self.returns = self._lowered("the return value", returns)
        self.check_result = self._result_check(returns)
        #: The check of an item of a generator; None where there is nothing to check.
        self.check_item = self._result_check(item_hint(returns)) if is_iterable_hint(returns) else None
        #: The class whose very instances need no check, for a return hint that has one.
        self.exact_result = _EXACT.get(returns)
        self._positional = [parameter for parameter in self.parameters if parameter.kind in _BY_POSITION]
        self._keyword = [parameter for parameter in self.parameters if parameter.kind is Parameter.KEYWORD_ONLY]
        self._named = self._positional + self._keyword
        self._count = len(self._positional)
        self._untyped = any(is_untyped(parameter.hint) for parameter in self.parameters)
        #: Where images may be decoded; see `decode_images`.
        self._images_here: int | None = None
        self._reports_images = False
        self._takes_nothing = not any(parameter.required for parameter in self.parameters)
        array, object_ = self._array_struct(), self._object_struct()
        options = convert_options(*[parameter.hint for parameter in self._named])
        self._convert_array = functools.partial(_convert, type=array, **options)
        self._convert_object = functools.partial(_convert, type=object_, **options)
        self._convert_rest = self._rest_converter(Parameter.VAR_POSITIONAL)
        self._convert_others = self._rest_converter(Parameter.VAR_KEYWORD)
        has_images = any(takes_images(hints.get(parameter.name, Any), codec) for parameter in self.parameters)
        plain = not (self._untyped or self._keyword or self._convert_rest or self._convert_others)
        #: `bind(params, line, tagged=None)` gives the arguments for the function.
        #:
        #: Args:
        #:     params: the member of the request, parsed; None when it has none.
        #:     line: the message that `params` stood in; empty when its integers are known to be exact.
        #:     tagged: may there be tagged objects in it? None: look. Of a part of a message: what its images cost.
        #:
        #: Raises:
        #:     InvalidParams: its `data` has parameter, path, and what was expected.
        #:     InvalidRequest: params are neither array nor object.
        #:     ImagesFound: where `decode_images` asks for it.
        self.bind: Bind
        if plain and not options:
            self.bind = self._short_bind(array, object_)
        else:
            self.bind = self._bind_images if has_images else self._bind

    def decode_images(self, *, here: int, reports: bool) -> None:
        """From now on `bind` leaves images to others, by raising `ArgumentsWithImages`; else it decodes all.

        Args:
            here: pixels that it still decodes itself, for one call; 0 for no image.
            reports: it also says so where it has decoded images, since somebody counts the memory that they hold.
        """
        self._images_here, self._reports_images = here, reports

    # -- the way of a call ------------------------------------------------------------------------------------------

    def _short_bind(self, array: Any, object_: Any) -> Bind:
        """`bind` for what nearly every method has: parameters that a Struct checks alone, and no rich values."""

        def bind(params: Any, line: Line, tagged: Tagged = None) -> Arguments:
            try:
                if type(params) is list:
                    return _astuple(_convert(params, array)), _NO_NAMED
                if type(params) is dict:
                    return _astuple(_convert(params, object_)), _NO_NAMED
            except msgspec.ValidationError as error:
                return self._bind_exactly(params, line, error)
            return self._bind(params, line, tagged)

        return bind

    def _bind(self, params: Any, line: Line, tagged: Tagged = None, *, is_decoded: bool = False) -> Arguments:
        if self._untyped and not is_decoded:
            # Some hint takes anything: the exact integers, and the rich values that the line has.
            if line and envelope.may_hold_big_integers(line):
                params = payloads.parse_exactly(line).get("params")
            if tagged or (tagged is None and line and self._codec.holds_tags(line)):
                if self._may_hold_images(line, tagged):
                    return self._within_budget(self._bind_values, params, line, tagged)
                return self._bind_values(params, line, tagged)
        try:
            if type(params) is dict:
                return self._bind_object(params)
            if type(params) is list:
                return self._bind_array(params)
        except msgspec.ValidationError as error:
            return self._bind_exactly(params, line, error)
        except AttributeError:  # msgspec takes an array, which has items, for a mapping, and asks it for its keys
            return self._refuse(params, self._misfit(params))
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

    def _bind_values(self, params: Any, line: Line, tagged: Tagged) -> Arguments:
        """Put in the rich values, then go on."""
        try:
            params = self._codec.decode(params)
        except ValueError as error:
            raise InvalidParams(data=self._explain(str(error), params)) from None
        return self._bind(params, line, tagged, is_decoded=True)

    def _may_hold_images(self, line: Line, tagged: Tagged) -> bool:
        if isinstance(tagged, ImageTotal):
            return tagged.has_images
        return not line or self._codec.holds_images(line)

    def _bind_images(self, params: Any, line: Line, tagged: Tagged = None) -> Arguments:
        """`bind` where a hint names images, or what may hold some."""
        return self._within_budget(self._bind, params, line, tagged)

    def bind_elsewhere(self, params: Any, line: Line, tagged: Tagged) -> tuple[Arguments, int]:
        """`bind` in another thread, after `ArgumentsWithImages`: decodes all images.

        Returns:
            The arguments, and the bytes of memory that the images in them hold.
        """
        budget = self._budget(tagged, None)
        try:
            return self._read(budget, self.bind, params, line, tagged), budget.size
        finally:
            budget.close()

    def _within_budget(self, bind: Bind, params: Any, line: Line, tagged: Tagged) -> Arguments:
        if reading.get() is not None:  # that of `bind_elsewhere`, or the same call's
            return bind(params, line, tagged)
        budget = self._budget(tagged, self._images_here)
        try:
            arguments = self._read(budget, bind, params, line, tagged)
        except DecodeElsewhere:
            raise ArgumentsWithImages(self.bind_elsewhere, self._codec.image_limits) from None
        budget.close()
        if self._reports_images and budget.pixels:
            raise ArgumentsWithImages(self.bind_elsewhere, self._codec.image_limits, arguments, budget.size)
        return arguments

    def _budget(self, tagged: Tagged, here: int | None) -> ImageBudget:
        total = tagged if isinstance(tagged, ImageTotal) else None
        return ImageBudget(self._codec.image_limits, total, here=here)

    def _read(self, budget: ImageBudget, bind: Bind, params: Any, line: Line, tagged: Tagged) -> Arguments:
        token = reading.set(budget)
        try:
            return bind(params, line, tagged)
        finally:
            reading.reset(token)

    def _bind_exactly(self, params: Any, line: Line, error: msgspec.ValidationError) -> Arguments:
        """Refused: unless it was for what is not as it was sent, an integer over 64 bits or a payload cut out."""
        exact, told = params, error
        if (budget := reading.get()) is not None:
            budget.again()
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

    def _misfit(self, params: dict[str, Any] | list[Any]) -> msgspec.ValidationError:
        """What is wrong where a tagged array stands in the place of an object."""
        hints = {parameter.name: parameter.hint for parameter in self.parameters}
        places: Any = zip(self.parameters, params, strict=False) if type(params) is list else ()
        found = [(f"[{at}]", parameter.hint, value) for at, (parameter, value) in enumerate(places)]
        if type(params) is dict:
            found = [(f".{name}", hints[name], value) for name, value in params.items() if name in hints]
        for path, hint, value in found:
            try:
                _convert(value, hint, **convert_options(hint))
            except AttributeError:
                return msgspec.ValidationError(f"Expected `object`, got an array - at `${path}`")
            except msgspec.ValidationError:
                continue
        return msgspec.ValidationError("Expected `object`, got an array")

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

    def places(self, names: list[str]) -> dict[str, int | None]:
        """Where these parameters stand among the positional arguments that `bind` gives; None: by name."""
        positions = {parameter.name: at for at, parameter in enumerate(self._positional)}
        return {name: positions.get(name) for name in names}

    def _lowered_parameter(self, parameter: Parameter, hint: Any, *, in_thread: bool) -> Any:
        what = f"parameter {parameter.name!r}"
        if not stream_params.is_stream_hint(hint, in_thread=in_thread):
            return self._lowered(what, hint)
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            raise RegistrationError(f"{self.method}: {what} stands for many arguments, and cannot be a stream")

        def item(stream: str, value: Any) -> None: ...

        item.__annotations__ = {"stream": str, "value": item_hint(hint)}
        signature = Signature(item, method=f"{self.method}: {what}", codec=self._codec)
        signature.decode_images(here=0 if in_thread else INLINE_PIXELS, reports=True)
        self.streams[parameter.name] = signature.bind
        return stream_params.lowered(hint, self._codec)

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


def _quoted(names: list[str]) -> str:
    return ", ".join(map(repr, names))
