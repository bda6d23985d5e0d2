"""Events that wait for somebody who is slower than they come: in order, bounded, with a policy for when it is too much.

Owns what is kept and what is dropped, and counts that. Knows neither connections nor what an event is: a server has one
of these for each subscriber, a client one for each reader. What is called a topic here is any name by which events are
bounded and forgotten: at a server that of the subscription, which may be a pattern. Pure; for one thread at a time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, get_args

from ..wire.pieces import Written

#: What is dropped when the queue is full: the oldest event; the one that comes; or the subscriber, with all of it.
Policy = Literal["drop_oldest", "drop_newest", "disconnect"]

E = TypeVar("E")

#: Events that one subscription may have got from others that ended, if it may not have as many by itself: whoever ends
#: them one after the other does not have ever more of them moved.
MOVED_MAX = 2000

#: Bytes of memory that an event takes in a queue besides its message.
EVENT_COST = 400


class Waiting:
    """A message that may wait in several queues, and takes its memory once; its size in bytes.

    Attributes:
        holders: places where it waits.
    """

    __slots__ = ("holders", "message", "topic")

    def __init__(self, topic: str, message: Written) -> None:
        self.topic = topic
        self.message = message
        self.holders = 0

    def __len__(self) -> int:
        return len(self.message)


class Room:
    """The memory of all that waits for connections which are too slow for it, for all of them together.

    Each may have as much as is free now. So one that has little always finds room: many that are slow share what
    there is in equal parts, and leave such a part free. For whoever has the lock of those who use it.

    Args:
        size: bytes.
    """

    __slots__ = ("size", "used")

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0

    @property
    def free(self) -> int:
        return self.size - self.used

    # Of a queue whose events are something else the room is None.
    def enter(self, waiting: Any) -> None:
        """A `Waiting` waits at one place more."""
        self.used += EVENT_COST if waiting.holders else EVENT_COST + len(waiting.message)
        waiting.holders += 1

    def leave(self, waiting: Any) -> None:
        """It waits at one place less."""
        waiting.holders -= 1
        self.used -= EVENT_COST if waiting.holders else EVENT_COST + len(waiting.message)


class EventQueue(Generic[E]):
    """What waits, over all topics, in the order in which it came.

    One topic cannot crowd out the others by its number of events, only by their size.

    Args:
        max_events: of one topic that may wait.
        max_bytes: that the events of all topics may have together; a single one may have more.
        room: that this queue shares with others; its events are `Waiting` then.

    Attributes:
        size: bytes of the events that wait.
        dropped: events that there was no room for.
        has_overflowed: it was full, and the policy is "disconnect". Nothing is kept from then on.

    Raises:
        ValueError: `max_events` or the policy makes no sense.
    """

    __slots__ = (
        "_events",
        "_last",
        "_max_bytes",
        "_max_events",
        "_numbers",
        "_policy",
        "_room",
        "dropped",
        "has_overflowed",
        "size",
    )

    def __init__(self, max_events: int, max_bytes: int, policy: Policy, room: Room | None = None) -> None:
        check(max_events, policy)
        self._room = room
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
    def room(self) -> int:
        """Bytes that more events may have; negative, if a single large one waits."""
        return self._most - self.size

    @property
    def _most(self) -> int:
        """Bytes that all events may have now."""
        return self._max_bytes if self._room is None else min(self._max_bytes, self._room.free)

    def put(self, topic: str, event: E, size: int) -> bool:
        """Keep an event of so many bytes; false if it was dropped."""
        numbers, room, most = self._numbers.get(topic), self._room, self._max_bytes
        if room is not None and room.size - room.used < most:
            most = room.size - room.used
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
        if room is not None:
            room.enter(event)
        return True

    def _has_made_room(self, topic: str, size: int) -> bool:
        """Can an event of the topic be kept, once others are dropped by the policy? Else it is counted as dropped."""
        numbers, room = self._numbers.get(topic), self._room
        crowded = numbers is not None and len(numbers) >= self._max_events
        too_large = (room is not None and size > room.free) or (self.size + size > self._most and bool(self._events))
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
        if room is not None and size > room.free:
            self.dropped += 1
            return False
        return True

    def take(self) -> E:
        """The oldest event. IndexError if there is none."""
        if not self._events:
            raise IndexError("no event waits")
        return self._remove(next(iter(self._events)))

    def take_some(self, size: int) -> list[E]:
        """The oldest events until they have `size` bytes together; at least one, if there is any."""
        events: list[E] = []
        rest = self.size - size
        while self._events and (self.size > rest or not events):
            events.append(self._remove(next(iter(self._events))))
        return events

    def forget(self, topic: str) -> int:
        """Nobody wants what waits of a topic; how many events that was."""
        numbers = list(self._numbers.get(topic, ()))
        for number in numbers:
            self._remove(number)
        return len(numbers)

    def move(self, topic: str, choose: Callable[[E], str | None]) -> int:
        """Let what waits of a topic wait as of others, each event at its place; how many were forgotten instead.

        Others may have more than `max_events` then, up to `MOVED_MAX`, and are dropped from like those that are full.

        Args:
            choose: gives the other topic of an event, or None: nobody wants it.
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
        """Nobody wants what waits; how many events that was."""
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
        """Take an event out; it is the oldest of its topic."""
        topic, event, size = self._events.pop(number)
        numbers = self._numbers[topic]
        numbers.popleft()
        if not numbers:
            del self._numbers[topic]
        self.size -= size
        if self._room is not None:
            self._room.leave(event)
        return event

    def _has_left(self, event: E, size: int) -> None:
        self.size -= size
        if self._room is not None:
            self._room.leave(event)


def check(max_events: int, policy: str) -> None:
    """Raises ValueError unless a queue can be made of these."""
    if max_events < 1:
        raise ValueError(f"a queue of events must have room for at least 1, got {max_events!r}")
    if policy not in get_args(Policy):
        raise ValueError(f"the policy must be one of {', '.join(get_args(Policy))}; got {policy!r}")
