"""Rules: what each client may do, compared with a plain definition; and invalid rules."""

from __future__ import annotations

import fnmatch
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import NotPermitted
from rpcstream.events.patterns import matches
from rpcstream.hub import Rule, Rules
from rpcstream.hub.config import HUB

from ..kit.example_count import example_count

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
        ("gpu-[12]", "gpu-2", True),
        ("gpu-?", "gpu-10", False),
        (("a", "b*"), "bob", True),
        ("worker", {"roles": ["worker", "other"]}, True),
        ("worker", {"roles": "worker"}, True),
        ("worker", {"name": "worker"}, False),
        ("worker", User(["worker"]), True),
        ("worker", User([7, None]), False),
        ("*", User(), True),
        (("x", "*"), {"no": "names"}, True),
        ("*", None, False),
        ("None", None, False),
        ("a\n", "a", False),
    ],
)
def test_who_is_meant(who: Any, identity: Any, is_meant: bool) -> None:
    assert Rules([Rule(who, call="add")]).permits(identity, "call", "add") is is_meant


def test_the_hubs_own_methods_may_be_called_without_a_rule_and_nothing_else_of_them() -> None:
    ada = Rule("ada", name=(), deny_call=">", register=">", publish=">", subscribe=">")
    rules = Rules([ada, Rule("eve", deny_call="rpc.clients"), Rule("mia", deny_call="rpc.>")])
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
    with pytest.raises(NotPermitted):
        rules.check_subscription("ada", "rpc.hub.>")
    assert Rules([Rule("ada", subscribe="rpc.hub.>")]).check_subscription("ada", "rpc.hub.joined") == ()


def may_subscribe(rules: Rules, identity: Any, pattern: str) -> bool:
    try:
        rules.check_subscription(identity, pattern)
    except NotPermitted:
        return False
    return True


PATTERNS = {
    **dict.fromkeys(["sensors.room1", "sensors.*", "sensors.>", "sensors.*.x", "news", "sensors.secret.>"], True),
    **dict.fromkeys(["sensors", ">", "*.room1", "sensors.secret"], False),
    **{"old.*.>": True, "old.>": False},  # which two patterns cover together
    "sensors.none.*": False,  # all of it is denied
}


def test_a_pattern_that_one_allowed_pattern_covers_may_be_subscribed_to() -> None:
    denied = ("sensors.secret", "sensors.none.>")
    rules = Rules([Rule("*", subscribe=("sensors.>", "news", "old.*", "old.*.>"), deny_subscribe=denied)])
    for pattern, is_permitted in PATTERNS.items():
        assert may_subscribe(rules, "ada", pattern) is is_permitted
        with pytest.raises(NotPermitted) as caught:
            rules.check_subscription(None if is_permitted else "ada", pattern)
        assert caught.value.data == {"topic": pattern}
    assert "sensors.secret" in rules.check_subscription("ada", "sensors.*")


def test_roles_that_change_count_at_once() -> None:
    rules, user = Rules([Rule("admin", call="erase")]), User([])
    for roles in ([], ["admin"], []):
        user.roles = roles
        assert rules.permits(user, "call", "erase") is bool(roles)


@pytest.mark.parametrize("name", ["", ".", "a..b", "*", ">", "*.x", "\0", "\ud800", "x" * 100_000, "." * 5000])
def test_any_name_at_all_may_be_asked_for(name: str) -> None:
    assert not Rules([Rule("ada", call=("add", "gpu-1.*"), deny_call="erase")]).permits("ada", "call", name)


class Text(str):
    """A text of which one can see whether it is kept."""


@pytest.mark.parametrize(
    ("form", "asked", "count", "most"),
    [
        ("{}", lambda rules, text: rules.permits("ada", "call", text), 13_000, 12_000),
        ("{}", lambda rules, text: may_subscribe(rules, {"roles": [text]}, "news"), 3_000, 2_000),
        ("{:1000}", lambda rules, text: rules.permits("ada", "call", text), 100, 10),
        ("{:1000}", lambda rules, text: rules.permits({"roles": [text]}, "call", "add"), 100, 10),
    ],
    ids=["names", "identities", "long names", "long identities"],
)
def test_not_all_that_was_asked_for_is_remembered(form: str, asked: Any, count: int, most: int) -> None:
    """Callers choose what they ask for, and may have names of their own choice."""
    rules, texts = Rules([Rule("*", call=">", subscribe=">")]), []
    for number in range(count):
        text = Text(form.format(number))
        assert asked(rules, text)
        texts.append(weakref.ref(text))
    del text
    assert sum(each() is not None for each in texts) <= most


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


def rules_of(tables: Iterable[dict[Any, Any]]) -> Rules:
    return Rules(HUB.of_table({"rules": list(tables)}, "hub.toml")["rules"])


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


@settings(max_examples=example_count(50))
@given(
    st.lists(rule_fields, max_size=4), identities, st.sampled_from(ACTIONS), st.lists(topics, min_size=1, max_size=2)
)
def test_permits_as_defined(tables: list[dict[str, Any]], identity: Any, action: Any, asked: list[str]) -> None:
    rules = rules_of(tables)
    allowed, denied = plainly(tables, identity, action)
    hits = [matches(pattern, name) for pattern in allowed for name in asked]
    expected = any(hits) or (action == "call" and all(name.startswith("rpc.") for name in asked))
    if any(matches(pattern, name) for pattern in denied for name in asked):
        expected = False
    assert rules.permits(identity, action, *asked) is expected
    assert rules.permits(identity, action, *asked) is expected  # remembered
    assert rules_of(reversed(tables)).permits(identity, action, *reversed(asked)) is expected


@settings(max_examples=example_count(50))
@given(st.lists(rule_fields, max_size=4), identities, patterns, topics)
def test_nothing_denied_comes_through_a_subscription(
    tables: list[dict[str, Any]], identity: Any, pattern: str, topic: str
) -> None:
    """What a subscription that is permitted delivers is just what its parts would be permitted for."""
    rules = rules_of(tables)
    if matches(pattern, topic) and may_subscribe(rules, identity, pattern):
        filtered = any(matches(denied, topic) for denied in rules.check_subscription(identity, pattern))
        assert rules.permits(identity, "subscribe", topic) is not filtered
    assert may_subscribe(rules, identity, topic) is rules.permits(identity, "subscribe", topic)


#: The wrong fields of a rule, and the beginning of the reason.
FAULTS: list[tuple[dict[Any, Any], str]] = [
    ({"who": ()}, ": who: has no names"),
    ({"who": None}, r"\.who: expected a string or a list, got null"),
    ({"who": [7]}, r"\.who\[0\]: expected a string, got an integer"),
    ({"who": "a", "call": True}, r"\.call: "),
    ({"who": "a", "call": "a*"}, ": call: 'a.' may have '.' only as a whole level"),
    ({"who": "a", "deny_publish": ">.a"}, ": deny_publish: '>.a' may have '.' only as a whole level"),
    ({"who": "a", "subscribe": "x" * 1000}, ": subscribe: .* has more than 256 characters"),
    ({"who": "a", "name": "gpu 1"}, ": name: 'gpu 1' is no name of a client"),
    ({"who": "a", "deny_name": "a.b"}, ": deny_name: 'a.b' is no name of a client"),
    ({"who": "a", "name": ()}, ": the rule neither allows nor denies"),
    ({"who": "*", "cal": "x"}, ": 'cal' is unknown"),
    ({"call": "x"}, ": 'who' is missing"),
    ("x", ": expected an object, got a string"),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("fields", "words"), FAULTS)
def test_a_rule_that_makes_no_sense(fields: dict[Any, Any], words: str) -> None:
    with pytest.raises(ValueError, match=rf"^hub.toml: rules\[1\]{words}"):
        rules_of([{"who": "*"}, fields])
