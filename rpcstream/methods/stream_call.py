"""How a call is carried out that takes part in the conversation: with a context, a place in the order, items.

Owns one such call from its start to its end. A plain call never comes here; it is started by the `Invoker` alone, whose
`start` this one has too. Knows no message; makes only those that carry items.
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

from ..errors import CallCancelled, ConnectionLost, MessageTooLarge
from ..peer.context import Context
from ..peer.flow_control import StreamSender
from ..peer.slices import SLICE, TimeSlices
from ..peer.state import ConversationState, Hold
from ..peer.stream_table import reply_key
from ..wire import envelope
from . import stream_params
from .collected_items import CollectedItems, close_generator, collect_packed, unpacked
from .invoke import Invoker
from .registry import Method


class CallRunner:
    """One call. `start` is called once, or not at all: what is cancelled before it begins is over when it is dropped.

    Args:
        slices: when a generator may go on that has kept the event loop for some time.
        credit: items that the caller permits at first; None if it wants no stream.
        collection: gets the items of a generator whose caller wants no stream.
        begun: such a generator in the event loop that has given some items already.
        hold: keeps the connection until that is over: sync handlers are carried out one after the other.
        tokens: the streams among the arguments, closed when the handler is done.
        ordered: it has its place in the order from now on.
    """

    def __init__(
        self,
        invoker: Invoker,
        context: Context,
        *,
        slices: TimeSlices,
        credit: int | None,
        tokens: list[str],
        ordered: bool,
        collection: CollectedItems | None = None,
        begun: Iterator[Any] | None = None,
        hold: Hold | None = None,
    ) -> None:
        self.context = context
        self.session = session = context.session
        self._invoker = invoker
        self._slices = slices
        self._collection = collection
        self._begun = begun
        self._hold = hold
        self._address = context.address
        self._tokens = tokens
        self._key = reply_key(context.request_id)
        # From now on, not only from its start: credit may come with the very request.
        self._sender = None if credit is None else session.flows.open_sender(self._key, credit)
        self._turn = OrderTicket(session) if ordered else None
        self._has_begun = False

    async def start(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Gives the handler's result, or raises its exception."""
        self._has_begun = True
        try:
            if self._turn is not None:
                await self._turn.come()
            if self._collection is not None:
                return await self._collect(method, args, kwargs, self._collection)
            if self._sender is not None:
                return await self._stream(method, args, kwargs, self._sender)
            if method.is_async or method.offload is not None:
                result = self._invoker.start(method, args, kwargs)
            else:
                result = method.function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result
        except asyncio.CancelledError:
            self.context.cancel()
            raise
        except ConnectionLost as error:
            if error.address != self._address:
                raise
            # The caller is gone, or says nothing more, and was asked: that is no failure of the handler.
            raise CallCancelled("Cancelled: the caller left before it had answered") from error
        finally:
            self._end()

    def __del__(self) -> None:
        # The task was cancelled before its first step: nothing of it ever runs.
        if not self._has_begun:
            self._end()

    def _end(self) -> None:
        if self._begun is not None:
            close_generator(self._begun)
        if self._hold is not None:
            self._hold.release()
        if self._collection is not None:
            self._collection.release()
        if self._turn is not None:
            self._turn.over()
        if self._sender is not None:
            self.session.flows.close_sender(self._key, self._sender)
        stream_params.close(self.session, self._tokens)
        self.context.finish()

    async def _stream(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], sender: StreamSender) -> Any:
        """Send the items; gives what the generator returns."""
        assert method.items is not None
        if method.offload == "process":
            return await self._send(method, _ItemReader(await self._made_elsewhere(method, args, kwargs)), sender)
        items = method.items(*args, **kwargs)
        if isinstance(items, AsyncIterator):
            return await self._send(method, _AsyncItemReader(items), sender)
        if method.offload == "thread":
            return await self._send(method, _ThreadItemReader(items, self._invoker), sender)
        return await self._send(method, _ItemReader(items), sender)

    async def _send(self, method: Method, steps: _ItemReader, sender: StreamSender) -> Any:
        since = perf_counter()
        try:
            while True:
                # One item is made ahead of its credit: so the end of the stream needs none.
                is_over, item = await steps.next()
                if is_over:
                    return item
                message = self._item(method, item)
                await sender.wait_for_credit()
                self.session.send(message)
                if perf_counter() - since > SLICE:
                    await self._others_first()
                    since = perf_counter()
        finally:
            with self.session.work.undisturbed():
                await steps.close()

    async def _others_first(self) -> None:
        """Give way: also to those who wait until the connection takes more."""
        if self.session.flows.waiting:
            await self.session.flows.flowing()
        else:
            await self._slices.come(self.session)

    # -- a generator whose caller wants no stream -------------------------------------------------------------------

    async def _collect(
        self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], collection: CollectedItems
    ) -> Any:
        """Collect the items; gives them as they are if they are few, else what has them as JSON."""
        assert method.items is not None
        if method.offload == "thread":
            await self._collect_in_thread(method.items(*args, **kwargs), collection)
        elif method.offload == "process":
            await self._collect_here(await self._made_elsewhere(method, args, kwargs, collection), collection)
        elif self._begun is not None:
            await self._slices.come(self.session)
            await self._collect_here(self._begun, collection)
        else:
            if self._slices.are_used:
                await self._slices.come(self.session)
            items = method.items(*args, **kwargs)
            if isinstance(items, AsyncIterator):
                try:
                    await collection.take_async(items, partial(self._slices.come, self.session))
                except BaseException:
                    with self.session.work.undisturbed():
                        await _AsyncItemReader(items).close()
                    raise
            else:
                await self._collect_here(iter(items), collection)
        if (few := collection.few) is not None:
            return few
        while not collection.finish():
            await self._slices.come(self.session)
        return collection

    async def _collect_here(self, items: Iterator[Any], collection: CollectedItems) -> None:
        try:
            while not collection.take(items):
                await self._slices.come(self.session)
        finally:
            close_generator(items)

    async def _collect_in_thread(self, items: Iterator[Any], collection: CollectedItems) -> None:
        try:
            await asyncio.wrap_future(self._invoker.submit(partial(collection.collect, items)))
        finally:
            collection.is_stopped = True

    async def _made_elsewhere(
        self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], collection: CollectedItems | None = None
    ) -> Iterator[Any]:
        """All items of a generator in another process, where it cannot be left half run."""
        assert method.items is not None
        limit = self.session.limits.max_message_size
        keeps = collection is None or collection.keeps
        function = partial(collect_packed, method.items, limit, self.context.remaining, keeps)
        return unpacked(await self._invoker.start(replace(method, function=function), args, kwargs))

    # -- a stream ---------------------------------------------------------------------------------------------------

    def _item(self, method: Method, item: Any) -> Any:
        if method.check_item is not None:
            item = method.check_item(item)
        params = {"id": self.context.request_id, "value": item}
        try:
            return self.session.calls.marshaller.encode(envelope.request(envelope.ITEM, params), method.name)
        except MessageTooLarge as error:
            raise MessageTooLarge(error.message, error.data) from None  # this handler's, not one from elsewhere


class _ItemReader:
    """A generator, step by step: `next` gives whether it is over, and the item or what the generator returned."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = iter(items)

    async def next(self) -> tuple[bool, Any]:
        return self._step()

    async def close(self) -> None:
        self._close()

    def _step(self) -> tuple[bool, Any]:
        try:
            return False, next(self._items)
        except StopIteration as end:
            return True, end.value

    def _close(self) -> None:
        close_generator(self._items)


class _ThreadItemReader(_ItemReader):
    """Each step in a thread, perhaps another one each time."""

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
            # It cannot be interrupted: its thread closes the generator when the step is done.
            self._running.add_done_callback(lambda _: self._close())
        else:
            await asyncio.wrap_future(self._invoker.submit(self._close, always=True))


class _AsyncItemReader(_ItemReader):
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
    """A place in the order of the calls of one connection that keep theirs."""

    def __init__(self, session: ConversationState) -> None:
        self._before, self._mine = session.next_in_order()

    async def come(self) -> None:
        """Wait until all calls before this one are over."""
        if self._before is not None:
            await asyncio.shield(self._before)

    def over(self) -> None:
        """The next one may run; if this one was cancelled while it waited, not before its turn had come."""
        before = self._before
        if before is None or before.done():
            self._mine.set_result(None)
        else:
            before.add_done_callback(lambda _: self._mine.set_result(None))
