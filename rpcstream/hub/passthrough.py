"""Passes messages on from one member to another: the same values under another id or name, not decoded.

`PassThroughReader` leaves long strings as they came. The members of a message are copied as text, so that nothing in
them is rounded or lost. Each member is written once, so that no two readers see different messages.

Wherever a `line` is taken, it is a message that was parsed and is JSON throughout: its long strings are put back in,
uncopied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from ..codec import payloads
from ..codec.attachments import CutLine, Payload, SharedLine, whole
from ..peer.flow_control import StreamReceiver
from ..peer.inflight import ForwardedCall
from ..peer.session import Session
from ..wire import envelope
from ..wire.buffers import Encoded, trimmed

Line = bytes | bytearray

#: The tag of a stream among the arguments, as it is written most often.
STREAM_TEXT = b'"stream"'

#: The members of a request that are read, and written anew.
_KNOWN = frozenset(("jsonrpc", "id", "method", "params", "timeout", "stream"))

#: The members of a request that carry the caller's trace.
TRACE = frozenset(("traceparent", "tracestate"))

#: The hub's own methods that pass a value on: which of their params that is, by name and by place.
PASSED: dict[str, tuple[str, int]] = {"rpc.publish": ("value", 1), "rpc.notify": ("params", 2)}

#: Bytes of a batch whose replies are passed on exactly as they came; in those of a longer one integers over 64 bits may
#: be rounded. A hub never sends requests in a batch, so replies in one are rare.
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


class PassThroughReader:
    """Parses the messages of all connections of a hub; in those that are passed on, long strings are not decoded.

    Args:
        routes: the methods whose calls are passed on.
    """

    def __init__(self, routes: Mapping[str, object]) -> None:
        self._routes = routes

    def read(self, line: bytes, session: Session) -> tuple[Any, bytes]:
        """Parse as `payloads.parse` does; in a message that is passed on every long string is a `Payload`.

        Raises:
            orjson.JSONDecodeError: it is not JSON.
        """
        found = payloads.outline(line, session.limits)
        if found is not None and self._is_passed_on(*found, session):
            return found
        return payloads.parse_whole(line, session.limits), line

    def _is_passed_on(self, message: Any, line: CutLine, session: Session) -> bool:
        if type(message) is not dict:
            return False
        method = message.get("method")
        if method is None:
            return "error" not in message and _is_forwarded(message.get("id"), session)
        if type(method) is not str or any(type(member) is Payload for member in message.values()):
            return False
        if method in self._routes:
            # A stream among the arguments must be seen, also one whose tag is written with escapes.
            return line.find(b"\\u") < 0 and line.count(STREAM_TEXT) == ("stream" in message)
        params = message.get("params")
        if method in PASSED:
            members = params.items() if type(params) is dict else enumerate(params if type(params) is list else ())
            return not any(type(value) is Payload and name not in PASSED[method] for name, value in members)
        return "id" not in message and type(params) is dict and _is_of_forwarded_call(method, params, session)


def _is_of_forwarded_call(method: str, params: dict[str, Any], session: Session) -> bool:
    """Tell whether a notification is an item, or progress, of a call that goes through the hub."""
    if method == envelope.PROGRESS:
        return _is_forwarded(params.get("token"), session)
    if method != envelope.ITEM:
        return False
    stream = params.get("stream")
    if stream is None:
        return _is_forwarded(params.get("id"), session)
    receiver = session.streams.receivers.get(stream) if type(stream) is str else None
    return receiver is not None and type(receiver) is not StreamReceiver


def _is_forwarded(call_id: Any, session: Session) -> bool:
    return isinstance(session.pending.find(call_id), ForwardedCall)


def text_of(value: Any) -> bytes:
    """Write an id, or any small value, as JSON."""
    return b"%d" % value if type(value) is int else trimmed(orjson.dumps(value))


def request(
    line: Line,
    message: dict[str, Any],
    call_id: int | None,
    method: bytes,
    *,
    timeout: float | None = None,
    stream: int | None = None,
    params: bytes | None = None,
    trace: Mapping[str, str] | None = None,
) -> Encoded:
    """Write a request that is passed on, or a notification where `call_id` is None.

    Args:
        line: of the request.
        message: the request as it was read.
        call_id: its id at the provider.
        method: its name at the provider, as JSON.
        timeout: seconds that are left; None where there is no such member.
        stream: items that have credit; None where there is no such member.
        params: replace its own, as JSON.
        trace: members that replace those of `TRACE`; None: these stay as they are.
    """
    has_params = message.get("params") is not None
    own: Any = _read_request(line).params if params is None else params
    if (
        len(message) == 4
        and has_params
        and call_id is not None
        and timeout is None
        and stream is None
        and trace is None
    ):
        # Nearly every request is like this.
        return _written(b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":%b}' % (call_id, method, own), line)
    known = _KNOWN if trace is None else _KNOWN | TRACE
    more = b"" if message.keys() <= known else _more_members(line, known)
    if trace is not None:
        more += b"".join([b",%b:%b" % (orjson.dumps(name), text_of(trace[name])) for name in trace])
    if timeout is not None:
        more += b',"timeout":%b' % orjson.dumps(timeout)
    if stream is not None:
        more += b',"stream":%d' % stream
    if has_params:
        more += b',"params":%b' % own
    if call_id is None:
        return _written(b'{"jsonrpc":"2.0","method":%b%b}' % (method, more), line)
    return _written(b'{"jsonrpc":"2.0","id":%d,"method":%b%b}' % (call_id, method, more), line)


def reply(line: Line, call_id: bytes, *, is_error: bool) -> Encoded:
    """Write the reply to the request with this id (as JSON)."""
    read = _read_reply(line)
    if is_error:
        return _written(b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (call_id, read.error), line)
    return _written(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (call_id, read.result), line)


def carrier(line: Line, method: str, name: str, to: bytes) -> Encoded:
    """Write a notification that carries one `value`, an item or progress, for another call or stream.

    Args:
        line: of the notification.
        method: `$/item` or `$/progress`.
        name: the parameter that names the call or stream.
        to: the new value of that, as JSON.
    """
    value = _read_value(_read_request(line).params).value
    head = b'{"jsonrpc":"2.0","method":"%b","params":{"%b":%b' % (method.encode(), name.encode(), to)
    return _written(b'%b,"value":%b}}' % (head, value), line)


def event(line: Line, topic: str) -> Encoded:
    """Write the event that an `rpc.publish` request publishes."""
    value = _member(line, *PASSED["rpc.publish"])
    head = b'{"jsonrpc":"2.0","method":"%b","params":{"topic":%b' % (envelope.EVENT.encode(), text_of(topic))
    return _written(b'%b,"value":%b}}' % (head, value), line)


def notification(line: Line, method: str, *, has_params: bool) -> Encoded:
    """Write the notification that an `rpc.notify` request sends, with params if it `has_params`."""
    more = b',"params":%b' % _member(line, *PASSED["rpc.notify"]) if has_params else b""
    return _written(b'{"jsonrpc":"2.0","method":%b%b}' % (text_of(method), more), line)


def _member(line: Line, name: str, place: int) -> bytes:
    """Return one of the params of a request, which has it by name or by place; as JSON."""
    members = members_of(line)
    return members[place] if isinstance(members, list) else members[name]


def members_of(line: Line) -> dict[str, bytes] | list[bytes]:
    """Return the params of a request, each as JSON."""
    params = bytes(_read_request(line).params)
    if params[:1] == b"[":
        return [bytes(value) for value in _read_values(params)]
    return {name: bytes(value) for name, value in _read_members(params).items()}


def joined(members: dict[str, bytes] | list[bytes]) -> bytes:
    """Put params, each as JSON, together again."""
    if isinstance(members, list):
        return b"[" + b",".join(members) + b"]"
    return b"{" + b",".join([b"%b:%b" % (orjson.dumps(name), value) for name, value in members.items()]) + b"}"


def line_of(line: Line, message: dict[str, Any]) -> Line:
    """Return the line of one message, which may have stood in a batch; one is made where there is none (`b""`).

    Args:
        line: of the message, or of the batch.
        message: as it was read, or as much of it as is used.
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
    """Return the replies in a batch by their ids, the first of several with the same; split once for all of them."""
    if isinstance(line, SharedLine) and line.replies is not None:
        known: dict[Any, bytes] = line.replies
        return known
    replies: dict[Any, bytes] = {}
    for raw in map(bytes, _read_values(line)):
        member = orjson.loads(raw)
        if envelope.is_reply(member) and ((call_id := member.get("id")) is None or type(call_id) in (int, str)):
            replies.setdefault(call_id, raw)
    if isinstance(line, SharedLine):
        line.replies = replies
    return replies


def without_value(params: Any, method: str) -> Any:
    """Return the params of one of the `PASSED` methods, with an empty value of the same type for what is passed on."""
    name, place = PASSED[method]
    if type(params) is list:
        return [*params[:place], *map(_emptied, params[place : place + 1]), *params[place + 1 :]]
    return {**params, name: _emptied(params[name])} if type(params) is dict and name in params else params


def _emptied(value: Any) -> Any:
    if type(value) is Payload:
        return ""
    return type(value)() if type(value) in (list, dict) else value


def _more_members(line: Line, known: frozenset[str]) -> bytes:
    """Return the members of a request that its caller added, none of those that are `known`, as JSON."""
    members = _read_members(line)
    return b"".join([b",%b:%b" % (orjson.dumps(name), members[name]) for name in members if name not in known])


def _written(data: bytes, line: Line) -> Encoded:
    # A line end is white space where the message came from, but may end the message where it goes.
    if b"\n" in data or b"\r" in data:
        data = data.translate(_BLANKS)
    return data if type(line) is bytes else whole(data, line)
