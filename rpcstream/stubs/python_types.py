"""Writes the types of a document in Python: TypedDicts, aliases, and annotations.

Text of a document only becomes literals, names or docstrings, never other code. Types of arguments accept more than
types of results: a tuple for a list, a date for its text.
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
from .names import MAX_DESCRIPTION, NamedTypes, class_name

#: Where each name that the module uses comes from, besides those that every module imports.
_MODULES = {
    **dict.fromkeys(("AsyncIterable", "Callable", "Iterable", "Mapping", "Sequence"), "collections.abc"),
    **dict.fromkeys(("Any", "Literal", "Never", "NotRequired", "Unpack"), "typing"),
    **dict.fromkeys(("AsyncItems", "CallOptions", "Items", "NotifyOptions"), "rpcstream.typed"),
    **{"ReadOnly": "typing_extensions", "NDArray": "numpy.typing", "Image": "PIL", "ImageFile": "rpcstream"},
    **{"Future": "concurrent.futures", "Task": "asyncio", "Decimal": "decimal", "UUID": "uuid"},
    **{"np": "numpy", "datetime": "datetime"},
}
_BUILTINS = frozenset(dir(builtins)).difference(keyword.kwlist)
_RESERVED = (
    _BUILTINS
    | frozenset(keyword.kwlist)
    | frozenset(_MODULES)
    | {f"_{name}" for name in ("builtins", *_MODULES)}
    | {"Api", "AsyncApi", "ClientMembers", "AsyncClientMembers", "Protocol", "TYPE_CHECKING", "TypeAlias", "TypedDict"}
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
#: A name that is no attribute of another.
_WORD = re.compile(r"(?<!\.)\b[^\W\d]\w*")


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


class PythonTypes:
    """The types of one module.

    Args:
        api: what the document offers.
        attributes: of the classes of the module. Inside these, a type of the same name would be the attribute.

    Attributes:
        named: the types that the document names, and the names of the module.
    """

    def __init__(self, api: Api, attributes: set[str]) -> None:
        self.named = NamedTypes(api, _RESERVED | attributes, FORMATS)
        self._attributes = attributes
        self._used: set[str] = set()
        self._literals: dict[Node, str] = {}
        self._inline: dict[tuple[Node, bool], str] = {}

    def spelled(self, text: str) -> str:
        """A text of builtin and imported names, as they are written; the names are imported."""
        return _WORD.sub(lambda found: self._spelled_name(found[0]), text)

    def _spelled_name(self, name: str) -> str:
        is_hidden = name in self._attributes
        if name in _MODULES:
            self._used.add(name)
            return f"_{name}" if is_hidden else name
        if is_hidden and name in _BUILTINS:
            self._used.add("builtins")
            return f"_builtins.{name}"
        return name

    def imports(self) -> list[str]:
        """The imports of the names that were used, for checkers only."""
        lines: list[str] = []
        by_module: dict[str, list[str]] = {}
        for name in sorted(self._used):
            alias = f"_{name}" if name in self._attributes or name == "builtins" else name
            if name in ("builtins", "datetime", "np"):
                module = _MODULES.get(name, name)
                lines.append(f"import {module}" if alias == module else f"import {module} as {alias}")
            elif alias != "Literal":  # which every module has
                by_module.setdefault(_MODULES[name], []).append(name if alias == name else f"{name} as {alias}")
        lines += [f"from {module} import {', '.join(names)}" for module, names in sorted(by_module.items())]
        return ["", "if TYPE_CHECKING:", *(f"    {line}" for line in lines)] if lines else []

    def definitions(self) -> list[str]:
        """The definitions of all types that were referred to."""
        return self.named.definitions(self._write_named)

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
                return self.spelled(_simple(node, is_input))
            case Values():
                return self._literal(node)
            case Array(item, is_stream):
                if is_stream and is_input and not is_sent:
                    return self.spelled("Iterable[{0}] | AsyncIterable[{0}]").format(write(item))
                return f"{self.spelled('Sequence' if is_input else 'list')}[{write(item)}]"
            case Tuple(items):
                texts = [write(each) for each in items]
                as_list = f"{self.spelled('list')}[{_joined(texts)}]"
                return f"{self.spelled('tuple')}[{', '.join(texts)}] | {as_list}" if is_input else as_list
            case Map(value):
                return f"{self.spelled('Mapping' if is_input else 'dict')}[{self.spelled('str')}, {write(value)}]"
            case Union(members):
                if Rich("complex") in members:  # which takes those
                    members = tuple(each for each in members if each not in (Plain("float"), Plain("int")))
                return _joined([write(each) for each in members])
            case Reference(key):
                return self.named.name(key, is_input=is_input)
            case Record():
                return self._record(node, owner, is_input)
            case _:
                return self.spelled("Any")

    def _literal(self, node: Values) -> str:
        texts = [quoted(value) if isinstance(value, str) else repr(value) for _, value in node.values]
        if not any("\\" in each or "'" in each for each in texts):
            return f"{self.spelled('Literal')}[{', '.join(texts)}]"
        # Inside a text that is a type, checkers read no escaped letters: it gets a name.
        if node not in self._literals:
            self._literals[node] = name = self.named.names.take("_Values")
            self.named.define(name, ["", f"{name}: TypeAlias = Literal[{', '.join(texts)}]"])
        return self._literals[node]

    def _record(self, record: Record, owner: str, is_input: bool) -> str:
        """The name of an object that has none in the document."""
        key = (record, is_input)
        if key not in self._inline:
            self._inline[key] = name = self.named.names.take(f"{owner}Input" if is_input else owner)
            self._write_record(name, record, record.description, is_input)
        return self._inline[key]

    def _write_named(self, named: NamedType, is_input: bool) -> None:
        name = self.named.name(named.key, is_input=is_input)
        if isinstance(named.node, Record):
            self._write_record(name, named.node, named.description, is_input)
            return
        text = self.text(named.node, name, is_input=is_input)
        self.named.define(name, ["", f"{name}: TypeAlias = '{text}'"])

    def _write_record(self, name: str, record: Record, description: str, is_input: bool) -> None:
        owner = name.removesuffix("Input") if is_input else name
        members = [(member.name, self._member(member, owner, is_input)) for member in record.members]
        words = {word for _, text in members for word in _WORD.findall(text)}
        if not all(is_name(each) and each not in words for each, _ in members):
            lines = [f"    {quoted(each)}: '{text}'," for each, text in members]
            self.named.define(name, ["", f'{name} = TypedDict("{name}", {{', *lines, "})"])
            return
        told = [f"    {each.name}: {' '.join(each.description.split())}" for each in record.members if each.description]
        text = description[:MAX_DESCRIPTION].splitlines() + (["", "Members:", *told] if told else [])
        if text and not text[0].strip():
            text[0] = f"{name}."
        body = [*docstring(text, "    "), *([""] if text else []), *(f"    {each}: {kind}" for each, kind in members)]
        self.named.define(name, ["", "", f"class {name}(TypedDict):", *body])

    def _member(self, member: Member, owner: str, is_input: bool) -> str:
        text = self.text(member.type, class_name(owner, member.name), is_input=is_input, is_sent=True)
        if is_input:  # so that an object with narrower members fits, such as one that came as a result
            text = f"{self.spelled('ReadOnly')}[{text}]"
        if not (member.is_required if is_input else member.is_required or member.is_given):
            text = f"{self.spelled('NotRequired')}[{text}]"
        return text


def _joined(texts: list[str]) -> str:
    """The alternatives as one type, each once, None last."""
    each = list(dict.fromkeys(part for text in texts for part in ([text] if "[" in text else text.split(" | "))))
    return " | ".join(sorted(each, key=lambda text: text == "None"))


def _simple(node: Plain | Rich, is_input: bool) -> str:
    """A type that holds no others."""
    match node:
        case Plain(kind) if kind in FORMATS:
            return f"{_FORMAT_TYPES[kind]} | str" if is_input else "str"
        case Plain(kind):
            return _PLAIN[kind]
        case Rich("ndarray", dtypes=dtypes):
            scalars = [f"np.{_NUMPY_NAMES.get(each, each)}" for each in dtypes]
            return f"NDArray[{' | '.join(scalars) if scalars and EXTENSIONS.isdisjoint(dtypes) else 'Any'}]"
        case Rich(kind):
            return _RICH[kind][is_input] if kind in _RICH else "Any"
