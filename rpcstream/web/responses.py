"""What a handler returns as a response.

Owns which value becomes which type of content. Knows neither routes nor how a handler is run.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ..codec import Codec
from ..wire.buffers import Encoded, MessageParts
from ..wire.http_messages import NOSNIFF, HttpError, Response

HTML = "text/html; charset=utf-8"
BYTES = "application/octet-stream"
JSON = "application/json"
PNG = "image/png"

#: What says where the body ends, and so where the next response begins.
_NOT_THEIRS = frozenset(
    {"content-length", "transfer-encoding", "connection", "keep-alive", "upgrade", "trailer", "date"}
)

#: What PNG can hold as it is; images of other modes are sent as RGB, or RGBA if they have transparency.
_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})


def response_to(value: Any, codec: Codec) -> Response:
    """The response that a value stands for.

    A `Response` is itself; str is HTML, bytes are bytes, a Pillow image is PNG, None is 204 (nothing); everything else
    is JSON, as the codec writes it.

    Raises:
        EncodeError: it has no form in JSON.
        TypeError, ValueError: a str has a lone surrogate in it, a header a line end; a `Response` is none.
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
    """Is it a Pillow image? Pillow is not imported for the question."""
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def png(image: Any) -> Response:
    """An image as a PNG file."""
    if image.mode not in _PNG_MODES:
        image = image.convert("RGBA" if image.has_transparency_data or image.mode in ("RGBa", "La", "PA") else "RGB")
    file = io.BytesIO()
    image.save(file, "png")
    return _ok(file.getvalue(), PNG)


def _ok(body: Encoded, type: str) -> Response:
    return Response(200, body, type, [NOSNIFF])


def call_in_process(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """In another process: call a handler; an image is made a file before it travels, so that the loop need not."""
    try:
        value = function(*args, **kwargs)
    except HttpError as error:
        return error.response
    return png(value) if is_image(value) else value


def check_headers(headers: Iterable[tuple[str, str]], type: str | None) -> None:
    """Raises ValueError for a header that is none, that there would be two of, or that the transport says itself.

    Args:
        type: of the content, which is a header, too.
    """
    for name, value in headers:
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValueError(f"a header is two strings, name and value, got {name!r} and {value!r}")
        if name.lower() in _NOT_THEIRS:
            raise ValueError(f"the header {name} is not for a handler to set: the connection needs its own")
        if name.lower() == "content-type" and type is not None:
            raise ValueError(f"the header {name} is said already, as the type")
    if type is not None and not isinstance(type, str):
        raise ValueError(f"a type is a string such as 'text/plain', got {type!r}")


def _checked(response: Response) -> Response:
    """A handler's own response, found wrong here, where its route is known, and not when it is sent."""
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
