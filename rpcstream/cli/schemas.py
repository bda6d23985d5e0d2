"""What the parameters of a method take, as far as that decides how an argument of the command line is sent."""

from __future__ import annotations

from typing import Any

from ..openrpc.methods import Api, Method
from ..openrpc.types import ANY, FORMATS, Node, Plain, Rich, Values, alternatives

_KINDS: dict[type, tuple[str, ...]] = {
    bool: ("bool",),
    int: ("int", "float"),
    float: ("float",),
    str: ("str", *FORMATS),
    type(None): ("null",),
}


class MethodTypes:
    """What the parameters of one method take.

    Args:
        api: what the server offers.
        method: one of its methods.
    """

    def __init__(self, api: Api, method: Method) -> None:
        self._api = api
        self._method = method

    def taken(self, where: str | int) -> list[Node] | None:
        """The types of the parameter with this name, or at this position; None if they are not known."""
        method = self._method
        fixed = {each.name: each for each in method.fixed}
        by_position = [each for each, _ in method.by_position()]
        if isinstance(where, int):
            found = by_position[where] if where < len(by_position) else method.rest("positional")
        else:
            found = fixed.get(where) or method.rest("named")
        types = self.alternatives(ANY if found is None else found.type)
        return None if ANY in types else types

    def alternatives(self, node: Node) -> list[Node]:
        """The types of which a value has one, named ones by what they stand for."""
        return alternatives(node, self._api.named)


def wants_text(taken: list[Node] | None, value: Any) -> bool:
    """Whether a parameter takes text, and not this value, which is a number, a bool or None."""
    return taken is not None and takes(taken, str) and not takes(taken, type(value))


def takes(taken: list[Node], kind: type) -> bool:
    """Whether a parameter takes a bool, an int, a float, a str or None."""
    names = _KINDS[kind]
    return any(
        each.kind in names
        if isinstance(each, Plain)
        else isinstance(each, Values) and any(name in names for name, _ in each.values)
        for each in taken
    )


def dtypes_in(taken: list[Node] | None) -> list[str]:
    """The dtypes of the arrays that a parameter takes; empty if it takes all of them, or no array."""
    return [dtype for each in taken or () if isinstance(each, Rich) for dtype in each.dtypes]
