"""What the Model Context Protocol says of versions, `_meta`, headers and error codes.

Sections that are named here are sections of the specification 2026-07-28
(https://modelcontextprotocol.io/specification).
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from ..errors import CallCancelled, InvalidParams, InvalidRequest, MethodNotFound, ParseError, RpcError, ServerBusy

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
