"""Patterns of topics: valid ones, what each matches, covers and overlaps with; compared with enumeration."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rpcstream.events.patterns import (
    LEVELS_MAX,
    TOPIC_MAX,
    PatternTable,
    compiled,
    covers,
    fault_of_pattern,
    fault_of_topic,
    is_pattern,
    matches,
    overlaps,
)

TOPICS = ["a", "a.b", "rpc", "rpc.hub.joined", "räume.2", "with space", "\n\0", "🎈", ".", "a.", "x" * TOPIC_MAX]
PATTERNS = ["*", ">", "a.*", "*.a", "a.>", "*.>", "*.*.*", "a.*.b", "rpc.hub.>", ".*", "*."]
NEITHER = [
    ("", "is empty"),
    ("x" * (TOPIC_MAX + 1), "has more than 256 characters"),
    *((".".join(each * (LEVELS_MAX + 1)), "has more than 32 levels") for each in "x*"),
    *((each, "may have '*' only as a whole level") for each in ("room*", "*room.a", "a.**")),
    *((each, "may have '>' only as its last level, whole") for each in ("a.>.b", ">.>", "a.b>", ">>", "*>")),
]


@pytest.mark.parametrize("text", [*TOPICS, "." * (LEVELS_MAX - 1)])
def test_a_topic_is_a_pattern_that_matches_itself(text: str) -> None:
    assert (fault_of_topic(text), fault_of_pattern(text), is_pattern(text)) == (None, None, False)
    assert matches(text, text)
    assert covers(text, text)
    assert overlaps(text, text)


@pytest.mark.parametrize("text", [*PATTERNS, ".".join("*" * LEVELS_MAX)])
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
    table: PatternTable[str] = PatternTable()
    table.add(pattern, "value")
    expression = compiled(pattern)
    for topic in yes + no:
        assert matches(pattern, topic) is bool(expression.fullmatch(topic)) is (topic in yes), topic
        if not is_pattern(topic):
            assert bool(table.find(topic)) is (topic in yes), topic


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
    assert set(filter(compiled(pattern).fullmatch, ALL_TOPICS)) == expected


@given(patterns(), patterns())
@example(">", "rpc")
@example(">", "rpc.a")
@example("*", "rpc.>")
@example("*.*", "rpc.*")
@example("*.>", ">")
def test_covers_and_overlaps_are_what_the_definition_says(one: str, two: str) -> None:
    assert covers(one, two) is (matched(two) <= matched(one))
    assert overlaps(one, two) is bool(matched(one) & matched(two)) is overlaps(two, one)


@given(
    st.lists(st.tuples(st.booleans(), patterns(), st.integers(0, 2)), max_size=30),
    st.lists(st.sampled_from(ALL_TOPICS), min_size=1, max_size=20),
)
def test_the_table_finds_what_matches(steps: list[tuple[bool, str, int]], topics: list[str]) -> None:
    table: PatternTable[int] = PatternTable()
    model: set[tuple[str, int]] = set()
    for is_added, pattern, value in steps:
        if is_added:
            table.add(pattern, value)
            model.add((pattern, value))
        elif (pattern, value) in model:
            table.remove(pattern, value)
            model.remove((pattern, value))
        else:
            with pytest.raises(KeyError):
                table.remove(pattern, value)
        assert len(table) == len(model)
        for topic in topics:
            expected = [value for pattern, value in model if by_definition(pattern.split("."), topic.split("."))]
            assert sorted(table.find(topic)) == sorted(expected)
    for pattern, value in model:
        table.remove(pattern, value)
    assert (len(table), table.steps) == (0, 1)


def test_a_search_visits_each_node_that_fits_once() -> None:
    """Every way to put wildcards into ten levels: 1,024 patterns, which all match one topic."""
    table: PatternTable[str] = PatternTable()
    for levels in itertools.product("x*", repeat=10):
        table.add(".".join(levels), "".join(levels))
    assert len(set(table.find(".".join("x" * 10)))) == 1024
    assert len(table.find(".".join("x" * 9 + "y"))) == 512
    assert table.find(".".join("x" * 11)) == table.find(".".join("x" * 9)) == []
    # What is no topic is not searched for in two ways at once: that would be two to the power of its levels.
    for last in "*>":
        deepest = ".".join("*" * (LEVELS_MAX - 1) + last)
        table.add(deepest, last)
        assert last in table.find(deepest)


def test_a_topic_of_very_many_levels_costs_no_more_than_the_table_is_deep() -> None:
    table: PatternTable[int] = PatternTable()
    table.add("*.*.a", 1)
    table.add("*.>", 2)
    assert table.find("." * 100_000) == [2]


SHORT = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=4)
MANY = st.builds(lambda levels, rest: ".".join([*levels, *rest]), SHORT, st.sampled_from([(), (">",)]))
WIDE = st.integers(0, 30).map(lambda number: f"n{number}.{'*.' * (number % 4)}x")


@given(st.lists(st.tuples(st.booleans(), st.one_of(MANY, WIDE)), max_size=60))
def test_the_steps_are_those_of_the_topic_that_visits_most(changes: list[tuple[bool, str]]) -> None:
    table: PatternTable[str] = PatternTable()
    there: set[str] = set()
    for comes, pattern in changes:
        if comes:
            table.add(pattern, pattern)
            there.add(pattern)
        elif pattern in there:
            table.remove(pattern, pattern)
            there.remove(pattern)
        assert table.steps == most_steps([each.split(".") for each in there])


def most_steps(patterns: list[list[str]]) -> int:
    """Nodes that a topic visits, for the topic that visits most: by the definition, from the patterns alone."""
    patterns = [pattern for pattern in patterns if pattern]
    names = {pattern[0] for pattern in patterns}
    below = {name: most_steps([pattern[1:] for pattern in patterns if pattern[0] == name]) for name in names}
    exact = [steps for name, steps in below.items() if name not in ("*", ">")]
    return 1 + below.get("*", 0) + (">" in names) + max(exact, default=0)
