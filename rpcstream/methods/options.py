"""The options of `@server`, `Server.add`, `add_object`, `add_module`, `batched` and `@client`, with their defaults."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from ..auth.authenticator import AllowRule
from ..errors import RpcError
from ..option import Option, defaults_of

if TYPE_CHECKING:
    from .method_docs import Example

Offload = Literal["thread", "process"]


class CommonOptions(TypedDict, total=False):
    """Options of every kind of method.

    Attributes:
        timeout: seconds after which the caller is answered with -32003. Not for a sync function that runs in the event
            loop, since nothing could stop it there; a generator can be stopped between its items.
        check_result: check what the function returns against its return hint.
        idempotent: calling it twice does no harm. `rpc.discover` says so, and clients may repeat lost calls.
        allow: who may call it: a name, several, or a function of the identity. Others are answered with -32006.
        mcp: it is a tool for agents, where the server has `mcp`.
        replace: take the place of a method of that name, if there is one.
        tags: groups of methods that it belongs to, for `rpc.discover`; None: what stands before the first dot in its
            name.
        errors: what it raises on purpose, for `rpc.discover`: `RpcError(404, "Not found")`, or a class of them.
        deprecated: True, or the reason: new programs should not call it; `rpc.discover` says so. One that is decorated
            with `warnings.deprecated` is, too.
    """

    timeout: Annotated[float | None, Option()]
    check_result: Annotated[bool, Option(True)]
    idempotent: Annotated[bool, Option(False)]
    allow: Annotated[AllowRule | None, Option()]
    mcp: Annotated[bool, Option(True)]
    replace: Annotated[bool, Option(False)]
    tags: Annotated[Iterable[str] | None, Option()]
    errors: Annotated[Iterable[RpcError | type[RpcError]], Option(())]
    deprecated: Annotated[bool | str, Option(False)]


class GroupOptions(CommonOptions, total=False):
    """Options of several methods that are added together.

    Attributes:
        offload: "thread" or "process": where a sync function that blocks or computes for long is run; None: in the
            event loop.
        ordered: calls of ordered methods that come on one connection run one after the other, in that order.
        detached: the handler goes on when its caller is gone; others are cancelled then.
    """

    offload: Annotated[Offload | None, Option()]
    ordered: Annotated[bool, Option(False)]
    detached: Annotated[bool, Option(False)]


class MethodOptions(GroupOptions, total=False):
    """Options of a method.

    Attributes:
        name: the remote name, dots allowed; None: the function's own.
        examples: calls with their results, for `rpc.discover`: `Example({"a": 1}, 2)`. They are checked against the
            hints.
    """

    name: Annotated[str | None, Option()]
    examples: Annotated[Iterable["Example"], Option(())]


class MicrobatchOptions(CommonOptions, total=False):
    """Options of a method that is run with several items together.

    Attributes:
        name: the remote name, dots allowed; None: the function's own.
        max_size: items in one run at most.
        max_wait: seconds that the first item waits for others; 0 takes those that are there.
        threads: runs at the same time, async ones too.
        offload: "thread": a sync function runs in a thread (`asyncio.to_thread`); None: in the event loop.
        retry_single: when a run raises, each of its items is run again, alone.
        max_queue: items that may wait; one more is answered with -32002.
        examples: calls with their results, for `rpc.discover`: `Example({"a": 1}, 2)`.
    """

    name: Annotated[str | None, Option()]
    max_size: Annotated[int, Option(32)]
    max_wait: Annotated[float, Option(0.002)]
    threads: Annotated[int, Option(1)]
    offload: Annotated[Literal["thread"] | None, Option("thread")]
    retry_single: Annotated[bool, Option(True)]
    max_queue: Annotated[int, Option(10_000)]
    examples: Annotated[Iterable["Example"], Option(())]


class CallbackOptions(MethodOptions, total=False):
    """Options of a method that a client offers to its server.

    Attributes:
        shared: at a hub, other clients may offer a method of this name, too.
    """

    shared: Annotated[bool, Option(False)]


#: The default of every option of a method, and of `batched`.
METHOD_DEFAULTS: Mapping[str, Any] = defaults_of(MethodOptions)
MICROBATCH_DEFAULTS: Mapping[str, Any] = defaults_of(MicrobatchOptions)
