"""Autobahn's fuzzing client against our WebSocket frames, and against the websockets library for comparison.

    python tests/interop/autobahn/run.py              # writes tests/interop/autobahn/RESULTS.md
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
from pathlib import Path
from typing import Any, cast
from unittest.mock import NonCallableMock

from websockets.asyncio.server import ServerConnection, serve

import rpcstream
from rpcstream.limits import DEFAULT_LIMITS
from rpcstream.peer.ledger import ServerLedger
from rpcstream.peer.pending import PendingCalls
from rpcstream.transports.websocket import WebSocketStream
from rpcstream.wire.envelope import Message
from rpcstream.wire.frames import BINARY, TEXT, FrameReader, frame
from rpcstream.wire.http_messages import Request
from rpcstream.wire.upgrade import accept_upgrade

SUITE = "autobahntestsuite==25.10.1"
#: The last that makes environments for Python 2.7.
VIRTUALENV = "virtualenv==20.15.1"

TABLE = Path(__file__).with_name("RESULTS.md")
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

    def _end(self, message: Any, messages: list[Message]) -> None:
        before = len(messages)
        super()._end(message, messages)
        if message.opcode == BINARY and len(messages) > before:
            messages[-1] = Binary(cast(bytes, messages[-1]))


class EchoSession(NonCallableMock):
    """Takes the place of a session, and sends each message back as it came."""

    def connected(self, stream: EchoStream) -> None:
        self.stream = stream

    def receive(self, messages: list[bytes]) -> None:
        self.stream.send_back(messages)


class EchoStream(WebSocketStream):
    def __init__(self) -> None:
        held = ServerLedger(DEFAULT_LIMITS.max_held_total)
        given = {"busy": False, "queue": (), "sends_binary": False, "server_ledger": held, "running": ()}
        session = EchoSession(
            **given, identity=None, limits=DEFAULT_LIMITS, shared=None, counters=None, pending=PendingCalls()
        )
        super().__init__(session, client=False)
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


def make_environment(folder: Path) -> Path:
    """The suite's command, in an environment that is made when it is not there yet."""
    command = folder / "python2" / "bin" / "wstest"
    if not command.exists():
        print(f"making an environment in {folder}", flush=True)
        found = sorted((Path.home() / ".pyenv" / "versions").glob("2.7*/bin/python"))
        python2 = found[-1] if found else shutil.which("python2.7")
        if python2 is None:
            raise SystemExit("CPython 2.7 was not found")
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder / "maker", with_pip=True)
        binaries = folder / "maker" / "bin"
        for words in (
            [binaries / "pip", "-q", "install", VIRTUALENV],
            [binaries / "virtualenv", "-q", "-p", python2, folder / "python2"],
            [folder / "python2" / "bin" / "pip", "-q", "install", SUITE],
        ):
            subprocess.run(words, check=True)
    return command


async def run_suite(command: Path, folder: Path, cases: list[str]) -> dict[str, dict[str, Any]]:
    """What each server did in each case: server -> case -> {"behavior": …, "behaviorClose": …}."""
    ours = await asyncio.get_running_loop().create_server(Handshake, "127.0.0.1", 0)
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


HEAD = """\
# WebSocket: Autobahn's test suite

The fuzzing client of {suite} against the frames of rpcstream {version}, and against the
websockets library {library}, both as servers that send back what they get. Written by
`tests/interop/autobahn/run.py`, which fails if rpcstream fails where the other one passes.

OK: as the suite wants it. Non-strict: not against the specification, but not as soon, or not in the order,
that the suite prefers. Informational: whatever a server does is right.

| Section | Cases | rpcstream | websockets |
| :-- | --: | :-- | :-- |
"""


def table(index: dict[str, dict[str, Any]]) -> str:
    library, suite = importlib.metadata.version("websockets"), SUITE.replace("==", " ")
    lines = [HEAD.format(suite=suite, version=rpcstream.__version__, library=library).rstrip("\n")]
    cases = sorted(index[OURS], key=lambda case: [int(part) for part in re.findall(r"\d+", case)])
    for section, name in [*SECTIONS.items(), ("All", "")]:
        members = [case for case in cases if section in (case.split(".")[0], "All")]
        counts = [Counter(_outcome(index[agent][case]) for case in members) for agent in (OURS, THEIRS)]
        ours, theirs = (", ".join(f"{count} {word}" for word, count in each.most_common()) for each in counts)
        if members:
            lines.append(f"| {f'{section} {name}'.strip()} | {len(members)} | {ours} | {theirs} |")
    outcomes = {case: [_outcome(index[agent][case]) for agent in (OURS, THEIRS)] for case in cases}
    others = [
        f"| {case} | {ours} | {theirs} |" for case, (ours, theirs) in outcomes.items() if {ours, theirs} != {"OK"}
    ]
    if others:
        lines += [
            "",
            "The cases that are not OK with both:",
            "",
            f"| Case | {OURS} | {THEIRS} |",
            "| :-- | :-- | :-- |",
        ]
    return "\n".join([*lines, *others, ""])


def _outcome(outcome: dict[str, Any]) -> str:
    """In one word; how the connection was closed counts where the rest was well."""
    behavior, close = outcome["behavior"], outcome["behaviorClose"]
    word = close if behavior == "OK" else behavior
    return "OK" if word == "OK" else str(word).lower().replace("_", " ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="*", help="sections or cases; all that the table has by default")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the suite's environment and reports")
    given = parser.parse_args()
    cases = [f"{case}.*" if case.count(".") < 2 else case for case in given.cases or SECTIONS]
    logging.getLogger("websockets").setLevel(logging.CRITICAL)  # each case that is wrong on purpose
    command = make_environment(given.folder.absolute())
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
