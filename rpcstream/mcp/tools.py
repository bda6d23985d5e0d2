"""The tools of a server: its methods, and their schemas, as `tools/list` describes them.

A tool is made of the document of `rpc.discover` when an agent first asks for it.
"""

from __future__ import annotations

import re
from base64 import b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import orjson

from ..codec.rich_hint import SCHEMA_REF
from ..errors import InvalidParams
from ..methods.method import Method
from ..methods.registry import MethodRegistry
from ..openrpc.document import SchemaReader, documentation_of, tag_of
from ..openrpc.types import ANY, Map, Record, Rich, alternatives, parts
from ..text import get_logger

log = get_logger("rpcstream.server")


Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_REF = SCHEMA_REF.format(name="")
_DEFS = "#/$defs/"

#: Members of a schema that hold schemas: by name, in a list, and one.
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_ONE = ("items", "additionalProperties", "propertyNames", "contains", "not")

#: Members that tell programs how a value looks on the wire, which is not how an agent gives it.
_FOR_PROGRAMS = frozenset(("x-ndarray", "x-image", "x-bytes", "x-stream"))

_BASE64: Schema = {"type": "string", "contentEncoding": "base64"}


#: What an agent may give in place of a tagged object and its base64.
_FORMS: Mapping[str, list[Schema]] = {
    "image": [{**_BASE64, "description": "an image file as base64 (png, jpeg, webp, gif), or a data: URL of one"}],
    "ndarray": [
        {"type": "array", "items": {}, "description": "the numbers, as lists nested by the array's dimensions"},
        {**_BASE64, "description": "a .npy file as base64"},
    ],
    "bytes": [_BASE64],
}


def whole_schema(schema: Schema, components: Mapping[str, Schema], *, is_result: bool = False) -> Schema:
    """A schema that stands by itself: what it refers to is among its `$defs`.

    Args:
        schema: as in the document.
        components: the schemas that others refer to, by name.
        is_result: of a value that is sent, not one that is taken: numbers may be null there, which stands for NaN.
    """
    names: dict[str, None] = {}
    shown = _shown(schema, names, is_result)
    defs: Schema = {}
    while (name := next((each for each in names if each not in defs), None)) is not None:
        defs[name] = _shown(components.get(name, {}), names, is_result)
    return {**shown, "$defs": defs} if defs else shown


def _shown(schema: Any, names: dict[str, None], is_result: bool) -> Any:
    """A schema for agents; the names of the components that it refers to are added to `names`."""
    if type(schema) is not dict:
        return schema
    shown: Schema = {}
    for member, value in schema.items():
        if member in _FOR_PROGRAMS:
            continue
        if member == "$ref" and type(value) is str and value.startswith(_REF):
            names[value.removeprefix(_REF)] = None
            shown[member] = _DEFS + value.removeprefix(_REF)
        elif member in ("anyOf", "oneOf") and not is_result:
            shown["anyOf"] = [_shown(each, names, is_result) for each in _forms(value)]
        elif member in _BY_NAME and type(value) is dict:
            shown[member] = {name: _shown(each, names, is_result) for name, each in value.items()}
        elif member in _LISTS and type(value) is list:
            shown[member] = [_shown(each, names, is_result) for each in value]
        elif member in _ONE:
            shown[member] = _shown(value, names, is_result)
        elif member == "type" and value == "number" and is_result:
            shown[member] = ["number", "null"]
        else:
            shown[member] = value
    return shown


def _is_base64(schema: Any) -> bool:
    return type(schema) is dict and schema.get("contentEncoding") == "base64"


def _forms(choices: list[Any]) -> list[Any]:
    """The members of a union, with what an agent may give in place of tagged objects and their base64."""
    tagged = {tag: each for each in choices if (tag := tag_of(each)) in _FORMS}
    rest = [each for each in choices if tag_of(each) not in tagged]
    if not tagged or not any(map(_is_base64, rest)):  # without rich values, or a number of numpy
        return rest or choices
    rest = [each for each in rest if not _is_base64(each)]
    forms = [form for tag in tagged if tag is not None for form in _FORMS[tag]]
    if "ndarray" in tagged:
        forms[0] = {**forms[0], "description": f"{forms[0]['description']}{_form_of(tagged['ndarray'])}"}
    return forms + rest


def _form_of(array: Schema) -> str:
    """The dtype and the shape that an array must have, for people; empty if any will do."""
    properties = array["properties"]
    dtypes = properties.get("dtype", {}).get("enum")
    dims = properties.get("shape", {}).get("prefixItems")
    said = f"; dtype {dtypes[0]}" if dtypes else ""
    if dims is not None:
        said += f"; shape ({', '.join(str(dim.get('const', 'any')) for dim in dims)})"
    return said


#: Tools, and about how many bytes of them, in one answer to `tools/list`; the rest is on the next pages.
PAGE_TOOLS, PAGE_SIZE = 250, 512 * 1024

#: Characters of a description that are sent: an agent pays for all of them with each of its steps.
MAX_DESCRIPTION = 8000

#: Names of tools as agents take them (Tools, "Tool Names"). A method with another name is no tool.
MAX_NAME = 128
_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME}}}")

#: Characters of a cursor.
_MAX_CURSOR = 4 * MAX_NAME


class Tool:
    """A method as a tool of the same name.

    Args:
        method: the method.
        document: the document that describes it.

    Attributes:
        has_output_schema: the schema says what a result looks like: results are checked, and have no rich values.
        is_wrapped: a known result is sent as `{"result": ...}` where structured content must be an object.
    """

    def __init__(self, method: Method, document: ToolDocument) -> None:
        self.method = method
        self._described = described = document.methods[method.name]
        self._components = document.components
        self._params: list[dict[str, Any]] = described["params"]
        self._rest = next((each["name"] for each in self._params if each.get("x-rest") == "positional"), None)
        result = document.reader.read(described["result"]["schema"])
        document.reader.finish()
        named = document.reader.named
        is_known = not any(
            each == ANY or isinstance(each, Rich) or (isinstance(each, Record) and each.is_open)
            for each in parts(result, named)
        )
        self.has_output_schema = is_known and method.check_result is not None
        self.is_wrapped = not all(isinstance(each, Record | Map) for each in alternatives(result, named))

    @cached_property
    def definition(self) -> bytes:
        """The tool as JSON, for the version 2026-07-28."""
        return orjson.dumps(self._definition(is_stateless=True))

    @cached_property
    def definition_with_handshake(self) -> bytes:
        """The same for versions with a handshake."""
        return orjson.dumps(self._definition(is_stateless=False))

    def _definition(self, *, is_stateless: bool) -> dict[str, Any]:
        tool: dict[str, Any] = {"name": self.method.name}
        text = documentation_of(self._described)
        if self._described.get("deprecated"):
            reason = self._described.get("x-deprecated")
            text = f"Deprecated{f': {reason}' if reason else ''}. {text}"
        if text:
            tool["description"] = text[:MAX_DESCRIPTION].rstrip()
        tool["inputSchema"] = self._input_schema()
        if self.has_output_schema:
            schema = whole_schema(self._described["result"]["schema"], self._components, is_result=True)
            if not is_stateless:
                schema = self._object_schema(schema)
            tool["outputSchema"] = schema
        if self.method.idempotent:
            tool["annotations"] = {"idempotentHint": True}
        return tool

    def _input_schema(self) -> Schema:
        properties: Schema = {}
        required: list[str] = []
        more: Any = False
        for param in self._params:
            schema = _given_for(param)
            if param.get("x-rest") == "named":
                more = schema
                continue
            if param.get("required"):
                required.append(param["name"])
            text = param.get("description")
            if text:
                schema = {**schema, "description": text[:MAX_DESCRIPTION]}
            properties[param["name"]] = schema
        schema = {"$schema": DIALECT, "type": "object", "properties": properties, "additionalProperties": more}
        if required:
            schema["required"] = required
        return whole_schema(schema, self._components)

    def _object_schema(self, schema: Schema) -> Schema:
        if not self.is_wrapped:
            return {"type": "object", **schema}
        defs = schema.pop("$defs", None)
        wrapped: Schema = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
        return {**wrapped, "$defs": defs} if defs else wrapped

    def params(self, arguments: dict[str, Any]) -> dict[str, Any] | list[Any]:
        """Return the arguments as params. Raises ValueError if positional and named ones cannot be combined."""
        if self._rest is None or self._rest not in arguments:
            return arguments
        rest = arguments[self._rest]
        if type(rest) is not list:
            raise ValueError(f"{self._rest} must be an array")
        if not rest:
            return {name: value for name, value in arguments.items() if name != self._rest}
        before = [each.name for each in self.method.signature.parameters if each.by_position]
        missing = next((name for name in before if name not in arguments), None)
        if missing is not None:
            raise ValueError(f"{missing} must be given, too, where {self._rest} is")
        if len(arguments) > len(before) + 1:
            raise ValueError(f"{self._rest} does not go with arguments behind it")
        return [*(arguments[name] for name in before), *rest]


class ToolDocument:
    """The document of `rpc.discover`, as far as tools are made of it.

    Args:
        document: as plain data.

    Attributes:
        methods: its entries, by name.
        instructions: what it says about the server as a whole; None: nothing.
        components: the schemas that others refer to, by name.
        reader: reads the types of results.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.methods: dict[str, Mapping[str, Any]] = {each["name"]: each for each in document["methods"]}
        self.instructions: str | None = (document["info"].get("description") or "")[:MAX_DESCRIPTION] or None
        self.components: Mapping[str, Schema] = document.get("components", {}).get("schemas", {})
        self.reader = SchemaReader(document)


def _given_for(param: Mapping[str, Any]) -> Schema:
    """The schema of what an agent gives for a parameter: for one that takes all further arguments, a list of them."""
    schema: Schema = param["schema"]
    return {"type": "array", "items": schema} if param.get("x-rest") == "positional" else schema


class Tools:
    """The tools of a registry, which may change.

    Args:
        methods: those of the server.
        describe: gives the document of `rpc.discover`.
    """

    def __init__(self, methods: MethodRegistry, describe: Callable[[], Mapping[str, Any]]) -> None:
        self._methods = methods
        self._describe = describe
        self._version = -1
        self._document = ToolDocument({"methods": [], "info": {}})
        #: The names of all tools, in order; and the tools that were made.
        self._names: list[str] = []
        self._tools: dict[str, Tool | None] = {}

    def find(self, name: str, identity: Any) -> Tool | None:
        """The tool of this name; None if there is none that a caller with this identity may call."""
        tool = self.by_name(name)
        if tool is None or (tool.method.allow is not None and not tool.method.allow.permits(identity)):
            return None
        return tool

    def by_name(self, name: str) -> Tool | None:
        """The tool of this name, for whomever it is; None if there is none."""
        self._refresh()
        tool = self._tools.get(name)
        if tool is None and name in self._tools:
            tool = self._tools[name] = Tool(self._methods[name], self._document)
        return tool

    def page(self, cursor: str | None, identity: Any, *, is_stateless: bool) -> tuple[list[bytes], str | None]:
        """The tools of one page, as JSON, and the cursor of the next one; None if there is no other.

        Args:
            cursor: of this page; None: the first.

        Raises:
            InvalidParams: the cursor is none that was given here.
        """
        self._refresh()
        begin = 0 if cursor is None else bisect_right(self._names, _name_in(cursor))
        shown: list[bytes] = []
        size = 0
        for at in range(begin, len(self._names)):
            tool = self.find(self._names[at], identity)
            if tool is None:
                continue
            if len(shown) >= PAGE_TOOLS or size >= PAGE_SIZE:
                return shown, urlsafe_b64encode(self._names[at - 1].encode()).decode()
            definition = tool.definition if is_stateless else tool.definition_with_handshake
            shown.append(definition)
            size += len(definition)
        return shown, None

    @property
    def instructions(self) -> str | None:
        """What the document says of the server as a whole; None if it says nothing."""
        self._refresh()
        return self._document.instructions

    @property
    def are_for_all(self) -> bool:
        """Whether every caller has the same tools."""
        return all(method.allow is None for method in self._methods.values() if method.mcp)

    def _refresh(self) -> None:
        """Describe the methods anew if they have changed."""
        if self._version == self._methods.version:
            return
        self._document = ToolDocument(self._describe())
        self._version = self._methods.version
        offered = [name for name, method in self._methods.items() if method.mcp and name in self._document.methods]
        for name in offered:
            if not _NAME.fullmatch(name):
                log.warning("%r is no tool for agents: name it with letters, digits, _, - and .", name[:MAX_NAME])
        self._names = sorted(filter(_NAME.fullmatch, offered))
        self._tools = dict.fromkeys(self._names)


def _name_in(cursor: str) -> str:
    if len(cursor) <= _MAX_CURSOR:
        try:
            return b64decode(cursor, altchars=b"-_", validate=True).decode()
        except ValueError:  # of base64 and of UTF-8 alike
            pass
    raise InvalidParams(data={"path": "$.cursor", "reason": "the cursor is none of this server"})
