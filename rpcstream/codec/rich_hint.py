"""The interface of a hint that names one rich type, and the errors and schemas that such hints share.

Knows no type in particular.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from .schema import Components

#: The member that makes a JSON object a tagged one.
TAG_KEY = "$type"
QUOTED_TAG_KEY = f'"{TAG_KEY}"'.encode()

#: Types of JSON data in which there may be rich values.
NESTED = frozenset((dict, list))


class RichHint(Protocol):
    """One rich type, as a hint names it. Immutable; may be used from several threads."""

    @property
    def name(self) -> str:
        """The name for error messages: "float32 ndarray of shape (*, 3)", "image", "bytes"."""

    @property
    def component(self) -> str | None:
        """The name that its schema has among the components of a document; None: it stands where it is used."""

    def decode(self, value: object) -> object:
        """The value that came over the wire, as the hint wants it.

        Takes the tagged object, the plain base64 string where the wire page allows one, and a value that is already
        right.

        Raises:
            ValueError: it is something else, whatever it is; never another exception.
        """

    def accept(self, value: object) -> object:
        """The value that a handler returned, in a form that goes out as what the hint promises.

        Raises:
            ValueError: it would go out as something else.
        """

    def schema(self) -> dict[str, Any]:
        """JSON schema (2020-12) of what is on the wire."""


@runtime_checkable
class HasSchemaParts(Protocol):
    """A rich type whose schema refers to others, which must stand among the components of the document."""

    def schema_in(self, components: Components) -> dict[str, Any]:
        """The schema; those that it refers to are added to the components."""


def mismatch(expected: str, value: object) -> ValueError:
    """The error for a value of another type, in the form that msgspec uses too."""
    return ValueError(f"Expected `{expected}`, got `{described(value)}`")


def described(value: object) -> str:
    """A short name for a value of any kind, however large it is."""
    if isinstance(value, dict):
        tag = value.get(TAG_KEY)
        return f"object tagged {shortened(tag)!r}" if isinstance(tag, str) else "object"
    if isinstance(value, list):
        return "array"
    return "null" if value is None else type(value).__name__


def shortened(text: str, limit: int = 40) -> str:
    """The text, or its beginning if it is long: what a peer sends is not echoed in full."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def with_members(value: Any, kinds: frozenset[type], change: Callable[[Any], Any]) -> Any:
    """A list or dict with its members of these types changed; a copy where one becomes another object, else itself."""
    result = value
    places: Iterable[tuple[Any, Any]] = value.items() if type(value) is dict else enumerate(value)
    for place, member in places:
        if type(member) in kinds and (changed := change(member)) is not member:
            if result is value:
                result = value.copy()
            result[place] = changed
    return result


def type_name(cls: type) -> str:
    """The full name of a class, for messages."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def optional_module(name: str, extra: str) -> Any:
    """Import a module of a package that need not be installed.

    Args:
        extra: of rpcstream's, that installs it.

    Raises:
        ValueError: it is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        advice = f"pip install 'rpcstream[{extra}]'"
        raise ValueError(f"this needs the package {package}, which is not installed here: {advice}") from None


def members(tagged: dict[str, Any], *names: str) -> list[Any]:
    """The members of a tagged object, which must have exactly these.

    Raises:
        ValueError: one is missing, or there are others.
    """
    try:
        found = [tagged[name] for name in names]
    except KeyError as error:
        raise ValueError(f"tagged object {tagged.get(TAG_KEY)!r} misses {error}") from None
    if len(tagged) != len(names) + 1:
        others = [shortened(name) for name in tagged if name not in names and name != TAG_KEY]
        raise ValueError(f"tagged object {tagged.get(TAG_KEY)!r} has unknown members: {', '.join(others[:3])}")
    return found


def tagged_schema(tag: str, properties: dict[str, Any]) -> dict[str, Any]:
    """JSON schema of a tagged object with exactly these members."""
    return {
        "type": "object",
        "properties": {TAG_KEY: {"const": tag}, **properties},
        "required": [TAG_KEY, *properties],
        "additionalProperties": False,
    }


#: JSON schema of a payload.
BASE64_SCHEMA = {"type": "string", "contentEncoding": "base64"}


def base64_of(media_type: str, description: str | None = None) -> dict[str, Any]:
    """JSON schema of base64 of a content of this type."""
    described = {} if description is None else {"description": description}
    return {**BASE64_SCHEMA, "contentMediaType": media_type, **described}
