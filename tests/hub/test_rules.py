"""Rules: what each client may do, compared with a plain definition; and invalid rules."""

from __future__ import annotations

import fnmatch
import tracemalloc
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcstream import NotPermitted
from rpcstream.events.patterns import matches
from rpcstream.hub import Rule, Rules

ACTIONS: tuple[Any, ...] = ("name", "register", "call", "publish", "subscribe")


@dataclass
class User:
    """An identity as programs have it: no string, no mapping."""

    roles: Any = ()


class TestWho:
    @pytest.mark.parametrize(
        ("who", "identity", "is_meant"),
        [
            ("gpu-1", "gpu-1", True),
            ("gpu-1", "gpu-10", False),
            ("gpu-*", "gpu-10", True),
            ("gpu-*", "my-gpu-1", False),
            ("GPU-1", "gpu-1", False),
            ("gpu-[12]", "gpu-2", True),
            ("gpu-?", "gpu-10", False),
            (("a", "b*"), "bob", True),
            (["a", "b*"], "carol", False),
            ("worker", {"roles": ["worker", "other"]}, True),
            ("worker", {"roles": "worker"}, True),
            ("worker", {"name": "worker"}, False),
            ("worker", User(["worker"]), True),
            ("worker", User([7, None]), False),
            ("*", "anybody", True),
            ("*", User(), True),
            (("x", "*"), {"no": "names"}, True),
            ("?*", User(), False),
            ("*", None, False),
            ("None", None, False),
            ("a\n", "a", False),
            ("a*", "a\nb", True),
        ],
    )
    def test_names_and_roles(self, who: Any, identity: Any, is_meant: bool) -> None:
        assert Rules([Rule(who, call="add")]).permits(identity, "call", "add") is is_meant


class TestWhat:
    def test_nothing_is_permitted_without_a_rule(self) -> None:
        for action in ACTIONS:
            assert not Rules([]).permits("ada", action, "thing")
        assert not Rules([]).permits_pattern("ada", ">")
        assert Rules([]).denied("ada", "subscribe", ">") == ()

    def test_a_name_may_be_taken_unless_a_rule_says_which(self) -> None:
        rules = Rules([Rule("ada", call="x"), Rule("bob", name="bob"), Rule("eve", name=(), call="x")])
        assert rules.permits("ada", "name", "whatever")
        assert rules.permits("bob", "name", "bob")
        assert not rules.permits("bob", "name", "ada")
        assert not rules.permits("eve", "name", "eve")

    def test_each_action_has_its_own_patterns(self) -> None:
        for action in ACTIONS:
            rules = Rules([Rule("ada", **{"name": (), action: "thing"})])  # type: ignore[arg-type]
            assert [each for each in ACTIONS if rules.permits("ada", each, "thing")] == [action]

    def test_one_of_the_names_is_enough(self) -> None:
        rules = Rules([Rule("ada", call="gpu-1.>"), Rule("bob", call="vectorize")])
        both = ("vectorize", "gpu-1.vectorize")
        assert rules.permits("ada", "call", *both)
        assert rules.permits("bob", "call", *both)
        assert not rules.permits("ada", "call", "vectorize")
        assert not rules.permits("ada", "call", "vectorize", "gpu-2.vectorize")

    @pytest.mark.parametrize("denied", ["erase", "gpu-1.erase", "*.erase", "gpu-1.>", "*", ">"])
    def test_what_is_denied_by_one_of_its_names_is_denied(self, denied: str) -> None:
        rules = Rules([Rule("*", call=(">", "erase", "gpu-1.erase")), Rule("eve", deny_call=denied)])
        for names in [("erase", "gpu-1.erase"), ("gpu-1.erase", "erase")]:
            assert not rules.permits("eve", "call", *names)
            assert rules.permits("ada", "call", *names)

    def test_an_allow_of_another_rule_does_not_help(self) -> None:
        rules = Rules([Rule("ada", call="erase"), Rule("*", deny_call="erase"), Rule("admin", call=">")])
        assert not rules.permits(User(["ada", "admin"]), "call", "erase")

    def test_to_call_the_hub_needs_no_rule(self) -> None:
        rules = Rules(
            [Rule("ada", deny_call=">"), Rule("eve", deny_call="rpc.clients"), Rule("mia", deny_call="rpc.>")]
        )
        for who in ("ada", "eve", "nobody", None):
            assert rules.permits(who, "call", "rpc.ping")
        for own in ("keepAlive", "get_server_stats"):
            assert rules.permits("eve", "call", own)
            assert not rules.permits("eve", "call", own, f"gpu-1.{own}")
        assert rules.permits("ada", "call", "rpc.clients")
        assert not rules.permits("eve", "call", "rpc.clients")
        assert not rules.permits("mia", "call", "rpc.ping")

    def test_only_to_call_it(self) -> None:
        rules = Rules([Rule("ada", name=(), register=">", publish=">", subscribe=">")])
        for action in ("register", "publish", "subscribe"):
            assert not rules.permits("ada", action, "rpc.hub.joined")
        assert not rules.permits_pattern("ada", "rpc.hub.>")
        assert Rules([Rule("ada", subscribe="rpc.hub.>")]).permits_pattern("ada", "rpc.hub.joined")

    def test_a_name_that_only_begins_like_the_hubs_is_none(self) -> None:
        rules = Rules([Rule("ada", call="add")])
        assert not rules.permits("ada", "call", "rpc")
        assert not rules.permits("ada", "call", "rpcx.ping")
        assert not rules.permits("ada", "call", "erase", "rpc.erase")  # of a client that is called rpc

    def test_wrong_questions(self) -> None:
        with pytest.raises(ValueError, match="at least one name"):
            Rules([]).permits("ada", "call")
        with pytest.raises(ValueError, match="an action"):
            Rules([]).permits("ada", "erase", "x")  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", ["", ".", "a..b", "*", ">", "*.x", "\0", "\ud800", "x" * 100_000, "." * 5000])
    def test_any_name_at_all_may_be_asked_for(self, name: str) -> None:
        rules = Rules([Rule("ada", call=("add", "gpu-1.*"), deny_call="erase")])
        assert not rules.permits("ada", "call", name)


class TestPatterns:
    @pytest.mark.parametrize(
        ("pattern", "is_permitted"),
        [
            ("sensors.room1", True),
            ("sensors.*", True),
            ("sensors.>", True),
            ("sensors.*.x", True),
            ("sensors", False),
            (">", False),
            ("*.room1", False),
            ("news", True),
            ("*", False),
            ("sensors.secret", False),
            ("sensors.secret.>", True),
        ],
    )
    def test_one_allowed_pattern_covers_it(self, pattern: str, is_permitted: bool) -> None:
        rules = Rules([Rule("*", subscribe=("sensors.>", "news"), deny_subscribe="sensors.secret")])
        assert rules.permits_pattern("ada", pattern) is is_permitted

    def test_two_that_cover_it_together_do_not(self) -> None:
        rules = Rules([Rule("*", subscribe=("a.*", "a.*.>"))])
        assert rules.permits_pattern("ada", "a.*.>")
        assert not rules.permits_pattern("ada", "a.>")

    def test_a_denied_pattern_that_covers_all_of_it(self) -> None:
        rules = Rules([Rule("*", subscribe="a.>"), Rule("ada", deny_subscribe="a.b.>")])
        assert not rules.permits_pattern("ada", "a.b.*")
        assert rules.permits_pattern("bob", "a.b.*")
        assert rules.permits_pattern("ada", "a.*.*")

    def test_what_of_it_is_denied(self) -> None:
        rules = Rules(
            [Rule("*", subscribe=">", deny_subscribe=("a.*.x", "b.>")), Rule("ada", deny_subscribe=("a.b.>", "b.>"))]
        )
        assert rules.denied("ada", "subscribe", "a.b.*") == ("a.*.x", "a.b.>")
        assert rules.denied("bob", "subscribe", ">") == ("a.*.x", "b.>")
        assert rules.denied("ada", "subscribe", "c.>") == ()
        assert rules.denied("ada", "publish", ">") == ()
        assert rules.denied(None, "subscribe", ">") == ()

    def test_both_at_once(self) -> None:
        rules = Rules([Rule("*", subscribe="a.>", deny_subscribe="a.b.>")])
        assert rules.check_subscription("ada", "a.>") == ("a.b.>",)
        for who, pattern in [("ada", ">"), ("ada", "a.b.c"), (None, "a.x")]:
            with pytest.raises(NotPermitted) as caught:
                rules.check_subscription(who, pattern)
            assert caught.value.data == {"topic": pattern}


# -- against the definition -------------------------------------------------------------------------------------------

LEVELS = ["a", "b", "rpc", "hub"]
topics = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=3).map(".".join)
patterns = st.builds(
    lambda levels, rest: ".".join([*levels, *rest]),
    st.lists(st.sampled_from([*LEVELS, "*"]), min_size=1, max_size=3),
    st.sampled_from([(), (">",)]),
)
who = st.sampled_from(["ada", "bob", "a*", "?o?", "admin", "*"])
some = st.lists(patterns, max_size=2)
client_names = st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=2)
identities = st.sampled_from([None, "ada", "bob", "eve", {"roles": ["admin"]}, {"roles": ["admin", "bob"]}, User()])
rule_fields = st.fixed_dictionaries(
    {"who": st.lists(who, min_size=1, max_size=2), "name": client_names},
    optional={f"{deny}{action}": some for deny in ("", "deny_") for action in ACTIONS if action != "name"},
)


def names(identity: Any) -> set[str]:
    if isinstance(identity, str):
        return {identity}
    return set(identity["roles"]) if isinstance(identity, dict) else set()


def plainly(tables: list[dict[str, Any]], identity: Any, action: str) -> tuple[list[str], list[str]]:
    """What is allowed and what denied, by the definition."""
    allowed: list[str] = []
    denied: list[str] = []
    for table in tables:
        if identity is not None and any(
            each == "*" or any(fnmatch.fnmatchcase(name, each) for name in names(identity)) for each in table["who"]
        ):
            allowed += table.get(action, [])
            denied += table.get(f"deny_{action}", [])
    return allowed, denied


@given(
    st.lists(rule_fields, max_size=4), identities, st.sampled_from(ACTIONS), st.lists(topics, min_size=1, max_size=2)
)
def test_permits_as_defined(tables: list[dict[str, Any]], identity: Any, action: Any, asked: list[str]) -> None:
    rules = Rules.from_config(tables)
    allowed, denied = plainly(tables, identity, action)
    hits = [matches(pattern, name) for pattern in allowed for name in asked]
    expected = any(hits) or (action == "call" and all(name.startswith("rpc.") for name in asked))
    if any(matches(pattern, name) for pattern in denied for name in asked):
        expected = False
    assert rules.permits(identity, action, *asked) is expected
    assert rules.permits(identity, action, *asked) is expected  # remembered
    assert Rules.from_config(reversed(tables)).permits(identity, action, *reversed(asked)) is expected


@given(st.lists(rule_fields, max_size=4), identities, patterns, topics)
def test_nothing_denied_comes_through_a_subscription(
    tables: list[dict[str, Any]], identity: Any, pattern: str, topic: str
) -> None:
    """What a subscription that is permitted delivers is just what its parts would be permitted for."""
    rules = Rules.from_config(tables)
    if matches(pattern, topic) and rules.permits_pattern(identity, pattern):
        filtered = any(matches(denied, topic) for denied in rules.denied(identity, "subscribe", pattern))
        assert rules.permits(identity, "subscribe", topic) is not filtered


@given(st.lists(rule_fields, max_size=4), identities, topics)
def test_a_topic_is_a_pattern_of_itself(tables: list[dict[str, Any]], identity: Any, topic: str) -> None:
    rules = Rules.from_config(tables)
    assert rules.permits_pattern(identity, topic) is rules.permits(identity, "subscribe", topic)


# -- what is no rule --------------------------------------------------------------------------------------------------


class TestFaults:
    @pytest.mark.parametrize(
        ("fields", "kind", "words"),
        [
            ({"who": ()}, ValueError, "who: has no names"),
            ({"who": ""}, ValueError, "who: holds an empty text"),
            ({"who": None}, TypeError, "who: must be a text, or several, got NoneType"),
            ({"who": [7]}, TypeError, "who: must hold texts only, got int"),
            ({"who": "a", "call": b"x"}, TypeError, "call: must be a text, or several, got bytes"),
            ({"who": "a", "call": {"x": 1}}, TypeError, "call: must be a text, or several, got dict"),
            ({"who": "a", "call": True}, TypeError, "call: must be a text, or several, got bool"),
            ({"who": "a", "call": "a*"}, ValueError, "call: 'a.' may have '.' only as a whole level"),
            ({"who": "a", "deny_publish": ">.a"}, ValueError, "deny_publish: '>.a' may have '>' only as its last"),
            ({"who": "a", "subscribe": "x" * 1000}, ValueError, "subscribe: .* has more than 256 characters"),
            ({"who": "a", "name": "gpu 1"}, ValueError, "name: 'gpu 1' is no name of a client"),
            ({"who": "a", "deny_name": "a.b"}, ValueError, "deny_name: 'a.b' is no name of a client"),
            ({"who": "a", "name": ()}, ValueError, "neither allows nor denies"),
        ],
    )
    def test_a_rule_that_makes_no_sense(self, fields: dict[str, Any], kind: type[Exception], words: str) -> None:
        with pytest.raises(kind, match=words):
            Rule(**fields)
        with pytest.raises(kind, match=f"^hub.toml: rules: rule 2: .*{words}"):
            Rules.from_config([{"who": "*"}, fields], place="hub.toml: rules")

    def test_fields_that_are_none(self) -> None:
        with pytest.raises(ValueError, match=r"rule 1: unknown field 'cal' \(did you mean 'call'\?\)"):
            Rules.from_config([{"who": "*", "cal": "x"}])
        with pytest.raises(ValueError, match=r"rule 1: unknown field 7$"):
            Rules.from_config([{"who": "*", 7: "x"}])  # type: ignore[dict-item]
        with pytest.raises(ValueError, match="rule 1: who: is missing"):
            Rules.from_config([{"call": "x"}])
        with pytest.raises(TypeError, match="rule 1: must be a table, got str"):
            Rules.from_config(["x"])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="rule 2: must be a Rule, got dict"):
            Rules([Rule("*"), {"who": "*"}])  # type: ignore[list-item]


def test_long_names_are_not_remembered() -> None:
    """Callers choose what they ask for, and may have names of their own choice."""
    rules, long = Rules([Rule("*", call=">", deny_call="no.>")]), "x" * 100_000
    tracemalloc.start()
    try:
        for number in range(100):
            assert rules.permits(f"{number}{long}", "call", f"{number}")
            assert rules.permits("ada", "call", f"{number}{long}")
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()


def test_roles_that_change_count_at_once() -> None:
    rules, user = Rules([Rule("admin", call="erase")]), User([])
    assert not rules.permits(user, "call", "erase")
    user.roles = ["admin"]
    assert rules.permits(user, "call", "erase")
    user.roles = []
    assert not rules.permits(user, "call", "erase")
