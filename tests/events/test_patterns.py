"""Patterns of topics: valid ones, what each matches, covers and overlaps with; compared with enumeration."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rpcstream.events.patterns import (
    LEVELS_MAX,
    PATTERN_LEVELS_MAX,
    TOPIC_MAX,
    PatternTable,
    covers,
    fault_of_pattern,
    fault_of_topic,
    is_pattern,
    matches,
)

TOPICS = ["a", "a.b", "rpc", "rpc.hub.joined", "räume.2", "with space", "\n\0", "🎈", ".", "a.", "x" * TOPIC_MAX]
PATTERNS = ["*", ">", "a.*", "*.a", "a.>", "*.>", "*.*.*", "a.*.b", "rpc.hub.>", ".*", "*."]
WILDCARDS = "may have '*' only as a whole level, and '>' only as the last one, whole"
NEITHER = [
    ("", "is empty"),
    ("x" * (TOPIC_MAX + 1), "has more than 256 characters"),
    (".".join("x" * (LEVELS_MAX + 1)), "has more than 32 levels"),
    (".".join("*" * (PATTERN_LEVELS_MAX + 1)), "has more than 9 levels"),
    *((each, WILDCARDS) for each in ("room*", "*room.a", "a.**", "a.>.b", ">.>", "a.b>", ">>", "*>")),
]


@pytest.mark.parametrize("text", [*TOPICS, "." * (LEVELS_MAX - 1)])
def test_a_topic_is_a_pattern_that_matches_itself(text: str) -> None:
    assert (fault_of_topic(text), fault_of_pattern(text), is_pattern(text)) == (None, None, False)
    assert matches(text, text)
    assert covers(text, text)


@pytest.mark.parametrize("text", [*PATTERNS, ".".join("*" * PATTERN_LEVELS_MAX)])
def test_patterns(text: str) -> None:
    assert (fault_of_pattern(text), is_pattern(text)) == (None, True)
    assert fault_of_topic(text) == "must not contain '*' or '>', which are for patterns"


@pytest.mark.parametrize(("text", "fault"), NEITHER)
def test_what_is_neither(text: str, fault: str) -> None:
    assert fault_of_pattern(text) == fault
    assert fault_of_topic(text) is not None


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a.*", ["a.b", "a.", "a.*"], ["a", "a.b.c", "b.a", "a.b."]),
        ("a.>", ["a.b", "a.b.c", "a.", "a.."], ["a", "b", "ab.c"]),
        ("*", ["a", "rpc"], ["a.b", "rpc.a", "rpc."]),
        (">", ["a", "a.b", "rpc", "rpcs.a"], ["rpc.a", "rpc.hub.joined", "rpc."]),
        ("*.>", ["a.b", "a.b.c"], ["a", "rpc.a", "rpc.a.b"]),
        ("*.a", ["b.a", ".a"], ["rpc.a", "a", "a.b"]),
        ("rpc.>", ["rpc.a", "rpc.hub.joined"], ["rpc", "rpcs.a"]),
        ("rpc.*.joined", ["rpc.hub.joined"], ["rpc.joined"]),
        ("a.*.c", ["a.b.c", "a.\n.c", "a..c"], ["a.b.b.c", "a.c"]),
        ("a+.[b]*", [], ["aa.b"]),
    ],
)
def test_matches(pattern: str, yes: list[str], no: list[str]) -> None:
    table = PatternTable()
    if is_pattern(pattern) and fault_of_pattern(pattern) is None:
        table.add(pattern)
    for topic in yes + no:
        assert matches(pattern, topic) is (topic in yes), topic
        if table and not is_pattern(topic):
            assert table.find(topic) == [pattern] * (topic in yes), topic


LEVELS = ["a", "b", "rpc"]
#: "z" stands in no pattern. One level longer than any pattern, so that `>` shows what it means.
ALL_TOPICS = [".".join(levels) for count in range(1, 5) for levels in itertools.product([*LEVELS, "z"], repeat=count)]


@st.composite
def patterns(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from([*LEVELS, "*"]), max_size=3))
    if not levels or (len(levels) < 3 and draw(st.booleans())):
        levels.append(">")
    return ".".join(levels)


def by_definition(pattern: list[str], topic: list[str], *, first: bool = True) -> bool:
    if not pattern or not topic:
        return pattern == topic
    if first and pattern[0] in "*>" and topic[0] == "rpc" and len(topic) > 1:
        return False
    if pattern[0] == ">":
        return True
    return pattern[0] in ("*", topic[0]) and by_definition(pattern[1:], topic[1:], first=False)


def matched(pattern: str) -> set[str]:
    return {topic for topic in ALL_TOPICS if by_definition(pattern.split("."), topic.split("."))}


@given(patterns())
def test_matches_what_the_definition_says(pattern: str) -> None:
    assert fault_of_pattern(pattern) is None
    expected = matched(pattern)
    assert {topic for topic in ALL_TOPICS if matches(pattern, topic)} == expected


@given(patterns(), patterns())
@example(">", "rpc")
@example(">", "rpc.a")
@example("*", "rpc.>")
@example("*.*", "rpc.*")
@example("*.>", ">")
def test_covers_is_what_the_definition_says(one: str, two: str) -> None:
    assert covers(one, two) is (matched(two) <= matched(one))


@given(
    st.lists(st.tuples(st.booleans(), patterns().filter(is_pattern)), max_size=30),
    st.lists(st.sampled_from(ALL_TOPICS), min_size=1, max_size=20),
)
def test_the_table_finds_what_matches(steps: list[tuple[bool, str]], topics: list[str]) -> None:
    table = PatternTable()
    model: set[str] = set()
    for is_added, pattern in steps:
        if is_added:
            table.add(pattern)
            model.add(pattern)
        elif pattern in model:
            table.remove(pattern)
            model.remove(pattern)
        else:
            with pytest.raises(KeyError):
                table.remove(pattern)
        for topic in topics:
            expected = [pattern for pattern in model if by_definition(pattern.split("."), topic.split("."))]
            assert sorted(table.find(topic)) == sorted(expected)
    for pattern in model:
        table.remove(pattern)
    assert not table


def test_many_patterns_that_match_the_same_topic_are_all_found() -> None:
    """Every way to put wildcards into ten levels: 1,023 patterns, which all match one topic."""
    table = PatternTable()
    for levels in itertools.product("x*", repeat=10):
        if "*" in levels:
            table.add(".".join(levels))
    assert len(set(table.find(".".join("x" * 10)))) == 1023
    assert len(table.find(".".join("x" * 9 + "y"))) == 512
    assert table.find(".".join("x" * 11)) == table.find(".".join("x" * 9)) == []
    deepest = ".".join("*" * (LEVELS_MAX - 1) + ">")
    table.add(deepest)
    assert table.find(deepest) == [deepest], "a topic with wildcards in it is looked up as any other"


def test_a_topic_of_very_many_levels_costs_no_more_than_another() -> None:
    table = PatternTable()
    table.add("*.*.a")
    table.add("*.>")
    assert table.find("." * 100_000) == ["*.>"]
