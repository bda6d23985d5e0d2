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
        ("*", User(), True),
        (("x", "*"), {"no": "names"}, True),
        ("?*", User(), False),
        ("*", None, False),
        ("None", None, False),
        ("a\n", "a", False),
        ("a*", "a\nb", True),
    ],
)
def test_who_is_meant(who: Any, identity: Any, is_meant: bool) -> None:
    assert Rules([Rule(who, call="add")]).permits(identity, "call", "add") is is_meant


def test_a_name_may_be_taken_unless_a_rule_says_which() -> None:
    rules = Rules([Rule("ada", call="x"), Rule("bob", name="bob"), Rule("eve", name=(), call="x")])
    asked = [("ada", "whatever"), ("bob", "bob"), ("bob", "ada"), ("eve", "eve")]
    assert [rules.permits(who, "name", name) for who, name in asked] == [True, True, False, False]


def test_the_hubs_own_methods_may_be_called_without_a_rule_and_nothing_else_of_them() -> None:
    rules = Rules(
        [
            Rule("ada", name=(), deny_call=">", register=">", publish=">", subscribe=">"),
            Rule("eve", deny_call="rpc.clients"),
            Rule("mia", deny_call="rpc.>"),
        ]
    )
    for who in ("ada", "eve", "nobody", None):
        assert rules.permits(who, "call", "rpc.ping")
    for own in ("keepAlive", "get_server_stats"):
        assert rules.permits("eve", "call", own)
        assert not rules.permits("eve", "call", own, f"gpu-1.{own}")
    assert rules.permits("ada", "call", "rpc.clients")
    assert not rules.permits("eve", "call", "rpc.clients")
    assert not rules.permits("mia", "call", "rpc.ping")
    for name in ("rpc", "rpcx.ping"):
        assert not rules.permits("eve", "call", name)
    assert not rules.permits("eve", "call", "erase", "rpc.erase")  # of a client that is called rpc
    for action in ("register", "publish", "subscribe"):
        assert not rules.permits("ada", action, "rpc.hub.joined")
    assert not rules.permits_pattern("ada", "rpc.hub.>")
    assert Rules([Rule("ada", subscribe="rpc.hub.>")]).permits_pattern("ada", "rpc.hub.joined")


@pytest.mark.parametrize("name", ["", ".", "a..b", "*", ">", "*.x", "\0", "\ud800", "x" * 100_000, "." * 5000])
def test_any_name_at_all_may_be_asked_for(name: str) -> None:
    assert not Rules([Rule("ada", call=("add", "gpu-1.*"), deny_call="erase")]).permits("ada", "call", name)


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
        ("sensors.secret", False),
        ("sensors.secret.>", True),
        ("old.*.>", True),
        ("old.>", False),  # which two patterns cover together
        ("sensors.none.*", False),  # all of it is denied
    ],
)
def test_a_pattern_that_one_allowed_pattern_covers_may_be_subscribed_to(pattern: str, is_permitted: bool) -> None:
    denied = ("sensors.secret", "sensors.none.>")
    rules = Rules([Rule("*", subscribe=("sensors.>", "news", "old.*", "old.*.>"), deny_subscribe=denied)])
    assert rules.permits_pattern("ada", pattern) is is_permitted
    if is_permitted:
        left_out = {"sensors.>": denied, "sensors.*": ("sensors.secret",), "sensors.*.x": ("sensors.none.>",)}
        assert rules.check_subscription("ada", pattern) == left_out.get(pattern, ())
    else:
        with pytest.raises(NotPermitted) as caught:
            rules.check_subscription("ada", pattern)
        assert caught.value.data == {"topic": pattern}
    with pytest.raises(NotPermitted):
        rules.check_subscription(None, pattern)


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
