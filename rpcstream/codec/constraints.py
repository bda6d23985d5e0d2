"""What stands beside the type in `Annotated`: constraints and descriptions.

Those of msgspec (`Meta`) and of annotated_types, also in pydantic's `Field`, are understood where msgspec checks them;
texts and `Doc` describe. Anything else is refused by name, so that nothing is ignored in silence. Neither library is
imported here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

import msgspec

from .rich_hint import shortened, type_name

#: Classes of annotated_types, and the argument of `msgspec.Meta` that says the same.
_ANNOTATED_TYPES = {
    **{"Gt": "gt", "Ge": "ge", "Lt": "lt", "Le": "le"},
    **{"MultipleOf": "multiple_of", "MinLen": "min_length", "MaxLen": "max_length"},
}
_CONSTRAINTS = (*_ANNOTATED_TYPES.values(), "pattern", "tz")


class Metadata(NamedTuple):
    """All that stands beside one type: constraints, and members for its JSON schema."""

    constraints: list[msgspec.Meta]
    schema: dict[str, Any]


def read(metadata: Iterable[Any], ignored: tuple[type, ...]) -> Metadata:
    """Read what stands beside a type in `Annotated`.

    Args:
        metadata: the objects, without `Shape` and `MaxSide`.
        ignored: classes whose objects the user lets be ignored.

    Raises:
        TypeError: for an object that is not understood; the text names it.
    """
    found = Metadata([], {})
    for each in metadata:
        _read(each, ignored, found)
    return found


def limited(hint: Any, constraint: msgspec.Meta) -> Any:
    """The (lowered) hint with a constraint. TypeError if msgspec cannot check it there."""
    made = Annotated[(hint, constraint)]
    try:
        msgspec.inspect.type_info(made)
    except (TypeError, ValueError, OverflowError, re.error) as error:
        reason = str(error).partition(" - type")[0]
        raise TypeError(f"{shortened(repr(constraint), 100)} means nothing for this type: {reason}") from None
    return made


def is_constraint(each: Any) -> bool:
    """True for an object beside a type that is understood, and says which values are allowed."""
    try:
        return bool(read([each], ()).constraints)
    except TypeError:
        return False


def check_default(default: Any) -> None:
    """Raise TypeError for a default that is an object of pydantic's, as FastAPI has them."""
    if type(default).__module__ == "pydantic.fields":
        raise TypeError(f"its default is a {type_name(type(default))}, which means nothing here: use msgspec.Meta")


def _read(each: Any, ignored: tuple[type, ...], found: Metadata) -> None:
    kind = type(each)
    if each is None or isinstance(each, ignored) or (isinstance(each, type) and issubclass(each, ignored)):
        return
    if isinstance(each, str):
        before = found.schema.get("description")
        found.schema["description"] = each if before is None else f"{before}\n{each}"
    elif isinstance(each, msgspec.Meta):
        _read_meta(each, found)
    elif getattr(each, "__is_annotated_types_grouped_metadata__", False) is True and not isinstance(each, type):
        for part in each:
            _read(part, ignored, found)
    elif kind.__name__ in ("Doc", "DocInfo") and hasattr(each, "documentation"):
        _read(each.documentation, ignored, found)
    elif kind.__module__ == "pydantic.fields" and each.is_required() and each.alias is None:
        for part in (each.description, *each.metadata):
            _read(part, ignored, found)
    elif kind.__module__ == "annotated_types" and (known := _of_annotated_types(each, found)) is not None:
        found.constraints.extend(known)
    else:
        what = f"the class {type_name(each)}" if isinstance(each, type) else shortened(repr(each), 100)
        name = (each if isinstance(each, type) else kind).__name__
        raise TypeError(
            f"{what} in Annotated means nothing here: use msgspec.Meta, check it in the function, or have it ignored: "
            f"Codec(ignored_metadata=[{name}])"
        )


def _read_meta(meta: msgspec.Meta, found: Metadata) -> None:
    given = {name: value for name in _CONSTRAINTS if (value := getattr(meta, name)) is not None}
    if given:
        found.constraints.append(_constraint(**given))
    for name in ("title", "description", "examples"):
        if (value := getattr(meta, name)) is not None:
            found.schema[name] = value
    found.schema.update(meta.extra_json_schema or {})


def _constraint(**given: Any) -> msgspec.Meta:
    if "tz" in given:  # which JSON Schema has no word for
        text = f"with {'a' if given['tz'] else 'no'} timezone component"
        return msgspec.Meta(**given, extra_json_schema={"x-constraints": [text]})
    return msgspec.Meta(**given)


def _of_annotated_types(each: Any, found: Metadata) -> list[msgspec.Meta] | None:
    """The constraints that an object of annotated_types stands for; None if msgspec has none for it."""
    library = sys.modules["annotated_types"]
    for name, argument in _ANNOTATED_TYPES.items():
        if isinstance(each, getattr(library, name)):
            value = getattr(each, argument)
            # Of dates and Decimals msgspec checks no bounds.
            return [_constraint(**{argument: value})] if type(value) in (int, float) else None
    if isinstance(each, library.Unit):
        found.schema["x-unit"] = each.unit
        return []
    if isinstance(each, library.Timezone) and each.tz in (None, Ellipsis):
        return [_constraint(tz=each.tz is Ellipsis)]
    return None
