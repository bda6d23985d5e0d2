"""Calls before they are sent: methods as attributes of a client, and a method with its params and options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from inspect import Signature
from typing import Any

from ..wire import envelope
from ..wire.buffers import Encoded
from .marshal import NOT_GIVEN, Marshaller
from .pending import PendingCall, PendingCalls


class Call:
    """One call of one method, which is sent and waits for its reply.

    The order: `enter`, then `encode` and send; `leave` if the wait is given up; `outcome` when the reply is there.

    Args:
        marshaller: writes the request and reads the reply.
        timeout: as the caller gave it; the peer is told how long the caller waits if there is one.
        returns: the type of the result, or of an item of it.
        window: items of the result that may be sent ahead of its reader; None: the result is wanted whole.

    Attributes:
        call_id: the id that it has in the table of pending calls.
        params: an iterator among them is sent item by item.
        tells_time: the peer is told how long the caller waits.
        is_repeatable: it can be sent again; not once an iterator is being sent.
        is_notice: no reply comes; the call ends when it is sent.
        trace: records it (`observe.tracing.CallSpan`), and gives further members of its request; None: nothing does.
    """

    call_id: int | str = 0
    is_repeatable = True
    is_notice = False
    trace: Any = None

    def __init__(
        self,
        marshaller: Marshaller,
        method: str,
        params: Any = None,
        timeout: Any = NOT_GIVEN,
        returns: Any = NOT_GIVEN,
        window: int | None = None,
    ) -> None:
        self.method = method
        self.params = params
        self.tells_time = timeout is not NOT_GIVEN and timeout is not None
        self.window = window
        self.marshaller = marshaller
        self.returns = returns

    @property
    def methods(self) -> Sequence[str]:
        """The names of the methods that are called."""
        return (self.method,)

    @property
    def call_ids(self) -> Sequence[int | str]:
        """The ids in the table of pending calls."""
        return (self.call_id,)

    def begin_span(self, make: Callable[[str], Any]) -> Any:
        """Begin the span of this call, a context manager (`peer.tracing`).

        Args:
            make: makes the span of a call of the method with this name.
        """
        self.trace = make(self.method)
        return self.trace

    def enter(self, pending: PendingCalls, call: PendingCall) -> None:
        """Enter the table of pending calls, so that `call` gets the reply.

        Args:
            pending: the table.
            call: waits for the reply.
        """
        self.call_id = pending.add(call)

    def encode(self, left: float, *, says_whole: bool = False) -> Encoded:
        """The bytes of the request. Raises what `Marshaller.encode` raises.

        Args:
            left: seconds until the caller gives up (may be infinite).
            says_whole: tell the server that the result is wanted whole, though it could send items.
        """
        timeout = told(left) if self.tells_time else None
        message = envelope.request(self.method, self.params, call_id=self.call_id, timeout=timeout, stream=self.window)
        if self.trace is not None:
            message.update(self.trace.sent(self.call_id))
        return self.marshaller.encode({"stream": None, **message} if says_whole else message, self.method)

    def leave(self, pending: PendingCalls) -> list[int | str]:
        """Leave the table, since the wait is given up; gives the ids of the calls that had no reply yet."""
        return [call_id for call_id in self.call_ids if pending.discard(call_id)]

    def outcome(self, reply: dict[str, Any], line: bytes | bytearray) -> Any:
        """The value that the caller gets for the reply; raises the error that it gets."""
        return self.marshaller.value(self.method, reply, line, self.returns)


class RawCall(Call):
    """A request object that is sent as it is, id included; the outcome is the whole response object.

    `enter` raises ValueError if the id is neither a string nor an integer, or belongs to a waiting call.
    """

    def __init__(self, marshaller: Marshaller, message: dict[str, Any]) -> None:
        method, window = message.get("method"), message.get("stream")
        super().__init__(
            marshaller,
            method if isinstance(method, str) else "(no method)",
            window=window if type(window) is int else None,
        )
        self._message = message

    def enter(self, pending: PendingCalls, call: PendingCall) -> None:
        self.call_id = self._message["id"]
        pending.add_as(self.call_id, call)

    def encode(self, left: float, *, says_whole: bool = False) -> Encoded:
        more = {} if self.trace is None else self.trace.sent(self.call_id)
        return self.marshaller.encode({**more, **self._message}, self.method)

    def outcome(self, reply: dict[str, Any], line: bytes | bytearray) -> dict[str, Any]:
        return self.marshaller.response(self.method, reply, line)


class Notice(Call):
    """A message without a reply, such as a notification: the call ends as soon as it is sent.

    Args:
        marshaller: as for `Call`.
        method: for errors.
        make: encodes the message; called when there is a connection for it.
    """

    is_notice = True
    methods = ()
    call_ids: Sequence[int | str] = ()

    def __init__(self, marshaller: Marshaller, method: str, make: Callable[[], Encoded]) -> None:
        super().__init__(marshaller, method)
        self._make = make

    def begin_span(self, make: Callable[[str], Any]) -> Any:
        return nullcontext()  # what `make` encodes has a span of its own

    def enter(self, pending: PendingCalls, call: PendingCall) -> None:
        self.call_ids = pending.add_notice(call)

    def encode(self, left: float, *, says_whole: bool = False) -> Encoded:
        return self._make()

    def outcome(self, reply: dict[str, Any], line: bytes | bytearray) -> None: ...


def params_of(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | dict[str, Any] | None:
    """Turn Python arguments into the params of a call; None for none. TypeError for both positional and named ones."""
    if args and kwargs:
        raise unnamed(method, "here the names of parameters are not known")
    return list(args) or kwargs or None


def unnamed(method: str, reason: str) -> TypeError:
    """The error for positional and named arguments that cannot be sent together."""
    return TypeError(
        f"{method}() was called with positional and named arguments, and {reason}; JSON-RPC takes either: name them all"
    )


def told(left: float) -> float | None:
    """The member "timeout" of a request, for the time (s) that is left to the caller."""
    return None if left == float("inf") else max(round(left, 3), 0.001)


#: Remote methods that a client keeps as attributes once they were used, its own attributes included.
NAMES_KEPT = 256

#: Attributes that the clients have themselves: a remote method of such a name is called by `client.call(name, …)`.
CLIENT_NAMES = frozenset(
    """address batch call close discover from_config notify notify_client offer on_connect publish
    registered_name replies_dropped request run shared_empty state stream stream_request submit subscribe wait_closed
    withdraw""".split()  # noqa: SIM905 - a list takes a line for each name
)


class _Documentation:
    """The attribute `__doc__`: of the class its own text, of a remote method the documentation from the server."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, method: Method | None, owner: type) -> str | None:
        if method is None:
            return self._text
        known = _known_methods(method)
        return None if known is None else known.description(_name(method))


class Method(partial[Any]):
    """A remote method: a function that makes a call, and the name of the method.

    An attribute of it is a method with a longer, dotted name. Without a name it stands for all methods of an object:
    `client.notify.name(…)`, or `client.notify("name", …)` for any name.

    A `partial`, so that a call of it costs next to nothing. Methods below it that are named as its own attributes are,
    `func`, `args` and `keywords`, are called by `client.call("a.func", …)`.
    """

    __doc__: Any = _Documentation(__doc__ or "")

    @property
    def __signature__(self) -> Signature:
        known = _known_methods(self)
        signature = None if known is None else known.signature(_name(self))
        if signature is None:
            raise AttributeError("__signature__")
        return signature  # type: ignore[no-any-return]

    def __dir__(self) -> list[str]:
        known = _known_methods(self)
        return [] if known is None else known.names_below(_prefix(self))

    def __getattr__(self, name: str) -> Method:
        return Method(_make_call(self), _prefix(self) + remote_name(self, name))

    def __repr__(self) -> str:
        return f"<remote method {_name(self)!r}>"


_make_call = partial.func.__get__
_bound = partial.args.__get__


def _name(method: Method) -> str:
    return "".join(_bound(method))


def _prefix(method: Method) -> str:
    name = _name(method)
    return f"{name}." if name else ""


def _known_methods(method: Method) -> Any:
    """What the client of a remote method knows of its server (`client.discovery.KnownMethods`); None: nothing."""
    return getattr(getattr(_make_call(method), "__self__", None), "__descriptions__", None)


def remote_name(owner: object, name: str) -> str:
    """The name of an attribute as (part of) a method name; AttributeError for names that are never remote."""
    if name.startswith("_"):
        raise AttributeError(
            f"{type(owner).__name__!r} has no attribute {name!r}; for a method of that name use call({name!r}, …)"
        )
    return name
