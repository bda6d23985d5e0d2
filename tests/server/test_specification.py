"""Every example of the JSON-RPC 2.0 specification (section 7), over a socket, however it is cut."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from rpcstream import Server

from ..kit import raw_peers

FOOBAR = {"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "1"}
PARSE_ERROR = {"jsonrpc": "2.0", "error": {"code": -32700, "message": "Parse error"}, "id": None}
INVALID = {"jsonrpc": "2.0", "error": {"code": -32600, "message": "Invalid Request"}, "id": None}

#: What is sent, and the reply; None where there must be none.
EXAMPLES: list[tuple[str, Any]] = [
    (
        '{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}',
        {"jsonrpc": "2.0", "result": 19, "id": 1},
    ),
    (
        '{"jsonrpc": "2.0", "method": "subtract", "params": [23, 42], "id": 2}',
        {"jsonrpc": "2.0", "result": -19, "id": 2},
    ),
    (
        '{"jsonrpc": "2.0", "method": "subtract", "params": {"subtrahend": 23, "minuend": 42}, "id": 3}',
        {"jsonrpc": "2.0", "result": 19, "id": 3},
    ),
    (
        '{"jsonrpc": "2.0", "method": "subtract", "params": {"minuend": 42, "subtrahend": 23}, "id": 4}',
        {"jsonrpc": "2.0", "result": 19, "id": 4},
    ),
    ('{"jsonrpc": "2.0", "method": "update", "params": [1,2,3,4,5]}', None),
    ('{"jsonrpc": "2.0", "method": "foobar"}', None),
    ('{"jsonrpc": "2.0", "method": "foobar", "id": "1"}', FOOBAR),
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
            {"jsonrpc": "2.0", "result": 7, "id": "1"},
            {"jsonrpc": "2.0", "result": 19, "id": "2"},
            INVALID,
            {"jsonrpc": "2.0", "error": {"code": -32601, "message": "Method not found"}, "id": "5"},
            {"jsonrpc": "2.0", "result": ["hello", 5], "id": "9"},
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


@pytest.fixture(params=["sync", "async"])
def server(request: pytest.FixtureRequest) -> Server:
    server = Server()
    notified: list[Any] = []
    functions = {
        "subtract": lambda minuend, subtrahend: minuend - subtrahend,
        "update": lambda *values: notified.append(values),
        "sum": lambda *values: sum(values),
        "notify_hello": lambda value: notified.append(value),
        "notify_sum": lambda *values: notified.append(values),
        "get_data": lambda: ["hello", 5],
    }
    for name, function in functions.items():
        if request.param == "sync":
            server.add(function, name=name)
        else:
            server.add(waiting(function), name=name)
    return server


def waiting(function: Any) -> Any:
    async def handler(*args: Any) -> Any:
        await asyncio.sleep(0)
        return function(*args)

    async def named(minuend: int, subtrahend: int) -> Any:
        await asyncio.sleep(0)
        return function(minuend, subtrahend)

    return named if function.__code__.co_varnames[:1] == ("minuend",) else handler


def in_order(replies: list[Any]) -> list[bytes]:
    return sorted(orjson.dumps(reply, option=orjson.OPT_SORT_KEYS) for reply in replies)


@pytest.mark.parametrize(("sent", "expected"), EXAMPLES)
@pytest.mark.parametrize("cut", ["whole", "byte by byte"])
async def test_example(server: Server, sent: str, expected: Any, cut: str) -> None:
    line = sent.encode() + b"\n"
    async with raw_peers(server) as connect:
        raw = await connect()
        for piece in [line] if cut == "whole" else [line[at : at + 1] for at in range(len(line))]:
            raw.write(piece)
            await asyncio.sleep(0)
        raw.end()
        replies = [plain(reply) for reply in await raw.rest()]
    assert replies == ([] if expected is None else [expected])


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
async def test_all_examples_in_one_segment(server: Server, end: bytes) -> None:
    async with raw_peers(server) as connect:
        raw = await connect()
        raw.write(b"".join(sent.encode() + end for sent, _ in EXAMPLES) + end)
        replies = [plain(reply) for reply in await raw.rest()]
    expected = [reply for _, reply in EXAMPLES if reply is not None]
    assert in_order(replies) == in_order(expected)
    if server.methods["sum"].inline:
        assert replies == expected
