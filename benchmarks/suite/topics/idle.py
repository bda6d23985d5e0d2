"""The memory of an idle connection at the server."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

from .. import calls
from ..calls import SUM
from ..contenders import RPCSTREAM, SERVE_RPCSTREAM, UVLOOP_ECHO
from ..load import WrongReply
from ..machine import allow_files, cores, memory, on_core
from ..measure import Problems, Settings, plan
from ..process import Failed, Running, Serving
from ..results import Entry, Table
from ..templates import fill, learn

TITLE = "memory of an idle connection"
MANY, FEW = 10_000, 500  # FEW in a short run
SPARE_FILES = 200
SETTLE = 0.3  # seconds for the server to come to rest

SERVERS = {RPCSTREAM: SERVE_RPCSTREAM, UVLOOP_ECHO: Serving("bare_echo")}


def idle(settings: Settings) -> list[Table]:
    """A new server for each round, since memory that was taken once is seldom given back."""
    wanted = settings.connections or (MANY if settings.seconds >= 0.5 else FEW)
    wanted = min(wanted, allow_files(wanted + SPARE_FILES) - SPARE_FILES)
    problems = Problems()
    each: dict[str, list[float]] = {name: [] for name in SERVERS}
    opened: dict[str, int] = {}
    peaks: dict[str, int | None] = {}
    versions: dict[str, dict[str, str]] = {}
    for number, name in plan(list(SERVERS), settings.rounds):
        settings.tell(f"{TITLE}: round {number + 1}, {name}")
        with problems.noted(name), Running(SERVERS[name]) as server:
            versions[name] = server.versions
            opened[name], growth = _growth(server, wanted, name == RPCSTREAM)
            each[name].append(growth / opened[name])
            peaks[name] = server.peak_memory()
    entries = [
        Entry(
            name=name,
            figures=() if name in problems.of else tuple(each[name]),
            problem=problems.of.get(name),
            peak_memory=peaks.get(name),
            versions=versions.get(name, {}),
            ours=True,
            note=f"{opened.get(name, 0):,} opened",
        )
        for name in SERVERS
    ]
    return [Table(title=TITLE, entries=tuple(entries), unit="bytes")]


def _growth(server: Running, wanted: int, answers: bool) -> tuple[int, int]:
    """How many connections were opened, and by how many bytes the server grew meanwhile.

    Each carries one call, so that what a connection only takes with its first message is counted; the first ones are
    not counted at all, since the server loads code for them.
    """
    request = calls.line(SUM)
    reply = learn("line", server.port, request, calls.fits_reply(SUM)) if answers else request
    with on_core(cores().load), contextlib.ExitStack() as opened:
        for number in range(10):
            opened.enter_context(_open(server.port, fill(request, number), fill(reply, number)))
        time.sleep(SETTLE)
        before = memory(server.pid)
        count = 0
        with contextlib.suppress(OSError):  # no more files or ports: what there is will do
            while count < wanted:
                opened.enter_context(_open(server.port, fill(request, count), fill(reply, count)))
                count += 1
        time.sleep(SETTLE)
        after = memory(server.pid)
    if before is None or after is None:
        raise Failed("this system does not tell what memory a process takes")
    if not count:
        raise Failed("no connection could be opened")
    return count, after - before


def _open(port: int, request: bytes, expected: bytes) -> socket.socket:
    """A connection that has carried one message. Closing it leaves no port waiting behind."""
    connection = socket.create_connection(("127.0.0.1", port), 10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.sendall(request)
    with connection.makefile("rb") as replies:
        reply = replies.readline()
    if reply != expected:
        raise WrongReply(f"asked {request!r}, got {reply!r}")
    return connection
