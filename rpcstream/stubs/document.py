"""The methods of an OpenRPC document, as far as their types go: what can be given by position, and what by name.

Owns the order and the bounds of what is written. Takes documents of any server: those without the members that
rpcstream adds, and malformed ones, of which a method keeps what makes sense. Knows no language.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass, field
from typing import Any

from ..client.discovery import default_text
from ..text import documentation_of
from .types import ANY, Array, DocumentError, NamedType, Node, SchemaReader, different_inputs, text_of

#: Methods of a document, parameters of one, and characters in the name of one.
MAX_METHODS, MAX_PARAMETERS, MAX_NAME = 20_000, 200, 200
#: Characters of a text that is kept as documentation.
MAX_DESCRIPTION = 2_000
#: Names of methods that begin so are those of the protocol itself.
RESERVED_PREFIX = "rpc."

#: The lines of a docstring where its parameters begin.
_SECTION = re.compile(r"\s*(Args|Arguments|Parameters)\s*:?\s*$|\s*:param ")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9]+")


@dataclass(slots=True)
class Parameter:
    """A parameter of a method.

    Attributes:
        rest: "positional" or "named" if it takes all further ones.
        is_keyword: it cannot be given by position.
        default: as text; "" where there is none.
    """

    name: str
    type: Node
    is_required: bool
    rest: str = ""
    is_keyword: bool = False
    default: str = ""
    description: str = ""


@dataclass(slots=True)
class Method:
    """A method.

    Attributes:
        parameters: None if the document does not say what they are.
        takes_positions: they can be given in an array.
        takes_names: they can be given in an object.
        item: of its stream; None if it does not stream.
        is_deprecated: calls of it should be replaced.
    """

    name: str
    parameters: list[Parameter] | None
    takes_positions: bool
    takes_names: bool
    result: Node
    item: Node | None
    description: str = ""
    result_description: str = ""
    is_deprecated: bool = False

    @property
    def fixed(self) -> list[Parameter]:
        """The parameters that have a name of their own."""
        return [each for each in self.parameters or () if not each.rest]

    def rest(self, kind: str) -> Parameter | None:
        """The parameter that takes all further ones, "positional" or "named"."""
        return next((each for each in self.parameters or () if each.rest == kind), None)

    def by_position(self) -> list[tuple[Parameter, bool]]:
        """The parameters that can be given by position, and whether each must be: all before a required one are."""
        positional = [each for each in self.fixed if not each.is_keyword]
        last = max((at for at, each in enumerate(positional) if each.is_required), default=-1)
        return [(each, at <= last) for at, each in enumerate(positional)]


@dataclass(slots=True)
class Api:
    """What a document offers.

    Attributes:
        methods: sorted by name.
        named: the types that they refer to, by key.
    """

    title: str
    version: str
    methods: list[Method] = field(default_factory=list)
    named: dict[str, NamedType] = field(default_factory=dict)


def read_document(document: Any) -> Api:
    """The methods of an OpenRPC document.

    Raises:
        DocumentError: it is no OpenRPC document, or larger than what types are written for.
    """
    methods = document.get("methods") if isinstance(document, dict) else None
    if not isinstance(methods, list):
        raise DocumentError("it is no OpenRPC document: it has no list of methods")
    if len(methods) > MAX_METHODS:
        raise DocumentError(f"the document has {len(methods):,} methods, and at most {MAX_METHODS:,} can be written")
    reader = SchemaReader(document)
    info = document.get("info")
    api = Api(text_of(info, "title")[:MAX_NAME], text_of(info, "version")[:MAX_NAME])
    found: dict[str, Any] = {}
    for each in map(reader.target, methods):
        name = text_of(each, "name")
        if 0 < len(name) <= MAX_NAME and not name.startswith(RESERVED_PREFIX):
            found.setdefault(name, each)
    api.methods = [_method(found[name], reader) for name in sorted(found)]
    reader.finish()
    api.named = reader.named
    return api


def _method(described: dict[str, Any], reader: SchemaReader) -> Method:
    parameters = _parameters(described.get("params", []), reader)
    structure = described.get("paramStructure")
    keywords = [each for each in parameters or () if each.is_keyword]
    # A document that says which parameters need a name says that the others do not.
    takes_positions = not any(each.is_required for each in keywords) if keywords else structure != "by-name"
    result = reader.target(described.get("result"))
    returned = reader.read(result.get("schema") if isinstance(result, dict) else None)
    item = None
    if described.get("x-stream") is True:
        item = reader.read(described["x-item"]) if "x-item" in described else ANY
        if "x-item" not in described and isinstance(returned, Array):
            item = returned.item
    return Method(
        described["name"],
        parameters,
        takes_positions=takes_positions,
        takes_names=structure != "by-position",
        result=returned,
        item=item,
        description=_shortened(documentation_of(described)),
        result_description=_shortened(text_of(result, "description")),
        is_deprecated=described.get("deprecated") is True,
    )


def _parameters(params: Any, reader: SchemaReader) -> list[Parameter] | None:
    """The parameters; None where they contradict each other, or one has no name."""
    if not isinstance(params, list) or len(params) > MAX_PARAMETERS:
        return None
    found = []
    for each in map(reader.target, params):
        if not isinstance(each, dict) or not 0 < len(name := text_of(each, "name")) <= MAX_NAME:
            return None
        schema = each.get("schema")
        known = schema if isinstance(schema, dict) else {}
        rest = each.get("x-rest") if each.get("x-rest") in ("positional", "named") else ""
        is_required = each.get("required") is True and not rest
        parameter = Parameter(
            name,
            reader.read(schema),
            is_required,
            str(rest),
            each.get("x-keyword") is True,
            "" if is_required or rest or not {"default", "x-default"} & set(known) else default_text(known),
            _shortened(text_of(each, "description") or text_of(known, "description")),
        )
        found.append(parameter)
    rests = [each.rest for each in found if each.rest]
    names = {each.name for each in found}
    return found if len(names) == len(found) and len(set(rests)) == len(rests) else None


def _shortened(text: str) -> str:
    text = text.strip()
    return text if len(text) <= MAX_DESCRIPTION else text[:MAX_DESCRIPTION].rstrip() + "..."


def documentation(method: Method) -> list[str]:
    """The lines that document a method: its description, its parameters, and its result."""
    lines = method.description.splitlines()
    if method.is_deprecated:
        lines += ["", "Deprecated."]
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


class TypeNames:
    """The names of the types that a document names, and which of them are written.

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
        self._different = different_inputs(api.named, kinds)
        self._referred: set[tuple[str, bool]] = set()
        self._names: dict[tuple[str, bool], str] = {}
        in_order = sorted(api.named.values(), key=lambda named: (named.hint, named.key))
        for named in in_order:
            self._names[named.key, False] = self.names.take(type_name(named.hint))
        for named in in_order:
            name = self._names[named.key, False]
            self._names[named.key, True] = self.names.take(f"{name}Input") if named.key in self._different else name

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
