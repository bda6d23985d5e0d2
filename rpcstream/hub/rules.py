"""Permission on a hub: who may have which name, register, call, publish and subscribe to what.

Owns what a rule is and what several of them come to for one identity. What no rule allows is not permitted, and what a
rule denies nobody else allows. Pure, but for what it remembers of former answers; knows neither clients nor messages.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ..auth.allow import names_of
from ..errors import NotPermitted
from ..events.patterns import CLIENT_NAME, RESERVED, covers, fault_of_pattern, matches, overlaps

Action = Literal["name", "register", "call", "publish", "subscribe"]

ACTIONS: tuple[Action, ...] = get_args(Action)

#: Whoever has said who it is, with names or without.
EVERYBODY = "*"

#: Methods of the hub itself whose names do not say so; no client can offer them.
OWN_METHODS = frozenset({"keepAlive", "get_server_stats"})

#: Answers that are remembered, and combinations of names for which the rules are put together. Callers choose what they
#: ask for, so it has a bound; with it, and with that of their length, it is a few MiB at most.
MAX_ANSWERS = 10_000
MAX_IDENTITIES = 1_000
MAX_LENGTH = 300

Names = str | Collection[str]


@dataclass(frozen=True)
class Rule:
    """What some may do and may not do.

    Methods, topics and the names of clients are given as patterns: levels parted by dots, `*` for one whole level, `>`
    at the end for one or more. A pattern that begins with either is not about what begins with `rpc.`.

    Args:
        who: whom it is for: the names of identities (`names_of`: a string is its own name, and roles are), as in a
            shell: "gpu-*", "[ab]?". "*" is everybody who is authenticated.
        name: names that a client may take. Where it is not given: all those that no rule gives by name, so that nobody
            else takes the name of a client that is away.
        register: methods that it may offer, by the name that it gives them.
        call: methods that it may call, as `method` or as `client.method`; a name with a dot is always the latter.
        publish, subscribe: topics.
        deny_name, deny_register, deny_call, deny_publish, deny_subscribe: what it may not, whatever other rules allow.

    Raises:
        TypeError, ValueError: a field is not what it should be; the text names it.
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
            raise ValueError("who: names nobody; '*' is everybody who is authenticated")
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
            raise ValueError("it neither allows nor denies anything")


#: The fields of a rule that hold patterns.
PATTERN_FIELDS = (*ACTIONS, *(f"deny_{action}" for action in ACTIONS))

_FIELDS = ("who", *PATTERN_FIELDS)


class Rules:
    """All rules of a hub.

    Raises:
        TypeError: something among them is no Rule.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        for number, rule in enumerate(self._rules, 1):
            if not isinstance(rule, Rule):
                raise TypeError(f"rule {number}: must be a Rule, got {type(rule).__name__}")
        self._who = tuple(_expression(rule.who) for rule in self._rules)
        self._merged: dict[frozenset[str], _Merged] = {}
        self._answers: dict[tuple[frozenset[str], str, tuple[str, ...], tuple[str, ...]], bool] = {}
        #: The names of clients that rules give, each by itself.
        self._given = frozenset(name for rule in self._rules for name in rule.name or () if name not in ("*", ">"))

    @classmethod
    def from_config(cls, tables: Iterable[Mapping[str, Any]], *, place: str = "rules") -> Rules:
        """Rules out of a configuration: tables whose keys are the fields of `Rule`.

        Args:
            place: where they stand, for errors.

        Raises:
            ValueError, TypeError: a table makes no sense as a rule; the text has its number, from 1, and the field.
        """
        return cls([_rule_of(table, f"{place}: rule {number}") for number, table in enumerate(tables, 1)])

    def __len__(self) -> int:
        return len(self._rules)

    def permits(self, identity: Any, action: Action, *names: str, unless: tuple[str, ...] = ()) -> bool:
        """May this identity do that?

        Args:
            names: all names of one thing that may allow it, such as `vectorize` and `gpu-1.vectorize`: one of them must
                be allowed, and none denied. To call the hub's own methods, `rpc.…` and `OWN_METHODS`, needs no rule.
            unless: further names of it: none of them may be denied, and none allows it.

        Raises:
            ValueError: there is no such action, or no name.
        """
        if action not in ACTIONS or not names:
            raise ValueError(f"an action ({', '.join(ACTIONS)}) and at least one name, please; got {action!r}, {names}")
        who = _who(identity)
        if who is None:
            return self._decide(_NOBODY, action, names, unless)
        key = (who, action, names, unless)
        known = self._answers.get(key)
        if known is not None:
            return known
        answer = self._decide(self._for(who), action, names, unless)
        if sum(map(len, (*names, *unless, *who))) <= MAX_LENGTH:
            if len(self._answers) >= MAX_ANSWERS:
                self._answers.clear()
            self._answers[key] = answer
        return answer

    def permits_call(self, identity: Any, method: str, client: str) -> bool:
        """May this identity call, or notify, a method of a client?

        It has two names, `method` and `client.method`, and each of them allows it, or denies it. A method with dots in
        its name has the second one alone: the first is what a method of another client may be called.
        """
        own = f"{client}.{method}"
        if "." in method:
            return self.permits(identity, "call", own, unless=(method,))
        return self.permits(identity, "call", method, own)

    def permits_pattern(self, identity: Any, pattern: str) -> bool:
        """May this identity subscribe to a pattern: does one that is allowed cover it, and none that is denied?

        Some of what it matches may be denied all the same, see `denied`.
        """
        merged = self._for(_who(identity))
        if any(covers(denied, pattern) for denied in merged.denied["subscribe"]):
            return False
        return any(covers(allowed, pattern) for allowed in merged.allowed["subscribe"])

    def check_subscription(self, identity: Any, pattern: str) -> tuple[str, ...]:
        """May this identity subscribe to a pattern? Gives the patterns of what it is not to be told then.

        Raises:
            NotPermitted: it may not.
        """
        if not self.permits_pattern(identity, pattern):
            raise NotPermitted(data={"topic": pattern})
        return self.denied(identity, "subscribe", pattern)

    def denied(self, identity: Any, action: Action, pattern: str) -> tuple[str, ...]:
        """The patterns denied to this identity that have a name or topic in common with this one."""
        merged = self._for(_who(identity))
        return tuple(denied for denied in merged.denied[action] if overlaps(denied, pattern))

    def _decide(self, merged: _Merged, action: Action, names: tuple[str, ...], unless: tuple[str, ...]) -> bool:
        if any(matches(pattern, name) for pattern in merged.denied[action] for name in (*names, *unless)):
            return False
        if action == "call" and all(name.startswith(RESERVED) or name in OWN_METHODS for name in names):
            return True
        if action == "name" and merged.takes_free_names and names[0] not in self._given:
            return True
        return any(matches(pattern, name) for pattern in merged.allowed[action] for name in names)

    def _for(self, who: frozenset[str] | None) -> _Merged:
        """What the rules come to for these names."""
        if who is None:
            return _NOBODY
        merged = self._merged.get(who)
        if merged is None:
            merged = _Merged(
                rule
                for rule, expression in zip(self._rules, self._who, strict=True)
                if expression is None or any(map(expression.fullmatch, who))
            )
            if sum(map(len, who)) <= MAX_LENGTH:
                if len(self._merged) >= MAX_IDENTITIES:
                    self._merged.clear()
                self._merged[who] = merged
        return merged


class _Merged:
    """The patterns of several rules by action, each once."""

    __slots__ = ("allowed", "denied", "takes_free_names")

    def __init__(self, rules: Iterable[Rule]) -> None:
        rules = list(rules)
        #: One of them says nothing of names.
        self.takes_free_names = any(rule.name is None for rule in rules)
        self.allowed = {action: _all(rules, action) for action in ACTIONS}
        self.denied = {action: _all(rules, f"deny_{action}") for action in ACTIONS}


def _all(rules: Iterable[Rule], field: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pattern for rule in rules for pattern in getattr(rule, field) or ()))


#: Of somebody without an identity.
_NOBODY = _Merged(())


def _who(identity: Any) -> frozenset[str] | None:
    return None if identity is None else frozenset(names_of(identity))


def _expression(who: Names) -> re.Pattern[str] | None:
    """Matches one of these names; None where everybody is meant."""
    if EVERYBODY in who:
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
            raise TypeError(f"{field}: must have texts in it, got {type(text).__name__}")
        if not text:
            raise ValueError(f"{field}: has an empty text in it")
    return texts


def _fault_of_name(pattern: str) -> str | None:
    """Why no client can have such a name."""
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
            near = difflib.get_close_matches(str(key)[:100], _FIELDS, 1)
            raise ValueError(f"{place}: unknown field {key!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    if "who" not in table:
        raise ValueError(f"{place}: who: is missing; '*' is everybody who is authenticated")
    try:
        return Rule(**table)
    except TypeError as error:
        raise TypeError(f"{place}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
