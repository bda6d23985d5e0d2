"""A caller that NATS permits one method tries to call another one by the direct connection, in every way there is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

pytest.importorskip("nats")

from rpcstream import Context, NatsLogin, Server
from rpcstream.nats.tickets import TICKET, ticket

from ..kit.nats_server import NatsServer
from ..kit.raw_connection import RawConnection
from .test_direct import Peer, ended, open_direct
from .tickets_setup import SERVICE, SIZE, joined

pytestmark = pytest.mark.nats

StartNats = Callable[..., NatsServer]

#: What the page on permissions names for callers of some methods only.
ALLOWED = [
    f"rpc.{SERVICE}.size_of",
    f"rpc.{SERVICE}.ask_back",
    f"rpc.{SERVICE}.$inquiry",
    f"rpc.{SERVICE}.$instance.*.*",
]


def call_of(method: str, *params: Any, call_id: Any = 1) -> bytes:
    data: bytes = orjson.dumps({"jsonrpc": "2.0", "id": call_id, "method": method, "params": params})
    return data


#: A call of what the caller is not permitted.
FORBIDDEN = call_of("wipe")


@dataclass
class Scene:
    """A service, and a caller that may call two of its methods."""

    peer: Peer
    wiped: list[str]

    async def send_to_session(self, session: str, payload: bytes) -> None:
        await self.peer.client.publish(session, payload, reply=f"{self.peer.inbox}.m")

    async def check(self) -> list[Any]:
        """What is permitted is answered, and nothing else was carried out; awaited behind an attack.

        Gives the messages that have come before.
        """
        await self.peer.send("size_of", call_of("size_of", "abc", call_id=99), 99)
        found: list[Any] = []
        while {"jsonrpc": "2.0", "id": 99, "result": 3} not in found:
            _, data = await self.peer.next("m")
            found += [orjson.loads(line) for line in data.split(b"\n")]
        assert self.wiped == []
        return found[:-1]


@pytest.fixture
async def scene(start_nats: StartNats) -> AsyncIterator[Scene]:
    users = [
        {"user": "vision", "password": "p"},
        {"user": "caller", "password": "p", "permissions": {"publish": {"allow": ALLOWED}}},
    ]
    nats = start_nats(users=users)
    server, wiped = Server(), list[str]()

    @server
    def size_of(text: str) -> int:
        return len(text)

    @server
    def wipe(what: str = "all") -> None:
        wiped.append(what)

    @server
    async def ask_back(ctx: Context) -> int:
        return len(await ctx.peer.call("text"))

    login = NatsLogin(user="vision", password="p")
    async with joined(server, nats, login=login), Peer.at(nats.url_with("caller", "p")) as peer:
        yield Scene(peer, wiped)


async def lines_until_closed(connection: RawConnection) -> None:
    connection.writer.write_eof()
    await ended(connection)
    connection.writer.close()


def padded(payload: bytes) -> bytes:
    return payload[:-1] + b" " * (SIZE - len(payload)) + payload[-1:]


async def test_the_caller_may_not_call_it_by_nats(scene: Scene) -> None:
    await scene.peer.send("wipe", FORBIDDEN)
    await scene.check()


@pytest.mark.parametrize(
    "call",
    [
        FORBIDDEN,
        padded(FORBIDDEN),
        b"[" + FORBIDDEN + b"]",
        b'{"jsonrpc":"2.0","method":"wipe"}',
        b'{"jsonrpc":"2.0","id":1,"result":1,"method":"wipe"}',
        b'{"jsonrpc":"2.0","id":1,"method":null,"result":1,"meth\\u006fd":"wipe"}',
    ],
    ids=lambda call: call[:40],
)
@pytest.mark.parametrize("line", [b"=\n", b"#1\n"])
async def test_a_call_stands_behind_the_line_of_another_message(scene: Scene, line: bytes, call: bytes) -> None:
    """`=` is for replies. `#n` is for what a ticket to the session's subject announces, where no method is checked."""
    params = await scene.peer.place()
    connection = await open_direct(params)
    await connection.send(line + call + b"\n")
    if line == b"#1\n":
        found = ticket(number=1, connection=params["connection"], size=len(call), id=1)
        await scene.send_to_session(params["reply"], found)
    await lines_until_closed(connection)
    await scene.check()


async def test_the_ticket_for_a_numbered_message_comes_first(scene: Scene) -> None:
    params = await scene.peer.place()
    await scene.send_to_session(params["reply"], ticket(number=1, connection=0, size=100, id=1))
    connection = await open_direct(params)
    await connection.send(b"#1\n" + FORBIDDEN + b"\n")
    await lines_until_closed(connection)
    await scene.check()


@pytest.mark.parametrize(
    "payload",
    [
        TICKET + b'{"ask":1,"method":"wipe","size":2000000,"ids":[1]},"method":"size_of"}',
        TICKET + b'{"ask":1,"method":"size_of","size":2000000,"ids":[1],"method":"wipe"}}',
        TICKET + b'{"ask":1,"method":"size_of","size":2000000,"ids":[1]},'
        b'"params":{"ask":1,"method":"wipe","size":2000000,"ids":[1]}}',
        TICKET + b'{"ask":1,"method":"wipe","size":2000000,"ids":[1]},"id":1,"meth\\u006fd":"size_of"}',
        TICKET + b'{"ask":1,"method":"wipe","size":2000000,"ids":[1]}}',
        # Over `max_values`; and a payload into whose bytes the parser of long messages does not look.
        TICKET + b'{"ask":1,"method":"wipe","size":9,"ids":[1],"x":[%b]}}' % b",".join([b"[]"] * 300_000),
        TICKET
        + b'{"ask":1,"method":"wipe","size":9,"ids":[1],"x":{"$type":"bytes","data":"%b"}}}' % (b"\x01" * 40_000),
    ],
    ids=lambda payload: payload[46:140],
)
async def test_a_ticket_with_two_members_of_one_name(scene: Scene, payload: bytes) -> None:
    params = await scene.peer.place(call_id=5)
    connection = await open_direct(params)
    await scene.peer.send("size_of", payload)
    session = params["reply"]
    await scene.send_to_session(session, payload)
    # It may be that a place was given for it: whichever that is, it is tried.
    await scene.check()
    for place in range(params["place"] + 1, params["place"] + 20):
        await connection.send(b"!%d\n" % place + FORBIDDEN + b"\n")
    await lines_until_closed(connection)
    await scene.check()


async def test_a_ticket_where_the_method_of_tickets_is_called(scene: Scene, start_nats: StartNats) -> None:
    """Its subject names no method of the service, and so gives no right to one."""
    params = await scene.peer.place(call_id=5)
    asks = ticket(ask=1, method="wipe", size=2_000_000, ids=[1])
    await scene.send_to_session(params["reply"] + ".%24/ticket", asks)
    await scene.check()


@pytest.mark.parametrize(
    "call",
    [
        call_of("wipe", call_id=5),
        call_of("size_of", "x", call_id=5)[:-1] + b',"method":"wipe"}',
        call_of("size_of", "x", call_id=5)[:-1] + b',"meth\\u006fd":"wipe"}',
        b"[" + call_of("wipe", call_id=5) + b"]",
        b'{"jsonrpc":"2.0","method":"wipe"}',
        # The parser of long messages does not look into the bytes of a payload, which is not JSON here.
        b'{"jsonrpc":"2.0","id":5,"method":"wipe","params":{"what":"x"},"more":{"$type":"bytes","data":"'
        + b"\x01" * 40_000
        + b'"}}',
        call_of("size_of", "x", call_id=6),
        call_of("size_of", "x", call_id="5"),
        call_of("size_of", "x", call_id=True),
        call_of("size_of", "x", call_id=5.0),
    ],
    ids=lambda call: call[:90],
)
async def test_another_call_than_the_one_that_has_the_place(scene: Scene, call: bytes) -> None:
    params = await scene.peer.place(call_id=5, size=100_000)
    connection = await open_direct(params)
    await connection.send(b"!%d\n" % params["place"] + call + b"\n")
    _, data = await scene.peer.next("m")
    answer = orjson.loads(data)
    assert (answer["id"], answer["error"]["code"]) in ((5, -32600), (5, -32700)), answer
    await lines_until_closed(connection)
    await scene.check()


@pytest.mark.parametrize("call_id", [None, 1.5, 1])
async def test_a_place_of_a_notification_is_not_one_of_a_call(scene: Scene, call_id: Any) -> None:
    await scene.peer.send("size_of", ticket(ask=1, method="size_of", size=100_000, ids=[]), 1)
    _, data = await scene.peer.next("ticket")
    params = orjson.loads(data)["params"]
    connection = await open_direct(params)
    await connection.send(b"!%d\n" % params["place"] + call_of("size_of", "abc", call_id=call_id) + b"\n")
    await lines_until_closed(connection)
    assert not any("result" in each for each in await scene.check())


async def test_what_belongs_to_calls_comes_as_before(scene: Scene) -> None:
    """A reply to a call back, over NATS's limit: without a ticket, and with one."""
    params = await scene.peer.place(call_id=5)
    connection = await open_direct(params)
    for number, line in enumerate((b"=\n", b"#1\n")):
        await scene.peer.send("ask_back", call_of("ask_back", call_id=10 + number), 10 + number)
        _, data = await scene.peer.next("m")
        asked = orjson.loads(data)
        assert asked["method"] == "text"
        reply = orjson.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": "x" * SIZE})
        await connection.send(line + reply + b"\n")
        if line == b"#1\n":
            found = ticket(number=1, connection=params["connection"], size=len(reply), id=asked["id"])
            await scene.send_to_session(params["reply"], found)
        _, data = await scene.peer.next("m")
        assert orjson.loads(data) == {"jsonrpc": "2.0", "id": 10 + number, "result": SIZE}
    connection.writer.close()
    await scene.check()


async def test_an_array_of_replies_and_what_cannot_be_read(scene: Scene) -> None:
    params = await scene.peer.place(call_id=5)
    connection = await open_direct(params)
    await scene.peer.send("ask_back", call_of("ask_back", call_id=10), 10)
    _, data = await scene.peer.next("m")
    reply = {"jsonrpc": "2.0", "id": orjson.loads(data)["id"], "result": "x" * SIZE}
    await connection.send(b"=\n" + orjson.dumps([reply]) + b"\n")
    _, data = await scene.peer.next("m")
    assert orjson.loads(data)["result"] == SIZE
    await scene.peer.send("ask_back", call_of("ask_back", call_id=11), 11)
    _, data = await scene.peer.next("m")
    call_id = orjson.loads(data)["id"]
    await connection.send(b'=\n{"jsonrpc":"2.0","id":%d,"result":[1,}\n' % call_id)
    _, data = await scene.peer.next("m")
    while b'"id":11' not in data:  # the unreadable reply may be refused as well
        _, data = await scene.peer.next("m")
    assert b'"error"' in data
    connection.writer.close()
    await scene.check()
