"""What the parameters of a method take, as far as that decides how an argument of the command line is sent.

Owns the reading of types from the document of `rpc.discover`, and their copy in the user's cache, one file for each
address: `rpc.discover` is called once for it, and again when the copy is old or a call shows that it is wrong. What is
in a document or a file is checked as it is read, since it may come from any server. Knows no items and no connection.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from typing import Any

import orjson

from ..codec import TAG_KEY
from ..user_files import cache_folder, read_private, write_private

#: Seconds that a copy is used. Long enough for an afternoon's calls; a method that takes more than before (a string
#: became any value) is seen after that, while one that takes something else is seen at once, by its error.
MAX_AGE = 3600.0
#: Bytes of a file, and methods and parameters in it: servers with more are asked each time.
MAX_SIZE = 256 * 1024
MAX_METHODS, MAX_PARAMETERS = 2000, 100
#: Files in the cache, of so many addresses.
MAX_FILES = 100
#: Schemas inside each other, alternatives of one, and schemas of one document that are read: a document of a few KB in
#: which alternatives refer to alternatives has any number.
_MAX_DEPTH, _MAX_CHOICES, _MAX_SCHEMAS = 8, 50, 200_000

_FORMAT = 1
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.-]")
_JSON_TYPES: dict[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    str: ("string",),
    type(None): ("null",),
}

#: A parameter: its name, "positional" or "named" if it takes all further ones (else ""), and the JSON types that it
#: takes, with `dtype:<f4` for each dtype of an array; None where it takes anything, or what it takes is not known.
Parameter = tuple[str, str, list[str] | None]


class MethodTypes:
    """What the parameters of one method take."""

    __slots__ = ("parameters",)

    def __init__(self, parameters: list[Parameter]) -> None:
        self.parameters = parameters

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MethodTypes) and self.parameters == other.parameters

    __hash__ = None  # type: ignore[assignment]

    def taken(self, where: str | int) -> list[str] | None:
        """What the parameter with this name, or at this position, takes; None where that is not known."""
        rest = "named" if isinstance(where, str) else "positional"
        fixed = [parameter for parameter in self.parameters if not parameter[1]]
        if isinstance(where, int):
            found = fixed[where] if where < len(fixed) else None
        else:
            found = next((parameter for parameter in fixed if parameter[0] == where), None)
        if found is None:
            found = next((parameter for parameter in self.parameters if parameter[1] == rest), None)
        return None if found is None else found[2]


def wants_text(taken: list[str] | None, value: Any) -> bool:
    """Whether a parameter takes text, and not this value, which is a number, a bool or None."""
    return taken is not None and "string" in taken and not any(kind in taken for kind in _JSON_TYPES[type(value)])


def dtypes_in(taken: list[str] | None) -> list[str]:
    """The dtypes of the arrays that a parameter takes; empty where it takes all of them, or no array."""
    return [each.removeprefix("dtype:") for each in taken or () if each.startswith("dtype:")]


# -- documents


def methods_in(document: Any) -> dict[str, MethodTypes]:
    """What the methods take, by name; malformed parts of the document are left out."""
    methods = document.get("methods") if isinstance(document, dict) else None
    components = document.get("components") if isinstance(document, dict) else None
    schemas = components.get("schemas") if isinstance(components, dict) else None
    reader = _SchemaReader(schemas)
    return {method["name"]: MethodTypes(_parameters(method.get("params"), reader)) for method in _named(methods)}


def _parameters(params: Any, reader: _SchemaReader) -> list[Parameter]:
    found: list[Parameter] = []
    for each in _named(params):
        rest = each.get("x-rest")
        types = reader.types(each.get("schema"))
        rest = rest if rest in ("positional", "named") else ""
        found.append((each["name"], rest, None if types is None else sorted(types)))
    return found if len(found) <= MAX_PARAMETERS else []


def _named(objects: Any) -> list[dict[str, Any]]:
    members = objects if isinstance(objects, list) else []
    return [member for member in members if isinstance(member, dict) and isinstance(member.get("name"), str)]


class _SchemaReader:
    """Reads the schemas of one document, up to a number.

    Args:
        schemas: those that others refer to, by name.
    """

    def __init__(self, schemas: Any) -> None:
        self._schemas = schemas if isinstance(schemas, dict) else {}
        self._left = _MAX_SCHEMAS

    def types(self, schema: Any, depth: int = 0) -> set[str] | None:
        """The JSON types that a schema takes, and its dtypes; None for all. Base64 of bytes does not count as text."""
        self._left -= 1
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or self._left < 0:
            return None
        if "$ref" in schema:
            return self.types(self._schemas.get(str(schema["$ref"]).rpartition("/")[2]), depth + 1)
        for choice in ("anyOf", "oneOf"):
            if isinstance(schema.get(choice), list):
                return _union(self.types(each, depth + 1) for each in schema[choice][:_MAX_CHOICES])
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            return _union(set(_JSON_TYPES.get(type(value), ("object",))) for value in values)
        kind = schema.get("type")
        kinds = {each for each in (kind if isinstance(kind, list) else [kind]) if isinstance(each, str)}
        if not kinds:
            return None
        if schema.get("contentEncoding") is not None:
            kinds.discard("string")
        return kinds | _dtypes(schema)


def _union(sets: Iterable[set[str] | None]) -> set[str] | None:
    united: set[str] = set()
    for each in sets:
        if each is None:
            return None
        united |= each
    return united


def _dtypes(schema: dict[str, Any]) -> set[str]:
    members = schema.get("properties")
    if not isinstance(members, dict) or not isinstance(members.get(TAG_KEY), dict):
        return set()
    dtype = members.get("dtype")
    names = dtype.get("enum") if isinstance(dtype, dict) else None
    if members[TAG_KEY].get("const") != "ndarray" or not isinstance(names, list):
        return set()
    return {f"dtype:{name}" for name in names[:_MAX_CHOICES] if isinstance(name, str) and len(name) < 40}


# -- the copy in the cache


def remembered(address: str, method: str) -> MethodTypes | None:
    """What the parameters of a method took when its server was asked last; None if that is not known, or long ago."""
    path = _path(address)
    data = None if path is None else read_private(path, MAX_SIZE)
    if data is None:
        return None
    try:
        found = orjson.loads(data)
        if found["format"] != _FORMAT or found["address"] != address or not 0 <= time.time() - found["time"] < MAX_AGE:
            return None
        parameters = found["methods"].get(method)
        return None if parameters is None else MethodTypes([_checked(each) for each in parameters])
    except (ValueError, TypeError, KeyError, AttributeError):  # not written by this version
        return None


def _checked(parameter: Any) -> Parameter:
    name, rest, taken = parameter
    if not isinstance(name, str) or not isinstance(rest, str):
        raise TypeError
    return name, rest, None if taken is None else [str(each) for each in taken]


def remember(address: str, document: Any, methods: dict[str, MethodTypes]) -> None:
    """Keep what the methods of a server take, in the place of what was known of it; a failure is ignored."""
    path = _path(address)
    info = document.get("info") if isinstance(document, dict) else None
    if path is None or len(methods) > MAX_METHODS:
        return
    kept = {
        "format": _FORMAT,
        "address": address,
        "time": time.time(),
        "version": str(info.get("version"))[:100] if isinstance(info, dict) else "",
        "methods": {name: method.parameters for name, method in methods.items()},
    }
    try:
        data = orjson.dumps(kept)
        if len(data) <= MAX_SIZE:
            write_private(path, data)
            _prune(os.path.dirname(path))
    except (OSError, TypeError, ValueError):
        pass


def _prune(folder: str) -> None:
    """Remove the files that were written first, if there are too many."""
    entries = sorted((entry for entry in os.scandir(folder) if entry.is_file()), key=lambda each: each.stat().st_mtime)
    for entry in entries[:-MAX_FILES]:
        os.unlink(entry.path)


def _path(address: str) -> str | None:
    folder = cache_folder(os.environ)
    name = _NOT_IN_NAMES.sub(lambda found: f"_{ord(found[0]):x}_", address)
    return os.path.join(folder, "schemas", f"{name}.json") if folder is not None and len(name) <= 200 else None
