"""Writes types for `Client` and `AsyncClient`: a Python module with Protocols and TypedDicts.

A method is a function of the Protocols `Api` and `AsyncApi`, with its docstring. `client.submit`, `client.notify` and
`client.stream` are Protocols with the same functions, without docstrings. A dotted name is a function of a Protocol
that is an attribute.
"""

from __future__ import annotations

import builtins
import keyword
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ..codec.dtypes import EXTENSIONS
from ..openrpc.types import (
    FORMATS,
    RESERVED_PREFIX,
    Api,
    Array,
    Map,
    Member,
    Method,
    NamedType,
    Node,
    Parameter,
    Plain,
    Record,
    Reference,
    Rich,
    Tuple,
    Union,
    Values,
)
from ..peer.calls import CLIENT_NAMES
from .names import MAX_DESCRIPTION, NamedTypes, Names, class_name, documentation

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

#: Parts of a dotted name that are attributes of attributes. Methods with more are called by `request`.
MAX_PARTS = 16
#: Names of methods that are called by `request` only, as many as the docstring of `Api` has.
MAX_TOLD = 100

#: Arguments of these names are options of the client, which never reach a method.
_CALL_OPTIONS = {
    "timeout": "float | None",
    "on_progress": "Callable[[Any], object] | None",
    "wait_for": "float | None",
}
_NOTIFY_OPTIONS = {name: _CALL_OPTIONS[name] for name in ("timeout", "wait_for")}

_WIDTH = 110

#: How a function of each kind of call begins, and what it gives: of a `Client`, and of an `AsyncClient`.
_KINDS = {
    "call": (("def", "{}"), ("async def", "{}")),
    "submit": (("def", "Future[{}]"), ("def", "Task[{}]")),
    "notify": (("def", "None"), ("async def", "None")),
    "stream": (("def", "Items[{}]"), ("def", "AsyncItems[{}]")),
}


def quoted(text: str) -> str:
    """Any text as a literal."""
    return f'"{_escaped(text, quotes=True)}"'


def _escaped(text: str, *, quotes: bool) -> str:
    shown = [letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text.replace("\\", "\\\\")]
    return "".join(shown).replace('"', '\\"') if quotes else "".join(shown)


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
    is_plain = name.isidentifier() and unicodedata.normalize("NFKC", name) == name
    return is_plain and not keyword.iskeyword(name) and not name.startswith("__")


class _Types:
    """The types of one module: their text, and the names and imports that they need.

    Inside a class of the module, a type with the name of one of its `attributes` would be the attribute.
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

    def text(self, node: Node, owner: str, *, is_input: bool, is_sent: bool = False) -> str:
        """A type as it is written.

        Args:
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

    def write_named(self, named: NamedType, is_input: bool) -> None:
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


@dataclass(slots=True)
class _Place:
    """What stands behind a prefix of dotted names: a method, places, or both."""

    method: Method | None = None
    places: dict[str, _Place] = field(default_factory=dict)


class PythonModule:
    """The module with the types of one document."""

    def __init__(self, api: Api) -> None:
        self._api = api
        attributes = {part for method in api.methods for part in method.name.split(".")}
        self._types = _Types(api, attributes | {"notify", "submit", "stream"})
        self._names = self._types.named.names
        self._clients: list[str] = []  # the Protocols `Api` and `AsyncApi`, and those that they refer to
        self._parts: list[str] = []
        #: The parameters of methods as functions, for calls and for notifications.
        self._parameters: dict[tuple[str, bool], list[str] | None] = {}

    def text(self) -> str:
        """The text of the module. Raises DocumentError if it would be larger than `MAX_SIZE`."""
        for is_async in (False, True):
            self._write_api(is_async)
        types = self._types.named.definitions(self._types.write_named)
        head = [
            "# Written by `rpcstream --stubs python`. Do not edit it: write it again when the server changes.",
            "# fmt: off",
            "# ruff: noqa",
            *docstring([f"The methods of {self._api.label}, for type checkers: `cast(Api, Client(...))`."], ""),
            "",
            "from __future__ import annotations",
            "",
            "from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypedDict",
            "",
            "from rpcstream.typed import AsyncClientMembers, ClientMembers",
            *self._types.imports(),
        ]
        return "\n".join([*head, *self._clients, *types, *self._parts, ""])

    def _write_api(self, is_async: bool) -> None:
        """Write the Protocol of a client, and those of its attributes."""
        attributes = {}
        for kind in ("notify", "submit", "stream"):
            root, _ = self._places(kind)
            if root.places:
                attributes[kind] = root, self._names.take(f"_{'Async' if is_async else ''}{kind.capitalize()}")
        root, left_out = self._places("call")
        text = [f"What {'an `AsyncClient`' if is_async else 'a `Client`'} of this server has."]
        if left_out:
            names = ", ".join(left_out[:MAX_TOLD]) + (", ..." if len(left_out) > MAX_TOLD else "")
            text += ["", f"Only with `request`: {names}"]
        head = docstring(text, "    ") + ([""] if attributes or root.places else [])
        head += [f"    {kind}: {name}" for kind, (_, name) in attributes.items()]
        name, members = ("AsyncApi", "AsyncClientMembers") if is_async else ("Api", "ClientMembers")
        self._clients += self._protocol(root, name, "call", is_async, members, head)
        for kind, (root, name) in attributes.items():
            self._parts += self._protocol(root, name, kind, is_async)

    def _places(self, kind: str) -> tuple[_Place, list[str]]:
        """The methods that have this kind of call, by the parts of their names; and the names of all others."""
        root, left_out = _Place(), []
        for method in self._api.methods:
            if method.name.startswith(RESERVED_PREFIX) or (kind == "stream" and method.item is None):
                continue
            parts = method.name.split(".")
            is_attribute = len(parts) <= MAX_PARTS and all(is_name(part) and part[0] != "_" for part in parts)
            is_hidden = kind == "call" and parts[0] in CLIENT_NAMES
            if not is_attribute or is_hidden or self._parameters_of(method, kind) is None:
                left_out.append(method.name)
                continue
            place = root
            for part in parts:
                place = place.places.setdefault(part, _Place())
            place.method = method
        return root, left_out

    def _protocol(
        self, place: _Place, name: str, kind: str, is_async: bool, members: str = "", head: Sequence[str] = ()
    ) -> list[str]:
        """The Protocol of what stands behind a prefix, with `members` as its base and `head` before its functions."""
        attributes, functions = [], []
        if place.method is not None:
            functions += self._function(place.method, "__call__", kind, is_async)
        for part, inner in sorted(place.places.items()):
            if inner.places:
                below = self._names.take(f"_{name.lstrip('_')}{class_name(part)}")
                self._parts += self._protocol(inner, below, kind, is_async)
                attributes.append(f"    {part}: {below}")
            elif inner.method is not None:
                functions += self._function(inner.method, part, kind, is_async)
        body = [*head, *attributes, *([""] if (head or attributes) and functions else []), *functions]
        bases = f"{members}, Protocol" if members else "Protocol"
        lines = ["", "", f"class {name}({bases}):", *(body or ["    pass"])]
        self._types.named.count(lines)
        return lines

    def _function(self, method: Method, name: str, kind: str, is_async: bool) -> list[str]:
        """A method as a function of a Protocol."""
        parameters = self._parameters_of(method, kind) or []
        owner = class_name(method.name)
        given, suffix = (method.result, "Result") if kind != "stream" or method.item is None else (method.item, "Item")
        word, form = _KINDS[kind][is_async]
        gives = self._types.spelled(form).format(self._types.text(given, f"{owner}{suffix}", is_input=False))
        parts = [_free("self", _names_in(parameters)), *parameters]
        lines = [f"    {word} {name}({', '.join(parts)}) -> {gives}:"]
        if len(lines[0]) > _WIDTH:
            lines = [f"    {word} {name}(", *(f"        {part}," for part in parts), f"    ) -> {gives}:"]
        text = docstring(documentation(method, "Deprecated. "), " " * 8) if kind == "call" else []
        if text:
            return [*lines, *text, "        ...", ""]
        return [*lines[:-1], f"{lines[-1]} ..."]

    def _parameters_of(self, method: Method, kind: str) -> list[str] | None:
        """The parameters of a method as those of a function; None if it has one that Python cannot give."""
        key = (method.name, kind == "notify")
        if key not in self._parameters:
            self._parameters[key] = self._read_parameters(method, is_notification=kind == "notify")
        return self._parameters[key]

    def _read_parameters(self, method: Method, *, is_notification: bool) -> list[str] | None:
        if method.parameters is None:
            return [f"*args: {self._types.spelled('Any')}", f"**kwargs: {self._types.spelled('Any')}"]
        options = _NOTIFY_OPTIONS if is_notification else _CALL_OPTIONS
        names = Names(frozenset(("self", "options", *options, *(each.name for each in method.parameters))))
        written: list[str] = []

        def write(parameter: Parameter, name: str, *, is_required: bool = True) -> None:
            owner = class_name(method.name, parameter.name)
            kind = self._types.text(parameter.type, owner, is_input=True, is_sent=is_notification)
            written.append(f"{name}: {kind}{'' if is_required else ' = ...'}")

        def has_name(name: str) -> bool:
            return method.takes_names and is_name(name) and name not in options

        positional = method.by_position()
        unnamed = [at for at, (each, _) in enumerate(positional) if not has_name(each.name)]
        for at, (each, is_required) in enumerate(positional):
            name = each.name if has_name(each.name) else names.take(each.name if is_name(each.name) else "argument")
            write(each, name, is_required=is_required)
            if unnamed and at == unnamed[-1]:
                written.append("/")
        further = method.rest("positional") if method.takes_positions else None
        others = method.rest("named") if method.takes_names else None
        by_name = [each for each in method.fixed if each not in [known for known, _ in positional]]
        if any(each.is_required and not has_name(each.name) for each in by_name):
            return None
        by_name = [each for each in by_name if has_name(each.name)]
        if further is not None:
            write(further, f"*{further.name if has_name(further.name) else names.take('more')}")
        elif by_name or others is not None:
            written.append("*")
        for each in by_name:
            write(each, each.name, is_required=each.is_required)
        if others is not None:
            written += [f"{name}: {self._types.spelled(kind)} = ..." for name, kind in options.items()]
            write(others, f"**{others.name if has_name(others.name) else names.take('others')}")
        else:
            kind = self._types.spelled("Unpack[NotifyOptions]" if is_notification else "Unpack[CallOptions]")
            written.append(f"**{_free('options', _names_in(written))}: {kind}")
        return written


def _names_in(parameters: list[str]) -> set[str]:
    return {part.lstrip("*").partition(":")[0] for part in parameters}


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name = f"_{name}"
    return name
