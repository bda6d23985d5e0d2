"""Replies: how results and errors are written, and what is called after a reply has gone out."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from ..codec import Codec
from ..errors import CallCancelled, InternalError, InvalidRequest, ParseError, RpcError
from ..limits import Limits
from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog, shortened
from ..peer.context import CallContext
from ..peer.deadline import free_context
from ..peer.session import Session
from ..wire import envelope
from ..wire.buffers import Encoded
from ..wire.envelope import VERSION
from .method import Method

log = logging.getLogger("rpcstream.server")

_dumps: Callable[[Any], bytes] = orjson.dumps

#: Types of results that are written as they are.
_PLAIN = frozenset((int, str, bool, type(None)))

#: What is wrong with a value that a handler gave.
NO_FIT, NO_FORM = "does not fit the return hint", "cannot be encoded"

#: The id of a notification, which gets no reply.
NO_ID: Any = object()


@dataclass(eq=False)
class ReplyWriter:
    """Writes the replies of a dispatcher. Replies to notifications are None.

    Attributes:
        debug: show exceptions of handlers to the caller, with their traceback.
        side: whose limits these are, for errors: "server" or "client".
        log: for messages that peers can cause; each connection and each method may fill its share of it.
        failed: how the call ended whose reply was made last, for those who observe calls: the code and text of its
            error, also if that was a notification; None: it has a result.
    """

    codec: Codec
    limits: Limits
    counters: Counters
    debug: bool = False
    side: str = "server"
    log: LimitedLog = field(default_factory=lambda: LimitedLog(log))
    failed: tuple[Any, str] | None = None

    def __post_init__(self) -> None:
        # Kept here for the path of each call.
        self._serialize = self.codec.serialize
        self._max_size = self.limits.max_message_size

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
        kind = type(result)
        if kind is not method.returns and method.check_result is not None:
            result = checked(method.check_result, result, "the result")
            kind = type(result)
        self.failed = None
        if call_id is NO_ID:
            return None
        message = {"jsonrpc": VERSION, "id": call_id, "result": result}  # section 5
        try:
            if kind in _PLAIN:
                try:
                    reply: Encoded = _dumps(message)
                except TypeError:  # an integer over 64 bits, half a character
                    reply = self._serialize(message)
            else:
                reply = self._serialize(message, binary=True) if binary else self._serialize(message)
        except RpcError:
            raise
        except Exception as error:
            raise UnfitResult(f"the result {NO_FORM}") from error
        if len(reply) > self._max_size:
            raise envelope.oversize(len(reply), self._max_size, side=self.side)
        return reply

    def written(self, message: Any, what: str, *, binary: bool) -> Encoded:
        """The bytes of a message with `what` a handler yielded. Raises as `result`."""
        written: Encoded = checked(partial(self._serialize, binary=binary), message, what, NO_FORM)
        if len(written) > self._max_size:
            raise envelope.oversize(len(written), self._max_size, side=self.side)
        return written

    def error(self, call_id: Any, error: RpcError, *, in_array: bool = False) -> bytes | None:
        """The reply with an error; never raises, whatever a handler put into the error.

        Args:
            in_array: it is the error of a whole batch, with the id of one of its calls. Clients look for their calls by
                id in an array; some never end a call whose id is not there.
        """
        self.failed = error.code, error.message
        if call_id is NO_ID:
            return None
        self.counters.errors += 1
        try:
            reply = bytes(self._serialize(envelope.error_reply(call_id, error)))
            if len(reply) > self._max_size:
                raise ValueError(f"it is too large, {len(reply)} bytes")
        except Exception as unfit:
            self.log.error(None, "an error cannot be sent as it is: %s", unfit)
            told = InternalError(f"{InternalError.MESSAGE}: the error cannot be sent, see the {self.side}'s log")
            self.failed = told.code, told.message
            reply = bytes(self._serialize(envelope.error_reply(call_id, told)))
        return b"[%b]" % reply if in_array else reply

    def error_to(self, message: Any, error: RpcError, session: Session | None = None) -> bytes | None:
        """The error reply to a request (no batch); one that cannot be read gets the id null.

        An invalid request without an id gets it, too, since it may be no notification (section 5).

        Args:
            session: that a notification came on, whose error is logged; None: it is not.
        """
        is_readable = type(message) is dict and envelope.has_valid_id(message)
        call_id = message.get("id", NO_ID) if is_readable else None
        if call_id is NO_ID and isinstance(error, InvalidRequest | ParseError):
            call_id = None
        if call_id is NO_ID and session is not None:
            self._log_notification(message.get("method"), error, session)
        return self.error(call_id, error)

    def failure(self, method: Method, call_id: Any, error: BaseException, session: Session) -> bytes | None:
        """The error reply for an exception that was raised while a call was answered.

        An `RpcError` of the handler is the reply. Any other exception is logged with an id, which the reply names; the
        exception itself is shown only if debugging. After a cancel the caller may be gone, or still read the error.
        """
        if isinstance(error, asyncio.CancelledError):
            self.counters.cancelled += 1
            return self.error(call_id, CallCancelled())
        # An RpcError with an address came from another server, through a client: it is not this handler's answer.
        if isinstance(error, RpcError) and error.address is None:
            if call_id is NO_ID:
                self._log_notification(method.name, error, session)
            return self.error(call_id, error)
        self.counters.handler_failures += 1
        data = None
        if self.debug:
            trace = "".join(traceback.format_exception(error)).encode(errors="replace").decode()
            data = {"type": type(error).__name__, "message": shortened(error), "traceback": trace}
        told = f"{error}; " if isinstance(error, UnfitResult) else ""
        return self.error(
            call_id, internal_error(self.log, self.side, f"method {method.name!r}", error, told=told, data=data)
        )

    def _log_notification(self, name: object, error: RpcError, session: Session) -> None:
        """Log the error of a notification, which its sender is not told."""
        address = "a peer" if session.channel is None else session.channel.address
        self.log.warning(address, "notification of %r failed: %s (it came from %s)", name, error, address)


# -- failures of handlers: callers get an id to look up in the log, and nothing of what the exception says ------------


class UnfitResult(TypeError):
    """What a handler returned or yielded cannot be sent. The text has no values; `__cause__` has the details."""


def checked(function: Callable[[Any], Any], value: Any, what: str, problem: str = NO_FIT) -> Any:
    """What a check or an encoder gives for a value; UnfitResult, with `what` and the problem, if it fails."""
    try:
        return function(value)
    except RpcError:
        raise
    except Exception as error:
        raise UnfitResult(f"{what} {problem}") from error


def internal_error(
    log: LimitedLog, side: str, what: str, error: BaseException, *, told: str = "", data: Any = None
) -> InternalError:
    """Log a failure, and give the error for the caller, which names the same id.

    Args:
        side: whose log it is: "server" or "client".
        what: has failed; of each a limited number is logged.
        error: why.
        told: what the caller may know of it.
        data: of the error.
    """
    failure_id = log.failure(what, "%s failed", what, error=error)
    where = f"see the {side}'s log, id {failure_id}"
    if failure_id is None:
        where = f"the {side}'s log omits it, because there were too many errors"
    return InternalError(f"{InternalError.MESSAGE}: {told}{where}", data)


# -- after the reply --------------------------------------------------------------------------------------------------


def call_after_reply(context: CallContext, log: LimitedLog) -> None:
    """Call the functions that a handler gave to `Context.after_reply`, once the session has written the reply.

    Args:
        context: of a call whose reply is made now, or if it came in a batch: the reply to all of it.
        log: gets what the functions raise.
    """
    session, functions = context.session, context.afterwards
    if not functions:
        return

    def call() -> None:
        for function in functions if session.channel is not None or not session.is_lasting else ():
            try:
                function()
            except Exception as error:
                kind = "a function that method %r gave to after_reply failed"
                log.error(context.method, kind, context.method, error=error)

    def call_later() -> None:
        # The session takes the reply of a task in the next turn of the loop, and writes it in the one after.
        soon = session.loop.call_soon
        soon(soon, soon, call, context=free_context())

    if context.batch is None:
        call_later()
    else:
        context.batch.after_reply.append(call_later)
