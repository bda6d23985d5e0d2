"""Rewrites an OpenRPC document for tools that read version 1.2.6, and JSON Schema draft 07 alone.

Classes that refer to themselves are cut open, because tools put schemas in the place of the references to them. What is
rewritten may come from any peer, and stays as it is where it is malformed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal

import orjson

from ..codec.rich_hint import SCHEMA_REF


def in_cycles(references: Mapping[str, Collection[str]]) -> set[str]:
    """The names that refer to themselves, directly or through others, and those that refer to such names.

    Args:
        references: by name, the names that it refers to.
    """
    sorter = TopologicalSorter(references)
    left = set(references)
    with suppress(CycleError):
        sorter.prepare()
    while ready := sorter.get_ready():
        left.difference_update(ready)
        sorter.done(*ready)
    return left


#: The version of OpenRPC that is written for older tools.
COMPAT = "1.2.6"
Compat = Literal["1.2.6"]

_REF = SCHEMA_REF.format(name="")
_REFERENCE = re.compile(rf'"\$ref":"{_REF}([^"\\]*)"')

#: Members of a schema that hold schemas by name, and members that hold data.
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependencies", "dependentSchemas")
_DATA = re.compile("const|enum|default|examples|x-.*")
#: The formats of draft 07; there are tools that fail at any other.
_FORMATS = re.compile(
    r"date-time|time|date|(idn-)?(email|hostname)|ipv[46]|[iu]ri(-reference)?|uri-template|(relative-)?json-pointer|regex"
)
_NO_LETTERS = re.compile(r"[^A-Za-z0-9]+")
#: Characters of a title, and of what it is made of.
_TITLE_MAX, _CONTEXT_MAX = 60, 200
#: Names that a generated client already uses: types of TypeScript, and what the generator adds.
_TAKEN = (
    "Array BigInt Boolean Client Date Error Function Iterable Iterator Map Number Object Omit OpenRPC Options Partial"
    " Pick Promise Readonly Record RegExp RequestManager Required Set String Symbol AlwaysFalse JSONRPCError"
    " MethodCallTimeout MethodObject ContentDescriptorObject"
)


def older_head(head: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that say what the service is."""
    others = {name: value for name, value in head.items() if name != "x-jsonSchemaDialect"}
    return {**others, "openrpc": COMPAT}


class OlderDocument:
    """Rewrites the methods and components of one document, in the order in which they stand there.

    Tools make the name of a type of the title of a schema, so each schema gets one that no other has.

    Args:
        title: of the service, which tools make the name of a class of.
    """

    def __init__(self, title: str = "") -> None:
        self._taken = {_pascal(title), *_TAKEN.split()}
        self._numbers: Counter[str] = Counter()

    @staticmethod
    def has(method: str) -> bool:
        """Whether the method of this name is described: tools make no valid names of `rpc.ping` and the like."""
        return not method.startswith(("rpc.", "$/"))

    def method(self, method: Mapping[str, Any]) -> dict[str, Any]:
        """Return a Method Object."""
        made, name = dict(method), str(method.get("name"))
        self._taken.add(_pascal(name))
        if isinstance(params := made.get("params"), list):
            made["params"] = [self._content(each, name) for each in params]
        made["result"] = self._content(made.get("result"), name)
        return made

    def schemas(self, schemas: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Return the components of a document, or of a part of one, each with its name; one by one."""
        circular = _circular(schemas)
        for name, schema in schemas.items():
            yield name, self._schema(schema, name, circular if name in circular else ())

    def _content(self, content: Any, method: str) -> Any:
        """Return a Content Descriptor: a parameter, or the result."""
        if not isinstance(content, dict) or "schema" not in content:
            return content
        return {**content, "schema": self._schema(content["schema"], f"{method} {content.get('name')}")}

    def _schema(self, schema: Any, context: str, cut: Collection[str] = ()) -> Any:
        """Return a schema of draft 07 with titles in all its parts.

        Args:
            schema: of JSON Schema 2020-12.
            context: where it stands, for the title of one that has none.
            cut: the components whose references are replaced by a schema that allows everything.
        """
        if not isinstance(schema, dict):
            return schema
        made = {name: self._parts(name, value, context, cut) for name, value in schema.items()}
        if "prefixItems" in made:
            if "items" in made:
                made["additionalItems"] = made["items"]
            made["items"] = made.pop("prefixItems")
        if not _FORMATS.fullmatch(str(made.get("format", "date"))):
            made["x-format"] = made.pop("format")
        to = made.pop("$ref", None)
        if isinstance(to, str) and to.removeprefix(_REF) not in cut:
            if not made:
                return {"$ref": to}
            made = {"allOf": [{"$ref": to}, made]}  # draft 07 ignores what stands beside a reference
        made["title"] = self._title(schema.get("title"), context)
        return made

    def _parts(self, name: str, value: Any, context: str, cut: Collection[str]) -> Any:
        """Return the value of a member, with the schemas in it rewritten."""
        if _DATA.fullmatch(name):
            return value
        if isinstance(value, list):
            return [self._schema(each, f"{context} {at}", cut) for at, each in enumerate(value, 1)]
        if name in _BY_NAME and isinstance(value, dict):
            return {key: self._schema(each, f"{context} {key}", cut) for key, each in value.items()}
        return self._schema(value, f"{context} {name}", cut)

    def _title(self, given: Any, context: str) -> str:
        """Return a title that no other schema has."""
        wanted = _pascal(given if isinstance(given, str) else context)[:_TITLE_MAX] or "Type"
        while True:
            self._numbers[wanted] += 1
            number = self._numbers[wanted]
            title = wanted if number == 1 else f"{wanted}_{number}"
            if (name := _pascal(title)) not in self._taken:
                self._taken.add(name)
                return title


def _pascal(text: str) -> str:
    """Write `list of NdArray_f4` as `ListOfNdArrayF4`, the way tools make names of types out of titles."""
    return "".join(part[:1].upper() + part[1:] for part in _NO_LETTERS.split(text[:_CONTEXT_MAX]))


def _circular(schemas: Mapping[str, Any]) -> set[str]:
    """Return the components that refer to themselves, directly or through others, and those that refer to such ones."""
    texts = {name: orjson.dumps(schema).decode() for name, schema in schemas.items()}
    return in_cycles({name: schemas.keys() & set(_REFERENCE.findall(text)) for name, text in texts.items()})
