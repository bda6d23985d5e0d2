"""Every example of the JSON-RPC 2.0 specification, and random messages and bytes, however they are cut."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import Limits, Server

from ..kit import TRANSPORTS, RawPeer, UsualServer, raw_peers, reply
from ..kit.example_count import example_count

# -- the specification, section 7 --------------------------------------------------------------------------------------


def error(code: int, message: str, id: Any = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "error": {"code": code, "message": message}, "id": id}


PARSE_ERROR = error(-32700, "Parse error")
INVALID = error(-32600, "Invalid Request")

#: What is sent, and the reply; None where there must be none.
EXAMPLES: list[tuple[str, Any]] = [
    ('{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}', reply(1, 19)),
    ('{"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}', reply(2, -19)),
    (
        '{"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42}, "id": 3}',
        reply(3, 19),
    ),
    (
        '{"jsonrpc": "2.0", "method": "subtract", "params": {"minuend": 42, "subtrahend": 23}, "id": 4}',
        reply(4, 19),
    ),
    ('{"jsonrpc": "2.0", "method": "update", "params": [1,2,3,4,5]}', None),
    ('{"jsonrpc": "2.0", "method": "foobar"}', None),
    ('{"jsonrpc": "2.0", "method": "foobar", "id": "1"}', error(-32601, "Method not found", "1")),
    ('{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]', PARSE_ERROR),
    ('{"jsonrpc": "2.0", "method": 1, "params": "bar"}', INVALID),
    (
        '[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},{"jsonrpc": "2.0", "method"]',
        PARSE_ERROR,
    ),
    ("[]", INVALID),
    ("[1]", [INVALID]),
    ("[1,2,3]", [INVALID, INVALID, INVALID]),
    (
        '[{"jsonrpc": "2.0", "method": "sum", "params": [1,2,4], "id": "1"},'
        '{"jsonrpc": "2.0", "method": "notify_hello", "params": [7]},'
        '{"jsonrpc": "2.0", "method": "subtract", "params": [42,23], "id": "2"},'
        '{"foo": "boo"},'
        '{"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},'
        '{"jsonrpc": "2.0", "method": "get_data", "id": "9"}]',
        [
            *(reply("1", 7), reply("2", 19), INVALID),
            *(error(-32601, "Method not found", "5"), reply("9", ["hello", 5])),
        ],
    ),
    (
        '[{"jsonrpc": "2.0", "method": "notify_sum", "params": [1,2,4]},'
        '{"jsonrpc": "2.0", "method": "notify_hello", "params": [7]}]',
        None,
    ),
]


def plain(reply: Any) -> Any:
    """The reply without the `data` of errors, which the specification leaves to the server."""
    if isinstance(reply, list):
        return [plain(member) for member in reply]
    reply.get("error", {}).pop("data", None)
    return reply


def make_server() -> Server:
    server = Server()
    server.add(lambda minuend, subtrahend: minuend - subtrahend, name="subtract")
    for name in ("update", "notify_hello", "notify_sum"):
        server.add(lambda *values: None, name=name)
    server.add(lambda: ["hello", 5], name="get_data")

    @server(name="sum")
    async def sum_later(*values: int) -> int:
        await asyncio.sleep(0)
        return sum(values)

    return server


async def test_each_example_whole_byte_by_byte_and_all_in_one_segment() -> None:
    expected = [each for _, each in EXAMPLES if each is not None]
    async with raw_peers(make_server()) as connect:
        for sent, answer in EXAMPLES:
            for size in (1, 10_000):
                raw, line = await connect(), sent.encode() + b"\n"
                for at in range(0, len(line), size):
                    raw.write(line[at : at + size])
                    await asyncio.sleep(0)
                raw.end()
                assert [plain(each) for each in await raw.rest()] == ([] if answer is None else [answer]), sent
        for end in (b"\n", b"\r\n"):
            raw = await connect()
            raw.write(b"".join(sent.encode() + end for sent, _ in EXAMPLES) + end)
            assert in_order([plain(each) for each in await raw.rest()]) == in_order(expected)


def in_order(replies: list[Any]) -> list[bytes]:
    return sorted(json.dumps(each, sort_keys=True).encode() for each in replies)


# -- at random ------------------------------------------------------------------------------------------

SOME = settings(deadline=None, max_examples=example_count(100))


@functools.cache
def the_server() -> UsualServer:
    """One for all examples: to make it takes longer than to talk to it."""
    server = UsualServer(limits=Limits(max_message_size=5000, max_batch=20, max_calls=5), drain_timeout=5)
    server.release()
    return server


def converse(pieces: list[bytes]) -> list[Any]:
    """Replies to the pieces; a call after them (on a new connection, if that has ended) has its right answer."""

    async def main() -> list[Any]:
        async with TRANSPORTS["memory"].serving(the_server(), None) as endpoint:
            peer: RawPeer = await endpoint.join(RawPeer)
            for piece in pieces:
                peer.write(piece)
                await asyncio.sleep(0)
            peer.write(b"\n" if pieces and not pieces[-1].endswith(b"\n") else b"")
            before = await heard(peer)
            if peer.is_over:
                peer = await endpoint.join(RawPeer)
            peer.send(b'{"jsonrpc":"2.0","method":"add","params":[1,2],"id":"probe"}')
            assert await heard(peer) == [{"jsonrpc": "2.0", "id": "probe", "result": 3}]
            peer.transport.write_eof()
            await peer.rest()
            return before

    return asyncio.run(main())


async def heard(peer: RawPeer) -> list[Any]:
    """All that comes, until nothing has come for some turns of the loop."""
    had = -1
    while had < len(peer.inbox):
        had = len(peer.inbox)
        for _ in range(30):
            await asyncio.sleep(0)
    return [orjson.loads(peer.inbox.popleft()) for _ in range(had)]


def assert_valid(reply: Any) -> None:
    if isinstance(reply, list):
        assert reply
        for member in reply:
            assert_valid(member)
        return
    assert (reply["jsonrpc"], "id" in reply) == ("2.0", True)
    assert ("result" in reply) != ("error" in reply)
    if "error" in reply:
        assert (type(reply["error"]["code"]), type(reply["error"]["message"])) == (int, str)


fragments = st.sampled_from(
    [
        *(bytes([byte]) for byte in b'{}[]"\\\n\r ,:1-e\xff\x00'),
        *(b"null", b'"jsonrpc":"2.0"', b'"method":"add"', b'"params":[1]', b'"id":1', b'"$type":"ndarray"'),
        *(b'{"jsonrpc":"2.0","method":"wait","id":1}', b'{"jsonrpc":"2.0","method":"note"}'),
    ]
)
garbage = st.binary(max_size=300) | st.lists(fragments, max_size=40).map(b"".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
odd_requests = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "1.0", 2.0, None]),
        "method": st.sampled_from(["add", "echo", "wait", "note", "missing", 1, None]),
        **dict.fromkeys(("params", "id", "timeout", "extra"), json_values),
    },
)
odd_messages = odd_requests | st.lists(odd_requests | json_values, max_size=4) | json_values
lines = odd_messages.map(lambda message: json.dumps(message).encode() + b"\n")


@given(st.lists(garbage | lines, max_size=5))
@SOME
def test_anything_gets_valid_errors_or_nothing_and_the_next_call_works(pieces: list[bytes]) -> None:
    for each in converse(pieces):
        assert_valid(each)


valid_requests = st.one_of(
    st.integers().map(lambda n: {"jsonrpc": "2.0", "method": "add", "params": [n, 2], "id": 1}),
    st.integers().map(lambda n: {"jsonrpc": "2.0", "method": "wait", "params": {"token": n}, "id": "x"}),
    json_values.map(lambda value: {"jsonrpc": "2.0", "method": "echo", "params": [value], "id": None}),
    st.just({"jsonrpc": "2.0", "method": "note", "params": [1]}),
    st.just({"jsonrpc": "2.0", "method": "missing", "id": 5}),
)
valid_messages = st.one_of(valid_requests, st.lists(valid_requests, min_size=1, max_size=3))


@given(
    st.lists(valid_messages, max_size=5),
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.sampled_from([b"\n", b"\r\n", b""]),
)
@SOME
def test_any_way_to_cut_a_valid_stream_gives_the_same_replies(
    messages: list[Any], sizes: list[int], delimiter: bytes
) -> None:
    stream = b"".join(json.dumps(message).encode() + delimiter for message in messages)
    pieces, at = [], 0
    while at < len(stream):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(stream[at : at + size])
        at += size
    whole = converse([stream] if stream else [])
    assert in_order(converse(pieces)) == in_order(whole)
    wanted = sum(1 for message in messages if isinstance(message, list) or "id" in message)
    silent = sum(1 for message in messages if isinstance(message, list) and not any("id" in one for one in message))
    assert len(whole) == wanted - silent
