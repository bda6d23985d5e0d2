"""Messages as transports hand them on, and what is in them: JSON-RPC 2.0 and the `$/...` notifications.

Reading is slow but exact here, for messages that the fast parser refuses or rounds.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from ..errors import InvalidRequest, MessageTooLarge, ParseError, RpcError, ServerBusy
from ..text import visible
from . import json_scan
from .buffers import ReceiveBuffer, shown

#: Bytes from which on a message is long: it may have large payloads, which are cut out before it is parsed.
LONG = 16 * 1024

#: Bytes at the beginning of a message in which its id is looked for where the rest cannot be read; they are kept of a
#: message over the limit.
HEAD_SIZE = 512


@dataclass(frozen=True, slots=True)
class Oversize:
    """Stands in the list of messages for one that was refused, so that its error reply keeps its place.

    Attributes:
        size: bytes; of a message whose end has not been received, the bytes so far.
        head: the beginning of the message.
        limit: the limit that it was over.
        values: the number of its values, where these were over the limit; else 0.
        json_size: bytes of its JSON without payloads, where these were over the limit; else 0.
        is_refused: the message was over no limit of its own, but the server had no memory for it.
    """

    size: int
    head: bytes
    limit: int = field(default=0, compare=False)
    values: int = field(default=0, compare=False)
    json_size: int = field(default=0, compare=False)
    is_refused: bool = field(default=False, compare=False)

    def __len__(self) -> int:
        return min(self.size, sys.maxsize)  # a peer may announce any size


@dataclass(slots=True, eq=False, repr=False)
class BinaryFrame:
    """A message that is parsed before the session gets it, which does not parse it again.

    It was received as a binary frame, whole; or was refused when its JSON was there; or it is text, without payloads.

    Attributes:
        json: the JSON of it.
        sizes: bytes of each payload.
        content: what `FrameIntake.admit` has read: the parsed message and its line; None for a refused one.
        refusal: why it is not carried out; None for a message to be handled.
    """

    json: bytes
    sizes: tuple[int, ...]
    content: Any = None
    refusal: RpcError | None = None

    def __len__(self) -> int:
        # Never a short message: those are parsed without a look at what they are.
        return max(LONG, len(self.json) + sum(self.sizes))

    def __bytes__(self) -> bytes:
        """The message as a trace shows it."""
        return shown(self.json, self.sizes) if self.sizes else self.json


#: A result of a framer.
Message = bytes | BinaryFrame | Oversize


class Reception(Protocol):
    """Counts the received bytes of a message, together with those of all messages that are being received."""

    @property
    def limit(self) -> int:
        """Bytes that all messages may hold together."""

    def grow(self, size: int) -> bool:
        """Set the bytes received so far; False if the message must be dropped."""

    def over(self) -> None:
        """End the count: the message is complete, or was dropped."""


@dataclass(slots=True, eq=False, repr=False)
class PartialMessage(ReceiveBuffer):
    """A message of which it is known how much is still to come: kept until it is whole, unless it is refused.

    Args:
        reception: counts what has come; a message that it has no room for is refused.

    Attributes:
        is_dropped: the message was refused; nothing is kept of it.
    """

    reception: Reception | None = field(default=None, kw_only=True)
    is_dropped: bool = field(default=False, init=False)

    def keep(self, piece: bytes, left: int, max_size: int) -> Oversize | None:
        """Keep what came next; gives what stands for the message if it is refused now, with its beginning.

        Args:
            piece: the next bytes.
            left: bytes that are still to come, as far as this is known.
            max_size: bytes that the message may have.
        """
        if self.is_dropped:
            return None
        self.append(piece)
        size, limit, is_refused = self.size + left, max_size, False
        if size > max_size:
            if left and self.size < HEAD_SIZE:
                return None
        elif self.reception is None or self.reception.grow(self.size):
            return None
        else:
            size, limit, is_refused = self.size, self.reception.limit, True
        self.is_dropped = True
        return Oversize(size, self.end()[:HEAD_SIZE], limit, is_refused=is_refused)

    def end(self) -> bytes:
        """The message is over: gives its bytes."""
        if self.reception is not None:
            self.reception.over()
        return self.take()


VERSION = "2.0"

#: The id at the beginning of a message, which our requests have before the params; and at the end, as others have it.
_ID = rb'"id"\s*:\s*(-?\d{1,18}|"(?:[^"\\]|\\.){0,128}")\s*'
_HEAD_ID = re.compile(rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*,\s*)*' + _ID + rb"[,}]")
#: The beginning of an item of a stream, as ours have it: its id is that of the call.
_ITEM_ID = re.compile(rb'\{"jsonrpc":"2\.0","method":"\$/item","params":\{' + _ID + rb"[,}]")
_TAIL_ID = re.compile(rb",\s*" + _ID + rb"\}\s*\Z")
_REPLY_MEMBER = re.compile(rb'\s*,\s*"(?:result|error)"\s*:')
#: Floats below this are the number that was written; above, an integer over 64 bits may have lost digits.
_EXACT = 2.0**53
_DIGITS = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else ord(" ") for byte in range(256))
_BIG = b"0" * 19


def read_progress(value: Any) -> tuple[float | None, float | None, str | None]:
    """What a handler has reported of its progress: how much is done, of how much, and a message.

    A number is how much is done; `[done, total]` says of how much. An object has `done` (or `progress`), `total` and
    `message`. Any other value is a message, as JSON if it is no text.
    """
    if _is_number(value):
        return value, None, None
    if type(value) is list and len(value) == 2 and all(map(_is_number, value)):
        return value[0], value[1], None
    if type(value) is dict:
        done, total, text = value.get("done", value.get("progress")), value.get("total"), value.get("message")
        if _is_number(done) or type(text) is str:
            numbers = [number if _is_number(number) else None for number in (done, total)]
            return numbers[0], numbers[1], text if type(text) is str else None
    return None, None, value if type(value) is str else json.dumps(value, ensure_ascii=False)


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


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


# -- notifications about calls, streams and events, in both directions (wire page, "Members and methods of our own")

#: The prefix of their methods.
CONTROL = "$/"
CANCEL, PROGRESS = "$/cancelRequest", "$/progress"
ITEM, END, CREDIT = "$/item", "$/end", "$/credit"
EVENT = "$/event"
GO_AWAY = "$/goAway"
#: About a session over NATS (docs/reference/nats.md).
SESSION = "$/session"
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
    members = message if type(message) is list else [message]
    ids = [each["id"] for each in members if type(each) is dict and "method" in each and "id" in each]
    is_sayable = ids and (type(ids[-1]) is int or (type(ids[-1]) is str and len(ids[-1]) <= ID_MAX))
    return ids[-1] if is_sayable else UNSAYABLE


def error_reply(call_id: Any, error: RpcError) -> dict[str, Any]:
    """A response object with an error (section 5); the id is None where it could not be read."""
    return {"jsonrpc": VERSION, "id": call_id, "error": error.to_wire()}


def oversize(size: int, limit: int, *, side: str, name: str = "max_message_size") -> MessageTooLarge:
    """The error for a message over a limit: `side` is the end that has it, `name` the option, or what is limited."""
    return MessageTooLarge(
        f"Message too large: {size} bytes or more, the {side}'s limit is {limit} bytes ({name})",
        {"size": size, "limit": limit, "side": side},
    )


def refusal_of(message: Oversize, limit: int, *, side: str) -> RpcError:
    """The error for a refused message; `limit` is the `max_message_size`, for a message without a limit of its own."""
    name = "before authentication" if message.limit and message.limit < limit else "max_message_size"
    limit = message.limit or limit
    if message.is_refused:
        return ServerBusy(data={"limit": limit, "reason": "too many bytes of messages are held (max_held_total)"})
    if not (message.values or message.json_size):
        return oversize(message.size, limit, side=side, name=name)
    name, count = ("values", message.values) if message.values else ("json_size", message.json_size)
    what = "values, one for 8 bytes of max_json_size" if message.values else "bytes of JSON, max_json_size"
    text = f"Message too large: {count}, the {side}'s limit is {limit} ({what})"
    text += ": send rows of numbers and long data as payloads (ndarray, bytes)"
    return MessageTooLarge(text, {"size": message.size, name: count, "limit": limit, "side": side})


def is_reply_head(head: bytes) -> bool:
    """Tell whether a message begins as a reply with its id before the result, or as an item of a stream, as ours do."""
    found = _HEAD_ID.match(head)
    return bool(_ITEM_ID.match(head) or (found and _REPLY_MEMBER.match(head, found.end() - 1)))


def is_batch_head(head: bytes) -> bool:
    """Tell whether the beginning of a message is that of a batch."""
    return head.lstrip().startswith(b"[")


def id_in_head(head: bytes) -> Any:
    """The id in the beginning of a request or item, or of a batch's first request; None where it is not found."""
    return _parsed_id(_ITEM_ID.match(head) or _HEAD_ID.match(head.lstrip()[1:] if is_batch_head(head) else head))


def _parsed_id(found: re.Match[bytes] | None) -> Any:
    try:
        return orjson.loads(found[1]) if found is not None else None
    except orjson.JSONDecodeError:
        return None


def unreadable(line: bytes | bytearray, error: orjson.JSONDecodeError) -> ParseError:
    """The error for a message that the JSON parser refused, with the parser's reason."""
    # Long messages are parsed without their long strings, so the position would be wrong.
    is_place_known = len(line) < LONG or len(error.doc) == len(line)
    return ParseError(data={"reason": f"{error if is_place_known else error.msg}; {EXAMPLE}"})


#: How a request looks, for those who send something else.
EXAMPLE = 'send one JSON object in UTF-8 (on a socket: on one line): {"jsonrpc": "2.0", "id": 1, "method": "rpc.ping"}'


def id_of_request(line: bytes | bytearray) -> Any:
    """Find the id of a request that is not JSON, such as one with a malformed number or string in its params.

    The id is found at the beginning of the request, or at its end where brackets match; None for an id elsewhere,
    for a batch, and for a message that is not certainly a request.
    """
    head = bytes(line[:HEAD_SIZE])
    if b'"method"' not in line or is_batch_head(head):
        return None
    if _HEAD_ID.match(head) is not None or len(line) > json_scan.SEARCHED_MAX:
        return id_in_head(head)
    balance = json_scan.Balance()
    balance.add(line)
    found = _TAIL_ID.search(line, max(len(line) - HEAD_SIZE, 0)) if not (balance.depth or balance.in_string) else None
    return _parsed_id(found)


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
        reason = "the member 'id' must be a string, a number or null, and no integer over 64 bits"
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
    """Tell whether the id, if there is one, is of a permitted type (section 4; `true` is no number).

    Integers over 64 bits are parsed as floats, which would change them, so they are no ids.
    """
    call_id = message.get("id")
    return call_id is None or type(call_id) in (int, str) or (type(call_id) is float and abs(call_id) < _EXACT)


def id_of_batch(members: list[Any]) -> Any:
    """The id of the first call in a batch, for an error about the whole batch; None where there is none."""
    calls = [member for member in members if type(member) is dict and "method" in member and has_valid_id(member)]
    return next((call["id"] for call in calls if call.get("id") is not None), None)


def may_hold_big_integers(line: bytes | bytearray) -> bool:
    """Tell whether a line may have integers over 64 bits, which the fast parser rounds to floats."""
    return _BIG in line.translate(_DIGITS)
