"""Queues of events for slow subscribers: in order, bounded, with a policy for when they are full.

A server has one queue for each connection, a client one for each local subscription. A queue is for one thread at a
time.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, get_args

from ..peer.ledger import Account
from ..wire.buffers import AttachedMessage, Encoded, size_as_text

#: What is dropped when a queue is full: the oldest event, the new one, or the subscriber with all its events.
Policy = Literal["drop_oldest", "drop_newest", "disconnect"]

E = TypeVar("E")

#: Bytes of memory that an event takes in a queue besides its message.
EVENT_COST = 400


class QueuedEvent:
    """An event, whose message may wait in several queues and takes its memory once.

    Attributes:
        size: bytes that the event counts in each queue: of its text, which some subscribers may get.
        holders: the number of queues in which the event waits.
    """

    __slots__ = ("holders", "message", "size", "topic")

    def __init__(self, topic: str, message: Encoded) -> None:
        self.topic = topic
        self.message = message
        self.size = size_as_text(message) + EVENT_COST
        self.holders = 0

    @property
    def memory(self) -> int:
        """Bytes that the message takes at most: some subscribers may be sent a frame, and others its text."""
        message = self.message
        return len(message) + message.text_size if type(message) is AttachedMessage else len(message)


class QueueMemory(Account):
    """Counts the bytes of messages that wait for slow connections, of all these connections together.

    Each connection may have as many bytes as are free now. So a connection with few waiting messages always finds room.
    """

    __slots__ = ()

    # The events are `Any` because those of a queue without shared memory may be of another type.
    def add(self, event: Any) -> None:
        """Count a `QueuedEvent` that has entered a queue."""
        self.used += EVENT_COST if event.holders else EVENT_COST + event.memory
        event.holders += 1

    def remove(self, event: Any) -> None:
        """Take a `QueuedEvent` that has left a queue off the count."""
        event.holders -= 1
        self.used -= EVENT_COST if event.holders else EVENT_COST + event.memory


@dataclass(slots=True, eq=False, repr=False)
class EventQueue(Generic[E]):
    """The events that wait for one subscriber, of all its subscriptions, in the order in which they came.

    One subscription cannot crowd out the others by its number of events, only by their size.

    Args:
        max_events: events of one subscription that may wait.
        max_bytes: bytes that all events may have together; a single event may have more.
        memory: shared with other queues; the events are `QueuedEvent` then.

    Attributes:
        size: bytes of the events that wait.
        dropped: the number of events that were dropped because the queue was full.
        has_overflowed: the queue was full, and the policy is "disconnect". It takes no more events.

    Raises:
        ValueError: `max_events` or the policy makes no sense.
    """

    max_events: int
    max_bytes: int
    policy: Policy
    memory: QueueMemory | None = None
    size: int = field(default=0, init=False)
    dropped: int = field(default=0, init=False)
    has_overflowed: bool = field(default=False, init=False)
    #: Name of the subscription, event and size by a number that counts up; a plain dict is slow to give its first.
    _events: OrderedDict[int, tuple[str, E, int]] = field(default_factory=OrderedDict, init=False)
    #: The numbers of the events of each subscription that has any.
    _numbers: defaultdict[str, deque[int]] = field(default_factory=lambda: defaultdict(deque), init=False)
    _last: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        check_options(self.max_events, self.policy)

    def __len__(self) -> int:
        return len(self._events)

    @property
    def free(self) -> int:
        """Bytes that more events may have; negative if a single large one waits."""
        return (self.max_bytes if self.memory is None else min(self.max_bytes, self.memory.free)) - self.size

    def put(self, name: str, event: E, size: int) -> bool:
        """Keep an event; return False if it was dropped.

        Args:
            name: of the subscription.
            event: the event.
            size: bytes that it counts.
        """
        while self.has_overflowed or size > self.free or self._is_crowded(name):
            if not self._events and not self.has_overflowed and (self.memory is None or size <= self.memory.free):
                break  # a single event may be larger than a queue
            if self.policy != "drop_oldest" or not self._events:
                self.has_overflowed = self.has_overflowed or self.policy == "disconnect"
                self.dropped += 1
                return False
            self._remove(self._numbers[name][0] if self._is_crowded(name) else next(iter(self._events)))
            self.dropped += 1
        self._last += 1
        self._events[self._last] = name, event, size
        self._numbers[name].append(self._last)
        self.size += size
        if self.memory is not None:
            self.memory.add(event)
        return True

    def _is_crowded(self, name: str) -> bool:
        return len(self._numbers.get(name, ())) >= self.max_events

    def take(self) -> E:
        """Take out the oldest event; there must be one."""
        return self._remove(next(iter(self._events)))

    def take_some(self, size: int) -> list[E]:
        """Take out the oldest events until they have `size` bytes together; at least one, if there is any."""
        events: list[E] = []
        rest = self.size - size
        while self._events and (self.size > rest or not events):
            events.append(self.take())
        return events

    def clear(self) -> int:
        """Remove all events; return their number."""
        return len(self.take_some(self.size))

    def _remove(self, number: int) -> E:
        """Take out an event that is the oldest of its subscription."""
        name, event, size = self._events.pop(number)
        self.size -= size
        if self.memory is not None:
            self.memory.remove(event)
        numbers = self._numbers[name]
        numbers.popleft()
        if not numbers:
            del self._numbers[name]
        return event


def check_options(max_events: int, policy: str) -> None:
    """Raise ValueError unless a queue can have these options."""
    if max_events < 1:
        raise ValueError(f"a queue of events must have room for at least 1, got {max_events!r}")
    if policy not in get_args(Policy):
        raise ValueError(f"the policy must be one of {', '.join(get_args(Policy))}; got {policy!r}")
