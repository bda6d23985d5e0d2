"""`$/goAway`: a server that leaves says what it has read; what it has not read is made again, and nothing else is."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from rpcstream import AsyncClient, Client, ConnectFailed, ConnectionLost, Context, Server
from rpcstream.client import retry
from rpcstream.peer.remote import Peer
from rpcstream.testing import memory_client

from ..kit import until
from ..kit.scripted import Script, ScriptedConnection
from ..kit.scripted_http import CountedConnections, ScriptedHttpConnection, answered, reply
from .conftest import MakeClient

Scripted = Callable[[Script], str]

#: Stands for a member that is left out.
ABSENT = object()


def go_away(last: Any, reason: Any = "it stops") -> dict[str, Any]:
    params = {"last": last, "reason": reason}
    return {"jsonrpc": "2.0", "method": "$/goAway", "params": {k: v for k, v in params.items() if v is not ABSENT}}


class Connections:
    """A script for each connection, the last one for all that come later; counts the connections."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts
        self._lock = threading.Lock()
        self.count = 0

    def __call__(self, connection: ScriptedConnection) -> None:
        with self._lock:
            self.count += 1
            script = self._scripts[min(self.count, len(self._scripts)) - 1]
        script(connection)


def answer_all(connection: ScriptedConnection) -> None:
    """Answer each call with "again"."""
    while (message := connection.read()) is not None:
        if isinstance(message, list):
            connection.say([{"jsonrpc": "2.0", "id": each["id"], "result": "again"} for each in message])
        else:
            connection.answer(message, "again")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    before = retry.pause_before_retry

    def at_once(error: Exception, attempt: int, retries: int) -> float | None:
        return None if before(error, attempt, retries) is None else 0.0

    monkeypatch.setattr(retry, "pause_before_retry", at_once)


# -- what was not read is made again -----------------------------------------------------------------------------------


@pytest.mark.parametrize("closes", [True, False])
def test_a_call_that_was_not_read_is_made_again(scripted: Scripted, make_client: MakeClient, closes: bool) -> None:
    def leaving(connection: ScriptedConnection) -> None:
        connection.answer(connection.read(), "first")
        asked = connection.read()
        connection.say(go_away(asked["id"] - 1))
        if not closes:
            assert connection.read() is None

    connections = Connections(leaving, answer_all)
    client = make_client(scripted(connections))
    assert client.call("a") == "first"
    assert client.call("b") == "again"
    assert connections.count == 2


def test_nothing_was_read(scripted: Scripted, make_client: MakeClient) -> None:
    connections = Connections(lambda connection: connection.say(go_away(connection.read() and None)), answer_all)
    assert make_client(scripted(connections)).call("a") == "again"


def test_what_was_read_is_waited_for(scripted: Scripted, make_client: MakeClient) -> None:
    def leaving(connection: ScriptedConnection) -> None:
        asked = connection.read()
        connection.say(go_away(asked["id"]))
        connection.answer(asked, "late")

    connections = Connections(leaving, answer_all)
    client = make_client(scripted(connections))
    assert client.call("a") == "late"
    assert connections.count == 1
    assert client.call("b") == "again"


def test_what_was_read_and_not_answered_is_not_made_again(scripted: Scripted, make_client: MakeClient) -> None:
    connections = Connections(lambda connection: connection.say(go_away(connection.read()["id"])), answer_all)
    client = make_client(scripted(connections))
    with pytest.raises(ConnectionLost) as caught:
        client.call("a")
    assert caught.value.executed is None
    assert connections.count == 1


def test_each_call_as_it_was_read(scripted: Scripted, make_client: MakeClient) -> None:
    """Of four calls at the same time two are answered here, and two made again, whose late replies are dropped."""

    def leaving(connection: ScriptedConnection) -> None:
        asked = [connection.read() for _ in range(4)]
        connection.say(go_away(asked[1]["id"]))
        for each in asked:
            connection.answer(each, "here")
        assert connection.read() is None

    connections = Connections(leaving, answer_all)
    client = make_client(scripted(connections))
    assert client.together(("a",), ("b",), ("c",), ("d",)) == ["here", "here", "again", "again"]
    assert connections.count == 2


def test_a_batch_is_made_again_as_a_whole(scripted: Scripted, make_client: MakeClient) -> None:
    def leaving(connection: ScriptedConnection) -> None:
        assert len(connection.read()) == 2
        connection.say(go_away(None))

    client = make_client(scripted(Connections(leaving, answer_all)))
    assert [call.result() for call in client.batch(("a",), ("b",))] == ["again", "again"]


def test_request_objects_are_made_again_where_their_order_is_known(scripted: Scripted, make_client: MakeClient) -> None:
    def leaving(connection: ScriptedConnection) -> None:
        connection.read()
        connection.say(go_away(None))

    client = make_client(scripted(Connections(leaving, answer_all)))
    message = {"jsonrpc": "2.0", "id": "mine", "method": "a"}
    assert client(message) == {"jsonrpc": "2.0", "id": "mine", "result": "again"}


async def test_ids_of_the_callers_own_do_not_mislead(scripted: Scripted) -> None:
    """The server has read 1000 and then 1: it says 1 and means that 1000 was read, too."""

    def leaving(connection: ScriptedConnection) -> None:
        _, low = connection.read(), connection.read()
        connection.answer(low, "low")
        connection.say(go_away(low["id"]))

    connections = Connections(leaving, answer_all)
    async with AsyncClient(scripted(connections)) as client:
        high = asyncio.ensure_future(client({"jsonrpc": "2.0", "id": 1000, "method": "a"}))
        low = asyncio.ensure_future(client({"jsonrpc": "2.0", "id": 1, "method": "b"}))
        assert (await low)["result"] == "low"
        with pytest.raises(ConnectionLost) as caught:
            await high
        assert caught.value.executed is None
    assert connections.count == 1


def test_a_stream_is_made_again_before_its_first_item(scripted: Scripted) -> None:
    def items(connection: ScriptedConnection) -> None:
        asked = connection.read()
        connection.say({"jsonrpc": "2.0", "method": "$/item", "params": {"id": asked["id"], "value": 1}})
        connection.answer(asked, None)
        connection.read()

    leaving = Connections(lambda connection: connection.say(go_away(connection.read() and None)), items)
    with Client(scripted(leaving)) as client:
        assert list(client.stream.count()) == [1]
    assert leaving.count == 2


def test_a_stream_is_not_made_again_behind_an_item(scripted: Scripted) -> None:
    def leaving(connection: ScriptedConnection) -> None:
        asked = connection.read()
        connection.say({"jsonrpc": "2.0", "method": "$/item", "params": {"id": asked["id"], "value": 1}})
        connection.say(go_away(None))

    connections = Connections(leaving, answer_all)
    with Client(scripted(connections)) as client:
        stream = client.stream.count()
        assert next(stream) == 1
        with pytest.raises(ConnectionLost):
            next(stream)
    assert connections.count == 1


def test_a_call_that_waited_at_a_server_that_stopped(scripted: Scripted, make_client: MakeClient) -> None:
    def leaving(connection: ScriptedConnection) -> None:
        asked = connection.read()
        error = {"code": -32800, "message": "Cancelled", "data": {"executed": False}}
        connection.say(go_away(asked["id"]), {"jsonrpc": "2.0", "id": asked["id"], "error": error})

    client = make_client(scripted(Connections(leaving, answer_all)))
    assert client.call("a") == "again"


def test_a_server_that_is_gone_was_not_asked(scripted: Scripted, make_client: MakeClient) -> None:
    """There is no other server: what the caller gets says that the call was not executed."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        sock, _ = listening.accept()
        with sock:
            sock.recv(1000)
            listening.close()
            sock.sendall(orjson.dumps(go_away(None)) + b"\n")

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises((ConnectFailed, ConnectionLost)) as caught:
        make_client(f"127.0.0.1:{listening.getsockname()[1]}").call("a")
    thread.join()
    error: Any = caught.value
    assert error.executed is False


def test_a_word_that_came_before_a_write_failed(scripted: Scripted, make_client: MakeClient) -> None:
    """The server has closed, and its system answers what comes with a reset; its last word is there to be read."""
    reset = threading.Event()

    def leaving(connection: ScriptedConnection) -> None:
        asked = connection.read()
        connection.answer(asked, "first")
        connection.say(go_away(asked["id"]))
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.socket.close()
        reset.set()

    connections = Connections(leaving, answer_all)
    client = make_client(scripted(connections))
    assert client.call("a") == "first"
    assert reset.wait(20)
    assert client.call("b") == "again"


async def test_a_word_that_came_before_a_write_failed_in_the_loop(scripted: Scripted) -> None:
    reset = threading.Event()

    def leaving(connection: ScriptedConnection) -> None:
        connection.answer(connection.read(), "here")
        asked, _ = connection.read(), connection.read()
        connection.answer(asked, "first")
        connection.say(go_away(asked["id"]))
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.socket.close()
        reset.set()

    async with AsyncClient(scripted(Connections(leaving, answer_all))) as client:
        assert await client.call("here") == "here"
        first, second = asyncio.ensure_future(client.call("a")), asyncio.ensure_future(client.call("b"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert reset.wait(20)
        # The loop has not read the word yet, and writes.
        third = asyncio.ensure_future(client.call("c"))
        assert await asyncio.gather(first, second, third) == ["first", "again", "again"]


# -- hostile -----------------------------------------------------------------------------------------------------------


WRONG = [ABSENT, 0, -1, 1.5, True, "x", "1", 2**63, 2**53, [], {}, [1], {"id": 1}, "y" * 10_000]


@pytest.mark.parametrize("last", WRONG)
def test_a_word_that_names_no_call_loses_none(scripted: Scripted, make_client: MakeClient, last: Any) -> None:
    def script(connection: ScriptedConnection) -> None:
        asked = connection.read()
        connection.say(*[go_away(last)] * 3, go_away(None), go_away(last, reason=["\x1b"]))
        connection.answer(asked, "here")

    connections = Connections(script)
    assert make_client(scripted(connections)).call("a") == "here"
    assert connections.count == 1


@pytest.mark.parametrize("params", [ABSENT, None, [], "x", 5])
def test_a_word_that_is_malformed_is_dropped(scripted: Scripted, make_client: MakeClient, params: Any) -> None:
    def script(connection: ScriptedConnection) -> None:
        word = {**go_away(None), "params": params}
        if params is ABSENT:
            del word["params"]
        while (asked := connection.read()) is not None:
            connection.say(word)
            connection.answer(asked, "here")

    connections = Connections(script)
    client = make_client(scripted(connections))
    assert [client.call("a"), client.call("b")] == ["here", "here"]
    assert connections.count == 1


def test_a_server_that_always_leaves_is_asked_a_few_times(scripted: Scripted, make_client: MakeClient) -> None:
    def leaving(connection: ScriptedConnection) -> None:
        connection.read()
        connection.say(go_away(None, reason="never \x1b[31m ready"))
        connection.read()

    connections = Connections(leaving)
    with pytest.raises(ConnectionLost, match=r"never \\u001b\[31m ready") as caught:
        make_client(scripted(connections)).call("a")
    assert caught.value.executed is False
    assert connections.count == retry.REPEATS + 1


async def test_connections_that_are_left_and_not_closed_are_few(scripted: Scripted) -> None:
    closed = 0

    def leaving(connection: ScriptedConnection) -> None:
        nonlocal closed
        connection.read()
        connection.say(go_away(None))
        assert connection.read() is None
        closed += 1

    connections = Connections(leaving)
    async with AsyncClient(scripted(connections)) as client:
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await client.call("a")
        await until(lambda: closed >= connections.count - 5)


def test_repeats_end_with_the_time_out(scripted: Scripted, make_client: MakeClient) -> None:
    asked, is_over, has_said = threading.Event(), threading.Event(), threading.Event()

    def leaving(connection: ScriptedConnection) -> None:
        connection.read()
        asked.set()
        is_over.wait(20)
        connection.say(go_away(None))
        has_said.set()

    connections = Connections(leaving)
    with pytest.raises((ConnectionLost, TimeoutError)):
        make_client(scripted(connections)).call("a", timeout=0.1)
    is_over.set()
    if asked.is_set():  # else there was no time to send it
        assert has_said.wait(20)
    assert connections.count <= 1


# -- calls of the server -----------------------------------------------------------------------------------------------


async def test_a_peer_that_leaves_is_not_asked_any_more() -> None:
    server = Server()
    peers: list[Peer] = []

    @server
    async def remember(ctx: Context) -> None:
        peers.append(ctx.peer)

    async with memory_client(server) as client:
        await client.call("remember")
        await client.notify("$/goAway", last=None, reason="it ends")
        assert await client.call("rpc.ping") == "pong"
        with pytest.raises(ConnectionLost, match="reads no more requests") as caught:
            await peers[0].call("confirm")
        assert caught.value.executed is False


# -- HTTP, which has no such word --------------------------------------------------------------------------------------

TIMEOUT_408 = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def test_a_request_that_was_on_its_way_when_the_server_closed(scripted: Scripted, make_client: MakeClient) -> None:
    """Answered with 408 on a connection that was used before; a new one takes it."""

    def script(http: ScriptedHttpConnection, number: int) -> None:
        if number > 1:
            http.serve()
            return
        request = http.read()
        assert request is not None
        http.answer(request, "first")
        http.read()
        http.say(TIMEOUT_408)

    connections = CountedConnections(script)
    client = make_client("http://" + scripted(connections))
    assert client.call("a") == "first"
    assert client.call("b", 1) == [1]
    assert connections.total == 2


def test_a_request_that_was_too_slow_for_the_server_is_not_made_again(
    scripted: Scripted, make_client: MakeClient
) -> None:
    def script(http: ScriptedHttpConnection, number: int) -> None:
        http.read()
        http.say(TIMEOUT_408)

    connections = CountedConnections(script)
    with pytest.raises(ConnectionLost, match="408"):
        make_client("http://" + scripted(connections)).call("a")
    assert connections.total == 1


def test_a_request_that_came_in_part_when_the_server_stopped(scripted: Scripted, make_client: MakeClient) -> None:
    body = orjson.dumps(
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32800, "message": "x", "data": {"executed": False}}}
    )

    def script(http: ScriptedHttpConnection, number: int) -> None:
        if number > 1:
            http.serve()
            return
        http.read()
        http.say(answered(body, "503 Service Unavailable", more="Connection: close\r\n"))

    assert make_client("http://" + scripted(CountedConnections(script))).call("a", 1) == [1]


@pytest.mark.parametrize("word", [go_away(None), {**go_away(None), "params": {"last": None, "id": 1, "token": 1}}])
def test_a_word_over_http_is_dropped(scripted: Scripted, make_client: MakeClient, word: dict[str, Any]) -> None:
    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (request := http.read()) is not None:
            lines = orjson.dumps({**word, "params": {**word["params"], "id": request.id}}), reply(request.id, number)
            http.say(answered(b"\n".join((*lines, b"")), kind="application/x-ndjson"))

    client = make_client("http://" + scripted(CountedConnections(script)))
    assert [client.call("a", on_progress=print), client.call("b", on_progress=print)] == [1, 1]
