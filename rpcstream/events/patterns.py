"""Topics and patterns of topics: their syntax, which topics a pattern matches, and a table of patterns.

Dots separate levels. In a pattern `*` stands for exactly one level, and `>`, as the last level, for one or more. A
pattern that begins with a wildcard does not match topics that begin with `rpc.`. A topic is a pattern that matches
itself.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from operator import itemgetter
from typing import Any

#: Characters of a topic or pattern. Names that people read are shorter, and a server keeps many of them.
TOPIC_MAX = 256

#: Levels of a topic; no tree of places and devices has more.
LEVELS_MAX = 32

#: Levels of a pattern. So there are about 1,500 shapes of patterns: publishing an event takes about 1 ms at most.
PATTERN_LEVELS_MAX = 9

#: Topics and methods that begin with this belong to rpcstream itself.
RESERVED = "rpc."

#: A client's name at a hub: one level of a method's name, and readable everywhere.
CLIENT_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")

#: Which levels of a pattern are wildcards: one character for each level, "*", ">", or "." for a name.
Shape = str


def is_pattern(text: str) -> bool:
    """Tell whether it stands for more than the topic of this name."""
    return "*" in text or ">" in text


def fault_of_topic(text: str) -> str | None:
    """Return why it is no topic, in words to stand behind its name; None if it is one."""
    return "must not contain '*' or '>', which are for patterns" if is_pattern(text) else _fault_of_size(text)


def fault_of_pattern(text: str) -> str | None:
    """Return why it is neither a pattern nor a topic, in words to stand behind its name; None if it is one."""
    most = PATTERN_LEVELS_MAX if is_pattern(text) else LEVELS_MAX
    if (fault := _fault_of_size(text, most)) is not None:
        return fault
    return None if _VALID.fullmatch(text) else "may have '*' only as a whole level, and '>' only as the last one, whole"


#: Levels with "*" alone or without wildcards, and the last one may be ">".
_VALID = re.compile(r"(?:(?:\*|[^.*>]*)\.)*(?:[*>]|[^.*>]*)", re.DOTALL)


def _fault_of_size(text: str, levels: int = LEVELS_MAX) -> str | None:
    if not text:
        return "is empty"
    if len(text) > TOPIC_MAX:
        return f"has more than {TOPIC_MAX} characters"
    return f"has more than {levels} levels" if text.count(".") >= levels else None


def matches(pattern: str, topic: str) -> bool:
    """Tell whether the pattern matches this topic."""
    return _expression(pattern).fullmatch(topic) is not None if is_pattern(pattern) else pattern == topic


@functools.lru_cache(maxsize=1024)  # rules and subscriptions are asked about many topics
def _expression(pattern: str) -> re.Pattern[str]:
    first, *others = pattern.split(".")
    parts = [_EXPRESSIONS.get(level) or re.escape(level) for level in (first, *others)]
    guard = rf"(?!{re.escape(RESERVED)})" if first in _EXPRESSIONS else ""
    return re.compile(guard + r"\.".join(parts), re.DOTALL)


#: No two of these, separated by dots, fit a text in more than one way.
_EXPRESSIONS = {"*": r"[^.]*", ">": r".*"}


def covers(pattern: str, other: str) -> bool:
    """Tell whether the pattern matches every topic that the other one matches."""
    # A wildcard of the other one is taken for a name, which only a wildcard fits.
    return matches(pattern, other) and (pattern.endswith(">") or not other.endswith(">"))


class PatternTable:
    """A set of patterns, found by the topics that they match, with one lookup for each shape among them."""

    __slots__ = ("_shapes",)

    def __init__(self) -> None:
        self._shapes: dict[Shape, _PatternsOfShape] = {}

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def add(self, pattern: str) -> None:
        """Add a pattern, which is no plain topic; adding it again changes nothing."""
        shape = _shape_of(pattern)
        patterns = self._shapes.get(shape) or self._shapes.setdefault(shape, _PatternsOfShape(shape))
        patterns.by_names[patterns.names_in(pattern.split("."))] = pattern

    def remove(self, pattern: str) -> None:
        """Remove a pattern.

        Raises:
            KeyError: it is not there.
        """
        shape = _shape_of(pattern)
        patterns = self._shapes[shape]
        del patterns.by_names[patterns.names_in(pattern.split("."))]
        if not patterns.by_names:
            del self._shapes[shape]

    def find(self, topic: str) -> list[str]:
        """Return all patterns that match a topic, in any order; may be called in any thread."""
        levels = topic.split(".")
        count, is_reserved = len(levels), topic.startswith(RESERVED)
        found = []
        for patterns in list(self._shapes.values()):
            if patterns.least <= count <= patterns.most and not (is_reserved and patterns.is_open):
                pattern = patterns.by_names.get(patterns.names_in(levels))
                if pattern is not None:
                    found.append(pattern)
        return found


class _PatternsOfShape:
    """The patterns of a table whose wildcards are at the same levels.

    Attributes:
        by_names: the patterns by the names at their other levels, which `names_in` picks out of all levels.
        least, most: how many levels a topic must have.
        is_open: the first level is a wildcard, which does not stand for `rpc`.
    """

    __slots__ = ("by_names", "is_open", "least", "most", "names_in")

    def __init__(self, shape: Shape) -> None:
        self.by_names: dict[Any, str] = {}
        self.least = len(shape)
        self.most = sys.maxsize if shape[-1] == ">" else len(shape)
        self.is_open = shape[0] != "."
        places = [number for number, level in enumerate(shape) if level == "."]
        self.names_in: Callable[[list[str]], Any] = itemgetter(*places) if places else lambda levels: ()


def _shape_of(pattern: str) -> Shape:
    return "".join([level if level in ("*", ">") else "." for level in pattern.split(".")])
