"""The measured calls in each protocol: templates of requests for `native/load.c`, and the expected replies.

The templates have marks for a number of seven digits that is new in each call.
"""

from __future__ import annotations

import json
import xmlrpc.client
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .templates import NEXT, NEXT_VARINT, NUMBER, VARINT

Check = Callable[[object, int], bool]
Value = str | int | bool

_SAMPLE = 2345678  # stands where the placeholder belongs while other libraries write a message
PASSWORD = "correct horse battery staple"


@dataclass(frozen=True)
class Call:
    """A method, with its arguments and its result as functions of a number."""

    method: str
    arguments: Callable[[int], dict[str, Value]]
    result: Callable[[int], Value | dict[str, Value]]


SUM = Call("sum", lambda n: {"a": n, "b": 1}, lambda n: n + 1)
SUM_LATER = Call("sum_later", SUM.arguments, SUM.result)
LOGIN = Call(
    "login",
    lambda n: {"user": f"user{n}", "password": PASSWORD, "remember": True},
    lambda n: {"user": f"user{n}", "token": f"user{n}:{PASSWORD}", "remember": True},
)


def line(call: Call) -> bytes:
    """Make the JSON-RPC 2.0 request as a line, parameters by position."""
    return _template(_request(call.method, list(call.arguments(_SAMPLE).values()), _SAMPLE)) + b"\n"


def fits_reply(call: Call) -> Check:
    """Make a check for the JSON-RPC reply object."""
    return lambda reply, n: reply == {"jsonrpc": "2.0", "id": n, "result": call.result(n)}


def fits_result(call: Call) -> Check:
    """Make a check for the bare result."""
    return lambda reply, n: type(reply) is type(call.result(n)) and reply == call.result(n)


def batch(size: int) -> bytes:
    """Make a batch of sums as a line. Each has an id, arguments and a result of its own; `size` is at most 100."""
    members = [_request("sum", [_SAMPLE * 100 + member, 1], _SAMPLE * 100 + member) for member in range(size)]
    return _template(members) + b"\n"


def fits_batch(size: int) -> Check:
    """Make a check for the replies to that batch, in any order."""

    def fits(replies: object, n: int) -> bool:
        ids = [n * 100 + member for member in range(size)]
        expected = [{"jsonrpc": "2.0", "id": one, "result": one + 1} for one in ids]
        return isinstance(replies, list) and sorted(replies, key=lambda reply: str(reply.get("id"))) == expected

    return fits


def get(path: str) -> bytes:
    """Make an HTTP request for a page."""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: load\r\nAccept: */*\r\n\r\n".encode()


def post(path: str, body: bytes, kind: str = "application/json") -> bytes:
    """Make an HTTP POST request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: load\r\nAccept: */*\r\n"
        f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def named(call: Call) -> bytes:
    """Write the arguments as a JSON object, as REST and WebSocket take them."""
    return _template(call.arguments(_SAMPLE))


def xml_request(call: Call) -> bytes:
    arguments = tuple(call.arguments(_SAMPLE).values())
    return xmlrpc.client.dumps(arguments, call.method).encode().replace(b"%d" % _SAMPLE, NUMBER)


def xml_reply(call: Call) -> bytes:
    """Write an XML-RPC reply as the standard library's server does."""
    text = xmlrpc.client.dumps((call.result(_SAMPLE),), methodresponse=True).encode()
    return text.replace(b"%d" % _SAMPLE, NUMBER).replace(b"%d" % (_SAMPLE + 1), NEXT)


def grpc_templates(call: Call) -> tuple[bytes, bytes]:
    """Make request and reply as protobuf messages, whose fields are the arguments and the results in order."""
    result = call.result(_SAMPLE)
    return _message(call.arguments(_SAMPLE).values()), _message(
        result.values() if isinstance(result, dict) else [result]
    )


def _request(method: str, params: list[Value], call_id: int) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": call_id, "method": method, "params": params}


def _template(message: object) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode().replace(b"%d" % _SAMPLE, NUMBER)


def _message(values: Iterable[Value]) -> bytes:
    """Encode a protobuf message with fields from 1 on. Numbers are positive, since protobuf leaves out zeros."""
    return b"".join(_field(number, value) for number, value in enumerate(values, 1))


def _field(number: int, value: Value) -> bytes:
    if isinstance(value, str):
        text = value.encode()
        return _varint(number << 3 | 2) + _varint(len(text)) + text.replace(b"%d" % _SAMPLE, NUMBER)
    marks = {_SAMPLE: VARINT, _SAMPLE + 1: NEXT_VARINT}
    return _varint(number << 3) + (marks.get(value) or _varint(value))


def _varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])
