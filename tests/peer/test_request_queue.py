"""The request queue: it is searched in slices, once, and the length of a slice makes no difference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import Context, Limits, Server
from rpcstream.codec import payloads
from rpcstream.peer import session as session_module
from rpcstream.peer.incoming import OverloadSorter
from rpcstream.peer.memory import MessageMemory
from rpcstream.peer.request_queue import EarlyMessage, RequestQueue
from rpcstream.peer.session import Session
from rpcstream.wire import envelope
from rpcstream.wire.buffers import Encoded

from ..internals import new_session, queue_counts, record_calls

LIMITS = Limits(max_calls=2, write_buffer=100_000)


class Channel:
    """Takes what a session says."""

    address = "here"
    reason: str | None = None

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.is_paused = False

    def send(self, messages: list[Encoded]) -> None:
        self.sent += [orjson.loads(bytes(message)) for message in messages]

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def close(self) -> None: ...

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)

    def probe(self) -> None: ...


class Talk:
    """One session of a server of its own."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.server = server = Server(limits=LIMITS)
        self.begun: list[Any] = []
        self.channel = Channel()

        @server
        async def wait(n: int) -> int:
            self.begun.append(f"async {n}")
            await self.go.wait()
            return n

        @server
        def plain(n: int) -> int:
            self.begun.append(n)
            return n

        @server
        async def ask(context: Context, n: int) -> Any:
            return await context.peer.call("tell", n)

        @server
        async def total(items: AsyncIterator[int]) -> int:
            return sum([item async for item in items])

    def open(self) -> Session:
        session = new_session(self.server)
        session.connected(self.channel, splits_values=True)
        return session

    async def turns(self, session: Session, count: int = 3) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def sorted(self, session: Session) -> None:
        """Wait until all messages that wait have been looked through."""
        async with asyncio.timeout(20):
            while session.queue.is_behind:
                await asyncio.sleep(0)

    async def idle(self, session: Session) -> None:
        async with asyncio.timeout(20):
            while session.queue or session.running or session.queue.is_behind:
                await asyncio.sleep(0)


def request(method: str, n: Any, call_id: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": call_id, "method": method, "params": [n]}


def word(name: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": f"$/{name}", "params": params}


IDS = st.integers(0, 12)
ONE = st.one_of(
    IDS.map(lambda n: request("plain", n, n)),
    IDS.map(lambda n: request("wait", n, n)),
    IDS.map(lambda n: word("cancelRequest", id=n)),
    IDS.map(lambda n: word("credit", id=n, n=1)),
    IDS.map(lambda n: word("end", stream=f"s{n % 2}")),
    st.just({"jsonrpc": "2.0", "id": 999, "result": "told"}),
    st.just(request("total", {"$type": "stream", "id": "s1"}, "total")),
)
MANY = st.one_of(
    ONE.map(orjson.dumps),
    ONE.map(orjson.dumps),
    st.lists(ONE, min_size=1, max_size=4).map(orjson.dumps),
    st.lists(ONE, min_size=2, max_size=3).map(lambda each: b"".join(map(orjson.dumps, each))),
    st.sampled_from([b"{", b"[]", b'"x"', b'{"jsonrpc":"2.0","method":"plain","params":[5]}']),
)


async def outcome(reads: list[list[bytes]], share: float) -> tuple[list[Any], list[Any]]:
    """What is sent, and which calls begin, when the session looks through waiting messages for this share of a turn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_module, "SORTING", share)
        talk = Talk()
        async with talk.server.in_memory():
            session = talk.open()
            session.receive([orjson.dumps(request("ask", 0, "ask")), orjson.dumps(request("wait", 100, "first"))])
            await talk.turns(session)
            for lines in reads:
                session.receive(list(lines))
                await talk.sorted(session)
                await talk.turns(session)
            session.receive([orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": "told"})])
            session.receive([orjson.dumps(word("end", stream="s1"))])
            talk.go.set()
            for _ in range(20):
                await talk.turns(session)
                session.receive([orjson.dumps(word("end", stream="s1"))])
            await talk.idle(session)
            assert queue_counts(session.queue) == (0, 0, 0, 0)
            assert not session.queue.early
            session.lost(ConnectionError)
            return talk.channel.sent, talk.begun


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(MANY, min_size=1, max_size=6), max_size=4))
def test_the_length_of_a_turn_makes_no_difference(reads: list[list[bytes]]) -> None:
    at_once = asyncio.run(outcome(reads, 1000.0))
    one_by_one = asyncio.run(outcome(reads, -1000.0))
    # Among themselves sync handlers keep their order, and so do async ones; how these mix is a matter of time. So is
    # whether a stream has ended before its handler asks for an item, or the next call names the same.
    # A batch is a task and its async members are others, which begin after a call that waited beside it.
    has_batch = any(line.startswith(b"[") for lines in reads for line in lines)
    for is_kind in (str, int):
        begun = [[n for n in began if type(n) is is_kind] for _, began in (at_once, one_by_one)]
        if is_kind is str and has_batch:
            begun = [sorted(began) for began in begun]
        assert begun[0] == begun[1]
    assert answers(one_by_one[0]) == answers(at_once[0])


def answers(sent: list[Any]) -> list[str]:
    """What was answered, in any order; the calls with a stream left out."""
    said = [repr(each) for each in sent if type(each) is list or "method" not in each]
    return sorted(each for each in said if "total" not in each)


async def test_each_message_that_waits_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_through = record_calls(monkeypatch, OverloadSorter, "_left_of")
    talk = Talk()
    async with talk.server.in_memory():
        session = talk.open()
        session.receive([orjson.dumps(request("wait", n, n)) for n in range(2)])
        await talk.turns(session)
        for n in range(2, 200):
            session.receive([orjson.dumps(request("wait", n, n))])
            if n % 10 == 0:  # whoever reads slowly
                session.blocked(True)
                await talk.turns(session)
                session.blocked(False)
            await talk.turns(session)
        seen = [line for _, line, _ in looked_through]
        assert len(seen) == len(set(seen)) == 198
        for n in range(100):  # each makes room for one
            session.receive([orjson.dumps(word("cancelRequest", id=n))])
            await talk.turns(session)
        assert len([line for _, line, _ in looked_through if b"cancelRequest" not in line]) <= 198
        talk.go.set()
        await talk.idle(session)
        session.lost(ConnectionError)


async def test_while_messages_were_not_looked_through_no_more_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "SORTING", -1000.0)
    talk = Talk()
    async with talk.server.in_memory():
        session = talk.open()
        session.receive([orjson.dumps(request("ask", n, n)) for n in range(2)])
        await talk.turns(session)
        session.receive([orjson.dumps(word("cancelRequest", id=100 + n)) for n in range(50)])
        assert session.queue.is_behind
        assert talk.channel.is_paused
        await talk.sorted(session)
        await talk.turns(session)
        assert not talk.channel.is_paused
        session.running.cancel_all()
        await talk.idle(session)
        session.lost(ConnectionError)


async def test_a_cancel_that_overtakes_means_only_what_had_come_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is looked at later than the call that came behind it."""
    monkeypatch.setattr(session_module, "SORTING", -1000.0)
    talk = Talk()
    async with talk.server.in_memory():
        session = talk.open()
        session.receive([orjson.dumps(request("wait", n, n)) for n in range(2)])
        await talk.turns(session)
        session.receive([orjson.dumps(each) for each in (request("plain", 7, 7), word("cancelRequest", id=7))])
        session.receive([orjson.dumps(request("plain", 8, 7))])
        await talk.sorted(session)
        talk.go.set()
        await talk.idle(session)
        sent = {(each["id"], each.get("result", -1)) for each in talk.channel.sent}
        assert sent == {(0, 0), (1, 1), (7, -1), (7, 8)}
        session.lost(ConnectionError)


async def test_long_strings_stay_in_what_is_left_of_a_batch() -> None:
    talk = Talk()

    @talk.server
    def text(value: str) -> int:
        return len(value)

    async with talk.server.in_memory():
        session = talk.open()
        session.receive([orjson.dumps(request("wait", n, n)) for n in range(2)])
        await talk.turns(session)
        batch = [request("text", "\0" * 30_000, 5), word("cancelRequest", id=0), request("text", "y" * 20_000, 6)]
        session.receive([orjson.dumps(batch)])
        talk.go.set()
        await talk.idle(session)
        (answers,) = [each for each in talk.channel.sent if isinstance(each, list)]
        assert [(each["id"], each["result"]) for each in answers] == [(5, 30_000), (6, 20_000)]
        session.lost(ConnectionError)


def test_words_that_were_heeded_are_not_taken_up_again() -> None:
    backlog = RequestQueue(LIMITS, MessageMemory(10**9, 1))
    backlog.put([b"1", b"2"], 0.0)
    found = backlog.next_unsorted()
    assert found is not None
    chunk, _ = found
    backlog.keep_early(chunk, EarlyMessage(">a", b"first"), is_over=False)
    backlog.keep_early(chunk, EarlyMessage(">a", b"second"), is_over=False)
    backlog.keep_early(chunk, EarlyMessage(">b", b"third"), is_over=False)
    assert backlog.take_early(">a") == [b"first", b"second"]
    assert backlog.take_early(">a") == []
    found = backlog.next_unsorted()
    assert found is not None
    backlog.keep(*found)
    assert backlog.next_unsorted() is None
    assert backlog.take() == ([b"third", b"2"], 0.0)
    assert not backlog
    assert not backlog.early
    assert queue_counts(backlog) == (0, 0, 0, 0)


# -- replies in one message --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_room", [True, False])
async def test_an_array_of_replies_is_read_once_for_all_calls(monkeypatch: pytest.MonkeyPatch, has_room: bool) -> None:
    reads: list[int] = []

    def counted(name: str, module: Any) -> None:
        function = getattr(module, name)

        def count(line: Any, *more: Any) -> Any:
            if len(line) > 10_000:
                reads.append(len(line))
            return function(line, *more)

        monkeypatch.setattr(module, name, count)

    talk = Talk()
    server = talk.server

    @server
    async def ask_all(context: Context, times: int) -> list[Any]:
        found = await asyncio.gather(*[context.peer.call("tell", n) for n in range(times)], return_exceptions=True)
        return [each if isinstance(each, list) else type(each).__name__ for each in found]

    async with server.in_memory():
        session = talk.open()
        session.receive([orjson.dumps(request("ask_all", 50, "mine"))])
        if not has_room:
            session.receive([orjson.dumps(request("wait", 1, "other"))])
        await talk.turns(session, 10)
        asked = [each["id"] for each in talk.channel.sent]
        assert len(asked) == 50
        for name in ("parse_exactly", "members"):
            counted(name, payloads)
        for name in ("is_deeper", "may_hold_big_integers"):
            counted(name, envelope)
        big = 12345678901234567890123
        text = b",".join(b'{"jsonrpc":"2.0","id":%d,"result":[%d,%d]}' % (each, big, each) for each in asked)
        session.receive([b"[" + text + b" " * 20_000 + b"]"])
        await talk.turns(session, 20)
        (said,) = [each for each in talk.channel.sent if each["id"] == "mine"]
        assert len(said["result"]) == 50
        assert len(reads) <= 4
        talk.go.set()
        await talk.idle(session)
        session.lost(ConnectionError)


def test_parts_of_an_array_have_their_own_strings() -> None:
    long = [chr(ord("a") + n) * 10_000 for n in range(3)]
    tagged = [{"$type": "bytes", "data": "QUFB" * 5000}, {"n": 12345678901234567890123, "text": long[2]}]
    text = orjson.dumps([{"id": 1, "x": long[0]}, [long[1], 2], tagged[0]])[:-1]
    text += b',{"n":12345678901234567890123,"text":' + orjson.dumps(long[2]) + b"}]"
    message, line = payloads.parse(text)
    assert isinstance(line, payloads.CutLine)
    parts = payloads.members(line)
    assert [bytes(payloads.whole(bytes(part), part)) for part in parts] == [
        orjson.dumps({"id": 1, "x": long[0]}),
        orjson.dumps([long[1], 2]),
        orjson.dumps(tagged[0]),
        b'{"n":12345678901234567890123,"text":' + orjson.dumps(long[2]) + b"}",
    ]
    assert [len(part.payloads) for part in parts] == [0, 0, 1, 0]  # type: ignore[attr-defined]
    assert payloads.parse_exactly(parts[3]) == tagged[1]
    assert all(map(payloads.is_json, parts))
    assert len(message) == 4
