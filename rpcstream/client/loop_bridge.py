"""From other threads into a client's event loop, until that ends: coroutines, streams and subscriptions.

Owns what a thread is told when the loop has ended, or runs in another process. Knows nothing of what runs in the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from ..errors import ConnectionLost
from ..peer.blocking import BlockingStream, Bridge
from ..peer.stream import Stream
from .subscriptions import Subscription
from .sync_pool import CLOSED, generation

T = TypeVar("T")


class LoopClosed(RuntimeError):
    """The event loop has ended, or runs in another process."""


class LoopBridge(Bridge):
    """A bridge that can be closed: what comes later is refused, and not left waiting for ever.

    Args:
        address: of the server, for errors.

    Attributes:
        lock: while it is held, the event loop does not end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, address: str) -> None:
        super().__init__(loop)
        self.address = address
        self.made_in = generation()
        self._is_closed = False
        self.lock = threading.RLock()

    @property
    def is_of_parent(self) -> bool:
        """The event loop runs in the process that this one was forked from."""
        return self.made_in != generation()

    @property
    def is_over(self) -> bool:
        """Nothing can be run any more."""
        return self._is_closed or self.is_of_parent

    def close(self) -> None:
        """Take nothing more; when this returns, everything that was taken is known to the event loop."""
        with self.lock:
            self._is_closed = True

    def check_open(self) -> None:
        """Raises LoopClosed if the event loop has ended, or runs in another process. To be called with `lock` held."""
        if self.is_of_parent:
            raise LoopClosed("this belongs to the process that this one was forked from")
        if self._is_closed:
            raise LoopClosed("the client is closed")

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        with self.lock:
            self.check_open()
            return super().submit(make)

    def call(self, make: Callable[[], Coroutine[Any, Any, T]], method: str) -> T:
        """As `run`, for a call: if the loop ends meanwhile, the connection of the call is lost."""
        try:
            return self.run(make)
        except CancelledError:
            raise self.lost(method) from None

    def lost(self, method: str) -> ConnectionLost:
        """The error of a call that the end of the loop leaves without a reply."""
        return ConnectionLost(CLOSED, method=method, address=self.address)


class ClientStream(BlockingStream):
    """The items of a streaming method: `for item in client.stream.name(…)`. For one thread at a time.

    The call is sent with the first item that is wanted, or by `with`. Leaving the loop early, `close` and the end of
    the `with` block stop the generator at the server.

    Args:
        keeps: an object that lives as long as this one.
    """

    def __init__(self, bridge: LoopBridge, stream: Stream | Subscription, name: str, keeps: object) -> None:
        super().__init__(bridge, lambda: stream)
        self._client_bridge = bridge
        self._name = name
        self._keeps = keeps

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except (LoopClosed, CancelledError):
            raise self._ended() from None
        except (KeyboardInterrupt, SystemExit):
            self.close()  # its traceback keeps the stream alive, and so the generator at work
            raise

    def __enter__(self) -> ClientStream:
        self._client_bridge.call(self._open, self._name)
        return self

    def close(self) -> None:
        """Stop the generator at the server, unless it has ended. Does not wait for that."""
        if not self._client_bridge.is_over:
            super().close()

    def __repr__(self) -> str:
        return f"<blocking {self._stream or self._make()!r}>"

    def _ended(self) -> Exception:
        """The exception for a reader, once the event loop has ended."""
        return self._client_bridge.lost(self._name)

    async def _open(self) -> None:
        self._stream = self._make()
        await self._stream.__aenter__()


class ClientSubscription(ClientStream):
    """The values that are published to a topic: `for value in client.subscribe("ticks")`. As `Subscription`, and waits.

    The loop ends with `client.close()`, which another thread may call.
    """

    _make: Callable[[], Subscription]

    @property
    def topic(self) -> str:
        """Its name, or the pattern."""
        return self._make().topic

    def with_topics(self) -> ClientSubscription:
        """Give pairs from now on, of the topic that an event was published to and its value: for patterns. `self`."""
        self._make().with_topics()
        return self

    @property
    def dropped(self) -> int:
        """Events that were dropped here, since the reader was too slow."""
        return self._make().dropped

    @property
    def reconnects(self) -> int:
        """How often the subscription was made again: events of the time between are missing."""
        return self._make().reconnects

    def __enter__(self) -> ClientSubscription:
        super().__enter__()
        return self

    def _ended(self) -> Exception:
        return StopIteration()
