"""Programs that know NATS and not rpcstream, by docs/reference/nats.md: they call, serve, and hold a session by hand.

All of it with nats-py alone, as another language would do it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

nats = pytest.importorskip("nats")

from rpcstream import AsyncClient, Context, MethodNotFound, RpcError, Server  # noqa: E402

from ..kit import until  # noqa: E402
from ..kit.nats_server import NatsServer  # noqa: E402
from ..kit.plain_nats import plain_client  # noqa: E402
from .conftest import Clock  # noqa: E402

pytestmark = pytest.mark.nats


@pytest.fixture
def service(request: pytest.FixtureRequest) -> str:
    """A name for the service of one test."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:64]


def make_server() -> Server:
    server = Server()
    server.add(lambda a, b: a + b, name="add")
    server.add(lambda text: text, name="sum of*")

    @server
    def numbers(count: int, ctx: Context) -> Any:
        ctx.progress(count)
        yield from range(count)

    @server
    async def total(values: AsyncIterator[int]) -> int:
        return sum([each async for each in values])

    @server
    async def ask(ctx: Context) -> Any:
        return await ctx.peer.name()

    @server
    async def wait(ctx: Context) -> None:
        await asyncio.Event().wait()

    return server


@asynccontextmanager
async def joined(server: Server, at: NatsServer, service: str) -> AsyncIterator[Any]:
    """A connection of nats-py, while the server serves."""
    server.join_nats(at.url, service=service, only=True)
    async with server, plain_client(at.url) as connection:
        yield connection


def request(method: str, params: Any, call_id: Any = 1) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": call_id, "method": method, "params": params}).encode()


# -- they call --------------------------------------------------------------------------------------------------------


async def test_a_request_of_another_library_gets_one_reply(shared_nats: NatsServer, service: str) -> None:
    async with joined(make_server(), shared_nats, service) as connection:

        async def call(tokens: str, method: str, params: Any) -> Any:
            reply = await connection.request(f"rpc.{service}.{tokens}", request(method, params), 10)
            return json.loads(reply.data)

        assert (await call("add", "add", {"a": 2}))["error"]["code"] == -32602
        assert (await call("sum%20of%2A", "sum of*", ["x"]))["result"] == "x"
        assert (await call("numbers", "numbers", [3]))["result"] == [0, 1, 2]
        assert "error" in await call("ask", "ask", [])


# -- they serve -------------------------------------------------------------------------------------------------------


async def serve(connection: Any, subject: str, answer: Callable[[Any], Any]) -> None:
    async def handle(message: Any) -> None:
        asked = json.loads(message.data)
        reply = {"jsonrpc": "2.0", "id": asked["id"]} | answer(asked)
        await message.respond(json.dumps(reply).encode())

    await connection.subscribe(subject, queue="rpc", cb=handle)
    await connection.flush()


async def test_our_client_calls_a_server_of_another_library(shared_nats: NatsServer, service: str) -> None:
    async with plain_client(shared_nats.url) as connection, AsyncClient(f"{shared_nats.url}/{service}") as client:
        await serve(connection, f"rpc.{service}.shout", lambda asked: {"result": asked["params"][0].upper()})
        await serve(connection, f"rpc.{service}.fail", lambda asked: {"error": {"code": 7, "message": "no"}})
        assert await client.shout("hello") == "HELLO"
        with pytest.raises(RpcError, match="no") as caught:
            await client.fail()
        assert caught.value.code == 7
        with pytest.raises(MethodNotFound):
            await client.another()


async def test_arrays_come_as_text_for_a_client_without_frames(shared_nats: NatsServer, service: str) -> None:
    address = f"{shared_nats.url}/{service}"
    async with plain_client(shared_nats.url) as connection, AsyncClient(address, binary=False) as client:
        await serve(connection, f"rpc.{service}.echo", lambda asked: {"result": asked["params"][0]})
        array = np.arange(5000, dtype=np.float32)
        assert (await client.echo(array) == array).all()


@pytest.mark.parametrize("how", ["acknowledged", "asked for", "says nothing"])
async def test_a_call_that_takes_longer_is_told_of(
    clock: Clock, shared_nats: NatsServer, service: str, how: str
) -> None:
    """A server by hand whose method takes longer than a client waits before it asks."""
    own = f"rpc.{service}.$instance.by-hand.1"
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    asked_for = asyncio.Event()

    async with plain_client(shared_nats.url) as connection, AsyncClient(f"{shared_nats.url}/{service}") as client:

        async def begin(message: Any) -> None:
            call_id = json.loads(message.data)["id"]
            base = message.reply.rpartition(".")[0]
            if how == "acknowledged":
                await connection.publish(f"{base}.ack", json.dumps([call_id]).encode(), reply=own)
            elif how == "asked for":
                await asked_for.wait()
            reply = json.dumps({"jsonrpc": "2.0", "id": call_id, "result": "done"}).encode()
            if how == "says nothing":
                await asyncio.sleep(2)  # until after the client has asked; a call to it waits for its time-out
                await message.respond(reply)
            else:
                await asyncio.wait_for(heard.get(), 20)  # it looks whether this instance is there
                await connection.publish(f"{base}.m", reply, reply=own)

        async def inquired(message: Any) -> None:
            base, _, token = message.reply.rpartition(".")
            await connection.publish(f"{base}.have", json.dumps([token, json.loads(message.data)]).encode(), reply=own)
            asked_for.set()

        async def direct(message: Any) -> None:
            heard.put_nowait(message.data)

        await connection.subscribe(f"{own}.>", cb=direct)
        await connection.subscribe(own, cb=direct)
        if how == "asked for":
            await connection.subscribe(f"rpc.{service}.$inquiry", cb=inquired)
        await connection.subscribe(f"rpc.{service}.slow", queue="rpc", cb=begin)
        await connection.flush()
        call = asyncio.create_task(client.slow())
        await clock.until(call.done)
        assert await call == "done"


# -- a session by hand ------------------------------------------------------------------------------------------------


class SessionByHand:
    """A caller with an inbox of our form.

    Attributes:
        got: what has come: the last token of the subject, the JSON, the reply subject.
    """

    def __init__(self, connection: Any, service: str) -> None:
        self.base = f"{connection.new_inbox()}.rpcstream"
        self.got: list[tuple[str, Any, str]] = []
        self._connection = connection
        self._service = service

    async def open(self) -> None:
        await self._connection.subscribe(f"{self.base}.*", cb=self._receive)

    async def _receive(self, message: Any) -> None:
        token = message.subject[len(self.base) + 1 :]
        self.got += [(token, json.loads(line), message.reply) for line in message.data.splitlines()]

    async def call(self, method: str, params: Any, call_id: int, **members: Any) -> None:
        asked = json.dumps(json.loads(request(method, params, call_id)) | members).encode()
        await self._connection.publish(f"rpc.{self._service}.{method}", asked, reply=f"{self.base}.{call_id}")

    async def send(self, message: dict[str, Any], session: str) -> None:
        payload = json.dumps({"jsonrpc": "2.0"} | message).encode()
        await self._connection.publish(session, payload, reply=f"{self.base}.i1")

    async def next(self, token: str, wanted: Callable[[Any], object]) -> tuple[Any, str]:
        """Wait for a message; gives its JSON and its reply subject."""

        def found() -> list[tuple[str, Any, str]]:
            return [each for each in self.got if each[0] == token and wanted(each[1])]

        await until(found)
        _, message, session = found()[0]
        return message, session


@pytest.fixture
async def caller(shared_nats: NatsServer, service: str) -> AsyncIterator[SessionByHand]:
    async with joined(make_server(), shared_nats, service) as connection:
        made = SessionByHand(connection, service)
        await made.open()
        yield made


async def test_a_handler_calls_a_session_by_hand_back(caller: SessionByHand) -> None:
    await caller.call("ask", [], 1)
    asked, session = await caller.next("m", lambda each: each.get("method") == "name")
    await caller.send({"id": asked["id"], "result": "nats-py"}, session)
    message, _ = await caller.next("m", lambda each: each.get("id") == 1 and "result" in each)
    assert message["result"] == "nats-py"


async def test_a_stream_and_its_progress_come_to_a_session_by_hand(caller: SessionByHand) -> None:
    await caller.call("numbers", [3], 1, stream=1)
    _, session = await caller.next("m", lambda each: each.get("params") == {"id": 1, "value": 0})
    await caller.next("ack", lambda each: each == [1])
    assert not [each for _, each, _ in caller.got if each and type(each) is dict and "result" in each]
    await caller.send({"method": "$/credit", "params": {"id": 1, "n": 10}}, session)
    await caller.next("m", lambda each: each.get("id") == 1)
    items = [
        each["params"]["value"] for _, each, _ in caller.got if type(each) is dict and each.get("method") == "$/item"
    ]
    assert items == [0, 1, 2]
    await caller.next("m", lambda each: each.get("method") == "$/progress")


async def test_the_place_of_a_stream_is_told_before_its_items_and_its_credit(caller: SessionByHand) -> None:
    """A client drops what it cannot send to a place that it knows: a stream would wait for ever."""
    await caller.call("add", [1, 2], 1)
    await caller.next("m", lambda each: each["id"] == 1)
    await caller.call("total", [{"$type": "stream", "id": "s1"}], 2)
    await caller.next("m", lambda each: each.get("method") == "$/credit")
    await caller.call("numbers", [3], 3, stream=1)
    await caller.next("m", lambda each: each.get("method") == "$/item")
    told = [call_id for token, ids, _ in caller.got if token == "ack" for call_id in ids]
    assert told == [1, 2, 3]
    # In the order in which they came.
    tokens = [(token, message if token == "ack" else message.get("method")) for token, message, _ in caller.got]
    assert tokens.index(("ack", [2])) < tokens.index(("m", "$/credit"))
    assert tokens.index(("ack", [3])) < tokens.index(("m", "$/item"))


async def test_a_long_call_of_a_session_by_hand_is_told_of_asked_for_and_cancelled(
    caller: SessionByHand, shared_nats: NatsServer, service: str
) -> None:
    await caller.call("wait", [], 3)
    _, session = await caller.next("ack", lambda each: each == [3])
    async with plain_client(shared_nats.url) as other:
        await other.publish(f"rpc.{service}.$inquiry", b"[3, 4]", reply=f"{caller.base}.q1")
        assert (await caller.next("have", bool)) == (["q1", [3]], session)
    await caller.send({"method": "$/cancelRequest", "params": {"id": 3}}, session)
    message, _ = await caller.next("m", lambda each: each.get("id") == 3)
    assert message["error"]["code"] == -32800


async def test_nats_says_that_an_instance_is_gone(shared_nats: NatsServer, service: str) -> None:
    async with plain_client(shared_nats.url) as connection:
        async with joined(make_server(), shared_nats, service) as other:
            caller = SessionByHand(other, service)
            await caller.open()
            await caller.call("add", [1, 1], 1)
            _, session = await caller.next("m", bool)
        for _ in range(100):  # what comes before NATS has seen that the connection is closed is lost
            with pytest.raises((nats.errors.NoRespondersError, nats.errors.TimeoutError)) as failed:
                await connection.request(session, b"", 0.2)
            if failed.type is nats.errors.NoRespondersError:
                return
        pytest.fail("NATS has not said it")


# -- claim tickets by hand ---------------------------------------------------------------------------------------------


async def test_a_call_and_a_result_over_max_payload_by_hand(
    start_nats: Callable[..., NatsServer], service: str
) -> None:
    at = start_nats(max_payload=4096)
    server = Server()
    server.add(lambda text: len(text), name="length")
    server.add(lambda count: "x" * count, name="repeat")
    async with joined(server, at, service) as connection:
        caller = SessionByHand(connection, service)
        await caller.open()

        # A ticket in place of the call asks for a place.
        call = request("length", ["y" * 10_000], 1)
        ask = {"ask": 1, "method": "length", "size": len(call), "ids": [1]}
        message = {"jsonrpc": "2.0", "method": "$/ticket", "params": ask}
        payload = json.dumps(message, separators=(",", ":")).encode()
        await connection.publish(f"rpc.{service}.length", payload, reply=f"{caller.base}.1")
        told, _ = await caller.next("ticket", bool)
        granted = told["params"]
        assert granted["ask"] == 1

        host, _, port = granted["address"].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"rpcstream {granted['secret']}\n".encode())
        assert await reader.readline() == b"ok\n"
        writer.write(b"!%d\n%b\n" % (granted["place"], call))
        message, _ = await caller.next("m", lambda each: each.get("id") == 1)
        assert message["result"] == 10_000

        # A result that nothing must come before goes by the connection without a ticket.
        await caller.call("repeat", [10_000], 2)
        assert await reader.readline() == b"=\n"
        assert json.loads(await reader.readline())["result"] == "x" * 10_000
        writer.close()
        await writer.wait_closed()
