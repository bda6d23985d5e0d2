"""The dispatcher: one request in, one reply out, now or later.

Owns the way from a parsed message to its reply: the method is found, arguments are bound, the handler is called, the
result is written. Knows neither sockets nor the order of messages. How a handler is run is up to `invoke` and
`stream_call`, how a reply is written up to `replies`, how values look on the wire up to the codec.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import CoroutineType
from typing import Any

from ..codec import Codec
from ..codec.rich_hint import shortened
from ..errors import (
    CallCancelled,
    DeadlineExceeded,
    InvalidRequest,
    MethodNotFound,
    NotPermitted,
    RpcError,
    ServerBusy,
)
from ..limits import Limits
from ..nearest import MAX_LENGTH, did_you_mean, nearest_for_peer
from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog
from ..peer.context import CallContext
from ..peer.deadline import TimeLimit, inherit, timeout_of
from ..peer.flow_control import credit_of
from ..peer.interfaces import Later
from ..peer.slices import TimeSlices
from ..peer.state import ConversationState, Hold
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded
from ..wire.envelope import VERSION
from ..wire.messages import Oversize
from .arguments import Arguments, ArgumentsWithImages, Tagged
from .collected_items import HELD, CollectedItems, CollectionBudget, are_few, first_items
from .dependency_call import CleanUps, DependencyRunner
from .image_decoding import HandlerRunner, ImageCallRunner, ImageMemory
from .invoke import Invoker
from .registry import Method, MethodRegistry
from .replies import NO_ID, AfterReplyCalls, ReplyWriter
from .rpc_batch import RpcBatch, RpcBatches
from .stream_call import CallRunner

log = logging.getLogger("rpcstream.server")

Line = bytes | bytearray

#: How many copies of an image are in memory at a time, by where the handler runs: for another process the image is
#: pickled, and the pickle is sent.
_COPIES: dict[str | None, int] = {"process": 3}

#: Credit that is never used up.
ENDLESS = 2**62


class Dispatcher:
    """Answers requests with the methods of a registry. The `Dispatch` of a session (`peer.interfaces`).

    Args:
        methods: may be changed while the dispatcher is used.
        invoker: runs async and offloaded handlers.
        debug: show exceptions of handlers to the caller, with their traceback.
        side: whose limits these are, for errors: "server" or "client".

    Attributes:
        log: for messages that peers can cause; each connection and each method may fill its share of it.
        replies: writes the replies.
    """

    #: The class that writes the replies.
    WRITER: type[ReplyWriter] = ReplyWriter

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
        self._registry = methods
        self._methods: Mapping[str, Method] = methods.by_name
        self._for_all: Mapping[str, Method] = methods.for_all
        self._codec = codec
        self._serialize = codec.serialize
        self._invoker = invoker
        self._limits = limits
        self._counters = counters
        self._max_depth = limits.max_depth
        #: Bytes; a message of so many or fewer cannot be nested too deep.
        self._shallow = 2 * limits.max_depth
        self._max_size = limits.max_message_size
        self.log = LimitedLog(log)
        self.replies = self.WRITER(codec, limits, counters, debug=debug, side=side, log=self.log)
        # Found here, not through the writer, on the path of a call.
        self._write_result = self.replies.result
        self._write_failure = self.replies.failure
        #: The clean-up of dependencies, after replies.
        self.clean_ups = CleanUps(self.log, limits.max_calls)
        self._after_reply = AfterReplyCalls(self.log)
        self._slices = TimeSlices()
        self._budget = CollectionBudget(2 * limits.max_message_size, limits.max_collected)
        self._batches = RpcBatches(
            self,
            replies=self.replies,
            codec=codec,
            limits=limits,
            side=side,
            slices=self._slices,
            after_reply=self._after_reply,
        )
        #: The task that gives the reply of the call that is made now; None if it is made while its message is read.
        self._task_now: asyncio.Task[Any] | None = None

    def refuse(self, message: Any, error: RpcError) -> Encoded | None:
        """As `Dispatch.refuse`. Counts calls that are cancelled or turned away."""
        if isinstance(message, Oversize):
            call_id = envelope.id_in_head(message.head)
            if envelope.is_batch_head(message.head):
                return self.replies.error_to_batch(call_id, error)
            return self.replies.error(call_id, error)
        if type(message) is list and len(message) > self._limits.max_batch:
            return self.replies.error_to_batch(envelope.id_of_batch(message, b""), error)
        if type(message) is list and message and (isinstance(error, ServerBusy) or error.executed is False):
            replies = [bytes(reply) for member in message if (reply := self.refuse(member, error)) is not None]
            return b"[" + b",".join(replies) + b"]" if replies else None
        if isinstance(error, ServerBusy):
            self._counters.turned_away += 1
        elif isinstance(error, CallCancelled):
            self._counters.cancelled += 1
        return self.replies.error_to(message, error)

    def refusal_of(self, message: dict[str, Any], session: ConversationState) -> RpcError | None:
        """As `Dispatch.refusal_of`: checks the method, its rule, the names of parameters, and announced arrays."""
        try:
            method = self._method_for(message, session)
            method.signature.check_announced(message.get("params"))
        except RpcError as error:
            return error
        return None

    def goes_on(self, message: Any) -> bool:
        """As `Dispatch.goes_on`: true for detached methods and for notifications, whose callers do not wait anyway.

        A generator called by a notification does not go on, since it may have no end.
        """
        method = self._methods.get(message.get("method"))
        if method is None:
            return "id" not in message
        return method.detached or ("id" not in message and method.generator is None)

    def report_slow(self, message: Any, seconds: float) -> None:
        """Log that the method of this request kept the event loop for so long. Members of a batch are logged alone."""
        name = message.get("method") if type(message) is dict else None
        if type(name) is str and name in self._methods:
            advice = (
                "it must not block between its awaits"
                if self._methods[name].is_async
                else "register it with offload='thread' (or 'process', if it computes in Python)"
            )
            kind = "method %r kept the event loop for %.3f s, in which no other call was served: %s"
            self.log.warning(name, kind, name, seconds, advice)

    # -- one request ------------------------------------------------------------------------------------------------

    def answer(
        self, message: Any, line: Line, session: ConversationState, tagged: Tagged = None
    ) -> Encoded | Later | None:
        """As `Dispatch.answer`: carry out a request or a batch.

        All of it in one function for what nearly every message is: a well-formed call of a sync function.

        Args:
            message: as parsed.
            line: as it came; empty for a member of a batch, whose integers are exact already.
            session: the conversation that it came on.
            tagged: whether there may be tagged objects in it; None: unknown. Of a member of a batch also what the
                images of the batch have cost so far.

        Returns:
            The reply; a coroutine that gives it, if the handler must be awaited; None for a notification.
        """
        # So many brackets take twice as many bytes, so a short message need not be searched for them.
        if len(line) > self._shallow and envelope.is_deeper(line, self._max_depth):
            return self._too_deep(message)
        if type(message) is not dict:
            return self._batches.answer(message, line, session)
        call_id = message.get("id", NO_ID)
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
                return self._write_result(method, call_id, result, session.sends_binary)
            timeout = (
                timeout_of(method.name, method.timeout, message, session.waited)
                if "timeout" in message
                else method.timeout
            )
            if method.injection is None and method.stream is None and not method.ordered:
                limit = None if timeout is None else TimeLimit(timeout, session.loop.time() + timeout)
                return self._call_later(self._invoker, method, call_id, args, kwargs, limit, session)
            return self._call_in_conversation(method, message, args, kwargs, timeout, session)
        except ArgumentsWithImages as found:
            return self._call_with_images(found, method, call_id, message, line, session, tagged)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._write_failure(method, call_id, error, session)

    def _unusual_request(
        self, message: dict[str, Any], line: Line, session: ConversationState
    ) -> tuple[Method | None, Any, Encoded | None]:
        """Check a request that is not a plain call.

        It is a notification, has an id that is null or a float, is for a method with a rule, or has an error.

        Returns:
            The method to be called, the id, and None; or no method, the id, and the error reply.
        """
        if line and type(message.get("id")) is float:
            envelope.with_exact_ids(message, line)
        call_id = message.get("id", NO_ID)
        try:
            method = self._method_for(message, session)
        except InvalidRequest as error:
            # An invalid request is answered even without an id, since it may not have been a notification (section 5).
            readable = call_id is not NO_ID and envelope.has_valid_id(message)
            return None, call_id, self.replies.error(call_id if readable else None, error)
        except RpcError as error:
            if call_id is NO_ID:
                self.replies.log_notification(message["method"], error, session)
            return None, call_id, self.replies.error(call_id, error)
        return method, call_id, None

    def _method_for(self, message: dict[str, Any], session: ConversationState) -> Method:
        """The method that a request is for.

        Raises:
            InvalidRequest, MethodNotFound, NotPermitted: there is none that the peer may call.
        """
        envelope.check_request(message)
        method = self._methods.get(message["method"])
        if method is None:
            raise self._unknown(message["method"], session)
        if method.allow is not None and not method.allow.permits(session.identity):
            raise NotPermitted(data={"method": method.name})
        return method

    def _call_in_conversation(
        self,
        method: Method,
        message: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,
        session: ConversationState,
    ) -> Encoded | Later | None:
        """Call a handler that has a context or streams, is a generator, or keeps its place in the order of calls."""
        call_id = message.get("id", NO_ID)
        credit = wanted_credit(method, message, session)
        collects = method.stream is not None and credit is None
        if credit is not None:
            assert method.stream is not None
            method = method.stream
        context: CallContext | None = None
        if not collects or method.injection is not None:
            context = self._context(method, message, timeout, session)
        tokens: list[str] = []
        if method.injection is not None:
            assert context is not None
            (args, kwargs), tokens = method.injection.fill((args, kwargs), context, session, self._invoker.images)
        collected = generator = hold = None
        if method.begins_now and credit is None:
            # In the event loop: it begins at once, and most are done at once.
            if collects:
                generator = method.function(*args, **kwargs)
                collected, reply = self._collect_now(method, call_id, generator, session, context)
            else:
                reply = self._call_now(method, call_id, args, kwargs, context, session)
            if collected is None:
                if context is not None and context.afterwards:
                    self._after_reply.plan(context, self._task_now)
                return reply
            hold = Hold(session)
        elif collects:
            collected = self._new_collection(method, session, call_id is not NO_ID, [])
        runner = self._runner_of(method)(
            self._invoker,
            context or self._context(method, message, timeout, session),
            slices=self._slices,
            credit=credit,
            tokens=tokens,
            ordered=method.ordered,
            collected=collected,
            generator=generator,
            hold=hold,
        )
        return self._call_later(runner, method, call_id, args, kwargs, TimeLimit.of(timeout, session.loop), session)

    def _runner_of(self, method: Method) -> Callable[..., CallRunner]:
        """What makes the runner of a call that does not begin at once."""
        if method.dependencies is None:
            return CallRunner
        return functools.partial(DependencyRunner, method.dependencies, self.clean_ups)

    def _context(
        self, method: Method, message: dict[str, Any], timeout: float | None, session: ConversationState
    ) -> CallContext:
        return CallContext(session, message, timeout=timeout, is_async=method.is_async, batch=self._batches.current)

    def _call_now(
        self,
        method: Method,
        call_id: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: CallContext | None,
        session: ConversationState,
    ) -> Encoded | None:
        """Call a sync handler that has a context, in the event loop."""
        try:
            return self._write_result(method, call_id, method.function(*args, **kwargs), session.sends_binary)
        finally:
            if context is not None:
                context.finish()

    def _collect_now(
        self, method: Method, call_id: Any, generator: Any, session: ConversationState, context: CallContext | None
    ) -> tuple[CollectedItems | None, Encoded | None]:
        """Take the first items of a sync generator, for a slice of time.

        Returns:
            If there are more, the items so far and no reply; else None, and the reply with all items.
        """
        keeps = call_id is not NO_ID
        collected = None
        is_over = True
        try:
            items, is_over = first_items(generator)
            if is_over and (not keeps or are_few(items)):
                return None, self._write_result(method, call_id, items, session.sends_binary) if keeps else None
            is_full = len(items) >= HELD
            collected = self._new_collection(method, session, keeps, items)
            is_over = is_over or (is_full and collected.take(generator))
            is_over = is_over and collected.finish()
            if is_over:
                return None, collected.reply(call_id) if keeps else None
            return collected, None
        except BaseException:
            is_over = True
            generator.close()
            raise
        finally:
            if is_over:
                if collected is not None:
                    collected.release()
                if context is not None:
                    context.finish()

    def _new_collection(
        self, method: Method, session: ConversationState, keeps: bool, held: list[Any]
    ) -> CollectedItems:
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
        """Call a handler whose images must be decoded in another thread, or whose images' memory must be counted."""
        try:
            timeout = timeout_of(method.name, method.timeout, message, session.waited)
        except RpcError as error:
            return self._write_failure(method, call_id, error, session)
        limit = TimeLimit.of(timeout, session.loop)
        is_plain = not method.inline and method.injection is None and method.stream is None and not method.ordered
        copies = _COPIES.get(method.offload, 1)
        images = self._invoker.images
        if is_plain and found.arguments is not None and (memory := images.keep(found.size * copies)) is not None:
            runner = ImageCallRunner(self._invoker, memory)
            return self._call_later(runner, method, call_id, *found.arguments, limit, session)
        # A call that keeps its place in the order, or that control messages may refer to, is not overtaken meanwhile.
        hold = None if is_plain else Hold(session)
        decode = functools.partial(images.arguments, found, session, message.get("params"), line, tagged, copies)
        return self._decode_and_call(decode, method, call_id, message, session, limit, hold, self._batches.current)

    async def _decode_and_call(
        self,
        decode: Callable[[], Coroutine[Any, Any, tuple[Arguments, ImageMemory]]],
        method: Method,
        call_id: Any,
        message: dict[str, Any],
        session: ConversationState,
        limit: TimeLimit | None,
        hold: Hold | None,
        batch: RpcBatch | None,
    ) -> Encoded | None:
        """Decode the images, then go on as with any other call.

        Args:
            hold: keeps the requests behind this one from being taken up until its handler has begun.
            batch: the batch that the call is a member of.
        """
        deadline: asyncio.Timeout | None = None
        memory: ImageMemory | None = None
        try:
            async with asyncio.timeout_at(None if limit is None else limit.ends) as deadline:
                (args, kwargs), memory = await decode()
            if method.inline:
                return self._write_result(method, call_id, method.function(*args, **kwargs), session.sends_binary)
            later: Encoded | Later | None
            if hold is None:
                later = self._call_later(self._invoker, method, call_id, args, kwargs, limit, session)
            else:
                later = self._call_held(method, message, args, kwargs, limit, session, batch)
                hold.release()
            del args, kwargs
            return later if later is None or isinstance(later, Encoded) else await later  # type: ignore[misc]
        except KeyboardInterrupt:
            raise
        except asyncio.CancelledError:
            self._counters.cancelled += 1
            return self.replies.error(call_id, CallCancelled())
        except BaseException as error:
            is_late = isinstance(error, TimeoutError) and memory is None and deadline is not None and deadline.expired()
            if is_late and limit is not None:
                return self._too_late(method, call_id, limit.seconds)
            return self._write_failure(method, call_id, error, session)
        finally:
            # Not left to the garbage collector: an exception may keep this frame alive.
            if memory is not None:
                memory.release()
            if hold is not None:
                hold.release()

    def _call_held(
        self,
        method: Method,
        message: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        limit: TimeLimit | None,
        session: ConversationState,
        batch: RpcBatch | None,
    ) -> Encoded | Later | None:
        """`_call_in_conversation` from the task of a call whose images were decoded, not while its message is read."""
        left = None if limit is None else limit.ends - session.loop.time()
        self._batches.current, self._task_now = batch, asyncio.current_task()
        try:
            return self._call_in_conversation(method, message, args, kwargs, left, session)
        finally:
            self._batches.current = self._task_now = None

    async def _call_later(  # noqa: C901, PLR0912 (one path with its ends)
        self,
        runner: HandlerRunner,
        method: Method,
        call_id: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        limit: TimeLimit | None,
        session: ConversationState,
    ) -> Encoded | None:
        """Run a handler that must be awaited, and write the reply."""
        try:
            if limit is not None:
                left = limit.ends - asyncio.get_running_loop().time()
                if left <= 0:  # a member of a batch that waited for others
                    return self._too_late(method, call_id, limit.seconds)
                inherit(left)
            result = runner.start(method, args, kwargs)
            if type(result) is CoroutineType or inspect.isawaitable(result):
                if limit is None:
                    result = await result
                else:
                    async with asyncio.timeout_at(limit.ends) as deadline:
                        result = await result
            if type(result) is CollectedItems:
                reply = result.reply(call_id) if result.keeps else None
            else:
                reply = self._write_result(method, call_id, result, session.sends_binary)
                if type(reply) is AttachedMessage:
                    # Other tasks run before the reply is written, and may change what this handler has returned.
                    del result, args, kwargs
                    reply.secure()
            if isinstance(runner, CallRunner) and runner.context.afterwards:
                self._after_reply.plan(runner.context, asyncio.current_task())
            return reply
        except KeyboardInterrupt:
            raise
        except TimeoutError as error:
            if limit is not None and _has_passed(deadline):
                return self._too_late(method, call_id, limit.seconds)
            return self._write_failure(method, call_id, error, getattr(runner, "session", None))
        except asyncio.CancelledError:
            # The task ends here whether or not the caller is still there to read the error.
            self._counters.cancelled += 1
            return self.replies.error(call_id, CallCancelled())
        except BaseException as error:
            return self._write_failure(method, call_id, error, getattr(runner, "session", None))

    # -- errors -----------------------------------------------------------------------------------------------------

    def _unknown(self, name: str, session: ConversationState) -> MethodNotFound:
        """The error for a method that does not exist, with the names that may be meant."""
        near = nearest_for_peer(name, self._known_names(), lambda known: self._is_visible(known, session))
        if near:
            text = f"Method not found: {shortened(name, MAX_LENGTH)!r}{did_you_mean(near)}"
            return MethodNotFound(text, {"method": name, "nearest": near})
        return MethodNotFound(data={"method": name, "reason": "rpc.discover lists the methods that there are"})

    def _known_names(self) -> Iterable[str]:
        """The names that an unknown one is compared with."""
        return self._registry

    def _is_visible(self, name: str, session: ConversationState) -> bool:
        """Whether the peer may call a method, so that an error may name it."""
        method = self._methods.get(name)
        return method is not None and (method.allow is None or method.allow.permits(session.identity))

    def _too_deep(self, message: Any) -> Encoded | None:
        reason = f"more than {self._max_depth} arrays and objects inside each other (the {self._side}'s max_depth)"
        error = InvalidRequest(data={"reason": reason, "limit": self._max_depth})
        if type(message) is list and (of_first := envelope.id_of_batch(message, b"")) is not None:
            return self.replies.error_to_batch(of_first, error)
        call_id = message.get("id") if type(message) is dict and envelope.has_valid_id(message) else None
        if type(call_id) is float:  # not exact, and reading so deep a message again is not worth it
            call_id = None
        return self.replies.error(call_id, error)

    def _too_late(self, method: Method, call_id: Any, seconds: float) -> Encoded | None:
        return self.replies.error(call_id, DeadlineExceeded(data={"method": method.name, "timeout": seconds}))


def wanted_credit(method: Method, message: dict[str, Any], session: ConversationState) -> int | None:
    """The items that the caller of a generator permits at first; None if the call is not to stream.

    Raises:
        InvalidRequest: the member `stream` is no number of items.
    """
    if method.stream is None or "id" not in message:
        return None
    if session.streaming:
        return ENDLESS if message.get("stream", NO_ID) is not None else None
    return credit_of(message) if session.streaming is None and "stream" in message else None


def _has_passed(deadline: asyncio.Timeout) -> bool:
    """True if the deadline is over, also if a call of the handler that inherited it timed out first."""
    when = deadline.when()
    return deadline.expired() or (when is not None and asyncio.get_running_loop().time() >= when)
