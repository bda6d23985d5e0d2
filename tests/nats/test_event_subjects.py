"""Topics and patterns of events as subjects of NATS: without a server of NATS."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcstream.events.patterns import fault_of_pattern, fault_of_topic, matches
from rpcstream.nats.subjects import decoded, event_subject, event_tokens

LEVELS = st.sampled_from(["a", "b", "", "rpc", "$x", "ü", "a b", "%2A", "\u2003", "\x00", "end.", "~"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=5).map(".".join)
PATTERNS = st.tuples(
    st.lists(st.one_of(LEVELS, st.just("*")), max_size=4), st.one_of(LEVELS, st.sampled_from(["*", ">"]))
).map(lambda parts: ".".join([*parts[0], parts[1]]))


def nats_matches(pattern: str, subject: str) -> bool:
    """Whether NATS sends a message with this subject to a subscription, as its documentation says."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for number, each in enumerate(wanted):
        if each == ">":
            return len(tokens) > number
        if number >= len(tokens) or each not in ("*", tokens[number]):
            return False
    return len(wanted) == len(tokens)


@given(pattern=PATTERNS, topic=TOPICS)
def test_patterns_match_what_nats_matches(pattern: str, topic: str) -> None:
    if fault_of_pattern(pattern) is not None or fault_of_topic(topic) is not None:
        return
    ours, theirs = matches(pattern, topic), nats_matches(event_tokens(pattern), event_tokens(topic))
    # Topics of rpcstream itself are never on NATS; what comes there is matched again.
    assert ours == theirs or (topic.startswith("rpc.") and pattern[0] in "*>")


@given(topic=st.text(max_size=60))
def test_every_topic_has_a_subject_of_its_own(topic: str) -> None:
    if fault_of_topic(topic) is not None:
        return
    tokens = event_tokens(topic)
    assert decoded(tokens) == topic
    assert all(token and not token.startswith("$") for token in tokens.split("."))
    assert not set(tokens) & set(" \t\r\n*>")


def test_the_longest_topics_are_too_long_for_nats() -> None:
    """256 characters, each of which takes nine bytes, or is a dot."""
    for topic in ("\u2003" * 256, ".".join(["\u2003" * 120, "\u2003" * 120, "*"])):
        with pytest.raises(ValueError, match="too long for NATS"):
            event_subject("s", topic)
    assert len(event_subject("s", "a" * 256)) == 256 + len("rpc.s.$event.")
