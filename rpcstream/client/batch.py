"""Several calls in one message (JSON-RPC 2.0, section 6): collected, sent together, replies matched one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import (
    AT_CALLER,
    BatchTooLarge,
    CallTimeout,
    ConnectionLost,
    InternalError,
    InvalidRequest,
    MessageTooLarge,
    MethodNotFound,
    ProviderGone,
    error_from_wire,
)
from ..peer.calls import Call, Method, params_of, remote_name, told
from ..peer.marshal import NOT_GIVEN, Marshaller
from ..peer.pending import PendingCall, PendingCalls
from ..wire import envelope
from ..wire.buffers import Encoded
from .attempts import check_params, was_not_begun
from .base import BaseClient

#: Errors with which a server refuses a whole batch, as the only member of its array of replies.
_REFUSALS = (BatchTooLarge, MessageTooLarge, InvalidRequest)

_NO_ANSWER = "The server's reply to the batch has none for this call"


class _NoProvider(MethodNotFound):
    """The hub has no provider now for some calls of a batch; the others have ended. These may be sent again."""


class BatchCall(PendingCall):
    """One call or notification of a batch; the result is known after the `with` block of the batch.

    Attributes:
        has_ended: there is a result, or an error; for a notification: the batch was answered.
        call_id: the id that it was sent with last; 0 before. None: it is a notification.
    """

    def __init__(self, method: str, params: Any, returns: Any = NOT_GIVEN, call_id: int | None = 0) -> None:
        self.method = method
        self.params = params
        self.call_id = call_id
        self.has_ended = False
        self._returns = returns
        self._value: Any = None
        self._error: Exception | None = None
        self._batch: BatchExchange | None = None

    def result(self) -> Any:
        """The result of the call.

        Raises:
            RpcError: the server answered this call with an error.
            ConnectionLost, CallTimeout: the batch failed before this call was answered.
            RuntimeError: the batch has not been sent.
        """
        error = self.error
        if error is not None:
            raise AT_CALLER.strip(error)
        return self._value

    @property
    def error(self) -> Exception | None:
        """The error that `result` raises, or None. Raises RuntimeError if the batch has not been sent."""
        if not self.has_ended:
            raise RuntimeError(f"the batch with the call of {self.method!r} has not been sent")
        return self._error

    @property
    def is_due(self) -> bool:
        """It is to be sent: for the first time, or since it was lost, or the hub had no provider for it."""
        error = self._error
        return not self.has_ended or isinstance(error, ConnectionLost) or (error is not None and was_not_begun(error))

    def begin(self, batch: BatchExchange, deadline: float) -> None:
        """Wait for the reply, which the batch counts."""
        self._batch, self.deadline = batch, deadline
        self.has_ended, self._error = False, None

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        assert self._batch is not None
        self.has_ended = True
        try:
            self._value = self._batch.marshaller.value(self.method, reply, line, self._returns)
        except Exception as error:
            self._error = error
        self._batch.count()

    def end_array(self) -> None:
        if self._batch is not None:
            self._batch.end_wait()

    def fail(self, error: Exception) -> None:
        assert self._batch is not None
        self.end(error)
        self._batch.count(error)

    def end(self, error: Exception | None) -> None:
        """End without a reply."""
        self.has_ended, self._error = True, error

    def __repr__(self) -> str:
        state = "not sent" if not self.has_ended else "failed" if self._error is not None else "done"
        return f"<call of {self.method!r} in a batch, {state}>"


class Batch:
    """Collects calls for one message: `batch.name(…)`, `batch.call("name", …)`, `batch.notify.name(…)`.

    Each call gives a `BatchCall`. The message is sent at the end of the `with` block, unless that raises.

    Args:
        client: sends the batch.
        timeout, wait_for: for all calls of the batch.

    Attributes:
        notify: adds notifications: `batch.notify.name(…)` or `batch.notify("name", …)`.
    """

    def __init__(self, client: BaseClient, timeout: Any, wait_for: Any) -> None:
        self._client = client
        self._timeout = timeout
        self._wait_for = wait_for
        self._members: list[BatchCall] = []
        self.notify = Method(self._notify)

    def __getattr__(self, name: str) -> Method:
        return Method(self.call, remote_name(self, name))

    def call(self, method: str, /, *args: Any, returns: Any = NOT_GIVEN, **kwargs: Any) -> BatchCall:
        """Add a call; `returns` is the type that its result must have."""
        if "timeout" in kwargs:
            raise TypeError("a batch has one time-out for all its calls: batch(timeout=…)")
        return self.request(method, params_of(method, args, kwargs), returns=returns)

    def request(
        self, method: str, params: list[Any] | dict[str, Any] | None = None, *, returns: Any = NOT_GIVEN
    ) -> BatchCall:
        """As `call`, with the params of the JSON-RPC request: a list, a dict, or None for none."""
        call = BatchCall(method, check_params(method, params), returns)
        self._members.append(call)
        return call

    def _notify(self, method: str, /, *args: Any, **kwargs: Any) -> None:
        self._members.append(BatchCall(method, params_of(method, args, kwargs), call_id=None))

    def _outgoing(self) -> BatchExchange:
        return BatchExchange(self._client._marshaller, self._members, self._timeout)


class SyncBatch(Batch):
    """The batch of a `Client`: a context manager that sends it when its block ends."""

    def __enter__(self) -> SyncBatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._members:
            with self._outgoing() as outgoing:
                self._client._perform(outgoing, self._timeout, None, self._wait_for)


class AsyncBatch(Batch):
    """The batch of an `AsyncClient`: an async context manager that sends it when its block ends."""

    async def __aenter__(self) -> AsyncBatch:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._members:
            with self._outgoing() as outgoing:
                await self._client._perform(outgoing, self._timeout, None, self._wait_for)


class BatchExchange(Call):
    """The sending of a batch; it may be sent again after it failed, without the calls that have ended.

    In a `with` block around the sending, an error of the batch becomes the error of its calls that have no reply.

    Attributes:
        members: the calls and notifications, in order.
        more: further members for the request of each.
    """

    def __init__(self, marshaller: Marshaller, members: list[BatchCall], timeout: Any) -> None:
        super().__init__(marshaller, _names(members), timeout=timeout)
        self.members = members
        self.more: Sequence[Mapping[str, str]] = [{}] * len(members)
        #: The calls and notifications that are sent, in order.
        self._due: dict[BatchCall, None] = {}
        #: How many calls have no reply yet.
        self._missing = 0
        self._notice_ids: tuple[int, ...] = ()

    def begin_span(self, make: Callable[[str], Any]) -> _BatchSpans:
        spans = [make(member.method) for member in self.members]
        self.more = [span.members for span in spans]
        return _BatchSpans(spans, self.members)

    def enter(self, pending: PendingCalls, call: PendingCall) -> None:
        self._pending, self._call = pending, call
        self._due = dict.fromkeys([each for each in self.members if each.is_due])
        calls = [each for each in self._due if each.call_id is not None]
        self._missing = len(calls)
        for each in calls:
            each.begin(self, call.deadline)
            each.call_id = pending.add(each)
        self.is_notice = not calls
        self._notice_ids = pending.add_notice(call) if self.is_notice else ()

    def count(self, error: Exception | None = None) -> None:
        """Count a call that has its reply, or will have none: then this is the error."""
        self._missing -= 1
        if self._missing:
            return
        if error is None:
            self._call.answer({}, b"")
            return
        if isinstance(error, ConnectionLost | CallTimeout):
            error = type(error)(error.reason, method=self.method, address=error.address)
        self._call.fail(error)

    def end_wait(self) -> None:
        """End the wait after the array of replies: calls without a reply in it get none."""
        if self._missing:
            self._missing = 0
            self.leave(self._pending)
            self._call.answer({}, b"")

    @property
    def methods(self) -> list[str]:
        return [member.method for member in self.members]

    @property
    def call_ids(self) -> list[int]:
        return [*self._notice_ids, *(each.call_id for each in self._due if each.call_id is not None)]

    def encode(self, left: float, *, says_whole: bool = False) -> Encoded:
        timeout = told(left) if self.tells_time else None
        message = [
            {**_request(member, timeout), **more}
            for member, more in zip(self.members, self.more, strict=True)
            if member in self._due
        ]
        return self.marshaller.encode_batch(message, self.method)

    def outcome(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        """Give every call without a reply the reason why it has none.

        Raises:
            MethodNotFound: some calls found no provider at the hub, and could be sent again; each has its error.
        """
        errors = [call.error for call in self._due if call.has_ended]
        first = errors[0] if len(errors) == 1 else None
        refusal = first if isinstance(first, _REFUSALS) else InternalError(_NO_ANSWER)
        for member in self._due:
            if not member.has_ended:
                error = error_from_wire(refusal.to_wire(), method=member.method, address=self.marshaller.address)
                member.end(None if member.call_id is None else error)
        for call in self._due:
            failure = call.error
            if isinstance(failure, MethodNotFound | ProviderGone) and was_not_begun(failure):
                raise _NoProvider(failure.message, failure.data)

    def __enter__(self) -> BatchExchange:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, _NoProvider):
            return True  # an error of single calls, which have it
        if isinstance(error, Exception):
            for member in self.members:
                if not member.has_ended:
                    member.end(error)
        return False


class _BatchSpans:
    """The spans of a batch that is sent: one for each call and notification in it, all of which end with the batch."""

    def __init__(self, spans: list[Any], members: list[BatchCall]) -> None:
        self._spans = spans
        self._members = members

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for span, member in zip(self._spans, self._members, strict=True):
            span.end(member.error if member.has_ended else error)


def _request(member: BatchCall, timeout: float | None) -> dict[str, Any]:
    if member.call_id is None:
        return envelope.request(member.method, member.params)
    return envelope.request(member.method, member.params, call_id=member.call_id, timeout=timeout)


def _names(members: list[BatchCall]) -> str:
    """The text that stands for the method's name in errors."""
    names = list(dict.fromkeys(member.method for member in members if member.call_id is not None))
    return "batch of " + ", ".join(names[:3]) + (", …" if len(names) > 3 else "") if names else "batch"
