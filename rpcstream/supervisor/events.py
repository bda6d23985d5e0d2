"""Passes events, retained values and subscriptions between the workers of a server, through the supervisor.

`EventRelay` is the end in a worker, and `EventExchange` the one in the supervisor. Each sends by an `EventLink`, which
keeps the order of messages:

* `subscriptions`: `changes`, each `[connection, name, is_there]`. It is a question: a worker answers at once, and the
  supervisor answers when every other worker has answered or is too slow.
* `event`: `topic`, and `body`, the message as written by marshal. `keep`: the value is retained ("keep"), or the topic
  has none any more ("forget"). `to`: the workers with subscribers; null: all. The supervisor confirms a retained value
  by `kept`, and reports each worker that has no room for an event by `dropped`.

**All workers retain the same value**: the order in which the supervisor receives events decides. A worker that receives
a retained value while one of its own is on its way keeps its own, which comes later in that order.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..errors import ServerBusy
from ..events.subscriptions import Subscriber
from ..events.topics import CARRIED_COST, CARRIED_MAX, LATE_MAX, Keep, Retained, Topics
from ..text import get_logger
from ..wire.buffers import AttachedMessage, Encoded
from .channel import Channel, Message

if TYPE_CHECKING:  # which workers do not import
    from .process import WorkerProcess

log = get_logger("rpcstream.supervisor")

#: Seconds that a subscriber waits for its reply, at most, until all workers know the subscription.
SETTLE_TIME = 1.0

#: The kinds of messages of this module.
KINDS = frozenset(("subscriptions", "event", "kept", "dropped"))

#: A subscription: the connection (in a worker its number, in the supervisor the worker and the number) and the name.
Subscription = tuple[Any, str]


class EventLink:
    """Sends events, retained values, and changes of subscriptions to the other end.

    Messages are sent in a later turn of the event loop. While too many bytes wait, events are dropped, and retained
    values wait for room. A change of a subscription and its opposite cancel each other.

    Args:
        lock: held by callers of `put`, `send`, `send_retained` and `change`, which may then be in any thread.
        retained: returns the retained values.
        known: subscriptions to send at the start.
        on_kept: called with the topic of each retained value that is sent.
    """

    def __init__(
        self,
        lock: contextlib.AbstractContextManager[Any],
        retained: Callable[[], Retained],
        known: Iterable[Subscription] = (),
        on_kept: Callable[[str], object] = lambda topic: None,
    ) -> None:
        self.channel: Channel | None = None
        self._lock = lock
        self._retained = retained
        self._on_kept = on_kept
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_scheduled = False
        #: Messages for the next turn, and the bytes of their events.
        self._out: list[Message] = []
        self._out_size = 0
        #: Topics whose retained value is sent when there is room.
        self._late: dict[str, None] = {}
        #: Whether a subscription is there now.
        self._changes: dict[Subscription, bool] = dict.fromkeys(known, True)
        #: Sends the changes so far; and sends those that come meanwhile.
        self._telling: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    def start(self, channel: Channel) -> None:
        """Send by this channel from now on."""
        self._loop = asyncio.get_running_loop()
        self.channel = channel
        self._schedule()

    # -- under the lock -----------------------------------------------------------------------------------------------

    def put(self, event: Message) -> bool:
        """Send an event; False if there was no room."""
        topic, is_kept = event["topic"], bool(event["keep"])
        waiting = self._out_size + (self.channel.waiting_size if self.channel is not None else 0)
        if waiting and waiting + size_of(event) > CARRIED_MAX:
            if is_kept and len(self._late) < LATE_MAX:
                self._late[topic] = None
            elif is_kept:
                log.warning("too many retained events: workers may have different values")
            return False
        if is_kept:
            self._late.pop(topic, None)
            self._on_kept(topic)
        self._out_size += size_of(event)
        self.send(event)
        return True

    def send(self, message: Message) -> None:
        """Send any message, behind the events before it."""
        self._out.append(message)
        self._schedule()

    def send_retained(self, topics: Iterable[str] = ()) -> None:
        """Send the retained values of these topics, and those that wait for room, as far as there is room."""
        self._late.update(dict.fromkeys(topics))
        while self._late:
            topic = next(iter(self._late))
            value = self._retained().messages.get(topic)
            if not self.put(packed_event(topic, value, "forget" if value is None else "keep", None)):
                break

    def change(self, subscription: Subscription, is_there: bool) -> None:
        """Send that a subscription has begun or ended."""
        if self._changes.pop(subscription, None) is None:
            self._changes[subscription] = is_there
        self._schedule()

    def _schedule(self) -> None:
        if self._loop is not None and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._flush)

    # -- in the event loop --------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        assert self.channel is not None
        with self._lock:
            self._is_scheduled = False
            messages, self._out, self._out_size = self._out, [], 0
        for message in messages:
            self.channel.send(message)
        if self._late and not self.channel.waiting_size:
            with self._lock:
                self.send_retained()
        if self._changes:
            self.tell()

    def tell(self) -> asyncio.Task[None]:
        """Send the changes, one message at a time; done when the other end has answered or is closed."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._tell_after(self._telling))
        return self._next

    async def _tell_after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        self._telling, self._next = self._next, None
        with self._lock:
            changes, self._changes = self._changes, {}
        if changes and self.channel is not None:
            told = [(*subscription, is_there) for subscription, is_there in changes.items()]
            await asyncio.wait({self.channel.ask({"type": "subscriptions", "changes": told})})


# -- in a worker ------------------------------------------------------------------------------------------------------


class EventRelay:
    """Carries the events of a worker to the others: a `Carrier`.

    Events before `start` go to all workers, because their subscriptions are not known yet.
    """

    def __init__(self) -> None:
        self._topics: Topics
        self._link: EventLink
        #: By topic: own retained values that the supervisor has not confirmed.
        self._unconfirmed: Counter[str] = Counter()

    def join(self, topics: Topics) -> None:
        self._topics = topics
        self._link = EventLink(
            topics.lock, lambda: topics.retained, on_kept=lambda topic: self._unconfirmed.update((topic,))
        )

    # -- for the topics, under their lock and in any thread -----------------------------------------------------------

    def wants(self, topic: str) -> bool:
        return self._link.channel is None or self._topics.others.has(topic)

    def publish(self, topic: str, message: Encoded | None, keep: Keep) -> int:
        others = self._topics.others
        found = {connection for name in others.names_for(topic) for connection in others.by_topic[name]}
        to = None if keep or self._link.channel is None else list({worker for worker, _ in found})
        if to == []:
            return 0
        if not self._link.put(packed_event(topic, message, keep, to)):
            self._topics.count_dropped()
            return 0
        return len(found)

    def changed(self, subscriber: Subscriber, name: str) -> None:
        self._link.change((subscriber.number, name), name in subscriber.topics)

    async def settled(self) -> None:
        if self._link.channel is not None:
            await asyncio.wait({self._link.tell()}, timeout=2 * SETTLE_TIME)

    # -- for the channel, in the event loop ---------------------------------------------------------------------------

    def start(self, channel: Channel) -> None:
        """Send by this channel from now on."""
        with self._topics.lock:
            self._link.start(channel)

    def on_room(self) -> None:
        """The channel has sent all that waited."""
        with self._topics.lock:
            self._link.send_retained()

    def on_message(self, message: Message) -> None:
        """Handle a message of one of `KINDS`."""
        topics, kind = self._topics, message["type"]
        with topics.lock:
            if kind == "event":
                # An own retained value on its way comes later in the order of the supervisor.
                keep: Keep = "" if self._unconfirmed[message["topic"]] else message["keep"]
                topics.receive(message["topic"], unpacked_event(message), keep)
            elif kind == "kept":
                self._confirm(message["topic"])
            elif kind == "dropped":
                topics.count_dropped()
            else:
                for connection, name, is_there in message["changes"]:
                    change = topics.others.add if is_there else topics.others.remove
                    change(tuple(connection), name)
        if kind == "subscriptions" and self._link.channel is not None:
            self._link.channel.answer(message, {})

    def _confirm(self, topic: str) -> None:
        self._unconfirmed[topic] -= 1
        if not self._unconfirmed[topic]:
            del self._unconfirmed[topic]


# -- in the supervisor ------------------------------------------------------------------------------------------------


class EventExchange:
    """Passes events and subscriptions on between the workers."""

    def __init__(self) -> None:
        self._links: dict[WorkerProcess, EventLink] = {}
        self._subscriptions: dict[WorkerProcess, set[Subscription]] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._retained = Retained(sys.maxsize)  # the workers limit the number of topics

    def add(self, worker: WorkerProcess) -> None:
        """Pass events on to a worker that is ready, and send it the subscriptions and retained values."""
        known = [
            ((other.number, connection), name)
            for other, subscriptions in self._subscriptions.items()
            for connection, name in subscriptions
        ]
        self._subscriptions[worker] = set()
        link = self._links[worker] = EventLink(contextlib.nullcontext(), lambda: self._retained, known)
        link.start(worker.channel)
        link.send_retained(self._retained.messages)

    def remove(self, worker: WorkerProcess) -> None:
        """Forget a worker whose process has ended, and tell the others."""
        if self._links.pop(worker, None) is not None:
            ended = self._subscriptions.pop(worker)
            self._change(worker, ended, [(*subscription, False) for subscription in ended])

    def on_room(self, worker: WorkerProcess) -> None:
        """A worker has taken all that was sent to it."""
        if worker in self._links:
            self._links[worker].send_retained()

    def on_message(self, worker: WorkerProcess, message: Message) -> None:
        """Handle a message of one of `KINDS`."""
        if worker not in self._links:
            return
        if message["type"] == "event":
            self._pass_on(worker, message)
        else:
            told = self._change(worker, self._subscriptions[worker], message["changes"])
            answer = asyncio.get_running_loop().create_task(self._answer(worker, message, told))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)

    def _pass_on(self, source: WorkerProcess, message: Message) -> None:
        keep, to, answers = message["keep"], message.pop("to"), self._links[source]
        if keep:
            self._keep(message)
            answers.send({"type": "kept", "topic": message["topic"]})
        for worker, link in self._links.items():
            if worker is not source and (to is None or worker.number in to) and not link.put(message):
                answers.send({"type": "dropped"})

    def _keep(self, message: Message) -> None:
        topic, value = message["topic"], unpacked_event(message)
        if value is None or message["keep"] == "forget":
            self._retained.forget(topic)
            return
        try:
            self._retained.keep(topic, value)
        except ServerBusy as error:  # two workers have kept the last ones for which there was room
            log.warning("a value is not retained for workers that start later: %s", error)

    def _change(
        self, source: WorkerProcess, subscriptions: set[Subscription], changes: Iterable[Any]
    ) -> list[asyncio.Task[None]]:
        """Note changes of a worker's subscriptions; returns the tasks that send them to the others."""
        others = [link for worker, link in self._links.items() if worker is not source]
        for connection, name, is_there in list(changes):
            change = subscriptions.add if is_there else subscriptions.discard
            change((connection, name))
            for other in others:
                other.change(((source.number, connection), name), is_there)
        return [other.tell() for other in others]

    async def _answer(self, worker: WorkerProcess, message: Message, told: list[asyncio.Task[None]]) -> None:
        """Answer when the others have been told, or some are too slow."""
        if told:
            await asyncio.wait(told, timeout=SETTLE_TIME)
        worker.channel.answer(message, {})


# -- messages ---------------------------------------------------------------------------------------------------------


def size_of(message: Message) -> int:
    """Bytes of memory that a waiting event takes."""
    return CARRIED_COST + len(message["body"])


def packed_event(topic: str, message: Encoded | None, keep: Keep, to: list[int] | None) -> Message:
    """Make the message of an event for another process. `message` None: nothing is sent to subscribers."""
    parts: Any = message if message is None else bytes(message)
    if isinstance(message, AttachedMessage):
        parts = message.pieces, [bytes(each) for each in message.payloads]
    return {"type": "event", "topic": topic, "keep": keep, "to": to, "body": marshal.dumps(parts)}


def unpacked_event(message: Message) -> Encoded | None:
    """The message of an event from another process."""
    parts = marshal.loads(message["body"])
    return AttachedMessage(*parts, is_secured=True) if isinstance(parts, tuple) else parts
