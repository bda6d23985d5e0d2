"""Names for arguments that were given by position beside others by name, which JSON-RPC cannot say (section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..peer.calls import unnamed


class MixedParams:
    """Arguments by position and by name, until the names of the former are known."""

    __slots__ = ("args", "kwargs")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs

    def __iter__(self) -> Iterator[Any]:
        return iter((*self.args, *self.kwargs.values()))


def given_params(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | dict[str, Any] | MixedParams | None:
    """The params of a call for Python arguments; None for none."""
    return MixedParams(args, kwargs) if args and kwargs else list(args) or kwargs or None


def check_params(method: str, params: Any) -> Any:
    """Check explicit params of a call: list, dict or None; a tuple becomes a list. TypeError for anything else."""
    if isinstance(params, tuple):
        return list(params)
    if params is not None and not isinstance(params, list | dict | MixedParams):
        raise TypeError(f"the params of {method!r} must be a list, a dict or None, got {type(params).__name__}")
    return params


class MethodFacts(NamedTuple):
    """What a server's OpenRPC document says of one method, as far as a call needs it.

    Attributes:
        positional: the parameters that take arguments by position, in order; none where not all can be read.
        takes_names: arguments may be given by name.
        streams: it gives items, one by one.
    """

    is_idempotent: bool
    streams: bool
    positional: tuple[str, ...]
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
        streams=method.get("x-stream") is True,
        positional=tuple(each["name"] for each in fixed if each.get("x-keyword") is not True),
        takes_names=method.get("paramStructure") != "by-position",
    )


def named(method: str, mixed: MixedParams, known: Mapping[str, MethodFacts] | None) -> dict[str, Any]:
    """All arguments of a call by name.

    Args:
        known: the server's methods; None if they are not known.

    Raises:
        TypeError: that cannot be done.
    """
    facts = None if known is None else known.get(method)
    if facts is None:
        raise unnamed(method, "rpc.discover did not say how its parameters are named")
    if not facts.takes_names:
        raise unnamed(method, "it takes arguments by position only")
    if len(mixed.args) > len(facts.positional):
        raise unnamed(method, f"only {len(facts.positional)} of the {len(mixed.args)} by position can get names")
    by_position = dict(zip(facts.positional, mixed.args, strict=False))
    if twice := by_position.keys() & mixed.kwargs.keys():
        raise unnamed(method, f"{min(twice)!r} was given twice")
    return {**by_position, **mixed.kwargs}
