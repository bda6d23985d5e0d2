"""Every example of the JSON-RPC 2.0 specification (section 7), over a socket, however it is cut."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from rpcstream import Server

from ..kit import raw_peers, reply


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
    return sorted(orjson.dumps(each, option=orjson.OPT_SORT_KEYS) for each in replies)
