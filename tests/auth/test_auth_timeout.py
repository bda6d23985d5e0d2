"""`auth_timeout`: the time that a connection has to authenticate, over every protocol, and the number of attempts."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import orjson
import pytest
import trustme

from rpcstream import Limits, Server
from rpcstream.tls import TLS

from ..internals import open_connections
from ..kit.raw_connection import RawConnection, raw_connections
from .test_over_http import UPGRADE

PING = b'{"jsonrpc":"2.0","id":1,"method":"rpc.ping"}'


def post(token: str | None, *, target: str = "/") -> bytes:
    head = [
        f"POST {target} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(PING)}",
        *([f"Authorization: Bearer {token}"] if token is not None else []),
    ]
    return "\r\n".join([*head, "", ""]).encode() + PING


class HttpConnection(RawConnection):
    """A raw connection that speaks HTTP."""

    async def answer(self) -> tuple[int, dict[str, str], bytes] | None:
        """Status, headers and body of the next answer; None where the connection has ended."""
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        first, *lines = head.split("\r\n")[:-2]
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, body

    async def request(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send a request; give its answer."""
        self.writer.write(data)
        answer = await self.answer()
        assert answer is not None, "the connection ended without an answer"
        return answer


# -- attempts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["wrong", None])
@pytest.mark.parametrize("is_sync", [True, False])
async def test_the_third_401_is_the_last(token: str | None, is_sync: bool, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str | None] = []

    async def later(credentials: Any) -> Any:
        asked.append(credentials.token)
        return "me" if credentials.token == "right" else None

    def now(credentials: Any) -> Any:
        asked.append(credentials.token)
        return "me" if credentials.token == "right" else None

    server = Server(authenticate=now if is_sync else later, limits=Limits(auth_timeout=None))
    async with raw_connections(server, HttpConnection) as connect:
        raw = await connect()
        raw.writer.write(post(token) * 50)  # in one go: those behind the third are not looked at
        answers = [await raw.answer() for _ in range(4)]
        assert [each and each[0] for each in answers] == [401, 401, 401, None]
        assert [each and each[1].get("connection") for each in answers[:3]] == [None, None, "close"]
        assert await raw.is_over()
    assert len(asked) == 3
    assert "3 requests without an accepted token" in caplog.text
    assert server.counters.closed_for_limits == 1


async def test_right_ones_between_do_not_buy_more_attempts() -> None:
    async with raw_connections(Server(token="right"), HttpConnection) as connect:
        raw = await connect()
        statuses = [(await raw.request(post(token)))[0] for token in ("wrong", "right", "wrong", "right", "wrong")]
        assert statuses == [401, 200, 401, 200, 401]
        assert await raw.is_over()


async def test_pages_and_upgrades_count_too() -> None:
    server = Server(token="right")

    @server.get("/secret")
    def secret() -> str:
        return "secret"

    async with raw_connections(server, HttpConnection) as connect:
        raw = await connect()
        for _ in range(2):
            assert (await raw.request(b"GET /secret HTTP/1.1\r\nHost: localhost\r\n\r\n"))[0] == 401
        lines = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
        upgrade = f"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n{lines}\r\n".encode()
        assert (await raw.request(upgrade))[0] == 401
        assert await raw.is_over()


# -- time -----------------------------------------------------------------------------------------------------------


async def test_401_does_not_prolong_it(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(token="right", limits=Limits(auth_timeout=0.3))
    async with raw_connections(server, HttpConnection) as connect:
        known, raw, late = await connect(), await connect(), await connect()
        assert (await known.request(post("right")))[0] == 200
        assert (await raw.request(post("wrong")))[0] == 401
        late.writer.write(post("right")[:60])  # the head has not come when the time is over
        answer = await late.answer()
        assert answer is not None
        assert answer[0] == 408
        assert b"auth_timeout" in answer[2]
        assert await raw.is_over()
        assert await late.is_over()
        assert (await known.request(post("wrong")))[0] == 401
        assert (await known.request(post("right")))[0] == 200
    assert caplog.text.count("not authenticated after 0.3 s (auth_timeout)") == 2


async def test_pages_for_everybody_do_not_prolong_it() -> None:
    server = Server(token="right", limits=Limits(auth_timeout=0.2))
    going = asyncio.Event()

    @server.get("/slow", public=True)
    async def slow() -> str:
        await going.wait()
        return "done"

    async with raw_connections(server, HttpConnection) as connect:
        quick, waiting = await connect(), await connect()
        assert (await quick.request(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"))[0] == 200
        waiting.writer.write(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert await quick.is_over()
        while not all(getattr(each, "is_draining", False) for each in open_connections(server)):
            await asyncio.sleep(0.01)  # its time is over as well
        going.set()
        answer = await waiting.answer()  # what was begun is finished, and is the last
        assert answer is not None
        assert (answer[0], answer[1]["connection"], answer[2]) == (200, "close", b"done")
        assert await waiting.is_over()


async def test_a_function_that_takes_long_does_not_prolong_it() -> None:
    """Not even one that does not let itself be cancelled, and finds in the end that the peer is known."""
    going = asyncio.Event()
    asked = 0

    async def stubborn(credentials: Any) -> Any:
        nonlocal asked
        asked += 1
        while not going.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await going.wait()
        return "me"

    server = Server(authenticate=stubborn, limits=Limits(auth_timeout=0.2))
    async with raw_connections(server, HttpConnection) as connect:
        raw = await connect()
        answer = await raw.request(post("any"))
        assert answer is not None
        assert (answer[0], answer[1]["connection"]) == (401, "close")
        assert await raw.is_over()
        assert asked == 1
        going.set()


async def test_what_was_said_before_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a WebSocket counts from its connection, not from its handshake; that of a line from there, too."""
    loop = asyncio.get_running_loop()
    server = Server(token="right", limits=Limits(auth_timeout=1000.0))
    deadlines: list[float] = []
    real = loop.call_at

    def noted(when: float, *args: Any, **options: Any) -> Any:
        if 900 < when - loop.time() < 1001:
            deadlines.append(when)
        return real(when, *args, **options)

    monkeypatch.setattr(type(loop), "call_at", lambda self, when, *args, **options: noted(when, *args, **options))
    async with raw_connections(server, HttpConnection) as connect:
        line, web = await connect(), await connect()
        while len(deadlines) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        line.writer.write(PING + b"\n")
        assert b"pong" in await line.reader.readline()
        lines = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
        assert (await web.request(f"GET / HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode()))[0] == 101
        while len(deadlines) < 5:  # two doors, the line, HTTP, the WebSocket
            await asyncio.sleep(0.01)
    assert max(deadlines) - min(deadlines) < 0.2


async def test_the_handshake_of_tls_is_in_it(tmp_path: Any) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    server = Server(
        token="right",
        tls=TLS(certificate=tmp_path / "server.pem"),
        limits=Limits(auth_timeout=0.3, message_timeout=None),
    )
    async with raw_connections(server, HttpConnection) as connect:
        raw = await connect()
        raw.writer.write(b"\x16\x03\x01")
        assert await raw.is_over()


async def test_wrong_tokens_on_a_line() -> None:
    async with raw_connections(Server(token="right"), HttpConnection) as connect:
        raw = await connect()
        question = {"jsonrpc": "2.0", "id": 1, "method": "rpc.authenticate", "params": ["wrong"]}
        raw.writer.write((orjson.dumps(question) + b"\n") * 1000)
        data = await asyncio.wait_for(raw.reader.read(), 20)
        assert len(data.splitlines()) >= 3
        assert await raw.is_over()
