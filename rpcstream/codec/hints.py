"""Type hints, compiled once to functions that check values: msgspec checks what it can, and markers the rest."""

from __future__ import annotations

import types
import typing
from collections import abc
from collections.abc import Callable
from functools import cached_property
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from .classes import class_marker, enum_marker, field_hints, has_fields
from .codec import Codec, Reading
from .constraints import limits, measured, read, with_metas
from .error_text import in_words
from .markers import Marker, choice_marker, converter, has_marker, is_known, name_of_hint, rich_marker, union_of
from .options import is_measure

#: What is an array on the wire whatever it is in Python; a generator's items are returned as one.
_ITERABLES = (
    *(abc.Iterable, abc.Iterator, abc.Generator),
    *(abc.AsyncIterable, abc.AsyncIterator, abc.AsyncGenerator),
)
_UNIONS = (Union, types.UnionType)
_QUALIFIERS = (typing.Required, typing.NotRequired, typing.Final)
#: What JSON Schema's formats say of dates and times with a zone; without one, it has no format.
_TIMES = {msgspec.inspect.DateTimeType: "date-time", msgspec.inspect.TimeType: "time"}


class CompiledHint:
    """A hint, compiled to check values.

    Args:
        hint: anything that may stand behind `name:` in a signature.
        codec: knows the rich types.

    Attributes:
        lowered: the hint as msgspec can check it.
        is_plain: msgspec checks all of it.
        check: gives what the hint means for a value whose tagged objects are decoded. Raises ValueError; the text says
            what was expected, and ends with the path.
        left: the tags of objects that are not decoded before `check`; None if a part takes any value.
        choices: the values of the enum or Literal in the hint; [] if there are several of these, or none.

    Raises:
        TypeError: the hint, or a part of it, cannot be checked.
    """

    def __init__(self, hint: Any, codec: Codec) -> None:
        self._hint, self._codec = hint, codec
        walk = _Walk(codec)
        self.lowered = walk.lower(hint)
        msgspec.inspect.type_info(self.lowered)
        self.is_plain = not (walk.has_keys or has_marker(self.lowered))
        self.check = converter(self.lowered, is_plain=self.is_plain)
        self.left = None if walk.is_untyped else frozenset(walk.tags)
        self.choices: list[Any] = walk.choices[0] if len(walk.choices) == 1 else []

    def read(self, value: Any, reading: Reading) -> Any:
        """`check` for JSON data with tagged objects."""
        return self.check(self._codec.decode(value, reading, self.left) if reading.is_tagged else value, reading)

    @cached_property
    def described(self) -> Any:
        """The hint as `schema_of` takes it."""
        return _Walk(self._codec, is_described=True).lower(self._hint)


def hint_checker(hint: Any, codec: Codec) -> Callable[..., Any]:
    """Make a function that checks a value whose tagged objects are decoded, such as a result at a client.

    The function takes the value and the reading of its message, and raises ValueError; the text says what was expected
    and where.

    Raises:
        TypeError: the hint cannot be checked.
    """
    compiled = CompiledHint(hint, codec)

    def check(value: Any, reading: Reading | None = None) -> Any:
        try:
            return compiled.check(value, reading or codec.reading())
        except ValueError as error:
            raise ValueError(in_words(str(error), compiled.choices, "result")) from None

    return check


def is_iterable_hint(hint: Any) -> bool:
    """True for the hint of a generator or an iterable."""
    return (get_origin(hint) or hint) in _ITERABLES


def item_hint(hint: Any) -> Any:
    """The hint of the items of a generator or iterable; Any if there is none."""
    return (get_args(hint) or (Any,))[0]


def expanded(hint: Any) -> Any:
    """Resolve NewTypes and `type` aliases (Python 3.12), with their arguments; numpy's NDArray is one there."""
    if hasattr(hint, "__supertype__"):
        return expanded(hint.__supertype__)
    origin = get_origin(hint)
    alias = hint if origin is None else origin
    if type(alias).__name__ != "TypeAliasType":
        return hint
    return expanded(alias.__value__ if origin is None else alias.__value__[get_args(hint)])


class _Walk:
    """One walk over a hint, which replaces by markers what msgspec does not check, or not as the hint says.

    Args:
        is_described: for a schema: each class and enum becomes a marker.

    Attributes:
        is_changed: msgspec does not check the hint by itself as it is.
        has_keys: a dict has keys that are no strings.
        is_untyped: a part takes any value.
        tags: of the tagged objects that rich types in it read themselves.
        choices: the values of each enum and Literal in it.
    """

    is_changed = has_keys = is_untyped = False

    def __init__(self, codec: Codec, *, is_described: bool = False) -> None:
        self._codec = codec
        self._is_described = is_described
        #: The classes with fields that msgspec does not check by itself.
        self._unchecked: set[Any] = set()

    def lower(self, hint: Any) -> Any:
        """The hint as msgspec can check it. TypeError if there is a part that cannot be checked."""
        before = -1
        # A class that is found to need a marker needs one everywhere, also where it refers to itself.
        while before < len(self._unchecked):
            before = len(self._unchecked)
            self.tags: set[str] = set()
            self.choices: list[list[Any]] = []
            self._classes: dict[Any, Any] = {}
            lowered = self._lower(hint)
        return lowered

    def _lower(self, hint: Any) -> Any:
        if hint is object or hint is Any:
            self.is_untyped = True
            return Any
        if isinstance(hint, Marker):
            return self._marker(hint)
        hint = expanded(hint)
        origin, arguments = get_origin(hint), get_args(hint)
        cls = origin or hint
        if origin is Annotated:
            return self._annotated(expanded(arguments[0]), arguments[1:])
        if origin in _QUALIFIERS:
            return self._lower(arguments[0])
        if isinstance(hint, typing.TypeVar):
            return self._union(hint.__constraints__ or (hint.__bound__ or Any,))
        if origin in _UNIONS:
            return self._union(arguments)
        if isinstance(cls, type) and (found := self._codec.rich_type(cls)) is not None:
            return self._marker(rich_marker(found.function("hint")(hint)))
        if isinstance(cls, type) and has_fields(cls):
            return self._class(hint, cls)
        if cls in _ITERABLES:
            self.is_changed = True
            return list[self._lower(item_hint(hint))]  # type: ignore[misc]
        return self._plain(hint, cls, arguments)

    def _plain(self, hint: Any, cls: Any, arguments: tuple[Any, ...]) -> Any:
        """What is none of our own, and may have hints in it."""
        info = msgspec.inspect.type_info(hint if cls is typing.Literal else cls)
        if isinstance(info, msgspec.inspect.CustomType | msgspec.inspect.RawType | msgspec.inspect.ExtType):
            raise TypeError(
                f"there is no way to check a value against {name_of_hint(cls)}; "
                "use a dataclass, a msgspec.Struct or a type registered with the codec"
            )
        if cls is typing.Literal:
            self.choices.append(list(arguments))
            return hint
        if isinstance(info, msgspec.inspect.EnumType):
            self.choices.append([member.value for member in cls])
            return enum_marker(cls) if self._is_described else cls
        if type(info) in _TIMES:
            return Annotated[hint, msgspec.Meta(extra_json_schema={"x-format": _TIMES[type(info)]})]
        if not arguments:
            self.is_untyped = self.is_untyped or hasattr(info, "item_type") or hasattr(info, "key_type")
            return hint
        self.has_keys = self.has_keys or (issubclass(cls, abc.Mapping) and arguments[0] is not str)
        return cls[tuple(each if each is Ellipsis else self._lower(each) for each in arguments)]

    def _marker(self, marker: Any) -> Any:
        self.is_changed = True
        self.is_untyped = self.is_untyped or marker.left is None
        self.tags |= marker.left or frozenset()
        return marker

    def _annotated(self, inner: Any, metadata: tuple[Any, ...]) -> Any:
        measures = [each for each in metadata if is_measure(each)]
        metas = read(each for each in metadata if not is_measure(each))
        constraints = [meta for meta in metas if limits(meta)]
        # msgspec sees its own constraints also in the fields of a class.
        self.is_changed = self.is_changed or not all(any(meta is each for each in metadata) for meta in constraints)
        if constraints and get_origin(inner) in _UNIONS:
            # Each member must have the constraints; null has none.
            inner = union_of(
                each if each in (None, type(None)) else Annotated[(each, *constraints)] for each in get_args(inner)
            )
            metas = [meta for meta in metas if meta not in constraints]
        if measures:
            return with_metas(self._marker(rich_marker(measured(inner, measures, self._codec))), metas)
        return with_metas(self._lower(inner), metas)

    def _union(self, hints: tuple[Any, ...]) -> Any:
        members = [self._lower(member) for member in hints]
        if Any in members:
            return Any
        union = union_of(members)
        # Of two members of one type msgspec mixes the constraints; a str with a pattern and, say, a list crash it.
        others = [each for each in members if each not in (None, type(None))]
        is_limited = any(limits(meta) for each in others for meta in getattr(each, "__metadata__", ()))
        if not (is_limited and len(others) > 1) and is_known(union):
            return union
        self.is_changed = True
        return choice_marker(members)

    def _class(self, hint: Any, cls: Any) -> Any:
        """A class with typed fields: the class itself if msgspec checks all that its fields say, else a marker."""
        if hint not in self._classes:
            is_marked = self._is_described or hint in self._unchecked
            # There before its fields are lowered, since they may name the class itself.
            made = self._classes[hint] = Marker(cls.__name__, (), {}) if is_marked else hint
            outside, self.is_changed = self.is_changed, False
            lowered = {name: self._lower(field) for name, field in field_hints(hint).items()}
            if is_marked:
                class_marker(made, hint, cls, lowered)
            elif self.is_changed or not is_known(hint):
                self._unchecked.add(hint)
            self.is_changed = outside
        self.is_changed = self.is_changed or hint in self._unchecked
        return self._classes[hint]
