"""Long messages whose payloads are not parsed, over a socket."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from rpcstream import AsyncClient, Client, Server
from rpcstream.testing import serve_in_thread

DATA = base64.b64encode(bytes(range(256)) * 400)


def make_server() -> Server:
    server = Server()

    @server
    def echo(value) -> Any:  # type: ignore[no-untyped-def]
        return value

    @server
    def total(array: NDArray[np.uint8], scale: int = 1) -> int:
        return int(array.sum()) * scale

    @server
    def texts(value: dict[str, str]) -> int:
        return sum(map(len, value.values()))

    return server


def tagged(data: bytes, kind: bytes = b"bytes", more: bytes = b"") -> bytes:
    return b'{"$type":"%b"%b,"data":"%b"}' % (kind, more, data)


def request(method: str, *params: bytes, call_id: int = 1) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,"method":"%b","params":[%b]}' % (call_id, method.encode(), b",".join(params))


ARRAY = tagged(DATA, b"ndarray", b',"dtype":"|u1","shape":[102400]')


async def test_each_is_answered_in_its_place(connect: Any) -> None:
    async with make_server().listening(port=0) as address:
        raw = await connect(address)
        lines = [request("total", ARRAY), request("total", b"1", call_id=2), request("total", ARRAY, b"2", call_id=3)]
        await raw.send(b"\n".join(lines) + b"\n")
        replies = [await raw.reply() for _ in lines]
        assert [reply["id"] for reply in replies] == [1, 2, 3]
        assert [reply.get("result") for reply in replies] == [13056000, None, 26112000]
        assert replies[1]["error"]["code"] == -32602
        await raw.send(b"[" + b",".join(lines) + b"]\n")
        assert [reply.get("result") for reply in await raw.reply()] == [13056000, None, 26112000]


@pytest.mark.parametrize("pieces", [1, 7, 60])
async def test_in_pieces_and_with_others_around_it(connect: Any, pieces: int) -> None:
    async with make_server().listening(port=0) as address:
        raw = await connect(address)
        stream = b"\n".join([request("texts", b'{"a":"b"}'), request("total", ARRAY), request("texts", b"{}")]) + b"\n"
        step = len(stream) // pieces + 1
        for start in range(0, len(stream), step):
            await raw.send(stream[start : start + step])
        assert [(await raw.reply())["result"] for _ in range(3)] == [1, 13056000, 0]


BROKEN = {
    "alphabet": DATA + b"?",
    "padding": DATA[:-1],
    "end": DATA[:-4] + b"//==",
    "control": DATA[:1000] + b"\x01\x02\x03\x04" + DATA[1000:],
    "utf-8": DATA[:1000] + b"\xff\xff\xff\xff" + DATA[1000:],
    "escape": DATA[:1000] + rb"\u00e4" + DATA[1000:],
    "blank": DATA[:1000] + b"    " + DATA[1000:],
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("method", ["echo", "total"])
async def test_a_broken_payload_is_an_error_and_the_connection_lives(connect: Any, method: str, data: bytes) -> None:
    async with make_server().listening(port=0) as address:
        raw = await connect(address)
        for value in (tagged(data), tagged(data, b"ndarray", b',"dtype":"|u1","shape":[102400]')):
            await raw.send(request(method, value) + b"\n")
            reply = await raw.reply()
            assert reply["error"]["code"] == -32602, reply
            assert len(orjson.dumps(reply)) < 1000
        assert (await raw.call("texts", [{"a": "b"}]))["result"] == 1


async def test_what_only_looks_like_a_payload(connect: Any) -> None:
    async with make_server().listening(port=0) as address:
        raw = await connect(address)
        await raw.send(request("texts", tagged(DATA)) + b"\n")
        assert (await raw.reply())["result"] == len("bytes") + len(DATA)
        await raw.send(b"[" + request("texts", tagged(DATA)) + b"]\n")
        assert (await raw.reply())[0]["result"] == len("bytes") + len(DATA)
        await raw.send(request("texts", tagged(b"\xff" * 100_000)) + b"\n")
        assert (await raw.reply())["error"]["code"] == -32700


def test_integers_beside_arrays_are_exact() -> None:
    value = [2**70, np.arange(100_000), {"also": -(2**64) - 1}]
    with serve_in_thread(make_server()) as address, Client(address) as client:
        number, array, also = client.echo(value)
    assert number == 2**70
    assert also == {"also": -(2**64) - 1}
    np.testing.assert_array_equal(array, value[1])  # type: ignore[arg-type]


async def test_many_at_once_both_ways() -> None:
    async with make_server().listening(port=0) as address, AsyncClient(address) as client:
        arrays = [np.full(size, size % 251, np.uint8) for size in (1, 5000, 70_000, 300_000, 2_000_000)] * 4
        futures = [client.submit.echo([number, array]) for number, array in enumerate(arrays)]
        for number, (future, array) in enumerate(zip(futures, arrays, strict=True)):
            got, back = await future
            assert got == number
            np.testing.assert_array_equal(back, array)


async def test_an_error_with_a_broken_value_is_still_the_error(connect: Any) -> None:
    """A peer's error may hold anything; a payload in it that is not one comes as it was sent."""
    import asyncio

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        data = b'{"jsonrpc":"2.0","id":1,"error":{"code":5,"message":"no","data":%b}}\n' % tagged(DATA + b"?")
        writer.write(data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, AsyncClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
        with pytest.raises(Exception, match="no") as caught:
            await client.anything()
        assert caught.value.data == {"$type": "bytes", "data": DATA.decode() + "?"}  # type: ignore[attr-defined]
