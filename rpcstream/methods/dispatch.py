"""The dispatcher: one request in, one reply out, now or later.

It finds the method, binds the arguments, calls the handler and writes the result. A call that is more than a plain
function becomes a `call.Call`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import CoroutineType
from typing import Any

from ..codec.rich_hint import shortened
from ..errors import CallCancelled, InvalidRequest, MethodNotFound, NotPermitted, RpcError, ServerBusy
from ..nearest import MAX_LENGTH, did_you_mean, nearest_for_peer
from ..peer.context import CallContext
from ..peer.deadline import TimeLimit, timeout_of
from ..peer.flow_control import credit_of
from ..peer.inflight import Later
from ..peer.ledger import Account
from ..peer.session import Session
from ..peer.slices import TimeSlices
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded
from ..wire.envelope import VERSION, Oversize
from ..wire.json_scan import is_deeper
from .arguments import Arguments, ArgumentsWithImages, Line
from .call import Call, CollectedItems, Invoker
from .method import Method
from .registry import MethodRegistry
from .replies import NO_ID, ReplyWriter, call_after_reply
from .rpc_batch import RpcBatch, answer_batch


class Dispatcher:
    """Answers requests with the methods of a registry. The `Dispatch` of a session (`peer.inflight`).

    Args:
        methods: may be changed while the dispatcher is used.
        invoker: runs async and offloaded handlers.
        replies: writes the replies.

    Attributes:
        answer, refuse: as in `Dispatch`. Those who forward or observe calls put a function around them.
        not_found: makes the error for a method that does not exist.
        observed: observes the call that is answered at the moment (`observed.ObservedCall`); None if nothing does.
        slices: share the event loop out among generators and batches that run for long.
        collected: counts what is collected from generators.
        batch: the batch whose member is answered at the moment.
    """

    def __init__(self, methods: MethodRegistry, invoker: Invoker, replies: ReplyWriter) -> None:
        self.answer: Callable[..., Encoded | Later | None] = self._answer
        self.refuse: Callable[[Any, RpcError], Encoded | None] = self._refuse
        self.not_found: Callable[[str, Session], MethodNotFound] = self._not_found
        self.observed: Any = None
        self.invoker = invoker
        self.replies = replies
        self.slices = TimeSlices()
        self.batch: RpcBatch | None = None
        self.collected = Account(replies.limits.max_waiting)
        self._methods = methods
        self._limits = limits = replies.limits
        #: Bytes; a message of so many or fewer cannot be nested too deep.
        self._shallow = 2 * limits.max_depth
        # Kept here for the path of each call.
        self._for_all: Mapping[str, Method] = methods.for_all
        self._counters = replies.counters

    def _refuse(self, message: Any, error: RpcError) -> Encoded | None:
        """As `Dispatch.refuse`. Counts calls that are cancelled or turned away."""
        replies = self.replies
        if isinstance(message, Oversize):
            return replies.error(
                envelope.id_in_head(message.head), error, in_array=envelope.is_batch_head(message.head)
            )
        if type(message) is list and 0 < len(message) <= self._limits.max_batch:
            members = [member if type(member) is dict else None for member in message]  # not an array in this array
            refusals = [bytes(reply) for member in members if (reply := self.refuse(member, error)) is not None]
            return b"[" + b",".join(refusals) + b"]" if refusals else None
        if type(message) is list and (call_id := envelope.id_of_batch(message)) is not None:
            return replies.error(call_id, error, in_array=True)
        if isinstance(error, ServerBusy):
            self._counters.turned_away += 1
        elif isinstance(error, CallCancelled):
            self._counters.cancelled += 1
        return replies.error_to(message, error)

    def refusal_of(self, message: dict[str, Any], session: Session) -> RpcError | None:
        """The error for a request that may not be made, whatever its params are."""
        try:
            self._method_for(message, session)
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
        return method.detached or ("id" not in message and not method.is_generator)

    def report_slow(self, message: Any, seconds: float) -> None:
        """Log that the method of this request kept the event loop for so long. Members of a batch are logged alone."""
        name = message.get("method") if type(message) is dict else None
        if type(name) is str and name in self._methods:
            advice = "it must not block: register it with offload='thread' (or 'process', if it computes in Python)"
            kind = f"method %r blocked the event loop for %.3f s, in which no other call was served: {advice}"
            self.replies.log.warning(name, kind, name, seconds)

    # -- one request ------------------------------------------------------------------------------------------------

    def _answer(  # noqa: C901 (the path of each call)
        self, message: Any, line: Line, session: Session
    ) -> Encoded | Later | None:
        """As `Dispatch.answer`: carry out a request or a batch.

        All of it in one function for what nearly every message is: a well-formed call of a sync function.

        Args:
            message: as parsed.
            line: as it came; empty for a member of a batch, whose integers are exact already.
            session: the conversation that it came on.

        Returns:
            The reply; a coroutine that gives it, if the handler must be awaited; None for a notification.
        """
        # So many brackets take twice as many bytes, so a short message need not be searched for them.
        if len(line) > self._shallow and is_deeper(line, self._limits.max_depth):
            return self._refuse(message, too_deep(self._limits.max_depth, self.replies.side))
        if type(message) is not dict:
            return answer_batch(self, message, line, session)
        call_id = message.get("id", NO_ID)
        kind = type(call_id)
        try:
            method = self._for_all.get(message["method"])
        except (KeyError, TypeError):  # no name, or an array or object for it
            method = None
        self._counters.requests += 1
        if method is None or (kind is not int and kind is not str) or message.get("jsonrpc") != VERSION:
            try:
                method, call_id = self._method_for(message, session), message.get("id", NO_ID)
            except RpcError as error:
                return self.replies.error_to(message, error, session)
        try:
            try:
                bind, batch = method.bind, self.batch
                args, kwargs = bind(message.get("params"), line, None if batch is None else batch.reading)
            except ArgumentsWithImages as found:
                return self._start(method, message, session, found)
            if method.inline:
                if "timeout" in message:
                    timeout_of(method.name, method.timeout, message, session.waited)
                result = method.function(*args, **kwargs) if kwargs else method.function(*args)
                return self.replies.result(method, call_id, result, session.sends_binary)
            if method.is_plain:
                limit = None
                if method.timeout is not None or "timeout" in message:
                    limit = TimeLimit.of(timeout_of(method.name, method.timeout, message, session.waited), session.loop)
                return self._run(method, call_id, session, limit, self.observed, args, kwargs)
            return self._start(method, message, session, (args, kwargs))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self.replies.failure(method, call_id, error, session)

    def _method_for(self, message: dict[str, Any], session: Session) -> Method:
        """The method that a request is for.

        Raises:
            InvalidRequest, MethodNotFound, NotPermitted: there is none that the peer may call.
        """
        envelope.check_request(message)
        method = self._methods.get(message["method"])
        if method is None:
            raise self.not_found(message["method"], session)
        if not self.permits(method.name, session):
            raise NotPermitted(data={"method": method.name})
        return method

    def permits(self, name: str, session: Session) -> bool:
        """Whether the peer may call the method of this name, which there is."""
        allow = self._methods[name].allow
        return allow is None or allow.permits(session.identity)

    def _not_found(self, name: str, session: Session) -> MethodNotFound:
        return method_not_found(name, self._methods, lambda known: self.permits(known, session))

    # -- calls that are awaited -------------------------------------------------------------------------------------

    def _start(
        self, method: Method, message: dict[str, Any], session: Session, arguments: Arguments | ArgumentsWithImages
    ) -> Encoded | Later | None:
        """Start a call that is more than a plain function."""
        timeout, call_id = timeout_of(method.name, method.timeout, message, session.waited), message.get("id", NO_ID)
        context = CallContext(session, message, timeout=timeout, is_async=method.is_async, batch=self.batch)
        if method.begins_now and method.stream is None and type(arguments) is tuple:
            return self._call_now(method, call_id, arguments, context)
        credit = None if method.stream is None else credit_of(message, session.streaming)
        call = Call(self, method, context, arguments, credit)
        limit = TimeLimit.of(timeout, session.loop)
        return self._run(call.method, call_id, session, limit, self.observed, (), {}, call)

    def _call_now(self, method: Method, call_id: Any, arguments: Arguments, context: CallContext) -> Encoded | None:
        """Call a sync handler that has a Context, in the event loop, while its message is read."""
        assert method.injection is not None
        try:
            args, kwargs = method.injection.insert(*arguments, (context,))
            result = method.function(*args, **kwargs)
            reply = self.replies.result(method, call_id, result, context.session.sends_binary)
        finally:
            context.finish()
        call_after_reply(context, self.replies.log)
        return reply

    async def _run(  # noqa: PLR0912 (the path of each call that is awaited)
        self,
        method: Method,
        call_id: Any,
        session: Session,
        limit: TimeLimit | None,
        observed: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Call | None = None,
    ) -> Encoded | None:
        """Run a handler that must be awaited, and write the reply. `call` is None for a plain function."""
        reply: Encoded | None
        try:
            if observed is not None:
                observed.begin()
            if limit is not None:
                limit.begin(method.name, session.loop.time())
            if call is not None:
                result = call.run()
            elif method.offload is None:
                result = method.function(*args, **kwargs)
            else:
                result = self.invoker.run(method, args, kwargs)
            if type(result) is CoroutineType or inspect.isawaitable(result):
                result = await (result if limit is None else _in_time(result, limit, method, call))
            if type(result) is CollectedItems:
                reply = result.reply(call_id)
            else:
                reply = self.replies.result(method, call_id, result, session.sends_binary)
            if call is not None:
                call_after_reply(call.context, self.replies.log)
            if type(reply) is AttachedMessage:
                # Other tasks run before the reply is written, and may change what this handler has returned.
                del result, args, kwargs
                reply.secure()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            reply = self.replies.failure(method, call_id, error, session)
        if observed is not None:
            observed.end(reply)
        return reply


async def _in_time(result: Awaitable[Any], limit: TimeLimit, method: Method, call: Call | None) -> Any:
    """Await a handler; raises DeadlineExceeded when its time is over."""
    try:
        async with asyncio.timeout_at(limit.ends) as deadline:
            if call is not None:
                call.deadline = deadline
            return await result
    except TimeoutError as error:
        # Also if a call of the handler, which has inherited the deadline, was over first.
        if deadline.expired() or asyncio.get_running_loop().time() >= limit.ends:
            raise limit.error(method.name) from error
        raise


def method_not_found(name: str, names: Iterable[str], is_visible: Callable[[str], bool]) -> MethodNotFound:
    """The error for an unknown method. It suggests similar names that the peer may see."""
    near = nearest_for_peer(name, names, is_visible)
    if near:
        text = f"Method not found: {shortened(name, MAX_LENGTH)!r}{did_you_mean(near)}"
        return MethodNotFound(text, {"method": name, "nearest": near})
    return MethodNotFound(data={"method": name, "reason": "rpc.discover lists the methods that there are"})


def too_deep(limit: int, side: str) -> InvalidRequest:
    """The error for a message that is nested deeper than `Limits.max_depth`; `side` has the limit."""
    reason = f"more than {limit} arrays and objects inside each other (the {side}'s max_depth)"
    return InvalidRequest(data={"reason": reason, "limit": limit})
