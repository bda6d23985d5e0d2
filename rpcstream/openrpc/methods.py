"""The methods that an OpenRPC document offers, and how they can be called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter as Kind
from typing import Any

from .types import NamedType, Node

#: Names of the protocol's own methods begin with this.
RESERVED_PREFIX = "rpc."

_REST = {"positional": Kind.VAR_POSITIONAL, "named": Kind.VAR_KEYWORD}


@dataclass(slots=True)
class Parameter:
    """A parameter of a method.

    Attributes:
        rest: "positional" or "named" if it takes all further arguments.
        is_keyword: it cannot be given by position.
        default: as text; "" if there is none.
        bounds: of its values, as text.
    """

    name: str
    type: Node
    is_required: bool
    rest: str = ""
    is_keyword: bool = False
    default: str = ""
    bounds: str = ""
    description: str = ""


@dataclass(slots=True)
class Method:
    """A method.

    Attributes:
        described: its entry in the document.
        parameters: None if the document does not say what they are.
        takes_positions: the params can be an array.
        takes_names: the params can be an object.
        item: of its stream; None if it does not stream.
        deprecated: why calls of it should be replaced, "" if the document gives no reason; None if they need not.
    """

    name: str
    described: Mapping[str, Any]
    parameters: list[Parameter] | None
    takes_positions: bool
    takes_names: bool
    result: Node
    item: Node | None
    description: str
    result_description: str
    deprecated: str | None

    @property
    def fixed(self) -> list[Parameter]:
        """The parameters that have a name of their own."""
        return [each for each in self.parameters or () if not each.rest]

    @property
    def summary(self) -> str:
        """The first paragraph of its description, on one line."""
        return " ".join(self.description.partition("\n\n")[0].split())

    def rest(self, kind: str) -> Parameter | None:
        """The parameter that takes all further arguments, "positional" or "named"."""
        return next((each for each in self.parameters or () if each.rest == kind), None)

    def by_position(self) -> list[tuple[Parameter, bool]]:
        """The parameters that can be given by position, and whether each must be: all before a required one must."""
        # A client takes arguments by position and by name in one call, even if the params are an object then.
        takes_positions = self.takes_positions or any(each.is_keyword for each in self.fixed)
        positional = [each for each in self.fixed if takes_positions and not each.is_keyword]
        last = max((at for at, each in enumerate(positional) if each.is_required), default=-1)
        return [(each, at <= last) for at, each in enumerate(positional)]

    def in_order(self) -> list[tuple[Parameter, Any]]:
        """All parameters in the order of a Python signature, each with its kind (`inspect.Parameter.kind`)."""
        positional = [each for each, _ in self.by_position()]
        usual = Kind.POSITIONAL_OR_KEYWORD, Kind.KEYWORD_ONLY
        kinds = [(each, _REST.get(each.rest, usual[each not in positional])) for each in self.parameters or ()]
        return sorted(kinds, key=lambda each: each[1])


@dataclass(slots=True)
class Api:
    """What a document offers.

    Attributes:
        methods: sorted by name, the protocol's own last.
        named: the types that the methods refer to, by key.
    """

    title: str
    version: str
    methods: list[Method]
    named: dict[str, NamedType]

    def method(self, name: str) -> Method | None:
        """The method of this name, if there is one."""
        return next((each for each in self.methods if each.name == name), None)
