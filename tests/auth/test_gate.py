"""The line stream before authentication: which requests are answered, their limits, and what is queued meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, Context, Limits, NotAuthenticated, Server
from rpcstream.auth.gate import GatedSession
from rpcstream.methods.dispatch import Dispatcher
from rpcstream.peer.credentials import Credentials
from rpcstream.peer.session import Session
from rpcstream.testing import memory_client

from ..internals import answer_function, dispatcher_of, session_of, sessions_of
from ..kit.raw_connection import RawConnection

Connect = Callable[[str], Awaitable[RawConnection]]

TOKEN = "a-long-secret"
PONG = {"jsonrpc": "2.0", "id": 1, "result": "pong"}


def request(method: str, params: Any = None, id: Any = 1, **members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, **({} if params is None else {"params": params}), **members}


def lines(*messages: Any) -> bytes:
    return b"".join(orjson.dumps(each) + b"\n" for each in messages)


def login(token: str = TOKEN, id: Any = 0) -> dict[str, Any]:
    return request("rpc.authenticate", {"token": token}, id=id)


def code_of(reply: Any) -> int:
    code: int = reply["error"]["code"]
    return code


def serving(**options: Any) -> Server:
    """With `called`: what was carried out."""
    server = Server(**options)
    server.state.called = []

    @server
    def echo(value: Any = None) -> Any:
        server.state.called.append(value)
        return value

    @server
    def who(ctx: Context) -> Any:
        return ctx.identity

    @server
    async def later(value: Any) -> Any:
        await asyncio.sleep(0)
        server.state.called.append(value)
        return value

    return server


class Desk:
    """An async `authenticate` that decides when it is told to.

    Attributes:
        asked: what it was called with.
    """

    def __init__(self) -> None:
        self.asked: list[Credentials] = []
        self.asked_for = asyncio.Event()
        self.go = asyncio.Event()
        self.was_cancelled = False

    async def __call__(self, credentials: Credentials) -> str | None:
        self.asked.append(credentials)
        self.asked_for.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        return {"alice-secret": "alice", "bob-secret": "bob"}.get(credentials.token or "")


# -- before ---------------------------------------------------------------------------------------------------------


async def test_nothing_is_called_before_the_token(connect: Connect) -> None:
    server = serving(token=TOKEN)
    async with server.listening(port=0) as address:
        raw = await connect(address)
        for method in ("echo", "who", "rpc.discover", "rpc.stats", "rpc.subscribe", "no such"):
            assert code_of(await raw.call(method)) == -32005
        assert await raw.call("rpc.ping") == PONG
        await raw.send(lines({"jsonrpc": "2.0", "method": "echo", "params": [1]}))
        assert await raw.call("rpc.ping") == PONG
        assert server.state.called == []
        assert await raw.ask(orjson.dumps(login())) == {"jsonrpc": "2.0", "id": 0, "result": True}
        assert (await raw.call("echo", [2]))["result"] == 2
        assert (await raw.call("who"))["result"] == "token"
        assert server.state.called == [2]


async def test_each_member_of_a_batch_is_refused_by_itself(connect: Connect) -> None:
    server = serving(token=TOKEN)
    async with server.listening(port=0) as address:
        raw = await connect(address)
        batch = [
            request("echo", [1], id="a"),
            {"jsonrpc": "2.0", "method": "echo", "params": [2]},
            login(id="b"),
            17,
            request("echo", [3], id=1.5),
        ]
        replies = await raw.ask(orjson.dumps(batch))
        assert [(each["id"], code_of(each)) for each in replies] == [
            ("a", -32005),
            ("b", -32600),
            (None, -32005),
            (1.5, -32005),
        ]
        assert (await raw.ask(b"[]"))["error"]["code"] == -32600
        (refused,) = await raw.ask(b"[" + b"1," * 1000 + b"1]")
        assert code_of(refused) == -32004
        await raw.send(lines([{"jsonrpc": "2.0", "method": "echo"}]))
        assert await raw.call("rpc.ping") == PONG
        assert code_of(await raw.call("who")) == -32005
        assert server.state.called == []


async def test_a_request_in_a_batch_behind_the_token_is_none(connect: Connect) -> None:
    """A batch is settled as it came: the token must come before it."""
    server = serving(token=TOKEN)
    async with server.listening(port=0) as address:
        raw = await connect(address)
        replies = await raw.ask(orjson.dumps([login(), request("echo", [1])]))
        assert [code_of(each) for each in replies] == [-32600, -32005]
        await raw.send(lines(login(), [request("echo", [1]), request("who", id=2)]))
        assert (await raw.reply())["result"] is True
        assert [each["result"] for each in await raw.reply()] == [1, "token"]


async def test_ids_come_back_exactly(connect: Connect) -> None:
    async with serving(token=TOKEN).listening(port=0) as address:
        raw = await connect(address)
        for call_id in (b"18446744073709551616", b'"x"', b"null", b"-1"):
            await raw.send(b'{"jsonrpc":"2.0","id":%s,"method":"echo"}\n' % call_id)
            assert b'"id":%s,' % call_id in await raw.reader.readline()
        await raw.send(
            b'{"jsonrpc":"2.0","id":18446744073709551616,"method":"rpc.authenticate","params":["%s"]}\n' % b"no"
        )
        assert b'"id":18446744073709551616,' in await raw.reader.readline()
        assert code_of(await raw.ask(b'{"jsonrpc":"2.0","id":[],"method":"echo"}')) == -32005


@pytest.mark.parametrize(
    ("params", "code"),
    [
        (None, -32602),
        ({}, -32602),
        ([], -32602),
        ([TOKEN, 1], -32602),
        ({"token": TOKEN, "more": 1}, -32602),
        ({"token": None}, -32602),
        ({"token": 5}, -32602),
        ([[TOKEN]], -32602),
        (TOKEN, -32600),
        ({"token": ""}, -32005),
        ({"token": TOKEN + "x"}, -32005),
        ({"token": TOKEN[:-1]}, -32005),
        ({"token": TOKEN.upper()}, -32005),
        ({"token": "ö" * 40}, -32005),
    ],
)
async def test_what_is_no_token(connect: Connect, params: Any, code: int) -> None:
    async with serving(token=TOKEN).listening(port=0) as address:
        raw = await connect(address)
        reply = await raw.call("rpc.authenticate", params)
        assert code_of(reply) == code
        assert TOKEN not in str(reply)
        assert code_of(await raw.call("echo")) == -32005


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"{", -32700),
        (b'"text"', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"rpc.authenticate","params":["a-long-secret"]}', -32600),
        (b'{"id":1,"method":"rpc.authenticate","params":["a-long-secret"]}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"rpc.authenticate","params":["a-long-secret"]}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":["rpc.authenticate"],"params":["a-long-secret"]}', -32005),
        (b'{"jsonrpc":"2.0","id":1,"params":["a-long-secret"]}', -32005),
        (b"[" * 500 + b"]" * 500, -32600),
        (b'[{"id":1.5},' + b"[" * 900 + b"]" * 900 + b"]", -32600),
    ],
)
async def test_what_is_malformed_lets_nobody_in(connect: Connect, line: bytes, code: int) -> None:
    async with serving(token=TOKEN).listening(port=0) as address:
        raw = await connect(address)
        assert code_of(await raw.ask(line)) == code
        assert code_of(await raw.call("echo")) == -32005
        assert (await raw.ask(orjson.dumps(login())))["result"] is True


async def test_words_of_a_conversation_do_nothing(connect: Connect) -> None:
    async with serving(token=TOKEN).listening(port=0) as address:
        raw = await connect(address)
        for method in ("$/cancelRequest", "$/item", "$/credit", "$/end", "$/event", "$/progress", "$/x"):
            await raw.send(lines({"jsonrpc": "2.0", "method": method, "params": {"id": 1, "stream": "s", "n": 1}}))
        answer = {"jsonrpc": "2.0", "id": 1, "result": 5}
        await raw.send(lines(answer, [answer], [answer, request("echo", id="x")]))
        (refused,) = await raw.reply()
        assert (refused["id"], code_of(refused)) == ("x", -32005)
        assert await raw.call("rpc.ping") == PONG


# -- the token ------------------------------------------------------------------------------------------------------


async def test_token_and_calls_with_one_write(connect: Connect) -> None:
    async with serving(token=TOKEN).listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(login(), *[request("echo", [n], id=n) for n in range(1, 50)]))
        replies = [await raw.reply() for _ in range(50)]
        assert [each["id"] for each in replies] == list(range(50))
        assert [each["result"] for each in replies] == [True, *range(1, 50)]


async def test_the_token_as_a_notification_is_not_answered(connect: Connect) -> None:
    async with serving(token=TOKEN).listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines({"jsonrpc": "2.0", "method": "rpc.authenticate", "params": [TOKEN]}))
        assert await raw.call("echo", [1]) == {"jsonrpc": "2.0", "id": 1, "result": 1}


async def test_a_connection_is_closed_after_three_wrong_tokens(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    server = serving(token=TOKEN)
    async with server.listening(port=0) as address:
        raw = await connect(address)
        for wrong in ("one", "two"):
            assert code_of(await raw.ask(orjson.dumps(login(wrong)))) == -32005
        # What comes behind the last one is refused, even the right one.
        await raw.send(lines(login("three", id=3), login(id=4), request("echo", [1], id=5)))
        rest = await raw.rest()
        assert [(each["id"], code_of(each)) for each in rest] == [(3, -32005), (4, -32005), (5, -32005)]
        assert server.state.called == []
        other = await connect(address)
        assert (await other.ask(orjson.dumps(login())))["result"] is True
    assert "3 wrong tokens" in caplog.text
    assert server.counters.closed_for_limits == 1


async def test_wrong_tokens_count_as_notifications_too(connect: Connect) -> None:
    async with serving(token=TOKEN).listening(port=0) as address:
        raw = await connect(address)
        silent = {"jsonrpc": "2.0", "method": "rpc.authenticate", "params": ["wrong"]}
        await raw.send(lines(silent, silent, silent, login()))
        assert [code_of(each) for each in await raw.rest()] == [-32005]


async def test_two_wrong_ones_and_the_right_one(connect: Connect) -> None:
    async with serving(token=TOKEN).listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(login("one"), login("two"), login(), request("echo", [1])))
        replies = [await raw.reply() for _ in range(4)]
        assert [each.get("result") for each in replies] == [None, None, True, 1]


# -- afterwards -----------------------------------------------------------------------------------------------------


def accept(credentials: Credentials) -> Any:
    return {"alice-secret": "alice", "bob-secret": "bob", "no": False, "zero": 0}.get(credentials.token or "")


async def test_afterwards_the_dispatcher_answers_itself() -> None:
    """Nothing is left in the way of a call."""
    server = serving(token=TOKEN)
    async with memory_client(server) as client:
        with pytest.raises(NotAuthenticated):
            await client.call("echo", 1)
        assert await client.call("rpc.authenticate", TOKEN) is True
        session = session_of(server)
        assert isinstance(session, GatedSession)
        assert type(dispatcher_of(session)) is Dispatcher
        assert answer_function(session) == dispatcher_of(session).answer
        assert await client.call("who") == "token"


async def test_without_authentication_there_is_no_gate(connect: Connect) -> None:
    server = serving()
    async with server.listening(port=0) as address:
        raw = await connect(address)
        assert (await raw.call("who"))["result"] is None
        assert code_of(await raw.call("rpc.authenticate", [TOKEN])) == -32601
        session = session_of(server)
        assert type(session) is Session
    assert "rpc.authenticate" not in server.methods


async def test_who_is_known_may_become_another(connect: Connect) -> None:
    async with serving(authenticate=accept).listening(port=0) as address:
        raw = await connect(address)
        assert (await raw.call("rpc.authenticate", ["alice-secret"]))["result"] is True
        assert (await raw.call("who"))["result"] == "alice"
        assert code_of(await raw.call("rpc.authenticate", ["wrong"])) == -32005
        assert code_of(await raw.call("rpc.authenticate", [5])) == -32602
        assert (await raw.call("who"))["result"] == "alice"
        assert (await raw.call("rpc.authenticate", {"token": "bob-secret"}))["result"] is True
        assert (await raw.call("who"))["result"] == "bob"
        (refused,) = await raw.ask(orjson.dumps([login("alice-secret")]))
        assert code_of(refused) == -32600


async def test_wrong_tokens_count_before_and_after(connect: Connect) -> None:
    async with serving(authenticate=accept).listening(port=0) as address:
        raw = await connect(address)
        assert code_of(await raw.call("rpc.authenticate", ["wrong"])) == -32005
        assert (await raw.call("rpc.authenticate", ["alice-secret"]))["result"] is True
        assert code_of(await raw.call("rpc.authenticate", ["wrong"])) == -32005
        assert (await raw.call("who"))["result"] == "alice"
        await raw.send(lines(login("wrong", id=9)))
        assert [(each["id"], code_of(each)) for each in await raw.rest()] == [(9, -32005)]


async def test_who_is_known_cannot_guess_many_at_once(connect: Connect) -> None:
    asked = []

    async def find(credentials: Credentials) -> Any:
        asked.append(credentials.token)
        await asyncio.sleep(0)
        return accept(credentials)

    async with serving(authenticate=find).listening(port=0) as address:
        raw = await connect(address)
        assert (await raw.call("rpc.authenticate", ["alice-secret"]))["result"] is True
        await raw.send(lines(*[login(f"guess {n}", id=n) for n in range(100)], login("bob-secret", id="right")))
        replies = {each["id"]: each for each in await raw.rest()}
        assert {code_of(each) for each in replies.values()} == {-32005}
    assert asked == ["alice-secret", "guess 0", "guess 1", "guess 2"]


async def test_a_call_keeps_the_identity_that_it_came_with(connect: Connect) -> None:
    server = serving(authenticate=accept)
    go, begun = asyncio.Event(), asyncio.Event()

    @server
    async def slow(ctx: Context) -> Any:
        begun.set()
        await go.wait()
        return ctx.identity

    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(login("alice-secret"), request("slow", id="slow")))
        assert (await raw.reply())["result"] is True
        await begun.wait()
        assert (await raw.call("rpc.authenticate", ["bob-secret"], "b"))["result"] is True
        go.set()
        assert (await raw.reply())["result"] == "alice"
        assert (await raw.call("who"))["result"] == "bob"


@pytest.mark.parametrize(("token", "identity"), [("no", None), ("zero", 0)])
async def test_false_lets_nobody_in_but_zero_does(connect: Connect, token: str, identity: Any) -> None:
    async with serving(authenticate=accept).listening(port=0) as address:
        raw = await connect(address)
        reply = await raw.call("rpc.authenticate", [token])
        if identity is None:
            assert code_of(reply) == -32005
            assert code_of(await raw.call("who")) == -32005
        else:
            assert reply["result"] is True
            assert (await raw.call("who"))["result"] == identity


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3), asyncio.CancelledError(), GeneratorExit()])
@pytest.mark.parametrize("is_async", [False, True])
async def test_an_authenticate_that_fails_lets_nobody_in(
    connect: Connect, caplog: pytest.LogCaptureFixture, error: BaseException, is_async: bool
) -> None:
    def fail(credentials: Credentials) -> Any:
        raise error

    async def fail_later(credentials: Credentials) -> Any:
        await asyncio.sleep(0)
        raise error

    async with serving(authenticate=fail_later if is_async else fail).listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(login("x", id=1), request("who", id=2)))
        assert [code_of(await raw.reply()) for _ in range(2)] == [-32005, -32005]
    assert "authenticate function raised" in caplog.text
    assert "127.0.0.1:" in caplog.text


# -- an authenticate that waits -------------------------------------------------------------------------------------


async def test_what_is_pipelined_waits_for_the_decision_in_order(connect: Connect) -> None:
    desk = Desk()
    server = serving(authenticate=desk)
    async with server.listening(port=0) as address:
        raw = await connect(address)
        calls = [request("echo" if n % 2 else "later", [n], id=n) for n in range(1, 100)]
        await raw.send(lines(login("alice-secret"), *calls[:50]))
        await desk.asked_for.wait()
        await raw.send(lines(*calls[50:], request("who", id="who")))
        assert server.state.called == []
        desk.go.set()
        replies = [await raw.reply() for _ in range(101)]
        assert replies[0] == {"jsonrpc": "2.0", "id": 0, "result": True}
        assert {each["id"]: each["result"] for each in replies[1:]} == {n: n for n in range(1, 100)} | {"who": "alice"}
        assert [each["id"] for each in replies if each["id"] != "who" and each["id"] % 2] == list(range(1, 100, 2))
        assert len(desk.asked) == 1
        assert repr(desk.asked[0]).count("alice-secret") == 0
        assert desk.asked[0].token == "alice-secret"


async def test_what_is_pipelined_behind_a_wrong_token_is_refused(connect: Connect) -> None:
    desk = Desk()
    server = serving(authenticate=desk)
    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(login("wrong"), request("echo", [1]), login("bob-secret", id=2), request("who", id=3)))
        await desk.asked_for.wait()
        desk.go.set()
        replies = [await raw.reply() for _ in range(4)]
        assert [each.get("result") for each in replies] == [None, None, True, "bob"]
        assert [code_of(each) for each in replies[:2]] == [-32005, -32005]
        assert server.state.called == []


async def test_who_floods_while_the_server_decides_is_not_read(connect: Connect) -> None:
    """What waits is bounded, and all of it is answered in the end."""
    desk = Desk()
    server = serving(authenticate=desk, limits=Limits(max_calls=50))
    async with server.listening(port=0) as address:
        raw = await connect(address)
        raw.writer.write(lines(login("alice-secret"), *[request("echo", ["x" * 1000], id=n) for n in range(1, 20_001)]))
        await desk.asked_for.wait()
        session = session_of(server)
        while not session.is_paused:
            await asyncio.sleep(0)
        assert session.queue.size < 2 * 1024 * 1024
        desk.go.set()
        replies = [await raw.reply() for _ in range(20_001)]
        assert [each["id"] for each in replies] == list(range(20_001))


async def test_a_cancelled_authenticate_lets_nobody_in(connect: Connect) -> None:
    desk = Desk()
    server = serving(authenticate=desk)
    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(login("alice-secret"), request("echo", [1])))
        await desk.asked_for.wait()
        await raw.send(lines({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 0}}))
        assert [code_of(await raw.reply()) for _ in range(2)] == [-32800, -32005]
        assert desk.was_cancelled
        desk.go.set()
        await raw.send(lines(login("alice-secret"), request("who")))
        assert [(await raw.reply())["result"] for _ in range(2)] == [True, "alice"]


async def test_a_cancel_with_the_same_write(connect: Connect) -> None:
    """It comes before the decision has begun; the connection goes on all the same."""
    desk = Desk()
    desk.go.set()
    async with serving(authenticate=desk).listening(port=0) as address:
        raw = await connect(address)
        cancel = {"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": 0}}
        await raw.send(lines(login("alice-secret"), cancel, request("rpc.ping")))
        replies = [await raw.reply() for _ in range(2)]
        assert replies[-1] == PONG


async def test_a_call_that_waits_can_be_cancelled(connect: Connect) -> None:
    desk = Desk()
    server = serving(authenticate=desk)
    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(login("alice-secret"), request("echo", [1], id="a"), request("echo", [2], id="b")))
        await desk.asked_for.wait()
        await raw.send(lines({"jsonrpc": "2.0", "method": "$/cancelRequest", "params": {"id": "a"}}))
        session = session_of(server)
        while not session.queue.cancels:
            await asyncio.sleep(0)
        desk.go.set()
        replies = {each["id"]: each for each in [await raw.reply() for _ in range(3)]}
        assert code_of(replies["a"]) == -32800
        assert replies["b"]["result"] == 2
        assert server.state.called == [2]


async def test_a_lost_connection_ends_the_decision(connect: Connect) -> None:
    desk = Desk()
    server = serving(authenticate=desk)
    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(login("alice-secret"), request("echo", [1])))
        await desk.asked_for.wait()
        reset = struct.pack("ii", 1, 0)
        raw.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        raw.writer.transport.abort()
        while not desk.was_cancelled:
            await asyncio.sleep(0)
        while sessions_of(server):
            await asyncio.sleep(0)
    assert server.state.called == []


async def test_who_says_the_last_word_is_answered(connect: Connect) -> None:
    desk = Desk()
    async with serving(authenticate=desk).listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(login("alice-secret"), request("echo", [1]), request("who", id=2)))
        raw.end()
        await desk.asked_for.wait()
        desk.go.set()
        assert [each["result"] for each in await raw.rest()] == [True, 1, "alice"]


async def test_a_server_that_stops_does_not_wait_for_strangers(connect: Connect) -> None:
    server = serving(token=TOKEN, limits=Limits(auth_timeout=None))
    async with server.listening(port=0) as address:
        raw = await connect(address)
        assert await raw.call("rpc.ping") == PONG
    assert await raw.rest() == []


async def test_an_async_function_that_does_not_look_like_one(connect: Connect) -> None:
    async def find(credentials: Credentials) -> Any:
        return accept(credentials)

    async with serving(authenticate=lambda credentials: find(credentials)).listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(login("wrong"), login("alice-secret"), request("who")))
        replies = [await raw.reply() for _ in range(3)]
        assert [each.get("result") for each in replies] == [None, True, "alice"]


# -- limits ---------------------------------------------------------------------------------------------------------


async def test_a_stranger_sends_small_messages_only(connect: Connect) -> None:
    server = serving(token=TOKEN, limits=Limits(auth_message_size=1000))
    async with server.listening(port=0) as address:
        raw = await connect(address)
        reply = await raw.ask(orjson.dumps(request("echo", ["x" * 1000])))
        assert (code_of(reply), reply["id"], reply["error"]["data"]["limit"]) == (-32001, 1, 1000)
        assert code_of(await raw.ask(orjson.dumps(login("x" * 1000)))) == -32001
        # A message without an end is answered as soon as it is too long, not kept.
        await raw.send(b'{"jsonrpc":"2.0","id":7,"method":"echo","params":["' + b"x" * 3000)
        reply = await raw.reply()
        assert (code_of(reply), reply["id"]) == (-32001, 7)
        await raw.send(b"x" * 100_000 + b'"]}\n')
        assert (await raw.ask(orjson.dumps(login())))["result"] is True
        assert len((await raw.call("echo", ["x" * 100_000]))["result"]) == 100_000


async def test_the_limit_ends_within_a_message(connect: Connect) -> None:
    """What begins before the token is taken, and ends behind it, may be as long as any."""
    server = serving(token=TOKEN, limits=Limits(auth_message_size=1000))
    async with server.listening(port=0) as address:
        raw = await connect(address)
        whole = lines(request("echo", ["x" * 100_000]))
        await raw.send(lines(login()) + whole[:900])
        assert (await raw.reply())["result"] is True
        await raw.send(whole[900:])
        assert len((await raw.reply())["result"]) == 100_000


async def test_too_long_behind_the_token_names_the_limit_it_was_over(connect: Connect) -> None:
    server = serving(token=TOKEN, limits=Limits(auth_message_size=1000))
    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(login(), request("echo", ["x" * 2000])))
        assert (await raw.reply())["result"] is True
        reply = await raw.reply()
        assert (code_of(reply), reply["error"]["data"]["limit"]) == (-32001, 1000)


async def test_a_stranger_has_little_time(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    server = serving(token=TOKEN, limits=Limits(auth_timeout=0.05))
    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(request("rpc.ping")))
        rest = await raw.rest()
        assert rest[0] == PONG
        assert (rest[1]["id"], code_of(rest[1])) == (None, -32005)
        assert "auth_timeout" in rest[1]["error"]["data"]["reason"]
    assert "auth_timeout" in caplog.text
    assert server.counters.closed_for_limits == 1


async def test_time_is_not_gained_by_talking(connect: Connect) -> None:
    server = serving(token=TOKEN, limits=Limits(auth_timeout=0.05))
    async with server.listening(port=0) as address:
        raw = await connect(address)
        heard: list[bytes] = []
        with contextlib.suppress(ConnectionError):  # a ping that crosses the end of the connection
            while not heard or b"pong" in heard[-1]:
                await raw.send(lines(request("rpc.ping")))
                heard.append(await asyncio.wait_for(raw.reader.readline(), 20))
            assert await raw.rest() == []
        ended = [line for line in heard if line and b"pong" not in line]
        assert [code_of(orjson.loads(line)) for line in ended] in ([-32005], [])


async def test_time_ends_while_the_server_decides(connect: Connect) -> None:
    desk = Desk()
    server = serving(authenticate=desk, limits=Limits(auth_timeout=0.05))
    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(login("alice-secret"), request("echo", [1])))
        rest = await raw.rest()
        assert {code_of(each) for each in rest} == {-32005}
        assert {each["id"] for each in rest} == {None, 0, 1}
    assert desk.was_cancelled
    assert server.state.called == []


async def test_a_decision_that_comes_too_late_counts_no_more(connect: Connect) -> None:
    """The server's function does not end when it is told to, and says yes afterwards."""

    async def find(credentials: Credentials) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "alice"

    server = serving(authenticate=find, limits=Limits(auth_timeout=0.05))
    async with server.listening(port=0) as address:
        raw = await connect(address)
        await raw.send(lines(login("alice-secret"), request("echo", [1])))
        assert {code_of(each) for each in await raw.rest()} == {-32005}
    assert server.state.called == []


async def test_who_is_known_has_all_the_time(connect: Connect) -> None:
    server = serving(token=TOKEN, limits=Limits(auth_timeout=0.05))
    async with server.listening(port=0) as address:
        raw, stranger = await connect(address), await connect(address)
        await raw.send(lines(login()))
        assert (await raw.reply())["result"] is True
        await stranger.send(lines(request("rpc.ping")))
        assert len(await stranger.rest()) == 2
        assert (await raw.call("echo", [1]))["result"] == 1


async def test_an_authenticate_that_never_ends_is_given_up(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """Also the second one, when the connection has no deadline any more."""

    async def find(credentials: Credentials) -> Any:
        if credentials.token == "slow":
            await asyncio.Event().wait()
        return accept(credentials)

    server = serving(authenticate=find, limits=Limits(auth_timeout=0.2))
    async with server.listening(port=0) as address:
        raw = await connect(address)
        assert (await raw.call("rpc.authenticate", ["alice-secret"]))["result"] is True
        assert code_of(await raw.call("rpc.authenticate", ["slow"])) == -32005
        assert (await raw.call("who"))["result"] == "alice"
    assert "authenticate function raised" in caplog.text


# -- configuration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"token": ""},
        {"token": "with blank"},
        {"token": "line\n"},
        {"token": "x", "authenticate": accept},
    ],
)
def test_a_server_refuses_a_token_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="token"):
        Server(**options)


@pytest.mark.parametrize("options", [{"token": b"x"}, {"token": 5}, {"authenticate": "x"}])
def test_a_server_refuses_what_is_no_token_and_no_function(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"(token|authenticate) must be"):
        Server(**options)


async def test_tokens_may_be_any_text(connect: Connect) -> None:
    async with serving(token="Schlüssel-鍵").listening(port=0) as address:
        raw = await connect(address)
        assert code_of(await raw.call("rpc.authenticate", ["Schlüssel-鍵x"])) == -32005
        assert code_of(await raw.ask(rb'{"jsonrpc":"2.0","id":1,"method":"rpc.authenticate","params":["\ud800"]}')) in (
            -32700,
            -32005,
        )
        assert (await raw.call("rpc.authenticate", ["Schlüssel-鍵"]))["result"] is True


async def test_nothing_is_logged_of_a_token(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def fail(credentials: Credentials) -> Any:
        raise ValueError("boom")

    async with serving(authenticate=fail, debug=True).listening(port=0) as address:
        raw = await connect(address)
        assert code_of(await raw.call("rpc.authenticate", ["hidden-secret"])) == -32005
        assert code_of(await raw.call("echo", ["to be seen"])) == -32005
    assert "boom" in caplog.text
    assert "to be seen" in caplog.text
    assert "hidden-secret" not in caplog.text


async def test_a_client_can_be_known() -> None:
    """The pieces fit a real client: authenticate, then call as usual, also back."""
    server = serving(token=TOKEN)

    @server
    async def ask(ctx: Context) -> Any:
        return await ctx.peer.confirm("sure?")

    @server
    async def count(n: int) -> AsyncIterator[int]:
        for each in range(n):
            yield each

    async with server.listening(port=0) as address, AsyncClient(address) as client:

        @client
        def confirm(text: str) -> str:
            return f"{text} yes"

        assert await client.call("rpc.authenticate", TOKEN) is True
        assert await client.call("ask") == "sure? yes"
        assert [each async for each in client.stream("count", 5)] == [0, 1, 2, 3, 4]
