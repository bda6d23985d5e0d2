"""Permission on a hub: which identity may take which name, and register, call, publish and subscribe to what.

Owns what a rule is, and what several of them allow one identity. What no rule allows is not permitted, and what one
rule denies no other rule allows. Pure, but for a cache of answers; knows neither members nor messages.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..auth.allow import names_of
from ..errors import NotPermitted
from ..events.patterns import CLIENT_NAME, RESERVED, covers, fault_of_pattern, matches, overlaps
from ..nearest import did_you_mean, nearest

Action = Literal["name", "register", "call", "publish", "subscribe"]

ACTIONS: tuple[Action, ...] = get_args(Action)

#: Every authenticated identity, with names or without.
ANY_IDENTITY = "*"

#: Methods of the hub itself that do not begin with `rpc.`; no client can offer them.
OWN_METHODS = frozenset({"keepAlive", "get_server_stats"})

#: Answers that are cached, and sets of names for which rules are merged. Callers choose what they ask for, so both have
#: limits; with these, and that of the length, they take a few MiB at most.
MAX_ANSWERS = 10_000
MAX_IDENTITIES = 1_000
MAX_LENGTH = 300

Names = str | Collection[str]


@dataclass(frozen=True)
class Rule:
    """What some identities may do, and may not do.

    Methods, topics and the names of clients are given as patterns: levels separated by dots, `*` for one whole level,
    `>` at the end for one or more. A pattern that begins with either does not match names that begin with `rpc.`.

    Args:
        who: names of the identities that it is for (`names_of`: a string is its own name, and roles are names), with
            wildcards as in a shell: "gpu-*", "[ab]?". "*" is every authenticated identity.
        name: names that a client may take. If it is not given: all that no rule gives by name, so that the name of a
            client that is away is not taken by another.
        register: methods that it may offer, by the name that it gives them.
        call: methods that it may call, as `method` or as `client.method`; a name with a dot is always the latter.
        publish: topics that it may publish to.
        subscribe: topics that it may subscribe to.
        deny_register: methods that it may not offer, whatever other rules allow; likewise the following.
        deny_call: methods that it may not call.
        deny_publish: topics that it may not publish to.
        deny_subscribe: topics that it may not subscribe to.
        deny_name: names that it may not take.

    Raises:
        TypeError, ValueError: a field is wrong; the text names it.
    """

    who: Names
    name: Names | None = None
    register: Names = ()
    call: Names = ()
    publish: Names = ()
    subscribe: Names = ()
    deny_register: Names = ()
    deny_call: Names = ()
    deny_publish: Names = ()
    deny_subscribe: Names = ()
    deny_name: Names = ()

    def __post_init__(self) -> None:
        who = _texts("who", self.who)
        if not who:
            raise ValueError("who: has no names; '*' is every authenticated identity")
        object.__setattr__(self, "who", who)
        for field in PATTERN_FIELDS:
            if field == "name" and self.name is None:
                continue
            patterns = _texts(field, getattr(self, field))
            for pattern in patterns:
                fault = fault_of_pattern(pattern)
                if fault is None and field.endswith("name"):
                    fault = _fault_of_name(pattern)
                if fault is not None:
                    raise ValueError(f"{field}: {pattern!r:.100} {fault}")
            object.__setattr__(self, field, patterns)
        if self.name is not None and not any(getattr(self, field) for field in PATTERN_FIELDS):
            raise ValueError("the rule neither allows nor denies anything")


#: The fields of a rule that hold patterns.
PATTERN_FIELDS = (*ACTIONS, *(f"deny_{action}" for action in ACTIONS))

_FIELDS = ("who", *PATTERN_FIELDS)


class Rules:
    """All rules of one hub.

    Raises:
        TypeError: one of them is no Rule.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        for number, rule in enumerate(self._rules, 1):
            if not isinstance(rule, Rule):
                raise TypeError(f"rule {number}: must be a Rule, got {type(rule).__name__}")
        self._who = tuple(_expression(rule.who) for rule in self._rules)
        self._merged: dict[frozenset[str], _MergedRules] = {}
        self._answers: dict[tuple[frozenset[str], str, tuple[str, ...], tuple[str, ...]], bool] = {}
        #: The names of clients that rules give, each by itself.
        self._given = frozenset(name for rule in self._rules for name in rule.name or () if name not in ("*", ">"))

    @classmethod
    def from_config(cls, tables: Iterable[Mapping[str, Any]], *, place: str = "rules") -> Rules:
        """Read rules from a configuration: tables whose keys are the fields of `Rule`.

        Args:
            tables: one for each rule.
            place: where they stand, for errors.

        Raises:
            ValueError, TypeError: a table is no rule; the text has its number, from 1, and the field.
        """
        return cls([_rule_of(table, f"{place}: rule {number}") for number, table in enumerate(tables, 1)])

    def replace(self, other: Rules) -> None:
        """Become what other rules are."""
        self._rules, self._who, self._given = other._rules, other._who, other._given
        self._merged.clear()
        self._answers.clear()

    def __len__(self) -> int:
        return len(self._rules)

    def permits(self, identity: Any, action: Action, *names: str, unless: tuple[str, ...] = ()) -> bool:
        """Tell whether an identity may do something.

        Args:
            identity: of the client; None if it has none.
            action: the kind of thing.
            names: all names of one thing, such as `vectorize` and `gpu-1.vectorize`: one of them must be allowed, and
                none denied. To call the hub's own methods, `rpc.…` and `OWN_METHODS`, needs no rule.
            unless: further names of it: none of them may be denied, but to allow them is not enough.

        Raises:
            ValueError: there is no such action, or no name.
        """
        if action not in ACTIONS or not names:
            raise ValueError(
                f"expected an action ({', '.join(ACTIONS)}) and at least one name, got {action!r}, {names}"
            )
        who = _names_of(identity)
        if who is None:
            return self._decide(_NO_IDENTITY, action, names, unless)
        key = (who, action, names, unless)
        known = self._answers.get(key)
        if known is not None:
            return known
        answer = self._decide(self._merged_for(who), action, names, unless)
        if sum(map(len, (*names, *unless, *who))) <= MAX_LENGTH:
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.clear()
            self._answers[key] = answer
        return answer

    def permits_call(self, identity: Any, method: str, client: str) -> bool:
        """Tell whether an identity may call, or notify, a method of a client.

        It has two names, `method` and `client.method`, and each of them allows it, or denies it. A method with dots in
        its name has the second one alone: the first is what a method of another client may be called.
        """
        own = f"{client}.{method}"
        if "." in method:
            return self.permits(identity, "call", own, unless=(method,))
        return self.permits(identity, "call", method, own)

    def permits_pattern(self, identity: Any, pattern: str) -> bool:
        """Tell whether an identity may subscribe to a pattern: one that is allowed covers it, and none that is denied.

        Some topics that it matches may be denied all the same, see `denied`.
        """
        merged = self._merged_for(_names_of(identity))
        if any(covers(denied, pattern) for denied in merged.denied["subscribe"]):
            return False
        return any(covers(allowed, pattern) for allowed in merged.allowed["subscribe"])

    def check_subscription(self, identity: Any, pattern: str) -> tuple[str, ...]:
        """Check a subscription to a pattern; return the patterns of the topics that are denied of it.

        Raises:
            NotPermitted: the identity may not subscribe to it.
        """
        if not self.permits_pattern(identity, pattern):
            raise NotPermitted(data={"topic": pattern})
        return self.denied(identity, "subscribe", pattern)

    def denied(self, identity: Any, action: Action, pattern: str) -> tuple[str, ...]:
        """Return the patterns denied to this identity that have a name or topic in common with this one."""
        merged = self._merged_for(_names_of(identity))
        return tuple(denied for denied in merged.denied[action] if overlaps(denied, pattern))

    def _decide(self, merged: _MergedRules, action: Action, names: tuple[str, ...], unless: tuple[str, ...]) -> bool:
        if any(matches(pattern, name) for pattern in merged.denied[action] for name in (*names, *unless)):
            return False
        if action == "call" and all(name.startswith(RESERVED) or name in OWN_METHODS for name in names):
            return True
        if action == "name" and merged.takes_free_names and names[0] not in self._given:
            return True
        return any(matches(pattern, name) for pattern in merged.allowed[action] for name in names)

    def _merged_for(self, who: frozenset[str] | None) -> _MergedRules:
        """Merge the rules for an identity with these names."""
        if who is None:
            return _NO_IDENTITY
        merged = self._merged.get(who)
        if merged is None:
            merged = _MergedRules(
                rule
                for rule, expression in zip(self._rules, self._who, strict=True)
                if expression is None or any(map(expression.fullmatch, who))
            )
            if sum(map(len, who)) <= MAX_LENGTH:
                if len(self._merged) >= MAX_IDENTITIES:
                    self._merged.clear()
                self._merged[who] = merged
        return merged


class _MergedRules:
    """The patterns of several rules by action, each once."""

    __slots__ = ("allowed", "denied", "takes_free_names")

    def __init__(self, rules: Iterable[Rule]) -> None:
        rules = list(rules)
        #: One of them does not restrict names.
        self.takes_free_names = any(rule.name is None for rule in rules)
        self.allowed = {action: _all(rules, action) for action in ACTIONS}
        self.denied = {action: _all(rules, f"deny_{action}") for action in ACTIONS}


def _all(rules: Iterable[Rule], field: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pattern for rule in rules for pattern in getattr(rule, field) or ()))


#: For a client without an identity.
_NO_IDENTITY = _MergedRules(())


def _names_of(identity: Any) -> frozenset[str] | None:
    return None if identity is None else frozenset(names_of(identity))


def _expression(who: Names) -> re.Pattern[str] | None:
    """Compile names to an expression; None if every identity is meant."""
    if ANY_IDENTITY in who:
        return None
    return re.compile("|".join(fnmatch.translate(name) for name in who))


def _texts(field: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Collection) or isinstance(value, bytes | bytearray | Mapping):
        raise TypeError(f"{field}: must be a text, or several, got {type(value).__name__}")
    texts = tuple(value)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{field}: must hold texts only, got {type(text).__name__}")
        if not text:
            raise ValueError(f"{field}: holds an empty text")
    return texts


def _fault_of_name(pattern: str) -> str | None:
    """Return why no client can have such a name; None if one can."""
    if pattern in ("*", ">"):
        return None
    if not CLIENT_NAME.fullmatch(pattern):
        return "is no name of a client: 1 to 128 letters, digits, '_' and '-'; or '*' for any"
    return None


def _rule_of(table: Mapping[str, Any], place: str) -> Rule:
    if not isinstance(table, Mapping):
        raise TypeError(f"{place}: must be a table, got {type(table).__name__}")
    for key in table:
        if key not in _FIELDS:
            raise ValueError(f"{place}: unknown field {key!r}{did_you_mean(nearest(key, _FIELDS))}")
    if "who" not in table:
        raise ValueError(f"{place}: who: is missing; '*' is every authenticated identity")
    try:
        return Rule(**table)
    except TypeError as error:
        raise TypeError(f"{place}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
