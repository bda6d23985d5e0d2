"""Attacks by clients of NATS on a server that has joined a service there, and listens at a port of its own as well.

The attacker writes to a nats-server of the attack's own, or by a direct connection, which NATS's permissions do not
cover; the other caller whose wait is measured has a connection.
"""

from __future__ import annotations

import asyncio
import json
import time

from rpcstream import AsyncClient, Credentials, NatsLogin, NotAuthenticated, NotPermitted, Server

from ..kit.nats_raw_client import RawClient
from ..kit.nats_server import NatsServer, find_program
from .attacks_frames import ANNOUNCED, announcement
from .attacks_hub import error_of, must
from .harness import KIB, MIB, RawConnection, ServerUnderAttack, attack

#: Without the program nats-server these attacks cannot be made.
IN_SUITE = find_program() is not None

#: An account with the instances, and one of callers, which imports the service.
ACCOUNTS = {
    "accounts": {
        "VISION": {"users": [{"user": "vision", "password": "p"}], "exports": [{"service": "rpc.vision.*"}]},
        "WEB": {
            "users": [{"user": "bob", "password": "p"}],
            "imports": [{"service": {"account": "VISION", "subject": "rpc.vision.*"}, "share": True}],
        },
    }
}


def joined(server: Server, nats: NatsServer, user: str | None = None, *, trusts: bool = False) -> Server:
    """The server, with methods `add`, `wait`, and one that says where its nats-server listens."""

    @server
    def nats_port() -> int:
        return nats.port

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    async def wait() -> None:
        await asyncio.sleep(60)

    login = None if user is None else NatsLogin(user=user, password="p")
    server.join_nats(nats.url, service="vision", login=login, trust_identity=trusts)
    return server


async def attacker(target: ServerUnderAttack, user: str | None = None, *, token: str | None = None) -> RawClient:
    """A client of NATS that is subscribed to `answers.>`."""
    raw = await target.connect()
    if token is not None:
        await raw.result("rpc.authenticate", {"token": token})
    client = await RawClient.connect(await raw.result("nats_port"), user)
    await client.subscribe("answers.>")
    return client


def trusting() -> Server:
    def who(credentials: Credentials) -> str | None:
        return credentials.nats_user if credentials.nats_account else credentials.token

    server = joined(Server(authenticate=who), NatsServer(config=ACCOUNTS), "vision", trusts=True)

    @server(allow="boss")
    def secret() -> str:
        return "for the boss"

    return server


@attack(
    130,
    "a client of NATS writes headers that name another user, and leaves them open for what nats-server appends",
    trusting,
    memory=16 * MIB,
    token="caller",
    in_suite=IN_SUITE,
)
async def forged_identity(target: ServerUnderAttack) -> None:
    client = await attacker(target, "bob", token="caller")
    told = b'{"acc":"VISION","user":"boss"}'
    call = b'{"jsonrpc":"2.0","id":1,"method":"secret"}'
    name = b"Nats-Request-Info"
    for line in (name + b" : ", name + b"\t: ", b" " + name + b": ", name.lower() + b": ", name + b":", name + b": "):
        for end in (b"\r\nZ: ", b"\r\n", b"zz", b"\r\n\r\n", b"\r\n" + line + told + b"\r\n\r\n"):
            client.publish("rpc.vision.secret", call, "answers.here", b"NATS/1.0\r\n" + line + told + end)
            answer = (await client.next_but_acks()).json
            refused = error_of(answer) in (NotAuthenticated.CODE, NotPermitted.CODE)
            must(refused, f"{line + told + end!r}: {answer}")
    await client.close()


def event(topic: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": "$/event", "params": {"topic": topic, "value": "bad"}}).encode()


def with_last_values() -> Server:
    server = joined(Server(), NatsServer())

    @server
    def keep(topic: str) -> int:
        return server.publish(topic, "good", retain=True)

    return server


@attack(
    131,
    "2,000 last values with names that are no topics, and requests for such",
    with_last_values,
    memory=32 * MIB,
    in_suite=IN_SUITE,
)
async def names_that_are_no_topics(target: ServerUnderAttack) -> None:
    publisher = await target.connect()
    await publisher.result("keep", ["one"])
    client = await attacker(target)
    count = 2000 if target.whole else 200
    head = b"NATS/1.0\r\nRpc-Last: keep 9-" + b"a" * 16 + b"\r\n\r\n"
    for number in range(count):
        for kind in ("$keep.all", "$retain", "$last"):
            client.publish(f"rpc.vision.{kind}.%FF{number}", event("x"), f"answers.{number}", head)
    await client.flush()
    await publisher.result("keep", ["two"])
    port = await publisher.result("nats_port")
    async with (
        AsyncClient(f"nats://127.0.0.1:{port}/vision") as reader,
        reader.subscribe("*").with_topics() as events,
    ):
        for topic in ("one", "two"):
            must(await asyncio.wait_for(anext(events), 20) == (topic, "good"), "the others come")
    await client.close()


def with_a_port() -> Server:
    return joined(Server(), NatsServer())


# with a garbage collection of all callers
@attack(
    132,
    "a client of NATS calls from 20,500 inboxes, each of which a server keeps as a caller",
    with_a_port,
    memory=160 * MIB,
    wait=0.4,
    in_suite=IN_SUITE,
)
async def inboxes_without_end(target: ServerUnderAttack) -> None:
    client = await attacker(target)
    call = b'{"jsonrpc":"2.0","id":1,"method":"add","params":[1,2]}'
    for number in range(20_500):
        client.publish("rpc.vision.add", call, f"answers.{number}.rpcstream.1")
    answered = 0
    while answered < 20_500:
        message = await client.next_but_acks()
        answered += bool(message.data)
    raw = await target.connect()
    must((await raw.call("rpc.ping"))["result"] == "pong", "there is room for sockets")
    await client.close()


ASK = b'{"jsonrpc":"2.0","id":1,"method":"rpc.direct","params":'
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
    """

    def __init__(self, raw: RawClient, direct: RawConnection, session: str) -> None:
        self.raw = raw
        self.direct = direct
        self.session = session

    @classmethod
    async def enter(cls, raw: RawClient, number: int, method: bytes = b"size_of", size: int = 2_000_000) -> Intruder:
        inbox = f"intruder.{number}.rpcstream"
        await raw.subscribe(f"{inbox}.*")
        raw.publish(b"rpc.direct." + method, ASK + b'{"method":"%b","size":%d}}' % (method, size), f"{inbox}.1")
        # Answers to callers before this one may still come.
        while not ((answer := await raw.next()).subject.startswith(inbox) and b'"session"' in answer.data):
            pass
        raw.publish(answer.reply, ASK + b"{}}", f"{inbox}.1")
        while not ((answer := await raw.next()).subject.startswith(inbox) and b'"secret"' in answer.data):
            pass
        params = answer.json["result"]
        host, _, port = params["address"].rpartition(":")
        direct = RawConnection(*await asyncio.open_connection(host, int(port)))
        request = b'{"jsonrpc":"2.0","id":0,"method":"rpc.authenticate","params":{"token":"%b"}}\n'
        await direct.send(request % params["secret"].encode())
        must(json.loads(await direct.reader.readline())["result"] is True, "the secret was not taken")
        return cls(raw, direct, answer.reply)

    async def try_lines(self, lines: bytes) -> None:
        """Write to the direct connection, and wait until all of it was read."""
        await self.direct.send(lines)
        self.direct.writer.write_eof()
        try:
            await asyncio.wait_for(self.direct.reader.read(), 20)
        except ConnectionError:
            pass
        self.direct.close()

    def ask(self, subject: str, rest: bytes) -> None:
        self.raw.publish(subject, ASK + rest, "intruder.answers.1")


@attack(
    140,
    "on NATS, calls of a method that is not permitted, by the direct connection: alone, in a batch, and after "
    "questions that name two methods",
    on_nats,
    memory=32 * MIB,
    log=128 * KIB,
    in_suite=IN_SUITE,
)
async def forbidden_calls(target: ServerUnderAttack) -> None:
    plain = await target.connect()
    port, _ = await plain.result("state")
    raw = await RawClient.connect(port)
    two_methods = (
        b'{"method":"wipe","size":2000000},"method":"size_of"}',
        b'{"method":"size_of","size":2000000,"method":"wipe"}}',
        b'{"method":"size_of","size":9},"params":{"method":"wipe","size":9}}',
        b'{"method":"wipe","size":9,"x":[%b]}}' % b",".join([b"[]"] * 300_000),
    )
    try:
        for number in range(0, 400 if target.whole else 40, 2):
            await (await Intruder.enter(raw, number)).try_lines(FORBIDDEN + b"[%b]\n" % FORBIDDEN[:-1])

            intruder = await Intruder.enter(raw, number + 1)
            for question in two_methods:
                intruder.ask("rpc.direct.size_of", question)
                intruder.ask(intruder.session, question)
            await raw.flush()
            await intruder.try_lines(FORBIDDEN)
        _, wiped = await plain.result("state")
        must(wiped == 0, f"a method that is not permitted was called {wiped} times")
    finally:
        await raw.close()


@attack(
    151,
    "17 callers on NATS announce 60 MiB by their direct connections and send nothing, 30 send a little; honest calls",
    on_nats,
    memory=320 * MIB,
    in_suite=IN_SUITE,
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
            await intruder.direct.send(announcement(ANNOUNCED) + b"x" * (4096 * (number > 16)))
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
