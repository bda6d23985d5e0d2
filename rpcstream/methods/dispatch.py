"""One request in, one reply out, now or later.

Owns the way from a parsed message to the bytes of its reply: method, arguments, handler, result or error. Knows no
socket and no order of messages, and hands the session on unseen to those handlers that take part in the conversation;
what runs where is the invoker's, what a value looks like the codec's.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from types import CoroutineType
from typing import Any, NamedTuple

from ..codec import Codec, payloads
from ..errors import (
    BatchTooLarge,
    CallCancelled,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    MethodNotFound,
    NotPermitted,
    ParseError,
    RpcError,
    ServerBusy,
)
from ..limits import Limits
from ..observe.counters import Counters
from ..peer import control
from ..peer.context import Context
from ..peer.deadline import inherit
from ..peer.elsewhere import Elsewhere
from ..peer.interfaces import Later
from ..peer.session import Session
from ..wire import envelope
from ..wire.envelope import VERSION
from ..wire.framing import Oversize
from ..wire.pieces import Written
from .batch import Batch
from .conduct import Conduct
from .invoke import Invoker
from .registry import Method, MethodRegistry

log = logging.getLogger("rpcstream.server")

Line = bytes | bytearray
_ABSENT: Any = object()

#: Credit that is never used up.
ENDLESS = 2**62


class _Limit(NamedTuple):
    """How long a call may take (s), and when that time is over (loop time, s)."""

    seconds: float
    ends: float


class Dispatcher:
    """Answers requests with the methods of a registry. A session's `peer.interfaces.Dispatch`.

    Args:
        debug: show exceptions of handlers to the caller, with their traceback.
        side: what errors call the end whose limits these are.
    """

    def __init__(
        self,
        methods: MethodRegistry,
        *,
        codec: Codec,
        invoker: Invoker,
        limits: Limits,
        counters: Counters,
        debug: bool = False,
        side: str = "server",
    ) -> None:
        self._side = side
        self._methods = methods.by_name
        self._for_all = methods.for_all
        self._codec = codec
        self._serialize = codec.serialize
        self._invoker = invoker
        self._limits = limits
        self._counters = counters
        self._debug = debug
        self._max_depth = limits.max_depth
        self._shallow = 2 * limits.max_depth
        self._max_size = limits.max_message_size

    def oversize(self, message: Oversize) -> Written | None:
        """The reply to a message over the size limit."""
        error = envelope.oversize(message.size, message.limit or self._max_size, side=self._side)
        return self._error(envelope.id_in_head(message.head), error)

    def unreadable(self, error: ParseError) -> Written | None:
        """The reply to a message that is not JSON."""
        return self._error(None, error)

    def cancelled(self, message: Any) -> Written | None:
        """The reply to a message whose handling was cancelled from outside."""
        self._counters.cancelled += 1
        return self._error(message.get("id", _ABSENT) if type(message) is dict else None, CallCancelled())

    def busy(self, message: Any, limit: int) -> Written | None:
        """The reply to a message that is turned away; of a batch, to each of its members."""
        if type(message) is list and message:
            replies = [bytes(reply) for member in message if (reply := self.busy(member, limit)) is not None]
            return b"[" + b",".join(replies) + b"]" if replies else None
        self._counters.turned_away += 1
        return self.refused(message, ServerBusy(data={"limit": limit}))

    def refused(self, message: Any, error: RpcError) -> Written | None:
        """The reply to a request (no batch) that is answered with this error, whatever it asks."""
        is_readable = type(message) is dict and envelope.has_valid_id(message)
        return self._error(message.get("id", _ABSENT) if is_readable else None, error)

    def goes_on(self, message: Any) -> bool:
        """Is the method to be carried out although its caller is gone?"""
        method = self._methods.get(message.get("method"))
        return method is not None and method.detached

    def took_long(self, message: Any, seconds: float) -> None:
        """Say which method kept everybody else waiting."""
        members = message if isinstance(message, list) else [message]
        named = {name for member in members if type(member) is dict and type(name := member.get("method")) is str}
        for name in sorted(named & self._methods.keys()):
            advice = (
                "it must not block between its awaits"
                if self._methods[name].is_async
                else "register it with offload='thread' (or 'process', if it computes in Python)"
            )
            log.warning("method %r kept the event loop for %.3f s; nobody else was served: %s", name, seconds, advice)

    # -- one request ------------------------------------------------------------------------------------------------

    def answer(self, message: Any, line: Line, session: Session, tagged: bool | None = None) -> Written | Later | None:
        """The reply to a request or a batch; None for notifications; a coroutine that gives it, if one must wait.

        From the request to the reply, without a detour for what nearly every message is: a well-formed call.

        Args:
            line: the message as it came; empty for a member of a batch, which has its integers exact already.
            session: the conversation, for handlers that take part in it.
            tagged: whether there may be tagged objects in it, where that is known.
        """
        # That many brackets take twice as many bytes: a short message need not be looked at.
        if len(line) > self._shallow and envelope.is_deeper(line, self._max_depth):
            return self._too_deep(message)
        if type(message) is not dict:
            return self._batch(message, line, session)
        call_id = message.get("id", _ABSENT)
        kind = type(call_id)
        try:
            method = self._for_all.get(message["method"])
        except (KeyError, TypeError):  # no name, or an array or object for it
            method = None
        self._counters.requests += 1
        if method is None or (kind is not int and kind is not str) or message.get("jsonrpc") != VERSION:
            method, call_id, refusal = self._unusual_request(message, line, session)
            if method is None:
                return refusal
        try:
            args, kwargs = method.bind(message.get("params"), line, tagged)
            if method.inline:
                if session.waited and "timeout" in message:
                    timeout_of(method.name, method.timeout, message, session.waited)
                result = method.function(*args, **kwargs) if kwargs else method.function(*args)
                return self._reply(method, call_id, result)
            timeout = (
                timeout_of(method.name, method.timeout, message, session.waited)
                if "timeout" in message
                else method.timeout
            )
            if method.extras is None and method.stream is None and not method.ordered:
                limit = None if timeout is None else _Limit(timeout, session.loop.time() + timeout)
                return self._call_later(self._invoker, method, call_id, args, kwargs, limit)
            return self._call_in_conversation(method, message, not line, args, kwargs, timeout, session)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._failed(method, call_id, error)

    def _unusual_request(
        self, message: dict[str, Any], line: Line, session: Session
    ) -> tuple[Method | None, Any, Written | None]:
        """Notifications, ids that are null or a float, methods that are not for all, and all that is wrong.

        Returns:
            The method to be called and the id; no method, and the reply, where there is nothing to call.
        """
        if line and type(message.get("id")) is float:
            envelope.with_exact_ids(message, line)
        call_id = message.get("id", _ABSENT)
        try:
            envelope.check_request(message)
            method = self._methods.get(message["method"])
            if method is None:
                raise MethodNotFound(data={"method": message["method"]})
            if method.allow is not None and not method.allow.permits(session.identity):
                raise NotPermitted(data={"method": method.name})
        except InvalidRequest as error:
            # Whether it was a notification cannot be known of what is no request (section 5).
            readable = call_id is not _ABSENT and envelope.has_valid_id(message)
            return None, call_id, self._error(call_id if readable else None, error)
        except RpcError as error:
            return None, call_id, self._error(call_id, error)
        return method, call_id, None

    def _call_in_conversation(
        self,
        method: Method,
        message: dict[str, Any],
        in_batch: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,
        session: Session,
    ) -> Written | Later | None:
        """A handler with a context, streams, items or a place in the order."""
        call_id = message.get("id", _ABSENT)
        credit: int | None = None
        streaming = method.stream
        if streaming is not None and call_id is not _ABSENT:
            if session.streams and message.get("stream", _ABSENT) is not None:
                method, credit = streaming, ENDLESS
            elif session.streams is None and "stream" in message:
                method, credit = streaming, credit_of(message)
        context = Context(session, message, timeout=timeout, is_async=method.is_async, in_batch=in_batch)
        tokens: list[str] = []
        if method.extras is not None:
            (args, kwargs), tokens = method.extras.fill((args, kwargs), context, session)
        if not (method.is_async or method.offload or method.ordered or credit is not None):
            try:
                return self._reply(method, call_id, method.function(*args, **kwargs))
            finally:
                context.finish()
        conduct = Conduct(self._invoker, session, context, credit=credit, tokens=tokens, ordered=method.ordered)
        limit = None if timeout is None else _Limit(timeout, session.loop.time() + timeout)
        return self._call_later(conduct, method, call_id, args, kwargs, limit)

    async def _call_later(
        self,
        starter: Invoker | Conduct,
        method: Method,
        call_id: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        limit: _Limit | None,
    ) -> Written | None:
        try:
            if limit is not None:
                left = limit.ends - asyncio.get_running_loop().time()
                if left <= 0:  # a member of a batch that waited for room
                    return self._too_late(method, call_id, limit.seconds)
                inherit(left)
            result = starter.start(method, args, kwargs)
            if type(result) is CoroutineType or inspect.isawaitable(result):
                if limit is None:
                    result = await result
                else:
                    async with asyncio.timeout_at(limit.ends) as deadline:
                        result = await result
            return self._reply(method, call_id, result)
        except KeyboardInterrupt:
            raise
        except TimeoutError as error:
            if limit is not None and _has_passed(deadline):
                return self._too_late(method, call_id, limit.seconds)
            return self._failed(method, call_id, error)
        except asyncio.CancelledError:
            # Whoever cancelled it: a caller that is still there is told. The task ends here all the same.
            self._counters.cancelled += 1
            return self._error(call_id, CallCancelled())
        except BaseException as error:
            return self._failed(method, call_id, error)

    def _reply(self, method: Method, call_id: Any, result: Any) -> Written | None:
        if type(result) is not method.returns and method.check_result is not None:
            result = method.check_result(result)
        if call_id is _ABSENT:
            return None
        reply = self._serialize({"jsonrpc": VERSION, "id": call_id, "result": result})  # section 5
        if len(reply) > self._max_size:
            return self._error(call_id, envelope.oversize(len(reply), self._max_size, side=self._side))
        return reply

    # -- a batch ----------------------------------------------------------------------------------------------------

    def _batch(self, members: Any, line: Line, session: Session) -> Written | Later | None:
        """Section 6: one array of replies in one message; nothing when there are none."""
        if type(members) is not list:
            return self._error(None, InvalidRequest(data={"reason": "a request must be an object, a batch an array"}))
        if not members:
            return self._error(None, InvalidRequest(data={"reason": "an empty batch"}))
        if len(members) > self._limits.max_batch:
            data = {"size": len(members), "limit": self._limits.max_batch}
            return self._error(None, BatchTooLarge(data=data))
        if envelope.may_hold_big_integers(line):
            members = payloads.parse_exactly(line)
        if any(type(member) is dict and type(member.get("id")) is float for member in members):
            envelope.with_exact_ids(members, line)
        tagged = self._codec.holds_tags(line)
        batch, overtaken = Batch(self._max_size), session.backlog.noted > 0
        for place, member in enumerate(members):
            if type(member) is not dict:
                reason = {"reason": "a member of a batch must be an object"}
                batch.put(place, self._error(None, InvalidRequest(data=reason)))
            elif "id" not in member and control.is_word(member):
                batch.words.append(member)
            elif envelope.is_reply(member):
                session.pending.settle(member, line)
            elif overtaken and session.backlog.was_cancelled(member):
                batch.put(place, self.cancelled(member))
            else:
                reply = self.answer(member, b"", session, tagged)
                if reply is None or isinstance(reply, Written):
                    batch.put(place, reply)
                else:
                    assert not isinstance(reply, Elsewhere), "a member of a batch is waited for here"
                    batch.wait(place, member, reply)
        if batch.waiting:
            return self._batch_later(batch, members, session)
        batch.heed(session)
        return self._joined(batch, members)

    async def _batch_later(self, batch: Batch, members: list[Any], session: Session) -> Written | None:
        for place, message in await batch.finish(session, self._limits.max_calls):
            batch.put(place, self.cancelled(message))
        return self._joined(batch, members)

    def _joined(self, batch: Batch, members: list[Any]) -> Written | None:
        """The replies in one array. Where they are too long together, each call is told so: by an error with its id.

        One without an id would fail whatever else waits at the client.
        """
        if batch.size <= self._max_size:
            return batch.joined()
        error, told = envelope.oversize(batch.size, self._max_size, side=self._side), Batch(self._max_size)
        for place in batch.answered:
            member = members[place]
            call_id = member.get("id") if type(member) is dict and envelope.has_valid_id(member) else None
            told.put(place, self._error(call_id, error))
        return told.joined() if told.size <= self._max_size else self._error(None, error)

    # -- errors -----------------------------------------------------------------------------------------------------

    def _too_deep(self, message: Any) -> Written | None:
        call_id = message.get("id") if type(message) is dict and envelope.has_valid_id(message) else None
        if type(call_id) is float:  # not exact, and reading so deep a message again is not worth it
            call_id = None
        reason = f"more than {self._max_depth} arrays and objects inside each other (the {self._side}'s max_depth)"
        return self._error(call_id, InvalidRequest(data={"reason": reason, "limit": self._max_depth}))

    def _too_late(self, method: Method, call_id: Any, seconds: float) -> Written | None:
        return self._error(call_id, DeadlineExceeded(data={"method": method.name, "timeout": seconds}))

    def _failed(self, method: Method, call_id: Any, error: BaseException) -> Written | None:
        """The error reply for what was raised while answering; nothing internal goes out unless debugging."""
        # An RpcError that came from somewhere else, through a client, is not this handler's answer.
        if isinstance(error, RpcError) and getattr(error, "address", None) is None:
            if call_id is _ABSENT:
                log.warning("notification of %r failed: %s", method.name, error)
            return self._error(call_id, error)
        self._counters.handler_failures += 1
        log.error("method %r failed", method.name, exc_info=error)
        data = None
        if self._debug:
            text = "".join(traceback.format_exception(error))
            data = {"type": type(error).__name__, "message": _text_of(error), "traceback": text}
        return self._error(call_id, InternalError(data=data))

    def _error(self, call_id: Any, error: RpcError) -> Written | None:
        """The reply for an error; never fails, whatever a handler put into the error."""
        if call_id is _ABSENT:
            return None
        self._counters.errors += 1
        code = getattr(error, "code", None)
        if type(code) is not int or abs(code) >= 2**53:
            log.error("an error has the code %.100r, which must be an integer", code)
            code, error = InternalError.CODE, InternalError()
        try:
            reply = self._serialize(envelope.error_reply(call_id, error))
            if len(reply) <= self._max_size:
                return reply
            log.error("the data of an error is too large to be sent: %d bytes", len(reply))
        except Exception:
            log.exception("an error cannot be sent as it is")
        return self._serialize(envelope.error_reply(call_id, RpcError(code, _text_of(error)[:1000])))


def _text_of(error: BaseException) -> str:
    """The text of an exception, fit to be sent, whatever its class does to make it."""
    try:
        text = error.message if isinstance(error, RpcError) else str(error)
        return str(text).encode(errors="replace").decode()
    except Exception:
        return f"(a {type(error).__name__} that has no text)"


def timeout_of(name: str, most: float | None, message: dict[str, Any], waited: float) -> float | None:
    """Seconds for a call: at most these, or the caller's if that is shorter, less what it has `waited` here.

    Raises:
        DeadlineExceeded: it waited too long, or may take no time at all; it is not begun.
        InvalidRequest: the caller's are no seconds.
    """
    asked = message.get("timeout")
    if asked is None:
        return most
    if not isinstance(asked, int | float) or isinstance(asked, bool) or asked < 0:
        raise InvalidRequest(data={"reason": "the member 'timeout' must be a number of seconds, not negative"})
    left = asked if most is None else min(asked, most + waited)
    if left <= waited:
        raise DeadlineExceeded(data={"method": name, "timeout": asked})
    return left - waited


def credit_of(message: dict[str, Any]) -> int | None:
    """The items that the caller permits at first; None if it wants no stream.

    Raises:
        InvalidRequest: it is no number of items, or the id is none that items and credit could name.
    """
    credit = message.get("stream")
    if credit is not None and type(message.get("id")) not in (int, str, type(None)):
        raise InvalidRequest(data={"reason": "the id of a stream must be a string or an integer of 64 bits"})
    if credit is not None and (type(credit) is not int or credit < 0):
        raise InvalidRequest(data={"reason": "the member 'stream' must be a number of items, not negative"})
    return credit


def _has_passed(deadline: asyncio.Timeout) -> bool:
    """Also when a call that the handler made ended first, which inherited the deadline."""
    when = deadline.when()
    return deadline.expired() or (when is not None and asyncio.get_running_loop().time() >= when)
