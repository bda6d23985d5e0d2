"""Says in plain words why a value does not fit its hint.

msgspec and the rich types say "Expected `int`, got `str` - at `$[0].x`"; people read "expected an integer, got a
string". Runs for errors only.
"""

from __future__ import annotations

import json
import re
from typing import Any

from .rich_hint import shortened

#: Characters at the end of a text in which the path is looked for; a peer may have written the rest of it.
_PATH_MAX = 2000
#: Characters of a reason, and choices that are named.
_REASON_MAX, _CHOICES_MAX = 400, 20

#: How msgspec ends a text with the path of the value. A class inside another adds its own part before.
_PATHS = re.compile(r"(?: - at `(?:key` in `)?\$[^`]*`)+\Z")
_PATH = re.compile(r"\$([^`]*)`")
_NAMES = re.compile(r"`([^`]*)`")
_MEMBER = re.compile(r"Object (missing required|contains unknown) field `([^`]*)`")
_ENUM = "Invalid enum value "

#: What a type, or a value of it, is called.
_WORDS = {
    **{"int": "an integer", "float": "a number", "str": "a string", "bool": "a boolean", "array": "a list"},
    **{"object": "an object", "ndarray": "an array", "image": "an image", "complex": "a complex number"},
    "Attachment": "a payload",
}


def fault_of(text: str, choices: list[Any]) -> tuple[str, str]:
    """Read the text of an error: the path of the part that is wrong inside the value, such as "[0].x", and the reason.

    Args:
        text: of msgspec or a rich type.
        choices: the values that an enum or Literal in the hint permits; [] if there are several of these, or none.
    """
    end = text[-_PATH_MAX:]
    found = _PATHS.search(end)
    path = "" if found is None else "".join(reversed(_PATH.findall(found[0])))
    text = (text if found is None else text[: len(text) - len(end) + found.start()])[:_REASON_MAX]
    if text.startswith(_ENUM):
        listed = " or ".join(json.dumps(each, default=str) for each in choices[:_CHOICES_MAX]) or "another value"
        return path, f"expected {shortened(listed, 300)}, got {shortened(text.removeprefix(_ENUM), 60)}"
    if member := _MEMBER.fullmatch(text):
        return path, f"{member[2]!r} is {'missing' if 'missing' in member[1] else 'unknown'}"
    if text.startswith("Expected `"):
        return path, "e" + _NAMES.sub(_in_words, text[1:])
    return path, text if text.isprintable() else repr(text)


def in_words(text: str, choices: list[Any], name: str) -> str:
    """The text of an error in words, with the place of the wrong part: "result[0].x: expected an integer, got null".

    Args:
        text, choices: as for `fault_of`.
        name: of the value.
    """
    path, reason = fault_of(text, choices)
    return f"{name}{path}: {reason}" if path else reason


def _in_words(names: re.Match[str]) -> str:
    """What types are called; "ndarray of float32 | int" is "an array of float32 or an integer"."""
    parts = [name.partition(" of ") for name in names[1].split(" | ")]
    return " or ".join(f"{_WORDS.get(kind, kind)}{of}{rest}" for kind, of, rest in parts)
