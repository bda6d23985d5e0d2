"""Classes with typed fields: the names, hints and defaults of the fields.

Dataclasses, msgspec Structs, TypedDicts, NamedTuples and attrs classes look alike from here. Knows nothing of rich
types and of how a field is checked.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import msgspec


class Field(NamedTuple):
    """A field of a class: its name, its name on the wire, and its default, as arguments of `msgspec.field`."""

    name: str
    encode_name: str
    default: dict[str, Any]


#: The default of a member that a TypedDict may leave out.
OPTIONAL: dict[str, Any] = {"default": msgspec.UNSET}


def _variables(cls: Any) -> tuple[Any, ...]:
    return getattr(cls, "__parameters__", ())


def field_hints(hint: Any) -> dict[str, Any]:
    """Name to hint of the fields of a class; of a generic class with arguments, those in place of its variables."""
    cls = get_origin(hint) or hint
    variables = dict(zip(_variables(cls), get_args(hint), strict=False))
    hints = {}
    for name, field in typing.get_type_hints(cls, include_extras=True).items():
        plain = required(field)
        if isinstance(plain, typing.TypeVar):
            plain = variables.get(plain, plain)
        elif variables and _variables(plain):
            plain = plain[tuple(variables.get(variable, variable) for variable in _variables(plain))]
        hints[name] = plain
    return hints


def fields_of(cls: Any) -> list[Field]:
    """The fields of a class that can be given to its constructor, in their order."""
    if typing.is_typeddict(cls):
        return [
            Field(name, name, {} if _is_required(cls, name, hint) else OPTIONAL)
            for name, hint in typing.get_type_hints(cls, include_extras=True).items()
        ]
    if issubclass(cls, tuple):
        return [
            Field(name, name, _default(cls._field_defaults[name]) if name in cls._field_defaults else {})
            for name in cls._fields
        ]
    if dataclasses.is_dataclass(cls):
        every = vars(cls)["__dataclass_fields__"].values()
        if any("INITVAR" in str(getattr(field, "_field_type", "")) for field in every):
            raise TypeError(f"{cls!r} has an InitVar, which is no field")
        listed: list[Any] = [field for field in dataclasses.fields(cls) if field.init]
        missing: Any = dataclasses.MISSING
    else:
        info: Any = msgspec.inspect.type_info(cls) if hasattr(cls, "__attrs_attrs__") else None
        listed = list(msgspec.structs.fields(cls) if info is None else info.fields)
        missing = msgspec.NODEFAULT
    found = []
    for field in listed:
        default: dict[str, Any] = {}
        if field.default is not missing:
            default = _default(field.default)
        elif field.default_factory is not missing:
            default = {"default_factory": field.default_factory}
        found.append(Field(field.name, getattr(field, "encode_name", field.name), default))
    return found


def _is_required(cls: Any, name: str, hint: Any) -> bool:
    # With string annotations the class itself does not see what `NotRequired` says.
    origin = get_origin(get_args(hint)[0] if get_origin(hint) is Annotated else hint)
    return origin is typing.Required or (origin is not typing.NotRequired and name in cls.__required_keys__)


def _default(value: Any) -> dict[str, Any]:
    # A plain value shows in the schema; any other must not be copied, so that it is the very one of the class.
    plain = value is None or type(value) in (bool, int, float, str)
    return {"default": value} if plain else {"default_factory": lambda: value}


def has_fields(cls: type) -> bool:
    """Tell whether a class has fields with hints: a dataclass, Struct, TypedDict, NamedTuple or attrs class."""
    return (
        dataclasses.is_dataclass(cls)
        or issubclass(cls, msgspec.Struct)
        or typing.is_typeddict(cls)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
        or hasattr(cls, "__attrs_attrs__")
    )


def required(hint: Any) -> Any:
    """Without the `Required[...]`, `NotRequired[...]` of a TypedDict and the `Final`, `ClassVar` of a class."""
    while get_origin(hint) in (typing.Required, typing.NotRequired, typing.Final):
        hint = get_args(hint)[0]
    if get_origin(hint) is Annotated and get_origin(get_args(hint)[0]) in (typing.Required, typing.NotRequired):
        inner, *metadata = get_args(hint)
        return Annotated[(required(inner), *metadata)]
    return Any if get_origin(hint) is typing.ClassVar or hint is typing.ClassVar else hint


def expanded(hint: Any) -> Any:
    """Resolve `type` aliases (Python 3.12), with their arguments; numpy's NDArray is one there."""
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *metadata = get_args(hint)
        return Annotated[(expanded(inner), *metadata)]
    if type(hint).__name__ == "TypeAliasType":
        return expanded(hint.__value__)
    if type(origin).__name__ == "TypeAliasType":
        return expanded(origin.__value__[get_args(hint)])
    return hint
