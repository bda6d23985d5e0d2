"""Writes types for the JavaScript client: an interface `Api`, for `new Client<Api>(url)`.

Text of a document only becomes literals, names or comments, never other code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from ..openrpc.types import (
    RESERVED_PREFIX,
    Api,
    Array,
    Map,
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
from ..text import visible
from .names import MAX_DESCRIPTION, NamedTypes, documentation

#: Integers up to this one are numbers of JavaScript; others come as bigint.
MAX_INTEGER = 2**53 - 1

#: What the module imports from the client.
PACKAGE = "rpcstream"
_IMPORTED = ("Complex", "ImageInput", "ImageResult", "NdArray")
_PLAIN = {
    "any": "unknown",
    "never": "never",
    "null": "null",
    "str": "string",
    "int": "number",
    "float": "number",
    "bool": "boolean",
}
_RICH = {
    "image": ("ImageResult", "ImageInput"),
    "bytes": ("Uint8Array", "Uint8Array | ArrayBuffer"),
    "complex": ("Complex", "Complex | number"),
}
#: The typed array with the items of an array.
_ITEMS = {
    **{f"{kind}{bits}": f"{kind.capitalize()}{bits}Array" for kind in ("int", "uint") for bits in (8, 16, 32)},
    **{"float32": "Float32Array", "float64": "Float64Array"},
    **{"int64": "BigInt64Array", "uint64": "BigUint64Array", "bool": "Uint8Array"},
    **{"complex64": "Float32Array", "complex128": "Float64Array"},
    **{"datetime64": "BigInt64Array", "timedelta64": "BigInt64Array"},
}
#: Those that are an argument by themselves: an array of one dimension. Bytes are none.
_FLAT = frozenset(("int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float32", "float64"))

_WORDS = (
    "any arguments as asserts async await bigint boolean break case catch class const constructor continue "
    "debugger declare default delete do enum eval export extends false finally for function get if implements "
    "import in infer instanceof interface is keyof let module namespace never new null number object of package "
    "private protected public readonly require return satisfies set static string super switch symbol this throw "
    "true try type typeof undefined unique unknown var void while with yield"
)
#: Words that are neither the name of a type nor that of an element.
_KEYWORDS = frozenset(_WORDS.split())
_RESERVED = frozenset((*_IMPORTED, *_ITEMS.values(), "Api", "ArrayBuffer", "AsyncIterable", "Uint8Array")) | _KEYWORDS
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_WIDTH = 110


def quoted(text: str) -> str:
    """Any text as a literal."""
    return visible(json.dumps(text, ensure_ascii=False))


def comment(lines: Iterable[str], indent: str = "") -> list[str]:
    """Any lines as a comment: nothing in them ends it, and its last line, which can hold directives, is empty."""
    found = [visible(line.expandtabs(4).rstrip()).replace("*/", "*\\/") for line in lines]
    if not any(found):
        return []
    return [f"{indent}/**", *(f"{indent} * {line}".rstrip() for line in found), f"{indent} */"]


class TypeScriptModule:
    """The module with the types of one document."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._named = NamedTypes(api, _RESERVED, frozenset(("int",)))
        self._used: set[str] = set()

    def text(self) -> str:
        """The text of the module. Raises DocumentError if it would be larger than `MAX_SIZE`."""
        own = [method for method in self._api.methods if not method.name.startswith(RESERVED_PREFIX)]
        methods = [line for method in own for line in self._named.count(self._method(method))]
        types = self._named.definitions(self._write_named)
        imports = [f'import type {{ {", ".join(sorted(self._used))} }} from "{PACKAGE}";'] if self._used else []
        return "\n".join(
            [
                "// Written by `rpcstream --stubs typescript`. Do not edit it: write it again when the server changes.",
                "/* eslint-disable */",
                *imports,
                *types,
                "",
                *comment([f"The methods of {self._api.label}: `new Client<Api>(url)` is a client that knows them."]),
                "export interface Api {",
                *methods,
                "}",
                "",
            ]
        )

    # -- methods

    def _method(self, method: Method) -> list[str]:
        result = self._type(method.result, is_input=False)
        item = "never" if method.item is None else self._type(method.item, is_input=False)
        by_name, by_position = self._by_name(method), self._by_position(method)
        return [
            *comment(documentation(method, "@deprecated "), "  "),
            f"  {quoted(method.name)}: {{",
            f"    params: {by_name};",
            f"    args: {by_position};",
            f"    result: {result};",
            f"    item: {item};",
            "  };",
        ]

    def _by_name(self, method: Method) -> str:
        if method.parameters is None:
            return "{ [name: string]: unknown }"
        if not method.takes_names:
            return "never"
        members = [(each.name, self._type(each.type, is_input=True), each.is_required) for each in method.fixed]
        if others := method.rest("named"):
            # All members of such an object have the type: it says nothing where the others differ.
            kind = "unknown" if members else self._type(others.type, is_input=True)
            return _object(members, f"[name: string]: {kind}", "    ")
        return _object(members, "", "    ") if members else "Record<string, never>"

    def _by_position(self, method: Method) -> str:
        if method.parameters is None:
            return "readonly unknown[]"
        if not method.takes_positions:
            return "never"
        positional, further = method.by_position(), method.rest("positional")
        names = [each.name for each, _ in positional] + ([further.name] if further else [])
        is_labelled = all(_NAME.fullmatch(name) and name not in _KEYWORDS for name in names)

        def element(parameter: Parameter, is_required: bool) -> str:
            kind = self._type(parameter.type, is_input=True)
            if parameter.rest:
                return f"...{f'{parameter.name}: ' if is_labelled else ''}{_grouped(kind)}[]"
            if is_labelled:
                return f"{parameter.name}{'' if is_required else '?'}: {kind}"
            return kind if is_required else f"{_grouped(kind)}?"

        elements = [element(*each) for each in positional] + ([element(further, False)] if further else [])
        return f"[{', '.join(elements)}]"

    # -- types

    def _type(self, node: Node, *, is_input: bool) -> str:
        """A type as it is written, for an argument or for a result."""

        def write(inner: Node) -> str:
            return self._type(inner, is_input=is_input)

        match node:
            case Plain() | Rich():
                return self._simple(node, is_input)
            case Values(values):
                return " | ".join(_literal(value) for _, value in values)
            case Array(item, is_stream):
                text = f"{'readonly ' if is_input else ''}{_grouped(write(item))}[]"
                return f"{text} | AsyncIterable<{write(item)}>" if is_stream and is_input else text
            case Tuple(items):
                return f"{'readonly ' if is_input else ''}[{', '.join(map(write, items))}]"
            case Map(value):
                return f"{{ [key: string]: {write(value)} }}"
            case Union(members):
                return " | ".join(dict.fromkeys(part for each in members for part in _alternatives(write(each))))
            case Reference(key):
                return self._named.name(key, is_input=is_input)
            case Record():
                return _object(self._members(node, is_input), "[key: string]: unknown" if node.is_open else "", "")
            case _:
                return "unknown"

    def _simple(self, node: Plain | Rich, is_input: bool) -> str:
        """A type that holds no others."""
        match node:
            case Plain("int") if is_input:
                return "number | bigint"
            case Rich("ndarray", dtypes=dtypes):
                return self._array(dtypes, is_input)
            case Rich(kind) if kind in _RICH:
                self._used.update(set(_IMPORTED) & set(_RICH[kind][is_input].split()))
                return _RICH[kind][is_input]
            case _:
                return "unknown" if isinstance(node, Rich) else _PLAIN.get(node.kind, "string")

    def _array(self, dtypes: tuple[str, ...], is_input: bool) -> str:
        self._used.add("NdArray")
        if is_input:  # what `NdArray.from` makes is not known to be of one type
            return " | ".join(("NdArray", *dict.fromkeys(_ITEMS[each] for each in dtypes if each in _FLAT)))
        items = {_ITEMS.get(each, "") for each in dtypes}
        return f"NdArray<{' | '.join(sorted(items))}>" if items and "" not in items else "NdArray"

    def _members(self, record: Record, is_input: bool) -> list[tuple[str, str, bool]]:
        return [
            (each.name, self._type(each.type, is_input=is_input), each.is_required or (each.is_given and not is_input))
            for each in record.members
        ]

    def _write_named(self, named: NamedType, is_input: bool) -> None:
        name, node = self._named.name(named.key, is_input=is_input), named.node
        lines = comment(named.description[:MAX_DESCRIPTION].strip().splitlines())
        if not isinstance(node, Record):
            self._named.define(name, ["", *lines, f"export type {name} = {self._type(node, is_input=is_input)};"])
            return
        body = []
        for each, (member, kind, is_there) in zip(node.members, self._members(node, is_input), strict=True):
            body += comment(each.description[:MAX_DESCRIPTION].strip().splitlines(), "  ")
            body.append(f"  {_key(member)}{'' if is_there else '?'}: {kind};")
        body += ["  [key: string]: unknown;"] if node.is_open else []
        self._named.define(name, ["", *lines, f"export interface {name} {{", *body, "}"])


def _literal(value: str | int | bool | None) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value) if abs(value) <= MAX_INTEGER else f"{value}n"


def _key(name: str) -> str:
    return name if _NAME.fullmatch(name) else quoted(name)


def _object(members: list[tuple[str, str, bool]], more: str, indent: str) -> str:
    """An object type: on one line where it is short."""
    parts = [f"{_key(name)}{'' if is_there else '?'}: {kind}" for name, kind, is_there in members]
    parts += [more] if more else []
    text = f"{{ {'; '.join(parts)} }}"
    if len(text) <= _WIDTH or not indent:
        return text
    return "\n".join(["{", *(f"{indent}  {part};" for part in parts), f"{indent}}}"])


def _grouped(kind: str) -> str:
    """A type in front of `[]` or `?`."""
    return kind if _NAME.fullmatch(kind) else f"({kind})"


def _alternatives(kind: str) -> list[str]:
    """The members of a union that is written; one that has others inside stays whole."""
    return [kind] if any(letter in kind for letter in '[{"<(') else kind.split(" | ")
