"""Collections that JSON has no form for, as arrays and objects; and subclasses of list, tuple and dict.

Knows nothing of what is in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .encoding import Encoding


def encode_iterable(value: Iterable[Any], _: Encoding) -> object:
    """set, frozenset, deque, range, views of a dict, namedtuple: an array."""
    return list(value)


def encode_mapping(value: Mapping[Any, Any], _: Encoding) -> object:
    return dict(value)
