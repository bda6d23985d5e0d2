"""Random bytes to a server, however they are cut: a JSON-RPC error or nothing, and the next call works."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import Limits, Server

from ..kit import TRANSPORTS, RawPeer
from ..kit.example_count import example_count


def make_server() -> Server:
    server = Server(limits=Limits(max_message_size=5000, max_batch=20, max_calls=5), drain_timeout=5)

    @server
    def add(a: int, b: int = 2) -> int:
        return a + b

    @server
    def echo(value: Any) -> Any:
        return value

    @server
    async def later(value: Any = None) -> Any:
        await asyncio.sleep(0)
        return value

    @server
    def nothing() -> None: ...

    return server


async def converse(pieces: list[bytes]) -> tuple[list[Any], list[Any]]:
    """Replies to the pieces, and to a call on the same connection after them (or on a new one, if that has ended)."""
    async with TRANSPORTS["memory"].serving(make_server(), None) as endpoint:
        peer: RawPeer = await endpoint.join(RawPeer)
        for piece in pieces:
            peer.write(piece)
            await asyncio.sleep(0)
        peer.write(b"\n" if pieces and not pieces[-1].endswith(b"\n") else b"")
        before = await heard(peer)
        if peer.is_over:
            peer = await endpoint.join(RawPeer)
        peer.send(b'{"jsonrpc":"2.0","method":"add","params":[1],"id":"probe"}')
        after = await heard(peer)
        peer.transport.write_eof()
        await peer.rest()
        return before, after


async def heard(peer: RawPeer) -> list[Any]:
    """All that comes, until nothing has come for some turns of the loop."""
    had = -1
    while had < len(peer.inbox):
        had = len(peer.inbox)
        for _ in range(30):
            await asyncio.sleep(0)
    return [orjson.loads(peer.inbox.popleft()) for _ in range(had)]


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def assert_valid(reply: Any) -> None:
    if isinstance(reply, list):
        assert reply
        for member in reply:
            assert_valid(member)
        return
    assert reply["jsonrpc"] == "2.0"
    assert "id" in reply
    assert ("result" in reply) != ("error" in reply)
    if "error" in reply:
        assert type(reply["error"]["code"]) is int
        assert type(reply["error"]["message"]) is str


PROBE = [{"jsonrpc": "2.0", "id": "probe", "result": 3}]

fragments = st.sampled_from(
    [
        *(bytes([byte]) for byte in b'{}[]"\\\n\r ,:1-e\xff\x00'),
        b"null",
        b'"jsonrpc":"2.0"',
        b'"method":"add"',
        b'"params":[1]',
        b'"id":1',
        b'"$type":"ndarray"',
        b'{"jsonrpc":"2.0","method":"later","id":1}',
        b'{"jsonrpc":"2.0","method":"nothing"}',
    ]
)
garbage = st.one_of(st.binary(max_size=300), st.lists(fragments, max_size=40).map(b"".join))


@given(st.lists(garbage, max_size=5))
@settings(deadline=None, max_examples=example_count(150))
def test_any_bytes_get_a_valid_error_or_nothing_and_the_next_call_works(pieces: list[bytes]) -> None:
    before, after = run(converse(pieces))
    for reply in before:
        assert_valid(reply)
    assert after == PROBE


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
odd_requests = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "1.0", 2.0, None]),
        "method": st.sampled_from(["add", "echo", "later", "nothing", "missing", 1, None]),
        "params": json_values,
        "id": json_values,
        "timeout": json_values,
        "extra": json_values,
    },
)


@given(st.lists(odd_requests | st.lists(odd_requests | json_values, max_size=4) | json_values, max_size=5))
@settings(deadline=None, max_examples=example_count(150))
def test_any_json_gets_valid_replies_and_the_next_call_works(messages: list[Any]) -> None:
    before, after = run(converse([json.dumps(message).encode() + b"\n" for message in messages]))
    for reply in before:
        assert_valid(reply)
    assert after == PROBE


valid_requests = st.one_of(
    st.integers().map(lambda n: {"jsonrpc": "2.0", "method": "add", "params": [n], "id": 1}),
    st.integers().map(lambda n: {"jsonrpc": "2.0", "method": "later", "params": {"value": n}, "id": "x"}),
    json_values.map(lambda value: {"jsonrpc": "2.0", "method": "echo", "params": [value], "id": None}),
    st.just({"jsonrpc": "2.0", "method": "nothing"}),
    st.just({"jsonrpc": "2.0", "method": "missing", "id": 5}),
)
valid_messages = st.one_of(valid_requests, st.lists(valid_requests, min_size=1, max_size=3))


def in_order(replies: list[Any]) -> list[bytes]:
    return sorted(json.dumps(reply, sort_keys=True).encode() for reply in replies)


@given(
    st.lists(valid_messages, max_size=5),
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.sampled_from([b"\n", b"\r\n", b""]),
)
@settings(deadline=None, max_examples=example_count(150))
def test_any_way_to_cut_a_valid_stream_gives_the_same_replies(
    messages: list[Any], sizes: list[int], delimiter: bytes
) -> None:
    stream = b"".join(json.dumps(message).encode() + delimiter for message in messages)
    pieces, at = [], 0
    while at < len(stream):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(stream[at : at + size])
        at += size
    whole, after_whole = run(converse([stream] if stream else []))
    cut, after_cut = run(converse(pieces))
    assert in_order(cut) == in_order(whole)
    assert after_cut == after_whole == PROBE
    wanted = sum(1 for message in messages if isinstance(message, list) or "id" in message)
    silent = sum(1 for message in messages if isinstance(message, list) and not any("id" in one for one in message))
    assert len(whole) == wanted - silent
