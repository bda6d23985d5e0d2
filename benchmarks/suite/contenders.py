"""The contenders: for each library its server and its load, as its own documentation recommends.

A driver takes a listening server and returns a function that measures it once. Knows no rounds and no table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from . import calls
from .calls import Call, Check
from .load import Load, read_output, run_load
from .load import Protocol as Spoken
from .process import PEERS, Running, Serving, last_line, run_script
from .results import Unit
from .templates import learn

#: Runs the load once: the seconds that count and those of warm-up before -> what the load generator says.
Measure = Callable[[float, float], Load]

OURS = frozenset(
    {
        "rpcstream_",
        "photo_",
        "embedding_",
        "streams_",
        "hub_",
        "over_nats",
        "publish_",
        "bare_echo",
        "bare_exchange",
        "bare_call",
        "bare_page",
        "echo",
    }
)
PATIENCE = 30.0  # seconds that a driver may take besides those it was told to


class Driver(Protocol):
    def __call__(self, server: Running) -> Measure:
        """Return the function that measures this server; check its replies first where the load does not."""
        ...


@dataclass(frozen=True)
class Shape:
    """The number of connections, and of calls that each keeps in flight."""

    connections: int = 1
    in_flight: int = 1


@dataclass(frozen=True, kw_only=True)
class FromC:
    """A driver: `native/load.c`, for the protocols that it speaks."""

    protocol: Spoken
    request: bytes
    shape: Shape
    #: What must come back; or what checks the decoded values of a few real replies, from which it is then learned.
    reply: bytes | Check
    path: str = "/"
    reconnect: bool = False

    def __call__(self, server: Running) -> Measure:
        reply = self._template(server.port)

        def measure(seconds: float, warmup: float) -> Load:
            return run_load(
                server.port,
                self.request,
                reply,
                protocol=self.protocol,
                connections=self.shape.connections,
                in_flight=self.shape.in_flight,
                seconds=seconds,
                warmup=warmup,
                path=self.path,
                reconnect=self.reconnect,
            )

        return measure

    def _template(self, port: int) -> bytes:
        if isinstance(self.reply, bytes):
            return self.reply
        return learn(self.protocol, port, self.request, self.reply, path=self.path)


@dataclass(frozen=True, kw_only=True)
class OwnClient:
    """A driver: the peer's own client in Python, `load` of its script or of another one."""

    topic: str = "sum"
    shape: Shape = Shape()
    options: tuple[str, ...] = ()
    script: str | None = None

    def __call__(self, server: Running) -> Measure:
        script = server.serving.directory / f"{self.script or server.serving.script}.py"
        where = ["--port", str(server.port)] if server.path is None else ["--path", server.path]
        command = [sys.executable, str(script), "load", *where, "--topic", self.topic]
        command += ["--connections", str(self.shape.connections), "--in-flight", str(self.shape.in_flight)]
        command += self.options

        def measure(seconds: float, warmup: float) -> Load:
            times = ["--warmup", str(warmup), "--seconds", str(seconds)]
            done = run_script(command + times, warmup + seconds + PATIENCE, server.serving.environment())
            return read_output(done.returncode, done.stdout, last_line(done.stderr))

        return measure


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One peer in a case: its server, its load, and its name in the table."""

    name: str
    server: Serving
    load: Driver
    #: In each message.
    calls: int = 1
    note: str = ""

    @property
    def peer(self) -> str:
        """The peer's name as `--only` takes it."""
        return peer_name(self.server.script)

    @property
    def ours(self) -> bool:
        return self.server.script in OURS

    def wanted(self, only: frozenset[str]) -> bool:
        """Whether `--only` includes it. rpcstream and the bare echoes are in every run, as the base of comparison."""
        return not only or self.ours or self.peer in only


@dataclass(frozen=True, kw_only=True)
class Case:
    """Contenders with the same task, measured in turn."""

    title: str
    contenders: tuple[Contender, ...]
    bases: tuple[str, ...] = ()
    unit: Unit = "calls/s"
    payload: int = 0
    #: New servers in each round, and the order reversed in each second one: for ratios near 1, since one process of a
    #: program is some percent faster than another one.
    restarts: bool = False


RPCSTREAM, UVLOOP_ECHO, C_ECHO = "rpcstream", "uvloop echo", "C echo"
ECHOES = (UVLOOP_ECHO, C_ECHO)

SERVE_RPCSTREAM = Serving("rpcstream_")
BY_CLIENT = "with its own client, in Python"


def peer_name(script: str) -> str:
    return script.rstrip("_").replace("_", "-")


def peers() -> list[str]:
    """List the names of all peer scripts, as `--only` takes them."""
    scripts = (path.stem for path in PEERS.glob("*.py"))
    return sorted(peer_name(stem) for stem in scripts if not stem.startswith("_") and stem not in OURS)


def on_lines(name: str, server: Serving, call: Call, shape: Shape) -> Contender:
    """Make a contender that is loaded with JSON-RPC on lines, and every reply checked."""
    return Contender(
        name=name,
        server=server,
        load=FromC(protocol="line", request=calls.line(call), reply=calls.fits_reply(call), shape=shape),
    )


def echoes(request: bytes, shape: Shape, calls_in_one: int = 1) -> tuple[Contender, ...]:
    """Make the contenders that echo the bytes of this request."""
    load = FromC(protocol="line", request=request, reply=request, shape=shape)
    return tuple(
        Contender(name=name, server=Serving(script), load=load, calls=calls_in_one)
        for name, script in ((UVLOOP_ECHO, "bare_echo"), (C_ECHO, "echo"))
    )
