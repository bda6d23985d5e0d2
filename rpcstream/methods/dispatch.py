"""One request in, one reply out, now or later.

Owns the way from a parsed message to the bytes of its reply: method, arguments, handler, result or error. Knows no
socket and no order of messages, and hands the session on unseen to those handlers that take part in the conversation;
what runs where is the invoker's, what a value looks like the codec's.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import traceback
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, NamedTuple

from ..codec import Codec
from ..errors import (
    CallCancelled,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    MethodNotFound,
    NotPermitted,
    RpcError,
    ServerBusy,
)
from ..limits import Limits
from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog
from ..peer.context import Context
from ..peer.deadline import inherit
from ..peer.interfaces import Later
from ..peer.slices import TimeSlices
from ..peer.state import ConversationState, Hold
from ..wire import envelope
from ..wire.buffers import Encoded
from ..wire.envelope import VERSION
from ..wire.framing import Oversize
from .after_reply import AfterReplyTasks
from .collected_items import HELD, CollectedItems, CollectionBudget, are_few, first_items
from .image_decoding import ArgumentsWithImages, HandlerRunner, ImageCallRunner, ImageMemory
from .invoke import Invoker
from .registry import Method, MethodRegistry
from .rpc_batch import RpcBatches, refused_batch
from .rpc_batch_state import RpcBatch
from .signature import Arguments, Tagged
from .stream_call import CallRunner

log = logging.getLogger("rpcstream.server")

Line = bytes | bytearray
_ABSENT: Any = object()

#: How often an image is in memory at the same time, by where its handler runs: for another process it is pickled, and
#: that is sent.
_COPIES: dict[str | None, int] = {"process": 3}

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
        #: For what peers can cause; each connection and each method has its share of it.
        self.log = LimitedLog(log)
        self._afterwards = AfterReplyTasks(self.log)
        self._slices = TimeSlices()
        self._budget = CollectionBudget(2 * limits.max_message_size, limits.max_collected)
        self._batches = RpcBatches(
            self.answer,
            error_reply=self._error,
            refuse=self.refuse,
            goes_on=self.goes_on,
            report_slow=self.report_slow,
            codec=codec,
            limits=limits,
            side=side,
            slices=self._slices,
            afterwards=self._afterwards,
        )
        #: The task that a call is made in, where it is not made as its message is read.
        self._task_now: asyncio.Task[Any] | None = None

    def too_many(self, members: list[Any], line: Line) -> Encoded | None:
        """The reply to a batch over `max_batch`, of which nothing is carried out."""
        return self._batches.too_many(members, line)

    def refuse(self, message: Any, error: RpcError) -> Encoded | None:
        """As `Dispatch.refuse`. Counts calls that are cancelled or turned away."""
        if isinstance(message, Oversize):
            call_id = envelope.id_in_head(message.head)
            if envelope.is_batch_head(message.head):
                return refused_batch(self._error, call_id, error)
            return self._error(call_id, error)
        if isinstance(error, ServerBusy):
            if type(message) is list and message:
                replies = [bytes(reply) for member in message if (reply := self.refuse(member, error)) is not None]
                return b"[" + b",".join(replies) + b"]" if replies else None
            self._counters.turned_away += 1
        elif isinstance(error, CallCancelled):
            self._counters.cancelled += 1
        return self._error_to(message, error)

    def _error_to(self, message: Any, error: RpcError) -> Encoded | None:
        """The error reply to a request (no batch); None to a notification."""
        is_readable = type(message) is dict and envelope.has_valid_id(message)
        return self._error(message.get("id", _ABSENT) if is_readable else None, error)

    def goes_on(self, message: Any) -> bool:
        """Is the method to be carried out although its caller is gone?

        A notification's handler goes on: nobody waits for it, so nothing was lost for it. A generator does not, since
        it may have no end.
        """
        method = self._methods.get(message.get("method"))
        if method is None:
            return "id" not in message
        return method.detached or ("id" not in message and method.items is None)

    def report_slow(self, message: Any, seconds: float) -> None:
        """Log that the method of this request kept the event loop for so long. Members of a batch are logged alone."""
        name = message.get("method") if type(message) is dict else None
        if type(name) is str and name in self._methods:
            advice = (
                "it must not block between its awaits"
                if self._methods[name].is_async
                else "register it with offload='thread' (or 'process', if it computes in Python)"
            )
            kind = "method %r kept the event loop for %.3f s; nobody else was served: %s"
            self.log.warning(name, kind, name, seconds, advice)

    # -- one request ------------------------------------------------------------------------------------------------

    def answer(
        self, message: Any, line: Line, session: ConversationState, tagged: Tagged = None
    ) -> Encoded | Later | None:
        """The reply to a request or a batch; None for notifications; a coroutine that gives it, if one must wait.

        From the request to the reply, without a detour for what nearly every message is: a well-formed call.

        Args:
            line: the message as it came; empty for a member of a batch, which has its integers exact already.
            session: the conversation, for handlers that take part in it.
            tagged: whether there may be tagged objects in it, where that is known; of a member of a batch also what
                the images of the batch have cost.
        """
        # That many brackets take twice as many bytes: a short message need not be looked at.
        if len(line) > self._shallow and envelope.is_deeper(line, self._max_depth):
            return self._too_deep(message)
        if type(message) is not dict:
            return self._batches.answer(message, line, session)
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
            return self._call_in_conversation(method, message, args, kwargs, timeout, session)
        except ArgumentsWithImages as found:
            return self._call_with_images(found, method, call_id, message, line, session, tagged)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._failed(method, call_id, error, session)

    def _unusual_request(
        self, message: dict[str, Any], line: Line, session: ConversationState
    ) -> tuple[Method | None, Any, Encoded | None]:
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
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,
        session: ConversationState,
    ) -> Encoded | Later | None:
        """A handler with a context, streams, items or a place in the order."""
        call_id = message.get("id", _ABSENT)
        credit: int | None = None
        streaming = method.stream
        if streaming is not None and call_id is not _ABSENT:
            if session.streams and message.get("stream", _ABSENT) is not None:
                method, credit = streaming, ENDLESS
            elif session.streams is None and "stream" in message:
                method, credit = streaming, credit_of(message)
        if streaming is not None and credit is None:
            return self._collect(method, message, args, kwargs, timeout, session)
        context = self._context(method, message, timeout, session)
        tokens: list[str] = []
        if method.extras is not None:
            (args, kwargs), tokens = method.extras.fill((args, kwargs), context, session, self._invoker.images)
        if not (method.is_async or method.offload or method.ordered or credit is not None):
            try:
                reply = self._reply(method, call_id, method.function(*args, **kwargs))
            finally:
                context.finish()
            if context.afterwards:
                self._afterwards.plan(context, self._task_now)
            return reply
        conduct = CallRunner(
            self._invoker, context, slices=self._slices, credit=credit, tokens=tokens, ordered=method.ordered
        )
        limit = None if timeout is None else _Limit(timeout, session.loop.time() + timeout)
        return self._call_later(conduct, method, call_id, args, kwargs, limit)

    def _call_with_images(
        self,
        found: ArgumentsWithImages,
        method: Method,
        call_id: Any,
        message: dict[str, Any],
        line: Line,
        session: ConversationState,
        tagged: Tagged,
    ) -> Encoded | Later | None:
        """A handler whose images are decoded in another thread, or take memory that is counted until it is done."""
        try:
            timeout = timeout_of(method.name, method.timeout, message, session.waited)
        except RpcError as error:
            return self._failed(method, call_id, error, session)
        limit = None if timeout is None else _Limit(timeout, session.loop.time() + timeout)
        is_plain = not method.inline and method.extras is None and method.stream is None and not method.ordered
        copies = _COPIES.get(method.offload, 1)
        images = self._invoker.images
        if is_plain and found.arguments is not None and (lease := images.keep(found.size * copies)) is not None:
            return self._call_later(ImageCallRunner(self._invoker, lease), method, call_id, *found.arguments, limit)
        # What has its place in the order, or is spoken about by words that come behind it, keeps it.
        hold = None if is_plain else Hold(session)
        decode = functools.partial(images.arguments, found, session, message.get("params"), line, tagged, copies)
        return self._decoded_later(decode, method, call_id, message, session, limit, hold, self._batches.current)

    async def _decoded_later(
        self,
        decode: Callable[[], Coroutine[Any, Any, tuple[Arguments, ImageMemory]]],
        method: Method,
        call_id: Any,
        message: dict[str, Any],
        session: ConversationState,
        limit: _Limit | None,
        hold: Hold | None,
        batch: RpcBatch | None,
    ) -> Encoded | None:
        """Decode the images, then go on as with any other call."""
        deadline: asyncio.Timeout | None = None
        lease: ImageMemory | None = None
        try:
            async with asyncio.timeout_at(None if limit is None else limit.ends) as deadline:
                (args, kwargs), lease = await decode()
            if method.inline:
                return self._reply(method, call_id, method.function(*args, **kwargs))
            later: Encoded | Later | None
            if hold is None:
                later = self._call_later(self._invoker, method, call_id, args, kwargs, limit)
            else:
                left = None if limit is None else limit.ends - session.loop.time()
                self._batches.current, self._task_now = batch, asyncio.current_task()
                try:
                    later = self._call_in_conversation(method, message, args, kwargs, left, session)
                finally:
                    self._batches.current = self._task_now = None
                hold.release()
            del args, kwargs
            return later if later is None or isinstance(later, Encoded) else await later  # type: ignore[misc]
        except KeyboardInterrupt:
            raise
        except asyncio.CancelledError:
            self._counters.cancelled += 1
            return self._error(call_id, CallCancelled())
        except BaseException as error:
            is_late = isinstance(error, TimeoutError) and lease is None and deadline is not None and deadline.expired()
            if is_late and limit is not None:
                return self._too_late(method, call_id, limit.seconds)
            return self._failed(method, call_id, error, session)
        finally:
            # Not left to the garbage collector: an exception may keep what is here.
            if lease is not None:
                lease.release()
            if hold is not None:
                hold.release()

    def _context(
        self, method: Method, message: dict[str, Any], timeout: float | None, session: ConversationState
    ) -> Context:
        return Context(session, message, timeout=timeout, is_async=method.is_async, batch=self._batches.current)

    def _collect(
        self,
        method: Method,
        message: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,
        session: ConversationState,
    ) -> Encoded | Later | None:
        """A generator whose caller wants no stream. One in the event loop begins at once, and most are over then."""
        call_id = message.get("id", _ABSENT)
        limit = None if timeout is None else _Limit(timeout, session.loop.time() + timeout)
        context: Context | None = None
        tokens: list[str] = []
        if method.extras is not None:
            context = self._context(method, message, timeout, session)
            (args, kwargs), tokens = method.extras.fill((args, kwargs), context, session, self._invoker.images)
        collection = begun = hold = None
        if not (method.is_async or method.offload or method.ordered):
            begun = method.function(*args, **kwargs)
            collection, reply = self._collect_now(method, call_id, begun, session, context)
            if collection is None:
                if context is not None and context.afterwards:
                    self._afterwards.plan(context, self._task_now)
                return reply
            hold = Hold(session)
        conduct = CallRunner(
            self._invoker,
            context or self._context(method, message, timeout, session),
            slices=self._slices,
            credit=None,
            tokens=tokens,
            ordered=method.ordered,
            collection=collection or self._collection(method, session, call_id is not _ABSENT, []),
            begun=begun,
            hold=hold,
        )
        return self._call_later(conduct, method, call_id, args, kwargs, limit)

    def _collect_now(
        self, method: Method, call_id: Any, generator: Any, session: ConversationState, context: Context | None
    ) -> tuple[CollectedItems | None, Encoded | None]:
        """The first slices of a generator: what has its items so far; nothing but the reply if these were all."""
        keeps = call_id is not _ABSENT
        collection = None
        is_over = True
        try:
            items, is_over = first_items(generator)
            if is_over and (not keeps or are_few(items)):
                return None, self._reply(method, call_id, items) if keeps else None
            is_full = len(items) >= HELD
            collection = self._collection(method, session, keeps, items)
            is_over = is_over or (is_full and collection.take(generator))
            is_over = is_over and collection.finish()
            if is_over:
                return None, collection.reply(call_id) if keeps else None
            return collection, None
        except BaseException:
            is_over = True
            generator.close()
            raise
        finally:
            if is_over:
                if collection is not None:
                    collection.release()
                if context is not None:
                    context.finish()

    def _collection(self, method: Method, session: ConversationState, keeps: bool, held: list[Any]) -> CollectedItems:
        return CollectedItems(
            self._codec,
            method.check_result,
            self._max_size,
            side=self._side,
            keeps=keeps,
            budget=self._budget,
            owner=session,
            held=held if keeps else [],
        )

    async def _call_later(
        self,
        starter: HandlerRunner,
        method: Method,
        call_id: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        limit: _Limit | None,
    ) -> Encoded | None:
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
            if type(result) is CollectedItems:
                reply = result.reply(call_id) if result.keeps else None
            else:
                reply = self._reply(method, call_id, result)
            if type(starter) is CallRunner and starter.context.afterwards:
                self._afterwards.plan(starter.context, asyncio.current_task())
            return reply
        except KeyboardInterrupt:
            raise
        except TimeoutError as error:
            if limit is not None and _has_passed(deadline):
                return self._too_late(method, call_id, limit.seconds)
            return self._failed(method, call_id, error, getattr(starter, "session", None))
        except asyncio.CancelledError:
            # Whoever cancelled it: a caller that is still there is told. The task ends here all the same.
            self._counters.cancelled += 1
            return self._error(call_id, CallCancelled())
        except BaseException as error:
            return self._failed(method, call_id, error, getattr(starter, "session", None))

    def _reply(self, method: Method, call_id: Any, result: Any) -> Encoded | None:
        if type(result) is not method.returns and method.check_result is not None:
            result = method.check_result(result)
        if call_id is _ABSENT:
            return None
        reply = self._serialize({"jsonrpc": VERSION, "id": call_id, "result": result})  # section 5
        if len(reply) > self._max_size:
            raise envelope.oversize(len(reply), self._max_size, side=self._side)
        return reply

    # -- errors -----------------------------------------------------------------------------------------------------

    def _too_deep(self, message: Any) -> Encoded | None:
        reason = f"more than {self._max_depth} arrays and objects inside each other (the {self._side}'s max_depth)"
        error = InvalidRequest(data={"reason": reason, "limit": self._max_depth})
        if type(message) is list and (of_first := envelope.id_of_batch(message, b"")) is not None:
            return refused_batch(self._error, of_first, error)
        call_id = message.get("id") if type(message) is dict and envelope.has_valid_id(message) else None
        if type(call_id) is float:  # not exact, and reading so deep a message again is not worth it
            call_id = None
        return self._error(call_id, error)

    def _too_late(self, method: Method, call_id: Any, seconds: float) -> Encoded | None:
        return self._error(call_id, DeadlineExceeded(data={"method": method.name, "timeout": seconds}))

    def _failed(
        self, method: Method, call_id: Any, error: BaseException, session: ConversationState | None
    ) -> Encoded | None:
        """The error reply for what was raised while answering; nothing internal goes out unless debugging."""
        # An RpcError that came from somewhere else, through a client, is not this handler's answer.
        if isinstance(error, RpcError) and getattr(error, "address", None) is None:
            if call_id is _ABSENT:
                self.log.warning(_address_of(session), "notification of %r failed: %s", method.name, error)
            return self._error(call_id, error)
        self._counters.handler_failures += 1
        self.log.error(method.name, "method %r failed", method.name, error=error)
        data = None
        if self._debug:
            text = "".join(traceback.format_exception(error))
            data = {"type": type(error).__name__, "message": _text_of(error), "traceback": text}
        return self._error(call_id, InternalError(data=data))

    def _error(self, call_id: Any, error: RpcError) -> Encoded | None:
        """The reply for an error; never fails, whatever a handler put into the error."""
        if call_id is _ABSENT:
            return None
        self._counters.errors += 1
        code = getattr(error, "code", None)
        if type(code) is not int or abs(code) >= 2**53:
            self.log.error(None, "an error has the code %s, which must be an integer", repr(code))
            code, error = InternalError.CODE, InternalError()
        try:
            reply = self._serialize(envelope.error_reply(call_id, error))
            if len(reply) <= self._max_size:
                return reply
            self.log.error(None, "the data of an error is too large to be sent: %d bytes", len(reply))
        except Exception as unfit:
            self.log.error(None, "an error cannot be sent as it is", error=unfit)
        return self._serialize(envelope.error_reply(call_id, RpcError(code, _text_of(error)[:1000])))


def _address_of(session: ConversationState | None) -> str | None:
    channel = None if session is None else session.channel
    return None if channel is None else channel.address


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
