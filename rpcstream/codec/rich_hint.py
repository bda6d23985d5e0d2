"""The interface of a hint that names one rich type, and the errors and schemas that such hints share.

Knows no type in particular.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

#: The member that makes a JSON object a tagged one.
TAG_KEY = "$type"
#: The tag of a float that JSON cannot say.
FLOAT_TAG = "float"
QUOTED_TAG_KEY = f'"{TAG_KEY}"'.encode()

#: Types of JSON data in which there may be rich values.
NESTED = frozenset((dict, list))


class RichHint(Protocol):
    """One rich type, as a hint names it. Immutable; may be used from several threads."""

    @property
    def name(self) -> str:
        """The name for error messages: "ndarray of float32 of shape (*, 3)", "image", "bytes"."""

    @property
    def component(self) -> str | None:
        """The name that its schema has among the components of a document; None: it stands where it is used."""

    def decode(self, value: object, reading: Any) -> object:
        """The value that came over the wire, as the hint wants it.

        Takes a value whose tagged objects are decoded (but for costly ones, and those of `tags`, which it decodes
        itself), and the plain base64 string where the wire page allows one. `reading` is the `Reading` of the message.

        Raises:
            ValueError: it is something else, whatever it is.
            DecodeElsewhere: it must be decoded in another thread.
        """

    def accept(self, value: object) -> object:
        """The value that a handler returned, in a form that goes out as what the hint promises.

        Raises:
            ValueError: it would go out as something else.
        """

    def schema(self) -> dict[str, Any]:
        """JSON schema (2020-12) of what is on the wire."""


def mismatch(expected: str, value: object, form: str = "") -> ValueError:
    """The error for a value of another type, in the form that msgspec uses too.

    Args:
        form: how such a value is written.
    """
    return ValueError(f"Expected `{expected}`, got `{described(value)}`{'; ' if form else ''}{form}")


def described(value: object) -> str:
    """A short name for a value of any kind, however large it is."""
    if isinstance(value, dict):
        tag = value.get(TAG_KEY)
        return f"an object tagged {shortened(tag)!r}" if isinstance(tag, str) else "object"
    if isinstance(value, list):
        return "array"
    return "null" if value is None else type(value).__name__


def shortened(text: str, limit: int = 40) -> str:
    """The text, or its beginning if it is long: what a peer sends is not echoed in full."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def full_name(cls: type) -> str:
    """The name of a class with its module."""
    return f"{cls.__module__}.{cls.__qualname__}"


def type_name(cls: type) -> str:
    """The full name of a class, for messages."""
    return full_name(cls).removeprefix("builtins.")


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
        advice = f"pip install 'rpcstream[{extra}]'"
        raise ValueError(f"this needs the package {name}, which is not installed here: {advice}") from None


def members(tagged: dict[str, Any], *names: str) -> list[Any]:
    """The members of a tagged object, which must have exactly these.

    Raises:
        ValueError: one is missing, or there are others.
    """
    found = [tagged[name] for name in names if name in tagged]
    if not len(found) == len(names) == len(tagged) - 1:
        raise ValueError(f"tagged object {tagged.get(TAG_KEY)!r}: its members are {', '.join(names)}, and no others")
    return found


def tagged_schema(tag: str, properties: dict[str, Any]) -> dict[str, Any]:
    """JSON schema of a tagged object with exactly these members."""
    return {
        "type": "object",
        "properties": {TAG_KEY: {"const": tag}, **properties},
        "required": [TAG_KEY, *properties],
        "additionalProperties": False,
    }


def base64_of(media_type: str, description: str = "") -> dict[str, Any]:
    """JSON schema of base64 of a content of this type."""
    schema = {"type": "string", "contentEncoding": "base64", "contentMediaType": media_type}
    return schema | ({"description": description} if description else {})


class RegisteredHint:
    """A hint for a class that was registered with the codec."""

    def __init__(self, cls: type, tag: str) -> None:
        self._cls = cls
        self._tag = tag
        self.name = type_name(cls)
        self.component = cls.__name__

    def decode(self, value: object, _: object = None) -> object:
        if isinstance(value, self._cls):
            return value
        raise mismatch(self.name, value)

    accept = decode

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": {TAG_KEY: {"const": self._tag}}, "required": [TAG_KEY]}
