"""Servers that answer late, twice, without a call, with nonsense or not at all, to calls and to subscriptions."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import (
    AsyncClient,
    Backoff,
    CallTimeout,
    Client,
    ConnectFailed,
    ConnectionLost,
    Limits,
    NotPermitted,
    Retry,
    RpcError,
)
from rpcstream.errors import EncodeError, InternalError
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer, frame, notification, reply, request
from .conftest import Connections, MakeClient, Scripted, Traced, answering, echoing, refusal


def says(*data: Any) -> Any:
    """A script that answers one call with these bytes, objects and frames, in which "ID" stands for the id of the call,
    and then leaves; or, if the last of them is None, answers all that comes with "next"."""

    def script(line: Any) -> None:
        number = b"%d" % line.read()["id"]
        for each in data:
            if each is not None:
                written = each if isinstance(each, bytes) else orjson.dumps(each) + b"\n"
                line.raw(written.replace(b'"ID"', number))
        if data[-1:] == (None,):
            answering("next")(line)

    return script


def test_nobody_there(make_client: MakeClient, free_address: str, tmp_path: Any) -> None:
    client = make_client(free_address)
    for attempt in (client.call, client.notify):
        with pytest.raises(ConnectFailed, match=rf"refused \(method 'sum' at {free_address}\)") as caught:
            attempt("sum", 1, 2)
        assert isinstance(caught.value, ConnectionError)
        assert (caught.value.method, caught.value.address) == ("sum", free_address)
    with pytest.raises(ConnectFailed):
        client(request("sum"))
    with pytest.raises(ConnectFailed, match="batch of sum"):
        client.batch(("sum", 1, 2))
    errors = client.together(("a",), ("b",))
    assert [(type(error), error.method) for error in errors] == [(ConnectFailed, "a"), (ConnectFailed, "b")]
    for options, more in (({"retry": Retry(times=2)}, {}), ({"retry": Retry(times=1000)}, {"timeout": 0.1})):
        with pytest.raises((ConnectFailed, CallTimeout)):
            make_client(free_address, **options).call("sum", 1, 2, **more)
    with pytest.raises(ConnectFailed, match=r"No such file.*'sum' at unix:///"):
        make_client(f"unix://{tmp_path}/nothing").call("sum", 1, 2)
    with pytest.raises(ConnectFailed, match=r"'sum' at no-such-host\.invalid:8545"):
        make_client("no-such-host.invalid").call("sum", 1, 2)
    with serve_in_thread(UsualServer(), port=int(free_address.rpartition(":")[2])):
        assert client.call("echo", 1) == client.call("echo", 1) == 1
    with pytest.raises(ConnectFailed):
        client.call("echo", 1)


def test_connecting_takes_too_long(make_client: MakeClient) -> None:
    """The queue of new connections is full."""
    with contextlib.ExitStack() as stack:
        queue = stack.enter_context(socket.socket())
        queue.bind(("127.0.0.1", 0))
        queue.listen(0)
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(queue.getsockname())
        address = f"127.0.0.1:{queue.getsockname()[1]}"
        with pytest.raises(ConnectFailed, match=r"could not connect within 0.1 s \(method 'sum' at"):
            make_client(address, connect_timeout=0.1).call("sum", 1, 2)
        with pytest.raises(CallTimeout, match="'sum'"):
            make_client(address).call("sum", 1, 2, timeout=0.1)


def test_what_is_not_answered_or_never_sent(make_client: MakeClient, scripted: Scripted) -> None:
    """The client's own time-out is the default; what was not sent is neither read nor cancelled."""
    heard: list[str] = []

    def script(line: Any) -> None:
        while (data := line.read_line()) is not None:
            heard.append(orjson.loads(data)["method"])
            if heard[-1] in ("first", "last"):
                line.answer(orjson.loads(data), 1)

    client = make_client(scripted(script))
    assert client.call("first") == 1
    for timeout in (0, -1):
        with pytest.raises(CallTimeout):
            client.call("second", timeout=timeout)
    with pytest.raises(EncodeError):
        client.call("third", object())
    assert isinstance(client.together(("fourth", object()))[0], EncodeError)
    assert client.call("last") == 1
    assert heard in (["first", "last"], ["first", "first", "last"])
    hasty = make_client(scripted(lambda line: [*iter(line.read, None)]), timeout=0.05)
    for attempt in (
        lambda: hasty.call("slow"),
        lambda: hasty.batch(("slow",), ("slower",)),
        lambda: hasty(request("slow", id="x")),
    ):
        with pytest.raises(CallTimeout):
            attempt()
    assert [type(error) for error in hasty.together(("a",), ("b",))] == [CallTimeout, CallTimeout]


def test_what_the_server_asks_is_refused_and_what_it_refuses_without_an_id_fails_all(
    make_client: MakeClient, scripted: Scripted
) -> None:
    refusals: list[Any] = []

    def script(line: Any) -> None:
        call = line.read()
        line.say(request("ask", id=1), request("ask", id=True), [request("ask", id="batch"), notification("tell")])
        line.raw(b'{"jsonrpc":"2.0","method":"ask","id":9223372036854775807}\n')
        refusals.extend([line.read(), line.read(), line.read_line()])
        line.answer(call, "fine")
        answering("fine")(line)

    def refusing(line: Any) -> None:
        line.read(), line.read()
        line.say(refusal(None, -32700))
        answering("fine")(line)

    assert make_client(scripted(script)).call("sum") == "fine"
    assert refusals[:2] == [refusal(1), [refusal("batch")]]
    assert refusals[2].startswith(b'{"jsonrpc":"2.0","id":9223372036854775807,')
    client = make_client(scripted(refusing))
    assert [error.code for error in client.together(("a",), ("b",))] == [-32700, -32700]
    assert client.together(("c",)) == ["fine"]


def test_a_late_answer_does_no_harm(make_client: MakeClient, scripted: Scripted) -> None:
    answer_now = threading.Event()
    cancelled: list[Any] = []

    def script(line: Any) -> None:
        line.answer(line.read(), "connected")
        late = line.read()
        assert answer_now.wait(20)
        line.answer(late, "late")
        following = line.read()
        cancelled.extend(line.cancelled)
        line.answer(following, "in time")
        echoing(line)

    client = make_client(scripted(script))
    assert client.call("first") == "connected"
    with pytest.raises(CallTimeout, match=r"no answer in time \(method 'slow' at 127") as caught:
        client.call("slow", timeout=0.05)
    assert isinstance(caught.value, TimeoutError)
    answer_now.set()
    assert client.call("next") == "in time"
    assert client.call("echo", 5) == 5
    assert (client.replies_dropped, cancelled) == (1, [2])


def test_a_batch_cancels_what_has_no_answer_yet(scripted: Scripted) -> None:
    cancelled: list[Any] = []

    def script(line: Any) -> None:
        line.answer(line.read()[1], "here")
        last = line.read()
        cancelled.extend(line.cancelled)
        line.answer(last, "over")

    with Client(scripted(script)) as client:
        batch = client.batch(timeout=0.5)  # long enough for one answer on a machine with much to do
        first, second, third = batch.first(), batch.second(), batch.third()
        with pytest.raises(CallTimeout):
            batch.__exit__(None, None, None)
        assert second.result() == "here"
        assert isinstance(first.error, CallTimeout)
        assert isinstance(third.error, CallTimeout)
        assert client.call("end") == "over"
    assert cancelled == [1, 3]


ARRAY = np.arange(5000, dtype="<f8")


def array_reply(id: Any, number: int = 0, size: int = ARRAY.size, batch: bool = False) -> bytes:
    """A frame with the reply "ARRAY", or one with a fault."""
    tagged = {"$type": "ndarray", "dtype": "<f8", "shape": [size], "data": {"$bin": number}}
    message = {"jsonrpc": "2.0", "id": id, "result": tagged}
    return frame([message] if batch else message, ARRAY.tobytes())


FRAME = array_reply(1)

#: What the server says to the first call (id 1); whether its result is the array, or what text says; dropped replies.
TO_NOBODY = {
    "ids that are not quite right": (
        [
            *[reply(wrong, "forged") for wrong in (101, "1", 1.0, True, [1], {"id": 1}, None)],
            reply("ID", "true"),
            reply("ID", "again"),
            None,
        ],
        8,
    ),
    "blanks of a server that looks whether it is heard": ([b" ", b"  " + FRAME, None], 0),
    "frames of no call": (
        [
            array_reply(2),
            array_reply("x"),
            array_reply(1.5),
            frame(request("nope", {"$bin": 0}), b"1" * 9),
            FRAME,
            None,
        ],
        None,
    ),
    "any pieces": ([*[bytes([each]) for each in b'{"jsonrpc": "2.0", "id": 1, "result": "true"}\r\n'], None], 0),
    "an end without a line end": (
        [b'{"jsonrpc":"2.0","id":99,"result":0}{"jsonrpc":"2.0","id":1,"result":"true"}'],
        None,
    ),
}


@pytest.mark.parametrize("name", TO_NOBODY)
def test_what_belongs_to_nobody_is_dropped_and_counted(make_client: MakeClient, scripted: Scripted, name: str) -> None:
    data, dropped = TO_NOBODY[name]
    client = make_client(scripted(Connections(says(*data), answering("next"))), timeout=20)
    result = client.call("get")
    assert result == "true" if isinstance(result, str) else np.array_equal(result, ARRAY)
    if data[-1] is None:
        assert [client.call("again"), client.call("again")] == ["next", "next"]
    assert dropped is None or client.replies_dropped == dropped


@pytest.mark.parametrize(
    ("nonsense", "said"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "not JSON"),
        (b'{"jsonrpc":"2.0","id":1,"result":\xff}\n', "not JSON"),
        (b'{"jsonrpc":"2.0","id":1,"result":1\n', "not JSON"),
        *[(bad, "no JSON-RPC message") for bad in (b"5\n", b"[]\n", b"[1]\n", b'{"hello":1}\n')],
        (b"\n", "closed|ended"),
        (b"", "the peer closed the connection"),
        (b'{"jsonrpc":"2.0","id":1,"res', "closed the connection within a message"),
        *[(FRAME[:size], "") for size in (1, 20, 100, 200, 40_000)],
    ],
)
def test_nonsense_ends_the_conversation_and_says_why(
    make_client: MakeClient, scripted: Scripted, nonsense: bytes, said: str
) -> None:
    def faulty(line: Any) -> None:
        line.read()
        line.raw(nonsense)
        if nonsense.endswith(b"\n"):
            line.read()

    client = make_client(scripted(Connections(faulty, answering("better"))))
    with pytest.raises(ConnectionLost, match=rf"({said}).*\(method 'sum' at 127") as caught:
        client.call("sum", 1, 2)
    assert isinstance(caught.value, ConnectionError)
    assert client.call("sum", 1, 2) == "better"


@pytest.mark.parametrize("fault", [{"batch": True}, {"number": 1}, {"size": 4999}, "unasked"], ids=str)
def test_a_frame_that_cannot_be_read_fails_its_call(make_client: MakeClient, scripted: Scripted, fault: Any) -> None:
    if fault == "unasked":
        with pytest.raises(ConnectionLost, match="switched off"):
            make_client(scripted(says(FRAME)), binary=False).call("get")
        return
    client = make_client(scripted(says(array_reply(1, **fault), None)))
    with pytest.raises((RpcError, ValueError)):
        client.call("get")
    assert client.call("again") == "next"


def test_a_loss_and_closing_fail_all_that_waits(make_client: MakeClient, scripted: Scripted) -> None:
    client = make_client(scripted(lambda line: [line.read() for _ in range(20)]), timeout=None)
    errors = client.together(*[(f"method{number}",) for number in range(20)])
    assert [(type(error), error.method) for error in errors] == [(ConnectionLost, f"method{n}") for n in range(20)]
    assert "the peer closed the connection" in str(errors[0])
    at_once = make_client(scripted(lambda line: None), timeout=None)
    for _ in range(5):  # it is not tried for ever
        with pytest.raises(ConnectionLost):
            at_once.call("sum", 1, 2)
    reached, ended = threading.Event(), threading.Event()

    def script(line: Any) -> None:
        line.read()
        reached.set()
        assert line.read() is None
        ended.set()

    closing = Client(scripted(script), timeout=None)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(closing.call, "never")
        assert reached.wait(20)
        closing.close()
        with pytest.raises(ConnectionLost, match=r"^the client was closed \(method 'never' at .*\)$"):
            waiting.result()
    assert ended.wait(20)


def test_an_endless_line_does_not_grow_the_client(make_client: MakeClient, scripted: Scripted) -> None:
    def script(line: Any) -> None:
        line.raw(b'{"jsonrpc":"2.0","id":%d,"result":"' % line.read()["id"])
        for _ in range(40):
            line.raw(b"x" * 100_000)
        line.raw(b'"}\n')
        line.answer(line.read(), "still here")
        line.raw(b'{"result":"' + b"x" * 200_000 + b'","id":%d}\n' % line.read()["id"])
        line.answer(line.read(), "still here")

    client = make_client(scripted(script), limits=Limits(max_message_size=100_000))
    for _ in range(2):  # the second with its id at the end
        with pytest.raises(RpcError, match="the client's limit is 100000 bytes"):
            client.call("long")
        assert client.call("short") == "still here"


def test_a_server_that_closed_meanwhile_is_not_noticed(make_client: MakeClient, scripted: Scripted) -> None:
    closed = threading.Semaphore(0)
    connections: list[Any] = []

    def script(line: Any) -> None:
        connections.append(line)
        calls = line.read()
        replies = [reply(call["id"], len(connections)) for call in (calls if isinstance(calls, list) else [calls])]
        line.say(replies if isinstance(calls, list) else replies[0])
        line.socket.shutdown(socket.SHUT_RDWR)
        closed.release()

    client = make_client(scripted(script))
    kinds = (
        lambda: client.call("a"),
        lambda: client(request("a", id="i"))["result"],
        lambda: client.batch(("a",), ("b",))[0].result(),
    )
    for number in range(1, 4):  # whatever comes first after the loss finds a new connection
        assert kinds[number % 3]() == number
        assert closed.acquire(timeout=20)
        threading.Event().wait(0.01)


def test_a_batch_answered_in_part(make_client: MakeClient, scripted: Scripted) -> None:
    def script(line: Any) -> None:
        batch = line.read()
        answer = reply(batch[1]["id"], "b")
        line.say([answer, answer, reply(99, 1)])
        batch = line.read()  # answered one by one, in another order
        line.say(*[reply(call["id"], call["method"]) for call in reversed(batch)])
        batch = line.read()  # some lost with the connection
        line.answer(batch[0], "a")

    address = scripted(script)
    client = make_client(address, timeout=20)
    a, b, c = client.batch(("a",), ("b",), ("c",))
    assert b.result() == "b"
    assert isinstance(a.error, InternalError)
    with pytest.raises(InternalError, match=r"has none for this call \(method 'c'"):
        c.result()
    assert client.replies_dropped == 2
    assert [call.result() for call in client.batch(("a",), ("b",), ("c",))] == ["a", "b", "c"]
    with pytest.raises(ConnectionLost, match="batch of a, b"):
        client.batch(("a",), ("b",))


LONG = "x" * 3_000_000


def test_long_messages_both_ways(make_client: MakeClient, scripted: Scripted) -> None:
    """A long reply while a long call is on its way."""
    has_begun = threading.Event()

    def script(line: Any) -> None:
        first = line.read()
        assert has_begun.wait(20)
        line.answer(first, LONG * 2)
        line.answer(line.read(), "second")
        line.read()

    def trace(way: str, message: bytes) -> None:
        if b"second" in message:
            has_begun.set()

    assert make_client(scripted(script), trace=trace).together(("first",), ("second", LONG * 2)) == [LONG * 2, "second"]


def test_a_server_that_does_not_read(make_client: MakeClient, scripted: Scripted) -> None:
    """Calls end in time, and wait in the callers; notifications do not pile up."""
    go, heard = threading.Event(), []

    def script(line: Any) -> None:
        assert go.wait(20)
        while (message := line.read()) is not None:
            heard.append(message)
            if "id" in message:
                line.answer(message, "fine")

    client = make_client(scripted(Connections(script)))
    with pytest.raises(CallTimeout, match=r"(did not take the call|no answer|no connection) in time \(method 'long'"):
        client.call("long", LONG * 5, timeout=0.2)
    go.set()
    assert client.call("next") == "fine"
    for _ in range(300):
        client.notify("note", "x" * 1000)
    assert client.call("last") == "fine"
    assert sum(message["method"] == "note" for message in heard) == 300


def test_a_client_that_closes_sends_what_it_was_given(make_client: MakeClient, scripted: Scripted) -> None:
    received: list[int] = []
    ended = threading.Event()

    def script(line: Any) -> None:
        while (message := line.read()) is not None:
            received.append(len(message["params"][0]))
        ended.set()

    client = make_client(scripted(script))
    for _ in range(5):
        client.notify("note", LONG)
    (client.runner.run(client.client.close()) if hasattr(client, "runner") else client.close())
    assert ended.wait(20)
    assert received == [len(LONG)] * 5


def old_server(on_hello: Callable[[Any], Any], methods: list[str]) -> Any:
    """A script that echoes the one argument of each call as text, and answers `rpc.hello` so; None: not at all."""

    def script(line: Any) -> None:
        while (message := line.read()) is not None:
            methods.append(message["method"])
            if message["method"] != "rpc.hello":
                if "id" in message:
                    line.answer(message, message["params"][0])
            elif (answer := on_hello(message["id"])) == "closes":
                return
            elif answer is not None:
                line.say(answer)

    return script


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "-32601": refusal,
    "no answer": lambda id: None,
    "switched off": lambda id: reply(id, {"binary": 0}),
    "a later version": lambda id: reply(id, {"binary": 2}),
    "something else": lambda id: reply(id, ["binary", 1]),
    "closes": lambda id: "closes",
}


@pytest.mark.parametrize("on_hello", ANSWERS.values(), ids=ANSWERS)
def test_text_is_sent_for_good_to_a_server_that_takes_no_frames(
    scripted: Scripted, make_client: MakeClient, on_hello: Callable[[Any], Any]
) -> None:
    """It is asked on each connection, before the first large payload; one that closes is for clients without frames."""
    methods: list[str] = []
    address, traced = scripted(old_server(on_hello, methods)), Traced()
    client = make_client(address, trace=traced)
    for value in (1, "x" * 100_000, small := np.arange(100), [{"data": "y" * 10_000}]):
        client.call("echo", value)
    client.notify("echo", small)
    if on_hello(1) == "closes":
        with pytest.raises(ConnectionLost):
            client.call("echo", ARRAY)
        assert (make_client(address, binary=False).call("echo", ARRAY) == ARRAY).all()
        return
    for _ in range(3):
        assert (client.call("echo", ARRAY) == ARRAY).all()
    assert (traced.frames("send"), client.replies_dropped) == (0, 0)
    make_client(address).call("echo", ARRAY)
    assert methods == [*["echo"] * 5, "rpc.hello", "echo", "echo", "echo", "rpc.hello", "echo"]


AT_ONCE = Backoff(first=0.001, longest=0.01)


def event(topic: Any, value: Any) -> dict[str, Any]:
    return notification("$/event", topic=topic, value=value)


async def test_giving_up_the_entry_takes_it_back_and_it_can_be_tried_again(scripted: Scripted) -> None:
    seen: list[Any] = []

    def script(line: Any) -> None:
        first = line.read()
        seen.append(line.read()["method"])
        second = line.read()
        line.answer(first, {})
        line.answer(second, {})
        line.say(event("a", 1))
        assert line.cancelled == [first["id"]]
        line.read()

    async with AsyncClient(scripted(script), timeout=20) as client:
        events = client.subscribe("a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 0.05)
        assert await anext(events) == 1
        assert seen == ["rpc.unsubscribe"]


async def test_what_is_no_more_allowed_ends_and_the_connection_stays(scripted: Scripted) -> None:
    connections: list[Any] = []

    def script(line: Any) -> None:
        connections.append(line)
        refuses = len(connections) > 1
        for _ in range(2):
            call = line.read()
            if refuses and call["params"]["topic"] == "bad":
                line.say(refusal(call["id"], -32006, "Not permitted"))
            else:
                line.answer(call, {})
        call = line.read()
        if refuses:
            line.say(event("good", 1))
            line.answer(call, "a call")
            line.read()

    async with (
        AsyncClient(scripted(script), reconnect=AT_ONCE) as client,
        client.subscribe("good") as good,
        client.subscribe("bad") as bad,
    ):
        await client.notify.enough()
        with pytest.raises(NotPermitted):
            await anext(bad)
        assert await client.anything() == "a call"
        assert await anext(good) == 1
        assert (good.reconnects, bad.reconnects) == (1, 0)
