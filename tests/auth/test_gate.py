"""The line stream before authentication: which requests are answered, their limits, and what is queued meanwhile."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, Context, Credentials, Limits, Server
from rpcstream.testing import FakeTimeLoop, connections_of

from ..kit import batch, notification, raw_peers, request, until
from .callers import INVALID, PING, REFUSED, TOKEN, Desk, Door, accept, login, one_by_one, outcome, outcomes, talking

ANSWER = {"jsonrpc": "2.0", "id": 1, "result": 5}


def asking(params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": "rpc.authenticate", "params": params}


@pytest.mark.parametrize(
    ("sent", "replies"),
    [
        ([request("note", 1), request("who"), request("rpc.discover"), request("rpc.stats")], [REFUSED] * 4),
        ([notification("note", value=1), PING], ["pong"]),
        # Each member of a batch is refused by itself, and a batch is settled as it came: a token in it is none.
        ([batch(request("note", 1), notification("note", value=1), login(), 17)], [[REFUSED] * 3]),
        ([batch(login(), request("note", 1))], [[REFUSED, REFUSED]]),
        ([b"[]"], [REFUSED]),
        ([b"[" + b"1," * 1000 + b"1]"], [REFUSED]),
        # What is no token.
        ([asking(None)], [-32602]),
        ([asking([TOKEN, 1])], [-32602]),
        ([asking({"token": None})], [-32602]),
        ([asking(TOKEN)], [INVALID]),
        ([login(""), login(TOKEN + "x")], [REFUSED] * 2),
        ([login(TOKEN[:-1]), login(TOKEN.upper())], [REFUSED] * 2),
        ([login("ö" * 40), login("\0" + TOKEN)], [REFUSED] * 2),
        # What is malformed.
        ([b"{"], [-32700]),
        ([b'{"jsonrpc":"1.0","id":1,"method":"rpc.authenticate","params":["a-long-secret"]}'], [INVALID]),
        ([b'{"jsonrpc":"2.0","id":true,"method":"rpc.authenticate","params":["a-long-secret"]}'], [INVALID]),
        ([b'{"jsonrpc":"2.0","id":1,"method":["rpc.authenticate"],"params":["a-long-secret"]}'], [REFUSED]),
        ([b'{"jsonrpc":"2.0","id":[],"method":"note"}'], [REFUSED]),
        ([b"[" * 500 + b"]" * 500], [[REFUSED]]),
        ([b'[{"id":1.5},' + b"[" * 900 + b"]" * 900 + b"]"], [[REFUSED] * 2]),
        # Words of a conversation.
        (
            [notification(f"$/{word}", id=1, stream="s", n=1) for word in ("cancelRequest", "item", "credit", "end")]
            + [notification("$/event"), notification("$/x"), ANSWER, batch(ANSWER), batch(ANSWER, request("who"))],
            [[REFUSED] * 2],
        ),
    ],
)
async def test_nothing_is_called_before_the_token(sent: list[Any], replies: list[Any]) -> None:
    server = Door(token=TOKEN)
    async with talking(server) as raw:
        found = [str(each) for each in await outcomes(raw, *sent, replies=len(replies))]
        assert found == [str(each) for each in replies]
        assert TOKEN not in str(found)
        assert await outcomes(raw, request("who"), login(), request("note", 2), request("who")) == [
            *(REFUSED, True),
            *(None, "token"),
        ]
    assert server.noted == [2]


async def test_ids_come_back_exactly() -> None:
    async with talking(Door(token=TOKEN)) as raw:
        for method in (b"echo", b"rpc.authenticate"):
            for call_id in (b"9223372036854775807", b'"x"', b"null", b"1.5"):
                raw.send(b'{"jsonrpc":"2.0","id":%s,"method":"%s"}' % (call_id, method))
                assert b'"id":%s,' % call_id in (await raw.receive_bytes() or b"")
        refused = await raw.ask(batch(request("who", id="a"), request("who", id=1.5)))
        assert [each["id"] for each in refused] == ["a", 1.5]


@pytest.mark.parametrize(
    ("sent", "replies"),
    [
        # Two wrong ones and the right one; the third wrong one is the last, and what comes behind it is refused.
        ([login("one"), login("two"), login(), request("echo", 1)], [REFUSED, REFUSED, True, 1]),
        ([*[login(f"{n}") for n in range(3)], login(), request("note", 1)], [REFUSED] * 5),
        ([*[notification("rpc.authenticate", token="wrong")] * 3, login()], [REFUSED]),
        # Before and after are counted together.
        ([login("one"), login(), login("two"), request("echo", 1)], [REFUSED, True, REFUSED, 1]),
        ([login("one"), login(), login("two"), login("three")], [REFUSED, True, REFUSED, REFUSED]),
    ],
)
async def test_a_connection_is_closed_after_three_wrong_tokens(
    sent: list[Any], replies: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    server = Door(token=TOKEN)
    async with raw_peers(server) as connect:
        raw = await connect()
        pipelined = True not in replies[:-1]  # afterwards no order is promised
        found = await outcomes(raw, *sent, replies=len(replies)) if pipelined else await one_by_one(raw, *sent)
        assert found == replies
        if replies[-1] == REFUSED:
            assert {outcome(each) for each in await raw.rest()} <= {REFUSED}
            assert "3 wrong tokens" in caplog.text
            assert server.stats()["closed_for_limits"] == 1
        assert await outcomes(await connect(), login()) == [True]
    assert server.noted == []


async def test_without_authentication_there_is_no_gate() -> None:
    server = Door()
    async with talking(server) as raw:
        assert await outcomes(raw, request("who"), login()) == [None, -32601]
    assert "rpc.authenticate" not in server.methods


async def test_who_is_known_may_become_another() -> None:
    async with talking(Door(authenticate=accept)) as raw:
        sent = [login("alice-secret"), request("who"), login("wrong"), asking([5]), request("who")]
        assert await one_by_one(raw, *sent) == [True, "alice", REFUSED, -32602, "alice"]
        sent = [asking({"token": "bob-secret"}), request("who"), batch(login("alice-secret"))]
        assert await one_by_one(raw, *sent) == [True, "bob", [INVALID]]


async def test_who_is_known_cannot_guess_many_at_once() -> None:
    desk = Desk(is_open=True)
    async with talking(Door(authenticate=desk)) as raw:
        assert await outcomes(raw, login("alice-secret")) == [True]
        raw.send(*[login(f"guess {n}", id=n) for n in range(100)], login("bob-secret", id="right"))
        assert {outcome(each) for each in await raw.rest()} == {REFUSED}
    assert [each.token for each in desk.asked] == ["alice-secret", "guess 0", "guess 1", "guess 2"]


async def test_a_call_keeps_the_identity_that_it_came_with() -> None:
    server = Door(authenticate=accept)
    go = asyncio.Event()

    @server
    async def slow(ctx: Context) -> Any:
        await go.wait()
        return ctx.identity

    async with talking(server) as raw:
        assert await outcomes(raw, login("alice-secret")) == [True]
        raw.call("slow")
        assert await one_by_one(raw, login("bob-secret"), request("who")) == [True, "bob"]
        go.set()
        assert await raw.result() == "alice"


async def test_what_is_pipelined_waits_for_the_decision_in_order() -> None:
    desk = Desk()
    server = Door(authenticate=desk)
    async with talking(server) as raw:
        calls = [request("echo" if n % 2 else "echo_in_thread", n, id=n) for n in range(1, 100)]
        raw.send(login("alice-secret"), *calls[:50])
        await desk.asked_for.wait()
        raw.send(*calls[50:], request("who", id="who"))
        desk.go.set()
        first, *replies = await raw.receive_many(101)
        assert first == {"jsonrpc": "2.0", "id": 0, "result": True}
        assert {each["id"]: each["result"] for each in replies} == {n: n for n in range(1, 100)} | {"who": "alice"}
        assert [each["id"] for each in replies if each["id"] != "who" and each["id"] % 2] == list(range(1, 100, 2))
    assert [each.token for each in desk.asked] == ["alice-secret"]
    assert "alice-secret" not in repr(desk.asked)


async def test_the_last_word_is_answered() -> None:
    desk = Desk()
    server = Door(authenticate=desk)
    async with talking(server) as raw:
        # A call that waits can be cancelled.
        raw.send(login("wrong"), request("note", 1), login("bob-secret"), request("note", 1, id="a"), request("who"))
        raw.send(notification("$/cancelRequest", id="a"))
        raw.end()
        await desk.asked_for.wait()
        desk.go.set()
        found = sorted(str(outcome(each)) for each in await raw.rest())
        assert found == sorted(map(str, [REFUSED, REFUSED, True, -32800, "bob"]))
    assert server.noted == []


async def test_a_cancelled_authenticate_lets_nobody_in() -> None:
    desk = Desk()
    server = Door(authenticate=desk)
    async with talking(server) as raw:
        raw.send(login("alice-secret"), request("note", 1))
        await desk.asked_for.wait()
        assert await outcomes(raw, notification("$/cancelRequest", id=0), replies=2) == [-32800, REFUSED]
        assert desk.was_cancelled
        desk.go.set()
        # One with the same write comes before the decision has begun; the connection goes on all the same.
        raw.send(login("alice-secret"), notification("$/cancelRequest", id=0), PING)
        assert outcome((await raw.receive_many(2))[-1]) == "pong"
        assert await one_by_one(raw, login("alice-secret"), request("who")) == [True, "alice"]
    assert server.noted == []


async def test_who_floods_while_the_server_decides_is_not_read() -> None:
    """What waits is bounded, and all of it is answered in the end."""
    desk = Desk()
    sizes: list[int] = []
    async with talking(Door(authenticate=desk, limits=Limits(max_calls=50))) as raw:
        raw.send(login("alice-secret"), *[request("echo", "x" * 5000, id=n) for n in range(1, 3_001)])
        await desk.asked_for.wait()

        def stands_still() -> bool:
            sizes.append(raw.transport.get_write_buffer_size())
            return len(sizes) > 100 and len(set(sizes[-100:])) == 1

        await until(stands_still)
        assert sizes[-1] > 1_000_000
        desk.go.set()
        assert [each["id"] for each in await raw.receive_many(3_001)] == list(range(3_001))


def test_a_lost_connection_ends_the_decision() -> None:
    """Though nothing is read meanwhile: the server looks after it now and then."""
    desk = Desk()
    server = Door(authenticate=desk)

    async def main(loop: FakeTimeLoop) -> None:
        loop.autojump = False
        async with talking(server) as raw:
            raw.send(login("alice-secret"), request("note", 1))
            await desk.asked_for.wait()
            raw.close()
            for _ in range(8):
                await asyncio.sleep(0)
                loop.jump(1)
            await until(lambda: desk.was_cancelled and not connections_of(server))
            loop.autojump = True

    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        runner.run(main(runner.get_loop()))  # type: ignore[arg-type]
    assert server.noted == []


async def test_a_server_that_stops_does_not_wait_for_strangers() -> None:
    server = Server(token=TOKEN, limits=Limits(auth_timeout=None))
    async with server.listening(port=0) as address, AsyncClient(address) as client:
        assert await client.request("rpc.ping") == "pong"


async def test_a_stranger_sends_small_messages_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rpcstream.auth.gate.MAX_AUTH_MESSAGE", 1000)
    async with talking(Door(token=TOKEN)) as raw:
        reply = await raw.reply("echo", "x" * 1000)
        assert (outcome(reply), reply["id"], reply["error"]["data"]["limit"]) == (-32001, 1, 1000)
        assert await outcomes(raw, login("x" * 1000)) == [-32001]
        # A message without an end is answered as soon as it is too long, not kept.
        raw.write(b'{"jsonrpc":"2.0","id":7,"method":"echo","params":["' + b"x" * 3000)
        reply = await raw.receive()
        assert (outcome(reply), reply["id"]) == (-32001, 7)
        raw.write(b"x" * 100_000 + b'"]}\n')
        # What begins before the token is taken, and ends behind it, may be as long as any.
        whole = orjson.dumps(request("echo", "x" * 100_000))
        raw.write(orjson.dumps(login()) + b"\n" + whole[:900])
        assert await raw.result() is True
        raw.send(whole[900:])
        assert len(await raw.result()) == 100_000


async def test_a_stranger_has_little_time(caplog: pytest.LogCaptureFixture) -> None:
    """It is not gained by talking, and who is known has all of it."""
    server = Door(token=TOKEN, limits=Limits(auth_timeout=0.5))
    async with raw_peers(server) as connect:
        known, raw, talker = await connect(), await connect(), await connect()
        assert await outcomes(known, login()) == [True]
        raw.send(PING)
        while not talker.is_over:
            talker.send(PING)
            await asyncio.sleep(0.01)
        pong, farewell = await raw.rest()
        assert (outcome(pong), farewell["id"], outcome(farewell)) == ("pong", None, REFUSED)
        assert "auth_timeout" in farewell["error"]["data"]["reason"]
        assert await outcomes(known, request("echo", 1)) == [1]
    assert "auth_timeout" in caplog.text
    assert server.stats()["closed_for_limits"] == 2


@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_time_ends_while_the_server_decides(is_stubborn: bool) -> None:
    """Also where the function does not end when it is told to, and says yes afterwards."""
    desk = Desk()

    async def find(credentials: Credentials) -> Any:
        try:
            return await desk(credentials)
        except asyncio.CancelledError:
            if is_stubborn:
                return "alice"
            raise

    server = Door(authenticate=find, limits=Limits(auth_timeout=0.05))
    async with talking(server) as raw:
        raw.send(login("alice-secret"), request("note", 1))
        rest = await raw.rest()
        assert {outcome(each) for each in rest} <= {REFUSED, -32800}
        assert {each["id"] for each in rest} == {None, 0, 1}
    assert desk.was_cancelled
    assert server.noted == []


async def test_an_authenticate_that_never_ends_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """Also the second one, when the connection has no deadline any more."""

    async def find(credentials: Credentials) -> Any:
        if credentials.token == "slow":
            await asyncio.Event().wait()
        return accept(credentials)

    async with talking(Door(authenticate=find, limits=Limits(auth_timeout=0.5))) as raw:
        sent = [login("alice-secret"), login("slow"), request("who", id="after")]
        found = await outcomes(raw, *sent)
        assert found[0] is True
        assert sorted(found[1:], key=str) == [REFUSED, "alice"]
    assert "authenticate function raised" in caplog.text


async def test_nothing_is_logged_of_a_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def fail(credentials: Credentials) -> Any:
        raise ValueError("boom")

    async with talking(Door(authenticate=fail, debug=True)) as raw:
        assert await outcomes(raw, login("hidden-secret"), request("echo", "to be seen")) == [REFUSED] * 2
    assert "boom" in caplog.text
    assert "to be seen" in caplog.text
    assert "hidden-secret" not in caplog.text
