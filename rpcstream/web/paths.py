"""Patterns of paths with parameters, such as `/pictures/{name}.png`.

They are compiled once, and matched against the decoded path of a request, without its query.
"""

from __future__ import annotations

import re

from ..errors import RegistrationError

#: The kind of a parameter, behind its colon, and what it matches.
_KINDS = {"str": "([^/]+)", "int": "(-?[0-9]{1,30})", "path": "(.*)"}
_PARAMETER = re.compile(r"\{([^{}]*)\}")
_ESCAPED = re.compile("%[0-9A-Fa-f]{2}")


class PathPattern:
    """A path with parameters in it.

    Args:
        path: begins with `/`. `{name}` matches one or more characters other than `/`, `{name:int}` a whole number,
            `{name:path}`, at the end, all the rest, which may be empty.

    Raises:
        RegistrationError: the path is not of this form; the text says what is wrong with it.

    Attributes:
        kinds: "str", "int" or "path" for each parameter, by its name. Empty: the pattern matches its own text only.
    """

    def __init__(self, path: str) -> None:
        check_path(path)
        self.path = path
        self.kinds: dict[str, str] = {}
        segments = path.split("/")
        self._expression = re.compile("/".join(map(self._segment, segments)), re.DOTALL)
        is_last = segments[-1].endswith(":path}")
        if list(self.kinds.values()).count("path") != is_last:
            raise self._error("a {name:path} takes all the rest, so nothing can stand behind it")

    def match(self, path: str) -> dict[str, str] | None:
        """The text of each parameter, by name; None if the path does not match."""
        found = self._expression.fullmatch(path)
        return None if found is None else dict(zip(self.kinds, found.groups(), strict=True))

    def _segment(self, segment: str) -> str:
        """The regular expression for the text between two slashes."""
        before, *rest = _PARAMETER.split(segment)
        if not rest:
            return self._text(before)
        if len(rest) > 2:
            # Two could share the text in many ways, and trying them all would take long for a long path.
            raise self._error(f"there can be one parameter between two slashes, not {segment!r}")
        name, _, kind = rest[0].partition(":")
        if not name.isidentifier():
            raise self._error(f"a parameter is a name, such as {{name}} or {{number:int}}, not {{{rest[0]}}}")
        if (kind or "str") not in _KINDS:
            raise self._error(f"the kind of {{{rest[0]}}} must be one of {', '.join(_KINDS)}")
        if name in self.kinds:
            raise self._error(f"{{{name}}} is there twice")
        self.kinds[name] = kind or "str"
        return self._text(before) + _KINDS[kind or "str"] + self._text(rest[1])

    def _text(self, text: str) -> str:
        if "{" in text or "}" in text:
            raise self._error("a brace without its counterpart")
        return re.escape(text)

    def _error(self, reason: str) -> RegistrationError:
        return RegistrationError(f"the path {self.path!r}: {reason}")


def check_path(path: str) -> None:
    """Raise RegistrationError unless a request could have this path."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise RegistrationError(f"a path is a string that begins with '/', got {path!r}")
    if "?" in path or "#" in path:
        raise RegistrationError(f"the path {path!r}: the query is not part of a path; its fields come as parameters")
    if _ESCAPED.search(path):
        raise RegistrationError(f"the path {path!r}: write the characters themselves, without percent-encoding")
    if any(ord(letter) < 0x20 for letter in path):
        raise RegistrationError(f"the path {path!r}: it has a control character in it")
