"""Writes types for `Client` and `AsyncClient`: a Python module with Protocols and TypedDicts.

Owns the layout of that module. A method's signature is one Protocol, generic in what a call gives; what a client has as
its attributes are Protocols with one line for each method. Arguments are given by position or by name, never both:
overloads say that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ..peer.proxy import CLIENT_NAMES
from .document import Api, Method, Names, Parameter, class_name, documentation
from .python_types import PythonTypes, docstring, is_name, quoted, words_in

#: Parts of a dotted name that are attributes of attributes. Names with more are written as those that are none.
MAX_PARTS = 16
#: Methods that are written for `call("name", …)`: type checkers compare each overload with all others.
MAX_BY_NAME = 100

#: Arguments of these names are options of the client, which never reach a method.
_CALL_OPTIONS = ("timeout", "on_progress", "wait_for", "returns")
_NOTIFY_OPTIONS = ("timeout", "wait_for")
_OPTION_TYPES = {"timeout": "float | None", "wait_for": "float | None", "on_progress": "Callable[[Any], object] | None"}

_WIDTH = 110

#: What a call gives, by the kind of call: of a `Client`, and of an `AsyncClient`.
_GIVES = {
    "call": ("{}", "Coroutine[Any, Any, {}]"),
    "submit": ("Future[{}]", "Task[{}]"),
    "notify": ("None", "Coroutine[Any, Any, None]"),
    "stream": ("Items[{}]", "AsyncItems[{}]"),
}


def write_python(api: Api) -> str:
    """The module. Raises DocumentError if it would be larger than `MAX_SIZE`."""
    return _Module(api).text()


#: A way to call a function: its parameters, what it gives, and its docstring.
_Form = tuple[list[str], str, list[str]]


@dataclass(slots=True)
class _Place:
    """What stands behind a prefix of dotted names: a method, places, or both."""

    method: Method | None = None
    places: dict[str, _Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Signature:
    """How a method is called.

    Attributes:
        parts: of its name; None if they are no attributes.
        call: the name of the Protocol for calls.
        notification: that of the one for notifications.
        result: what it gives.
        item: what its stream gives.
    """

    parts: list[str] | None
    call: str
    notification: str
    result: str
    item: str | None


class _Module:
    def __init__(self, api: Api) -> None:
        self._api = api
        self._types = PythonTypes(api)
        self._signatures: list[str] = []
        self._classes: list[str] = []
        self._known_forms: dict[tuple[str, bool], list[list[str]]] = {}
        #: The names of those that cannot be called with arguments of Python.
        self._left_out: list[str] = []
        #: Of the methods that can be called with arguments of Python: their signatures, and what they give.
        self._protocols: dict[str, _Signature] = {}

    def text(self) -> str:
        self._types.use("Protocol", "ClientMembers", "AsyncClientMembers")
        for method in self._api.methods:
            self._write_method(method)
        for is_async in (False, True):
            self._write_client("AsyncApi" if is_async else "Api", is_async)
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
            *self._types.imports(),
        ]
        return "\n".join([*head, *types, *self._signatures, *self._classes, ""])

    def _add(self, to: list[str], lines: list[str]) -> None:
        """Add lines to a part of the module."""
        self._types.count(lines)
        to += lines

    # -- signatures

    def _write_method(self, method: Method) -> None:
        """Write the Protocols of a method, unless there is no way to call it with arguments of Python."""
        forms = self._forms(method, is_notification=False)
        notifications = self._forms(method, is_notification=True)
        if not forms or not notifications:
            self._left_out.append(method.name)
            return
        parts = method.name.split(".")
        is_attribute = len(parts) <= MAX_PARTS and all(is_name(part) and part[0] != "_" for part in parts)
        owner = class_name(method.name)
        name = self._types.names.take(f"_{owner}") if is_attribute else ""
        signature = _Signature(
            parts if is_attribute else None,
            name,
            self._types.names.take(f"{name}Notification") if is_attribute else "",
            self._types.text(method.result, f"{owner}Result", is_input=False),
            None if method.item is None else self._types.text(method.item, f"{owner}Item", is_input=False),
        )
        self._protocols[method.name] = signature
        if not is_attribute:
            return
        self._types.use("TypeVar")
        text = docstring(documentation(method), " " * 8)
        for each, shapes, lines in ((name, forms, text), (signature.notification, notifications, [])):
            self._add(self._signatures, ["", "", f"class {each}(Protocol[R]):"])
            self._write_functions(self._signatures, "__call__", [(shape, "R", lines) for shape in shapes])

    def _write_functions(self, to: list[str], name: str, forms: list[_Form]) -> None:
        """Write a function, or the overloads of one: for each the parameters, what it gives, and its docstring."""
        for shape, gives, text in forms:
            if len(forms) > 1:
                self._types.use("overload")
                self._add(to, ["    @overload"])
            receiver = _free("self", _names_in(shape))
            head = f"    def {name}({', '.join([receiver, *shape])}) -> {gives}:"
            lines = [head]
            if len(head) > _WIDTH:
                parts = [f"        {part}," for part in [receiver, *shape]]
                lines = [f"    def {name}(", *parts, f"    ) -> {gives}:"]
            if text:
                self._add(to, [*lines, *text, "        ..."])
            else:
                self._add(to, [*lines[:-1], f"{lines[-1]} ..."])

    def _forms(self, method: Method, *, is_notification: bool) -> list[list[str]]:
        """The ways to give the arguments, each as the parameters of a function behind the first one."""
        key = (method.name, is_notification)
        if key not in self._known_forms:
            self._known_forms[key] = self._find_forms(method, is_notification)
        return self._known_forms[key]

    def _find_forms(self, method: Method, is_notification: bool) -> list[list[str]]:
        if method.parameters is None:
            self._types.use("Any")
            return [["*args: Any", "**kwargs: Any"]]
        taken = _NOTIFY_OPTIONS if is_notification else _CALL_OPTIONS
        fixed, further, others = method.fixed, method.rest("positional"), method.rest("named")
        positional = method.by_position() if method.takes_positions else []
        named = [each for each in fixed if each.name not in taken]

        def kind(parameter: Parameter) -> str:
            owner = class_name(method.name, parameter.name)
            return self._types.text(parameter.type, owner, is_input=True, is_sent=is_notification)

        def options(*names: str) -> str:
            type_of_options = "NotifyOptions" if is_notification else "CallOptions"
            self._types.use("Unpack", type_of_options)
            return f"**{_free('options', names)}: Unpack[{type_of_options}]"

        if method.takes_names and len(fixed) <= 1 and not further and not others:
            if not fixed:
                return [[options()]]
            if positional and named and is_name(fixed[0].name):
                default = "" if fixed[0].is_required else " = ..."
                return [[f"{fixed[0].name}: {kind(fixed[0])}{default}", options(fixed[0].name)]]
        forms: list[list[str]] = []
        if positional or (method.takes_positions and further):
            names = Names(frozenset(("self", "options", *taken)))
            form = []
            for each, is_required in positional:
                name = names.take(each.name if is_name(each.name) else "argument")
                form.append(f"{name}: {kind(each)}{'' if is_required else ' = ...'}")
            form += ["/"] if form else []
            form += [f"*{names.take('more')}: {kind(further)}"] if further else []
            forms.append([*form, options()])
        is_hidden = any(each.is_required and each.name in taken for each in fixed)
        if method.takes_names and not is_hidden and (named or others or not forms):
            forms.append(self._by_name(method, named, kind, options, taken))
        return forms

    def _by_name(
        self,
        method: Method,
        named: list[Parameter],
        kind: Callable[[Parameter], str],
        options: Callable[..., str],
        taken: tuple[str, ...],
    ) -> list[str]:
        """The parameters of a function that takes them by name only."""
        names = [each.name for each in named]
        others = method.rest("named")
        if all(map(is_name, names)):
            form = [f"{each.name}: {kind(each)}{'' if each.is_required else ' = ...'}" for each in named]
            star = ["*"] if named else []
            if others is None:
                return [*star, *form, options(*names)]
            return ["*", *form, *self._options_one_by_one(taken), f"**{_free('others', names)}: {kind(others)}"]
        if others is not None:
            return ["*", *self._options_one_by_one(taken), f"**params: {self._types.named('Any')}"]
        # Names that no parameter can have: `**params`, of a TypedDict.
        self._types.use("TypedDict", "Unpack")
        name = self._types.names.take(f"_{class_name(method.name)}Params")
        lines = []
        for each in named:
            text = kind(each)
            if not each.is_required:
                self._types.use("NotRequired")
                text = f"NotRequired[{text}]"
            lines.append(f"    {quoted(each.name)}: '{text}',")
        self._types.define(name, ["", f'{name} = TypedDict("{name}", {{', *lines, "})"])
        return ["*", *self._options_one_by_one(taken), f"**params: Unpack[{name}]"]

    def _options_one_by_one(self, taken: tuple[str, ...]) -> list[str]:
        return [f"{each}: {self._types.named(_OPTION_TYPES[each])} = ..." for each in taken if each in _OPTION_TYPES]

    # -- what a client has

    def _write_client(self, name: str, is_async: bool) -> None:
        written = {kind: self._write_kind(kind, name, is_async) for kind in ("notify", "submit", "stream")}
        lines = [f"    {kind}: {inner}" for kind, inner in written.items() if inner is not None]
        self._write_kind("call", name, is_async, lines)

    def _write_kind(self, kind: str, api: str, is_async: bool, more: list[str] | None = None) -> str | None:
        """Write what stands for one kind of call; gives the name of its class, None if there is no such call."""
        root, hidden = _Place(), []
        for method in self._api.methods:
            signature = self._protocols.get(method.name)
            if signature is None or (kind == "stream" and method.item is None):
                continue
            if signature.parts is None or (kind == "call" and signature.parts[0] in CLIENT_NAMES):
                hidden.append(method)
                continue
            place = root
            for part in signature.parts:
                place = place.places.setdefault(part, _Place())
            place.method = method
        if kind != "call" and not root.places and not hidden:
            return None
        words = api if kind == "call" else f"_{api}{kind.capitalize()}"
        bases = [self._write_by_name(kind, words, is_async, hidden[:MAX_BY_NAME])] if hidden else []
        if more is None:
            return self._write_place(root, kind, words, is_async, bases)
        members = "AsyncClientMembers" if is_async else "ClientMembers"
        text = [f"What {'an `AsyncClient`' if is_async else 'a `Client`'} of this server has."]
        if left_out := self._left_out + [each.name for each in hidden[MAX_BY_NAME:]]:
            names = ", ".join(left_out[:MAX_BY_NAME]) + (", ..." if len(left_out) > MAX_BY_NAME else "")
            text += ["", f"Only with `request`: {names}"]
        self._write_place(
            root,
            kind,
            words,
            is_async,
            [*bases, members],
            [*docstring(text, "    "), *([""] if more or root.places else []), *more],
        )
        return words

    def _write_by_name(self, kind: str, words: str, is_async: bool, methods: list[Method]) -> str:
        """Write the calls of methods whose names are no attributes: `call("a-b", …)`, `submit("a-b", …)`."""
        name = self._types.names.take(f"_{words.lstrip('_')}ByName")
        self._types.use("Literal")
        self._add(self._classes, ["", "", f"class {name}(Protocol):"])
        forms: list[_Form] = []
        for method in methods:
            gives = self._gives(method, kind, is_async)
            for form in self._forms(method, is_notification=kind == "notify"):
                first = f"{_free('method', _names_in(form))}: Literal[{quoted(method.name)}]"
                forms.append(([first, *([] if "/" in form else ["/"]), *form], gives, []))
        self._write_functions(self._classes, "call" if kind == "call" else "__call__", forms)
        return name

    def _write_place(
        self,
        place: _Place,
        kind: str,
        words: str,
        is_async: bool,
        bases: list[str],
        lines: list[str] | None = None,
    ) -> str:
        """Write the class of what stands behind a prefix; gives its name."""
        name = words if words in ("Api", "AsyncApi") else self._types.names.take(words)
        body = []
        for part, inner in sorted(place.places.items()):
            if inner.places:
                below = f"_{words.lstrip('_')}{class_name(part)}"
                # As text: a base is looked at when the module runs, where the names for checkers are not there.
                own = [] if inner.method is None else [self._signature(inner.method, kind, is_async, mark="'")]
                body.append((part, self._write_place(inner, kind, below, is_async, own)))
            elif inner.method is not None:
                body.append((part, self._signature(inner.method, kind, is_async)))
        attributes = {part for part, _ in body}
        found = [f"    {part}: {self._unshadowed(text, attributes)}" for part, text in body]
        content = [*(lines or []), *found] or ["    pass"]
        self._add(self._classes, ["", "", f"class {name}({', '.join([*bases, 'Protocol'])}):", *content])
        return name

    def _signature(self, method: Method, kind: str, is_async: bool, mark: str = "") -> str:
        signature = self._protocols[method.name]
        name = signature.notification if kind == "notify" else signature.call
        return f"{name}[{mark}{self._gives(method, kind, is_async)}{mark}]"

    def _gives(self, method: Method, kind: str, is_async: bool) -> str:
        signature = self._protocols[method.name]
        inner = signature.item if kind == "stream" else signature.result
        return self._types.named(_GIVES[kind][is_async]).format(inner)

    def _unshadowed(self, text: str, attributes: set[str]) -> str:
        """A type, in a class that has attributes of these names: `int` is the method there, if one is called so."""
        return text if attributes.isdisjoint(words_in(text)) else self._types.unshadowed(text, attributes)


def _names_in(form: list[str]) -> set[str]:
    """The names of parameters."""
    return {part.lstrip("*").partition(":")[0] for part in form}


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name = f"_{name}"
    return name
