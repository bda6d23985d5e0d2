"""The base of hints for rich types: their schemas, and plain errors for values that do not fit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
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
    if len(tagged) != len(names) + 1 or not all(map(tagged.__contains__, names)):
        raise ValueError(f"tagged object {tagged.get(TAG_KEY)!r}: its members are {', '.join(names)}, and no others")
    return list(map(tagged.__getitem__, names))


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


#: Characters at the end of a text in which the path is looked for; a peer may have written the rest of it.
_PATH_MAX = 2000
#: Characters of a reason, and choices that are named.
_REASON_MAX, _CHOICES_MAX = 400, 20

#: How msgspec ends a text with the path of the value. A class inside another adds its own part before.
_PATHS = re.compile(r"(?: - at `(?:key` in `)?\$[^`]*`)+\Z")
_PATH = re.compile(r"\$([^`]*)`")
_NAMES = re.compile(r"`([^`]*)`")
_MEMBER = re.compile(r"Object (missing required|contains unknown) field `([^`]*)`")
_ENUM = "Invalid enum value "

#: What a type, or a value of it, is called.
_WORDS = {
    **{"int": "an integer", "float": "a number", "str": "a string", "bool": "a boolean", "array": "a list"},
    **{"object": "an object", "ndarray": "an array", "image": "an image", "complex": "a complex number"},
    "Attachment": "a payload",
}


def fault_of(text: str, choices: list[Any]) -> tuple[str, str]:
    """Read the text of an error: the path of the part that is wrong inside the value, such as "[0].x", and the reason.

    Args:
        text: of msgspec or a rich type.
        choices: the values that an enum or Literal in the hint permits; [] if there are several of these, or none.
    """
    end = text[-_PATH_MAX:]
    found = _PATHS.search(end)
    path = "" if found is None else "".join(reversed(_PATH.findall(found[0])))
    text = (text if found is None else text[: len(text) - len(end) + found.start()])[:_REASON_MAX]
    if text.startswith(_ENUM):
        listed = " or ".join(json.dumps(each, default=str) for each in choices[:_CHOICES_MAX]) or "another value"
        return path, f"expected {shortened(listed, 300)}, got {shortened(text.removeprefix(_ENUM), 60)}"
    if member := _MEMBER.fullmatch(text):
        return path, f"{member[2]!r} is {'missing' if 'missing' in member[1] else 'unknown'}"
    if text.startswith("Expected `"):
        return path, "e" + _NAMES.sub(_in_words, text[1:])
    return path, text if text.isprintable() else repr(text)


def in_words(text: str, choices: list[Any], name: str) -> str:
    """The text of an error in words, with the place of the wrong part: "result[0].x: expected an integer, got null".

    Args:
        text, choices: as for `fault_of`.
        name: of the value.
    """
    path, reason = fault_of(text, choices)
    return f"{name}{path}: {reason}" if path else reason


def _in_words(names: re.Match[str]) -> str:
    """What types are called; "ndarray of float32 | int" is "an array of float32 or an integer"."""
    parts = [name.partition(" of ") for name in names[1].split(" | ")]
    return " or ".join(f"{_WORDS.get(kind, kind)}{of}{rest}" for kind, of, rest in parts)


#: Where the schemas of classes stand, in the document that a schema is part of.
SCHEMA_REF = "#/components/schemas/{name}"

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
#: Characters of the name of a component, and of a description.
_NAME_MAX, TEXT_MAX = 100, 16_384


class Components(dict[str, dict[str, Any]]):
    """The named schemas of one document. Each class, and each kind of rich value, has a name of its own.

    A name that several want gets a number: `Point`, `Point_2`. Names have only letters, digits, `_`, `.` and `-`, so
    that they can stand in a reference as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[tuple[str, Any], str] = {}

    def refer(self, wanted: str, owner: Any, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Give a reference to a schema, which is made and added unless it is there.

        Args:
            wanted: the name that it should have.
            owner: what it is the schema of; tells it from others that want the same name.
            make: gives the schema, which may refer to itself.
        """
        plain = _NOT_IN_NAMES.sub("_", wanted[:_NAME_MAX]).strip("_") or "Type"
        if (plain, owner) not in self._names:
            name, number = plain, 1
            while name in self:
                number += 1
                name = f"{plain}_{number}"
            self._names[plain, owner] = name
            self[name] = {}  # taken, while the schema is made
            self[name] = {"title": name} | make() | {"title": name}
        return {"$ref": SCHEMA_REF.format(name=self._names[plain, owner])}


def schema_of(described: Any, components: Components) -> dict[str, Any]:
    """The JSON schema of a hint; classes that it names are added to `components` and referred to there.

    Args:
        described: see `CompiledHint.described`.
        components: of the document.

    Raises:
        TypeError: JSON Schema has no words for the hint.
    """
    import msgspec  # only where schemas are made: the codec is imported without it

    def hook(kind: Any) -> Any:
        return kind.schema(components)

    (schema,), classes = msgspec.json.schema_components([described], schema_hook=hook)
    # All classes have markers, except one whose own schema is made.
    return next(iter(classes.values()), schema)


def shortened_text(text: str, limit: int) -> str:
    """The text, or its beginning and "..." if it is longer than `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 3].rstrip()}..."
