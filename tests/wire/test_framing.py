"""Framing: lines, values without a line end, and messages that are too long."""

from __future__ import annotations

import itertools
import json
import tracemalloc

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream.wire import envelope, json_scan
from rpcstream.wire.framing import LineFramer
from rpcstream.wire.messages import Oversize

from ..kit.example_count import example_count


def cut(stream: bytes, sizes: list[int]) -> list[bytes]:
    """The stream in pieces of these sizes, over and over."""
    pieces, at = [], 0
    while at < len(stream):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(stream[at : at + size])
        at += size
    return pieces


def frame(
    pieces: list[bytes], *, max_size: int = 10_000, delimiter: bytes = b"\n"
) -> tuple[list[bytes | Oversize], bool]:
    framer = LineFramer(max_size=max_size, delimiter=delimiter)
    messages = [message for piece in pieces for message in framer.feed(piece)]
    messages += framer.finish()
    plain = [message if isinstance(message, Oversize) else bytes(message).strip() for message in messages]
    return plain, framer.ended


def test_lines() -> None:
    assert frame([b'{"a":1}\n{"b":2}\r\n[3]\n']) == ([b'{"a":1}', b'{"b":2}', b"[3]"], False)


@pytest.mark.parametrize("empty", [b"\n", b"\r\n", b" \t\n", b" \r\n"])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_empty_line_ends_the_requests(empty: bytes, size: int) -> None:
    stream = b"[1]\n" + empty + b"[2]\n"
    assert frame(cut(stream, [size])) == ([b"[1]"], True)


@pytest.mark.parametrize("empty", [b"\n", b"\r\n", b" \t\n\n", b" \r\n"])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_an_empty_line_is_skipped_where_it_does_not_end_the_requests(empty: bytes, size: int) -> None:
    framer = LineFramer(max_size=1000, skips_blank=True)
    stream = empty + b"[1]\n" + empty + b"@10 10\n[2]\n" + empty
    messages = [bytes(message) for piece in cut(stream, [size]) for message in framer.feed(piece)]
    assert (messages, framer.ended) == ([b"[1]", b"@10 10", b"[2]"], False)


def test_line_end_after_such_a_value_belongs_to_it() -> None:
    framer = LineFramer(max_size=1000)
    assert framer.feed(b'{"a":1}') == [b'{"a":1}']
    assert framer.feed(b"\r") == []
    assert framer.feed(b"\n") == []
    assert not framer.ended
    assert framer.feed(b"[2]\n") == [b"[2]"]
    assert framer.feed(b"\n") == []
    assert framer.ended


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


def test_the_delimiter_must_not_be_empty() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        LineFramer(max_size=1, delimiter=b"")


documents = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
).map(lambda value: json.dumps([value], ensure_ascii=False).encode())


@given(st.lists(documents, max_size=5), st.lists(st.integers(1, 40), min_size=1, max_size=5), st.booleans())
@settings(deadline=None)
def test_any_way_to_cut_a_stream_gives_the_same_messages(values: list[bytes], sizes: list[int], crlf: bool) -> None:
    end = b"\r\n" if crlf else b"\n"
    stream = b"".join(value + end for value in values)
    assert frame(cut(stream, sizes)) == (values, False)


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


@given(st.binary(max_size=200), st.lists(st.integers(1, 20), min_size=1, max_size=4))
@settings(deadline=None)
def test_any_bytes_are_lines(data: bytes, sizes: list[int]) -> None:
    framer = LineFramer(max_size=50)
    for piece in cut(data, sizes):
        for message in framer.feed(piece):
            assert isinstance(message, Oversize) or b"\n" not in message
    framer.finish()


def slowly_framed(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    """What `LineFramer` gives, byte by byte and bracket by bracket; and what is left."""
    messages, held = [], b""
    for piece in pieces:
        held += piece
        *lines, held = held.split(b"\n")
        messages += [line for line in lines if line.strip()]
        if held.strip()[:1] in (b"[", b"{") and held.strip()[-1:] in (b"]", b"}") and not slow_depth(held):
            messages.append(held)
            held = b""
    return [message.strip() for message in messages], held.strip()


def slow_depth(text: bytes) -> int:
    """Brackets that are open at the end of the text, and quotes."""
    depth, in_string, escaped = 0, False, False
    for byte in text:
        if escaped:
            escaped = False
        elif in_string:
            escaped = byte == ord("\\")
            in_string = byte != ord('"')
        elif byte == ord('"'):
            in_string = True
        else:
            depth += (byte in b"[{") - (byte in b"]}")
    return depth + in_string


def single_values(messages: list[bytes]) -> list[bytes]:
    """What a session makes of messages: those that are not JSON are taken apart."""
    messages = list(messages)
    found = []
    while messages:
        message = messages.pop(0)
        values = [] if is_json(message) else envelope.split_values(message)
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
@settings(deadline=None, max_examples=example_count(400))
def test_values_of_any_kind_behind_each_other_are_each_a_message(
    parts: list[tuple[bytes, bytes]], sizes: list[int]
) -> None:
    stream = b"".join(value + blanks for value, blanks in parts)
    pieces = cut(stream, sizes)
    framer = LineFramer(max_size=10_000)
    messages = [bytes(message).strip() for piece in pieces for message in framer.feed(piece)]
    slow, rest = slowly_framed(pieces)
    assert (single_values(messages), b"") == (single_values(slow), rest)
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
@settings(deadline=None, max_examples=example_count(400))
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
    text = b'{"a":"' + b"}{" * 500_000 + b'"}'
    assert json_scan.split_values(text) == ([], text)
    few = b'{"a":"' + b"}{" * 5000 + b'"}[]'
    assert [len(value) for value in envelope.split_values(few)] == [len(few) - 2, 2]


def test_small_values_without_end_are_given_as_they_come() -> None:
    """Where no piece ends with a value, what is held does not grow."""
    value = b'{"jsonrpc":"2.0","method":"note","params":["}{",[1]]}'
    pieces = cut(value * 4_000, [65_521])
    framer = LineFramer(max_size=10_000_000)
    count = 0
    for piece in pieces[:-1]:
        count += len(single_values(list(map(bytes, framer.feed(piece)))))
    assert count >= 2_500


@given(st.lists(st.sampled_from([b"[", b"]", b"{", b"}", b'"', b"\\", b'\\"', b"a", b'"a"']), max_size=30), cuts)
def test_brackets_are_counted_in_any_pieces(tokens: list[bytes], sizes: list[int]) -> None:
    text = b"".join(tokens)
    balance = json_scan.Balance()
    for piece in cut(text, sizes):
        balance.add(piece)
    whole = json_scan.Balance()
    whole.add(text)
    assert (balance.depth, balance.in_string) == (whole.depth, whole.in_string)


@given(values, values, st.integers(1, 30))
def test_where_a_value_closes_is_never_denied(first: bytes, second: bytes, size: int) -> None:
    for text in (first, first + second, first + b" \t" + second):
        assert json_scan.may_end_value(text)
        assert json_scan.may_end_value(text[-size:])
