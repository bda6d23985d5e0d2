"""Marshalling of calls: arguments to the bytes of a request, and replies to values; for all clients and for calls back.

Owns the checks of arguments, the size limit of messages that are sent, and the reading of replies and items. Pure:
knows no socket, thread, event loop or clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from ..codec import Codec, payloads
from ..codec.check_count import CheckCount, counting
from ..codec.image_budget import ImageTotal, image_budget
from ..errors import (
    BatchTooLarge,
    InternalError,
    InvalidParams,
    MessageTooLarge,
    RpcError,
    WrongResult,
    error_from_wire,
)
from ..limits import Limits
from ..text import visible
from ..wire import envelope
from ..wire.buffers import Encoded
from .naming import MixedParams, unnamed
from .pending import PendingCall, PendingCalls

C = TypeVar("C", bound="Call")

_UNREADABLE = "The server's reply cannot be read"

#: Control characters of a traceback that are shown as they are.
LINE_ENDS = "\n\t"

#: Results of these types need no decoding: they hold neither tagged objects nor integers that were rounded.
_PLAIN = frozenset((int, str, bool))

#: Replies of fewer bytes have no image that takes long, unless their payloads stand beside them.
LONG_REPLY = 1024
#: Bytes of memory that images take while they are decoded: from here on that takes longer (1.5 to 6 ms) than going to a
#: thread and back, many times.
_SLOW_IMAGES = 1024 * 1024

#: Runs a function when the message that is being read has been handled.
Soon = Callable[[Callable[[], None]], object]


class _NotGiven:
    def __repr__(self) -> str:
        return "<not given>"


#: Stands for an option that the caller left out, where None means something. Typed so that it fits every option.
NOT_GIVEN: Any = _NotGiven()


class Outgoing(Protocol):
    """A message that is sent and waits for its reply: a call, a raw request, a batch.

    The order: `enter`, then `encode` and send; `leave` if the wait is given up; `outcome` when the reply is there.

    Attributes:
        method: for errors.
        methods: the names of the methods that are called.
        params: of a call; None for anything else. An iterator among them is sent item by item.
        tells_time: the peer is told how long the caller waits.
        is_repeatable: it can be sent again; not once an iterator is being sent.
        window: items of the result that may be sent ahead of its reader; None: the result is wanted whole.
    """

    method: str
    params: Any
    tells_time: bool
    is_repeatable: bool

    @property
    def methods(self) -> Sequence[str]: ...

    @property
    def window(self) -> int | None: ...

    def enter(self, pending: PendingCalls, call: PendingCall, soon: Soon) -> None:
        """Enter the table of calls that wait, so that `call` gets the reply.

        Args:
            pending: the table.
            call: waits for the reply.
            soon: runs a function when the message that is being read has been handled.
        """

    @property
    def call_ids(self) -> Sequence[int | str]:
        """The ids that it has in that table."""
        ...

    def encode(self, left: float, *, says_whole: bool = False) -> Encoded:
        """The message.

        Args:
            left: seconds until the caller gives up (may be infinite).
            says_whole: tell the server that the result is wanted whole, though it could send items.
        """
        ...

    def leave(self, pending: PendingCalls) -> list[int | str]:
        """Leave the table, since the wait is given up; gives the ids of the calls that had no reply yet."""
        ...

    def outcome(self, reply: dict[str, Any], line: bytes | bytearray) -> Any:
        """The value that the caller gets for the reply; raises the error that it gets."""


class _Facts(NamedTuple):
    """Facts about a message: whether it is nested too deep, whether it may hold tagged objects, and its replies.

    The replies are there only where integers in them may have been rounded when the message was parsed.
    """

    is_deep: bool
    tagged: bool
    exact: dict[tuple[type, Any], dict[str, Any]] | None


class Marshaller:
    """Turns calls into bytes and replies into values, for one end of connections to one address.

    Args:
        address: of the other end, for errors.
        side: how errors name this end.
        explain: makes the error to raise of one in a reply; it may add advice.
    """

    __slots__ = (
        "_checkers",
        "_codec",
        "_explain",
        "_holds_tags",
        "_max_batch",
        "_max_depth",
        "_side",
        "address",
        "max_size",
        "serialize",
    )

    def __init__(
        self,
        codec: Codec,
        limits: Limits,
        address: str,
        *,
        side: str = "client",
        explain: Callable[[RpcError], Exception] | None = None,
    ) -> None:
        self.address = address
        self._explain = explain
        self._side = side
        self._codec = codec
        self.serialize: Callable[[Any], Encoded] = codec.serialize
        self._holds_tags = codec.holds_tags
        self._max_depth = limits.max_depth
        self.max_size = limits.max_message_size
        self._max_batch = limits.max_batch
        self._checkers: dict[Any, Callable[[Any], Any]] = {}

    def attach_payloads(self) -> None:
        """Attach large payloads to messages from now on: the peer reads binary frames, on some connection at least."""
        self.serialize = partial(self._codec.serialize, binary=True)

    def encode(self, message: object, method: str) -> Encoded:
        """The bytes of a message.

        Raises:
            EncodeError: a value has no form on the wire.
            MessageTooLarge: it is over this client's `max_message_size`. Nothing was sent.
        """
        return self._within_limit(self.serialize(message), method)

    def _within_limit(self, data: Encoded, method: str) -> Encoded:
        if len(data) > self.max_size:
            error = envelope.oversize(len(data), self.max_size, side=self._side)
            error.method, error.address = method, self.address
            raise error
        return data

    def encode_batch(self, members: list[dict[str, Any]], method: str) -> Encoded:
        """The bytes of a batch (section 6).

        Raises, besides what `encode` raises:
            BatchTooLarge: it has more members than `max_batch`. The server would refuse it with an error that belongs
                to no call, so that every call that waits would fail. Nothing was sent.
        """
        if len(members) > self._max_batch:
            data = {"size": len(members), "limit": self._max_batch, "side": self._side}
            error = BatchTooLarge(data=data)
            error.method, error.address = method, self.address
            raise error
        return self._within_limit(self._codec.serialize(members), method)

    def notification(
        self, method: str, params: list[Any] | dict[str, Any] | None, more: Mapping[str, str] | None = None
    ) -> Encoded:
        """The bytes of a notification (section 4.1), with further members if they are given."""
        if more is not None:
            return self.encode(envelope.completed(envelope.request(method), more, params), method)
        return self.encode(envelope.request(method, params), method)

    def takes_long(self, reply: dict[str, Any], line: bytes | bytearray) -> bool:
        """Whether a reply has images whose decoding would hold up an event loop; `outcome` may be called in a thread.

        To be asked for a line of `LONG_REPLY` bytes, or one of those whose payloads stand beside it.
        """
        return b'"image"' in line and self._codec.image_weight(reply.get("result")) > _SLOW_IMAGES

    def value(self, method: str, reply: dict[str, Any], line: bytes | bytearray) -> Any:
        """The result in a reply, rich values decoded, integers of any size exact.

        Args:
            line: the whole message that the reply stood in.

        Raises:
            RpcError: the reply is an error; InternalError also when it is not a reply, or its values are broken.
        """
        (reply,), tagged = self._prepared([reply], line)
        return self.value_in(method, reply, tagged)

    def value_in(self, method: str, reply: dict[str, Any], tagged: bool) -> Any:
        """As `value`, for a reply that `values` has prepared.

        Args:
            tagged: the message may hold tagged objects.
        """
        error = reply.get("error")
        if error is not None:
            raise self._error(method, error, tagged)
        if "result" not in reply:
            raise self._broken(method, "neither result nor error", reply)
        return self._decoded(method, reply["result"]) if tagged else reply["result"]

    def values(self, lines: list[tuple[dict[str, Any], bytes | bytearray]]) -> list[tuple[dict[str, Any], ImageTotal]]:
        """Prepare the replies of a few messages for `value_in`.

        Returns:
            Each reply with exact integers, and the images of its message that were decoded so far.
        """
        by_line: dict[int, list[int]] = {}
        for position, (_, line) in enumerate(lines):
            by_line.setdefault(id(line), []).append(position)
        prepared: list[tuple[dict[str, Any], ImageTotal]] = [({}, ImageTotal())] * len(lines)
        for positions in by_line.values():
            replies = [lines[position][0] for position in positions]
            replies, tagged = self._prepared(replies, lines[positions[0]][1])
            total = ImageTotal(is_tagged=tagged)
            for position, reply in zip(positions, replies, strict=True):
                prepared[position] = reply, total
        return prepared

    def images(self, total: ImageTotal) -> AbstractContextManager[None]:
        """Count the images that are decoded meanwhile as those of one message, which is read part by part."""
        return image_budget(self._codec.image_limits, total)

    def response(self, method: str, reply: dict[str, Any], line: bytes | bytearray) -> dict[str, Any]:
        """The whole response object, rich values decoded, integers exact."""
        (reply,), tagged = self._prepared([reply], line)
        if not tagged:
            return reply
        with image_budget(self._codec.image_limits):
            return {name: self._decoded(method, member) for name, member in reply.items()}

    def member(self, method: str, params: dict[str, Any], line: bytes | bytearray, name: str) -> Any:
        """A member of the params of a notification such as `$/item`, rich values decoded, integers exact.

        Raises:
            InternalError: there is no such member, or its values are broken.
        """
        if name not in params:
            raise self._broken(method, f"no {name!r} in its params", params)
        if envelope.is_deeper(line, self._max_depth):
            raise self._broken(method, f"it is nested deeper than {self._max_depth} levels (max_depth)", None)
        if envelope.may_hold_big_integers(line):
            params = payloads.parse_exactly(line)["params"]
        return self._decoded(method, params[name]) if self._holds_tags(line) else params[name]

    def checked(self, method: str, value: Any, returns: Any) -> Any:
        """The value in the type that `returns=` asks for.

        Raises:
            TypeError: it is of another type; the message says what was expected and what came. Or `returns` is a hint
                that nothing can be checked against.
        """
        try:
            checker = self._checkers.get(returns)
            if checker is None:
                checker = self._checkers[returns] = self._checker(returns)
        except TypeError:  # a hint that cannot be hashed, or not be checked
            checker = self._checker(returns)
        try:
            return checker(value)
        except ValueError as error:
            raise WrongResult(f"the result of {method!r} at {self.address} does not fit returns=: {error}") from None

    def _prepared(self, replies: list[dict[str, Any]], line: bytes | bytearray) -> tuple[list[dict[str, Any]], bool]:
        """The replies in a message, with exact integers, and whether there may be tagged objects in them."""
        facts = self._facts(line)
        if facts.is_deep:
            reason = f"it is nested deeper than {self._max_depth} levels (max_depth)"
            error = InternalError(_UNREADABLE, {"reason": reason}).to_wire()
            return [{"id": reply.get("id"), "error": error} for reply in replies], False
        if facts.exact is not None:
            exact = facts.exact
            replies = [exact.get((type(reply.get("id")), reply.get("id")), reply) for reply in replies]
        return replies, facts.tagged

    def _facts(self, line: bytes | bytearray) -> _Facts:
        """The facts about a message that its replies are read by; found once for all calls that share it."""
        if not isinstance(line, payloads.SharedLine):
            return self._found(line)
        if line.facts is None:
            line.facts = self._found(line)
        facts: _Facts = line.facts
        return facts

    def _found(self, line: bytes | bytearray) -> _Facts:
        if envelope.is_deeper(line, self._max_depth):
            return _Facts(True, False, None)
        exact = _exactly(line) if envelope.may_hold_big_integers(line) else None
        return _Facts(False, self._holds_tags(line), exact)

    def _error(self, method: str, error: Any, tagged: bool) -> Exception:
        if tagged:
            try:
                error = self._codec.decode(error)
            except (ValueError, RecursionError):
                error = _as_it_came(error)  # the error itself is worth more than the broken value in its data
        found = error_from_wire(error, method=method, address=self.address)
        trace = found.data.get("traceback") if isinstance(found, InternalError) and type(found.data) is dict else None
        if isinstance(trace, str):  # the peer runs with debug
            found.add_note(f"Remote traceback, at {self.address}:\n{visible(trace, keep=LINE_ENDS).rstrip()}")
        return found if self._explain is None else self._explain(found)

    def _checker(self, returns: Any) -> Callable[[Any], Any]:
        from ..codec.hints import hint_checker  # imports msgspec, which plain calls do without

        return hint_checker(returns, self._codec)

    def _decoded(self, method: str, value: Any) -> Any:
        # A server decodes what its callers answer in the event loop; a client trusts its server.
        token = counting.set(CheckCount(self._codec.max_checked_values)) if self._side == "server" else None
        try:
            return self._codec.decode(value)
        except MessageTooLarge as error:
            error.method, error.address = method, self.address
            raise
        except (ValueError, RecursionError) as error:
            raise self._broken(method, str(error), None) from error
        finally:
            if token is not None:
                counting.reset(token)

    def _broken(self, method: str, reason: str, reply: Any) -> InternalError:
        error = InternalError(_UNREADABLE, {"reason": reason, "reply": _as_it_came(reply)})
        error.method, error.address = method, self.address
        return error


class Call:
    """One call of one method."""

    __slots__ = ("_call_id", "_marshaller", "_returns", "is_repeatable", "method", "params", "tells_time")

    def __init__(self, marshaller: Marshaller, method: str, params: Any, timeout: Any, returns: Any) -> None:
        self.method = method
        self.params = params
        self.tells_time = timeout is not NOT_GIVEN and timeout is not None
        self.is_repeatable = True
        self._marshaller = marshaller
        self._returns = returns
        self._call_id = 0

    def remade(self, kind: type[C]) -> C:
        """The same call, before it is sent, as an instance of a subclass with the same constructor."""
        made = kind(self._marshaller, self.method, self.params, NOT_GIVEN, self._returns)
        made.tells_time = self.tells_time
        return made

    def enter(self, pending: PendingCalls, call: PendingCall, soon: Soon) -> None:
        self._call_id = pending.add(call)

    @property
    def methods(self) -> tuple[str]:
        return (self.method,)

    @property
    def call_ids(self) -> tuple[int]:
        return (self._call_id,)

    @property
    def window(self) -> int | None:
        return None

    def encode(self, left: float, *, says_whole: bool = False) -> Encoded:
        marshaller = self._marshaller
        timeout = told(left) if self.tells_time else None
        message = envelope.request(self.method, self.params, call_id=self._call_id, timeout=timeout)
        if says_whole:
            message = {"stream": None, **message}
        data = marshaller.serialize(message)
        return data if len(data) <= marshaller.max_size else marshaller.encode(message, self.method)

    def leave(self, pending: PendingCalls) -> list[int | str]:
        return [self._call_id] if pending.discard(self._call_id) else []

    def outcome(self, reply: dict[str, Any], line: bytes | bytearray) -> Any:
        try:
            if self._returns is NOT_GIVEN:
                result = reply.get("result")
                if type(result) in _PLAIN and "error" not in reply:
                    return result
                return self._marshaller.value(self.method, reply, line)
            value = self._marshaller.value(self.method, reply, line)
        except InvalidParams as error:
            advise(error, self.params)
            raise
        return self._marshaller.checked(self.method, value, self._returns)


class ExtendedCall(Call):
    """A call whose request has further members.

    Attributes:
        more: these members.
        sent: how often it was encoded.
    """

    __slots__ = ("more", "sent")

    def __init__(self, marshaller: Marshaller, method: str, params: Any, timeout: Any, returns: Any) -> None:
        super().__init__(marshaller, method, params, timeout, returns)
        self.more: Mapping[str, str] = {}
        self.sent = 0

    def encode(self, left: float, *, says_whole: bool = False) -> Encoded:
        message = envelope.request(self.method, call_id=self._call_id, timeout=told(left) if self.tells_time else None)
        message = envelope.completed(message, self.more, self.params)
        data = self._marshaller.encode({"stream": None, **message} if says_whole else message, self.method)
        self.sent += 1
        return data


class RawCall:
    """A request object that is sent as it is, id included; the outcome is the whole response object.

    Raises:
        ValueError: the id is no string and no integer.
    """

    __slots__ = ("_marshaller", "_message", "is_repeatable", "method", "params", "tells_time")

    def __init__(self, marshaller: Marshaller, message: dict[str, Any]) -> None:
        method = message.get("method")
        self.params = None
        self.tells_time, self.is_repeatable = False, True
        self.method = method if isinstance(method, str) else "(no method)"
        self._marshaller = marshaller
        self._message = message

    def extended(self, more: Mapping[str, str]) -> RawCall:
        """The same request with further members, but for those that it has."""
        return RawCall(
            self._marshaller, {**self._message, **{each: more[each] for each in more.keys() - self._message}}
        )

    def enter(self, pending: PendingCalls, call: PendingCall, soon: Soon) -> None:
        pending.add_as(self._message["id"], call)

    @property
    def methods(self) -> tuple[str]:
        return (self.method,)

    @property
    def call_ids(self) -> tuple[int | str]:
        return (self._message["id"],)

    @property
    def window(self) -> int | None:
        window = self._message.get("stream")
        return window if type(window) is int else None

    def encode(self, left: float, *, says_whole: bool = False) -> Encoded:
        return self._marshaller.encode(self._message, self.method)

    def leave(self, pending: PendingCalls) -> list[int | str]:
        call_id: int | str = self._message["id"]
        return [call_id] if pending.discard(call_id) else []

    def outcome(self, reply: dict[str, Any], line: bytes | bytearray) -> dict[str, Any]:
        return self._marshaller.response(self.method, reply, line)


def params_of(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | dict[str, Any] | None:
    """Turn Python arguments into the params of a call; None for none.

    Raises:
        TypeError: positional and named arguments together, and nobody can be asked for the names.
    """
    params = given_params(args, kwargs)
    if isinstance(params, MixedParams):
        raise unnamed(method, params, "here the names of parameters are not known")
    return params


def given_params(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | dict[str, Any] | MixedParams | None:
    """The params of a call for Python arguments; None for none."""
    if not args:
        return kwargs or None
    return MixedParams(args, kwargs) if kwargs else list(args)


def check_params(method: str, params: Any) -> Any:
    """Check explicit params of a call: list, dict or None; a tuple becomes a list. TypeError for anything else."""
    if isinstance(params, tuple):
        return list(params)
    if params is not None and not isinstance(params, list | dict | MixedParams):
        raise TypeError(f"the params of {method!r} must be a list, a dict or None, got {type(params).__name__}")
    return params


def advise(error: InvalidParams, params: Any) -> None:
    """As `advice.advise`, which is imported only now."""
    from .advice import advise

    advise(error, params)


def told(left: float) -> float | None:
    """The member "timeout" of a request, for the time (s) that is left to the caller."""
    return None if left == float("inf") else max(round(left, 3), 0.001)


def _exactly(line: bytes | bytearray) -> dict[tuple[type, Any], dict[str, Any]]:
    """The replies in a message by the type and value of their ids, with every integer as it was sent."""
    message = payloads.parse_exactly(line)
    members = message if isinstance(message, list) else [message]
    return {(type(member["id"]), member["id"]): member for member in members if _has_own_id(member)}


def _as_it_came(value: Any) -> Any:
    """A value that could not be decoded, for the data of an error; None if it cannot be written as JSON."""
    try:
        return payloads.with_strings(value)
    except (ValueError, RecursionError):
        return None


def _has_own_id(member: Any) -> bool:
    return isinstance(member, dict) and isinstance(member.get("id"), int | str)
