"""The queue of one subscription: order, bounds, policies, counts; compared with a plain list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcstream.events.event_queue import EventQueue, Policy


def filled(policy: Policy, *events: tuple[str, int], max_events: int = 2, max_bytes: int = 10) -> EventQueue[int]:
    """A queue into which events of one byte were put, named by their topic and number."""
    queue: EventQueue[int] = EventQueue(max_events, max_bytes, policy)
    for topic, number in events:
        queue.put(topic, number, 1)
    return queue


def all_of(queue: EventQueue[Any]) -> list[Any]:
    return [queue.take() for _ in range(len(queue))]


def test_events_come_out_in_the_order_in_which_they_came_whatever_their_topic() -> None:
    queue = filled("drop_oldest", ("a", 1), ("b", 2), ("a", 3), ("b", 4))
    assert all_of(queue) == [1, 2, 3, 4]
    assert (len(queue), queue.size, queue.dropped) == (0, 0, 0)
    with pytest.raises(IndexError, match="no event waits"):
        queue.take()


def test_the_oldest_of_the_topic_is_dropped() -> None:
    queue = filled("drop_oldest", ("a", 1), ("b", 2), ("a", 3), ("a", 4), ("a", 5))
    assert (len(queue), queue.dropped) == (3, 2)
    assert all_of(queue) == [2, 4, 5]


def test_the_newest_is_dropped() -> None:
    queue = filled("drop_newest", ("a", 1), ("a", 2))
    assert not queue.put("a", 3, 1)
    assert queue.put("b", 4, 1)
    assert (all_of(queue), queue.dropped) == ([1, 2, 4], 1)
    assert queue.put("a", 5, 1), "there is room again"


def test_after_an_overflow_nothing_is_kept_any_more() -> None:
    queue = filled("disconnect", ("a", 1), ("a", 2))
    assert not queue.has_overflowed
    assert not queue.put("a", 3, 1)
    assert queue.has_overflowed
    assert all_of(queue) == [1, 2], "what waits may still be taken"
    assert not queue.put("a", 4, 1)
    assert queue.dropped == 2


def test_sizes_count_over_all_topics() -> None:
    queue: EventQueue[int] = EventQueue(100, 10, "drop_oldest")
    for number, (topic, size) in enumerate([("a", 4), ("b", 4), ("a", 2), ("b", 1), ("c", 6)]):
        assert queue.put(topic, number, size)
    assert (queue.size, queue.dropped) == (9, 2)
    assert all_of(queue) == [2, 3, 4]


@pytest.mark.parametrize("policy", ["drop_newest", "disconnect"])
def test_sizes_count_for_the_other_policies(policy: Policy) -> None:
    queue: EventQueue[int] = EventQueue(100, 10, policy)
    assert [queue.put("a", 1, 6), queue.put("b", 2, 6)] == [True, False]
    assert queue.has_overflowed is (policy == "disconnect")


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest", "disconnect"])
def test_a_single_event_is_kept_whatever_its_size(policy: Policy) -> None:
    queue: EventQueue[int] = EventQueue(1, 10, policy)
    assert queue.put("a", 1, 1000)
    assert all_of(queue) == [1]


def test_some_are_taken_at_a_time() -> None:
    queue: EventQueue[int] = EventQueue(100, 100, "drop_oldest")
    for number, size in enumerate([3, 3, 3, 50, 1]):
        queue.put("a", number, size)
    assert queue.take_some(5) == [0, 1]
    assert queue.take_some(3) == [2]
    assert queue.take_some(1) == [3], "at least one"
    assert queue.take_some(1000) == [4]
    assert queue.take_some(1000) == []


def test_what_nobody_wants_is_forgotten_and_not_counted_as_dropped() -> None:
    queue = filled("drop_oldest", ("a", 1), ("b", 2), ("a", 3))
    assert (queue.forget("a"), queue.forget("a"), queue.forget("never")) == (2, 0, 0)
    assert all_of(queue) == [2]
    queue = filled("drop_oldest", ("a", 1), ("b", 2))
    assert (queue.clear(), len(queue), queue.size, queue.dropped) == (2, 0, 0, 0)
    assert queue.put("a", 3, 1)
    assert all_of(queue) == [3]


def test_what_waits_may_wait_for_somebody_else_at_its_place() -> None:
    queue = filled("drop_oldest", ("a", 1), ("b", 2), ("a", 3), ("b", 4))
    assert queue.move("a", {1: "b", 3: None}.get) == 1
    assert (len(queue), queue.size, queue.dropped) == (3, 3, 0)
    assert queue.move("a", lambda event: "b") == queue.move("never", lambda event: "b") == 0
    queue.put("b", 5, 1)
    assert all_of(queue) == [2, 4, 5], "there were three of b, and two are allowed: the oldest went"


def test_room_is_what_more_events_may_have() -> None:
    queue = filled("drop_oldest", ("a", 1))
    assert queue.free == 9
    queue.clear()
    queue.put("a", 2, 30)
    assert queue.free == -20


@pytest.mark.parametrize("max_events", [0, -1])
def test_a_queue_without_room_is_refused(max_events: int) -> None:
    with pytest.raises(ValueError, match="room for at least 1"):
        EventQueue(max_events, 10, "drop_oldest")


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="one of drop_oldest, drop_newest, disconnect; got 'wait'"):
        EventQueue(1, 10, "wait")  # type: ignore[arg-type]


class Model:
    """The same as a list of (topic, number, size), searched from end to end."""

    def __init__(self, max_events: int, max_bytes: int, policy: Policy) -> None:
        self.max_events, self.max_bytes, self.policy = max_events, max_bytes, policy
        self.events: list[tuple[str, int, int]] = []
        self.dropped = 0
        self.has_overflowed = False

    @property
    def size(self) -> int:
        return sum(size for _, _, size in self.events)

    def put(self, topic: str, number: int, size: int) -> bool:
        crowded = len([each for each in self.events if each[0] == topic]) >= self.max_events
        too_large = bool(self.events) and self.size + size > self.max_bytes
        if self.has_overflowed or ((crowded or too_large) and self.policy != "drop_oldest"):
            self.has_overflowed = self.policy == "disconnect"
            self.dropped += 1
            return False
        if crowded:
            self.events.remove(next(each for each in self.events if each[0] == topic))
            self.dropped += 1
        while self.events and self.size + size > self.max_bytes:
            del self.events[0]
            self.dropped += 1
        self.events.append((topic, number, size))
        return True

    def take_some(self, size: int) -> list[int]:
        taken: list[tuple[str, int, int]] = []
        while self.events and (not taken or sum(each[2] for each in taken) < size):
            taken.append(self.events.pop(0))
        return [number for _, number, _ in taken]

    def move(self, topic: str, choose: Callable[[int], str | None]) -> int:
        before = len(self.events)
        moved = [(choose(number) if each == topic else each, number, size) for each, number, size in self.events]
        self.events = [(each, number, size) for each, number, size in moved if each is not None]
        return before - len(self.events)

    def forget(self, topic: str) -> int:
        before = len(self.events)
        self.events = [each for each in self.events if each[0] != topic]
        return before - len(self.events)


HEIRS = [None, "d", "e"]
TOPICS = st.sampled_from("abc")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), TOPICS, st.integers(1, 12)),
        st.tuples(st.just("take_some"), st.integers(1, 12)),
        st.tuples(st.just("forget"), TOPICS),
        st.tuples(st.just("move"), TOPICS, st.sampled_from([lambda number: "d", lambda number: HEIRS[number % 3]])),
    ),
    max_size=40,
)


@given(
    max_events=st.integers(1, 4),
    policy=st.sampled_from(["drop_oldest", "drop_newest", "disconnect"]),
    steps=STEPS,
)
def test_it_does_what_the_model_does(max_events: int, policy: Policy, steps: list[Any]) -> None:
    queue: EventQueue[int] = EventQueue(max_events, 20, policy)
    model = Model(max_events, 20, policy)
    for number, (name, *args) in enumerate(steps):
        if name == "put":
            args.insert(1, number)
        assert getattr(queue, name)(*args) == getattr(model, name)(*args)
        seen = (len(queue), queue.size, queue.dropped, queue.has_overflowed)
        assert seen == (len(model.events), model.size, model.dropped, model.has_overflowed)
        assert queue.size <= 20 or len(queue) == 1
