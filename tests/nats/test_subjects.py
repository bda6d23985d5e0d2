"""Names of methods, topics, patterns and services as subjects of NATS, and back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rpcstream.events.patterns import fault_of_pattern, fault_of_topic, matches
from rpcstream.nats.messages import SUBJECT_MAX, check_service, decoded, encoded, event_subject, event_tokens

#: Any text, with many of the characters that have a meaning, and of those that forbidden ones become.
NAMES = st.text(
    st.one_of(st.sampled_from(".$*>% -%2EF24\t\r\n\x00\x0b\x7f\x85\u00a0\u2028é\U0001d538"), st.characters()),
    max_size=60,
)

LEVELS = st.sampled_from(["a", "b", "", "rpc", "$x", "ü", "a b", "%2A", "\u2003", "\x00", "end.", "~"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=5).map(".".join)
PATTERNS = st.tuples(
    st.lists(st.one_of(LEVELS, st.just("*")), max_size=4), st.one_of(LEVELS, st.sampled_from(["*", ">"]))
).map(lambda parts: ".".join([*parts[0], parts[1]]))


@given(NAMES)
@example("")
@example("..")
@example("a.$instance")
@example("%24batch")
@example("%-")
@example("a.%-.b")
def test_each_name_is_tokens_that_nats_takes_and_comes_back(name: str) -> None:
    subject = encoded(name)
    for token in subject.split("."):
        assert token, subject
        assert not token.startswith("$")
        assert not any(character in "*>" or character.isspace() or ord(character) < 33 for character in token)
    subject.encode()
    assert decoded(subject) == (None if any("\ud800" <= character <= "\udfff" for character in name) else name)


@given(st.text(max_size=40))
def test_any_tokens_have_a_name_or_none(tokens: str) -> None:
    """Others choose what stands in a subject."""
    assert isinstance(decoded(tokens), str | None)


def test_usual_names_stay_as_they_are_and_long_ones_are_refused() -> None:
    for name in ("add", "camera.grab", "rpc.ping", "a-b_c/d:e", "größe"):
        assert encoded(name) == name
    assert len(encoded("x" * SUBJECT_MAX)) == SUBJECT_MAX
    for name in ("x" * (SUBJECT_MAX + 1), "ö" * (SUBJECT_MAX // 2 + 1), "*" * (SUBJECT_MAX // 3 + 1)):
        with pytest.raises(ValueError, match="too long for NATS"):
            encoded(name)


def test_names_of_services() -> None:
    for name in ("a", "vision-2", "A_b", "x" * 64):
        assert check_service(name) == name
    for name in ("", "a.b", "a b", "$a", "*", ">", "x" * 65, "ä", "a\n"):
        with pytest.raises(ValueError, match="a service is called by"):
            check_service(name)


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
