"""Reads what stands beside a type in `Annotated`: constraints and descriptions, all as `msgspec.Meta`.

It reads msgspec's constraints, those of annotated_types (pydantic's `Field` included) that say the same, and texts.
Other constraints of annotated_types and pydantic are refused by name. Objects of other libraries are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, get_origin

import msgspec

from .codec import Codec
from .options import MaxSide
from .rich_hint import RichHint, shortened

#: Classes of annotated_types, and the argument of `msgspec.Meta` that says the same.
_ANNOTATED_TYPES = {
    **{"Gt": "gt", "Ge": "ge", "Lt": "lt", "Le": "le"},
    **{"MultipleOf": "multiple_of", "MinLen": "min_length", "MaxLen": "max_length"},
}
_CONSTRAINTS = (*_ANNOTATED_TYPES.values(), "pattern", "tz")
#: Packages whose objects are constraints.
_PACKAGES = ("annotated_types", "pydantic", "pydantic_core", "rpcstream")


def read(metadata: Iterable[Any]) -> list[msgspec.Meta]:
    """Read what stands beside a type in `Annotated`, without `Shape` and `MaxSide`.

    Raises:
        TypeError: for a constraint that msgspec cannot check; the text names it.
    """
    return [meta for each in metadata for meta in _read(each)]


def _read(each: Any) -> Iterator[msgspec.Meta]:
    kind = each if isinstance(each, type) else type(each)
    argument = _ANNOTATED_TYPES.get(kind.__name__, "")
    if isinstance(each, str):
        yield msgspec.Meta(description=each)
    elif isinstance(each, msgspec.Meta):
        yield each
    elif getattr(each, "__is_annotated_types_grouped_metadata__", False) is True and kind is not each:
        yield from read(each)
    elif kind.__name__ in ("Doc", "DocInfo") and hasattr(each, "documentation"):
        yield msgspec.Meta(description=each.documentation)
    elif kind.__module__ == "pydantic.fields" and each.is_required() and each.alias is None:
        yield from read(filter(None, (each.description, *each.metadata)))
    elif kind.__module__.partition(".")[0] in _PACKAGES:
        value = getattr(each, argument) if argument and kind is not each else None
        if type(value) not in (int, float):  # msgspec checks no bounds of dates and Decimals
            raise TypeError(
                f"{shortened(repr(each), 100)} in Annotated means nothing here: use msgspec.Meta, or check it in the "
                "function"
            )
        yield msgspec.Meta(**{argument: value})


def limits(meta: msgspec.Meta) -> bool:
    """True if it says which values are allowed."""
    return any(getattr(meta, name) is not None for name in _CONSTRAINTS)


def with_metas(hint: Any, metas: list[msgspec.Meta]) -> Any:
    """The (lowered) hint with these beside it. TypeError if msgspec cannot check one there."""
    for meta in metas:
        hint = Annotated[(hint, meta)]
        try:
            msgspec.inspect.type_info(hint)
        except (TypeError, ValueError, OverflowError, re.error) as error:
            reason = str(error).partition(" - type")[0]
            raise TypeError(f"{shortened(repr(meta), 100)} means nothing for this type: {reason}") from None
    return hint


def measured(hint: Any, measures: list[Any], codec: Codec) -> RichHint:
    """The array or image with a `Shape` or a `MaxSide` beside it. TypeError if that means nothing for this type."""
    measure = measures[0]
    if isinstance(measure, type) or len(measures) > 1:
        raise TypeError("a hint has one Shape(None, 3) or MaxSide(1024), with its size")
    cls = get_origin(hint) or hint
    found = codec.rich_type(cls) if isinstance(cls, type) else None
    if found is None or found.measure is not type(measure):
        kind = "images" if isinstance(measure, MaxSide) else "arrays"
        raise TypeError(f"{measure!r} is for {kind}")
    hint_with: RichHint = found.function("hint")(hint, measure)
    return hint_with
