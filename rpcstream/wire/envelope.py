"""The message format of JSON-RPC 2.0: requests, replies, errors, batches, and the `$/...` notifications.

Owns the member names of messages, and the slow but exact reading of messages that the fast parser refuses or rounds.
Knows neither methods nor rich values: `params` and `result` pass through unchanged. Pure.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

import orjson

from ..errors import InvalidRequest, MessageTooLarge, ParseError, RpcError, ServerBusy
from ..text import visible
from . import json_scan
from .json_scan import deepest
from .messages import LONG, Oversize

VERSION = "2.0"

#: Bytes of a line that is not JSON up to which it is searched, for values without a delimiter between them, and for an
#: id behind the params. A search takes up to 15 ms for so many.
MAX_LOOKED_THROUGH = 1024 * 1024

#: Bytes at each end of a request that is not JSON in which its id is searched.
_END = 512

#: The id at the beginning of a message. Our requests have it before the params, which may be cut off.
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
        method: its name.
        params: an array or an object; None for a request without params.
        call_id: the id.
        timeout: seconds that the caller waits.
        stream: the initial credit of a streaming call; None for a plain call.
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


def completed(message: dict[str, Any], more: Mapping[str, Any], params: Any) -> dict[str, Any]:
    """A request object with further members, and its params behind them; changes the one without params."""
    message.update(more)
    if params is not None:
        message["params"] = params
    return message


# -- notifications about calls, streams and events, in both directions (wire page, "Members and methods of our own")

#: The prefix of their methods.
CONTROL = "$/"
CANCEL, PROGRESS = "$/cancelRequest", "$/progress"
ITEM, END, CREDIT = "$/item", "$/end", "$/credit"
EVENT = "$/event"
GO_AWAY = "$/goAway"
#: The request that tells the peer what this end reads besides text, and asks what it reads.
HELLO = "rpc.hello"

#: Characters of an id up to which it is repeated in `GO_AWAY`; and what stands for other ids there.
ID_MAX = 256
UNSAYABLE: Any = object()


def cancel(call_id: int | str) -> bytes:
    """The notification that cancels a call."""
    return orjson.dumps(request(CANCEL, {"id": call_id}))


def credit(stream: dict[str, Any], n: int) -> bytes:
    """The notification that permits `n` more items; `stream` is the member that names the stream, `id` or `stream`."""
    return orjson.dumps(request(CREDIT, {**stream, "n": n}))


def end(token: str, error: RpcError | None = None) -> dict[str, Any]:
    """The notification that a stream sent as an argument has ended, or failed with an error."""
    params: dict[str, Any] = {"stream": token}
    if error is not None:
        params["error"] = error.to_wire()
    return request(END, params)


def go_away(last: Any, reason: str) -> bytes:
    """The notification that requests behind the one with the id `last` were not read.

    Args:
        last: as `sayable_id` gives it; None: no request was read at all.
        reason: one sentence.
    """
    return orjson.dumps(request(GO_AWAY, {"reason": reason} if last is UNSAYABLE else {"last": last, "reason": reason}))


def reason_of_leave(params: dict[str, Any]) -> str:
    """The reason in the params of `GO_AWAY`, for people."""
    reason = params.get("reason")
    return visible(reason[:ID_MAX]) if type(reason) is str else "the other end reads no more requests"


def sayable_id(message: Any) -> Any:
    """The id of a request, or of the last request of a batch, as `go_away` takes it.

    `UNSAYABLE` for an id that cannot be repeated exactly, or not in few bytes: null, a fraction, a long text.
    """
    if type(message) is list:
        members = (each for each in reversed(message) if type(each) is dict and "method" in each and "id" in each)
        message = next(members, {})
    call_id = message.get("id")
    return call_id if type(call_id) is int or (type(call_id) is str and len(call_id) <= ID_MAX) else UNSAYABLE


def error_reply(call_id: Any, error: RpcError) -> dict[str, Any]:
    """A response object with an error (section 5); the id is None where it could not be read."""
    return {"jsonrpc": VERSION, "id": call_id, "error": error.to_wire()}


def oversize(size: int, limit: int, *, side: str) -> MessageTooLarge:
    """The error for a message over `max_message_size`; `side` is the end whose limit it is."""
    return MessageTooLarge(
        f"Message too large: {size} bytes or more, the {side}'s limit is {limit} bytes",
        {"size": size, "limit": limit, "side": side},
    )


def refusal_of(message: Oversize, limit: int, *, side: str) -> RpcError:
    """The error for a refused message; `limit` is the `max_message_size`, for a message without a limit of its own."""
    limit = message.limit or limit
    if message.is_refused:
        return ServerBusy(data={"limit": limit, "reason": "too many bytes of messages are held (max_held_total)"})
    if message.values:
        return MessageTooLarge(
            f"Message too large: it has {message.values} values, the {side}'s limit is {limit} (max_values): "
            "long rows of numbers are better sent as arrays (ndarray)",
            {"size": message.size, "values": message.values, "limit": limit, "side": side},
        )
    if message.json_size:
        return MessageTooLarge(
            f"Message too large: its JSON has {message.json_size} bytes besides payloads, the {side}'s limit is "
            f"{limit} (max_json_size): send long arrays, texts and data as payloads (ndarray, bytes)",
            {"size": message.size, "json_size": message.json_size, "limit": limit, "side": side},
        )
    return oversize(message.size, limit, side=side)


def is_reply_head(head: bytes) -> bool:
    """Tell whether the beginning of a message is that of a reply with its id before the result, as ours have it."""
    found = _HEAD_ID.match(head)
    return found is not None and _REPLY_MEMBER.match(head, found.end() - 1) is not None


def is_batch_head(head: bytes) -> bool:
    """Tell whether the beginning of a message is that of a batch."""
    return head.lstrip().startswith(b"[")


def id_in_head(head: bytes) -> Any:
    """The id in the beginning of a request, or of the first request of a batch; None where it is not found."""
    found = _HEAD_ID.match(head.lstrip()[1:] if is_batch_head(head) else head)
    if found is None:
        return None
    try:
        return orjson.loads(found[1])
    except orjson.JSONDecodeError:
        return None


def unreadable(line: bytes | bytearray, error: orjson.JSONDecodeError) -> ParseError:
    """The error for a message that the JSON parser refused, with the parser's reason."""
    # Long messages are parsed without their long strings, so the position would be wrong.
    is_place_known = len(line) < LONG or len(error.doc) == len(line)
    reason = str(error) if is_place_known else error.msg
    advice = _advice(line, error)
    return ParseError(data={"reason": f"{reason}; {advice}" if advice else reason})


def _advice(line: bytes | bytearray, error: orjson.JSONDecodeError) -> str:
    """What to do about text that is not JSON, by how it begins and by what stands at the place of the error."""
    head = bytes(line[:16]).lstrip(b" \t\r\n")
    if head.startswith(b"\xef\xbb\xbf"):
        return "send UTF-8 without a byte order mark"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in head[:4]:
        return "the text looks like UTF-16 or UTF-32: send UTF-8"
    if "UTF-8" in error.msg or "surrogates" in error.msg:
        return "send UTF-8"
    if not head.startswith((b"{", b"[")):
        return EXAMPLE
    place = error.doc[error.pos : error.pos + 12]
    for begin, advice in _SLIPS:
        if place.startswith(begin):
            return advice
    if "trailing comma" in error.msg:
        return "no comma stands behind the last member"
    if "unexpected end of data" in error.msg:
        return "the message ends before its value does"
    if "unexpected content after document" in error.msg:
        return "send one value in a message: several requests as a batch, or in messages of their own"
    return "names stand in double quotes" if "key" in error.msg or place[:1].isalpha() else ""


#: How a request looks, for those who send something else.
EXAMPLE = 'a request is an object such as {"jsonrpc": "2.0", "id": 1, "method": "rpc.ping"}'

#: What stands at the place of an error, and what to do about it.
_SLIPS = (
    ("'", "strings and names stand in double quotes"),
    (
        ("NaN", "Infinity", "-Infinity", "nan", "inf", "-inf"),
        'JSON has no NaN and no infinity: send {"$type": "float", "value": "nan"} ("inf", "-inf")',
    ),
    (("True", "False", "None"), "these words are true, false and null in JSON"),
    (("}", "]"), "there is no comma behind the last member"),
    ("//", "there are no comments in JSON"),
    ("/*", "there are no comments in JSON"),
)


def split_values(line: bytes | bytearray) -> list[bytes]:
    """Split a line that is not JSON because it holds several values; an empty list where it does not.

    Returns:
        At most `json_scan.VALUES_MAX` values, and behind them the rest of the line, to be split later.
    """
    if len(line) > MAX_LOOKED_THROUGH:
        return []
    values, rest = json_scan.split_values(bytes(line))
    return [*values, rest] if values else values


def id_of_request(line: bytes | bytearray) -> Any:
    """Find the id of a request that is not JSON, such as one with a malformed number or string in its params.

    The id is found before the first array or object of a line of any length; or behind the last, in a line of at most
    `MAX_LOOKED_THROUGH` bytes whose brackets match. None for an id at another place, for a batch, and for a message
    that is not certainly a request.
    """
    before = _members(_before_values(line))
    behind = _members(_behind_values(line)) if {"id", "method"} - before.keys() else {}
    members = before | behind
    if type(members.get("method")) is not str or ("id" in before and "id" in behind) or not has_valid_id(members):
        return None
    return members.get("id")


def _before_values(line: bytes | bytearray) -> bytes:
    """JSON of the members before the first array or object; empty if that does not begin within `_END` bytes."""
    head = bytes(line[:_END])
    found = _PLAIN_MEMBERS.match(head)
    return head[: found.end()] + b"0}" if found and head[found.end() : found.end() + 1] in (b"[", b"{") else b""


def _behind_values(line: bytes | bytearray) -> bytes:
    """JSON of the members behind the last array or object; empty if that is not found."""
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
    """Raise InvalidRequest, with the wrong member, unless the object is a request (section 4)."""
    if "method" not in message:
        reason = f"missing 'method': {EXAMPLE}"
    elif "jsonrpc" not in message:
        reason = 'missing \'jsonrpc\': every message has "jsonrpc": "2.0"'
    elif message["jsonrpc"] != VERSION:
        reason = "the member 'jsonrpc' must be the string \"2.0\""
    elif type(message["method"]) is not str:
        reason = "the member 'method' must be a string"
    elif not has_valid_id(message):
        reason = "the member 'id' must be a string, a number or null"
    elif not isinstance(message.get("params"), list | dict | None):
        reason = "the member 'params' must be an array or an object"
    else:
        return
    raise InvalidRequest(data={"reason": reason})


def is_reply(message: Any) -> bool:
    """Tell whether a message is a reply (response object, section 5)."""
    return type(message) is dict and "method" not in message and ("result" in message or "error" in message)


def asks_for_reply(message: Any) -> bool:
    """Tell whether a message is a request with an id, valid or not, or a batch that has such a request in it."""
    members = message if type(message) is list else [message]
    return any(type(each) is dict and "id" in each and not is_reply(each) for each in members)


def has_valid_id(message: dict[str, Any]) -> bool:
    """Tell whether the id, if there is one, is of a permitted type (section 4; `true` is no number)."""
    call_id = message.get("id")
    return call_id is None or type(call_id) in (int, str, float, orjson.Fragment)


def id_of_batch(members: list[Any], line: bytes | bytearray) -> Any:
    """The id of the first call in a batch, for an error about the whole batch; None where there is none.

    Args:
        members: the parsed batch.
        line: the batch as received, from which an id that was rounded is read; empty to skip such an id.
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
    """Replace ids that were parsed as floats by their exact text, in a message or in the members of a batch.

    Only a float can differ from the id that was sent: integers over 64 bits are parsed as floats and may lose digits.
    In a message that is nested too deep to be parsed again (over `max_depth` in any case) such an id becomes None.

    Args:
        message: the parsed message, which is changed.
        line: the message as received.
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
    """Tell whether a line may have integers over 64 bits, which the fast parser rounds to floats."""
    return _BIG in line.translate(_DIGITS)


def is_deeper(line: bytes | bytearray, limit: int) -> bool:
    """Tell whether arrays and objects are nested deeper than `limit`. The line is known to be JSON.

    Counts the brackets of a line; only if these are many, passes over them a few times.
    """
    if line.count(b"[") + line.count(b"{") <= limit:
        return False
    if len(line) >= LONG:
        return deepest(line) > limit
    unescaped = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    quoted = unescaped.translate(None, _NOT_BRACKETS).split(b'"')
    brackets = b"".join(quoted[::2]).translate(_BRACKETS)
    # Most values are wide, not deep: a few rounds that remove the innermost level leave few brackets to count.
    for _ in range(min(4, limit)):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
        limit -= 1
    steps = memoryview(brackets.translate(_STEPS)).cast("b")
    return max(itertools.accumulate(steps)) > limit
