"""Clients that write to a service what no library of NATS writes: the others are served all the same."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, Limits, Server, ServerBusy
from rpcstream.nats.tickets import ticket

from ..kit import until
from ..kit.nats_raw_client import RawClient, RawMessage
from ..kit.nats_server import NatsServer

pytestmark = pytest.mark.nats

CALL = b'{"jsonrpc":"2.0","id":1,"method":"add","params":[1,2]}'
WAIT = b'{"jsonrpc":"2.0","id":1,"method":"wait"}'


class Scene:
    """A server on NATS, one of our clients, and a raw one."""

    def __init__(
        self, server: Server, client: AsyncClient, raw: RawClient, root: str, log: list[str], address: str
    ) -> None:
        #: Of the server's own port, where it has one.
        self.address = address
        self.server = server
        self.client = client
        self.raw = raw
        self.root = root
        self.log = log
        #: Held calls of `wait` go on.
        self.gate = asyncio.Event()
        self.begun = self.streams = 0

    async def own_subject(self, inbox: str = "mine") -> str:
        """The subject of the instance for the session of an inbox of the raw client."""
        await self.raw.subscribe(f"{inbox}.rpcstream.*")
        self.raw.publish(f"{self.root}.wait", b'{"jsonrpc":"2.0","id":7,"method":"wait"}', f"{inbox}.rpcstream.1")
        return (await self.raw.next()).reply  # that of the acknowledgement

    async def check(self) -> None:
        """The client is served, by the same connections as before, and no handler of messages has failed."""
        assert await self.client.call("add", 1, 2) == 3
        assert self.log == []


@asynccontextmanager
async def scene(
    nats: NatsServer, caplog: pytest.LogCaptureFixture, *, is_only: bool = True, **limits: Any
) -> AsyncIterator[Scene]:
    service = f"hostile-{secrets.token_hex(4)}"
    server = Server(limits=Limits(**limits))
    made: Scene

    @server
    def add(a: int, b: int) -> int:
        return a + b

    @server
    async def wait() -> str:
        made.begun += 1
        await made.gate.wait()
        return "waited"

    @server
    async def count(upto: int) -> AsyncIterator[int]:
        made.streams += 1
        try:
            for number in range(upto):
                yield number
        finally:
            made.streams -= 1

    server.join_nats(nats.url, service=service, only=is_only)
    log: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: log.append(record.getMessage())  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in ("rpcstream", "nats")]
    for logger in loggers:
        logger.addHandler(handler)
    raw = await RawClient.connect(nats.port)
    try:
        async with (
            server.listening(port=0) as address,
            AsyncClient(f"{nats.url}/{service}", timeout=20) as client,
        ):
            made = Scene(server, client, raw, f"rpc.{service}", log, address)
            try:
                yield made
            finally:
                made.gate.set()
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        await raw.close()


@pytest.mark.parametrize(
    ("reply", "head"),
    [
        (b"a\x0bb", None),  # taken for white space by nats-py
        (b"a\x1cb", None),
        (b"a\xffb", None),
        (b"a.>", None),
        (b"x" * 4000 + b".rpcstream.1", None),
        (b"\xf0\x9f\x98\x80" * 1000 + b".rpcstream.1", None),
        (b"r", b"N"),
        (b"r", b"NATS/1.0"),
        (b"r", b"NATS/1.0 \xff\xff\xff\r\n\r\n"),
        (b"r", b"NATS/1.0 503 \xff\r\n\r\n"),
        (b"r", b"NATS/1.0\r\nno colon\r\n: no name\r\n\xff: x\r\nStatus: \xff\r\n\r\n"),
        (b"r", b"\r\n" * 1000),
    ],
    ids=repr,
)
async def test_subjects_and_headers_that_no_library_writes(
    shared_nats: NatsServer, caplog: pytest.LogCaptureFixture, reply: bytes, head: bytes | None
) -> None:
    async with scene(shared_nats, caplog) as at:
        await at.check()
        at.raw.publish(f"{at.root}.add", CALL, reply, head)
        at.raw.publish(f"{at.root}.$inquiry", b"[1]", reply, head)
        at.raw.publish(f"{at.root}.wait", WAIT, reply, head)
        await at.raw.flush()
        await at.client.call("add", 0, 0)
        await asyncio.sleep(0.05)  # the call that waits would be acknowledged
        assert [line for line in at.log if "not sent" not in line] == []
        at.log.clear()
        await at.check()


@pytest.mark.parametrize("subject", [b"a\x0bb", b"a.\xff", b"%FF", b"a.%FF", b"a.%ED%A0%80.b", b"a." + b"x" * 3000])
async def test_subjects_of_the_instance(
    shared_nats: NatsServer, caplog: pytest.LogCaptureFixture, subject: bytes
) -> None:
    async with scene(shared_nats, caplog) as at:
        own = (await at.own_subject()).encode()
        instance = own.rpartition(b".")[0]
        for start in (own, instance):
            at.raw.publish(start + b"." + subject, CALL, b"r")
            at.raw.publish(start + b"." + subject, b"", b"r", b"NATS/1.0 503\r\n\r\n")
        await at.raw.flush()
        await at.check()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"5",
        b"null",
        b"[]",
        b"{}",
        b"[[[[",
        b"[" * 100_000,
        b'{"id":1}',
        b'{"jsonrpc":"2.0","method":5,"id":1}',
        b'{"jsonrpc":"2.0","method":"add","id":{"a":[1]}}',
        b'[{"id":' + b"[" * 300 + b"]" * 300 + b',"method":"x"}]',
        b"@\n",
        b"@5 5\n",
        b"@999999999999999999999 1\n{}",
        b"@-1\n{}",
        CALL + b"\n" + CALL,
        CALL + b"garbage",
    ],
    ids=lambda data: data[:30],
)
async def test_payloads_that_are_no_calls(
    shared_nats: NatsServer, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """Each is answered with one error where a subject for that is named, and nothing else comes of it."""
    async with scene(shared_nats, caplog) as at:
        own = await at.own_subject()
        await at.raw.subscribe("answers.*")
        answer = await at.raw.request(f"{at.root}.add", data, "answers.one")
        if isinstance(answer.json, dict):
            assert answer.json["error"]["code"] in (-32700, -32600), answer
        answer = await at.raw.request(f"{at.root}.$batch", data, "answers.batch")
        answered = answer.json if isinstance(answer.json, list) else [answer.json]
        assert all(each["error"]["code"] in (-32700, -32600) for each in answered), answer
        for subject in ("$inquiry", "add", own.removeprefix(f"{at.root}.")):
            at.raw.publish(f"{at.root}.{subject}", data)
            at.raw.publish(f"{at.root}.{subject}", data, "other.rpcstream.q1")
        await at.check()


async def test_ids_whose_refusals_are_too_long_for_nats(
    shared_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(shared_nats, caplog) as at:
        await at.raw.subscribe("answers.*")
        batch = [{"id": f"{number:01000}", "method": "x"} for number in range(1000)]
        assert len(json.dumps(batch)) < 1 << 20
        answer = (await at.raw.request(f"{at.root}.add", batch, "answers.here")).json
        assert (answer["id"], answer["error"]["code"]) == (None, -32600)
        await at.check()


async def test_ids_that_cannot_be_acknowledged_in_one_message(
    shared_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(shared_nats, caplog) as at:
        await at.raw.subscribe("mine.rpcstream.*")
        ids = [letter * 1_000_000 for letter in "abc"]
        for call_id in ids:
            call = {"jsonrpc": "2.0", "id": call_id, "method": "wait"}
            at.raw.publish(f"{at.root}.wait", json.dumps(call).encode(), "mine.rpcstream.1")
        acknowledged: list[str] = []
        while len(acknowledged) < 3:
            message = await at.raw.next()
            assert message.subject == "mine.rpcstream.ack"
            acknowledged += message.json
        assert sorted(acknowledged) == ids
        await at.check()


# -- floods -----------------------------------------------------------------------------------------------------------


async def test_inboxes_without_end_displace_each_other(
    shared_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Of what calls once and is silent then nothing is kept; callers with something under way stay."""
    async with scene(shared_nats, caplog, max_nats_callers=20) as at:
        held = asyncio.create_task(at.client.call("wait"))
        await until(lambda: at.begun)
        await at.raw.subscribe("flood.*.rpcstream.*")
        for number in range(200):
            answer = await at.raw.request(f"{at.root}.add", CALL, f"flood.{number}.rpcstream.1")
            while not answer.data:  # another one is told that its session is over
                answer = await at.raw.next_but_acks()
            assert answer.json["result"] == 3
            assert at.server.stats()["connections"] <= 20
        assert not held.done()
        at.gate.set()
        assert await held == "waited"
        await at.check()


async def test_callers_that_ask_for_places_and_do_not_connect_give_way(
    shared_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(shared_nats, caplog, max_nats_callers=20) as at:
        await at.raw.subscribe("flood.*.rpcstream.*")
        for number in range(40):
            asks = ticket(ask=1, method="add", size=2_000_000, ids=[1])
            answer = await at.raw.request(f"{at.root}.add", asks, f"flood.{number}.rpcstream.1")
            while not answer.subject.endswith("ticket"):
                answer = await at.raw.next_but_acks()
            assert at.server.stats()["connections"] <= 20
        assert await at.client.call("add", 1, 2) == 3
        await at.check()


async def test_a_server_without_room_refuses_a_call_and_nothing_else_of_its_caller(
    shared_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(shared_nats, caplog, max_nats_callers=3) as at:
        for number in range(3):  # each has a call under way, one of them without an inbox of our form
            await at.raw.subscribe(f"busy.{number}.rpcstream.*")
            reply = f"busy.{number}.rpcstream.1" if number else "plain.1"
            at.raw.publish(f"{at.root}.wait", WAIT, reply)
            await until(lambda number=number: at.begun == number + 1)
        await at.raw.subscribe("answers.*")
        answer = await at.raw.request(f"{at.root}.add", CALL, "answers.1")
        while answer.subject != "answers.1":
            answer = await at.raw.next_but_acks()
        assert (answer.json["id"], answer.json["error"]["code"]) == (1, -32002)
        with pytest.raises(ServerBusy, match="3 callers"):
            await at.client.call("add", 1, 2)
        at.gate.set()
        await until(lambda: at.server.stats()["connections"] < 3)
        at.log.clear()
        await at.check()


async def test_callers_take_no_places_of_sockets(shared_nats: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    """Callers have a limit of their own, whatever they have under way; and sockets take no places of callers."""
    async with scene(shared_nats, caplog, is_only=False, max_connections=2, max_nats_callers=4) as at:
        await at.raw.subscribe("answers.*")
        for number in range(10):
            at.raw.publish(f"{at.root}.wait", WAIT, f"answers.{number}")
        for _ in range(6):
            assert (await at.raw.next_but_acks()).json["error"]["code"] == -32002
        assert at.begun == 4
        async with AsyncClient(at.address) as one, AsyncClient(at.address) as other:
            assert await one.call("add", 1, 2) == await other.call("add", 1, 2) == 3
            at.gate.set()
            for _ in range(4):
                assert (await at.raw.next_but_acks()).json["result"] == "waited"
            assert await at.client.call("add", 1, 2) == 3


async def test_a_read_with_many_calls_is_shared_in_turns(
    shared_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Other work of the loop goes on between the calls that come in one read."""
    count = 600
    async with scene(shared_nats, caplog) as at:
        turns = 0
        served: list[int] = []

        @at.server
        def slow() -> None:
            end = perf_counter() + 0.001
            while perf_counter() < end:
                pass
            served.append(turns)

        await at.raw.subscribe("answers.*")
        await at.raw.request(f"{at.root}.slow", b'{"jsonrpc":"2.0","id":1,"method":"slow"}', "answers.0")
        served.clear()
        for number in range(count):
            at.raw.publish(f"{at.root}.slow", b'{"jsonrpc":"2.0","id":1,"method":"slow"}', f"answers.{number}")

        def take_turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(take_turn)

        take_turn()
        await until(lambda: len(served) == count)
        assert max(Counter(served).values()) < count / 3


async def test_calls_that_never_end_without_an_inbox(shared_nats: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    """Each takes a place as a connection does; when there are no more, calls are refused, and none waits in memory."""
    async with scene(shared_nats, caplog, max_nats_callers=50) as at:
        await at.check()
        await at.raw.subscribe("answers.*")
        for number in range(200):
            at.raw.publish(f"{at.root}.wait", WAIT, f"answers.{number}")
        for _ in range(150):
            answer = await at.raw.next_but_acks()
            assert answer.json["error"]["code"] == -32002
        assert at.begun in (49, 50)
        at.gate.set()
        for _ in range(49):
            assert (await at.raw.next_but_acks()).json["result"] == "waited"


async def test_what_waits_of_one_caller_is_bounded(shared_nats: NatsServer, caplog: pytest.LogCaptureFixture) -> None:
    """Calls over `max_calls` wait; over `max_held_size` they are refused, each with its id, and others are served."""
    held = 1 << 20
    async with scene(shared_nats, caplog, max_calls=4, write_buffer=10_000, max_held_size=held) as at:
        await at.raw.subscribe("mine.rpcstream.*")
        for number in range(3000):
            call = {"jsonrpc": "2.0", "id": f"c{number}", "method": "wait", "params": ["x" * 1000]}
            at.raw.publish(
                f"{at.root}.wait", json.dumps(call | {"params": []}).encode() + b" " * 1000, "mine.rpcstream.1"
            )
        refused: set[str] = set()
        begun: set[str] = set()

        def take(message: RawMessage) -> None:
            for line in message.data.splitlines() if message.subject == "mine.rpcstream.m" else ():
                read = json.loads(line)
                (refused if "error" in read else begun).add(read["id"])
                assert "result" in read or read["error"]["code"] == -32002, read

        await at.client.call("add", 1, 2)
        while len(refused) < 1500:
            take(await at.raw.next_but_acks())
        assert at.begun == 4
        assert await at.client.call("add", 1, 2) == 3
        at.gate.set()
        while len(refused) + len(begun) < 3000:
            take(await at.raw.next_but_acks())
        assert len(begun) >= held // 2000
        assert at.log == []


async def test_binary_frames_that_lie_about_their_sizes(
    shared_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """What was to come and does not is forgotten at once, and takes no memory of others."""
    async with scene(shared_nats, caplog, max_message_size=4 << 20, max_held_total=8 << 20) as at:
        await at.raw.subscribe("mine.rpcstream.*")
        text = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "add", "params": [1, {"$array": 0}]}).encode()
        for _ in range(50):
            for size in (3_000_000, 1):
                frame = b"@%d %d\n" % (len(text), size) + text
                at.raw.publish(f"{at.root}.add", frame, "mine.rpcstream.1")
                answer = await at.raw.next_but_acks()
                assert "error" in answer.json, answer
            frame = b"@%d %d\n" % (len(text), 1) + text + b"xyz"  # bytes behind it
            answer = await at.raw.request(f"{at.root}.add", frame, "mine.rpcstream.1")
            assert "error" in answer.json, answer
        answer = await at.raw.request(f"{at.root}.add", CALL, "mine.rpcstream.1")
        assert answer.json["result"] == 3
        await at.check()


async def test_a_client_that_vanishes_in_the_middle_of_a_stream(
    shared_nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(shared_nats, caplog) as at:
        vanishing = await RawClient.connect(shared_nats.port)
        await vanishing.subscribe("gone.rpcstream.*")
        call = {"jsonrpc": "2.0", "id": 1, "method": "count", "params": [1_000_000]}
        vanishing.publish(f"{at.root}.count", json.dumps(call).encode(), "gone.rpcstream.1")
        await until(lambda: at.streams == 1)
        await vanishing.close()
        await until(lambda: at.streams == 0)
        await at.check()
