"""Classes with typed fields in hints: dataclasses, Structs, TypedDicts, NamedTuples and attrs classes.

Where msgspec cannot check all fields of a class, it checks a Struct with the lowered fields, and the class is made of
that.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import typing
from inspect import Parameter
from math import isfinite
from typing import Annotated, Any, get_args, get_origin

import msgspec

from .codec import Reading
from .markers import Marker, converter, marker
from .schema import TEXT_MAX, schema_of, shortened_text


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
