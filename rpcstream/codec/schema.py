"""JSON schemas of hints, made by msgspec, and the named schemas that they refer to."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

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
