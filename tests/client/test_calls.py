"""Calls, batches, notifications, errors and options of both clients, against a real server."""

from __future__ import annotations

import asyncio
import inspect
import re
import socket
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import AsyncClient, Client, Limits, MethodNotFound, Retry, RpcError, Server, Trace
from rpcstream.errors import BatchTooLarge, EncodeError, InternalError, InvalidRequest, MessageTooLarge
from rpcstream.testing import serve_in_thread

from ..kit import UsualServer, request
from .conftest import MakeClient, Scripted, Traced, refusal


def test_calls_by_position_and_by_name(make_client: MakeClient, served: str, server: UsualServer) -> None:
    client = make_client(served)
    assert client.call("add", 1, 2) == client.call("add", a=1, b=2) == 3
    array = np.arange(12, dtype=">f4").reshape(3, 4)
    got = client.call("echo", {"deep": [array, b"\0\xff", 1 + 2j]})["deep"]
    np.testing.assert_array_equal(got[0], array)
    assert got[0].flags.writeable
    assert got[1:] == [b"\0\xff", 1 + 2j]
    client.notify("note", value="by name")
    assert client.call("add", 1, 2) == 3
    assert (server.noted[-1], client.replies_dropped) == ("by name", 0)


async def test_attributes_are_methods_and_requests_take_params_whatever_their_names(face: Any) -> None:
    server = Server()
    server.add(lambda timeout, returns: [timeout, returns], name="vision.options")
    named = {"timeout": 1.5, "returns": "x"}
    with serve_in_thread(server) as address:
        async with face(address) as client:
            assert await client.request("vision.options", named) == [1.5, "x"]
            assert await client.request("vision.options", (1, 2), returns=list[int], timeout=5) == [1, 2]
            with pytest.raises(TypeError, match="must be a list, a dict or None, got int"):
                await client.request("vision.options", 3)
            if isinstance(client, AsyncClient):
                assert await client.vision.options(1, 2) == [1, 2]
                async with client.stream_request("vision.options", named, timeout=5) as stream:
                    assert [item async for item in stream] == [[1.5, "x"]]  # it is no stream
            else:
                with client.client.stream_request("vision.options", named, timeout=5) as items:
                    assert (list(items), items.result) == ([[1.5, "x"]], [1.5, "x"])


def test_one_async_client_in_two_loops_one_after_the_other(served: str) -> None:
    client = AsyncClient(served)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        for runner in (first, second, second):
            assert runner.run(client.call("add", 1, 2)) == 3
        for runner in (first, second):
            runner.run(client.close())


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**40])
def test_integers_of_any_size_are_exact(make_client: MakeClient, served: str, number: int) -> None:
    client = make_client(served)
    assert client.call("echo", number) == client.call("echo", number, returns=int) == number
    assert client.call("echo", [number, b"x"]) == [number, b"x"]
    assert client(request("echo", number))["result"] == number
    calls = client.batch(("echo", number), ("echo", 1), ("echo", [number]))
    assert [call.result() for call in calls] == [number, 1, [number]]


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (3, int, 3),
        (None, None, None),
        ("a", Literal["a", "b"], "a"),
        ([1, 2], tuple[int, int], (1, 2)),
        ("3", int, "result of 'echo' at .* does not fit returns=: .*int.*str"),
        (np.ones(3), NDArray[np.float32], "float32.*float64"),
        (1, socket.socket, "no way to check"),
    ],
)
def test_returns_checks_and_converts(
    make_client: MakeClient, served: str, value: Any, hint: Any, expected: Any
) -> None:
    client = make_client(served)
    if isinstance(expected, str) and len(expected) > 1:
        with pytest.raises(TypeError, match=expected):
            client.call("echo", value, returns=hint)
        with pytest.raises(MethodNotFound):
            client.call("nothing", returns=hint)
    else:
        assert client.call("echo", value, returns=hint) == expected


async def test_a_notification_is_encoded_when_it_is_sent_as_a_call_is(served: str, server: UsualServer) -> None:
    async with AsyncClient(served) as client:
        value: list[Any] = ["first"]
        notification, impossible = client.notify.note(value), client.notify.note(object())
        value[0] = "changed before it is awaited"
        with pytest.raises(EncodeError, match="object"):
            await impossible
        await notification
        await client.add(1, 2)
    assert server.noted[-1] == ["changed before it is awaited"]


def test_what_is_too_large_is_not_sent(make_client: MakeClient, served: str) -> None:
    client = make_client(served, limits=Limits(max_message_size=1000, max_batch=5))
    with pytest.raises(EncodeError, match="module"):
        client.call("echo", socket)
    with pytest.raises(MessageTooLarge) as caught:
        client.call("echo", "x" * 1000)
    assert (caught.value.data["side"], caught.value.data["limit"]) == ("client", 1000)
    assert (caught.value.method, caught.value.address) == ("echo", served)
    with pytest.raises(MessageTooLarge):
        client.notify("echo", "x" * 1000)
    with pytest.raises(MessageTooLarge):
        client.batch(("echo", "x" * 600), ("echo", "x" * 600))
    with pytest.raises(MessageTooLarge, match=r"the client's limit is 1000"):  # the reply
        client.call("count", 900)
    with pytest.raises(BatchTooLarge) as too_many:
        client.batch(*[("add", number, 1) for number in range(6)])
    assert too_many.value.data == {"size": 6, "limit": 5, "side": "client"}
    assert too_many.value.address == served
    calls = client.batch(*[("add", number, 1) for number in range(5)])
    assert [call.result() for call in calls] == [1, 2, 3, 4, 5]
    assert client.replies_dropped == 0


def test_a_dict_is_a_request_object(make_client: MakeClient, served: str, server: UsualServer) -> None:
    client = make_client(served)
    assert client(request("add", 1, 2, id="my id")) == {"jsonrpc": "2.0", "result": 3, "id": "my id"}
    np.testing.assert_array_equal(client(request("echo", np.arange(3), id=0))["result"], np.arange(3))
    assert client(request("fail", 5, "five", b"data", id=-3)) == refusal(-3, 5, "five", data=b"data")
    assert client({"method": "add", "id": 9})["error"]["code"] == -32600
    assert client({"jsonrpc": "2.0", "method": "note", "params": ["raw"]}) is None
    for call_id in (None, True, 1.0, [1], {}):
        with pytest.raises(ValueError, match="an id must be a string or an integer"):
            client(request("add", 1, 2, id=call_id))
    with pytest.raises(TypeError, match=r"a request object \(a dict\).*list"):
        client([1])
    # The client's own ids keep clear of the user's.
    assert client(request("add", 1, 2, id=9))["id"] == 9
    assert [client.call("add", number, 0) for number in range(9)] == list(range(9))
    assert server.noted[-1] == "raw"
    with Client(served, reconnect=True) as shared:
        assert shared.add(1, 2) == 3
        waiting = shared.submit.wait()
        with pytest.raises(ValueError, match="is waiting for its answer"):
            shared(request("add", 1, 2, id=2))
        waiting.cancel()


def test_all_that_a_batch_can_hold(served: str, server: UsualServer) -> None:
    traced = Traced()
    with Client(served, trace=traced) as client:
        with client.batch(timeout=30) as batch:
            by_attribute = batch.add(1, 2)
            by_name = batch.call("add", a=1, b=3, returns=int)
            explicit = batch.request("add", [3, 4])
            unfit = batch.add(1, 1, returns=str)
            missing, rich = batch.nothing(), batch.echo(np.ones(2))
            batch.notify.note("from a batch")
            batch.notify("note", value="and another")
            with pytest.raises(RuntimeError, match="has not been sent"):
                by_name.result()
            with pytest.raises(TypeError, match="one time-out for all"):
                batch.add(1, 2, timeout=3)
        assert [call.result() for call in (by_attribute, by_name, explicit)] == [3, 4, 7]
        assert by_attribute.error is None
        error: Any = missing.error
        assert (type(error), error.method, error.address) == (MethodNotFound, "nothing", served)
        np.testing.assert_array_equal(rich.result(), np.ones(2))
        with pytest.raises(TypeError, match="does not fit returns="):
            unfit.result()
        assert client.echo(0) == 0
        assert server.noted[-2:] == ["from a batch", "and another"]
        assert traced.sent[0].startswith(b"[")


def test_batches_that_are_not_sent_or_hold_notifications_alone(served: str, server: UsualServer) -> None:
    traced = Traced()
    with Client(served, trace=traced) as client:
        with client.batch():
            pass
        with pytest.raises(ZeroDivisionError), client.batch() as batch:  # noqa: PT012
            never: Any = batch.add(1, 2)
            raise ZeroDivisionError
        assert traced.messages == []
        with client.batch() as batch:
            batch.notify.note("alone")
        assert client.echo(0) == 0
    with pytest.raises(RuntimeError, match="has not been sent"):
        never.result()
    assert server.noted[-1] == "alone"


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else 1


@pytest.mark.parametrize("scheme", ["", "http://", "ws://"])
def test_a_batch_that_the_server_refuses_fails_in_each_call(make_client: MakeClient, scheme: str) -> None:
    limits = Limits(max_batch=3, max_message_size=2000, max_depth=20)
    with serve_in_thread(UsualServer(limits=limits, drain_timeout=0.05)) as address:
        client = make_client(f"{scheme}{address}")
        for values, error in (
            ([1, 2, 3, 4], BatchTooLarge),
            (["x" * 1000, "y" * 1500], MessageTooLarge),
            ([1, deep(30)], InvalidRequest),
        ):
            for call in client.batch(*[("echo", value) for value in values]):
                with pytest.raises(error):
                    call.result()
            assert client.call("echo", "and it goes on") == "and it goes on"


def test_the_trace_sees_every_message(make_client: MakeClient, served: str) -> None:
    """The time-out travels only where the call has one of its own."""
    client = make_client(served, timeout=50, trace=(traced := Traced()))
    client.call("add", 1, 2)
    client.notify("note", "traced")
    client.call("add", 3, 4, timeout=None)
    client.call("add", 3, 4, timeout=40)
    client.batch(("add", 1, 2), timeout=30)
    assert [direction for direction, _ in traced.messages] == ["send", "receive", "send", *["send", "receive"] * 3]
    assert traced.sent[0] == b'{"jsonrpc":"2.0","id":1,"method":"add","params":[1,2]}'
    assert traced.sent[1] == b'{"jsonrpc":"2.0","method":"note","params":["traced"]}'
    assert [b'"timeout"' in message for message in traced.sent] == [False, False, False, True, True]


def test_on_send_follows_a_long_message(served: str) -> None:
    seen: list[tuple[int, int]] = []
    with Client(served, trace=Trace(on_send=lambda sent, total: seen.append((sent, total)))) as client:
        client.echo("short")
        assert seen == []
        for _ in range(2):  # as base64, then as a binary frame
            client.echo(bytes(3_000_000))
            total = seen[0][1]
            assert [sent for sent, _ in seen] == sorted({sent for sent, _ in seen})
            assert seen[-1] == (total, total)
            seen.clear()


def test_another_delimiter(make_client: MakeClient) -> None:
    with serve_in_thread(UsualServer(delimiter=b"\r\n\r\n")) as address:
        client = make_client(address, delimiter=b"\r\n\r\n")
        for text in ("a\r\n\r\nb", "x" * 300_000):
            assert client.call("echo", text) == text


def test_a_closed_client_says_so(make_client: MakeClient, served: str) -> None:
    client = make_client(served)
    assert client.call("add", 1, 2) == 3
    face = client.client
    for _ in range(2):
        face.close() if isinstance(face, Client) else client.runner.run(face.close())
    for attempt in (client.call, client.notify, lambda *_: client({"method": "add", "id": 1})):
        with pytest.raises(RuntimeError, match=r"called on a closed client \(of 127"):
            attempt("add", 1, 2)
    if isinstance(face, Client):
        with pytest.raises(RuntimeError, match=r"called on a closed client"):
            face.submit.add(1, 2)


BROKEN = {"$type": "ndarray", "dtype": "<f4", "shape": [3], "data": "AAAA"}


@pytest.mark.parametrize(
    ("members", "kind", "said"),
    [
        ({"result": [1, BROKEN]}, InternalError, r"cannot be read.*\[1\]"),
        ({"error": {"code": 1, "message": "m", "data": BROKEN}}, RpcError, r"\[1\]"),
        ({"error": "no object"}, InternalError, "malformed error"),
        ({}, InternalError, "neither result nor error"),
        ({"result": deep(200)}, InternalError, "nested deeper than 128"),
    ],
)
def test_replies_that_cannot_be_read(
    make_client: MakeClient, scripted: Scripted, members: Any, kind: Any, said: str
) -> None:
    def script(line: Any) -> None:
        line.say({"jsonrpc": "2.0", "id": line.read()["id"], **members})
        line.say({"id": line.read()["id"], "result": "lenient", "error": None})

    client = make_client(scripted(script))
    with pytest.raises(kind, match=said) as caught:
        client.call("first")
    assert (type(caught.value), caught.value.method, caught.value.address) == (kind, "first", client.client.address)
    assert client.call("second") == "lenient"


FACES: Any = pytest.mark.parametrize("client", [Client, AsyncClient])


@FACES
def test_options_and_methods_have_a_text_and_may_be_given(client: Any) -> None:
    text = inspect.getdoc(client) or ""
    options = re.findall(r"^    (\w+)=([^:]+): ", text, re.MULTILINE)
    assert {"timeout", "retry", "pool", "limits", "token"} <= {name for name, _ in options}
    assert ("timeout", "60.0") in options
    known = {"Limits": Limits}
    made = client(address="127.0.0.1:1", **{name: eval(default, known) for name, default in options})
    assert made.address == "127.0.0.1:1"
    with pytest.raises(TypeError):
        client("127.0.0.1:1", 5.0)
    with pytest.raises(TypeError, match=r"got int\. For a remote method of this name use call\('on_connect', …\)"):
        client("127.0.0.1:1").on_connect(3)


def test_a_retry_that_makes_no_sense() -> None:
    for options, said in (({"times": -1}, "must be a whole number"), ({"repeats": "never"}, "'all' or 'idempotent'")):
        with pytest.raises(ValueError, match=f"retry: .* {said}"):
            Retry(**options)  # type: ignore[arg-type]


@FACES
@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"time_out": 1}, TypeError, r"\(\) has no option 'time_out' \(did you mean 'timeout'\?\)$"),
        ({"zzz": 1}, TypeError, r"\(\) has no option 'zzz'$"),
        ({"pool": 0}, ValueError, "pool must be at least 1"),
        ({"retry": 3}, TypeError, r"retry= takes a Retry, such as Retry\(times=3\)"),
        ({"timeout": 0}, ValueError, "timeout must be positive or None"),
        ({"connect_timeout": -1}, ValueError, "connect_timeout must be positive"),
        ({"wait_for": 0}, ValueError, "wait_for must be positive or None"),
        ({"wait_for": float("nan")}, ValueError, "wait_for must be positive or None"),
        ({"keepalive": 0}, ValueError, "keepalive must be positive or None"),
        ({"delimiter": b""}, ValueError, "at least one byte"),
        ({"name": "a.b"}, ValueError, "the name of a client"),
        ({"name": "a\n"}, ValueError, "the name of a client"),
        ({"name": 7}, TypeError, "the name of a client"),
        ({"address": "http://127.0.0.1", "token": "two words"}, ValueError, "token"),
        ({"address": "http://127.0.0.1", "token": ""}, ValueError, "token"),
        ({"address": "http://127.0.0.1", "pool": 0}, ValueError, "pool must be at least 1"),
        ({"address": "http://127.0.0.1", "tls": "ca.pem"}, ValueError, "tls= is for TLS"),
        ({"address": "https://127.0.0.1", "tls": 7}, TypeError, "tls= takes a PEM file"),
    ],
)
def test_options_that_make_no_sense(client: Any, options: dict[str, Any], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        client(**options)
    token = options.get("token")
    assert not token or token not in str(caught.value)
    if "zzz" in options:
        with pytest.raises(TypeError, match="has no option 'zzz'"):
            client.from_config(zzz=1)
