"""Sends the events that wait for subscribers, in the event loop, never faster than a connection takes them.

Owns when each subscriber is sent its next share. Knows neither topics nor what is dropped when a queue is full.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from ..observe.counters import Counters
from ..observe.limited_log import LimitedLog
from .subscriptions import SubscribedConnection, Subscriber

log = logging.getLogger("rpcstream.server")

#: Bytes of events that one connection is sent before all others have had as many, and before it has shown whether it
#: takes them. Enough to make the cost of a write small.
SHARE = 64 * 1024


class EventDelivery:
    """Sends the events of one server.

    Args:
        lock: guards the queues; `wake` and `schedule` are called with it.
        remove: takes a subscriber out of the table.
        max_events: events of one subscription that may wait, for the log.
    """

    def __init__(
        self, lock: threading.Lock, remove: Callable[[Subscriber], None], *, counters: Counters, max_events: int
    ) -> None:
        self._lock = lock
        self._remove = remove
        self._counters = counters
        self._max_events = max_events
        self._log = LimitedLog(log)
        #: The subscribers that events are to be sent to.
        self.due: list[Subscriber] = []
        self._is_scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0

    def use_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send in this event loop, from which it is called; a server that runs again may have another than before."""
        if self._loop is not loop:
            self._loop, self._loop_thread = loop, threading.get_ident()
            self._is_scheduled = False
            self.due.clear()

    def wake(self, subscriber: Subscriber) -> None:
        """Note that events wait for a subscriber; `schedule` comes next."""
        subscriber.is_due = True
        self.due.append(subscriber)

    def schedule(self) -> None:
        """Send in the next turn of the loop, once for however many events; may be called in any thread."""
        if self.due and not self._is_scheduled:
            assert self._loop is not None
            self._is_scheduled = True
            if threading.get_ident() == self._loop_thread:
                self._loop.call_soon(self._send)
            else:
                self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        """Send a share to each subscriber that is due; more of it in the next turn, so that this is written first."""
        with self._lock:
            self._is_scheduled = False
            due, self.due = self.due, []
        rest = [subscriber for subscriber in due if self._send_share(subscriber)]
        if rest:
            self._send_later(*rest)

    def _send_later(self, *subscribers: Subscriber) -> None:
        with self._lock:
            self.due += subscribers
            self.schedule()

    def _send_share(self, subscriber: Subscriber) -> bool:
        """Send what a subscriber takes now; return whether more is to be sent in the next turn."""
        connection, queue = subscriber.connection, subscriber.queue
        if subscriber.has_left:
            return False
        if queue.has_overflowed:
            self._disconnect(subscriber)
            return False
        if not connection.is_open:
            self._remove(subscriber)  # it takes no more requests, and ends when the last one is answered
            return False
        if connection.write_gate.stalled:
            connection.write_gate.when_open(lambda: self._send_later(subscriber))
            return False
        if not connection.write_gate.is_open:
            return True
        with self._lock:
            events = queue.take_some(SHARE)
            is_more = subscriber.is_due = bool(queue)
            self._counters.events_sent += len(events)
        for event in events:
            connection.send(event.message)
        return is_more

    def _disconnect(self, subscriber: Subscriber) -> None:
        connection: SubscribedConnection = subscriber.connection
        reason = f"it was too slow for its events (policy 'disconnect', event_queue {self._max_events})"
        address = connection.channel.address if connection.channel is not None else "a peer"
        self._log.warning(None, "closed the connection from %s: %s", address, reason)
        self._counters.closed_for_limits += 1
        self._remove(subscriber)
        connection.abort(reason)
