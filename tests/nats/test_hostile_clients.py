"""Clients that write to a service what no library of NATS writes: the others are served all the same."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import pytest

pytest.importorskip("nats")

from rpcstream import AsyncClient, Limits, ServerBusy
from rpcstream.testing import wait_until_idle

from ..kit import UsualServer, logged, until
from ..kit.nats_raw_client import RawClient
from .conftest import Clock
from .service import ADD, WAIT, Service, call_of

pytestmark = pytest.mark.nats

GONE = b"NATS/1.0 503\r\n\r\n"


class Scene:
    """A server on NATS, one of our clients, and a raw one."""

    def __init__(self, service: Service, server: UsualServer, client: AsyncClient, raw: RawClient) -> None:
        self.root = service.root
        self.server = server
        self.client = client
        self.raw = raw

    async def session(self) -> str:
        """The subject of the instance for the session of the raw client."""
        self.raw.publish(f"{self.root}wait", WAIT.replace(b"1", b"7"), "mine.rpcstream.1")
        return (await self.raw.next()).reply  # that of the acknowledgement

    async def answer_of(self, data: bytes, reply: str = "answers.one", method: str = "add") -> Any:
        return (await self.raw.request(self.root + method, data, reply)).json

    async def check(self) -> None:
        assert await self.client.call("add", 1, 2) == 3


@asynccontextmanager
async def scene(service: Service, *, port: int | None = None, **limits: Any) -> AsyncIterator[Scene]:
    """No handler of messages may fail, and the client is served at the end."""
    server = UsualServer(limits=Limits(**limits))
    with logged("rpcstream", logging.WARNING) as ours, logged("nats", logging.WARNING) as theirs:
        async with (
            service.serving(server, port=port),
            service.client() as client,
            service.raw("mine.rpcstream.*", "answers.*", "flood.*.rpcstream.*") as raw,
        ):
            made = Scene(service, server, client, raw)
            await made.check()
            yield made
            server.release()
            await wait_until_idle(server)
            await made.check()
    # The last is said on a busy machine.
    expected = ("not sent", "refused a", "blocked the event loop")
    assert [line for line in ours.lines + theirs.lines if not any(words in line for words in expected)] == []


#: Subjects for the answer that no library writes, and headers.
ODD: list[tuple[bytes, bytes | None]] = [
    *[(each, None) for each in (b"a\x0bb", b"a\x1cb", b"a\xffb", b"a.>")],  # some are white space for nats-py
    *[(each + b".rpcstream.1", None) for each in (b"x" * 4000, b"\xf0\x9f\x98\x80" * 1000)],
    *[(b"r", each) for each in (b"N", b"NATS/1.0", b"NATS/1.0 \xff\xff\xff\r\n\r\n", b"NATS/1.0 503 \xff\r\n\r\n")],
    (b"r", b"NATS/1.0\r\nno colon\r\n: no name\r\n\xff: x\r\nStatus: \xff\r\n\r\n"),
    (b"r", b"\r\n" * 1000),
]


async def test_subjects_and_headers_that_no_library_writes(service: Service) -> None:
    async with scene(service) as at:
        for reply, head in ODD:
            for method, data in (("add", ADD), ("$inquiry", b"[1]"), ("wait", WAIT)):
                at.raw.publish(at.root + method, data, reply, head)
        await at.raw.flush()
        await at.check()
        own = (await at.session()).encode()
        for token in (b"a\x0bb", b"a.\xff", b"%FF", b"a.%FF", b"a.%ED%A0%80.b", b"a." + b"x" * 3000):
            for start in (own, own.rpartition(b".")[0]):
                at.raw.publish(start + b"." + token, ADD, b"r")
                at.raw.publish(start + b"." + token, b"", b"r", GONE)
        await at.raw.flush()
        await asyncio.sleep(0.05)  # a call that waits would be acknowledged


NO_CALLS = [
    *(b"", b"\xff", b"5", b"null", b"[]", b"{}", b"[[[[", b"[" * 100_000, b'{"id":1}'),
    b'{"jsonrpc":"2.0","method":5,"id":1}',
    b'{"jsonrpc":"2.0","method":"add","id":{"a":[1]}}',
    b'[{"id":' + b"[" * 300 + b"]" * 300 + b',"method":"x"}]',
    *(b"@\n", b"@5 5\n", b"@999999999999999999999 1\n{}", b"@-1\n{}", ADD + b"\n" + ADD, ADD + b"garbage"),
]


async def test_payloads_that_are_no_calls(service: Service) -> None:
    """Each is answered with one error where a subject for that is named, and nothing else comes of it."""
    async with scene(service) as at:
        session = await at.session()
        for data in NO_CALLS:
            for method in ("add", "$batch"):
                at.raw.publish(at.root + method, data, "answers.one")
                while (told := await at.raw.next()).subject != "answers.one":
                    pass
                answer = told.json
                for each in answer if isinstance(answer, list) else [answer]:
                    assert each["error"]["code"] in (-32700, -32600), (data, answer)
            for subject in (f"{at.root}$inquiry", f"{at.root}add", session):
                for reply in ("", "other.rpcstream.q1"):
                    at.raw.publish(subject, data, reply)
            await at.check()


async def test_ids_that_are_too_long_for_one_message(service: Service) -> None:
    """To be refused, and to be acknowledged."""
    async with scene(service) as at:
        batch = json.dumps([{"id": f"{number:01000}", "method": "x"} for number in range(1000)]).encode()
        answer = await at.answer_of(batch)
        assert (answer["id"], answer["error"]["code"]) == (None, -32600)
        ids = [letter * 1_000_000 for letter in "abc"]
        for call_id in ids:
            at.raw.publish(f"{at.root}wait", call_of("wait", call_id=call_id), "mine.rpcstream.1")
        acknowledged: list[str] = []
        while len(acknowledged) < 3:
            message = await at.raw.next()
            assert message.subject == "mine.rpcstream.m"
            acknowledged += message.json["params"]["has"]
        assert sorted(acknowledged) == ids


async def test_binary_frames_that_lie_about_their_sizes(service: Service) -> None:
    """What was to come and does not is forgotten at once, and takes no memory of others."""
    async with scene(service, max_message_size=4 << 20, max_held_total=8 << 20) as at:
        text = call_of("add", 1, {"$array": 0})
        for _ in range(20):
            for announced, rest in ((3_000_000, b""), (1, b""), (1, b"xyz")):
                frame = b"@%d %d\n" % (len(text), announced) + text + rest
                assert "error" in await at.answer_of(frame, "mine.rpcstream.1")


@pytest.mark.parametrize("is_large", [False, True])
async def test_inboxes_without_end_displace_each_other(
    service: Service, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what calls once, and is silent then, nothing is kept; callers with something under way stay."""
    ask = b'{"jsonrpc":"2.0","id":1,"method":"rpc.direct","params":{"method":"add","size":2000000}}'
    monkeypatch.setattr("rpcstream.nats.callers.MAX_CALLERS", 20)
    async with scene(service) as at:
        held = asyncio.create_task(at.client.call("wait", 5))
        await until(lambda: at.server.begun)
        for number in range(30):
            data = ask if is_large else ADD
            at.raw.publish(f"{at.root}add", data, f"flood.{number}.rpcstream.1")
            while f".{number}." not in (answer := await at.raw.next_but_acks()).subject or not answer.data:
                pass  # another one is told that its session is over
            assert "session" in answer.json["result"] if is_large else answer.json["result"] == 3
            assert at.server.stats()["connections"] <= 20
        assert not held.done()
        at.server.release()
        assert await held == 5


async def test_callers_have_places_of_their_own_and_the_others_are_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they have under way, and whatever form their inboxes have; sockets take none of them."""
    monkeypatch.setattr("rpcstream.nats.callers.MAX_CALLERS", 4)
    async with scene(service, port=0, max_connections=2) as at:
        for reply in ("answers.1", "answers.2", "mine.rpcstream.1"):  # and the client is the fourth
            at.raw.publish(f"{at.root}wait", WAIT, reply)
        held = asyncio.create_task(at.client.call("wait"))
        await until(lambda: len(at.server.begun) == 4)
        for number in range(10):
            at.raw.publish(f"{at.root}wait", WAIT, f"answers.{number}")
            answer = await at.raw.next_but_acks()
            assert (answer.json["id"], answer.json["error"]["code"]) == (1, -32002)
        async with service.client() as late:
            with pytest.raises(ServerBusy, match="4 callers"):
                await late.call("add", 1, 2)
        assert await at.client.call("add", 1, 2) == 3
        async with AsyncClient(at.server.address) as one, AsyncClient(at.server.address) as other:
            assert await one.call("add", 1, 2) == await other.call("add", 1, 2) == 3
        at.server.release()
        await held
        for _ in range(3):
            assert "result" in (await at.raw.next_but_acks()).json


async def test_a_read_with_many_calls_is_shared_in_turns(service: Service) -> None:
    """Other work of the loop goes on between the calls that come in one read."""
    turns, served, count = 0, list[int](), 200
    async with scene(service) as at:

        @at.server
        def slow() -> None:
            end = perf_counter() + 0.001
            while perf_counter() < end:
                pass
            served.append(turns)

        def take_turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(take_turn)

        await until(lambda: "slow" in service.subscribed("slow"))
        for number in range(count):
            at.raw.publish(f"{at.root}slow", call_of("slow"), f"answers.{number}")
        take_turn()
        await until(lambda: len(served) == count)
        assert max(Counter(served).values()) < count / 2


async def test_what_waits_of_one_caller_is_bounded(service: Service) -> None:
    """Calls over `max_calls` wait; over the memory of a connection they are refused, each with its id."""
    held, count = 1 << 18, 800
    async with scene(service, max_calls=4, write_buffer=10_000, max_held_total=8 * held) as at:
        for number in range(count):
            call = call_of("wait", call_id=f"c{number}") + b" " * 1000
            at.raw.publish(f"{at.root}wait", call, "mine.rpcstream.1")
        refused, answered = set[str](), set[str]()

        async def take() -> None:
            message = await at.raw.next_but_acks()
            for line in message.data.splitlines():
                read = json.loads(line)
                (refused if "error" in read else answered).add(read["id"])
                assert "result" in read or read["error"]["code"] == -32002, read

        while len(refused) < count / 2:
            await take()
        assert len(at.server.begun) == 4
        await at.check()
        at.server.release()
        while len(refused) + len(answered) < count:
            await take()
        assert len(answered) >= held // 4000  # with what their parsed JSON takes


async def test_calls_of_a_client_that_vanishes_are_cancelled(clock: Clock, service: Service) -> None:
    async with scene(service) as at:
        async with service.raw("gone.rpcstream.*") as vanishing:
            vanishing.publish(f"{at.root}wait", WAIT, "gone.rpcstream.1")
            await until(lambda: at.server.begun)
        await clock.until(lambda: at.server.ended == [(None, "CancelledError")])
