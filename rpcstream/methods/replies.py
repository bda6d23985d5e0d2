"""Replies: how results and errors are written, and what is called after a reply has gone out.

Owns the bytes of a reply, its limit of size, what of an exception is shown to the caller, and the functions that
handlers gave to `Context.after_reply`. Knows neither how a call is carried out nor the order of messages.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from ..codec import Codec
from ..codec.rich_hint import shortened
from ..errors import InternalError, RpcError
from ..limits import Limits
from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog
from ..peer.context import CallContext
from ..peer.deadline import free_context
from ..peer.state import ConversationState
from ..wire import envelope
from ..wire.buffers import Encoded
from ..wire.envelope import VERSION
from .failures import NO_FORM, UnfitResult, checked, internal_error
from .registry import Method

#: Types of results that are written as they are.
_PLAIN = frozenset((int, str, bool, type(None)))

#: The id of a notification, which gets no reply.
NO_ID: Any = object()

#: The largest magnitude of an error code that every JSON parser reads exactly.
_MAX_CODE = 2**53

#: The task whose result is a reply; None if the reply is given while its message is read.
ReplyTask = asyncio.Task[object] | None


class ReplyWriter:
    """Writes the replies of a dispatcher. Replies to notifications are None.

    Args:
        debug: show exceptions of handlers to the caller, with their traceback.
        side: whose limits these are, for errors: "server" or "client".
        log: gets the failures of handlers.
    """

    def __init__(
        self, codec: Codec, limits: Limits, counters: Counters, *, debug: bool, side: str, log: LimitedLog
    ) -> None:
        self._serialize = codec.serialize
        self._serialize_plain = codec.serialize_plain
        self._max_size = limits.max_message_size
        self._counters = counters
        self._debug = debug
        self._side = side
        self._log = log

    def result(self, method: Method, call_id: Any, result: Any, binary: bool = False) -> Encoded | None:
        """The reply with a handler's result, which is checked against the return hint.

        Args:
            method: that was called.
            call_id: of the call, or `NO_ID`.
            result: of the handler.
            binary: large payloads are attached, for a peer that reads binary frames.

        Raises:
            UnfitResult: the result does not fit the hint, or has no form on the wire.
            MessageTooLarge: the reply is over `max_message_size`.
        """
        if type(result) is not method.returns and method.check_result is not None:
            result = checked(method.check_result, result, "the result")
        if call_id is NO_ID:
            return None
        message = {"jsonrpc": VERSION, "id": call_id, "result": result}  # section 5
        try:
            if type(result) in _PLAIN:
                reply = self._serialize_plain(message)
            else:
                reply = self._serialize(message, binary=True) if binary else self._serialize(message)
        except RpcError:
            raise
        except Exception as error:
            raise UnfitResult(f"the result {NO_FORM}") from error
        if len(reply) > self._max_size:
            raise envelope.oversize(len(reply), self._max_size, side=self._side)
        return reply

    def error(self, call_id: Any, error: RpcError) -> Encoded | None:
        """The reply with an error; never raises, whatever a handler put into the error."""
        if call_id is NO_ID:
            return None
        self._counters.errors += 1
        code = getattr(error, "code", None)
        if type(code) is not int or abs(code) >= _MAX_CODE:
            text = "an error has the code %s, which must be an integer"
            code, error = InternalError.CODE, internal_error(self._log, self._side, None, text, repr(code))
        try:
            reply = self._serialize(envelope.error_reply(call_id, error))
            if len(reply) <= self._max_size:
                return reply
            self._log.error(None, "the data of an error is too large to be sent: %d bytes", len(reply))
        except Exception as unfit:
            self._log.error(None, "the data of an error cannot be sent", error=unfit)
        return self._serialize(envelope.error_reply(call_id, RpcError(code, _text_of(error)[:1000])))

    def log_notification(self, name: object, error: RpcError, session: ConversationState | None) -> None:
        """Log the error of a notification, which its sender is not told."""
        address = _address_of(session)
        sender = f" (it came from {address})" if address else ""
        try:
            text = str(error)
        except Exception:  # of a class that forgets to initialize its base, say
            text = _text_of(error)
        self._log.warning(address, "notification of %r failed: %s", shortened(str(name)), text[:200] + sender)

    def error_to(self, message: Any, error: RpcError) -> Encoded | None:
        """The error reply to a request (no batch); one that cannot be read gets the id null."""
        is_readable = type(message) is dict and envelope.has_valid_id(message)
        return self.error(message.get("id", NO_ID) if is_readable else None, error)

    def error_to_batch(self, call_id: Any, error: RpcError) -> Encoded | None:
        """One error for a batch as a whole: in an array, and with the id of one of its calls.

        Clients look for their calls by id in an array; some never end a call whose id is not there.
        """
        reply = self.error(call_id, error)
        return None if reply is None else b"[%b]" % bytes(reply)

    def failure(
        self, method: Method, call_id: Any, error: BaseException, session: ConversationState | None
    ) -> Encoded | None:
        """The error reply for an exception that was raised while a call was answered.

        An `RpcError` of the handler is the reply. Any other exception is logged with an id, which the reply names; the
        exception itself is shown only if debugging.
        """
        # An RpcError with an address came from another server, through a client: it is not this handler's answer.
        if isinstance(error, RpcError) and getattr(error, "address", None) is None:
            if call_id is NO_ID:
                self.log_notification(method.name, error, session)
            return self.error(call_id, error)
        self._counters.handler_failures += 1
        what, text, values = "", "method %r failed", [method.name]
        if isinstance(error, UnfitResult):
            what, text = str(error), "method %r failed: %s"
            values, error = [method.name, what], error.__cause__ or error
        data = None
        if self._debug:
            trace = "".join(traceback.format_exception(error))
            data = {"type": type(error).__name__, "message": _text_of(error), "traceback": trace}
        told = internal_error(self._log, self._side, method.name, text, *values, error=error, what=what, data=data)
        return self.error(call_id, told)


def _address_of(session: ConversationState | None) -> str | None:
    channel = None if session is None else session.channel
    return None if channel is None else channel.address


def _text_of(error: BaseException) -> str:
    """The text of an exception, fit to be sent, even if its class raises in `__str__`."""
    try:
        text = error.message if isinstance(error, RpcError) else str(error)
        return str(text).encode(errors="replace").decode()
    except Exception:
        return f"(a {type(error).__name__} that has no text)"


# -- after the reply --------------------------------------------------------------------------------------------------


class AfterReply(NamedTuple):
    """The functions that the handler of one call gave to `Context.after_reply`."""

    session: ConversationState
    method: str
    functions: list[Callable[[], object]]


class AfterReplyCalls:
    """Calls the functions of `Context.after_reply` once the session has handed the reply to its transport."""

    def __init__(self, log: LimitedLog) -> None:
        self._log = log

    def plan(self, context: CallContext, task: ReplyTask) -> None:
        """Plan the functions of a call that succeeded; of a member of a batch, they wait for the whole batch.

        Args:
            task: gives the reply, which is about to be handed to the session.
        """
        planned = AfterReply(context.session, context.method, context.afterwards)
        if context.batch is None:
            self.plan_all([planned], task)
        else:
            context.batch.after_reply.append(planned)

    def plan_all(self, planned: list[AfterReply], task: ReplyTask) -> None:
        """Plan the functions of several calls on one session, which have one reply."""
        session = planned[0].session

        def call() -> None:
            if session.channel is not None or not session.is_lasting:
                for each in planned:
                    self._call_each(each)

        def call_soon(_: object = None) -> None:
            # In the turn of the loop after the one in which the session writes the reply.
            session.loop.call_soon(call, context=free_context())

        if task is None:
            call_soon()
        else:  # after the session's own callback, which takes the reply when the task is done
            task.add_done_callback(call_soon)

    def _call_each(self, planned: AfterReply) -> None:
        for function in planned.functions:
            try:
                function()
            except Exception as error:
                kind = "a function that method %r gave to after_reply failed"
                self._log.error(planned.method, kind, planned.method, error=error)
