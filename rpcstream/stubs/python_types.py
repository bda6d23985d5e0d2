"""Writes the types of a document as Python has them: TypedDicts, aliases, and what stands behind a colon.

Owns how every text of a document becomes a literal, a name or a docstring that cannot be anything else; the imports,
and the bound on all that is written. An argument takes more than a result is: a tuple for a list, a date for its text.
Knows no method.
"""

from __future__ import annotations

import builtins
import keyword
import re
import unicodedata
from collections.abc import Iterable

from ..codec.dtypes import EXTENSIONS
from ..openrpc.methods import Api
from ..openrpc.types import (
    FORMATS,
    Array,
    DocumentError,
    Map,
    Member,
    NamedType,
    Node,
    Plain,
    Record,
    Reference,
    Rich,
    Tuple,
    Union,
    Values,
)
from .names import TypeNames, class_name

#: Characters of a module.
MAX_SIZE = 64 * 1024 * 1024
#: Characters of the documentation of a type.
MAX_DESCRIPTION = 2_000

#: Where each name that the module uses comes from.
_MODULES = {
    **dict.fromkeys(("AsyncIterable", "Callable", "Coroutine", "Iterable", "Mapping", "Sequence"), "collections.abc"),
    **dict.fromkeys(("Literal", "Never", "NotRequired", "Protocol"), "typing"),
    **dict.fromkeys(("Any", "TypeAlias", "TypedDict", "TypeVar", "Unpack", "overload"), "typing"),
    **dict.fromkeys(
        ("AsyncClientMembers", "AsyncItems", "CallOptions", "ClientMembers", "Items", "NotifyOptions"),
        "rpcstream.typed",
    ),
    **{"ReadOnly": "typing_extensions", "NDArray": "numpy.typing", "Image": "PIL", "ImageFile": "rpcstream"},
    **{"Future": "concurrent.futures", "Task": "asyncio", "Decimal": "decimal", "UUID": "uuid"},
    **{"np": "", "datetime": "", "_builtins": ""},
}
#: Names that are needed when the module runs; the others are for checkers only.
_AT_RUN_TIME = frozenset(
    ("AsyncClientMembers", "ClientMembers", "Literal", "Protocol", "TypeAlias", "TypeVar", "TypedDict", "overload")
)
_IMPORTS = {
    "np": "import numpy as np",
    "datetime": "import datetime",
    "_builtins": "import builtins as _builtins",
}
_RESERVED = (
    frozenset(dir(builtins))
    | frozenset(keyword.kwlist)
    | frozenset(_MODULES)
    | {"Api", "AsyncApi", "R", "TYPE_CHECKING"}
)

_PLAIN = {name: name for name in ("str", "int", "float", "bool")}
_PLAIN |= {"any": "Any", "never": "Never", "null": "None", "base64": "str"}
_FORMAT_TYPES = {
    "date": "datetime.date",
    "date-time": "datetime.datetime",
    "time": "datetime.time",
    "duration": "datetime.timedelta",
    "uuid": "UUID",
    "decimal": "Decimal",
}
_RICH = {
    "image": ("Image.Image", "Image.Image | ImageFile"),
    "bytes": ("bytes", "bytes | bytearray | memoryview"),
    "complex": ("complex", "complex"),
}
_NUMPY_NAMES = {"bool": "bool_", "str": "str_", "bytes": "bytes_"}
_TOKEN = re.compile(r'"[^"]*"|[^\W\d]\w*')
_WORD = re.compile(r"[^\W\d]\w*")


def quoted(text: str) -> str:
    """Any text as a literal."""
    return f'"{_escaped(text, quotes=True)}"'


def _escaped(text: str, *, quotes: bool) -> str:
    return "".join(
        f"\\{letter}"
        if letter == "\\" or (quotes and letter == '"')
        else letter
        if letter.isprintable()
        else ascii(letter)[1:-1]
        for letter in text
    )


def docstring(lines: Iterable[str], indent: str) -> list[str]:
    """Any lines as a docstring: nothing in them ends it, and none of them begins in the first column."""
    # Half a surrogate pair cannot stand in a docstring from Python 3.13 on, not even escaped.
    found = [line.encode(errors="backslashreplace").decode().expandtabs(4).rstrip() for line in lines]
    found = [_escaped(line, quotes='"""' in line or line.endswith('"')) for line in found]
    if not any(found):
        return []
    if len(found) == 1:
        return [f'{indent}"""{found[0]}"""']
    return [f'{indent}"""{found[0]}', *(f"{indent}{line}" if line else "" for line in found[1:]), f'{indent}"""']


def is_name(name: str) -> bool:
    """Whether a name can be written as it is: Python changes identifiers to a normal form, and those in a class."""
    return (
        name.isidentifier()
        and not keyword.iskeyword(name)
        and not name.startswith("__")
        and unicodedata.normalize("NFKC", name) == name
    )


def words_in(text: str) -> set[str]:
    """The names in a type."""
    return set(_WORD.findall(text))


class PythonTypes:
    """The types of one module.

    Args:
        api: what the document offers.

    Attributes:
        names: of the module.
    """

    def __init__(self, api: Api) -> None:
        self._named = TypeNames(api, _RESERVED, FORMATS)
        self.names = self._named.names
        self._used: set[str] = set()
        self._size = 0
        self._definitions: dict[str, list[str]] = {}
        self._inline: dict[tuple[Node, bool], str] = {}
        self._literals: dict[Node, str] = {}
        self._aliases: dict[str, str] = {}

    def use(self, *names: str) -> None:
        """Note names that are imported."""
        self._used.update(names)

    def named(self, text: str) -> str:
        """A text of names; those that are imported are noted."""
        self.use(*(words_in(text) & set(_MODULES)))
        return text

    def imports(self) -> list[str]:
        """The imports of the names that were used."""
        lines: dict[bool, list[str]] = {True: [], False: []}
        by_module: dict[tuple[bool, str], list[str]] = {}
        if any(name not in _AT_RUN_TIME for name in self._used):
            self._used.add("TYPE_CHECKING")
        for name in sorted(self._used):
            at_run_time = name in _AT_RUN_TIME or name == "TYPE_CHECKING"
            if name in _IMPORTS:
                lines[at_run_time].append(_IMPORTS[name])
            else:
                by_module.setdefault((at_run_time, _MODULES.get(name, "typing")), []).append(name)
        for (at_run_time, module), names in sorted(by_module.items()):
            lines[at_run_time].append(f"from {module} import {', '.join(names)}")
        later = ["", "if TYPE_CHECKING:", *(f"    {line}" for line in lines[False])] if lines[False] else []
        variable = ["", 'R = TypeVar("R", covariant=True)'] if "TypeVar" in self._used else []
        return [*lines[True], *later, *variable]

    def define(self, name: str, lines: list[str]) -> None:
        """Add the definition of a type."""
        self.count(lines)
        self._definitions[name] = lines

    def count(self, lines: list[str]) -> None:
        """Count lines that are written. Raises DocumentError if there are too many."""
        self._size += sum(map(len, lines)) + len(lines)
        if self._size > MAX_SIZE:
            raise DocumentError(f"the types would take more than {MAX_SIZE // 1024**2} MiB")

    def definitions(self) -> list[str]:
        """The definitions of all types that were referred to, sorted by name."""
        while self._named.waiting:
            self._write_named(*self._named.waiting.pop())
        return [line for name in sorted(self._definitions) for line in self._definitions[name]]

    def unshadowed(self, text: str, names: set[str]) -> str:
        """A type, as it is written where these names mean something else."""

        def qualify(found: re.Match[str]) -> str:
            if found[0] not in names or not hasattr(builtins, found[0]):
                return found[0]
            self.use("_builtins")
            return f"_builtins.{found[0]}"

        text = _TOKEN.sub(qualify, text)
        if names.isdisjoint(words_in(text.replace("_builtins.", "_"))):
            return text
        if text not in self._aliases:
            self.use("TypeAlias")
            self._aliases[text] = name = self.names.take("_Type")
            self.define(name, ["", f"{name}: TypeAlias = '{text}'"])
        return self._aliases[text]

    # -- types

    def text(self, node: Node, owner: str, *, is_input: bool, is_sent: bool = False) -> str:
        """A type as it is written.

        Args:
            node: the type.
            owner: what an object in it is called, which has no name.
            is_input: of an argument, not of a result.
            is_sent: of an argument of a notification, which takes no streams.
        """

        def write(inner: Node) -> str:
            return self.text(inner, owner, is_input=is_input, is_sent=is_sent)

        match node:
            case Plain() | Rich():
                return self._simple(node, is_input)
            case Values():
                return self._literal(node)
            case Array(item, is_stream):
                if is_stream and is_input and not is_sent:
                    self.use("Iterable", "AsyncIterable")
                    return f"Iterable[{write(item)}] | AsyncIterable[{write(item)}]"
                return f"{self.named('Sequence' if is_input else 'list')}[{write(item)}]"
            case Tuple(items):
                texts = [write(each) for each in items]
                either = _joined(texts)
                return f"tuple[{', '.join(texts)}] | list[{either}]" if is_input else f"list[{either}]"
            case Map(value):
                return f"{self.named('Mapping' if is_input else 'dict')}[str, {write(value)}]"
            case Union(members):
                if Rich("complex") in members:  # which takes those
                    members = tuple(each for each in members if each not in (Plain("float"), Plain("int")))
                return _joined([write(each) for each in members])
            case Reference(key):
                return self._named.name(key, is_input=is_input)
            case Record():
                return self._record(node, owner, is_input)
            case _:
                return self.named("Any")

    def _simple(self, node: Plain | Rich, is_input: bool) -> str:
        """A type that holds no others."""
        match node:
            case Plain(kind) if kind in FORMATS:
                return f"{self.named(_FORMAT_TYPES[kind])} | str" if is_input else "str"
            case Rich("ndarray", dtypes=dtypes):
                scalars = [f"np.{_NUMPY_NAMES.get(each, each)}" for each in dtypes]
                is_of_numpy = EXTENSIONS.isdisjoint(dtypes)
                return self.named(f"NDArray[{' | '.join(scalars) if scalars and is_of_numpy else 'Any'}]")
            case Rich(kind) if kind in _RICH:
                return self.named(_RICH[kind][is_input])
            case _:
                return self.named("Any" if isinstance(node, Rich) else _PLAIN[node.kind])

    def _literal(self, node: Values) -> str:
        self.use("Literal")
        texts = [quoted(value) if isinstance(value, str) else repr(value) for _, value in node.values]
        text = f"Literal[{', '.join(texts)}]"
        if not any("\\" in each or "'" in each for each in texts):
            return text
        # Inside a text that is a type, checkers read no escaped letters: it gets a name.
        if node not in self._literals:
            self.use("TypeAlias")
            self._literals[node] = name = self.names.take("_Values")
            self.define(name, ["", f"{name}: TypeAlias = {text}"])
        return self._literals[node]

    def _record(self, record: Record, owner: str, is_input: bool) -> str:
        """The name of an object that has none in the document."""
        key = (record, is_input)
        if key not in self._inline:
            self._inline[key] = name = self.names.take(f"{owner}Input" if is_input else owner)
            self._write_record(name, record, record.description, is_input)
        return self._inline[key]

    def _write_named(self, named: NamedType, is_input: bool) -> None:
        name = self._named.name(named.key, is_input=is_input)
        if isinstance(named.node, Record):
            self._write_record(name, named.node, named.description, is_input)
            return
        self.use("TypeAlias")
        text = self.text(named.node, name, is_input=is_input)
        self.define(name, ["", f"{name}: TypeAlias = '{text}'"])

    def _write_record(self, name: str, record: Record, description: str, is_input: bool) -> None:
        self.use("TypedDict")
        owner = name.removesuffix("Input") if is_input else name
        members = [(member.name, self._member(member, owner, is_input)) for member in record.members]
        words = {word for _, text in members for word in words_in(text)}
        if not all(is_name(each) and each not in words for each, _ in members):
            lines = [f"    {quoted(each)}: '{text}'," for each, text in members]
            self.define(name, ["", f'{name} = TypedDict("{name}", {{', *lines, "})"])
            return
        told = [f"    {each.name}: {' '.join(each.description.split())}" for each in record.members if each.description]
        text = description[:MAX_DESCRIPTION].splitlines() + (["", "Members:", *told] if told else [])
        if text and not text[0].strip():
            text[0] = f"{name}."
        body = [*docstring(text, "    "), *([""] if text else []), *(f"    {each}: {kind}" for each, kind in members)]
        self.define(name, ["", "", f"class {name}(TypedDict):", *body])

    def _member(self, member: Member, owner: str, is_input: bool) -> str:
        text = self.text(member.type, class_name(owner, member.name), is_input=is_input, is_sent=True)
        if is_input:  # so that an object with narrower members fits, such as one that came as a result
            self.use("ReadOnly")
            text = f"ReadOnly[{text}]"
        if not (member.is_required if is_input else member.is_required or member.is_given):
            self.use("NotRequired")
            text = f"NotRequired[{text}]"
        return text


def _joined(texts: list[str]) -> str:
    """The alternatives as one type, each once, None last."""
    each = list(dict.fromkeys(part for text in texts for part in ([text] if "[" in text else text.split(" | "))))
    return " | ".join(sorted(each, key=lambda text: text == "None"))
