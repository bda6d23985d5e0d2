"""Documentation and unique names, shared by the writers of all languages."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping

from ..codec.rich_hint import shortened_text
from ..openrpc.types import (
    Api,
    Array,
    DocumentError,
    Map,
    Method,
    NamedType,
    Plain,
    Record,
    Reference,
    Rich,
    Tuple,
    parts,
)

#: Characters of a module.
MAX_SIZE = 64 * 1024 * 1024
#: Characters of a description, and of a name.
MAX_DESCRIPTION, MAX_NAME = 2_000, 200

#: The lines of a docstring where its parameters begin.
_SECTION = re.compile(r"\s*(Args|Arguments|Parameters)\s*:?\s*$|\s*:param ")
#: Arguments of these types may be more than results.
_TAKE_MORE = (Array, Tuple, Map, Record, Rich)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9]+")


def documentation(method: Method, deprecated: str) -> list[str]:
    """The lines that document a method: its description, its parameters, its result, and last that it is deprecated.

    Args:
        method: the method.
        deprecated: stands before the reason for which it is deprecated.
    """
    lines = shortened_text(method.description, MAX_DESCRIPTION).splitlines()
    told = []
    has_section = any(_SECTION.match(line) for line in lines)
    for each in method.parameters or ():
        default = f"(default {each.default}) " if each.default not in ("", "null") else ""
        if each.description or (default and not has_section):
            told.append(f"    {each.name}: {default}{' '.join(each.description.split())}".rstrip())
    if told:
        lines += ["", "Args:", *told]
    if method.result_description:
        lines += ["", "Returns:", f"    {' '.join(method.result_description.split())}"]
    if method.deprecated is not None:
        lines += ["", f"{deprecated}{' '.join(method.deprecated.split())}".rstrip()]
    while lines and not lines[0].strip():
        del lines[0]
    return lines


class Names:
    """Gives out names that are not used yet.

    Args:
        reserved: names that are never given out.
    """

    def __init__(self, reserved: frozenset[str]) -> None:
        self._used = set(reserved)
        self._counts: dict[str, int] = {}

    def take(self, wish: str) -> str:
        """The name that is wished for, or one with a number behind it."""
        name, count = wish, self._counts.get(wish, 1)
        while name in self._used:
            count += 1
            name = f"{wish}_{count}"
        self._counts[wish] = count
        self._used.add(name)
        return name


class NamedTypes:
    """The types that a document names: their names in a module, and the definitions of those that are written.

    Args:
        api: what the document offers.
        reserved: names that no type has.
        kinds: those of `Plain` types of which an argument may be more than a result.

    Attributes:
        names: gives out further names.
        waiting: the types that were referred to since they were taken out, and whether as those of an argument.
    """

    def __init__(self, api: Api, reserved: frozenset[str], kinds: frozenset[str]) -> None:
        self.names = Names(reserved)
        self.waiting: list[tuple[NamedType, bool]] = []
        self._named = api.named
        self._size = 0
        self._definitions: dict[str, list[str]] = {}
        self._different = different_inputs(api.named, kinds)
        self._referred: set[tuple[str, bool]] = set()
        self._names: dict[tuple[str, bool], str] = {}
        in_order = sorted(api.named.values(), key=lambda named: (named.hint, named.key))
        for named in in_order:
            self._names[named.key, False] = self.names.take(type_name(named.hint))
        for named in in_order:
            name = self._names[named.key, False]
            self._names[named.key, True] = self.names.take(f"{name}Input") if named.key in self._different else name

    def count(self, lines: list[str]) -> list[str]:
        """Count lines that are written, and return them. Raises DocumentError if there are too many."""
        self._size += sum(map(len, lines)) + len(lines)
        if self._size > MAX_SIZE:
            raise DocumentError(f"the types would take more than {MAX_SIZE // 1024**2} MiB")
        return lines

    def define(self, name: str, lines: list[str]) -> None:
        """Add the definition of a type."""
        self._definitions[name] = self.count(lines)

    def definitions(self, write: Callable[[NamedType, bool], None]) -> list[str]:
        """The definitions of all types that were referred to, sorted by name.

        Args:
            write: defines a type, as that of an argument if the second argument is true.
        """
        while self.waiting:
            write(*self.waiting.pop())
        return [line for name in sorted(self._definitions) for line in self._definitions[name]]

    def name(self, key: str, *, is_input: bool) -> str:
        """The name of a type, as that of an argument or of a result; it is written then."""
        form = (key, is_input and key in self._different)
        if form not in self._referred:
            self._referred.add(form)
            self.waiting.append((self._named[key], form[1]))
        return self._names[form]


def type_name(hint: str) -> str:
    """The name of a type, of ASCII letters, digits and underscores: `client.NdArray_f4` is `client_NdArray_f4`."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", hint[:MAX_NAME])[:80].strip("_")
    name = f"T{name}" if not name or not name[0].isalpha() else name
    return f"{name}_" if keyword.iskeyword(name) else name


def class_name(*words: str) -> str:
    """A name in capitals made of several: `vision.detect`, `options` is `VisionDetectOptions`."""
    found = [each for word in words for each in _NOT_IN_NAMES.split(word[:MAX_NAME]) if each]
    name = "".join(each[0].upper() + each[1:] for each in found)[:80]
    return name if name[:1].isalpha() else f"T{name}"


def different_inputs(named: Mapping[str, NamedType], kinds: frozenset[str]) -> set[str]:
    """The keys of the types whose arguments may be more than their results: by themselves, or by what they hold.

    Args:
        named: the types.
        kinds: of `Plain` types of which this is so.
    """
    users: dict[str, list[str]] = {key: [] for key in named}
    different = set()
    for key, found in named.items():
        for part in parts(found.node):
            if isinstance(part, Reference):
                users[part.key].append(key)
            elif part.kind in kinds if isinstance(part, Plain) else isinstance(part, _TAKE_MORE):
                different.add(key)
    waiting = list(different)
    while waiting:
        for key in users[waiting.pop()]:
            if key not in different:
                different.add(key)
                waiting.append(key)
    return different
