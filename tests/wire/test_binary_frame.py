"""Binary frames: headers, where a frame ends, what is refused, and streams in which frames and lines stand mixed."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import Codec
from rpcstream.wire.binary_frame import HEADER_MAX, FrameError, header, parts_of_frame, read_header
from rpcstream.wire.buffers import AttachedMessage, MessageParts, parts_of
from rpcstream.wire.envelope import Oversize
from rpcstream.wire.framing import LineFramer

from ..kit.example_count import IS_THOROUGH, example_count
from .frame_model import TakesAll, frame_of, read_in_pieces, read_slowly

ONE = b'{"jsonrpc":"2.0","id":1,"method":"m","params":[{"$bin":0}]}'
TWO = b'{"jsonrpc":"2.0","id":2,"method":"m","params":[{"$bin":1},{"$bin":0}]}'


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    """The stream, cut at these places (taken modulo its length)."""
    ends = sorted({place % (len(stream) + 1) for place in places})
    return [stream[begin:end] for begin, end in zip([0, *ends], [*ends, len(stream)], strict=True) if begin < end]


@given(st.integers(1, 10**12 - 1), st.lists(st.integers(1, 10**12 - 1), min_size=1, max_size=256))
@settings(max_examples=example_count(50))
def test_a_header_is_read_as_it_was_written_and_aligns_the_first_payload(json_size: int, sizes: list[int]) -> None:
    written = header(json_size, [b"%d" % size for size in sizes])
    assert len(written) <= HEADER_MAX
    assert read_header(written) == (json_size, tuple(sizes), (None,) * len(sizes))
    assert (len(written) + json_size) % 8 == 0
    assert len(written.rstrip()) + 8 >= len(written)
    assert read_header(b"@003 01       \n")[:2] == (3, (1,))


@pytest.mark.parametrize(
    "line",
    [
        *(b"@\n", b"@3\n", b"@3 \n", b"@ 3 1\n", b"@3  1\n", b"@3\t1\n", b"@-3 1\n", b"@3 -1\n", b"@+3 1\n"),
        *(b"@3 1_0\n", b"@0 1\n", b"@3 0\n", b"@3 1 0\n", b"@3 1.0\n", b"@3 1e2\n", b"@0x3 1\n", b"@3 1        \n"),
        *(b"@3 1\r\n", b"@3 1", b"@3 1\n\n", b"@1234567890123 1\n", b"@3 1234567890123\n", b"@3 1\x00\n"),
        *(b"@@3 1\n", b"@3 1@\n", b"x@3 1\n", b"@3" + b" 1" * 257 + b"\n", "@٣ 1\n".encode(), b"@3" + b" 1" * 5000),
    ],
)
def test_a_malformed_header(line: bytes) -> None:
    with pytest.raises(FrameError):
        read_header(line)
    framer = LineFramer(max_size=10_000, intake=TakesAll())
    if line.startswith(b"@") and line.find(b"\n") == len(line) - 1:
        for at in range(len(line)):
            framer.feed(line[at : at + 1])
        assert framer.ended
        assert "malformed" in (framer.fault or "")
        assert framer.feed(b"[1]\n") == []


payload = st.one_of(
    st.binary(min_size=1, max_size=50), st.sampled_from([b"\n", b"@", b"\n@3 1\n", b"\n\n", b" @", b"}\n"])
)
frames = st.lists(payload, min_size=1, max_size=4).map(
    lambda each: frame_of(b'{"x":[%b]}' % b",".join(b'{"$bin":%d}' % place for place in range(len(each))), *each)
)
texts = st.sampled_from(
    [b'{"a":1}\n', b"[1]\r\n", b'"@"\n', b'{"@":"@ @"}\n', b"  [2]\n", b"x\n", b'{"s":"' + b"y" * 300 + b'"}\n']
)
blanks = st.sampled_from([b"", b"", b" ", b"     "])
large = st.integers(201, 4000).map(lambda size: b"@4 %d\n{}\n\n" % size + b"z" * size)
streams = st.lists(st.tuples(blanks, st.one_of(frames, texts, large)).map(b"".join), max_size=12).map(b"".join)


@given(stream=streams, places=st.lists(st.integers(0, 10**6), max_size=12), ends=st.booleans(), directly=st.booleans())
@settings(max_examples=example_count(150), deadline=None)
def test_a_stream_gives_the_same_messages_wherever_it_is_cut(
    stream: bytes, places: list[int], ends: bool, directly: bool
) -> None:
    whole = stream + (b"\n[3]\n" if ends else b"")
    expected = read_slowly(whole, 200)
    framer, seen, intake = read_in_pieces(cut(whole, places), 200, directly=directly)
    if any(isinstance(each, int) for each in expected.seen):  # a long line is reported before its end was received
        seen = [200 if isinstance(each, int) else each for each in seen]
        expected.seen = [200 if isinstance(each, int) else each for each in expected.seen]
    assert seen == expected.seen
    assert framer.ended == expected.ended
    assert framer.fault is None
    assert intake.memory == 0


def test_a_stream_that_ends_within_a_frame() -> None:
    frame = frame_of(ONE, b"abc")
    for size in range(1, len(frame)):
        framer, seen, intake = read_in_pieces([frame[:size]], 1000)
        assert framer.partial
        assert framer.finish() == seen == []
        assert framer.fault == "the stream ended within a binary frame"
        assert not framer.partial
        assert intake.memory == 0


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_frames_that_may_not_come_are_refused_however_their_header_is_cut(size: int) -> None:
    intake = TakesAll()
    intake.reason = "not now"
    framer = LineFramer(max_size=1000, intake=intake)
    frame = frame_of(ONE, b"abc")
    assert not any(framer.feed(frame[at : at + size]) for at in range(0, len(frame), size))
    assert (framer.ended, framer.fault, intake.admitted) == (True, "not now", 0)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_frame_over_the_limit_is_skipped_exactly(size: int) -> None:
    head = b'{"jsonrpc":"2.0","id":7,"method":"m"}'
    stream = frame_of(head, b"@" * 90, b"\n" * 9) + b"[1]\n"
    framer, seen, intake = read_in_pieces([stream[at : at + size] for at in range(0, len(stream), size)], 100)
    assert seen == [len(head) + 1 + 90 + 6 + 9, b"[1]"]
    assert intake.most == 0
    framer = LineFramer(max_size=100, intake=intake)
    (oversize,) = framer.feed(stream[:-4])
    assert isinstance(oversize, Oversize)
    assert oversize.head == head + b"\n"


@pytest.mark.parametrize("size", [1, 10, 10_000])
def test_what_is_still_to_come_of_a_frame_can_be_skipped(size: int) -> None:
    """At any place behind its header, whether its JSON is there or not."""
    head = frame_of(TWO, b"abc", b"def").index(b"\n") + 1
    stream = frame_of(TWO, b"abc", b"def") + b"[1]\n"
    for place in range(head, len(stream) - 5):
        intake = TakesAll()
        framer = LineFramer(max_size=1000, intake=intake)
        assert framer.feed(stream[:place]) == []
        assert intake.frame is not None
        intake.frame.drop(10)
        rest = stream[place:]
        refused, line = [each for at in range(0, len(rest), size) for each in framer.feed(rest[at : at + size])]
        assert line == b"[1]"
        if isinstance(refused, Oversize):
            assert (refused.is_refused, refused.limit, refused.head) == (True, 10, stream[head:place])


#: Changes to a stream, in so many tests of their own.
PARTS = 16
MUTATIONS = 300_000 if IS_THOROUGH else 2_000
INSERTED = (b"@", b"\n@", b"\n", b" ", b"0", b"9", b"@4 1\n{}\n\nx")


def mutated(stream: bytes, chance: random.Random) -> bytes:
    """The stream with a few bytes changed, left out, doubled, or moved."""
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(stream) + 1)
        kind = chance.randrange(5)
        if kind == 0:
            byte = chance.choice(b'@ \n0123456789{}[]"\x00\xff:$')
            stream = stream[:at] + bytes([byte]) + stream[at + 1 :]
        elif kind == 1:
            stream = stream[:at] + stream[at + chance.choice((1, 1, 8, 40)) :]
        elif kind == 2:
            stream = stream[:at] + stream[at : at + chance.choice((1, 8, 40))] + stream[at:]
        elif kind == 3:
            stream = stream[:at] + chance.choice(INSERTED) + stream[at:]
        else:
            stream = stream[:at] + chance.randbytes(3) + stream[at + 3 :]
    return stream


def check_mutation(stream: bytes, chance: random.Random, max_size: int = 300) -> None:
    """The framer agrees with the model, raises nothing, and holds no more than was announced within the limit."""
    expected = read_slowly(stream, max_size)
    places = [chance.randrange(len(stream) + 1) for _ in range(chance.choice((0, 1, 3, 30)))]
    framer, seen, intake = read_in_pieces(cut(stream, places), max_size, directly=chance.random() < 0.5)
    assert intake.most <= max_size
    lines = [each for each in expected.seen if isinstance(each, bytes)]
    if any(b"}" in line or b"]" in line for line in lines) and len(lines) != sum(isinstance(e, bytes) for e in seen):
        return  # values without a line end between them: how these are cut is tests/wire/test_framing.py's
    if any(map(_ends_early, [*lines, *expected.too_long])):
        return  # so is this: with a read that ends there, what follows it is at the start of a message
    simple = [each if isinstance(each, tuple) else type(each) for each in seen]
    wanted = [each if isinstance(each, tuple) else type(each) for each in expected.seen]
    if len(simple) == len(wanted) + 1 and not expected.ended:
        simple.pop()  # what is at the end is whole, or too long, before its end has come
    assert [_shown(each) for each in simple] == [_shown(each) for each in wanted], stream
    assert framer.ended == expected.ended or (framer.fault is not None and not expected.ended), stream


def _ends_early(line: bytes) -> bool:
    """Whether a value may end within a line, with something behind it."""
    depth = 0
    for at, byte in enumerate(line):
        depth += (byte in b"{[") - (byte in b"}]")
        if byte in b"}]" and depth <= 0 and line[at + 1 :].strip():
            return True
    return False


def _shown(each: object) -> object:
    """Payloads of a frame that was refused were skipped: their sizes are compared."""
    return (each[0], *map(len, each[1:])) if isinstance(each, tuple) else each


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(PARTS))
def test_mutated_streams_are_read_as_the_model_reads_them(part: int) -> None:
    chance = random.Random(part)
    originals = [
        frame_of(ONE, b"abc") + b'{"a":1}\n' + frame_of(TWO, b"x" * 9, b"\n@4 1\n"),
        b'{"a":"@"}\n' * 2 + frame_of(b'{"x":{"$bin":0}}', b"y" * 100) + b" " + frame_of(ONE, b"z") + b"[1]\n\n[2]\n",
        frame_of(b"{}", b"a") * 5 + b"@4 400\n{}\n\n" + b"@" * 400 + b"[3]\n",
    ]
    for _ in range(MUTATIONS // PARTS):
        check_mutation(mutated(chance.choice(originals), chance), chance)


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=20))
@settings(max_examples=example_count(50))
def test_what_is_written_is_what_the_model_writes(payloads: list[bytes]) -> None:
    message = AttachedMessage([b'{"x":[', *[b","] * (len(payloads) - 1), b"]}"], list(payloads))
    sent = b"".join(map(bytes, parts_of_frame(message)))
    assert sent == frame_of(message.json[:-1], *payloads)


def test_a_message_in_pieces_is_what_is_written_in_one() -> None:
    message = {"result": [np.arange(50_000), "between", bytes(100_000)]}
    pieces = Codec().serialize(message)
    assert isinstance(pieces, MessageParts)
    assert bytes(pieces) == b"".join(parts_of(pieces)) == Codec().dumps(message)
    assert (len(pieces), len(pieces.parts)) == (len(bytes(pieces)), 5)
