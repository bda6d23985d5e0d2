"""Passes events, last values and subscriptions between the workers of a server, through the supervisor.

`EventRelay` is the end in a worker, and `EventExchange` the one in the supervisor. The channels between them keep the
order of messages:

* `subscriptions`: `changes`, each `[connection, name, is_there]`. It is a question: a worker answers it at once, and
  the supervisor when every other worker has answered, or is too slow.
* `event`: `topic`, and as its `body` the message, as marshal writes it. `keep`: it becomes the last value ("keep"), or
  there is none any more ("forget"). `to`: the workers that have subscribers; null for all. The supervisor confirms an
  event with `keep` by `kept`, and reports each worker that has no room for an event by `dropped`.

**The same last value everywhere**: the order in which the supervisor gets events decides. A worker that receives a last
value while one of its own is on its way to the supervisor keeps its own, which comes later in that order.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ..errors import ServerBusy
from ..events.retained import Retained
from ..events.subscriptions import Subscriber
from ..events.topics import CARRIED_COST, CARRIED_MAX, LATE_MAX, Keep, Topics
from ..text import get_logger
from ..wire.buffers import AttachedMessage, Encoded
from .channel import Channel, Message

log = get_logger("rpcstream.supervisor")

#: Seconds that a subscriber waits for its reply, at most, until all workers know of the subscription.
SETTLE_TIME = 1.0

#: The kinds of messages of this module.
KINDS = frozenset(("subscriptions", "event", "kept", "dropped"))

#: A subscription: the connection (in a worker its number, in the supervisor the worker and the number) and the name.
Subscription = tuple[Any, str]


class SubscriptionChanges:
    """The changes of subscriptions that the other end is to be told; a change and its opposite cancel each other.

    Args:
        lock: held while changes are taken.
        link: to the other end; None: there is none yet.
        known: subscriptions that there are already.

    Attributes:
        link: as the argument.
    """

    def __init__(
        self,
        lock: contextlib.AbstractContextManager[Any],
        link: Channel | None = None,
        known: Iterable[Subscription] = (),
    ) -> None:
        self.link = link
        self._lock = lock
        #: Whether a subscription is there now.
        self._changes = dict.fromkeys(known, True)
        #: Tells what has changed now; and tells what changes until then.
        self._telling: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    def __bool__(self) -> bool:
        return bool(self._changes)

    def add(self, subscription: Subscription, is_there: bool) -> None:
        """Tell that a subscription has begun or ended."""
        if self._changes.pop(subscription, None) is None:
            self._changes[subscription] = is_there

    def tell(self) -> asyncio.Task[None]:
        """Tell what has changed; done when the other end has answered, or is gone. One message is under way."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._tell_after(self._telling))
        return self._next

    async def _tell_after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})
        self._telling, self._next = self._next, None
        with self._lock:
            changes, self._changes = self._changes, {}
        if changes and self.link is not None:
            told = [(*subscription, is_there) for subscription, is_there in changes.items()]
            await asyncio.wait({self.link.ask({"type": "subscriptions", "changes": told})})


class EventOutbox:
    """Sends events to the other end as long as there is room; last values also later.

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
                log.warning("a last value is not the same in all workers: they are too slow for so many")
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


# -- in a worker ------------------------------------------------------------------------------------------------------


class EventRelay:
    """The way of a worker to the others, a `Carrier`.

    What is published before `start` goes to all workers, since it is not known yet who has subscribed.
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
        #: By topic: own last values that the supervisor has not confirmed.
        self._unconfirmed: Counter[str] = Counter()
        self._link: Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_scheduled = False

    def join(self, topics: Topics) -> None:
        self._topics = topics
        self._changes = SubscriptionChanges(topics.lock)

    # -- for the topics, under their lock and in any thread -----------------------------------------------------------

    def wants(self, topic: str) -> bool:
        return self._link is None or self._topics.others.has(topic)

    def publish(self, topic: str, message: Encoded | None, keep: Keep) -> int:
        others = self._topics.others
        found = {connection for name in others.names_for(topic) for connection in others.by_topic[name]}
        to = None if keep or self._link is None else list({worker for worker, _ in found})
        if to == []:
            return 0
        if self._outbox.put(packed_event(topic, message, keep, to)):
            return len(found)
        self._topics.count_dropped()
        return 0

    def changed(self, subscriber: Subscriber, name: str) -> None:
        self._changes.add((subscriber.number, name), name in subscriber.topics)
        self._schedule()

    async def settled(self) -> None:
        if self._loop is not None:
            await asyncio.wait({self._changes.tell()}, timeout=2 * SETTLE_TIME)

    # -- for the link, in the event loop ------------------------------------------------------------------------------

    def start(self, link: Channel) -> None:
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
        with topics.lock:
            if kind == "event":
                # An own last value on its way comes later in the order of the supervisor.
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
        if kind == "subscriptions" and self._link is not None:
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


# -- in the supervisor ------------------------------------------------------------------------------------------------


class Worker(Protocol):
    """A worker, as far as events are concerned."""

    number: int
    channel: Channel


class Member:
    """A worker that events are passed on to.

    Attributes:
        subscriptions: its own.
        changes: what it is still to be told of those of others.
    """

    def __init__(self, worker: Worker, retained: Retained, known: Iterable[Subscription]) -> None:
        self.worker = worker
        self.subscriptions: set[Subscription] = set()
        self.changes = SubscriptionChanges(contextlib.nullcontext(), worker.channel, known)
        self.outbox = EventOutbox(worker.channel.send, lambda: worker.channel.waiting_size, lambda: retained)


class EventExchange:
    """Passes events and subscriptions on between the workers."""

    def __init__(self) -> None:
        self._members: dict[Worker, Member] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._retained = Retained(sys.maxsize)  # the workers limit the number of topics

    def add(self, worker: Worker) -> None:
        """Pass events on to a worker from now on, which is ready, and tell it what there is."""
        known = [(member.worker.number, each) for member in self._members.values() for each in member.subscriptions]
        member = Member(worker, self._retained, [((number, connection), name) for number, (connection, name) in known])
        self._members[worker] = member
        member.changes.tell()
        member.outbox.put_last_values(self._retained.messages)

    def remove(self, worker: Worker) -> None:
        """Forget a worker whose process has ended, and tell the others."""
        member = self._members.pop(worker, None)
        if member is not None:
            self._change(member, [(*subscription, False) for subscription in member.subscriptions])

    def on_room(self, worker: Worker) -> None:
        """A worker has taken all that was sent to it."""
        member = self._members.get(worker)
        if member is not None:
            member.outbox.put_last_values()

    def on_message(self, worker: Worker, message: Message) -> None:
        """Handle a message of one of `KINDS`."""
        member = self._members.get(worker)
        if member is None:
            return
        if message["type"] == "event":
            self._pass_on(member, message)
        else:
            told = self._change(member, message["changes"])
            answer = asyncio.get_running_loop().create_task(self._answer(worker, message, told))
            self._answers.add(answer)
            answer.add_done_callback(self._answers.discard)

    def _others(self, member: Member) -> list[Member]:
        return [each for each in self._members.values() if each is not member]

    def _pass_on(self, source: Member, message: Message) -> None:
        keep, to = message["keep"], message.pop("to")
        if keep:
            self._keep(message)
            source.worker.channel.send({"type": "kept", "topic": message["topic"]})
        for member in self._others(source):
            if (to is None or member.worker.number in to) and not member.outbox.put(message):
                source.worker.channel.send({"type": "dropped"})

    def _keep(self, message: Message) -> None:
        topic, value = message["topic"], unpacked_event(message)
        if value is None or message["keep"] == "forget":
            self._retained.forget(topic)
            return
        try:
            self._retained.keep(topic, value)
        except ServerBusy as error:  # two workers have kept the last ones for which there was room
            log.warning("a last value is not kept for workers that start later: %s", error)

    def _change(self, source: Member, changes: Iterable[Any]) -> list[asyncio.Task[None]]:
        """Take changes of a worker's subscriptions over; gives what tells them to the others."""
        others = self._others(source)
        for connection, name, is_there in list(changes):
            change = source.subscriptions.add if is_there else source.subscriptions.discard
            change((connection, name))
            for other in others:
                other.changes.add(((source.worker.number, connection), name), is_there)
        return [other.changes.tell() for other in others]

    async def _answer(self, worker: Worker, message: Message, told: list[asyncio.Task[None]]) -> None:
        """Answer when the others have been told, or some are too slow."""
        if told:
            await asyncio.wait(told, timeout=SETTLE_TIME)
        worker.channel.answer(message, {})


# -- messages ---------------------------------------------------------------------------------------------------------


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
