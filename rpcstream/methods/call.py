"""Running a function: in the event loop, a thread or a process; alone, or with a Context, streams, or middleware."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from sys import getsizeof
from time import perf_counter
from typing import Any, TypeVar

from ..errors import CallCancelled, ConnectionLost, RegistrationError, ServerBusy
from ..limits import Limits
from ..peer.context import CallContext
from ..peer.control_messages import reply_key
from ..peer.flow_control import StreamSender
from ..peer.inflight import Hold
from ..peer.ledger import Account, ConnectionLedger
from ..peer.slices import SLICE
from ..wire import envelope
from ..wire.buffers import AttachedMessage, Encoded, MessageParts
from .arguments import Arguments, ArgumentsWithImages, ImageDecoder
from .method import Method
from .replies import NO_FORM, ReplyWriter, checked
from .threads import DEFAULT_SIZE, DaemonThreads, until_done
from .workers import Workers

T = TypeVar("T")

#: Items that are kept as they are, at most, and encoded together: that takes a tenth of the time of one by one.
GROUP = 32

#: Bytes of an item that is encoded at once, since the generator may wait for long before it gives the next one.
LARGE = 64 * 1024


@dataclass(eq=False)
class CollectedItems:
    """Collects the items of one call.

    Attributes:
        check: checks and converts a list of items; None for no check.
        keeps: False: the items are dropped as they come, since the call is a notification.
        ledger: counts the bytes of the connection.
        account: counts those of all connections.
    """

    replies: ReplyWriter
    check: Callable[[Any], Any] | None
    keeps: bool
    ledger: ConnectionLedger
    account: Account
    _held: list[Any] = field(default_factory=list)
    _json: bytearray = field(default_factory=bytearray)
    _counted: int = 0

    def take(self, items: Iterator[Any], seconds: float = SLICE) -> bool:
        """Take items for some seconds, in any thread; True if the generator is at its end.

        Raises:
            MessageTooLarge: they have no room in one message.
            Exception: what the generator raised; an item does not fit the hint, or has no form on the wire.
        """
        held, end = self._held, perf_counter() + seconds
        for item in items:
            held.append(item)
            if perf_counter() > end:
                self.finish()
                return False
            if len(held) > GROUP:
                self.finish()
        return True

    async def take_async(self, items: AsyncIterator[Any], give_way: Callable[[], Awaitable[None]]) -> None:
        """Take all items, and give way after each slice. Raises as `take` and `count`."""
        end = perf_counter() + SLICE
        async for item in items:
            self._held.append(item)
            is_over = perf_counter() > end
            if is_over or len(self._held) > GROUP or getsizeof(item) > LARGE:
                self.finish()
                self.count()
            if is_over:
                await give_way()
                end = perf_counter() + SLICE

    def count(self) -> None:
        """Count the bytes that were added, in the event loop. Raises ServerBusy if they are over a limit."""
        size = len(self._json) - self._counted
        self._counted += size
        self.ledger.collected += size
        self.account.used += size
        of_one = 2 * self.replies.limits.max_message_size
        for used, limit in ((self.ledger.collected, of_one), (self.account.used, self.account.limit)):
            if used > limit:
                raise ServerBusy(data={"limit": limit, "reason": "too much is being collected from generators"})

    def release(self) -> None:
        """Count the bytes no more, since the reply was sent or dropped."""
        self.ledger.collected -= self._counted
        self.account.used -= self._counted
        self._counted = 0

    @property
    def few(self) -> list[Any] | None:
        """All items as they are, if they are few; else None."""
        return None if self._json else self._held

    def finish(self) -> None:
        """Encode the items that are kept as they are."""
        if self._held and self.keeps:
            items = self._held if self.check is None else checked(self.check, self._held, "an item")
            written = bytes(checked(self.replies.codec.serialize, items, "an item", NO_FORM))
            self._json += b"," if self._json else b""
            self._json += memoryview(written)[1:-1]
            self._limit(len(self._json))
        self._held.clear()

    def reply(self, call_id: Any) -> Encoded:
        """The reply with the array."""
        empty = bytes(self.replies.codec.serialize({"jsonrpc": envelope.VERSION, "id": call_id, "result": []}))
        self._limit(len(empty) + len(self._json))
        return MessageParts([empty[:-2], bytes(self._json), b"]}"])

    def _limit(self, size: int) -> None:
        limit = self.replies.limits.max_message_size
        if size > limit:
            raise envelope.oversize(size, limit, side=self.replies.side)


def close_generator(items: Any) -> None:
    """Close a generator, so that its `finally` runs; any other iterator is left alone."""
    end = getattr(items, "close", None)
    if end is not None:
        end()


class Invoker:
    """Runs offloaded handlers. Threads and processes are started as calls need them; `close` ends them.

    Args:
        limits: says how many calls may wait for a thread or a process, and how much memory images may take.
        threads: handlers that run in threads at the same time; None: a number for handlers that wait most of the time.
        processes: worker processes, each running one handler at a time; None: one for each processor.

    Attributes:
        images: decodes the images of calls.
    """

    def __init__(self, limits: Limits, *, threads: int | None = None, processes: int | None = None) -> None:
        self.threads = DaemonThreads(threads or DEFAULT_SIZE)
        self.workers = Workers(processes or os.cpu_count() or 1)
        self.images = ImageDecoder(max_memory=limits.max_image_memory, max_waiting=limits.max_queue)
        self._max_queue = limits.max_queue

    def submit(self, call: Callable[[], Any], *, always: bool = False) -> Future[Any]:
        """Run a function in a thread of the pool.

        Args:
            call: the function.
            always: even if too many calls wait; for cleaning up after a call that was accepted.

        Raises:
            ServerBusy: too many calls wait for a thread or a process already.
        """
        if not always:
            self._check_room()
        return self.threads.submit(call)

    async def run(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a handler in a thread or a process. Raises ServerBusy as `submit` does."""
        call = functools.partial(method.function, *args, **kwargs)
        if method.offload == "thread":
            return await asyncio.wrap_future(self.submit(call))
        self._check_room()
        return await self.workers.run(method.name, call)

    def _check_room(self) -> None:
        if len(self.threads.waiting) + len(self.workers.threads.waiting) >= self._max_queue:
            raise ServerBusy(data={"limit": self._max_queue})

    def close(self) -> None:
        """End the pools without waiting: threads end with what they run now, processes at once."""
        self.threads.close()
        self.workers.close()
        self.images.close()


def check_picklable(method: Method) -> None:
    """Raises RegistrationError unless another process can import the function. Only true once its module is loaded."""
    try:
        pickle.dumps(method.function)
    except Exception as error:
        raise RegistrationError(
            f"{method.name}: offload='process' needs a function that another process can import: {error}"
        ) from error


@dataclass(eq=False)
class Call:
    """One call, from the arrival of its message until its handler and its dependencies have ended.

    What the call holds is released when `run` ends, or when this object is dropped because `run` was never started.

    Attributes:
        dispatcher: the `Dispatcher`, which has the threads, the writer of replies and the time slices.
        given: the arguments as bound, or what was raised in their place; None once it runs.
        credit: items that the caller of a generator permits at first; None if it wants no stream.
        collected: gets the items of a generator whose caller wants no stream.
        deadline: of the task that runs the call; None where there is none.
        running: what runs in a thread for it, the last of several.
    """

    dispatcher: Any
    method: Method
    context: CallContext
    given: Arguments | ArgumentsWithImages | None
    credit: int | None
    collected: CollectedItems | None = None
    deadline: asyncio.Timeout | None = None
    running: Future[Any] | None = None
    _sender: StreamSender | None = None
    _hold: Hold | None = None
    #: Of ordered calls: the end of the one before.
    _before: asyncio.Future[None] | None = None
    #: Release what the call holds.
    _releases: list[Callable[[], object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        session = self.session = self.context.session
        self.invoker: Invoker = self.dispatcher.invoker
        self._releases.append(self.context.finish)
        stream = self.method.stream
        if stream is not None and self.credit is not None:
            self.method = stream
            self._open_sender(self.credit)
        elif stream is not None:
            replies, keeps = self.dispatcher.replies, not self.context.is_notification
            check, account = self.method.check_result, self.dispatcher.collected
            self.collected = CollectedItems(replies, check, keeps, session.ledger, account)
            self._releases.append(self.collected.release)
        if self.method.ordered:
            self._take_turn()
        # A sync function is not overtaken by the calls behind it; nor is a call whose images are decoded first, if it
        # keeps its place in the order, or if control messages may refer to it.
        is_sync, has_images = self.method.begins_now and self._sender is None, type(self.given) is ArgumentsWithImages
        if is_sync or (has_images and not self.method.is_plain):
            self._hold = Hold(session)
            self._releases.append(self._hold.release)
        if type(self.given) is tuple:
            self.given = self._with_streams(*self.given)

    def __del__(self) -> None:
        self._end()  # it has where `run` began; else the task was cancelled before its first step

    def _end(self) -> None:
        while self._releases:
            self._releases.pop()()

    def _open_sender(self, credit: int) -> None:
        """Take credit for items from now on, not from `run` on: more may come in the same read as the request."""
        streams, key = self.session.streams, reply_key(self.context.request_id)
        self._sender = StreamSender(self.session.write_gate, credit)
        streams.add_sender(key, self._sender)
        self._releases.append(partial(streams.remove_sender, key, self._sender))

    def _take_turn(self) -> None:
        session, before = self.session, self.session.last_in_order
        over = session.last_in_order = session.loop.create_future()

        def pass_turn() -> None:
            if before is None or before.done():
                over.set_result(None)
            else:  # it was cancelled while it waited: the next one waits for those before this
                before.add_done_callback(lambda _: over.set_result(None))

        self._before = before
        self._releases.append(pass_turn)

    def _with_streams(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """The arguments with the streams among them opened."""
        injection = self.method.injection
        if injection is None or not injection.streams:
            return args, kwargs
        return injection.open_streams((args, kwargs), self.context, self.invoker.images, self._releases)

    async def run(self) -> Any:
        """Gives the handler's result, the items that were collected, or raises the exception of the call."""
        given, self.given = self.given, None
        try:
            if isinstance(given, ArgumentsWithImages):
                given = await self._decode(given)
            assert given is not None
            args, kwargs = given
            del given
            if self._before is not None:
                await asyncio.shield(self._before)
            return await self.method.run(self, args, kwargs)
        except asyncio.CancelledError:
            self.context.cancel()
            raise
        except ConnectionLost as error:
            if error.address != self.context.address:
                raise
            # The handler has called its caller, which is gone or silent: that is no failure of the handler.
            raise CallCancelled("Cancelled: the caller left before it had answered") from error
        finally:
            self._end()

    async def _decode(self, found: ArgumentsWithImages) -> Arguments:
        """The arguments, once their images are decoded; the call holds the memory of these."""
        images = self.invoker.images
        (args, kwargs), size = await images.decode(found, self.session)
        self._releases.append(partial(images.give_back, size))
        if self._hold is not None and not self.method.begins_now:
            self._hold.release()
        return self._with_streams(args, kwargs)

    async def handle(self, args: tuple[Any, ...], kwargs: dict[str, Any], provided: Sequence[Any] | None = None) -> Any:
        """Run the handler itself, the innermost of `Method.run`; `provided` are its other arguments."""
        method = self.method
        if method.injection is not None:
            args, kwargs = method.injection.insert(args, kwargs, provided or (self.context,))
        if self.collected is not None or self._sender is not None:
            made = self._called(method.function, *args, **kwargs)
            items = made if isinstance(made, AsyncIterator) else iter(made)
            if self._sender is not None:
                return await self._stream(items, self._sender)
            return await self._collect(items)
        if method.offload == "thread":
            return await self._in_thread(partial(method.function, *args, **kwargs))
        if method.offload == "process":
            return await self.invoker.run(method, args, kwargs)
        result = self._called(method.function, *args, **kwargs)
        return await result if inspect.isawaitable(result) else result

    def _called(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call a function in the event loop; one that blocks the loop is reported, as those called at once are."""
        since = perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            session, seconds = self.session, perf_counter() - since
            if seconds > session.slow and session.on_slow is not None and not session.is_measured:
                session.on_slow({"method": self.method.name}, seconds)

    # -- generators -------------------------------------------------------------------------------------------------

    async def _next(self, items: Any) -> tuple[bool, Any]:
        """Whether the generator is at its end, and the item; at the end, what the generator returned."""
        if isinstance(items, AsyncIterator):
            try:
                return False, await anext(items)
            except StopAsyncIteration:
                return True, None
        if self.method.offload == "thread":
            is_over, item = await self._in_thread(partial(_step, items))
        else:
            is_over, item = self._called(_step, items)
        return is_over, item

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        self.running = self.invoker.submit(function)
        return await asyncio.wrap_future(self.running)

    async def _close(self, items: Any) -> None:
        """Close the generator, so that its `finally` runs; any other iterator is left alone."""
        with self.session.running.undisturbed():
            if isinstance(items, AsyncIterator):
                if hasattr(items, "aclose"):
                    await items.aclose()
            elif self.running is not None and not self.running.done():
                # The step cannot be interrupted: its thread closes the generator when it is done.
                self.running.add_done_callback(lambda _: close_generator(items))
            elif self.running is not None:
                await until_done(self.invoker.submit(partial(close_generator, items), always=True))
            else:
                close_generator(items)

    async def _stream(self, items: Any, sender: StreamSender) -> Any:
        """Send the items as a stream; gives what the generator returns."""
        since = perf_counter()
        try:
            while True:
                # Each item is made before there is credit for it, so that the end of the stream needs none.
                is_over, item = await self._next(items)
                if is_over:
                    return item
                message = self._item_message(item)
                await sender.wait_for_credit()
                self.session.send(message)
                if perf_counter() - since > SLICE:
                    if self.session.write_gate.waiting:
                        await self.session.write_gate.wait()
                    else:
                        await self.dispatcher.slices.come(self.session)
                    since = perf_counter()
        finally:
            await self._close(items)

    def _item_message(self, item: Any) -> Encoded:
        if self.method.check_item is not None:
            item = checked(self.method.check_item, item, "an item")
        request = envelope.request(envelope.ITEM, {"id": self.context.request_id, "value": item})
        message: Encoded = self.dispatcher.replies.written(request, "an item", binary=self.session.sends_binary)
        if isinstance(message, AttachedMessage):
            message.secure()  # the generator may use an array again, and the item may have to wait for credit
        return message

    async def _collect(self, items: Any) -> Any:
        """Collect the items for a caller that wants no stream: a list if they are few, else the `CollectedItems`."""
        slices, collected = self.dispatcher.slices, self.collected
        assert collected is not None
        give_way = partial(slices.come, self.session)
        if slices.is_crowded():
            await give_way()
        try:
            if isinstance(items, AsyncIterator):
                await collected.take_async(items, give_way)
            elif self.method.offload == "thread":
                while not await self._in_thread(partial(collected.take, items, 10 * SLICE)):
                    collected.count()
            else:
                while not self._called(collected.take, items):
                    collected.count()
                    await give_way()
        except BaseException:
            await self._close(items)
            raise
        if (few := collected.few) is not None:
            return few
        collected.finish()
        return collected


def _step(items: Iterator[Any]) -> tuple[bool, Any]:
    try:
        return False, next(items)
    except StopIteration as end:
        return True, end.value
