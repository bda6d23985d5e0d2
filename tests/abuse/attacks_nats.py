"""Attacks by clients of NATS on a server that has joined a service there, and listens at a port of its own as well.

The attacker writes to a nats-server of the attack's own; the other caller whose wait is measured has a connection.
"""

from __future__ import annotations

import asyncio
import json

from rpcstream import AsyncClient, Credentials, NatsLogin, NotAuthenticated, NotPermitted, Server

from ..kit.nats_raw_client import RawClient
from ..kit.nats_server import NatsServer, find_program
from .attacks_hub import error_of, must
from .harness import MIB, Budget, ServerUnderAttack, attack

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
    server=trusting,
    budget=Budget(memory=16 * MIB),
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
    server = joined(Server(), NatsServer(jetstream=True))

    @server
    def keep(topic: str) -> int:
        return server.publish(topic, "good", retain=True)

    return server


@attack(
    131,
    "2,000 last values with names that are no topics, the last one stored last",
    server=with_last_values,
    budget=Budget(memory=32 * MIB),
    in_suite=IN_SUITE,
)
async def names_that_are_no_topics(target: ServerUnderAttack) -> None:
    publisher = await target.connect()
    await publisher.result("keep", ["one"])
    client = await attacker(target)
    count = 2000 if target.whole else 200
    for number in range(count):
        client.publish(f"$KV.rpc_vision_last.%FF{number}", event("x"), f"answers.{number}")
    for _ in range(count):
        must("seq" in (await client.next()).json, "JetStream stores it")
    await publisher.result("keep", ["two"])
    async with AsyncClient(f"nats://127.0.0.1:{await publisher.result('nats_port')}/vision") as reader:
        client.publish("$KV.rpc_vision_last.%FF", event("x"), "answers.last")
        await client.next()
        async with reader.subscribe("*").with_topics() as events:
            for topic in ("one", "two"):
                must(await asyncio.wait_for(anext(events), 20) == (topic, "good"), "the others come")
    await client.close()


def with_a_port() -> Server:
    return joined(Server(), NatsServer())


@attack(
    132,
    "a client of NATS calls from 20,500 inboxes, each of which a server keeps as a caller",
    server=with_a_port,
    budget=Budget(memory=160 * MIB, wait=0.4),  # with a garbage collection of all callers
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
