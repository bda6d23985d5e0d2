"""A remote method, as it is registered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..auth.allow import CallerRule
from .arguments import Bind
from .injection import Injection
from .options import Offload
from .signature import Signature

#: Runs the handler of a `Call` with these arguments.
Run = Callable[[Any, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Method:
    """A remote method: its function, and all that a call of it needs.

    Attributes:
        bind: gives the arguments for the function (`Signature.bind`).
        returns: a result of this very class needs no `check_result`.
        inline: it is a plain sync function, which is called while its message is read.
        is_plain: it is awaited, and a call needs nothing but its arguments.
        begins_now: it is a sync function in the event loop that is called at once, be it a generator or with a Context.
        injection: what the handler gets beside the arguments on the wire; None for nothing.
        run: runs a `Call`: its handler, with its dependencies and the middleware around.
        is_generator: its function is a generator function.
        stream: the same method for callers that take the items one by one; None unless it is a generator function.
        check_item: checks and converts an item of a generator; None where there is nothing to check.
        allow: who may call it; None: every caller.
        docs: what its options say of it, as members of a Method Object of OpenRPC.

    The other attributes are those of `MethodOptions`.
    """

    name: str
    function: Callable[..., Any]
    signature: Signature
    bind: Bind
    is_async: bool
    offload: Offload | None
    timeout: float | None
    check_result: Callable[[Any], Any] | None
    returns: type | None
    inline: bool
    is_plain: bool
    begins_now: bool
    injection: Injection | None
    run: Run
    is_generator: bool
    stream: Method | None
    check_item: Callable[[Any], Any] | None
    ordered: bool
    detached: bool
    idempotent: bool
    allow: CallerRule | None
    mcp: bool
    docs: dict[str, Any]
