"""From the value that a handler returns, or the error that it raises, to the HTTP response."""

from __future__ import annotations

import asyncio
import io
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

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
