"""Permission on a hub: which identity may take which name, and register, call, publish and subscribe to what.

What no rule allows is not permitted, and what one rule denies no other rule allows.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import force_setattr

from ..auth.authenticator import names_of
from ..errors import NotPermitted
from ..events.patterns import CLIENT_NAME, RESERVED, covers, fault_of_pattern, is_pattern, matches

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


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What certain users may and may not do at a hub.

    Methods, topics and client names are patterns: levels separated by dots, `*` for one level, `>` at the end for one
    or more. A pattern that begins with a wildcard does not match names that begin with `rpc.`.

    Args:
        who: names of users or roles, with wildcards as in a shell: "gpu-*", "[ab]?". "*" is every authenticated
            identity.
        name: names that a client may take. If it is not given: every name that no rule reserves.
        register: methods that a client may offer, without `client.`.
        call: methods that it may call, as `method`, or `client.method` for one client.
        publish: topics that it may publish to.
        subscribe: topics that it may subscribe to.
        deny_register: methods that it may not offer, even if another rule allows them; so also the next fields.
        deny_call: methods that it may not call.
        deny_publish: topics that it may not publish to.
        deny_subscribe: topics that it may not subscribe to.
        deny_name: names that it may not take.

    Raises:
        TypeError, ValueError: a field is invalid; the text names the field.
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
        force_setattr(self, "who", who)
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
            force_setattr(self, field, patterns)
        if self.name is not None and not any(getattr(self, field) for field in PATTERN_FIELDS):
            raise ValueError("the rule neither allows nor denies anything")


#: The fields of a rule that hold patterns.
PATTERN_FIELDS = (*ACTIONS, *(f"deny_{action}" for action in ACTIONS))


class Rules:
    """All rules of one hub.

    Raises:
        TypeError: one of them is not a Rule.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        for number, rule in enumerate(self._rules, 1):
            if not isinstance(rule, Rule):
                raise TypeError(f"rule {number}: must be a Rule, got {type(rule).__name__}")
        self._who = tuple(_expression(rule.who) for rule in self._rules)
        self._known_answer = lru_cache(MAX_ANSWERS)(self._answer)
        self._known_merged = lru_cache(MAX_IDENTITIES)(self._merge)
        #: The names of clients that rules give, each by itself.
        self._given = frozenset(name for rule in self._rules for name in rule.name or () if name not in ("*", ">"))

    def replace(self, other: Rules) -> None:
        """Become what other rules are."""
        self._rules, self._who, self._given = other._rules, other._who, other._given
        self._known_answer.cache_clear()
        self._known_merged.cache_clear()

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
        """
        who = _names_of(identity)
        is_short = _length(*names, *unless, *(who or ())) <= MAX_LENGTH
        return (self._known_answer if is_short else self._answer)(who, action, names, unless)

    def permits_call(self, identity: Any, method: str, client: str) -> bool:
        """Tell whether an identity may call, or notify, a method of a client.

        It has two names, `method` and `client.method`, and each of them allows it, or denies it. A method with dots in
        its name has the second one alone: the first is what a method of another client may be called.
        """
        own = f"{client}.{method}"
        if "." in method:
            return self.permits(identity, "call", own, unless=(method,))
        return self.permits(identity, "call", method, own)

    def check_subscription(self, identity: Any, pattern: str) -> tuple[str, ...]:
        """Check a subscription to a pattern; return the patterns of topics that are denied.

        Raises:
            NotPermitted: no pattern that is allowed covers this one, or one that is denied does.
        """
        merged = self._merged(_names_of(identity))
        denied = merged.denied["subscribe"]
        if any(covers(each, pattern) for each in denied) or not any(
            covers(allowed, pattern) for allowed in merged.allowed["subscribe"]
        ):
            raise NotPermitted(data={"topic": pattern})
        return tuple(denied) if is_pattern(pattern) else ()

    def _answer(
        self, who: frozenset[str] | None, action: Action, names: tuple[str, ...], unless: tuple[str, ...]
    ) -> bool:
        merged = self._merged(who)
        if any(matches(pattern, name) for pattern in merged.denied[action] for name in (*names, *unless)):
            return False
        if action == "call" and all(name.startswith(RESERVED) or name in OWN_METHODS for name in names):
            return True
        if action == "name" and merged.takes_free_names and names[0] not in self._given:
            return True
        return any(matches(pattern, name) for pattern in merged.allowed[action] for name in names)

    def _merged(self, who: frozenset[str] | None) -> _MergedRules:
        """The rules for an identity with these names."""
        return (self._known_merged if _length(*(who or ())) <= MAX_LENGTH else self._merge)(who)

    def _merge(self, who: frozenset[str] | None) -> _MergedRules:
        return _MergedRules(
            rule
            for rule, expression in zip(self._rules, self._who, strict=True)
            if who is not None and (expression is None or any(map(expression.fullmatch, who)))
        )


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


def _names_of(identity: Any) -> frozenset[str] | None:
    return None if identity is None else frozenset(names_of(identity))


def _length(*names: str) -> int:
    return sum(map(len, names))


def _expression(who: Names) -> re.Pattern[str] | None:
    """Compile names to an expression; None if every identity is meant."""
    if ANY_IDENTITY in who:
        return None
    return re.compile("|".join(fnmatch.translate(name) for name in who))


def _texts(field: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Collection) or isinstance(value, bytes | bytearray | Mapping):
        raise TypeError(f"{field}: must be a string or a list of strings, got {type(value).__name__}")
    texts = tuple(value)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{field}: must contain only strings, got {type(text).__name__}")
        if not text:
            raise ValueError(f"{field}: contains an empty string")
    return texts


def _fault_of_name(pattern: str) -> str | None:
    """Return why no client can have such a name; None if one can."""
    if pattern in ("*", ">"):
        return None
    if not CLIENT_NAME.fullmatch(pattern):
        return "is no name of a client: 1 to 128 letters, digits, '_' and '-'; or '*' for any"
    return None
