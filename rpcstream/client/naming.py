"""Names for arguments that were given by position beside others by name, which JSON-RPC cannot say (section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..peer.calls import unnamed

if TYPE_CHECKING:
    from .discovery import KnownMethods  # imports the reader of OpenRPC, which most clients do without


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


def named(method: str, mixed: MixedParams, known: KnownMethods | None) -> dict[str, Any]:
    """All arguments of a call by name.

    Args:
        known: the server's methods; None if they are not known.

    Raises:
        TypeError: that cannot be done.
    """
    described = None if known is None else known.method(method)
    if described is None:
        raise unnamed(method, "rpc.discover did not say how its parameters are named")
    if not described.takes_names:
        raise unnamed(method, "it takes arguments by position only")
    positional = [each.name for each in described.fixed if not each.is_keyword]
    if len(mixed.args) > len(positional):
        raise unnamed(method, f"only {len(positional)} of the {len(mixed.args)} by position can get names")
    by_position = dict(zip(positional, mixed.args, strict=False))
    if twice := by_position.keys() & mixed.kwargs.keys():
        raise unnamed(method, f"{min(twice)!r} was given twice")
    return {**by_position, **mixed.kwargs}
