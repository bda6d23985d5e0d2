"""Type hints to validators: hints with arrays, images or classes of the user are lowered to what msgspec can check.

msgspec checks plain hints by itself, in C. Lowering replaces each rich type, each union that msgspec does not support
and each class with such a field by a marker (see `markers`). Knows no method and no message.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from .constraints import is_constraint, limited, read
from .error_text import in_words
from .fields import expanded, field_hints, has_fields, required
from .find_hint import RegisteredHint
from .image_budget import image_budget
from .lowered import (
    any_of,
    decoder_of,
    merged,
    shadow_of,
    told_by,
    union_of,
    with_schema,
)
from .markers import Convert, Marker, check_lowered, converter, marker, name_of_hint
from .options import is_measure
from .registry import TAG_KEY, Codec
from .rich_hint import HasSchemaParts, RichHint
from .schema import Components

#: The name of the rich hint for images.
IMAGE = "image"

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
    """True if the hint names a type whose values may hold an image, or a table: what has a budget (`image_budget`)."""
    return any(
        rich is not None and (rich.name == IMAGE or isinstance(rich, RegisteredHint) or hasattr(rich, "takes_budget"))
        for _, rich in _contents(hint, codec, set())
    )


def needs_exact_integers(hint: Any, codec: Codec) -> bool:
    """True if the hint names a type whose integers are read elsewhere, so that they must come as they were sent."""
    return any(getattr(rich, "needs_exact_integers", False) for _, rich in _contents(hint, codec, set()))


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
            raise ValueError(in_words(str(error), lowered, "result")) from None

    if not takes_images(hint, codec):
        return check

    def check_images(value: Any) -> Any:
        """Check a value in which images may still be plain base64."""
        with image_budget(codec.image_limits):
            return check(value)

    return check_images


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
        if get_origin(hint) is Annotated:
            return self._annotated(hint)
        rich = self._codec.rich_hint(hint)
        if rich is not None:
            return self._rich(hint, rich)
        if isinstance(hint, typing.TypeVar):
            return self._union(hint.__constraints__) if hint.__constraints__ else self.lower(hint.__bound__ or Any)
        if hasattr(hint, "__supertype__"):  # NewType
            return self.lower(hint.__supertype__)
        origin = get_origin(hint)
        if origin in (Union, types.UnionType):
            return self._union(get_args(hint))
        if origin is not None and origin is not typing.Literal:
            return self._container(hint, origin)
        if isinstance(hint, type) and has_fields(hint):
            return self._fields(hint)
        return hint

    def _rich(self, hint: Any, rich: RichHint) -> Any:
        decode = rich.accept if self._result else rich.decode
        return marker(rich.name, decode, lambda components: _rich_schema(rich, components))

    def _annotated(self, hint: Any) -> Any:
        inner, *metadata = get_args(hint)
        inner = expanded(inner)
        constraints = [each for each in metadata if is_constraint(each)]
        if constraints and get_origin(inner) in (Union, types.UnionType):
            # Each member must have the constraints; null has none.
            members = [
                each if each in (None, type(None)) else Annotated[(each, *constraints)] for each in get_args(inner)
            ]
            inner, metadata = union_of(members), [each for each in metadata if each not in constraints]
        measures = [each for each in metadata if is_measure(each)]
        if measures and (rich := self._codec.rich_hint(Annotated[(inner, *measures)])):
            lowered = self._rich(expanded(inner), rich)
        else:
            lowered = self.lower(inner)
        found = read([each for each in metadata if not is_measure(each)], self._codec.ignored_metadata)
        for constraint in found.constraints:
            lowered = limited(lowered, constraint)
        return with_schema(lowered, found.schema) if found.schema else lowered

    def _union(self, hints: tuple[Any, ...]) -> Any:
        return self._joined([self.lower(member) for member in hints])

    def _joined(self, members: list[Any]) -> Any:
        """A union of lowered hints."""
        if any(member is Any for member in members):
            return Any
        union = union_of(members)
        try:
            if _is_unsafe(members):
                return self._choice(members)
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
        if not _is_unsafe(plain):
            plain = merged(plain)
        # An image takes tagged bytes, too: after bytes themselves.
        images_last = sorted(rich, key=lambda member: name_of_hint(member) == "image")
        by_tag = [decoder_of(member) for member in images_last + plain]
        by_value = [decoder_of(member) for member in plain + rich]
        name = " | ".join(name_of_hint(member) for member in members)

        def decode(value: Any) -> Any:
            told = f"Expected `{name}`, got `{_json_name(value)}`"
            for convert in by_tag if type(value) is dict and TAG_KEY in value else by_value:
                try:
                    return convert(value)
                except ValueError as error:
                    text = str(error)
                    if text.startswith("Expected `") and ", got `" not in text:  # the type fits, a constraint does not
                        told = text
            raise ValueError(told)

        return marker(name, decode, lambda components: any_of(members, components))

    def _container(self, hint: Any, origin: Any) -> Any:
        arguments = get_args(hint)
        if origin in _ITERABLES:
            return list[self.lower(arguments[0])]  # type: ignore[misc]
        if isinstance(origin, type) and has_fields(origin):
            return self._fields(hint)
        lowered = tuple(argument if argument is Ellipsis else self.lower(argument) for argument in arguments)
        return hint if all(new is old for new, old in zip(lowered, arguments, strict=True)) else origin[lowered]

    def _fields(self, hint: Any) -> Any:
        """A class with typed fields: the class itself if msgspec checks all that its fields say, else a marker."""
        if hint in self._markers:
            return self._markers[hint]
        cls = get_origin(hint) or hint
        found = {kind for kind, _ in _contents(hint, self._codec, set())}
        native = "check" not in found and "rich" not in found and _is_known(hint)
        if native and "description" not in found:
            return hint
        # There before its fields are looked at, since they may name the class itself.
        made = self._markers[hint] = marker(cls.__name__, _unset, lambda _: {})
        try:
            shadow = shadow_of(hint, {name: self.lower(field) for name, field in field_hints(hint).items()})
        except BaseException:
            del self._markers[hint]
            raise
        made.decode = told_by(converter(hint)) if native else shadow.decode
        made.schema, made.stands_for = shadow.schema, shadow.stands_for
        return made


def _rich_schema(rich: RichHint, components: Components) -> dict[str, Any]:
    """The JSON schema of a rich type: a component, where it has a name for one."""
    if isinstance(rich, HasSchemaParts):
        return rich.schema_in(components)
    return rich.schema() if rich.component is None else components.refer(rich.component, rich.schema())


def _contents(hint: Any, codec: Codec, seen: set[Any]) -> Iterator[tuple[str, RichHint | None]]:
    """What is in a hint at any depth, fields of classes included, that msgspec may not see to by itself.

    Yields:
        "rich" with the rich type; "check" for what msgspec does not check; "description" for what it does not show.
    """
    hint = required(expanded(hint))
    if isinstance(hint, typing.TypeVar):
        for choice in hint.__constraints__:
            yield "check", None
            yield from _contents(choice, codec, seen)
        return
    if isinstance(hint, str) or hint is Ellipsis or get_origin(hint) is typing.Literal:
        return
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *metadata = get_args(hint)
        yield from _beside(metadata, codec)
        yield from _contents(inner, codec, seen)
        return
    if (rich := codec.rich_hint(hint)) is not None:
        yield "rich", rich
        return
    if origin in _ITERABLES or (origin in (Union, types.UnionType) and _is_unsafe(get_args(hint))):
        yield "check", None
    for argument in get_args(hint):
        yield from _contents(argument, codec, seen)
    if hasattr(hint, "__supertype__"):  # NewType
        yield from _contents(hint.__supertype__, codec, seen)
    cls = origin or hint
    if isinstance(cls, type) and has_fields(cls) and hint not in seen:
        seen.add(hint)
        for field in field_hints(hint).values():
            yield from _contents(field, codec, seen)


def _is_unsafe(members: Iterable[Any]) -> bool:
    """True for a union that msgspec (0.22) takes and does not check rightly.

    Of two members of one type it mixes the constraints; a str with a pattern and, say, a list with items crash it.
    """
    plain = [expanded(each) for each in members if each not in (None, type(None))]
    return len(plain) > 1 and any(get_origin(each) is Annotated for each in plain)


def _beside(metadata: list[Any], codec: Codec) -> Iterator[tuple[str, None]]:
    """What stands beside one type, as `_contents` calls it."""
    found = read(
        [each for each in metadata if not (isinstance(each, msgspec.Meta) or is_measure(each))], codec.ignored_metadata
    )
    if found.constraints:
        yield "check", None
    if found.schema:
        yield "description", None


def _is_known(hint: Any) -> bool:
    """True if msgspec can check the class with all its fields."""
    try:
        msgspec.inspect.type_info(hint)
    except TypeError:
        return False
    return True


def _unset(value: Any) -> Any:
    raise AssertionError("a marker was used before it was made")


def _json_name(value: Any) -> str:
    names = {dict: "object", list: "array", type(None): "null"}
    return names.get(type(value), type(value).__name__)
