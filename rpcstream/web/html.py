"""HTML templates whose values are escaped by markupsafe. Places where escaping does not protect are refused."""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from markupsafe import Markup

#: Elements whose text browsers do not read as HTML: quoting does not protect there.
_RAW_ELEMENT = re.compile(r"<(script|style)\b|</(script|style)\b", re.IGNORECASE)
#: A complete element of these, or a comment: there are no tags in them.
_CLOSED = re.compile(r"<(script|style)\b[^>]*>.*?</\1\s*>|<!--.*?-->", re.IGNORECASE | re.DOTALL)
#: The beginning of an attribute that holds a script: onclick="…
_PROGRAM = re.compile(r"\son[a-z]+\s*=\s*(\"[^\"]*|'[^']*)$", re.IGNORECASE)

_CONVERSIONS: dict[str, Callable[[object], str]] = {"r": repr, "s": str, "a": ascii}


class Html(Markup):
    """A str that is HTML: it is put into a template without quoting.

    Made by `html` and `escape`, or by `Html(text)` from text that is known to be safe. What is added to it, joined with
    it, or formatted into it is quoted, unless it is Html, too: it is a `Markup` of the package markupsafe.
    """

    __slots__ = ()


def escape(value: object) -> Html:
    """A value as HTML text: `&`, `<`, `>` and both quotes as entities, so it may stand in quoted attributes as well.

    HTML (`Html`, or an object with a method `__html__`, such as markupsafe's Markup) stays as it is. Lists, tuples and
    iterators are quoted item by item and concatenated; None gives nothing.
    """
    if isinstance(value, Html):
        return value
    if value is None:
        return Html()
    if isinstance(value, list | tuple | Iterator):
        return Html("".join(map(escape, value)))
    return Html.escape(value)


def html(template: str, /, *args: object, **values: object) -> Html:
    """A template with values in its `{name}` places, each quoted for text and for attributes in quotes.

    >>> html('<a title="{name}">{name}</a>', name='"Tom" & <Jerry>')
    Html('<a title="&#34;Tom&#34; &amp; &lt;Jerry&gt;">&#34;Tom&#34; &amp; &lt;Jerry&gt;</a>')

    `{price:.2f}` and `{name!r}` format as in `str.format`; `{{` and `}}` are braces. A value that is `Html` is not
    quoted, and a list of them is concatenated: rows of a table, for example. Never take the template from a caller.

    Raises:
        TypeError: a place has no value, or a value no place.
        ValueError: the template is malformed, or a place is where quoting does not help: inside a tag without quotes
            around it (`<a href={url}>`), or (for values that are not Html) in `<script>`, `<style>` or `onclick="…"`.
    """
    if args:
        raise TypeError("html takes values by name: html(template, name=value)")
    pieces = _compiled(str(template))
    parts: list[str] = []
    for piece in pieces:
        parts.append(piece.text)
        if piece.name is not None:
            try:
                value = values[piece.name]
            except KeyError:
                raise TypeError(f"the template has {{{piece.name}}}, but there is no value {piece.name!r}") from None
            parts.append(_filled(piece, value))
    if values.keys() - (names := {piece.name for piece in pieces}):
        unused = ", ".join(repr(name) for name in values if name not in names)
        raise TypeError(f"the template has no place for {unused}")
    return Html("".join(parts))


class _Piece(NamedTuple):
    """Literal text of a template, and the place behind it, if there is one."""

    text: str
    name: str | None
    spec: str
    conversion: str | None
    is_raw: bool


def _filled(piece: _Piece, value: Any) -> str:
    """A value as it is put into its place."""
    if piece.conversion is not None:
        value = _CONVERSIONS[piece.conversion](value)
    if piece.spec:
        value = format(value, piece.spec)
    if piece.is_raw and not isinstance(value, Html):
        raise ValueError(
            f"{{{piece.name}}} stands in <script>, <style> or an event's attribute, where quoting does not protect: "
            "put the value into another attribute (data-…), or give it as Html"
        )
    return escape(value)


@functools.lru_cache(maxsize=256)
def _compiled(template: str) -> tuple[_Piece, ...]:
    pieces = []
    before = ""
    for text, name, spec, conversion in string.Formatter().parse(template):
        before += text
        if name is None:
            pieces.append(_Piece(text, None, "", None, False))
            continue
        if not name.isidentifier():
            raise ValueError(f"a place in a template is a name, such as {{name}}, and not {{{name}}}")
        if spec and "{" in spec:
            raise ValueError(f"{{{name}:{spec}}}: a format cannot have places of its own")
        if conversion is not None and conversion not in _CONVERSIONS:
            raise ValueError(f"{{{name}!{conversion}}}: a conversion is one of !r, !s, !a")
        is_raw = _is_raw(before)
        if not is_raw:
            place = _place(_CLOSED.sub("", before))
            if place == "bare":
                raise ValueError(f'{{{name}}} stands inside a tag without quotes round it: write "{{{name}}}"')
            is_raw = place == "quoted" and _PROGRAM.search(before) is not None
        pieces.append(_Piece(text, name, spec or "", conversion, is_raw))
        before += "x"
    return tuple(pieces)


def _is_raw(before: str) -> bool:
    """Whether the end of this text is inside a <script> or <style>."""
    found = list(_RAW_ELEMENT.finditer(before))
    return bool(found) and found[-1][1] is not None and ">" in before[found[-1].end() :]


def _place(before: str) -> str:
    """Where the end of this text is: "text", or inside a tag "quoted" or "bare". Read by letters, as browsers do."""
    in_tag, quote = False, ""
    for place, letter in enumerate(before):
        if quote:
            quote = "" if letter == quote else quote
        elif in_tag:
            in_tag = letter != ">"
            quote = letter if letter in "\"'" else ""
        elif letter == "<":
            # In front of a space, for example, it does not open a tag.
            behind = before[place + 1 : place + 2]
            in_tag = behind.isalpha() or behind in ("/", "")
    return "text" if not in_tag else "quoted" if quote else "bare"
