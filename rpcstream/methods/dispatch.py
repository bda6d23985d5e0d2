"""One request in, one reply out, now or later.

Owns the way from a parsed message to the bytes of its reply: method, arguments, handler, result or error. Knows no
socket, no connection and no order of messages; what runs where is the invoker's, what a value looks like the codec's.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Coroutine
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
    ParseError,
    RpcError,
)
from ..limits import Limits
from ..observe.counters import Counters
from ..wire import envelope
from ..wire.envelope import VERSION
from ..wire.framing import Oversize
from ..wire.pieces import Written
from .invoke import Invoker
from .registry import Method, MethodRegistry

log = logging.getLogger("rpcstream.server")

Line = bytes | bytearray
Later = Coroutine[Any, Any, Written | None]

_ABSENT: Any = object()


class Dispatcher:
    """Answers requests with the methods of a registry. A session's `peer.session.Dispatch`.

    Args:
        debug: show exceptions of handlers to the caller, with their traceback.
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
    ) -> None:
        self._methods = methods.by_name
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
        error = envelope.oversize(message.size, self._max_size, side="server")
        return self._error(envelope.id_in_head(message.head), error)

    def unreadable(self, error: ParseError) -> Written | None:
        """The reply to a message that is not JSON."""
        return self._error(None, error)

    def cancelled(self, message: Any) -> Written | None:
        """The reply to a message whose handling was cancelled from outside."""
        return self._error(message.get("id", _ABSENT) if type(message) is dict else None, CallCancelled())

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

    def answer(self, message: Any, line: Line, tagged: bool | None = None) -> Written | Later | None:
        """The reply to a request or a batch; None for notifications; a coroutine that gives it, if one must wait.

        From the request to the reply, without a detour for what nearly every message is: a well-formed call.

        Args:
            line: the message as it came; empty for a member of a batch, which has its integers exact already.
            tagged: whether there may be tagged objects in it, where that is known.
        """
        # That many brackets take twice as many bytes: a short message need not be looked at.
        if len(line) > self._shallow and envelope.is_deeper(line, self._max_depth):
            return self._too_deep(message)
        if type(message) is not dict:
            return self._batch(message, line)
        call_id = message.get("id", _ABSENT)
        kind = type(call_id)
        try:
            method = self._methods.get(message["method"])
        except (KeyError, TypeError):  # no name, or an array or object for it
            method = None
        self._counters.requests += 1
        if method is None or (kind is not int and kind is not str) or message.get("jsonrpc") != VERSION:
            method, call_id, refusal = self._unusual_request(message, line)
            if method is None:
                return refusal
        try:
            args, kwargs = method.bind(message.get("params"), line, tagged)
            if method.inline:
                result = method.function(*args, **kwargs) if kwargs else method.function(*args)
                return self._reply(method, call_id, result)
            timeout = _timeout_of(method, message) if "timeout" in message else method.timeout
            return self._call_later(method, call_id, args, kwargs, timeout)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._failed(method, call_id, error)

    def _unusual_request(self, message: dict[str, Any], line: Line) -> tuple[Method | None, Any, Written | None]:
        """Notifications, ids that are null or a float, and all that is wrong with a request.

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
        except InvalidRequest as error:
            # Whether it was a notification cannot be known of what is no request (section 5).
            readable = call_id is not _ABSENT and envelope.has_valid_id(message)
            return None, call_id, self._error(call_id if readable else None, error)
        except RpcError as error:
            return None, call_id, self._error(call_id, error)
        return method, call_id, None

    async def _call_later(
        self, method: Method, call_id: Any, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None
    ) -> Written | None:
        try:
            result = self._invoker.start(method, args, kwargs)
            if type(result) is CoroutineType or inspect.isawaitable(result):
                if timeout is None:
                    result = await result
                else:
                    async with asyncio.timeout(timeout) as deadline:
                        result = await result
            return self._reply(method, call_id, result)
        except KeyboardInterrupt:
            raise
        except TimeoutError as error:
            if timeout is not None and deadline.expired():
                return self._error(call_id, DeadlineExceeded(data={"method": method.name, "timeout": timeout}))
            return self._failed(method, call_id, error)
        except asyncio.CancelledError:
            # Whoever cancelled it: a caller that is still there is told. The task ends here all the same.
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
            return self._error(call_id, envelope.oversize(len(reply), self._max_size, side="server"))
        return reply

    # -- a batch ----------------------------------------------------------------------------------------------------

    def _batch(self, members: Any, line: Line) -> Written | Later | None:
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
        replies = _BatchReplies(self._max_size)
        waiting: list[_Waiting] = []
        for place, member in enumerate(members):
            if type(member) is not dict:
                reason = {"reason": "a member of a batch must be an object"}
                replies.put(place, self._error(None, InvalidRequest(data=reason)))
                continue
            reply = self.answer(member, b"", tagged)
            if reply is None or isinstance(reply, Written):
                replies.put(place, reply)
            else:
                waiting.append(_Waiting(place, member.get("id", _ABSENT), reply))
        return self._batch_later(replies, waiting) if waiting else self._joined(replies)

    async def _batch_later(self, replies: _BatchReplies, waiting: list[_Waiting]) -> Written | None:
        """Wait for the members that must be waited for, no more of them at a time than one connection may run."""

        async def run(member: _Waiting) -> None:
            replies.put(member.place, await member.later)

        try:
            while waiting:
                now, waiting = waiting[: self._limits.max_calls], waiting[self._limits.max_calls :]
                outcomes = await asyncio.gather(*map(run, now), return_exceptions=True)
                for member, outcome in zip(now, outcomes, strict=True):
                    if outcome is not None:  # cancelled by itself, at its very end
                        replies.put(member.place, self._error(member.call_id, CallCancelled()))
        finally:
            for unstarted in waiting:
                unstarted.later.close()
        return self._joined(replies)

    def _joined(self, replies: _BatchReplies) -> Written | None:
        if replies.size > self._max_size:
            return self._error(None, envelope.oversize(replies.size, self._max_size, side="server"))
        kept = replies.kept
        return b"[" + b",".join([bytes(kept[place]) for place in sorted(kept)]) + b"]" if kept else None

    # -- errors -----------------------------------------------------------------------------------------------------

    def _too_deep(self, message: Any) -> Written | None:
        call_id = message.get("id") if type(message) is dict and envelope.has_valid_id(message) else None
        if type(call_id) is float:  # not exact, and reading so deep a message again is not worth it
            call_id = None
        reason = f"more than {self._max_depth} arrays and objects inside each other (the server's max_depth)"
        return self._error(call_id, InvalidRequest(data={"reason": reason, "limit": self._max_depth}))

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


class _BatchReplies:
    """The replies of a batch by their place in it; from where they are too large together, only their size is kept."""

    def __init__(self, max_size: int) -> None:
        self.kept: dict[int, Written] = {}
        self.size = 1
        self._max_size = max_size

    def put(self, place: int, reply: Written | None) -> None:
        if reply is not None:
            self.size += len(reply) + 1
            if self.size <= self._max_size:
                self.kept[place] = reply
            else:
                self.kept.clear()


class _Waiting(NamedTuple):
    """A member of a batch that must be waited for."""

    place: int
    call_id: Any
    later: Later


def _text_of(error: BaseException) -> str:
    """The text of an exception, fit to be sent, whatever its class does to make it."""
    try:
        text = error.message if isinstance(error, RpcError) else str(error)
        return str(text).encode(errors="replace").decode()
    except Exception:
        return f"(a {type(error).__name__} that has no text)"


def _timeout_of(method: Method, message: dict[str, Any]) -> float | None:
    """Seconds for this call: the method's, or the caller's if that is shorter."""
    asked = message.get("timeout")
    if asked is None:
        return method.timeout
    if not isinstance(asked, int | float) or isinstance(asked, bool) or asked < 0:
        raise InvalidRequest(data={"reason": "the member 'timeout' must be a number of seconds, not negative"})
    return asked if method.timeout is None else min(asked, method.timeout)
