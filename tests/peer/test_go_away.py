"""The last word of an end that leaves: which request it has read last, and what becomes of those that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from rpcstream import Limits, Server
from rpcstream.peer.pending import PendingCall, PendingCalls
from rpcstream.peer.session import Session

from ..internals import new_session
from .test_session import Channel


def call(call_id: Any, method: str = "echo", **members: Any) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": call_id, "method": method, "params": [1], **members})


NOTE = b'{"jsonrpc":"2.0","method":"echo","params":[1]}'
CREDIT = b'{"jsonrpc":"2.0","method":"$/credit","params":{"id":1,"n":1}}'
REPLY = b'{"jsonrpc":"2.0","id":77,"result":1}'
LONG = "x" * 20_000


def batch(*members: bytes) -> bytes:
    return b"[" + b",".join(members) + b"]"


@asynccontextmanager
async def served(**limits: Any) -> AsyncIterator[tuple[Session, Channel]]:
    server = Server(limits=Limits(**limits))

    @server
    def echo(value: Any) -> Any:
        return value

    @server
    async def wait(value: Any) -> None:
        await asyncio.Event().wait()

    async with server.in_memory():
        session = new_session(server)
        channel = Channel()
        session.connected(channel, splits_values=True)
        yield session, channel
        session.running.cancel_all()
        await asyncio.sleep(0)


def farewells(channel: Channel) -> list[Any]:
    messages = [orjson.loads(bytes(message)) for message in channel.sent]
    return [each["params"] for each in messages if isinstance(each, dict) and each.get("method") == "$/goAway"]


#: Reads, and the `last` of the word behind them; `...`: the member is left out.
READS: list[tuple[str, list[list[bytes]], Any]] = [
    ("nothing", [], None),
    ("only what asks for no reply", [[NOTE, CREDIT, REPLY], [batch(NOTE, NOTE)], [batch(REPLY)]], None),
    ("one", [[call(1)]], 1),
    ("several reads", [[call(1)], [call(2), call(3)], [call(4)]], 4),
    ("any order", [[call(9), call(3)]], 3),
    ("behind it notes and replies", [[call(5), NOTE, CREDIT], [REPLY], [batch(NOTE)]], 5),
    ("behind it, in the same read, what has no id", [[call(5), batch(NOTE, NOTE)], [call(6), b"[5]", b"5"]], 6),
    ("behind it, in the same read, a batch without replies", [[call(4)], [call(5), batch(NOTE)]], 5),
    ("behind it a batch of notes and replies", [[call(5)], [batch(REPLY, NOTE)]], 5),
    ("behind it an object that is no message", [[call(5), b"{}"]], 5),
    ("a text", [[call("mine")]], "mine"),
    ("a batch", [[call(1)], [batch(call(2), NOTE, call(3), NOTE)]], 3),
    ("a long one", [[call(1), call(2, text=LONG)]], 2),
    ("an unknown method", [[call(8, "unknown")]], 8),
    ("an invalid request", [[call(1)], [b'{"id":6,"method":"echo"}']], 6),
    ("a null id", [[call(1)], [call(None)]], ...),
    ("a fraction", [[call(1)], [call(1.5)]], ...),
    ("over 64 bits", [[call(1)], [b'{"jsonrpc":"2.0","id":%d,"method":"echo"}' % 10**30]], ...),
    ("a text that is too long", [[call(1)], [call("y" * 1000)]], ...),
    ("no id at all", [[call(1)], [b'{"jsonrpc":"2.0","method":"echo"}']], 1),
    ("nonsense", [[call(1)], [b"[5]"], [b"5"], [b"nonsense"]], 1),
]


@pytest.mark.parametrize(("reads", "last"), [case[1:] for case in READS], ids=[case[0] for case in READS])
async def test_the_last_request_that_was_read_is_named(reads: list[list[bytes]], last: Any) -> None:
    async with served() as (session, channel):
        for messages in reads:
            session.receive(list(messages))
        session.go_away("it stops")
        (word,) = farewells(channel)
        assert word == {"reason": "it stops"} | ({} if last is ... else {"last": last})
        session.go_away("again")
        session.receive([call("late")])
        assert len(farewells(channel)) == 1
        assert not any(b'"id":"late"' in bytes(message) for message in channel.sent)


@pytest.mark.parametrize(("reads", "last"), [case[1:] for case in READS[2:]], ids=[case[0] for case in READS[2:]])
async def test_requests_that_wait_in_line_were_read(reads: list[list[bytes]], last: Any) -> None:
    async with served(max_calls=1) as (session, channel):
        session.receive([call("at work", "wait")])
        for messages in reads:
            session.receive(list(messages))
        session.go_away("it stops")
        (word,) = farewells(channel)
        # What cannot be read yet may be anything.
        assert word.get("last", ...) in (last, ...)


async def test_what_asks_for_no_reply_is_not_the_last_request_that_waits() -> None:
    async with served(max_calls=1) as (session, channel):
        session.receive([call("at work", "wait"), call(2), NOTE, batch(NOTE, NOTE)])
        session.go_away("it stops")
        assert farewells(channel) == [{"last": 2, "reason": "it stops"}]


async def test_requests_that_wait_when_the_time_is_up_were_not_begun() -> None:
    async with served(max_calls=1) as (session, channel):
        session.receive([call(1, "wait"), call(2), NOTE, batch(call(3), NOTE, call(4)), b"nonsense", call("five")])
        session.go_away("it stops")
        session.receive([call("too late")])
        assert session.refuse_waiting(float("inf"))
        messages = [orjson.loads(bytes(message)) for message in channel.sent]
        replies = [each for m in messages for each in (m if isinstance(m, list) else [m]) if "method" not in each]
        codes = {each["id"]: each["error"]["code"] for each in replies}
        assert codes == {2: -32800, 3: -32800, 4: -32800, None: -32700, "five": -32800}
        assert all(each["error"]["data"].get("executed") is False for each in replies if each["id"] is not None)
        assert not session.refuse_waiting(float("inf"))


async def test_refusing_has_an_end() -> None:
    async with served(max_calls=1) as (session, _):
        session.receive([call(1, "wait"), call(2)])
        assert not session.refuse_waiting(0.0)


# -- the calls that wait, at the other end ----------------------------------------------------------------------------


class Waiting(PendingCall):
    def __init__(self, method: str) -> None:
        self.method = method

    def answer(self, reply: dict[str, Any], line: bytes | bytearray) -> None: ...


def entered(*ids: Any) -> PendingCalls:
    """Calls with these ids, in this order; None: with an id of the table's own."""
    pending = PendingCalls()
    for each in ids:
        if each is None:
            pending.add(Waiting("own"))
        else:
            pending.add_as(each, Waiting(str(each)))
    return pending


@pytest.mark.parametrize(
    ("ids", "last", "read"),
    [
        ([None] * 4, 2, [1, 2]),
        ([None] * 4, 4, [1, 2, 3, 4]),
        ([None] * 4, None, []),
        ([None] * 4, 5, [1, 2, 3, 4]),
        ([None] * 4, 0, [1, 2, 3, 4]),
        ([None] * 4, "2", [1, 2, 3, 4]),
        ([None] * 4, 2.0, [1, 2, 3, 4]),
        ([None] * 4, True, [1, 2, 3, 4]),
        (["a", None, "b"], "a", ["a"]),
        ([5, 3, 9], 3, [5, 3]),
        ([5, 3, 9], 4, [5, 3, 9]),
        ([2**60, None], 2**60, [2**60]),
        ([2**60, None], 3, [2**60, 1]),
        ([], 3, []),
    ],
)
def test_which_calls_were_read(ids: list[Any], last: Any, read: list[Any]) -> None:
    pending = entered(*ids)
    before = len(pending)
    unread = pending.take_unread(last)
    assert [call_id for call_id, _ in pending.items()] == read
    assert len(unread) == before - len(read)


def test_a_call_that_was_answered_is_known_by_its_id() -> None:
    pending = entered(*[None] * 4)
    pending.settle({"id": 2, "result": 1}, b"")
    pending.take_unread(2)
    assert [call_id for call_id, _ in pending.items()] == [1]


def test_nothing_is_known_where_calls_are_not_sent_in_order() -> None:
    pending = entered(*[None] * 4)
    pending.set_out_of_order()
    assert pending.take_unread(2) == []


async def test_until_a_session_is_idle_it_may_take_requests() -> None:
    async with served() as (session, channel):
        session.receive([call(1, "wait")])
        session.close_when_idle()
        session.receive([call(2)])  # belongs to what is under way, perhaps
        assert [orjson.loads(bytes(message))["id"] for message in channel.sent] == [2]
        assert not channel.ended
        session.drain()
        session.receive([call(3), REPLY])
        assert len(channel.sent) == 1
        session.running.cancel_all()
        while not channel.ended:
            await asyncio.sleep(0)
        assert channel.ended == ["closed"]
        assert [orjson.loads(bytes(message))["id"] for message in channel.sent] == [2, 1]
