"""Calls of a method whose provider has just left (`Hub(grace=…)`): held, passed on when it is back, or refused."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import pytest

from rpcstream import Limits, Rule
from rpcstream.hub import Hub
from rpcstream.hub.dispatch import TRIES

from ..internals import hold_no_more, names_away, waiting_memory
from .conftest import CALL, OpenHub, RawPeer, filled

Connect = Callable[[], RawPeer]


class _Away:
    """Equal to the error of a call of `work`, while no client offers it."""

    def __eq__(self, error: object) -> bool:
        return isinstance(error, dict) and error["code"] == -32601 and error["data"]["no_provider"] is True

    def __hash__(self) -> int:
        return 0


AWAY = _Away()

QUIET = {"ping_interval": None, "keepalive_timeout": None}


async def left(connect: Connect, *methods: str) -> None:
    """A provider that has offered these, and is gone."""
    provider = connect()
    await provider.offers("p", *(methods or ("work",)))
    provider.close()
    await asyncio.sleep(0.01)


class TestPassedOn:
    def test_in_order_behind_the_reply_to_the_registration(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            one, two, provider = connect(), connect(), connect()
            one.say(CALL % (1, "work", "[1]"))
            await asyncio.sleep(0)
            two.say(CALL % ('"x"', "p.work", "[2]"))
            await asyncio.sleep(0)
            one.say('{"jsonrpc":"2.0","method":"work","params":[3]}', CALL % (4, "work", "[4]"))
            await asyncio.sleep(3)
            assert hub.stats()["calls_held"] == 4
            provider.say(
                {"jsonrpc": "2.0", "id": 9, "method": "rpc.register", "params": {"methods": ["work"], "name": "p"}}
            )
            one.say(CALL % (5, "work", "[5]"))
            assert "result" in await provider.hear()
            heard = [await provider.hear() for _ in range(5)]
            # `p.work` is another name, whose calls have an order of their own.
            assert [each["params"] for each in heard if each["params"] != [2]] == [[1], [3], [4], [5]]
            assert "id" not in next(each for each in heard if each["params"] == [3])
            for each in heard:
                if "id" in each:
                    provider.say({"jsonrpc": "2.0", "id": each["id"], "result": each["params"]})
            assert [(await one.hear())["result"] for _ in range(3)] == [[1], [4], [5]]
            assert await two.hear() == {"jsonrpc": "2.0", "id": "x", "result": [2]}
            assert hub.stats()["calls_held"] == 0
            assert not waiting_memory(hub)

        with_hub(main, grace=10, **QUIET)

    def test_in_a_batch_and_as_a_stream(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            caller, provider = connect(), connect()
            caller.say(f"[{CALL % (1, 'work', '[1]')},{CALL % (2, 'rpc.ping', '[]')}]")
            caller.say({"jsonrpc": "2.0", "id": 3, "method": "work", "stream": 2})
            await asyncio.sleep(1)
            await provider.offers("p", "work")
            requests = {each.get("stream"): each["id"] for each in [await provider.hear(), await provider.hear()]}
            provider.say({"jsonrpc": "2.0", "method": "$/item", "params": {"id": requests[2], "value": 7}})
            provider.say({"jsonrpc": "2.0", "id": requests[2], "result": None})
            assert (await caller.hear())["params"] == {"id": 3, "value": 7}
            assert await caller.hear() == {"jsonrpc": "2.0", "id": 3, "result": None}
            provider.say({"jsonrpc": "2.0", "id": requests[None], "result": "one"})
            assert [each["result"] for each in await caller.hear()] == ["one", "pong"]
            assert not waiting_memory(hub)

        with_hub(main, grace=10, **QUIET)

    def test_calls_of_one_batch_wait_together(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            caller, provider = connect(), connect()
            caller.say(f"[{CALL % (1, 'work', '[1]')},{CALL % (2, 'work', '[2]')},{CALL % (3, 'other', '[]')}]")
            await asyncio.sleep(5)
            await provider.offers("p", "work")
            for _ in range(2):
                asked = await provider.hear()
                provider.say({"jsonrpc": "2.0", "id": asked["id"], "result": asked["params"]})
            first, second, other = await caller.hear()
            assert (first["result"], second["result"], other["error"]) == ([1], [2], AWAY)
            assert hub.stats()["calls_held"] == 0

        with_hub(main, grace=10, **QUIET)

    def test_a_long_message_is_passed_on_as_it_came(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            caller, provider = connect(), connect()
            params = [{"$type": "bytes", "data": base64.b64encode(b"x" * 100_000).decode()}, 2**70]
            caller.say({"jsonrpc": "2.0", "id": 1, "method": "work", "params": params[:1]})
            caller.say(filled('{"jsonrpc":"2.0","id":2,"method":"work","params":[%d]}', params[1]))
            await asyncio.sleep(1)
            assert waiting_memory(hub) > 200_000
            await provider.offers("p", "work")
            assert [(await provider.hear())["params"] for _ in range(2)] == [params[:1], params[1:]]
            assert not waiting_memory(hub) - sum(member.waiting_size for member in hub.directory.members.values())

        with_hub(main, grace=10, **QUIET)

    def test_what_is_left_of_the_time_is_told(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            caller, provider = connect(), connect()
            caller.say({"jsonrpc": "2.0", "id": 1, "method": "work", "timeout": 8})
            await asyncio.sleep(5)
            await provider.offers("p", "work")
            assert (await provider.hear())["timeout"] == pytest.approx(3, abs=0.1)
            assert (await caller.hear())["error"]["code"] == -32003

        with_hub(main, grace=10, **QUIET)

    def test_each_time_it_is_held_counts(self, with_hub: Any) -> None:
        """A provider that comes, reads nothing and leaves, again and again, gives a call no more time."""

        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            caller, since = connect(), asyncio.get_running_loop().time()
            caller.say({"jsonrpc": "2.0", "id": 1, "method": "work", "timeout": 8})
            for left_over in (6, 4, 2):
                await asyncio.sleep(1)
                provider = connect()
                await provider.offers("p", "work")
                asked = await provider.hear()
                assert asked["timeout"] == pytest.approx(left_over + 1, abs=0.2)
                await asyncio.sleep(1)
                provider.say({"jsonrpc": "2.0", "method": "$/goAway", "params": {"last": None}})
                await asyncio.sleep(0)
                provider.close()
            assert (await caller.hear())["error"]["code"] == -32003
            assert asyncio.get_running_loop().time() - since == pytest.approx(8, abs=0.2)

        with_hub(main, grace=10, **QUIET)

    def test_providers_that_do_not_begin_it_are_tried_a_few_times(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            caller = connect()
            caller.say(CALL % (1, "work", "[]"))
            for _ in range(TRIES):
                provider = connect()
                await provider.offers("p", "work")
                await provider.hear()
                provider.say({"jsonrpc": "2.0", "method": "$/goAway", "params": {"last": None}})
                await asyncio.sleep(0.01)
                provider.close()
                await asyncio.sleep(0.01)
            error = (await caller.hear())["error"]
            assert (error["code"], error["data"]["executed"]) == (-32007, False)

        with_hub(main, grace=10, **QUIET)

    def test_of_one_who_withdraws(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            provider, caller = connect(), connect()
            await provider.offers("p", "work")
            await provider.result("rpc.unregister", {"methods": ["work"]})
            caller.say(CALL % (1, "work", "[1]"))
            await asyncio.sleep(9)
            assert (await provider.offers("p", "work"))["methods"] == ["work"]
            assert (await provider.hear())["params"] == [1]

        with_hub(main, grace=10, **QUIET)

    def test_right_after_the_start_nothing_is_known_to_be_missing(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            caller, provider = connect(), connect()
            caller.say(CALL % (1, "work", "[1]"), CALL % (2, "other", "[1]"), CALL % (3, "rpc.other", "[1]"))
            reply = await caller.hear()
            assert (reply["id"], reply["error"]["code"]) == (3, -32601)
            assert "no_provider" not in reply["error"]["data"]
            await asyncio.sleep(9)
            await provider.offers("p", "work")
            assert (await provider.hear())["params"] == [1]
            assert (await caller.hear())["id"] == 2
            assert (await caller.ask("other"))["error"] == AWAY

        with_hub(main, grace=10, **QUIET)

    async def test_over_http(self, open_hub: OpenHub) -> None:
        running_hub = await open_hub(Hub(grace=30, drain_timeout=5))
        posted = asyncio.ensure_future(running_hub.post(CALL % (1, "work", "[1]")))
        await running_hub.until(lambda: running_hub.hub.stats()["calls_held"])
        provider = await running_hub.peer()
        await provider.offers("p", "work")
        provider.say({"jsonrpc": "2.0", "id": (await provider.hear())["id"], "result": "yes"})
        assert b'"result":"yes"' in await posted


class TestNotPassedOn:
    def test_when_the_time_is_over(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await asyncio.sleep(60)
            await left(connect)
            since = asyncio.get_running_loop().time()
            caller = connect()
            caller.say(CALL % (1, "work", "[]"), '{"jsonrpc":"2.0","method":"work"}')
            await asyncio.sleep(5)
            caller.say(f"[{CALL % (2, 'work', '[]')}]")
            assert await caller.hear() == {"jsonrpc": "2.0", "id": 1, "error": AWAY}
            assert await caller.hear() == [{"jsonrpc": "2.0", "id": 2, "error": AWAY}]
            assert asyncio.get_running_loop().time() - since == pytest.approx(10, abs=0.1)
            assert (await caller.ask("work"))["error"] == AWAY
            assert hub.stats()["calls_held"] == 0
            assert not waiting_memory(hub)

        with_hub(main, grace=10, **QUIET)

    def test_without_grace(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            assert (await connect().ask("work"))["error"] == AWAY

        with_hub(main, **QUIET)

    def test_what_its_caller_cancels_or_has_no_more_time_for(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            caller, gone, provider = connect(), connect(), connect()
            caller.say(CALL % (1, "work", "[1]"), {"jsonrpc": "2.0", "id": 2, "method": "work", "timeout": 2})
            caller.say(f"[{CALL % (3, 'work', '[3]')}]", CALL % (4, "work", "[4]"))
            gone.say(CALL % (1, "work", "[5]"), '{"jsonrpc":"2.0","method":"work","params":[6]}')
            await asyncio.sleep(1)
            caller.say('{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":1}}')
            assert (await caller.hear())["error"]["code"] == -32800
            caller.say('{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":3}}')
            assert (await caller.hear())[0]["error"]["code"] == -32800
            gone.close()
            assert (await caller.hear())["error"] == {
                "code": -32003,
                "message": "Deadline exceeded",
                "data": {"method": "work", "timeout": 2},
            }
            await asyncio.sleep(30)  # by then the hub knows that it was no half-close
            await provider.offers("p", "work")
            # Notifications do not end with their sender. Two callers have no order between them.
            assert sorted([(await provider.hear())["params"] for _ in range(2)]) == [[4], [6]]
            await provider.silence()
            assert len(hub.directory.members) == 2

        with_hub(main, grace=60, **QUIET)

    def test_a_batch_that_is_cancelled_after_it_was_passed_on(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            caller, provider = connect(), connect()
            caller.say(f"[{CALL % (3, 'work', '[3]')}]")
            await asyncio.sleep(1)
            await provider.offers("p", "work")
            call_id = (await provider.hear())["id"]
            caller.close()
            cancel = await provider.hear()
            assert (cancel["method"], cancel["params"]) == ("$/cancelRequest", {"id": call_id})

        with_hub(main, grace=10, **QUIET)

    def test_what_is_wrong_is_answered_at_once(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            caller = connect()
            assert await caller.code("work", 5) == -32600
            assert (await caller.ask("work", timeout="x"))["error"]["code"] == -32600
            assert (await caller.ask("work", timeout=0))["error"]["code"] == -32003
            assert hub.stats()["calls_held"] == 0

        with_hub(main, grace=10, **QUIET)

    def test_when_the_hub_stops(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            caller = connect()
            caller.say(CALL % (1, "work", "[]"))
            await asyncio.sleep(0.1)
            hold_no_more(hub)
            assert (await caller.hear())["error"] == AWAY
            assert (await caller.ask("work"))["error"] == AWAY

        with_hub(main, grace=1000, **QUIET)

    def test_a_provider_that_is_lost_as_soon_as_it_has_registered(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            caller, provider = connect(), connect()
            caller.say(CALL % (1, "work", "[]"))
            await asyncio.sleep(0.1)
            provider.say({"jsonrpc": "2.0", "id": 9, "method": "rpc.register", "params": {"methods": ["work"]}})
            provider.close()
            reply = await caller.hear()
            assert reply["error"]["code"] in (-32007, -32601)
            assert not waiting_memory(hub)

        with_hub(main, grace=10, **QUIET)

    def test_a_registration_that_is_refused(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            caller, provider = connect(), connect()
            await provider.offers("q", "more")
            caller.say(CALL % (1, "work", "[]"))
            await asyncio.sleep(0.1)
            assert await provider.code("rpc.register", {"methods": ["rpc.x"]}) == -32602
            caller.say(CALL % (2, "more", "[]"))
            assert (await provider.hear())["method"] == "more"

        with_hub(main, grace=10, **QUIET)


class TestBounds:
    def test_calls_of_one_connection(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            greedy, other = connect(), connect()
            greedy.say(*(CALL % (number, "work", "[]") for number in range(6)))
            assert [(await greedy.hear())["id"] for _ in range(2)] == [4, 5]
            assert await greedy.result("rpc.ping") == "pong"
            other.say(CALL % (1, "work", "[]"))
            await asyncio.sleep(0.1)
            assert hub.stats()["calls_held"] == 5

        with_hub(main, grace=10, limits=Limits(max_calls=16), **QUIET)

    def test_bytes_of_one_connection(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            greedy, other = connect(), connect()
            text = '["' + "x" * 40_000 + '"]'
            greedy.say(*(CALL % (number, "work", text) for number in range(3)))
            assert [(await greedy.hear())["id"] for _ in range(2)] == [1, 2]
            other.say(CALL % (1, "work", "[]"))
            await asyncio.sleep(0.1)
            assert hub.stats()["calls_held"] == 2

        with_hub(main, grace=10, limits=Limits(max_message_size=100_000), **QUIET)

    def test_calls_and_names_of_all(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect, "work", "more")
            for number in range(5):
                caller = connect()
                caller.say(CALL % (number, "work", "[]"))
                if number == 4:
                    assert (await caller.hear())["error"] == AWAY
            # Made-up names do not displace the four that were offered: with the client's name, and without.
            assert (await connect().ask("made-up"))["error"]["code"] == -32601
            await left(connect, "new")
            assert names_away(hub) == ["more", "new", "p.more", "p.new"]

        with_hub(main, grace=10, limits=Limits(max_queue=4), **QUIET)

    def test_memory_of_all(self, with_hub: Any) -> None:
        async def main(hub: Hub, connect: Connect) -> None:
            await left(connect)
            text = '["' + "x" * 40_000 + '"]'
            first, second = connect(), connect()
            first.say(CALL % (1, "work", text))
            await asyncio.sleep(0.1)
            assert (await second.ask("work", ["x" * 40_000]))["error"] == AWAY

        with_hub(main, grace=10, limits=Limits(max_waiting_total=150_000), **QUIET)


async def test_who_may_not_call_is_not_held(open_hub: OpenHub) -> None:
    """Or else the time of the answer would tell what was offered."""
    rules = [Rule("provider", name="*", register="*"), Rule("friend", call="work")]
    users = {"p": "provider", "f": "friend", "s": "stranger"}
    hub = Hub(grace=30, authenticate=lambda credentials: users.get(credentials.token), rules=rules, drain_timeout=5)
    running_hub = await open_hub(hub)
    peers = {}
    for token in users:
        peers[token] = await running_hub.peer()
        await peers[token].result("rpc.authenticate", {"token": token})
    for _ in range(2):  # right after the start, and once the method was offered
        assert (await peers["s"].ask("work"))["error"] == AWAY
        peers["f"].say(CALL % (1, "work", "[]"))
        await running_hub.until(lambda: hub.stats()["calls_held"])
        await peers["p"].offers("p", "work")
        peers["p"].say({"jsonrpc": "2.0", "id": (await peers["p"].hear())["id"], "result": 1})
        assert (await peers["f"].hear())["result"] == 1
        assert await peers["p"].result("rpc.unregister", {"methods": ["work"]}) == ["work"]


def test_a_provider_that_takes_no_more_calls(with_hub: Any) -> None:
    """The call was not passed on, and the error says so."""

    async def main(hub: Hub, connect: Connect) -> None:
        provider, caller = connect(), connect()
        await provider.offers("p", "work")
        next(iter(hub.directory.by_name.values())).session.streams.end()
        assert (await caller.ask("work"))["error"]["data"] == {
            "method": "work",
            "client": "p",
            "executed": False,
            "no_provider": True,
        }

    with_hub(main, **QUIET)


@pytest.mark.parametrize("grace", [-1, float("inf"), float("nan")])
def test_times_that_make_no_sense(grace: float) -> None:
    with pytest.raises(ValueError, match="grace must be a number of seconds, 0 or more"):
        Hub(grace=grace)
