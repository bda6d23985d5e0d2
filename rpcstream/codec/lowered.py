"""Markers made of lowered hints: classes checked field by field, constraints, descriptions, members of unions.

What is made here stands in a lowered hint for what msgspec cannot check by itself. Knows neither hints as they are
written nor the codec.
"""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from .constraints import Constraint, kind_of
from .fields import OPTIONAL, fields_of
from .markers import Convert, Marker, converter, marker, name_of_hint
from .schema import SCHEMA_REF, Components, schema_of


def shadow_of(hint: Any, lowered: dict[str, Any], *, checks_objects: bool) -> Any:
    """A marker for a class: its values are checked against a Struct with the lowered fields, then built.

    Args:
        checks_objects: the fields of what is an object of the class already are checked as well.
    """
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
    convert = told_by(converter(shadow))
    convert_each = [(field.name, told_by(converter(lowered[field.name]))) for field in fields] if checks_objects else []

    def decode(value: Any) -> Any:
        if not is_dict and isinstance(value, cls):
            for name, convert_field in convert_each:
                try:
                    convert_field(getattr(value, name))
                except (ValueError, AttributeError) as error:
                    raise ValueError(f"{error} - at `$.{name}`") from None
            return value
        checked = msgspec.structs.astuple(convert(value))
        if is_tuple:
            return cls(*checked)
        parts = zip(fields, checked, strict=True)
        try:
            return cls(**{field.name: part for field, part in parts if part is not msgspec.UNSET})
        except TypeError as error:  # its __post_init__ refuses it, as msgspec takes it
            raise ValueError(str(error)) from None

    def schema(components: Components) -> dict[str, Any]:
        name = components.name_of(hint)
        if name is None:  # else it is there, or on its way: a field names the class itself
            name = components.take(cls.__name__, hint)
            try:
                schema_of(shadow, components, name=name)
            except BaseException:
                components.give_back(hint)
                raise
        return {"$ref": SCHEMA_REF.format(name=name)}

    return marker(cls.__name__, decode, schema, kind=cls, stands_for=shadow)


def checked(lowered: Any, constraints: list[Constraint]) -> Any:
    """A marker for values of a lowered hint that keep these constraints as well.

    Raises:
        TypeError: no value can be held against one of them.
    """
    for constraint in constraints:
        constraint.check_fits(lowered)
    tests = [(constraint.test(), constraint.text) for constraint in constraints]
    name, convert = name_of_hint(lowered), decoder_of(lowered)

    def decode(value: Any) -> Any:
        value = convert(value)
        for test, text in tests:
            try:
                is_kept = test(value)
            except ArithmeticError:  # Decimal's NaN
                is_kept = False
            if not is_kept:
                raise ValueError(f"Expected `{name}` {text}")
        return value

    made = marker(
        name, decode, lambda components: schema_of(lowered, components), kind=kind_of(lowered), stands_for=lowered
    )
    return with_schema(made, {"x-constraints": [text for _, text in tests]})


def with_schema(lowered: Any, members: dict[str, Any]) -> Any:
    """The lowered hint with these members in its JSON schema; the constraints of both."""
    if not isinstance(lowered, Marker):
        known = {name: members[name] for name in ("title", "description", "examples") if name in members}
        others = {name: value for name, value in members.items() if name not in known}
        return Annotated[(lowered, msgspec.Meta(**known, extra_json_schema=others or None))]

    def schema(components: Components) -> dict[str, Any]:
        inner = lowered.schema(components)
        texts = [*inner.get("x-constraints", ()), *members.get("x-constraints", ())]
        return {**inner, **members, **({"x-constraints": texts} if texts else {})}

    return marker(
        lowered.__name__,
        decoder_of(lowered),
        schema,
        kind=lowered.kind,
        stands_for=lowered,
        choices=lowered.choices,
        at_once=lowered.at_once,
    )


def list_of(item: Any) -> Any:
    """A lowered list of items of a lowered hint: checked at once where its marker can do so, or each by itself."""
    plain = list[item]
    if not isinstance(item, Marker) or item.at_once is None:
        return plain
    convert, at_once = told_by(converter(plain)), item.at_once

    def decode(value: Any) -> Any:
        made = at_once(value) if type(value) is list else None
        return convert(value) if made is None else made

    return marker("array", decode, lambda components: schema_of(plain, components), kind=list, stands_for=plain)


def any_of(members: list[Any], components: Components) -> dict[str, Any]:
    """The JSON schema of a union of lowered hints."""
    return {"anyOf": [schema_of(member, components) for member in members]}


def members_of(lowered: Any) -> tuple[Any, ...]:
    """The members of a lowered union; none of another hint."""
    if isinstance(lowered, Marker):
        return lowered.choices
    if get_origin(lowered) is Annotated:
        return members_of(get_args(lowered)[0])
    return get_args(lowered) if get_origin(lowered) in (Union, types.UnionType) else ()


def union_of(members: list[Any]) -> Any:
    """A union of lowered hints, as `typing` makes it."""
    return Union.__getitem__(tuple(members))  # `|` cannot be written for a list of members


def _or_unset(lowered: Any) -> Any:
    return union_of([lowered, msgspec.UnsetType])


def merged(members: list[Any]) -> list[Any]:
    """These members of a union as one, where msgspec checks that at once."""
    if len(members) > 1:
        try:
            msgspec.inspect.type_info(union_of(members))
        except TypeError:
            return members
        return [union_of(members)]
    return members


def told_by(convert: Convert) -> Convert:
    """The same converter with ValueErrors in place of msgspec's."""

    def told(value: Any) -> Any:
        try:
            return convert(value)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None

    return told


def decoder_of(lowered: Any) -> Convert:
    """Converts a value as the lowered hint says; a marker that is not finished yet is used as it will be."""
    if isinstance(lowered, Marker):
        return lambda value: lowered.decode(value)  # noqa: PLW0108 (it may not be finished yet)
    return told_by(converter(lowered))
