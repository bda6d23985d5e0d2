"""Several calls in one message (JSON-RPC 2.0, section 6): collected first, sent together, replies matched one by one.

Owns the batches that users fill, the message they become, and the assignment of replies to calls. Knows no connection:
the client passes the functions that send.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ..codec.image_budget import ImageTotal
from ..errors import (
    BatchTooLarge,
    CallTimeout,
    ConnectionLost,
    InternalError,
    InvalidParams,
    InvalidRequest,
    MessageTooLarge,
    MethodNotFound,
    ProviderGone,
    at_caller,
    error_from_wire,
)
from ..peer.marshal import NOT_GIVEN, Marshaller, Soon, advise, check_params, given_params, told
from ..peer.naming import MixedParams
from ..peer.pending import PendingCall, PendingCalls
from ..peer.proxy import Method, Methods, remote_name
from ..wire import envelope
from ..wire.buffers import Encoded
from .retry import is_awaited

#: Codes of the errors with which a server refuses a whole batch, as the only member of its array of replies.
_REFUSALS = frozenset((BatchTooLarge.CODE, MessageTooLarge.CODE, InvalidRequest.CODE))

#: Called with the method of a notification that is about to be sent; gives further members of its request.
Notified = Callable[[str], Mapping[str, str]]

_NO_ANSWER = "The server's reply to the batch has none for this call"


class _NoProvider(MethodNotFound):
    """The hub has no provider now for some calls of a batch; the others have ended. These may be sent again."""


class BatchCall:
    """One call of a batch; its result is known after the `with` block of the batch."""

    __slots__ = ("_error", "_has_ended", "_returns", "_value", "method", "params")

    def __init__(self, method: str, params: Any, returns: Any) -> None:
        self.method = method
        self.params = params
        self._returns = returns
        self._value: Any = None
        self._error: Exception | None = None
        self._has_ended = False

    def result(self) -> Any:
        """The result of the call.

        Raises:
            RpcError: the server answered this call with an error.
            ConnectionLost, CallTimeout: the batch failed before this call was answered.
            RuntimeError: the batch has not been sent.
        """
        error = self.error
        if error is not None:
            raise at_caller(error) from error.__cause__
        return self._value

    @property
    def has_ended(self) -> bool:
        """There is a result, or an error."""
        return self._has_ended

    @property
    def is_due(self) -> bool:
        """It is to be sent: for the first time, or since the hub had no provider for it."""
        return not self._has_ended or (self._error is not None and is_awaited(self._error))

    @property
    def error(self) -> Exception | None:
        """The error that `result` raises, or None. Raises RuntimeError if the batch has not been sent."""
        if not self._has_ended:
            raise RuntimeError(f"the batch with the call of {self.method!r} has not been sent")
        return self._error

    def settle(self, marshaller: Marshaller, reply: dict[str, Any], total: ImageTotal) -> None:
        """Take the reply to the call.

        Args:
            marshaller: decodes it.
            reply: the response object.
            total: counts the images in the replies of the whole batch against its limits.
        """
        self._has_ended, self._error = True, None
        try:
            if self._returns is NOT_GIVEN and not total.is_tagged:
                self._value = marshaller.value_in(self.method, reply, tagged=False)
                return
            with marshaller.images(total):
                value = marshaller.value_in(self.method, reply, total.is_tagged)
                if self._returns is not NOT_GIVEN:
                    value = marshaller.checked(self.method, value, self._returns)
            self._value = value
        except Exception as error:
            if isinstance(error, InvalidParams):
                advise(error, self.params)
            self._error = error

    def fail(self, error: Exception) -> None:
        """Take the error that stands for a reply."""
        self._has_ended, self._error = True, error

    def __repr__(self) -> str:
        state = "not sent" if not self._has_ended else "failed" if self._error is not None else "done"
        return f"<call of {self.method!r} in a batch, {state}>"


class Batch:
    """Collects calls for one message: `batch.name(…)`, `batch.call("name", …)`, `batch.notify.name(…)`.

    Each call gives a `BatchCall`. The message is sent at the end of the `with` block, unless that raises.

    Attributes:
        notify: adds notifications: `batch.notify.name(…)` or `batch.notify("name", …)`.
    """

    def __init__(self, marshaller: Marshaller, timeout: Any, notified: Notified | None) -> None:
        self._marshaller = marshaller
        self._timeout = timeout
        self._notified = notified
        self._members: list[BatchCall | tuple[str, Any]] = []
        self.notify = Methods(self._notify)

    def __getattr__(self, name: str) -> Method:
        return Method(self.call, remote_name(self, name))

    def call(self, method: str, /, *args: Any, returns: Any = NOT_GIVEN, **kwargs: Any) -> BatchCall:
        """Add a call; `returns` is the type that its result must have."""
        if "timeout" in kwargs:
            raise TypeError("a batch has one time-out for all its calls: batch(timeout=…)")
        return self.request(method, given_params(args, kwargs), returns=returns)  # type: ignore[arg-type]

    def request(
        self, method: str, params: list[Any] | dict[str, Any] | None = None, *, returns: Any = NOT_GIVEN
    ) -> BatchCall:
        """As `call`, with the params of the JSON-RPC request: a list, a dict, or None for none."""
        call = BatchCall(method, check_params(method, params), returns)
        self._members.append(call)
        return call

    def _notify(self, method: str, /, *args: Any, **kwargs: Any) -> None:
        self._members.append((method, given_params(args, kwargs)))

    def _mixed(self) -> list[tuple[int, str, MixedParams]]:
        """The members with arguments by position and by name: their places, methods and params."""
        members = [(each.method, each.params) if isinstance(each, BatchCall) else each for each in self._members]
        return [(place, *each) for place, each in enumerate(members) if isinstance(each[1], MixedParams)]

    def _settle_params(self, place: int, params: dict[str, Any]) -> None:
        """Set the params of a member, whose arguments have all got names."""
        member = self._members[place]
        if isinstance(member, BatchCall):
            member.params = params
        else:
            self._members[place] = member[0], params

    def _outgoing(self) -> BatchExchange | Encoded | None:
        """The message to send: with calls to wait for, or encoded notifications only; None for an empty batch."""
        calls = [member for member in self._members if isinstance(member, BatchCall)]
        if calls:
            return BatchExchange(self._marshaller, self._members, calls, self._timeout)
        if not self._members:
            return None
        members = [envelope.request(*member) for member in self._members]  # type: ignore[misc]
        if self._notified is not None:
            members = [{**member, **self._notified(member["method"])} for member in members]
        return self._marshaller.encode_batch(members, "batch")


class SyncBatch(Batch):
    """The batch of a `Client`: a context manager that sends it when its block ends.

    Args:
        perform: the client's: sends the calls and waits for their replies.
        send: the client's: sends notifications.
        named: the client's: gives the params of a call, all by name if some are, and the seconds that are left.
        notified: where there are no calls, gives further members of each notification.
    """

    def __init__(
        self,
        marshaller: Marshaller,
        timeout: Any,
        perform: Callable[..., object],
        send: Callable[..., object],
        named: Callable[..., Any],
        wait_for: Any,
        notified: Notified | None = None,
    ) -> None:
        super().__init__(marshaller, timeout, notified)
        self._perform = perform
        self._send = send
        self._named = named
        self._wait_for = wait_for

    def __enter__(self) -> SyncBatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        left = self._timeout
        for place, method, params in self._mixed():
            named, left = self._named(method, params, left, self._wait_for)
            self._settle_params(place, named)
        outgoing = self._outgoing()
        if isinstance(outgoing, BatchExchange):
            try:
                self._perform(outgoing, left, None, self._wait_for)
            except _NoProvider:
                pass  # an error of single calls, which have it
            except Exception as failure:
                outgoing.failed(failure)
                raise
        elif outgoing is not None:
            self._send(outgoing, "batch", left, self._wait_for)


class AsyncBatch(Batch):
    """The batch of an `AsyncClient`: an async context manager that sends it when its block ends.

    Args:
        perform: the client's: sends the calls and waits for their replies.
        send: the client's: sends notifications.
        named: the client's: gives the params of a call, all by name if some are, and the seconds that are left.
        notified: where there are no calls, gives further members of each notification.
    """

    def __init__(
        self,
        marshaller: Marshaller,
        timeout: Any,
        perform: Callable[..., Awaitable[object]],
        send: Callable[..., Awaitable[object]],
        named: Callable[..., Awaitable[Any]],
        wait_for: Any,
        notified: Notified | None = None,
    ) -> None:
        super().__init__(marshaller, timeout, notified)
        self._perform = perform
        self._send = send
        self._named = named
        self._wait_for = wait_for

    async def __aenter__(self) -> AsyncBatch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        left = self._timeout
        for place, method, params in self._mixed():
            named, left = await self._named(method, params, left, self._wait_for)
            self._settle_params(place, named)
        outgoing = self._outgoing()
        if isinstance(outgoing, BatchExchange):
            try:
                await self._perform(outgoing, left, None, self._wait_for)
            except _NoProvider:
                pass  # an error of single calls, which have it
            except Exception as failure:
                outgoing.failed(failure)
                raise
        elif outgoing is not None:
            await self._send(outgoing, "batch", left, self._wait_for)


class BatchExchange:
    """The sending of a batch with calls (an `Outgoing` message); it may be sent again after it failed."""

    def __init__(
        self, marshaller: Marshaller, members: list[BatchCall | tuple[str, Any]], calls: list[BatchCall], timeout: Any
    ) -> None:
        self.method = _names(calls)
        self._marshaller = marshaller
        self._members = members
        self._calls = calls
        self.params = None
        self.tells_time = timeout is not NOT_GIVEN and timeout is not None
        self.is_repeatable = True
        #: Further members for the request of each call and notification.
        self.more: Sequence[Mapping[str, str]] = ()
        self._pending_calls: dict[BatchCall, _MemberCall] = {}
        #: The batch was answered; what is sent again are single calls of it.
        self._has_replies = False

    def enter(self, pending: PendingCalls, call: PendingCall, soon: Soon) -> None:
        due = [each for each in self._calls if each.is_due]
        collector = _ReplyCollector(self.method, len(due), pending, call, soon)
        self._pending_calls = {each: _MemberCall(collector, each.method, call.deadline) for each in due}
        for member in self._pending_calls.values():
            member.call_id = pending.add(member)
        collector.members = list(self._pending_calls.values())

    @property
    def methods(self) -> list[str]:
        return [member.method if isinstance(member, BatchCall) else member[0] for member in self._members]

    @property
    def call_ids(self) -> list[int | str]:
        return [member.call_id for member in self._pending_calls.values()]

    @property
    def members(self) -> Sequence[BatchCall | tuple[str, Any]]:
        """The calls, and the notifications with their params, in order."""
        return self._members

    @property
    def ids(self) -> dict[BatchCall, int]:
        """The ids of the calls that were sent last."""
        return {call: member.call_id for call, member in self._pending_calls.items()}

    @property
    def window(self) -> None:
        return None

    def encode(self, left: float, *, says_whole: bool = False) -> Encoded:
        timeout = told(left) if self.tells_time else None
        message = [
            envelope.request(member.method, member.params, call_id=self._pending_calls[member].call_id, timeout=timeout)
            if isinstance(member, BatchCall)
            else envelope.request(*member)
            for member in self._members
            if self._is_sent(member)
        ]
        if self.more:
            more = [each for member, each in zip(self._members, self.more, strict=True) if self._is_sent(member)]
            message = [{**request, **each} for request, each in zip(message, more, strict=True)]
        return self._marshaller.encode_batch(message, self.method)

    def _is_sent(self, member: BatchCall | tuple[str, Any]) -> bool:
        """Whether it is in the message that is sent next."""
        return member in self._pending_calls if isinstance(member, BatchCall) else not self._has_replies

    def leave(self, pending: PendingCalls) -> list[int | str]:
        return [member.call_id for member in self._pending_calls.values() if pending.discard(member.call_id)]

    def outcome(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        """Give every call its reply, or the reason why it has none.

        Raises:
            MethodNotFound: some calls found no provider at the hub, and could be sent again; each has its error.
        """
        self._settle()
        self._has_replies = True
        for call in self._pending_calls:
            error = call.error
            if isinstance(error, MethodNotFound | ProviderGone) and is_awaited(error):
                raise _NoProvider(error.message, error.data)

    def _settle(self) -> None:
        answered = []
        refusal = self._refusal()
        for call, member in self._pending_calls.items():
            if member.error is not None:
                call.fail(member.error)
            elif member.reply is None:
                call.fail(self._missing(call.method) if refusal is None else self._refused(call.method, refusal))
            else:
                answered.append((call, (member.reply, member.line)))
        prepared = self._marshaller.values([got for _, got in answered])
        for (call, _), (answer, total) in zip(answered, prepared, strict=True):
            call.settle(self._marshaller, answer, total)

    def failed(self, error: Exception) -> None:
        """Fail the calls that have no reply yet, since the batch failed."""
        self._settle()
        for call, member in self._pending_calls.items():
            if member.reply is None and member.error is None:
                call.fail(error)
        for call in self._calls:
            if not call.has_ended:
                call.fail(error)

    def _refusal(self) -> Any:
        """The error with which the server refused the whole batch; None if it did not."""
        replies = [member.reply for member in self._pending_calls.values() if member.reply is not None]
        error = replies[0].get("error") if len(replies) == 1 else None
        return error if isinstance(error, dict) and error.get("code") in _REFUSALS else None

    def _refused(self, method: str, refusal: Any) -> Exception:
        error = error_from_wire(refusal)
        error.method, error.address = method, self._marshaller.address
        return error

    def _missing(self, method: str) -> InternalError:
        error = InternalError(_NO_ANSWER)
        error.method, error.address = method, self._marshaller.address
        return error


class _ReplyCollector:
    """Waits for the replies of a batch: until all have arrived, or the array of replies has been read."""

    def __init__(self, method: str, missing: int, pending: PendingCalls, call: PendingCall, soon: Soon) -> None:
        self.members: list[_MemberCall] = []
        self._method = method
        self._missing = missing
        self._pending = pending
        self._call = call
        self._soon = soon
        self._ends = False

    def count(self, line: bytes | bytearray) -> None:
        """Count a reply, which arrived in the message `line`."""
        self._missing -= 1
        if not self._missing:
            self._call.answer({}, b"")
        elif not self._ends and line[:16].lstrip().startswith(b"["):
            self._ends = True
            self._soon(self._end)

    def fail(self, error: Exception) -> None:
        """Count a call that will have no reply."""
        self._missing -= 1
        if not self._missing:
            if isinstance(error, ConnectionLost | CallTimeout):
                error = type(error)(error.reason, method=self._method, address=error.address)
            self._call.fail(error)

    def _end(self) -> None:
        """End the wait after the array of replies: calls without a reply in it get none."""
        if self._missing:
            self._missing = 0
            for member in self.members:
                if member.reply is None:
                    self._pending.discard(member.call_id)
            self._call.answer({}, b"")


class _MemberCall(PendingCall):
    """Waits for the reply to one call of a batch."""

    __slots__ = ("_collector", "call_id", "deadline", "error", "line", "method", "reply")

    def __init__(self, collector: _ReplyCollector, method: str, deadline: float) -> None:
        self._collector = collector
        self.method = method
        self.deadline = deadline
        self.call_id = 0
        self.reply: dict[str, Any] | None = None
        self.line: bytes | bytearray = b""
        self.error: Exception | None = None

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        self.reply, self.line = reply, line
        self._collector.count(line)

    def fail(self, error: Exception) -> None:
        self.error = error
        self._collector.fail(error)


def _names(calls: list[BatchCall]) -> str:
    """The text that stands for the method's name in errors."""
    names = list(dict.fromkeys(call.method for call in calls))
    return "batch of " + ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
