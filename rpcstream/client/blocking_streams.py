"""Streams and subscriptions of a sync client, read in a thread that waits for each item."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Self

from ..peer.blocking import BlockingStream
from ..peer.stream import Stream
from .portal import LoopClosedError, LoopThread
from .subscriptions import Subscription


class ClientStream(BlockingStream):
    """The items of a streaming method: `for item in client.stream.name(…)`. For one thread at a time.

    The call is sent with the first item that is wanted, or by `with`. Leaving the loop early, `close` and the end of
    the `with` block stop the generator at the server.

    Args:
        thread: runs the stream; it lives as long as this object.
    """

    def __init__(self, thread: LoopThread, stream: Stream | Subscription, name: str) -> None:
        super().__init__(thread.portal, lambda: stream)
        self._thread = thread
        self._portal = thread.portal
        self._name = name

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except (LoopClosedError, CancelledError):
            raise self._ended() from None
        except (KeyboardInterrupt, SystemExit):
            self.close()  # its traceback keeps the stream alive, and so the generator at work
            raise

    def __enter__(self) -> Self:
        self._portal.call(self._open, self._name)
        return self

    def close(self) -> None:
        """Stop the generator at the server, unless it has ended. Does not wait for that."""
        if not self._portal.is_over:
            super().close()

    def __repr__(self) -> str:
        return f"<blocking {self._stream or self._make()!r}>"

    def _ended(self) -> Exception:
        """The exception for a reader, once the event loop has ended."""
        return self._portal.lost(self._name)

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

    def _ended(self) -> Exception:
        return StopIteration()
