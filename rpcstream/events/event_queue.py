"""Queues of events for slow subscribers: in order, bounded, with a policy for when they are full.

Owns which events are kept and which are dropped, and counts these. Knows neither connections nor what an event is: a
server has one queue for each subscriber, a client one for each local subscriber. A topic here is any name by which
events are bounded and forgotten: at a server that of the subscription, which may be a pattern. Pure; for one thread at
a time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, get_args

from ..wire.buffers import AttachedMessage, Encoded, size_as_text

#: What is dropped when a queue is full: the oldest event, the new one, or the subscriber with all its events.
Policy = Literal["drop_oldest", "drop_newest", "disconnect"]

E = TypeVar("E")

#: Events that may wait for one subscription once it has taken over those of others that ended, if `max_events` is less.
#: So ending many subscriptions one after the other does not move ever more events.
MOVED_MAX = 2000

#: Bytes of memory that an event takes in a queue besides its message.
EVENT_COST = 400


class QueuedEvent:
    """The message of an event, which may wait in several queues and takes its memory once.

    Its length is in bytes of text, which some of the subscribers may get.

    Attributes:
        holders: the number of queues in which it waits.
    """

    __slots__ = ("holders", "message", "topic")

    def __init__(self, topic: str, message: Encoded) -> None:
        self.topic = topic
        self.message = message
        self.holders = 0

    def __len__(self) -> int:
        return size_as_text(self.message)

    @property
    def memory(self) -> int:
        """Bytes of memory that the message takes at most: some subscribers may be sent a frame, and others its text."""
        message = self.message
        return len(message) + message.text_size if type(message) is AttachedMessage else len(message)


class QueueMemory:
    """Counts the bytes of the messages that wait for slow connections, of all these connections together.

    Each connection may have as many as are free now. So one with few waiting messages always finds room: many slow ones
    share the memory in equal parts, and leave such a part free. To be used under the lock of the queues that share it.

    Args:
        size: bytes that there are.

    Attributes:
        used: bytes that are taken.
    """

    __slots__ = ("size", "used")

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0

    @property
    def free(self) -> int:
        """Bytes that are left."""
        return self.size - self.used

    def reserve(self, size: int) -> None:
        """Count bytes of a message that waits for one connection."""
        self.used += size

    def release(self, size: int) -> None:
        """Take bytes of a message off the count."""
        self.used -= size

    # The events are `Any` because those of a queue without shared memory may be of another type.
    def add(self, event: Any) -> None:
        """Count a `QueuedEvent` that has entered a queue."""
        self.used += EVENT_COST if event.holders else EVENT_COST + event.memory
        event.holders += 1

    def remove(self, event: Any) -> None:
        """Take a `QueuedEvent` that has left a queue off the count."""
        event.holders -= 1
        self.used -= EVENT_COST if event.holders else EVENT_COST + event.memory


class EventQueue(Generic[E]):
    """The events that wait for one subscriber, of all its topics, in the order in which they came.

    One topic cannot crowd out the others by its number of events, only by their size.

    Args:
        max_events: events of one topic that may wait.
        max_bytes: bytes that the events of all topics may have together; a single one may have more.
        memory: shared with other queues; its events are `QueuedEvent` then.

    Attributes:
        size: bytes of the events that wait.
        dropped: the number of events that were dropped because the queue was full.
        has_overflowed: it was full, and the policy is "disconnect". Nothing is kept from then on.

    Raises:
        ValueError: `max_events` or the policy makes no sense.
    """

    __slots__ = (
        "_events",
        "_last",
        "_max_bytes",
        "_max_events",
        "_memory",
        "_numbers",
        "_policy",
        "dropped",
        "has_overflowed",
        "size",
    )

    def __init__(self, max_events: int, max_bytes: int, policy: Policy, memory: QueueMemory | None = None) -> None:
        check_options(max_events, policy)
        self._memory = memory
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._policy = policy
        #: Topic, event and size by a number that counts up; an ordinary dict is slow to give its first.
        self._events: OrderedDict[int, tuple[str, E, int]] = OrderedDict()
        #: The numbers of the events of each topic that has any.
        self._numbers: dict[str, deque[int]] = {}
        self._last = 0
        self.size = 0
        self.dropped = 0
        self.has_overflowed = False

    def __len__(self) -> int:
        return len(self._events)

    @property
    def free(self) -> int:
        """Bytes that more events may have; negative if a single large one waits."""
        return self._most - self.size

    @property
    def _most(self) -> int:
        """Bytes that all events may have now."""
        return self._max_bytes if self._memory is None else min(self._max_bytes, self._memory.free)

    def put(self, topic: str, event: E, size: int) -> bool:
        """Keep an event of so many bytes; return False if it was dropped."""
        numbers, memory, most = self._numbers.get(topic), self._memory, self._max_bytes
        if memory is not None and memory.size - memory.used < most:
            most = memory.size - memory.used
        crowded = numbers is not None and len(numbers) >= self._max_events
        if (crowded or self.size + size > most or self.has_overflowed) and not self._has_made_room(topic, size):
            return False
        self._last += 1
        self._events[self._last] = topic, event, size
        if numbers:
            numbers.append(self._last)
        else:
            self._numbers[topic] = deque((self._last,))
        self.size += size
        if memory is not None:
            memory.add(event)
        return True

    def _has_made_room(self, topic: str, size: int) -> bool:
        """Drop events by the policy, to keep a new one; return False if that one is dropped, and counted so."""
        numbers, memory = self._numbers.get(topic), self._memory
        crowded = numbers is not None and len(numbers) >= self._max_events
        too_large = (memory is not None and size > memory.free) or (
            self.size + size > self._most and bool(self._events)
        )
        if not (crowded or too_large or self.has_overflowed):
            return True
        if self._policy != "drop_oldest":
            self.dropped += 1
            self.has_overflowed = self._policy == "disconnect"
            return False
        if crowded and numbers is not None:
            self._drop(numbers[0])
        while self._events and self.size + size > self._most:
            self._drop(next(iter(self._events)))
        if memory is not None and size > memory.free:
            self.dropped += 1
            return False
        return True

    def take(self) -> E:
        """Take out the oldest event; IndexError if there is none."""
        if not self._events:
            raise IndexError("no event waits")
        return self._remove(next(iter(self._events)))

    def take_some(self, size: int) -> list[E]:
        """Take out the oldest events until they have `size` bytes together; at least one, if there is any."""
        events: list[E] = []
        rest = self.size - size
        while self._events and (self.size > rest or not events):
            events.append(self._remove(next(iter(self._events))))
        return events

    def forget(self, topic: str) -> int:
        """Drop the events of a topic that ended, uncounted; return their number."""
        numbers = list(self._numbers.get(topic, ()))
        for number in numbers:
            self._remove(number)
        return len(numbers)

    def move(self, topic: str, choose: Callable[[E], str | None]) -> int:
        """Move the events of a topic that ended to other topics, each at its place; return how many were removed.

        The other topics may have more than `max_events` then, up to `MOVED_MAX`; events beyond are dropped.

        Args:
            topic: that ended.
            choose: returns the other topic of an event, or None to remove it.
        """
        count = 0
        moved: set[str] = set()
        for number in self._numbers.pop(topic, ()):
            _, event, size = self._events[number]
            other = choose(event)
            if other is None:
                del self._events[number]
                self._has_left(event, size)
                count += 1
            else:
                self._events[number] = other, event, size
                self._numbers.setdefault(other, deque()).append(number)
                moved.add(other)
        for other in moved:
            numbers = self._numbers[other] = deque(sorted(self._numbers[other]))
            while len(numbers) > max(self._max_events, MOVED_MAX):
                self._drop(numbers[0])
        return count

    def clear(self) -> int:
        """Remove all events; return their number."""
        count = len(self._events)
        for _, event, size in self._events.values():
            self._has_left(event, size)
        self._events.clear()
        self._numbers.clear()
        return count

    def _drop(self, number: int) -> None:
        self._remove(number)
        self.dropped += 1

    def _remove(self, number: int) -> E:
        """Take out an event, which is the oldest of its topic."""
        topic, event, size = self._events.pop(number)
        numbers = self._numbers[topic]
        numbers.popleft()
        if not numbers:
            del self._numbers[topic]
        self.size -= size
        if self._memory is not None:
            self._memory.remove(event)
        return event

    def _has_left(self, event: E, size: int) -> None:
        self.size -= size
        if self._memory is not None:
            self._memory.remove(event)


def check_options(max_events: int, policy: str) -> None:
    """Raise ValueError unless a queue can have these options."""
    if max_events < 1:
        raise ValueError(f"a queue of events must have room for at least 1, got {max_events!r}")
    if policy not in get_args(Policy):
        raise ValueError(f"the policy must be one of {', '.join(get_args(Policy))}; got {policy!r}")
