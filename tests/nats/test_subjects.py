"""Names of methods, topics and clients as subjects of NATS, and back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rpcstream.nats.subjects import SUBJECT_MAX, check_service, decoded, encoded

pytestmark = pytest.mark.nats

#: Any text, with many of the characters that have a meaning, and of those that forbidden ones become.
NAMES = st.text(
    st.one_of(st.sampled_from(".$*>% -%2EF24\t\r\n\x00\x0b\x7f\x85\u00a0\u2028é\U0001d538"), st.characters()),
    max_size=60,
)

#: Tokens of our own, below a service, and of NATS.
OURS = ("$batch", "$instance", "$inquiry", "$event", "$hub", "$SRV", "$JS", "$SYS")


@given(NAMES)
@example("")
@example(".")
@example("..")
@example("$batch")
@example("a.$instance")
@example("%24batch")
@example("%-")
@example("a..b")
@example("a.%-.b")
@example("\ud800")
@example("\ud800\udc00")
def test_each_name_is_tokens_that_nats_takes_and_comes_back(name: str) -> None:
    subject = encoded(name)
    for token in subject.split("."):
        assert token, subject
        assert not token.startswith("$")
        assert not any(character in "*>" or character.isspace() or ord(character) < 33 for character in token)
        assert token not in OURS
    subject.encode()
    assert decoded(subject) == name


@given(NAMES, NAMES)
@example("a.", "a.%-")
@example("$a", "%24a")
@example("é", "%C3%A9")
def test_two_names_are_two_subjects(one: str, other: str) -> None:
    assert (encoded(one) == encoded(other)) == (one == other)


@given(st.text(max_size=40))
def test_any_tokens_have_a_name_or_none(tokens: str) -> None:
    """Others choose what stands in a subject."""
    try:
        name = decoded(tokens)
    except ValueError:
        return
    assert isinstance(name, str)


def test_usual_names_stay_as_they_are() -> None:
    for name in ("add", "camera.grab", "rpc.ping", "a-b_c/d:e", "größe"):
        assert encoded(name) == name


def test_names_that_are_too_long() -> None:
    assert len(encoded("x" * SUBJECT_MAX)) == SUBJECT_MAX
    for name in ("x" * (SUBJECT_MAX + 1), "ö" * (SUBJECT_MAX // 2 + 1), "*" * (SUBJECT_MAX // 3 + 1)):
        with pytest.raises(ValueError, match="too long for NATS"):
            encoded(name)


@pytest.mark.parametrize("name", ["a", "vision-2", "A_b", "x" * 64])
def test_services(name: str) -> None:
    assert check_service(name) == name


@pytest.mark.parametrize("name", ["", "a.b", "a b", "$a", "*", ">", "x" * 65, "ä", "a\n"])
def test_no_services(name: str) -> None:
    with pytest.raises(ValueError, match="a service is called by"):
        check_service(name)
