"""The options of registering a method: documented, typed and with their defaults in one place.

Owns what users may give to `@server`, `Server.add`, `add_object`, `add_module`, `batched`, and `@client`. Does not know
what the options do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ..auth.allow import AllowRule
from ..errors import RpcError

if TYPE_CHECKING:
    from .about import Example

Offload = Literal["thread", "process"]


class CommonOptions(TypedDict, total=False):
    """Options of every kind of method.

    Attributes:
        timeout: seconds after which the caller is answered with -32003. Not for a sync function that runs in the event
            loop, since nothing could stop it there; a generator can be stopped between its items.
        check_result: check what the function returns against its return hint.
        idempotent: calling it twice does no harm: `rpc.discover` says so, and clients may repeat lost calls.
        allow: who may call it: a name, several, or a function of the identity. Others are answered with -32006.
        mcp: it is a tool for agents, where the server has `mcp`.
        replace: take the place of a method of that name, if there is one.
        tags: groups of methods that it belongs to, for `rpc.discover`; None: what stands before the first dot in its
            name.
        errors: what it raises on purpose, for `rpc.discover`: `RpcError(404, "Not found")`, or a class of them.
        deprecated: True, or the reason: new programs should not call it; `rpc.discover` says so. One that is decorated
            with `warnings.deprecated` is, too.
    """

    timeout: float | None
    check_result: bool
    idempotent: bool
    allow: AllowRule | None
    mcp: bool
    replace: bool
    tags: Iterable[str] | None
    errors: Iterable[RpcError | type[RpcError]]
    deprecated: bool | str


class GroupOptions(CommonOptions, total=False):
    """Options of several methods that are added together.

    Attributes:
        offload: "thread" or "process": where a sync function that blocks or computes for long is run; None: in the
            event loop.
        ordered: calls of ordered methods that come on one connection run one after the other, in that order.
        detached: the handler goes on when its caller is gone; others are cancelled then.
    """

    offload: Offload | None
    ordered: bool
    detached: bool


class MethodOptions(GroupOptions, total=False):
    """Options of a method.

    Attributes:
        name: the remote name, dots allowed; None: the function's own.
        examples: calls with their results, for `rpc.discover`: `Example({"a": 1}, 2)`. They are checked against the
            hints.
    """

    name: str | None
    examples: Iterable[Example]


class MicrobatchOptions(CommonOptions, total=False):
    """Options of a method that is run with several items together.

    Attributes:
        name: the remote name, dots allowed; None: the function's own.
        max_size: items in one run at most.
        max_wait: seconds that the first item waits for others; 0 takes those that are there.
        threads: runs at the same time, async ones too.
        offload: "thread": a sync function runs in threads of its own; None: in the event loop.
        retry_single: when a run raises, each of its items is run again, alone.
        max_queue: items that may wait; one more is answered with -32002.
        examples: calls with their results, for `rpc.discover`: `Example({"a": 1}, 2)`.
    """

    name: str | None
    max_size: int
    max_wait: float
    threads: int
    offload: Literal["thread"] | None
    retry_single: bool
    max_queue: int
    examples: Iterable[Example]


class CallbackOptions(MethodOptions, total=False):
    """Options of a method that a client offers to its server.

    Attributes:
        shared: at a hub, other clients may offer a method of this name, too.
    """

    shared: bool


#: The default of every option of a method.
METHOD_DEFAULTS: Mapping[str, Any] = {
    "name": None,
    "timeout": None,
    "offload": None,
    "check_result": True,
    "ordered": False,
    "detached": False,
    "idempotent": False,
    "allow": None,
    "mcp": True,
    "replace": False,
    "tags": None,
    "errors": (),
    "examples": (),
    "deprecated": False,
}

#: The default of every option of `batched`.
MICROBATCH_DEFAULTS: Mapping[str, Any] = {
    "max_size": 32,
    "max_wait": 0.002,
    "threads": 1,
    "offload": "thread",
    "retry_single": True,
    "max_queue": 10_000,
    "name": None,
    "timeout": None,
    "check_result": True,
    "idempotent": False,
    "allow": None,
    "mcp": True,
    "replace": False,
    "tags": None,
    "errors": (),
    "examples": (),
    "deprecated": False,
}
