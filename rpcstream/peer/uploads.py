"""Streams as arguments: iterators that a caller passes are sent item by item while the call runs, each in a task."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from ..codec import TAG_KEY
from ..errors import EncodeError, InternalError, RpcError
from ..wire import envelope
from .control_messages import argument_key
from .flow_control import StreamSender

#: The tag of what stands for a stream among the params.
STREAM_TAG = "stream"

#: Encodes a notification and sends it.
Send = Callable[[dict[str, Any]], None]

_END: Any = object()

#: Called with what an iterator raised: then the call cannot be carried out as it was meant.
Fail = Callable[[Exception], None]


def is_stream(value: object) -> bool:
    """Whether an argument is sent item by item: an iterator, sync or async; no container, and no open binary file."""
    kind = type(value)
    if hasattr(kind, "__next__"):  # a file's items are its lines; what can be read into memory is an image
        return not hasattr(kind, "readinto")
    return hasattr(kind, "__anext__") or hasattr(kind, "__aiter__")


def holds_streams(params: Any) -> bool:
    """Whether one of the arguments of a call is a stream."""
    return any(map(is_stream, params.values() if isinstance(params, dict) else params or ()))


def replaced(params: Any, new_token: Callable[[], str]) -> tuple[Any, dict[str, Any]]:
    """The params with a tagged object in the place of each stream, and the streams by their tokens."""
    sources: dict[str, Any] = {}

    def placed(value: Any) -> Any:
        if not is_stream(value):
            return value
        token = new_token()
        sources[token] = value
        return {TAG_KEY: STREAM_TAG, "id": token}

    if isinstance(params, dict):
        return {name: placed(value) for name, value in params.items()}, sources
    return [placed(value) for value in params], sources


def start(sources: dict[str, Any], session: Any, send: Send, fail: Fail) -> Callable[[], None]:
    """Send the items of the streams of a call that was sent, as soon as there is credit. Gives what stops that."""
    tasks = []
    for token, source in sources.items():
        key, sender = argument_key(token), StreamSender(session.write_gate, 0)
        session.streams.add_sender(key, sender)
        task = session.loop.create_task(_send_items(token, source, sender, send, fail))
        # Not in the task itself, which may be cancelled before its first step.
        task.add_done_callback(lambda _, key=key, sender=sender: session.streams.remove_sender(key, sender))
        tasks.append(task)

    def stop() -> None:
        for task in tasks:
            task.cancel()

    return stop


async def _send_items(token: str, source: Any, sender: StreamSender, send: Send, fail: Fail) -> None:
    is_async = hasattr(type(source), "__aiter__")
    items = aiter(source) if is_async else source
    try:
        while True:
            await sender.wait_for_credit()
            item = await anext(items, _END) if is_async else next(items, _END)
            if item is _END:
                send(envelope.end(token))
                return
            send(envelope.request(envelope.ITEM, {"stream": token, "value": item}))
    except Exception as error:
        told = error if isinstance(error, RpcError) else InternalError("The caller's stream broke off")
        with contextlib.suppress(EncodeError, RpcError):  # the error's data may be what cannot be sent
            send(envelope.end(token, told))
        fail(error)
    finally:
        close = getattr(items, "aclose" if is_async else "close", None)
        closing = close() if close is not None else None
        if is_async and closing is not None:
            await closing
