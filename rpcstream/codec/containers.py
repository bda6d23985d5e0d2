"""Containers that JSON has no form for: collections as arrays and objects, classes with fields as msgspec writes them.

One level at a time: parts are encoded by their own encoders, so arrays and images may stand in them. orjson's own way
with dataclasses differs (it leaves out fields that begin with an underscore).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from .codec import Encoding


def encode_iterable(value: Iterable[Any], _: Encoding) -> object:
    """set, frozenset, deque, range, views of a dict, namedtuple, subclasses of list and tuple: an array."""
    return list(value)


def encode_mapping(value: Mapping[Any, Any], _: Encoding) -> object:
    """An object, for a mappingproxy or an instance of a subclass of dict."""
    return dict(value)


def encode_fields(value: Any, _: Encoding) -> object:
    """An object with all fields that are set, of a dataclass or an attrs class."""
    members = {name: getattr(value, name) for name in _field_names(value.__class__)}
    return {name: member for name, member in members.items() if not _is_unset(member)}


@functools.lru_cache(maxsize=1024)
def _field_names(cls: Any) -> tuple[str, ...]:
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else cls.__attrs_attrs__
    return tuple(field.name for field in fields)


def encode_struct(value: Any, _: Encoding) -> object:
    """An object or (`array_like`) an array, with its tag, renamed, without defaults: as its class says."""
    config = value.__struct_config__
    values = [getattr(value, name) for name in value.__struct_fields__]
    if config.array_like:
        return values if config.tag is None else [config.tag, *values]
    members = dict(zip(value.__struct_encode_fields__, values, strict=True))
    if config.omit_defaults:
        import msgspec

        kept = msgspec.to_builtins(value, enc_hook=lambda _: None, str_keys=True)
        members = {name: member for name, member in members.items() if name in kept}
    tag = {} if config.tag is None else {config.tag_field: config.tag}
    return tag | {name: member for name, member in members.items() if not _is_unset(member)}


def _is_unset(member: object) -> bool:
    """True for msgspec.UNSET, which need not be imported."""
    return type(member).__name__ == "UnsetType"
