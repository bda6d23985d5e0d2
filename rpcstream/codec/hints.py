"""Type hints to validators: hints with arrays, images or classes of the user are lowered to what msgspec can check.

msgspec checks plain hints by itself, in C. Lowering replaces each rich type, each union that msgspec does not support
and each class with such a field by a marker (see `markers`). Knows no method and no message.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from .error_text import in_words
from .fields import OPTIONAL, expanded, field_hints, fields_of, has_fields, required
from .find_hint import RegisteredHint
from .image_budget import image_budget
from .markers import Convert, Marker, check_lowered, converter, marker, name_of_hint
from .registry import TAG_KEY, Codec
from .rich_hint import RichHint
from .schema import schema_of

#: The name of the rich hint for images.
IMAGE = "image"

#: How msgspec says that null came in the place of a float, or of what else a union with float takes.
_NULL_FOR_FLOAT = re.compile(r"Expected `(?:[^`]*\| )?(?:float|float(?:16|32|64)|floating)(?: \|[^`]*)?`, got `null`")

#: What is an array on the wire whatever it is in Python; a generator's items are returned as one.
_ITERABLES = (Iterable, Iterator, Generator, AsyncIterable, AsyncIterator, AsyncGenerator)


def lower(hint: Any, codec: Codec, *, result: bool = False) -> Any:
    """The hint as msgspec can check it.

    Args:
        hint: anything that may stand behind `name:` in a signature.
        codec: knows the rich types.
        result: the value to check is what a handler returned, not what came over the wire: a rich value may then be
            anything that goes out as that type.

    Raises:
        TypeError: the hint, or a part of it, cannot be checked.
    """
    lowered = _Lowering(codec, result).lower(hint)
    check_lowered(lowered)
    return lowered


def is_iterable_hint(hint: Any) -> bool:
    """True for the hint of a generator or an iterable."""
    return (get_origin(hint) or hint) in _ITERABLES


def item_hint(hint: Any) -> Any:
    """The hint of the items of a generator or iterable; Any if there is none."""
    return (get_args(hint) or (Any,))[0]


def takes_images(hint: Any, codec: Codec) -> bool:
    """True if the hint names a type whose values may hold an image."""
    return _names_rich_type(hint, codec, set(), lambda rich: rich.name == IMAGE or isinstance(rich, RegisteredHint))


def hint_checker(hint: Any, codec: Codec) -> Convert:
    """Make a function that checks a value that is already decoded, such as a result at a client.

    The function raises ValueError; the text says what was expected and where.

    Raises:
        TypeError: the hint cannot be checked.
    """
    lowered = lower(hint, codec)
    convert = converter(lowered)

    def check(value: Any) -> Any:
        try:
            return convert(value)
        except msgspec.ValidationError as error:
            raise ValueError(in_words(_with_nan_advice(str(error)), lowered, "result")) from None

    if not takes_images(hint, codec):
        return check

    def check_images(value: Any) -> Any:
        """Check a value in which images may still be plain base64."""
        with image_budget(codec.image_limits):
            return check(value)

    return check_images


def _with_nan_advice(text: str) -> str:
    """Say how a NaN is read, where null came in the place of a float: that is how a peer sends it."""
    return _NULL_FOR_FLOAT.sub(
        r"\g<0> (which is how NaN and the infinities come; ask for `float | None`, or have them sent in an array)", text
    )


class _Lowering:
    """Lowers one hint, with the classes that it names."""

    def __init__(self, codec: Codec, result: bool) -> None:
        self._codec = codec
        self._result = result
        #: Of classes that need one.
        self._markers: dict[Any, Any] = {}

    def lower(self, hint: Any) -> Any:
        if hint is inspect.Parameter.empty or hint is object or hint is Any:
            return Any
        if isinstance(hint, str | typing.ForwardRef):
            raise TypeError(f"the name {hint!r} in the hint could not be resolved")
        hint = expanded(hint)
        rich = self._codec.rich_hint(hint)
        if rich is not None:
            return marker(rich.name, rich.accept if self._result else rich.decode, lambda _: rich.schema())
        if isinstance(hint, typing.TypeVar):
            return self.lower(hint.__bound__ or Any)
        if hasattr(hint, "__supertype__"):  # NewType
            return self.lower(hint.__supertype__)
        origin = get_origin(hint)
        if origin is Annotated:
            return self._annotated(hint)
        if origin in (Union, types.UnionType):
            return self._union(hint)
        if origin is not None and origin is not typing.Literal:
            return self._container(hint, origin)
        if isinstance(hint, type) and has_fields(hint):
            return self._fields(hint)
        return hint

    def _annotated(self, hint: Any) -> Any:
        inner, *metadata = get_args(hint)
        lowered = self.lower(inner)
        metas = tuple(meta for meta in metadata if isinstance(meta, msgspec.Meta))
        if not metas:
            return lowered
        if not isinstance(lowered, Marker):
            return Annotated[(lowered, *metas)]
        # Constraints on a rich type (the length of bytes, say) are for msgspec once the value is there.
        limited, decode = Annotated[(inner, *metas)], lowered.decode
        msgspec.inspect.type_info(limited)

        def decode_limited(value: Any) -> Any:
            try:
                return msgspec.convert(decode(value), limited)
            except msgspec.ValidationError as error:
                raise ValueError(str(error)) from None

        return marker(lowered.__name__, decode_limited, lowered.schema)

    def _union(self, hint: Any) -> Any:
        members = [self.lower(member) for member in get_args(hint)]
        if Any in members:
            return Any
        union = _union_of(members)
        try:
            msgspec.inspect.type_info(union)
        except TypeError:
            return self._choice(members)
        return union

    def _choice(self, members: list[Any]) -> Any:
        """A union that msgspec does not support: the first member that fits; plain ones first for untagged values."""
        for member in members:
            check_lowered(member)
        rich = [member for member in members if isinstance(member, Marker)]
        plain = [member for member in members if not isinstance(member, Marker)]
        by_tag = [converter(member) for member in rich + plain]
        by_value = [converter(member) for member in plain + rich]
        name = " | ".join(name_of_hint(member) for member in members)

        def decode(value: Any) -> Any:
            for convert in by_tag if type(value) is dict and TAG_KEY in value else by_value:
                try:
                    return convert(value)
                except msgspec.ValidationError:
                    pass
            raise ValueError(f"Expected `{name}`, got `{_json_name(value)}`")

        return marker(name, decode, lambda components: _any_of(members, components))

    def _container(self, hint: Any, origin: Any) -> Any:
        arguments = get_args(hint)
        if origin in _ITERABLES:
            return list[self.lower(arguments[0])]  # type: ignore[misc]
        lowered = tuple(argument if argument is Ellipsis else self.lower(argument) for argument in arguments)
        if all(new is old for new, old in zip(lowered, arguments, strict=True)):
            return self._fields(hint) if isinstance(origin, type) and has_fields(origin) else hint
        return origin[lowered]

    def _fields(self, hint: Any) -> Any:
        """A class with typed fields: the class itself if msgspec can check all fields, else a marker for it."""
        if hint in self._markers:
            return self._markers[hint]
        if not _names_rich_type(hint, self._codec, set(), lambda _: True) and _is_known(hint):
            return hint
        # There before its fields are looked at, since they may name the class itself.
        made = self._markers[hint] = marker((get_origin(hint) or hint).__name__, _unset, lambda _: {})
        try:
            shadow = _shadow(hint, {name: self.lower(field) for name, field in field_hints(hint).items()})
        except BaseException:
            del self._markers[hint]
            raise
        made.decode, made.schema, made.stands_for = shadow.decode, shadow.schema, shadow.stands_for
        return made


def _names_rich_type(hint: Any, codec: Codec, seen: set[Any], wanted: Callable[[RichHint], bool]) -> bool:
    """True if the hint names a rich type that is `wanted`, at any depth, fields of classes included."""
    hint = required(expanded(hint))
    if isinstance(hint, typing.TypeVar | str) or hint is Ellipsis or get_origin(hint) is typing.Literal:
        return False
    rich = codec.rich_hint(hint)
    if rich is not None:
        return wanted(rich)
    origin = get_origin(hint)
    if any(_names_rich_type(argument, codec, seen, wanted) for argument in get_args(hint) if origin is not Annotated):
        return True
    if origin is Annotated:
        return _names_rich_type(get_args(hint)[0], codec, seen, wanted)
    if hasattr(hint, "__supertype__"):  # NewType
        return _names_rich_type(hint.__supertype__, codec, seen, wanted)
    cls = origin or hint
    if not isinstance(cls, type) or not has_fields(cls) or hint in seen:
        return False
    seen.add(hint)
    return any(_names_rich_type(field, codec, seen, wanted) for field in field_hints(hint).values())


def _is_known(hint: Any) -> bool:
    """True if msgspec can check the class with all its fields."""
    try:
        msgspec.inspect.type_info(hint)
    except TypeError:
        return False
    return True


def _unset(value: Any) -> Any:
    raise AssertionError("a marker was used before it was made")


def _shadow(hint: Any, lowered: dict[str, Any]) -> Any:
    """A marker for a class: its values are checked against a Struct with the lowered fields, then built."""
    cls = get_origin(hint) or hint
    config = getattr(cls, "__struct_config__", None)
    is_dict, is_tuple = typing.is_typeddict(cls), issubclass(cls, tuple)
    fields = fields_of(cls)
    shadow = msgspec.defstruct(
        cls.__name__,
        [
            (
                f"field{position}",
                _or_unset(lowered[field.name]) if field.default == OPTIONAL else lowered[field.name],
                msgspec.field(name=field.encode_name, **field.default),
            )
            for position, field in enumerate(fields)
        ],
        kw_only=True,
        array_like=is_tuple or bool(config and config.array_like),
        forbid_unknown_fields=bool(config and config.forbid_unknown_fields),
        tag=config.tag if config else None,
        tag_field=config.tag_field if config else None,
    )
    convert = converter(shadow)

    def decode(value: Any) -> Any:
        if not is_dict and isinstance(value, cls):
            return value
        try:
            checked = msgspec.structs.astuple(convert(value))
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None
        if is_tuple:
            return cls(*checked)
        parts = zip(fields, checked, strict=True)
        try:
            return cls(**{field.name: part for field, part in parts if part is not msgspec.UNSET})
        except TypeError as error:  # its __post_init__ refuses it, as msgspec takes it
            raise ValueError(str(error)) from None

    return marker(cls.__name__, decode, lambda components: schema_of(shadow, components), stands_for=shadow)


def _any_of(members: list[Any], components: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema_of(member, components) for member in members]}


def _union_of(members: list[Any]) -> Any:
    return Union.__getitem__(tuple(members))  # `|` cannot be written for a list of members


def _or_unset(lowered: Any) -> Any:
    return _union_of([lowered, msgspec.UnsetType])


def _json_name(value: Any) -> str:
    names = {dict: "object", list: "array", type(None): "null"}
    return names.get(type(value), type(value).__name__)
