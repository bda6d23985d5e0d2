"""Streams as parameters: `frames: AsyncIterator[NDArray[np.uint8]]` in a handler's signature.

Callers send a stream, or an array of all items; the handler gets an iterator.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from ..codec import TAG_KEY, Codec
from ..codec.codec import Reading
from ..codec.hints import CompiledHint, expanded, item_hint
from ..codec.markers import marker
from ..codec.rich_hint import schema_of
from ..errors import CallCancelled, InvalidParams
from ..peer.blocking import BlockingStream
from ..peer.context import CallContext
from ..peer.flow_control import StreamReceiver
from ..peer.outgoing import STREAM_TAG
from ..peer.session import Session
from ..wire import envelope
from .arguments import ArgumentsWithImages, ImageDecoder

_ASYNC = (AsyncIterator, AsyncIterable, AsyncGenerator)
_BLOCKING = (Iterator, Generator)

#: Checks the params of an `$/item` (`{"stream": token, "value": …}`), as `Signature.bind` does.
BindItem = Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]


class Reference(str):
    """A reference to a stream in place of its items: the name that the caller gave the stream."""


def stream_hint(hint: Any, codec: Codec, *, in_thread: bool) -> tuple[Any, Any] | None:
    """Read the hint of a parameter that takes the items of a stream; None if it takes none.

    Args:
        hint: of the parameter; it may have `None` as another choice, and descriptions.
        in_thread: the handler runs in a thread, where a plain iterator may wait for the next item.

    Returns:
        The hint of an item; and that of the parameter itself, with a marker in the place of the stream.

    Raises:
        TypeError: a stream inside of another hint.
    """
    plain, *metadata = get_args(expanded(hint)) if get_origin(expanded(hint)) is Annotated else (expanded(hint),)
    is_union = get_origin(plain) in (Union, types.UnionType)
    stream, *others = [each for each in get_args(plain) if each is not type(None)] if is_union else [expanded(plain)]
    if others or (get_origin(stream) or stream) not in (_ASYNC + _BLOCKING if in_thread else _ASYNC):
        if _names_async(hint):
            raise TypeError(
                "a stream inside of another hint cannot be read: write AsyncIterator[T], perhaps with | None"
            )
        return None
    item = item_hint(stream)
    made = _items_or_reference(CompiledHint(list[item], codec))  # type: ignore[valid-type]
    described = (*metadata, msgspec.Meta(extra_json_schema={"x-stream": True}))
    return item, Annotated[(made | None if is_union else made, *described)]


def _names_async(hint: Any) -> bool:
    return (get_origin(hint) or hint) in _ASYNC or any(map(_names_async, get_args(hint)))


def _items_or_reference(items: CompiledHint) -> Any:
    """A marker for a list of all items, or a reference to a stream of them."""

    def decode(value: Any, reading: Reading) -> Any:
        if type(value) is not dict:
            return items.check(value, reading)
        token = value.get("id")
        if value.get(TAG_KEY) != STREAM_TAG or type(token) is not str or len(value) != 2:
            raise ValueError('Expected an array, or a stream: {"$type": "stream", "id": "…"}')
        return Reference(token)

    made = marker("stream", decode, lambda components: schema_of(items.described, components))
    made.left = items.left
    return made


#: Bytes of JSON of an item that may take a millisecond to check.
LONG_ITEM = 64 * 1024


class StreamArgument(AsyncIterator[Any]):
    """Iterates over the items of a stream, and checks each. For one reader.

    Raises:
        InvalidParams: while it is read: an item does not fit the hint.
        RpcError, ConnectionLost: while it is read: the caller ended the stream with an error, or is gone.
    """

    def __init__(self, receiver: StreamReceiver, bind: BindItem, session: Session, images: ImageDecoder) -> None:
        self._receiver = receiver
        self._bind = bind
        self._session = session
        self._images = images
        #: Bytes of the images in the item that the reader has now.
        self._size = 0

    def __aiter__(self) -> StreamArgument:
        return self

    async def __anext__(self) -> Any:
        self.release()
        params, line = await self._receiver.get()
        if len(line) >= LONG_ITEM:
            await asyncio.sleep(0)  # others have their turn between items that take long to check
        try:
            (_, value), _ = self._bind(params, line)
        except ArgumentsWithImages as found:
            ((_, value), _), self._size = await self._images.decode(found, self._session)
        return value

    def release(self) -> None:
        """Give back the memory of the images that the reader has."""
        size, self._size = self._size, 0
        if size:
            self._images.give_back(size)

    async def aclose(self) -> None:
        """Stop reading: items that still come are dropped."""
        self.release()
        self._receiver.drop()


async def _items_of(items: list[Any]) -> AsyncIterator[Any]:
    """The items of a list, for a caller that sent all items at once."""
    for item in items:
        yield item


def opened(
    value: Any, bind: BindItem, context: CallContext, images: ImageDecoder, releases: list[Callable[[], object]]
) -> Any:
    """The argument for one parameter that takes a stream, which is opened.

    Args:
        value: the argument as bound: a reference, a list of all items, or the parameter's default.
        bind: checks an item.
        context: of the call.
        images: decodes images that come as items.
        releases: gets what closes the stream; items that still come then are dropped.

    Raises:
        InvalidParams: the caller has a stream of that name open already.
    """
    bridge, session = context.bridge, context.session
    if isinstance(value, list):
        return _items_of(value) if bridge is None else iter(value)
    if not isinstance(value, Reference):  # the parameter's default
        return value
    token, streams = str(value), session.streams
    if token in streams.receivers:
        raise InvalidParams(f"Invalid params: the stream {token!r} is open already", {"stream": token})

    def grant(n: int) -> None:
        session.send(envelope.credit({"stream": token}, n))

    receiver = StreamReceiver(session.limits.stream_window, grant, session.server_ledger.waiting, is_granted=False)
    streams.add_receiver(token, receiver)
    # Should it be read still when the call is over, that must not look like the end of a whole stream.
    releases.append(lambda: receiver.drop(CallCancelled("Cancelled: the call that the stream belonged to is over")))
    releases.append(lambda: streams.remove_receiver(token, receiver))
    items = StreamArgument(receiver, bind, session, images)
    releases.append(items.release)
    return items if bridge is None else BlockingStream(bridge, lambda: items)
