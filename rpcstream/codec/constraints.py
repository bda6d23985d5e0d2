"""What stands beside the type in `Annotated`: constraints and descriptions of this and other libraries.

Owns the reading of msgspec's Meta, annotated_types, pydantic's Field, Doc and plain text: each is enforced, shown in
the schema, or refused by name. Neither annotated_types nor pydantic is imported: an object of theirs is there only if
its module is. Does not know how hints are lowered; `hints` applies what is found here.
"""

from __future__ import annotations

import datetime
import decimal
import operator
import re
import sys
import types
import uuid
import zoneinfo
from collections.abc import Callable, Iterable, Set
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from .markers import Marker
from .rich_hint import shortened, type_name

_ORDER: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "gt": (operator.gt, ">"),
    "ge": (operator.ge, ">="),
    "lt": (operator.lt, "<"),
    "le": (operator.le, "<="),
}
_LENGTHS = {"min_length": (operator.ge, ">="), "max_length": (operator.le, "<=")}
#: The constraints of msgspec.Meta, which are also those that it may check by itself.
_META = (*_ORDER, "multiple_of", *_LENGTHS, "pattern", "tz")
#: The members of msgspec.Meta that go to the schema.
_META_SCHEMA = ("title", "description", "examples")
#: Classes of annotated_types, and where each keeps its value.
_ANNOTATED_TYPES = {
    **{"Gt": "gt", "Ge": "ge", "Lt": "lt", "Le": "le", "MultipleOf": "multiple_of"},
    **{"MinLen": "min_length", "MaxLen": "max_length", "Predicate": "func", "Timezone": "tz", "Unit": "unit"},
}
#: Members of pydantic's Field that say nothing of how a value is checked.
_PYDANTIC_SCHEMA = frozenset({"title", "description", "examples", "deprecated", "json_schema_extra"})
#: What pydantic makes of other arguments of Field; all else of it is refused.
_PYDANTIC_METADATA = frozenset({"_PydanticGeneralMetadata", "PydanticGeneralMetadata", "Strict", "AllowInfNan"})
#: msgspec takes larger bounds of integers only to refuse every value.
_LARGEST_BOUND = 2**63 - 2
#: A value of each built-in class, to try whether it can be compared with a bound.
_SAMPLES: dict[type, Any] = {
    datetime.datetime: datetime.datetime(2000, 1, 1),
    datetime.date: datetime.date(2000, 1, 1),
    uuid.UUID: uuid.UUID(int=0),
    **{cls: cls() for cls in (int, float, str, bytes, datetime.time, datetime.timedelta, decimal.Decimal)},
    **{cls: cls() for cls in (bytearray, list, tuple, set, frozenset, dict)},
}


class Constraint(NamedTuple):
    """One constraint.

    Attributes:
        kind: one of msgspec.Meta's, "zone" (the offset from UTC is that of a time zone), or "predicate".
        value: its bound, pattern, zone or function.
        is_meta: it comes from msgspec.Meta, where the length of a set is that of the array on the wire.
    """

    kind: str
    value: Any
    is_meta: bool = False

    @property
    def text(self) -> str:
        """What stands behind "Expected `int`" in the error, in msgspec's words where it has some."""
        kind, value = self.kind, self.value
        if kind in _ORDER:
            return f"{_ORDER[kind][1]} {_shown(value)}"
        if kind in _LENGTHS:
            return f"of length {_LENGTHS[kind][1]} {value}"
        if kind == "predicate":
            return f"for which {_name_of_function(value)} is true"
        return {
            "multiple_of": f"that's a multiple of {_shown(value)}",
            "pattern": f"matching regex {getattr(value, 'pattern', value)!r}",
            "tz": f"with {'a' if value else 'no'} timezone component",
            "zone": f"in the time zone {value}",
        }[kind]

    def natively(self, lowered: Any) -> Any | None:
        """The lowered hint with this constraint, where msgspec can check it; else None."""
        value = self.value
        if self.kind not in _META or (self.kind == "pattern" and not isinstance(value, str)):
            return None
        if self.kind in _LENGTHS and not self.is_meta and issubclass(kind_of(lowered) or int, Set):
            return None
        if isinstance(value, int) and abs(value) > _LARGEST_BOUND:
            return None
        try:
            limited = Annotated[(lowered, msgspec.Meta(**{self.kind: value}))]
            msgspec.inspect.type_info(limited)
        except (TypeError, ValueError, OverflowError, re.error):
            return None
        return limited

    def test(self) -> Callable[[Any], Any]:
        """A function that says whether a value keeps it. It may raise ValueError, ArithmeticError or TypeError."""
        kind, bound = self.kind, self.value
        if kind in _ORDER:
            compare = _ORDER[kind][0]
            return lambda value: compare(value, bound)
        if kind in _LENGTHS:
            compare = _LENGTHS[kind][0]
            return lambda value: compare(len(value), bound)
        if kind == "pattern":
            return re.compile(bound).search
        if kind == "tz":
            return lambda value: (value.tzinfo is not None) == bound
        if kind == "zone":
            return lambda value: value.tzinfo is not None and value.utcoffset() == value.astimezone(bound).utcoffset()
        if kind == "multiple_of":
            return lambda value: value % bound == bound - bound
        function: Callable[[Any], Any] = bound
        return function

    def check_fits(self, lowered: Any) -> None:
        """Raise TypeError if no value of the lowered hint can be held against the constraint."""
        if self.kind == "predicate":
            return
        cls = kind_of(lowered)
        if not self._fits(cls):
            on = type_name(cls) if cls is not None else "this type"
            text = f"the constraint {self.text!r} means nothing for {on}"
            if _is_array(cls) and self.kind in (*_ORDER, "multiple_of"):
                text += ": for all items, use annotated_types.Predicate(lambda array: bool((array >= 0).all()))"
            raise TypeError(text)

    def _fits(self, cls: type | None) -> bool:
        if cls is None or cls is type(None):
            return False
        if self.kind in _LENGTHS:
            return hasattr(cls, "__len__") and type(self.value) is int and self.value >= 0
        if self.kind == "pattern":
            return issubclass(cls, str)
        if self.kind in ("tz", "zone"):
            return issubclass(cls, (datetime.datetime, datetime.time) if self.kind == "tz" else datetime.datetime)
        if _is_array(cls) or cls.__name__.startswith("complex"):
            return False
        sample = next((_SAMPLES[base] for base in cls.__mro__ if base in _SAMPLES), None)
        if sample is None:  # of the user's: what it can do is tried with the first value
            name = "__lt__" if self.kind in _ORDER else "__mod__"
            return getattr(cls, name, None) not in (None, getattr(object, name, None))
        try:
            self.test()(sample)
        except (TypeError, ArithmeticError) as error:
            # A date with a zone and one without cannot be compared, but there are others.
            return "offset-naive" in str(error)
        return True


class Metadata(NamedTuple):
    """All that stands beside one type: constraints, and members for its JSON schema."""

    constraints: list[Constraint]
    schema: dict[str, Any]


def read(metadata: Iterable[Any], ignored: tuple[type, ...]) -> Metadata:
    """Read what stands beside a type in `Annotated`.

    Args:
        metadata: the objects, without `Shape` and `MaxSide`.
        ignored: classes whose objects the user lets be ignored.

    Raises:
        TypeError: for an object that is not understood, or a part of it; the text names it.
    """
    reader = _Reader(ignored)
    for each in metadata:
        reader.read(each)
    return Metadata(reader.constraints, reader.schema)


def is_constraint(each: Any) -> bool:
    """True for an object beside a type that is understood, and says which values are allowed."""
    try:
        return bool(read([each], ()).constraints)
    except TypeError:
        return False


def check_default(default: Any) -> None:
    """Raise TypeError for a default that is an object of pydantic's: it belongs into the hint."""
    field_info = _class_of("pydantic.fields", "FieldInfo")
    if field_info is not None and isinstance(default, field_info):
        raise TypeError(
            f"its default is a {type_name(type(default))}: put it into the hint, Annotated[T, Field(...)], and the "
            "default behind it"
        )


def kind_of(lowered: Any) -> type | None:
    """The class of the values of a lowered hint; None where there is no one class."""
    if isinstance(lowered, Marker):
        return lowered.kind
    origin = get_origin(lowered)
    if origin is Annotated:
        return kind_of(get_args(lowered)[0])
    if origin is Literal:
        classes = {type(value) for value in get_args(lowered)}
        return classes.pop() if len(classes) == 1 else None
    if lowered is None:
        return type(None)
    found = origin or lowered
    return found if isinstance(found, type) and found is not Any else None


class _Reader:
    """Reads the objects beside one type."""

    def __init__(self, ignored: tuple[type, ...]) -> None:
        self._ignored = ignored
        self.constraints: list[Constraint] = []
        self.schema: dict[str, Any] = {}

    def read(self, each: Any) -> None:
        """Read one object. Raises TypeError if it is not understood."""
        if each is None or isinstance(each, self._ignored):
            return
        if isinstance(each, type):
            if issubclass(each, self._ignored):
                return
            raise TypeError(f"{type_name(each)} in Annotated is a class: give an object of it{_advice(each)}")
        if isinstance(each, str):
            self._describe(each)
        elif isinstance(each, msgspec.Meta):
            self._read_meta(each)
        elif getattr(each, "__is_annotated_types_grouped_metadata__", False) is True:
            for part in each:
                self.read(part)
        elif type(each).__module__ in ("typing", "typing_extensions", "annotated_types") and hasattr(
            each, "documentation"
        ):
            self._describe(each.documentation)
        elif not (self._read_annotated_types(each) or self._read_pydantic(each)):
            shown = f"{shortened(repr(each), 100)} in Annotated means nothing here"
            raise TypeError(f"{shown}: use msgspec.Meta or annotated_types{_advice(type(each))}")

    def _describe(self, text: str) -> None:
        before = self.schema.get("description")
        self.schema["description"] = text if before is None else f"{before}\n{text}"

    def _read_meta(self, meta: msgspec.Meta) -> None:
        for kind in _META:
            value = getattr(meta, kind)
            if value is not None:
                self.constraints.append(Constraint(kind, value, is_meta=True))
        self.schema |= {name: value for name in _META_SCHEMA if (value := getattr(meta, name)) is not None}
        self.schema |= meta.extra_json_schema or {}

    def _read_annotated_types(self, each: Any) -> bool:
        for name, member in _ANNOTATED_TYPES.items():
            cls = _class_of("annotated_types", name)
            if cls is None or not isinstance(each, cls):
                continue
            value = getattr(each, member)
            if name == "Unit":
                self.schema["x-unit"] = value
            elif name == "Timezone":
                self.constraints.append(_time_zone(value))
            else:
                self.constraints.append(Constraint("predicate" if name == "Predicate" else member, value))
            return True
        return False

    def _read_pydantic(self, each: Any) -> bool:
        if type(each) is (field_info := _class_of("pydantic.fields", "FieldInfo")):
            plain = field_info()
            for name in field_info.__slots__:
                if name.startswith("_") or name in ("annotation", "metadata"):
                    continue
                value = getattr(each, name)
                if value is not (default := getattr(plain, name)) and value != default:
                    self._read_field(name, value)
            for part in each.metadata:
                self.read(part)
            return True
        if type(each).__module__.partition(".")[0] == "pydantic" and type(each).__name__ in _PYDANTIC_METADATA:
            for name, value in vars(each).items():
                self._read_general(name, value)
            return True
        return False

    def _read_field(self, name: str, value: Any) -> None:
        if name not in _PYDANTIC_SCHEMA or (name == "json_schema_extra" and not isinstance(value, dict)):
            raise _not_understood(name, value)
        if name == "json_schema_extra":
            self.schema |= value
        elif name == "description":
            self._describe(value)
        else:
            self.schema[name] = bool(value) if name == "deprecated" else value

    def _read_general(self, name: str, value: Any) -> None:
        if name == "pattern" and value is not None:
            if isinstance(value, re.Pattern) and value.flags == re.UNICODE:
                value = value.pattern
            self.constraints.append(Constraint("pattern", value))
        # Types are always strict here, and JSON has neither NaN nor infinity.
        elif value is not None and (name, value) != ("strict", True) and name != "allow_inf_nan":
            raise _not_understood(name, value)


def _advice(cls: type) -> str:
    return f", or let it be ignored: Codec(ignored_metadata=[{cls.__name__}])"


def _not_understood(name: str, value: Any) -> TypeError:
    shown = shortened(f"{name}={value!r}", 100)
    return TypeError(f"{shown} of pydantic's Field means nothing here, and would be ignored: leave it out")


def _class_of(module: str, name: str) -> Any:
    """A class of a module that the user may have imported; None if it is not."""
    return getattr(sys.modules.get(module), name, None)


def _time_zone(zone: Any) -> Constraint:
    if zone is None or zone is Ellipsis:
        return Constraint("tz", zone is Ellipsis)
    if isinstance(zone, str):
        try:
            zone = zoneinfo.ZoneInfo(zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
            raise TypeError(f"the time zone {zone!r} is not known here: {error}") from None
    if not isinstance(zone, datetime.tzinfo):
        raise TypeError(f"a time zone is a name or a tzinfo, got {zone!r}")
    return Constraint("zone", zone)


def _is_array(cls: type | None) -> bool:
    return cls is not None and (cls.__module__, cls.__name__) == ("numpy", "ndarray")


def _shown(value: Any) -> str:
    return shortened(value.isoformat() if hasattr(value, "isoformat") else str(value), 100)


def _name_of_function(function: Any) -> str:
    inner = getattr(function, "func", None)
    if type(function).__name__ == "Not" and callable(inner):  # annotated_types.Not
        return f"not {_name_of_function(inner)}"
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    if isinstance(function, types.BuiltinFunctionType) and function.__module__ not in (None, "builtins"):
        name = f"{function.__module__}.{name}"
    return f"`{name.rpartition('<locals>.')[2]}`"
