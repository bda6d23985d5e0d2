"""Topics and patterns of topics: their syntax, which topic a pattern matches, and a table of patterns.

Levels are separated by dots. In a pattern `*` stands for exactly one whole level, and `>`, which comes last, for one or
more. A pattern that begins with either does not match topics that begin with `rpc.`: those must be named. A topic is a
pattern that matches itself. Pure; knows neither subscribers nor messages. (Wire page, "Events".)
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Generic, TypeVar

#: Characters of a topic or pattern. Names that people read are shorter; the server keeps up to `max_subscriptions` of
#: them for each subscriber.
TOPIC_MAX = 256

#: Levels of a topic or pattern. More than any tree of places and devices has; each level of a pattern costs a table
#: some 300 bytes.
LEVELS_MAX = 32

#: Topics and methods that begin with this belong to rpcstream itself.
RESERVED = "rpc."

#: A client's name at a hub: one level of a method's name, and readable everywhere.
CLIENT_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")

T = TypeVar("T", bound=Hashable)


def is_pattern(text: str) -> bool:
    """Tell whether it stands for more than the topic of this name."""
    return "*" in text or ">" in text


def fault_of_topic(text: str) -> str | None:
    """Return why it is no topic, in words to stand behind its name; None if it is one."""
    return "must not contain '*' or '>', which are for patterns" if is_pattern(text) else _fault_of_size(text)


def fault_of_pattern(text: str) -> str | None:
    """Return why it is neither a pattern nor a topic, in words to stand behind its name; None if it is one."""
    fault = _fault_of_size(text)
    if fault is not None or not is_pattern(text):
        return fault
    *first, last = text.split(".")
    for level in first:
        if ">" in level:
            return "may have '>' only as its last level, whole"
        if "*" in level and level != "*":
            return "may have '*' only as a whole level"
    if last in ("*", ">") or not is_pattern(last):
        return None
    return "may have '>' only as its last level, whole" if ">" in last else "may have '*' only as a whole level"


def _fault_of_size(text: str) -> str | None:
    if not text:
        return "is empty"
    if len(text) > TOPIC_MAX:
        return f"has more than {TOPIC_MAX} characters"
    return f"has more than {LEVELS_MAX} levels" if text.count(".") >= LEVELS_MAX else None


def matches(pattern: str, topic: str) -> bool:
    """Tell whether the pattern matches this topic."""
    if not is_pattern(pattern):
        return pattern == topic
    wanted, levels = pattern.split("."), topic.split(".")
    if wanted[0] in ("*", ">") and topic.startswith(RESERVED):
        return False
    if wanted[-1] == ">":
        wanted.pop()
        if len(levels) <= len(wanted):
            return False
    elif len(levels) != len(wanted):
        return False
    return all(level in ("*", each) for level, each in zip(wanted, levels, strict=False))


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern to an expression, whose `fullmatch` is faster for many topics."""
    first, *others = pattern.split(".")
    parts = [_EXPRESSIONS.get(level) or re.escape(level) for level in (first, *others)]
    guard = rf"(?!{re.escape(RESERVED)})" if first in _EXPRESSIONS else ""
    return re.compile(guard + r"\.".join(parts), re.DOTALL)


#: No two of these, separated by dots, fit a text in more than one way.
_EXPRESSIONS = {"*": r"[^.]*", ">": r".*"}


def covers(pattern: str, other: str) -> bool:
    """Tell whether the pattern matches every topic that the other one matches."""
    wide, narrow = pattern.split("."), other.split(".")
    if _excludes_reserved(wide, narrow):
        return False
    for number, level in enumerate(wide):
        if number == len(narrow):
            return False
        if level == ">":
            return True
        if narrow[number] == ">" or level not in ("*", narrow[number]):
            return False
    return len(wide) == len(narrow)


def overlaps(a: str, b: str) -> bool:
    """Tell whether there is a topic that both match."""
    one, two = a.split("."), b.split(".")
    if _excludes_reserved(one, two) or _excludes_reserved(two, one):
        return False
    for level, each in zip(one, two, strict=False):
        if ">" in (level, each):
            return True
        if level != each and "*" not in (level, each):
            return False
    return len(one) == len(two)


def _excludes_reserved(pattern: list[str], other: list[str]) -> bool:
    """Tell whether the other has only reserved topics, which the pattern, for its first wildcard, does not match."""
    return pattern[0] in ("*", ">") and other[0] == RESERVED[:-1] and len(other) > 1


class PatternTable(Generic[T]):
    """Values by patterns, found by the topics that these match.

    A tree by levels: a search visits the nodes that fit the topic and no others, each once.
    """

    __slots__ = ("_root", "_size")

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()
        self._size = 0

    def __len__(self) -> int:
        """Return the number of values."""
        return self._size

    @property
    def steps(self) -> int:
        """The most nodes that a search visits, whatever the topic: the cost of one publication."""
        return self._root.steps

    def add(self, pattern: str, value: T) -> None:
        """Add a value; adding it again changes nothing. A pattern may have several values.

        Args:
            pattern: one in which `fault_of_pattern` finds no fault; a topic is one.
            value: to be found by topics that it matches.
        """
        node, path, levels = self._root, [], pattern.split(".")
        for level in levels:
            path.append(node)
            below = node.below.get(level)
            if below is None:
                below = _Node()
                node.put(level, below)
            node = below
        if value not in node.values:
            node.values = (*node.values, value)
            self._size += 1
        self._count(path, levels)

    def remove(self, pattern: str, value: T) -> None:
        """Remove a value.

        Raises:
            KeyError: it is not there.
        """
        path = [self._root]
        levels = pattern.split(".")
        for level in levels:
            path.append(path[-1].below[level])
        node = path.pop()
        if value not in node.values:
            raise KeyError(value)
        node.values = tuple(each for each in node.values if each != value)
        self._size -= 1
        while path and not node.values and not node.below:
            node = path.pop()
            node.take(levels[len(path)])
        self._count(path, levels)

    def _count(self, path: list[_Node[T]], levels: list[str]) -> None:
        """Count the steps again along a path from the root, whose nodes are followed by these levels."""
        for node, level in zip(reversed(path), reversed(levels[: len(path)]), strict=True):
            node.count(level)
        self._root.steps = self._root.counted()

    def find(self, topic: str) -> list[T]:
        """Return the values of all patterns that match a topic, in any order; a value once for each of its patterns."""
        found: list[T] = []
        nodes = [self._root]
        has_wildcards = not topic.startswith(RESERVED)  # in the first level
        for level in topic.split("."):
            below = []
            for node in nodes:
                exact = node.below.get(level)
                if exact is not None and level not in ("*", ">"):  # a topic that is sent may well have such a level
                    below.append(exact)
                if has_wildcards:
                    any_one, rest = node.below.get("*"), node.below.get(">")
                    if any_one is not None:
                        below.append(any_one)
                    if rest is not None:
                        found += rest.values
            nodes, has_wildcards = below, True
            if not nodes:
                return found
        for node in nodes:
            found += node.values
        return found


#: Up to so many nodes below one, their steps are compared each time; of more, it is counted how many have how many.
_FEW = 8


class _Node(Generic[T]):
    """A node of the tree: the values of the pattern that ends here, and the nodes of the next level.

    Attributes:
        steps: the most nodes that a search visits from here on, with this one.
    """

    __slots__ = ("_widths", "below", "steps", "values")

    def __init__(self) -> None:
        self.below: dict[str, _Node[T]] = {}
        self.values: tuple[T, ...] = ()
        self.steps = 1
        #: Where there are many nodes below: the number of those without wildcards, by their steps.
        self._widths: dict[int, int] | None = None

    def put(self, level: str, node: _Node[T]) -> None:
        """Add a node below."""
        self.below[level] = node
        if self._widths is not None and level not in _WILDCARDS:
            self._change(node.steps, 1)
        elif len(self.below) > _FEW:
            self._widths = {}
            for name, each in self.below.items():
                if name not in _WILDCARDS:
                    self._change(each.steps, 1)

    def take(self, level: str) -> None:
        """Remove a node below."""
        node = self.below.pop(level)
        if self._widths is not None and level not in _WILDCARDS:
            self._change(node.steps, -1)

    def count(self, level: str) -> None:
        """Count the steps of the node below at this level again, if there is one."""
        node = self.below.get(level)
        if node is None or (steps := node.counted()) == node.steps:
            return
        if self._widths is not None and level not in _WILDCARDS:
            self._change(node.steps, -1)
            self._change(steps, 1)
        node.steps = steps

    def counted(self) -> int:
        """Count the steps from those of the nodes below: of the widest exact level, and of the wildcards."""
        any_one = self.below.get("*")
        steps = 1 + (any_one.steps if any_one is not None else 0) + (">" in self.below)
        if self._widths is not None:
            return steps + max(self._widths, default=0)
        return steps + max([node.steps for name, node in self.below.items() if name not in _WILDCARDS], default=0)

    def _change(self, steps: int, by: int) -> None:
        assert self._widths is not None
        count = self._widths.get(steps, 0) + by
        if count:
            self._widths[steps] = count
        else:
            del self._widths[steps]


_WILDCARDS = frozenset(("*", ">"))
