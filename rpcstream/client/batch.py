"""Several calls in one message (JSON-RPC 2.0, section 6): collected, sent together, replies matched one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
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
from ..peer.calls import Call, params_of, told
from ..peer.marshal import NOT_GIVEN, Marshaller
from ..peer.pending import PendingCall, PendingCalls
from ..peer.proxy import Method, remote_name
from ..wire import envelope
from ..wire.buffers import Encoded
from .attempts import was_not_begun
from .base import BaseClient, Notice
from .naming import check_params

#: Codes of the errors with which a server refuses a whole batch, as the only member of its array of replies.
_REFUSALS = frozenset((BatchTooLarge.CODE, MessageTooLarge.CODE, InvalidRequest.CODE))

_NO_ANSWER = "The server's reply to the batch has none for this call"


class _NoProvider(MethodNotFound):
    """The hub has no provider now for some calls of a batch; the others have ended. These may be sent again."""


class BatchCall(PendingCall):
    """One call of a batch; its result is known after the `with` block of the batch.

    Attributes:
        has_ended: there is a result, or an error.
        call_id: the id that it was sent with last; 0 before.
        reply: the reply object, and the message that it stood in; None while there is none.
    """

    def __init__(self, method: str, params: Any, returns: Any) -> None:
        self.method = method
        self.params = params
        self.call_id = 0
        self.has_ended = False
        self.reply: tuple[dict[str, Any], bytes | bytearray] | None = None
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
        if not self.has_ended:
            return self.reply is None
        return isinstance(self._error, ConnectionLost) or (self._error is not None and was_not_begun(self._error))

    def begin(self, batch: BatchExchange, deadline: float) -> None:
        """Wait for the reply, which the batch counts."""
        self._batch, self.deadline = batch, deadline
        self.has_ended, self.reply, self._error = False, None, None

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        self.reply = reply, line
        if self._batch is not None:
            self._batch.count()

    def end_array(self) -> None:
        if self._batch is not None:
            self._batch.end()

    def fail(self, error: Exception) -> None:
        self.has_ended, self._error = True, error
        if self._batch is not None:
            self._batch.fail(error)

    def settle(self, marshaller: Marshaller, otherwise: Exception) -> None:
        """Read the reply, unless the call has ended; without one it ends with this error."""
        self._batch = None
        if self.has_ended:
            return
        self.has_ended, self._error = True, otherwise
        if self.reply is not None:
            try:
                self._value, self._error = marshaller.value(self.method, *self.reply, self._returns), None
            except Exception as error:
                self._error = error

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
        self._members: list[BatchCall | tuple[str, Any]] = []
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
        self._members.append((method, params_of(method, args, kwargs)))

    def _outgoing(self) -> BatchExchange | Notice | None:
        """The message to send: with calls to wait for, or notifications only; None for an empty batch."""
        calls, marshaller = [each for each in self._members if isinstance(each, BatchCall)], self._client._marshaller
        if calls:
            return BatchExchange(marshaller, self._members, calls, self._timeout)
        if not self._members:
            return None
        members = [envelope.request(*member) for member in self._members]  # type: ignore[misc]
        return Notice(marshaller, marshaller.encode_batch(members, "batch"), "batch")


class SyncBatch(Batch):
    """The batch of a `Client`: a context manager that sends it when its block ends."""

    def __enter__(self) -> SyncBatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outgoing = self._outgoing() if kind is None else None
        if isinstance(outgoing, BatchExchange):
            with outgoing:
                self._client._perform(outgoing, self._timeout, None, self._wait_for)
        elif outgoing is not None:
            self._client._perform(outgoing, self._timeout, None, self._wait_for)


class AsyncBatch(Batch):
    """The batch of an `AsyncClient`: an async context manager that sends it when its block ends."""

    async def __aenter__(self) -> AsyncBatch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outgoing = self._outgoing() if kind is None else None
        if isinstance(outgoing, BatchExchange):
            with outgoing:
                await self._client._perform(outgoing, self._timeout, None, self._wait_for)
        elif outgoing is not None:
            await self._client._perform(outgoing, self._timeout, None, self._wait_for)


class BatchExchange(Call):
    """The sending of a batch with calls; it may be sent again after it failed.

    In a `with` block around the sending, an error of the batch becomes the error of its calls that have no reply.
    """

    def __init__(
        self, marshaller: Marshaller, members: list[BatchCall | tuple[str, Any]], calls: list[BatchCall], timeout: Any
    ) -> None:
        super().__init__(marshaller, _names(calls), timeout=timeout)
        self._members = members
        self._calls = calls
        #: Further members for the request of each call and notification.
        self.more: Sequence[Mapping[str, str]] = ()
        #: The calls that are sent, in order.
        self._due: dict[BatchCall, None] = {}
        #: How many of them have no reply yet.
        self._missing = 0
        #: The batch was answered; what is sent again are single calls of it.
        self._has_replies = False

    def enter(self, pending: PendingCalls, call: PendingCall) -> None:
        self._pending, self._call = pending, call
        self._due = dict.fromkeys([each for each in self._calls if each.is_due])
        self._missing = len(self._due)
        for each in self._due:
            each.begin(self, call.deadline)
            each.call_id = pending.add(each)

    def count(self) -> None:
        """Count a reply."""
        self._missing -= 1
        if not self._missing:
            self._call.answer({}, b"")

    def fail(self, error: Exception) -> None:
        """Count a call that will have no reply."""
        self._missing -= 1
        if not self._missing:
            if isinstance(error, ConnectionLost | CallTimeout):
                error = type(error)(error.reason, method=self.method, address=error.address)
            self._call.fail(error)

    def end(self) -> None:
        """End the wait after the array of replies: calls without a reply in it get none."""
        if self._missing:
            self._missing = 0
            for each in self._due:
                if each.reply is None:
                    self._pending.discard(each.call_id)
            self._call.answer({}, b"")

    @property
    def methods(self) -> list[str]:
        return [member.method if isinstance(member, BatchCall) else member[0] for member in self._members]

    @property
    def call_ids(self) -> list[int | str]:
        return [each.call_id for each in self._due]

    @property
    def members(self) -> Sequence[BatchCall | tuple[str, Any]]:
        """The calls, and the notifications with their params, in order."""
        return self._members

    def encode(self, left: float, *, says_whole: bool = False) -> Encoded:
        timeout = told(left) if self.tells_time else None
        message = [
            envelope.request(member.method, member.params, call_id=member.call_id, timeout=timeout)
            if isinstance(member, BatchCall)
            else envelope.request(*member)
            for member in self._members
            if self._is_sent(member)
        ]
        if self.more:
            more = [each for member, each in zip(self._members, self.more, strict=True) if self._is_sent(member)]
            message = [{**request, **each} for request, each in zip(message, more, strict=True)]
        return self.marshaller.encode_batch(message, self.method)

    def _is_sent(self, member: BatchCall | tuple[str, Any]) -> bool:
        """Whether it is in the message that is sent next."""
        return member in self._due if isinstance(member, BatchCall) else not self._has_replies

    def outcome(self, reply: dict[str, Any], line: bytes | bytearray) -> None:
        """Give every call its reply, or the reason why it has none.

        Raises:
            MethodNotFound: some calls found no provider at the hub, and could be sent again; each has its error.
        """
        self._settle(None)
        self._has_replies = True
        for call in self._due:
            error = call.error
            if isinstance(error, MethodNotFound | ProviderGone) and was_not_begun(error):
                raise _NoProvider(error.message, error.data)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, _NoProvider):
            return True  # an error of single calls, which have it
        if isinstance(error, Exception):
            self._settle(error)
        return False

    def _settle(self, error: Exception | None) -> None:
        """Give the calls their outcomes; those without a reply end with this error, or with one that says so."""
        replies = [call.reply[0] for call in self._due if call.reply is not None]
        refusal: Any = replies[0].get("error") if len(replies) == 1 else None
        is_refused = isinstance(refusal, dict) and refusal.get("code") in _REFUSALS
        for call in self._calls:
            otherwise = error
            if otherwise is None:
                otherwise = error_from_wire(refusal) if is_refused else InternalError(_NO_ANSWER)
                otherwise.method, otherwise.address = call.method, self.marshaller.address
            call.settle(self.marshaller, otherwise)


def _names(calls: list[BatchCall]) -> str:
    """The text that stands for the method's name in errors."""
    names = list(dict.fromkeys(call.method for call in calls))
    return "batch of " + ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
