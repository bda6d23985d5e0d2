"""From the value that a handler returns, or the error that it raises, to the HTTP response; HTML templates."""

from __future__ import annotations

import asyncio
import functools
import io
import re
import string
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, NamedTuple

from markupsafe import Markup

from ..codec import Codec
from ..errors import ServerBusy
from ..methods.replies import internal_error
from ..observe.limited_log import LimitedLog
from ..wire.buffers import Encoded, MessageParts
from ..wire.http_messages import NOSNIFF, HttpError, Response, problem

HTML = "text/html; charset=utf-8"
BYTES = "application/octet-stream"
JSON = "application/json"
PNG = "image/png"

#: Headers that the connection sets itself: they say where the body ends, and whether another response follows.
_OF_CONNECTION = frozenset(
    {"content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "trailer", "date"}
)

#: Image modes of PNG; images of other modes are converted to RGB, or RGBA if they have transparency.
_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})


def response_to(value: Any, codec: Codec) -> Response:
    """Make the response for a value that a handler returned.

    A `Response` is itself; str is HTML, bytes are bytes, a Pillow image is PNG, None is 204 (nothing); everything else
    is JSON, as the codec writes it.

    Raises:
        EncodeError: the value has no form in JSON.
        TypeError, ValueError: a str has a lone surrogate, a header a line end, or a `Response` breaks a rule of HTTP.
    """
    if isinstance(value, Response):
        return _checked(value)
    if value is None:
        return Response(204, headers=[NOSNIFF])
    if isinstance(value, str):
        return _ok(value.encode(), HTML)
    if isinstance(value, bytes | bytearray | memoryview):
        return _ok(bytes(value), BYTES)
    if is_image(value):
        return png(value)
    return _ok(codec.serialize(value), JSON)


def is_image(value: object) -> bool:
    """Whether a value is a Pillow image; does not import Pillow."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def png(image: Any) -> Response:
    """The response with an image as a PNG file."""
    if image.mode not in _PNG_MODES:
        image = image.convert("RGBA" if image.has_transparency_data or image.mode in ("RGBa", "La", "PA") else "RGB")
    file = io.BytesIO()
    image.save(file, "png")
    return _ok(file.getvalue(), PNG)


def _ok(body: Encoded, type: str) -> Response:
    return Response(200, body, type, [NOSNIFF])


def call_in_process(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a handler, in another process. An image becomes a PNG file there, which spares the event loop that work."""
    try:
        value = function(*args, **kwargs)
    except HttpError as error:
        return error.response
    return png(value) if is_image(value) else value


async def responding(begin: Callable[[], Awaitable[Response]], failed: Callable[[BaseException], Response]) -> Response:
    """Await a response; an error gives one, too. Cancel this when the caller is gone.

    Args:
        begin: gives the response, awaited.
        failed: makes the response for what `begin` raises.
    """
    try:
        return await begin()
    except (KeyboardInterrupt, GeneratorExit):  # the program ends, or the coroutine is dropped
        raise
    except BaseException as error:
        task = asyncio.current_task()
        # Something that it awaited may have been cancelled, such as a closed pool, and not this task.
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0:
            raise
        return failed(error)


def error_response(name: str, error: BaseException, limited: LimitedLog, *, debug: bool = False) -> Response:
    """Log an exception and make the response for it, with its traceback only if `debug`."""
    if isinstance(error, ServerBusy) and error.address is None:
        return problem(503, "The server is busy; try again later")
    told = internal_error(limited, "server", name, error)
    if debug:
        return problem(500, "".join(traceback.format_exception(error)).encode(errors="replace").decode())
    return problem(500, told.message)


def check_headers(headers: Iterable[tuple[str, str]], type: str | None) -> None:
    """Check the headers that a handler or a static file wants.

    Args:
        headers: pairs of name and value.
        type: the content type; None for none.

    Raises:
        ValueError: one is not a header, would be there twice, or is set by the connection itself.
    """
    for name, value in headers:
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValueError(f"a header is two strings, name and value, got {name!r} and {value!r}")
        if name.lower() in _OF_CONNECTION:
            raise ValueError(f"the header {name} cannot be given here: the connection sets it")
        if name.lower() == "content-type" and type is not None:
            raise ValueError(f"the header {name} is given already, by type=")
    if type is not None and not isinstance(type, str):
        raise ValueError(f"a type is a string such as 'text/plain', got {type!r}")


def _checked(response: Response) -> Response:
    """Check a handler's own response here, where its route is known, and not only when it is sent."""
    body = response.body
    if not isinstance(body, bytes | MessageParts):
        raise TypeError(f"the body of a Response is bytes, got {type(body).__name__}")
    if type(response.status) is not int or not 200 <= response.status <= 599:
        raise ValueError(f"the status of a Response is a number from 200 to 599, got {response.status!r}")
    if response.status in (204, 304) and body:
        raise ValueError(f"a Response with status {response.status} has no body")
    check_headers(response.headers, response.type)
    headers = response.headers
    if all(name.lower() != "x-content-type-options" for name, _ in headers):
        response = Response(response.status, body, response.type, [*headers, NOSNIFF])
    response.head(len(body), True)
    return response


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
