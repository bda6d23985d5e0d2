"""Runs calls with a Context, ordering or streaming.

Owns one such call from its start to its end, and the messages that carry the items of a generator. A plain call is run
by the `Invoker` alone. Knows neither requests nor replies.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from ..errors import CallCancelled, ConnectionLost, EncodeError, MessageTooLarge
from ..peer.context import CallContext
from ..peer.flow_control import StreamSender
from ..peer.slices import SLICE, TimeSlices
from ..peer.state import ConversationState, Hold
from ..peer.stream_table import reply_key
from ..wire import envelope
from ..wire.buffers import AttachedMessage
from . import stream_params
from .collected_items import CollectedItems, close_generator, collect_packed, unpacked
from .failures import NO_FORM, UnfitResult, checked
from .invoke import Invoker
from .registry import Method


class CallRunner:
    """Runs the handler of one call.

    `start` is called once, or never, if the task is cancelled before its first step; what the call holds is then
    released when this object is dropped.

    Args:
        slices: share the event loop out among generators that run for long.
        credit: items that the caller permits at first; None if it wants no stream.
        tokens: the streams among the arguments, closed when the handler is done.
        ordered: the call takes its place among the ordered calls of the connection now.
        collected: gets the items of a generator whose caller wants no stream.
        generator: such a generator, in the event loop, that has given its first items already.
        hold: keeps requests from being taken up until the call is over, since sync handlers run one after the other.
    """

    def __init__(
        self,
        invoker: Invoker,
        context: CallContext,
        *,
        slices: TimeSlices,
        credit: int | None,
        tokens: list[str],
        ordered: bool,
        collected: CollectedItems | None = None,
        generator: Iterator[Any] | None = None,
        hold: Hold | None = None,
    ) -> None:
        self.context = context
        self.session = session = context.session
        self._invoker = invoker
        self._slices = slices
        self._collected = collected
        self._generator = generator
        self._hold = hold
        self._address = context.address
        self._tokens = tokens
        self._key = reply_key(context.request_id)
        # Opened here, not in `start`: more credit may come in the same read as the request.
        self._sender = None if credit is None else session.streams.open_sender(self._key, credit)
        self._ticket = OrderTicket(session) if ordered else None
        self._has_begun = False

    async def start(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Gives the handler's result, or raises its exception."""
        self._has_begun = True
        try:
            if self._ticket is not None:
                await self._ticket.wait()
            result = self._begin(method, args, kwargs)
            return await result if inspect.isawaitable(result) else result
        except asyncio.CancelledError:
            self.context.cancel()
            raise
        except ConnectionLost as error:
            if error.address != self._address:
                raise
            # The handler has called its caller, which is gone or silent: that is no failure of the handler.
            raise CallCancelled("Cancelled: the caller left before it had answered") from error
        finally:
            self._end()

    def _begin(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Begin the handler; gives its result, or an awaitable of it."""
        if self._collected is not None:
            return self._collect(method, args, kwargs, self._collected)
        if self._sender is not None:
            return self._stream(method, args, kwargs, self._sender)
        if method.is_async or method.offload is not None:
            return self._invoker.start(method, args, kwargs)
        return method.function(*args, **kwargs)

    def __del__(self) -> None:
        # The task was cancelled before its first step, so `start` never ran.
        if not self._has_begun:
            self._end()

    def _end(self) -> None:
        """Release all that the call holds."""
        if self._generator is not None:
            close_generator(self._generator)
        if self._hold is not None:
            self._hold.release()
        if self._collected is not None:
            self._collected.release()
        if self._ticket is not None:
            self._ticket.release()
        if self._sender is not None:
            self.session.streams.remove_sender(self._key, self._sender)
        stream_params.close(self.session, self._tokens)
        self.context.finish()

    async def _stream(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], sender: StreamSender) -> Any:
        """Send the items as a stream; gives what the generator returns."""
        assert method.generator is not None
        if method.offload == "process":
            return await self._send(method, _ItemReader(await self._items_from_process(method, args, kwargs)), sender)
        items = method.generator(*args, **kwargs)
        if isinstance(items, AsyncIterator):
            return await self._send(method, _AsyncItemReader(items), sender)
        if method.offload == "thread":
            return await self._send(method, _ThreadItemReader(items, self._invoker), sender)
        return await self._send(method, _ItemReader(items), sender)

    async def _send(self, method: Method, reader: _ItemReader, sender: StreamSender) -> Any:
        since = perf_counter()
        try:
            while True:
                # Each item is made before there is credit for it, so that the end of the stream needs none.
                is_over, item = await reader.next()
                if is_over:
                    return item
                message = self._item_message(method, item)
                await sender.wait_for_credit()
                self.session.send(message)
                if perf_counter() - since > SLICE:
                    await self._give_way()
                    since = perf_counter()
        finally:
            with self.session.running.undisturbed():
                await reader.close()

    async def _give_way(self) -> None:
        """Let other work of the event loop go on; if the connection takes no more, until it does."""
        if self.session.write_gate.waiting:
            await self.session.write_gate.wait()
        else:
            await self._slices.come(self.session)

    # -- a generator whose caller wants no stream -------------------------------------------------------------------

    async def _collect(
        self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], collected: CollectedItems
    ) -> Any:
        """Collect the items of a generator; gives a list if they are few, else the `CollectedItems`."""
        assert method.generator is not None
        if method.offload == "thread":
            await self._collect_in_thread(method.generator(*args, **kwargs), collected)
        elif method.offload == "process":
            await self._collect_here(await self._items_from_process(method, args, kwargs, collected), collected)
        elif self._generator is not None:
            await self._slices.come(self.session)
            await self._collect_here(self._generator, collected)
        else:
            if self._slices.are_used:
                await self._slices.come(self.session)
            items = method.generator(*args, **kwargs)
            if isinstance(items, AsyncIterator):
                try:
                    await collected.take_async(items, partial(self._slices.come, self.session))
                except BaseException:
                    with self.session.running.undisturbed():
                        await _AsyncItemReader(items).close()
                    raise
            else:
                await self._collect_here(iter(items), collected)
        if (few := collected.few) is not None:
            return few
        while not collected.finish():
            await self._slices.come(self.session)
        return collected

    async def _collect_here(self, items: Iterator[Any], collected: CollectedItems) -> None:
        try:
            while not collected.take(items):
                await self._slices.come(self.session)
        finally:
            close_generator(items)

    async def _collect_in_thread(self, items: Iterator[Any], collected: CollectedItems) -> None:
        try:
            await asyncio.wrap_future(self._invoker.submit(partial(collected.collect, items)))
        finally:
            collected.is_stopped = True

    async def _items_from_process(
        self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], collected: CollectedItems | None = None
    ) -> Iterator[Any]:
        """All items of a generator that ran to its end in a worker process."""
        assert method.generator is not None
        limit = self.session.limits.max_message_size
        keeps = collected is None or collected.keeps
        function = partial(collect_packed, method.generator, limit, self.context.remaining, keeps)
        return unpacked(await self._invoker.start(replace(method, function=function), args, kwargs))

    # -- a stream ---------------------------------------------------------------------------------------------------

    def _item_message(self, method: Method, item: Any) -> Any:
        if method.check_item is not None:
            item = checked(method.check_item, item, "an item")
        params = {"id": self.context.request_id, "value": item}
        try:
            message = self.session.calls.marshaller.encode(envelope.request(envelope.ITEM, params), method.name)
            if isinstance(message, AttachedMessage):
                message.secure()  # the generator may use an array again, and the item may have to wait for credit
            return message
        except MessageTooLarge as error:
            raise MessageTooLarge(error.message, error.data) from None  # without an address: it is this handler's error
        except EncodeError as error:
            raise UnfitResult(f"an item {NO_FORM}") from error


class _ItemReader:
    """Reads the items of a generator one by one."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = iter(items)

    async def next(self) -> tuple[bool, Any]:
        """Whether the generator is at its end, and the item; at the end, what the generator returned."""
        return self._step()

    async def close(self) -> None:
        """Close the generator."""
        self._close()

    def _step(self) -> tuple[bool, Any]:
        try:
            return False, next(self._items)
        except StopIteration as end:
            return True, end.value

    def _close(self) -> None:
        close_generator(self._items)


class _ThreadItemReader(_ItemReader):
    """Runs each step of the generator in a thread of the pool, not always the same one."""

    def __init__(self, items: Iterable[Any], invoker: Invoker) -> None:
        super().__init__(items)
        self._invoker = invoker
        self._running: Future[Any] | None = None

    async def next(self) -> tuple[bool, Any]:
        self._running = self._invoker.submit(self._step)
        is_over, item = await asyncio.wrap_future(self._running)
        return is_over, item

    async def close(self) -> None:
        if self._running is not None and not self._running.done():
            # The step cannot be interrupted: its thread closes the generator when it is done.
            self._running.add_done_callback(lambda _: self._close())
        else:
            await asyncio.wrap_future(self._invoker.submit(self._close, always=True))


class _AsyncItemReader(_ItemReader):
    """Reads the items of an async generator."""

    def __init__(self, items: AsyncIterator[Any]) -> None:
        self._async_items = items

    async def next(self) -> tuple[bool, Any]:
        try:
            return False, await anext(self._async_items)
        except StopAsyncIteration:
            return True, None

    async def close(self) -> None:
        close = getattr(self._async_items, "aclose", None)
        if close is not None:
            await close()


class OrderTicket:
    """The place of a call among the ordered calls of its connection, which run one after the other."""

    def __init__(self, session: ConversationState) -> None:
        self._before, self._mine = session.next_in_order()

    async def wait(self) -> None:
        """Wait until the ordered calls before this one are over."""
        if self._before is not None:
            await asyncio.shield(self._before)

    def release(self) -> None:
        """Let the next call run; if this one was cancelled while it waited, once the calls before it are over."""
        before = self._before
        if before is None or before.done():
            self._mine.set_result(None)
        else:
            before.add_done_callback(lambda _: self._mine.set_result(None))
