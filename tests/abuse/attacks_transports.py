"""Attacks before the first message: TLS, handshakes, wrong tokens, exhausted descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import tempfile
import time
from pathlib import Path

import trustme

import rpcstream.events.topics
from rpcstream import TLS, Http, Server

from ..kit.http import post
from .harness import KIB, MIB, RawConnection, ServerUnderAttack, attack, limits, request

TOKEN = "correct-horse-battery-staple"

#: Descriptors of the servers that are to run out of them: some are in use before the first connection.
DESCRIPTORS = 80

#: Seconds in which a stranger must show who it is, of the servers here.
SECONDS = 1.0


def _certificate() -> TLS:
    """A certificate of an authority of its own, in the folder of the server's process."""
    folder = Path(tempfile.mkdtemp())
    issued = trustme.CA().issue_cert("127.0.0.1", "localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
    return TLS(certificate=folder / "server.pem")


def encrypted() -> Server:
    rpcstream.events.topics.MAX_EVENT_SIZE = 64 * MIB
    server = Server(tls=_certificate(), limits=limits())
    # Made once: what is measured is what the readers cost.
    text = "x" * (30 * MIB)

    @server
    async def tell(size: int) -> int:
        return server.publish("big", text[:size])

    return server


#: The event itself, with what was made of it on the way, and for each reader what its transport has in hand.
EVENT_MEMORY = 3 * 30 * MIB + 30 * 2 * MIB


@attack(
    12,
    "the same, plain asyncio",
    encrypted,
    memory=EVENT_MEMORY,
    uses_tls=True,
    slowest=0.1,
    loop="asyncio",
    in_suite=False,
    name="tls_event_asyncio",
)
@attack(
    12,
    "one event of 30 MiB over TLS to 30 subscribers that do not read",
    encrypted,
    memory=EVENT_MEMORY,
    uses_tls=True,
    slowest=0.1,
)
async def tls_event(target: ServerUnderAttack) -> None:
    readers, size = (30, 30 * MIB) if target.whole else (12, 20 * MIB)
    for _ in range(readers):
        raw = await target.connect(tls=True)
        assert (await raw.result("rpc.subscribe", ["big"]))["topic"] == "big"
        raw.pause_reading()
    publisher = await target.connect(tls=True)
    reply = await publisher.call("tell", [size])
    assert reply["result"] == readers, reply
    await asyncio.sleep(1.0)


def guarded() -> Server:
    return Server(token=TOKEN, limits=limits(auth_timeout=SECONDS))


async def end_of(raw: RawConnection) -> None:
    """Read until the server has closed the connection."""
    with contextlib.suppress(ConnectionError):
        while await raw.reader.read(64 * KIB):
            pass


def wrong_post(number: int) -> bytes:
    return post(request("rpc.ping"), f"Authorization: Bearer guess-{number}")


@attack(13, "an HTTP connection that guesses tokens without an end", guarded, memory=16 * MIB, token=TOKEN)
async def guesses(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    raw.write(b"".join(map(wrong_post, range(20_000 if target.whole else 2_000))))
    taken = 0
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while await asyncio.wait_for(raw.reader.readuntil(b"HTTP/1.1 401"), 10 * SECONDS):
            taken += 1
    assert 0 < taken <= 3, f"{taken} wrong tokens were looked at on one connection"


@attack(13, "connections that are answered 401 now and then, and stay", guarded, memory=16 * MIB, token=TOKEN)
async def lingering(target: ServerUnderAttack) -> None:
    count = 200 if target.whole else 50
    ends = await target.connect_many(count)
    begin = time.monotonic()
    for raw in ends:
        raw.write(wrong_post(0))

    await asyncio.wait_for(asyncio.gather(*map(end_of, ends)), 10 * SECONDS)
    assert time.monotonic() - begin < 5 * SECONDS


def proxied() -> Server:
    return Server(trusted_proxies=["127.0.0.1"], limits=limits(message_timeout=SECONDS))


@attack(13, "headers of the PROXY protocol that are malformed, or do not end", proxied, memory=16 * MIB)
async def proxy_headers(target: ServerUnderAttack) -> None:
    """Each of these connections is closed, in its time; what stands behind a malformed header is not looked at."""
    start = b"\r\n\r\n\0\r\nQUIT\n"
    hostile = [
        b"PROXY TCP4 " + b"1" * 64 * KIB,
        b"PROXY TCP4 nobody nowhere 1 2\r\n" + request("rpc.ping"),
        b"PROXY TCP4 203.0.113.7 10.0.0.2 ",
        start + b"\xff" * 64 * KIB,
        start + b"\x21\x11\xff\xff" + bytes(60 * KIB),
    ]
    ends = await target.connect_many(200 if target.whole else 50)
    for number, raw in enumerate(ends):
        raw.write(hostile[number % len(hostile)])
    await asyncio.wait_for(asyncio.gather(*map(end_of, ends)), 20 * SECONDS)


def guarded_tls() -> Server:
    return Server(
        token=TOKEN,
        tls=_certificate(),
        limits=limits(auth_timeout=SECONDS, max_connections=100),
    )


@attack(13, "half-made TLS handshakes in place of connections", guarded_tls, uses_tls=True, token=TOKEN)
async def half_handshakes(target: ServerUnderAttack) -> None:
    """They count as connections, end in their time, and a caller with the token gets in meanwhile."""
    # The other caller is known before they come, or it would be one of them.
    own = await target.connect(tls=True)
    await own.call("rpc.authenticate", [TOKEN])
    before, asked = 0, 0
    while asked - before < 5:
        before, asked = asked, (await own.call("rpc.stats"))["result"]["requests"]
        await asyncio.sleep(0.05)
    halves = []
    for _ in range(300):
        raw = await target.connect()
        raw.write(b"\x16\x03\x01\x02\x00\x01")
        halves.append(raw)
    known = await asyncio.wait_for(target.connect(tls=True), 10)
    assert (await known.result("rpc.authenticate", [TOKEN])) is True
    stats = await known.call("rpc.stats")
    assert stats["result"]["connections"] <= 100
    assert len(list(Path(f"/proc/{target.pid}/fd").iterdir())) < 200, "handshakes do not count as connections"
    await asyncio.wait_for(asyncio.gather(*map(end_of, halves)), 10 * SECONDS)
    assert (await known.result("rpc.ping")) == "pong"


def starved() -> Server:
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    return Server()


@attack(
    14,
    "more connections than descriptors, plain asyncio",
    starved,
    memory=16 * MIB,
    log=4 * KIB,
    loop="asyncio",
    in_suite=False,
    name="descriptors_asyncio",
)
@attack(14, "more connections than descriptors, uvloop", starved, memory=16 * MIB, log=4 * KIB, in_suite=False)
async def descriptors(target: ServerUnderAttack) -> None:
    """More connections than the server has descriptors for; afterwards it takes new ones again."""
    before = target.processor()
    begin = time.monotonic()
    ends = await target.connect_many(2 * DESCRIPTORS)
    await asyncio.sleep(5.0 if target.whole else 2.0)
    passed = time.monotonic() - begin
    spent = target.processor() - before
    late = ends.pop()
    for raw in ends:
        raw.close()
    for raw in (late, await target.connect()):
        reply = await raw.call("rpc.ping")
        assert reply is not None, "a newcomer was closed without a word"
        assert reply["result"] == "pong"
    # The other caller asks all the time, which may take half a core.
    assert spent < 0.7 * passed, f"{spent:.1f} s of processor time in {passed:.1f} s"


def at_a_path() -> Server:
    return Server(http=Http(path=["/", "/rpc"]))


@attack(28, "calls by HTTP at the paths that are given, and at others", at_a_path, memory=16 * MIB)
async def paths(target: ServerUnderAttack) -> None:
    for path, status in (("/", 200), ("/rpc", 200), ("/rpc?a=1", 200), ("/rpc/", 404), ("/other", 404)):
        answer = await (await target.connect()).ask_http(post(request("rpc.ping"), target=path))
        assert answer.status == status, (path, answer)
