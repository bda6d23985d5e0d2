"""Streams as parameters: `frames: AsyncIterator[NDArray[np.uint8]]` in a handler's signature.

Owns what such a hint takes from the wire (a stream, or an array of all items), and what the handler gets for it. How
items travel is the session's matter.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, get_origin

from ..codec import TAG_KEY, Codec
from ..codec.hints import item_hint, lower
from ..codec.markers import converter, marker
from ..codec.schema import schema_of
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
    """What came in place of the items: the name that the caller gave the stream."""

    token: str


def is_stream_hint(hint: Any, *, in_thread: bool) -> bool:
    """Does a parameter with this hint take its items one by one?

    Args:
        in_thread: the handler runs in a thread, where a plain iterator may wait for the next item.
    """
    return (get_origin(hint) or hint) in (_ASYNC + _BLOCKING if in_thread else _ASYNC)


def lowered(hint: Any, codec: Codec) -> Any:
    """The hint for the parameter itself, as msgspec can check it: a reference, or a list of all items."""
    items = lower(list[item_hint(hint)], codec)  # type: ignore[misc]
    convert = converter(items)

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            return convert(value)
        token = value.get("id")
        if value.get(TAG_KEY) != STREAM_TAG or type(token) is not str or len(value) != 2:
            raise ValueError('Expected an array, or a stream: {"$type": "stream", "id": "…"}')
        return Reference(token)

    def schema(components: dict[str, Any]) -> dict[str, Any]:
        return {**schema_of(items, components), "x-stream": True}

    return marker("stream", decode, schema)


class StreamParameters(AsyncIterator[Any]):
    """The items of a stream, each checked as it is wanted. For one reader.

    Raises, while it is read:
        InvalidParams: an item does not fit the hint.
        RpcError, ConnectionLost: the caller broke off.
    """

    def __init__(
        self, receiver: StreamReceiver, bind: BindItem, session: ConversationState, images: ImageDecoder
    ) -> None:
        self._receiver = receiver
        self._bind = bind
        self._session = session
        self._images = images
        #: Of the item that the reader has now.
        self._lease: ImageMemory | None = None

    def __aiter__(self) -> StreamParameters:
        return self

    async def __anext__(self) -> Any:
        self._release()
        params, line = await self._receiver.get()
        try:
            (_, value), _ = self._bind(params, line)
        except ArgumentsWithImages as found:
            arguments, self._lease = await self._images.arguments(found, self._session, params, line)
            (_, value), _ = arguments
        return value

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    async def aclose(self) -> None:
        """No more items are wanted."""
        self._release()
        self._receiver.end()
        self._receiver.clear()


class _Given(AsyncIterator[Any]):
    """The same for a caller that sent all items at once."""

    def __init__(self, items: list[Any]) -> None:
        self._items = iter(items)

    def __aiter__(self) -> _Given:
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
    """What the handler gets for a parameter, and the name of the stream, which is to be closed after it.

    Args:
        bridge: of a handler that runs in a thread.
        images: where those are decoded that come as items.

    Raises:
        InvalidParams: the caller has a stream of that name open.
    """
    if not isinstance(value, Reference | list):  # the parameter's default
        return value, None
    if isinstance(value, list):
        return (_Given(value) if bridge is None else iter(value)), None
    token, streams = value.token, session.streams
    if token in streams.receivers:
        raise InvalidParams(f"Invalid params: the stream {token!r} is open already", {"stream": token})

    def grant(n: int) -> None:
        session.send(envelope.credit({"stream": token}, n))

    items = StreamParameters(streams.open_receiver(token, session.limits.stream_window, grant), bind, session, images)
    return (items if bridge is None else BlockingStream(bridge, lambda: items)), token


def close(session: ConversationState, tokens: list[str]) -> None:
    """The handler is done; what still comes is dropped."""
    for token in tokens:
        session.streams.close_receiver(token)
