"""Runs attacks on a server in a process of its own, and measures their cost: another caller's latency, memory, log.

An attack is an async function that gets a `ServerUnderAttack` and does its worst with raw connections; `@attack` enters
it in the table with what it may cost. `run` starts a fresh server for it, lets another caller (a further process,
`ping.py`) ask `rpc.ping` without a pause from before the attack until after it, and reports. Waits are judged in
processor time of the server's event loop, since what the machine does besides does not count; so handlers that are to
keep the loop busy use `spin`: sleeping takes no processor time.

    @attack(5, "a batch of slow calls", slow, memory=32 * MIB, slowest=0.005)
    async def batch(target: ServerUnderAttack) -> None:
        raw = await target.connect()
        await raw.call(...)

Linux only: it reads `/proc`.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import importlib
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, cast

import orjson

from rpcstream import Limits

from ..kit.http import Answer, RawHttpConnection

KIB = 1024
MIB = 1024 * KIB

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

#: Seconds: what another caller may wait under any attack, besides the slowest sync handler of the server.
WAIT = 0.25

#: By how much the test suite multiplies that, since its tests share two cores and their memory: the same work has taken
#: twice the processor time there. An attack that holds the loop takes many times as long; the bound itself is judged by
#: `python -m tests.abuse` on a quiet machine.
WAIT_IN_SUITE = 3

#: Seconds after which a server that does not answer counts as frozen.
PATIENCE = 60.0

#: Does the worst.
Act = Callable[["ServerUnderAttack"], Awaitable[None]]

#: How often an attack is made that costs nothing too much but the wait.
ATTEMPTS = 3


@dataclass(frozen=True)
class Attack:
    """One row of the table.

    Attributes:
        name: that of `act`, where none is given.
        number: that of the fault it shows, several attacks may share it.
        server: a function of a module in this folder that gives the server, or the hub, to be attacked.
        memory: bytes that the server may take over its quiet state.
        log: bytes that it may log.
        wait: processor seconds of the event loop that another caller may wait for, without `slowest`.
        slowest: seconds of processor time that the slowest sync handler of the server takes.
        loop: "auto" (uvloop where it is installed) or "asyncio".
        token: the other caller authenticates with it.
        uses_tls: the server has a certificate.
        in_suite: its short form is run with the other tests; variants, and what tests of the packages show as well, are
            left to `python -m tests.abuse`.
    """

    number: int
    title: str
    server: Callable[[], Any]
    act: Act
    _: KW_ONLY
    memory: int = 64 * MIB
    log: int = 64 * KIB
    wait: float = WAIT
    slowest: float = 0.0
    loop: str = "auto"
    token: str | None = None
    uses_tls: bool = False
    in_suite: bool = True
    name: str = ""


@dataclass(kw_only=True)
class Report:
    """What an attack cost.

    Attributes:
        whole: the attack was made whole, not in its short form for the test suite.
        quiet: median wait (s) of the other caller before the attack, by the clock.
        longest: its longest wait (s) during the attack, by the clock.
        held: the same in processor time of the server's event loop.
        pings: how many of its calls were answered during the attack.
        memory: bytes over the quiet server, at the peak.
        log: bytes.
        seconds: how long the attack took.
        failure: what went wrong otherwise; empty when nothing did.
    """

    attack: Attack
    whole: bool
    quiet: float = 0.0
    longest: float = 0.0
    held: float = 0.0
    pings: int = 0
    memory: int = 0
    log: int = 0
    seconds: float = 0.0
    failure: str = ""

    @property
    def allowed(self) -> float:
        """Processor seconds of the event loop that another caller may wait for."""
        wait = self.attack.wait
        return (wait if self.whole else wait * WAIT_IN_SUITE) + self.attack.slowest

    @property
    def is_slow(self) -> bool:
        """Another caller waited for longer than it may."""
        return self.held > self.allowed

    @property
    def problems(self) -> list[str]:
        """What is over the budget, in words."""
        of, found = self.attack, []
        if self.failure:
            found.append(self.failure)
        if self.is_slow:
            allowed = self.allowed
            found.append(f"another caller waited for {self.held:.2f} s of the event loop, {allowed:.2f} s are allowed")
        if self.memory > of.memory:
            found.append(f"memory rose by {self.memory / MIB:.0f} MiB, {of.memory / MIB:.0f} MiB are allowed")
        if self.log > of.log:
            found.append(f"{self.log} bytes were logged, {of.log} are allowed")
        return found


#: All attacks, in the order of their entry.
ATTACKS: list[Attack] = []


def attack(number: int, title: str, server: Callable[[], Any], **budget: Any) -> Callable[[Act], Act]:
    """Decorator: enter an attack in the table, with fields of `Attack`."""

    def enter(act: Act) -> Act:
        ATTACKS.append(Attack(number, title, server, act, **{"name": act.__name__, **budget}))
        return act

    return enter


def attacks_of(module: str) -> list[Attack]:
    """Those that were entered by a module that is loaded."""
    return [each for each in ATTACKS if each.act.__module__ == module]


def all_attacks() -> list[Attack]:
    """The table, by number; loads every `attacks_….py` of this folder."""
    for path in sorted(HERE.glob("attacks_*.py")):
        importlib.import_module(f"{__package__}.{path.stem}")
    return sorted(ATTACKS, key=lambda each: each.number)


class RawConnection:
    """A connection of the attacker: sends bytes, receives lines."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def write(self, data: bytes) -> None:
        """Send without waiting."""
        self.writer.write(data)

    async def send(self, data: bytes) -> None:
        """Send, and wait until the system has taken most of it."""
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self) -> Any:
        """The next line, parsed; None at the end of the connection."""
        line = await asyncio.wait_for(self.reader.readline(), PATIENCE)
        return json.loads(line) if line else None

    async def replies(self, count: int) -> list[Any]:
        """The next lines, parsed."""
        return [await self.reply() for _ in range(count)]

    async def call(self, method: str, params: Any = None, call_id: Any = 1, **members: Any) -> Any:
        """Send a request; returns the next line as its reply."""
        await self.send(request(method, params, call_id, **members))
        return await self.reply()

    async def result(self, method: str, params: Any = None) -> Any:
        """Send a request, whose reply must come next and have a result."""
        reply = await self.call(method, params)
        if "result" not in reply:
            raise RuntimeError(f"{method} was answered with {str(reply)[:300]}")
        return reply["result"]

    async def ask_http(self, data: bytes) -> Answer:
        """Send a request of HTTP; returns its response."""
        return await RawHttpConnection(self.reader, self.writer).ask(data)

    def pause_reading(self) -> None:
        """Leave what the server sends unread."""
        cast(asyncio.Transport, self.writer.transport).pause_reading()

    def close(self) -> None:
        self.writer.transport.abort()


class ServerUnderAttack:
    """The server under attack: its address and process, and connections to it.

    Attributes:
        address: "127.0.0.1:PORT".
        pid: of the server.
        whole: run the whole attack, not its short form for the test suite.
    """

    def __init__(self, address: str, pid: int, *, whole: bool, stack: AsyncExitStack) -> None:
        self.address = address
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        self.pid = pid
        self.whole = whole
        self._stack = stack

    async def connect(self, *, tls: bool = False) -> RawConnection:
        """One more connection, closed after the attack. With TLS, any certificate is taken."""
        reader, writer = await asyncio.open_connection(
            self.host, self.port, limit=256 * MIB, ssl=insecure_tls() if tls else None
        )
        raw = RawConnection(reader, writer)
        self._stack.callback(raw.close)
        return raw

    async def connect_many(self, count: int) -> list[RawConnection]:
        """This many connections, closed after the attack."""
        return [await self.connect() for _ in range(count)]

    def processor(self) -> float:
        """Seconds of processor time that the server has had."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def request(method: str, params: Any = None, call_id: Any = 1, **members: Any) -> bytes:
    """A line with a request; a notification where the id is None."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if call_id is not None:
        message["id"] = call_id
    if params is not None:
        message["params"] = params
    return orjson.dumps({**message, **members}) + b"\n"


def limits(**wanted: Any) -> Limits:
    """Limits with these fields; those that this version does not know are left out, so that older code can be shown
    to fail."""
    known = {each.name for each in fields(Limits)}
    return Limits(**{name: value for name, value in wanted.items() if name in known})


def insecure_tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def spin(seconds: float) -> None:
    """Keep this thread busy for so many seconds of its processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class ServerStarter:
    """Starts servers, one at a time, each in a process of its own that has everything imported already (`serve.py`)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.serve"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @contextmanager
    def run(self, made_by: Callable[[], Any], loop: str, folder: Path) -> Iterator[_Server]:
        """Run the server that this function gives while the block runs; its log goes into the folder."""
        log = folder / "server.log"
        name = f"{made_by.__module__}:{made_by.__qualname__}"
        pid, address = self._ask(json.dumps({"made_by": name, "loop": loop, "log": str(log)}))
        server = _Server(pid, log, address)
        try:
            if not address:
                raise RuntimeError(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")
            yield server
        finally:
            server.status = self._ask("")

    def _ask(self, line: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@dataclass
class _Server:
    """A server's process.

    Attributes:
        status: how it ended, if it did so by itself; known when it was stopped.
    """

    pid: int
    log: Path
    address: str
    status: int | None = None

    def has_ended(self) -> bool:
        """Whether it has ended by itself; its parent has not been told yet."""
        return "(zombie)" in Path(f"/proc/{self.pid}/status").read_text()


@functools.cache
def _starter() -> ServerStarter:
    starter = ServerStarter()
    atexit.register(starter.close)
    return starter


def run(of: Attack, *, whole: bool) -> Report:
    """Start a server, attack it, and report. Nothing of it is left when this returns.

    Where only the wait is too long it is measured again, with a new server: it is too long if it always is.
    """
    for _ in range(ATTEMPTS):
        report = _run_once(of, whole=whole)
        if not (report.is_slow and len(report.problems) == 1):
            break
    return report


def _run_once(of: Attack, *, whole: bool) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        with _starter().run(of.server, of.loop, Path(folder)) as server:
            report = asyncio.run(_attacked(of, server, whole=whole))
        if server.status is not None:
            report.failure = f"the server ended with status {server.status}; {report.failure}"
        return report


async def _attacked(of: Attack, server: _Server, *, whole: bool) -> Report:
    report = Report(attack=of, whole=whole)
    pid = server.pid
    pinger = subprocess.Popen(
        [
            *(sys.executable, "-I", str(HERE / "ping.py"), server.address, str(pid), str(PATIENCE)),
            *(["--tls"] if of.uses_tls else []),
            *(["--token", of.token] if of.token else []),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert pinger.stdout is not None
        await asyncio.to_thread(pinger.stdout.readline)
        await asyncio.sleep(0.1)
        quiet_memory = _status_of(pid, "VmRSS")
        quiet_log = server.log.stat().st_size
        before = time.monotonic()
        assert pinger.stdin is not None
        pinger.stdin.write("attack\n")
        pinger.stdin.flush()
        try:
            async with AsyncExitStack() as stack:
                await of.act(ServerUnderAttack(server.address, pid, whole=whole, stack=stack))
                report.seconds = time.monotonic() - before
                said, _ = await asyncio.to_thread(pinger.communicate)
        except Exception as error:
            report.failure = f"{type(error).__name__}: {error}"
            said, _ = await asyncio.to_thread(pinger.communicate)
        pings = json.loads(said) if said else {"failure": "the other caller died"}
        if pings.get("failure"):
            report.failure = f"{pings['failure']}; {report.failure}".rstrip("; ")
            return report
        if server.has_ended():
            return report
        report.quiet = statistics.median(pings["quiet"]) if pings["quiet"] else 0.0
        report.longest, report.held, report.pings = pings["longest"], pings["held"], pings["count"]
        report.memory = max(0, _status_of(pid, "VmHWM") - quiet_memory)
        report.log = server.log.stat().st_size - quiet_log
        return report
    finally:
        pinger.kill()
        pinger.communicate()


def _status_of(pid: int, name: str) -> int:
    """A figure of `/proc/PID/status`, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * KIB
    raise RuntimeError(f"the process {pid} has no {name}")
