"""Containers that JSON has no form for: collections as arrays and objects, classes with fields as msgspec writes them.

One level at a time: parts are encoded by their own encoders, so arrays and images may stand in them. orjson's own way
with dataclasses differs (it leaves out fields that begin with an underscore).
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from .encoding import Encoding


def encode_iterable(value: Iterable[Any], _: Encoding) -> object:
    """set, frozenset, deque, range, views of a dict, namedtuple, subclasses of list and tuple: an array."""
    return list(value)


def encode_mapping(value: Mapping[Any, Any], _: Encoding) -> object:
    """An object, for a mappingproxy or an instance of a subclass of dict."""
    return dict(value)


def encode_dataclass(value: Any, _: Encoding) -> object:
    """An object with all fields that are set."""
    return _set_fields(value, _dataclass_fields(value.__class__))


def encode_attrs(value: Any, _: Encoding) -> object:
    """An object with all fields of an attrs class."""
    return _set_fields(value, tuple(field.name for field in type(value).__attrs_attrs__))


def encode_struct(value: Any, _: Encoding) -> object:
    """An object or (`array_like`) an array, with its tag, renamed, without defaults: as its class says."""
    config = value.__struct_config__
    names = value.__struct_fields__
    if config.array_like:
        tag = [] if config.tag is None else [config.tag]
        return tag + [getattr(value, name) for name in names]
    result = {} if config.tag is None else {config.tag_field: config.tag}
    unset = _unset()
    defaults = _defaults(value.__class__) if config.omit_defaults else {}
    for name, wire_name in zip(names, value.__struct_encode_fields__, strict=True):
        member = getattr(value, name)
        if member is unset or (name in defaults and _is_default(member, defaults[name])):
            continue
        result[wire_name] = member
    return result


@functools.lru_cache(maxsize=1024)
def _dataclass_fields(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def _set_fields(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    unset = _unset()
    result = {}
    for name in names:
        member = getattr(value, name, unset)
        if member is not unset:
            result[name] = member
    return result


_NOTHING = object()


def _unset() -> object:
    """msgspec.UNSET if msgspec is imported, else an object that no field has."""
    msgspec = sys.modules.get("msgspec")
    return getattr(msgspec, "UNSET", _NOTHING)


@functools.lru_cache(maxsize=1024)
def _defaults(cls: Any) -> dict[str, Any]:
    """The defaults of a Struct by field: the last fields have one, unless it is NODEFAULT."""
    import msgspec

    return {
        field.name: field.default if field.default is not msgspec.NODEFAULT else field.default_factory
        for field in msgspec.structs.fields(cls)
        if not field.required
    }


def _is_default(member: object, default: object) -> bool:
    """Tell whether a field has its default, as msgspec decides: the same object, or an empty list, dict or set."""
    if member is default:
        return True
    return any(default is kind for kind in (list, dict, set)) and type(member) is default and not member
