"""An AsyncClient whose event loop runs in a thread of its own, for the calls of a sync client that need one.

Owns that thread and its end: it lives until `close`, or until the sync client is dropped. How other threads wait for
what runs there is known in `loop_bridge`, what is said on the connections to the AsyncClient.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from ..peer.deadline import INFINITE
from ..peer.marshal import Marshaller, Outgoing
from ..peer.outgoing import OutgoingCalls
from ..peer.pending import OnProgress
from ..text import get_logger
from ..wire.buffers import Encoded
from .aio import AsyncClient
from .callbacks import Callbacks
from .loop_bridge import (
    CallFuture,
    ClientStream,
    ClientSubscription,
    LoopBridge,
    LoopClosedError,
    SubmitQueue,
    SubmittedCall,
)
from .options import Settings
from .running import ServingClient
from .worker_thread import Hello, WorkerThread, threaded_greeting, with_threaded_iterators

log = get_logger("rpcstream.client")

#: Seconds that a program which ends leaves to a client that was not closed.
EXIT_TIME = 3.0
#: Seconds that handlers which are cancelled have to clean up.
CANCEL_TIME = 1.0


class LoopThread:
    """An AsyncClient in a thread, for any number of threads that wait for it.

    Args:
        callbacks: the methods that the server may call; more may be added at any time.
        greetings: run on each new connection, in order.
        marshaller: of the sync client, which makes the calls: it learns of connections that take binary frames.
    """

    def __init__(
        self, settings: Settings, callbacks: Callbacks, greetings: list[Hello], marshaller: Marshaller
    ) -> None:
        loop = asyncio.new_event_loop()
        self._client = _LoopClient(settings, callbacks, marshaller)
        self._bridge = LoopBridge(loop, self._client.address)
        self._submitted = SubmitQueue(self._bridge, self._client.begin, self._client.perform)
        self._done_callbacks = WorkerThread("rpcstream-callbacks")
        for hello in greetings:
            self.greet(hello)
        self._thread = threading.Thread(
            target=_run, args=(self._client, self._bridge, self._submitted), name="rpcstream-loop", daemon=True
        )
        self._thread.start()
        # The loop knows what users gave it, not this object: when this is dropped, the loop ends.
        self._finalizer = weakref.finalize(self, _end, self._bridge, self._client)
        self._finalizer.atexit = False
        _all.add(self)

    @property
    def is_over(self) -> bool:
        """It has ended, or runs in the process that this one was forked from."""
        return self._bridge.is_over

    @property
    def is_of_parent(self) -> bool:
        """It runs in the process that this one was forked from."""
        return self._bridge.is_of_parent

    @property
    def state(self) -> str:
        """As `AsyncClient.state`."""
        return self._client.state

    @property
    def dropped(self) -> int:
        """Replies that no call waited for."""
        return self._client.replies_dropped

    @property
    def lost(self) -> int:
        """How many connections were lost so far."""
        return self._client._pool.lost

    @property
    def registered_name(self) -> str | None:
        """As `AsyncClient.registered_name`."""
        return self._client.registered_name

    def begin(self) -> None:
        """Connect, if the connection is to be kept."""
        self._bridge.run(self._client.__aenter__)

    def greet(self, hello: Hello) -> None:
        """Run this on each connection that is made from now on."""
        self._client.on_connect(threaded_greeting(hello, self._bridge))

    # -- calls ----------------------------------------------------------------------------------------------------

    def perform(
        self, outgoing: Outgoing, seconds: float | None, on_progress: OnProgress | None, wait_for: float | None
    ) -> Any:
        """Make a call and wait for its outcome; being interrupted cancels it.

        Raises what calls of an AsyncClient raise; RuntimeError in the loop thread, which would wait for itself.
        """
        self._bridge.check_may_wait()
        future = self.submit(outgoing, seconds, on_progress, wait_for)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(
        self, outgoing: Outgoing, seconds: float | None, on_progress: OnProgress | None, wait_for: float | None
    ) -> CallFuture:
        """Make a call; the future gets its result or error.

        Raises:
            LoopClosedError: the client is closed.
        """
        outgoing.params = with_threaded_iterators(outgoing.params)
        deadline = INFINITE if seconds is None else self._bridge.loop.time() + seconds
        future = CallFuture(self._done_callbacks)
        self._submitted.put(SubmittedCall(self._bridge, outgoing, future, deadline, on_progress, wait_for, keeps=self))
        return future

    def send(self, message: Encoded, method: str, seconds: float | None, wait_for: float | None) -> None:
        """Send a message that has no reply."""
        self._bridge.call(lambda: self._client.send(message, method, seconds, wait_for), method)

    def stream(
        self,
        method: str,
        params: Any,
        timeout: float | None,
        returns: Any,
        on_progress: OnProgress | None,
        wait_for: Any,
    ) -> ClientStream:
        """The items of a streaming method."""
        params = with_threaded_iterators(params)
        stream = self._client.stream_request(
            method, params, timeout=timeout, returns=returns, on_progress=on_progress, wait_for=wait_for
        )
        return ClientStream(self._bridge, stream, method, self)

    def subscribe(self, topic: str, options: dict[str, Any]) -> ClientSubscription:
        """The values that are published to a topic."""
        return ClientSubscription(self._bridge, self._client.subscribe(topic, **options), topic, self)

    def publish(self, params: dict[str, Any], timeout: Any) -> int:
        """As `AsyncClient.publish`, and waits."""
        return self._bridge.call(lambda: self._client.publish(**params, timeout=timeout), "rpc.publish")

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
        except (LoopClosedError, CancelledError):
            pass  # it is closed

    def run(self, drain_timeout: float) -> None:
        """As `AsyncClient.run`, and waits; the client is still to be closed."""
        from ..process import StopNow, stop_on_signals

        try:
            serving = self._bridge.run(partial(self._client.begin_serving, drain_timeout))
            with stop_on_signals(serving, self._bridge.loop):
                self._bridge.run(serving.serve)
        except (LoopClosedError, CancelledError):
            pass  # it was closed
        except StopNow as now:
            raise SystemExit(128 + now.number) from None

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
        self._done_callbacks.stop()


class _LoopClient(AsyncClient):
    """An AsyncClient with the settings, the callbacks and the marshaller of a sync client."""

    perform = AsyncClient._perform
    send = AsyncClient._send

    def __init__(self, settings: Settings, callbacks: Callbacks, marshaller: Marshaller) -> None:
        self._set_up(settings, callbacks, marshaller)

    def begin(self, outgoing: Outgoing, waiter: SubmittedCall) -> OutgoingCalls | None:
        """Send a call at once; gives the calls of the connection that it was sent on.

        None if it must wait for something first, or may have to be made again.

        Raises what `OutgoingCalls.begin` raises.
        """
        if self._settings.retries or self._is_http:
            return None
        connection = self._pool.ready(waiter.bridge.loop)
        if connection is None:
            return None
        connection.calls.begin(outgoing, waiter)
        return connection.calls

    async def begin_serving(self, drain_timeout: float) -> ServingClient:
        """Begin to serve, for `run`."""
        return self._serving(drain_timeout)


# -- the thread -----------------------------------------------------------------------------------------------------


def _run(client: _LoopClient, bridge: LoopBridge, submitted: SubmitQueue) -> None:
    """Run the event loop until it is stopped. Does not refer to the LoopThread."""
    loop = bridge.loop
    try:
        loop.run_forever()
    except BaseException:  # a function of the user's raised SystemExit, and nothing less ends a loop
        log.exception("the event loop of a client broke off")
    finally:
        bridge.close()
        bridge.is_ending = True
        submitted.fail_all()
        loop.run_until_complete(_finish(client))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _finish(client: AsyncClient) -> None:
    """Close the client, then cancel what still runs, so that threads that wait for it are woken."""
    await client.close()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        done, _ = await asyncio.wait(rest, timeout=CANCEL_TIME)
        for task in done:
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not log it


def _end(bridge: LoopBridge, client: AsyncClient) -> None:
    """Let the thread end; does not wait. May be called by the garbage collector, in any thread."""
    if bridge.is_of_parent:
        _of_parent.append((bridge.loop, client))
        return
    try:
        bridge.loop.call_soon_threadsafe(bridge.stop)
    except RuntimeError:  # it has ended by itself
        pass


#: Loops of the process that this one was forked from. Closing or collecting them here would disturb them there: what a
#: loop waits for (epoll) is shared.
_of_parent: list[Any] = []

_all: weakref.WeakSet[LoopThread] = weakref.WeakSet()


def _close_all() -> None:
    """Close all loop threads when the program ends; what was sent is given a moment to leave."""
    for loop_thread in list(_all):
        loop_thread.close(EXIT_TIME)


atexit.register(_close_all)
