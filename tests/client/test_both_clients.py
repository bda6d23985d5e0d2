"""Calls, batches, notifications and errors with the sync and the async client, against a real server."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from rpcstream import (
    AsyncClient,
    BatchTooLarge,
    Client,
    Codec,
    ConnectionLost,
    EncodeError,
    InternalError,
    InvalidParams,
    Limits,
    MessageTooLarge,
    MethodNotFound,
    RpcError,
    Server,
    ServerBusy,
)
from rpcstream.testing import serve_in_thread

MakeClient = Callable[..., Any]


def test_calls_by_position_by_name_and_without_arguments(make_client: MakeClient, served: str) -> None:
    client = make_client(served)
    assert client.call("sum", 1, 2) == 3
    assert client.call("sum", a=3, b=4) == 7
    assert client.call("vision.edges.count") == "edges of none"


def test_attributes_are_methods(served: str) -> None:
    with Client(served) as client:
        assert client.sum(1, 2) == client.sum(a=1, b=2) == 3
        assert client.vision.edges.count(image="x") == "edges of x"
        assert client.echo([1, {"a": None}]) == [1, {"a": None}]


async def test_attributes_are_methods_async(served: str) -> None:
    async with AsyncClient(served) as client:
        assert await client.sum(1, 2) == await client.sum(a=1, b=2) == 3
        assert await client.vision.edges.count(image="x") == "edges of x"


def test_explicit_params_for_names_that_are_options(served: str) -> None:
    with Client(served) as client:
        assert client.request("options", {"timeout": 1.5, "returns": "x"}) == [1.5, "x"]
        assert client.request("sum", (1, 2), returns=int, timeout=5) == 3
        assert client.request("vision.edges.count") == "edges of none"
        with pytest.raises(TypeError, match="must be a list, a dict or None, got int"):
            client.request("sum", 3)  # type: ignore[call-overload]
        with client.stream_request("options", {"timeout": 1.5, "returns": "x"}, timeout=5) as stream:
            assert list(stream) == [[1.5, "x"]]  # it is no stream
            assert stream.result == [1.5, "x"]
        with pytest.raises(TypeError, match="must be a list, a dict or None, got int"):
            client.stream_request("sum", 3)  # type: ignore[arg-type]


async def test_explicit_params_async(served: str) -> None:
    async with AsyncClient(served) as client:
        assert await client.request("options", {"timeout": 1.5, "returns": "x"}) == [1.5, "x"]
        assert await client.request("sum", [1, 2], returns=int) == 3
        async with client.stream_request("options", {"timeout": 1.5, "returns": "x"}, timeout=5) as stream:
            assert [item async for item in stream] == [[1.5, "x"]]
            assert stream.result == [1.5, "x"]


def test_rich_values_go_and_come(make_client: MakeClient, served: str) -> None:
    client = make_client(served)
    array = np.arange(12, dtype=">f4").reshape(3, 4)
    got = client.call("echo", {"deep": [array, b"\0\xff", 1 + 2j]})["deep"]
    np.testing.assert_array_equal(got[0], array)
    assert got[0].flags.writeable
    assert got[1:] == [b"\0\xff", 1 + 2j]


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**40])
def test_integers_of_any_size_are_exact(make_client: MakeClient, served: str, number: int) -> None:
    client = make_client(served)
    assert client.call("echo", number) == number
    assert client.call("echo", [number, b"x"]) == [number, b"x"]
    assert client.call("echo", number, returns=int) == number
    assert client({"jsonrpc": "2.0", "method": "echo", "params": [number], "id": 1})["result"] == number
    assert [call.result() for call in client.batch(("echo", number), ("echo", 1), ("echo", [number]))] == [
        number,
        1,
        [number],
    ]


def test_returns_checks_and_converts(make_client: MakeClient, served: str) -> None:
    client = make_client(served)
    assert client.call("echo", 3, returns=int) == 3
    assert client.call("echo", None, returns=None) is None
    assert client.call("echo", [1, 2], returns=tuple[int, int]) == (1, 2)
    assert client.call("echo", "a", returns=Literal["a", "b"]) == "a"
    array = client.call("echo", np.ones(3, np.float32), returns=NDArray[np.float32])
    assert array.dtype == np.float32
    with pytest.raises(TypeError, match=rf"result of 'echo' at {served} does not fit returns=: .*int.*str"):
        client.call("echo", "3", returns=int)
    with pytest.raises(TypeError, match=r"float32.*float64"):
        client.call("echo", np.ones(3), returns=NDArray[np.float32])
    with pytest.raises(TypeError, match="no way to check"):
        client.call("echo", 1, returns=socket.socket)
    with pytest.raises(MethodNotFound):
        client.call("nothing", returns=int)


def test_errors_of_the_server(make_client: MakeClient, served: str) -> None:
    client = make_client(served)
    with pytest.raises(RpcError) as caught:
        client.call("fail", 7, "seven", {"array": np.ones(2)})
    error = caught.value
    assert (error.code, error.message, error.method, error.address) == (7, "seven", "fail", served)
    np.testing.assert_array_equal(error.data["array"], np.ones(2))
    assert "fail" in str(error)
    assert served in str(error)
    with pytest.raises(MethodNotFound):
        client.call("nothing")
    with pytest.raises(InvalidParams, match="b"):
        client.call("sum", 1)
    assert client.call("sum", 1, 2) == 3


def test_what_cannot_be_sent_is_not_sent(make_client: MakeClient, served: str) -> None:
    client = make_client(served, limits=Limits(max_message_size=1000))
    with pytest.raises(EncodeError, match="module"):
        client.call("echo", socket)
    with pytest.raises(MessageTooLarge) as caught:
        client.call("echo", "x" * 1000)
    assert caught.value.data["side"] == "client"
    assert caught.value.data["limit"] == 1000
    assert (caught.value.method, caught.value.address) == ("echo", served)
    with pytest.raises(MessageTooLarge):
        client.notify("echo", "x" * 1000)
    with pytest.raises(MessageTooLarge):
        client.batch(("echo", "x" * 600), ("echo", "x" * 600))
    assert client.call("sum", 1, 2) == 3


def test_a_reply_over_the_limit_fails_its_call_only(make_client: MakeClient, served: str) -> None:
    client = make_client(served, limits=Limits(max_message_size=10_000))
    with pytest.raises(MessageTooLarge, match=r"the client's limit is 10000") as caught:
        client.call("repeat", "x", 10_000)
    assert caught.value.data["side"] == "client"
    assert client.call("sum", 1, 2) == 3
    assert client.replies_dropped == 0


def test_a_dict_goes_as_it_is(make_client: MakeClient, served: str) -> None:
    client = make_client(served)
    assert client({"jsonrpc": "2.0", "method": "sum", "params": [1, 2], "id": "my id"}) == {
        "jsonrpc": "2.0",
        "result": 3,
        "id": "my id",
    }
    response = client({"jsonrpc": "2.0", "method": "echo", "params": [np.arange(3)], "id": 0})
    np.testing.assert_array_equal(response["result"], np.arange(3))
    response = client({"jsonrpc": "2.0", "method": "fail", "params": [5, "five", b"data"], "id": -3})
    assert response == {"jsonrpc": "2.0", "error": {"code": 5, "message": "five", "data": b"data"}, "id": -3}
    assert client({"method": "sum", "id": 9})["error"]["code"] == -32600
    assert client({"jsonrpc": "2.0", "method": "note", "params": ["raw"]}) is None
    assert "raw" in client.call("noted_so_far")


def test_ids_that_cannot_be_matched_are_refused(make_client: MakeClient, served: str) -> None:
    client = make_client(served)
    for call_id in (None, True, 1.0, [1], {}):
        with pytest.raises(ValueError, match="an id must be a string or an integer"):
            client({"jsonrpc": "2.0", "method": "sum", "params": [1, 2], "id": call_id})
    with pytest.raises(TypeError, match=r"a request object \(a dict\).*list"):
        client([1])
    assert client.call("sum", 1, 2) == 3


def test_an_id_that_waits_is_refused(served: str) -> None:
    with Client(served, reconnect=True) as client:  # so that both share a connection
        assert client.sum(1, 2) == 3
        waiting = client.submit.never()
        with pytest.raises(ValueError, match="is waiting for its answer"):
            client({"jsonrpc": "2.0", "method": "sum", "params": [1, 2], "id": 2})
        waiting.cancel()


def test_own_ids_keep_clear_of_those_of_the_user(make_client: MakeClient, served: str) -> None:
    client = make_client(served)
    assert client({"jsonrpc": "2.0", "method": "sum", "params": [1, 2], "id": 4})["id"] == 4
    assert [client.call("sum", number, 0) for number in range(9)] == list(range(9))


def test_notifications(make_client: MakeClient, served: str) -> None:
    client = make_client(served)
    client.notify("note", "by position")
    client.notify("note", value="by name")
    client.notify("nothing of this name", 1)
    assert client.call("noted_so_far")[-2:] == ["by position", "by name"]
    assert client.replies_dropped == 0


def test_batches(make_client: MakeClient, served: str) -> None:
    client = make_client(served)
    good, missing, wrong, rich = client.batch(("sum", 1, 2), ("nothing",), ("sum", 1, "x"), ("echo", np.ones(2)))
    assert good.result() == 3
    assert good.error is None
    assert isinstance(missing.error, MethodNotFound)
    assert (missing.error.method, missing.error.address) == ("nothing", served)
    with pytest.raises(InvalidParams):
        wrong.result()
    np.testing.assert_array_equal(rich.result(), np.ones(2))


def test_a_batch_that_the_server_refuses_fails_in_each_call(make_client: MakeClient, served: str) -> None:
    calls = make_client(served).batch(*[("sum", number, 1) for number in range(30)])
    assert all(isinstance(call.error, BatchTooLarge) for call in calls)
    with pytest.raises(BatchTooLarge):
        calls[29].result()


def test_a_batch_over_the_clients_own_limit_is_not_sent(served: str) -> None:
    def sums(client: Client, count: int) -> list[Any]:
        with client.batch() as batch:
            calls = [batch.sum(number, 1) for number in range(count)]
        return [call.result() for call in calls]

    with Client(served, limits=Limits(max_batch=5)) as client:
        waiting = client.submit.sum(1, 2)
        with pytest.raises(BatchTooLarge) as caught:
            sums(client, 6)
        assert caught.value.data == {"size": 6, "limit": 5, "side": "client"}
        assert caught.value.address == served
        assert waiting.result() == 3
        assert sums(client, 5) == [1, 2, 3, 4, 5]


def test_a_refusal_before_the_call_is_quoted(rpc_server: Callable[[Server], str]) -> None:
    address = rpc_server(Server(limits=Limits(max_connections=1)))
    with Client(address) as first, Client(address) as second:
        assert first.call("rpc.ping") == "pong"
        for _ in range(20):
            with pytest.raises((ConnectionLost, ServerBusy), match="-32002"):
                second.call("rpc.ping")
        assert first.call("rpc.ping") == "pong"


def test_all_that_a_batch_can_hold(served: str) -> None:
    sent: list[bytes] = []
    with Client(served, trace=lambda direction, message: sent.append(message)) as client:
        with client.batch(timeout=30) as batch:
            by_attribute = batch.vision.edges.count("x")
            by_name = batch.call("sum", a=1, b=2, returns=int)
            explicit = batch.request("sum", [3, 4])
            unfit = batch.sum(1, 1, returns=str)
            batch.notify.note("from a batch")
            batch.notify("note", value="and another")
            with pytest.raises(RuntimeError, match="has not been sent"):
                by_name.result()
            assert repr(by_name) == "<call of 'sum' in a batch, not sent>"
            with pytest.raises(TypeError, match="one time-out for all"):
                batch.sum(1, 2, timeout=3)
        assert (by_attribute.result(), by_name.result(), explicit.result()) == ("edges of x", 3, 7)
        with pytest.raises(TypeError, match="does not fit returns="):
            unfit.result()
        assert (repr(by_name), repr(unfit)) == (
            "<call of 'sum' in a batch, done>",
            "<call of 'sum' in a batch, failed>",
        )
        assert client.noted_so_far()[-2:] == ["from a batch", "and another"]
        assert sent[0].startswith(b"[")

        sent.clear()
        with client.batch():
            pass
        with pytest.raises(ZeroDivisionError), client.batch() as batch:  # noqa: PT012
            never = batch.sum(1, 2)
            raise ZeroDivisionError
        assert sent == []
        with pytest.raises(RuntimeError, match="has not been sent"):
            never.result()
        with client.batch() as batch:
            batch.notify.note("alone")
        assert client.noted_so_far()[-1] == "alone"


async def test_all_that_an_async_batch_can_hold(served: str) -> None:
    async with AsyncClient(served) as client:
        async with client.batch() as batch:
            calls = [batch.sum(number, 1) for number in range(5)]
            batch.notify.note("from an async batch")
        assert [call.result() for call in calls] == [1, 2, 3, 4, 5]
        assert (await client.noted_so_far())[-1] == "from an async batch"
        async with client.batch():
            pass
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with client.batch() as batch:
                batch.sum(1, 2)
                raise ZeroDivisionError
        async with client.batch() as batch:
            batch.notify.note("alone, async")
        assert (await client.noted_so_far())[-1] == "alone, async"


def test_own_types(make_client: MakeClient) -> None:
    class Money:
        def __init__(self, cents: int) -> None:
            self.cents = cents

    def codec() -> Codec:
        codec = Codec()
        codec.register(Money, "money", encode=lambda m: {"cents": m.cents}, decode=lambda parts: Money(parts["cents"]))
        return codec

    server = Server(codec=codec())

    @server
    def double(amount: Any) -> Any:
        return Money(2 * amount.cents)

    with serve_in_thread(server) as address:
        client = make_client(address, codec=codec())
        assert client.call("double", Money(21)).cents == 42
        without = make_client(address)
        assert without.call("rpc.ping") == "pong"
        with pytest.raises(EncodeError, match="Money"):
            without.call("double", Money(1))


def test_the_trace_sees_every_message(make_client: MakeClient, served: str) -> None:
    seen: list[tuple[str, bytes]] = []
    client = make_client(served, trace=lambda direction, message: seen.append((direction, message)))
    client.call("sum", 1, 2)
    client.notify("note", "traced")
    client.call("sum", 3, 4)
    assert [direction for direction, _ in seen] == ["send", "receive", "send", "send", "receive"]
    assert seen[0][1] == b'{"jsonrpc":"2.0","id":1,"method":"sum","params":[1,2]}'
    assert seen[2][1] == b'{"jsonrpc":"2.0","method":"note","params":["traced"]}'


def test_the_timeout_travels_only_where_the_call_has_one_of_its_own(make_client: MakeClient, served: str) -> None:
    sent: list[bytes] = []
    client = make_client(
        served, timeout=50, trace=lambda direction, message: sent.append(message) if direction == "send" else None
    )
    client.call("sum", 1, 2)
    client.call("sum", 1, 2, timeout=None)
    client.call("sum", 1, 2, timeout=40)
    client.batch(("sum", 1, 2), timeout=30)
    assert [b'"timeout"' in message for message in sent] == [False, False, True, True]


def test_progress_of_a_long_message(served: str) -> None:
    seen: list[tuple[int, int]] = []
    with Client(served, on_send=lambda sent, total: seen.append((sent, total))) as client:
        client.echo("short")
        assert seen == []
        client.echo("x" * 3_000_000)
    total = seen[0][1]
    assert total > 3_000_000
    assert [sent for sent, _ in seen] == sorted({sent for sent, _ in seen})
    assert seen[-1] == (total, total)


def test_progress_of_a_binary_frame(served: str) -> None:
    seen: list[tuple[int, int]] = []
    data = bytes(3_000_000)
    with Client(served, on_send=lambda sent, total: seen.append((sent, total))) as client:
        client.echo(data)  # text: base64
        as_text, _ = seen[-1]
        seen.clear()
        client.echo(data)
    total = seen[0][1]
    assert len(data) < total < as_text
    assert [sent for sent, _ in seen] == sorted({sent for sent, _ in seen})
    assert seen[-1] == (total, total)


@pytest.mark.skipif(sys.platform == "win32", reason="has no Unix sockets")
def test_unix_sockets(make_client: MakeClient, tmp_path: Path) -> None:
    server = Server()
    server.add(lambda a, b: a + b, name="sum")
    with serve_in_thread(server, unix=tmp_path / "socket") as address:
        assert address.startswith("unix:///")
        assert make_client(address).call("sum", 1, 2) == 3


def test_ipv6(make_client: MakeClient) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    server = Server()
    server.add(lambda a, b: a + b, name="sum")
    with serve_in_thread(server, host="::1") as address:
        assert address.startswith("[::1]:")
        assert make_client(address).call("sum", 1, 2) == 3


def test_another_delimiter(make_client: MakeClient) -> None:
    server = Server(delimiter=b"\r\n\r\n")
    server.add(lambda value: value, name="echo")
    with serve_in_thread(server) as address:
        client = make_client(address, delimiter=b"\r\n\r\n")
        assert client.call("echo", "a\r\n\r\nb") == "a\r\n\r\nb"
        assert client.call("echo", "x" * 300_000) == "x" * 300_000


def test_a_closed_client_says_so(make_client: MakeClient, served: str) -> None:
    client = make_client(served)
    assert client.call("sum", 1, 2) == 3
    face = client.client
    if isinstance(face, Client):
        face.close()
        face.close()
        for attempt in (face.sum, face.notify.note, face.submit.sum, lambda *_: face({"method": "sum", "id": 1})):
            with pytest.raises(RuntimeError, match=r"called on a closed client \(of 127"):
                attempt(1, 2)
    else:
        client.runner.run(face.close())
        client.runner.run(face.close())
        with pytest.raises(RuntimeError, match="'sum' was called on a closed client"):
            client.call("sum", 1, 2)
        with pytest.raises(RuntimeError, match="closed client"):
            client.notify("note", 1)


def test_a_client_that_was_never_used_is_closed(make_client: MakeClient, free_address: str) -> None:
    make_client(free_address)


def test_results_that_cannot_be_read(make_client: MakeClient, scripted: Callable[..., str]) -> None:
    def script(line: Any) -> None:
        broken = {"$type": "ndarray", "dtype": "<f4", "shape": [3], "data": "AAAA"}
        line.answer(line.read(), [1, broken])
        line.say({"jsonrpc": "2.0", "id": line.read()["id"], "error": {"code": 1, "message": "m", "data": broken}})
        line.say({"jsonrpc": "2.0", "id": line.read()["id"], "error": "no object"})
        line.say({"jsonrpc": "2.0", "id": line.read()["id"]})
        line.raw(b'{"jsonrpc":"2.0","id":%d,"result":%s1%s}\n' % (line.read()["id"], b"[" * 1000, b"]" * 1000))
        line.say({"id": line.read()["id"], "result": "lenient", "error": None})

    client = make_client(scripted(script))
    with pytest.raises(InternalError, match=r"cannot be read.*\[1\]") as caught:
        client.call("array")
    assert (caught.value.method, caught.value.address) == ("array", client.client.address)
    with pytest.raises(RpcError) as caught_error:
        client.call("error")
    assert caught_error.value.code == 1
    with pytest.raises(InternalError, match="malformed error"):
        client.call("malformed")
    with pytest.raises(InternalError, match="neither result nor error"):
        client.call("empty")
    with pytest.raises(InternalError, match="nested deeper than 128"):
        client.call("deep")
    assert client.call("lenient") == "lenient"
