"""Framing: lines, values without a line end, and messages that are too long."""

from __future__ import annotations

import itertools
import json
import tracemalloc

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream.wire import json_scan
from rpcstream.wire.envelope import Oversize
from rpcstream.wire.framing import LineFramer

from ..kit.example_count import example_count


def cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    """The stream in pieces of these sizes, over and over."""
    pieces, at = [], 0
    while at < len(stream):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(stream[at : at + size])
        at += size
    return pieces


@pytest.mark.parametrize("empty", [b"\n", b"\r\n", b" \t\n", b" \r\n"])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_empty_lines_end_the_requests_or_are_skipped(empty: bytes, size: int) -> None:
    framer = LineFramer(max_size=1000)
    pieces = cut(b"[1]\n" + empty + b"[2]\n", [size])
    assert [bytes(message) for piece in pieces for message in framer.feed(piece)] == [b"[1]"]
    assert framer.ended
    framer = LineFramer(max_size=1000, skips_blank=True)
    stream = empty + b"[1]\n" + empty + b"@10 10\n[2]\n" + empty
    messages = [bytes(message) for piece in cut(stream, [size]) for message in framer.feed(piece)]
    assert (messages, framer.ended) == ([b"[1]", b"@10 10", b"[2]"], False)


def test_an_endless_line_is_reported_before_it_ends_and_not_kept() -> None:
    framer = LineFramer(max_size=1000)
    tracemalloc.start()
    reported = [message for _ in range(1000) for message in framer.feed(b"x" * 100)]
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 20_000
    assert len(reported) == 1
    assert isinstance(reported[0], Oversize)
    assert framer.partial
    assert framer.finish() == []


@given(
    st.sampled_from([b"--", b"aab", b"\r\n"]),
    st.lists(st.text("ab-\r", min_size=1, max_size=8).map(str.encode), max_size=6),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
@settings(deadline=None)
def test_a_delimiter_may_come_in_pieces(delimiter: bytes, lines: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(line + delimiter for line in lines)
    *whole, rest = stream.split(delimiter)
    framer = LineFramer(max_size=50, delimiter=delimiter)
    messages = [message for piece in cut(stream, sizes) for message in framer.feed(piece)]
    # Blanks in front of a message may be dropped as they come.
    assert [bytes(message).lstrip() for message in messages] == [
        line.lstrip() for line in itertools.takewhile(bytes.strip, whole)
    ]
    assert framer.ended == (len(messages) < len(whole))
    assert [bytes(last).lstrip() for last in framer.finish()] == (
        [rest.lstrip()] if rest.strip() and not framer.ended else []
    )


def single_values(messages: list[bytes]) -> list[bytes]:
    """What a session makes of messages: those that are not JSON are taken apart."""
    messages = list(messages)
    found = []
    while messages:
        message = messages.pop(0)
        values = [] if is_json(message) else json_scan.split_values(message)
        if values:
            messages[:0] = values
        else:
            found.append(message.strip())
    return found


def is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


small = st.recursive(
    st.none() | st.integers(-5, 5) | st.text(st.sampled_from('[]{}"\\, a\n'), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("[}\\", max_size=2), inner, max_size=3),
    max_leaves=5,
)
values = (st.lists(small, max_size=3) | st.dictionaries(st.text("{]", max_size=2), small, max_size=3)).map(
    lambda value: json.dumps(value).encode()
)
between = st.sampled_from([b"", b"", b"", b" ", b" " * 20, b"\t \r", b"\n", b"\r\n", b"  \n  "])
cuts = st.lists(st.integers(1, 12) | st.just(1000), min_size=1, max_size=6)


@given(st.lists(st.tuples(values, between), min_size=1, max_size=5), cuts)
@settings(deadline=None, max_examples=example_count(250))
def test_values_of_any_kind_behind_each_other_are_each_a_message(
    parts: list[tuple[bytes, bytes]], sizes: list[int]
) -> None:
    stream = b"".join(value + blanks for value, blanks in parts)
    pieces = cut(stream, sizes)
    framer = LineFramer(max_size=10_000)
    messages = [bytes(message).strip() for piece in pieces for message in framer.feed(piece)]
    assert not framer.partial
    assert not framer.ended
    assert single_values(messages) == [value for value, _ in parts]


@given(
    st.lists(
        st.sampled_from([b"[", b"]", b"{", b"}", b'"', b"\\", b" ", b"a", b",", b"\n", b"[1]", b'{"a":"}"}']),
        max_size=40,
    ),
    cuts,
)
@settings(deadline=None, max_examples=example_count(250))
def test_no_text_of_brackets_and_quotes_is_lost_or_taken_twice(tokens: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(tokens)
    framer = LineFramer(max_size=10_000)
    messages = []
    for piece in cut(stream, sizes):
        messages += framer.feed(piece)
        if framer.ended:
            return
    messages += framer.finish()
    squeezed = b"".join(b"".join(map(bytes, messages)).split())
    assert squeezed == b"".join(stream.split())
    assert b"".join(b"".join(single_values(messages)).split()) == squeezed


def test_brackets_in_strings_cannot_keep_the_search_busy() -> None:
    text = b'{"a":"' + b"}{" * 400_000 + b'"}'
    assert json_scan.split_values(text) == []
    few = b'{"a":"' + b"}{" * 5000 + b'"}[]'
    assert [len(value) for value in json_scan.split_values(few)] == [len(few) - 2, 2]


@given(st.lists(st.sampled_from([b"[", b"]", b"{", b"}", b'"', b"\\", b'\\"', b"a", b'"a"']), max_size=30), cuts)
def test_brackets_are_counted_in_any_pieces(tokens: list[bytes], sizes: list[int]) -> None:
    text = b"".join(tokens)
    whole, balance = json_scan.Balance(), json_scan.Balance()
    whole.add(text)
    for piece in cut(text, sizes):
        balance.add(piece)
    assert (balance.depth, balance.in_string) == (whole.depth, whole.in_string)
