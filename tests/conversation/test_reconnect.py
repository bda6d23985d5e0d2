"""Reconnecting clients: pauses between attempts, calls that wait, the first messages, and repeated calls."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rpcstream import AsyncClient, Backoff, CallTimeout, ConnectFailed, ConnectionLost, NotAuthenticated, Retry, Server
from rpcstream.testing import FakeTimeLoop

from ..kit import PATIENCE, LogLines, Network, RawPeer, until
from ..kit.memory import join

#: For real transports, where a pause takes real time.
QUICK = Backoff(first=0.001, longest=0.01)

#: Without chance: pauses of 1, 2, 4, 8, 8 … seconds.
DOUBLING = Backoff(first=1, longest=8, random=lambda: 1.0)

#: Seconds after which a connection is taken to be a lasting one, whose loss begins a new series of pauses.
STABLE = 0.5


class States:
    """What a client says of itself, to be waited for."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._news = asyncio.Event()

    def __call__(self, state: str) -> None:
        self.seen.append(state)
        self._news.set()

    async def reach(self, state: str, times: int = 1) -> None:
        """Wait until it has been in this state so many times. Fake time goes on meanwhile."""
        is_fake = isinstance(asyncio.get_running_loop(), FakeTimeLoop)
        async with asyncio.timeout(None if is_fake else PATIENCE):
            while self.seen.count(state) < times:
                self._news.clear()
                await self._news.wait()


class Door:
    """Where clients in memory come to, and how they are received: `welcome`, `refuse`, `ignore` or `slam`.

    Attributes:
        attempts: when somebody came.
        inside: the other ends of the connections that were made.
        accept: makes such an end.
        receive: how the next one is received.
    """

    def __init__(self) -> None:
        self.attempts: list[float] = []
        self.inside: list[Any] = []
        self.accept: Callable[[], asyncio.Protocol] = RawPeer
        self.receive: Callable[[Callable[[], Any]], Awaitable[Any]] = self.welcome
        self._clients: list[AsyncClient] = []

    def client(self, **options: Any) -> AsyncClient:
        self._clients.append(client := AsyncClient(self._connect, **options))
        return client

    async def _connect(self, make: Callable[[], Any]) -> Any:
        self.attempts.append(asyncio.get_running_loop().time())
        return await self.receive(make)

    async def welcome(self, make: Callable[[], Any]) -> Any:
        join(protocol := make(), other := self.accept())
        self.inside.append(other)
        return protocol

    async def refuse(self, make: Callable[[], Any]) -> Any:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody is there")

    async def ignore(self, make: Callable[[], Any]) -> Any:
        await asyncio.Event().wait()

    async def slam(self, make: Callable[[], Any]) -> Any:
        protocol = await self.welcome(make)
        self.hang_up()
        for _ in range(5):  # until that is seen
            await asyncio.sleep(0)
        return protocol

    def hang_up(self) -> None:
        """Close the latest connection from inside."""
        end = self.inside[-1]
        end.close() if isinstance(end, RawPeer) else end.abort("the door was shut")

    @asynccontextmanager
    async def serving(self, server: Server) -> AsyncIterator[None]:
        async with server.in_memory() as accept:
            self.accept = accept
            try:
                yield
            finally:
                await self.close()

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for end in self.inside:
            if isinstance(end, RawPeer):
                end.close()


def ponging(**options: Any) -> Server:
    """A server that answers."""
    server = Server(**options)
    server.add(lambda: "pong", name="ping")
    return server


@pytest.fixture
async def door(nothing_left: None) -> AsyncIterator[Door]:
    door = Door()
    yield door
    await door.close()


@pytest.fixture
async def states() -> States:
    return States()


@pytest.mark.fake_time
@pytest.mark.parametrize(("random", "share"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
async def test_pauses_grow_up_to_the_longest(door: Door, random: float, share: float) -> None:
    door.receive = door.refuse
    async with door.client(reconnect=Backoff(first=1, factor=3, longest=20, random=lambda: random)):
        await asyncio.sleep(63 * share)
    pauses = [later - earlier for earlier, later in zip(door.attempts, door.attempts[1:], strict=False)]
    assert pauses[:5] == pytest.approx([share * pause for pause in (1, 3, 9, 20, 20)])
    assert door.attempts[0] == 0


def test_a_back_off_for_years_and_by_chance() -> None:
    backoff = Backoff(random=lambda: 1.0)
    assert [backoff.pause(failures) for failures in (1, 2, 100, 10**9)] == [0.1, 0.2, 30, 30]
    assert len({Backoff().pause(5) for _ in range(100)}) > 90, "clients do not come back together"
    for wrong in ({"first": 0.0}, {"first": 2.0, "longest": 1.0}, {"factor": 0.5}, {"first": -1.0}):
        with pytest.raises(ValueError, match="a Backoff needs"):
            Backoff(**wrong)


@pytest.mark.fake_time
async def test_states_in_order_and_a_function_for_them_that_fails(door: Door, states: States, errors: LogLines) -> None:
    def on_state(state: str) -> None:
        states(state)
        if state == "closed":
            raise ValueError(state)

    client = door.client(reconnect=DOUBLING, on_state=on_state)
    assert client.state == "idle"
    async with client:
        await states.reach("connected")
        door.receive = door.refuse
        door.hang_up()
        await states.reach("waiting", 3)
        door.receive = door.welcome
        await states.reach("connected", 2)
    again = ["waiting", "connecting"]
    assert states.seen == ["connecting", "connected", *again * 3, "connected", "closed"]
    assert door.attempts == [0, 1, 3, 7]
    errors.expect("on_state of a client failed")


@pytest.mark.fake_time
@pytest.mark.parametrize(("lasts", "pauses"), [(STABLE + 1, [1, 1, 1, 1, 1]), (STABLE / 2, [1, 2, 4, 8, 8])])
async def test_only_a_connection_that_lasted_makes_the_next_pause_short(
    door: Door, states: States, lasts: float, pauses: list[float]
) -> None:
    async with door.client(reconnect=DOUBLING, on_state=states):
        for times in range(1, 6):
            await states.reach("connected", times)
            await asyncio.sleep(lasts)
            door.hang_up()
        await states.reach("connected", 6)
    found = [later - earlier - lasts for earlier, later in zip(door.attempts, door.attempts[1:], strict=False)]
    assert found == pauses


@pytest.mark.fake_time
@pytest.mark.parametrize("way", ["nobody calls", "at once", "at every call"])
async def test_a_server_that_hangs_up_is_not_stormed(door: Door, way: str) -> None:
    def opened(raw: RawPeer) -> None:
        tasks.append(asyncio.ensure_future(hang_up_when_asked(raw)))

    async def hang_up_when_asked(raw: RawPeer) -> None:
        await raw.receive()
        raw.close()

    tasks: list[asyncio.Task[None]] = []
    if way == "at every call":
        door.accept = lambda: RawPeer(opened)
    else:
        door.receive = door.slam
    async with door.client(reconnect=DOUBLING, retry=Retry(times=1000 if way == "at every call" else 0)) as client:
        if way == "nobody calls":
            await asyncio.sleep(100)
        else:
            with pytest.raises((CallTimeout, ConnectionLost)):
                await client.work(timeout=100)
    await asyncio.gather(*tasks)
    assert door.attempts[:5] == [0, 1, 3, 7, 15]
    assert len(door.attempts) <= 16


@pytest.mark.fake_time
async def test_entering_connects_and_does_not_wait(door: Door) -> None:
    """Without entering, the first call connects."""
    door.receive = door.ignore
    async with door.client(reconnect=True, connect_timeout=None) as client:
        assert not door.attempts
        await until(lambda: door.attempts == [0])
        assert client.state == "connecting"
    door.receive = door.welcome
    async with door.serving(ponging()):
        client = door.client(reconnect=True)
        await asyncio.sleep(100)
        assert (door.attempts, client.state) == ([0], "idle")
        assert await client.ping() == "pong"


@pytest.mark.fake_time
async def test_calls_wait_for_the_connection(door: Door, fake_time: FakeTimeLoop, states: States) -> None:
    server = ponging()
    said: list[str] = []
    server.add(said.append, name="say")

    @server
    async def items() -> AsyncIterator[int]:
        yield 1

    async with door.serving(server), door.client(reconnect=DOUBLING, on_state=states) as client:
        await states.reach("connected")
        door.receive = door.refuse
        door.hang_up()
        await states.reach("waiting", 3)

        async def stream() -> list[int]:
            return [item async for item in client.stream.items()]

        async def batch() -> Any:
            async with client.batch() as batch:
                answer = batch.ping()
            return answer.result()

        given_up = client.submit.ping()
        waiting = [
            asyncio.ensure_future(each)
            for each in (client.ping(timeout=None), stream(), batch(), client.notify.say("hello"))
        ]
        await asyncio.sleep(0)
        given_up.cancel()  # which does not take the connection from the others
        door.receive = door.welcome
        assert await asyncio.gather(*waiting) == ["pong", [1], "pong", None]
        await until(lambda: said == ["hello"])
        assert fake_time.time() == 7
        assert door.attempts == [0, 1, 3, 7], "all share one attempt"


@pytest.mark.fake_time
async def test_calls_wait_no_longer_than_their_time_out(door: Door, fake_time: FakeTimeLoop) -> None:
    door.receive = door.refuse
    async with door.client(reconnect=DOUBLING, timeout=20) as client:
        longest = client.submit.work()
        with pytest.raises(CallTimeout, match="no connection in time"):
            await client.work(timeout=6)
        assert fake_time.time() == 6
        with pytest.raises(CallTimeout):
            await anext(client.stream.items(timeout=6))
        assert fake_time.time() == 12
        with pytest.raises(CallTimeout):
            await client.notify.say(timeout=1)
        assert fake_time.time() == 13
        with pytest.raises(CallTimeout):
            await longest
        assert fake_time.time() == 20
    assert door.attempts == [0, 1, 3, 7, 15], "calls do not make it try more often"


@pytest.mark.one_peer
async def test_greetings_come_first_on_every_connection(network: Network, states: States) -> None:
    heard: list[list[str]] = []

    async def script(raw: RawPeer) -> None:
        heard.append(said := [])
        while (message := await raw.receive()) is not None:
            said.append(message["method"])
            if message["method"] == "cut":
                return raw.close()
            if "id" in message:
                raw.answer(message, "fine")

    async with network.scripted(script) as endpoint:
        client = endpoint.client(reconnect=QUICK, on_state=states)

        @client.on_connect
        async def first(server: Any) -> None:
            assert await server.hello(1) == "fine"
            await asyncio.sleep(0)

        @client.on_connect
        async def second(server: Any) -> None:
            server.notify.note()
            assert await server.bye() == "fine"

        async with client:
            for connection in range(1, 4):
                assert await asyncio.gather(client.one(), client.two()) == ["fine"] * 2
                with pytest.raises(ConnectionLost):
                    await client.cut()
                waiting = client.submit.waited()
                await states.reach("connected", connection + 1)
                assert await waiting == "fine"
    assert heard[0] == ["hello", "note", "bye", "one", "two", "cut"]
    assert heard[1] == ["hello", "note", "bye", "waited", "one", "two", "cut"]
    assert [said[:4] for said in heard[1:]] == [["hello", "note", "bye", "waited"]] * 3


@pytest.mark.fake_time
@pytest.mark.parametrize(
    ("fault", "attempts"),
    [("refused", [0, 1, 3]), ("hangs", [0, 2, 5]), ("lost", [0, 1, 3]), ("mistake", [0, 1, 3])],
)
async def test_a_greeting_that_fails_twice(
    door: Door, states: States, errors: LogLines, fault: str, attempts: list[int]
) -> None:
    """A mistake in it is not hidden, and does not end the client, either."""
    server = ponging()

    async with door.serving(server):
        client = door.client(reconnect=DOUBLING, connect_timeout=1, on_state=states)

        @client.on_connect
        async def hello(peer: Any) -> None:
            if len(door.attempts) < 3:
                match fault:
                    case "refused":
                        await peer.nothing()
                    case "hangs":
                        await asyncio.Event().wait()
                    case "lost":
                        door.hang_up()
                    case _:
                        raise ValueError("a mistake")
            await peer.call("rpc.ping")

        async with client:
            with pytest.raises(CallTimeout):
                await client.ping(timeout=0.5)
            assert await client.ping() == "pong"
            assert "connected" not in states.seen[:-1]
            await until(lambda: server.stats()["connections"] == 1)
        assert door.attempts == attempts
    errors.expect("a mistake", times=2 if fault == "mistake" else 0)


@pytest.mark.fake_time
async def test_a_greeting_that_fails_without_reconnect(door: Door, states: States, errors: LogLines) -> None:
    """Whoever called first is told what was wrong with it; the next call greets again."""
    async with door.serving(ponging()):
        client = door.client(on_state=states)

        @client.on_connect
        async def hello(peer: Any) -> None:
            if len(door.attempts) == 1:
                raise ValueError("a mistake")
            if len(door.attempts) == 2:
                await peer.nothing()

        with pytest.raises(ConnectFailed, match=r"a mistake.*'ping'"):
            await client.ping()
        with pytest.raises(ConnectFailed, match=r"refused the token, or a call of on_connect.*-32601.*'ping'"):
            await client.ping()
        assert await client.ping() == "pong"
        assert states.seen == [*["connecting", "idle"] * 2, "connecting", "connected"]
    errors.expect("a mistake")


@pytest.mark.one_peer
async def test_a_handler_of_the_client_does_not_keep_the_lost_connection(network: Network, states: States) -> None:
    """The server closed, which looks as if it only had said its last word; what the client still does for it must not
    keep the client from connecting again."""
    connections: list[RawPeer] = []
    begun: list[int] = []
    go = asyncio.Event()

    async def script(raw: RawPeer) -> None:
        connections.append(raw)
        if len(connections) == 1:
            raw.call("work")
            await until(lambda: begun)
            raw.close()

    async with network.scripted(script) as endpoint:
        client = endpoint.client(reconnect=QUICK, on_state=states)

        @client
        async def work() -> None:
            begun.append(1)
            await go.wait()

        async with client:
            await states.reach("connected", 2)
            await until(lambda: len(connections) == 2)
            go.set()
    assert states.seen == ["connecting", "connected", "waiting", "connecting", "connected", "closed"]


@pytest.mark.fake_time
@pytest.mark.parametrize("where", ["waiting", "connecting", "greeting", "connected", "repeating"])
async def test_close_ends_at_once_wherever_the_client_is(
    door: Door, where: str, fake_time: FakeTimeLoop, states: States
) -> None:
    async with door.serving(ponging()):
        client = door.client(
            reconnect=Backoff(first=1000, longest=1000) if where != "repeating" else None,
            retry=Retry(times=1000 if where == "repeating" else 0),
            connect_timeout=None,
            on_state=states,
        )
        door.receive = {"connecting": door.ignore, "greeting": door.welcome, "connected": door.welcome}.get(
            where, door.refuse
        )
        greeted: list[int] = []

        @client.on_connect
        async def hello(peer: Any) -> None:
            greeted.append(1)
            if where == "greeting":
                await asyncio.Event().wait()

        async with client:
            calls = [client.submit.ping(timeout=None), client.submit.later()]
            if where == "connected":
                await states.reach("connected")
            elif where == "greeting":
                await until(lambda: greeted)
            elif where == "repeating":
                await states.reach("idle", 8)
            else:
                await until(lambda: client.state == where)
            began = fake_time.time()
        for call in calls:
            with pytest.raises((ConnectFailed, ConnectionLost, RuntimeError), match=r"closed|could not connect"):
                await call
        assert fake_time.time() - began <= (1 if where == "repeating" else 0)
        assert client.state == states.seen[-1] == "closed"
        attempts = len(door.attempts)
        with pytest.raises(RuntimeError, match="closed client"):
            await client.ping()
        await client.close()
        await asyncio.sleep(5000)
        assert len(door.attempts) == attempts
        assert where == "repeating" or attempts == 1
        assert states.seen.count("closed") == 1


@pytest.mark.fake_time
async def test_without_reconnect_the_next_call_connects(door: Door, states: States) -> None:
    async with door.serving(ponging()), door.client(on_state=states) as client:
        assert (client.state, door.attempts) == ("idle", [])
        assert await client.ping() == "pong"
        door.hang_up()
        await states.reach("idle")
        await asyncio.sleep(1000)
        assert len(door.attempts) == 1
        assert await client.ping() == "pong"
        assert door.attempts == [0, 1000]
        door.hang_up()
        await states.reach("idle", 2)
        door.receive = door.slam
        with pytest.raises(ConnectionLost, match=r"closed the connection at once.*'work'"):
            await client.work()
        door.receive = door.refuse
        with pytest.raises(ConnectFailed, match=r"could not connect.*'work'"):
            await client.work()
    assert states.seen[:7] == [*["connecting", "connected", "idle"] * 2, "connecting"]
    assert states.seen[-2:] == ["idle", "closed"]


@pytest.mark.fake_time
async def test_every_connection_of_a_pool_is_kept(door: Door, states: States) -> None:
    greeted: list[Any] = []
    async with door.serving(ponging()):
        client = door.client(reconnect=DOUBLING, pool=3, on_state=states)

        @client.on_connect
        async def hello(peer: Any) -> None:
            greeted.append(await peer.call("rpc.ping"))

        async with client:
            await until(lambda: len(greeted) == 3)
            door.hang_up()  # the last one; the others are there meanwhile
            assert await asyncio.gather(*(client.ping() for _ in range(10))) == ["pong"] * 10
            await asyncio.sleep(2)
            assert door.attempts == [0, 0, 0, 1]
            assert len(greeted) == 4
            for end in door.inside:
                end.abort("cut")
            await asyncio.sleep(10)
            assert len(greeted) == 7
            assert await client.ping() == "pong"
    assert states.seen == ["connecting", "connected", "waiting", "connecting", "connected", "closed"]


def of_client(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the client has logged; the server, which counts and logs logins that it refuses, is left out."""
    return [record for record in caplog.records if record.name == "rpcstream.client"]


@pytest.mark.fake_time
async def test_a_wrong_token_is_told_at_once_and_not_tried_again_and_again(
    door: Door, states: States, caplog: pytest.LogCaptureFixture, fake_time: FakeTimeLoop
) -> None:
    tokens = ["another"]
    server = ponging(authenticate=lambda credentials: credentials.token in tokens or None)
    caplog.set_level("WARNING", "rpcstream.client")
    async with door.serving(server), door.client(reconnect=DOUBLING, token="s3cret", on_state=states) as client:
        for _ in range(3):
            with pytest.raises(NotAuthenticated, match=r"-32005.*method 'ping' at _connect") as caught:
                await client.ping()
            assert caught.value.method == "ping"
            assert fake_time.time() == 0
        await asyncio.sleep(20)
        # At most as often as the longest pause allows, whoever calls; and told once.
        assert door.attempts == [0, 8, 16]
        assert [record.levelname for record in of_client(caplog)] == ["WARNING"]
        assert "no connection to _connect: [-32005]" in caplog.text
        assert "attempt is made in 8 s" in caplog.text
        assert "s3cret" not in caplog.text
        tokens.append("s3cret")
        await states.reach("connected")
        assert await client.ping() == "pong"
        # The next time it is news again.
        tokens.remove("s3cret")
        door.hang_up()
        await asyncio.sleep(30)
        assert len(of_client(caplog)) == 2
