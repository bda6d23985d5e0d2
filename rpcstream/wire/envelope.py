"""The envelope of JSON-RPC 2.0: what a request, a reply, an error and a batch look like.

Owns the member names of messages and the slow, exact reading of whatever the fast reading could not take. Knows neither
methods nor rich values: `params` and `result` pass through as they are. Pure.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import orjson

from ..errors import InvalidRequest, MessageTooLarge, ParseError, RpcError, ServerBusy
from . import json_scan
from .framing import LONG, Oversize
from .json_scan import deepest

VERSION = "2.0"

#: A line that is not JSON is not looked through further if it is longer (bytes): neither for values that stand behind
#: each other without a delimiter, nor for an id behind the params. Looking takes up to 15 ms for so many.
MAX_LOOKED_THROUGH = 1024 * 1024

#: Bytes at either end of a request that is not JSON, in which its id is looked for.
_END = 512

#: The id of our own requests stands before the params, so it can be read in the head of a message that is too long.
_HEAD_ID = re.compile(
    rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*,\s*)*"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,128}")\s*[,}]'
)
#: The members of an object up to its first array or object.
_PLAIN_MEMBERS = re.compile(rb'\s*\{(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
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


def refusal_of(message: Oversize, limit: int, *, side: str) -> RpcError:
    """The error for a message that is not taken; `limit` is the `max_message_size` where it does not say its own."""
    limit = message.limit or limit
    if message.is_refused:
        return ServerBusy(data={"limit": limit, "reason": "too many bytes of messages are held (max_held_total)"})
    if message.values:
        return MessageTooLarge(
            f"Message too large: it has {message.values} values, the {side}'s limit is {limit} (max_values): "
            "long rows of numbers are better sent as arrays (ndarray)",
            {"size": message.size, "values": message.values, "limit": limit, "side": side},
        )
    return oversize(message.size, limit, side=side)


def is_reply_head(head: bytes) -> bool:
    """Does the beginning of a message show that it is a reply? (Replies with their id before the result, as ours.)"""
    found = _HEAD_ID.match(head)
    return found is not None and _REPLY_MEMBER.match(head, found.end() - 1) is not None


def is_batch_head(head: bytes) -> bool:
    """Does a message begin like a batch?"""
    return head.lstrip().startswith(b"[")


def id_in_head(head: bytes) -> Any:
    """The id of a request, or of the first one of a batch, of which only the beginning is there; None if it is not."""
    found = _HEAD_ID.match(head.lstrip()[1:] if is_batch_head(head) else head)
    if found is None:
        return None
    try:
        return orjson.loads(found[1])
    except orjson.JSONDecodeError:
        return None


def unreadable(line: bytes | bytearray, error: orjson.JSONDecodeError) -> ParseError:
    """The error for a message that the parser refused with this one."""
    # Long ones are parsed without their long strings: the place would be one in what is left.
    is_place_known = len(line) < LONG or len(error.doc) == len(line)
    return ParseError(data={"reason": str(error) if is_place_known else error.msg})


def split_values(line: bytes | bytearray) -> list[bytes]:
    """The values of a line that is not JSON because several stand in it, one behind the other; else none.

    At most `json_scan.VALUES_MAX`, and one more: the rest of the line, to be read when those have been.
    """
    if len(line) > MAX_LOOKED_THROUGH:
        return []
    values, rest = json_scan.split_values(bytes(line))
    return [*values, rest] if values else values


def id_of_request(line: bytes | bytearray) -> Any:
    """The id of a request that is not JSON: it has a number or a string in its params that none can be read from.

    Found in front of the first array or object in it, however long the line; or behind the last, in one of at most
    `MAX_LOOKED_THROUGH` bytes whose brackets match. None where it does not stand there, for a batch, and for what is
    perhaps no request.
    """
    before = _members(_before_values(line))
    behind = _members(_behind_values(line)) if {"id", "method"} - before.keys() else {}
    members = before | behind
    if type(members.get("method")) is not str or ("id" in before and "id" in behind) or not has_valid_id(members):
        return None
    return members.get("id")


def _before_values(line: bytes | bytearray) -> bytes:
    """An object of the members before the first that is an array or object; nothing if that does not come soon."""
    head = bytes(line[:_END])
    found = _PLAIN_MEMBERS.match(head)
    return head[: found.end()] + b"0}" if found and head[found.end() : found.end() + 1] in (b"[", b"{") else b""


def _behind_values(line: bytes | bytearray) -> bytes:
    """An object of the members behind the last that is an array or object; nothing if that cannot be told."""
    tail = bytes(line[-_END:]).rstrip()
    last = max(tail.rfind(b"]", 0, -1), tail.rfind(b"}", 0, -1))
    if last < 0 or tail[-1:] != b"}" or tail[last + 1 : last + 2] == b"}" or len(line) > MAX_LOOKED_THROUGH:
        return b""
    balance = json_scan.Balance()
    balance.add(bytes(line))
    return b'{"":0' + tail[last + 1 :] if not balance.depth and not balance.in_string else b""


def _members(text: bytes) -> dict[str, Any]:
    try:
        members = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError:
        return {}
    with_exact_ids(members, text)
    return members if type(members) is dict else {}


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


def id_of_batch(members: list[Any], line: bytes | bytearray) -> Any:
    """The id of the first call in a batch, for an error about all of it; None where there is none.

    Args:
        line: the batch as it came, for an id that is exact only there; empty: such an id is not given.
    """
    for place, member in enumerate(members):
        if type(member) is dict and "method" in member and member.get("id") is not None and has_valid_id(member):
            if type(member["id"]) is not float:
                return member["id"]
            if line:
                import msgspec

                with_exact_ids(member, bytes(msgspec.json.decode(line, type=list[msgspec.Raw])[place]))
                return member["id"]
    return None


def with_exact_ids(message: Any, line: bytes | bytearray) -> None:
    """Put the very text of every id that was read as a float back in its place: of a message, or of a batch's members.

    Only a float can differ from what was sent: integers over 64 bits are read as floats, and digits may be lost. In a
    message that is nested too deep to be read once more (over `max_depth` in any case) such an id becomes None.
    """
    import msgspec

    if type(message) is dict:
        if type(message.get("id")) is float:
            try:
                members = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            except RecursionError:
                message["id"] = None
            else:
                message["id"] = orjson.Fragment(bytes(members["id"]))
    elif type(message) is list:
        inexact = [each for each in message if type(each) is dict and type(each.get("id")) is float]
        if not inexact:
            return
        try:
            parts = msgspec.json.decode(line, type=list[msgspec.Raw])
        except RecursionError:
            for member in inexact:
                member["id"] = None
            return
        for member, raw in zip(message, parts, strict=True):
            if type(member) is dict:
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
    if len(line) >= LONG:
        return deepest(line) > limit
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
