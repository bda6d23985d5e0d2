"""Streams as arguments: iterators that a caller passes are sent item by item while the call runs.

Owns one task for each of them, which ends with the call. (Wire page, "Streams as arguments".)
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from ..codec import TAG_KEY
from ..errors import EncodeError, InternalError, RpcError
from ..wire import envelope
from .flow_control import StreamSender
from .naming import MixedParams
from .stream_table import StreamTable, argument_key

log = logging.getLogger("rpcstream.client")

#: The tag of what stands for a stream among the params.
STREAM_TAG = "stream"


def is_stream(value: object) -> bool:
    """Whether an argument is sent item by item: an iterator, sync or async; no container, and no open binary file."""
    kind = type(value)
    if hasattr(kind, "__next__"):  # a file's items are its lines; what can be read into memory is an image
        return not hasattr(kind, "readinto")
    return hasattr(kind, "__anext__") or hasattr(kind, "__aiter__")


def holds_streams(params: Any) -> bool:
    """Whether one of the arguments of a call is a stream."""
    if isinstance(params, MixedParams):
        return holds_streams(list(params.args)) or holds_streams(params.kwargs)
    return any(map(is_stream, params.values() if isinstance(params, dict) else params or ()))


class Uploads:
    """The streams among the arguments of one call.

    Args:
        streams: of the connection.
        send: encodes a notification and sends it.
        fail: called with what an iterator raised: then the call cannot be carried out as it was meant.
    """

    def __init__(
        self, streams: StreamTable, send: Callable[[dict[str, Any]], None], fail: Callable[[Exception], None]
    ) -> None:
        self._streams = streams
        self._send = send
        self._fail = fail
        self._sources: dict[str, Any] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def replaced(self, params: Any) -> Any:
        """The params, with a tagged object in the place of each stream."""
        if isinstance(params, dict):
            return {name: self._replaced(value) for name, value in params.items()}
        return [self._replaced(value) for value in params]

    def start(self) -> None:
        """Begin to send items, as soon as there is credit. The call must have been sent."""
        loop = asyncio.get_running_loop()
        for token, source in self._sources.items():
            key = argument_key(token)
            sender = self._streams.open_sender(key, 0)
            task = loop.create_task(self._feed(token, source, sender))
            # Not in the task itself, which may be cancelled before its first step.
            task.add_done_callback(functools.partial(self._ended, key, sender))
            self._tasks.append(task)

    def stop(self) -> None:
        """Stop sending, since the call is over."""
        for task in self._tasks:
            task.cancel()

    def _replaced(self, value: Any) -> Any:
        if not is_stream(value):
            return value
        token = self._streams.new_token()
        self._sources[token] = value
        return {TAG_KEY: STREAM_TAG, "id": token}

    async def _feed(self, token: str, source: Any, sender: StreamSender) -> None:
        items = _async_iterator(source)
        try:
            while True:
                await sender.wait_for_credit()
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    self._send(envelope.end(token))
                    return
                self._send(envelope.request(envelope.ITEM, {"stream": token, "value": item}))
        except Exception as error:
            self._break_off(token, error)
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()

    def _break_off(self, token: str, error: Exception) -> None:
        told = error if isinstance(error, RpcError) else InternalError("The caller's stream broke off")
        try:
            self._send(envelope.end(token, told))
        except (EncodeError, RpcError):  # the error's data cannot be sent: the call is given up all the same
            pass
        self._fail(error)

    def _ended(self, key: str, sender: StreamSender, task: asyncio.Task[None]) -> None:
        self._streams.remove_sender(key, sender)
        if not task.cancelled() and task.exception() is not None:
            log.error("an iterator failed while it was closed", exc_info=task.exception())


def _async_iterator(source: Any) -> AsyncIterator[Any]:
    return aiter(source) if hasattr(type(source), "__aiter__") else _stepped(source)


async def _stepped(source: Any) -> AsyncIterator[Any]:
    """A plain iterator; each step keeps the event loop for as long as it takes."""
    try:
        for item in source:
            yield item
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()
