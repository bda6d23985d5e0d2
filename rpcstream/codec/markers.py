"""Markers: what stands in a lowered hint for a type that msgspec cannot check, and how values are checked with them.

A marker is a class whose `decode` msgspec calls for the value, through `dec_hook`. Owns how `msgspec.convert` is called
for a lowered hint. Does not know which hints are lowered to what; that is `hints`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

import msgspec

from .check_count import counting
from .schema import Components

Convert = Callable[[Any], Any]


class Marker(type):
    """The class of markers.

    Attributes:
        decode: turns the JSON value into what the hint means, or raises ValueError.
        schema: gives the JSON schema; called with the components that it may refer to.
        stands_for: the lowered hint that values are checked against first: of a class, a Struct with its fields; None
            where there is none.
    """

    decode: Convert
    schema: Callable[[Components], dict[str, Any]]
    stands_for: Any

    def __instancecheck__(cls, value: object) -> bool:
        return True  # msgspec asks this of what `decode` gave; decode itself is the check


def dec_hook(kind: type, value: Any) -> Any:
    """For `msgspec.convert`: markers know what to do."""
    if (count := counting.get()) is not None:
        count.take()
    return kind.decode(value)  # type: ignore[attr-defined]


def marker(
    name: str, decode: Convert, schema: Callable[[Components], dict[str, Any]], *, stands_for: Any = None
) -> Any:
    """Make a marker: a class that stands in a lowered hint for a type that msgspec cannot check.

    Args:
        name: for errors.
        decode: gives what the hint means for the JSON value, or raises ValueError.
        schema: see `Marker`; so is `stands_for`.
    """
    functions = {"decode": staticmethod(decode), "schema": staticmethod(schema)}
    return Marker(name, (), {**functions, "stands_for": stands_for})


def converter(lowered: Any) -> Convert:
    """Make a function that checks one value and gives it in the type of the (lowered) hint.

    It raises msgspec.ValidationError; the text says what was expected, and the path.
    """
    options = convert_options(lowered)
    return lambda value: msgspec.convert(value, lowered, **options)


def convert_options(*lowered: Any) -> dict[str, Any]:
    """The arguments that `msgspec.convert` needs for a type, or for a Struct of these types; each costs time."""
    options: dict[str, Any] = {}
    for found in map(_findings_in, lowered):
        if found.markers:
            options["dec_hook"] = dec_hook
        if found.keys:
            options["str_keys"] = True
    return options


def is_untyped(lowered: Any) -> bool:
    """True if some part of the hint takes any value, so that it must be searched for tagged objects."""
    return _findings_in(lowered).anything


class _Findings:
    """The parts of a lowered hint that matter for how values are checked.

    Attributes:
        markers: there are markers, so `dec_hook` is needed.
        anything: some part takes any value.
        keys: some keys are no strings.
        unchecked: a type that cannot be checked.
    """

    def __init__(self) -> None:
        self.markers = self.anything = self.keys = False
        self.unchecked: type | None = None
        self._seen: set[Any] = set()

    def look(self, info: Any) -> None:
        if isinstance(info, msgspec.inspect.CustomType):
            self.markers = True
            if not isinstance(info.cls, Marker):
                self.unchecked = info.cls
            elif info.cls not in self._seen:
                self._seen.add(info.cls)
                self._look_within(info.cls)
        elif isinstance(info, msgspec.inspect.AnyType):
            self.anything = True
        elif isinstance(info, msgspec.inspect.DictType):
            if not isinstance(info.key_type, msgspec.inspect.StrType | msgspec.inspect.AnyType):
                self.keys = True
        elif isinstance(info, msgspec.inspect.RawType | msgspec.inspect.ExtType):
            self.unchecked = msgspec.Raw
        if id(info) not in self._seen:
            self._seen.add(id(info))
            for part in _parts(info):
                self.look(part)

    def _look_within(self, found: Marker) -> None:
        within = _Findings()
        within._seen = self._seen
        if found.stands_for is not None:
            within.look(msgspec.inspect.type_info(found.stands_for))
        self.anything |= within.anything


def _findings_in(lowered: Any) -> _Findings:
    if isinstance(lowered, type) and lowered.__module__ not in ("builtins", "typing"):
        return _look_through(lowered)  # a user's class or a marker: the cache would keep it alive
    try:
        return _known_findings(lowered)
    except TypeError:  # it has no hash, or is no hint
        return _look_through(lowered)


def _look_through(lowered: Any) -> _Findings:
    found = _Findings()
    found.look(msgspec.inspect.type_info(lowered))
    return found


#: Most hints are few, and each is asked about several times.
_known_findings = functools.lru_cache(maxsize=256)(_look_through)


def _parts(info: Any) -> list[Any]:
    """The hints inside a hint."""
    parts = [getattr(info, name) for name in ("item_type", "key_type", "value_type", "type") if hasattr(info, name)]
    parts += getattr(info, "item_types", ()) or getattr(info, "types", ())
    parts += [field.type for field in getattr(info, "fields", ())]
    return parts


def check_lowered(lowered: Any) -> None:
    """Raise TypeError if a part of a lowered hint cannot be checked."""
    found = _findings_in(lowered)
    if found.unchecked is not None:
        raise TypeError(
            f"there is no way to check a value against {name_of_hint(found.unchecked)}; "
            "use a dataclass, a msgspec.Struct or a type registered with the codec"
        )


def name_of_hint(hint: Any) -> str:
    """A short name for a lowered hint, for messages."""
    if hint is None or hint is type(None):
        return "null"
    if get_origin(hint) is Annotated:
        return name_of_hint(get_args(hint)[0])
    return getattr(hint, "__name__", None) or str(hint) if isinstance(hint, type) else str(hint)
