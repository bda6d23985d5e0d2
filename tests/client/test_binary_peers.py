"""Binary frames and the server at the other end: one that knows none, says nothing, or leaves; with both clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rpcstream import AsyncClient, Client, ConnectionLost, Context, MethodNotFound, Server
from rpcstream.testing import drop_connections, serve_in_thread

from ..kit import authority, server_tls
from ..kit.scripted import Script, ScriptedConnection
from .conftest import MakeClient
from .test_go_away import Connections, answer_all, go_away

Scripted = Callable[[Script], str]

ARRAY = np.arange(2000, dtype=np.float64)


class Traced:
    """What a client has sent and received, for `trace=`."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []

    def __call__(self, direction: str, message: bytes) -> None:
        self.messages.append((direction, bytes(message)))

    def frames(self, direction: str) -> int:
        return sum(way == direction and message[:1] == b"@" for way, message in self.messages)

    @property
    def hellos(self) -> int:
        return sum(b'"rpc.hello"' in message and way == "send" for way, message in self.messages)


# -- servers that know no frames -------------------------------------------------------------------------------------


class OldServer:
    """A script that echoes the one argument of each call as text, and treats `rpc.hello` as it was told.

    Attributes:
        methods: of the messages that came, in order.
    """

    def __init__(self, on_hello: Callable[[ScriptedConnection, Any], object]) -> None:
        self._on_hello = on_hello
        self.methods: list[str] = []

    def __call__(self, connection: ScriptedConnection) -> None:
        while (message := connection.read()) is not None:
            self.methods.append(message["method"])
            if message["method"] == "rpc.hello":
                self._on_hello(connection, message)
            elif "id" in message:
                connection.answer(message, message["params"][0])


def refuse(code: int) -> Callable[[ScriptedConnection, Any], object]:
    error = {"code": code, "message": "Method not found"}
    return lambda connection, hello: connection.say({"jsonrpc": "2.0", "id": hello["id"], "error": error})


ANSWERS: dict[str, Callable[[ScriptedConnection, Any], object]] = {
    "-32601": refuse(-32601),
    "another error": refuse(-32000),
    "no answer": lambda connection, hello: None,
    "null": lambda connection, hello: connection.answer(hello, None),
    "switched off": lambda connection, hello: connection.answer(hello, {"binary": 0}),
    "a later version": lambda connection, hello: connection.answer(hello, {"binary": 2}),
    "something else": lambda connection, hello: connection.answer(hello, ["binary", 1]),
}


@pytest.mark.parametrize("on_hello", ANSWERS.values(), ids=ANSWERS)
def test_text_is_sent_for_good_to_a_server_that_takes_no_frames(
    scripted: Scripted, make_client: MakeClient, on_hello: Callable[[ScriptedConnection, Any], object]
) -> None:
    server, traced = OldServer(on_hello), Traced()
    client = make_client(scripted(server), trace=traced)
    for _ in range(3):
        assert (client.call("echo", ARRAY) == ARRAY).all()
    assert server.methods == ["rpc.hello", "echo", "echo", "echo"]
    assert (traced.frames("send"), client.replies_dropped) == (0, 0)


def test_a_server_is_asked_on_each_connection(scripted: Scripted, make_client: MakeClient) -> None:
    server = OldServer(refuse(-32601))
    address = scripted(server)
    for _ in range(2):
        client = make_client(address)
        assert (client.call("echo", ARRAY) == ARRAY).all()
    assert server.methods == ["rpc.hello", "echo"] * 2


def test_frames_are_sent_once_the_answer_has_come(scripted: Scripted, make_client: MakeClient) -> None:
    lines: list[bytes | None] = []

    def serve(connection: ScriptedConnection) -> None:
        hello, call = connection.read(), connection.read()
        connection.answer(call, 1)
        call = connection.read()  # still text, since the answer has not come
        connection.answer(hello, {"binary": 1, "more": {}})
        connection.answer(call, 2)
        lines.append(connection.read_line())

    client = make_client(scripted(serve))
    assert [client.call("first", ARRAY), client.call("second", ARRAY)] == [1, 2]
    with pytest.raises(ConnectionLost):
        client.call("third", ARRAY)
    assert lines[0] is not None
    assert lines[0].startswith(b"@")
    assert lines[0].split()[1:] == [b"%d" % ARRAY.nbytes]


def test_a_connection_without_large_payloads_says_nothing_of_frames(
    scripted: Scripted, make_client: MakeClient
) -> None:
    server = OldServer(refuse(-32601))
    client = make_client(scripted(server))
    small = np.arange(100)
    for value in (1, "x" * 100_000, small, [{"data": "y" * 10_000}]):
        client.call("echo", value)
    client.notify("echo", small)
    client.call("echo", 2)
    assert server.methods == ["echo"] * 6


def test_a_server_that_closes_at_an_unknown_method_is_called_with_frames_switched_off(
    scripted: Scripted, make_client: MakeClient
) -> None:
    def strict(connection: ScriptedConnection) -> None:
        while (message := connection.read()) is not None and message["method"] != "rpc.hello":
            connection.answer(message, message["params"][0])

    address = scripted(strict)
    with pytest.raises(ConnectionLost):
        make_client(address).call("echo", ARRAY)
    client = make_client(address, binary=False)
    assert (client.call("echo", ARRAY) == ARRAY).all()


def test_a_call_that_a_leaving_server_has_not_read_is_made_again(scripted: Scripted, make_client: MakeClient) -> None:
    """The `rpc.hello` ahead of it has a greater id, since the call had its own already."""

    def leave(connection: ScriptedConnection) -> None:
        hello = connection.read()
        connection.answer(hello, {"binary": 0})
        connection.say(go_away(hello["id"]))

    connections = Connections(leave, answer_all)
    client = make_client(scripted(connections))
    assert client.call("echo", ARRAY) == "again"
    assert connections.count == 2


def test_a_call_that_a_leaving_server_has_read_is_not_made_again(scripted: Scripted, make_client: MakeClient) -> None:
    def leave(connection: ScriptedConnection) -> None:
        hello, call = connection.read(), connection.read()
        connection.answer(hello, {"binary": 0})
        connection.say(go_away(call["id"]))

    connections = Connections(leave, answer_all)
    with pytest.raises(ConnectionLost) as caught:
        make_client(scripted(connections)).call("echo", ARRAY)
    assert caught.value.executed is None
    assert connections.count == 1


# -- everything that a client does, with a server that takes them ---------------------------------------------------


@pytest.fixture(scope="module")
def noted() -> list[Any]:
    return []


@pytest.fixture(scope="module")
def address(noted: list[Any]) -> Iterator[str]:
    with serve_in_thread(make_server(noted)) as where:
        yield where


def make_server(noted: list[Any], **options: Any) -> Server:
    server = Server(drain_timeout=0.2, **options)
    server.add(lambda value: value, name="echo")
    server.add(lambda value: noted.append(value), name="note")
    server.add(lambda: len(noted), name="noted")

    @server
    def flaky(value: np.ndarray) -> np.ndarray:
        if len(noted) % 2:
            drop_connections(server)
        noted.append(value)
        return value

    @server
    async def double(parts: AsyncIterator[np.ndarray]) -> AsyncIterator[np.ndarray]:
        async for part in parts:
            yield 2 * part

    @server
    async def ask(value: np.ndarray, ctx: Context) -> Any:
        ctx.progress(value)
        return await ctx.peer.call("answer", value)

    return server


def test_all_kinds_of_calls(address: str, noted: list[Any], make_client: MakeClient) -> None:
    traced = Traced()
    client = make_client(address, trace=traced)
    client.call("echo", ARRAY)
    client.call("note", None)
    noted.clear()
    before = traced.frames("send")
    client.notify("note", ARRAY)
    assert client.call("noted") == 1
    assert (noted[0] == ARRAY).all()
    assert traced.frames("send") == before + 1
    request = {"jsonrpc": "2.0", "id": "mine", "method": "echo", "params": {"value": {"a": [ARRAY, ARRAY]}}}
    reply = client(request)
    assert (np.array(reply["result"]["a"]) == ARRAY).all()
    outcomes = client.together(*[("echo", ARRAY + number) for number in range(5)])
    assert [outcome[0] for outcome in outcomes] == [0, 1, 2, 3, 4]
    assert traced.frames("receive") >= 7
    assert traced.hellos <= 2  # calls at the same time may take another connection


def test_a_batch_is_one_text(address: str, make_client: MakeClient) -> None:
    traced = Traced()
    client = make_client(address, trace=traced)
    client.call("echo", ARRAY)
    client.call("echo", ARRAY)
    before = traced.frames("send"), traced.frames("receive")
    results = client.batch(("echo", ARRAY), ("echo", 5), ("echo", [ARRAY, ARRAY + 1]))
    assert (results[0].result() == ARRAY).all()
    assert results[1].result() == 5
    assert (results[2].result()[1] == ARRAY + 1).all()
    assert (traced.frames("send"), traced.frames("receive")) == before


def test_a_call_that_is_made_again_has_its_arrays(address: str, noted: list[Any], make_client: MakeClient) -> None:
    client = make_client(address, retries=2, retry="all")
    client.call("echo", ARRAY)
    noted[:] = [None]
    assert (client.call("flaky", ARRAY) == ARRAY).all()
    assert len(noted) >= 2
    assert all((each == ARRAY).all() for each in noted[1:])


def test_the_loop_thread_of_a_sync_client_sends_frames(address: str) -> None:
    traced = Traced()
    got: list[Any] = []
    with Client(address, trace=traced) as client:

        @client
        def answer(value: Any) -> Any:
            return value + 1

        assert (client.call("ask", ARRAY, on_progress=got.append) == ARRAY + 1).all()
        assert (client.call("ask", ARRAY, on_progress=got.append) == ARRAY + 1).all()
        assert (client.submit("echo", ARRAY).result() == ARRAY).all()
        items = list(client.stream.double(iter([ARRAY, ARRAY + 1])))
    assert (items[1] == 2 * (ARRAY + 1)).all()
    assert [(each == ARRAY).all() for each in got] == [True, True]
    assert traced.hellos == 1
    # Sent: the answer to the first call back, the second call and its answer, a call, two items.
    assert traced.frames("send") >= 6
    assert traced.frames("receive") >= 7


def test_a_sync_client_sends_frames_over_tls() -> None:
    traced = Traced()
    ca = authority()
    with (
        serve_in_thread(make_server([], tls=server_tls())) as where,
        Client(f"tls://{where.removeprefix('tls://')}", trace=traced, ca=ca) as client,
    ):
        for _ in range(3):
            assert (client.call("echo", ARRAY) == ARRAY).all()
    assert (traced.frames("send"), traced.frames("receive")) == (2, 3)


async def test_a_client_that_connects_again_asks_again() -> None:
    traced = Traced()
    server = make_server([])
    async with server.listening(port=0) as address, AsyncClient(address, trace=traced, reconnect=True) as client:
        for _ in range(2):
            assert (await client.call("echo", ARRAY) == ARRAY).all()
        drop_connections(server)
        while client.state == "connected":
            await asyncio.sleep(0)
        for _ in range(2):
            assert (await client.call("echo", ARRAY, wait_for=20) == ARRAY).all()
    assert traced.hellos == 2
    assert (traced.frames("send"), traced.frames("receive")) == (2, 4)


async def test_keepalive_goes_on_beside_frames() -> None:
    traced = Traced()
    server = make_server([])
    async with server.listening(port=0) as address, AsyncClient(address, trace=traced, keepalive=0.05) as client:
        for _ in range(2):
            assert (await client.call("echo", ARRAY) == ARRAY).all()
        while not any(b'"rpc.ping"' in message for _, message in traced.messages):
            await asyncio.sleep(0.01)
        assert (await client.call("echo", ARRAY) == ARRAY).all()
    assert traced.hellos == 1


def test_frames_switched_off_are_neither_sent_nor_asked_for(address: str, make_client: MakeClient) -> None:
    traced = Traced()
    client = make_client(address, trace=traced, binary=False)
    for _ in range(2):
        assert (client.call("echo", ARRAY) == ARRAY).all()
    assert (traced.hellos, traced.frames("send"), traced.frames("receive")) == (0, 0, 0)
    with pytest.raises(MethodNotFound):
        client.call("no such method", ARRAY)
