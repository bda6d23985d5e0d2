"""Retained values: which are kept, in what order, and their limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcstream import ServerBusy
from rpcstream.events.patterns import matches
from rpcstream.events.retained import Retained


def kept(*topics: str, max_topics: int = 5, max_bytes: int = 100) -> Retained:
    retained = Retained(max_topics, max_bytes)
    for topic in topics:
        retained.keep(topic, topic.encode())
    return retained


def topics_of(retained: Retained, pattern: str, *denied: str) -> list[str]:
    return [topic for topic, _ in retained.newest(pattern, denied)]


def test_the_newest_comes_first_and_a_topic_has_one() -> None:
    retained = kept("a.b", "a.c", "b", "a.b")
    assert retained.newest("a.*") == [("a.b", b"a.b"), ("a.c", b"a.c")]
    assert topics_of(retained, ">") == ["a.b", "b", "a.c"]
    assert topics_of(retained, "b") == ["b"]
    assert topics_of(retained, "c") == topics_of(retained, "*.*.*") == topics_of(kept(), ">") == []
    assert topics_of(retained, ">", "*.b", "c") == ["b", "a.c"]


def test_what_is_forgotten_leaves_room() -> None:
    retained = kept("a", "b", max_topics=2)
    assert (retained.forget("a"), retained.forget("a"), len(retained)) == (True, False, 1)
    retained.keep("c", b"")
    assert topics_of(retained, ">") == ["c", "b"]


def test_too_many_topics() -> None:
    retained = kept("a", "b", max_topics=2)
    with pytest.raises(ServerBusy, match="2 topics have a last value") as caught:
        retained.keep("c", b"")
    assert caught.value.data == {"limit": 2}
    retained.keep("a", b"another")
    assert retained.newest(">") == [("a", b"another"), ("b", b"b")]


def test_too_many_bytes() -> None:
    retained = kept(max_bytes=10)
    retained.keep("a", b"x" * 6)
    with pytest.raises(ServerBusy, match="would take 11 bytes, 10 are allowed") as caught:
        retained.keep("b", b"x" * 5)
    assert caught.value.data == {"limit": 10, "size": 11}
    retained.keep("a", b"x" * 10)
    with pytest.raises(ServerBusy):
        retained.keep("a", b"x" * 11)
    assert retained.newest(">") == [("a", b"x" * 10)], "what could not be kept replaced nothing"
    retained.forget("a")
    retained.keep("b", b"x" * 10)


TOPICS = st.sampled_from(["a", "b", "a.b", "a.c", "b.c", "rpc.a"])
STEPS = st.lists(
    st.one_of(st.tuples(st.just("keep"), TOPICS, st.binary(max_size=6)), st.tuples(st.just("forget"), TOPICS)),
    max_size=30,
)


@given(STEPS, st.sampled_from([">", "*", "a.*", "*.c", "a", "rpc.*"]))
def test_it_does_what_a_list_does(steps: list[Any], pattern: str) -> None:
    retained = kept(max_topics=3, max_bytes=10)
    model: list[tuple[str, bytes]] = []
    for name, topic, *message in steps:
        rest = [each for each in model if each[0] != topic]
        if name == "forget":
            assert retained.forget(topic) is (len(rest) < len(model))
            model = rest
        elif len(rest) < 3 and sum(len(each[1]) for each in rest) + len(message[0]) <= 10:
            retained.keep(topic, message[0])
            model = [*rest, (topic, message[0])]
        else:
            with pytest.raises(ServerBusy):
                retained.keep(topic, message[0])
        assert retained.newest(pattern) == [each for each in reversed(model) if matches(pattern, each[0])]
