"""Events between the processes of one server: who has subscribed in the others, and what is sent to them.

Owns this process's view of the others' subscriptions, what it tells them of its own, and what it sends, all within
bounds. The processes are joined by one in their middle (`supervisor.event_exchange`), over a link that keeps the order
of messages; this module knows that link as a function that sends.

Messages, as JSON, some with a body:

* `subscriptions`: `changes`, each `[connection, topic, denied]` for one that began, with null for one that ended, or
  `[connection]` for a connection that has none left. `reset`: all that was told before is over. With `ask` the other
  end answers: a process `seen`, and the middle `settled` when every process has seen it, or is too slow.
* `event`: `topic`, and as its body the message. `keep`: it becomes the last value ("keep"), or there is none any more
  ("forget"). `to`: the processes that have subscribers; null for all. To the sender of one with `keep` the middle says
  `kept`; and `dropped` to that of one for which another process had no room.
* `lost`: a process that has ended. `binary`: some peer reads binary frames.

**The same last value everywhere**: the order in which the middle gets events decides. A process that receives a last
value while one of its own is on its way there keeps its own, which comes later in that order.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol

from ..errors import ServerBusy
from ..limits import Limits
from ..text import get_logger
from ..wire.buffers import AttachedMessage, Encoded
from .subscriptions import Subscriber, Subscriptions, SubscriptionTable

log = get_logger("rpcstream.server")

Message = dict[str, Any]

#: What becomes of the last value of a topic: nothing, this is it, there is none any more.
Keep = Literal["", "keep", "forget"]

#: Bytes of events that wait for one process, or for the one in the middle. One single event may have more.
WAITING_MAX = 32 * 1024 * 1024

#: Bytes of memory that an event takes there besides its message.
COST = 500

#: Topics whose last value is sent later, since there was no room for it.
LATE_MAX = 20_000

#: Changes of subscriptions that are kept one by one for a process that is slow; with more it is told all anew.
CHANGES_MAX = 10_000

#: Changes in one message.
CHUNK = 1000

#: Seconds that a subscriber waits for its reply, at most, until all processes know of the subscription.
SETTLE_TIME = 1.0

#: The kinds of messages of this module; `seen` goes to the middle only.
KINDS = frozenset(("subscriptions", "seen", "settled", "event", "kept", "dropped", "lost", "binary"))

#: A connection: in a process its number, in the middle the process and the number.
Key = Any


class SubscriptionChanges:
    """The changes of subscriptions that another process is to be told, combined, and bounded."""

    def __init__(self) -> None:
        #: By connection: what has changed, by topic: what is denied, or None for one that ended. None: all ended.
        self._changes: dict[Key, dict[str, Iterable[str] | None] | None] = {}
        #: The connections that the other process has been told of.
        self._told: set[Key] = set()
        self._count = 0
        self._is_behind = False

    def __bool__(self) -> bool:
        return self._is_behind or bool(self._changes)

    def add(self, key: Key, topic: str, denied: Iterable[str]) -> None:
        """Tell of a subscription."""
        self._change(key, topic, denied)

    def remove(self, key: Key, topic: str) -> None:
        """Tell of the end of a subscription."""
        self._change(key, topic, None)

    def leave(self, key: Key) -> None:
        """Tell that a connection has no subscriptions any more."""
        self._count -= len(self._changes.pop(key, None) or ())
        if key in self._told and not self._is_behind:
            self._changes[key] = None
            self._grow()

    def forget(self, keys: Iterable[Key]) -> None:
        """Tell nothing of these connections, which the other process knows to be gone."""
        for key in keys:
            self._count -= len(self._changes.pop(key, None) or ())
            self._told.discard(key)

    def take(self, everything: Callable[[], Mapping[Key, Mapping[str, Iterable[str]]]]) -> list[Message]:
        """Take the messages with what has changed, one at least; the last one asks for an answer.

        Args:
            everything: gives all subscriptions, by connection, for a process that is told all anew.
        """
        reset, self._is_behind = self._is_behind, False
        if reset:
            self._changes = {key: dict(topics) for key, topics in everything().items() if topics}
            self._told.clear()
        changes: list[Any] = []
        for key, topics in self._changes.items():
            if topics is None:
                self._told.discard(key)
                changes.append([key])
            else:
                self._told.add(key)
                changes += [[key, topic, denied] for topic, denied in topics.items()]
        self._changes, self._count = {}, 0
        messages = _in_chunks(changes)
        if reset:
            messages[0]["reset"] = True
        messages[-1]["ask"] = True
        return messages

    def tell(self, keys: Iterable[Key]) -> None:
        """Note that a process was told of these connections, so that it is told when they are gone."""
        self._told.update(keys)

    def begin_anew(self) -> None:
        """Tell all anew with the next messages."""
        self._changes.clear()
        self._count = 0
        self._is_behind = True

    def _change(self, key: Key, topic: str, denied: Iterable[str] | None) -> None:
        if self._is_behind:
            return
        topics = self._changes.get(key)
        if topics is None:
            topics = self._changes[key] = {}
        if topic not in topics:
            self._grow()
        topics[topic] = denied

    def _grow(self) -> None:
        self._count += 1
        if self._count > CHANGES_MAX or len(self._changes) > CHANGES_MAX:
            self.begin_anew()


class EventOutbox:
    """Sends events to another process as long as there is room; last values also later.

    Args:
        send: called with a message.
        waiting: gives the bytes that wait to be sent.
        last_value: gives the message with the last value of a topic as it is then, or that there is none.
    """

    def __init__(
        self, send: Callable[[Message], object], waiting: Callable[[], int], last_value: Callable[[str], Message]
    ) -> None:
        self._send = send
        self._waiting = waiting
        self._last_value = last_value
        self._late: dict[str, None] = {}

    def put(self, message: Message) -> bool:
        """Send an event; False if there was no room."""
        topic, is_kept = message["topic"], bool(message["keep"])
        waiting = self._waiting()
        if waiting and waiting + _size(message) > WAITING_MAX:
            if is_kept:
                self._late[topic] = None
                if len(self._late) > LATE_MAX:
                    log.warning("a last value is not the same in all processes: they are too slow for so many")
                    del self._late[next(iter(self._late))]
            return False
        if is_kept:
            self._late.pop(topic, None)
        self._send(message)
        return True

    def on_room(self) -> None:
        """Send last values for which there was no room."""
        while self._late:
            topic = next(iter(self._late))
            if not self.put(self._last_value(topic)):
                break


class RemoteSubscriber(Subscriptions):
    """A connection of another process, with its subscriptions; its key is the process and its number there."""

    __slots__ = ()

    key: tuple[int, int]


class Recipient(Protocol):
    """The topics of this process."""

    def receive(self, topic: str, message: Encoded | None, keep: Keep) -> None:
        """Send an event of another process to the subscribers of this one; under the lock."""

    def last_value(self, topic: str) -> Encoded | None:
        """The message with the last value of a topic; under the lock."""

    def own_subscriptions(self) -> dict[int, dict[str, tuple[str, ...]]]:
        """All subscriptions of this process, by the number of the connection; under the lock."""

    def attach_payloads(self) -> None:
        """Attach large payloads to events from now on."""

    def count_dropped(self, count: int) -> None:
        """Count events that another process was too slow for; under the lock."""


class EventRelay:
    """The other processes of a server, as the topics of this one see them.

    What is published before `start` goes to all processes, since it is not known yet who has subscribed.

    Args:
        limits: of the subscriptions in the other processes; None: they have limits of their own, which count these.
        group: an id that all processes of this server have, and no other server.

    Attributes:
        group: it.
        table: the subscriptions in the other processes. To be used under the lock of the topics.
    """

    def __init__(self, limits: Limits | None = None, group: str = "") -> None:
        self.group = group
        self.table: SubscriptionTable[RemoteSubscriber] = SubscriptionTable(limits)
        self._topics: Recipient | None = None
        self._lock = threading.Lock()
        self._changes = SubscriptionChanges()
        self._last_number = 0
        #: Messages that are sent in the next turn of the loop, and the bytes that they take.
        self._out: deque[Message] = deque()
        self._out_size = 0
        self._outbox = EventOutbox(self._append, self._waiting_size, self._last_value)
        #: By topic: own last values that the process in the middle has not confirmed.
        self._unconfirmed: Counter[str] = Counter()
        self._send: Callable[[Message], object] | None = None
        self._link_waiting: Callable[[], int] = lambda: 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_scheduled = self._is_asked = self._is_binary = False
        #: Done when all processes have been told: what is told now, and what is told next.
        self._settled: asyncio.Future[None] | None = None
        self._next_settled: asyncio.Future[None] | None = None

    # -- for the topics of this process, under their lock and in any thread -------------------------------------------

    def join(self, topics: Recipient, lock: threading.Lock) -> None:
        """Relay the events of these topics, which are guarded by this lock."""
        self._topics, self._lock = topics, lock

    def wants(self, topic: str) -> bool:
        """Whether other processes may have subscribers of a topic; needs no lock."""
        return self._send is None or self.table.has(topic)

    def publish(self, topic: str, message: Encoded | None, keep: Keep) -> int:
        """Send an event to the processes that have subscribers, or all if it is a last value.

        Returns:
            The number of subscribers there.
        """
        found = self.table.find(topic)
        to = None if keep or self._send is None else list({each.key[0] for each in found})
        if to is not None and not to:
            return 0
        if self._outbox.put(packed_event(topic, message, keep, to)):
            return len(found)
        if self._topics is not None:
            self._topics.count_dropped(1)
        return 0

    def subscribed(self, subscriber: Subscriber, topic: str, denied: tuple[str, ...]) -> None:
        """Tell the others of a subscription, or of what is denied of it now."""
        if not subscriber.number:
            self._last_number += 1
            subscriber.number = self._last_number
        self._changes.add(subscriber.number, topic, denied)
        self._schedule()

    def unsubscribed(self, subscriber: Subscriber, topic: str) -> None:
        """Tell the others of the end of a subscription."""
        self._changes.remove(subscriber.number, topic)
        self._schedule()

    def left(self, subscriber: Subscriber) -> None:
        """Tell the others of the end of a connection."""
        if subscriber.number:
            self._changes.leave(subscriber.number)
            self._schedule()

    def attached(self) -> None:
        """Tell the others that some peer here reads binary frames."""
        if not self._is_binary:
            self._is_binary = True
            self._append({"type": "binary"})

    async def settled(self) -> None:
        """Wait until all processes know of the subscriptions that there are now; `SETTLE_TIME` and a bit, at most."""
        if self._loop is None:
            return
        if self._next_settled is None:
            self._next_settled = self._loop.create_future()
        self._schedule()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._next_settled), 2 * SETTLE_TIME)

    # -- for the link, in the event loop ------------------------------------------------------------------------------

    def start(self, send: Callable[[Message], object], waiting: Callable[[], int]) -> None:
        """Send by this function from now on, of which so many bytes wait to be sent."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._send, self._link_waiting = send, waiting
            if self._topics is not None and self._topics.own_subscriptions():
                self._changes.begin_anew()
            self._is_scheduled = False
            self._schedule()

    def on_room(self) -> None:
        """The link has sent all that waited."""
        with self._lock:
            self._outbox.on_room()

    def on_message(self, message: Message) -> None:
        """Handle a message of one of `KINDS`."""
        if self._topics is not None and self._send is not None:
            getattr(self, f"_on_{message['type']}")(self._topics, message)

    def receive(self, topic: str, message: Encoded | None, keep: Keep) -> None:
        """Send an event that another process has published to the subscribers of this one."""
        if self._topics is None:
            return
        with self._lock:
            if keep and self._unconfirmed[topic]:  # an own last value, which comes later
                keep = ""
            self._topics.receive(topic, message, keep)

    def introduction(self) -> list[Message]:
        """Messages that tell a process, which has just come, of all subscriptions here."""
        assert self._topics is not None
        with self._lock:
            own = self._topics.own_subscriptions()
            self._changes.tell(own)
        changes = [[number, topic, denied] for number, topics in own.items() for topic, denied in topics.items()]
        return _in_chunks(changes)

    def last_value(self, topic: str) -> Encoded | None:
        """The message with the last value of a topic."""
        assert self._topics is not None
        with self._lock:
            return self._topics.last_value(topic)

    def _on_event(self, topics: Recipient, message: Message) -> None:
        self.receive(message["topic"], unpacked_event(message), message["keep"])

    def _on_kept(self, topics: Recipient, message: Message) -> None:
        topic = message["topic"]
        with self._lock:
            self._unconfirmed[topic] -= 1
            if not self._unconfirmed[topic]:
                del self._unconfirmed[topic]

    def _on_dropped(self, topics: Recipient, message: Message) -> None:
        with self._lock:
            topics.count_dropped(1)

    def _on_subscriptions(self, topics: Recipient, message: Message) -> None:
        with self._lock:
            self._apply(message)
        if message.get("ask") and self._send is not None:
            self._send({"type": "seen"})

    def _on_settled(self, topics: Recipient, message: Message) -> None:
        self._is_asked = False
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)
        self._flush()

    def _on_lost(self, topics: Recipient, message: Message) -> None:
        with self._lock:
            self._remove([key for key in self.table.subscribers if key[0] == message["worker"]])

    def _on_binary(self, topics: Recipient, message: Message) -> None:
        self._is_binary = True
        topics.attach_payloads()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _apply(self, message: Message) -> None:
        """Take changes of the others' subscriptions over."""
        table = self.table
        if message.get("reset"):
            self._remove(list(table.subscribers))
        for (worker, number), *rest in message["changes"]:
            key = worker, number
            subscriber = table.subscribers.get(key)
            if not rest:
                self._remove([key])
                continue
            topic, denied = rest
            if denied is None:
                if subscriber is not None and topic in subscriber.topics:
                    table.remove(subscriber, topic)
                continue
            if subscriber is None:
                subscriber = RemoteSubscriber(key)
                table.add_subscriber(subscriber)
            if topic in subscriber.topics:
                subscriber.topics[topic] = tuple(denied)
                continue
            try:
                table.add(subscriber, topic, tuple(denied))
            except ServerBusy as error:
                log.warning("a subscription of another process is not taken: %s", error)
                if not subscriber.topics:
                    table.remove_subscriber(subscriber)

    def _remove(self, keys: Iterable[Any]) -> None:
        for key in keys:
            subscriber = self.table.subscribers.get(key)
            if subscriber is not None:
                self.table.remove_subscriber(subscriber)

    def _append(self, message: Message) -> None:
        if message.get("keep"):
            self._unconfirmed[message["topic"]] += 1
        self._out.append(message)
        self._out_size += _size(message)
        self._schedule()

    def _waiting_size(self) -> int:
        return self._out_size + self._link_waiting()

    def _last_value(self, topic: str) -> Message:
        assert self._topics is not None
        message = self._topics.last_value(topic)
        return packed_event(topic, message, "forget" if message is None else "keep", None)

    def _schedule(self) -> None:
        if self._loop is not None and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        """Send what was published, and what has changed; what has changed only when the last changes are settled."""
        assert self._send is not None
        assert self._topics is not None
        assert self._loop is not None
        messages: list[Message] = []
        with self._lock:
            self._is_scheduled = False
            out, self._out, self._out_size = self._out, deque(), 0
            if not self._is_asked and (self._changes or self._next_settled is not None):
                messages = self._changes.take(self._topics.own_subscriptions)
                self._is_asked = True
                self._settled, self._next_settled = self._next_settled, None
        for message in (*out, *messages):
            self._send(message)


def _in_chunks(changes: list[Any]) -> list[Message]:
    """Messages with changes of subscriptions, at least one."""
    return [
        {"type": "subscriptions", "changes": changes[at : at + CHUNK]} for at in range(0, max(1, len(changes)), CHUNK)
    ]


def _size(message: Message) -> int:
    return COST + len(message.get("body", b""))


def packed_event(topic: str, message: Encoded | None, keep: Keep, to: list[int] | None) -> Message:
    """Make the message between processes of an event; None: there is nothing to send to subscribers."""
    head: Message = {"type": "event", "topic": topic, "keep": keep, "to": to}
    if isinstance(message, AttachedMessage):
        head["sizes"] = [[len(each) for each in parts] for parts in (message.pieces, message.payloads)]
        head["body"] = b"".join((*message.pieces, *message.payloads))
    elif message is not None:
        head["body"] = bytes(message)
    return head


def unpacked_event(message: Message) -> Encoded | None:
    """Give the message of an event from another process."""
    body: bytes | None = message.get("body")
    if body is None or "sizes" not in message:
        return body
    view, at = memoryview(body), 0
    parts: list[list[memoryview]] = []
    for sizes in message["sizes"]:
        parts.append([])
        for size in sizes:
            parts[-1].append(view[at : at + size])
            at += size
    pieces, payloads = parts
    return AttachedMessage([bytes(each) for each in pieces], payloads, is_secured=True)
