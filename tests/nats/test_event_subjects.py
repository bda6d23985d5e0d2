"""Subjects of events, and what is read of their payloads: without a server of NATS."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("nats")

from rpcstream.codec import Codec
from rpcstream.errors import MessageTooLarge
from rpcstream.events.patterns import fault_of_pattern, fault_of_topic, matches
from rpcstream.limits import Limits
from rpcstream.nats.event_messages import (
    ALONE,
    NoEvent,
    PublisherMark,
    passed_on,
    payload_of,
    prefix_of_marks,
    read_event,
)
from rpcstream.nats.subjects import decoded, event_subject, event_tokens
from rpcstream.wire.buffers import AttachedMessage

pytestmark = pytest.mark.nats

LEVELS = st.sampled_from(["a", "b", "", "rpc", "$x", "ü", "a b", "%2A", "\u2003", "\x00", "end.", "~"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=5).map(".".join)
PATTERNS = st.tuples(
    st.lists(st.one_of(LEVELS, st.just("*")), max_size=4), st.one_of(LEVELS, st.sampled_from(["*", ">"]))
).map(lambda parts: ".".join([*parts[0], parts[1]]))

CODEC = Codec()


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
    # 256 characters, each of which takes nine bytes, or is a dot.
    with pytest.raises(ValueError, match="too long for NATS"):
        event_subject("s", "\u2003" * 256)
    with pytest.raises(ValueError, match="too long for NATS"):
        event_subject("s", ".".join(["\u2003" * 120, "\u2003" * 120, "*"]))
    assert len(event_subject("s", "a" * 256)) == 256 + len("rpc.s.$event.")


# -- payloads ---------------------------------------------------------------------------------------------------------


def event(topic: str, value: object, *, binary: bool = False) -> bytes:
    message = {"jsonrpc": "2.0", "method": "$/event", "params": {"topic": topic, "value": value}}
    return payload_of(CODEC.serialize(message, binary=binary), 1 << 20)


def test_an_event_with_an_array_is_a_frame_that_is_passed_on_as_it_came() -> None:
    array = np.arange(5000, dtype=np.float64)
    data = event("a.b", {"x": array, "y": [array[:1000]]}, binary=True)
    assert data[:1] == b"@"
    read = read_event(data, "a.b", Limits())
    value = CODEC.decode(read.params["value"])
    assert np.array_equal(value["x"], array)
    assert np.array_equal(value["y"][0], array[:1000])
    again = passed_on(data, "a.b", Limits())
    assert type(again) is AttachedMessage
    assert payload_of(again, 1 << 20) == data


def test_what_another_program_has_formatted_comes_on_one_line() -> None:
    message = {"jsonrpc": "2.0", "method": "$/event", "params": {"topic": "a", "value": {"text": "two\nlines"}}}
    data = json.dumps(message, indent=2).replace("\n", "\r\n").encode()
    again = passed_on(data, "a", Limits())
    assert not set(bytes(again)) & set(b"\r\n")
    assert json.loads(bytes(again)) == message


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b"[]", "no `\\$/event`"),
        (b'{"method": "add", "params": {"topic": "a", "value": 1}}', "no `\\$/event`"),
        (b'{"method": "$/event", "params": ["a", 1]}', "its params"),
        (b'{"method": "$/event", "params": {"topic": "b", "value": 1}}', "its params"),
        (b'{"method": "$/event", "params": {"topic": "a"}}', "its params"),
        (b"@", "malformed"),
        (b"@5 8\n[1,2]", "not whole"),
        (b"@5 0:8\n[1,2]12345678", "not whole"),
        (b"@5 8\n[1,2]12345678" + bytes(100), "not whole"),
        (
            b'{"method": "$/event", "params": {"topic": "a", "value": ' + b"[1," * 60 + b"1" + b"]" * 60 + b"}}",
            "values",
        ),
    ],
)
def test_what_is_no_event_is_not_read(data: bytes, why: str) -> None:
    with pytest.raises(NoEvent, match=why):
        read_event(data, "a", Limits(max_values=100))
    with pytest.raises(NoEvent):
        passed_on(data, "a", Limits(max_values=100, max_depth=20))


def test_a_deep_value_is_not_passed_on() -> None:
    value: object = 1
    for _ in range(30):
        value = [value]
    data = event("a", value)
    assert read_event(data, "a", Limits(max_values=1000)).params["value"] == value
    with pytest.raises(NoEvent, match="max_depth"):
        passed_on(data, "a", Limits(max_values=1000, max_depth=20))


@given(data=st.one_of(st.binary(max_size=300), st.binary(max_size=100).map(lambda rest: event("a", 1) + rest)))
def test_any_bytes_are_an_event_or_none(data: bytes) -> None:
    try:
        read = read_event(data, "a", Limits(max_values=1000))
    except NoEvent:
        return
    assert read.params["topic"] == "a"


@given(number=st.integers(1, 400), at=st.integers(0, 399), to=st.binary(max_size=3))
def test_a_broken_frame_is_an_event_or_none(number: int, at: int, to: bytes) -> None:
    data = event("a", np.zeros(4096, np.uint8), binary=True)
    broken = data[:at] + to + data[at + 1 : number]
    try:
        read_event(broken, "a", Limits(max_values=1000))
    except NoEvent:
        return
    raise AssertionError("less than the whole frame cannot be read")


def test_an_event_over_max_payload_says_so() -> None:
    with pytest.raises(MessageTooLarge) as caught:
        payload_of(b"x" * 4000, 4096)
    assert caught.value.data["limit"] == 4096 - 1024
    assert "max_payload" in caught.value.data["reason"]


# -- marks ------------------------------------------------------------------------------------------------------------


def test_a_mark_says_who_has_published_and_how_often() -> None:
    prefix = prefix_of_marks("_INBOX.abc", "group")
    assert PublisherMark.of(f"{prefix}12") == ("_INBOX.abc", "group", 12)
    assert PublisherMark.of(f"{prefix_of_marks('_INBOX.abc')}1") == ("_INBOX.abc", ALONE, 1)


@pytest.mark.parametrize(
    "reply", ["", "a", "_INBOX.abc.def", "_INBOX.abc.event.-.x", "_INBOX.abc.12.34", "a.b.c.\u0664"]
)
def test_reply_subjects_of_other_programs_are_no_marks(reply: str) -> None:
    assert PublisherMark.of(reply) is None
