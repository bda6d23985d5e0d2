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

from rpcstream import Server

from ..kit.http import post
from .attacks_hub import hub
from .harness import MIB, ROOT, RawConnection, ServerUnderAttack, attack, request

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


def in_chunks(chunks: bytes) -> bytes:
    return post(None, "Transfer-Encoding: chunked") + chunks


@attack(20, "escape sequences in names and results reach the terminal", garish, memory=32 * MIB)
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


@attack(21, "a request hidden among the trailers of a body", plain, memory=32 * MIB)
async def hidden_in_trailers(target: ServerUnderAttack) -> None:
    body = request("note", [1]).strip()
    for trailers in (b"GET / HTTP/1.1", b"Content-Length: 3", b"no field", b"X: \x1b[2J", b" folded: 1"):
        raw = await target.connect()
        answer = await raw.ask_http(in_chunks(b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(body), body, trailers)))
        assert answer.status == 400, f"{trailers!r} was taken for a trailer"


@attack(21, "bodies in chunks of one byte", plain, wait=0.15, in_suite=False)
async def tiny_chunks(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    count = 1_000_000 if target.whole else 400_000
    body = b"1\r\n \r\n" * count + b"2\r\n[]\r\n0\r\n\r\n"
    answer = await raw.ask_http(in_chunks(body))
    assert (answer.status, answer.json["error"]["code"]) == (200, -32600)


@attack(24, "values of different kinds without a delimiter", plain, memory=32 * MIB)
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


@attack(24, "half a MiB of empty arrays without a delimiter", plain, memory=256 * MIB, in_suite=False)
async def empty_values(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    count = 240_000 if target.whole else 100_000  # four for each, and `max_values` is a million
    raw.write(b"[]" * count)
    for _ in range(count):
        assert (await raw.reply())["error"]["code"] == -32600


@attack(24, "half a MiB of brackets inside strings", plain)
async def brackets_in_strings(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    for _ in range(20 if target.whole else 5):
        await raw.send(b'{"id":1,"a":"' + b"}{" * 250_000 + b'"} x\n')
        assert (await raw.reply())["error"]["code"] == -32700


@attack(29, "errors without an id, which fail all calls", plain, memory=32 * MIB)
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


@attack(29, "broken messages of a MiB, one behind the other", plain, memory=192 * MIB)
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


@attack(30, "a second value behind the first in one body", plain, memory=32 * MIB)
async def second_value(target: ServerUnderAttack) -> None:
    one = request("note", [1], 1).strip()
    for behind in (one, b"\n" + one, b" x", b"]", b"[" + one + b"]"):
        raw = await target.connect()
        answer = await raw.ask_http(post(one + behind))
        assert (answer.status, answer.json["error"]["code"]) == (200, -32700)
    raw = await target.connect()
    assert (await raw.result("count")) == 0, "something of a body that is not JSON was carried out"


def described() -> Server:
    """A method whose default JSON cannot say."""
    server = Server()

    @server
    def far(distance: float = float("inf")) -> bool:
        return distance > 1e300

    return server


@attack(26, "what a schema says is tried at the server", described, memory=16 * MIB)
async def schemas(target: ServerUnderAttack) -> None:
    raw = await target.connect()
    methods = {each["name"]: each for each in (await raw.call("rpc.discover"))["result"]["methods"]}
    (distance,) = methods["far"]["params"]
    for name in ("default", "x-default"):
        value = distance["schema"].get(name, 1.0)
        assert isinstance(value, str) or "result" in await raw.call("far", [value]), f"{name}: {value!r} is refused"


@attack(170, "a copied command with a parameter that is named as an option", hub, memory=16 * MIB)
async def named_as_an_option(target: ServerUnderAttack) -> None:
    reached = asyncio.Event()
    elsewhere = await asyncio.start_server(lambda reader, writer: reached.set(), "127.0.0.1", 0)
    async with elsewhere:
        option = f"--uri=http://127.0.0.1:{elsewhere.sockets[0].getsockname()[1]}/?"
        provider = await target.connect()
        shown = {"name": "shown", "params": [{"name": option, "schema": {"type": "string"}}]}
        assert "result" in await provider.call("rpc.register", {"name": "evil", "methods": [shown]})
        words = ["--uri", target.address, "--token", "secret", "--", "shown", f"{option}:str=x"]
        status, text = await asyncio.to_thread(_called, *words)
        assert (status, "never begins with '-'" in text) == (2, True), text
        assert not reached.is_set(), "the token was sent elsewhere"


def _called(*words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "rpcstream", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr
