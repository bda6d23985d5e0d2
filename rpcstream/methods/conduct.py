"""How a call is carried out that takes part in the conversation: with a context, a place in the order, items.

Owns one such call from its start to its end. A plain call never comes here; it is started by the `Invoker` alone, whose
`start` this one has too. Knows no message; makes only those that carry items.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Future
from time import perf_counter
from typing import Any

from ..errors import CallCancelled, ConnectionLost, MessageTooLarge
from ..peer.context import Context
from ..peer.flows import reply_key
from ..peer.session import Session
from ..peer.streams import Outflow
from ..wire import envelope
from . import incoming
from .invoke import Invoker
from .registry import Method

#: Seconds that a generator in the event loop may go on before others have their turn.
SLICE = 0.005


class Conduct:
    """One call. `start` is called once, or not at all: what is cancelled before it begins is over when it is dropped.

    Args:
        credit: items that the caller permits at first; None if it wants no stream.
        tokens: the streams among the arguments, closed when the handler is done.
        ordered: it has its place in the order from now on.
    """

    def __init__(
        self,
        invoker: Invoker,
        session: Session,
        context: Context,
        *,
        credit: int | None,
        tokens: list[str],
        ordered: bool,
    ) -> None:
        self._invoker = invoker
        self._session = session
        self._context = context
        self._address = context.address
        self._tokens = tokens
        self._key = reply_key(context.request_id)
        # From now on, not only from its start: credit may come with the very request.
        self._outflow = None if credit is None else session.flows.open_outflow(self._key, credit)
        self._turn = Turn(session) if ordered else None
        self._has_begun = False

    async def start(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Gives the handler's result, or raises its exception."""
        self._has_begun = True
        try:
            if self._turn is not None:
                await self._turn.come()
            if self._outflow is not None:
                return await self._stream(method, args, kwargs, self._outflow)
            if method.is_async or method.offload is not None:
                result = self._invoker.start(method, args, kwargs)
            else:
                result = method.function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result
        except asyncio.CancelledError:
            self._context.cancel()
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
        if self._turn is not None:
            self._turn.over()
        if self._outflow is not None:
            self._session.flows.close_outflow(self._key, self._outflow)
        incoming.close(self._session, self._tokens)
        self._context.finish()

    async def _stream(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], outflow: Outflow) -> Any:
        """Send the items; gives what the generator returns."""
        assert method.items is not None
        if method.offload == "process":  # a generator cannot be left half run in another process
            return await self._send(method, _Steps(await self._invoker.start(method, args, kwargs)), outflow)
        items = method.items(*args, **kwargs)
        if isinstance(items, AsyncIterator):
            return await self._send(method, _AsyncSteps(items), outflow)
        if method.offload == "thread":
            return await self._send(method, _ThreadSteps(items, self._invoker), outflow)
        return await self._send(method, _Steps(items), outflow)

    async def _send(self, method: Method, steps: _Steps, outflow: Outflow) -> Any:
        since = perf_counter()
        try:
            while True:
                # One item is made ahead of its credit: so the end of the stream needs none.
                is_over, item = await steps.next()
                if is_over:
                    return item
                message = self._item(method, item)
                await outflow.permitted()
                self._session.send(message)
                if perf_counter() - since > SLICE:
                    await self._session.flows.others_first()
                    since = perf_counter()
        finally:
            with self._session.work.undisturbed():
                await steps.close()

    def _item(self, method: Method, item: Any) -> Any:
        if method.check_item is not None:
            item = method.check_item(item)
        params = {"id": self._context.request_id, "value": item}
        try:
            return self._session.calls.marshaller.encode(envelope.request(envelope.ITEM, params), method.name)
        except MessageTooLarge as error:
            raise MessageTooLarge(error.message, error.data) from None  # this handler's, not one from elsewhere


class _Steps:
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
        close = getattr(self._items, "close", None)
        if close is not None:
            close()


class _ThreadSteps(_Steps):
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
            await asyncio.wrap_future(self._invoker.submit(self._close))


class _AsyncSteps(_Steps):
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


class Turn:
    """A place in the order of the calls of one connection that keep theirs."""

    def __init__(self, session: Session) -> None:
        self._before = session.last_in_order
        self._mine = session.last_in_order = session.loop.create_future()

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
