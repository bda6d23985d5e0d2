"""Framing: lines, values without a line end, and messages that are too long."""

from __future__ import annotations

import itertools
import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream.wire import envelope, json_scan
from rpcstream.wire.framing import LineFramer
from rpcstream.wire.messages import HEAD_SIZE, Oversize

from ..internals import held_pieces, held_size
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


def test_last_line_without_its_end_counts_when_the_stream_ends() -> None:
    assert frame([b'{"a":1}\n"x']) == ([b'{"a":1}', b'"x'], False)


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


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_value_without_a_delimiter_is_taken_when_it_is_complete(size: int) -> None:
    framer = LineFramer(max_size=1000)
    value = b'{"a":["}",{"b":"\\"]"},"\\\\"],"c":"\\\\\\"{"}'
    taken = [message for piece in cut(value, [size]) for message in framer.feed(piece)]
    assert taken == [value]
    assert not framer.partial


def test_line_end_after_such_a_value_belongs_to_it() -> None:
    framer = LineFramer(max_size=1000)
    assert framer.feed(b'{"a":1}') == [b'{"a":1}']
    assert framer.feed(b"\r") == []
    assert framer.feed(b"\n") == []
    assert not framer.ended
    assert framer.feed(b"[2]\n") == [b"[2]"]
    assert framer.feed(b"\n") == []
    assert framer.ended


def test_a_value_and_the_line_end_of_the_one_before_in_one_piece() -> None:
    framer = LineFramer(max_size=1000)
    assert framer.feed(b"[1]") == [b"[1]"]
    assert framer.feed(b"\n[2]\n\n") == [b"[2]"]
    assert framer.ended


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each look for the end of a value."""
    sizes: list[int] = []
    add = json_scan.Balance.add

    def counting(self: json_scan.Balance, piece: bytes) -> None:
        sizes.append(len(piece))
        add(self, piece)

    monkeypatch.setattr(json_scan.Balance, "add", counting)
    return sizes


def test_a_long_message_in_pieces_is_looked_at_once(looked_at: list[int]) -> None:
    """Pieces that end in a bracket cost no more than one look at each byte."""
    message = b"[" + b"[1]," * 5000 + b"[1]]"
    assert frame([*cut(message, [4]), b"\n"], max_size=100_000) == ([message], False)
    assert 0 < sum(looked_at) <= len(message)


@pytest.mark.parametrize("inner", [b'{"a":"}]","b":[1]}', b"[1,2]", b'["\\"]"]'])
def test_pieces_of_a_long_message_that_end_in_a_bracket_inside_it_are_not_looked_through(
    inner: bytes, looked_at: list[int]
) -> None:
    message = b'{"method":"m","params":[' + b",".join([inner] * 30_000) + b'],"id":1}'
    begin, size = message.index(inner), 1000 * (len(inner) + 1)
    # Each of them ends right behind an inner value.
    pieces = [message[: begin - 1], *cut(message[begin - 1 : -len('],"id":1}')], [size]), b'],"id":1}']
    assert all(piece[-1] in b"]}" for piece in pieces[1:])
    assert frame([*pieces, b"\n"], max_size=1_000_000) == ([message], False)
    assert len(looked_at) == 1  # where it ends


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_a_message_over_the_limit_is_reported_once_and_skipped(size: int) -> None:
    stream = b"[0]\n" + b"[" + b"1," * 300 + b"1]\n[2]\n"
    messages, ended = frame(cut(stream, [size]), max_size=100)
    assert [message for message in messages if isinstance(message, bytes)] == [b"[0]", b"[2]"]
    (oversize,) = [message for message in messages if isinstance(message, Oversize)]
    assert messages.index(oversize) == 1
    assert 100 < oversize.size <= 603
    assert stream[4:].startswith(oversize.head)
    assert len(oversize.head) <= HEAD_SIZE
    assert not ended


def test_a_message_of_exactly_the_limit_is_taken() -> None:
    message = b"[" + b"1" * 98 + b"]"
    for size in (1, 50, 100, 101, 200):
        assert frame(cut(message + b"\n", [size]), max_size=100)[0] == [message]


def test_an_endless_line_is_reported_before_it_ends_and_not_kept() -> None:
    framer = LineFramer(max_size=1000)
    reported = [message for _ in range(1000) for message in framer.feed(b"x" * 100)]
    assert len(reported) == 1
    assert isinstance(reported[0], Oversize)
    assert framer.partial
    assert held_size(framer) < 100
    assert framer.finish() == []


@pytest.mark.parametrize("delimiter", [b"\r\n\r\n", b"\0", b"END", b"aab"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_other_delimiters(delimiter: bytes, size: int) -> None:
    stream = delimiter.join([b"[1,\n2]", b"a", b"x" * 50, b"[3]", b""])
    messages, ended = frame(cut(stream, [size]), delimiter=delimiter, max_size=20)
    assert messages[:2] == [b"[1,\n2]", b"a"]
    assert isinstance(messages[2], Oversize)
    assert messages[3:] == [b"[3]"]
    assert not ended


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


@given(
    st.lists(st.sampled_from([1, 5, 511, 512, 513, 3000, 20_000]), max_size=12),
    st.lists(st.sampled_from([97, 512, 5000, 64_000]), min_size=1, max_size=4),
    st.sampled_from([b"\n", b"\r\n", b"--"]),
)
@settings(deadline=None)
def test_long_and_short_lines_may_come_together(lengths: list[int], sizes: list[int], delimiter: bytes) -> None:
    lines = [b"[" + b"x" * length + b"}" for length in lengths]
    pieces = cut(b"".join(line + delimiter for line in lines), sizes)
    assert frame(pieces, delimiter=delimiter, max_size=50_000) == (lines, False)


def test_a_message_that_comes_byte_by_byte_is_not_kept_as_objects() -> None:
    framer = LineFramer(max_size=200_000)
    for _ in range(100_000):
        assert framer.feed(b"x") == []
    assert held_pieces(framer) < 10
    assert framer.feed(b"y\nrest") == [b"x" * 100_000 + b"y"]


@given(st.binary(max_size=200), st.lists(st.integers(1, 20), min_size=1, max_size=4))
@settings(deadline=None)
def test_any_bytes_are_lines_and_nothing_is_kept_twice(data: bytes, sizes: list[int]) -> None:
    framer = LineFramer(max_size=50)
    for piece in cut(data, sizes):
        for message in framer.feed(piece):
            assert isinstance(message, Oversize) or b"\n" not in message
        assert held_size(framer) <= 50 + 20
    framer.finish()


# -- values of any kind behind each other, with line ends, blanks or nothing between ----------------------------------


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


@pytest.mark.parametrize(
    "stream", [b'[1]{"a":2}', b'{"a":[]} [1]', b'[1]{"a":"]{"}[3]', b'{"a":1}\n[2]{"b":3}[4]\n[5]']
)
def test_such_values_may_be_cut_anywhere(stream: bytes) -> None:
    expected = single_values([stream.replace(b"\n", b" ")])
    assert len(expected) > 1
    for first in range(1, len(stream)):
        for second in range(first, len(stream)):
            pieces = [stream[:first], stream[first:second], stream[second:]]
            framer = LineFramer(max_size=1000)
            messages = [bytes(message) for piece in pieces if piece for message in framer.feed(piece)]
            assert single_values(messages) == expected
            assert not framer.partial


LARGE = b'{"large":"' + b"}{ x" * (json_scan.VALUES_MAX // 16) * 32 + b"0123456789abcdef" * 2**16 + b'"}'


@pytest.mark.parametrize("off", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("also", [0, 5000, 600_000])
def test_a_large_value_among_small_ones_is_a_message_wherever_they_are_cut(off: int, also: int) -> None:
    """Longer than what is taken apart, so nothing may be held together with it."""
    assert len(LARGE) > envelope.MAX_LOOKED_THROUGH
    small = [b'{"a":1}', b"[2]", b'{"b":"}{"}']
    stream = b"".join([*small, LARGE, *small])
    first, last = sum(map(len, small)) + off, len(stream) - sum(map(len, small)) + off
    cuts = sorted({first, last, first + also, len(stream)} | set(range(first, last, 256 * 1024)))
    framer = LineFramer(max_size=10_000_000)
    messages: list[bytes] = []
    for start, end in itertools.pairwise([0, *cuts]):
        messages += map(bytes, framer.feed(stream[start:end]))
    assert single_values(messages) == [*small, LARGE, *small]
    assert not framer.partial


def test_small_values_without_end_are_given_as_they_come(looked_at: list[int]) -> None:
    """Where no piece ends with a value, what is held does not grow."""
    value = b'{"jsonrpc":"2.0","method":"note","params":["}{",[1]]}'
    pieces = cut(value * 40_000, [65_521])
    framer = LineFramer(max_size=10_000_000)
    count = 0
    for piece in pieces[:-1]:
        count += len(single_values(list(map(bytes, framer.feed(piece)))))
        assert held_size(framer) < len(value)
    assert count >= 39_000
    assert sum(looked_at) < 4 * len(value) * 40_000


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


def test_blanks_are_no_message_and_are_not_kept() -> None:
    framer = LineFramer(max_size=1000)
    assert framer.feed(b"[1]") == [b"[1]"]
    for _ in range(100):
        assert framer.feed(b" \t\r" * 100) == []
        assert not framer.partial
        assert not held_size(framer)
    assert framer.feed(b"[2]\n") == [b"[2]"]


def test_many_values_are_taken_in_shares() -> None:
    """So that taking a message apart takes no longer than a turn; and what is left comes as a whole."""
    text = b"[1]{}" * 10_000
    shares = 0
    rest, found = text, []
    while values := envelope.split_values(rest):
        assert len(values) <= json_scan.VALUES_MAX + 1
        found += values[:-1]
        rest = values[-1]
        shares += 1
    assert b"".join(found) + rest == text
    assert shares == 5


def test_brackets_in_strings_cannot_keep_the_search_busy() -> None:
    text = b'{"a":"' + b"}{" * 500_000 + b'"}'
    assert json_scan.split_values(text) == ([], text)
    few = b'{"a":"' + b"}{" * 5000 + b'"}[]'
    assert [len(value) for value in envelope.split_values(few)] == [len(few) - 2, 2]
