"""Writes types for `Client` and `AsyncClient`: a Python module with Protocols and TypedDicts.

A method is a function of the Protocols `Api` and `AsyncApi`, with its docstring. `client.submit`, `client.notify` and
`client.stream` are Protocols with the same functions, without docstrings. A dotted name is a function of a Protocol
that is an attribute.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..openrpc.methods import RESERVED_PREFIX, Api, Method
from ..peer.calls import CLIENT_NAMES
from .names import Names, class_name, documentation
from .python_types import PythonTypes, docstring, is_name

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


def write_python(api: Api) -> str:
    """The module. Raises DocumentError if it would be larger than `MAX_SIZE`."""
    return _Module(api).text()


@dataclass(slots=True)
class _Place:
    """What stands behind a prefix of dotted names: a method, places, or both."""

    method: Method | None = None
    places: dict[str, _Place] = field(default_factory=dict)


class _Module:
    def __init__(self, api: Api) -> None:
        self._api = api
        attributes = {part for method in api.methods for part in method.name.split(".")}
        self._types = PythonTypes(api, attributes | {"notify", "submit", "stream"})
        self._names = self._types.named.names
        #: The Protocols: `Api` and `AsyncApi`, and those that they refer to.
        self._clients: list[str] = []
        self._parts: list[str] = []
        #: The parameters of methods as functions, for calls and for notifications.
        self._parameters: dict[tuple[str, bool], list[str] | None] = {}

    def text(self) -> str:
        for is_async in (False, True):
            self._write_api(is_async)
        types = self._types.definitions()
        title = " ".join(filter(None, (self._api.title, self._api.version))) or "a server"
        head = [
            "# Written by `rpcstream --stubs python`. Do not edit it: write it again when the server changes.",
            "# fmt: off",
            "# ruff: noqa",
            *docstring([f"The methods of {title}, for type checkers: `cast(Api, Client(...))`."], ""),
            "",
            "from __future__ import annotations",
            "",
            "from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypedDict",
            "",
            "from rpcstream.typed import AsyncClientMembers, ClientMembers",
            *self._types.imports(),
        ]
        return "\n".join([*head, *self._clients, *types, *self._parts, ""])

    # -- Protocols ----------------------------------------------------------------------------------------------------

    def _write_api(self, is_async: bool) -> None:
        """Write the Protocol of a client, and those of its attributes."""
        attributes = {}
        for kind in ("notify", "submit", "stream"):
            root, _ = self._places(kind)
            if root.places:
                attributes[kind] = (
                    root,
                    self._names.take(f"_{'Async' if is_async else ''}{kind.capitalize()}"),
                )
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
        """The Protocol of what stands behind a prefix; those that it refers to are written.

        Args:
            members: a Protocol that it has as its base.
            head: lines that stand before its functions.
        """
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

    # -- parameters ---------------------------------------------------------------------------------------------------

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

        def write(parameter: str, name: str, is_required: bool) -> None:
            found = next(each for each in method.parameters or () if each.name == parameter)
            owner = class_name(method.name, parameter)
            kind = self._types.text(found.type, owner, is_input=True, is_sent=is_notification)
            written.append(f"{name}: {kind}{'' if is_required else ' = ...'}")

        def has_name(name: str) -> bool:
            return method.takes_names and is_name(name) and name not in options

        positional = method.by_position()
        unnamed = [at for at, (each, _) in enumerate(positional) if not has_name(each.name)]
        for at, (each, is_required) in enumerate(positional):
            name = each.name if has_name(each.name) else names.take(each.name if is_name(each.name) else "argument")
            write(each.name, name, is_required)
            if unnamed and at == unnamed[-1]:
                written.append("/")
        further = method.rest("positional") if method.takes_positions else None
        others = method.rest("named") if method.takes_names else None
        by_name = [each for each in method.fixed if each not in [known for known, _ in positional]]
        if any(each.is_required and not has_name(each.name) for each in by_name):
            return None
        by_name = [each for each in by_name if has_name(each.name)]
        if further is not None:
            write(further.name, f"*{further.name if has_name(further.name) else names.take('more')}", True)
        elif by_name or others is not None:
            written.append("*")
        for each in by_name:
            write(each.name, each.name, each.is_required)
        if others is not None:
            written += [f"{name}: {self._types.spelled(kind)} = ..." for name, kind in options.items()]
            write(others.name, f"**{others.name if has_name(others.name) else names.take('others')}", True)
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
