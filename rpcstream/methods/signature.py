"""A function's signature as a validator of JSON-RPC params, compiled once at registration.

One of two generated Structs, for parameters by name and by position, has all of a method's hints: msgspec checks params
against it in C, and calls the hints of rich values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import Parameter
from typing import Annotated, Any, get_args, get_origin

import msgspec

from ..codec import Codec, payloads
from ..codec.codec import INLINE_PIXELS, RESULTS, DecodeElsewhere, Reading
from ..codec.hints import CompiledHint, is_iterable_hint
from ..codec.rich_hint import full_name, in_words, shortened
from ..errors import InvalidParams, InvalidRequest, RegistrationError
from ..nearest import did_you_mean, nearest_for_peer
from ..wire import envelope
from . import stream_params
from .arguments import NAME_MAX, Arguments, ArgumentsWithImages, Bind, Line, RemoteParameter, Tagged
from .dependencies import Provided, dependency_of
from .introspect import signature_of

Convert = Callable[[Any], Any]

#: Classes whose objects need no check as results. (An array of a dtype that is not sent fails when it is encoded.)
_EXACT = frozenset({*(f"builtins.{name}" for name in ("int", "str", "bool", "float", "NoneType")), "numpy.ndarray"})
_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
#: The first step in the path at the end of an error.
_STEP = re.compile(r"\[(\d+)\]|\.(\w+)")
_convert, _astuple = msgspec.convert, msgspec.structs.astuple


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
            `tagged` the reading of the batch that the request is a part of. Raises InvalidParams, with parameter, path
            and reason in its `data`; InvalidRequest if params are neither array nor object; and ArgumentsWithImages
            where `decode_images` asks for it.
        provided: the parameters that callers do not see: the Context, and what functions of the server provide.
        streams: the parameters that take the items of a stream: the name, or the place among the arguments by position,
            and what checks an item.
        returns, item, end: the hints of the result, and for a generator of its items, and of what it returns at its end
            (None: nothing is said).
        check_result: checks and converts a result; None where there is nothing to check.
        check_item: the same for an item of a generator.
        check_end: the same for what a generator returns at its end, where `Generator[T, None, R]` says so.
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
        signature = signature_of(function, method, namespace or {})
        self.streams: list[tuple[str | int, Bind]] = []
        self.provided: list[Provided] = []
        self.parameters: list[RemoteParameter] = []
        #: What checks all values for `*args`, or `**kwargs`.
        self._many: dict[Any, CompiledHint] = {}
        for position, parameter in enumerate(signature.parameters.values()):
            with self._refusing(f"parameter {parameter.name!r}"):
                self._add(parameter, position, in_thread=in_thread)
        with self._refusing("the return value"):
            self._read_result(signature.return_annotation)
        self._positional = [each for each in self.parameters if each.by_position]
        self._keyword = [each for each in self.parameters if each.kind is Parameter.KEYWORD_ONLY]
        self._by_name = {each.name: each for each in self._positional + self._keyword}
        self._count = len(self._positional)
        self._rest, self._others = (
            next((each for each in self.parameters if each.kind is kind), None) for kind in _REST
        )
        left = [each.hint.left for each in self.parameters]
        self._left = None if None in left else frozenset[str]().union(*filter(None, left))
        #: Where images may be decoded; see `decode_images`.
        self._images_here: int | None = None
        self._reports_images = False
        self._defaults = {each.name: each.default for each in self._keyword}
        self._array, self._object = self._structs()
        is_plain = not (self._rest or self._others) and all(each.hint.is_plain for each in self.parameters)
        self.bind: Bind = self._plain_bind() if is_plain else self._bind

    def decode_images(self, *, here: int, reports: bool) -> None:
        """Let `bind` raise `ArgumentsWithImages` from now on; without this it decodes all images itself.

        Args:
            here: pixels that it still decodes itself, for one call; 0 for no image.
            reports: it raises also where it has decoded all images, so that the memory that they hold is counted.
        """
        self._images_here, self._reports_images = here, reports

    # -- binding params ---------------------------------------------------------------------------------------------

    def _structs(self) -> tuple[Any, Any]:
        """The Structs for params by position and by name."""
        fields: list[Any] = []
        for at, each in enumerate(self._by_name.values()):
            default = each.default
            options: Any = {} if default is Parameter.empty else {"default_factory": lambda value=default: value}
            # A number as its own name, so that no parameter's name can clash with what a Struct has.
            fields.append((f"p{at}", each.hint.lowered, msgspec.field(name=each.name, **options)))
        by_name = msgspec.defstruct("Params", fields, kw_only=True, forbid_unknown_fields=True, gc=False)
        if any(each.required for each in self._keyword):
            return by_name, by_name  # which takes no array
        array = msgspec.defstruct(
            "Params", fields[: self._count], array_like=True, forbid_unknown_fields=True, gc=False
        )
        return array, by_name

    def _plain_bind(self) -> Bind:
        """Make `bind` for what nearly every method has: parameters that msgspec checks alone, and no rich values."""
        array, object_, defaults, count = self._array, self._object, self._defaults, self._count
        untyped, check, astuple = self._left is None, _convert, _astuple
        holds_tags, may_hold_big_integers = self._codec.holds_tags, envelope.may_hold_big_integers

        def bind(params: Any, line: Line, tagged: Tagged = None) -> Arguments:
            if untyped and (not line or tagged is not None or holds_tags(line) or may_hold_big_integers(line)):
                return self._bind(params, line, tagged)
            try:
                if type(params) is list:
                    return astuple(check(params, array)), defaults
                if type(params) is dict:
                    if not defaults:
                        return astuple(check(params, object_)), defaults
                    values = astuple(check(params, object_))
                    return values[:count], dict(zip(defaults, values[count:], strict=True))
            except msgspec.ValidationError:
                pass  # it may still fit, once tagged floats are decoded and integers are exact
            return self._bind(params, line, tagged)

        return bind

    def _bind(self, params: Any, line: Line, tagged: Tagged = None) -> Arguments:
        try:
            arguments, reading = self._read(params, line, tagged, self._images_here)
        except DecodeElsewhere as error:
            raise ArgumentsWithImages(partial(self.bind_elsewhere, params, line, tagged), error.size) from None
        if reading.pixels and self._reports_images:
            raise ArgumentsWithImages(partial(self.bind_elsewhere, params, line, tagged), reading.size, arguments)
        return arguments

    def bind_elsewhere(self, params: Any, line: Line, tagged: Tagged, room: int) -> tuple[Arguments | None, int]:
        """`bind` in another thread, after `ArgumentsWithImages`: decodes all images.

        Args:
            room: bytes of memory that are reserved for it.

        Returns:
            The arguments, and the bytes of memory that the images in them hold; or None, and how many bytes are needed.
        """
        try:
            arguments, reading = self._read(params, line, tagged, None, room)
        except DecodeElsewhere as error:
            return None, error.size
        return arguments, reading.size

    def _read(
        self, params: Any, line: Line, whole: Tagged, here: int | None, room: int | None = None
    ) -> tuple[Arguments, Reading]:
        """The arguments, and the reading that gave them."""
        is_tagged = whole.is_tagged if whole is not None else not line or self._codec.holds_tags(line)
        if self._left is None:
            params, line = _with_exact_integers(params, line), b""
        while True:
            reading = self._codec.reading(here, whole, room=room, is_counted=True, is_tagged=is_tagged)
            try:
                arguments = self._arguments(params, reading)
            except InvalidParams:
                reading.close()
                rounded, params, line = params, _with_exact_integers(params, line), b""
                if params is rounded:
                    raise
            else:
                reading.close()
                return arguments, reading

    def _arguments(self, params: Any, reading: Reading) -> Arguments:
        """The arguments for params whose integers are exact."""
        by_name = type(params) is dict
        if not by_name and type(params) is not list:
            if params is not None:
                raise InvalidRequest(data={"reason": "the member 'params' must be an array or an object"})
            by_name, params = True, {}
        further, kind = (self._others, self._object) if by_name else (self._rest, self._array)
        try:
            given = self._codec.decode(params, reading, self._left) if reading.is_tagged else params
            known, more = (given, {}) if further is None else self._split(given, further, reading)
            values = _astuple(_convert(known, kind, dec_hook=reading.hook, str_keys=True))
        except ValueError as error:
            raise self._refusal(params, str(error)) from None
        except AttributeError:  # msgspec takes an ndarray, which has items, for a mapping, and asks it for its keys
            raise self._refusal(params, "Expected `object`, got `ndarray`") from None
        if not by_name:
            return (*values, *more.values()), self._defaults
        return values[: self._count], dict(zip(self._defaults, values[self._count :], strict=True)) | more

    def _split(self, params: Any, further: RemoteParameter, reading: Reading) -> tuple[Any, dict[Any, Any]]:
        """The params that have parameters of their own; and those that `*args` or `**kwargs` takes, checked."""
        if type(params) is list:
            known: Any = params[: self._count]
            more: dict[Any, Any] = dict(enumerate(params[self._count :], self._count))
        else:
            known = {name: value for name, value in params.items() if name in self._by_name}
            more = {name: value for name, value in params.items() if name not in self._by_name}
        try:
            return known, dict(zip(more, self._many[further.kind].check([*more.values()], reading), strict=True))
        except ValueError as error:
            at, text = _first_step(str(error))
            raise further.error(text, list(more)[at if isinstance(at, int) else 0]) from None

    def _refusal(self, params: Any, text: str) -> InvalidParams:
        """The error for params that are refused with this text."""
        place, inner = _first_step(text)
        if isinstance(place, int):
            parameter = self._positional[place] if place < self._count else self._rest
        else:
            parameter = None if place is None else self._by_name.get(place, self._others)
        if parameter is not None and place is not None:
            return parameter.error(inner, place)
        name, reason, near = self._wrong_name(params)
        data: dict[str, Any] = {"path": "$", "reason": reason or in_words(text, [], "params")}
        data |= ({} if name is None else {"parameter": name}) | ({"nearest": near} if near else {})
        return InvalidParams(f"Invalid params: {data['reason']}", data)

    def _wrong_name(self, params: Any) -> tuple[str | None, str, list[str]]:
        """The parameter that is unknown or missing, what to say of it, and names like it; None, "" and [] for none."""
        shown = ", ".join(map(repr, self._by_name)) or "none"
        given = params if type(params) is dict else {each.name for each in self._positional[: len(params or ())]}
        if type(params) is list and len(params) > self._count and self._rest is None:
            reason = f"too many, at most {self._count} by position, got {len(params)}; the parameters are {shown}"
            return None, reason, []
        unknown = [name for name in given if name not in self._by_name] if self._others is None else []
        if unknown:
            name = shortened(unknown[0], NAME_MAX)
            near = nearest_for_peer(name, self._by_name)
            return name, f"{name!r} is unknown{did_you_mean(near)}; the parameters are {shown}", near
        missing = [each.name for each in self._by_name.values() if each.required and each.name not in given]
        return (missing[0], f"{missing[0]!r} is missing", []) if missing else (None, "", [])

    # -- compiled at registration -----------------------------------------------------------------------------------

    def _add(self, parameter: Parameter, position: int, *, in_thread: bool) -> None:
        """Add a parameter. TypeError or ValueError if its hint cannot be checked."""
        name, kind, hint = parameter.name, parameter.kind, parameter.annotation
        depends = dependency_of(parameter)
        if depends is not None:
            self.provided.append(Provided(depends, parameter, position))
            return
        if type(parameter.default).__module__ == "pydantic.fields":
            raise TypeError("its default is one of pydantic, which means nothing here: use msgspec.Meta")
        stream = stream_params.stream_hint(hint, self._codec, in_thread=in_thread)
        if stream is not None:
            item, hint = stream
            place = name if kind is Parameter.KEYWORD_ONLY else len(self.parameters)
            self.streams.append((place, self._stream_bind(parameter, item, in_thread=in_thread)))
        if kind in _REST:
            self._many[kind] = CompiledHint(list[hint], self._codec)  # type: ignore[valid-type]
        self.parameters.append(RemoteParameter(name, kind, CompiledHint(hint, self._codec), parameter.default))

    def _stream_bind(self, parameter: Parameter, item_type: Any, *, in_thread: bool) -> Bind:
        """What checks an item of a stream."""
        if parameter.kind in _REST:
            raise TypeError("it stands for many arguments, and cannot be a stream")

        def item(stream: str, value: Any) -> None: ...

        item.__annotations__ = {"stream": str, "value": item_type}
        signature = Signature(item, method=f"{self.method}: parameter {parameter.name!r}", codec=self._codec)
        signature.decode_images(here=0 if in_thread else INLINE_PIXELS, reports=True)
        return signature.bind

    def _read_result(self, returns: Any) -> None:
        """Read what the return hint says, also of the items of a generator, and of what it returns at its end."""
        self.returns, self.check_result = self._result_check(returns)
        kind = type(None) if returns is None else returns
        self.exact_result = kind if isinstance(kind, type) and full_name(kind) in _EXACT else None
        plain = get_args(returns)[0] if get_origin(returns) is Annotated else returns
        item, _, end, *_ = (*(get_args(plain) if is_iterable_hint(plain) else ()), Any, Any, Any)
        self.item, self.check_item = self._result_check(item)
        self.end, self.check_end = self._result_check(end)

    def _result_check(self, hint: Any) -> tuple[CompiledHint, Convert | None]:
        """The compiled hint, and a check of what the function returns; None where there is nothing to check.

        It raises ValueError. What it gives is sent in place of the result: `-> float` sends 1 as 1.0.
        """
        codec, compiled = self._codec, CompiledHint(hint, self._codec)

        def check(result: Any) -> Any:
            try:
                return compiled.check(result, RESULTS)
            except ValueError as error:
                # numpy scalars and the like: what counts is what the caller will read.
                try:
                    return compiled.read(payloads.parse_exactly(codec.dumps(result)), codec.reading())
                except (ValueError, TypeError):
                    said = in_words(str(error), compiled.choices, "result")
                    raise ValueError(f"the result is not what the return hint says: {said}") from None

        return compiled, None if compiled.lowered is Any else check

    @contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        """Name the method, and what of it, where a hint is refused."""
        try:
            yield
        except (NameError, TypeError, ValueError, RecursionError) as error:
            raise RegistrationError(f"{self.method}: {what}: {error}") from error


def _with_exact_integers(params: Any, line: Line) -> Any:
    """The params with every integer as it was sent; the same object where the fast parser has not rounded any."""
    return payloads.parse_exactly(line).get("params") if line and envelope.may_hold_big_integers(line) else params


def _first_step(text: str) -> tuple[int | str | None, str]:
    """The first step of the path at the end of an error's text, None if there is none, and the text without it."""
    head, mark, path = text.rpartition("`$")
    step = _STEP.match(path)
    if step is None:
        return None, text
    return int(step[1]) if step[1] else step[2], head + mark + path[step.end() :]
