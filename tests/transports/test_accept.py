"""Accepting connections: exhausted descriptors, unfinished handshakes, and which connection makes room."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
from typing import Any

import pytest

from rpcstream import Limits, Server
from rpcstream.testing import FakeTimeLoop

from ..kit import RawPeer, raw_peers, until
from ..kit.certificates import client_side, server_tls
from .conftest import Serve, Served, in_steps


async def knows(peer: RawPeer) -> bool:
    """The peer shows the token, and is served."""
    return bool(await peer.result("rpc.authenticate", "secret"))


async def is_served(peer: RawPeer) -> bool:
    return bool(await peer.result("rpc.ping") == "pong")


async def is_refused(peer: RawPeer) -> bool:
    answer = await peer.receive()
    return answer is not None and answer["error"]["code"] == -32002


@pytest.mark.parametrize(
    ("number", "token", "pause", "gone"),
    [
        (errno.ECONNABORTED, None, 0, 0),
        (errno.EPROTO, None, 0, 0),
        (errno.EMFILE, None, 1.0, 0),
        (errno.ENOBUFS, None, 1.0, 0),
        (errno.EMFILE, "secret", 0.05, 16),
    ],
)
def test_errors_of_accepting(
    number: int, token: str | None, pause: float, gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one connection: the others are accepted. Of the system: newcomers wait, and the oldest strangers make room."""
    errors: list[OSError] = []
    accept = socket.socket.accept

    def accept_or_fail(self: socket.socket) -> Any:
        if errors:
            raise errors.pop()
        return accept(self)

    async def main(loop: FakeTimeLoop, served: Served) -> None:
        known, *strangers = [await served.line() for _ in range(1 + gone + gone // 8)]
        assert token is None or await knows(known)
        await until(lambda: served.server.stats()["connections"] == 1 + len(strangers))
        errors.append(OSError(number, "as asked"))
        newcomer = await served.line()
        newcomer.call("rpc.ping")
        await until(lambda: not errors)
        for seconds in (0, 0.9 * pause):
            loop.jump(seconds)
            assert await is_served(known)
            assert not (pause and newcomer.inbox)
        loop.jump(0.2 * pause)
        assert await newcomer.receive() is not None
        await until(lambda: [each.is_over for each in strangers] == [True] * gone + [False] * (gone // 8))
        assert served.server.stats()["accept_pauses"] == (pause > 0)

    monkeypatch.setattr(socket.socket, "accept", accept_or_fail)
    in_steps(main, token=token)


def test_half_a_handshake_takes_a_place_and_gives_way(runner: asyncio.Runner) -> None:
    server = Server(tls=server_tls(), limits=Limits(max_connections=3))

    async def main() -> None:
        async with raw_peers(server, tls=client_side()) as connect:
            first = await connect()
            assert await is_served(first)
            halves = [await connect(in_clear=True) for _ in range(4)]
            halves[0].write(b"\x16\x03\x01")
            await until(lambda: halves[0].is_over and halves[1].is_over)
            assert server.stats()["connections"] == 1
            newcomer = await connect()
            assert await is_served(newcomer)
            await until(lambda: halves[2].is_over)
            last = await connect()
            assert await is_served(last)
            assert await is_refused(await connect())
            assert await is_served(first)

    runner.run(main())


@pytest.mark.parametrize("limits", [{"message_timeout": 0.1}, {"auth_timeout": 0.1}])
def test_half_a_handshake_ends_in_its_time(runner: asyncio.Runner, limits: dict[str, Any]) -> None:
    server = Server(tls=server_tls(), token="secret", limits=Limits(**limits))

    async def main() -> None:
        async with raw_peers(server) as connect:
            silent, begun = await connect(in_clear=True), await connect(in_clear=True)
            begun.write(b"\x16\x03\x01\x02\x00\x01")
            await until(lambda: silent.is_over and begun.is_over)

    runner.run(main())


def test_a_server_that_stops_does_not_wait_for_handshakes(runner: asyncio.Runner) -> None:
    server = Server(tls=server_tls(), limits=Limits(auth_timeout=None, message_timeout=None))

    async def main() -> None:
        async with raw_peers(server, tls=client_side()) as connect:
            half, whole = await connect(in_clear=True), await connect()
            assert await is_served(whole)
        await until(lambda: half.is_over)

    runner.run(main())


def test_only_so_many_newcomers_are_told_that_all_places_are_taken(runner: asyncio.Runner) -> None:
    """A hundred at a time: for each the server has to wait until it has read that."""
    server = Server(limits=Limits(max_connections=1))

    async def main() -> None:
        async with raw_peers(server) as connect:
            first = await connect()
            assert await is_served(first)
            others = await asyncio.gather(*(connect() for _ in range(200)))
            await until(lambda: server.stats()["connections_refused"] == 200)
            await until(lambda: all(each.is_over for each in others))
            assert 100 <= sum(bool(each.inbox) for each in others) < 200
            assert await is_served(first)

    runner.run(main())


def test_strangers_do_not_take_the_places_of_others(runner: asyncio.Runner, caplog: pytest.LogCaptureFixture) -> None:
    """The oldest connection without authentication is closed for each new one; authenticated ones stay."""
    server = Server(token="secret", limits=Limits(max_connections=3))

    async def main() -> None:
        async with raw_peers(server) as connect:
            known = await connect()
            assert await knows(known)
            strangers = [await connect() for _ in range(6)]
            await until(lambda: all(each.is_over for each in strangers[:4]))
            for _ in range(2):
                assert await knows(await connect())
            assert await is_refused(await connect())
            assert await is_served(known)

    with caplog.at_level(logging.WARNING):
        runner.run(main())
    assert "it has not shown who it is" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="needs addresses of its own")
async def test_strangers_of_one_host_displace_their_own(serve: Serve) -> None:
    served = await serve(token="secret", max_connections=3)
    other, first, second = [await served.line(source=f"127.0.0.{number}") for number in (2, 1, 1)]
    await until(lambda: served.server.stats()["connections"] == 3)
    await served.line()
    await until(lambda: first.is_over)
    assert [other.is_over, second.is_over] == [False, False]
    for _ in range(3):  # from a host that has none there, the oldest one of all goes
        await served.line(source="127.0.0.3")
    await until(lambda: other.is_over)


async def test_an_address_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"cannot listen at 127\.0\.0\.1:{port}") as failed:
            async with Server().listening(port=port):
                pass
        assert failed.value.errno == errno.EADDRINUSE


async def test_a_name_that_is_none() -> None:
    with pytest.raises(OSError, match=r"cannot listen at no\.such\.name\.invalid"):
        async with Server().listening(host="no.such.name.invalid", port=0):
            pass
