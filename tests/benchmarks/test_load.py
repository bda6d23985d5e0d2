"""The load generator in C: it counts right replies, and notices wrong, late and missing ones."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .load_generator import (
    NEEDS_COMPILER,
    REPLY,
    REQUEST,
    LoadFailed,
    WrongReply,
    lines,
    load,
    right_reply,
    run,
    serving,
)

pytestmark = [pytest.mark.slow, *NEEDS_COMPILER]


@pytest.mark.parametrize(("connections", "in_flight"), [(1, 1), (3, 1), (2, 16), (300, 1)])
async def test_right_replies_are_counted(connections: int, in_flight: int) -> None:
    numbers: list[int] = []
    opened = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        while line := await reader.readline():
            numbers.append(json.loads(line)["id"])
            writer.write(right_reply(line))

    async with serving(handle) as port:
        done = await run(port, connections=connections, in_flight=in_flight)
    assert opened == connections
    assert 0 < done.calls <= len(numbers)
    assert len(set(numbers)) == len(numbers)  # none is used twice, on whichever connection
    assert min(numbers) == 1_000_000
    assert max(numbers) <= 8_999_999
    assert done.seconds >= 0.1
    assert done.rate == pytest.approx(done.calls / done.seconds, rel=0.01)
    assert done.wrong == 0
    assert 0 < done.cpu <= 1.1
    latency = done.latency_us
    assert 0 < latency.p50 <= latency.p90 <= latency.p99 <= latency.p999 <= latency.max


async def test_replies_a_byte_at_a_time() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            for byte in right_reply(line):
                writer.write(bytes([byte]))
                await asyncio.sleep(0)

    async with serving(handle) as port:
        done = await run(port, connections=2, in_flight=3)
    assert done.calls > 0


async def test_messages_larger_than_all_buffers() -> None:
    message = b"@@@@@@@" + b"x" * 3_000_000 + b"@@@@@@@\n"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()

    async with serving(handle) as port:
        done = await run(port, message, message, in_flight=2)
    assert done.calls > 0


def is_nth(line: bytes, n: int = 500) -> bool:
    return bool(json.loads(line)["id"] == 1_000_000 + n)


@pytest.mark.parametrize(
    "broken",
    [
        lambda line: right_reply(line).replace(b"sum", b"SUM"),
        lambda line: right_reply(line).replace(b"}", b" }"),
        lambda line: right_reply(line)[:-2] + b"\n",
        lambda line: b"\n",
        lambda line: b"x" * 100_000,
        lambda line: right_reply(line) * 2,
        lambda line: right_reply(line.replace(b":1000", b":1001")),
        lambda line: right_reply(line).replace(b'{"id":1000', b'{"id":1001'),
    ],
    ids=["value", "longer", "shorter", "empty", "endless", "twice", "another call", "another id"],
)
async def test_a_wrong_reply_is_noticed(broken: Callable[[bytes], bytes]) -> None:
    async with serving(lines(lambda line: (broken if is_nth(line) else right_reply)(line))) as port:
        with pytest.raises(WrongReply, match=r"expected \(\d+ bytes\): |nobody asked for"):
            await run(port, seconds=20)


async def test_swapped_results_are_noticed() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            first, second = [json.loads(await reader.readline()) for _ in range(2)]
            first["a"], second["a"] = second["a"], first["a"]
            writer.write(right_reply(json.dumps(first).encode()) + right_reply(json.dumps(second).encode()))

    async with serving(handle) as port:
        with pytest.raises(WrongReply, match="expected"):
            await run(port, in_flight=2)


async def test_a_reply_on_the_wrong_connection_is_noticed() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while line := await reader.readline():
            writers[-1].write(right_reply(line))

    async with serving(handle) as port:
        with pytest.raises(WrongReply, match=r"expected|nobody"):
            await run(port, connections=3)


async def test_a_lost_connection_is_an_error() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(20):
            writer.write(right_reply(await reader.readline()))

    async with serving(handle) as port:
        with pytest.raises(LoadFailed, match="connection lost") as caught:
            await run(port, connections=2, seconds=20)
    assert not isinstance(caught.value, WrongReply)


async def test_a_reply_that_never_comes_is_noticed_although_others_come() -> None:
    async with serving(lines(lambda line: b"" if is_nth(line, 3) else right_reply(line))) as port:
        with pytest.raises(LoadFailed, match="though 1 calls wait"):
            await run(port, in_flight=4, patience=0.3)


# -- the program itself -----------------------------------------------------------------------------------------------


def program(port: int, folder: Path, *options: str, reply: bytes = REPLY) -> subprocess.CompletedProcess[str]:
    """The program itself, for its exit status."""
    (folder / "request").write_bytes(REQUEST)
    (folder / "reply").write_bytes(reply)
    files = [f"--request={folder / 'request'}", f"--reply={folder / 'reply'}"]
    load.build()
    command = [str(load.LOAD), f"--port={port}", "--seconds=0.1", "--warmup=0", *files, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


@contextmanager
def free_port() -> Iterator[int]:
    """At an address where no server listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def test_exit_statuses(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def status(port: int, *options: str, reply: bytes = REPLY) -> int:
        done = await asyncio.to_thread(program, port, tmp_path, *options, reply=reply)
        if done.returncode != 2:
            output = json.loads(done.stdout)
            assert output["wrong"] == (done.returncode == 3)
            assert bool(output.get("error")) == (done.returncode != 0)
        return done.returncode

    async with serving(lines()) as port:
        assert await status(port) == 0
        assert await status(port, reply=b"no\n") == 3
        assert await status(port, "--connections=none") == 2
        assert await status(port, "--protocol=carrier-pigeon") == 2
        assert await status(port, "--reconnect", "--in-flight=2") == 2
        assert await status(port, "--request=/nowhere") == 2
    async with serving(silent) as port:
        assert await status(port, "--patience=0.3") == 5
    with free_port() as port:
        assert await status(port) == 4


# -- the bare echo ----------------------------------------------------------------------------------------------------


@contextmanager
def echo() -> Iterator[int]:
    load.build()
    with subprocess.Popen([load.ECHO], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["port"]
        process.terminate()
    assert process.returncode == 0


@pytest.mark.parametrize(("connections", "in_flight"), [(1, 1), (1000, 1), (16, 16)])
async def test_echo(connections: int, in_flight: int) -> None:
    with echo() as port:
        done = await run(port, REQUEST, REQUEST, connections=connections, in_flight=in_flight)
    assert done.calls > 0
