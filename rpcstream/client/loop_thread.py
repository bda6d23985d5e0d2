"""The conversation of a sync client: an AsyncClient whose event loop runs in a thread of its own.

Owns that thread, its end, and the ways of other threads into it. What is said there is the AsyncClient's matter. The
thread lives until `close`, or until nobody refers to the conversation any more.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from ..errors import ConnectionLost
from ..peer.marshal import Outgoing
from ..peer.outgoing import OnProgress
from ..text import get_logger
from ..wire.buffers import Encoded
from .aio import AsyncClient
from .bridge import ClientBridge, ClientStream, ClientSubscription, Closed
from .callbacks import Callbacks
from .futures import CallFuture
from .options import Settings
from .stepped import Hello, greeting, stepped_in_threads
from .sync_pool import generation

log = get_logger("rpcstream.client")

#: Seconds that a program which ends leaves to a client that nobody has closed.
EXIT_TIME = 3.0
#: Seconds that handlers which are cancelled have for their last words.
CANCEL_TIME = 1.0


class LoopThread:
    """One conversation, for any number of threads that wait for it.

    Args:
        offered: the methods that the server may call; more may be added at any time.
        greetings: run on each new connection, in order.
    """

    def __init__(self, settings: Settings, offered: Callbacks, greetings: list[Hello]) -> None:
        loop = asyncio.new_event_loop()
        self._client = _Conversation(settings, offered)
        self._bridge = ClientBridge(loop, self._client.address)
        for hello in greetings:
            self.greet(hello)
        self._thread = threading.Thread(
            target=_run, args=(loop, self._client, self._bridge), name="rpcstream-conversation", daemon=True
        )
        self._thread.start()
        # The loop knows what users gave it, not this object: when nobody else does either, it ends.
        self._finalizer = weakref.finalize(self, _end, loop, self._client, self._bridge.made_in)
        self._finalizer.atexit = False
        _all.add(self)

    @property
    def is_over(self) -> bool:
        """It has ended, or went on in the process that this one was forked from."""
        return self._bridge.is_over

    @property
    def is_of_parent(self) -> bool:
        """It goes on in the process that this one was forked from."""
        return self._bridge.is_of_parent

    @property
    def state(self) -> str:
        """As `AsyncClient.state`."""
        return self._client.state

    @property
    def dropped(self) -> int:
        """Replies that nobody waited for."""
        return self._client.replies_dropped

    def begin(self) -> None:
        """Connect, if the connection is to be kept."""
        self._bridge.run(self._client.__aenter__)

    def greet(self, hello: Hello) -> None:
        """Run this on each connection that is made from now on."""
        self._client.on_connect(greeting(hello, self._bridge))

    def perform(self, outgoing: Outgoing, seconds: float | None, on_progress: OnProgress | None) -> Any:
        """Make a call and wait for its outcome; being interrupted cancels it.

        Raises what calls of an AsyncClient raise.
        """
        outgoing.params = stepped_in_threads(outgoing.params)
        return self._bridge.call(lambda: self._client._perform(outgoing, seconds, on_progress), outgoing.method)

    def send(self, message: Encoded, method: str, seconds: float | None) -> None:
        """Send something that has no answer."""
        self._bridge.call(lambda: self._client._send(message, method, seconds), method)

    def submit(
        self, outgoing: Outgoing, seconds: float | None, on_progress: OnProgress | None, future: CallFuture
    ) -> None:
        """Make a call whose outcome, of whatever kind, the future gets."""
        outgoing.params = stepped_in_threads(outgoing.params)

        async def perform() -> Any:  # refers to this object, which so lives as long as the call
            return await self._client._perform(outgoing, seconds, on_progress)

        running = self._bridge.submit(perform)
        once: list[Callable[[], bool]] = [running.cancel]
        future.forget = lambda: bool(once) and once.pop()()
        running.add_done_callback(partial(_hand_over, future, self._bridge.lost(outgoing.method)))

    def stream(
        self, method: str, params: Any, timeout: float | None, returns: Any, on_progress: OnProgress | None
    ) -> ClientStream:
        """The items of a streaming method."""
        stream = self._client._streamed(method, stepped_in_threads(params), timeout, returns, on_progress)
        return ClientStream(self._bridge, stream, method, self)

    def subscribe(self, topic: str, options: dict[str, Any]) -> ClientSubscription:
        """The values that are published to a topic."""
        return ClientSubscription(self._bridge, self._client.subscribe(topic, **options), topic, self)

    @property
    def registered_name(self) -> str | None:
        """As `AsyncClient.registered_name`."""
        return self._client.registered_name

    def offer(self, *, shared: bool) -> list[str]:
        """As `AsyncClient.offer`, and waits."""
        return self._bridge.call(lambda: self._client.offer(shared=shared), "rpc.register")

    def withdraw(self, names: tuple[str, ...]) -> list[str]:
        """As `AsyncClient.withdraw`, and waits."""
        return self._bridge.call(lambda: self._client.withdraw(*names), "rpc.unregister")

    def wait_closed(self) -> None:
        """As `AsyncClient.wait_closed`, and waits; being interrupted leaves the client as it is."""
        try:
            self._bridge.run(self._client.wait_closed)
        except (Closed, CancelledError):
            pass  # it is closed

    def close(self, seconds: float | None = None) -> None:
        """End the connections and the thread; what waits fails with ConnectionLost.

        Args:
            seconds: wait so long for that at most. (The event loop's own thread does not wait.)
        """
        ending = None if self._bridge.is_of_parent else self._finalizer.detach()
        if ending is None:
            return
        self._bridge.close()
        _end(*ending[2])
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)


class _Conversation(AsyncClient):
    """An AsyncClient with the settings and the offered methods of a sync client."""

    def __init__(self, settings: Settings, offered: Callbacks) -> None:
        self._set_up(settings, offered)


def _hand_over(future: CallFuture, lost: ConnectionLost, running: Future[Any]) -> None:
    """A call is over: the future that its caller has gets its outcome."""
    if running.cancelled():
        if not future.cancelled():  # the conversation has ended
            future.reject(lost)
    elif future.set_running_or_notify_cancel():
        error = running.exception()
        if error is None:
            future.set_result(running.result())
        else:
            future.set_exception(error)


# -- the thread -----------------------------------------------------------------------------------------------------


def _run(loop: asyncio.AbstractEventLoop, client: AsyncClient, bridge: ClientBridge) -> None:
    """What the thread does. It does not refer to the Background."""
    try:
        loop.run_forever()
    except BaseException:  # a function of the user's raised SystemExit, and nothing less ends a loop
        log.exception("a client's conversation broke off")
    finally:
        bridge.close()
        loop.run_until_complete(_finish(client))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _finish(client: AsyncClient) -> None:
    """Close the client, then cancel what still runs; threads that wait for it learn it so."""
    await client.close()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        done, _ = await asyncio.wait(rest, timeout=CANCEL_TIME)
        for task in done:
            if not task.cancelled():
                task.exception()  # nobody else looks at it any more


def _end(loop: asyncio.AbstractEventLoop, client: AsyncClient, made_in: int) -> None:
    """Let the thread end; does not wait. May be called by the garbage collector, in any thread."""
    if made_in != generation():
        _of_parent.append((loop, client))
        return
    try:
        loop.call_soon_threadsafe(loop.stop)
    except RuntimeError:  # it has ended by itself
        pass


#: Loops of the process that this one was forked from. Closing or collecting them here would disturb them there: what a
#: loop waits for (epoll) is shared.
_of_parent: list[Any] = []

_all: weakref.WeakSet[LoopThread] = weakref.WeakSet()


def _close_all() -> None:
    """The program ends: what was sent is given a moment to leave."""
    for background in list(_all):
        background.close(EXIT_TIME)


atexit.register(_close_all)
