"""What the Model Context Protocol says of versions, `_meta`, headers, error codes, and the content of results.

Sections that are named here are sections of the specification 2026-07-28
(https://modelcontextprotocol.io/specification).
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import numpy as np
import orjson
import pybase64

from ..codec import Codec
from ..codec.ndarray import npy_file
from ..codec.rich_hint import TAG_KEY
from ..codec.scalars import TAGGED_FLOAT
from ..errors import CallCancelled, InvalidParams, InvalidRequest, MethodNotFound, ParseError, RpcError, ServerBusy
from ..web.responses import png

#: The version in which every request is complete by itself; and those that begin with `initialize`, the newest first.
STATELESS = "2026-07-28"
WITH_HANDSHAKE = ("2025-11-25", "2025-06-18")
SUPPORTED = (STATELESS, *WITH_HANDSHAKE)

#: Keys of `_meta` (Overview, "_meta").
_PREFIX = "io.modelcontextprotocol/"
VERSION_KEY, CAPABILITIES_KEY = f"{_PREFIX}protocolVersion", f"{_PREFIX}clientCapabilities"
SERVER_KEY = f"{_PREFIX}serverInfo"

#: Headers, in lower case (Streamable HTTP, "Request Metadata"); the last is of the versions with a handshake.
VERSION_HEADER, METHOD_HEADER, NAME_HEADER = "mcp-protocol-version", "mcp-method", "mcp-name"
SESSION_HEADER = "mcp-session-id"

_ENCODED = re.compile(r"=\?base64\?([A-Za-z0-9+/]*={0,2})\?=")

#: Characters of a session id of the versions with a handshake.
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,128}")

#: HTTP statuses of errors of requests that are complete by themselves; 200 for others.
_STATUSES = {
    ParseError.CODE: 400,
    InvalidRequest.CODE: 400,
    InvalidParams.CODE: 400,
    MethodNotFound.CODE: 404,
    ServerBusy.CODE: 503,
}


class HeaderMismatch(RpcError):
    """A header that a request must have is missing, or says something else than the body."""

    CODE = -32020

    def __init__(self, reason: str) -> None:
        super().__init__(self.CODE, f"Header mismatch: {reason}")


class UnsupportedVersion(RpcError):
    """The request is of a version of the protocol that is not spoken here."""

    CODE = -32022

    def __init__(self, requested: str) -> None:
        data = {"supported": list(SUPPORTED), "requested": requested[:100]}
        super().__init__(self.CODE, "Unsupported protocol version", data)


def wire_code(code: int) -> int:
    """The code of an error as it is sent: those from -32000 to -32099 are MCP's own, and mean something else there.

    Ours of that range, such as -32002 for a server that is busy, are sent outside of all reserved ranges: -31002.
    """
    own = code in (HeaderMismatch.CODE, UnsupportedVersion.CODE)
    return code if own or not -32099 <= code <= -32000 else code + 1000


def status_of(error: RpcError, *, is_stateless: bool) -> int:
    """The HTTP status of the response with an error.

    Clients of the versions with a handshake take a status other than 200 for a failure of the connection; so it is for
    messages alone that are none.
    """
    if error.code in (HeaderMismatch.CODE, UnsupportedVersion.CODE):
        return 400
    status = _STATUSES.get(error.code, 200)
    return status if is_stateless or error.code not in (InvalidParams.CODE, MethodNotFound.CODE) else 200


def meta_of(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `_meta` of a request; empty where there is none."""
    params = message.get("params")
    meta = params.get("_meta") if type(params) is dict else None
    return meta if type(meta) is dict else {}


def is_stateless(message: Mapping[str, Any], headers: Mapping[str, str] | None) -> bool:
    """Whether a request is one of the version 2026-07-28, as far as it was made rightly; check it with `check_request`.

    Args:
        message: the request.
        headers: of HTTP; None on other transports.

    Raises:
        UnsupportedVersion: by its header it is of a version that is not spoken here.
    """
    if VERSION_KEY in meta_of(message):
        return True
    if headers is None or message.get("method") == "initialize":
        return False
    named = headers.get(VERSION_HEADER)
    if named is None or named in WITH_HANDSHAKE:
        # Without a header: a client from before there was one (Streamable HTTP, "Protocol Version Header"). A newer one
        # that forgot it is found by its other headers.
        return named is None and METHOD_HEADER in headers
    if named != STATELESS:
        raise UnsupportedVersion(named)
    return True


def check_request(message: Mapping[str, Any], headers: Mapping[str, str] | None) -> None:
    """Check the `_meta` and the headers of a request of the version 2026-07-28.

    Raises:
        HeaderMismatch: a header is missing, or not what the body says.
        InvalidParams: a key of `_meta` is missing or malformed.
        UnsupportedVersion: it is of another version.
    """
    meta = meta_of(message)
    version = meta.get(VERSION_KEY)
    if headers is not None:
        named = headers.get(VERSION_HEADER)
        if named is None:
            raise HeaderMismatch("the header MCP-Protocol-Version is missing")
        if version is not None and named != version:
            raise HeaderMismatch("the header MCP-Protocol-Version is not the version in _meta")
    if type(version) is not str:
        raise _missing(VERSION_KEY, "a string")
    if version != STATELESS:
        raise UnsupportedVersion(version)
    if headers is not None:
        _check_headers(message, headers)
    if type(meta.get(CAPABILITIES_KEY)) is not dict:
        raise _missing(CAPABILITIES_KEY, "an object")


def _missing(key: str, kind: str) -> InvalidParams:
    return InvalidParams(data={"path": f"$._meta['{key}']", "reason": f"_meta must have {key}, {kind}"})


def _check_headers(message: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    method = message["method"]
    if headers.get(METHOD_HEADER) != method:
        missing = METHOD_HEADER not in headers
        raise HeaderMismatch("the header Mcp-Method is " + ("missing" if missing else "not the method of the body"))
    params = message.get("params")
    wanted = params.get("name") if type(params) is dict else None
    if method != "tools/call" or type(wanted) is not str:
        return  # a call without a name is told as an error of the params
    named = headers.get(NAME_HEADER)
    if named is None:
        raise HeaderMismatch("the header Mcp-Name is missing")
    if decoded_header(named) != wanted:
        raise HeaderMismatch("the header Mcp-Name is not the name of the body")


def decoded_header(value: str) -> str | None:
    """The text of a header that may be encoded as `=?base64?...?=` ("Value Encoding"); None if that is malformed."""
    found = _ENCODED.fullmatch(value)
    if found is None:
        return value
    try:
        decoded = b64decode(found[1], validate=True)
        return decoded.decode() if b64encode(decoded).decode() == found[1] else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def session_id(headers: Mapping[str, str]) -> str | None:
    """The session id in the headers of a request of the versions with a handshake; None if there is none."""
    value = headers.get(SESSION_HEADER)
    return value if value is not None and _SESSION_ID.fullmatch(value) else None


def progress_token(meta: Mapping[str, Any]) -> str | int | None:
    """The token under which the caller wants to hear of the progress of a request; None if it does not."""
    token = meta.get("progressToken")
    return token if type(token) is str or type(token) is int else None


def is_cancelled(error: RpcError) -> bool:
    """Whether an error says that a call was cancelled, and not that the server stops."""
    return isinstance(error, CallCancelled) and type(error.data) is not dict


#: Image formats that agents read; others are sent as PNG.
_IMAGES = {"png": "image/png", "jpeg": "image/jpeg", "webp": "image/webp", "gif": "image/gif"}

#: Bytes of an array or of bytes that are attached as a resource; of larger ones there is the description alone, since
#: an agent's host may put all of it before the model.
MAX_RESOURCE = 4 * 1024 * 1024

#: Numbers of an array that are shown as text.
SHOWN_NUMBERS = 64

#: Characters of an error's data that are shown.
_MAX_DATA = 4000

_RESULT = b'"result":'
#: A NaN or an infinity on the wire. (In a string its quotes have backslashes.)
_TAGGED_FLOAT = re.compile(re.escape(TAGGED_FLOAT) + rb'"value":"(?:nan|inf|-inf)"\}')

Block = dict[str, Any]


def result_in(reply: bytes) -> bytes | None:
    """The bytes of the result in a reply that was written here; None if it is an error.

    They stand behind the member's name: inside of a string, such as the id, its quotes would have backslashes. NaN and
    the infinities are null, since an agent knows no tagged objects.
    """
    begin = reply.find(_RESULT)
    if begin < 0 or not reply.endswith(b"}"):
        return None
    raw = reply[begin + len(_RESULT) : -1]
    return _TAGGED_FLOAT.sub(b"null", raw) if TAGGED_FLOAT in raw else raw


def plain_content(raw: bytes) -> list[Block]:
    """The content for a result without rich values, as JSON: its text, of a string the string itself."""
    text = orjson.loads(raw) if raw[:1] == b'"' else raw.decode()
    return [{"type": "text", "text": text}]


def rich_content(raw: bytes, codec: Codec) -> list[Block]:
    """The content for a result, as JSON, that has rich values in it.

    An image becomes an image, an array its description and a `.npy` file, bytes a file. Where they are parts of
    something else, that comes first, as JSON in which a text such as "[image 1]" stands for each of them.
    """
    writer = _ContentWriter(codec)
    value = msgspec.json.decode(raw)
    shown = writer.shown(value)
    if type(value) is dict and type(shown) is str:  # it is a rich value itself
        return writer.blocks
    text = shown if type(shown) is str else json.dumps(shown, ensure_ascii=False)
    return [{"type": "text", "text": text}, *writer.blocks]


class _ContentWriter:
    """Takes the rich values out of one result.

    Attributes:
        blocks: the content for those that were found.
    """

    def __init__(self, codec: Codec) -> None:
        self.blocks: list[Block] = []
        self._codec = codec
        self._count = 0

    def shown(self, value: Any) -> Any:
        """A value with a text in the place of each rich value."""
        if type(value) is list:
            return [self.shown(item) for item in value]
        if type(value) is not dict:
            return value
        write = _WRITERS.get(value.get(TAG_KEY)) if type(value.get(TAG_KEY)) is str else None
        if write is None:
            return {name: self.shown(item) for name, item in value.items()}
        self._count += 1
        return write(self, value)

    def image(self, tagged: dict[str, Any]) -> str:
        kind, data = _IMAGES.get(tagged.get("format", "")), tagged["data"]
        if kind is None:
            response = png(self._codec.decode(tagged))
            kind, data = "image/png", pybase64.b64encode(bytes(response.body)).decode()
        self.blocks.append({"type": "image", "data": data, "mimeType": kind})
        return f"[image {self._count}]"

    def array(self, tagged: dict[str, Any]) -> str:
        array: Any = self._codec.decode(tagged)
        file = partial(npy_file, array)
        return self._attach("array", described_array(array), array.nbytes, file, "npy", "application/x-npy")

    def binary(self, tagged: dict[str, Any]) -> str:
        data: Any = self._codec.decode(tagged)
        file = partial(bytes, data)
        return self._attach("bytes", f"{len(data)} bytes", len(data), file, "bin", "application/octet-stream")

    def _attach(self, what: str, text: str, size: int, file: Callable[[], bytes], ending: str, kind: str) -> str:
        """Describe a value, and attach its file unless that is too large, or there is none; gives its name."""
        name = f"{what} {self._count}"
        is_large = size > MAX_RESOURCE
        if is_large:
            text += f" (not attached: it is larger than {MAX_RESOURCE} bytes)"
        self.blocks.append({"type": "text", "text": f"{name}: {text}"})
        if not is_large:
            with suppress(ValueError):  # such a file cannot contain it
                blob = pybase64.b64encode(file()).decode()
                resource = {"uri": f"rpcstream://result/{self._count}.{ending}", "mimeType": kind, "blob": blob}
                self.blocks.append({"type": "resource", "resource": resource})
        return f"[{name}]"


_WRITERS: dict[Any, Any] = {
    "image": _ContentWriter.image,
    "ndarray": _ContentWriter.array,
    "bytes": _ContentWriter.binary,
}


def described_array(array: np.ndarray[Any, Any]) -> str:
    """What an array is, in words: dtype, shape, range of values; and the values, if they are few."""
    text = f"{array.dtype.name}, shape {array.shape}"
    if array.dtype.kind in "biuf" and array.size:
        numbers = array[np.isfinite(array)] if array.dtype.kind == "f" else array
        if numbers.size:
            mean = float(numbers.mean(dtype=np.float64))
            text += f", least {numbers.min()}, greatest {numbers.max()}, mean {mean:.6g}"
        if numbers.size < array.size:
            text += f", {array.size - numbers.size} not finite"
    if 0 < array.size <= SHOWN_NUMBERS and array.dtype.kind in "biufU":
        text += f": {json.dumps(array.tolist())}"
    return text


def error_content(error: RpcError) -> list[Block]:
    """The content for a call that has failed: what the caller may read of the error, and mend."""
    data = error.data
    text = str(error.message)
    if type(data) is dict and type(reason := data.get("reason")) is str:
        text = text if reason in text else f"{text}: {reason}"
        data = {name: value for name, value in data.items() if name != "reason"}
    if data:
        try:
            text = f"{text}\n{json.dumps(data, ensure_ascii=False, default=repr)[:_MAX_DATA]}"
        except (TypeError, ValueError):
            pass
    return [{"type": "text", "text": text.encode(errors="replace").decode()}]
