"""Attacks by bytes: values without a delimiter, invalid JSON, HTTP bodies and trailers, escape sequences."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import select
import subprocess
import sys
from typing import Any

import orjson

from rpcstream import Server

from .harness import MIB, ROOT, Budget, RawConnection, ServerUnderAttack, attack, request

#: A colour and a title for the terminal, and the other direction of writing.
ESCAPES = "x\x1b[31m\x1b]0;title\x07\x9b2J\x7f\u202ey"

#: Seconds in which an answer comes that comes at all.
SOON = 10.0


def plain() -> Server:
    """A server that counts what it carries out."""
    server = Server()
    noted: list[int] = []

    @server
    def note(value: Any = None) -> int:
        noted.append(1)
        return len(noted)

    @server
    def count() -> int:
        return len(noted)

    return server


def garish() -> Server:
    """A server that says escape sequences wherever it can."""
    server = Server()
    kind = dataclasses.make_dataclass(ESCAPES, [("a", int, 1)])

    def shown(value=None):  # type: ignore[no-untyped-def]
        return ESCAPES

    shown.__annotations__ = {"value": kind}
    shown.__doc__ = ESCAPES
    server.add(shown, name="shown")
    return server


async def answer(raw: RawConnection) -> Any:
    return await asyncio.wait_for(raw.reply(), SOON)


async def post(raw: RawConnection, body: bytes, head: str = "", tail: bytes = b"") -> tuple[int, bytes]:
    """The status and the body of what is answered to a POST."""
    length = head or f"Content-Length: {len(body)}\r\n"
    lines = f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{length}\r\n"
    await raw.send(lines.encode() + body + tail)
    said = (await asyncio.wait_for(raw.reader.readuntil(b"\r\n\r\n"), SOON)).decode()
    found = re.search(r"content-length: (\d+)", said, re.IGNORECASE)
    size = int(found[1]) if found else 0
    return int(said.split()[1]), await asyncio.wait_for(raw.reader.readexactly(size), SOON)


@attack(20, "escape sequences in names and results reach the terminal", server=garish, budget=Budget(memory=32 * MIB))
async def escape_sequences(target: ServerUnderAttack) -> None:
    for argv in (["--describe", "shown"], ["--list"], ["shown"], ["shown", "--format", "raw"]):
        text = await asyncio.to_thread(_on_a_terminal, "--uri", target.address, *argv)
        found = re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", text)
        assert found is None, f"rpcstream {' '.join(argv)} wrote {found[0]!r} to the terminal"


def _on_a_terminal(*argv: str) -> str:
    import pty

    master, slave = pty.openpty()
    environ = {**os.environ, "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    command = [sys.executable, "-m", "rpcstream", *argv]
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdin=slave, stdout=slave, stderr=slave) as calling:
        os.close(slave)
        seen = bytearray()
        while select.select([master], [], [], SOON)[0]:
            try:
                seen += os.read(master, 65536)
            except OSError:  # the other end is closed
                break
        os.close(master)
        calling.kill()
    return seen.decode()


@attack(21, "a request hidden among the trailers of a body", server=plain, budget=Budget(memory=32 * MIB))
async def hidden_in_trailers(target: ServerUnderAttack) -> None:
    body = request("note", [1]).strip()
    for trailers in (b"GET / HTTP/1.1", b"Content-Length: 3", b"no field", b"X: \x1b[2J", b" folded: 1"):
        raw = await target.connect()
        tail = b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(body), body, trailers)
        status, _ = await post(raw, b"", "Transfer-Encoding: chunked\r\n", tail)
        assert status == 400, f"{trailers!r} was taken for a trailer"


@attack(21, "bodies in chunks of one byte", server=plain, budget=Budget(memory=64 * MIB, wait=0.15), in_suite=False)
async def tiny_chunks(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    count = 1_000_000 if target.whole else 400_000
    body = b"1;a\r\n \r\n" * count + b"2\r\n[]\r\n0\r\n\r\n"
    status, said = await post(raw, b"", "Transfer-Encoding: chunked\r\n", body)
    assert (status, orjson.loads(said)["error"]["code"]) == (200, -32600)


@attack(24, "values of different kinds without a delimiter", server=plain, budget=Budget(memory=32 * MIB))
async def mixed_values(target: ServerUnderAttack) -> None:
    one = request("note", [1], 1).strip()
    two = b"[" + request("note", [2], 2).strip() + b"]"
    for values in ((two, one), (one, two), (two, one, two), (one, two, one)):
        for between in (b"", b" \t "):
            raw = await target.connect()
            await raw.send(between.join(values))
            # What comes without a line end is held until it is known to be whole; then it is answered at once.
            replies = [await answer(raw) for _ in values]
            assert all(reply is not None for reply in replies)


@attack(
    24,
    "half a MiB of empty arrays without a delimiter",
    server=plain,
    budget=Budget(memory=256 * MIB),
    in_suite=False,
)
async def empty_values(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    count = 240_000 if target.whole else 100_000  # four for each, and `max_values` is a million
    raw.write(b"[]" * count)
    for _ in range(count):
        assert (await raw.reply())["error"]["code"] == -32600


@attack(24, "a MiB of brackets inside strings", server=plain, budget=Budget(memory=64 * MIB))
async def brackets_in_strings(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    for _ in range(20 if target.whole else 5):
        await raw.send(b'{"id":1,"a":"' + b"}{" * 500_000 + b'"} x\n')
        assert (await raw.reply())["error"]["code"] == -32700


@attack(29, "errors without an id, which fail all calls", server=plain, budget=Budget(memory=32 * MIB))
async def errors_without_id(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    for bad in (rb'"\ud800"', b"1e400", b"NaN", b"9" * 10_000):
        for form in (
            b'{"jsonrpc":"2.0","id":7,"method":"note","params":[%b]}',
            b'{"method":"note","params":[%b],"id":7}',
        ):
            await raw.send(form % bad + b"\n")
            reply = await answer(raw)
            assert (reply["id"], reply["error"]["code"]) == (7, -32700), reply
    assert (await raw.result("count")) == 0


@attack(29, "broken messages of a MiB, one behind the other", server=plain, budget=Budget(memory=192 * MIB))
async def broken_long_messages(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    times = 20 if target.whole else 4
    for filling in (b"[],", b'"",', b'"[",', b"{},", b"1,", b'{"a":[]},', b'"\\"",'):
        params = filling * ((MIB - 100) // len(filling))
        line = b'{"jsonrpc":"2.0","method":"note","params":[' + params + b'NaN],"id":7}\n'
        raw.write(line * times)
        for _ in range(times):
            reply = await raw.reply()
            # Those of more than `max_values` are not parsed at all.
            assert (reply["id"], reply["error"]["code"]) in ((7, -32700), (None, -32001))


@attack(30, "a second value behind the first in one body", server=plain, budget=Budget(memory=32 * MIB))
async def second_value(target: ServerUnderAttack) -> None:
    one = request("note", [1], 1).strip()
    for behind in (one, b"\n" + one, b" x", b"]", b"[" + one + b"]"):
        raw = await target.connect()
        status, said = await post(raw, one + behind)
        assert (status, orjson.loads(said)["error"]["code"]) == (200, -32700)
    raw = await target.connect()
    assert (await raw.result("count")) == 0, "something of a body that is not JSON was carried out"


def described() -> Server:
    """A method whose default JSON cannot say, and one that takes a set."""
    server = Server()

    @server
    def far(distance: float = float("inf")) -> bool:
        return distance > 1e300

    @server
    def distinct(values: set[int]) -> int:
        return len(values)

    return server


@attack(26, "what a schema says is tried at the server", server=described, budget=Budget(memory=16 * MIB))
async def schemas(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    methods = {each["name"]: each for each in (await raw.call("rpc.discover"))["result"]["methods"]}
    (distance,) = methods["far"]["params"]
    for name in ("default", "x-default"):
        value = distance["schema"].get(name, 1.0)
        assert isinstance(value, str) or "result" in await raw.call("far", [value]), f"{name}: {value!r} is refused"
    (values,) = methods["distinct"]["params"]
    taken = (await raw.call("distinct", [[1, 1]])).get("result")
    assert taken == 1
    assert not values["schema"].get("uniqueItems"), "it takes what its schema forbids"
