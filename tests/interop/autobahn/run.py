"""Autobahn's fuzzing client against our WebSocket frames, and against the websockets library for comparison.

    python tests/interop/autobahn/run.py              # writes docs/reference/autobahn.md
    python tests/interop/autobahn/run.py --cases 6.4  # a part of it, printed only

The suite (PyPI `autobahntestsuite`) runs under CPython 2.7 alone, so it gets an environment of its own, which is kept.
Both servers send back what they get. Exit code 1 if ours fails where the other one passes.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import logging
import re
import shutil
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from websockets.asyncio.server import ServerConnection, serve

import rpcstream
from rpcstream.limits import DEFAULT_LIMITS
from rpcstream.peer.inflight import RunningCalls
from rpcstream.peer.memory import MessageMemory
from rpcstream.peer.pending import PendingCalls
from rpcstream.peer.session import Session
from rpcstream.transports.websocket import WebSocketStream
from rpcstream.wire.frames import BINARY, TEXT, FrameReader, frame
from rpcstream.wire.http_messages import Request
from rpcstream.wire.messages import Message
from rpcstream.wire.upgrade import accept_upgrade

SUITE = "autobahntestsuite==25.10.1"
#: The last that makes environments for Python 2.7.
VIRTUALENV = "virtualenv==20.15.1"

TABLE = Path(__file__).parents[3] / "docs" / "reference" / "autobahn.md"
FOLDER = Path.home() / ".cache" / "rpcstream-autobahn"

OURS, THEIRS = "rpcstream", "websockets"

#: The sections that are run, by what the suite calls them. 9 is about speed; 12 and 13 are about compression.
SECTIONS = {
    "1": "Framing",
    "2": "Pings and pongs",
    "3": "Reserved bits",
    "4": "Opcodes",
    "5": "Fragmentation",
    "6": "UTF-8 handling",
    "7": "Close handling",
    "10": "Misc",
}

#: What is not failed. NON-STRICT: right, though not as the suite prefers it; INFORMATIONAL: there is no right or wrong.
PASSED = {"OK", "NON-STRICT", "INFORMATIONAL"}


# -- a server of ours that sends everything back --------------------------------------------------------------------


class Binary(bytes):
    """A message that came as binary."""


class EchoReader(FrameReader):
    """Marks the messages that came as binary, which JSON makes no difference for."""

    __slots__ = ()

    def _take(self, first: int, payload: bytes, messages: list[Message]) -> None:
        opcode = first & 0x0F or self._opcode  # of a last fragment: that of the first one
        before = len(messages)
        super()._take(first, payload, messages)
        if opcode == BINARY and len(messages) > before:
            messages[-1] = Binary(cast(bytes, messages[-1]))


class EchoSession:
    """Takes the place of a session, and sends each message back as it came."""

    busy = False
    queue = ()
    identity = shared = counters = None
    sends_binary = False

    def __init__(self) -> None:
        self.memory = MessageMemory(DEFAULT_LIMITS.max_held_total, DEFAULT_LIMITS.max_unread_total)
        self.pending = PendingCalls()
        self.running = RunningCalls(self.memory)
        self._stream: EchoStream | None = None

    def connected(self, stream: EchoStream) -> None:
        self._stream = stream

    def receive(self, messages: list[bytes]) -> None:
        if self._stream is not None:
            self._stream.send_back(messages)

    def blocked(self, blocked: bool) -> None:
        pass

    def end(self, make_error: Any) -> None:
        pass

    def drain(self) -> None:
        pass

    def lost(self, make_error: Any) -> None:
        self._stream = None


class EchoStream(WebSocketStream):
    def __init__(self) -> None:
        super().__init__(cast(Session, EchoSession()), limits=DEFAULT_LIMITS, client=False)
        self._reader = EchoReader(masked=True, max_size=DEFAULT_LIMITS.max_message_size)

    def send_back(self, messages: list[bytes]) -> None:
        for message in messages:
            self._write(frame(BINARY if isinstance(message, Binary) else TEXT, message, masked=False))


class Handshake(asyncio.Protocol):
    """Reads the head of one request, answers it, and makes a WebSocket of the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._head = b""

    def data_received(self, data: bytes) -> None:
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        fields = (line.partition(":") for line in lines)
        response = accept_upgrade(Request(method, target, {name.lower(): value.strip() for name, _, value in fields}))
        self._transport.write(response.head(len(response.body), keep_alive=False) + bytes(response.body))
        if response.status != 101:
            self._transport.close()
            return
        stream = EchoStream()
        self._transport.set_protocol(stream)
        stream.connection_made(self._transport)
        if rest:
            stream.data_received(rest)


async def send_back(connection: ServerConnection) -> None:
    """The same with the websockets library."""
    async for message in connection:
        await connection.send(message)


# -- the suite ------------------------------------------------------------------------------------------------------


def find_python2() -> Path:
    found = sorted((Path.home() / ".pyenv" / "versions").glob("2.7*/bin/python"))
    path = str(found[-1]) if found else shutil.which("python2.7") or shutil.which("python2")
    if path is None:
        raise SystemExit("CPython 2.7 was not found; name it with --python2")
    return Path(path)


def make_environment(folder: Path, python2: Path | None) -> Path:
    """The suite's command, in an environment that is made when it is not there yet."""
    command = folder / "python2" / "bin" / "wstest"
    if not command.exists():
        print(f"making an environment in {folder}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder / "maker", with_pip=True)
        binaries = folder / "maker" / "bin"
        subprocess.run([binaries / "pip", "-q", "install", VIRTUALENV], check=True)
        made: list[str | Path] = [binaries / "virtualenv", "-q", "-p", python2 or find_python2(), folder / "python2"]
        subprocess.run(made, check=True)
        subprocess.run([folder / "python2" / "bin" / "pip", "-q", "install", SUITE], check=True)
    return command


async def run_suite(command: Path, folder: Path, cases: list[str]) -> dict[str, dict[str, Any]]:
    """What each server did in each case: server -> case -> {"behavior": …, "behaviorClose": …}."""
    loop = asyncio.get_running_loop()
    ours = await loop.create_server(Handshake, "127.0.0.1", 0)
    theirs = await serve(send_back, "127.0.0.1", 0, compression=None, max_size=None, ping_interval=None)
    reports = folder / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    servers = [
        {"agent": agent, "url": f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
        for agent, server in ((OURS, ours), (THEIRS, theirs))
    ]
    specification = folder / "fuzzingclient.json"
    specification.write_text(json.dumps({"outdir": str(reports), "servers": servers, "cases": cases}))
    try:
        process = await asyncio.create_subprocess_exec(command, "-m", "fuzzingclient", "-s", specification, cwd=folder)
        if await process.wait():
            raise SystemExit(f"{command} ended with {process.returncode}")
    finally:
        ours.close()
        theirs.close()
    return cast(dict[str, dict[str, Any]], json.loads((reports / "index.json").read_text()))


def is_passed(outcome: dict[str, Any]) -> bool:
    return outcome["behavior"] in PASSED and outcome["behaviorClose"] in PASSED


def failures(index: dict[str, dict[str, Any]]) -> list[str]:
    """The cases that ours fails though the other one passes."""
    theirs = index[THEIRS]
    return [case for case, outcome in index[OURS].items() if is_passed(theirs[case]) and not is_passed(outcome)]


# -- the table ------------------------------------------------------------------------------------------------------


def table(index: dict[str, dict[str, Any]]) -> str:
    return "\n".join(_lines(index)) + "\n"


def _lines(index: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield "# WebSocket: Autobahn's test suite"
    yield ""
    suite, library = SUITE.replace("==", " "), f"websockets library {importlib.metadata.version('websockets')}"
    yield f"The fuzzing client of {suite} against the frames of rpcstream {rpcstream.__version__}, and against the"
    yield f"{library}, both as servers that send back what they get. Written by"
    yield "`tests/interop/autobahn/run.py`, which fails if rpcstream fails where the other one passes."
    yield ""
    yield "OK: as the suite wants it. Non-strict: not against the specification, but not as soon, or not in the order,"
    yield "that the suite prefers. Informational: whatever a server does is right."
    yield ""
    yield f"| Section | Cases | {OURS} | {THEIRS} |"
    yield "| :-- | --: | :-- | :-- |"
    cases = sorted(index[OURS], key=_number)
    for section, name in SECTIONS.items():
        members = [case for case in cases if case.split(".")[0] == section]
        if members:
            counts = [_count(index[agent], members) for agent in (OURS, THEIRS)]
            yield f"| {section} {name} | {len(members)} | {counts[0]} | {counts[1]} |"
    yield f"| All | {len(cases)} | {_count(index[OURS], cases)} | {_count(index[THEIRS], cases)} |"
    others = [case for case in cases if {_outcome(index[agent][case]) for agent in index} != {"OK"}]
    if others:
        yield ""
        yield "The cases that are not OK with both:"
        yield ""
        yield f"| Case | {OURS} | {THEIRS} |"
        yield "| :-- | :-- | :-- |"
        for case in others:
            yield f"| {case} | {_outcome(index[OURS][case])} | {_outcome(index[THEIRS][case])} |"


def _number(case: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", case)]


def _outcome(outcome: dict[str, Any]) -> str:
    """In one word; how the connection was closed counts where the rest was well."""
    behavior, close = outcome["behavior"], outcome["behaviorClose"]
    word = close if behavior == "OK" else behavior
    return "OK" if word == "OK" else str(word).lower().replace("_", " ")


def _count(outcomes: dict[str, Any], cases: list[str]) -> str:
    counts = Counter(_outcome(outcomes[case]) for case in cases)
    return ", ".join(f"{count} {word}" for word, count in counts.most_common())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", help="sections or cases; all that the table has by default")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the suite's environment and reports")
    parser.add_argument("--python2", type=Path, help="CPython 2.7")
    given = parser.parse_args()
    cases = [f"{case}.*" if case.count(".") < 2 else case for case in given.cases or SECTIONS]
    logging.getLogger("websockets").setLevel(logging.CRITICAL)  # each case that is wrong on purpose
    command = make_environment(given.folder.absolute(), given.python2)
    index = asyncio.run(run_suite(command, given.folder.absolute(), cases))
    if given.cases:
        print(table(index))
    else:
        TABLE.write_text(table(index), encoding="utf-8")
        print(f"written: {TABLE}")
    failed = failures(index)
    for case in failed:
        print(f"case {case}: {_outcome(index[OURS][case])}, but {_outcome(index[THEIRS][case])} with {THEIRS}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
