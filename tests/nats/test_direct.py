"""The port for direct connections, attacked: it takes secrets that were given out, and calls that NATS permits.

Each attack is followed by a call of another client, and nothing that is forbidden was carried out by then.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("nats")

from rpcstream import Limits

from ..kit import UsualServer, batch, reply, until
from ..kit.nats_raw_client import RawClient, RawMessage
from ..kit.nats_server import NatsServer, skip_without_program
from .conftest import Clock
from .service import Service, call_of, login, user

pytestmark = pytest.mark.nats

#: Of messages that NATS does not carry here.
SIZE = 400_000

TICKET = b'{"jsonrpc":"2.0","method":"$/ticket","params":'

#: What the page on permissions names for callers of some methods only; `note` is not among them.
ALLOWED = [
    "rpc.*.echo",
    "rpc.*.size",
    "rpc.*.ask",
    "rpc.*.make",
    "rpc.*.%24/ticket",
    "rpc.*.$inquiry",
    "rpc.*.$instance.*.*",
]
FORBIDDEN = call_of("note", "forbidden")


@pytest.fixture(scope="module")
def strict_nats() -> Iterator[NatsServer]:
    skip_without_program()
    users = [user("server"), user("caller", {"publish": {"allow": ALLOWED}})]
    with NatsServer(max_payload=64 * 1024, users=users) as server:
        yield server


@pytest.fixture
def service(strict_nats: NatsServer) -> Service:
    return Service(strict_nats)


def ticket(**params: Any) -> bytes:
    return TICKET + json.dumps(params, separators=(",", ":")).encode() + b"}"


class Direct:
    """A direct connection by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.send = writer.write

    async def rest(self, *, ends: bool = False) -> bytes:
        """What comes until the other end closes."""
        if ends and not self.writer.transport.is_closing():
            self.writer.write_eof()
        with suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), 20)
        return b""


class Peer:
    """A caller with an inbox of our form, which may call `echo`, `size` and `ask`, and not `note`."""

    def __init__(self, raw: RawClient, service: Service, server: UsualServer) -> None:
        self.raw = raw
        self.root = service.root
        self.server = server
        self.opened: list[Direct] = []

    def send(self, method: str, payload: bytes, call_id: int = 1) -> None:
        self.raw.publish(self.root + method, payload, f"mine.rpcstream.{call_id}")

    async def next(self, token: str = "m") -> RawMessage:
        while not (message := await self.raw.next()).subject.endswith(f".{token}") or not message.data:
            pass
        return message

    async def code(self) -> int:
        code: int = (await self.next()).json["error"]["code"]
        return code

    async def place(self, method: str = "size", size: int = SIZE * 2, call_id: int = 1) -> dict[str, Any]:
        """Ask for a place for a call; `session` is the subject of the session."""
        self.send(method, ticket(ask=call_id, method=method, size=size, ids=[call_id]), call_id)
        message = await self.next("ticket")
        return {**message.json["params"], "session": message.reply}

    async def connect(self, params: dict[str, Any], first: bytes | None = None) -> Direct:
        """Connect, and show the secret, or say something else."""
        host, _, port = params["address"].rpartition(":")
        self.opened.append(direct := Direct(*await asyncio.open_connection(host, int(port))))
        direct.send(b"rpcstream %b\n" % params["secret"].encode() if first is None else first)
        return direct

    async def open(self, params: dict[str, Any]) -> Direct:
        direct = await self.connect(params)
        assert await direct.reader.readline() == b"ok\n"
        return direct

    async def in_place(self, data: bytes, **place: Any) -> Direct:
        """Connect, and send this in a place."""
        params = await self.place(**place)
        direct = await self.open(params)
        direct.send(b"!%d\n" % params["place"] + data + b"\n")
        return direct

    async def check(self) -> list[Any]:
        """What is permitted is answered, and nothing else was carried out; gives what has come before."""
        self.send("echo", call_of("echo", "here", call_id=99), 99)
        found: list[Any] = []
        while reply(99, "here") not in found:
            found += [json.loads(line) for line in (await self.next()).data.split(b"\n")]
        assert self.server.noted == []
        return found[:-1]

    def tickets(self, what: str) -> int:
        return int(self.server.stats()[f"tickets_{what}"])


@pytest.fixture
def limits() -> dict[str, Any]:
    return {}


@pytest.fixture
async def peer(service: Service, limits: dict[str, Any]) -> AsyncIterator[Peer]:
    server = UsualServer(limits=Limits(**limits))
    server.add(lambda size: "x" * size, name="make")
    async with (
        service.serving(server, login=login("server")),
        service.raw("mine.rpcstream.*", user="caller") as raw,
        service.client(nats=login("caller")) as client,
    ):
        peer = Peer(raw, service, server)
        yield peer
        await peer.check()
        assert await client.size(bytes(SIZE)) == SIZE
        for direct in peer.opened:
            direct.writer.transport.abort()


def long(call: bytes) -> bytes:
    return call[:-1] + b" " * SIZE + call[-1:]


LONG_CALL = long(call_of("size", {"$type": "bytes", "data": "YWJj"}))


#: Of strangers, and what they are told.
STRANGE = [
    *[(each, b"refused: this port is") for each in (b"GET / HTTP/1.1\r\n\r\n", call_of("size", 1) + b"\n", b"\n")],
    *[(each, b"refused: this port is") for each in (b"\x16\x03\x01\x02\x00\x01", bytes(range(256)) * 4)],
    *[(b"rpcstream " + each + b"\n", b"refused: the secret") for each in (b"", b"ab" * 32, b"\xff\xfe")],
    *[(b"rpcstream " + b"x" * 4096 + each, b"") for each in (b"", b"\n")],
]


async def test_anything_but_a_secret_is_refused(peer: Peer) -> None:
    params = await peer.place()
    for data, told in STRANGE:
        found = await (await peer.connect(params, data)).rest()
        assert found.startswith(told) if told and found else not found, data
    first = await peer.open(params)
    again = await peer.connect(params)
    assert b"was used" in await again.rest()
    first.send(b"!%d\n" % params["place"] + LONG_CALL + b"\n")  # the one that had it goes on
    assert (await peer.next()).json["result"] == 3


async def test_secrets_lapse_and_who_says_nothing_is_closed(clock: Clock, peer: Peer) -> None:
    params = await peer.place()
    silent = [await peer.connect(params, data) for data in (b"", b"rpcstream 00")]
    await clock.turn()
    clock.jump(5)
    assert [await each.rest() for each in silent] == [b"", b""]
    await clock.until(lambda: peer.tickets("expired") == 1)
    late = await peer.connect(params)
    assert b"older" in await late.rest()


async def test_strangers_without_number_keep_no_client_out(peer: Peer) -> None:
    """Of those that have shown nothing the oldest are closed."""
    params = await peer.place()
    strangers = [await peer.connect(params, b"") for _ in range(300)]
    await asyncio.gather(*(each.rest() for each in strangers[:44]))
    assert not any(each.reader.at_eof() for each in strangers[60:])


@pytest.mark.parametrize("line", [b"!7\n", b"#0\n", b"!x\n", b"#-1\n", b"?1\n", b"", b"#1\n#1\n#1\n@x\n", b"!%030d\n"])
async def test_a_message_without_a_place_ends_the_connection(peer: Peer, line: bytes) -> None:
    direct = await peer.open(params := await peer.place())
    direct.send((line % params["place"] if b"%" in line else line) + LONG_CALL + b"\n")
    await direct.rest(ends=line.startswith(b"#1"))  # else at once
    assert peer.server.stats()["requests"] <= 1


async def test_the_same_place_twice(peer: Peer) -> None:
    params = await peer.place()
    direct = await peer.open(params)
    direct.send((b"!%d\n" % params["place"] + LONG_CALL + b"\n") * 2)
    first, second = sorted([(await peer.next()).json for _ in range(2)], key=lambda each: "error" in each)
    assert (first["result"], second["error"]["data"]["executed"]) == (3, False)


@pytest.mark.parametrize("limits", [{"max_message_size": SIZE + 4096}])
async def test_more_than_the_ticket_said_or_the_server_takes(peer: Peer) -> None:
    direct = await peer.in_place(LONG_CALL, size=20_000)
    assert "its ticket said 20000" in (await peer.next()).json["error"]["data"]["reason"]
    peer.send("size", ticket(ask=1, method="size", size=2 * SIZE, ids=[1]))
    assert await peer.code() == -32001
    direct.send(b"!%d\n" % (await peer.place(size=SIZE))["place"] + long(LONG_CALL) + b"\n")
    assert await peer.code() == -32001


@pytest.mark.parametrize("limits", [{"max_message_size": 2 * SIZE, "max_held_total": 2 * SIZE}])
async def test_who_stalls_in_the_middle_is_closed(clock: Clock, peer: Peer) -> None:
    params = await peer.place()
    direct = await peer.open(params)
    direct.send(b"!%d\n" % params["place"] + LONG_CALL[: SIZE // 2])
    rest = asyncio.create_task(direct.rest())
    await clock.until(rest.done, step=5)


@pytest.mark.parametrize("limits", [{"max_message_size": 40 << 20}])
async def test_who_does_not_read_its_result_is_closed(clock: Clock, peer: Peer) -> None:
    peer.send("make", call_of("make", 16 << 20))
    direct = await peer.open((await peer.next()).json["params"])
    direct.writer.transport.pause_reading()  # type: ignore[attr-defined]  # it is a socket's
    await clock.turn()
    for _ in range(40):
        clock.jump(2)
        await clock.turn()
    direct.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert len(await direct.rest()) < 16 << 20


@pytest.mark.parametrize("limits", [{"max_message_size": 2 * SIZE, "write_buffer": 1024}])
async def test_results_that_are_never_claimed_are_bounded_and_forgotten(clock: Clock, peer: Peer) -> None:
    for number in range(6):
        peer.send("make", call_of("make", SIZE, call_id=number), number)
    await until(lambda: peer.server.stats()["requests"] == 6)
    await clock.turn()
    clock.jump(10)
    codes: list[int] = []
    while len(codes) < 6:
        lines = (await peer.next()).data.split(b"\n")
        codes += [json.loads(line)["error"]["code"] for line in lines if b'"error"' in line]
    assert sorted(codes) == [-32002] * 4 + [-32001] * 2  # there was room for two
    assert peer.tickets("expired") == 1


@pytest.mark.parametrize("limits", [{"max_calls": 4}])
async def test_places_are_bounded(peer: Peer) -> None:
    for number in range(30):
        peer.send("size", ticket(ask=number, method="size", size=SIZE, ids=[number]), number)
    assert await peer.code() == -32002


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"size": "big"},
        {"size": -1.5},
        {"size": 10, "method": "echo"},
        {"size": 10, "method": "note"},
        {"number": 1, "connection": 1, "size": 10},
    ],
    ids=str,
)
async def test_tickets_that_make_no_sense(peer: Peer, members: dict[str, Any]) -> None:
    is_ask = "number" not in members
    peer.send("size", ticket(**({"ask": 1, "method": "size"} if is_ask else {}) | members, ids=[1]))
    assert (await peer.raw.next()).json["error"]["code"] == -32600


async def test_a_place_needs_what_the_call_needs(service: Service) -> None:
    server = UsualServer(authenticate=lambda shown: {"t0ken": "alice"}.get(shown.token))
    server.add(lambda size: "x" * size, name="make", allow="bob")
    async with (
        service.serving(server, login=login("server")),
        service.raw("mine.rpcstream.*", user="caller") as raw,
        service.client(nats=login("caller"), token="t0ken") as client,
    ):
        shown = b"NATS/1.0\r\nAuthorization: Bearer t0ken\r\n\r\n"
        for method, head, code in (("size", None, -32005), ("make", shown, -32006)):
            asked = ticket(ask=1, method=method, size=SIZE, ids=[1])
            raw.publish(service.root + method, asked, "mine.rpcstream.1", head)
            assert (await raw.next_but_acks()).json["error"]["code"] == code
        assert server.stats()["tickets_made"] == 0
        assert await client.size(bytes(SIZE)) == SIZE


@pytest.mark.parametrize(
    "call",
    [
        FORBIDDEN,
        long(FORBIDDEN),
        b"[" + FORBIDDEN + b"]",
        b'{"jsonrpc":"2.0","method":"note","params":[1]}',
        b'{"jsonrpc":"2.0","id":1,"result":1,"method":"note","params":[1]}',
        b'{"jsonrpc":"2.0","id":1,"method":null,"result":1,"meth\\u006fd":"note","params":[1]}',
    ],
    ids=lambda call: call[:40],
)
@pytest.mark.parametrize("line", [b"=\n", b"#1\n", b"ticket first"])
async def test_a_call_stands_behind_the_line_of_another_message(peer: Peer, line: bytes, call: bytes) -> None:
    """`=` is for replies. `#n` is for what a ticket to the session's subject announces, where no method is checked."""
    params = await peer.place()
    announced = ticket(number=1, connection=params["connection"], size=len(call), id=1)
    if line == b"ticket first":
        peer.raw.publish(params["session"], ticket(number=1, connection=0, size=100, id=1), "mine.rpcstream.m")
        line = b"#1\n"
    direct = await peer.open(params)
    direct.send(line + call + b"\n")
    peer.raw.publish(params["session"], announced, "mine.rpcstream.m")
    await direct.rest(ends=True)


NOTE = b'{"ask":1,"method":"note","size":2000000,"ids":[1]'
ECHO = NOTE.replace(b"note", b"echo")


@pytest.mark.parametrize(
    "members",
    [
        NOTE + b'},"method":"echo"}',
        ECHO + b',"method":"note"}}',
        ECHO + b'},"params":' + NOTE + b"}}",
        NOTE + b'},"id":1,"meth\\u006fd":"echo"}',
        NOTE + b"}}",
        # Over `max_values`; and a payload into whose bytes the parser of long messages does not look.
        NOTE + b',"x":[%b]}}' % b",".join([b"[]"] * 20_000),
        NOTE + b',"x":{"$type":"bytes","data":"%b"}}}' % (b"\x01" * 40_000),
    ],
    ids=lambda members: members[30:90],
)
@pytest.mark.parametrize("limits", [{"max_values": 10_000}])
async def test_a_ticket_with_two_members_of_one_name(peer: Peer, members: bytes) -> None:
    params = await peer.place(call_id=5)
    direct = await peer.open(params)
    peer.send("echo", TICKET + members)
    for subject in (params["session"], peer.root + "%24/ticket"):  # they name no method
        peer.raw.publish(subject, TICKET + members, "mine.rpcstream.m")
    await peer.check()
    if b'"x":[' in members or b"\x01" in members:  # it is not read, whatever it asks for
        peer.send("size", TICKET + members.replace(b"note", b"size"), 5)
        assert await peer.code() in (-32600, -32700, -32001)
    for place in range(params["place"] + 1, params["place"] + 20):  # it may be that one was given for it
        direct.send(b"!%d\n" % place + FORBIDDEN + b"\n")
    await direct.rest(ends=True)


@pytest.mark.parametrize(
    "call",
    [
        call_of("note", "x", call_id=5),
        call_of("size", "x", call_id=5)[:-1] + b',"method":"note"}',
        call_of("size", "x", call_id=5)[:-1] + b',"meth\\u006fd":"note"}',
        b"[" + call_of("note", "x", call_id=5) + b"]",
        b'{"jsonrpc":"2.0","method":"note","params":["x"]}',
        # The parser of long messages does not look into the bytes of a payload, which is not JSON here.
        call_of("note", "x", call_id=5)[:-1] + b',"x":{"$type":"bytes","data":"' + b"\x01" * 40_000 + b'"}}',
        call_of("size", "x", call_id=6),
        call_of("size", "x", call_id="5"),
        call_of("size", "x", call_id=True),
        call_of("size", "x", call_id=5.0),
    ],
    ids=lambda call: call[:90],
)
async def test_another_call_than_the_one_that_has_the_place(peer: Peer, call: bytes) -> None:
    direct = await peer.in_place(call, call_id=5)
    answer = (await peer.next()).json
    assert (answer["id"], answer["error"]["code"]) in ((5, -32600), (5, -32700)), answer
    await direct.rest(ends=True)


async def test_a_place_of_a_notification_is_not_one_of_a_call(peer: Peer) -> None:
    for call_id in (None, 1.5, 1):
        peer.send("size", ticket(ask=1, method="size", size=100_000, ids=[]), 1)
        params = (await peer.next("ticket")).json["params"]
        direct = await peer.open(params)
        direct.send(b"!%d\n" % params["place"] + call_of("size", "abc", call_id=call_id) + b"\n")
        await direct.rest(ends=True)
        assert not any("result" in each for each in await peer.check())


async def test_what_belongs_to_calls_comes_as_before(peer: Peer) -> None:
    """Replies to calls back: without a ticket, with one, in an array, and one that cannot be read."""
    params = await peer.place(call_id=5)
    direct = await peer.open(params)
    for number, line in enumerate((b"=\n", b"#1\n", b"=\n", b"=\n")):
        peer.send("ask", call_of("ask", "text", call_id=10 + number), 10 + number)
        asked = (await peer.next()).json
        assert asked["method"] == "text"
        answer: Any = reply(asked["id"], "x" * 50_000)
        data = (json.dumps(answer).encode(), b"", batch(answer), b'{"jsonrpc":"2.0","id":%d,"result":[1,}')[number]
        if line == b"#1\n":
            data = json.dumps(answer).encode()
            announced = ticket(number=1, connection=params["connection"], size=len(data), id=asked["id"])
            peer.raw.publish(params["session"], announced, "mine.rpcstream.m")
        direct.send(line + (data % asked["id"] if number == 3 else data) + b"\n")
        while (told := (await peer.next()).json).get("id") != 10 + number:
            pass  # the reply that cannot be read may be refused as well
        assert told["result"] == "x" * 50_000 if number < 3 else "error" in told
