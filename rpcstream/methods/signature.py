"""A function's signature as a validator of JSON-RPC params, compiled once at registration.

Owns the way from `params` (array, object or nothing) to Python arguments. Two Structs are generated for a function, one
for parameters by name and one by position; msgspec checks against them in C. Knows neither messages nor how a function
is run.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import Parameter
from typing import Annotated, Any, get_args, get_origin

import msgspec

from ..codec import Codec, payloads
from ..codec.check_count import CheckCount, counting, too_many_checked
from ..codec.constraints import check_default, is_constraint
from ..codec.error_text import in_words
from ..codec.hints import is_iterable_hint, item_hint, lower, needs_exact_integers, takes_images
from ..codec.image_budget import INLINE_PIXELS, DecodeElsewhere, ImageBudget, ImageTotal, reading
from ..codec.markers import convert_options, is_untyped
from ..codec.rich_hint import shortened
from ..codec.scalars import with_floats
from ..errors import InvalidRequest, RegistrationError
from ..wire import envelope
from . import stream_params
from .arguments import Arguments, ArgumentsWithImages, Bind, Line, ParamsErrors, RemoteParameter, Tagged
from .dependencies import Provided, dependency_of
from .introspect import context_parameter, hints_of, signature_of

Convert = Callable[[Any], Any]

_EXACT: dict[Any, type] = {int: int, str: str, bool: bool, float: float, None: type(None), type(None): type(None)}
_NO_NAMED: dict[str, Any] = {}
_NOTHING: Arguments = ((), _NO_NAMED)
_convert = msgspec.convert
_astuple = msgspec.structs.astuple


class Signature:
    """The compiled signature of a function: binds params to arguments, and checks results.

    Args:
        function: any callable with a Python signature.
        method: its remote name, for the errors.
        codec: knows the rich types in the hints.
        namespace: names for string hints that are not in the function's module, such as local classes.
        in_thread: the function runs in a thread, where a plain iterator may wait for the items of a stream.

    Attributes:
        bind: `bind(params, line, tagged=None)` gives the arguments for the function. `params` is the member of the
            request, parsed, or None; `line` the message that it stood in, empty if its integers are exact already;
            `tagged` says whether there may be tagged objects in it (see `Tagged`). Raises InvalidParams, with
            parameter, path and reason in its `data`; InvalidRequest if params are neither array nor object; and
            ArgumentsWithImages where `decode_images` asks for it.
        context: the parameter that takes the context of the call, which callers do not see.
        dependencies: the parameters that functions of the server provide, by name; callers do not see them either.
        streams: the parameters that take the items of a stream, by name, each with what checks an item.
        check_result: checks and converts a result; None where there is nothing to check.
        check_item: the same for an item of a generator.
        check_end: the same for what a generator returns at its end, where `Generator[T, None, R]` says so.
        is_limited_as_a_whole: there are constraints on all that the function returns together.
        exact_result: a result of this very class needs no check; None where there is no such class.

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
        self.context = context_parameter(parameters, hints, method)
        self.context_position = parameters.index(self.context) if self.context is not None else None
        self.streams: dict[str, Bind] = {}
        self.dependencies: dict[str, Provided] = {}
        self.parameters = []
        for position, parameter in enumerate(parameters):
            if self.context is None or parameter.name != self.context.name:
                hint = hints.get(parameter.name, Any)
                with self._refusing(f"parameter {parameter.name!r}"):
                    depends = dependency_of(parameter, hint)
                if depends is not None:
                    self.dependencies[parameter.name] = Provided(depends, parameter, position)
                    continue
                lowered = self._lowered_parameter(parameter, hint, in_thread=in_thread)
                self.parameters.append(RemoteParameter(parameter.name, parameter.kind, lowered, parameter.default))
        self._hints = hints
        returns = hints.get("return", Any)
        self.returns = self._lowered("the return value", returns)
        self.check_result = self._result_check(returns)
        self._read_items(returns)
        self.exact_result = _exact_result(returns)
        self._errors = ParamsErrors(self.parameters)
        self._positional = [parameter for parameter in self.parameters if parameter.by_position]
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
        self.bind: Bind
        if plain and not options:
            self.bind = self._short_bind(array, object_)
        else:
            self.bind = self._bind_images if has_images else self._bind
        if any(needs_exact_integers(hints.get(parameter.name, Any), codec) for parameter in self.parameters):
            self.bind = functools.partial(self._bind_exact_integers, self.bind)
        if self._untyped or any("dec_hook" in convert_options(parameter.hint) for parameter in self.parameters):
            self.bind = functools.partial(self._bind_counted, self.bind)

    def check_announced(self, params: Any) -> None:
        """Check params as far as that is possible before their payloads are there: names, and announced arrays.

        Args:
            params: an `Attachment` without memory stands for each payload.

        Raises:
            InvalidParams: `bind` would refuse them, whatever the payloads are.
        """
        if type(params) is dict:
            names = {parameter.name for parameter in self._named}
            missing = any(parameter.required and parameter.name not in params for parameter in self._named)
            if missing or (self._convert_others is None and not names >= params.keys()):
                raise self._errors.error(params, None)
            given = [(name, f".{name}", value) for name, value in params.items()]
        elif type(params) is list:
            if len(params) > self._count and self._convert_rest is None:
                raise self._errors.error(params, None)
            pairs = zip(self._positional, params, strict=False)
            given = [(each.name, f"[{at}]", value) for at, (each, value) in enumerate(pairs)]
        else:
            return
        for name, path, value in given:
            check = self._announced_checks.get(name)
            if check is not None:
                try:
                    check(value)
                except ValueError as error:
                    raise self._errors.of_value(f"{error} - at `${path}`") from None

    @functools.cached_property
    def _announced_checks(self) -> dict[str, Callable[[object], None]]:
        """What checks a value before its payload is there, for parameters of such a type, by name."""
        rich = {each.name: self._codec.rich_hint(self._hints.get(each.name, Any)) for each in self._named}
        checks = {name: getattr(hint, "check_announced", None) for name, hint in rich.items()}
        return {name: check for name, check in checks.items() if check is not None}

    def decode_images(self, *, here: int, reports: bool) -> None:
        """Let `bind` raise `ArgumentsWithImages` from now on; without this it decodes all images itself.

        Args:
            here: pixels that it still decodes itself, for one call; 0 for no image.
            reports: it raises also where it has decoded all images, so that the memory that they hold is counted.
        """
        self._images_here, self._reports_images = here, reports

    # -- binding params ---------------------------------------------------------------------------------------------

    def _short_bind(self, array: Any, object_: Any) -> Bind:
        """Make `bind` for what nearly every method has: parameters that a Struct checks alone, and no rich values."""

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

    def _bind_counted(self, bind: Bind, params: Any, line: Line, tagged: Tagged = None) -> Arguments:
        """`bind` where some values are checked one by one, in Python: of these a message may not have too many."""
        limit = self._codec.max_checked_values
        if line and len(line) <= limit:  # too short for so many
            return bind(params, line, tagged)
        if not self._untyped and line and self._codec.holds_floats(line):
            with suppress(ValueError):  # of a wrong one; `bind` says where
                params = with_floats(params)  # so that a list of numbers is one that is checked at once
        token = counting.set(CheckCount(limit))
        try:
            return bind(params, line, tagged)
        finally:
            counting.reset(token)

    def _bind(self, params: Any, line: Line, tagged: Tagged = None, *, is_decoded: bool = False) -> Arguments:
        if self._untyped and not is_decoded:
            # Some hint takes any value: it gets exact integers, and the rich values that the line has.
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
        except AttributeError:  # msgspec takes an ndarray, which has items, for a mapping, and asks it for its keys
            raise self._errors.error(params, self._errors.array_for_object(params)) from None
        if params is not None:
            raise InvalidRequest(data={"reason": "the member 'params' must be an array or an object"})
        if not self._takes_nothing:
            raise self._errors.error([], None)
        # What is injected among the arguments needs those before it, too: their defaults.
        return self._bind_array([]) if self.streams or self.dependencies or self.context is not None else _NOTHING

    def _bind_object(self, params: dict[str, Any]) -> Arguments:
        others: dict[str, Any] = {}
        if self._convert_others is not None:
            if len(params) > self._codec.max_checked_values:
                raise too_many_checked(self._codec.max_checked_values)
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
            rest = self._rest(params)
            params = params[: self._count]
        values = _astuple(self._convert_array(params))
        for parameter in self._keyword:
            if parameter.required:
                raise self._errors.error(params, None)
        return (*values, *rest), {}

    def _rest(self, params: list[Any]) -> list[Any]:
        """The further arguments that `*args` takes."""
        assert self._convert_rest is not None
        try:
            rest: list[Any] = self._convert_rest(params[self._count :])
        except msgspec.ValidationError as error:
            text, at, path = str(error).rpartition(" - at `$[")
            place, end, inside = path.partition("]")
            raise msgspec.ValidationError(f"{text}{at}{int(place) + self._count}{end}{inside}") from None
        return rest

    def _bind_values(self, params: Any, line: Line, tagged: Tagged) -> Arguments:
        """Decode the tagged objects in params, then bind them."""
        try:
            params = self._codec.decode(params)
        except ValueError as error:
            raise self._errors.of_value(str(error)) from None
        return self._bind(params, line, tagged, is_decoded=True)

    def _may_hold_images(self, line: Line, tagged: Tagged) -> bool:
        if isinstance(tagged, ImageTotal):
            return tagged.has_images
        return not line or self._codec.holds_images(line)

    def _bind_images(self, params: Any, line: Line, tagged: Tagged = None) -> Arguments:
        """`bind` where a hint names images, or a class that may hold some."""
        return self._within_budget(self._bind, params, line, tagged)

    def _bind_exact_integers(self, bind: Bind, params: Any, line: Line, tagged: Tagged = None) -> Arguments:
        """`bind` where the fast parser's integers will not do."""
        if line and envelope.may_hold_big_integers(line):
            params = payloads.parse_exactly(line).get("params")
        return bind(params, line, tagged)

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
        """Bind params that msgspec refused as they were sent: integers over 64 bits, long strings, NaN and infinities.

        Raises:
            InvalidParams: they are refused as well.
        """
        exact, told = params, error
        if (budget := reading.get()) is not None:
            budget.again()
        if (count := counting.get()) is not None:
            count.again()
        if not self._untyped and envelope.may_hold_big_integers(line):
            exact = payloads.parse_exactly(line).get("params")
        try:
            if not line or isinstance(line, payloads.CutLine):
                exact = payloads.with_strings(exact)
            if not self._untyped and (not line or self._codec.holds_floats(line)):
                exact = with_floats(exact)
            if exact is not params:
                return self._bind_object(exact) if type(exact) is dict else self._bind_array(exact)
        except msgspec.ValidationError as second:
            told = second
        except ValueError:  # a payload is no string, or a tagged float is wrong
            pass
        raise self._errors.error(params, told)

    # -- for descriptions -------------------------------------------------------------------------------------------

    def items_on_wire(self) -> tuple[Any, Any]:
        """The lowered hints of what a generator gives: an item, and what it returns at its end (None: nothing)."""
        returns = self._hints.get("return", Any)
        plain, *_ = get_args(returns) if get_origin(returns) is Annotated else (returns,)
        if not is_iterable_hint(plain):
            return Any, None
        _, *others = get_args(plain) or (Any,)
        end = self._lowered("the return value", others[1]) if len(others) > 1 else None
        return self._lowered("the return value", item_hint(plain)), None if end in (None, type(None)) else end

    # -- compiled at registration -----------------------------------------------------------------------------------

    def places(self, names: list[str]) -> dict[str, int | None]:
        """Where these parameters stand among the positional arguments that `bind` gives; None: by name."""
        positions = {parameter.name: at for at, parameter in enumerate(self._positional)}
        return {name: positions.get(name) for name in names}

    def _read_items(self, returns: Any) -> None:
        """Read what the return hint says of the items of a generator, and of what it returns at its end."""
        plain, *metadata = get_args(returns) if get_origin(returns) is Annotated else (returns,)
        self.check_item = self.check_end = None
        if is_iterable_hint(plain):
            self.check_item = self._result_check(item_hint(plain))
            _, *others = get_args(plain) or (Any,)
            if others:  # Generator[T, S, R], AsyncGenerator[T, S]
                with self._refusing("the return value"):
                    _check_sent(others[0])
            if len(others) > 1:
                self.check_end = self._result_check(others[1])
        self.is_limited_as_a_whole = any(map(is_constraint, metadata))

    def _lowered_parameter(self, parameter: Parameter, hint: Any, *, in_thread: bool) -> Any:
        what = f"parameter {parameter.name!r}"
        with self._refusing(what):
            check_default(parameter.default)
            stream = stream_params.stream_hint(hint, self._codec, in_thread=in_thread)
        if stream is None:
            return self._lowered(what, hint)
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            raise RegistrationError(f"{self.method}: {what} stands for many arguments, and cannot be a stream")
        item_type, lowered = stream

        def item(stream: str, value: Any) -> None: ...

        item.__annotations__ = {"stream": str, "value": item_type}
        signature = Signature(item, method=f"{self.method}: {what}", codec=self._codec)
        signature.decode_images(here=0 if in_thread else INLINE_PIXELS, reports=True)
        self.streams[parameter.name] = signature.bind
        return lowered

    def _lowered(self, what: str, hint: Any, *, result: bool = False) -> Any:
        with self._refusing(what):
            return lower(hint, self._codec, result=result)

    @contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        """Name the method, and what of it, where a hint is refused."""
        try:
            yield
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
            # (msgspec can check the fields: each was looked at by itself.)
            return msgspec.defstruct("Params", fields, forbid_unknown_fields=True, gc=False, **options)
        except TypeError as error:
            raise RegistrationError(f"{self.method}: {error}") from error

    def _rest_converter(self, kind: Any) -> Convert | None:
        """For all arguments that `*args` takes, or each of `**kwargs`; None where there is no such parameter."""
        for parameter in self.parameters:
            if parameter.kind is kind:
                hint = parameter.hint
                if kind is Parameter.VAR_POSITIONAL:
                    hint = list[hint]  # type: ignore[valid-type]
                return functools.partial(_convert, type=hint, **convert_options(hint))
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
                    return on_wire(with_floats(payloads.parse_exactly(self._codec.dumps(result))))
                except (msgspec.ValidationError, TypeError):
                    said = in_words(str(error), lowered, "result")
                    raise ValueError(f"the result is not what the return hint says: {said}") from None

        return check


def _exact_result(returns: Any) -> type | None:
    """The class of which each result needs no check for this hint; None if there is none."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and returns is numpy.ndarray:
        return numpy.ndarray  # type: ignore[no-any-return]  # one of a dtype that is not sent fails when it is encoded
    return _EXACT.get(returns) if returns is None or isinstance(returns, type) else None


def _field(position: int, parameter: RemoteParameter) -> tuple[str, Any, Any]:
    # The field's own name is a number, so that no parameter's name can clash with what a Struct has.
    if parameter.default is Parameter.empty:
        return f"p{position}", parameter.hint, msgspec.field(name=parameter.name)
    default = parameter.default
    return f"p{position}", parameter.hint, msgspec.field(default_factory=lambda: default, name=parameter.name)


def _check_sent(hint: Any) -> None:
    """Raise TypeError for what a generator wants to be sent: it gets None for every item."""
    if hint not in (None, type(None), Any, object) and type(None) not in get_args(hint):
        raise TypeError(f"nothing is sent into a generator, and it wants {hint!r}: Generator[T, None, R]")


def _at(path: str, convert: Convert, value: Any) -> Any:
    """Convert one value of many; an error says where it stood, in msgspec's way."""
    try:
        return convert(value)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"{error} - at `${shortened(path, 80).replace('`', '_')}`") from None
