"""Streams as parameters: `frames: AsyncIterator[NDArray[np.uint8]]` in a handler's signature.

Owns what such a hint takes from the wire (a stream, or an array of all items), and the iterator that the handler gets.
Does not know how items are sent; that is in `peer`.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin

from ..codec import TAG_KEY, Codec
from ..codec.constraints import read
from ..codec.fields import expanded
from ..codec.hints import item_hint, lower
from ..codec.lowered import union_of, with_schema
from ..codec.markers import converter, marker
from ..codec.schema import Components, schema_of
from ..errors import InvalidParams
from ..peer.blocking import BlockingStream, Bridge
from ..peer.flow_control import StreamReceiver
from ..peer.state import ConversationState
from ..peer.uploads import STREAM_TAG
from ..wire import envelope
from .arguments import ArgumentsWithImages
from .image_decoding import ImageDecoder, ImageMemory

_ASYNC = (AsyncIterator, AsyncIterable, AsyncGenerator)
_BLOCKING = (Iterator, Generator)

#: Checks the params of an `$/item` (`{"stream": token, "value": …}`), as `Signature.bind` does.
BindItem = Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a stream in place of its items.

    Attributes:
        token: the name that the caller gave the stream.
    """

    token: str


def stream_hint(hint: Any, codec: Codec, *, in_thread: bool) -> tuple[Any, Any] | None:
    """Read the hint of a parameter that takes the items of a stream; None if it takes none.

    Args:
        hint: of the parameter; it may have `None` as another choice, and descriptions.
        in_thread: the handler runs in a thread, where a plain iterator may wait for the next item.

    Returns:
        The hint of an item; and that of the parameter itself, as msgspec can check it.

    Raises:
        TypeError: a stream inside of another hint, or with constraints as a whole, which could not be checked.
    """
    plain, metadata, is_optional = expanded(hint), [], False
    while True:
        if get_origin(plain) is Annotated:
            plain, *more = get_args(plain)
            metadata += more
        elif len(others := [each for each in _members(plain) if each is not type(None)]) == 1:
            plain, is_optional = expanded(others[0]), True
        else:
            break
    if (get_origin(plain) or plain) not in (_ASYNC + _BLOCKING if in_thread else _ASYNC):
        if _names_async(hint):
            raise TypeError(
                "a stream inside of another hint cannot be read: a parameter is a stream as a whole, AsyncIterator[T] "
                "or AsyncIterator[T] | None"
            )
        return None
    found = read(metadata, codec.ignored_metadata)
    if found.constraints:
        raise TypeError("a stream as a whole cannot have a constraint; constrain its items")
    made = _lowered(plain, codec)
    if found.schema:
        made = with_schema(made, found.schema)
    if is_optional:
        made = with_schema(union_of([made, type(None)]), {"x-stream": True})
    return item_hint(plain), made


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()


def _names_async(hint: Any) -> bool:
    return (get_origin(hint) or hint) in _ASYNC or any(map(_names_async, get_args(hint)))


def _lowered(hint: Any, codec: Codec) -> Any:
    """A reference to a stream, or a list of all items."""
    items = lower(list[item_hint(hint)], codec)  # type: ignore[misc]
    convert = converter(items)

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            return convert(value)
        token = value.get("id")
        if value.get(TAG_KEY) != STREAM_TAG or type(token) is not str or len(value) != 2:
            raise ValueError('Expected an array, or a stream: {"$type": "stream", "id": "…"}')
        return Reference(token)

    def schema(components: Components) -> dict[str, Any]:
        return {**schema_of(items, components), "x-stream": True}

    return marker("stream", decode, schema)


#: Bytes of JSON of an item that may take a millisecond to check.
LONG_ITEM = 64 * 1024


class StreamArgument(AsyncIterator[Any]):
    """Iterates over the items of a stream, and checks each. For one reader.

    Raises:
        InvalidParams: while it is read: an item does not fit the hint.
        RpcError, ConnectionLost: while it is read: the caller ended the stream with an error, or is gone.
    """

    def __init__(
        self, receiver: StreamReceiver, bind: BindItem, session: ConversationState, images: ImageDecoder
    ) -> None:
        self._receiver = receiver
        self._bind = bind
        self._session = session
        self._images = images
        #: Of the images in the item that the reader has now.
        self._memory: ImageMemory | None = None

    def __aiter__(self) -> StreamArgument:
        return self

    async def __anext__(self) -> Any:
        self._release()
        params, line = await self._receiver.get()
        if len(line) >= LONG_ITEM:
            await asyncio.sleep(0)  # others have their turn between items that take long to check
        try:
            (_, value), _ = self._bind(params, line)
        except ArgumentsWithImages as found:
            arguments, self._memory = await self._images.arguments(found, self._session, params, line)
            (_, value), _ = arguments
        return value

    def _release(self) -> None:
        if self._memory is not None:
            self._memory.release()
            self._memory = None

    async def aclose(self) -> None:
        """Stop reading: items that still come are dropped."""
        self._release()
        self._receiver.end()
        self._receiver.clear()


class _ListArgument(AsyncIterator[Any]):
    """Iterates over the items of a list, for a caller that sent all items at once."""

    def __init__(self, items: list[Any]) -> None:
        self._items = iter(items)

    def __aiter__(self) -> _ListArgument:
        return self

    async def __anext__(self) -> Any:
        try:
            return next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        self._items = iter(())


def opened(
    value: Any, bind: BindItem, session: ConversationState, bridge: Bridge | None, images: ImageDecoder
) -> tuple[Any, str | None]:
    """Open the stream for one parameter.

    Args:
        value: the argument as bound: a reference, a list of all items, or the parameter's default.
        bind: checks an item.
        session: on which the stream comes.
        bridge: to the event loop, for a handler that runs in a thread.
        images: decodes images that come as items.

    Returns:
        The argument for the handler, and the token of the stream; None if it is none.

    Raises:
        InvalidParams: the caller has a stream of that name open already.
    """
    if not isinstance(value, Reference | list):  # the parameter's default
        return value, None
    if isinstance(value, list):
        return (_ListArgument(value) if bridge is None else iter(value)), None
    token, streams = value.token, session.streams
    if token in streams.receivers:
        raise InvalidParams(f"Invalid params: the stream {token!r} is open already", {"stream": token})

    def grant(n: int) -> None:
        session.send(envelope.credit({"stream": token}, n))

    items = StreamArgument(streams.open_receiver(token, session.limits.stream_window, grant), bind, session, images)
    return (items if bridge is None else BlockingStream(bridge, lambda: items)), token


def close(session: ConversationState, tokens: list[str]) -> None:
    """Close the streams of a handler that is done; items that still come are dropped."""
    for token in tokens:
        session.streams.close_receiver(token)
