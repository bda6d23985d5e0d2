"""Framing by Content-Length: headers and messages however they are cut, and headers that cannot be read."""

from __future__ import annotations

import pytest

from rpcstream.wire.content_length import HEADER_MAX, ContentLengthFramer
from rpcstream.wire.envelope import HEAD_SIZE, Message, Oversize


class Room:
    """A reception that refuses what is over its limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0

    def grow(self, size: int) -> bool:
        self.size = size
        return size <= self.limit

    def over(self) -> None:
        self.size = 0


def headed(*bodies: bytes) -> bytes:
    return b"".join(b"Content-Length: %d\r\n\r\n%b" % (len(body), body) for body in bodies)


def feed(framer: ContentLengthFramer, stream: bytes, size: int) -> list[Message]:
    return [message for at in range(0, len(stream), size) for message in framer.feed(stream[at : at + size])]


@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
def test_messages_come_whole_however_they_are_cut(size: int) -> None:
    framer = ContentLengthFramer(max_size=1000)
    bodies = [b"{}", b'{"a":\n\r\n"\xc3\xa9"}', b"[1]", b"x" * 1000, b"Content-Length: 3\r\n\r\n"]
    assert feed(framer, headed(*bodies), size) == bodies
    assert not framer.partial
    assert framer.finish() == []
    assert framer.fault is None


@pytest.mark.parametrize(
    "head",
    [
        *(b"Content-Length:2", b"Content-Length: 2 ", b"Content-Length: 02\r\nX-Other: anything"),
        b"content-length: 2\r\ncontent-type: application/vscode-jsonrpc; charset=utf-8",
        b'Content-Type: application/json; Charset="utf8"\r\nContent-Length: 2',
    ],
)
def test_headers_that_are_read(head: bytes) -> None:
    framer = ContentLengthFramer(max_size=1000)
    assert framer.feed(head + b"\r\n\r\n{}") == [b"{}"]


@pytest.mark.parametrize(
    "head",
    [
        *(b"Content-Length: %b\r\n\r\n" % each for each in (b"-1", b"+1", b"1e3", b"1_0", b"9" * 41)),
        b"Content-Length:\r\n\r\n",
        b"Content-Length: 2\r\ncontent-length: 3\r\n\r\n{}",
        b"Content-Type: application/json\r\n\r\n",
        b"Content-Length : 2\r\n\r\n{}",
        b"Content-Length: 2\n\n{}",
        b"Content-Length: 2\r\n folded\r\n\r\n{}",
        b'{"jsonrpc": "2.0"}\n',
        b"Content-Length: 2\r\nX: " + b"x" * HEADER_MAX,
    ],
)
@pytest.mark.parametrize("size", [5, 10_000])
def test_a_header_that_cannot_be_read_ends_the_stream(head: bytes, size: int) -> None:
    framer = ContentLengthFramer(max_size=1000)
    assert feed(framer, headed(b"[1]") + head + headed(b"[2]"), size) == [b"[1]"]
    assert framer.ended
    assert framer.fault


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_a_message_over_the_limit_is_reported_once_and_dropped(size: int) -> None:
    framer = ContentLengthFramer(max_size=1000)
    body = b"[" + b"x" * 1500
    assert feed(framer, headed(b"[1]", body, b"[2]"), size) == [b"[1]", Oversize(1501, body[:HEAD_SIZE]), b"[2]"]
    assert not framer.partial


def test_announced_bytes_are_not_counted_and_those_that_have_come_are() -> None:
    room = Room(400)
    framer = ContentLengthFramer(max_size=1000, reception=room)
    assert framer.feed(b"Content-Length: 900\r\n\r\n") == []
    assert room.size == 0
    assert framer.feed(b"x" * 300) == []
    assert room.size == 300
    (refused,) = framer.feed(b"x" * 300)
    assert refused == Oversize(600, b"x" * HEAD_SIZE, is_refused=True)
    assert room.size == 0
    assert framer.feed(b"x" * 300 + headed(b"[2]")) == [b"[2]"]


@pytest.mark.parametrize("stream", [b"Content-Len", b"Content-Length: 5\r\n\r\n", b"Content-Length: 5\r\n\r\n[1"])
def test_a_stream_that_ends_within_a_message(stream: bytes) -> None:
    framer = ContentLengthFramer(max_size=1000)
    assert framer.feed(stream) == []
    assert framer.partial
    assert framer.finish() == []
    assert "ended within a message" in (framer.fault or "")
