"""Makes a template of a server's replies from a few real calls, for the load generator to compare with.

The values are checked once here, decoded; then each reply of the load must have the same bytes, but for its number.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from http.client import HTTPException, HTTPResponse
from typing import IO

from .load import LoadFailed, Protocol, WrongReply

__all__ = ["NEXT", "NEXT_VARINT", "NUMBER", "VARINT", "WrongReply", "fill", "learn"]

#: A decoded reply and the number of the call -> whether it is right.
Check = Callable[[object, int], bool]

#: In templates: the number of the call, and the next one, seven digits each.
NUMBER, NEXT = b"@@@@@@@", b"#######"
#: The same as protobuf varints of four bytes; only for grpc, the replies of which are not learned but written by hand.
VARINT, NEXT_VARINT = b"%%%%", b"&&&&"

HOST = "127.0.0.1"
SECONDS = 10.0
SHOWN = 300

#: Alike in nothing but their length, so that what is like them by chance is not like all of them.
_NUMBERS = (1234567, 8070605, 5918273)


def fill(template: bytes, number: int) -> bytes:
    return template.replace(NUMBER, b"%d" % number).replace(NEXT, b"%d" % (number + 1))


def learn(protocol: Protocol, port: int, request: bytes, check: Check, *, path: str = "/") -> bytes:
    """Make the template of the replies to this template of requests.

    Args:
        protocol: any but grpc, whose messages cannot be read without their schema.
        check: given the reply, decoded from JSON, and the number of the call: whether the reply is right.
        path: of the WebSocket; requests over HTTP contain theirs.

    Raises:
        WrongReply: a reply was not right, or no reply at all.
        LoadFailed: the replies were right, but differ in more than the number.
        OSError: no connection, or no reply.
    """
    exchange = _EXCHANGES[protocol]
    templates = []
    for number in _NUMBERS:
        asked = fill(request, number)
        with socket.create_connection((HOST, port), SECONDS) as connection, connection.makefile("rb") as stream:
            got = exchange(connection, stream, asked, path)
        if problem := _problem(got, check, number):
            raise WrongReply(f"asked {_shown(asked)}, got {_shown(got)}{problem}")
        templates.append(got.replace(b"%d" % number, NUMBER).replace(b"%d" % (number + 1), NEXT))
    if len(set(templates)) > 1:
        raise LoadFailed(f"replies differ in more than the number: {', '.join(map(_shown, templates))}")
    return templates[0]


def _problem(reply: bytes, check: Check, number: int) -> str | None:
    """Describe what is wrong with a reply; None if it is right."""
    try:
        return None if check(json.loads(reply), number) else ", which is not right"
    except Exception as error:  # no JSON, or of another shape, whatever the check says to that
        return f", {error!r}"


def _shown(data: bytes) -> str:
    return f"{data[:SHOWN]!r}{'…' if len(data) > SHOWN else ''}"


# -- one request and its reply ----------------------------------------------------------------------------------------


def _line(connection: socket.socket, stream: IO[bytes], request: bytes, path: str) -> bytes:
    return _frame_for_line(connection, stream, request.removesuffix(b"\n") + b"\n", path)


def _frame_for_line(connection: socket.socket, stream: IO[bytes], request: bytes, path: str) -> bytes:
    connection.sendall(request)
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise ConnectionError(f"closed after {_shown(line)}")
    return line


def _http(connection: socket.socket, stream: IO[bytes], request: bytes, path: str) -> bytes:
    connection.sendall(request)
    response = HTTPResponse(connection)
    try:
        response.begin()
        body = response.read()
    except ConnectionError:
        raise
    except HTTPException as error:
        raise WrongReply(f"no HTTP: {error!r}") from error
    finally:
        response.close()
    if response.status != 200:
        raise WrongReply(f"status {response.status} {response.reason}: {_shown(body)}")
    return body


def _websocket(connection: socket.socket, stream: IO[bytes], request: bytes, path: str) -> bytes:
    connection.sendall(
        f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    status = stream.readline()
    if status.split()[1:2] != [b"101"]:
        raise WrongReply(f"no websocket: {_shown(status)}")
    while stream.readline().strip():
        pass
    mask = os.urandom(4)
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(request))
    connection.sendall(b"\x81" + _length(len(request)) + mask + masked)
    kind, payload = _frame(stream)
    if kind not in (0x81, 0x82):  # text, binary
        raise WrongReply(f"a frame that begins with {kind:#x}: {_shown(payload)}")
    return payload


def _frame(stream: IO[bytes]) -> tuple[int, bytes]:
    head = _exactly(stream, 2)
    longer = {126: 2, 127: 8}.get(head[1])
    size = int.from_bytes(_exactly(stream, longer)) if longer else head[1]
    return head[0], _exactly(stream, size)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise ConnectionError(f"closed after {_shown(data)}")
    return data


def _length(size: int) -> bytes:
    """Encode the length of a masked WebSocket frame."""
    if size < 126:
        return bytes([0x80 | size])
    return struct.pack(">BH", 0xFE, size) if size < 1 << 16 else struct.pack(">BQ", 0xFF, size)


_EXCHANGES: Mapping[str, Callable[[socket.socket, IO[bytes], bytes, str], bytes]] = {
    "line": _line,
    "frame": _frame_for_line,
    "http": _http,
    "websocket": _websocket,
}
