"""Servers that answer late, twice, without a call, with nonsense or not at all, with both clients."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import threading
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from websockets.utils import accept_key

from rpcstream import (
    AsyncClient,
    CallTimeout,
    Client,
    ConnectFailed,
    ConnectionLost,
    InternalError,
    Limits,
    RpcError,
    Server,
)
from rpcstream.client import sync_connection as connection_module
from rpcstream.testing import serve_in_thread
from rpcstream.transports import websocket
from rpcstream.transports.connection import SocketConnection
from rpcstream.wire.frames import CLOSE, TEXT, FrameReader, frame

from ..internals import blocking_connections, socket_of
from ..kit.scripted_http import CountedConnections, ScriptedHttpConnection

MakeClient = Callable[..., Any]
Scripted = Callable[[Callable[[Any], None]], str]


# -- refused -------------------------------------------------------------------------------------------------------


def test_nobody_there(make_client: MakeClient, free_address: str) -> None:
    client = make_client(free_address)
    for attempt in (client.call, client.notify):
        with pytest.raises(ConnectFailed, match=rf"refused \(method 'sum' at {free_address}\)") as caught:
            attempt("sum", 1, 2)
        assert isinstance(caught.value, ConnectionError)
        assert (caught.value.method, caught.value.address) == ("sum", free_address)
    with pytest.raises(ConnectFailed):
        client({"jsonrpc": "2.0", "method": "sum", "id": 1})
    with pytest.raises(ConnectFailed, match="batch of sum"):
        client.batch(("sum", 1, 2))
    assert [type(error) for error in client.together(("a",), ("b",))] == [ConnectFailed, ConnectFailed]


def test_no_such_unix_socket(make_client: MakeClient, tmp_path: Any) -> None:
    with pytest.raises(ConnectFailed, match=r"No such file.*'sum' at unix:///"):
        make_client(f"unix://{tmp_path}/nothing").call("sum", 1, 2)


def test_no_such_host(make_client: MakeClient) -> None:
    with pytest.raises(ConnectFailed, match=r"'sum' at no-such-host\.invalid:8545"):
        make_client("no-such-host.invalid").call("sum", 1, 2)


@pytest.fixture
def full_address() -> Any:
    """An address whose queue of new connections is full, so that connecting takes for ever."""
    queue = socket.socket()
    queue.bind(("127.0.0.1", 0))
    queue.listen(0)
    filling = []
    for _ in range(4):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(queue.getsockname())
        filling.append(sock)
    yield f"127.0.0.1:{queue.getsockname()[1]}"
    for sock in [queue, *filling]:
        sock.close()


def test_connecting_takes_too_long(make_client: MakeClient, full_address: str) -> None:
    with pytest.raises(ConnectFailed, match=r"could not connect within 0.1 s \(method 'sum' at"):
        make_client(full_address, connect_timeout=0.1).call("sum", 1, 2)
    with pytest.raises(CallTimeout, match="'sum'"):
        make_client(full_address).call("sum", 1, 2, timeout=0.1)


# -- late, twice, to nobody ----------------------------------------------------------------------------------------


def test_a_late_answer_does_no_harm(make_client: MakeClient, scripted: Scripted) -> None:
    answer_now = threading.Event()

    def script(line: Any) -> None:
        late = line.read()
        assert answer_now.wait(20)
        line.answer(late, "late")
        while (request := line.read()) is not None:
            line.answer(request, "in time")

    client = make_client(scripted(script))
    with pytest.raises(CallTimeout, match=r"no answer in time \(method 'slow' at 127") as caught:
        client.call("slow", timeout=0.05)
    assert isinstance(caught.value, TimeoutError)
    answer_now.set()
    assert client.call("next") == "in time"
    assert client.call("next") == "in time"
    assert client.replies_dropped == 1


def test_the_clients_own_timeout_is_the_default(make_client: MakeClient, scripted: Scripted) -> None:
    def script(line: Any) -> None:
        while line.read() is not None:
            pass

    client = make_client(scripted(script), timeout=0.05)
    with pytest.raises(CallTimeout):
        client.call("slow")
    with pytest.raises(CallTimeout):
        client.batch(("slow",), ("slower",))
    with pytest.raises(CallTimeout):
        client({"jsonrpc": "2.0", "method": "slow", "id": "x"})
    assert [type(error) for error in client.together(("a",), ("b",))] == [CallTimeout, CallTimeout]


def test_a_call_with_no_time_is_not_sent(make_client: MakeClient, served: str) -> None:
    client = make_client(served)
    for timeout in (0, -1):
        with pytest.raises(CallTimeout):
            client.call("note", "too late", timeout=timeout)
    assert client.call("sum", 1, 2) == 3
    with pytest.raises(CallTimeout):
        client.call("note", "too late", timeout=0)
    assert "too late" not in client.call("noted_so_far")


def test_answers_that_belong_to_nobody_are_dropped_and_counted(make_client: MakeClient, scripted: Scripted) -> None:
    def script(line: Any) -> None:
        request = line.read()
        number = request["id"]
        for wrong in (number + 100, str(number), float(number), True, [number], {"id": number}, None):
            line.say({"jsonrpc": "2.0", "id": wrong, "result": "forged"})
        line.answer(request, "true")
        line.answer(request, "again")
        line.answer(line.read(), "next")
        line.read()

    client = make_client(scripted(script))
    assert client.call("first") == "true"
    assert client.call("second") == "next"
    assert client.replies_dropped == 8


def test_an_error_without_an_id_fails_what_waits(make_client: MakeClient, scripted: Scripted) -> None:
    def script(line: Any) -> None:
        line.read()
        line.read()
        line.say({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}})
        line.answer(line.read(), "fine")
        line.read()

    client = make_client(scripted(script))
    assert [error.code for error in client.together(("a",), ("b",))] == [-32700, -32700]
    assert client.together(("c",)) == ["fine"]


def test_the_servers_own_requests_are_refused_and_notifications_ignored(
    make_client: MakeClient, scripted: Scripted
) -> None:
    refusals = []

    def script(line: Any) -> None:
        request = line.read()
        line.say(
            {"jsonrpc": "2.0", "method": "$/progress", "params": [1]},
            {"jsonrpc": "2.0", "method": "ask", "id": 1},
            {"jsonrpc": "2.0", "method": "ask", "id": True},
            [{"jsonrpc": "2.0", "method": "ask", "id": "in a batch"}, {"jsonrpc": "2.0", "method": "tell"}],
        )
        line.raw(b'{"jsonrpc":"2.0","method":"ask","id":18446744073709551617}\n')
        refusals.extend([line.read(), line.read(), line.read_line()])
        line.answer(request, "fine")

    assert make_client(scripted(script)).call("sum") == "fine"
    error = {"code": -32601, "message": "Method not found"}
    assert refusals[0] == {"jsonrpc": "2.0", "id": 1, "error": error}
    assert refusals[1] == [{"jsonrpc": "2.0", "id": "in a batch", "error": error}]
    assert refusals[2].startswith(b'{"jsonrpc":"2.0","id":18446744073709551617,')


# -- nonsense ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nonsense", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "not JSON"),
        (b'{"jsonrpc":"2.0","id":1,"result":\xff}\n', "not JSON"),
        (b'{"jsonrpc":"2.0","id":1,"result":1\n', "not JSON"),
        (b"5\n", "no JSON-RPC message"),
        (b"[]\n", "no JSON-RPC message"),
        (b"[1]\n", "no JSON-RPC message"),
        (b'{"hello":1}\n', "no JSON-RPC message"),
        (b"\n", "closed|ended"),
        (b"", "the peer closed the connection"),
        (b'{"jsonrpc":"2.0","id":1,"res', "within a message|not JSON"),
    ],
)
def test_nonsense_ends_the_conversation_and_says_why(
    make_client: MakeClient, scripted: Scripted, nonsense: bytes, said: str
) -> None:
    asked: list[Any] = []

    def script(line: Any) -> None:
        asked.append(line.read())
        if len(asked) == 1:
            line.raw(nonsense)
            if nonsense.endswith(b"\n"):
                line.read()
        else:
            line.answer(asked[-1], "better")

    client = make_client(scripted(script))
    with pytest.raises(ConnectionLost, match=rf"({said}).*\(method 'sum' at 127") as caught:
        client.call("sum", 1, 2)
    assert isinstance(caught.value, ConnectionError)
    assert client.call("sum", 1, 2) == "better"


def test_answers_come_in_any_pieces(make_client: MakeClient, scripted: Scripted) -> None:
    def script(line: Any) -> None:
        for byte in b'{"jsonrpc": "2.0", "id": 1, "result": "\xc3\xa4 \\" } ]"}\r\n':
            line.read() if byte == ord("{") else None
            line.raw(bytes([byte]))
        line.read()
        line.raw(b'{"jsonrpc":"2.0","id":99,"result":0}{"jsonrpc":"2.0","id":2,"result":"undelimited"}')
        line.read()
        line.raw(b'\n{"jsonrpc":"2.0","id":3,"result":"first"}\n{"jsonrpc":"2.0","id":98,"result":0}\n{"jso')
        line.read()
        line.raw(b'nrpc":"2.0","id":4,"result":"last, and no line end"}')

    client = make_client(scripted(script))
    assert client.call("a") == 'ä " } ]'
    assert client.call("a") == "undelimited"
    assert client.call("a") == "first"
    assert client.call("a") == "last, and no line end"
    assert client.replies_dropped >= 1


def test_an_endless_line_does_not_grow_the_client(make_client: MakeClient, scripted: Scripted) -> None:
    def script(line: Any) -> None:
        request = line.read()
        line.raw(b'{"jsonrpc":"2.0","id":%d,"result":"' % request["id"])
        for _ in range(40):
            line.raw(b"x" * 100_000)
        line.raw(b'"}\n')
        line.answer(line.read(), "still here")
        line.read()
        line.raw(b'{"result":"' + b"x" * 200_000 + b'","id":3}\n')
        line.answer(line.read(), "still here")

    client = make_client(scripted(script), limits=Limits(max_message_size=100_000))
    with pytest.raises(RpcError, match="the client's limit is 100000 bytes"):
        client.call("long")
    assert client.call("short") == "still here"
    with pytest.raises(RpcError, match="the client's limit is 100000 bytes"):
        client.call("long, its id at the end")
    assert client.call("short") == "still here"


# -- lost ----------------------------------------------------------------------------------------------------------


def test_a_lost_connection_fails_all_that_waits_at_once(make_client: MakeClient, scripted: Scripted) -> None:
    def script(line: Any) -> None:
        for _ in range(20):
            line.read()

    client = make_client(scripted(script), timeout=None)
    errors = client.together(*[(f"method{number}",) for number in range(20)])
    assert [type(error) for error in errors] == [ConnectionLost] * 20
    assert [error.method for error in errors] == [f"method{number}" for number in range(20)]
    assert "the peer closed the connection" in str(errors[0])


def test_a_server_that_closed_meanwhile_is_not_noticed(
    make_client: MakeClient, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LOOK_AFTER", 0.0)  # however fast this test is
    closed = threading.Semaphore(0)
    connections = []

    def script(line: Any) -> None:
        connections.append(line)
        requests = line.read()
        replies = [{"jsonrpc": "2.0", "id": each["id"], "result": len(connections)} for each in list_of(requests)]
        line.say(replies if isinstance(requests, list) else replies[0])
        line.socket.shutdown(socket.SHUT_RDWR)
        line.socket.close()
        closed.release()

    client = make_client(scripted(script))
    for number in range(1, 10, 3):
        # Whatever comes first after the loss finds a new connection.
        assert client.call("a") == number
        assert closed.acquire(timeout=20)
        assert client({"jsonrpc": "2.0", "method": "a", "id": "i"})["result"] == number + 1
        assert closed.acquire(timeout=20)
        assert [call.result() for call in client.batch(("a",), ("b",))] == [number + 2] * 2
        assert closed.acquire(timeout=20)


def list_of(requests: Any) -> list[Any]:
    return requests if isinstance(requests, list) else [requests]


def test_a_server_that_was_started_anew(make_client: MakeClient, free_address: str) -> None:
    client = make_client(free_address)
    for answer in ("first", "second"):
        server = Server()
        server.add(lambda answer=answer: answer, name="which")
        with serve_in_thread(server, port=int(free_address.rpartition(":")[2])):
            assert client.call("which") == answer
            assert client.call("which") == answer
        with pytest.raises(ConnectFailed):
            client.call("which")


def test_a_server_that_closes_at_once_is_not_tried_for_ever(make_client: MakeClient, scripted: Scripted) -> None:
    client = make_client(scripted(lambda line: None), timeout=None)
    for _ in range(5):
        with pytest.raises(ConnectionLost):
            client.call("sum", 1, 2)


def test_retries_only_where_asked_for(make_client: MakeClient, scripted: Scripted) -> None:
    asked: list[Any] = []

    def script(line: Any) -> None:
        request = line.read()
        asked.append(request["method"])
        if len(asked) % 3 == 0:
            line.answer(request, len(asked))
            line.read()

    address = scripted(script)
    patient = make_client(address, retries=2, retry="all")
    assert patient.call("sum", 1, 2) == 3
    assert asked == ["sum"] * 3
    once = make_client(address)
    with pytest.raises(ConnectionLost):
        once.call("sum", 1, 2)
    assert len(asked) == 4
    with pytest.raises(ConnectionLost):
        make_client(address, retries=0).call("sum", 1, 2)
    assert make_client(address, retries=1, retry="all")({"jsonrpc": "2.0", "method": "sum", "id": 1})["result"] == 6


def test_what_is_no_loss_is_not_repeated(make_client: MakeClient, served: str) -> None:
    client = make_client(served, retries=5, retry="all", timeout=0.05)
    before = len(client.call("noted_so_far"))
    with pytest.raises(RpcError):
        client.call("fail", 1, "once")
    client.call("note", "once")
    with pytest.raises(CallTimeout):
        client.call("never")
    assert len(client.call("noted_so_far", timeout=None)) == before + 1


def test_retries_end(make_client: MakeClient, free_address: str) -> None:
    with pytest.raises(ConnectFailed):
        make_client(free_address, retries=2).call("sum", 1, 2)
    with pytest.raises(ConnectFailed):
        make_client(free_address, retries=1000).call("sum", 1, 2, timeout=0.2)


def test_a_batch_that_is_lost_fails_in_each_call(scripted: Scripted) -> None:
    def script(line: Any) -> None:
        line.read()

    with Client(scripted(script)) as client:
        with pytest.raises(ConnectionLost, match="batch of a, b"), client.batch() as batch:
            calls = [batch.a(), batch.b(), batch.a()]
        assert [type(call.error) for call in calls] == [ConnectionLost] * 3
        assert calls[1].error.method == "b"  # type: ignore[union-attr]


def test_a_batch_answered_in_part(make_client: MakeClient, scripted: Scripted) -> None:
    def script(line: Any) -> None:
        batch = line.read()
        answer = {"jsonrpc": "2.0", "id": batch[1]["id"], "result": "b"}
        line.say([answer, answer, {"jsonrpc": "2.0", "id": 99, "result": 1}])
        batch = line.read()  # answered one by one, in another order
        line.say(*[{"jsonrpc": "2.0", "id": call["id"], "result": call["method"]} for call in reversed(batch)])
        batch = line.read()  # some lost with the connection
        line.answer(batch[0], "a")

    client = make_client(scripted(script), timeout=20)
    a, b, c = client.batch(("a",), ("b",), ("c",))
    assert b.result() == "b"
    assert isinstance(a.error, InternalError)
    with pytest.raises(InternalError, match=r"has none for this call \(method 'c'"):
        c.result()
    assert client.replies_dropped == 2
    assert [call.result() for call in client.batch(("a",), ("b",), ("c",))] == ["a", "b", "c"]
    with pytest.raises(ConnectionLost):
        client.batch(("a",), ("b",))


def test_closing_fails_what_waits(scripted: Scripted) -> None:
    reached = threading.Event()

    def script(line: Any) -> None:
        line.read()
        reached.set()
        line.read()

    client = Client(scripted(script), timeout=None)
    errors = []

    def call() -> None:
        try:
            client.call("never")
        except ConnectionLost as error:
            errors.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    assert reached.wait(20)
    (connection,) = blocking_connections(client)
    client.close()
    thread.join()
    assert re.fullmatch(r"the client was closed \(method 'never' at .*\)", errors[0])
    assert socket_of(connection).fileno() == -1


async def test_closing_fails_what_waits_async(served: str) -> None:
    client = AsyncClient(served, timeout=None)
    assert await client.sum(1, 2) == 3
    calls = [client.submit.never() for _ in range(3)]
    await asyncio.sleep(0)
    await client.close()
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(error) for error in errors] == [f"the client was closed (method 'never' at {served})"] * 3


def upgraded(http: ScriptedHttpConnection) -> None:
    """A script's end of a WebSocket, up to where the conversation begins."""
    request = http.read()
    assert request is not None
    said = accept_key(request.headers["sec-websocket-key"])
    http.say(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: %b\r\n\r\n" % said.encode()
    )


def open_connections() -> int:
    """The number of connections in this process that hold a socket."""
    return sum(isinstance(each, SocketConnection) and each.is_open for each in gc.get_objects())


@pytest.mark.parametrize("is_greeted", [False, True])
async def test_closing_waits_for_connections_that_were_over_before(
    scripted: Scripted, is_greeted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server says goodbye on a WebSocket, and leaves it open. A new connection takes its place, but the old one has
    not ended with that; nor has one on which what is said first was not answered."""

    monkeypatch.setattr(websocket, "CLOSE_TIME", 0.5)

    def script(http: ScriptedHttpConnection, number: int) -> None:
        upgraded(http)
        reader = FrameReader(masked=True, max_size=1 << 20)
        while data := http.socket.recv(4096):
            for message in reader.feed(data):
                if number == 1:
                    http.say(frame(CLOSE, b"\x03\xe9", masked=False))
                else:
                    answer = {"jsonrpc": "2.0", "id": orjson.loads(message)["id"], "result": number}
                    http.say(frame(TEXT, orjson.dumps(answer), masked=False))
            if reader.closed is not None and number > 1:
                return

    before = open_connections()
    client = AsyncClient(f"ws://{scripted(CountedConnections(script))}", timeout=20)
    if is_greeted:
        client.on_connect(lambda peer: peer.hello())
    try:
        with pytest.raises(ConnectFailed if is_greeted else ConnectionLost):
            await client.first()
        assert await client.second() == 2
        gc.collect()
        # Two, unless so much time has passed that the first one was given up.
        assert open_connections() > before
    finally:
        await client.close()
    assert open_connections() == before
