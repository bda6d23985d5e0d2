"""The port for direct connections, attacked: it takes nothing but secrets that were given out, each once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import orjson
import pytest

pytest.importorskip("nats")

from rpcstream.limits import Limits
from rpcstream.nats import direct, instance_way
from rpcstream.nats.tickets import read_ticket, ticket

from ..internals import direct_port_of, direct_ways_of, entering_of, memory_of
from ..kit import until
from ..kit.nats_server import NatsServer
from ..kit.plain_nats import PlainClient, plain_client
from ..kit.raw_connection import RawConnection
from .tickets_setup import SERVICE, SIZE, array, client_of, joined, make_server, nats, tickets

pytestmark = pytest.mark.nats

__all__ = ["nats"]


class Peer:
    """A client that speaks the protocol by hand.

    Attributes:
        messages: what has come by NATS, and the last token of its subject.
    """

    def __init__(self, client: PlainClient) -> None:
        self.client = client
        self.inbox = f"{client.new_inbox()}.rpcstream"
        self.messages: asyncio.Queue[tuple[str, str, bytes]] = asyncio.Queue()

    @classmethod
    @contextlib.asynccontextmanager
    async def at(cls, nats: NatsServer | str) -> AsyncIterator[Peer]:
        async with plain_client(nats if isinstance(nats, str) else nats.url) as client:
            peer = cls(client)
            await client.subscribe(f"{peer.inbox}.*", cb=peer._received)
            yield peer

    async def _received(self, message: Any) -> None:
        self.messages.put_nowait((message.subject.rpartition(".")[2], message.reply, message.data))

    async def send(self, method: str, payload: bytes, call_id: int = 1) -> None:
        await self.client.publish(f"rpc.{SERVICE}.{method}", payload, reply=f"{self.inbox}.{call_id}")

    async def next(self, token: str) -> tuple[str, bytes]:
        while True:
            found, reply, data = await asyncio.wait_for(self.messages.get(), 20)
            if found == token and data:
                return reply, data

    async def place(self, method: str = "size_of", size: int = SIZE + 4096, call_id: int = 1) -> dict[str, Any]:
        """Ask for a place for a call."""
        await self.send(method, ticket(ask=call_id, method=method, size=size, ids=[call_id]), call_id)
        reply, data = await self.next("ticket")
        return {**read_ticket(data, Limits()), "reply": reply}

    async def error(self) -> dict[str, Any]:
        _, data = await self.next("m")
        return orjson.loads(data)["error"]


async def open_direct(params: dict[str, Any]) -> RawConnection:
    connection = await RawConnection.open(params["address"])
    await connection.send(f"rpcstream {params['secret']}\n")
    assert await connection.reader.readline() == b"ok\n"
    return connection


def frame(values: np.ndarray, call_id: int = 1, method: str = "size_of") -> bytes:
    message = {
        "jsonrpc": "2.0",
        "id": call_id,
        "method": method,
        "params": [{"$type": "ndarray", "dtype": "|u1", "shape": [values.size], "data": {"$bin": 0}}],
    }
    json = orjson.dumps(message) + b"\n"
    head = b"@%d %d" % (len(json), values.size)
    return head + b" " * (-(len(head) + 1 + len(json)) % 8) + b"\n" + json + values.tobytes()


async def ended(connection: RawConnection) -> bytes:
    """What comes until the other end closes."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(connection.reader.read(), 20)
    return b""


# -- who may connect --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"jsonrpc":"2.0","id":1,"method":"size_of","params":[1]}\n',
        b"\x16\x03\x01\x02\x00\x01",
        b"\n",
        b"rpcstream \n",
        b"rpcstream " + b"x" * 4096,
        b"rpcstream " + b"ab" * 32 + b"\n",
        b"rpcstream \xff\xfe\n",
        bytes(range(256)) * 4,
    ],
)
async def test_anything_but_a_secret_is_refused(nats: NatsServer, data: bytes) -> None:
    async with joined(make_server(), nats) as server:
        connection = await RawConnection.open(f"127.0.0.1:{direct_port_of(server)}")
        await connection.send(data)
        answer = await ended(connection)
        assert answer[:9] in (b"", b"refused: ")
        await until(lambda: entering_of(server) == 0)
        connection.writer.close()


async def test_a_secret_is_for_one_connection(nats: NatsServer) -> None:
    async with joined(make_server(), nats) as server, Peer.at(nats) as peer:
        params = await peer.place()
        first = await open_direct(params)
        again = await RawConnection.open(params["address"])
        await again.send(f"rpcstream {params['secret']}\n")
        assert b"was used" in await ended(again)
        again.writer.close()
        assert tickets(server)["refused"] == 1
        # The one that had it goes on.
        await first.send(b"!%d\n" % params["place"] + frame(array()))
        _, reply = await peer.next("m")
        assert orjson.loads(reply)["result"] == SIZE
        first.writer.close()


async def test_a_secret_that_is_too_old(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance_way, "CLAIM_TIME", 0.05)
    async with joined(make_server(), nats) as server, Peer.at(nats) as peer:
        params = await peer.place()
        await until(lambda: tickets(server)["expired"] == 1)
        connection = await RawConnection.open(params["address"])
        await connection.send(f"rpcstream {params['secret']}\n")
        assert b"older" in await ended(connection)
        connection.writer.close()


async def test_who_says_nothing_is_closed(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "ENTER_TIME", 0.1)
    async with joined(make_server(), nats) as server:
        silent = await RawConnection.open(f"127.0.0.1:{direct_port_of(server)}")
        slow = await RawConnection.open(f"127.0.0.1:{direct_port_of(server)}")
        await slow.send(b"rpcstream 00")
        assert await ended(silent) == b""
        assert await ended(slow) == b""
        assert entering_of(server) == 0
        silent.writer.close()
        slow.writer.close()


async def test_thousands_of_strangers_keep_no_client_out(nats: NatsServer) -> None:
    async with joined(make_server(), nats) as server, client_of(nats) as client:
        strangers: list[RawConnection] = []
        address = f"127.0.0.1:{direct_port_of(server)}"
        for _ in range(20):
            strangers += await asyncio.gather(*[RawConnection.open(address) for _ in range(100)])
            assert entering_of(server) <= direct.ENTERING_MAX
        assert np.array_equal(await client.call("echo", array()), array())
        await until(lambda: entering_of(server) <= direct.ENTERING_MAX)
        assert tickets(server)["claimed"] == 1
        for stranger in strangers:
            stranger.writer.transport.abort()


# -- what may be sent by a connection ---------------------------------------------------------------------------------


async def test_a_call_by_hand(nats: NatsServer) -> None:
    async with joined(make_server(), nats), Peer.at(nats) as peer:
        params = await peer.place("echo")
        connection = await open_direct(params)
        await connection.send(b"!%d\n" % params["place"] + frame(array(), method="echo"))
        assert await connection.reader.readline() == b"=\n"  # nothing is under way that it could overtake
        head = await connection.reader.readline()
        assert head[:1] == b"@"
        assert b" %d" % SIZE in head
        connection.writer.close()


async def test_another_call_than_the_place_was_for(nats: NatsServer) -> None:
    async with joined(make_server(), nats), Peer.at(nats) as peer:
        params = await peer.place("size_of")
        connection = await open_direct(params)
        await connection.send(b"!%d\n" % params["place"] + frame(array(), method="echo"))
        assert (await peer.error())["code"] == -32600
        params |= await peer.place("size_of", call_id=2)
        await connection.send(b"!%d\n" % params["place"] + frame(array(), call_id=3))
        assert (await peer.error())["code"] == -32600
        connection.writer.close()


async def test_more_than_the_ticket_said(nats: NatsServer) -> None:
    async with joined(make_server(), nats), Peer.at(nats) as peer:
        params = await peer.place(size=20_000)
        connection = await open_direct(params)
        await connection.send(b"!%d\n" % params["place"] + frame(array()))
        assert "its ticket said 20000" in (await peer.error())["data"]["reason"]
        connection.writer.close()


@pytest.mark.parametrize("data", [b"!7\n", b"#0\n", b"!x\n", b"#-1\n", b"?1\n", b"", b"#1\n#1\n#1\n@x\n"])
async def test_a_message_without_a_place_ends_the_connection(nats: NatsServer, data: bytes) -> None:
    async with joined(make_server(), nats) as server, Peer.at(nats) as peer:
        params = await peer.place()
        connection = await open_direct(params)
        await connection.send(data + frame(array()))
        connection.writer.write_eof()
        await ended(connection)
        await until(lambda: not direct_ways_of(server)[0].is_open)
        assert memory_of(server).waiting == 0
        connection.writer.close()


async def test_the_same_place_twice(nats: NatsServer) -> None:
    async with joined(make_server(), nats), Peer.at(nats) as peer:
        params = await peer.place()
        connection = await open_direct(params)
        call = b"!%d\n" % params["place"] + frame(array())
        await connection.send(call + call)
        _, reply = await peer.next("m")
        assert orjson.loads(reply)["result"] == SIZE
        error = await peer.error()
        assert error["data"]["executed"] is False
        connection.writer.close()


async def test_a_frame_over_the_limit_of_the_server(nats: NatsServer) -> None:
    limits = Limits(max_message_size=2 * 1024 * 1024)
    async with joined(make_server(limits=limits), nats) as server, Peer.at(nats) as peer:
        await peer.send("size_of", ticket(ask=1, method="size_of", size=SIZE, ids=[1]))
        assert (await peer.error())["code"] == -32001
        params = await peer.place(size=1_500_000)
        connection = await open_direct(params)
        await connection.send(b"!%d\n" % params["place"] + frame(array()))
        assert (await peer.error())["code"] == -32001
        assert memory_of(server).waiting == 0
        connection.writer.close()


async def test_a_peer_that_stalls_in_the_middle(nats: NatsServer) -> None:
    limits = Limits(message_timeout=0.3)
    async with joined(make_server(limits=limits), nats) as server, Peer.at(nats) as peer:
        params = await peer.place()
        connection = await open_direct(params)
        await connection.send(b"!%d\n" % params["place"] + frame(array())[: SIZE // 2])
        await until(lambda: memory_of(server).waiting >= SIZE // 4)
        await ended(connection)
        await until(lambda: memory_of(server).waiting == 0)
        assert not direct_ways_of(server)[0].is_open
        connection.writer.close()


async def test_a_client_that_does_not_read_its_result(nats: NatsServer) -> None:
    limits = Limits(write_timeout=0.3)
    async with joined(make_server(limits=limits), nats) as server, Peer.at(nats) as peer:
        call = {"jsonrpc": "2.0", "id": 1, "method": "make", "params": [32 * 1024 * 1024]}
        await peer.send("make", orjson.dumps(call))
        _, data = await peer.next("m")
        connection = await open_direct(read_ticket(data, Limits()))
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a socket's
        await until(lambda: not direct_ways_of(server)[0].is_open)
        assert memory_of(server).unread.total == 0
        connection.writer.close()


async def test_results_that_are_never_claimed_are_bounded_and_forgotten(
    nats: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_way, "CLAIM_TIME", 1.0)
    limits = Limits(max_message_size=2 * SIZE, write_buffer=1024)
    async with joined(make_server(limits=limits), nats) as server, Peer.at(nats) as peer:
        for number in range(6):
            call = {"jsonrpc": "2.0", "id": number, "method": "make", "params": [SIZE]}
            await peer.send("make", orjson.dumps(call), number)
        await until(lambda: server.counters.requests == 6)
        assert memory_of(server).waiting <= 2 * SIZE + 4096
        codes = []
        while len(codes) < 6:
            _, data = await peer.next("m")
            codes += [orjson.loads(line)["error"]["code"] for line in data.split(b"\n") if b'"error"' in line]
        assert sorted(codes) == [-32002] * 4 + [-32001] * 2  # there was room for two
        assert memory_of(server).waiting == 0
        assert tickets(server)["expired"] == 1


async def test_places_are_bounded(nats: NatsServer) -> None:
    async with joined(make_server(limits=Limits(max_calls=4)), nats), Peer.at(nats) as peer:
        for number in range(30):
            await peer.send("size_of", ticket(ask=number, method="size_of", size=SIZE, ids=[number]), number)
        assert (await peer.error())["code"] == -32002


@pytest.mark.parametrize(
    "params",
    [
        {"ask": 1, "method": "size_of", "ids": [1]},
        {"ask": 1, "method": "size_of", "size": "big", "ids": [1]},
        {"ask": 1, "method": "size_of", "size": -1.5, "ids": [1]},
        {"ask": 1, "method": "echo", "size": 10, "ids": [1]},
        {"number": 1, "connection": 1, "size": 10, "ids": [1]},
    ],
)
async def test_tickets_that_make_no_sense(nats: NatsServer, params: dict[str, Any]) -> None:
    async with joined(make_server(), nats), Peer.at(nats) as peer:
        await peer.send("size_of", ticket(**params))
        found, _, data = await asyncio.wait_for(peer.messages.get(), 20)
        assert found in ("1", "m")
        assert orjson.loads(data)["error"]["code"] == -32600


async def test_a_place_needs_the_token_of_the_server(nats: NatsServer) -> None:
    async with joined(make_server(token="t0ken"), nats) as server, Peer.at(nats) as peer:
        await peer.send("size_of", ticket(ask=1, method="size_of", size=SIZE, ids=[1]))
        _, data = await peer.next("1")
        assert orjson.loads(data)["error"]["code"] == -32005
        assert direct_ways_of(server) == []
        async with client_of(nats, token="t0ken") as client:
            assert np.array_equal(await client.call("echo", array()), array())
