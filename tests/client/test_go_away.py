"""`$/goAway`: a server that leaves says what it has read; what it has not read is made again, and nothing else is."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import Client, ConnectionLost

from ..kit import request, until_in_thread
from ..kit.scripted_http import CountedConnections, ScriptedHttpConnection, answered, reply
from .conftest import Connections, MakeClient, Scripted, answering, item, refusal

#: Stands for a member that is left out.
ABSENT = object()

again = answering("again")


def go_away(last: Any, reason: Any = "it stops") -> dict[str, Any]:
    params = {"last": last, "reason": reason}
    return {"jsonrpc": "2.0", "method": "$/goAway", "params": {k: v for k, v in params.items() if v is not ABSENT}}


def leaves(last: Any, *, answer: str = "", stays: bool = False, before: str = "", refuses: bool = False) -> Any:
    """A script that leaves at a call: `last` is 0 for this call as the last that was read, -1 for the one before it,
    None if nothing was read.

    Args:
        answer: the call is answered then.
        stays: the connection is left open.
        before: the answer to a call before this one.
        refuses: the call is answered by a refusal, as one that was not executed.
    """

    def script(line: Any) -> None:
        if before:
            line.answer(line.read(), before)
        call = line.read()
        line.say(go_away(None if last is None else call["id"] + last))
        if refuses:
            line.say(refusal(call["id"], -32800, "Cancelled", data={"executed": False}))
        if answer:
            line.answer(call, answer)
        if stays:
            assert line.read() is None

    return script


@pytest.mark.parametrize(
    ("leaving", "expected", "connections"),
    [
        (leaves(-1, before="first"), ["first", "again"], 2),
        (leaves(-1, before="first", stays=True), ["first", "again"], 2),
        (leaves(None), ["again", "again"], 2),
        (leaves(None, stays=True), ["again", "again"], 2),
        (leaves(None, answer="late", stays=True), ["again", "again"], 2),
        (leaves(0, answer="late"), ["late", "again"], 2),
        (leaves(0), [ConnectionLost, "again"], 2),
        (leaves(0, refuses=True), ["again", "again"], 2),
    ],
    ids=[
        *["before", "before, open", "nothing", "nothing, open", "nothing, yet answered"],
        *["read", "read, no answer", "waited at a server that stopped"],
    ],
)
def test_calls_at_a_server_that_leaves(
    scripted: Scripted, make_client: MakeClient, leaving: Any, expected: list[Any], connections: int
) -> None:
    counted = Connections(leaving, again)
    client = make_client(scripted(counted))
    for outcome in expected:
        if isinstance(outcome, str):
            assert client.call("a") == outcome
        else:
            with pytest.raises(outcome) as caught:
                client.call("a")
            assert caught.value.executed is None
    assert counted.count == connections


def test_each_call_as_it_was_read(scripted: Scripted, make_client: MakeClient) -> None:
    """Of four calls at the same time two are answered here, and two made again, whose late replies are dropped; batches
    and request objects are made again."""

    def leaving(line: Any) -> None:
        asked = [line.read() for _ in range(4)]
        line.say(go_away(asked[1]["id"]))
        for each in asked:
            line.answer(each, "here")
        assert line.read() is None

    connections = Connections(leaving, again)
    client = make_client(scripted(connections))
    assert client.together(("a",), ("b",), ("c",), ("d",)) == ["here", "here", "again", "again"]
    assert connections.count == 2
    for is_batch in (False, True):
        client = make_client(scripted(Connections(lambda line: line.say(go_away(line.read() and None)), again)))
        if is_batch:
            assert [call.result() for call in client.batch(("a",), ("b",))] == ["again", "again"]
        else:
            assert client(request("a", id="mine")) == {"jsonrpc": "2.0", "id": "mine", "result": "again"}


def test_a_stream_is_made_again_before_its_first_item_only(scripted: Scripted) -> None:
    def items(line: Any) -> None:
        asked = line.read()
        line.say(item(asked["id"], 1))
        line.answer(asked, None)
        line.read()

    def leaving(line: Any) -> None:
        line.say(item(line.read()["id"], 1), go_away(None))

    before = Connections(lambda line: line.say(go_away(line.read() and None)), items)
    with Client(scripted(before)) as client:
        assert list(client.stream.count()) == [1]
    assert before.count == 2
    behind = Connections(leaving, items)
    with Client(scripted(behind)) as client:
        stream = client.stream.count()
        assert next(stream) == 1
        with pytest.raises(ConnectionLost):
            next(stream)
    assert behind.count == 1


def test_a_word_that_came_before_a_write_failed(scripted: Scripted, make_client: MakeClient) -> None:
    reset = threading.Event()

    def leaving(line: Any) -> None:
        asked = line.read()
        line.answer(asked, "first")
        line.say(go_away(asked["id"]))
        line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.socket.close()  # what comes now is answered with a reset by the system
        reset.set()

    client = make_client(scripted(Connections(leaving, again)))
    assert client.call("a") == "first"
    assert reset.wait(20)
    assert client.call("b") == "again"


ARRAY = np.arange(2000, dtype=np.float64)


@pytest.mark.parametrize(
    "words",
    [
        *[
            [*[go_away(last)] * 3, go_away(None), go_away(last, reason=["\x1b"])]
            for last in (ABSENT, 0, 1.5, True, "1", 2**63, {"id": 1}, "y" * 10_000)
        ],
        *[[{**go_away(None), "params": params}] for params in (None, [], 5)],
        [{"jsonrpc": "2.0", "method": "$/goAway"}],
    ],
    ids=lambda words: str(words[0].get("params", ""))[:30],
)
def test_a_word_that_names_no_call_or_is_malformed_loses_none(
    scripted: Scripted, make_client: MakeClient, words: list[Any]
) -> None:
    def script(line: Any) -> None:
        asked = line.read()
        line.say(*words)
        line.answer(asked, "here")
        again(line)

    connections = Connections(script)
    assert make_client(scripted(connections)).call("a") == "here"
    assert connections.count == 1


def test_a_server_that_always_leaves_is_asked_a_few_times(scripted: Scripted) -> None:
    """Connections that it leaves open are few, too."""
    closed = 0

    def leaving(line: Any) -> None:
        nonlocal closed
        line.read()
        line.say(go_away(None, reason="never \x1b[31m ready"))
        assert line.read() is None
        closed += 1

    connections = Connections(leaving)
    with (
        Client(scripted(connections)) as client,
        pytest.raises(ConnectionLost, match=r"never \\u001b\[31m ready") as caught,
    ):
        client.call("a")
    assert caught.value.executed is False
    assert 3 < connections.count < 10
    until_in_thread(lambda: closed >= connections.count - 5)


TIMEOUT_408 = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
STOPPED = answered(
    orjson.dumps(refusal(None, -32800, data={"executed": False})), "503 Stopping", more="Connection: close\r\n"
)


@pytest.mark.parametrize(
    ("answers", "connections"),
    [
        (["here", TIMEOUT_408], 2),  # it was on its way when the server closed
        ([TIMEOUT_408], 1),  # it was too slow for the server, and is not made again
        ([STOPPED], 2),  # it came in part
    ],
)
def test_over_http(scripted: Scripted, make_client: MakeClient, answers: list[Any], connections: int) -> None:
    def script(http: ScriptedHttpConnection, number: int) -> None:
        for answer in answers if number == 1 else []:
            asked = http.read()
            assert asked is not None
            http.say(answered(reply(asked.id, answer)) if isinstance(answer, str) else answer)
        if number > 1:
            http.serve()

    counted = CountedConnections(script)
    client = make_client("http://" + scripted(counted))
    if len(answers) > 1:
        assert client.call("a") == "here"
    if connections == 1:
        with pytest.raises(ConnectionLost, match="408"):
            client.call("b", 1)
    else:
        assert client.call("b", 1) == [1]
    assert counted.total == connections
