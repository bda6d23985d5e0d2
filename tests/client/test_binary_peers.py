"""Binary frames and the server at the other end: one that knows none, says nothing, or leaves; with both clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from rpcstream import Client, ConnectionLost, Context
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer, reply
from .conftest import Connections, MakeClient, Scripted, Traced, answering, refusal
from .test_go_away import go_away

ARRAY = np.arange(2000, dtype=np.float64)


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "-32601": refusal,
    "another error": lambda id: refusal(id, -32000),
    "no answer": lambda id: None,
    "null": lambda id: reply(id, None),
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


def test_frames_are_sent_once_the_answer_has_come(scripted: Scripted, make_client: MakeClient) -> None:
    lines: list[bytes | None] = []

    def serve(line: Any) -> None:
        hello, call = line.read(), line.read()
        line.answer(call, 1)
        call = line.read()  # still text, since the answer has not come
        line.answer(hello, {"binary": 1, "more": {}})
        line.answer(call, 2)
        lines.append(line.read_line())

    client = make_client(scripted(serve))
    assert [client.call("first", ARRAY), client.call("second", ARRAY)] == [1, 2]
    with pytest.raises(ConnectionLost):
        client.call("third", ARRAY)
    assert lines[0] is not None
    assert lines[0].startswith(b"@")
    assert lines[0].split()[1:] == [b"%d" % ARRAY.nbytes]


@pytest.mark.parametrize("was_read", [False, True])
def test_a_call_behind_a_hello_that_a_leaving_server_has_read(
    scripted: Scripted, make_client: MakeClient, was_read: bool
) -> None:
    """The `rpc.hello` ahead of it has a greater id, since the call had its own already."""

    def leave(line: Any) -> None:
        hello = line.read()
        last = line.read() if was_read else hello
        line.answer(hello, {"binary": 0})
        line.say(go_away(last["id"]))

    connections = Connections(leave, answering("again"))
    client = make_client(scripted(connections))
    if was_read:
        with pytest.raises(ConnectionLost) as caught:
            client.call("echo", ARRAY)
        assert caught.value.executed is None
    else:
        assert client.call("echo", ARRAY) == "again"
    assert connections.count == 2 - was_read


# -- everything that a client does, with a server that takes them ---------------------------------------------------


def test_the_loop_thread_of_a_sync_client_sends_frames() -> None:
    traced, got = Traced(), []
    server = UsualServer()

    @server
    async def double(parts: AsyncIterator[np.ndarray]) -> AsyncIterator[np.ndarray]:
        async for part in parts:
            yield 2 * part

    @server
    async def ask_with(value: np.ndarray, ctx: Context) -> Any:
        ctx.progress(value)
        return await ctx.peer.call("answer", value)

    with serve_in_thread(server) as address, Client(address, trace=traced) as client:
        client(lambda value: value + 1, name="answer")
        for _ in range(2):
            assert (client.call("ask_with", ARRAY, on_progress=got.append) == ARRAY + 1).all()
        items = list(client.stream.double(iter([ARRAY, ARRAY + 1])))
    assert (items[1] == 2 * (ARRAY + 1)).all()
    assert [(each == ARRAY).all() for each in got] == [True, True]
    assert traced.asked("rpc.hello") == 1
    # Sent: the answer to the first call back, the second call and its answer, two items.
    assert traced.frames("send") >= 5
    assert traced.frames("receive") >= 6


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
