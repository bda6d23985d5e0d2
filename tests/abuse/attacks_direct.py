"""Attacks on an instance of a NATS service by its direct connections, which NATS's permissions do not cover."""

from __future__ import annotations

import asyncio
import importlib.util
import time

from rpcstream import AsyncClient, Server

from ..kit.nats_raw_client import RawClient
from ..kit.nats_server import NatsServer, find_program
from .attacks_frames import ANNOUNCED, announcement
from .attacks_hub import must
from .harness import KIB, MIB, Budget, RawConnection, ServerUnderAttack, attack

#: These attacks need a NATS server, and the client library.
HAS_NATS = find_program() is not None and importlib.util.find_spec("nats") is not None

TICKET = b'{"jsonrpc":"2.0","method":"$/ticket","params":'
FORBIDDEN = b'{"jsonrpc":"2.0","id":1,"method":"wipe"}\n'


def on_nats() -> Server:
    """A server with a port, and on NATS; callers there may publish to the subject of `size_of`, and not of `wipe`."""
    server, nats, wiped = Server(), NatsServer(), list[int]()

    @server
    def size_of(text: str) -> int:
        return len(text)

    @server
    def size(data: bytes) -> int:
        return len(data)

    @server
    def wipe() -> None:
        wiped.append(1)

    @server
    def state() -> list[int]:
        """The port of NATS, and how often `wipe` was called."""
        return [nats.port, len(wiped)]

    server.join_nats(nats.url, service="direct")
    return server


class Intruder:
    """A caller on NATS with a direct connection.

    Attributes:
        session: the subject of its session.
        connection: number of the direct connection.
        place: the last place that was given to it.
    """

    def __init__(self, raw: RawClient, direct: RawConnection, session: str, connection: int, place: int) -> None:
        self.raw = raw
        self.direct = direct
        self.session = session
        self.connection = connection
        self.place = place

    @classmethod
    async def enter(cls, raw: RawClient, number: int, method: bytes = b"size_of", size: int = 2_000_000) -> Intruder:
        inbox = f"intruder.{number}.rpcstream"
        await raw.subscribe(f"{inbox}.*")
        ask = b'{"ask":1,"method":"%b","size":%d,"ids":[1]}}' % (method, size)
        raw.publish(b"rpc.direct." + method, TICKET + ask, f"{inbox}.1")
        while not (answer := await raw.next()).subject.endswith(".ticket"):
            pass
        params = answer.json["params"]
        host, _, port = params["address"].rpartition(":")
        direct = RawConnection(*await asyncio.open_connection(host, int(port)))
        await direct.send(b"rpcstream %b\n" % params["secret"].encode())
        must(await direct.reader.readline() == b"ok\n", "the secret was not taken")
        return cls(raw, direct, answer.reply, params["connection"], params["place"])

    async def try_lines(self, lines: bytes) -> None:
        """Write to the direct connection, and wait until all of it was read."""
        await self.direct.send(lines)
        self.direct.writer.write_eof()
        try:
            await asyncio.wait_for(self.direct.reader.read(), 20)
        except ConnectionError:
            pass
        self.direct.close()

    def send_ticket(self, subject: str, rest: bytes) -> None:
        self.raw.publish(subject, TICKET + rest, "intruder.answers.1")


@attack(
    140,
    "on NATS, calls of a method that is not permitted, by the direct connection: behind `=` and `#n`, in the place of "
    "another call, with a ticket that names two methods",
    server=on_nats,
    budget=Budget(memory=32 * MIB, log=128 * KIB),
    in_suite=HAS_NATS,
)
async def forbidden_calls(target: ServerUnderAttack) -> None:
    plain = await target.connect()
    port, _ = await plain.result("state")
    raw = await RawClient.connect(port)
    two_methods = (
        b'{"ask":2,"method":"wipe","size":2000000,"ids":[1]},"method":"size_of"}',
        b'{"ask":2,"method":"size_of","size":2000000,"ids":[1],"method":"wipe"}}',
        b'{"ask":2,"method":"size_of","size":9,"ids":[1]},"params":{"ask":2,"method":"wipe","size":9,"ids":[1]}}',
        b'{"ask":2,"method":"wipe","size":9,"ids":[1],"x":[%b]}}' % b",".join([b"[]"] * 300_000),
    )
    try:
        for number in range(0, 400 if target.whole else 40, 4):
            await (await Intruder.enter(raw, number)).try_lines(b"=\n" + FORBIDDEN)

            intruder = await Intruder.enter(raw, number + 1)
            intruder.send_ticket(intruder.session, b'{"number":1,"connection":%d,"size":99}}' % intruder.connection)
            await raw.flush()
            await intruder.try_lines(b"#1\n" + FORBIDDEN)

            intruder = await Intruder.enter(raw, number + 2)
            await intruder.try_lines(b"!%d\n" % intruder.place + FORBIDDEN)

            intruder = await Intruder.enter(raw, number + 3)
            for ticket in two_methods:
                intruder.send_ticket("rpc.direct.size_of", ticket)
                intruder.send_ticket(intruder.session, ticket)
            await raw.flush()
            places = range(intruder.place + 1, intruder.place + 20)
            await intruder.try_lines(b"".join(b"!%d\n" % place + FORBIDDEN for place in places))
        _, wiped = await plain.result("state")
        must(wiped == 0, f"a method that is not permitted was called {wiped} times")
    finally:
        await raw.close()


@attack(
    151,
    "17 callers on NATS announce 60 MiB by their direct connections and send nothing, 30 send a little; honest calls",
    server=on_nats,
    budget=Budget(memory=320 * MIB),
    in_suite=HAS_NATS,
)
async def announced_on_nats(target: ServerUnderAttack) -> None:
    plain = await target.connect()
    port, _ = await plain.result("state")
    raw = await RawClient.connect(port)
    intruders = []
    try:
        for number in range(47):
            intruder = await Intruder.enter(raw, number, b"size", ANNOUNCED + MIB)
            intruders.append(intruder)
            await intruder.direct.send(
                b"!%d\n" % intruder.place + announcement(ANNOUNCED) + b"x" * (4096 * (number > 16))
            )
        async with AsyncClient(f"nats://127.0.0.1:{port}/direct") as client:
            for size in (8 * KIB, 1_300_000, 20 * MIB):
                for _ in range(4):
                    began = time.monotonic()
                    must(await asyncio.wait_for(client.size(b"y" * size), 60) == size, "it is answered")
                    # As for other transports: the bound is generous, since the processor may be busy.
                    must(time.monotonic() - began < 2, f"a call of {size} bytes took too long")
    finally:
        for intruder in intruders:
            intruder.direct.close()
        await raw.close()
