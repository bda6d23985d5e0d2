"""Long lists: written in slices, once for all callers, kept until something changes; and `rpc.discover`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcstream import Limits, Server
from rpcstream.errors import RpcError
from rpcstream.hub import Hub, listing
from rpcstream.hub.listing import Listing, reply_with
from rpcstream.testing import FakeTimeLoop
from rpcstream.wire.buffers import MessageParts

from ..internals import document_of, hub_methods
from ..kit.example_count import example_count
from .conftest import OpenHub, RunningHub


class Table:
    """What a listing is of; counts how often it was written."""

    def __init__(self, size: int) -> None:
        self.items = list(range(size))
        self.version = self.begun = 0

    def parts(self) -> Iterator[bytes]:
        self.begun += 1
        yield b"["
        for number, item in enumerate(list(self.items)):
            yield b"%b%d" % (b"," if number else b"", item)
        yield b"]"

    def put(self, item: int) -> None:
        self.items.append(item)
        self.version += 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is a slice, and takes a millisecond."""
    clock = iter(range(10**9))
    monkeypatch.setattr(listing, "perf_counter", lambda: next(clock) / 1000)
    monkeypatch.setattr(listing, "SLICE", 0.0005)


async def got(of: Listing) -> Any:
    version = of.ask()
    found = of.now(version)
    if found is None:
        found = await of.soon(version)
    assert isinstance(found, bytes)
    return orjson.loads(found)


class TestListing:
    async def test_it_is_kept_until_something_changes(self) -> None:
        table = Table(3)
        of = Listing(table.parts, lambda: table.version, max_size=1000)
        assert [await got(of) for _ in range(3)] == [[0, 1, 2]] * 3
        assert table.begun == 1
        table.put(7)
        of.forget()
        assert await got(of) == [0, 1, 2, 7]
        assert table.begun == 2

    async def test_a_long_one_is_written_once_for_all(self, slow: None) -> None:
        table = Table(50)
        of = Listing(table.parts, lambda: table.version, max_size=1000)
        turns = 0
        assert of.now(of.ask()) is None
        assert table.begun == 1
        asking = asyncio.gather(*(got(of) for _ in range(100)))
        while not asking.done():
            turns += 1
            await asyncio.sleep(0)
        assert asking.result() == [table.items] * 100
        assert table.begun == 1
        assert turns >= 50  # others have a turn between the slices

    async def test_what_changed_before_it_was_asked_for_is_in_it(self, slow: None) -> None:
        table = Table(50)
        of = Listing(table.parts, lambda: table.version, max_size=1000)
        first = asyncio.ensure_future(got(of))
        for _ in range(5):
            await asyncio.sleep(0)
        table.put(99)
        of.forget()
        second = await got(of)
        assert 99 in second
        assert set(range(50)) <= set(await first)

    async def test_one_that_changes_all_the_time_is_written_after_it_was_asked_for(self, slow: None) -> None:
        table = Table(20)
        of = Listing(table.parts, None, max_size=1000)
        first = asyncio.ensure_future(got(of))
        for _ in range(5):
            await asyncio.sleep(0)
        table.put(99)
        assert 99 not in await first
        waiting = [asyncio.ensure_future(got(of)) for _ in range(10)]
        assert all(99 in found for found in await asyncio.gather(*waiting))
        assert table.begun <= 3

    async def test_one_that_is_too_long_is_an_error_until_it_changes(self) -> None:
        table = Table(1000)
        of = Listing(table.parts, lambda: table.version, max_size=500)
        for _ in range(3):
            found = of.now(of.ask())
            assert isinstance(found, RpcError)
            assert found.code == -32001
        assert table.begun == 1

    async def test_who_gives_up_keeps_nobody_else_waiting(self, slow: None) -> None:
        table = Table(20)
        of = Listing(table.parts, lambda: table.version, max_size=1000)
        first, second = asyncio.ensure_future(got(of)), asyncio.ensure_future(got(of))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == table.items

    async def test_another_loop(self, slow: None) -> None:
        table = Table(20)
        of = Listing(table.parts, lambda: table.version, max_size=1000)
        assert of.now(of.ask()) is None
        assert await asyncio.to_thread(lambda: asyncio.run(got(of))) == table.items


def test_a_list_that_changes_without_end_takes_a_share_of_the_time(slow: None) -> None:
    """Between two that are written there is a pause, by how long that took."""
    table = Table(20)
    of = Listing(table.parts, lambda: table.version, max_size=1000)

    async def ask_all_the_time() -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for number in range(10):
            table.put(number)
            of.forget()
            assert number in await got(of)
        return loop.time() - begun

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        seconds = runner.run(ask_all_the_time())
    assert seconds >= 9 * listing.PAUSES * 0.02


def test_a_long_reply_shares_the_list() -> None:
    listed = b"[" + b"1," * listing.JOINED + b"1]"
    reply = reply_with(b'"x"', listed, 10**9)
    assert isinstance(reply, MessageParts)
    assert reply.parts[1] is listed
    assert orjson.loads(bytes(reply))["result"] == orjson.loads(listed)
    assert reply_with(b"7", b"[]", 100) == b'{"jsonrpc":"2.0","id":7,"result":[]}'
    assert isinstance(reply_with(b"7", b"[]", 30), RpcError)


class TestAtAHub:
    async def test_ids_params_notifications_and_batches(self, running_hub: RunningHub) -> None:
        peer = await running_hub.peer()
        await peer.offers("p", {"name": "m", "description": 'a "word"', "x-idempotent": True}, "b.c")
        for method in ("rpc.methods", "rpc.discover", "rpc.clients"):
            for call_id in ('"x"', "1.0", "null", str(2**64)):
                peer.say('{"jsonrpc":"2.0","id":%s,"method":"%s","params":[]}' % (call_id, method))  # noqa: UP031
                line = await peer.line()
                assert line is not None
                assert line.startswith(b'{"jsonrpc":"2.0","id":%b,"result":' % call_id.encode())
            peer.say({"jsonrpc": "2.0", "method": method})
            await peer.silence()
            assert await peer.code(method, [1]) == -32602
            assert await peer.code(method, {"x": 1}) == -32602
            assert (await peer.ask(method, 7))["error"]["code"] == -32600
            peer.say([{"jsonrpc": "2.0", "id": number, "method": method} for number in range(3)])
            replies = await peer.hear()
            assert [reply["id"] for reply in replies] == [0, 1, 2]
            assert all("result" in reply for reply in replies)
            body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method})
            assert "result" in json.loads(await running_hub.post(body))
        assert await peer.result("rpc.methods") == [
            {"name": "m", "clients": ["p"], "shared": False, "description": 'a "word"'},
            {"name": "p.b.c", "clients": ["p"], "shared": False},
        ]

    async def test_while_it_is_written_the_answer_waits(
        self, open_hub: OpenHub, slow: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "PAUSES", 0)
        running_hub = await open_hub()
        peers = [await running_hub.peer() for _ in range(3)]
        for number, peer in enumerate(peers):
            await peer.offers(f"p{number}", *(f"m{number}-{each}" for each in range(20)))
        for peer in peers:
            for call_id in range(30):
                peer.say({"jsonrpc": "2.0", "id": call_id, "method": "rpc.methods"})
            peer.say([{"jsonrpc": "2.0", "id": call_id, "method": "rpc.discover"} for call_id in range(5)])
        for peer in peers:
            heard = [await peer.hear() for _ in range(31)]
            batch = next(each for each in heard if isinstance(each, list))
            assert len(batch) == 5
            assert sorted(each["id"] for each in heard if isinstance(each, dict)) == list(range(30))
            assert all(len(each["result"]) == 60 for each in heard if isinstance(each, dict))

    async def test_one_that_is_too_long(self, open_hub: OpenHub) -> None:
        running_hub = await open_hub(Hub(limits=Limits(max_message_size=10_000), drain_timeout=5))
        peer = await running_hub.peer()
        for number in range(3):
            await peer.offers("p", *(f"method-{number}-{each}" for each in range(80)))
        for method in ("rpc.methods", "rpc.discover"):
            assert await peer.code(method) == -32001
        assert await peer.result("rpc.clients")

    async def test_the_document_says_what_is_offered(self, running_hub: RunningHub) -> None:
        first, second = await running_hub.peer(), await running_hub.peer()
        shared = {"name": "work", "shared": True, "summary": "s", "params": [{"name": "x", "schema": {"$ref": "#/c"}}]}
        again = {**shared, "x-idempotent": True}
        params = {"name": "a", "methods": [again], "components": {"X": {"type": "object"}}}
        await first.result("rpc.register", params)
        document = await second.result("rpc.discover")
        work = next(method for method in document["methods"] if method["name"] == "work")
        assert work == {
            "name": "work",
            "summary": "s",
            "params": shared["params"],
            "x-clients": ["a"],
            "x-shared": True,
            "x-idempotent": True,
        }
        assert document["components"]["schemas"]["a.X"] == {"type": "object"}
        names = [method["name"] for method in document["methods"]]
        assert names == sorted(names)
        assert document == running_hub.hub.discover()
        await second.offers("b", shared)
        document = await second.result("rpc.discover")
        work = next(method for method in document["methods"] if method["name"] == "work")
        assert work["x-clients"] == ["a", "b"]
        assert "x-idempotent" not in work


async def test_of_a_server_it_is_written_once() -> None:
    server = Server()
    server.add(lambda: 1, name="one")
    async with server.listening(port=0) as address:
        running_hub = RunningHub(server, address)  # type: ignore[arg-type]
        peer = await running_hub.peer()
        try:
            before = await peer.result("rpc.discover")
            written = await document_of(server).text()
            assert written is await document_of(server).text()
            server.add(lambda: 2, name="two")
            after = await peer.result("rpc.discover")
        finally:
            peer.close()
    assert {each["name"] for each in after["methods"]} - {each["name"] for each in before["methods"]} == {"two"}


# -- names that come and go -------------------------------------------------------------------------------------------


@settings(max_examples=example_count(100), deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.sets(st.integers(0, 30), max_size=10)), max_size=30))
def test_the_names_are_those_of_the_routes(changes: list[tuple[bool, int, set[int]]]) -> None:
    asyncio.run(_change(changes))


async def _change(changes: list[tuple[bool, int, set[int]]]) -> None:
    hub = Hub()
    loop = asyncio.get_running_loop()
    sessions = [
        _Hashed(
            loop=loop,
            channel=None,
            add_lost_callback=[].append,
            set_end_callback=[].append,
            is_lasting=True,
            identity=None,
        )
        for _ in range(3)
    ]
    contexts: Any = [SimpleNamespace(session=session, in_batch=False) for session in sessions]
    for number, (comes, who, methods) in enumerate(changes):
        names = [f"m{each}" if each % 3 else f"a.m{each}" for each in methods]
        if comes:
            described = [{"name": name, "shared": True} for name in names]
            hub_methods(hub).register(contexts[who], name=f"client-{who}", methods=described)
        else:
            hub_methods(hub).unregister(contexts[who], names)
        if number % 3 == 0:
            _compare(hub)
    _compare(hub)
    for context in contexts:
        hub_methods(hub).unregister(context)
    assert hub.directory.offered_cost == hub.directory.offered == 0
    assert not hub.directory.listed()


def _compare(hub: Hub) -> None:
    directory = hub.directory
    expected = {
        f"{client.name}.{name}" if "." in name else name
        for client in directory.by_name.values()
        for name in client.offers
    }
    assert directory.listed() == sorted(expected)
    assert directory.offered == sum(len(client.offers) for client in directory.by_name.values())


class _Hashed(SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__
