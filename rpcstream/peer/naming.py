"""Names for arguments that were given by position beside others by name, which JSON-RPC cannot say (section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import RpcError


class MixedParams:
    """Arguments by position and by name, until the names of the former are known."""

    __slots__ = ("args", "kwargs")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs


class MethodFacts(NamedTuple):
    """What a server's OpenRPC document says of one method, as far as a call needs it.

    Attributes:
        positional: the parameters that take arguments by position, in order; none where not all can be read.
        names: all parameters but those that stand for further arguments.
        takes_names: arguments may be given by name.
    """

    is_idempotent: bool
    positional: tuple[str, ...]
    names: tuple[str, ...]
    takes_names: bool


def facts_of(document: Any) -> dict[str, MethodFacts]:
    """The methods in a server's `rpc.discover` document by name; malformed ones are left out."""
    methods = document.get("methods") if isinstance(document, dict) else None
    return {
        method["name"]: _facts(method)
        for method in (methods if isinstance(methods, list) else ())
        if isinstance(method, dict) and isinstance(method.get("name"), str)
    }


def _facts(method: dict[str, Any]) -> MethodFacts:
    params = method.get("params")
    described = params if isinstance(params, list) else []
    if not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in described):
        described = []  # `$ref`, for example: the others may stand in other places than they seem to
    fixed = [each for each in described if "x-rest" not in each]
    return MethodFacts(
        is_idempotent=method.get("x-idempotent") is True,
        positional=tuple(each["name"] for each in fixed if each.get("x-keyword") is not True),
        names=tuple(each["name"] for each in fixed),
        takes_names=method.get("paramStructure") != "by-position",
    )


def named(method: str, mixed: MixedParams, known: Mapping[str, MethodFacts] | None) -> dict[str, Any]:
    """All arguments of a call by name.

    Args:
        known: the server's methods; None if they are not known.

    Raises:
        TypeError: that cannot be done; the text has the call as it is to be written.
    """
    facts = None if known is None else known.get(method)
    if facts is None:
        raise unnamed(method, mixed, "rpc.discover did not say how its parameters are named")
    if not facts.takes_names:
        raise unnamed(method, mixed, "it takes arguments by position only", facts)
    if len(mixed.args) > len(facts.positional):
        reason = f"{len(facts.positional)} of the {len(mixed.args)} arguments by position can get names"
        raise unnamed(method, mixed, reason, facts)
    twice = [name for name in facts.positional[: len(mixed.args)] if name in mixed.kwargs]
    if twice:
        raise unnamed(method, mixed, f"{twice[0]!r} was given twice", facts)
    return {**dict(zip(facts.positional, mixed.args, strict=False)), **mixed.kwargs}


def refused(method: str, mixed: MixedParams, error: RpcError) -> TypeError:
    """The error of a call whose arguments have no names, because `rpc.discover` failed."""
    return unnamed(method, mixed, f"rpc.discover was refused ({error.message})")


def unnamed(method: str, mixed: MixedParams, reason: str, facts: MethodFacts | None = None) -> TypeError:
    """The error for positional and named arguments that cannot be sent together."""
    if facts is not None and not facts.takes_names:
        written = list(facts.names)
    elif facts is not None:
        written = [f"{name}=…" for name in dict.fromkeys((*facts.names, *mixed.kwargs))]
    else:
        written = ["<name>=…" for _ in mixed.args] + [f"{name}=…" for name in mixed.kwargs]
    return TypeError(
        f"{method}() was called with positional and named arguments, and {reason}; "
        f"JSON-RPC takes either the one or the other: {method}({', '.join(written)})"
    )
