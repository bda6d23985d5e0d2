"""Suggestions for unknown names: what is near, and what a search may cost."""

from __future__ import annotations

import random
import string

import pytest

from rpcstream.nearest import MAX_LENGTH, MAX_NAMES, NameIndex, SearchBudget, did_you_mean, nearest


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("txt", ["text", "size"], ["text"]),
        ("TEXT", ["text", "size"], ["text"]),
        ("vectroize", ["vectorize", "authorize"], ["vectorize"]),
        ("time_out", ["timeout", "title"], ["timeout"]),
        ("vec", ["vectorize", "sum"], ["vectorize"]),
        ("sum", ["math.sum", "rpc.ping"], ["math.sum"]),
        ("sum", [], []),
        ("", ["a"], []),
        ("zzz", ["text", "size"], []),
        (5, ["text", "5"], ["5"]),
    ],
)
def test_what_is_near(name: object, known: list[str], found: list[str]) -> None:
    assert nearest(name, known, 2) == found


def test_what_an_error_says() -> None:
    assert did_you_mean([]) == ""
    assert did_you_mean(["text"]) == " (did you mean 'text'?)"
    assert did_you_mean(["add", "and"]) == " (did you mean 'add' or 'and'?)"


def test_a_slip_in_one_of_ten_thousand_names_is_found() -> None:
    chosen = random.Random(7)
    letters = string.ascii_lowercase + "_."
    names = sorted({"".join(chosen.choices(letters, k=chosen.randint(6, 14))) for _ in range(10_000)})
    index = NameIndex(lambda: names, lambda: 0, SearchBudget(share=1e-9, burst=1e9))
    found = 0
    for name in chosen.sample(names, 200):
        place = chosen.randrange(len(name))
        slip = name[:place] + chosen.choice(["", name[place] * 2, "x"]) + name[place + 1 :]
        found += slip == name or name in index.nearest(slip, lambda _: True)
    assert found >= 190


def test_names_that_the_peer_may_not_see_are_not_suggested() -> None:
    index = NameIndex(lambda: ["secret_1", "secret_2", "secrets"], lambda: 0)
    assert index.nearest("secret", lambda name: name == "secrets") == ["secrets"]
    assert index.nearest("secret", lambda name: False) == []


def test_names_that_change() -> None:
    names, version = ["add"], 0
    index = NameIndex(lambda: names, lambda: version)
    assert index.nearest("ad", lambda _: True) == ["add"]
    names, version = ["adds"], 1
    assert index.nearest("ad", lambda _: True) == ["adds"]


def test_what_is_too_long_or_too_much_is_not_looked_at() -> None:
    index = NameIndex(lambda: ["x" * MAX_LENGTH, "y" * (MAX_LENGTH + 1)], lambda: 0)
    assert index.nearest("x" * (MAX_LENGTH - 1), lambda _: True) == ["x" * MAX_LENGTH]
    assert index.nearest("x" * (MAX_LENGTH + 1), lambda _: True) == []
    assert index.nearest("y" * MAX_LENGTH, lambda _: True) == []
    assert nearest("y" * 10_000_000, ["y" * MAX_LENGTH]) == ["y" * MAX_LENGTH]
    assert nearest("name0", map("name{}".format, range(MAX_NAMES + 1))) == []


def test_a_search_looks_at_few_of_many_names() -> None:
    asked: list[str] = []
    index = NameIndex(lambda: map("name{}".format, range(10_000)), lambda: 0)
    index.nearest("name77x", lambda name: bool(asked.append(name)))
    assert 0 < len(asked) < 20


def test_the_time_for_searches_has_a_bound() -> None:
    """A million unknown names, each of which would take a millisecond, take 2 % of the time."""
    now = used = 0.0
    searches = 0

    def search() -> list[str]:
        nonlocal now, used, searches
        searches += 1
        now, used = now + 0.001, used + 0.001
        return ["found"]

    budget = SearchBudget(share=0.02, burst=0.05, clock=lambda: now, used=lambda: used)
    answers = 0
    for _ in range(1_000_000):
        now += 0.000_01  # what a plain error takes
        answers += budget.spend(search) == ["found"]
    assert answers == searches
    assert used <= 0.02 * now + 0.05 + 0.001
    assert used >= 0.02 * now
    now += 10
    assert budget.spend(search) == ["found"]


def test_time_that_a_failed_search_took_counts() -> None:
    used = 0.0

    def search() -> list[str]:
        nonlocal used
        used += 1.0
        raise ValueError("search failed")

    budget = SearchBudget(clock=lambda: 0.0, used=lambda: used)
    with pytest.raises(ValueError, match="search failed"):
        budget.spend(search)
    assert budget.spend(search) == []
