"""The envelope of JSON-RPC 2.0: what a request, a reply, an error and a batch look like.

Owns the member names of messages and the slow, exact reading of whatever the fast reading could not take. Knows neither
methods nor rich values: `params` and `result` pass through as they are. Pure.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import orjson

from ..errors import InvalidRequest, MessageTooLarge, ParseError, RpcError

VERSION = "2.0"

#: A line longer than this is not searched for values that stand behind each other without a delimiter.
MAX_UNDELIMITED = 1024 * 1024

#: The id of our own requests stands before the params, so it can be read in the head of a message that is too long.
_HEAD_ID = re.compile(
    rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*,\s*)*"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,128}")\s*[,}]'
)
_REPLY_MEMBER = re.compile(rb'\s*,\s*"(?:result|error)"\s*:')
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_STEPS = bytes.maketrans(b"[]", b"\x01\xff")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b'"{}[]')
_DIGITS = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else ord(" ") for byte in range(256))
_BIG = b"0" * 19


def request(
    method: str,
    params: Any = None,
    *,
    call_id: Any = None,
    timeout: float | None = None,
    stream: int | None = None,
) -> dict[str, Any]:
    """A request object, or a notification when `call_id` is None (section 4). The id stands before the params.

    Args:
        timeout: seconds that the caller waits.
        stream: items that the caller permits at first; None where it wants no stream.
    """
    message: dict[str, Any] = {"jsonrpc": VERSION}
    if call_id is not None:
        message["id"] = call_id
    message["method"] = method
    if timeout is not None:
        message["timeout"] = timeout
    if stream is not None:
        message["stream"] = stream
    if params is not None:
        message["params"] = params
    return message


# -- the conversation besides calls (wire page, "Members and methods of our own"): notifications in both directions

#: What their names begin with.
CONTROL = "$/"
CANCEL, PROGRESS = "$/cancelRequest", "$/progress"
ITEM, END, CREDIT = "$/item", "$/end", "$/credit"
EVENT = "$/event"


def cancel(call_id: int | str) -> bytes:
    """Nobody waits for the answer to this call any more."""
    return orjson.dumps(request(CANCEL, {"id": call_id}))


def credit(stream: dict[str, Any], n: int) -> bytes:
    """The producer of a stream may send `n` more items; `stream` is the member that names it, `id` or `stream`."""
    return orjson.dumps(request(CREDIT, {**stream, "n": n}))


def end(token: str, error: RpcError | None = None) -> dict[str, Any]:
    """A stream that was sent as an argument is over, with the error that it broke off with."""
    params: dict[str, Any] = {"stream": token}
    if error is not None:
        params["error"] = error.to_wire()
    return request(END, params)


def error_reply(call_id: Any, error: RpcError) -> dict[str, Any]:
    """A response object with an error (section 5); the id is None where it could not be read."""
    return {"jsonrpc": VERSION, "id": call_id, "error": error.to_wire()}


def oversize(size: int, limit: int, *, side: str) -> MessageTooLarge:
    """The error for a message over `max_message_size`; `side` says whose limit it is."""
    return MessageTooLarge(
        f"Message too large: {size} bytes or more, the {side}'s limit is {limit} bytes",
        {"size": size, "limit": limit, "side": side},
    )


def is_reply_head(head: bytes) -> bool:
    """Does the beginning of a message show that it is a reply? (Replies with their id before the result, as ours.)"""
    found = _HEAD_ID.match(head)
    return found is not None and _REPLY_MEMBER.match(head, found.end() - 1) is not None


def id_in_head(head: bytes) -> Any:
    """The id of a request of which only the beginning is there; None when it does not show."""
    found = _HEAD_ID.match(head)
    if found is None:
        return None
    try:
        return orjson.loads(found[1])
    except orjson.JSONDecodeError:
        return None


def unreadable(line: bytes | bytearray) -> ParseError | list[bytes]:
    """Why a line is not JSON; or, if values stand in it one behind the other, those values."""
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError as error:
        values = _values_in(line) if len(line) <= MAX_UNDELIMITED else []
        return values if len(values) > 1 else ParseError(data={"reason": str(error)})
    raise AssertionError("called with a line that is JSON")


def _values_in(line: bytes | bytearray) -> list[bytes]:
    """Arrays and objects that follow each other without a delimiter; what is behind them comes last, as it is."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return []
    decoder, values, at = json.JSONDecoder(), [], 0
    while (start := _after_blanks(text, at)) < len(text):
        try:
            if text[start] not in "{[":
                raise ValueError
            _, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            values.append(text[start:].encode())
            break
        values.append(text[start:at].encode())
    return values


def _after_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def check_request(message: dict[str, Any]) -> None:
    """Raises InvalidRequest, saying which member is wrong, unless the object is a request (section 4)."""
    if message.get("jsonrpc") != VERSION:
        reason = "the member 'jsonrpc' must be the string \"2.0\""
    elif type(message.get("method")) is not str:
        reason = "the member 'method' must be a string"
    elif not has_valid_id(message):
        reason = "the member 'id' must be a string, a number or null"
    elif not isinstance(message.get("params"), list | dict | None):
        reason = "the member 'params' must be an array or an object"
    else:
        return
    raise InvalidRequest(data={"reason": reason})


def is_reply(message: Any) -> bool:
    """Does the message say that it answers something? (Response object, section 5.)"""
    return type(message) is dict and "method" not in message and ("result" in message or "error" in message)


def has_valid_id(message: dict[str, Any]) -> bool:
    """Is the id, if there is one, of a kind that may be echoed? (Section 4; `true` is no number.)"""
    call_id = message.get("id")
    return call_id is None or type(call_id) in (int, str, float, orjson.Fragment)


def with_exact_ids(message: Any, line: bytes | bytearray) -> None:
    """Put the very text of every id that was read as a float back in its place.

    Only a float can differ from what was sent: integers over 64 bits are read as floats, and digits may be lost.
    """
    import msgspec

    if isinstance(message, dict):
        if type(message.get("id")) is float:
            members = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            message["id"] = orjson.Fragment(bytes(members["id"]))
    elif isinstance(message, list):
        for member, raw in zip(message, msgspec.json.decode(line, type=list[msgspec.Raw]), strict=True):
            with_exact_ids(member, bytes(raw))


def may_hold_big_integers(line: bytes | bytearray) -> bool:
    """Could a number in the line be an integer that the fast parser rounds to a float (over 64 bits)?"""
    return _BIG in line.translate(_DIGITS)


def is_deeper(line: bytes | bytearray, limit: int) -> bool:
    """Are more than `limit` arrays and objects inside each other? The line is known to be JSON.

    Costs a glance at a short line, and a few passes over the brackets alone of a long one.
    """
    if line.count(b"[") + line.count(b"{") <= limit:
        return False
    unescaped = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    quoted = unescaped.translate(None, _NOT_BRACKETS).split(b'"')
    brackets = b"".join(quoted[::2]).translate(_BRACKETS)
    # Most values are wide, not deep: a few rounds that take away the innermost level leave little to count.
    for _ in range(min(4, limit)):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
        limit -= 1
    steps = memoryview(brackets.translate(_STEPS)).cast("b")
    return max(itertools.accumulate(steps)) > limit
