"""The path of a route, `/pictures/{name}.png`, as a pattern that is compiled once.

Pure. What is matched is a request's path as it is after decoding, without the query.
"""

from __future__ import annotations

import re

from ..errors import RegistrationError

#: What stands behind the colon of a place -> what it matches.
_KINDS = {"str": "([^/]+)", "int": "(-?[0-9]{1,30})", "path": "(.*)"}
_PLACE = re.compile(r"\{([^{}]*)\}")
_ESCAPED = re.compile("%[0-9A-Fa-f]{2}")


class PathPattern:
    """A path with places in it.

    Args:
        path: begins with `/`. `{name}` stands for one or more characters that are no `/`, `{name:int}` for a whole
            number, `{name:path}`, at the end, for all the rest, which may be empty.

    Raises:
        RegistrationError: it is not such a path; the text says what is wrong with it.

    Attributes:
        kinds: "str", "int" or "path" for each place, by its name. Empty: the path matches itself alone.
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
        """The text at each place; None if it is another path."""
        found = self._expression.fullmatch(path)
        return None if found is None else dict(zip(self.kinds, found.groups(), strict=True))

    def _segment(self, segment: str) -> str:
        """The expression for what stands between two slashes."""
        before, *rest = _PLACE.split(segment)
        if not rest:
            return self._text(before)
        if len(rest) > 2:
            # They could share the text in many ways, and a long path would take long to try them all.
            raise self._error(f"between two slashes there is one place at most, and not {segment!r}")
        name, _, kind = rest[0].partition(":")
        if not name.isidentifier():
            raise self._error(f"a place is a name, such as {{name}} or {{number:int}}, and not {{{rest[0]}}}")
        if (kind or "str") not in _KINDS:
            raise self._error(f"the kind of {{{rest[0]}}} must be one of {', '.join(_KINDS)}")
        if name in self.kinds:
            raise self._error(f"{{{name}}} stands there twice")
        self.kinds[name] = kind or "str"
        return self._text(before) + _KINDS[kind or "str"] + self._text(rest[1])

    def _text(self, text: str) -> str:
        if "{" in text or "}" in text:
            raise self._error("a brace without its other half")
        return re.escape(text)

    def _error(self, reason: str) -> RegistrationError:
        return RegistrationError(f"the path {self.path!r}: {reason}")


def check_path(path: str) -> None:
    """Raises RegistrationError unless a request could have this path."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise RegistrationError(f"a path is a string that begins with '/', got {path!r}")
    if "?" in path or "#" in path:
        raise RegistrationError(f"the path {path!r}: the query is no part of it; it comes as parameters")
    if _ESCAPED.search(path):
        raise RegistrationError(f"the path {path!r}: write it as it is read, with the characters themselves and no %")
    if any(ord(letter) < 0x20 for letter in path):
        raise RegistrationError(f"the path {path!r}: it has a control character in it")
