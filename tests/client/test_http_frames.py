"""Binary frames of a client over HTTP: when it sends them, and what it does where a server reads none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from rpcstream import (
    AsyncClient,
    ConnectionLost,
    InternalError,
    Limits,
    MessageTooLarge,
)
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer, frame, until
from ..kit.scripted_http import CountedConnections, Request, ScriptedHttpConnection, answered, reply
from .conftest import MakeClient, Scripted, Traced

FRAME = "application/x-rpcstream"
READS_FRAMES = f"Accept-Post: application/json, {FRAME}\r\n"
LIMITS = Limits(max_message_size=20_000)
VALUES = np.arange(5000, dtype=np.uint8)


def kinds(traced: Traced, direction: str) -> str:
    """ "@" for each frame, "{" for each text."""
    return "".join(chr(message[0]) for way, message in traced.messages if way == direction)


@pytest.mark.parametrize(("client_reads", "server_reads"), [(True, True), (True, False), (False, True)])
def test_frames_where_both_ends_want_them(make_client: MakeClient, client_reads: bool, server_reads: bool) -> None:
    """The first array goes as text: any answer of the server tells that it reads frames."""
    traced = Traced()
    with serve_in_thread(UsualServer(binary=server_reads)) as address:
        client = make_client(f"http://{address}", binary=client_reads, trace=traced, timeout=20, limits=LIMITS)
        for _ in range(3):
            assert np.array_equal(client.call("array", VALUES), VALUES * 2)
        expected = ("{@@", "@@@") if client_reads and server_reads else ("{{{", "{{{")
        assert (kinds(traced, "send"), kinds(traced, "receive")) == expected
        for size in (14_000, 19_000)[: 2 if "@" in expected[0] else 1]:  # the limit is that of the message
            with pytest.raises(MessageTooLarge):
                client.call("array", np.zeros(20_000, np.uint8))
            assert len(client.call("array", np.zeros(size, np.uint8))) == size


# -- servers of others ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_notification", [False, True])
async def test_a_server_that_knows_no_frames_any_more(scripted: Scripted, is_notification: bool) -> None:
    """It answers a frame with 415: what was sent is sent again as text, although the caller has changed the array
    meanwhile, and all that is later is text, whatever the server says."""
    go_on = threading.Event()
    requests: list[Request] = []

    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (request := http.read()) is not None:
            requests.append(request)
            if request.message is None:
                assert go_on.wait(20)
                http.say(answered(b"what is that?", "415 Unsupported Media Type", "text/plain"))
            else:
                http.say(answered(reply(request.message.get("id"), len(requests)), more=READS_FRAMES))

    async with AsyncClient(f"http://{scripted(CountedConnections(script))}", timeout=20) as client:
        await client.call("size", 1)
        values = np.zeros(5000, np.uint8)
        begun: Any = client.notify("size", values) if is_notification else client.call("size", values)
        task = asyncio.ensure_future(begun)
        await until(lambda: len(requests) == 2)
        values.fill(1)
        go_on.set()
        assert await task == (None if is_notification else 3)
        await until(lambda: len(requests) == 3)
        assert await client.call("size", values) == 4
    text = "application/json"
    assert [request.headers["content-type"] for request in requests] == [text, FRAME, text, text]
    sent, again = orjson.loads(requests[1].body.splitlines()[1]), requests[2].message
    assert again.get("id") == sent.get("id")
    assert ("id" in again) is not is_notification
    assert set(again["params"][0]["data"]) == {"A", "="}


# -- answers that are frames ----------------------------------------------------------------------------------------

GOOD = b"\1" * 5000


def array_answer(asked: Request, *, size: int = 5000, data: bytes = GOOD, more: bytes = b"", **members: Any) -> bytes:
    """The reply to a call, as a frame; other members take the place of the result."""
    tagged = {"$type": "ndarray", "dtype": "|u1", "shape": [size], "data": {"$bin": 0}}
    message = {"jsonrpc": "2.0", "id": asked.id, **(members or {"result": tagged})}
    return answered(frame(message, data) + more, kind=FRAME)


BROKEN: dict[str, tuple[Callable[[Request], bytes], type[Exception]]] = {
    "bytes behind it": (lambda asked: array_answer(asked, more=b"x"), ConnectionLost),
    "no header": (lambda asked: answered(reply(asked.id, 1), kind=FRAME), ConnectionLost),
    "it ends early": (lambda asked: answered(frame(b"{}", GOOD)[:-1], kind=FRAME), ConnectionLost),
    "a payload that stands nowhere": (lambda asked: array_answer(asked, result=1), InternalError),
    "another call": (lambda asked: array_answer(asked, id=99, result={"$bin": 0}), InternalError),
    "no reply": (lambda asked: array_answer(asked, id=None, method="x", params=[{"$bin": 0}]), ConnectionLost),
    "another size": (lambda asked: array_answer(asked, size=7), InternalError),
    "over the limit": (lambda asked: array_answer(asked, size=30_000, data=bytes(30_000)), MessageTooLarge),
    "a header over the limit": (lambda asked: answered(b"@10 300000\n", kind=FRAME), ConnectionLost),
}


@pytest.mark.parametrize("what", [*BROKEN, "unasked"])
def test_an_answer_that_cannot_be_read(scripted: Scripted, make_client: MakeClient, what: str) -> None:
    """The call fails; the next one is answered, in pieces."""
    broken, error = BROKEN.get(what, (array_answer, ConnectionLost))

    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (asked := http.read()) is not None:
            if asked.message["method"] == "broken":
                http.say(broken(asked))
                continue
            body = array_answer(asked).partition(b"\r\n\r\n")[2]
            http.say(f"HTTP/1.1 200 OK\r\nContent-Type: {FRAME}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            for piece in (body[:1], body[1:20], body[20:300], body[300:], b""):
                http.say(b"%x\r\n%b\r\n" % (len(piece), piece))

    address = f"http://{scripted(CountedConnections(script))}"
    client = make_client(address, retries=0, timeout=20, limits=LIMITS, binary=what != "unasked")
    with pytest.raises(error, match="not JSON" if what == "unasked" else None):
        client.call("broken")
    if what != "unasked":
        assert np.array_equal(client.call("size"), np.ones(5000, np.uint8))


async def test_answers_wait_for_memory(scripted: Scripted) -> None:
    """What the answers of a client take together is bounded: one waits until another is complete, in part or whole."""
    size, go_on = 800_000, threading.Event()
    said: list[str] = []

    def script(http: ScriptedHttpConnection, number: int) -> None:
        while (asked := http.read()) is not None:
            data = array_answer(asked, size=size, data=bytes(size))
            if asked.message["method"] == "first":
                http.say(data[:600_000])
                said.append("first")
                assert go_on.wait(20)
                http.say(data[600_000:])
            else:
                http.say(data[:300])
                said.append("other")
                http.say(data[300:])

    limits = Limits(max_message_size=1_200_000, max_held_total=1_400_000)
    async with AsyncClient(f"http://{scripted(CountedConnections(script))}", limits=limits, timeout=20) as client:
        first = asyncio.ensure_future(client.call("first"))
        await until(lambda: said)
        await asyncio.sleep(0.05)
        others = [asyncio.ensure_future(client.call("other")) for _ in range(3)]
        await until(lambda: len(said) == 4)
        await asyncio.sleep(0.05)
        assert not any(each.done() for each in (first, *others))
        go_on.set()
        assert [len(result) for result in await asyncio.gather(first, *others)] == [size] * 4
