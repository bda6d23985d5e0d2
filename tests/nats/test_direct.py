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

from rpcstream import Limits, NotPermitted

from ..kit import UsualServer, reply, until
from ..kit.nats_raw_client import RawClient, RawMessage
from ..kit.nats_server import NatsServer, skip_without_program
from .conftest import Clock
from .service import Service, call_of, login, user

pytestmark = pytest.mark.nats

#: Of messages that NATS does not carry here.
SIZE = 400_000

#: How a request begins with which a client asks for a direct connection.
ASK = b'{"jsonrpc":"2.0","id":1,"method":"rpc.direct","params":'

#: What the page on permissions names for callers of some methods only; `note` is not among them.
ALLOWED = [
    "rpc.*.echo",
    "rpc.*.size",
    "rpc.*.ask",
    "rpc.*.make",
    "rpc.*.rpc.direct",
    "rpc.*.$inquiry",
    "rpc.*.$instance.*.*",
    "rpc.*.$instance.*.*.rpc.direct",
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


def ask(call_id: int = 1, **params: Any) -> bytes:
    """What asks where a large call may be sent; without params, how to connect."""
    return json.dumps({"jsonrpc": "2.0", "id": call_id, "method": "rpc.direct", "params": params}).encode()


def secret_of(params: dict[str, Any]) -> bytes:
    """The request that shows a secret."""
    request = {"jsonrpc": "2.0", "id": "in", "method": "rpc.authenticate", "params": {"token": params["secret"]}}
    return json.dumps(request).encode() + b"\n"


class Direct:
    """A direct connection by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.send = writer.write

    async def next(self) -> Any:
        """The next message."""
        return json.loads(await asyncio.wait_for(self.reader.readline(), 20))

    async def rest(self) -> bytes:
        """What comes until the other end closes."""
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
        while not (message := await self.raw.next_but_acks()).subject.endswith(f".{token}") or not message.data:
            pass
        return message

    async def code(self) -> int:
        code: int = (await self.next()).json["error"]["code"]
        return code

    async def asked(self, method: str = "size", size: int = SIZE * 2, call_id: int = 1) -> dict[str, Any]:
        """Ask where a call may be sent, and how to connect; `session` is the subject of the session."""
        await self.permitted(method, size, call_id)
        return await self.offered(self.session)

    async def permitted(self, method: str = "size", size: int = SIZE * 2, call_id: int = 1) -> None:
        self.send(method, ask(call_id, method=method, size=size), call_id)
        message = await self.next()
        assert message.json == reply(call_id, {"session": message.reply})
        self.session = message.reply

    async def offered(self, session: str) -> dict[str, Any]:
        """What says how to connect."""
        self.raw.publish(session, ask(), "mine.rpcstream.m")
        while "result" not in (message := await self.next()).json:
            pass
        return {**message.json["result"], "session": message.reply}

    async def wanted(self) -> dict[str, Any]:
        """What says how to connect, once the instance wants that."""
        while (message := await self.next()).json.get("params") != {"wanted": True}:
            pass
        return await self.offered(message.reply)

    async def connect(self, params: dict[str, Any], first: bytes | None = None) -> Direct:
        """Connect, and show the secret, or say something else."""
        host, _, port = params["address"].rpartition(":")
        self.opened.append(direct := Direct(*await asyncio.open_connection(host, int(port), limit=1 << 24)))
        direct.send(secret_of(params) if first is None else first)
        return direct

    async def open(self, params: dict[str, Any]) -> Direct:
        direct = await self.connect(params)
        assert await direct.next() == reply("in", True)
        return direct

    async def check(self) -> list[Any]:
        """What is permitted is answered, and nothing else was carried out; gives what has come before."""
        self.raw.publish(self.root + "echo", call_of("echo", "here", call_id=99), "plain.answer")
        found: list[Any] = []
        while (message := await self.raw.next()).subject != "plain.answer":
            found += [json.loads(line) for line in message.data.split(b"\n") if message.subject.endswith(".m") and line]
        assert message.json == reply(99, "here")
        assert self.server.noted == []
        return found


@pytest.fixture
def limits() -> dict[str, Any]:
    return {}


@pytest.fixture
async def peer(service: Service, limits: dict[str, Any]) -> AsyncIterator[Peer]:
    server = UsualServer(limits=Limits(**limits))
    server.add(lambda size: "x" * size, name="make")
    async with (
        service.serving(server, login=login("server")),
        service.raw("mine.rpcstream.*", "plain.*", user="caller") as raw,
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


#: Of strangers.
STRANGE = [
    *[
        b"GET / HTTP/1.1\r\n\r\n",
        call_of("size", 1) + b"\n",
        b"\n",
        b"\x16\x03\x01\x02\x00\x01\n",
        bytes(range(256)) * 4,
    ],
    *[secret_of({"secret": each}) for each in ("", "ab" * 32)],
    call_of("rpc.authenticate") + b"\n",
    call_of("rpc.authenticate", {"token": 5}) + b"\n",
    b"x" * 4096,
]


async def test_anything_but_a_secret_is_refused(peer: Peer) -> None:
    params = await peer.asked()
    for data in STRANGE:
        direct = await peer.connect(params, data + LONG_CALL + b"\n")
        direct.writer.write_eof()
        assert b'"result"' not in await direct.rest(), data
    first = await peer.open(params)
    again = await peer.connect(params)
    assert b"was used" in await again.rest()
    first.send(LONG_CALL + b"\n")  # the one that had it goes on
    assert (await first.next())["result"] == 3


async def test_secrets_lapse_and_who_says_nothing_is_closed(clock: Clock, peer: Peer) -> None:
    params = await peer.asked()
    silent = [await peer.connect(params, data) for data in (b"", b'{"jsonrpc')]
    await clock.turn()
    clock.jump(5)
    assert [await each.rest() for each in silent] == [b"", b""]
    clock.jump(5)
    await clock.turn()
    late = await peer.connect(params)
    assert b"older" in await late.rest()


async def test_a_connection_belongs_to_the_caller_whose_secret_it_has_shown(service: Service, peer: Peer) -> None:
    """Whoever shows the secret of another caller may call what that caller has asked for, and no more."""
    params = await peer.asked()
    async with service.raw("other.rpcstream.*", user="caller") as other:
        peer.raw.publish(peer.root + "echo", ask(method="echo", size=SIZE), "other.rpcstream.1")
        session = (await other.next_but_acks()).json["result"]["session"]
        peer.raw.publish(session, ask(), "other.rpcstream.1")
        offer = (await other.next_but_acks()).json["result"]
        stolen = await peer.open(offer)
        direct = await peer.open(params)
        stolen.send(LONG_CALL + b"\n")
        assert (await stolen.next())["error"]["code"] == -32006
    direct.send(secret_of(offer) + LONG_CALL + b"\n")
    assert "error" in await direct.next()
    assert (await direct.next())["result"] == 3


async def test_nothing_overtakes_what_was_sent_by_nats(peer: Peer) -> None:
    """A caller learns how to connect behind all that the instance has sent by NATS, and what follows waits for it."""
    await peer.permitted()
    peer.send("make", call_of("make", 10, call_id=7), 7)
    peer.raw.publish(peer.session, ask(8), "mine.rpcstream.m")
    assert (await peer.next()).json == reply(7, "x" * 10)
    params = (await peer.next()).json["result"]
    peer.send("make", call_of("make", SIZE, call_id=9), 9)
    direct = await peer.open(params)
    assert (await direct.next())["id"] == 9


@pytest.mark.parametrize("limits", [{"max_message_size": SIZE + 4096}])
async def test_more_than_the_server_takes(peer: Peer) -> None:
    peer.send("size", ask(method="size", size=2 * SIZE))
    assert await peer.code() == -32001
    direct = await peer.open(await peer.asked(size=SIZE))
    direct.send(long(LONG_CALL) + b"\n")
    assert (await direct.next())["error"]["code"] == -32001


@pytest.mark.parametrize("limits", [{"max_message_size": 2 * SIZE, "max_held_total": 2 * SIZE}])
async def test_who_stalls_in_the_middle_is_closed(clock: Clock, peer: Peer) -> None:
    direct = await peer.open(await peer.asked())
    direct.send(LONG_CALL[: SIZE // 2])
    rest = asyncio.create_task(direct.rest())
    await clock.until(rest.done, step=5)


@pytest.mark.parametrize("limits", [{"max_message_size": 40 << 20}])
async def test_who_does_not_read_its_result_is_closed(clock: Clock, peer: Peer) -> None:
    peer.send("make", call_of("make", 16 << 20))
    direct = await peer.open(await peer.wanted())
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


async def test_signs_of_life_do_not_pile_up(peer: Peer) -> None:
    params = await peer.asked()
    for _ in range(50):
        peer.raw.publish(f"{peer.root}$inquiry", b"[]", "mine.rpcstream.q0")
    await peer.check()
    direct = await peer.open(params)
    assert (await direct.next())["params"] == {"alive": True}
    direct.send(LONG_CALL + b"\n")
    assert (await direct.next())["result"] == 3


async def test_a_permission_lapses(clock: Clock, peer: Peer) -> None:
    direct = await peer.open(await peer.asked())
    for seconds, has_result in ((8, True), (3, False)):
        clock.jump(seconds)
        direct.send(call_of("size", {"$type": "bytes", "data": "YWJj"}) + b"\n")
        assert ("result" in await direct.next()) == has_result


async def test_one_secret_at_a_time_however_often_a_caller_asks(peer: Peer) -> None:
    params = await peer.asked()
    for number in range(2, 30):
        await peer.permitted(call_id=number)
        assert await peer.offered(peer.session) == params
    direct = await peer.open(params)
    direct.send(LONG_CALL + b"\n")
    assert (await direct.next())["result"] == 3


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({}, -32001),
        ({"size": "big"}, -32001),
        ({"size": -1.5}, -32001),
        ({"size": 10, "method": "echo"}, -32600),
        ({"size": 10, "method": "note"}, -32600),
        ({"address": "127.0.0.1:1", "secret": "ab", "method": None}, -32600),
    ],
    ids=str,
)
async def test_questions_that_make_no_sense(peer: Peer, members: dict[str, Any], code: int) -> None:
    peer.send("size", ask(**{"method": "size"} | members))
    assert (await peer.raw.next()).json["error"]["code"] == code


async def test_a_large_call_needs_what_any_call_needs(service: Service) -> None:
    server = UsualServer(authenticate=lambda shown: {"t0ken": "alice"}.get(shown.token))
    server.add(lambda size: "x" * size, name="make", allow="bob")
    async with (
        service.serving(server, login=login("server")),
        service.raw("mine.rpcstream.*", user="caller") as raw,
        service.client(nats=login("caller"), token="t0ken") as client,
    ):
        raw.publish(service.root + "size", ask(method="size", size=SIZE), "mine.rpcstream.1")
        assert (await raw.next_but_acks()).json["error"]["code"] == -32005
        with pytest.raises(NotPermitted):
            await client.call("make", "x" * SIZE)
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
        b'{"jsonrpc":"2.0","id":1,"method":["note"],"params":[1]}',
    ],
    ids=lambda call: call[:40],
)
async def test_a_secret_for_one_method_permits_no_other(peer: Peer, call: bytes) -> None:
    direct = await peer.open(await peer.asked())
    direct.send(call + b"\n" + LONG_CALL + b"\n")
    while (message := await direct.next()) != reply(1, 3):
        assert "error" in json.dumps(message)
    peer.send("make", call_of("make", SIZE, call_id=7), 7)
    assert (await direct.next())["id"] == 7  # a large result permits no calls
    direct.send(call_of("make", 1, call_id=8) + b"\n")
    assert (await direct.next())["error"]["code"] == -32006


NOTE = b'{"method":"note","size":2000000'
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
@pytest.mark.parametrize("limits", [{"max_json_size": 80_000}])
async def test_a_question_with_two_members_of_one_name(peer: Peer, members: bytes) -> None:
    params = await peer.asked(call_id=5)
    direct = await peer.open(params)
    peer.send("echo", ASK + members)
    for subject in (params["session"], f"{params['session']}.rpc.direct", peer.root + "rpc.direct"):
        peer.raw.publish(subject, ASK + members, "mine.rpcstream.m")  # they name no method
    await peer.check()
    direct.send(FORBIDDEN + b"\n")
    assert "error" in await direct.next()


@pytest.mark.parametrize(
    "call",
    [
        call_of("size", "x", call_id=5)[:-1] + b',"method":"note"}',
        call_of("size", "x", call_id=5)[:-1] + b',"meth\\u006fd":"note"}',
        # The parser of long messages does not look into the bytes of a payload, which is not JSON here.
        call_of("note", "x", call_id=5)[:-1] + b',"x":{"$type":"bytes","data":"' + b"\x01" * 40_000 + b'"}}',
    ],
    ids=lambda call: call[:90],
)
async def test_a_call_with_two_methods(peer: Peer, call: bytes) -> None:
    direct = await peer.open(await peer.asked())
    direct.send(call + b"\n")
    assert "error" in await direct.next()
