"""Reads docstrings in Google's, NumPy's or Sphinx's form: what they say of a method, its parameters and its result.

`docstring_parser` reads the sections. Sections that it cannot read stay in the description. Long texts are cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ..codec.schema import TEXT_MAX, shortened_text

#: Characters of the description of a method, and of all methods of a document; however many there are, each may have
#: so many; and of a summary.
_ALL_MAX, _EACH_MIN, SUMMARY_MAX = 8 * 1024 * 1024, 500, 300

#: What begins a section of parameters or of the result: in Google's form, in NumPy's, and in Sphinx's or Epytext's.
_GOOGLE = re.compile(r"(?:Args|Arguments|Params|Parameters|Returns|Yields):[ \t]*")
_NUMPY = re.compile(r"(?:Parameters|Other Parameters|Returns|Yields)[ \t]*")
_DASHES = re.compile(r"-{3,}[ \t]*")
_FIELD = re.compile(
    r"[:@](?:param|parameter|arg|argument|attribute|key|keyword|type|returns?|rtype|yields?)\b[^:\n]{0,200}:"
)
_MARKS = re.compile(
    r"(?m)^(?:(?:Args|Arguments|Params|Parameters|Returns|Yields):[ \t]*$"
    r"|(?:(?:Other )?Parameters|Returns|Yields)[ \t]*\n-{3,}[ \t]*$"
    r"|[:@](?:param|parameter|arg|argument|key|keyword|returns?|yields?)\b)"
)


@dataclass(frozen=True, slots=True)
class Docstring:
    """What a docstring says.

    Attributes:
        summary: its first paragraph, as one line; None if there is no docstring.
        description: the rest, without the sections whose texts are in `parameters` and `result`; the whole text if the
            summary was cut; None if there is no rest.
        parameters: the description of each parameter that it tells about, by name.
        result: of what is returned or yielded; None where it does not say.
    """

    summary: str | None = None
    description: str | None = None
    parameters: dict[str, str] = field(default_factory=dict)
    result: str | None = None


def longest_text(methods: int) -> int:
    """The characters that the description of one of so many methods may have."""
    return max(_EACH_MIN, min(TEXT_MAX, _ALL_MAX // max(methods, 1)))


def read_docstring(text: str | None, limit: int = TEXT_MAX) -> Docstring:
    """Read a docstring (without its indentation), of which no more than `limit` characters are looked at."""
    if not text:
        return Docstring()
    is_whole = len(text) <= limit
    text = _sendable(shortened_text(text, limit))
    found = _parsed(text) if _MARKS.search(text) else None
    parameters: dict[str, str] = {}
    result = None
    for part in [] if found is None else found.meta:
        described = (part.description or "").strip()
        kind = part.args[0] if part.args else ""
        if kind == "param" and described:
            for name in str(getattr(part, "arg_name", "")).split(","):
                parameters[name.strip().replace("\\", "").lstrip("*")] = described
        elif kind in ("return", "returns", "yield", "yields") and described:
            result = result or described
    rest = _without_sections(text) if (parameters or result) and is_whole else text
    first, _, more = rest.partition("\n\n")
    first = " ".join(first.split("\n"))
    summary = shortened_text(first, SUMMARY_MAX)
    description = more.strip("\n") if summary == first else rest
    return Docstring(summary or None, description or None, parameters, result)


def _parsed(text: str) -> Any:
    """What docstring_parser makes of a text; None if it cannot read it."""
    import docstring_parser  # only servers that are asked for their methods need it

    styles, lines = docstring_parser.DocstringStyle, text.split("\n")
    if any(map(_GOOGLE.fullmatch, lines)):
        style = styles.GOOGLE
    elif any(map(_NUMPY.fullmatch, lines)):
        style = styles.NUMPYDOC
    else:
        style = styles.EPYDOC if any(line.startswith("@") for line in lines) else styles.REST
    try:
        return docstring_parser.parse(text, style)
    except Exception:  # whatever its author wrote is no failure of the server
        return None


def _without_sections(text: str) -> str:
    """The text without the sections on parameters and the result."""
    lines, kept, at = text.split("\n"), [], 0
    while at < len(lines):
        line = lines[at]
        is_numpy = _NUMPY.fullmatch(line) and at + 1 < len(lines) and _DASHES.fullmatch(lines[at + 1])
        if is_numpy:
            at += 2
            while at < len(lines) and not (at + 1 < len(lines) and _DASHES.fullmatch(lines[at + 1])):
                at += 1
        elif _GOOGLE.fullmatch(line) or _FIELD.match(line):
            at += 1
            while at < len(lines) and (not lines[at].strip() or lines[at][0] in " \t"):
                at += 1
        else:
            kept.append(line)
            at += 1
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()


def _sendable(text: str) -> str:
    """The text, with what has no form in UTF-8 escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
