"""Events between the processes of one server: who has subscribed in the others, and what is sent to them.

A process in the middle (`supervisor.event_exchange`) joins the others, over links that keep the order of messages.

Messages between the processes:

* `subscriptions`: `changes`, each `[connection, name, is_there]`. `reset`: all that was told before is over. The last
  message is a question: a process answers it at once, and the middle when every process has answered, or is too slow.
* `event`: `topic`, and as its body the message, as marshal writes it. `keep`: it becomes the last value ("keep"), or
  there is none any more ("forget"). `to`: the processes that have subscribers; null for all. To the
  sender of one with `keep` the middle says `kept`; and `dropped` to that of one for which another process had no room.

**The same last value everywhere**: the order in which the middle gets events decides. A process that receives a last
value while one of its own is on its way there keeps its own, which comes later in that order.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ..events.retained import Retained
from ..events.subscriptions import Subscriber, SubscriptionTable
from ..events.topics import CARRIED_COST, CARRIED_MAX, LATE_MAX, Keep, Topics
from ..text import get_logger
from ..wire.buffers import AttachedMessage, Encoded

log = get_logger("rpcstream.server")

Message = dict[str, Any]

#: Changes of subscriptions that are kept one by one for a process that is slow; with more it is told all anew.
CHANGES_MAX = 10_000

#: Changes in one message.
CHUNK = 1000

#: Seconds that a subscriber waits for its reply, at most, until all processes know of the subscription.
SETTLE_TIME = 1.0

#: The kinds of messages of this module.
KINDS = frozenset(("subscriptions", "event", "kept", "dropped"))

#: A subscription: the connection (in a process its number, in the middle the process and the number) and the name.
Subscription = tuple[Any, str]


class Link(Protocol):
    """The way to another process: a `Channel`, or the middle's `WorkerProcess`."""

    @property
    def waiting_size(self) -> int:
        """Bytes that wait to be sent."""

    def send(self, message: Message) -> None:
        """Send a message."""

    def ask(self, question: Message) -> asyncio.Future[Message]:
        """Send a message that is answered."""

    def answer(self, question: Message, answer: Message) -> None:
        """Answer a message."""


class SubscriptionChanges:
    """The changes of subscriptions that another process is to be told, bounded.

    Args:
        everything: gives all subscriptions, for a process that is told all anew.
        lock: held while changes are taken.

    Attributes:
        link: to the other process; None: there is none yet.
    """

    def __init__(
        self,
        everything: Callable[[], Iterable[Subscription]],
        link: Link | None,
        lock: contextlib.AbstractContextManager[Any],
    ) -> None:
        self.link = link
        self._everything = everything
        self._lock = lock
        #: Whether a subscription is there now; None: all are to be told anew.
        self._changes: dict[Subscription, bool] | None = None
        #: Tells what has changed now; and tells what changes until then.
        self._telling: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return self._changes is None or bool(self._changes)

    def add(self, connection: Any, name: str, is_there: bool) -> None:
        """Tell that a subscription has begun or ended."""
        if self._changes is not None:
            self._changes[connection, name] = is_there
            if len(self._changes) > CHANGES_MAX:
                self._changes = None

    def tell(self) -> asyncio.Task[None]:
        """Tell what has changed; done when the other process has answered, or is gone. One message is under way."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._tell_after(self._telling))
        return self._next

    async def _tell_after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        self._telling, self._next = self._next, None
        with self._lock:
            messages = self._take() if self else []
        if messages and self.link is not None:
            for message in messages[:-1]:
                self.link.send(message)
            await asyncio.wait({self.link.ask(messages[-1])})

    def _take(self) -> list[Message]:
        changes, self._changes = self._changes, {}
        known = dict.fromkeys(self._everything(), True) if changes is None else changes
        told = [(*subscription, is_there) for subscription, is_there in known.items()]
        parts = [told[at : at + CHUNK] for at in range(0, len(told) or 1, CHUNK)]
        messages: list[Message] = [{"type": "subscriptions", "changes": part} for part in parts]
        messages[0]["reset"] = changes is None
        return messages


class EventOutbox:
    """Sends events to another process as long as there is room; last values also later.

    Args:
        send: called with a message.
        waiting: gives the bytes that wait to be sent.
        retained: gives the last values.
    """

    def __init__(
        self, send: Callable[[Message], object], waiting: Callable[[], int], retained: Callable[[], Retained]
    ) -> None:
        self._send = send
        self._waiting = waiting
        self._retained = retained
        self._late: dict[str, None] = {}

    def put(self, message: Message) -> bool:
        """Send an event; False if there was no room."""
        topic, is_kept = message["topic"], bool(message["keep"])
        waiting = self._waiting()
        if waiting and waiting + size_of(message) > CARRIED_MAX:
            if is_kept and len(self._late) < LATE_MAX:
                self._late[topic] = None
            elif is_kept:
                log.warning("a last value is not the same in all processes: they are too slow for so many")
            return False
        if is_kept:
            self._late.pop(topic, None)
        self._send(message)
        return True

    def put_last_values(self, topics: Iterable[str] = ()) -> None:
        """Send the last values of these topics, and those for which there was no room, as far as there is room now."""
        self._late.update(dict.fromkeys(topics))
        while self._late:
            topic = next(iter(self._late))
            value = self._retained().messages.get(topic)
            if not self.put(packed_event(topic, value, "forget" if value is None else "keep", None)):
                break


class EventRelay:
    """The way of a process to the others of its server, a `Carrier`.

    What is published before `start` goes to all processes, since it is not known yet who has subscribed.
    """

    def __init__(self) -> None:
        self._topics: Topics
        self._changes: SubscriptionChanges
        #: Messages that are sent in the next turn of the loop, and the bytes that they take.
        self._out: list[Message] = []
        self._out_size = 0
        self._outbox = EventOutbox(
            self._append,
            lambda: self._out_size + (self._link.waiting_size if self._link is not None else 0),
            lambda: self._topics.retained,
        )
        #: By topic: own last values that the process in the middle has not confirmed.
        self._unconfirmed: Counter[str] = Counter()
        self._link: Link | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_scheduled = False

    def join(self, topics: Topics) -> None:
        self._topics = topics
        self._changes = SubscriptionChanges(self.all_subscriptions, None, topics.lock)

    # -- for the topics, under their lock and in any thread -----------------------------------------------------------

    def wants(self, topic: str) -> bool:
        return self._link is None or self._topics.others.has(topic)

    def publish(self, topic: str, message: Encoded | None, keep: Keep) -> int:
        others = self._topics.others
        found = {connection for name in others.names_for(topic) for connection in others.by_topic[name]}
        to = None if keep or self._link is None else list({process for process, _ in found})
        if to == []:
            return 0
        if self._outbox.put(packed_event(topic, message, keep, to)):
            return len(found)
        self._topics.count_dropped()
        return 0

    def changed(self, subscriber: Subscriber, name: str) -> None:
        self._changes.add(subscriber.number, name, name in subscriber.topics)
        self._schedule()

    async def settled(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._changes.tell()), 2 * SETTLE_TIME)

    # -- for the link, in the event loop ------------------------------------------------------------------------------

    def start(self, link: Link) -> None:
        """Send by this link from now on."""
        with self._topics.lock:
            self._loop = asyncio.get_running_loop()
            self._link = self._changes.link = link
            self._is_scheduled = False
            self._schedule()

    def on_room(self) -> None:
        """The link has sent all that waited."""
        with self._topics.lock:
            self._outbox.put_last_values()

    def on_message(self, message: Message) -> None:
        """Handle a message of one of `KINDS`."""
        topics, kind = self._topics, message["type"]
        if kind == "event":
            self.receive(message["topic"], unpacked_event(message), message["keep"])
        elif kind == "subscriptions":
            self._take(message)
        elif kind == "kept":
            with topics.lock:
                self._confirm(message["topic"])
        elif kind == "dropped":
            with topics.lock:
                topics.count_dropped()

    def receive(self, topic: str, message: Encoded | None, keep: Keep) -> None:
        """Send an event that another process has published to the subscribers of this one."""
        with self._topics.lock:
            if keep and self._unconfirmed[topic]:  # an own last value, which comes later
                keep = ""
            self._topics.receive(topic, message, keep)

    def all_subscriptions(self) -> list[Subscription]:
        """All subscriptions of this process; under the lock."""
        own = self._topics.own.by_topic
        return [(subscriber.number, name) for name, subscribers in own.items() for subscriber in subscribers]

    def _take(self, message: Message) -> None:
        """Take changes of the others' subscriptions over."""
        topics = self._topics
        with topics.lock:
            if message.get("reset"):
                topics.others = SubscriptionTable()
            for connection, name, is_there in message["changes"]:
                change = topics.others.add if is_there else topics.others.remove
                change(tuple(connection), name)
        if "ask" in message and self._link is not None:
            self._link.answer(message, {})

    def _confirm(self, topic: str) -> None:
        self._unconfirmed[topic] -= 1
        if not self._unconfirmed[topic]:
            del self._unconfirmed[topic]

    def _append(self, message: Message) -> None:
        if message["keep"]:
            self._unconfirmed[message["topic"]] += 1
        self._out.append(message)
        self._out_size += size_of(message)
        self._schedule()

    def _schedule(self) -> None:
        if self._loop is not None and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        """Send what was published, and tell what has changed."""
        assert self._link is not None
        with self._topics.lock:
            self._is_scheduled = False
            messages, self._out, self._out_size = self._out, [], 0
        for message in messages:
            self._link.send(message)
        if self._changes:
            self._changes.tell()


def size_of(message: Message) -> int:
    """Bytes of memory that an event takes while it waits."""
    return CARRIED_COST + len(message["body"])


def packed_event(topic: str, message: Encoded | None, keep: Keep, to: list[int] | None) -> Message:
    """Make the message between processes of an event; None: there is nothing to send to subscribers."""
    parts: Any = message if message is None else bytes(message)
    if isinstance(message, AttachedMessage):
        parts = message.pieces, [bytes(each) for each in message.payloads]
    return {"type": "event", "topic": topic, "keep": keep, "to": to, "body": marshal.dumps(parts)}


def unpacked_event(message: Message) -> Encoded | None:
    """Give the message of an event from another process."""
    parts = marshal.loads(message["body"])
    return AttachedMessage(*parts, is_secured=True) if isinstance(parts, tuple) else parts
