"""Messages that go on to somebody else: the same values under another id or name.

Owns how a message that passes through is written anew: its members are taken over as the text that came, so that
nothing in them is decoded, rounded or lost; each member stands there once, so that no two readers see different
messages. Pure.

Wherever a `line` is asked for, it is a message that was parsed (`Codec.parse`) and is JSON throughout
(`payloads.is_json`): its long strings are put back in, uncopied.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from ..codec import payloads
from ..wire import envelope
from ..wire.pieces import Written, exact

Line = bytes | bytearray

#: What a request says for the one who carries it out, and is written anew.
_KNOWN = frozenset(("jsonrpc", "id", "method", "params", "timeout", "stream"))

#: Of the hub's own methods that send on what they get: which of their params that is, by name and by place.
PASSED: dict[str, tuple[str, int]] = {"rpc.publish": ("value", 1), "rpc.notify": ("params", 2)}

#: Bytes of a batch whose replies go on exactly as they came; in those of a longer one integers over 64 bits may be
#: rounded. Requests that a hub sends never stand in a batch, so nobody should answer them in one.
_BATCH_MAX = 1024 * 1024

_NONE = msgspec.Raw(b"null")


class _Request(msgspec.Struct, gc=False):
    params: msgspec.Raw = _NONE


class _Reply(msgspec.Struct, gc=False):
    result: msgspec.Raw = _NONE
    error: msgspec.Raw = _NONE


class _Value(msgspec.Struct, gc=False):
    value: msgspec.Raw = _NONE


_BLANKS = bytes.maketrans(b"\r\n", b"  ")

_read_request = msgspec.json.Decoder(_Request).decode
_read_reply = msgspec.json.Decoder(_Reply).decode
_read_value = msgspec.json.Decoder(_Value).decode
_read_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_values = msgspec.json.Decoder(list[msgspec.Raw]).decode


def text_of(value: Any) -> bytes:
    """An id, or any small value, as JSON; an id that was read exactly (`envelope.with_exact_ids`) as it came.

    It may be put beside parts of a line that was cut, so it never looks like a placeholder.
    """
    return b"%d" % value if type(value) is int else payloads.disguised(exact(orjson.dumps(value)))


def request(
    line: Line,
    message: dict[str, Any],
    call_id: int | None,
    method: bytes,
    *,
    timeout: float | None = None,
    stream: int | None = None,
    params: bytes | None = None,
) -> Written:
    """A request that goes on, or a notification where `call_id` is None.

    Args:
        message: the request as it was read.
        method: its name where it goes, as JSON.
        timeout: seconds that are left; `stream`: items that are permitted. None where there is no such member.
        params: to stand in the place of its own, as JSON.
    """
    has_params = message.get("params") is not None
    own: Any = _read_request(line).params if params is None else params
    if len(message) == 4 and has_params and call_id is not None and timeout is None and stream is None:
        # What nearly every request is.
        return _written(b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":%b}' % (call_id, method, own), line)
    more = b"" if message.keys() <= _KNOWN else _more_members(line)
    if timeout is not None:
        more += b',"timeout":%b' % orjson.dumps(timeout)
    if stream is not None:
        more += b',"stream":%d' % stream
    if has_params:
        more += b',"params":%b' % own
    if call_id is None:
        return _written(b'{"jsonrpc":"2.0","method":%b%b}' % (method, more), line)
    return _written(b'{"jsonrpc":"2.0","id":%d,"method":%b%b}' % (call_id, method, more), line)


def reply(line: Line, call_id: bytes, *, is_error: bool) -> Written:
    """A reply to go back, to the request with this id (as JSON)."""
    read = _read_reply(line)
    if is_error:
        return _written(b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (call_id, read.error), line)
    return _written(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (call_id, read.result), line)


def carrier(line: Line, method: str, name: str, to: bytes) -> Written:
    """A notification that carries one `value`: an item, a progress, with another name.

    Args:
        method: `$/item` or `$/progress`.
        name: the parameter that says what it belongs to; `to`: what that is now, as JSON.
    """
    value = _read_value(_read_request(line).params).value
    head = b'{"jsonrpc":"2.0","method":"%b","params":{"%b":%b' % (method.encode(), name.encode(), to)
    return _written(b'%b,"value":%b}}' % (head, value), line)


def event(line: Line, topic: str) -> Written:
    """The event that a request asks to be published."""
    value = _member(line, *PASSED["rpc.publish"])
    head = b'{"jsonrpc":"2.0","method":"%b","params":{"topic":%b' % (envelope.EVENT.encode(), text_of(topic))
    return _written(b'%b,"value":%b}}' % (head, value), line)


def notification(line: Line, method: str, *, has_params: bool) -> Written:
    """The notification that a request asks to be sent, with params if it `has_params`."""
    more = b',"params":%b' % _member(line, *PASSED["rpc.notify"]) if has_params else b""
    return _written(b'{"jsonrpc":"2.0","method":%b%b}' % (text_of(method), more), line)


def _member(line: Line, name: str, place: int) -> bytes:
    """One of the params of a request, which has it, by name or by place."""
    members = members_of(line)
    return members[place] if isinstance(members, list) else members[name]


def members_of(line: Line) -> dict[str, bytes] | list[bytes]:
    """The params of a request, each as JSON."""
    params = bytes(_read_request(line).params)
    if params[:1] == b"[":
        return [bytes(value) for value in _read_values(params)]
    return {name: bytes(value) for name, value in _read_members(params).items()}


def joined(members: dict[str, bytes] | list[bytes]) -> bytes:
    """The params again."""
    if isinstance(members, list):
        return b"[" + b",".join(members) + b"]"
    return b"{" + b",".join([b"%b:%b" % (orjson.dumps(name), value) for name, value in members.items()]) + b"}"


def line_of(line: Line, message: dict[str, Any]) -> Line:
    """The line of one message, which may have stood in a batch; one is made where there is none (`b""`).

    Args:
        message: as it was read, or as much of it as matters.
    """
    if line[:1] == b"{":
        return line
    start = line.lstrip()[:1]
    if start == b"{":
        return line
    if start == b"[" and "id" in message and len(line) <= _BATCH_MAX:
        reply = _replies(line).get(message["id"])
        if reply is not None:
            return payloads.part_of(line, reply)
    return orjson.dumps(payloads.with_strings(message))


def _replies(line: Line) -> dict[Any, bytes]:
    """The replies in a batch, by their ids; the first of several with the same. Taken apart once for all of them."""
    if isinstance(line, payloads.SharedLine) and line.replies is not None:
        known: dict[Any, bytes] = line.replies
        return known
    replies: dict[Any, bytes] = {}
    for raw in map(bytes, _read_values(line)):
        member = orjson.loads(raw)
        if envelope.is_reply(member) and ((call_id := member.get("id")) is None or type(call_id) in (int, str)):
            replies.setdefault(call_id, raw)
    if isinstance(line, payloads.SharedLine):
        line.replies = replies
    return replies


def _more_members(line: Line) -> bytes:
    """The members of a request that are not of JSON-RPC and not ours: what its caller added for the handler."""
    members = _read_members(line)
    return b"".join([b",%b:%b" % (orjson.dumps(name), members[name]) for name in members if name not in _KNOWN])


def _written(data: bytes, line: Line) -> Written:
    # White space between values may be a line end where the message came from, and would end it where it goes.
    if b"\n" in data or b"\r" in data:
        data = data.translate(_BLANKS)
    return data if type(line) is bytes else payloads.whole(data, line)
