"""Markers made of lowered hints: classes checked field by field, constraints, descriptions, members of unions.

What is made here stands in a lowered hint for what msgspec cannot check by itself. Knows neither hints as they are
written nor the codec.
"""

from __future__ import annotations

import typing
from typing import Annotated, Any, Union, get_origin

import msgspec

from .fields import OPTIONAL, fields_of
from .markers import Convert, Marker, converter, marker
from .schema import SCHEMA_REF, Components, schema_of


def shadow_of(hint: Any, lowered: dict[str, Any]) -> Any:
    """A marker for a class: its values are checked against a Struct with the lowered fields, then built.

    An object of the class is taken as it is.
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

    def decode(value: Any) -> Any:
        if not is_dict and isinstance(value, cls):
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

    return marker(cls.__name__, decode, schema, stands_for=shadow)


def with_schema(lowered: Any, members: dict[str, Any]) -> Any:
    """The lowered hint with these members in its JSON schema."""
    if not isinstance(lowered, Marker):
        known = {name: members[name] for name in ("title", "description", "examples") if name in members}
        others = {name: value for name, value in members.items() if name not in known}
        return Annotated[(lowered, msgspec.Meta(**known, extra_json_schema=others or None))]

    def schema(components: Components) -> dict[str, Any]:
        inner = lowered.schema(components)
        return {**inner, **members}

    return marker(lowered.__name__, decoder_of(lowered), schema, stands_for=lowered)


def any_of(members: list[Any], components: Components) -> dict[str, Any]:
    """The JSON schema of a union of lowered hints."""
    return {"anyOf": [schema_of(member, components) for member in members]}


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
