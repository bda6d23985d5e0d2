"""Values of calls on the wire: messages to bytes, and replies and items to values; for clients and for calls back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

from ..codec import Codec, payloads
from ..codec.attachments import SharedLine
from ..codec.codec import Reading
from ..errors import (
    BatchTooLarge,
    InternalError,
    MessageTooLarge,
    RpcError,
    WrongResult,
    error_from_wire,
)
from ..limits import Limits
from ..text import visible
from ..wire import envelope
from ..wire.buffers import Encoded
from ..wire.json_scan import is_deeper

R = TypeVar("R", bound=RpcError)

_UNREADABLE = "The server's reply cannot be read"

#: Results of these types need no decoding: they hold neither tagged objects nor integers that were rounded.
_PLAIN = frozenset((int, str, bool))


class _NotGiven:
    def __repr__(self) -> str:
        return "<not given>"


#: Stands for an option that the caller left out, where None means something. Typed so that it fits every option.
NOT_GIVEN: Any = _NotGiven()


class _Facts(NamedTuple):
    """What was found in a message, once for all replies in it.

    Attributes:
        is_deep: it is nested deeper than allowed.
        reading: counts what its values cost; None: it has no tagged objects.
        exact: its replies by type and value of their ids, where integers may have been rounded when it was parsed.
    """

    is_deep: bool
    reading: Reading | None
    exact: Mapping[tuple[type, Any], dict[str, Any]]


class Marshaller:
    """Turns messages into bytes and replies into values, for one end of connections to one address.

    Args:
        address: of the other end, for errors.
        side: how errors name this end.
        explain: makes the error to raise of one in a reply; it may add advice.
    """

    def __init__(
        self,
        codec: Codec,
        limits: Limits,
        address: str,
        *,
        side: str = "client",
        explain: Callable[[RpcError], Exception] = lambda error: error,
    ) -> None:
        self.address = address
        self._explain = explain
        self._side = side
        self._codec = codec
        self._serialize: Callable[[Any], Encoded] = codec.serialize
        # A server counts what its callers answer; a client trusts its server.
        self._new_reading = partial(codec.reading, is_counted=side == "server")
        self._max_depth = limits.max_depth
        self._max_size = limits.max_message_size
        self._max_batch = limits.max_batch
        self._checker = cache(partial(_new_checker, codec))

    def attach_payloads(self) -> None:
        """Attach large payloads to messages from now on: the peer reads binary frames, on some connection at least."""
        self._serialize = partial(self._codec.serialize, binary=True)

    def encode(self, message: object, method: str) -> Encoded:
        """The bytes of a message.

        Raises:
            EncodeError: a value has no form on the wire.
            MessageTooLarge: it is over this end's `max_message_size`. Nothing was sent.
        """
        data = self._serialize(message)
        return data if len(data) <= self._max_size else self._within_limit(data, method)

    def encode_batch(self, members: list[dict[str, Any]], method: str) -> Encoded:
        """The bytes of a batch (section 6).

        Raises, besides what `encode` raises:
            BatchTooLarge: it has more members than `max_batch`. The server would refuse it with an error that belongs
                to no call, so that every call that waits would fail. Nothing was sent.
        """
        if len(members) > self._max_batch:
            data = {"size": len(members), "limit": self._max_batch, "side": self._side}
            raise self._located(BatchTooLarge(data=data), method)
        return self._within_limit(self._codec.serialize(members), method)

    def notification(
        self, method: str, params: list[Any] | dict[str, Any] | None, more: Mapping[str, str] | None = None
    ) -> Encoded:
        """The bytes of a notification (section 4.1), with further members if they are given."""
        return self.encode({**envelope.request(method, params), **(more or {})}, method)

    def value(self, method: str, reply: dict[str, Any], line: bytes | bytearray, returns: Any = NOT_GIVEN) -> Any:
        """The result in a reply, rich values decoded, integers of any size exact.

        Args:
            method: the name of the method, for errors.
            reply: the response object.
            line: the whole message that the reply stood in.
            returns: the type that the result must have.

        Raises:
            RpcError: the reply is an error; InternalError also when it is not a reply, or its values are broken.
            TypeError: the result is of another type; the message says what was expected and what came. Or `returns` is
                a hint that nothing can be checked against.
        """
        result = reply.get("result")
        if type(result) in _PLAIN and returns is NOT_GIVEN and "error" not in reply:
            return result
        reply, reading = self._read(reply, line)
        error = reply.get("error")
        if error is not None:
            raise self._error(method, error, has_tags=reading is not None)
        if "result" not in reply:
            raise self._broken(method, "neither result nor error")
        return self._value(method, reply["result"], reading, returns)

    def response(self, method: str, reply: dict[str, Any], line: bytes | bytearray) -> dict[str, Any]:
        """The whole response object, rich values decoded, integers exact."""
        reply, reading = self._read(reply, line)
        return {name: self._value(method, member, reading) for name, member in reply.items()}

    def item(self, method: str, params: dict[str, Any], line: bytes | bytearray, returns: Any = NOT_GIVEN) -> Any:
        """The value in the params of a notification such as `$/item`. Raises as `value`."""
        if "value" not in params:
            raise self._broken(method, "no 'value' in its params")
        is_deep, reading, _ = self._facts_of(line)
        if is_deep:
            raise self._broken(method, self._too_deep)
        if envelope.may_hold_big_integers(line):
            params = payloads.parse_exactly(line)["params"]
        return self._value(method, params["value"], reading, returns)

    # -- what stands in a message ------------------------------------------------------------------------------------

    def _read(self, reply: dict[str, Any], line: bytes | bytearray) -> tuple[dict[str, Any], Reading | None]:
        """A reply with exact integers, and the reading of its message."""
        facts = line.facts if isinstance(line, SharedLine) else None
        if facts is None:
            facts = self._facts_of(line)
            if isinstance(line, SharedLine):
                line.facts = facts
        if facts.is_deep:
            error = InternalError(_UNREADABLE, {"reason": self._too_deep})
            return envelope.error_reply(reply.get("id"), error), None
        call_id = reply.get("id")
        return facts.exact.get((type(call_id), call_id), reply) if facts.exact else reply, facts.reading

    def _facts_of(self, line: bytes | bytearray) -> _Facts:
        is_deep = is_deeper(line, self._max_depth)
        if is_deep:
            return _Facts(is_deep, None, {})
        reading = self._new_reading() if self._codec.holds_tags(line) else None
        return _Facts(is_deep, reading, _exact_replies(line) if envelope.may_hold_big_integers(line) else {})

    def _value(self, method: str, value: Any, reading: Reading | None, returns: Any = NOT_GIVEN) -> Any:
        """A value, decoded where there may be tagged objects in it, in the type that `returns` asks for."""
        if reading is not None:
            try:
                value = self._codec.decode(value, reading)
            except MessageTooLarge as error:
                self._located(error, method)
                raise
            except (ValueError, RecursionError) as error:
                raise self._broken(method, str(error)) from error
        return value if returns is NOT_GIVEN else self._checked(method, value, reading, returns)

    def _checked(self, method: str, value: Any, reading: Reading | None, returns: Any) -> Any:
        checker = self._checker(returns)
        try:
            return checker(value, reading)
        except ValueError as error:
            raise WrongResult(f"the result of {method!r} at {self.address} does not fit returns=: {error}") from None

    # -- errors ------------------------------------------------------------------------------------------------------

    def _error(self, method: str, error: Any, *, has_tags: bool) -> Exception:
        if has_tags and type(error) is dict:
            try:
                error = self._codec.decode(error)
            except (ValueError, RecursionError):
                error = {**error, "data": None}  # the error itself is worth more than the broken value in its data
        found = error_from_wire(error, method=method, address=self.address)
        trace = found.data.get("traceback") if isinstance(found, InternalError) and type(found.data) is dict else None
        if isinstance(trace, str):  # the peer runs with debug
            shown = visible(trace, keep="\n\t").rstrip()
            found.add_note(f"Remote traceback, at {self.address}:\n{shown}")
        return self._explain(found)

    def _within_limit(self, data: Encoded, method: str) -> Encoded:
        if len(data) > self._max_size:
            raise self._located(envelope.oversize(len(data), self._max_size, side=self._side), method)
        return data

    def _located(self, error: R, method: str) -> R:
        error.method, error.address = method, self.address
        return error

    @property
    def _too_deep(self) -> str:
        return f"it is nested deeper than {self._max_depth} levels (max_depth)"

    def _broken(self, method: str, reason: str) -> InternalError:
        return self._located(InternalError(_UNREADABLE, {"reason": reason}), method)


def _exact_replies(line: bytes | bytearray) -> dict[tuple[type, Any], dict[str, Any]]:
    """The replies in a message by the type and value of their ids, with every integer as it was sent."""
    message = payloads.parse_exactly(line)
    members = [each for each in (message if isinstance(message, list) else [message]) if isinstance(each, dict)]
    return {(type(each["id"]), each["id"]): each for each in members if isinstance(each.get("id"), int | str)}


def _new_checker(codec: Codec, hint: Any) -> Callable[..., Any]:
    from ..codec.hints import hint_checker  # imports msgspec, which plain calls do without

    return hint_checker(hint, codec)
