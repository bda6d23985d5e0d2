"""Type hints, compiled once to functions that check values: msgspec checks what it can, and markers the rest."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import types
import typing
from collections import abc
from collections.abc import Callable
from functools import cached_property
from inspect import Parameter
from math import isfinite
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from .codec import Codec, Reading
from .markers import (
    Marker,
    choice_marker,
    converter,
    has_marker,
    is_known,
    limits,
    marker,
    measured,
    name_of_hint,
    read,
    rich_marker,
    union_of,
    with_metas,
)
from .options import is_measure
from .rich_hint import TEXT_MAX, in_words, schema_of, shortened_text


def has_fields(cls: type) -> bool:
    """Tell whether a class has fields with hints."""
    return (
        dataclasses.is_dataclass(cls)
        or issubclass(cls, msgspec.Struct)
        or typing.is_typeddict(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
        or hasattr(cls, "__attrs_attrs__")
    )


def field_hints(hint: Any) -> dict[str, Any]:
    """Name to hint of the fields of a class; of a generic class with arguments, those in place of its variables."""
    cls = get_origin(hint) or hint
    variables = dict(zip(getattr(cls, "__parameters__", ()), get_args(hint), strict=False))
    hints = typing.get_type_hints(cls, include_extras=True)
    for name, field in hints.items():
        if isinstance(field, typing.TypeVar):
            hints[name] = variables.get(field, field)
        elif variables and (inner := getattr(field, "__parameters__", ())):
            hints[name] = field[tuple(variables.get(variable, variable) for variable in inner)]
    return {name: field for name, field in hints.items() if typing.ClassVar not in (field, get_origin(field))}


def class_marker(marker: Marker, hint: Any, cls: Any, lowered: dict[str, Any]) -> None:
    """Make a marker stand for a class: JSON is checked against a Struct, and an instance is made of that.

    Args:
        hint: the class, perhaps with arguments.
        lowered: the hints of its fields.
    """
    struct, names = _struct_of(cls, lowered), list(_defaults_of(cls))
    convert, is_dict = converter(struct), typing.is_typeddict(cls)

    def decode(value: Any, reading: Reading) -> Any:
        if not is_dict and isinstance(value, cls):
            return value
        values = zip(names, msgspec.structs.astuple(convert(value, reading)), strict=True)
        try:
            return cls(**{name: part for name, part in values if part is not msgspec.UNSET})
        except TypeError as error:  # of its __post_init__, as msgspec takes it
            raise ValueError(str(error)) from None

    extra = {"x-omit-defaults": True} if struct.__struct_config__.omit_defaults else {}
    name = "_".join([cls.__name__, *(getattr(each, "__name__", "") for each in get_args(hint))])
    marker.decode = marker.accept = decode
    marker.schema = lambda components: components.refer(name, hint, lambda: schema_of(struct, components) | extra)


def enum_marker(cls: Any) -> Any:
    """A marker for an Enum, for its schema."""
    schema = lambda components: components.refer(cls.__name__, cls, lambda: schema_of(cls, components))  # noqa: E731
    return marker(cls.__name__, lambda value, _: value, schema)


def _struct_of(cls: Any, lowered: dict[str, Any]) -> Any:
    """A Struct that takes the same JSON as a class, with these hints for its fields."""
    config = getattr(cls, "__struct_config__", None)
    wire_names = dict(
        zip(getattr(cls, "__struct_fields__", ()), getattr(cls, "__struct_encode_fields__", ()), strict=True)
    )
    fields: list[Any] = []
    for name, default in _defaults_of(cls).items():
        options = {} if default is Parameter.empty else {"default": default}
        # A number as its own name, so that it cannot clash with what a Struct has.
        fields.append((f"f{len(fields)}", lowered[name], msgspec.field(name=wire_names.get(name, name), **options)))
    doc = cls.__doc__ or ""
    return msgspec.defstruct(
        cls.__name__,
        fields,
        # A dataclass without a docstring writes one itself.
        namespace={"__doc__": "" if doc.startswith(f"{cls.__name__}(") else shortened_text(doc, TEXT_MAX)},
        kw_only=True,
        array_like=issubclass(cls, tuple) or bool(config and config.array_like),
        forbid_unknown_fields=issubclass(cls, tuple) or bool(config and config.forbid_unknown_fields),
        omit_defaults=bool(config and config.omit_defaults),
        tag=config.tag if config else None,
        tag_field=config.tag_field if config else None,
    )


def _defaults_of(cls: Any) -> dict[str, Any]:
    """The fields that the constructor of a class takes, each with its default.

    The default is `Parameter.empty` for a required field, and UNSET where only the class itself can make it.
    """
    if typing.is_typeddict(cls):
        hints = typing.get_type_hints(cls, include_extras=True)
        return {
            name: Parameter.empty if _is_required(cls, name, hint) else msgspec.UNSET for name, hint in hints.items()
        }
    return {name: _default_of(parameter) for name, parameter in inspect.signature(cls).parameters.items()}


def _is_required(cls: Any, name: str, hint: Any) -> bool:
    # With string annotations the class itself does not see what `NotRequired` says.
    origin = get_origin(get_args(hint)[0] if get_origin(hint) is Annotated else hint)
    return origin is typing.Required or (origin is not typing.NotRequired and name in cls.__required_keys__)


def _default_of(parameter: Parameter) -> Any:
    default = parameter.default
    is_simple = isinstance(default, bool | int | str | enum.Enum) or (isinstance(default, float) and isfinite(default))
    return default if is_simple or default is Parameter.empty else msgspec.UNSET


#: What is an array on the wire whatever it is in Python; a generator's items are returned as one.
_ITERABLES = (
    *(abc.Iterable, abc.Iterator, abc.Generator),
    *(abc.AsyncIterable, abc.AsyncIterator, abc.AsyncGenerator),
)
_UNIONS = (Union, types.UnionType)
#: What a key of a TypedDict may not have: msgspec cannot describe it.
_NOT_IN_KEYS = re.compile(r'["\\\x00-\x1f]')
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


def _module_advice(module: types.ModuleType) -> str:
    """Tell which class to write instead of a module, such as `Image.Image`."""
    name = module.__name__.rpartition(".")[2]
    has_namesake = isinstance(getattr(module, name, None), type)
    return f"the hint is the module {module.__name__}; write {f'{name}.{name}' if has_namesake else 'a class'}"


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
        if isinstance(hint, types.ModuleType):
            raise TypeError(_module_advice(hint))
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
            if wrong := next(filter(_NOT_IN_KEYS.search, lowered), None):
                raise TypeError(f"{cls.__name__}: the key {wrong!r} has a quote, a backslash or a control character")
            if is_marked:
                class_marker(made, hint, cls, lowered)
            elif self.is_changed or not is_known(hint):
                self._unchecked.add(hint)
            self.is_changed = outside
        self.is_changed = self.is_changed or hint in self._unchecked
        return self._classes[hint]
